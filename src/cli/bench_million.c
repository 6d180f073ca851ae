/* SPDX-License-Identifier: MIT */
/*
 * As many leases as a large fleet holds, held at once at a server by one process, a thousand calls in flight: what each
 * adds to the memory of the server, by its own word, and whether any key outlives its use.
 */
#include "cli/bench.h"

#include <malloc.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

enum { IN_FLIGHT = 1000, ANSWER_MS = 30000, TTL_MS = 1800000 /* nothing is renewed meanwhile */ };

struct million {
  struct bench *b;
  dibs_store *store;
  dibs_lease **leases;
  uint32_t many, begun, flying;
  bool failed;
};

static void answered(dibs_lease *lease, dibs_status status, void *user) {
  struct million *m = user;
  m->flying--;
  if (!status || m->failed) return; /* what is cancelled after the first failure says nothing */
  m->failed = true;
  dibs__bench_fail(m->b, "%s: %s", dibs_lease_name(lease), dibs_status_text(status));
}

static bool acquire_one(struct million *m, dibs_error *error) {
  dibs_lease_options options = {.size = sizeof options, .ttl_ms = TTL_MS};
  char name[64];
  dibs__bench_name(name, m->begun);
  return !dibs_acquire_start(m->store, name, &options, answered, m, &m->leases[m->begun], error);
}

static bool release_one(struct million *m, dibs_error *error) {
  return !dibs_release_start(m->leases[m->begun], answered, m, error);
}

/* All of them, in order, so many at once as may fly. */
static bool each(struct million *m, bool (*one)(struct million *, dibs_error *)) {
  struct pollfd ready = {.fd = dibs_fd(m->store), .events = POLLIN};
  dibs_error error;
  for (m->begun = 0; !m->failed && (m->begun < m->many || m->flying);) {
    while (m->begun < m->many && m->flying < IN_FLIGHT) {
      m->flying++;
      if (!one(m, &error)) return dibs__bench_fail(m->b, "number %u: %s", m->begun, error.text);
      m->begun++;
    }
    if (dibs_dispatch(m->store, 0)) continue;
    if (poll(&ready, 1, ANSWER_MS) == 0)
      return dibs__bench_fail(m->b, "%u calls in flight, and no answer in %d s", m->flying, ANSWER_MS / 1000);
  }
  return !m->failed;
}

static double heap_now(void) {
  struct mallinfo2 info = mallinfo2();
  return (double)(info.uordblks + info.hblkhd);
}

static bool hold(struct million *m, struct bench_sample *sample) {
  double before, keys, with, ignored, after, left;
  if (!dibs__bench_floor_weigh(m->b, 0, &before, &keys, NULL)) return false;
  dibs_stats stats = dibs__bench_stats(m->store);
  double heap = heap_now(), cpu = dibs__bench_cpu();
  dibs__tick from = dibs__tick_now();
  if (!each(m, acquire_one)) return false;
  int64_t ns = dibs__tick_now().ns - from.ns;
  sample->value[BENCH_RATE] = m->many * 1e9 / (double)ns;
  sample->value[BENCH_CPU] = (dibs__bench_cpu() - cpu) * 1e6 / m->many;
  sample->value[BENCH_HEAP] = (heap_now() - heap) / m->many;
  dibs__bench_sample_stats(sample, &stats, m->store);
  if (!dibs__bench_floor_weigh(m->b, 0, &with, &ignored, NULL)) return false;
  sample->value[BENCH_STORE] = (with - before) / m->many;
  if (!each(m, release_one) || !dibs__bench_floor_weigh(m->b, 0, &after, &left, NULL)) return false;
  sample->value[BENCH_KEYS] = left - keys;
  return true;
}

bool dibs__bench_side_million(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  double bytes, keys;
  if (arg == BENCH_MILLION_FLOOR) return dibs__bench_floor_weigh(b, b->size.million, &bytes, &keys, sample);
  struct million m = {.b = b, .many = b->size.million};
  if (!dibs__bench_open(b, DIBS_STORE_LOOP, &m.store)) return false;
  m.leases = calloc(m.many, sizeof(dibs_lease *));
  bool done = m.leases ? hold(&m, sample) : dibs__bench_fail(b, "out of memory");
  for (uint32_t i = 0; m.leases && i < m.many; i++) dibs_lease_free(m.leases[i]);
  free(m.leases);
  dibs_close(m.store);
  return done;
}

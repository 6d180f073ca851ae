/* SPDX-License-Identifier: MIT */
/* Many calls outstanding from one thread, as an event loop would have them: every answer starts the next call of its
 * place, and the thread sleeps in poll() when there is none. */
#include "cli/bench.h"

#include <poll.h>
#include <stdio.h>

struct loop;
struct place {
  struct loop *loop;
  dibs_lease *lease; /* NULL between two turns */
  dibs__tick asked;
  char name[64];
};

struct loop {
  struct bench *b;
  dibs_store *store;
  dibs__tick until;
  uint32_t busy;
  uint64_t turns;
  bool failed;
  struct dibs__hist hist;
  struct place places[BENCH_THREADS];
};

static void place_fail(struct place *place, const char *what, const char *text) {
  place->loop->failed = true;
  dibs__bench_fail(place->loop->b, "%s %s: %s", what, place->name, text);
}

static void place_end(struct place *place) {
  dibs_lease_free(place->lease);
  place->lease = NULL;
  place->loop->busy--;
}

static void place_start(struct place *place);

static void released(dibs_lease *lease, dibs_status status, void *user) {
  (void)lease;
  struct place *place = user;
  struct loop *loop = place->loop;
  dibs__tick now = dibs__tick_now();
  if (status) place_fail(place, "release", dibs_status_text(status));
  place_end(place);
  dibs__hist_add(&loop->hist, now.ns - place->asked.ns);
  loop->turns++;
  if (!loop->failed && dibs__tick_before(now, loop->until)) place_start(place);
}

static void acquired(dibs_lease *lease, dibs_status status, void *user) {
  struct place *place = user;
  dibs_error error;
  if (status) {
    place_fail(place, "acquire", dibs_status_text(status));
    place_end(place);
  } else if (dibs_release_start(lease, released, place, &error)) {
    place_fail(place, "release", error.text);
    place_end(place);
  }
}

static void place_start(struct place *place) {
  dibs_lease_options options = {.size = sizeof options, .wait_ms = DIBS_FOREVER};
  dibs_error error;
  place->asked = dibs__tick_now();
  place->loop->busy++;
  if (dibs_acquire_start(place->loop->store, place->name, &options, acquired, place, &place->lease, &error)) {
    place_fail(place, "acquire", error.text);
    place_end(place);
  }
}

/* Until every place is at rest; false when nothing came for ten seconds. */
static bool loop_turn_all(struct loop *loop) {
  struct pollfd ready = {.fd = dibs_fd(loop->store), .events = POLLIN};
  while (loop->busy) {
    if (dibs_dispatch(loop->store, 0)) continue;
    if (poll(&ready, 1, 10000) == 0)
      return dibs__bench_fail(loop->b, "%u calls outstanding, and no answer in 10 s", loop->busy);
  }
  return !loop->failed;
}

static bool loop_for(struct loop *loop, int64_t ms) {
  loop->turns = 0;
  dibs__hist_clear(&loop->hist);
  loop->until = dibs__tick_add_ms(dibs__tick_now(), ms);
  for (size_t i = 0; i < BENCH_THREADS && !loop->failed; i++) place_start(&loop->places[i]);
  return loop_turn_all(loop);
}

bool dibs__bench_side_loop(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  struct loop loop = {.b = b};
  if (!(arg & BENCH_FIRST_TIER ? dibs__bench_open_first : dibs__bench_open)(b, DIBS_STORE_LOOP, &loop.store))
    return false;
  for (uint32_t i = 0; i < BENCH_THREADS; i++) {
    loop.places[i].loop = &loop;
    dibs__bench_name(loop.places[i].name, i);
  }
  bool done = loop_for(&loop, 0); /* one turn each, to warm up */
  dibs_stats before = dibs__bench_stats(loop.store);
  double cpu = dibs__bench_cpu();
  dibs__tick from = dibs__tick_now();
  if (done) done = loop_for(&loop, b->size.ms);
  int64_t ns = dibs__tick_now().ns - from.ns;
  cpu = dibs__bench_cpu() - cpu;
  if (done) {
    dibs__bench_sample_hist(sample, &loop.hist);
    dibs__bench_sample_stats(sample, &before, loop.store);
    sample->value[BENCH_RATE] = (double)loop.turns * 1e9 / (double)ns;
    sample->value[BENCH_CPU] = cpu * 1e6 / (double)loop.turns;
  }
  dibs_close(loop.store);
  return done;
}

/* SPDX-License-Identifier: MIT */
/*
 * As many leases as a large fleet holds, held at once at a server by one process, with a thousand calls in flight: the
 * server's own figure for the memory of each, and whether any key outlives its use.
 */
#include "lab/bench.h"

#include <malloc.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IN_FLIGHT = 1000, ANSWER_MS = 30000, TTL_MS = 1800000 /* nothing is renewed meanwhile */ };

struct million {
  struct bench *b;
  dibs_store *store;
  dibs_lease **leases;
  uint32_t many, begun, flying;
  bool failed;
};

static void answered(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  struct million *m = user;
  m->flying--;
  if (!status || m->failed) return; /* calls that were cancelled after the first failure */
  m->failed = true;
  dibs__bench_fail(m->b, "%s: %s", dibs_lease_name(lease), error->text);
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

/* All of them, in order, with a limited number in flight. */
static bool run_for_each(struct million *m, bool (*one)(struct million *, dibs_error *)) {
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

static bool hold_million(struct million *m, struct bench_sample *sample) {
  double before, keys, with, ignored, after, left;
  if (!dibs__bench_floor_weigh(m->b, 0, &before, &keys, NULL)) return false;
  struct bench_counts counts = dibs__bench_counts(m->store);
  double heap = heap_now(), cpu = dibs__bench_cpu();
  dibs__tick from = dibs__tick_now();
  if (!run_for_each(m, acquire_one)) return false;
  int64_t ns = dibs__tick_now().ns - from.ns;
  sample->value[BENCH_RATE] = m->many * 1e9 / (double)ns;
  sample->value[BENCH_CPU] = (dibs__bench_cpu() - cpu) * 1e6 / m->many;
  sample->value[BENCH_HEAP] = (heap_now() - heap) / m->many;
  dibs__bench_sample_counts(sample, &counts, m->store);
  if (!dibs__bench_floor_weigh(m->b, 0, &with, &ignored, NULL)) return false;
  sample->value[BENCH_STORE] = (with - before) / m->many;
  if (!run_for_each(m, release_one) || !dibs__bench_floor_weigh(m->b, 0, &after, &left, NULL)) return false;
  sample->value[BENCH_KEYS] = left - keys;
  return true;
}

bool dibs__bench_side_million(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  double bytes, keys;
  if (arg == BENCH_MILLION_FLOOR) return dibs__bench_floor_weigh(b, b->size.million, &bytes, &keys, sample);
  struct million m = {.b = b, .many = b->size.million};
  if (!dibs__bench_open(b, DIBS_STORE_LOOP, &m.store)) return false;
  m.leases = calloc(m.many, sizeof(dibs_lease *));
  bool done = m.leases ? hold_million(&m, sample) : dibs__bench_fail(b, "out of memory");
  for (uint32_t i = 0; m.leases && i < m.many; i++) dibs_lease_free(m.leases[i]);
  free(m.leases);
  dibs_close(m.store);
  return done;
}

/*
 * Many leases in one process: the memory of a held lease and of a waiting request; how many transactions renew all held
 * leases; how many threads it takes.  A helper does it, so that the heap contains nothing else.
 */

enum { MEMORY_ANSWER_MS = 60000, LOOK_MS = 10, SETTLE_MS = 200, WAIT_NAMES = 100, ROUNDS = 3 };

struct population {
  struct bench_page *page;
  struct bench_child *child;
  dibs_store *store;
  uint32_t waiting; /* for an answer */
  bool pass_on;     /* release a granted lease at once */
  bool failed;
  struct seat {
    struct population *population;
    dibs_lease *lease;
  } * seats;
  uint64_t *fences; /* the last of each name */
};

/* ---- The use of the process ---- */

struct usage {
  double heap, anonymous, threads;
};

/* The number after `key` in /proc/self/status; 0 if it is missing. */
static double status_of(const char *key) {
  FILE *file = fopen("/proc/self/status", "re");
  if (!file) return 0;
  char line[256];
  size_t length = strlen(key);
  double found = 0;
  while (fgets(line, sizeof line, file)) {
    if (!strncmp(line, key, length)) found = strtod(line + length, NULL);
  }
  fclose(file);
  return found;
}

static struct usage usage_now(void) {
  struct mallinfo2 info = mallinfo2();
  return (struct usage){(double)(info.uordblks + info.hblkhd), status_of("RssAnon:") * 1024, status_of("Threads:")};
}

static void usage_sample(struct population *population, const struct usage *before) {
  struct usage now = usage_now();
  double *value = population->child->sample.value;
  value[BENCH_HEAP] = (now.heap - before->heap) / population->page->many;
  value[BENCH_RSS] = (now.anonymous - before->anonymous) / population->page->many;
  value[BENCH_THREADS_USED] = now.threads;
}

/* ---- Starting, and results ---- */

static void population_fail(struct population *population, dibs_lease *lease, const char *what, const char *text) {
  population->failed = true;
  dibs__bench_child_fail(population->child, "%s %s: %s", what, dibs_lease_name(lease), text);
}

static void released(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  struct population *population = ((struct seat *)user)->population;
  population->waiting--;
  if (status) population_fail(population, lease, "release", error->text);
}

static void seat_release(struct seat *seat) {
  dibs_error error;
  if (!dibs_release_start(seat->lease, released, seat, &error)) {
    seat->population->waiting++;
  } else {
    population_fail(seat->population, seat->lease, "release", error.text);
  }
}

static void granted(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  struct seat *seat = user;
  struct population *population = seat->population;
  population->waiting--;
  if (status) {
    population_fail(population, lease, "acquire", error->text);
    return;
  }
  uint64_t *last = &population->fences[(size_t)(seat - population->seats) % population->page->names];
  if (dibs_lease_fence(lease).value <= *last) population_fail(population, lease, "fence", "it did not grow");
  *last = dibs_lease_fence(lease).value;
  if (population->pass_on) seat_release(seat);
}

static bool population_start(struct population *population) {
  dibs_lease_options options = {.size = sizeof options, .wait_ms = DIBS_FOREVER, .ttl_ms = population->page->ttl_ms};
  for (uint32_t i = 0; i < population->page->many; i++) {
    struct seat *seat = &population->seats[i];
    char name[64];
    dibs_error error;
    dibs__bench_name_of(name, population->page->run, i % population->page->names);
    seat->population = population;
    if (dibs_acquire_start(population->store, name, &options, granted, seat, &seat->lease, &error)) {
      return dibs__bench_child_fail(population->child, "acquire %s: %s", name, error.text);
    }
    population->waiting++;
  }
  return true;
}

static bool population_hear_all(struct population *population) {
  struct pollfd ready = {.fd = dibs_fd(population->store), .events = POLLIN};
  while (population->waiting && !population->failed) {
    if (dibs_dispatch(population->store, 0)) continue;
    if (poll(&ready, 1, MEMORY_ANSWER_MS) > 0) continue;
    return dibs__bench_child_fail(population->child, "%u calls in flight, and no answer in a minute",
                                  population->waiting);
  }
  return !population->failed;
}

static bool population_open(struct population *population, struct bench_page *page, struct bench_child *child) {
  *population = (struct population){.page = page, .child = child};
  population->seats = calloc(page->many, sizeof *population->seats);
  population->fences = calloc(page->names, sizeof *population->fences);
  if (!population->seats || !population->fences) return dibs__bench_child_fail(child, "out of memory");
  memset(population->seats, 0, page->many * sizeof *population->seats); /* resident before anything is measured */
  dibs_store_options options = {.size = sizeof options, .flags = DIBS_STORE_LOOP};
  dibs_error error;
  if (dibs_open(page->store, &options, &population->store, &error))
    return dibs__bench_child_fail(child, "%s", error.text);
  return true;
}

static void population_close(struct population *population) {
  for (uint32_t i = 0; population->seats && i < population->page->many; i++)
    dibs_lease_free(population->seats[i].lease);
  dibs_close(population->store);
  free(population->seats);
  free(population->fences);
}

/* One acquire and release, so that everything that a store needs once exists before anything is measured. */
static bool population_warm_up(struct population *population) {
  dibs_lease_options options = {.size = sizeof options};
  dibs_error error;
  dibs_lease *lease;
  char name[64];
  dibs__bench_name_of(name, population->page->run, population->page->many);
  dibs_status status = dibs_acquire(population->store, name, &options, &lease, &error);
  if (!status) status = dibs_release(lease, &error);
  dibs_lease_free(lease);
  return !status || dibs__bench_child_fail(population->child, "%s: %s", name, error.text);
}

/* ---- Held ---- */

/* Waits until `more` renewals have happened since `from`. */
static bool renewed_since(struct population *population, const struct bench_counts *from, uint64_t more,
                          struct bench_counts *now) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), MEMORY_ANSWER_MS);
  for (;;) {
    *now = dibs__bench_counts(population->store);
    if (now->lost)
      return dibs__bench_child_fail(population->child, "%llu leases were lost", (unsigned long long)now->lost);
    if (now->renewed - from->renewed >= more) return true;
    if (!dibs__tick_before(dibs__tick_now(), by))
      return dibs__bench_child_fail(population->child, "the renewals did not happen");
    dibs__nap_ms(LOOK_MS);
  }
}

static bool watch_renewals(struct population *population) {
  uint64_t many = population->page->many;
  struct bench_counts none = {0}, first, last;
  if (!renewed_since(population, &none, many, &first)) return false;
  if (!renewed_since(population, &first, many * population->page->rounds, &last)) return false;
  double rounds = (double)(last.renewed - first.renewed) / (double)many;
  population->child->sample.value[BENCH_TX_ALL] = (double)(last.transactions - first.transactions) / rounds;
  return true;
}

bool dibs__bench_role_held(struct bench_page *page, struct bench_child *child) {
  struct population population;
  dibs__bench_sample_clear(&child->sample);
  bool done = population_open(&population, page, child) && population_warm_up(&population);
  if (done) dibs__bench_child_ready(page);
  struct usage before = usage_now();
  dibs__tick from = dibs__tick_now();
  if (done) done = population_start(&population) && population_hear_all(&population);
  child->sample.value[BENCH_RATE] = page->many * 1e9 / (double)(dibs__tick_now().ns - from.ns);
  if (done) usage_sample(&population, &before);
  if (done) done = watch_renewals(&population);
  for (uint32_t i = 0; done && i < page->many; i++) seat_release(&population.seats[i]);
  if (done) done = population_hear_all(&population);
  population_close(&population);
  return done;
}

/* ---- Waiting ---- */

bool dibs__bench_role_waiting(struct bench_page *page, struct bench_child *child) {
  struct population population;
  dibs__bench_sample_clear(&child->sample);
  bool done = population_open(&population, page, child) && population_warm_up(&population);
  struct usage before = usage_now();
  population.pass_on = true;
  if (done) done = population_start(&population);
  if (done && dibs__bench_counts(population.store).waiting != page->many) {
    done = dibs__bench_child_fail(child, "%u requests were started, but %llu wait", page->many,
                                  (unsigned long long)dibs__bench_counts(population.store).waiting);
  }
  if (done) {
    dibs__nap_ms(SETTLE_MS); /* so that background requests to the store are counted */
    usage_sample(&population, &before);
    dibs__bench_child_ready(page);
    dibs__tick from = dibs__tick_now();
    done = population_hear_all(&population);
    child->sample.value[BENCH_RATE] = page->many * 1e9 / (double)(dibs__tick_now().ns - from.ns);
  }
  population_close(&population);
  return done;
}

/* ---- In the bench ---- */

/* Holds the names for which the helper waits. */
struct block {
  dibs_store *store;
  dibs_lease *leases[WAIT_NAMES];
};

static bool block_hold(struct bench *b, struct block *block) {
  dibs_lease_options options = {.size = sizeof options};
  dibs_error error;
  if (!dibs__bench_open(b, 0, &block->store)) return false;
  for (uint32_t i = 0; i < WAIT_NAMES; i++) {
    char name[64];
    dibs__bench_name(name, i);
    if (dibs_acquire(block->store, name, &options, &block->leases[i], &error)) {
      return dibs__bench_fail(b, "acquire %s: %s", name, error.text);
    }
  }
  return true;
}

static bool block_release(struct bench *b, struct block *block) {
  bool done = true;
  for (uint32_t i = 0; i < WAIT_NAMES; i++) {
    dibs_error error;
    if (block->leases[i] && dibs_release(block->leases[i], &error))
      done = dibs__bench_fail(b, "release: %s", error.text);
    dibs_lease_free(block->leases[i]);
    block->leases[i] = NULL;
  }
  return done;
}

bool dibs__bench_side_memory(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  int fd;
  struct bench_page *page = dibs__bench_page_new(b, &fd);
  if (!page) return false;
  bool waiting = arg == BENCH_MEMORY_WAITING;
  struct block block = {.store = NULL};
  page->role = waiting ? BENCH_ROLE_WAITING : BENCH_ROLE_HELD;
  page->many = b->size.many;
  page->names = waiting ? WAIT_NAMES : b->size.many;
  page->ttl_ms = b->size.ttl_ms;
  page->rounds = ROUNDS;
  bool done = !waiting || block_hold(b, &block);
  if (done) {
    done = dibs__bench_children_start(b, page, fd, 1);
    bool freed = !waiting || block_release(b, &block);
    if (done) {
      dibs__bench_children_go(page);
      done = dibs__bench_children_end(b, page, 1) && freed;
    }
  }
  if (done) *sample = page->child[0].sample;
  block_release(b, &block);
  dibs_close(block.store);
  dibs__bench_page_free(page, fd);
  return done;
}

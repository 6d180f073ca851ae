/* SPDX-License-Identifier: MIT */
/* Threads that take turns until the time is over, and what a turn is: on dibs, on the SQLite floor, on the mutex floor.
 * Every member keeps its own count and histogram, so that measuring is not what they contend for. */
#include "bench/floor.h"
#include "cli/bench.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool dibs__bench_fail(struct bench *b, const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(b->why, sizeof b->why, format, list);
  va_end(list);
  return false;
}

static bool member_fail(struct bench_member *member, const char *what, const char *text) {
  snprintf(member->why, sizeof member->why, "%s %s: %s", what, member->name, text);
  return false;
}

static void member_body(void *arg) {
  struct bench_member *member = arg;
  struct bench_crew *crew = member->crew;
  while (!atomic_load(&crew->go)) dibs__word_wait(&crew->go, 0, DIBS__TICK_NEVER, false);
  /* One turn at least: on a busy machine a short time may be over before we run. */
  do {
    if (!crew->turn(member)) {
      member->failed = true;
      return;
    }
    member->turns++;
  } while (!atomic_load_explicit(&crew->stop, memory_order_relaxed));
}

/* For those who were started when others could not be. */
static bool turn_nothing(struct bench_member *member) {
  (void)member;
  return true;
}

static bool crew_gather(struct bench *b, struct bench_crew *crew, struct bench_member *members, int64_t ns, double cpu,
                        struct bench_sample *sample) {
  struct dibs__hist *all = &members[0].hist;
  uint64_t turns = 0;
  for (uint32_t i = 0; i < crew->size; i++) {
    if (members[i].failed) return dibs__bench_fail(b, "%s", members[i].why);
    turns += members[i].turns;
    if (i) dibs__hist_merge(all, &members[i].hist);
  }
  dibs__bench_sample_hist(sample, all);
  sample->value[BENCH_RATE] = (double)turns * crew->pairs * 1e9 / (double)ns;
  if (turns) sample->value[BENCH_CPU] = cpu * 1e6 / (double)(turns * crew->pairs);
  return turns > 0 || dibs__bench_fail(b, "nothing was done in %lld ms", (long long)(ns / 1000000));
}

bool dibs__bench_crew_run(struct bench *b, struct bench_crew *crew, struct bench_sample *sample) {
  struct bench_member *members = calloc(crew->size, sizeof *members);
  dibs__thread **threads = calloc(crew->size, sizeof(dibs__thread *));
  bool done = members && threads;
  if (!done) dibs__bench_fail(b, "out of memory for %u threads", crew->size);

  uint32_t started = 0;
  for (; done && started < crew->size; started++) {
    struct bench_member *member = &members[started];
    member->crew = crew;
    member->number = started;
    dibs__bench_name(member->name, crew->one_name ? 0 : started);
    threads[started] = dibs__thread_start("bench", member_body, member);
    if (!threads[started]) done = dibs__bench_fail(b, "the system gives no thread number %u", started + 1);
    if (!done) break;
  }

  double cpu = dibs__bench_cpu();
  dibs__tick from = dibs__tick_now();
  if (!done) crew->turn = turn_nothing;
  if (!done) atomic_store(&crew->stop, true);
  atomic_store(&crew->go, 1);
  dibs__word_wake(&crew->go, UINT32_MAX, false);
  if (done) dibs__nap_ms(b->size.ms);
  atomic_store(&crew->stop, true);
  for (uint32_t i = 0; i < started; i++) dibs__thread_join(threads[i]);
  int64_t ns = dibs__tick_now().ns - from.ns;
  cpu = dibs__bench_cpu() - cpu;

  if (done) done = crew_gather(b, crew, members, ns, cpu, sample);
  free(threads);
  free(members);
  return done;
}

/* ---- Turns on dibs ---- */

static bool check_alone(struct bench_member *member, uint64_t fence) {
  struct bench_crew *crew = member->crew;
  if (atomic_fetch_add(&crew->inside, 1) != 0) return member_fail(member, "two threads hold", "exclusion is broken");
  if (atomic_exchange(&crew->fence, fence) >= fence) return member_fail(member, "a fence did not grow on", "order");
  return true;
}

static bool turn_dibs(struct bench_member *member) {
  struct bench_crew *crew = member->crew;
  dibs_lease_options options = {.size = sizeof options, .wait_ms = DIBS_FOREVER};
  dibs_error error;
  dibs_lease *lease;
  dibs__tick asked = dibs__tick_now();
  if (dibs_acquire(crew->what, member->name, &options, &lease, &error)) {
    return member_fail(member, "acquire", error.text);
  }
  dibs__tick granted = crew->one_name ? dibs__tick_now() : asked;
  bool fine = !crew->one_name || check_alone(member, dibs_lease_fence(lease));
  if (crew->one_name) atomic_fetch_sub(&crew->inside, 1);
  if (dibs_release(lease, &error) && fine) fine = member_fail(member, "release", error.text);
  dibs_lease_free(lease);
  /* Alone the cost is the whole pair; in a queue what matters is the wait. */
  int64_t ns = crew->one_name ? granted.ns - asked.ns : dibs__tick_now().ns - asked.ns;
  dibs__hist_add(&member->hist, ns);
  return fine;
}

/* Opens connections, prepares statements and starts threads outside of the measurement. */
static bool warm_up(struct bench *b, dibs_store *store) {
  dibs_lease_options options = {.size = sizeof options, .wait_ms = DIBS_FOREVER};
  char name[64];
  for (uint32_t i = 0; i < BENCH_THREADS; i++) {
    dibs_error error;
    dibs_lease *lease;
    dibs__bench_name(name, i);
    if (dibs_acquire(store, name, &options, &lease, &error))
      return dibs__bench_fail(b, "acquire %s: %s", name, error.text);
    dibs_status released = dibs_release(lease, &error);
    dibs_lease_free(lease);
    if (released) return dibs__bench_fail(b, "release %s: %s", name, error.text);
  }
  return true;
}

bool dibs__bench_side_threads(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  dibs_store *store;
  if (!(arg & BENCH_FIRST_TIER ? dibs__bench_open_first : dibs__bench_open)(b, 0, &store)) return false;
  arg &= ~(uint32_t)BENCH_FIRST_TIER;
  struct bench_crew crew = {.size = arg == BENCH_ONE_THREAD ? 1 : BENCH_THREADS,
                            .pairs = 1,
                            .turn = turn_dibs,
                            .what = store,
                            .one_name = arg == BENCH_SAME_NAME};
  bool done = warm_up(b, store);
  dibs_stats before = dibs__bench_stats(store);
  if (done) done = dibs__bench_crew_run(b, &crew, sample);
  if (done) dibs__bench_sample_stats(sample, &before, store);
  dibs_close(store);
  return done;
}

/* ---- Turns on the floors ---- */

static bool turn_sqlite(struct bench_member *member) {
  dibs__tick from = dibs__tick_now();
  uint32_t pairs = member->crew->pairs;
  int64_t now_ms = from.ns / DIBS__NS_PER_MS;
  if (!dibs__floor_sqlite_pairs(member->crew->what, pairs, pairs == 1, now_ms, member->why, sizeof member->why))
    return false;
  dibs__hist_add(&member->hist, dibs__tick_now().ns - from.ns);
  return true;
}

/* Has dibs make the file whose tables the floor is to use. */
static bool make_store(struct bench *b, const char *file) {
  char uri[sizeof b->folder + 64];
  dibs_error error;
  dibs_store *store;
  if (!dibs__bench_file_uri(b, file, uri, sizeof uri)) return dibs__bench_fail(b, "%s is too long", b->folder);
  if (dibs_open(uri, NULL, &store, &error)) return dibs__bench_fail(b, "%s", error.text);
  dibs_close(store);
  return true;
}

bool dibs__bench_side_sqlite(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  char path[sizeof b->folder + 16];
  snprintf(path, sizeof path, "%s/floor.db", b->folder);
  enum floor_kind kind = arg == BENCH_BARE_DIBS ? FLOOR_DIBS : FLOOR_NAIVE;
  if (kind == FLOOR_DIBS && !make_store(b, "floor.db")) return false;
  struct floor_sqlite *floor = dibs__floor_sqlite_open(path, kind, b->why, sizeof b->why);
  if (!floor) return false;
  struct bench_crew crew = {
      .size = 1, .pairs = arg == BENCH_BARE_NAIVE_64 ? 32 : 1, .turn = turn_sqlite, .what = floor};
  bool done =
      dibs__floor_sqlite_pairs(floor, 1, true, 1, b->why, sizeof b->why) && dibs__bench_crew_run(b, &crew, sample);
  sample->value[BENCH_TX] = crew.pairs == 1 ? 2.0 : 1.0 / crew.pairs;
  dibs__floor_sqlite_close(floor);
  return done;
}

struct fifo_floor {
  struct floor_fifo *fifo;
  struct floor_fifo_waiter *waiters[BENCH_THREADS];
};

static bool turn_fifo(struct bench_member *member) {
  struct fifo_floor *floor = member->crew->what;
  dibs__tick asked = dibs__tick_now();
  dibs__floor_fifo_lock(floor->fifo, floor->waiters[member->number]);
  dibs__hist_add(&member->hist, dibs__tick_now().ns - asked.ns);
  bool fine = check_alone(member, atomic_load(&member->crew->fence) + 1);
  atomic_fetch_sub(&member->crew->inside, 1);
  dibs__floor_fifo_unlock(floor->fifo);
  return fine;
}

bool dibs__bench_side_fifo(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  (void)arg;
  struct fifo_floor floor = {.fifo = dibs__floor_fifo_new()};
  bool done = floor.fifo;
  for (size_t i = 0; i < BENCH_THREADS; i++) {
    floor.waiters[i] = dibs__floor_fifo_waiter_new();
    done = done && floor.waiters[i];
  }
  struct bench_crew crew = {.size = BENCH_THREADS, .pairs = 1, .turn = turn_fifo, .what = &floor, .one_name = true};
  done = done ? dibs__bench_crew_run(b, &crew, sample) : dibs__bench_fail(b, "out of memory");
  for (size_t i = 0; i < BENCH_THREADS; i++) dibs__floor_fifo_waiter_free(floor.waiters[i]);
  dibs__floor_fifo_free(floor.fifo);
  return done;
}

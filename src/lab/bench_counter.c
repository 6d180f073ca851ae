/* SPDX-License-Identifier: MIT */
/*
 * `dibs bench counter`: what an addition costs at each level, beside takes of a stock and beside what people write by
 * hand.  Threads of one process add until the time is over; then the sum must be the number of additions.
 */
#include "cli/cli.h"
#include "dibs/counter.h"
#include "lab/bench.h"
#include "lab/lab.h"
#include "lab/locks.h"
#include "lab/own.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUFFERED_THREADS = 2, KEYS = 10000, AT_ONCE = 256 /* additions between two looks at the time */ };
enum { WAIT_MS = 60000 };

/* By what `arg` says. */
enum { ONE_KEY, MANY_KEYS };
enum { BY_UPDATE, BY_SELECT };

struct adders;
struct adder {
  struct adders *all;
  dibs__thread *thread;
  uint32_t nr;
  uint64_t done;
  struct dibs__hist hist; /* ns */
  struct lab_line line;   /* by hand */
  struct lab_redis *redis;
  char why[640];
};

struct adders {
  struct bench *b;
  dibs_store *store;
  struct lab_connection *connection; /* by hand */
  const char *redis;                 /* the URI of one; NULL: none */
  uint32_t arg, count;
  char name[64];
  char (*keys)[80]; /* MANY_KEYS */
  void (*body)(struct adder *adder);
  dibs__word go;
  atomic_bool stop;
  struct adder *adder[BENCH_THREADS];
};

static bool has_stopped(struct adder *a) {
  return atomic_load(&a->all->stop) || a->why[0];
}

/* ---- What a thread does ---- */

static void add_buffered(struct adder *a) {
  const struct adders *all = a->all;
  const dibs_counter_options o = {.size = sizeof o, .level = DIBS_COUNT_BUFFERED};
  dibs_error error;
  uint32_t draw = a->nr * 7919u + 1;
  while (!has_stopped(a)) {
    for (int i = 0; i < AT_ONCE && !a->why[0]; i++) {
      draw = draw * 1664525u + 1013904223u;
      const char *key = all->arg == ONE_KEY ? all->name : all->keys[(draw >> 8) % KEYS];
      if (dibs_counter_add(all->store, key, 1, &o, &error) != DIBS_OK)
        snprintf(a->why, sizeof a->why, "%s", error.text);
    }
    a->done += AT_ONCE;
  }
}

static void note(struct adder *a, dibs__tick *before) {
  dibs__tick now = dibs__tick_now();
  dibs__hist_add(&a->hist, now.ns - before->ns);
  *before = now;
  a->done++;
}

static void add_durably(struct adder *a) {
  const dibs_counter_options o = {.size = sizeof o, .wait_ms = WAIT_MS};
  dibs_error error;
  for (dibs__tick before = dibs__tick_now(); !has_stopped(a); note(a, &before))
    if (dibs_counter_add(a->all->store, a->all->name, 1, &o, &error) != DIBS_OK)
      snprintf(a->why, sizeof a->why, "%s", error.text);
}

static void add_shared(struct adder *a) {
  const struct adders *all = a->all;
  const dibs_counter_options o = {.size = sizeof o, .level = DIBS_COUNT_SHARED, .wait_ms = WAIT_MS};
  dibs_error error;
  uint32_t draw = a->nr * 7919u + 1;
  for (dibs__tick before = dibs__tick_now(); !has_stopped(a); note(a, &before)) {
    draw = draw * 1664525u + 1013904223u;
    const char *key = all->arg == ONE_KEY ? all->name : all->keys[(draw >> 8) % KEYS];
    if (dibs_counter_add(all->store, key, 1, &o, &error) != DIBS_OK) snprintf(a->why, sizeof a->why, "%s", error.text);
  }
}

static void take_coalesced(struct adder *a) {
  const dibs_stock_options o = {.size = sizeof o, .wait_ms = WAIT_MS};
  dibs_error error;
  for (dibs__tick before = dibs__tick_now(); !has_stopped(a); note(a, &before))
    if (dibs_stock_take(a->all->store, a->all->name, 1, &o, NULL, &error) != DIBS_OK)
      snprintf(a->why, sizeof a->why, "%s", error.text);
}

static bool run_sql(struct adder *a, const char *text) {
  if (dibs__lab_run_sql(&a->line, text, NULL, 0) == DIBS__SQL_OK) return true;
  snprintf(a->why, sizeof a->why, "%s: %s", text, a->line.wire->message);
  return false;
}

static void add_by_hand(struct adder *a) {
  const struct dibs__sql_engine *e = a->line.wire->engine;
  char lock[128], set[128];
  int64_t n = 0;
  snprintf(lock, sizeof lock, "SELECT n FROM bench_likes WHERE name = 'a'%s", e->for_update);
  for (dibs__tick before = dibs__tick_now(); !has_stopped(a); note(a, &before)) {
    if (a->all->arg == BY_UPDATE) {
      (void)run_sql(a, "UPDATE bench_likes SET n = n + 1 WHERE name = 'a'");
      continue;
    }
    if (!run_sql(a, e->begin)) return;
    if (dibs__lab_number(&a->line, lock, 0, &n) != DIBS__SQL_OK)
      snprintf(a->why, sizeof a->why, "%s: %s", lock, a->line.wire->message);
    snprintf(set, sizeof set, "UPDATE bench_likes SET n = %" PRId64 " WHERE name = 'a'", n + 1);
    if (a->why[0] || !run_sql(a, set) || !run_sql(a, "COMMIT")) return;
  }
}

static void add_in_redis(struct adder *a) {
  const char *words[] = {"INCR", a->all->name};
  char answer[sizeof a->why];
  for (dibs__tick before = dibs__tick_now(); !has_stopped(a); note(a, &before))
    if (dibs__lab_redis_run(a->redis, words, 2, answer, sizeof answer) != LAB_REDIS_DONE)
      snprintf(a->why, sizeof a->why, "%s", answer);
}

/* ---- The threads ---- */

static void adder_main(void *arg) {
  struct adder *a = arg;
  while (!atomic_load(&a->all->go)) dibs__word_wait(&a->all->go, 0, DIBS__TICK_NEVER, false);
  a->all->body(a);
}

static bool start_adders(struct adders *all) {
  for (uint32_t i = 0; i < all->count; i++) {
    struct adder *a = all->adder[i] = calloc(1, sizeof *a);
    struct dibs__result result = {.dead = false};
    if (!a) return dibs__bench_fail(all->b, "out of memory");
    a->all = all;
    a->nr = i;
    if (all->connection && dibs__lab_line_open(all->connection, &a->line, &result) != DIBS_OK)
      return dibs__bench_fail(all->b, "%s", result.text);
    if (all->redis && !(a->redis = dibs__lab_redis_open(all->redis, a->why, sizeof a->why)))
      return dibs__bench_fail(all->b, "%s", a->why);
    a->thread = dibs__thread_start("bench", adder_main, a);
    if (!a->thread) return dibs__bench_fail(all->b, "cannot start thread number %u", i + 1);
  }
  return true;
}

/* *done: the additions of all threads. */
static bool run_adders(struct adders *all, struct bench_sample *sample, uint64_t *done) {
  *done = 0;
  bool fine = start_adders(all);
  if (!fine) atomic_store(&all->stop, true);
  dibs__tick from = dibs__tick_now();
  atomic_store(&all->go, 1);
  dibs__word_wake(&all->go, INT32_MAX, false);
  if (fine) dibs__nap_ms(all->b->size.ms);
  atomic_store(&all->stop, true);
  dibs__tick end = dibs__tick_now();
  for (uint32_t i = 0; i < all->count; i++)
    if (all->adder[i]) dibs__thread_join(all->adder[i]->thread);
  for (uint32_t i = 0; i < all->count && fine; i++) {
    const struct adder *a = all->adder[i];
    *done += a->done;
    if (i) dibs__hist_merge(&all->adder[0]->hist, &a->hist);
    if (a->why[0]) fine = dibs__bench_fail(all->b, "%s", a->why);
  }
  if (fine) dibs__bench_sample_hist(sample, &all->adder[0]->hist);
  sample->value[BENCH_RATE] = (double)*done * 1e9 / (double)(end.ns - from.ns);
  return fine;
}

static void free_adders(struct adders *all) {
  for (uint32_t i = 0; i < all->count; i++) {
    if (all->adder[i] && all->connection) dibs__lab_line_close(&all->adder[i]->line);
    if (all->adder[i]) dibs__lab_redis_close(all->adder[i]->redis);
    free(all->adder[i]);
  }
  dibs__lab_connection_close(all->connection);
  dibs_close(all->store);
  free(all->keys);
}

static void name_adders(struct adders *all) {
  static uint32_t runs;
  dibs__bench_name(all->name, ++runs);
}

/* ---- Sides ---- */

static bool make_keys(struct adders *all) {
  all->keys = malloc(KEYS * sizeof *all->keys);
  for (int i = 0; all->keys && i < KEYS; i++) snprintf(all->keys[i], sizeof *all->keys, "%s/%d", all->name, i);
  return all->keys || dibs__bench_fail(all->b, "out of memory");
}

static int add_up(const char *key, int64_t stored, void *user) {
  (void)key;
  *(uint64_t *)user += (uint64_t)stored;
  return 0;
}

/* Nothing is lost, and nothing is counted twice. */
static bool sum_is(struct adders *all, uint64_t done) {
  uint64_t sum = 0;
  dibs_error error;
  dibs_counter_options o = {.size = sizeof o, .wait_ms = WAIT_MS};
  if (all->body == add_shared) o.level = DIBS_COUNT_SHARED;
  if (dibs_counter_flush(all->store, &o, &error) || dibs_counter_list(all->store, all->name, add_up, &sum, &error))
    return dibs__bench_fail(all->b, "%s", error.text);
  return sum == done || dibs__bench_fail(all->b, "the counters of %s are %" PRIu64 ", and %" PRIu64 " were added",
                                         all->name, sum, done);
}

static bool side_buffered(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  struct adders all = {.b = b, .arg = arg, .count = BUFFERED_THREADS, .body = add_buffered};
  uint64_t done = 0;
  name_adders(&all);
  bool fine =
      make_keys(&all) && dibs__bench_open(b, 0, &all.store) && run_adders(&all, sample, &done) && sum_is(&all, done);
  free_adders(&all);
  return fine;
}

static bool side_durable(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  struct adders all = {.b = b, .arg = arg, .count = BENCH_THREADS, .body = add_durably};
  uint64_t done = 0;
  name_adders(&all);
  bool fine = dibs__bench_open(b, 0, &all.store) && run_adders(&all, sample, &done) && sum_is(&all, done);
  free_adders(&all);
  return fine;
}

static bool side_take(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  struct adders all = {.b = b, .arg = arg, .count = BENCH_THREADS, .body = take_coalesced};
  uint64_t done = 0;
  dibs_error error;
  name_adders(&all);
  bool fine = dibs__bench_open(b, 0, &all.store);
  if (fine && dibs_stock_set(all.store, all.name, INT64_C(1) << 40, NULL, NULL, &error) != DIBS_OK)
    fine = dibs__bench_fail(b, "%s", error.text);
  fine = fine && run_adders(&all, sample, &done);
  free_adders(&all);
  return fine;
}

static bool make_table(struct adders *all) {
  struct lab_line line = {.wire = NULL};
  struct dibs__result result = {.dead = false};
  static const char *const texts[] = {"DROP TABLE IF EXISTS bench_likes",
                                      "CREATE TABLE bench_likes (name VARCHAR(64) NOT NULL PRIMARY KEY, n BIGINT)",
                                      "INSERT INTO bench_likes (name, n) VALUES ('a', 0)"};
  if (dibs__lab_line_open(all->connection, &line, &result) != DIBS_OK)
    return dibs__bench_fail(all->b, "%s", result.text);
  bool fine = true;
  for (size_t i = 0; fine && i < sizeof texts / sizeof *texts; i++)
    fine = dibs__lab_run_sql(&line, texts[i], NULL, 0) == DIBS__SQL_OK ||
           dibs__bench_fail(all->b, "%s: %s", texts[i], line.wire->message);
  dibs__lab_line_close(&line);
  return fine;
}

static bool drop_table(struct adders *all, uint64_t done) {
  struct adder *a = all->adder[0];
  int64_t sum = 0;
  bool fine = dibs__lab_number(&a->line, "SELECT n FROM bench_likes WHERE name = 'a'", 0, &sum) == DIBS__SQL_OK &&
              dibs__lab_run_sql(&a->line, "DROP TABLE bench_likes", NULL, 0) == DIBS__SQL_OK;
  if (!fine) return dibs__bench_fail(all->b, "%s", a->line.wire->message);
  return (uint64_t)sum == done || dibs__bench_fail(all->b, "the row has %" PRId64 " of %" PRIu64, sum, done);
}

static bool side_by_hand(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  struct adders all = {.b = b, .arg = arg, .count = BENCH_THREADS, .body = add_by_hand};
  struct dibs__result result = {.dead = false};
  uint64_t done = 0;
  dibs__status status = dibs__lab_connection_open(b->store, &all.connection, &result);
  sample->skipped = status == DIBS_NOT_FOUND; /* it has no SQL */
  if (sample->skipped) return true;
  bool fine = status == DIBS_OK || dibs__bench_fail(b, "%s", result.text);
  fine = fine && make_table(&all) && run_adders(&all, sample, &done) && drop_table(&all, done);
  free_adders(&all);
  return fine;
}

static bool redis_has(struct adders *all, uint64_t done) {
  const char *words[] = {"GET", all->name};
  char answer[LAB_WHY_MAX] = "";
  if (dibs__lab_redis_run(all->adder[0]->redis, words, 2, answer, sizeof answer) == LAB_REDIS_FAILED)
    return dibs__bench_fail(all->b, "%s", answer);
  return strtoull(answer, NULL, 10) == done || dibs__bench_fail(all->b, "Redis has %s of %" PRIu64, answer, done);
}

/* In a Redis of the lab's own, on this machine. */
static bool side_redis(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  static struct lab lab; /* the Redis needs one for its troubles */
  struct lab_own_redis own = {.pid = 0};
  struct adders all = {.b = b, .arg = arg, .count = BENCH_THREADS, .body = add_in_redis};
  uint64_t done = 0;
  sample->skipped = !dibs__lab_own_redis_start(&lab, &own); /* it is not installed */
  if (!sample->skipped) all.redis = own.uri;
  name_adders(&all);
  bool fine = sample->skipped || (run_adders(&all, sample, &done) && redis_has(&all, done));
  free_adders(&all);
  dibs__lab_own_redis_end(&own);
  return fine;
}

/* In front of a file of the bench: the store that is measured otherwise must not become an anchor of tiers. */
static bool side_shared(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  static struct lab lab;
  static uint32_t files;
  char file[64], uri[sizeof b->folder + 128], both[sizeof uri + 512];
  struct lab_own_redis own = {.pid = 0};
  struct adders all = {.b = b, .arg = arg, .count = BENCH_THREADS, .body = add_shared};
  uint64_t done = 0;
  const char *given = b->store;
  sample->skipped = !dibs__lab_own_redis_start(&lab, &own); /* it is not installed */
  if (sample->skipped) return true;
  snprintf(file, sizeof file, "shared-%u.db", ++files);
  name_adders(&all);
  bool fine =
      dibs__bench_file_uri(b, file, uri, sizeof uri) || dibs__bench_fail(b, "the name of the folder is too long");
  snprintf(both, sizeof both, "%s,%s", own.uri, uri);
  b->store = both;
  fine = fine && make_keys(&all) && dibs__bench_open(b, 0, &all.store) && run_adders(&all, sample, &done) &&
         sum_is(&all, done);
  b->store = given;
  free_adders(&all);
  dibs__lab_own_redis_end(&own);
  return fine;
}

/* ---- The cases ---- */

/* flat: the table of cases */
const struct bench_case dibs__bench_counter_cases[] = {
    {.key = "buffered-hot",
     .title = "2 threads add to one key, buffered",
     .sides = {{"dibs", side_buffered, ONE_KEY}},
     .aims = {{"million additions per second", BENCH_VALUE, BENCH_RATE, 0, 0, false, 5, 1e-6, "M"}},
     .where = BENCH_ANYWHERE},
    {.key = "buffered-keys",
     .title = "2 threads add to 10,000 keys, buffered",
     .sides = {{"dibs", side_buffered, MANY_KEYS}},
     .aims = {{"million additions per second", BENCH_VALUE, BENCH_RATE, 0, 0, false, 5, 1e-6, "M"}},
     .where = BENCH_ANYWHERE},
    {.key = "durable-hot",
     .title = "20 threads add to one key, durable (latency of the call)",
     .sides = {{"dibs", side_durable, ONE_KEY},
               {"coalesced takes of a stock", side_take, ONE_KEY},
               {"UPDATE n = n + 1", side_by_hand, BY_UPDATE},
               {"SELECT FOR UPDATE, then UPDATE", side_by_hand, BY_SELECT},
               {"Redis INCR, without persistence", side_redis, ONE_KEY}},
     .aims = {{"rate, divided by that of the takes", BENCH_RATIO, BENCH_RATE, 0, 1, false, 0.8, 1, "x"}},
     .where = BENCH_ANYWHERE},
    {.key = "shared-hot",
     .title = "20 threads add to one key, shared (latency of the call)",
     .sides = {{"dibs, Redis in front of SQLite", side_shared, ONE_KEY},
               {"Redis INCR, without persistence", side_redis, ONE_KEY}},
     .where = BENCH_ANYWHERE},
    {.key = "shared-keys",
     .title = "20 threads add to 10,000 keys, shared (latency of the call)",
     .sides = {{"dibs, Redis in front of SQLite", side_shared, MANY_KEYS}},
     .where = BENCH_ANYWHERE},
    {.key = NULL}};

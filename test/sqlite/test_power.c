/* SPDX-License-Identifier: MIT */
/*
 * The power fails while threads use an embedded store: on a disk that keeps any part of what was not synced
 * (powervfs.h), everything that was acknowledged is there after the next boot.
 *
 *   records, stock, once, tasks, counters   what was acknowledged, and nothing beyond what was attempted
 *   seals                                   a record still refuses what it refused before
 *   leases                                  may be lost, since their holders are gone: every name is free, and every
 *                                           new fence is larger
 *
 * DIBS_TEST_POWER_BOOTS=N runs N boots instead of the usual number.
 */
#include "bed.h"
#include "dibs/counter.h"
#include "dibs/task.h"
#include "powervfs.h"

#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 3, BOOTS = 60, KEPT = 64, NAMES = 5, KINDS = 9, STEPS_MAX = 900, LIMIT = 1000000000 };

/* The number of something, as it was last acknowledged, and as it was last attempted. */
struct number {
  int64_t sure, tried;
};
/* What one thread did since the boot; each has keys of its own. */
struct diary {
  struct number record, taken, given, counted;
  int64_t next; /* numbers claims, keys and tasks */
  char claims[KEPT][40], gave[KEPT][40], answers[KEPT][40];
  uint64_t added[KEPT], done[KEPT];
  unsigned claim_count, gave_count, answer_count, added_count, done_count;
};
static struct diary diaries[THREADS];
/* The largest fence of each name, and the largest with which its record was sealed. */
static uint64_t fences[NAMES], sealed[NAMES];
static dibs_store *store;
static dibs_error reported;
static uint64_t seed;
static unsigned broken;
static int step_count;   /* of each thread, if the power does not fail before */
static bool counts_only; /* a broken promise is expected: it is counted, not printed */

static void breaks(const char *promise, const char *what, int64_t is, int64_t wanted) {
  broken++;
  if (!counts_only)
    print_message("BROKEN  seed %llu: %s of %s: %lld, not %lld (%s)\n", (unsigned long long)seed, promise, what,
                  (long long)is, (long long)wanted, reported.text);
}

static void bound(const struct number *n, int64_t is, const char *promise, const char *what) {
  if (is < n->sure) breaks(promise, what, is, n->sure);
  if (is > n->tried) breaks(promise, what, is, n->tried);
}

/* ---- One step of each kind ---- */

struct worker {
  struct diary *diary;
  unsigned nr;
  uint64_t chances;
  char key[40];
};

static uint64_t below(struct worker *w, uint64_t n) {
  w->chances ^= w->chances << 13;
  w->chances ^= w->chances >> 7;
  w->chances ^= w->chances << 17;
  return w->chances % n;
}

/* Notes an acknowledged number, if the power had not failed before. */
static void acknowledge(struct number *n, int64_t value) {
  if (power_hold()) n->sure = value;
  power_let_go();
}

static void keep(char kept[KEPT][40], unsigned *count, const char *text) {
  if (power_hold()) snprintf(kept[(*count)++ % KEPT], 40, "%s", text);
  power_let_go();
}

static void put_record(struct worker *w) {
  char text[24];
  dibs_record_options o = DIBS_RECORD_OPTIONS_INIT;
  int64_t next = ++w->diary->record.tried;
  int length = snprintf(text, sizeof text, "%lld", (long long)next);
  snprintf(w->key, sizeof w->key, "record-%u", w->nr);
  o.flags = DIBS_UNCHECKED;
  dibs_value value = {text, (size_t)length};
  if (dibs_record_put(store, w->key, &value, 1, &o, NULL, NULL) == DIBS_OK) acknowledge(&w->diary->record, next);
}

static void use_lease(struct worker *w) {
  dibs_lease *lease = NULL;
  dibs_record *record = NULL;
  unsigned name = (unsigned)below(w, NAMES);
  snprintf(w->key, sizeof w->key, "name-%u", name);
  if (dibs_acquire(store, w->key, NULL, &lease, NULL) != DIBS_OK) return;
  uint64_t fence = dibs_lease_fence(lease).value;
  if (power_hold() && fence > fences[name]) fences[name] = fence;
  power_let_go();
  dibs_record_options o = DIBS_RECORD_OPTIONS_INIT;
  o.lease = lease;
  bool seals = below(w, 2) && dibs_record_get(store, w->key, &o, &record, NULL) == DIBS_OK;
  if (power_hold() && seals && fence > sealed[name]) sealed[name] = fence;
  power_let_go();
  dibs_record_free(record);
  if (below(w, 4)) (void)dibs_release(lease, NULL); /* otherwise nobody releases it */
  dibs_lease_free(lease);
}

static void take(struct worker *w) {
  dibs_stock_options o = DIBS_STOCK_OPTIONS_INIT;
  char claim[40];
  snprintf(w->key, sizeof w->key, "stock-%u", w->nr);
  snprintf(claim, sizeof claim, "claim-%u-%lld", w->nr, (long long)++w->diary->next);
  o.claim = claim;
  w->diary->taken.tried++;
  if (dibs_stock_take(store, w->key, 1, &o, NULL, NULL) != DIBS_OK) return;
  keep(w->diary->claims, &w->diary->claim_count, claim);
  acknowledge(&w->diary->taken, w->diary->taken.sure + 1);
}

static void give(struct worker *w) {
  if (w->diary->claim_count == 0) return;
  char *claim = w->diary->claims[below(w, w->diary->claim_count < KEPT ? w->diary->claim_count : KEPT)];
  if (!*claim) return;
  char copy[40];
  snprintf(copy, sizeof copy, "%s", claim);
  *claim = '\0'; /* it is not expected to hold any more */
  snprintf(w->key, sizeof w->key, "stock-%u", w->nr);
  w->diary->given.tried++;
  if (dibs_stock_give(store, w->key, copy, NULL, NULL, NULL) != DIBS_OK) return;
  keep(w->diary->gave, &w->diary->gave_count, copy);
  acknowledge(&w->diary->given, w->diary->given.sure + 1);
}

static dibs_status answer(dibs_lease *lease, char **to, size_t *length, void *user) {
  (void)lease;
  *to = strdup(user);
  *length = strlen(user);
  return *to ? DIBS_OK : DIBS_NO_MEMORY;
}

static void run_once(struct worker *w) {
  char *got = NULL;
  size_t length;
  snprintf(w->key, sizeof w->key, "once-%u-%lld", w->nr, (long long)++w->diary->next);
  if (dibs_once(store, w->key, NULL, answer, w->key, &got, &length, NULL) == DIBS_OK)
    keep(w->diary->answers, &w->diary->answer_count, w->key);
  free(got);
}

static void count(struct worker *w) {
  int64_t next = ++w->diary->counted.tried;
  snprintf(w->key, sizeof w->key, "counter-%u", w->nr);
  if (dibs_counter_add(store, w->key, 1, NULL, NULL) == DIBS_OK) {
    acknowledge(&w->diary->counted, w->diary->counted.sure + 1);
    (void)next;
  }
}

static void add_task(struct worker *w) {
  uint64_t nr;
  snprintf(w->key, sizeof w->key, "kind-%u", w->nr);
  if (dibs_task_add(store, w->key, "x", 1, NULL, &nr, NULL) != DIBS_OK) return;
  if (power_hold()) w->diary->added[w->diary->added_count++ % KEPT] = nr;
  power_let_go();
}

static void do_task(struct worker *w) {
  dibs_task *task = NULL;
  size_t got;
  snprintf(w->key, sizeof w->key, "kind-%u", w->nr);
  if (dibs_tasks_claim(store, w->key, NULL, &task, &got, NULL) != DIBS_OK || got == 0) return;
  uint64_t nr = task->nr;
  bool done = dibs_task_done(task, NULL, NULL) == DIBS_OK;
  if (power_hold() && done) w->diary->done[w->diary->done_count++ % KEPT] = nr;
  power_let_go();
  dibs_task_free(task);
}

static void *work(void *arg) {
  static void (*const steps[KINDS])(struct worker *) = {put_record, use_lease, use_lease, take,   give,
                                                        run_once,   count,     add_task,  do_task};
  struct worker w = {.nr = (unsigned)(uintptr_t)arg};
  w.diary = &diaries[w.nr];
  w.chances = (seed << 8 | w.nr) * UINT64_C(0x9e3779b97f4a7c15) | 1;
  for (int i = 0; i < step_count; i++) {
    bool on = power_hold();
    power_let_go();
    if (!on) break;
    steps[below(&w, KINDS)](&w);
  }
  return NULL;
}

/* ---- After the boot ---- */

static int64_t number_in(const char *key) {
  dibs_record *record = NULL;
  int64_t n = 0;
  dibs_status status = dibs_record_get(store, key, NULL, &record, &reported);
  if (status == DIBS_OK && record->values[0].data) n = strtoll(record->values[0].data, NULL, 10);
  if (status != DIBS_OK && status != DIBS_NOT_FOUND) breaks("reading", key, status, DIBS_OK);
  dibs_record_free(record);
  return n;
}

static void check_record(struct diary *d, const char *key) {
  int64_t is = number_in(key);
  bound(&d->record, is, "the content", key);
  d->record.sure = is; /* what was not acknowledged may be there: from now on it is known */
}

static void check_stock(struct diary *d, const char *key) {
  dibs_stock_options o = DIBS_STOCK_OPTIONS_INIT;
  dibs_stock_result result = DIBS_STOCK_RESULT_INIT;
  if (dibs_stock_show(store, key, NULL, &result, &reported) != DIBS_OK)
    breaks("showing", key, reported.status, DIBS_OK);
  struct number used = {d->taken.sure - d->given.tried, d->taken.tried - d->given.sure};
  bound(&used, result.used, "the use", key);
  for (unsigned i = 0; i < KEPT; i++) {
    if (*d->claims[i]) {
      o.claim = d->claims[i];
      dibs_status status = dibs_stock_take(store, key, 1, &o, NULL, &reported);
      if (status != DIBS_REPLAY) breaks("a claim", d->claims[i], status, DIBS_REPLAY);
    }
    if (*d->gave[i]) {
      dibs_status status = dibs_stock_give(store, key, d->gave[i], NULL, NULL, &reported);
      if (status != DIBS_REPLAY) breaks("a return", d->gave[i], status, DIBS_REPLAY);
    }
  }
  if (dibs_stock_show(store, key, NULL, &result, &reported) != DIBS_OK) result.used = 0;
  d->taken = (struct number){result.used, result.used};
  d->given = (struct number){0, 0};
}

static dibs_status runs_again(dibs_lease *lease, char **to, size_t *length, void *user) {
  (void)lease, (void)to, (void)length;
  *(bool *)user = true;
  return DIBS_OK;
}

static void check_answers(struct diary *d) {
  for (unsigned i = 0; i < KEPT; i++) {
    bool again = false;
    char *got = NULL;
    size_t length = 0;
    if (!*d->answers[i]) continue;
    dibs_status status = dibs_once(store, d->answers[i], NULL, runs_again, &again, &got, &length, &reported);
    if (status != DIBS_REPLAY || again) breaks("the answer", d->answers[i], status, DIBS_REPLAY);
    if (status == DIBS_REPLAY && strcmp(got, d->answers[i]) != 0) breaks("the text", d->answers[i], 0, 1);
    free(got);
  }
}

static void check_counter(struct diary *d, const char *key) {
  dibs_counter_value value = DIBS_COUNTER_VALUE_INIT;
  dibs_status status = dibs_counter_read(store, key, NULL, &value, &reported);
  if (status != DIBS_OK && status != DIBS_NOT_FOUND) breaks("reading", key, status, DIBS_OK);
  bound(&d->counted, value.value, "the value", key);
  d->counted = (struct number){value.value, value.value};
}

static int state_of(const dibs_task_info *info, void *user) {
  *(int *)user = (int)info->state;
  return 0;
}

static void check_tasks(const struct diary *d) {
  char what[32];
  for (unsigned i = 0; i < KEPT * 2; i++) {
    bool done = i >= KEPT;
    dibs_task_filter filter = DIBS_TASK_FILTER_INIT;
    int state = -1;
    filter.nr = done ? d->done[i - KEPT] : d->added[i];
    snprintf(what, sizeof what, "task %llu", (unsigned long long)filter.nr);
    if (filter.nr == 0) continue;
    if (dibs_tasks_list(store, &filter, 0, state_of, &state, &reported) != DIBS_OK || state < 0)
      breaks("the row", what, state, DIBS_TASK_READY);
    else if (done && state != DIBS_TASK_DONE)
      breaks("the end", what, state, DIBS_TASK_DONE);
  }
}

static void check_name(unsigned name) {
  char key[40];
  dibs_lease *lease = NULL;
  dibs_record *record = NULL;
  snprintf(key, sizeof key, "name-%u", name);
  dibs_status status = dibs_record_get(store, key, NULL, &record, &reported);
  uint64_t seen = status == DIBS_OK ? record->fence.value : 0;
  if (seen < sealed[name]) breaks("the seal", key, (int64_t)seen, (int64_t)sealed[name]);
  dibs_record_free(record);
  status = dibs_acquire(store, key, NULL, &lease, &reported);
  if (status != DIBS_OK) {
    breaks("a lease", key, status, DIBS_OK);
    return;
  }
  uint64_t fence = dibs_lease_fence(lease).value;
  if (fence <= fences[name]) breaks("the fence", key, (int64_t)fence, (int64_t)fences[name]);
  fences[name] = fence;
  (void)dibs_release(lease, NULL);
  dibs_lease_free(lease);
}

static void check_file(const char *path) {
  sqlite3 *db;
  sqlite3_stmt *st;
  assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
  assert_int_equal(sqlite3_prepare_v2(db, "PRAGMA integrity_check", -1, &st, NULL), SQLITE_OK);
  assert_int_equal(sqlite3_step(st), SQLITE_ROW);
  const char *said = (const char *)sqlite3_column_text(st, 0);
  if (strcmp(said, "ok") != 0) breaks("integrity", said, 0, 1);
  sqlite3_finalize(st);
  assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void check_all(void) {
  char key[40];
  for (unsigned t = 0; t < THREADS; t++) {
    struct diary *d = &diaries[t];
    snprintf(key, sizeof key, "record-%u", t);
    check_record(d, key);
    snprintf(key, sizeof key, "stock-%u", t);
    check_stock(d, key);
    check_answers(d);
    snprintf(key, sizeof key, "counter-%u", t);
    check_counter(d, key);
    check_tasks(d);
    memset(d->claims, 0, sizeof d->claims);
    memset(d->gave, 0, sizeof d->gave);
    memset(d->answers, 0, sizeof d->answers);
    memset(d->added, 0, sizeof d->added);
    memset(d->done, 0, sizeof d->done);
    d->claim_count = d->gave_count = d->answer_count = d->added_count = d->done_count = 0;
  }
  for (unsigned n = 0; n < NAMES; n++) check_name(n);
}

/* ---- Boots ---- */

static int begin(void **state) {
  memset(diaries, 0, sizeof diaries);
  memset(fences, 0, sizeof fences);
  memset(sealed, 0, sizeof sealed);
  broken = 0;
  counts_only = false;
  if (bed_begin(state) != 0) return -1;
  power_install(((struct bed *)*state)->path);
  return 0;
}

static int end(void **state) {
  power_remove();
  return bed_end(state);
}

static void boot(const struct bed *bed, const char *parameters) {
  char uri[300], key[40];
  snprintf(uri, sizeof uri, "sqlite://%s%s", bed->path, parameters);
  if (dibs_open(uri, NULL, &store, &reported) != DIBS_OK) fail_msg("open: %s", reported.text);
  for (unsigned t = 0; t < THREADS; t++) {
    snprintf(key, sizeof key, "stock-%u", t);
    dibs_status status = dibs_stock_set(store, key, LIMIT, NULL, NULL, &reported);
    if (status != DIBS_OK) fail_msg("stock: %s", reported.text);
  }
}

/* One boot: work until the power fails, the next boot, the check. */
static void live_once(const struct bed *bed, const char *parameters) {
  pthread_t threads[THREADS];
  power_seed(seed);
  /* A long life copies its log into the database; a short one does so when the store is closed. */
  bool is_long = seed % 8 == 0, closes = seed % 3 == 0;
  step_count = closes ? 30 : STEPS_MAX;
  power_arm(1 + (unsigned)(seed * 2654435761u % (is_long ? 12000 : 400)));
  for (unsigned t = 0; t < THREADS; t++)
    assert_int_equal(pthread_create(&threads[t], NULL, work, (void *)(uintptr_t)t), 0);
  for (unsigned t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
  if (!closes) power_fail();
  dibs_close(store);
  power_restore();
  boot(bed, parameters);
  check_all();
}

static unsigned boots_wanted(void) {
  const char *text = getenv("DIBS_TEST_POWER_BOOTS");
  unsigned wanted = text ? (unsigned)strtoul(text, NULL, 10) : 0;
  return wanted ? wanted : BOOTS;
}

static void what_was_acknowledged_survives(void **state) {
  const struct bed *bed = *state;
  unsigned boots = boots_wanted();
  seed = 1;
  boot(bed, "");
  for (unsigned n = 0; n < boots && !broken; n++, seed++) live_once(bed, "");
  int64_t acknowledged = 0;
  for (unsigned t = 0; t < THREADS; t++)
    acknowledged += diaries[t].record.sure + diaries[t].counted.sure + diaries[t].taken.sure;
  print_message("%llu boots, %lld acknowledged writes counted\n", (unsigned long long)seed - 1,
                (long long)acknowledged);
  dibs_close(store);
  check_file(bed->path);
  assert_int_equal(broken, 0);
  assert_true(acknowledged > boots); /* it has proved something */
}

/* The checks can fail: on a disk that does not sync, acknowledged writes are missing. */
static void a_disk_that_lies_is_noticed(void **state) {
  const struct bed *bed = *state;
  counts_only = true;
  seed = 1;
  boot(bed, "");
  power_lie(true);
  for (unsigned n = 0; n < BOOTS && !broken; n++, seed++) live_once(bed, "");
  dibs_close(store);
  assert_true(broken > 0);
}

/* Stock, once, tasks and counters may be lost; records and fences may not. */
static void without_write_sync_writes_are_lost(void **state) {
  const struct bed *bed = *state;
  counts_only = true;
  seed = 1;
  boot(bed, "?write_sync=off");
  for (unsigned n = 0; n < BOOTS && !broken; n++, seed++) live_once(bed, "?write_sync=off");
  dibs_close(store);
  assert_true(broken > 0);
}

/* ---- What is synced ---- */

/* Called with the store at rest: what the step leaves unsynced. */
static size_t left_by(void (*step)(struct worker *)) {
  struct worker w = {.diary = &diaries[0], .chances = 1};
  size_t before = power_unsynced();
  step(&w);
  size_t after = power_unsynced();
  return after > before ? after - before : 0;
}

static void lease_only(struct worker *w) {
  dibs_lease *lease;
  (void)w;
  assert_int_equal(dibs_acquire(store, "alone", NULL, &lease, &reported), DIBS_OK);
  assert_int_equal(dibs_release(lease, &reported), DIBS_OK);
  dibs_lease_free(lease);
}

static void seal_only(struct worker *w) {
  dibs_lease *lease;
  dibs_record *record;
  dibs_record_options o = DIBS_RECORD_OPTIONS_INIT;
  (void)w;
  assert_int_equal(dibs_acquire(store, "sealer", NULL, &lease, &reported), DIBS_OK);
  o.lease = lease;
  assert_int_equal(dibs_record_get(store, "sealed", &o, &record, &reported), DIBS_OK);
  assert_int_equal(power_unsynced(), 0);
  dibs_record_free(record);
  (void)dibs_release(lease, NULL);
  dibs_lease_free(lease);
}

/* A handle's first operation of a kind may make rows of its own. */
static void guarded_writes_are_synced_and_leases_are_not(void **state) {
  const struct bed *bed = *state;
  static void (*const synced[])(struct worker *) = {put_record, take, give, count, add_task, do_task};
  boot(bed, "");
  for (int round = 0; round < 2; round++) {
    assert_true(left_by(lease_only) > 0);
    for (size_t i = 0; i < sizeof synced / sizeof *synced; i++) {
      (void)left_by(synced[i]);
      if (power_unsynced() != 0) fail_msg("step %zu leaves %zu bytes that a failure could lose", i, power_unsynced());
    }
    seal_only(NULL);
  }
  dibs_close(store);
}

/* ---- A new file ---- */

/* The power fails at each call that makes it. */
static void a_new_file_is_whole_or_missing(void **state) {
  const struct bed *bed = *state;
  char path[300], uri[300];
  static const char *const parts[] = {"", "-wal", "-shm", "-dibs", "-new", "-new-wal", "-new-shm", "-journal"};
  snprintf(uri, sizeof uri, "sqlite://%s", bed->path);
  bool last = false;
  for (seed = 1; !last && seed < 2000; seed++) {
    power_seed(seed);
    power_arm((unsigned)seed);
    if (dibs_open(uri, NULL, &store, &reported) != DIBS_OK) fail_msg("open: %s", reported.text);
    last = power_hold();
    power_let_go();
    dibs_close(store);
    power_restore();
    if (dibs_open(uri, NULL, &store, &reported) != DIBS_OK)
      fail_msg("after a failure at call %llu: %s", (unsigned long long)seed, reported.text);
    lease_only(NULL);
    dibs_close(store);
    check_file(bed->path);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
      snprintf(path, sizeof path, "%s%s", bed->path, parts[i]);
      unlink(path);
    }
    power_remove();
    power_install(bed->path);
  }
  print_message("%llu calls\n", (unsigned long long)seed);
  assert_true(last && seed > 20);
  assert_int_equal(broken, 0);
  assert_int_equal(power_careless(), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(what_was_acknowledged_survives, begin, end),
      cmocka_unit_test_setup_teardown(a_disk_that_lies_is_noticed, begin, end),
      cmocka_unit_test_setup_teardown(without_write_sync_writes_are_lost, begin, end),
      cmocka_unit_test_setup_teardown(guarded_writes_are_synced_and_leases_are_not, begin, end),
      cmocka_unit_test_setup_teardown(a_new_file_is_whole_or_missing, begin, end),
  };
  return cmocka_run_group_tests_name("sqlite power", tests, NULL, NULL);
}

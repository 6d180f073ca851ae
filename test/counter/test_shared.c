/* SPDX-License-Identifier: MIT */
/* Counters of the level shared, with a real Redis in front of a SQLite file, while nothing dies but Redis. */
#include "shared_bed.h"
#include "store/shared.h"

#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS = 20000, THREADS = 4, ADDS = 150, READS = 200 };

static dibs_status add_at(dibs_store *s, dibs_count_level level, const dibs_table *table, const char *key,
                          int64_t delta) {
  const dibs_counter_options o = {.size = sizeof o, .level = level, .table = table, .wait_ms = LONG_MS};
  return dibs_counter_add(s, key, delta, &o, &reported);
}

static dibs_counter_value read_at(dibs_store *s, const dibs_table *table, const char *key) {
  const dibs_counter_options o = {.size = sizeof o, .table = table, .wait_ms = LONG_MS};
  dibs_counter_value value = DIBS_COUNTER_VALUE_INIT;
  dibs_status status = dibs_counter_read(s, key, &o, &value, &reported);
  if (status != DIBS_OK && status != DIBS_NOT_FOUND) fail_msg("reading: %s", reported.text);
  return value;
}

static dibs_status flush_at(dibs_store *s, const dibs_table *table) {
  const dibs_counter_options o = {.size = sizeof o, .level = DIBS_COUNT_SHARED, .table = table, .wait_ms = LONG_MS};
  return dibs_counter_flush(s, &o, &reported);
}

/* ---- To the database ---- */

static void sums_reach_the_database_by_themselves(void **state) {
  (void)state;
  dibs_store *s = bed_open();
  for (int i = 1; i <= 100; i++) bed_add(s, "likes", i);
  bed_add(s, "other", -7);
  bed_wait_stored("likes", 5050);
  bed_wait_stored("other", -7);
  bed_add(s, "likes", 1);
  bed_wait_stored("likes", 5051);
  dibs_close(s);
}

static void a_closed_store_leaves_its_sums_to_others(void **state) {
  (void)state;
  dibs_store *s = bed_open();
  bed_add(s, "likes", 42);
  dibs_close(s);
  s = bed_open();
  bed_flush(s);
  dibs_close(s);
  expect_stored("likes", 42);
}

static int count_keys(const char *key, int64_t stored, void *user) {
  int64_t *totals = user;
  (void)key;
  totals[0]++;
  totals[1] += stored;
  return 0;
}

static void many_keys_are_many_batches(void **state) {
  (void)state;
  dibs_store *s = bed_open();
  char key[32];
  int64_t totals[2] = {0, 0};
  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < KEYS; i += round ? 1 : 7) {
      snprintf(key, sizeof key, "many/%d", i);
      bed_add(s, key, round + 1);
    }
    bed_flush(s);
  }
  assert_int_equal(dibs_counter_list(s, "many/", count_keys, totals, &reported), DIBS_OK);
  dibs_close(s);
  assert_int_equal(totals[0], KEYS);
  assert_int_equal(totals[1], 2 * KEYS + (KEYS + 6) / 7);
}

/* Additions of several threads travel together, to many partitions at once. */
static void *add_to_many(void *store) {
  static _Atomic int nr;
  char key[32];
  int first = atomic_fetch_add(&nr, 1) * 531; /* each thread has other keys at this moment */
  for (int i = 0; i < KEYS / 10; i++) {
    snprintf(key, sizeof key, "many/%d", (first + i * 7) % (KEYS / 10));
    bed_add(store, key, 1);
  }
  return NULL;
}

static void batches_to_many_partitions_lose_nothing(void **state) {
  (void)state;
  dibs_store *s = bed_open();
  pthread_t threads[THREADS];
  int64_t totals[2] = {0, 0};
  for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, add_to_many, s), 0);
  for (int i = 0; i < 5; i++) bed_flush(s);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  bed_flush(s);
  assert_int_equal(dibs_counter_list(s, "many/", count_keys, totals, &reported), DIBS_OK);
  dibs_close(s);
  assert_int_equal(totals[0], KEYS / 10);
  assert_int_equal(totals[1], THREADS * (KEYS / 10));
}

/* ---- Reading ---- */

static void a_value_contains_what_is_shared(void **state) {
  (void)state;
  dibs_store *s = bed_open(), *other = bed_open();
  bed_add(s, "k", 5);
  dibs_counter_value v = read_at(other, NULL, "k");
  assert_int_equal(v.value, 5);
  assert_int_equal(v.stored + v.shared, 5);
  assert_int_equal(v.parts, DIBS_COUNT_STORED_PART | DIBS_COUNT_BUFFERED_PART | DIBS_COUNT_SHARED_PART);
  bed_flush(s);
  v = read_at(other, NULL, "k");
  assert_true(v.value == 5 && v.stored == 5 && v.shared == 0);
  assert_int_equal(add_at(other, DIBS_COUNT_DURABLE, NULL, "k", 10), DIBS_OK);
  assert_int_equal(add_at(other, DIBS_COUNT_BUFFERED, NULL, "k", 100), DIBS_OK);
  bed_add(s, "k", 1000);
  assert_int_equal(read_at(other, NULL, "k").value, 1115);
  dibs_close(other);
  dibs_close(s);
}

static void *flush_on(void *store) {
  while (!tally->over) (void)!flush_at(store, NULL);
  return NULL;
}

static void *add_on(void *store) {
  while (!tally->over) {
    atomic_fetch_add(&tally->attempted, 1);
    if (add_at(store, DIBS_COUNT_SHARED, NULL, "k", 1) == DIBS_OK) atomic_fetch_add(&tally->acknowledged, 1);
  }
  return NULL;
}

/* However sums move meanwhile, none is missing in a value, and none is there twice. */
static void values_are_right_while_sums_are_written(void **state) {
  (void)state;
  dibs_store *s = bed_open(), *other = bed_open();
  pthread_t adder, flusher;
  assert_int_equal(pthread_create(&adder, NULL, add_on, s), 0);
  assert_int_equal(pthread_create(&flusher, NULL, flush_on, s), 0);
  bed_wait_for(&tally->acknowledged, 20);
  for (int i = 0; i < READS; i++) {
    int64_t least = tally->acknowledged;
    dibs_counter_value v = read_at(other, NULL, "k");
    int64_t most = tally->attempted;
    if (v.value < least || v.value > most)
      fail_msg("read %lld (stored %lld, shared %lld), of %lld to %lld", (long long)v.value, (long long)v.stored,
               (long long)v.shared, (long long)least, (long long)most);
  }
  tally->over = true;
  pthread_join(adder, NULL);
  pthread_join(flusher, NULL);
  dibs_close(other);
  dibs_close(s);
}

static void without_redis_a_value_says_that_a_part_is_missing(void **state) {
  (void)state;
  dibs_store *s = bed_open();
  bed_add(s, "k", 5);
  bed_flush(s);
  bed_add(s, "k", 10);
  bed_servers("pause", NULL, NULL);
  dibs_counter_value v = read_at(s, NULL, "k");
  assert_true(v.value == 5 && v.stored == 5 && v.shared == 0);
  assert_int_equal(v.parts, DIBS_COUNT_STORED_PART | DIBS_COUNT_BUFFERED_PART);
  bed_servers("resume", NULL, NULL);
  bed_flush(s); /* Redis has kept the 10 */
  v = read_at(s, NULL, "k");
  assert_int_equal(v.value, 15);
  assert_true(v.parts & DIBS_COUNT_SHARED_PART);
  dibs_close(s);
}

/* ---- Refused ---- */

static void run_sql(const char *text) {
  sqlite3 *db;
  char *message = NULL;
  assert_int_equal(sqlite3_open(bed_file() + strlen("sqlite://"), &db), SQLITE_OK);
  sqlite3_busy_timeout(db, LONG_MS);
  if (sqlite3_exec(db, text, NULL, NULL, &message) != SQLITE_OK) fail_msg("%s: %s", text, message);
  sqlite3_close(db);
}

struct refused {
  int count, answer;
  char key[32];
  int64_t delta;
  dibs_status status;
  const dibs_table *table;
};

static int take_refused(const dibs_counter_refusal *r, void *user) {
  struct refused *to = user;
  to->count++;
  snprintf(to->key, sizeof to->key, "%s", r->key);
  to->delta = r->delta;
  to->status = r->status;
  to->table = r->table;
  return to->answer;
}

static struct refused refused_of(dibs_store *s, const dibs_table *table, int answer) {
  struct refused refused = {.answer = answer};
  assert_int_equal(dibs_counter_refused_shared(s, table, take_refused, &refused, &reported), DIBS_OK);
  return refused;
}

static void keys_without_a_row_are_kept_in_redis(void **state) {
  (void)state;
  dibs_store *s = bed_open();
  dibs_table *table;
  const dibs_table_options declaration = {
      .size = sizeof declaration, .table = "person", .key = "name", .count = "likes"};
  (void)read_at(s, NULL, "nothing"); /* the file is there */
  run_sql("CREATE TABLE person (name TEXT PRIMARY KEY, likes INTEGER); INSERT INTO person VALUES ('ann', 1)");
  assert_int_equal(dibs_table_declare(&declaration, &table, &reported), DIBS_OK);
  assert_int_equal(add_at(s, DIBS_COUNT_SHARED, table, "ann", 4), DIBS_OK);
  assert_int_equal(add_at(s, DIBS_COUNT_SHARED, table, "bob", 7), DIBS_OK);
  assert_int_equal(add_at(s, DIBS_COUNT_SHARED, NULL, "ann", 1000), DIBS_OK); /* another counter */
  assert_int_equal(read_at(s, table, "ann").value, 5);
  assert_int_equal(flush_at(s, table), DIBS_NOT_FOUND);
  assert_int_equal(read_at(s, table, "ann").stored, 5);
  assert_int_equal(add_at(s, DIBS_COUNT_SHARED, table, "bob", 1), DIBS_OK);
  assert_int_equal(flush_at(s, table), DIBS_NOT_FOUND);
  dibs_close(s);
  s = bed_open(); /* any process finds them */
  struct refused r = refused_of(s, table, DIBS_COUNT_KEEP);
  assert_int_equal(r.count, 1);
  assert_string_equal(r.key, "bob");
  assert_true(r.delta == 8 && r.status == DIBS_NOT_FOUND && r.table == table);
  assert_int_equal(refused_of(s, NULL, 0).count, 0);
  assert_int_equal(refused_of(s, table, 0).count, 1);
  assert_int_equal(refused_of(s, table, 0).count, 0);
  assert_int_equal(flush_at(s, table), DIBS_OK);
  assert_int_equal(flush_at(s, NULL), DIBS_OK);
  dibs_table_free(table);
  dibs_close(s);
  expect_stored("ann", 1000);
}

static void a_sum_that_does_not_fit_in_the_database_is_kept_in_redis(void **state) {
  (void)state;
  dibs_store *s = bed_open();
  assert_int_equal(add_at(s, DIBS_COUNT_DURABLE, NULL, "k", INT64_MAX), DIBS_OK);
  bed_add(s, "k", 3);
  bed_add(s, "fine", 4);
  assert_int_equal(flush_at(s, NULL), DIBS_NOT_FOUND);
  struct refused r = refused_of(s, NULL, 0);
  assert_true(r.count == 1 && r.delta == 3 && r.status == DIBS_FULL);
  dibs_close(s);
  expect_stored("fine", 4);
  expect_stored("k", INT64_MAX);
}

static void a_sum_that_does_not_fit_in_redis_is_answered(void **state) {
  (void)state;
  dibs_store *s = bed_open();
  bed_add(s, "k", INT64_MAX - 1);
  dibs_status status = add_at(s, DIBS_COUNT_SHARED, NULL, "k", 2);
  if (status == DIBS_OK) skip(); /* the first sum was written in between */
  assert_int_equal(status, DIBS_FULL);
  bed_add(s, "k", 1);
  bed_flush(s);
  dibs_close(s);
  expect_stored("k", INT64_MAX);
}

/* ---- Without a fast store; without an answer ---- */

static void without_redis_in_front_there_is_no_level_shared(void **state) {
  (void)state;
  dibs_store *s = bed_open_at(bed_file());
  assert_int_equal(add_at(s, DIBS_COUNT_SHARED, NULL, "k", 1), DIBS_UNSUPPORTED);
  assert_non_null(strstr(reported.text, "fast store"));
  assert_int_equal(flush_at(s, NULL), DIBS_UNSUPPORTED);
  struct refused r = {.answer = 0};
  assert_int_equal(dibs_counter_refused_shared(s, NULL, take_refused, &r, &reported), DIBS_UNSUPPORTED);
  assert_int_equal(add_at(s, (dibs_count_level)3, NULL, "k", 1), DIBS_INVALID);
  assert_int_equal(add_at(s, DIBS_COUNT_DURABLE, NULL, "k", 1), DIBS_OK);
  assert_int_equal(read_at(s, NULL, "k").parts,
                   DIBS_COUNT_STORED_PART | DIBS_COUNT_BUFFERED_PART | DIBS_COUNT_SHARED_PART);
  dibs_close(s);
}

static void an_addition_that_redis_does_not_answer_is_never_added_later(void **state) {
  (void)state;
  const dibs_counter_options o = {.size = sizeof o, .level = DIBS_COUNT_SHARED, .wait_ms = 300};
  dibs_store *s = bed_open();
  bed_add(s, "k", 1);
  bed_servers("kill", NULL, NULL);
  dibs_status status = dibs_counter_add(s, "k", 10, &o, &reported);
  assert_true(status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN);
  bed_servers("start", NULL, NULL);
  bed_add(s, "k", 100);
  bed_flush(s);
  dibs_close(s);
  expect_stored("k", 100); /* Redis has lost the 1 */
}

/* A repeat of the batch that met the key must not find that batch done. */
static void an_addition_to_a_key_of_another_program_is_not_acknowledged(void **state) {
  (void)state;
  static const char *const keys[] = {"", ":sums"};
  const dibs_counter_options o = {.size = sizeof o, .level = DIBS_COUNT_SHARED, .wait_ms = 2000};
  unsigned part = dibs__shared_part(dibs__str_of("k", 1));
  char command[160];
  dibs_store *s = bed_open();
  for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
    bed_add(s, "k", 1);
    bed_flush(s);
    snprintf(command, sizeof command, "SET 'dibs:{%u}:c:own%s' x", part, keys[i]);
    bed_ask(NULL, command);
    assert_int_equal(dibs_counter_add(s, "k", 10, &o, &reported), DIBS_CORRUPT);
    /* The thread that writes sums to the database may have begun with the key. */
    snprintf(command, sizeof command, "DEL 'dibs:{%u}:c:own%s' 'dibs:{%u}:c:own:flushing'", part, keys[i], part);
    bed_ask(NULL, command);
    bed_add(s, "k", 100);
    bed_flush(s);
  }
  dibs_close(s);
  expect_stored("k", 202);
}

struct adder {
  dibs_store *store;
  int64_t acknowledged;
};

static void *add_some(void *arg) {
  struct adder *a = arg;
  for (int i = 1; i <= ADDS; i++)
    if (add_at(a->store, DIBS_COUNT_SHARED, NULL, i % 2 ? "odd" : "even", i) == DIBS_OK) a->acknowledged += i;
  return NULL;
}

/* In every tenth call of Redis. */
static void lost_answers_of_redis_count_nothing_twice(void **state) {
  (void)state;
  static const char *const hows[] = {"unavailable", "unknown-before", "unknown-after", "dead-after"};
  int64_t sum = 0;
  for (size_t h = 0; h < sizeof hows / sizeof hows[0]; h++) {
    char uri[1200];
    struct adder adders[THREADS];
    pthread_t threads[THREADS];
    snprintf(uri, sizeof uri, "fault+%s?fault.rate=100&fault.seed=%zu&fault.how=%s,%s?tiers.wait=50", bed_redis(),
             h + 1, hows[h], bed_file());
    dibs_store *s = bed_open_at(uri);
    for (int i = 0; i < THREADS; i++) {
      adders[i] = (struct adder){.store = s};
      assert_int_equal(pthread_create(&threads[i], NULL, add_some, &adders[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
      pthread_join(threads[i], NULL);
      sum += adders[i].acknowledged;
      assert_int_equal(adders[i].acknowledged, ADDS * (ADDS + 1) / 2); /* the time was enough for all */
    }
    bed_flush(s);
    dibs_close(s);
    print_message("  %s: %lld\n", hows[h], (long long)sum);
    assert_int_equal(bed_stored("odd") + bed_stored("even"), sum);
  }
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      TEST(sums_reach_the_database_by_themselves),
      TEST(a_closed_store_leaves_its_sums_to_others),
      TEST(many_keys_are_many_batches),
      TEST(batches_to_many_partitions_lose_nothing),
      TEST(a_value_contains_what_is_shared),
      TEST(values_are_right_while_sums_are_written),
      TEST(without_redis_a_value_says_that_a_part_is_missing),
      TEST(keys_without_a_row_are_kept_in_redis),
      TEST(a_sum_that_does_not_fit_in_the_database_is_kept_in_redis),
      TEST(a_sum_that_does_not_fit_in_redis_is_answered),
      TEST(without_redis_in_front_there_is_no_level_shared),
      TEST(an_addition_that_redis_does_not_answer_is_never_added_later),
      TEST(an_addition_to_a_key_of_another_program_is_not_acknowledged),
      TEST(lost_answers_of_redis_count_nothing_twice),
  };
  return bed_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}

/* SPDX-License-Identifier: MIT */
/* Counters through dibs/counter.h: levels, users' tables, refused additions, closing, forks. */
#include "dibs/counter.h"
#include "guard/record_bed.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ADDERS = 8, ADDS = 150, KEYS = 25000, LONG_S = 60 };

/* ---- One line each ---- */

struct level {
  int nothing;
  dibs_table *table;
  dibs_count_level level;
};

static dibs_counter_options options_of(struct level how) {
  return (dibs_counter_options){
      .size = sizeof(dibs_counter_options), .table = how.table, .level = how.level, .wait_ms = INT64_C(1000) * LONG_S};
}

static void expect_status(int line, dibs_status got, dibs_status want) {
  if (got != want)
    fail_msg("line %d: %s, expected %s: %s", line, dibs_status_name(got), dibs_status_name(want), reported.text);
}

static void add_at(int line, dibs_store *s, const char *key, int64_t delta, struct level how, dibs_status want) {
  dibs_counter_options o = options_of(how);
  expect_status(line, dibs_counter_add(s, key, delta, &o, &reported), want);
}
#define count_up(s, key, delta, want, ...)                                                                             \
  add_at(__LINE__, s, key, delta, (struct level){.nothing = 0, ##__VA_ARGS__}, want)
#define BUFFERED .level = DIBS_COUNT_BUFFERED

static dibs_counter_value read_at(int line, dibs_store *s, const char *key, struct level how, dibs_status want) {
  dibs_counter_options o = options_of(how);
  dibs_counter_value value = DIBS_COUNTER_VALUE_INIT;
  expect_status(line, dibs_counter_read(s, key, &o, &value, &reported), want);
  return value;
}
#define value_of(s, key, ...) read_at(__LINE__, s, key, (struct level){.nothing = 0, ##__VA_ARGS__}, DIBS_OK)
#define no_value_of(s, key, ...) read_at(__LINE__, s, key, (struct level){.nothing = 0, ##__VA_ARGS__}, DIBS_NOT_FOUND)

static void flush_at(int line, dibs_store *s, dibs_status want) {
  dibs_counter_options o = options_of((struct level){.nothing = 0});
  expect_status(line, dibs_counter_flush(s, &o, &reported), want);
}
#define flush(s, want) flush_at(__LINE__, s, want)

/* ---- Dibs' own table ---- */

static void a_durable_addition_is_there_when_the_call_returns(void **state) {
  (void)state;
  dibs_store *s = store_open(), *other = store_open();
  no_value_of(s, "durable/likes");
  count_up(s, "durable/likes", 5, DIBS_OK);
  assert_int_equal(value_of(other, "durable/likes").value, 5);
  count_up(other, "durable/likes", -7, DIBS_OK);
  assert_int_equal(value_of(s, "durable/likes").value, -2);
  assert_int_equal(dibs_counter_add(s, "durable/likes", 1, NULL, &reported), DIBS_OK); /* the default */
  dibs_counter_value value = value_of(s, "durable/likes");
  assert_true(value.value == -1 && value.stored == -1 && value.buffered == 0);
}

struct adder {
  dibs_store *store;
  const char *key;
  dibs_count_level level;
  int adds, failures;
  int64_t delta; /* of add_delta */
  dibs_status status;
};

static void *add_on(void *arg) {
  struct adder *a = arg;
  dibs_counter_options o = options_of((struct level){.level = a->level});
  for (int i = 0; i < a->adds; i++)
    if (dibs_counter_add(a->store, i % 3 ? a->key : "threads/other", 1, &o, NULL) != DIBS_OK) a->failures++;
  return NULL;
}

static void run_adders(dibs_store *s, const char *key, dibs_count_level level, int adds) {
  static struct adder adders[ADDERS];
  pthread_t threads[ADDERS];
  for (int i = 0; i < ADDERS; i++) {
    adders[i] = (struct adder){.store = s, .key = key, .level = level, .adds = adds};
    assert_int_equal(pthread_create(&threads[i], NULL, add_on, &adders[i]), 0);
  }
  for (int i = 0; i < ADDERS; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < ADDERS; i++) assert_int_equal(adders[i].failures, 0);
}

static void threads_that_add_to_one_key_lose_nothing(void **state) {
  (void)state;
  dibs_store *s = store_open();
  run_adders(s, "threads/hot", DIBS_COUNT_DURABLE, ADDS);
  assert_int_equal(value_of(s, "threads/hot").value + value_of(s, "threads/other").value, ADDERS * ADDS);
  assert_int_equal(value_of(s, "threads/other").value, ADDERS * ((ADDS + 2) / 3));
}

static void buffered_additions_are_visible_here_and_stored_after_a_flush(void **state) {
  (void)state;
  dibs_store *s = store_open(), *other = store_open();
  flush(s, DIBS_OK); /* of nothing */
  count_up(s, "buffered/a", 3, DIBS_OK);
  count_up(s, "buffered/a", 4, DIBS_OK, BUFFERED);
  dibs_counter_value value = value_of(s, "buffered/a");
  assert_int_equal(value.value, 7);
  assert_int_equal(value.stored + value.buffered, 7);
  flush(s, DIBS_OK);
  assert_int_equal(value_of(other, "buffered/a").stored, 7);
  assert_int_equal(value_of(s, "buffered/a").buffered, 0);
}

static void buffered_additions_are_written_each_second(void **state) {
  (void)state;
  dibs_store *s = store_open(), *other = store_open();
  for (int round = 1; round <= 2; round++) {
    count_up(s, "second/a", 1, DIBS_OK, BUFFERED);
    time_t end = time(NULL) + LONG_S;
    dibs_counter_value value = {.size = sizeof value};
    while (value.stored < round) {
      if (time(NULL) > end) fail_msg("nothing was written in a minute");
      nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
      (void)!dibs_counter_read(other, "second/a", NULL, &value, NULL);
    }
    assert_int_equal(value.stored, round);
  }
}

static void many_keys_and_threads_are_summed(void **state) {
  (void)state;
  dibs_store *s = store_open();
  char key[40];
  run_adders(s, "many/hot", DIBS_COUNT_BUFFERED, 1000);
  for (int i = 0; i < KEYS; i++) {
    snprintf(key, sizeof key, "many/key/%d", i);
    count_up(s, key, i, DIBS_OK, BUFFERED);
  }
  flush(s, DIBS_OK);
  assert_int_equal(strtol(cell("SELECT count(*) FROM dibs_counter WHERE name LIKE 'many/key/%%'"), NULL, 10), KEYS);
  assert_int_equal(value_of(s, "many/key/24999").stored, 24999);
  assert_int_equal(value_of(s, "many/hot").stored, ADDERS * 666);
}

static void closing_writes_what_is_buffered(void **state) {
  (void)state;
  dibs_store *s = NULL;
  dibs_store *other = store_open();
  assert_int_equal(dibs_open(case_uri(), NULL, &s, &reported), DIBS_OK);
  count_up(s, "closing/a", 41, DIBS_OK, BUFFERED);
  count_up(s, "closing/b", 1, DIBS_OK, BUFFERED);
  dibs_close(s);
  assert_int_equal(value_of(other, "closing/a").stored, 41);
  assert_int_equal(value_of(other, "closing/b").stored, 1);
}

static void a_forked_child_writes_nothing_of_its_parent(void **state) {
  (void)state;
  dibs_store *s = store_open();
  count_up(s, "fork/a", 10, DIBS_OK, BUFFERED);
  pid_t child = fork();
  if (child == 0) {
    bool refused = dibs_counter_add(s, "fork/a", 1, NULL, NULL) == DIBS_INVALID &&
                   dibs_counter_flush(s, NULL, NULL) == DIBS_INVALID;
    dibs_close(s);
    _exit(refused ? 0 : 1);
  }
  int how = 0;
  assert_int_equal(waitpid(child, &how, 0), child);
  assert_int_equal(how, 0);
  flush(s, DIBS_OK);
  assert_int_equal(value_of(s, "fork/a").stored, 10);
}

static int count_rows(const char *key, int64_t stored, void *user) {
  int64_t *sum = user;
  assert_true(strncmp(key, "list/", 5) == 0);
  *sum += stored;
  return 0;
}

static int stop_at_once(const char *key, int64_t stored, void *user) {
  (void)key;
  *(int64_t *)user += stored;
  return 1;
}

static void counters_are_listed_by_prefix(void **state) {
  (void)state;
  dibs_store *s = store_open();
  char key[32];
  int64_t sum = 0;
  count_up(s, "lisu", 7000000, DIBS_OK, BUFFERED);
  for (int i = 0; i < 1201; i++) { /* three pages */
    snprintf(key, sizeof key, "list/%d", i);
    count_up(s, key, i, DIBS_OK, BUFFERED);
  }
  flush(s, DIBS_OK);
  assert_int_equal(dibs_counter_list(s, "list/", count_rows, &sum, &reported), DIBS_OK);
  assert_int_equal(sum, 1200 * 1201 / 2);
  sum = 0;
  assert_int_equal(dibs_counter_list(s, "list/7", stop_at_once, &sum, &reported), DIBS_OK);
  assert_int_equal(sum, 7);
}

static int take_refusal(const dibs_counter_refusal *refusal, void *user) {
  dibs_counter_refusal *to = user;
  to->delta += refusal->delta;
  to->status = refusal->status;
  to->reserved++;
  return 0;
}

static dibs_counter_refusal refusals(dibs_store *s) {
  dibs_counter_refusal all = {.size = sizeof all};
  assert_int_equal(dibs_counter_refused(s, take_refusal, &all, &reported), DIBS_OK);
  return all;
}

static void a_sum_beyond_64_bits_is_refused(void **state) {
  (void)state;
  dibs_store *s = store_open();
  count_up(s, "full/a", INT64_MAX - 1, DIBS_OK);
  count_up(s, "full/a", 2, DIBS_FULL);
  assert_message("does not fit");
  assert_true(value_of(s, "full/a").value == INT64_MAX - 1);
  count_up(s, "full/a", 5, DIBS_OK, BUFFERED);
  count_up(s, "full/b", 6, DIBS_OK, BUFFERED);
  flush(s, DIBS_FULL);
  assert_message("full/a");
  dibs_counter_refusal all = refusals(s);
  assert_true(all.reserved == 1 && all.delta == 5 && all.status == DIBS_FULL);
  flush(s, DIBS_OK); /* it was handed out */
  assert_int_equal(refusals(s).reserved, 0);
  assert_int_equal(value_of(s, "full/b").stored, 6);
  count_up(s, "full/c", INT64_MAX, DIBS_FULL, BUFFERED); /* more than a stripe takes */
}

static int take_one_refusal(const dibs_counter_refusal *refusal, void *user) {
  (void)take_refusal(refusal, user);
  return 1;
}

static void refused_additions_stay_until_they_are_handed_out(void **state) {
  (void)state;
  dibs_store *s = store_open();
  const char *keys[] = {"stay/a", "stay/b", "stay/c"};
  dibs_counter_refusal one = {.size = sizeof one};
  for (int i = 0; i < 3; i++) count_up(s, keys[i], INT64_MAX, DIBS_OK);
  for (int i = 0; i < 3; i++) count_up(s, keys[i], 5, DIBS_OK, BUFFERED);
  flush(s, DIBS_FULL);
  assert_int_equal(dibs_counter_refused(s, take_one_refusal, &one, &reported), DIBS_OK);
  assert_true(one.reserved == 1 && one.delta == 5);
  flush(s, DIBS_FULL); /* of the others */
  dibs_counter_refusal others = refusals(s);
  assert_true(others.reserved == 2 && others.delta == 10);
  flush(s, DIBS_OK);
}

static int add_stored(const char *key, int64_t stored, void *user) {
  (void)key;
  *(int64_t *)user += stored;
  return 0;
}

static void a_key_that_sql_wrote_and_is_too_long_ends_a_list(void **state) {
  (void)state;
  dibs_store *s = store_open();
  int64_t sum = 0;
  if (strcmp(engine->scheme, "mysql") == 0) skip(); /* it has no place for it */
  count_up(s, "long/a", 3, DIBS_OK);
  sql("INSERT INTO dibs_counter (name, number) VALUES ('long/b%0900d', 1)", 0);
  assert_int_equal(dibs_counter_list(s, "long/", add_stored, &sum, &reported), DIBS_CORRUPT);
  sql("DELETE FROM dibs_counter WHERE name LIKE 'long/b%%'");
  assert_int_equal(dibs_counter_list(s, "long/a", add_stored, &sum, &reported), DIBS_OK);
}

static void a_store_that_is_read_only_for_a_while_loses_nothing(void **state) {
  (void)state;
  if (strcmp(engine->scheme, "postgres") != 0) skip(); /* only there the tables' owner can refuse itself */
  dibs_store *s = store_open();
  count_up(s, "read-only", 1, DIBS_OK);
  sql("REVOKE UPDATE ON dibs_counter, dibs_counter_source FROM CURRENT_USER");
  count_up(s, "read-only", 10, DIBS_OK, BUFFERED);
  dibs_counter_options brief = {.size = sizeof brief, .wait_ms = 1500};
  expect_status(__LINE__, dibs_counter_flush(s, &brief, &reported), DIBS_DENIED);
  assert_message("the process tries again");
  assert_int_equal(refusals(s).reserved, 0);
  sql("GRANT UPDATE ON dibs_counter, dibs_counter_source TO CURRENT_USER");
  flush(s, DIBS_OK);
  assert_int_equal(value_of(s, "read-only").stored, 11);
}

static void *add_delta(void *arg) {
  struct adder *a = arg;
  dibs_counter_options o = options_of((struct level){.level = a->level});
  a->status = dibs_counter_add(a->store, a->key, a->delta, &o, NULL);
  return NULL;
}

/* The store answers nobody until `COMMIT`. */
static void stop_store(dibs_store *s) {
  count_up(s, "stopped", 1, DIBS_OK);
  sql(strcmp(engine->scheme, "sqlite") == 0 ? "BEGIN IMMEDIATE" : "BEGIN");
  sql("UPDATE dibs_counter SET number = 0 WHERE name = 'stopped'");
}

static void a_sum_that_does_not_fit_in_a_batch_spoils_no_other(void **state) {
  (void)state;
  dibs_store *s = store_open();
  struct adder adders[3] = {{.store = s, .key = "stopped", .delta = 0},
                            {.store = s, .key = "spoil/a", .delta = INT64_MAX - 4},
                            {.store = s, .key = "spoil/a", .delta = 5}};
  const struct timespec brief = {0, 200000000};
  pthread_t threads[3];
  stop_store(s);
  for (int i = 0; i < 3; i++) { /* the first is sent, and the others join the next batch */
    assert_int_equal(pthread_create(&threads[i], NULL, add_delta, &adders[i]), 0);
    nanosleep(&brief, NULL);
  }
  sql("COMMIT");
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
  assert_int_equal(adders[0].status, DIBS_OK);
  bool first = adders[1].status == DIBS_OK;
  assert_int_equal(adders[first ? 2 : 1].status, DIBS_FULL);
  assert_int_equal(adders[first ? 1 : 2].status, DIBS_OK);
  assert_true(value_of(s, "spoil/a").value == adders[first ? 1 : 2].delta);
}

/* One caller sends the batch; another one does not wait as long. */
static void a_caller_leaves_a_batch_that_another_one_sends(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_counter_options brief = {.size = sizeof brief, .wait_ms = 100};
  struct adder patient = {.store = s, .key = "stopped", .delta = 7};
  pthread_t thread;
  int64_t unknown = 0;
  stop_store(s);
  for (int i = 0; i < 4; i++) {
    if (i == 1) assert_int_equal(pthread_create(&thread, NULL, add_delta, &patient), 0);
    dibs_status status = dibs_counter_add(s, "stopped", 1000, &brief, &reported);
    assert_true(status == DIBS_UNKNOWN || status == DIBS_UNAVAILABLE);
    unknown += status == DIBS_UNKNOWN;
  }
  sql("COMMIT");
  pthread_join(thread, NULL);
  assert_int_equal(patient.status, DIBS_OK);
  int64_t stored = value_of(s, "stopped").stored;
  assert_true(stored % 1000 == 7 && stored / 1000 <= unknown);
}

static void *add_for_ever(void *arg) {
  struct adder *a = arg;
  dibs_counter_options o = {.size = sizeof o, .wait_ms = DIBS_FOREVER};
  a->status = dibs_counter_add(a->store, a->key, a->delta, &o, NULL);
  return NULL;
}

static void *flush_for_ever(void *arg) {
  struct adder *a = arg;
  dibs_counter_options o = {.size = sizeof o, .wait_ms = DIBS_FOREVER};
  a->status = dibs_counter_flush(a->store, &o, NULL);
  return NULL;
}

static void closing_ends_calls_that_wait_for_ever(void **state) {
  (void)state;
  dibs_store *own = NULL, *s = store_open();
  assert_int_equal(dibs_open(case_uri(), NULL, &own, &reported), DIBS_OK);
  struct adder adders[3] = {{.store = own, .key = "stopped", .delta = 1, .status = DIBS_OK},
                            {.store = own, .key = "stopped", .delta = 1, .status = DIBS_OK},
                            {.store = own, .status = DIBS_OK}};
  const struct timespec brief = {0, 300000000};
  pthread_t threads[3];
  stop_store(s);
  count_up(own, "stopped", 5, DIBS_OK, BUFFERED);
  for (int i = 0; i < 3; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, i < 2 ? add_for_ever : flush_for_ever, &adders[i]), 0);
  nanosleep(&brief, NULL);
  struct timespec from, now;
  clock_gettime(CLOCK_MONOTONIC, &from);
  dibs_close(own);
  clock_gettime(CLOCK_MONOTONIC, &now);
  assert_true(now.tv_sec - from.tv_sec < 9); /* 5 s are documented, and 10 s would be twice */
  for (int i = 0; i < 3; i++) {
    pthread_join(threads[i], NULL);
    assert_true(adders[i].status == DIBS_UNAVAILABLE || adders[i].status == DIBS_UNKNOWN);
  }
  sql("COMMIT");
}

static void a_flush_during_a_batch_does_not_know_its_outcome(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_status status = DIBS_UNAVAILABLE;
  dibs_counter_options brief = {.size = sizeof brief, .wait_ms = 300};
  stop_store(s);
  count_up(s, "stopped", 7, DIBS_OK, BUFFERED);
  /* The time may end between two attempts. */
  for (int i = 0; i < 20 && status == DIBS_UNAVAILABLE; i++) status = dibs_counter_flush(s, &brief, &reported);
  assert_int_equal(status, DIBS_UNKNOWN);
  assert_message("tries again");
  sql("COMMIT");
  flush(s, DIBS_OK);
  assert_int_equal(value_of(s, "stopped").stored, 7);
}

static void wrong_arguments_are_refused(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_counter_options o = {.size = sizeof o, .level = (dibs_count_level)7};
  assert_int_equal(dibs_counter_add(s, "a", 1, &o, &reported), DIBS_INVALID);
  o = (dibs_counter_options){.size = sizeof o, .reserved = 1};
  assert_int_equal(dibs_counter_add(s, "a", 1, &o, &reported), DIBS_INVALID);
  count_up(s, "", 1, DIBS_INVALID);
  count_up(s, "", 1, DIBS_INVALID, BUFFERED);
  count_up(s, "a\nb", 1, DIBS_INVALID, BUFFERED);
  count_up(s, "\xff", 1, DIBS_INVALID);
  assert_int_equal(dibs_counter_add(s, NULL, 1, NULL, &reported), DIBS_INVALID);
  assert_int_equal(dibs_counter_read(s, "a", NULL, NULL, &reported), DIBS_INVALID);
  assert_int_equal(dibs_counter_add(NULL, "a", 1, NULL, &reported), DIBS_INVALID);
  dibs_table *table = TABLE(.table = "plain", .key = "id");
  count_up(s, "a", 1, DIBS_INVALID, .table = table);
  assert_message("count");
}

/* ---- A user's table ---- */

static dibs_table *characters(void) {
  make_table("character_likes", "name %s PRIMARY KEY, like_count %s, small_count SMALLINT, body %s", engine->text,
             engine->number, engine->text);
  sql("INSERT INTO character_likes (name, like_count, small_count) VALUES ('ann', 0, 0), ('bob', 7, 32766),"
      " ('eve', NULL, NULL)");
  return TABLE(.table = "character_likes", .key = "name", .count = "like_count");
}

static void a_column_of_a_users_table_is_added_to(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = characters();
  count_up(s, "ann", 2, DIBS_OK, .table = t);
  count_up(s, "bob", -3, DIBS_OK, .table = t, BUFFERED);
  count_up(s, "eve", 5, DIBS_OK, .table = t, BUFFERED); /* NULL counts as 0 */
  flush(s, DIBS_OK);
  assert_string_equal(cell("SELECT like_count FROM character_likes WHERE name = 'ann'"), "2");
  assert_string_equal(cell("SELECT like_count FROM character_likes WHERE name = 'bob'"), "4");
  assert_string_equal(cell("SELECT like_count FROM character_likes WHERE name = 'eve'"), "5");
  assert_int_equal(value_of(s, "bob", .table = t).value, 4);
  no_value_of(s, "bob"); /* dibs' own table is another one */
}

static void a_key_without_a_row_is_reported(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = characters();
  count_up(s, "zoe", 2, DIBS_NOT_FOUND, .table = t);
  assert_message("character_likes");
  no_value_of(s, "zoe", .table = t);
  for (int i = 0; i < 3; i++) count_up(s, "zoe", 2, DIBS_OK, .table = t, BUFFERED);
  count_up(s, "ann", 1, DIBS_OK, .table = t, BUFFERED);
  flush(s, DIBS_NOT_FOUND);
  dibs_counter_refusal all = refusals(s);
  assert_true(all.reserved == 1 && all.delta == 6 && all.status == DIBS_NOT_FOUND);
  assert_string_equal(cell("SELECT like_count FROM character_likes WHERE name = 'ann'"), "1");
  assert_string_equal(cell("SELECT count(*) FROM character_likes"), "3");
}

static void a_column_that_cannot_take_the_sum_refuses_it_alone(void **state) {
  (void)state;
  dibs_store *s = store_open();
  (void)characters();
  if (strcmp(engine->scheme, "sqlite") == 0) skip(); /* its columns take any number of 64 bits */
  dibs_table *small = TABLE(.table = "character_likes", .key = "name", .count = "small_count");
  count_up(s, "bob", 5, DIBS_FULL, .table = small);
  count_up(s, "ann", 4, DIBS_OK, .table = small, BUFFERED);
  count_up(s, "bob", 9, DIBS_OK, .table = small, BUFFERED);
  count_up(s, "eve", 1, DIBS_OK, .table = small, BUFFERED);
  flush(s, DIBS_FULL);
  assert_int_equal(refusals(s).delta, 9);
  assert_string_equal(cell("SELECT small_count FROM character_likes WHERE name = 'ann'"), "4");
  assert_string_equal(cell("SELECT small_count FROM character_likes WHERE name = 'bob'"), "32766");
  assert_string_equal(cell("SELECT small_count FROM character_likes WHERE name = 'eve'"), "1");
}

static void a_row_that_a_trigger_refuses_holds_up_no_other(void **state) {
  (void)state;
  dibs_store *s = store_open();
  make_table("refusing", "name %s PRIMARY KEY, n INTEGER", engine->text);
  sql("INSERT INTO refusing (name, n) VALUES ('ann', 0), ('bob', 0), ('eve', 0), ('sue', 0)");
  if (strcmp(engine->scheme, "postgres") == 0) {
    sql("CREATE OR REPLACE FUNCTION refuse_bob() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.name = 'bob' THEN RAISE EXCEPTION 'not bob'; END IF;"
        " IF NEW.name = 'sue' THEN RAISE EXCEPTION 'not sue' USING ERRCODE = 'U0815'; END IF; RETURN NEW; END $$");
    sql("CREATE TRIGGER refuses BEFORE UPDATE ON refusing FOR EACH ROW EXECUTE FUNCTION refuse_bob()");
  } else if (strcmp(engine->scheme, "mysql") == 0) {
    sql("CREATE TRIGGER refuses BEFORE UPDATE ON refusing FOR EACH ROW"
        " IF NEW.name = 'bob' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not bob';"
        " ELSEIF NEW.name = 'sue' THEN SIGNAL SQLSTATE '47000' SET MYSQL_ERRNO = 5815; END IF");
  } else {
    sql("CREATE TRIGGER refuses BEFORE UPDATE ON refusing WHEN NEW.name = 'bob'"
        " BEGIN SELECT RAISE(ABORT, 'not bob'); END");
    sql("CREATE TRIGGER fails BEFORE UPDATE ON refusing WHEN NEW.name = 'sue' "
        " BEGIN SELECT abs(-9223372036854775807 - 1); END");
  }
  dibs_table *t = TABLE(.table = "refusing", .key = "name", .count = "n");
  const char *names[] = {"ann", "bob", "eve", "sue"};
  for (int i = 0; i < 4; i++) count_up(s, names[i], 4, DIBS_OK, .table = t, BUFFERED);
  flush(s, DIBS_FULL);
  assert_int_equal(refusals(s).delta, 8);
  for (int i = 0; i < 4; i++) assert_int_equal(value_of(s, names[i], .table = t).stored, i % 2 == 1 ? 0 : 4);
  flush(s, DIBS_OK);
}

static void a_column_without_a_number_is_refused_as_INVALID(void **state) {
  (void)state;
  dibs_store *s = store_open();
  if (strcmp(engine->scheme, "sqlite") != 0) skip(); /* only there a column takes any value */
  dibs_table *t = characters();
  sql("INSERT INTO character_likes (name, like_count) VALUES ('text', 'many'), ('half', 0.5), ('top', %s)",
      "9223372036854775807");
  count_up(s, "text", 1, DIBS_INVALID, .table = t);
  assert_message("no whole number");
  count_up(s, "half", 1, DIBS_INVALID, .table = t);
  count_up(s, "top", 1, DIBS_FULL, .table = t);
  count_up(s, "text", 2, DIBS_OK, .table = t, BUFFERED);
  count_up(s, "ann", 3, DIBS_OK, .table = t, BUFFERED);
  flush(s, DIBS_INVALID);
  assert_int_equal(refusals(s).delta, 2);
  assert_string_equal(cell("SELECT like_count FROM character_likes WHERE name = 'ann'"), "3");
}

static void a_number_beyond_64_bits_in_a_column_is_not_read(void **state) {
  (void)state;
  if (strcmp(engine->scheme, "mysql") != 0) skip(); /* only there a whole number can be one */
  dibs_store *s = store_open();
  make_table("large_numbers", "name %s PRIMARY KEY, n BIGINT UNSIGNED", engine->text);
  sql("INSERT INTO large_numbers (name, n) VALUES ('a', 9223372036854775808), ('b', 18446744073709551615)");
  dibs_table *t = TABLE(.table = "large_numbers", .key = "name", .count = "n");
  (void)read_at(__LINE__, s, "a", (struct level){.table = t}, DIBS_INVALID);
  assert_message("64 bits");
  (void)read_at(__LINE__, s, "b", (struct level){.table = t}, DIBS_INVALID);
  count_up(s, "a", 1, DIBS_FULL, .table = t);
  count_up(s, "a", -1, DIBS_OK, .table = t);
  assert_true(value_of(s, "a", .table = t).value == INT64_MAX);
}

static void a_table_that_does_not_fit_is_refused(void **state) {
  (void)state;
  dibs_store *s = store_open();
  (void)characters();
  count_up(s, "ann", 1, DIBS_INVALID, .table = TABLE(.table = "character_likes", .key = "name", .count = "nothing"));
  assert_message("nothing");
  count_up(s, "ann", 1, DIBS_INVALID, .table = TABLE(.table = "missing", .key = "name", .count = "n"));
  if (strcmp(engine->scheme, "sqlite") != 0) {
    dibs_table *t = TABLE(.table = "character_likes", .key = "name", .count = "body");
    count_up(s, "ann", 1, DIBS_INVALID, .table = t);
    assert_message("whole number");
    count_up(s, "ann", 1, DIBS_OK, .table = t, BUFFERED);
    flush(s, DIBS_INVALID);
    assert_int_equal(refusals(s).delta, 1);
  }
  count_up(s, "0", 1, DIBS_INVALID,
           .table = TABLE(.table = "character_likes", .key = "like_count", .count = "small_count"));
  assert_message("unique");
}

static void numbers_are_keys_of_a_users_table(void **state) {
  (void)state;
  dibs_store *s = store_open();
  make_table("numbered", "id %s PRIMARY KEY, hits %s", engine->number, engine->number);
  sql("INSERT INTO numbered (id, hits) VALUES (1, 10), (20, 0)");
  dibs_table *t = TABLE(.table = "numbered", .key = "id", .count = "hits");
  count_up(s, "1", 5, DIBS_OK, .table = t);
  count_up(s, "x", 5, DIBS_NOT_FOUND, .table = t);
  count_up(s, "20", 6, DIBS_OK, .table = t, BUFFERED);
  count_up(s, "1", 1, DIBS_OK, .table = t, BUFFERED);
  count_up(s, "y", 1, DIBS_OK, .table = t, BUFFERED);
  flush(s, DIBS_NOT_FOUND);
  assert_int_equal(value_of(s, "1", .table = t).value, 16);
  assert_int_equal(value_of(s, "20", .table = t).value, 6);
  no_value_of(s, "y", .table = t); /* what was refused is not buffered */
}

int main(int argc, char *argv[]) {
  bed_begin(argc, argv);
  const struct CMUnitTest tests[] = {
      TEST(a_durable_addition_is_there_when_the_call_returns),
      TEST(threads_that_add_to_one_key_lose_nothing),
      TEST(buffered_additions_are_visible_here_and_stored_after_a_flush),
      TEST(buffered_additions_are_written_each_second),
      TEST(many_keys_and_threads_are_summed),
      TEST(closing_writes_what_is_buffered),
      TEST(a_forked_child_writes_nothing_of_its_parent),
      TEST(counters_are_listed_by_prefix),
      TEST(a_sum_beyond_64_bits_is_refused),
      TEST(refused_additions_stay_until_they_are_handed_out),
      TEST(a_key_that_sql_wrote_and_is_too_long_ends_a_list),
      TEST(a_store_that_is_read_only_for_a_while_loses_nothing),
      TEST(a_sum_that_does_not_fit_in_a_batch_spoils_no_other),
      TEST(a_caller_leaves_a_batch_that_another_one_sends),
      TEST(closing_ends_calls_that_wait_for_ever),
      TEST(a_flush_during_a_batch_does_not_know_its_outcome),
      TEST(wrong_arguments_are_refused),
      TEST(a_column_of_a_users_table_is_added_to),
      TEST(a_key_without_a_row_is_reported),
      TEST(a_column_that_cannot_take_the_sum_refuses_it_alone),
      TEST(a_row_that_a_trigger_refuses_holds_up_no_other),
      TEST(a_column_without_a_number_is_refused_as_INVALID),
      TEST(a_number_beyond_64_bits_in_a_column_is_not_read),
      TEST(a_table_that_does_not_fit_is_refused),
      TEST(numbers_are_keys_of_a_users_table),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

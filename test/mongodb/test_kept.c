/* SPDX-License-Identifier: MIT */
/*
 * What documents in MongoDB keep, and for how long: reads change nothing, and the server deletes what is over.  Also
 * decisions at the edge of a time, which a client knows between two bounds only.
 *
 *   test_kept URI
 */
#include "drivers/mongodb/batch_impl.h"
#include "steps_bed.h"
#include "store/counter.h"
#include "store/family.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { DAY_MS = 86400000, BIG = 100000, REMEMBERED_MOST = 20000, LIMIT = 100, TOKEN_OF_MS = 100, FINISHED = 500 };
enum { SHORT_MS = 300, TOKEN_MS = 10000, WIDE_MS = 20000, SOON_MS = 500 };

static struct bed bed;

static dibs__str str(const char *text) {
  return dibs__str_of(text, (uint32_t)strlen(text));
}

static struct dibs__mongo_session *session(void) {
  return (struct dibs__mongo_session *)bed.other.session;
}

static mongoc_collection_t *collection(enum dibs__mongo_kind kind) {
  session()->link->by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  return session()->link->collections[kind];
}

static dibs__status run_for(struct dibs__op *op, int64_t ms, struct dibs__result *result) {
  op->by = dibs__tick_add_ms(dibs__tick_now(), ms);
  op->status = DIBS_UNKNOWN;
  op->flags = dibs__op_reads(op) ? DIBS__OP_READS : 0;
  (void)dibs__mongodb_driver.run(bed.other.session, &op, 1, op->by, result);
  return op->status;
}

static dibs__status run(struct dibs__op *op) {
  struct dibs__result result;
  return run_for(op, PATIENCE_MS, &result);
}

static bson_t *document(enum dibs__mongo_kind kind, const char *id) {
  bson_t filter = BSON_INITIALIZER, *copy = NULL;
  const bson_t *found;
  BSON_APPEND_UTF8(&filter, "_id", id);
  mongoc_cursor_t *cursor = mongoc_collection_find_with_opts(collection(kind), &filter, NULL, NULL);
  if (mongoc_cursor_next(cursor, &found)) copy = bson_copy(found);
  mongoc_cursor_destroy(cursor);
  bson_destroy(&filter);
  assert_non_null(copy);
  return copy;
}

static void insert(enum dibs__mongo_kind kind, const char *json) {
  bson_error_t error;
  bson_t *made = bson_new_from_json((const uint8_t *)json, -1, &error);
  if (!made || !mongoc_collection_insert_one(collection(kind), made, NULL, NULL, &error)) fail_msg("%s", error.message);
  bson_destroy(made);
}

/* ---- Reads ---- */

static dibs__status record(enum dibs__record_verb verb, const char *key, dibs__str data, struct dibs__result *result) {
  struct dibs__record_op op = {
      .op = {.family = DIBS__FAM_RECORD, .verb = (uint16_t)verb}, .key = str(key), .data = data};
  dibs__status status = run_for(&op.op, PATIENCE_MS, result);
  free(op.got);
  return status;
}

static void a_read_leaves_what_somebody_else_added_to_a_document(void **state) {
  (void)state;
  struct dibs__result result;
  bson_error_t error;
  assert_int_equal(record(DIBS__RECORD_PUT, "noted", str("data"), &result), DIBS_OK);
  bson_t filter = BSON_INITIALIZER, update = BSON_INITIALIZER, set;
  BSON_APPEND_UTF8(&filter, "_id", "noted");
  BSON_APPEND_DOCUMENT_BEGIN(&update, "$set", &set);
  BSON_APPEND_UTF8(&set, "note", "of somebody else");
  bson_append_document_end(&update, &set);
  if (!mongoc_collection_update_one(collection(DIBS__MONGO_RECORD), &filter, &update, NULL, NULL, &error))
    fail_msg("%s", error.message);
  bson_destroy(&filter);
  bson_destroy(&update);
  assert_int_equal(record(DIBS__RECORD_LOAD, "noted", str(""), &result), DIBS_OK);
  assert_int_equal(result.commits, 0);
  bson_t *now = document(DIBS__MONGO_RECORD, "noted");
  assert_true(bson_has_field(now, "note"));
  bson_destroy(now);
}

static void long_records_are_not_remembered(void **state) {
  (void)state;
  struct dibs__result result;
  char *text = malloc(BIG);
  assert_non_null(text);
  memset(text, 'x', BIG);
  assert_int_equal(record(DIBS__RECORD_PUT, "long", dibs__str_of(text, BIG), &result), DIBS_OK);
  assert_int_equal(record(DIBS__RECORD_PUT, "long", dibs__str_of(text, BIG - 1), &result), DIBS_OK);
  free(text);
  for (size_t i = 0; i < DIBS__MONGO_HEADS; i++)
    for (const struct dibs__mongo_document *d = session()->batch->heads[i]; d; d = d->next)
      if (d->seen) assert_in_range(d->seen->len, 0, REMEMBERED_MOST);
}

static int no_row(const struct dibs__lease_row *row, void *user) {
  (void)row, (void)user;
  return 0;
}

static dibs__status list(const char *prefix, struct dibs__result *result) {
  struct dibs__list all = {.prefix = str(prefix), .row = no_row};
  return dibs__mongodb_driver.list(bed.other.session, &all, dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS), result);
}

static void a_listing_names_the_document_that_it_cannot_read(void **state) {
  (void)state;
  struct dibs__result result;
  insert(DIBS__MONGO_LEASE, "{\"_id\": \"m-damaged\", \"colour\": \"green\"}");
  assert_int_equal(list("", &result), DIBS_CORRUPT);
  assert_non_null(strstr(result.text, "m-damaged"));
  assert_int_equal(list("l", &result), DIBS_OK); /* it is behind those with this prefix */
  assert_int_equal(list("n", &result), DIBS_OK);
}

/* ---- What is over ---- */

static bool expires_by(enum dibs__mongo_kind kind, const char *field) {
  mongoc_cursor_t *cursor = mongoc_collection_find_indexes_with_opts(collection(kind), NULL);
  const bson_t *index;
  bool found = false;
  while (mongoc_cursor_next(cursor, &index)) {
    bson_iter_t at, key;
    found = found || (bson_has_field(index, "expireAfterSeconds") && bson_iter_init_find(&at, index, "key") &&
                      bson_iter_recurse(&at, &key) && bson_iter_find(&key, field));
  }
  mongoc_cursor_destroy(cursor);
  return found;
}

static void an_answer_is_deleted_after_its_time(void **state) {
  (void)state;
  struct dibs__once_op op = {.op = {.family = DIBS__FAM_ONCE, .verb = DIBS__ONCE_STORE},
                             .key = str("answer"),
                             .fence = {7},
                             .keep_ms = 60000,
                             .data = str("data")};
  assert_int_equal(run(&op.op), DIBS_OK);
  bson_t *now = document(DIBS__MONGO_ONCE, "answer");
  bson_iter_t at;
  assert_true(bson_iter_init_find(&at, now, "delete_at") && BSON_ITER_HOLDS_DATE_TIME(&at));
  assert_int_equal(bson_iter_date_time(&at), dibs__mongo_number_in(now, "until", 0) + DAY_MS);
  bson_destroy(now);
  assert_true(expires_by(DIBS__MONGO_ONCE, "delete_at"));
}

/* ---- Between the bounds of the clock ---- */

/* The link believes that the server's clock may be so much later, or earlier, than it knows. */
static void widen(int64_t later_ms, int64_t earlier_ms) {
  struct dibs__mongo_link *link = session()->link;
  link->clock_sent.ns -= later_ms * DIBS__NS_PER_MS;
  link->clock_received.ns += earlier_ms * DIBS__NS_PER_MS;
  link->clock_read = dibs__tick_now();
}

static void read_clock(void) {
  struct dibs__result result;
  session()->link->by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  assert_int_equal(dibs__mongo_clock(session()->link, true, &result), DIBS_OK);
  session()->batch->now = 0; /* it would not go back */
}

static dibs__status add(const char *kind, const char *token, int64_t token_ms, struct dibs__task_new *made) {
  struct dibs__task_op op = {.op = {.family = DIBS__FAM_TASK, .verb = DIBS__TASK_ADD},
                             .kind = str(kind),
                             .news = made,
                             .count = 1,
                             .token = str(token),
                             .token_ms = token_ms};
  dibs__status status = run(&op.op);
  return status == DIBS_OK ? made->status : status;
}

static uint32_t count_tasks(const char *kind) {
  struct dibs__task_op op = {.op = {.family = DIBS__FAM_TASK, .verb = DIBS__TASK_LIST}, .most = 10};
  op.filter.kind = str(kind);
  assert_int_equal(run(&op.op), DIBS_OK);
  free(op.got);
  return op.got_count;
}

static void a_token_that_may_be_over_answers_the_task_that_it_added(void **state) {
  (void)state;
  struct dibs__task_new first = {.payload = str("one")}, second = first;
  read_clock();
  assert_int_equal(add("edge", "a token", TOKEN_MS, &first), DIBS_OK);
  widen(WIDE_MS, 0); /* by the latest time that it may be, the token is over; by the earliest it is not */
  assert_int_equal(add("edge", "a token", TOKEN_MS, &second), DIBS_OK);
  read_clock();
  assert_true(second.repeated);
  assert_int_equal(second.nr, first.nr);
  assert_int_equal(count_tasks("edge"), 1);
}

static void the_answer_of_an_earlier_add_does_not_count(void **state) {
  (void)state;
  struct dibs__task_new made = {.payload = str("one"), .repeated = true};
  assert_int_equal(add("left", "", 0, &made), DIBS_OK);
  assert_false(made.repeated);
  assert_int_equal(count_tasks("left"), 1);
}

/* How much it took: all, or nothing. */
static int64_t take(const struct bed_client *c, int64_t amount) {
  struct dibs__counter_op op = {.op = {.family = DIBS__FAM_COUNTER, .verb = DIBS__COUNTER_TAKE},
                                .key = str("quota"),
                                .amount = amount,
                                .limit = LIMIT,
                                .per_ms = LIMIT * TOKEN_OF_MS};
  struct dibs__op *ops[] = {&op.op};
  struct dibs__result result;
  op.op.by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  op.op.status = DIBS_UNKNOWN;
  (void)dibs__mongodb_driver.run(c->session, ops, 1, op.op.by, &result);
  if (op.op.status != DIBS_OK && op.op.status != DIBS_FULL) fail_msg("%d: %s", (int)op.op.status, result.text);
  return op.op.status == DIBS_OK ? amount : 0;
}

static void clients_that_know_the_clock_differently_share_a_quota(void **state) {
  (void)state;
  struct bed_client other;
  assert_true(bed_connect(&bed, &other, bed.port));
  read_clock();
  dibs__tick began = dibs__tick_now();
  widen(SHORT_MS, 0);
  int64_t taken = take(&bed.other, LIMIT);
  assert_int_equal(taken, LIMIT);
  for (int turn = 0; turn < 8; turn++) {
    taken += take(&other, LIMIT);
    taken += take(&bed.other, 1) + take(&bed.other, 1);
  }
  int64_t tokens = dibs__tick_left_ms(began, dibs__tick_now()) / TOKEN_OF_MS + 1;
  if (taken > LIMIT + tokens) fail_msg("%lld of %d, and of %lld more", (long long)taken, LIMIT, (long long)tokens);
  bed_disconnect(&other);
  read_clock();
}

static dibs__status acquire(const char *name, uint8_t id, int64_t ms) {
  struct dibs__lease_op op = {.op = {.family = DIBS__FAM_LEASE, .verb = DIBS__ACQUIRE},
                              .name = str(name),
                              .owner = str("test"),
                              .mode = DIBS_EXCLUSIVE,
                              .ttl_ms = SHORT_MS};
  struct dibs__result result;
  op.op.bucket = dibs__bucket(op.name);
  op.op.mandate = bed.other.identity.mandate;
  op.id.b[0] = id;
  return run_for(&op.op, ms, &result);
}

static uint32_t count_in(const bson_t *from, const char *field) {
  bson_iter_t at, in;
  uint32_t count = 0;
  assert_true(bson_iter_init_find(&at, from, field) && bson_iter_recurse(&at, &in));
  while (bson_iter_next(&in)) count++;
  return count;
}

#define SLEEPER(id, session)                                                                                           \
  "{\"id\": {\"$binary\": \"AAAAAAAAAAAAAAAAAAAAA" id "==\", \"$type\": \"00\"}, \"state\": \"asleep\", "              \
  "\"mode\": \"exclusive\", \"owner\": \"x\", \"ttl_ms\": 1000, \"session\": " session ", \"ticket\": 1}"

static void what_sleeps_for_a_process_that_is_gone_is_removed(void **state) {
  (void)state;
  insert(DIBS__MONGO_SESSION, "{\"_id\": {\"$numberLong\": \"777\"}, \"seen\": {\"$date\": \"2026-01-01T00:00:00Z\"}}");
  insert(DIBS__MONGO_LEASE,
         "{\"_id\": \"slept\", \"v\": {\"$numberLong\": \"1\"}, \"fence\": 0, \"tickets\": 2, \"claims\": "
         "[" SLEEPER("A", "776") ", " SLEEPER("Q", "777") "]}");
  assert_int_equal(acquire("slept", 9, PATIENCE_MS), DIBS_OK);
  bson_t *now = document(DIBS__MONGO_LEASE, "slept");
  assert_int_equal(count_in(now, "claims"), 2); /* the holder, and the one whose process may only be stopped */
  bson_destroy(now);
}

static void an_answer_comes_in_time_when_nobody_knows_whether_a_lease_is_over(void **state) {
  (void)state;
  read_clock();
  assert_int_equal(acquire("doubt", 1, PATIENCE_MS), DIBS_OK);
  dibs__nap_ms(2 * SHORT_MS);
  widen(0, WIDE_MS);
  dibs__tick began = dibs__tick_now();
  assert_int_equal(acquire("doubt", 2, SOON_MS), DIBS_UNAVAILABLE);
  assert_in_range(dibs__tick_left_ms(began, dibs__tick_now()), 0, WIDE_MS / 2);
  read_clock();
  assert_int_equal(acquire("doubt", 2, PATIENCE_MS), DIBS_OK);
}

/* ---- Finished tasks ---- */

static void all_tasks_whose_time_is_over_are_deleted_at_once(void **state) {
  (void)state;
  struct dibs__result result;
  for (int i = 0; i < FINISHED; i++) {
    char json[300];
    snprintf(json, sizeof json,
             "{\"_id\": {\"$numberLong\": \"%d\"}, \"v\": {\"$numberLong\": \"%d\"}, "
             "\"kind\": \"finished\", \"state\": 8, \"rank\": 0, \"due\": 1, \"timed\": 0, \"kept\": 1, \"fence\": 0, "
             "\"tries\": 3, \"priority\": 0}",
             5000000 + i, 1 + i);
    insert(DIBS__MONGO_TASK, json);
  }
  assert_int_equal(count_tasks("finished"), 10);
  session()->link->by = dibs__tick_add_ms(dibs__tick_now(), 3 * PATIENCE_MS);
  dibs__mongo_tasks_tidy(session(), &result);
  assert_int_equal(count_tasks("finished"), 0);
}

/* ---- Documents of others ---- */

static void a_document_whose_id_is_no_number_is_not_claimed(void **state) {
  (void)state;
  insert(DIBS__MONGO_TASK,
         "{\"_id\": \"x\", \"v\": {\"$numberLong\": \"1\"}, \"kind\": \"odd\", \"state\": 1, \"rank\": 0, "
         "\"due\": 0, \"timed\": 0, \"kept\": 0, \"fence\": 0, \"tries\": 3, \"priority\": 0}");
  struct dibs__task_op op = {
      .op = {.family = DIBS__FAM_TASK, .verb = DIBS__TASK_CLAIM}, .kind = str("odd"), .timeout_ms = 60000, .most = 1};
  struct dibs__result result;
  assert_int_equal(run_for(&op.op, PATIENCE_MS, &result), DIBS_CORRUPT);
  assert_non_null(strstr(result.text, "\"x\""));
}

/* ---- */

static int open_all(void **state) {
  (void)state;
  return bed_open(&bed) ? 0 : -1;
}

static int close_all(void **state) {
  (void)state;
  bed_close(&bed);
  return 0;
}

int main(int argc, char **argv) {
  static const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_read_leaves_what_somebody_else_added_to_a_document),
      cmocka_unit_test(long_records_are_not_remembered),
      cmocka_unit_test(a_listing_names_the_document_that_it_cannot_read),
      cmocka_unit_test(an_answer_is_deleted_after_its_time),
      cmocka_unit_test(all_tasks_whose_time_is_over_are_deleted_at_once),
      cmocka_unit_test(a_document_whose_id_is_no_number_is_not_claimed),
      cmocka_unit_test(a_token_that_may_be_over_answers_the_task_that_it_added),
      cmocka_unit_test(the_answer_of_an_earlier_add_does_not_count),
      cmocka_unit_test(what_sleeps_for_a_process_that_is_gone_is_removed),
      cmocka_unit_test(clients_that_know_the_clock_differently_share_a_quota),
      cmocka_unit_test(an_answer_comes_in_time_when_nobody_knows_whether_a_lease_is_over),
  };
  if (argc != 2) return 2;
  bed.server = argv[1];
  return cmocka_run_group_tests_name("mongodb kept", tests, open_all, close_all);
}

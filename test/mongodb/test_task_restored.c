/* SPDX-License-Identifier: MIT */
/*
 * Dibs' own tasks in MongoDB whose collections are of different times: a copy that was made while clients worked has
 * the kinds and the counter of an earlier time than the tasks, and a collection may be missing.
 *
 *   test_task_restored URI
 */
#include "steps_bed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { KEY = 24, MANY = 300, SHORT_MS = 500, LONG_MS = 600000, TURNS = 12, LATER = 1000000 };

typedef struct dibs__task_op task_op;

static struct {
  struct bed bed;
  uint32_t cases;
  char kind[KEY];
} s;

static dibs__status run(enum dibs__task_verb verb, task_op *op) {
  struct dibs__op *ops[] = {&op->op};
  struct dibs__result result;
  op->op.family = DIBS__FAM_TASK;
  op->op.verb = (uint16_t)verb;
  op->op.by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  op->op.status = DIBS_UNKNOWN;
  op->kind = dibs__str_of(s.kind, (uint32_t)strlen(s.kind));
  (void)dibs__mongodb_driver.run(s.bed.other.session, ops, 1, op->op.by, &result);
  if (op->op.status != DIBS_OK) print_message("%s\n", result.text);
  return op->op.status;
}

static dibs__status add(uint32_t count) {
  struct dibs__task_new news[MANY] = {{.nr = 0}};
  task_op op = {.news = news, .count = count};
  dibs__status status = run(DIBS__TASK_ADD, &op);
  for (uint32_t i = 0; i < count && status == DIBS_OK; i++) status = news[i].status;
  return status;
}

/* The number of the task that it claimed; 0: none. */
static uint64_t claim(int64_t timeout_ms) {
  task_op op = {.timeout_ms = (uint32_t)timeout_ms, .most = 1};
  dibs__random(&op.id, sizeof op.id);
  assert_int_equal(run(DIBS__TASK_CLAIM, &op), DIBS_OK);
  uint64_t nr = op.got_count ? ((const struct dibs__task_row *)op.got)->nr : 0;
  free(op.got);
  return nr;
}

static uint64_t claim_in_time(void) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  uint64_t nr = 0;
  while (!nr && dibs__tick_before(dibs__tick_now(), by)) {
    nr = claim(LONG_MS);
    if (!nr) dibs__nap_ms(50);
  }
  return nr;
}

static uint32_t count_tasks(void) {
  task_op op = {.most = 2 * MANY};
  op.filter.kind = dibs__str_of(s.kind, (uint32_t)strlen(s.kind));
  assert_int_equal(run(DIBS__TASK_LIST, &op), DIBS_OK);
  free(op.got);
  return op.got_count;
}

static mongoc_collection_t *collection(enum dibs__mongo_kind kind) {
  return ((struct dibs__mongo_session *)s.bed.other.session)->link->collections[kind];
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

static void restore(enum dibs__mongo_kind kind, const char *id, bson_t *earlier) {
  bson_t filter = BSON_INITIALIZER;
  bson_error_t error;
  BSON_APPEND_UTF8(&filter, "_id", id);
  if (!mongoc_collection_replace_one(collection(kind), &filter, earlier, NULL, NULL, &error))
    fail_msg("%s", error.message);
  bson_destroy(&filter);
  bson_destroy(earlier);
}

static void drop(enum dibs__mongo_kind kind) {
  bson_error_t error;
  if (!mongoc_collection_drop(collection(kind), &error)) fail_msg("%s", error.message);
}

/* ---- Cases ---- */

static int begin(void **state) {
  (void)state;
  snprintf(s.kind, sizeof s.kind, "kind%u", s.cases++);
  return 0;
}

static void an_old_counter_of_numbers_does_not_refuse_new_tasks(void **state) {
  (void)state;
  assert_int_equal(add(1), DIBS_OK);
  bson_t *earlier = document(DIBS__MONGO_META, "tasks");
  assert_int_equal(add(MANY), DIBS_OK);
  restore(DIBS__MONGO_META, "tasks", earlier);
  assert_int_equal(add(2), DIBS_OK);
  assert_int_equal(count_tasks(), MANY + 3);
}

static void a_claim_that_the_old_document_of_its_kind_does_not_know_ends(void **state) {
  (void)state;
  assert_int_equal(add(1), DIBS_OK);
  bson_t *earlier = document(DIBS__MONGO_TASK_KIND, s.kind);
  uint64_t nr = claim(SHORT_MS);
  assert_int_not_equal(nr, 0);
  restore(DIBS__MONGO_TASK_KIND, s.kind, earlier);
  assert_int_equal(claim_in_time(), nr);
  assert_int_equal(claim(LONG_MS), 0);
}

static void a_claim_ends_although_the_documents_of_the_kinds_are_gone(void **state) {
  (void)state;
  assert_int_equal(add(1), DIBS_OK);
  uint64_t nr = claim(SHORT_MS);
  assert_int_not_equal(nr, 0);
  drop(DIBS__MONGO_TASK_KIND);
  assert_int_equal(claim_in_time(), nr);
  assert_int_equal(claim(LONG_MS), 0);
}

static void a_claim_that_a_new_document_of_its_kind_does_not_know_ends_first(void **state) {
  (void)state;
  assert_int_equal(add(1), DIBS_OK);
  assert_int_not_equal(claim(SHORT_MS), 0);
  drop(DIBS__MONGO_TASK_KIND);
  assert_int_equal(add(2), DIBS_OK);
  dibs__nap_ms(4 * SHORT_MS); /* the claim is over, whatever the clocks */
  task_op op = {.timeout_ms = LONG_MS, .most = MANY};
  dibs__random(&op.id, sizeof op.id);
  assert_int_equal(run(DIBS__TASK_CLAIM, &op), DIBS_OK);
  free(op.got);
  assert_int_equal(op.got_count, 3);
}

/* Another unfinished task with the unique text of this one: its later state was not copied. */
static void add_twin(uint64_t nr) {
  bson_t filter = BSON_INITIALIZER, twin = BSON_INITIALIZER;
  bson_error_t error;
  const bson_t *found;
  BSON_APPEND_INT64(&filter, "_id", (int64_t)nr);
  mongoc_cursor_t *cursor = mongoc_collection_find_with_opts(collection(DIBS__MONGO_TASK), &filter, NULL, NULL);
  assert_true(mongoc_cursor_next(cursor, &found));
  BSON_APPEND_INT64(&twin, "_id", (int64_t)nr + LATER);
  bson_copy_to_excluding_noinit(found, &twin, "_id", NULL);
  if (!mongoc_collection_insert_one(collection(DIBS__MONGO_TASK), &twin, NULL, NULL, &error))
    fail_msg("%s", error.message);
  mongoc_cursor_destroy(cursor);
  bson_destroy(&filter);
  bson_destroy(&twin);
}

static void two_tasks_with_one_unique_text_end(void **state) {
  (void)state;
  for (int turn = 0; turn < TURNS; turn++) { /* the order in memory is drawn */
    struct dibs__task_new made = {.unique = dibs__str_of("one", 3)};
    task_op add_one = {.news = &made, .count = 1};
    assert_int_equal(run(DIBS__TASK_ADD, &add_one), DIBS_OK);
    assert_int_equal(made.status, DIBS_OK);
    add_twin(made.nr);
    task_op claim_both = {.timeout_ms = LONG_MS, .most = 2};
    dibs__random(&claim_both.id, sizeof claim_both.id);
    assert_int_equal(run(DIBS__TASK_CLAIM, &claim_both), DIBS_OK);
    assert_int_equal(claim_both.got_count, 2);
    const struct dibs__task_row *rows = claim_both.got;
    struct dibs__task_item items[2] = {{.nr = rows[1].nr, .fence = rows[1].fence},
                                       {.nr = rows[0].nr, .fence = rows[0].fence}};
    free(claim_both.got);
    task_op end_both = {.items = items, .count = 2};
    assert_int_equal(run(DIBS__TASK_END, &end_both), DIBS_OK);
    assert_int_equal(items[0].status, DIBS_OK);
    assert_int_equal(items[1].status, DIBS_OK);
  }
}

/* ---- */

static int open_all(void **state) {
  (void)state;
  return bed_open(&s.bed) ? 0 : -1;
}

static int close_all(void **state) {
  (void)state;
  bed_close(&s.bed);
  return 0;
}

int main(int argc, char **argv) {
  static const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(an_old_counter_of_numbers_does_not_refuse_new_tasks, begin),
      cmocka_unit_test_setup(a_claim_that_the_old_document_of_its_kind_does_not_know_ends, begin),
      cmocka_unit_test_setup(a_claim_ends_although_the_documents_of_the_kinds_are_gone, begin),
      cmocka_unit_test_setup(a_claim_that_a_new_document_of_its_kind_does_not_know_ends_first, begin),
      cmocka_unit_test_setup(two_tasks_with_one_unique_text_end, begin),
  };
  if (argc != 2) return 2;
  s.bed.server = argv[1];
  return cmocka_run_group_tests_name("mongodb tasks, restored", tests, open_all, close_all);
}

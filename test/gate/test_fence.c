/* SPDX-License-Identifier: MIT */
/* Which question to the store answers which request: src/gate/fence.c, with a store that the test answers for. */
#include "gate/fence_record.h"
#include "gate/gate_impl.h"
#include "handle/handle.h"
#include "unit/unit.h"

#include <string.h>

enum { STARTS_MAX = 8 };

static struct {
  enum dibs__record_verb verb;
  dibs__record_fn done;
  void *user;
  char key[DIBS_NAME_MAX + 1];
  uint64_t fence;
} starts[STARTS_MAX];
static size_t start_count;
static bool store_refuses;

static struct {
  dibs_list_fn row;
  dibs_done_fn done;
  void *user;
  size_t count;
} shown;

dibs_status dibs_show_start(dibs_store *store, const char *name, dibs_list_fn fn, dibs_done_fn done, void *user,
                            dibs_error *error) {
  (void)store, (void)name, (void)error;
  shown.row = fn;
  shown.done = done;
  shown.user = user;
  shown.count++;
  return DIBS_OK;
}

dibs_status dibs__fail(dibs_error *error, dibs_status status, const char *format, ...) {
  (void)error, (void)format;
  return status;
}

dibs_status dibs__record_start(dibs_store *store, enum dibs__record_verb verb, const char *key, const dibs_value *value,
                               const dibs_record_options *options, const struct dibs__proof *proof,
                               dibs__record_fn done, void *user, dibs_error *error) {
  (void)store, (void)value, (void)options, (void)error;
  assert_true(verb == DIBS__RECORD_SEAL ? proof != NULL : verb == DIBS__RECORD_LOAD && !proof);
  assert_true(start_count < STARTS_MAX);
  if (store_refuses) return DIBS_UNAVAILABLE;
  starts[start_count].verb = verb;
  starts[start_count].done = done;
  starts[start_count].user = user;
  starts[start_count].fence = proof ? proof->fence.v : 0;
  memcpy(starts[start_count++].key, key, strlen(key) + 1);
  return DIBS_OK;
}

/* The tests use fields that no request has: what was answered, and how often. */
void dibs__guard_fence_checked(struct exchange *e, dibs_status status, uint64_t seen, const dibs_error *error) {
  (void)error;
  e->status = (int)status;
  e->head_bytes = (size_t)seen;
  e->store_tries++;
}

static void answer(size_t nth, dibs_status status, uint64_t seen) {
  dibs_record_result result = {.size = sizeof result, .fence = {seen}};
  starts[nth].done(status, NULL, &result, NULL, starts[nth].user);
}

/* The same with the content of the record. */
static void answer_content(size_t nth, const char *content) {
  dibs_record_result result = {.size = sizeof result};
  dibs_value value = {content, content ? strlen(content) : 0};
  dibs_record record = {.version = content ? "1" : "0", .count = 1, .values = &value};
  starts[nth].done(DIBS_OK, &record, &result, NULL, starts[nth].user);
}

/* The lease of the name is in this state; fence 0: there is none. */
static void answer_lease(uint32_t state, uint64_t fence) {
  dibs_lease_info info = {.size = sizeof info, .state = state, .fence = {fence}};
  if (fence > 0) shown.row(&info, shown.user);
  shown.done(fence > 0 ? DIBS_OK : DIBS_NOT_FOUND, NULL, shown.user);
}

static struct server server;
static struct gate gate;

static struct exchange request_of(const char *name, uint64_t fence) {
  struct exchange e = {.gate = &gate, .fence = fence};
  memcpy(e.name, name, strlen(name) + 1);
  return e;
}

static int begin(void **state) {
  (void)state;
  start_count = 0;
  store_refuses = false;
  gate = (struct gate){.server = &server};
  return dibs__map_init(&gate.checks) ? 0 : -1;
}

static int end(void **state) {
  (void)state;
  assert_int_equal(gate.checks.count, 0);
  dibs__map_free(&gate.checks);
  return 0;
}

static void later_requests_share_the_next_question(void **state) {
  struct exchange a = request_of("n", 5), b = request_of("n", 5), c = request_of("n", 5);
  (void)state;
  dibs__fence_check(&a);
  dibs__fence_check(&b);
  dibs__fence_check(&c);
  assert_int_equal(start_count, 1);
  answer(0, DIBS_OK, 0);
  assert_int_equal(a.store_tries, 1);
  /* The store may have answered before they came, and a newer fence may have passed. */
  assert_int_equal(b.store_tries + c.store_tries, 0);
  assert_int_equal(start_count, 2);
  answer(1, DIBS_STALE, 6);
  assert_int_equal(starts[2].verb, DIBS__RECORD_LOAD);
  answer_content(2, NULL);
  assert_int_equal(a.status, DIBS_OK);
  assert_int_equal(b.status, DIBS_STALE);
  assert_int_equal(c.status, DIBS_STALE);
  assert_int_equal(c.head_bytes, 6);
  assert_int_equal(start_count, 3);
}

static void names_and_fences_have_questions_of_their_own(void **state) {
  struct exchange a = request_of("n", 5), b = request_of("n", 6), c = request_of("m", 5);
  (void)state;
  dibs__fence_check(&a);
  dibs__fence_check(&b);
  dibs__fence_check(&c);
  assert_int_equal(start_count, 3);
  assert_string_equal(starts[2].key, "gate:m");
  assert_int_equal(starts[1].fence, 6);
  for (size_t i = 0; i < 3; i++) answer(i, DIBS_OK, 0);
  assert_int_equal(a.store_tries + b.store_tries + c.store_tries, 3);
}

static void a_failure_answers_all_that_wait(void **state) {
  struct exchange a = request_of("n", 5), b = request_of("n", 5), c = request_of("n", 5);
  (void)state;
  dibs__fence_check(&a);
  dibs__fence_check(&b);
  store_refuses = true;
  answer(0, DIBS_UNKNOWN, 0);
  assert_int_equal(a.status, DIBS_UNKNOWN);
  assert_int_equal(b.status, DIBS_UNAVAILABLE);
  dibs__fence_check(&c);
  assert_int_equal(c.status, DIBS_UNAVAILABLE);
  assert_int_equal(a.store_tries + b.store_tries + c.store_tries, 3);
}

static void a_fence_that_was_set_is_the_least_from_then_on(void **state) {
  struct exchange high = request_of("n", 900), low = request_of("n", 5), fine = request_of("n", 8);
  (void)state;
  /* The first record has seen 900, and an operator has set 7. */
  dibs__fence_check(&high);
  answer_content(0, "2 7");
  assert_int_equal(starts[1].verb, DIBS__RECORD_SEAL);
  assert_string_equal(starts[1].key, "gate.2:n");
  answer(1, DIBS_OK, 0);
  assert_int_equal(high.status, DIBS_OK);
  dibs__fence_check(&low);
  answer(2, DIBS_STALE, 900);
  answer_content(3, "2 7");
  assert_int_equal(low.status, DIBS_STALE);
  assert_int_equal(low.head_bytes, 7);
  dibs__fence_check(&fine);
  answer(4, DIBS_STALE, 900);
  answer_content(5, "2 7");
  assert_string_equal(starts[6].key, "gate.2:n");
  answer(6, DIBS_STALE, 900);
  assert_int_equal(fine.status, DIBS_STALE);
  assert_int_equal(fine.head_bytes, 900);
}

static void content_of_another_program_lets_nothing_pass(void **state) {
  static const char *const texts[] = {"", "7", "0 7", "1 ", "1 7 ", "1 9007199254740992", "4294967296 7", "x 7"};
  (void)state;
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    struct exchange e = request_of("n", 5);
    dibs__fence_check(&e);
    answer_content(i, texts[i]);
    assert_int_equal(e.status, DIBS_CORRUPT);
  }
}

static void a_lease_is_checked_before_its_fence_is_remembered(void **state) {
  struct exchange none = request_of("n", 5), invented = request_of("n", 5000), held = request_of("n", 7),
                  offered = request_of("n", 7), below = request_of("n", 6);
  (void)state;
  gate.config.check_lease = true;
  dibs__fence_check(&none);
  answer_lease(DIBS_HOLDS, 0);
  assert_int_equal(none.status, DIBS_LOST);
  dibs__fence_check(&invented);
  answer_lease(DIBS_HOLDS, 6);
  assert_int_equal(invented.status, DIBS_LOST);
  assert_int_equal(start_count, 0);
  /* A waiter has no fence of the name. */
  dibs__fence_check(&held);
  answer_lease(DIBS_WAITS, 7);
  assert_int_equal(held.status, DIBS_LOST);
  dibs__fence_check(&held);
  answer_lease(DIBS_HOLDS, 6);
  assert_int_equal(start_count, 1);
  answer(0, DIBS_OK, 0);
  assert_int_equal(held.status, DIBS_OK);
  dibs__fence_check(&offered);
  answer_lease(DIBS_OFFERED, 7);
  answer(1, DIBS_OK, 0);
  assert_int_equal(offered.status, DIBS_OK);
  /* The holder's process may have drawn its next fences already. */
  dibs__fence_check(&below);
  answer_lease(DIBS_HOLDS, 7);
  answer(2, DIBS_OK, 0);
  assert_int_equal(below.status, DIBS_OK);
}

static void long_names_have_keys_that_fit(void **state) {
  char name[HEAD_NAME_MAX + 1], key[DIBS_NAME_MAX + 1], other[DIBS_NAME_MAX + 1];
  (void)state;
  memset(name, 'n', HEAD_NAME_MAX);
  name[HEAD_NAME_MAX] = '\0';
  dibs__fence_key(name, 0, key);
  name[HEAD_NAME_MAX - 1] = 'm';
  dibs__fence_key(name, 0, other);
  assert_string_not_equal(key, other);
  assert_true(strlen(key) <= DIBS_NAME_MAX);
  dibs__fence_key(name, UINT32_MAX, key);
  assert_true(strlen(key) <= DIBS_NAME_MAX);
}

static void no_name_has_the_key_of_another(void **state) {
  char name[HEAD_NAME_MAX + 1], key[DIBS_NAME_MAX + 1], other[DIBS_NAME_MAX + 1];
  (void)state;
  memset(name, 'n', HEAD_NAME_MAX);
  name[HEAD_NAME_MAX] = '\0';
  dibs__fence_key(name, 0, key);
  /* Keys of short names begin with "gate:", and end with the name. */
  assert_int_not_equal(strncmp(key, "gate:", 5), 0);
  dibs__fence_key(name, 3, other);
  assert_string_not_equal(key, other);
  dibs__fence_key("n", 3, key);
  assert_int_not_equal(strncmp(key, "gate:", 5), 0);
  dibs__fence_key("3:n", 0, other);
  assert_string_not_equal(key, other);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(later_requests_share_the_next_question, begin, end),
      cmocka_unit_test_setup_teardown(names_and_fences_have_questions_of_their_own, begin, end),
      cmocka_unit_test_setup_teardown(a_failure_answers_all_that_wait, begin, end),
      cmocka_unit_test_setup_teardown(a_fence_that_was_set_is_the_least_from_then_on, begin, end),
      cmocka_unit_test_setup_teardown(content_of_another_program_lets_nothing_pass, begin, end),
      cmocka_unit_test_setup_teardown(a_lease_is_checked_before_its_fence_is_remembered, begin, end),
      cmocka_unit_test_setup_teardown(long_names_have_keys_that_fit, begin, end),
      cmocka_unit_test_setup_teardown(no_name_has_the_key_of_another, begin, end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

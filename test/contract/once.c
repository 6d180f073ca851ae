/* SPDX-License-Identifier: MIT */
/* Once keys (R30 to R33). */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DAY_MS INT64_C(86400000)

typedef struct dibs__once_op once;

enum { RACERS = 4, RACE_KEYS = 30, PATIENCE_MS = 30000 };

static struct party *once_party(void) {
  struct party *p = party();
  if (!(p->identity.families & 1u << DIBS__FAM_ONCE)) skip();
  return p;
}

static once once_op(enum dibs__once_verb verb, const char *key, int id, uint64_t fence, const char *data) {
  once op = {.op = {.family = DIBS__FAM_ONCE, .verb = (uint16_t)verb}, .key = name_of(key), .keep_ms = DAY_MS};
  op.op.flags = verb == DIBS__ONCE_READ ? DIBS__OP_READS : 0;
  op.op.bucket = dibs__bucket(op.key);
  op.op.by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  op.id = id_of(id);
  op.fence = (dibs__fence){fence};
  op.data = data ? dibs__str_of(data, strlen(data)) : (dibs__str){0};
  return op;
}

static once run(struct party *p, once op) {
  struct dibs__op *ops[] = {&op.op};
  run_batch(p, ops, 1);
  if (op.got) free_at_end(op.got);
  return op;
}

static once begin(struct party *p, const char *key, int id, uint64_t fence) {
  return run(p, once_op(DIBS__ONCE_BEGIN, key, id, fence, NULL));
}
static once store(struct party *p, const char *key, int id, uint64_t fence, const char *data) {
  return run(p, once_op(DIBS__ONCE_STORE, key, id, fence, data));
}
static once store_for(struct party *p, const char *key, int id, uint64_t fence, const char *data, int64_t keep_ms) {
  once op = once_op(DIBS__ONCE_STORE, key, id, fence, data);
  op.keep_ms = keep_ms;
  return run(p, op);
}
static once read_key(struct party *p, const char *key) {
  return run(p, once_op(DIBS__ONCE_READ, key, 0, 0, NULL));
}
static once forget(struct party *p, const char *key) {
  return run(p, once_op(DIBS__ONCE_FORGET, key, 0, 0, NULL));
}
static once leave_key(struct party *p, const char *key, int id, uint64_t fence) {
  return run(p, once_op(DIBS__ONCE_LEAVE, key, id, fence, NULL));
}

/* For forget and leave: a repetition finds nothing. */
static void expect_ended(once got) {
  if (in_doubt(&got.op) && got.op.status == DIBS_NOT_FOUND) return;
  expect(got, DIBS_OK);
}

static void expect_answer(once got, dibs__status status, const char *data) {
  expect(got, status);
  assert_non_null(got.got);
  assert_int_equal(got.got_len, strlen(data));
  assert_string_equal(got.got, data);
}

static void expect_none(once got) {
  expect(got, DIBS_NOT_FOUND);
  assert_null(got.got);
  assert_int_equal(got.got_len, 0);
}

/* ---- R30 ---- */

static void R30_a_new_key_has_no_answer(void **state) {
  (void)state;
  struct party *p = once_party();
  expect_none(read_key(p, "k"));
  expect_none(forget(p, "k"));
  expect_none(leave_key(p, "k", 1, 5));
  expect_none(read_key(p, "k"));
}

static void R30_an_attempt_is_not_an_answer(void **state) {
  (void)state;
  struct party *p = once_party();
  once got = begin(p, "k", 1, 5);
  expect(got, DIBS_OK);
  assert_null(got.got);
  expect_none(read_key(p, "k"));
  expect_none(forget(p, "k"));
}

static void R30_all_clients_get_the_answer(void **state) {
  (void)state;
  struct party *p = once_party(), *q = party();
  expect(begin(p, "k", 1, 5), DIBS_OK);
  expect(store(p, "k", 1, 5, "first"), DIBS_OK);
  expect_answer(read_key(q, "k"), DIBS_OK, "first");
  expect_answer(begin(q, "k", 2, 6), DIBS_REPLAY, "first");
  expect_answer(store(q, "k", 2, 6, "second"), DIBS_REPLAY, "first");
  expect_answer(begin(q, "k", 3, 0), DIBS_REPLAY, "first");
  expect_answer(store(q, "k", 3, 0, "third"), DIBS_REPLAY, "first");
  expect_answer(begin(q, "k", 4, 4), DIBS_REPLAY, "first"); /* also to a late client */
  expect_answer(store(q, "k", 4, 4, "fourth"), DIBS_REPLAY, "first");
  expect_none(leave_key(p, "k", 1, 5));
  once got = read_key(q, "k");
  expect_answer(got, DIBS_OK, "first");
  assert_true(got.age_ms >= 0 && got.age_ms < PATIENCE_MS + time_advanced());
  assert_true(got.left_ms > 0 && got.left_ms <= DAY_MS);
}

static void R30_an_answer_may_be_stored_without_begin(void **state) {
  (void)state;
  struct party *p = once_party();
  expect(store(p, "k", 1, 5, "x"), DIBS_OK);
  expect_answer(read_key(p, "k"), DIBS_OK, "x");
}

/* Some engines expire answers by a clock that a test cannot move. */
static void wait_until_over(struct party *p, const char *key) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  while (read_key(p, key).op.status == DIBS_OK) {
    if (!dibs__tick_before(dibs__tick_now(), by)) fail_msg("the answer is still stored after its time");
    dibs__nap_ms(5);
  }
}

static void R30_an_answer_ends_with_its_time(void **state) {
  (void)state;
  struct party *p = once_party();
  expect(store_for(p, "k", 1, 5, "old", 60), DIBS_OK);
  expect(store_for(p, "other", 1, 5, "stays", DAY_MS), DIBS_OK);
  wait_until_over(p, "k");
  expect_none(forget(p, "k"));
  expect(begin(p, "k", 2, 6), DIBS_OK);
  expect_none(read_key(p, "k"));
  expect(store(p, "k", 2, 6, "new"), DIBS_OK);
  expect_answer(read_key(p, "k"), DIBS_OK, "new");
  expect_answer(read_key(p, "other"), DIBS_OK, "stays");
}

static void R30_an_expired_answer_may_be_replaced_without_begin(void **state) {
  (void)state;
  struct party *p = once_party();
  expect(store_for(p, "k", 1, 5, "old", 30), DIBS_OK);
  wait_until_over(p, "k");
  expect(store(p, "k", 2, 6, "new"), DIBS_OK);
  expect_answer(read_key(p, "k"), DIBS_OK, "new");
}

static void R30_a_forgotten_key_may_be_done_again(void **state) {
  (void)state;
  struct party *p = once_party(), *q = party();
  expect(store(p, "k", 1, 5, "old"), DIBS_OK);
  expect_ended(forget(q, "k"));
  expect_none(read_key(p, "k"));
  expect_none(forget(q, "k"));
  expect(begin(q, "k", 2, 6), DIBS_OK);
  expect(store(q, "k", 2, 6, "new"), DIBS_OK);
  expect_answer(read_key(p, "k"), DIBS_OK, "new");
}

/* ---- R31 ---- */

static void R31_a_newer_attempt_shuts_older_ones_out(void **state) {
  (void)state;
  struct party *p = once_party(), *q = party();
  expect(begin(p, "k", 1, 5), DIBS_OK);
  expect(begin(q, "k", 2, 6), DIBS_OK);
  expect(store(p, "k", 1, 5, "late"), DIBS_STALE);
  expect(begin(p, "k", 1, 5), DIBS_STALE);
  expect_none(leave_key(p, "k", 1, 5));
  expect_none(read_key(p, "k"));
  expect(store(q, "k", 2, 6, "mine"), DIBS_OK);
  expect_answer(read_key(p, "k"), DIBS_OK, "mine");
}

static void R31_the_same_fence_of_another_id_is_refused(void **state) {
  (void)state;
  struct party *p = once_party();
  expect(begin(p, "k", 1, 5), DIBS_OK);
  expect(begin(p, "k", 2, 5), DIBS_STALE);
  expect(store(p, "k", 2, 5, "x"), DIBS_STALE);
  expect_none(leave_key(p, "k", 2, 5));
  expect(store(p, "k", 1, 5, "mine"), DIBS_OK);
}

static void R31_a_forgotten_answer_leaves_its_fence(void **state) {
  (void)state;
  struct party *p = once_party();
  expect(store(p, "k", 2, 6, "x"), DIBS_OK);
  expect_ended(forget(p, "k"));
  expect(begin(p, "k", 1, 5), DIBS_STALE);
  expect(store(p, "k", 1, 5, "late"), DIBS_STALE);
  expect(store(p, "k", 2, 6, "again"), DIBS_STALE); /* the key was forgotten for all clients */
  expect_none(read_key(p, "k"));
}

static void R31_an_attempt_that_left_is_refused(void **state) {
  (void)state;
  struct party *p = once_party();
  expect(begin(p, "k", 1, 5), DIBS_OK);
  expect_ended(leave_key(p, "k", 1, 5));
  expect_none(leave_key(p, "k", 1, 5));
  expect(store(p, "k", 1, 5, "late"), DIBS_STALE);
  expect(begin(p, "k", 2, 4), DIBS_STALE);
  expect(begin(p, "k", 2, 6), DIBS_OK);
  expect(store(p, "k", 2, 6, "mine"), DIBS_OK);
}

static void R31_without_a_fence_a_fenced_attempt_is_not_replaced(void **state) {
  (void)state;
  struct party *p = once_party();
  expect(begin(p, "k", 1, 5), DIBS_OK);
  expect(begin(p, "k", 2, 0), DIBS_HELD);
  expect(store(p, "k", 2, 0, "x"), DIBS_STALE);
  expect_ended(leave_key(p, "k", 1, 5));
  expect(begin(p, "k", 2, 0), DIBS_OK);
  expect(store(p, "k", 2, 0, "mine"), DIBS_OK);
  expect_answer(read_key(p, "k"), DIBS_OK, "mine");
  expect_ended(forget(p, "k"));
  expect(begin(p, "k", 1, 5), DIBS_STALE); /* the fence is still remembered */
}

static void R31_without_a_fence_every_attempt_is_accepted(void **state) {
  (void)state;
  struct party *p = once_party();
  expect(begin(p, "k", 1, 0), DIBS_OK);
  expect(begin(p, "k", 2, 0), DIBS_OK);
  expect(store(p, "k", 1, 0, "x"), DIBS_STALE);
  expect(begin(p, "k", 3, 7), DIBS_OK);
  expect(store(p, "k", 2, 0, "x"), DIBS_STALE);
  expect(store(p, "k", 3, 7, "mine"), DIBS_OK);
}

static void R31_without_a_fence_an_expired_key_may_be_taken(void **state) {
  (void)state;
  struct party *p = once_party();
  expect(store_for(p, "k", 1, 5, "old", 30), DIBS_OK);
  wait_until_over(p, "k");
  expect(begin(p, "k", 2, 0), DIBS_OK);
  expect(store(p, "k", 2, 0, "new"), DIBS_OK);
  expect_answer(read_key(p, "k"), DIBS_OK, "new");
}

/* ---- R32 ---- */

static void R32_a_repetition_finds_its_own_effect(void **state) {
  (void)state;
  struct party *p = once_party();
  for (int i = 0; i < 2; i++) expect(begin(p, "k", 1, 5), DIBS_OK);
  for (int i = 0; i < 2; i++) {
    once got = store(p, "k", 1, 5, "mine");
    expect(got, DIBS_OK);
    assert_null(got.got);
  }
  expect_answer(begin(p, "k", 1, 5), DIBS_REPLAY, "mine");
  expect(begin(p, "free", 1, 0), DIBS_OK);
  for (int i = 0; i < 2; i++) expect(store(p, "free", 1, 0, "mine"), DIBS_OK);
}

/* ---- R33 ---- */

static void R33_keys_are_independent(void **state) {
  (void)state;
  struct party *p = once_party();
  expect(store(p, "k", 9, 9, "k"), DIBS_OK);
  expect(begin(p, "K", 1, 1), DIBS_OK);
  expect(store(p, "K", 1, 1, "K"), DIBS_OK);
  expect_answer(read_key(p, "k"), DIBS_OK, "k");
  expect_ended(forget(p, "k"));
  expect_answer(read_key(p, "K"), DIBS_OK, "K");
  expect_none(read_key(p, "k "));
}

static void R33_an_answer_may_contain_any_bytes(void **state) {
  (void)state;
  struct party *p = once_party();
  char bytes[] = "a\0b\xff\x01'\\";
  once op = once_op(DIBS__ONCE_STORE, "k", 1, 5, NULL);
  op.data = dibs__str_of(bytes, 7);
  expect(run(p, op), DIBS_OK);
  once got = read_key(p, "k");
  expect(got, DIBS_OK);
  assert_int_equal(got.got_len, 7);
  assert_memory_equal(got.got, bytes, 7);
  assert_int_equal(got.got[7], 0);
  expect(store(p, "empty", 1, 5, NULL), DIBS_OK);
  expect_answer(read_key(p, "empty"), DIBS_OK, "");
}

static void R33_an_answer_has_at_most_a_megabyte(void **state) {
  (void)state;
  struct party *p = once_party(), *q = party();
  char *big = malloc(DIBS_RECORD_MAX + 1);
  assert_non_null(big);
  free_at_end(big);
  for (size_t i = 0; i <= DIBS_RECORD_MAX; i++) big[i] = (char)(i * 7 + i / 251);
  once op = once_op(DIBS__ONCE_STORE, "k", 1, 5, NULL);
  op.data = dibs__str_of(big, DIBS_RECORD_MAX + 1);
  expect(run(p, op), DIBS_INVALID);
  expect_none(read_key(p, "k"));
  op.data = dibs__str_of(big, DIBS_RECORD_MAX);
  expect(run(p, op), DIBS_OK);
  once got = read_key(q, "k");
  expect(got, DIBS_OK);
  assert_int_equal(got.got_len, DIBS_RECORD_MAX);
  assert_memory_equal(got.got, big, DIBS_RECORD_MAX);
  got = begin(q, "k", 2, 6);
  expect(got, DIBS_REPLAY);
  assert_int_equal(got.got_len, DIBS_RECORD_MAX);
}

static void R33_malformed_operations_are_invalid(void **state) {
  (void)state;
  struct party *p = once_party();
  once op = once_op(DIBS__ONCE_STORE, "k", 1, 5, "x");
  op.keep_ms = 0;
  expect(run(p, op), DIBS_INVALID);
  op = once_op(DIBS__ONCE_BEGIN, "k", 1, 5, NULL);
  op.key.len = 0;
  expect(run(p, op), DIBS_INVALID);
  op = once_op(DIBS__ONCE_READ, "k", 1, 5, NULL);
  op.op.verb = DIBS__ONCE_LEAVE + 1;
  op.op.flags = 0;
  expect(run(p, op), DIBS_INVALID);
  expect_none(read_key(p, "k"));
}

/* ---- Batches ---- */

static void R1_a_batch_may_contain_many_keys(void **state) {
  (void)state;
  struct party *p = once_party();
  enum { KEYS = 150 };
  static once op[KEYS];
  static char data[KEYS][16];
  struct dibs__op *ops[KEYS];
  char key[16];
  const uint16_t verbs[] = {DIBS__ONCE_BEGIN, DIBS__ONCE_STORE, DIBS__ONCE_READ};
  for (size_t v = 0; v < 3; v++) {
    for (int i = 0; i < KEYS; i++) {
      snprintf(key, sizeof key, "k%d", (i * 67) % KEYS);
      snprintf(data[i], sizeof data[i], "answer %d", i);
      op[i] = once_op(verbs[v], key, i, 5, data[i]);
      ops[i] = &op[i].op;
    }
    run_batch(p, ops, KEYS);
    for (int i = 0; i < KEYS; i++) {
      expect(op[i], DIBS_OK);
      if (v < 2) continue;
      assert_non_null(op[i].got);
      assert_string_equal(op[i].got, data[i]);
      free(op[i].got);
    }
  }
}

static void R1_operations_on_one_key_keep_the_batch_order(void **state) {
  (void)state;
  struct party *p = once_party();
  once op[] = {once_op(DIBS__ONCE_READ, "k", 1, 5, NULL),      once_op(DIBS__ONCE_BEGIN, "k", 1, 5, NULL),
               once_op(DIBS__ONCE_BEGIN, "other", 1, 5, NULL), once_op(DIBS__ONCE_BEGIN, "k", 2, 6, NULL),
               once_op(DIBS__ONCE_STORE, "k", 1, 5, "late"),   once_op(DIBS__ONCE_STORE, "k", 2, 6, "mine"),
               once_op(DIBS__ONCE_READ, "k", 1, 5, NULL)};
  enum { COUNT = sizeof op / sizeof op[0] };
  struct dibs__op *ops[COUNT];
  for (size_t i = 0; i < COUNT; i++) ops[i] = &op[i].op;
  run_batch(p, ops, COUNT);
  for (size_t i = 0; i < COUNT; i++)
    if (op[i].got) free_at_end(op[i].got);
  for (size_t i = 0; i < COUNT; i++)
    if (in_doubt(&op[i].op)) return; /* a repetition finds the later state */
  expect(op[0], DIBS_NOT_FOUND);
  expect(op[1], DIBS_OK);
  expect(op[2], DIBS_OK);
  expect(op[3], DIBS_OK);
  expect(op[4], DIBS_STALE);
  expect(op[5], DIBS_OK);
  expect_answer(op[6], DIBS_OK, "mine");
}

/* The next operation does not overtake one whose row does not exist yet. */
static void R1_operations_on_one_new_key_keep_the_batch_order(void **state) {
  (void)state;
  struct party *p = once_party();
  once op[] = {once_op(DIBS__ONCE_STORE, "k", 1, 5, "mine"), once_op(DIBS__ONCE_BEGIN, "k", 2, 6, NULL)};
  struct dibs__op *ops[] = {&op[0].op, &op[1].op};
  run_batch(p, ops, 2);
  if (op[1].got) free_at_end(op[1].got);
  if (in_doubt(&op[0].op) || in_doubt(&op[1].op)) return;
  expect(op[0], DIBS_OK);
  expect_answer(op[1], DIBS_REPLAY, "mine");
}

/* ---- Races ---- */

struct racer {
  struct party *p;
  dibs__thread *thread;
  once op[RACE_KEYS];
  int stored, other;
};

static dibs__status send_request(struct racer *r, once *op) {
  const struct dibs__driver *driver = store_of(r->p)->driver;
  struct dibs__op *ops[] = {&op->op};
  while (dibs__tick_before(dibs__tick_now(), op->op.by)) {
    op->op.status = DIBS_UNKNOWN;
    dibs__status status =
        r->p->session ? driver->run(r->p->session, ops, 1, op->op.by, &r->p->reported) : DIBS_UNAVAILABLE;
    if (r->p->reported.dead || !r->p->session) {
      if (r->p->session) driver->disconnect(r->p->session);
      r->p->session = NULL;
      (void)driver->connect(store_of(r->p), op->op.by, &r->p->session, &r->p->identity, &r->p->reported);
    }
    if (status == DIBS_OK && op->op.status != DIBS_UNKNOWN && op->op.status != DIBS_UNAVAILABLE) return op->op.status;
  }
  return DIBS_TIMEOUT;
}

static void race(void *arg) {
  struct racer *r = arg;
  for (int i = 0; i < RACE_KEYS; i++) {
    dibs__status status = send_request(r, &r->op[i]);
    if (status == DIBS_OK) {
      r->op[i].op.verb = DIBS__ONCE_STORE;
      status = send_request(r, &r->op[i]);
      if (status == DIBS_OK) r->stored++;
    }
    free(r->op[i].got);
    if (status != DIBS_OK && status != DIBS_REPLAY && status != DIBS_STALE) r->other++;
  }
}

/* Exactly one thread stores an answer, whatever begins at the same time. */
static void R30_threads_store_one_answer(void **state) {
  (void)state;
  static struct racer racers[RACERS];
  static const char *const data[RACERS] = {"by 0", "by 1", "by 2", "by 3"};
  struct party *first = once_party();
  char key[16];
  int stored = 0;
  for (int r = 0; r < RACERS; r++) {
    racers[r] = (struct racer){.p = r ? party() : first};
    for (int i = 0; i < RACE_KEYS; i++) {
      snprintf(key, sizeof key, "k%d", i);
      racers[r].op[i] = once_op(DIBS__ONCE_BEGIN, key, r, (uint64_t)(5 + (r + i) % RACERS), data[r]);
    }
  }
  for (int r = 0; r < RACERS; r++) {
    racers[r].thread = dibs__thread_start("racer", race, &racers[r]);
    assert_non_null(racers[r].thread);
  }
  for (int r = 0; r < RACERS; r++) dibs__thread_join(racers[r].thread);
  for (int r = 0; r < RACERS; r++) {
    assert_int_equal(racers[r].other, 0);
    stored += racers[r].stored;
  }
  assert_int_equal(stored, RACE_KEYS); /* no key refuses its largest fence */
}

static const struct CMUnitTest contract_once_cases[] = {
    CASE(R30_a_new_key_has_no_answer),
    CASE(R30_an_attempt_is_not_an_answer),
    CASE(R30_all_clients_get_the_answer),
    CASE(R30_an_answer_may_be_stored_without_begin),
    CASE(R30_an_answer_ends_with_its_time),
    CASE(R30_an_expired_answer_may_be_replaced_without_begin),
    CASE(R30_a_forgotten_key_may_be_done_again),
    CASE(R31_a_newer_attempt_shuts_older_ones_out),
    CASE(R31_the_same_fence_of_another_id_is_refused),
    CASE(R31_a_forgotten_answer_leaves_its_fence),
    CASE(R31_an_attempt_that_left_is_refused),
    CASE(R31_without_a_fence_a_fenced_attempt_is_not_replaced),
    CASE(R31_without_a_fence_every_attempt_is_accepted),
    CASE(R31_without_a_fence_an_expired_key_may_be_taken),
    CASE(R32_a_repetition_finds_its_own_effect),
    CASE(R33_keys_are_independent),
    CASE(R33_an_answer_may_contain_any_bytes),
    CASE(R33_an_answer_has_at_most_a_megabyte),
    CASE(R33_malformed_operations_are_invalid),
    CASE(R1_a_batch_may_contain_many_keys),
    CASE(R1_operations_on_one_key_keep_the_batch_order),
    CASE(R1_operations_on_one_new_key_keep_the_batch_order),
    CASE(R30_threads_store_one_answer),
};
CONTRACT_TESTS(contract_once);

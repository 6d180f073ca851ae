/* SPDX-License-Identifier: MIT */
/* Records (R18). */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

static void R18_a_record_that_was_never_there(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__record_op got = load(p, "r");
  expect(got, DIBS_NOT_FOUND);
  assert_null(got.got);
}

static void R18_sealed_but_never_saved(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  struct dibs__record_op got = seal(p, "r", 1, held.fence);
  expect(got, DIBS_OK);
  assert_int_equal(got.version, 0);
  assert_null(got.got);
  assert_int_equal(got.got_len, 0);
  assert_int_equal(got.seen.v, held.fence.v);
  got = load(p, "r");
  expect(got, DIBS_OK);
  assert_int_equal(got.version, 0);
  assert_null(got.got);
}

static void R18_saved_is_what_others_read(void **state) {
  (void)state;
  struct party *p = party(), *q = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(seal(p, "r", 1, held.fence), DIBS_OK);
  struct dibs__record_op saved = save(p, "r", 1, held.fence, "one");
  expect(saved, DIBS_OK);
  assert_true(saved.version == 1 || in_doubt(&saved.op));
  struct dibs__record_op again = save(p, "r", 1, held.fence, "two!");
  if (!in_doubt(&saved.op) && !in_doubt(&again.op)) assert_int_equal(again.version, 2);
  struct dibs__record_op got = load(q, "r");
  expect(got, DIBS_OK);
  assert_int_equal(got.version, again.version);
  assert_int_equal(got.got_len, 4);
  assert_string_equal(got.got, "two!");
  assert_int_equal(got.seen.v, held.fence.v);
}

static void R18_an_older_fence_is_refused(void **state) {
  (void)state;
  struct party *p = party(), *q = party();
  struct dibs__lease_op old = acquire(p, "n", 1);
  expect(save(p, "r", 1, old.fence, "old"), DIBS_OK);
  pass_ttl(p);
  struct dibs__lease_op held = acquire(q, "n", 2);
  /* The door closes before the read. */
  struct dibs__record_op got = seal(q, "r", 2, held.fence);
  expect(got, DIBS_OK);
  assert_string_equal(got.got, "old");
  struct dibs__record_op late = save(p, "r", 1, old.fence, "late");
  expect(late, DIBS_STALE);
  assert_int_equal(late.seen.v, held.fence.v);
  late = seal(p, "r", 1, old.fence);
  expect(late, DIBS_STALE);
  assert_int_equal(late.seen.v, held.fence.v);
  assert_null(late.got);
  expect(save(q, "r", 2, held.fence, "new"), DIBS_OK);
  got = load(p, "r");
  assert_string_equal(got.got, "new");
}

static void R18_the_same_fence_of_another_lease_is_refused(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(seal(p, "r", 1, held.fence), DIBS_OK);
  struct dibs__record_op other = save(p, "r", 2, held.fence, "x");
  expect(other, DIBS_STALE);
  assert_int_equal(other.seen.v, held.fence.v);
  expect(seal(p, "r", 2, held.fence), DIBS_STALE);
  expect(save(p, "r", 1, held.fence, "mine"), DIBS_OK);
}

static void R18_a_save_raises_the_fence_too(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1, .block = 10);
  expect(save(p, "r", 1, (dibs__fence){held.fence.v + 5}, "five"), DIBS_OK);
  expect(save(p, "r", 1, held.fence, "zero"), DIBS_STALE);
  assert_string_equal(load(p, "r").got, "five");
}

static void R18_a_dead_lease_may_save_while_nobody_was_there_since(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(seal(p, "r", 1, held.fence), DIBS_OK);
  pass_ttl(p);
  expect(save(p, "r", 1, held.fence, "late but first"), DIBS_OK);
}

static void R18_any_bytes(void **state) {
  (void)state;
  struct party *p = party();
  char bytes[] = "a\0b\xff\x01";
  struct dibs__lease_op held = acquire(p, "n", 1);
  struct dibs__record_op op = record_op(DIBS__RECORD_SAVE, "r", 1, held.fence, NULL);
  struct dibs__op *ops[] = {&op.op};
  op.data = dibs__str_of(bytes, 5);
  run_batch(p, ops, 1);
  expect(op, DIBS_OK);
  struct dibs__record_op got = load(p, "r");
  assert_int_equal(got.got_len, 5);
  assert_memory_equal(got.got, bytes, 5);
  assert_int_equal(got.got[5], 0);
}

static void R18_nothing_is_something(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(save(p, "r", 1, held.fence, ""), DIBS_OK);
  struct dibs__record_op got = load(p, "r");
  expect(got, DIBS_OK);
  assert_int_equal(got.got_len, 0);
  assert_non_null(got.got);
  assert_int_equal(got.got[0], 0);
}

static void R18_a_megabyte_and_no_more(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  struct dibs__record_op op = record_op(DIBS__RECORD_SAVE, "r", 1, held.fence, NULL);
  struct dibs__op *ops[] = {&op.op};
  char *big = malloc(DIBS_RECORD_MAX + 1);
  assert_non_null(big);
  keep(big);
  memset(big, 'x', DIBS_RECORD_MAX + 1);
  op.data = dibs__str_of(big, DIBS_RECORD_MAX + 1);
  run_batch(p, ops, 1);
  expect(op, DIBS_INVALID);
  op.data = dibs__str_of(big, DIBS_RECORD_MAX);
  run_batch(p, ops, 1);
  expect(op, DIBS_OK);
  struct dibs__record_op got = load(p, "r");
  assert_int_equal(got.got_len, DIBS_RECORD_MAX);
  assert_memory_equal(got.got, big, DIBS_RECORD_MAX);
}

static void R18_a_fence_of_0_seals_nothing(void **state) {
  (void)state;
  struct party *p = party();
  expect(seal(p, "r", 1, DIBS__FENCE_NONE), DIBS_INVALID);
  expect(save(p, "r", 1, DIBS__FENCE_NONE, "x"), DIBS_INVALID);
  expect(load(p, "r"), DIBS_NOT_FOUND);
}

static void R18_records_outlive_the_session_and_lost_leases(void **state) {
  (void)state;
  struct party *p = party(), *q = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(save(p, "r", 1, held.fence, "kept"), DIBS_OK);
  if (target()->forget) target()->forget(innermost(q));
  leave(p);
  assert_string_equal(load(q, "r").got, "kept");
  struct dibs__lease_op next = acquire(q, "n", 2);
  if (next.op.status == DIBS_HELD || next.op.status == DIBS__QUEUED) return; /* nothing was lost: it is still held */
  struct dibs__record_op got = seal(q, "r", 2, next.fence);
  expect(got, DIBS_OK);
  assert_string_equal(got.got, "kept");
}

static void R18_two_records_know_nothing_of_each_other(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op first = acquire(p, "n", 1);
  expect(release(p, "n", 1, first.fence), DIBS_OK);
  struct dibs__lease_op second = acquire(p, "n", 2);
  expect(save(p, "r", 2, second.fence, "r"), DIBS_OK);
  expect(save(p, "s", 1, first.fence, "s"), DIBS_OK);
  expect(load(p, "t"), DIBS_NOT_FOUND);
}

static const struct CMUnitTest contract_records_cases[] = {
    CASE(R18_a_record_that_was_never_there),
    CASE(R18_sealed_but_never_saved),
    CASE(R18_saved_is_what_others_read),
    CASE(R18_an_older_fence_is_refused),
    CASE(R18_the_same_fence_of_another_lease_is_refused),
    CASE(R18_a_save_raises_the_fence_too),
    CASE(R18_a_dead_lease_may_save_while_nobody_was_there_since),
    CASE(R18_any_bytes),
    CASE(R18_nothing_is_something),
    CASE(R18_a_megabyte_and_no_more),
    CASE(R18_a_fence_of_0_seals_nothing),
    CASE(R18_records_outlive_the_session_and_lost_leases),
    CASE(R18_two_records_know_nothing_of_each_other),
};
CONTRACT_TESTS(contract_records);

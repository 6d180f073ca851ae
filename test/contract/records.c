/* SPDX-License-Identifier: MIT */
/* Records (R18, R21, R22, R23). */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void R18_a_record_that_never_existed_is_empty(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__record_op got = load(p, "r");
  expect(got, DIBS_NOT_FOUND);
  assert_null(got.got);
}

static void R18_a_sealed_record_may_be_empty(void **state) {
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

static void R18_other_clients_read_the_saved_data(void **state) {
  (void)state;
  struct party *p = party(), *q = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(seal(p, "r", 1, held.fence), DIBS_OK);
  struct dibs__record_op saved = save(p, "r", 1, held.fence, "one");
  expect(saved, DIBS_OK);
  assert_true(saved.version == 1 || in_doubt(&saved.op) || target()->by_revision);
  struct dibs__record_op again = save(p, "r", 1, held.fence, "two!");
  assert_true(again.version > saved.version);
  if (!in_doubt(&saved.op) && !in_doubt(&again.op) && !target()->by_revision) assert_int_equal(again.version, 2);
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
  advance_past_ttl(p);
  struct dibs__lease_op held = acquire(q, "n", 2);
  /* The seal takes effect before the read. */
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

static void R18_an_ended_lease_may_save_if_nothing_newer_sealed(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(seal(p, "r", 1, held.fence), DIBS_OK);
  advance_past_ttl(p);
  expect(save(p, "r", 1, held.fence, "late but first"), DIBS_OK);
}

static void R18_a_record_may_contain_any_bytes(void **state) {
  (void)state;
  struct party *p = party();
  char bytes[] = "a\0b\xff\x01";
  struct dibs__lease_op held = acquire(p, "n", 1);
  struct dibs__record_op op = save_op("r", 1, held.fence, NULL);
  struct dibs__op *ops[] = {&op.op};
  needs_family(p, DIBS__FAM_RECORD);
  op.data = dibs__str_of(bytes, 5);
  run_batch(p, ops, 1);
  expect(op, DIBS_OK);
  struct dibs__record_op got = load(p, "r");
  assert_int_equal(got.got_len, 5);
  assert_memory_equal(got.got, bytes, 5);
  assert_int_equal(got.got[5], 0);
}

static void R18_empty_data_is_a_record(void **state) {
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

static void R18_a_record_has_at_most_a_megabyte(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  struct dibs__record_op op = save_op("r", 1, held.fence, NULL);
  struct dibs__op *ops[] = {&op.op};
  needs_family(p, DIBS__FAM_RECORD);
  char *big = malloc(DIBS_RECORD_MAX + 1);
  assert_non_null(big);
  free_at_end(big);
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

/* A server may limit what one request carries. */
static void R1_a_batch_may_contain_several_of_the_largest_records(void **state) {
  (void)state;
  static const char *const keys[] = {"r0", "r1", "r2", "r3", "r4"};
  enum { COUNT = sizeof keys / sizeof keys[0] };
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  struct dibs__record_op puts[COUNT];
  struct dibs__op *ops[COUNT];
  needs_family(p, DIBS__FAM_RECORD);
  char *big = malloc(DIBS_RECORD_MAX);
  assert_non_null(big);
  free_at_end(big);
  memset(big, 'x', DIBS_RECORD_MAX);
  for (size_t i = 0; i < COUNT; i++) {
    puts[i] = save_op(keys[i], 1, held.fence, NULL);
    puts[i].data = dibs__str_of(big, DIBS_RECORD_MAX);
    ops[i] = &puts[i].op;
  }
  run_batch(p, ops, COUNT);
  for (size_t i = 0; i < COUNT; i++) expect(puts[i], DIBS_OK);
  for (size_t i = 0; i < COUNT; i++) assert_int_equal(load(p, keys[i]).got_len, DIBS_RECORD_MAX);
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
  close_party(p);
  assert_string_equal(load(q, "r").got, "kept");
  struct dibs__lease_op next = acquire(q, "n", 2);
  if (next.op.status == DIBS_HELD || next.op.status == DIBS__QUEUED)
    return; /* this store lost nothing: the lease is
             * still held */
  struct dibs__record_op got = seal(q, "r", 2, next.fence);
  expect(got, DIBS_OK);
  assert_string_equal(got.got, "kept");
}

static void R18_two_records_are_independent(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op first = acquire(p, "n", 1);
  expect(release(p, "n", 1, first.fence), DIBS_OK);
  struct dibs__lease_op second = acquire(p, "n", 2);
  expect(save(p, "r", 2, second.fence, "r"), DIBS_OK);
  expect(save(p, "s", 1, first.fence, "s"), DIBS_OK);
  expect(load(p, "t"), DIBS_NOT_FOUND);
}

/* ---- Versions (R21, R22, R23) ---- */

struct guarding {
  const char *version; /* IF_VERSION */
  bool absent;
  int id; /* not 0: IF_FENCE with this fence */
  dibs__fence fence;
  const char *data; /* NULL: a removal */
};

static struct dibs__record_op guarded_as(struct party *p, const char *key, struct guarding how) {
  enum dibs__record_verb verb = how.data ? DIBS__RECORD_PUT : DIBS__RECORD_DROP;
  struct dibs__record_op op = record_op(verb, key, how.id, how.fence, how.data);
  struct dibs__op *ops[] = {&op.op};
  needs_family(p, DIBS__FAM_RECORD);
  if (how.version) op.guards |= DIBS__IF_VERSION;
  if (how.version) op.if_version = dibs__str_of(how.version, strlen(how.version));
  if (how.absent) op.guards |= DIBS__IF_ABSENT;
  if (how.id) op.guards |= DIBS__IF_FENCE;
  run_batch(p, ops, 1);
  return op;
}
#define put(p, key, text, ...) guarded_as(p, key, (struct guarding){.data = text, ##__VA_ARGS__})
#define drop(p, key, ...) guarded_as(p, key, (struct guarding){.data = NULL, ##__VA_ARGS__})

/* OK, or, if an answer was lost, the answer of the repetition. */
static void expect_done(struct dibs__record_op op) {
  if (in_doubt(&op.op) && (op.op.status == DIBS_CONFLICT || op.op.status == DIBS_NOT_FOUND)) return;
  expect(op, DIBS_OK);
}

static const char *version_of(struct party *p, const char *key) {
  static char text[24];
  snprintf(text, sizeof text, "%llu", (unsigned long long)load(p, key).version);
  return text;
}

static void R21_the_current_version_is_replaced(void **state) {
  (void)state;
  struct party *p = party(), *q = party();
  expect_done(put(p, "r", "one", .absent = true));
  struct dibs__record_op second = put(q, "r", "two", .version = version_of(q, "r"));
  expect_done(second);
  struct dibs__record_op got = load(p, "r");
  assert_string_equal(got.got, "two");
  assert_int_equal(got.seen.v, 0);
  assert_true(second.op.status != DIBS_OK || second.version == got.version);
}

static struct dibs__record_op put_over(struct party *p, const char *version, const char *content, const char *data) {
  struct dibs__record_op op = record_op(DIBS__RECORD_PUT, "r", 0, DIBS__FENCE_NONE, data);
  struct dibs__op *ops[] = {&op.op};
  op.guards = DIBS__IF_VERSION | DIBS__IF_DIGEST;
  op.if_version = dibs__str_of(version, strlen(version));
  op.if_digest = dibs__record_digest(dibs__str_of(content, strlen(content)));
  needs_family(p, DIBS__FAM_RECORD);
  run_batch(p, ops, 1);
  return op;
}

/* After the restore of a backup the version that was read may have another content. */
static void R21_other_content_of_the_same_version_is_a_conflict(void **state) {
  (void)state;
  struct party *p = party();
  expect_done(put(p, "r", "one", .absent = true));
  char version[24];
  memcpy(version, version_of(p, "r"), sizeof version);
  expect(put_over(p, version, "lost", "two"), DIBS_CONFLICT);
  assert_string_equal(load(p, "r").got, "one");
  expect_done(put_over(p, version, "one", "two"));
  assert_string_equal(load(p, "r").got, "two");
}

static void R21_another_version_is_a_conflict_and_is_reported(void **state) {
  (void)state;
  struct party *p = party();
  expect_done(put(p, "r", "one", .absent = true));
  char old[24];
  memcpy(old, version_of(p, "r"), sizeof old);
  expect_done(put(p, "r", "two", .version = old));
  uint64_t stands = load(p, "r").version;
  struct dibs__record_op late = put(p, "r", "late", .version = old);
  expect(late, DIBS_CONFLICT);
  assert_int_equal(late.version, stands);
  late = drop(p, "r", .version = old);
  expect(late, DIBS_CONFLICT);
  assert_int_equal(late.version, stands);
  expect(put(p, "r", "odd", .version = "first"), DIBS_CONFLICT);
  expect(put(p, "r", "odd", .version = ""), DIBS_CONFLICT);
  assert_string_equal(load(p, "r").got, "two");
}

static void R21_only_an_absent_record_is_created(void **state) {
  (void)state;
  struct party *p = party();
  expect(put(p, "r", "x", .version = "1"), DIBS_NOT_FOUND);
  expect(load(p, "r"), DIBS_NOT_FOUND);
  expect(drop(p, "r"), DIBS_NOT_FOUND);
  expect(drop(p, "r", .version = "0"), DIBS_NOT_FOUND);
  expect_done(put(p, "r", "mine", .absent = true));
  struct dibs__record_op late = put(p, "r", "late", .absent = true);
  expect(late, DIBS_CONFLICT);
  assert_int_equal(late.version, load(p, "r").version);
  expect(put(p, "r", "late", .version = "0"), DIBS_CONFLICT);
  assert_string_equal(load(p, "r").got, "mine");
  expect_done(put(p, "s", "a missing record has version 0", .version = "0"));
}

static void R21_version_and_fence_must_both_hold(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op old = acquire(p, "n", 1);
  advance_past_ttl(p);
  struct dibs__lease_op held = acquire(p, "n", 2);
  expect_done(put(p, "r", "one", .absent = true, .id = 2, .fence = held.fence));
  char version[24];
  memcpy(version, version_of(p, "r"), sizeof version);
  struct dibs__record_op late = put(p, "r", "late", .version = version, .id = 1, .fence = old.fence);
  expect(late, DIBS_STALE);
  assert_int_equal(late.seen.v, held.fence.v);
  expect(put(p, "r", "late", .version = "9999", .id = 1, .fence = old.fence), DIBS_STALE);
  expect(drop(p, "r", .version = version, .id = 1, .fence = old.fence), DIBS_STALE);
  expect(put(p, "r", "late", .version = "9999", .id = 2, .fence = held.fence), DIBS_CONFLICT);
  expect(put(p, "r", "other lease", .version = version, .id = 3, .fence = held.fence), DIBS_STALE);
  assert_string_equal(load(p, "r").got, "one");
  expect_done(put(p, "r", "two", .version = version, .id = 2, .fence = held.fence));
  assert_string_equal(load(p, "r").got, "two");
}

static void R21_a_put_under_a_fence_raises_it(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1, .block = 10);
  expect_done(put(p, "r", "one", .absent = true));
  expect_done(put(p, "r", "two", .id = 1, .fence = (dibs__fence){held.fence.v + 3}));
  assert_int_equal(load(p, "r").seen.v, held.fence.v + 3);
  expect(put(p, "r", "late", .id = 1, .fence = held.fence), DIBS_STALE);
  /* A write without a fence keeps the remembered fence. */
  expect_done(put(p, "r", "three", .version = version_of(p, "r")));
  assert_int_equal(load(p, "r").seen.v, held.fence.v + 3);
  assert_string_equal(load(p, "r").got, "three");
}

static void R21_contradictory_guards_are_invalid(void **state) {
  (void)state;
  struct party *p = party();
  expect(put(p, "r", "x", .version = "1", .absent = true), DIBS_INVALID);
  expect(put(p, "r", "x", .id = 1, .fence = DIBS__FENCE_NONE), DIBS_INVALID);
  expect(drop(p, "r", .absent = true), DIBS_INVALID);
  struct dibs__record_op op = record_op(DIBS__RECORD_PUT, "r", 0, DIBS__FENCE_NONE, "x");
  struct dibs__op *ops[] = {&op.op};
  op.guards = 64;
  run_batch(p, ops, 1);
  expect(op, DIBS_INVALID);
  expect(load(p, "r"), DIBS_NOT_FOUND);
}

static void R22_a_record_created_after_removal_has_a_new_version(void **state) {
  (void)state;
  struct party *p = party();
  expect_done(put(p, "r", "one", .absent = true));
  char old[24];
  memcpy(old, version_of(p, "r"), sizeof old);
  expect_done(drop(p, "r", .version = old));
  struct dibs__record_op got = load(p, "r");
  expect(got, DIBS_NOT_FOUND);
  assert_null(got.got);
  expect(put(p, "r", "late", .version = old), DIBS_NOT_FOUND);
  expect_done(put(p, "r", "again", .absent = true));
  expect(put(p, "r", "late", .version = old), DIBS_CONFLICT);
  expect_done(drop(p, "r", .version = version_of(p, "r")));
  expect(drop(p, "r"), DIBS_NOT_FOUND);
  expect_done(put(p, "r", "", .version = "0"));
  assert_true(load(p, "r").version > 2);
  assert_int_equal(load(p, "r").got_len, 0);
}

static void R23_a_removed_record_remembers_its_fence(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op old = acquire(p, "n", 1);
  advance_past_ttl(p);
  struct dibs__lease_op held = acquire(p, "n", 2);
  expect(save(p, "r", 2, held.fence, "one"), DIBS_OK);
  expect_done(drop(p, "r", .id = 2, .fence = held.fence));
  expect(load(p, "r"), DIBS_NOT_FOUND);
  expect(save(p, "r", 1, old.fence, "late"), DIBS_STALE);
  expect(put(p, "r", "late", .absent = true, .id = 1, .fence = old.fence), DIBS_STALE);
  expect(seal(p, "r", 1, old.fence), DIBS_STALE);
  expect(load(p, "r"), DIBS_NOT_FOUND);
  struct dibs__record_op got = seal(p, "r", 2, held.fence);
  expect(got, DIBS_OK);
  assert_int_equal(got.version, 0);
  assert_null(got.got);
  expect(save(p, "r", 2, held.fence, "again"), DIBS_OK);
  assert_string_equal(load(p, "r").got, "again");
}

static const struct CMUnitTest contract_records_cases[] = {
    CASE(R18_a_record_that_never_existed_is_empty),
    CASE(R18_a_sealed_record_may_be_empty),
    CASE(R18_other_clients_read_the_saved_data),
    CASE(R18_an_older_fence_is_refused),
    CASE(R18_the_same_fence_of_another_lease_is_refused),
    CASE(R18_a_save_raises_the_fence_too),
    CASE(R18_an_ended_lease_may_save_if_nothing_newer_sealed),
    CASE(R18_a_record_may_contain_any_bytes),
    CASE(R18_empty_data_is_a_record),
    CASE(R18_a_record_has_at_most_a_megabyte),
    CASE(R1_a_batch_may_contain_several_of_the_largest_records),
    CASE(R18_a_fence_of_0_seals_nothing),
    CASE(R18_records_outlive_the_session_and_lost_leases),
    CASE(R18_two_records_are_independent),
    CASE(R21_the_current_version_is_replaced),
    CASE(R21_other_content_of_the_same_version_is_a_conflict),
    CASE(R21_another_version_is_a_conflict_and_is_reported),
    CASE(R21_only_an_absent_record_is_created),
    CASE(R21_version_and_fence_must_both_hold),
    CASE(R21_a_put_under_a_fence_raises_it),
    CASE(R21_contradictory_guards_are_invalid),
    CASE(R22_a_record_created_after_removal_has_a_new_version),
    CASE(R23_a_removed_record_remembers_its_fence),
};
CONTRACT_TESTS(contract_records);

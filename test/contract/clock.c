/* SPDX-License-Identifier: MIT */
/* Fences of a store's own buckets: RAISE (R41), ALONE above other fences (R42), a restored backup (R43), blocks ahead
 * of the clock (R44); the same for buckets that another tier served (R58, R59). */
#include "harness.h"

#include <string.h>

static struct dibs__anchor_op raise_bucket(struct party *p, uint16_t bucket, enum dibs__anchor_verb verb,
                                           uint64_t above) {
  struct dibs__anchor_op op = {.op = {.family = DIBS__FAM_ANCHOR, .verb = (uint16_t)verb, .bucket = bucket},
                               .above = {above}};
  struct dibs__op *ops[] = {&op.op};
  run_batch(p, ops, 1);
  return op;
}

/* The fence of a grant of "n", which is released again. */
static uint64_t fence_of(struct party *p, int id) {
  struct dibs__lease_op op = acquire(p, "n", id);
  expect(op, DIBS_OK);
  expect(release(p, "n", id, op.fence), DIBS_OK);
  return op.fence.v;
}

static struct party *own(void) {
  struct party *p = party();
  if (open_as_tier()) skip();
  if (!(p->identity.families & 1u << DIBS__FAM_ANCHOR)) skip();
  if (raise_bucket(p, bucket_of("n"), DIBS__ANCHOR_RAISE, 0).op.status == DIBS_UNSUPPORTED) skip();
  return p;
}

static void R41_a_raised_bucket_continues_above(void **state) {
  (void)state;
  struct party *p = own();
  uint16_t bucket = bucket_of("n");
  uint64_t before = fence_of(p, 1), above = before + (UINT64_C(100) << 32);
  dibs__mandate had = anchor_read(p, bucket).current;
  struct dibs__anchor_op op = raise_bucket(p, bucket, DIBS__ANCHOR_RAISE, above);
  expect(op, DIBS_OK);
  assert_true(op.current.epoch > had.epoch);
  assert_true(fence_of(p, 2) > above);
  /* The bucket is already above it: the next fence follows. */
  expect(raise_bucket(p, bucket, DIBS__ANCHOR_RAISE, before), DIBS_OK);
  assert_true(fence_of(p, 3) > above);
  expect(raise_bucket(p, bucket, DIBS__ANCHOR_RAISE, DIBS__FENCE_MAX + 1), DIBS_INVALID);
  assert_true(fence_of(p, 4) > above);
}

static void R41_a_held_lease_is_lost(void **state) {
  (void)state;
  struct party *p = own();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(held, DIBS_OK);
  struct dibs__lease_op old = lease_op(p, DIBS__RENEW, "n", 1, (struct how){.mode = 0});
  old.fence = held.fence;
  expect(raise_bucket(p, bucket_of("n"), DIBS__ANCHOR_RAISE, 0), DIBS_OK);
  struct dibs__op *ops[] = {&old.op};
  run_batch(p, ops, 1);
  assert_int_equal(old.op.status, DIBS__MOVED);
}

/* Only the anchor decides what such a bucket grants. */
static void R41_a_served_bucket_is_not_raised(void **state) {
  (void)state;
  struct party *p = party();
  if (!open_as_tier() || !(p->identity.families & 1u << DIBS__FAM_ANCHOR)) skip();
  uint16_t bucket = bucket_of("n");
  uint64_t before = fence_of(p, 1);
  expect(raise_bucket(p, bucket, DIBS__ANCHOR_RAISE, before + (UINT64_C(100) << 32)), DIBS_CONFLICT);
  uint64_t after = fence_of(p, 2);
  assert_true(after > before && after >> 32 == before >> 32);
}

static void R42_a_bucket_alone_continues_above_the_others(void **state) {
  (void)state;
  struct party *p = own();
  uint16_t bucket = bucket_of("n");
  uint64_t above = fence_of(p, 1) + (UINT64_C(100) << 32);
  expect(raise_bucket(p, bucket, DIBS__ANCHOR_ALONE, above), DIBS_OK);
  uint64_t then = fence_of(p, 2);
  assert_true(then > above);
  /* It is already above: nothing changes. */
  dibs__mandate has = anchor_read(p, bucket).current;
  expect(raise_bucket(p, bucket, DIBS__ANCHOR_ALONE, above), DIBS_OK);
  dibs__mandate still = anchor_read(p, bucket).current;
  assert_true(dibs__mandate_equal(&has, &still));
  assert_true(fence_of(p, 3) > then);
}

static void R43_a_restored_store_repeats_no_fence(void **state) {
  (void)state;
  if (!target()->restore) skip();
  struct party *p = party(), *q = party();
  uint16_t bucket = bucket_of("n");
  target()->restore(p, bucket, false);
  uint64_t last = 0;
  for (int i = 0; i < 20; i++) last = fence_of(i % 2 ? p : q, i % 4);
  target()->restore(p, bucket, true);
  for (int i = 0; i < 20; i++) {
    uint64_t fence = fence_of(i % 2 ? q : p, i % 4);
    assert_true(fence > last);
    last = fence;
  }
}

static void R44_a_block_does_not_lead_the_clock_by_much(void **state) {
  (void)state;
  if (!target()->restore) skip();
  struct party *p = party();
  int64_t began = p->reported.now.ms;
  uint64_t first = 0, last = 0;
  for (int i = 0; i < 3000; i++) {
    struct dibs__lease_op op = acquire(p, "n", 1, .block = DIBS__BLOCK_MAX);
    expect(op, DIBS_OK);
    assert_true(op.got_block >= 1 && op.fence.v > last);
    if (i == 0) first = op.fence.v, began = p->reported.now.ms;
    last = op.fence.v + op.got_block - 1;
    expect(release(p, "n", 1, op.fence), DIBS_OK);
  }
  uint64_t took = (uint64_t)(p->reported.now.ms - began);
  assert_true(last - first <= (took + 2000) * 1024 + 3000);
}

/* ---- R58, R59: buckets that another tier served, or that were raised ---- */

static dibs__mandate above(dibs__mandate m, uint32_t by) {
  return (dibs__mandate){m.epoch + by, m.incarnation};
}

/* Installs `what` in the bucket and opens it to all clients. */
static void install_and_open(struct party *a, struct party *p, dibs__mandate what) {
  expect(anchor_install(a, bucket_of("n"), what), DIBS_OK);
  expect(anchor_run(a, DIBS__ANCHOR_OPEN, bucket_of("n"), what), DIBS_OK);
  p->mandates[bucket_of("n")] = what;
}

static void R58_moving_there_and_back_uses_few_epochs(void **state) {
  (void)state;
  struct party *a = anchor_of_tiers(), *p = party();
  uint32_t cycles = strcmp(innermost(a)->driver->name, "memory") == 0 ? 1000 : 30;
  uint16_t bucket = bucket_of("n");
  dibs__mandate own = p->mandates[bucket] = anchor_read(a, bucket).current;
  uint64_t last = fence_of(p, 1);
  uint32_t first = anchor_has(a, bucket).epoch;
  for (uint32_t i = 0; i < cycles; i++) {
    expect(anchor_run(a, DIBS__ANCHOR_LEAVE, bucket_of("n"), own), DIBS_OK);
    own = above(anchor_has(a, bucket), 2); /* one for the other tier, one for the return */
    install_and_open(a, p, own);
    uint64_t fence = fence_of(p, 1);
    assert_true(fence > last);
    last = fence;
  }
  uint32_t used = anchor_has(a, bucket).epoch - first;
  if (used > 2 * cycles + 1) fail_msg("%u moves to another tier and back used %u epochs", cycles, used);
}

/* A fence that the bucket draws from now on is not drawn a second time after its row is restored. */
static void restored_row_repeats_no_fence(struct party *p) {
  uint16_t bucket = bucket_of("n");
  uint64_t last = 0;
  target()->restore(p, bucket, false);
  for (int i = 0; i < 20; i++) last = fence_of(p, 1);
  target()->restore(p, bucket, true);
  for (int i = 0; i < 20; i++) {
    uint64_t fence = fence_of(p, 1);
    assert_true(fence > last);
    last = fence;
  }
}

static void R59_an_opened_bucket_repeats_no_fence(void **state) {
  (void)state;
  if (!target()->restore) skip();
  struct party *a = anchor_of_tiers(), *p = party();
  uint16_t bucket = bucket_of("n");
  dibs__mandate what = a->mandates[bucket] = above(anchor_has(a, bucket), 4);
  expect(anchor_install(a, bucket, what), DIBS_OK);
  /* Ahead of the clock for a while. */
  for (int i = 0; i < 300; i++) {
    struct dibs__lease_op op = acquire(a, "n", 2, .block = DIBS__BLOCK_MAX);
    expect(op, DIBS_OK);
    expect(release(a, "n", 2, op.fence), DIBS_OK);
  }
  expect(anchor_run(a, DIBS__ANCHOR_OPEN, bucket_of("n"), what), DIBS_OK);
  p->mandates[bucket] = what;
  restored_row_repeats_no_fence(p);
}

static void R59_a_raised_bucket_repeats_no_fence(void **state) {
  (void)state;
  if (!target()->restore) skip();
  struct party *p = party();
  uint16_t bucket = bucket_of("n");
  uint64_t least = fence_of(p, 1) + (UINT64_C(100) << 32);
  struct dibs__anchor_op op = raise_bucket(p, bucket, DIBS__ANCHOR_RAISE, least);
  expect(op, DIBS_OK);
  p->mandates[bucket] = op.current;
  uint64_t fence = fence_of(p, 1);
  assert_true(fence > least && fence - least < UINT64_C(2) << 32);
  restored_row_repeats_no_fence(p);
}

/* The restored row is below the last fence that was drawn; the clock makes up the difference. */
static void R59_a_restored_bucket_is_raised_above_all(void **state) {
  (void)state;
  if (!target()->restore || !target()->skew) skip();
  struct party *a = anchor_of_tiers(), *p = party();
  uint16_t bucket = bucket_of("n");
  install_and_open(a, p, above(anchor_has(a, bucket), 2));
  (void)fence_of(p, 1);
  target()->restore(p, bucket, false);
  advance_time(p, 3 * 3600 * 1000);
  uint64_t last = fence_of(p, 1);
  target()->restore(p, bucket, true);
  struct dibs__anchor_op op = raise_bucket(p, bucket, DIBS__ANCHOR_RAISE, 0);
  expect(op, DIBS_OK);
  p->mandates[bucket] = op.current;
  assert_true(fence_of(p, 1) > last);
}

static const struct CMUnitTest contract_clock_cases[] = {
    CASE(R41_a_raised_bucket_continues_above),         CASE(R41_a_held_lease_is_lost),
    CASE(R41_a_served_bucket_is_not_raised),           CASE(R42_a_bucket_alone_continues_above_the_others),
    CASE(R43_a_restored_store_repeats_no_fence),       CASE(R44_a_block_does_not_lead_the_clock_by_much),
    SERVED(R58_moving_there_and_back_uses_few_epochs), SERVED(R59_an_opened_bucket_repeats_no_fence),
    SERVED(R59_a_raised_bucket_repeats_no_fence),      SERVED(R59_a_restored_bucket_is_raised_above_all),
};
CONTRACT_TESTS(contract_clock);

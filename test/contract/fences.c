/* SPDX-License-Identifier: MIT */
/* Mandates (R5), growing fences and their blocks (R10). */
#include "harness.h"

#include <stdio.h>
#include <string.h>

static dibs__fence fence(uint64_t v) {
  return (dibs__fence){v};
}

/* Runs one operation unchanged, without following the mandate. */
static dibs__status send_request(struct party *p, struct dibs__lease_op *op) {
  struct dibs__op *ops[] = {&op->op};
  run_batch(p, ops, 1);
  return op->op.status;
}

/* ---- R5 ---- */

static void refused_under(struct party *p, dibs__mandate wrong, dibs__fence held) {
  dibs__mandate stands = anchor_read(p, bucket_of("n")).current;
  for (int verb = DIBS__ACQUIRE; verb <= DIBS__BREAK; verb++) {
    int id = verb == DIBS__ACQUIRE ? 2 : 1;
    struct dibs__lease_op op = lease_op(p, (enum dibs__lease_verb)verb, "n", id, (struct how){.now = true});
    op.fence = held;
    op.op.mandate = wrong;
    assert_int_equal(send_request(p, &op), DIBS__MOVED);
    assert_true(dibs__mandate_equal(&op.op.has, &stands));
  }
}

static void R5_another_mandate_gets_the_current_one_and_changes_nothing(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  dibs__mandate stands = anchor_read(p, bucket_of("n")).current, wrong = stands;
  assert_true(stands.epoch > 0);
  wrong.epoch++;
  refused_under(p, wrong, held.fence);
  wrong = stands;
  wrong.epoch = 0;
  refused_under(p, wrong, held.fence);
  wrong = stands;
  wrong.incarnation.b[19] ^= 1;
  refused_under(p, wrong, held.fence);
  /* Nothing changed: the name is held as before and has no waiter. */
  struct dibs__lease_op again = acquire(p, "n", 1);
  expect(again, DIBS_OK);
  assert_int_equal(again.until.ms, held.until.ms);
  assert_false(again.waiting);
  expect(cancel(p, "n", 2), DIBS_NOT_FOUND);
}

static void R5_the_next_epoch_shuts_out_the_last_one(void **state) {
  (void)state;
  needs(DIBS__CAP_ANCHOR);
  struct party *p = party();
  uint16_t bucket = bucket_of("n");
  struct dibs__lease_op held = acquire(p, "n", 1);
  dibs__mandate before = anchor_read(p, bucket).current;
  struct dibs__anchor_op next = anchor_next(p, bucket, before);
  expect(next, DIBS_OK);
  if (target()->strides)
    assert_true(next.current.epoch > before.epoch);
  else
    assert_int_equal(next.current.epoch, before.epoch + 1);
  assert_memory_equal(next.current.incarnation.b, before.incarnation.b, sizeof before.incarnation.b);
  struct dibs__lease_op old = lease_op(p, DIBS__RENEW, "n", 1, (struct how){.mode = 0});
  old.fence = held.fence;
  old.op.mandate = before;
  assert_int_equal(send_request(p, &old), DIBS__MOVED);
  assert_true(dibs__mandate_equal(&old.op.has, &next.current));
  /* The store keeps its memory: the lease is still held and is renewed under the new mandate. */
  expect(acquire(p, "n", 2, .try_only = true), DIBS_HELD);
  expect(renew(p, "n", 1, held.fence), DIBS_OK);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  struct dibs__lease_op later = acquire(p, "n", 2);
  expect(later, DIBS_OK);
  assert_true(dibs__fence_below(held.fence, later.fence));
}

static void R5_the_next_epoch_is_created_once(void **state) {
  (void)state;
  needs(DIBS__CAP_ANCHOR);
  struct party *p = party(), *q = party();
  dibs__mandate before = anchor_read(p, 7).current;
  struct dibs__anchor_op first = anchor_next(p, 7, before), second = anchor_next(q, 7, before);
  expect(first, DIBS_OK);
  expect(second, DIBS_CONFLICT);
  assert_true(dibs__mandate_equal(&first.current, &second.current));
  struct dibs__anchor_op read = anchor_read(q, 7);
  assert_true(dibs__mandate_equal(&first.current, &read.current));
  dibs__mandate stranger = first.current;
  stranger.incarnation.b[0] ^= 0x80;
  expect(anchor_next(p, 7, stranger), DIBS_CONFLICT);
}

static void R5_a_bucket_has_a_mandate_of_its_own(void **state) {
  (void)state;
  needs(DIBS__CAP_ANCHOR);
  struct party *p = party();
  dibs__mandate seven = anchor_read(p, 7).current, eight = anchor_read(p, 8).current;
  expect(anchor_next(p, 7, seven), DIBS_OK);
  dibs__mandate still = anchor_read(p, 8).current;
  assert_true(dibs__mandate_equal(&still, &eight));
}

static void R5_the_hints_of_connect_are_valid(void **state) {
  (void)state;
  struct party *p = party();
  static const dibs__incarnation unknown;
  if (p->identity.mandate.epoch == 0) skip();
  dibs__mandate stands = anchor_read(p, 0).current;
  if (memcmp(&p->identity.mandate.incarnation, &unknown, sizeof unknown) == 0) {
    for (int i = 0; i < 30; i++) { /* names of many buckets */
      char name[16];
      snprintf(name, sizeof name, "n%d", i);
      struct dibs__lease_op op = lease_op(p, DIBS__ACQUIRE, name, 1, (struct how){.mode = 0});
      op.op.mandate = p->identity.mandate;
      assert_int_equal(send_request(p, &op), DIBS_OK);
    }
    return;
  }
  assert_true(dibs__mandate_equal(&stands, &p->identity.mandate));
}

static void R5_other_buckets_do_not_exist(void **state) {
  (void)state;
  struct party *p = party();
  expect(anchor_read(p, DIBS__BUCKETS), DIBS_INVALID);
  struct dibs__lease_op op = lease_op(p, DIBS__ACQUIRE, "n", 1, (struct how){.mode = 0});
  op.op.bucket = DIBS__BUCKETS;
  assert_int_equal(send_request(p, &op), DIBS_INVALID);
}

/* ---- R10 ---- */

static void R10_fences_grow_with_each_grant(void **state) {
  (void)state;
  struct party *p = party(), *q = party();
  dibs__fence last = DIBS__FENCE_NONE;
  for (int i = 0; i < 20; i++) {
    struct party *who = i % 2 ? p : q;
    struct dibs__lease_op op = acquire(who, "n", i % 3);
    expect(op, DIBS_OK);
    assert_true(dibs__fence_below(last, op.fence));
    assert_true(op.fence.v < UINT64_C(1) << 53);
    assert_int_equal(op.got_block, 1);
    last = op.fence;
    expect(release(who, "n", i % 3, op.fence), DIBS_OK);
  }
}

static void R10_fences_grow_across_expiry(void **state) {
  (void)state;
  struct party *p = party(), *q = party();
  struct dibs__lease_op first = acquire(p, "n", 1);
  advance_past_ttl(p);
  struct dibs__lease_op same = acquire(p, "n", 1), other;
  expect(same, DIBS_OK);
  assert_true(dibs__fence_below(first.fence, same.fence));
  advance_past_ttl(p);
  other = acquire(q, "n", 2);
  expect(other, DIBS_OK);
  assert_true(dibs__fence_below(same.fence, other.fence));
}

static void R10_fences_grow_across_closing_the_store(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op first = acquire(p, "n", 1, .block = 10);
  assert_int_equal(first.got_block, p->identity.caps & DIBS__CAP_BLOCKS ? 10 : 1);
  expect(release(p, "n", 1, first.fence), DIBS_OK);
  close_party(p);
  struct party *q = party();
  struct dibs__lease_op second = acquire(q, "n", 2);
  expect(second, DIBS_OK);
  assert_true(second.fence.v >= first.fence.v + first.got_block);
}

static void R10_fences_grow_when_the_memory_is_lost(void **state) {
  (void)state;
  if (!target()->forget) skip();
  struct party *p = party();
  struct dibs__lease_op first = acquire(p, "n", 1, .block = 100);
  dibs__mandate before = anchor_read(p, bucket_of("n")).current;
  target()->forget(innermost(p));
  struct dibs__lease_op old = lease_op(p, DIBS__RENEW, "n", 1, (struct how){.mode = 0});
  old.fence = first.fence;
  old.op.mandate = before;
  assert_int_equal(send_request(p, &old), DIBS__MOVED);
  assert_int_not_equal(memcmp(old.op.has.incarnation.b, before.incarnation.b, sizeof before.incarnation.b), 0);
  assert_true(old.op.has.epoch > before.epoch);
  expect(renew(p, "n", 1, first.fence), DIBS_LOST);
  struct dibs__lease_op second = acquire(p, "n", 2, .try_only = true);
  expect(second, DIBS_OK);
  assert_true(second.fence.v >= first.fence.v + 100);
}

static void R10_a_whole_block_counts_as_used(void **state) {
  (void)state;
  needs(DIBS__CAP_BLOCKS);
  struct party *p = party();
  struct dibs__lease_op first = acquire(p, "n", 1, .block = 64);
  expect(first, DIBS_OK);
  assert_int_equal(first.got_block, 64);
  expect(release(p, "n", 1, first.fence), DIBS_OK);
  struct dibs__lease_op second = acquire(p, "n", 2);
  assert_true(second.fence.v >= first.fence.v + 64);
}

static void R10_a_block_is_bounded(void **state) {
  (void)state;
  needs(DIBS__CAP_BLOCKS);
  struct party *p = party();
  struct dibs__lease_op op = acquire(p, "n", 1, .block = DIBS__BLOCK_MAX * 5);
  expect(op, DIBS_OK);
  assert_int_equal(op.got_block, DIBS__BLOCK_MAX);
}

static void R10_any_fence_of_the_block_renews_and_releases(void **state) {
  (void)state;
  needs(DIBS__CAP_BLOCKS);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1, .block = 10);
  struct dibs__lease_op renewed = renew(p, "n", 1, fence(held.fence.v + 9));
  expect(renewed, DIBS_OK);
  assert_int_equal(renewed.fence.v, held.fence.v);
  assert_int_equal(renewed.got_block, 10);
  expect(renew(p, "n", 1, fence(held.fence.v + 10)), DIBS_LOST);
  expect(renew(p, "n", 1, fence(held.fence.v - 1)), DIBS_LOST);
  expect(release(p, "n", 1, fence(held.fence.v + 10)), DIBS_LOST);
  expect(release(p, "n", 1, fence(held.fence.v + 5)), DIBS_OK);
}

static void R10_a_renewal_draws_a_new_block(void **state) {
  (void)state;
  needs(DIBS__CAP_BLOCKS);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1, .block = 4);
  struct dibs__lease_op other = acquire(p, "other", 2, .block = 4);
  expect(other, DIBS_OK);
  struct dibs__lease_op renewed = renew(p, "n", 1, held.fence, .block = 16);
  expect(renewed, DIBS_OK);
  assert_int_equal(renewed.got_block, 16);
  assert_true(renewed.fence.v >= held.fence.v + 4);
  /* A handle of this process that still has a fence of the first block holds the lease, too. */
  expect(renew(p, "n", 1, fence(held.fence.v + 1)), DIBS_OK);
  struct dibs__lease_op again = acquire(p, "n", 1);
  assert_int_equal(again.fence.v, renewed.fence.v);
  assert_int_equal(again.got_block, 16);
  expect(renew(p, "n", 1, fence(renewed.fence.v + 16)), DIBS_LOST);
  expect(release(p, "n", 1, fence(renewed.fence.v + 15)), DIBS_OK);
  struct dibs__lease_op next = acquire(p, "n", 3);
  assert_true(next.fence.v >= renewed.fence.v + 16);
}

static void R10_shared_and_counted_have_no_fence(void **state) {
  (void)state;
  struct party *p = party();
  if (p->identity.caps & DIBS__CAP_SHARED) {
    struct dibs__lease_op op = acquire(p, "s", 1, .mode = DIBS_SHARED, .block = 9);
    expect(op, DIBS_OK);
    assert_int_equal(op.fence.v, 0);
    assert_int_equal(op.got_block, 0);
    op = renew(p, "s", 1, DIBS__FENCE_NONE, .block = 9);
    expect(op, DIBS_OK);
    assert_int_equal(op.fence.v, 0);
    assert_int_equal(op.got_block, 0);
  }
  if (p->identity.caps & DIBS__CAP_COUNTED) {
    struct dibs__lease_op op = acquire(p, "c", 1, .mode = DIBS_COUNTED, .slots = 2, .block = 9);
    expect(op, DIBS_OK);
    assert_int_equal(op.fence.v, 0);
    assert_int_equal(op.got_block, 0);
  }
}

static void R10_fences_grow_across_modes(void **state) {
  (void)state;
  needs(DIBS__CAP_SHARED);
  struct party *p = party();
  struct dibs__lease_op first = acquire(p, "n", 1);
  expect(release(p, "n", 1, first.fence), DIBS_OK);
  expect(acquire(p, "n", 2, .mode = DIBS_SHARED), DIBS_OK);
  expect(release(p, "n", 2, DIBS__FENCE_NONE), DIBS_OK);
  struct dibs__lease_op second = acquire(p, "n", 3);
  assert_true(dibs__fence_below(first.fence, second.fence));
}

static void R10_a_used_up_epoch_is_followed_by_the_next(void **state) {
  (void)state;
  if (!target()->use_up || target()->clocked) skip();
  struct party *p = party();
  uint16_t bucket = bucket_of("n");
  target()->use_up(p, bucket, 5);
  struct dibs__lease_op held = acquire(p, "n", 1, .block = 3);
  expect(held, DIBS_OK);
  dibs__mandate before = anchor_read(p, bucket).current;
  struct dibs__lease_op spent = lease_op(p, DIBS__RENEW, "n", 1, (struct how){.block = 3});
  spent.fence = held.fence;
  assert_int_equal(send_request(p, &spent), DIBS__MOVED);
  assert_int_equal(spent.op.has.epoch, before.epoch + 1);
  struct dibs__lease_op renewed = renew(p, "n", 1, held.fence, .block = 3);
  expect(renewed, DIBS_OK);
  assert_true(renewed.fence.v >= held.fence.v + 3);
  assert_int_equal(dibs__fence_epoch(renewed.fence), before.epoch + 1);
}

static void R10_a_spent_epoch_grants_nothing(void **state) {
  (void)state;
  if (!target()->use_up || target()->clocked) skip();
  struct party *p = party();
  target()->use_up(p, bucket_of("n"), 0);
  struct dibs__lease_op spent = lease_op(p, DIBS__ACQUIRE, "n", 1, (struct how){.mode = 0});
  assert_int_equal(send_request(p, &spent), DIBS__MOVED);
  expect(cancel(p, "n", 1), DIBS_NOT_FOUND);
  expect(acquire(p, "n", 2, .try_only = true), DIBS_OK);
}

/* ---- R96 ---- */

static void R96_fences_grow_across_the_names_of_a_bucket(void **state) {
  (void)state;
  needs(DIBS__CAP_COUNTED);
  struct party *p = party();
  if (p->identity.caps & DIBS__CAP_FENCES_APART) skip();
  uint64_t last = 0;
  char name[24];
  for (int i = 0, found = 0; found < 6; i++) {
    snprintf(name, sizeof name, "lane-%d", i);
    if (bucket_of(name) != bucket_of("lane-0")) continue;
    struct dibs__lease_op held = acquire(p, name, ++found);
    expect(held, DIBS_OK);
    assert_true(held.fence.v > last);
    last = held.fence.v;
    if (found == 1) expect(release(p, name, found, held.fence), DIBS_OK);
  }
  /* The first name again, after others were granted. */
  struct dibs__lease_op again = acquire(p, "lane-0", 7);
  expect(again, DIBS_OK);
  assert_true(again.fence.v > last);
}

static const struct CMUnitTest contract_fences_cases[] = {
    CASE(R5_another_mandate_gets_the_current_one_and_changes_nothing),
    CASE(R5_the_next_epoch_shuts_out_the_last_one),
    CASE(R5_the_next_epoch_is_created_once),
    CASE(R5_a_bucket_has_a_mandate_of_its_own),
    CASE(R5_the_hints_of_connect_are_valid),
    CASE(R5_other_buckets_do_not_exist),
    CASE(R10_fences_grow_with_each_grant),
    CASE(R10_fences_grow_across_expiry),
    CASE(R10_fences_grow_across_closing_the_store),
    CASE(R10_fences_grow_when_the_memory_is_lost),
    CASE(R10_a_whole_block_counts_as_used),
    CASE(R10_a_block_is_bounded),
    CASE(R10_any_fence_of_the_block_renews_and_releases),
    CASE(R10_a_renewal_draws_a_new_block),
    CASE(R10_shared_and_counted_have_no_fence),
    CASE(R10_fences_grow_across_modes),
    CASE(R10_a_used_up_epoch_is_followed_by_the_next),
    CASE(R10_a_spent_epoch_grants_nothing),
    CASE(R96_fences_grow_across_the_names_of_a_bucket),
};
CONTRACT_TESTS(contract_fences);

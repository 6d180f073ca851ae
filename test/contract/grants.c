/* SPDX-License-Identifier: MIT */
/* Who may hold at once (R8, R9), and asking again (R2). */
#include "harness.h"

/* ---- R2 ---- */

static void R2_a_repeated_acquire_finds_its_grant(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op first = acquire(p, "n", 1, .block = 8);
  expect(first, DIBS_OK);
  pass(p, 60);
  struct dibs__lease_op again = acquire(p, "n", 1, .block = 3);
  expect(again, DIBS_OK);
  assert_int_equal(again.fence.v, first.fence.v);
  assert_int_equal(again.got_block, first.got_block);
  assert_int_equal(again.until.ms, first.until.ms);
}

static void R2_a_repeated_shared_acquire_counts_once(void **state) {
  (void)state;
  needs(DIBS__CAP_SHARED);
  struct party *p = party();
  struct dibs__lease_op first = acquire(p, "n", 1, .mode = DIBS_SHARED);
  struct dibs__lease_op again = acquire(p, "n", 1, .mode = DIBS_SHARED);
  expect(again, DIBS_OK);
  assert_int_equal(again.until.ms, first.until.ms);
  expect(release(p, "n", 1, DIBS__FENCE_NONE), DIBS_OK);
  expect(acquire(p, "n", 2), DIBS_OK);
}

static void R2_a_repeated_counted_acquire_keeps_its_slot(void **state) {
  (void)state;
  needs(DIBS__CAP_COUNTED);
  struct party *p = party();
  expect(acquire(p, "n", 1, .mode = DIBS_COUNTED, .slots = 2), DIBS_OK);
  struct dibs__lease_op second = acquire(p, "n", 2, .mode = DIBS_COUNTED, .slots = 2);
  struct dibs__lease_op again = acquire(p, "n", 2, .mode = DIBS_COUNTED, .slots = 2);
  assert_int_equal(second.slot, 1);
  expect(again, DIBS_OK);
  assert_int_equal(again.slot, 1);
  expect(acquire(p, "n", 3, .mode = DIBS_COUNTED, .slots = 2, .try_only = true), DIBS_HELD);
}

static void R2_another_session_finds_the_grant_by_its_id(void **state) {
  (void)state;
  needs_rows();
  struct party *p = party(), *q = party();
  struct dibs__lease_op first = acquire(p, "n", 1);
  struct dibs__lease_op again = acquire(q, "n", 1);
  expect(again, DIBS_OK);
  assert_int_equal(again.fence.v, first.fence.v);
  expect(release(q, "n", 1, again.fence), DIBS_OK);
  expect(renew(p, "n", 1, first.fence), DIBS_LOST);
}

static void R2_a_repeated_wait_keeps_its_ticket_and_place(void **state) {
  (void)state;
  needs(DIBS__CAP_FIFO);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  struct dibs__lease_op second = acquire(p, "n", 2), third = acquire(p, "n", 3);
  expect(second, DIBS__QUEUED);
  expect(third, DIBS__QUEUED);
  struct dibs__lease_op again = acquire(p, "n", 2, .ticket = second.ticket);
  expect(again, DIBS__QUEUED);
  assert_int_equal(again.ticket, second.ticket);
  /* Who lost its answer knows no ticket, and its re-check does not say `queue`. */
  again = acquire(p, "n", 2, .try_only = true);
  expect(again, DIBS__QUEUED);
  assert_int_equal(again.ticket, second.ticket);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  expect(acquire(p, "n", 3, .ticket = third.ticket), DIBS__QUEUED);
  expect(acquire(p, "n", 2, .ticket = second.ticket), DIBS_OK);
}

static void R2_a_repeated_confirm_finds_the_lease(void **state) {
  (void)state;
  needs(DIBS__CAP_FIFO);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  struct dibs__lease_op waits = acquire(p, "n", 2);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  struct dibs__lease_op got = acquire(p, "n", 2, .ticket = waits.ticket, .block = 4);
  struct dibs__lease_op again = acquire(p, "n", 2, .ticket = waits.ticket, .block = 4);
  expect(again, DIBS_OK);
  assert_int_equal(again.fence.v, got.fence.v);
  assert_int_equal(again.got_block, 4);
  assert_int_equal(again.until.ms, got.until.ms);
}

static void R2_one_id_with_two_names_is_two_leases(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op one = acquire(p, "one", 1), two = acquire(p, "two", 1);
  expect(one, DIBS_OK);
  expect(two, DIBS_OK);
  expect(release(p, "one", 1, one.fence), DIBS_OK);
  expect(renew(p, "two", 1, two.fence), DIBS_OK);
}

/* ---- R8 ---- */

static void R8_a_lease_ends_at_until_by_the_stores_clock(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect_until(p, &held, ttl());
  pass(p, ttl() / 2);
  expect(acquire(p, "n", 2, .try_only = true), DIBS_HELD);
  pass(p, held.until.ms - store_now(p) + target()->slack_ms);
  assert_true(store_now(p) >= held.until.ms);
  expect(acquire(p, "n", 2, .try_only = true), DIBS_OK);
}

static void R8_the_clock_never_goes_back(void **state) {
  (void)state;
  struct party *p = party(), *q = party();
  int64_t last = store_now(p);
  for (int i = 0; i < 50; i++) {
    int64_t now = store_now(i % 2 ? p : q);
    assert_true(now >= last);
    last = now;
  }
}

static void R8_renewal_counts_from_the_stores_now(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  pass(p, ttl() / 2);
  struct dibs__lease_op renewed = renew(p, "n", 1, held.fence);
  expect(renewed, DIBS_OK);
  expect_until(p, &renewed, ttl());
  pass(p, ttl() * 3 / 4);
  expect(acquire(p, "n", 2, .try_only = true), DIBS_HELD);
  /* Also to less than there was. */
  renewed = renew(p, "n", 1, held.fence, .ttl = ttl() / 8);
  expect(renewed, DIBS_OK);
  pass(p, ttl() / 8 + 1 + target()->slack_ms);
  expect(acquire(p, "n", 2, .try_only = true), DIBS_OK);
}

static void R8_a_refusal_says_when_to_look_again(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  struct dibs__lease_op refused = acquire(p, "n", 2, .try_only = true);
  expect(refused, DIBS_HELD);
  assert_in_range(refused.recheck.ms, held.until.ms, held.until.ms + target()->slack_ms);
  struct dibs__lease_op waits = acquire(p, "n", 3);
  /* Who is told of nothing looks sooner. */
  if (waits.op.status == DIBS__QUEUED && has_cap(DIBS__CAP_EVENTS))
    assert_in_range(waits.recheck.ms, held.until.ms, held.until.ms + target()->slack_ms);
}

static void R8_the_first_of_several_ends_is_told(void **state) {
  (void)state;
  needs(DIBS__CAP_SHARED);
  struct party *p = party();
  struct dibs__lease_op slow = acquire(p, "n", 1, .mode = DIBS_SHARED, .ttl = ttl());
  struct dibs__lease_op quick = acquire(p, "n", 2, .mode = DIBS_SHARED, .ttl = ttl() / 2);
  struct dibs__lease_op refused = acquire(p, "n", 3, .try_only = true);
  assert_int_equal(refused.recheck.ms, quick.until.ms);
  expect(release(p, "n", 2, DIBS__FENCE_NONE), DIBS_OK);
  refused = acquire(p, "n", 3, .try_only = true);
  assert_int_equal(refused.recheck.ms, slow.until.ms);
  struct dibs__lease_op renewed = renew(p, "n", 1, DIBS__FENCE_NONE, .ttl = ttl() * 2);
  refused = acquire(p, "n", 3, .try_only = true);
  assert_int_equal(refused.recheck.ms, renewed.until.ms);
}

/* ---- R9 ---- */

static void R9_one_exclusive_holder(void **state) {
  (void)state;
  struct party *p = party(), *q = party();
  expect(acquire(p, "n", 1), DIBS_OK);
  expect(acquire(p, "n", 2, .try_only = true), DIBS_HELD);
  expect(acquire(q, "n", 3, .try_only = true), DIBS_HELD);
  expect(acquire(q, "other", 4, .try_only = true), DIBS_OK);
}

static void R9_a_refused_try_leaves_nothing_behind(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(p, "n", 2, .try_only = true), DIBS_HELD);
  expect(cancel(p, "n", 2), DIBS_NOT_FOUND);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  expect(acquire(p, "n", 3, .try_only = true), DIBS_OK);
}

static void R9_shared_holders_together_and_nobody_else(void **state) {
  (void)state;
  needs(DIBS__CAP_SHARED);
  struct party *p = party(), *q = party();
  for (int i = 1; i <= 10; i++) expect(acquire(i % 2 ? p : q, "n", i, .mode = DIBS_SHARED), DIBS_OK);
  expect(acquire(p, "n", 11, .try_only = true), DIBS_HELD);
  if (p->identity.caps & DIBS__CAP_COUNTED)
    expect(acquire(p, "n", 12, .mode = DIBS_COUNTED, .slots = 100, .try_only = true), DIBS_HELD);
  for (int i = 1; i <= 9; i++) expect(release(i % 2 ? p : q, "n", i, DIBS__FENCE_NONE), DIBS_OK);
  expect(acquire(p, "n", 11, .try_only = true), DIBS_HELD);
  expect(release(q, "n", 10, DIBS__FENCE_NONE), DIBS_OK);
  expect(acquire(p, "n", 11, .try_only = true), DIBS_OK);
  expect(acquire(p, "n", 13, .mode = DIBS_SHARED, .try_only = true), DIBS_HELD);
}

static void R9_counted_up_to_its_slots(void **state) {
  (void)state;
  needs(DIBS__CAP_COUNTED);
  struct party *p = party(), *q = party();
  for (int i = 0; i < 3; i++) {
    struct dibs__lease_op op = acquire(i % 2 ? p : q, "n", i, .mode = DIBS_COUNTED, .slots = 3);
    expect(op, DIBS_OK);
    assert_int_equal(op.slot, i);
  }
  expect(acquire(p, "n", 3, .mode = DIBS_COUNTED, .slots = 3, .try_only = true), DIBS_HELD);
  expect(acquire(p, "n", 4, .try_only = true), DIBS_HELD);
  if (p->identity.caps & DIBS__CAP_SHARED) expect(acquire(p, "n", 5, .mode = DIBS_SHARED, .try_only = true), DIBS_HELD);
}

static void R9_the_smallest_free_slot_is_given(void **state) {
  (void)state;
  needs(DIBS__CAP_COUNTED);
  struct party *p = party();
  for (int i = 0; i < 5; i++) expect(acquire(p, "n", i, .mode = DIBS_COUNTED, .slots = 70), DIBS_OK);
  expect(release(p, "n", 3, DIBS__FENCE_NONE), DIBS_OK);
  expect(release(p, "n", 1, DIBS__FENCE_NONE), DIBS_OK);
  assert_int_equal(acquire(p, "n", 10, .mode = DIBS_COUNTED, .slots = 70).slot, 1);
  assert_int_equal(acquire(p, "n", 11, .mode = DIBS_COUNTED, .slots = 70).slot, 3);
  for (int i = 5; i < 70; i++) assert_int_equal(acquire(p, "n", 20 + i, .mode = DIBS_COUNTED, .slots = 70).slot, i);
  expect(acquire(p, "n", 100, .mode = DIBS_COUNTED, .slots = 70, .try_only = true), DIBS_HELD);
}

static void R9_an_expired_slot_is_given_again(void **state) {
  (void)state;
  needs(DIBS__CAP_COUNTED);
  struct party *p = party();
  expect(acquire(p, "n", 1, .mode = DIBS_COUNTED, .slots = 2, .ttl = ttl() / 2), DIBS_OK);
  expect(acquire(p, "n", 2, .mode = DIBS_COUNTED, .slots = 2, .ttl = ttl() * 2), DIBS_OK);
  pass(p, ttl() / 2 + 1);
  struct dibs__lease_op op = acquire(p, "n", 3, .mode = DIBS_COUNTED, .slots = 2);
  expect(op, DIBS_OK);
  assert_int_equal(op.slot, 0);
  expect(acquire(p, "n", 4, .mode = DIBS_COUNTED, .slots = 2, .try_only = true), DIBS_HELD);
}

static void R9_another_number_of_slots_is_invalid(void **state) {
  (void)state;
  needs(DIBS__CAP_COUNTED);
  struct party *p = party();
  expect(acquire(p, "n", 1, .mode = DIBS_COUNTED, .slots = 3), DIBS_OK);
  expect(acquire(p, "n", 2, .mode = DIBS_COUNTED, .slots = 4), DIBS_INVALID);
  expect(acquire(p, "n", 2, .mode = DIBS_COUNTED, .slots = 4, .try_only = true), DIBS_INVALID);
  expect(cancel(p, "n", 2), DIBS_NOT_FOUND);
  expect(acquire(p, "n", 2, .mode = DIBS_COUNTED, .slots = 3), DIBS_OK);
  expect(release(p, "n", 1, DIBS__FENCE_NONE), DIBS_OK);
  expect(release(p, "n", 2, DIBS__FENCE_NONE), DIBS_OK);
  expect(acquire(p, "n", 3, .mode = DIBS_COUNTED, .slots = 4), DIBS_OK);
}

static void R9_an_offer_counts_as_a_holder(void **state) {
  (void)state;
  needs(DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  struct dibs__lease_op refused = acquire(p, "n", 3, .try_only = true);
  expect(refused, DIBS_HELD);
  assert_true(refused.recheck.ms > 0 && refused.recheck.ms <= p->said.now.ms + DIBS__OFFER_MS);
  expect(acquire(p, "n", 2), DIBS_OK);
}

static void R9_counted_offers_take_up_room(void **state) {
  (void)state;
  needs(DIBS__CAP_COUNTED | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
  struct party *p = party();
  expect(acquire(p, "n", 1, .mode = DIBS_COUNTED, .slots = 2), DIBS_OK);
  expect(acquire(p, "n", 2, .mode = DIBS_COUNTED, .slots = 2), DIBS_OK);
  expect(acquire(p, "n", 3, .mode = DIBS_COUNTED, .slots = 2), DIBS__QUEUED);
  expect(release(p, "n", 1, DIBS__FENCE_NONE), DIBS_OK);
  expect(acquire(p, "n", 4, .mode = DIBS_COUNTED, .slots = 2, .try_only = true), DIBS_HELD);
  struct dibs__lease_op op = acquire(p, "n", 3, .mode = DIBS_COUNTED, .slots = 2);
  expect(op, DIBS_OK);
  assert_int_equal(op.slot, 0);
}

static void R9_what_is_not_an_operation_is_invalid(void **state) {
  (void)state;
  struct party *p = party();
  expect(acquire(p, "n", 1, .mode = 9), DIBS_INVALID);
  expect(acquire(p, "n", 1, .mode = DIBS_COUNTED), DIBS_INVALID);
  expect(acquire(p, "n", 1, .mode = DIBS_COUNTED, .slots = DIBS_SLOTS_MAX + 1), DIBS_INVALID);
  struct dibs__lease_op op = lease_op(p, DIBS__ACQUIRE, "n", 1, (struct how){.mode = 0});
  struct dibs__op *ops[] = {&op.op};
  op.name.len = 0;
  run_batch(p, ops, 1);
  expect(op, DIBS_INVALID);
  op = lease_op(p, DIBS__ACQUIRE, "n", 1, (struct how){.mode = 0});
  op.op.verb = 77;
  run_batch(p, ops, 1);
  expect(op, DIBS_INVALID);
  expect(acquire(p, "n", 2, .try_only = true), DIBS_OK);
}

static const struct CMUnitTest contract_grants_cases[] = {
    CASE(R2_a_repeated_acquire_finds_its_grant),
    CASE(R2_a_repeated_shared_acquire_counts_once),
    CASE(R2_a_repeated_counted_acquire_keeps_its_slot),
    CASE(R2_another_session_finds_the_grant_by_its_id),
    CASE(R2_a_repeated_wait_keeps_its_ticket_and_place),
    CASE(R2_a_repeated_confirm_finds_the_lease),
    CASE(R2_one_id_with_two_names_is_two_leases),
    CASE(R8_a_lease_ends_at_until_by_the_stores_clock),
    CASE(R8_the_clock_never_goes_back),
    CASE(R8_renewal_counts_from_the_stores_now),
    CASE(R8_a_refusal_says_when_to_look_again),
    CASE(R8_the_first_of_several_ends_is_told),
    CASE(R9_one_exclusive_holder),
    CASE(R9_a_refused_try_leaves_nothing_behind),
    CASE(R9_shared_holders_together_and_nobody_else),
    CASE(R9_counted_up_to_its_slots),
    CASE(R9_the_smallest_free_slot_is_given),
    CASE(R9_an_expired_slot_is_given_again),
    CASE(R9_another_number_of_slots_is_invalid),
    CASE(R9_an_offer_counts_as_a_holder),
    CASE(R9_counted_offers_take_up_room),
    CASE(R9_what_is_not_an_operation_is_invalid),
};
CONTRACT_TESTS(contract_grants);

/* SPDX-License-Identifier: MIT */
/* The line: first come first served (R11), absent sessions (R12), offers that nobody confirms (R13). */
#include "harness.h"

/* Every case begins so: without a line that passes on by itself there is nothing to see. */
static void line_or_skip(void **state) {
  (void)state;
  needs(DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
}

/* ---- R11 ---- */

static void R11_waiters_get_it_in_the_order_they_came(void **state) {
  line_or_skip(state);
  struct party *parties[] = {party(), party(), party()};
  struct dibs__lease_op held = acquire(parties[0], "n", 0);
  uint64_t tickets[10] = {0};
  for (int i = 1; i < 10; i++) {
    struct dibs__lease_op op = acquire(parties[i % 3], "n", i);
    expect(op, DIBS__QUEUED);
    tickets[i] = op.ticket;
  }
  dibs__fence last = held.fence;
  for (int i = 1; i < 10; i++) {
    expect(release(parties[(i - 1) % 3], "n", i - 1, last), DIBS_OK);
    for (int j = 9; j > i; j--) expect(acquire(parties[j % 3], "n", j, .ticket = tickets[j]), DIBS__QUEUED);
    struct dibs__lease_op op = acquire(parties[i % 3], "n", i, .ticket = tickets[i]);
    expect(op, DIBS_OK);
    assert_true(dibs__fence_below(last, op.fence));
    last = op.fence;
  }
}

static void R11_nobody_new_overtakes_the_line(void **state) {
  line_or_skip(state);
  needs(DIBS__CAP_SHARED);
  struct party *p = party();
  expect(acquire(p, "n", 1, .mode = DIBS_SHARED), DIBS_OK);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  expect(acquire(p, "n", 3, .mode = DIBS_SHARED, .try_only = true), DIBS_HELD);
  expect(acquire(p, "n", 3, .mode = DIBS_SHARED), DIBS__QUEUED);
  expect(acquire(p, "n", 3, .mode = DIBS_SHARED), DIBS__QUEUED);
  expect(release(p, "n", 1, DIBS__FENCE_NONE), DIBS_OK);
  expect(acquire(p, "n", 3, .mode = DIBS_SHARED), DIBS__QUEUED);
  expect(acquire(p, "n", 2), DIBS_OK);
}

static void R11_readers_that_come_and_go_do_not_starve_a_writer(void **state) {
  line_or_skip(state);
  needs(DIBS__CAP_SHARED);
  struct party *p = party();
  expect(acquire(p, "n", 100, .mode = DIBS_SHARED), DIBS_OK);
  expect(acquire(p, "n", 101, .mode = DIBS_SHARED), DIBS_OK);
  expect(acquire(p, "n", 1), DIBS__QUEUED);
  for (int i = 0; i < 20; i++) expect(acquire(p, "n", 102 + i, .mode = DIBS_SHARED), DIBS__QUEUED);
  expect(release(p, "n", 100, DIBS__FENCE_NONE), DIBS_OK);
  expect(release(p, "n", 101, DIBS__FENCE_NONE), DIBS_OK);
  expect(acquire(p, "n", 1), DIBS_OK);
}

static void R11_readers_in_line_are_let_in_together(void **state) {
  line_or_skip(state);
  needs(DIBS__CAP_SHARED);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  for (int i = 2; i <= 5; i++) expect(acquire(p, "n", i, .mode = DIBS_SHARED), DIBS__QUEUED);
  expect(acquire(p, "n", 6), DIBS__QUEUED);
  expect(acquire(p, "n", 7, .mode = DIBS_SHARED), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  for (int i = 5; i >= 2; i--) expect(acquire(p, "n", i, .mode = DIBS_SHARED), DIBS_OK);
  expect(acquire(p, "n", 7, .mode = DIBS_SHARED), DIBS__QUEUED);
  for (int i = 2; i <= 5; i++) expect(release(p, "n", i, DIBS__FENCE_NONE), DIBS_OK);
  held = acquire(p, "n", 6);
  expect(held, DIBS_OK);
  expect(release(p, "n", 6, held.fence), DIBS_OK);
  expect(acquire(p, "n", 7, .mode = DIBS_SHARED), DIBS_OK);
}

static void R11_as_many_as_there_are_slots_are_offered(void **state) {
  line_or_skip(state);
  needs(DIBS__CAP_COUNTED);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  for (int i = 2; i <= 5; i++) expect(acquire(p, "n", i, .mode = DIBS_COUNTED, .slots = 3), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  expect(acquire(p, "n", 5, .mode = DIBS_COUNTED, .slots = 3), DIBS__QUEUED);
  for (int i = 2; i <= 4; i++) {
    struct dibs__lease_op op = acquire(p, "n", i, .mode = DIBS_COUNTED, .slots = 3);
    expect(op, DIBS_OK);
    assert_int_equal(op.slot, i - 2);
  }
  expect(release(p, "n", 3, DIBS__FENCE_NONE), DIBS_OK);
  struct dibs__lease_op op = acquire(p, "n", 5, .mode = DIBS_COUNTED, .slots = 3);
  expect(op, DIBS_OK);
  assert_int_equal(op.slot, 1);
}

static void R11_another_number_of_slots_waits_its_turn(void **state) {
  line_or_skip(state);
  needs(DIBS__CAP_COUNTED);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(p, "n", 2, .mode = DIBS_COUNTED, .slots = 2), DIBS__QUEUED);
  expect(acquire(p, "n", 3, .mode = DIBS_COUNTED, .slots = 5), DIBS__QUEUED);
  expect(acquire(p, "n", 4, .mode = DIBS_COUNTED, .slots = 2), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  expect(acquire(p, "n", 2, .mode = DIBS_COUNTED, .slots = 2), DIBS_OK);
  /* There is room for 4, but 3 came before. */
  expect(acquire(p, "n", 4, .mode = DIBS_COUNTED, .slots = 2), DIBS__QUEUED);
  expect(acquire(p, "n", 3, .mode = DIBS_COUNTED, .slots = 5), DIBS__QUEUED);
  expect(release(p, "n", 2, DIBS__FENCE_NONE), DIBS_OK);
  expect(acquire(p, "n", 3, .mode = DIBS_COUNTED, .slots = 5), DIBS_OK);
  expect(acquire(p, "n", 4, .mode = DIBS_COUNTED, .slots = 2), DIBS__QUEUED);
}

static void R11_who_leaves_the_front_lets_the_others_go(void **state) {
  line_or_skip(state);
  needs(DIBS__CAP_SHARED);
  struct party *p = party();
  expect(acquire(p, "n", 1, .mode = DIBS_SHARED), DIBS_OK);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  expect(acquire(p, "n", 3, .mode = DIBS_SHARED), DIBS__QUEUED);
  expect_was(cancel(p, "n", 2), DIBS__WAS_WAITING);
  expect(acquire(p, "n", 3, .mode = DIBS_SHARED), DIBS_OK);
}

static void R11_expiry_passes_it_on_like_a_release(void **state) {
  line_or_skip(state);
  struct party *p = party(), *q = party();
  expect(acquire(p, "n", 1), DIBS_OK);
  expect(acquire(q, "n", 2), DIBS__QUEUED);
  expect(acquire(p, "n", 3), DIBS__QUEUED);
  pass_ttl(p);
  expect(acquire(p, "n", 4, .try_only = true), DIBS_HELD);
  expect(acquire(p, "n", 3), DIBS__QUEUED);
  expect(acquire(q, "n", 2), DIBS_OK);
}

static void R11_somebody_waits_is_told_to_holders(void **state) {
  line_or_skip(state);
  struct party *p = party(), *q = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  assert_false(held.waiting);
  assert_false(renew(p, "n", 1, held.fence).waiting);
  expect(acquire(q, "n", 2), DIBS__QUEUED);
  assert_true(renew(p, "n", 1, held.fence).waiting);
  expect(cancel(q, "n", 2), DIBS_OK);
  assert_false(renew(p, "n", 1, held.fence).waiting);
}

static void R11_an_offer_that_is_out_is_told_to_holders(void **state) {
  line_or_skip(state);
  needs(DIBS__CAP_COUNTED);
  struct party *p = party();
  for (int i = 1; i <= 2; i++) expect(acquire(p, "n", i, .mode = DIBS_COUNTED, .slots = 2), DIBS_OK);
  expect(acquire(p, "n", 3, .mode = DIBS_COUNTED, .slots = 2), DIBS__QUEUED);
  expect(release(p, "n", 2, DIBS__FENCE_NONE), DIBS_OK);
  assert_true(renew(p, "n", 1, DIBS__FENCE_NONE).waiting);
  pass_offer(p);
  assert_true(renew(p, "n", 1, DIBS__FENCE_NONE).waiting);
  expect_was(cancel(p, "n", 3), DIBS__WAS_WAITING);
  assert_false(renew(p, "n", 1, DIBS__FENCE_NONE).waiting);
}

/* ---- R12 ---- */

static void R12_a_closed_session_leaves_the_line(void **state) {
  line_or_skip(state);
  struct party *p = party(), *q = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(q, "n", 2), DIBS__QUEUED);
  expect(acquire(p, "n", 3), DIBS__QUEUED);
  leave(q);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  expect(acquire(p, "n", 3), DIBS_OK);
  assert_false(acquire(p, "n", 3).waiting);
}

static void R12_the_offer_of_a_closed_session_passes_on(void **state) {
  line_or_skip(state);
  struct party *p = party(), *q = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(q, "n", 2), DIBS__QUEUED);
  expect(acquire(p, "n", 3), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  leave(q);
  pass_offer(p); /* at the latest */
  expect(acquire(p, "n", 3), DIBS_OK);
  pass_ttl(p);
  expect(acquire(p, "n", 4, .try_only = true), DIBS_OK);
}

static void R12_the_lease_of_a_closed_session_stays_until_its_end(void **state) {
  (void)state;
  struct party *p = party(), *q = party();
  struct dibs__lease_op held = acquire(q, "n", 1);
  if (q->identity.caps & DIBS__CAP_SESSION) skip();
  leave(q);
  struct dibs__lease_op refused = acquire(p, "n", 2, .try_only = true);
  expect(refused, DIBS_HELD);
  expect(renew(p, "n", 1, held.fence), DIBS_OK);
  pass_ttl(p);
  expect(acquire(p, "n", 2, .try_only = true), DIBS_OK);
}

static void R12_a_killed_waiter_is_passed_over(void **state) {
  line_or_skip(state);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(ghost("n", 2), DIBS__QUEUED);
  expect(ghost("n", 3), DIBS__QUEUED);
  expect(acquire(p, "n", 4), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  struct dibs__lease_op got = acquire(p, "n", 4);
  expect(got, DIBS_OK);
  expect(release(p, "n", 4, got.fence), DIBS_OK);
  expect(acquire(p, "n", 5, .try_only = true), DIBS_OK);
}

static void R12_a_killed_waiter_holds_up_nobody_who_is_new(void **state) {
  line_or_skip(state);
  needs(DIBS__CAP_SHARED);
  struct party *p = party();
  expect(acquire(p, "n", 1, .mode = DIBS_SHARED), DIBS_OK);
  expect(ghost("n", 2), DIBS__QUEUED);
  expect(acquire(p, "n", 3, .mode = DIBS_SHARED, .try_only = true), DIBS_OK);
}

static void R12_the_lease_of_a_killed_holder_stays_until_its_end(void **state) {
  line_or_skip(state);
  struct party *p = party();
  expect(ghost("n", 1), DIBS_OK);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  if (target()->skew) pass(p, ttl() / 2);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  pass_ttl(p);
  expect(acquire(p, "n", 2), DIBS_OK);
}

static void R12_another_session_may_take_a_waiter_over(void **state) {
  line_or_skip(state);
  struct party *p = party(), *q = party();
  struct dibs__lease_op held = acquire(p, "n", 1), waits = acquire(q, "n", 2), again;
  expect(waits, DIBS__QUEUED);
  again = acquire(p, "n", 2);
  expect(again, DIBS__QUEUED);
  assert_int_equal(again.ticket, waits.ticket);
  leave(q);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  expect(acquire(p, "n", 3, .try_only = true), DIBS_HELD);
  expect(acquire(p, "n", 2), DIBS_OK);
}

static void R12_housekeeping_leaves_the_living_alone(void **state) {
  line_or_skip(state);
  struct party *p = party(), *q = party();
  if (!store_of(p)->driver->tidy) skip();
  struct dibs__lease_op held = acquire(p, "n", 1), waits = acquire(q, "n", 2);
  expect(acquire(q, "m", 3), DIBS_OK);
  expect(ghost("n", 4), DIBS__QUEUED);
  expect(acquire(q, "n", 5), DIBS__QUEUED);
  for (int i = 0; i < 3; i++) store_of(i % 2 ? p : q)->driver->tidy(store_of(i % 2 ? p : q));
  struct dibs__lease_op again = acquire(q, "n", 2);
  expect(again, DIBS__QUEUED);
  assert_int_equal(again.ticket, waits.ticket);
  expect(renew(p, "n", 1, held.fence), DIBS_OK);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  store_of(p)->driver->tidy(store_of(p));
  struct dibs__lease_op next = acquire(q, "n", 2);
  expect(next, DIBS_OK);
  expect(release(q, "n", 2, next.fence), DIBS_OK);
  expect(acquire(q, "n", 5), DIBS_OK);
  pass_ttl(p);
  store_of(p)->driver->tidy(store_of(p));
  expect(acquire(p, "m", 6, .try_only = true), DIBS_OK);
  expect(acquire(p, "n", 7, .try_only = true), DIBS_OK);
}

/* ---- R13 ---- */

static void R13_an_offer_that_nobody_confirms_passes_on(void **state) {
  line_or_skip(state);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  expect(acquire(p, "n", 3), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  pass_offer(p);
  expect(acquire(p, "n", 3), DIBS_OK);
}

static void R13_a_sleeper_keeps_its_place(void **state) {
  line_or_skip(state);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  struct dibs__lease_op sleeper = acquire(p, "n", 2);
  expect(acquire(p, "n", 3), DIBS__QUEUED);
  expect(acquire(p, "n", 4), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  pass_offer(p);
  struct dibs__lease_op got = acquire(p, "n", 3);
  expect(got, DIBS_OK);
  struct dibs__lease_op awake = acquire(p, "n", 2);
  expect(awake, DIBS__QUEUED);
  assert_int_equal(awake.ticket, sleeper.ticket);
  expect(release(p, "n", 3, got.fence), DIBS_OK);
  expect(acquire(p, "n", 4), DIBS__QUEUED);
  expect(acquire(p, "n", 2), DIBS_OK);
}

static void R13_a_sleeper_blocks_nobody(void **state) {
  line_or_skip(state);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  pass_offer(p);
  struct dibs__lease_op fresh = acquire(p, "n", 3, .try_only = true);
  expect(fresh, DIBS_OK);
  assert_true(fresh.waiting);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  expect(release(p, "n", 3, fresh.fence), DIBS_OK);
  expect(acquire(p, "n", 4, .try_only = true), DIBS_HELD);
  expect(acquire(p, "n", 2), DIBS_OK);
}

static void R13_a_sleeper_that_wakes_to_a_free_name_has_it(void **state) {
  line_or_skip(state);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  pass_offer(p);
  expect(acquire(p, "n", 2), DIBS_OK);
}

static void R13_a_sleeper_does_not_take_what_is_offered(void **state) {
  line_or_skip(state);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  expect(acquire(p, "n", 3), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  pass_offer(p);
  expect(acquire(p, "n", 9, .try_only = true), DIBS_HELD);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  expect(acquire(p, "n", 3), DIBS_OK);
}

static void R13_several_sleepers_wake_in_their_order(void **state) {
  line_or_skip(state);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1), got;
  for (int i = 2; i <= 5; i++) expect(acquire(p, "n", i), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  for (int i = 2; i <= 4; i++) {
    pass_offer(p);
    expect(cancel(p, "n", 100), DIBS_NOT_FOUND); /* any operation lets the offer pass on */
  }
  got = acquire(p, "n", 5);
  expect(got, DIBS_OK);
  /* They wake last first. */
  for (int i = 4; i >= 2; i--) expect(acquire(p, "n", i), DIBS__QUEUED);
  for (int i = 2; i <= 4; i++) {
    expect(release(p, "n", i == 2 ? 5 : i - 1, got.fence), DIBS_OK);
    for (int j = 4; j > i; j--) expect(acquire(p, "n", j), DIBS__QUEUED);
    got = acquire(p, "n", i);
    expect(got, DIBS_OK);
  }
}

static void R13_the_ttl_counts_from_the_confirm(void **state) {
  line_or_skip(state);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  pass(p, DIBS__OFFER_MS / 4);
  struct dibs__lease_op got = acquire(p, "n", 2);
  expect(got, DIBS_OK);
  expect_until(p, &got, ttl());
}

static const struct CMUnitTest contract_queue_cases[] = {
    CASE(R11_waiters_get_it_in_the_order_they_came),
    CASE(R11_nobody_new_overtakes_the_line),
    CASE(R11_readers_that_come_and_go_do_not_starve_a_writer),
    CASE(R11_readers_in_line_are_let_in_together),
    CASE(R11_as_many_as_there_are_slots_are_offered),
    CASE(R11_another_number_of_slots_waits_its_turn),
    CASE(R11_who_leaves_the_front_lets_the_others_go),
    CASE(R11_expiry_passes_it_on_like_a_release),
    CASE(R11_somebody_waits_is_told_to_holders),
    CASE(R11_an_offer_that_is_out_is_told_to_holders),
    CASE(R12_a_closed_session_leaves_the_line),
    CASE(R12_the_offer_of_a_closed_session_passes_on),
    CASE(R12_the_lease_of_a_closed_session_stays_until_its_end),
    CASE(R12_a_killed_waiter_is_passed_over),
    CASE(R12_a_killed_waiter_holds_up_nobody_who_is_new),
    CASE(R12_the_lease_of_a_killed_holder_stays_until_its_end),
    CASE(R12_another_session_may_take_a_waiter_over),
    CASE(R12_housekeeping_leaves_the_living_alone),
    CASE(R13_an_offer_that_nobody_confirms_passes_on),
    CASE(R13_a_sleeper_keeps_its_place),
    CASE(R13_a_sleeper_blocks_nobody),
    CASE(R13_a_sleeper_that_wakes_to_a_free_name_has_it),
    CASE(R13_a_sleeper_does_not_take_what_is_offered),
    CASE(R13_several_sleepers_wake_in_their_order),
    CASE(R13_the_ttl_counts_from_the_confirm),
};
CONTRACT_TESTS(contract_queue);

/* SPDX-License-Identifier: MIT */
/* The queue: first come, first served (R11), sessions that ended (R12), offers that are not confirmed (R13). */
#include "harness.h"

/* Every case begins with this: it needs a queue in which the store grants the next waiter. */
static void queue_or_skip(void **state) {
  (void)state;
  needs(DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
}

/* ---- R11 ---- */

static void R11_waiters_are_granted_in_their_order(void **state) {
  queue_or_skip(state);
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

static void R85_ahead_is_never_more_than_the_waiters_before(void **state) {
  queue_or_skip(state);
  enum { LAST = 40 };
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 0);
  bool left[LAST + 1] = {false};
  for (int i = 1; i <= LAST; i++) {
    struct dibs__lease_op op = acquire(p, "n", i);
    expect(op, DIBS__QUEUED);
    assert_in_range(op.ahead, 0, i - 1);
  }
  for (int i = 5; i <= LAST; i += 5) {
    expect(cancel(p, "n", i), DIBS_OK);
    left[i] = true;
  }
  expect(release(p, "n", 0, held.fence), DIBS_OK); /* 1 has an offer */
  expect(acquire(p, "n", 1), DIBS_OK);
  for (uint32_t i = 2, before = 0; i <= LAST; i++) {
    if (left[i]) continue;
    struct dibs__lease_op op = acquire(p, "n", (int)i);
    expect(op, DIBS__QUEUED);
    assert_in_range(op.ahead, 0, before);
    before++;
  }
}

static void R11_a_new_client_does_not_overtake_the_queue(void **state) {
  queue_or_skip(state);
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

static void R11_changing_readers_do_not_starve_a_writer(void **state) {
  queue_or_skip(state);
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

static void R11_waiting_readers_are_granted_together(void **state) {
  queue_or_skip(state);
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

static void R11_as_many_waiters_as_slots_get_offers(void **state) {
  queue_or_skip(state);
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

static void R11_another_number_of_slots_waits(void **state) {
  queue_or_skip(state);
  needs(DIBS__CAP_COUNTED);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(p, "n", 2, .mode = DIBS_COUNTED, .slots = 2), DIBS__QUEUED);
  expect(acquire(p, "n", 3, .mode = DIBS_COUNTED, .slots = 5), DIBS__QUEUED);
  expect(acquire(p, "n", 4, .mode = DIBS_COUNTED, .slots = 2), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  expect(acquire(p, "n", 2, .mode = DIBS_COUNTED, .slots = 2), DIBS_OK);
  /* 4 slots are free, but a waiter for 3 slots came first. */
  expect(acquire(p, "n", 4, .mode = DIBS_COUNTED, .slots = 2), DIBS__QUEUED);
  expect(acquire(p, "n", 3, .mode = DIBS_COUNTED, .slots = 5), DIBS__QUEUED);
  expect(release(p, "n", 2, DIBS__FENCE_NONE), DIBS_OK);
  expect(acquire(p, "n", 3, .mode = DIBS_COUNTED, .slots = 5), DIBS_OK);
  expect(acquire(p, "n", 4, .mode = DIBS_COUNTED, .slots = 2), DIBS__QUEUED);
}

static void R11_cancelling_the_first_waiter_serves_the_others(void **state) {
  queue_or_skip(state);
  needs(DIBS__CAP_SHARED);
  struct party *p = party();
  expect(acquire(p, "n", 1, .mode = DIBS_SHARED), DIBS_OK);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  expect(acquire(p, "n", 3, .mode = DIBS_SHARED), DIBS__QUEUED);
  expect_was(cancel(p, "n", 2), DIBS__WAS_WAITING);
  expect(acquire(p, "n", 3, .mode = DIBS_SHARED), DIBS_OK);
}

static void R11_expiry_serves_the_next_waiter_like_a_release(void **state) {
  queue_or_skip(state);
  if (target()->late_ms) skip(); /* the test does not know when the lease ended, nor the offer */
  struct party *p = party(), *q = party();
  expect(acquire(p, "n", 1), DIBS_OK);
  expect(acquire(q, "n", 2), DIBS__QUEUED);
  expect(acquire(p, "n", 3), DIBS__QUEUED);
  advance_past_ttl(p);
  expect(acquire(p, "n", 4, .try_only = true), DIBS_HELD);
  expect(acquire(p, "n", 3), DIBS__QUEUED);
  expect(acquire(q, "n", 2), DIBS_OK);
}

static void R11_a_holder_learns_that_a_client_waits(void **state) {
  queue_or_skip(state);
  struct party *p = party(), *q = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  assert_false(held.waiting);
  assert_false(renew(p, "n", 1, held.fence).waiting);
  expect(acquire(q, "n", 2), DIBS__QUEUED);
  assert_true(renew(p, "n", 1, held.fence).waiting);
  expect(cancel(q, "n", 2), DIBS_OK);
  assert_false(renew(p, "n", 1, held.fence).waiting);
}

static void R11_a_holder_learns_of_an_open_offer(void **state) {
  queue_or_skip(state);
  needs(DIBS__CAP_COUNTED);
  struct party *p = party();
  for (int i = 1; i <= 2; i++) expect(acquire(p, "n", i, .mode = DIBS_COUNTED, .slots = 2), DIBS_OK);
  expect(acquire(p, "n", 3, .mode = DIBS_COUNTED, .slots = 2), DIBS__QUEUED);
  expect(release(p, "n", 2, DIBS__FENCE_NONE), DIBS_OK);
  assert_true(renew(p, "n", 1, DIBS__FENCE_NONE).waiting);
  advance_past_offer(p);
  assert_true(renew(p, "n", 1, DIBS__FENCE_NONE).waiting);
  expect_was(cancel(p, "n", 3), DIBS__WAS_WAITING);
  assert_false(renew(p, "n", 1, DIBS__FENCE_NONE).waiting);
}

/* ---- R12 ---- */

static void R12_a_closed_session_leaves_the_queue(void **state) {
  queue_or_skip(state);
  struct party *p = party(), *q = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(q, "n", 2), DIBS__QUEUED);
  expect(acquire(p, "n", 3), DIBS__QUEUED);
  close_party(q);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  expect(acquire(p, "n", 3), DIBS_OK);
  assert_false(acquire(p, "n", 3).waiting);
}

static void R12_the_offer_of_a_closed_session_passes_on(void **state) {
  queue_or_skip(state);
  struct party *p = party(), *q = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(q, "n", 2), DIBS__QUEUED);
  expect(acquire(p, "n", 3), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  close_party(q);
  advance_past_offer(p); /* at the latest */
  expect(acquire(p, "n", 3), DIBS_OK);
  advance_past_ttl(p);
  expect(acquire(p, "n", 4, .try_only = true), DIBS_OK);
}

static void R12_the_lease_of_a_closed_session_stays_until_its_end(void **state) {
  (void)state;
  struct party *p = party(), *q = party();
  struct dibs__lease_op held = acquire(q, "n", 1);
  if (q->identity.caps & DIBS__CAP_SESSION) skip();
  close_party(q);
  struct dibs__lease_op refused = acquire(p, "n", 2, .try_only = true);
  expect(refused, DIBS_HELD);
  expect(renew(p, "n", 1, held.fence), DIBS_OK);
  advance_past_ttl(p);
  expect(acquire(p, "n", 2, .try_only = true), DIBS_OK);
}

static void R12_a_killed_waiter_is_skipped(void **state) {
  queue_or_skip(state);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1, .ttl = 60000);
  expect(ghost("n", 2), DIBS__QUEUED);
  expect(ghost("n", 3), DIBS__QUEUED);
  expect(acquire(p, "n", 4), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  struct dibs__lease_op got = acquire(p, "n", 4);
  expect(got, DIBS_OK);
  expect(release(p, "n", 4, got.fence), DIBS_OK);
  expect(acquire(p, "n", 5, .try_only = true), DIBS_OK);
}

static void R12_a_killed_waiter_does_not_delay_new_clients(void **state) {
  queue_or_skip(state);
  needs(DIBS__CAP_SHARED);
  struct party *p = party();
  expect(acquire(p, "n", 1, .mode = DIBS_SHARED, .ttl = 60000), DIBS_OK);
  expect(ghost("n", 2), DIBS__QUEUED);
  expect(acquire(p, "n", 3, .mode = DIBS_SHARED, .try_only = true), DIBS_OK);
}

static void R12_the_lease_of_a_killed_holder_stays_until_its_end(void **state) {
  queue_or_skip(state);
  struct party *p = party();
  expect(ghost("n", 1), DIBS_OK);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  if (target()->skew) advance_time(p, ttl() / 2);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  advance_past_ttl(p);
  expect(acquire(p, "n", 2), DIBS_OK);
}

static void R12_another_session_may_adopt_a_waiter(void **state) {
  queue_or_skip(state);
  struct party *p = party(), *q = party();
  struct dibs__lease_op held = acquire(p, "n", 1), waits = acquire(q, "n", 2), again;
  expect(waits, DIBS__QUEUED);
  again = acquire(p, "n", 2);
  expect(again, DIBS__QUEUED);
  assert_int_equal(again.ticket, waits.ticket);
  close_party(q);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  expect(acquire(p, "n", 3, .try_only = true), DIBS_HELD);
  expect(acquire(p, "n", 2), DIBS_OK);
}

static void R12_housekeeping_keeps_live_waiters(void **state) {
  queue_or_skip(state);
  struct party *p = party(), *q = party();
  if (!innermost(p)->driver->tidy) skip();
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
  advance_past_ttl(p);
  store_of(p)->driver->tidy(store_of(p));
  expect(acquire(p, "m", 6, .try_only = true), DIBS_OK);
  expect(acquire(p, "n", 7, .try_only = true), DIBS_OK);
}

/* ---- R13 ---- */

static void R13_an_unconfirmed_offer_passes_on(void **state) {
  queue_or_skip(state);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  expect(acquire(p, "n", 3), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  advance_past_offer(p);
  expect(acquire(p, "n", 3), DIBS_OK);
}

static void R13_a_sleeper_keeps_its_position(void **state) {
  queue_or_skip(state);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  struct dibs__lease_op sleeper = acquire(p, "n", 2);
  expect(acquire(p, "n", 3), DIBS__QUEUED);
  expect(acquire(p, "n", 4), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  advance_past_offer(p);
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
  queue_or_skip(state);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  advance_past_offer(p);
  struct dibs__lease_op fresh = acquire(p, "n", 3, .try_only = true);
  expect(fresh, DIBS_OK);
  assert_true(fresh.waiting);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  expect(release(p, "n", 3, fresh.fence), DIBS_OK);
  expect(acquire(p, "n", 4, .try_only = true), DIBS_HELD);
  expect(acquire(p, "n", 2), DIBS_OK);
}

static void R13_a_sleeper_that_wakes_gets_a_free_name(void **state) {
  queue_or_skip(state);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  advance_past_offer(p);
  expect(acquire(p, "n", 2), DIBS_OK);
}

static void R13_a_sleeper_does_not_take_what_is_offered(void **state) {
  queue_or_skip(state);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  expect(acquire(p, "n", 3), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  advance_past_offer(p);
  expect(acquire(p, "n", 9, .try_only = true), DIBS_HELD);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  expect(acquire(p, "n", 3), DIBS_OK);
}

static void R13_several_sleepers_wake_in_their_order(void **state) {
  queue_or_skip(state);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1), got;
  for (int i = 2; i <= 5; i++) expect(acquire(p, "n", i), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  for (int i = 2; i <= 4; i++) {
    advance_past_offer(p);
    expect(cancel(p, "n", 100), DIBS_NOT_FOUND); /* any operation passes the offer on */
  }
  got = acquire(p, "n", 5);
  expect(got, DIBS_OK);
  /* The last waiter wakes first. */
  for (int i = 4; i >= 2; i--) expect(acquire(p, "n", i), DIBS__QUEUED);
  for (int i = 2; i <= 4; i++) {
    expect(release(p, "n", i == 2 ? 5 : i - 1, got.fence), DIBS_OK);
    for (int j = 4; j > i; j--) expect(acquire(p, "n", j), DIBS__QUEUED);
    got = acquire(p, "n", i);
    expect(got, DIBS_OK);
  }
}

static void R13_the_ttl_counts_from_the_confirm(void **state) {
  queue_or_skip(state);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  advance_time(p, DIBS__OFFER_MS / 4);
  struct dibs__lease_op got = acquire(p, "n", 2);
  expect(got, DIBS_OK);
  expect_until(p, &got, ttl());
}

static const struct CMUnitTest contract_queue_cases[] = {
    CASE(R11_waiters_are_granted_in_their_order),
    CASE(R85_ahead_is_never_more_than_the_waiters_before),
    CASE(R11_a_new_client_does_not_overtake_the_queue),
    CASE(R11_changing_readers_do_not_starve_a_writer),
    CASE(R11_waiting_readers_are_granted_together),
    CASE(R11_as_many_waiters_as_slots_get_offers),
    CASE(R11_another_number_of_slots_waits),
    CASE(R11_cancelling_the_first_waiter_serves_the_others),
    CASE(R11_expiry_serves_the_next_waiter_like_a_release),
    CASE(R11_a_holder_learns_that_a_client_waits),
    CASE(R11_a_holder_learns_of_an_open_offer),
    CASE(R12_a_closed_session_leaves_the_queue),
    CASE(R12_the_offer_of_a_closed_session_passes_on),
    CASE(R12_the_lease_of_a_closed_session_stays_until_its_end),
    CASE(R12_a_killed_waiter_is_skipped),
    CASE(R12_a_killed_waiter_does_not_delay_new_clients),
    CASE(R12_the_lease_of_a_killed_holder_stays_until_its_end),
    CASE(R12_another_session_may_adopt_a_waiter),
    CASE(R12_housekeeping_keeps_live_waiters),
    CASE(R13_an_unconfirmed_offer_passes_on),
    CASE(R13_a_sleeper_keeps_its_position),
    CASE(R13_a_sleeper_blocks_nobody),
    CASE(R13_a_sleeper_that_wakes_gets_a_free_name),
    CASE(R13_a_sleeper_does_not_take_what_is_offered),
    CASE(R13_several_sleepers_wake_in_their_order),
    CASE(R13_the_ttl_counts_from_the_confirm),
};
CONTRACT_TESTS(contract_queue);

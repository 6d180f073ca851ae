/* SPDX-License-Identifier: MIT */
/* Offers that carry their fence (R13): the waiter that receives one may begin its work, and a renewal confirms it. */
#include "harness.h"

enum { PATIENCE_MS = 3000 };

/* The offer that this party receives. */
static struct dibs__event receive_offer(struct party *p, int id) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  dibs__id want = id_of(id);
  while (dibs__tick_before(dibs__tick_now(), by)) {
    struct dibs__event event;
    size_t count = 0;
    assert_int_equal(store_of(p)->driver->events(store_of(p), &event, 1, &count, by), DIBS_OK);
    if (count && event.what == DIBS__EV_OFFER && dibs__id_equal(event.id, want)) return event;
  }
  fail_msg("id %d received no offer", id);
  return (struct dibs__event){.what = DIBS__EV_RECHECK};
}

/* q waits with id 2 behind id 1 of p, which is released: the offer that q receives.  Skips if offers carry no fence. */
static struct dibs__event offered(struct party *p, struct party *q) {
  struct dibs__lease_op held = acquire(p, "n", 1, .ttl = 20000);
  expect(acquire(q, "n", 2), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  struct dibs__event event = receive_offer(q, 2);
  if (event.fence.v == 0) skip();
  assert_true(dibs__fence_below(held.fence, event.fence));
  return event;
}

static void offers_or_skip(void **state) {
  (void)state;
  needs(DIBS__CAP_EVENTS | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
}

static void R13_an_offers_fence_holds_until_the_offers_end(void **state) {
  offers_or_skip(state);
  struct party *p = party(), *q = party();
  dibs__tick before = dibs__tick_now();
  struct dibs__event event = offered(p, q);
  if (event.held_until.ns == 0 && has_cap(DIBS__CAP_OFFERS_LAST)) skip(); /* see below */
  assert_true(dibs__tick_before(before, event.held_until));
  assert_false(dibs__tick_before(dibs__tick_add_ms(dibs__tick_now(), DIBS__OFFER_MS), event.held_until));
  expect(acquire(p, "n", 3, .try_only = true), DIBS_HELD);
}

/* The store's clock is not ours: the answer QUEUED identifies the offer. */
static void R13_an_offer_outlasts_the_wait_it_ended(void **state) {
  offers_or_skip(state);
  needs(DIBS__CAP_OFFERS_LAST);
  struct party *p = party(), *q = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  struct dibs__lease_op first = acquire(q, "n", 2);
  expect(first, DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  struct dibs__event early = receive_offer(q, 2);
  assert_true(dibs__fence_below(first.fence, early.fence));
  /* The offer passes to the next waiter; after another QUEUED the waiter recognises the earlier message as old. */
  advance_past_offer(p);
  struct dibs__lease_op other = acquire(p, "n", 3, .ttl = 60000);
  expect(other, DIBS_OK);
  struct dibs__lease_op second = acquire(q, "n", 2);
  expect(second, DIBS__QUEUED);
  assert_false(dibs__fence_below(second.fence, early.fence));
  dibs__tick requested = dibs__tick_now();
  expect(acquire(q, "n", 2), DIBS__QUEUED);
  expect(release(p, "n", 3, other.fence), DIBS_OK);
  struct dibs__event late = receive_offer(q, 2);
  assert_true(dibs__fence_below(second.fence, late.fence));
  /* Half of the time is enough.  A slow machine may pause this process beyond the end of the offer: then an answer says
   * nothing. */
  dibs__tick end = dibs__tick_add_ms(requested, DIBS__OFFER_MS);
  while (dibs__tick_left_ms(dibs__tick_now(), end) > DIBS__OFFER_MS / 2) {
    struct dibs__lease_op tried = acquire(p, "n", 4, .try_only = true);
    if (!dibs__tick_before(dibs__tick_now(), end)) skip();
    expect(tried, DIBS_HELD);
  }
  struct dibs__lease_op confirmed = renew(q, "n", 2, late.fence);
  if (confirmed.op.status != DIBS_OK && !dibs__tick_before(dibs__tick_now(), end)) skip();
  expect(confirmed, DIBS_OK);
}

/* Others are refused until its end, so it is listed until then. */
static void R13_an_offer_is_listed_after_its_waiter_has_gone(void **state) {
  offers_or_skip(state);
  struct party *p = party(), *q = party();
  (void)offered(p, q);
  close_party(q);
  struct seen seen = list_name(p, "n");
  if (acquire(p, "n", 3, .try_only = true).op.status != DIBS_HELD) skip(); /* it ended with the waiter, or by time */
  assert_int_equal(seen.count, 1);
  assert_int_equal(seen.rows[0].row.state, DIBS__OFFERED);
}

static void R13_a_renewal_under_its_fence_confirms_an_offer(void **state) {
  offers_or_skip(state);
  struct party *p = party(), *q = party();
  struct dibs__event event = offered(p, q);
  struct dibs__lease_op renewed = renew(q, "n", 2, event.fence);
  expect(renewed, DIBS_OK);
  assert_int_equal(renewed.fence.v, event.fence.v);
  assert_int_equal(renewed.got_block, 1);
  expect_until(q, &renewed, ttl());
  advance_past_offer(p);
  struct dibs__lease_op again = acquire(q, "n", 2);
  expect(again, DIBS_OK);
  assert_int_equal(again.fence.v, event.fence.v);
  expect(acquire(p, "n", 3, .try_only = true), DIBS_HELD);
  expect(release(q, "n", 2, event.fence), DIBS_OK);
}

static void R13_a_renewal_that_confirms_may_draw_a_block(void **state) {
  offers_or_skip(state);
  needs(DIBS__CAP_BLOCKS);
  struct party *p = party(), *q = party();
  struct dibs__event event = offered(p, q);
  struct dibs__lease_op renewed = renew(q, "n", 2, event.fence, .block = 8);
  expect(renewed, DIBS_OK);
  assert_int_equal(renewed.got_block, 8);
  assert_true(dibs__fence_below(event.fence, renewed.fence));
  /* Work that began under the offer's fence continues. */
  expect(renew(q, "n", 2, event.fence), DIBS_OK);
  expect(release(q, "n", 2, renewed.fence), DIBS_OK);
}

static void R13_an_acquire_that_confirms_gets_the_offers_fence(void **state) {
  offers_or_skip(state);
  struct party *p = party(), *q = party();
  struct dibs__event event = offered(p, q);
  struct dibs__lease_op got = acquire(q, "n", 2);
  expect(got, DIBS_OK);
  assert_int_equal(got.fence.v, event.fence.v);
  expect_until(q, &got, ttl());
}

static void R13_a_release_under_its_fence_ends_an_offer(void **state) {
  offers_or_skip(state);
  struct party *p = party(), *q = party();
  struct dibs__event event = offered(p, q);
  expect(acquire(p, "n", 3), DIBS__QUEUED);
  expect(release(q, "n", 2, event.fence), DIBS_OK);
  expect(cancel(q, "n", 2), DIBS_NOT_FOUND);
  struct dibs__lease_op next = acquire(p, "n", 3);
  expect(next, DIBS_OK);
  assert_true(dibs__fence_below(event.fence, next.fence));
}

static void R13_the_fence_of_a_lapsed_offer_is_lost(void **state) {
  offers_or_skip(state);
  struct party *p = party(), *q = party();
  struct dibs__event event = offered(p, q);
  advance_past_offer(p);
  expect(renew(q, "n", 2, event.fence), DIBS_LOST);
  expect(release(q, "n", 2, event.fence), DIBS_LOST);
  struct dibs__lease_op other = acquire(p, "n", 3, .try_only = true);
  expect(other, DIBS_OK);
  assert_true(dibs__fence_below(event.fence, other.fence));
  expect(release(p, "n", 3, other.fence), DIBS_OK);
  /* The waiter kept its position; its next offer is a new one. */
  struct dibs__lease_op got = acquire(q, "n", 2);
  expect(got, DIBS_OK);
  assert_true(dibs__fence_below(other.fence, got.fence));
  expect(renew(q, "n", 2, event.fence), DIBS_LOST);
}

static void R10_each_offer_has_a_fence_of_its_own(void **state) {
  offers_or_skip(state);
  struct party *p = party(), *q = party();
  struct dibs__event first = offered(p, q);
  advance_past_offer(p);
  struct dibs__lease_op other = acquire(p, "n", 3, .try_only = true);
  expect(other, DIBS_OK);
  expect(acquire(q, "n", 2), DIBS__QUEUED);
  expect(release(p, "n", 3, other.fence), DIBS_OK);
  struct dibs__event second = receive_offer(q, 2);
  assert_true(dibs__fence_below(other.fence, second.fence));
  expect(renew(q, "n", 2, first.fence), DIBS_LOST);
  expect(renew(q, "n", 2, second.fence), DIBS_OK);
}

static void R14_the_fence_of_an_offer_is_valid_only_with_its_id(void **state) {
  offers_or_skip(state);
  struct party *p = party(), *q = party();
  struct dibs__event event = offered(p, q);
  expect(renew(p, "n", 3, event.fence), DIBS_LOST);
  expect(release(p, "n", 1, event.fence), DIBS_LOST);
  expect(renew(q, "n", 2, (dibs__fence){event.fence.v + 1}), DIBS_LOST);
  expect(renew(q, "n", 2, event.fence), DIBS_OK);
}

static void R16_a_fenced_offer_is_broken(void **state) {
  offers_or_skip(state);
  struct party *p = party(), *q = party();
  struct dibs__event event = offered(p, q);
  expect(break_it(p, "n", false), DIBS_OK);
  expect(renew(q, "n", 2, event.fence), DIBS_LOST);
  expect(acquire(q, "n", 2), DIBS_LOST);
  expect(acquire(p, "n", 3, .try_only = true), DIBS_HELD);
  struct seen seen = list_name(p, "n");
  assert_non_null(find_row(&seen, DIBS__BROKEN, "breaker"));
  advance_past_offer(p);
  expect(acquire(p, "n", 3, .try_only = true), DIBS_OK);
}

static void R16_a_fenced_offer_is_broken_with_now(void **state) {
  offers_or_skip(state);
  struct party *p = party(), *q = party();
  struct dibs__event event = offered(p, q);
  expect(break_it(p, "n", true), DIBS_OK);
  struct dibs__lease_op next = acquire(p, "n", 3, .try_only = true);
  expect(next, DIBS_OK);
  assert_true(dibs__fence_below(event.fence, next.fence));
  expect(renew(q, "n", 2, event.fence), DIBS_LOST);
}

static void R16_an_offer_without_a_fence_is_not_broken(void **state) {
  offers_or_skip(state);
  needs(DIBS__CAP_SHARED);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(p, "n", 2, .mode = DIBS_SHARED), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  assert_int_equal(receive_offer(p, 2).fence.v, 0);
  expect(break_it(p, "n", true), DIBS_NOT_FOUND);
  expect(acquire(p, "n", 2, .mode = DIBS_SHARED), DIBS_OK);
}

static const struct CMUnitTest contract_offers_cases[] = {
    CASE(R13_an_offers_fence_holds_until_the_offers_end),
    CASE(R13_an_offer_outlasts_the_wait_it_ended),
    CASE(R13_an_offer_is_listed_after_its_waiter_has_gone),
    CASE(R13_a_renewal_under_its_fence_confirms_an_offer),
    CASE(R13_a_renewal_that_confirms_may_draw_a_block),
    CASE(R13_an_acquire_that_confirms_gets_the_offers_fence),
    CASE(R13_a_release_under_its_fence_ends_an_offer),
    CASE(R13_the_fence_of_a_lapsed_offer_is_lost),
    CASE(R10_each_offer_has_a_fence_of_its_own),
    CASE(R14_the_fence_of_an_offer_is_valid_only_with_its_id),
    CASE(R16_a_fenced_offer_is_broken),
    CASE(R16_a_fenced_offer_is_broken_with_now),
    CASE(R16_an_offer_without_a_fence_is_not_broken),
};
CONTRACT_TESTS(contract_offers);

/* SPDX-License-Identifier: MIT */
/* How a lease ends: late renewals and releases, and those of other leases (R14), cancel (R15), breaking (R16). */
#include "harness.h"

#include <string.h>

/* ---- R14 ---- */

/* 1 holds the name; 2 and the following ids wait for it. */
static struct dibs__lease_op held_with_waiters(struct party *p, int waiters) {
  struct dibs__lease_op held = acquire(p, "n", 1);
  for (int id = 2; id < 2 + waiters; id++) expect(acquire(p, "n", id), DIBS__QUEUED);
  return held;
}

static void R14_an_ended_lease_cannot_be_renewed_or_released(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  advance_past_ttl(p);
  expect(renew(p, "n", 1, held.fence), DIBS_LOST);
  expect(release(p, "n", 1, held.fence), DIBS_LOST);
  expect(acquire(p, "n", 2, .try_only = true), DIBS_OK);
}

static void R14_a_late_release_does_not_touch_the_next_holder(void **state) {
  (void)state;
  struct party *p = party(), *q = party();
  struct dibs__lease_op old = acquire(p, "n", 1);
  advance_past_ttl(p);
  struct dibs__lease_op held = acquire(q, "n", 2);
  expect(held, DIBS_OK);
  expect(release(p, "n", 1, old.fence), DIBS_LOST);
  expect(release(p, "n", 1, held.fence), DIBS_LOST);
  expect(renew(p, "n", 1, old.fence), DIBS_LOST);
  struct dibs__lease_op again = acquire(q, "n", 2);
  expect(again, DIBS_OK);
  assert_int_equal(again.until.ms, held.until.ms);
  assert_int_equal(again.fence.v, held.fence.v);
}

static void R14_another_id_is_refused(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(renew(p, "n", 2, held.fence), DIBS_LOST);
  expect(release(p, "n", 2, held.fence), DIBS_LOST);
  expect(renew(p, "n", 1, held.fence), DIBS_OK);
}

static void R14_another_fence_is_refused(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op first = acquire(p, "n", 1);
  expect(release(p, "n", 1, first.fence), DIBS_OK);
  /* The same id again is another grant. */
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(renew(p, "n", 1, first.fence), DIBS_LOST);
  expect(release(p, "n", 1, first.fence), DIBS_LOST);
  expect(release(p, "n", 1, DIBS__FENCE_NONE), DIBS_LOST);
  expect(renew(p, "n", 1, (dibs__fence){held.fence.v + 1}), DIBS_LOST);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
}

static void R14_shared_and_counted_leases_have_only_fence_0(void **state) {
  (void)state;
  needs(DIBS__CAP_SHARED);
  struct party *p = party();
  expect(acquire(p, "n", 1, .mode = DIBS_SHARED), DIBS_OK);
  expect(renew(p, "n", 1, (dibs__fence){1}), DIBS_LOST);
  expect(release(p, "n", 1, (dibs__fence){1}), DIBS_LOST);
  expect(renew(p, "n", 2, DIBS__FENCE_NONE), DIBS_LOST);
  expect(renew(p, "n", 1, DIBS__FENCE_NONE), DIBS_OK);
}

static void R14_a_waiter_has_nothing_to_renew(void **state) {
  (void)state;
  needs(DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
  struct party *p = party();
  struct dibs__lease_op held = held_with_waiters(p, 1);
  expect(renew(p, "n", 2, held.fence), DIBS_LOST);
  expect(release(p, "n", 2, held.fence), DIBS_LOST);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  expect(renew(p, "n", 2, DIBS__FENCE_NONE), DIBS_LOST);
  expect(acquire(p, "n", 2), DIBS_OK);
}

static void R14_an_ended_lease_may_be_acquired_again(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  expect(renew(p, "n", 1, held.fence), DIBS_LOST);
  struct dibs__lease_op again = acquire(p, "n", 1);
  expect(again, DIBS_OK);
  assert_true(dibs__fence_below(held.fence, again.fence));
}

static void R14_each_shared_holder_ends_by_itself(void **state) {
  (void)state;
  needs(DIBS__CAP_SHARED);
  struct party *p = party();
  expect(acquire(p, "n", 1, .mode = DIBS_SHARED, .ttl = ttl() / 2), DIBS_OK);
  expect(acquire(p, "n", 2, .mode = DIBS_SHARED, .ttl = ttl() * 2), DIBS_OK);
  advance_time(p, ttl() / 2 + 1);
  expect(renew(p, "n", 1, DIBS__FENCE_NONE), DIBS_LOST);
  expect(renew(p, "n", 2, DIBS__FENCE_NONE, .ttl = ttl() * 2), DIBS_OK);
  expect(acquire(p, "n", 3, .try_only = true), DIBS_HELD);
}

/* ---- R39 ---- */

/* A session lock belongs to its session. */
static struct party *who_adopts(struct party *holder) {
  return holder->identity.caps & DIBS__CAP_SESSION ? holder : party();
}

static void R39_the_id_alone_renews(void **state) {
  (void)state;
  struct party *p = party(), *q = who_adopts(p);
  struct dibs__lease_op held = acquire(p, "n", 1);
  struct dibs__lease_op renewed = renew(q, "n", 1, DIBS__FENCE_NONE, .ttl = ttl() * 2);
  expect(renewed, DIBS_OK);
  assert_int_equal(renewed.fence.v, held.fence.v);
  assert_int_equal(renewed.got_block, 1);
  advance_time(p, ttl() + 1);
  expect(acquire(q, "n", 2, .try_only = true), DIBS_HELD);
  expect(renew(p, "n", 1, held.fence), DIBS_OK);
  expect(renew(p, "n", 2, DIBS__FENCE_NONE), DIBS_LOST);
  expect(renew(p, "m", 1, DIBS__FENCE_NONE), DIBS_LOST);
  expect(cancel(p, "m", 1), DIBS_NOT_FOUND); /* it was granted nothing */
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  expect(renew(p, "n", 1, DIBS__FENCE_NONE), DIBS_LOST);
}

static void R39_the_id_alone_learns_the_latest_block(void **state) {
  (void)state;
  needs(DIBS__CAP_BLOCKS);
  struct party *p = party(), *q = who_adopts(p);
  struct dibs__lease_op held = acquire(p, "n", 1, .block = 8);
  expect(held, DIBS_OK);
  struct dibs__lease_op renewed = renew(q, "n", 1, DIBS__FENCE_NONE);
  expect(renewed, DIBS_OK);
  assert_int_equal(renewed.fence.v, held.fence.v);
  assert_int_equal(renewed.got_block, held.got_block);
  struct dibs__lease_op drawn = renew(p, "n", 1, held.fence, .block = 4);
  expect(drawn, DIBS_OK);
  renewed = renew(q, "n", 1, DIBS__FENCE_NONE);
  expect(renewed, DIBS_OK);
  assert_int_equal(renewed.fence.v, drawn.fence.v);
  assert_int_equal(renewed.got_block, drawn.got_block);
  assert_true(dibs__fence_below(held.fence, renewed.fence));
}

static void R39_the_id_alone_renews_no_broken_one(void **state) {
  (void)state;
  struct party *p = party();
  expect(acquire(p, "n", 1), DIBS_OK);
  expect(break_it(p, "n", false), DIBS_OK);
  expect(renew(p, "n", 1, DIBS__FENCE_NONE), DIBS_LOST);
  expect(acquire(p, "m", 2), DIBS_OK);
  advance_past_ttl(p);
  expect(renew(p, "m", 2, DIBS__FENCE_NONE), DIBS_LOST);
}

/* ---- R15 ---- */

static void R15_cancel_of_nothing(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op nothing = cancel(p, "n", 1);
  expect(nothing, DIBS_NOT_FOUND);
  assert_int_equal(nothing.was, DIBS__WAS_NOTHING);
  expect(acquire(p, "n", 2), DIBS_OK);
  expect(cancel(p, "n", 1), DIBS_NOT_FOUND);
}

static void R15_cancel_of_a_waiter(void **state) {
  (void)state;
  needs(DIBS__CAP_FIFO);
  struct party *p = party();
  struct dibs__lease_op held = held_with_waiters(p, 2);
  expect_was(cancel(p, "n", 2), DIBS__WAS_WAITING);
  expect(cancel(p, "n", 2), DIBS_NOT_FOUND);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  expect(acquire(p, "n", 3), DIBS_OK);
}

static void R15_cancel_of_a_sleeper(void **state) {
  (void)state;
  needs(DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
  struct party *p = party();
  struct dibs__lease_op held = held_with_waiters(p, 1);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  advance_past_offer(p);
  expect_was(cancel(p, "n", 2), DIBS__WAS_WAITING);
}

static void R15_cancel_of_an_offer_passes_it_on(void **state) {
  (void)state;
  needs(DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
  struct party *p = party();
  struct dibs__lease_op held = held_with_waiters(p, 2);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  expect_was(cancel(p, "n", 2), DIBS__WAS_OFFERED);
  expect(acquire(p, "n", 3), DIBS_OK);
}

static void R15_cancel_of_a_lease_passes_it_on(void **state) {
  (void)state;
  needs(DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
  struct party *p = party();
  struct dibs__lease_op held = held_with_waiters(p, 1);
  expect_was(cancel(p, "n", 1), DIBS__WAS_HELD);
  expect(renew(p, "n", 1, held.fence), DIBS_LOST);
  expect(acquire(p, "n", 2), DIBS_OK);
}

static void R15_cancel_of_an_ended_lease(void **state) {
  (void)state;
  struct party *p = party();
  expect(acquire(p, "n", 1), DIBS_OK);
  advance_past_ttl(p);
  expect(cancel(p, "n", 1), DIBS_NOT_FOUND);
}

static void R15_cancel_of_a_broken_lease(void **state) {
  (void)state;
  struct party *p = party();
  expect(acquire(p, "n", 1), DIBS_OK);
  expect(break_it(p, "n", false), DIBS_OK);
  expect_was(cancel(p, "n", 1), DIBS__WAS_HELD);
  expect(acquire(p, "n", 2, .try_only = true), DIBS_OK);
}

static void R15_cancel_of_one_shared_holder_leaves_the_others(void **state) {
  (void)state;
  needs(DIBS__CAP_SHARED);
  struct party *p = party();
  expect(acquire(p, "n", 1, .mode = DIBS_SHARED), DIBS_OK);
  expect(acquire(p, "n", 2, .mode = DIBS_SHARED), DIBS_OK);
  expect(cancel(p, "n", 1), DIBS_OK);
  expect(acquire(p, "n", 3, .try_only = true), DIBS_HELD);
  expect(renew(p, "n", 2, DIBS__FENCE_NONE), DIBS_OK);
}

/* ---- R16 ---- */

static void R16_a_broken_lease_is_kept_but_not_renewed(void **state) {
  (void)state;
  struct party *p = party(), *q = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  struct dibs__lease_op broken = break_it(breaking_party(p, q), "n", false);
  expect(broken, DIBS_OK);
  int64_t later_ms = told_ms() > target()->slack_ms ? told_ms() : target()->slack_ms;
  assert_in_range(broken.until.ms, held.until.ms - told_ms(), held.until.ms + later_ms);
  expect(renew(p, "n", 1, held.fence), DIBS_LOST);
  expect(acquire(p, "n", 1), DIBS_LOST);
  expect(acquire(q, "n", 2, .try_only = true), DIBS_HELD);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  expect(acquire(q, "n", 2, .try_only = true), DIBS_OK);
}

static void R16_a_broken_lease_ends_at_its_ttl(void **state) {
  (void)state;
  struct party *p = party(), *q = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(break_it(breaking_party(p, q), "n", false), DIBS_OK);
  advance_past_ttl(p);
  expect(release(p, "n", 1, held.fence), DIBS_LOST);
  struct dibs__lease_op next = acquire(p, "n", 1, .try_only = true);
  expect(next, DIBS_OK);
  assert_true(dibs__fence_below(held.fence, next.fence));
}

static void R16_a_name_broken_with_now_is_free_at_once(void **state) {
  (void)state;
  struct party *p = party(), *q = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(break_it(q, "n", true), DIBS_OK);
  expect(renew(p, "n", 1, held.fence), DIBS_LOST);
  expect(release(p, "n", 1, held.fence), DIBS_LOST);
  struct dibs__lease_op next = acquire(q, "n", 2, .try_only = true);
  expect(next, DIBS_OK);
  assert_true(dibs__fence_below(held.fence, next.fence));
}

static void R16_a_name_broken_with_now_goes_to_the_next_waiter(void **state) {
  (void)state;
  needs(DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
  struct party *p = party(), *q = party();
  expect(acquire(p, "n", 1), DIBS_OK);
  expect(acquire(q, "n", 2), DIBS__QUEUED);
  expect(break_it(p, "n", true), DIBS_OK);
  expect(acquire(p, "n", 3, .try_only = true), DIBS_HELD);
  expect(acquire(q, "n", 2), DIBS_OK);
}

static void R16_a_break_may_be_followed_by_a_break_with_now(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(break_it(p, "n", false), DIBS_OK);
  expect(break_it(p, "n", false), DIBS_OK);
  expect(break_it(p, "n", true), DIBS_OK);
  expect(break_it(p, "n", true), DIBS_NOT_FOUND);
  expect(release(p, "n", 1, held.fence), DIBS_LOST);
}

static struct dibs__lease_op cancel_wait(struct party *p, const char *name, int id) {
  struct dibs__lease_op op = lease_op(p, DIBS__CANCEL, name, id, (struct how){.mode = 0});
  struct dibs__op *ops[] = {&op.op};
  op.only_waits = true;
  run_batch(p, ops, 1);
  return op;
}

static void R84_a_lease_outlives_a_cancel_of_the_queue(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(cancel_wait(p, "n", 1), DIBS_NOT_FOUND);
  expect(renew(p, "n", 1, held.fence), DIBS_OK);
  expect(cancel_wait(p, "n", 2), DIBS_NOT_FOUND);
  expect(cancel_wait(p, "other", 2), DIBS_NOT_FOUND);
}

static void R84_a_confirmed_offer_outlives_a_cancel_of_the_queue(void **state) {
  (void)state;
  needs(DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
  struct party *p = party();
  struct dibs__lease_op held = held_with_waiters(p, 1);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  struct dibs__lease_op got = acquire(p, "n", 2);
  expect(got, DIBS_OK);
  expect(cancel_wait(p, "n", 2), DIBS_NOT_FOUND);
  expect(renew(p, "n", 2, got.fence), DIBS_OK);
}

static void R84_a_waiter_and_an_offer_are_removed(void **state) {
  (void)state;
  needs(DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
  struct party *p = party();
  struct dibs__lease_op held = held_with_waiters(p, 3);
  expect_was(cancel_wait(p, "n", 2), DIBS__WAS_WAITING);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  expect_was(cancel_wait(p, "n", 3), DIBS__WAS_OFFERED);
  expect(acquire(p, "n", 4), DIBS_OK);
}

static void R84_a_waiter_of_another_session_stays(void **state) {
  (void)state;
  needs(DIBS__CAP_FIFO);
  needs_rows();
  if (target()->one_session) skip();
  struct party *p = party(), *q = party();
  struct dibs__lease_op held = held_with_waiters(p, 1);
  expect(acquire(q, "n", 2), DIBS__QUEUED);
  expect(cancel_wait(p, "n", 2), DIBS_NOT_FOUND);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  expect(cancel_wait(p, "n", 2), DIBS_NOT_FOUND);
  expect(acquire(q, "n", 2), DIBS_OK);
}

static void R16_a_free_name_cannot_be_broken(void **state) {
  (void)state;
  struct party *p = party();
  expect(break_it(p, "n", false), DIBS_NOT_FOUND);
  expect(break_it(p, "n", true), DIBS_NOT_FOUND);
  expect(acquire(p, "n", 1), DIBS_OK);
  advance_past_ttl(p);
  expect(break_it(p, "n", false), DIBS_NOT_FOUND);
}

static void R16_all_shared_holders_are_broken(void **state) {
  (void)state;
  needs(DIBS__CAP_SHARED);
  struct party *p = party();
  expect(acquire(p, "n", 1, .mode = DIBS_SHARED), DIBS_OK);
  struct dibs__lease_op last = acquire(p, "n", 2, .mode = DIBS_SHARED, .ttl = ttl() * 2);
  struct dibs__lease_op broken = break_it(p, "n", false);
  expect(broken, DIBS_OK);
  assert_int_equal(broken.until.ms, last.until.ms);
  expect(renew(p, "n", 1, DIBS__FENCE_NONE), DIBS_LOST);
  expect(renew(p, "n", 2, DIBS__FENCE_NONE), DIBS_LOST);
  /* The readers still hold the name, so another reader may join them. */
  expect(acquire(p, "n", 3, .mode = DIBS_SHARED, .try_only = true), DIBS_OK);
  expect(renew(p, "n", 3, DIBS__FENCE_NONE), DIBS_OK);
  expect(break_it(p, "n", true), DIBS_OK);
  expect(renew(p, "n", 3, DIBS__FENCE_NONE), DIBS_LOST);
  expect(acquire(p, "n", 4, .try_only = true), DIBS_OK);
}

static void R16_the_author_of_a_break_is_recorded(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(break_it(p, "n", false), DIBS_OK);
  struct seen seen = list_name(p, "n");
  const struct seen_row *row = find_row(&seen, DIBS__BROKEN, "breaker");
  assert_non_null(row);
  assert_int_equal(row->row.fence.v, held.fence.v);
  assert_string_equal(row->from, "somebody");
  assert_non_null(find_row(&seen, DIBS__BREAKING, "somebody"));
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  seen = list_name(p, "n");
  assert_int_equal(seen.count, 1);
  assert_non_null(find_row(&seen, DIBS__BROKEN, "breaker"));
}

static void R16_the_last_sixteen_breaks_are_kept(void **state) {
  (void)state;
  struct party *p = party();
  dibs__fence last = DIBS__FENCE_NONE;
  for (int i = 0; i < 20; i++) {
    struct dibs__lease_op held = acquire(p, "n", i);
    expect(held, DIBS_OK);
    last = held.fence;
    expect(break_it(p, "n", true), DIBS_OK);
  }
  struct seen seen = list_name(p, "n");
  assert_int_equal(seen.count, 16);
  for (size_t i = 0; i < seen.count; i++) assert_int_equal(seen.rows[i].row.state, DIBS__BROKEN);
  assert_int_equal(seen.rows[15].row.fence.v, last.v);
}

static const struct CMUnitTest contract_ends_cases[] = {
    CASE(R14_an_ended_lease_cannot_be_renewed_or_released),
    CASE(R14_a_late_release_does_not_touch_the_next_holder),
    CASE(R14_another_id_is_refused),
    CASE(R14_another_fence_is_refused),
    CASE(R14_shared_and_counted_leases_have_only_fence_0),
    CASE(R14_a_waiter_has_nothing_to_renew),
    CASE(R14_an_ended_lease_may_be_acquired_again),
    CASE(R14_each_shared_holder_ends_by_itself),
    CASE(R39_the_id_alone_renews),
    CASE(R39_the_id_alone_learns_the_latest_block),
    CASE(R39_the_id_alone_renews_no_broken_one),
    CASE(R15_cancel_of_nothing),
    CASE(R15_cancel_of_a_waiter),
    CASE(R15_cancel_of_a_sleeper),
    CASE(R15_cancel_of_an_offer_passes_it_on),
    CASE(R15_cancel_of_a_lease_passes_it_on),
    CASE(R15_cancel_of_an_ended_lease),
    CASE(R15_cancel_of_a_broken_lease),
    CASE(R15_cancel_of_one_shared_holder_leaves_the_others),
    CASE(R16_a_broken_lease_is_kept_but_not_renewed),
    CASE(R16_a_broken_lease_ends_at_its_ttl),
    CASE(R16_a_name_broken_with_now_is_free_at_once),
    CASE(R16_a_name_broken_with_now_goes_to_the_next_waiter),
    CASE(R16_a_break_may_be_followed_by_a_break_with_now),
    CASE(R84_a_lease_outlives_a_cancel_of_the_queue),
    CASE(R84_a_confirmed_offer_outlives_a_cancel_of_the_queue),
    CASE(R84_a_waiter_and_an_offer_are_removed),
    CASE(R84_a_waiter_of_another_session_stays),
    CASE(R16_a_free_name_cannot_be_broken),
    CASE(R16_all_shared_holders_are_broken),
    CASE(R16_the_author_of_a_break_is_recorded),
    CASE(R16_the_last_sixteen_breaks_are_kept),
};
CONTRACT_TESTS(contract_ends);

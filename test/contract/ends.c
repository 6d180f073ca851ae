/* SPDX-License-Identifier: MIT */
/* How a lease ends: late and foreign renewals and releases (R14), cancel (R15), breaking (R16). */
#include "harness.h"

#include <string.h>

/* ---- R14 ---- */

static void R14_an_ended_lease_can_not_be_renewed_or_released(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  pass_ttl(p);
  expect(renew(p, "n", 1, held.fence), DIBS_LOST);
  expect(release(p, "n", 1, held.fence), DIBS_LOST);
  expect(acquire(p, "n", 2, .try_only = true), DIBS_OK);
}

static void R14_a_late_release_does_not_touch_the_next_holder(void **state) {
  (void)state;
  struct party *p = party(), *q = party();
  struct dibs__lease_op old = acquire(p, "n", 1);
  pass_ttl(p);
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
  /* The same id again: another grant. */
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(renew(p, "n", 1, first.fence), DIBS_LOST);
  expect(release(p, "n", 1, first.fence), DIBS_LOST);
  expect(renew(p, "n", 1, DIBS__FENCE_NONE), DIBS_LOST);
  expect(release(p, "n", 1, DIBS__FENCE_NONE), DIBS_LOST);
  expect(renew(p, "n", 1, (dibs__fence){held.fence.v + 1}), DIBS_LOST);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
}

static void R14_shared_and_counted_have_fence_0_only(void **state) {
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
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  expect(renew(p, "n", 2, held.fence), DIBS_LOST);
  expect(release(p, "n", 2, held.fence), DIBS_LOST);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  expect(renew(p, "n", 2, DIBS__FENCE_NONE), DIBS_LOST);
  expect(acquire(p, "n", 2), DIBS_OK);
}

static void R14_the_same_lease_may_be_had_again(void **state) {
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
  pass(p, ttl() / 2 + 1);
  expect(renew(p, "n", 1, DIBS__FENCE_NONE), DIBS_LOST);
  expect(renew(p, "n", 2, DIBS__FENCE_NONE, .ttl = ttl() * 2), DIBS_OK);
  expect(acquire(p, "n", 3, .try_only = true), DIBS_HELD);
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
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  expect(acquire(p, "n", 3), DIBS__QUEUED);
  expect_was(cancel(p, "n", 2), DIBS__WAS_WAITING);
  expect(cancel(p, "n", 2), DIBS_NOT_FOUND);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  expect(acquire(p, "n", 3), DIBS_OK);
}

static void R15_cancel_of_a_sleeper(void **state) {
  (void)state;
  needs(DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  pass_offer(p);
  expect_was(cancel(p, "n", 2), DIBS__WAS_WAITING);
}

static void R15_cancel_of_an_offer_passes_it_on(void **state) {
  (void)state;
  needs(DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  expect(acquire(p, "n", 3), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  expect_was(cancel(p, "n", 2), DIBS__WAS_OFFERED);
  expect(acquire(p, "n", 3), DIBS_OK);
}

static void R15_cancel_of_a_lease_passes_it_on(void **state) {
  (void)state;
  needs(DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  expect_was(cancel(p, "n", 1), DIBS__WAS_HELD);
  expect(renew(p, "n", 1, held.fence), DIBS_LOST);
  expect(acquire(p, "n", 2), DIBS_OK);
}

static void R15_cancel_of_an_ended_lease(void **state) {
  (void)state;
  struct party *p = party();
  expect(acquire(p, "n", 1), DIBS_OK);
  pass_ttl(p);
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
  struct dibs__lease_op broken = break_it(who_breaks(p, q), "n", false);
  expect(broken, DIBS_OK);
  assert_in_range(broken.until.ms, held.until.ms - target()->told_ms, held.until.ms + target()->slack_ms);
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
  expect(break_it(who_breaks(p, q), "n", false), DIBS_OK);
  pass_ttl(p);
  expect(release(p, "n", 1, held.fence), DIBS_LOST);
  struct dibs__lease_op next = acquire(p, "n", 1, .try_only = true);
  expect(next, DIBS_OK);
  assert_true(dibs__fence_below(held.fence, next.fence));
}

static void R16_broken_at_once_is_free_at_once(void **state) {
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

static void R16_broken_at_once_goes_to_the_next_in_line(void **state) {
  (void)state;
  needs(DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
  struct party *p = party(), *q = party();
  expect(acquire(p, "n", 1), DIBS_OK);
  expect(acquire(q, "n", 2), DIBS__QUEUED);
  expect(break_it(p, "n", true), DIBS_OK);
  expect(acquire(p, "n", 3, .try_only = true), DIBS_HELD);
  expect(acquire(q, "n", 2), DIBS_OK);
}

static void R16_asked_first_then_at_once(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(break_it(p, "n", false), DIBS_OK);
  expect(break_it(p, "n", false), DIBS_OK);
  expect(break_it(p, "n", true), DIBS_OK);
  expect(break_it(p, "n", true), DIBS_NOT_FOUND);
  expect(release(p, "n", 1, held.fence), DIBS_LOST);
}

static void R16_there_is_nothing_to_break(void **state) {
  (void)state;
  struct party *p = party();
  expect(break_it(p, "n", false), DIBS_NOT_FOUND);
  expect(break_it(p, "n", true), DIBS_NOT_FOUND);
  expect(acquire(p, "n", 1), DIBS_OK);
  pass_ttl(p);
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
  /* They still hold, so another reader may join them. */
  expect(acquire(p, "n", 3, .mode = DIBS_SHARED, .try_only = true), DIBS_OK);
  expect(renew(p, "n", 3, DIBS__FENCE_NONE), DIBS_OK);
  expect(break_it(p, "n", true), DIBS_OK);
  expect(renew(p, "n", 3, DIBS__FENCE_NONE), DIBS_LOST);
  expect(acquire(p, "n", 4, .try_only = true), DIBS_OK);
}

static void R16_who_broke_it_is_recorded(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(break_it(p, "n", false), DIBS_OK);
  struct seen seen = list_name(p, "n");
  const struct seen_row *row = find_row(&seen, DIBS_BROKEN, "breaker");
  assert_non_null(row);
  assert_int_equal(row->row.fence.v, held.fence.v);
  assert_non_null(find_row(&seen, DIBS_BREAKING, "somebody"));
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  seen = list_name(p, "n");
  assert_int_equal(seen.count, 1);
  assert_non_null(find_row(&seen, DIBS_BROKEN, "breaker"));
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
  for (size_t i = 0; i < seen.count; i++) assert_int_equal(seen.rows[i].row.state, DIBS_BROKEN);
  assert_int_equal(seen.rows[15].row.fence.v, last.v);
}

static const struct CMUnitTest contract_ends_cases[] = {
    CASE(R14_an_ended_lease_can_not_be_renewed_or_released),
    CASE(R14_a_late_release_does_not_touch_the_next_holder),
    CASE(R14_another_id_is_refused),
    CASE(R14_another_fence_is_refused),
    CASE(R14_shared_and_counted_have_fence_0_only),
    CASE(R14_a_waiter_has_nothing_to_renew),
    CASE(R14_the_same_lease_may_be_had_again),
    CASE(R14_each_shared_holder_ends_by_itself),
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
    CASE(R16_broken_at_once_is_free_at_once),
    CASE(R16_broken_at_once_goes_to_the_next_in_line),
    CASE(R16_asked_first_then_at_once),
    CASE(R16_there_is_nothing_to_break),
    CASE(R16_all_shared_holders_are_broken),
    CASE(R16_who_broke_it_is_recorded),
    CASE(R16_the_last_sixteen_breaks_are_kept),
};
CONTRACT_TESTS(contract_ends);

/* SPDX-License-Identifier: MIT */
/* Which leases may be held at the same time (R8, R9), and repeated requests (R2, R37, R38, R52). */
#include "harness.h"

#include <stdio.h>

/* ---- R2 ---- */

static void R2_a_repeated_acquire_finds_its_grant(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op first = acquire(p, "n", 1, .block = 8);
  expect(first, DIBS_OK);
  advance_time(p, 60);
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
  struct dibs__lease_op renewed = renew(p, "n", 2, DIBS__FENCE_NONE);
  expect(renewed, DIBS_OK);
  assert_int_equal(renewed.slot, 1);
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

static void R2_a_repeated_wait_keeps_its_ticket_and_position(void **state) {
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
  /* A client that lost the answer has no ticket, and its re-check does not set `queue`. */
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

/* ---- R37 ---- */

/* When a lease was granted or renewed: by our clock, and by how far we moved the store's clock. */
struct since {
  dibs__tick at;
  int64_t time_advanced;
};

static struct since since_now(void) {
  return (struct since){dibs__tick_now(), time_advanced()};
}

/* A lease of `ttl_ms` that began before `then` has no more than the rest of it left, in the answer to a request that
 * was sent at `requested`. */
static void expect_left(const struct dibs__lease_op *op, struct since then, struct since requested, int64_t ttl_ms) {
  int64_t gone_ms = (requested.at.ns - then.at.ns) / DIBS__NS_PER_MS + requested.time_advanced - then.time_advanced;
  int64_t left_ms = op->until.ms - op->op.at.ms, rounding_ms = 2 + told_ms();
  if (left_ms > ttl_ms - gone_ms + rounding_ms)
    fail_msg("%lld ms are left of %lld ms, after %lld ms", (long long)left_ms, (long long)ttl_ms, (long long)gone_ms);
  assert_true(left_ms > 0);
}

static void repeated_with(uint32_t mode) {
  struct how how = {.mode = mode, .slots = mode == DIBS_COUNTED ? 2 : 0, .ttl = ttl()};
  struct party *p = party(), *q = has_cap(DIBS__CAP_SESSION) ? p : party();
  struct dibs__lease_op first = acquire_as(p, "n", 1, how);
  struct since then = since_now(), requested;
  expect(first, DIBS_OK);
  const uint32_t ttls[] = {ttl(), ttl() * 3, ttl() / 20};
  for (size_t i = 0; i < sizeof ttls / sizeof ttls[0]; i++) {
    advance_time(p, ttl() / 8);
    how.ttl = ttls[i];
    requested = since_now();
    struct dibs__lease_op again = acquire_as(i % 2 ? p : q, "n", 1, how);
    expect(again, DIBS_OK);
    assert_in_range(again.until.ms + told_ms() - first.until.ms, 0, 2 * told_ms());
    expect_left(&again, then, requested, ttl());
  }
  advance_time(p, ttl() * 5 / 8 + 2 + target()->slack_ms); /* the longer ttl did not move the end either */
  expect(acquire(p, "n", 2, .try_only = true), DIBS_OK);
}

static void R37_a_repeated_acquire_has_the_remaining_time(void **state) {
  (void)state;
  repeated_with(DIBS_EXCLUSIVE);
}

static void R37_a_repeated_shared_acquire_has_the_remaining_time(void **state) {
  (void)state;
  needs(DIBS__CAP_SHARED);
  repeated_with(DIBS_SHARED);
}

static void R37_a_repeated_counted_acquire_has_the_remaining_time(void **state) {
  (void)state;
  needs(DIBS__CAP_COUNTED);
  repeated_with(DIBS_COUNTED);
}

/* The same holds for several in one batch, and for a name that another client waits for. */
static void R37_each_answer_has_the_remaining_time(void **state) {
  (void)state;
  struct party *p = party();
  struct since requested = since_now();
  struct dibs__lease_op one = acquire(p, "one", 1), two = acquire(p, "two", 2, .ttl = ttl() * 2);
  struct since then = since_now();
  expect_left(&one, then, requested, ttl());
  expect_left(&two, then, requested, ttl() * 2);
  (void)acquire(p, "one", 3); /* waits, if the store has a queue */
  advance_time(p, ttl() / 4);
  struct dibs__lease_op again = lease_op(p, DIBS__ACQUIRE, "one", 1, (struct how){.ttl = ttl()});
  struct dibs__lease_op renewed = lease_op(p, DIBS__RENEW, "two", 2, (struct how){.ttl = ttl()});
  struct dibs__lease_op fresh = lease_op(p, DIBS__ACQUIRE, "three", 4, (struct how){.ttl = ttl() * 3});
  renewed.fence = two.fence;
  struct dibs__op *ops[] = {&again.op, &renewed.op, &fresh.op};
  requested = since_now();
  run_batch(p, ops, 3);
  expect(again, DIBS_OK);
  expect(renewed, DIBS_OK);
  expect(fresh, DIBS_OK);
  expect_left(&again, then, requested, ttl());
  expect_left(&renewed, requested, requested, ttl());
  expect_left(&fresh, requested, requested, ttl() * 3);
}

/* ---- R38 ---- */

static void R38_one_id_with_two_names_is_two_leases(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op one = acquire(p, "one", 1), two = acquire(p, "two", 1);
  expect(one, DIBS_OK);
  expect(two, DIBS_OK);
  expect(release(p, "one", 1, one.fence), DIBS_OK);
  expect(renew(p, "two", 1, two.fence), DIBS_OK);
  expect(acquire(p, "two", 2, .try_only = true), DIBS_HELD);
}

static void R38_the_holder_of_one_name_has_no_position_at_another(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "two", 2), one = acquire(p, "one", 1);
  expect(acquire(p, "two", 1, .try_only = true), DIBS_HELD);
  expect(cancel(p, "two", 1), DIBS_NOT_FOUND);
  if (p->identity.caps & DIBS__CAP_FIFO) {
    expect(acquire(p, "two", 1), DIBS__QUEUED);
    expect_was(cancel(p, "two", 1), DIBS__WAS_WAITING);
  }
  expect(renew(p, "one", 1, one.fence), DIBS_OK);
  expect(renew(p, "two", 2, held.fence), DIBS_OK);
}

/* ---- R8 ---- */

static void R8_a_lease_ends_at_until_by_the_stores_clock(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect_until(p, &held, ttl());
  advance_time(p, ttl() / 2);
  expect(acquire(p, "n", 2, .try_only = true), DIBS_HELD);
  advance_time(p, held.until.ms - store_now(p) + target()->slack_ms);
  assert_true(store_now(p) >= held.until.ms);
  expect(acquire(p, "n", 2, .try_only = true), DIBS_OK);
}

static void R8_the_clock_never_goes_back(void **state) {
  (void)state;
  struct party *p = party(), *q = party();
  int64_t last = store_now(p);
  for (int i = 0; i < 50; i++) {
    int64_t now = store_now(i % 2 ? p : q);
    assert_true(now + told_ms() >= last);
    last = now;
  }
}

static void R8_renewal_counts_from_the_stores_now(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  advance_time(p, ttl() / 2);
  struct dibs__lease_op renewed = renew(p, "n", 1, held.fence);
  expect(renewed, DIBS_OK);
  expect_until(p, &renewed, ttl());
  advance_time(p, ttl() * 3 / 4);
  expect(acquire(p, "n", 2, .try_only = true), DIBS_HELD);
  /* A renewal may also shorten the lease. */
  renewed = renew(p, "n", 1, held.fence, .ttl = ttl() / 8);
  expect(renewed, DIBS_OK);
  advance_time(p, ttl() / 8 + 1 + target()->slack_ms);
  expect(acquire(p, "n", 2, .try_only = true), DIBS_OK);
}

static void R8_a_refusal_says_when_to_retry(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  struct dibs__lease_op refused = acquire(p, "n", 2, .try_only = true);
  expect(refused, DIBS_HELD);
  assert_in_range(refused.recheck.ms, held.until.ms, held.until.ms + target()->slack_ms);
  struct dibs__lease_op waits = acquire(p, "n", 3);
  /* A client without events re-checks sooner. */
  if (waits.op.status == DIBS__QUEUED && has_cap(DIBS__CAP_EVENTS))
    assert_in_range(waits.recheck.ms, held.until.ms, held.until.ms + target()->slack_ms);
}

static void R8_the_first_of_several_ends_is_reported(void **state) {
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

static void R9_shared_holders_exclude_all_others(void **state) {
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

static void R9_the_smallest_free_slot_is_granted(void **state) {
  (void)state;
  needs(DIBS__CAP_COUNTED);
  struct party *p = party();
  const struct how how = {.mode = DIBS_COUNTED, .slots = 70, .ttl = 60000}; /* none ends meanwhile on a slow machine */
  for (int i = 0; i < 5; i++) expect(acquire_as(p, "n", i, how), DIBS_OK);
  expect(release(p, "n", 3, DIBS__FENCE_NONE), DIBS_OK);
  expect(release(p, "n", 1, DIBS__FENCE_NONE), DIBS_OK);
  assert_int_equal(acquire_as(p, "n", 10, how).slot, 1);
  assert_int_equal(acquire_as(p, "n", 11, how).slot, 3);
  for (int i = 5; i < 70; i++) assert_int_equal(acquire_as(p, "n", 20 + i, how).slot, i);
  expect(acquire(p, "n", 100, .mode = DIBS_COUNTED, .slots = 70, .try_only = true), DIBS_HELD);
}

static void R9_an_expired_slot_is_granted_again(void **state) {
  (void)state;
  needs(DIBS__CAP_COUNTED);
  struct party *p = party();
  expect(acquire(p, "n", 1, .mode = DIBS_COUNTED, .slots = 2, .ttl = ttl() / 2), DIBS_OK);
  expect(acquire(p, "n", 2, .mode = DIBS_COUNTED, .slots = 2, .ttl = ttl() * 2), DIBS_OK);
  advance_past(p, ttl() / 2);
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
  assert_true(refused.recheck.ms > 0 && refused.recheck.ms <= p->reported.now.ms + offer_ms());
  expect(acquire(p, "n", 2), DIBS_OK);
}

static void R9_counted_offers_take_up_capacity(void **state) {
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

static void R9_a_malformed_operation_is_invalid(void **state) {
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

/* ---- R52 ---- */

/* Replaces the party's session by another one of the same store. */
static void another_session(struct party *p, struct dibs__session **session) {
  struct dibs__session *was = p->session;
  struct dibs__identity identity;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), 5000);
  for (dibs__status status = DIBS_UNAVAILABLE; !*session && status != DIBS_OK;) { /* a shim may inject a failure */
    status = store_of(p)->driver->connect(store_of(p), by, session, &identity, &p->reported);
    assert_true(dibs__tick_before(dibs__tick_now(), by));
  }
  p->session = *session;
  *session = was;
}

static void R52_another_session_renews_and_releases_a_grant(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__session *other = NULL;
  struct dibs__lease_op held = acquire(p, "n", 1), again;
  expect(held, DIBS_OK);
  another_session(p, &other);
  expect(renew(p, "n", 1, held.fence), DIBS_OK);
  again = acquire(p, "n", 1);
  expect(again, DIBS_OK);
  assert_true(again.fence.v == held.fence.v);
  expect(acquire(p, "n", 2, .try_only = true), DIBS_HELD);
  another_session(p, &other);
  expect(renew(p, "n", 1, held.fence), DIBS_OK);
  another_session(p, &other);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  store_of(p)->driver->disconnect(other);
}

/* An engine may use again what an earlier lease has left, and which ends soon (etcd). */
static void R52_a_repeat_by_another_session_ends_no_grant(void **state) {
  (void)state;
  enum { TTL_MS = 500, EARLIER_MS = 1100, TRIES = 8 };
  struct party *p = party(), *q = party();
  for (int i = 0; i < TRIES; i++) {
    char name[16];
    snprintf(name, sizeof name, "n%d", i);
    struct dibs__lease_op earlier = acquire(p, name, 1, .ttl = TTL_MS);
    expect(earlier, DIBS_OK);
    expect(release(p, name, 1, earlier.fence), DIBS_OK);
    dibs__nap_ms(EARLIER_MS);
    dibs__tick sure = dibs__tick_add_ms(dibs__tick_now(), TTL_MS - 100);
    struct dibs__lease_op held = acquire(p, name, 2, .ttl = TTL_MS);
    (void)acquire(q, name, 2, .ttl = TTL_MS);
    (void)renew(q, name, 2, held.fence, .ttl = TTL_MS);
    struct dibs__lease_op other = acquire(q, name, 3, .try_only = true);
    bool in_time = dibs__tick_before(dibs__tick_now(), sure);
    expect(held, DIBS_OK);
    if (!in_time) continue; /* the machine is busy */
    expect(other, DIBS_HELD);
    return;
  }
  skip();
}

static const struct CMUnitTest contract_grants_cases[] = {
    CASE(R2_a_repeated_acquire_finds_its_grant),
    CASE(R2_a_repeated_shared_acquire_counts_once),
    CASE(R2_a_repeated_counted_acquire_keeps_its_slot),
    CASE(R2_another_session_finds_the_grant_by_its_id),
    CASE(R2_a_repeated_wait_keeps_its_ticket_and_position),
    CASE(R2_a_repeated_confirm_finds_the_lease),
    CASE(R37_a_repeated_acquire_has_the_remaining_time),
    CASE(R37_a_repeated_shared_acquire_has_the_remaining_time),
    CASE(R37_a_repeated_counted_acquire_has_the_remaining_time),
    CASE(R37_each_answer_has_the_remaining_time),
    CASE(R38_one_id_with_two_names_is_two_leases),
    CASE(R38_the_holder_of_one_name_has_no_position_at_another),
    CASE(R8_a_lease_ends_at_until_by_the_stores_clock),
    CASE(R8_the_clock_never_goes_back),
    CASE(R8_renewal_counts_from_the_stores_now),
    CASE(R8_a_refusal_says_when_to_retry),
    CASE(R8_the_first_of_several_ends_is_reported),
    CASE(R9_one_exclusive_holder),
    CASE(R9_a_refused_try_leaves_nothing_behind),
    CASE(R9_shared_holders_exclude_all_others),
    CASE(R9_counted_up_to_its_slots),
    CASE(R9_the_smallest_free_slot_is_granted),
    CASE(R9_an_expired_slot_is_granted_again),
    CASE(R9_another_number_of_slots_is_invalid),
    CASE(R9_an_offer_counts_as_a_holder),
    CASE(R9_counted_offers_take_up_capacity),
    CASE(R9_a_malformed_operation_is_invalid),
    CASE(R52_another_session_renews_and_releases_a_grant),
    CASE(R52_a_repeat_by_another_session_ends_no_grant),
};
CONTRACT_TESTS(contract_grants);

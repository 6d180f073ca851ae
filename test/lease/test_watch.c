/* SPDX-License-Identifier: MIT */
/* The watchdog, the loss of a lease before it ends, and breaks. */
#include "help.h"

/* ---- The watchdog ---- */

static void the_watchdog_keeps_a_short_lease(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  struct told told = {.calls = 0};
  enum { TTL_MS = 600 };
  dibs_lease *lease = take(one, "n", .ttl_ms = TTL_MS, .on_lost = count_loss, .user = &told);
  uint64_t fence = dibs_lease_fence(lease).value;
  dibs__tick began = dibs__tick_now();
  while (ms_since(began) < 5 * TTL_MS) {
    assert_int_equal(dibs_lease_alive(lease), 1);
    assert_int_equal(send_request(two, "n"), DIBS_HELD);
    dibs__nap_ms(20);
  }
  assert_int_equal(dibs_lease_fence(lease).value, fence);
  assert_true(stats_of(one).renewed >= 5);
  give(lease);
  assert_int_equal(told.calls, 0);
  assert_int_equal(stats_of(one).lost, 0);
}

static void the_watchdog_keeps_shared_and_counted_leases(void **state) {
  (void)state;
  dibs_store *one = open_store();
  dibs_lease *shared = take(one, "s", .mode = DIBS_SHARED, .ttl_ms = 600);
  dibs_lease *counted = take(one, "c", .mode = DIBS_COUNTED, .slots = 2, .ttl_ms = 600);
  UNTIL(stats_of(one).renewed >= 10);
  assert_true(dibs_lease_alive(shared) && dibs_lease_alive(counted));
  give(shared);
  give(counted);
}

/* ---- Loss ---- */

/* The lifetime counts from before the request: on a slow store the time of the answer would be later by the whole
 * delay. */
static void a_lifetime_counts_from_before_the_request(void **state) {
  (void)state;
  enum { TTL_MS = 2000, SLOW_MS = 400 };
  dibs_store *slow = open_uri(shimmed("latency", "latency.ms=400"), 0);
  dibs__tick before = dibs__tick_now();
  dibs_lease *lease = take(slow, "n", .ttl_ms = TTL_MS, .flags = DIBS_NO_RENEW);
  int64_t past = ms_since(before), left = dibs_lease_left_ms(lease);
  assert_true(past >= SLOW_MS);
  assert_true(left + past < TTL_MS - TTL_MS / 20 + SLOW_MS / 2);
  give(lease);
}

static void a_lease_without_renewal_is_lost_before_it_ends(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  struct told told = {.calls = 0};
  enum { TTL_MS = 500, MARGIN_MS = TTL_MS / 20 };
  dibs__tick before = dibs__tick_now();
  dibs_lease *lease = take(one, "n", .ttl_ms = TTL_MS, .flags = DIBS_NO_RENEW, .on_lost = count_loss, .user = &told);
  dibs__tick after = dibs__tick_now();
  uint64_t fence = dibs_lease_fence(lease).value;
  /* Counted at the latest from before the request, minus the margin. The time is read first, because this thread may be
   * delayed at any point. */
  int64_t past = ms_since(after), left = dibs_lease_left_ms(lease);
  assert_true(left + past <= TTL_MS - MARGIN_MS + 1);
  struct caller next;
  caller_start(&next, two, "n", HOW(.wait_ms = DIBS_FOREVER));
  UNTIL(!dibs_lease_alive(lease));
  assert_true(ms_since(before) >= left);
  assert_int_equal(caller_join(&next), DIBS_OK);
  assert_true((next.ended.ns - before.ns) / DIBS__NS_PER_MS >= TTL_MS - 1);
  UNTIL(told.calls == 1);
  assert_int_equal(told.status, DIBS_LOST);
  assert_ptr_equal(told.lease, lease);
  /* The lease stays lost. */
  assert_int_equal(dibs_renew(lease, 0, NULL), DIBS_LOST);
  assert_int_equal(dibs_lease_left_ms(lease), 0);
  assert_int_equal(dibs_lease_fence(lease).value, fence);
  assert_int_equal(dibs_release(lease, NULL), DIBS_LOST);
  assert_int_equal(dibs_release(lease, NULL), DIBS_LOST);
  assert_true(dibs_lease_alive(next.lease));
  assert_int_equal(stats_of(one).lost, 1);
  assert_int_equal(stats_of(one).held, 0);
  dibs_lease_free(lease);
  close_store(one);
  assert_int_equal(told.calls, 1);
  assert_true(dibs_lease_alive(next.lease));
  give(next.lease);
}

static void a_lease_renewed_by_hand_is_not_lost(void **state) {
  (void)state;
  dibs_store *one = open_store();
  struct told told = {.calls = 0};
  dibs_lease *lease = take(one, "n", .ttl_ms = 600, .flags = DIBS_NO_RENEW, .on_lost = count_loss, .user = &told);
  for (int i = 0; i < 15; i++) {
    dibs__nap_ms(100);
    assert_int_equal(dibs_lease_alive(lease), 1);
    assert_int_equal(dibs_renew(lease, 0, NULL), DIBS_OK);
  }
  assert_int_equal(told.calls, 0);
  UNTIL(told.calls == 1);
  dibs_lease_free(lease);
}

static void losses_are_reported_in_the_order_of_their_ends(void **state) {
  (void)state;
  dibs_store *one = open_store();
  struct told told[3] = {0};
  static const char *const names[] = {"a", "b", "c"};
  static const int64_t ttls[] = {900, 300, 600};
  dibs_lease *leases[3];
  for (int i = 0; i < 3; i++)
    leases[i] = take(one, names[i], .ttl_ms = ttls[i], .flags = DIBS_NO_RENEW, .on_lost = count_loss, .user = &told[i]);
  UNTIL(told[1].calls == 1);
  UNTIL(told[2].calls == 1);
  UNTIL(told[0].calls == 1);
  for (int i = 0; i < 3; i++) dibs_lease_free(leases[i]);
}

static void the_loop_reports_a_loss_when_it_dispatches(void **state) {
  (void)state;
  dibs_store *loop = open_uri(case_uri(), DIBS_STORE_LOOP);
  struct told told = {.calls = 0};
  dibs_lease *lease = take(loop, "n", .ttl_ms = 200, .flags = DIBS_NO_RENEW, .on_lost = count_loss, .user = &told);
  UNTIL(stats_of(loop).lost == 1);
  assert_int_equal(told.calls, 0);
  assert_int_equal(dibs_lease_alive(lease), 0);
  assert_int_equal(dibs_dispatch(loop, 0), 1);
  assert_int_equal(told.calls, 1);
  dibs_lease_free(lease);
}

/* The lease is freed before the callback: the callback's data may be freed, too. */
static void a_freed_lease_reports_no_loss(void **state) {
  (void)state;
  dibs_store *loop = open_uri(case_uri(), DIBS_STORE_LOOP);
  struct told told = {.calls = 0};
  dibs_lease *lease = take(loop, "n", .ttl_ms = 200, .flags = DIBS_NO_RENEW, .on_lost = count_loss, .user = &told);
  UNTIL(stats_of(loop).lost == 1);
  dibs_lease_free(lease);
  dibs_dispatch(loop, 0);
  assert_int_equal(told.calls, 0);
}

/* ---- Breaking ---- */

static void a_broken_lease_passes_on_when_its_holder_releases(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  struct told told = {.calls = 0};
  struct later next;
  dibs_lease *lease = take(one, "n", .on_lost = count_loss, .user = &told);
  later_start(&next, two, "n", HOW(.wait_ms = DIBS_FOREVER));
  UNTIL(rows_of(two, "n", DIBS_WAITS) == 1);
  dibs_break_options bo = {.size = sizeof bo, .who = "an admin"};
  assert_int_equal(dibs_break(two, "n", &bo, NULL), DIBS_OK);
  UNTIL(told.calls == 1);
  assert_int_equal(told.status, DIBS_LOST);
  assert_int_equal(dibs_lease_alive(lease), 0);
  assert_int_equal(dibs_renew(lease, 0, NULL), DIBS_LOST);
  assert_int_equal(rows_of(two, "n", DIBS_BREAKING), 1);
  assert_int_equal(next.calls, 0); /* the holder has not released yet */
  assert_int_equal(dibs_release(lease, NULL), DIBS_LOST);
  assert_int_equal(later_wait(&next), DIBS_OK);
  assert_int_equal(rows_of(two, "n", DIBS_BROKEN), 1);
  dibs_lease_free(lease);
  give(next.lease);
}

static void breaking_can_wait_for_the_holder(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *lease = take(one, "n", .ttl_ms = 1000, .flags = DIBS_NO_RENEW);
  dibs_break_options bo = {.size = sizeof bo, .wait_ms = 100};
  assert_int_equal(dibs_break(two, "n", &bo, NULL), DIBS_TIMEOUT);
  assert_int_equal(send_request(two, "n"), DIBS_HELD);
  bo.wait_ms = DIBS_FOREVER;
  assert_int_equal(dibs_break(two, "n", &bo, NULL), DIBS_OK);
  assert_int_equal(send_request(two, "n"), DIBS_OK);
  assert_int_equal(dibs_break(two, "n", NULL, NULL), DIBS_NOT_FOUND);
  assert_int_equal(dibs_break(two, "never", &bo, NULL), DIBS_NOT_FOUND);
  assert_int_equal(dibs_break(two, "", NULL, NULL), DIBS_INVALID);
  bo.wait_ms = -5;
  assert_int_equal(dibs_break(two, "n", &bo, NULL), DIBS_INVALID);
  dibs_lease_free(lease);
}

static void a_lease_broken_with_now_passes_on_at_once(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  struct told told = {.calls = 0};
  dibs_lease *lease = take(one, "n", .on_lost = count_loss, .user = &told);
  dibs_break_options bo = {.size = sizeof bo, .flags = DIBS_BREAK_NOW};
  assert_int_equal(dibs_break(two, "n", &bo, NULL), DIBS_OK);
  dibs_lease *next = take(two, "n");
  assert_true(dibs_lease_fence(next).value > dibs_lease_fence(lease).value);
  UNTIL(told.calls == 1);
  assert_int_equal(dibs_release(lease, NULL), DIBS_LOST);
  assert_true(dibs_lease_alive(next));
  assert_int_equal(dibs_renew(next, 0, NULL), DIBS_OK);
  dibs_lease_free(lease);
  give(next);
}

static void a_break_reaches_every_reader(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  struct told told[3] = {0};
  dibs_lease *readers[3];
  for (int i = 0; i < 3; i++)
    readers[i] = take(i ? one : two, "n", .mode = DIBS_SHARED, .on_lost = count_loss, .user = &told[i]);
  assert_int_equal(dibs_break(two, "n", NULL, NULL), DIBS_OK);
  for (int i = 0; i < 3; i++) {
    UNTIL(told[i].calls == 1);
    dibs_lease_free(readers[i]); /* releases */
  }
  assert_int_equal(send_request(two, "n", .wait_ms = LONG_MS), DIBS_OK);
}

/* A waiter behind a broken holder in the same process gets a grant of its own. */
static void waiters_behind_a_broken_holder_are_served(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  struct told told = {.calls = 0};
  struct later line[3];
  dibs_lease *lease = take(one, "n", .on_lost = count_loss, .user = &told);
  for (int i = 0; i < 3; i++) later_start(&line[i], one, "n", HOW(.wait_ms = DIBS_FOREVER));
  assert_int_equal(dibs_break(two, "n", NULL, NULL), DIBS_OK);
  UNTIL(told.calls == 1);
  assert_int_equal(line[0].calls, 0);
  uint64_t fence = dibs_lease_fence(lease).value;
  dibs_lease_free(lease);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(later_wait(&line[i]), DIBS_OK);
    assert_true(dibs_lease_fence(line[i].lease).value > fence);
    fence = dibs_lease_fence(line[i].lease).value;
    give(line[i].lease);
  }
}

int main(int argc, char *argv[]) {
  const struct CMUnitTest tests[] = {
      TEST(the_watchdog_keeps_a_short_lease),
      TEST(the_watchdog_keeps_shared_and_counted_leases),
      TEST(a_lifetime_counts_from_before_the_request),
      TEST(a_lease_without_renewal_is_lost_before_it_ends),
      TEST(a_lease_renewed_by_hand_is_not_lost),
      TEST(losses_are_reported_in_the_order_of_their_ends),
      TEST(the_loop_reports_a_loss_when_it_dispatches),
      TEST(a_freed_lease_reports_no_loss),
      TEST(a_broken_lease_passes_on_when_its_holder_releases),
      TEST(breaking_can_wait_for_the_holder),
      TEST(a_lease_broken_with_now_passes_on_at_once),
      TEST(a_break_reaches_every_reader),
      TEST(waiters_behind_a_broken_holder_are_served),
  };
  lease_begin(argc, argv);
  return cmocka_run_group_tests(tests, NULL, NULL);
}

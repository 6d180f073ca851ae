/* SPDX-License-Identifier: MIT */
/* What time does to a lease: renewed by itself, lost before it ends, broken by force. */
#include "help.h"

/* ---- The watchdog ---- */

static void watchdog_keeps_a_short_lease(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  struct told told = {.calls = 0};
  enum { TTL_MS = 600 };
  dibs_lease *lease = take(one, "n", .ttl_ms = TTL_MS, .on_lost = told_lost, .user = &told);
  uint64_t fence = dibs_lease_fence(lease);
  dibs__tick began = dibs__tick_now();
  while (ms_since(began) < 5 * TTL_MS) {
    assert_int_equal(dibs_lease_alive(lease), 1);
    assert_int_equal(ask(two, "n"), DIBS_HELD);
    dibs__nap_ms(20);
  }
  assert_int_equal(dibs_lease_fence(lease), fence);
  assert_true(stats_of(one).renewed >= 5);
  give(lease);
  assert_int_equal(told.calls, 0);
  assert_int_equal(stats_of(one).lost, 0);
}

static void shared_and_counted_are_kept_too(void **state) {
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

/* From before it was asked: behind a slow store the time of the answer would be later by all of its slowness. */
static void life_counts_from_before_it_was_asked(void **state) {
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

static void not_renewed_is_lost_before_it_ends(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  struct told told = {.calls = 0};
  enum { TTL_MS = 500, MARGIN_MS = TTL_MS / 20 };
  dibs__tick before = dibs__tick_now();
  dibs_lease *lease = take(one, "n", .ttl_ms = TTL_MS, .flags = DIBS_NO_RENEW, .on_lost = told_lost, .user = &told);
  dibs__tick after = dibs__tick_now();
  uint64_t fence = dibs_lease_fence(lease);
  /* Counted from before it was asked at the latest, and less the margin.  Time is read first: we may be kept from
   * running at any point. */
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
  /* It stays lost. */
  assert_int_equal(dibs_renew(lease, 0, NULL), DIBS_LOST);
  assert_int_equal(dibs_lease_left_ms(lease), 0);
  assert_int_equal(dibs_lease_fence(lease), fence);
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

static void renewed_by_hand_it_is_not_lost(void **state) {
  (void)state;
  dibs_store *one = open_store();
  struct told told = {.calls = 0};
  dibs_lease *lease = take(one, "n", .ttl_ms = 600, .flags = DIBS_NO_RENEW, .on_lost = told_lost, .user = &told);
  for (int i = 0; i < 15; i++) {
    dibs__nap_ms(100);
    assert_int_equal(dibs_lease_alive(lease), 1);
    assert_int_equal(dibs_renew(lease, 0, NULL), DIBS_OK);
  }
  assert_int_equal(told.calls, 0);
  UNTIL(told.calls == 1);
  dibs_lease_free(lease);
}

static void losses_come_in_the_order_of_their_ends(void **state) {
  (void)state;
  dibs_store *one = open_store();
  struct told told[3] = {0};
  static const char *const names[] = {"a", "b", "c"};
  static const int64_t ttls[] = {900, 300, 600};
  dibs_lease *leases[3];
  for (int i = 0; i < 3; i++)
    leases[i] = take(one, names[i], .ttl_ms = ttls[i], .flags = DIBS_NO_RENEW, .on_lost = told_lost, .user = &told[i]);
  UNTIL(told[1].calls == 1);
  UNTIL(told[2].calls == 1);
  UNTIL(told[0].calls == 1);
  for (int i = 0; i < 3; i++) dibs_lease_free(leases[i]);
}

static void loop_tells_of_the_loss_when_dispatched(void **state) {
  (void)state;
  dibs_store *loop = open_uri(case_uri(), DIBS_STORE_LOOP);
  struct told told = {.calls = 0};
  dibs_lease *lease = take(loop, "n", .ttl_ms = 200, .flags = DIBS_NO_RENEW, .on_lost = told_lost, .user = &told);
  UNTIL(stats_of(loop).lost == 1);
  assert_int_equal(told.calls, 0);
  assert_int_equal(dibs_lease_alive(lease), 0);
  assert_int_equal(dibs_dispatch(loop, 0), 1);
  assert_int_equal(told.calls, 1);
  dibs_lease_free(lease);
}

/* Freed before it could be told: the callback's data may be gone too. */
static void freed_is_not_told_of_its_loss(void **state) {
  (void)state;
  dibs_store *loop = open_uri(case_uri(), DIBS_STORE_LOOP);
  struct told told = {.calls = 0};
  dibs_lease *lease = take(loop, "n", .ttl_ms = 200, .flags = DIBS_NO_RENEW, .on_lost = told_lost, .user = &told);
  UNTIL(stats_of(loop).lost == 1);
  dibs_lease_free(lease);
  dibs_dispatch(loop, 0);
  assert_int_equal(told.calls, 0);
}

/* ---- Breaking ---- */

static void broken_is_told_and_passes_when_let_go(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  struct told told = {.calls = 0};
  struct later next;
  dibs_lease *lease = take(one, "n", .on_lost = told_lost, .user = &told);
  later_start(&next, two, "n", HOW(.wait_ms = DIBS_FOREVER));
  UNTIL(rows_of(two, "n", DIBS_WAITS) == 1);
  dibs_break_options bo = {.size = sizeof bo, .who = "an admin"};
  assert_int_equal(dibs_break(two, "n", &bo, NULL), DIBS_OK);
  UNTIL(told.calls == 1);
  assert_int_equal(told.status, DIBS_LOST);
  assert_int_equal(dibs_lease_alive(lease), 0);
  assert_int_equal(dibs_renew(lease, 0, NULL), DIBS_LOST);
  assert_int_equal(rows_of(two, "n", DIBS_BREAKING), 1);
  assert_int_equal(next.calls, 0); /* the holder has not let go yet */
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
  assert_int_equal(ask(two, "n"), DIBS_HELD);
  bo.wait_ms = DIBS_FOREVER;
  assert_int_equal(dibs_break(two, "n", &bo, NULL), DIBS_OK);
  assert_int_equal(ask(two, "n"), DIBS_OK);
  assert_int_equal(dibs_break(two, "n", NULL, NULL), DIBS_NOT_FOUND);
  assert_int_equal(dibs_break(two, "never", &bo, NULL), DIBS_NOT_FOUND);
  assert_int_equal(dibs_break(two, "", NULL, NULL), DIBS_INVALID);
  bo.wait_ms = -5;
  assert_int_equal(dibs_break(two, "n", &bo, NULL), DIBS_INVALID);
  dibs_lease_free(lease);
}

static void broken_now_passes_at_once(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  struct told told = {.calls = 0};
  dibs_lease *lease = take(one, "n", .on_lost = told_lost, .user = &told);
  dibs_break_options bo = {.size = sizeof bo, .flags = DIBS_BREAK_NOW};
  assert_int_equal(dibs_break(two, "n", &bo, NULL), DIBS_OK);
  dibs_lease *next = take(two, "n");
  assert_true(dibs_lease_fence(next) > dibs_lease_fence(lease));
  UNTIL(told.calls == 1);
  assert_int_equal(dibs_release(lease, NULL), DIBS_LOST);
  assert_true(dibs_lease_alive(next));
  assert_int_equal(dibs_renew(next, 0, NULL), DIBS_OK);
  dibs_lease_free(lease);
  give(next);
}

static void breaking_tells_every_reader(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  struct told told[3] = {0};
  dibs_lease *readers[3];
  for (int i = 0; i < 3; i++)
    readers[i] = take(i ? one : two, "n", .mode = DIBS_SHARED, .on_lost = told_lost, .user = &told[i]);
  assert_int_equal(dibs_break(two, "n", NULL, NULL), DIBS_OK);
  for (int i = 0; i < 3; i++) {
    UNTIL(told[i].calls == 1);
    dibs_lease_free(readers[i]); /* lets go */
  }
  assert_int_equal(ask(two, "n", .wait_ms = LONG_MS), DIBS_OK);
}

/* Who stands in line behind a broken holder in its own process gets a grant of its own. */
static void line_behind_a_broken_holder_goes_on(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  struct told told = {.calls = 0};
  struct later line[3];
  dibs_lease *lease = take(one, "n", .on_lost = told_lost, .user = &told);
  for (int i = 0; i < 3; i++) later_start(&line[i], one, "n", HOW(.wait_ms = DIBS_FOREVER));
  assert_int_equal(dibs_break(two, "n", NULL, NULL), DIBS_OK);
  UNTIL(told.calls == 1);
  assert_int_equal(line[0].calls, 0);
  uint64_t fence = dibs_lease_fence(lease);
  dibs_lease_free(lease);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(later_wait(&line[i]), DIBS_OK);
    assert_true(dibs_lease_fence(line[i].lease) > fence);
    fence = dibs_lease_fence(line[i].lease);
    give(line[i].lease);
  }
}

int main(int argc, char *argv[]) {
  const struct CMUnitTest tests[] = {
      TEST(watchdog_keeps_a_short_lease),
      TEST(shared_and_counted_are_kept_too),
      TEST(life_counts_from_before_it_was_asked),
      TEST(not_renewed_is_lost_before_it_ends),
      TEST(renewed_by_hand_it_is_not_lost),
      TEST(losses_come_in_the_order_of_their_ends),
      TEST(loop_tells_of_the_loss_when_dispatched),
      TEST(freed_is_not_told_of_its_loss),
      TEST(broken_is_told_and_passes_when_let_go),
      TEST(breaking_can_wait_for_the_holder),
      TEST(broken_now_passes_at_once),
      TEST(breaking_tells_every_reader),
      TEST(line_behind_a_broken_holder_goes_on),
  };
  lease_begin(argc, argv);
  return cmocka_run_group_tests(tests, NULL, NULL);
}

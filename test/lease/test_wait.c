/* SPDX-License-Identifier: MIT */
/* Waiting: for how long, in which order, and how a waiter leaves. */
#include "help.h"

enum { LINE = 6 };

/* ---- For how long ---- */

static void bounded_wait_ends_in_time(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *lease = take(one, "n");
  dibs_store *from[] = {one, two}; /* in the queue of the process, and in that of the store */
  for (int i = 0; i < 2; i++) {
    dibs__tick began = dibs__tick_now();
    assert_int_equal(send_request(from[i], "n", .wait_ms = 200), DIBS_TIMEOUT);
    assert_true(ms_since(began) >= 200 && ms_since(began) < LONG_MS / 3);
    assert_int_equal(stats_of(from[i]).waiting, 0);
  }
  UNTIL(rows_of(two, "n", DIBS_WAITS) == 0);
  give(lease);
  assert_int_equal(send_request(two, "n"), DIBS_OK);
  assert_int_equal(send_request(one, "n"), DIBS_OK);
}

static void endless_wait_ends_with_the_release(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *lease = take(one, "n");
  struct caller near, server;
  caller_start(&near, one, "n", HOW(.wait_ms = DIBS_FOREVER));
  caller_start(&server, two, "n", HOW(.wait_ms = DIBS_FOREVER));
  UNTIL(stats_of(one).waiting == 1 && rows_of(two, "n", DIBS_WAITS) == 1);
  uint64_t first = dibs_lease_fence(lease).value;
  give(lease);
  struct caller *callers[] = {&near, &server};
  UNTIL(near.over || server.over);
  int winner = near.over ? 0 : 1;
  assert_int_equal(caller_join(callers[winner]), DIBS_OK);
  uint64_t second = dibs_lease_fence(callers[winner]->lease).value;
  assert_true(second > first);
  assert_int_equal(callers[!winner]->over, 0);
  give(callers[winner]->lease);
  assert_int_equal(caller_join(callers[!winner]), DIBS_OK);
  assert_true(dibs_lease_fence(callers[!winner]->lease).value > second);
  give(callers[!winner]->lease);
}

static void count_end(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  (void)error;
  (void)lease;
  (void)status;
  (void)user;
}

static int64_t waits_for_an_end(dibs_store *holder, dibs_store *waiter) {
  dibs_lease *held = take(holder, "n", .ttl_ms = 300, .flags = DIBS_NO_RENEW);
  dibs__tick began = dibs__tick_now();
  assert_int_equal(send_request(waiter, "n", .wait_ms = LONG_MS), DIBS_OK);
  dibs_lease_free(held);
  return dibs__tick_left_ms(began, dibs__tick_now());
}

/* No event reports that a lease expired: a waiter must re-check at that time, also if the receiver is another thread
 * that went to sleep before the waiter existed. Housekeeping would find it, too, once a second: so one of several
 * attempts must be faster than that. */
static void a_sleeping_receiver_serves_a_waiters_timer(void **state) {
  (void)state;
  dibs_store *holder = open_store(), *waiter = open_store();
  dibs_lease *served = take(waiter, "served", .on_lost = count_end); /* from now on a service thread receives events */
  int64_t soonest = INT64_MAX;
  for (int i = 0; i < 8 && soonest > 700; i++) {
    dibs__nap_ms(50); /* it is asleep, or this attempt proves nothing */
    int64_t ms = waits_for_an_end(holder, waiter);
    assert_true(ms >= 250);
    if (ms < soonest) soonest = ms;
  }
  assert_true(soonest <= 700);
  give(served);
}

static void a_waiter_gets_an_expired_name(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  struct caller waiter;
  dibs_lease *lease = take(one, "n", .ttl_ms = 400, .flags = DIBS_NO_RENEW);
  caller_start(&waiter, two, "n", HOW(.wait_ms = DIBS_FOREVER));
  assert_int_equal(caller_join(&waiter), DIBS_OK);
  assert_int_equal(dibs_lease_alive(lease), 0);
  assert_true(dibs_lease_fence(waiter.lease).value > dibs_lease_fence(lease).value);
  assert_int_equal(dibs_release(lease, NULL), DIBS_LOST);
  assert_int_equal(dibs_lease_alive(waiter.lease), 1);
  dibs_lease_free(lease);
  give(waiter.lease);
}

/* ---- In which order ---- */

/* All wait before the first is served; they return in the order of their arrival. */
static void served_in_order(dibs_store *holder, dibs_store *stores[], bool queued) {
  struct caller line[LINE];
  dibs_lease *lease = take(holder, "n");
  for (uint32_t i = 0; i < LINE; i++) {
    caller_start(&line[i], stores[i], "n", HOW(.wait_ms = DIBS_FOREVER));
    if (queued)
      UNTIL(rows_of(holder, "n", DIBS_WAITS) == i + 1);
    else
      UNTIL(stats_of(holder).waiting == i + 1);
  }
  uint64_t fence = dibs_lease_fence(lease).value;
  for (int i = 0; i < LINE; i++) {
    give(lease);
    assert_int_equal(caller_join(&line[i]), DIBS_OK);
    for (int later = i + 1; later < LINE; later++) assert_int_equal(line[later].over, 0);
    lease = line[i].lease;
    assert_true(dibs_lease_fence(lease).value > fence);
    fence = dibs_lease_fence(lease).value;
  }
  give(lease);
}

static void threads_of_one_handle_are_served_in_order(void **state) {
  (void)state;
  dibs_store *store = open_store(), *stores[LINE];
  for (int i = 0; i < LINE; i++) stores[i] = store;
  served_in_order(store, stores, false);
}

static void handles_are_served_in_order(void **state) {
  (void)state;
  dibs_store *stores[LINE];
  for (int i = 0; i < LINE; i++) stores[i] = open_store();
  served_in_order(open_store(), stores, true);
}

static void started_requests_are_served_in_order(void **state) {
  (void)state;
  dibs_store *stores[2] = {open_store(), open_store()};
  for (int s = 0; s < 2; s++) {
    struct later line[LINE];
    dibs_lease *lease = take(stores[0], "n");
    for (int i = 0; i < LINE; i++) later_start(&line[i], stores[s], "n", HOW(.wait_ms = DIBS_FOREVER));
    for (int i = 0; i < LINE; i++) {
      give(lease);
      assert_int_equal(later_wait(&line[i]), DIBS_OK);
      for (int later = i + 1; later < LINE; later++) assert_int_equal(line[later].calls, 0);
      lease = line[i].lease;
    }
    give(lease);
  }
}

static void writer_is_not_starved_by_readers(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *reader = take(one, "n", .mode = DIBS_SHARED);
  struct later writer, behind[2];
  later_start(&writer, two, "n", HOW(.wait_ms = DIBS_FOREVER));
  UNTIL(rows_of(one, "n", DIBS_WAITS) == 1);
  /* Another reader could share the name, but it must not pass the writer. */
  assert_int_equal(send_request(one, "n", .mode = DIBS_SHARED), DIBS_HELD);
  for (int i = 0; i < 2; i++)
    later_start(&behind[i], i ? one : two, "n", HOW(.mode = DIBS_SHARED, .wait_ms = DIBS_FOREVER));
  UNTIL(rows_of(one, "n", DIBS_WAITS) == 3);
  assert_int_equal(writer.calls, 0);
  give(reader);
  assert_int_equal(later_wait(&writer), DIBS_OK);
  assert_int_equal(behind[0].calls + behind[1].calls, 0);
  give(writer.lease);
  for (int i = 0; i < 2; i++) assert_int_equal(later_wait(&behind[i]), DIBS_OK); /* together */
  for (int i = 0; i < 2; i++) give(behind[i].lease);
}

static void counted_waiters_follow_each_other(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *held[2] = {take(one, "n", .mode = DIBS_COUNTED, .slots = 2),
                         take(one, "n", .mode = DIBS_COUNTED, .slots = 2)};
  struct later line[3];
  for (uint32_t i = 0; i < 3; i++) {
    later_start(&line[i], i % 2 ? one : two, "n", HOW(.mode = DIBS_COUNTED, .slots = 2, .wait_ms = DIBS_FOREVER));
    UNTIL(rows_of(one, "n", DIBS_WAITS) == i + 1);
  }
  uint32_t slot = dibs_lease_slot(held[1]);
  give(held[1]);
  assert_int_equal(later_wait(&line[0]), DIBS_OK);
  assert_int_equal(dibs_lease_slot(line[0].lease), slot);
  assert_int_equal(line[1].calls, 0);
  give(held[0]);
  assert_int_equal(later_wait(&line[1]), DIBS_OK);
  assert_int_equal(line[2].calls, 0);
  give(line[1].lease);
  assert_int_equal(later_wait(&line[2]), DIBS_OK);
  give(line[0].lease);
  give(line[2].lease);
}

/* ---- Leaving ---- */

static void leaving_the_queue_keeps_the_other_waiters(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *lease = take(one, "n");
  for (int s = 0; s < 2; s++) {
    struct later line[4];
    for (int i = 0; i < 4; i++) later_start(&line[i], s ? two : one, "n", HOW(.wait_ms = i % 2 ? DIBS_FOREVER : 300));
    assert_int_equal(later_wait(&line[0]), DIBS_TIMEOUT);
    assert_int_equal(later_wait(&line[2]), DIBS_TIMEOUT);
    dibs_lease_free(line[0].lease);
    dibs_lease_free(line[2].lease);
    give(lease);
    assert_int_equal(later_wait(&line[1]), DIBS_OK);
    assert_int_equal(line[3].calls, 0);
    give(line[1].lease);
    assert_int_equal(later_wait(&line[3]), DIBS_OK);
    lease = line[3].lease;
  }
  give(lease);
}

static void a_request_is_cancelled_in_the_process_and_in_the_store(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *lease = take(one, "n");
  struct later near, server, stays;
  later_start(&near, one, "n", HOW(.wait_ms = DIBS_FOREVER));
  later_start(&server, two, "n", HOW(.wait_ms = DIBS_FOREVER));
  UNTIL(rows_of(one, "n", DIBS_WAITS) == 2); /* one waits in the process, one in the store */
  later_start(&stays, two, "n", HOW(.wait_ms = DIBS_FOREVER));
  dibs_acquire_cancel(near.lease);
  dibs_acquire_cancel(server.lease);
  assert_int_equal(later_wait(&near), DIBS_CANCELLED);
  assert_int_equal(later_wait(&server), DIBS_CANCELLED);
  dibs_acquire_cancel(server.lease);
  assert_int_equal(dibs_release(near.lease, NULL), DIBS_INVALID);
  dibs_lease_free(near.lease);
  dibs_lease_free(server.lease);
  dibs_acquire_cancel(lease); /* already holds: without effect */
  assert_int_equal(dibs_lease_alive(lease), 1);
  dibs_acquire_cancel(NULL);
  give(lease);
  assert_int_equal(later_wait(&stays), DIBS_OK);
  assert_int_equal(near.calls + server.calls, 2);
  give(stays.lease);
}

static void freeing_a_waiting_lease_cancels_it(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *lease = take(one, "n");
  struct later waits;
  later_start(&waits, two, "n", HOW(.wait_ms = DIBS_FOREVER));
  UNTIL(rows_of(one, "n", DIBS_WAITS) == 1);
  dibs_lease_free(waits.lease);
  assert_int_equal(later_wait(&waits), DIBS_CANCELLED);
  UNTIL(rows_of(one, "n", DIBS_WAITS) == 0);
  give(lease);
  assert_int_equal(stats_of(two).waiting, 0);
  assert_int_equal(stats_of(two).held, 0);
}

static void cancel_races_with_the_grant(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  for (int round = 0; round < 50; round++) {
    struct later waits;
    /* A request that is cancelled in flight may still be granted, and is then released. */
    dibs_lease *lease = take(one, "n", .wait_ms = LONG_MS);
    later_start(&waits, two, "n", HOW(.wait_ms = DIBS_FOREVER));
    if (round % 2) UNTIL(rows_of(one, "n", DIBS_WAITS) == 1);
    assert_int_equal(dibs_release_start(lease, NULL, NULL, NULL), DIBS_OK);
    dibs_acquire_cancel(waits.lease);
    dibs_status status = later_wait(&waits);
    assert_true(status == DIBS_OK || status == DIBS_CANCELLED);
    assert_int_equal(dibs_lease_alive(waits.lease), status == DIBS_OK);
    dibs_lease_free(waits.lease);
    dibs_lease_free(lease);
    /* In every case the name is free again. */
    assert_int_equal(send_request(one, "n", .wait_ms = LONG_MS), DIBS_OK);
  }
}

/* A caller that gets TIMEOUT no longer waits anywhere. */
static void a_waiter_that_timed_out_is_not_listed(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *held = take(one, "n");
  for (int i = 0; i < 20; i++) {
    dibs__tick requested = dibs__tick_now();
    assert_int_equal(send_request(two, "n", .wait_ms = 10 + i), DIBS_TIMEOUT);
    /* The caller does not wait for a store that takes longer than 100 ms to answer. */
    if (ms_since(requested) >= 100) UNTIL(rows_of(two, "n", DIBS_WAITS) == 0);
    assert_int_equal(rows_of(two, "n", DIBS_WAITS), 0);
  }
  assert_int_equal(stats_of(two).waiting, 0);
  give(held);
}

int main(int argc, char *argv[]) {
  const struct CMUnitTest tests[] = {
      TEST(a_waiter_that_timed_out_is_not_listed),
      TEST(bounded_wait_ends_in_time),
      TEST(endless_wait_ends_with_the_release),
      TEST(a_waiter_gets_an_expired_name),
      TEST(a_sleeping_receiver_serves_a_waiters_timer),
      TEST(threads_of_one_handle_are_served_in_order),
      TEST(handles_are_served_in_order),
      TEST(started_requests_are_served_in_order),
      TEST(writer_is_not_starved_by_readers),
      TEST(counted_waiters_follow_each_other),
      TEST(leaving_the_queue_keeps_the_other_waiters),
      TEST(a_request_is_cancelled_in_the_process_and_in_the_store),
      TEST(freeing_a_waiting_lease_cancels_it),
      TEST(cancel_races_with_the_grant),
  };
  lease_begin(argc, argv);
  return cmocka_run_group_tests(tests, NULL, NULL);
}

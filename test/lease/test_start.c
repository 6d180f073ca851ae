/* SPDX-License-Identifier: MIT */
/* Renewals, listings and breaks that complete later; leases that stay for a time after their release, and leases that
 * are adopted by their id alone. */
#include "drivers/wrap/fault.h"
#include "help.h"

#include <poll.h>
#include <stdio.h>

#define ID_A "00112233445566778899aabbccddeeff"
#define ID_B "ffeeddccbbaa99887766554433221100"

enum { SLACK_MS = 1500 /* a waiter elsewhere checks at least each second */, MINUTE_MS = 60000 };

static void renew_later(struct later *later, dibs_lease *lease, int64_t ttl_ms) {
  *later = (struct later){.status = -1, .lease = lease};
  dibs_error error;
  if (dibs_renew_start(lease, ttl_ms, later_done, later, &error) != DIBS_OK) fail_msg("starting: %s", error.text);
}

/* ---- Renewals ---- */

static void a_renewal_completes_later(void **state) {
  (void)state;
  dibs_store *store = open_store();
  struct later later;
  dibs_lease *lease = take(store, "n", .ttl_ms = 3000, .flags = DIBS_NO_RENEW);
  renew_later(&later, lease, MINUTE_MS);
  assert_int_equal(later_wait(&later), DIBS_OK);
  assert_true(dibs_lease_left_ms(lease) > 50000);
  renew_later(&later, lease, 0); /* and keeps that as its ttl */
  assert_int_equal(later_wait(&later), DIBS_OK);
  assert_true(dibs_lease_left_ms(lease) > 50000);
  assert_int_equal(dibs_renew_start(lease, 2 * MINUTE_MS, NULL, NULL, NULL), DIBS_OK);
  UNTIL(dibs_lease_left_ms(lease) > 110000);
  give(lease);
}

static void a_renewal_is_refused_at_once_or_not_at_all(void **state) {
  (void)state;
  dibs_store *store = open_store();
  struct later never = {.status = -1};
  dibs_lease *lease = take(store, "n");
  assert_int_equal(dibs_renew_start(lease, 99, later_done, &never, NULL), DIBS_INVALID);
  assert_int_equal(dibs_renew_start(lease, DIBS_TTL_MAX_MS + 1, later_done, &never, NULL), DIBS_INVALID);
  assert_int_equal(dibs_renew_start(NULL, 0, later_done, &never, NULL), DIBS_INVALID);
  assert_int_equal(dibs_release(lease, NULL), DIBS_OK);
  assert_int_equal(dibs_renew_start(lease, 0, later_done, &never, NULL), DIBS_INVALID);
  dibs_lease_free(lease);
  close_store(store);
  assert_int_equal(never.calls, 0);
}

/* All wait for the first, which is in flight, and become one. */
static void renewals_that_wait_become_one(void **state) {
  (void)state;
  dibs_store *slow = open_uri(shimmed("latency", "latency.ms=100"), 0);
  struct later later[20];
  dibs_lease *lease = take(slow, "n", .ttl_ms = 30000, .flags = DIBS_NO_RENEW);
  uint64_t before = stats_of(slow).renewed;
  for (int i = 0; i < 20; i++) renew_later(&later[i], lease, 20000 + 1000 * i);
  assert_int_equal(dibs_renew(lease, 100000, NULL), DIBS_OK); /* a blocking one has its turn, too */
  for (int i = 0; i < 20; i++) assert_int_equal(later_wait(&later[i]), DIBS_OK);
  assert_int_equal(stats_of(slow).renewed - before, 2);
  assert_in_range(dibs_lease_left_ms(lease), 90000, 100000);
  give(lease);
}

static void a_broken_lease_is_not_renewed_later(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  struct later later;
  dibs_lease *lease = take(one, "n");
  assert_int_equal(dibs_break(two, "n", NULL, NULL), DIBS_OK);
  *(&later) = (struct later){.status = -1};
  dibs_status begun = dibs_renew_start(lease, 0, later_done, &later, NULL);
  if (begun == DIBS_OK) { /* else it was known already */
    assert_int_equal(later_wait(&later), DIBS_LOST);
    assert_non_null(strstr(later.error.text, "\"n\" is lost"));
  } else {
    assert_int_equal(begun, DIBS_LOST);
  }
  assert_int_equal(dibs_renew_start(lease, 0, later_done, &later, NULL), DIBS_LOST);
  assert_int_equal(dibs_release(lease, NULL), DIBS_LOST);
  dibs_lease_free(lease);
}

/* Nothing changed: neither how long the handle has the lease, nor its ttl. */
static void what_the_store_did_not_shorten_stays(void **state) {
  (void)state;
  dibs_store *faulty = open_uri(shimmed("fault", ""), 0), *two = open_store();
  for (int keeps = 0; keeps < 2; keeps++) {
    dibs_lease *lease = take(faulty, "n", .ttl_ms = 30000, .flags = DIBS_NO_RENEW);
    dibs__fault_arm(&(struct dibs__fault_plan){.on = DIBS__FAULT_RUN, .how = DIBS__FAULT_UNAVAILABLE, .nth = 1});
    assert_int_equal(keeps ? dibs_release_after(lease, 200, NULL) : dibs_renew(lease, 200, NULL), DIBS_UNAVAILABLE);
    dibs__fault_arm(NULL);
    assert_true(dibs_lease_left_ms(lease) > 20000);
    dibs__nap_ms(300);
    assert_int_equal(dibs_lease_alive(lease), 1);
    assert_int_equal(send_request(two, "n"), DIBS_HELD);
    assert_int_equal(dibs_renew(lease, 0, NULL), DIBS_OK);
    assert_true(dibs_lease_left_ms(lease) > 20000);
    give(lease);
  }
}

static bool readable(dibs_store *store, int wait_ms) {
  struct pollfd fd = {.fd = dibs_fd(store), .events = POLLIN};
  return poll(&fd, 1, wait_ms) == 1;
}

static void a_loop_runs_what_completes_later(void **state) {
  (void)state;
  dibs_store *loop = open_uri(case_uri(), DIBS_STORE_LOOP);
  struct later later;
  dibs_lease *lease = take(loop, "n", .ttl_ms = 3000, .flags = DIBS_NO_RENEW);
  renew_later(&later, lease, MINUTE_MS);
  assert_true(readable(loop, LONG_MS));
  assert_int_equal(later.calls, 0);
  assert_int_equal(dibs_dispatch(loop, 0), 1);
  assert_int_equal(later_wait(&later), DIBS_OK);
  assert_false(readable(loop, 0));
  give(lease);
}

struct churn {
  dibs_lease *lease;
  _Atomic bool stop;
  _Atomic uint32_t begun, fine, lost;
};

static void churned(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  struct churn *churn = user;
  (void)lease;
  if (status != DIBS_OK && status != DIBS_LOST) fail_msg("a renewal that raced with a release: %s", error->text);
  atomic_fetch_add(status == DIBS_OK ? &churn->fine : &churn->lost, 1);
}

static void *churn(void *arg) {
  struct churn *churn = arg;
  while (!churn->stop) {
    if (dibs_renew_start(churn->lease, 0, churned, churn, NULL) != DIBS_OK) break;
    atomic_fetch_add(&churn->begun, 1);
    if (churn->begun - churn->fine - churn->lost > 30) dibs__nap_ms(1);
  }
  dibs_lease_free(churn->lease);
  return NULL;
}

/* Each renewal that began is called back once, in any order of events, and the name is free afterwards. */
static void renewals_race_with_the_end_of_their_lease(void **state) {
  (void)state;
  dibs_store *other = open_store(), *store = open_store();
  int rounds = case_at_server() ? 20 : 60;
  for (int round = 0; round < rounds; round++) {
    struct churn churns[3] = {0};
    pthread_t threads[3];
    dibs_lease *lease = take(store, "n", .wait_ms = LONG_MS);
    struct later released = {.status = -1};
    for (int i = 0; i < 3; i++) {
      churns[i].lease = dibs_lease_retain(lease);
      assert_int_equal(pthread_create(&threads[i], NULL, churn, &churns[i]), 0);
    }
    if (round % 2) UNTIL(churns[0].begun > 0);
    switch (round % 5) {
    case 0:
      assert_int_equal(dibs_release(lease, NULL), DIBS_OK);
      break;
    case 1:
      assert_int_equal(dibs_release_start(lease, later_done, &released, NULL), DIBS_OK);
      assert_int_equal(later_wait(&released), DIBS_OK);
      break;
    case 2: /* the last handle goes while renewals are in flight */
      break;
    case 3:
      assert_int_equal(dibs_release_after(lease, 100, NULL), DIBS_OK);
      break;
    case 4:
      close_store(store);
      break;
    }
    for (int i = 0; i < 3; i++) atomic_store(&churns[i].stop, true);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    dibs_lease_free(lease);
    for (int i = 0; i < 3; i++) UNTIL(churns[i].fine + churns[i].lost == churns[i].begun);
    if (round % 5 == 4) store = open_store();
    assert_int_equal(send_request(other, "n", .wait_ms = LONG_MS), DIBS_OK);
  }
}

static void close_ends_what_completes_later(void **state) {
  (void)state;
  for (uint32_t flags = 0; flags <= DIBS_STORE_LOOP; flags++) {
    dibs_store *slow = open_uri(shimmed("latency", "latency.ms=50"), flags);
    struct later later[8];
    dibs_lease *lease = take(slow, "n");
    for (int i = 0; i < 8; i++) renew_later(&later[i], lease, 0);
    close_store(slow);
    for (int i = 0; i < 8; i++) {
      assert_int_equal(later[i].calls, 1);
      assert_true(later[i].status == DIBS_LOST || (i == 0 && later[i].status == DIBS_OK));
    }
    dibs_lease_free(lease);
  }
}

/* ---- A lease that stays for a time ---- */

static void it_stays_for_its_time_and_no_longer(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  struct told told = {.calls = 0};
  for (int i = 0; i < 3; i++) {
    uint32_t flags = i == 1 ? DIBS_NO_RENEW : 0;
    dibs_lease *lease = take(one, "n", .ttl_ms = 30000, .flags = flags, .on_lost = count_loss, .user = &told);
    dibs__tick before = dibs__tick_now();
    assert_int_equal(dibs_release_after(lease, 600, NULL), DIBS_OK);
    assert_int_equal(dibs_lease_alive(lease), 0);
    assert_int_equal(dibs_lease_store_left_ms(lease), 0);
    assert_int_equal(stats_of(one).held, 0);
    assert_int_equal(send_request(two, "n"), DIBS_HELD);
    assert_int_equal(send_request(one, "n"), DIBS_HELD);
    assert_int_equal(dibs_release(lease, NULL), DIBS_LOST); /* which gives nothing back */
    assert_int_equal(dibs_renew(lease, 0, NULL), DIBS_INVALID);
    dibs_lease_free(lease);
    if (i == 2) close_store(one);
    assert_int_equal(send_request(two, "n"), DIBS_HELD);
    assert_int_equal(send_request(two, "n", .wait_ms = LONG_MS), DIBS_OK);
    assert_in_range(ms_since(before), 600, 600 + SLACK_MS);
  }
  assert_int_equal(told.calls, 0);
}

static void none_and_too_long(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_error error;
  dibs_lease *lease = take(one, "n");
  assert_int_equal(dibs_release_after(lease, DIBS_TTL_MAX_MS + 1, &error), DIBS_INVALID);
  assert_non_null(strstr(error.text, "24 h"));
  assert_int_equal(dibs_lease_alive(lease), 1);
  assert_int_equal(dibs_release_after(lease, 0, NULL), DIBS_OK);
  assert_int_equal(send_request(two, "n"), DIBS_OK);
  assert_int_equal(dibs_release_after(lease, 0, NULL), DIBS_LOST);
  assert_int_equal(dibs_release_after(lease, 500, NULL), DIBS_INVALID);
  dibs_lease_free(lease);
  assert_int_equal(dibs_release_after(NULL, 500, NULL), DIBS_INVALID);
  lease = take(one, "n");
  assert_int_equal(dibs_release_after(lease, -5, NULL), DIBS_OK);
  dibs_lease_free(lease);
  /* The least that a store keeps. */
  lease = take(one, "n");
  dibs__tick before = dibs__tick_now();
  assert_int_equal(dibs_release_after(lease, 1, NULL), DIBS_OK);
  dibs_lease_free(lease);
  assert_int_equal(send_request(two, "n", .wait_ms = LONG_MS), DIBS_OK);
  assert_in_range(ms_since(before), DIBS_TTL_MIN_MS, DIBS_TTL_MIN_MS + SLACK_MS);
}

/* Those of this process, in a line behind the holder, and those of another. */
static void waiters_get_it_when_the_time_is_over(void **state) {
  (void)state;
  if (case_by_majority()) skip(); /* it lists no waiters, and knows no order between processes */
  dibs_store *one = open_store(), *two = open_store();
  struct caller near[3], far;
  dibs_lease *lease = take(one, "n", .ttl_ms = 30000);
  for (int i = 0; i < 3; i++) {
    caller_start(&near[i], one, "n", HOW(.wait_ms = LONG_MS));
    UNTIL(stats_of(one).waiting == (uint64_t)i + 1);
  }
  caller_start(&far, two, "n", HOW(.wait_ms = LONG_MS));
  UNTIL(rows_of(one, "n", DIBS_WAITS) >= 4);
  dibs__tick before = dibs__tick_now();
  assert_int_equal(dibs_release_after(lease, 700, NULL), DIBS_OK);
  dibs_lease_free(lease);
  dibs__nap_ms(300);
  assert_int_equal(near[0].over + near[1].over + near[2].over + far.over, 0);
  assert_int_equal(caller_join(&far), DIBS_OK); /* it was in the store's queue before them */
  assert_in_range(ms_since(before), 700, 700 + SLACK_MS);
  give(far.lease);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(caller_join(&near[i]), DIBS_OK);
    give(near[i].lease);
  }
}

/* The renewal of the watchdog, or of the user, would make it longer. */
static void a_renewal_in_flight_does_not_prolong_it(void **state) {
  (void)state;
  dibs_store *slow = open_uri(shimmed("latency", "latency.ms=60"), 0), *two = open_store();
  struct later later, after;
  dibs_lease *lease = take(slow, "n", .ttl_ms = 30000);
  renew_later(&later, lease, MINUTE_MS);
  dibs__tick before = dibs__tick_now();
  assert_int_equal(dibs_release_after(lease, 500, NULL), DIBS_OK);
  int64_t took_ms = ms_since(before);
  assert_int_equal(later_wait(&later), DIBS_OK);
  assert_int_equal(dibs_renew_start(lease, 0, later_done, &after, NULL), DIBS_INVALID);
  dibs_lease_free(lease);
  assert_int_equal(send_request(two, "n", .wait_ms = LONG_MS), DIBS_OK);
  assert_in_range(ms_since(before), 500, 500 + took_ms + SLACK_MS);
}

/* A ttl of 300 ms is renewed each 100 ms, and the release comes at any point of it. */
static void the_watchdog_does_not_prolong_it(void **state) {
  (void)state;
  dibs_store *one = open_uri(shimmed("latency", "latency.ms=20"), 0), *two = open_store();
  int64_t bound_ms = 150 + SLACK_MS;
  for (int i = 0; i < 12; i++) {
    dibs_lease *lease = take(one, "n", .ttl_ms = 300, .wait_ms = LONG_MS);
    dibs__nap_ms(80 + 5 * i);
    dibs__tick before = dibs__tick_now();
    dibs_status status = dibs_release_after(lease, 150, NULL);
    if (status == DIBS_LOST)
      bound_ms = LONG_MS; /* a machine that was busy for 280 ms */
    else
      assert_int_equal(status, DIBS_OK);
    assert_int_equal(send_request(two, "n", .wait_ms = LONG_MS), DIBS_OK);
    assert_true(ms_since(before) <= bound_ms + 100);
    dibs_lease_free(lease);
  }
}

/* The answer takes longer than the name is kept: the work has ended, so nothing is lost. */
static void a_late_answer_is_no_loss(void **state) {
  (void)state;
  dibs_store *slow = open_uri(shimmed("latency", "latency.ms=300"), 0), *two = open_store();
  struct told told = {.calls = 0};
  dibs_lease *lease = take(slow, "n", .ttl_ms = 30000, .on_lost = count_loss, .user = &told);
  dibs_error error;
  if (dibs_release_after(lease, 100, &error) != DIBS_OK) fail_msg("%s", error.text);
  assert_int_equal(send_request(two, "n", .wait_ms = LONG_MS), DIBS_OK);
  dibs_lease_free(lease);
  close_store(slow);
  assert_int_equal(told.calls, 0);
}

static void it_stays_under_a_loop_too(void **state) {
  (void)state;
  dibs_store *loop = open_uri(case_uri(), DIBS_STORE_LOOP), *two = open_store();
  struct later later, waits;
  dibs_lease *lease = take(loop, "n", .ttl_ms = 30000);
  later_start(&waits, loop, "n", HOW(.wait_ms = LONG_MS));
  renew_later(&later, lease, MINUTE_MS);
  dibs__tick before = dibs__tick_now();
  assert_int_equal(dibs_release_after(lease, 500, NULL), DIBS_OK);
  assert_int_equal(send_request(two, "n"), DIBS_HELD);
  while (waits.calls == 0) {
    assert_true(readable(loop, LONG_MS));
    dibs_dispatch(loop, 0);
  }
  assert_int_equal(later_wait(&later), DIBS_OK);
  assert_int_equal(later_wait(&waits), DIBS_OK);
  assert_in_range(ms_since(before), 500, 500 + SLACK_MS);
  give(waits.lease);
  dibs_lease_free(lease);
}

static void shared_and_counted_ones_stay_too(void **state) {
  (void)state;
  if (case_by_majority()) skip();
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *reader = take(one, "r", .mode = DIBS_SHARED), *slot = take(one, "c", .mode = DIBS_COUNTED, .slots = 1);
  assert_int_equal(dibs_release_after(reader, 800, NULL), DIBS_OK);
  assert_int_equal(dibs_release_after(slot, 800, NULL), DIBS_OK);
  assert_int_equal(send_request(two, "r"), DIBS_HELD);
  assert_int_equal(send_request(two, "r", .mode = DIBS_SHARED), DIBS_OK);
  assert_int_equal(send_request(two, "c", .mode = DIBS_COUNTED, .slots = 1), DIBS_HELD);
  assert_int_equal(send_request(two, "r", .wait_ms = LONG_MS), DIBS_OK);
  assert_int_equal(send_request(two, "c", .mode = DIBS_COUNTED, .slots = 1, .wait_ms = LONG_MS), DIBS_OK);
  dibs_lease_free(reader);
  dibs_lease_free(slot);
}

/* Its end is reported once, and the id is free for the next handle. */
static void its_id_finds_it_again(void **state) {
  (void)state;
  dibs_store *one = open_store();
  dibs_lease *lease = take(one, "n", .id = ID_A, .ttl_ms = 30000);
  uint64_t fence = dibs_lease_fence(lease).value;
  assert_int_equal(dibs_release_after(lease, 3000, NULL), DIBS_OK);
  dibs_lease *again = take(one, "n", .id = ID_A, .ttl_ms = 30000, .flags = DIBS_NO_RENEW);
  assert_int_equal(dibs_lease_fence(again).value, fence);
  assert_true(dibs_lease_left_ms(again) <= 3000);
  give(again);
  dibs_lease_free(lease);
}

/* ---- What the store has left of it ---- */

static void the_store_has_more_left_than_its_holder(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *lease = take(one, "n", .ttl_ms = 10000, .flags = DIBS_NO_RENEW);
  int64_t left_ms = dibs_lease_left_ms(lease), store_ms = dibs_lease_store_left_ms(lease);
  assert_true(left_ms < store_ms && store_ms <= 10000 && store_ms > 9000);
  assert_true(store_ms - left_ms >= 500);
  assert_int_equal(dibs_renew(lease, 20000, NULL), DIBS_OK);
  assert_in_range(dibs_lease_store_left_ms(lease), 19000, 20000);
  /* The next one in the line has it from the first. */
  struct caller caller;
  assert_int_equal(dibs_release(lease, NULL), DIBS_OK);
  assert_int_equal(dibs_lease_store_left_ms(lease), 0);
  dibs_lease_free(lease);
  lease = take(one, "n", .ttl_ms = 10000);
  caller_start(&caller, one, "n", HOW(.ttl_ms = 10000, .wait_ms = LONG_MS));
  UNTIL(stats_of(one).waiting == 1);
  give(lease);
  assert_int_equal(caller_join(&caller), DIBS_OK);
  assert_in_range(dibs_lease_store_left_ms(caller.lease), 9000, 10025);
  assert_int_equal(dibs_break(two, "n", NULL, NULL), DIBS_OK);
  assert_int_equal(dibs_renew(caller.lease, 0, NULL), DIBS_LOST);
  assert_int_equal(dibs_lease_store_left_ms(caller.lease), 0);
  assert_int_equal(dibs_release(caller.lease, NULL), DIBS_LOST);
  dibs_lease_free(caller.lease);
  assert_int_equal(dibs_lease_store_left_ms(NULL), 0);
}

/* A waiter that begins by an offer counts on no more than the offer before it is confirmed. */
static void what_was_offered_is_left(void **state) {
  (void)state;
  if (case_by_majority()) skip();
  dibs_store *one = open_store(), *two = open_store();
  struct caller caller;
  dibs_lease *lease = take(one, "n");
  caller_start(&caller, two, "n", HOW(.wait_ms = LONG_MS));
  UNTIL(rows_of(one, "n", DIBS_WAITS) == 1);
  give(lease);
  assert_int_equal(caller_join(&caller), DIBS_OK);
  assert_true(dibs_lease_store_left_ms(caller.lease) >= dibs_lease_left_ms(caller.lease));
  UNTIL(dibs_lease_store_left_ms(caller.lease) > 25000);
  give(caller.lease);
}

/* ---- Adopted by the id alone ---- */

static dibs_lease *adopt(dibs_store *store, const char *name, const char *id, options how) {
  dibs_lease *lease = NULL;
  dibs_error error;
  if (dibs_lease_adopt(store, name, id, (dibs_fence){0}, &how, &lease, &error) != DIBS_OK)
    fail_msg("adopting %s: %s", name, error.text);
  assert_int_equal(dibs_lease_fence(lease).value, 0);
  assert_int_equal(dibs_lease_store_left_ms(lease), 0);
  return lease;
}

static void an_adopted_one_learns_its_fence_by_renewal(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *lease = take(one, "n", .id = ID_A, .ttl_ms = 30000);
  uint64_t fence = dibs_lease_fence(lease).value;
  assert_int_equal(dibs_lease_detach(lease, NULL), DIBS_OK);
  dibs_lease_free(lease);
  struct later later;
  dibs_lease *adopted = adopt(two, "n", ID_A, HOW());
  renew_later(&later, adopted, 20000);
  assert_int_equal(later_wait(&later), DIBS_OK);
  assert_int_equal(dibs_lease_fence(adopted).value, fence);
  assert_int_equal(dibs_lease_alive(adopted), 1);
  assert_int_equal(dibs_renew(adopted, 0, NULL), DIBS_OK);
  assert_int_equal(dibs_lease_fence(adopted).value, fence);
  give(adopted);
  assert_int_equal(send_request(one, "n"), DIBS_OK);
}

static void nothing_is_adopted_by_another_id(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *lease = take(one, "n", .ttl_ms = 30000, .flags = DIBS_NO_RENEW);
  int64_t left_ms = dibs_lease_left_ms(lease);
  dibs_lease *adopted = adopt(two, "n", ID_B, HOW());
  dibs_error error;
  assert_int_equal(dibs_renew(adopted, 100000, &error), DIBS_LOST);
  assert_int_equal(dibs_lease_fence(adopted).value, 0);
  assert_int_equal(dibs_release(adopted, NULL), DIBS_LOST);
  dibs_lease_free(adopted);
  adopted = adopt(two, "n", ID_A, HOW());
  assert_int_equal(dibs_release(adopted, NULL), DIBS_LOST);
  dibs_lease_free(adopted);
  adopted = adopt(two, "free", ID_B, HOW());
  assert_int_equal(dibs_renew(adopted, 0, NULL), DIBS_LOST); /* and is not granted it */
  dibs_lease_free(adopted);
  assert_int_equal(rows_of(two, "free", DIBS_HOLDS), 0);
  assert_int_equal(dibs_renew(lease, 0, NULL), DIBS_OK);
  assert_true(dibs_lease_left_ms(lease) <= left_ms + 1000);
  give(lease);
}

static void an_adopted_one_is_released_by_its_id(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  for (int mode = DIBS_EXCLUSIVE; mode <= (case_by_majority() ? DIBS_EXCLUSIVE : DIBS_COUNTED); mode++) {
    uint32_t slots = mode == DIBS_COUNTED;
    dibs_lease *lease = take(one, "n", .id = ID_A, .mode = (dibs_mode)mode, .slots = slots, .ttl_ms = 30000);
    assert_int_equal(dibs_lease_detach(lease, NULL), DIBS_OK);
    dibs_lease_free(lease);
    dibs_lease *adopted = adopt(two, "n", ID_A, HOW());
    if (mode != DIBS_EXCLUSIVE) assert_int_equal(dibs_renew(adopted, 0, NULL), DIBS_OK);
    assert_int_equal(dibs_lease_fence(adopted).value, 0);
    give(adopted);
    assert_int_equal(send_request(one, "n"), DIBS_OK);
  }
}

static void an_adopted_one_stays_for_its_time(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *lease = take(one, "n", .id = ID_A, .ttl_ms = 30000);
  assert_int_equal(dibs_lease_detach(lease, NULL), DIBS_OK);
  dibs_lease_free(lease);
  dibs_lease *adopted = adopt(two, "n", ID_A, HOW());
  dibs__tick before = dibs__tick_now();
  assert_int_equal(dibs_release_after(adopted, 500, NULL), DIBS_OK);
  dibs_lease_free(adopted);
  assert_int_equal(send_request(one, "n"), DIBS_HELD);
  assert_int_equal(send_request(one, "n", .wait_ms = LONG_MS), DIBS_OK);
  assert_in_range(ms_since(before), 500, 500 + SLACK_MS);
}

static int first_fence(const dibs_lease_info *info, void *user) {
  if (info->state == DIBS_HOLDS) *(uint64_t *)user = info->fence.value;
  return 0;
}

/* The third of a line: handed on in the process, so that it has a later fence of a block.  Its id, and its fence. */
static uint64_t leave_a_handed_on_lease(dibs_store *loop, char id[33]) {
  struct later line[4];
  dibs_lease *lease = take(loop, "n", .ttl_ms = 30000, .wait_ms = LONG_MS);
  for (int i = 0; i < 4; i++) later_start(&line[i], loop, "n", HOW(.ttl_ms = 30000, .wait_ms = LONG_MS));
  dibs__nap_ms(1); /* a renewal draws the block meanwhile */
  for (int i = 0; i < 3; i++) {
    give(lease);
    while (line[i].calls == 0) dibs_dispatch(loop, 0);
    assert_int_equal(later_wait(&line[i]), DIBS_OK);
    lease = line[i].lease;
  }
  uint64_t fence = dibs_lease_fence(lease).value;
  assert_int_equal(dibs_lease_id(lease, id, NULL), DIBS_OK);
  assert_int_equal(dibs_lease_detach(lease, NULL), DIBS_OK);
  dibs_lease_free(lease);
  dibs_lease_free(line[3].lease); /* which ends its wait */
  while (line[3].calls == 0) dibs_dispatch(loop, 0);
  return fence;
}

/* The adopter must not get an earlier fence of the block, which the leases before it had. */
static void an_adopted_one_has_a_fence_above_those_before(void **state) {
  (void)state;
  dibs_store *loop = open_uri(case_uri(), DIBS_STORE_LOOP), *two = open_store();
  bool met = false; /* the lease had not the first fence of its block */
  for (int i = 0; i < 50 && !met; i++) {
    char id[33];
    uint64_t first = 0, fence = leave_a_handed_on_lease(loop, id);
    (void)!dibs_show(two, "n", first_fence, &first, NULL);
    met = first != 0 && first < fence;
    dibs_lease *adopted = adopt(two, "n", id, HOW());
    assert_int_equal(dibs_renew(adopted, 0, NULL), DIBS_OK);
    uint64_t learned = dibs_lease_fence(adopted).value;
    assert_true(learned >= fence);
    give(adopted);
    dibs_lease *next = take(two, "n", .wait_ms = LONG_MS);
    assert_true(dibs_lease_fence(next).value > learned);
    give(next);
  }
  if (!case_at_server() && !strchr(case_uri(), ',')) assert_true(met);
}

/* ---- Show and break ---- */

struct shown {
  uint32_t holders, waiters, breaks, rows, stop_after;
  char owner[DIBS_OWNER_MAX + 1];
  uint64_t fence;
  dibs_error error;
  _Atomic int status;
  _Atomic uint32_t calls; /* of done */
};

static int see(const dibs_lease_info *info, void *user) {
  struct shown *shown = user;
  assert_int_equal(shown->calls, 0);
  assert_string_equal(info->name, "n");
  shown->rows++;
  shown->holders += info->state == DIBS_HOLDS;
  shown->waiters += info->state == DIBS_WAITS;
  shown->breaks += info->state == DIBS_BROKEN;
  if (info->state == DIBS_HOLDS) {
    snprintf(shown->owner, sizeof shown->owner, "%s", info->owner);
    shown->fence = info->fence.value;
  }
  return shown->rows == shown->stop_after;
}

static void seen(dibs_status status, const dibs_error *error, void *user) {
  struct shown *shown = user;
  shown->error = *error;
  assert_int_equal(error->status, status);
  assert_int_equal(error->text[0] == '\0', status == DIBS_OK);
  atomic_store(&shown->status, (int)status);
  atomic_fetch_add(&shown->calls, 1);
}

static dibs_status seen_wait(struct shown *shown) {
  UNTIL(atomic_load(&shown->calls) != 0);
  assert_int_equal(atomic_load(&shown->calls), 1);
  return (dibs_status)atomic_load(&shown->status);
}

static dibs_status show(dibs_store *store, struct shown *shown, uint32_t stop_after) {
  *shown = (struct shown){.stop_after = stop_after};
  dibs_status status = dibs_show_start(store, "n", see, seen, shown, NULL);
  return status == DIBS_OK ? seen_wait(shown) : status;
}

static void a_listing_completes_later(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  struct shown shown;
  struct caller callers[2];
  assert_int_equal(show(two, &shown, 0), DIBS_NOT_FOUND);
  assert_int_equal(shown.rows, 0);
  assert_non_null(strstr(shown.error.text, "nobody holds \"n\""));
  dibs_lease *lease = take(one, "n", .owner = "somebody");
  for (int i = 0; i < 2; i++) caller_start(&callers[i], one, "n", HOW(.wait_ms = LONG_MS));
  UNTIL(stats_of(one).waiting == 2);
  assert_int_equal(show(one, &shown, 0), DIBS_OK);
  assert_int_equal(shown.holders, 1);
  assert_int_equal(shown.waiters, 2);
  assert_string_equal(shown.owner, "somebody");
  assert_true(shown.fence >= dibs_lease_fence(lease).value); /* of the latest block */
  assert_int_equal(show(one, &shown, 1), DIBS_OK);
  assert_int_equal(shown.rows, 1);
  assert_int_equal(dibs_show_start(one, "", see, seen, &shown, NULL), DIBS_INVALID);
  assert_int_equal(dibs_show_start(one, "n", NULL, seen, &shown, NULL), DIBS_INVALID);
  assert_int_equal(dibs_show_start(one, "n", see, NULL, &shown, NULL), DIBS_INVALID);
  assert_int_equal(dibs_show_start(NULL, "n", see, seen, &shown, NULL), DIBS_INVALID);
  give(lease);
  for (int i = 0; i < 2; i++) { /* in either order */
    UNTIL(callers[0].over || callers[1].over);
    struct caller *first = &callers[callers[0].over == 0];
    assert_int_equal(caller_join(first), DIBS_OK);
    give(first->lease);
    first->over = 0;
  }
}

static dibs_status break_it(dibs_store *store, struct shown *shown, uint32_t flags, int64_t wait_ms) {
  dibs_break_options o = {.size = sizeof o, .flags = flags, .wait_ms = wait_ms, .who = "breaker"};
  *shown = (struct shown){0};
  return dibs_break_start(store, "n", &o, seen, shown, NULL);
}

static void a_break_completes_later(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  struct shown shown, listed;
  assert_int_equal(break_it(two, &shown, 0, 0), DIBS_OK);
  assert_int_equal(seen_wait(&shown), DIBS_NOT_FOUND);
  dibs_lease *lease = take(one, "n");
  assert_int_equal(break_it(two, &shown, 0, 0), DIBS_OK);
  assert_int_equal(seen_wait(&shown), DIBS_OK);
  assert_int_equal(dibs_renew(lease, 0, NULL), DIBS_LOST);
  /* It holds the name until it releases it. */
  assert_int_equal(break_it(two, &shown, 0, 200), DIBS_OK);
  assert_int_equal(seen_wait(&shown), DIBS_TIMEOUT);
  assert_non_null(strstr(shown.error.text, "still holds it"));
  assert_int_equal(break_it(two, &shown, 0, DIBS_FOREVER), DIBS_OK);
  assert_int_equal(show(two, &listed, 0), DIBS_OK); /* which does not wait behind the wait */
  assert_int_equal(shown.calls, 0);
  assert_int_equal(dibs_release(lease, NULL), DIBS_LOST);
  dibs_lease_free(lease);
  assert_int_equal(seen_wait(&shown), DIBS_OK);
  lease = take(one, "n", .ttl_ms = 30000, .flags = DIBS_NO_RENEW);
  assert_int_equal(break_it(two, &shown, DIBS_BREAK_NOW, 0), DIBS_OK);
  assert_int_equal(seen_wait(&shown), DIBS_OK);
  assert_int_equal(send_request(two, "n"), DIBS_OK);
  dibs_lease_free(lease);
  assert_int_equal(show(two, &listed, 0), DIBS_OK);
  assert_true(listed.breaks >= 2 && listed.holders == 0);
  dibs_break_options bad = {.size = sizeof bad, .flags = 8};
  assert_int_equal(dibs_break_start(two, "n", &bad, seen, &shown, NULL), DIBS_INVALID);
  assert_int_equal(dibs_break_start(two, "n", NULL, NULL, &shown, NULL), DIBS_INVALID);
}

static void breaks_that_wait_need_one_thread(void **state) {
  (void)state;
  enum { BREAKS = 30 };
  dibs_store *one = open_store(), *two = open_store();
  struct shown shown[BREAKS], listed;
  dibs_lease *lease = take(one, "n", .ttl_ms = MINUTE_MS, .flags = DIBS_NO_RENEW);
  assert_int_equal(show(two, &listed, 0), DIBS_OK);
  uint32_t before = threads_now();
  for (int i = 0; i < BREAKS; i++) assert_int_equal(break_it(two, &shown[i], 0, LONG_MS), DIBS_OK);
  UNTIL(rows_of(one, "n", DIBS_BREAKING) == 1);
  assert_int_equal(show(two, &listed, 0), DIBS_OK);
  assert_true(threads_now() <= before + 1); /* the receiver of the store, at most */
  (void)!dibs_release(lease, NULL);
  dibs_lease_free(lease);
  for (int i = 0; i < BREAKS; i++) {
    dibs_status status = seen_wait(&shown[i]);
    assert_true(status == DIBS_OK || status == DIBS_NOT_FOUND); /* begun after the release */
  }
}

static void a_loop_runs_shows_and_breaks(void **state) {
  (void)state;
  dibs_store *loop = open_uri(case_uri(), DIBS_STORE_LOOP), *one = open_store();
  struct shown shown = {0}, broke;
  dibs_lease *lease = take(one, "n");
  assert_int_equal(dibs_show_start(loop, "n", see, seen, &shown, NULL), DIBS_OK);
  assert_true(readable(loop, LONG_MS));
  assert_int_equal(shown.rows + shown.calls, 0);
  assert_int_equal(dibs_dispatch(loop, 0), 1);
  assert_int_equal(seen_wait(&shown), DIBS_OK);
  assert_int_equal(shown.holders, 1);
  assert_int_equal(break_it(loop, &broke, 0, LONG_MS), DIBS_OK);
  UNTIL(rows_of(one, "n", DIBS_BREAKING) == 1);
  (void)!dibs_release(lease, NULL);
  dibs_lease_free(lease);
  assert_true(readable(loop, LONG_MS));
  assert_int_equal(broke.calls, 0);
  assert_int_equal(dibs_dispatch(loop, 0), 1);
  assert_int_equal(seen_wait(&broke), DIBS_OK);
}

/* Of calls that wait, of the call in flight, and of the calls after it. */
static void close_ends_shows_and_breaks(void **state) {
  (void)state;
  for (uint32_t flags = 0; flags <= DIBS_STORE_LOOP; flags++) {
    dibs_store *slow = open_uri(shimmed("latency", "latency.ms=50"), flags), *one = open_store();
    struct shown broke[3], shown[4];
    dibs_lease *lease = take(one, "n", .ttl_ms = MINUTE_MS, .flags = DIBS_NO_RENEW);
    for (int i = 0; i < 3; i++) assert_int_equal(break_it(slow, &broke[i], 0, DIBS_FOREVER), DIBS_OK);
    UNTIL(rows_of(one, "n", DIBS_BREAKING) == 1);
    memset(shown, 0, sizeof shown);
    for (int i = 0; i < 4; i++) assert_int_equal(dibs_show_start(slow, "n", see, seen, &shown[i], NULL), DIBS_OK);
    dibs__tick before = dibs__tick_now();
    close_store(slow);
    assert_true(ms_since(before) < 10000);
    for (int i = 0; i < 3; i++) {
      assert_int_equal(broke[i].calls, 1);
      assert_int_equal(broke[i].status, DIBS_CANCELLED);
    }
    for (int i = 0; i < 4; i++) {
      assert_int_equal(shown[i].calls, 1);
      assert_true(shown[i].status == DIBS_CANCELLED ? shown[i].rows == 0 : shown[i].status == DIBS_OK);
    }
    assert_int_equal(shown[3].status, DIBS_CANCELLED);
    (void)!dibs_release(lease, NULL);
    dibs_lease_free(lease);
    close_store(one);
  }
}

int main(int argc, char *argv[]) {
  const struct CMUnitTest tests[] = {
      TEST(a_renewal_completes_later),
      TEST(a_renewal_is_refused_at_once_or_not_at_all),
      TEST(renewals_that_wait_become_one),
      TEST(a_broken_lease_is_not_renewed_later),
      TEST(what_the_store_did_not_shorten_stays),
      TEST(a_loop_runs_what_completes_later),
      TEST(renewals_race_with_the_end_of_their_lease),
      TEST(close_ends_what_completes_later),
      TEST(it_stays_for_its_time_and_no_longer),
      TEST(none_and_too_long),
      TEST(waiters_get_it_when_the_time_is_over),
      TEST(a_renewal_in_flight_does_not_prolong_it),
      TEST(the_watchdog_does_not_prolong_it),
      TEST(a_late_answer_is_no_loss),
      TEST(it_stays_under_a_loop_too),
      TEST(shared_and_counted_ones_stay_too),
      TEST(its_id_finds_it_again),
      TEST(the_store_has_more_left_than_its_holder),
      TEST(what_was_offered_is_left),
      TEST(an_adopted_one_learns_its_fence_by_renewal),
      TEST(nothing_is_adopted_by_another_id),
      TEST(an_adopted_one_is_released_by_its_id),
      TEST(an_adopted_one_stays_for_its_time),
      TEST(an_adopted_one_has_a_fence_above_those_before),
      TEST(a_listing_completes_later),
      TEST(a_break_completes_later),
      TEST(breaks_that_wait_need_one_thread),
      TEST(a_loop_runs_shows_and_breaks),
      TEST(close_ends_shows_and_breaks),
  };
  lease_begin(argc, argv);
  return cmocka_run_group_tests(tests, NULL, NULL);
}

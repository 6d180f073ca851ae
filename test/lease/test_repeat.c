/* SPDX-License-Identifier: MIT */
/* A request that is repeated with the same id finds the grant of the first one, with its remaining time. */
#include "help.h"

#include "drivers/wrap/fault.h"

#define ID_A "00112233445566778899aabbccddeeff"
#define ID_B "ffeeddccbbaa99887766554433221100"

enum { TTL_MS = 2000, LATER_MS = 1500 };

static dibs_store *open_failing(void) {
  return open_uri(shimmed("fault", ""), 0);
}

/* No client believes that it has the lease while another one has it. */
static void another_client_gets_it_when_no_holder_believes(dibs_store *other, const dibs_lease *const believers[],
                                                           size_t count) {
  dibs_lease *next = take(other, "n", .wait_ms = LONG_MS);
  for (size_t i = 0; i < count; i++) assert_int_equal(dibs_lease_alive(believers[i]), 0);
  give(next);
}

/* ---- The remaining time ---- */

static void a_repeated_acquire_has_the_remaining_time(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store(), *other = open_store();
  dibs_lease *first = take(one, "n", .id = ID_A, .ttl_ms = TTL_MS, .flags = DIBS_NO_RENEW);
  dibs__nap_ms(LATER_MS);
  dibs_lease *again = take(two, "n", .id = ID_A, .ttl_ms = TTL_MS, .flags = DIBS_NO_RENEW);
  assert_true(dibs_lease_left_ms(again) <= TTL_MS - LATER_MS);
  another_client_gets_it_when_no_holder_believes(other, (const dibs_lease *const[]){first, again}, 2);
  dibs_lease_free(first);
  dibs_lease_free(again);
}

static void shared_and_counted_repeats_have_the_remaining_time(void **state) {
  (void)state;
  if (case_by_majority()) skip();
  dibs_store *one = open_store(), *two = open_store(), *other = open_store();
  for (int mode = DIBS_SHARED; mode <= DIBS_COUNTED; mode++) {
    options how =
        HOW(.id = mode == DIBS_SHARED ? ID_A : ID_B, .mode = (dibs_mode)mode, .ttl_ms = 1000, .flags = DIBS_NO_RENEW);
    how.slots = mode == DIBS_COUNTED ? 1 : 0;
    dibs_lease *first = take_as(one, "n", how);
    dibs__nap_ms(700);
    dibs_lease *again = take_as(two, "n", how);
    assert_true(dibs_lease_left_ms(again) <= 300);
    another_client_gets_it_when_no_holder_believes(other, (const dibs_lease *const[]){first, again}, 2);
    dibs_lease_free(first);
    dibs_lease_free(again);
  }
}

/* ---- Another ttl ---- */

static void a_shorter_ttl_ends_only_the_repeat(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store(), *other = open_store();
  dibs_lease *first = take(one, "n", .id = ID_A, .ttl_ms = 60000, .flags = DIBS_NO_RENEW);
  dibs_lease *again = take(two, "n", .id = ID_A, .ttl_ms = 1000, .flags = DIBS_NO_RENEW);
  assert_true(dibs_lease_left_ms(again) <= 1000);
  UNTIL(!dibs_lease_alive(again));
  assert_int_equal(dibs_lease_alive(first), 1);
  assert_int_equal(send_request(other, "n"), DIBS_HELD); /* the end in the store did not move */
  give(first);
  dibs_lease_free(again);
}

static void a_longer_ttl_gets_no_more_than_the_store_granted(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store(), *other = open_store();
  dibs_lease *first = take(one, "n", .id = ID_A, .ttl_ms = TTL_MS, .flags = DIBS_NO_RENEW);
  dibs_lease *again = take(two, "n", .id = ID_A, .ttl_ms = 60000, .flags = DIBS_NO_RENEW);
  assert_true(dibs_lease_left_ms(again) <= TTL_MS);
  another_client_gets_it_when_no_holder_believes(other, (const dibs_lease *const[]){first, again}, 2);
  dibs_lease_free(first);
  dibs_lease_free(again);
}

/* The library's own renewal also counts from the true end, not from a ttl that is mostly over. */
static void repeat_is_renewed_before_the_true_end(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store(), *other = open_store();
  struct told told = {0};
  dibs_lease *first = take(one, "n", .id = ID_A, .ttl_ms = TTL_MS, .flags = DIBS_NO_RENEW);
  dibs__nap_ms(LATER_MS / 2);
  dibs_lease *again = take(two, "n", .id = ID_A, .ttl_ms = 60000, .on_lost = count_loss, .user = &told);
  assert_int_equal(dibs_lease_fence(again).value, dibs_lease_fence(first).value);
  assert_true(dibs_lease_left_ms(again) <= TTL_MS);
  UNTIL(dibs_lease_left_ms(again) > TTL_MS || !dibs_lease_alive(again));
  assert_true(dibs_lease_left_ms(again) > 50000 && dibs_lease_left_ms(again) <= 60000);
  assert_int_equal(told.calls, 0);
  assert_int_equal(send_request(other, "n"), DIBS_HELD);
  give(again);
  dibs_lease_free(first);
}

/* ---- At the very end ---- */

/* The margin has begun: no client may use the remaining time.  The repeat renews the lease before it answers. */
static void repeat_past_the_margin_is_renewed_before_it_answers(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store(), *other = open_store();
  dibs_lease *first = take(one, "n", .id = ID_A, .ttl_ms = 1000, .flags = DIBS_NO_RENEW);
  dibs_lease *again = NULL;
  int64_t left = 0;
  /* Every few ms, so that one arrives in the last milliseconds of the lease. */
  for (int i = 0; i < 2000 && dibs_lease_left_ms(first) > 40; i++) dibs__nap_ms(1);
  for (int i = 0; i < 400; i++) {
    again = take(two, "n", .id = ID_A, .ttl_ms = 1000, .flags = DIBS_NO_RENEW);
    assert_int_equal(dibs_lease_alive(again), 1);
    left = dibs_lease_left_ms(again);
    if (left > 500) break;
    assert_int_equal(dibs_lease_detach(again, NULL), DIBS_OK);
    dibs_lease_free(again);
    again = NULL;
    dibs__nap_ms(1);
  }
  assert_non_null(again);
  assert_true(left > 500 && left <= 1000);
  assert_int_equal(send_request(other, "n"), DIBS_HELD);
  another_client_gets_it_when_no_holder_believes(other, (const dibs_lease *const[]){first, again}, 2);
  dibs_lease_free(first);
  dibs_lease_free(again);
}

/* ---- A lost answer ---- */

/* The store grants, the answer is lost, and the library repeats the request a second later. */
static void after_a_lost_answer_the_repeat_has_the_remaining_time(void **state) {
  (void)state;
  dibs_store *failing = open_failing(), *holder = open_store(), *other = open_store();
  struct later later;
  dibs_lease *held = take(holder, "n");
  later_start(&later, failing, "n", HOW(.ttl_ms = TTL_MS, .wait_ms = LONG_MS, .flags = DIBS_NO_RENEW));
  UNTIL(case_by_majority() ? stats_of(failing).operations > 0 : rows_of(holder, "n", DIBS_WAITS) == 1);
  dibs__fault_arm(&(struct dibs__fault_plan){.on = DIBS__FAULT_RUN, .how = DIBS__FAULT_UNKNOWN_AFTER, .nth = 1});
  give(held);
  assert_int_equal(later_wait(&later), DIBS_OK);
  assert_int_equal(dibs__fault_struck(), 1);
  dibs__fault_arm(NULL);
  another_client_gets_it_when_no_holder_believes(other, (const dibs_lease *const[]){later.lease}, 1);
  dibs_lease_free(later.lease);
}

/* The caller repeats the request. */
static void a_repeat_after_unknown_has_the_remaining_time(void **state) {
  (void)state;
  dibs_store *failing = open_failing(), *other = open_store();
  options how = HOW(.id = ID_B, .ttl_ms = TTL_MS, .flags = DIBS_NO_RENEW);
  give(take(failing, "first")); /* tiers begin with the first lease: the lost answer must be that of the grant */
  dibs__fault_arm(&(struct dibs__fault_plan){.on = DIBS__FAULT_RUN, .how = DIBS__FAULT_UNKNOWN_AFTER, .nth = 1});
  assert_int_equal(request_as(failing, "n", how), DIBS_UNKNOWN);
  dibs__fault_arm(NULL);
  dibs__nap_ms(LATER_MS);
  dibs_lease *again = take_as(failing, "n", how);
  assert_true(dibs_lease_left_ms(again) <= TTL_MS - LATER_MS);
  another_client_gets_it_when_no_holder_believes(other, (const dibs_lease *const[]){again}, 1);
  dibs_lease_free(again);
}

/* ---- One id, one name, one handle ---- */

static void refused(dibs_store *store, const char *name, options how) {
  dibs_lease *lease = NULL;
  dibs_error error;
  struct later later;
  assert_int_equal(dibs_acquire(store, name, &how, &lease, &error), DIBS_INVALID);
  assert_null(lease);
  assert_int_equal(error.status, DIBS_INVALID);
  assert_non_null(strstr(error.text, "id"));
  assert_int_equal(dibs_acquire_start(store, name, &how, later_done, &later, &lease, &error), DIBS_INVALID);
  assert_null(lease);
}

static void id_of_one_name_is_refused_for_another(void **state) {
  (void)state;
  dibs_store *store = open_store(), *other = open_store();
  struct later waits;
  dibs_lease *b = take(other, "b"), *a = take(store, "a", .id = ID_A);
  refused(store, "b", HOW(.id = ID_A, .wait_ms = LONG_MS));
  dibs_lease *adopted = NULL;
  assert_int_equal(dibs_lease_adopt(store, "b", ID_A, (dibs_fence){1}, NULL, &adopted, NULL), DIBS_INVALID);
  give(a);
  /* Also while it waits. */
  later_start(&waits, store, "b", HOW(.id = ID_A, .wait_ms = LONG_MS));
  refused(store, "a", HOW(.id = ID_A));
  give(b);
  assert_int_equal(later_wait(&waits), DIBS_OK);
  refused(store, "a", HOW(.id = ID_A));
  assert_int_equal(send_request(other, "a"), DIBS_OK);
  assert_int_equal(send_request(other, "b"), DIBS_HELD);
  give(waits.lease);
  assert_int_equal(send_request(store, "a", .id = ID_A), DIBS_OK); /* no handle of this process has it any more */
}

static void id_has_one_handle_in_a_process(void **state) {
  (void)state;
  dibs_store *store = open_store(), *other = open_store();
  struct later waits;
  dibs_lease *held = take(store, "n", .id = ID_A);
  refused(store, "n", HOW(.id = ID_A));
  assert_int_equal(dibs_lease_alive(held), 1);
  later_start(&waits, store, "n", HOW(.id = ID_B, .wait_ms = LONG_MS));
  refused(store, "n", HOW(.id = ID_B, .wait_ms = LONG_MS));
  assert_int_equal(send_request(other, "n"), DIBS_HELD);
  give(held);
  assert_int_equal(later_wait(&waits), DIBS_OK);
  give(waits.lease);
}

/* The release by dibs_lease_free() would remove what another handle got with the same id. */
static void the_id_of_a_lost_lease_is_free_after_its_handle_is_freed(void **state) {
  (void)state;
  dibs_store *store = open_store(), *other = open_store();
  dibs_lease *lost = take(store, "n", .id = ID_A, .ttl_ms = 200, .flags = DIBS_NO_RENEW);
  UNTIL(!dibs_lease_alive(lost) && stats_of(store).lost == 1);
  refused(store, "n", HOW(.id = ID_A));
  dibs_lease_free(lost);
  dibs_lease *again = take(store, "n", .id = ID_A, .wait_ms = LONG_MS);
  assert_int_equal(dibs_renew(again, 0, NULL), DIBS_OK);
  assert_int_equal(send_request(other, "n"), DIBS_HELD);
  give(again);
}

/* A release that freeing the handle begins never affects the next lease of the same id, whichever request arrives
 * first. */
static void a_release_by_free_does_not_affect_the_next_request(void **state) {
  (void)state;
  dibs_store *store = open_store(), *other = open_store();
  for (int i = 0; i < 100; i++) {
    dibs_lease_free(take(store, "n", .id = ID_A));
    dibs_lease *again = take(store, "n", .id = ID_A, .wait_ms = i % 2 ? LONG_MS : 0);
    if (i % 10 == 0) assert_int_equal(send_request(other, "n"), DIBS_HELD);
    assert_int_equal(dibs_renew(again, 0, NULL), DIBS_OK);
    give(again);
  }
}

static void cancelled_and_requested_again_keeps_its_position(void **state) {
  (void)state;
  dibs_store *store = open_store(), *other = open_store();
  struct later first, again;
  dibs_lease *held = take(other, "n");
  for (int i = 0; i < 20; i++) {
    options how = HOW(.id = ID_A, .wait_ms = LONG_MS);
    later_start(&first, store, "n", how);
    if (i % 2) UNTIL(stats_of(store).waiting == 1);
    dibs_acquire_cancel(first.lease);
    later_start(&again, store, "n", how);
    assert_int_equal(later_wait(&first), DIBS_CANCELLED);
    dibs_lease_free(first.lease);
    give(held);
    assert_int_equal(later_wait(&again), DIBS_OK);
    assert_int_equal(dibs_renew(again.lease, 0, NULL), DIBS_OK);
    give(again.lease);
    held = take(other, "n", .wait_ms = LONG_MS);
  }
  give(held);
}

/* The first request is still in flight when its caller leaves and requests again. */
static void requested_again_while_the_first_request_is_in_flight(void **state) {
  (void)state;
  dibs_store *slow = open_uri(shimmed("latency", "latency.ms=100"), 0), *other = open_store();
  dibs_lease *held = take(other, "n");
  options how = HOW(.id = ID_A, .wait_ms = LONG_MS);
  struct later first;
  assert_int_equal(send_request(slow, "warm"), DIBS_OK);
  later_start(&first, slow, "n", how);
  dibs__nap_ms(30);
  dibs_acquire_cancel(first.lease);
  assert_int_equal(later_wait(&first), DIBS_CANCELLED);
  dibs_lease_free(first.lease);
  struct caller caller;
  caller_start(&caller, slow, "n", how);
  dibs__nap_ms(50);
  give(held);
  assert_int_equal(caller_join(&caller), DIBS_OK);
  assert_int_equal(dibs_renew(caller.lease, 0, NULL), DIBS_OK);
  assert_int_equal(send_request(other, "n"), DIBS_HELD);
  give(caller.lease);
}

/* The id is in the queue of the store when a request with it, of another process, does not wait. */
static void a_try_with_an_id_that_waits_elsewhere_is_answered(void **state) {
  (void)state;
  dibs_store *store = open_store(), *elsewhere = open_store(), *other = open_store();
  dibs_lease *held = take(other, "n");
  struct later waiting;
  options how = HOW(.id = ID_A, .wait_ms = LONG_MS);
  later_start(&waiting, elsewhere, "n", how);
  UNTIL(stats_of(elsewhere).waiting == 1 && (case_by_majority() || rows_of(other, "n", DIBS_WAITS) == 1));
  struct caller caller;
  caller_start(&caller, store, "n", HOW(.id = ID_A));
  assert_int_equal(caller_join(&caller), DIBS_HELD);
  give(held);
  assert_int_equal(later_wait(&waiting), DIBS_OK);
  assert_int_equal(dibs_renew(waiting.lease, 0, NULL), DIBS_OK);
  give(waiting.lease);
}

/* Two readers; one repeats its request with its id for a stronger mode. */
static void repeat_in_another_mode_is_refused(void **state) {
  (void)state;
  if (case_by_majority()) skip();
  dibs_store *store = open_store(), *other = open_store();
  dibs_lease *one = take(store, "n", .mode = DIBS_SHARED, .id = ID_A), *two = take(other, "n", .mode = DIBS_SHARED);
  assert_int_equal(dibs_lease_detach(one, NULL), DIBS_OK);
  dibs_lease_free(one);
  assert_int_equal(send_request(store, "n", .id = ID_A), DIBS_INVALID);
  one = take(store, "n", .mode = DIBS_SHARED, .id = ID_A);
  give(two);
  give(one);
  one = take(store, "n", .id = ID_A);
  assert_int_equal(dibs_lease_detach(one, NULL), DIBS_OK);
  dibs_lease_free(one);
  assert_int_equal(send_request(store, "n", .mode = DIBS_SHARED, .id = ID_A), DIBS_INVALID);
  give(take(store, "n", .id = ID_A));
}

int main(int argc, char *argv[]) {
  const struct CMUnitTest tests[] = {
      TEST(a_repeated_acquire_has_the_remaining_time),
      TEST(shared_and_counted_repeats_have_the_remaining_time),
      TEST(a_shorter_ttl_ends_only_the_repeat),
      TEST(a_longer_ttl_gets_no_more_than_the_store_granted),
      TEST(repeat_is_renewed_before_the_true_end),
      TEST(repeat_past_the_margin_is_renewed_before_it_answers),
      TEST(after_a_lost_answer_the_repeat_has_the_remaining_time),
      TEST(a_repeat_after_unknown_has_the_remaining_time),
      TEST(id_of_one_name_is_refused_for_another),
      TEST(id_has_one_handle_in_a_process),
      TEST(the_id_of_a_lost_lease_is_free_after_its_handle_is_freed),
      TEST(a_release_by_free_does_not_affect_the_next_request),
      TEST(cancelled_and_requested_again_keeps_its_position),
      TEST(requested_again_while_the_first_request_is_in_flight),
      TEST(a_try_with_an_id_that_waits_elsewhere_is_answered),
      TEST(repeat_in_another_mode_is_refused),
  };
  lease_begin(argc, argv);
  return cmocka_run_group_tests(tests, NULL, NULL);
}

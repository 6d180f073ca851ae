/* SPDX-License-Identifier: MIT */
/*
 * Session locks through dibs.h: leases that end with a connection, separate name spaces, bounds.  DIBS_BREAK_NOW ends
 * the connection that holds the lock, like an administrator's KILL.
 */
#include "lease/help.h"

#include <stdio.h>

enum { SOON_MS = 1000 };

static char text[2000];

static const char *with(const char *params) {
  snprintf(text, sizeof text, "%s&%s", case_uri(), params);
  return text;
}

static dibs_status break_now(dibs_store *store, const char *name) {
  dibs_break_options how = {.size = sizeof how, .flags = DIBS_BREAK_NOW};
  return dibs_break(store, name, &how, NULL);
}

/* All leases of a connection end with it, and their holders learn it at once, without waiting for a ttl. */
static void the_end_of_a_connection_is_reported_at_once(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  struct told told[3] = {{.calls = 0}};
  dibs_lease *leases[3];
  const char *names[] = {"a", "b", "c"};
  for (int i = 0; i < 3; i++) leases[i] = take(one, names[i], .on_lost = count_loss, .user = &told[i]);
  dibs__nap_ms(300); /* the listener runs by now, or it notices the loss only later */
  dibs__tick began = dibs__tick_now();
  assert_int_equal(break_now(two, "b"), DIBS_OK);
  for (int i = 0; i < 3; i++) UNTIL(told[i].calls == 1);
  int64_t ms = ms_since(began);
  print_message("reported after %lld ms\n", (long long)ms);
  assert_true(ms < SOON_MS);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(told[i].status, DIBS_LOST);
    assert_int_equal(dibs_lease_alive(leases[i]), 0);
    assert_int_equal(dibs_renew(leases[i], 0, NULL), DIBS_LOST);
    uint64_t fence = dibs_lease_fence(leases[i]).value;
    dibs_lease *next = take(i % 2 ? one : two, names[i]); /* also for the lost lease */
    assert_true(dibs_lease_fence(next).value > fence);
    assert_int_equal(dibs_release(leases[i], NULL), DIBS_LOST);
    dibs_lease_free(leases[i]);
    assert_int_equal(send_request(i % 2 ? two : one, names[i]), DIBS_HELD);
    give(next);
  }
}

/* No listener runs: the next renewal notices the loss. */
static void a_renewal_notices_the_end_of_a_connection(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *lease = take(one, "n", .ttl_ms = 60000, .flags = DIBS_NO_RENEW);
  assert_int_equal(break_now(two, "n"), DIBS_OK);
  assert_int_equal(send_request(two, "n"), DIBS_OK);
  assert_int_equal(dibs_renew(lease, 0, NULL), DIBS_LOST);
  dibs_lease_free(lease);
}

static void names_that_differ_only_in_case_are_distinct(void **state) {
  (void)state;
  const char *names[] = {"n", "N", "n ", " n", "\xc3\xb1", "\xc3\x91", "o\xcc\x88", "\xc3\xb6"};
  dibs_lease *leases[8];
  dibs_store *one = open_store(), *two = open_store();
  for (int i = 0; i < 8; i++) leases[i] = take(i % 2 ? one : two, names[i]);
  for (int i = 0; i < 8; i++) assert_int_equal(send_request(i % 2 ? two : one, names[i]), DIBS_HELD);
  for (int i = 0; i < 8; i++) give(leases[i]);
}

static void long_names_are_distinct_to_the_last_byte(void **state) {
  (void)state;
  char a[256], b[256];
  memset(a, 'x', 255);
  a[255] = '\0';
  memcpy(b, a, sizeof b);
  b[254] = 'y';
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *x = take(one, a), *y = take(two, b);
  assert_int_equal(send_request(two, a), DIBS_HELD);
  assert_int_equal(send_request(one, b), DIBS_HELD);
  give(x);
  give(y);
}

/* Other tables have other locks, although the server may have one name space for all. */
static void other_tables_have_other_locks(void **state) {
  (void)state;
  dibs_store *one = open_store(), *same = open_store();
  snprintf(text, sizeof text, "%sx", case_uri()); /* it ends with the name of the schema or the prefix */
  dibs_store *other = open_uri(text, 0);
  dibs_lease *lease = take(one, "n");
  assert_int_equal(send_request(same, "n"), DIBS_HELD);
  assert_int_equal(send_request(other, "n"), DIBS_OK);
  give(lease);
}

static void each_waiter_needs_a_connection_and_their_number_is_bounded(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_uri(with("lock_waiters=2"), 0);
  dibs_lease *held[3];
  const char *names[] = {"a", "b", "c"};
  struct caller callers[2];
  for (int i = 0; i < 3; i++) held[i] = take(one, names[i]);
  for (int i = 0; i < 2; i++) caller_start(&callers[i], two, names[i], HOW(.wait_ms = DIBS_FOREVER));
  UNTIL(rows_of(one, "a", DIBS_WAITS) == 1 && rows_of(one, "b", DIBS_WAITS) == 1);
  dibs_error error;
  dibs_lease *lease = NULL;
  options how = HOW(.wait_ms = LONG_MS);
  assert_int_equal(dibs_acquire(two, "c", &how, &lease, &error), DIBS_UNAVAILABLE);
  assert_non_null(strstr(error.text, "lock_waiters=2"));
  assert_int_equal(send_request(two, "d"), DIBS_OK); /* a free name needs no connection to wait on */
  for (int i = 0; i < 3; i++) give(held[i]);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(caller_join(&callers[i]), DIBS_OK);
    give(callers[i].lease);
  }
  /* The connections are used again. */
  dibs_lease *again = take(one, "c");
  struct caller caller;
  caller_start(&caller, two, "c", HOW(.wait_ms = DIBS_FOREVER));
  UNTIL(rows_of(one, "c", DIBS_WAITS) == 1);
  dibs__tick began = dibs__tick_now();
  give(again);
  assert_int_equal(caller_join(&caller), DIBS_OK);
  print_message("handed over in %lld ms\n", (long long)ms_since(began));
  assert_true(ms_since(began) < SOON_MS);
  give(caller.lease);
}

enum { MANY = 10 };

/* The index of a caller that has returned and was not joined yet; MANY: none. */
static int returned_caller(const struct caller callers[MANY], const bool joined[MANY]) {
  int i = 0;
  while (i < MANY && (!callers[i].over || joined[i])) i++;
  return i;
}

/* Callers of one process hand the lease on among themselves, and wait on one connection. */
static void callers_of_one_process_need_one_connection(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_uri(with("lock_waiters=1"), 0);
  dibs_lease *held = take(one, "n");
  struct caller callers[MANY];
  bool joined[MANY] = {false};
  for (int i = 0; i < MANY; i++) caller_start(&callers[i], two, "n", HOW(.wait_ms = DIBS_FOREVER));
  UNTIL(stats_of(two).waiting == MANY && rows_of(one, "n", DIBS_WAITS) == 1);
  give(held);
  uint64_t last = 0;
  for (int turn = 0; turn < MANY; turn++) {
    UNTIL(returned_caller(callers, joined) < MANY);
    int nth = returned_caller(callers, joined);
    struct caller *next = &callers[nth];
    joined[nth] = true;
    assert_int_equal(caller_join(next), DIBS_OK);
    assert_true(dibs_lease_fence(next->lease).value > last);
    last = dibs_lease_fence(next->lease).value;
    give(next->lease);
  }
}

/* (For an instant the server may grant the lock to a connection that is just ending.) */
static void a_cancelled_wait_leaves_no_lock(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *held = take(one, "n");
  for (int i = 0; i < 5; i++) assert_int_equal(send_request(two, "n", .wait_ms = 20), DIBS_TIMEOUT);
  UNTIL(rows_of(one, "n", DIBS_WAITS) == 0);
  give(held);
  assert_int_equal(send_request(one, "n"), DIBS_OK);
}

static void closing_a_store_frees_its_locks(void **state) {
  (void)state;
  dibs_store *two = open_store();
  for (int i = 0; i < 10; i++) {
    dibs_store *one = open_store();
    dibs_lease *lease = take(one, "n");
    dibs_lease_free(lease);
    lease = take(one, "m");
    close_store(one);
    assert_int_equal(send_request(two, "n"), DIBS_OK);
    assert_int_equal(send_request(two, "m"), DIBS_OK);
    dibs_lease_free(lease);
  }
}

static void modes_that_the_server_lacks_are_refused(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  assert_int_equal(send_request(one, "n", .mode = DIBS_COUNTED, .slots = 2), DIBS_UNSUPPORTED);
  dibs_status shared = send_request(one, "n", .mode = DIBS_SHARED);
  assert_int_equal(shared, strstr(case_uri(), "advisory") ? DIBS_OK : DIBS_UNSUPPORTED);
  if (shared != DIBS_OK) return;
  dibs_lease *a = take(one, "n", .mode = DIBS_SHARED), *b = take(two, "n", .mode = DIBS_SHARED),
             *c = take(one, "n", .mode = DIBS_SHARED);
  assert_int_equal(send_request(one, "n"), DIBS_HELD);
  give(a);
  give(b);
  assert_int_equal(send_request(two, "n"), DIBS_HELD); /* the server counts repeated locks of one connection */
  give(c);
  assert_int_equal(send_request(two, "n"), DIBS_OK);
}

static void no_other_handle_can_adopt_a_session_lock(void **state) {
  (void)state;
  dibs_store *one = open_store();
  dibs_lease *lease = take(one, "n");
  dibs_error error;
  assert_int_equal(dibs_lease_detach(lease, &error), DIBS_UNSUPPORTED);
  assert_non_null(strstr(error.text, "connection"));
  assert_int_equal(dibs_lease_alive(lease), 1);
  give(lease);
}

/* It is not possible to request a release from a holder in another process; DIBS_BREAK_NOW is possible. */
static void breaking_without_now_is_refused_for_other_processes(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *lease = take(one, "n");
  dibs_error error;
  assert_int_equal(dibs_break(two, "n", NULL, &error), DIBS_UNSUPPORTED);
  assert_int_equal(dibs_renew(lease, 0, NULL), DIBS_OK);
  give(lease);
}

int main(int argc, char *argv[]) {
  const struct CMUnitTest tests[] = {
      TEST(the_end_of_a_connection_is_reported_at_once),
      TEST(a_renewal_notices_the_end_of_a_connection),
      TEST(names_that_differ_only_in_case_are_distinct),
      TEST(long_names_are_distinct_to_the_last_byte),
      TEST(other_tables_have_other_locks),
      TEST(each_waiter_needs_a_connection_and_their_number_is_bounded),
      TEST(callers_of_one_process_need_one_connection),
      TEST(a_cancelled_wait_leaves_no_lock),
      TEST(closing_a_store_frees_its_locks),
      TEST(modes_that_the_server_lacks_are_refused),
      TEST(no_other_handle_can_adopt_a_session_lock),
      TEST(breaking_without_now_is_refused_for_other_processes),
  };
  lease_begin(argc, argv);
  return cmocka_run_group_tests(tests, NULL, NULL);
}

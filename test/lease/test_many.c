/* SPDX-License-Identifier: MIT */
/* 10,000 waiters and 10,000 held leases in one process: the threads, memory and transactions that they need. */
#include "help.h"

#include <malloc.h>
#include <stdio.h>

enum {
  CALLERS = SANITIZED ? 2000 : 10000,
  THREADS = 12 /* of a store, at most: receiver, senders, watchdog, loss timer, callbacks */
};

static dibs_lease *leases[CALLERS];
static char names[CALLERS][16];

/* The totals over all of them. */
struct count {
  _Atomic uint32_t granted, cancelled, failed, inside, doubles;
  _Atomic uint64_t last_fence;
  _Atomic uint32_t falls;
};
static struct count count;

static void counted(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  (void)error;
  (void)lease, (void)user;
  atomic_fetch_add(status == DIBS_OK ? &count.granted : status == DIBS_CANCELLED ? &count.cancelled : &count.failed, 1);
}

/* A waiter for the one name: releases it as soon as it is granted. */
static void pass_on(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  counted(lease, status, error, user);
  if (status != DIBS_OK) return;
  if (atomic_fetch_add(&count.inside, 1) != 0) atomic_fetch_add(&count.doubles, 1);
  uint64_t fence = dibs_lease_fence(lease).value;
  if (atomic_exchange(&count.last_fence, fence) >= fence) atomic_fetch_add(&count.falls, 1);
  atomic_fetch_sub(&count.inside, 1);
  if (dibs_release_start(lease, NULL, NULL, NULL) != DIBS_OK) atomic_fetch_add(&count.failed, 1);
}

static void start_callers(dibs_store *store, bool one_name, options how, dibs_lease_fn done) {
  memset(&count, 0, sizeof count);
  for (int i = 0; i < CALLERS; i++) {
    snprintf(names[i], sizeof names[i], "name-%d", one_name ? 0 : i);
    dibs_error error;
    if (dibs_acquire_start(store, names[i], &how, done, NULL, &leases[i], &error) != DIBS_OK)
      fail_msg("number %d: %s", i, error.text);
  }
}

static void free_callers(void) {
  for (int i = 0; i < CALLERS; i++) dibs_lease_free(leases[i]);
}

static size_t bytes_now(void) {
  return mallinfo2().uordblks + mallinfo2().hblkhd;
}

/* ---- Waiting ---- */

static void ten_thousand_wait_for_one_name(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *lease = take(one, "name-0");
  uint32_t threads = threads_now();
  size_t bytes = bytes_now();
  start_callers(two, true, HOW(.wait_ms = DIBS_FOREVER), pass_on);
  UNTIL(stats_of(two).waiting == CALLERS && rows_of(one, "name-0", DIBS_WAITS) == 1);
  assert_true(threads_now() <= threads + THREADS);
  if (!SANITIZED) assert_true((bytes_now() - bytes) / CALLERS < 1024);
  give(lease);
  UNTIL(count.granted + count.failed == CALLERS);
  assert_int_equal(count.failed, 0);
  assert_int_equal(count.doubles, 0);
  assert_int_equal(count.falls, 0);
  assert_true(stats_of(two).handed_off > CALLERS / 2); /* most of them without the store */
  free_callers();
}

static void ten_thousand_wait_for_as_many_names(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *held[CALLERS];
  start_callers(one, false, HOW(), counted);
  UNTIL(count.granted + count.failed == CALLERS);
  assert_int_equal(count.failed, 0);
  memcpy(held, leases, sizeof held);
  uint32_t threads = threads_now();
  start_callers(two, false, HOW(.wait_ms = DIBS_FOREVER), counted);
  UNTIL(stats_of(two).waiting == CALLERS && rows_of(one, names[CALLERS - 1], DIBS_WAITS) == 1);
  assert_true(threads_now() <= threads + THREADS);
  assert_int_equal(count.granted + count.failed, 0);
  for (int i = 0; i < CALLERS; i++) {
    assert_int_equal(dibs_release_start(held[i], NULL, NULL, NULL), DIBS_OK);
    dibs_lease_free(held[i]);
  }
  UNTIL(count.granted + count.failed == CALLERS);
  assert_int_equal(count.failed, 0);
  free_callers();
}

static void close_cancels_ten_thousand_waiters(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *lease = take(one, "name-0");
  start_callers(two, true, HOW(.mode = DIBS_SHARED, .wait_ms = DIBS_FOREVER), counted);
  UNTIL(stats_of(two).waiting == CALLERS);
  close_store(two);
  assert_int_equal(count.cancelled, CALLERS);
  free_callers();
  give(lease);
}

/* ---- Holding ---- */

static void ten_thousand_leases_are_renewed_by_few_transactions(void **state) {
  (void)state;
  dibs_store *store = open_store();
  enum { TTL_MS = 9000 };
  size_t bytes = bytes_now();
  start_callers(store, false, HOW(.ttl_ms = TTL_MS), counted);
  UNTIL(count.granted + count.failed == CALLERS);
  assert_int_equal(count.failed, 0);
  size_t each = (bytes_now() - bytes) / CALLERS;
  print_message("%zu bytes a held lease\n", each);
  /* With the memory store, the store's own rows are counted, too. */
  if (!SANITIZED) assert_true(each < (case_in_memory() ? 1024 + 512 : 1024));
  UNTIL(stats_of(store).renewed >= CALLERS); /* the first round collects leases that were granted at different times */
  struct stats before = stats_of(store);
  UNTIL(stats_of(store).renewed >= before.renewed + CALLERS);
  struct stats after = stats_of(store);
  uint64_t rounds = (after.renewed - before.renewed + CALLERS - 1) / CALLERS;
  print_message("%llu renewals in %llu transactions\n", (unsigned long long)(after.renewed - before.renewed),
                (unsigned long long)(after.transactions - before.transactions));
  /* One batch if the store accepts this many at once; one more if some were granted at another time. */
  uint64_t batches = case_in_memory() ? CALLERS / 1024 + 1 : 1;
  assert_true(after.transactions - before.transactions <= rounds * (batches + 1));
  assert_int_equal(after.lost, 0);
  for (int i = 0; i < CALLERS; i++) assert_int_equal(dibs_lease_alive(leases[i]), 1);
  free_callers();
  UNTIL(stats_of(store).held == 0);
}

int main(int argc, char *argv[]) {
  const struct CMUnitTest tests[] = {
      TEST(ten_thousand_wait_for_one_name),
      TEST(ten_thousand_wait_for_as_many_names),
      TEST(close_cancels_ten_thousand_waiters),
      TEST(ten_thousand_leases_are_renewed_by_few_transactions),
  };
  lease_begin(argc, argv);
  return cmocka_run_group_tests(tests, NULL, NULL);
}

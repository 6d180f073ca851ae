/* SPDX-License-Identifier: MIT */
/* Crowds: 10,000 who wait, 10,000 leases that are kept, in one process; what that takes in threads, memory and
 * transactions. */
#include "help.h"

#include <malloc.h>
#include <stdio.h>

enum {
  CROWD = SANITIZED ? 2000 : 10000,
  THREADS = 12 /* of a store, at most: receiver, carriers, watchdog, loss timer, callbacks */
};

static dibs_lease *leases[CROWD];
static char names[CROWD][16];

/* What is to be told of all of them. */
struct count {
  _Atomic uint32_t granted, cancelled, failed, inside, doubles;
  _Atomic uint64_t last_fence;
  _Atomic uint32_t falls;
};
static struct count count;

static void counted(dibs_lease *lease, dibs_status status, void *user) {
  (void)lease, (void)user;
  atomic_fetch_add(status == DIBS_OK ? &count.granted : status == DIBS_CANCELLED ? &count.cancelled : &count.failed, 1);
}

/* Of one name: given on as soon as it is had. */
static void pass_on(dibs_lease *lease, dibs_status status, void *user) {
  counted(lease, status, user);
  if (status != DIBS_OK) return;
  if (atomic_fetch_add(&count.inside, 1) != 0) atomic_fetch_add(&count.doubles, 1);
  uint64_t fence = dibs_lease_fence(lease);
  if (atomic_exchange(&count.last_fence, fence) >= fence) atomic_fetch_add(&count.falls, 1);
  atomic_fetch_sub(&count.inside, 1);
  if (dibs_release_start(lease, NULL, NULL, NULL) != DIBS_OK) atomic_fetch_add(&count.failed, 1);
}

static void start_crowd(dibs_store *store, bool one_name, options how, dibs_lease_fn done) {
  memset(&count, 0, sizeof count);
  for (int i = 0; i < CROWD; i++) {
    snprintf(names[i], sizeof names[i], "name-%d", one_name ? 0 : i);
    dibs_error error;
    if (dibs_acquire_start(store, names[i], &how, done, NULL, &leases[i], &error) != DIBS_OK)
      fail_msg("number %d: %s", i, error.text);
  }
}

static void free_crowd(void) {
  for (int i = 0; i < CROWD; i++) dibs_lease_free(leases[i]);
}

static size_t bytes_now(void) {
  return mallinfo2().uordblks + mallinfo2().hblkhd;
}

/* ---- Waiting ---- */

static void crowd_waits_for_one_name(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *lease = take(one, "name-0");
  uint32_t threads = threads_now();
  size_t bytes = bytes_now();
  start_crowd(two, true, HOW(.wait_ms = DIBS_FOREVER), pass_on);
  UNTIL(stats_of(two).waiting == CROWD && rows_of(one, "name-0", DIBS_WAITS) == 1);
  assert_true(threads_now() <= threads + THREADS);
  if (!SANITIZED) assert_true((bytes_now() - bytes) / CROWD < 1024);
  give(lease);
  UNTIL(count.granted + count.failed == CROWD);
  assert_int_equal(count.failed, 0);
  assert_int_equal(count.doubles, 0);
  assert_int_equal(count.falls, 0);
  assert_true(stats_of(two).handed_off > CROWD / 2); /* most without the store */
  free_crowd();
}

static void crowd_waits_for_as_many_names(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *held[CROWD];
  start_crowd(one, false, HOW(), counted);
  UNTIL(count.granted + count.failed == CROWD);
  assert_int_equal(count.failed, 0);
  memcpy(held, leases, sizeof held);
  uint32_t threads = threads_now();
  start_crowd(two, false, HOW(.wait_ms = DIBS_FOREVER), counted);
  UNTIL(stats_of(two).waiting == CROWD && rows_of(one, names[CROWD - 1], DIBS_WAITS) == 1);
  assert_true(threads_now() <= threads + THREADS);
  assert_int_equal(count.granted + count.failed, 0);
  for (int i = 0; i < CROWD; i++) {
    assert_int_equal(dibs_release_start(held[i], NULL, NULL, NULL), DIBS_OK);
    dibs_lease_free(held[i]);
  }
  UNTIL(count.granted + count.failed == CROWD);
  assert_int_equal(count.failed, 0);
  free_crowd();
}

static void crowd_is_cancelled_by_close(void **state) {
  (void)state;
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *lease = take(one, "name-0");
  start_crowd(two, true, HOW(.mode = DIBS_SHARED, .wait_ms = DIBS_FOREVER), counted);
  UNTIL(stats_of(two).waiting == CROWD);
  close_store(two);
  assert_int_equal(count.cancelled, CROWD);
  free_crowd();
  give(lease);
}

/* ---- Holding ---- */

static void crowd_is_renewed_by_few_transactions(void **state) {
  (void)state;
  dibs_store *store = open_store();
  enum { TTL_MS = 9000 };
  size_t bytes = bytes_now();
  start_crowd(store, false, HOW(.ttl_ms = TTL_MS), counted);
  UNTIL(count.granted + count.failed == CROWD);
  assert_int_equal(count.failed, 0);
  size_t each = (bytes_now() - bytes) / CROWD;
  print_message("%zu bytes a held lease\n", each);
  /* In memory the store's own rows are counted too. */
  if (!SANITIZED) assert_true(each < (case_in_memory() ? 1024 + 512 : 1024));
  UNTIL(stats_of(store).renewed >= CROWD); /* the first round gathers what was granted at different times */
  dibs_stats before = stats_of(store);
  UNTIL(stats_of(store).renewed >= before.renewed + CROWD);
  dibs_stats after = stats_of(store);
  uint64_t rounds = (after.renewed - before.renewed + CROWD - 1) / CROWD;
  print_message("%llu renewals in %llu transactions\n", (unsigned long long)(after.renewed - before.renewed),
                (unsigned long long)(after.transactions - before.transactions));
  /* One batch, if the store takes so many at once; one more if some were granted at another time. */
  uint64_t batches = case_in_memory() ? CROWD / 1024 + 1 : 1;
  assert_true(after.transactions - before.transactions <= rounds * (batches + 1));
  assert_int_equal(after.lost, 0);
  for (int i = 0; i < CROWD; i++) assert_int_equal(dibs_lease_alive(leases[i]), 1);
  free_crowd();
  UNTIL(stats_of(store).held == 0);
}

int main(int argc, char *argv[]) {
  const struct CMUnitTest tests[] = {
      TEST(crowd_waits_for_one_name),
      TEST(crowd_waits_for_as_many_names),
      TEST(crowd_is_cancelled_by_close),
      TEST(crowd_is_renewed_by_few_transactions),
  };
  lease_begin(argc, argv);
  return cmocka_run_group_tests(tests, NULL, NULL);
}

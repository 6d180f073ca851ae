/* SPDX-License-Identifier: MIT */
/*
 * Processes and servers that are killed: what was acknowledged is there, and nothing is counted twice.
 *
 *   a process   kill -9 of a child that adds.  Durable: acknowledged <= stored <= attempted.  Buffered: what a flush
 *               acknowledged <= stored <= added
 *   a server    killed and started again while threads add.  The process lives, and repeats what it does not know, so
 *               durable: stored = acknowledged, and buffered, after a flush: stored = added
 */
#include "dibs/counter.h"
#include "guard/record_bed.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 3, KILLS = 3, BETWEEN = 60, LONG_S = 60, ROUNDS = 3, BURST = 500 };

/* Shared with a child. */
struct tally {
  _Atomic int64_t attempted, acknowledged;
};
static struct tally *tally;
static dibs_store *store;
static _Atomic bool over;
static char killed[64], durable[] = "outlives/durable", buffered_key[] = "outlives/buffered";

static void nap(void) {
  nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

static void wait_for(_Atomic int64_t *number, int64_t least) {
  for (time_t end = time(NULL) + LONG_S; *number < least; nap())
    if (time(NULL) >= end) fail_msg("only %lld of %lld additions", (long long)*number, (long long)least);
}

static int64_t stored_of(dibs_store *s, const char *key) {
  const dibs_counter_options o = {.size = sizeof o, .wait_ms = INT64_C(1000) * LONG_S};
  dibs_counter_value value = DIBS_COUNTER_VALUE_INIT;
  dibs_status status = dibs_counter_read(s, key, &o, &value, &reported);
  if (status == DIBS_NOT_FOUND) return 0;
  if (status != DIBS_OK) fail_msg("reading: %s", reported.text);
  return value.stored;
}

/* ---- Adding ---- */

static void *add_durably(void *key) {
  const dibs_counter_options o = {.size = sizeof o, .wait_ms = INT64_C(1000) * LONG_S};
  while (!over) {
    atomic_fetch_add(&tally->attempted, 1);
    if (dibs_counter_add(store, key, 1, &o, NULL) == DIBS_OK) atomic_fetch_add(&tally->acknowledged, 1);
  }
  return NULL;
}

/* Acknowledged is what a flush has confirmed. */
static void *add_in_bursts(void *key) {
  const dibs_counter_options o = {.size = sizeof o, .level = DIBS_COUNT_BUFFERED, .wait_ms = INT64_C(1000) * LONG_S};
  while (!over) {
    for (int i = 0; i < BURST; i++) {
      atomic_fetch_add(&tally->attempted, 1);
      if (dibs_counter_add(store, key, 1, &o, NULL) != DIBS_OK) atomic_fetch_sub(&tally->attempted, 1);
    }
    int64_t added = tally->attempted;
    if (dibs_counter_flush(store, &o, NULL) == DIBS_OK) tally->acknowledged = added;
  }
  return NULL;
}

/* ---- A process is killed ---- */

static void child_body(bool buffered) {
  pthread_t threads[THREADS];
  if (dibs_open(case_uri(), NULL, &store, NULL) != DIBS_OK) _exit(1);
  for (int i = 0; i < THREADS && !buffered; i++)
    if (pthread_create(&threads[i], NULL, add_durably, killed) != 0) _exit(1);
  if (buffered) (void)add_in_bursts(killed);
  for (;;) pause();
}

/* Each child has a key of its own: the server may commit the last batch of a killed client after it was read. */
static void kill_a_child(bool buffered) {
  for (int round = 0; round < ROUNDS; round++) {
    snprintf(killed, sizeof killed, "killed/%s/%d", buffered ? "buffered" : "durable", round);
    tally->attempted = tally->acknowledged = 0;
    pid_t child = fork();
    if (child == 0) child_body(buffered);
    wait_for(&tally->acknowledged, buffered ? BURST : BETWEEN);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    dibs_store *s = NULL;
    assert_int_equal(dibs_open(case_uri(), NULL, &s, &reported), DIBS_OK);
    int64_t stored = stored_of(s, killed), acknowledged = tally->acknowledged, attempted = tally->attempted;
    dibs_close(s);
    print_message("%s: acknowledged %lld, stored %lld, attempted %lld\n", killed, (long long)acknowledged,
                  (long long)stored, (long long)attempted);
    assert_true(acknowledged <= stored && stored <= attempted);
  }
}

static void a_killed_process_loses_no_durable_addition(void **state) {
  (void)state;
  kill_a_child(false);
}

static void a_killed_process_loses_nothing_that_a_flush_confirmed(void **state) {
  (void)state;
  kill_a_child(true);
}

/* ---- A server is killed ---- */

static void server(const char *verb) {
  char command[512];
  const char *script = getenv("DIBS_TEST_SERVERS_SCRIPT"), *folder = getenv("DIBS_TEST_SERVERS_DIR");
  assert_non_null(script);
  assert_non_null(folder);
  snprintf(command, sizeof command, "'%s' %s --dir '%s' >/dev/null", script, verb, folder);
  assert_int_equal(system(command), 0);
}

static void kill_the_server(bool buffered) {
  pthread_t threads[THREADS];
  if (strcmp(engine->scheme, "sqlite") == 0) skip(); /* the servers that may run belong to other tests */
  char *key = buffered ? buffered_key : durable;
  int count = buffered ? 1 : THREADS;
  tally->attempted = tally->acknowledged = 0;
  over = false;
  assert_int_equal(dibs_open(case_uri(), NULL, &store, &reported), DIBS_OK);
  for (int i = 0; i < count; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, buffered ? add_in_bursts : add_durably, key), 0);
  for (int i = 0; i < KILLS; i++) {
    wait_for(&tally->acknowledged, tally->acknowledged + BETWEEN);
    server("kill");
    server("start");
  }
  wait_for(&tally->acknowledged, tally->acknowledged + BETWEEN);
  over = true;
  for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
  const dibs_counter_options o = {.size = sizeof o, .wait_ms = INT64_C(1000) * LONG_S};
  assert_int_equal(dibs_counter_flush(store, &o, &reported), DIBS_OK);
  int64_t stored = stored_of(store, key);
  dibs_close(store);
  print_message("%s: acknowledged %lld, stored %lld, attempted %lld\n", key, (long long)tally->acknowledged,
                (long long)stored, (long long)tally->attempted);
  assert_int_equal(tally->acknowledged, tally->attempted); /* the time was enough to know each outcome */
  assert_int_equal(stored, tally->acknowledged);
  bed_reconnect();
}

static void a_killed_server_loses_no_durable_addition_and_repeats_none(void **state) {
  (void)state;
  kill_the_server(false);
}

static void a_killed_server_loses_no_buffered_addition_and_repeats_none(void **state) {
  (void)state;
  kill_the_server(true);
}

int main(int argc, char *argv[]) {
  bed_begin(argc, argv);
  tally = mmap(NULL, sizeof *tally, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (tally == MAP_FAILED) return 2;
  const struct CMUnitTest tests[] = {
      TEST(a_killed_process_loses_no_durable_addition),
      TEST(a_killed_process_loses_nothing_that_a_flush_confirmed),
      TEST(a_killed_server_loses_no_durable_addition_and_repeats_none),
      TEST(a_killed_server_loses_no_buffered_addition_and_repeats_none),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

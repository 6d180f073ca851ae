/* SPDX-License-Identifier: MIT */
/*
 * Counters of the level shared, while flushers and Redis die: what is in the database at the end is what was
 * acknowledged, but for what doc/counters.md says that is lost, and nothing is there twice.
 *
 *   a flusher   killed, or stopped past its lease, before and after each of its steps; its answers lost; several at
 * once Redis       killed: it comes back empty, or with an older memory, or its replica that lags is promoted a process
 * that adds, killed
 */
#include "shared_bed.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MANY = 40, THREADS = 3, FLUSHERS = 3, ROUNDS = 2, BETWEEN = 200 };

static const char *const step_names[] = {"", "seal", "apply", "drop"};

static void say(const char *what) {
  print_message("  %s %s %s\n", what, plan.after ? "after" : "before", step_names[plan.step]);
}

/* A step for which `plan` is set in the child. */
static void flush_by_plan(void) {
  const dibs_counter_options o = {.size = sizeof o, .level = DIBS_COUNT_SHARED, .wait_ms = LONG_MS};
  dibs_store *s = NULL;
  if (dibs_open(bed_uri(), NULL, &s, NULL) != DIBS_OK) _exit(1);
  (void)!dibs_counter_flush(s, &o, NULL);
  dibs_close(s);
}

/* ---- A flusher dies ---- */

static void add_many(dibs_store *s, int64_t delta) {
  char key[32];
  for (int i = 0; i < MANY; i++) {
    snprintf(key, sizeof key, "key%d", i);
    bed_add(s, key, delta);
  }
}

static void expect_many(int64_t want) {
  char key[32];
  for (int i = 0; i < MANY; i++) {
    snprintf(key, sizeof key, "key%d", i);
    expect_stored(key, want);
  }
}

static void a_flusher_that_is_killed_at_any_step_loses_and_repeats_nothing(void **state) {
  (void)state;
  int64_t sum = 0;
  for (int i = 0; i < 6; i++) {
    const struct plan here = {.step = (enum step)(STEP_SEAL + i / 2), .after = i % 2, .what = DIES};
    dibs_store *s = bed_open();
    add_many(s, 1);
    dibs_close(s);
    plan = here;
    say("killed");
    tally->reached = 0;
    pid_t child = bed_child(flush_by_plan);
    plan.step = STEP_NONE;
    bed_end(child, 0);
    assert_int_equal(tally->reached, 1);
    s = bed_open();
    add_many(s, 1); /* beside what the flusher has left */
    bed_flush(s);
    dibs_close(s);
    sum += 2;
    expect_many(sum);
  }
}

/* ---- A flusher is stopped past its lease ---- */

static void a_flusher_that_is_stopped_past_its_lease_changes_nothing_later(void **state) {
  (void)state;
  int64_t sum = 0;
  for (int i = 0; i < 6; i++) {
    dibs_store *s = bed_open();
    add_many(s, 1);
    dibs_close(s);
    plan = (struct plan){.step = (enum step)(STEP_SEAL + i / 2), .after = i % 2, .what = STOPS};
    say("stopped");
    pid_t child = bed_child(flush_by_plan);
    plan.step = STEP_NONE;
    bed_wait_stopped(child);
    s = bed_open();
    add_many(s, 1);
    bed_flush(s); /* waits until the lease has ended */
    sum += 2;
    expect_many(sum);
    add_many(s, 1); /* sums of which the old flusher knows nothing */
    kill(child, SIGCONT);
    bed_end(child, 0);
    bed_flush(s);
    dibs_close(s);
    sum += 1;
    expect_many(sum);
  }
}

/* ---- Answers are lost ---- */

static void a_flusher_whose_answers_are_lost_repeats_nothing(void **state) {
  (void)state;
  dibs_store *s = bed_open();
  int64_t sum = 0;
  for (int i = 0; i < 6; i++) {
    add_many(s, 1);
    plan = (struct plan){.step = (enum step)(STEP_SEAL + i / 2), .after = i % 2, .what = LOSES};
    say("no answer");
    bed_flush(s);
    assert_int_equal(plan.step, STEP_NONE);
    expect_many(++sum);
  }
  dibs_close(s);
}

/* ---- Several at once ---- */

static void flush_on(void) {
  const dibs_counter_options o = {.size = sizeof o, .level = DIBS_COUNT_SHARED, .wait_ms = LONG_MS};
  dibs_store *s = NULL;
  if (dibs_open(bed_uri(), NULL, &s, NULL) != DIBS_OK) _exit(1);
  while (!tally->over) (void)!dibs_counter_flush(s, &o, NULL);
  dibs_close(s);
}

static void *add_on(void *store) {
  const dibs_counter_options o = {.size = sizeof o, .level = DIBS_COUNT_SHARED, .wait_ms = LONG_MS};
  while (!tally->over) {
    atomic_fetch_add(&tally->attempted, 1);
    if (dibs_counter_add(store, "hot", 1, &o, NULL) == DIBS_OK) atomic_fetch_add(&tally->acknowledged, 1);
  }
  return NULL;
}

static void flush_together(bool excluded) {
  pid_t flushers[FLUSHERS];
  pthread_t threads[THREADS];
  leases_differ = !excluded;
  for (int i = 0; i < FLUSHERS; i++) flushers[i] = bed_child(flush_on);
  dibs_store *s = bed_open();
  for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, add_on, s), 0);
  bed_wait_for(&tally->acknowledged, BETWEEN * 5);
  tally->over = true;
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < FLUSHERS; i++) bed_end(flushers[i], 0);
  bed_flush(s);
  dibs_close(s);
  print_message("  acknowledged %lld of %lld\n", (long long)tally->acknowledged, (long long)tally->attempted);
  assert_int_equal(tally->acknowledged, tally->attempted);
  expect_stored("hot", tally->acknowledged);
}

static void several_flushers_write_each_sum_once(void **state) {
  (void)state;
  flush_together(true);
}

/* As if no lease excluded another: the ledger and the names of the sums are enough. */
static void even_flushers_that_no_lease_excludes_write_each_sum_once(void **state) {
  (void)state;
  flush_together(false);
}

/* ---- A process that adds is killed ---- */

static void add_until_killed(void) {
  pthread_t threads[THREADS];
  dibs_store *s = NULL;
  if (dibs_open(bed_uri(), NULL, &s, NULL) != DIBS_OK) _exit(1);
  for (int i = 0; i < THREADS; i++)
    if (pthread_create(&threads[i], NULL, add_on, s) != 0) _exit(1);
  for (;;) pause();
}

static void a_killed_process_loses_no_shared_addition(void **state) {
  (void)state;
  for (int round = 0; round < ROUNDS; round++) {
    pid_t child = bed_child(add_until_killed);
    bed_wait_for(&tally->acknowledged, tally->acknowledged + BETWEEN);
    bed_end(child, SIGKILL);
    dibs_store *s = bed_open();
    bed_flush(s);
    dibs_close(s);
    int64_t stored = bed_stored("hot");
    print_message("  acknowledged %lld, stored %lld, attempted %lld\n", (long long)tally->acknowledged,
                  (long long)stored, (long long)tally->attempted);
    assert_true(tally->acknowledged <= stored && stored <= tally->attempted);
  }
}

/* ---- Redis dies ---- */

static void redis_that_comes_back_empty_loses_what_was_not_written(void **state) {
  (void)state;
  dibs_store *s = bed_open();
  bed_add(s, "k", 1);
  bed_flush(s);
  bed_add(s, "k", 10);
  bed_empty();
  bed_add(s, "k", 100);
  bed_flush(s);
  dibs_close(s);
  expect_stored("k", 101); /* but for the 10 */
}

static void nothing_is_written_again_from_an_old_memory_of_redis(void **state) {
  (void)state;
  dibs_store *s = bed_open();
  bed_add(s, "k", 1);
  bed_add(s, "other", 1);
  bed_dump();
  bed_add(s, "k", 10);
  bed_flush(s); /* the sums of the copy, and more */
  expect_stored("k", 11);
  bed_restore();
  bed_add(s, "k", 100);
  bed_flush(s);
  expect_stored("k", 111);
  expect_stored("other", 1);
  bed_restore(); /* once more */
  bed_add(s, "k", 1000);
  bed_flush(s);
  dibs_close(s);
  expect_stored("k", 1111);
}

static void an_old_memory_of_redis_loses_what_is_neither_there_nor_written(void **state) {
  (void)state;
  dibs_store *s = bed_open();
  bed_add(s, "k", 1);
  bed_dump();
  bed_add(s, "k", 10);
  bed_restore();
  bed_add(s, "k", 100);
  bed_flush(s);
  dibs_close(s);
  expect_stored("k", 101);
}

/* The copy has sums that a flusher had sealed; it has written them before or after the copy was made. */
static void sealed_sums_of_an_old_memory_are_written_once(void **state) {
  (void)state;
  int64_t sum = 0;
  for (int i = 0; i < 2; i++) {
    dibs_store *s = bed_open();
    bed_add(s, "k", 1);
    dibs_close(s);
    plan = (struct plan){.step = STEP_APPLY, .after = i, .what = DIES};
    pid_t child = bed_child(flush_by_plan);
    plan.step = STEP_NONE;
    bed_end(child, 0);
    s = bed_open();
    bed_add(s, "k", 10);
    bed_dump();
    bed_flush(s);
    sum += 11;
    expect_stored("k", sum);
    bed_restore();
    bed_add(s, "k", 100);
    bed_flush(s);
    dibs_close(s);
    sum += 100;
    expect_stored("k", sum);
  }
}

/* The addition is added, and written to the database; then its answer is lost, with the memory of Redis. */
static dibs_store *other;

static void write_and_restore(void) {
  bed_flush(other);
  bed_restore();
}

static void an_addition_whose_answer_was_lost_with_the_memory_of_redis_is_unknown(void **state) {
  (void)state;
  const dibs_counter_options o = {.size = sizeof o, .level = DIBS_COUNT_SHARED, .wait_ms = LONG_MS};
  dibs_store *s = bed_open();
  other = bed_open();
  bed_add(s, "k", 1);
  bed_dump();
  plan = (struct plan){.step = STEP_ADD, .after = true, .what = LOSES, .meanwhile = write_and_restore};
  assert_int_equal(dibs_counter_add(s, "k", 10, &o, &reported), DIBS_UNKNOWN);
  bed_add(s, "k", 100);
  bed_flush(s);
  dibs_close(other);
  dibs_close(s);
  expect_stored("k", 111); /* not 121 */
}

/* Redis is killed while threads add and a process flushes; it comes back empty.  Nothing that a flush had confirmed is
 * lost, and nothing is counted twice. */
static void *add_and_flush(void *store) {
  const dibs_counter_options o = {.size = sizeof o, .level = DIBS_COUNT_SHARED, .wait_ms = LONG_MS};
  while (!tally->over) {
    int64_t before = tally->acknowledged;
    if (dibs_counter_flush(store, &o, NULL) == DIBS_OK) tally->flushed = before;
  }
  return NULL;
}

static void redis_that_is_killed_under_load_loses_only_what_was_not_written(void **state) {
  (void)state;
  pthread_t threads[THREADS + 1];
  int64_t lost = 0;
  dibs_store *s = bed_open();
  for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, add_on, s), 0);
  assert_int_equal(pthread_create(&threads[THREADS], NULL, add_and_flush, s), 0);
  for (int round = 0; round < ROUNDS; round++) {
    bed_wait_for(&tally->flushed, tally->flushed + BETWEEN);
    bed_servers("kill", NULL, NULL);
    lost += tally->acknowledged - tally->flushed; /* at most */
    bed_servers("start", NULL, NULL);
  }
  bed_wait_for(&tally->flushed, tally->flushed + BETWEEN);
  tally->over = true;
  for (int i = 0; i <= THREADS; i++) pthread_join(threads[i], NULL);
  bed_flush(s);
  dibs_close(s);
  int64_t stored = bed_stored("hot");
  print_message("  acknowledged %lld, stored %lld, attempted %lld; at most %lld lost\n", (long long)tally->acknowledged,
                (long long)stored, (long long)tally->attempted, (long long)lost);
  assert_true(stored >= tally->acknowledged - lost);
  assert_true(stored <= tally->attempted);
}

static void redis_that_comes_back_with_its_memory_loses_nothing(void **state) {
  (void)state;
  dibs_store *s = bed_open();
  bed_add(s, "k", 1);
  bed_flush(s);
  bed_add(s, "k", 10);
  bed_dump();
  bed_restore();
  bed_add(s, "k", 100);
  bed_flush(s);
  dibs_close(s);
  expect_stored("k", 111);
}

/* ---- The database dies ---- */

/* With DIBS_TEST_DATABASE_DIR, the folder of a MariaDB of this test's own. */
static void a_database_that_is_killed_loses_no_shared_sum_and_repeats_none(void **state) {
  (void)state;
  const char *where = getenv("DIBS_TEST_DATABASE_DIR"), *uri = getenv("DIBS_TEST_MYSQL");
  pthread_t threads[THREADS + 1];
  if (!where || !uri) skip();
  bed_use_database(uri);
  dibs_store *s = bed_open();
  for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, add_on, s), 0);
  assert_int_equal(pthread_create(&threads[THREADS], NULL, add_and_flush, s), 0);
  for (int round = 0; round < ROUNDS; round++) {
    bed_wait_for(&tally->flushed, tally->flushed + BETWEEN);
    bed_servers("kill", where, "mariadb");
    bed_wait_for(&tally->acknowledged, tally->acknowledged + BETWEEN); /* Redis takes them */
    bed_servers("start", where, "mariadb");
  }
  bed_wait_for(&tally->flushed, tally->flushed + BETWEEN);
  tally->over = true;
  for (int i = 0; i <= THREADS; i++) pthread_join(threads[i], NULL);
  bed_flush(s);
  dibs_close(s);
  print_message("  acknowledged %lld of %lld\n", (long long)tally->acknowledged, (long long)tally->attempted);
  assert_int_equal(tally->acknowledged, tally->attempted);
  expect_stored("hot", tally->acknowledged);
}

/* ---- A replica that lags is promoted ---- */

static char replica[] = "/tmp/dibs-shared-replica-XXXXXX";

static void remove_replica(void) {
  char command[128];
  bed_servers("remove", replica, NULL);
  snprintf(command, sizeof command, "rm -rf '%s'", replica);
  assert_int_equal(system(command), 0);
}

static void follow(void) {
  char more[256];
  snprintf(replica, sizeof replica, "/tmp/dibs-shared-replica-XXXXXX");
  assert_non_null(mkdtemp(replica));
  snprintf(more, sizeof more, "--of '%s' --until %d redis", bed_folder(), (int)getpid());
  bed_servers("follow", replica, more);
}

/* The replica takes the address of the old master, as behind a load balancer. */
static void promote(void) {
  char path[256], port[16] = "", command[64];
  snprintf(path, sizeof path, "%s/redis/port", bed_folder());
  FILE *in = fopen(path, "re");
  assert_non_null(in);
  assert_non_null(fgets(port, sizeof port, in));
  fclose(in);
  bed_servers("kill", NULL, NULL);
  bed_servers("promote", replica, NULL);
  snprintf(command, sizeof command, "CONFIG SET port %d", atoi(port));
  bed_ask(replica, command);
}

static void fail_over(bool written) {
  follow();
  dibs_store *s = bed_open();
  bed_add(s, "k", 1);
  bed_servers("follow", replica, NULL); /* it has that */
  bed_servers("lag", replica, NULL);
  bed_add(s, "k", 10);
  if (written) bed_flush(s);
  promote();
  bed_add(s, "k", 100);
  bed_flush(s);
  dibs_close(s);
  int64_t stored = bed_stored("k");
  remove_replica();
  bed_servers("start", NULL, NULL);
  assert_int_equal(stored, written ? 111 : 101);
}

static void nothing_is_written_again_from_a_promoted_replica(void **state) {
  (void)state;
  fail_over(true);
}

static void a_promoted_replica_loses_what_it_had_not_received(void **state) {
  (void)state;
  fail_over(false);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      TEST(a_flusher_that_is_killed_at_any_step_loses_and_repeats_nothing),
      TEST(a_flusher_that_is_stopped_past_its_lease_changes_nothing_later),
      TEST(a_flusher_whose_answers_are_lost_repeats_nothing),
      TEST(several_flushers_write_each_sum_once),
      TEST(even_flushers_that_no_lease_excludes_write_each_sum_once),
      TEST(a_killed_process_loses_no_shared_addition),
      TEST(redis_that_comes_back_empty_loses_what_was_not_written),
      TEST(nothing_is_written_again_from_an_old_memory_of_redis),
      TEST(an_old_memory_of_redis_loses_what_is_neither_there_nor_written),
      TEST(sealed_sums_of_an_old_memory_are_written_once),
      TEST(an_addition_whose_answer_was_lost_with_the_memory_of_redis_is_unknown),
      TEST(redis_that_is_killed_under_load_loses_only_what_was_not_written),
      TEST(redis_that_comes_back_with_its_memory_loses_nothing),
      TEST(a_database_that_is_killed_loses_no_shared_sum_and_repeats_none),
      TEST(nothing_is_written_again_from_a_promoted_replica),
      TEST(a_promoted_replica_loses_what_it_had_not_received),
  };
  return bed_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}

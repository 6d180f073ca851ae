/* SPDX-License-Identifier: MIT */
/*
 * Once through dibs.h: callers in threads and processes, crashes in the middle, lost leases, and calls inside the
 * user's own transactions.
 */
#include "record_bed.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 8, PROCESSES = 6, LONG_MS = 30000 };

static void nap_ms(long ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&t, NULL);
}

static long now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

#define UNTIL(condition)                                                                                               \
  do {                                                                                                                 \
    long until_by = now_ms() + LONG_MS;                                                                                \
    while (!(condition)) {                                                                                             \
      if (now_ms() > until_by) fail_msg("this never became true: %s", #condition);                                     \
      nap_ms(1);                                                                                                       \
    }                                                                                                                  \
  } while (0)

/* Makes the key unique, because a server keeps the rows of other cases. */
static const char *key_of(const char *name) {
  static _Atomic unsigned last;
  static char keys[64][96];
  char *key = keys[atomic_fetch_add(&last, 1) % 64];
  snprintf(key, sizeof keys[0], "%s %d %ld", name, (int)getpid(), now_ms());
  return key;
}

/* ---- Work ---- */

struct work {
  const char *answer; /* NULL: none */
  dibs_status status;
  _Atomic int ran;
  _Atomic int may_end; /* the work lasts until then, if `waits` */
  bool waits;
  uint64_t fence;
  dibs_store *breaker; /* removes its own lease */
  void *connection;    /* the connection on which it inserts a row */
};

static dibs_status do_work(dibs_lease *lease, char **answer, size_t *length, void *user) {
  struct work *work = user;
  work->fence = dibs_lease_fence(lease).value;
  if (work->connection) engine->run(work->connection, "INSERT INTO effect (n) VALUES (1)", NULL);
  work->ran++;
  long by = now_ms() + LONG_MS;
  while (work->waits && !work->may_end && now_ms() < by) nap_ms(1);
  if (work->breaker) {
    dibs_break_options now = {.size = sizeof now, .flags = DIBS_BREAK_NOW};
    if (dibs_break(work->breaker, dibs_lease_name(lease), &now, NULL) != DIBS_OK) return DIBS_CORRUPT;
    while (dibs_lease_alive(lease) && now_ms() < by) nap_ms(1);
  }
  if (work->answer) {
    *length = strlen(work->answer);
    *answer = malloc(*length); /* without a NUL */
    if (!*answer) return DIBS_NO_MEMORY;
    memcpy(*answer, work->answer, *length);
  }
  return work->status;
}

struct outcome {
  dibs_status status;
  char *answer;
  size_t length;
  dibs_error error;
};

static struct outcome once_as(dibs_store *store, const char *key, struct work *work, dibs_once_options how) {
  static char not_set[] = "not set"; /* the call clears it */
  struct outcome out = {.answer = not_set, .length = 1};
  how.size = sizeof how;
  out.status = dibs_once(store, key, &how, do_work, work, &out.answer, &out.length, &out.error);
  return out;
}
#define once(store, key, work, ...) once_as(store, key, work, (dibs_once_options){.size = 0, ##__VA_ARGS__})

static void expect_at(int line, struct outcome out, dibs_status status, const char *answer) {
  if (out.status != status)
    fail_msg("line %d: %s, expected %s: %s", line, dibs_status_name(out.status), dibs_status_name(status),
             out.error.text);
  assert_int_equal(out.error.status, status == DIBS_REPLAY ? DIBS_OK : status);
  if (!answer) {
    assert_null(out.answer);
    assert_int_equal(out.length, 0);
    if (status != DIBS_OK && status != DIBS_REPLAY) assert_true(out.error.text[0] != '\0');
    return;
  }
  assert_non_null(out.answer);
  assert_int_equal(out.length, strlen(answer));
  assert_string_equal(out.answer, answer);
  free(out.answer);
}
#define EXPECT(out, status, answer) expect_at(__LINE__, out, status, answer)

/* ---- One caller ---- */

static void the_first_runs_and_the_others_get_its_answer(void **state) {
  (void)state;
  dibs_store *store = store_open(), *other = store_open();
  const char *key = key_of("k");
  struct work work = {.answer = "42"}, late = {.answer = "43"};
  EXPECT(once(store, key, &work), DIBS_OK, "42");
  EXPECT(once(store, key, &late), DIBS_REPLAY, "42");
  EXPECT(once(other, key, &late), DIBS_REPLAY, "42");
  assert_int_equal(work.ran, 1);
  assert_int_equal(late.ran, 0);
  assert_true(work.fence > 0);
}

static void an_answer_may_be_empty(void **state) {
  (void)state;
  dibs_store *store = store_open();
  const char *key = key_of("k");
  struct work work = {.answer = NULL};
  EXPECT(once(store, key, &work), DIBS_OK, "");
  EXPECT(once(store, key, &work), DIBS_REPLAY, "");
  assert_int_equal(work.ran, 1);
}

static void a_failure_leaves_the_key_free(void **state) {
  (void)state;
  dibs_store *store = store_open();
  const char *key = key_of("k");
  struct work bad = {.answer = "x", .status = DIBS_FULL}, good = {.answer = "y"};
  EXPECT(once(store, key, &bad), DIBS_FULL, NULL);
  uint64_t first = bad.fence;
  EXPECT(once(store, key, &bad), DIBS_FULL, NULL);
  assert_true(bad.fence > first);
  EXPECT(once(store, key, &good), DIBS_OK, "y");
  assert_true(good.fence > bad.fence);
  assert_int_equal(bad.ran, 2);
}

static void a_forgotten_key_runs_again(void **state) {
  (void)state;
  dibs_store *store = store_open();
  const char *key = key_of("k");
  struct work work = {.answer = "x"};
  assert_int_equal(dibs_once_forget(store, key, NULL), DIBS_NOT_FOUND);
  EXPECT(once(store, key, &work), DIBS_OK, "x");
  assert_int_equal(dibs_once_forget(store, key, NULL), DIBS_OK);
  assert_int_equal(dibs_once_forget(store, key, NULL), DIBS_NOT_FOUND);
  EXPECT(once(store, key, &work), DIBS_OK, "x");
  assert_int_equal(work.ran, 2);
}

static void an_answer_is_kept_for_its_time(void **state) {
  (void)state;
  dibs_store *store = store_open();
  const char *key = key_of("k");
  struct work first = {.answer = "one"}, second = {.answer = "two"};
  EXPECT(once(store, key, &first, .keep_ms = 100), DIBS_OK, "one");
  long by = now_ms() + LONG_MS;
  while (second.ran == 0 && now_ms() < by) {
    struct outcome out = once(store, key, &second, .keep_ms = 3600000);
    EXPECT(out, second.ran ? DIBS_OK : DIBS_REPLAY, second.ran ? "two" : "one");
    nap_ms(5);
  }
  assert_int_equal(second.ran, 1);
  EXPECT(once(store, key, &first), DIBS_REPLAY, "two");
}

static void an_answer_has_at_most_a_megabyte(void **state) {
  (void)state;
  dibs_store *store = store_open();
  const char *key = key_of("k");
  char *big = malloc(DIBS_RECORD_MAX + 2);
  assert_non_null(big);
  memset(big, 'x', DIBS_RECORD_MAX + 1);
  big[DIBS_RECORD_MAX + 1] = '\0';
  struct work work = {.answer = big};
  EXPECT(once(store, key, &work), DIBS_INVALID, NULL);
  big[DIBS_RECORD_MAX] = '\0';
  EXPECT(once(store, key, &work), DIBS_OK, big);
  EXPECT(once(store, key, &work), DIBS_REPLAY, big);
  assert_int_equal(work.ran, 2);
  free(big);
}

static void long_keys_differ_to_their_last_byte(void **state) {
  (void)state;
  dibs_store *store = store_open();
  char a[DIBS_NAME_MAX + 2], b[DIBS_NAME_MAX + 2];
  memset(a, 'k', sizeof a);
  a[DIBS_NAME_MAX + 1] = '\0';
  struct work work = {.answer = "x"};
  EXPECT(once(store, a, &work), DIBS_INVALID, NULL);
  snprintf(a, sizeof a, "%.230s%025ld",
           "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk"
           "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk"
           "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk",
           now_ms() * 10);
  assert_int_equal(strlen(a), DIBS_NAME_MAX);
  memcpy(b, a, sizeof b);
  b[DIBS_NAME_MAX - 1] = 'b';
  struct work inner = {.answer = "b"};
  EXPECT(once(store, a, &work), DIBS_OK, "x");
  EXPECT(once(store, b, &inner), DIBS_OK, "b");
  EXPECT(once(store, a, &inner), DIBS_REPLAY, "x");
}

static void invalid_calls_are_refused(void **state) {
  (void)state;
  dibs_store *store = store_open();
  struct work work = {.answer = "x"};
  char *answer;
  size_t length;
  EXPECT(once(store, "", &work), DIBS_INVALID, NULL);
  EXPECT(once(store, "a\nb", &work), DIBS_INVALID, NULL);
  EXPECT(once(store, "k", &work, .keep_ms = -1), DIBS_INVALID, NULL);
  EXPECT(once(store, "k", &work, .ttl_ms = 1), DIBS_INVALID, NULL);
  assert_int_equal(dibs_once(store, "k", NULL, NULL, NULL, &answer, &length, NULL), DIBS_INVALID);
  assert_int_equal(dibs_once(NULL, "k", NULL, do_work, &work, &answer, &length, NULL), DIBS_INVALID);
  assert_int_equal(dibs_once(store, "k", &(dibs_once_options){.size = 1}, do_work, &work, &answer, &length, NULL),
                   DIBS_INVALID);
  assert_int_equal(work.ran, 0);
}

/* ---- Several callers ---- */

struct caller {
  pthread_t thread;
  dibs_store *store;
  const char *key;
  struct work *work;
  dibs_once_options how;
  struct outcome out;
};

static void *call(void *arg) {
  struct caller *caller = arg;
  caller->out = once_as(caller->store, caller->key, caller->work, caller->how);
  return NULL;
}

static void begin_call(struct caller *caller) {
  assert_int_equal(pthread_create(&caller->thread, NULL, call, caller), 0);
}

static void a_concurrent_caller_waits_or_learns_that_it_runs(void **state) {
  (void)state;
  dibs_store *store = store_open(), *other = store_open();
  const char *key = key_of("k");
  struct work work = {.answer = "done", .waits = true}, never = {.answer = "never"};
  struct caller first = {.store = store, .key = key, .work = &work};
  struct caller second = {.store = other, .key = key, .work = &never, .how = {.wait_ms = DIBS_FOREVER}};
  begin_call(&first);
  UNTIL(work.ran == 1);
  EXPECT(once(other, key, &never), DIBS_HELD, NULL);
  EXPECT(once(store, key, &never), DIBS_HELD, NULL);
  EXPECT(once(other, key, &never, .wait_ms = 30), DIBS_TIMEOUT, NULL);
  begin_call(&second);
  work.may_end = 1;
  pthread_join(first.thread, NULL);
  pthread_join(second.thread, NULL);
  EXPECT(first.out, DIBS_OK, "done");
  EXPECT(second.out, DIBS_REPLAY, "done");
  assert_int_equal(never.ran, 0);
}

static void one_of_many_threads_runs(void **state) {
  (void)state;
  dibs_store *stores[] = {store_open(), store_open()};
  const char *key = key_of("k");
  struct work work = {.answer = "by one"};
  struct caller callers[THREADS];
  int ran = 0;
  for (int i = 0; i < THREADS; i++) {
    callers[i] = (struct caller){.store = stores[i % 2], .key = key, .work = &work, .how = {.wait_ms = DIBS_FOREVER}};
    begin_call(&callers[i]);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(callers[i].thread, NULL);
  for (int i = 0; i < THREADS; i++) {
    ran += callers[i].out.status == DIBS_OK;
    EXPECT(callers[i].out, callers[i].out.status == DIBS_OK ? DIBS_OK : DIBS_REPLAY, "by one");
  }
  assert_int_equal(ran, 1);
  assert_int_equal(work.ran, 1);
}

/* In a child with a store of its own: 0 if the work ran, 1 if it got the stored answer. */
static int child(const char *key, struct work *work, dibs_once_options how) {
  dibs_store *store = NULL;
  if (dibs_open(case_uri(), NULL, &store, NULL) != DIBS_OK) return 10;
  struct outcome out = once_as(store, key, work, how);
  bool right = (out.status == DIBS_OK || out.status == DIBS_REPLAY) && out.answer && strcmp(out.answer, "one") == 0;
  dibs_close(store);
  return !right ? 11 : out.status == DIBS_REPLAY;
}

static void one_of_many_processes_runs(void **state) {
  (void)state;
  (void)store_open(); /* the tables exist by now */
  const char *key = key_of("k");
  pid_t children[PROCESSES];
  int told = 0;
  for (int i = 0; i < PROCESSES; i++) {
    children[i] = fork();
    assert_true(children[i] >= 0);
    struct work work = {.answer = "one"};
    if (children[i] == 0) _exit(child(key, &work, (dibs_once_options){.wait_ms = DIBS_FOREVER}));
  }
  for (int i = 0; i < PROCESSES; i++) {
    int status = 0;
    assert_int_equal(waitpid(children[i], &status, 0), children[i]);
    assert_true(WIFEXITED(status));
    assert_in_range(WEXITSTATUS(status), 0, 1);
    told += WEXITSTATUS(status);
  }
  assert_int_equal(told, PROCESSES - 1);
}

static dibs_status tell_and_stand_still(dibs_lease *lease, char **answer, size_t *length, void *user) {
  uint64_t fence = dibs_lease_fence(lease).value;
  (void)answer, (void)length;
  if (write(*(int *)user, &fence, sizeof fence) == (ssize_t)sizeof fence)
    for (;;) pause();
  return DIBS_CORRUPT;
}

static void after_a_crash_in_the_middle_another_runs(void **state) {
  (void)state;
  dibs_store *store = store_open();
  const char *key = key_of("k");
  int ends[2], status;
  assert_int_equal(pipe(ends), 0);
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    dibs_store *mine = NULL;
    char *answer;
    size_t length;
    dibs_once_options how = {.size = sizeof how, .ttl_ms = 500};
    if (dibs_open(case_uri(), NULL, &mine, NULL) != DIBS_OK) _exit(1);
    _exit((int)dibs_once(mine, key, &how, tell_and_stand_still, &ends[1], &answer, &length, NULL));
  }
  close(ends[1]);
  uint64_t fence = 0;
  assert_int_equal(read(ends[0], &fence, sizeof fence), sizeof fence);
  close(ends[0]);
  struct work work = {.answer = "after"};
  EXPECT(once(store, key, &work), DIBS_HELD, NULL);
  kill(pid, SIGKILL);
  assert_int_equal(waitpid(pid, &status, 0), pid);
  EXPECT(once(store, key, &work, .wait_ms = LONG_MS), DIBS_OK, "after");
  assert_true(work.fence > fence);
  EXPECT(once(store, key, &work), DIBS_REPLAY, "after");
}

static void the_answer_of_a_lost_lease_is_not_kept(void **state) {
  (void)state;
  dibs_store *store = store_open(), *other = store_open();
  const char *key = key_of("k");
  struct work loser = {.answer = "lost", .breaker = other}, next = {.answer = "next"};
  EXPECT(once(store, key, &loser, .ttl_ms = 1000), DIBS_LOST, NULL);
  EXPECT(once(other, key, &next, .wait_ms = LONG_MS), DIBS_OK, "next");
  assert_true(next.fence > loser.fence);
  EXPECT(once(store, key, &loser), DIBS_REPLAY, "next");
}

/* ---- Inside a transaction of the user's ---- */

static void begin_on(void *connection) {
  engine->run(connection, engine == &engine_sqlite ? "BEGIN IMMEDIATE" : "BEGIN", NULL);
}

static void make_effect(void) {
  make_table("effect", "n %s", engine->number);
}

struct transaction {
  pthread_t thread;
  dibs_store *store;
  void *connection;
  const char *key;
  struct work *work;
  _Atomic int requested;
  struct outcome out;
};

static struct outcome inside_once(dibs_store *store, void *connection, const char *key, struct work *work) {
  struct outcome out = {.status = DIBS_CORRUPT};
  dibs_store *inside = NULL;
  out.status = engine->inside(store, connection, &inside, &out.error);
  if (out.status == DIBS_OK) out = once(inside, key, work);
  dibs_close(inside);
  return out;
}

static void *transact(void *arg) {
  struct transaction *t = arg;
  t->requested = 1;
  begin_on(t->connection); /* SQLite waits here */
  t->out = inside_once(t->store, t->connection, t->key, t->work);
  engine->run(t->connection, "COMMIT", NULL);
  return NULL;
}

/* Two transactions; the first ends with `word` (COMMIT or ROLLBACK). */
static void two_inside(const char *word, long ms, struct work *first, struct work *second, struct transaction *t) {
  make_effect();
  dibs_store *store = store_open();
  void *mine = connection();
  const char *key = key_of("k");
  first->connection = mine;
  *t = (struct transaction){.store = store, .connection = another_connection(), .key = key, .work = second};
  second->connection = t->connection;
  begin_on(mine);
  EXPECT(inside_once(store, mine, key, first), DIBS_OK, "first");
  assert_int_equal(pthread_create(&t->thread, NULL, transact, t), 0);
  UNTIL(t->requested);
  nap_ms(ms); /* so that the second usually waits; the outcome does not depend on it */
  assert_int_equal(second->ran, 0);
  engine->run(mine, word, NULL);
  pthread_join(t->thread, NULL);
}

static void inside_the_answer_commits_with_the_effect(void **state) {
  (void)state;
  struct work first = {.answer = "first"}, second = {.answer = "second"};
  struct transaction t;
  two_inside("COMMIT", 50, &first, &second, &t);
  EXPECT(t.out, DIBS_REPLAY, "first");
  assert_int_equal(second.ran, 0);
  assert_string_equal(cell("SELECT count(*) FROM effect"), "1");
  EXPECT(once(t.store, t.key, &second), DIBS_REPLAY, "first");
  assert_int_equal(first.fence, 0);
}

static void inside_a_rollback_removes_both(void **state) {
  (void)state;
  struct work first = {.answer = "first"}, second = {.answer = "second"};
  struct transaction t;
  two_inside("ROLLBACK", 50, &first, &second, &t);
  EXPECT(t.out, DIBS_OK, "second");
  assert_int_equal(second.ran, 1);
  assert_string_equal(cell("SELECT count(*) FROM effect"), "1");
  EXPECT(once(t.store, t.key, &second), DIBS_REPLAY, "second");
}

/* Longer than a call of dibs may take: ending the wait early would break the user's connection. */
static void inside_the_wait_lasts_as_long_as_the_transaction(void **state) {
  (void)state;
  struct work first = {.answer = "first"}, second = {.answer = "second"};
  struct transaction t;
  two_inside("COMMIT", 6000, &first, &second, &t);
  EXPECT(t.out, DIBS_REPLAY, "first");
  assert_string_equal(cell("SELECT count(*) FROM effect"), "1");
}

static void inside_a_lock_timeout_keeps_the_transaction(void **state) {
  (void)state;
  if (engine == &engine_sqlite) skip(); /* BEGIN waits there */
  make_effect();
  dibs_store *store = store_open();
  void *mine = connection(), *other = another_connection();
  const char *key = key_of("k");
  struct work first = {.answer = "first"}, second = {.answer = "second"};
  engine->run(other,
              strncmp(engine->scheme, "post", 4) == 0 ? "SET lock_timeout = 300" : "SET innodb_lock_wait_timeout = 1",
              NULL);
  begin_on(mine);
  EXPECT(inside_once(store, mine, key, &first), DIBS_OK, "first");
  begin_on(other);
  engine->run(other, "INSERT INTO effect (n) VALUES (7)", NULL);
  EXPECT(inside_once(store, other, key, &second), DIBS_UNAVAILABLE, NULL);
  engine->run(other, "COMMIT", NULL);
  engine->run(mine, "COMMIT", NULL);
  assert_string_equal(cell("SELECT n FROM effect"), "7");
  assert_int_equal(second.ran, 0);
}

static void inside_a_failure_leaves_the_key_free(void **state) {
  (void)state;
  make_effect();
  dibs_store *store = store_open();
  void *mine = connection();
  const char *key = key_of("k");
  struct work bad = {.status = DIBS_FULL}, good = {.answer = "good", .connection = mine};
  begin_on(mine);
  EXPECT(inside_once(store, mine, key, &bad), DIBS_FULL, NULL);
  EXPECT(inside_once(store, mine, key, &good), DIBS_OK, "good");
  EXPECT(inside_once(store, mine, key, &good), DIBS_REPLAY, "good");
  engine->run(mine, "COMMIT", NULL);
  EXPECT(once(store, key, &good), DIBS_REPLAY, "good");
  begin_on(mine);
  EXPECT(inside_once(store, mine, key_of("other"), &bad), DIBS_FULL, NULL);
  engine->run(mine, "COMMIT", NULL);
  assert_string_equal(cell("SELECT count(*) FROM effect"), "1");
}

/* Alternates between both: a failed attempt does not count as a running one. */
static void inside_and_outside_failures_leave_the_key_free(void **state) {
  (void)state;
  dibs_store *store = store_open();
  void *mine = connection();
  const char *key = key_of("k");
  struct work bad = {.status = DIBS_FULL}, good = {.answer = "good"};
  EXPECT(once(store, key, &bad), DIBS_FULL, NULL);
  begin_on(mine);
  EXPECT(inside_once(store, mine, key, &bad), DIBS_FULL, NULL);
  engine->run(mine, "COMMIT", NULL);
  begin_on(mine);
  EXPECT(inside_once(store, mine, key, &good), DIBS_OK, "good");
  engine->run(mine, "COMMIT", NULL);
  EXPECT(once(store, key, &bad), DIBS_REPLAY, "good");
}

static void inside_an_attempt_outside_is_seen(void **state) {
  (void)state;
  dibs_store *store = store_open(), *other = store_open();
  void *mine = connection();
  const char *key = key_of("k");
  struct work work = {.answer = "outside", .waits = true}, never = {.answer = "never"};
  struct caller first = {.store = other, .key = key, .work = &work};
  begin_call(&first);
  UNTIL(work.ran == 1);
  begin_on(mine);
  EXPECT(inside_once(store, mine, key, &never), DIBS_HELD, NULL);
  engine->run(mine, "ROLLBACK", NULL);
  work.may_end = 1;
  pthread_join(first.thread, NULL);
  EXPECT(first.out, DIBS_OK, "outside");
  begin_on(mine);
  EXPECT(inside_once(store, mine, key, &never), DIBS_REPLAY, "outside");
  engine->run(mine, "COMMIT", NULL);
  assert_int_equal(never.ran, 0);
}

int main(int argc, char *argv[]) {
  const struct CMUnitTest tests[] = {
      TEST(the_first_runs_and_the_others_get_its_answer),
      TEST(an_answer_may_be_empty),
      TEST(a_failure_leaves_the_key_free),
      TEST(a_forgotten_key_runs_again),
      TEST(an_answer_is_kept_for_its_time),
      TEST(an_answer_has_at_most_a_megabyte),
      TEST(long_keys_differ_to_their_last_byte),
      TEST(invalid_calls_are_refused),
      TEST(a_concurrent_caller_waits_or_learns_that_it_runs),
      TEST(one_of_many_threads_runs),
      TEST(one_of_many_processes_runs),
      TEST(after_a_crash_in_the_middle_another_runs),
      TEST(the_answer_of_a_lost_lease_is_not_kept),
      TEST(inside_the_answer_commits_with_the_effect),
      TEST(inside_a_rollback_removes_both),
      TEST(inside_the_wait_lasts_as_long_as_the_transaction),
      TEST(inside_a_lock_timeout_keeps_the_transaction),
      TEST(inside_a_failure_leaves_the_key_free),
      TEST(inside_and_outside_failures_leave_the_key_free),
      TEST(inside_an_attempt_outside_is_seen),
  };
  bed_begin(argc, argv);
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: MIT */
/*
 * Leases whose server is unreachable: stopped past their ttl, or killed and started again.  And waiters that are
 * killed.
 *
 * with.sh --private runs it and tells it how this server is stopped and started.
 */
#include "guard/record_bed.h"
#include "support/stats.h"

#include "base/port.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TTL_MS = 1500, LONG_TTL_MS = 30000, BACK_MS = 8000, PASSED_OVER_MS = 2000, HOLDERS = 4 };

static const char *self;

static void control_server(const char *verb) {
  const char *script = getenv("DIBS_TEST_SERVERS_SCRIPT"), *at = getenv("DIBS_TEST_SERVERS_DIR");
  char command[512];
  if (!script || !at) fail_msg("DIBS_TEST_SERVERS_SCRIPT and _DIR are not set: run this through with.sh --private");
  snprintf(command, sizeof command, "'%s' %s --dir '%s' >/dev/null", script, verb, at);
  if (system(command) != 0) fail_msg("script/servers %s failed", verb);
}

static void expect_at(int line, dibs_status got, dibs_status want) {
  if (got != want)
    fail_msg("line %d: %s, expected %s: %s", line, dibs_status_name(got), dibs_status_name(want), reported.text);
}
#define EXPECT(got, want) expect_at(__LINE__, got, want)

static int64_t ms_since(dibs__tick from) {
  return (dibs__tick_now().ns - from.ns) / DIBS__NS_PER_MS;
}
#define UNTIL(condition)                                                                                               \
  do {                                                                                                                 \
    dibs__tick until_by = dibs__tick_add_ms(dibs__tick_now(), BACK_MS);                                                \
    while (!(condition)) {                                                                                             \
      if (!dibs__tick_before(dibs__tick_now(), until_by))                                                              \
        fail_msg("line %d: this never became true: %s", __LINE__, #condition);                                         \
      dibs__nap_ms(2);                                                                                                 \
    }                                                                                                                  \
  } while (0)

static const char *fresh(const char *what, size_t nth) {
  static char names[16][64];
  static size_t last;
  char *name = names[last++ % 16];
  snprintf(name, sizeof names[0], "%s-%d-%zu", what, (int)getpid(), nth);
  return name;
}

/* The outcome of an acquisition that completes later. */
struct outcome {
  _Atomic int over;
  dibs_status status;
  dibs__tick at;
};
static void completed(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  (void)error;
  struct outcome *outcome = user;
  (void)lease;
  outcome->status = status;
  outcome->at = dibs__tick_now();
  outcome->over = 1;
}

static dibs_lease *acquire(dibs_store *store, const char *name, int64_t ttl_ms, uint32_t flags, dibs_lease_fn on_lost,
                           void *user) {
  dibs_lease_options how = {
      .size = sizeof how, .ttl_ms = ttl_ms, .flags = flags, .on_lost = on_lost, .user = user, .wait_ms = BACK_MS};
  dibs_lease *lease = NULL;
  dibs_status status;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), BACK_MS);
  do {
    status = dibs_acquire(store, name, &how, &lease, &reported);
  } while ((status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN) && dibs__tick_before(dibs__tick_now(), by) &&
           (dibs__nap_ms(5), true));
  EXPECT(status, DIBS_OK);
  return lease;
}

/* ---- Stopped ---- */

static void count_loss(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  struct outcome *outcome = user;
  assert_int_equal(dibs_lease_alive(lease), 0);
  completed(lease, status, error, outcome);
}

static void holders_learn_that_the_server_stopped_before_the_ttl_ends(void **state) {
  (void)state;
  dibs_store *store = store_open();
  struct outcome lost[HOLDERS] = {0};
  dibs_lease *leases[HOLDERS];
  uint64_t fences[HOLDERS];
  const char *names[HOLDERS];
  for (size_t i = 0; i < HOLDERS; i++) {
    names[i] = fresh("stopped", i);
    leases[i] = acquire(store, names[i], TTL_MS, 0, count_loss, &lost[i]);
    fences[i] = dibs_lease_fence(leases[i]).value;
  }
  control_server("pause"); /* at first none of its processes runs after the return: a renewal that succeeds was sent
                            * before the stop */
  dibs__tick stopped = dibs__tick_now();
  for (size_t i = 0; i < HOLDERS; i++) UNTIL(lost[i].over);
  int64_t latest = 0;
  for (size_t i = 0; i < HOLDERS; i++) {
    int64_t ms = (lost[i].at.ns - stopped.ns) / DIBS__NS_PER_MS;
    if (ms > latest) latest = ms;
    assert_int_equal(lost[i].status, DIBS_LOST);
    assert_true(ms < TTL_MS);
  }
  /* Meanwhile every request answers that the server is unreachable. */
  dibs_lease *none = NULL;
  dibs_lease_options how = {.size = sizeof how, .ttl_ms = TTL_MS};
  dibs_status status = dibs_acquire(store, fresh("none", 0), &how, &none, &reported);
  if (status != DIBS_UNKNOWN) EXPECT(status, DIBS_UNAVAILABLE);
  dibs__nap_ms(TTL_MS);
  control_server("resume");
  dibs__tick resumed = dibs__tick_now();
  for (size_t i = 0; i < HOLDERS; i++) {
    dibs_lease *next = acquire(store, names[i], TTL_MS, 0, NULL, NULL);
    assert_true(dibs_lease_fence(next).value > fences[i]);
    assert_int_equal(dibs_lease_alive(leases[i]), 0); /* a lost lease stays lost */
    EXPECT(dibs_release(leases[i], &reported), DIBS_LOST);
    assert_int_equal(dibs_lease_alive(next), 1);
    dibs_lease_free(leases[i]);
    dibs_lease_free(next);
  }
  print_message(
      "    losses reported %lld ms after the server stopped, ttl %d ms; all held again %lld ms after it continued\n",
      (long long)latest, TTL_MS, (long long)ms_since(resumed));
}

/* ---- Killed ---- */

static void leases_outlive_the_death_of_their_server(void **state) {
  (void)state;
  dibs_store *store = store_open(), *other = store_open();
  struct outcome lost = {0};
  const char *name = fresh("killed", 0);
  dibs_lease *lease = acquire(store, name, LONG_TTL_MS, 0, count_loss, &lost), *next = NULL;
  uint64_t fence = dibs_lease_fence(lease).value;
  control_server("kill");
  dibs_status status = dibs_renew(lease, 0, &reported);
  if (status != DIBS_UNKNOWN) EXPECT(status, DIBS_UNAVAILABLE);
  assert_int_equal(dibs_lease_alive(lease), 1);
  control_server("start");
  dibs__tick back = dibs__tick_now();
  UNTIL((status = dibs_renew(lease, 0, &reported), status == DIBS_OK || status == DIBS_LOST));
  EXPECT(status, DIBS_OK);
  print_message("    renewed %lld ms after the server returned\n", (long long)ms_since(back));
  dibs_lease_options how = {.size = sizeof how};
  UNTIL((status = dibs_acquire(other, name, &how, &next, &reported), status == DIBS_OK || status == DIBS_HELD));
  EXPECT(status, DIBS_HELD);
  EXPECT(dibs_release(lease, &reported), DIBS_OK);
  assert_int_equal(lost.over, 0);
  next = acquire(other, name, LONG_TTL_MS, 0, NULL, NULL);
  assert_true(dibs_lease_fence(next).value > fence);
  dibs_lease_free(next);
  dibs_lease_free(lease);
}

/* The server forgot the subscriptions of these waiters, but not that they wait. */
static void waiters_keep_waiting_after_the_death_of_their_server(void **state) {
  (void)state;
  dibs_store *store = store_open(), *others[] = {store_open(), store_open()};
  struct outcome outcomes[2] = {0};
  dibs_lease *waiting[2];
  const char *name = fresh("waited", 0);
  dibs_lease *lease = acquire(store, name, LONG_TTL_MS, 0, NULL, NULL);
  uint64_t fence = dibs_lease_fence(lease).value;
  dibs_lease_options how = {.size = sizeof how, .ttl_ms = LONG_TTL_MS, .wait_ms = DIBS_FOREVER};
  for (size_t i = 0; i < 2; i++)
    EXPECT(dibs_acquire_start(others[i], name, &how, completed, &outcomes[i], &waiting[i], &reported), DIBS_OK);
  for (size_t i = 0; i < 2; i++) UNTIL(stats_of(others[i]).waiting == 1 && stats_of(others[i]).operations > 0);
  control_server("kill");
  control_server("start");
  for (size_t i = 0; i < 2; i++) assert_int_equal(outcomes[i].over, 0);
  dibs_status status;
  UNTIL((status = dibs_release(lease, &reported), status == DIBS_OK || status == DIBS_LOST));
  dibs__tick released = dibs__tick_now();
  UNTIL(outcomes[0].over || outcomes[1].over);
  size_t first = outcomes[0].over ? 0 : 1;
  EXPECT(outcomes[first].status, DIBS_OK);
  assert_int_equal(outcomes[1 - first].over, 0);
  print_message("    granted %lld ms after the release\n", (long long)ms_since(released));
  assert_true(dibs_lease_fence(waiting[first]).value > fence);
  fence = dibs_lease_fence(waiting[first]).value;
  EXPECT(dibs_release(waiting[first], &reported), DIBS_OK);
  released = dibs__tick_now();
  UNTIL(outcomes[1 - first].over);
  EXPECT(outcomes[1 - first].status, DIBS_OK);
  print_message("    and the second waiter %lld ms after the release of the first\n", (long long)ms_since(released));
  assert_true(dibs_lease_fence(waiting[1 - first]).value > fence);
  for (size_t i = 0; i < 2; i++) dibs_lease_free(waiting[i]);
  dibs_lease_free(lease);
}

/* ---- Killed waiters ---- */

/* The child process, until it is killed; a program of its own, because a test must not fork with threads. */
static void child_waits(const char *uri, const char *name) {
  dibs_store *store = NULL;
  dibs_lease *lease = NULL;
  dibs_lease_options how = {.size = sizeof how, .ttl_ms = LONG_TTL_MS, .wait_ms = DIBS_FOREVER};
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (dibs_open(uri, NULL, &store, &reported) != DIBS_OK ||
      dibs_acquire(store, name, &how, &lease, &reported) != DIBS_OK)
    fprintf(stderr, "the child: %s\n", reported.text);
  for (;;) pause(); /* the child is dead by now, or the test sees that it has the lease */
}

static pid_t start_waiter(const char *uri, const char *name) {
  pid_t pid = fork();
  if (pid == 0) {
    execl(self, self, uri, "--wait", name, (char *)NULL);
    _exit(127);
  }
  assert_true(pid > 0);
  return pid;
}

static int count_waiters(const dibs_lease_info *info, void *user) {
  *(int *)user += info->state == DIBS_WAITS || info->state == DIBS_OFFERED;
  return 0;
}
static int waiters(dibs_store *store, const char *name) {
  int count = 0;
  if (dibs_show(store, name, count_waiters, &count, &reported) != DIBS_OK) return -1;
  return count;
}

static void killed_waiters_are_skipped(void **state) {
  (void)state;
  dibs_store *store = store_open(), *other = store_open();
  const char *name = fresh("line", 0);
  dibs_lease *lease = acquire(store, name, LONG_TTL_MS, 0, NULL, NULL), *last = NULL;
  pid_t children[3];
  struct outcome outcome = {0};
  for (int i = 0; i < 3; i++) {
    children[i] = start_waiter(case_uri(), name);
    UNTIL(waiters(store, name) == i + 1);
  }
  dibs_lease_options how = {.size = sizeof how, .ttl_ms = LONG_TTL_MS, .wait_ms = DIBS_FOREVER};
  EXPECT(dibs_acquire_start(other, name, &how, completed, &outcome, &last, &reported), DIBS_OK);
  UNTIL(waiters(store, name) == 4);
  for (int i = 0; i < 3; i++) {
    kill(children[i], SIGKILL);
    waitpid(children[i], NULL, 0);
  }
  dibs__tick released = dibs__tick_now();
  EXPECT(dibs_release(lease, &reported), DIBS_OK);
  UNTIL(outcome.over);
  EXPECT(outcome.status, DIBS_OK);
  int64_t ms = (outcome.at.ns - released.ns) / DIBS__NS_PER_MS;
  print_message("    granted %lld ms after the release, behind three killed waiters\n", (long long)ms);
  assert_true(ms < PASSED_OVER_MS);
  dibs_lease_free(last);
  dibs_lease_free(lease);
}

/* ---- Session locks ---- */

static dibs_store *session_store(char uri[512]) {
  dibs_store *store = NULL;
  /* A schema has leases of one kind: the cases before use rows. */
  bool mysql = strcmp(engine->scheme, "mysql") == 0;
  snprintf(uri, 512, "%s?%s", case_uri(), mysql ? "lock=named&prefix=locks_" : "lock=advisory&schema=locks");
  EXPECT(dibs_open(uri, NULL, &store, &reported), DIBS_OK);
  return store;
}

static void session_locks_are_lost_with_their_server(void **state) {
  (void)state;
  char uri[512];
  dibs_store *store = session_store(uri);
  struct outcome lost = {0};
  const char *name = fresh("session", 0);
  dibs_lease *lease = acquire(store, name, LONG_TTL_MS, 0, count_loss, &lost);
  uint64_t fence = dibs_lease_fence(lease).value;
  dibs__tick killed = dibs__tick_now();
  control_server("kill");
  UNTIL(lost.over);
  print_message("    loss reported %lld ms before or after the kill\n",
                (long long)((lost.at.ns - killed.ns) / DIBS__NS_PER_MS));
  assert_int_equal(lost.status, DIBS_LOST);
  control_server("start");
  dibs_lease *next = acquire(store, name, LONG_TTL_MS, 0, NULL, NULL);
  assert_true(dibs_lease_fence(next).value > fence);
  assert_int_equal(dibs_lease_alive(lease), 0);
  dibs_lease_free(next);
  dibs_lease_free(lease);
  dibs_close(store);
}

static void session_locks_of_killed_processes_pass_on_at_once(void **state) {
  (void)state;
  char uri[512];
  dibs_store *store = session_store(uri);
  const char *name = fresh("session", 1);
  dibs_lease *lease = NULL;
  dibs_lease_options at_once = {.size = sizeof at_once, .ttl_ms = LONG_TTL_MS}, waits = at_once;
  struct outcome outcome = {0};
  pid_t child = start_waiter(uri, name);
  /* The child holds the lock as soon as this process cannot acquire it. */
  dibs_status status;
  UNTIL((status = dibs_acquire(store, name, &at_once, &lease, &reported),
         status == DIBS_OK ? (dibs_lease_free(lease), dibs__nap_ms(20)) : (void)0, status == DIBS_HELD));
  waits.wait_ms = DIBS_FOREVER;
  EXPECT(dibs_acquire_start(store, name, &waits, completed, &outcome, &lease, &reported), DIBS_OK);
  UNTIL(stats_of(store).waiting == 1);
  assert_int_equal(outcome.over, 0);
  dibs__tick killed = dibs__tick_now();
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  UNTIL(outcome.over);
  EXPECT(outcome.status, DIBS_OK);
  int64_t ms = (outcome.at.ns - killed.ns) / DIBS__NS_PER_MS;
  print_message("    granted %lld ms after its holder was killed\n", (long long)ms);
  assert_true(ms < PASSED_OVER_MS);
  dibs_lease_free(lease);
  dibs_close(store);
}

int main(int argc, char *argv[]) {
  static const struct CMUnitTest tests[] = {
      TEST(holders_learn_that_the_server_stopped_before_the_ttl_ends),
      TEST(leases_outlive_the_death_of_their_server),
      TEST(waiters_keep_waiting_after_the_death_of_their_server),
      TEST(killed_waiters_are_skipped),
      TEST(session_locks_are_lost_with_their_server),
      TEST(session_locks_of_killed_processes_pass_on_at_once),
  };
  self = argv[0];
  if (argc == 4 && strcmp(argv[2], "--wait") == 0) child_waits(argv[1], argv[3]);
  bed_begin(argc, argv);
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: MIT */
/*
 * Leases whose server is away: stopped past their ttl, or killed and started again.  And waiters that are killed.
 *
 * Runs by with.sh --private, which says how this server is stopped and started.
 */
#include "guard/record_bed.h"

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

static void servers(const char *verb) {
  const char *script = getenv("DIBS_TEST_SERVERS_SCRIPT"), *at = getenv("DIBS_TEST_SERVERS_DIR");
  char command[512];
  if (!script || !at) fail_msg("DIBS_TEST_SERVERS_SCRIPT and _DIR are not set: run it by with.sh --private");
  snprintf(command, sizeof command, "'%s' %s --dir '%s' >/dev/null", script, verb, at);
  if (system(command) != 0) fail_msg("script/servers %s failed", verb);
}

static void expect_at(int line, dibs_status got, dibs_status want) {
  if (got != want)
    fail_msg("line %d: %s where %s was expected: %s", line, dibs_status_name(got), dibs_status_name(want), said.text);
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
        fail_msg("line %d: it never came true: %s", __LINE__, #condition);                                             \
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

/* What an acquisition that completes later came to. */
struct outcome {
  _Atomic int over;
  dibs_status status;
  dibs__tick at;
};
static void completed(dibs_lease *lease, dibs_status status, void *user) {
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
    status = dibs_acquire(store, name, &how, &lease, &said);
  } while ((status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN) && dibs__tick_before(dibs__tick_now(), by) &&
           (dibs__nap_ms(5), true));
  EXPECT(status, DIBS_OK);
  return lease;
}

/* ---- Stopped ---- */

static void told(dibs_lease *lease, dibs_status status, void *user) {
  struct outcome *outcome = user;
  assert_int_equal(dibs_lease_alive(lease), 0);
  completed(lease, status, outcome);
}

static void holders_of_a_stopped_server_are_told_before_their_time(void **state) {
  (void)state;
  dibs_store *store = store_open();
  struct outcome lost[HOLDERS] = {0};
  dibs_lease *leases[HOLDERS];
  uint64_t fences[HOLDERS];
  const char *names[HOLDERS];
  for (size_t i = 0; i < HOLDERS; i++) {
    names[i] = fresh("stopped", i);
    leases[i] = acquire(store, names[i], TTL_MS, 0, told, &lost[i]);
    fences[i] = dibs_lease_fence(leases[i]);
  }
  servers("pause"); /* none of its processes runs when it comes back: what was renewed was asked before */
  dibs__tick stopped = dibs__tick_now();
  for (size_t i = 0; i < HOLDERS; i++) UNTIL(lost[i].over);
  int64_t latest = 0;
  for (size_t i = 0; i < HOLDERS; i++) {
    int64_t ms = (lost[i].at.ns - stopped.ns) / DIBS__NS_PER_MS;
    if (ms > latest) latest = ms;
    assert_int_equal(lost[i].status, DIBS_LOST);
    assert_true(ms < TTL_MS);
  }
  /* Nobody who asks meanwhile hears anything but that it can't be reached. */
  dibs_lease *none = NULL;
  dibs_lease_options how = {.size = sizeof how, .ttl_ms = TTL_MS};
  dibs_status status = dibs_acquire(store, fresh("none", 0), &how, &none, &said);
  if (status != DIBS_UNKNOWN) EXPECT(status, DIBS_UNAVAILABLE);
  dibs__nap_ms(TTL_MS);
  servers("resume");
  dibs__tick resumed = dibs__tick_now();
  for (size_t i = 0; i < HOLDERS; i++) {
    dibs_lease *next = acquire(store, names[i], TTL_MS, 0, NULL, NULL);
    assert_true(dibs_lease_fence(next) > fences[i]);
    assert_int_equal(dibs_lease_alive(leases[i]), 0); /* what is lost stays lost */
    EXPECT(dibs_release(leases[i], &said), DIBS_LOST);
    assert_int_equal(dibs_lease_alive(next), 1);
    dibs_lease_free(leases[i]);
    dibs_lease_free(next);
  }
  print_message("    told %lld ms after the server stopped, of %d; all held again %lld ms after it went on\n",
                (long long)latest, TTL_MS, (long long)ms_since(resumed));
}

/* ---- Killed ---- */

static void leases_outlive_the_death_of_their_server(void **state) {
  (void)state;
  dibs_store *store = store_open(), *other = store_open();
  struct outcome lost = {0};
  const char *name = fresh("killed", 0);
  dibs_lease *lease = acquire(store, name, LONG_TTL_MS, 0, told, &lost), *next = NULL;
  uint64_t fence = dibs_lease_fence(lease);
  servers("kill");
  dibs_status status = dibs_renew(lease, 0, &said);
  if (status != DIBS_UNKNOWN) EXPECT(status, DIBS_UNAVAILABLE);
  assert_int_equal(dibs_lease_alive(lease), 1);
  servers("start");
  dibs__tick back = dibs__tick_now();
  UNTIL((status = dibs_renew(lease, 0, &said), status == DIBS_OK || status == DIBS_LOST));
  EXPECT(status, DIBS_OK);
  print_message("    renewed %lld ms after the server was back\n", (long long)ms_since(back));
  dibs_lease_options how = {.size = sizeof how};
  UNTIL((status = dibs_acquire(other, name, &how, &next, &said), status == DIBS_OK || status == DIBS_HELD));
  EXPECT(status, DIBS_HELD);
  EXPECT(dibs_release(lease, &said), DIBS_OK);
  assert_int_equal(lost.over, 0);
  next = acquire(other, name, LONG_TTL_MS, 0, NULL, NULL);
  assert_true(dibs_lease_fence(next) > fence);
  dibs_lease_free(next);
  dibs_lease_free(lease);
}

/* Their server forgot who rings them, not that they wait. */
static void waiters_go_on_waiting_after_the_death_of_their_server(void **state) {
  (void)state;
  dibs_store *store = store_open(), *others[] = {store_open(), store_open()};
  struct outcome outcomes[2] = {0};
  dibs_lease *waiting[2];
  const char *name = fresh("waited", 0);
  dibs_lease *lease = acquire(store, name, LONG_TTL_MS, 0, NULL, NULL);
  uint64_t fence = dibs_lease_fence(lease);
  dibs_lease_options how = {.size = sizeof how, .ttl_ms = LONG_TTL_MS, .wait_ms = DIBS_FOREVER};
  for (size_t i = 0; i < 2; i++)
    EXPECT(dibs_acquire_start(others[i], name, &how, completed, &outcomes[i], &waiting[i], &said), DIBS_OK);
  dibs_stats stats = {.size = sizeof stats};
  for (size_t i = 0; i < 2; i++)
    UNTIL((dibs_store_stats(others[i], &stats), stats.waiting == 1 && stats.operations > 0));
  servers("kill");
  servers("start");
  for (size_t i = 0; i < 2; i++) assert_int_equal(outcomes[i].over, 0);
  dibs_status status;
  UNTIL((status = dibs_release(lease, &said), status == DIBS_OK || status == DIBS_LOST));
  dibs__tick released = dibs__tick_now();
  UNTIL(outcomes[0].over || outcomes[1].over);
  size_t first = outcomes[0].over ? 0 : 1;
  EXPECT(outcomes[first].status, DIBS_OK);
  assert_int_equal(outcomes[1 - first].over, 0);
  print_message("    granted %lld ms after the release\n", (long long)ms_since(released));
  assert_true(dibs_lease_fence(waiting[first]) > fence);
  fence = dibs_lease_fence(waiting[first]);
  EXPECT(dibs_release(waiting[first], &said), DIBS_OK);
  released = dibs__tick_now();
  UNTIL(outcomes[1 - first].over);
  EXPECT(outcomes[1 - first].status, DIBS_OK);
  print_message("    and the other one %lld ms after that one's\n", (long long)ms_since(released));
  assert_true(dibs_lease_fence(waiting[1 - first]) > fence);
  for (size_t i = 0; i < 2; i++) dibs_lease_free(waiting[i]);
  dibs_lease_free(lease);
}

/* ---- Killed waiters ---- */

/* What the child does, until it is killed: tests fork nothing that has threads. */
static void wait_in_line(const char *uri, const char *name) {
  dibs_store *store = NULL;
  dibs_lease *lease = NULL;
  dibs_lease_options how = {.size = sizeof how, .ttl_ms = LONG_TTL_MS, .wait_ms = DIBS_FOREVER};
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (dibs_open(uri, NULL, &store, &said) != DIBS_OK || dibs_acquire(store, name, &how, &lease, &said) != DIBS_OK)
    fprintf(stderr, "the child: %s\n", said.text);
  for (;;) pause(); /* it was killed by now, or the test sees that it has the lease */
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
  if (dibs_show(store, name, count_waiters, &count, &said) != DIBS_OK) return -1;
  return count;
}

static void killed_waiters_are_passed_over(void **state) {
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
  EXPECT(dibs_acquire_start(other, name, &how, completed, &outcome, &last, &said), DIBS_OK);
  UNTIL(waiters(store, name) == 4);
  for (int i = 0; i < 3; i++) {
    kill(children[i], SIGKILL);
    waitpid(children[i], NULL, 0);
  }
  dibs__tick released = dibs__tick_now();
  EXPECT(dibs_release(lease, &said), DIBS_OK);
  UNTIL(outcome.over);
  EXPECT(outcome.status, DIBS_OK);
  int64_t ms = (outcome.at.ns - released.ns) / DIBS__NS_PER_MS;
  print_message("    granted %lld ms after the release, behind three that were killed\n", (long long)ms);
  assert_true(ms < PASSED_OVER_MS);
  dibs_lease_free(last);
  dibs_lease_free(lease);
}

/* ---- Session locks ---- */

static dibs_store *session_store(char uri[512]) {
  dibs_store *store = NULL;
  snprintf(uri, 512, "%s?lock=%s", case_uri(), strcmp(engine->scheme, "mysql") == 0 ? "named" : "advisory");
  EXPECT(dibs_open(uri, NULL, &store, &said), DIBS_OK);
  return store;
}

static void session_locks_are_lost_with_their_server(void **state) {
  (void)state;
  char uri[512];
  dibs_store *store = session_store(uri);
  struct outcome lost = {0};
  const char *name = fresh("session", 0);
  dibs_lease *lease = acquire(store, name, LONG_TTL_MS, 0, told, &lost);
  uint64_t fence = dibs_lease_fence(lease);
  dibs__tick killed = dibs__tick_now();
  servers("kill");
  UNTIL(lost.over);
  print_message("    told %lld ms after it was about to be killed\n",
                (long long)((lost.at.ns - killed.ns) / DIBS__NS_PER_MS));
  assert_int_equal(lost.status, DIBS_LOST);
  servers("start");
  dibs_lease *next = acquire(store, name, LONG_TTL_MS, 0, NULL, NULL);
  assert_true(dibs_lease_fence(next) > fence);
  assert_int_equal(dibs_lease_alive(lease), 0);
  dibs_lease_free(next);
  dibs_lease_free(lease);
  dibs_close(store);
}

static void session_locks_of_the_killed_pass_on_at_once(void **state) {
  (void)state;
  char uri[512];
  dibs_store *store = session_store(uri);
  const char *name = fresh("session", 1);
  dibs_lease *lease = NULL;
  dibs_lease_options at_once = {.size = sizeof at_once, .ttl_ms = LONG_TTL_MS}, waits = at_once;
  struct outcome outcome = {0};
  pid_t child = start_waiter(uri, name);
  /* It has it when we can't. */
  dibs_status status;
  UNTIL((status = dibs_acquire(store, name, &at_once, &lease, &said),
         status == DIBS_OK ? (dibs_lease_free(lease), dibs__nap_ms(20)) : (void)0, status == DIBS_HELD));
  waits.wait_ms = DIBS_FOREVER;
  EXPECT(dibs_acquire_start(store, name, &waits, completed, &outcome, &lease, &said), DIBS_OK);
  dibs_stats stats = {.size = sizeof stats};
  UNTIL((dibs_store_stats(store, &stats), stats.waiting == 1));
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
      TEST(holders_of_a_stopped_server_are_told_before_their_time),
      TEST(leases_outlive_the_death_of_their_server),
      TEST(waiters_go_on_waiting_after_the_death_of_their_server),
      TEST(killed_waiters_are_passed_over),
      TEST(session_locks_are_lost_with_their_server),
      TEST(session_locks_of_the_killed_pass_on_at_once),
  };
  self = argv[0];
  if (argc == 4 && strcmp(argv[2], "--wait") == 0) wait_in_line(argv[1], argv[3]);
  bed_begin(argc, argv);
  return cmocka_run_group_tests(tests, NULL, NULL);
}

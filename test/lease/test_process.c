/* SPDX-License-Identifier: MIT */
/* Processes and threads: fork, signals, several processes on one store. */
#include "help.h"
#include "support/records.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- Fork ---- */

/* Runs in the child: returns 0, or the number of the check that failed. It must not hang or allocate much, because
 * other threads of the parent may have held locks. */
static int child_is_refused(dibs_store *store, dibs_lease *lease, struct later *waits) {
  options how = HOW();
  dibs_lease *mine = NULL;
  dibs_error error;
  char *data;
  size_t length;
  if (dibs_lease_alive(lease) != 0 || dibs_lease_left_ms(lease) != 0) return 1;
  if (dibs_acquire(store, "m", &how, &mine, &error) != DIBS_INVALID || mine) return 2;
  if (!strstr(error.text, "fork")) return 3;
  if (dibs_acquire_start(store, "m", &how, later_done, waits, &mine, NULL) != DIBS_INVALID) return 4;
  if (dibs_release(lease, NULL) != DIBS_INVALID || dibs_renew(lease, 0, NULL) != DIBS_INVALID) return 5;
  if (dibs_release_start(lease, NULL, NULL, NULL) != DIBS_INVALID) return 6;
  if (dibs_lease_detach(lease, NULL) != DIBS_INVALID) return 7;
  if (dibs_break(store, "n", NULL, NULL) != DIBS_INVALID) return 8;
  if (record_save(store, "r", lease, "x", 1, NULL) != DIBS_INVALID) return 9;
  if (record_load(store, "r", &data, &length, NULL, NULL) != DIBS_INVALID) return 10;
  if (dibs_dispatch(store, 0) != 0) return 11;
  dibs_acquire_cancel(waits->lease);
  dibs_lease_free(lease);
  dibs_lease_free(waits->lease);
  dibs_close(store);
  return 0;
}

static void child_is_refused_and_the_parent_goes_on(void **state) {
  (void)state;
  dibs_store *store = open_store(), *two = open_store();
  struct told told = {.calls = 0};
  struct later waits;
  dibs_lease *lease = take(store, "n", .ttl_ms = 1500, .on_lost = count_loss, .user = &told);
  dibs_lease *other = take(two, "w");
  later_start(&waits, store, "w", HOW(.wait_ms = DIBS_FOREVER));
  UNTIL(rows_of(two, "w", DIBS_WAITS) == 1);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) _exit(child_is_refused(store, lease, &waits));
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
  uint64_t renewed = stats_of(store).renewed;
  UNTIL(stats_of(store).renewed >= renewed + 4); /* longer than its ttl after the child closed */
  assert_int_equal(dibs_lease_alive(lease), 1);
  assert_int_equal(send_request(two, "n"), DIBS_HELD);
  assert_int_equal(told.calls, 0);
  assert_int_equal(waits.calls, 0);
  give(other);
  assert_int_equal(later_wait(&waits), DIBS_OK);
  give(waits.lease);
  give(lease);
}

/* The child cannot use inherited handles; it can use handles that it opens. */
static void child_may_open_its_own(void **state) {
  (void)state;
  if (THREAD_SANITIZED) skip();
  dibs_store *store = open_store();
  dibs_lease *lease = take(store, "n");
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    dibs_store *mine = NULL;
    dibs_lease *got = NULL;
    options how = HOW();
    if (dibs_open(case_uri(), NULL, &mine, NULL) != DIBS_OK) _exit(1);
    if (!case_in_memory() && dibs_acquire(mine, "n", &how, &got, NULL) != DIBS_HELD) _exit(2);
    if (dibs_acquire(mine, "m", &how, &got, NULL) != DIBS_OK) _exit(3);
    if (dibs_release(got, NULL) != DIBS_OK) _exit(4);
    if (case_keeps_records() && record_save(mine, "r", lease, "x", 1, NULL) != DIBS_INVALID) _exit(5);
    dibs_lease_free(got);
    dibs_close(mine);
    _exit(0);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
  assert_int_equal(dibs_lease_alive(lease), 1);
  give(lease);
}

/* ---- Signals ---- */

/* Bits of SigBlk of a thread; *name is its name. */
static uint64_t blocked_in(const char *task, char name[32]) {
  char path[300], line[256];
  uint64_t bits = 0;
  snprintf(path, sizeof path, "/proc/self/task/%s/status", task);
  FILE *file = fopen(path, "re");
  if (!file) return 0;
  while (fgets(line, sizeof line, file)) {
    if (sscanf(line, "Name: %31s", name) == 1) continue;
    unsigned long long seen;
    if (sscanf(line, "SigBlk: %llx", &seen) == 1) bits = seen;
  }
  fclose(file);
  return bits;
}

static void threads_of_the_library_block_every_signal(void **state) {
  (void)state;
  dibs_store *store = open_store(), *two = open_store();
  struct told told = {.calls = 0};
  struct later later;
  dibs_lease *lease = take(store, "n", .ttl_ms = 300, .on_lost = count_loss, .user = &told);
  later_start(&later, two, "n", HOW(.wait_ms = DIBS_FOREVER));
  UNTIL(stats_of(store).renewed >= 1);
  /* All except the two that cannot be blocked and the two that the C library reserves. */
  uint64_t all = ~UINT64_C(0);
  const int not [] = {SIGKILL, SIGSTOP, 32, 33};
  for (int i = 0; i < 4; i++) all &= ~(UINT64_C(1) << (not [i] - 1));
  uint32_t seen = 0;
  DIR *tasks = opendir("/proc/self/task");
  assert_non_null(tasks);
  for (struct dirent *entry; (entry = readdir(tasks));) {
    char name[32] = "";
    if (entry->d_name[0] == '.') continue;
    uint64_t bits = blocked_in(entry->d_name, name);
    if (strncmp(name, "dibs-", 5) != 0) continue;
    seen++;
    if ((bits & all) != all) fail_msg("%s blocks %llx only", name, (unsigned long long)bits);
  }
  closedir(tasks);
  assert_true(seen >= 3);
  give(lease);
  assert_int_equal(later_wait(&later), DIBS_OK);
  give(later.lease);
}

static _Atomic int signals;
static void count_signal(int number) {
  (void)number;
  atomic_fetch_add(&signals, 1);
}

struct shelled {
  struct caller caller;
  _Atomic bool stop;
};
static void *shell(void *arg) {
  struct shelled *s = arg;
  while (!atomic_load(&s->stop)) {
    pthread_kill(s->caller.thread, SIGUSR1);
    dibs__nap_ms(1);
  }
  return NULL;
}

static void signals_do_not_end_a_wait(void **state) {
  (void)state;
  struct sigaction action = {.sa_handler = count_signal}, before;
  sigaction(SIGUSR1, &action, &before);
  dibs_store *one = open_store(), *two = open_store();
  dibs_lease *lease = take(one, "n");
  struct shelled shelled = {.stop = false};
  pthread_t shooter;
  caller_start(&shelled.caller, two, "n", HOW(.wait_ms = DIBS_FOREVER));
  assert_int_equal(pthread_create(&shooter, NULL, shell, &shelled), 0);
  UNTIL(rows_of(one, "n", DIBS_WAITS) == 1 && atomic_load(&signals) >= 20);
  assert_int_equal(shelled.caller.over, 0);
  give(lease);
  UNTIL(shelled.caller.over != 0);
  atomic_store(&shelled.stop, true);
  pthread_join(shooter, NULL);
  assert_int_equal(caller_join(&shelled.caller), DIBS_OK);
  give(shelled.caller.lease);
  sigaction(SIGUSR1, &before, NULL);
}

/* ---- Several processes ---- */

static pid_t spawn(int (*body)(const char *uri, int in, int out), int *to, int *from) {
  int down[2], up[2];
  assert_int_equal(pipe(down), 0);
  assert_int_equal(pipe(up), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    close(down[1]);
    close(up[0]);
    _exit(body(case_uri(), down[0], up[1]));
  }
  close(down[0]);
  close(up[1]);
  *to = down[1];
  *from = up[0];
  return child;
}

static int hold_until_told(const char *uri, int in, int out) {
  dibs_store *store = NULL;
  dibs_lease *lease = NULL;
  options how = HOW(.ttl_ms = 1200, .wait_ms = LONG_MS);
  char byte = 'h';
  if (dibs_open(uri, NULL, &store, NULL) != DIBS_OK) return 1;
  if (dibs_acquire(store, "n", &how, &lease, NULL) != DIBS_OK) return 2;
  if (write(out, &byte, 1) != 1 || read(in, &byte, 1) != 1) return 3;
  int alive = dibs_lease_alive(lease);
  dibs_status status = dibs_release(lease, NULL);
  dibs_lease_free(lease);
  dibs_close(store);
  return alive && status == DIBS_OK ? 0 : !alive && status == DIBS_LOST ? 40 : 4;
}

static int hold_when_told(const char *uri, int in, int out) {
  char byte;
  return read(in, &byte, 1) == 1 ? hold_until_told(uri, in, out) : 5;
}

static int join(pid_t child) {
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void wait_byte(int from) {
  char byte;
  assert_int_equal(read(from, &byte, 1), 1);
}

static void processes_hold_one_after_another(void **state) {
  (void)state;
  if (case_in_memory()) skip();
  int to, from;
  pid_t child = spawn(hold_until_told, &to, &from);
  wait_byte(from);
  dibs_store *store = open_store();
  assert_int_equal(send_request(store, "n"), DIBS_HELD);
  struct caller caller;
  caller_start(&caller, store, "n", HOW(.wait_ms = DIBS_FOREVER));
  UNTIL(rows_of(store, "n", DIBS_WAITS) == 1);
  assert_int_equal(write(to, "x", 1), 1);
  assert_int_equal(caller_join(&caller), DIBS_OK);
  give(caller.lease);
  assert_int_equal(join(child), 0);
  close(to);
  close(from);
}

static void a_killed_holders_name_is_granted_after_its_ttl(void **state) {
  (void)state;
  if (case_in_memory()) skip();
  int to, from;
  pid_t child = spawn(hold_until_told, &to, &from);
  wait_byte(from);
  dibs_store *store = open_store();
  struct caller caller;
  caller_start(&caller, store, "n", HOW(.wait_ms = DIBS_FOREVER));
  UNTIL(rows_of(store, "n", DIBS_WAITS) == 1);
  dibs__tick killed = dibs__tick_now();
  assert_int_equal(kill(child, SIGKILL), 0);
  assert_int_equal(join(child), -SIGKILL);
  assert_int_equal(caller_join(&caller), DIBS_OK);
  assert_true((caller.ended.ns - killed.ns) / DIBS__NS_PER_MS < 1200 + 3000);
  give(caller.lease);
  close(to);
  close(from);
}

static void a_stopped_holder_finds_its_lease_lost(void **state) {
  (void)state;
  if (case_in_memory()) skip();
  int to, from;
  pid_t child = spawn(hold_until_told, &to, &from);
  wait_byte(from);
  dibs_store *store = open_store();
  assert_int_equal(kill(child, SIGSTOP), 0);
  dibs_lease *lease = take(store, "n", .wait_ms = DIBS_FOREVER);
  assert_int_equal(kill(child, SIGCONT), 0);
  assert_int_equal(write(to, "x", 1), 1);
  assert_int_equal(join(child), 40); /* not alive, and its release answers LOST */
  assert_int_equal(dibs_lease_alive(lease), 1);
  assert_int_equal(dibs_renew(lease, 0, NULL), DIBS_OK);
  give(lease);
  close(to);
  close(from);
}

static void a_killed_waiter_is_skipped(void **state) {
  (void)state;
  if (case_in_memory()) skip();
  int to, from;
  pid_t child = spawn(hold_when_told, &to, &from); /* before this process has threads */
  dibs_store *store = open_store();
  dibs_lease *lease = take(store, "n");
  assert_int_equal(write(to, "x", 1), 1);
  UNTIL(rows_of(store, "n", DIBS_WAITS) == 1);
  struct later behind;
  later_start(&behind, open_store(), "n", HOW(.wait_ms = DIBS_FOREVER));
  UNTIL(rows_of(store, "n", DIBS_WAITS) == 2);
  assert_int_equal(kill(child, SIGKILL), 0);
  assert_int_equal(join(child), -SIGKILL);
  dibs__tick released = dibs__tick_now();
  give(lease);
  assert_int_equal(later_wait(&behind), DIBS_OK);
  assert_true(ms_since(released) < 3000);
  give(behind.lease);
  close(to);
  close(from);
}

int main(int argc, char *argv[]) {
  const struct CMUnitTest tests[] = {
      TEST(child_is_refused_and_the_parent_goes_on),   TEST(child_may_open_its_own),
      TEST(threads_of_the_library_block_every_signal), TEST(signals_do_not_end_a_wait),
      TEST(processes_hold_one_after_another),          TEST(a_killed_holders_name_is_granted_after_its_ttl),
      TEST(a_stopped_holder_finds_its_lease_lost),     TEST(a_killed_waiter_is_skipped),
  };
  lease_begin(argc, argv);
  return cmocka_run_group_tests(tests, NULL, NULL);
}

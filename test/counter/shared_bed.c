/* SPDX-License-Identifier: MIT */
#include "shared_bed.h"
#include "handle/request.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { URI_MAX = 512, CHILDREN = 16 };

struct tally *tally;
dibs_error reported;
struct plan plan;
bool leases_differ;

static char folder[] = "/tmp/dibs-shared-XXXXXX", redis[URI_MAX], private_redis[URI_MAX], file[URI_MAX],
            uri[2 * URI_MAX + 2];
static pid_t children[CHILDREN];
static int child_count;

/* ---- Interference ---- */

dibs_status __real_dibs__request_carry(struct dibs__request *request, uint16_t verb, dibs__tick by);
dibs_status __wrap_dibs__request_carry(struct dibs__request *request, uint16_t verb, dibs__tick by);
dibs_status __real_dibs_acquire(dibs_store *store, const char *name, const dibs_lease_options *options,
                                dibs_lease **lease, dibs_error *error);
dibs_status __wrap_dibs_acquire(dibs_store *store, const char *name, const dibs_lease_options *options,
                                dibs_lease **lease, dibs_error *error);

static enum step step_of(const struct dibs__request *request, uint16_t verb) {
  if (request->op.family == DIBS__FAM_COUNTER && verb == DIBS__COUNTER_ADD && request->counter.fence.v)
    return STEP_APPLY;
  if (request->op.family != DIBS__FAM_SHARED) return STEP_NONE;
  switch (verb) {
  case DIBS__SHARED_ADD:
    return STEP_ADD;
  case DIBS__SHARED_SEAL:
    return STEP_SEAL;
  case DIBS__SHARED_DROP:
    return STEP_DROP;
  default:
    return STEP_NONE;
  }
}

static void interfere(void) {
  tally->reached = 1;
  enum what what = plan.what;
  plan.step = STEP_NONE; /* once */
  if (what == DIES) kill(getpid(), SIGKILL);
  if (what == STOPS) kill(getpid(), SIGSTOP);
  if (plan.meanwhile) plan.meanwhile();
}

dibs_status __wrap_dibs__request_carry(struct dibs__request *request, uint16_t verb, dibs__tick by) {
  bool here = plan.step != STEP_NONE && step_of(request, verb) == plan.step;
  bool loses = here && plan.what == LOSES;
  if (here && !plan.after) {
    interfere();
    if (loses) return DIBS_UNKNOWN;
  }
  dibs_status status = __real_dibs__request_carry(request, verb, by);
  if (here && plan.after && plan.step != STEP_NONE) {
    interfere();
    if (loses) return DIBS_UNKNOWN;
  }
  return status;
}

/* Leases of flushers end soon. */
dibs_status __wrap_dibs_acquire(dibs_store *store, const char *name, const dibs_lease_options *options,
                                dibs_lease **lease, dibs_error *error) {
  char other[DIBS_NAME_MAX + 1];
  dibs_lease_options shorter = *options;
  shorter.ttl_ms = BED_TTL_MS;
  snprintf(other, sizeof other, "%s/%d", name, (int)getpid());
  return __real_dibs_acquire(store, leases_differ ? other : name, &shorter, lease, error);
}

/* ---- The store ---- */

const char *bed_uri(void) {
  return uri;
}
const char *bed_redis(void) {
  return redis;
}
const char *bed_file(void) {
  return file;
}
const char *bed_folder(void) {
  return getenv("DIBS_TEST_SERVERS_DIR");
}

void bed_use_redis(const char *other) {
  snprintf(redis, sizeof redis, "%s", other);
  snprintf(uri, sizeof uri, "%s,%s", redis, file);
}

void bed_use_database(const char *other) {
  snprintf(file, sizeof file, "%s", other);
  bed_use_redis(private_redis);
}

dibs_store *bed_open_at(const char *at) {
  dibs_store *s = NULL;
  dibs_status status = DIBS_UNAVAILABLE;
  for (time_t end = time(NULL) + LONG_MS / 1000; status != DIBS_OK && time(NULL) < end; bed_nap())
    status = dibs_open(at, NULL, &s, &reported);
  if (status != DIBS_OK) fail_msg("%s: %s", at, reported.text);
  return s;
}

dibs_store *bed_open(void) {
  return bed_open_at(uri);
}

void bed_add(dibs_store *store, const char *key, int64_t delta) {
  const dibs_counter_options o = {.size = sizeof o, .level = DIBS_COUNT_SHARED, .wait_ms = LONG_MS};
  if (dibs_counter_add(store, key, delta, &o, &reported) != DIBS_OK) fail_msg("adding: %s", reported.text);
}

void bed_flush(dibs_store *store) {
  const dibs_counter_options o = {.size = sizeof o, .level = DIBS_COUNT_SHARED, .wait_ms = LONG_MS};
  if (dibs_counter_flush(store, &o, &reported) != DIBS_OK) fail_msg("flushing: %s", reported.text);
}

int64_t bed_stored(const char *key) {
  dibs_store *s = bed_open_at(file);
  dibs_counter_value value = DIBS_COUNTER_VALUE_INIT;
  dibs_status status = dibs_counter_read(s, key, NULL, &value, &reported);
  dibs_close(s);
  if (status == DIBS_NOT_FOUND) return 0;
  if (status != DIBS_OK) fail_msg("reading: %s", reported.text);
  return value.stored;
}

void bed_wait_stored(const char *key, int64_t want) {
  int64_t stored = bed_stored(key);
  for (time_t end = time(NULL) + LONG_MS / 1000; stored != want && time(NULL) < end; stored = bed_stored(key))
    bed_nap();
  assert_int_equal(stored, want);
}

/* ---- Children ---- */

void bed_nap(void) {
  nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

pid_t bed_child(void (*body)(void)) {
  assert_true(child_count < CHILDREN);
  fflush(NULL);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    body();
    _exit(0);
  }
  children[child_count++] = child;
  return child;
}

void bed_wait_for(_Atomic int64_t *number, int64_t least) {
  for (time_t end = time(NULL) + LONG_MS / 1000; *number < least; bed_nap())
    if (time(NULL) >= end) fail_msg("only %lld of %lld", (long long)*number, (long long)least);
}

void bed_wait_stopped(pid_t child) {
  int how = 0;
  assert_int_equal(waitpid(child, &how, WUNTRACED), child);
  assert_true(WIFSTOPPED(how));
}

void bed_end(pid_t child, int signal) {
  int how = 0;
  if (signal) kill(child, signal);
  assert_int_equal(waitpid(child, &how, 0), child);
  if (signal != SIGKILL && !WIFSIGNALED(how)) assert_int_equal(WEXITSTATUS(how), 0);
  for (int i = 0; i < child_count; i++)
    if (children[i] == child) children[i] = 0;
}

/* ---- Redis ---- */

static void run(const char *command) {
  if (system(command) != 0) fail_msg("failed: %s", command);
}

void bed_servers(const char *verb, const char *where, const char *more) {
  char command[2 * URI_MAX];
  snprintf(command, sizeof command, "'%s' %s --dir '%s' %s >/dev/null", getenv("DIBS_TEST_SERVERS_SCRIPT"), verb,
           where ? where : bed_folder(), more ? more : "redis");
  run(command);
}

void bed_ask(const char *where, const char *words) {
  char command[2 * URI_MAX];
  if (!where) where = bed_folder();
  snprintf(
      command, sizeof command,
      "REDISCLI_AUTH=$(cat '%s/admin-password') redis-cli -e -h 127.0.0.1 -p \"$(cat '%s/redis/port')\" --user admin"
      " %s >/dev/null",
      where, where, words);
  run(command);
}

void bed_dump(void) {
  char command[2 * URI_MAX];
  bed_ask(NULL, "SAVE");
  snprintf(command, sizeof command, "cp '%s/redis/data/dump.rdb' '%s/dump.rdb'", bed_folder(), folder);
  run(command);
}

void bed_restore(void) {
  char command[2 * URI_MAX];
  bed_servers("kill", NULL, NULL);
  snprintf(command, sizeof command, "cp '%s/dump.rdb' '%s/redis/data/dump.rdb'", folder, bed_folder());
  run(command);
  bed_servers("start", NULL, NULL);
}

void bed_empty(void) {
  char command[2 * URI_MAX];
  bed_servers("kill", NULL, NULL);
  snprintf(command, sizeof command, "rm -f '%s/redis/data/dump.rdb'", bed_folder());
  run(command);
  bed_servers("start", NULL, NULL);
}

/* ---- Cases ---- */

int bed_setup(void **state) {
  static int files;
  (void)state;
  snprintf(file, sizeof file, "sqlite://%s/%d.db", folder, ++files);
  bed_use_redis(private_redis);
  memset(tally, 0, sizeof *tally);
  plan = (struct plan){.step = STEP_NONE};
  leases_differ = false;
  bed_ask(NULL, "FLUSHALL");
  return 0;
}

int bed_teardown(void **state) {
  (void)state;
  for (int i = 0; i < child_count; i++) {
    if (!children[i]) continue;
    kill(children[i], SIGKILL);
    waitpid(children[i], NULL, 0);
  }
  child_count = 0;
  return 0;
}

int bed_main(int argc, char **argv, const struct CMUnitTest tests[], size_t count) {
  char command[URI_MAX];
  if (argc < 2 || !getenv("DIBS_TEST_SERVERS_SCRIPT") || !bed_folder() || !mkdtemp(folder)) return 2;
  snprintf(private_redis, sizeof private_redis, "%s", argv[1]);
  tally = mmap(NULL, sizeof *tally, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (tally == MAP_FAILED) return 2;
  if (argc > 2) cmocka_set_test_filter(argv[2]);
  int failed = _cmocka_run_group_tests("shared", tests, count, NULL, NULL);
  snprintf(command, sizeof command, "rm -rf '%s'", folder);
  return system(command) != 0 || failed ? 1 : 0;
}

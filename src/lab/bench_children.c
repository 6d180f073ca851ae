/* SPDX-License-Identifier: MIT */
/* A side that another program measures: a bare client of the server (bench/floors), which prints its figures as JSON.
 */
#include "cli/cli.h"
#include "lab/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OUTPUT_MAX = 16384, FLOOR_WORDS = 6 };

bool dibs__bench_start(struct bench *b, char *const argv[], pid_t *pid, int *out) {
  int ends[2];
  posix_spawn_file_actions_t actions;
  if (pipe2(ends, O_CLOEXEC)) return dibs__bench_fail(b, "cannot create a pipe: %s", strerror(errno));
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  int failed = posix_spawnp(pid, argv[0], &actions, NULL, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  *out = ends[0];
  if (!failed) return true;
  close(ends[0]);
  return dibs__bench_fail(b, "cannot start %s: %s", argv[0], strerror(failed));
}

static size_t read_all(int fd, char *to, size_t size) {
  size_t len = 0;
  for (;;) {
    ssize_t got = read(fd, to + len, size - 1 - len);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    len += (size_t)got;
  }
  to[len] = '\0';
  return len;
}

/* The number after "key": in one line of JSON.  false: the key is missing. */
static bool number_of(const char *json, const char *key, double *number) {
  char quoted[64];
  snprintf(quoted, sizeof quoted, "\"%s\":", key);
  const char *at = strstr(json, quoted);
  char *end = NULL;
  if (at) *number = strtod(at + strlen(quoted), &end);
  return end && end != at + strlen(quoted);
}

/* Runs the floor with these further arguments; its output is in `output`. */
static bool floor_request(struct bench *b, char *const words[FLOOR_WORDS], char output[OUTPUT_MAX]) {
  char uri[sizeof b->shown], program[sizeof b->folder], w1[] = "--uri", w2[] = "--json";
  pid_t pid = 0;
  int out = -1, status = 0;
  if (!b->floor)
    return dibs__bench_fail(b,
                            "this case needs --floor PROGRAM, for example build/release/bench/floors/floor-postgres");
  snprintf(uri, sizeof uri, "%.*s", (int)dibs__bench_first(b->store), b->store);
  snprintf(program, sizeof program, "%s", b->floor);
  char *argv[] = {program, w1, uri, w2, words[0], words[1], words[2], words[3], words[4], words[5], NULL};
  if (!dibs__bench_start(b, argv, &pid, &out)) return false;
  read_all(out, output, OUTPUT_MAX);
  close(out);
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  return dibs__bench_fail(b, "%s ended with status %d", b->floor, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

bool dibs__bench_floor_weigh(struct bench *b, uint32_t hold, double *bytes, double *keys, struct bench_sample *sample) {
  char count[16], output[OUTPUT_MAX], w1[] = "--hold";
  snprintf(count, sizeof count, "%u", hold);
  if (!floor_request(b, (char *[FLOOR_WORDS]){w1, count}, output)) return false;
  if (!number_of(output, "bytes", bytes) || !number_of(output, "keys", keys))
    return dibs__bench_fail(b, "%s can't measure memory", b->floor);
  if (!hold) return true;
  return (number_of(output, "bytes_each", &sample->value[BENCH_STORE]) &&
          number_of(output, "per_second", &sample->value[BENCH_RATE])) ||
         dibs__bench_fail(b, "%s printed no memory of a lease", b->floor);
}

static bool floor_side(struct bench *b, const char *name, int count, struct bench_sample *sample) {
  char users[16], seconds[32], strategy[32], output[OUTPUT_MAX];
  char w1[] = "--strategy", w2[] = "--users", w3[] = "--seconds";
  double rate = 0, p50 = 0, p99 = 0, most = 0, cpu = 0;
  snprintf(users, sizeof users, "%d", count);
  snprintf(seconds, sizeof seconds, "%.3f", (double)b->size.ms / 1000);
  snprintf(strategy, sizeof strategy, "%s", name);
  if (!floor_request(b, (char *[FLOOR_WORDS]){w1, strategy, w2, users, w3, seconds}, output)) return false;
  if (!number_of(output, "per_second", &rate) || !number_of(output, "p50_ns", &p50) ||
      !number_of(output, "p99_ns", &p99) || !number_of(output, "max_ns", &most) || !number_of(output, "cpu_ns", &cpu))
    return dibs__bench_fail(b, "%s printed no figures", b->floor);
  sample->value[BENCH_RATE] = rate;
  sample->value[BENCH_P50] = p50 / 1000;
  sample->value[BENCH_P99] = p99 / 1000;
  sample->value[BENCH_MAX] = most / 1000;
  sample->value[BENCH_CPU] = cpu / 1000;
  return true;
}

bool dibs__bench_side_floor(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  static const struct {
    const char *strategy;
    int users;
  } kinds[] = {[BENCH_FLOOR_OWN] = {"lease-own", BENCH_THREADS},
               [BENCH_FLOOR_SHARED] = {"lease-shared", BENCH_THREADS},
               [BENCH_FLOOR_ONE] = {"lease-own", 1},
               [BENCH_FLOOR_16] = {"lease-16", 1},
               [BENCH_FLOOR_64] = {"lease-64", 1}};
  return floor_side(b, kinds[arg].strategy, kinds[arg].users, sample);
}

bool dibs__bench_side_floor_tasks(struct bench *b, uint32_t batch, struct bench_sample *sample) {
  char strategy[32];
  snprintf(strategy, sizeof strategy, "task-%u", batch);
  sample->skipped = !b->floor;
  return sample->skipped || floor_side(b, strategy, BENCH_TASK_CLIENTS, sample);
}

/* Starting and ending the processes that some sides measure; and the main function of such a process. */

enum { READY_MS = 30000 };

static struct bench_page *page_map(int fd) {
  void *at = mmap(NULL, sizeof(struct bench_page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return at == MAP_FAILED ? NULL : at;
}

struct bench_page *dibs__bench_page_new(struct bench *b, int *fd) {
  struct bench_page *page = NULL;
  *fd = memfd_create("dibs-bench", 0); /* not close-on-exec: the helpers inherit it */
  if (*fd >= 0 && !ftruncate(*fd, sizeof *page)) page = page_map(*fd);
  if (!page) {
    dibs__bench_fail(b, "cannot create memory to share with helpers: %s", strerror(errno));
    if (*fd >= 0) close(*fd);
    return NULL;
  }
  page->run = dibs__process_id();
  snprintf(page->store, sizeof page->store, "%s", b->store);
  snprintf(page->file, sizeof page->file, "%s/flock", b->folder);
  return page;
}

void dibs__bench_page_free(struct bench_page *page, int fd) {
  munmap(page, sizeof *page);
  close(fd);
}

bool dibs__bench_spawn(struct bench *b, const char *program, char *const argv[], pid_t *pid) {
  int failed = posix_spawnp(pid, program, NULL, NULL, argv, environ);
  if (!failed) return true;
  *pid = 0;
  return dibs__bench_fail(b, "cannot start %s: %s", program, strerror(failed));
}

static bool child_start(struct bench *b, struct bench_page *page, int fd, uint32_t number) {
  char handle[16], which[16];
  snprintf(handle, sizeof handle, "%d", fd);
  snprintf(which, sizeof which, "%u", number);
  char program[] = "dibs", verb[] = "bench", helper[] = "helper";
  char *argv[] = {program, verb, helper, handle, which, NULL};
  return dibs__bench_spawn(b, DIBS__BENCH_SELF, argv, &page->child[number].pid);
}

/* Waits for the end of one; false and b->why unless it ended well. */
static bool child_end(struct bench *b, struct bench_child *child, int flags) {
  int status = 0;
  if (!child->pid || waitpid(child->pid, &status, flags) != child->pid) return true;
  child->pid = 0;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  if (child->why[0]) return dibs__bench_fail(b, "%s", child->why);
  if (WIFSIGNALED(status)) return dibs__bench_fail(b, "a helper was ended by signal %d", WTERMSIG(status));
  return dibs__bench_fail(b, "a helper ended with status %d and without a message", WEXITSTATUS(status));
}

/* Waits until *word is `value` or more; false when a helper has ended before, or after `ms`. */
static bool bench_children_wait(struct bench *b, struct bench_page *page, dibs__word *word, uint32_t value,
                                int64_t ms) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), ms);
  for (;;) {
    uint32_t seen = atomic_load(word);
    if (seen >= value) return true;
    for (uint32_t i = 0; i < page->count; i++) {
      struct bench_child *child = &page->child[i];
      bool ran = child->pid != 0;
      if (!child_end(b, child, WNOHANG)) return false;
      if (ran && !child->pid) return dibs__bench_fail(b, "a helper ended too early");
    }
    dibs__tick now = dibs__tick_now();
    if (!dibs__tick_before(now, by)) return dibs__bench_fail(b, "a helper was not ready after %lld ms", (long long)ms);
    dibs__word_wait(word, seen, dibs__tick_min(by, dibs__tick_add_ms(now, 50)), true);
  }
}

bool dibs__bench_children_start(struct bench *b, struct bench_page *page, int fd, uint32_t count) {
  bool done = true;
  page->count = count;
  for (uint32_t i = 0; done && i < count; i++) done = child_start(b, page, fd, i);
  if (done) done = bench_children_wait(b, page, &page->ready, count, READY_MS);
  if (done) return true;
  for (uint32_t i = 0; i < count; i++) {
    if (page->child[i].pid) kill(page->child[i].pid, SIGKILL);
    while (page->child[i].pid && waitpid(page->child[i].pid, NULL, 0) < 0 && errno == EINTR) continue;
  }
  return false;
}

void dibs__bench_children_go(struct bench_page *page) {
  atomic_store(&page->go, 1);
  dibs__word_wake(&page->go, UINT32_MAX, true);
}

bool dibs__bench_children_end(struct bench *b, struct bench_page *page, uint32_t count) {
  atomic_store(&page->stop, 1);
  dibs__word_wake(&page->stop, UINT32_MAX, true);
  bool done = true;
  for (uint32_t i = 0; i < count; i++) done = child_end(b, &page->child[i], 0) && done;
  return done;
}

/* ---- In the helper ---- */

bool dibs__bench_child_fail(struct bench_child *child, const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(child->why, sizeof child->why, format, list);
  va_end(list);
  return false;
}

void dibs__bench_child_ready(struct bench_page *page) {
  atomic_fetch_add(&page->ready, 1);
  dibs__word_wake(&page->ready, UINT32_MAX, true);
  while (!atomic_load(&page->go)) dibs__word_wait(&page->go, 0, DIBS__TICK_NEVER, true);
}

static bool (*const roles[])(struct bench_page *,
                             struct bench_child *) = {[BENCH_ROLE_DIBS] = dibs__bench_role_turns,
                                                      [BENCH_ROLE_FLOCK] = dibs__bench_role_turns,
                                                      [BENCH_ROLE_HELD] = dibs__bench_role_held,
                                                      [BENCH_ROLE_WAITING] = dibs__bench_role_waiting,
                                                      [BENCH_ROLE_TASKS] = dibs__bench_role_tasks};

int dibs__bench_helper(int argc, char **argv) {
  if (argc != 2) return 1;
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* without its parent a helper's results have no reader */
  uint64_t handle, number;
  if (!dibs__cli_number(argv[0], INT_MAX, &handle)) return 1;
  if (!dibs__cli_number(argv[1], BENCH_PROCESSES_MANY - 1, &number)) return 1;
  struct bench_page *page = page_map((int)handle);
  if (!page) return 1;
  struct bench_child *child = &page->child[number];
  return roles[page->role](page, child) ? 0 : 1;
}

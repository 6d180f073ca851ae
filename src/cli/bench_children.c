/* SPDX-License-Identifier: MIT */
/* Starting and ending the processes that some sides measure; and the main function of such a process. */
#include "cli/bench_page.h"
#include "cli/cli.h"

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
    dibs__bench_fail(b, "no memory to share with helpers: %s", strerror(errno));
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
  return dibs__bench_fail(b, "%s could not be started: %s", program, strerror(failed));
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
  return dibs__bench_fail(b, "a helper ended with status %d and said nothing", WEXITSTATUS(status));
}

bool dibs__bench_children_wait(struct bench *b, struct bench_page *page, dibs__word *word, uint32_t value, int64_t ms) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), ms);
  for (;;) {
    uint32_t seen = atomic_load(word);
    if (seen >= value) return true;
    for (uint32_t i = 0; i < page->count; i++) {
      struct bench_child *child = &page->child[i];
      bool ran = child->pid != 0;
      if (!child_end(b, child, WNOHANG)) return false;
      if (ran && !child->pid) return dibs__bench_fail(b, "a helper ended before its time");
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
  if (done) done = dibs__bench_children_wait(b, page, &page->ready, count, READY_MS);
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
                                                      [BENCH_ROLE_WAITING] = dibs__bench_role_waiting};

int dibs__bench_helper(int argc, char **argv) {
  if (argc != 2) return 1;
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* nobody reads what a helper without a parent finds out */
  uint64_t handle, number;
  if (!dibs__cli_number(argv[0], INT_MAX, &handle)) return 1;
  if (!dibs__cli_number(argv[1], BENCH_PROCESSES_MANY - 1, &number)) return 1;
  struct bench_page *page = page_map((int)handle);
  if (!page) return 1;
  struct bench_child *child = &page->child[number];
  return roles[page->role](page, child) ? 0 : 1;
}

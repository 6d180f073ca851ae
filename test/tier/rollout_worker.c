/* SPDX-License-Identifier: MIT */
/*
 * The programs of the test of a roll-out:
 *
 *   rollout_worker pod URI LOG SEED     acquires and releases leases until SIGTERM
 *   rollout_worker hold LOG NAME MS     under `dibs run` (NAME @: the name of DIBS_NAME): writes down the DIBS_FENCE
 * that it holds, for MS, or until the file MS exists rollout_worker check LOG            checks that no two held one
 * name at once, by their beliefs, and that fences grew
 *
 * A line of LOG: "held NAME FENCE FROM UNTIL", in ns of CLOCK_BOOTTIME, which all processes of a machine share; or
 * "trouble ...".
 */
#include "dibs.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { NAMES = 24, TTL_MS = 6000, LONG_MS = 7000, HELD_MAX = 200000 };

static volatile sig_atomic_t ending;
static int log_fd;
static atomic_int lost;

static void end(int signal) {
  (void)signal;
  ending = 1;
}

static int64_t now_ns(void) {
  struct timespec at;
  clock_gettime(CLOCK_BOOTTIME, &at);
  return (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
}

static void nap_ms(int64_t ms) {
  struct timespec nap = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&nap, NULL);
}

/* One write() for each line: O_APPEND keeps the lines of many processes intact. */
static void line(const char *text) {
  size_t len = strlen(text);
  if (write(log_fd, text, len) != (ssize_t)len) _exit(3);
}

static void open_log(const char *path) {
  log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (log_fd < 0) _exit(3);
}

static void held(const char *name, uint64_t fence, int64_t from, int64_t until) {
  char text[200];
  snprintf(text, sizeof text, "held %s %" PRIu64 " %" PRId64 " %" PRId64 "\n", name, fence, from, until);
  line(text);
}

static void trouble(const char *what, const char *name, dibs_status status, const char *why) {
  char text[600];
  snprintf(text, sizeof text, "trouble %ld %s %s: %s: %s\n", (long)getpid(), what, name, dibs_status_text(status), why);
  line(text);
}

static unsigned draw(unsigned *seed) {
  *seed ^= *seed << 13, *seed ^= *seed >> 17, *seed ^= *seed << 5;
  return *seed;
}

static void on_lost(dibs_lease *lease, dibs_status why, const dibs_error *error, void *user) {
  (void)error;
  (void)lease, (void)why, (void)user;
  atomic_fetch_add(&lost, 1);
  line("trouble on_lost was called\n");
}

/* ---- pod ---- */

static void one(dibs_store *store, unsigned *seed) {
  char name[32];
  dibs_error error = {0};
  dibs_lease *lease = NULL;
  dibs_lease_options options = {.size = sizeof options, .ttl_ms = TTL_MS, .wait_ms = 60000, .on_lost = on_lost};
  snprintf(name, sizeof name, "job-%d", (int)(draw(seed) % NAMES));
  dibs_status status = dibs_acquire(store, name, &options, &lease, &error);
  if (status != DIBS_OK) {
    trouble("acquire", name, status, error.text);
    return;
  }
  int64_t from = now_ns();
  nap_ms(draw(seed) % 16 == 0 ? LONG_MS : draw(seed) % 150);
  bool alive = dibs_lease_alive(lease) != 0;
  int64_t until = now_ns();
  if (!alive) trouble("lost", name, DIBS_LOST, "the lease was not alive at its end");
  held(name, dibs_lease_fence(lease).value, from, until);
  status = dibs_release(lease, &error);
  if (status != DIBS_OK) trouble("release", name, status, error.text);
  dibs_lease_free(lease);
}

static int pod(const char *uri, const char *log, const char *seed_text) {
  unsigned seed = (unsigned)strtoul(seed_text, NULL, 10) + 1;
  dibs_store_options options = {.size = sizeof options};
  dibs_error error = {0};
  dibs_store *store = NULL;
  struct sigaction act = {.sa_handler = end};
  sigaction(SIGTERM, &act, NULL);
  open_log(log);
  dibs_status status = dibs_open(uri, &options, &store, &error);
  if (status != DIBS_OK) {
    trouble("open", uri, status, error.text);
    return 1;
  }
  while (!ending) one(store, &seed);
  dibs_close(store);
  return 0;
}

/* ---- hold ---- */

static int hold(const char *log, const char *name, const char *ms) {
  const char *fence = getenv("DIBS_FENCE");
  if (strcmp(name, "@") == 0) name = getenv("DIBS_NAME");
  int64_t from = now_ns();
  if (!fence || !name) return 3;
  open_log(log);
  if (ms[0] != '/') nap_ms(strtoll(ms, NULL, 10));
  while (ms[0] == '/' && access(ms, F_OK) != 0) nap_ms(20);
  held(name, strtoull(fence, NULL, 10), from, now_ns());
  return 0;
}

/* ---- check ---- */

struct one_held {
  char name[32];
  uint64_t fence;
  int64_t from, until;
};

static int by_name_and_time(const void *a, const void *b) {
  const struct one_held *x = a, *y = b;
  int order = strcmp(x->name, y->name);
  return order ? order : (x->from > y->from) - (x->from < y->from);
}

static int check(const char *log) {
  struct one_held *all = calloc(HELD_MAX, sizeof *all);
  FILE *from = fopen(log, "r");
  char text[700];
  size_t count = 0, wrong = 0, names = 0;
  if (!all || !from) return 3;
  while (fgets(text, sizeof text, from)) {
    struct one_held *h = &all[count];
    if (sscanf(text, "held %31s %" SCNu64 " %" SCNd64 " %" SCNd64, h->name, &h->fence, &h->from, &h->until) == 4) {
      if (++count == HELD_MAX) return 3;
    } else {
      wrong++;
      fputs(text, stdout);
    }
  }
  fclose(from);
  qsort(all, count, sizeof *all, by_name_and_time);
  for (size_t i = 0; i < count; i++) {
    const struct one_held *h = &all[i], *before = i ? &all[i - 1] : NULL;
    bool same = before && strcmp(before->name, h->name) == 0;
    names += !same;
    if (!same || (h->from >= before->until && h->fence > before->fence)) continue;
    wrong++;
    printf("%s: fence %" PRIu64 " from %" PRId64 " until %" PRId64 ", then %" PRIu64 " from %" PRId64 " until %" PRId64
           "\n",
           h->name, before->fence, before->from, before->until, h->fence, h->from, h->until);
  }
  printf("%zu leases of %zu names, %zu wrong\n", count, names, wrong);
  free(all);
  return wrong ? 1 : 0;
}

int main(int argc, char **argv) {
  if (argc == 5 && strcmp(argv[1], "pod") == 0) return pod(argv[2], argv[3], argv[4]);
  if (argc == 5 && strcmp(argv[1], "hold") == 0) return hold(argv[2], argv[3], argv[4]);
  if (argc == 3 && strcmp(argv[1], "check") == 0) return check(argv[2]);
  fputs("usage: rollout_worker pod|hold|check ...; rollout_worker.c describes the arguments\n", stderr);
  return 2;
}

/* SPDX-License-Identifier: MIT */
/*
 * The actors of script/demo: each run of this program is one process that uses a store through dibs.h, like any
 * program. The store is $DIBS_STORE.  An actor writes lines to standard output, which the script reads.
 *
 *   turns NAME LABEL PLACE OF ROUNDS GO   acquire the name ROUNDS times; begin when PLACE others are in the queue
 *   await NAME COUNT                      wait until COUNT processes hold or wait for the name
 *   write NAME LABEL TTL_MS               hold, seal a record, wait; when the lease is lost, save nevertheless
 *   take NAME LABEL TTL_MS TEXT           hold, seal the record, save it, release
 *   read NAME                             print the record
 *   hold NAME TTL_MS                      hold without renewing until killed; print when it requested and was granted
 *   next NAME                             wait for the name; print when it was granted
 *   count FILE TURNS NAME                 add one to the number in FILE, TURNS times, each under the lease of NAME
 *   count FILE TURNS -                    the same without a lease
 */
#include "dibs/admin.h"
#include "support/records.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Long enough for a busy machine; a longer wait is a lost wake-up. */
enum { PATIENCE_MS = 20000, LOOK_EVERY_MS = 2 };

static dibs_store *store;
static dibs_error error;

static void nap_us(long us) {
  struct timespec t = {us / 1000000, us % 1000000 * 1000};
  while (nanosleep(&t, &t) != 0 && errno == EINTR) {
  }
}

static int64_t boot_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_BOOTTIME, &t);
  return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int64_t number(const char *text) {
  char *end;
  errno = 0;
  long long n = strtoll(text, &end, 10);
  if (errno || end == text || *end) {
    fprintf(stderr, "demo: not a number: %s\n", text);
    exit(2);
  }
  return n;
}

/* Prints the failure and exits, unless the status is the expected one. */
static void want(dibs_status got, dibs_status wanted, const char *what) {
  if (got == wanted) return;
  fprintf(stderr, "demo: %s: %s, not %s: %s\n", what, dibs_status_name(got), dibs_status_name(wanted), error.text);
  exit(1);
}

static dibs_lease *acquire(const char *name, const char *owner, int64_t ttl_ms, uint32_t flags) {
  dibs_lease_options options = {.size = sizeof options};
  options.wait_ms = PATIENCE_MS;
  options.owner = owner;
  options.ttl_ms = ttl_ms;
  options.flags = flags;
  dibs_lease *lease;
  want(dibs_acquire(store, name, &options, &lease, &error), DIBS_OK, "acquire");
  return lease;
}

static void release(dibs_lease *lease) {
  want(dibs_release(lease, &error), DIBS_OK, "release");
  dibs_lease_free(lease);
}

static int count_one(const dibs_lease_info *info, void *user) {
  if (info->state != DIBS_BROKEN) ++*(int *)user;
  return 0;
}

/* Waits until `count` processes hold or wait for the name. */
static void await_line(const char *name, int count) {
  int64_t until = boot_ms() + PATIENCE_MS;
  for (int seen = 0;; seen = 0) {
    dibs_status status = dibs_show(store, name, count_one, &seen, &error);
    if (status != DIBS_NOT_FOUND) want(status, DIBS_OK, "show");
    if (seen >= count) return;
    if (boot_ms() > until) {
      fprintf(stderr, "demo: %d processes were expected for %s, %d are present\n", count, name, seen);
      exit(1);
    }
    nap_us(LOOK_EVERY_MS * 1000L);
  }
}

/* Each turn lasts until all processes that will acquire again have requested, so that the order of requests is
 * known. */
static int turns(char **arg) {
  const char *name = arg[0], *label = arg[1], *go = arg[5];
  int position = (int)number(arg[2]), of = (int)number(arg[3]), rounds = (int)number(arg[4]);
  if (position > 0) await_line(name, position);
  for (int round = 0; round < rounds; round++) {
    dibs_lease *lease = acquire(name, label, 0, 0);
    printf("%s %" PRIu64 "\n", label, dibs_lease_fence(lease).value);
    await_line(name, round < rounds - 1 ? of : of - position);
    for (int i = 0; round == 0 && position == 0 && access(go, F_OK) != 0 && i < PATIENCE_MS; i++) nap_us(1000);
    nap_us(100000); /* so that a viewer can follow */
    release(lease);
  }
  return 0;
}

static int await(char **arg) {
  await_line(arg[0], (int)number(arg[1]));
  return 0;
}

static int write_late(char **arg) {
  const char *name = arg[0], *label = arg[1];
  dibs_lease *lease = acquire(name, label, number(arg[2]), 0);
  char *data;
  size_t length;
  want(record_seal(store, name, lease, &data, &length, &error), DIBS_OK, "seal");
  free(data);
  printf("holds %" PRIu64 "\n", dibs_lease_fence(lease).value);
  while (dibs_lease_alive(lease)) nap_us(LOOK_EVERY_MS * 1000L);
  char text[100];
  int n = snprintf(text, sizeof text, "written late by %s", label);
  printf("alive %d\n", dibs_lease_alive(lease));
  printf("save %s\n", dibs_status_name(record_save(store, name, lease, text, (size_t)n, &error)));
  printf("release %s\n", dibs_status_name(dibs_release(lease, &error)));
  dibs_lease_free(lease);
  return 0;
}

static int take(char **arg) {
  const char *name = arg[0], *label = arg[1], *text = arg[3];
  int64_t requested = boot_ms();
  dibs_lease *lease = acquire(name, label, number(arg[2]), 0);
  printf("holds %" PRIu64 " after %" PRId64 "\n", dibs_lease_fence(lease).value, boot_ms() - requested);
  char *data;
  size_t length;
  want(record_seal(store, name, lease, &data, &length, &error), DIBS_OK, "seal");
  free(data);
  want(record_save(store, name, lease, text, strlen(text), &error), DIBS_OK, "save");
  release(lease);
  return 0;
}

static int read_record(char **arg) {
  char *data;
  size_t length;
  uint64_t fence;
  want(record_load(store, arg[0], &data, &length, &fence, &error), DIBS_OK, "load");
  printf("%s\n", data);
  free(data);
  return 0;
}

static int hold(char **arg) {
  int64_t requested = boot_ms();
  dibs_lease *lease = acquire(arg[0], "holder", number(arg[1]), DIBS_NO_RENEW);
  printf("asked %" PRId64 " granted %" PRId64 " fence %" PRIu64 "\n", requested, boot_ms(),
         dibs_lease_fence(lease).value);
  for (int i = 0; i < PATIENCE_MS; i++) nap_us(1000);
  fprintf(stderr, "demo: the holder was not killed\n");
  return 1;
}

static int next(char **arg) {
  dibs_lease *lease = acquire(arg[0], "next", 0, 0);
  printf("granted %" PRId64 " fence %" PRIu64 "\n", boot_ms(), dibs_lease_fence(lease).value);
  release(lease);
  return 0;
}

/* Reads the number, waits for a moment, writes one more: this loses counts if two processes do it at once. */
static void add_one(int fd) {
  char text[32] = "";
  if (pread(fd, text, sizeof text - 1, 0) < 0) exit(1);
  int64_t value = strtoll(text, NULL, 10);
  nap_us(50);
  int n = snprintf(text, sizeof text, "%" PRId64 "\n", value + 1);
  if (pwrite(fd, text, (size_t)n, 0) != n) exit(1);
}

static int count(char **arg) {
  int fd = open(arg[0], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return perror(arg[0]), 1;
  bool leased = strcmp(arg[2], "-") != 0;
  for (int64_t left = number(arg[1]); left > 0; left--) {
    dibs_lease *lease = leased ? acquire(arg[2], "counter", 0, 0) : NULL;
    add_one(fd);
    if (lease) release(lease);
  }
  close(fd);
  return 0;
}

static const struct actor {
  const char *name;
  int args;
  int (*play)(char **arg);
} actors[] = {
    {"turns", 6, turns},      {"await", 2, await}, {"write", 3, write_late}, {"take", 4, take},
    {"read", 1, read_record}, {"hold", 2, hold},   {"next", 1, next},        {"count", 3, count},
};

int main(int argc, char **argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  for (size_t i = 0; i < sizeof actors / sizeof *actors; i++) {
    if (argc < 2 || strcmp(argv[1], actors[i].name) != 0 || argc != actors[i].args + 2) continue;
    want(dibs_open(NULL, NULL, &store, &error), DIBS_OK, "open");
    int code = actors[i].play(argv + 2);
    dibs_close(store);
    return code;
  }
  fprintf(stderr, "demo: unknown arguments; demo_worker.c lists them\n");
  return 2;
}

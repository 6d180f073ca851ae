/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_SIDE_HELP_H
#define DIBS_TEST_SIDE_HELP_H
/* Helpers of the tests of the side file: a folder, sides of a database in it, and real processes. */
#include "drivers/sqlite/side_impl.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LONG_MS = 10000 }; /* no test waits longer than this for a condition */

struct bed {
  char folder[64], database[80], page[88];
  struct dibs__result reported;
  struct dibs__side_memory memory;
};

static inline dibs__tick in_ms(int64_t ms) {
  return dibs__tick_add_ms(dibs__tick_now(), ms);
}

static inline void write_file(const char *path, const void *bytes, size_t size, off_t at) {
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  assert_true(fd >= 0);
  assert_int_equal(pwrite(fd, bytes, size, at), (ssize_t)size);
  close(fd);
}

static inline int bed_make(void **state) {
  struct bed *bed = calloc(1, sizeof *bed);
  if (!bed) return -1;
  snprintf(bed->folder, sizeof bed->folder, "/tmp/dibs-side-XXXXXX");
  if (!mkdtemp(bed->folder)) return -1;
  snprintf(bed->database, sizeof bed->database, "%s/x.db", bed->folder);
  snprintf(bed->page, sizeof bed->page, "%s-dibs", bed->database);
  *state = bed;
  return 0;
}

static inline int bed_clear(void **state) {
  struct bed *bed = *state;
  char command[128];
  snprintf(command, sizeof command, "rm -rf %s", bed->folder);
  int r = system(command);
  free(bed);
  return r;
}

/* A side in the middle of opening: it holds the gate. */
static inline struct dibs__side *side_at_gate(struct bed *bed) {
  struct dibs__side *side;
  dibs__status status = dibs__side_open(bed->database, 0600, in_ms(LONG_MS), &side, &bed->memory, &bed->reported);
  if (status != DIBS_OK) fprintf(stderr, "open: %d %s\n", status, bed->reported.text);
  return status == DIBS_OK ? side : NULL;
}

static const dibs__incarnation incarnation_one = {
    {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}};

/* Opens as a driver does: the database exists and has an incarnation. */
static inline struct dibs__side *side_open(struct bed *bed) {
  struct dibs__side *side = side_at_gate(bed);
  if (!side) abort(); /* the message names the reason */
  if (access(bed->database, F_OK) != 0) write_file(bed->database, "db", 2, 0);
  if (dibs__side_match_file(side, bed->database, &bed->memory, &bed->reported) != DIBS_OK) {
    fprintf(stderr, "match: %s\n", bed->reported.text);
    abort();
  }
  if (bed->memory.state == DIBS__SIDE_NEW) dibs__side_begin(side, &incarnation_one, bed->memory.epoch + 1);
  dibs__side_gate_leave(side);
  return side;
}

static inline dibs__status try_open(struct bed *bed, int64_t ms, struct dibs__side **side) {
  memset(&bed->reported, 0, sizeof bed->reported);
  return dibs__side_open(bed->database, 0600, in_ms(ms), side, &bed->memory, &bed->reported);
}

/* Memory that the processes of a test share in addition to the page. */
static inline void *shared(size_t size) {
  void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_true(at != MAP_FAILED);
  return at;
}

/* Runs `body` in a child that never returns into cmocka. */
static inline pid_t child(int (*body)(struct bed *bed, void *arg), struct bed *bed, void *arg) {
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    alarm(60); /* a child ends itself if its parent does not */
    _exit(body(bed, arg));
  }
  assert_true(pid > 0);
  return pid;
}

static inline void kill_it(pid_t pid) {
  assert_int_equal(kill(pid, SIGKILL), 0);
  int status;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static inline int result_of(pid_t pid) {
  int status;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* Waits until a number that another process writes is at least `least`. */
static inline bool reached(const _Atomic uint64_t *number, uint64_t least) {
  dibs__tick by = in_ms(LONG_MS);
  while (atomic_load(number) < least) {
    if (!dibs__tick_before(dibs__tick_now(), by)) return false;
    dibs__nap_ms(1);
  }
  return true;
}

#endif

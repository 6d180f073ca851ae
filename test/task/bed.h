/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_TASK_BED_H
#define DIBS_TEST_TASK_BED_H
/* What the tests of tasks through dibs/task.h share: a store, an error, and a kind of its own for each test. */
#include "unit/unit.h"

#include "dibs/task.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *uri;
static char folder[64], own_uri[128], kind[64];
static dibs_store *store;
static dibs_error error;

#define EXPECT(call, want)                                                                                             \
  do {                                                                                                                 \
    dibs_status expect_got = (call);                                                                                   \
    if (expect_got != (want)) fail_msg("%s: %s: %s", #call, dibs_status_name(expect_got), error.text);                 \
  } while (0)

static inline int64_t now_ms(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return (int64_t)at.tv_sec * 1000 + at.tv_nsec / 1000000;
}

static inline void nap_ms(int64_t ms) {
  struct timespec for_ = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
  nanosleep(&for_, NULL);
}

/* Until `condition`, for LONG_MS at most. */
#define UNTIL(condition)                                                                                               \
  do {                                                                                                                 \
    int64_t until_by = now_ms() + LONG_MS;                                                                             \
    bool until_true;                                                                                                   \
    while (!(until_true = (condition)) && now_ms() < until_by) nap_ms(1);                                              \
    assert_true(until_true);                                                                                           \
  } while (0)

static inline int open_bed(void **state) {
  static unsigned nr;
  (void)state;
  snprintf(kind, sizeof kind, "kind-%d-%u", (int)getpid(), nr++);
  dibs_status status = dibs_open(uri, NULL, &store, &error);
  if (status == DIBS_OK) return 0;
  fprintf(stderr, "%s: %s\n", uri, error.text);
  return -1;
}

static inline int close_bed(void **state) {
  (void)state;
  dibs_close(store);
  store = NULL;
  return 0;
}

/* The store of the arguments; "sqlite:" is a file of this process. */
static inline void begin_bed(int argc, char **argv) {
  uri = argc > 1 ? argv[1] : "memory:";
  if (strcmp(uri, "sqlite:") != 0) return;
  snprintf(folder, sizeof folder, "/tmp/dibs-task.XXXXXX");
  if (!mkdtemp(folder)) abort();
  snprintf(own_uri, sizeof own_uri, "sqlite://%s/dibs.db", folder);
  uri = own_uri;
}

static inline int end_bed(int code) {
  static const char *const files[] = {"dibs.db", "dibs.db-wal", "dibs.db-shm", "dibs.db-dibs"};
  char path[128];
  for (size_t i = 0; folder[0] && i < COUNT_OF(files); i++) {
    snprintf(path, sizeof path, "%s/%s", folder, files[i]);
    unlink(path);
  }
  if (folder[0]) rmdir(folder);
  return code;
}

static inline uint64_t add(const char *payload, dibs_task_options o) {
  uint64_t nr = 0;
  o.size = sizeof o;
  EXPECT(dibs_task_add(store, kind, payload, strlen(payload), &o, &nr, &error), DIBS_OK);
  assert_int_not_equal(nr, 0);
  return nr;
}

static inline size_t claim(uint32_t most, int64_t timeout_ms, dibs_task **tasks) {
  dibs_claim_options o = {.size = sizeof o, .most = most, .timeout_ms = timeout_ms};
  size_t count = 99;
  dibs_status status = dibs_tasks_claim(store, kind, &o, tasks, &count, &error);
  if (status != DIBS_OK && status != DIBS_NOT_FOUND) fail_msg("%s: %s", dibs_status_name(status), error.text);
  assert_int_equal(status == DIBS_OK, count > 0);
  return count;
}

/* The one task that is ready. */
static inline dibs_task *claimed(int64_t timeout_ms) {
  dibs_task *task = NULL;
  assert_int_equal(claim(1, timeout_ms, &task), 1);
  return task;
}

static int state_fn(const dibs_task_info *info, void *user) {
  *(int *)user = (int)info->state;
  return 0;
}

/* -1: there is no such task. */
static inline int state_of(uint64_t nr) {
  dibs_task_filter filter = {.size = sizeof filter, .nr = nr};
  int state = -1;
  EXPECT(dibs_tasks_list(store, &filter, 0, state_fn, &state, &error), DIBS_OK);
  return state;
}

#endif

/* SPDX-License-Identifier: MIT */
/* A side that another program measures: a bare client of the server (bench/floors), which says what it saw as JSON. */
#include "cli/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OUTPUT_MAX = 16384 };

static bool start(struct bench *b, char *const argv[], pid_t *pid, int *out) {
  int ends[2];
  posix_spawn_file_actions_t actions;
  if (pipe2(ends, O_CLOEXEC)) return dibs__bench_fail(b, "no pipe: %s", strerror(errno));
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  int failed = posix_spawnp(pid, argv[0], &actions, NULL, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  *out = ends[0];
  if (!failed) return true;
  close(ends[0]);
  return dibs__bench_fail(b, "%s could not be started: %s", argv[0], strerror(failed));
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

/* The number behind "key": in one line of JSON.  false: it is not there. */
static bool number_of(const char *json, const char *key, double *number) {
  char quoted[64];
  snprintf(quoted, sizeof quoted, "\"%s\":", key);
  const char *at = strstr(json, quoted);
  char *end = NULL;
  if (at) *number = strtod(at + strlen(quoted), &end);
  return end && end != at + strlen(quoted);
}

bool dibs__bench_side_floor(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  char users[16], seconds[32], output[OUTPUT_MAX], uri[sizeof b->shown];
  pid_t pid = 0;
  int out = -1, status = 0;
  double rate = 0, p50 = 0, p99 = 0, most = 0;
  if (!b->floor)
    return dibs__bench_fail(b, "this case needs --floor PROGRAM: build/release/bench/floors/floor-postgres for one");
  snprintf(users, sizeof users, "%d", BENCH_THREADS);
  snprintf(seconds, sizeof seconds, "%.3f", (double)b->size.ms / 1000);
  snprintf(uri, sizeof uri, "%s", b->store);
  char program[sizeof b->folder], strategy[32];
  snprintf(program, sizeof program, "%s", b->floor);
  snprintf(strategy, sizeof strategy, "%s", arg == BENCH_FLOOR_OWN ? "lease-own" : "lease-shared");
  char w1[] = "--uri", w2[] = "--strategy", w3[] = "--users", w4[] = "--seconds", w5[] = "--json";
  if (!start(b, (char *[]){program, w1, uri, w2, strategy, w3, users, w4, seconds, w5, NULL}, &pid, &out)) return false;
  read_all(out, output, sizeof output);
  close(out);
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return dibs__bench_fail(b, "%s ended with status %d", b->floor, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  if (!number_of(output, "per_second", &rate) || !number_of(output, "p50_ns", &p50) ||
      !number_of(output, "p99_ns", &p99) || !number_of(output, "max_ns", &most))
    return dibs__bench_fail(b, "%s did not say what it measured", b->floor);
  sample->value[BENCH_RATE] = rate;
  sample->value[BENCH_P50] = p50 / 1000;
  sample->value[BENCH_P99] = p99 / 1000;
  sample->value[BENCH_MAX] = most / 1000;
  return true;
}

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

enum { OUTPUT_MAX = 16384, FLOOR_WORDS = 6 };

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

/* Runs the floor with these words behind its own; what it says, in `output`. */
static bool floor_ask(struct bench *b, char *const words[FLOOR_WORDS], char output[OUTPUT_MAX]) {
  char uri[sizeof b->shown], program[sizeof b->folder], w1[] = "--uri", w2[] = "--json";
  pid_t pid = 0;
  int out = -1, status = 0;
  if (!b->floor)
    return dibs__bench_fail(b, "this case needs --floor PROGRAM: build/release/bench/floors/floor-postgres for one");
  snprintf(uri, sizeof uri, "%.*s", (int)dibs__bench_first(b->store), b->store);
  snprintf(program, sizeof program, "%s", b->floor);
  char *argv[] = {program, w1, uri, w2, words[0], words[1], words[2], words[3], words[4], words[5], NULL};
  if (!start(b, argv, &pid, &out)) return false;
  read_all(out, output, OUTPUT_MAX);
  close(out);
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  return dibs__bench_fail(b, "%s ended with status %d", b->floor, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

bool dibs__bench_floor_weigh(struct bench *b, uint32_t hold, double *bytes, double *keys, struct bench_sample *sample) {
  char count[16], output[OUTPUT_MAX], w1[] = "--hold";
  snprintf(count, sizeof count, "%u", hold);
  if (!floor_ask(b, (char *[FLOOR_WORDS]){w1, count}, output)) return false;
  if (!number_of(output, "bytes", bytes) || !number_of(output, "keys", keys))
    return dibs__bench_fail(b, "%s can't weigh what it measures", b->floor);
  if (!hold) return true;
  return (number_of(output, "bytes_each", &sample->value[BENCH_STORE]) &&
          number_of(output, "per_second", &sample->value[BENCH_RATE])) ||
         dibs__bench_fail(b, "%s did not say what a lease weighs", b->floor);
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
  char users[16], seconds[32], strategy[32], output[OUTPUT_MAX];
  char w1[] = "--strategy", w2[] = "--users", w3[] = "--seconds";
  double rate = 0, p50 = 0, p99 = 0, most = 0, cpu = 0;
  snprintf(users, sizeof users, "%d", kinds[arg].users);
  snprintf(seconds, sizeof seconds, "%.3f", (double)b->size.ms / 1000);
  snprintf(strategy, sizeof strategy, "%s", kinds[arg].strategy);
  if (!floor_ask(b, (char *[FLOOR_WORDS]){w1, strategy, w2, users, w3, seconds}, output)) return false;
  if (!number_of(output, "per_second", &rate) || !number_of(output, "p50_ns", &p50) ||
      !number_of(output, "p99_ns", &p99) || !number_of(output, "max_ns", &most) || !number_of(output, "cpu_ns", &cpu))
    return dibs__bench_fail(b, "%s did not say what it measured", b->floor);
  sample->value[BENCH_RATE] = rate;
  sample->value[BENCH_P50] = p50 / 1000;
  sample->value[BENCH_P99] = p99 / 1000;
  sample->value[BENCH_MAX] = most / 1000;
  sample->value[BENCH_CPU] = cpu / 1000;
  return true;
}

/* SPDX-License-Identifier: MIT */
/* Processes that the lab starts: helpers, which are this program told what to do by its arguments, and bare clients. */
#include "lab/lab.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ARGS_MAX = 12 };

bool dibs__lab_spawn(const char *uri, char *const args[], int *pid, char *why, size_t size) {
  char program[] = "dibs", verb[] = "lab", helper[] = "helper";
  char *argv[ARGS_MAX + 4] = {program, verb, helper};
  for (size_t i = 0; i < ARGS_MAX && args[i]; i++) argv[i + 3] = args[i];
  *pid = 0;
  /* By the environment: arguments are shown to everybody, and there may be a password in it. */
  pid_t made = 0;
  int failed = uri && setenv("DIBS_STORE", uri, 1) ? ENOMEM : 0;
  if (!failed) failed = posix_spawn(&made, "/proc/self/exe", NULL, NULL, argv, environ);
  if (failed) {
    snprintf(why, size, "a helper of the lab could not be started: %s", strerror(failed));
    return false;
  }
  *pid = made;
  return true;
}

/* All that comes, as far as there is room; the rest is read and dropped. */
static void drain(int fd, char *out, size_t size) {
  char spare[4096] = "";
  size_t len = 0;
  for (;;) {
    bool room = len + 1 < size;
    ssize_t got = read(fd, room ? out + len : spare, room ? size - 1 - len : sizeof spare);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    if (room) len += (size_t)got;
  }
  out[len] = '\0';
}

bool dibs__lab_capture(char *const argv[], char *out, size_t size, char *why, size_t why_size) {
  int ends[2], status = 0;
  pid_t pid = 0;
  posix_spawn_file_actions_t actions;
  out[0] = '\0';
  if (pipe2(ends, O_CLOEXEC)) {
    snprintf(why, why_size, "%s", strerror(errno));
    return false;
  }
  int failed = posix_spawn_file_actions_init(&actions);
  if (!failed) {
    failed = posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    if (!failed) failed = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
  }
  close(ends[1]);
  if (!failed) drain(ends[0], out, size);
  close(ends[0]);
  if (failed) {
    snprintf(why, why_size, "%s could not be started: %s", argv[0], strerror(failed));
    return false;
  }
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  snprintf(why, why_size, "%s ended with %s %d", argv[0], WIFSIGNALED(status) ? "signal" : "status",
           WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
  return false;
}

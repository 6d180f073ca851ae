/* SPDX-License-Identifier: MIT */
/*
 * Other processes: helpers of the lab, which may share memory with it, and programs that run to their end.
 */
#include "lab/lab.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ARGS_MAX = 12 };

bool dibs__lab_spawn(const char *uri, char *const args[], int *pid, char *why, size_t size) {
  char program[] = "dibs", verb[] = "lab", helper[] = "helper";
  char *argv[ARGS_MAX + 4] = {program, verb, helper};
  for (size_t i = 0; i < ARGS_MAX && args[i]; i++) argv[i + 3] = args[i];
  *pid = 0;
  /* In the environment, because every user can see arguments, and the URI may contain a password. */
  pid_t made = 0;
  int failed = uri && setenv("DIBS_STORE", uri, 1) ? ENOMEM : 0;
  if (!failed) failed = posix_spawn(&made, "/proc/self/exe", NULL, NULL, argv, environ);
  if (failed) {
    snprintf(why, size, "cannot start a helper of the lab: %s", strerror(failed));
    return false;
  }
  *pid = made;
  return true;
}

/* Reads all output; what does not fit is dropped. */
static void drain(int fd, char *out, size_t size) {
  char spare[4096] = "";
  size_t len = 0;
  for (;;) {
    bool capacity = len + 1 < size;
    ssize_t got = read(fd, capacity ? out + len : spare, capacity ? size - 1 - len : sizeof spare);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    if (capacity) len += (size_t)got;
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
    snprintf(why, why_size, "cannot start %s: %s", argv[0], strerror(failed));
    return false;
  }
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  snprintf(why, why_size, "%s ended with %s %d", argv[0], WIFSIGNALED(status) ? "signal" : "status",
           WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
  return false;
}

/* ---- Memory that a helper shares with the lab ---- */

void *dibs__lab_shared_make(struct lab *lab, size_t size, int *fd) {
  *fd = memfd_create("dibs-lab", 0); /* the helper inherits it */
  void *at = MAP_FAILED;
  if (*fd >= 0 && ftruncate(*fd, (off_t)size) == 0) at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
  if (at != MAP_FAILED) return at;
  (void)dibs__lab_fail(lab, "out of memory: %s", strerror(errno));
  return NULL;
}

void dibs__lab_shared_drop(void *shared, size_t size, int fd) {
  if (shared) munmap(shared, size);
  if (fd >= 0) close(fd);
}

bool dibs__lab_spawn_sharing(struct lab *lab, const char *what, int fd, int *pid) {
  char verb[16], number[16];
  snprintf(verb, sizeof verb, "%s", what);
  snprintf(number, sizeof number, "%d", fd);
  return dibs__lab_spawn(lab->uri, (char *[]){verb, number, NULL}, pid, lab->why, sizeof lab->why);
}

void *dibs__lab_shared_of(int argc, char **argv, size_t size) {
  if (argc < 1) return NULL;
  int fd = (int)strtol(argv[0], NULL, 10);
  void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return NULL;
  close(fd);
  struct sigaction ignore = {.sa_handler = SIG_IGN};
  sigaction(SIGINT, &ignore, NULL); /* the lab ends it */
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  return at;
}

/* SPDX-License-Identifier: MIT */
/* Starting processes, and an alarm to poll.  See process.h. */
#include "cli/process.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <sys/timerfd.h>
#include <unistd.h>

pid_t dibs__cli_fork(void) {
  return fork();
}

/* Between fork and exec: only what is allowed after a fork of a process with threads. */
static _Noreturn void child(const struct cli_spawn *spawn, int report) {
  setpgid(0, 0);
  if (spawn->tty >= 0) tcsetpgrp(spawn->tty, getpid());
  if (spawn->out >= 0) dup2(spawn->out, STDOUT_FILENO);
  if (spawn->err >= 0) dup2(spawn->err, STDERR_FILENO);
  sigprocmask(SIG_SETMASK, spawn->mask, NULL);
  execvp(spawn->argv[0], spawn->argv);
  int error = errno;
  ssize_t sent;
  do sent = write(report, &error, sizeof error);
  while (sent < 0 && errno == EINTR);
  _exit(127);
}

/* The way of few words: as the shell's own, and the only one that runs a script without "#!". */
static int spawn_by_fork(const struct cli_spawn *spawn, pid_t *pid) {
  int report[2], error = 0;
  if (pipe2(report, O_CLOEXEC) != 0) return errno;
  pid_t started = fork();
  if (started < 0) error = errno;
  if (started == 0) child(spawn, report[1]);
  close(report[1]);
  if (started > 0) {
    /* Both sides set the group, so that it is there whoever runs first. */
    setpgid(started, started);
    ssize_t got;
    int said;
    do got = read(report[0], &said, sizeof said);
    while (got < 0 && errno == EINTR);
    if (got == (ssize_t)sizeof said) error = said;
    *pid = started;
  }
  close(report[0]);
  return error;
}

/* A tenth of a millisecond quicker: nothing of this process is copied. */
static int spawn_quickly(const struct cli_spawn *spawn, pid_t *pid) {
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_t actions;
  int error = posix_spawnattr_init(&attributes);
  if (error != 0) return error;
  error = posix_spawn_file_actions_init(&actions);
  if (error == 0) {
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setsigmask(&attributes, spawn->mask);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
    if (spawn->tty >= 0) error = posix_spawn_file_actions_addtcsetpgrp_np(&actions, spawn->tty);
    if (error == 0 && spawn->out >= 0) error = posix_spawn_file_actions_adddup2(&actions, spawn->out, STDOUT_FILENO);
    if (error == 0 && spawn->err >= 0) error = posix_spawn_file_actions_adddup2(&actions, spawn->err, STDERR_FILENO);
    if (error == 0) error = posix_spawnp(pid, spawn->argv[0], &actions, &attributes, spawn->argv, environ);
    posix_spawn_file_actions_destroy(&actions);
  }
  posix_spawnattr_destroy(&attributes);
  return error;
}

int dibs__cli_spawn(const struct cli_spawn *spawn, pid_t *pid) {
  *pid = -1;
  int error = spawn_quickly(spawn, pid);
  /* A terminal that is gone by now is no reason not to run. */
  if (error != ENOEXEC && error != ENOTTY && error != EIO) return error;
  return spawn_by_fork(spawn, pid);
}

int dibs__cli_alarm_open(void) {
  return timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
}

void dibs__cli_alarm_set(int fd, dibs__tick at) {
  struct itimerspec when = {0};
  if (at.ns != DIBS__TICK_NEVER.ns) {
    int64_t ns = at.ns - dibs__tick_now().ns;
    if (ns < 1) ns = 1; /* zero would turn it off */
    when.it_value.tv_sec = (time_t)(ns / 1000000000);
    when.it_value.tv_nsec = (long)(ns % 1000000000);
  }
  timerfd_settime(fd, 0, &when, NULL);
}

void dibs__cli_alarm_clear(int fd) {
  uint64_t rings;
  ssize_t got;
  do got = read(fd, &rings, sizeof rings);
  while (got < 0 && errno == EINTR);
}

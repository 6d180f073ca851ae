/* SPDX-License-Identifier: MIT */
/*
 * The terminal belongs to one process group at a time.  `dibs run` hands it to the group of its command and takes it
 * back.  Signals: SIGTTOU is blocked in dibs (signals.c), or taking it back from the background would stop dibs.
 */
#include "cli/process.h"

#include <fcntl.h>
#include <unistd.h>

int dibs__cli_tty_open(void) {
  return open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY);
}

bool dibs__cli_tty_is_ours(int fd) {
  return fd >= 0 && tcgetpgrp(fd) == getpgrp();
}

void dibs__cli_tty_give(int fd, pid_t group) {
  if (fd >= 0) tcsetpgrp(fd, group);
}

void dibs__cli_tty_take(int fd, pid_t group) {
  if (fd >= 0 && tcgetpgrp(fd) == group) tcsetpgrp(fd, getpgrp());
}

/* The whole group, because the terminal would have stopped it whole: the shell that waits for a script waits for all
 * of its processes.  A group that nobody could continue is not stopped by the kernel; then no SIGCONT is pending. */
bool dibs__cli_stop_self(void) {
  sigset_t stop, pending;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTSTP);
  sigprocmask(SIG_UNBLOCK, &stop, NULL);
  kill(0, SIGTSTP);
  sigprocmask(SIG_BLOCK, &stop, NULL);
  return sigpending(&pending) == 0 && sigismember(&pending, SIGCONT) == 1;
}

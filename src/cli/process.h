/* SPDX-License-Identifier: MIT */
#ifndef DIBS_CLI_PROCESS_H
#define DIBS_CLI_PROCESS_H
/*
 * Processes, their trees, signals as descriptors, the terminal: what `dibs run` needs from Linux and nothing else of
 * dibs does.
 */
#include "base/port.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* ---- Starting (process.c) ---- */

/* fork() of a process that has one thread.  -1 and errno. */
pid_t dibs__cli_fork(void);

struct cli_spawn {
  char *const *argv;
  const sigset_t *mask; /* of the child */
  int tty;              /* made the child's before it runs; -1: not */
  int out, err;         /* its standard output and error; -1: ours */
};
/* Starts argv in a process group of its own, found by PATH as execvp does.  0 and *pid, or what exec's errno was. */
int dibs__cli_spawn(const struct cli_spawn *spawn, pid_t *pid);

/* A descriptor that is readable from an instant of the boot-time clock on, also when the machine slept meanwhile.
 * poll's own timeout stands still then.  -1 and errno. */
int dibs__cli_alarm_open(void);
void dibs__cli_alarm_set(int fd, dibs__tick at); /* DIBS__TICK_NEVER: off */
void dibs__cli_alarm_clear(int fd);

/* ---- Trees (tree.c) ---- */

/* What a walk over a tree found. */
struct cli_tree {
  size_t alive;   /* processes below the root that have not ended */
  size_t refused; /* of those, who could not be signalled */
};
/* Sends `signo` to every process below `root` but those of process group `except` (0: none).  Processes that are
 * started during the walk may be missed: walk again. */
struct cli_tree dibs__cli_tree_signal(pid_t root, int signo, pid_t except);

/* ---- The terminal (terminal.c) ---- */

int dibs__cli_tty_open(void);       /* the controlling terminal; -1: none */
bool dibs__cli_tty_is_ours(int fd); /* our process group is in the foreground */
void dibs__cli_tty_give(int fd, pid_t group);
/* Takes it back if `group` has it. */
void dibs__cli_tty_take(int fd, pid_t group);
/* Stops our process group as the terminal would.  false: it could not be stopped (nobody could continue it). */
bool dibs__cli_stop_self(void);

#endif

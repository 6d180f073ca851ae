/* SPDX-License-Identifier: MIT */
#ifndef DIBS_CLI_MINDER_H
#define DIBS_CLI_MINDER_H
/*
 * The minder: a small process between `dibs run` and its command.
 *
 *   shell -- dibs -- minder -- command -- whatever the command starts
 *
 * It starts the command, and ends it and everything below it before the lease can be somebody else's: when dibs says
 * so, when the deadline that dibs last told passes (dibs is stopped, or could not renew), and when dibs is gone.  It is
 * forked before the store is opened, so it has one thread and nothing of the store; it has a process group of its
 * own, so that what is sent to dibs' group does not reach it; it is a subreaper, so that no descendant leaves its tree.
 * dibs is a subreaper as well, and ends the tree itself if the minder is killed.  When all of them are stopped at once,
 * nobody can act until they go on; then only the fence keeps a late write out.
 *
 * They talk over a socket pair that keeps messages whole.  Only the minder signals the command: it alone knows whether
 * the command's pid is still the command's.
 */
#include "base/port.h"
#include "cli/cli.h"

#include <signal.h>
#include <sys/types.h>

enum minder_word {
  /* dibs to minder */
  MINDER_START = 1, /* number: make the terminal the command's; ns: the deadline; text: environment, K=V\0... */
  MINDER_DEADLINE,  /* ns */
  MINDER_SIGNAL,    /* number: for the command's group */
  MINDER_END,       /* TERM now, KILL after the grace, or at the deadline if that is earlier */
  /* minder to dibs */
  MINDER_STARTED,     /* number: the command's pid */
  MINDER_NOT_STARTED, /* number: errno */
  MINDER_STOPPED,     /* number: the signal that stopped the command */
  MINDER_ENDING,      /* it began to end the command because the deadline was near */
  MINDER_ENDED        /* number: wait status; left: processes that could not be ended */
};

struct minder_head {
  uint32_t word;
  int32_t number;
  int64_t ns; /* of a dibs__tick */
  uint64_t left;
};

enum { MINDER_TEXT_MAX = 16384 };
struct minder_message {
  struct minder_head head;
  char text[MINDER_TEXT_MAX];
};

struct minder_plan {
  const struct cli_globals *globals;
  const char *name; /* for messages */
  char *const *argv;
  sigset_t mask; /* the command's */
  int64_t grace_ms;
  int tty;      /* -1: none */
  int out, err; /* the command's standard output and error; -1: as dibs' */
};

struct minder {
  pid_t pid;
  int fd;
};

/* Forks the minder; the process must have one thread.  CLI_DONE, or CLI_FAILED, said. */
int dibs__cli_minder_start(const struct minder_plan *plan, struct minder *minder);

/* false: it is gone. */
bool dibs__cli_minder_tell(int fd, const struct minder_head *head, const char *text, size_t length);
/* The next message, without waiting: 1, 0 for none, -1 when the other side is gone. */
int dibs__cli_minder_hear(int fd, struct minder_head *head, char *text, size_t *length);

/* ---- Ending a tree (ending.c) ---- */

/* Ends everything below this process: TERM when it begins, KILL at `kill_at`, and again until nothing is left, for a
 * bounded time.  Steps are taken by whoever polls. */
struct ending {
  bool began;
  pid_t group; /* the command's group while its leader is not reaped, else 0 */
  dibs__tick kill_at, give_up_at, look_at;
  struct cli_tree_left {
    size_t alive, refused;
  } left;
};
void dibs__cli_ending_begin(struct ending *ending, pid_t group, dibs__tick kill_at);
/* Does what is due.  true when nothing is left, or nothing more can be done; else look_at is when to call again. */
bool dibs__cli_ending_step(struct ending *ending, bool none_left);

#endif

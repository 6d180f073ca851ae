/* SPDX-License-Identifier: MIT */
#ifndef DIBS_CLI_RUN_H
#define DIBS_CLI_RUN_H
/*
 * A command under a lease: what run.c and once.c (before and after) and run_loop.c (while it runs) share.
 *
 *   begin -> open the store, acquire run->lease -> command -> release -> lost? not started? else run->status -> end
 */
#include "cli/acquire.h"
#include "cli/minder.h"

struct tee;

struct run {
  const struct cli_globals *globals;
  const char *name;
  char *const *argv;
  dibs_lease_options options;
  int64_t grace_ms;
  struct cli_signals signals;
  struct minder minder;
  dibs_store *store;
  dibs_lease *lease;
  int alarm, tty;  /* tty: -1 when there is none */
  int out, err;    /* the command's; -1: ours.  Set before begin */
  struct tee *tee; /* reads the other ends; NULL: nobody does */
  dibs__tick began;

  /* While it runs. */
  pid_t command; /* its pid, which is its group as well; 0 before it is started */
  bool had_tty;  /* the command was given the terminal */
  bool lost;     /* the library said so, or no time is left */
  bool told;     /* the minder was told to end the command */
  bool late;     /* the minder ended it by itself, at the deadline */
  bool orphaned; /* the minder was killed */
  int ended_by;  /* a signal that was passed on and asks to end; 0: none */
  bool over;
  int status;      /* wait status, once over */
  int start_error; /* errno of exec, if it was not started */
  uint64_t left;   /* processes that could not be ended */
};

/* Options, grace, signals, the terminal, and the minder's process; one thread only, no store yet.  An exit code, said.
 * `end` follows in either case. */
int dibs__cli_run_begin(struct run *run, const struct cli_values *values);
void dibs__cli_run_end(struct run *run);
/* Runs it to its end, under the lease that is held.  CLI_DONE, or an exit code, said, and nothing was run. */
int dibs__cli_run_command(struct run *run);
/* Whether something else came of it than a status: an exit code, said.  CLI_DONE: run->status tells.  The lease was
 * released, which answered `released`. */
int dibs__cli_run_trouble(struct run *run, dibs_status released);
/* As a shell tells it. */
int dibs__cli_run_code(int status);

/* Starts the command through the minder, and returns when it is over: run->over, or start_error. */
void dibs__cli_run_loop(struct run *run, const char *environment, size_t length);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_CLI_RUN_H
#define DIBS_CLI_RUN_H
/* What run.c (before and after) and run_loop.c (while the command runs) share. */
#include "cli/acquire.h"
#include "cli/minder.h"

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
  int alarm, tty; /* tty: -1 when there is none */
  dibs__tick began;

  /* While it runs. */
  pid_t command; /* its pid, which is its group as well; 0 before it is started */
  bool had_tty;  /* the command was given the terminal */
  bool lost;     /* the library said so, or no time is left */
  bool told;     /* the minder was told to end the command */
  bool late;     /* the minder ended it by itself, at the deadline */
  bool orphaned; /* the minder was killed */
  bool over;
  int status;      /* wait status, once over */
  int start_error; /* errno of exec, if it was not started */
  uint64_t left;   /* processes that could not be ended */
};

/* Starts the command through the minder, and returns when it is over: run->over, or start_error. */
void dibs__cli_run_loop(struct run *run, const char *environment, size_t length);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_CLI_JOB_H
#define DIBS_CLI_JOB_H
/*
 * A command for a task: started by a starter and guarded by a minder (run.h) under the claim, as `dibs run` does it
 * under a lease.  job.c runs one; worker.c has the crew.
 */
#include "cli/run.h"

#include <stdatomic.h>

/* The exit status of the command is its verdict.  75 is EX_TEMPFAIL.  The others belong neither to shells, nor to dibs,
 * nor to the statuses of sendmail, nor to common programs, nor to errno, with which Perl's die exits. */
enum { JOB_DONE = 0, JOB_WAIT = 75, JOB_AGAIN = 85, JOB_NEXT = 86, JOB_DEAD = 87 };

struct crew {
  /* Immutable after the start. */
  const struct cli_globals *globals;
  const char *kind;
  char *const *argv;
  char *store_uri;
  dibs_store *store;
  struct history_writer *history; /* NULL: no rows */
  int64_t timeout_ms, max_ms;     /* max_ms: CLI_UNSET: none */
  uint64_t max_tasks;             /* 0: none */
  uint32_t tries;                 /* how often a task may fail; 0: as it says */
  bool plain;                     /* every exit status but 0 is a failed try */
  bool tells;                     /* a line for each task */
  int end_fd;                     /* readable: commands are to be ended now */
  int wake_fd;                    /* raised when the main thread has to look */
  char folder[64];                /* of the files that DIBS_NEXT_PHASE names */
  struct crew_place {
    struct starter starter;
    bool taken; /* guarded by the lock */
  } * places;
  size_t count;
  dibs__mutex lock;
  _Atomic uint64_t begun;
  _Atomic bool broken; /* a starter is gone */
};

struct work_plan {
  const char *kind, *phase;          /* phase: NULL: all */
  int64_t timeout_ms, max_ms, tries; /* CLI_UNSET: the default, none, as the task says */
  bool plain;
  bool kept; /* the history gets a row of each run */
};
/* `dibs worker`; of the values it reads those that every call has, jobs, drain, once, max_tasks and verbose.  An exit
 * code. */
int dibs__cli_work(const struct cli_values *values, const struct work_plan *plan, char *const *argv);

/* A dibs_work_fn; `user` is the crew. */
dibs_verdict dibs__cli_job(dibs_task *task, dibs_work_reply *reply, void *user);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_CLI_JOB_H
#define DIBS_CLI_JOB_H
/*
 * A command for a task: started by a launcher and guarded by a minder (run.h) under the claim, as `dibs run` does it
 * under a lease.  job.c runs one; worker.c has the pool; slots.c what `dibs cron` shares with them.
 */
#include "cli/run.h"

#include <stdatomic.h>

/* The exit status of the command is its verdict.  75 is EX_TEMPFAIL.  The others belong neither to shells, nor to dibs,
 * nor to the statuses of sendmail, nor to common programs, nor to errno, with which Perl's die exits. */
enum { JOB_DONE = 0, JOB_WAIT = 75, JOB_AGAIN = 85, JOB_NEXT = 86, JOB_DEAD = 87 };

/* Launchers, one for each command that may run at one time, so that what a killed minder leaves is found below the
 * launcher of its command.  Any thread. */
struct job_slots {
  struct job_slot {
    struct launcher launcher;
    bool busy; /* guarded by the lock */
  } * list;
  size_t count;
  dibs__mutex lock;
  _Atomic int start_error; /* errno of the latest command if it could not be started, which was noted; 0: it was */
};
/* While the process has one thread.  CLI_DONE, or an exit code after a message; close it in any case,
 * also if it was zeroed and not opened. */
int dibs__cli_slots_open(struct job_slots *slots, const struct cli_globals *globals, const sigset_t *mask,
                         char *const *argv, size_t count);
void dibs__cli_slots_close(struct job_slots *slots);
size_t dibs__cli_slot_take(struct job_slots *slots);
void dibs__cli_slot_free(struct job_slots *slots, size_t slot);
/* A command of the slot that no lease guards, before it runs: the caller adds `options`, max_ms and left_ms.  The alarm
 * is open, or alarm is -1 and errno says why. */
struct run dibs__cli_slot_run(const struct job_slots *slots, size_t slot, const struct cli_globals *globals,
                              struct tail_pipe *tail, int end_fd);
/* After a command for `what` could not be started, which is given back: reports the first of several failures for one
 * reason, and waits a second, or until end_fd is readable, because a claim takes no time.  end_fd: -1: no pause. */
void dibs__cli_slots_pause(struct job_slots *slots, const struct cli_globals *globals, const char *what, int error,
                           int end_fd);
/* A file in memory: it is read like a file, and nobody has to feed a pipe.  -1 and errno. */
int dibs__cli_input_file(const char *bytes, size_t length);

struct job_pool {
  /* Immutable after the start. */
  const struct cli_globals *globals;
  const char *kind;
  const dibs_table *table; /* whose rows are the tasks; NULL: dibs' own */
  char *const *argv;
  char *store_uri;
  dibs_store *store;
  struct history_writer *history; /* NULL: no rows */
  const char *topic;              /* NULL: without lanes */
  int64_t lane_ttl_ms;
  int64_t timeout_ms, max_ms; /* max_ms: CLI_UNSET: none */
  uint64_t max_tasks;         /* 0: none */
  uint32_t tries;             /* how often a task may fail; 0: as it says */
  bool zero_or_failed;        /* every exit status but 0 is a failed try */
  bool verbose;               /* a line for each task */
  int end_fd;                 /* readable: commands are to be ended now */
  int wake_fd;                /* raised when the main thread has to look */
  char folder[64];            /* of the files that DIBS_NEXT_PHASE names */
  struct job_slots slots;
  _Atomic uint64_t begun;
  _Atomic bool broken; /* a launcher is gone */
};

struct work_plan {
  const char *kind, *phase;          /* phase: NULL: all */
  const dibs_table *table;           /* NULL: dibs' own; then kind names it in messages */
  int64_t timeout_ms, max_ms, tries; /* CLI_UNSET: the default, none, as the task says */
  bool zero_or_failed;
  bool keeps_history; /* the history gets a row of each run */
};
/* `dibs worker`; of the values it reads those that every call has, jobs, drain, once,
 * max_tasks, verbose, topic, lanes and ttl.  An exit
 * code. */
int dibs__cli_work(const struct cli_values *values, const struct work_plan *plan, char *const *argv);

/* A dibs_work_fn; `user` is the pool. */
dibs_verdict dibs__cli_job(dibs_task *task, dibs_work_reply *reply, void *user);

#endif

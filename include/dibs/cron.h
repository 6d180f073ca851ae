/* SPDX-License-Identifier: MIT */
#ifndef DIBS_CRON_H
#define DIBS_CRON_H
/*
 * Cron: jobs that fire at the instants of a schedule, once in a fleet of processes that share a store.
 *
 * Read this first:
 *
 * - A fleet has a name.  Its processes are those that call dibs_cron_start with this name on one store, and those that
 *   run `dibs cron FILE` (there the name is that of the file, or --name).  There is no leader: each process decides
 *   which firings are due, and the store keeps each firing, which is a job and an instant, once.
 * - A firing is a task (dibs/task.h) of kind "cron:NAME".  One process claims it, and extends its claim while the
 *   function runs.  If the process crashes, another one runs the firing again after claim_ms, with a larger fence.  So
 *   a firing may run twice, after a crash in the middle: make the work repeatable, or guard it by the fence.
 * - The time is the store's.  Clocks of machines that differ do not matter.
 * - All processes of a fleet should have the same jobs.  A firing is run by any process that knows a job of its name,
 *   by the command and function of that process; so C programs and `dibs cron` share firings only if both can run the
 *   job.  A firing whose job this process does not know waits for another process; after an hour it is a dead letter.
 *   If two processes have one job with different schedules, the firings of both schedules happen, and those at the same
 *   instant once.
 * - A job that is new, or has another schedule or zone than before, does not fire for the past.
 *
 * The rules of dibs.h also apply here: INVALID of every call, and "a failure of the store".
 */
#include <dibs/admin.h>
#include <dibs/task.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Jobs --------------------------------------------------------------------------------------------------- */

enum {
  DIBS_CRON_NAME_MAX = 128,      /* bytes of the name of a fleet, and of a job */
  DIBS_CRON_TABLE_MAX = 1048576, /* bytes of a crontab */
  DIBS_CRON_JOBS_MAX = 10000     /* jobs in one table */
};

/* What happens to firings that no process added in time: more than 10 s after their instant. */
typedef enum dibs_catch_up {
  DIBS_CATCH_UP_LAST = 0, /* the latest missed firing runs now, if it is not older than the window */
  DIBS_CATCH_UP_NONE = 1, /* they are missed */
  DIBS_CATCH_UP_ALL = 2   /* every missed firing within the window runs now */
} dibs_catch_up;

/* What happens to a firing while an earlier one of its job is not done. */
typedef enum dibs_overlap {
  DIBS_OVERLAP_SKIP = 0,  /* it is dropped, and counted as skipped */
  DIBS_OVERLAP_QUEUE = 1, /* it waits */
  DIBS_OVERLAP_ALLOW = 2  /* it runs beside the other */
} dibs_overlap;

/* A job, without a crontab's text.  Set its size. */
typedef struct dibs_cron_job {
  size_t size;
  const char *name;
  const char *schedule; /* "30 2 * * *", "@hourly", with seconds in front if there are six fields: man dibs-cron */
  const char *zone;     /* "Europe/Berlin"; NULL: that of the table */
  const char *command;  /* for your function, and for the history; NULL: none */
  dibs_catch_up catch_up;
  dibs_overlap overlap;
  int64_t window_ms;  /* of the catch-up; 0: an hour */
  int64_t timeout_ms; /* how long a firing may run; 0: no limit.  Your function must return in time; the library
                         cannot stop it */
  int64_t jitter_ms;  /* a firing begins up to so much later, by a time that is the same in all processes; 0: none */
} dibs_cron_job;
#define DIBS_CRON_JOB_INIT DIBS__INIT(dibs_cron_job)

/* A job that can't be used: `line` of the text, or 0 for one of `jobs`.  `message` is for people, and valid during the
 * call. */
typedef void (*dibs_cron_error_fn)(uint32_t line, const char *message, void *user);

/* The jobs of a fleet: those of a crontab's text, then those of `jobs`.  A bad line or job is reported and left out;
 * the others are used.  All that it points to is copied. */
typedef struct dibs_cron_table {
  size_t size;
  const char *text; /* a crontab as in man dibs-cron; NULL: none */
  size_t length;
  const dibs_cron_job *jobs;
  size_t job_count;
  const char *zone;            /* of jobs without one; NULL: "UTC" */
  dibs_cron_error_fn on_error; /* NULL: bad lines are left out silently */
  void *user;                  /* passed to on_error */
} dibs_cron_table;
#define DIBS_CRON_TABLE_INIT DIBS__INIT(dibs_cron_table)

/* The first instant of a schedule after `after_ms`, both in ms since 1970.  zone NULL: "UTC".  Needs no store.
 * OK; NOT_FOUND (none in the next hundred years); INVALID (the error says what is wrong); NO_MEMORY. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_cron_next(const char *schedule, const char *zone, int64_t after_ms,
                                                     int64_t *next_ms, dibs_error *error);

/* ---- A process of the fleet --------------------------------------------------------------------------------- */

typedef struct dibs_cron dibs_cron;

/* What your function gets.  It is valid during the call. */
typedef struct dibs_firing {
  size_t size;
  const char *job;
  const char *command;            /* "": none */
  const char *input;              /* what a crontab has after the first %; NULL: nothing */
  const char *const *environment; /* the variables of the crontab, "NAME=VALUE", NULL at the end */
  int64_t at_ms;                  /* the instant of the schedule, or of dibs_cron_fire */
  int64_t timeout_ms;             /* of the job; 0: none */
  uint32_t by_hand;               /* 1: by dibs_cron_fire */
  uint32_t reserved;
  dibs_task *task; /* the claim, with fence and attempt.  You may end it together with your own writes, by
                      dibs_task_end_many inside your transaction; then that counts */
} dibs_firing;

/* What your function decides besides its verdict.  At first all is empty, and delay_ms is -1. */
typedef struct dibs_firing_reply {
  size_t size;
  dibs_run_end how;                  /* for the history; DIBS_RUN_DONE: derived from the verdict */
  int32_t code;                      /* for the history: an exit status, or a number of yours */
  int64_t delay_ms;                  /* WAIT: the pause; negative: it grows, as that of dibs_task_relock */
  size_t length;                     /* of text, which then may have any bytes; 0: up to its NUL */
  char text[DIBS_TASK_TEXT_MAX + 1]; /* for the history, and DEAD: for people */
} dibs_firing_reply;

/* Does the work of a firing, in a thread of the library, and returns its verdict:
 *   DONE     it is done
 *   FAIL     it is done, and the history has it as failed: a schedule is no retry
 *   WAIT     it runs again later (reply->delay_ms); while it waits, it counts as running
 *   NEXT     it runs again at once
 *   DEAD     it becomes a dead letter (`dibs dead ls`), and with DIBS_OVERLAP_QUEUE its job is parked
 *   RELEASE  it was not begun: another process may run it
 * While dibs_firing_left_ms is 0, stop: the timeout of the job is over, or the claim is lost. */
typedef dibs_verdict (*dibs_firing_fn)(const dibs_firing *firing, dibs_firing_reply *reply, void *user);

/* How long the firing may still run: until its timeout, and as long as its claim certainly lasts, which is extended
 * meanwhile.  Any thread, during the call of the function.  Does not block. */
DIBS_EXPORT int64_t dibs_firing_left_ms(const dibs_firing *firing);

enum { DIBS_CRON_NO_HISTORY = 1 /* leave no rows of these runs in the store */ };

typedef struct dibs_cron_options {
  size_t size;
  const dibs_cron_table *table;
  uint32_t threads;  /* how many firings run in this process at one time; 0: 1; up to DIBS_WORKER_THREADS */
  uint32_t flags;    /* DIBS_CRON_NO_HISTORY */
  int64_t claim_ms;  /* how long a claim lasts if it is not extended: 100 ms to a day; 0: 30 s */
  const char *owner; /* a label for people; NULL: the store's */
  dibs_firing_fn work;
  void *user; /* passed to work */
} dibs_cron_options;
#define DIBS_CRON_OPTIONS_INIT DIBS__INIT(dibs_cron_options)

/* Makes this process one of the fleet `name`: it adds the firings that are due, and runs those that it claims.  *cron
 * is yours, for dibs_cron_free before dibs_close.  Does not block for I/O; the functions `on_error` are called before
 * it returns. OK, also without any good job; INVALID; UNSUPPORTED (the store keeps no tasks; also inside a transaction
 * of yours); NO_MEMORY (also: no threads). */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_cron_start(dibs_store *store, const char *name,
                                                      const dibs_cron_options *options, dibs_cron **cron,
                                                      dibs_error *error);
/* From now on these are the jobs.  Firings that run continue; those of a removed job that were not begun are declined.
 * A job that has the name, schedule and zone that it had goes on where it was.  Does not block for I/O.
 * OK, also without any good job; INVALID and NO_MEMORY (the jobs are as before). */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_cron_replace(dibs_cron *cron, const dibs_cron_table *table,
                                                        dibs_error *error);
/* Adds and claims no more firings, and waits until those that run have ended, for wait_ms at most (0: does not wait for
 * them; DIBS_FOREVER).  Do not call it from your function.
 * OK; TIMEOUT (firings still run and their claims are still extended, or a request to the store is still under way;
 * you may call it again); INVALID. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_cron_stop(dibs_cron *cron, int64_t wait_ms, dibs_error *error);
/* Stops it, waits until every call of its function has returned, and frees it, as dibs_worker_free.  NULL is fine. */
DIBS_EXPORT void dibs_cron_free(dibs_cron *cron);

/* What this process has counted since dibs_cron_start. */
typedef struct dibs_cron_counts {
  size_t size;
  uint64_t jobs;           /* now */
  uint64_t decided;        /* firings that this process added, found added by another one, or skipped */
  uint64_t begun;          /* firings given to the function */
  uint64_t done, failed;   /* ended */
  uint64_t repeated, dead; /* by WAIT or NEXT; dead letters */
  uint64_t declined;       /* of jobs that this process does not know, and RELEASE */
  uint64_t refused;        /* the claim was over before the firing ended */
  uint64_t history_lost;   /* runs that are not in the history, because the store did not take them in time */
  uint64_t running;        /* now */
} dibs_cron_counts;
#define DIBS_CRON_COUNTS_INIT DIBS__INIT(dibs_cron_counts)

/* Fills *counts; set its size first.  Does not block.  OK; INVALID. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_cron_count(dibs_cron *cron, dibs_cron_counts *counts, dibs_error *error);
/* The latest failure of a request to the store, for people; its status is OK if that request succeeds by now.  The
 * library repeats it.  Does not block. */
DIBS_EXPORT void dibs_cron_trouble(dibs_cron *cron, dibs_error *error);

/* ---- For people --------------------------------------------------------------------------------------------- */

/* Fires `job` of the table by hand, now: a process of the fleet runs it.  `nr` (may be NULL) is the number of its task.
 * Blocks for I/O.
 * OK; NOT_FOUND (the table has no such job); HELD (it is still running, and its firings do not overlap); INVALID; or a
 * failure of the store: UNSUPPORTED (it keeps no tasks), UNKNOWN (it may be fired). */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_cron_fire(dibs_store *store, const char *name, const dibs_cron_table *table,
                                                     const char *job, uint64_t *nr, dibs_error *error);

/* Strings are valid during the call of the function that gets it.  Instants are in ms since 1970, by the store's
 * clock. */
typedef struct dibs_cron_info {
  size_t size;
  const char *name, *schedule, *zone, *command;
  int64_t next_ms; /* -1: never */
  int64_t last_ms; /* when the latest run of a job with this name began, if it has ended; -1: none is in the history */
  dibs_run_end last_how; /* how it ended */
  int32_t last_code;
  uint64_t missed;        /* firings for which no process was there in time */
  int64_t last_missed_ms; /* the latest of them; -1: none */
  uint64_t skipped;       /* firings that were dropped because the job was running */
} dibs_cron_info;

/* Return 0 to continue, anything else to stop. */
typedef int (*dibs_cron_fn)(const dibs_cron_info *job, void *user);

/* Calls `fn` for each job of the table, in its order.  Blocks for I/O.
 * OK, also if `fn` stopped it; INVALID; or a failure of the store: UNSUPPORTED (it keeps no tasks). */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_cron_list(dibs_store *store, const char *name, const dibs_cron_table *table,
                                                     dibs_cron_fn fn, void *user, dibs_error *error);

#ifdef __cplusplus
}
#endif
#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TASK_CRON_H
#define DIBS_TASK_CRON_H
/*
 * Which firings are due: decisions of a node of `dibs cron`, without a store and without a clock.
 *
 * Every node decides for itself.  A decision takes the instants of a job after the last decided one, up to
 * now, and chooses those that fire, by the job's catch-up.  Two nodes that decide the same instant add the same firing,
 * which the store keeps once; so a decision may be repeated, and none may be forgotten: the last decided instant is
 * stored only when the firings are in the store.
 *
 * All instants are ms since 1970, UTC, by the store's clock.
 */
#include "task/crontab.h"

enum {
  DIBS__CRON_DUE = 64,           /* firings of one decision; the rest comes with the next one */
  DIBS__CRON_IN_TIME_MS = 10000, /* an instant that is not older fires whatever the job's catch-up is */
  DIBS__CRON_LOOKED_MAX = 100000 /* missed instants that one decision counts; it skips the others uncounted */
};

/* A line is kept for so long after its last decision: longer than a year, the pause of a yearly job. */
#define DIBS__CRON_FORGET_MS (INT64_C(400) * 86400000)

struct dibs__cron_due {
  int64_t at_ms;    /* the instant of the schedule */
  int64_t start_ms; /* from when it may run: at_ms and the jitter */
};

struct dibs__cron_decision {
  struct dibs__cron_due due[DIBS__CRON_DUE];
  size_t count;
  uint64_t missed;     /* instants that do not fire */
  int64_t last_missed; /* the latest of them; 0: none */
  int64_t decided_ms;  /* up to here it is decided now */
};

/* Decides (decided_ms, now_ms]. */
void dibs__cron_decide(const struct dibs__cron_job *job, int64_t decided_ms, int64_t now_ms,
                       struct dibs__cron_decision *to);
/* The first instant after `after_ms`; INT64_MAX: there is none. */
int64_t dibs__cron_next(const struct dibs__cron_job *job, int64_t after_ms);
/* The same for a job and an instant on every node. */
int64_t dibs__cron_start(const struct dibs__cron_job *job, int64_t at_ms);
/* The token of a firing: unique for a namespace, a job and an instant.  64 digits and a NUL. */
void dibs__cron_token(const char *space, const char *job, int64_t at_ms, char hex[65]);

/*
 * What the nodes know together, as the text of a record: a line for each job.  A job is its name, its schedule and its
 * zone: one of these changes, and it is a new job, which does not fire for the past.
 */
struct dibs__cron_line {
  uint64_t job;
  int64_t decided_ms;
  uint64_t missed, skipped; /* instants that did not fire: too late; while the job was running (overlap=skip) */
  int64_t last_missed;
};

struct dibs__cron_state {
  struct dibs__cron_line *lines; /* by job */
  size_t count, capacity;
};

uint64_t dibs__cron_job_digest(const struct dibs__cron_job *job);
/* false: the text is not of this kind; or there is no memory, and *no_memory is set. */
bool dibs__cron_state_read(struct dibs__cron_state *state, const char *text, size_t length, bool *no_memory);
/* malloc'd; NULL: no memory.  Jobs that were last decided more than DIBS__CRON_FORGET_MS ago are left out, and others
 * from the oldest on if the text would be longer than a record may be. */
char *dibs__cron_state_write(const struct dibs__cron_state *state, int64_t now_ms, size_t *length);
void dibs__cron_state_free(struct dibs__cron_state *state);
/* NULL: it is not known. */
struct dibs__cron_line *dibs__cron_state_find(const struct dibs__cron_state *state, uint64_t job);
/* The line of the job, added if it is new, with decided_ms then.  NULL: no memory.  It moves other lines. */
struct dibs__cron_line *dibs__cron_state_add(struct dibs__cron_state *state, uint64_t job, int64_t decided_ms);

#endif

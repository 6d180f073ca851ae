/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TASK_CRONTAB_H
#define DIBS_TASK_CRONTAB_H
/*
 * A crontab: jobs and when they fire.
 *
 *     # a comment; CRON_TZ holds for the lines below it
 *     CRON_TZ=Europe/Berlin
 *     PATH=/usr/local/bin:/usr/bin:/bin
 *     30 2 * * *      name=nightly catch-up=last:6h timeout=2h  ./report --all
 *     *\/10 * * * * *  name=pulse overlap=skip  ./pulse        (with seconds)
 *     @hourly         ./rotate
 *
 * A line is a variable (NAME=VALUE, for the environment of the jobs below), or a schedule (schedule.h), settings, and
 * a command for the shell.  In the command % begins a new line, and the text behind the first one is its standard
 * input, which ends with a new line; \% is a percent sign.  This is what cron does.  Most crontabs of users can be
 * used unchanged; /etc/crontab can't: its lines have a user before the command.
 *
 *     name=NAME            the job's identity; without it, its command, of at most 128 bytes
 *     zone=ZONE            the time zone, for this job
 *     catch-up=none        a firing that no process could carry out in time is dropped
 *     catch-up=last:6h     the last of them is made up for, if it is not older than 6 hours
 *     catch-up=all:6h      all of them
 *     overlap=skip         while the job runs, its firings are dropped; queue: they wait; allow: they run beside it
 *     timeout=2h           then the command is ended
 *     jitter=5m            the command begins up to 5 minutes later, by a time that is fixed for each firing
 *
 * The first word that is not a setting begins the command.  A word NAME=VALUE there is a setting if NAME has only small
 * letters and hyphens; if there is no such setting, or NAME is nearly one, the line is bad.  Others, like PATH=/bin and
 * http_proxy=x, begin the command and are for the shell; a command that begins with x=1 is written env x=1.  A sixth
 * word of digits, "*,-/" and names of weekdays belongs to the schedule: a command named sun is written ./sun.  A bad
 * line is reported, and all others are read; a bad CRON_TZ makes the jobs below it bad, too.
 */
#include "dibs/cron.h"
#include "task/schedule.h"
#include "task/zone.h"

enum {
  DIBS__CRONTAB_MAX = DIBS_CRON_TABLE_MAX, /* bytes */
  DIBS__CRONTAB_LINE = 8192,
  DIBS__CRONTAB_JOBS = DIBS_CRON_JOBS_MAX,
  DIBS__CRONTAB_FLAWS = 1000,
  DIBS__CRONTAB_NAME = DIBS_CRON_NAME_MAX,
  DIBS__CRONTAB_WINDOW_MS = 3600000 /* of catch-up, if the line has none */
};

struct dibs__cron_job {
  uint32_t line; /* 0: of a list of jobs */
  const char *name;
  const char *text; /* the schedule, as written */
  struct dibs__schedule schedule;
  const char *zone_name;
  const struct dibs__zone *zone;
  const char *command;
  const char *input;              /* NULL: none */
  const char *const *environment; /* "NAME=VALUE", then NULL */
  dibs_catch_up catch_up;
  dibs_overlap overlap;
  int64_t window_ms, timeout_ms, jitter_ms; /* 0: none */
};

struct dibs__cron_flaw {
  uint32_t line;
  char message[240];
};

/* Immutable, but for dibs__crontab_add. */
struct dibs__crontab {
  size_t job_count, flaw_count;
  struct dibs__cron_job *jobs; /* in the order of their lines */
  struct dibs__cron_flaw *flaws;
};

/* `zone` is that of jobs without one.  NULL: no memory.  There are at most DIBS__CRONTAB_FLAWS flaws; the last one says
 * that there are more. */
struct dibs__crontab *dibs__crontab_read(const char *text, size_t length, const char *zone);
/* Adds a job after those of the text, or a flaw; its zone is `zone` if it has none.  false: no memory, and it is only
 * fit to be freed. */
bool dibs__crontab_add(struct dibs__crontab *tab, const dibs_cron_job *job, const char *zone);
/* NULL: it has no such job. */
const struct dibs__cron_job *dibs__crontab_find(const struct dibs__crontab *tab, const char *name);
void dibs__crontab_free(struct dibs__crontab *tab); /* NULL is fine */

#endif

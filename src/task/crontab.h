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
 * The first word that is not a setting begins the command.  A sixth word of digits, "*,-/" and names of weekdays
 * belongs to the schedule: a command named sun is written ./sun.  A bad line is reported, and all others are read; a
 * bad CRON_TZ makes the jobs below it bad, too.
 */
#include "task/schedule.h"
#include "task/zone.h"

enum dibs__catch_up { DIBS__CATCH_UP_LAST, DIBS__CATCH_UP_NONE, DIBS__CATCH_UP_ALL };
enum dibs__overlap { DIBS__OVERLAP_SKIP, DIBS__OVERLAP_QUEUE, DIBS__OVERLAP_ALLOW };

enum {
  DIBS__CRONTAB_MAX = 1 << 20, /* bytes */
  DIBS__CRONTAB_LINE = 8192,
  DIBS__CRONTAB_JOBS = 10000,
  DIBS__CRONTAB_FLAWS = 1000,
  DIBS__CRONTAB_NAME = 128,
  DIBS__CRONTAB_WINDOW_MS = 3600000 /* of catch-up, if the line has none */
};

struct dibs__cron_job {
  unsigned line;
  const char *name;
  const char *text; /* the schedule, as written */
  struct dibs__schedule schedule;
  const char *zone_name;
  const struct dibs__zone *zone;
  const char *command;
  const char *input;              /* NULL: none */
  const char *const *environment; /* "NAME=VALUE", then NULL */
  enum dibs__catch_up catch_up;
  enum dibs__overlap overlap;
  int64_t window_ms, timeout_ms, jitter_ms; /* 0: none */
};

struct dibs__cron_flaw {
  unsigned line;
  char message[240];
};

/* Immutable. */
struct dibs__crontab {
  size_t job_count, flaw_count;
  struct dibs__cron_job *jobs; /* in the order of their lines */
  struct dibs__cron_flaw *flaws;
};

/* `zone` is that of jobs without one.  NULL: no memory.  There are at most DIBS__CRONTAB_FLAWS flaws; the last one says
 * that there are more. */
struct dibs__crontab *dibs__crontab_read(const char *text, size_t length, const char *zone);
void dibs__crontab_free(struct dibs__crontab *tab); /* NULL is fine */

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TASK_SCHEDULE_H
#define DIBS_TASK_SCHEDULE_H
/*
 * When a job fires: the time fields of a crontab line.
 *
 *     MINUTE HOUR DAY MONTH WEEKDAY              0-59 0-23 1-31 1-12 0-7 (0 and 7 are Sunday)
 *     SECOND MINUTE HOUR DAY MONTH WEEKDAY       with seconds, 0-59
 *     @yearly @annually @monthly @weekly @daily @midnight @hourly
 *
 * A field is *, a number, a range 1-5, a step of one (asterisk/10, 8-18/2), or a list of these; months and weekdays
 * have names (jan, mon-fri).  If neither DAY nor WEEKDAY begins with *, the job fires on days that match either of
 * them; otherwise both have to match.  This is what cron does.
 *
 * When clocks change, as Debian's cron does for changes of less than three hours:
 * - A job at a fixed time (neither its hour, its minute nor its second begins with *) fires once at the first instant
 *   afterwards if one or more of its times are skipped.  Of a time that comes twice, it takes the first.
 * - Any other job follows the clock: nothing at times that are skipped, twice at times that come twice.
 */
#include "task/zone.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dibs__schedule {
  uint64_t seconds, minutes; /* bit n: n matches */
  uint32_t hours, days;      /* days from 1 */
  uint16_t months;           /* from 1 */
  uint8_t weekdays;          /* 0 is Sunday */
  bool any_day, any_weekday; /* begins with * */
  bool fixed;
};

/* The longest text of a schedule. */
enum { DIBS__SCHEDULE_MAX = 512 };

/* false: `wrong` has a message that names the field. */
bool dibs__schedule_read(const char *text, struct dibs__schedule *to, char *wrong, size_t wrong_size);
/* The first instant after `after`, in seconds since 1970, UTC.  INT64_MAX: none in the next hundred years. */
int64_t dibs__schedule_next(const struct dibs__schedule *schedule, const struct dibs__zone *zone, int64_t after);

#endif

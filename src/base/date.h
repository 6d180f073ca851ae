/* SPDX-License-Identifier: MIT */
#ifndef DIBS_BASE_DATE_H
#define DIBS_BASE_DATE_H
/* Dates of the Gregorian calendar, also before it was introduced. */
#include <stdint.h>

enum { DIBS__DAY_S = 86400 };

/* Days since 1970-01-01 of a date, and back. */
int64_t dibs__days_of(int64_t year, int64_t month, int64_t day);
void dibs__date_of(int64_t days, int64_t *year, int64_t *month, int64_t *day);

/* 0 is Sunday. */
static inline int dibs__weekday_of(int64_t days) {
  int64_t rest = (days + 4) % 7;
  return (int)(rest < 0 ? rest + 7 : rest);
}

/* Rounds down, also below 0. */
static inline int64_t dibs__day_of(int64_t seconds) {
  return seconds / DIBS__DAY_S - (seconds % DIBS__DAY_S < 0);
}

#endif

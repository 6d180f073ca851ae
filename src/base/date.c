/* SPDX-License-Identifier: MIT */
#include "base/date.h"

/* A year begins in March here, so that the leap day is its last; an era has 400 years. */
enum { DAYS_OF_ERA = 146097, DAYS_TO_1970 = 719468 };

int64_t dibs__days_of(int64_t year, int64_t month, int64_t day) {
  year -= month <= 2;
  int64_t era = (year < 0 ? year - 399 : year) / 400, of_era = year - era * 400;
  int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  return era * DAYS_OF_ERA + of_era * 365 + of_era / 4 - of_era / 100 + of_year - DAYS_TO_1970;
}

void dibs__date_of(int64_t days, int64_t *year, int64_t *month, int64_t *day) {
  days += DAYS_TO_1970;
  int64_t era = (days < 0 ? days - (DAYS_OF_ERA - 1) : days) / DAYS_OF_ERA, of_era = days - era * DAYS_OF_ERA;
  int64_t years = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
  int64_t of_year = of_era - (365 * years + years / 4 - years / 100), m = (5 * of_year + 2) / 153;
  *day = of_year - (153 * m + 2) / 5 + 1;
  *month = m < 10 ? m + 3 : m - 9;
  *year = years + era * 400 + (*month <= 2);
}

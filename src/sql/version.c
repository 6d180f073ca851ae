/* SPDX-License-Identifier: MIT */
/*
 * Versions that an engine does not count by itself.  An instant is written in the form of the old one: the same
 * separator, the same zone.  So an engine's handling of zones does not matter, only that a later instant compares as
 * later.
 */
#include "base/sha256.h"
#include "sql/sql_impl.h"

#include <stdio.h>
#include <string.h>

#define US_PER_S INT64_C(1000000)
enum { DAY_S = 86400, ZONE_MAX = 7 };

void dibs__table_hash(const struct dibs__table *table, const dibs_value *values, char hex[65]) {
  struct dibs__sha256 hash;
  char length[24];
  dibs__sha256_begin(&hash);
  for (size_t i = 0; i < table->column_count; i++) {
    dibs__sha256_add(&hash, table->columns[i], strlen(table->columns[i]) + 1);
    if (!values[i].data) {
      dibs__sha256_add(&hash, "-", 1);
      continue;
    }
    int len = snprintf(length, sizeof length, "%zu:", values[i].length);
    dibs__sha256_add(&hash, length, (size_t)len);
    dibs__sha256_add(&hash, values[i].data, values[i].length);
  }
  dibs__sha256_end(&hash, hex);
}

/* Days since 1970-01-01 of a date of the Gregorian calendar, and back. */
static int64_t days_of(int64_t year, int64_t month, int64_t day) {
  year -= month <= 2;
  int64_t era = year / 400, of_era = year - era * 400;
  int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

static void date_of(int64_t days, int64_t *year, int64_t *month, int64_t *day) {
  days += 719468;
  int64_t era = days / 146097, of_era = days - era * 146097;
  int64_t years = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
  int64_t of_year = of_era - (365 * years + years / 4 - years / 100), m = (5 * of_year + 2) / 153;
  *day = of_year - (153 * m + 2) / 5 + 1;
  *month = m < 10 ? m + 3 : m - 9;
  *year = years + era * 400 + (*month <= 2);
}

struct instant {
  int64_t us; /* the local time, without its zone */
  char separator;
  char zone[ZONE_MAX + 1];
  int64_t ahead_s; /* of UTC */
};

/* Exactly `digits` of them. */
static bool read_digits(const char **at, int digits, int64_t *to) {
  *to = 0;
  for (int i = 0; i < digits; i++, (*at)++) {
    if (**at < '0' || **at > '9') return false;
    *to = *to * 10 + (**at - '0');
  }
  return true;
}

static bool read_sign(const char **at, char wanted) {
  if (**at != wanted) return false;
  (*at)++;
  return true;
}

/* "", "Z", "+01", "+0130", "+01:30" */
static bool read_zone(const char *at, struct instant *to) {
  size_t len = strlen(at);
  int64_t hours = 0, minutes = 0;
  if (len > ZONE_MAX - 1) return false;
  memcpy(to->zone, at, len + 1);
  to->ahead_s = 0;
  if (len == 0 || strcmp(at, "Z") == 0) return true;
  bool behind = *at == '-';
  if (*at != '+' && !behind) return false;
  at++;
  if (!read_digits(&at, 2, &hours)) return false;
  if (*at == ':') at++;
  if (*at && !read_digits(&at, 2, &minutes)) return false;
  if (hours > 15 || minutes > 59) return false;
  to->ahead_s = (hours * 3600 + minutes * 60) * (behind ? -1 : 1);
  return *at == '\0';
}

static bool read_instant(const char *at, struct instant *to) {
  int64_t year, month, day, hour, minute, second, fraction = 0, unit = US_PER_S;
  if (!read_digits(&at, 4, &year) || !read_sign(&at, '-') || !read_digits(&at, 2, &month) || !read_sign(&at, '-') ||
      !read_digits(&at, 2, &day))
    return false;
  to->separator = *at;
  if (*at != ' ' && *at != 'T') return false;
  at++;
  if (!read_digits(&at, 2, &hour) || !read_sign(&at, ':') || !read_digits(&at, 2, &minute) || !read_sign(&at, ':') ||
      !read_digits(&at, 2, &second))
    return false;
  if (*at == '.')
    for (at++; *at >= '0' && *at <= '9'; at++) fraction += (unit /= 10) * (*at - '0');
  if (month < 1 || month > 12 || day < 1 || day > 31 || hour > 23 || minute > 59 || second > 60) return false;
  to->us = ((days_of(year, month, day) * DAY_S) + hour * 3600 + minute * 60 + second) * US_PER_S + fraction;
  return read_zone(at, to);
}

bool dibs__table_instant(const char *old, int64_t now_ms, int64_t step_us, char *to, size_t size) {
  struct instant from = {.separator = ' '};
  int64_t us = now_ms * 1000, year, month, day;
  if (*old) {
    if (!read_instant(old, &from)) return false;
    us += from.ahead_s * US_PER_S;
    if (us < from.us + step_us) us = from.us + step_us;
  }
  if (us < 0) return false;
  date_of(us / US_PER_S / DAY_S, &year, &month, &day);
  int64_t left = us % (DAY_S * US_PER_S), seconds = left / US_PER_S;
  if (year > 9999) return false;
  snprintf(to, size, "%04lld-%02lld-%02lld%c%02lld:%02lld:%02lld.%06lld%s", (long long)year, (long long)month,
           (long long)day, from.separator, (long long)(seconds / 3600), (long long)(seconds / 60 % 60),
           (long long)(seconds % 60), (long long)(left % US_PER_S), from.zone);
  return true;
}

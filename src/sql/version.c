/* SPDX-License-Identifier: MIT */
/*
 * Versions that an engine does not count by itself.  An instant is written in the form of the old one: the same
 * separator, the same zone.  So an engine's handling of zones does not matter, only that a later instant compares as
 * later.
 */
#include "base/date.h"
#include "sql/sql_impl.h"

#include <stdio.h>
#include <string.h>

#define US_PER_S INT64_C(1000000)
enum { ZONE_MAX = 7 };

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
  to->us = ((dibs__days_of(year, month, day) * DIBS__DAY_S) + hour * 3600 + minute * 60 + second) * US_PER_S + fraction;
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
  dibs__date_of(us / US_PER_S / DIBS__DAY_S, &year, &month, &day);
  int64_t left = us % (DIBS__DAY_S * US_PER_S), seconds = left / US_PER_S;
  if (year > 9999) return false;
  snprintf(to, size, "%04lld-%02lld-%02lld%c%02lld:%02lld:%02lld.%06lld%s", (long long)year, (long long)month,
           (long long)day, from.separator, (long long)(seconds / 3600), (long long)(seconds / 60 % 60),
           (long long)(seconds % 60), (long long)(left % US_PER_S), from.zone);
  return true;
}

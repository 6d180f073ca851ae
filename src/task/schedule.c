/* SPDX-License-Identifier: MIT */
#include "task/schedule.h"
#include "base/date.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* ---- Fields ---- */

struct field {
  const char *name;
  unsigned least, most;
  const char *const *names; /* of the values from `least`; NULL: none */
};

enum { SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY, FIELDS };

static const char *const month_names[] = {"jan", "feb", "mar", "apr", "may", "jun", "jul",
                                          "aug", "sep", "oct", "nov", "dec", NULL};
static const char *const weekday_names[] = {"sun", "mon", "tue", "wed", "thu", "fri", "sat", NULL};

static const struct field fields[FIELDS] = {
    {"second", 0, 59, NULL}, {"minute", 0, 59, NULL},       {"hour", 0, 23, NULL},
    {"day", 1, 31, NULL},    {"month", 1, 12, month_names}, {"weekday", 0, 7, weekday_names},
};

struct reading {
  const struct field *field;
  const char *text; /* of the field */
  char *wrong;
  size_t wrong_size;
};

static bool refuse(const struct reading *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool refuse(const struct reading *r, const char *format, ...) {
  char why[128];
  va_list args;
  va_start(args, format);
  vsnprintf(why, sizeof why, format, args);
  va_end(args);
  snprintf(r->wrong, r->wrong_size, "the %s '%.40s' %s", r->field->name, r->text, why);
  return false;
}

/* A number, or a name.  `at` moves after it. */
static bool read_value(const struct reading *r, const char **at, unsigned *to) {
  const struct field *f = r->field;
  const char *begin = *at;
  unsigned n = 0;
  for (size_t i = 0; f->names && f->names[i]; i++) {
    if (strncasecmp(begin, f->names[i], 3) != 0) continue;
    *at += 3;
    *to = f->least + (unsigned)i;
    return true;
  }
  for (; **at >= '0' && **at <= '9' && n <= 999; (*at)++) n = n * 10 + (unsigned)(**at - '0');
  if (*at == begin)
    return refuse(r, "is not understood; write *, a number, a range 1-5, a step */10 or a list 1,15%s",
                  f->names == month_names ? ", or jan-dec"
                  : f->names              ? ", or sun-sat"
                                          : "");
  if (n < f->least || n > f->most) return refuse(r, "has a value outside of %u-%u", f->least, f->most);
  *to = n;
  return true;
}

/* One part of a list. */
static bool read_part(const struct reading *r, const char **at, uint64_t *bits) {
  const struct field *f = r->field;
  unsigned from = f->least, to = f->most, step = 1;
  bool all = **at == '*', range = all;
  if (f == &fields[WEEKDAY]) to = 6;
  if (all) {
    (*at)++;
  } else {
    if (!read_value(r, at, &from)) return false;
    to = from;
    if (**at == '-') {
      (*at)++;
      if (!read_value(r, at, &to)) return false;
      range = true;
      if (f == &fields[WEEKDAY] && from == 7 && to < 7) from = 0;
      if (f == &fields[WEEKDAY] && to == 0 && from > 0) to = 7; /* fri-sun */
      if (to < from)
        return refuse(r, "goes backwards; write %u-%u,%u-%u", from, f == &fields[WEEKDAY] ? 6 : f->most, f->least, to);
    }
  }
  if (**at == '/') {
    (*at)++;
    const char *begin = *at;
    for (step = 0; **at >= '0' && **at <= '9' && step <= 999; (*at)++) step = step * 10 + (unsigned)(**at - '0');
    if (*at == begin || step == 0) return refuse(r, "has no step of 1 or more behind the /");
    if (!range) return refuse(r, "has a step without a range; write %u-%u/%u", from, f->most, step);
    if (step > f->most - f->least)
      return refuse(r, "has a step that is larger than the field, which has only %u-%u", f->least, f->most);
  }
  for (unsigned n = from; n <= to; n += step) *bits |= UINT64_C(1) << n;
  return true;
}

static bool read_field(const struct reading *r, uint64_t *bits) {
  const char *at = r->text;
  *bits = 0;
  for (;; at++) {
    if (!read_part(r, &at, bits)) return false;
    if (*at == '\0') return true;
    if (*at != ',') return refuse(r, "is not understood at '%.20s'", at);
  }
}

/* ---- Schedules ---- */

static const struct shorthand {
  const char *name, *meaning;
} shorthands[] = {
    {"@yearly", "0 0 1 1 *"}, {"@annually", "0 0 1 1 *"}, {"@monthly", "0 0 1 * *"}, {"@weekly", "0 0 * * 0"},
    {"@daily", "0 0 * * *"},  {"@midnight", "0 0 * * *"}, {"@hourly", "0 * * * *"},  {NULL, NULL}};

static const char *long_form(const char *text, char *wrong, size_t wrong_size) {
  if (text[0] != '@') return text;
  for (const struct shorthand *s = shorthands; s->name; s++)
    if (strcasecmp(text, s->name) == 0) return s->meaning;
  if (strcasecmp(text, "@reboot") == 0)
    snprintf(wrong, wrong_size, "@reboot is not a time; start the command with the machine's service manager");
  else
    snprintf(wrong, wrong_size,
             "'%.40s' is not a schedule; write @hourly, @daily, @weekly, @monthly, @yearly or five fields", text);
  return NULL;
}

/* Is there a date at all?  The 30th of February never comes. */
static bool has_dates(const struct dibs__schedule *s) {
  static const unsigned days[] = {31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  if (!s->any_day && !s->any_weekday) return true; /* the weekday alone is sufficient */
  for (unsigned m = 1; m <= 12; m++)
    if (s->months >> m & 1 && s->days & (uint32_t)((UINT64_C(2) << days[m - 1]) - 2)) return true;
  return false;
}

/* Cuts the text at its blanks.  Returns the number of words, or FIELDS + 1. */
static size_t split(char *text, char *words[FIELDS]) {
  size_t count = 0;
  for (char *rest = text, *word; (word = strtok_r(rest, " \t", &rest)); count++) {
    if (count == FIELDS) return FIELDS + 1;
    words[count] = word;
  }
  return count;
}

bool dibs__schedule_read(const char *text, struct dibs__schedule *to, char *wrong, size_t wrong_size) {
  char copy[DIBS__SCHEDULE_MAX + 1], *words[FIELDS], zero[] = "0";
  uint64_t bits[FIELDS];
  *to = (struct dibs__schedule){.seconds = 0};
  if (!(text = long_form(text, wrong, wrong_size))) return false;
  size_t length = strlen(text);
  if (length > DIBS__SCHEDULE_MAX) {
    snprintf(wrong, wrong_size, "the schedule is longer than %d bytes", DIBS__SCHEDULE_MAX);
    return false;
  }
  memcpy(copy, text, length + 1);
  size_t count = split(copy, words);
  if (count != FIELDS && count != FIELDS - 1) {
    snprintf(wrong, wrong_size, "'%.60s' does not have the five fields minute, hour, day, month, weekday%s", text,
             count > FIELDS ? " (six with seconds)" : "");
    return false;
  }
  if (count == FIELDS - 1) {
    memmove(words + 1, words, (FIELDS - 1) * sizeof words[0]);
    words[SECOND] = zero;
  }
  for (size_t i = 0; i < FIELDS; i++) {
    struct reading r = {&fields[i], words[i], wrong, wrong_size};
    if (!read_field(&r, &bits[i])) return false;
  }
  to->seconds = bits[SECOND];
  to->minutes = bits[MINUTE];
  to->hours = (uint32_t)bits[HOUR];
  to->days = (uint32_t)bits[DAY];
  to->months = (uint16_t)bits[MONTH];
  to->weekdays = (uint8_t)((bits[WEEKDAY] | bits[WEEKDAY] >> 7) & 0x7f); /* 7 is Sunday, too */
  to->any_day = words[DAY][0] == '*';
  to->any_weekday = words[WEEKDAY][0] == '*';
  to->fixed = words[SECOND][0] != '*' && words[MINUTE][0] != '*' && words[HOUR][0] != '*';
  if (has_dates(to)) return true;
  snprintf(wrong, wrong_size, "'%.60s' never comes: no such month has such a day", text);
  return false;
}

/* ---- The next instant ---- */

#define EARLIEST (INT64_C(1) << 59)
#define YEARS_100 (INT64_C(36525) * DIBS__DAY_S)

/* The first bit at or above `from`; -1: none. */
static int next_bit(uint64_t bits, int from) {
  bits = from < 64 ? bits >> from : 0;
  return bits ? from + __builtin_ctzll(bits) : -1;
}

/* The first time of the day at or after `from`, in seconds; -1: none. */
static int64_t next_time(const struct dibs__schedule *s, int64_t from) {
  int hour = (int)(from / 3600), minute = (int)(from / 60 % 60), second = (int)(from % 60);
  for (int h = next_bit(s->hours, hour); h >= 0; h = next_bit(s->hours, h + 1)) {
    for (int m = next_bit(s->minutes, h > hour ? 0 : minute); m >= 0; m = next_bit(s->minutes, m + 1)) {
      int sec = next_bit(s->seconds, h > hour || m > minute ? 0 : second);
      if (sec >= 0) return (h * 60 + m) * 60 + sec;
    }
  }
  return -1;
}

static bool date_matches(const struct dibs__schedule *s, int64_t month, int64_t day, int weekday) {
  bool by_day = s->days >> day & 1, by_weekday = s->weekdays >> weekday & 1;
  if (!(s->months >> month & 1)) return false;
  return s->any_day || s->any_weekday ? by_day && by_weekday : by_day || by_weekday;
}

/* The first local time in [from, until) that matches; INT64_MAX: none. */
static int64_t next_local(const struct dibs__schedule *s, int64_t from, int64_t until) {
  int64_t time = from - dibs__day_of(from) * DIBS__DAY_S;
  for (int64_t days = dibs__day_of(from); days * DIBS__DAY_S < until; days++, time = 0) {
    int64_t year, month, day;
    dibs__date_of(days, &year, &month, &day);
    if (!date_matches(s, month, day, dibs__weekday_of(days))) continue;
    int64_t found = next_time(s, time);
    if (found < 0) continue;
    found += days * DIBS__DAY_S;
    return found < until ? found : INT64_MAX;
  }
  return INT64_MAX;
}

int64_t dibs__schedule_next(const struct dibs__schedule *s, const struct dibs__zone *zone, int64_t after) {
  if (after > INT64_MAX - YEARS_100) return INT64_MAX;
  if (after < -EARLIEST) after = -EARLIEST;
  int64_t at = after + 1, limit = after + YEARS_100;
  while (at < limit) {
    struct dibs__zone_span span = dibs__zone_at(zone, at);
    int64_t end = span.end < limit ? span.end : limit, from = at + span.ahead_s;
    if (s->fixed && span.begin == at && span.ahead_s > span.before_s &&
        next_local(s, at + span.before_s, from) != INT64_MAX)
      return at; /* its time was skipped */
    if (s->fixed && span.begin != INT64_MIN && span.before_s > span.ahead_s && from < span.begin + span.before_s)
      from = span.begin + span.before_s; /* these times come for the second time */
    int64_t found = next_local(s, from, end + span.ahead_s);
    if (found != INT64_MAX) return found - span.ahead_s;
    at = end;
  }
  return INT64_MAX;
}

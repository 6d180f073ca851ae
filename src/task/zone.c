/* SPDX-License-Identifier: MIT */
/*
 * A TZif file has a table of changes, and for the time after the last one a rule in the form of POSIX' TZ variable:
 * "CET-1CEST,M3.5.0,M10.5.0/3".  A file of version 2 or later contains two tables; the first one, with 32 bits, is
 * skipped.
 */
#include "task/zone.h"
#include "base/date.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
  FILE_MAX = 262144, /* bytes; the largest file of 2025 has 3,600 */
  CHANGES_MAX = 20000,
  NAME_MAX_OF_ZONE = 64,
  HEADER = 44,
  TYPE = 6, /* bytes of a type in the file */
  RULE_MAX = 256,
  AHEAD_MAX = 26 * 3600 /* RFC 9636: more than -25 h and less than 26 h */
};

/* zic writes -2^59, the Big Bang, for "always". */
#define CHANGE_MOST (INT64_C(1) << 59)

/* The day and the time of a change in each year. */
struct change_rule {
  enum { JULIAN, DAY, MONTH } form; /* Jn: 1-365 without leap days; n: 0-365; Mm.w.d */
  int month, week, day;
  int32_t time_s; /* local time before the change */
};

struct rule {
  bool some, changes; /* `changes`: it has a summer time */
  int32_t standard_s, summer_s;
  struct change_rule to_summer, to_standard;
};

struct change {
  int64_t at;
  int32_t ahead_s;
};

struct dibs__zone {
  struct rule rule; /* after the last change */
  int32_t first_s;  /* before the first change */
  size_t count;
  struct change changes[];
};

static bool refuse(char *wrong, size_t size, const char *what) {
  snprintf(wrong, size, "%s", what);
  return false;
}

/* ---- The rule ---- */

static bool read_number(const char **at, int most, int *to) {
  int n = 0;
  const char *begin = *at;
  for (; **at >= '0' && **at <= '9'; (*at)++)
    if ((n = n * 10 + (**at - '0')) > most) return false;
  *to = n;
  return *at > begin;
}

/* [+-]hh[:mm[:ss]] */
static bool read_time(const char **at, int hours_most, int32_t *to) {
  int sign = **at == '-' ? -1 : 1, hours, minutes = 0, seconds = 0;
  if (**at == '-' || **at == '+') (*at)++;
  if (!read_number(at, hours_most, &hours)) return false;
  if (**at == ':' && ((*at)++, !read_number(at, 59, &minutes))) return false;
  if (**at == ':' && ((*at)++, !read_number(at, 59, &seconds))) return false;
  *to = sign * (hours * 3600 + minutes * 60 + seconds);
  return true;
}

/* "CET", "<+03>": only its end matters. */
static bool skip_abbreviation(const char **at) {
  const char *begin = *at;
  if (*begin == '<') {
    const char *end = strchr(begin, '>');
    if (!end) return false;
    *at = end + 1;
    return true;
  }
  while ((**at >= 'A' && **at <= 'Z') || (**at >= 'a' && **at <= 'z')) (*at)++;
  return *at > begin;
}

/* The distance is written as what has to be added to get UTC. */
static bool read_ahead(const char **at, int32_t *to) {
  if (!read_time(at, 24, to)) return false;
  *to = -*to;
  return true;
}

static bool read_change(const char **at, struct change_rule *to) {
  *to = (struct change_rule){.time_s = 2 * 3600};
  if (**at == 'M') {
    (*at)++;
    to->form = MONTH;
    if (!read_number(at, 12, &to->month) || to->month < 1 || *(*at)++ != '.') return false;
    if (!read_number(at, 5, &to->week) || to->week < 1 || *(*at)++ != '.') return false;
    if (!read_number(at, 6, &to->day)) return false;
  } else if (**at == 'J') {
    (*at)++;
    to->form = JULIAN;
    if (!read_number(at, 365, &to->day) || to->day < 1) return false;
  } else {
    to->form = DAY;
    if (!read_number(at, 365, &to->day)) return false;
  }
  return **at != '/' || ((*at)++, read_time(at, 167, &to->time_s));
}

static bool read_rule(const char *at, struct rule *to) {
  *to = (struct rule){.some = *at != '\0'};
  if (!to->some) return true;
  if (!skip_abbreviation(&at) || !read_ahead(&at, &to->standard_s)) return false;
  if (*at == '\0') return true;
  to->changes = true;
  to->summer_s = to->standard_s + 3600;
  if (!skip_abbreviation(&at)) return false;
  if (*at != ',' && !read_ahead(&at, &to->summer_s)) return false;
  if (*at++ != ',' || !read_change(&at, &to->to_summer)) return false;
  return *at++ == ',' && read_change(&at, &to->to_standard) && *at == '\0';
}

static bool leap_year(int64_t year) {
  return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

/* The local time of a change in a year, in seconds since 1970. */
static int64_t local_change(const struct change_rule *rule, int64_t year) {
  int64_t first = dibs__days_of(year, 1, 1), day;
  if (rule->form == JULIAN) {
    day = first + rule->day - 1 + (leap_year(year) && rule->day > 59);
  } else if (rule->form == DAY) {
    day = first + rule->day;
  } else {
    int64_t month = dibs__days_of(year, rule->month, 1);
    int64_t next = rule->month == 12 ? dibs__days_of(year + 1, 1, 1) : dibs__days_of(year, rule->month + 1, 1);
    day = month + (rule->day - dibs__weekday_of(month) + 7) % 7 + 7 * (rule->week - 1);
    while (day >= next) day -= 7;
  }
  return day * DIBS__DAY_S + rule->time_s;
}

/* The changes of the years around an instant, in their order: at one instant (summer time all year) the one to summer
 * time is last. */
static size_t rule_changes(const struct rule *rule, int64_t instant, struct change to[10]) {
  int64_t year, month, day;
  size_t count = 0;
  dibs__date_of(dibs__day_of(instant), &year, &month, &day);
  for (int64_t y = year - 2; y <= year + 2; y++) {
    to[count++] = (struct change){local_change(&rule->to_standard, y) - rule->summer_s, rule->standard_s};
    to[count++] = (struct change){local_change(&rule->to_summer, y) - rule->standard_s, rule->summer_s};
  }
  for (size_t i = 1; i < count; i++)
    for (size_t j = i; j > 0 && to[j].at < to[j - 1].at; j--) {
      struct change held = to[j];
      to[j] = to[j - 1];
      to[j - 1] = held;
    }
  return count;
}

/* By the rule, at or after the last change of the table. */
static struct dibs__zone_span span_by_rule(const struct dibs__zone *zone, int64_t instant) {
  size_t n = zone->count;
  int32_t ahead = n ? zone->changes[n - 1].ahead_s : zone->first_s;
  if (zone->rule.some && !zone->rule.changes) ahead = zone->rule.standard_s;
  int64_t from = n ? zone->changes[n - 1].at : INT64_MIN;
  struct dibs__zone_span span = {from, INT64_MAX, ahead, ahead};
  if (n > 0) span.before_s = n > 1 ? zone->changes[n - 2].ahead_s : zone->first_s;
  if (!zone->rule.some || !zone->rule.changes) return span;
  struct change changes[10];
  size_t count = rule_changes(&zone->rule, instant, changes);
  for (size_t i = 0; i < count; i++) {
    if (changes[i].at <= from) continue;
    if (changes[i].at > instant) {
      span.end = changes[i].at;
      break;
    }
    if (changes[i].at != span.begin) span.before_s = span.ahead_s; /* else both changes are one */
    span.begin = changes[i].at;
    span.ahead_s = changes[i].ahead_s;
  }
  return span;
}

struct dibs__zone_span dibs__zone_at(const struct dibs__zone *zone, int64_t instant) {
  size_t low = 0, high = zone->count; /* the number of changes at or before the instant */
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (zone->changes[middle].at <= instant)
      low = middle + 1;
    else
      high = middle;
  }
  if (low == zone->count) return span_by_rule(zone, instant);
  if (low == 0) return (struct dibs__zone_span){INT64_MIN, zone->changes[0].at, zone->first_s, zone->first_s};
  return (struct dibs__zone_span){zone->changes[low - 1].at, zone->changes[low].at, zone->changes[low - 1].ahead_s,
                                  low > 1 ? zone->changes[low - 2].ahead_s : zone->first_s};
}

/* ---- The file ---- */

static int64_t read_big(const uint8_t *at, size_t size) {
  uint64_t n = *at & 0x80 ? UINT64_MAX : 0;
  for (size_t i = 0; i < size; i++) n = n << 8 | at[i];
  return (int64_t)n;
}

struct table {
  size_t local, standard, leaps, changes, types, letters; /* numbers, in the order of the header */
  const uint8_t *at;                                      /* of its data */
  size_t size;                                            /* of its data */
};

static bool read_table(const uint8_t *bytes, size_t size, size_t width, struct table *to) {
  if (size < HEADER || memcmp(bytes, "TZif", 4) != 0) return false;
  size_t *const numbers[] = {&to->local, &to->standard, &to->leaps, &to->changes, &to->types, &to->letters};
  for (size_t i = 0; i < 6; i++) {
    int64_t n = read_big(bytes + 20 + 4 * i, 4);
    if (n < 0 || n > FILE_MAX) return false;
    *numbers[i] = (size_t)n;
  }
  to->at = bytes + HEADER;
  to->size =
      to->changes * (width + 1) + to->types * TYPE + to->letters + to->leaps * (width + 4) + to->standard + to->local;
  return to->size <= size - HEADER;
}

static bool read_changes(const struct table *table, size_t width, struct dibs__zone *zone) {
  const uint8_t *kinds = table->at + table->changes * width, *types = kinds + table->changes;
  for (size_t i = 0; i < table->types; i++) {
    int64_t ahead = read_big(types + i * TYPE, 4);
    if (ahead <= -AHEAD_MAX || ahead >= AHEAD_MAX) return false;
  }
  zone->first_s = (int32_t)read_big(types, 4);
  zone->count = table->changes;
  for (size_t i = 0; i < table->changes; i++) {
    if (kinds[i] >= table->types) return false;
    zone->changes[i].at = read_big(table->at + i * width, width);
    zone->changes[i].ahead_s = (int32_t)read_big(types + (size_t)kinds[i] * TYPE, 4);
    if (zone->changes[i].at < -CHANGE_MOST || zone->changes[i].at > CHANGE_MOST) return false;
    if (i > 0 && zone->changes[i].at <= zone->changes[i - 1].at) return false;
  }
  return true;
}

/* "\nRULE\n" behind the second table. */
static bool read_footer(const uint8_t *at, size_t size, struct rule *rule) {
  char text[RULE_MAX];
  const uint8_t *end = size > 1 && *at == '\n' ? memchr(at + 1, '\n', size - 1) : NULL;
  if (!end || (size_t)(end - at) > sizeof text) return false;
  size_t length = (size_t)(end - at) - 1;
  memcpy(text, at + 1, length);
  text[length] = '\0';
  return strlen(text) == length && read_rule(text, rule);
}

bool dibs__zone_read(const void *bytes, size_t size, struct dibs__zone **zone, char *wrong, size_t wrong_size) {
  const uint8_t *at = bytes;
  struct table table;
  size_t width = 4;
  *zone = NULL;
  if (!read_table(at, size, 4, &table)) return refuse(wrong, wrong_size, "it is not a TZif file");
  if (at[4] >= '2') {
    at += HEADER + table.size;
    width = 8;
    if (!read_table(at, size - (size_t)(at - (const uint8_t *)bytes), width, &table))
      return refuse(wrong, wrong_size, "it is a damaged TZif file");
  }
  if (table.leaps)
    return refuse(wrong, wrong_size, "it counts leap seconds, and clocks do not; use the zone without right/");
  if (table.types == 0 || table.changes > CHANGES_MAX) return refuse(wrong, wrong_size, "it is a damaged TZif file");
  struct dibs__zone *z = calloc(1, sizeof *z + table.changes * sizeof z->changes[0]);
  if (!z) return refuse(wrong, wrong_size, "there is no memory for it");
  const uint8_t *footer = table.at + table.size;
  bool fine = read_changes(&table, width, z) &&
              (width == 4 || read_footer(footer, size - (size_t)(footer - (const uint8_t *)bytes), &z->rule));
  if (!fine) {
    free(z);
    return refuse(wrong, wrong_size, "it is a damaged TZif file");
  }
  *zone = z;
  return true;
}

void dibs__zone_free(struct dibs__zone *zone) {
  free(zone);
}

/* ---- The database ---- */

/* A name that leads out of the folder is refused. */
static bool valid_name(const char *name) {
  size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+-/");
  return length > 0 && length <= NAME_MAX_OF_ZONE && name[length] == '\0' && name[0] != '/' && name[0] != '-';
}

static bool load_file(const char *path, uint8_t *bytes, size_t *size) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t got = 1;
  *size = 0;
  if (fd < 0) return false;
  while (got > 0 && *size < FILE_MAX) {
    got = read(fd, bytes + *size, FILE_MAX - *size);
    if (got > 0) *size += (size_t)got;
    if (got < 0 && errno == EINTR) got = 1;
  }
  close(fd);
  return got == 0;
}

bool dibs__zone_load(const char *name, struct dibs__zone **zone, char *wrong, size_t wrong_size) {
  const char *folder = getenv("TZDIR");
  char path[4096], why[96];
  size_t size;
  *zone = NULL;
  if (strcmp(name, "UTC") == 0) {
    *zone = calloc(1, sizeof **zone);
    return *zone || refuse(wrong, wrong_size, "there is no memory for a time zone");
  }
  if (!folder || !folder[0]) folder = "/usr/share/zoneinfo";
  if (!valid_name(name)) {
    snprintf(wrong, wrong_size, "'%.64s' is not the name of a time zone; write one like Europe/Berlin, or UTC", name);
    return false;
  }
  uint8_t *bytes = malloc(FILE_MAX);
  if (!bytes) return refuse(wrong, wrong_size, "there is no memory for a time zone");
  int length = snprintf(path, sizeof path, "%s/%s", folder, name);
  bool fine = length > 0 && (size_t)length < sizeof path && load_file(path, bytes, &size);
  if (!fine)
    snprintf(wrong, wrong_size, "there is no time zone '%s' in %.128s; check the name, or install the package tzdata",
             name, folder);
  else if (!(fine = dibs__zone_read(bytes, size, zone, why, sizeof why)))
    snprintf(wrong, wrong_size, "can't use the time zone '%s' in %.128s: %s", name, folder, why);
  free(bytes);
  return fine;
}

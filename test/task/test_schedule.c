/* SPDX-License-Identifier: MIT */
#include "base/date.h"
#include "task/schedule.h"
#include "unit/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static char wrong[256];

static struct dibs__schedule schedule(const char *text) {
  struct dibs__schedule s;
  if (!dibs__schedule_read(text, &s, wrong, sizeof wrong)) fail_msg("%s: %s", text, wrong);
  return s;
}

static struct dibs__zone *load(const char *name) {
  struct dibs__zone *zone;
  if (!dibs__zone_load(name, &zone, wrong, sizeof wrong)) fail_msg("%s", wrong);
  setenv("TZ", name, 1);
  tzset();
  return zone;
}

/* "2026-03-29 03:00:00 +0200" */
static int64_t instant(const char *text) {
  int year, month, day, hour, minute, second, ahead;
  assert_int_equal(sscanf(text, "%d-%d-%d %d:%d:%d %d", &year, &month, &day, &hour, &minute, &second, &ahead), 7);
  return dibs__days_of(year, month, day) * DIBS__DAY_S + hour * 3600 + minute * 60 + second -
         (ahead / 100 * 3600 + ahead % 100 * 60);
}

static void assert_instant(const char *schedule_text, int64_t got, const char *wanted) {
  char text[64] = "never";
  time_t at = (time_t)got;
  struct tm tm;
  if (got != INT64_MAX) strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S %z", localtime_r(&at, &tm));
  if (strcmp(text, wanted) != 0) fail_msg("%s: %s, wanted %s", schedule_text, text, wanted);
}

struct example {
  const char *zone, *schedule, *after;
  const char *next[4];
};

static void check_examples(const struct example *examples, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const struct example *e = &examples[i];
    struct dibs__zone *zone = load(e->zone);
    struct dibs__schedule s = schedule(e->schedule);
    int64_t at = instant(e->after);
    for (size_t n = 0; n < 4 && e->next[n]; n++) {
      at = dibs__schedule_next(&s, zone, at);
      assert_instant(e->schedule, at, e->next[n]);
    }
    dibs__zone_free(zone);
  }
}

static void fields_are_those_of_cron(void **state) {
  (void)state;
  static const struct example examples[] = {
      {"UTC", "* * * * *", "2026-01-31 23:58:30 +0000", {"2026-01-31 23:59:00 +0000", "2026-02-01 00:00:00 +0000"}},
      {"UTC",
       "*/20 * * * *",
       "2026-01-01 00:00:00 +0000",
       {"2026-01-01 00:20:00 +0000", "2026-01-01 00:40:00 +0000", "2026-01-01 01:00:00 +0000"}},
      {"UTC",
       "5,50-52 8-18/5 * * *",
       "2026-01-01 08:05:00 +0000",
       {"2026-01-01 08:50:00 +0000", "2026-01-01 08:51:00 +0000", "2026-01-01 08:52:00 +0000",
        "2026-01-01 13:05:00 +0000"}},
      {"UTC", "0 0 29 2 *", "2026-01-01 00:00:00 +0000", {"2028-02-29 00:00:00 +0000", "2032-02-29 00:00:00 +0000"}},
      {"UTC", "0 0 29 2 *", "2096-03-01 00:00:00 +0000", {"2104-02-29 00:00:00 +0000"}},
      {"UTC", "0 0 31 * *", "2026-01-31 00:00:00 +0000", {"2026-03-31 00:00:00 +0000", "2026-05-31 00:00:00 +0000"}},
      /* Both days are restricted: either of them. */
      {"UTC",
       "0 0 13 * fri",
       "2026-02-01 00:00:00 +0000",
       {"2026-02-06 00:00:00 +0000", "2026-02-13 00:00:00 +0000", "2026-02-20 00:00:00 +0000"}},
      /* A field that begins with * is not restricted: both have to match. */
      {"UTC",
       "0 0 1 * */6",
       "2026-01-01 00:00:00 +0000",
       {"2026-02-01 00:00:00 +0000", "2026-03-01 00:00:00 +0000", "2026-08-01 00:00:00 +0000"}},
      {"UTC", "0 0 * * 7", "2026-11-22 00:00:00 +0000", {"2026-11-29 00:00:00 +0000"}},
      {"UTC",
       "0 0 * * sat-sun",
       "2026-11-22 00:00:00 +0000",
       {"2026-11-28 00:00:00 +0000", "2026-11-29 00:00:00 +0000"}},
      {"UTC",
       "0 0 * * FRI-7",
       "2026-11-22 00:00:00 +0000",
       {"2026-11-27 00:00:00 +0000", "2026-11-28 00:00:00 +0000", "2026-11-29 00:00:00 +0000"}},
      {"UTC", "0 0 * * 7-1", "2026-11-22 00:00:00 +0000", {"2026-11-23 00:00:00 +0000", "2026-11-29 00:00:00 +0000"}},
      {"UTC",
       "0 12 1 jan,Jul *",
       "2026-01-01 12:00:00 +0000",
       {"2026-07-01 12:00:00 +0000", "2027-01-01 12:00:00 +0000"}},
      {"UTC",
       "*/15 * * * * *",
       "2026-01-01 00:00:50 +0000",
       {"2026-01-01 00:01:00 +0000", "2026-01-01 00:01:15 +0000"}},
      {"UTC", "59 59 23 31 12 *", "2026-01-01 00:00:00 +0000", {"2026-12-31 23:59:59 +0000"}},
      {"UTC", "@hourly", "2026-01-01 00:00:00 +0000", {"2026-01-01 01:00:00 +0000"}},
      {"UTC", "@Daily", "2026-01-01 00:00:00 +0000", {"2026-01-02 00:00:00 +0000"}},
      {"UTC", "@midnight", "2026-01-01 00:00:00 +0000", {"2026-01-02 00:00:00 +0000"}},
      {"UTC", "@weekly", "2026-11-22 00:00:00 +0000", {"2026-11-29 00:00:00 +0000"}},
      {"UTC", "@monthly", "2026-11-22 00:00:00 +0000", {"2026-12-01 00:00:00 +0000"}},
      {"UTC", "@yearly", "2026-11-22 00:00:00 +0000", {"2027-01-01 00:00:00 +0000"}},
      {"UTC", "@annually", "2026-11-22 00:00:00 +0000", {"2027-01-01 00:00:00 +0000"}},
      {"UTC", " \t0  0\t1 1 * ", "2026-11-22 00:00:00 +0000", {"2027-01-01 00:00:00 +0000"}},
      {"UTC", "30 4 * * *", "1969-12-31 00:00:00 +0000", {"1969-12-31 04:30:00 +0000", "1970-01-01 04:30:00 +0000"}},
  };
  check_examples(examples, COUNT_OF(examples));
}

static void clocks_that_change(void **state) {
  (void)state;
  static const struct example examples[] = {
      /* In spring 02:00-03:00 is skipped, in autumn it comes twice. */
      {"Europe/Berlin",
       "30 2 * * *",
       "2026-03-28 00:00:00 +0100",
       {"2026-03-28 02:30:00 +0100", "2026-03-29 03:00:00 +0200", "2026-03-30 02:30:00 +0200"}},
      {"Europe/Berlin",
       "30 2 * * *",
       "2026-10-24 12:00:00 +0200",
       {"2026-10-25 02:30:00 +0200", "2026-10-26 02:30:00 +0100"}},
      /* Several skipped times fire once; so does a time at the end of the skipped hour. */
      {"Europe/Berlin",
       "0,15,30 2,3 * * *",
       "2026-03-29 01:00:00 +0100",
       {"2026-03-29 03:00:00 +0200", "2026-03-29 03:15:00 +0200"}},
      {"Europe/Berlin", "*/30 2 * * *", "2026-03-28 12:00:00 +0100", {"2026-03-30 02:00:00 +0200"}},
      {"Europe/Berlin",
       "*/30 2 * * *",
       "2026-10-25 00:00:00 +0200",
       {"2026-10-25 02:00:00 +0200", "2026-10-25 02:30:00 +0200", "2026-10-25 02:00:00 +0100",
        "2026-10-25 02:30:00 +0100"}},
      {"Europe/Berlin", "0 * * * *", "2026-03-29 01:00:00 +0100", {"2026-03-29 03:00:00 +0200"}},
      {"America/New_York",
       "5 1 * * *",
       "2026-11-01 00:00:00 -0400",
       {"2026-11-01 01:05:00 -0400", "2026-11-02 01:05:00 -0500"}},
      /* Half an hour. */
      {"Australia/Lord_Howe",
       "15 2 * * *",
       "2026-10-03 12:00:00 +1030",
       {"2026-10-04 02:30:00 +1100", "2026-10-05 02:15:00 +1100"}},
      /* A whole day is skipped. */
      {"Pacific/Apia",
       "0 9 * * *",
       "2011-12-29 09:00:00 -1000",
       {"2011-12-31 00:00:00 +1400", "2011-12-31 09:00:00 +1400"}},
      {"Asia/Kathmandu", "0 0 * * *", "2026-01-01 00:00:00 +0545", {"2026-01-02 00:00:00 +0545"}},
      {"Africa/Casablanca", "30 2 * * *", "2087-01-01 00:00:00 +0100", {"2087-01-01 02:30:00 +0100"}},
  };
  check_examples(examples, COUNT_OF(examples));
}

/* ---- Mistakes ---- */

static void mistakes_are_refused_with_a_reason(void **state) {
  (void)state;
  static const struct {
    const char *text, *why;
  } mistakes[] = {
      {"", "five fields"},
      {"* * * *", "five fields"},
      {"* * * * * * *", "six with seconds"},
      {"60 * * * *", "the minute '60' has a value outside of 0-59"},
      {"* 24 * * *", "the hour '24' has a value outside of 0-23"},
      {"* * 0 * *", "the day '0' has a value outside of 1-31"},
      {"* * 32 * *", "outside of 1-31"},
      {"* * * 13 *", "outside of 1-12"},
      {"* * * 0 *", "outside of 1-12"},
      {"* * * * 8", "outside of 0-7"},
      {"99999999999999999999 * * * *", "outside of 0-59"},
      {"60 * * * * *", "the second '60'"},
      {"-1 * * * *", "is not understood"},
      {"x * * * *", "is not understood"},
      {"* * * foo *", "or jan-dec"},
      {"* * * * mo", "or sun-sat"},
      {"* * mon * *", "the day 'mon' is not understood"},
      {"1,,2 * * * *", "is not understood"},
      {"1, * * * *", "is not understood"},
      {"1- * * * *", "is not understood"},
      {"1-5- * * * *", "is not understood at '-'"},
      {"**  * * * *", "is not understood at '*'"},
      {"* 22-6 * * *", "goes backwards; write 22-23,0-6"},
      {"* * * * fri-tue", "goes backwards; write 5-6,0-2"},
      {"*/0 * * * *", "step of 1 or more"},
      {"*/ * * * *", "step of 1 or more"},
      {"*/-5 * * * *", "step of 1 or more"},
      {"5/10 * * * *", "write 5-59/10"},
      {"*/90 * * * *", "a step that is larger than the field"},
      {"0 0 30 2 *", "never comes"},
      {"0 0 31 4,6,9,11 *", "never comes"},
      {"0 0 L * *", "is not understood"},
      {"0 0 ? * *", "is not understood"},
      {"@reboot", "service manager"},
      {"@dayly", "'@dayly' is not a schedule"},
      {"@", "is not a schedule"},
      {"%s %n * * *", "is not understood"},
  };
  struct dibs__schedule s;
  char longer[DIBS__SCHEDULE_MAX + 2];
  for (size_t i = 0; i < COUNT_OF(mistakes); i++) {
    wrong[0] = '\0';
    assert_false(dibs__schedule_read(mistakes[i].text, &s, wrong, sizeof wrong));
    if (!strstr(wrong, mistakes[i].why)) fail_msg("%s: %s", mistakes[i].text, wrong);
  }
  memset(longer, '*', sizeof longer - 1);
  longer[sizeof longer - 1] = '\0';
  assert_false(dibs__schedule_read(longer, &s, wrong, sizeof wrong));
  assert_non_null(strstr(wrong, "longer than 512"));
}

/* ---- Against a search by the minute ---- */

static uint64_t random_state = 7;
static unsigned below(unsigned n) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return (unsigned)(random_state % n);
}

struct set {
  bool has[64], star;
};

/* A field of a random form, and what it means. */
static void random_field(unsigned least, unsigned most, unsigned stars, char *to, size_t size, struct set *set) {
  *set = (struct set){.star = below(100) < stars};
  if (set->star) {
    unsigned step = below(2) ? 1 : 1 + below(most - least);
    snprintf(to, size, step == 1 ? "*" : "*/%u", step);
    for (unsigned n = least; n <= most; n += step) set->has[n] = true;
    return;
  }
  size_t len = 0;
  for (unsigned i = 0, parts = 1 + below(3); i < parts; i++) {
    unsigned from = least + below(most - least + 1), to_n = from + below(most - from + 1), step = 1 + below(4);
    if (below(2)) to_n = from;
    len += (size_t)snprintf(to + len, size - len, "%s%u", i ? "," : "", from);
    if (to_n > from) len += (size_t)snprintf(to + len, size - len, "-%u/%u", to_n, step);
    for (unsigned n = from; n <= to_n; n += step) set->has[n] = true;
  }
}

static bool matches(const struct set sets[5], const struct tm *tm) {
  bool day = sets[2].has[tm->tm_mday], weekday = sets[4].has[tm->tm_wday];
  return tm->tm_sec == 0 && sets[0].has[tm->tm_min] && sets[1].has[tm->tm_hour] && sets[3].has[tm->tm_mon + 1] &&
         (sets[2].star || sets[4].star ? day && weekday : day || weekday);
}

static long ahead_at(int64_t at) {
  time_t seconds = (time_t)at;
  struct tm tm;
  localtime_r(&seconds, &tm);
  return tm.tm_gmtoff;
}

/* Has the same local time come before? */
static bool came_before(int64_t at) {
  for (int64_t earlier = at - 900; earlier > at - 26 * 3600; earlier -= 900) {
    int64_t same = at + ahead_at(at) - ahead_at(earlier);
    if (same < at && ahead_at(same) == ahead_at(earlier)) return true;
  }
  return false;
}

static bool skips_a_match(const struct set sets[5], int64_t at) {
  for (int64_t local = at + ahead_at(at - 1); local < at + ahead_at(at); local += 60) {
    time_t seconds = (time_t)local;
    struct tm tm;
    if (matches(sets, gmtime_r(&seconds, &tm))) return true;
  }
  return false;
}

static bool fires(const struct set sets[5], int64_t at) {
  time_t seconds = (time_t)at;
  struct tm tm;
  bool fixed = !sets[0].star && !sets[1].star, match = matches(sets, localtime_r(&seconds, &tm));
  if (!fixed) return match;
  return (match && !came_before(at)) || skips_a_match(sets, at);
}

static void random_schedules_fire_when_a_search_by_the_minute_says(void **state) {
  (void)state;
  static const char *const zones[] = {
      "Europe/Berlin",     "America/New_York", "Australia/Lord_Howe", "Antarctica/Troll", "Africa/Casablanca",
      "America/Sao_Paulo", "Europe/Dublin",    "Asia/Kolkata",        "Pacific/Apia",     "America/St_Johns"};
  size_t firings = 0;
  for (int i = 0; i < 600; i++) {
    char parts[5][64], text[400];
    struct set sets[5];
    random_field(0, 59, 40, parts[0], sizeof parts[0], &sets[0]);
    random_field(0, 23, 40, parts[1], sizeof parts[1], &sets[1]);
    random_field(1, 31, 80, parts[2], sizeof parts[2], &sets[2]);
    random_field(1, 12, 90, parts[3], sizeof parts[3], &sets[3]);
    random_field(0, 6, 80, parts[4], sizeof parts[4], &sets[4]);
    snprintf(text, sizeof text, "%s %s %s %s %s", parts[0], parts[1], parts[2], parts[3], parts[4]);
    struct dibs__schedule s;
    if (!dibs__schedule_read(text, &s, wrong, sizeof wrong)) {
      assert_non_null(strstr(wrong, "never comes"));
      continue;
    }
    struct dibs__zone *zone = load(zones[(size_t)i % COUNT_OF(zones)]);
    /* Around a change of the clock, mostly. */
    int64_t from = 631152000 + (int64_t)below(1600000000);
    struct dibs__zone_span span = dibs__zone_at(zone, from);
    if (span.end != INT64_MAX && below(5)) from = span.end - below(36 * 3600);
    from -= from % 60;
    int64_t until = from + INT64_C(3) * DIBS__DAY_S, next = dibs__schedule_next(&s, zone, from);
    for (int64_t at = from + 60; at < until; at += 60) {
      if (!fires(sets, at)) {
        if (next == at) fail_msg("%s in %s fires at %lld", text, getenv("TZ"), (long long)at);
        continue;
      }
      if (next != at) fail_msg("%s in %s: next is %lld, not %lld", text, getenv("TZ"), (long long)next, (long long)at);
      next = dibs__schedule_next(&s, zone, at);
      firings++;
    }
    assert_true(next >= until);
    dibs__zone_free(zone);
  }
  print_message("%zu firings\n", firings);
  assert_true(firings > 10000);
}

/* The next firing is the same for each instant before it. */
static void next_does_not_depend_on_the_step(void **state) {
  (void)state;
  struct dibs__zone *zone = load("Europe/Berlin");
  struct dibs__schedule s = schedule("30 2 * * *");
  int64_t gap = instant("2026-03-29 03:00:00 +0200");
  for (int64_t after = gap - 80000; after < gap; after += 61)
    assert_int_equal(dibs__schedule_next(&s, zone, after), gap);
  assert_true(dibs__schedule_next(&s, zone, gap) > gap);
  assert_true(dibs__schedule_next(&s, zone, INT64_MAX) == INT64_MAX);
  assert_true(dibs__schedule_next(&s, zone, INT64_MIN) > INT64_MIN);
  dibs__zone_free(zone);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(fields_are_those_of_cron),
      cmocka_unit_test(clocks_that_change),
      cmocka_unit_test(mistakes_are_refused_with_a_reason),
      cmocka_unit_test(random_schedules_fire_when_a_search_by_the_minute_says),
      cmocka_unit_test(next_does_not_depend_on_the_step),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

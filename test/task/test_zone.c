/* SPDX-License-Identifier: MIT */
/* Every zone of the system's database, compared with the C library. */
#include "task/zone.h"
#include "unit/unit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FOLDER "/usr/share/zoneinfo"
#define FROM INT64_C(-3000000000) /* 1874 */
#define TO INT64_C(8000000000)    /* 2223: beyond every table */

static char wrong[256];

static uint64_t random_state = 1;
static uint64_t next_random(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

static struct dibs__zone *load(const char *name) {
  struct dibs__zone *zone;
  if (!dibs__zone_load(name, &zone, wrong, sizeof wrong)) fail_msg("%s", wrong);
  setenv("TZ", name, 1);
  tzset();
  return zone;
}

static long ahead_of_library(int64_t instant) {
  time_t at = (time_t)instant;
  struct tm tm;
  assert_non_null(localtime_r(&at, &tm));
  return tm.tm_gmtoff;
}

static void compare_at(const char *name, const struct dibs__zone *zone, int64_t instant) {
  struct dibs__zone_span span = dibs__zone_at(zone, instant);
  if (span.ahead_s != ahead_of_library(instant))
    fail_msg("%s at %lld: %d, and the library has %ld", name, (long long)instant, span.ahead_s,
             ahead_of_library(instant));
  assert_true(span.begin <= instant && instant < span.end);
  if (span.begin > FROM && span.before_s != ahead_of_library(span.begin - 1))
    fail_msg("%s before %lld: %d, and the library has %ld", name, (long long)span.begin, span.before_s,
             ahead_of_library(span.begin - 1));
}

/* All stretches, at both ends and at a few instants within; and instants at random. */
static void compare(const char *name) {
  struct dibs__zone *zone = load(name);
  for (int64_t at = FROM; at < TO;) {
    struct dibs__zone_span span = dibs__zone_at(zone, at);
    assert_true(span.end > at);
    compare_at(name, zone, at);
    if (span.end < TO) compare_at(name, zone, span.end - 1);
    at = span.end;
  }
  for (int i = 0; i < 100; i++) compare_at(name, zone, FROM + (int64_t)(next_random() % (uint64_t)(TO - FROM)));
  dibs__zone_free(zone);
}

static bool is_zone(const char *path) {
  char head[4] = "";
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  bool zone = fd >= 0 && read(fd, head, 4) == 4 && memcmp(head, "TZif", 4) == 0;
  if (fd >= 0) close(fd);
  return zone;
}

static size_t compare_all(const char *folder) {
  char path[1024];
  size_t count = 0;
  DIR *dir = opendir(folder);
  assert_non_null(dir);
  for (struct dirent *e; (e = readdir(dir));) {
    struct stat st;
    if (e->d_name[0] == '.' || strcmp(e->d_name, "right") == 0 || strcmp(e->d_name, "posix") == 0) continue;
    assert_true((size_t)snprintf(path, sizeof path, "%s/%s", folder, e->d_name) < sizeof path);
    assert_int_equal(stat(path, &st), 0);
    if (S_ISDIR(st.st_mode)) {
      count += compare_all(path);
    } else if (is_zone(path)) {
      compare(path + sizeof FOLDER);
      count++;
    }
  }
  closedir(dir);
  return count;
}

static void every_zone_is_that_of_the_c_library(void **state) {
  (void)state;
  unsetenv("TZDIR");
  size_t count = compare_all(FOLDER);
  print_message("%zu zones\n", count);
  assert_true(count > 300);
}

static void utc_needs_no_file(void **state) {
  (void)state;
  struct dibs__zone *zone;
  setenv("TZDIR", "/nowhere", 1);
  assert_true(dibs__zone_load("UTC", &zone, wrong, sizeof wrong));
  struct dibs__zone_span span = dibs__zone_at(zone, 1700000000);
  assert_int_equal(span.ahead_s, 0);
  assert_true(span.begin == INT64_MIN && span.end == INT64_MAX);
  dibs__zone_free(zone);
  assert_false(dibs__zone_load("Europe/Berlin", &zone, wrong, sizeof wrong));
  assert_null(zone);
  assert_non_null(strstr(wrong, "there is no time zone 'Europe/Berlin' in /nowhere"));
  unsetenv("TZDIR");
}

static void names_that_lead_elsewhere_are_refused(void **state) {
  (void)state;
  static const char *const names[] = {
      "",       "/etc/passwd",  "../../../etc/passwd", "Europe/../../etc/passwd", "a b", "-x", "Europe/Berlin\n",
      "%s%s%n", "Z\xc3\xbcrich"};
  struct dibs__zone *zone;
  for (size_t i = 0; i < COUNT_OF(names); i++) {
    assert_false(dibs__zone_load(names[i], &zone, wrong, sizeof wrong));
    assert_null(zone);
    assert_non_null(strstr(wrong, "is not the name of a time zone"));
  }
  assert_false(dibs__zone_load("Europe", &zone, wrong, sizeof wrong)); /* a folder */
  assert_false(dibs__zone_load("tzdata.zi", &zone, wrong, sizeof wrong));
}

/* A file with a table of no changes and this rule. */
static size_t write_file(uint8_t to[512], const char *rule) {
  static const uint8_t header[44] = {'T', 'Z', 'i', 'f', '2', [39] = 1, [43] = 1};
  static const uint8_t type[7] = {0};
  size_t size = 0, length = strlen(rule);
  for (int i = 0; i < 2; i++) {
    memcpy(to + size, header, sizeof header);
    memcpy(to + size + sizeof header, type, sizeof type);
    size += sizeof header + sizeof type;
  }
  to[size++] = '\n';
  memcpy(to + size, rule, length);
  to[size + length] = '\n';
  return size + length + 1;
}

/* The forms of a rule, which the C library reads from $TZ. */
static void rules_are_those_of_the_c_library(void **state) {
  (void)state;
  static const char *const rules[] = {"CET-1CEST,M3.5.0,M10.5.0/3",
                                      "EST5EDT,M3.2.0,M11.1.0",
                                      "IST-1GMT0,M10.5.0,M3.5.0/1",
                                      "<+1030>-10:30<+11>-11,M10.1.0,M4.1.0",
                                      "<-02>2<-01>,M3.5.0/-1,M10.5.0/0",
                                      "ABC3DEF,J60/0,J300/0",
                                      "ABC3DEF,59/0,300/0",
                                      "ABC-3:15:30DEF-4:20,J10/1,J355/23",
                                      "NZST-12NZDT,M9.5.0,M4.1.0/3",
                                      "UTC0",
                                      "<+14>-14"};
  uint8_t bytes[512];
  for (size_t i = 0; i < COUNT_OF(rules); i++) {
    struct dibs__zone *zone;
    size_t size = write_file(bytes, rules[i]);
    if (!dibs__zone_read(bytes, size, &zone, wrong, sizeof wrong)) fail_msg("%s: %s", rules[i], wrong);
    setenv("TZ", rules[i], 1);
    tzset();
    for (int64_t at = 0; at < TO; at += 100000 + (int64_t)(next_random() % 100000)) {
      struct dibs__zone_span span = dibs__zone_at(zone, at);
      if (span.ahead_s != ahead_of_library(at)) fail_msg("%s at %lld: %d", rules[i], (long long)at, span.ahead_s);
    }
    dibs__zone_free(zone);
  }
}

/* Both changes come at one instant: there is none. */
static void summer_time_all_year(void **state) {
  (void)state;
  uint8_t bytes[512];
  struct dibs__zone *zone;
  size_t size = write_file(bytes, "EST5EDT,0/0,J365/25");
  assert_true(dibs__zone_read(bytes, size, &zone, wrong, sizeof wrong));
  for (int64_t at = 0; at < TO; at += 2000000) {
    struct dibs__zone_span span = dibs__zone_at(zone, at);
    assert_int_equal(span.ahead_s, -4 * 3600);
    assert_int_equal(span.before_s, -4 * 3600);
  }
  dibs__zone_free(zone);
}

static void damaged_files_are_refused(void **state) {
  (void)state;
  static const char *const rules[] = {"CET",
                                      "CET-1CEST",
                                      "CET-1CEST,M3.5.0",
                                      "CET-1CEST,M13.5.0,M10.5.0",
                                      "CET-1CEST,M3.6.0,M10.5.0",
                                      "CET-1CEST,J0,J365",
                                      "CET-25",
                                      "CET-1CEST,M3.5.0/168,M10.5.0",
                                      "CET-1CEST,M3.5.0,M10.5.0x",
                                      "<CET-1"};
  uint8_t bytes[512];
  struct dibs__zone *zone;
  for (size_t i = 0; i < COUNT_OF(rules); i++)
    assert_false(dibs__zone_read(bytes, write_file(bytes, rules[i]), &zone, wrong, sizeof wrong));
  size_t size = write_file(bytes, "CET-1CEST,M3.5.0,M10.5.0/3");
  for (size_t cut = 0; cut < size; cut++) {
    uint8_t *exact = malloc(cut + 1); /* so that a read beyond it is noticed */
    assert_non_null(exact);
    memcpy(exact, bytes, cut);
    assert_false(dibs__zone_read(exact, cut, &zone, wrong, sizeof wrong));
    assert_null(zone);
    free(exact);
  }
  bytes[44 + 7 + 31] = 1; /* a leap second */
  assert_false(dibs__zone_read(bytes, sizeof bytes, &zone, wrong, sizeof wrong));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_zone_is_that_of_the_c_library),
      cmocka_unit_test(utc_needs_no_file),
      cmocka_unit_test(names_that_lead_elsewhere_are_refused),
      cmocka_unit_test(rules_are_those_of_the_c_library),
      cmocka_unit_test(summer_time_all_year),
      cmocka_unit_test(damaged_files_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: MIT */
/* Any text as the schedule of a job.  Either it is refused with a message, or its firings are a growing sequence of
 * instants whose fields match. */
#include "fuzz.h"
#include "task/schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(what)                                                                                                    \
  do                                                                                                                   \
    if (!(what)) {                                                                                                     \
      fprintf(stderr, "not so: %s\n", #what);                                                                          \
      abort();                                                                                                         \
    }                                                                                                                  \
  while (0)

static void check_firings(const struct dibs__schedule *s) {
  char wrong[256];
  struct dibs__zone *utc;
  int64_t at = 1700000000;
  CHECK(dibs__zone_load("UTC", &utc, wrong, sizeof wrong));
  for (int i = 0; i < 5; i++) {
    int64_t next = dibs__schedule_next(s, utc, at);
    CHECK(next > at);
    if (next == INT64_MAX) break;
    time_t seconds = (time_t)next;
    struct tm tm;
    CHECK(gmtime_r(&seconds, &tm));
    CHECK(s->seconds >> tm.tm_sec & 1 && s->minutes >> tm.tm_min & 1 && s->hours >> tm.tm_hour & 1);
    CHECK(s->months >> (tm.tm_mon + 1) & 1);
    CHECK(s->days >> tm.tm_mday & 1 || s->weekdays >> tm.tm_wday & 1);
    at = next;
  }
  dibs__zone_free(utc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct dibs__schedule s;
  char wrong[64] = "", *text = malloc(size + 1);
  if (!text) return 0;
  if (size) memcpy(text, data, size);
  text[size] = '\0';
  if (dibs__schedule_read(text, &s, wrong, sizeof wrong))
    check_firings(&s);
  else
    CHECK(wrong[0] != '\0' && memchr(wrong, '\0', sizeof wrong));
  free(text);
  return 0;
}

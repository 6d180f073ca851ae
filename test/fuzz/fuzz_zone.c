/* SPDX-License-Identifier: MIT */
/* Any bytes as a TZif file.  Either they are refused, or time is divided into stretches without gaps. */
#include "fuzz.h"
#include "task/schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                                                    \
  do                                                                                                                   \
    if (!(what)) {                                                                                                     \
      fprintf(stderr, "not so: %s\n", #what);                                                                          \
      abort();                                                                                                         \
    }                                                                                                                  \
  while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char wrong[128] = "";
  struct dibs__zone *zone;
  if (!dibs__zone_read(data, size, &zone, wrong, sizeof wrong)) {
    CHECK(!zone && wrong[0] != '\0');
    return 0;
  }
  int64_t at = -3000000000;
  for (int i = 0; i < 400 && at < 8000000000; i++) {
    struct dibs__zone_span span = dibs__zone_at(zone, at);
    CHECK(span.begin <= at && at < span.end);
    CHECK(span.ahead_s > -180000 && span.ahead_s < 180000);
    at = span.end;
  }
  struct dibs__schedule daily;
  CHECK(dibs__schedule_read("30 2 * * *", &daily, wrong, sizeof wrong));
  at = -3000000000;
  for (int i = 0; i < 20; i++) {
    int64_t next = dibs__schedule_next(&daily, zone, at);
    CHECK(next > at);
    if (next == INT64_MAX) break;
    at = next + i * INT64_C(100000000);
  }
  dibs__zone_free(zone);
  return 0;
}

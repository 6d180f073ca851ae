/* SPDX-License-Identifier: MIT */
/*
 * Any text as the content of a version column of instants.  Either it is not an instant, or the next one reads as
 * later.
 */
#include "fuzz.h"
#include "sql/sql_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                                                    \
  do                                                                                                                   \
    if (!(what)) {                                                                                                     \
      fprintf(stderr, "failed: %s\nfor: %s\n", #what, old);                                                            \
      abort();                                                                                                         \
    }                                                                                                                  \
  while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const int64_t steps[] = {1, 1000, 1000000};
  char old[DIBS_VERSION_MAX + 1], next[DIBS_VERSION_MAX + 1], later[DIBS_VERSION_MAX + 1];
  if (size > DIBS_VERSION_MAX) return 0;
  memcpy(old, data, size);
  old[size] = '\0';
  for (size_t i = 0; i < 3; i++) {
    memset(next, 'x', sizeof next);
    if (!dibs__table_instant(old, INT64_C(1763749000123), steps[i], next, sizeof next)) continue;
    CHECK(memchr(next, '\0', sizeof next) && strlen(next) >= 26);
    /* In one time zone, texts sort in the order of time. */
    CHECK(strncmp(next, "2025-11-2", 9) >= 0);
    CHECK(dibs__table_instant(next, 0, 1, later, sizeof later) || strncmp(next, "9999", 4) == 0);
    if (dibs__table_instant(next, 0, 1, later, sizeof later)) CHECK(strncmp(next, later, 26) < 0);
  }
  return 0;
}

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_BASE_HIST_H
#define DIBS_BASE_HIST_H
/*
 * A histogram of durations in nanoseconds: exact below 32 ns, then 32 steps to each power of two, so that a percentile
 * is at most 3.2% too high and never too low.  9 KiB, no allocation, not thread-safe: keep one a thread and merge.
 */
#include <stddef.h>
#include <stdint.h>

enum {
  DIBS__HIST_STEPS = 32,  /* a power of two */
  DIBS__HIST_OCTAVES = 36 /* up to 2^40 ns, 18 minutes; what is longer counts there, and in `max` as it is */
};

struct dibs__hist {
  uint64_t count, sum, min, max; /* min and max are exact; 0 without values */
  uint64_t steps[DIBS__HIST_STEPS * DIBS__HIST_OCTAVES];
};

void dibs__hist_clear(struct dibs__hist *hist);
void dibs__hist_add(struct dibs__hist *hist, int64_t ns); /* a negative one counts as 0 */
void dibs__hist_merge(struct dibs__hist *into, const struct dibs__hist *from);
/* The value that `percent` of all values (0 to 100, 99.9 too) do not exceed; 0 without values. */
uint64_t dibs__hist_percentile(const struct dibs__hist *hist, double percent);
/* How many are below 2^power ns; exact for power 0 and from 5 on. */
uint64_t dibs__hist_below(const struct dibs__hist *hist, unsigned power);

#endif

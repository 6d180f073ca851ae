/* SPDX-License-Identifier: MIT */
#include "base/hist.h"

#include <assert.h>
#include <string.h>

enum { STEP_BITS = 5, COUNT = DIBS__HIST_STEPS * DIBS__HIST_OCTAVES };
_Static_assert(1 << STEP_BITS == DIBS__HIST_STEPS, "the bits below the highest one select the step");

/* Octave 0 is 0..31, one value for each step; octave n is 2^(n+4)..2^(n+5), 2^(n-1) values for each step. */
static size_t step_of(uint64_t value) {
  if (value < DIBS__HIST_STEPS) return (size_t)value;
  unsigned shift = 63u - (unsigned)__builtin_clzll(value) - STEP_BITS;
  size_t step = (size_t)(shift + 1) * DIBS__HIST_STEPS + (size_t)((value >> shift) & (DIBS__HIST_STEPS - 1));
  return step < COUNT ? step : COUNT - 1;
}

/* The largest value that counts in this step. */
static uint64_t top_of(size_t step) {
  if (step < DIBS__HIST_STEPS) return step;
  unsigned shift = (unsigned)(step / DIBS__HIST_STEPS) - 1;
  return ((uint64_t)(DIBS__HIST_STEPS + step % DIBS__HIST_STEPS + 1) << shift) - 1;
}

void dibs__hist_clear(struct dibs__hist *hist) {
  memset(hist, 0, sizeof *hist);
}

void dibs__hist_add(struct dibs__hist *hist, int64_t ns) {
  uint64_t value = ns < 0 ? 0 : (uint64_t)ns;
  if (hist->count == 0 || value < hist->min) hist->min = value;
  if (value > hist->max) hist->max = value;
  hist->count++;
  hist->sum += value;
  hist->steps[step_of(value)]++;
}

void dibs__hist_merge(struct dibs__hist *into, const struct dibs__hist *from) {
  if (from->count == 0) return;
  if (into->count == 0 || from->min < into->min) into->min = from->min;
  if (from->max > into->max) into->max = from->max;
  into->count += from->count;
  into->sum += from->sum;
  for (size_t i = 0; i < COUNT; i++) into->steps[i] += from->steps[i];
}

uint64_t dibs__hist_percentile(const struct dibs__hist *hist, double percent) {
  assert(percent >= 0 && percent <= 100);
  if (hist->count == 0) return 0;
  /* The least rank that covers the percentage.  The small subtraction makes 99.9% of 1000 be 999 with any rounding. */
  double exact = (double)hist->count * percent / 100.0 - 1e-6;
  uint64_t rank = exact > 0 ? (uint64_t)exact + 1 : 1;
  uint64_t seen = 0;
  for (size_t i = 0; i < COUNT - 1; i++) {
    seen += hist->steps[i];
    if (seen < rank) continue;
    uint64_t top = top_of(i);
    return top < hist->max ? top : hist->max;
  }
  return hist->max;
}

uint64_t dibs__hist_below(const struct dibs__hist *hist, unsigned power) {
  assert(power < 64);
  uint64_t sum = 0;
  for (size_t i = 0; i < COUNT - 1 && top_of(i) < UINT64_C(1) << power; i++) sum += hist->steps[i];
  return sum;
}

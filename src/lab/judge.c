/* SPDX-License-Identifier: MIT */
/* What experiments share: a crew on fresh tables, what is right, and plots of what it did. */
#include "lab/lab.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

void dibs__lab_tell(struct lab *lab, const char *what, uint32_t users, int64_t ms, int64_t of_ms, uint64_t done,
                    double rate) {
  if (!lab->progress) return;
  struct lab_progress progress = {.experiment = lab->sheet.experiment,
                                  .what = what,
                                  .users = users,
                                  .step = lab->step,
                                  .steps = lab->steps,
                                  .ms = ms,
                                  .of_ms = of_ms,
                                  .done = done,
                                  .rate = rate};
  lab->progress(&progress, lab->user);
}

bool dibs__lab_try(struct lab *lab, struct lab_crew *crew, int64_t seats, struct lab_audit *audit) {
  if (!dibs__lab_tables_make(lab, crew->rows, seats)) return false;
  if (!dibs__lab_crew_run(lab, crew)) return false;
  return dibs__lab_audit(lab, crew->rows, seats, audit);
}

/* A claim that its user was never told of may be there or not. */
static bool right(const struct lab_crew *crew, const struct lab_audit *audit) {
  int64_t told = (int64_t)crew->done, untold = (int64_t)crew->given_up, there = audit->claims;
  if (there < 0) there = audit->counted;
  return audit->over == 0 && audit->off == 0 && there >= told && there <= told + untold;
}

static struct lab_verdict fails(struct lab *lab, const char *text) {
  lab->sheet.broken = true;
  return (struct lab_verdict){LAB_BAD, text};
}

struct lab_verdict dibs__lab_judge(struct lab *lab, const struct lab_crew *crew, const struct lab_audit *audit) {
  bool fine = right(crew, audit);
  if (crew->unsupported && !crew->done) return (struct lab_verdict){LAB_PLAIN, "not supported"};
  if (fine && !crew->done && !crew->full) return fails(lab, "nothing was done");
  if (crew->way->promised) return fine ? (struct lab_verdict){LAB_GOOD, "correct"} : fails(lab, "BROKEN");
  if (fine) return (struct lab_verdict){LAB_PLAIN, "not seen to break"};
  return lab->strict ? fails(lab, "BROKEN") : (struct lab_verdict){LAB_EXPECTED, "broken, as expected"};
}

/* ---- Hills ---- */

enum { PER_DECADE = 12 };

/* The largest value of the step, in ns; as in hist.c. */
static double top_of(size_t step) {
  if (step < DIBS__HIST_STEPS) return (double)step + 1;
  unsigned shift = (unsigned)(step / DIBS__HIST_STEPS) - 1;
  return ldexp((double)(DIBS__HIST_STEPS + step % DIBS__HIST_STEPS + 1), (int)shift);
}

void dibs__lab_hill(struct lab *lab, struct lab_plot *plot, const char *name, enum lab_mood mood,
                    const struct dibs__hist *hist) {
  if (!hist->count) return;
  enum { BINS = PER_DECADE * 10 }; /* 100 ns to 1000 s */
  double bin[BINS + 1] = {0};
  int first = BINS, last = 0;
  for (size_t i = 0; i < DIBS__HIST_STEPS * DIBS__HIST_OCTAVES; i++) {
    if (!hist->steps[i]) continue;
    int at = (int)floor((log10(top_of(i)) - 2) * PER_DECADE);
    if (at < 0) at = 0;
    if (at >= BINS) at = BINS - 1;
    bin[at] += (double)hist->steps[i];
    if (at < first) first = at;
    if (at > last) last = at;
  }
  size_t nth = plot ? plot->count : 0;
  struct lab_series *series = dibs__lab_series(&lab->sheet, plot, name, mood);
  if (!series) return;
  plot->mark[nth][0] = (double)dibs__hist_percentile(hist, 50) / 1e6;
  plot->mark[nth][1] = (double)dibs__hist_percentile(hist, 99) / 1e6;
  for (int i = first - 1; i <= last + 1; i++) {
    double share = i < 0 || i > BINS ? 0 : bin[i] / (double)hist->count;
    double at = pow(10, 2 + (i + 0.5) / PER_DECADE) / 1e6;
    dibs__lab_point(&lab->sheet, series, at, share);
  }
}

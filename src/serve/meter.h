/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SERVE_METER_H
#define DIBS_SERVE_METER_H
/*
 * Metrics that are collected for one answer, and then written as Prometheus's text or as JSON.
 *
 * A family has one name, "lock.acquired", which is dibs_lock_acquired_total in the text, and a sample for each set of
 * labels.  No label has the name of a lease, a record or a stock: their number has no bound.
 */
#include "base/hist.h"
#include "base/json.h"
#include "dibs/admin.h"

#include <stdbool.h>

enum { METER_LABELS = 3 };
/* The value of a label for all that has no sample of its own, because the number of samples has a bound. */
#define METER_OTHERS "(others)"

struct label {
  const char *name, *value; /* name NULL: the end */
};

struct meter;
struct meter *dibs__meter_new(void); /* NULL: no memory */
void dibs__meter_free(struct meter *meter);

/* `kind`: DIBS_COUNTER or DIBS_GAUGE.  `family` and `help` stay as they are; labels are copied (NULL: none). */
void dibs__meter_add(struct meter *meter, const char *family, uint32_t kind, const char *help,
                     const struct label labels[], double value);
/* A family of DIBS_LATENCY. */
void dibs__meter_add_latency(struct meter *meter, const char *family, const char *help, const struct label labels[],
                             const dibs_latency *latency);
/* The same from a histogram of durations. */
void dibs__meter_add_hist(struct meter *meter, const char *family, const char *help, const struct label labels[],
                          const struct dibs__hist *hist);

/* A family of DIBS_SIZES. */
void dibs__meter_add_sizes(struct meter *meter, const char *family, const char *help, const struct label labels[],
                           const dibs_sizes *sizes);

void dibs__meter_write_text(const struct meter *meter, struct dibs__json *to);
/* All families, or the one with this name.  false: there is none; nothing was written. */
bool dibs__meter_write_json(const struct meter *meter, struct dibs__json *to, const char *family);
/* Was there memory for all that was added? */
bool dibs__meter_is_whole(const struct meter *meter);

#endif

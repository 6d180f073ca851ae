/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TIER_METRICS_H
#define DIBS_TIER_METRICS_H
/* What a tiered store counts of its tiers in this process.  Atomic counters; the order is that of a report's counts. */
#include "base/port.h"

enum dibs__tiers_metric {                       /* appended only */
                          DIBS__M_ACQUIRED,     /* leases granted, confirmed offers included */
                          DIBS__M_BUSY,         /* HELD, QUEUED */
                          DIBS__M_LOST,         /* LOST, MOVED of a renewal or release */
                          DIBS__M_FALLBACK,     /* granted by another tier than the first */
                          DIBS__M_FAILED,       /* operations that a tier did not answer */
                          DIBS__M_STALE,        /* stale writes refused by records, stock, once */
                          DIBS__M_MOVES,        /* mandates that this process moved to another tier */
                          DIBS__M_EPOCHS,       /* epochs that it made because a tier's memory was lost or used up */
                          DIBS__M_TURNS,        /* times a breaker opened */
                          DIBS__M_LEAST_STRICT, /* granted by the memory of the process alone */
                          DIBS__M_COUNT
};

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_FLEET_FLEET_H
#define DIBS_FLEET_FLEET_H
/* What the daemon needs of metrics beyond dibs/admin.h. */
#include "base/hist.h"
#include "dibs/admin.h"

/* The members of a metric from a histogram of durations. */
void dibs__latency_of(const struct dibs__hist *hist, dibs_latency *latency);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TIER_TIERS_H
#define DIBS_TIER_TIERS_H
/*
 * A store of several tiers: a driver with inner stores.  The first member is preferred, the last one is the anchor: it
 * remembers which tier serves which bucket, under which epoch (state.h), and is a tier itself.
 *
 *     tiers.c    the table: open, connect, list; a tier's store and sessions, behind its breaker
 *     run.c      a batch: each operation goes to the tier that has its bucket
 *     anchor.c   the state, read and written; reports; the thread that reports each second, votes and probes
 *     heal.c     repairs of tiers that do not have the record's mandates; moves; installing
 *     state.c    the record and the decisions on it
 *     events.c   the events of all tiers, in one queue; requests of people: view, flags, moves
 *     flag.c     reports as text; the names of flags
 *     breaker.c  whether this process calls a tier
 *
 * Operations on records, stocks and once keys go to the anchor.
 *
 * Parameters, in the last member's URI:
 *     tiers.strictness=fenced|strict|least-strict   the anchor's setting at its first use; must agree later
 *     tiers.timeout=MS                              the time limit of a batch at a tier before the last (500)
 *     tiers.window=N tiers.min_calls=N tiers.failure=PERCENT tiers.slow=PERCENT tiers.slow_ms=MS tiers.wait=MS
 *     tiers.probes=N                                the breaker (breaker.h)
 *     tiers.dwell=MS                                the time before buckets return to a tier that was left (10000)
 */
#include "base/hist.h"
#include "tier/breaker.h"
#include "tier/state.h"

extern const struct dibs__driver dibs__tiers_driver;

enum { DIBS__TIER_LOCAL = DIBS__URI_TIERS }; /* the memory of the process, of least-strict */

/* Each client's report, and what this client knows. */
struct dibs__tiers_client {
  int64_t age_ms;
  bool us;
  struct dibs__tiers_report report;
};

struct dibs__tiers_view {
  struct dibs__tiers_state state;
  struct dibs__tiers_tally tally;
  int64_t confirmed_ms; /* since the anchor last confirmed the copy; -1: never */
  int64_t now_ms;       /* the anchor's clock, about now */
  bool local;           /* least-strict: this process works with its own memory */
  struct {
    char uri[256]; /* without password */
    enum dibs__breaker_state breaker;
    uint32_t calls, failed_percent, slow_percent; /* of its window */
    bool reached;                                 /* its latest call was answered */
    char trouble[200];                            /* of the latest call that failed; "" */
    uint64_t operations, failures;
    uint64_t p50_ns, p99_ns, max_ns; /* of batches */
    uint32_t buckets;                /* that it serves */
  } tiers[DIBS__URI_TIERS];
  uint64_t counts[DIBS__M_COUNT]; /* of this process */
  size_t client_count;
  struct dibs__tiers_client *clients; /* in the same memory */
};

#endif

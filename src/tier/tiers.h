/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TIER_TIERS_H
#define DIBS_TIER_TIERS_H
/*
 * A store of several tiers: a driver with inner stores.  The first member is preferred, the last one is the anchor: it
 * remembers which tier serves which bucket, under which epoch (state.h), and is a tier itself.
 *
 *   tiers.c          the table: open, connect, list
 *   tiers_reach.c    a tier's store and sessions, behind its breaker
 *   tiers_run.c      a batch: each operation to the tier that has its bucket
 *   tiers_anchor.c   the state, read and written; reports
 *   tiers_heal.c     a tier that has not what stands; moves; installing
 *   tiers_control.c  the thread that reports each second, votes, probes, follows
 *   tiers_events.c   what happens in all tiers, in one queue
 *   tiers_hand.c     what people ask: looking, flags, moves by hand
 *   tiers_local.c    least-strict: the memory of the process
 *
 * Operations on records, stocks and once keys go to the anchor.
 *
 * Parameters, in the last member's URI:
 *   tiers.strictness=fenced|strict|least-strict   what the anchor is begun with; must agree later
 *   tiers.timeout=MS                              how long a tier before the last may take for a batch (500)
 *   tiers.window=N tiers.min_calls=N tiers.failure=PERCENT tiers.slow=PERCENT tiers.slow_ms=MS tiers.wait=MS
 *   tiers.probes=N                                the breaker (breaker.h)
 *   tiers.dwell=MS                                before a tier that was left is returned to (10000)
 */
#include "base/hist.h"
#include "tier/breaker.h"
#include "tier/metrics.h"
#include "tier/state.h"

extern const struct dibs__driver dibs__tiers_driver;

enum { DIBS__TIER_LOCAL = DIBS__URI_TIERS }; /* the memory of the process, of least-strict */

enum dibs__tiers_verb {
  DIBS__TIERS_VIEW,   /* OK: `got` */
  DIBS__TIERS_FLAG,   /* sets the flag `name` to `value` percent.  OK, INVALID */
  DIBS__TIERS_MOVE,   /* pins all buckets to `tier`; -1: pins none.  OK, INVALID, UNAVAILABLE (it can't be reached) */
  DIBS__TIERS_SWITCH, /* the breaker of `tier`, for everybody: `value` is a dibs__tiers_hand */
  DIBS__TIERS_STRICTNESS, /* `value` is a dibs__tiers_strictness */
  DIBS__TIERS_BUMP,       /* the next epoch of all buckets, above `above`; 0: just the next */
  DIBS__TIERS_DISBAND     /* each member is its own again; the anchor forgets its tiers.  For when nobody uses them */
};

/* Each client's report, and what this one knows. */
struct dibs__tiers_client {
  int64_t age_ms;
  bool us;
  struct dibs__tiers_report report;
};

struct dibs__tiers_view {
  struct dibs__tiers_state state;
  struct dibs__tiers_tally tally;
  int64_t confirmed_ms; /* since the anchor last confirmed it; -1: never */
  int64_t now_ms;       /* the anchor's clock, about now */
  bool local;           /* least-strict: this process goes on alone */
  struct {
    char uri[256]; /* without password */
    enum dibs__breaker_state breaker;
    uint32_t calls, failed_percent, slow_percent; /* of its window */
    bool reached;                                 /* by its latest call */
    char trouble[200];                            /* of the latest call that was not well; "" */
    uint64_t operations, failures;
    uint64_t p50_ns, p99_ns, max_ns; /* of batches */
    uint32_t buckets;                /* that it serves */
  } tiers[DIBS__URI_TIERS];
  uint64_t counts[DIBS__M_COUNT]; /* of this process */
  size_t client_count;
  struct dibs__tiers_client *clients; /* in the same memory */
};

struct dibs__tiers_op {
  struct dibs__op op; /* bucket and mandate do not matter */
  const char *name;
  int32_t tier;
  uint32_t value;
  uint32_t above;
  struct dibs__tiers_view *got; /* VIEW: malloc'd, one piece */
  char why[256];                /* for people, with what is not OK */
};

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_WRAP_FAULT_H
#define DIBS_DRIVERS_WRAP_FAULT_H
/*
 * A shim that fails calls, the same ones for the same seed and order of calls:
 *
 *   fault.on=run|connect|list|open   which calls are counted and may fail, ',' between; run if not given
 *   fault.rate=N     N of 1000 of them, drawn from fault.seed (1 if not given)
 *   fault.nth=N      the Nth of them (from 1), once
 *   fault.forever=1  and all of them after the first that failed
 *   fault.how=       unavailable     nothing was done, UNAVAILABLE (if not given)
 *                    unknown-before  nothing was done, UNKNOWN
 *                    unknown-after   it was done, the answers are lost: UNKNOWN
 *                    dead            nothing was done, and the session is dead
 *                    dead-after      it was done, the answers are lost, and the session is dead
 *   fault.events=N   N of 1000 events are lost or come twice
 *
 * open, connect and list fail with UNAVAILABLE only.
 */
#include "drivers/wrap/shim.h"

enum dibs__fault_call { DIBS__FAULT_RUN = 1, DIBS__FAULT_CONNECT = 2, DIBS__FAULT_LIST = 4, DIBS__FAULT_OPEN = 8 };

enum dibs__fault_how {
  DIBS__FAULT_UNAVAILABLE,
  DIBS__FAULT_UNKNOWN_BEFORE,
  DIBS__FAULT_UNKNOWN_AFTER,
  DIBS__FAULT_DEAD,
  DIBS__FAULT_DEAD_AFTER
};

struct dibs__fault_plan {
  uint32_t on;  /* bits of dibs__fault_call */
  uint64_t nth; /* from 1; 0: none */
  uint32_t rate;
  uint64_t seed;
  enum dibs__fault_how how;
  bool forever;
};

/* For loops that fail each call in turn.  While armed, this plan and one count hold for every fault store of the
 * process, whatever their URIs say; NULL disarms and resets.  Any thread. */
void dibs__fault_arm(const struct dibs__fault_plan *plan);
/* Since armed: the number of calls counted, and of calls made to fail.  A loop ends when a round had no failure. */
uint64_t dibs__fault_calls(void);
uint64_t dibs__fault_struck(void);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_LEASE_LEASE_H
#define DIBS_LEASE_LEASE_H
/* What other features need of a lease beyond dibs.h: what a guarded write shows of it, and what is counted. */
#include "base/hist.h"
#include "store/store.h"

/* The grant that the handle had, alive or not.  *lost: it is known to be over.  INVALID: it never had a fence. */
dibs_status dibs__lease_grant(dibs_lease *lease, dibs__id *id, dibs__fence *fence, bool *lost, dibs_error *error);

/* Until when a lease is surely ours that lasts for so long from then on; `from` itself if nothing is left. */
dibs__tick dibs__sure_until(dibs__tick from, int64_t lasts_ms);

/* Counted since the store was opened; `waiting` and `held` are those of now. */
struct dibs__lease_counts {
  uint64_t granted, handed_off, busy, timeouts, failed, lost, renewed, stale, held, waiting;
  struct dibs__hist acquiring, releasing; /* how long it took */
};
void dibs__lease_count(dibs_store *store, struct dibs__lease_counts *to);

#endif

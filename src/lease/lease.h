/* SPDX-License-Identifier: MIT */
#ifndef DIBS_LEASE_LEASE_H
#define DIBS_LEASE_LEASE_H
/* What other features need of a lease beyond dibs.h: what a guarded write shows of it, and what is counted. */
#include "base/hist.h"
#include "dibs/admin.h"
#include "store/store.h"

/* The grant that the handle had, alive or not.  *lost: it is known to be over.  INVALID: it never had a fence. */
dibs_status dibs__lease_grant(dibs_lease *lease, dibs__id *id, dibs__fence *fence, bool *lost, dibs_error *error);

/* Others may continue with the lease's id elsewhere, through another daemon, and nobody here can know: if its wait is
 * cancelled, its position in the queue goes, but a lease that the id has stays (R84). */
void dibs__lease_share_id(dibs_lease *lease);
/* Has a handle that was freed still to end the lease with this id?  Then no other handle can be made for it yet. */
bool dibs__lease_ends(dibs_store *store, const char *name, const char *id);

/* Keeps the memory of a lease for dibs_lease_left_ms, also after its last handle is freed, and after dibs_close.
 * dibs__lease_drop takes the store's lock. */
void dibs__lease_hold(dibs_lease *lease);
void dibs__lease_drop(dibs_lease *lease);

/* Until when a lease is surely ours that lasts for so long from then on; `from` itself if nothing is left. */
dibs__tick dibs__sure_until(dibs__tick from, int64_t lasts_ms);

/* The leases that one tier granted. */
struct dibs__lease_grants {
  const char *tier; /* its URI; NULL: the store has one tier, or the tier is not known */
  uint64_t granted;
};
enum { DIBS__LEASE_TIERS = 6 }; /* all tiers of a store, the memory of the process, and what is not known */

/* Counted since the store was opened; `waiting` and `held` are those of now. */
struct dibs__lease_counts {
  uint64_t granted, handed_off, busy, timeouts, failed, lost, renewed, stale, held, waiting;
  uint64_t lost_in_time;                  /* of `lost`: noticed before the store could grant the name again */
  struct dibs__hist acquiring, releasing; /* how long it took */
  struct dibs__lease_grants by_tier[DIBS__LEASE_TIERS];
};
void dibs__lease_count(dibs_store *store, struct dibs__lease_counts *to);

/* As dibs_list, but only names after this one in byte order (NULL or "": all), for a caller that stops after `most`
 * names (0: after the last one). */
dibs_status dibs__list_after(dibs_store *store, const char *prefix, const char *after, uint32_t most, dibs_list_fn fn,
                             void *user, dibs_error *error);

#endif

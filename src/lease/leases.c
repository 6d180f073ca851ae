/* SPDX-License-Identifier: MIT */
/* What the leases of a store begin and end with, what is counted of them, and what other features see of one. */
#include "lease/lease_impl.h"

#include <stdlib.h>
#include <string.h>

dibs_status dibs__store_leases(dibs_store *store, const char *name, dibs_error *error) {
  if (!store->outer) return DIBS_OK;
  return dibs__fail(error, DIBS_INVALID, "\"%s\": a handle inside a transaction has no leases; use the store itself",
                    name);
}

dibs_status dibs__lease_grant(dibs_lease *lease, dibs__id *id, dibs__fence *fence, bool *lost, dibs_error *error) {
  uint64_t number = dibs_lease_fence(lease).value;
  if (number == 0)
    return dibs__fail(error, DIBS_INVALID, "\"%s\": only an exclusive lease has a fence, once it is held",
                      dibs_lease_name(lease));
  if (lease->store->generation != dibs__process_generation()) /* its lock may be one of a thread that is not here */
    return dibs__fail(error, DIBS_INVALID,
                      "\"%s\": the lease is another process's; after fork() the child must acquire its own",
                      dibs_lease_name(lease));
  dibs__mutex_lock(&lease->store->lock); /* of another handle on the same store, it may be */
  *id = lease->id;
  *lost = lease->status == DIBS_LOST;
  dibs__mutex_unlock(&lease->store->lock);
  *fence = (dibs__fence){number};
  return DIBS_OK;
}

void dibs__lease_count(dibs_store *store, struct dibs__lease_counts *to) {
  dibs__mutex_lock(&store->lock);
  const struct dibs__leases *leases = store->leases;
  *to = (struct dibs__lease_counts){.granted = leases->granted,
                                    .handed_off = leases->handed_off,
                                    .busy = leases->busy,
                                    .timeouts = leases->timeouts,
                                    .failed = leases->failed,
                                    .lost = leases->lost,
                                    .renewed = leases->renewed,
                                    .stale = store->stale,
                                    .held = leases->held,
                                    .waiting = leases->waiting,
                                    .lost_in_time = leases->lost_in_time,
                                    .acquiring = leases->acquiring,
                                    .releasing = leases->releasing};
  memcpy(to->by_tier, leases->by_tier, sizeof to->by_tier);
  dibs__mutex_unlock(&store->lock);
}

/* ---- Opening and closing ---- */

static bool open_leases(dibs_store *store) {
  struct dibs__leases *leases = calloc(1, sizeof *leases);
  if (!leases) return false;
  store->leases = leases;
  /* Both, so that both can be freed. */
  bool maps = dibs__map_init(&leases->grants);
  return dibs__map_init(&leases->cohorts) && maps;
}

/* Ends every wait, releases what is held; the handle waits for the requests in flight. */
static void close_leases(dibs_store *store) {
  struct deferred deferred = {0};
  dibs__mutex_lock(&store->lock);
  for (dibs_lease *lease = store->leases->all, *next; lease; lease = next) {
    next = lease->all_next; /* stays: dropping others' references never frees the lease after this one */
    dibs__lease_hold(lease);
    if (next) dibs__lease_hold(next);
    if (atomic_load(&lease->phase) < LEASE_HELD) dibs__leave_now_locked(lease, DIBS_CANCELLED, &deferred);
    if (next) dibs__lease_drop_locked(next);
    dibs__lease_drop_locked(lease);
  }
  for (dibs_lease *lease = store->leases->all; lease; lease = lease->all_next)
    if (atomic_load(&lease->phase) == LEASE_HELD && lease->grant) dibs__release_locked(lease, &deferred);
  store->closing = true;
  dibs__lines_publish_locked(store, dibs__tick_now(), &deferred); /* there are none any more */
  dibs__mutex_unlock(&store->lock);
  dibs__deferred_start(store, &deferred);
  dibs__jobs_cancel(store); /* before the handle waits for operations in flight: the helper may leave one */
}

/* Grants without a request to the store (adopted, lost) end, so that nothing points at the core. */
static void end_grants(dibs_store *store) {
  struct deferred deferred = {0}; /* stays empty: no wait is left that could follow */
  dibs__mutex_lock(&store->lock);
  for (dibs_lease *lease = store->leases->all, *next; lease; lease = next) {
    next = lease->all_next;
    if (next) dibs__lease_hold(next);
    if (lease->grant) dibs__grant_end_locked(lease->grant, &deferred);
    if (next) dibs__lease_drop_locked(next);
  }
  dibs__mutex_unlock(&store->lock);
}

static void finish_leases(dibs_store *store) {
  end_grants(store);
  dibs__calls_stop(store);
}

static void free_leases(dibs_store *store) {
  struct dibs__leases *leases = store->leases;
  if (!leases) return;
  while (leases->spares) {
    struct grant *next = leases->spares->spare_next;
    free(leases->spares);
    leases->spares = next;
  }
  dibs__heap_free(&leases->waits);
  dibs__heap_free(&leases->rechecks);
  dibs__heap_free(&leases->renewals);
  dibs__heap_free(&leases->losses);
  dibs__map_free(&leases->grants);
  dibs__map_free(&leases->cohorts);
  free(leases->lines);
  free(leases);
}

const struct dibs__store_part dibs__lease_part = {.hooks = {.event = dibs__lease_event,
                                                            .timers = dibs__lease_timers,
                                                            .handed = dibs__calls_handed,
                                                            .untidy = dibs__lease_untidy},
                                                  .help_locked = dibs__watch_help_locked,
                                                  .open = open_leases,
                                                  .close = close_leases,
                                                  .stop = dibs__watch_stop,
                                                  .finish = finish_leases,
                                                  .free = free_leases};

/* SPDX-License-Identifier: MIT */
/* Asking for a lease and waiting for it: blocking, or to complete later. */
#include "lease/room.h"

static bool forms_cohort(const dibs_lease *lease) {
  return lease->store->cohorts_allowed && lease->mode == DIBS_EXCLUSIVE && !lease->own_id &&
         !(lease->flags & DIBS_NO_RENEW);
}

static void begin_wait_locked(dibs_lease *lease) {
  lease->store->waiting++;
  lease->counted = true;
  if (!lease->blocking && lease->wait.at.ns != INT64_MAX)
    dibs__heap_set(&lease->store->waits, &lease->wait, lease->wait.at);
}

/* Joins a line, or prepares the question.  A caller that does not wait is told at once that this process holds it. */
static void begin_locked(dibs_lease *lease, struct after *after) {
  dibs_store *store = lease->store;
  bool local = false;
  atomic_store(&lease->phase, LEASE_ASKING);
  begin_wait_locked(lease);
  if (forms_cohort(lease)) {
    if (lease->tries && dibs__cohort_has_locked(store, lease->name)) {
      dibs__wait_over_locked(lease, DIBS_HELD, after);
      return;
    }
    if (!dibs__cohort_join_locked(lease, &local, after)) {
      dibs__wait_over_locked(lease, DIBS_NO_MEMORY, after);
      return;
    }
  } else {
    dibs__grant_take_locked(lease);
  }
  if (local)
    atomic_store(&lease->phase, LEASE_LOCAL);
  else
    dibs__after_mine(after, dibs__ask_acquire_locked(lease->grant));
}

static bool wait_goes_on(const dibs_lease *lease) {
  return atomic_load(&lease->phase) < LEASE_HELD;
}

static void wait_here(dibs_lease *lease) {
  dibs_store *store = lease->store;
  while (wait_goes_on(lease)) {
    atomic_fetch_add(&lease->sleepers, 1);
    uint32_t seen = atomic_load(&lease->word);
    if (wait_goes_on(lease)) dibs__core_wait(store->core, &lease->word, seen, lease->wait.at);
    atomic_fetch_sub(&lease->sleepers, 1);
    if (!wait_goes_on(lease) || dibs__tick_before(dibs__tick_now(), lease->wait.at)) continue;
    struct after after = {0};
    dibs__mutex_lock(&store->lock);
    if (wait_goes_on(lease)) dibs__leave_locked(lease, DIBS_TIMEOUT, &after);
    dibs__mutex_unlock(&store->lock);
    dibs__after_start(store, &after);
  }
}

/* When a blocking caller stops to wait for a store that does not answer. */
static dibs__tick answer_by(const dibs_lease *lease) {
  dibs__tick io = dibs__tick_add_ms(dibs__tick_now(), DIBS__IO_MS + LEAVE_MS);
  if (lease->tries || lease->wait.at.ns == INT64_MAX) return io;
  return dibs__tick_min(io, dibs__tick_add_ms(lease->wait.at, LEAVE_MS));
}

static void leave_unanswered(dibs_lease *lease) {
  struct after after = {0};
  dibs__mutex_lock(&lease->store->lock);
  if (atomic_load(&lease->phase) == LEASE_ASKING) dibs__leave_locked(lease, DIBS_TIMEOUT, &after);
  dibs__mutex_unlock(&lease->store->lock);
  dibs__after_start(lease->store, &after);
}

static dibs_status say_result(dibs_lease *lease, dibs_error *error) {
  if (lease->waited == DIBS_OK) return dibs__fine(error); /* also if it was lost since */
  return dibs__explain(lease->store, lease->waited, "acquiring", lease->name, error);
}

static dibs_status acquire(dibs_store *store, const char *name, const dibs_lease_options *given, dibs_lease **out,
                           dibs_error *error) {
  dibs_lease_options options = dibs__lease_options(given);
  dibs_lease *lease = NULL;
  dibs_status status = dibs__lease_make(store, name, &options, &lease, error);
  if (status != DIBS_OK) return status;
  struct after after = {0};
  lease->blocking = true;
  dibs__mutex_lock(&store->lock);
  begin_locked(lease, &after);
  bool asks = after.mine != NULL;
  dibs__mutex_unlock(&store->lock);
  if (!dibs__after(store, &after, asks ? answer_by(lease) : DIBS__TICK_NEVER)) leave_unanswered(lease);
  wait_here(lease);
  status = say_result(lease, error);
  if (status == DIBS_OK)
    *out = lease;
  else
    dibs_lease_free(lease);
  return status;
}

dibs_status dibs_acquire(dibs_store *store, const char *name, const dibs_lease_options *given, dibs_lease **out,
                         dibs_error *error) {
  if (!out) return dibs__fail(error, DIBS_INVALID, "dibs_acquire: no place for the lease was given");
  *out = NULL;
  dibs_status status = dibs__enter(store, "dibs_acquire", error);
  if (status != DIBS_OK) return status;
  status = acquire(store, name, given, out, error);
  dibs__exit(store);
  return status;
}

static dibs_status acquire_start(dibs_store *store, const char *name, const dibs_lease_options *given,
                                 dibs_lease_fn done, void *user, dibs_lease **out, dibs_error *error) {
  dibs_lease_options options = dibs__lease_options(given);
  dibs_lease *lease = NULL;
  dibs_status status = dibs__lease_make(store, name, &options, &lease, error);
  if (status != DIBS_OK) return status;
  lease->done = done;
  lease->done_user = user;
  *out = lease;
  dibs__mutex_lock(&store->lock);
  bool ready = dibs__calls_ready_locked(store);
  dibs__mutex_unlock(&store->lock);
  if (!ready || !dibs__core_serve(store->core)) {
    *out = NULL;
    dibs_lease_free(lease);
    return dibs__fail(error, DIBS_NO_MEMORY, "no thread could be started for the store");
  }
  struct after after = {0};
  dibs__mutex_lock(&store->lock);
  begin_locked(lease, &after);
  dibs__tick due = lease->wait.place != 0 ? lease->wait.at : DIBS__TICK_NEVER;
  dibs__mutex_unlock(&store->lock);
  dibs__after_start(store, &after);
  /* It may have been called back and freed by now. */
  if (due.ns != INT64_MAX) dibs__core_rouse(store->core, due);
  return dibs__fine(error);
}

dibs_status dibs_acquire_start(dibs_store *store, const char *name, const dibs_lease_options *given, dibs_lease_fn done,
                               void *user, dibs_lease **out, dibs_error *error) {
  if (out) *out = NULL;
  if (!out || !done) return dibs__fail(error, DIBS_INVALID, "dibs_acquire_start: done and lease must be given");
  dibs_status status = dibs__enter(store, "dibs_acquire_start", error);
  if (status != DIBS_OK) return status;
  status = acquire_start(store, name, given, done, user, out, error);
  dibs__exit(store);
  return status;
}

void dibs_acquire_cancel(dibs_lease *lease) {
  if (dibs__lease_enter(lease, "dibs_acquire_cancel", NULL) != DIBS_OK) return;
  dibs_store *store = lease->store;
  struct after after = {0};
  dibs__mutex_lock(&store->lock);
  dibs__leave_locked(lease, DIBS_CANCELLED, &after);
  dibs__mutex_unlock(&store->lock);
  dibs__after_start(store, &after);
  dibs__exit(store);
}

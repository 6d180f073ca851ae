/* SPDX-License-Identifier: MIT */
/* What is done with a lease that is held: renewing, releasing, giving it to others, taking it over. */
#include "base/text.h"
#include "lease/room.h"

#include <string.h>

/* ---- Renewing ---- */

static dibs_status renew_result(dibs_lease *lease, dibs_error *error) {
  dibs__mutex_lock(&lease->store->lock);
  dibs_status status = lease->renewed;
  dibs__mutex_unlock(&lease->store->lock);
  if (status == DIBS_OK) return dibs__fine(error);
  return dibs__explain(lease->store, status, "renewing", lease->name, error);
}

static dibs_status renew(dibs_lease *lease, int64_t ttl_ms, dibs_error *error) {
  dibs_store *store = lease->store;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), DIBS__IO_MS + LEAVE_MS);
  for (;;) {
    struct after after = {0};
    dibs__mutex_lock(&store->lock);
    uint32_t seen = atomic_load(&lease->word), phase = atomic_load(&lease->phase);
    bool held = phase == LEASE_HELD, free_to_ask = held && lease->grant->asked == ASK_NOTHING;
    bool lost = phase == LEASE_OVER && lease->status == DIBS_LOST;
    if (free_to_ask) {
      if (ttl_ms != 0) lease->ttl_ms = ttl_ms;
      lease->renewed = DIBS_UNKNOWN;
      dibs__after_mine(&after, dibs__ask_renew_locked(lease->grant, lease->ttl_ms, 0));
    }
    dibs__mutex_unlock(&store->lock);
    if (lost) return dibs__explain(store, DIBS_LOST, "renewing", lease->name, error);
    if (!held) return dibs__fail(error, DIBS_INVALID, "\"%s\" is not held by this handle", lease->name);
    if (free_to_ask) {
      dibs__after(store, &after, by);
      return renew_result(lease, error);
    }
    /* The watchdog's question travels: ours goes after it. */
    dibs__lease_sleep(lease, seen, by);
    if (!dibs__tick_before(dibs__tick_now(), by))
      return dibs__explain(store, DIBS_UNKNOWN, "renewing", lease->name, error);
  }
}

dibs_status dibs_renew(dibs_lease *lease, int64_t ttl_ms, dibs_error *error) {
  dibs_status status = dibs__lease_enter(lease, "dibs_renew", error);
  if (status != DIBS_OK) return status;
  dibs_store *store = lease->store;
  if (ttl_ms != 0 && (ttl_ms < DIBS_TTL_MIN_MS || ttl_ms > DIBS_TTL_MAX_MS))
    status = dibs__fail(error, DIBS_INVALID, "\"%s\": the ttl must be between 100 ms and 24 h", lease->name);
  else
    status = renew(lease, ttl_ms, error);
  dibs__exit(store);
  return status;
}

/* ---- Releasing ---- */

/* false: there is nothing to be released, and what to answer. */
static bool may_release_locked(dibs_lease *lease, dibs_status *status) {
  uint32_t phase = atomic_load(&lease->phase);
  *status = DIBS_INVALID;
  if (phase == LEASE_HELD) return true;
  if (phase == LEASE_OVER && lease->status == DIBS_LOST) {
    *status = DIBS_LOST;
    return lease->grant != NULL;
  }
  if (phase == LEASE_OVER && lease->status == DIBS_OK) *status = DIBS_LOST; /* released before, or detached */
  return false;
}

static dibs_status not_released(dibs_lease *lease, dibs_status status, dibs_error *error) {
  if (status == DIBS_LOST) return dibs__explain(lease->store, DIBS_LOST, "releasing", lease->name, error);
  return dibs__fail(error, DIBS_INVALID, "\"%s\" is not held by this handle", lease->name);
}

static dibs_status release(dibs_lease *lease, dibs_error *error) {
  dibs_store *store = lease->store;
  struct after after = {0};
  dibs_status status;
  dibs__mutex_lock(&store->lock);
  bool may = may_release_locked(lease, &status);
  if (may) dibs__release_locked(lease, &after);
  bool over = atomic_load(&lease->phase) == LEASE_OVER;
  status = may && over ? lease->released : status;
  dibs__mutex_unlock(&store->lock);
  if (!may) return not_released(lease, status, error);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), DIBS__IO_MS + LEAVE_MS);
  dibs__after(store, &after, by);
  for (uint32_t seen; !over;) {
    seen = atomic_load(&lease->word);
    over = atomic_load(&lease->phase) == LEASE_OVER;
    if (over) status = lease->released; /* not changed any more */
    if (!over && !dibs__lease_sleep(lease, seen, by)) break;
  }
  if (!over) status = DIBS_UNKNOWN;
  if (status == DIBS_OK) return dibs__fine(error);
  return dibs__explain(store, status, "releasing", lease->name, error);
}

dibs_status dibs_release(dibs_lease *lease, dibs_error *error) {
  dibs_status status = dibs__lease_enter(lease, "dibs_release", error);
  if (status != DIBS_OK) return status;
  dibs_store *store = lease->store;
  status = release(lease, error);
  dibs__exit(store);
  return status;
}

static dibs_status release_start(dibs_lease *lease, dibs_lease_fn done, void *user, dibs_error *error) {
  dibs_store *store = lease->store;
  dibs_status status;
  if (done && !dibs__core_serve(store->core))
    return dibs__fail(error, DIBS_NO_MEMORY, "no thread could be started for the store");
  struct after after = {0};
  dibs__mutex_lock(&store->lock);
  if (done && !dibs__calls_ready_locked(store)) {
    dibs__mutex_unlock(&store->lock);
    return dibs__fail(error, DIBS_NO_MEMORY, "no thread could be started for the store");
  }
  bool may = may_release_locked(lease, &status);
  if (may) {
    lease->release_done = done;
    lease->release_user = user;
    dibs__release_locked(lease, &after);
  }
  dibs__mutex_unlock(&store->lock);
  dibs__after_start(store, &after);
  return may ? dibs__fine(error) : not_released(lease, status, error);
}

dibs_status dibs_release_start(dibs_lease *lease, dibs_lease_fn done, void *user, dibs_error *error) {
  dibs_status status = dibs__lease_enter(lease, "dibs_release_start", error);
  if (status != DIBS_OK) return status;
  dibs_store *store = lease->store;
  status = release_start(lease, done, user, error);
  dibs__exit(store);
  return status;
}

/* ---- Handles ---- */

dibs_lease *dibs_lease_retain(dibs_lease *lease) {
  if (lease) atomic_fetch_add(&lease->handles, 1);
  return lease;
}

/* The last handle is gone: nobody can release it any more but us. */
static void abandon_locked(dibs_lease *lease, struct after *after) {
  dibs_status status;
  if (atomic_load(&lease->phase) < LEASE_HELD) {
    dibs__leave_locked(lease, DIBS_CANCELLED, after);
  } else if (may_release_locked(lease, &status)) {
    lease->release_done = NULL;
    dibs__release_locked(lease, after);
  }
}

void dibs_lease_free(dibs_lease *lease) {
  if (!lease || atomic_fetch_sub(&lease->handles, 1) != 1) return;
  dibs_store *store = lease->store;
  if (store->generation != dibs__process_generation()) return; /* a child's copy: its memory goes with the child */
  struct after after = {0};
  atomic_fetch_add(&store->refs, 1);
  atomic_fetch_add(&store->callers, 1);
  dibs__mutex_lock(&store->lock);
  if (!store->closing) abandon_locked(lease, &after);
  dibs__lease_drop_locked(lease);
  dibs__mutex_unlock(&store->lock);
  if (after.mine || after.rest || after.wake_count) dibs__after_start(store, &after);
  dibs__exit(store);
  dibs__store_drop(store);
}

static dibs_status detach(dibs_lease *lease, dibs_error *error) {
  dibs_store *store = lease->store;
  struct after after = {0};
  for (bool done = false; !done;) {
    dibs__mutex_lock(&store->lock);
    uint32_t seen = atomic_load(&lease->word);
    struct grant *grant = lease->grant;
    bool held = atomic_load(&lease->phase) == LEASE_HELD;
    done = !held || (grant->asked == ASK_NOTHING && !grant->unconfirmed);
    if (held && !done && grant->asked == ASK_NOTHING)
      dibs__after_mine(&after, dibs__ask_renew_locked(grant, lease->ttl_ms, 0));
    if (held && done) {
      store->held--;
      lease->detached = true;
      atomic_store(&lease->phase, LEASE_OVER);
      atomic_store(&lease->until_ns, 0);
      if (grant->cohort) dibs__cohort_part_locked(grant, &after, false);
      dibs__grant_end_locked(grant);
    }
    dibs__mutex_unlock(&store->lock);
    if (!held) return dibs__fail(error, DIBS_INVALID, "\"%s\" is not held by this handle", lease->name);
    if (!done && !after.mine) dibs__lease_sleep(lease, seen, dibs__tick_add_ms(dibs__tick_now(), 10));
    if (!done) dibs__after(store, &after, dibs__tick_add_ms(dibs__tick_now(), DIBS__IO_MS));
  }
  dibs__after_start(store, &after);
  return dibs__fine(error);
}

dibs_status dibs_lease_detach(dibs_lease *lease, dibs_error *error) {
  dibs_status status = dibs__lease_enter(lease, "dibs_lease_detach", error);
  if (status != DIBS_OK) return status;
  dibs_store *store = lease->store;
  if (dibs__core_caps(store->core) & DIBS__CAP_SESSION)
    status =
        dibs__fail(error, DIBS_UNSUPPORTED,
                   "\"%s\": a session lock lives by this process's connection and can't be left to another; hold it "
                   "as long as it is needed (dibs run), or use lock=rows",
                   lease->name);
  else
    status = detach(lease, error);
  dibs__exit(store);
  return status;
}

static dibs_status adopt(dibs_store *store, const char *name, const char *id, uint64_t fence,
                         const dibs_lease_options *given, dibs_lease **out, dibs_error *error) {
  dibs_lease_options options = dibs__lease_options(given);
  options.id = id;
  dibs_lease *lease = NULL;
  dibs_status status = dibs__lease_make(store, name, &options, &lease, error);
  if (status != DIBS_OK) return status;
  dibs__mutex_lock(&store->lock);
  bool known = dibs__grant_find_locked(store, &lease->id) != NULL;
  if (!known) {
    struct grant *grant = dibs__grant_take_locked(lease);
    grant->adopted = true;
    grant->fence = (dibs__fence){fence};
    atomic_store(&lease->fence, fence);
    lease->status = DIBS_OK;
    atomic_store(&lease->phase, LEASE_HELD);
    store->held++;
  }
  dibs__mutex_unlock(&store->lock);
  if (known) {
    dibs_lease_free(lease);
    return dibs__fail(error, DIBS_INVALID, "\"%s\": this process has a handle on that lease already", name);
  }
  *out = lease;
  return dibs__fine(error);
}

dibs_status dibs_lease_adopt(dibs_store *store, const char *name, const char *id, uint64_t fence,
                             const dibs_lease_options *given, dibs_lease **out, dibs_error *error) {
  if (out) *out = NULL;
  if (!out || !id) return dibs__fail(error, DIBS_INVALID, "dibs_lease_adopt: id and lease must be given");
  dibs_status status = dibs__enter(store, "dibs_lease_adopt", error);
  if (status != DIBS_OK) return status;
  status = adopt(store, name, id, fence, given, out, error);
  dibs__exit(store);
  return status;
}

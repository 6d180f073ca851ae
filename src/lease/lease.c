/* SPDX-License-Identifier: MIT */
/* Handles: how a lease is made, asked for, looked at, renewed, released and given back. */
#include "base/text.h"
#include "lease/room.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { LEAVE_MS = 100 }; /* how much later than asked a blocking call may return when the store does not answer */

/* Beyond it the lease counts as lost here, though the store may still keep it: what a scheduler may take away between
 * looking at the clock and acting, and what two clocks may drift in a ttl. */
int64_t dibs__margin_ms(int64_t ttl_ms) {
  int64_t margin = ttl_ms / 20;
  return margin < 5 ? 5 : margin > 500 ? 500 : margin;
}

/* ---- Life of a handle ---- */

void dibs__lease_hold(dibs_lease *lease) {
  atomic_fetch_add(&lease->refs, 1);
}

void dibs__lease_drop_locked(dibs_lease *lease) {
  dibs_store *store = lease->store;
  if (atomic_fetch_sub(&lease->refs, 1) != 1) return;
  assert(!lease->grant && !lease->cohort && lease->calls == 0);
  if (lease->all_prev)
    lease->all_prev->all_next = lease->all_next;
  else
    store->all = lease->all_next;
  if (lease->all_next) lease->all_next->all_prev = lease->all_prev;
  struct grant *spare = store->spares;
  if (spare) {
    store->spares = spare->spare_next;
    free(spare);
  } else {
    store->grants_owed++;
  }
  store->leases--;
  free(lease->owner);
  free(lease);
  atomic_fetch_sub(&store->refs, 1); /* never the last: whoever has the lock has one too */
}

dibs_status dibs__lease_enter(dibs_lease *lease, const char *call, dibs_error *error) {
  if (!lease) return dibs__fail(error, DIBS_INVALID, "%s: the lease is NULL", call);
  return dibs__enter(lease->store, call, error);
}

static bool reserve_locked(dibs_store *store) {
  uint32_t room = store->leases + 1 + store->grants_owed;
  return dibs__heap_reserve(&store->waits, room) && dibs__heap_reserve(&store->rechecks, room) &&
         dibs__heap_reserve(&store->renewals, room) && dibs__heap_reserve(&store->losses, room);
}

static dibs_status register_lease(dibs_store *store, dibs_lease *lease, struct grant *grant, dibs_error *error) {
  dibs_status status = DIBS_OK;
  dibs__mutex_lock(&store->lock);
  if (store->closing)
    status = dibs__fail(error, DIBS_INVALID, "the store is being closed");
  else if (!reserve_locked(store))
    status = dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the lease of \"%s\"", lease->name);
  if (status == DIBS_OK) {
    store->leases++;
    grant->spare_next = store->spares;
    store->spares = grant;
    lease->all_next = store->all;
    if (store->all) store->all->all_prev = lease;
    store->all = lease;
    atomic_fetch_add(&store->refs, 1);
  }
  dibs__mutex_unlock(&store->lock);
  return status;
}

static dibs_status check_options(dibs_store *store, const char *name, const dibs_lease_options *o, dibs_error *error) {
  uint32_t caps = dibs__core_caps(store->core);
  enum dibs__name_flaw flaw = name ? dibs__name_check(name, strlen(name), DIBS_NAME_MAX, NULL) : DIBS__NAME_EMPTY;
  if (flaw != DIBS__NAME_FINE)
    return dibs__fail(error, DIBS_INVALID, "the name %s: a name is 1 to %d bytes of UTF-8 without control characters",
                      dibs__name_flaw_text(flaw), DIBS_NAME_MAX);
  if (o->size < sizeof(size_t) || o->size > sizeof *o)
    return dibs__fail(error, DIBS_INVALID, "options.size is %zu: set it to sizeof(dibs_lease_options)", o->size);
  if (o->reserved != 0 || (o->flags & ~(uint32_t)DIBS_NO_RENEW) != 0)
    return dibs__fail(error, DIBS_INVALID, "\"%s\": unknown flags in the options", name);
  if (o->ttl_ms < DIBS_TTL_MIN_MS || o->ttl_ms > DIBS_TTL_MAX_MS)
    return dibs__fail(error, DIBS_INVALID, "\"%s\": the ttl must be between 100 ms and 24 h, not %lld ms", name,
                      (long long)o->ttl_ms);
  if (o->wait_ms < DIBS_FOREVER)
    return dibs__fail(error, DIBS_INVALID, "\"%s\": wait_ms is %lld: give 0, a positive time or DIBS_FOREVER", name,
                      (long long)o->wait_ms);
  if (o->mode == DIBS_COUNTED ? o->slots < 1 || o->slots > DIBS_SLOTS_MAX : o->slots != 0)
    return dibs__fail(error, DIBS_INVALID, "\"%s\": slots go with the counted mode, 1 to %d", name, DIBS_SLOTS_MAX);
  if ((unsigned)o->mode > DIBS_COUNTED) return dibs__fail(error, DIBS_INVALID, "\"%s\": unknown mode", name);
  if ((o->mode == DIBS_SHARED && !(caps & DIBS__CAP_SHARED)) ||
      (o->mode == DIBS_COUNTED && !(caps & DIBS__CAP_COUNTED)))
    return dibs__fail(error, DIBS_UNSUPPORTED, "\"%s\": %s has no %s leases; use another store", name, store->shown,
                      o->mode == DIBS_SHARED ? "shared" : "counted");
  if (o->owner && dibs__name_check(o->owner, strlen(o->owner), DIBS_OWNER_MAX, NULL) != DIBS__NAME_FINE)
    return dibs__fail(error, DIBS_INVALID, "\"%s\": the owner must be 1 to %d bytes of UTF-8", name, DIBS_OWNER_MAX);
  return DIBS_OK;
}

/* Options of a caller that was built against an older, shorter struct. */
static dibs_lease_options whole_options(const dibs_lease_options *given) {
  dibs_lease_options options = {.size = sizeof options};
  if (given && given->size <= sizeof options && given->size >= sizeof(size_t)) memcpy(&options, given, given->size);
  if (given) options.size = given->size;
  if (options.ttl_ms == 0) options.ttl_ms = DIBS_TTL_DEFAULT_MS;
  return options;
}

static dibs_status make_lease(dibs_store *store, const char *name, const dibs_lease_options *o, dibs_lease **out,
                              dibs_error *error) {
  dibs_status status = check_options(store, name, o, error);
  if (status != DIBS_OK) return status;
  dibs__id id = {0};
  if (o->id && !dibs__hex_read(o->id, id.b))
    return dibs__fail(error, DIBS_INVALID, "\"%s\": a lease id is 32 hex digits", name);
  size_t size = strlen(name) + 1;
  dibs_lease *lease = calloc(1, sizeof *lease + size);
  struct grant *grant = calloc(1, sizeof *grant);
  char *owner = o->owner ? strdup(o->owner) : NULL;
  if (!lease || !grant || (o->owner && !owner)) {
    status = dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the lease of \"%s\"", name);
    goto fail;
  }
  memcpy(lease->name, name, size);
  lease->store = store;
  lease->refs = lease->handles = 1;
  lease->owner = owner;
  lease->mode = (uint32_t)o->mode;
  lease->slots = o->slots;
  lease->flags = o->flags;
  lease->own_id = o->id != NULL;
  lease->id = id;
  lease->on_lost = o->on_lost;
  lease->lost_user = o->user;
  lease->ttl_ms = o->ttl_ms;
  lease->wait_ms = o->wait_ms;
  lease->wait_by = o->wait_ms > 0 ? dibs__tick_add_ms(dibs__tick_now(), o->wait_ms) : DIBS__TICK_NEVER;
  status = register_lease(store, lease, grant, error);
  if (status != DIBS_OK) goto fail;
  *out = lease;
  return DIBS_OK;

fail:
  free(owner);
  free(grant);
  free(lease);
  return status;
}

/* ---- Acquiring ---- */

static bool forms_cohort(const dibs_lease *lease) {
  return lease->store->cohorts_allowed && lease->mode == DIBS_EXCLUSIVE && !lease->own_id &&
         !(lease->flags & DIBS_NO_RENEW);
}

static void begin_wait_locked(dibs_lease *lease) {
  lease->store->waiting++;
  lease->counted = true;
  if (!lease->blocking && lease->wait_by.ns != INT64_MAX)
    dibs__heap_set(&lease->store->waits, &lease->wait, lease->wait_by);
}

/* Joins a line, or prepares the question.  A caller that does not wait is told at once that this process holds it. */
static void begin_locked(dibs_lease *lease, struct after *after) {
  dibs_store *store = lease->store;
  bool local = false;
  atomic_store(&lease->phase, LEASE_ASKING);
  begin_wait_locked(lease);
  if (forms_cohort(lease)) {
    if (lease->wait_ms == 0 && dibs__cohort_has_locked(store, lease->name)) {
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
    uint32_t seen = atomic_load(&lease->word);
    if (!wait_goes_on(lease)) return;
    dibs__core_wait(store->core, &lease->word, seen, lease->wait_by);
    if (!wait_goes_on(lease) || dibs__tick_before(dibs__tick_now(), lease->wait_by)) continue;
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
  if (lease->wait_ms <= 0) return io;
  return dibs__tick_min(io, dibs__tick_add_ms(lease->wait_by, LEAVE_MS));
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
  dibs_lease_options options = whole_options(given);
  dibs_lease *lease = NULL;
  dibs_status status = make_lease(store, name, &options, &lease, error);
  if (status != DIBS_OK) return status;
  struct after after = {0};
  lease->blocking = true;
  dibs__mutex_lock(&store->lock);
  begin_locked(lease, &after);
  bool asks = after.mine != NULL;
  dibs__mutex_unlock(&store->lock);
  if (!dibs__after(store, &after, asks ? answer_by(lease) : DIBS__TICK_NEVER)) leave_unanswered(lease);
  wait_here(lease);
  if (lease->on_lost && (dibs__core_caps(store->core) & DIBS__CAP_EVENTS)) dibs__core_serve(store->core);
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
  dibs_lease_options options = whole_options(given);
  dibs_lease *lease = NULL;
  dibs_status status = make_lease(store, name, &options, &lease, error);
  if (status != DIBS_OK) return status;
  lease->done = done;
  lease->done_user = user;
  *out = lease;
  if (!dibs__core_serve(store->core)) {
    *out = NULL;
    dibs_lease_free(lease);
    return dibs__fail(error, DIBS_NO_MEMORY, "no thread could be started for the store");
  }
  struct after after = {0};
  dibs__mutex_lock(&store->lock);
  begin_locked(lease, &after);
  bool timed = lease->wait.place != 0;
  dibs__mutex_unlock(&store->lock);
  dibs__after_start(store, &after);
  if (timed) dibs__core_rouse(store->core, lease->wait_by);
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

/* ---- Looking: no lock, no I/O ---- */

int dibs_lease_alive(const dibs_lease *lease) {
  return dibs_lease_left_ms(lease) > 0;
}

int64_t dibs_lease_left_ms(const dibs_lease *lease) {
  if (!lease || lease->store->generation != dibs__process_generation()) return 0;
  return dibs__tick_left_ms(dibs__tick_now(), (dibs__tick){atomic_load(&lease->until_ns)});
}

uint64_t dibs_lease_fence(const dibs_lease *lease) {
  return lease ? atomic_load(&lease->fence) : 0;
}
uint32_t dibs_lease_slot(const dibs_lease *lease) {
  return lease ? lease->slot : 0;
}
const char *dibs_lease_name(const dibs_lease *lease) {
  return lease ? lease->name : "";
}

dibs_status dibs_lease_id(dibs_lease *lease, char id[33], dibs_error *error) {
  dibs_status status = dibs__lease_enter(lease, "dibs_lease_id", error);
  if (status != DIBS_OK) return status;
  dibs__mutex_lock(&lease->store->lock);
  bool held = atomic_load(&lease->phase) == LEASE_HELD;
  if (held) {
    if (lease->grant) lease->grant->shown = true;
    dibs__hex_write(lease->id.b, id);
  }
  dibs__mutex_unlock(&lease->store->lock);
  dibs__exit(lease->store);
  if (!held) return dibs__fail(error, DIBS_INVALID, "\"%s\" is not held by this handle", lease->name);
  return dibs__fine(error);
}

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
    dibs__word_wait(&lease->word, seen, by, false);
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
    if (!over && !dibs__word_wait(&lease->word, seen, by, false)) break;
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
    if (!done && !after.mine) dibs__word_wait(&lease->word, seen, dibs__tick_add_ms(dibs__tick_now(), 10), false);
    if (!done) dibs__after(store, &after, dibs__tick_add_ms(dibs__tick_now(), DIBS__IO_MS));
  }
  dibs__after_start(store, &after);
  return dibs__fine(error);
}

dibs_status dibs_lease_detach(dibs_lease *lease, dibs_error *error) {
  dibs_status status = dibs__lease_enter(lease, "dibs_lease_detach", error);
  if (status != DIBS_OK) return status;
  dibs_store *store = lease->store;
  status = detach(lease, error);
  dibs__exit(store);
  return status;
}

static dibs_status adopt(dibs_store *store, const char *name, const char *id, uint64_t fence,
                         const dibs_lease_options *given, dibs_lease **out, dibs_error *error) {
  dibs_lease_options options = whole_options(given);
  options.id = id;
  dibs_lease *lease = NULL;
  dibs_status status = make_lease(store, name, &options, &lease, error);
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

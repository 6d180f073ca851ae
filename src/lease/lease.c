/* SPDX-License-Identifier: MIT */
/* Several names, all or none.  Taken in the byte order of the names, so that two callers can't wait for each other. */
#include "base/text.h"
#include "lease/lease_impl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct position {
  const char *name;
  size_t at; /* in the caller's array */
};

static int compare_positions(const void *a, const void *b) {
  return strcmp(((const struct position *)a)->name, ((const struct position *)b)->name);
}

static struct position *sort_names(const char *const names[], size_t count) {
  struct position *positions = malloc(count * sizeof *positions);
  if (!positions) return NULL;
  for (size_t i = 0; i < count; i++) positions[i] = (struct position){names[i], i};
  qsort(positions, count, sizeof *positions, compare_positions);
  return positions;
}

static dibs_status check_arguments_of_many(const char *const names[], size_t count, const dibs_lease_options *options,
                                           dibs_lease *leases[], dibs_error *error) {
  if (!names || !leases || count < 1 || count > DIBS_MANY_MAX)
    return dibs__fail(error, DIBS_INVALID, "dibs_acquire_many takes 1 to %d names", DIBS_MANY_MAX);
  for (size_t i = 0; i < count; i++) {
    leases[i] = NULL;
    if (!names[i]) return dibs__fail(error, DIBS_INVALID, "name %zu is NULL", i);
  }
  if (options && (options->size < sizeof(size_t) || options->size > sizeof *options))
    return dibs__fail(error, DIBS_INVALID, "options.size is %zu: set it to sizeof(dibs_lease_options)", options->size);
  if (options && options->size >= offsetof(dibs_lease_options, id) + sizeof options->id && options->id)
    return dibs__fail(error, DIBS_INVALID, "one id can't serve several names; leave options.id NULL");
  return DIBS_OK;
}

static dibs_status check_no_name_twice(const struct position *positions, size_t count, dibs_error *error) {
  for (size_t i = 1; i < count; i++)
    if (strcmp(positions[i - 1].name, positions[i].name) == 0)
      return dibs__fail(error, DIBS_INVALID, "\"%s\" occurs twice", positions[i].name);
  return DIBS_OK;
}

dibs_status dibs_acquire_many(dibs_store *store, const char *const names[], size_t count,
                              const dibs_lease_options *given, dibs_lease *leases[], dibs_error *error) {
  dibs_status status = check_arguments_of_many(names, count, given, leases, error);
  if (status == DIBS_OK) status = dibs__enter(store, "dibs_acquire_many", error);
  if (status != DIBS_OK) return status;
  dibs_lease_options options = {.size = sizeof options};
  if (given) memcpy(&options, given, given->size);
  struct position *positions = sort_names(names, count);
  if (!positions) {
    dibs__exit(store);
    return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for %zu names", count);
  }
  status = check_no_name_twice(positions, count, error);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), options.wait_ms);
  bool bounded = options.wait_ms > 0;
  size_t have = 0;
  for (; have < count && status == DIBS_OK; have += status == DIBS_OK) {
    if (bounded) options.wait_ms = dibs__tick_left_ms(dibs__tick_now(), by);
    status = dibs_acquire(store, positions[have].name, &options, &leases[positions[have].at], error);
    if (status == DIBS_HELD && bounded) status = DIBS_TIMEOUT; /* the time went to the names before it */
    if (error && status == DIBS_TIMEOUT) error->status = status;
  }
  if (status != DIBS_OK) {
    while (have-- > 0) {
      dibs_lease **lease = &leases[positions[have].at];
      (void)dibs_release(*lease, NULL); /* what can't be released ends with its ttl */
      dibs_lease_free(*lease);
      *lease = NULL;
    }
  }
  free(positions);
  dibs__exit(store);
  return status;
}

/* Making and freeing a handle, and reading it without a request to the store. */

/* When less than the margin is left, the lease counts as lost here, though the store may still keep it
 * (doc/decisions/0013-margin-of-long-ttls.md).  The margin covers the pause between reading the clock and acting, and
 * the drift of two clocks in a ttl: 500 ppm each is what the kernel corrects at most. */
enum { PAUSE_PART = 20, PAUSE_MIN_MS = 5, PAUSE_MAX_MS = 500, DRIFT_PART = 1000 };

int64_t dibs__margin_ms(int64_t ttl_ms) {
  int64_t pause = ttl_ms / PAUSE_PART;
  if (pause < PAUSE_MIN_MS) pause = PAUSE_MIN_MS;
  if (pause > PAUSE_MAX_MS) pause = PAUSE_MAX_MS;
  return pause + ttl_ms / DRIFT_PART;
}

dibs__tick dibs__sure_until(dibs__tick from, int64_t lasts_ms) {
  int64_t sure_ms = lasts_ms - dibs__margin_ms(lasts_ms);
  return sure_ms > 0 ? dibs__tick_add_ms(from, sure_ms) : from;
}

/* ---- A handle from its beginning to its end ---- */

void dibs__lease_hold(dibs_lease *lease) {
  atomic_fetch_add(&lease->refs, 1);
}

void dibs__lease_drop_locked(dibs_lease *lease) {
  dibs_store *store = lease->store;
  if (atomic_fetch_sub(&lease->refs, 1) != 1) return;
  assert(!lease->grant && !lease->cohort && lease->calls == 0 && !lease->renewals);
  if (lease->all_prev)
    lease->all_prev->all_next = lease->all_next;
  else
    store->leases->all = lease->all_next;
  if (lease->all_next) lease->all_next->all_prev = lease->all_prev;
  struct grant *spare = store->leases->spares;
  if (spare) {
    store->leases->spares = spare->spare_next;
    free(spare);
  } else {
    store->leases->grants_owed++;
  }
  store->leases->count--;
  free(lease->owner);
  free(lease);
  atomic_fetch_sub(&store->refs, 1); /* never the last: the thread with the lock has one too */
}

dibs_status dibs__lease_enter(dibs_lease *lease, const char *call, dibs_error *error) {
  if (!lease) return dibs__fail(error, DIBS_INVALID, "%s: the lease is NULL", call);
  return dibs__enter(lease->store, call, error);
}

void dibs__lease_drop(dibs_lease *lease) {
  dibs_store *store = lease->store;
  if (!dibs__is_of_this_process(store)) return; /* a child's copy: its memory goes with the child */
  atomic_fetch_add(&store->refs, 1);
  dibs__mutex_lock(&store->lock);
  dibs__lease_drop_locked(lease);
  dibs__mutex_unlock(&store->lock);
  dibs__store_drop(store);
}

static bool reserve_locked(dibs_store *store) {
  uint32_t capacity = store->leases->count + 1 + store->leases->grants_owed;
  return dibs__heap_reserve(&store->leases->waits, capacity) &&
         dibs__heap_reserve(&store->leases->rechecks, capacity) &&
         dibs__heap_reserve(&store->leases->renewals, capacity) && dibs__heap_reserve(&store->leases->losses, capacity);
}

static dibs_status register_lease(dibs_store *store, dibs_lease *lease, struct grant *grant, dibs_error *error) {
  dibs_status status = DIBS_OK;
  dibs__mutex_lock(&store->lock);
  if (store->closing)
    status = dibs__fail(error, DIBS_INVALID, "the store is being closed");
  else if (!reserve_locked(store))
    status = dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the lease of \"%s\"", lease->name);
  else if (!dibs__watch_ready_locked(store))
    status = dibs__fail(error, DIBS_NO_MEMORY, "cannot start a thread for the lease of \"%s\"", lease->name);
  if (status == DIBS_OK) {
    store->leases->count++;
    grant->spare_next = store->leases->spares;
    store->leases->spares = grant;
    lease->all_next = store->leases->all;
    if (store->leases->all) store->leases->all->all_prev = lease;
    store->leases->all = lease;
    atomic_fetch_add(&store->refs, 1);
  }
  dibs__mutex_unlock(&store->lock);
  return status;
}

static dibs_status check_options(dibs_store *store, const char *name, const dibs_lease_options *o, dibs_error *error) {
  uint32_t caps = dibs__core_caps(store->core);
  if (dibs__check_text(name, DIBS_NAME_MAX, "the name", error) != DIBS_OK) return DIBS_INVALID;
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
    return dibs__fail(error, DIBS_INVALID,
                      "\"%s\": the counted mode needs 1 to %d slots, and the other modes take none", name,
                      DIBS_SLOTS_MAX);
  if ((unsigned)o->mode > DIBS_COUNTED) return dibs__fail(error, DIBS_INVALID, "\"%s\": unknown mode", name);
  if ((o->mode == DIBS_SHARED && !(caps & DIBS__CAP_SHARED)) ||
      (o->mode == DIBS_COUNTED && !(caps & DIBS__CAP_COUNTED)))
    return dibs__fail(error, DIBS_UNSUPPORTED,
                      "\"%s\": %s has no %s leases; use another store (dibs doctor lists what each keeps)", name,
                      store->shown, o->mode == DIBS_SHARED ? "shared" : "counted");
  return o->owner ? dibs__check_text(o->owner, DIBS_OWNER_MAX, "the owner", error) : DIBS_OK;
}

/* Options of a caller that was built against an older, shorter struct. */
dibs_lease_options dibs__lease_options(const dibs_lease_options *given) {
  dibs_lease_options options = {.size = sizeof options};
  if (given && given->size <= sizeof options && given->size >= sizeof(size_t)) memcpy(&options, given, given->size);
  if (given) options.size = given->size;
  if (options.ttl_ms == 0) options.ttl_ms = DIBS_TTL_DEFAULT_MS;
  return options;
}

dibs_status dibs__lease_make(dibs_store *store, const char *name, const dibs_lease_options *o, dibs_lease **out,
                             dibs_error *error) {
  dibs_status status = check_options(store, name, o, error);
  if (status == DIBS_OK) status = dibs__store_leases(store, name, error);
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
  lease->tries = o->wait_ms == 0;
  lease->began = dibs__tick_now();
  lease->wait.at = o->wait_ms > 0 ? dibs__tick_add_ms(lease->began, o->wait_ms) : DIBS__TICK_NEVER;
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

/* ---- Reading a handle: no lock, no I/O ---- */

int dibs_lease_alive(const dibs_lease *lease) {
  return dibs_lease_left_ms(lease) > 0;
}

int64_t dibs_lease_left_ms(const dibs_lease *lease) {
  if (!lease || !dibs__is_of_this_process(lease->store)) return 0;
  return dibs__tick_left_ms(dibs__tick_now(), (dibs__tick){atomic_load(&lease->until_ns)});
}

int64_t dibs_lease_store_left_ms(const dibs_lease *lease) {
  if (!lease || !dibs__is_of_this_process(lease->store)) return 0;
  return dibs__tick_left_ms(dibs__tick_now(), (dibs__tick){atomic_load(&lease->store_until_ns)});
}

dibs_fence dibs_lease_fence(const dibs_lease *lease) {
  return (dibs_fence){lease ? atomic_load(&lease->fence) : 0};
}
uint32_t dibs_lease_slot(const dibs_lease *lease) {
  return lease ? lease->slot : 0;
}
const char *dibs_lease_tier(const dibs_lease *lease) {
  const char *tier = lease && !atomic_load(&lease->store->closing) ? atomic_load(&lease->tier) : NULL;
  return tier ? tier : lease ? lease->store->shown : "";
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

/* Renewing, releasing, detaching and adopting a lease that is held. */

/* ---- Renewing ---- */

static bool renewal_waits_locked(const dibs_lease *lease) {
  for (const struct renewal *renewal = lease->renewals; renewal; renewal = renewal->next)
    if (renewal->state == RENEWAL_WAITS) return true;
  return false;
}

bool dibs__renewal_keeps_locked(const dibs_lease *lease) {
  for (const struct renewal *renewal = lease->renewals; renewal; renewal = renewal->next)
    if (renewal->state == RENEWAL_SENT && renewal->keeps) return true;
  return false;
}

void dibs__renewals_send_locked(dibs_lease *lease, struct deferred *deferred, bool mine) {
  struct grant *grant = lease->grant;
  if (!renewal_waits_locked(lease) || atomic_load(&lease->phase) != LEASE_HELD || grant->requested != REQUEST_NOTHING)
    return;
  int64_t keep_ms = 0, ttl_ms = lease->ttl_ms;
  for (struct renewal *renewal = lease->renewals; renewal && keep_ms == 0; renewal = renewal->next) {
    if (renewal->state != RENEWAL_WAITS) continue;
    renewal->state = RENEWAL_SENT;
    if (renewal->keeps)
      keep_ms = renewal->ttl_ms;
    else if (renewal->ttl_ms != 0)
      ttl_ms = renewal->ttl_ms;
  }
  struct dibs__op *op = dibs__send_renew_locked(grant, keep_ms ? keep_ms : ttl_ms, 0);
  if (keep_ms) {
    /* The holder has ended its work: a late answer is no loss, so the request has the usual deadline. */
    dibs__unwatch_locked(grant);
    op->by = dibs__tick_add_ms(dibs__tick_now(), DIBS__IO_MS);
  }
  if (mine)
    dibs__deferred_mine(deferred, op);
  else
    dibs__deferred_finish(deferred, op);
}

void dibs__renewals_end_locked(dibs_lease *lease, dibs_status status, bool all, struct deferred *deferred) {
  bool calls = false;
  for (struct renewal **at = &lease->renewals; *at;) {
    struct renewal *renewal = *at;
    bool ends = renewal->state == RENEWAL_SENT || (all && renewal->state == RENEWAL_WAITS);
    if (ends && status == DIBS_OK && renewal->ttl_ms != 0 && !renewal->keeps) lease->ttl_ms = renewal->ttl_ms;
    if (ends && !renewal->blocking && !renewal->done) {
      *at = renewal->next;
      free(renewal);
      continue;
    }
    if (ends) {
      renewal->status = status;
      renewal->state = RENEWAL_DONE;
      calls = calls || !renewal->blocking;
    }
    at = &renewal->next;
  }
  if (calls) dibs__call_locked(lease, CALL_RENEWED);
  dibs__deferred_tell(deferred, lease);
}

/* OK: the renewal is in the list, and sent if nothing else of the grant is in flight. */
static dibs_status begin_renewal_locked(dibs_lease *lease, struct renewal *renewal, struct deferred *deferred) {
  uint32_t phase = atomic_load(&lease->phase);
  if (phase == LEASE_OVER && lease->status == DIBS_LOST) return DIBS_LOST;
  if (phase != LEASE_HELD) return DIBS_INVALID;
  struct renewal **end = &lease->renewals;
  while (*end) end = &(*end)->next;
  *end = renewal;
  dibs__renewals_send_locked(lease, deferred, renewal->blocking);
  return DIBS_OK;
}

static void remove_renewal_locked(dibs_lease *lease, const struct renewal *renewal) {
  struct renewal **at = &lease->renewals;
  while (*at != renewal) at = &(*at)->next;
  *at = renewal->next;
}

static dibs_status explain_not_renewed(dibs_lease *lease, dibs_status status, dibs_error *error) {
  if (status == DIBS_INVALID) return dibs__fail(error, DIBS_INVALID, "\"%s\" is not held by this handle", lease->name);
  return dibs__explain(lease->store, status, "renewing", lease->name, error);
}

static dibs_status renew_and_wait(dibs_lease *lease, int64_t ttl_ms, bool keeps, dibs_error *error) {
  dibs_store *store = lease->store;
  struct renewal renewal = {.ttl_ms = ttl_ms, .blocking = true, .keeps = keeps};
  struct deferred deferred = {0};
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), DIBS__IO_MS + LEAVE_MS);
  dibs__mutex_lock(&store->lock);
  dibs_status status = begin_renewal_locked(lease, &renewal, &deferred);
  dibs__mutex_unlock(&store->lock);
  if (status != DIBS_OK) return explain_not_renewed(lease, status, error);
  dibs__deferred(store, &deferred, by);
  for (bool over = false; !over;) {
    dibs__mutex_lock(&store->lock);
    uint32_t seen = atomic_load(&lease->word);
    bool done = renewal.state == RENEWAL_DONE;
    over = done || !dibs__tick_before(dibs__tick_now(), by);
    if (over) remove_renewal_locked(lease, &renewal);
    status = done ? renewal.status : DIBS_UNKNOWN;
    dibs__mutex_unlock(&store->lock);
    if (!over) dibs__lease_sleep(lease, seen, by);
  }
  return status == DIBS_OK ? dibs__fine(error) : explain_not_renewed(lease, status, error);
}

static dibs_status check_ttl(const dibs_lease *lease, int64_t ttl_ms, dibs_error *error) {
  if (ttl_ms == 0 || (ttl_ms >= DIBS_TTL_MIN_MS && ttl_ms <= DIBS_TTL_MAX_MS)) return DIBS_OK;
  return dibs__fail(error, DIBS_INVALID, "\"%s\": the ttl must be between 100 ms and 24 h, not %lld ms", lease->name,
                    (long long)ttl_ms);
}

dibs_status dibs_renew(dibs_lease *lease, int64_t ttl_ms, dibs_error *error) {
  dibs_status status = dibs__lease_enter(lease, "dibs_renew", error);
  if (status != DIBS_OK) return status;
  dibs_store *store = lease->store;
  status = check_ttl(lease, ttl_ms, error);
  if (status == DIBS_OK) status = renew_and_wait(lease, ttl_ms, false, error);
  dibs__exit(store);
  return status;
}

static dibs_status start_renewal(dibs_lease *lease, int64_t ttl_ms, dibs_lease_fn done, void *user, dibs_error *error) {
  dibs_store *store = lease->store;
  struct renewal *renewal = calloc(1, sizeof *renewal);
  if (!renewal) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for renewing \"%s\"", lease->name);
  *renewal = (struct renewal){.ttl_ms = ttl_ms, .done = done, .user = user};
  struct deferred deferred = {0};
  dibs_status status = DIBS_NO_MEMORY;
  bool served = !done || dibs__core_serve(store->core);
  dibs__mutex_lock(&store->lock);
  bool ready = served && (!done || dibs__calls_ready_locked(store));
  if (ready) status = begin_renewal_locked(lease, renewal, &deferred);
  dibs__mutex_unlock(&store->lock);
  if (status != DIBS_OK) free(renewal);
  if (!ready) return dibs__fail(error, DIBS_NO_MEMORY, "cannot start a thread for the store");
  if (status != DIBS_OK) return explain_not_renewed(lease, status, error);
  dibs__deferred_start(store, &deferred);
  return dibs__fine(error);
}

dibs_status dibs_renew_start(dibs_lease *lease, int64_t ttl_ms, dibs_lease_fn done, void *user, dibs_error *error) {
  dibs_status status = dibs__lease_enter(lease, "dibs_renew_start", error);
  if (status != DIBS_OK) return status;
  dibs_store *store = lease->store;
  status = check_ttl(lease, ttl_ms, error);
  if (status == DIBS_OK) status = start_renewal(lease, ttl_ms, done, user, error);
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
  bool has_left = phase == LEASE_RELEASING || (phase == LEASE_OVER && lease->status == DIBS_OK);
  if (has_left) *status = DIBS_LOST; /* released before, or detached */
  return false;
}

static dibs_status explain_not_released(dibs_lease *lease, dibs_status status, dibs_error *error) {
  if (status == DIBS_LOST) return dibs__explain(lease->store, DIBS_LOST, "releasing", lease->name, error);
  return dibs__fail(error, DIBS_INVALID, "\"%s\" is not held by this handle", lease->name);
}

static dibs_status release_and_wait(dibs_lease *lease, dibs_error *error) {
  dibs_store *store = lease->store;
  struct deferred deferred = {0};
  dibs_status status;
  dibs__mutex_lock(&store->lock);
  bool may = may_release_locked(lease, &status);
  if (may) dibs__release_locked(lease, &deferred);
  bool over = atomic_load(&lease->phase) == LEASE_OVER;
  status = may && over ? lease->released : status;
  dibs__mutex_unlock(&store->lock);
  if (!may) return explain_not_released(lease, status, error);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), DIBS__IO_MS + LEAVE_MS);
  dibs__deferred(store, &deferred, by);
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

/* Session locks have no ttl: what their connection holds ends with it. */
static dibs_status check_outlives_session(const dibs_lease *lease, dibs_error *error) {
  if (!(dibs__core_caps(lease->store->core) & DIBS__CAP_SESSION)) return DIBS_OK;
  return dibs__fail(
      error, DIBS_UNSUPPORTED,
      "\"%s\": a session lock belongs to the connection of this process, which can't leave it to "
      "another process or to the store; hold it as long as you need it (dibs run), or use a store whose leases do not "
      "end with a connection",
      lease->name);
}

static dibs_status release_after(dibs_lease *lease, int64_t keep_ms, dibs_error *error) {
  if (keep_ms > DIBS_TTL_MAX_MS)
    return dibs__fail(error, DIBS_INVALID, "\"%s\": a lease can be kept for 24 h at most", lease->name);
  dibs_status status = check_outlives_session(lease, error);
  if (status != DIBS_OK) return status;
  return renew_and_wait(lease, keep_ms < DIBS_TTL_MIN_MS ? DIBS_TTL_MIN_MS : keep_ms, true, error);
}

dibs_status dibs_release_after(dibs_lease *lease, int64_t keep_ms, dibs_error *error) {
  dibs_status status = dibs__lease_enter(lease, "dibs_release_after", error);
  if (status != DIBS_OK) return status;
  dibs_store *store = lease->store;
  status = keep_ms <= 0 ? release_and_wait(lease, error) : release_after(lease, keep_ms, error);
  dibs__exit(store);
  return status;
}

dibs_status dibs_release(dibs_lease *lease, dibs_error *error) {
  dibs_status status = dibs__lease_enter(lease, "dibs_release", error);
  if (status != DIBS_OK) return status;
  dibs_store *store = lease->store;
  status = release_and_wait(lease, error);
  dibs__exit(store);
  return status;
}

static dibs_status start_release(dibs_lease *lease, dibs_lease_fn done, void *user, dibs_error *error) {
  dibs_store *store = lease->store;
  dibs_status status;
  if (done && !dibs__core_serve(store->core))
    return dibs__fail(error, DIBS_NO_MEMORY, "cannot start a thread for the store");
  struct deferred deferred = {0};
  dibs__mutex_lock(&store->lock);
  if (done && !dibs__calls_ready_locked(store)) {
    dibs__mutex_unlock(&store->lock);
    return dibs__fail(error, DIBS_NO_MEMORY, "cannot start a thread for the store");
  }
  bool may = may_release_locked(lease, &status);
  if (may) {
    lease->release_done = done;
    lease->release_user = user;
    dibs__release_locked(lease, &deferred);
  }
  dibs__mutex_unlock(&store->lock);
  dibs__deferred_start(store, &deferred);
  return may ? dibs__fine(error) : explain_not_released(lease, status, error);
}

dibs_status dibs_release_start(dibs_lease *lease, dibs_lease_fn done, void *user, dibs_error *error) {
  dibs_status status = dibs__lease_enter(lease, "dibs_release_start", error);
  if (status != DIBS_OK) return status;
  dibs_store *store = lease->store;
  status = start_release(lease, done, user, error);
  dibs__exit(store);
  return status;
}

/* ---- Handles ---- */

dibs_lease *dibs_lease_retain(dibs_lease *lease) {
  if (lease) atomic_fetch_add(&lease->handles, 1);
  return lease;
}

/* The last handle is gone: nobody can release it any more but us. */
static void abandon_locked(dibs_lease *lease, struct deferred *deferred) {
  dibs_status status;
  if (atomic_load(&lease->phase) < LEASE_HELD) {
    dibs__leave_locked(lease, DIBS_CANCELLED, deferred);
  } else if (may_release_locked(lease, &status)) {
    lease->release_done = NULL;
    dibs__release_locked(lease, deferred);
  }
}

void dibs_lease_free(dibs_lease *lease) {
  if (!lease || atomic_fetch_sub(&lease->handles, 1) != 1) return;
  dibs_store *store = lease->store;
  if (!dibs__is_of_this_process(store)) return; /* a child's copy: its memory goes with the child */
  struct deferred deferred = {0};
  atomic_fetch_add(&store->refs, 1);
  atomic_fetch_add(&store->callers, 1);
  dibs__mutex_lock(&store->lock);
  if (!store->closing) abandon_locked(lease, &deferred);
  dibs__lease_drop_locked(lease);
  dibs__mutex_unlock(&store->lock);
  if (deferred.mine || deferred.rest || deferred.wake_count || deferred.due.ns != 0)
    dibs__deferred_start(store, &deferred);
  else
    dibs__calls_handed(store); /* of this wait, or of the next in line; the store may be closed */
  dibs__exit(store);
  dibs__store_drop(store);
}

void dibs__leave_to_store_locked(struct grant *grant, struct deferred *deferred) {
  dibs_lease *lease = grant->lease;
  lease->store->leases->held--;
  atomic_store(&lease->phase, LEASE_OVER);
  lease_time_over(lease);
  dibs__renewals_end_locked(lease, DIBS_OK, false, deferred);
  dibs__renewals_end_locked(lease, DIBS_LOST, true, deferred);
  if (grant->cohort) dibs__cohort_part_locked(grant, deferred, false);
  dibs__grant_end_locked(grant, deferred);
}

static dibs_status detach_handle(dibs_lease *lease, dibs_error *error) {
  dibs_store *store = lease->store;
  struct deferred deferred = {0};
  for (bool done = false; !done;) {
    dibs__mutex_lock(&store->lock);
    uint32_t seen = atomic_load(&lease->word);
    struct grant *grant = lease->grant;
    bool held = atomic_load(&lease->phase) == LEASE_HELD;
    done = !held || (grant->requested == REQUEST_NOTHING && !grant->unconfirmed);
    if (held && !done && grant->requested == REQUEST_NOTHING)
      dibs__deferred_mine(&deferred, dibs__send_renew_locked(grant, lease->ttl_ms, 0));
    if (held && done) dibs__leave_to_store_locked(grant, &deferred);
    dibs__mutex_unlock(&store->lock);
    if (!held) return dibs__fail(error, DIBS_INVALID, "\"%s\" is not held by this handle", lease->name);
    if (!done && !deferred.mine) dibs__lease_sleep(lease, seen, dibs__tick_add_ms(dibs__tick_now(), 10));
    if (!done) dibs__deferred(store, &deferred, dibs__tick_add_ms(dibs__tick_now(), DIBS__IO_MS));
  }
  dibs__deferred_start(store, &deferred);
  return dibs__fine(error);
}

dibs_status dibs_lease_detach(dibs_lease *lease, dibs_error *error) {
  dibs_status status = dibs__lease_enter(lease, "dibs_lease_detach", error);
  if (status != DIBS_OK) return status;
  dibs_store *store = lease->store;
  status = check_outlives_session(lease, error);
  if (status == DIBS_OK) status = detach_handle(lease, error);
  dibs__exit(store);
  return status;
}

static dibs_status adopt_lease(dibs_store *store, const char *name, const char *id, dibs_fence fence,
                               const dibs_lease_options *given, dibs_lease **out, dibs_error *error) {
  dibs_lease_options options = dibs__lease_options(given);
  options.id = id;
  dibs_lease *lease = NULL;
  dibs_status status = dibs__lease_make(store, name, &options, &lease, error);
  if (status != DIBS_OK) return status;
  struct grant *before;
  dibs__mutex_lock(&store->lock);
  enum id_use use = dibs__id_use_locked(store, name, &lease->id, &before);
  if (use == ID_FREE) {
    struct grant *grant = dibs__grant_take_locked(lease);
    grant->adopted = true;
    grant->fence = (dibs__fence){fence.value};
    atomic_store(&lease->fence, fence.value);
    lease->status = DIBS_OK;
    atomic_store(&lease->phase, LEASE_HELD);
    store->leases->held++;
  }
  dibs__mutex_unlock(&store->lock);
  if (use != ID_FREE) {
    dibs_lease_free(lease);
    return dibs__id_refused(use, name, error);
  }
  *out = lease;
  return dibs__fine(error);
}

dibs_status dibs_lease_adopt(dibs_store *store, const char *name, const char *id, dibs_fence fence,
                             const dibs_lease_options *given, dibs_lease **out, dibs_error *error) {
  if (out) *out = NULL;
  if (!out || !id) return dibs__fail(error, DIBS_INVALID, "dibs_lease_adopt: id or lease is NULL");
  dibs_status status = dibs__enter(store, "dibs_lease_adopt", error);
  if (status != DIBS_OK) return status;
  status = adopt_lease(store, name, id, fence, given, out, error);
  dibs__exit(store);
  return status;
}

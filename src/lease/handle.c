/* SPDX-License-Identifier: MIT */
/* How a handle is made and unmade, and what can be seen of it without asking anybody. */
#include "base/text.h"
#include "lease/room.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

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
  else if (!dibs__watch_ready_locked(store))
    status = dibs__fail(error, DIBS_NO_MEMORY, "no thread could be started for the lease of \"%s\"", lease->name);
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

/* SPDX-License-Identifier: MIT */
/*
 * Grants: as many exist as leases do, so that every request to the store finds a spare one and never
 * allocates, also in the middle of a release.
 */
#include "base/text.h"
#include "lease/lease_impl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static uint64_t id_hash(const dibs__id *id) {
  return dibs__hash(id->b, sizeof id->b);
}

static struct grant *find_grant_from(struct dibs__map_node *node, const dibs__id *id, uint64_t hash) {
  for (; node; node = node->next) {
    struct grant *grant = (struct grant *)((char *)node - offsetof(struct grant, by_id));
    if (node->hash == hash && dibs__id_equal(grant->op.id, *id)) return grant;
  }
  return NULL;
}

static struct grant *grant_find_locked(dibs_store *store, const dibs__id *id) {
  uint64_t hash = id_hash(id);
  return find_grant_from(dibs__map_head(&store->leases->grants, hash), id, hash);
}

/* A handle may still act on it: it waits, holds, or has lost the lease and will free it. */
static bool has_handle(const struct grant *grant) {
  uint32_t phase = atomic_load(&grant->lease->phase);
  return (phase <= LEASE_HELD && grant->lease->leaves == DIBS_OK) ||
         (phase == LEASE_OVER && grant->lease->status == DIBS_LOST);
}

enum id_use dibs__id_use_locked(dibs_store *store, const char *name, const dibs__id *id, struct grant **before) {
  uint64_t hash = id_hash(id);
  struct grant *grant = find_grant_from(dibs__map_head(&store->leases->grants, hash), id, hash);
  *before = NULL;
  for (; grant; grant = find_grant_from(grant->by_id.next, id, hash)) {
    if (strcmp(grant->lease->name, name) != 0) return ID_OTHER_NAME;
    if (has_handle(grant)) return ID_HAS_HANDLE;
    *before = grant;
  }
  return *before ? ID_ENDING : ID_FREE;
}

bool dibs__lease_ends(dibs_store *store, const char *name, const char *id) {
  dibs__id bytes;
  struct grant *before;
  if (!dibs__hex_read(id, bytes.b)) return false;
  dibs__mutex_lock(&store->lock);
  enum id_use use = dibs__id_use_locked(store, name, &bytes, &before);
  dibs__mutex_unlock(&store->lock);
  return use == ID_ENDING;
}

dibs_status dibs__id_refused(enum id_use use, const char *name, dibs_error *error) {
  if (use == ID_OTHER_NAME)
    return dibs__fail(error, DIBS_INVALID,
                      "\"%s\": this process uses that lease id for another name; draw a new id for each name", name);
  return dibs__fail(error, DIBS_INVALID,
                    "\"%s\": this process already has a handle for that lease id; use that handle, or free it first",
                    name);
}

/* The lease needs a grant of its own; the id is the lease's if it has one. */
struct grant *dibs__grant_take_locked(dibs_lease *lease) {
  dibs_store *store = lease->store;
  struct grant *grant = store->leases->spares;
  assert(grant);
  store->leases->spares = grant->spare_next;
  memset(grant, 0, sizeof *grant);
  grant->store = store;
  if (!lease->own_id) dibs__random(lease->id.b, sizeof lease->id.b);
  grant->op.id = lease->id;
  grant->shown = lease->own_id;
  grant->ttl_ms = lease->ttl_ms;
  dibs__map_add(&store->leases->grants, &grant->by_id, id_hash(&grant->op.id));
  grant->lease = lease;
  lease->grant = grant;
  dibs__lease_hold(lease);
  return grant;
}

static void grant_drop_lease_locked(struct grant *grant) {
  dibs_lease *lease = grant->lease;
  grant->lease = NULL;
  if (lease->grant == grant) lease->grant = NULL;
  dibs__lease_drop_locked(lease);
}

/* The request that waited for the end of this grant is sent now. */
static void start_follower_locked(struct grant *ended, struct deferred *deferred) {
  struct grant *next = grant_find_locked(ended->store, &ended->op.id);
  if (!next || !next->follows) return; /* its caller has left */
  next->follows = false;
  dibs__deferred_finish(deferred, dibs__send_acquire_locked(next));
}

void dibs__grant_end_locked(struct grant *grant, struct deferred *deferred) {
  dibs_store *store = grant->store;
  assert(grant->requested == REQUEST_NOTHING && !grant->cohort);
  dibs__unwatch_locked(grant);
  dibs__heap_remove(&store->leases->rechecks, &grant->recheck);
  dibs__map_remove(&store->leases->grants, &grant->by_id);
  if (grant->followed) start_follower_locked(grant, deferred);
  dibs_lease *lease = grant->lease;
  if (lease->grant == grant && lease->leaves != DIBS_OK && atomic_load(&lease->phase) < LEASE_HELD)
    dibs__wait_over_locked(lease, lease->leaves, deferred);
  grant_drop_lease_locked(grant);
  if (store->leases->grants_owed > 0) {
    store->leases->grants_owed--;
    free(grant);
    return;
  }
  grant->spare_next = store->leases->spares;
  store->leases->spares = grant;
}

/* The grant becomes this lease's, with the grant's present fence. */
static void grant_give_locked(struct grant *grant, dibs_lease *lease) {
  if (grant->lease != lease) {
    assert(grant_parked(grant) && !lease->grant);
    grant_drop_lease_locked(grant);
    grant->lease = lease;
    lease->grant = grant;
    dibs__lease_hold(lease);
  }
  lease->id = grant->op.id;
  lease->slot = grant->slot;
  atomic_store(&lease->tier, grant->tier);
  atomic_store(&lease->fence, grant->fence.v);
  atomic_store(&lease->until_ns, grant->until.ns);
  atomic_store(&lease->store_until_ns, grant->store_until.ns);
}

/* The text of a tier stays where it is while the store is open. */
static void count_granted_locked(const struct grant *grant) {
  struct dibs__leases *leases = grant->store->leases;
  leases->granted++;
  for (size_t i = 0; i < DIBS__LEASE_TIERS; i++) {
    struct dibs__lease_grants *grants = &leases->by_tier[i];
    if (grants->granted > 0 && grants->tier != grant->tier) continue;
    grants->tier = grant->tier;
    grants->granted++;
    return;
  }
}

/*
 * Hand-off inside the process.  The exclusive leases of one name in one process form a cohort: a front, which has the
 * grant or requests it, and a line.  A release with waiters in the line parks the grant and passes it on: the next
 * lease gets the next fence of the block that the store granted in advance, without a request to the store.
 *
 * A run is bounded: after RUN_MAX hand-offs or RUN_MAX_MS the grant is given back if others may wait in the store, and
 * the next in line queues there like any other client.  In the middle of a run the grant is renewed beside the path:
 * that draws the next block, extends the time, and shows whether others wait.  If none do, a new run begins.
 *
 * A lease is handed on only with at least its whole ttl left (less the margin); else it is renewed first.  What is
 * shown outside (dibs_lease_id) is never handed on.
 */

static uint64_t name_hash(const char *name) {
  return dibs__hash(name, strlen(name));
}

static struct cohort *find_cohort_locked(dibs_store *store, const char *name, uint64_t hash) {
  for (struct dibs__map_node *node = dibs__map_head(&store->leases->cohorts, hash); node; node = node->next) {
    struct cohort *cohort = (struct cohort *)((char *)node - offsetof(struct cohort, by_name));
    if (node->hash == hash && strcmp(cohort->name, name) == 0) return cohort;
  }
  return NULL;
}

bool dibs__cohort_has_locked(dibs_store *store, const char *name) {
  return find_cohort_locked(store, name, name_hash(name)) != NULL;
}

static struct cohort *make_cohort_locked(dibs_store *store, const char *name, uint64_t hash) {
  size_t size = strlen(name) + 1;
  struct cohort *cohort = calloc(1, offsetof(struct cohort, name) + size);
  if (!cohort) return NULL;
  memcpy(cohort->name, name, size);
  cohort->others = true;
  dibs__map_add(&store->leases->cohorts, &cohort->by_name, hash);
  return cohort;
}

static void send_renew_again_locked(struct cohort *cohort, int64_t ttl_ms, struct deferred *deferred) {
  cohort->requested_at = dibs__tick_now();
  cohort->requested_run = cohort->run;
  dibs__deferred_finish(deferred, dibs__send_renew_locked(cohort->grant, ttl_ms, RUN_MAX));
}

bool dibs__cohort_join_locked(dibs_lease *lease, bool *local, struct deferred *deferred) {
  dibs_store *store = lease->store;
  uint64_t hash = name_hash(lease->name);
  struct cohort *cohort = find_cohort_locked(store, lease->name, hash);
  *local = cohort != NULL;
  if (!cohort) {
    cohort = make_cohort_locked(store, lease->name, hash);
    if (!cohort) return false;
    cohort->grant = dibs__grant_take_locked(lease);
    cohort->grant->cohort = cohort;
    return true;
  }
  lease->cohort = cohort;
  lease->next_local = NULL;
  if (cohort->last)
    cohort->last->next_local = lease;
  else
    cohort->first = lease;
  cohort->last = lease;
  if (cohort->waiting++ == 0) dibs__lines_begin_locked(cohort);
  dibs__lease_hold(lease);
  /* The line has begun: a block of fences will be wanted when the front releases. */
  struct grant *grant = cohort->grant;
  if (grant->held && !grant->shown && grant->requested == REQUEST_NOTHING && grant->left + grant->fresh_left == 0)
    send_renew_again_locked(cohort, grant->lease->ttl_ms, deferred);
  return true;
}

static void has_left_line_locked(dibs_lease *lease) {
  if (--lease->cohort->waiting == 0) dibs__lines_end_locked(lease->store, lease->cohort);
  lease->cohort = NULL;
  lease->next_local = NULL;
}

static dibs_lease *take_first_waiter_locked(struct cohort *cohort) {
  dibs_lease *lease = cohort->first;
  cohort->first = lease->next_local;
  if (!cohort->first) cohort->last = NULL;
  has_left_line_locked(lease);
  return lease; /* with the line's reference */
}

/* The waiter leaves the line of its cohort. */
static void cohort_leave_locked(dibs_lease *lease) {
  struct cohort *cohort = lease->cohort;
  dibs_lease *before = NULL;
  for (dibs_lease *at = cohort->first; at != lease; at = at->next_local) before = at;
  if (before)
    before->next_local = lease->next_local;
  else
    cohort->first = lease->next_local;
  if (cohort->last == lease) cohort->last = before;
  has_left_line_locked(lease);
  dibs__lease_drop_locked(lease); /* its handle, or its caller, still holds it */
}

/* The grant is the cohort's no more: the next in line sends its own request, or the cohort ends. */
void dibs__cohort_part_locked(struct grant *grant, struct deferred *deferred, bool mine) {
  struct cohort *cohort = grant->cohort;
  dibs_store *store = grant->store;
  grant->cohort = NULL;
  cohort->grant = NULL;
  if (!cohort->first) {
    dibs__map_remove(&store->leases->cohorts, &cohort->by_name);
    free(cohort);
    return;
  }
  dibs_lease *next = take_first_waiter_locked(cohort);
  atomic_store(&next->phase, LEASE_REQUESTING);
  cohort->grant = dibs__grant_take_locked(next);
  cohort->grant->cohort = cohort;
  struct dibs__op *op = dibs__send_acquire_locked(cohort->grant);
  if (mine)
    dibs__deferred_mine(deferred, op);
  else
    dibs__deferred_finish(deferred, op);
  dibs__lease_drop_locked(next); /* the grant holds it now */
}

static void give_grant_back_locked(struct cohort *cohort, struct deferred *deferred) {
  struct grant *grant = cohort->grant;
  dibs__give_up_locked(grant, deferred, false);
  dibs__cohort_part_locked(grant, deferred, false);
}

/* The store granted it for longer than the lease lasts without renewal.  If it is handed on nevertheless, and held for
 * more than a moment, a renewal shortens it: else the name would be held for that long after a crash. */
static bool outlasts(const struct grant *grant, const dibs_lease *lease) {
  return grant->ttl_ms > lease->ttl_ms + RUN_EXTRA_MS;
}

static void hand_on_locked(struct cohort *cohort, dibs__tick now, struct deferred *deferred) {
  struct grant *grant = cohort->grant;
  dibs_lease *next = take_first_waiter_locked(cohort);
  if (grant->left > 0) {
    grant->fence = dibs__fence_nth(grant->fence, 1);
    grant->left--;
  } else {
    grant->fence = grant->fresh;
    grant->left = grant->fresh_left - 1;
    grant->fresh_left = 0;
  }
  cohort->run++;
  grant_give_locked(grant, next);
  grant->store->leases->handed_off++;
  count_granted_locked(grant);
  grant->store->leases->held++;
  dibs__watch_events_locked(next);
  dibs__wait_over_locked(next, DIBS_OK, deferred);
  dibs__lease_drop_locked(next);
  bool soon = cohort->run - cohort->requested_run >= RUN_MAX / 2 ||
              !dibs__tick_before(now, dibs__tick_add_ms(cohort->requested_at, RUN_MAX_MS / 2));
  if (soon && cohort->first && grant->requested == REQUEST_NOTHING)
    send_renew_again_locked(cohort, next->ttl_ms, deferred);
  else if (outlasts(grant, next))
    dibs__renew_soon_locked(grant);
}

/* The grant is parked: hands it on, renews it, or gives it back.  `fresh`: it was renewed just now.  Then it has as
 * much left as a grant that was just acquired: the ttl less the margin and the time that the answer took. */
static void cohort_pass_locked(struct cohort *cohort, bool fresh, struct deferred *deferred) {
  struct grant *grant = cohort->grant;
  dibs__tick now = dibs__tick_now();
  assert(grant_parked(grant));
  bool bound = cohort->run >= RUN_MAX || !dibs__tick_before(now, dibs__tick_add_ms(cohort->began, RUN_MAX_MS));
  if (!cohort->first || !dibs__tick_before(now, grant->until)) {
    give_grant_back_locked(cohort, deferred);
    return;
  }
  int64_t ttl_ms = cohort->first->ttl_ms;
  bool whole =
      dibs__tick_left_ms(now, grant->until) >= ttl_ms - dibs__margin_ms(ttl_ms) || (fresh && grant->ttl_ms >= ttl_ms);
  if (!bound && whole && grant->left + grant->fresh_left > 0) {
    hand_on_locked(cohort, now, deferred);
    return;
  }
  if (grant->requested != REQUEST_NOTHING) return; /* its answer passes on */
  /* The run is over: give the grant back, unless a renewal of this run has shown that no other client waits. */
  if (bound && cohort->others && cohort->requested_run > 0)
    give_grant_back_locked(cohort, deferred);
  else
    send_renew_again_locked(cohort, ttl_ms, deferred);
}

void dibs__cohort_renewed_locked(struct cohort *cohort, bool others, struct deferred *deferred) {
  cohort->others = others;
  if (!others) {
    cohort->run = cohort->requested_run = 0;
    cohort->began = dibs__tick_now();
  } else if (cohort->requested_run == 0) {
    cohort->requested_run = 1; /* this run knows that others wait */
  }
  struct grant *grant = cohort->grant;
  if (!grant_parked(grant)) { /* the renewal may have been that of the holder before */
    if (outlasts(grant, grant->lease)) dibs__renew_soon_locked(grant);
    return;
  }
  cohort_pass_locked(cohort, true, deferred);
}

/* The transitions of a lease: its wait ends, it is lost, it leaves, it is released; and the events of the receiver. */

static void count_wait_locked(const dibs_lease *lease, dibs_status status) {
  dibs_store *store = lease->store;
  if (status == DIBS_OK)
    dibs__hist_add(&store->leases->acquiring, dibs__tick_now().ns - lease->began.ns);
  else if (status == DIBS_HELD)
    store->leases->busy++;
  else if (status == DIBS_TIMEOUT)
    store->leases->timeouts++;
  else if (status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN)
    store->leases->failed++;
}

void dibs__wait_over_locked(dibs_lease *lease, dibs_status status, struct deferred *deferred) {
  dibs_store *store = lease->store;
  assert(atomic_load(&lease->phase) < LEASE_HELD);
  if (lease->counted) store->leases->waiting--;
  lease->counted = false;
  if (lease->leaves != DIBS_OK) store->leases->leaving--;
  count_wait_locked(lease, status);
  dibs__heap_remove(&store->leases->waits, &lease->wait);
  lease->status = lease->waited = status;
  atomic_store(&lease->phase, status == DIBS_OK ? LEASE_HELD : LEASE_OVER);
  if (lease->blocking)
    dibs__deferred_tell(deferred, lease);
  else
    dibs__call_locked(lease, CALL_GRANTED);
}

bool dibs__stays_with_others(const struct grant *grant) {
  return grant->lease->id_shared && grant->lease->leaves != DIBS_OK;
}

void dibs__give_up_locked(struct grant *grant, struct deferred *deferred, bool mine) {
  dibs__unwatch_locked(grant);
  dibs__heap_remove(&grant->store->leases->rechecks, &grant->recheck);
  struct dibs__op *op = NULL;
  if (grant->requested == REQUEST_RENEW)
    grant->then_release = true;
  else if (grant->requested != REQUEST_NOTHING)
    return; /* the answer finds that the lease has left */
  else if (grant->held && dibs__stays_with_others(grant))
    dibs__grant_end_locked(grant, deferred);
  else if (grant->held)
    op = dibs__send_release_locked(grant);
  else if (grant->waits)
    op = dibs__send_cancel_locked(grant);
  else
    dibs__grant_end_locked(grant, deferred);
  if (!op) return;
  grant->held = grant->waits = false;
  if (mine)
    dibs__deferred_mine(deferred, op);
  else
    dibs__deferred_finish(deferred, op);
}

void dibs__lose_locked(struct grant *grant, struct deferred *deferred) {
  dibs_lease *lease = grant->lease;
  dibs_store *store = grant->store;
  dibs__unwatch_locked(grant);
  bool parked = grant_parked(grant);
  if (grant->cohort) dibs__cohort_part_locked(grant, deferred, false);
  if (parked) {
    dibs__give_up_locked(grant, deferred, false);
    return;
  }
  grant->held = false;
  if (atomic_load(&lease->phase) != LEASE_HELD) return;
  bool in_time = dibs__tick_before(dibs__tick_now(), grant->store_until);
  lease_time_over(lease);
  lease->status = DIBS_LOST;
  atomic_store(&lease->phase, LEASE_OVER);
  store->leases->held--;
  store->leases->lost++;
  store->leases->lost_in_time += in_time;
  dibs__renewals_end_locked(lease, DIBS_LOST, true, deferred);
  if (lease->on_lost) dibs__call_locked(lease, CALL_LOST);
  dibs__deferred_tell(deferred, lease);
}

/* The status of a wait whose time has ended. */
static dibs_status timeout_of(const struct grant *grant) {
  if (grant->requested != REQUEST_NOTHING) return DIBS_UNKNOWN; /* in flight: a driver may be writing the status */
  dibs__status last = grant->op.op.status;
  if (last == DIBS_UNKNOWN) return DIBS_UNKNOWN;
  return last == DIBS_UNAVAILABLE ? DIBS_UNAVAILABLE /* every repetition failed */ : DIBS_TIMEOUT;
}

/* Takes the request back at the store. */
static void withdraw_locked(struct grant *grant, struct deferred *deferred) {
  if (grant->cohort) dibs__cohort_part_locked(grant, deferred, false);
  dibs__give_up_locked(grant, deferred, false);
}

void dibs__leave_now_locked(dibs_lease *lease, dibs_status status, struct deferred *deferred) {
  struct grant *grant = lease->grant;
  switch (atomic_load(&lease->phase)) {
  case LEASE_LOCAL:
    if (!lease->cohort) { /* made, but its wait never began */
      atomic_store(&lease->phase, LEASE_OVER);
      break;
    }
    cohort_leave_locked(lease);
    dibs__wait_over_locked(lease, status, deferred);
    break;
  case LEASE_REQUESTING:
    if (status == DIBS_TIMEOUT) status = timeout_of(grant);
    __attribute__((fallthrough));
  case LEASE_QUEUED:
    dibs__wait_over_locked(lease, status, deferred);
    if (lease->leaves == DIBS_OK) withdraw_locked(grant, deferred);
    break;
  default:
    break;
  }
}

/* When a caller learns that its wait is over, it is in no list any more, and what the store granted in the meantime has
 * been given back.  The caller waits for that, which takes a moment; it does not wait for a store that does not answer.
 */
void dibs__leave_locked(dibs_lease *lease, dibs_status status, struct deferred *deferred) {
  uint32_t phase = atomic_load(&lease->phase);
  if (phase != LEASE_REQUESTING && phase != LEASE_QUEUED) {
    dibs__leave_now_locked(lease, status, deferred);
    return;
  }
  dibs__tick now = dibs__tick_now();
  bool rests = phase == LEASE_REQUESTING && lease->grant->requested == REQUEST_NOTHING;
  if (status == DIBS_TIMEOUT && rests) status = timeout_of(lease->grant);
  if (lease->leaves != DIBS_OK) {
    if (!dibs__tick_before(now, lease->wait.at)) dibs__leave_now_locked(lease, lease->leaves, deferred);
    return;
  }
  lease->leaves = status;
  lease->wait.at = dibs__tick_add_ms(now, LEAVE_MS);
  lease->store->leases->leaving++;
  if (!lease->blocking) {
    dibs__heap_set(&lease->store->leases->waits, &lease->wait, lease->wait.at);
    dibs__watch_by_locked(lease->store, lease->wait.at);
  }
  withdraw_locked(lease->grant, deferred); /* which may end it at once */
}

void dibs__released_locked(dibs_lease *lease, dibs_status status, struct deferred *deferred) {
  if (lease->status == DIBS_LOST) status = DIBS_LOST;
  if (status == DIBS_OK && atomic_load(&lease->phase) == LEASE_RELEASING)
    dibs__hist_add(&lease->store->leases->releasing, dibs__tick_now().ns - lease->began.ns);
  lease->released = status;
  atomic_store(&lease->phase, LEASE_OVER);
  if (lease->release_done) dibs__call_locked(lease, CALL_RELEASED);
  dibs__deferred_tell(deferred, lease);
}

void dibs__release_locked(dibs_lease *lease, struct deferred *deferred) {
  struct grant *grant = lease->grant;
  if (atomic_load(&lease->phase) == LEASE_HELD) lease->store->leases->held--;
  lease_time_over(lease);
  dibs__renewals_end_locked(lease, DIBS_LOST, true, deferred);
  if (grant->cohort && grant->cohort->first && !grant->shown) {
    struct cohort *cohort = grant->cohort;
    lease->grant = NULL; /* parked; grant->lease still lends its name */
    dibs__released_locked(lease, DIBS_OK, deferred);
    cohort_pass_locked(cohort, false, deferred);
    return;
  }
  lease->began = dibs__tick_now();
  atomic_store(&lease->phase, LEASE_RELEASING);
  grant->held = true; /* also when lost: a broken one is acknowledged by its release */
  dibs__give_up_locked(grant, deferred, true);
  if (grant->cohort) dibs__cohort_part_locked(grant, deferred, true);
}

/* ---- The receiver's ---- */

void dibs__hold_locked(struct grant *grant, dibs__fence first, uint32_t block, dibs__tick until,
                       struct deferred *deferred) {
  dibs_store *store = grant->store;
  dibs__heap_remove(&store->leases->rechecks, &grant->recheck);
  grant->waits = false;
  grant->held = true;
  grant->fails = 0;
  grant->until = until;
  grant->fence = first;
  grant->left = block > 0 ? block - 1 : 0;
  if (grant->cohort) {
    grant->cohort->run = 0;
    grant->cohort->began = grant->cohort->requested_at = dibs__tick_now();
    grant->cohort->requested_run = 0;
    grant->cohort->others = true;
  }
  grant_give_locked(grant, grant->lease);
  count_granted_locked(grant);
  store->leases->held++;
  dibs__watch_locked(grant);
  dibs__wait_over_locked(grant->lease, DIBS_OK, deferred);
}

/* Until when an offer is valid; 0: unknown.  A store with a clock of its own made it after it answered QUEUED, so it is
 * valid for at least OFFER_MS from before that request; a message of an earlier offer, that comes late, has a
 * fence that was drawn before. */
static dibs__tick offer_valid_until(const struct grant *grant, const struct dibs__event *event) {
  const struct dibs__lease_op *requested = &grant->op;
  if (event->held_until.ns != 0) return event->held_until;
  bool lasts = (dibs__core_caps(grant->store->core) & DIBS__CAP_OFFERS_LAST) != 0;
  if (!lasts || requested->op.status != DIBS__QUEUED || !dibs__fence_below(requested->fence, event->fence))
    return (dibs__tick){0};
  return dibs__tick_add_ms(requested->op.sent, DIBS__OFFER_MS);
}

/* What a store offers is ours until the offer ends, and is confirmed beside the path.  A release before that saves
 * the store a transaction. */
static bool begin_at_once_locked(struct grant *grant, const struct dibs__event *event, struct deferred *deferred) {
  dibs_lease *lease = grant->lease;
  assert(lease->leaves == DIBS_OK); /* else it waits no more */
  dibs__tick until = offer_valid_until(grant, event);
  if (until.ns == 0 || atomic_load(&lease->phase) != LEASE_QUEUED) return false;
  if (lease->on_lost || (lease->flags & DIBS_NO_RENEW))
    return false;                                          /* such a holder counts on the whole ttl: confirm first */
  if (!dibs__core_ready(grant->store->core)) return false; /* it could not be confirmed in time */
  dibs__tick sure = {until.ns - dibs__margin_ms(DIBS__OFFER_MS) * DIBS__NS_PER_MS};
  if (!dibs__tick_before(dibs__tick_now(), sure)) return false;
  grant->unconfirmed = true;
  grant->slot = 0;
  grant->tier = grant->op.tier; /* of the answer QUEUED: the tier that makes the offer */
  grant->store_until = until;
  dibs__hold_locked(grant, event->fence, 1, sure, deferred);
  return true;
}

static void offered_locked(struct grant *grant, const struct dibs__event *event, struct deferred *deferred) {
  if (grant->requested == REQUEST_ACQUIRE) { /* it may have been answered before the offer was made */
    grant->again = true;
    return;
  }
  if (!grant->waits || grant->requested != REQUEST_NOTHING) return;
  if (begin_at_once_locked(grant, event, deferred)) return;
  dibs__heap_remove(&grant->store->leases->rechecks, &grant->recheck);
  dibs__deferred_finish(deferred, dibs__send_acquire_locked(grant));
}

static void recheck_all_locked(dibs_store *store) {
  dibs__tick now = dibs__tick_now();
  for (uint32_t i = 0; i < store->leases->rechecks.count; i++)
    store->leases->rechecks.nodes[i]->at = now; /* equal: still a heap */
}

static void lose_all_locked(dibs_store *store, struct deferred *deferred) {
  struct dibs__heap_node *node;
  while ((node = dibs__heap_first(&store->leases->losses)))
    dibs__lose_locked((struct grant *)((char *)node - offsetof(struct grant, loss)), deferred);
}

void dibs__lease_event(void *context, const struct dibs__event *event) {
  dibs_store *store = context;
  struct deferred deferred = {0};
  dibs__mutex_lock(&store->lock);
  struct grant *grant = NULL;
  switch (event->what) {
  case DIBS__EV_OFFER:
    grant = grant_find_locked(store, &event->id);
    if (grant) offered_locked(grant, event, &deferred);
    break;
  case DIBS__EV_LOST:
    grant = grant_find_locked(store, &event->id);
    if (grant && grant->held) dibs__lose_locked(grant, &deferred);
    break;
  case DIBS__EV_SESSION_GONE:
    lose_all_locked(store, &deferred);
    recheck_all_locked(store);
    break;
  case DIBS__EV_RECHECK:
  case DIBS__EV_NEW_INCARNATION:
    recheck_all_locked(store);
    break;
  case DIBS__EV_TASKS:
    break;
  }
  dibs__mutex_unlock(&store->lock);
  if (event->what == DIBS__EV_TASKS) dibs__rouse_listeners(store, NULL);
  if (store->watch) store->watch(store->watch_context, event);
  dibs__deferred_start(store, &deferred);
}

void dibs__end_waits_locked(dibs_store *store, dibs__tick now, struct deferred *deferred) {
  struct dibs__heap_node *node;
  while ((node = dibs__heap_first(&store->leases->waits)) && !dibs__tick_before(now, node->at))
    dibs__leave_locked((dibs_lease *)((char *)node - offsetof(dibs_lease, wait)), DIBS_TIMEOUT, deferred);
}

static void recheck_due_locked(dibs_store *store, dibs__tick now, struct deferred *deferred) {
  struct dibs__heap_node *node;
  for (int n = 0; n < RECHECKS_AT_ONCE; n++) {
    node = dibs__heap_first(&store->leases->rechecks);
    if (!node || dibs__tick_before(now, node->at)) return;
    struct grant *grant = (struct grant *)((char *)node - offsetof(struct grant, recheck));
    dibs__heap_remove(&store->leases->rechecks, node);
    dibs__deferred_finish(deferred, dibs__send_acquire_locked(grant));
  }
}

dibs__tick dibs__lease_timers(void *context, dibs__tick now) {
  dibs_store *store = context;
  struct deferred deferred = {0};
  dibs__tick due = DIBS__TICK_NEVER;
  dibs__mutex_lock(&store->lock);
  dibs__end_waits_locked(store, now, &deferred);
  recheck_due_locked(store, now, &deferred);
  struct dibs__heap_node *wait = dibs__heap_first(&store->leases->waits),
                         *recheck = dibs__heap_first(&store->leases->rechecks);
  if (wait) due = wait->at;
  if (recheck) due = dibs__tick_min(due, recheck->at);
  dibs__mutex_unlock(&store->lock);
  dibs__deferred_start(store, &deferred);
  return due;
}

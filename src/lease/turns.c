/* SPDX-License-Identifier: MIT */
/* What happens to a lease: its wait ends, it is lost, it leaves, it is released; and what the receiver brings. */
#include "lease/room.h"

#include <assert.h>

static void count_wait_locked(const dibs_lease *lease, dibs_status status) {
  dibs_store *store = lease->store;
  if (status == DIBS_OK)
    dibs__hist_add(&store->acquiring, dibs__tick_now().ns - lease->began.ns);
  else if (status == DIBS_HELD)
    store->busy++;
  else if (status == DIBS_TIMEOUT)
    store->timeouts++;
  else if (status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN)
    store->failed++;
}

void dibs__wait_over_locked(dibs_lease *lease, dibs_status status, struct after *after) {
  dibs_store *store = lease->store;
  assert(atomic_load(&lease->phase) < LEASE_HELD);
  if (lease->counted) store->waiting--;
  lease->counted = false;
  count_wait_locked(lease, status);
  dibs__heap_remove(&store->waits, &lease->wait);
  lease->status = lease->waited = status;
  atomic_store(&lease->phase, status == DIBS_OK ? LEASE_HELD : LEASE_OVER);
  if (lease->blocking)
    dibs__after_tell(after, lease);
  else
    dibs__call_locked(lease, CALL_GRANTED);
}

void dibs__give_up_locked(struct grant *grant, struct after *after, bool mine) {
  dibs__unwatch_locked(grant);
  dibs__heap_remove(&grant->store->rechecks, &grant->recheck);
  struct dibs__op *op = NULL;
  if (grant->asked == ASK_RENEW)
    grant->then_release = true;
  else if (grant->asked != ASK_NOTHING)
    return; /* the answer finds that the lease has left */
  else if (grant->held)
    op = dibs__ask_release_locked(grant);
  else if (grant->waits)
    op = dibs__ask_cancel_locked(grant);
  else
    dibs__grant_end_locked(grant);
  if (!op) return;
  grant->held = grant->waits = false;
  if (mine)
    dibs__after_mine(after, op);
  else
    dibs__after_rest(after, op);
}

void dibs__lose_locked(struct grant *grant, struct after *after) {
  dibs_lease *lease = grant->lease;
  dibs_store *store = grant->store;
  dibs__unwatch_locked(grant);
  bool parked = grant_parked(grant);
  if (grant->cohort) dibs__cohort_part_locked(grant, after, false);
  if (parked) {
    dibs__give_up_locked(grant, after, false);
    return;
  }
  grant->held = false;
  if (atomic_load(&lease->phase) != LEASE_HELD) return;
  atomic_store(&lease->until_ns, 0);
  lease->status = DIBS_LOST;
  atomic_store(&lease->phase, LEASE_OVER);
  store->held--;
  store->lost++;
  if (lease->on_lost) dibs__call_locked(lease, CALL_LOST);
  dibs__after_tell(after, lease);
}

void dibs__leave_locked(dibs_lease *lease, dibs_status status, struct after *after) {
  struct grant *grant = lease->grant;
  switch (atomic_load(&lease->phase)) {
  case LEASE_LOCAL:
    if (!lease->cohort) { /* made, but its wait never began */
      atomic_store(&lease->phase, LEASE_OVER);
      break;
    }
    dibs__cohort_leave_locked(lease);
    dibs__wait_over_locked(lease, status, after);
    break;
  case LEASE_ASKING:
    if (status == DIBS_TIMEOUT) status = DIBS_UNKNOWN; /* the question travels */
    __attribute__((fallthrough));
  case LEASE_QUEUED:
    if (grant->cohort) dibs__cohort_part_locked(grant, after, false);
    dibs__wait_over_locked(lease, status, after);
    dibs__give_up_locked(grant, after, false);
    break;
  default:
    break;
  }
}

void dibs__released_locked(dibs_lease *lease, dibs_status status, struct after *after) {
  if (lease->status == DIBS_LOST) status = DIBS_LOST;
  if (status == DIBS_OK && atomic_load(&lease->phase) == LEASE_RELEASING)
    dibs__hist_add(&lease->store->releasing, dibs__tick_now().ns - lease->began.ns);
  lease->released = status;
  atomic_store(&lease->phase, LEASE_OVER);
  if (lease->release_done) dibs__call_locked(lease, CALL_RELEASED);
  dibs__after_tell(after, lease);
}

void dibs__release_locked(dibs_lease *lease, struct after *after) {
  struct grant *grant = lease->grant;
  if (atomic_load(&lease->phase) == LEASE_HELD) lease->store->held--;
  atomic_store(&lease->until_ns, 0);
  if (grant->cohort && grant->cohort->first && !grant->shown) {
    struct cohort *cohort = grant->cohort;
    lease->grant = NULL; /* parked; grant->lease still lends its name */
    dibs__released_locked(lease, DIBS_OK, after);
    dibs__cohort_pass_locked(cohort, after);
    return;
  }
  lease->began = dibs__tick_now();
  atomic_store(&lease->phase, LEASE_RELEASING);
  grant->held = true; /* also when lost: a broken one is acknowledged by its release */
  dibs__give_up_locked(grant, after, true);
  if (grant->cohort) dibs__cohort_part_locked(grant, after, true);
}

/* ---- The receiver's ---- */

void dibs__hold_locked(struct grant *grant, dibs__fence first, uint32_t block, dibs__tick until, struct after *after) {
  dibs_store *store = grant->store;
  dibs__heap_remove(&store->rechecks, &grant->recheck);
  grant->waits = false;
  grant->held = true;
  grant->fails = 0;
  grant->until = until;
  grant->fence = first;
  grant->left = block > 0 ? block - 1 : 0;
  if (grant->cohort) {
    grant->cohort->run = 0;
    grant->cohort->began = grant->cohort->asked_at = dibs__tick_now();
    grant->cohort->asked_run = 0;
    grant->cohort->others = true;
  }
  dibs__grant_give_locked(grant, grant->lease);
  store->granted++;
  store->held++;
  dibs__watch_locked(grant);
  dibs__wait_over_locked(grant->lease, DIBS_OK, after);
}

/* Until when an offer stands; 0: that is not known.  A store with a clock of its own: it was made after it told us to
 * wait, so it stands OFFER_MS from before we asked that at least; a message of an earlier offer, that comes late, has a
 * fence that was drawn before. */
static dibs__tick stands_until(const struct grant *grant, const struct dibs__event *event) {
  const struct dibs__lease_op *asked = &grant->op;
  if (event->held_until.ns != 0) return event->held_until;
  bool lasts = (dibs__core_caps(grant->store->core) & DIBS__CAP_OFFERS_LAST) != 0;
  if (!lasts || asked->op.status != DIBS__QUEUED || !dibs__fence_below(asked->fence, event->fence))
    return (dibs__tick){0};
  return dibs__tick_add_ms(asked->op.sent, DIBS__OFFER_MS);
}

/* What a store offers is ours until the offer ends, and is confirmed beside the path.  Who lets go before that has
 * spared the store a transaction. */
static bool begin_at_once_locked(struct grant *grant, const struct dibs__event *event, struct after *after) {
  dibs_lease *lease = grant->lease;
  dibs__tick until = stands_until(grant, event);
  if (until.ns == 0 || atomic_load(&lease->phase) != LEASE_QUEUED) return false;
  if (lease->on_lost || (lease->flags & DIBS_NO_RENEW)) return false; /* who counts on the whole ttl gets it first */
  dibs__tick sure = {until.ns - dibs__margin_ms(DIBS__OFFER_MS) * DIBS__NS_PER_MS};
  if (!dibs__tick_before(dibs__tick_now(), sure)) return false;
  grant->unconfirmed = true;
  grant->slot = 0;
  grant->tier = NULL;
  dibs__hold_locked(grant, event->fence, 1, sure, after);
  return true;
}

static void offered_locked(struct grant *grant, const struct dibs__event *event, struct after *after) {
  if (grant->asked == ASK_ACQUIRE) { /* it may have been answered before the offer was made */
    grant->again = true;
    return;
  }
  if (!grant->waits || grant->asked != ASK_NOTHING) return;
  if (begin_at_once_locked(grant, event, after)) return;
  dibs__heap_remove(&grant->store->rechecks, &grant->recheck);
  dibs__after_rest(after, dibs__ask_acquire_locked(grant));
}

static void recheck_all_locked(dibs_store *store) {
  dibs__tick now = dibs__tick_now();
  for (uint32_t i = 0; i < store->rechecks.count; i++) store->rechecks.nodes[i]->at = now; /* equal: still a heap */
}

static void lose_all_locked(dibs_store *store, struct after *after) {
  struct dibs__heap_node *node;
  while ((node = dibs__heap_first(&store->losses)))
    dibs__lose_locked((struct grant *)((char *)node - offsetof(struct grant, loss)), after);
}

void dibs__room_event(void *room, const struct dibs__event *event) {
  dibs_store *store = room;
  struct after after = {0};
  dibs__mutex_lock(&store->lock);
  struct grant *grant = NULL;
  switch (event->what) {
  case DIBS__EV_OFFER:
    grant = dibs__grant_find_locked(store, &event->id);
    if (grant) offered_locked(grant, event, &after);
    break;
  case DIBS__EV_LOST:
    grant = dibs__grant_find_locked(store, &event->id);
    if (grant && grant->held) dibs__lose_locked(grant, &after);
    break;
  case DIBS__EV_SESSION_GONE:
    lose_all_locked(store, &after);
    recheck_all_locked(store);
    break;
  case DIBS__EV_RECHECK:
  case DIBS__EV_NEW_LIFE:
    recheck_all_locked(store);
    break;
  }
  dibs__mutex_unlock(&store->lock);
  dibs__after_start(store, &after);
}

static void end_waits_locked(dibs_store *store, dibs__tick now, struct after *after) {
  struct dibs__heap_node *node;
  while ((node = dibs__heap_first(&store->waits)) && !dibs__tick_before(now, node->at))
    dibs__leave_locked((dibs_lease *)((char *)node - offsetof(dibs_lease, wait)), DIBS_TIMEOUT, after);
}

static void recheck_locked(dibs_store *store, dibs__tick now, struct after *after) {
  struct dibs__heap_node *node;
  for (int n = 0; n < RECHECKS_AT_ONCE; n++) {
    node = dibs__heap_first(&store->rechecks);
    if (!node || dibs__tick_before(now, node->at)) return;
    struct grant *grant = (struct grant *)((char *)node - offsetof(struct grant, recheck));
    dibs__heap_remove(&store->rechecks, node);
    dibs__after_rest(after, dibs__ask_acquire_locked(grant));
  }
}

dibs__tick dibs__room_timers(void *room, dibs__tick now) {
  dibs_store *store = room;
  struct after after = {0};
  dibs__tick due = DIBS__TICK_NEVER;
  dibs__mutex_lock(&store->lock);
  end_waits_locked(store, now, &after);
  recheck_locked(store, now, &after);
  struct dibs__heap_node *wait = dibs__heap_first(&store->waits), *recheck = dibs__heap_first(&store->rechecks);
  if (wait) due = wait->at;
  if (recheck) due = dibs__tick_min(due, recheck->at);
  dibs__mutex_unlock(&store->lock);
  dibs__after_start(store, &after);
  return due;
}

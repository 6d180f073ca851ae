/* SPDX-License-Identifier: MIT */
/*
 * Questions to the store, and what their answers do.  An answer comes on whatever thread carried the question, with no
 * lock held; it may find that the lease has left meanwhile (phase OVER): then what it brought is given back.
 */
#include "lease/room.h"

#include <assert.h>
#include <string.h>

static void answered(struct dibs__op *op);

static struct dibs__op *ask_locked(struct grant *grant, enum asked asked, uint16_t verb, uint16_t flags) {
  struct dibs__lease_op *op = &grant->op;
  dibs__mandate mandate = op->op.mandate;
  assert(grant->asked == ASK_NOTHING);
  grant->asker = grant->lease;
  dibs__lease_hold(grant->asker);
  op->name = dibs__str_of(grant->asker->name, strlen(grant->asker->name));
  if (grant->adopted) flags |= DIBS__OP_FOLLOWS;
  dibs__core_head(grant->store->core, &op->op, DIBS__FAM_LEASE, verb, flags, dibs__bucket(op->name), answered);
  op->op.mandate = mandate;
  grant->asked = asked;
  grant->store->flying++;
  return &op->op;
}

struct dibs__op *dibs__ask_acquire_locked(struct grant *grant) {
  dibs_lease *lease = grant->lease;
  struct dibs__lease_op *op = &grant->op;
  const char *owner = lease->owner ? lease->owner : grant->store->owner;
  uint16_t flags = DIBS__OP_FOLLOWS;
  if (grant->waits) flags |= DIBS__OP_URGENT; /* a confirm */
  op->owner = dibs__str_of(owner, strlen(owner));
  op->mode = lease->mode;
  op->slots = lease->slots;
  op->queue = !lease->tries;
  op->want_block = grant->cohort && grant->cohort->first ? RUN_MAX : 1;
  grant->ttl_ms = lease->ttl_ms + (op->want_block > 1 ? RUN_EXTRA_MS : 0);
  op->ttl_ms = (uint32_t)grant->ttl_ms;
  grant->again = false;
  return ask_locked(grant, ASK_ACQUIRE, DIBS__ACQUIRE, flags);
}

/* Asked for less time than it has: the store may cut it as soon as the question leaves, whether or not we hear of it.
 */
static void cut_locked(struct grant *grant, dibs__tick now) {
  dibs__tick until = dibs__tick_add_ms(now, grant->ttl_ms - dibs__margin_ms(grant->ttl_ms));
  if (!grant->held || !dibs__tick_before(until, grant->until)) return;
  grant->until = until;
  if (!grant_parked(grant) && atomic_load(&grant->lease->phase) == LEASE_HELD)
    atomic_store(&grant->lease->until_ns, until.ns);
  dibs__watch_loss_locked(grant);
}

struct dibs__op *dibs__ask_renew_locked(struct grant *grant, int64_t ttl_ms, uint32_t want_block) {
  dibs__tick now = dibs__tick_now();
  grant->ttl_ms = ttl_ms + (want_block > 0 ? RUN_EXTRA_MS : 0);
  grant->op.ttl_ms = (uint32_t)grant->ttl_ms;
  grant->op.fence = grant->fence;
  grant->op.want_block = want_block;
  cut_locked(grant, now);
  struct dibs__op *op = ask_locked(grant, ASK_RENEW, DIBS__RENEW, DIBS__OP_URGENT);
  /* Half of what remains, so that there is time for a second try. */
  int64_t half = dibs__tick_left_ms(now, grant->until) / 2;
  if (grant->held) op->by = dibs__tick_min(op->by, dibs__tick_add_ms(now, half > 0 ? half : 1));
  return op;
}

/* One that is unconfirmed may be an offer still, or fall asleep meanwhile: cancelling takes away whatever it is. */
struct dibs__op *dibs__ask_release_locked(struct grant *grant) {
  grant->op.fence = grant->fence;
  if (grant->unconfirmed) return ask_locked(grant, ASK_RELEASE, DIBS__CANCEL, DIBS__OP_URGENT);
  return ask_locked(grant, ASK_RELEASE, DIBS__RELEASE, DIBS__OP_URGENT);
}

struct dibs__op *dibs__ask_cancel_locked(struct grant *grant) {
  return ask_locked(grant, ASK_CANCEL, DIBS__CANCEL, DIBS__OP_URGENT);
}

/* From before the question was sent, less the margin: before that instant it is surely ours. */
static dibs__tick sure_until(const struct grant *grant) {
  return dibs__tick_add_ms(grant->op.op.sent, grant->ttl_ms - dibs__margin_ms(grant->ttl_ms));
}

static void granted_locked(struct grant *grant, struct after *after) {
  dibs_lease *lease = grant->lease;
  grant->waits = false;
  grant->op.ticket = 0;
  grant->slot = grant->op.slot;
  grant->tier = grant->op.tier;
  if (atomic_load(&lease->phase) < LEASE_HELD) {
    dibs__hold_locked(grant, grant->op.fence, grant->op.got_block, sure_until(grant), after);
    return;
  }
  /* It left.  Its own id may be asked for again: then the grant is to be found. */
  grant->held = true;
  grant->fence = grant->op.fence;
  if (lease->own_id && lease->status == DIBS_UNKNOWN)
    dibs__grant_end_locked(grant);
  else
    dibs__give_up_locked(grant, after, false);
}

static void queued_locked(struct grant *grant, struct after *after) {
  dibs_lease *lease = grant->lease;
  dibs_store *store = grant->store;
  grant->waits = true;
  grant->fails = 0;
  if (atomic_load(&lease->phase) == LEASE_OVER) {
    dibs__give_up_locked(grant, after, false);
    return;
  }
  if (atomic_load(&lease->phase) == LEASE_ASKING) atomic_store(&lease->phase, LEASE_QUEUED);
  if (grant->again) {
    dibs__after_rest(after, dibs__ask_acquire_locked(grant));
    return;
  }
  /* When a holder or an offer runs out, and each second at least: a lost notification delays, never hangs. */
  int64_t in_ms = grant->op.recheck.ms - grant->op.op.at.ms + 1;
  if (grant->op.recheck.ms == 0 || in_ms > RECHECK_MS) in_ms = RECHECK_MS;
  if (in_ms < 1) in_ms = 1;
  dibs__tick at = dibs__tick_add_ms(dibs__tick_now(), in_ms);
  dibs__heap_set(&store->rechecks, &grant->recheck, at);
  after->due = at;
}

/* The grant never came to be, or its place is gone. */
static void ended_locked(struct grant *grant, dibs_status status, struct after *after) {
  dibs_lease *lease = grant->lease;
  grant->waits = grant->held = false;
  if (grant->cohort) dibs__cohort_part_locked(grant, after, false);
  if (atomic_load(&lease->phase) < LEASE_HELD) dibs__wait_over_locked(lease, status, after);
  dibs__grant_end_locked(grant);
}

static void acquire_trouble_locked(struct grant *grant, dibs__status status, struct after *after) {
  dibs_lease *lease = grant->lease;
  bool left = atomic_load(&lease->phase) == LEASE_OVER;
  /* Not even sent in time: of who has a time for it alone the wait is over. */
  if (status == DIBS__MOVED || (status == DIBS_TIMEOUT && (lease->tries || lease->wait.at.ns == INT64_MAX)))
    status = DIBS_UNAVAILABLE;
  bool passing = status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN || status == DIBS_TIMEOUT;
  if (grant->waits && passing && !left && ++grant->fails < RECHECK_FAILS) { /* it may come back within our wait */
    after->due = dibs__tick_add_ms(dibs__tick_now(), RECHECK_MS);
    dibs__heap_set(&grant->store->rechecks, &grant->recheck, after->due);
    return;
  }
  if (status == DIBS_UNKNOWN && !lease->own_id) { /* nobody can ask with this id again: clean up behind us */
    grant->waits = true;
    if (grant->cohort) dibs__cohort_part_locked(grant, after, false);
    if (!left) dibs__wait_over_locked(lease, DIBS_UNKNOWN, after);
    dibs__give_up_locked(grant, after, false);
    return;
  }
  ended_locked(grant, (dibs_status)status, after);
}

static void acquire_answered_locked(struct grant *grant, struct after *after) {
  dibs__status status = grant->op.op.status;
  grant->adopted = false;
  if (status == DIBS_OK)
    granted_locked(grant, after);
  else if (status == DIBS__QUEUED)
    queued_locked(grant, after);
  else
    acquire_trouble_locked(grant, status, after);
}

static void renewal_told_locked(struct grant *grant, dibs_status status, struct after *after) {
  grant->lease->renewed = status;
  dibs__after_tell(after, grant->lease);
}

static void renew_answered_locked(struct grant *grant, struct after *after) {
  dibs_store *store = grant->store;
  dibs__status status = grant->op.op.status;
  if (status == DIBS_OK) {
    store->renewed++;
    grant->adopted = grant->unconfirmed = false;
    grant->op.ticket = 0;
    grant->fails = 0;
    if (grant->op.want_block > 0 && grant->op.got_block > 0) {
      grant->fresh = grant->op.fence;
      grant->fresh_left = grant->op.got_block;
    }
    bool lost = !grant->held && atomic_load(&grant->lease->phase) == LEASE_OVER;
    if (!lost) {
      grant->held = true;
      grant->until = sure_until(grant);
      if (!grant_parked(grant) && atomic_load(&grant->lease->phase) == LEASE_HELD)
        atomic_store(&grant->lease->until_ns, grant->until.ns);
      dibs__watch_locked(grant);
    }
    renewal_told_locked(grant, lost ? DIBS_LOST : DIBS_OK, after);
    if (grant->cohort) dibs__cohort_renewed_locked(grant->cohort, grant->op.waiting, after);
    return;
  }
  if (status == DIBS__MOVED || status == DIBS_LOST) {
    renewal_told_locked(grant, DIBS_LOST, after);
    dibs__lose_locked(grant, after);
    return;
  }
  if (status == DIBS_TIMEOUT) status = DIBS_UNAVAILABLE;
  renewal_told_locked(grant, (dibs_status)status, after);
  grant->fails++;
  if (grant->held) dibs__watch_locked(grant); /* soon again */
  if (grant_parked(grant)) {                  /* nobody holds it: the next in line asks for itself */
    dibs__cohort_part_locked(grant, after, false);
    dibs__give_up_locked(grant, after, false);
  }
}

static void release_answered_locked(struct grant *grant, struct after *after) {
  dibs__status status = grant->op.op.status;
  dibs_lease *lease = grant->lease;
  bool had =
      grant->op.op.verb == DIBS__RELEASE || grant->op.was == DIBS__WAS_OFFERED || grant->op.was == DIBS__WAS_HELD;
  if (status == DIBS__MOVED || status == DIBS_NOT_FOUND || (status == DIBS_OK && !had)) status = DIBS_LOST;
  if (status == DIBS_TIMEOUT) status = DIBS_UNAVAILABLE;
  if (!grant_parked(grant)) dibs__released_locked(lease, (dibs_status)status, after);
  dibs__grant_end_locked(grant);
}

static void answered(struct dibs__op *op) {
  struct grant *grant = (struct grant *)((char *)op - offsetof(struct grant, op));
  dibs_store *store = grant->store;
  struct after after = {0};
  dibs__mutex_lock(&store->lock);
  enum asked asked = grant->asked;
  dibs_lease *asker = grant->asker;
  grant->asked = ASK_NOTHING;
  store->flying--;
  /* The release that was wanted meanwhile: after what the answer itself does to the grant. */
  bool release = grant->then_release;
  grant->then_release = false;
  switch (asked) {
  case ASK_ACQUIRE:
    acquire_answered_locked(grant, &after);
    break;
  case ASK_RENEW:
    if (release) {
      renewal_told_locked(grant, DIBS_LOST, &after);
      dibs__after_rest(&after, dibs__ask_release_locked(grant));
    } else {
      renew_answered_locked(grant, &after);
    }
    break;
  case ASK_RELEASE:
    release_answered_locked(grant, &after);
    break;
  case ASK_CANCEL:
    dibs__grant_end_locked(grant);
    break;
  case ASK_NOTHING:
    assert(!"an answer to no question");
  }
  dibs__lease_drop_locked(asker);
  if (store->closing && store->flying == 0) dibs__after_wake(store, &after, &store->landed);
  /* The store outlives this: dibs_close waits until nothing flies, and what `after` starts flies. */
  dibs__mutex_unlock(&store->lock);
  dibs__after_answer(store, &after);
}

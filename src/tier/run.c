/* SPDX-License-Identifier: MIT */
/*
 * A batch: each operation goes to the tier that has its bucket, under the mandate that the operation names.  An
 * operation with another mandate answers MOVED with the present one, and no tier is asked.
 *
 * A tier that does not have the record's mandate is repaired before the answer, so that the caller's repeat succeeds.
 * A tier that does not answer does not end a wait: a client that would queue is asked to repeat soon, and finds the
 * bucket elsewhere as soon as it has moved.
 *
 * Tickets and instants differ between tiers: a ticket contains its tier, and an instant is converted to our clock.
 */
#include "store/family.h"
#include "store/task.h"
#include "tier/tiers_impl.h"

enum { ANSWERED = TIERS_ALL, DONE, TICKET_BITS = 3, ABOUT_MS = 20 };
#define NO_TICKET (UINT64_C(1) << 63)

struct batch {
  struct tiers *t;
  struct tiers_session *s;
  struct dibs__op *const *ops;
  size_t count;
  dibs__tick by, now;
  dibs__tick mend_by; /* how long renewals may wait for operations that do not concern them */
  struct dibs__result *result;
  dibs__status status;
  bool heals, follows, tells;
  struct heal why;
};

static struct dibs__lease_op *lease_of(struct dibs__op *op) {
  return (struct dibs__lease_op *)op;
}

static bool may_wait(const struct dibs__op *op) {
  return op->verb == DIBS__ACQUIRE && ((const struct dibs__lease_op *)op)->queue;
}

/* Answers in place of a tier: not now.  A waiter continues to wait. */
static void not_now(const struct batch *b, struct dibs__op *op, dibs__status status, int64_t again_ms) {
  struct dibs__lease_op *lease = lease_of(op);
  op->status = status;
  if (op->family != DIBS__FAM_LEASE || op->verb != DIBS__ACQUIRE) return;
  if (again_ms < 1) again_ms = 1;
  op->at.ms = tiers_ms(b->now);
  lease->recheck.ms = tiers_ms(b->now) + again_ms;
  if (!lease->queue) return;
  op->status = DIBS__QUEUED;
  if (lease->ticket == 0) lease->ticket = NO_TICKET; /* otherwise it keeps its position there */
  lease->waiting = false;
  /* No offer is known to be later than this answer (CAP_OFFERS_LAST): on an offer event the waiter has to ask. */
  lease->fence.v = UINT64_MAX;
}

/* ---- The tier of an operation ---- */

/* Strict: a copy is valid for a moment only, and a mandate that follows another has to wait for that one's leases. */
static bool strictly_may_locked(const struct batch *b, struct dibs__op *op, const struct here *here) {
  const struct tiers *t = b->t;
  if (t->state.strictness != DIBS__STRICT || here->tier == DIBS__TIER_LOCAL) return true;
  bool draws = op->verb == DIBS__ACQUIRE || op->verb == DIBS__RENEW;
  if (!draws) return true;
  int64_t age = tiers_ms(b->now) - tiers_ms(t->confirmed);
  if (!t->confirmed.ns || age >= DIBS__TIERS_CONFIRM_MS || lease_of(op)->ttl_ms > t->state.longest_ms) {
    not_now(b, op, DIBS_UNAVAILABLE, TIERS_RETRY_MS);
    return false;
  }
  int64_t wait = here->from - (tiers_ms(b->now) + t->ahead_ms);
  if (wait <= 0 || op->verb != DIBS__ACQUIRE) return true;
  not_now(b, op, DIBS_HELD, wait);
  return false;
}

static uint32_t route_lease_locked(struct batch *b, size_t i) {
  struct dibs__op *op = b->ops[i];
  if (op->bucket >= DIBS__BUCKETS) {
    op->status = DIBS_INVALID;
    return ANSWERED;
  }
  const struct here *here = &b->t->here[op->bucket];
  if (here->mandate.epoch == 0) { /* no mandate was made: no tier could be reached until now */
    b->heals = true;
    b->why.found[op->bucket] = 1;
    b->t->tiers[here->tier].used = b->now; /* or would be used: it may be voted down */
    op->status = DIBS__MOVED;
    op->has = here->mandate;
    return ANSWERED;
  }
  if (here->left.epoch &&
      (dibs__mandate_equal(&op->mandate, &here->left) || dibs__mandate_equal(&op->mandate, &here->mandate))) {
    uint32_t tier = strictly_may_locked(b, op, here) ? here->left_tier : ANSWERED;
    if (tier == ANSWERED) return tier;
    b->s->next[i] = here->tier;
    b->s->then[i] = here->mandate;
    op->mandate = here->left;
    return tier;
  }
  if (!dibs__mandate_equal(&op->mandate, &here->mandate)) {
    op->status = DIBS__MOVED;
    op->has = here->mandate;
    if (op->verb != DIBS__ACQUIRE) tiers_count(b->t, DIBS__M_LOST, 1);
    return ANSWERED;
  }
  return strictly_may_locked(b, op, here) ? here->tier : ANSWERED;
}

static uint32_t route_locked(struct batch *b, size_t i) {
  struct dibs__op *op = b->ops[i];
  b->s->next[i] = ANSWERED;
  switch (dibs__family_of(op)->served) {
  case DIBS__SERVED_BY_TIER:
    if (op->group != 0) { /* in a group with operations at the anchor: two tiers cannot commit together */
      op->status = DIBS_UNSUPPORTED;
      return ANSWERED;
    }
    return route_lease_locked(b, i);
  case DIBS__SERVED_BY_LAST:
    return b->t->last;
  case DIBS__SERVED_BY_FIRST:
    return 0;
  default: /* answered here; when the lock is free */
    return ANSWERED;
  }
}

/* Converts a tier's tickets and instants to ours, and back. */
static void to_tier(struct batch *b, size_t i, uint32_t tier) {
  if (b->ops[i]->family != DIBS__FAM_LEASE) return;
  struct dibs__lease_op *op = lease_of(b->ops[i]);
  b->s->tickets[i] = op->ticket;
  bool theirs = op->ticket && !(op->ticket & NO_TICKET) && (op->ticket & ((1u << TICKET_BITS) - 1)) == tier;
  op->ticket = theirs ? op->ticket >> TICKET_BITS : 0;
  if (op->op.verb == DIBS__ACQUIRE) op->fence.v = 0; /* not_now may have set it */
}

static void from_tier(struct batch *b, size_t i, uint32_t tier, dibs__when now, int64_t ahead_ms) {
  if (b->ops[i]->family != DIBS__FAM_LEASE) return;
  struct dibs__lease_op *op = lease_of(b->ops[i]);
  if (op->op.at.ms == 0) op->op.at = now;
  op->op.at.ms -= ahead_ms;
  op->ticket = op->op.status == DIBS__QUEUED ? op->ticket << TICKET_BITS | tier : b->s->tickets[i];
  if (op->until.ms) op->until.ms -= ahead_ms;
  if (op->recheck.ms) op->recheck.ms -= ahead_ms;
}

/* ---- A tier's answer ---- */

static void count_lease(struct batch *b, struct dibs__op *op, uint32_t tier) {
  struct tiers *t = b->t;
  if (op->verb == DIBS__ACQUIRE && (op->status == DIBS_OK || op->status == DIBS__QUEUED))
    lease_of(op)->tier = tier == DIBS__TIER_LOCAL ? "memory" : t->tiers[tier].uri->shown;
  if (op->verb == DIBS__ACQUIRE && op->status == DIBS_OK) {
    tiers_count(t, DIBS__M_ACQUIRED, 1);
    if (tier != 0) tiers_count(t, DIBS__M_FALLBACK, 1);
    if (tier == DIBS__TIER_LOCAL) tiers_count(t, DIBS__M_LEAST_STRICT, 1);
  } else if (op->status == DIBS_HELD || op->status == DIBS__QUEUED) {
    tiers_count(t, DIBS__M_BUSY, 1);
  } else if (op->status == DIBS_LOST) {
    tiers_count(t, DIBS__M_LOST, 1);
  }
}

static void answered_lease(struct batch *b, struct dibs__op *op, uint32_t tier) {
  count_lease(b, op, tier);
  if (op->status != DIBS__MOVED || tier == DIBS__TIER_LOCAL) return;
  b->follows = true;
  /* The holder has lost it, even after a repair: the repair must not delay other renewals.  The next request makes it.
   */
  if (op->verb != DIBS__ACQUIRE) return;
  b->heals = true;
  b->why.found[op->bucket] = op->mandate.epoch + 1;
  if (dibs__mandate_equal(&op->has, &op->mandate)) b->why.spent[op->bucket] = op->mandate.epoch;
}

/* A record remembers a later epoch than the lease's: the bucket has moved, or the anchor is behind its records. */
static void answered_guard(struct batch *b, const struct dibs__op *op) {
  if (op->status != DIBS_STALE) return;
  tiers_count(b->t, DIBS__M_STALE, 1);
  b->tells = true;
  if (op->family != DIBS__FAM_RECORD) return;
  const struct dibs__record_op *record = (const struct dibs__record_op *)op;
  if (dibs__fence_epoch(record->seen) <= dibs__fence_epoch(record->fence)) return;
  dibs__mutex_lock(&b->t->lock);
  b->t->seen_epoch = dibs__fence_epoch(record->seen);
  b->t->refused_epoch = dibs__fence_epoch(record->fence);
  dibs__mutex_unlock(&b->t->lock);
}

static void count_failure(struct batch *b, struct dibs__op *op) {
  if (op->family == DIBS__FAM_LEASE && may_wait(op)) not_now(b, op, op->status, TIERS_RETRY_MS);
}

/* The tier's clock minus ours: the tier read it between our request and its answer.  One value is used as long as it is
 * about right: then an instant that is reported twice stays the same instant. */
static int64_t ahead_of_us(struct tiers *t, struct tier *tier, dibs__tick requested, int64_t theirs) {
  int64_t least = theirs - tiers_ms(dibs__tick_now()), most = theirs - tiers_ms(requested);
  dibs__mutex_lock(&t->lock);
  if (!tier->timed || tier->ahead_ms < least - ABOUT_MS || tier->ahead_ms > most + ABOUT_MS)
    tier->ahead_ms = least <= 0 && most >= 0 ? 0 : least; /* an embedded store has our own clock */
  tier->timed = true;
  int64_t ahead = tier->ahead_ms;
  dibs__mutex_unlock(&t->lock);
  return ahead;
}

/* Renewals of all tiers are sent one batch at a time: an anchor that does not answer must not delay the renewals of a
 * tier that does for longer than a lease can spare.  If all are the anchor's, it has the whole time. */
static dibs__tick tier_deadline(const struct batch *b, uint32_t nth) {
  struct tiers *t = b->t;
  if (nth != t->last || !(b->ops[0]->flags & DIBS__OP_URGENT)) return b->by;
  bool others = false;
  dibs__mutex_lock(&t->lock);
  for (uint32_t i = 0; i < DIBS__BUCKETS && !others; i++) others = t->here[i].tier != nth;
  bool closed = t->tiers[nth].breaker.state == DIBS__BREAKER_CLOSED;
  dibs__mutex_unlock(&t->lock);
  if (!others) return b->by;
  return dibs__tick_min(b->by, dibs__tick_add_ms(dibs__tick_now(), closed ? 2 * t->timeout_ms : t->timeout_ms));
}

/* The answer of the tier that the bucket leaves.  true: the name is not there, ask the other tier.  Also MOVED to a
 * holder: the move in our copy may have ended, and that tier may have the epoch of the move back. */
static bool is_on_other_tier(struct batch *b, size_t i) {
  struct dibs__op *op = b->ops[i];
  bool has = dibs__mandate_equal(&op->has, &op->mandate);
  switch (op->verb) {
  case DIBS__ACQUIRE:
    if (op->status == DIBS_HELD) op->mandate = b->s->then[i];
    return op->status == DIBS__MOVED && has;
  case DIBS__RENEW:
  case DIBS__RELEASE:
    return op->status == DIBS_LOST || op->status == DIBS__MOVED;
  default:
    return op->status == DIBS_NOT_FOUND || op->status == DIBS__MOVED;
  }
}

/* The operation was asked at the tier that its bucket leaves.  true: ask the other one. */
static bool ask_other_tier(struct batch *b, size_t i) {
  struct dibs__op *op = b->ops[i];
  if (b->s->next[i] == ANSWERED) return false;
  bool goes = is_on_other_tier(b, i);
  if (!goes && op->status == DIBS__MOVED && op->verb == DIBS__ACQUIRE) {
    /* It has lost its holders: the repair is under the record's mandate. */
    op->mandate = b->s->then[i];
    op->has = (dibs__mandate){0};
    b->heals = true;
    b->why.found[op->bucket] = op->mandate.epoch + 1;
  }
  if (!goes) return false;
  b->s->where[i] = b->s->next[i];
  op->mandate = b->s->then[i];
  op->status = DIBS_UNKNOWN;
  op->at = (dibs__when){0};
  return true;
}

/* Its client may get an event later. */
static bool expects_events(const struct dibs__op *op) {
  return (op->family == DIBS__FAM_LEASE && op->verb == DIBS__ACQUIRE) ||
         (op->family == DIBS__FAM_TASK && op->verb == DIBS__TASK_CLAIM);
}

static void run_tier(struct batch *b, uint32_t nth) {
  struct tier *tier = &b->t->tiers[nth];
  struct dibs__result result;
  size_t count = 0;
  for (size_t i = 0; i < b->count; i++) {
    if (b->s->where[i] != nth) continue;
    to_tier(b, i, nth);
    b->s->ops[count++] = b->ops[i];
  }
  if (count == 0) return;
  dibs__tick requested = dibs__tick_now();
  dibs__status status = dibs__tier_call(tier, &b->s->inner[nth], b->s->ops, count, tier_deadline(b, nth), &result);
  b->result->commits += result.commits;
  b->result->untidy |= result.untidy;
  if (result.text[0]) memcpy(b->result->text, result.text, sizeof b->result->text);
  if (status == DIBS_UNKNOWN) b->status = DIBS_UNKNOWN;
  bool listens = false;
  int64_t ahead_ms = status == DIBS_OK ? ahead_of_us(b->t, tier, requested, result.now.ms) : 0;
  if (status == DIBS_OK) b->result->now.ms = result.now.ms - ahead_ms;
  for (size_t i = 0; i < b->count; i++) {
    if (b->s->where[i] != nth) continue;
    struct dibs__op *op = b->ops[i];
    b->s->where[i] = DONE;
    from_tier(b, i, nth, result.now, ahead_ms);
    if (op->family == DIBS__FAM_LEASE && ask_other_tier(b, i)) continue;
    if (op->status == DIBS_HELD && may_wait(op)) { /* its bucket is moving away from there: no notification will come */
      not_now(b, op, DIBS_HELD, TIERS_RETRY_MS);
      b->tells = b->tells || b->s->next[i] == ANSWERED;
    }
    if (op->status == DIBS_UNKNOWN || op->status == DIBS_UNAVAILABLE)
      count_failure(b, op);
    else if (op->family == DIBS__FAM_LEASE)
      answered_lease(b, op, nth);
    else
      answered_guard(b, op);
    listens = listens || (status == DIBS_OK && expects_events(op));
  }
  if (listens) dibs__tiers_listen(tier);
}

/* ---- Operations that this driver answers ---- */

static dibs__mandate own_mandate(struct tiers *t, uint32_t bucket) {
  dibs__mutex_lock(&t->lock);
  dibs__mandate mandate = t->here[bucket].mandate;
  dibs__mutex_unlock(&t->lock);
  return mandate;
}

static void answer_anchor_next(struct batch *b, struct dibs__anchor_op *op) {
  struct tiers *t = b->t;
  struct dibs__result result;
  struct heal *why = calloc(1, sizeof *why);
  op->op.status = DIBS_NO_MEMORY;
  if (!why) return;
  op->op.status = dibs__tiers_control_take(t, b->by, &result);
  if (op->op.status != DIBS_OK) {
    free(why);
    return;
  }
  op->op.status = dibs__tiers_load(t, b->by, &result);
  op->current = own_mandate(t, op->op.bucket);
  bool same = dibs__mandate_equal(&op->op.mandate, &op->current);
  why->spent[op->op.bucket] = op->current.epoch;
  if (op->op.status == DIBS_OK && !same) op->op.status = DIBS_CONFLICT;
  if (op->op.status == DIBS_OK) op->op.status = dibs__tiers_change(t, why, NULL, NULL, b->by, &result);
  dibs__timed_lock_release(&t->control);
  op->current = own_mandate(t, op->op.bucket);
  free(why);
}

static void answer_anchor_op(struct batch *b, struct dibs__anchor_op *op) {
  op->served = true;
  if (op->op.bucket >= DIBS__BUCKETS) {
    op->op.status = DIBS_INVALID;
  } else if (op->op.verb == DIBS__ANCHOR_NEXT) {
    answer_anchor_next(b, op);
  } else {
    op->current = own_mandate(b->t, op->op.bucket);
    op->op.status = op->op.verb == DIBS__ANCHOR_READ ? DIBS_OK : DIBS_UNSUPPORTED;
  }
}

static void answer_own_op(struct batch *b, struct dibs__op *op) {
  if (op->family == DIBS__FAM_ANCHOR)
    answer_anchor_op(b, (struct dibs__anchor_op *)op);
  else if (op->family == DIBS__FAM_TIERS)
    dibs__tiers_hand(b->t, (struct dibs__tiers_op *)op, b->by);
  else
    op->status = DIBS_UNSUPPORTED;
}

/* ---- The batch ---- */

/* The tiers did not have the record's mandate.  After the repair the answer has the new one. */
static void repair_tiers(struct batch *b) {
  struct dibs__result result;
  dibs__status status = b->heals ? dibs__tiers_heal(b->t, &b->why, b->mend_by, &result) : DIBS_OK;
  if (status != DIBS_OK && result.text[0]) memcpy(b->result->text, result.text, sizeof b->result->text);
  for (size_t i = 0; i < b->count; i++) {
    struct dibs__op *op = b->ops[i];
    if (op->family != DIBS__FAM_LEASE || op->status != DIBS__MOVED) continue;
    dibs__mutex_lock(&b->t->lock);
    op->has = b->t->here[op->bucket].mandate;
    dibs__mutex_unlock(&b->t->lock);
    /* There is nothing better: to follow it would repeat for ever. */
    if (op->verb != DIBS__ACQUIRE) continue;
    if (dibs__mandate_equal(&op->has, &op->mandate) || op->has.epoch == 0)
      not_now(b, op, DIBS_UNAVAILABLE, TIERS_RETRY_MS);
  }
}

static dibs__status run_inside(struct batch *b) {
  struct dibs__session *inner = b->s->inner[b->t->last];
  dibs__status status = inner->store->driver->run(inner, b->ops, b->count, b->by, b->result);
  for (size_t i = 0; i < b->count; i++) answered_guard(b, b->ops[i]);
  if (b->tells) dibs__tiers_kick(b->t);
  return status;
}

/* Strict: the anchor must know the longest ttl, and have confirmed the copy lately, before any tier is asked.  Not
 * strict: it learns the longest ttl within a second, in case that it becomes strict. */
static void confirm_copy(struct batch *b) {
  struct tiers *t = b->t;
  struct dibs__result result;
  int64_t longest = 0;
  for (size_t i = 0; i < b->count; i++) {
    const struct dibs__op *op = b->ops[i];
    if (op->family != DIBS__FAM_LEASE || op->verb > DIBS__RENEW) continue;
    int64_t ttl = lease_of(b->ops[i])->ttl_ms;
    if (ttl < DIBS__OFFER_MS) ttl = DIBS__OFFER_MS; /* an offer may be used as a lease for this time */
    if (ttl > longest) longest = ttl;
  }
  dibs__mutex_lock(&t->lock);
  bool strict = t->known && t->state.strictness == DIBS__STRICT && longest > 0;
  bool fresh = t->confirmed.ns && tiers_ms(b->now) - tiers_ms(t->confirmed) < DIBS__TIERS_CONFIRM_MS / 2;
  bool fits = longest <= t->state.longest_ms;
  if (longest > t->longest_ms) t->longest_ms = longest;
  dibs__mutex_unlock(&t->lock);
  if (!strict || (fresh && fits) || !dibs__timed_lock_take(&t->control, b->mend_by)) return;
  if (!fits)
    (void)dibs__tiers_change(t, NULL, dibs__tiers_raise_longest, &longest, b->mend_by, &result);
  else
    (void)dibs__tiers_load(t, b->mend_by, &result);
  dibs__timed_lock_release(&t->control);
}

/* An operation that only reads makes this process no client that others count, and no store a tier; neither does one
 * that goes to the anchor for all buckets. */
static bool op_changes_state(const struct dibs__op *op) {
  enum dibs__served by = dibs__family_of(op)->served;
  return by != DIBS__SERVED_BY_LAST && by != DIBS__SERVED_BY_FIRST && !dibs__op_reads(op);
}

/* A record that was restored to an older one is repaired before anything is granted by it.  false: it cannot be, and
 * every operation has its answer. */
static bool begin_to_act(struct batch *b) {
  struct dibs__result result;
  bool acts = false;
  for (size_t i = 0; i < b->count; i++) acts = acts || op_changes_state(b->ops[i]);
  if (!acts || atomic_load(&b->t->acts)) return true;
  if (dibs__tiers_put_right(b->t, b->mend_by, &result) == DIBS_OK) {
    atomic_store(&b->t->acts, true);
    return true;
  }
  memcpy(b->result->text, result.text, sizeof b->result->text);
  for (size_t i = 0; i < b->count; i++) {
    b->ops[i]->status = DIBS_UNAVAILABLE;
    count_failure(b, b->ops[i]);
  }
  return false;
}

dibs__status dibs__tiers_run(struct dibs__session *session, struct dibs__op *const ops[], size_t count, dibs__tick by,
                             struct dibs__result *result) {
  struct tiers_session *s = (struct tiers_session *)session;
  struct tiers *t = tiers_of(session->store);
  dibs__tick now = dibs__tick_now();
  struct batch b = {.t = t, .s = s, .ops = ops, .count = count, .by = by, .now = now, .result = result};
  *result = (struct dibs__result){.sent = now, .now = {tiers_ms(now)}};
  if (s->inside) return run_inside(&b);
  bool urgent = count > 0 && (ops[0]->flags & DIBS__OP_URGENT) != 0; /* confirms are sent with renewals */
  b.mend_by = urgent ? dibs__tick_min(by, dibs__tick_add_ms(now, 2 * t->timeout_ms)) : by;
  if (!begin_to_act(&b)) return b.status;
  confirm_copy(&b);
  uint32_t used = 0;
  dibs__mutex_lock(&t->lock);
  for (size_t i = 0; i < count; i++) {
    s->where[i] = route_locked(&b, i);
    if (s->where[i] != ANSWERED) used |= 1u << s->where[i];
  }
  for (uint32_t nth = 0; nth < TIERS_ALL; nth++)
    if (used >> nth & 1) t->tiers[nth].used = now;
  dibs__mutex_unlock(&t->lock);
  for (uint32_t pass = 0; pass < 2;
       pass++) /* the second: operations that were not at the tier that their bucket leaves */
    for (uint32_t nth = 0; nth < TIERS_ALL; nth++) run_tier(&b, nth);
  if (b.heals || b.follows) repair_tiers(&b);
  for (size_t i = 0; i < count; i++)
    if (ops[i]->status == DIBS_UNKNOWN && s->where[i] == ANSWERED) answer_own_op(&b, ops[i]);
  if (b.tells) dibs__tiers_kick(t);
  return b.status;
}

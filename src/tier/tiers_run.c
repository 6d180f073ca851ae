/* SPDX-License-Identifier: MIT */
/*
 * A batch: each operation to the tier that has its bucket, under the mandate that the operation names.  Who names
 * another is told what stands, and nothing is asked.
 *
 * A tier that has not what stands is mended before the answer is given, so that who follows finds it in order.  A tier
 * that does not answer is no reason to give up a wait: who would queue is told to ask again soon, and finds the bucket
 * elsewhere as soon as it has moved.
 *
 * Tickets and instants of the tiers are their own: a ticket carries its tier, an instant is moved to our clock.
 */
#include "tier/tiers_parts.h"

enum { ANSWERED = TIERS_ALL, TICKET_BITS = 3, ABOUT_MS = 20 };
#define NO_TICKET (UINT64_C(1) << 63)

struct batch {
  struct tiers *t;
  struct tiers_session *s;
  struct dibs__op *const *ops;
  size_t count;
  dibs__tick by, now;
  dibs__tick mend_by; /* how long renewals may wait for what is not theirs */
  struct dibs__said *said;
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

/* Answers instead of a tier: not now.  Who waits goes on waiting. */
static void not_now(const struct batch *b, struct dibs__op *op, dibs__status status, int64_t again_ms) {
  struct dibs__lease_op *lease = lease_of(op);
  op->status = status;
  if (op->family != DIBS__FAM_LEASE || op->verb != DIBS__ACQUIRE) return;
  if (again_ms < 1) again_ms = 1;
  lease->recheck.ms = tiers_ms(b->now) + again_ms;
  if (!lease->queue) return;
  op->status = DIBS__QUEUED;
  if (lease->ticket == 0) lease->ticket = NO_TICKET; /* else it keeps its place there */
  lease->waiting = false;
  /* No offer is known to have been made after this answer (CAP_OFFERS_LAST): who is told of one has to ask. */
  lease->fence.v = UINT64_MAX;
}

/* ---- Which tier ---- */

/* Strict: a copy is good for a moment only, and a mandate that follows another has to wait for that one's leases. */
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

static uint32_t route_lease_locked(struct batch *b, struct dibs__op *op) {
  if (op->bucket >= DIBS__BUCKETS) {
    op->status = DIBS_INVALID;
    return ANSWERED;
  }
  const struct here *here = &b->t->here[op->bucket];
  if (here->mandate.epoch == 0) { /* nobody has made one: no tier could be reached until now */
    b->heals = true;
    b->why.found[op->bucket] = 1;
    b->t->tiers[here->tier].used = b->now; /* or would be: it may be voted down */
    op->status = DIBS__MOVED;
    op->has = here->mandate;
    return ANSWERED;
  }
  if (!dibs__mandate_equal(&op->mandate, &here->mandate)) {
    op->status = DIBS__MOVED;
    op->has = here->mandate;
    if (op->verb != DIBS__ACQUIRE) tiers_count(b->t, DIBS__M_LOST, 1);
    return ANSWERED;
  }
  return strictly_may_locked(b, op, here) ? here->tier : ANSWERED;
}

static uint32_t route_locked(struct batch *b, struct dibs__op *op) {
  switch (op->family) {
  case DIBS__FAM_LEASE:
    if (op->group != 0) { /* with what is at the anchor: that can't be one step */
      op->status = DIBS_UNSUPPORTED;
      return ANSWERED;
    }
    return route_lease_locked(b, op);
  case DIBS__FAM_RECORD:
  case DIBS__FAM_STOCK:
  case DIBS__FAM_ONCE:
    return b->t->last;
  default: /* ours; when the lock is free */
    return ANSWERED;
  }
}

/* In and out again: what a tier's ticket and instants are here. */
static void enter(struct batch *b, size_t i, uint32_t tier) {
  if (b->ops[i]->family != DIBS__FAM_LEASE) return;
  struct dibs__lease_op *op = lease_of(b->ops[i]);
  b->s->tickets[i] = op->ticket;
  bool theirs = op->ticket && !(op->ticket & NO_TICKET) && (op->ticket & ((1u << TICKET_BITS) - 1)) == tier;
  op->ticket = theirs ? op->ticket >> TICKET_BITS : 0;
  if (op->op.verb == DIBS__ACQUIRE) op->fence.v = 0; /* what not_now left there */
}

static void leave(struct batch *b, size_t i, uint32_t tier, int64_t ahead_ms) {
  if (b->ops[i]->family != DIBS__FAM_LEASE) return;
  struct dibs__lease_op *op = lease_of(b->ops[i]);
  op->ticket = op->op.status == DIBS__QUEUED ? op->ticket << TICKET_BITS | tier : b->s->tickets[i];
  if (op->until.ms) op->until.ms -= ahead_ms;
  if (op->recheck.ms) op->recheck.ms -= ahead_ms;
}

/* ---- What a tier answered ---- */

static void count_lease(struct batch *b, struct dibs__op *op, uint32_t tier) {
  struct tiers *t = b->t;
  if (op->verb == DIBS__ACQUIRE && op->status == DIBS_OK) {
    lease_of(op)->tier = tier == DIBS__TIER_LOCAL ? "memory" : t->tiers[tier].uri->shown;
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
  /* A holder has lost it, whatever is mended: that must not make other renewals wait.  Who asks next mends. */
  if (op->verb != DIBS__ACQUIRE) return;
  b->heals = true;
  b->why.found[op->bucket] = op->mandate.epoch + 1;
  if (dibs__mandate_equal(&op->has, &op->mandate)) b->why.spent[op->bucket] = op->mandate.epoch;
}

/* A record remembers a later epoch than that of the lease: the bucket has moved, or the anchor is behind its records.
 */
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

static void failed(struct batch *b, struct dibs__op *op) {
  if (op->family == DIBS__FAM_LEASE && may_wait(op)) not_now(b, op, op->status, TIERS_RETRY_MS);
}

/* By how much the tier's clock is ahead of ours: it was read between asking and the answer.  One answer a tier, as long
 * as it is about right: an instant that is told twice is the same instant. */
static int64_t ahead_of_us(struct tiers *t, struct tier *tier, dibs__tick asked, int64_t theirs) {
  int64_t least = theirs - tiers_ms(dibs__tick_now()), most = theirs - tiers_ms(asked);
  dibs__mutex_lock(&t->lock);
  if (!tier->timed || tier->ahead_ms < least - ABOUT_MS || tier->ahead_ms > most + ABOUT_MS)
    tier->ahead_ms = least <= 0 && most >= 0 ? 0 : least; /* an embedded store has our own clock */
  tier->timed = true;
  int64_t ahead = tier->ahead_ms;
  dibs__mutex_unlock(&t->lock);
  return ahead;
}

/* Renewals of all tiers travel one batch at a time: those of the anchor, when it does not answer, must not keep those
 * of a tier that does for longer than a lease can spare.  An anchor alone has all the time that there is. */
static dibs__tick spare(const struct batch *b, uint32_t nth) {
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

static void run_tier(struct batch *b, uint32_t nth) {
  struct tier *tier = &b->t->tiers[nth];
  struct dibs__said said;
  size_t count = 0;
  for (size_t i = 0; i < b->count; i++) {
    if (b->s->where[i] != nth) continue;
    enter(b, i, nth);
    b->s->ops[count++] = b->ops[i];
  }
  if (count == 0) return;
  dibs__tick asked = dibs__tick_now();
  dibs__status status = dibs__tier_call(tier, &b->s->inner[nth], b->s->ops, count, spare(b, nth), &said);
  b->said->commits += said.commits;
  b->said->untidy |= said.untidy;
  if (said.text[0]) memcpy(b->said->text, said.text, sizeof b->said->text);
  if (status == DIBS_UNKNOWN) b->status = DIBS_UNKNOWN;
  bool hears = false;
  int64_t ahead_ms = status == DIBS_OK ? ahead_of_us(b->t, tier, asked, said.now.ms) : 0;
  if (status == DIBS_OK) b->said->now.ms = said.now.ms - ahead_ms;
  for (size_t i = 0; i < b->count; i++) {
    if (b->s->where[i] != nth) continue;
    struct dibs__op *op = b->ops[i];
    leave(b, i, nth, ahead_ms);
    if (op->status == DIBS_UNKNOWN || op->status == DIBS_UNAVAILABLE)
      failed(b, op);
    else if (op->family == DIBS__FAM_LEASE)
      answered_lease(b, op, nth);
    else
      answered_guard(b, op);
    hears = hears || (status == DIBS_OK && op->family == DIBS__FAM_LEASE && op->verb == DIBS__ACQUIRE);
  }
  if (hears) dibs__tiers_listen(tier);
}

/* ---- Ours ---- */

static dibs__mandate stands(struct tiers *t, uint32_t bucket) {
  dibs__mutex_lock(&t->lock);
  dibs__mandate mandate = t->here[bucket].mandate;
  dibs__mutex_unlock(&t->lock);
  return mandate;
}

static void anchor_next(struct batch *b, struct dibs__anchor_op *op) {
  struct tiers *t = b->t;
  struct dibs__said said;
  struct heal *why = calloc(1, sizeof *why);
  op->op.status = DIBS_NO_MEMORY;
  if (!why) return;
  op->op.status = dibs__tiers_control_take(t, b->by, &said);
  if (op->op.status != DIBS_OK) {
    free(why);
    return;
  }
  op->op.status = dibs__tiers_load(t, b->by, &said);
  op->stands = stands(t, op->op.bucket);
  bool same = dibs__mandate_equal(&op->op.mandate, &op->stands);
  why->spent[op->op.bucket] = op->stands.epoch;
  if (op->op.status == DIBS_OK && !same) op->op.status = DIBS_CONFLICT;
  if (op->op.status == DIBS_OK) op->op.status = dibs__tiers_change(t, why, NULL, NULL, b->by, &said);
  dibs__turn_end(&t->control);
  op->stands = stands(t, op->op.bucket);
  free(why);
}

static void anchor(struct batch *b, struct dibs__anchor_op *op) {
  op->served = true;
  if (op->op.bucket >= DIBS__BUCKETS) {
    op->op.status = DIBS_INVALID;
  } else if (op->op.verb == DIBS__ANCHOR_NEXT) {
    anchor_next(b, op);
  } else {
    op->stands = stands(b->t, op->op.bucket);
    op->op.status = op->op.verb == DIBS__ANCHOR_READ ? DIBS_OK : DIBS_UNSUPPORTED;
  }
}

static void ours(struct batch *b, struct dibs__op *op) {
  if (op->family == DIBS__FAM_ANCHOR)
    anchor(b, (struct dibs__anchor_op *)op);
  else if (op->family == DIBS__FAM_TIERS)
    dibs__tiers_hand(b->t, (struct dibs__tiers_op *)op, b->by);
  else
    op->status = DIBS_UNSUPPORTED;
}

/* ---- The batch ---- */

/* What the tiers had was not what stands.  Whoever is told now follows to what does. */
static void heal(struct batch *b) {
  struct dibs__said said;
  dibs__status status = b->heals ? dibs__tiers_heal(b->t, &b->why, b->mend_by, &said) : DIBS_OK;
  if (status != DIBS_OK && said.text[0]) memcpy(b->said->text, said.text, sizeof b->said->text);
  for (size_t i = 0; i < b->count; i++) {
    struct dibs__op *op = b->ops[i];
    if (op->family != DIBS__FAM_LEASE || op->status != DIBS__MOVED) continue;
    dibs__mutex_lock(&b->t->lock);
    op->has = b->t->here[op->bucket].mandate;
    dibs__mutex_unlock(&b->t->lock);
    /* Nothing better is known: to follow would be to go round. */
    if (op->verb != DIBS__ACQUIRE) continue;
    if (dibs__mandate_equal(&op->has, &op->mandate) || op->has.epoch == 0)
      not_now(b, op, DIBS_UNAVAILABLE, TIERS_RETRY_MS);
  }
}

static dibs__status run_inside(struct batch *b) {
  struct dibs__session *inner = b->s->inner[b->t->last];
  dibs__status status = inner->store->driver->run(inner, b->ops, b->count, b->by, b->said);
  for (size_t i = 0; i < b->count; i++) answered_guard(b, b->ops[i]);
  if (b->tells) dibs__tiers_kick(b->t);
  return status;
}

/* Strict: the anchor has to know of the longest ttl, and to have confirmed the copy lately, before anything is asked.
 * Else it learns of it within a second, should it become strict. */
static void confirm(struct batch *b) {
  struct tiers *t = b->t;
  struct dibs__said said;
  int64_t longest = 0;
  for (size_t i = 0; i < b->count; i++) {
    const struct dibs__op *op = b->ops[i];
    if (op->family != DIBS__FAM_LEASE || op->verb > DIBS__RENEW) continue;
    int64_t ttl = lease_of(b->ops[i])->ttl_ms;
    if (ttl < DIBS__OFFER_MS) ttl = DIBS__OFFER_MS; /* so long an offer may be taken for a lease */
    if (ttl > longest) longest = ttl;
  }
  dibs__mutex_lock(&t->lock);
  bool strict = t->known && t->state.strictness == DIBS__STRICT && longest > 0;
  bool fresh = t->confirmed.ns && tiers_ms(b->now) - tiers_ms(t->confirmed) < DIBS__TIERS_CONFIRM_MS / 2;
  bool fits = longest <= t->state.longest_ms;
  if (longest > t->longest_ms) t->longest_ms = longest;
  dibs__mutex_unlock(&t->lock);
  if (!strict || (fresh && fits) || !dibs__turn_take(&t->control, b->mend_by)) return;
  if (!fits)
    (void)dibs__tiers_change(t, NULL, dibs__tiers_raise_longest, &longest, b->mend_by, &said);
  else
    (void)dibs__tiers_load(t, b->mend_by, &said);
  dibs__turn_end(&t->control);
}

dibs__status dibs__tiers_run(struct dibs__session *session, struct dibs__op *const ops[], size_t count, dibs__tick by,
                             struct dibs__said *said) {
  struct tiers_session *s = (struct tiers_session *)session;
  struct tiers *t = tiers_of(session->store);
  dibs__tick now = dibs__tick_now();
  struct batch b = {.t = t, .s = s, .ops = ops, .count = count, .by = by, .now = now, .said = said};
  *said = (struct dibs__said){.sent = now, .now = {tiers_ms(now)}};
  if (s->inside) return run_inside(&b);
  bool urgent = count > 0 && (ops[0]->flags & DIBS__OP_URGENT) != 0; /* confirms travel with renewals */
  b.mend_by = urgent ? dibs__tick_min(by, dibs__tick_add_ms(now, 2 * t->timeout_ms)) : by;
  confirm(&b);
  uint32_t used = 0;
  dibs__mutex_lock(&t->lock);
  for (size_t i = 0; i < count; i++) {
    s->where[i] = route_locked(&b, ops[i]);
    if (s->where[i] != ANSWERED) used |= 1u << s->where[i];
  }
  for (uint32_t nth = 0; nth < TIERS_ALL; nth++)
    if (used >> nth & 1) t->tiers[nth].used = now;
  dibs__mutex_unlock(&t->lock);
  for (uint32_t nth = 0; nth < TIERS_ALL; nth++)
    if (used >> nth & 1) run_tier(&b, nth);
  if (b.heals || b.follows) heal(&b);
  for (size_t i = 0; i < count; i++)
    if (ops[i]->status == DIBS_UNKNOWN && s->where[i] == ANSWERED) ours(&b, ops[i]);
  if (b.tells) dibs__tiers_kick(t);
  return b.status;
}

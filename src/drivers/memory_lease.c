/* SPDX-License-Identifier: MIT */
/* The verbs of a lease. */
#include "drivers/memory_parts.h"

#include <stdlib.h>
#include <string.h>

typedef struct dibs__mem_claim claim;
typedef struct dibs__mem_name name;

/* Draws `want` fences for an exclusive grant.  false: the epoch had too few left, and another one began, unless the
 * bucket is served. */
static bool draw(struct dibs__memory *m, struct dibs__lease_op *op, dibs__fence *first, uint32_t *block) {
  struct dibs__mem_bucket *bucket = &m->buckets[op->op.bucket];
  if (dibs__mem_draw(bucket, op->want_block, first, block)) return true;
  bool served = bucket->served != DIBS__MEM_OWN;
  if (served) bucket->seq = DIBS__SEQ_MAX; /* for good */
  op->op.status = served || dibs__mem_next_epoch(bucket) ? DIBS__MOVED : DIBS_UNAVAILABLE;
  op->op.has = bucket->mandate;
  return false;
}

/* A fence that was drawn for an offer under an earlier mandate of an anchor's counts no more: another tier may have
 * granted larger ones since. */
static bool offered_with_fence(const claim *c, const struct dibs__mem_bucket *bucket) {
  if (c->state != DIBS__MEM_OFFERED || c->first.v == 0) return false;
  return bucket->served == DIBS__MEM_OWN || dibs__fence_epoch(c->first) == bucket->mandate.epoch;
}

static void answer_holder(struct dibs__lease_op *op, const claim *c) {
  op->fence = c->first;
  op->got_block = c->block;
  op->slot = c->slot;
  op->until = (dibs__when){c->until};
  op->op.status = DIBS_OK;
}

/* Makes `c`, whose turn it is, a holder.  On a new epoch it stays what it was. */
static bool grant(struct dibs__memory *m, claim *c, struct dibs__lease_op *op, int64_t now) {
  bool drawn = offered_with_fence(c, &m->buckets[op->op.bucket]) && op->want_block <= 1;
  if (c->mode == DIBS_EXCLUSIVE && !drawn && !draw(m, op, &c->first, &c->block)) return false;
  if (c->mode == DIBS_COUNTED) c->slot = dibs__mem_free_slot(c->name, c->slots);
  c->granted = c->first;
  c->ttl_ms = op->ttl_ms;
  c->since = now;
  dibs__mem_claim_become(c, DIBS__MEM_HOLDS, now + op->ttl_ms);
  answer_holder(op, c);
  return true;
}

static void answer_waiter(struct dibs__lease_op *op, claim *c) {
  op->ticket = c->ticket;
  op->recheck = (dibs__when){dibs__mem_soonest(c->name)};
  op->op.status = DIBS__QUEUED;
}

/* Its id is known. */
static void acquire_again(struct dibs__memory *m, claim *c, struct dibs__lease_op *op, int64_t now) {
  bool turn = false;
  switch (c->state) {
  case DIBS__MEM_HOLDS:
    answer_holder(op, c);
    return;
  case DIBS__MEM_BREAKING:
    op->op.status = DIBS_LOST;
    return;
  case DIBS__MEM_ASLEEP:
    dibs__mem_claim_become(c, DIBS__MEM_WAITING, INT64_MAX);
    turn = c->name->waiting.first == c && dibs__mem_fits(c->name, c->mode, c->slots);
    break;
  case DIBS__MEM_OFFERED:
    turn = true;
    break;
  case DIBS__MEM_WAITING: /* settle has offered what could be */
    break;
  }
  if (turn)
    grant(m, c, op, now);
  else
    answer_waiter(op, c);
}

static void acquire_new(struct dibs__memory *m, name *n, uint64_t session, struct dibs__lease_op *op, int64_t now) {
  const claim *other = n->holders.first;
  /* settle has offered what could be, and taken the dead from the front: who waits now is alive. */
  bool free_now = !n->waiting.count && dibs__mem_fits(n, op->mode, op->slots);
  if (other && other->mode == DIBS_COUNTED && op->mode == DIBS_COUNTED && other->slots != op->slots) {
    op->op.status = DIBS_INVALID;
    return;
  }
  if (!free_now && !op->queue) {
    op->recheck = (dibs__when){dibs__mem_soonest(n)};
    op->op.status = DIBS_HELD;
    return;
  }
  claim *c = dibs__mem_claim_add(m, n, op, DIBS__MEM_WAITING);
  if (!c) {
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  c->session = session;
  c->asked_since = now;
  if (!free_now)
    answer_waiter(op, c);
  else if (!grant(m, c, op, now))
    dibs__mem_claim_remove(m, c);
}

static void acquire(struct dibs__memory *m, name *n, uint64_t session, struct dibs__lease_op *op, int64_t now) {
  claim *c = dibs__mem_claim_find(m, n, op->id);
  if (!c) {
    acquire_new(m, n, session, op, now);
    return;
  }
  c->session = session; /* who asked last is told of its offer */
  acquire_again(m, c, op, now);
}

/* The holder with that id and a fence of its grant, or who is offered it under that fence; or NULL. */
static claim *holder(const struct dibs__memory *m, const name *n, const struct dibs__lease_op *op) {
  const struct dibs__mem_bucket *bucket = &m->buckets[op->op.bucket];
  claim *c = dibs__mem_claim_find(m, n, op->id);
  if (!c || (c->state != DIBS__MEM_HOLDS && c->state != DIBS__MEM_BREAKING && !offered_with_fence(c, bucket)))
    return NULL;
  if (c->mode != DIBS_EXCLUSIVE) return op->fence.v == 0 ? c : NULL;
  return op->fence.v >= c->granted.v && op->fence.v < c->first.v + c->block ? c : NULL;
}

static void renew(struct dibs__memory *m, const name *n, uint64_t session, struct dibs__lease_op *op, int64_t now) {
  claim *c = holder(m, n, op);
  if (!c || c->state == DIBS__MEM_BREAKING) {
    op->op.status = DIBS_LOST;
    return;
  }
  if (c->mode == DIBS_EXCLUSIVE && op->want_block && !draw(m, op, &c->first, &c->block)) return;
  if (c->state == DIBS__MEM_OFFERED) c->since = now;
  c->session = session;
  c->ttl_ms = op->ttl_ms;
  dibs__mem_claim_become(c, DIBS__MEM_HOLDS, now + op->ttl_ms);
  answer_holder(op, c);
}

static void release(struct dibs__memory *m, name *n, struct dibs__lease_op *op, int64_t now) {
  claim *c = holder(m, n, op);
  op->op.status = c ? DIBS_OK : DIBS_LOST;
  if (!c) return;
  dibs__mem_claim_remove(m, c);
  dibs__mem_pass_on(m, n, now);
}

static void cancel(struct dibs__memory *m, name *n, struct dibs__lease_op *op, int64_t now) {
  claim *c = dibs__mem_claim_find(m, n, op->id);
  op->op.status = c ? DIBS_OK : DIBS_NOT_FOUND;
  if (!c) return;
  switch (c->state) {
  case DIBS__MEM_HOLDS:
  case DIBS__MEM_BREAKING:
    op->was = DIBS__WAS_HELD;
    break;
  case DIBS__MEM_OFFERED:
    op->was = DIBS__WAS_OFFERED;
    break;
  case DIBS__MEM_WAITING:
  case DIBS__MEM_ASLEEP:
    op->was = DIBS__WAS_WAITING;
    break;
  }
  dibs__mem_claim_remove(m, c);
  dibs__mem_pass_on(m, n, now); /* also after a waiter: it may have stood before others who fit */
}

static bool record_break(name *n, const struct dibs__lease_op *op, int64_t now) {
  if (!n->breaks) n->breaks = calloc(DIBS__MEM_BREAKS, sizeof *n->breaks);
  if (!n->breaks) return false;
  struct dibs__mem_break *broke = &n->breaks[n->break_count++ % DIBS__MEM_BREAKS];
  const claim *c = n->holders.first;
  broke->at = now;
  broke->fence = c->first;
  broke->mode = c->mode;
  broke->owner_len = op->owner.len <= DIBS_OWNER_MAX ? op->owner.len : DIBS_OWNER_MAX;
  if (broke->owner_len) memcpy(broke->owner, op->owner.p, broke->owner_len);
  return true;
}

/* Who is offered an exclusive name may have begun: it is broken like a holder. */
static void hold_offered(name *n, const struct dibs__mem_bucket *bucket, int64_t now) {
  claim *c = n->offered.first;
  if (!c || c->mode != DIBS_EXCLUSIVE || !offered_with_fence(c, bucket)) return;
  c->since = now;
  dibs__mem_claim_become(c, DIBS__MEM_HOLDS, c->until);
}

static void break_all(struct dibs__memory *m, name *n, struct dibs__lease_op *op, int64_t now) {
  int64_t last = now;
  bool fresh = op->now;
  claim *c, *next;
  hold_offered(n, &m->buckets[op->op.bucket], now);
  for (c = n->holders.first; c; c = c->after) {
    if (c->until > last) last = c->until;
    fresh = fresh || c->state == DIBS__MEM_HOLDS;
  }
  op->op.status = n->holders.count ? DIBS_OK : DIBS_NOT_FOUND;
  if (!n->holders.count) return;
  if (fresh && !record_break(n, op, now)) {
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  for (c = n->holders.first; c; c = next) {
    next = c->after;
    if (c->state == DIBS__MEM_HOLDS) dibs__mem_post(m, c->session, DIBS__EV_LOST, c->id);
    c->state = DIBS__MEM_BREAKING; /* the same row */
    if (op->now) dibs__mem_claim_remove(m, c);
  }
  op->until = (dibs__when){op->now ? now : last};
  dibs__mem_pass_on(m, n, now);
}

static bool valid(const struct dibs__lease_op *op) {
  if (op->op.bucket >= DIBS__BUCKETS || op->name.len < 1 || op->name.len > DIBS_NAME_MAX) return false;
  if (op->op.verb == DIBS__RENEW) return op->ttl_ms > 0;
  if (op->op.verb != DIBS__ACQUIRE) return op->op.verb <= DIBS__BREAK;
  if (op->mode > DIBS_COUNTED || op->ttl_ms == 0 || op->owner.len > DIBS_OWNER_MAX) return false;
  return op->mode != DIBS_COUNTED || (op->slots >= 1 && op->slots <= DIBS_SLOTS_MAX);
}

static void clear_answers(struct dibs__lease_op *op) {
  if (op->op.verb == DIBS__ACQUIRE) op->fence = DIBS__FENCE_NONE;
  op->waiting = false;
  op->got_block = op->slot = 0;
  op->was = DIBS__WAS_NOTHING;
  op->until = op->recheck = (dibs__when){0};
}

/* Of a bucket that is served, whether its epoch has as many fences as the operation may draw. */
static bool used_up(const struct dibs__mem_bucket *bucket, const struct dibs__lease_op *op) {
  uint32_t want = op->op.verb <= DIBS__RENEW ? op->want_block : 0;
  if (want > DIBS__BLOCK_MAX) want = DIBS__BLOCK_MAX;
  if (want == 0 && op->op.verb == DIBS__ACQUIRE && op->mode == DIBS_EXCLUSIVE) want = 1;
  return want > DIBS__SEQ_MAX - bucket->seq;
}

/* R5, R35.  Else it is answered. */
static bool stands(const struct dibs__mem_bucket *bucket, bool as_tier, struct dibs__lease_op *op) {
  op->op.status = DIBS__MOVED;
  op->op.has = bucket->mandate;
  if (as_tier && bucket->served == DIBS__MEM_OWN) op->op.has.epoch = 0;
  if (as_tier && bucket->served == DIBS__MEM_SERVED)
    return dibs__mandate_equal(&op->op.mandate, &bucket->mandate) && !used_up(bucket, op);
  if (as_tier) return false;
  if (bucket->served == DIBS__MEM_OWN) return dibs__mandate_equal(&op->op.mandate, &bucket->mandate);
  op->op.status = DIBS_DENIED;
  op->op.has = (dibs__mandate){0};
  return false;
}

void dibs__mem_lease(struct dibs__memory *m, const struct dibs__mem_open *from, struct dibs__lease_op *op,
                     int64_t now) {
  clear_answers(op);
  if (!valid(op)) {
    op->op.status = DIBS_INVALID;
    return;
  }
  if (!stands(&m->buckets[op->op.bucket], from->as_tier, op)) return;
  name *n = dibs__mem_name_get(m, op->name);
  if (!n) {
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  dibs__mem_settle(m, n, now);
  switch ((enum dibs__lease_verb)op->op.verb) {
  case DIBS__ACQUIRE:
    acquire(m, n, from->session, op, now);
    break;
  case DIBS__RENEW:
    renew(m, n, from->session, op, now);
    break;
  case DIBS__RELEASE:
    release(m, n, op, now);
    break;
  case DIBS__CANCEL:
    cancel(m, n, op, now);
    break;
  case DIBS__BREAK:
    break_all(m, n, op, now);
    break;
  }
  op->waiting = n->offered.count + n->waiting.count + n->asleep.count > 0;
  dibs__mem_name_drop_if_idle(m, n);
}

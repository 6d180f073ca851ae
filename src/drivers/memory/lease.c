/* SPDX-License-Identifier: MIT */
/*
 * The leases of the memory driver: holders and waiters, then the verbs.
 *
 * A claim is in one of four rows of its name: holders, offered, waiting, asleep.  `waiting` is in the order of
 * tickets; the others in any order, a ticket gives the position in the queue.  Offers count as holders (R9), so all
 * of holders and offers have one mode, and one number of slots.
 */
#include "drivers/memory/memory_impl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct dibs__mem_claim claim;
typedef struct dibs__mem_name name;

/* ---- Holders and waiters ---- */

static claim *claim_of(struct dibs__map_node *link) {
  return (claim *)link;
}
static name *name_of(struct dibs__map_node *link) {
  return (name *)link;
}

static struct dibs__mem_row *row_of(name *n, enum dibs__mem_state state) {
  switch (state) {
  case DIBS__MEM_OFFERED:
    return &n->offered;
  case DIBS__MEM_WAITING:
    return &n->waiting;
  case DIBS__MEM_ASLEEP:
    return &n->asleep;
  case DIBS__MEM_HOLDS:
  case DIBS__MEM_BREAKING:
    break;
  }
  return &n->holders;
}

static bool state_expires(enum dibs__mem_state state) {
  return state == DIBS__MEM_HOLDS || state == DIBS__MEM_BREAKING || state == DIBS__MEM_OFFERED;
}

static void row_remove(struct dibs__mem_row *row, claim *c) {
  if (c->before)
    c->before->after = c->after;
  else
    row->first = c->after;
  if (c->after)
    c->after->before = c->before;
  else
    row->last = c->before;
  c->before = c->after = NULL;
  row->count--;
}

/* Inserts it before the first of a later ticket.  A new claim goes to the end; a sleeper that wakes up was near the
 * front. */
static void row_insert(struct dibs__mem_row *row, claim *c) {
  claim *next = NULL;
  if (row->last && row->last->ticket > c->ticket)
    for (next = row->first; next->ticket < c->ticket;) next = next->after;
  c->after = next;
  c->before = next ? next->before : row->last;
  if (c->before)
    c->before->after = c;
  else
    row->first = c;
  if (next)
    next->before = c;
  else
    row->last = c;
  row->count++;
}

/* Only the first end of holders and offers matters, so a lower bound is enough until it is read. */
static void note_expiry(name *n, int64_t until) {
  if (until > n->soonest) return;
  n->soonest = until;
  n->exact = true;
}
static void forget_expiry(name *n, int64_t until) {
  if (until == n->soonest) n->exact = false;
}

/* When the first holder or offer expires. */
static int64_t mem_soonest(name *n) {
  if (n->exact) return n->soonest;
  n->soonest = INT64_MAX;
  for (claim *c = n->holders.first; c; c = c->after)
    if (c->until < n->soonest) n->soonest = c->until;
  for (claim *c = n->offered.first; c; c = c->after)
    if (c->until < n->soonest) n->soonest = c->until;
  n->exact = true;
  return n->soonest;
}

/* ---- Names ---- */

DIBS__MODULE_API name *dibs__mem_name_find(const struct dibs__memory *m, dibs__str text) {
  struct dibs__map_node *link = dibs__map_head(&m->names, dibs__hash(text.p, text.len));
  for (; link; link = link->next)
    if (dibs__str_equal(dibs__str_of(name_of(link)->text, name_of(link)->len), text)) return name_of(link);
  return NULL;
}

DIBS__MODULE_API name *dibs__mem_name_get(struct dibs__memory *m, dibs__str text) {
  name *n = dibs__mem_name_find(m, text);
  if (n) return n;
  n = calloc(1, sizeof *n + text.len + 1);
  if (!n) return NULL;
  n->soonest = INT64_MAX;
  n->exact = true;
  n->len = text.len;
  memcpy(n->text, text.p, text.len);
  dibs__map_add(&m->names, &n->link, dibs__hash(text.p, text.len));
  return n;
}

void dibs__mem_name_drop_if_idle(struct dibs__memory *m, name *n) {
  if (n->holders.count || n->offered.count || n->waiting.count || n->asleep.count || n->breaks) return;
  dibs__map_remove(&m->names, &n->link);
  free(n);
}

/* ---- Claims ---- */

static uint64_t claim_hash(const name *n, dibs__id id) {
  return dibs__hash(id.b, sizeof id.b) ^ n->link.hash; /* one id may be known for several names */
}

static claim *claim_find(const struct dibs__memory *m, const name *n, dibs__id id) {
  struct dibs__map_node *link = dibs__map_head(&m->claims, claim_hash(n, id));
  for (; link; link = link->next)
    if (claim_of(link)->name == n && dibs__id_equal(claim_of(link)->id, id)) return claim_of(link);
  return NULL;
}

DIBS__MODULE_API void dibs__mem_claim_link(struct dibs__memory *m, claim *c) {
  dibs__map_add(&m->claims, &c->link, claim_hash(c->name, c->id));
  row_insert(row_of(c->name, c->state), c);
  if (state_expires(c->state)) note_expiry(c->name, c->until);
}

static claim *claim_add(struct dibs__memory *m, name *n, const struct dibs__lease_op *op, enum dibs__mem_state state) {
  claim *c = calloc(1, sizeof *c + op->owner.len + 1);
  if (!c) return NULL;
  c->name = n;
  c->id = op->id;
  c->state = state;
  c->mode = op->mode;
  c->slots = op->mode == DIBS_COUNTED ? op->slots : 0;
  c->ttl_ms = op->ttl_ms;
  c->ticket = ++m->last_ticket;
  c->until = INT64_MAX;
  c->owner_len = op->owner.len;
  if (op->owner.len) memcpy(c->owner, op->owner.p, op->owner.len);
  dibs__mem_claim_link(m, c);
  return c;
}

void dibs__mem_claim_remove(struct dibs__memory *m, claim *c) {
  row_remove(row_of(c->name, c->state), c);
  if (state_expires(c->state)) forget_expiry(c->name, c->until);
  dibs__map_remove(&m->claims, &c->link);
  free(c);
}

static void claim_become(claim *c, enum dibs__mem_state state, int64_t until) {
  name *n = c->name;
  if (state_expires(c->state)) forget_expiry(n, c->until);
  row_remove(row_of(n, c->state), c);
  c->state = state;
  c->until = until;
  row_insert(row_of(n, state), c);
  if (state_expires(state)) note_expiry(n, until);
}

/* ---- The next claim ---- */

/* Could one more hold it, beside holders and offers? */
static bool mem_fits(const name *n, uint32_t mode, uint32_t slots) {
  const claim *other = n->holders.first ? n->holders.first : n->offered.first;
  if (!other) return true;
  if (other->mode != mode || mode == DIBS_EXCLUSIVE) return false;
  return mode == DIBS_SHARED || (other->slots == slots && n->holders.count + n->offered.count < slots);
}

static uint32_t free_slot(const name *n, uint32_t slots) {
  uint64_t used[(DIBS_SLOTS_MAX + 64) / 64];
  uint32_t slot = 0;
  assert(slots <= DIBS_SLOTS_MAX);
  memset(used, 0, (slots + 64) / 64 * sizeof *used);
  for (const claim *c = n->holders.first; c; c = c->after) used[c->slot / 64] |= UINT64_C(1) << c->slot % 64;
  while (used[slot / 64] & UINT64_C(1) << slot % 64) slot++;
  assert(slot < slots);
  return slot;
}

static bool draw_fences(struct dibs__memory *m, uint16_t of, uint32_t want, dibs__fence *first, uint32_t *block) {
  struct dibs__mem_bucket *bucket = &m->buckets[of];
  if (want == 0) want = 1;
  if (want > DIBS__BLOCK_MAX) want = DIBS__BLOCK_MAX;
  if (m->hooks) return m->hooks->draw(m->hooks->user, want, first, block);
  if (want > DIBS__SEQ_MAX - bucket->seq || bucket->served == DIBS__MEM_VOID) return false;
  *first = dibs__fence_make(bucket->mandate.epoch, bucket->seq + 1);
  *block = want;
  bucket->seq += want;
  return true;
}

/* An exclusive offer has its fence, so that its owner may begin at once; the last one of an epoch has none. */
static void make_offer(struct dibs__memory *m, claim *c, int64_t now) {
  name *n = c->name;
  struct dibs__event event = {.what = DIBS__EV_OFFER, .id = c->id};
  c->first = DIBS__FENCE_NONE;
  c->block = 0;
  if (c->mode == DIBS_EXCLUSIVE &&
      draw_fences(m, dibs__bucket((dibs__str){n->text, n->len}), 1, &c->first, &c->block) && !m->hooks) {
    event.fence = c->first;
    event.held_until.ns = (now + DIBS__OFFER_MS - m->origin) * DIBS__NS_PER_MS;
  }
  c->granted = c->first;
  claim_become(c, DIBS__MEM_OFFERED, now + DIBS__OFFER_MS);
  dibs__mem_post_event(m, c->session, &event);
}

/* Offers the name to the next waiters. */
static void pass_on(struct dibs__memory *m, name *n, int64_t now) {
  claim *c, *next;
  if (m->buckets[dibs__bucket(dibs__str_of(n->text, n->len))].served == DIBS__MEM_LEFT) return; /* R46 */
  for (c = n->waiting.first; c; c = next) {
    next = c->after;
    if (!dibs__mem_alive(m, c->session)) {
      dibs__mem_claim_remove(m, c);
      continue;
    }
    if (!mem_fits(n, c->mode, c->slots)) break;
    make_offer(m, c, now);
  }
}

void dibs__mem_settle(struct dibs__memory *m, name *n, int64_t now) {
  claim *c, *next;
  if (n->soonest <= now) {
    for (c = n->holders.first; c; c = next) {
      next = c->after;
      if (c->until <= now) dibs__mem_claim_remove(m, c);
    }
    for (c = n->offered.first; c; c = next) {
      next = c->after;
      if (c->until <= now) claim_become(c, DIBS__MEM_ASLEEP, INT64_MAX);
    }
    (void)mem_soonest(n);
  }
  pass_on(m, n, now);
}

static bool session_is_gone(const struct dibs__memory *m, const claim *c, uint64_t session) {
  return session ? c->session == session : !dibs__mem_alive(m, c->session);
}

static void sweep_row(struct dibs__memory *m, struct dibs__mem_row *row, uint64_t session) {
  claim *c, *next;
  for (c = row->first; c; c = next) {
    next = c->after;
    if (session_is_gone(m, c, session)) dibs__mem_claim_remove(m, c);
  }
}

static bool any_session_gone(const struct dibs__memory *m, const struct dibs__mem_row *row, uint64_t session) {
  const claim *c = row->first;
  while (c && !session_is_gone(m, c, session)) c = c->after;
  return c != NULL;
}

void dibs__mem_sweep_name(struct dibs__memory *m, name *n, uint64_t session, int64_t now) {
  if (!any_session_gone(m, &n->waiting, session) && !any_session_gone(m, &n->asleep, session) &&
      !any_session_gone(m, &n->offered, session))
    return;
  dibs__mem_settle(m, n, now);
  sweep_row(m, &n->waiting, session);
  sweep_row(m, &n->asleep, session);
  sweep_row(m, &n->offered, session);
  pass_on(m, n, now);
}

/* ---- The verbs ---- */

/* Draws `want` fences for an exclusive grant.  false: the epoch had too few left, and another one began, unless the
 * bucket is served. */
static bool draw_or_next_epoch(struct dibs__memory *m, struct dibs__lease_op *op, dibs__fence *first, uint32_t *block) {
  struct dibs__mem_bucket *bucket = &m->buckets[op->op.bucket];
  if (draw_fences(m, op->op.bucket, op->want_block, first, block)) return true;
  bool served = bucket->served != DIBS__MEM_OWN;
  if (served) bucket->seq = DIBS__SEQ_MAX; /* permanently */
  op->op.status = served || dibs__mem_next_epoch(bucket) ? DIBS__MOVED : DIBS_UNAVAILABLE;
  op->op.has = bucket->mandate;
  return false;
}

/* A fence that was drawn for an offer under an earlier mandate of an anchor's is no longer valid: another tier may have
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

/* Makes `c`, which is next, a holder.  On a new epoch it stays as it was. */
static bool grant(struct dibs__memory *m, claim *c, struct dibs__lease_op *op, int64_t now) {
  bool drawn = offered_with_fence(c, &m->buckets[op->op.bucket]) && op->want_block <= 1;
  if (c->mode == DIBS_EXCLUSIVE && !drawn && !draw_or_next_epoch(m, op, &c->first, &c->block)) return false;
  struct dibs__mem_bucket *bucket = &m->buckets[op->op.bucket];
  if (bucket->served == DIBS__MEM_OWN && bucket->seq == 0) bucket->seq = 1; /* `used`, also without a fence */
  if (c->mode == DIBS_COUNTED) c->slot = free_slot(c->name, c->slots);
  c->granted = c->first;
  c->ttl_ms = op->ttl_ms;
  c->since = now;
  claim_become(c, DIBS__MEM_HOLDS, now + op->ttl_ms);
  answer_holder(op, c);
  return true;
}

static void answer_waiter(struct dibs__lease_op *op, claim *c) {
  op->ticket = c->ticket;
  op->recheck = (dibs__when){mem_soonest(c->name)};
  op->op.status = DIBS__QUEUED;
}

/* The id is known already. */
static void acquire_again(struct dibs__memory *m, claim *c, struct dibs__lease_op *op, int64_t now) {
  bool served = false;
  switch (c->state) {
  case DIBS__MEM_HOLDS:
    answer_holder(op, c);
    return;
  case DIBS__MEM_BREAKING:
    op->op.status = DIBS_LOST;
    return;
  case DIBS__MEM_ASLEEP:
    claim_become(c, DIBS__MEM_WAITING, INT64_MAX);
    served = c->name->waiting.first == c && mem_fits(c->name, c->mode, c->slots);
    break;
  case DIBS__MEM_OFFERED:
    served = true;
    break;
  case DIBS__MEM_WAITING: /* settle has made all possible offers */
    break;
  }
  if (served)
    grant(m, c, op, now);
  else
    answer_waiter(op, c);
}

static void acquire_new(struct dibs__memory *m, name *n, uint64_t session, struct dibs__lease_op *op, int64_t now) {
  const claim *other = n->holders.first;
  /* settle has made all possible offers, and removed dead waiters from the front: the first waiter is alive. */
  bool left = m->buckets[op->op.bucket].served == DIBS__MEM_LEFT;
  bool free_now = (left || !n->waiting.count) && mem_fits(n, op->mode, op->slots);
  if (other && other->mode == DIBS_COUNTED && op->mode == DIBS_COUNTED && other->slots != op->slots) {
    op->op.status = DIBS_INVALID;
    return;
  }
  if (!free_now && !op->queue) {
    op->recheck = (dibs__when){mem_soonest(n)};
    op->op.status = DIBS_HELD;
    return;
  }
  claim *c = claim_add(m, n, op, DIBS__MEM_WAITING);
  if (!c) {
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  c->session = session;
  c->requested_since = now;
  if (!free_now)
    answer_waiter(op, c);
  else if (!grant(m, c, op, now))
    dibs__mem_claim_remove(m, c);
}

/* R46.  A name without holders and offers is neither granted nor offered: so it stays free, and the tier to which it
 * moves may grant it.  true: it is answered. */
static bool acquire_left(name *n, const struct dibs__mem_open *from, struct dibs__lease_op *op) {
  bool busy = n->holders.count + n->offered.count > 0;
  const claim *other = n->holders.first;
  bool unlike = other && other->mode == DIBS_COUNTED && op->mode == DIBS_COUNTED && other->slots != op->slots;
  if (from->as_tier && other && (unlike || mem_fits(n, op->mode, op->slots))) return false;
  op->op.status = !from->as_tier ? DIBS_DENIED : busy ? DIBS_HELD : DIBS__MOVED;
  op->op.has = from->as_tier ? op->op.mandate : (dibs__mandate){0};
  if (op->op.status == DIBS_HELD) op->recheck = (dibs__when){mem_soonest(n)};
  return true;
}

static void acquire(struct dibs__memory *m, name *n, const struct dibs__mem_open *from, struct dibs__lease_op *op,
                    int64_t now) {
  uint64_t session = from->session;
  bool left = m->buckets[op->op.bucket].served == DIBS__MEM_LEFT;
  claim *c = claim_find(m, n, op->id);
  if (left && c && (c->state == DIBS__MEM_WAITING || c->state == DIBS__MEM_ASLEEP)) {
    dibs__mem_claim_remove(m, c);
    c = NULL;
  }
  if (!c) {
    if (!left || !acquire_left(n, from, op)) acquire_new(m, n, session, op, now);
    return;
  }
  c->session = session; /* the latest requester gets the offer */
  acquire_again(m, c, op, now);
}

/* The holder with that id and a fence of its grant, or the offer under that fence; or NULL.  R39: a renewal with fence
 * 0 matches by the id alone. */
static claim *find_granted(const struct dibs__memory *m, const name *n, const struct dibs__lease_op *op) {
  const struct dibs__mem_bucket *bucket = &m->buckets[op->op.bucket];
  claim *c = claim_find(m, n, op->id);
  if (!c || (c->state != DIBS__MEM_HOLDS && c->state != DIBS__MEM_BREAKING && !offered_with_fence(c, bucket)))
    return NULL;
  if (c->mode != DIBS_EXCLUSIVE) return op->fence.v == 0 ? c : NULL;
  if (op->op.verb == DIBS__RENEW && op->fence.v == 0 && c->state != DIBS__MEM_OFFERED) return c;
  return op->fence.v >= c->granted.v && op->fence.v < c->first.v + c->block ? c : NULL;
}

static void renew(struct dibs__memory *m, const name *n, uint64_t session, struct dibs__lease_op *op, int64_t now) {
  claim *c = find_granted(m, n, op);
  if (!c || c->state == DIBS__MEM_BREAKING) {
    op->op.status = DIBS_LOST;
    return;
  }
  if (c->mode == DIBS_EXCLUSIVE && op->want_block && !draw_or_next_epoch(m, op, &c->first, &c->block)) return;
  if (c->state == DIBS__MEM_OFFERED) c->since = now;
  c->session = session;
  c->ttl_ms = op->ttl_ms;
  claim_become(c, DIBS__MEM_HOLDS, now + op->ttl_ms);
  answer_holder(op, c);
}

static void release(struct dibs__memory *m, name *n, struct dibs__lease_op *op, int64_t now) {
  claim *c = find_granted(m, n, op);
  op->op.status = c ? DIBS_OK : DIBS_LOST;
  if (!c) return;
  dibs__mem_claim_remove(m, c);
  pass_on(m, n, now);
}

static bool holds_lease(const claim *c) {
  return c->state == DIBS__MEM_HOLDS || c->state == DIBS__MEM_BREAKING;
}

static void cancel(struct dibs__memory *m, name *n, uint64_t session, struct dibs__lease_op *op, int64_t now) {
  claim *c = claim_find(m, n, op->id);
  if (c && op->only_waits && (holds_lease(c) || c->session != session)) c = NULL; /* R84 */
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
  pass_on(m, n, now); /* also after a waiter: it may have been in front of others that fit */
}

static bool record_break(name *n, const struct dibs__lease_op *op, int64_t now) {
  if (!n->breaks) n->breaks = calloc(DIBS__MEM_BREAKS, sizeof *n->breaks);
  if (!n->breaks) return false;
  struct dibs__mem_break *broke = &n->breaks[n->break_count++ % DIBS__MEM_BREAKS];
  const claim *c = n->holders.first;
  dibs__str from = dibs__str_of(c->owner, c->owner_len);
  for (const claim *other = c->after; other; other = other->after) {
    dibs__str owner = dibs__str_of(other->owner, other->owner_len);
    if (dibs__str_before(owner, from)) from = owner;
  }
  broke->at = now;
  broke->fence = c->first;
  broke->mode = c->mode;
  broke->owner_len = dibs__break_owner(broke->owner, op->owner, from).len;
  return true;
}

/* The owner of an exclusive offer may have begun: it is broken like a holder. */
static void hold_offered(name *n, const struct dibs__mem_bucket *bucket, int64_t now) {
  claim *c = n->offered.first;
  if (!c || c->mode != DIBS_EXCLUSIVE || !offered_with_fence(c, bucket)) return;
  c->since = now;
  claim_become(c, DIBS__MEM_HOLDS, c->until);
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
  pass_on(m, n, now);
}

static bool lease_valid(const struct dibs__lease_op *op) {
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

/* Of a bucket that is served, whether its epoch has too few fences for the operation. */
static bool used_up(const struct dibs__mem_bucket *bucket, const struct dibs__lease_op *op) {
  uint32_t want = op->op.verb <= DIBS__RENEW ? op->want_block : 0;
  if (want > DIBS__BLOCK_MAX) want = DIBS__BLOCK_MAX;
  if (want == 0 && op->op.verb == DIBS__ACQUIRE && op->mode == DIBS_EXCLUSIVE) want = 1;
  return want > DIBS__SEQ_MAX - bucket->seq;
}

/* R5, R35.  If not, it is answered. */
static bool mandate_is_valid(const struct dibs__mem_bucket *bucket, const struct dibs__mem_open *from,
                             struct dibs__lease_op *op) {
  bool same = dibs__mandate_equal(&op->op.mandate, &bucket->mandate);
  op->op.status = DIBS__MOVED;
  op->op.has = bucket->mandate;
  if (bucket->served == DIBS__MEM_LEFT && same) return true;
  if (bucket->served == DIBS__MEM_OWN) {
    if (!from->as_tier || from->as_anchor) return same;
    op->op.has.epoch = 0;
    return false;
  }
  if (from->as_tier) return bucket->served == DIBS__MEM_SERVED && same && !used_up(bucket, op);
  op->op.status = DIBS_DENIED;
  op->op.has = (dibs__mandate){0};
  return false;
}

DIBS__MODULE_API void dibs__mem_lease(struct dibs__memory *m, const struct dibs__mem_open *from,
                                      struct dibs__lease_op *op, int64_t now) {
  clear_answers(op);
  op->op.at.ms = now;
  if (!lease_valid(op)) {
    op->op.status = DIBS_INVALID;
    return;
  }
  if (!mandate_is_valid(&m->buckets[op->op.bucket], from, op)) return;
  name *n = dibs__mem_name_get(m, op->name);
  if (!n) {
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  dibs__mem_settle(m, n, now);
  switch ((enum dibs__lease_verb)op->op.verb) {
  case DIBS__ACQUIRE:
    acquire(m, n, from, op, now);
    break;
  case DIBS__RENEW:
    renew(m, n, from->session, op, now);
    break;
  case DIBS__RELEASE:
    release(m, n, op, now);
    break;
  case DIBS__CANCEL:
    cancel(m, n, from->session, op, now);
    break;
  case DIBS__BREAK:
    break_all(m, n, op, now);
    break;
  }
  op->waiting = n->offered.count + n->waiting.count + n->asleep.count > 0;
  dibs__mem_name_drop_if_idle(m, n);
}

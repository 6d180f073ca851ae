/* SPDX-License-Identifier: MIT */
/*
 * Leases, decided on rows: what time and dead processes change in a name, and the verbs.
 *
 * After pass_on the first WAITING one, if any, has the ticket `front`, is alive, and does not fit: so "does a waiter
 * precede this one" is a comparison.
 */
#include "sql/sql.h"

#include <string.h>

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__sql_head head;

/* After pass_on: a waiter is awake and alive. */
static bool somebody_waits(const head *h) {
  return h->waiters && h->front <= h->tickets;
}

static bool sql_fits(const head *h, uint32_t mode, uint32_t slots) {
  uint32_t there = h->holders + h->offers;
  if (!there) return true;
  if (mode == DIBS_EXCLUSIVE || mode != h->mode) return false;
  return mode == DIBS_SHARED || (slots == h->slots && there < slots);
}

static void sql_due_by(head *h, int64_t until) {
  if (h->due == 0 || until < h->due) h->due = until;
  h->queue_changed = true;
}

/* The first expiry among holders and offers; INT64_MAX if there are none. */
static sql_rc first_end(struct dibs__sql *s, const head *h, int64_t *at) {
  int64_t until;
  sql_rc st = DIBS__SQL_OK;
  *at = INT64_MAX;
  if (h->holders) {
    until = h->x.until;
    if (!dibs__sql_inline(h)) st = s->rows->holders_first_until(s->to, h, &until);
    if (st != DIBS__SQL_OK) return st;
    *at = until;
  }
  if (!h->offers) return DIBS__SQL_OK;
  st = s->rows->offers_first_until(s->to, h, &until);
  if (st == DIBS__SQL_OK && until < *at) *at = until;
  return st;
}

static sql_rc sql_recheck(struct dibs__sql *s, const head *h, int64_t *at) {
  return first_end(s, h, at);
}

static void count_offers_out(head *h, uint32_t gone) {
  h->offers -= gone;
  if (!h->offers) h->reach = 0;
  if (!h->holders && !h->offers) h->due = 0;
  h->queue_changed = true;
}

static void count_holders_out(head *h, uint32_t gone, uint32_t low_slot) {
  h->holders -= gone;
  if (low_slot < h->low_slot) h->low_slot = low_slot;
  if (!h->holders) h->low_slot = 0;
  if (!h->holders && !h->offers) h->due = 0;
  h->queue_changed = true;
}

static void count_waiters_out(head *h, uint32_t gone) {
  h->waiters -= gone;
  if (!h->waiters) {
    h->tickets = h->front = h->reach = 0;
    h->deep = false;
  }
  h->queue_changed = true;
}

sql_rc dibs__sql_waiter_out(struct dibs__sql *s, head *h, const struct dibs__sql_waiter *w) {
  if (!h->waiters || (w->state == DIBS__SQL_OFFERED && !h->offers)) return s->rows->wrong(s->to);
  sql_rc st = s->rows->waiter_drop(s->to, h, w);
  if (w->state == DIBS__SQL_OFFERED) count_offers_out(h, 1);
  count_waiters_out(h, 1);
  return st;
}

/* Removes one holder; the caller runs pass_on. */
static sql_rc remove_holder(struct dibs__sql *s, head *h, const struct dibs__sql_holder *holder) {
  sql_rc st = DIBS__SQL_OK;
  if (dibs__sql_inline(h))
    h->holder_changed = true;
  else
    st = s->rows->holder_drop(s->to, h, holder->id);
  count_holders_out(h, 1, holder->slot);
  return st;
}

/* Removes expired holders; expired offers fall asleep. */
static sql_rc expire(struct dibs__sql *s, head *h) {
  uint32_t gone = 0;
  sql_rc st;
  if (dibs__sql_inline(h) && h->x.until <= s->now) {
    h->holder_changed = true;
    count_holders_out(h, 1, 0);
  }
  if (h->due == 0 || h->due > s->now) return DIBS__SQL_OK;
  if (h->holders && !dibs__sql_inline(h)) {
    st = s->rows->holders_expire(s->to, h, s->now, &gone);
    if (st != DIBS__SQL_OK) return st;
    if (gone > h->holders) return s->rows->wrong(s->to);
    if (gone) count_holders_out(h, gone, 0);
  }
  if (h->offers) {
    st = s->rows->offers_expire(s->to, h, s->now, &gone);
    if (st != DIBS__SQL_OK) return st;
    if (gone > h->offers) return s->rows->wrong(s->to);
    if (gone) count_offers_out(h, gone);
  }
  int64_t due = INT64_MAX;
  if (!dibs__sql_inline(h)) {
    st = first_end(s, h, &due);
    if (st != DIBS__SQL_OK) return st;
  }
  h->due = due == INT64_MAX ? 0 : due;
  h->queue_changed = true;
  return DIBS__SQL_OK;
}

/* Draws `want` fences for the bucket's row in this transaction, or EXHAUSTED. */
static sql_rc draw_fences(struct dibs__sql *s, uint16_t bucket, uint32_t want, uint64_t *first, uint32_t *block) {
  struct dibs__sql_bucket *row;
  sql_rc st = s->rows->bucket_get(s->to, bucket, &row);
  if (st != DIBS__SQL_OK) return st;
  st = dibs__sql_draw(s, row, want, first, block);
  return st == DIBS__SQL_OK ? s->rows->bucket_put(s->to, bucket) : st;
}

static sql_rc make_offer(struct dibs__sql *s, head *h, struct dibs__sql_waiter *w) {
  uint32_t block;
  sql_rc st = DIBS__SQL_OK;
  w->state = DIBS__SQL_OFFERED;
  w->until = s->now + DIBS__OFFER_MS;
  w->first = 0;
  /* With its fence, so that its owner may begin at once; the last one of an epoch has none. */
  if (w->mode == DIBS_EXCLUSIVE) st = draw_fences(s, h->bucket, 1, &w->first, &block);
  if (st == DIBS__SQL_OK || st == DIBS__SQL_EXHAUSTED) st = s->rows->waiter_set(s->to, h, w);
  if (st != DIBS__SQL_OK) return st;
  if (!h->holders && !h->offers) {
    h->mode = w->mode;
    h->slots = w->slots;
  }
  h->offers++;
  if (w->ticket > h->reach) h->reach = w->ticket;
  sql_due_by(h, w->until);
  if (w->first)
    s->offer(s->to, w->session, w->id, w->first, w->until);
  else
    s->post(s->to, w->session, DIBS__EV_OFFER, w->id);
  return DIBS__SQL_OK;
}

sql_rc dibs__sql_pass_on(struct dibs__sql *s, head *h) {
  if (s->left) return DIBS__SQL_OK; /* R46 */
  while (somebody_waits(h)) {
    struct dibs__sql_waiter w;
    bool found;
    sql_rc st = s->rows->waiter_next(s->to, h, &w, &found);
    if (st != DIBS__SQL_OK) return st;
    uint64_t front = found ? w.ticket : h->tickets + 1;
    if (front != h->front) h->queue_changed = true;
    h->front = front;
    if (!found) break;
    if (!s->alive(s->to, w.session)) {
      st = dibs__sql_waiter_out(s, h, &w);
    } else {
      if (!sql_fits(h, w.mode, w.slots)) break;
      st = make_offer(s, h, &w);
    }
    if (st != DIBS__SQL_OK) return st;
  }
  return DIBS__SQL_OK;
}

sql_rc dibs__sql_enter(struct dibs__sql *s, head *h) {
  sql_rc st = s->rows->head_load(s->to, h);
  if (st != DIBS__SQL_OK || !h->exists) return st;
  st = expire(s, h);
  return st == DIBS__SQL_OK ? dibs__sql_pass_on(s, h) : st;
}

sql_rc dibs__sql_leave(struct dibs__sql *s, head *h) {
  if (!h->holders && !h->waiters) return h->exists ? s->rows->head_drop(s->to, h) : DIBS__SQL_OK;
  if (!h->exists) return s->rows->head_add(s->to, h);
  if (h->holder_changed) return s->rows->head_set(s->to, h);
  return h->queue_changed ? s->rows->head_set_queue(s->to, h) : DIBS__SQL_OK;
}

/* ---- The verbs ---- */

typedef struct dibs__sql_holder holder;
typedef struct dibs__sql_waiter waiter;

static void label_set(struct dibs__sql_label *label, dibs__str from) {
  label->len = from.len <= DIBS_OWNER_MAX ? from.len : DIBS_OWNER_MAX;
  if (label->len) memcpy(label->text, from.p, label->len);
}

static void answer_holder(struct dibs__lease_op *op, const head *h, const holder *x) {
  op->fence = (dibs__fence){x->first};
  op->got_block = x->block;
  op->slot = h->mode == DIBS_COUNTED ? x->slot : 0;
  op->until = (dibs__when){x->until};
  op->op.status = DIBS_OK;
}

bool dibs__sql_next_epoch(struct dibs__sql_bucket *row) {
  if (row->served != DIBS__SQL_OWN) {
    /* Unless another mandate has been installed since the epoch was found used up. */
    if ((row->seq & DIBS__SEQ_MAX) > DIBS__SEQ_MAX / 2) row->seq |= DIBS__SEQ_MAX;
    return true;
  }
  return dibs__sql_epoch_above(row, DIBS__FENCE_NONE);
}

bool dibs__sql_epoch_above(struct dibs__sql_bucket *row, dibs__fence above) {
  uint64_t last = dibs__sql_last(row).v;
  uint32_t epoch = dibs__fence_epoch(above) > row->mandate.epoch ? dibs__fence_epoch(above) : row->mandate.epoch;
  if (epoch >= DIBS__EPOCH_MAX) return false;
  row->mandate.epoch = epoch + 1;
  uint64_t base = (uint64_t)row->mandate.epoch << 32;
  row->seq = last > base ? last - base : 0; /* it led the epoch, because of the clock */
  return true;
}

static uint64_t clock_ticks(const struct dibs__sql_bucket *row, int64_t now) {
  int64_t base = row->clock_base ? row->clock_base : DIBS__SQL_BASE_MS;
  return now > base ? (uint64_t)(now - base) * DIBS__SQL_PER_MS : 0;
}

static bool is_clocked(const struct dibs__sql *s, const struct dibs__sql_bucket *row) {
  return s->clocked && row->served == DIBS__SQL_OWN;
}

void dibs__sql_clock_in(const struct dibs__sql *s, struct dibs__sql_bucket *row) {
  uint64_t now = is_clocked(s, row) ? clock_ticks(row, s->now) : 0;
  if (row->seq + 1 < now) row->seq = now - 1;
}

void dibs__sql_clock_begin(const struct dibs__sql *s, struct dibs__sql_bucket *row) {
  if (is_clocked(s, row)) row->clock_base = s->now - (int64_t)(row->seq / DIBS__SQL_PER_MS) - 1;
}

DIBS__MODULE_API sql_rc dibs__sql_draw(const struct dibs__sql *s, struct dibs__sql_bucket *row, uint32_t want,
                                       uint64_t *first, uint32_t *block) {
  struct dibs__sql_bucket next = *row;
  dibs__sql_clock_in(s, &next);
  uint64_t last = next.seq, upto = row->seq | DIBS__SEQ_MAX;
  if (want == 0) want = 1;
  if (want > DIBS__BLOCK_MAX) want = DIBS__BLOCK_MAX;
  if (is_clocked(s, row)) {
    uint64_t lead = clock_ticks(row, s->now + DIBS__SQL_LEAD_MS);
    if (last + want > lead) want = lead > last + 1 ? (uint32_t)(lead - last) : 1;
    upto = DIBS__FENCE_MAX - ((uint64_t)row->mandate.epoch << 32);
  }
  if (last + want > upto || row->served == DIBS__SQL_VOID) return DIBS__SQL_EXHAUSTED;
  row->seq = last + want;
  *first = dibs__sql_last(row).v - want + 1;
  *block = want;
  return DIBS__SQL_OK;
}

/* The first grant of an epoch leaves a trace (`used`), also if it draws no fence: it shows that the store is used
 * without an anchor. */
static sql_rc mark_used(struct dibs__sql *s, uint16_t bucket) {
  struct dibs__sql_bucket *row;
  uint64_t first;
  uint32_t block;
  sql_rc st = s->rows->bucket_get(s->to, bucket, &row);
  if (st != DIBS__SQL_OK || row->seq || row->served != DIBS__SQL_OWN) return st;
  return draw_fences(s, bucket, 1, &first, &block);
}

/* The next waiter becomes a holder; `drawn`: the fence of its offer, or 0. */
static sql_rc grant(struct dibs__sql *s, head *h, struct dibs__lease_op *op, uint32_t mode, uint32_t slots,
                    dibs__str owner, uint64_t drawn) {
  holder rowed, *x = mode == DIBS_EXCLUSIVE ? &h->x : &rowed;
  sql_rc st = DIBS__SQL_OK;
  if (!h->holders && !h->offers) {
    h->mode = mode;
    h->slots = slots;
    h->low_slot = 0;
  }
  x->id = op->id;
  x->granted = x->first = drawn;
  x->block = drawn != 0;
  x->slot = 0;
  if (mode == DIBS_EXCLUSIVE && (!drawn || op->want_block > 1))
    st = draw_fences(s, h->bucket, op->want_block, &x->first, &x->block);
  if (mode == DIBS_COUNTED) st = s->rows->slot_free(s->to, h, &x->slot);
  if (st != DIBS__SQL_OK) return st;
  if (mode != DIBS_EXCLUSIVE || drawn) st = mark_used(s, h->bucket);
  if (st != DIBS__SQL_OK) return st;
  x->granted = x->first;
  x->ttl_ms = op->ttl_ms;
  x->broken = false;
  x->since = s->now;
  x->until = s->now + op->ttl_ms;
  x->session = s->session;
  label_set(&x->owner, owner);
  h->holders++;
  h->queue_changed = true;
  if (mode == DIBS_EXCLUSIVE) {
    h->holder_changed = true;
  } else {
    if (mode == DIBS_COUNTED) h->low_slot = x->slot + 1;
    sql_due_by(h, x->until);
    st = s->rows->holder_add(s->to, h, x);
  }
  answer_holder(op, h, x);
  return st;
}

/* The holder with that id, from the head or its row. */
static sql_rc find_holder(struct dibs__sql *s, const head *h, dibs__id id, holder *x, bool *found) {
  *found = false;
  if (!h->holders) return DIBS__SQL_OK;
  if (!dibs__sql_inline(h)) return s->rows->holder_find(s->to, h, id, x, found);
  *found = dibs__id_equal(h->x.id, id);
  if (*found) *x = h->x;
  return DIBS__SQL_OK;
}

/* Writes what changed: until, ttl, block, session. */
static sql_rc keep_holder(struct dibs__sql *s, head *h, const holder *x) {
  if (dibs__sql_inline(h)) {
    h->x = *x;
    h->holder_changed = true;
    return DIBS__SQL_OK;
  }
  if (x->until < h->due) sql_due_by(h, x->until);
  return s->rows->holder_set(s->to, h, x);
}

static sql_rc find_waiter(struct dibs__sql *s, const head *h, const struct dibs__lease_op *op, waiter *w, bool *found) {
  *found = false;
  if (!h->waiters) return DIBS__SQL_OK;
  return s->rows->waiter_find(s->to, h, op->id, op->ticket, w, found);
}

/* At most all tickets after its own are still in the queue; and of those before it only the ones from the front on are
 * awake: the others get no offer, so it must look for itself. */
static uint32_t ahead_of(const head *h, uint64_t ticket) {
  uint64_t behind = h->tickets - ticket, awake = ticket > h->front ? ticket - h->front : 0;
  uint64_t before = h->waiters > behind + 1 ? h->waiters - behind - 1 : 0;
  return (uint32_t)(before < awake ? before : awake);
}

static sql_rc answer_busy(struct dibs__sql *s, const head *h, struct dibs__lease_op *op, dibs__status status,
                          uint64_t ticket) {
  struct dibs__sql_bucket *row;
  op->op.status = status;
  op->ticket = ticket;
  if (status == DIBS__QUEUED) op->ahead = ahead_of(h, ticket);
  sql_rc st = s->rows->bucket_get(s->to, h->bucket, &row);
  if (st != DIBS__SQL_OK) return st;
  op->fence = dibs__sql_last(row);
  return sql_recheck(s, h, &op->recheck.ms);
}

static sql_rc enqueue(struct dibs__sql *s, head *h, struct dibs__lease_op *op) {
  waiter w = {.id = op->id, .state = DIBS__SQL_WAITING, .mode = op->mode, .ttl_ms = op->ttl_ms, .session = s->session};
  if (h->waiters >= DIBS__SQL_SHALLOW) h->deep = true;
  w.ticket = ++h->tickets;
  w.deep = h->deep;
  w.slots = op->mode == DIBS_COUNTED ? op->slots : 0;
  w.since = s->now;
  label_set(&w.owner, op->owner);
  if (h->front == 0) h->front = 1;
  h->waiters++;
  h->queue_changed = true;
  sql_rc st = s->rows->waiter_add(s->to, h, &w);
  return st == DIBS__SQL_OK ? answer_busy(s, h, op, DIBS__QUEUED, w.ticket) : st;
}

/* If this store is the anchor, its record shows which tier serves the bucket. */
static sql_rc answer_denied(struct dibs__sql *s, const struct dibs__lease_op *op) {
  struct dibs__sql_record r;
  bool found = false;
  if (s->denied) return DIBS__SQL_OK;
  s->denied = true;
  sql_rc st =
      s->rows->record_load(s->to, dibs__str_of(DIBS__SQL_TIERS_KEY, sizeof DIBS__SQL_TIERS_KEY - 1), &r, &found);
  if (st == DIBS__SQL_OK && found && (int64_t)r.version > 0)
    dibs__tiers_who_serves(dibs__str_of(r.data, r.len), op->op.bucket, s->served_by, sizeof s->served_by);
  return st;
}

/* R46.  A name without holders and offers is neither granted nor offered: so it stays free, and the tier to which it
 * moves may grant it. */
static sql_rc acquire_left(struct dibs__sql *s, head *h, struct dibs__lease_op *op) {
  uint32_t slots = op->mode == DIBS_COUNTED ? op->slots : 0;
  op->op.status = s->opened.as_tier ? DIBS__MOVED : DIBS_DENIED;
  op->op.has = s->opened.as_tier ? op->op.mandate : (dibs__mandate){0};
  if (!s->opened.as_tier) return answer_denied(s, op);
  if ((!h->holders && !h->offers)) return DIBS__SQL_OK;
  if (h->holders && sql_fits(h, op->mode, slots)) return grant(s, h, op, op->mode, slots, op->owner, 0);
  return answer_busy(s, h, op, DIBS_HELD, op->ticket);
}

static sql_rc acquire_new(struct dibs__sql *s, head *h, struct dibs__lease_op *op) {
  uint32_t slots = op->mode == DIBS_COUNTED ? op->slots : 0;
  if (h->holders && h->mode == DIBS_COUNTED && op->mode == DIBS_COUNTED && slots != h->slots) {
    op->op.status = DIBS_INVALID;
    return DIBS__SQL_OK;
  }
  if (s->left) return acquire_left(s, h, op);
  if (!somebody_waits(h) && sql_fits(h, op->mode, slots)) return grant(s, h, op, op->mode, slots, op->owner, 0);
  if (!op->queue) return answer_busy(s, h, op, DIBS_HELD, op->ticket);
  return enqueue(s, h, op);
}

/* A fence that was drawn for an offer under an earlier mandate of an anchor's is no longer valid: another tier may have
 * granted larger ones since.  All fences drawn before an epoch was installed are below it; those that a store drew by
 * its clock before the bucket was LEFT are above it. */
static bool fence_is_valid(const struct dibs__sql *s, uint64_t fence) {
  return !s->served_under || dibs__fence_epoch((dibs__fence){fence}) >= s->served_under;
}

/* It is in the queue, and requests again: that wakes it. */
static sql_rc acquire_queued(struct dibs__sql *s, head *h, struct dibs__lease_op *op, waiter *w) {
  bool served = w->state == DIBS__SQL_OFFERED;
  uint64_t drawn = served && fence_is_valid(s, w->first) ? w->first : 0;
  sql_rc st = DIBS__SQL_OK;
  /* pass_on has just skipped it if it was awake: nothing changed since. */
  if (w->state == DIBS__SQL_ASLEEP)
    served = !(somebody_waits(h) && h->front < w->ticket) && sql_fits(h, w->mode, w->slots);
  if (served) {
    st = dibs__sql_waiter_out(s, h, w);
    if (st != DIBS__SQL_OK) return st;
    return grant(s, h, op, w->mode, w->slots, (dibs__str){w->owner.text, w->owner.len}, drawn);
  }
  if (w->state == DIBS__SQL_ASLEEP || w->session != s->session) {
    w->state = DIBS__SQL_WAITING;
    w->session = s->session; /* the latest requester gets the offer */
    if (w->ticket < h->front) h->front = w->ticket;
    h->queue_changed = true;
    st = s->rows->waiter_set(s->to, h, w);
  }
  return st == DIBS__SQL_OK ? answer_busy(s, h, op, DIBS__QUEUED, w->ticket) : st;
}

static sql_rc acquire(struct dibs__sql *s, head *h, struct dibs__lease_op *op) {
  holder x;
  waiter w;
  bool found;
  sql_rc st = find_holder(s, h, op->id, &x, &found);
  if (st != DIBS__SQL_OK) return st;
  if (found) {
    if (x.broken)
      op->op.status = DIBS_LOST;
    else
      answer_holder(op, h, &x);
    if (x.session == s->session) return DIBS__SQL_OK;
    x.session = s->session;
    return keep_holder(s, h, &x);
  }
  st = find_waiter(s, h, op, &w, &found);
  if (st != DIBS__SQL_OK) return st;
  if (found && s->left && w.state != DIBS__SQL_OFFERED) {
    st = dibs__sql_waiter_out(s, h, &w);
    return st == DIBS__SQL_OK ? acquire_left(s, h, op) : st;
  }
  return found ? acquire_queued(s, h, op, &w) : acquire_new(s, h, op);
}

/* An exclusive offer, with its fence, becomes a holder until the offer's end. */
static sql_rc hold_offered(struct dibs__sql *s, head *h, waiter *w) {
  sql_rc st = dibs__sql_waiter_out(s, h, w);
  h->mode = DIBS_EXCLUSIVE;
  h->slots = h->low_slot = 0;
  h->holders = 1;
  h->due = 0;
  h->queue_changed = h->holder_changed = true;
  h->x = (holder){.id = w->id, .granted = w->first, .first = w->first, .block = 1, .ttl_ms = w->ttl_ms};
  h->x.until = w->until;
  h->x.since = s->now;
  h->x.session = w->session;
  h->x.owner = w->owner;
  return st;
}

static bool offers_fence(const struct dibs__sql *s, const head *h, const waiter *w) {
  return !h->holders && w->state == DIBS__SQL_OFFERED && w->mode == DIBS_EXCLUSIVE && w->first != 0 &&
         fence_is_valid(s, w->first);
}

/* The holder with that id and a fence of its grant; R39: for a renewal with fence 0, with that id. */
static sql_rc find_grant(struct dibs__sql *s, head *h, const struct dibs__lease_op *op, holder *x, bool *found) {
  waiter w;
  sql_rc st = DIBS__SQL_OK;
  if (!h->holders && h->offers == 1) st = find_waiter(s, h, op, &w, found);
  if (!h->holders && h->offers == 1 && st == DIBS__SQL_OK && *found && offers_fence(s, h, &w) && w.first == op->fence.v)
    st = hold_offered(s, h, &w);
  if (st == DIBS__SQL_OK) st = find_holder(s, h, op->id, x, found);
  if (st != DIBS__SQL_OK || !*found) return st;
  if (h->mode != DIBS_EXCLUSIVE)
    *found = op->fence.v == 0;
  else if (op->op.verb == DIBS__RENEW && op->fence.v == 0)
    *found = true;
  else
    *found = op->fence.v >= x->granted && op->fence.v < x->first + x->block;
  return st;
}

static sql_rc renew(struct dibs__sql *s, head *h, struct dibs__lease_op *op) {
  holder x;
  bool found;
  sql_rc st = find_grant(s, h, op, &x, &found);
  op->op.status = DIBS_LOST;
  if (st != DIBS__SQL_OK || !found || x.broken) return st;
  if (h->mode == DIBS_EXCLUSIVE && op->want_block) st = draw_fences(s, h->bucket, op->want_block, &x.first, &x.block);
  if (st != DIBS__SQL_OK) return st;
  x.session = s->session;
  x.ttl_ms = op->ttl_ms;
  x.until = s->now + op->ttl_ms;
  answer_holder(op, h, &x);
  return keep_holder(s, h, &x);
}

static sql_rc release(struct dibs__sql *s, head *h, struct dibs__lease_op *op) {
  holder x;
  bool found;
  sql_rc st = find_grant(s, h, op, &x, &found);
  op->op.status = found ? DIBS_OK : DIBS_LOST;
  if (st != DIBS__SQL_OK || !found) return st;
  st = remove_holder(s, h, &x);
  return st == DIBS__SQL_OK ? dibs__sql_pass_on(s, h) : st;
}

static sql_rc cancel_request(struct dibs__sql *s, head *h, struct dibs__lease_op *op) {
  holder x;
  waiter w;
  bool found;
  sql_rc st = find_holder(s, h, op->id, &x, &found);
  if (st != DIBS__SQL_OK) return st;
  op->op.status = DIBS_OK;
  if (found && op->only_waits) {
    op->op.status = DIBS_NOT_FOUND;
    return DIBS__SQL_OK;
  }
  if (found) {
    op->was = DIBS__WAS_HELD;
    st = remove_holder(s, h, &x);
    return st == DIBS__SQL_OK ? dibs__sql_pass_on(s, h) : st;
  }
  st = find_waiter(s, h, op, &w, &found);
  if (st != DIBS__SQL_OK) return st;
  if (!found || (op->only_waits && w.session != s->session)) { /* R84 */
    op->op.status = DIBS_NOT_FOUND;
    return DIBS__SQL_OK;
  }
  op->was = w.state == DIBS__SQL_OFFERED ? DIBS__WAS_OFFERED : DIBS__WAS_WAITING;
  st = dibs__sql_waiter_out(s, h, &w);
  /* Also after a waiter: it may have been in front of others that fit. */
  return st == DIBS__SQL_OK ? dibs__sql_pass_on(s, h) : st;
}

struct breaking {
  struct dibs__sql *s;
  int64_t last;
  uint64_t fence;
  struct dibs__sql_label from;
  bool fresh;
};

static void break_one(void *arg, const holder *x) {
  struct breaking *b = arg;
  if (x->until > b->last) b->last = x->until;
  b->fence = x->first;
  dibs__str owner = dibs__str_of(x->owner.text, x->owner.len);
  if (!b->from.len || dibs__str_before(owner, dibs__str_of(b->from.text, b->from.len))) b->from = x->owner;
  if (x->broken) return;
  b->fresh = true;
  b->s->post(b->s->to, x->session, DIBS__EV_LOST, x->id);
}

static sql_rc holders_break(struct dibs__sql *s, head *h, bool now) {
  sql_rc st = DIBS__SQL_OK;
  if (dibs__sql_inline(h)) {
    h->x.broken = true;
    h->holder_changed = true;
  } else {
    st = now ? s->rows->holders_drop(s->to, h) : s->rows->holders_break(s->to, h);
  }
  if (!now) return st;
  h->holders = 0;
  h->low_slot = 0;
  if (!h->offers) h->due = 0;
  h->queue_changed = true;
  return st;
}

/* The owner of an exclusive offer may have begun: it is broken like a holder. */
static sql_rc hold_any_offered(struct dibs__sql *s, head *h) {
  waiter w;
  bool found;
  if (h->holders || h->offers != 1) return DIBS__SQL_OK;
  sql_rc st = s->rows->waiter_offered(s->to, h, &w, &found);
  return st == DIBS__SQL_OK && found && offers_fence(s, h, &w) ? hold_offered(s, h, &w) : st;
}

static sql_rc break_all(struct dibs__sql *s, head *h, struct dibs__lease_op *op) {
  struct breaking b = {.s = s, .last = s->now, .fresh = op->now};
  sql_rc st = hold_any_offered(s, h);
  if (st != DIBS__SQL_OK) return st;
  if (!h->holders) {
    op->op.status = DIBS_NOT_FOUND;
    return DIBS__SQL_OK;
  }
  op->op.status = DIBS_OK;
  if (dibs__sql_inline(h))
    break_one(&b, &h->x);
  else
    st = s->rows->holders_each(s->to, h, break_one, &b);
  if (st == DIBS__SQL_OK && b.fresh) {
    char owner[DIBS__BREAK_OWNER_MAX];
    struct dibs__sql_break row = {s->now, b.fence, h->mode,
                                  dibs__break_owner(owner, op->owner, dibs__str_of(b.from.text, b.from.len))};
    st = s->rows->break_add(s->to, h, &row);
  }
  if (st == DIBS__SQL_OK) st = holders_break(s, h, op->now);
  op->until.ms = op->now ? s->now : b.last;
  return st == DIBS__SQL_OK ? dibs__sql_pass_on(s, h) : st;
}

bool dibs__sql_lease_valid(struct dibs__lease_op *op) {
  bool valid = op->op.bucket < DIBS__BUCKETS && op->name.len >= 1 && op->name.len <= DIBS_NAME_MAX;
  if (op->op.verb == DIBS__ACQUIRE) {
    valid = valid && op->mode <= DIBS_COUNTED && op->ttl_ms > 0 && op->owner.len <= DIBS_OWNER_MAX;
    if (op->mode == DIBS_COUNTED) valid = valid && op->slots >= 1 && op->slots <= DIBS_SLOTS_MAX;
  }
  if (op->op.verb == DIBS__RENEW) valid = valid && op->ttl_ms > 0;
  if (op->op.verb > DIBS__BREAK) valid = false;
  if (!valid) op->op.status = DIBS_INVALID;
  return valid;
}

sql_rc dibs__sql_lease(struct dibs__sql *s, struct dibs__lease_op *op) {
  struct dibs__sql_bucket *row;
  head h;
  op->op.at.ms = s->now;
  if (!dibs__sql_lease_valid(op)) return DIBS__SQL_OK;
  sql_rc st = s->rows->bucket_get(s->to, op->op.bucket, &row);
  if (st != DIBS__SQL_OK) return st;
  if (!dibs__sql_stands(s->opened, row, &op->op) || dibs__sql_used_up(row, op)) {
    return op->op.status == DIBS_DENIED ? answer_denied(s, op) : DIBS__SQL_OK;
  }
  s->left = row->served == DIBS__SQL_LEFT;
  s->served_under = row->served == DIBS__SQL_OWN ? 0 : row->mandate.epoch;
  h.bucket = op->op.bucket;
  h.name = op->name;
  st = dibs__sql_enter(s, &h);
  if (st != DIBS__SQL_OK) return st;
  switch ((enum dibs__lease_verb)op->op.verb) {
  case DIBS__ACQUIRE:
    st = acquire(s, &h, op);
    break;
  case DIBS__RENEW:
    st = renew(s, &h, op);
    break;
  case DIBS__RELEASE:
    st = release(s, &h, op);
    break;
  case DIBS__CANCEL:
    st = cancel_request(s, &h, op);
    break;
  case DIBS__BREAK:
    st = break_all(s, &h, op);
    break;
  }
  op->waiting = h.waiters > 0;
  return st == DIBS__SQL_OK ? dibs__sql_leave(s, &h) : st;
}

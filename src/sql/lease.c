/* SPDX-License-Identifier: MIT */
/* The verbs of a lease, decided on rows. */
#include "sql/sql.h"

#include <string.h>

typedef enum dibs__sql_step step;
typedef struct dibs__sql_head head;
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
    /* Unless another has been installed since somebody found it used up. */
    if (row->seq > DIBS__SEQ_MAX / 2) row->seq = DIBS__SEQ_MAX;
    return true;
  }
  if (row->mandate.epoch >= DIBS__EPOCH_MAX) return false;
  row->mandate.epoch++;
  row->seq = 0;
  return true;
}

DIBS__MODULE_API step dibs__sql_draw(struct dibs__sql_bucket *row, uint32_t want, uint64_t *first, uint32_t *block) {
  if (want == 0) want = 1;
  if (want > DIBS__BLOCK_MAX) want = DIBS__BLOCK_MAX;
  if (want > DIBS__SEQ_MAX - row->seq || row->served == DIBS__SQL_VOID) return DIBS__SQL_SPENT;
  *first = dibs__fence_make(row->mandate.epoch, row->seq + 1).v;
  *block = want;
  row->seq += want;
  return DIBS__SQL_FINE;
}

step dibs__sql_draw_put(struct dibs__sql *s, uint16_t bucket, uint32_t want, uint64_t *first, uint32_t *block) {
  struct dibs__sql_bucket *row;
  step st = s->rows->bucket_get(s->to, bucket, &row);
  if (st != DIBS__SQL_FINE) return st;
  st = dibs__sql_draw(row, want, first, block);
  return st == DIBS__SQL_FINE ? s->rows->bucket_put(s->to, bucket) : st;
}

/* Whose turn it is becomes a holder; `drawn`: the fence of its offer, or 0. */
static step grant(struct dibs__sql *s, head *h, struct dibs__lease_op *op, uint32_t mode, uint32_t slots,
                  dibs__str owner, uint64_t drawn) {
  holder rowed, *x = mode == DIBS_EXCLUSIVE ? &h->x : &rowed;
  step st = DIBS__SQL_FINE;
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
    st = dibs__sql_draw_put(s, h->bucket, op->want_block, &x->first, &x->block);
  if (mode == DIBS_COUNTED) st = s->rows->slot_free(s->to, h, &x->slot);
  if (st != DIBS__SQL_FINE) return st;
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
    dibs__sql_due_by(h, x->until);
    st = s->rows->holder_add(s->to, h, x);
  }
  answer_holder(op, h, x);
  return st;
}

/* The holder with that id, wherever it is kept. */
static step find_holder(struct dibs__sql *s, const head *h, dibs__id id, holder *x, bool *found) {
  *found = false;
  if (!h->holders) return DIBS__SQL_FINE;
  if (!dibs__sql_inline(h)) return s->rows->holder_find(s->to, h, id, x, found);
  *found = dibs__id_equal(h->x.id, id);
  if (*found) *x = h->x;
  return DIBS__SQL_FINE;
}

/* As changed: until, ttl, block, session. */
static step keep_holder(struct dibs__sql *s, head *h, const holder *x) {
  if (dibs__sql_inline(h)) {
    h->x = *x;
    h->holder_changed = true;
    return DIBS__SQL_FINE;
  }
  if (x->until < h->due) dibs__sql_due_by(h, x->until);
  return s->rows->holder_set(s->to, h, x);
}

static step find_waiter(struct dibs__sql *s, const head *h, const struct dibs__lease_op *op, waiter *w, bool *found) {
  *found = false;
  if (!h->waiters) return DIBS__SQL_FINE;
  return s->rows->waiter_find(s->to, h, op->id, op->ticket, w, found);
}

static step answer_later(struct dibs__sql *s, const head *h, struct dibs__lease_op *op, dibs__status status,
                         uint64_t ticket) {
  struct dibs__sql_bucket *row;
  op->op.status = status;
  op->ticket = ticket;
  step st = s->rows->bucket_get(s->to, h->bucket, &row);
  if (st != DIBS__SQL_FINE) return st;
  op->fence = dibs__fence_make(row->mandate.epoch, row->seq);
  return dibs__sql_recheck(s, h, &op->recheck.ms);
}

static step enqueue(struct dibs__sql *s, head *h, struct dibs__lease_op *op) {
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
  step st = s->rows->waiter_add(s->to, h, &w);
  return st == DIBS__SQL_FINE ? answer_later(s, h, op, DIBS__QUEUED, w.ticket) : st;
}

static step acquire_new(struct dibs__sql *s, head *h, struct dibs__lease_op *op) {
  uint32_t slots = op->mode == DIBS_COUNTED ? op->slots : 0;
  if (h->holders && h->mode == DIBS_COUNTED && op->mode == DIBS_COUNTED && slots != h->slots) {
    op->op.status = DIBS_INVALID;
    return DIBS__SQL_FINE;
  }
  if (!dibs__sql_somebody_waits(h) && dibs__sql_fits(h, op->mode, slots))
    return grant(s, h, op, op->mode, slots, op->owner, 0);
  if (!op->queue) return answer_later(s, h, op, DIBS_HELD, op->ticket);
  return enqueue(s, h, op);
}

/* A fence that was drawn for an offer under an earlier mandate of an anchor's counts no more: another tier may have
 * granted larger ones since. */
static bool still_counts(const struct dibs__sql *s, uint64_t fence) {
  return !s->served_under || dibs__fence_epoch((dibs__fence){fence}) == s->served_under;
}

/* It has a place in the queue, and asks again: that wakes it. */
static step acquire_queued(struct dibs__sql *s, head *h, struct dibs__lease_op *op, waiter *w) {
  bool turn = w->state == DIBS__SQL_OFFERED;
  uint64_t drawn = turn && still_counts(s, w->first) ? w->first : 0;
  step st = DIBS__SQL_FINE;
  /* One that was awake has just been passed over by pass_on: nothing changed since. */
  if (w->state == DIBS__SQL_ASLEEP)
    turn = !(dibs__sql_somebody_waits(h) && h->front < w->ticket) && dibs__sql_fits(h, w->mode, w->slots);
  if (turn) {
    st = dibs__sql_waiter_out(s, h, w);
    if (st != DIBS__SQL_FINE) return st;
    return grant(s, h, op, w->mode, w->slots, (dibs__str){w->owner.text, w->owner.len}, drawn);
  }
  if (w->state == DIBS__SQL_ASLEEP || w->session != s->session) {
    w->state = DIBS__SQL_WAITING;
    w->session = s->session; /* who asked last is told of its offer */
    if (w->ticket < h->front) h->front = w->ticket;
    h->queue_changed = true;
    st = s->rows->waiter_set(s->to, h, w);
  }
  return st == DIBS__SQL_FINE ? answer_later(s, h, op, DIBS__QUEUED, w->ticket) : st;
}

static step acquire(struct dibs__sql *s, head *h, struct dibs__lease_op *op) {
  holder x;
  waiter w;
  bool found;
  step st = find_holder(s, h, op->id, &x, &found);
  if (st != DIBS__SQL_FINE) return st;
  if (found) {
    if (x.broken)
      op->op.status = DIBS_LOST;
    else
      answer_holder(op, h, &x);
    if (x.session == s->session) return DIBS__SQL_FINE;
    x.session = s->session;
    return keep_holder(s, h, &x);
  }
  st = find_waiter(s, h, op, &w, &found);
  if (st != DIBS__SQL_FINE) return st;
  return found ? acquire_queued(s, h, op, &w) : acquire_new(s, h, op);
}

/* Who is offered an exclusive name, under the fence of the offer, becomes its holder until the offer's end. */
static step hold_offered(struct dibs__sql *s, head *h, waiter *w) {
  step st = dibs__sql_waiter_out(s, h, w);
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
         still_counts(s, w->first);
}

/* The holder with that id and a fence of its grant. */
static step find_grant(struct dibs__sql *s, head *h, const struct dibs__lease_op *op, holder *x, bool *found) {
  waiter w;
  step st = DIBS__SQL_FINE;
  if (!h->holders && h->offers == 1) st = find_waiter(s, h, op, &w, found);
  if (!h->holders && h->offers == 1 && st == DIBS__SQL_FINE && *found && offers_fence(s, h, &w) &&
      w.first == op->fence.v)
    st = hold_offered(s, h, &w);
  if (st == DIBS__SQL_FINE) st = find_holder(s, h, op->id, x, found);
  if (st != DIBS__SQL_FINE || !*found) return st;
  if (h->mode != DIBS_EXCLUSIVE)
    *found = op->fence.v == 0;
  else
    *found = op->fence.v >= x->granted && op->fence.v < x->first + x->block;
  return st;
}

static step renew(struct dibs__sql *s, head *h, struct dibs__lease_op *op) {
  holder x;
  bool found;
  step st = find_grant(s, h, op, &x, &found);
  op->op.status = DIBS_LOST;
  if (st != DIBS__SQL_FINE || !found || x.broken) return st;
  if (h->mode == DIBS_EXCLUSIVE && op->want_block)
    st = dibs__sql_draw_put(s, h->bucket, op->want_block, &x.first, &x.block);
  if (st != DIBS__SQL_FINE) return st;
  x.session = s->session;
  x.ttl_ms = op->ttl_ms;
  x.until = s->now + op->ttl_ms;
  answer_holder(op, h, &x);
  return keep_holder(s, h, &x);
}

static step release(struct dibs__sql *s, head *h, struct dibs__lease_op *op) {
  holder x;
  bool found;
  step st = find_grant(s, h, op, &x, &found);
  op->op.status = found ? DIBS_OK : DIBS_LOST;
  if (st != DIBS__SQL_FINE || !found) return st;
  st = dibs__sql_holder_out(s, h, &x);
  return st == DIBS__SQL_FINE ? dibs__sql_pass_on(s, h) : st;
}

static step cancel(struct dibs__sql *s, head *h, struct dibs__lease_op *op) {
  holder x;
  waiter w;
  bool found;
  step st = find_holder(s, h, op->id, &x, &found);
  if (st != DIBS__SQL_FINE) return st;
  op->op.status = DIBS_OK;
  if (found) {
    op->was = DIBS__WAS_HELD;
    st = dibs__sql_holder_out(s, h, &x);
    return st == DIBS__SQL_FINE ? dibs__sql_pass_on(s, h) : st;
  }
  st = find_waiter(s, h, op, &w, &found);
  if (st != DIBS__SQL_FINE) return st;
  if (!found) {
    op->op.status = DIBS_NOT_FOUND;
    return DIBS__SQL_FINE;
  }
  op->was = w.state == DIBS__SQL_OFFERED ? DIBS__WAS_OFFERED : DIBS__WAS_WAITING;
  st = dibs__sql_waiter_out(s, h, &w);
  /* Also after a waiter: it may have stood before others who fit. */
  return st == DIBS__SQL_FINE ? dibs__sql_pass_on(s, h) : st;
}

struct breaking {
  struct dibs__sql *s;
  int64_t last;
  uint64_t fence;
  bool fresh;
};

static void break_one(void *arg, const holder *x) {
  struct breaking *b = arg;
  if (x->until > b->last) b->last = x->until;
  b->fence = x->first;
  if (x->broken) return;
  b->fresh = true;
  b->s->post(b->s->to, x->session, DIBS__EV_LOST, x->id);
}

static step holders_break(struct dibs__sql *s, head *h, bool now) {
  step st = DIBS__SQL_FINE;
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

/* Who is offered an exclusive name may have begun: it is broken like a holder. */
static step hold_any_offered(struct dibs__sql *s, head *h) {
  waiter w;
  bool found;
  if (h->holders || h->offers != 1) return DIBS__SQL_FINE;
  step st = s->rows->waiter_offered(s->to, h, &w, &found);
  return st == DIBS__SQL_FINE && found && offers_fence(s, h, &w) ? hold_offered(s, h, &w) : st;
}

static step break_all(struct dibs__sql *s, head *h, struct dibs__lease_op *op) {
  struct breaking b = {s, s->now, 0, op->now};
  step st = hold_any_offered(s, h);
  if (st != DIBS__SQL_FINE) return st;
  if (!h->holders) {
    op->op.status = DIBS_NOT_FOUND;
    return DIBS__SQL_FINE;
  }
  op->op.status = DIBS_OK;
  if (dibs__sql_inline(h))
    break_one(&b, &h->x);
  else
    st = s->rows->holders_each(s->to, h, break_one, &b);
  if (st == DIBS__SQL_FINE && b.fresh) {
    dibs__str who = {op->owner.p, op->owner.len <= DIBS_OWNER_MAX ? op->owner.len : DIBS_OWNER_MAX};
    struct dibs__sql_break row = {s->now, b.fence, h->mode, who};
    st = s->rows->break_add(s->to, h, &row);
  }
  if (st == DIBS__SQL_FINE) st = holders_break(s, h, op->now);
  op->until.ms = op->now ? s->now : b.last;
  return st == DIBS__SQL_FINE ? dibs__sql_pass_on(s, h) : st;
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

step dibs__sql_lease(struct dibs__sql *s, struct dibs__lease_op *op) {
  struct dibs__sql_bucket *row;
  head h;
  if (!dibs__sql_lease_valid(op)) return DIBS__SQL_FINE;
  step st = s->rows->bucket_get(s->to, op->op.bucket, &row);
  if (st != DIBS__SQL_FINE) return st;
  if (!dibs__sql_stands(s->as_tier, row, &op->op) || dibs__sql_used_up(row, op)) {
    s->denied = s->denied || op->op.status == DIBS_DENIED;
    return DIBS__SQL_FINE;
  }
  s->served_under = row->served == DIBS__SQL_OWN ? 0 : row->mandate.epoch;
  h.bucket = op->op.bucket;
  h.name = op->name;
  st = dibs__sql_enter(s, &h);
  if (st != DIBS__SQL_FINE) return st;
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
    st = cancel(s, &h, op);
    break;
  case DIBS__BREAK:
    st = break_all(s, &h, op);
    break;
  }
  op->waiting = h.waiters > 0;
  return st == DIBS__SQL_FINE ? dibs__sql_leave(s, &h) : st;
}

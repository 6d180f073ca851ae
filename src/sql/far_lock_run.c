/* SPDX-License-Identifier: MIT */
/*
 * A batch of session locks.  It is carried out in stretches in which no name comes twice:
 *
 *   the mandates, on the session's connection
 *   -> decided from what we hold ->  locks taken and given back, on the links that have them, a packet each
 *   -> who waits, each on a connection of its own
 *   -> fences, each on the connection that has the lock: while it is drawn the lock is surely held
 *
 * What else is in the batch is far_run.c's.
 */
#include "sql/far_lock_parts.h"

typedef enum dibs__sql_step step;
typedef struct dibs__far_session session;
typedef struct dibs__far_locks locks_t;
typedef struct dibs__hold hold;
typedef struct dibs__link link_t;

enum act { ACT_DONE, ACT_TAKE, ACT_QUEUE, ACT_CONFIRM, ACT_RENEW, ACT_DROP, ACT_LEAVE, ACT_BREAK };

struct dibs__lock_doing {
  struct dibs__lease_op *op;
  hold *hold;
  link_t *link;
  size_t nth;
  enum act act;
};
typedef struct dibs__lock_doing doing;

struct stretch {
  session *s;
  struct dibs__far *store;
  locks_t *locks;
  struct dibs__said *said;
  dibs__tick by;
  int64_t now;
  doing *all;
  size_t count;
};

/* ---- Answers ---- */

static void answer_hold(struct dibs__lease_op *op, const hold *h) {
  op->fence.v = h->first;
  op->got_block = h->block;
  op->slot = 0;
  op->until.ms = h->until;
  op->op.status = DIBS_OK;
}

static void answer_later(struct dibs__lease_op *op, dibs__status status, uint64_t ticket, int64_t recheck) {
  op->ticket = ticket;
  op->recheck.ms = recheck;
  op->fence = DIBS__FENCE_NONE;
  op->op.status = status;
}

static bool is_its_fence(const hold *h, dibs__fence fence) {
  if (h->mode != DIBS_EXCLUSIVE) return fence.v == 0;
  return fence.v >= h->granted && fence.v < h->first + h->block;
}

/* What was not done because a link failed. */
static void excuse(struct stretch *b, const link_t *link, struct dibs__lease_op *op) {
  bool dead = b->said->dead;
  op->op.status = dibs__sql_excuse(link->wire, "lock in", b->store->shown, b->said);
  if (op->op.status == DIBS_UNKNOWN) op->op.status = DIBS_UNAVAILABLE; /* of locks nothing is left behind */
  b->said->dead = dead;                                                /* the session is another connection */
}

/* ---- Deciding (the lock is had) ---- */

static void ask_link(doing *d, link_t *link) {
  d->link = link;
  link->asked = true;
}

static void decide_new_locked(struct stretch *b, doing *d) {
  struct dibs__lease_op *op = d->op;
  struct dibs__lock_ours ours = dibs__lock_ours_locked(b->locks, op->name);
  bool shared = op->mode == DIBS_SHARED, taken = ours.exclusive || (!shared && ours.shared);
  if (taken && !op->queue) {
    answer_later(op, DIBS_HELD, op->ticket, ours.until);
    return;
  }
  d->hold = dibs__hold_new(b->locks, op);
  op->op.status = DIBS_NO_MEMORY;
  if (!d->hold) return;
  d->act = ACT_QUEUE;
  if (taken) return;
  link_t *base = &b->locks->base;
  const char *text = shared ? b->locks->how->take_shared : b->locks->how->take;
  d->act = ACT_TAKE;
  d->nth = base->wire->put;
  if (base->wire->engine->put(base->wire, text, &d->hold->key.value, 1) != DIBS__SQL_FINE)
    dibs__link_gone_locked(b->locks, base);
  ask_link(d, base);
}

static void decide_acquire_locked(struct stretch *b, doing *d, dibs__status base) {
  hold *h = dibs__hold_find_locked(b->locks, d->op->name, d->op->id);
  if (h && h->state == DIBS__HOLD_WAITS) dibs__link_look_locked(b->locks, h->link);
  if (h && h->state == DIBS__HOLD_GONE) {
    dibs__hold_drop_locked(b->locks, h);
    h = NULL;
  }
  if (!h && base != DIBS_OK)
    d->op->op.status = base;
  else if (!h)
    decide_new_locked(b, d);
  else if (h->state == DIBS__HOLD_WAITS)
    answer_later(d->op, DIBS__QUEUED, h->ticket, dibs__lock_ours_locked(b->locks, d->op->name).until);
  else if (h->state == DIBS__HOLD_OFFERED)
    *d = (doing){.op = d->op, .hold = h, .link = h->link, .act = ACT_CONFIRM};
  else if (h->broken)
    d->op->op.status = DIBS_LOST;
  else
    answer_hold(d->op, h);
}

/* That its connection answers is what a renewal asks; whatever else is put there says so too. */
static void decide_renew_locked(struct stretch *b, doing *d) {
  hold *h = dibs__hold_find_locked(b->locks, d->op->name, d->op->id);
  d->op->op.status = DIBS_LOST;
  if (!h || h->state != DIBS__HOLD_HOLDS || h->broken || !is_its_fence(h, d->op->fence)) return;
  link_t *link = h->link;
  if (!link->asked && link->wire->engine->put(link->wire, b->locks->how->ping, NULL, 0) != DIBS__SQL_FINE)
    dibs__link_gone_locked(b->locks, link);
  d->act = ACT_RENEW;
  d->hold = h;
  ask_link(d, link);
}

static void drop_locked(struct stretch *b, doing *d, hold *h) {
  d->act = ACT_DROP;
  d->hold = h;
  d->link = h->link;
  d->nth = h->link->wire->put;
  dibs__link_put_drop(b->locks, h);
}

static void decide_release_locked(struct stretch *b, doing *d) {
  hold *h = dibs__hold_find_locked(b->locks, d->op->name, d->op->id);
  d->op->op.status = DIBS_LOST;
  if (h && h->state == DIBS__HOLD_HOLDS && is_its_fence(h, d->op->fence)) drop_locked(b, d, h);
}

static void decide_cancel_locked(struct stretch *b, doing *d) {
  hold *h = dibs__hold_find_locked(b->locks, d->op->name, d->op->id);
  if (h && h->state == DIBS__HOLD_WAITS) dibs__link_look_locked(b->locks, h->link);
  d->op->op.status = DIBS_NOT_FOUND;
  if (!h) return;
  if (h->state == DIBS__HOLD_GONE) {
    dibs__hold_drop_locked(b->locks, h);
    return;
  }
  d->op->was = h->state == DIBS__HOLD_HOLDS     ? DIBS__WAS_HELD
               : h->state == DIBS__HOLD_OFFERED ? DIBS__WAS_OFFERED
                                                : DIBS__WAS_WAITING;
  if (h->state == DIBS__HOLD_WAITS)
    *d = (doing){.op = d->op, .hold = h, .act = ACT_LEAVE};
  else
    drop_locked(b, d, h);
}

static void decide_locked(struct stretch *b, doing *d, dibs__status base) {
  d->act = ACT_DONE;
  d->hold = NULL;
  d->link = NULL;
  switch ((enum dibs__lease_verb)d->op->op.verb) {
  case DIBS__ACQUIRE:
    decide_acquire_locked(b, d, base);
    return;
  case DIBS__RENEW:
    decide_renew_locked(b, d);
    return;
  case DIBS__RELEASE:
    decide_release_locked(b, d);
    return;
  case DIBS__CANCEL:
    decide_cancel_locked(b, d);
    return;
  case DIBS__BREAK:
    d->act = ACT_BREAK;
    return;
  }
}

/* ---- What the links said ---- */

/* FINE: the statement was answered, *yes: by 1. */
static bool heard(const doing *d, bool *yes) {
  const struct dibs__sql_wire *wire = d->link->wire;
  *yes = false;
  if (d->link->gone || (d->link->failed && d->nth >= wire->broke_at)) return false;
  *yes = wire->engine->rows(wire, d->nth) == 1 && dibs__sql_cell_number(wire, d->nth, 0, 0) == 1;
  return true;
}

static void took(struct stretch *b, doing *d) {
  bool got;
  if (!heard(d, &got)) {
    excuse(b, d->link, d->op);
  } else if (got) {
    dibs__mutex_lock(&b->locks->lock);
    bool gone = d->link->gone; /* the listener may see it first */
    d->hold->link = gone ? NULL : d->link;
    d->hold->state = gone ? DIBS__HOLD_GONE : DIBS__HOLD_OFFERED;
    d->hold->until = b->now + DIBS__LOCK_OFFER_MS;
    if (!gone) d->link->held++;
    dibs__hold_add_locked(b->locks, d->hold);
    dibs__mutex_unlock(&b->locks->lock);
    return;
  } else if (d->op->queue) {
    d->act = ACT_QUEUE;
    return;
  } else {
    answer_later(d->op, DIBS_HELD, d->op->ticket, 0);
  }
  free(d->hold);
  d->act = ACT_DONE;
}

/* Whose connection is gone has given back the lock too, but was not the one who did it. */
static void dropped(struct stretch *b, doing *d) {
  bool done;
  bool said = heard(d, &done);
  d->op->op.status = (said && done) || d->op->op.verb == DIBS__CANCEL ? DIBS_OK : DIBS_LOST;
  dibs__mutex_lock(&b->locks->lock);
  dibs__hold_drop_locked(b->locks, d->hold);
  dibs__mutex_unlock(&b->locks->lock);
  d->act = ACT_DONE;
}

static void left(struct stretch *b, doing *d) {
  dibs__link_leave(b->store, d->hold, b->by);
  dibs__mutex_lock(&b->locks->lock);
  dibs__hold_drop_locked(b->locks, d->hold);
  dibs__mutex_unlock(&b->locks->lock);
  d->op->op.status = DIBS_OK;
  d->act = ACT_DONE;
}

static void queue(struct stretch *b, doing *d) {
  hold *h = d->hold;
  h->ticket = ++b->locks->tickets;
  h->since = b->now;
  d->act = ACT_DONE;
  d->op->op.status = dibs__link_wait(b->store, h, b->by, b->said);
  if (d->op->op.status != DIBS_OK) {
    free(h);
    return;
  }
  dibs__mutex_lock(&b->locks->lock);
  dibs__hold_add_locked(b->locks, h);
  int64_t recheck = dibs__lock_ours_locked(b->locks, d->op->name).until;
  dibs__mutex_unlock(&b->locks->lock);
  answer_later(d->op, DIBS__QUEUED, h->ticket, recheck);
}

/* ---- Granting ---- */

/* What was taken in this batch and can't be granted is given back; an offer stays one. */
static void undo(struct stretch *b, doing *d) {
  hold *h = d->hold;
  if (d->act != ACT_TAKE) return;
  dibs__mutex_lock(&b->locks->lock);
  if (h->link) dibs__link_put_drop(b->locks, h);
  dibs__hold_drop_locked(b->locks, h);
  dibs__mutex_unlock(&b->locks->lock);
}

static void grant(struct stretch *b, doing *d) {
  hold *h = d->hold;
  struct dibs__lease_op *op = d->op;
  dibs__mutex_lock(&b->locks->lock);
  bool renewed = d->act == ACT_RENEW;
  if (h->state == DIBS__HOLD_GONE || !h->link) {
    op->op.status = renewed ? DIBS_LOST : DIBS_UNAVAILABLE;
    if (!renewed) dibs__hold_drop_locked(b->locks, h);
    dibs__mutex_unlock(&b->locks->lock);
    return;
  }
  if (!renewed || (h->mode == DIBS_EXCLUSIVE && op->want_block)) {
    h->first = h->mode == DIBS_EXCLUSIVE ? op->fence.v : 0;
    h->block = h->mode == DIBS_EXCLUSIVE ? op->got_block : 0;
  }
  if (!renewed) {
    h->granted = h->first;
    h->since = b->now;
  }
  if (h->tell) b->locks->tells--;
  h->tell = false;
  h->state = DIBS__HOLD_HOLDS;
  h->ttl_ms = op->ttl_ms;
  h->until = b->now + op->ttl_ms;
  if (h->until < b->locks->due) b->locks->due = h->until;
  answer_hold(op, h);
  op->waiting = renewed; /* nobody knows: so the name is given back from time to time */
  dibs__mutex_unlock(&b->locks->lock);
}

static bool draws(const doing *d) {
  if (d->act == ACT_RENEW) return d->hold->mode == DIBS_EXCLUSIVE && d->op->want_block > 0;
  return (d->act == ACT_TAKE || d->act == ACT_CONFIRM) && d->hold->mode == DIBS_EXCLUSIVE;
}

/* Draws the fences of all whose lock is on the link, with the session's texts, on the link's connection. */
static void draw_on(struct stretch *b, link_t *link) {
  struct dibs__lock_draw *to = b->locks->draws;
  size_t count = 0;
  for (size_t i = 0; i < b->count; i++)
    if (b->all[i].link == link && draws(&b->all[i])) to[count++] = (struct dibs__lock_draw){.op = b->all[i].op};
  struct dibs__sql_wire *own = b->s->wire;
  step end = DIBS__SQL_BROKE;
  if (!link->gone) {
    /* It may wait for the bucket's row: the lock must not be lost for that. */
    dibs__tick least = dibs__tick_add_ms(dibs__tick_now(), b->store->options.lock_timeout_ms + DIBS__LOCK_PATIENCE_MS);
    link->wire->by = dibs__tick_before(b->by, least) ? least : b->by;
    b->s->wire = link->wire;
    end = dibs__lock_draws(b->s, to, count, b->said);
    b->s->wire = own;
  }
  if (end != DIBS__SQL_FINE && dibs__sql_dead(link->wire)) {
    dibs__mutex_lock(&b->locks->lock);
    dibs__link_gone_locked(b->locks, link);
    dibs__mutex_unlock(&b->locks->lock);
  }
  for (size_t i = 0, nth = 0; i < b->count; i++) {
    doing *d = &b->all[i];
    if (d->link != link || !draws(d)) continue;
    if (end != DIBS__SQL_FINE) excuse(b, link, d->op);
    if (end == DIBS__SQL_FINE && to[nth].drawn)
      grant(b, d);
    else
      undo(b, d);
    nth++;
    d->act = ACT_DONE;
  }
}

static void grant_all(struct stretch *b) {
  for (size_t i = 0; i < b->count; i++) {
    doing *d = &b->all[i];
    bool granted = d->act == ACT_TAKE || d->act == ACT_CONFIRM || d->act == ACT_RENEW;
    if (granted && draws(d)) {
      draw_on(b, d->link);
    } else if (granted) {
      grant(b, d);
      d->act = ACT_DONE;
    }
  }
}

/* ---- A stretch ---- */

/* Those that stand under their mandate come to the front. */
static void keep_mandates(struct stretch *b) {
  struct dibs__lock_draw *to = b->locks->draws;
  size_t count = 0;
  for (size_t i = 0; i < b->count; i++) to[i] = (struct dibs__lock_draw){.op = b->all[i].op};
  b->s->wire->by = b->by;
  step end = dibs__lock_mandates(b->s, to, b->count);
  for (size_t i = 0; i < b->count && end != DIBS__SQL_FINE; i++) {
    dibs__status status = dibs__far_excuse(b->s, "ask for a mandate in", b->said);
    b->all[i].op->op.status = status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
  }
  for (size_t i = 0; i < b->count && end == DIBS__SQL_FINE; i++) {
    if (to[i].op->op.status == DIBS_DENIED) dibs__sql_say_served(b->store->shown, b->said);
    if (to[i].stands) b->all[count++] = b->all[i];
  }
  b->count = count;
}

static dibs__status base_for(struct stretch *b) {
  for (size_t i = 0; i < b->count; i++)
    if (b->all[i].op->op.verb == DIBS__ACQUIRE) return dibs__link_base(b->store, b->by, b->said);
  return DIBS_OK;
}

static void run_stretch(struct stretch *b) {
  keep_mandates(b);
  if (b->count == 0) return;
  dibs__status base = base_for(b);
  dibs__mutex_lock(&b->locks->lock);
  for (size_t i = 0; i < b->count; i++) decide_locked(b, &b->all[i], base);
  dibs__mutex_unlock(&b->locks->lock);
  dibs__link_go(b->locks, b->by);
  for (size_t i = 0; i < b->count; i++) {
    if (b->all[i].act == ACT_TAKE) took(b, &b->all[i]);
    if (b->all[i].act == ACT_DROP) dropped(b, &b->all[i]);
  }
  grant_all(b);
  dibs__link_go(b->locks, b->by); /* what was undone */
  for (size_t i = 0; i < b->count; i++) {
    doing *d = &b->all[i];
    if (d->act == ACT_LEAVE) left(b, d);
    if (d->act == ACT_QUEUE) queue(b, d);
    if (d->act == ACT_BREAK) dibs__lock_break(b->s, d->op, b->now, b->by, b->said);
  }
}

static bool valid(const locks_t *locks, struct dibs__lease_op *op) {
  if (!dibs__sql_lease_valid(op)) return false;
  if (op->op.verb != DIBS__ACQUIRE || op->mode == DIBS_EXCLUSIVE || (op->mode == DIBS_SHARED && locks->how->shared))
    return true;
  op->op.status = DIBS_UNSUPPORTED;
  return false;
}

static bool named_before(const doing *all, size_t count, dibs__str name) {
  for (size_t i = 0; i < count; i++)
    if (dibs__str_equal(all[i].op->name, name)) return true;
  return false;
}

static void run_leases(struct stretch *b, struct dibs__op *const ops[], size_t count) {
  b->count = 0;
  for (size_t i = 0; i < count; i++) {
    struct dibs__lease_op *op = (struct dibs__lease_op *)ops[i];
    if (!valid(b->locks, op)) continue;
    if (named_before(b->all, b->count, op->name)) {
      run_stretch(b);
      b->count = 0;
      b->now = dibs__lock_now();
    }
    b->all[b->count++] = (doing){.op = op};
  }
  if (b->count) run_stretch(b);
}

/* ---- The driver's call ---- */

static bool in_group_with_lease(struct dibs__op *const ops[], size_t count, const struct dibs__op *op) {
  for (size_t i = 0; i < count && op->group; i++)
    if (ops[i]->group == op->group && ops[i]->family == DIBS__FAM_LEASE) return true;
  return false;
}

/* A lock is not undone by a rollback, so a lease joins no group. */
static bool refused(struct dibs__op *const ops[], size_t count, struct dibs__op *op) {
  if (!in_group_with_lease(ops, count, op)) return false;
  dibs__sql_unanswer(op, op->family == DIBS__FAM_LEASE ? DIBS_INVALID : DIBS_CONFLICT);
  return true;
}

static dibs__status run_both(struct stretch *b, struct dibs__op *leases[], size_t lease_count,
                             struct dibs__op *others[], size_t other_count) {
  dibs__status status = DIBS_OK;
  if (other_count) status = dibs__far_run(&b->s->base, others, other_count, b->by, b->said);
  if (!lease_count) return status;
  if (b->said->dead || !dibs__tick_before(dibs__tick_now(), b->by)) {
    for (size_t i = 0; i < lease_count; i++) leases[i]->status = DIBS_UNAVAILABLE;
    if (!b->said->text[0]) dibs__say(b->said, "%s: the deadline had passed before the question", b->store->shown);
    return DIBS_UNKNOWN;
  }
  dibs__mutex_lock(&b->locks->busy);
  dibs__lock_sweep(b->store, b->by);
  b->now = dibs__lock_now();
  run_leases(b, leases, lease_count);
  dibs__mutex_unlock(&b->locks->busy);
  return b->said->dead ? DIBS_UNKNOWN : status;
}

DIBS__MODULE_API dibs__status dibs__far_lock_run(struct dibs__session *base, struct dibs__op *const ops[], size_t count,
                                                 dibs__tick by, struct dibs__said *said) {
  session *s = (session *)base;
  struct dibs__op *leases[DIBS__FAR_BATCH], *others[DIBS__FAR_BATCH];
  size_t lease_count = 0, other_count = 0;
  doing all[DIBS__FAR_BATCH];
  dibs__tick sent = dibs__tick_now();
  *said = (struct dibs__said){.sent = sent};
  if (count > DIBS__FAR_BATCH) return DIBS_UNAVAILABLE;
  for (size_t i = 0; i < count; i++) {
    dibs__sql_begin_answer(ops[i]);
    if (refused(ops, count, ops[i])) continue;
    if (ops[i]->family == DIBS__FAM_LEASE)
      leases[lease_count++] = ops[i];
    else
      others[other_count++] = ops[i];
  }
  struct stretch b = {.s = s, .store = s->store, .locks = s->store->locks, .said = said, .by = by, .all = all};
  b.now = sent.ns / DIBS__NS_PER_MS;
  dibs__status status = run_both(&b, leases, lease_count, others, other_count);
  said->sent = sent;
  said->now.ms = b.now; /* leases end by our clock, so that is the store's */
  return status;
}

/* SPDX-License-Identifier: MIT */
/*
 * What time and absence do to a name, and who is next.
 *
 * After pass_on the first WAITING one, if any, has the ticket `front`, is alive, and does not fit: so "does somebody
 * wait before me" is a comparison.
 */
#include "sql/sql.h"

typedef enum dibs__sql_step step;
typedef struct dibs__sql_head head;

bool dibs__sql_somebody_waits(const head *h) {
  return h->waiters && h->front <= h->tickets;
}

bool dibs__sql_fits(const head *h, uint32_t mode, uint32_t slots) {
  uint32_t there = h->holders + h->offers;
  if (!there) return true;
  if (mode == DIBS_EXCLUSIVE || mode != h->mode) return false;
  return mode == DIBS_SHARED || (slots == h->slots && there < slots);
}

void dibs__sql_due_by(head *h, int64_t until) {
  if (h->due == 0 || until < h->due) h->due = until;
  h->queue_changed = true;
}

/* The first end among holders and offers; INT64_MAX when there are none. */
static step first_end(struct dibs__sql *s, const head *h, int64_t *at) {
  int64_t until;
  step st = DIBS__SQL_FINE;
  *at = INT64_MAX;
  if (h->holders) {
    until = h->x.until;
    if (!dibs__sql_inline(h)) st = s->rows->holders_first_until(s->to, h, &until);
    if (st != DIBS__SQL_FINE) return st;
    *at = until;
  }
  if (!h->offers) return DIBS__SQL_FINE;
  st = s->rows->offers_first_until(s->to, h, &until);
  if (st == DIBS__SQL_FINE && until < *at) *at = until;
  return st;
}

step dibs__sql_recheck(struct dibs__sql *s, const head *h, int64_t *at) {
  return first_end(s, h, at);
}

static void offers_out(head *h, uint32_t gone) {
  h->offers -= gone;
  if (!h->offers) h->reach = 0;
  if (!h->holders && !h->offers) h->due = 0;
  h->queue_changed = true;
}

static void holders_out(head *h, uint32_t gone, uint32_t low_slot) {
  h->holders -= gone;
  if (low_slot < h->low_slot) h->low_slot = low_slot;
  if (!h->holders) h->low_slot = 0;
  if (!h->holders && !h->offers) h->due = 0;
  h->queue_changed = true;
}

static void waiters_out(head *h, uint32_t gone) {
  h->waiters -= gone;
  if (!h->waiters) {
    h->tickets = h->front = h->reach = 0;
    h->deep = false;
  }
  h->queue_changed = true;
}

step dibs__sql_waiter_out(struct dibs__sql *s, head *h, const struct dibs__sql_waiter *w) {
  if (!h->waiters || (w->state == DIBS__SQL_OFFERED && !h->offers)) return s->rows->wrong(s->to);
  step st = s->rows->waiter_drop(s->to, h, w);
  if (w->state == DIBS__SQL_OFFERED) offers_out(h, 1);
  waiters_out(h, 1);
  return st;
}

step dibs__sql_holder_out(struct dibs__sql *s, head *h, const struct dibs__sql_holder *holder) {
  step st = DIBS__SQL_FINE;
  if (dibs__sql_inline(h))
    h->holder_changed = true;
  else
    st = s->rows->holder_drop(s->to, h, holder->id);
  holders_out(h, 1, holder->slot);
  return st;
}

/* Drops holders that are over; offers that are over fall asleep. */
static step expire(struct dibs__sql *s, head *h) {
  uint32_t gone = 0;
  step st;
  if (dibs__sql_inline(h) && h->x.until <= s->now) {
    h->holder_changed = true;
    holders_out(h, 1, 0);
  }
  if (h->due == 0 || h->due > s->now) return DIBS__SQL_FINE;
  if (h->holders && !dibs__sql_inline(h)) {
    st = s->rows->holders_expire(s->to, h, s->now, &gone);
    if (st != DIBS__SQL_FINE) return st;
    if (gone > h->holders) return s->rows->wrong(s->to);
    if (gone) holders_out(h, gone, 0);
  }
  if (h->offers) {
    st = s->rows->offers_expire(s->to, h, s->now, &gone);
    if (st != DIBS__SQL_FINE) return st;
    if (gone > h->offers) return s->rows->wrong(s->to);
    if (gone) offers_out(h, gone);
  }
  int64_t due = INT64_MAX;
  if (!dibs__sql_inline(h)) {
    st = first_end(s, h, &due);
    if (st != DIBS__SQL_FINE) return st;
  }
  h->due = due == INT64_MAX ? 0 : due;
  h->queue_changed = true;
  return DIBS__SQL_FINE;
}

static step offer(struct dibs__sql *s, head *h, struct dibs__sql_waiter *w) {
  uint32_t block;
  step st = DIBS__SQL_FINE;
  w->state = DIBS__SQL_OFFERED;
  w->until = s->now + DIBS__OFFER_MS;
  w->first = 0;
  /* With its fence, so that who is offered may begin at once; the last one of an epoch has none. */
  if (w->mode == DIBS_EXCLUSIVE) st = dibs__sql_draw_put(s, h->bucket, 1, &w->first, &block);
  if (st == DIBS__SQL_FINE || st == DIBS__SQL_SPENT) st = s->rows->waiter_set(s->to, h, w);
  if (st != DIBS__SQL_FINE) return st;
  if (!h->holders && !h->offers) {
    h->mode = w->mode;
    h->slots = w->slots;
  }
  h->offers++;
  if (w->ticket > h->reach) h->reach = w->ticket;
  dibs__sql_due_by(h, w->until);
  if (w->first)
    s->offer(s->to, w->session, w->id, w->first, w->until);
  else
    s->post(s->to, w->session, DIBS__EV_OFFER, w->id);
  return DIBS__SQL_FINE;
}

step dibs__sql_pass_on(struct dibs__sql *s, head *h) {
  while (dibs__sql_somebody_waits(h)) {
    struct dibs__sql_waiter w;
    bool found;
    step st = s->rows->waiter_next(s->to, h, &w, &found);
    if (st != DIBS__SQL_FINE) return st;
    uint64_t front = found ? w.ticket : h->tickets + 1;
    if (front != h->front) h->queue_changed = true;
    h->front = front;
    if (!found) break;
    if (!s->alive(s->to, w.session)) {
      st = dibs__sql_waiter_out(s, h, &w);
    } else {
      if (!dibs__sql_fits(h, w.mode, w.slots)) break;
      st = offer(s, h, &w);
    }
    if (st != DIBS__SQL_FINE) return st;
  }
  return DIBS__SQL_FINE;
}

step dibs__sql_enter(struct dibs__sql *s, head *h) {
  step st = s->rows->head_load(s->to, h);
  if (st != DIBS__SQL_FINE || !h->exists) return st;
  st = expire(s, h);
  return st == DIBS__SQL_FINE ? dibs__sql_pass_on(s, h) : st;
}

step dibs__sql_leave(struct dibs__sql *s, head *h) {
  if (!h->holders && !h->waiters) return h->exists ? s->rows->head_drop(s->to, h) : DIBS__SQL_FINE;
  if (!h->exists) return s->rows->head_add(s->to, h);
  if (h->holder_changed) return s->rows->head_set(s->to, h);
  return h->queue_changed ? s->rows->head_set_queue(s->to, h) : DIBS__SQL_FINE;
}

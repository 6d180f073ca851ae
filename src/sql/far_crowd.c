/* SPDX-License-Identifier: MIT */
/* Who holds a name together with others, and who waits for it, in a server's rows. */
#include "sql/far_parts.h"

typedef enum dibs__sql_step step;
typedef struct dibs__far_session session;
typedef struct dibs__sql_head head;
typedef struct dibs__sql_waiter waiter;
typedef struct dibs__sql_value value;

/* Values that begin with bucket and name. */
#define ABOUT(h, ...)                                                                                                  \
  { dibs__sql_number((h)->bucket), dibs__sql_text((h)->name.p, (h)->name.len), ##__VA_ARGS__ }

static value bytes_of(const dibs__id *id) {
  return dibs__sql_bytes(id->b, sizeof id->b);
}

static size_t rows(const session *s, size_t nth) {
  return s->wire->engine->rows(s->wire, nth);
}

/* ---- Holders ---- */

step dibs__far_holder_find(void *to, const head *h, dibs__id id, struct dibs__sql_holder *x, bool *found) {
  value v[] = ABOUT(h, bytes_of(&id));
  size_t nth;
  step end = dibs__far_ask(to, DIBS__FAR_HOLDER, v, 3, &nth);
  *found = end == DIBS__SQL_FINE && rows(to, nth) > 0;
  if (*found) dibs__far_read_holder(to, nth, 0, x);
  return end;
}

step dibs__far_holder_add(void *to, const head *h, const struct dibs__sql_holder *x) {
  value v[] = ABOUT(h, bytes_of(&x->id), h->mode == DIBS_COUNTED ? dibs__sql_number(x->slot) : dibs__sql_null(),
                    dibs__sql_number(x->until), dibs__sql_number(x->broken), dibs__sql_number(x->ttl_ms),
                    dibs__sql_number(x->since), dibs__sql_number((int64_t)x->session),
                    dibs__sql_text(x->owner.text, x->owner.len));
  return dibs__far_put(to, DIBS__FAR_HOLDER_ADD, v, 10);
}

step dibs__far_holder_set(void *to, const head *h, const struct dibs__sql_holder *x) {
  value v[] = ABOUT(h, bytes_of(&x->id), dibs__sql_number(x->until), dibs__sql_number(x->ttl_ms),
                    dibs__sql_number((int64_t)x->session));
  return dibs__far_put(to, DIBS__FAR_HOLDER_SET, v, 6);
}

step dibs__far_holder_drop(void *to, const head *h, dibs__id id) {
  value v[] = ABOUT(h, bytes_of(&id));
  return dibs__far_put(to, DIBS__FAR_HOLDER_DROP, v, 3);
}

step dibs__far_holders_expire(void *to, const head *h, int64_t now, uint32_t *gone) {
  session *s = to;
  value v[] = ABOUT(h, dibs__sql_number(now));
  size_t nth;
  step end = dibs__far_ask(s, DIBS__FAR_HOLDERS_EXPIRE, v, 3, &nth);
  if (end == DIBS__SQL_FINE) *gone = (uint32_t)s->wire->engine->changed(s->wire, nth);
  return end;
}

step dibs__far_holders_each(void *to, const head *h, void (*each)(void *arg, const struct dibs__sql_holder *holder),
                            void *arg) {
  value v[] = ABOUT(h);
  size_t nth;
  step end = dibs__far_ask(to, DIBS__FAR_HOLDERS, v, 2, &nth);
  for (size_t i = 0; end == DIBS__SQL_FINE && i < rows(to, nth); i++) {
    struct dibs__sql_holder x;
    dibs__far_read_holder(to, nth, i, &x);
    each(arg, &x); /* posts at most: puts nothing */
  }
  return end;
}

step dibs__far_holders_break(void *to, const head *h) {
  value v[] = ABOUT(h);
  return dibs__far_put(to, DIBS__FAR_HOLDERS_BREAK, v, 2);
}
step dibs__far_holders_drop(void *to, const head *h) {
  value v[] = ABOUT(h);
  return dibs__far_put(to, DIBS__FAR_HOLDERS_DROP, v, 2);
}

/* One number, or INT64_MAX. */
static step first_until(session *s, enum dibs__far_texts text, const value *v, size_t count, int64_t *until) {
  size_t nth;
  *until = INT64_MAX;
  step end = dibs__far_ask(s, text, v, count, &nth);
  if (end != DIBS__SQL_FINE || rows(s, nth) == 0) return end;
  value cell = s->wire->engine->cell(s->wire, nth, 0, 0, DIBS__SQL_NUMBER);
  if (cell.kind == DIBS__SQL_NUMBER) *until = cell.number;
  return end;
}

step dibs__far_holders_first_until(void *to, const head *h, int64_t *until) {
  value v[] = ABOUT(h);
  return first_until(to, DIBS__FAR_HOLDERS_UNTIL, v, 2, until);
}

step dibs__far_slot_free(void *to, const head *h, uint32_t *slot) {
  value v[] = ABOUT(h, dibs__sql_number(h->low_slot));
  size_t nth;
  *slot = h->low_slot;
  step end = dibs__far_ask(to, DIBS__FAR_SLOTS, v, 3, &nth);
  for (size_t i = 0; end == DIBS__SQL_FINE && i < rows(to, nth); i++) {
    if ((uint32_t)dibs__sql_cell_number(((session *)to)->wire, nth, i, 0) != *slot) break;
    ++*slot;
  }
  return end;
}

/* ---- Waiters that were loaded ahead ---- */

static struct dibs__far_name *ahead_of(session *s, const head *h) {
  return dibs__far_name_find(s, h->bucket, h->name);
}

static waiter *ahead_at(struct dibs__far_name *n, uint64_t ticket) {
  for (size_t i = 0; n && i < n->count; i++)
    if (n->waiters[i].ticket == ticket) return &n->waiters[i];
  return NULL;
}

/* Whether all up to this ticket are known. */
static bool reaches(const struct dibs__far_name *n, uint64_t ticket) {
  return n && ticket <= n->upto;
}

static void forget_ahead(struct dibs__far_name *n) {
  if (!n) return;
  n->count = 0;
  n->upto = 0;
}

static step one_waiter(session *s, enum dibs__far_texts text, const value *v, size_t count, waiter *w, bool *found) {
  size_t nth;
  step end = dibs__far_ask(s, text, v, count, &nth);
  *found = end == DIBS__SQL_FINE && rows(s, nth) > 0;
  if (*found) dibs__far_read_waiter(s, nth, 0, w);
  return end;
}

static step waiter_at(session *s, const head *h, const dibs__id *id, uint64_t ticket, waiter *w, bool *found) {
  value v[] = ABOUT(h, bytes_of(id), dibs__sql_number((int64_t)ticket));
  return one_waiter(s, DIBS__FAR_WAITER, v, 4, w, found);
}

static step waiter_deep(session *s, const head *h, const dibs__id *id, waiter *w, bool *found) {
  value v[] = ABOUT(h, bytes_of(id));
  size_t nth;
  *found = false;
  step end = dibs__far_ask(s, DIBS__FAR_DEEP, v, 3, &nth);
  if (end != DIBS__SQL_FINE || rows(s, nth) == 0) return end;
  return waiter_at(s, h, id, (uint64_t)dibs__sql_cell_number(s->wire, nth, 0, 0), w, found);
}

step dibs__far_waiter_find(void *to, const head *h, dibs__id id, uint64_t ticket, waiter *w, bool *found) {
  session *s = to;
  struct dibs__far_name *n = ahead_of(s, h);
  step end = DIBS__SQL_FINE;
  *found = false;
  for (size_t i = 0; n && i < n->count && !*found; i++) {
    *found = dibs__id_equal(n->waiters[i].id, id);
    if (*found) *w = n->waiters[i];
  }
  if (*found || reaches(n, UINT64_MAX)) return end;
  if (ticket) end = waiter_at(s, h, &id, ticket, w, found);
  if (end == DIBS__SQL_FINE && !*found && h->deep) end = waiter_deep(s, h, &id, w, found);
  if (end != DIBS__SQL_FINE || *found) return end;
  value v[] = ABOUT(h, bytes_of(&id));
  return one_waiter(s, DIBS__FAR_WAITER_SHALLOW, v, 3, w, found);
}

step dibs__far_waiter_next(void *to, const head *h, waiter *w, bool *found) {
  struct dibs__far_name *n = ahead_of(to, h);
  uint64_t from = h->front;
  *found = false;
  for (size_t i = 0; n && i < n->count; i++) {
    if (n->waiters[i].ticket < h->front || n->waiters[i].state != DIBS__SQL_WAITING) continue;
    *found = true;
    *w = n->waiters[i];
    return DIBS__SQL_FINE;
  }
  if (reaches(n, UINT64_MAX)) return DIBS__SQL_FINE;
  if (n && n->upto >= from) from = n->upto + 1;
  value v[] = ABOUT(h, dibs__sql_number((int64_t)from));
  return one_waiter(to, DIBS__FAR_WAITER_NEXT, v, 3, w, found);
}

step dibs__far_waiter_offered(void *to, const head *h, waiter *w, bool *found) {
  struct dibs__far_name *n = ahead_of(to, h);
  *found = false;
  if (reaches(n, h->reach)) {
    for (size_t i = 0; i < n->count && !*found; i++) {
      *found = n->waiters[i].state == DIBS__SQL_OFFERED;
      if (*found) *w = n->waiters[i];
    }
    return DIBS__SQL_FINE;
  }
  value v[] = ABOUT(h, dibs__sql_number((int64_t)h->reach));
  return one_waiter(to, DIBS__FAR_WAITER_OFFERED, v, 3, w, found);
}

/* ---- Changing them ---- */

step dibs__far_waiter_add(void *to, const head *h, const waiter *w) {
  session *s = to;
  struct dibs__far_name *n = ahead_of(s, h);
  if (!dibs__far_bell_there(s->store)) {
    s->bell_wanted = true;
    return dibs__sql_broke(s->wire, DIBS__SQL_ODD, "there is no bell yet");
  }
  atomic_store_explicit(&s->store->inside->queued, true, memory_order_relaxed);
  if (reaches(n, UINT64_MAX)) {
    if (n->waiters && n->count < DIBS__FAR_AHEAD)
      n->waiters[n->count++] = *w;
    else
      n->upto = w->ticket - 1;
  }
  value v[] = ABOUT(h, dibs__sql_number((int64_t)w->ticket), dibs__sql_number(w->state), bytes_of(&w->id),
                    dibs__sql_number((int64_t)w->session), dibs__sql_number(w->mode), dibs__sql_number(w->slots),
                    dibs__sql_number(w->until), dibs__sql_number(w->deep), dibs__sql_number(w->ttl_ms),
                    dibs__sql_number(w->since), dibs__sql_text(w->owner.text, w->owner.len));
  step end = dibs__far_put(s, DIBS__FAR_WAITER_ADD, v, 13);
  if (end != DIBS__SQL_FINE || !w->deep) return end;
  value d[] = ABOUT(h, bytes_of(&w->id), dibs__sql_number((int64_t)w->ticket));
  return dibs__far_put(s, DIBS__FAR_DEEP_ADD, d, 4);
}

step dibs__far_waiter_set(void *to, const head *h, const waiter *w) {
  session *s = to;
  waiter *known = ahead_at(ahead_of(s, h), w->ticket);
  atomic_store_explicit(&s->store->inside->queued, true, memory_order_relaxed); /* it may be ours from now on */
  if (known) *known = *w;
  value v[] = ABOUT(h, dibs__sql_number((int64_t)w->ticket), dibs__sql_number(w->state), dibs__sql_number(w->until),
                    dibs__sql_number((int64_t)w->session), dibs__sql_number((int64_t)w->first));
  return dibs__far_put(s, DIBS__FAR_WAITER_SET, v, 7);
}

step dibs__far_waiter_drop(void *to, const head *h, const waiter *w) {
  struct dibs__far_name *n = ahead_of(to, h);
  waiter *known = ahead_at(n, w->ticket);
  value v[] = ABOUT(h, dibs__sql_number((int64_t)w->ticket));
  value d[] = ABOUT(h, bytes_of(&w->id));
  step end = dibs__far_put(to, DIBS__FAR_WAITER_DROP, v, 3);
  if (end == DIBS__SQL_FINE && w->deep) end = dibs__far_put(to, DIBS__FAR_DEEP_DROP, d, 3);
  if (known) { /* last: `w` may be it */
    size_t behind = (size_t)(n->waiters + n->count - (known + 1));
    n->count--;
    memmove(known, known + 1, behind * sizeof *known);
  }
  return end;
}

step dibs__far_offers_expire(void *to, const head *h, int64_t now, uint32_t *gone) {
  session *s = to;
  struct dibs__far_name *n = ahead_of(s, h);
  value v[] = ABOUT(h, dibs__sql_number((int64_t)h->reach), dibs__sql_number(now));
  size_t nth;
  step end;
  *gone = 0;
  if (!reaches(n, h->reach)) {
    forget_ahead(n);
    end = dibs__far_ask(s, DIBS__FAR_OFFERS_EXPIRE, v, 4, &nth);
    if (end == DIBS__SQL_FINE) *gone = (uint32_t)s->wire->engine->changed(s->wire, nth);
    return end;
  }
  for (size_t i = 0; i < n->count; i++) {
    waiter *w = &n->waiters[i];
    if (w->state != DIBS__SQL_OFFERED || w->until > now) continue;
    w->state = DIBS__SQL_ASLEEP;
    w->until = 0;
    ++*gone;
  }
  return *gone ? dibs__far_put(s, DIBS__FAR_OFFERS_EXPIRE, v, 4) : DIBS__SQL_FINE;
}

step dibs__far_offers_first_until(void *to, const head *h, int64_t *until) {
  struct dibs__far_name *n = ahead_of(to, h);
  if (!reaches(n, h->reach)) {
    value v[] = ABOUT(h, dibs__sql_number((int64_t)h->reach));
    return first_until(to, DIBS__FAR_OFFERS_UNTIL, v, 3, until);
  }
  *until = INT64_MAX;
  for (size_t i = 0; i < n->count; i++)
    if (n->waiters[i].state == DIBS__SQL_OFFERED && n->waiters[i].until < *until) *until = n->waiters[i].until;
  return DIBS__SQL_FINE;
}

/* SPDX-License-Identifier: MIT */
/* Who holds a name together with others, and who waits for it: the rows of dibs_holder and of dibs_name's queue. */
#include "drivers/sqlite_bind.h"

typedef enum dibs__sql_step step;
typedef struct dibs__lite_link link_t;
typedef struct dibs__sql_head head;

/* ---- Holders ---- */

void dibs__lite_read_holder(sqlite3_stmt *st, struct dibs__sql_holder *x) {
  dibs__lite_read_bytes(st, 0, x->id.b, sizeof x->id.b);
  x->granted = x->first = 0;
  x->block = 0;
  x->slot = dibs__lite_small(st, 1);
  x->until = sqlite3_column_int64(st, 2);
  x->broken = dibs__lite_small(st, 3) != 0;
  x->ttl_ms = dibs__lite_small(st, 4);
  x->since = sqlite3_column_int64(st, 5);
  x->session = dibs__lite_number(st, 6);
  dibs__lite_read_label(st, 7, &x->owner);
}

step dibs__lite_holder_find(void *to, const head *h, dibs__id id, struct dibs__sql_holder *x, bool *found) {
  sqlite3_stmt *st = dibs__lite_about_id(to, DIBS__LITE_HOLDER, h, &id);
  step end = dibs__lite_row(to, st, found);
  if (!*found) return end;
  dibs__lite_read_holder(st, x);
  sqlite3_reset(st);
  return end;
}

step dibs__lite_holder_add(void *to, const head *h, const struct dibs__sql_holder *x) {
  sqlite3_stmt *st = dibs__lite_about_id(to, DIBS__LITE_HOLDER_ADD, h, &x->id);
  if (!st) return DIBS__SQL_BROKE;
  if (h->mode == DIBS_COUNTED)
    dibs__lite_bind_number(st, 4, x->slot);
  else
    sqlite3_bind_null(st, 4);
  dibs__lite_bind_when(st, 5, x->until);
  dibs__lite_bind_number(st, 6, x->broken);
  dibs__lite_bind_number(st, 7, x->ttl_ms);
  dibs__lite_bind_when(st, 8, x->since);
  dibs__lite_bind_number(st, 9, x->session);
  dibs__lite_bind_text(st, 10, x->owner.text, x->owner.len);
  return dibs__lite_do(to, st);
}

step dibs__lite_holder_set(void *to, const head *h, const struct dibs__sql_holder *x) {
  sqlite3_stmt *st = dibs__lite_about_id(to, DIBS__LITE_HOLDER_SET, h, &x->id);
  if (!st) return DIBS__SQL_BROKE;
  dibs__lite_bind_when(st, 4, x->until);
  dibs__lite_bind_number(st, 5, x->ttl_ms);
  dibs__lite_bind_number(st, 6, x->session);
  return dibs__lite_do(to, st);
}

step dibs__lite_holder_drop(void *to, const head *h, dibs__id id) {
  return dibs__lite_do(to, dibs__lite_about_id(to, DIBS__LITE_HOLDER_DROP, h, &id));
}

step dibs__lite_holders_expire(void *to, const head *h, int64_t now, uint32_t *gone) {
  link_t *l = to;
  sqlite3_stmt *st = dibs__lite_about(l, DIBS__LITE_HOLDERS_EXPIRE, h);
  if (st) dibs__lite_bind_when(st, 3, now);
  step end = dibs__lite_do(l, st);
  *gone = (uint32_t)sqlite3_changes(l->db);
  return end;
}

step dibs__lite_holders_each(void *to, const head *h, void (*each)(void *arg, const struct dibs__sql_holder *holder),
                             void *arg) {
  struct dibs__sql_holder x;
  bool row;
  step end;
  sqlite3_stmt *st = dibs__lite_about(to, DIBS__LITE_HOLDERS, h);
  for (end = dibs__lite_row(to, st, &row); row; end = dibs__lite_row(to, st, &row)) {
    dibs__lite_read_holder(st, &x);
    each(arg, &x);
  }
  return end;
}

step dibs__lite_holders_break(void *to, const head *h) {
  return dibs__lite_do(to, dibs__lite_about(to, DIBS__LITE_HOLDERS_BREAK, h));
}
step dibs__lite_holders_drop(void *to, const head *h) {
  return dibs__lite_do(to, dibs__lite_about(to, DIBS__LITE_HOLDERS_DROP, h));
}

/* One number, or INT64_MAX. */
static step first_until(link_t *l, sqlite3_stmt *st, int64_t *until) {
  bool row;
  *until = INT64_MAX;
  step end = dibs__lite_row(l, st, &row);
  if (!row) return end;
  if (sqlite3_column_type(st, 0) != SQLITE_NULL) *until = sqlite3_column_int64(st, 0);
  sqlite3_reset(st);
  return end;
}

step dibs__lite_holders_first_until(void *to, const head *h, int64_t *until) {
  return first_until(to, dibs__lite_about(to, DIBS__LITE_HOLDERS_UNTIL, h), until);
}

step dibs__lite_slot_free(void *to, const head *h, uint32_t *slot) {
  bool row = false;
  step end = DIBS__SQL_FINE;
  *slot = h->low_slot;
  sqlite3_stmt *st = dibs__lite_about(to, DIBS__LITE_SLOTS, h);
  if (st) dibs__lite_bind_number(st, 3, h->low_slot);
  for (end = dibs__lite_row(to, st, &row); row; end = dibs__lite_row(to, st, &row)) {
    if (dibs__lite_small(st, 0) != *slot) {
      sqlite3_reset(st);
      break;
    }
    ++*slot;
  }
  return end;
}

/* ---- Waiters ---- */

void dibs__lite_read_waiter(sqlite3_stmt *st, struct dibs__sql_waiter *w) {
  w->ticket = dibs__lite_number(st, 0);
  w->state = (enum dibs__sql_waits)dibs__lite_small(st, 1);
  dibs__lite_read_bytes(st, 2, w->id.b, sizeof w->id.b);
  w->session = dibs__lite_number(st, 3);
  w->mode = dibs__lite_small(st, 4);
  w->slots = dibs__lite_small(st, 5);
  w->until = sqlite3_column_int64(st, 6);
  w->deep = dibs__lite_small(st, 7) != 0;
  w->ttl_ms = dibs__lite_small(st, 8);
  w->since = sqlite3_column_int64(st, 9);
  dibs__lite_read_label(st, 10, &w->owner);
  w->first = dibs__lite_number(st, 11);
}

static step one_waiter(link_t *l, sqlite3_stmt *st, struct dibs__sql_waiter *w, bool *found) {
  step end = dibs__lite_row(l, st, found);
  if (!*found) return end;
  dibs__lite_read_waiter(st, w);
  sqlite3_reset(st);
  return end;
}

static step waiter_at(link_t *l, const head *h, const dibs__id *id, uint64_t ticket, struct dibs__sql_waiter *w,
                      bool *found) {
  sqlite3_stmt *st = dibs__lite_about_id(l, DIBS__LITE_WAITER, h, id);
  if (st) dibs__lite_bind_number(st, 4, ticket);
  return one_waiter(l, st, w, found);
}

static step waiter_deep(link_t *l, const head *h, const dibs__id *id, struct dibs__sql_waiter *w, bool *found) {
  sqlite3_stmt *st = dibs__lite_about_id(l, DIBS__LITE_DEEP, h, id);
  step end = dibs__lite_row(l, st, found);
  if (!*found) return end;
  uint64_t ticket = dibs__lite_number(st, 0);
  sqlite3_reset(st);
  return waiter_at(l, h, id, ticket, w, found);
}

step dibs__lite_waiter_find(void *to, const head *h, dibs__id id, uint64_t ticket, struct dibs__sql_waiter *w,
                            bool *found) {
  step end = DIBS__SQL_FINE;
  *found = false;
  if (ticket) end = waiter_at(to, h, &id, ticket, w, found);
  if (end == DIBS__SQL_FINE && !*found && h->deep) end = waiter_deep(to, h, &id, w, found);
  if (end == DIBS__SQL_FINE && !*found)
    end = one_waiter(to, dibs__lite_about_id(to, DIBS__LITE_WAITER_SHALLOW, h, &id), w, found);
  return end;
}

step dibs__lite_waiter_next(void *to, const head *h, struct dibs__sql_waiter *w, bool *found) {
  sqlite3_stmt *st = dibs__lite_about(to, DIBS__LITE_WAITER_NEXT, h);
  if (st) dibs__lite_bind_number(st, 3, h->front);
  return one_waiter(to, st, w, found);
}

step dibs__lite_waiter_offered(void *to, const head *h, struct dibs__sql_waiter *w, bool *found) {
  sqlite3_stmt *st = dibs__lite_about(to, DIBS__LITE_WAITER_OFFERED, h);
  if (st) dibs__lite_bind_number(st, 3, h->reach);
  return one_waiter(to, st, w, found);
}

step dibs__lite_waiter_add(void *to, const head *h, const struct dibs__sql_waiter *w) {
  atomic_store_explicit(&((link_t *)to)->store->queued, true, memory_order_relaxed);
  sqlite3_stmt *st = dibs__lite_about(to, DIBS__LITE_WAITER_ADD, h);
  if (!st) return DIBS__SQL_BROKE;
  dibs__lite_bind_number(st, 3, w->ticket);
  dibs__lite_bind_number(st, 4, w->state);
  dibs__lite_bind_id(st, 5, &w->id);
  dibs__lite_bind_number(st, 6, w->session);
  dibs__lite_bind_number(st, 7, w->mode);
  dibs__lite_bind_number(st, 8, w->slots);
  dibs__lite_bind_when(st, 9, w->until);
  dibs__lite_bind_number(st, 10, w->deep);
  dibs__lite_bind_number(st, 11, w->ttl_ms);
  dibs__lite_bind_when(st, 12, w->since);
  dibs__lite_bind_text(st, 13, w->owner.text, w->owner.len);
  step end = dibs__lite_do(to, st);
  if (end != DIBS__SQL_FINE || !w->deep) return end;
  st = dibs__lite_about_id(to, DIBS__LITE_DEEP_ADD, h, &w->id);
  if (st) dibs__lite_bind_number(st, 4, w->ticket);
  return dibs__lite_do(to, st);
}

step dibs__lite_waiter_set(void *to, const head *h, const struct dibs__sql_waiter *w) {
  atomic_store_explicit(&((link_t *)to)->store->queued, true, memory_order_relaxed); /* it may be ours from now on */
  sqlite3_stmt *st = dibs__lite_about(to, DIBS__LITE_WAITER_SET, h);
  if (!st) return DIBS__SQL_BROKE;
  dibs__lite_bind_number(st, 3, w->ticket);
  dibs__lite_bind_number(st, 4, w->state);
  dibs__lite_bind_when(st, 5, w->until);
  dibs__lite_bind_number(st, 6, w->session);
  dibs__lite_bind_number(st, 7, w->first);
  return dibs__lite_do(to, st);
}

step dibs__lite_waiter_drop(void *to, const head *h, const struct dibs__sql_waiter *w) {
  sqlite3_stmt *st = dibs__lite_about(to, DIBS__LITE_WAITER_DROP, h);
  if (st) dibs__lite_bind_number(st, 3, w->ticket);
  step end = dibs__lite_do(to, st);
  return end == DIBS__SQL_FINE && w->deep ? dibs__lite_do(to, dibs__lite_about_id(to, DIBS__LITE_DEEP_DROP, h, &w->id))
                                          : end;
}

step dibs__lite_offers_expire(void *to, const head *h, int64_t now, uint32_t *gone) {
  link_t *l = to;
  sqlite3_stmt *st = dibs__lite_about(l, DIBS__LITE_OFFERS_EXPIRE, h);
  if (st) {
    dibs__lite_bind_number(st, 3, h->reach);
    dibs__lite_bind_when(st, 4, now);
  }
  step end = dibs__lite_do(l, st);
  *gone = (uint32_t)sqlite3_changes(l->db);
  return end;
}

step dibs__lite_offers_first_until(void *to, const head *h, int64_t *until) {
  sqlite3_stmt *st = dibs__lite_about(to, DIBS__LITE_OFFERS_UNTIL, h);
  if (st) dibs__lite_bind_number(st, 3, h->reach);
  return first_until(to, st, until);
}

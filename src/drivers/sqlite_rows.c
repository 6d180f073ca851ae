/* SPDX-License-Identifier: MIT */
/* Rows to structs and back: the SQLite dialect of src/sql.  Texts and ids are bound where they lie; every statement
 * has ended before its caller's memory can change. */
#include "drivers/sqlite_parts.h"

#include <string.h>

typedef enum dibs__sql_step step;
typedef struct dibs__lite_link link_t;
typedef struct dibs__sql_head head;

static void bind_number(sqlite3_stmt *st, int at, uint64_t value) {
  sqlite3_bind_int64(st, at, (sqlite3_int64)value);
}
static void bind_when(sqlite3_stmt *st, int at, int64_t value) {
  sqlite3_bind_int64(st, at, value);
}
static void bind_text(sqlite3_stmt *st, int at, const char *p, uint32_t len) {
  sqlite3_bind_text(st, at, p ? p : "", (int)len, SQLITE_STATIC);
}
static void bind_id(sqlite3_stmt *st, int at, const dibs__id *id) {
  sqlite3_bind_blob(st, at, id->b, sizeof id->b, SQLITE_STATIC);
}

static uint64_t number(sqlite3_stmt *st, int column) {
  return (uint64_t)sqlite3_column_int64(st, column);
}
static uint32_t small(sqlite3_stmt *st, int column) {
  return (uint32_t)sqlite3_column_int64(st, column);
}

static void read_bytes(sqlite3_stmt *st, int column, void *to, size_t size) {
  const void *p = sqlite3_column_blob(st, column);
  if (p && (size_t)sqlite3_column_bytes(st, column) == size)
    memcpy(to, p, size);
  else
    memset(to, 0, size);
}

dibs__str dibs__lite_read_text(sqlite3_stmt *st, int column) {
  const char *p = sqlite3_column_blob(st, column);
  return (dibs__str){p ? p : "", (uint32_t)sqlite3_column_bytes(st, column)};
}

static void read_label(sqlite3_stmt *st, int column, struct dibs__sql_label *label) {
  dibs__str text = dibs__lite_read_text(st, column);
  label->len = text.len <= DIBS_OWNER_MAX ? text.len : DIBS_OWNER_MAX;
  memcpy(label->text, text.p, label->len);
}

/* A statement about a name, with bucket and name bound. */
static sqlite3_stmt *about(link_t *l, enum dibs__lite_text text, const head *h) {
  sqlite3_stmt *st = dibs__lite_ready(l, text);
  if (!st) return NULL;
  bind_number(st, 1, h->bucket);
  bind_text(st, 2, h->name.p, h->name.len);
  return st;
}

/* ---- Buckets ---- */

/* Below what was granted: somebody put an older file in the place of this one. */
static step same_memory(const link_t *l, uint16_t bucket) {
  const struct dibs__sql_bucket *b = &l->buckets[bucket];
  bool below = dibs__fence_below(dibs__fence_make(b->mandate.epoch, b->seq), dibs__side_marked(l->store->side, bucket));
  return below ? DIBS__SQL_OTHER : DIBS__SQL_FINE;
}

step dibs__lite_bucket_get(void *to, uint16_t bucket, struct dibs__sql_bucket **row) {
  link_t *l = to;
  struct dibs__sql_bucket *b = &l->buckets[bucket];
  bool found;
  *row = b;
  if (l->known[bucket / 64] >> bucket % 64 & 1) return same_memory(l, bucket);
  sqlite3_stmt *st = dibs__lite_ready(l, DIBS__LITE_BUCKET);
  if (!st) return DIBS__SQL_BROKE;
  bind_number(st, 1, bucket);
  step end = dibs__lite_row(l, st, &found);
  if (end != DIBS__SQL_FINE) return end;
  if (!found) return dibs__lite_wrong(l);
  read_bytes(st, 0, b->mandate.life.b, sizeof b->mandate.life.b);
  b->mandate.epoch = small(st, 1);
  b->seq = small(st, 2);
  bool whole = sqlite3_column_bytes(st, 0) == (int)sizeof b->mandate.life.b && b->mandate.epoch > 0 &&
               b->mandate.epoch <= DIBS__EPOCH_MAX && sqlite3_column_int64(st, 1) <= DIBS__EPOCH_MAX;
  sqlite3_reset(st);
  if (!whole) return dibs__lite_wrong(l);
  l->known[bucket / 64] |= UINT64_C(1) << bucket % 64;
  return same_memory(l, bucket);
}

step dibs__lite_bucket_put(void *to, uint16_t bucket) {
  link_t *l = to;
  l->changed[bucket / 64] |= UINT64_C(1) << bucket % 64;
  return DIBS__SQL_FINE;
}

/* ---- Heads ---- */

bool dibs__lite_read_head(sqlite3_stmt *st, head *h) {
  h->waiters = small(st, 6);
  h->mode = small(st, 11);
  h->slots = small(st, 12);
  h->holders = small(st, 13);
  h->offers = small(st, 14);
  h->tickets = number(st, 15);
  h->front = number(st, 16);
  h->reach = number(st, 17);
  h->low_slot = small(st, 18);
  h->deep = small(st, 19) != 0;
  h->due = sqlite3_column_int64(st, 20);
  if (h->mode > DIBS_COUNTED || h->offers > h->waiters) return false;
  if (!dibs__sql_inline(h)) return true;
  if (h->holders != 1 || sqlite3_column_bytes(st, 0) != (int)sizeof h->x.id.b) return false;
  read_bytes(st, 0, h->x.id.b, sizeof h->x.id.b);
  h->x.until = sqlite3_column_int64(st, 1);
  h->x.granted = number(st, 2);
  h->x.first = number(st, 3);
  h->x.block = small(st, 4);
  h->x.broken = small(st, 5) != 0;
  h->x.ttl_ms = small(st, 7);
  h->x.since = sqlite3_column_int64(st, 8);
  h->x.session = number(st, 9);
  h->x.slot = 0;
  read_label(st, 10, &h->x.owner);
  return true;
}

static step head_load(void *to, head *h) {
  link_t *l = to;
  h->queue_changed = h->holder_changed = false;
  sqlite3_stmt *st = about(l, DIBS__LITE_HEAD, h);
  step end = dibs__lite_row(l, st, &h->exists);
  if (end != DIBS__SQL_FINE) return end;
  if (h->exists) {
    bool whole = dibs__lite_read_head(st, h);
    sqlite3_reset(st);
    return whole ? DIBS__SQL_FINE : dibs__lite_wrong(l);
  }
  h->mode = h->slots = h->holders = h->offers = h->waiters = h->low_slot = 0;
  h->tickets = h->front = h->reach = 0;
  h->deep = false;
  h->due = 0;
  return DIBS__SQL_FINE;
}

static void bind_queue(sqlite3_stmt *st, const head *h) {
  bind_number(st, 9, h->waiters);
  bind_number(st, 14, h->mode);
  bind_number(st, 15, h->slots);
  bind_number(st, 16, h->holders);
  bind_number(st, 17, h->offers);
  bind_number(st, 18, h->tickets);
  bind_number(st, 19, h->front);
  bind_number(st, 20, h->reach);
  bind_number(st, 21, h->low_slot);
  bind_number(st, 22, h->deep);
  bind_when(st, 23, h->due);
}

static void bind_inline(sqlite3_stmt *st, const head *h) {
  const struct dibs__sql_holder *x = &h->x;
  bind_id(st, 3, &x->id);
  bind_when(st, 4, x->until);
  bind_number(st, 5, x->granted);
  bind_number(st, 6, x->first);
  bind_number(st, 7, x->block);
  bind_number(st, 8, x->broken);
  bind_number(st, 10, x->ttl_ms);
  bind_when(st, 11, x->since);
  bind_number(st, 12, x->session);
  bind_text(st, 13, x->owner.text, x->owner.len);
}

static step head_write(link_t *l, enum dibs__lite_text text, const head *h) {
  static const int inlined[] = {3, 4, 5, 6, 7, 8, 10, 11, 12, 13};
  sqlite3_stmt *st = about(l, text, h);
  if (!st) return DIBS__SQL_BROKE;
  bind_queue(st, h);
  if (dibs__sql_inline(h))
    bind_inline(st, h);
  else
    for (size_t i = 0; i < sizeof inlined / sizeof inlined[0]; i++) sqlite3_bind_null(st, inlined[i]);
  return dibs__lite_do(l, st);
}

static step head_add(void *to, const head *h) {
  return head_write(to, DIBS__LITE_HEAD_ADD, h);
}
static step head_set(void *to, const head *h) {
  return head_write(to, DIBS__LITE_HEAD_SET, h);
}
static step head_set_queue(void *to, const head *h) {
  sqlite3_stmt *st = about(to, DIBS__LITE_HEAD_QUEUE, h);
  if (!st) return DIBS__SQL_BROKE;
  bind_queue(st, h);
  return dibs__lite_do(to, st);
}
static step head_drop(void *to, const head *h) {
  return dibs__lite_do(to, about(to, DIBS__LITE_HEAD_DROP, h));
}

/* ---- Holders ---- */

void dibs__lite_read_holder(sqlite3_stmt *st, struct dibs__sql_holder *x) {
  read_bytes(st, 0, x->id.b, sizeof x->id.b);
  x->granted = x->first = 0;
  x->block = 0;
  x->slot = small(st, 1);
  x->until = sqlite3_column_int64(st, 2);
  x->broken = small(st, 3) != 0;
  x->ttl_ms = small(st, 4);
  x->since = sqlite3_column_int64(st, 5);
  x->session = number(st, 6);
  read_label(st, 7, &x->owner);
}

static sqlite3_stmt *about_holder(link_t *l, enum dibs__lite_text text, const head *h, const dibs__id *id) {
  sqlite3_stmt *st = about(l, text, h);
  if (st) bind_id(st, 3, id);
  return st;
}

static step holder_find(void *to, const head *h, dibs__id id, struct dibs__sql_holder *x, bool *found) {
  sqlite3_stmt *st = about_holder(to, DIBS__LITE_HOLDER, h, &id);
  step end = dibs__lite_row(to, st, found);
  if (!*found) return end;
  dibs__lite_read_holder(st, x);
  sqlite3_reset(st);
  return end;
}

static step holder_add(void *to, const head *h, const struct dibs__sql_holder *x) {
  sqlite3_stmt *st = about_holder(to, DIBS__LITE_HOLDER_ADD, h, &x->id);
  if (!st) return DIBS__SQL_BROKE;
  if (h->mode == DIBS_COUNTED)
    bind_number(st, 4, x->slot);
  else
    sqlite3_bind_null(st, 4);
  bind_when(st, 5, x->until);
  bind_number(st, 6, x->broken);
  bind_number(st, 7, x->ttl_ms);
  bind_when(st, 8, x->since);
  bind_number(st, 9, x->session);
  bind_text(st, 10, x->owner.text, x->owner.len);
  return dibs__lite_do(to, st);
}

static step holder_set(void *to, const head *h, const struct dibs__sql_holder *x) {
  sqlite3_stmt *st = about_holder(to, DIBS__LITE_HOLDER_SET, h, &x->id);
  if (!st) return DIBS__SQL_BROKE;
  bind_when(st, 4, x->until);
  bind_number(st, 5, x->ttl_ms);
  bind_number(st, 6, x->session);
  return dibs__lite_do(to, st);
}

static step holder_drop(void *to, const head *h, dibs__id id) {
  return dibs__lite_do(to, about_holder(to, DIBS__LITE_HOLDER_DROP, h, &id));
}

static step holders_expire(void *to, const head *h, int64_t now, uint32_t *gone) {
  link_t *l = to;
  sqlite3_stmt *st = about(l, DIBS__LITE_HOLDERS_EXPIRE, h);
  if (st) bind_when(st, 3, now);
  step end = dibs__lite_do(l, st);
  *gone = (uint32_t)sqlite3_changes(l->db);
  return end;
}

static step holders_each(void *to, const head *h, void (*each)(void *arg, const struct dibs__sql_holder *holder),
                         void *arg) {
  struct dibs__sql_holder x;
  bool row;
  step end;
  sqlite3_stmt *st = about(to, DIBS__LITE_HOLDERS, h);
  for (end = dibs__lite_row(to, st, &row); row; end = dibs__lite_row(to, st, &row)) {
    dibs__lite_read_holder(st, &x);
    each(arg, &x);
  }
  return end;
}

static step holders_break(void *to, const head *h) {
  return dibs__lite_do(to, about(to, DIBS__LITE_HOLDERS_BREAK, h));
}
static step holders_drop(void *to, const head *h) {
  return dibs__lite_do(to, about(to, DIBS__LITE_HOLDERS_DROP, h));
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

static step holders_first_until(void *to, const head *h, int64_t *until) {
  return first_until(to, about(to, DIBS__LITE_HOLDERS_UNTIL, h), until);
}

static step slot_free(void *to, const head *h, uint32_t *slot) {
  bool row = false;
  step end = DIBS__SQL_FINE;
  *slot = h->low_slot;
  sqlite3_stmt *st = about(to, DIBS__LITE_SLOTS, h);
  if (st) bind_number(st, 3, h->low_slot);
  for (end = dibs__lite_row(to, st, &row); row; end = dibs__lite_row(to, st, &row)) {
    if (small(st, 0) != *slot) {
      sqlite3_reset(st);
      break;
    }
    ++*slot;
  }
  return end;
}

/* ---- Waiters ---- */

void dibs__lite_read_waiter(sqlite3_stmt *st, struct dibs__sql_waiter *w) {
  w->ticket = number(st, 0);
  w->state = (enum dibs__sql_waits)small(st, 1);
  read_bytes(st, 2, w->id.b, sizeof w->id.b);
  w->session = number(st, 3);
  w->mode = small(st, 4);
  w->slots = small(st, 5);
  w->until = sqlite3_column_int64(st, 6);
  w->deep = small(st, 7) != 0;
  w->ttl_ms = small(st, 8);
  w->since = sqlite3_column_int64(st, 9);
  read_label(st, 10, &w->owner);
  w->first = number(st, 11);
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
  sqlite3_stmt *st = about_holder(l, DIBS__LITE_WAITER, h, id);
  if (st) bind_number(st, 4, ticket);
  return one_waiter(l, st, w, found);
}

static step waiter_deep(link_t *l, const head *h, const dibs__id *id, struct dibs__sql_waiter *w, bool *found) {
  sqlite3_stmt *st = about_holder(l, DIBS__LITE_DEEP, h, id);
  step end = dibs__lite_row(l, st, found);
  if (!*found) return end;
  uint64_t ticket = number(st, 0);
  sqlite3_reset(st);
  return waiter_at(l, h, id, ticket, w, found);
}

static step waiter_find(void *to, const head *h, dibs__id id, uint64_t ticket, struct dibs__sql_waiter *w,
                        bool *found) {
  step end = DIBS__SQL_FINE;
  *found = false;
  if (ticket) end = waiter_at(to, h, &id, ticket, w, found);
  if (end == DIBS__SQL_FINE && !*found && h->deep) end = waiter_deep(to, h, &id, w, found);
  if (end == DIBS__SQL_FINE && !*found)
    end = one_waiter(to, about_holder(to, DIBS__LITE_WAITER_SHALLOW, h, &id), w, found);
  return end;
}

static step waiter_next(void *to, const head *h, struct dibs__sql_waiter *w, bool *found) {
  sqlite3_stmt *st = about(to, DIBS__LITE_WAITER_NEXT, h);
  if (st) bind_number(st, 3, h->front);
  return one_waiter(to, st, w, found);
}

static step waiter_offered(void *to, const head *h, struct dibs__sql_waiter *w, bool *found) {
  sqlite3_stmt *st = about(to, DIBS__LITE_WAITER_OFFERED, h);
  if (st) bind_number(st, 3, h->reach);
  return one_waiter(to, st, w, found);
}

static step waiter_add(void *to, const head *h, const struct dibs__sql_waiter *w) {
  atomic_store_explicit(&((link_t *)to)->store->queued, true, memory_order_relaxed);
  sqlite3_stmt *st = about(to, DIBS__LITE_WAITER_ADD, h);
  if (!st) return DIBS__SQL_BROKE;
  bind_number(st, 3, w->ticket);
  bind_number(st, 4, w->state);
  bind_id(st, 5, &w->id);
  bind_number(st, 6, w->session);
  bind_number(st, 7, w->mode);
  bind_number(st, 8, w->slots);
  bind_when(st, 9, w->until);
  bind_number(st, 10, w->deep);
  bind_number(st, 11, w->ttl_ms);
  bind_when(st, 12, w->since);
  bind_text(st, 13, w->owner.text, w->owner.len);
  step end = dibs__lite_do(to, st);
  if (end != DIBS__SQL_FINE || !w->deep) return end;
  st = about_holder(to, DIBS__LITE_DEEP_ADD, h, &w->id);
  if (st) bind_number(st, 4, w->ticket);
  return dibs__lite_do(to, st);
}

static step waiter_set(void *to, const head *h, const struct dibs__sql_waiter *w) {
  atomic_store_explicit(&((link_t *)to)->store->queued, true, memory_order_relaxed); /* it may be ours from now on */
  sqlite3_stmt *st = about(to, DIBS__LITE_WAITER_SET, h);
  if (!st) return DIBS__SQL_BROKE;
  bind_number(st, 3, w->ticket);
  bind_number(st, 4, w->state);
  bind_when(st, 5, w->until);
  bind_number(st, 6, w->session);
  bind_number(st, 7, w->first);
  return dibs__lite_do(to, st);
}

static step waiter_drop(void *to, const head *h, const struct dibs__sql_waiter *w) {
  sqlite3_stmt *st = about(to, DIBS__LITE_WAITER_DROP, h);
  if (st) bind_number(st, 3, w->ticket);
  step end = dibs__lite_do(to, st);
  return end == DIBS__SQL_FINE && w->deep ? dibs__lite_do(to, about_holder(to, DIBS__LITE_DEEP_DROP, h, &w->id)) : end;
}

static step offers_expire(void *to, const head *h, int64_t now, uint32_t *gone) {
  link_t *l = to;
  sqlite3_stmt *st = about(l, DIBS__LITE_OFFERS_EXPIRE, h);
  if (st) {
    bind_number(st, 3, h->reach);
    bind_when(st, 4, now);
  }
  step end = dibs__lite_do(l, st);
  *gone = (uint32_t)sqlite3_changes(l->db);
  return end;
}

static step offers_first_until(void *to, const head *h, int64_t *until) {
  sqlite3_stmt *st = about(to, DIBS__LITE_OFFERS_UNTIL, h);
  if (st) bind_number(st, 3, h->reach);
  return first_until(to, st, until);
}

/* ---- Breaks and records ---- */

static step break_add(void *to, const head *h, const struct dibs__sql_break *row) {
  sqlite3_stmt *st = about(to, DIBS__LITE_BREAK_ADD, h);
  if (!st) return DIBS__SQL_BROKE;
  bind_when(st, 3, row->at);
  bind_number(st, 4, row->fence);
  bind_number(st, 5, row->mode);
  bind_text(st, 6, row->owner.p, row->owner.len);
  step end = dibs__lite_do(to, st);
  if (end != DIBS__SQL_FINE) return end;
  st = about(to, DIBS__LITE_BREAK_TRIM, h);
  if (st) bind_number(st, 3, DIBS__SQL_BREAKS);
  return dibs__lite_do(to, st);
}

static sqlite3_stmt *about_record(link_t *l, enum dibs__lite_text text, dibs__str key) {
  sqlite3_stmt *st = dibs__lite_ready(l, text);
  if (st) bind_text(st, 1, key.p, key.len);
  return st;
}

/* Left at its row, whose data the caller reads; record_put and the end of the transaction reset it. */
static step record_load(void *to, dibs__str key, struct dibs__sql_record *r, bool *found) {
  link_t *l = to;
  sqlite3_stmt *st = dibs__lite_ready(l, DIBS__LITE_RECORD);
  if (st) sqlite3_reset(st);
  st = about_record(l, DIBS__LITE_RECORD, key);
  step end = dibs__lite_row(l, st, found);
  if (!*found) return end;
  r->fence = number(st, 0);
  r->digest = number(st, 1);
  r->version = number(st, 2);
  r->data = sqlite3_column_blob(st, 3);
  r->len = (uint32_t)sqlite3_column_bytes(st, 3);
  if (r->len && !r->data) return dibs__lite_broke(l, SQLITE_NOMEM);
  return end;
}

static step record_put(void *to, dibs__str key, const struct dibs__sql_record *r, bool data) {
  link_t *l = to;
  sqlite3_reset(l->statements[DIBS__LITE_RECORD]);
  sqlite3_stmt *st = about_record(l, data ? DIBS__LITE_RECORD_SAVE : DIBS__LITE_RECORD_SEAL, key);
  if (!st) return DIBS__SQL_BROKE;
  bind_number(st, 2, r->fence);
  bind_number(st, 3, r->digest);
  if (data) {
    bind_number(st, 4, r->version);
    sqlite3_bind_blob(st, 5, r->data ? r->data : "", (int)r->len, SQLITE_STATIC);
  }
  return dibs__lite_do(l, st);
}

/* ---- The table ---- */

static step wrong(void *to) {
  return dibs__lite_wrong(to);
}

const struct dibs__sql_rows dibs__lite_rows = {
    .wrong = wrong,
    .bucket_get = dibs__lite_bucket_get,
    .bucket_put = dibs__lite_bucket_put,
    .head_load = head_load,
    .head_add = head_add,
    .head_set = head_set,
    .head_set_queue = head_set_queue,
    .head_drop = head_drop,
    .holder_find = holder_find,
    .holder_add = holder_add,
    .holder_set = holder_set,
    .holder_drop = holder_drop,
    .holders_expire = holders_expire,
    .holders_each = holders_each,
    .holders_break = holders_break,
    .holders_drop = holders_drop,
    .holders_first_until = holders_first_until,
    .slot_free = slot_free,
    .waiter_find = waiter_find,
    .waiter_next = waiter_next,
    .waiter_offered = waiter_offered,
    .waiter_add = waiter_add,
    .waiter_set = waiter_set,
    .waiter_drop = waiter_drop,
    .offers_expire = offers_expire,
    .offers_first_until = offers_first_until,
    .break_add = break_add,
    .record_load = record_load,
    .record_put = record_put,
};

/* SPDX-License-Identifier: MIT */
/* Rows to structs and back: the SQLite dialect of src/sql.  Holders and waiters are in sqlite_crowd.c. */
#include "drivers/sqlite_bind.h"

typedef enum dibs__sql_step step;
typedef struct dibs__lite_link link_t;
typedef struct dibs__sql_head head;

dibs__str dibs__lite_read_text(sqlite3_stmt *st, int column) {
  const char *p = sqlite3_column_blob(st, column);
  return (dibs__str){p ? p : "", (uint32_t)sqlite3_column_bytes(st, column)};
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
  dibs__lite_bind_number(st, 1, bucket);
  step end = dibs__lite_row(l, st, &found);
  if (end != DIBS__SQL_FINE) return end;
  if (!found) return dibs__lite_wrong(l);
  dibs__lite_read_bytes(st, 0, b->mandate.life.b, sizeof b->mandate.life.b);
  b->mandate.epoch = dibs__lite_small(st, 1);
  b->seq = dibs__lite_small(st, 2);
  b->served = (enum dibs__sql_served)dibs__lite_small(st, 3);
  bool whole = sqlite3_column_bytes(st, 0) == (int)sizeof b->mandate.life.b && b->mandate.epoch > 0 &&
               b->mandate.epoch <= DIBS__EPOCH_MAX && sqlite3_column_int64(st, 1) <= DIBS__EPOCH_MAX &&
               b->served <= DIBS__SQL_VOID;
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

static step bucket_serve(void *to, uint16_t bucket) {
  const link_t *l = to;
  sqlite3_stmt *st = dibs__lite_ready(to, DIBS__LITE_BUCKET_SERVE);
  if (!st) return DIBS__SQL_BROKE;
  dibs__lite_bind_number(st, 1, bucket);
  dibs__lite_bind_number(st, 2, l->buckets[bucket].served);
  return dibs__lite_do(to, st);
}

/* ---- Heads ---- */

bool dibs__lite_read_head(sqlite3_stmt *st, head *h) {
  h->waiters = dibs__lite_small(st, 6);
  h->mode = dibs__lite_small(st, 11);
  h->slots = dibs__lite_small(st, 12);
  h->holders = dibs__lite_small(st, 13);
  h->offers = dibs__lite_small(st, 14);
  h->tickets = dibs__lite_number(st, 15);
  h->front = dibs__lite_number(st, 16);
  h->reach = dibs__lite_number(st, 17);
  h->low_slot = dibs__lite_small(st, 18);
  h->deep = dibs__lite_small(st, 19) != 0;
  h->due = sqlite3_column_int64(st, 20);
  if (h->mode > DIBS_COUNTED || h->offers > h->waiters) return false;
  if (!dibs__sql_inline(h)) return true;
  if (h->holders != 1 || sqlite3_column_bytes(st, 0) != (int)sizeof h->x.id.b) return false;
  dibs__lite_read_bytes(st, 0, h->x.id.b, sizeof h->x.id.b);
  h->x.until = sqlite3_column_int64(st, 1);
  h->x.granted = dibs__lite_number(st, 2);
  h->x.first = dibs__lite_number(st, 3);
  h->x.block = dibs__lite_small(st, 4);
  h->x.broken = dibs__lite_small(st, 5) != 0;
  h->x.ttl_ms = dibs__lite_small(st, 7);
  h->x.since = sqlite3_column_int64(st, 8);
  h->x.session = dibs__lite_number(st, 9);
  h->x.slot = 0;
  dibs__lite_read_label(st, 10, &h->x.owner);
  return true;
}

static step head_load(void *to, head *h) {
  link_t *l = to;
  h->queue_changed = h->holder_changed = false;
  sqlite3_stmt *st = dibs__lite_about(l, DIBS__LITE_HEAD, h);
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
  dibs__lite_bind_number(st, 9, h->waiters);
  dibs__lite_bind_number(st, 14, h->mode);
  dibs__lite_bind_number(st, 15, h->slots);
  dibs__lite_bind_number(st, 16, h->holders);
  dibs__lite_bind_number(st, 17, h->offers);
  dibs__lite_bind_number(st, 18, h->tickets);
  dibs__lite_bind_number(st, 19, h->front);
  dibs__lite_bind_number(st, 20, h->reach);
  dibs__lite_bind_number(st, 21, h->low_slot);
  dibs__lite_bind_number(st, 22, h->deep);
  dibs__lite_bind_when(st, 23, h->due);
}

static void bind_inline(sqlite3_stmt *st, const head *h) {
  const struct dibs__sql_holder *x = &h->x;
  dibs__lite_bind_id(st, 3, &x->id);
  dibs__lite_bind_when(st, 4, x->until);
  dibs__lite_bind_number(st, 5, x->granted);
  dibs__lite_bind_number(st, 6, x->first);
  dibs__lite_bind_number(st, 7, x->block);
  dibs__lite_bind_number(st, 8, x->broken);
  dibs__lite_bind_number(st, 10, x->ttl_ms);
  dibs__lite_bind_when(st, 11, x->since);
  dibs__lite_bind_number(st, 12, x->session);
  dibs__lite_bind_text(st, 13, x->owner.text, x->owner.len);
}

static step head_write(link_t *l, enum dibs__lite_text text, const head *h) {
  static const int inlined[] = {3, 4, 5, 6, 7, 8, 10, 11, 12, 13};
  sqlite3_stmt *st = dibs__lite_about(l, text, h);
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
  sqlite3_stmt *st = dibs__lite_about(to, DIBS__LITE_HEAD_QUEUE, h);
  if (!st) return DIBS__SQL_BROKE;
  bind_queue(st, h);
  return dibs__lite_do(to, st);
}
static step head_drop(void *to, const head *h) {
  return dibs__lite_do(to, dibs__lite_about(to, DIBS__LITE_HEAD_DROP, h));
}

/* ---- Breaks and records ---- */

static step break_add(void *to, const head *h, const struct dibs__sql_break *row) {
  sqlite3_stmt *st = dibs__lite_about(to, DIBS__LITE_BREAK_ADD, h);
  if (!st) return DIBS__SQL_BROKE;
  dibs__lite_bind_when(st, 3, row->at);
  dibs__lite_bind_number(st, 4, row->fence);
  dibs__lite_bind_number(st, 5, row->mode);
  dibs__lite_bind_text(st, 6, row->owner.p, row->owner.len);
  step end = dibs__lite_do(to, st);
  if (end != DIBS__SQL_FINE) return end;
  st = dibs__lite_about(to, DIBS__LITE_BREAK_TRIM, h);
  if (st) dibs__lite_bind_number(st, 3, DIBS__SQL_BREAKS);
  return dibs__lite_do(to, st);
}

static sqlite3_stmt *about_record(link_t *l, enum dibs__lite_text text, dibs__str key) {
  sqlite3_stmt *st = dibs__lite_ready(l, text);
  if (st) dibs__lite_bind_text(st, 1, key.p, key.len);
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
  r->fence = dibs__lite_number(st, 0);
  r->digest = dibs__lite_number(st, 1);
  r->version = dibs__lite_number(st, 2);
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
  dibs__lite_bind_number(st, 2, r->fence);
  dibs__lite_bind_number(st, 3, r->digest);
  if (data) {
    dibs__lite_bind_number(st, 4, r->version);
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
    .bucket_serve = bucket_serve,
    .head_load = head_load,
    .head_add = head_add,
    .head_set = head_set,
    .head_set_queue = head_set_queue,
    .head_drop = head_drop,
    .holder_find = dibs__lite_holder_find,
    .holder_add = dibs__lite_holder_add,
    .holder_set = dibs__lite_holder_set,
    .holder_drop = dibs__lite_holder_drop,
    .holders_expire = dibs__lite_holders_expire,
    .holders_each = dibs__lite_holders_each,
    .holders_break = dibs__lite_holders_break,
    .holders_drop = dibs__lite_holders_drop,
    .holders_first_until = dibs__lite_holders_first_until,
    .slot_free = dibs__lite_slot_free,
    .waiter_find = dibs__lite_waiter_find,
    .waiter_next = dibs__lite_waiter_next,
    .waiter_offered = dibs__lite_waiter_offered,
    .waiter_add = dibs__lite_waiter_add,
    .waiter_set = dibs__lite_waiter_set,
    .waiter_drop = dibs__lite_waiter_drop,
    .offers_expire = dibs__lite_offers_expire,
    .offers_first_until = dibs__lite_offers_first_until,
    .break_add = break_add,
    .record_load = record_load,
    .record_put = record_put,
};

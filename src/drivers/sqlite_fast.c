/* SPDX-License-Identifier: MIT */
/*
 * The three steps of an exclusive lease that nobody else wants, by a statement or two each.  What they don't find as
 * expected they leave alone, and src/sql decides on rows.
 *
 * The counter of the bucket is written once, at the end of the transaction, from its copy in the link.
 */
#include "drivers/sqlite_parts.h"

typedef enum dibs__sql_step step;
typedef struct dibs__lite_link link_t;

static sqlite3_stmt *about(link_t *l, enum dibs__lite_text text, const struct dibs__lease_op *op) {
  sqlite3_stmt *st = dibs__lite_ready(l, text);
  if (!st) return NULL;
  sqlite3_bind_int64(st, 1, op->op.bucket);
  sqlite3_bind_text(st, 2, op->name.p, (int)op->name.len, SQLITE_STATIC);
  sqlite3_bind_blob(st, 3, op->id.b, sizeof op->id.b, SQLITE_STATIC);
  return st;
}

/* A name without a row is free, and nobody waits for it. */
static step take(struct dibs__sql *s, struct dibs__sql_bucket *row, struct dibs__lease_op *op, bool *done) {
  link_t *l = s->to;
  struct dibs__sql_bucket drawn = *row;
  uint64_t first;
  uint32_t block;
  step end = dibs__sql_draw(&drawn, op->want_block, &first, &block);
  if (end != DIBS__SQL_FINE) return DIBS__SQL_FINE; /* it may be held, and then none is needed */
  sqlite3_stmt *st = about(l, DIBS__LITE_TAKE, op);
  if (!st) return DIBS__SQL_BROKE;
  sqlite3_bind_int64(st, 4, s->now + op->ttl_ms);
  sqlite3_bind_int64(st, 5, (sqlite3_int64)first);
  sqlite3_bind_int64(st, 6, block);
  sqlite3_bind_int64(st, 7, op->ttl_ms);
  sqlite3_bind_int64(st, 8, s->now);
  sqlite3_bind_int64(st, 9, (sqlite3_int64)s->session);
  sqlite3_bind_text(st, 10, op->owner.p ? op->owner.p : "", (int)op->owner.len, SQLITE_STATIC);
  end = dibs__lite_do(l, st);
  *done = end == DIBS__SQL_FINE && sqlite3_changes(l->db) == 1;
  if (!*done) return end;
  *row = drawn;
  op->fence = (dibs__fence){first};
  op->got_block = block;
  op->slot = 0;
  op->until.ms = s->now + op->ttl_ms;
  return dibs__lite_bucket_put(l, op->op.bucket);
}

static sqlite3_stmt *about_grant(struct dibs__sql *s, enum dibs__lite_text text, const struct dibs__lease_op *op) {
  sqlite3_stmt *st = about(s->to, text, op);
  if (!st) return NULL;
  sqlite3_bind_int64(st, 4, s->now);
  sqlite3_bind_int64(st, 5, (sqlite3_int64)op->fence.v);
  return st;
}

static step keep(struct dibs__sql *s, struct dibs__lease_op *op, bool *done) {
  sqlite3_stmt *st = about_grant(s, DIBS__LITE_KEPT, op);
  step end = dibs__lite_row(s->to, st, done);
  if (!*done) return end;
  op->fence = (dibs__fence){(uint64_t)sqlite3_column_int64(st, 0)};
  op->got_block = (uint32_t)sqlite3_column_int64(st, 1);
  op->slot = 0;
  op->until.ms = s->now + op->ttl_ms;
  sqlite3_reset(st);
  st = dibs__lite_ready(s->to, DIBS__LITE_KEEP);
  if (!st) return DIBS__SQL_BROKE;
  sqlite3_bind_int64(st, 1, op->op.bucket);
  sqlite3_bind_text(st, 2, op->name.p, (int)op->name.len, SQLITE_STATIC);
  sqlite3_bind_int64(st, 3, op->until.ms);
  sqlite3_bind_int64(st, 4, op->ttl_ms);
  sqlite3_bind_int64(st, 5, (sqlite3_int64)s->session);
  return dibs__lite_do(s->to, st);
}

static step give(struct dibs__sql *s, struct dibs__lease_op *op, bool *done) {
  link_t *l = s->to;
  step end = dibs__lite_do(l, about_grant(s, DIBS__LITE_GIVE, op));
  *done = end == DIBS__SQL_FINE && sqlite3_changes(l->db) == 1;
  return end;
}

step dibs__lite_fast(struct dibs__sql *s, struct dibs__lease_op *op, bool *done) {
  struct dibs__sql_bucket *row;
  *done = false;
  if (!dibs__sql_lease_valid(op)) return DIBS__SQL_FINE;
  if (((link_t *)s->to)->crowded[op->op.bucket / 64] >> op->op.bucket % 64 & 1) return DIBS__SQL_FINE;
  step end = dibs__lite_bucket_get(s->to, op->op.bucket, &row);
  if (end != DIBS__SQL_FINE || row->served != dibs__sql_answers(s->as_tier)) return end;
  if (!dibs__mandate_equal(&op->op.mandate, &row->mandate)) return end;
  if (op->op.verb == DIBS__ACQUIRE && op->mode == DIBS_EXCLUSIVE && op->ticket == 0)
    end = take(s, row, op, done);
  else if (op->op.verb == DIBS__RENEW && op->want_block == 0 && op->fence.v != 0)
    end = keep(s, op, done);
  else if (op->op.verb == DIBS__RELEASE && op->fence.v != 0)
    end = give(s, op, done);
  if (!*done) return end;
  op->op.status = DIBS_OK;
  op->waiting = false;
  return end;
}

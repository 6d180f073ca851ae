/* SPDX-License-Identifier: MIT */
/* Records, which check fences and versions, and the anchor, which keeps epochs. */
#include "sql/sql.h"

#include <stdlib.h>
#include <string.h>

typedef enum dibs__sql_step step;
typedef struct dibs__sql_record record;

/* Something is there: neither never saved nor removed. */
static bool stands(const record *r) {
  return (int64_t)r->version > 0;
}

/* How many versions the key has had. */
static uint64_t counted(const record *r) {
  return (int64_t)r->version < 0 ? 0 - r->version : r->version;
}

static void hand_out(struct dibs__record_op *op, const record *r) {
  op->seen = (dibs__fence){r->fence};
  op->version = stands(r) ? r->version : 0;
  op->op.status = DIBS_OK;
  if (op->version == 0) return;
  op->got = malloc((size_t)r->len + 1);
  if (!op->got) {
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  if (r->len) memcpy(op->got, r->data, r->len);
  op->got[r->len] = '\0';
  op->got_len = r->len;
}

static step seal(struct dibs__sql *s, struct dibs__record_op *op, record *r) {
  bool same = r->fence == op->fence.v;
  r->fence = op->fence.v;
  r->digest = dibs__id_digest(op->id);
  hand_out(op, r); /* before `data` goes away */
  if (op->op.status != DIBS_OK || same) return DIBS__SQL_FINE;
  return s->rows->record_put(s->to, op->key, r, false);
}

static step write(struct dibs__sql *s, struct dibs__record_op *op, record *r) {
  bool drops = op->op.verb == DIBS__RECORD_DROP;
  if (dibs__record_guards(op) & DIBS__IF_FENCE) {
    r->fence = op->fence.v;
    r->digest = dibs__id_digest(op->id);
  }
  r->version = drops ? 0 - counted(r) : counted(r) + 1;
  r->data = drops ? "" : op->data.p;
  r->len = drops ? 0 : op->data.len;
  op->seen = (dibs__fence){r->fence};
  op->version = drops ? 0 : r->version;
  op->op.status = DIBS_OK;
  return s->rows->record_put(s->to, op->key, r, true);
}

step dibs__sql_record(struct dibs__sql *s, struct dibs__record_op *op) {
  record r;
  bool found;
  if (!dibs__record_valid(op)) return DIBS__SQL_FINE;
  step st = s->rows->record_load(s->to, op->key, &r, &found);
  if (st != DIBS__SQL_FINE) return st;
  if (!found) r = (record){0};
  if (op->op.verb == DIBS__RECORD_LOAD) {
    op->op.status = DIBS_NOT_FOUND;
    if (found && (int64_t)r.version >= 0) hand_out(op, &r);
    return DIBS__SQL_FINE;
  }
  if (!dibs__record_admits(op, (dibs__fence){r.fence}, r.digest, stands(&r) ? r.version : 0)) return DIBS__SQL_FINE;
  return op->op.verb == DIBS__RECORD_SEAL ? seal(s, op, &r) : write(s, op, &r);
}

step dibs__sql_anchor(struct dibs__sql *s, struct dibs__anchor_op *op) {
  struct dibs__sql_bucket *row;
  if (op->op.bucket >= DIBS__BUCKETS || op->op.verb > DIBS__ANCHOR_NEXT) {
    op->op.status = DIBS_INVALID;
    return DIBS__SQL_FINE;
  }
  step st = s->rows->bucket_get(s->to, op->op.bucket, &row);
  if (st != DIBS__SQL_FINE) return st;
  op->op.status = DIBS_OK;
  if (op->op.verb == DIBS__ANCHOR_NEXT) {
    if (!dibs__mandate_equal(&op->op.mandate, &row->mandate))
      op->op.status = DIBS_CONFLICT;
    else if (!dibs__sql_next_epoch(row))
      op->op.status = DIBS_UNAVAILABLE;
    else
      st = s->rows->bucket_put(s->to, op->op.bucket);
  }
  op->stands = row->mandate;
  return st;
}

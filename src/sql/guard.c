/* SPDX-License-Identifier: MIT */
/* Records, which check fences, and the anchor, which keeps epochs. */
#include "sql/sql.h"

#include <stdlib.h>
#include <string.h>

typedef enum dibs__sql_step step;
typedef struct dibs__sql_record record;

static void hand_out(struct dibs__record_op *op, const record *r) {
  op->seen = (dibs__fence){r->fence};
  op->version = r->version;
  op->op.status = DIBS_OK;
  if (r->version == 0) return;
  op->got = malloc((size_t)r->len + 1);
  if (!op->got) {
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  if (r->len) memcpy(op->got, r->data, r->len);
  op->got[r->len] = '\0';
  op->got_len = r->len;
}

static bool valid(const struct dibs__record_op *op) {
  if (op->op.verb > DIBS__RECORD_SAVE || op->key.len < 1 || op->key.len > DIBS_NAME_MAX) return false;
  if (op->op.verb == DIBS__RECORD_LOAD) return true;
  return op->fence.v > 0 && (op->op.verb != DIBS__RECORD_SAVE || op->data.len <= DIBS_RECORD_MAX);
}

static step seal(struct dibs__sql *s, struct dibs__record_op *op, record *r, uint64_t digest) {
  bool same = r->fence == op->fence.v;
  r->fence = op->fence.v;
  r->digest = digest;
  hand_out(op, r); /* before `data` goes away */
  if (op->op.status != DIBS_OK || same) return DIBS__SQL_FINE;
  return s->rows->record_put(s->to, op->key, r, false);
}

static step save(struct dibs__sql *s, struct dibs__record_op *op, record *r, uint64_t digest) {
  r->fence = op->fence.v;
  r->digest = digest;
  r->version++;
  r->data = op->data.p;
  r->len = op->data.len;
  op->seen = op->fence;
  op->version = r->version;
  op->op.status = DIBS_OK;
  return s->rows->record_put(s->to, op->key, r, true);
}

step dibs__sql_record(struct dibs__sql *s, struct dibs__record_op *op) {
  record r;
  bool found;
  op->got = NULL;
  op->got_len = 0;
  op->version = 0;
  op->seen = DIBS__FENCE_NONE;
  if (!valid(op)) {
    op->op.status = DIBS_INVALID;
    return DIBS__SQL_FINE;
  }
  step st = s->rows->record_load(s->to, op->key, &r, &found);
  if (st != DIBS__SQL_FINE) return st;
  if (!found) r = (record){0};
  if (op->op.verb == DIBS__RECORD_LOAD) {
    op->op.status = DIBS_NOT_FOUND;
    if (found) hand_out(op, &r);
    return DIBS__SQL_FINE;
  }
  uint64_t digest = dibs__id_digest(op->id);
  if (found && (op->fence.v < r.fence || (op->fence.v == r.fence && digest != r.digest))) {
    op->seen = (dibs__fence){r.fence};
    op->op.status = DIBS_STALE;
    return DIBS__SQL_FINE;
  }
  return op->op.verb == DIBS__RECORD_SEAL ? seal(s, op, &r, digest) : save(s, op, &r, digest);
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

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

/* ---- The anchor: epochs ---- */

bool dibs__sql_stands(bool as_tier, const struct dibs__sql_bucket *row, struct dibs__op *op) {
  op->status = DIBS__MOVED;
  op->has = row->mandate;
  if (row->served == dibs__sql_answers(as_tier)) return dibs__mandate_equal(&op->mandate, &row->mandate);
  if (!as_tier) {
    op->status = DIBS_DENIED;
    op->has = (dibs__mandate){0};
  } else if (row->served == DIBS__SQL_OWN) {
    op->has.epoch = 0;
  }
  return false;
}

bool dibs__sql_used_up(const struct dibs__sql_bucket *row, struct dibs__lease_op *op) {
  bool draws = op->op.verb == DIBS__ACQUIRE && op->mode == DIBS_EXCLUSIVE;
  uint32_t want = op->op.verb <= DIBS__RENEW ? op->want_block : 0;
  if (want > DIBS__BLOCK_MAX) want = DIBS__BLOCK_MAX;
  if (draws && want == 0) want = 1;
  if (row->served == DIBS__SQL_OWN || want <= DIBS__SEQ_MAX - row->seq) return false;
  op->op.status = DIBS__MOVED;
  op->op.has = row->mandate;
  return true;
}

void dibs__sql_say_served(const char *store, struct dibs__said *said) {
  dibs__say(said,
            "names of %s are served under an anchor's mandates; open it with all its tiers, as in"
            " --store redis://...,mysql://...",
            store);
}

static dibs__status next(struct dibs__sql_bucket *row, const dibs__mandate *from) {
  if (row->served != DIBS__SQL_OWN || !dibs__mandate_equal(from, &row->mandate)) return DIBS_CONFLICT;
  return dibs__sql_next_epoch(row) ? DIBS_OK : DIBS_UNAVAILABLE;
}

static dibs__status install(struct dibs__sql_bucket *row, const dibs__mandate *what) {
  bool here = memcmp(what->life.b, row->mandate.life.b, sizeof what->life.b) == 0;
  if (what->epoch > DIBS__EPOCH_MAX) return DIBS_INVALID;
  if (!here || what->epoch <= row->mandate.epoch) return DIBS_CONFLICT;
  row->mandate.epoch = what->epoch;
  row->seq = 0;
  row->served = DIBS__SQL_SERVED;
  return DIBS_OK;
}

static dibs__status alone(struct dibs__sql_bucket *row) {
  if (row->served == DIBS__SQL_OWN) return DIBS_OK;
  if (row->mandate.epoch >= DIBS__EPOCH_MAX) return DIBS_UNAVAILABLE;
  row->served = DIBS__SQL_OWN;
  return dibs__sql_next_epoch(row) ? DIBS_OK : DIBS_UNAVAILABLE;
}

static dibs__status change(struct dibs__sql_bucket *row, const struct dibs__anchor_op *op) {
  switch ((enum dibs__anchor_verb)op->op.verb) {
  case DIBS__ANCHOR_NEXT:
    return next(row, &op->op.mandate);
  case DIBS__ANCHOR_INSTALL:
    return install(row, &op->op.mandate);
  case DIBS__ANCHOR_ALONE:
    return alone(row);
  default:
    return DIBS_OK;
  }
}

step dibs__sql_anchor(struct dibs__sql *s, struct dibs__anchor_op *op) {
  struct dibs__sql_bucket *row;
  if (op->op.bucket >= DIBS__BUCKETS || op->op.verb > DIBS__ANCHOR_ALONE) {
    op->op.status = DIBS_INVALID;
    return DIBS__SQL_FINE;
  }
  step st = s->rows->bucket_get(s->to, op->op.bucket, &row);
  if (st != DIBS__SQL_FINE) return st;
  struct dibs__sql_bucket was = *row;
  op->op.status = change(row, op);
  if (row->mandate.epoch != was.mandate.epoch) st = s->rows->bucket_put(s->to, op->op.bucket);
  if (row->served != was.served && st == DIBS__SQL_FINE) st = s->rows->bucket_serve(s->to, op->op.bucket);
  op->stands = row->mandate;
  op->served = row->served != DIBS__SQL_OWN;
  return st;
}

/* SPDX-License-Identifier: MIT */
/* A batch: leases, in stretches in which no name occurs twice; then the others. */
#include "drivers/zk/zk_impl.h"

typedef struct dibs__zk store_t;

struct batch {
  store_t *store;
  struct dibs__result *result;
  dibs__tick by;
  int64_t now;
  size_t count;
  struct dibs__lease_op *stretch[DIBS__ZK_BATCH];
};

static bool lease_valid(const struct dibs__lease_op *op) {
  if (op->op.bucket >= DIBS__BUCKETS || op->name.len < 1 || op->name.len > DIBS_NAME_MAX) return false;
  if (op->op.verb > DIBS__BREAK || op->owner.len > DIBS_OWNER_MAX) return false;
  if ((op->op.verb == DIBS__ACQUIRE || op->op.verb == DIBS__RENEW) && op->ttl_ms == 0) return false;
  if (op->op.verb != DIBS__ACQUIRE) return true;
  return op->mode == DIBS_EXCLUSIVE || op->mode == DIBS_SHARED ||
         (op->mode == DIBS_COUNTED && op->slots >= 1 && op->slots <= DIBS_SLOTS_MAX);
}

/* Clears the answers; false: the operation is answered. */
static bool begin_lease(const struct batch *b, struct dibs__lease_op *op) {
  op->waiting = false;
  op->got_block = op->slot = op->was = 0;
  op->until = op->recheck = (dibs__when){0};
  op->tier = NULL;
  op->op.at.ms = b->now;
  if (!lease_valid(op)) {
    op->op.status = DIBS_INVALID;
  } else if (!dibs__mandate_equal(&op->op.mandate, &b->store->mandate)) {
    op->op.status = DIBS__MOVED;
    op->op.has = b->store->mandate;
  } else {
    return true;
  }
  return false;
}

static void answer_anchor(const struct batch *b, struct dibs__anchor_op *op) {
  op->current = b->store->mandate;
  op->served = op->left = op->used = false;
  op->last = DIBS__FENCE_NONE;
  op->op.status = op->op.bucket >= DIBS__BUCKETS     ? DIBS_INVALID
                  : op->op.verb == DIBS__ANCHOR_READ ? DIBS_OK
                                                     : DIBS_UNSUPPORTED;
}

static bool named_before(const struct batch *b, dibs__str name) {
  for (size_t i = 0; i < b->count; i++)
    if (dibs__str_equal(b->stretch[i]->name, name)) return true;
  return false;
}

static void run_stretch(struct batch *b) {
  if (b->count) dibs__zk_leases(b->store, b->stretch, b->count, b->now, b->by, b->result);
  b->count = 0;
}

static void run_leases(struct batch *b, struct dibs__op *const ops[], size_t count) {
  for (size_t i = 0; i < count; i++) {
    struct dibs__lease_op *op = (struct dibs__lease_op *)ops[i];
    if (op->op.family != DIBS__FAM_LEASE || op->op.group || !begin_lease(b, op)) continue;
    if (named_before(b, op->name)) run_stretch(b);
    b->stretch[b->count++] = op;
  }
  run_stretch(b);
}

static void run_others(struct batch *b, struct dibs__op *const ops[], size_t count) {
  struct dibs__record_op *records[DIBS__ZK_BATCH];
  size_t record_count = 0;
  for (size_t i = 0; i < count; i++) {
    bool alone = ops[i]->group == 0;
    if (alone && ops[i]->family == DIBS__FAM_LEASE) continue;
    if (alone && ops[i]->family == DIBS__FAM_ANCHOR)
      answer_anchor(b, (struct dibs__anchor_op *)ops[i]);
    else if (alone && ops[i]->family == DIBS__FAM_RECORD)
      records[record_count++] = (struct dibs__record_op *)ops[i];
    else
      ops[i]->status = DIBS_UNSUPPORTED;
  }
  if (record_count) dibs__zk_records(b->store, records, record_count, b->by, b->result);
}

static dibs__status summary(struct dibs__op *const ops[], size_t count) {
  bool all_unavailable = count > 0;
  for (size_t i = 0; i < count; i++) {
    if (ops[i]->status == DIBS_UNKNOWN) return DIBS_UNKNOWN;
    all_unavailable = all_unavailable && ops[i]->status == DIBS_UNAVAILABLE;
  }
  return all_unavailable ? DIBS_UNAVAILABLE : DIBS_OK;
}

dibs__status dibs__zk_run(struct dibs__session *base, struct dibs__op *const ops[], size_t count, dibs__tick by,
                          struct dibs__result *result) {
  store_t *store = (store_t *)base->store;
  dibs__tick sent = dibs__tick_now();
  *result = (struct dibs__result){.sent = sent, .now.ms = sent.ns / DIBS__NS_PER_MS};
  if (dibs__is_engine(ops, count)) {
    struct dibs__findings findings = {0};
    dibs__zk_describe(store, by, &findings);
    return dibs__findings_answer(&findings, ops[0]);
  }
  if (count > DIBS__ZK_BATCH || !dibs__tick_before(sent, by) || !dibs__zk_enter(store, by)) {
    dibs__set_message(result, "the deadline passed before the request to %.200s", store->location.shown);
    return DIBS_UNAVAILABLE;
  }
  dibs__status status = dibs__zk_ready(store, by, result);
  if (status == DIBS_OK) {
    struct batch b = {.store = store, .result = result, .by = by, .now = result->now.ms};
    dibs__zk_sweep(store, by);
    run_leases(&b, ops, count);
    run_others(&b, ops, count);
    status = summary(ops, count);
  } else if (status != DIBS_UNAVAILABLE) {
    for (size_t i = 0; i < count; i++) ops[i]->status = status;
    status = DIBS_OK;
  }
  dibs__zk_leave(store);
  return status;
}

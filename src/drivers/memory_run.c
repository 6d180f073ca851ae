/* SPDX-License-Identifier: MIT */
/* A batch: each operation in its turn, at one instant, under the lock; groups as one. */
#include "drivers/memory_parts.h"

#include <stdlib.h>
#include <string.h>

static dibs__status next(struct dibs__mem_bucket *bucket, const dibs__mandate *from) {
  if (bucket->served != DIBS__MEM_OWN || !dibs__mandate_equal(from, &bucket->mandate)) return DIBS_CONFLICT;
  return dibs__mem_next_epoch(bucket) ? DIBS_OK : DIBS_UNAVAILABLE;
}

static dibs__status install(struct dibs__mem_bucket *bucket, const dibs__mandate *what) {
  bool here = memcmp(what->life.b, bucket->mandate.life.b, sizeof what->life.b) == 0;
  if (what->epoch > DIBS__EPOCH_MAX) return DIBS_INVALID;
  if (!here || what->epoch <= bucket->mandate.epoch) return DIBS_CONFLICT;
  *bucket = (struct dibs__mem_bucket){.mandate = *what, .served = DIBS__MEM_SERVED};
  return DIBS_OK;
}

static dibs__status alone(struct dibs__mem_bucket *bucket) {
  if (bucket->served == DIBS__MEM_OWN) return DIBS_OK;
  if (bucket->mandate.epoch >= DIBS__EPOCH_MAX) return DIBS_UNAVAILABLE;
  bucket->served = DIBS__MEM_OWN;
  return dibs__mem_next_epoch(bucket) ? DIBS_OK : DIBS_UNAVAILABLE;
}

static void anchor(struct dibs__memory *m, struct dibs__anchor_op *op) {
  if (op->op.bucket >= DIBS__BUCKETS || op->op.verb > DIBS__ANCHOR_ALONE) {
    op->op.status = DIBS_INVALID;
    return;
  }
  struct dibs__mem_bucket *bucket = &m->buckets[op->op.bucket];
  op->op.status = DIBS_OK;
  if (op->op.verb == DIBS__ANCHOR_NEXT) op->op.status = next(bucket, &op->op.mandate);
  if (op->op.verb == DIBS__ANCHOR_INSTALL) op->op.status = install(bucket, &op->op.mandate);
  if (op->op.verb == DIBS__ANCHOR_ALONE) op->op.status = alone(bucket);
  op->stands = bucket->mandate;
  op->served = bucket->served != DIBS__MEM_OWN;
}

/* MOVED did nothing: when an epoch may turn out to be used up, what time did to the name meanwhile is undone as well.
 */
static void lease(struct dibs__memory *m, const struct dibs__mem_open *from, struct dibs__lease_op *op, int64_t now) {
  bool near_the_end = op->op.bucket < DIBS__BUCKETS && m->buckets[op->op.bucket].seq > DIBS__SEQ_MAX - DIBS__BLOCK_MAX;
  struct dibs__mem_saved *saved = NULL;
  if (near_the_end && !dibs__mem_save(m, &op->op, &saved)) {
    dibs__mem_forget_saved(&saved);
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  dibs__mem_lease(m, from, op, now);
  if (op->op.status == DIBS__MOVED)
    dibs__mem_restore(m, &saved);
  else
    dibs__mem_forget_saved(&saved);
}

static void run_one(struct dibs__memory *m, const struct dibs__mem_open *from, struct dibs__op *op, int64_t now) {
  switch (op->family) {
  case DIBS__FAM_LEASE:
    lease(m, from, (struct dibs__lease_op *)op, now);
    break;
  case DIBS__FAM_ANCHOR:
    anchor(m, (struct dibs__anchor_op *)op);
    break;
  case DIBS__FAM_RECORD:
    dibs__mem_record(m, (struct dibs__record_op *)op);
    break;
  case DIBS__FAM_ONCE:
    dibs__mem_once(m, (struct dibs__once_op *)op, now);
    break;
  case DIBS__FAM_STOCK:
    dibs__mem_stock(m, (struct dibs__stock_op *)op, now);
    break;
  case DIBS__FAM_REPORT:
    dibs__mem_report(m, (struct dibs__report_op *)op, now);
    break;
  default:
    op->status = DIBS_UNSUPPORTED;
  }
}

/* A group is served where its first element stands.  What an anchor did can't be undone, so none joins a group. */
static void run_group(struct dibs__memory *m, const struct dibs__mem_open *from, struct dibs__op *const ops[],
                      size_t count, int64_t now) {
  struct dibs__mem_saved *saved = NULL;
  uint32_t group = ops[0]->group;
  struct dibs__op *failed = NULL;
  m->hush = true;
  for (size_t i = 0; i < count && !failed; i++) {
    if (ops[i]->group != group) continue;
    if (ops[i]->family != DIBS__FAM_LEASE && ops[i]->family != DIBS__FAM_RECORD)
      ops[i]->status = DIBS_INVALID;
    else if (!dibs__mem_save(m, ops[i], &saved))
      ops[i]->status = DIBS_NO_MEMORY;
    else
      run_one(m, from, ops[i], now);
    if (ops[i]->status != DIBS_OK) failed = ops[i];
  }
  dibs__mem_speak_up(m, !failed);
  if (failed)
    dibs__mem_restore(m, &saved);
  else
    dibs__mem_forget_saved(&saved);
  for (size_t i = 0; i < count && failed; i++) {
    if (ops[i]->group != group || ops[i] == failed) continue;
    if (ops[i]->family == DIBS__FAM_RECORD && ops[i]->status == DIBS_OK) {
      struct dibs__record_op *record = (struct dibs__record_op *)ops[i];
      free(record->got);
      record->got = NULL;
      record->got_len = 0;
    }
    ops[i]->status = DIBS_CONFLICT;
  }
}

static bool first_of_its_group(struct dibs__op *const ops[], size_t at) {
  for (size_t i = 0; i < at; i++)
    if (ops[i]->group == ops[at]->group) return false;
  return true;
}

static void say_served(const struct dibs__memory *m, struct dibs__said *said) {
  dibs__say(said,
            "names of memory:%s are served under an anchor's mandates; open it with all its tiers, as in"
            " --store redis://...,mysql://...",
            m->called ? m->called : "");
}

dibs__status dibs__mem_run(struct dibs__session *session, struct dibs__op *const ops[], size_t count, dibs__tick by,
                           struct dibs__said *said) {
  struct dibs__mem_open *open = dibs__mem_open_of(session->store);
  struct dibs__memory *m = open->memory;
  (void)by; /* nothing here waits for more than the other callers' batches */
  *said = (struct dibs__said){.sent = dibs__tick_now()};
  dibs__mutex_lock(&m->lock);
  int64_t now = dibs__mem_clock(m);
  for (size_t i = 0; i < count; i++) {
    if (!(ops[i]->flags & DIBS__OP_READS)) said->commits = 1;
    if (!ops[i]->group)
      run_one(m, open, ops[i], now);
    else if (first_of_its_group(ops, i))
      run_group(m, open, ops + i, count - i, now);
    if (ops[i]->family == DIBS__FAM_LEASE && ops[i]->status == DIBS_DENIED) say_served(m, said);
  }
  dibs__mutex_unlock(&m->lock);
  said->now = (dibs__when){now};
  return DIBS_OK;
}

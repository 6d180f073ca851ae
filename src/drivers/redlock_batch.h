/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_REDLOCK_BATCH_H
#define DIBS_DRIVERS_REDLOCK_BATCH_H
/* What the files share that carry out a batch: redlock_run.c, redlock_ask.c, redlock_judge.c. */
#include "drivers/redlock_parts.h"

enum dibs__redlock_stage {
  STAGE_DONE,
  STAGE_FIRST,   /* asked in the first round */
  STAGE_SEAL,    /* an acquire that won */
  STAGE_RETURN,  /* one that did not: what it was given is to be given back */
  STAGE_TIDY,    /* one that was granted before: nodes that gave it anew just now are let go */
  STAGE_UNDO,    /* one that won, and could not write back: the same */
  STAGE_RENEWED, /* a renewal that draws, or teaches */
};

struct dibs__redlock_doing {
  struct dibs__lease_op *op;
  enum dibs__redlock_stage stage;
  enum dibs__redlock_verdict verdict;
  struct dibs__redlock_asked asked;
  struct dibs__redlock_votes votes;
  uint64_t fence, hoped;
  uint32_t renewed, behind; /* nodes */
  uint64_t first, granted, block;
  dibs__str owner, pid, since; /* as a node told; good until the next round */
  char told[DIBS_OWNER_MAX + 64];
};

struct dibs__redlock_batch {
  struct dibs__redlock_session *s;
  struct dibs__redlock *store;
  struct dibs__said *said;
  dibs__tick by;
  int64_t now; /* in ms of our boot-time clock */
  struct dibs__redlock_doing *all;
  size_t count;
  bool lacked, doubt, founded;
};

static inline int64_t dibs__redlock_now(void) {
  return dibs__tick_now().ns / DIBS__NS_PER_MS;
}
static inline uint32_t dibs__redlock_all(const struct dibs__redlock_batch *b) {
  return (uint32_t)(UINT64_C(1) << b->store->count) - 1;
}
static inline uint32_t dibs__redlock_wanted(const struct dibs__lease_op *op) {
  if (op->want_block == 0) return 1;
  return op->want_block < DIBS__BLOCK_MAX ? op->want_block : DIBS__BLOCK_MAX;
}
/* Less than that, and not less than 0. */
int64_t dibs__redlock_by_chance(int64_t most);

/* ---- redlock_ask.c: puts on the nodes ---- */
/* What is asked first, of all nodes. */
void dibs__redlock_put_first(struct dibs__redlock_batch *b, struct dibs__redlock_doing *d);
/* `which`: "all", or NULL: the grant with this fence, and what was not granted yet. */
void dibs__redlock_put_drop(struct dibs__redlock_batch *b, struct dibs__redlock_doing *d, uint32_t nodes,
                            const char *which, uint64_t fence);
/* Writes d->fence back.  `renews`: what was granted first stays. */
void dibs__redlock_put_seal(struct dibs__redlock_batch *b, struct dibs__redlock_doing *d, uint32_t nodes, bool renews);
/* Teaches the nodes that are behind. */
void dibs__redlock_put_heal(struct dibs__redlock_batch *b, struct dibs__redlock_doing *d);

/* ---- redlock_judge.c: what the nodes said; the answer, or what is to be done next ---- */
void dibs__redlock_judge_first(struct dibs__redlock_batch *b, struct dibs__redlock_doing *d);
void dibs__redlock_judge_seal(struct dibs__redlock_batch *b, struct dibs__redlock_doing *d);
void dibs__redlock_judge_renewed(struct dibs__redlock_batch *b, struct dibs__redlock_doing *d);
/* UNAVAILABLE: no quorum. */
void dibs__redlock_lack(struct dibs__redlock_batch *b, struct dibs__redlock_doing *d, uint32_t answered);
/* HELD or QUEUED. */
void dibs__redlock_answer_busy(struct dibs__redlock_batch *b, struct dibs__redlock_doing *d);

#endif

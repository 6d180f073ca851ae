/* SPDX-License-Identifier: MIT */
/*
 * A batch of leases.  It is carried out in stretches in which no name comes twice, each of a few rounds with all nodes
 * side by side:
 *
 *   1  every acquire asks for the name, and hopes for a fence: where that is above all that was seen it is written with
 *      the name, and where that is a majority, this is all; renewals, releases, cancels and breaks are done
 *   2  who was given a name by a majority, but not the fence, has the highest that was proposed written back there; who
 *      was not gives back what it was given; a renewal draws its fences, and teaches nodes that did not know of it
 *   3  who could not write back gives back, too
 *
 * A vote that was split is repeated after a while drawn by chance, a few times within the call.  `until` is counted
 * from before the first round.
 */
#include "drivers/redlock_batch.h"

#include <stdlib.h>
#include <string.h>

typedef struct dibs__redlock_session session;
typedef struct dibs__redlock_doing doing;

enum { SPLIT_NAP_MS = 4 };

doing *dibs__redlock_doing_new(void) {
  return calloc(DIBS__REDLOCK_BATCH, sizeof(doing));
}

void dibs__redlock_doing_free(doing *all) {
  free(all);
}

/* ---- A stretch ---- */

/* Where it may have the name under d->fence, or was not granted it yet. */
static uint32_t given(const doing *d) {
  return d->votes.found ? d->votes.took | d->votes.mine : d->votes.took;
}

static bool put_second(struct dibs__redlock_batch *b, doing *d) {
  switch (d->stage) {
  case STAGE_SEAL:
    dibs__redlock_put_seal(b, d, d->votes.took | d->votes.mine, false);
    return true;
  case STAGE_RETURN:
    dibs__redlock_put_drop(b, d, given(d), NULL, d->fence);
    return given(d) != 0;
  case STAGE_TIDY:
    dibs__redlock_put_drop(b, d, d->votes.took, NULL, d->fence);
    return true;
  case STAGE_RENEWED:
    if (d->behind) dibs__redlock_put_heal(b, d);
    if (d->fence) dibs__redlock_put_seal(b, d, d->renewed, true);
    return true;
  case STAGE_DONE:
  case STAGE_FIRST:
  case STAGE_UNDO:
    break;
  }
  return false;
}

static void judge_second(struct dibs__redlock_batch *b, doing *d) {
  if (d->stage == STAGE_SEAL) dibs__redlock_judge_seal(b, d);
  if (d->stage == STAGE_TIDY) d->stage = STAGE_DONE;
  if (d->stage == STAGE_RENEWED) dibs__redlock_judge_renewed(b, d);
}

static void round_first(struct dibs__redlock_batch *b) {
  for (size_t i = 0; i < b->count; i++)
    if (b->all[i].stage == STAGE_FIRST) dibs__redlock_put_first(b, &b->all[i]);
  dibs__redlock_go(b->s, b->by);
  for (size_t i = 0; i < b->count; i++)
    if (b->all[i].stage == STAGE_FIRST) dibs__redlock_judge_first(b, &b->all[i]);
}

static void round_second(struct dibs__redlock_batch *b) {
  bool put = false;
  for (size_t i = 0; i < b->count; i++) put = put_second(b, &b->all[i]) || put;
  if (!put) return;
  dibs__redlock_go(b->s, b->by);
  for (size_t i = 0; i < b->count; i++) judge_second(b, &b->all[i]);
}

/* Of those that could not write back. */
static void round_third(struct dibs__redlock_batch *b) {
  bool put = false;
  for (size_t i = 0; i < b->count; i++) {
    doing *d = &b->all[i];
    if (d->stage != STAGE_UNDO) continue;
    dibs__redlock_put_drop(b, d, d->votes.took | d->votes.mine, NULL, d->fence);
    d->stage = STAGE_RETURN;
    put = true;
  }
  if (put) dibs__redlock_go(b->s, b->by);
}

/* A round that is cut short would cost the links. */
static bool time_left(const struct dibs__redlock_batch *b) {
  return dibs__tick_left_ms(dibs__tick_now(), b->by) > b->store->node_timeout_ms;
}

/* true: some ask again. */
static bool conclude(struct dibs__redlock_batch *b, int64_t round, bool founded) {
  bool again = false;
  for (size_t i = 0; i < b->count; i++) {
    doing *d = &b->all[i];
    if (d->stage != STAGE_RETURN) continue;
    bool retries = (d->verdict == DIBS__REDLOCK_SPLIT && round < b->store->retries) ||
                   (d->verdict == DIBS__REDLOCK_NO_QUORUM && founded);
    if (retries && time_left(b)) {
      d->stage = STAGE_FIRST;
      again = true;
    } else if (d->verdict == DIBS__REDLOCK_NO_QUORUM) {
      dibs__redlock_lack(b, d, d->votes.answered);
    } else {
      dibs__redlock_answer_busy(b, d);
    }
  }
  return again;
}

/* All answered, and none of them counts: this is where it all begins, or they all lost their memory. */
static bool none_counts(const struct dibs__redlock_batch *b) {
  for (size_t i = 0; i < b->count; i++) {
    const doing *d = &b->all[i];
    if (d->stage == STAGE_RETURN && d->verdict == DIBS__REDLOCK_NO_QUORUM &&
        d->votes.answered == dibs__redlock_all(b) && d->votes.counts == 0)
      return true;
  }
  return false;
}

static void nap(struct dibs__redlock_batch *b, int64_t round) {
  int64_t pause = 1 + dibs__redlock_by_chance((int64_t)SPLIT_NAP_MS << (round < 5 ? round : 5));
  int64_t left = dibs__tick_left_ms(dibs__tick_now(), b->by);
  dibs__nap_ms(pause < left ? pause : left);
}

static void run_stretch(struct dibs__redlock_batch *b) {
  for (int64_t round = 0;; round++) {
    dibs__redlock_links(b->s, b->by);
    round_first(b);
    round_second(b);
    round_third(b);
    bool founded = false;
    if (!b->founded && none_counts(b)) founded = b->founded = dibs__redlock_found(b->s, b->by);
    if (!conclude(b, round, founded)) return;
    if (!founded) nap(b, round);
  }
}

/* ---- The driver's call ---- */

static void begin_answer(struct dibs__lease_op *op) {
  op->waiting = false;
  op->got_block = op->slot = op->was = 0;
  op->until = op->recheck = (dibs__when){0};
  op->tier = NULL;
}

static void answer_anchor(const struct dibs__redlock_batch *b, struct dibs__op *op) {
  struct dibs__anchor_op *anchor = (struct dibs__anchor_op *)op;
  anchor->stands = b->store->mandate;
  anchor->served = false;
  op->status = op->bucket >= DIBS__BUCKETS ? DIBS_INVALID : op->verb == DIBS__ANCHOR_READ ? DIBS_OK : DIBS_UNSUPPORTED;
}

static bool well_formed(const struct dibs__lease_op *op) {
  if (op->op.bucket >= DIBS__BUCKETS || op->name.len < 1 || op->name.len > DIBS_NAME_MAX) return false;
  if (op->op.verb > DIBS__BREAK || op->owner.len > DIBS_OWNER_MAX) return false;
  if ((op->op.verb == DIBS__ACQUIRE || op->op.verb == DIBS__RENEW) && op->ttl_ms == 0) return false;
  if (op->op.verb != DIBS__ACQUIRE) return true;
  return op->mode == DIBS_EXCLUSIVE || op->mode == DIBS_SHARED ||
         (op->mode == DIBS_COUNTED && op->slots >= 1 && op->slots <= DIBS_SLOTS_MAX);
}

/* To be asked of the nodes?  Else it is answered. */
static bool admit(struct dibs__redlock_batch *b, struct dibs__op *op) {
  struct dibs__lease_op *lease = (struct dibs__lease_op *)op;
  if (op->family != DIBS__FAM_LEASE || op->group != 0) {
    op->status = DIBS_UNSUPPORTED;
    if (op->family == DIBS__FAM_ANCHOR && op->group == 0) answer_anchor(b, op);
    return false;
  }
  begin_answer(lease);
  bool lasts = op->verb == DIBS__ACQUIRE || op->verb == DIBS__RENEW;
  if (!well_formed(lease)) {
    op->status = DIBS_INVALID;
  } else if (!dibs__mandate_equal(&op->mandate, &b->store->mandate)) {
    op->status = DIBS__MOVED;
    op->has = b->store->mandate;
  } else if (op->verb == DIBS__ACQUIRE && lease->mode != DIBS_EXCLUSIVE) {
    op->status = DIBS_UNSUPPORTED;
    dibs__say(b->said, "a majority grants exclusive leases only; for shared and counted ones take redis://");
  } else if (lasts && (int64_t)lease->ttl_ms > b->store->max_ttl_ms) {
    op->status = DIBS_UNSUPPORTED;
    dibs__say(b->said, "a ttl of %u ms is above max_ttl=%lld of %.120s; ask for less, or raise it for all clients",
              lease->ttl_ms, (long long)b->store->max_ttl_ms, b->store->shown);
  } else {
    return true;
  }
  return false;
}

static bool named_before(const struct dibs__redlock_batch *b, dibs__str name) {
  for (size_t i = 0; i < b->count; i++)
    if (dibs__str_equal(b->all[i].op->name, name)) return true;
  return false;
}

static void run_leases(struct dibs__redlock_batch *b, struct dibs__op *const ops[], size_t count) {
  b->count = 0;
  for (size_t i = 0; i < count; i++) {
    if (!admit(b, ops[i])) continue;
    struct dibs__lease_op *op = (struct dibs__lease_op *)ops[i];
    if (named_before(b, op->name)) {
      run_stretch(b);
      b->count = 0;
    }
    doing *d = &b->all[b->count++];
    d->op = op;
    d->stage = STAGE_FIRST;
    memset(&d->votes, 0, sizeof d->votes);
    b->said->commits = 1;
  }
  if (b->count) run_stretch(b);
}

static dibs__status say_all(const struct dibs__redlock_batch *b, struct dibs__op *const ops[], size_t count) {
  if (b->doubt) return DIBS_UNKNOWN;
  for (size_t i = 0; i < count; i++)
    if (ops[i]->status != DIBS_UNAVAILABLE) return DIBS_OK;
  return b->lacked ? DIBS_UNAVAILABLE : DIBS_OK;
}

dibs__status dibs__redlock_run(struct dibs__session *base, struct dibs__op *const ops[], size_t count, dibs__tick by,
                               struct dibs__said *said) {
  session *s = (session *)base;
  dibs__tick sent = dibs__tick_now();
  *said = (struct dibs__said){.sent = sent, .now.ms = sent.ns / DIBS__NS_PER_MS};
  if (count > DIBS__REDLOCK_BATCH || !dibs__tick_before(sent, by)) {
    dibs__say(said, "%.150s: the deadline had passed before the question", s->store->shown);
    return DIBS_UNAVAILABLE;
  }
  struct dibs__redlock_batch b = {
      .s = s, .store = s->store, .said = said, .by = by, .now = said->now.ms, .all = s->doing};
  run_leases(&b, ops, count);
  return say_all(&b, ops, count);
}

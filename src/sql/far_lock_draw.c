/* SPDX-License-Identifier: MIT */
/*
 * Mandates and fences of session locks.  They are rows like those of other stores, on the session's own connection: one
 * that waits too long for a row does not take locks along.
 *
 * A fence is drawn when the lock is held, so a later holder draws a larger one.  Drawing and asking for the mandate are
 * one step: whoever raises the epoch has either been before, and nothing is drawn, or comes after.
 */
#include "sql/far_lock_parts.h"

typedef enum dibs__sql_step step;
typedef struct dibs__far_session session;
typedef struct dibs__lock_draw draw;

enum { ROUNDS = 8, CLASHES = 16 };

static bool of_bucket(const uint64_t set[2], uint16_t bucket) {
  return set[bucket / 64] >> bucket % 64 & 1;
}

static void set_bucket(uint64_t set[2], uint16_t bucket) {
  set[bucket / 64] |= UINT64_C(1) << bucket % 64;
}

/* Puts the question for the row of each bucket in the set, in their order. */
static step put_buckets(session *s, const uint64_t set[2]) {
  step end = DIBS__SQL_FINE;
  for (uint16_t b = 0; b < DIBS__BUCKETS && end == DIBS__SQL_FINE; b++) {
    struct dibs__sql_value v = dibs__sql_number(b);
    if (of_bucket(set, b)) end = dibs__far_put(s, DIBS__FAR_BUCKET, &v, 1);
  }
  return end;
}

static step check_life(session *s, uint16_t bucket) {
  bool same = memcmp(s->buckets[bucket].mandate.life.b, s->life.b, sizeof s->life.b) == 0;
  return same ? DIBS__SQL_FINE : DIBS__SQL_OTHER;
}

static void check_all(session *s, draw *draws, size_t count) {
  for (size_t i = 0; i < count; i++) {
    struct dibs__op *op = &draws[i].op->op;
    const struct dibs__sql_bucket *row = &s->buckets[op->bucket];
    draws[i].stands = dibs__sql_stands(s->store->as_tier, row, op);
    if (draws[i].stands) op->status = DIBS_UNKNOWN;
  }
}

/* Of buckets that are served for an anchor elsewhere, which make no epoch. */
static void check_left(session *s, draw *draws, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (draws[i].stands && !draws[i].drawn && dibs__sql_used_up(&s->buckets[draws[i].op->op.bucket], draws[i].op))
      draws[i].stands = false;
}

step dibs__lock_mandates(session *s, draw *draws, size_t count) {
  uint64_t set[2] = {0, 0};
  step end = DIBS__SQL_FINE;
  for (size_t i = 0; i < count; i++) set_bucket(set, draws[i].op->op.bucket);
  for (int round = 0; round < ROUNDS; round++) {
    size_t nth = s->wire->put;
    end = put_buckets(s, set);
    if (end == DIBS__SQL_FINE) end = s->wire->engine->go(s->wire, false);
    for (uint16_t b = 0; b < DIBS__BUCKETS && end == DIBS__SQL_FINE; b++) {
      if (!of_bucket(set, b)) continue;
      end = dibs__far_read_bucket(s, nth++, b);
      if (end == DIBS__SQL_FINE) end = check_life(s, b);
    }
    if (end != DIBS__SQL_OTHER) break;
    end = dibs__far_settle_life(s); /* the row's is another: made by who saw it first, or to be made by us */
    if (end != DIBS__SQL_FINE) return end;
  }
  if (end == DIBS__SQL_FINE) check_all(s, draws, count);
  if (end == DIBS__SQL_FINE) check_left(s, draws, count);
  return end;
}

/* ---- Fences ---- */

static uint32_t wanted(const struct dibs__lease_op *op) {
  if (op->want_block == 0) return 1;
  return op->want_block < DIBS__BLOCK_MAX ? op->want_block : DIBS__BLOCK_MAX;
}

/* Raises the last fence drawn by what is wanted of it, if the mandate still stands and the epoch has as many. */
static step put_draw(session *s, uint16_t bucket, uint32_t want) {
  const dibs__mandate *stands = &s->buckets[bucket].mandate;
  struct dibs__sql_value v[] = {dibs__sql_number(bucket), dibs__sql_number(want), dibs__sql_number(stands->epoch),
                                dibs__sql_bytes(stands->life.b, sizeof stands->life.b),
                                dibs__sql_number((int64_t)DIBS__SEQ_MAX - want)};
  step end = dibs__far_put(s, DIBS__FAR_BUCKET_DRAW, v, 5);
  return end == DIBS__SQL_FINE ? dibs__far_put(s, DIBS__FAR_BUCKET, v, 1) : end;
}

static void give(session *s, draw *draws, size_t count, const uint32_t wants[DIBS__BUCKETS], const uint64_t drawn[2]) {
  uint32_t given[DIBS__BUCKETS] = {0};
  check_all(s, draws, count);
  for (size_t i = 0; i < count; i++) {
    struct dibs__lease_op *op = draws[i].op;
    uint16_t b = op->op.bucket;
    draws[i].drawn = draws[i].stands && of_bucket(drawn, b);
    if (!draws[i].drawn) continue;
    uint32_t before = s->buckets[b].seq - wants[b];
    op->fence = dibs__fence_make(s->buckets[b].mandate.epoch, before + given[b] + 1);
    op->got_block = wanted(op);
    given[b] += op->got_block;
  }
}

/* One transaction, in one packet; a bucket at a time, in their order, so that two of us never wait for each other. */
static step attempt(session *s, draw *draws, size_t count) {
  uint32_t wants[DIBS__BUCKETS] = {0};
  uint64_t drawn[2] = {0, 0};
  size_t nth = 1; /* behind BEGIN */
  for (size_t i = 0; i < count; i++) wants[draws[i].op->op.bucket] += wanted(draws[i].op);
  step end = dibs__sql_begin(s->wire);
  for (uint16_t b = 0; b < DIBS__BUCKETS && end == DIBS__SQL_FINE; b++)
    if (wants[b]) end = put_draw(s, b, wants[b]);
  if (end == DIBS__SQL_FINE) end = dibs__sql_commit(s->wire);
  if (end == DIBS__SQL_FINE) end = s->wire->engine->go(s->wire, true);
  for (uint16_t b = 0; b < DIBS__BUCKETS && end == DIBS__SQL_FINE; b++) {
    if (!wants[b]) continue;
    if (s->wire->engine->changed(s->wire, nth)) set_bucket(drawn, b);
    end = dibs__far_read_bucket(s, nth + 1, b);
    nth += 2;
  }
  if (end == DIBS__SQL_FINE) give(s, draws, count, wants, drawn);
  return end;
}

static bool again(session *s, int *clashes) {
  bool passing = s->wire->trouble == DIBS__SQL_DEADLOCK && ++*clashes <= CLASHES;
  return passing && dibs__tick_before(dibs__tick_now(), s->wire->by);
}

/* What stood and was not drawn has an epoch that is used up: the next one is made, unless the bucket is served, and
 * told. */
static step next_epochs(session *s, draw *draws, size_t count, struct dibs__said *said) {
  step end = DIBS__SQL_FINE;
  for (size_t i = 0; i < count && end == DIBS__SQL_FINE; i++) {
    if (!draws[i].stands || draws[i].drawn) continue;
    end = dibs__far_next_epoch(s, draws[i].op->op.bucket);
    said->commits++;
    check_all(s, draws, count);
    check_left(s, draws, count);
  }
  return end;
}

step dibs__lock_draws(session *s, draw *draws, size_t count, struct dibs__said *said) {
  int clashes = 0;
  for (;;) {
    step end = attempt(s, draws, count);
    said->commits += end == DIBS__SQL_FINE;
    if (end == DIBS__SQL_FINE) return next_epochs(s, draws, count, said);
    if (dibs__sql_dead(s->wire)) return end;
    dibs__sql_rollback(s->wire);
    if (dibs__sql_dead(s->wire) || !again(s, &clashes)) return end;
  }
}

/* SPDX-License-Identifier: MIT */
/*
 * A batch: one place in the writer queue, one transaction.
 *
 *   queue -> BEGIN IMMEDIATE -> clock -> each operation -> COMMIT -> marks, hints -> leave the queue
 *
 * Hints ring after the queue was left, so that the woken do not run into it.  When an operation finds its bucket's
 * epoch used up, or the file replaced, the whole transaction is undone, the new epoch is committed by itself (and
 * pressed to disk: no fence of it may be given out before), and the batch begins again: what was asked under the old
 * mandate is then answered MOVED.
 */
#include "drivers/sqlite_parts.h"
#include "sql/batch.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef enum dibs__sql_step step;
typedef struct dibs__lite_link link_t;

/* Each round makes an epoch; more than one bucket of a batch being spent at once is possible, hardly more than a few.
 */
enum { ROUNDS = DIBS__BUCKETS + 2 };

struct batch {
  link_t *l;
  struct dibs__op *const *ops;
  size_t count;
  int64_t now;
};

/* ---- What src/sql asks of us ---- */

static bool alive(void *to, uint64_t session) {
  const link_t *l = to;
  return dibs__side_alive(l->store->side, session);
}

static void post_event(link_t *l, uint64_t session, const struct dibs__event *event) {
  struct dibs__lite_hint hint = {.session = session, .event = *event};
  if (l->hint_count >= DIBS__LITE_HINTS_PLAIN) {
    for (size_t i = 0; i < l->hint_count; i++) {
      if (l->hints[i].session != session) continue;
      l->hints[i].event = (struct dibs__event){.what = DIBS__EV_RECHECK};
      return;
    }
  }
  if (l->hint_count < DIBS__LITE_HINTS) l->hints[l->hint_count++] = hint;
}

static void post(void *to, uint64_t session, enum dibs__event_what what, dibs__id id) {
  post_event(to, session, &(struct dibs__event){.what = what, .id = id});
}

/* Every process that has the file open reads the same clock: the end of the offer needs no translation but a test's. */
static void offer(void *to, uint64_t session, dibs__id id, uint64_t fence, int64_t until) {
  link_t *l = to;
  struct dibs__event event = {.what = DIBS__EV_OFFER, .id = id, .fence = {fence}};
  event.held_until.ns = (until - atomic_load(&l->store->skew_ms)) * DIBS__NS_PER_MS;
  post_event(l, session, &event);
}

struct dibs__sql dibs__lite_sql(link_t *l, int64_t now) {
  return (struct dibs__sql){.rows = &dibs__lite_rows,
                            .to = l,
                            .now = now,
                            .session = dibs__side_session(l->store->side),
                            .as_tier = l->store->as_tier,
                            .alive = alive,
                            .post = post,
                            .offer = offer};
}

/* ---- One operation, one group ---- */

static step decide(struct dibs__sql *s, struct dibs__lease_op *op) {
  step end = dibs__sql_lease(s, op);
  if (op->op.bucket >= DIBS__BUCKETS) return end;
  uint64_t *half = &((link_t *)s->to)->crowded[op->op.bucket / 64], bit = UINT64_C(1) << op->op.bucket % 64;
  *half = op->waiting ? *half | bit : *half & ~bit;
  return end;
}

static step run_one(struct dibs__sql *s, struct dibs__op *op) {
  bool done = false;
  step end = DIBS__SQL_FINE;
  switch (op->family) {
  case DIBS__FAM_LEASE:
    end = dibs__lite_fast(s, (struct dibs__lease_op *)op, &done);
    return end == DIBS__SQL_FINE && !done ? decide(s, (struct dibs__lease_op *)op) : end;
  case DIBS__FAM_ANCHOR:
    return dibs__sql_anchor(s, (struct dibs__anchor_op *)op);
  case DIBS__FAM_RECORD:
    return dibs__sql_record(s, (struct dibs__record_op *)op);
  default:
    op->status = DIBS_UNSUPPORTED;
    return end;
  }
}

/* A group is served where its first element stands.  An anchor's epochs are not undone, so it joins none. */
static step run_group(struct dibs__sql *s, struct dibs__op *const ops[], size_t count) {
  link_t *l = s->to;
  uint32_t group = ops[0]->group;
  struct dibs__op *failed = NULL;
  size_t hints = l->hint_count;
  step end = dibs__lite_plain(l, DIBS__LITE_SAVE);
  for (size_t i = 0; i < count && !failed && end == DIBS__SQL_FINE; i++) {
    if (ops[i]->group != group) continue;
    if (dibs__sql_joins_groups(ops[i]))
      end = run_one(s, ops[i]);
    else
      ops[i]->status = DIBS_INVALID;
    if (ops[i]->status != DIBS_OK) failed = ops[i];
  }
  if (end != DIBS__SQL_FINE) return end;
  if (failed) {
    sqlite3_reset(l->statements[DIBS__LITE_RECORD]);
    end = dibs__lite_plain(l, DIBS__LITE_SAVE_UNDO); /* fences that were drawn stay drawn, in the link */
    l->hint_count = hints;
  }
  if (end == DIBS__SQL_FINE) end = dibs__lite_plain(l, DIBS__LITE_SAVE_END);
  for (size_t i = 0; i < count && failed; i++)
    if (ops[i]->group == group && ops[i] != failed) dibs__sql_unanswer(ops[i], DIBS_CONFLICT);
  return end;
}

static step run_all(struct batch *b, struct dibs__sql *s) {
  for (size_t i = 0; i < b->count; i++) {
    step end = DIBS__SQL_FINE;
    if (!b->ops[i]->group)
      end = run_one(s, b->ops[i]);
    else if (dibs__sql_first_of_group(b->ops, i))
      end = run_group(s, b->ops + i, b->count - i);
    if (end == DIBS__SQL_FINE) continue;
    if (end == DIBS__SQL_SPENT) b->l->spent = b->ops[i]->bucket;
    return end;
  }
  return DIBS__SQL_FINE;
}

static void begin_again(struct batch *b) {
  for (size_t i = 0; i < b->count; i++) dibs__sql_unanswer(b->ops[i], DIBS_UNKNOWN);
}

/* ---- The transaction ---- */

/* New epochs and written records are pressed to disk. */
static bool presses(const struct batch *b) {
  for (size_t i = 0; i < b->count; i++) {
    const struct dibs__op *op = b->ops[i];
    if (op->family == DIBS__FAM_ANCHOR && op->verb != DIBS__ANCHOR_READ) return true;
    if (op->family == DIBS__FAM_RECORD && op->verb >= DIBS__RECORD_SAVE) return true;
  }
  return false;
}

static void tell(link_t *l, const uint64_t changed[2]) {
  struct dibs__side *side = l->store->side;
  dibs__when now = {dibs__tick_now().ns / DIBS__NS_PER_MS}; /* whatever tests do to this open's clock */
  for (uint16_t half = 0; half < 2; half++) {
    for (uint64_t left = changed[half]; left; left &= left - 1) {
      uint16_t bucket = (uint16_t)(half * 64 + __builtin_ctzll(left));
      const struct dibs__sql_bucket *row = &l->buckets[bucket];
      dibs__side_mark(side, bucket, dibs__fence_make(row->mandate.epoch, row->seq), now);
    }
  }
  for (size_t i = 0; i < l->hint_count; i++) dibs__side_post(side, l->hints[i].session, &l->hints[i].event);
  l->hint_count = 0;
}

/* One try.  FINE: committed. */
static step attempt(struct batch *b, struct dibs__said *said, bool *unsure) {
  link_t *l = b->l;
  step end = dibs__lite_begin(l);
  if (end != DIBS__SQL_FINE) return end;
  b->now = dibs__lite_clock(l->store);
  int before = sqlite3_total_changes(l->db);
  struct dibs__sql s = dibs__lite_sql(l, b->now);
  end = run_all(b, &s);
  if (end != DIBS__SQL_FINE) return end;
  uint64_t changed[2] = {l->changed[0], l->changed[1]};
  end = dibs__lite_commit(l, unsure);
  if (end != DIBS__SQL_FINE) return end;
  if (sqlite3_total_changes(l->db) != before) said->commits++;
  if (s.denied) dibs__sql_say_served(l->store->path, said);
  tell(l, changed);
  return end;
}

/* What stood in the way of a try, put right in a transaction of its own. */
static step make_way(link_t *l, step why) {
  step end = why;
  if (end == DIBS__SQL_SPENT) end = dibs__lite_next_epoch(l, l->spent);
  if (end == DIBS__SQL_OTHER) {
    dibs__lite_rollback(l);
    end = dibs__lite_new_life(l);
    struct dibs__event event = {.what = DIBS__EV_NEW_LIFE};
    if (end == DIBS__SQL_FINE) dibs__side_post(l->store->side, dibs__side_session(l->store->side), &event);
  }
  if (end != DIBS__SQL_FINE) dibs__lite_rollback(l);
  return end;
}

static step transact(struct batch *b, struct dibs__said *said, bool *unsure) {
  link_t *l = b->l;
  bool full = presses(b);
  step end = full ? dibs__lite_full(l, true) : DIBS__SQL_FINE;
  for (int round = 0; end == DIBS__SQL_FINE; round++) {
    end = attempt(b, said, unsure);
    if (end == DIBS__SQL_FINE) break;
    dibs__lite_rollback(l);
    if (end == DIBS__SQL_BROKE) break;
    begin_again(b);
    full = true;
    end = round < ROUNDS ? make_way(l, end) : dibs__lite_broke(l, SQLITE_INTERNAL);
    if (end == DIBS__SQL_FINE) said->commits++;
  }
  if (full) (void)dibs__lite_full(l, false);
  return end;
}

static dibs__status failed(struct batch *b, bool unsure, struct dibs__said *said) {
  link_t *l = b->l;
  dibs__status status = dibs__lite_excuse(l, "write to", said);
  int kind = l->failed & 0xff;
  said->dead = (kind != SQLITE_BUSY && kind != SQLITE_FULL && kind != SQLITE_NOMEM) || dibs__lite_stuck(l);
  if (unsure) status = DIBS_UNKNOWN;
  for (size_t i = 0; i < b->count; i++) dibs__sql_unanswer(b->ops[i], unsure ? DIBS_UNKNOWN : DIBS_UNAVAILABLE);
  return status;
}

/* ---- Reading alone ---- */

static step read_all(struct batch *b) {
  link_t *l = b->l;
  bool unsure;
  step end = dibs__lite_plain(l, DIBS__LITE_BEGIN_READ);
  if (end != DIBS__SQL_FINE) return end;
  memset(l->known, 0, sizeof l->known);
  b->now = dibs__lite_clock(l->store);
  struct dibs__sql s = dibs__lite_sql(l, b->now);
  end = run_all(b, &s);
  memset(l->known, 0, sizeof l->known);
  if (end == DIBS__SQL_FINE) end = dibs__lite_commit(l, &unsure);
  if (end != DIBS__SQL_FINE) dibs__lite_rollback(l);
  return end;
}

static bool only_reads(struct dibs__op *const ops[], size_t count) {
  for (size_t i = 0; i < count; i++) {
    bool reads = (ops[i]->family == DIBS__FAM_RECORD && ops[i]->verb == DIBS__RECORD_LOAD) ||
                 (ops[i]->family == DIBS__FAM_ANCHOR && ops[i]->verb == DIBS__ANCHOR_READ);
    if (!reads) return false;
  }
  return true;
}

/* ---- The driver's call ---- */

static dibs__status run_writes(struct batch *b, dibs__tick by, struct dibs__said *said) {
  struct dibs__lite *store = b->l->store;
  bool unsure = false;
  if (!dibs__side_write_begin(store->side, by)) {
    begin_again(b);
    for (size_t i = 0; i < b->count; i++) b->ops[i]->status = DIBS_UNAVAILABLE;
    dibs__say(said, "%s: other writers were before us until the deadline", store->path);
    return DIBS_UNAVAILABLE;
  }
  step end = transact(b, said, &unsure);
  dibs__side_write_end(store->side);
  said->now.ms = b->now;
  said->untidy = atomic_load(&store->log_pages) >= DIBS__LITE_LOG_PAGES;
  return end == DIBS__SQL_FINE ? DIBS_OK : failed(b, unsure, said);
}

static dibs__status run_rows(link_t *l, struct dibs__op *const ops[], size_t count, dibs__tick by,
                             struct dibs__said *said) {
  struct batch b = {l, ops, count, 0};
  if (!only_reads(ops, count)) return run_writes(&b, by, said);
  step end = read_all(&b);
  said->now.ms = b.now;
  if (end == DIBS__SQL_FINE) return DIBS_OK;
  if (end == DIBS__SQL_BROKE) return failed(&b, false, said);
  begin_again(&b);
  return run_writes(&b, by, said); /* it is not the memory it was: that needs writing */
}

/* Both kinds: rows first.  What was done stays done, so a failure of the second is told one by one. */
static dibs__status run_both(link_t *l, struct dibs__op *const ops[], size_t count, struct dibs__op **room,
                             dibs__tick by, struct dibs__said *said) {
  size_t plain = 0, guarded = 0;
  for (size_t i = 0; i < count; i++)
    if (!dibs__lite_guards(ops[i])) room[plain++] = ops[i];
  for (size_t i = 0; i < count; i++)
    if (dibs__lite_guards(ops[i])) room[plain + guarded++] = ops[i];
  struct dibs__op **mine = room + plain;
  dibs__status status = run_rows(l, room, plain, by, said);
  for (size_t i = 0; i < guarded && status == DIBS_UNKNOWN; i++) mine[i]->status = DIBS_UNAVAILABLE;
  if (status != DIBS_OK) return status;
  status = dibs__lite_run_guarded(l, mine, guarded, by, said);
  if (status == DIBS_OK) return status;
  for (size_t i = 0; i < guarded && status != DIBS_UNKNOWN; i++) mine[i]->status = status;
  return DIBS_UNKNOWN;
}

dibs__status dibs__lite_run(struct dibs__session *session, struct dibs__op *const ops[], size_t count, dibs__tick by,
                            struct dibs__said *said) {
  link_t *l = ((struct dibs__lite_session *)session)->link;
  *said = (struct dibs__said){.sent = dibs__tick_now()};
  l->by = by;
  size_t guarded = 0;
  for (size_t i = 0; i < count; i++) {
    guarded += dibs__lite_guards(ops[i]);
    if (ops[i]->family == DIBS__FAM_RECORD) ((struct dibs__record_op *)ops[i])->got = NULL;
  }
  if (l->inside) return dibs__lite_run_inside(l, ops, count, said);
  if (guarded == 0) return run_rows(l, ops, count, by, said);
  said->now.ms = dibs__lite_clock(l->store);
  if (guarded == count) return dibs__lite_run_guarded(l, ops, count, by, said);
  struct dibs__op **room = malloc(count * sizeof(struct dibs__op *));
  if (!room) {
    dibs__say(said, "no memory to write to %s", l->store->path);
    return DIBS_NO_MEMORY;
  }
  dibs__status status = run_both(l, ops, count, room, by, said);
  free(room);
  return status;
}

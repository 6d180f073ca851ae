/* SPDX-License-Identifier: MIT */
/*
 * A batch of session locks; their mandates and fences.
 *
 * A batch runs in stretches in which no name occurs twice:
 *
 *   the mandates, on the session's connection
 *   -> decided from the holds here ->  locks acquired and released, on the links that have them, a packet each
 *   -> the waiters, each on a connection of its own
 *   -> fences, each on the connection that has the lock: while it is drawn the lock is certainly held
 *
 * Other operations of the batch are run.c's of src/drivers/server.
 *
 * Mandates and fences are rows like those of other stores, on the session's own connection: a wait for a row that
 * takes too long costs no locks.  A fence is drawn while the lock is held, so a later holder draws a larger one.
 * Drawing and checking the mandate are one step: a client that raises the epoch comes either before it, and nothing
 * is drawn, or after it.
 */
#include "drivers/session_lock/session_lock_impl.h"

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__server_session session;
typedef struct dibs__lock_draw draw;

enum { ROUNDS = 8, CLASHES = 16 };

static bool of_bucket(const uint64_t set[2], uint16_t bucket) {
  return set[bucket / 64] >> bucket % 64 & 1;
}

static void set_bucket(uint64_t set[2], uint16_t bucket) {
  set[bucket / 64] |= UINT64_C(1) << bucket % 64;
}

/* Queues the query for the row of each bucket in the set, in their order. */
static sql_rc put_buckets(session *s, const uint64_t set[2]) {
  sql_rc end = DIBS__SQL_OK;
  for (uint16_t b = 0; b < DIBS__BUCKETS && end == DIBS__SQL_OK; b++) {
    struct dibs__sql_value v = dibs__sql_number(b);
    if (of_bucket(set, b)) end = dibs__rows_put(&s->rows, DIBS__SERVER_BUCKET, &v, 1);
  }
  return end;
}

static sql_rc check_incarnation(session *s, uint16_t bucket) {
  bool same = memcmp(s->buckets[bucket].mandate.incarnation.b, s->incarnation.b, sizeof s->incarnation.b) == 0;
  return same ? DIBS__SQL_OK : DIBS__SQL_OTHER;
}

/* `holds`: the lock is held, a fence is to be drawn. */
static void check_all(session *s, draw *draws, size_t count, bool holds) {
  for (size_t i = 0; i < count; i++) {
    struct dibs__op *op = &draws[i].op->op;
    const struct dibs__sql_bucket *row = &s->buckets[op->bucket];
    draws[i].valid = dibs__sql_stands(s->store->opened, row, op);
    /* R46: its lock is released, and stays free. */
    if (draws[i].valid && holds && row->served == DIBS__SQL_LEFT && op->verb == DIBS__ACQUIRE) {
      draws[i].valid = false;
      op->status = s->store->opened.as_tier ? DIBS__MOVED : DIBS_DENIED;
    }
    if (draws[i].valid) op->status = DIBS_UNKNOWN;
  }
}

/* Of buckets that are served for an anchor elsewhere, which make no epoch. */
static void check_left(session *s, draw *draws, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (draws[i].valid && !draws[i].drawn && dibs__sql_used_up(&s->buckets[draws[i].op->op.bucket], draws[i].op))
      draws[i].valid = false;
}

/* Finds the operations whose mandate is their bucket's; the others answer MOVED. */
static sql_rc lock_mandates(session *s, draw *draws, size_t count) {
  uint64_t set[2] = {0, 0};
  sql_rc end = DIBS__SQL_OK;
  for (size_t i = 0; i < count; i++) set_bucket(set, draws[i].op->op.bucket);
  for (int round = 0; round < ROUNDS; round++) {
    size_t nth = s->rows.wire->put;
    end = put_buckets(s, set);
    if (end == DIBS__SQL_OK) end = s->rows.wire->engine->go(s->rows.wire, false);
    for (uint16_t b = 0; b < DIBS__BUCKETS && end == DIBS__SQL_OK; b++) {
      if (!of_bucket(set, b)) continue;
      end = dibs__server_read_bucket(s, nth++, b);
      if (end == DIBS__SQL_OK) end = check_incarnation(s, b);
    }
    if (end != DIBS__SQL_OTHER) break;
    end = dibs__server_settle_incarnation(
        s); /* another incarnation's row: a client that saw the new one first made it, or we must */
    if (end != DIBS__SQL_OK) return end;
  }
  if (end == DIBS__SQL_OK) check_all(s, draws, count, false);
  if (end == DIBS__SQL_OK) check_left(s, draws, count);
  return end;
}

/* ---- Fences ---- */

/* Adds what is wanted to the last fence drawn, if the mandate is still valid and the epoch has as many. */
static sql_rc put_draw(session *s, uint16_t bucket, uint32_t want) {
  const dibs__mandate *mandate = &s->buckets[bucket].mandate;
  struct dibs__sql_value v[] = {dibs__sql_number(bucket), dibs__sql_number(want), dibs__sql_number(mandate->epoch),
                                dibs__sql_bytes(mandate->incarnation.b, sizeof mandate->incarnation.b)};
  sql_rc end = dibs__rows_put(&s->rows, DIBS__SERVER_BUCKET_DRAW, v, 4);
  return end == DIBS__SQL_OK ? dibs__rows_put(&s->rows, DIBS__SERVER_BUCKET, v, 1) : end;
}

static void assign_fences(session *s, draw *draws, size_t count, const uint32_t wants[DIBS__BUCKETS],
                          const uint64_t drawn[2]) {
  uint32_t given[DIBS__BUCKETS] = {0};
  check_all(s, draws, count, true);
  for (size_t i = 0; i < count; i++) {
    struct dibs__lease_op *op = draws[i].op;
    uint16_t b = op->op.bucket;
    draws[i].drawn = draws[i].valid && of_bucket(drawn, b);
    if (!draws[i].drawn) continue;
    op->fence.v = dibs__sql_last(&s->buckets[b]).v - wants[b] + given[b] + 1;
    op->got_block = dibs__sql_wanted_fences(op);
    given[b] += op->got_block;
  }
}

/* One transaction, in one packet; bucket by bucket in their order, so that two clients never deadlock. */
static sql_rc try_draw(session *s, draw *draws, size_t count) {
  uint32_t wants[DIBS__BUCKETS] = {0};
  uint64_t drawn[2] = {0, 0};
  size_t nth = 1; /* after BEGIN */
  for (size_t i = 0; i < count; i++) wants[draws[i].op->op.bucket] += dibs__sql_wanted_fences(draws[i].op);
  sql_rc end = dibs__sql_begin(s->rows.wire);
  for (uint16_t b = 0; b < DIBS__BUCKETS && end == DIBS__SQL_OK; b++)
    if (wants[b]) end = put_draw(s, b, wants[b]);
  if (end == DIBS__SQL_OK) end = dibs__sql_commit(s->rows.wire);
  if (end == DIBS__SQL_OK) end = s->rows.wire->engine->go(s->rows.wire, true);
  for (uint16_t b = 0; b < DIBS__BUCKETS && end == DIBS__SQL_OK; b++) {
    if (!wants[b]) continue;
    if (s->rows.wire->engine->changed(s->rows.wire, nth)) set_bucket(drawn, b);
    end = dibs__server_read_bucket(s, nth + 1, b);
    nth += 2;
  }
  if (end == DIBS__SQL_OK) assign_fences(s, draws, count, wants, drawn);
  return end;
}

static bool retry_after_clash(session *s, int *clashes) {
  bool passing = s->rows.wire->trouble == DIBS__SQL_DEADLOCK && ++*clashes <= CLASHES;
  return passing && dibs__tick_before(dibs__tick_now(), s->rows.wire->by);
}

/* A valid mandate without a fence has a used-up epoch: the next one is begun, unless the bucket is served for an
 * anchor, which is an answer. */
static sql_rc next_epochs(session *s, draw *draws, size_t count, struct dibs__result *result) {
  sql_rc end = DIBS__SQL_OK;
  for (size_t i = 0; i < count && end == DIBS__SQL_OK; i++) {
    if (!draws[i].valid || draws[i].drawn) continue;
    end = dibs__server_next_epoch(s, draws[i].op->op.bucket);
    result->commits++;
    check_all(s, draws, count, true);
    check_left(s, draws, count);
  }
  return end;
}

/* Draws a fence for each (into the operation, `drawn`) whose mandate is still valid, in one transaction.  The others
 * answer MOVED.  After lock_mandates. */
static sql_rc lock_draws(session *s, draw *draws, size_t count, struct dibs__result *result) {
  int clashes = 0;
  for (;;) {
    sql_rc end = try_draw(s, draws, count);
    result->commits += end == DIBS__SQL_OK;
    if (end == DIBS__SQL_OK) return next_epochs(s, draws, count, result);
    if (dibs__sql_dead(s->rows.wire)) return end;
    dibs__sql_rollback(s->rows.wire);
    if (dibs__sql_dead(s->rows.wire) || !retry_after_clash(s, &clashes)) return end;
  }
}

/* ---- A batch ---- */

typedef struct dibs__session_locks locks_t;
typedef struct dibs__hold hold;
typedef struct dibs__link link_t;

enum act { ACT_DONE, ACT_TAKE, ACT_QUEUE, ACT_CONFIRM, ACT_RENEW, ACT_DROP, ACT_LEAVE, ACT_BREAK };

struct dibs__lock_doing {
  struct dibs__lease_op *op;
  hold *hold;
  link_t *link;
  size_t nth;
  enum act act;
};
typedef struct dibs__lock_doing doing;

struct stretch {
  session *s;
  struct dibs__server *store;
  locks_t *locks;
  struct dibs__result *result;
  dibs__tick by;
  int64_t now;
  doing *all;
  size_t count;
};

/* ---- Answers ---- */

static void answer_hold(struct dibs__lease_op *op, const hold *h) {
  op->fence.v = h->first;
  op->got_block = h->block;
  op->slot = 0;
  op->until.ms = h->until;
  op->op.status = DIBS_OK;
}

static void answer_busy(struct dibs__lease_op *op, dibs__status status, uint64_t ticket, int64_t recheck) {
  op->ticket = ticket;
  op->recheck.ms = recheck;
  op->fence = DIBS__FENCE_NONE;
  op->op.status = status;
}

static bool is_its_fence(const hold *h, dibs__fence fence) {
  if (h->mode != DIBS_EXCLUSIVE) return fence.v == 0;
  return fence.v >= h->granted && fence.v < h->first + h->block;
}

/* The answer of an operation that was not done because a link failed. */
static void answer_link_failure(struct stretch *b, const link_t *link, struct dibs__lease_op *op) {
  bool dead = b->result->dead;
  op->op.status = dibs__sql_explain(link->wire, "lock in", b->store->shown, b->result);
  if (op->op.status == DIBS_UNKNOWN) op->op.status = DIBS_UNAVAILABLE; /* a failed lock request leaves nothing */
  b->result->dead = dead;                                              /* the session has another connection now */
}

/* ---- Deciding (`lock` is held) ---- */

static void request_link(doing *d, link_t *link) {
  d->link = link;
  link->requested = true;
}

static void decide_new_locked(struct stretch *b, doing *d) {
  struct dibs__lease_op *op = d->op;
  struct dibs__lock_ours ours = dibs__lock_ours_locked(b->locks, op->name);
  bool shared = op->mode == DIBS_SHARED, taken = ours.exclusive || (!shared && ours.shared);
  if (taken && !op->queue) {
    answer_busy(op, DIBS_HELD, op->ticket, ours.until);
    return;
  }
  d->hold = dibs__hold_new(b->locks, op);
  op->op.status = DIBS_NO_MEMORY;
  if (!d->hold) return;
  d->act = ACT_QUEUE;
  if (taken) return;
  link_t *base = &b->locks->base;
  const char *text = shared ? b->locks->how->take_shared : b->locks->how->take;
  d->act = ACT_TAKE;
  d->nth = base->wire->put;
  if (base->wire->engine->put(base->wire, text, &d->hold->key.value, 1) != DIBS__SQL_OK)
    dibs__link_gone_locked(b->locks, base);
  request_link(d, base);
}

static void decide_acquire_locked(struct stretch *b, doing *d, dibs__status base) {
  hold *h = dibs__hold_find_locked(b->locks, d->op->name, d->op->id);
  if (h && h->state == DIBS__HOLD_WAITS) dibs__link_look_locked(b->locks, h->link);
  if (h && h->state == DIBS__HOLD_GONE) {
    dibs__hold_drop_locked(b->locks, h);
    h = NULL;
  }
  if (!h && base != DIBS_OK)
    d->op->op.status = base;
  else if (!h)
    decide_new_locked(b, d);
  else if (h->state == DIBS__HOLD_WAITS)
    answer_busy(d->op, DIBS__QUEUED, h->ticket, dibs__lock_ours_locked(b->locks, d->op->name).until);
  else if (h->state == DIBS__HOLD_OFFERED)
    *d = (doing){.op = d->op, .hold = h, .link = h->link, .act = ACT_CONFIRM};
  else if (h->broken)
    d->op->op.status = DIBS_LOST;
  else
    answer_hold(d->op, h);
}

/* A renewal needs to know that its connection answers, and that its server has not become a replica. */
static void decide_renew_locked(struct stretch *b, doing *d) {
  hold *h = dibs__hold_find_locked(b->locks, d->op->name, d->op->id);
  d->op->op.status = DIBS_LOST;
  if (!h || h->state != DIBS__HOLD_HOLDS || h->broken) return;
  if (d->op->fence.v != 0 && !is_its_fence(h, d->op->fence)) return; /* fence 0: by the id alone (R39) */
  link_t *link = h->link;
  if (!link->pinged) {
    link->ping = link->wire->put;
    link->pinged = true;
    if (link->wire->engine->put(link->wire, b->locks->how->ping, NULL, 0) != DIBS__SQL_OK)
      dibs__link_gone_locked(b->locks, link);
  }
  d->act = ACT_RENEW;
  d->nth = link->ping;
  d->hold = h;
  request_link(d, link);
}

static void drop_locked(struct stretch *b, doing *d, hold *h) {
  d->act = ACT_DROP;
  d->hold = h;
  d->link = h->link;
  d->nth = h->link->wire->put;
  dibs__link_put_drop(b->locks, h);
}

static void decide_release_locked(struct stretch *b, doing *d) {
  hold *h = dibs__hold_find_locked(b->locks, d->op->name, d->op->id);
  d->op->op.status = DIBS_LOST;
  if (h && h->state == DIBS__HOLD_HOLDS && is_its_fence(h, d->op->fence)) drop_locked(b, d, h);
}

static void decide_cancel_locked(struct stretch *b, doing *d) {
  hold *h = dibs__hold_find_locked(b->locks, d->op->name, d->op->id);
  if (h && h->state == DIBS__HOLD_WAITS) dibs__link_look_locked(b->locks, h->link);
  d->op->op.status = DIBS_NOT_FOUND;
  if (!h || (d->op->only_waits && h->state == DIBS__HOLD_HOLDS)) return; /* R84 */
  if (h->state == DIBS__HOLD_GONE) {
    dibs__hold_drop_locked(b->locks, h);
    return;
  }
  d->op->was = h->state == DIBS__HOLD_HOLDS     ? DIBS__WAS_HELD
               : h->state == DIBS__HOLD_OFFERED ? DIBS__WAS_OFFERED
                                                : DIBS__WAS_WAITING;
  if (h->state == DIBS__HOLD_WAITS)
    *d = (doing){.op = d->op, .hold = h, .act = ACT_LEAVE};
  else
    drop_locked(b, d, h);
}

static void decide_locked(struct stretch *b, doing *d, dibs__status base) {
  d->act = ACT_DONE;
  d->hold = NULL;
  d->link = NULL;
  switch ((enum dibs__lease_verb)d->op->op.verb) {
  case DIBS__ACQUIRE:
    decide_acquire_locked(b, d, base);
    return;
  case DIBS__RENEW:
    decide_renew_locked(b, d);
    return;
  case DIBS__RELEASE:
    decide_release_locked(b, d);
    return;
  case DIBS__CANCEL:
    decide_cancel_locked(b, d);
    return;
  case DIBS__BREAK:
    d->act = ACT_BREAK;
    return;
  }
}

/* ---- The links' answers ---- */

/* OK: the statement was answered, *yes: by 1. */
static bool read_answer(const doing *d, bool *yes) {
  const struct dibs__sql_wire *wire = d->link->wire;
  *yes = false;
  if (d->link->gone || (d->link->failed && d->nth >= wire->failed_at)) return false;
  *yes = wire->engine->rows(wire, d->nth) == 1 && dibs__sql_cell_number(wire, d->nth, 0, 0) == 1;
  return true;
}

static void finish_acquire(struct stretch *b, doing *d) {
  bool got;
  if (!read_answer(d, &got)) {
    answer_link_failure(b, d->link, d->op);
  } else if (got) {
    dibs__mutex_lock(&b->locks->lock);
    bool gone = d->link->gone; /* the listening thread may see it first */
    d->hold->link = gone ? NULL : d->link;
    d->hold->state = gone ? DIBS__HOLD_GONE : DIBS__HOLD_OFFERED;
    d->hold->until = b->now + DIBS__LOCK_OFFER_MS;
    if (!gone) d->link->held++;
    dibs__hold_add_locked(b->locks, d->hold);
    dibs__mutex_unlock(&b->locks->lock);
    return;
  } else if (d->op->queue) {
    d->act = ACT_QUEUE;
    return;
  } else {
    answer_busy(d->op, DIBS_HELD, d->op->ticket, 0);
  }
  free(d->hold);
  d->act = ACT_DONE;
}

/* A lost connection has released the lock, too, but not this operation. */
static void finish_release(struct stretch *b, doing *d) {
  bool done;
  bool result = read_answer(d, &done);
  d->op->op.status = (result && done) || d->op->op.verb == DIBS__CANCEL ? DIBS_OK : DIBS_LOST;
  dibs__mutex_lock(&b->locks->lock);
  dibs__hold_drop_locked(b->locks, d->hold);
  dibs__mutex_unlock(&b->locks->lock);
  d->act = ACT_DONE;
}

static void finish_leave(struct stretch *b, doing *d) {
  dibs__link_leave(b->store, d->hold, b->by);
  dibs__mutex_lock(&b->locks->lock);
  dibs__hold_drop_locked(b->locks, d->hold);
  dibs__mutex_unlock(&b->locks->lock);
  d->op->op.status = DIBS_OK;
  d->act = ACT_DONE;
}

static void finish_queue(struct stretch *b, doing *d) {
  hold *h = d->hold;
  h->ticket = ++b->locks->tickets;
  h->since = b->now;
  d->act = ACT_DONE;
  d->op->op.status = dibs__link_wait(b->store, h, b->by, b->result);
  if (d->op->op.status != DIBS_OK) {
    free(h);
    return;
  }
  dibs__mutex_lock(&b->locks->lock);
  dibs__hold_add_locked(b->locks, h);
  int64_t recheck = dibs__lock_ours_locked(b->locks, d->op->name).until;
  dibs__mutex_unlock(&b->locks->lock);
  answer_busy(d->op, DIBS__QUEUED, h->ticket, recheck);
}

/* ---- Granting ---- */

/* A lock that this batch acquired and can't grant is released; an offer stays one. */
static void undo_acquire(struct stretch *b, doing *d) {
  hold *h = d->hold;
  if (d->act != ACT_TAKE) return;
  dibs__mutex_lock(&b->locks->lock);
  if (h->link) dibs__link_put_drop(b->locks, h);
  dibs__hold_drop_locked(b->locks, h);
  dibs__mutex_unlock(&b->locks->lock);
}

static void answer_granted(struct stretch *b, doing *d) {
  hold *h = d->hold;
  struct dibs__lease_op *op = d->op;
  dibs__mutex_lock(&b->locks->lock);
  bool renewed = d->act == ACT_RENEW;
  if (h->state == DIBS__HOLD_GONE || !h->link) {
    op->op.status = renewed ? DIBS_LOST : DIBS_UNAVAILABLE;
    if (!renewed) dibs__hold_drop_locked(b->locks, h);
    dibs__mutex_unlock(&b->locks->lock);
    return;
  }
  if (!renewed || (h->mode == DIBS_EXCLUSIVE && op->want_block)) {
    h->first = h->mode == DIBS_EXCLUSIVE ? op->fence.v : 0;
    h->block = h->mode == DIBS_EXCLUSIVE ? op->got_block : 0;
  }
  if (!renewed) {
    h->granted = h->first;
    h->since = b->now;
  }
  if (h->tell) b->locks->tells--;
  h->tell = false;
  h->state = DIBS__HOLD_HOLDS;
  h->ttl_ms = op->ttl_ms;
  h->until = b->now + op->ttl_ms;
  if (h->until < b->locks->due) b->locks->due = h->until;
  answer_hold(op, h);
  op->waiting = renewed; /* unknown: so the name is released from time to time */
  dibs__mutex_unlock(&b->locks->lock);
}

static bool draws_fence(const doing *d) {
  if (d->act == ACT_RENEW) return d->hold->mode == DIBS_EXCLUSIVE && d->op->want_block > 0;
  return (d->act == ACT_TAKE || d->act == ACT_CONFIRM) && d->hold->mode == DIBS_EXCLUSIVE;
}

/* Draws the fences of all operations whose lock is on the link, with the session's texts, on the link's connection. */
static void draw_on(struct stretch *b, link_t *link) {
  struct dibs__lock_draw *to = b->locks->draws;
  size_t count = 0;
  for (size_t i = 0; i < b->count; i++)
    if (b->all[i].link == link && draws_fence(&b->all[i])) to[count++] = (struct dibs__lock_draw){.op = b->all[i].op};
  struct dibs__sql_wire *own = b->s->rows.wire;
  sql_rc end = DIBS__SQL_FAILED;
  if (!link->gone) {
    /* It may wait for the bucket's row: the lock must not be lost for that. */
    dibs__tick least = dibs__tick_add_ms(dibs__tick_now(), b->store->options.lock_timeout_ms + DIBS__LOCK_PATIENCE_MS);
    link->wire->by = dibs__tick_before(b->by, least) ? least : b->by;
    b->s->rows.wire = link->wire;
    end = lock_draws(b->s, to, count, b->result);
    b->s->rows.wire = own;
  }
  bool lost = end != DIBS__SQL_OK && dibs__sql_dead(link->wire);
  if (lost) {
    dibs__mutex_lock(&b->locks->lock);
    dibs__link_gone_locked(b->locks, link);
    dibs__mutex_unlock(&b->locks->lock);
  }
  for (size_t i = 0, nth = 0; i < b->count; i++) {
    doing *d = &b->all[i];
    if (d->link != link || !draws_fence(d)) continue;
    if (end != DIBS__SQL_OK) answer_link_failure(b, link, d->op);
    if (end == DIBS__SQL_OK && to[nth].drawn)
      answer_granted(b, d);
    else
      undo_acquire(b, d);
    nth++;
    d->act = ACT_DONE;
  }
  if (lost) b->result->dead = true; /* its server may be a replica now: the session finds the primary, too */
}

static void grant_all(struct stretch *b) {
  for (size_t i = 0; i < b->count; i++) {
    doing *d = &b->all[i];
    bool granted = d->act == ACT_TAKE || d->act == ACT_CONFIRM || d->act == ACT_RENEW;
    if (granted && draws_fence(d)) {
      draw_on(b, d->link);
    } else if (granted) {
      answer_granted(b, d);
      d->act = ACT_DONE;
    }
  }
}

/* ---- A stretch ---- */

/* The operations whose mandate is valid move to the front. */
static void keep_mandates(struct stretch *b) {
  struct dibs__lock_draw *to = b->locks->draws;
  size_t count = 0;
  for (size_t i = 0; i < b->count; i++) to[i] = (struct dibs__lock_draw){.op = b->all[i].op};
  b->s->rows.wire->by = b->by;
  sql_rc end = lock_mandates(b->s, to, b->count);
  for (size_t i = 0; i < b->count && end != DIBS__SQL_OK; i++) {
    dibs__status status = dibs__server_explain(b->s, "read a mandate of", b->result);
    b->all[i].op->op.status = status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
  }
  for (size_t i = 0; i < b->count && end == DIBS__SQL_OK; i++) {
    if (to[i].op->op.status == DIBS_DENIED) dibs__sql_say_served(b->store->shown, "", b->result);
    if (to[i].valid) b->all[count++] = b->all[i];
  }
  b->count = count;
}

static dibs__status base_for(struct stretch *b) {
  for (size_t i = 0; i < b->count; i++)
    if (b->all[i].op->op.verb == DIBS__ACQUIRE) return dibs__link_base(b->store, b->by, b->result);
  return DIBS_OK;
}

/* A server that became read-only in a switchover keeps its connections, and their locks; its successor grants them,
 * too.
 */
static void finish_renewal(struct stretch *b, doing *d) {
  bool serves;
  if (!read_answer(d, &serves) || serves) return;
  dibs__mutex_lock(&b->locks->lock);
  dibs__link_gone_locked(b->locks, d->link);
  dibs__mutex_unlock(&b->locks->lock);
  /* The session only reads mandates: it would stay at that server, while the locks go to the new primary. */
  b->result->dead = true;
  dibs__set_message(b->result, "%s has become read-only", b->store->shown);
  d->op->op.status = DIBS_LOST;
  d->act = ACT_DONE;
}

static void run_stretch(struct stretch *b) {
  keep_mandates(b);
  if (b->count == 0) return;
  dibs__status base = base_for(b);
  dibs__mutex_lock(&b->locks->lock);
  for (size_t i = 0; i < b->count; i++) decide_locked(b, &b->all[i], base);
  dibs__mutex_unlock(&b->locks->lock);
  dibs__link_go(b->locks, b->by);
  for (size_t i = 0; i < b->count; i++) {
    if (b->all[i].act == ACT_RENEW) finish_renewal(b, &b->all[i]);
    if (b->all[i].act == ACT_TAKE) finish_acquire(b, &b->all[i]);
    if (b->all[i].act == ACT_DROP) finish_release(b, &b->all[i]);
  }
  grant_all(b);
  dibs__link_go(b->locks, b->by); /* operations that were undone */
  for (size_t i = 0; i < b->count; i++) {
    doing *d = &b->all[i];
    if (d->act == ACT_LEAVE) finish_leave(b, d);
    if (d->act == ACT_QUEUE) finish_queue(b, d);
    if (d->act == ACT_BREAK) dibs__lock_break(b->s, d->op, b->now, b->by, b->result);
  }
}

static bool lock_op_valid(const locks_t *locks, struct dibs__lease_op *op) {
  if (!dibs__sql_lease_valid(op)) return false;
  if (op->op.verb != DIBS__ACQUIRE || op->mode == DIBS_EXCLUSIVE || (op->mode == DIBS_SHARED && locks->how->shared))
    return true;
  op->op.status = DIBS_UNSUPPORTED;
  return false;
}

static bool named_before(const doing *all, size_t count, dibs__str name) {
  for (size_t i = 0; i < count; i++)
    if (dibs__str_equal(all[i].op->name, name)) return true;
  return false;
}

static void run_leases(struct stretch *b, struct dibs__op *const ops[], size_t count) {
  b->count = 0;
  for (size_t i = 0; i < count; i++) {
    struct dibs__lease_op *op = (struct dibs__lease_op *)ops[i];
    if (!lock_op_valid(b->locks, op)) continue;
    if (named_before(b->all, b->count, op->name)) {
      run_stretch(b);
      b->count = 0;
      b->now = dibs__lock_now();
    }
    op->op.at.ms = b->now;
    b->all[b->count++] = (doing){.op = op};
  }
  if (b->count) run_stretch(b);
}

/* ---- The driver's call ---- */

static bool in_group_with_lease(struct dibs__op *const ops[], size_t count, const struct dibs__op *op) {
  for (size_t i = 0; i < count && op->group; i++)
    if (ops[i]->group == op->group && ops[i]->family == DIBS__FAM_LEASE) return true;
  return false;
}

/* A rollback does not undo a lock, so a lease joins no group. */
static bool refuse_group(struct dibs__op *const ops[], size_t count, struct dibs__op *op) {
  if (!in_group_with_lease(ops, count, op)) return false;
  dibs__sql_unanswer(op, op->family == DIBS__FAM_LEASE ? DIBS_INVALID : DIBS_CONFLICT);
  return true;
}

static dibs__status run_both(struct stretch *b, struct dibs__op *leases[], size_t lease_count,
                             struct dibs__op *others[], size_t other_count) {
  dibs__status status = DIBS_OK;
  if (other_count) status = dibs__server_run(&b->s->base, others, other_count, b->by, b->result);
  if (!lease_count) return status;
  if (b->result->dead || !dibs__tick_before(dibs__tick_now(), b->by)) {
    for (size_t i = 0; i < lease_count; i++) leases[i]->status = DIBS_UNAVAILABLE;
    if (!b->result->text[0])
      dibs__set_message(b->result, "the deadline passed before the request to %s", b->store->shown);
    return DIBS_UNKNOWN;
  }
  dibs__mutex_lock(&b->locks->busy);
  dibs__lock_sweep(b->store, b->by);
  b->now = dibs__lock_now();
  run_leases(b, leases, lease_count);
  dibs__mutex_unlock(&b->locks->busy);
  return b->result->dead ? DIBS_UNKNOWN : status;
}

dibs__status dibs__session_lock_run(struct dibs__session *base, struct dibs__op *const ops[], size_t count,
                                    dibs__tick by, struct dibs__result *result) {
  session *s = (session *)base;
  struct dibs__op *leases[DIBS__SERVER_BATCH], *others[DIBS__SERVER_BATCH];
  size_t lease_count = 0, other_count = 0;
  doing all[DIBS__SERVER_BATCH];
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  if (count > DIBS__SERVER_BATCH) return DIBS_UNAVAILABLE;
  for (size_t i = 0; i < count; i++) dibs__sql_begin_answer(ops[i]);
  s->rows.wire->by = by;
  if (dibs__server_settle_kind(s, ops, count, result) != DIBS__SQL_OK) {
    dibs__status status = dibs__sql_explain(s->rows.wire, "write to", s->store->shown, result);
    for (size_t i = 0; i < count; i++) ops[i]->status = status;
    return DIBS_UNKNOWN;
  }
  dibs__tick sent = dibs__tick_now(); /* as in dibs__server_run */
  for (size_t i = 0; i < count; i++) {
    if (ops[i]->status == DIBS_DENIED || refuse_group(ops, count, ops[i])) continue;
    if (ops[i]->family == DIBS__FAM_LEASE)
      leases[lease_count++] = ops[i];
    else
      others[other_count++] = ops[i];
  }
  struct stretch b = {.s = s, .store = s->store, .locks = s->store->locks, .result = result, .by = by, .all = all};
  b.now = sent.ns / DIBS__NS_PER_MS;
  dibs__status status = run_both(&b, leases, lease_count, others, other_count);
  result->sent = sent;
  result->now.ms = b.now; /* leases expire by our clock, so that is the store's */
  return status;
}

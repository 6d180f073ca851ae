/* SPDX-License-Identifier: MIT */
/*
 * A batch at a server.  Leases, epochs and records of dibs' own are decided on rows in one transaction; what nobody
 * else wants goes by the engine's fast statements; stock, once and tables of the user's own follow, in transactions of
 * their own.
 *
 * A transaction that a deadlock or another writer undid is begun again.  One that met a row locked for long is halved,
 * so that only those answer UNAVAILABLE who asked for it.
 */
#include "sql/far_parts.h"

typedef enum dibs__sql_step step;
typedef struct dibs__far_session session;

enum {
  ROUNDS = DIBS__BUCKETS + 2, /* each may make an epoch */
  CLASHES = 32                /* undone by others, in a row */
};

struct batch {
  session *s;
  struct dibs__op **ops;
  size_t count;
  struct dibs__said *said;
};

/* ---- What src/sql asks of us ---- */

static bool alive(void *to, uint64_t who) {
  session *s = to;
  bool known;
  if (who == s->store->session) return true;
  int64_t where = dibs__far_where(s, who, &known);
  return known && where > 0;
}

static void ring(session *s, uint64_t who, const struct dibs__event *event) {
  if (s->ring_count == s->ring_room) {
    size_t room = s->ring_room ? 2 * s->ring_room : 16;
    struct dibs__far_ring *more = realloc(s->rings, room * sizeof *more);
    if (!more) return; /* it looks by itself within a second */
    s->rings = more;
    s->ring_room = room;
  }
  s->rings[s->ring_count++] = (struct dibs__far_ring){who, *event};
}

static void post(void *to, uint64_t who, enum dibs__event_what what, dibs__id id) {
  ring(to, who, &(struct dibs__event){.what = what, .id = id});
}

/* Its end is in the server's clock, which is not ours: who hears of it counts from when it was told to wait. */
static void offer(void *to, uint64_t who, dibs__id id, uint64_t fence, int64_t until) {
  (void)until;
  ring(to, who, &(struct dibs__event){.what = DIBS__EV_OFFER, .id = id, .fence = {fence}});
}

struct dibs__sql dibs__far_sql(session *s) {
  return (struct dibs__sql){.rows = &dibs__far_rows,
                            .to = s,
                            .now = s->now,
                            .session = s->store->session,
                            .as_tier = s->store->as_tier,
                            .alive = alive,
                            .post = post,
                            .offer = offer};
}

/* ---- Ending a transaction ---- */

static step put_changed_buckets(session *s) {
  step end = DIBS__SQL_FINE;
  for (uint16_t b = 0; b < DIBS__BUCKETS && end == DIBS__SQL_FINE; b++) {
    if (!(s->changed[b / 64] >> b % 64 & 1)) continue;
    struct dibs__sql_value v[] = {dibs__sql_number(b), dibs__sql_number(s->buckets[b].mandate.epoch),
                                  dibs__sql_number(s->buckets[b].seq)};
    end = dibs__far_put(s, DIBS__FAR_BUCKET_SET, v, 3);
  }
  return end;
}

/* Rings for ourselves move to the end, those for the dead go.  How many are to be rung at the server. */
static step sort_rings(session *s, size_t *away, size_t *ours) {
  struct dibs__far_ring swap;
  size_t nth;
  *away = 0;
  *ours = s->ring_count;
  while (*away < *ours) {
    struct dibs__far_ring *r = &s->rings[*away];
    bool known = true;
    if (r->session == s->store->session) {
      swap = s->rings[--*ours];
      s->rings[*ours] = *r;
      *r = swap;
      continue;
    }
    int64_t where = dibs__far_where(s, r->session, &known);
    if (!known) {
      struct dibs__sql_value v = dibs__sql_number((int64_t)r->session);
      step end = dibs__far_ask(s, DIBS__FAR_ALIVE, &v, 1, &nth);
      if (end != DIBS__SQL_FINE) return end;
      where = dibs__sql_cell_number(s->wire, nth, 0, 0);
      dibs__far_know(s, r->session, where);
    }
    if (where > 0) {
      ++*away;
      continue;
    }
    *r = s->rings[--*ours]; /* nobody hears it */
    s->rings[*ours] = s->rings[--s->ring_count];
  }
  return DIBS__SQL_FINE;
}

static step put_rings_after(session *s, size_t away) {
  const struct dibs__far_engine *engine = s->store->engine;
  bool known;
  if (away == 0 || !engine->ring_after) return DIBS__SQL_FINE;
  int64_t *where = malloc(away * sizeof *where);
  if (!where) return DIBS__SQL_FINE; /* they look by themselves */
  for (size_t i = 0; i < away; i++) where[i] = dibs__far_where(s, s->rings[i].session, &known);
  step end = engine->ring_after(s->store, s->wire, s->rings, where, away);
  free(where);
  return end;
}

step dibs__far_commit(session *s) {
  const struct dibs__far_engine *engine = s->store->engine;
  size_t away, ours;
  step end = put_changed_buckets(s);
  if (end == DIBS__SQL_FINE) end = sort_rings(s, &away, &ours);
  if (end == DIBS__SQL_FINE && away && engine->ring_within)
    end = engine->ring_within(s->store, s->wire, s->rings, away);
  if (end == DIBS__SQL_FINE) end = dibs__sql_commit(s->wire);
  if (end == DIBS__SQL_FINE) end = put_rings_after(s, away);
  if (end == DIBS__SQL_FINE) end = s->wire->engine->go(s->wire, true);
  if (end != DIBS__SQL_FINE) return end;
  for (size_t i = ours; i < s->ring_count; i++) dibs__far_tell_us(s->store, &s->rings[i].event);
  s->ring_count = 0;
  return end;
}

/* ---- One operation, one group ---- */

static step run_one(struct dibs__sql *sql, struct dibs__op *op) {
  session *s = sql->to;
  step end = DIBS__SQL_FINE;
  switch (op->family) {
  case DIBS__FAM_LEASE:
    end = dibs__sql_lease(sql, (struct dibs__lease_op *)op);
    if (op->bucket < DIBS__BUCKETS) {
      uint64_t *half = &s->crowded[op->bucket / 64], bit = UINT64_C(1) << op->bucket % 64;
      *half = ((struct dibs__lease_op *)op)->waiting ? *half | bit : *half & ~bit;
    }
    return end;
  case DIBS__FAM_ANCHOR:
    return dibs__sql_anchor(sql, (struct dibs__anchor_op *)op);
  case DIBS__FAM_RECORD:
    return dibs__sql_record(sql, (struct dibs__record_op *)op);
  default:
    op->status = DIBS_UNSUPPORTED;
    return end;
  }
}

/* What was loaded is not what stands after an undo. */
static void forget_loaded(session *s) {
  for (size_t i = 0; i < s->name_count; i++) s->names[i].loaded = false;
  for (size_t i = 0; i < s->record_count; i++) free(s->records[i].data);
  s->record_count = 0;
}

/* A group is served where its first element stands.  An anchor's epochs are not undone, so it joins none. */
static step run_group(struct dibs__sql *sql, struct dibs__op *const ops[], size_t count) {
  session *s = sql->to;
  uint32_t group = ops[0]->group;
  struct dibs__op *failed = NULL;
  size_t rings = s->ring_count;
  const struct dibs__sql_engine *engine = s->wire->engine;
  step end = engine->put(s->wire, "SAVEPOINT dibs_group", NULL, 0);
  for (size_t i = 0; i < count && !failed && end == DIBS__SQL_FINE; i++) {
    if (ops[i]->group != group) continue;
    if (dibs__sql_joins_groups(ops[i]))
      end = run_one(sql, ops[i]);
    else
      ops[i]->status = DIBS_INVALID;
    if (ops[i]->status != DIBS_OK) failed = ops[i];
  }
  if (end != DIBS__SQL_FINE || !failed) return end;
  end = engine->put(s->wire, "ROLLBACK TO SAVEPOINT dibs_group", NULL, 0);
  forget_loaded(s);
  s->ring_count = rings;
  for (size_t i = 0; i < count; i++)
    if (ops[i]->group == group && ops[i] != failed) dibs__sql_unanswer(ops[i], DIBS_CONFLICT);
  return end;
}

static step run_all(struct batch *b, struct dibs__sql *sql) {
  for (size_t i = 0; i < b->count; i++) {
    step end = DIBS__SQL_FINE;
    if (!b->ops[i]->group)
      end = run_one(sql, b->ops[i]);
    else if (dibs__sql_first_of_group(b->ops, i))
      end = run_group(sql, b->ops + i, b->count - i);
    if (end == DIBS__SQL_FINE) continue;
    b->s->spent = b->ops[i]->bucket;
    return end;
  }
  return DIBS__SQL_FINE;
}

/* ---- Transactions on rows ---- */

static void unanswer_all(struct batch *b, dibs__status status) {
  for (size_t i = 0; i < b->count; i++) dibs__sql_unanswer(b->ops[i], status);
}

/* Whoever was only queued, or told that a name is held, has nothing that a crash may not take along: it asks again. */
static bool nothing_to_keep(const struct batch *b) {
  if (b->s->ring_count || b->s->changed[0] || b->s->changed[1]) return false;
  for (size_t i = 0; i < b->count; i++) {
    const struct dibs__op *op = b->ops[i];
    if (op->family != DIBS__FAM_LEASE || op->verb != DIBS__ACQUIRE) return false;
    if (op->status != DIBS__QUEUED && op->status != DIBS_HELD) return false;
  }
  return true;
}

static step attempt(struct batch *b, bool writes) {
  session *s = b->s;
  step end = dibs__far_load(s, b->ops, b->count, writes);
  if (end != DIBS__SQL_FINE) return end;
  struct dibs__sql sql = dibs__far_sql(s);
  end = run_all(b, &sql);
  if (end != DIBS__SQL_FINE || !writes) return end;
  const char *lazy = s->store->engine->lazy;
  if (lazy && !s->wire->inside && nothing_to_keep(b)) end = s->wire->engine->put(s->wire, lazy, NULL, 0);
  if (end == DIBS__SQL_FINE) end = dibs__far_commit(s);
  if (end == DIBS__SQL_FINE && s->wrote) b->said->commits++;
  if (end == DIBS__SQL_FINE && sql.denied) dibs__sql_say_served(s->store->shown, b->said);
  return end;
}

/* Whether another try may go better. */
static bool clash(session *s, int *clashes) {
  bool again = s->wire->trouble == DIBS__SQL_DEADLOCK || s->wire->trouble == DIBS__SQL_TWICE;
  if (!again || ++*clashes > CLASHES || !dibs__tick_before(dibs__tick_now(), s->wire->by)) return false;
  uint8_t draw;
  dibs__random(&draw, sizeof draw);
  if (*clashes > 1) dibs__nap_ms(draw % (2 * *clashes));
  return true;
}

/* What stood in the way of a try, put right. */
static step make_way(struct batch *b, step why, int *clashes) {
  session *s = b->s;
  struct dibs__said ignored;
  if (why == DIBS__SQL_BROKE) {
    if (dibs__sql_dead(s->wire)) return why;
    dibs__sql_rollback(s->wire);
    if (dibs__sql_dead(s->wire)) return why;
    if (s->bell_wanted) {
      if (dibs__far_bell_ensure(s->store, s->wire->by, b->said) == DIBS_OK) return DIBS__SQL_FINE;
      return dibs__sql_broke(s->wire, DIBS__SQL_ODD, b->said->text);
    }
    return clash(s, clashes) ? DIBS__SQL_FINE : why;
  }
  (void)ignored;
  dibs__sql_rollback(s->wire);
  step end = why == DIBS__SQL_SPENT ? dibs__far_next_epoch(s, s->spent) : dibs__far_settle_life(s);
  if (end == DIBS__SQL_FINE) b->said->commits++;
  if (end == DIBS__SQL_FINE && why == DIBS__SQL_OTHER)
    dibs__far_tell_us(s->store, &(struct dibs__event){.what = DIBS__EV_NEW_LIFE});
  if (end != DIBS__SQL_FINE && !dibs__sql_dead(s->wire)) dibs__sql_rollback(s->wire);
  return end;
}

static step transact(struct batch *b, bool writes) {
  int clashes = 0;
  step end = DIBS__SQL_FINE;
  for (int round = 0; end == DIBS__SQL_FINE; round++) {
    end = attempt(b, writes);
    if (end == DIBS__SQL_FINE) return end;
    if (round >= ROUNDS) break;
    end = make_way(b, end, &clashes);
    if (end == DIBS__SQL_FINE) unanswer_all(b, DIBS_UNKNOWN);
  }
  return end == DIBS__SQL_FINE ? dibs__sql_broke(b->s->wire, DIBS__SQL_ODD, "it never came to rest") : end;
}

/* How many of the first operations may be cut off from the rest: no group is cut. */
static size_t half(const struct batch *b) {
  for (size_t cut = b->count / 2; cut < b->count; cut++) {
    bool cuts = false;
    for (size_t i = 0; i < cut && !cuts; i++)
      for (size_t j = cut; j < b->count && !cuts; j++) cuts = b->ops[i]->group && b->ops[i]->group == b->ops[j]->group;
    if (cut > 0 && !cuts) return cut;
  }
  return 0;
}

/* FINE: all are answered. */
static step run_rows(struct batch *b, bool writes) {
  if (b->count == 0) return DIBS__SQL_FINE;
  step end = transact(b, writes);
  if (end == DIBS__SQL_FINE) return end;
  if (b->s->wire->trouble != DIBS__SQL_LOCKED) {
    unanswer_all(b, DIBS_UNKNOWN); /* what was decided was not committed, as far as we know */
    return end;
  }
  size_t cut = half(b);
  if (cut == 0 || !dibs__tick_before(dibs__tick_now(), b->s->wire->by)) {
    (void)dibs__far_excuse(b->s, "change", b->said);
    unanswer_all(b, DIBS_UNAVAILABLE);
    return DIBS__SQL_FINE;
  }
  unanswer_all(b, DIBS_UNKNOWN);
  struct batch first = *b, rest = *b;
  first.count = cut;
  rest.ops += cut;
  rest.count -= cut;
  end = run_rows(&first, writes);
  return end == DIBS__SQL_FINE ? run_rows(&rest, writes) : end;
}

/* ---- The fast way ---- */

static bool may_be_fast(const session *s, struct dibs__op *op) {
  struct dibs__lease_op *lease = (struct dibs__lease_op *)op;
  if (op->family != DIBS__FAM_LEASE || op->group || !dibs__sql_lease_valid(lease)) return false;
  if (s->crowded[op->bucket / 64] >> op->bucket % 64 & 1 || op->mandate.epoch == 0) return false;
  if (memcmp(op->mandate.life.b, s->life.b, sizeof s->life.b) != 0) return false;
  switch (op->verb) {
  case DIBS__ACQUIRE:
    return lease->mode == DIBS_EXCLUSIVE && lease->ticket == 0;
  case DIBS__RENEW:
    return lease->want_block == 0 && lease->fence.v != 0;
  case DIBS__RELEASE:
    return lease->fence.v != 0;
  default:
    return false;
  }
}

static int by_name(const void *a, const void *b) {
  const struct dibs__lease_op *x = *(struct dibs__lease_op *const *)a, *y = *(struct dibs__lease_op *const *)b;
  if (x->op.bucket != y->op.bucket) return x->op.bucket < y->op.bucket ? -1 : 1;
  int order = memcmp(x->name.p, y->name.p, x->name.len < y->name.len ? x->name.len : y->name.len);
  return order ? order : (x->name.len > y->name.len) - (x->name.len < y->name.len);
}

static bool same_name(const struct dibs__lease_op *x, const struct dibs__lease_op *y) {
  return x->op.bucket == y->op.bucket && dibs__str_equal(x->name, y->name);
}

/* The operations for the fast way, in order, or none if two are about one name or one can't go that way: what belongs
 * to one transaction anyway gains nothing from another. */
static size_t fast_ones(const struct batch *b, struct dibs__lease_op **to) {
  size_t count = 0;
  for (size_t i = 0; i < b->count; i++) {
    if (!may_be_fast(b->s, b->ops[i])) return 0;
    to[count++] = (struct dibs__lease_op *)b->ops[i];
  }
  qsort(to, count, sizeof *to, by_name);
  for (size_t i = 1; i < count; i++)
    if (same_name(to[i - 1], to[i])) return 0;
  return count;
}

/* Answers what it can; those that are left are b's from now on. */
static step run_fast(struct batch *b) {
  session *s = b->s;
  struct dibs__lease_op *ops[DIBS__FAR_BATCH];
  if (!s->store->engine->fast || s->wire->inside || b->count > DIBS__FAR_BATCH) return DIBS__SQL_FINE;
  size_t count = fast_ones(b, ops), left = 0;
  if (count == 0) return DIBS__SQL_FINE;
  step end = s->store->engine->fast(s->store, s->wire, s->store->session, ops, count, &s->now);
  if (end != DIBS__SQL_FINE) {
    if (dibs__sql_dead(s->wire)) return end;
    dibs__sql_rollback(s->wire);
    if (dibs__sql_dead(s->wire)) return end;
    unanswer_all(b, DIBS_UNKNOWN);
    return DIBS__SQL_FINE; /* the other way, then */
  }
  for (size_t i = 0; i < b->count; i++)
    if (b->ops[i]->status == DIBS_UNKNOWN) b->ops[left++] = b->ops[i];
  if (left < b->count) b->said->commits++;
  b->count = left;
  return DIBS__SQL_FINE;
}

/* ---- The driver's call ---- */

static bool only_reads(const struct batch *b) {
  for (size_t i = 0; i < b->count; i++) {
    const struct dibs__op *op = b->ops[i];
    bool reads = (op->family == DIBS__FAM_RECORD && op->verb == DIBS__RECORD_LOAD) ||
                 (op->family == DIBS__FAM_ANCHOR && op->verb == DIBS__ANCHOR_READ);
    if (!reads) return false;
  }
  return true;
}

/* What says UNKNOWN after the wire broke was not done, unless that is not known. */
static void settle(session *s, struct dibs__op *const ops[], size_t count) {
  for (size_t i = 0; i < count && !s->wire->unsure; i++)
    if (ops[i]->status == DIBS_UNKNOWN) ops[i]->status = DIBS_UNAVAILABLE;
}

static step run_guarded(session *s, struct dibs__op **ops, size_t count, enum dibs__sql_guarded kind,
                        struct dibs__said *said) {
  struct dibs__sql_guard guard = {.wire = s->wire,
                                  .prefix = s->store->options.prefix,
                                  .store = s->store->shown,
                                  .said = said,
                                  .lazy = s->store->engine->lazy};
  if (count == 0) return DIBS__SQL_FINE;
  step end = dibs__sql_guarded(&guard, kind, ops, count);
  said->commits += guard.commits;
  return end;
}

/* Those of one kind move to the front of what is left, in order; the others stay in order behind them. */
static size_t gather(struct dibs__op **ops, size_t count, enum dibs__sql_guarded kind) {
  size_t found = 0;
  for (size_t i = 0; i < count; i++) {
    struct dibs__op *op = ops[i];
    if (dibs__sql_kind_of(op) != kind) continue;
    memmove(ops + found + 1, ops + found,
            (i - found) * sizeof(struct dibs__op *)); /* nothing, in a batch of one kind */
    ops[found++] = op;
  }
  return found;
}

static step run_kinds(session *s, struct dibs__op **ops, size_t count, struct dibs__said *said) {
  step end = DIBS__SQL_FINE;
  for (enum dibs__sql_guarded kind = DIBS__SQL_ON_ROWS; kind < DIBS__SQL_GUARDED && count && end == DIBS__SQL_FINE;
       kind++) {
    size_t some = gather(ops, count, kind);
    struct batch b = {s, ops, some, said};
    if (kind != DIBS__SQL_ON_ROWS) {
      end = run_guarded(s, ops, some, kind, said);
    } else if (some) {
      bool writes = !only_reads(&b);
      if (writes) end = run_fast(&b);
      if (end == DIBS__SQL_FINE) end = run_rows(&b, writes);
    }
    ops += some;
    count -= some;
  }
  return end;
}

DIBS__MODULE_API dibs__status dibs__far_run(struct dibs__session *base, struct dibs__op *const ops[], size_t count,
                                            dibs__tick by, struct dibs__said *said) {
  session *s = (session *)base;
  struct dibs__op *sorted[DIBS__FAR_BATCH];
  *said = (struct dibs__said){.sent = dibs__tick_now()};
  s->wire->by = by;
  s->wire->unsure = false;
  if (count > DIBS__FAR_BATCH) return DIBS_UNAVAILABLE;
  for (size_t i = 0; i < count; i++) {
    dibs__sql_begin_answer(ops[i]);
    sorted[i] = ops[i];
  }
  step end = run_kinds(s, sorted, count, said);
  said->now.ms = s->now;
  if (end == DIBS__SQL_FINE) {
    said->dead = dibs__sql_dead(s->wire); /* lost behind a COMMIT that was answered */
    return DIBS_OK;
  }
  (void)dibs__far_excuse(s, "write to", said);
  settle(s, ops, count);
  return DIBS_UNKNOWN; /* each says for itself */
}

/* SPDX-License-Identifier: MIT */
/*
 * Runs a batch at a server.  Leases, epochs and dibs' own records are decided on rows in one transaction; uncontended
 * leases use the engine's fast statements; stock, once and the user's own tables follow, in transactions of their
 * own.
 *
 * A transaction that a deadlock or another writer aborted is run again.  If a row is locked for long, the batch is
 * split in halves, so that only the operations on that row answer UNAVAILABLE.
 */
#include "drivers/server/server_impl.h"
#include "store/family.h"

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__server_session session;

enum {
  ROUNDS = DIBS__BUCKETS + 2, /* each may begin an epoch */
  CLASHES = 32                /* aborts by other transactions, in a row */
};

struct batch {
  session *s;
  struct dibs__op **ops;
  size_t count;
  struct dibs__result *result;
};

/* ---- Callbacks of src/sql ---- */

static bool session_alive(void *to, uint64_t who) {
  const session *s = dibs__server_of(to);
  bool known;
  if (who == s->store->session) return true;
  int64_t where = dibs__server_where(s, who, &known);
  return known && where > 0;
}

static void add_notice(session *s, uint64_t who, const struct dibs__event *event) {
  if (s->notice_count == s->notice_capacity) {
    size_t capacity = s->notice_capacity ? 2 * s->notice_capacity : 16;
    struct dibs__server_notice *more = realloc(s->notices, capacity * sizeof *more);
    if (!more) return; /* the waiter polls within a second */
    s->notices = more;
    s->notice_capacity = capacity;
  }
  s->notices[s->notice_count++] = (struct dibs__server_notice){who, *event};
}

static void post_event(void *to, uint64_t who, enum dibs__event_what what, dibs__id id) {
  add_notice(dibs__server_of(to), who, &(struct dibs__event){.what = what, .id = id});
}

/* The offer's end is in the server's clock, not ours: the waiter counts from the moment of the notification. */
static void post_offer(void *to, uint64_t who, dibs__id id, uint64_t fence, int64_t until) {
  (void)until;
  add_notice(dibs__server_of(to), who, &(struct dibs__event){.what = DIBS__EV_OFFER, .id = id, .fence = {fence}});
}

struct dibs__sql dibs__server_sql(session *s) {
  return (struct dibs__sql){.rows = &dibs__server_rows,
                            .to = &s->rows,
                            .now = s->now,
                            .session = s->store->session,
                            .opened = s->store->opened,
                            .clocked = true,
                            .alive = session_alive,
                            .post = post_event,
                            .offer = post_offer};
}

/* ---- Ending a transaction ---- */

static sql_rc put_changed_buckets(session *s) {
  sql_rc end = DIBS__SQL_OK;
  for (uint16_t b = 0; b < DIBS__BUCKETS && end == DIBS__SQL_OK; b++) {
    if (!(s->changed[b / 64] >> b % 64 & 1)) continue;
    end = dibs__server_put_bucket(s, b);
  }
  return end;
}

/* Moves notices for our own sessions to the end, and drops those for dead sessions.  *away: how many the server must
 * send. */
static sql_rc sort_notices(session *s, size_t *away, size_t *ours) {
  struct dibs__server_notice swap;
  size_t nth;
  *away = 0;
  *ours = s->notice_count;
  while (*away < *ours) {
    struct dibs__server_notice *r = &s->notices[*away];
    bool known = true;
    if (r->session == s->store->session) {
      swap = s->notices[--*ours];
      s->notices[*ours] = *r;
      *r = swap;
      continue;
    }
    int64_t where = dibs__server_where(s, r->session, &known);
    if (!known) {
      struct dibs__sql_value v = dibs__sql_number((int64_t)r->session);
      sql_rc end = dibs__rows_request(&s->rows, DIBS__SERVER_ALIVE, &v, 1, &nth);
      if (end != DIBS__SQL_OK) return end;
      where = dibs__sql_cell_number(s->rows.wire, nth, 0, 0);
      dibs__server_know(s, r->session, where);
    }
    if (where > 0) {
      ++*away;
      continue;
    }
    *r = s->notices[--*ours]; /* its session is gone */
    s->notices[*ours] = s->notices[--s->notice_count];
  }
  return DIBS__SQL_OK;
}

static sql_rc put_notices_after(session *s, size_t away) {
  const struct dibs__server_engine *engine = s->store->engine;
  bool known;
  if (away == 0 || !engine->notify_after) return DIBS__SQL_OK;
  int64_t *where = malloc(away * sizeof *where);
  if (!where) return DIBS__SQL_OK; /* they poll by themselves */
  for (size_t i = 0; i < away; i++) where[i] = dibs__server_where(s, s->notices[i].session, &known);
  sql_rc end = engine->notify_after(s->store, s->rows.wire, s->notices, where, away);
  free(where);
  return end;
}

sql_rc dibs__server_commit(session *s) {
  const struct dibs__server_engine *engine = s->store->engine;
  size_t away, ours;
  sql_rc end = put_changed_buckets(s);
  if (end == DIBS__SQL_OK) end = sort_notices(s, &away, &ours);
  if (end == DIBS__SQL_OK && away && engine->notify_within)
    end = engine->notify_within(s->store, s->rows.wire, s->notices, away);
  if (end == DIBS__SQL_OK) end = dibs__sql_commit(s->rows.wire);
  if (end == DIBS__SQL_OK) end = put_notices_after(s, away);
  if (end == DIBS__SQL_OK) end = s->rows.wire->engine->go(s->rows.wire, true);
  if (end != DIBS__SQL_OK) return end;
  for (size_t i = ours; i < s->notice_count; i++) dibs__server_tell_us(s->store, &s->notices[i].event);
  s->notice_count = 0;
  return end;
}

/* ---- One operation, one group ---- */

/* Without a notifier nobody can be queued: a free lease is granted, and a held one is requested again later. */
static sql_rc run_lease(struct dibs__sql *sql, struct dibs__lease_op *op) {
  const session *s = dibs__server_of(sql->to);
  bool deaf = s->deaf && op->op.verb == DIBS__ACQUIRE && op->queue;
  if (deaf) op->queue = false;
  sql_rc end = dibs__sql_lease(sql, op);
  if (!deaf) return end;
  op->queue = true;
  if (op->op.status == DIBS_HELD) op->op.status = DIBS_UNAVAILABLE;
  return end;
}

static sql_rc run_one(struct dibs__sql *sql, struct dibs__op *op) {
  session *s = dibs__server_of(sql->to);
  sql_rc end = DIBS__SQL_OK;
  switch (op->family) {
  case DIBS__FAM_LEASE:
    end = run_lease(sql, (struct dibs__lease_op *)op);
    if (op->bucket < DIBS__BUCKETS) {
      uint64_t *half = &s->has_waiters[op->bucket / 64], bit = UINT64_C(1) << op->bucket % 64;
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

/* After a rollback the loaded rows are no longer valid. */
static void forget_loaded(session *s) {
  for (size_t i = 0; i < s->name_count; i++) s->names[i].loaded = false;
  for (size_t i = 0; i < s->record_count; i++) free(s->records[i].data);
  s->record_count = 0;
}

/* A group runs at the position of its first element.  An anchor's epochs are never undone, so they join no group. */
static sql_rc run_group(struct dibs__sql *sql, struct dibs__op *const ops[], size_t count) {
  session *s = dibs__server_of(sql->to);
  uint32_t group = ops[0]->group;
  struct dibs__op *failed = NULL;
  size_t notices = s->notice_count;
  const struct dibs__sql_engine *engine = s->rows.wire->engine;
  sql_rc end = engine->put(s->rows.wire, "SAVEPOINT dibs_group", NULL, 0);
  for (size_t i = 0; i < count && !failed && end == DIBS__SQL_OK; i++) {
    if (ops[i]->group != group) continue;
    if (dibs__sql_joins_groups(ops[i]))
      end = run_one(sql, ops[i]);
    else
      ops[i]->status = DIBS_INVALID;
    if (ops[i]->status != DIBS_OK) failed = ops[i];
  }
  if (end != DIBS__SQL_OK || !failed) return end;
  end = engine->put(s->rows.wire, "ROLLBACK TO SAVEPOINT dibs_group", NULL, 0);
  forget_loaded(s);
  s->notice_count = notices;
  for (size_t i = 0; i < count; i++)
    if (ops[i]->group == group && ops[i] != failed) dibs__sql_unanswer(ops[i], DIBS_CONFLICT);
  return end;
}

static sql_rc run_all(struct batch *b, struct dibs__sql *sql) {
  for (size_t i = 0; i < b->count; i++) {
    sql_rc end = DIBS__SQL_OK;
    if (!b->ops[i]->group)
      end = run_one(sql, b->ops[i]);
    else if (dibs__sql_first_of_group(b->ops, i))
      end = run_group(sql, b->ops + i, b->count - i);
    if (end == DIBS__SQL_OK) continue;
    b->s->spent = b->ops[i]->bucket;
    return end;
  }
  return DIBS__SQL_OK;
}

/* ---- Transactions on rows ---- */

static void unanswer_all(struct batch *b, dibs__status status) {
  for (size_t i = 0; i < b->count; i++) dibs__sql_unanswer(b->ops[i], status);
}

/* Requests that were only queued, or answered that the name is held, lose nothing in a crash: the client requests
 * again. */
static bool nothing_to_keep(const struct batch *b) {
  if (b->s->notice_count || b->s->changed[0] || b->s->changed[1]) return false;
  for (size_t i = 0; i < b->count; i++) {
    const struct dibs__op *op = b->ops[i];
    if (op->family != DIBS__FAM_LEASE || op->verb != DIBS__ACQUIRE) return false;
    if (op->status != DIBS__QUEUED && op->status != DIBS_HELD) return false;
  }
  return true;
}

static sql_rc try_rows(struct batch *b, bool writes) {
  session *s = b->s;
  sql_rc end = dibs__server_load(s, b->ops, b->count, writes);
  if (end != DIBS__SQL_OK) return end;
  struct dibs__sql sql = dibs__server_sql(s);
  end = run_all(b, &sql);
  if (end != DIBS__SQL_OK || !writes) return end;
  const char *lazy = s->store->engine->lazy;
  if (lazy && !s->rows.wire->inside && nothing_to_keep(b)) end = s->rows.wire->engine->put(s->rows.wire, lazy, NULL, 0);
  if (end == DIBS__SQL_OK) end = dibs__server_commit(s);
  if (end == DIBS__SQL_OK && s->rows.wrote) b->result->commits++;
  if (end == DIBS__SQL_OK && sql.denied) dibs__sql_say_served(s->store->shown, sql.served_by, b->result);
  return end;
}

/* Whether another try may succeed. */
static bool retry_after_clash(session *s, int *clashes) {
  bool again = s->rows.wire->trouble == DIBS__SQL_DEADLOCK || s->rows.wire->trouble == DIBS__SQL_TWICE;
  if (!again || ++*clashes > CLASHES || !dibs__tick_before(dibs__tick_now(), s->rows.wire->by)) return false;
  uint8_t draw;
  dibs__random(&draw, sizeof draw);
  if (*clashes > 1) dibs__nap_ms(draw % (2 * *clashes));
  return true;
}

/* Removes the cause of a failed try. */
static sql_rc handle_failed_try(struct batch *b, sql_rc why, int *clashes) {
  session *s = b->s;
  if (why == DIBS__SQL_FAILED) {
    if (dibs__sql_dead(s->rows.wire)) return why;
    dibs__sql_rollback(s->rows.wire);
    if (dibs__sql_dead(s->rows.wire)) return why;
    if (s->notifier_wanted && !s->deaf) {
      dibs__status notifier = dibs__server_notifier_ensure(s->store, s->rows.wire->by, b->result);
      if (notifier == DIBS_DENIED) return dibs__sql_fail(s->rows.wire, DIBS__SQL_DENIED, b->result->text);
      s->deaf = notifier != DIBS_OK;
      return DIBS__SQL_OK;
    }
    return retry_after_clash(s, clashes) ? DIBS__SQL_OK : why;
  }
  dibs__sql_rollback(s->rows.wire);
  sql_rc end = why == DIBS__SQL_EXHAUSTED ? dibs__server_next_epoch(s, s->spent) : dibs__server_settle_incarnation(s);
  if (end == DIBS__SQL_OK) b->result->commits++;
  if (end == DIBS__SQL_OK && why == DIBS__SQL_OTHER)
    dibs__server_tell_us(s->store, &(struct dibs__event){.what = DIBS__EV_NEW_INCARNATION});
  if (end != DIBS__SQL_OK && !dibs__sql_dead(s->rows.wire)) dibs__sql_rollback(s->rows.wire);
  return end;
}

static sql_rc run_transaction(struct batch *b, bool writes) {
  int clashes = 0;
  sql_rc end = DIBS__SQL_OK;
  for (int round = 0; end == DIBS__SQL_OK; round++) {
    end = try_rows(b, writes);
    if (end == DIBS__SQL_OK) return end;
    if (round >= ROUNDS) break;
    end = handle_failed_try(b, end, &clashes);
    if (end == DIBS__SQL_OK) unanswer_all(b, DIBS_UNKNOWN);
  }
  return end == DIBS__SQL_OK ? dibs__sql_fail(b->s->rows.wire, DIBS__SQL_ODD, "the row changed at every attempt") : end;
}

/* How many of the first operations may be split from the rest: no group is split. */
static size_t split_point(const struct batch *b) {
  for (size_t cut = b->count / 2; cut < b->count; cut++) {
    bool cuts = false;
    for (size_t i = 0; i < cut && !cuts; i++)
      for (size_t j = cut; j < b->count && !cuts; j++) cuts = b->ops[i]->group && b->ops[i]->group == b->ops[j]->group;
    if (cut > 0 && !cuts) return cut;
  }
  return 0;
}

/* OK: all are answered. */
static sql_rc run_rows(struct batch *b, bool writes) {
  if (b->count == 0) return DIBS__SQL_OK;
  sql_rc end = run_transaction(b, writes);
  if (end == DIBS__SQL_OK) return end;
  /* A name may be locked; or the server can't keep it, because of the encoding of its database. */
  bool refused = b->s->rows.wire->trouble == DIBS__SQL_REFUSED;
  if (b->s->rows.wire->trouble != DIBS__SQL_LOCKED && !refused) {
    unanswer_all(b, DIBS_UNKNOWN); /* what was decided was not committed, as far as is known */
    return end;
  }
  size_t cut = split_point(b);
  if (cut == 0 || !dibs__tick_before(dibs__tick_now(), b->s->rows.wire->by)) {
    (void)dibs__server_explain(b->s, "change", b->result);
    unanswer_all(b, refused ? DIBS_UNSUPPORTED : DIBS_UNAVAILABLE);
    return DIBS__SQL_OK;
  }
  unanswer_all(b, DIBS_UNKNOWN);
  struct batch first = *b, rest = *b;
  first.count = cut;
  rest.ops += cut;
  rest.count -= cut;
  end = run_rows(&first, writes);
  return end == DIBS__SQL_OK ? run_rows(&rest, writes) : end;
}

/* ---- Fast statements ---- */

static bool may_be_fast(const session *s, struct dibs__op *op) {
  struct dibs__lease_op *lease = (struct dibs__lease_op *)op;
  if (op->family != DIBS__FAM_LEASE || op->group || !dibs__sql_lease_valid(lease)) return false;
  if (s->has_waiters[op->bucket / 64] >> op->bucket % 64 & 1 || op->mandate.epoch == 0) return false;
  if (memcmp(op->mandate.incarnation.b, s->incarnation.b, sizeof s->incarnation.b) != 0) return false;
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

/* The operations for the fast statements, in order; none if two have the same name or one is not eligible: operations
 * that need one transaction anyway gain nothing from a second one. */
static size_t select_fast(const struct batch *b, struct dibs__lease_op **to) {
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

/* Answers what the fast statements can; the rest stays in b. */
static sql_rc run_fast(struct batch *b) {
  session *s = b->s;
  struct dibs__lease_op *ops[DIBS__SERVER_BATCH];
  if (!s->store->engine->fast || s->rows.wire->inside || b->count > DIBS__SERVER_BATCH) return DIBS__SQL_OK;
  size_t count = select_fast(b, ops), left = 0;
  if (count == 0) return DIBS__SQL_OK;
  sql_rc end = s->store->engine->fast(s->store, s->rows.wire, s->store->session, ops, count, &s->now);
  if (end != DIBS__SQL_OK) {
    if (dibs__sql_dead(s->rows.wire)) return end;
    dibs__sql_rollback(s->rows.wire);
    if (dibs__sql_dead(s->rows.wire)) return end;
    unanswer_all(b, DIBS_UNKNOWN);
    return DIBS__SQL_OK; /* then on rows */
  }
  for (size_t i = 0; i < b->count; i++)
    if (b->ops[i]->status == DIBS_UNKNOWN) b->ops[left++] = b->ops[i];
  if (left < b->count) b->result->commits++;
  b->count = left;
  return DIBS__SQL_OK;
}

/* ---- The driver's call ---- */

static bool only_reads(const struct batch *b) {
  for (size_t i = 0; i < b->count; i++) {
    if (!dibs__op_reads(b->ops[i])) return false;
  }
  return true;
}

/* Operations answered UNKNOWN after a failure were not done, unless `why` leaves that open.  A missing right and
 * damaged rows are answers of a server that is reachable.  true: each has its answer. */
static bool settle_failed(session *s, struct dibs__op *const ops[], size_t count, dibs__status why) {
  bool answer = why == DIBS_DENIED || why == DIBS_CORRUPT || why == DIBS_NO_MEMORY;
  for (size_t i = 0; i < count && !s->rows.wire->unsure; i++)
    if (ops[i]->status == DIBS_UNKNOWN) ops[i]->status = answer ? why : DIBS_UNAVAILABLE;
  return answer;
}

/* A worker that misses it polls.  With session locks a process has no notifier: it learns of its own tasks only. */
static void wake_workers(session *s, struct dibs__op *const ops[], size_t count) {
  const struct dibs__server_engine *engine = s->store->engine;
  if (engine->expect_tasks) dibs__server_tell_us(s->store, &(struct dibs__event){.what = DIBS__EV_TASKS});
  if (dibs__sql_dead(s->rows.wire) || (engine->expect_tasks && s->store->locks)) return;
  sql_rc ignored = engine->notify_tasks(s->store, s->rows.wire, ops, count);
  (void)ignored;
}

/* Workers whose claims found less than they wanted wait for more. */
static void expect_tasks(session *s, struct dibs__op *const ops[], size_t count) {
  const struct dibs__server_engine *engine = s->store->engine;
  bool wake = false;
  if (!engine->expect_tasks || s->store->locks) return;
  for (size_t i = 0; i < count; i++) {
    const struct dibs__task_op *op = (const struct dibs__task_op *)ops[i];
    if (ops[i]->verb == DIBS__TASK_CLAIM && ops[i]->status == DIBS_OK && !op->table && op->got_count < op->most)
      wake = engine->expect_tasks(s->store, op->kind) || wake;
  }
  if (wake && dibs__server_notifier_there(s->store)) dibs__server_wake(&s->store->base);
}

static sql_rc run_guarded(session *s, struct dibs__op **ops, size_t count, enum dibs__sql_guarded kind,
                          struct dibs__result *result) {
  struct dibs__sql_guard guard = {.wire = s->rows.wire,
                                  .prefix = s->store->options.prefix,
                                  .store = s->store->shown,
                                  .result = result,
                                  .lazy = s->store->engine->lazy};
  if (count == 0) return DIBS__SQL_OK;
  sql_rc end = dibs__sql_guarded(&guard, kind, ops, count);
  result->commits += guard.commits;
  if (s->rows.wire->inside) return end;
  if (guard.woke) wake_workers(s, ops, count);
  if (kind == DIBS__SQL_AS_TASK) expect_tasks(s, ops, count);
  return end;
}

/* Moves the operations of one kind to the front of what is left, in order; the others follow in order. */
static size_t move_to_front(struct dibs__op **ops, size_t count, enum dibs__sql_guarded kind) {
  size_t found = 0;
  for (size_t i = 0; i < count; i++) {
    struct dibs__op *op = ops[i];
    if (dibs__sql_kind_of(op) != kind) continue;
    memmove(ops + found + 1, ops + found,
            (i - found) * sizeof(struct dibs__op *)); /* nothing to move, in a batch of one kind */
    ops[found++] = op;
  }
  return found;
}

static sql_rc run_kinds(session *s, struct dibs__op **ops, size_t count, struct dibs__result *result) {
  sql_rc end = DIBS__SQL_OK;
  for (enum dibs__sql_guarded kind = DIBS__SQL_ON_ROWS; kind < DIBS__SQL_GUARDED && count && end == DIBS__SQL_OK;
       kind++) {
    size_t some = move_to_front(ops, count, kind);
    struct batch b = {s, ops, some, result};
    if (kind != DIBS__SQL_ON_ROWS) {
      end = run_guarded(s, ops, some, kind, result);
    } else if (some) {
      bool writes = !only_reads(&b);
      if (writes) end = run_fast(&b);
      if (end == DIBS__SQL_OK) end = run_rows(&b, writes);
    }
    ops += some;
    count -= some;
  }
  return end;
}

/* A lease that may be lost in a failover must have ended when names are granted again. */
static bool outlasts_wait(const session *s, struct dibs__op *op, struct dibs__result *result) {
  int64_t wait = s->store->options.failover_wait_ms;
  const struct dibs__lease_op *lease = (const struct dibs__lease_op *)op;
  bool grants = op->family == DIBS__FAM_LEASE && (op->verb == DIBS__ACQUIRE || op->verb == DIBS__RENEW);
  if (wait == 0 || !grants || lease->ttl_ms <= wait + DIBS__SERVER_COHORT_MS) return false;
  dibs__set_message(result, "a ttl of %lld ms is longer than failover_wait=%lld", (long long)lease->ttl_ms,
                    (long long)wait);
  op->status = DIBS_UNSUPPORTED;
  return true;
}

static dibs__status describe(session *s, struct dibs__op *op, struct dibs__result *result) {
  struct dibs__findings findings = {0};
  s->store->engine->describe(s->store, s->rows.wire, &findings);
  result->dead = dibs__sql_dead(s->rows.wire);
  return dibs__findings_answer(&findings, op);
}

DIBS__MODULE_API dibs__status dibs__server_run(struct dibs__session *base, struct dibs__op *const ops[], size_t count,
                                               dibs__tick by, struct dibs__result *result) {
  session *s = (session *)base;
  struct dibs__op *sorted[DIBS__SERVER_BATCH];
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  s->rows.wire->by = by;
  s->rows.wire->unsure = false;
  s->deaf = false;
  if (count > DIBS__SERVER_BATCH) return DIBS_UNAVAILABLE;
  if (dibs__is_engine(ops, count)) return describe(s, ops[0], result);
  size_t some = 0;
  for (size_t i = 0; i < count; i++) dibs__sql_begin_answer(ops[i]);
  sql_rc end = dibs__server_settle_kind(s, ops, count, result);
  result->sent = dibs__tick_now(); /* what runs once in a schema's lifetime uses none of the lease's time */
  for (size_t i = 0; i < count; i++)
    if (ops[i]->status != DIBS_DENIED && !outlasts_wait(s, ops[i], result)) sorted[some++] = ops[i];
  if (end == DIBS__SQL_OK) end = run_kinds(s, sorted, some, result);
  result->now.ms = s->now;
  if (end == DIBS__SQL_OK) {
    result->dead = dibs__sql_dead(s->rows.wire); /* lost after a COMMIT that was answered */
    return DIBS_OK;
  }
  dibs__status why = dibs__server_explain(s, "write to", result);
  return settle_failed(s, ops, count, why) ? DIBS_OK : DIBS_UNKNOWN; /* each has its own status */
}

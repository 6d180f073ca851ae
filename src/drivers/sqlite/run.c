/* SPDX-License-Identifier: MIT */
/*
 * A batch: one turn in the writer queue, one transaction.
 *
 *   queue -> BEGIN IMMEDIATE -> clock -> each operation -> COMMIT -> marks, hints -> leave the queue
 *
 * Hints are sent after the queue was left, so that the woken processes do not collide with it.  If an operation finds
 * its bucket's epoch used up, or the file replaced, the whole transaction is rolled back, the new epoch is committed
 * by itself (and synced to disk: no fence of it may be granted before), and the batch runs again: operations under
 * the old mandate are then answered MOVED.
 *
 * Fast statements.  The three verbs of an uncontended exclusive lease take a statement or two each.  If they do not
 * match, they change nothing, and src/sql decides on rows.  The counter of the bucket is written once, at the end of
 * the transaction, from its copy in the link.
 *
 * Guarded writes (stock, once, and records in the user's own tables) use the wire.  They begin and commit by
 * themselves, with a turn in the writer queue and their own sync mode.
 *
 * The user's own connection: everything happens in their transaction, which has SQLite's lock already or gets it in
 * its own way; the queue is not used.
 */
#include "store/run.h"
#include "drivers/sqlite/sqlite_impl.h"
#include "sql/wire.h"
#include "store/family.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__sqlite_link link_t;

static sqlite3_stmt *bind_lease(link_t *l, enum dibs__sqlite_text text, const struct dibs__lease_op *op) {
  sqlite3_stmt *st = dibs__sqlite_ready(l, text);
  if (!st) return NULL;
  sqlite3_bind_int64(st, 1, op->op.bucket);
  sqlite3_bind_text(st, 2, op->name.p, (int)op->name.len, SQLITE_STATIC);
  sqlite3_bind_blob(st, 3, op->id.b, sizeof op->id.b, SQLITE_STATIC);
  return st;
}

/* A name without a row is free, and has no waiters. */
static sql_rc acquire_fast(struct dibs__sql *s, struct dibs__sql_bucket *row, struct dibs__lease_op *op, bool *done) {
  link_t *l = s->to;
  struct dibs__sql_bucket drawn = *row;
  uint64_t first;
  uint32_t block;
  sql_rc end = dibs__sql_draw(s, &drawn, op->want_block, &first, &block);
  if (end != DIBS__SQL_OK) return DIBS__SQL_OK; /* the name may be held, and then none is needed */
  sqlite3_stmt *st = bind_lease(l, DIBS__SQLITE_TAKE, op);
  if (!st) return DIBS__SQL_FAILED;
  sqlite3_bind_int64(st, 4, s->now + op->ttl_ms);
  sqlite3_bind_int64(st, 5, (sqlite3_int64)first);
  sqlite3_bind_int64(st, 6, block);
  sqlite3_bind_int64(st, 7, op->ttl_ms);
  sqlite3_bind_int64(st, 8, s->now);
  sqlite3_bind_int64(st, 9, (sqlite3_int64)s->session);
  sqlite3_bind_text(st, 10, op->owner.p ? op->owner.p : "", (int)op->owner.len, SQLITE_STATIC);
  end = dibs__sqlite_do(l, st);
  *done = end == DIBS__SQL_OK && sqlite3_changes(l->db) == 1;
  if (!*done) return end;
  *row = drawn;
  op->fence = (dibs__fence){first};
  op->got_block = block;
  op->slot = 0;
  op->until.ms = s->now + op->ttl_ms;
  return dibs__sqlite_bucket_put(l, op->op.bucket);
}

static sqlite3_stmt *about_grant(struct dibs__sql *s, enum dibs__sqlite_text text, const struct dibs__lease_op *op) {
  sqlite3_stmt *st = bind_lease(s->to, text, op);
  if (!st) return NULL;
  sqlite3_bind_int64(st, 4, s->now);
  sqlite3_bind_int64(st, 5, (sqlite3_int64)op->fence.v);
  return st;
}

static sql_rc renew_fast(struct dibs__sql *s, struct dibs__lease_op *op, bool *done) {
  sqlite3_stmt *st = about_grant(s, DIBS__SQLITE_KEPT, op);
  sql_rc end = dibs__sqlite_row(s->to, st, done);
  if (!*done) return end;
  op->fence = (dibs__fence){(uint64_t)sqlite3_column_int64(st, 0)};
  op->got_block = (uint32_t)sqlite3_column_int64(st, 1);
  op->slot = 0;
  op->until.ms = s->now + op->ttl_ms;
  sqlite3_reset(st);
  st = dibs__sqlite_ready(s->to, DIBS__SQLITE_KEEP);
  if (!st) return DIBS__SQL_FAILED;
  sqlite3_bind_int64(st, 1, op->op.bucket);
  sqlite3_bind_text(st, 2, op->name.p, (int)op->name.len, SQLITE_STATIC);
  sqlite3_bind_int64(st, 3, op->until.ms);
  sqlite3_bind_int64(st, 4, op->ttl_ms);
  sqlite3_bind_int64(st, 5, (sqlite3_int64)s->session);
  return dibs__sqlite_do(s->to, st);
}

static sql_rc release_fast(struct dibs__sql *s, struct dibs__lease_op *op, bool *done) {
  link_t *l = s->to;
  sql_rc end = dibs__sqlite_do(l, about_grant(s, DIBS__SQLITE_GIVE, op));
  *done = end == DIBS__SQL_OK && sqlite3_changes(l->db) == 1;
  return end;
}

/* Answers the operation if one statement can; otherwise *done is false and nothing was changed. */
static sql_rc sqlite_fast(struct dibs__sql *s, struct dibs__lease_op *op, bool *done) {
  struct dibs__sql_bucket *row;
  *done = false;
  if (!dibs__sql_lease_valid(op)) return DIBS__SQL_OK;
  if (((link_t *)s->to)->has_waiters[op->op.bucket / 64] >> op->op.bucket % 64 & 1) return DIBS__SQL_OK;
  sql_rc end = dibs__sqlite_bucket_get(s->to, op->op.bucket, &row);
  if (end != DIBS__SQL_OK || !dibs__sql_answers(s->opened, row->served)) return end;
  if (!dibs__mandate_equal(&op->op.mandate, &row->mandate)) return end;
  if (op->op.verb == DIBS__ACQUIRE && op->mode == DIBS_EXCLUSIVE && op->ticket == 0)
    end = acquire_fast(s, row, op, done);
  else if (op->op.verb == DIBS__RENEW && op->want_block == 0 && op->fence.v != 0)
    end = renew_fast(s, op, done);
  else if (op->op.verb == DIBS__RELEASE && op->fence.v != 0)
    end = release_fast(s, op, done);
  if (!*done) return end;
  op->op.status = DIBS_OK;
  op->op.at.ms = s->now;
  op->waiting = false;
  return end;
}

/* ---- Guarded writes, and the user's own connection ---- */

/* Whether the wire runs it. */
static bool sqlite_guards(const struct dibs__op *op) {
  return dibs__sql_kind_of(op) != DIBS__SQL_ON_ROWS;
}

static sql_rc run_kind(struct dibs__sql_guard *g, enum dibs__sql_guarded kind, struct dibs__op *const ops[],
                       size_t count) {
  size_t some = 0, n = 0;
  for (size_t i = 0; i < count; i++) some += dibs__sql_kind_of(ops[i]) == kind;
  if (some == 0) return DIBS__SQL_OK;
  struct dibs__op **mine = malloc(some * sizeof *mine);
  if (!mine) return dibs__sql_fail(g->wire, DIBS__SQL_NO_SPACE, "out of memory");
  for (size_t i = 0; i < count; i++)
    if (dibs__sql_kind_of(ops[i]) == kind) mine[n++] = ops[i];
  sql_rc end = dibs__sql_guarded(g, kind, mine, n);
  free(mine);
  return end;
}

/* Sets the answers that are missing; gives the status of the whole. */
static dibs__status answer_failed(struct dibs__sql_guard *g, struct dibs__op *const ops[], size_t count) {
  dibs__status status = dibs__sql_explain(g->wire, "write to", g->store, g->result);
  bool some = false;
  for (size_t i = 0; i < count; i++) {
    if (ops[i]->status != DIBS_UNKNOWN)
      some = true;
    else
      ops[i]->status = status;
  }
  return some ? DIBS_UNKNOWN : status;
}

static dibs__status run_on_wire(link_t *l, struct dibs__op *const ops[], size_t count, struct dibs__result *result) {
  struct dibs__sql_guard g = {
      .wire = dibs__sqlite_wire(l), .prefix = "dibs_", .store = l->store->path, .result = result};
  if (!g.wire) return dibs__sqlite_excuse(l, "write to", result);
  sql_rc end = DIBS__SQL_OK;
  for (enum dibs__sql_guarded kind = DIBS__SQL_ON_ROWS + 1; kind < DIBS__SQL_GUARDED && end == DIBS__SQL_OK; kind++)
    end = run_kind(&g, kind, ops, count);
  result->commits += g.commits;
  if (g.woke && !l->inside) dibs__side_post_all(l->store->side, DIBS__EV_TASKS);
  dibs__status status = end == DIBS__SQL_OK ? DIBS_OK : answer_failed(&g, ops, count);
  result->dead = result->dead || (!l->inside && dibs__sqlite_stuck(l));
  return status;
}

static bool only_reads(struct dibs__op *const ops[], size_t count) {
  for (size_t i = 0; i < count; i++)
    if (!dibs__op_reads(ops[i])) return false;
  return true;
}

/* What nothing depends on need not be on the disk when it is answered: a machine that goes down may lose it. */
static bool may_be_lost(const struct dibs__op *op) {
  return op->family == DIBS__FAM_REPORT || (op->family == DIBS__FAM_RUN && op->verb == DIBS__RUN_PUT);
}

static bool may_all_be_lost(struct dibs__op *const ops[], size_t count) {
  for (size_t i = 0; i < count; i++)
    if (!may_be_lost(ops[i])) return false;
  return true;
}

/* Runs the operations that the wire runs. */
static dibs__status run_guarded(link_t *l, struct dibs__op *const ops[], size_t count, dibs__tick by,
                                struct dibs__result *result) {
  struct dibs__lite *store = l->store;
  if (only_reads(ops, count)) return run_on_wire(l, ops, count, result);
  if (!dibs__side_write_begin(store->side, by)) {
    dibs__set_message(result, "%s: other processes were writing until the deadline", store->path);
    return DIBS_UNAVAILABLE;
  }
  dibs__status status = DIBS_UNAVAILABLE;
  bool presses = store->write_sync && !may_all_be_lost(ops, count);
  if (!presses || dibs__sqlite_full(l, true) == DIBS__SQL_OK)
    status = run_on_wire(l, ops, count, result);
  else
    status = dibs__sqlite_excuse(l, "write to", result);
  if (presses) (void)dibs__sqlite_full(l, false);
  dibs__side_write_end(store->side);
  result->untidy = atomic_load(&store->log_pages) >= DIBS__SQLITE_LOG_PAGES;
  return status;
}

/* ---- Sweeping ---- */

enum { SWEEP_STEPS = 16, SWEEP_MS = 2000 };

/* Each step has a turn of its own in the queue, so that nobody waits for more than one. */
static sql_rc sweep_step(link_t *l, enum dibs__sql_rc (*what)(struct dibs__sql_guard *, bool *), bool *more) {
  struct dibs__lite *store = l->store;
  struct dibs__result result;
  l->by = dibs__tick_add_ms(dibs__tick_now(), SWEEP_MS);
  struct dibs__sql_guard g = {.wire = dibs__sqlite_wire(l),
                              .prefix = "dibs_",
                              .store = store->path,
                              .result = &result,
                              .swept = store->swept_claim};
  *more = false;
  if (!g.wire || !dibs__side_write_begin(store->side, l->by)) return DIBS__SQL_FAILED;
  sql_rc end = what(&g, more);
  if (dibs__sqlite_stuck(l)) dibs__sqlite_rollback(l);
  dibs__side_write_end(store->side);
  return end;
}

bool dibs__sqlite_sweep_guarded(link_t *l) {
  bool more = true, claims = true, tasks = true;
  for (int i = 0; i < SWEEP_STEPS && more; i++)
    if (sweep_step(l, dibs__sql_once_sweep, &more) != DIBS__SQL_OK) return false;
  for (int i = 0; i < SWEEP_STEPS && tasks; i++)
    if (sweep_step(l, dibs__sql_task_sweep, &tasks) != DIBS__SQL_OK) return false;
  for (int i = 0; i < SWEEP_STEPS && claims; i++)
    if (sweep_step(l, dibs__sql_claims_sweep, &claims) != DIBS__SQL_OK) return false;
  bool runs = true;
  for (int i = 0; i < SWEEP_STEPS && runs; i++)
    if (sweep_step(l, dibs__sql_run_sweep, &runs) != DIBS__SQL_OK) return false;
  bool sources = true;
  for (int i = 0; i < SWEEP_STEPS && sources; i++)
    if (sweep_step(l, dibs__sql_counter_sweep, &sources) != DIBS__SQL_OK) return false;
  return more || tasks;
}

/* ---- Inside the user's transaction ---- */

/* Records of dibs' own table, as one step that is done or not. */
static sql_rc run_records(link_t *l, struct dibs__op *const ops[], size_t count) {
  struct dibs__sql s = dibs__sqlite_sql(l, dibs__sqlite_clock(l->store));
  sql_rc end = dibs__sqlite_plain(l, DIBS__SQLITE_SAVE);
  if (end != DIBS__SQL_OK) return end;
  for (size_t i = 0; i < count && end == DIBS__SQL_OK; i++) {
    if (ops[i]->family == DIBS__FAM_RECORD && !sqlite_guards(ops[i]))
      end = dibs__sql_record(&s, (struct dibs__record_op *)ops[i]);
    else if (!sqlite_guards(ops[i]))
      ops[i]->status = DIBS_UNSUPPORTED;
  }
  sqlite3_reset(l->statements[DIBS__ROWS_RECORD]); /* it may be at a row, and their COMMIT would fail */
  if (end != DIBS__SQL_OK) (void)dibs__sqlite_plain(l, DIBS__SQLITE_SAVE_UNDO);
  sql_rc closed = dibs__sqlite_plain(l, DIBS__SQLITE_SAVE_END);
  return end == DIBS__SQL_OK ? closed : end;
}

static dibs__status records_inside(link_t *l, struct dibs__op *const ops[], size_t count, struct dibs__result *result) {
  bool some = false;
  for (size_t i = 0; i < count; i++) some = some || !sqlite_guards(ops[i]);
  if (!some || run_records(l, ops, count) == DIBS__SQL_OK) return DIBS_OK;
  dibs__status status = dibs__sqlite_excuse(l, "write to", result);
  for (size_t i = 0; i < count; i++) {
    if (sqlite_guards(ops[i])) continue;
    dibs__sql_unanswer(ops[i], DIBS_UNAVAILABLE);
  }
  return status;
}

static dibs__status run_inside(link_t *l, struct dibs__op *const ops[], size_t count, struct dibs__result *result) {
  if (sqlite3_get_autocommit(l->db)) {
    dibs__set_message(result, "%s: the given connection has no open transaction; begin one first", l->store->path);
    return DIBS_INVALID;
  }
  dibs__status status = records_inside(l, ops, count, result);
  if (status != DIBS_OK) return status;
  size_t guarded = 0;
  for (size_t i = 0; i < count; i++) guarded += sqlite_guards(ops[i]);
  return guarded ? run_on_wire(l, ops, count, result) : DIBS_OK;
}

dibs__status dibs__sqlite_attach(struct dibs__dstore *base, void *connection, struct dibs__session **session,
                                 struct dibs__identity *identity, struct dibs__result *result) {
  struct dibs__lite *store = (struct dibs__lite *)base;
  uint64_t device = 0, inode = 0, device_of_store = 1, inode_of_store = 1;
  *session = NULL;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  const char *path = sqlite3_db_filename(connection, "main");
  if (!path || !*path || !dibs__sqlite_stat(path, &device, &inode) ||
      !dibs__sqlite_stat(store->path, &device_of_store, &inode_of_store) || device != device_of_store ||
      inode != inode_of_store) {
    dibs__set_message(result, "the given connection is to \"%s\", not to %s", path ? path : "", store->path);
    return DIBS_INVALID;
  }
  struct dibs__sqlite_session *s = calloc(1, sizeof *s);
  link_t *l = calloc(1, sizeof *l);
  if (!s || !l) {
    free(s);
    free(l);
    dibs__set_message(result, "out of memory for a session of %s", store->path);
    return DIBS_NO_MEMORY;
  }
  l->store = store;
  l->db = connection;
  l->inside = true;
  s->base.store = base;
  s->link = l;
  *identity = (struct dibs__identity){.caps = DIBS__CAP_ATOMIC,
                                      .families = 1u << DIBS__FAM_RECORD | 1u << DIBS__FAM_STOCK |
                                                  1u << DIBS__FAM_ONCE | 1u << DIBS__FAM_TASK | 1u << DIBS__FAM_COUNTER,
                                      .max_batch = DIBS__SQLITE_BATCH,
                                      .max_sessions = 1};
  *session = &s->base;
  return DIBS_OK;
}

/* ---- A batch ---- */

/* Each round begins an epoch; several buckets of a batch may be used up at once, but hardly more than a few. */
enum { ROUNDS = DIBS__BUCKETS + 2 };

struct batch {
  link_t *l;
  struct dibs__op *const *ops;
  size_t count;
  int64_t now;
};

/* ---- Callbacks of src/sql ---- */

static bool session_alive(void *to, uint64_t session) {
  const link_t *l = to;
  return dibs__side_alive(l->store->side, session);
}

static void post_event(link_t *l, uint64_t session, const struct dibs__event *event) {
  struct dibs__sqlite_hint hint = {.session = session, .event = *event};
  if (l->hint_count >= DIBS__SQLITE_HINTS_PLAIN) {
    for (size_t i = 0; i < l->hint_count; i++) {
      if (l->hints[i].session != session) continue;
      l->hints[i].event = (struct dibs__event){.what = DIBS__EV_RECHECK};
      return;
    }
  }
  if (l->hint_count < DIBS__SQLITE_HINTS) l->hints[l->hint_count++] = hint;
}

static void post_plain_event(void *to, uint64_t session, enum dibs__event_what what, dibs__id id) {
  post_event(to, session, &(struct dibs__event){.what = what, .id = id});
}

/* Every process that has the file open reads the same clock: the end of the offer needs no conversion except for a
 * test's clock. */
static void post_offer(void *to, uint64_t session, dibs__id id, uint64_t fence, int64_t until) {
  link_t *l = to;
  struct dibs__event event = {.what = DIBS__EV_OFFER, .id = id, .fence = {fence}};
  event.held_until.ns = (until - atomic_load(&l->store->skew_ms)) * DIBS__NS_PER_MS;
  post_event(l, session, &event);
}

struct dibs__sql dibs__sqlite_sql(link_t *l, int64_t now) {
  return (struct dibs__sql){.rows = &dibs__sqlite_rows,
                            .to = l,
                            .now = now,
                            .session = dibs__side_session(l->store->side),
                            .opened = l->store->opened,
                            .alive = session_alive,
                            .post = post_plain_event,
                            .offer = post_offer};
}

/* ---- One operation, one group ---- */

static sql_rc run_lease(struct dibs__sql *s, struct dibs__lease_op *op) {
  sql_rc end = dibs__sql_lease(s, op);
  if (op->op.bucket >= DIBS__BUCKETS) return end;
  uint64_t *half = &((link_t *)s->to)->has_waiters[op->op.bucket / 64], bit = UINT64_C(1) << op->op.bucket % 64;
  *half = op->waiting ? *half | bit : *half & ~bit;
  return end;
}

static sql_rc run_one(struct dibs__sql *s, struct dibs__op *op) {
  bool done = false;
  sql_rc end = DIBS__SQL_OK;
  switch (op->family) {
  case DIBS__FAM_LEASE:
    end = sqlite_fast(s, (struct dibs__lease_op *)op, &done);
    return end == DIBS__SQL_OK && !done ? run_lease(s, (struct dibs__lease_op *)op) : end;
  case DIBS__FAM_ANCHOR:
    return dibs__sql_anchor(s, (struct dibs__anchor_op *)op);
  case DIBS__FAM_RECORD:
    return dibs__sql_record(s, (struct dibs__record_op *)op);
  default:
    op->status = DIBS_UNSUPPORTED;
    return end;
  }
}

/* A group runs at the position of its first element.  An anchor's epochs are never undone, so they join no group. */
static sql_rc run_group(struct dibs__sql *s, struct dibs__op *const ops[], size_t count) {
  link_t *l = s->to;
  uint32_t group = ops[0]->group;
  struct dibs__op *failed = NULL;
  size_t hints = l->hint_count;
  sql_rc end = dibs__sqlite_plain(l, DIBS__SQLITE_SAVE);
  for (size_t i = 0; i < count && !failed && end == DIBS__SQL_OK; i++) {
    if (ops[i]->group != group) continue;
    if (dibs__sql_joins_groups(ops[i]))
      end = run_one(s, ops[i]);
    else
      ops[i]->status = DIBS_INVALID;
    if (ops[i]->status != DIBS_OK) failed = ops[i];
  }
  if (end != DIBS__SQL_OK) return end;
  if (failed) {
    sqlite3_reset(l->statements[DIBS__ROWS_RECORD]);
    end = dibs__sqlite_plain(l, DIBS__SQLITE_SAVE_UNDO); /* fences that were drawn stay drawn, in the link */
    l->hint_count = hints;
  }
  if (end == DIBS__SQL_OK) end = dibs__sqlite_plain(l, DIBS__SQLITE_SAVE_END);
  for (size_t i = 0; i < count && failed; i++)
    if (ops[i]->group == group && ops[i] != failed) dibs__sql_unanswer(ops[i], DIBS_CONFLICT);
  return end;
}

static sql_rc run_all(struct batch *b, struct dibs__sql *s) {
  for (size_t i = 0; i < b->count; i++) {
    sql_rc end = DIBS__SQL_OK;
    if (!b->ops[i]->group)
      end = run_one(s, b->ops[i]);
    else if (dibs__sql_first_of_group(b->ops, i))
      end = run_group(s, b->ops + i, b->count - i);
    if (end == DIBS__SQL_OK) continue;
    if (end == DIBS__SQL_EXHAUSTED) b->l->spent = b->ops[i]->bucket;
    return end;
  }
  return DIBS__SQL_OK;
}

static void begin_again(struct batch *b) {
  for (size_t i = 0; i < b->count; i++) dibs__sql_unanswer(b->ops[i], DIBS_UNKNOWN);
}

/* ---- The transaction ---- */

/* Whether the commit is synced to disk: new epochs, written records and seals are.  A seal refuses writers of other
 * machines, too (through dibs serve and dibs gate), and they outlive this one. */
static bool syncs_commit(const struct batch *b) {
  for (size_t i = 0; i < b->count; i++) {
    const struct dibs__op *op = b->ops[i];
    if (op->family == DIBS__FAM_ANCHOR && op->verb != DIBS__ANCHOR_READ) return true;
    if (op->family == DIBS__FAM_RECORD && op->verb != DIBS__RECORD_LOAD) return true;
  }
  return false;
}

static void write_marks(link_t *l, const uint64_t changed[2]) {
  struct dibs__side *side = l->store->side;
  dibs__when now = {dibs__tick_now().ns / DIBS__NS_PER_MS}; /* whatever a test does to this open's clock */
  for (uint16_t half = 0; half < 2; half++) {
    for (uint64_t left = changed[half]; left; left &= left - 1) {
      uint16_t bucket = (uint16_t)(half * 64 + __builtin_ctzll(left));
      const struct dibs__sql_bucket *row = &l->buckets[bucket];
      dibs__side_mark(side, bucket, dibs__sql_last(row), now);
    }
  }
  for (size_t i = 0; i < l->hint_count; i++) dibs__side_post(side, l->hints[i].session, &l->hints[i].event);
  l->hint_count = 0;
}

/* One try.  OK: committed. */
static sql_rc try_batch(struct batch *b, struct dibs__result *result, bool *unsure) {
  link_t *l = b->l;
  sql_rc end = dibs__sqlite_begin(l);
  if (end != DIBS__SQL_OK) return end;
  b->now = dibs__sqlite_clock(l->store);
  int before = sqlite3_total_changes(l->db);
  struct dibs__sql s = dibs__sqlite_sql(l, b->now);
  end = run_all(b, &s);
  if (end != DIBS__SQL_OK) return end;
  uint64_t changed[2] = {l->changed[0], l->changed[1]};
  end = dibs__sqlite_commit(l, unsure);
  if (end != DIBS__SQL_OK) return end;
  if (sqlite3_total_changes(l->db) != before) result->commits++;
  if (s.denied) dibs__sql_say_served(l->store->path, s.served_by, result);
  write_marks(l, changed);
  return end;
}

/* Removes the cause of a failed try, in a transaction of its own. */
static sql_rc handle_failed_try(link_t *l, sql_rc why) {
  sql_rc end = why;
  if (end == DIBS__SQL_EXHAUSTED) end = dibs__sqlite_next_epoch(l, l->spent);
  if (end == DIBS__SQL_OTHER) {
    dibs__sqlite_rollback(l);
    end = dibs__sqlite_new_incarnation(l);
    struct dibs__event event = {.what = DIBS__EV_NEW_INCARNATION};
    if (end == DIBS__SQL_OK) dibs__side_post(l->store->side, dibs__side_session(l->store->side), &event);
  }
  if (end != DIBS__SQL_OK) dibs__sqlite_rollback(l);
  return end;
}

static sql_rc run_transaction(struct batch *b, struct dibs__result *result, bool *unsure) {
  link_t *l = b->l;
  bool full = syncs_commit(b);
  sql_rc end = full ? dibs__sqlite_full(l, true) : DIBS__SQL_OK;
  for (int round = 0; end == DIBS__SQL_OK; round++) {
    end = try_batch(b, result, unsure);
    if (end == DIBS__SQL_OK) break;
    dibs__sqlite_rollback(l);
    if (end == DIBS__SQL_FAILED) break;
    begin_again(b);
    full = true;
    end = round < ROUNDS ? handle_failed_try(l, end) : dibs__sqlite_broke(l, SQLITE_INTERNAL);
    if (end == DIBS__SQL_OK) result->commits++;
  }
  if (full) (void)dibs__sqlite_full(l, false);
  return end;
}

static dibs__status answer_failed_batch(struct batch *b, bool unsure, struct dibs__result *result) {
  link_t *l = b->l;
  dibs__status status = dibs__sqlite_excuse(l, "write to", result);
  int kind = l->failed & 0xff;
  result->dead = (kind != SQLITE_BUSY && kind != SQLITE_FULL && kind != SQLITE_NOMEM) || dibs__sqlite_stuck(l);
  if (unsure) status = DIBS_UNKNOWN;
  for (size_t i = 0; i < b->count; i++) dibs__sql_unanswer(b->ops[i], unsure ? DIBS_UNKNOWN : DIBS_UNAVAILABLE);
  return status;
}

/* ---- Read-only batches ---- */

static sql_rc read_all(struct batch *b) {
  link_t *l = b->l;
  bool unsure;
  sql_rc end = dibs__sqlite_plain(l, DIBS__SQLITE_BEGIN_READ);
  if (end != DIBS__SQL_OK) return end;
  memset(l->known, 0, sizeof l->known);
  b->now = dibs__sqlite_clock(l->store);
  struct dibs__sql s = dibs__sqlite_sql(l, b->now);
  end = run_all(b, &s);
  memset(l->known, 0, sizeof l->known);
  if (end == DIBS__SQL_OK) end = dibs__sqlite_commit(l, &unsure);
  if (end != DIBS__SQL_OK) dibs__sqlite_rollback(l);
  return end;
}

/* ---- The driver's call ---- */

static dibs__status run_writes(struct batch *b, dibs__tick by, struct dibs__result *result) {
  struct dibs__lite *store = b->l->store;
  bool unsure = false;
  if (!dibs__side_write_begin(store->side, by)) {
    begin_again(b);
    for (size_t i = 0; i < b->count; i++) b->ops[i]->status = DIBS_UNAVAILABLE;
    dibs__set_message(result, "%s: other processes were writing until the deadline", store->path);
    return DIBS_UNAVAILABLE;
  }
  sql_rc end = run_transaction(b, result, &unsure);
  dibs__side_write_end(store->side);
  result->now.ms = b->now;
  result->untidy = atomic_load(&store->log_pages) >= DIBS__SQLITE_LOG_PAGES;
  return end == DIBS__SQL_OK ? DIBS_OK : answer_failed_batch(b, unsure, result);
}

static dibs__status run_rows(link_t *l, struct dibs__op *const ops[], size_t count, dibs__tick by,
                             struct dibs__result *result) {
  struct batch b = {l, ops, count, 0};
  if (!only_reads(ops, count)) return run_writes(&b, by, result);
  sql_rc end = read_all(&b);
  result->now.ms = b.now;
  if (end == DIBS__SQL_OK) return DIBS_OK;
  if (end == DIBS__SQL_FAILED) return answer_failed_batch(&b, false, result);
  begin_again(&b);
  return run_writes(&b, by, result); /* the memory is another: that needs a write */
}

/* Both kinds: rows first.  Operations that were done stay done, so a failure of the second kind is each operation's
 * own. */
static dibs__status run_both(link_t *l, struct dibs__op *const ops[], size_t count, struct dibs__op **capacity,
                             dibs__tick by, struct dibs__result *result) {
  size_t plain = 0, guarded = 0;
  for (size_t i = 0; i < count; i++)
    if (!sqlite_guards(ops[i])) capacity[plain++] = ops[i];
  for (size_t i = 0; i < count; i++)
    if (sqlite_guards(ops[i])) capacity[plain + guarded++] = ops[i];
  struct dibs__op **mine = capacity + plain;
  dibs__status status = run_rows(l, capacity, plain, by, result);
  for (size_t i = 0; i < guarded && status == DIBS_UNKNOWN; i++) mine[i]->status = DIBS_UNAVAILABLE;
  if (status != DIBS_OK) return status;
  status = run_guarded(l, mine, guarded, by, result);
  if (status == DIBS_OK) return status;
  for (size_t i = 0; i < guarded && status != DIBS_UNKNOWN; i++) mine[i]->status = status;
  return DIBS_UNKNOWN;
}

dibs__status dibs__sqlite_run(struct dibs__session *session, struct dibs__op *const ops[], size_t count, dibs__tick by,
                              struct dibs__result *result) {
  link_t *l = ((struct dibs__sqlite_session *)session)->link;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  l->by = by;
  if (dibs__is_engine(ops, count)) {
    struct dibs__findings findings = {0};
    dibs__sqlite_describe(l, &findings);
    return dibs__findings_answer(&findings, ops[0]);
  }
  size_t guarded = 0;
  for (size_t i = 0; i < count; i++) {
    guarded += sqlite_guards(ops[i]);
    dibs__sql_begin_answer(ops[i]);
  }
  if (l->inside) return run_inside(l, ops, count, result);
  if (guarded == 0) return run_rows(l, ops, count, by, result);
  result->now.ms = dibs__sqlite_clock(l->store);
  if (guarded == count) return run_guarded(l, ops, count, by, result);
  struct dibs__op **capacity = malloc(count * sizeof(struct dibs__op *));
  if (!capacity) {
    dibs__set_message(result, "out of memory for writing to %s", l->store->path);
    return DIBS_NO_MEMORY;
  }
  dibs__status status = run_both(l, ops, count, capacity, by, result);
  free(capacity);
  return status;
}

/* SPDX-License-Identifier: MIT */
/*
 * Guarded writes, through the wire: stock, once, and records in tables of the user's.  They begin and commit by
 * themselves; what is ours is the place in the writer queue, and how hard commits are pressed to disk.
 *
 * And the user's own connection: there everything happens in their transaction, which has SQLite's lock already or gets
 * it in its own way; the queue is not asked.
 */
#include "drivers/sqlite_parts.h"
#include "sql/batch.h"

#include <stdlib.h>

typedef enum dibs__sql_step step;
typedef struct dibs__lite_link link_t;

bool dibs__lite_guards(const struct dibs__op *op) {
  return dibs__sql_kind_of(op) != DIBS__SQL_ON_ROWS;
}

static step run_kind(struct dibs__sql_guard *g, enum dibs__sql_guarded kind, struct dibs__op *const ops[],
                     size_t count) {
  size_t some = 0, n = 0;
  for (size_t i = 0; i < count; i++) some += dibs__sql_kind_of(ops[i]) == kind;
  if (some == 0) return DIBS__SQL_FINE;
  struct dibs__op **mine = malloc(some * sizeof *mine);
  if (!mine) return dibs__sql_broke(g->wire, DIBS__SQL_NO_SPACE, "out of memory");
  for (size_t i = 0; i < count; i++)
    if (dibs__sql_kind_of(ops[i]) == kind) mine[n++] = ops[i];
  step end = dibs__sql_guarded(g, kind, mine, n);
  free(mine);
  return end;
}

/* What was not answered, and what the whole comes to. */
static dibs__status unanswered(struct dibs__sql_guard *g, struct dibs__op *const ops[], size_t count) {
  dibs__status status = dibs__sql_excuse(g->wire, "write to", g->store, g->said);
  bool some = false;
  for (size_t i = 0; i < count; i++) {
    if (ops[i]->status != DIBS_UNKNOWN)
      some = true;
    else
      ops[i]->status = status;
  }
  return some ? DIBS_UNKNOWN : status;
}

static dibs__status through_the_wire(link_t *l, struct dibs__op *const ops[], size_t count, struct dibs__said *said) {
  struct dibs__sql_guard g = {.wire = dibs__lite_wire(l), .prefix = "dibs_", .store = l->store->path, .said = said};
  if (!g.wire) return dibs__lite_excuse(l, "write to", said);
  step end = DIBS__SQL_FINE;
  for (enum dibs__sql_guarded kind = DIBS__SQL_ON_ROWS + 1; kind < DIBS__SQL_GUARDED && end == DIBS__SQL_FINE; kind++)
    end = run_kind(&g, kind, ops, count);
  said->commits += g.commits;
  dibs__status status = end == DIBS__SQL_FINE ? DIBS_OK : unanswered(&g, ops, count);
  said->dead = said->dead || (!l->inside && dibs__lite_stuck(l));
  return status;
}

static bool reads_alone(struct dibs__op *const ops[], size_t count) {
  for (size_t i = 0; i < count; i++)
    if (!(ops[i]->flags & DIBS__OP_READS)) return false;
  return true;
}

/* What clients report of themselves is as good as the latest second. */
static bool reports_alone(struct dibs__op *const ops[], size_t count) {
  for (size_t i = 0; i < count; i++)
    if (ops[i]->family != DIBS__FAM_REPORT) return false;
  return true;
}

dibs__status dibs__lite_run_guarded(link_t *l, struct dibs__op *const ops[], size_t count, dibs__tick by,
                                    struct dibs__said *said) {
  struct dibs__lite *store = l->store;
  if (reads_alone(ops, count)) return through_the_wire(l, ops, count, said);
  if (!dibs__side_write_begin(store->side, by)) {
    dibs__say(said, "%s: other writers were before us until the deadline", store->path);
    return DIBS_UNAVAILABLE;
  }
  dibs__status status = DIBS_UNAVAILABLE;
  bool presses = store->write_sync && !reports_alone(ops, count);
  if (!presses || dibs__lite_full(l, true) == DIBS__SQL_FINE)
    status = through_the_wire(l, ops, count, said);
  else
    status = dibs__lite_excuse(l, "write to", said);
  if (presses) (void)dibs__lite_full(l, false);
  dibs__side_write_end(store->side);
  said->untidy = atomic_load(&store->log_pages) >= DIBS__LITE_LOG_PAGES;
  return status;
}

/* ---- Sweeping ---- */

enum { SWEEP_STEPS = 16, SWEEP_MS = 2000 };

/* Each step has a turn of its own, so that nobody waits for more than one. */
static step sweep_step(link_t *l, enum dibs__sql_step (*what)(struct dibs__sql_guard *, bool *), bool *more) {
  struct dibs__lite *store = l->store;
  struct dibs__said said;
  l->by = dibs__tick_add_ms(dibs__tick_now(), SWEEP_MS);
  struct dibs__sql_guard g = {
      .wire = dibs__lite_wire(l), .prefix = "dibs_", .store = store->path, .said = &said, .swept = store->swept_claim};
  *more = false;
  if (!g.wire || !dibs__side_write_begin(store->side, l->by)) return DIBS__SQL_BROKE;
  step end = what(&g, more);
  if (dibs__lite_stuck(l)) dibs__lite_rollback(l);
  dibs__side_write_end(store->side);
  return end;
}

void dibs__lite_sweep_guarded(link_t *l) {
  bool more = true;
  for (int i = 0; i < SWEEP_STEPS && more; i++)
    if (sweep_step(l, dibs__sql_once_sweep, &more) != DIBS__SQL_FINE) return;
  more = true;
  for (int i = 0; i < SWEEP_STEPS && more; i++)
    if (sweep_step(l, dibs__sql_claims_sweep, &more) != DIBS__SQL_FINE) return;
}

/* ---- Inside the user's transaction ---- */

/* Records of dibs' own table, as one step that is done or not. */
static step run_records(link_t *l, struct dibs__op *const ops[], size_t count) {
  struct dibs__sql s = dibs__lite_sql(l, dibs__lite_clock(l->store));
  step end = dibs__lite_plain(l, DIBS__LITE_SAVE);
  if (end != DIBS__SQL_FINE) return end;
  for (size_t i = 0; i < count && end == DIBS__SQL_FINE; i++) {
    if (ops[i]->family == DIBS__FAM_RECORD && !dibs__lite_guards(ops[i]))
      end = dibs__sql_record(&s, (struct dibs__record_op *)ops[i]);
    else if (!dibs__lite_guards(ops[i]))
      ops[i]->status = DIBS_UNSUPPORTED;
  }
  sqlite3_reset(l->statements[DIBS__LITE_RECORD]); /* it may stand at a row, and their COMMIT would fail */
  if (end != DIBS__SQL_FINE) (void)dibs__lite_plain(l, DIBS__LITE_SAVE_UNDO);
  step closed = dibs__lite_plain(l, DIBS__LITE_SAVE_END);
  return end == DIBS__SQL_FINE ? closed : end;
}

static dibs__status records_inside(link_t *l, struct dibs__op *const ops[], size_t count, struct dibs__said *said) {
  bool some = false;
  for (size_t i = 0; i < count; i++) some = some || !dibs__lite_guards(ops[i]);
  if (!some || run_records(l, ops, count) == DIBS__SQL_FINE) return DIBS_OK;
  dibs__status status = dibs__lite_excuse(l, "write to", said);
  for (size_t i = 0; i < count; i++) {
    if (dibs__lite_guards(ops[i])) continue;
    dibs__sql_unanswer(ops[i], DIBS_UNAVAILABLE);
  }
  return status;
}

dibs__status dibs__lite_run_inside(link_t *l, struct dibs__op *const ops[], size_t count, struct dibs__said *said) {
  if (sqlite3_get_autocommit(l->db)) {
    dibs__say(said, "%s: no transaction is open on the connection; begin one first", l->store->path);
    return DIBS_INVALID;
  }
  dibs__status status = records_inside(l, ops, count, said);
  if (status != DIBS_OK) return status;
  size_t guarded = 0;
  for (size_t i = 0; i < count; i++) guarded += dibs__lite_guards(ops[i]);
  return guarded ? through_the_wire(l, ops, count, said) : DIBS_OK;
}

dibs__status dibs__lite_attach(struct dibs__dstore *base, void *connection, struct dibs__session **session,
                               struct dibs__identity *identity, struct dibs__said *said) {
  struct dibs__lite *store = (struct dibs__lite *)base;
  uint64_t device = 0, inode = 0, device_of_store = 1, inode_of_store = 1;
  *session = NULL;
  *said = (struct dibs__said){.sent = dibs__tick_now()};
  const char *path = sqlite3_db_filename(connection, "main");
  if (!path || !*path || !dibs__lite_stat(path, &device, &inode) ||
      !dibs__lite_stat(store->path, &device_of_store, &inode_of_store) || device != device_of_store ||
      inode != inode_of_store) {
    dibs__say(said, "the connection is to \"%s\", not to %s", path ? path : "", store->path);
    return DIBS_INVALID;
  }
  struct dibs__lite_session *s = calloc(1, sizeof *s);
  link_t *l = calloc(1, sizeof *l);
  if (!s || !l) {
    free(s);
    free(l);
    dibs__say(said, "no memory for a session of %s", store->path);
    return DIBS_NO_MEMORY;
  }
  l->store = store;
  l->db = connection;
  l->inside = true;
  s->base.store = base;
  s->link = l;
  *identity = (struct dibs__identity){.caps = DIBS__CAP_ATOMIC,
                                      .families = 1u << DIBS__FAM_RECORD | 1u << DIBS__FAM_STOCK | 1u << DIBS__FAM_ONCE,
                                      .schema = DIBS__SQL_SCHEMA,
                                      .max_batch = DIBS__LITE_BATCH,
                                      .max_sessions = 1};
  *session = &s->base;
  return DIBS_OK;
}

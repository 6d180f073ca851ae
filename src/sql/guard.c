/* SPDX-License-Identifier: MIT */
/*
 * What every user of a wire needs; expired rows; reports; records on rows; the anchor.
 *
 * Reports are a row a client, overwritten each second.  One packet puts a report and reads all: the row's own
 * transaction, which need not wait for the disk, and a SELECT after it.  The SELECT finds rows that are too old, and
 * only then they are deleted, one by one: a DELETE over the whole table would wait for each client that writes its
 * own, which may do the same.
 *
 * Records on rows check fences and versions; the anchor keeps epochs.
 */
#include "sql/sql.h"
#include "sql/text.h"
#include "sql/wire.h"
#include "store/family.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum dibs__sql_rc sql_rc;

DIBS__MODULE_API sql_rc dibs__sql_begin(struct dibs__sql_wire *w) {
  return w->engine->put(w, w->inside ? "SAVEPOINT dibs" : w->engine->begin, NULL, 0);
}

DIBS__MODULE_API sql_rc dibs__sql_commit(struct dibs__sql_wire *w) {
  return w->engine->put(w, w->inside ? "RELEASE SAVEPOINT dibs" : "COMMIT", NULL, 0);
}

DIBS__MODULE_API void dibs__sql_rollback(struct dibs__sql_wire *w) {
  /* The first failure is the one to report, unless the connection is gone now. */
  struct dibs__sql_wire was = *w;
  sql_rc end = w->engine->put(w, w->inside ? "ROLLBACK TO SAVEPOINT dibs" : "ROLLBACK", NULL, 0);
  if (end == DIBS__SQL_OK) end = w->engine->go(w, false);
  bool dead = end != DIBS__SQL_OK && dibs__sql_dead(w);
  w->unsure = was.unsure;
  w->failed_at = was.failed_at;
  if (dead) return;
  w->trouble = was.trouble;
  snprintf(w->message, sizeof w->message, "%s", was.message);
}

DIBS__MODULE_API sql_rc dibs__sql_fail(struct dibs__sql_wire *w, enum dibs__sql_trouble trouble, const char *message) {
  w->trouble = trouble;
  w->unsure = false;
  snprintf(w->message, sizeof w->message, "%s", message);
  return DIBS__SQL_FAILED;
}

static dibs__status status_of(enum dibs__sql_trouble trouble) {
  switch (trouble) {
  case DIBS__SQL_DENIED:
    return DIBS_DENIED;
  case DIBS__SQL_DAMAGED:
    return DIBS_CORRUPT;
  case DIBS__SQL_NO_SPACE:
    return DIBS_NO_MEMORY;
  case DIBS__SQL_MISSING:
  case DIBS__SQL_REFUSED:
    return DIBS_INVALID;
  default:
    return DIBS_UNAVAILABLE;
  }
}

DIBS__MODULE_API dibs__status dibs__sql_explain(const struct dibs__sql_wire *w, const char *doing, const char *store,
                                                struct dibs__result *result) {
  const char *next = "";
  if (w->trouble == DIBS__SQL_LATE) next = ": no answer before the deadline";
  if (w->trouble == DIBS__SQL_LOCKED) next = "; another session holds the row for too long: see lock_timeout";
  dibs__set_message(result, "can't %s %s: %s%s", doing, store, w->message, next);
  result->dead = dibs__sql_dead(w);
  return w->unsure ? DIBS_UNKNOWN : status_of(w->trouble);
}

enum { COMPOSED_MAX = 2400 };

sql_rc dibs__sql_put_composed(const struct dibs__sql_guard *g, const char *from, const struct dibs__sql_value *values,
                              size_t count) {
  const struct dibs__sql_names names = {.engine = g->wire->engine, .prefix = g->prefix, .inside = g->wire->inside};
  char composed[COMPOSED_MAX];
  struct dibs__text text;
  dibs__text_begin(&text, composed, sizeof composed);
  dibs__sql_compose(&text, &names, from);
  if (text.cut) return dibs__sql_fail(g->wire, DIBS__SQL_NO_SPACE, "the prefix of the tables is too long");
  return g->wire->engine->put(g->wire, composed, values, count);
}

/* ---- Expired rows ---- */

sql_rc dibs__sql_sweep(struct dibs__sql_guard *g, const char *table, const char *key, uint32_t most, bool *more) {
  struct dibs__sql_wire *w = g->wire;
  char old[256], text[512];
  /* A row that somebody changes now is left out: it may be used again, and its writer must not wait. */
  snprintf(old, sizeof old, "SELECT %s FROM %s WHERE until <= (SELECT @{start}) ORDER BY until LIMIT %" PRIu32 "%s",
           key, table, most, w->engine->sessions ? " FOR UPDATE SKIP LOCKED" : "");
  /* MariaDB reads and locks the whole table if its DELETE has an IN (SELECT ...). */
  if (w->engine->joins)
    snprintf(text, sizeof text, "DELETE t FROM (%s) old STRAIGHT_JOIN %s t ON t.%s = old.%s", old, table, key, key);
  else
    snprintf(text, sizeof text, "DELETE FROM %s WHERE %s%s%s%s", table, key, w->engine->any[0], old, w->engine->any[1]);
  *more = false;
  sql_rc end = dibs__sql_put_composed(g, text, NULL, 0);
  if (end == DIBS__SQL_OK) end = w->engine->go(w, true);
  if (end != DIBS__SQL_OK) return end;
  uint64_t gone = w->engine->changed(w, 0);
  if (gone > 0) g->commits++;
  *more = gone >= most;
  return end;
}

/* ---- Reports ---- */

enum { TEXT_MAX = 600, GONE_MAX = 64, CLASHES = 8, NAP_MS = 2 };

typedef struct dibs__sql_value value;
typedef struct dibs__report_op report_op;

/* ---- Queuing ---- */

static sql_rc put_row(const struct dibs__sql_guard *g, const report_op *op) {
  const struct dibs__sql_engine *e = g->wire->engine;
  value values[] = {dibs__sql_bytes(op->id.b, sizeof op->id.b), dibs__sql_bytes(op->data.p, op->data.len)};
  char text[TEXT_MAX];
  snprintf(text, sizeof text, "INSERT INTO %sreport (id, seen, data) VALUES ($1, %s, $2) %s", g->prefix, e->now_ms,
           e->on_conflict ? "ON CONFLICT (id) DO UPDATE SET seen = excluded.seen, data = excluded.data"
                          : "ON DUPLICATE KEY UPDATE seen = VALUES(seen), data = VALUES(data)");
  if (!g->lazy) return e->put(g->wire, text, values, 2);
  sql_rc end = dibs__sql_begin(g->wire);
  if (end == DIBS__SQL_OK) end = e->put(g->wire, g->lazy, NULL, 0);
  if (end == DIBS__SQL_OK) end = e->put(g->wire, text, values, 2);
  return end == DIBS__SQL_OK ? dibs__sql_commit(g->wire) : end;
}

static sql_rc put_drop(const struct dibs__sql_guard *g, const report_op *op) {
  value id = dibs__sql_bytes(op->id.b, sizeof op->id.b);
  char text[TEXT_MAX];
  snprintf(text, sizeof text, "DELETE FROM %sreport WHERE id = $1", g->prefix);
  return g->wire->engine->put(g->wire, text, &id, 1);
}

/* The youngest first, because there is a limit; not `all`: only those that are too old, without their content. */
static sql_rc put_lookup(const struct dibs__sql_guard *g, const report_op *op, bool all) {
  const char *now = g->wire->engine->now_ms;
  value keep = dibs__sql_number(op->keep_ms);
  char text[TEXT_MAX];
  if (all)
    snprintf(text, sizeof text, "SELECT id, %s - seen, data FROM %sreport ORDER BY seen DESC LIMIT %d", now, g->prefix,
             DIBS__REPORTS_MAX + GONE_MAX);
  else
    snprintf(text, sizeof text, "SELECT id, %s - seen FROM %sreport WHERE seen < %s - $1 LIMIT %d", now, g->prefix, now,
             GONE_MAX);
  return g->wire->engine->put(g->wire, text, &keep, all ? 0 : 1);
}

/* ---- Answers ---- */

/* After a clock was set back, rows are from the future: a little counts as now, much as too old. */
static bool too_old(const report_op *op, int64_t age_ms) {
  return age_ms > op->keep_ms || age_ms < -op->keep_ms;
}

static dibs__id id_at(const struct dibs__sql_wire *w, size_t nth, size_t row) {
  dibs__id id = {{0}};
  value cell = w->engine->cell(w, nth, row, 0, DIBS__SQL_BYTES);
  if (cell.kind == DIBS__SQL_BYTES && cell.len == sizeof id.b) memcpy(id.b, cell.p, sizeof id.b);
  return id;
}

struct size {
  size_t count, bytes;
};

static struct size measure_reports(const struct dibs__sql_wire *w, const report_op *op, size_t nth) {
  struct size all = {0, 0};
  for (size_t row = 0; row < w->engine->rows(w, nth) && all.count < DIBS__REPORTS_MAX; row++) {
    if (too_old(op, dibs__sql_cell_number(w, nth, row, 1))) continue;
    value data = w->engine->cell(w, nth, row, 2, DIBS__SQL_BYTES);
    all.count++;
    all.bytes += data.kind == DIBS__SQL_NULL ? 0 : data.len;
  }
  return all;
}

static void hand_out_reports(const struct dibs__sql_wire *w, report_op *op, size_t nth) {
  struct size all = measure_reports(w, op, nth);
  op->op.status = DIBS_OK;
  if (all.count == 0) return;
  op->got = malloc(all.count * sizeof *op->got + all.bytes);
  if (!op->got) {
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  char *at = (char *)(op->got + all.count);
  for (size_t row = 0; op->got_count < all.count; row++) {
    int64_t age_ms = dibs__sql_cell_number(w, nth, row, 1);
    if (too_old(op, age_ms)) continue;
    value data = w->engine->cell(w, nth, row, 2, DIBS__SQL_BYTES);
    uint32_t len = data.kind == DIBS__SQL_NULL ? 0 : data.len;
    if (len) memcpy(at, data.p, len);
    op->got[op->got_count++] =
        (struct dibs__report){.id = id_at(w, nth, row), .age_ms = age_ms > 0 ? age_ms : 0, .data = {at, len}};
    at += len;
  }
}

/* Finds the rows that are too old. */
static size_t find_old_reports(const struct dibs__sql_wire *w, const report_op *op, size_t nth, dibs__id to[GONE_MAX]) {
  size_t count = 0;
  for (size_t row = 0; row < w->engine->rows(w, nth) && count < GONE_MAX; row++)
    if (too_old(op, dibs__sql_cell_number(w, nth, row, 1))) to[count++] = id_at(w, nth, row);
  return count;
}

/* Unless they were written again meanwhile.  A failure here is ignored: the next report tries again. */
static void delete_old_reports(struct dibs__sql_guard *g, const report_op *op, const dibs__id ids[], size_t count) {
  struct dibs__sql_wire *w = g->wire;
  char text[TEXT_MAX];
  snprintf(text, sizeof text, "DELETE FROM %sreport WHERE id = $1 AND seen NOT BETWEEN %s - $2 AND %s + $2", g->prefix,
           w->engine->now_ms, w->engine->now_ms);
  for (size_t i = 0; i < count; i++) {
    value values[] = {dibs__sql_bytes(ids[i].b, sizeof ids[i].b), dibs__sql_number(op->keep_ms)};
    if (w->engine->put(w, text, values, 2) != DIBS__SQL_OK) break;
  }
  if (w->engine->go(w, true) == DIBS__SQL_OK) g->commits++;
}

/* ---- One report ---- */

static bool report_valid(const report_op *op) {
  if (op->op.verb == DIBS__REPORT_DROP) return true;
  if (op->op.verb > DIBS__REPORT_DROP || op->keep_ms <= 0) return false;
  return op->op.verb != DIBS__REPORT_PUT || op->data.len <= DIBS__REPORT_MAX;
}

static sql_rc send_report(struct dibs__sql_guard *g, report_op *op) {
  struct dibs__sql_wire *w = g->wire;
  bool puts = op->op.verb == DIBS__REPORT_PUT, drops = op->op.verb == DIBS__REPORT_DROP;
  bool all = op->op.verb == DIBS__REPORT_READ || op->want;
  dibs__id old[GONE_MAX];
  sql_rc end = puts ? put_row(g, op) : drops ? put_drop(g, op) : DIBS__SQL_OK;
  size_t nth = w->put;
  if (end == DIBS__SQL_OK && !drops) end = put_lookup(g, op, all);
  if (end == DIBS__SQL_OK) end = w->engine->go(w, puts || drops);
  if (end != DIBS__SQL_OK) return end;
  if (puts || drops) g->commits++;
  op->op.status = DIBS_OK;
  if (drops) return end;
  if (all) hand_out_reports(w, op, nth);
  size_t count = puts ? find_old_reports(w, op, nth, old) : 0;
  if (count) delete_old_reports(g, op, old, count);
  return end;
}

static sql_rc run_report(struct dibs__sql_guard *g, report_op *op) {
  struct dibs__sql_wire *w = g->wire;
  for (int clashes = 0;; clashes++) {
    sql_rc end = send_report(g, op);
    if (end == DIBS__SQL_OK || dibs__sql_dead(w) || w->unsure) return end;
    if (op->op.verb == DIBS__REPORT_PUT && g->lazy) dibs__sql_rollback(w);
    if (dibs__sql_dead(w) || w->trouble == DIBS__SQL_NO_SPACE) return end;
    bool again = w->trouble == DIBS__SQL_DEADLOCK && clashes < CLASHES;
    if (!again || dibs__tick_left_ms(dibs__tick_now(), w->by) <= NAP_MS) {
      op->op.status = dibs__sql_explain(w, "keep a report in", g->store, g->result);
      return DIBS__SQL_OK;
    }
    dibs__nap_ms(NAP_MS);
  }
}

/* Each in a packet of its own. */
static sql_rc sql_report(struct dibs__sql_guard *g, report_op *const ops[], size_t count) {
  sql_rc end = DIBS__SQL_OK;
  for (size_t i = 0; i < count; i++) {
    ops[i]->got = NULL;
    ops[i]->got_count = 0;
    if (!report_valid(ops[i])) ops[i]->op.status = DIBS_INVALID;
  }
  for (size_t i = 0; i < count && end == DIBS__SQL_OK; i++)
    if (ops[i]->op.status != DIBS_INVALID) end = run_report(g, ops[i]);
  return end;
}

/* A group is one transaction on rows; the others make their own transactions. */
enum dibs__sql_guarded dibs__sql_kind_of(const struct dibs__op *op) {
  if (op->group) return DIBS__SQL_ON_ROWS;
  switch (op->family) {
  case DIBS__FAM_STOCK:
    return DIBS__SQL_AS_STOCK;
  case DIBS__FAM_ONCE:
    return DIBS__SQL_AS_ONCE;
  case DIBS__FAM_REPORT:
    return DIBS__SQL_AS_REPORT;
  case DIBS__FAM_RUN:
    return DIBS__SQL_AS_RUN;
  case DIBS__FAM_COUNTER:
    return DIBS__SQL_AS_COUNTER;
  case DIBS__FAM_RECORD:
    return ((const struct dibs__record_op *)op)->table ? DIBS__SQL_AS_TABLE_RECORD : DIBS__SQL_ON_ROWS;
  case DIBS__FAM_TASK:
    return ((const struct dibs__task_op *)op)->table ? DIBS__SQL_AS_TABLE_TASK : DIBS__SQL_AS_TASK;
  default:
    return DIBS__SQL_ON_ROWS;
  }
}

/* The head is the first member of each struct, so the array of heads is the array of the operations. */
static sql_rc run_guarded(struct dibs__sql_guard *guard, enum dibs__sql_guarded kind, struct dibs__op *const ops[],
                          size_t count) {
  const void *all = ops;
  switch (kind) {
  case DIBS__SQL_AS_TABLE_RECORD:
    return dibs__sql_table_record(guard, (struct dibs__record_op *const *)all, count);
  case DIBS__SQL_AS_TABLE_TASK:
    return dibs__sql_table_task(guard, (struct dibs__task_op *const *)all, count);
  case DIBS__SQL_AS_STOCK:
    return dibs__sql_stock(guard, (struct dibs__stock_op *const *)all, count);
  case DIBS__SQL_AS_ONCE:
    return dibs__sql_once(guard, (struct dibs__once_op *const *)all, count);
  case DIBS__SQL_AS_REPORT:
    return sql_report(guard, (struct dibs__report_op *const *)all, count);
  case DIBS__SQL_AS_RUN:
    return dibs__sql_run(guard, (struct dibs__run_op *const *)all, count);
  case DIBS__SQL_AS_COUNTER:
    return dibs__sql_counter(guard, (struct dibs__counter_op *const *)all, count);
  case DIBS__SQL_AS_TASK:
    return dibs__sql_task(guard, (struct dibs__task_op *const *)all, count);
  default:
    return DIBS__SQL_OK;
  }
}

/* Inside a user's transaction another transaction may lock the row for as long as it likes.  Giving up would break the
 * user's connection, and lose all that they have done: their own lock timeout limits the wait. */
sql_rc dibs__sql_guarded(struct dibs__sql_guard *guard, enum dibs__sql_guarded kind, struct dibs__op *const ops[],
                         size_t count) {
  struct dibs__sql_wire *w = guard->wire;
  dibs__tick by = w->by;
  if (kind == DIBS__SQL_AS_ONCE || kind == DIBS__SQL_AS_TASK || kind == DIBS__SQL_AS_COUNTER)
    w->by = dibs__sql_patience(w);
  sql_rc end = run_guarded(guard, kind, ops, count);
  w->by = by;
  return end;
}

void dibs__sql_begin_answer(struct dibs__op *op) {
  (void)dibs__op_take_answer(op);
}

void dibs__sql_unanswer(struct dibs__op *op, dibs__status status) {
  dibs__op_free_answer(op);
  op->status = status;
}

bool dibs__sql_joins_groups(const struct dibs__op *op) {
  if (op->family == DIBS__FAM_RECORD && ((const struct dibs__record_op *)op)->table) return false;
  return dibs__family_of(op)->joins_groups;
}

bool dibs__sql_first_of_group(struct dibs__op *const ops[], size_t at) {
  for (size_t i = 0; i < at; i++)
    if (ops[i]->group == ops[at]->group) return false;
  return true;
}

/* ---- Records on rows ---- */

typedef struct dibs__sql_record record;

/* The record exists: it was saved, and not removed. */
static bool record_exists(const record *r) {
  return (int64_t)r->version > 0;
}

/* How many versions the key has had. */
static uint64_t version_count(const record *r) {
  return (int64_t)r->version < 0 ? 0 - r->version : r->version;
}

static void guard_hand_out(struct dibs__record_op *op, const record *r) {
  op->seen = (dibs__fence){r->fence};
  op->version = record_exists(r) ? r->version : 0;
  op->op.status = DIBS_OK;
  if (op->version == 0) return;
  op->got = malloc((size_t)r->len + 1);
  if (!op->got) {
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  if (r->len) memcpy(op->got, r->data, r->len);
  op->got[r->len] = '\0';
  op->got_len = r->len;
}

static sql_rc seal_record(struct dibs__sql *s, struct dibs__record_op *op, record *r) {
  bool same = r->fence == op->fence.v;
  r->fence = op->fence.v;
  r->digest = dibs__id_digest(op->id);
  guard_hand_out(op, r); /* before `data` becomes invalid */
  if (op->op.status != DIBS_OK || same) return DIBS__SQL_OK;
  return s->rows->record_put(s->to, op->key, r, false);
}

static sql_rc write_record(struct dibs__sql *s, struct dibs__record_op *op, record *r) {
  bool drops = op->op.verb == DIBS__RECORD_DROP;
  if (dibs__record_guards(op) & DIBS__IF_FENCE) {
    r->fence = op->fence.v;
    r->digest = dibs__id_digest(op->id);
  }
  r->version = drops ? 0 - version_count(r) : version_count(r) + 1;
  r->data = drops ? "" : op->data.p;
  r->len = drops ? 0 : op->data.len;
  op->seen = (dibs__fence){r->fence};
  op->version = drops ? 0 : r->version;
  op->op.status = DIBS_OK;
  return s->rows->record_put(s->to, op->key, r, true);
}

sql_rc dibs__sql_record(struct dibs__sql *s, struct dibs__record_op *op) {
  record r;
  bool found;
  if (!dibs__record_valid(op)) return DIBS__SQL_OK;
  sql_rc st = s->rows->record_load(s->to, op->key, &r, &found);
  if (st != DIBS__SQL_OK) return st;
  if (!found) r = (record){0};
  if (op->op.verb == DIBS__RECORD_LOAD) {
    op->op.status = DIBS_NOT_FOUND;
    if (found && (int64_t)r.version >= 0) guard_hand_out(op, &r);
    return DIBS__SQL_OK;
  }
  if (!dibs__record_admits(op, (dibs__fence){r.fence}, r.digest, record_exists(&r) ? r.version : 0,
                           dibs__str_of(r.data, r.len)))
    return DIBS__SQL_OK;
  return op->op.verb == DIBS__RECORD_SEAL ? seal_record(s, op, &r) : write_record(s, op, &r);
}

/* ---- The anchor: epochs ---- */

bool dibs__sql_stands(struct dibs__sql_opened opened, const struct dibs__sql_bucket *row, struct dibs__op *op) {
  bool left = row->served == DIBS__SQL_LEFT, same = dibs__mandate_equal(&op->mandate, &row->mandate);
  op->status = DIBS__MOVED;
  op->has = row->mandate;
  if (left && same) return true;
  if (!left && dibs__sql_answers(opened, row->served)) return same;
  if (!opened.as_tier) {
    op->status = DIBS_DENIED;
    op->has = (dibs__mandate){0};
  } else if (row->served == DIBS__SQL_OWN) {
    op->has.epoch = 0;
  }
  return false;
}

bool dibs__sql_used_up(const struct dibs__sql_bucket *row, struct dibs__lease_op *op) {
  bool draws = op->op.verb == DIBS__ACQUIRE && op->mode == DIBS_EXCLUSIVE;
  uint32_t want = op->op.verb <= DIBS__RENEW ? op->want_block : 0;
  if (want > DIBS__BLOCK_MAX) want = DIBS__BLOCK_MAX;
  if (draws && want == 0) want = 1;
  if (row->served == DIBS__SQL_OWN || want <= DIBS__SEQ_MAX - (row->seq & DIBS__SEQ_MAX)) return false;
  op->op.status = DIBS__MOVED;
  op->op.has = row->mandate;
  return true;
}

void dibs__sql_say_served(const char *store, const char *served_by, struct dibs__result *result) {
  if (served_by[0])
    dibs__set_message(result,
                      "%s serves this name, not %s; open the store with all its tiers, as in --store %s://...,%.*s...",
                      served_by, store, served_by, (int)(strcspn(store, "/") + 2), store);
  else
    dibs__set_message(result, "%s is a tier; open it with all its tiers, as in --store FIRST,SECOND", store);
}

static dibs__status next_epoch(struct dibs__sql_bucket *row, const dibs__mandate *from) {
  if (row->served != DIBS__SQL_OWN || !dibs__mandate_equal(from, &row->mandate)) return DIBS_CONFLICT;
  return dibs__sql_next_epoch(row) ? DIBS_OK : DIBS_UNAVAILABLE;
}

static dibs__status install_mandate(struct dibs__sql_bucket *row, const dibs__mandate *what) {
  bool here = memcmp(what->incarnation.b, row->mandate.incarnation.b, sizeof what->incarnation.b) == 0;
  if (what->epoch > DIBS__EPOCH_MAX) return DIBS_INVALID;
  if (!here || what->epoch <= row->mandate.epoch) return DIBS_CONFLICT;
  /* Above its own fences, too: with a clock they may lead its epoch. */
  if (what->epoch <= dibs__fence_epoch(dibs__sql_last(row))) return DIBS_CONFLICT;
  row->mandate.epoch = what->epoch;
  row->seq = 0;
  row->served = DIBS__SQL_SERVED;
  return DIBS_OK;
}

/* Leaves exactly this mandate; another may have been installed or begun meanwhile. */
static dibs__status leave_bucket(struct dibs__sql_bucket *row, const dibs__mandate *what) {
  if (row->served == DIBS__SQL_VOID || !dibs__mandate_equal(what, &row->mandate)) return DIBS_CONFLICT;
  row->served = DIBS__SQL_LEFT;
  return DIBS_OK;
}

static dibs__status open_to_all(const struct dibs__sql *s, struct dibs__sql_bucket *row, const dibs__mandate *what) {
  bool fits = row->served == DIBS__SQL_OWN || row->served == DIBS__SQL_SERVED;
  if (!fits || !dibs__mandate_equal(what, &row->mandate)) return DIBS_CONFLICT;
  if (row->served == DIBS__SQL_OWN) return DIBS_OK;
  row->served = DIBS__SQL_OWN;
  dibs__sql_clock_begin(s, row);
  return DIBS_OK;
}

/* Of a store that was restored from a backup: above all fences that its clock may have drawn before.  If the new epoch
 * is above all of that by itself, its clock begins with it.  A bucket that drew nothing keeps its clock, and leaves no
 * trace of use. */
static dibs__status raise_epoch(const struct dibs__sql *s, struct dibs__sql_bucket *row, dibs__fence above) {
  struct dibs__sql_bucket own = *row;
  if (row->served != DIBS__SQL_OWN) return DIBS_CONFLICT;
  if (row->seq) dibs__sql_clock_in(s, &own);
  if (!dibs__sql_epoch_above(&own, above)) return DIBS_UNAVAILABLE;
  if (row->seq && own.seq == 0) dibs__sql_clock_begin(s, &own);
  *row = own;
  return DIBS_OK;
}

static dibs__status dissolve_tier(const struct dibs__sql *s, struct dibs__sql_bucket *row, dibs__fence above) {
  struct dibs__sql_bucket own = *row;
  bool is_own = row->served == DIBS__SQL_OWN;
  if (is_own && !dibs__fence_below(dibs__sql_last(row), above)) return DIBS_OK;
  own.served = DIBS__SQL_OWN;
  if (!is_own) dibs__sql_clock_begin(s, &own); /* the own epoch of the time before it was served is over */
  dibs__status status = raise_epoch(s, &own, above);
  if (status == DIBS_OK) *row = own;
  return status;
}

static dibs__status change_mandate(const struct dibs__sql *s, struct dibs__sql_bucket *row,
                                   const struct dibs__anchor_op *op) {
  switch ((enum dibs__anchor_verb)op->op.verb) {
  case DIBS__ANCHOR_NEXT:
    return next_epoch(row, &op->op.mandate);
  case DIBS__ANCHOR_INSTALL:
    return install_mandate(row, &op->op.mandate);
  case DIBS__ANCHOR_ALONE:
    return dissolve_tier(s, row, op->above);
  case DIBS__ANCHOR_RAISE:
    return raise_epoch(s, row, op->above);
  case DIBS__ANCHOR_LEAVE:
    return leave_bucket(row, &op->op.mandate);
  case DIBS__ANCHOR_OPEN:
    return open_to_all(s, row, &op->op.mandate);
  default:
    return DIBS_OK;
  }
}

sql_rc dibs__sql_anchor(struct dibs__sql *s, struct dibs__anchor_op *op) {
  struct dibs__sql_bucket *row;
  if (op->op.bucket >= DIBS__BUCKETS || op->op.verb > DIBS__ANCHOR_OPEN || op->above.v > DIBS__FENCE_MAX) {
    op->op.status = DIBS_INVALID;
    return DIBS__SQL_OK;
  }
  sql_rc st = s->rows->bucket_get(s->to, op->op.bucket, &row);
  if (st != DIBS__SQL_OK) return st;
  struct dibs__sql_bucket was = *row;
  op->op.status = change_mandate(s, row, op);
  bool changed = row->mandate.epoch != was.mandate.epoch || row->clock_base != was.clock_base;
  if (changed) st = s->rows->bucket_put(s->to, op->op.bucket);
  if (row->served != was.served && st == DIBS__SQL_OK) st = s->rows->bucket_serve(s->to, op->op.bucket);
  op->current = row->mandate;
  op->served = row->served != DIBS__SQL_OWN;
  op->last = !op->served || row->served == DIBS__SQL_LEFT ? dibs__sql_last(row) : DIBS__FENCE_NONE;
  op->left = row->served == DIBS__SQL_LEFT;
  op->used = row->served == DIBS__SQL_OWN && row->seq > 0;
  return st;
}

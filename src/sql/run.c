/* SPDX-License-Identifier: MIT */
/*
 * What ran (R80 to R83): a row a run, inserted once and never changed.
 *
 * A put reads the store's setting in the statement that inserts, so that it takes one packet, and any number of them
 * one transaction.  If that fails they are sent one by one, each with an answer of its own.
 *
 * Old rows are deleted by the sweep.  A store that only commands use, each of which opens it for a moment, has none: so
 * one put in SWEEP_OF also sweeps.
 */
#include "store/run.h"
#include "sql/text.h"
#include "sql/wire.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { TOGETHER = 64, SWEEP_OF = 32, SWEPT = 100, TEXT_MAX = 2400, CLASHES = 8, NAP_MS = 5, LIST_VALUES = 12 };

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__sql_value value;
typedef struct dibs__run_op run_op;
typedef struct dibs__run_row row_t;

static const char keep_setting[] = "run.keep";

#define QUOTE(x) #x
#define QUOTED(x) QUOTE(x)
#define KEEP_MS 2592000000
static_assert(KEEP_MS == DIBS__RUN_KEEP_MS, "one number, written twice");
#define COLUMNS "id, ended, began, name, kind, host, fence, nr, how, code, command, output"

static value text_of(dibs__str text) {
  return dibs__sql_text(text.p, text.len);
}

/* ---- Statements ---- */

/* `keeps`: for how long, as the store's setting says; 0: it keeps none.  $14 is what the run itself says, or -1. */
#define INSERT                                                                                                         \
  "INSERT INTO dibs_run (" COLUMNS ", until)"                                                                          \
  " SELECT $1, @{now} - $2, @{now} - $3, $4, $5, $6, $7, $8, $9, $10, $11, $12,"                                       \
  " @{now} + CASE WHEN $14 < 0 THEN keeps ELSE $14 END"                                                                \
  " FROM (SELECT coalesce((SELECT number FROM dibs_setting WHERE name = $13), " QUOTED(                                \
      KEEP_MS) ") AS keeps)"                                                                                           \
               " AS s"                                                                                                 \
               " WHERE keeps > 0 AND $14 <> 0"

static sql_rc put_row(const struct dibs__sql_guard *g, const run_op *op) {
  const row_t *row = &op->row;
  value values[] = {dibs__sql_bytes(row->id.b, sizeof row->id.b),
                    dibs__sql_number(row->ended_ms),
                    dibs__sql_number(row->began_ms),
                    text_of(row->name),
                    text_of(row->kind),
                    text_of(row->host),
                    dibs__sql_number((int64_t)row->fence.v),
                    dibs__sql_number((int64_t)row->nr),
                    dibs__sql_number(row->how),
                    dibs__sql_number(row->code),
                    dibs__sql_bytes(row->command.p, row->command.len),
                    dibs__sql_bytes(row->output.p, row->output.len),
                    dibs__sql_text(keep_setting, sizeof keep_setting - 1),
                    dibs__sql_number(op->keep_ms)};
  const char *text = g->wire->engine->on_conflict ? INSERT " ON CONFLICT DO NOTHING"
                                                  : INSERT " ON DUPLICATE KEY UPDATE dibs_run.until = dibs_run.until";
  return dibs__sql_put_composed(g, text, values, sizeof values / sizeof values[0]);
}

static sql_rc put_setting(const struct dibs__sql_guard *g, const run_op *op) {
  value values[] = {dibs__sql_text(keep_setting, sizeof keep_setting - 1),
                    op->keep_ms < 0 ? dibs__sql_null() : dibs__sql_number(op->keep_ms)};
  return dibs__sql_put_composed(g,
                                g->wire->engine->on_conflict
                                    ? "INSERT INTO dibs_setting (name, number) VALUES ($1, $2)"
                                      " ON CONFLICT (name) DO UPDATE SET number = excluded.number"
                                    : "INSERT INTO dibs_setting (name, number) VALUES ($1, $2)"
                                      " ON DUPLICATE KEY UPDATE number = VALUES(number)",
                                values, 2);
}

struct listing {
  struct dibs__text text;
  value values[LIST_VALUES];
  size_t count;
  char memory[TEXT_MAX / 2];
};

/* `%zu` in the condition is the number of the value, which is in it once. */
static size_t add_value(struct listing *l, value v) {
  l->values[l->count++] = v;
  return l->count;
}

static void add_conditions(struct listing *l, const run_op *op) {
  static const dibs__id none = {{0}};
  if (op->name.len) dibs__text_addf(&l->text, " AND name = $%zu", add_value(l, text_of(op->name)));
  if (op->kind.len) dibs__text_addf(&l->text, " AND kind = $%zu", add_value(l, text_of(op->kind)));
  if (op->prefix.len) {
    size_t nth = add_value(l, text_of(op->prefix));
    dibs__text_addf(&l->text, " AND name >= $%zu AND substr(name, 1, length($%zu)) = $%zu", nth, nth, nth);
  }
  if (op->nr) dibs__text_addf(&l->text, " AND nr = %" PRIu64 " AND nr > 0", op->nr);
  if (op->failed) dibs__text_addf(&l->text, " AND how <> %d", DIBS__RUN_DONE);
  if (op->since_ms) dibs__text_addf(&l->text, " AND ended >= %" PRId64, op->since_ms);
  if (!op->before_ms) return;
  if (dibs__id_equal(op->before_id, none)) {
    dibs__text_addf(&l->text, " AND ended < %" PRId64, op->before_ms);
    return;
  }
  size_t nth = add_value(l, dibs__sql_bytes(op->before_id.b, sizeof op->before_id.b));
  dibs__text_addf(&l->text, " AND ended <= %" PRId64 " AND (ended < %" PRId64 " OR id < $%zu)", op->before_ms,
                  op->before_ms, nth);
}

static sql_rc put_list(const struct dibs__sql_guard *g, const run_op *op) {
  value name = dibs__sql_text(keep_setting, sizeof keep_setting - 1);
  struct listing l = {.count = 0};
  dibs__text_begin(&l.text, l.memory, sizeof l.memory);
  dibs__text_adds(&l.text, "SELECT " COLUMNS " FROM dibs_run WHERE until > (SELECT @{start})");
  add_conditions(&l, op);
  dibs__text_addf(&l.text, " ORDER BY ended DESC, id DESC LIMIT %" PRIu32, op->most);
  sql_rc end = dibs__sql_put_composed(g, l.memory, l.values, l.count);
  if (end == DIBS__SQL_OK)
    end = dibs__sql_put_composed(g, "SELECT @{now}, (SELECT number FROM dibs_setting WHERE name = $1)", &name, 1);
  return end;
}

/* ---- Answers ---- */

static dibs__str cell_text(const struct dibs__sql_wire *w, size_t row, size_t column, enum dibs__sql_kind as) {
  value cell = w->engine->cell(w, 0, row, column, as);
  return cell.kind == DIBS__SQL_NULL ? (dibs__str){"", 0} : (dibs__str){cell.p, cell.len};
}

static void read_row(const struct dibs__sql_wire *w, size_t nth, row_t *row) {
  value id = w->engine->cell(w, 0, nth, 0, DIBS__SQL_BYTES);
  *row = (row_t){.ended_ms = dibs__sql_cell_number(w, 0, nth, 1),
                 .began_ms = dibs__sql_cell_number(w, 0, nth, 2),
                 .name = cell_text(w, nth, 3, DIBS__SQL_TEXT),
                 .kind = cell_text(w, nth, 4, DIBS__SQL_TEXT),
                 .host = cell_text(w, nth, 5, DIBS__SQL_TEXT),
                 .fence = {(uint64_t)dibs__sql_cell_number(w, 0, nth, 6)},
                 .nr = (uint64_t)dibs__sql_cell_number(w, 0, nth, 7),
                 .how = (uint32_t)dibs__sql_cell_number(w, 0, nth, 8),
                 .code = (int32_t)dibs__sql_cell_number(w, 0, nth, 9),
                 .command = cell_text(w, nth, 10, DIBS__SQL_BYTES),
                 .output = cell_text(w, nth, 11, DIBS__SQL_BYTES)};
  if (id.kind == DIBS__SQL_BYTES && id.len == sizeof row->id.b) memcpy(row->id.b, id.p, sizeof row->id.b);
}

static void answer_list(const struct dibs__sql_wire *w, run_op *op) {
  size_t count = w->engine->rows(w, 0);
  row_t *rows = malloc((count + 1) * sizeof *rows);
  if (!rows) {
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  for (size_t i = 0; i < count; i++) read_row(w, i, &rows[i]);
  dibs__run_answer(op, rows, count);
  free(rows);
  if (w->engine->rows(w, 1) == 0) return;
  op->now_ms = dibs__sql_cell_number(w, 1, 0, 0);
  value keeps = w->engine->cell(w, 1, 0, 1, DIBS__SQL_NUMBER);
  op->off = keeps.kind == DIBS__SQL_NUMBER && keeps.number == 0;
}

/* ---- A batch ---- */

/* As one transaction, in one packet. */
static sql_rc send_puts(struct dibs__sql_guard *g, run_op *const ops[], size_t count) {
  struct dibs__sql_wire *w = g->wire;
  sql_rc end = dibs__sql_begin(w);
  for (size_t i = 0; i < count && end == DIBS__SQL_OK; i++) end = put_row(g, ops[i]);
  if (end == DIBS__SQL_OK) end = dibs__sql_commit(w);
  if (end == DIBS__SQL_OK) end = w->engine->go(w, true);
  if (end != DIBS__SQL_OK) {
    if (!dibs__sql_dead(w) && !w->unsure) dibs__sql_rollback(w);
    return end;
  }
  g->commits++;
  for (size_t i = 0; i < count; i++) ops[i]->op.status = DIBS_OK;
  return end;
}

static sql_rc send_one(struct dibs__sql_guard *g, run_op *op) {
  struct dibs__sql_wire *w = g->wire;
  bool lists = op->op.verb == DIBS__RUN_LIST;
  if (op->op.verb == DIBS__RUN_PUT) return send_puts(g, &op, 1);
  sql_rc end = lists ? put_list(g, op) : put_setting(g, op);
  if (end == DIBS__SQL_OK) end = w->engine->go(w, !lists);
  if (end != DIBS__SQL_OK) return end;
  op->op.status = DIBS_OK;
  if (lists)
    answer_list(w, op);
  else
    g->commits++;
  return end;
}

static sql_rc run_one(struct dibs__sql_guard *g, run_op *op) {
  struct dibs__sql_wire *w = g->wire;
  for (int clashes = 0;; clashes++) {
    sql_rc end = send_one(g, op);
    if (end == DIBS__SQL_OK || dibs__sql_dead(w) || w->unsure || w->trouble == DIBS__SQL_NO_SPACE) return end;
    bool again = w->trouble == DIBS__SQL_DEADLOCK && clashes < CLASHES;
    if (!again || dibs__tick_left_ms(dibs__tick_now(), w->by) <= NAP_MS) {
      op->op.status = dibs__sql_explain(w, "keep what ran in", g->store, g->result);
      return DIBS__SQL_OK;
    }
    dibs__nap_ms(NAP_MS);
  }
}

/* How many of the first are puts that may travel together. */
static size_t count_puts(run_op *const ops[], size_t count) {
  size_t n = 0;
  while (n < count && n < TOGETHER && ops[n]->op.verb == DIBS__RUN_PUT && ops[n]->op.status == DIBS_UNKNOWN) n++;
  return n;
}

static bool sweeps_too(run_op *const ops[], size_t count) {
  for (size_t i = 0; i < count; i++)
    if (ops[i]->op.verb == DIBS__RUN_PUT && ops[i]->op.status == DIBS_OK && ops[i]->row.id.b[0] % SWEEP_OF == 0)
      return true;
  return false;
}

sql_rc dibs__sql_run(struct dibs__sql_guard *g, run_op *const ops[], size_t count) {
  struct dibs__sql_wire *w = g->wire;
  sql_rc end = DIBS__SQL_OK;
  for (size_t i = 0; i < count; i++)
    if (dibs__run_valid(ops[i])) ops[i]->op.status = DIBS_UNKNOWN;
  for (size_t at = 0; at < count && end == DIBS__SQL_OK;) {
    size_t puts = count_puts(ops + at, count - at);
    if (puts > 1) {
      end = send_puts(g, ops + at, puts);
      if (end != DIBS__SQL_OK && (dibs__sql_dead(w) || w->unsure || w->trouble == DIBS__SQL_NO_SPACE)) return end;
    }
    size_t next = at + (puts > 1 ? puts : 1);
    end = DIBS__SQL_OK;
    for (; at < next && end == DIBS__SQL_OK; at++)
      if (ops[at]->op.status == DIBS_UNKNOWN) end = run_one(g, ops[at]);
  }
  if (end != DIBS__SQL_OK || !sweeps_too(ops, count)) return end;
  bool more;
  sql_rc swept = dibs__sql_run_sweep(g, &more);
  return swept == DIBS__SQL_OK || !dibs__sql_dead(w) ? DIBS__SQL_OK : swept;
}

sql_rc dibs__sql_run_sweep(struct dibs__sql_guard *g, bool *more) {
  return dibs__sql_sweep(g, "dibs_run", "id", SWEPT, more);
}

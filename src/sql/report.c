/* SPDX-License-Identifier: MIT */
/*
 * Reports: a row a client, overwritten each second.
 *
 * A report is put and all are read in one packet: the row's own transaction, which need not wait for the disk, and a
 * look behind it.  Rows that are too old are seen by the look, and only then taken away, one by one: a DELETE over the
 * whole table would wait for whoever writes theirs, who may do the same.
 */
#include "sql/guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_MAX = 600, GONE_MAX = 64, CLASHES = 8, NAP_MS = 2 };

typedef enum dibs__sql_step step;
typedef struct dibs__sql_value value;
typedef struct dibs__report_op report;

/* ---- Putting ---- */

static step put_row(const struct dibs__sql_guard *g, const report *op) {
  const struct dibs__sql_engine *e = g->wire->engine;
  value values[] = {dibs__sql_bytes(op->id.b, sizeof op->id.b), dibs__sql_bytes(op->data.p, op->data.len)};
  char text[TEXT_MAX];
  snprintf(text, sizeof text, "INSERT INTO %sreport (id, seen, data) VALUES ($1, %s, $2) %s", g->prefix, e->now_ms,
           e->on_conflict ? "ON CONFLICT (id) DO UPDATE SET seen = excluded.seen, data = excluded.data"
                          : "ON DUPLICATE KEY UPDATE seen = VALUES(seen), data = VALUES(data)");
  if (!g->lazy) return e->put(g->wire, text, values, 2);
  step end = dibs__sql_begin(g->wire);
  if (end == DIBS__SQL_FINE) end = e->put(g->wire, g->lazy, NULL, 0);
  if (end == DIBS__SQL_FINE) end = e->put(g->wire, text, values, 2);
  return end == DIBS__SQL_FINE ? dibs__sql_commit(g->wire) : end;
}

static step put_drop(const struct dibs__sql_guard *g, const report *op) {
  value id = dibs__sql_bytes(op->id.b, sizeof op->id.b);
  char text[TEXT_MAX];
  snprintf(text, sizeof text, "DELETE FROM %sreport WHERE id = $1", g->prefix);
  return g->wire->engine->put(g->wire, text, &id, 1);
}

/* The youngest first, because there is a limit; `all`: else those alone that are too old, and not what they say. */
static step put_look(const struct dibs__sql_guard *g, const report *op, bool all) {
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

/* A clock that was set back makes rows of the future: a little is taken for now, much for too old. */
static bool too_old(const report *op, int64_t age_ms) {
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

static struct size measure(const struct dibs__sql_wire *w, const report *op, size_t nth) {
  struct size all = {0, 0};
  for (size_t row = 0; row < w->engine->rows(w, nth) && all.count < DIBS__REPORTS_MAX; row++) {
    if (too_old(op, dibs__sql_cell_number(w, nth, row, 1))) continue;
    value data = w->engine->cell(w, nth, row, 2, DIBS__SQL_BYTES);
    all.count++;
    all.bytes += data.kind == DIBS__SQL_NULL ? 0 : data.len;
  }
  return all;
}

static void hand_out(const struct dibs__sql_wire *w, report *op, size_t nth) {
  struct size all = measure(w, op, nth);
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

/* Which rows are too old. */
static size_t gone(const struct dibs__sql_wire *w, const report *op, size_t nth, dibs__id to[GONE_MAX]) {
  size_t count = 0;
  for (size_t row = 0; row < w->engine->rows(w, nth) && count < GONE_MAX; row++)
    if (too_old(op, dibs__sql_cell_number(w, nth, row, 1))) to[count++] = id_at(w, nth, row);
  return count;
}

/* Unless they were written again meanwhile.  What goes wrong here is nobody's trouble: the next one tries again. */
static void sweep(struct dibs__sql_guard *g, const report *op, const dibs__id ids[], size_t count) {
  struct dibs__sql_wire *w = g->wire;
  char text[TEXT_MAX];
  snprintf(text, sizeof text, "DELETE FROM %sreport WHERE id = $1 AND seen NOT BETWEEN %s - $2 AND %s + $2", g->prefix,
           w->engine->now_ms, w->engine->now_ms);
  for (size_t i = 0; i < count; i++) {
    value values[] = {dibs__sql_bytes(ids[i].b, sizeof ids[i].b), dibs__sql_number(op->keep_ms)};
    if (w->engine->put(w, text, values, 2) != DIBS__SQL_FINE) break;
  }
  if (w->engine->go(w, true) == DIBS__SQL_FINE) g->commits++;
}

/* ---- One ---- */

static bool valid(const report *op) {
  if (op->op.verb == DIBS__REPORT_DROP) return true;
  if (op->op.verb > DIBS__REPORT_DROP || op->keep_ms <= 0) return false;
  return op->op.verb != DIBS__REPORT_PUT || op->data.len <= DIBS__REPORT_MAX;
}

static step travel(struct dibs__sql_guard *g, report *op) {
  struct dibs__sql_wire *w = g->wire;
  bool puts = op->op.verb == DIBS__REPORT_PUT, drops = op->op.verb == DIBS__REPORT_DROP;
  bool all = op->op.verb == DIBS__REPORT_READ || op->want;
  dibs__id old[GONE_MAX];
  step end = puts ? put_row(g, op) : drops ? put_drop(g, op) : DIBS__SQL_FINE;
  size_t nth = w->put;
  if (end == DIBS__SQL_FINE && !drops) end = put_look(g, op, all);
  if (end == DIBS__SQL_FINE) end = w->engine->go(w, puts || drops);
  if (end != DIBS__SQL_FINE) return end;
  if (puts || drops) g->commits++;
  op->op.status = DIBS_OK;
  if (drops) return end;
  if (all) hand_out(w, op, nth);
  size_t count = puts ? gone(w, op, nth, old) : 0;
  if (count) sweep(g, op, old, count);
  return end;
}

static step one(struct dibs__sql_guard *g, report *op) {
  struct dibs__sql_wire *w = g->wire;
  for (int clashes = 0;; clashes++) {
    step end = travel(g, op);
    if (end == DIBS__SQL_FINE || dibs__sql_dead(w) || w->unsure) return end;
    if (op->op.verb == DIBS__REPORT_PUT && g->lazy) dibs__sql_rollback(w);
    if (dibs__sql_dead(w) || w->trouble == DIBS__SQL_NO_SPACE) return end;
    bool again = w->trouble == DIBS__SQL_DEADLOCK && clashes < CLASHES;
    if (!again || dibs__tick_left_ms(dibs__tick_now(), w->by) <= NAP_MS) {
      op->op.status = dibs__sql_excuse(w, "keep a report in", g->store, g->said);
      return DIBS__SQL_FINE;
    }
    dibs__nap_ms(NAP_MS);
  }
}

step dibs__sql_report(struct dibs__sql_guard *g, report *const ops[], size_t count) {
  step end = DIBS__SQL_FINE;
  for (size_t i = 0; i < count; i++) {
    ops[i]->got = NULL;
    ops[i]->got_count = 0;
    if (!valid(ops[i])) ops[i]->op.status = DIBS_INVALID;
  }
  for (size_t i = 0; i < count && end == DIBS__SQL_FINE; i++)
    if (ops[i]->op.status != DIBS_INVALID) end = one(g, ops[i]);
  return end;
}

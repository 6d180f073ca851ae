/* SPDX-License-Identifier: MIT */
/*
 * The rows of the experiment `phases` as a table:
 *
 *   rows    (id, phase, state, locked_at, created_at, updated_at, fence, certificate, late)
 *   effects (row_id, step, node, late)
 *
 * By hand each statement commits by itself.  With dibs the effect and the row are written by one transaction.
 */
#include "lab/phases.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AGAIN_MS = 10, PROBE_MS = 300, TEXT_MAX = 600, VALUES_MAX = 6 };

struct sql {
  struct lab_connection *connection;
  struct lab_line line;
};

static struct lab_line *line_of(const struct phases_db *db) {
  return &((struct sql *)db->own)->line;
}

static dibs_status fail(struct phases_db *db, const char *why) {
  const struct sql *sql = db->own;
  snprintf(db->why, sizeof db->why, "at %.200s: %.400s", dibs__lab_connection_shown(sql->connection), why);
  return DIBS_UNAVAILABLE;
}

/* ---- Statements ---- */

static bool may_repeat(const struct lab_line *line) {
  enum dibs__sql_trouble trouble = line->wire->trouble;
  return trouble == DIBS__SQL_DEADLOCK || trouble == DIBS__SQL_LOCKED;
}

/* A statement that commits by itself; again while another session has locked the row, and after a deadlock. */
static dibs_status run(struct phases_db *db, const char *text, const struct dibs__sql_value *values, size_t count) {
  struct lab_line *line = line_of(db);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), LAB_LINE_MS);
  while (dibs__lab_run_sql(line, text, values, count) != DIBS__SQL_OK) {
    if (!may_repeat(line) || !dibs__tick_before(dibs__tick_now(), by)) return fail(db, line->wire->message);
    dibs__nap_ms(AGAIN_MS);
  }
  return DIBS_OK;
}

static bool has_changed(const struct phases_db *db) {
  const struct dibs__sql_wire *wire = line_of(db)->wire;
  return wire->engine->changed(wire, 0) > 0;
}

static size_t rows_of(const struct phases_db *db) {
  const struct dibs__sql_wire *wire = line_of(db)->wire;
  return wire->engine->rows(wire, 0);
}

static int64_t number_in(const struct phases_db *db, size_t row, size_t column) {
  return dibs__sql_cell_number(line_of(db)->wire, 0, row, column);
}

static void copy_cell(const struct phases_db *db, size_t column, char *to, size_t size) {
  const struct dibs__sql_wire *wire = line_of(db)->wire;
  struct dibs__sql_value cell = wire->engine->cell(wire, 0, 0, column, DIBS__SQL_TEXT);
  snprintf(to, size, "%.*s", (int)cell.len, cell.p ? cell.p : "");
}

static dibs_status number(struct phases_db *db, const char *text, int64_t *to) {
  dibs_status status = run(db, text, NULL, 0);
  *to = status == DIBS_OK && rows_of(db) > 0 ? number_in(db, 0, 0) : 0;
  return status;
}

/* ---- Tables ---- */

static dibs_status drop(struct phases_db *db) {
  char text[TEXT_MAX];
  snprintf(text, sizeof text, "DROP TABLE IF EXISTS %s", db->effects);
  dibs_status status = run(db, text, NULL, 0);
  snprintf(text, sizeof text, "DROP TABLE IF EXISTS %s", db->rows);
  return status == DIBS_OK ? run(db, text, NULL, 0) : status;
}

static dibs_status fill(struct phases_db *db) {
  char text[TEXT_MAX], id[LAB_KEY_MAX];
  int64_t now = dibs__wall_ms();
  dibs_status status = DIBS_OK;
  for (uint32_t i = 1; status == DIBS_OK && i <= PHASES_ROWS; i++) {
    dibs__phases_id(id, i);
    snprintf(text, sizeof text,
             "INSERT INTO %s (id, phase, state, locked_at, created_at, updated_at, fence, certificate, late) VALUES "
             "('%s', 'Creating', 0, 0, %" PRId64 ", %" PRId64 ", 0, 0, 0)",
             db->rows, id, now, now + i);
    status = run(db, text, NULL, 0);
  }
  return status;
}

static dibs_status make(struct phases_db *db) {
  const struct dibs__sql_words *w = &line_of(db)->wire->engine->words;
  char text[TEXT_MAX];
  dibs_status status = drop(db);
  snprintf(text, sizeof text,
           "CREATE TABLE %s (id %s NOT NULL PRIMARY KEY, phase %s NOT NULL, state %s NOT NULL, locked_at %s NOT NULL, "
           "created_at %s NOT NULL, updated_at %s NOT NULL, fence %s NOT NULL, certificate %s NOT NULL, "
           "late %s NOT NULL)",
           db->rows, w->name, w->name, w->number, w->number, w->number, w->number, w->number, w->number, w->number);
  if (status == DIBS_OK) status = run(db, text, NULL, 0);
  snprintf(text, sizeof text, "CREATE INDEX %s_oldest ON %s (phase, locked_at, updated_at)", db->rows, db->rows);
  if (status == DIBS_OK) status = run(db, text, NULL, 0);
  snprintf(text, sizeof text,
           "CREATE TABLE %s (row_id %s NOT NULL, step %s NOT NULL, node %s NOT NULL, late %s NOT NULL)", db->effects,
           w->name, w->number, w->number, w->number);
  if (status == DIBS_OK) status = run(db, text, NULL, 0);
  return status == DIBS_OK ? fill(db) : status;
}

static dibs_status version(struct phases_db *db, char *to, size_t size) {
  dibs__lab_version(line_of(db), to, size);
  return DIBS_OK;
}

/* ---- The lab's side ---- */

static dibs_status request_deletions(struct phases_db *db) {
  char text[TEXT_MAX];
  snprintf(text, sizeof text, "UPDATE %s SET phase = 'Deleting', updated_at = %" PRId64 " WHERE phase = 'Ready'",
           db->rows, dibs__wall_ms());
  return run(db, text, NULL, 0);
}

/* A process that is stopped inside of a transaction keeps SQLite's lock. */
static dibs_status probe(struct phases_db *db) {
  char text[TEXT_MAX];
  struct sql *sql = db->own;
  struct dibs__result result = {0};
  if (sql->line.wire->engine->sessions) return DIBS_OK;
  snprintf(text, sizeof text, "UPDATE %s SET late = late WHERE id = ''", db->rows);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), PROBE_MS);
  if (dibs__lab_run_sql_by(&sql->line, text, NULL, 0, by, false) == DIBS__SQL_OK) return DIBS_OK;
  if (!dibs__sql_dead(sql->line.wire)) return DIBS_HELD;
  dibs__lab_line_close(&sql->line);
  return dibs__lab_line_open(sql->connection, &sql->line, &result) == DIBS_OK ? DIBS_HELD : fail(db, result.text);
}

static dibs_status count_step(struct phases_db *db, const char *id, uint32_t step, int64_t *to) {
  char text[TEXT_MAX];
  snprintf(text, sizeof text, "SELECT COUNT(*) FROM %s WHERE row_id = '%s' AND step = %u", db->effects, id, step);
  return number(db, text, to);
}

static dibs_status count_ended(struct phases_db *db, int64_t *to) {
  char text[TEXT_MAX];
  snprintf(text, sizeof text, "SELECT COUNT(*) FROM %s WHERE phase = 'Deleted' AND locked_at <= 0", db->rows);
  return number(db, text, to);
}

static dibs_status count(struct phases_db *db, struct phases_counted *to) {
  char text[TEXT_MAX];
  snprintf(text, sizeof text, "SELECT COUNT(*) FROM %s WHERE phase = 'Deleted' AND state = %d", db->rows, PHASES_STEPS);
  dibs_status status = number(db, text, &to->done);
  snprintf(text, sizeof text, "SELECT COUNT(*) FROM %s", db->effects);
  if (status == DIBS_OK) status = number(db, text, &to->effects);
  snprintf(text, sizeof text, "SELECT COUNT(*) FROM (SELECT DISTINCT row_id, step FROM %s) d", db->effects);
  if (status == DIBS_OK) status = number(db, text, &to->distinct);
  snprintf(text, sizeof text, "SELECT COUNT(*) FROM %s WHERE late > 0", db->effects);
  if (status == DIBS_OK) status = number(db, text, &to->late);
  snprintf(text, sizeof text, "SELECT late FROM %s WHERE late > 0", db->rows);
  if (status == DIBS_OK) status = run(db, text, NULL, 0);
  for (size_t i = 0; status == DIBS_OK && i < rows_of(db); i++) to->late += number_in(db, i, 0);
  return status;
}

/* ---- A node's side ---- */

static const char *guard_of(const struct phases_db *db) {
  return db->method == PHASES_DIBS ? "fence" : "locked_at";
}

/* The free row that was locked first, taken by an UPDATE that compares locked_at. */
static dibs_status claim(struct phases_db *db, struct phases_row *row) {
  char text[TEXT_MAX];
  int64_t now = dibs__wall_ms();
  struct dibs__sql_value oldest = dibs__sql_number(now - db->timeout_ms);
  snprintf(text, sizeof text,
           "SELECT id, phase, state, certificate, locked_at FROM %s WHERE phase IN ('Creating', 'Deleting') AND "
           "locked_at <= $1 ORDER BY locked_at, updated_at LIMIT 1",
           db->rows);
  dibs_status status = run(db, text, &oldest, 1);
  if (status != DIBS_OK || rows_of(db) == 0) return status == DIBS_OK ? DIBS_NOT_FOUND : status;
  copy_cell(db, 0, row->id, sizeof row->id);
  copy_cell(db, 1, row->phase, sizeof row->phase);
  row->state = number_in(db, 0, 2);
  row->certificate = number_in(db, 0, 3);
  int64_t locked = number_in(db, 0, 4);
  row->mine = now > locked ? now : locked + 1;
  struct dibs__sql_value values[] = {dibs__sql_text(row->id, strlen(row->id)), dibs__sql_number(locked),
                                     dibs__sql_number(row->mine)};
  snprintf(text, sizeof text, "UPDATE %s SET locked_at = $3 WHERE id = $1 AND locked_at = $2", db->rows);
  status = run(db, text, values, 3);
  return status == DIBS_OK && !has_changed(db) ? DIBS_NOT_FOUND : status;
}

static dibs_status read_row(struct phases_db *db, struct phases_row *row) {
  char text[TEXT_MAX];
  struct dibs__sql_value id = dibs__sql_text(row->id, strlen(row->id));
  snprintf(text, sizeof text, "SELECT state, certificate FROM %s WHERE id = $1", db->rows);
  dibs_status status = run(db, text, &id, 1);
  if (status != DIBS_OK) return status;
  if (rows_of(db) == 0) return fail(db, "the row is missing");
  row->state = number_in(db, 0, 0);
  row->certificate = number_in(db, 0, 1);
  return DIBS_OK;
}

static size_t effect_text(const struct phases_db *db, const struct phases_row *row, char text[TEXT_MAX],
                          struct dibs__sql_value values[VALUES_MAX]) {
  snprintf(text, TEXT_MAX,
           "INSERT INTO %s (row_id, step, node, late) SELECT id, $2, $3, CASE WHEN %s = $4 THEN 0 ELSE 1 END FROM %s "
           "WHERE id = $1",
           db->effects, guard_of(db), db->rows);
  values[0] = dibs__sql_text(row->id, strlen(row->id));
  values[1] = dibs__sql_number(row->state);
  values[2] = dibs__sql_number(db->node);
  values[3] = dibs__sql_number(row->mine);
  return 4;
}

/* What a row is after a step; by hand also its phase, and it is free. */
static size_t row_text(const struct phases_db *db, const struct phases_row *row, const char *phase, char text[TEXT_MAX],
                       struct dibs__sql_value values[VALUES_MAX]) {
  bool by_hand = db->method != PHASES_DIBS, guarded = db->method != PHASES_POLLED;
  const char *guard = guard_of(db);
  snprintf(text, TEXT_MAX,
           "UPDATE %s SET late = late + CASE WHEN %s = $2 THEN 0 ELSE 1 END, state = $3, certificate = $4%s "
           "WHERE id = $1%s%s%s",
           db->rows, guard, by_hand ? ", phase = $5, locked_at = 0, updated_at = $6" : "", guarded ? " AND " : "",
           guarded ? guard : "", guarded ? " = $2" : "");
  values[0] = dibs__sql_text(row->id, strlen(row->id));
  values[1] = dibs__sql_number(row->mine);
  values[2] = dibs__sql_number(row->state);
  values[3] = dibs__sql_number(row->certificate);
  values[4] = dibs__sql_text(phase, strlen(phase));
  values[5] = dibs__sql_number(dibs__wall_ms());
  return by_hand ? 6 : 4;
}

static dibs_status effect(struct phases_db *db, const struct phases_row *row) {
  char text[TEXT_MAX];
  struct dibs__sql_value values[VALUES_MAX];
  size_t count = effect_text(db, row, text, values);
  return run(db, text, values, count);
}

static dibs_status write_row(struct phases_db *db, const struct phases_row *row, const char *phase) {
  char text[TEXT_MAX];
  struct dibs__sql_value values[VALUES_MAX];
  size_t count = row_text(db, row, phase, text, values);
  dibs_status status = run(db, text, values, count);
  return status == DIBS_OK && !has_changed(db) ? DIBS_STALE : status;
}

/* *again: nothing was done, and it may be tried again. */
static dibs_status transact(struct phases_db *db, const struct phases_row *row, const struct phases_row *next,
                            bool *again) {
  char text[TEXT_MAX];
  struct dibs__sql_value values[VALUES_MAX];
  struct lab_line *line = line_of(db);
  size_t count = row_text(db, next, "", text, values);
  enum dibs__sql_rc step = dibs__lab_run_sql(line, line->wire->engine->begin, NULL, 0);
  *again = false;
  if (step == DIBS__SQL_OK) step = dibs__lab_run_sql(line, text, values, count);
  if (step == DIBS__SQL_OK && !has_changed(db)) {
    dibs__sql_rollback(line->wire);
    return DIBS_STALE;
  }
  count = effect_text(db, row, text, values);
  if (step == DIBS__SQL_OK) step = dibs__lab_run_sql(line, text, values, count);
  if (step == DIBS__SQL_OK) step = dibs__lab_run_sql(line, "COMMIT", NULL, 0);
  if (step == DIBS__SQL_OK) return DIBS_OK;
  dibs_status status = fail(db, line->wire->message);
  *again = may_repeat(line);
  if (*again) dibs__sql_rollback(line->wire);
  return status;
}

static dibs_status commit(struct phases_db *db, const struct phases_row *row, const struct phases_row *next) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), LAB_LINE_MS);
  for (;;) {
    bool again;
    dibs_status status = transact(db, row, next, &again);
    if (!again || !dibs__tick_before(dibs__tick_now(), by)) return status;
    dibs__nap_ms(AGAIN_MS);
  }
}

/* ---- The engine ---- */

static void close_db(struct phases_db *db) {
  struct sql *sql = db->own;
  if (!sql) return;
  dibs__lab_line_close(&sql->line);
  dibs__lab_connection_close(sql->connection);
  free(sql);
  db->own = NULL;
}

static dibs_status open_db(struct phases_db *db) {
  struct dibs__result result = {0};
  struct sql *sql = calloc(1, sizeof *sql);
  db->own = sql;
  dibs__status status = sql ? dibs__lab_connection_open(db->uri, &sql->connection, &result) : DIBS_NO_MEMORY;
  if (status == DIBS_OK) status = dibs__lab_line_open(sql->connection, &sql->line, &result);
  if (status == DIBS_OK) return DIBS_OK;
  snprintf(db->why, sizeof db->why, "%s", result.text[0] ? result.text : dibs_status_text((dibs_status)status));
  close_db(db);
  return (dibs_status)status;
}

const struct phases_engine dibs__phases_sql = {
    .title = {[PHASES_POLLED] = "polled UPDATE", [PHASES_COMPARED] = "polled UPDATE, compared", [PHASES_DIBS] = "dibs"},
    .text = {[PHASES_POLLED] = "the oldest free row, claimed by its locked_at; what follows checks nothing",
             [PHASES_COMPARED] = "the same, and the row is written only if its locked_at is still that of the claim; "
                                 "the effect before it has happened by then",
             [PHASES_DIBS] = "claims of dibs; the effect and the row are written by one transaction, which compares "
                             "the fence of the claim"},
    .note = "The effects are rows of the same database. An effect elsewhere needs an id of its step, or a check of the "
            "fence there: a transaction of this database does not reach it.",
    .id = "id",
    .fence = "fence",
    .phase = "phase",
    .locked_at = "locked_at",
    .updated_at = "updated_at",
    .open = open_db,
    .close = close_db,
    .make = make,
    .drop = drop,
    .version = version,
    .request_deletions = request_deletions,
    .probe = probe,
    .count_step = count_step,
    .count_ended = count_ended,
    .count = count,
    .claim = claim,
    .read = read_row,
    .effect = effect,
    .write = write_row,
    .commit = commit,
};

/* SPDX-License-Identifier: MIT */
/*
 * Reading tasks: LIST, COUNT, rows as answers.
 *
 * Unfinished and finished tasks are in two tables.  Both are read by one statement, which sees one state of them: a
 * task that finishes at this moment is in exactly one of them.
 */
#include "sql/task_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__sql_value value;
typedef struct dibs__text text_t;
typedef struct dibs__task_op task_op;
typedef struct dibs__task_row row_t;
typedef struct dibs__task_kind kind_t;

/* ---- Rows ---- */

enum {
  NR,
  FENCE,
  PHASE,
  SERIAL,
  UNIQUE,
  ATTEMPTS,
  FAILS,
  TRIES,
  PRIORITY,
  MADE,
  DUE,
  BEGAN,
  AT,
  PAYLOAD,
  TEXT,
  STATE,
  KIND,
  OWNER
};

static const size_t texts[] = {PHASE, SERIAL, UNIQUE, PAYLOAD, TEXT, KIND, OWNER};

/* A cell that the answer does not have is empty. */
static dibs__str bytes_at(const struct dibs__sql_wire *w, size_t nth, size_t row, size_t column) {
  bool as_bytes = column == PAYLOAD || column == TEXT;
  value cell = w->engine->cell(w, nth, row, column, as_bytes ? DIBS__SQL_BYTES : DIBS__SQL_TEXT);
  return cell.kind == DIBS__SQL_NULL ? (dibs__str){"", 0} : (dibs__str){cell.p, cell.len};
}

static dibs__str append(char **at, dibs__str text) {
  char *to = *at;
  if (text.len) memcpy(to, text.p, text.len);
  to[text.len] = '\0';
  *at = to + text.len + 1;
  return dibs__str_of(to, text.len);
}

static size_t measure_row(const struct dibs__sql_wire *w, size_t nth, size_t row, bool more) {
  size_t size = sizeof texts / sizeof texts[0];
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
    if (more || texts[i] < STATE) size += bytes_at(w, nth, row, texts[i]).len;
  return size;
}

static bool has_end(uint32_t state) {
  uint32_t states = 1u << DIBS__TASK_CLAIMED | 1u << DIBS__TASK_WAITING | DIBS__TASK_FINISHED;
  return states >> state & 1;
}

static void read_row(const struct dibs__sql_wire *w, size_t nth, size_t row, bool more, row_t *to, char **at) {
  int64_t n[AT + 1];
  for (size_t i = 0; i <= AT; i++) n[i] = i >= PHASE && i <= UNIQUE ? 0 : dibs__sql_cell_number(w, nth, row, i);
  *to = (row_t){.nr = (uint64_t)n[NR],
                .fence = {(uint64_t)n[FENCE]},
                .attempts = (uint32_t)n[ATTEMPTS],
                .fails = (uint32_t)n[FAILS],
                .tries = n[TRIES] ? (uint32_t)n[TRIES] : DIBS__TASK_TRIES,
                .priority = (int32_t)n[PRIORITY],
                .made_ms = n[MADE],
                .due_ms = n[DUE],
                .began_ms = n[BEGAN],
                .at_ms = n[AT]};
  to->phase = append(at, bytes_at(w, nth, row, PHASE));
  to->serial = append(at, bytes_at(w, nth, row, SERIAL));
  to->unique = append(at, bytes_at(w, nth, row, UNIQUE));
  to->payload = append(at, bytes_at(w, nth, row, PAYLOAD));
  to->text = append(at, bytes_at(w, nth, row, TEXT));
  to->key = to->locked = dibs__str_of("", 0);
  if (!more) return;
  to->state = (uint32_t)dibs__sql_cell_number(w, nth, row, STATE);
  to->kind = append(at, bytes_at(w, nth, row, KIND));
  to->by = append(at, bytes_at(w, nth, row, OWNER));
  if (!has_end(to->state)) to->due_ms = 0;
}

bool dibs__task_read_rows(const struct dibs__sql_wire *w, size_t first, size_t answers, bool more, const task_op *op,
                          row_t **rows, uint32_t *count) {
  size_t all = 0, size = (size_t)op->kind.len + op->by.len + 2;
  *rows = NULL;
  *count = 0;
  for (size_t i = first; i < first + answers; i++)
    for (size_t row = 0; row < w->engine->rows(w, i); row++, all++) size += measure_row(w, i, row, more);
  if (all == 0) return true;
  *rows = malloc(all * sizeof **rows + size);
  if (!*rows) return false;
  char *at = (char *)(*rows + all);
  dibs__str kind = append(&at, op->kind), by = append(&at, op->by);
  for (size_t i = first; i < first + answers; i++)
    for (size_t row = 0; row < w->engine->rows(w, i); row++) {
      row_t *to = &(*rows)[(*count)++];
      read_row(w, i, row, more, to, &at);
      if (more) continue;
      to->kind = kind;
      to->by = by;
    }
  return true;
}

static const size_t texts_of_row[] = {offsetof(row_t, kind),   offsetof(row_t, phase),   offsetof(row_t, serial),
                                      offsetof(row_t, unique), offsetof(row_t, payload), offsetof(row_t, by),
                                      offsetof(row_t, text)};
enum { TEXTS_OF_ROW = sizeof texts_of_row / sizeof texts_of_row[0] };

static dibs__str *text_of_row(row_t *row, size_t i) {
  return (dibs__str *)(void *)((char *)row + texts_of_row[i]);
}

row_t *dibs__task_join_rows(const row_t *a, uint32_t a_count, const row_t *b, uint32_t b_count) {
  size_t size = 0;
  row_t *rows = malloc((a_count + b_count) * sizeof *rows), *all;
  if (!rows) return NULL;
  memcpy(rows, a, a_count * sizeof *rows);
  memcpy(rows + a_count, b, b_count * sizeof *rows);
  for (uint32_t i = 0; i < a_count + b_count; i++)
    for (size_t k = 0; k < TEXTS_OF_ROW; k++) size += (size_t)text_of_row(&rows[i], k)->len + 1;
  all = realloc(rows, (a_count + b_count) * sizeof *rows + size);
  if (!all) {
    free(rows);
    return NULL;
  }
  char *at = (char *)(all + a_count + b_count);
  for (uint32_t i = 0; i < a_count + b_count; i++)
    for (size_t k = 0; k < TEXTS_OF_ROW; k++) *text_of_row(&all[i], k) = append(&at, *text_of_row(&all[i], k));
  return all;
}

/* ---- The filter ---- */

#define LAST_ERROR "(SELECT e.text FROM dibs_task_error e WHERE e.nr = t.nr ORDER BY e.fence DESC LIMIT 1)"

static void add_condition(text_t *to, const char *condition, value v, value *values, size_t *count) {
  values[(*count)++] = v;
  dibs__text_addf(to, " AND t.%s$%zu", condition, *count);
}

/* A task by lane that is free: READY or WAITING. */
#define IS_FREE "t.state = 4 AND t.slot >= 0"
#define STATE "CASE WHEN " IS_FREE " THEN CASE WHEN t.due <= (SELECT @{start}) THEN 1 ELSE 3 END ELSE t.state END"

static void add_states(text_t *to, const char *column, uint32_t states) {
  const char *before = " (";
  dibs__text_addf(to, " AND %s IN", column);
  for (uint32_t state = 0; state <= DIBS__TASK_CANCELLED; state++) {
    if (!(states >> state & 1)) continue;
    dibs__text_addf(to, "%s%u", before, state);
    before = ", ";
  }
  dibs__text_adds(to, before[0] == ',' ? ")" : " (NULL)");
}

/* Unfinished ones.  First by what an index has: a free task by lane is in state 4 there. */
static void add_unfinished(text_t *to, uint32_t states) {
  uint32_t of_free = 1u << DIBS__TASK_READY | 1u << DIBS__TASK_WAITING, all = of_free | 1u << DIBS__TASK_BLOCKED;
  add_states(to, "t.state", states & of_free ? states | 1u << DIBS__TASK_BLOCKED : states);
  if (states & all && (states & all) != all) add_states(to, STATE, states);
}

void dibs__task_filter(text_t *to, const struct dibs__sql_engine *e, const struct dibs__task_filter *f, bool finished,
                       value *values, size_t *count) {
  add_condition(to, "nr > ", dibs__sql_number((int64_t)f->after), values, count);
  if (f->nr) add_condition(to, "nr = ", dibs__sql_number((int64_t)f->nr), values, count);
  if (f->kind.len) add_condition(to, "kind = ", dibs__task_text(f->kind), values, count);
  if (f->phase.len) add_condition(to, "phase = ", dibs__task_text(f->phase), values, count);
  if (f->serial.len) add_condition(to, "serial = ", dibs__task_text(f->serial), values, count);
  if (finished) dibs__text_adds(to, " AND (t.until IS NULL OR t.until > (SELECT @{start}))"); /* not swept yet */
  if (f->older_ms) add_condition(to, "at <= (SELECT @{start}) - ", dibs__sql_number(f->older_ms), values, count);
  /* Only those that the table can have: without one of them, it is not read. */
  uint32_t here = finished ? DIBS__TASK_FINISHED : DIBS__TASK_UNFINISHED;
  if (finished)
    add_states(to, "t.state", f->states ? f->states & here : here);
  else
    add_unfinished(to, f->states ? f->states & here : here);
  /* As the partial index of them says it: SQLite does not conclude it from the list. */
  uint32_t bad = 1u << DIBS__TASK_DEAD | 1u << DIBS__TASK_CANCELLED;
  if (finished && (f->states & here) && !(f->states & here & ~bad)) dibs__text_adds(to, " AND t.state > 6");
  /* Only dead ones have no `until`; an engine without partial indexes finds them by that index, in order. */
  if (finished && !e->words.some && f->states == 1u << DIBS__TASK_DEAD) dibs__text_adds(to, " AND t.until IS NULL");
  if (!f->text.len) return;
  values[(*count)++] = dibs__sql_bytes(f->text.p, f->text.len);
  if (finished) dibs__text_adds(to, " AND t.state <> 6");
  if (e->instr)
    dibs__text_addf(to, " AND instr(" LAST_ERROR ", $%zu) > 0", *count);
  else
    dibs__text_addf(to, " AND position($%zu IN " LAST_ERROR ") > 0", *count);
}

/* ---- Both tables ---- */

sql_rc dibs__task_put_halves(struct dibs__sql_guard *g, const task_op *op, dibs__task_half *add) {
  char memory[DIBS__TASK_TEXT / 2];
  value values[DIBS__TASK_FILTER_VALUES + 1] = {dibs__sql_number(op->most)};
  size_t first = 1, count = 1;
  text_t text;
  dibs__text_begin(&text, memory, sizeof memory);
  dibs__text_adds(&text, "SELECT * FROM (");
  add(&text, g, op, false, values, &first);
  dibs__text_adds(&text, " UNION ALL ");
  add(&text, g, op, true, values, &count);
  dibs__text_adds(&text, ") x ORDER BY nr LIMIT $1");
  return dibs__task_put(g, memory, values, count);
}

/* ---- LIST ---- */

#define T_COLUMNS                                                                                                      \
  "t.nr, t.fence, t.phase, t.serial, t.uniq, t.attempts, t.fails, t.tries, t.priority, t.made, %s AS due, t.began,"    \
  " t.at, %s AS payload, %s AS text, %s AS state, t.kind, t.owner FROM %s WHERE true"

/* Tasks that are not ready are few: those of a kind are found by their index, not among all tasks by number.  An engine
 * that knows how many there are chooses by itself. */
static const char *table_of(const task_op *op, bool finished) {
  uint32_t states = op->filter.states & DIBS__TASK_UNFINISHED;
  if (finished) return "dibs_task_done t";
  bool ready = states == 0 || (states >> DIBS__TASK_READY & 1);
  return op->filter.kind.len && !op->filter.nr && !ready ? "dibs_task t@{busy}" : "dibs_task t";
}

static void add_half(text_t *to, const struct dibs__sql_guard *g, const task_op *op, bool finished, value *values,
                     size_t *count) {
  dibs__text_addf(to, "SELECT * FROM (SELECT " T_COLUMNS, finished ? "t.until" : "t.due",
                  op->payloads ? "t.payload" : "NULL",
                  finished ? "CASE WHEN t.state = 6 THEN t.text ELSE " LAST_ERROR " END" : LAST_ERROR,
                  finished ? "t.state" : STATE, table_of(op, finished));
  if (strchr(table_of(op, finished), '@')) dibs__text_adds(to, " AND t.state <> 1");
  dibs__task_filter(to, g->wire->engine, &op->filter, finished, values, count);
  dibs__text_addf(to, " ORDER BY t.nr LIMIT $1) %s", finished ? "b" : "a");
}

static sql_rc put_errors(struct dibs__sql_guard *g, const task_op *op) {
  value values[] = {dibs__sql_number((int64_t)op->filter.nr), dibs__sql_number(op->most)};
  return dibs__task_put(g,
                        "SELECT nr, fence, '', NULL, NULL, 0, 0, 0, 0, 0, 0, 0, at, NULL, text, 0, '', owner"
                        " FROM dibs_task_error WHERE nr = $1 ORDER BY fence LIMIT $2",
                        values, 2);
}

sql_rc dibs__task_list(struct dibs__sql_guard *g, task_op *op) {
  row_t *rows;
  sql_rc end = op->errors ? put_errors(g, op) : dibs__task_put_halves(g, op, add_half);
  if (end == DIBS__SQL_OK) end = dibs__task_go(g);
  if (end != DIBS__SQL_OK) return end;
  if (!dibs__task_read_rows(g->wire, 0, 1, true, op, &rows, &op->got_count)) return dibs__task_no_memory(g);
  op->got = rows;
  for (uint32_t i = 0; i < op->got_count && op->errors; i++) rows[i].tries = 0;
  op->op.status = DIBS_OK;
  return end;
}

/* ---- COUNT ---- */

/* Added to the state of those by lane that are free, where they are counted on their own. */
enum { FREE = 100 };

/* Kinds in byte order. */
struct counted {
  kind_t *kinds;
  size_t count;
  char *texts;
};

static kind_t *kind_of(struct counted *c, dibs__str text) {
  size_t at = 0;
  while (at < c->count && dibs__str_before(c->kinds[at].kind, text)) at++;
  if (at < c->count && dibs__str_equal(c->kinds[at].kind, text)) return &c->kinds[at];
  memmove(&c->kinds[at + 1], &c->kinds[at], (c->count - at) * sizeof *c->kinds);
  c->count++;
  c->kinds[at] = (kind_t){.kind = append(&c->texts, text), .oldest_ms = -1, .keep_ms = -1, .topic = {"", 0}};
  return &c->kinds[at];
}

/* Those by lane that are free are also counted as blocked. */
static void read_free(const struct dibs__sql_wire *w, size_t nth, struct counted *c) {
  for (size_t row = 0; row < w->engine->rows(w, nth); row++) {
    kind_t *k = kind_of(c, dibs__task_cell_text(w, nth, row, 0));
    if (dibs__sql_cell_number(w, nth, row, 1) >= FREE)
      k->states[DIBS__TASK_BLOCKED] -= (uint64_t)dibs__sql_cell_number(w, nth, row, 2);
  }
}

static void read_counts(const struct dibs__sql_wire *w, size_t nth, struct counted *c) {
  for (size_t row = 0; row < w->engine->rows(w, nth); row++) {
    kind_t *k = kind_of(c, dibs__task_cell_text(w, nth, row, 0));
    int64_t state = dibs__sql_cell_number(w, nth, row, 1);
    if (state >= FREE) state -= FREE;
    if (state < 0 || state > DIBS__TASK_CANCELLED) continue;
    k->states[state] += (uint64_t)dibs__sql_cell_number(w, nth, row, 2);
    if (dibs__task_cell_is_null(w, nth, row, 3)) continue;
    int64_t age_ms = dibs__sql_cell_number(w, nth, row, 3);
    if (age_ms > k->oldest_ms) k->oldest_ms = age_ms;
  }
  read_free(w, nth, c);
}

static void read_settings(const struct dibs__sql_wire *w, size_t nth, struct counted *c) {
  for (size_t row = 0; row < w->engine->rows(w, nth); row++) {
    kind_t *k = kind_of(c, dibs__task_cell_text(w, nth, row, 0));
    k->running = (uint32_t)dibs__sql_cell_number(w, nth, row, 1);
    k->paused = dibs__sql_cell_number(w, nth, row, 2) != 0;
    k->keep_ms = dibs__task_cell_is_null(w, nth, row, 3) ? -1 : dibs__sql_cell_number(w, nth, row, 3);
    k->topic = append(&c->texts, dibs__task_cell_text(w, nth, row, 4));
  }
}

/* Each half is grouped in the order of its index, and names no column that the index lacks: for 300,000 tasks this
 * takes SQLite a tenth of the time that grouping both halves together takes, and PostgreSQL, after a vacuum, reads no
 * row of the table. */
static sql_rc put_counts(struct dibs__sql_guard *g, const task_op *op) {
  char text[DIBS__TASK_TEXT / 2];
  const char *where = op->kind.len ? " WHERE kind = $1" : "", *of = op->kind.len ? "kind = $1 AND " : "";
  value kind = dibs__task_text(op->kind);
  size_t count = op->kind.len ? 1 : 0;
  snprintf(
      text, sizeof text,
      "SELECT kind, 1, count(*), (SELECT @{now}) - min(due) FROM dibs_task@{ready} WHERE %sstate = 1 GROUP BY kind"
      " UNION ALL SELECT kind, state, count(*), (SELECT @{now}) - min(CASE WHEN state IN (0, 3) AND due <="
      " (SELECT @{start}) THEN due END) FROM dibs_task@{busy} WHERE %sstate <> 1 GROUP BY kind, state"
      " UNION ALL SELECT kind, s, count(*), (SELECT @{now}) - min(CASE WHEN s = 101 THEN due END) FROM (SELECT kind,"
      " due, CASE WHEN due <= (SELECT @{start}) THEN 101 ELSE 103 END AS s FROM dibs_task@{slot} WHERE %sslot >= 0"
      " AND state + 0 = 4 AND kind IN (SELECT k.kind FROM dibs_task_kind k WHERE k.topic IS NOT NULL)) f"
      " GROUP BY kind, s"
      " UNION ALL SELECT kind, state, count(*), NULL FROM dibs_task_done%s %s (until IS NULL OR until >"
      " (SELECT @{start})) GROUP BY kind, state",
      of, of, of, where, op->kind.len ? "AND" : "WHERE");
  sql_rc end = dibs__task_put(g, text, &kind, count);
  snprintf(text, sizeof text, "SELECT kind, running, paused, keep, topic FROM dibs_task_kind%s", where);
  return end == DIBS__SQL_OK ? dibs__task_put(g, text, &kind, count) : end;
}

sql_rc dibs__task_count(struct dibs__sql_guard *g, task_op *op) {
  const struct dibs__sql_wire *w = g->wire;
  size_t size = 1, rows = 0;
  sql_rc end = put_counts(g, op);
  if (end == DIBS__SQL_OK) end = dibs__task_go(g);
  if (end != DIBS__SQL_OK) return end;
  for (size_t nth = 0; nth < 2; nth++)
    for (size_t row = 0; row < w->engine->rows(w, nth); row++, rows++)
      size += sizeof(kind_t) + dibs__task_cell_text(w, nth, row, 0).len + 1 +
              (nth == 1 ? dibs__task_cell_text(w, nth, row, 4).len + 1 : 0);
  op->op.status = DIBS_OK;
  if (rows == 0) return end;
  struct counted c = {.kinds = malloc(size)};
  if (!c.kinds) return dibs__task_no_memory(g);
  c.texts = (char *)(c.kinds + rows);
  read_counts(w, 0, &c);
  read_settings(w, 1, &c);
  op->got = c.kinds;
  op->got_count = c.count < DIBS__TASK_ITEMS ? (uint32_t)c.count : DIBS__TASK_ITEMS;
  return end;
}

/* SPDX-License-Identifier: MIT */
/*
 * Adding tasks.  The items of an operation are inserted by one statement, which answers their numbers: they grow in the
 * order of the items.  A task with a serial text arrives in state ARRIVED, as those that people insert: a claim admits
 * it.  In a kind by lane it is free at once, with the slot of its text.  So an ADD locks its own rows alone, also
 * inside a user's transaction.
 *
 * A token's row is inserted before the tasks, and gets their numbers before the commit.  A repeat fails at its primary
 * key and is rolled back; the numbers are read from the row.
 *
 * Of tasks with a unique text the insertion leaves out those that exist; their numbers are looked up.  It never is an
 * INSERT that fails: see once.c.
 *
 * If the engine refuses a text, the items are inserted in halves, each in a transaction that is rolled back, until the
 * bad ones are known.
 */
#include "base/slot.h"
#include "sql/task_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__sql_value value;
typedef struct dibs__task_op task_op;
typedef struct dibs__task_new item;

enum {
  COLUMNS = 10,
  NUMBER_DIGITS = 22,
  LOST_RACES = 8,          /* insertions of a unique text that existed, and was gone at the lookup */
  BYTES_TOGETHER = 4 << 20 /* of payloads in one statement */
};

struct adding {
  struct dibs__sql_guard *g;
  task_op *op;
  item *items[DIBS__TASK_ITEMS]; /* those that are not answered yet */
  size_t count;
  bool phases, serials, uniques; /* some of the items have one */
};

/* ---- One statement ---- */

/* A column of texts without any text would have no type: so these are in the statement only if some item has one. */
static void know_columns(struct adding *a) {
  a->phases = a->serials = a->uniques = false;
  for (size_t i = 0; i < a->count; i++) {
    a->phases = a->phases || a->items[i]->phase.len;
    a->serials = a->serials || a->items[i]->serial.len;
    a->uniques = a->uniques || a->items[i]->unique.len;
  }
}

static value text_or_null(dibs__str text) {
  return text.len ? dibs__task_text(text) : dibs__sql_null();
}

static size_t fill_row(const struct adding *a, const item *x, int64_t nr, value *to) {
  size_t n = 0;
  to[n++] = dibs__sql_number(nr);
  to[n++] = dibs__sql_number(x->at_ms);
  to[n++] = dibs__sql_number(x->delay_ms);
  to[n++] = dibs__sql_number(x->priority);
  to[n++] = dibs__sql_number(x->tries ? x->tries : DIBS__TASK_TRIES);
  to[n++] = dibs__sql_bytes(x->payload.p, x->payload.len);
  if (a->phases) to[n++] = text_or_null(x->phase);
  if (a->serials) to[n++] = text_or_null(x->serial);
  if (a->serials) to[n++] = x->serial.len ? dibs__sql_number(dibs__slot(x->serial.p, x->serial.len)) : dibs__sql_null();
  if (a->uniques) to[n++] = text_or_null(x->unique);
  return n;
}

static void compose_insert(const struct adding *a, char *to, size_t size) {
  const struct dibs__sql_engine *e = a->g->wire->engine;
  const char *direct = a->serials ? "x.serial IS NULL AND x.due <= x.t" : "x.due <= x.t";
  struct dibs__text t;
  dibs__text_begin(&t, to, size);
  dibs__text_addf(&t, "INSERT %sINTO dibs_task (kind, state, rank, due, tries, priority, made, at, payload%s%s%s) ",
                  a->uniques && !e->on_conflict ? "IGNORE " : "", a->phases ? ", queue, phase" : "",
                  a->serials ? ", serial, slot" : "", a->uniques ? ", uniq" : "");
  dibs__text_addf(&t, "WITH r(i, at, delay, priority, tries, payload%s%s%s) AS ($rows) SELECT $1, ",
                  a->phases ? ", phase" : "", a->serials ? ", serial, slot" : "", a->uniques ? ", uniq" : "");
  dibs__text_addf(&t, "CASE %sWHEN x.due <= x.t THEN 1 ELSE 3 END, CASE WHEN %s THEN 0 - x.priority ELSE 0 END,",
                  a->serials ? "WHEN x.serial IS NOT NULL THEN CASE WHEN x.laned > 0 THEN 4 ELSE 0 END " : "", direct);
  dibs__text_adds(&t, " x.due, x.tries, x.priority, x.t, x.t, x.payload");
  if (a->phases) dibs__text_addf(&t, ", CASE WHEN %s THEN x.phase END, coalesce(x.phase, '')", direct);
  dibs__text_addf(&t, "%s%s", a->serials ? ", x.serial, CASE WHEN x.laned > 0 THEN x.slot END" : "",
                  a->uniques ? ", x.uniq" : "");
  dibs__text_addf(&t,
                  " FROM (SELECT r.*, n.*, CASE WHEN r.at > n.t THEN r.at ELSE n.t END + r.delay AS due"
                  " FROM r, (SELECT @{now} AS t%s) n) x WHERE true ORDER BY x.i",
                  a->serials ? ", (SELECT count(*) FROM dibs_task_kind WHERE kind = $1 AND topic IS NOT NULL) AS laned"
                             : "");
  if (a->uniques && e->on_conflict) dibs__text_adds(&t, " ON CONFLICT DO NOTHING");
  if (e->returning) dibs__text_adds(&t, a->uniques ? " RETURNING nr, uniq" : " RETURNING nr");
}

/* Puts the insertion of items [from, to). */
static sql_rc put_part(struct adding *a, size_t from, size_t to) {
  char text[DIBS__TASK_TEXT / 2];
  value kind = dibs__task_text(a->op->kind), *rows = malloc((to - from) * COLUMNS * sizeof *rows);
  size_t width = 0;
  if (!rows) return dibs__task_no_memory(a->g);
  for (size_t i = from; i < to; i++) width = fill_row(a, a->items[i], (int64_t)i, rows + (i - from) * width);
  compose_insert(a, text, sizeof text);
  sql_rc end = dibs__task_put_rows(a->g, text, &kind, 1, rows, width, to - from);
  if (end == DIBS__SQL_OK && !a->g->wire->engine->returning)
    end = dibs__task_put(a->g, "SELECT LAST_INSERT_ID()", NULL, 0);
  free(rows);
  return end;
}

/* The end of the part that begins at `from`: an engine without RETURNING answers the number of one alone. */
static size_t end_of_part(const struct adding *a, size_t from) {
  size_t to = from + 1, bytes = a->items[from]->payload.len;
  if (!a->g->wire->engine->returning) return to;
  while (to < a->count && (bytes += a->items[to]->payload.len) <= BYTES_TOGETHER) to++;
  return to;
}

static sql_rc put_all(struct adding *a) {
  sql_rc end = DIBS__SQL_OK;
  for (size_t from = 0, to; from < a->count && end == DIBS__SQL_OK; from = to) {
    to = end_of_part(a, from);
    end = put_part(a, from, to);
  }
  return end;
}

/* ---- Numbers ---- */

static int by_number(const void *x, const void *y) {
  uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;
  return (a > b) - (a < b);
}

static void added(item *x, uint64_t nr) {
  x->status = DIBS_OK;
  x->nr = nr;
}

/* Each item without a unique text was inserted: the numbers grow in their order.  The others are found by their text.
 */
static void read_part(struct adding *a, size_t nth, size_t from, size_t to) {
  const struct dibs__sql_wire *w = a->g->wire;
  uint64_t plain[DIBS__TASK_ITEMS];
  size_t count = 0, next = 0, rows = w->engine->rows(w, nth);
  for (size_t row = 0; row < rows && row < DIBS__TASK_ITEMS; row++) {
    uint64_t nr = (uint64_t)dibs__sql_cell_number(w, nth, row, 0);
    dibs__str unique = a->uniques ? dibs__task_cell_text(w, nth, row, 1) : (dibs__str){"", 0};
    if (!unique.len) plain[count++] = nr;
    for (size_t i = from; i < to && unique.len; i++) {
      if (a->items[i]->status != DIBS_UNKNOWN || !dibs__str_equal(a->items[i]->unique, unique)) continue;
      added(a->items[i], nr);
      break;
    }
  }
  if (count > 1) qsort(plain, count, sizeof *plain, by_number);
  for (size_t i = from; i < to && next < count; i++)
    if (!a->items[i]->unique.len) added(a->items[i], plain[next++]);
}

static void read_all(struct adding *a, size_t nth) {
  const struct dibs__sql_wire *w = a->g->wire;
  for (size_t from = 0, to; from < a->count; from = to, nth++) {
    to = end_of_part(a, from);
    if (w->engine->returning) {
      read_part(a, nth, from, to);
    } else {
      if (w->engine->changed(w, nth) > 0) added(a->items[from], (uint64_t)dibs__sql_cell_number(w, nth + 1, 0, 0));
      nth++;
    }
  }
}

/* ---- Unique texts that exist ---- */

static void keep_unanswered(struct adding *a) {
  size_t left = 0;
  for (size_t i = 0; i < a->count; i++)
    if (a->items[i]->status == DIBS_UNKNOWN) a->items[left++] = a->items[i];
  a->count = left;
}

/* Finds the numbers of the tasks that kept the items out; those that are gone by now stay unanswered. */
static sql_rc find_existing(struct adding *a) {
  struct dibs__sql_wire *w = a->g->wire;
  sql_rc end = DIBS__SQL_OK;
  size_t first = w->put;
  keep_unanswered(a);
  if (a->count == 0) return end;
  for (size_t i = 0; i < a->count && end == DIBS__SQL_OK; i++) {
    value values[] = {dibs__task_text(a->op->kind), dibs__task_text(a->items[i]->unique)};
    end = dibs__task_put(a->g, "SELECT nr FROM dibs_task WHERE kind = $1 AND uniq = $2", values, 2);
  }
  if (end == DIBS__SQL_OK) end = dibs__task_go(a->g);
  for (size_t i = 0; i < a->count && end == DIBS__SQL_OK; i++) {
    if (w->engine->rows(w, first + i) == 0) continue;
    a->items[i]->status = DIBS_REPLAY;
    a->items[i]->nr = (uint64_t)dibs__sql_cell_number(w, first + i, 0, 0);
  }
  keep_unanswered(a);
  return end;
}

/* ---- Tokens ---- */

static value token_of(const task_op *op) {
  return dibs__sql_bytes(op->token.p, op->token.len);
}

static sql_rc put_token(struct adding *a) {
  value values[] = {token_of(a->op), dibs__sql_number(a->op->token_ms)};
  return dibs__task_put(a->g, "INSERT INTO dibs_task_token (token, until) VALUES ($1, @{now} + $2)", values, 2);
}

static sql_rc put_numbers(struct adding *a) {
  struct dibs__text text;
  size_t size = (size_t)a->op->count * NUMBER_DIGITS + 1;
  char *memory = malloc(size);
  if (!memory) return dibs__task_no_memory(a->g);
  dibs__text_begin(&text, memory, size);
  for (uint32_t i = 0; i < a->op->count; i++)
    dibs__text_addf(&text, a->op->news[i].status == DIBS_REPLAY ? "%" PRIu64 "r " : "%" PRIu64 " ", a->op->news[i].nr);
  value values[] = {token_of(a->op), dibs__sql_bytes(memory, text.len)};
  sql_rc end = dibs__task_put(a->g, "UPDATE dibs_task_token SET nrs = $2 WHERE token = $1", values, 2);
  free(memory);
  return end;
}

/* Each number and a blank; "r" behind a number that was a REPLAY. */
static void answer_repeat(task_op *op, dibs__str numbers) {
  size_t at = 0, count = 0;
  for (uint32_t i = 0; i < numbers.len; i++) count += numbers.p[i] == ' ';
  op->op.status = DIBS_OK;
  if (count != op->count) {
    op->op.status = DIBS_INVALID;
    snprintf(op->why, sizeof op->why, "the token was used for another number of items");
    return;
  }
  for (uint32_t i = 0; i < op->count; i++) {
    uint64_t nr = 0;
    for (; at < numbers.len && numbers.p[at] >= '0' && numbers.p[at] <= '9'; at++)
      nr = nr * 10 + (uint64_t)(numbers.p[at] - '0');
    bool replay = op->wants_new || (at < numbers.len && numbers.p[at] == 'r');
    while (at < numbers.len && numbers.p[at] != ' ') at++;
    at++;
    op->news[i].nr = nr;
    op->news[i].repeated = true;
    op->news[i].status = nr == 0 ? DIBS_INVALID : replay ? DIBS_REPLAY : DIBS_OK;
  }
}

/* *again: its time is over, and it is deleted. */
static sql_rc read_repeat(struct adding *a, bool *again) {
  struct dibs__sql_wire *w = a->g->wire;
  value token = token_of(a->op);
  *again = true;
  sql_rc end = dibs__task_put(a->g, "SELECT nrs FROM dibs_task_token WHERE token = $1 AND until > @{now}", &token, 1);
  if (end == DIBS__SQL_OK) end = dibs__task_go(a->g);
  if (end != DIBS__SQL_OK) return end;
  if (w->engine->rows(w, 0) > 0) {
    *again = false;
    answer_repeat(a->op, dibs__task_cell_text(w, 0, 0, 0));
    return end;
  }
  end = dibs__task_put(a->g, "DELETE FROM dibs_task_token WHERE token = $1 AND until <= @{now}", &token, 1);
  return end == DIBS__SQL_OK ? w->engine->go(w, true) : end;
}

/* ---- All of it ---- */

static bool is_valid(const item *x) {
  return x->phase.len <= DIBS_NAME_MAX && x->serial.len <= DIBS_NAME_MAX && x->unique.len <= DIBS_NAME_MAX &&
         x->payload.len <= DIBS_RECORD_MAX && x->priority <= DIBS__TASK_PRIORITY &&
         x->priority >= -DIBS__TASK_PRIORITY && x->at_ms >= 0 && x->delay_ms >= 0 && x->delay_ms <= DIBS__TASK_MS_MAX &&
         x->at_ms <= DIBS__TASK_MS_MAX;
}

static void collect_items(struct adding *a) {
  a->count = 0;
  for (uint32_t i = 0; i < a->op->count; i++) {
    item *x = &a->op->news[i];
    if (x->status == DIBS_INVALID) continue;
    x->nr = 0;
    x->status = is_valid(x) ? DIBS_UNKNOWN : DIBS_INVALID;
    if (x->status == DIBS_UNKNOWN) a->items[a->count++] = x;
  }
}

/* One statement, which is a transaction of its own, for the common case. */
static bool is_single(const struct adding *a) {
  return !a->op->token.len && !a->uniques && !a->g->wire->inside && a->g->wire->engine->returning && a->count > 0 &&
         end_of_part(a, 0) == a->count;
}

static sql_rc try_all(struct adding *a) {
  struct dibs__sql_wire *w = a->g->wire;
  sql_rc end = DIBS__SQL_OK;
  bool single = is_single(a);
  if (!single) end = dibs__sql_begin(w);
  if (end == DIBS__SQL_OK && a->op->token.len) end = put_token(a);
  for (int lost = 0; end == DIBS__SQL_OK && (lost == 0 || a->count > 0); lost++) {
    size_t first = w->put;
    if (lost > LOST_RACES)
      return dibs__sql_fail(w, DIBS__SQL_DEADLOCK, "tasks with these unique texts came and went meanwhile");
    know_columns(a);
    end = put_all(a);
    if (end == DIBS__SQL_OK) end = w->engine->go(w, single);
    if (end != DIBS__SQL_OK) return end;
    read_all(a, first);
    if (single) {
      a->g->commits++;
      return end;
    }
    end = find_existing(a);
  }
  if (end == DIBS__SQL_OK && a->op->token.len) end = put_numbers(a);
  return end == DIBS__SQL_OK ? dibs__task_commit(a->g) : end;
}

/* Finds the items that the engine refuses. */
static sql_rc mark_refused(struct adding *a, item **items, size_t count) {
  struct dibs__sql_wire *w = a->g->wire;
  struct adding part = {.g = a->g, .op = a->op, .count = count};
  memcpy(part.items, items, count * sizeof(item *));
  know_columns(&part);
  sql_rc end = dibs__sql_begin(w);
  if (end == DIBS__SQL_OK) end = put_all(&part);
  if (end == DIBS__SQL_OK) end = dibs__task_go(a->g);
  bool refused = end != DIBS__SQL_OK && dibs__task_is_one(w->trouble);
  if (end != DIBS__SQL_OK && !refused) return end;
  if (refused && count == 1) {
    items[0]->status = DIBS_INVALID;
    snprintf(a->op->why, sizeof a->op->why, "%s", w->message);
  }
  dibs__sql_rollback(w);
  if (dibs__sql_dead(w)) return DIBS__SQL_FAILED;
  if (!refused || count == 1) return DIBS__SQL_OK;
  end = mark_refused(a, items, count / 2);
  return end == DIBS__SQL_OK ? mark_refused(a, items + count / 2, count - count / 2) : end;
}

static sql_rc add_items(struct adding *a) {
  struct dibs__sql_wire *w = a->g->wire;
  bool again = true;
  for (int round = 0; again; round++) {
    collect_items(a);
    know_columns(a);
    a->op->op.status = DIBS_OK;
    if (a->count == 0) return DIBS__SQL_OK;
    sql_rc end = try_all(a);
    if (end == DIBS__SQL_OK) return end;
    a->op->op.status = DIBS_UNKNOWN;
    again = dibs__task_is_one(w->trouble) && round < 3 && !dibs__sql_dead(w) && !w->unsure;
    if (!again) return end;
    bool repeated = w->trouble == DIBS__SQL_TWICE && a->op->token.len;
    dibs__sql_rollback(w);
    if (dibs__sql_dead(w)) return DIBS__SQL_FAILED;
    collect_items(a);
    if (repeated)
      end = read_repeat(a, &again);
    else
      end = mark_refused(a, a->items, a->count);
    if (end != DIBS__SQL_OK) return end;
  }
  return DIBS__SQL_OK;
}

sql_rc dibs__task_add(struct dibs__sql_guard *g, task_op *op) {
  struct adding *a = malloc(sizeof *a);
  if (!a) return dibs__task_no_memory(g);
  a->g = g;
  a->op = op;
  sql_rc end = add_items(a);
  free(a);
  for (uint32_t i = 0; i < op->count && end == DIBS__SQL_OK; i++) g->woke = g->woke || op->news[i].status == DIBS_OK;
  return end;
}

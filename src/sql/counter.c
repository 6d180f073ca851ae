/* SPDX-License-Identifier: MIT */
/*
 * Counters (R86 to R95): batches of additions, each applied once; buckets of tokens.
 *
 * The ledger has a row for each source.  A transaction first raises the row's `seq` to the batch's, if it is below:
 * that locks the row, so a repeat of the batch waits until the first one is committed or gone, and then finds its
 * effect. The additions follow it.  In dibs' own table they are one statement, which adds only if the ledger's row has
 * the mark that this very transaction wrote: so nothing is read in between, and a batch is one packet.
 *
 * The careful way decides item by item, each under a savepoint: for a user's table, where a row may be missing; under a
 * guard; and after a packet that failed because the sum of one item does not fit.
 *
 * Inside a user's transaction there is no ledger: the outcome of an addition is that of their transaction (R107).
 *
 * Order of locks: the source, the guard, the counters in the order of their keys.
 */
#include "store/counter.h"
#include "sql/sql_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SWEPT = 100, CLASHES = 16, NAP_MS = 3, NAP_MAX_MS = 50, TEXT_MAX = 1200, MARK_BITS = 62 };

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__sql_value value;
typedef struct dibs__counter_op counter_op;
typedef struct dibs__counter_item item_t;

/* A batch on its way. */
struct adding {
  struct dibs__sql_guard *g;
  counter_op *op;
  bool insert;    /* the ledger has no row of the source yet, as far as is known */
  bool missing;   /* the result: it has none, so run it again with `insert` */
  int64_t mark;   /* differs for each transaction */
  size_t ledger;  /* the statement that raises `seq` */
  size_t state;   /* the statement that reads the row */
  size_t guard;   /* the statement that raises the guard's fence */
  bool is_number; /* the key of the user's table */
};

static value text_of(dibs__str text) {
  return dibs__sql_text(text.p, text.len);
}

static value id_of(const dibs__id *id) {
  return dibs__sql_bytes(id->b, sizeof id->b);
}

static int64_t draw_mark(void) {
  uint64_t mark;
  dibs__random(&mark, sizeof mark);
  return (int64_t)(mark >> (64 - MARK_BITS));
}

/* ---- The ledger ---- */

static sql_rc put_source(const struct dibs__sql_guard *g, const dibs__id *id, int64_t keep_ms) {
  value values[] = {id_of(id), dibs__sql_number(keep_ms)};
  return dibs__sql_put_composed(g,
                                g->wire->engine->on_conflict
                                    ? "INSERT INTO dibs_counter_source (id, seq, until) VALUES ($1, 0, @{now} + $2)"
                                      " ON CONFLICT DO NOTHING"
                                    : "INSERT INTO dibs_counter_source (id, seq, until) VALUES ($1, 0, @{now} + $2)"
                                      " ON DUPLICATE KEY UPDATE id = VALUES(id)",
                                values, 2);
}

static sql_rc put_ledger(struct adding *a) {
  const counter_op *op = a->op;
  struct dibs__sql_guard *g = a->g;
  a->mark = draw_mark();
  value values[] = {id_of(&op->source), dibs__sql_number((int64_t)op->sequence), dibs__sql_number(a->mark),
                    dibs__sql_number(dibs__counter_keep_ms(op))};
  sql_rc end = a->insert ? put_source(g, &op->source, dibs__counter_keep_ms(op)) : DIBS__SQL_OK;
  a->ledger = g->wire->put;
  if (end == DIBS__SQL_OK)
    end = dibs__sql_put_composed(g,
                                 "UPDATE dibs_counter_source SET seq = $2, mark = $3, until = @{now} + $4,"
                                 " refused = NULL WHERE id = $1 AND seq < $2",
                                 values, 4);
  return end;
}

static sql_rc put_state(struct adding *a) {
  value id = id_of(&a->op->source);
  a->state = a->g->wire->put;
  return dibs__sql_put_composed(a->g, "SELECT seq, refused FROM dibs_counter_source WHERE id = $1", &id, 1);
}

static sql_rc put_guard(struct adding *a) {
  const counter_op *op = a->op;
  value values[] = {id_of(&op->guard), dibs__sql_number((int64_t)op->fence.v),
                    dibs__sql_number(dibs__counter_keep_ms(op))};
  sql_rc end = put_source(a->g, &op->guard, dibs__counter_keep_ms(op));
  a->guard = a->g->wire->put;
  if (end == DIBS__SQL_OK)
    end = dibs__sql_put_composed(a->g,
                                 "UPDATE dibs_counter_source SET seq = $2, until = @{now} + $3"
                                 " WHERE id = $1 AND seq <= $2",
                                 values, 3);
  return end;
}

/* true: the transaction raised `seq`, so the batch is applied by it.  false: it was applied before, and is answered; or
 * `missing` is set. */
static bool is_new(struct adding *a) {
  const struct dibs__sql_wire *w = a->g->wire;
  counter_op *op = a->op;
  a->missing = false;
  if (w->engine->changed(w, a->ledger) > 0) return true;
  if (w->engine->rows(w, a->state) == 0) {
    a->missing = true;
    return false;
  }
  bool latest = (uint64_t)dibs__sql_cell_number(w, a->state, 0, 0) == op->sequence;
  value refused = w->engine->cell(w, a->state, 0, 1, DIBS__SQL_BYTES);
  bool some = latest && refused.kind == DIBS__SQL_BYTES;
  dibs__counter_read_refused(op, some ? (const uint8_t *)refused.p : NULL, some ? refused.len : 0);
  op->op.status = DIBS_REPLAY;
  return false;
}

/* ---- Additions in dibs' own table ---- */

/* SQLite would store a sum that does not fit as a floating point number: NULL is refused by the column. */
#define FITS                                                                                                           \
  "(excluded.number >= 0 AND dibs_counter.number <= 9223372036854775807 - excluded.number) OR"                         \
  " (excluded.number < 0 AND dibs_counter.number >= -9223372036854775807 - 1 - excluded.number)"
#define ON_CONFLICT                                                                                                    \
  " ON CONFLICT (name) DO UPDATE SET number = CASE WHEN " FITS                                                         \
  " THEN dibs_counter.number + excluded.number ELSE NULL END"
/* MariaDB: a sum that does not fit is an error. */
#define ON_DUPLICATE " ON DUPLICATE KEY UPDATE dibs_counter.number = dibs_counter.number + VALUES(number)"

static const char *upsert_of(const struct dibs__sql_guard *g) {
  return g->wire->engine->on_conflict ? ON_CONFLICT : ON_DUPLICATE;
}

/* All items in one statement.  `marked`: only if this transaction raised the ledger. */
static sql_rc put_all(struct adding *a, bool marked) {
  const counter_op *op = a->op;
  char text[TEXT_MAX];
  value values[] = {id_of(&op->source), dibs__sql_number(a->mark)};
  value *rows = malloc(op->count * 2 * sizeof *rows);
  if (!rows) return dibs__sql_fail(a->g->wire, DIBS__SQL_NO_SPACE, "out of memory");
  for (uint32_t i = 0; i < op->count; i++) {
    rows[2 * (size_t)i] = text_of(op->items[i].key);
    rows[2 * (size_t)i + 1] = dibs__sql_number(op->items[i].delta);
  }
  snprintf(text, sizeof text,
           "INSERT INTO dibs_counter (name, number) WITH dibsrows(name, delta) AS ($rows)"
           " SELECT dibsrows.name, dibsrows.delta FROM dibsrows WHERE %s%s",
           marked ? "EXISTS (SELECT 1 FROM dibs_counter_source WHERE id = $1 AND mark = $2)" : "1 = 1",
           upsert_of(a->g));
  sql_rc end = dibs__stock_put_rows(a->g, NULL, text, values, marked ? 2 : 0, rows, 2, op->count);
  free(rows);
  return end;
}

static sql_rc put_own_item(struct adding *a, const item_t *item) {
  char text[TEXT_MAX];
  value values[] = {text_of(item->key), dibs__sql_number(item->delta)};
  snprintf(text, sizeof text, "INSERT INTO dibs_counter (name, number) VALUES ($1, $2)%s", upsert_of(a->g));
  return dibs__sql_put_composed(a->g, text, values, 2);
}

/* ---- Additions in a user's table ---- */

/* A NULL counts as 0.  A sum beyond 64 bits, or a value that is no whole number, matches nothing; a sum that only the
 * column can't take is an error of the statement. */
static sql_rc put_users_item(struct adding *a, const item_t *item) {
  const struct dibs__sql_engine *e = a->g->wire->engine;
  bool up = item->delta >= 0;
  char text[TEXT_MAX];
  value values[] = {text_of(item->key), dibs__sql_number(item->delta),
                    dibs__sql_number(up ? INT64_MAX - item->delta : INT64_MIN - item->delta)};
  snprintf(text, sizeof text, "UPDATE @S SET @^n = coalesce(@n, 0) + $2 WHERE @!k AND (@n IS NULL OR (@n %s $3%s))",
           up ? "<=" : ">=", e->whole[0] ? " AND @?n" : "");
  return dibs__stock_put(a->g, a->op->table, text, values, 3);
}

static sql_rc put_item(struct adding *a, const item_t *item) {
  return a->op->table ? put_users_item(a, item) : put_own_item(a, item);
}

static sql_rc put_read(struct dibs__sql_guard *g, const struct dibs__table *table, const item_t *item) {
  value key = text_of(item->key);
  if (table) return dibs__stock_put(g, table, "SELECT @=n FROM @S WHERE @!k", &key, 1);
  return dibs__sql_put_composed(g, "SELECT number FROM dibs_counter WHERE name = $1", &key, 1);
}

/* ---- A number in a column of the user's ---- */

#define NOT_WHOLE "is not a whole number"

static bool cell_is_null(value cell) {
  return cell.kind == DIBS__SQL_NULL || (cell.len == 4 && memcmp(cell.p, "NULL", 4) == 0);
}

/* With a sign, in 64 bits; else why not. */
static const char *read_signed(value cell, int64_t *number) {
  bool below = cell.len > 0 && cell.p[0] == '-';
  *number = 0;
  if (cell.len == below) return NOT_WHOLE;
  for (size_t i = below; i < cell.len; i++) {
    int digit = cell.p[i] - '0';
    if (digit < 0 || digit > 9) return NOT_WHOLE;
    if (__builtin_mul_overflow(*number, 10, number) || __builtin_add_overflow(*number, below ? -digit : digit, number))
      return "does not fit in 64 bits";
  }
  return NULL;
}

/* SQLite keeps a text in a column of numbers.  A whole number that does not fit in 64 bits counts as a number. */
static bool holds_number(const struct dibs__sql_wire *w, size_t nth) {
  value cell = w->engine->cell(w, nth, 0, 0, DIBS__SQL_TEXT);
  int64_t number;
  if (cell_is_null(cell)) return true;
  const char *wrong = read_signed(cell, &number);
  return !wrong || strcmp(wrong, NOT_WHOLE) != 0;
}

/* ---- The careful way ---- */

static sql_rc put_plain(const struct adding *a, const char *text) {
  return a->g->wire->engine->put(a->g->wire, text, NULL, 0);
}

/* A savepoint for what may fail; the packet of each ends with its release, so that they do not pile up. */
static sql_rc put_savepoint(const struct adding *a) {
  return put_plain(a, "SAVEPOINT dibs_item");
}

static sql_rc put_release(const struct adding *a) {
  return put_plain(a, "RELEASE SAVEPOINT dibs_item");
}

static sql_rc undo_item(struct adding *a) {
  sql_rc end = put_plain(a, "ROLLBACK TO SAVEPOINT dibs_item");
  if (end == DIBS__SQL_OK) end = put_release(a);
  return end == DIBS__SQL_OK ? a->g->wire->engine->go(a->g->wire, false) : end;
}

static bool item_is_refused(const struct dibs__sql_wire *w) {
  return w->trouble == DIBS__SQL_REFUSED || w->trouble == DIBS__SQL_ORPHAN || w->trouble == DIBS__SQL_TWICE;
}

/* A trigger of a user's table may raise any error, of a state of its own or of a table that it misses.  (If the counted
 * table itself is missing, looking for the reason finds out.) */
static bool row_is_refused(const struct adding *a) {
  enum dibs__sql_trouble trouble = a->g->wire->trouble;
  return item_is_refused(a->g->wire) || (a->op->table && (trouble == DIBS__SQL_ODD || trouble == DIBS__SQL_MISSING));
}

/* Why the item was not added. */
static sql_rc find_reason(struct adding *a, item_t *item) {
  const struct dibs__sql_wire *w = a->g->wire;
  sql_rc end = put_savepoint(a);
  size_t nth = w->put;
  if (end == DIBS__SQL_OK) end = put_read(a->g, a->op->table, item);
  if (end == DIBS__SQL_OK) end = put_release(a);
  if (end == DIBS__SQL_OK) end = w->engine->go(a->g->wire, false);
  if (end != DIBS__SQL_OK) {
    if (!item_is_refused(w)) return end;
    item->status = DIBS_INVALID; /* a key that the store can't keep */
    return undo_item(a);
  }
  bool found = w->engine->rows(w, nth) > 0;
  item->status = found ? DIBS_FULL : a->op->table ? DIBS_NOT_FOUND : DIBS_INVALID;
  if (found && a->op->table && !holds_number(w, nth)) item->status = DIBS_INVALID;
  return DIBS__SQL_OK;
}

static sql_rc add_item(struct adding *a, item_t *item) {
  struct dibs__sql_wire *w = a->g->wire;
  sql_rc end = put_savepoint(a);
  size_t nth = w->put;
  if (end == DIBS__SQL_OK) end = put_item(a, item);
  if (end == DIBS__SQL_OK) end = put_release(a);
  if (end == DIBS__SQL_OK) end = w->engine->go(w, false);
  if (end == DIBS__SQL_OK && (!a->op->table || w->engine->changed(w, nth) > 0)) {
    item->status = DIBS_OK;
    return end;
  }
  if (end != DIBS__SQL_OK) {
    if (!row_is_refused(a)) return end;
    end = undo_item(a);
  }
  return end == DIBS__SQL_OK ? find_reason(a, item) : end;
}

/* A key that is no number is not sent to a column of numbers. */
static bool is_hopeless(const struct adding *a, const item_t *item) {
  return a->is_number && !dibs__sql_is_number(item->key);
}

/* All of them in one packet: *all: each was added.  If not, nothing was. */
static sql_rc add_together(struct adding *a, bool *all) {
  struct dibs__sql_wire *w = a->g->wire;
  counter_op *op = a->op;
  *all = true;
  for (uint32_t i = 0; i < op->count; i++)
    if (is_hopeless(a, &op->items[i])) *all = false;
  if (!*all) return DIBS__SQL_OK;
  sql_rc end = put_savepoint(a);
  size_t first = w->put;
  if (!op->table && end == DIBS__SQL_OK) end = put_all(a, false);
  for (uint32_t i = 0; op->table && i < op->count && end == DIBS__SQL_OK; i++) end = put_item(a, &op->items[i]);
  if (end == DIBS__SQL_OK) end = w->engine->go(w, false);
  if (end != DIBS__SQL_OK && !row_is_refused(a)) return end;
  *all = end == DIBS__SQL_OK;
  for (uint32_t i = 0; op->table && i < op->count && *all; i++) *all = w->engine->changed(w, first + i) > 0;
  if (!*all) return undo_item(a);
  dibs__counter_set_all(op, DIBS_OK);
  return DIBS__SQL_OK;
}

static sql_rc add_one_by_one(struct adding *a) {
  sql_rc end = DIBS__SQL_OK;
  for (uint32_t i = 0; i < a->op->count && end == DIBS__SQL_OK; i++) {
    item_t *item = &a->op->items[i];
    if (is_hopeless(a, item))
      item->status = DIBS_NOT_FOUND;
    else
      end = add_item(a, item);
  }
  return end;
}

static sql_rc put_refused(struct adding *a) {
  uint8_t refused[DIBS__COUNTER_REFUSED_MAX];
  size_t len = dibs__counter_write_refused(a->op, refused);
  if (len == 0) return DIBS__SQL_OK;
  value values[] = {id_of(&a->op->source), dibs__sql_bytes(refused, len)};
  return dibs__sql_put_composed(a->g, "UPDATE dibs_counter_source SET refused = $2 WHERE id = $1", values, 2);
}

/* Ends a transaction that changed nothing. */
static sql_rc give_up(struct adding *a) {
  dibs__sql_rollback(a->g->wire);
  return dibs__sql_dead(a->g->wire) ? DIBS__SQL_FAILED : DIBS__SQL_OK;
}

static sql_rc begin_careful(struct adding *a) {
  sql_rc end = dibs__sql_begin(a->g->wire);
  if (end == DIBS__SQL_OK) end = put_ledger(a);
  if (end == DIBS__SQL_OK) end = put_state(a);
  if (end == DIBS__SQL_OK && a->op->fence.v) end = put_guard(a);
  return end == DIBS__SQL_OK ? a->g->wire->engine->go(a->g->wire, false) : end;
}

static sql_rc add_carefully(struct adding *a) {
  struct dibs__sql_wire *w = a->g->wire;
  bool all;
  sql_rc end = begin_careful(a);
  if (end != DIBS__SQL_OK) return end;
  if (!is_new(a)) return give_up(a);
  if (a->op->fence.v && w->engine->changed(w, a->guard) == 0) {
    a->op->op.status = DIBS_STALE;
    return give_up(a);
  }
  end = add_together(a, &all);
  if (end == DIBS__SQL_OK && !all) end = add_one_by_one(a);
  if (end == DIBS__SQL_OK) end = put_refused(a);
  if (end == DIBS__SQL_OK) end = dibs__sql_commit(w);
  if (end == DIBS__SQL_OK) end = w->engine->go(w, true);
  if (end != DIBS__SQL_OK) return end;
  a->g->commits++;
  a->op->op.status = DIBS_OK;
  return end;
}

/* ---- Inside the user's transaction ---- */

static sql_rc add_inside(struct adding *a) {
  struct dibs__sql_wire *w = a->g->wire;
  bool all = false;
  sql_rc end = dibs__sql_begin(w);
  if (end == DIBS__SQL_OK) end = add_together(a, &all);
  if (end == DIBS__SQL_OK && !all) end = add_one_by_one(a);
  if (end == DIBS__SQL_OK) end = dibs__sql_commit(w);
  if (end == DIBS__SQL_OK) end = w->engine->go(w, false);
  if (end == DIBS__SQL_OK) a->op->op.status = DIBS_OK;
  return end;
}

/* ---- One packet ---- */

static sql_rc add_at_once(struct adding *a) {
  struct dibs__sql_wire *w = a->g->wire;
  sql_rc end = dibs__sql_begin(w);
  if (end == DIBS__SQL_OK) end = put_ledger(a);
  if (end == DIBS__SQL_OK) end = put_all(a, true);
  if (end == DIBS__SQL_OK) end = put_state(a);
  if (end == DIBS__SQL_OK) end = dibs__sql_commit(w);
  if (end == DIBS__SQL_OK) end = w->engine->go(w, true);
  if (end != DIBS__SQL_OK || !is_new(a)) return end;
  a->g->commits++;
  dibs__counter_set_all(a->op, DIBS_OK);
  a->op->op.status = DIBS_OK;
  return end;
}

/* Does the user's table fit?  If not, it is answered. */
static sql_rc check_table(struct dibs__sql_guard *g, counter_op *op, bool *is_number) {
  const struct dibs__sql_shape *shape;
  *is_number = false;
  if (!op->table) return DIBS__SQL_OK;
  sql_rc end = dibs__sql_table_check(g, op->table, DIBS__SQL_FOR_COUNTERS, &shape, op->why, sizeof op->why);
  if (end == DIBS__SQL_OK && !shape) op->op.status = DIBS_INVALID;
  if (end == DIBS__SQL_OK && shape) *is_number = shape->key_is_number;
  return end;
}

static void refuse(struct dibs__sql_guard *g, counter_op *op) {
  op->op.status = dibs__sql_explain(g->wire, "work on counters in", g->store, g->result);
  snprintf(op->why, sizeof op->why, "%s", g->wire->message);
  if (!g->wire->inside || g->wire->trouble != DIBS__SQL_DEADLOCK) return;
  op->op.status = DIBS_CONFLICT;
  snprintf(op->why, sizeof op->why, "the transaction can't continue: %.100s; roll it back and begin again",
           g->wire->message);
}

/* *again: another try is worthwhile.  FAILED: the wire is dead, or the outcome unknown. */
static sql_rc after_failure(struct adding *a, bool *careful, int *clashes, bool *again) {
  struct dibs__sql_wire *w = a->g->wire;
  *again = false;
  if (dibs__sql_dead(w) || w->unsure || w->trouble == DIBS__SQL_NO_SPACE) return DIBS__SQL_FAILED;
  dibs__sql_rollback(w);
  if (dibs__sql_dead(w)) return DIBS__SQL_FAILED;
  int64_t nap_ms = (int64_t)NAP_MS << (*clashes < 4 ? *clashes : 4);
  if (w->trouble == DIBS__SQL_DEADLOCK && !w->inside && ++*clashes <= CLASHES &&
      dibs__tick_left_ms(dibs__tick_now(), w->by) > NAP_MAX_MS) {
    dibs__nap_ms(nap_ms < NAP_MAX_MS ? nap_ms : NAP_MAX_MS);
    *again = true;
  } else if (!*careful && item_is_refused(w)) {
    *careful = *again = true;
  } else {
    refuse(a->g, a->op);
  }
  return DIBS__SQL_OK;
}

static sql_rc run_add(struct dibs__sql_guard *g, counter_op *op) {
  struct adding a = {.g = g, .op = op, .insert = op->sequence == 1};
  bool inside = g->wire->inside, careful = inside || op->table || op->fence.v, again = true;
  int clashes = 0;
  sql_rc end = check_table(g, op, &a.is_number);
  while (end == DIBS__SQL_OK && again && op->op.status == DIBS_UNKNOWN) {
    end = inside ? add_inside(&a) : careful ? add_carefully(&a) : add_at_once(&a);
    if (end == DIBS__SQL_OK) {
      again = a.missing;
      a.insert = true;
    } else {
      end = after_failure(&a, &careful, &clashes, &again);
    }
  }
  return end;
}

/* ---- A bucket of tokens ---- */

#define NOW_NS "@{now} * 1000000"

/* The first statement: an instant too far ahead, after the clock was set back or with a new limit, becomes that of an
 * empty bucket. */
static sql_rc put_take(struct dibs__sql_guard *g, const counter_op *op, bool insert, size_t *taken) {
  value values[] = {text_of(op->key), dibs__sql_number(dibs__rate_step_ns(op)),
                    dibs__sql_number(dibs__rate_span_ns(op)), dibs__sql_number(op->per_ms)};
  value clamped[] = {values[0], values[2]};
  sql_rc end = dibs__sql_begin(g->wire);
  if (end == DIBS__SQL_OK && insert)
    end = dibs__sql_put_composed(g, "INSERT INTO dibs_rate (name, full_ns, until) VALUES ($1, 0, @{now})@{leave}",
                                 values, 1);
  if (end == DIBS__SQL_OK)
    end = dibs__sql_put_composed(
        g, "UPDATE dibs_rate SET full_ns = " NOW_NS " + $2 WHERE name = $1 AND full_ns > " NOW_NS " + $2", clamped, 2);
  *taken = g->wire->put;
  if (end == DIBS__SQL_OK)
    end = dibs__sql_put_composed(g,
                                 "UPDATE dibs_rate SET until = @{now} + $4, full_ns = $2 + CASE WHEN full_ns > " NOW_NS
                                 " THEN full_ns ELSE " NOW_NS " END WHERE name = $1 AND CASE WHEN full_ns > " NOW_NS
                                 " THEN full_ns - " NOW_NS " ELSE 0 END + $2 <= $3",
                                 values, 4);
  if (end == DIBS__SQL_OK)
    end = dibs__sql_put_composed(g, "SELECT full_ns - " NOW_NS " FROM dibs_rate WHERE name = $1", values, 1);
  return end == DIBS__SQL_OK ? dibs__sql_commit(g->wire) : end;
}

static sql_rc run_take(struct dibs__sql_guard *g, counter_op *op) {
  struct dibs__sql_wire *w = g->wire;
  struct adding a = {.g = g, .op = op};
  bool insert = false, again = true, careful = true;
  int clashes = 0;
  sql_rc end = DIBS__SQL_OK;
  while (end == DIBS__SQL_OK && again) {
    size_t taken = 0;
    end = put_take(g, op, insert, &taken);
    if (end == DIBS__SQL_OK) end = w->engine->go(w, true);
    if (end != DIBS__SQL_OK) {
      end = after_failure(&a, &careful, &clashes, &again);
      continue;
    }
    again = w->engine->rows(w, taken + 1) == 0;
    insert = true;
    if (again) continue;
    g->commits++;
    if (w->engine->changed(w, taken) > 0)
      op->op.status = DIBS_OK;
    else
      dibs__rate_refuse(op, dibs__sql_cell_number(w, taken + 1, 0, 0));
  }
  return end;
}

/* ---- Reading ---- */

static void read_item(const struct dibs__sql_wire *w, size_t nth, counter_op *op, item_t *item) {
  if (w->engine->rows(w, nth) == 0) {
    item->status = DIBS_NOT_FOUND;
    return;
  }
  item->status = DIBS_OK;
  if (!op->table) {
    item->number = dibs__sql_cell_number(w, nth, 0, 0);
    return;
  }
  value cell = w->engine->cell(w, nth, 0, 0, DIBS__SQL_TEXT);
  const char *wrong = cell_is_null(cell) ? NULL : read_signed(cell, &item->number);
  if (!wrong) return;
  item->status = DIBS_INVALID;
  item->number = 0;
  snprintf(op->why, sizeof op->why, "the column \"%.40s\" of the table \"%.40s\" %s in the row \"%.*s\"",
           op->table->count, op->table->table, wrong, item->key.len < 40 ? (int)item->key.len : 40, item->key.p);
}

/* Inside a user's transaction a failed statement would end it: a savepoint is around each packet. */
static sql_rc begin_reading(struct dibs__sql_wire *w) {
  return w->inside ? dibs__sql_begin(w) : DIBS__SQL_OK;
}

static sql_rc go_reading(struct dibs__sql_wire *w) {
  sql_rc end = w->inside ? dibs__sql_commit(w) : DIBS__SQL_OK;
  return end == DIBS__SQL_OK ? w->engine->go(w, false) : end;
}

/* OK, or FAILED: nothing was read. */
static sql_rc send_reads(struct dibs__sql_guard *g, counter_op *op, item_t *items, uint32_t count) {
  struct dibs__sql_wire *w = g->wire;
  sql_rc end = begin_reading(w);
  size_t first = w->put;
  for (uint32_t i = 0; i < count && end == DIBS__SQL_OK; i++) end = put_read(g, op->table, &items[i]);
  if (end == DIBS__SQL_OK) end = go_reading(w);
  if (end != DIBS__SQL_OK && w->inside && !dibs__sql_dead(w)) dibs__sql_rollback(w);
  for (uint32_t i = 0; i < count && end == DIBS__SQL_OK; i++) read_item(w, first + i, op, &items[i]);
  return end;
}

/* A key that the store can't keep fails the packet: then each is read by itself. */
static sql_rc read_one_by_one(struct dibs__sql_guard *g, counter_op *op, bool is_number) {
  sql_rc end = DIBS__SQL_OK;
  for (uint32_t i = 0; i < op->count && end == DIBS__SQL_OK; i++) {
    op->items[i].status = DIBS_NOT_FOUND;
    if (is_number && !dibs__sql_is_number(op->items[i].key)) continue;
    end = send_reads(g, op, &op->items[i], 1);
    if (end != DIBS__SQL_OK && item_is_refused(g->wire)) end = DIBS__SQL_OK;
  }
  return end;
}

static sql_rc run_read(struct dibs__sql_guard *g, counter_op *op) {
  bool is_number, some = false;
  sql_rc end = check_table(g, op, &is_number);
  if (end != DIBS__SQL_OK || op->op.status != DIBS_UNKNOWN) return end;
  for (uint32_t i = 0; i < op->count; i++) some = some || (is_number && !dibs__sql_is_number(op->items[i].key));
  end = some ? DIBS__SQL_FAILED : send_reads(g, op, op->items, op->count);
  if (end != DIBS__SQL_OK && (some || item_is_refused(g->wire))) end = read_one_by_one(g, op, is_number);
  if (end == DIBS__SQL_OK) op->op.status = DIBS_OK;
  return end;
}

static sql_rc run_list(struct dibs__sql_guard *g, counter_op *op) {
  const struct dibs__list list = {.prefix = op->prefix, .after = op->after};
  struct dibs__sql_wire *w = g->wire;
  char least[DIBS_NAME_MAX + 1];
  dibs__str from = dibs__list_from(&list, least);
  value values[] = {text_of(from), dibs__sql_number(op->most)};
  sql_rc end = begin_reading(w);
  size_t count = 0, nth = w->put;
  if (end == DIBS__SQL_OK)
    end = dibs__sql_put_composed(g, "SELECT name, number FROM dibs_counter WHERE name >= $1 ORDER BY name LIMIT $2",
                                 values, 2);
  if (end == DIBS__SQL_OK) end = go_reading(w);
  if (end != DIBS__SQL_OK && w->inside && !dibs__sql_dead(w)) dibs__sql_rollback(w);
  if (end != DIBS__SQL_OK) return end;
  size_t all = w->engine->rows(w, nth);
  struct dibs__counter_row *rows = calloc(all + 1, sizeof *rows);
  if (!rows) return dibs__sql_fail(w, DIBS__SQL_NO_SPACE, "out of memory");
  for (size_t row = 0; row < all; row++) {
    value name = w->engine->cell(w, nth, row, 0, DIBS__SQL_TEXT);
    dibs__str key = dibs__str_of(name.p, name.len);
    if (!dibs__list_has(&list, key)) break;
    rows[count++] = (struct dibs__counter_row){key, dibs__sql_cell_number(w, nth, row, 1)};
  }
  dibs__counter_answer(op, rows, count);
  free(rows);
  return DIBS__SQL_OK;
}

/* Reads are tried again after a clash; the others have answered themselves. */
static sql_rc run_reading(struct dibs__sql_guard *g, counter_op *op) {
  struct dibs__sql_wire *w = g->wire;
  for (int clashes = 0;; clashes++) {
    sql_rc end = op->op.verb == DIBS__COUNTER_READ ? run_read(g, op) : run_list(g, op);
    if (end == DIBS__SQL_OK || dibs__sql_dead(w) || w->trouble == DIBS__SQL_NO_SPACE) return end;
    bool again = w->trouble == DIBS__SQL_DEADLOCK && !w->inside && clashes < CLASHES;
    if (!again || dibs__tick_left_ms(dibs__tick_now(), w->by) <= NAP_MS) {
      refuse(g, op);
      return DIBS__SQL_OK;
    }
    dibs__nap_ms(NAP_MS);
  }
}

sql_rc dibs__sql_counter(struct dibs__sql_guard *g, counter_op *const ops[], size_t count) {
  sql_rc end = DIBS__SQL_OK;
  for (size_t i = 0; i < count; i++)
    if (dibs__counter_valid(ops[i], g->wire->inside)) ops[i]->op.status = DIBS_UNKNOWN;
  for (size_t i = 0; i < count && end == DIBS__SQL_OK; i++) {
    if (ops[i]->op.status != DIBS_UNKNOWN) continue;
    uint16_t verb = ops[i]->op.verb;
    end = verb == DIBS__COUNTER_ADD    ? run_add(g, ops[i])
          : verb == DIBS__COUNTER_TAKE ? run_take(g, ops[i])
                                       : run_reading(g, ops[i]);
  }
  return end;
}

sql_rc dibs__sql_counter_sweep(struct dibs__sql_guard *g, bool *more) {
  bool sources, rates;
  sql_rc end = dibs__sql_sweep(g, "dibs_counter_source", "id", SWEPT, &sources);
  *more = sources;
  if (end != DIBS__SQL_OK) return end;
  end = dibs__sql_sweep(g, "dibs_rate", "name", SWEPT, &rates);
  *more = sources || rates;
  return end;
}

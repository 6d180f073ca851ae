/* SPDX-License-Identifier: MIT */
/* Statements about tasks in the user's table: pieces of templates (text.h), with their values. */
#include "sql/sql_impl.h"
#include "sql/text.h"

#include <assert.h>
#include <string.h>

typedef struct dibs__task_text text_t;
typedef struct dibs__sql_value value;

static void begin_text(text_t *t) {
  dibs__text_begin(&t->text, t->memory, sizeof t->memory);
  t->count = 0;
}

static void compose(text_t *t, const char *piece, size_t before) {
  const struct dibs__sql_word words[] = {{"skip", t->engine->sessions ? " FOR UPDATE SKIP LOCKED" : ""}, {NULL, NULL}};
  struct dibs__sql_names names = {
      .engine = t->engine, .prefix = "", .inside = t->inside, .table = t->table, .before = before, .words = words};
  dibs__sql_compose(&t->text, &names, piece);
}

static void add_value(text_t *t, value v) {
  assert(t->count < DIBS__TASK_VALUES);
  t->values[t->count++] = v;
}

static void add_piece(text_t *t, const char *piece) {
  compose(t, piece, t->count);
}

/* A piece with $1. */
static void add_with(text_t *t, const char *piece, value v) {
  size_t before = t->count;
  add_value(t, v);
  compose(t, piece, before);
}

static value text_of(dibs__str s) {
  return dibs__sql_text(s.p, s.len);
}

/* ---- Instants ---- */

enum column { LOCKED, UPDATED };

static const struct dibs__sql_instant *instant_of(const text_t *t, enum column column) {
  return column == LOCKED ? t->shape->locked : t->shape->updated;
}

/* An expression of an instant, about this column and the ms `x`, a piece in which $1 is the number `given`.  NULL: it
 * has no @x. */
static void add_instant(text_t *t, const char *expression, enum column column, const char *x, int64_t given) {
  size_t before = t->count;
  char part[256];
  if (x && strstr(x, "$1")) add_value(t, dibs__sql_number(given));
  for (const char *at = expression; *at;) {
    size_t len = strcspn(at, "@");
    assert(len < sizeof part);
    memcpy(part, at, len);
    part[len] = '\0';
    compose(t, part, before);
    at += len;
    if (*at == '\0') break;
    if (at[1] == 'x') {
      compose(t, "(", before);
      compose(t, x, before);
      compose(t, ")", before);
    } else {
      compose(t, (column == LOCKED) == (at[1] == 'c') ? "@L" : "@U", before);
    }
    at += 2;
  }
}

static void add_ms(text_t *t, enum column column) {
  add_instant(t, instant_of(t, column)->ms, column, NULL, 0);
}

static void set_instant(text_t *t, enum column column, const char *x, int64_t given) {
  add_piece(t, column == LOCKED ? "@^L = " : "@^U = ");
  add_instant(t, instant_of(t, column)->value, column, x, given);
}

/* `x` is a piece in which $1 is a duration. */
static void is_before(text_t *t, enum column column, const char *x, int64_t duration_ms) {
  const struct dibs__sql_instant *i = instant_of(t, column);
  if (i->by_ms)
    add_ms(t, column);
  else
    add_piece(t, column == LOCKED ? "@L" : "@U");
  add_piece(t, " <= ");
  add_instant(t, i->by_ms ? "@x" : i->value, column, x, duration_ms);
}

/* A column that is never NULL is sorted as an index has it. */
static void order_by(text_t *t, enum column column) {
  bool may_be_null = column == LOCKED ? t->shape->locked_may_be_null : t->shape->updated_may_be_null;
  if (may_be_null) add_piece(t, column == LOCKED ? "@L IS NOT NULL, " : "@U IS NOT NULL, ");
  if (instant_of(t, column)->by_ms)
    add_ms(t, column);
  else
    add_piece(t, column == LOCKED ? "@L" : "@U");
}

/* ---- Conditions ---- */

static void where_key(text_t *t, dibs__str key) {
  add_with(t, " WHERE @k = $1", text_of(key));
  add_with(t, " AND @~k = $1", text_of(key));
}

static void phase_in(text_t *t, const char *column, const dibs__str *phases, uint32_t count) {
  add_piece(t, column);
  for (uint32_t i = 0; i < count; i++) add_with(t, i ? ", $1" : "$1", text_of(phases[i]));
  add_piece(t, ")");
}

/* An engine may treat other texts as equal to a phase. */
static void where_phase(text_t *t, const dibs__str *phases, uint32_t count) {
  add_piece(t, " WHERE @k IS NOT NULL");
  if (count == 0) {
    add_piece(t, " AND @P IS NOT NULL");
    return;
  }
  phase_in(t, " AND @P IN (", phases, count);
  phase_in(t, " AND @~P IN (", phases, count);
}

static void is_free(text_t *t, int64_t timeout_ms) {
  if (t->shape->locked_may_be_null) add_piece(t, "(@L IS NULL OR ");
  is_before(t, LOCKED, "@{start} - $1", timeout_ms);
  if (t->shape->locked_may_be_null) add_piece(t, ")");
}

/* Where the engine stores any value in any column: the fence must be a number that can be counted up, and locked_at an
 * instant. */
static void is_usable(text_t *t) {
  add_piece(t, "(@f IS NULL OR (@?f AND @f BETWEEN 0 AND 9223372036854775806)) AND (@L IS NULL OR ");
  add_instant(t, t->shape->locked->usable, LOCKED, NULL, 0);
  add_piece(t, ")");
}

static bool any_value_anywhere(const text_t *t) {
  return t->engine->whole[0] && t->shape->locked->usable;
}

static void where_claimable(text_t *t, const struct dibs__task_op *op, bool free) {
  where_phase(t, op->phases, op->phase_count);
  if (any_value_anywhere(t)) {
    add_piece(t, " AND ");
    is_usable(t);
  }
  if (!free) return;
  add_piece(t, " AND ");
  is_free(t, op->timeout_ms);
}

static void oldest_first(text_t *t) {
  add_piece(t, " ORDER BY ");
  order_by(t, LOCKED);
  add_piece(t, ", ");
  order_by(t, UPDATED);
}

/* ---- Columns ---- */

static void add_columns(text_t *t) {
  add_piece(t, "@~k AS c0, @P AS c1, @f AS c2, ");
  add_instant(t, t->shape->locked->text, LOCKED, NULL, 0);
  add_piece(t, " AS c3, ");
  add_ms(t, LOCKED);
  add_piece(t, " AS c4, ");
  add_ms(t, UPDATED);
  add_piece(t, " AS c5");
}

/* Naming updated_at keeps an engine from setting it by itself (ON UPDATE CURRENT_TIMESTAMP). */
static void set_claimed(text_t *t) {
  set_instant(t, LOCKED, "@{now}", 0);
  add_piece(t, ", @^f = CASE WHEN @f >= 0 THEN @f + 1 ELSE 1 END, @^U = @U");
}

/* ---- Statements ---- */

void dibs__tt_claim(text_t *t, const struct dibs__task_op *op) {
  begin_text(t);
  add_piece(t, "WITH dibsfree AS (SELECT @k AS k, @L AS l, @U AS d FROM @S");
  where_claimable(t, op, true);
  oldest_first(t);
  add_with(t, " LIMIT $1@{skip}), dibsdone AS (UPDATE @S SET ", dibs__sql_number(op->most));
  set_claimed(t);
  add_piece(t, " FROM dibsfree WHERE @k = dibsfree.k RETURNING ");
  add_columns(t);
  add_piece(t, ", dibsfree.l, dibsfree.d) SELECT c0, c1, c2, c3, c4, c5 FROM dibsdone"
               " ORDER BY l NULLS FIRST, d NULLS FIRST");
}

void dibs__tt_free(text_t *t, const struct dibs__task_op *op) {
  begin_text(t);
  add_piece(t, "SELECT @~k FROM @S");
  where_claimable(t, op, true);
  oldest_first(t);
  add_with(t, " LIMIT $1@{skip}", dibs__sql_number(op->most));
}

static void add_returning(text_t *t) {
  if (!t->engine->update_returning) return;
  add_piece(t, " RETURNING ");
  add_columns(t);
}

void dibs__tt_take(text_t *t, dibs__str key) {
  begin_text(t);
  add_piece(t, "UPDATE @S SET ");
  set_claimed(t);
  where_key(t, key);
  add_returning(t);
}

void dibs__tt_row(text_t *t, dibs__str key) {
  begin_text(t);
  add_piece(t, "SELECT ");
  add_columns(t);
  add_piece(t, " FROM @S");
  where_key(t, key);
}

void dibs__tt_next(text_t *t, const struct dibs__task_op *op) {
  begin_text(t);
  add_piece(t, "SELECT ");
  add_ms(t, LOCKED);
  add_piece(t, ", @{now} FROM @S");
  where_claimable(t, op, false);
  add_piece(t, " ORDER BY ");
  order_by(t, LOCKED);
  add_piece(t, " LIMIT 1");
}

bool dibs__tt_unusable(text_t *t, const struct dibs__task_op *op) {
  begin_text(t);
  if (!any_value_anywhere(t)) return false;
  add_piece(t, "SELECT @~k FROM @S");
  where_phase(t, op->phases, op->phase_count);
  add_piece(t, " AND NOT (");
  is_usable(t);
  add_piece(t, ") LIMIT 1");
  return true;
}

/* The new locked_at. */
static void set_end(text_t *t, const struct dibs__task_op *op, const struct dibs__task_item *item) {
  bool waits = item->verdict == DIBS__TASK_END_WAIT || item->verdict == DIBS__TASK_END_FAIL;
  if (op->op.verb == DIBS__TASK_EXTEND)
    set_instant(t, LOCKED, "@{now}", 0);
  else if (waits)
    set_instant(t, LOCKED, "@{now} + $1", item->delay_ms - op->timeout_ms);
  else
    set_instant(t, LOCKED, "$1", t->shape->locked->least_ms);
}

void dibs__tt_change(text_t *t, const struct dibs__task_op *op, const struct dibs__task_item *item) {
  bool extends = op->op.verb == DIBS__TASK_EXTEND;
  bool steps = item->phase.len > 0 || (!extends && item->verdict == DIBS__TASK_END_NEXT);
  begin_text(t);
  add_piece(t, "UPDATE @S SET ");
  set_end(t, op, item);
  if (item->phase.len) add_with(t, ", @^P = $1", text_of(item->phase));
  add_piece(t, ", ");
  if (steps)
    set_instant(t, UPDATED, "@{now}", 0);
  else
    add_piece(t, "@^U = @U");
  where_key(t, item->key);
  add_with(t, " AND @f = $1 AND ", dibs__sql_number((int64_t)item->fence.v));
  add_instant(t, t->shape->locked->text, LOCKED, NULL, 0);
  add_with(t, " = $1", text_of(item->locked));
  if (extends) add_returning(t);
}

void dibs__tt_list(text_t *t, const struct dibs__task_op *op) {
  const struct dibs__task_filter *f = &op->filter;
  begin_text(t);
  add_piece(t, "SELECT ");
  add_columns(t);
  add_piece(t, ", CASE WHEN ");
  is_free(t, op->timeout_ms);
  add_piece(t, " THEN 1 ELSE 0 END AS c6 FROM @S");
  where_phase(t, &f->phase, f->phase.len > 0);
  if (f->key.len) add_with(t, " AND @k = $1", text_of(f->key));
  if (f->key.len) add_with(t, " AND @~k = $1", text_of(f->key));
  if (f->after_key.len) add_with(t, " AND @k > $1", text_of(f->after_key));
  if (f->older_ms > 0) {
    add_piece(t, " AND ");
    is_before(t, UPDATED, "@{start} - $1", f->older_ms);
  }
  if (!(f->states & 1u << DIBS__TASK_CLAIMED) && f->states) {
    add_piece(t, " AND ");
    is_free(t, op->timeout_ms);
  }
  if (!(f->states & 1u << DIBS__TASK_READY) && f->states) {
    add_piece(t, " AND NOT ");
    is_free(t, op->timeout_ms);
  }
  add_with(t, " ORDER BY @k LIMIT $1", dibs__sql_number(op->most));
}

enum dibs__sql_rc dibs__tt_put(text_t *t, struct dibs__sql_wire *wire) {
  assert(!t->text.cut);
  return wire->engine->put(wire, t->memory, t->values, t->count);
}

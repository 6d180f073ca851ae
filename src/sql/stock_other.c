/* SPDX-License-Identifier: MIT */
/*
 * What people do by hand: the row is read without a lock, then written.  `optimistic` writes if nobody did in between;
 * `unguarded` writes what it thinks, the claim first: it loses updates, and where a claim refers to the row it runs
 * into the deadlock that the order of locks avoids.
 */
#include "sql/stock_parts.h"

typedef dibs__stock_step step;
typedef struct dibs__sql_value value;
typedef struct dibs__stock_op stock_op;
typedef struct dibs__stock_look look_t;
typedef struct dibs__stock_run run_t;

static step look_unlocked(struct dibs__sql_guard *g, look_t *look, const run_t *run) {
  size_t first = 0;
  step end = dibs__stock_look_put(g, look, run, false, &first);
  if (end == DIBS__SQL_FINE) end = g->wire->engine->go(g->wire, false);
  if (end == DIBS__SQL_FINE) dibs__stock_decide(g, look, run, first);
  return end;
}

static step write_if_same(struct dibs__sql_guard *g, const look_t *look, const stock_op *op, bool open, bool *done) {
  value values[] = {dibs__stock_key(op->key), dibs__sql_number(look->used_after - look->used),
                    dibs__sql_number(look->used)};
  value row[DIBS__STOCK_COLUMNS];
  size_t first = 0;
  int64_t used, limit;
  dibs__stock_row(row, op->claim, look->used_after - look->used, false, op->owner);
  step end = open ? dibs__sql_begin(g->wire) : DIBS__SQL_FINE;
  if (end == DIBS__SQL_FINE)
    end = dibs__stock_put_if(g, op->table, "", "@u = $3 AND @u + $2 <= @m", values, 3, row, 1, &first);
  if (end == DIBS__SQL_FINE && open) end = dibs__sql_commit(g->wire);
  if (end == DIBS__SQL_FINE) end = g->wire->engine->go(g->wire, true);
  *done = end == DIBS__SQL_FINE && dibs__stock_matched(g, first, &used, &limit);
  g->commits += *done;
  return end;
}

static step write_blindly(struct dibs__sql_guard *g, const look_t *look, const stock_op *op, bool *done) {
  value values[] = {dibs__stock_key(op->key), dibs__sql_number(look->used_after)}, row[DIBS__STOCK_COLUMNS];
  dibs__stock_row(row, op->claim, look->used_after - look->used, false, op->owner);
  step end = dibs__sql_begin(g->wire);
  if (end == DIBS__SQL_FINE) end = dibs__stock_put_new(g, op->table, values, 1, row, 1, "");
  if (end == DIBS__SQL_FINE) end = dibs__stock_put(g, op->table, "UPDATE @S SET @u = $2 WHERE @k = $1", values, 2);
  if (end == DIBS__SQL_FINE) end = dibs__sql_commit(g->wire);
  if (end == DIBS__SQL_FINE) end = g->wire->engine->go(g->wire, true);
  *done = end == DIBS__SQL_FINE;
  g->commits += *done;
  return end;
}

/* After a try that broke.  *again: another one. */
static step after_trouble(struct dibs__sql_guard *g, const run_t *run, bool open, bool *twice, bool *again) {
  bool dead;
  dibs__stock_broke(g, run, open, &dead, again);
  if (dead) return DIBS__SQL_BROKE;
  if (!*again && g->wire->trouble == DIBS__SQL_TWICE && !*twice) *again = *twice = true; /* ours, from before */
  if (!*again) dibs__stock_refuse(g, run);
  return DIBS__SQL_FINE;
}

/* Somebody changed it in between.  true: once more. */
static bool changed_meanwhile(struct dibs__sql_guard *g, stock_op *op) {
  op->retries++;
  bool more = op->tries == 0 || op->retries < op->tries;
  if (more && dibs__tick_before(dibs__tick_now(), g->wire->by)) {
    dibs__stock_pause(op->retries, g->wire->by);
    return true;
  }
  op->op.status = DIBS_CONFLICT;
  return false;
}

static step read_and_write(struct dibs__sql_guard *g, look_t *look, const run_t *run, bool blindly) {
  stock_op *op = run->ops[0];
  bool open = g->wire->inside || blindly || dibs__stock_two_statements(g), again = true, twice = false, done;
  step end = DIBS__SQL_FINE;
  look->blind = dibs__stock_may_be_blind(run);
  while (again) {
    again = false;
    end = look_unlocked(g, look, run);
    if (end != DIBS__SQL_FINE) {
      end = after_trouble(g, run, false, &twice, &again);
    } else if (dibs__stock_looks_again(look)) {
      again = true;
    } else if (!dibs__stock_changes(look)) {
      dibs__stock_answer(look, run);
    } else {
      end = blindly ? write_blindly(g, look, op, &done) : write_if_same(g, look, op, open, &done);
      look->blind = look->blind && end == DIBS__SQL_FINE;
      if (end != DIBS__SQL_FINE)
        end = after_trouble(g, run, open, &twice, &again);
      else if (done)
        dibs__stock_answer(look, run);
      else
        again = changed_meanwhile(g, op);
    }
    if (end != DIBS__SQL_FINE) break;
  }
  return end;
}

static step alone(struct dibs__sql_guard *g, stock_op *op, bool blindly) {
  look_t look;
  run_t run = {&op, 1};
  if (!dibs__stock_look_make(&look, &run)) return dibs__sql_broke(g->wire, DIBS__SQL_NO_SPACE, "out of memory");
  step end = read_and_write(g, &look, &run, blindly);
  dibs__stock_look_free(&look);
  return end;
}

step dibs__stock_optimistic(struct dibs__sql_guard *g, stock_op *op) {
  return alone(g, op, false);
}

step dibs__stock_unguarded(struct dibs__sql_guard *g, stock_op *op) {
  return alone(g, op, true);
}

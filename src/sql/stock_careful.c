/* SPDX-License-Identifier: MIT */
/*
 * The careful way, in two packets:
 *
 *   BEGIN; the row, locked; the claims  ->  decided here  ->  new claims, claims given back, used; COMMIT
 *
 * The claims are looked up behind the lock, so that a commit still in flight when we asked is seen: a claim of this row
 * is only ever written under it.
 *
 * One bad claim poisons nobody: what broke is undone and halved until the culprit stands alone.
 */
#include "sql/stock_parts.h"

#include <stdlib.h>

typedef dibs__stock_step step;
typedef struct dibs__sql_value value;
typedef struct dibs__stock_look look_t;
typedef struct dibs__stock_run run_t;

static step look_and_decide(struct dibs__sql_guard *g, look_t *look, const run_t *run) {
  size_t first = 0;
  step end = dibs__sql_begin(g->wire);
  do {
    if (end == DIBS__SQL_FINE) end = dibs__stock_look_put(g, look, run, true, &first);
    if (end == DIBS__SQL_FINE) end = g->wire->engine->go(g->wire, false);
    if (end == DIBS__SQL_FINE) dibs__stock_decide(g, look, run, first);
  } while (end == DIBS__SQL_FINE && dibs__stock_looks_again(look));
  return end;
}

static step put_fresh(struct dibs__sql_guard *g, const look_t *look, const run_t *run) {
  value key = dibs__stock_key(run->ops[0]->key), *rows = dibs__stock_fresh(look);
  if (!rows) return dibs__sql_broke(g->wire, DIBS__SQL_NO_SPACE, "out of memory");
  step end = dibs__stock_put_new(g, run->ops[0]->table, &key, 1, rows, look->fresh, "");
  free(rows);
  return end;
}

static step put_marks(struct dibs__sql_guard *g, const look_t *look, const run_t *run) {
  dibs__str *names = malloc(look->marks * sizeof *names);
  size_t n = 0;
  if (!names) return dibs__sql_broke(g->wire, DIBS__SQL_NO_SPACE, "out of memory");
  for (size_t i = 0; i < look->claim_count; i++)
    if (look->claims[i].mark) names[n++] = look->claims[i].claim;
  step end = dibs__stock_put_claims(g, run->ops[0]->table, "UPDATE @C SET @g = 1 WHERE @s = $1 AND", run->ops[0]->key,
                                    names, n);
  free(names);
  return end;
}

static step put_used(struct dibs__sql_guard *g, const look_t *look, const run_t *run) {
  const struct dibs__stock_op *op = run->ops[0];
  value values[] = {dibs__stock_key(op->key), dibs__sql_number(look->used_after - look->used),
                    dibs__sql_number((int64_t)op->fence.v), dibs__sql_number((int64_t)dibs__id_digest(op->id))};
  if (look->fenced)
    return dibs__stock_put(g, op->table, "UPDATE @S SET @u = @u + $2, @f = $3[o , @o = $4] WHERE @k = $1", values,
                           op->table && !op->table->owner ? 3 : 4);
  if (look->used_after == look->used) return DIBS__SQL_FINE;
  return dibs__stock_put(g, op->table, "UPDATE @S SET @u = @u + $2 WHERE @k = $1", values, 2);
}

static step write(struct dibs__sql_guard *g, const look_t *look, const run_t *run) {
  step end = DIBS__SQL_FINE;
  if (look->fresh > 0) end = put_fresh(g, look, run);
  if (end == DIBS__SQL_FINE && look->marks > 0) end = put_marks(g, look, run);
  if (end == DIBS__SQL_FINE && dibs__stock_changes(look)) end = put_used(g, look, run);
  if (end == DIBS__SQL_FINE) end = dibs__sql_commit(g->wire);
  if (end == DIBS__SQL_FINE) end = g->wire->engine->go(g->wire, dibs__stock_changes(look));
  if (end == DIBS__SQL_FINE) g->commits += dibs__stock_changes(look);
  return end;
}

static step halves(struct dibs__sql_guard *g, const run_t *run) {
  run_t first = {run->ops, run->count / 2}, second = {run->ops + run->count / 2, run->count - run->count / 2};
  step end = dibs__stock_careful(g, &first);
  return end == DIBS__SQL_FINE ? dibs__stock_careful(g, &second) : end;
}

/* What it came to after a try that broke; *once_more: try again. */
static step after_trouble(struct dibs__sql_guard *g, look_t *look, const run_t *run, bool *looked_again,
                          bool *once_more) {
  bool dead, again;
  dibs__stock_broke(g, run, true, &dead, &again);
  *once_more = false;
  if (dead) return DIBS__SQL_BROKE;
  if (look->blind && dibs__stock_is_one(g->wire->trouble)) {
    look->blind = false;
    *once_more = true;
    return DIBS__SQL_FINE;
  }
  if (!again && run->count == 1 && g->wire->trouble == DIBS__SQL_TWICE && !*looked_again)
    again = *looked_again = true; /* the claim came to be, for another row, after we looked */
  *once_more = again;
  if (again) return DIBS__SQL_FINE;
  bool time = dibs__tick_before(dibs__tick_now(), g->wire->by);
  if (run->count > 1 && dibs__stock_is_one(g->wire->trouble) && time) return halves(g, run);
  dibs__stock_refuse(g, run);
  return DIBS__SQL_FINE;
}

step dibs__stock_careful(struct dibs__sql_guard *g, const run_t *run) {
  look_t look;
  bool looked_again = false, once_more = true;
  step end = DIBS__SQL_FINE;
  if (!dibs__stock_look_make(&look, run)) return dibs__sql_broke(g->wire, DIBS__SQL_NO_SPACE, "out of memory");
  look.blind = dibs__stock_may_be_blind(run);
  while (once_more) {
    end = look_and_decide(g, &look, run);
    if (end == DIBS__SQL_FINE) end = write(g, &look, run);
    if (end == DIBS__SQL_FINE) {
      dibs__stock_answer(&look, run);
      break;
    }
    end = after_trouble(g, &look, run, &looked_again, &once_more);
  }
  dibs__stock_look_free(&look);
  return end;
}

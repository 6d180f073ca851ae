/* SPDX-License-Identifier: MIT */
/*
 * Stock: a batch, sorted by row.  Takes that are all coalesced go together in one packet; a row with a give, or with
 * a partial take, is decided in the careful way; everything else runs by itself, in its order.
 *
 * The careful way, in two packets:
 *
 *   BEGIN; the row, locked; the claims  ->  decided here  ->  new claims, claims given back, used; COMMIT
 *
 * The claims are looked up after the lock, so that a commit still in flight at the time of the request is seen: a
 * claim of this row is only ever written under it.  One bad claim fails no other: a failed packet is rolled back and
 * halved until the bad claim is alone.
 *
 * Optimistic writes: the row is read without a lock, then written if nobody did in between.
 *
 * Old claims: those that were given back longer ago than they are kept are deleted; a claim that holds units stays.
 * There is no index on their time, which every take would have to write: the sweep walks through the table in the
 * order of its key, a step each time, and starts again at its end.
 */
#include "sql/sql_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef dibs__stock_step sql_rc;
typedef struct dibs__sql_value value;

enum { LOOKED_AT = 500 };
/* A claim that is used again so long after it was given back is a new one.  `taken` is then the time when it was given
 * back. */
#define KEEP_MS "2592000000"

struct old {
  size_t count;
  dibs__str names[LOOKED_AT];
  char memory[LOOKED_AT][DIBS__SQL_CLAIM_MAX];
};

static sql_rc find_old_claims(struct dibs__sql_guard *g, struct old *old, bool *more) {
  const struct dibs__sql_engine *e = g->wire->engine;
  value from = dibs__sql_text(g->swept, strlen(g->swept));
  size_t nth = g->wire->put;
  sql_rc end = dibs__stock_put(g, NULL,
                               "SELECT @c, CASE WHEN @g <> 0 AND @w < @{now} - " KEEP_MS
                               " THEN 1 ELSE 0 END FROM @C WHERE @c > $1 "
                               "ORDER BY @c LIMIT 500",
                               &from, 1);
  if (end == DIBS__SQL_OK) end = e->go(g->wire, false);
  if (end != DIBS__SQL_OK) return end;
  size_t rows = e->rows(g->wire, nth);
  *more = rows >= LOOKED_AT;
  g->swept[0] = '\0';
  for (size_t i = 0; i < rows; i++) {
    value name = e->cell(g->wire, nth, i, 0, DIBS__SQL_TEXT);
    if (name.len > DIBS__SQL_CLAIM_MAX) continue;
    if (*more && i == rows - 1) {
      memcpy(g->swept, name.p, name.len);
      g->swept[name.len] = '\0';
    }
    if (!dibs__sql_cell_number(g->wire, nth, i, 1)) continue;
    memcpy(old->memory[old->count], name.p, name.len);
    old->names[old->count] = dibs__str_of(old->memory[old->count], name.len);
    old->count++;
  }
  return DIBS__SQL_OK;
}

/* $1 of every statement about claims is the key; here no row has it. */
static sql_rc delete_old_claims(struct dibs__sql_guard *g, const struct old *old) {
  sql_rc end = dibs__sql_begin(g->wire);
  if (end == DIBS__SQL_OK)
    end = dibs__stock_put_claims(g, NULL, "DELETE FROM @C WHERE @s <> $1 AND @g <> 0 AND", (dibs__str){0}, old->names,
                                 old->count);
  if (end == DIBS__SQL_OK) end = dibs__sql_commit(g->wire);
  if (end == DIBS__SQL_OK) end = g->wire->engine->go(g->wire, true);
  if (end == DIBS__SQL_OK) g->commits++;
  if (end != DIBS__SQL_OK && !dibs__sql_dead(g->wire)) dibs__sql_rollback(g->wire);
  return end;
}

sql_rc dibs__sql_claims_sweep(struct dibs__sql_guard *g, bool *more) {
  *more = false;
  if (!g->swept) return DIBS__SQL_OK;
  struct old *old = calloc(1, sizeof *old);
  if (!old) return dibs__sql_fail(g->wire, DIBS__SQL_NO_SPACE, "out of memory");
  sql_rc end = find_old_claims(g, old, more);
  if (end == DIBS__SQL_OK && old->count > 0) end = delete_old_claims(g, old);
  free(old);
  return end;
}

/* ---- The careful way ---- */

typedef struct dibs__stock_lookup lookup_t;
typedef struct dibs__stock_run run_t;

static sql_rc lookup_and_decide(struct dibs__sql_guard *g, lookup_t *lookup, const run_t *run) {
  size_t first = 0;
  sql_rc end = dibs__sql_begin(g->wire);
  do {
    if (end == DIBS__SQL_OK) end = dibs__stock_lookup_put(g, lookup, run, true, &first);
    if (end == DIBS__SQL_OK) end = g->wire->engine->go(g->wire, false);
    if (end == DIBS__SQL_OK) dibs__stock_decide(g, lookup, run, first);
  } while (end == DIBS__SQL_OK && dibs__stock_lookups_again(lookup));
  return end;
}

static sql_rc put_fresh(struct dibs__sql_guard *g, const lookup_t *lookup, const run_t *run) {
  value key = dibs__stock_key(run->ops[0]->key), *rows = dibs__stock_fresh(lookup);
  if (!rows) return dibs__sql_fail(g->wire, DIBS__SQL_NO_SPACE, "out of memory");
  sql_rc end = dibs__stock_put_new(g, run->ops[0]->table, &key, 1, rows, lookup->fresh, "");
  free(rows);
  return end;
}

static sql_rc put_marks(struct dibs__sql_guard *g, const lookup_t *lookup, const run_t *run) {
  dibs__str *names = malloc(lookup->marks * sizeof *names);
  size_t n = 0;
  if (!names) return dibs__sql_fail(g->wire, DIBS__SQL_NO_SPACE, "out of memory");
  for (size_t i = 0; i < lookup->claim_count; i++)
    if (lookup->claims[i].mark) names[n++] = lookup->claims[i].claim;
  sql_rc end = dibs__stock_put_claims(g, run->ops[0]->table, "UPDATE @C SET @^g = 1@[!*, @^w = @{now}@] WHERE @!s AND",
                                      run->ops[0]->key, names, n);
  free(names);
  return end;
}

static sql_rc put_used(struct dibs__sql_guard *g, const lookup_t *lookup, const run_t *run) {
  const struct dibs__stock_op *op = run->ops[0];
  value values[] = {dibs__stock_key(op->key), dibs__sql_number(lookup->used_after - lookup->used),
                    dibs__sql_number((int64_t)op->fence.v), dibs__sql_number((int64_t)dibs__id_digest(op->id))};
  if (lookup->fenced)
    return dibs__stock_put(g, op->table, "UPDATE @S SET @^u = @u + $2, @^f = $3@[o , @^o = $4@] WHERE @!k", values,
                           op->table && !op->table->owner ? 3 : 4);
  if (lookup->used_after == lookup->used) return DIBS__SQL_OK;
  return dibs__stock_put(g, op->table, "UPDATE @S SET @^u = @u + $2 WHERE @!k", values, 2);
}

static sql_rc write_claims(struct dibs__sql_guard *g, const lookup_t *lookup, const run_t *run) {
  sql_rc end = DIBS__SQL_OK;
  if (lookup->fresh > 0) end = put_fresh(g, lookup, run);
  if (end == DIBS__SQL_OK && lookup->marks > 0) end = put_marks(g, lookup, run);
  if (end == DIBS__SQL_OK && dibs__stock_changes(lookup)) end = put_used(g, lookup, run);
  if (end == DIBS__SQL_OK) end = dibs__sql_commit(g->wire);
  if (end == DIBS__SQL_OK) end = g->wire->engine->go(g->wire, dibs__stock_changes(lookup));
  if (end == DIBS__SQL_OK) g->commits += dibs__stock_changes(lookup);
  return end;
}

static sql_rc run_halves(struct dibs__sql_guard *g, const run_t *run) {
  run_t first = {run->ops, run->count / 2}, second = {run->ops + run->count / 2, run->count - run->count / 2};
  sql_rc end = dibs__stock_careful(g, &first);
  return end == DIBS__SQL_OK ? dibs__stock_careful(g, &second) : end;
}

/* Handles a failed try; *once_more: try again. */
static sql_rc after_trouble(struct dibs__sql_guard *g, lookup_t *lookup, const run_t *run, bool *looked_again,
                            bool *once_more) {
  bool dead, again;
  dibs__stock_broke(g, run, true, &dead, &again);
  *once_more = false;
  if (dead) return DIBS__SQL_FAILED;
  if (lookup->blind && dibs__stock_is_one(g->wire->trouble)) {
    lookup->blind = false;
    *once_more = true;
    return DIBS__SQL_OK;
  }
  if (!again && run->count == 1 && g->wire->trouble == DIBS__SQL_TWICE && !*looked_again)
    again = *looked_again = true; /* the claim was made for another row, after the lookup */
  *once_more = again;
  if (again) return DIBS__SQL_OK;
  bool time = dibs__tick_before(dibs__tick_now(), g->wire->by);
  if (run->count > 1 && dibs__stock_is_one(g->wire->trouble) && time) return run_halves(g, run);
  dibs__stock_refuse(g, run);
  return DIBS__SQL_OK;
}

sql_rc dibs__stock_careful(struct dibs__sql_guard *g, const run_t *run) {
  lookup_t lookup;
  bool looked_again = false, once_more = true;
  sql_rc end = DIBS__SQL_OK;
  if (!dibs__stock_lookup_make(&lookup, run)) return dibs__sql_fail(g->wire, DIBS__SQL_NO_SPACE, "out of memory");
  lookup.blind = dibs__stock_may_be_blind(run);
  while (once_more) {
    end = lookup_and_decide(g, &lookup, run);
    if (end == DIBS__SQL_OK) end = write_claims(g, &lookup, run);
    if (end == DIBS__SQL_OK) {
      dibs__stock_answer(&lookup, run);
      break;
    }
    end = after_trouble(g, &lookup, run, &looked_again, &once_more);
  }
  dibs__stock_lookup_free(&lookup);
  return end;
}

/* ---- Optimistic writes ---- */

typedef struct dibs__stock_op stock_op;

static sql_rc lookup_unlocked(struct dibs__sql_guard *g, lookup_t *lookup, const run_t *run) {
  size_t first = 0;
  sql_rc end = dibs__stock_lookup_put(g, lookup, run, false, &first);
  if (end == DIBS__SQL_OK) end = g->wire->engine->go(g->wire, false);
  if (end == DIBS__SQL_OK) dibs__stock_decide(g, lookup, run, first);
  return end;
}

static sql_rc write_if_same(struct dibs__sql_guard *g, const lookup_t *lookup, const stock_op *op, bool open,
                            bool *done) {
  value values[] = {dibs__stock_key(op->key), dibs__sql_number(lookup->used_after - lookup->used),
                    dibs__sql_number(lookup->used)};
  value row[DIBS__STOCK_COLUMNS];
  size_t first = 0;
  int64_t used, limit;
  dibs__stock_row(row, op->claim, lookup->used_after - lookup->used, false, op->owner);
  sql_rc end = open ? dibs__sql_begin(g->wire) : DIBS__SQL_OK;
  if (end == DIBS__SQL_OK)
    end = dibs__stock_put_if(g, op->table, "", "@u = $3 AND @u + $2 <= @m@#u@#m", values, 3, row, 1, &first);
  if (end == DIBS__SQL_OK && open) end = dibs__sql_commit(g->wire);
  if (end == DIBS__SQL_OK) end = g->wire->engine->go(g->wire, true);
  *done = end == DIBS__SQL_OK && dibs__stock_matched(g, first, &used, &limit);
  g->commits += *done;
  return end;
}

/* Handles a failed try.  *again: another one. */
static sql_rc other_after_trouble(struct dibs__sql_guard *g, const run_t *run, bool open, bool *twice, bool *again) {
  bool dead;
  dibs__stock_broke(g, run, open, &dead, again);
  if (dead) return DIBS__SQL_FAILED;
  if (!*again && g->wire->trouble == DIBS__SQL_TWICE && !*twice) *again = *twice = true; /* ours, from an earlier try */
  if (!*again) dibs__stock_refuse(g, run);
  return DIBS__SQL_OK;
}

enum { PAUSE_LEAST_US = 500, PAUSE_MOST_US = 512000 };

/* A pause of random length before the nth try. */
static void stock_pause(uint32_t nth, dibs__tick by) {
  uint64_t most = PAUSE_LEAST_US, chance;
  for (uint32_t i = 1; i < nth && most < PAUSE_MOST_US; i++) most *= 2;
  if (most > PAUSE_MOST_US) most = PAUSE_MOST_US;
  dibs__random(&chance, sizeof chance);
  dibs__tick until = dibs__tick_now();
  until.ns += (int64_t)(chance % most) * 1000;
  until = dibs__tick_min(until, by);
  dibs__word never = 0;
  while (dibs__word_wait(&never, 0, until, false)) continue;
}

/* Another client changed it in between.  true: try again. */
static bool changed_meanwhile(struct dibs__sql_guard *g, stock_op *op) {
  op->retries++;
  bool more = op->tries == 0 || op->retries < op->tries;
  if (more && dibs__tick_before(dibs__tick_now(), g->wire->by)) {
    stock_pause(op->retries, g->wire->by);
    return true;
  }
  op->op.status = DIBS_CONFLICT;
  return false;
}

static sql_rc read_and_write(struct dibs__sql_guard *g, lookup_t *lookup, const run_t *run) {
  stock_op *op = run->ops[0];
  bool open = g->wire->inside || dibs__stock_two_statements(g), again = true, twice = false, done;
  sql_rc end = DIBS__SQL_OK;
  lookup->blind = dibs__stock_may_be_blind(run);
  while (again) {
    again = false;
    end = lookup_unlocked(g, lookup, run);
    if (end != DIBS__SQL_OK) {
      end = other_after_trouble(g, run, false, &twice, &again);
    } else if (dibs__stock_lookups_again(lookup)) {
      again = true;
    } else if (!dibs__stock_changes(lookup)) {
      dibs__stock_answer(lookup, run);
    } else {
      end = write_if_same(g, lookup, op, open, &done);
      lookup->blind = lookup->blind && end == DIBS__SQL_OK;
      if (end != DIBS__SQL_OK)
        end = other_after_trouble(g, run, open, &twice, &again);
      else if (done)
        dibs__stock_answer(lookup, run);
      else
        again = changed_meanwhile(g, op);
    }
    if (end != DIBS__SQL_OK) break;
  }
  return end;
}

static sql_rc stock_optimistic(struct dibs__sql_guard *g, stock_op *op) {
  lookup_t lookup;
  run_t run = {&op, 1};
  if (!dibs__stock_lookup_make(&lookup, &run)) return dibs__sql_fail(g->wire, DIBS__SQL_NO_SPACE, "out of memory");
  sql_rc end = read_and_write(g, &lookup, &run);
  dibs__stock_lookup_free(&lookup);
  return end;
}

/* ---- A batch ---- */

enum { READS_TOGETHER = 256 };

/* ---- Errors ---- */

bool dibs__stock_is_one(enum dibs__sql_trouble trouble) {
  switch (trouble) {
  case DIBS__SQL_TWICE:
  case DIBS__SQL_ORPHAN:
  case DIBS__SQL_REFUSED:
  case DIBS__SQL_ODD:
    return true;
  default:
    return false;
  }
}

void dibs__stock_broke(struct dibs__sql_guard *g, const run_t *run, bool open, bool *dead, bool *again) {
  struct dibs__sql_wire *w = g->wire;
  *again = false;
  *dead = dibs__sql_dead(w) || w->trouble == DIBS__SQL_NO_SPACE;
  if (open && !dibs__sql_dead(w)) {
    dibs__sql_rollback(w);
    *dead = *dead || dibs__sql_dead(w);
  }
  if (*dead || w->unsure) return;
  bool deadlock = w->trouble == DIBS__SQL_DEADLOCK;
  if (!deadlock && w->trouble != DIBS__SQL_LOCKED) return;
  stock_op *first = run->ops[0];
  if (w->inside || (first->tries && first->retries + 1 >= first->tries))
    return; /* inside, the user's transaction was rolled back */
  if (!dibs__tick_before(dibs__tick_now(), w->by)) return;
  for (size_t i = 0; i < run->count; i++) {
    run->ops[i]->retries++;
    run->ops[i]->deadlocks += deadlock;
  }
  stock_pause(first->retries, w->by);
  *again = true;
}

void dibs__stock_is_wrong(stock_op *op, bool of_claim, const char *column, const char *wrong) {
  const struct dibs__table *t = op->table;
  dibs__str row = of_claim ? op->claim : op->key;
  op->op.status = DIBS_INVALID;
  snprintf(op->why, sizeof op->why,
           "the column \"%.40s\" of the table \"%.40s\" %s in the row \"%.*s\"; correct it there", column,
           t          ? of_claim ? t->claims : t->table
           : of_claim ? "dibs_claim"
                      : "dibs_stock",
           wrong, row.len < 64 ? (int)row.len : 64, row.p);
}

/* No claim has these bytes, and yet the index has an equal one. */
static void say_twice(const struct dibs__sql_guard *g, stock_op *op) {
  if (!op->table || op->op.verb == DIBS__STOCK_SET) return;
  snprintf(op->why, sizeof op->why,
           "a unique index of \"%.30s\" already has it: %.50s; if the index ignores case, accents or blanks, give the "
           "column a binary collation",
           op->table->claims, g->wire->message);
}

void dibs__stock_refuse(struct dibs__sql_guard *g, const run_t *run) {
  dibs__status status = dibs__sql_explain(g->wire, "write to", g->store, g->result);
  if (!g->wire->unsure && g->wire->trouble == DIBS__SQL_TWICE) status = DIBS_CONFLICT;
  if (!g->wire->unsure && g->wire->trouble == DIBS__SQL_ORPHAN) status = DIBS_NOT_FOUND;
  for (size_t i = 0; i < run->count; i++) {
    stock_op *op = run->ops[i];
    if (op->op.status != DIBS_UNKNOWN) continue;
    op->op.status = status;
    if (status == DIBS_CONFLICT) say_twice(g, op);
    if (status == DIBS_INVALID) snprintf(op->why, sizeof op->why, "%s", g->wire->message);
  }
}

/* ---- Reading ---- */

static sql_rc put_reads(struct dibs__sql_guard *g, const run_t *run, size_t *first) {
  sql_rc end = DIBS__SQL_OK;
  *first = g->wire->put;
  for (size_t i = 0; i < run->count && end == DIBS__SQL_OK; i++) {
    value key = dibs__stock_key(run->ops[i]->key);
    end = dibs__stock_put(g, run->ops[i]->table, "SELECT @=u, @=m FROM @S WHERE @!k", &key, 1);
  }
  return end == DIBS__SQL_OK ? g->wire->engine->go(g->wire, false) : end;
}

static void answer_row(struct dibs__sql_guard *g, stock_op *op, size_t nth, dibs__status status) {
  const struct dibs__sql_engine *e = g->wire->engine;
  bool found = e->rows(g->wire, nth) > 0;
  op->used = op->limit = -1;
  op->op.status = found ? status : DIBS_NOT_FOUND;
  if (!found) return;
  int64_t numbers[2];
  for (size_t i = 0; i < 2; i++) {
    const char *wrong = dibs__sql_whole(e->cell(g->wire, nth, 0, i, DIBS__SQL_TEXT), &numbers[i]);
    const char *column = !op->table ? (i ? "most" : "used") : i ? op->table->limit : op->table->used;
    if (!wrong) continue;
    dibs__stock_is_wrong(op, false, column, wrong);
    return;
  }
  op->used = numbers[0];
  op->limit = numbers[1];
}

static sql_rc run_reads(struct dibs__sql_guard *g, const run_t *run) {
  size_t first = 0;
  bool dead, again;
  for (;;) {
    if (put_reads(g, run, &first) == DIBS__SQL_OK) break;
    dibs__stock_broke(g, run, false, &dead, &again);
    if (dead) return DIBS__SQL_FAILED;
    if (again) continue;
    if (run->count == 1) {
      dibs__stock_refuse(g, run);
      return DIBS__SQL_OK;
    }
    sql_rc end = DIBS__SQL_OK; /* one of the tables may be missing */
    for (size_t i = 0; i < run->count && end == DIBS__SQL_OK; i++) end = run_reads(g, &(run_t){run->ops + i, 1});
    return end;
  }
  for (size_t i = 0; i < run->count; i++) answer_row(g, run->ops[i], first + i, DIBS_OK);
  return DIBS__SQL_OK;
}

/* ---- Setting ---- */

static sql_rc put_set(struct dibs__sql_guard *g, const stock_op *op, bool makes, size_t *first) {
  value values[] = {dibs__stock_key(op->key), dibs__sql_number(op->amount)};
  sql_rc end = dibs__sql_begin(g->wire);
  *first = g->wire->put;
  if (end == DIBS__SQL_OK && makes)
    end = dibs__stock_put(g, op->table, "INSERT INTO @S (@^k, @^u, @^m) VALUES ($1, 0, $2)", values, 2);
  else if (end == DIBS__SQL_OK)
    end = dibs__stock_put(g, op->table, "UPDATE @S SET @^m = $2 WHERE @!k AND @u <= $2@#u", values, 2);
  if (end == DIBS__SQL_OK) end = dibs__stock_put(g, op->table, "SELECT @=u, @=m FROM @S WHERE @!k", values, 1);
  if (end == DIBS__SQL_OK && !makes) end = dibs__sql_commit(g->wire);
  return end == DIBS__SQL_OK ? g->wire->engine->go(g->wire, !makes) : end;
}

/* A new row must be found again by its key, or it is rolled back: the column stores the key in another form. */
static sql_rc keep_made(struct dibs__sql_guard *g, stock_op *op, size_t nth) {
  answer_row(g, op, nth, DIBS_OK);
  if (op->op.status == DIBS_OK) {
    op->op.status = DIBS_UNKNOWN;
    sql_rc end = dibs__sql_commit(g->wire);
    if (end == DIBS__SQL_OK) end = g->wire->engine->go(g->wire, true);
    if (end != DIBS__SQL_OK) return end;
    op->op.status = DIBS_OK;
    g->commits++;
    return end;
  }
  dibs__sql_rollback(g->wire);
  op->op.status = DIBS_INVALID;
  snprintf(op->why, sizeof op->why, "the column \"%.40s\" of the table \"%.40s\" does not store this key unchanged",
           op->table ? op->table->key : "name", op->table ? op->table->table : "dibs_stock");
  return dibs__sql_dead(g->wire) ? DIBS__SQL_FAILED : DIBS__SQL_OK;
}

static sql_rc try_set(struct dibs__sql_guard *g, stock_op *op, bool makes) {
  size_t first = 0;
  sql_rc end = put_set(g, op, makes, &first);
  if (end != DIBS__SQL_OK) return end;
  if (makes) return keep_made(g, op, first + 1);
  bool done = g->wire->engine->changed(g->wire, first) > 0;
  g->commits += done;
  answer_row(g, op, first + 1, done ? DIBS_OK : DIBS_FULL);
  return end;
}

static sql_rc run_set(struct dibs__sql_guard *g, stock_op *op) {
  run_t run = {&op, 1};
  bool makes = false, again, dead;
  for (int round = 0;; round++) {
    if (try_set(g, op, makes) == DIBS__SQL_OK) {
      if (op->op.status != DIBS_NOT_FOUND) return DIBS__SQL_OK;
      op->op.status = DIBS_UNKNOWN;
      makes = true;
      continue;
    }
    dibs__stock_broke(g, &run, true, &dead, &again);
    if (dead) return DIBS__SQL_FAILED;
    if (again) continue;
    if (makes && g->wire->trouble == DIBS__SQL_TWICE && round < 4) { /* another client inserted it meanwhile */
      makes = false;
      continue;
    }
    dibs__stock_refuse(g, &run);
    return DIBS__SQL_OK;
  }
}

/* ---- Listing ---- */

static sql_rc put_list(struct dibs__sql_guard *g, const stock_op *op, size_t *nth) {
  const struct dibs__list list = {.prefix = op->key, .after = op->claim};
  char least[DIBS_NAME_MAX + 1];
  dibs__str from = dibs__list_from(&list, least);
  value values[] = {dibs__sql_text(from.p, from.len), dibs__sql_number(op->amount)};
  *nth = g->wire->put;
  sql_rc end = dibs__stock_put(
      g, NULL, "SELECT name, used, most FROM dibs_stock WHERE name >= $1 ORDER BY name LIMIT $2", values, 2);
  return end == DIBS__SQL_OK ? g->wire->engine->go(g->wire, false) : end;
}

static sql_rc read_list(struct dibs__sql_guard *g, stock_op *op, size_t nth) {
  const struct dibs__list list = {.prefix = op->key, .after = op->claim};
  size_t count = 0, all = g->wire->engine->rows(g->wire, nth);
  struct dibs__stock_row *rows = calloc(all + 1, sizeof *rows);
  if (!rows) return dibs__sql_fail(g->wire, DIBS__SQL_NO_SPACE, "out of memory");
  for (size_t row = 0; row < all; row++) {
    value name = g->wire->engine->cell(g->wire, nth, row, 0, DIBS__SQL_TEXT);
    dibs__str key = dibs__str_of(name.p, name.len);
    if (!dibs__list_has(&list, key)) break;
    rows[count++] = (struct dibs__stock_row){key, dibs__sql_cell_number(g->wire, nth, row, 1),
                                             dibs__sql_cell_number(g->wire, nth, row, 2)};
  }
  dibs__stock_list_answer(op, rows, count);
  free(rows);
  return DIBS__SQL_OK;
}

static sql_rc run_list(struct dibs__sql_guard *g, stock_op *op) {
  size_t nth;
  bool dead, again;
  const run_t run = {&op, 1};
  for (;;) {
    if (put_list(g, op, &nth) == DIBS__SQL_OK) return read_list(g, op, nth);
    dibs__stock_broke(g, &run, false, &dead, &again);
    if (dead) return DIBS__SQL_FAILED;
    if (again) continue;
    dibs__stock_refuse(g, &run);
    return DIBS__SQL_OK;
  }
}

/* ---- Kinds of operations ---- */

static bool valid_table(stock_op *op) {
  const struct dibs__table *t = op->table;
  if (!t) return true;
  if (t->claims && !t->stock) {
    snprintf(op->why, sizeof op->why,
             "the table \"%.64s\" was declared without claim_stock, the key of the counted row", t->claims);
    return false;
  }
  if (!t->used || !t->limit) return false;
  if (op->op.verb == DIBS__STOCK_READ || op->op.verb == DIBS__STOCK_SET) return true;
  if (!t->claims || !t->claim) return false;
  if (op->op.verb == DIBS__STOCK_GIVE && !t->given) return false;
  if (op->op.verb == DIBS__STOCK_TAKE && !t->amount && op->amount != 1) return false;
  return op->strategy != DIBS_FENCED || t->fence;
}

static bool stock_valid(stock_op *op) {
  if (op->op.verb == DIBS__STOCK_LIST) return dibs__stock_list_valid(op);
  if (op->key.len < 1 || op->key.len > DIBS_NAME_MAX || op->strategy > DIBS_FENCED) return false;
  if (op->strategy == DIBS_NAMED || !valid_table(op)) return false;
  switch (op->op.verb) {
  case DIBS__STOCK_TAKE:
    if (op->amount < 1) return false;
    break;
  case DIBS__STOCK_GIVE:
    break;
  case DIBS__STOCK_SET:
    return op->amount >= 0;
  default:
    return op->op.verb == DIBS__STOCK_READ;
  }
  if (op->strategy == DIBS_FENCED && op->fence.v == 0) return false;
  return op->claim.len >= 1 && op->claim.len <= DIBS__SQL_CLAIM_MAX && op->owner.len <= DIBS_OWNER_MAX;
}

/* Does its table fit?  If not, it is answered. */
static sql_rc check_table(struct dibs__sql_guard *g, stock_op *op) {
  const struct dibs__sql_shape *shape;
  if (!op->table) return DIBS__SQL_OK;
  sql_rc end = dibs__sql_table_check(g, op->table, DIBS__SQL_FOR_STOCK, &shape, op->why, sizeof op->why);
  if (end != DIBS__SQL_OK) return end;
  if (!shape) {
    op->op.status = DIBS_INVALID;
  } else if (shape->key_is_number && !dibs__sql_is_number(op->key)) {
    op->op.status = op->op.verb == DIBS__STOCK_SET ? DIBS_INVALID : DIBS_NOT_FOUND;
    snprintf(op->why, sizeof op->why,
             "the column \"%.40s\" of the table \"%.40s\" has numbers, and the key is not a number", op->table->key,
             op->table->table);
  }
  return end;
}

struct item {
  stock_op *op;
  size_t order;
};

static int compare_rows(const stock_op *a, const stock_op *b) {
  uint64_t x = a->table ? a->table->nr : 0, y = b->table ? b->table->nr : 0;
  if (x != y) return x < y ? -1 : 1;
  uint32_t least = a->key.len < b->key.len ? a->key.len : b->key.len;
  int differ = least ? memcmp(a->key.p, b->key.p, least) : 0;
  if (differ != 0) return differ;
  return a->key.len < b->key.len ? -1 : a->key.len > b->key.len;
}

static int compare_items(const void *x, const void *y) {
  const struct item *a = x, *b = y;
  int differ = compare_rows(a->op, b->op);
  if (differ != 0) return differ;
  return a->order < b->order ? -1 : a->order > b->order;
}

/* Takes of a row that may go in one packet. */
static bool is_plain(const stock_op *op) {
  return op->op.verb == DIBS__STOCK_TAKE && op->strategy == DIBS_COALESCED && !op->partial;
}

static bool is_coalesced(const stock_op *op) {
  return (op->op.verb == DIBS__STOCK_TAKE || op->op.verb == DIBS__STOCK_GIVE) && op->strategy == DIBS_COALESCED;
}

/* How many of the first have one row and one kind. */
static size_t count_alike(const run_t *run, bool (*sort)(const stock_op *)) {
  size_t n = 0;
  while (n < run->count && compare_rows(run->ops[0], run->ops[n]) == 0 && sort(run->ops[n])) n++;
  return n;
}

/* The first operations that are plain takes, row after row. */
static size_t plain_rows(const run_t *run) {
  size_t n = 0;
  while (n < run->count) {
    run_t rest = {run->ops + n, run->count - n};
    size_t plain = count_alike(&rest, is_plain), coalesced = count_alike(&rest, is_coalesced);
    if (plain == 0 || plain != coalesced) break;
    n += plain;
    if (n < run->count && compare_rows(run->ops[n - 1], run->ops[n]) == 0) break; /* another kind follows */
  }
  return n;
}

static bool is_read(const stock_op *op) {
  return op->op.verb == DIBS__STOCK_READ;
}

static sql_rc run_one(struct dibs__sql_guard *g, const run_t *run) {
  stock_op *op = run->ops[0];
  if (op->op.verb == DIBS__STOCK_SET) return run_set(g, op);
  if (op->op.verb == DIBS__STOCK_LIST) return run_list(g, op);
  if (op->op.verb == DIBS__STOCK_GIVE) return dibs__stock_careful(g, run);
  switch (op->strategy) {
  case DIBS_ATOMIC:
  case DIBS_FENCED:
    return op->partial ? dibs__stock_careful(g, run) : dibs__stock_fast(g, run);
  case DIBS_OPTIMISTIC:
    return stock_optimistic(g, op);
  default:
    return dibs__stock_careful(g, run);
  }
}

/* Runs the next part of what is left; *done: how many. */
static sql_rc run_next(struct dibs__sql_guard *g, const run_t *left, size_t *done) {
  run_t run = *left;
  *done = plain_rows(left);
  if (*done > 0) {
    run.count = *done;
    return dibs__stock_fast(g, &run);
  }
  while (*done < left->count && *done < READS_TOGETHER && is_read(left->ops[*done])) ++*done;
  if (*done > 0) {
    run.count = *done;
    return run_reads(g, &run);
  }
  *done = run.count = count_alike(left, is_coalesced);
  if (*done > 0) return dibs__stock_careful(g, &run);
  *done = run.count = 1;
  return run_one(g, &run);
}

static sql_rc run_sorted(struct dibs__sql_guard *g, stock_op *const *ops, size_t count) {
  size_t done;
  for (size_t at = 0; at < count; at += done) {
    sql_rc end = run_next(g, &(run_t){ops + at, count - at}, &done);
    if (end != DIBS__SQL_OK) return end;
  }
  return DIBS__SQL_OK;
}

sql_rc dibs__sql_stock(struct dibs__sql_guard *g, stock_op *const ops[], size_t count) {
  struct item *items = malloc(count * sizeof *items);
  stock_op **sorted = malloc(count * sizeof *sorted);
  size_t n = 0;
  sql_rc end = DIBS__SQL_OK;
  if (items && sorted) {
    for (size_t i = 0; i < count; i++) {
      ops[i]->got = 0;
      ops[i]->used = ops[i]->limit = -1;
      ops[i]->retries = ops[i]->deadlocks = 0;
      ops[i]->why[0] = '\0';
      if (!stock_valid(ops[i]))
        ops[i]->op.status = DIBS_INVALID;
      else if (end == DIBS__SQL_OK)
        end = check_table(g, ops[i]);
      if (ops[i]->op.status == DIBS_UNKNOWN) items[n++] = (struct item){ops[i], i};
    }
    if (n > 1) qsort(items, n, sizeof *items, compare_items);
    for (size_t i = 0; i < n; i++) sorted[i] = items[i].op;
    if (end == DIBS__SQL_OK) end = run_sorted(g, sorted, n);
  } else {
    end = dibs__sql_fail(g->wire, DIBS__SQL_NO_SPACE, "out of memory");
  }
  free(items);
  free(sorted);
  return end;
}

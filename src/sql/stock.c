/* SPDX-License-Identifier: MIT */
/*
 * Stock: a batch, sorted by row.  Takes that are all of the coalesced kind go together in one packet; a row where also
 * something is given, or taken in part, is decided in the careful way; everything else is done by itself, in its turn.
 */
#include "sql/stock_parts.h"

#include <stdlib.h>
#include <string.h>

typedef dibs__stock_step step;
typedef struct dibs__sql_value value;
typedef struct dibs__stock_op stock_op;
typedef struct dibs__stock_run run_t;

enum { READS_TOGETHER = 256, PAUSE_LEAST_US = 500, PAUSE_MOST_US = 512000 };

/* ---- Trouble ---- */

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

void dibs__stock_pause(uint32_t nth, dibs__tick by) {
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
  if (w->inside || (first->tries && first->retries + 1 >= first->tries)) return; /* inside, theirs was undone */
  if (!dibs__tick_before(dibs__tick_now(), w->by)) return;
  for (size_t i = 0; i < run->count; i++) {
    run->ops[i]->retries++;
    run->ops[i]->deadlocks += deadlock;
  }
  dibs__stock_pause(first->retries, w->by);
  *again = true;
}

void dibs__stock_refuse(struct dibs__sql_guard *g, const run_t *run) {
  dibs__status status = dibs__sql_excuse(g->wire, "write to", g->store, g->said);
  if (!g->wire->unsure && g->wire->trouble == DIBS__SQL_TWICE) status = DIBS_CONFLICT;
  if (!g->wire->unsure && g->wire->trouble == DIBS__SQL_ORPHAN) status = DIBS_NOT_FOUND;
  for (size_t i = 0; i < run->count; i++)
    if (run->ops[i]->op.status == DIBS_UNKNOWN) run->ops[i]->op.status = status;
}

/* ---- Reading ---- */

static step put_reads(struct dibs__sql_guard *g, const run_t *run, size_t *first) {
  step end = DIBS__SQL_FINE;
  *first = g->wire->put;
  for (size_t i = 0; i < run->count && end == DIBS__SQL_FINE; i++) {
    value key = dibs__stock_key(run->ops[i]->key);
    end = dibs__stock_put(g, run->ops[i]->table, "SELECT @u, @m FROM @S WHERE @k = $1", &key, 1);
  }
  return end == DIBS__SQL_FINE ? g->wire->engine->go(g->wire, false) : end;
}

static void answer_row(struct dibs__sql_guard *g, stock_op *op, size_t nth, dibs__status status) {
  bool found = g->wire->engine->rows(g->wire, nth) > 0;
  op->used = found ? dibs__sql_cell_number(g->wire, nth, 0, 0) : -1;
  op->limit = found ? dibs__sql_cell_number(g->wire, nth, 0, 1) : -1;
  op->op.status = found ? status : DIBS_NOT_FOUND;
}

static step reads(struct dibs__sql_guard *g, const run_t *run) {
  size_t first = 0;
  bool dead, again;
  for (;;) {
    if (put_reads(g, run, &first) == DIBS__SQL_FINE) break;
    dibs__stock_broke(g, run, false, &dead, &again);
    if (dead) return DIBS__SQL_BROKE;
    if (again) continue;
    if (run->count == 1) {
      dibs__stock_refuse(g, run);
      return DIBS__SQL_FINE;
    }
    step end = DIBS__SQL_FINE; /* one of the tables may not be there */
    for (size_t i = 0; i < run->count && end == DIBS__SQL_FINE; i++) end = reads(g, &(run_t){run->ops + i, 1});
    return end;
  }
  for (size_t i = 0; i < run->count; i++) answer_row(g, run->ops[i], first + i, DIBS_OK);
  return DIBS__SQL_FINE;
}

/* ---- Setting ---- */

static step put_set(struct dibs__sql_guard *g, const stock_op *op, bool makes, size_t *first) {
  value values[] = {dibs__stock_key(op->key), dibs__sql_number(op->amount)};
  step end = dibs__sql_begin(g->wire);
  *first = g->wire->put;
  if (end == DIBS__SQL_FINE && makes)
    end = dibs__stock_put(g, op->table, "INSERT INTO @S (@k, @u, @m) VALUES ($1, 0, $2)", values, 2);
  else if (end == DIBS__SQL_FINE)
    end = dibs__stock_put(g, op->table, "UPDATE @S SET @m = $2 WHERE @k = $1 AND @u <= $2", values, 2);
  if (end == DIBS__SQL_FINE) end = dibs__stock_put(g, op->table, "SELECT @u, @m FROM @S WHERE @k = $1", values, 1);
  if (end == DIBS__SQL_FINE) end = dibs__sql_commit(g->wire);
  return end == DIBS__SQL_FINE ? g->wire->engine->go(g->wire, true) : end;
}

static step set(struct dibs__sql_guard *g, stock_op *op) {
  const struct dibs__sql_engine *e = g->wire->engine;
  run_t run = {&op, 1};
  bool makes = false, again, dead;
  size_t first = 0;
  for (int round = 0;; round++) {
    if (put_set(g, op, makes, &first) == DIBS__SQL_FINE) {
      bool done = e->changed(g->wire, first) > 0;
      g->commits += done;
      answer_row(g, op, first + 1, done ? DIBS_OK : DIBS_FULL);
      if (op->op.status != DIBS_NOT_FOUND) return DIBS__SQL_FINE;
      op->op.status = DIBS_UNKNOWN;
      makes = true;
      continue;
    }
    dibs__stock_broke(g, &run, true, &dead, &again);
    if (dead) return DIBS__SQL_BROKE;
    if (again) continue;
    if (makes && g->wire->trouble == DIBS__SQL_TWICE && round < 4) { /* somebody else made it meanwhile */
      makes = false;
      continue;
    }
    dibs__stock_refuse(g, &run);
    return DIBS__SQL_FINE;
  }
}

/* ---- A batch ---- */

static bool valid_table(const stock_op *op) {
  const struct dibs__table *t = op->table;
  if (!t) return true;
  if (!t->used || !t->limit) return false;
  if (op->op.verb == DIBS__STOCK_READ || op->op.verb == DIBS__STOCK_SET) return true;
  if (!t->claims || !t->claim || !t->stock) return false;
  if (op->op.verb == DIBS__STOCK_GIVE && !t->given) return false;
  if (op->op.verb == DIBS__STOCK_TAKE && !t->amount && op->amount != 1) return false;
  return op->strategy != DIBS_FENCED || t->fence;
}

static bool valid(const stock_op *op) {
  if (op->key.len < 1 || op->key.len > DIBS_NAME_MAX || op->strategy > DIBS_UNGUARDED) return false;
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

struct item {
  stock_op *op;
  size_t order;
};

static int compare_rows(const stock_op *a, const stock_op *b) {
  uint64_t x = a->table ? a->table->nr : 0, y = b->table ? b->table->nr : 0;
  if (x != y) return x < y ? -1 : 1;
  uint32_t least = a->key.len < b->key.len ? a->key.len : b->key.len;
  int differ = memcmp(a->key.p, b->key.p, least);
  if (differ != 0) return differ;
  return a->key.len < b->key.len ? -1 : a->key.len > b->key.len;
}

static int compare(const void *x, const void *y) {
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

/* How many of the first are of one row and of one sort. */
static size_t alike(const run_t *run, bool (*sort)(const stock_op *)) {
  size_t n = 0;
  while (n < run->count && compare_rows(run->ops[0], run->ops[n]) == 0 && sort(run->ops[n])) n++;
  return n;
}

/* Whole stretches of plain takes, of one row after the other. */
static size_t plain_rows(const run_t *run) {
  size_t n = 0;
  while (n < run->count) {
    run_t rest = {run->ops + n, run->count - n};
    size_t plain = alike(&rest, is_plain), coalesced = alike(&rest, is_coalesced);
    if (plain == 0 || plain != coalesced) break;
    n += plain;
    if (n < run->count && compare_rows(run->ops[n - 1], run->ops[n]) == 0) break; /* another sort comes behind */
  }
  return n;
}

static bool is_read(const stock_op *op) {
  return op->op.verb == DIBS__STOCK_READ;
}

static step one(struct dibs__sql_guard *g, const run_t *run) {
  stock_op *op = run->ops[0];
  if (op->op.verb == DIBS__STOCK_SET) return set(g, op);
  if (op->op.verb == DIBS__STOCK_GIVE) return dibs__stock_careful(g, run);
  switch (op->strategy) {
  case DIBS_ATOMIC:
  case DIBS_FENCED:
    return op->partial ? dibs__stock_careful(g, run) : dibs__stock_fast(g, run);
  case DIBS_OPTIMISTIC:
    return dibs__stock_optimistic(g, op);
  case DIBS_UNGUARDED:
    return dibs__stock_unguarded(g, op);
  default:
    return dibs__stock_careful(g, run);
  }
}

/* The next of what is left: how many, and done. */
static step next(struct dibs__sql_guard *g, const run_t *left, size_t *done) {
  run_t run = *left;
  *done = plain_rows(left);
  if (*done > 0) {
    run.count = *done;
    return dibs__stock_fast(g, &run);
  }
  while (*done < left->count && *done < READS_TOGETHER && is_read(left->ops[*done])) ++*done;
  if (*done > 0) {
    run.count = *done;
    return reads(g, &run);
  }
  *done = run.count = alike(left, is_coalesced);
  if (*done > 0) return dibs__stock_careful(g, &run);
  *done = run.count = 1;
  return one(g, &run);
}

static step run_sorted(struct dibs__sql_guard *g, stock_op *const *ops, size_t count) {
  size_t done;
  for (size_t at = 0; at < count; at += done) {
    step end = next(g, &(run_t){ops + at, count - at}, &done);
    if (end != DIBS__SQL_FINE) return end;
  }
  return DIBS__SQL_FINE;
}

step dibs__sql_stock(struct dibs__sql_guard *g, stock_op *const ops[], size_t count) {
  struct item *items = malloc(count * sizeof *items);
  stock_op **sorted = malloc(count * sizeof *sorted);
  size_t n = 0;
  step end = DIBS__SQL_FINE;
  if (items && sorted) {
    for (size_t i = 0; i < count; i++) {
      ops[i]->got = 0;
      ops[i]->used = ops[i]->limit = -1;
      ops[i]->retries = ops[i]->deadlocks = 0;
      if (valid(ops[i]))
        items[n++] = (struct item){ops[i], i};
      else
        ops[i]->op.status = DIBS_INVALID;
    }
    if (n > 1) qsort(items, n, sizeof *items, compare);
    for (size_t i = 0; i < n; i++) sorted[i] = items[i].op;
    end = run_sorted(g, sorted, n);
  } else {
    end = dibs__sql_broke(g->wire, DIBS__SQL_NO_SPACE, "out of memory");
  }
  free(items);
  free(sorted);
  return end;
}

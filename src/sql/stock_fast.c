/* SPDX-License-Identifier: MIT */
/*
 * The common case: everybody's claim is new and all of them fit.  One packet, one commit, whatever the number:
 *
 *   WITH up AS (UPDATE row SET used = used + sum WHERE used + sum <= limit RETURNING ..) INSERT INTO claims .. FROM up
 *
 * or, without that, BEGIN; UPDATE; INSERT .. WHERE the update went through; COMMIT.  The update is evaluated again
 * behind the wait for the row's lock, and nothing else is read, so it does not matter that a statement sees a snapshot
 * older than its lock.  Whatever it does not fit, changes nothing and is decided in the careful way.
 *
 * Several rows are one transaction, in the order of their keys: a commit costs more than all of its statements, and who
 * waits for one of the rows had to wait for a connection otherwise.
 */
#include "sql/stock_parts.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef dibs__stock_step step;
typedef struct dibs__sql_value value;
typedef struct dibs__stock_op stock_op;
typedef struct dibs__stock_run run_t;

#define FITS "@u + $2 <= @m"
#define FENCE_HOLDS FITS " AND (@f IS NULL OR [!o @f <= $3][o @f < $3 OR (@f = $3 AND @o = $4)])"
#define FENCE_SET ", @f = $3[o , @o = $4]"

enum { ROWS_TOGETHER = 128, CLAIMS_TOGETHER = 4096, VALUES_MOST = 4 };

/* PostgreSQL: all is one statement, and commits by itself. */
static bool one_statement(const struct dibs__sql_engine *e) {
  return e->sessions && e->update_returning;
}

bool dibs__stock_two_statements(const struct dibs__sql_guard *g) {
  return !one_statement(g->wire->engine);
}

#define UPDATE "UPDATE @S SET @u = @u + $2%s WHERE @k = $1 AND %s"

/* MariaDB: the rows that the statement before changed are -1 when its answer could not be sent, and the packet of a
 * client that was killed is carried out to its COMMIT all the same: claims that ask for them would not be inserted, and
 * the row be raised.  So the update leaves a mark of its own in the session, which is another one each time. */
static step put_marked(struct dibs__sql_guard *g, const struct dibs__table *table, const char *set, const char *when,
                       const value *values, size_t count, const value *rows, size_t row_count) {
  static _Atomic uint64_t last;
  char text[1024];
  value both[VALUES_MOST + 1],
      key_and_mark[2] = {values[0], dibs__sql_number((int64_t)(atomic_fetch_add(&last, 1) + 1))};
  assert(count <= VALUES_MOST);
  memcpy(both, values, count * sizeof *values);
  both[count] = key_and_mark[1];
  snprintf(text, sizeof text, "UPDATE @S SET @u = @u + $2 + 0 * (@@dibs_mark := $%zu)%s WHERE @k = $1 AND %s",
           count + 1, set, when);
  step end = dibs__stock_put(g, table, text, both, count + 1);
  if (end != DIBS__SQL_FINE) return end;
  return dibs__stock_put_new(g, table, key_and_mark, 2, rows, row_count, " WHERE @@dibs_mark = $2");
}

static step put_two(struct dibs__sql_guard *g, const struct dibs__table *table, const char *set, const char *when,
                    const value *values, size_t count, const value *rows, size_t row_count) {
  char text[1024];
  if (g->wire->engine->sessions) return put_marked(g, table, set, when, values, count, rows, row_count);
  snprintf(text, sizeof text, UPDATE, set, when);
  step end = dibs__stock_put(g, table, text, values, count);
  if (end == DIBS__SQL_FINE) end = dibs__stock_put_new(g, table, values, 1, rows, row_count, " WHERE changes() = 1");
  if (end != DIBS__SQL_FINE) return end;
  return dibs__stock_put(g, table, "SELECT @u, @m FROM @S WHERE @k = $1", values, 1);
}

step dibs__stock_put_if(struct dibs__sql_guard *g, const struct dibs__table *table, const char *set, const char *when,
                        const value *values, size_t count, const value *rows, size_t row_count, size_t *first) {
  char text[2048];
  *first = g->wire->put;
  if (!one_statement(g->wire->engine)) return put_two(g, table, set, when, values, count, rows, row_count);
  snprintf(text, sizeof text,
           "WITH " DIBS__STOCK_ROWS ", up AS (" UPDATE " RETURNING @k AS row_key, @u AS used, @m AS most), "
           "done AS (" DIBS__STOCK_INTO "SELECT r.claim, up.row_key" DIBS__STOCK_FROM "up, r RETURNING 1) "
           "SELECT used, most FROM up",
           set, when);
  return dibs__stock_put_rows(g, table, text, values, count, rows, DIBS__STOCK_COLUMNS, row_count);
}

bool dibs__stock_matched(struct dibs__sql_guard *g, size_t first, int64_t *used, int64_t *limit) {
  const struct dibs__sql_engine *e = g->wire->engine;
  size_t told = first;
  *used = *limit = -1;
  if (!one_statement(e)) {
    if (e->changed(g->wire, first) == 0) return false;
    told = first + 2;
    if (e->sessions) return true;
  }
  if (e->rows(g->wire, told) == 0) return false;
  *used = dibs__sql_cell_number(g->wire, told, 0, 0);
  *limit = dibs__sql_cell_number(g->wire, told, 0, 1);
  return true;
}

/* ---- A packet ---- */

struct segment {
  run_t run;
  int64_t sum;
  size_t first; /* of its statements */
};

static bool same_row(const stock_op *a, const stock_op *b) {
  return a->table == b->table && dibs__str_equal(a->key, b->key);
}

/* The next row's operations, and what they take together; false: more than a number can say. */
static bool cut(const run_t *of, size_t from, struct segment *segment) {
  size_t n = 0;
  *segment = (struct segment){.run = {of->ops + from, 0}};
  bool fits = true;
  while (from + n < of->count && n < CLAIMS_TOGETHER && same_row(of->ops[from], of->ops[from + n])) {
    fits = fits && !__builtin_add_overflow(segment->sum, of->ops[from + n]->amount, &segment->sum);
    n++;
  }
  segment->run.count = n;
  return fits;
}

static step put_segment(struct dibs__sql_guard *g, struct segment *s) {
  const stock_op *op = s->run.ops[0];
  bool fenced = op->strategy == DIBS_FENCED;
  value values[] = {dibs__stock_key(op->key), dibs__sql_number(s->sum), dibs__sql_number((int64_t)op->fence.v),
                    dibs__sql_number((int64_t)dibs__id_digest(op->id))};
  value *rows = malloc(s->run.count * DIBS__STOCK_COLUMNS * sizeof *rows);
  if (!rows) return dibs__sql_broke(g->wire, DIBS__SQL_NO_SPACE, "out of memory");
  for (size_t i = 0; i < s->run.count; i++) {
    const stock_op *one = s->run.ops[i];
    dibs__stock_row(rows + i * DIBS__STOCK_COLUMNS, one->claim, one->amount, false, one->owner);
  }
  size_t count = !fenced ? 2 : op->table && !op->table->owner ? 3 : 4;
  step end = dibs__stock_put_if(g, op->table, fenced ? FENCE_SET : "", fenced ? FENCE_HOLDS : FITS, values, count, rows,
                                s->run.count, &s->first);
  free(rows);
  return end;
}

static step send_all(struct dibs__sql_guard *g, struct segment *segments, size_t count, bool open) {
  step end = open ? dibs__sql_begin(g->wire) : DIBS__SQL_FINE;
  for (size_t i = 0; i < count && end == DIBS__SQL_FINE; i++) end = put_segment(g, &segments[i]);
  if (end == DIBS__SQL_FINE && open) end = dibs__sql_commit(g->wire);
  return end == DIBS__SQL_FINE ? g->wire->engine->go(g->wire, true) : end;
}

/* In order: each left the row as it was before the next. */
static void answer(struct segment *s, int64_t used, int64_t limit) {
  int64_t behind = s->sum;
  for (size_t i = 0; i < s->run.count; i++) {
    stock_op *op = s->run.ops[i];
    behind -= op->amount;
    op->got = op->amount;
    op->used = used < 0 ? -1 : used - behind;
    op->limit = limit;
    op->op.status = DIBS_OK;
  }
}

static step take_answers(struct dibs__sql_guard *g, struct segment *segments, size_t count) {
  bool some = false;
  /* All answers first: deciding those that did not go through sends more. */
  for (size_t i = 0; i < count; i++) {
    int64_t used, limit;
    if (!dibs__stock_matched(g, segments[i].first, &used, &limit)) continue;
    answer(&segments[i], used, limit);
    some = true;
  }
  g->commits += some;
  step end = DIBS__SQL_FINE;
  for (size_t i = 0; i < count && end == DIBS__SQL_FINE; i++)
    if (segments[i].run.ops[0]->op.status == DIBS_UNKNOWN) end = dibs__stock_careful(g, &segments[i].run);
  return end;
}

static step packet(struct dibs__sql_guard *g, struct segment *segments, size_t count);

/* Nothing of it was done: each row by itself. */
static step one_by_one(struct dibs__sql_guard *g, struct segment *segments, size_t count) {
  step end = DIBS__SQL_FINE;
  for (size_t i = 0; i < count && end == DIBS__SQL_FINE; i++) end = packet(g, &segments[i], 1);
  return end;
}

static step packet(struct dibs__sql_guard *g, struct segment *segments, size_t count) {
  bool open = count > 1 || g->wire->inside || !one_statement(g->wire->engine), dead, again;
  run_t all = {segments[0].run.ops, 0};
  for (size_t i = 0; i < count; i++) all.count += segments[i].run.count;
  for (;;) {
    if (send_all(g, segments, count, open) == DIBS__SQL_FINE) return take_answers(g, segments, count);
    dibs__stock_broke(g, &all, open, &dead, &again);
    if (dead) return DIBS__SQL_BROKE;
    if (again) continue;
    if (count > 1) return one_by_one(g, segments, count);
    if (dibs__stock_is_one(g->wire->trouble)) return dibs__stock_careful(g, &segments[0].run);
    dibs__stock_refuse(g, &all);
    return DIBS__SQL_FINE;
  }
}

step dibs__stock_fast(struct dibs__sql_guard *g, const run_t *runs) {
  struct segment segments[ROWS_TOGETHER];
  step end = DIBS__SQL_FINE;
  for (size_t at = 0; at < runs->count && end == DIBS__SQL_FINE;) {
    size_t count = 0, claims = 0;
    while (at < runs->count && count < ROWS_TOGETHER && claims < CLAIMS_TOGETHER) {
      bool fits = cut(runs, at, &segments[count]);
      if (!fits && count > 0) break;
      at += segments[count].run.count;
      claims += segments[count].run.count;
      count++;
      if (!fits) break;
    }
    if (count == 1 && segments[0].sum < 0) /* it overflowed */
      end = dibs__stock_careful(g, &segments[0].run);
    else
      end = packet(g, segments, count);
  }
  return end;
}

/* SPDX-License-Identifier: MIT */
/*
 * Stock on rows: what a lookup of a row and its claims found, the decision of each operation, and the fast way.
 *
 * Operations are decided one after the other, in the order of the requests.  A take that does not fit is refused, and
 * a smaller one after it may fit.
 *
 * The fast way is for the common case: every claim is new and all of them fit.  One packet, one commit, whatever the
 * number:
 *
 *   WITH up AS (UPDATE row SET used = used + sum WHERE used + sum <= limit RETURNING ..) INSERT INTO claims .. FROM up
 *
 * or, without that, BEGIN; UPDATE; INSERT .. WHERE the update matched; COMMIT.  The update is evaluated again after
 * the wait for the row's lock, and nothing else is read, so it does not matter that a statement sees a snapshot older
 * than its lock.  If it does not match, it changes nothing and the operations are decided in the careful way.
 *
 * Several rows are one transaction, in the order of their keys: a commit costs more than all of its statements, and a
 * client that waits for one of the rows would otherwise wait for a connection.
 */
#include "base/map.h"
#include "sql/sql_impl.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef dibs__stock_step sql_rc;
typedef struct dibs__sql_value value;
typedef struct dibs__stock_op stock_op;
typedef struct dibs__stock_lookup lookup_t;
typedef struct dibs__stock_claim claim_t;
typedef struct dibs__stock_run run_t;

/* ---- Memory ---- */

/* The claim's slot in the table of claims, by a search that begins at its hash. */
static uint32_t *slot_of(const lookup_t *lookup, dibs__str claim) {
  size_t at = (size_t)dibs__hash(claim.p, claim.len) & lookup->mask;
  while (lookup->slots[at] && !dibs__str_equal(lookup->claims[lookup->slots[at] - 1].claim, claim))
    at = (at + 1) & lookup->mask;
  return &lookup->slots[at];
}

static void collect_claims(lookup_t *lookup, const run_t *run) {
  for (size_t i = 0; i < run->count; i++) {
    const stock_op *op = run->ops[i];
    uint32_t *slot = slot_of(lookup, op->claim);
    if (!*slot) {
      lookup->names[lookup->claim_count] = op->claim;
      lookup->claims[lookup->claim_count++] = (claim_t){.claim = op->claim, .taker = op->owner};
      *slot = (uint32_t)lookup->claim_count;
    }
    lookup->claim_of[i] = *slot - 1;
  }
}

void dibs__stock_lookup_free(lookup_t *lookup) {
  free(lookup->memory);
  free(lookup->slots);
  lookup->memory = NULL;
  lookup->slots = NULL;
}

bool dibs__stock_lookup_make(lookup_t *lookup, const run_t *run) {
  size_t capacity = 4, n = run->count;
  while (capacity < 2 * n) capacity *= 2;
  *lookup = (lookup_t){.slots = calloc(capacity, sizeof *lookup->slots), .mask = capacity - 1};
  char *memory =
      calloc(n, sizeof *lookup->decisions + sizeof *lookup->claims + sizeof *lookup->names + sizeof *lookup->claim_of);
  lookup->memory = memory;
  if (lookup->slots && memory) {
    lookup->decisions = (void *)memory;
    lookup->claims = (void *)(lookup->decisions + n);
    lookup->names = (void *)(lookup->claims + n);
    lookup->claim_of = (void *)(lookup->names + n);
    collect_claims(lookup, run);
    return true;
  }
  dibs__stock_lookup_free(lookup);
  return false;
}

/* ---- Lookup ---- */

#define ROW "SELECT @=u, @=m@[f, @=f@]@[!f, 0@]@[o, @o@]@[!o, 0@] FROM @S WHERE @!k"
#define CLAIMS "SELECT @~c, CASE WHEN @!s THEN 1 ELSE 0 END@[a, @=a@]@[!a, 1@]@[g, @=g@]@[!g, 0@] FROM @C WHERE"

sql_rc dibs__stock_lookup_put(struct dibs__sql_guard *g, lookup_t *lookup, const run_t *run, bool lock, size_t *first) {
  const stock_op *op = run->ops[0];
  value key = dibs__stock_key(op->key);
  *first = g->wire->put;
  sql_rc end = dibs__stock_put(g, op->table, lock ? ROW "@{lock}" : ROW, &key, 1);
  if (end != DIBS__SQL_OK || lookup->blind) return end;
  return dibs__stock_put_claims(g, op->table, CLAIMS, op->key, lookup->names, lookup->claim_count);
}

/* The engine may find more than the requested claims: an equal claim counts only if its bytes are the same. */
static claim_t *claim_named(lookup_t *lookup, value name) {
  uint32_t slot = *slot_of(lookup, dibs__str_of(name.p, name.len));
  return slot ? &lookup->claims[slot - 1] : NULL;
}

/* A number of a user's row, which may have any value. */
static int64_t whole_cell(const struct dibs__sql_wire *w, size_t nth, size_t row, size_t column, const char **wrong) {
  int64_t number;
  *wrong = dibs__sql_whole(w->engine->cell(w, nth, row, column, DIBS__SQL_TEXT), &number);
  return number;
}

/* The first wrong value of the row. */
static void check_row(const struct dibs__sql_wire *w, lookup_t *lookup, const struct dibs__table *table, size_t first) {
  const char *wrong;
  lookup->limit = whole_cell(w, first, 0, 1, &wrong);
  if (wrong) lookup->column = table->limit, lookup->wrong = wrong;
  lookup->used = whole_cell(w, first, 0, 0, &wrong);
  if (wrong) lookup->column = table->used, lookup->wrong = wrong;
  if (!table->fence || lookup->wrong) return;
  value fence = w->engine->cell(w, first, 0, 2, DIBS__SQL_TEXT);
  int64_t ignored;
  wrong = dibs__sql_whole(fence, &ignored);
  bool none = fence.kind == DIBS__SQL_NULL || (fence.len == 4 && memcmp(fence.p, "NULL", 4) == 0);
  if (wrong && !none) lookup->column = table->fence, lookup->wrong = wrong;
}

static void check_claim(const struct dibs__sql_wire *w, claim_t *c, const struct dibs__table *table, size_t nth,
                        size_t row) {
  const char *wrong;
  value given = w->engine->cell(w, nth, row, 3, DIBS__SQL_TEXT);
  int64_t mark;
  bool none = given.kind == DIBS__SQL_NULL || (given.len == 4 && memcmp(given.p, "NULL", 4) == 0);
  c->given = !none && (!dibs__sql_whole(given, &mark) ? mark != 0 : true);
  c->amount = whole_cell(w, nth, row, 2, &wrong);
  if (wrong) c->column = table->amount, c->wrong = wrong;
}

static void take_claim(const struct dibs__sql_wire *w, lookup_t *lookup, const struct dibs__table *table, size_t nth,
                       size_t row) {
  claim_t *c = claim_named(lookup, w->engine->cell(w, nth, row, 0, DIBS__SQL_TEXT));
  if (!c) return;
  c->there = true;
  c->ours = dibs__sql_cell_number(w, nth, row, 1) != 0;
  if (table) {
    check_claim(w, c, table, nth, row);
    return;
  }
  c->amount = dibs__sql_cell_number(w, nth, row, 2);
  c->given = dibs__sql_cell_number(w, nth, row, 3) != 0;
}

static void take_answers(struct dibs__sql_guard *g, lookup_t *lookup, const struct dibs__table *table, size_t first) {
  struct dibs__sql_wire *w = g->wire;
  const struct dibs__sql_engine *e = w->engine;
  lookup->found = e->rows(w, first) > 0;
  lookup->used = lookup->limit = -1;
  lookup->column = lookup->wrong = NULL;
  if (lookup->found) {
    lookup->fence = (uint64_t)dibs__sql_cell_number(w, first, 0, 2);
    lookup->owner = (uint64_t)dibs__sql_cell_number(w, first, 0, 3);
    if (table)
      check_row(w, lookup, table, first);
    else {
      lookup->used = dibs__sql_cell_number(w, first, 0, 0);
      lookup->limit = dibs__sql_cell_number(w, first, 0, 1);
    }
  }
  for (size_t i = 0; i < (lookup->blind ? 0 : e->rows(w, first + 1)); i++) take_claim(w, lookup, table, first + 1, i);
}

/* ---- Deciding ---- */

static dibs__status answer_known_claim(const claim_t *c, bool give, int64_t *got) {
  if (!c->ours || (c->given && !give)) return DIBS_CONFLICT;
  *got = c->amount;
  return DIBS_REPLAY;
}

/* FENCED: a fence below the remembered one, or an equal one of another lease. */
static bool fence_is_stale(const lookup_t *lookup, const stock_op *op) {
  if (op->strategy != DIBS_FENCED) return false;
  bool keeps_owner = !op->table || op->table->owner;
  return op->fence.v < lookup->fence ||
         (op->fence.v == lookup->fence && keeps_owner && lookup->owner != dibs__id_digest(op->id));
}

/* With any values in the row: no take exceeds what is left. */
static dibs__status wrong_row(const lookup_t *lookup, struct dibs__stock_decision *d) {
  d->column = lookup->column;
  d->wrong = lookup->wrong;
  return DIBS_INVALID;
}

static dibs__status wrong_claim(const claim_t *c, struct dibs__stock_decision *d) {
  d->column = c->column;
  d->wrong = c->wrong;
  d->of_claim = true;
  return DIBS_INVALID;
}

static dibs__status decide_take(lookup_t *lookup, const stock_op *op, claim_t *c, struct dibs__stock_decision *d) {
  int64_t left, *got = &d->got;
  if (c->there && c->ours && !c->given && c->wrong) return wrong_claim(c, d);
  if (c->there || c->fresh) return answer_known_claim(c, false, got);
  if (!lookup->found) return DIBS_NOT_FOUND;
  if (lookup->wrong) return wrong_row(lookup, d);
  if (fence_is_stale(lookup, op)) return DIBS_STALE;
  if (__builtin_sub_overflow(lookup->limit, lookup->used_after, &left)) left = lookup->used_after < 0 ? INT64_MAX : 0;
  if (left <= 0 || (op->amount > left && !op->partial)) return DIBS_FULL;
  c->amount = op->amount < left ? op->amount : left;
  c->fresh = c->ours = true;
  c->given = false;
  lookup->fresh++;
  lookup->used_after += c->amount;
  *got = c->amount;
  return DIBS_OK;
}

static dibs__status decide_give(lookup_t *lookup, const stock_op *op, claim_t *c, struct dibs__stock_decision *d) {
  int64_t *got = &d->got;
  bool here = c->there || c->fresh;
  if (here && (!c->ours || c->given)) return answer_known_claim(c, true, got);
  if (!lookup->found) return DIBS_NOT_FOUND;
  if (lookup->wrong) return wrong_row(lookup, d);
  if (here && c->wrong) return wrong_claim(c, d);
  if (here && c->amount > lookup->used_after) {
    d->column = op->table ? op->table->used : "used";
    d->wrong = "is less than the amount of the claim";
    return DIBS_INVALID;
  }
  if (fence_is_stale(lookup, op)) return DIBS_STALE;
  c->given = true;
  if (!here) {
    c->fresh = c->ours = true;
    c->amount = 0;
    lookup->fresh++;
    return DIBS_NOT_FOUND;
  }
  if (c->there) {
    c->mark = true;
    lookup->marks++;
  }
  lookup->used_after -= c->amount;
  *got = c->amount;
  return DIBS_OK;
}

bool dibs__stock_lookups_again(lookup_t *lookup) {
  bool again = lookup->blind && lookup->decisions[0].status != DIBS_OK;
  lookup->blind = lookup->blind && !again;
  return again;
}

void dibs__stock_decide(struct dibs__sql_guard *g, lookup_t *lookup, const run_t *run, size_t first) {
  lookup->fresh = lookup->marks = 0;
  lookup->fenced = false;
  for (size_t i = 0; i < lookup->claim_count; i++)
    lookup->claims[i] = (claim_t){.claim = lookup->claims[i].claim, .taker = lookup->claims[i].taker};
  take_answers(g, lookup, run->ops[0]->table, first);
  lookup->used_after = lookup->used;
  for (size_t i = 0; i < run->count; i++) {
    const stock_op *op = run->ops[i];
    claim_t *c = &lookup->claims[lookup->claim_of[i]];
    struct dibs__stock_decision *d = &lookup->decisions[i];
    *d = (struct dibs__stock_decision){.got = 0};
    d->status = op->op.verb == DIBS__STOCK_TAKE ? decide_take(lookup, op, c, d) : decide_give(lookup, op, c, d);
    d->used = lookup->used_after;
    if (d->status == DIBS_OK && op->strategy == DIBS_FENCED) lookup->fenced = true;
  }
}

bool dibs__stock_changes(const lookup_t *lookup) {
  return lookup->fresh > 0 || lookup->marks > 0;
}

value *dibs__stock_fresh(const lookup_t *lookup) {
  value *rows = malloc(lookup->fresh * DIBS__STOCK_COLUMNS * sizeof *rows);
  size_t n = 0;
  for (size_t i = 0; rows && i < lookup->claim_count; i++) {
    const claim_t *c = &lookup->claims[i];
    if (c->fresh) dibs__stock_row(rows + n++ * DIBS__STOCK_COLUMNS, c->claim, c->amount, c->given, c->taker);
  }
  return rows;
}

void dibs__stock_answer(const lookup_t *lookup, const run_t *run) {
  for (size_t i = 0; i < run->count; i++) {
    stock_op *op = run->ops[i];
    const struct dibs__stock_decision *d = &lookup->decisions[i];
    op->op.status = d->status;
    op->got = d->got;
    op->used = lookup->found && !lookup->wrong ? d->used : -1;
    op->limit = lookup->wrong ? -1 : lookup->limit;
    if (d->status == DIBS_INVALID) dibs__stock_is_wrong(op, d->of_claim, d->column, d->wrong);
  }
}

/* ---- The fast way ---- */

#define FITS "@u + $2 <= @m@#u@#m"
#define FENCE_HOLDS                                                                                                    \
  FITS " AND (@f IS NULL OR (@[* @f >= 0 AND @](@[!o @f <= $3@]@[o @f < $3 OR (@f = $3 AND @o = $4)@])))"
#define FENCE_SET ", @^f = $3@[o , @^o = $4@]"

enum { ROWS_TOGETHER = 128, CLAIMS_TOGETHER = 4096, VALUES_MOST = 4 };

/* PostgreSQL: one statement does everything, and commits by itself. */
static bool one_statement(const struct dibs__sql_engine *e) {
  return e->sessions && e->update_returning;
}

bool dibs__stock_two_statements(const struct dibs__sql_guard *g) {
  return !one_statement(g->wire->engine);
}

#define UPDATE "UPDATE @S SET @^u = @u + $2%s WHERE @!k AND %s"

/* In MariaDB the count of rows that the previous statement changed is -1 if its answer could not be sent, and the
 * server runs the packet of a killed client to its COMMIT all the same: claims that depend on the count would not be
 * inserted, though the row is raised.  So the update sets a mark in the session, with another value each time. */
static sql_rc put_marked(struct dibs__sql_guard *g, const struct dibs__table *table, const char *set, const char *when,
                         const value *values, size_t count, const value *rows, size_t row_count) {
  static _Atomic uint64_t last;
  char text[1024];
  value both[VALUES_MOST + 1],
      key_and_mark[2] = {values[0], dibs__sql_number((int64_t)(atomic_fetch_add(&last, 1) + 1))};
  assert(count <= VALUES_MOST);
  memcpy(both, values, count * sizeof *values);
  both[count] = key_and_mark[1];
  snprintf(text, sizeof text, "UPDATE @S SET @^u = @u + $2 + 0 * (@dibsmark := $%zu)%s WHERE @!k AND %s", count + 1,
           set, when);
  sql_rc end = dibs__stock_put(g, table, text, both, count + 1);
  if (end != DIBS__SQL_OK) return end;
  return dibs__stock_put_new(g, table, key_and_mark, 2, rows, row_count, " WHERE @dibsmark = $2");
}

static sql_rc put_two(struct dibs__sql_guard *g, const struct dibs__table *table, const char *set, const char *when,
                      const value *values, size_t count, const value *rows, size_t row_count) {
  char text[1024];
  if (g->wire->engine->sessions) return put_marked(g, table, set, when, values, count, rows, row_count);
  snprintf(text, sizeof text, UPDATE, set, when);
  sql_rc end = dibs__stock_put(g, table, text, values, count);
  if (end == DIBS__SQL_OK) end = dibs__stock_put_new(g, table, values, 1, rows, row_count, " WHERE changes() = 1");
  if (end != DIBS__SQL_OK) return end;
  return dibs__stock_put(g, table, "SELECT @u, @m FROM @S WHERE @!k", values, 1);
}

sql_rc dibs__stock_put_if(struct dibs__sql_guard *g, const struct dibs__table *table, const char *set, const char *when,
                          const value *values, size_t count, const value *rows, size_t row_count, size_t *first) {
  char text[2048];
  *first = g->wire->put;
  if (!one_statement(g->wire->engine)) return put_two(g, table, set, when, values, count, rows, row_count);
  snprintf(text, sizeof text,
           "WITH " DIBS__STOCK_ROWS ", up AS (" UPDATE " RETURNING @k AS row_key, @u AS used, @m AS most), "
           "done AS (" DIBS__STOCK_INTO "SELECT dibsrows.claim, up.row_key" DIBS__STOCK_FROM
           "up, dibsrows RETURNING 1) "
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

/* The next row's operations, and their sum; false: the sum overflows. */
static bool next_segment(const run_t *of, size_t from, struct segment *segment) {
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

static sql_rc put_segment(struct dibs__sql_guard *g, struct segment *s) {
  const stock_op *op = s->run.ops[0];
  bool fenced = op->strategy == DIBS_FENCED;
  value values[] = {dibs__stock_key(op->key), dibs__sql_number(s->sum), dibs__sql_number((int64_t)op->fence.v),
                    dibs__sql_number((int64_t)dibs__id_digest(op->id))};
  value *rows = malloc(s->run.count * DIBS__STOCK_COLUMNS * sizeof *rows);
  if (!rows) return dibs__sql_fail(g->wire, DIBS__SQL_NO_SPACE, "out of memory");
  for (size_t i = 0; i < s->run.count; i++) {
    const stock_op *one = s->run.ops[i];
    dibs__stock_row(rows + i * DIBS__STOCK_COLUMNS, one->claim, one->amount, false, one->owner);
  }
  size_t count = !fenced ? 2 : op->table && !op->table->owner ? 3 : 4;
  sql_rc end = dibs__stock_put_if(g, op->table, fenced ? FENCE_SET : "", fenced ? FENCE_HOLDS : FITS, values, count,
                                  rows, s->run.count, &s->first);
  free(rows);
  return end;
}

static sql_rc send_all(struct dibs__sql_guard *g, struct segment *segments, size_t count, bool open) {
  sql_rc end = open ? dibs__sql_begin(g->wire) : DIBS__SQL_OK;
  for (size_t i = 0; i < count && end == DIBS__SQL_OK; i++) end = put_segment(g, &segments[i]);
  if (end == DIBS__SQL_OK && open) end = dibs__sql_commit(g->wire);
  return end == DIBS__SQL_OK ? g->wire->engine->go(g->wire, true) : end;
}

/* In order: each take left the row as it was before the next. */
static void answer_segment(struct segment *s, int64_t used, int64_t limit) {
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

static sql_rc fast_take_answers(struct dibs__sql_guard *g, struct segment *segments, size_t count) {
  bool some = false;
  /* All answers first: deciding those that did not match sends more. */
  for (size_t i = 0; i < count; i++) {
    int64_t used, limit;
    if (!dibs__stock_matched(g, segments[i].first, &used, &limit)) continue;
    answer_segment(&segments[i], used, limit);
    some = true;
  }
  g->commits += some;
  sql_rc end = DIBS__SQL_OK;
  for (size_t i = 0; i < count && end == DIBS__SQL_OK; i++)
    if (segments[i].run.ops[0]->op.status == DIBS_UNKNOWN) end = dibs__stock_careful(g, &segments[i].run);
  return end;
}

static sql_rc run_packet(struct dibs__sql_guard *g, struct segment *segments, size_t count);

/* Nothing of it was done: runs each row by itself. */
static sql_rc one_by_one(struct dibs__sql_guard *g, struct segment *segments, size_t count) {
  sql_rc end = DIBS__SQL_OK;
  for (size_t i = 0; i < count && end == DIBS__SQL_OK; i++) end = run_packet(g, &segments[i], 1);
  return end;
}

static sql_rc run_packet(struct dibs__sql_guard *g, struct segment *segments, size_t count) {
  bool open = count > 1 || g->wire->inside || !one_statement(g->wire->engine), dead, again;
  run_t all = {segments[0].run.ops, 0};
  for (size_t i = 0; i < count; i++) all.count += segments[i].run.count;
  for (;;) {
    if (send_all(g, segments, count, open) == DIBS__SQL_OK) return fast_take_answers(g, segments, count);
    dibs__stock_broke(g, &all, open, &dead, &again);
    if (dead) return DIBS__SQL_FAILED;
    if (again) continue;
    if (count > 1) return one_by_one(g, segments, count);
    if (dibs__stock_is_one(g->wire->trouble)) return dibs__stock_careful(g, &segments[0].run);
    dibs__stock_refuse(g, &all);
    return DIBS__SQL_OK;
  }
}

sql_rc dibs__stock_fast(struct dibs__sql_guard *g, const run_t *runs) {
  struct segment segments[ROWS_TOGETHER];
  sql_rc end = DIBS__SQL_OK;
  for (size_t at = 0; at < runs->count && end == DIBS__SQL_OK;) {
    size_t count = 0, claims = 0;
    while (at < runs->count && count < ROWS_TOGETHER && claims < CLAIMS_TOGETHER) {
      bool fits = next_segment(runs, at, &segments[count]);
      if (!fits && count > 0) break;
      at += segments[count].run.count;
      claims += segments[count].run.count;
      count++;
      if (!fits) break;
    }
    if (count == 1 && segments[0].sum < 0) /* the sum overflowed */
      end = dibs__stock_careful(g, &segments[0].run);
    else
      end = run_packet(g, segments, count);
  }
  return end;
}

/* SPDX-License-Identifier: MIT */
/*
 * What a look at a row and its claims found, and what the operations come to, one after the other: first come, first
 * served.  One that does not fit is refused, and a smaller one behind it may fit.
 */
#include "base/map.h"
#include "sql/stock_parts.h"

#include <stdlib.h>
#include <string.h>

typedef dibs__stock_step step;
typedef struct dibs__sql_value value;
typedef struct dibs__stock_op stock_op;
typedef struct dibs__stock_look look_t;
typedef struct dibs__stock_claim claim_t;
typedef struct dibs__stock_run run_t;

/* ---- Memory ---- */

/* The claim's place in the table of claims, by a search that begins at its hash. */
static uint32_t *slot_of(const look_t *look, dibs__str claim) {
  size_t at = (size_t)dibs__hash(claim.p, claim.len) & look->mask;
  while (look->slots[at] && !dibs__str_equal(look->claims[look->slots[at] - 1].claim, claim))
    at = (at + 1) & look->mask;
  return &look->slots[at];
}

static void collect(look_t *look, const run_t *run) {
  for (size_t i = 0; i < run->count; i++) {
    const stock_op *op = run->ops[i];
    uint32_t *slot = slot_of(look, op->claim);
    if (!*slot) {
      look->names[look->claim_count] = op->claim;
      look->claims[look->claim_count++] = (claim_t){.claim = op->claim, .taker = op->owner};
      *slot = (uint32_t)look->claim_count;
    }
    look->claim_of[i] = *slot - 1;
  }
}

void dibs__stock_look_free(look_t *look) {
  free(look->memory);
  free(look->slots);
  look->memory = NULL;
  look->slots = NULL;
}

bool dibs__stock_look_make(look_t *look, const run_t *run) {
  size_t room = 4, n = run->count;
  while (room < 2 * n) room *= 2;
  *look = (look_t){.slots = calloc(room, sizeof *look->slots), .mask = room - 1};
  char *memory =
      calloc(n, sizeof *look->decisions + sizeof *look->claims + sizeof *look->names + sizeof *look->claim_of);
  look->memory = memory;
  if (look->slots && memory) {
    look->decisions = (void *)memory;
    look->claims = (void *)(look->decisions + n);
    look->names = (void *)(look->claims + n);
    look->claim_of = (void *)(look->names + n);
    collect(look, run);
    return true;
  }
  dibs__stock_look_free(look);
  return false;
}

/* ---- Looking ---- */

step dibs__stock_look_put(struct dibs__sql_guard *g, look_t *look, const run_t *run, bool lock, size_t *first) {
  const stock_op *op = run->ops[0];
  value key = dibs__stock_key(op->key);
  *first = g->wire->put;
  step end = dibs__stock_put(g, op->table,
                             lock ? "SELECT @u, @m[f, @f][!f, 0][o, @o][!o, 0] FROM @S WHERE @k = $1@L"
                                  : "SELECT @u, @m[f, @f][!f, 0][o, @o][!o, 0] FROM @S WHERE @k = $1",
                             &key, 1);
  if (end != DIBS__SQL_FINE || look->blind) return end;
  return dibs__stock_put_claims(
      g, op->table, "SELECT @c, CASE WHEN @s = $1 THEN 1 ELSE 0 END[a, @a][!a, 1][g, @g][!g, 0] FROM @C WHERE", op->key,
      look->names, look->claim_count);
}

/* The engine may compare claims in another way than byte by byte; of a single one there is no doubt which it is. */
static claim_t *claim_named(look_t *look, value name) {
  if (look->claim_count == 1) return &look->claims[0];
  uint32_t slot = *slot_of(look, dibs__str_of(name.p, name.len));
  return slot ? &look->claims[slot - 1] : NULL;
}

static void take_answers(struct dibs__sql_guard *g, look_t *look, size_t first) {
  struct dibs__sql_wire *w = g->wire;
  const struct dibs__sql_engine *e = w->engine;
  look->found = e->rows(w, first) > 0;
  look->used = look->limit = -1;
  if (look->found) {
    look->used = dibs__sql_cell_number(w, first, 0, 0);
    look->limit = dibs__sql_cell_number(w, first, 0, 1);
    look->fence = (uint64_t)dibs__sql_cell_number(w, first, 0, 2);
    look->owner = (uint64_t)dibs__sql_cell_number(w, first, 0, 3);
  }
  for (size_t i = 0; i < (look->blind ? 0 : e->rows(w, first + 1)); i++) {
    claim_t *c = claim_named(look, e->cell(w, first + 1, i, 0, DIBS__SQL_TEXT));
    if (!c) continue;
    c->there = true;
    c->ours = dibs__sql_cell_number(w, first + 1, i, 1) != 0;
    c->amount = dibs__sql_cell_number(w, first + 1, i, 2);
    c->given = dibs__sql_cell_number(w, first + 1, i, 3) != 0;
  }
}

/* ---- Deciding ---- */

static dibs__status known(const claim_t *c, bool give, int64_t *got) {
  if (!c->ours || (c->given && !give)) return DIBS_CONFLICT;
  *got = c->amount;
  return DIBS_REPLAY;
}

/* FENCED: a fence below the one that is remembered, or an equal one of another lease. */
static bool stale(const look_t *look, const stock_op *op) {
  if (op->strategy != DIBS_FENCED) return false;
  bool keeps_owner = !op->table || op->table->owner;
  return op->fence.v < look->fence ||
         (op->fence.v == look->fence && keeps_owner && look->owner != dibs__id_digest(op->id));
}

static dibs__status take(look_t *look, const stock_op *op, claim_t *c, int64_t *got) {
  int64_t left;
  if (c->there || c->fresh) return known(c, false, got);
  if (!look->found) return DIBS_NOT_FOUND;
  if (stale(look, op)) return DIBS_STALE;
  if (__builtin_sub_overflow(look->limit, look->used_after, &left)) left = look->used_after < 0 ? INT64_MAX : 0;
  if (left <= 0 || (op->amount > left && !op->partial)) return DIBS_FULL;
  c->amount = op->amount < left ? op->amount : left;
  c->fresh = c->ours = true;
  c->given = false;
  look->fresh++;
  look->used_after += c->amount;
  *got = c->amount;
  return DIBS_OK;
}

static dibs__status give(look_t *look, const stock_op *op, claim_t *c, int64_t *got) {
  bool here = c->there || c->fresh;
  if (here && (!c->ours || c->given)) return known(c, true, got);
  if (!look->found) return DIBS_NOT_FOUND;
  if (stale(look, op)) return DIBS_STALE;
  c->given = true;
  if (!here) {
    c->fresh = c->ours = true;
    c->amount = 0;
    look->fresh++;
    return DIBS_NOT_FOUND;
  }
  if (c->there) {
    c->mark = true;
    look->marks++;
  }
  look->used_after -= c->amount;
  *got = c->amount;
  return DIBS_OK;
}

bool dibs__stock_looks_again(look_t *look) {
  bool again = look->blind && look->decisions[0].status != DIBS_OK;
  look->blind = look->blind && !again;
  return again;
}

void dibs__stock_decide(struct dibs__sql_guard *g, look_t *look, const run_t *run, size_t first) {
  look->fresh = look->marks = 0;
  look->fenced = false;
  for (size_t i = 0; i < look->claim_count; i++)
    look->claims[i] = (claim_t){.claim = look->claims[i].claim, .taker = look->claims[i].taker};
  take_answers(g, look, first);
  look->used_after = look->used;
  for (size_t i = 0; i < run->count; i++) {
    const stock_op *op = run->ops[i];
    claim_t *c = &look->claims[look->claim_of[i]];
    struct dibs__stock_decision *d = &look->decisions[i];
    d->got = 0;
    d->status = op->op.verb == DIBS__STOCK_TAKE ? take(look, op, c, &d->got) : give(look, op, c, &d->got);
    d->used = look->used_after;
    if (d->status == DIBS_OK && op->strategy == DIBS_FENCED) look->fenced = true;
  }
}

bool dibs__stock_changes(const look_t *look) {
  return look->fresh > 0 || look->marks > 0;
}

value *dibs__stock_fresh(const look_t *look) {
  value *rows = malloc(look->fresh * DIBS__STOCK_COLUMNS * sizeof *rows);
  size_t n = 0;
  for (size_t i = 0; rows && i < look->claim_count; i++) {
    const claim_t *c = &look->claims[i];
    if (c->fresh) dibs__stock_row(rows + n++ * DIBS__STOCK_COLUMNS, c->claim, c->amount, c->given, c->taker);
  }
  return rows;
}

void dibs__stock_answer(const look_t *look, const run_t *run) {
  for (size_t i = 0; i < run->count; i++) {
    stock_op *op = run->ops[i];
    const struct dibs__stock_decision *d = &look->decisions[i];
    op->op.status = d->status;
    op->got = d->got;
    op->used = look->found ? d->used : -1;
    op->limit = look->limit;
  }
}

/* SPDX-License-Identifier: MIT */
/*
 * Tasks in the user's tables (R77): rows of theirs, of which dibs reads and writes the columns of its roles and no
 * others.  Operations run one after the other.
 *
 * Programs without dibs claim and free the same rows by statements of their own, and know nothing of fences.  So each
 * statement that ends or extends a claim names the locked_at that the claim had set.
 */
#include "sql/sql_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__task_op task_op;
typedef struct dibs__task_item item_t;

enum {
  AGAIN_MAX = 1000, /* tries after deadlocks, until the deadline */
  PAUSE_MS = 2,     /* after a deadlock, and before free rows that others had locked are tried again */
  LOCKED_TRIES = 5, /* of a claim that finds rows free, but locked */
  LOCKED_MS = 100   /* then: when it is worth another claim */
};

struct run {
  struct dibs__sql_guard *guard;
  struct dibs__sql_wire *wire;
  const struct dibs__sql_engine *engine;
  const struct dibs__sql_shape *shape;
  task_op *op;
  bool begun; /* a transaction, or a savepoint, is open */
  bool again;
  int locked_tries;
  struct dibs__task_text text;
};

/* ---- Helpers ---- */

static void set_answer(struct run *r, dibs__status status, const char *why) {
  r->op->op.status = status;
  snprintf(r->op->why, sizeof r->op->why, "%s", why);
}

static sql_rc put_text(struct run *r) {
  return dibs__tt_put(&r->text, r->wire);
}

static struct dibs__sql_value cell_at(const struct run *r, size_t nth, size_t row, size_t column) {
  return r->engine->cell(r->wire, nth, row, column, DIBS__SQL_TEXT);
}

static int64_t number_at(const struct run *r, size_t nth, size_t row, size_t column) {
  return dibs__sql_cell_number(r->wire, nth, row, column);
}

/* ---- Rows of an answer ---- */

static const int texts[] = {DIBS__TT_KEY, DIBS__TT_PHASE, DIBS__TT_LOCKED};
enum { TEXTS = sizeof texts / sizeof texts[0] };

/* Where the rows of an answer are: in one answer, or each in an answer of its own. */
struct found {
  size_t first, count, step; /* the statement of row i is first + i * step, and its row 0; step 0: row i of `first` */
};

static size_t answer_of(const struct found *f, size_t i) {
  return f->first + i * f->step;
}

static size_t row_of(const struct found *f, size_t i) {
  return f->step ? 0 : i;
}

static dibs__str keep_text(char **to, const char *p, size_t len) {
  dibs__str s = {*to, (uint32_t)len};
  if (len) memcpy(*to, p, len);
  (*to)[len] = '\0';
  *to += len + 1;
  return s;
}

static size_t size_of(const struct run *r, const struct found *f) {
  size_t size = 1;
  for (size_t i = 0; i < f->count; i++) {
    size += sizeof(struct dibs__task_row) + r->op->kind.len + 1;
    for (int j = 0; j < TEXTS; j++) {
      struct dibs__sql_value v = cell_at(r, answer_of(f, i), row_of(f, i), (size_t)texts[j]);
      size += v.kind == DIBS__SQL_NULL ? 1 : v.len + 1;
    }
  }
  return size;
}

static void fill_row(const struct run *r, const struct found *f, size_t i, struct dibs__task_row *row, char **to) {
  size_t nth = answer_of(f, i), at = row_of(f, i);
  dibs__str got[TEXTS];
  for (int j = 0; j < TEXTS; j++) {
    struct dibs__sql_value v = cell_at(r, nth, at, (size_t)texts[j]);
    got[j] = keep_text(to, v.p, v.kind == DIBS__SQL_NULL ? 0 : v.len);
  }
  int64_t fence = number_at(r, nth, at, DIBS__TT_FENCE);
  dibs__str none = {*to - 1, 0}; /* the NUL behind the last text */
  *row = (struct dibs__task_row){.fence = {fence > 0 ? (uint64_t)fence : 0},
                                 .key = got[0],
                                 .phase = got[1],
                                 .locked = got[2],
                                 .serial = none,
                                 .unique = none,
                                 .payload = none,
                                 .by = none,
                                 .text = none,
                                 .state = DIBS__TASK_CLAIMED,
                                 .began_ms = number_at(r, nth, at, DIBS__TT_LOCKED_MS),
                                 .at_ms = number_at(r, nth, at, DIBS__TT_UPDATED_MS)};
  row->kind = keep_text(to, r->op->kind.p, r->op->kind.len);
  row->due_ms = row->began_ms + r->op->timeout_ms;
}

static void hand_out(struct run *r, const struct found *f) {
  task_op *op = r->op;
  set_answer(r, DIBS_OK, "");
  if (f->count == 0) return;
  struct dibs__task_row *rows = malloc(size_of(r, f));
  if (!rows) {
    set_answer(r, DIBS_NO_MEMORY, "out of memory");
    return;
  }
  char *to = (char *)(rows + f->count);
  for (size_t i = 0; i < f->count; i++) {
    fill_row(r, f, i, &rows[i], &to);
    if (op->op.verb == DIBS__TASK_LIST && number_at(r, answer_of(f, i), row_of(f, i), DIBS__TT_FREE)) {
      rows[i].state = DIBS__TASK_READY;
      rows[i].due_ms = 0;
    }
  }
  op->got = rows;
  op->got_count = (uint32_t)f->count;
}

/* ---- Claiming ---- */

static void say_unusable(struct run *r, struct dibs__sql_value key) {
  const struct dibs__table *table = r->op->table;
  char row[33];
  snprintf(row, sizeof row, "%.*s", (int)key.len, key.p ? key.p : "");
  snprintf(r->op->why, sizeof r->op->why,
           "the row \"%s\" of \"%.30s\" is never claimed: \"%.30s\" is not an instant, or \"%.30s\" not a number", row,
           table->table, table->locked_at, table->fence);
}

/* No row was claimed: answers when a row is free.  If it is free already, another session had locked it at that moment:
 * the claim is tried again. */
static sql_rc answer_none(struct run *r) {
  task_op *op = r->op;
  bool odd;
  dibs__tt_next(&r->text, op);
  sql_rc end = put_text(r);
  odd = dibs__tt_unusable(&r->text, op);
  if (end == DIBS__SQL_OK && odd) end = put_text(r);
  if (end == DIBS__SQL_OK) end = dibs__table_go(r->guard, &r->begun, false);
  if (end != DIBS__SQL_OK) return end;
  set_answer(r, DIBS_OK, "");
  op->next_ms = -1;
  if (odd && r->engine->rows(r->wire, 1) > 0) say_unusable(r, cell_at(r, 1, 0, 0));
  if (r->engine->rows(r->wire, 0) == 0) return end;
  bool never = cell_at(r, 0, 0, 0).kind == DIBS__SQL_NULL;
  op->next_ms = never ? 0 : number_at(r, 0, 0, 0) + op->timeout_ms - number_at(r, 0, 0, 1);
  if (op->next_ms > 0) return end;
  r->again = r->engine->sessions && !r->wire->inside && r->locked_tries++ < LOCKED_TRIES;
  op->next_ms = LOCKED_MS;
  if (r->again) dibs__nap_ms(PAUSE_MS);
  return end;
}

static sql_rc claim_at_once(struct run *r) {
  bool bare = !r->wire->inside;
  sql_rc end = bare ? DIBS__SQL_OK : dibs__table_begin(r->guard, &r->begun);
  struct found f = {.first = r->wire->put};
  dibs__tt_claim(&r->text, r->op);
  if (end == DIBS__SQL_OK) end = put_text(r);
  if (end == DIBS__SQL_OK) end = dibs__table_commit(r->guard, &r->begun);
  if (end != DIBS__SQL_OK) return end;
  f.count = r->engine->rows(r->wire, f.first);
  if (f.count == 0) return answer_none(r);
  hand_out(r, &f);
  return end;
}

/* The keys of the nth answer, copied: the next packet replaces its cells.  NULL: no memory. */
static dibs__str *copy_keys(const struct run *r, size_t nth, size_t count) {
  size_t size = 0;
  for (size_t i = 0; i < count; i++) size += cell_at(r, nth, i, 0).len + 1;
  dibs__str *keys = malloc(count * sizeof *keys + size);
  if (!keys) return NULL;
  char *to = (char *)(keys + count);
  for (size_t i = 0; i < count; i++) {
    struct dibs__sql_value v = cell_at(r, nth, i, 0);
    keys[i] = keep_text(&to, v.p, v.len);
  }
  return keys;
}

/* The rows are locked. */
static sql_rc take_rows(struct run *r, const dibs__str *keys, size_t count) {
  bool one = r->engine->update_returning;
  sql_rc end = DIBS__SQL_OK;
  struct found f = {.first = r->wire->put + !one, .count = count, .step = one ? 1 : 2};
  for (size_t i = 0; i < count && end == DIBS__SQL_OK; i++) {
    dibs__tt_take(&r->text, keys[i]);
    end = put_text(r);
    if (one || end != DIBS__SQL_OK) continue;
    dibs__tt_row(&r->text, keys[i]);
    end = put_text(r);
  }
  if (end == DIBS__SQL_OK) end = dibs__table_commit(r->guard, &r->begun);
  if (end == DIBS__SQL_OK) hand_out(r, &f);
  return end;
}

static sql_rc claim_in_steps(struct run *r) {
  sql_rc end = dibs__table_begin(r->guard, &r->begun);
  size_t nth = r->wire->put;
  dibs__tt_free(&r->text, r->op);
  if (end == DIBS__SQL_OK) end = put_text(r);
  if (end == DIBS__SQL_OK) end = dibs__table_go(r->guard, &r->begun, false);
  if (end != DIBS__SQL_OK) return end;
  size_t count = r->engine->rows(r->wire, nth);
  if (count == 0) {
    end = dibs__table_rollback(r->guard, &r->begun);
    return end == DIBS__SQL_OK ? answer_none(r) : end;
  }
  dibs__str *keys = copy_keys(r, nth, count);
  if (!keys) return dibs__sql_fail(r->wire, DIBS__SQL_NO_SPACE, "out of memory");
  end = take_rows(r, keys, count);
  free(keys);
  return end;
}

static sql_rc run_claim(struct run *r) {
  if (r->op->again) {
    set_answer(r, DIBS_OK, "");
    r->op->next_ms = 0;
    return DIBS__SQL_OK;
  }
  return r->engine->update_returning && r->engine->sessions ? claim_at_once(r) : claim_in_steps(r);
}

/* ---- Ending and extending ---- */

/* Statements of an item. */
struct placed {
  size_t change, row; /* the row is read by `row`; the same where the change returns it */
  bool put;
};

static bool reads_back(const struct run *r) {
  return r->op->op.verb == DIBS__TASK_EXTEND;
}

/* Answers an item that needs no statement. */
static bool item_refused(struct run *r, item_t *item) {
  char letter = r->shape->locked->letter;
  if (dibs__task_table_refuses_item(r->op, item)) return true;
  if (r->shape->key_is_number && !dibs__sql_is_number(item->key))
    item->status = DIBS_NOT_FOUND;
  else if ((letter == DIBS__INSTANT_MS || letter == DIBS__INSTANT_S) && !dibs__sql_is_number(item->locked))
    item->status = DIBS_STALE;
  return item->status != DIBS_OK;
}

static sql_rc put_change(struct run *r, item_t *item, struct placed *at) {
  at->put = true;
  at->change = at->row = r->wire->put;
  dibs__tt_change(&r->text, r->op, item);
  sql_rc end = put_text(r);
  if (!reads_back(r) || r->engine->update_returning || end != DIBS__SQL_OK) return end;
  at->row = r->wire->put;
  dibs__tt_row(&r->text, item->key);
  return put_text(r);
}

static void read_extended(struct run *r, item_t *item, size_t nth) {
  struct dibs__sql_value locked = cell_at(r, nth, 0, DIBS__TT_LOCKED);
  item->due_ms = number_at(r, nth, 0, DIBS__TT_LOCKED_MS) + r->op->timeout_ms;
  snprintf(item->locked_now, sizeof item->locked_now, "%.*s", (int)locked.len, locked.p ? locked.p : "");
}

static bool change_hit(const struct run *r, const struct placed *at) {
  if (reads_back(r) && r->engine->update_returning) return r->engine->rows(r->wire, at->change) > 0;
  return r->engine->changed(r->wire, at->change) > 0;
}

/* For what matched nothing: is there such a row? */
static sql_rc answer_missed(struct run *r, item_t *items, struct placed *at, size_t count) {
  sql_rc end = DIBS__SQL_OK;
  for (size_t i = 0; i < count && end == DIBS__SQL_OK; i++) {
    if (!at[i].put || items[i].status == DIBS_OK) continue;
    at[i].row = r->wire->put;
    dibs__tt_row(&r->text, items[i].key);
    end = put_text(r);
  }
  if (end == DIBS__SQL_OK) end = dibs__table_go(r->guard, &r->begun, false);
  for (size_t i = 0; i < count && end == DIBS__SQL_OK; i++)
    if (at[i].put && items[i].status != DIBS_OK)
      items[i].status = r->engine->rows(r->wire, at[i].row) > 0 ? DIBS_STALE : DIBS_NOT_FOUND;
  return end;
}

/* All in one packet. */
static sql_rc change_items(struct run *r, item_t *items, struct placed *at, size_t count) {
  size_t put = 0, missed = 0;
  for (size_t i = 0; i < count; i++) {
    at[i] = (struct placed){.put = !item_refused(r, &items[i])};
    put += at[i].put;
  }
  if (put == 0) return DIBS__SQL_OK;
  bool reads = reads_back(r) && !r->engine->update_returning;
  bool bare = put == 1 && !reads && r->engine->sessions && !r->wire->inside;
  sql_rc end = bare ? DIBS__SQL_OK : dibs__table_begin(r->guard, &r->begun);
  for (size_t i = 0; i < count && end == DIBS__SQL_OK; i++)
    if (at[i].put) end = put_change(r, &items[i], &at[i]);
  if (end == DIBS__SQL_OK) end = dibs__table_commit(r->guard, &r->begun);
  if (end != DIBS__SQL_OK) return end;
  for (size_t i = 0; i < count; i++) {
    if (!at[i].put) continue;
    bool hit = change_hit(r, &at[i]);
    items[i].status = hit ? DIBS_OK : DIBS_STALE;
    if (hit && reads_back(r)) read_extended(r, &items[i], at[i].row);
    missed += !hit;
  }
  return missed ? answer_missed(r, items, at, count) : end;
}

/* A failure that may be the fault of one item. */
static bool is_of_one(const struct run *r) {
  const struct dibs__sql_wire *w = r->wire;
  if (dibs__sql_dead(w) || w->unsure || w->trouble == DIBS__SQL_NO_SPACE || w->trouble == DIBS__SQL_DEADLOCK)
    return false;
  return dibs__table_status(w->trouble) == DIBS_INVALID;
}

static sql_rc change_one_by_one(struct run *r, struct placed *at) {
  task_op *op = r->op;
  sql_rc end = DIBS__SQL_OK;
  for (uint32_t i = 0; i < op->count && end == DIBS__SQL_OK; i++) {
    end = change_items(r, &op->items[i], at, 1);
    if (end == DIBS__SQL_OK || !is_of_one(r)) continue;
    op->items[i].status = DIBS_INVALID;
    snprintf(op->why, sizeof op->why, "%s", r->wire->message);
    end = dibs__table_rollback(r->guard, &r->begun);
  }
  return end;
}

static sql_rc run_change(struct run *r) {
  task_op *op = r->op;
  struct placed *at = malloc((op->count ? op->count : 1) * sizeof *at);
  if (!at) return dibs__sql_fail(r->wire, DIBS__SQL_NO_SPACE, "out of memory");
  sql_rc end = change_items(r, op->items, at, op->count);
  if (end != DIBS__SQL_OK && is_of_one(r)) {
    end = dibs__table_rollback(r->guard, &r->begun);
    if (end == DIBS__SQL_OK) end = change_one_by_one(r, at);
  }
  free(at);
  if (end == DIBS__SQL_OK) op->op.status = DIBS_OK;
  return end;
}

/* ---- Listing ---- */

static sql_rc run_list(struct run *r) {
  const struct dibs__task_filter *filter = &r->op->filter;
  const uint32_t known = 1u << DIBS__TASK_READY | 1u << DIBS__TASK_CLAIMED;
  bool numbers = r->shape->key_is_number;
  set_answer(r, DIBS_OK, "");
  if (filter->states && !(filter->states & known)) return DIBS__SQL_OK;
  if (numbers && filter->key.len && !dibs__sql_is_number(filter->key)) return DIBS__SQL_OK;
  if (numbers && filter->after_key.len && !dibs__sql_is_number(filter->after_key)) return DIBS__SQL_OK;
  struct found f = {.first = r->wire->put};
  dibs__tt_list(&r->text, r->op);
  sql_rc end = put_text(r);
  if (end == DIBS__SQL_OK) end = dibs__table_go(r->guard, &r->begun, false);
  if (end != DIBS__SQL_OK) return end;
  f.count = r->engine->rows(r->wire, f.first);
  hand_out(r, &f);
  return end;
}

/* ---- One operation ---- */

static sql_rc run_verb(struct run *r) {
  char why[sizeof r->op->why];
  sql_rc end = dibs__sql_table_check(r->guard, r->op->table, DIBS__SQL_FOR_TASKS, &r->shape, why, sizeof why);
  if (end != DIBS__SQL_OK) return end;
  if (!r->shape) {
    set_answer(r, DIBS_INVALID, why);
    return end;
  }
  r->text.shape = r->shape;
  switch (r->op->op.verb) {
  case DIBS__TASK_CLAIM:
    return run_claim(r);
  case DIBS__TASK_LIST:
    return run_list(r);
  default:
    return run_change(r);
  }
}

/* Makes an answer of a failure.  FAILED: the wire is dead, or the write may have happened. */
static sql_rc answer_failure(struct run *r) {
  struct dibs__sql_wire *w = r->wire;
  enum dibs__sql_trouble trouble = w->trouble;
  char message[sizeof w->message];
  if (dibs__sql_dead(w) || w->unsure) return DIBS__SQL_FAILED;
  snprintf(message, sizeof message, "%s", w->message);
  sql_rc end = dibs__table_rollback(r->guard, &r->begun);
  if (end != DIBS__SQL_OK) return end;
  if (trouble == DIBS__SQL_NO_SPACE) {
    w->trouble = trouble;
    return DIBS__SQL_FAILED;
  }
  if (trouble == DIBS__SQL_DEADLOCK && !w->inside) {
    r->again = true;
    dibs__nap_ms(PAUSE_MS);
    return end;
  }
  if (trouble == DIBS__SQL_DEADLOCK) trouble = DIBS__SQL_LOCKED; /* the user must start their transaction again */
  set_answer(r, dibs__table_status(trouble), message);
  return end;
}

static sql_rc run_one(struct run *r) {
  dibs__tick by = dibs__tick_min(r->wire->by, r->op->op.by.ns ? r->op->op.by : DIBS__TICK_NEVER);
  if (dibs__task_table_refuses(r->op)) return DIBS__SQL_OK;
  for (int tries = 0; tries < AGAIN_MAX; tries++) {
    r->again = false;
    sql_rc end = run_verb(r);
    if (end == DIBS__SQL_FAILED) end = answer_failure(r);
    if (end != DIBS__SQL_OK || !r->again) return end;
    if (!dibs__tick_before(dibs__tick_now(), by)) break;
  }
  if (r->op->op.status != DIBS_OK) set_answer(r, DIBS_UNAVAILABLE, "other writers held the rows until the deadline");
  return DIBS__SQL_OK;
}

sql_rc dibs__sql_table_task(struct dibs__sql_guard *guard, task_op *const ops[], size_t count) {
  struct run *r = malloc(sizeof *r);
  if (!r) return dibs__sql_fail(guard->wire, DIBS__SQL_NO_SPACE, "out of memory");
  *r = (struct run){.guard = guard, .wire = guard->wire, .engine = guard->wire->engine};
  sql_rc end = DIBS__SQL_OK;
  for (size_t i = 0; i < count && end == DIBS__SQL_OK; i++) {
    r->op = ops[i];
    r->text.engine = r->engine;
    r->text.inside = r->wire->inside;
    r->text.table = ops[i]->table;
    r->begun = false;
    r->locked_tries = 0;
    end = run_one(r);
  }
  free(r);
  return end;
}

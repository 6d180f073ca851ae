/* SPDX-License-Identifier: MIT */
/*
 * The windows of a claim with lanes.
 *
 * A window is one statement, which also reads the tasks with a serial text that have no slot yet: it sees one state of
 * both, so no task is taken while an earlier one of its key has just arrived.  What it has, by key and number
 * (task_key.c):
 *
 *   free        taken, if no earlier one is put aside, has no slot yet, or could not be locked
 *   not due     put aside: it waits
 *   after a task that is put aside      put aside: blocked
 */
#include "sql/task_window.h"
#include "base/slot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__sql_value value;
typedef struct dibs__task_op task_op;
typedef struct dibs__task_row row_t;
typedef struct dibs__laning laning;
typedef struct dibs__window window;
typedef struct dibs__found found;

enum { BACK = 1000 /* blocked tasks that come back, of all keys */ };

/* ---- Where it looks ---- */

static void add_range(laning *l, int64_t first, int64_t last) {
  if (first > last) return;
  struct dibs__slot_range *before = l->range_count ? &l->ranges[l->range_count - 1] : NULL;
  if (before && before->last + 1 == first)
    before->last = last;
  else
    l->ranges[l->range_count++] = (struct dibs__slot_range){first, last};
}

bool dibs__window_ranges(laning *l) {
  const task_op *op = l->c->op;
  l->range_count = l->next = 0;
  l->ranges = malloc((2 * (size_t)op->lane_count + 2) * sizeof *l->ranges);
  for (int round = 0; l->ranges && round < 2; round++)
    for (uint32_t i = 0; i < op->lane_count; i++) {
      if (op->lanes[i].status != DIBS_OK) continue;
      int64_t first = (int64_t)dibs__lane_slot(op->lanes[i].lane, op->of_lanes), from = op->from;
      int64_t last = (int64_t)dibs__lane_slot(op->lanes[i].lane + 1, op->of_lanes) - 1;
      if (round == 0)
        add_range(l, first < from ? from : first, last);
      else
        add_range(l, first, last < from ? last : from - 1);
    }
  return l->ranges != NULL;
}

sql_rc dibs__window_put(laning *l, const struct dibs__slot_range *r) {
  l->asked = l->c->most - l->taken + DIBS__WINDOW_MORE;
  value values[] = {dibs__task_text(l->c->op->kind), dibs__sql_number(r->first), dibs__sql_number(r->last),
                    dibs__sql_number((int64_t)l->asked)};
  return dibs__task_put(
      l->c->g,
      "SELECT * FROM (SELECT nr, slot, due, serial FROM dibs_task@{slot} WHERE kind = $1 AND"
      " slot >= $2 AND slot <= $3 AND state + 0 = 4 ORDER BY slot, nr LIMIT $4) a UNION ALL"
      " SELECT * FROM (SELECT nr, -1, due, serial FROM dibs_task@{keyed} WHERE kind = $1 AND state = 0 AND"
      " rank = 0 AND serial IS NOT NULL LIMIT 1000) b",
      values, 4);
}

/* ---- A window ---- */

void dibs__window_free(window *x) {
  free(x->rows);
  free(x->arrived);
  free(x->asides);
  free(x->texts);
  *x = (window){.rows = NULL};
}

static int by_slot(const void *x, const void *y) {
  const found *a = x, *b = y;
  if (a->slot != b->slot) return a->slot < b->slot ? -1 : 1;
  if (a->head != b->head) return a->head < b->head ? -1 : 1;
  return (a->nr > b->nr) - (a->nr < b->nr);
}

static int by_slot_alone(const void *x, const void *y) {
  const found *a = x, *b = y;
  if (a->slot != b->slot) return a->slot < b->slot ? -1 : 1;
  return (a->nr > b->nr) - (a->nr < b->nr);
}

/* Of two keys with one slot the one with the smaller number comes first. */
static void order_window(window *x) {
  if (x->count > 1) qsort(x->rows, x->count, sizeof *x->rows, by_slot_alone);
  for (size_t i = 0, first = 0; i < x->count; i++) {
    found *row = &x->rows[i];
    if (row->slot != x->rows[first].slot) first = i;
    row->head = row->nr;
    for (size_t k = i; k-- > first;) {
      if (!dibs__str_equal(x->rows[k].serial, row->serial)) continue;
      row->head = x->rows[k].head;
      break;
    }
  }
  if (x->count > 1) qsort(x->rows, x->count, sizeof *x->rows, by_slot);
}

bool dibs__window_read(const struct dibs__sql_wire *w, size_t nth, window *x) {
  size_t rows = w->engine->rows(w, nth), size = 1;
  for (size_t row = 0; row < rows; row++) size += dibs__task_cell_text(w, nth, row, 3).len;
  *x = (window){.rows = malloc((rows + 1) * sizeof *x->rows),
                .arrived = malloc((rows + 1) * sizeof *x->arrived),
                .texts = malloc(size)};
  if (!x->rows || !x->arrived || !x->texts) return false;
  char *to = x->texts;
  for (size_t row = 0; row < rows; row++) {
    dibs__str serial = dibs__task_cell_text(w, nth, row, 3);
    found f = {.nr = (uint64_t)dibs__sql_cell_number(w, nth, row, 0),
               .slot = dibs__sql_cell_number(w, nth, row, 1),
               .due = dibs__sql_cell_number(w, nth, row, 2),
               .serial = {to, serial.len}};
    if (serial.len) memcpy(to, serial.p, serial.len);
    to += serial.len;
    if (f.slot >= 0)
      x->rows[x->count++] = f;
    else
      x->arrived[x->arrived_count++] = f;
  }
  return true;
}

static bool begins_key(const window *x, size_t i) {
  return i == 0 || x->rows[i].slot != x->rows[i - 1].slot || x->rows[i].head != x->rows[i - 1].head;
}

/* The first task of each key that is put aside. */
static sql_rc find_asides(laning *l, window *x) {
  struct dibs__sql_wire *w = l->c->g->wire;
  if (!l->looked.aside || x->count == 0) return DIBS__SQL_OK;
  value kind = dibs__task_text(l->c->op->kind), *rows = malloc(3 * x->count * sizeof *rows);
  size_t count = 0, nth = w->put;
  x->asides = malloc(x->count * sizeof *x->asides);
  if (!rows || !x->asides) {
    free(rows);
    return dibs__task_no_memory(l->c->g);
  }
  for (size_t i = 0; i < x->count; i++) {
    if (!begins_key(x, i)) continue;
    rows[3 * count] = dibs__sql_number((int64_t)i);
    rows[3 * count + 1] = dibs__sql_number(-1 - x->rows[i].slot);
    rows[3 * count++ + 2] = dibs__task_text(x->rows[i].serial);
  }
#define FIRST(column, slot)                                                                                            \
  "(SELECT " column " FROM dibs_task@{slot} WHERE kind = $1 AND " slot " AND serial = r_serial ORDER BY slot, nr"      \
  " LIMIT 1)"
#define FIRSTS(slot)                                                                                                   \
  "WITH r(i, r_slot, r_serial) AS ($rows) SELECT i, " FIRST("nr", slot) ", " FIRST("state", slot) " FROM r"
  sql_rc end = dibs__task_put_rows(
      l->c->g, dibs__task_by_range(l->c->g) ? FIRSTS(DIBS__TASK_IN_SLOT("slot", "r_slot")) : FIRSTS("slot = r_slot"),
      &kind, 1, rows, 3, count);
  free(rows);
  if (end == DIBS__SQL_OK) end = dibs__task_go(l->c->g);
  for (size_t row = 0; end == DIBS__SQL_OK && row < w->engine->rows(w, nth); row++) {
    size_t i = (size_t)dibs__sql_cell_number(w, nth, row, 0);
    if (i >= x->count || dibs__task_cell_is_null(w, nth, row, 1)) continue;
    x->asides[x->aside_count++] =
        (struct dibs__aside){.slot = x->rows[i].slot,
                             .serial = x->rows[i].serial,
                             .nr = (uint64_t)dibs__sql_cell_number(w, nth, row, 1),
                             .is_blocked = dibs__sql_cell_number(w, nth, row, 2) == DIBS__TASK_BLOCKED};
  }
  return end;
}

static const struct dibs__aside *aside_of(const window *x, const found *f) {
  for (size_t i = 0; i < x->aside_count; i++)
    if (x->asides[i].slot == f->slot && dibs__str_equal(x->asides[i].serial, f->serial)) return &x->asides[i];
  return NULL;
}

static bool has_arrived_before(const window *x, const found *f) {
  for (size_t i = 0; i < x->arrived_count; i++)
    if (x->arrived[i].nr < f->nr && dibs__str_equal(x->arrived[i].serial, f->serial)) return true;
  return false;
}

/* Decides as if all of them could be locked.  Returns how many it takes. */
static uint32_t decide(laning *l, window *x) {
  uint32_t taken = l->taken;
  const struct dibs__aside *aside = NULL;
  bool stops = false, waits = false;
  for (size_t i = 0; i < x->count && taken < l->c->most; i++) {
    found *f = &x->rows[i];
    if (begins_key(x, i)) {
      aside = aside_of(x, f);
      stops = waits = false;
    }
    l->last = f->slot;
    if (waits || (aside && aside->nr < f->nr))
      f->fate = DIBS__FATE_BLOCKED;
    else if (stops || (stops = has_arrived_before(x, f)))
      f->fate = DIBS__FATE_LEFT;
    else if (f->due > l->now)
      waits = (f->fate = DIBS__FATE_WAITS);
    else
      f->fate = DIBS__FATE_TAKEN;
    if (f->fate == DIBS__FATE_TAKEN) taken++;
  }
  return taken - l->taken;
}

/* ---- Locking ---- */

/* Puts the statement that locks those with one fate.  (+ 0 and coalesce: so that no
 * partial index fits.) */
static sql_rc put_locks(laning *l, const window *x, bool taken) {
  char text[DIBS__TASK_TEXT / 2];
  value *rows = malloc((x->count + 1) * sizeof *rows);
  size_t count = 0;
  if (!rows) return dibs__task_no_memory(l->c->g);
  for (size_t i = 0; i < x->count; i++)
    if (x->rows[i].fate != DIBS__FATE_LEFT && (x->rows[i].fate == DIBS__FATE_TAKEN) == taken)
      rows[count++] = dibs__sql_number((int64_t)x->rows[i].nr);
  snprintf(text, sizeof text, "SELECT %s %s AND state + 0 = 4 AND coalesce(slot, -1) >= 0@{skip}",
           taken ? DIBS__TASK_COLUMNS ", payload" DIBS__CLAIM_LAST_ERROR "" : "nr", dibs__task_from_numbers(l->c->g));
  sql_rc end = count ? dibs__task_put_rows(l->c->g, text, NULL, 0, rows, 1, count) : DIBS__SQL_OK;
  free(rows);
  return end;
}

/* The blocked ones at the front of each key that it takes from, if nothing blocks them any more. */
static sql_rc put_backs(laning *l, const window *x) {
  char text[400];
  sql_rc end = DIBS__SQL_OK;
  size_t count = 0;
  for (size_t i = 0; i < x->aside_count; i++) count += x->asides[i].is_blocked;
  value values[] = {dibs__task_text(l->c->op->kind), dibs__sql_null(), dibs__sql_null(),
                    dibs__sql_number(count ? 1 + BACK / (int64_t)count : 1)};
  for (size_t i = 0; i < x->aside_count && end == DIBS__SQL_OK; i++) {
    values[1] = dibs__sql_number(-1 - x->asides[i].slot);
    values[2] = dibs__task_text(x->asides[i].serial);
    if (x->asides[i].is_blocked)
      end = dibs__task_put(l->c->g, dibs__task_asides(l->c->g, "@{skip}", text, sizeof text), values, 4);
  }
  return end;
}

static int by_nr(const void *x, const void *y) {
  uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;
  return (a > b) - (a < b);
}

static bool is_among(const uint64_t *numbers, size_t count, uint64_t nr) {
  return count && bsearch(&nr, numbers, count, sizeof nr, by_nr) != NULL;
}

/* Those that could not be locked, and the later ones of their keys, are left. */
static void leave_unlocked(window *x, const uint64_t *locked, size_t count) {
  bool stops = false;
  for (size_t i = 0; i < x->count; i++) {
    found *f = &x->rows[i];
    if (begins_key(x, i)) stops = false;
    if (f->fate == DIBS__FATE_LEFT) continue;
    stops = stops || !is_among(locked, count, f->nr);
    if (stops) f->fate = DIBS__FATE_LEFT;
  }
}

/* (If all that is in the window comes behind a blocked one, this one would never come.) */
static bool takes_from(const window *x, const struct dibs__aside *a) {
  for (size_t i = 0; i < x->count; i++)
    if (x->rows[i].slot == a->slot && (x->rows[i].fate == DIBS__FATE_TAKEN || x->rows[i].head > a->nr) &&
        dibs__str_equal(x->rows[i].serial, a->serial))
      return true;
  return false;
}

static bool grow(uint64_t **numbers, size_t count, size_t more) {
  uint64_t *p = realloc(*numbers, (count + more + 1) * sizeof *p);
  if (p) *numbers = p;
  return p != NULL;
}

/* Some of a slot come back: it looks at it once more, next. */
static bool look_again(laning *l, int64_t slot) {
  if (l->again && l->ranges[l->next].first == slot) return true; /* several keys have it */
  struct dibs__slot_range *ranges = realloc(l->ranges, (l->range_count + 1) * sizeof *ranges);
  if (!ranges) return false;
  l->ranges = ranges;
  memmove(ranges + l->next + 1, ranges + l->next, (l->range_count - l->next) * sizeof *ranges);
  ranges[l->next] = (struct dibs__slot_range){slot, slot};
  l->range_count++;
  l->again++;
  return true;
}

/* `nth`: the first of the answers of put_backs. */
static bool note_flips(laning *l, const window *x, size_t nth) {
  const struct dibs__sql_wire *w = l->c->g->wire;
  if (!grow(&l->flips, l->flip_count, x->count) || !grow(&l->waits, l->wait_count, x->count)) return false;
  for (size_t i = 0; i < x->count; i++) {
    if (x->rows[i].fate == DIBS__FATE_WAITS) l->waits[l->wait_count++] = x->rows[i].nr;
    if (x->rows[i].fate == DIBS__FATE_BLOCKED) l->flips[l->flip_count++] = x->rows[i].nr;
  }
  for (size_t i = 0; i < x->aside_count; i++) {
    if (!x->asides[i].is_blocked) continue;
    size_t rows = w->engine->rows(w, nth), before = l->flip_count;
    if (!grow(&l->flips, l->flip_count, rows)) return false;
    for (size_t row = 0; row < rows && takes_from(x, &x->asides[i]); row++) {
      if (dibs__sql_cell_number(w, nth, row, 1) != DIBS__TASK_BLOCKED) break;
      l->flips[l->flip_count++] = (uint64_t)dibs__sql_cell_number(w, nth, row, 0);
    }
    bool came = l->flip_count > before;
    if (came && !look_again(l, x->asides[i].slot)) return false;
    nth++;
  }
  return true;
}

/* The rows of the answer `nth` that it takes go to those that it took before. */
static sql_rc keep_taken(laning *l, const window *x, size_t nth) {
  task_op *op = l->c->op;
  row_t *rows, *all;
  uint32_t count = 0, left = 0;
  uint64_t *taken = malloc((x->count + 1) * sizeof *taken);
  size_t n = 0;
  if (!taken || !dibs__task_read_rows(l->c->g->wire, nth, 1, false, op, &rows, &count)) {
    free(taken);
    return dibs__task_no_memory(l->c->g);
  }
  for (size_t i = 0; i < x->count; i++) {
    if (x->rows[i].fate != DIBS__FATE_TAKEN) continue;
    taken[n++] = x->rows[i].nr;
    l->last_taken = x->rows[i].slot;
  }
  if (n > 1) qsort(taken, n, sizeof *taken, by_nr);
  for (uint32_t i = 0; i < count; i++)
    if (is_among(taken, n, rows[i].nr)) rows[left++] = rows[i];
  free(taken);
  l->taken += left;
  if (!op->got || left == 0) {
    if (left == 0) {
      free(rows);
      return DIBS__SQL_OK;
    }
    op->got = rows;
    op->got_count = left;
    return DIBS__SQL_OK;
  }
  all = dibs__task_join_rows(op->got, op->got_count, rows, left);
  free(rows);
  if (!all) return dibs__task_no_memory(l->c->g);
  free(op->got);
  op->got = all;
  op->got_count += left;
  return DIBS__SQL_OK;
}

static bool read_locked(const struct dibs__sql_wire *w, size_t first, size_t end, uint64_t **locked, size_t *count) {
  size_t size = 0;
  *count = 0;
  for (size_t nth = first; nth < end; nth++) size += w->engine->rows(w, nth);
  *locked = malloc((size + 1) * sizeof **locked);
  if (!*locked) return false;
  for (size_t nth = first; nth < end; nth++)
    for (size_t row = 0; row < w->engine->rows(w, nth); row++)
      (*locked)[(*count)++] = (uint64_t)dibs__sql_cell_number(w, nth, row, 0);
  if (*count > 1) qsort(*locked, *count, sizeof **locked, by_nr);
  return true;
}

sql_rc dibs__window_take(laning *l, window *x) {
  struct dibs__sql_wire *w = l->c->g->wire;
  size_t first = w->put, backs, locked_count;
  uint64_t *locked = NULL;
  bool takes;
  order_window(x);
  l->last = x->count ? x->rows[x->count - 1].slot : l->ranges[l->next].last;
  sql_rc end = find_asides(l, x);
  if (end != DIBS__SQL_OK) return end;
  first = w->put;
  takes = decide(l, x) > 0;
  end = takes ? put_locks(l, x, true) : DIBS__SQL_OK;
  if (end == DIBS__SQL_OK) end = put_locks(l, x, false);
  backs = w->put;
  if (end == DIBS__SQL_OK) end = put_backs(l, x);
  if (end != DIBS__SQL_OK || w->put == first) return end;
  end = dibs__task_go(l->c->g);
  if (end != DIBS__SQL_OK) return end;
  if (!read_locked(w, first, backs, &locked, &locked_count)) return dibs__task_no_memory(l->c->g);
  leave_unlocked(x, locked, locked_count);
  free(locked);
  if (!note_flips(l, x, backs)) return dibs__task_no_memory(l->c->g);
  return takes ? keep_taken(l, x, first) : end;
}

/* SPDX-License-Identifier: MIT */
/*
 * Claiming tasks by lane.
 *
 * One transaction: it locks the rows of its lanes, which are those of this owner alone, so claims for other lanes do
 * not wait; it reads free tasks in windows of slots, from `from` on; it locks those that it takes, and writes.  A
 * window is one statement, which also reads the tasks with a serial text that have no slot yet: it sees one state of
 * both, so it never takes a task while an earlier one of its key has just arrived.
 *
 * What a window has, by key and number (task_key.c):
 *
 *   free        taken, if no earlier one is put aside, has no slot yet, or could not be locked
 *   not due     put aside: it waits
 *   behind one that is put aside      put aside: blocked
 *
 * A key is in one window of a claim only, and if the window has no more of its tasks than that, the others come at the
 * next claim, after the other keys.
 *
 * All else is done before, in transactions of their own: a lane that has another fence than its row (task_lane_kind.c),
 * and promotion.  Then the claim begins again.
 */
#include "base/slot.h"
#include "sql/task_claim.h"
#include "store/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__sql_value value;
typedef struct dibs__task_op task_op;
typedef struct dibs__task_row row_t;
typedef struct dibs__claiming claiming;

enum {
  MORE = 64,         /* rows of a window beside those that the claim wants */
  AT_ONCE = 64,      /* windows in one packet, at most */
  LOOKED_MAX = 4000, /* rows that a claim looks at */
  BACK = 1000,       /* blocked tasks that come back, of all keys */
  ROUNDS = 16,       /* how often a claim begins again */
  ARRIVED_MAX = 1000 /* tasks without a slot that a window has; written in DIBS__CLAIM_KEYED, too */
};

/* Slots from `first` up to `last`. */
struct range {
  int64_t first, last;
};

enum fate { LEFT, TAKEN, WAITS, BLOCKED };

struct found {
  uint64_t nr, head; /* of the first of its key in this window */
  int64_t slot, due;
  dibs__str serial; /* in the memory of the window */
  enum fate fate;
};

/* A key of which some are put aside. */
struct aside {
  int64_t slot;
  dibs__str serial;
  uint64_t nr; /* the first one */
  bool is_blocked;
};

struct window {
  struct found *rows; /* in the order in which they are taken */
  size_t count;
  struct found *arrived; /* those without a slot */
  size_t arrived_count;
  struct aside *asides; /* in the order of keys */
  size_t aside_count;
  char *texts;
};

struct steps {
  bool promoted, limited, repeated;
};

struct laning {
  claiming *c;
  struct steps *steps; /* what it did since it began */
  struct dibs__claim_looked looked;
  struct range *ranges; /* in the order in which it looks */
  size_t range_count, next;
  size_t again; /* ranges that it looks at once more, from `next` on */
  uint32_t taken;
  size_t seen;              /* rows that it looked at */
  size_t asked;             /* rows of a window */
  int64_t last, last_taken; /* slots */
  bool cut;                 /* too many tasks have no slot yet */
  uint64_t *flips, *waits;  /* to be written */
  size_t flip_count, wait_count;
  uint32_t written; /* of the tasks that it takes */
  bool wrote;
  int64_t now;
};

/* ---- Lanes ---- */

static const struct dibs__task_lane *lane_of(const task_op *op, int64_t slot) {
  uint32_t wanted = dibs__slot_lane((uint32_t)slot, op->of_lanes), first = 0, end = op->lane_count;
  while (first < end) {
    uint32_t middle = first + (end - first) / 2;
    if (op->lanes[middle].lane < wanted)
      first = middle + 1;
    else
      end = middle;
  }
  return first < op->lane_count && op->lanes[first].lane == wanted ? &op->lanes[first] : NULL;
}

bool dibs__lanes_has(const task_op *op, int64_t slot, uint64_t fence) {
  const struct dibs__task_lane *lane = lane_of(op, slot);
  return lane && lane->status == DIBS_OK && lane->fence.v == fence;
}

sql_rc dibs__claim_put_lanes(claiming *c) {
  const task_op *op = c->op;
  value kind = dibs__task_text(op->kind), *rows = malloc(op->lane_count * sizeof *rows);
  if (!rows) return dibs__task_no_memory(c->g);
  for (uint32_t i = 0; i < op->lane_count; i++) rows[i] = dibs__sql_number(op->lanes[i].lane);
  sql_rc end = dibs__task_put_rows(
      c->g,
      c->g->wire->engine->joins
          ? "SELECT lane, lanes, fence FROM (WITH r(r_lane) AS ($rows) SELECT r_lane FROM r) r STRAIGHT_JOIN dibs_lane"
            " ON kind = $1 AND lane = r_lane WHERE true ORDER BY lane@{lock}"
          : "SELECT lane, lanes, fence FROM dibs_lane WHERE kind = $1 AND lane@{any}WITH r(r_lane) AS ($rows) SELECT"
            " r_lane FROM r@{none} ORDER BY lane@{lock}",
      &kind, 1, rows, 1, op->lane_count);
  free(rows);
  return end;
}

/* false: some lane has a larger fence than its row, or none, or they are of another P. */
static bool read_lane_rows(const claiming *c, size_t nth) {
  const struct dibs__sql_wire *w = c->g->wire;
  const task_op *op = c->op;
  size_t row = 0, rows = w->engine->rows(w, nth);
  for (uint32_t i = 0; i < op->lane_count; i++) {
    struct dibs__task_lane *lane = &op->lanes[i];
    if (row >= rows || dibs__sql_cell_number(w, nth, row, 0) != lane->lane) {
      if (lane->status != DIBS_STALE) return false;
      continue;
    }
    uint64_t fence = (uint64_t)dibs__sql_cell_number(w, nth, row, 2);
    bool same = dibs__sql_cell_number(w, nth, row++, 1) == op->of_lanes;
    if (!same && lane->status == DIBS_STALE) continue;
    if (!same || fence < lane->fence.v) return false;
    lane->status = fence > lane->fence.v ? DIBS_STALE : DIBS_OK;
  }
  return true;
}

/* ---- Where it looks ---- */

static void add_range(struct laning *l, int64_t first, int64_t last) {
  if (first > last) return;
  struct range *before = l->range_count ? &l->ranges[l->range_count - 1] : NULL;
  if (before && before->last + 1 == first)
    before->last = last;
  else
    l->ranges[l->range_count++] = (struct range){first, last};
}

static bool find_ranges(struct laning *l) {
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

static sql_rc put_window(struct laning *l, const struct range *r) {
  l->asked = l->c->most - l->taken + MORE;
  value values[] = {dibs__task_text(l->c->op->kind), dibs__sql_number(r->first), dibs__sql_number(r->last),
                    dibs__sql_number((int64_t)l->asked)};
  return dibs__task_put(l->c->g,
                        "SELECT * FROM (SELECT nr, slot, due, serial FROM dibs_task@{slot} WHERE kind = $1 AND"
                        " slot >= $2 AND slot <= $3 AND state + 0 = 4 ORDER BY slot, nr LIMIT $4) a UNION ALL"
                        " SELECT * FROM (SELECT nr, -1, due, serial" DIBS__CLAIM_KEYED ") b",
                        values, 4);
}

/* ---- A window ---- */

static void free_window(struct window *x) {
  free(x->rows);
  free(x->arrived);
  free(x->asides);
  free(x->texts);
  *x = (struct window){.rows = NULL};
}

static int by_slot(const void *x, const void *y) {
  const struct found *a = x, *b = y;
  if (a->slot != b->slot) return a->slot < b->slot ? -1 : 1;
  if (a->head != b->head) return a->head < b->head ? -1 : 1;
  return (a->nr > b->nr) - (a->nr < b->nr);
}

static int by_slot_alone(const void *x, const void *y) {
  const struct found *a = x, *b = y;
  if (a->slot != b->slot) return a->slot < b->slot ? -1 : 1;
  return (a->nr > b->nr) - (a->nr < b->nr);
}

/* Of two keys with one slot the one with the smaller number comes first. */
static void order_window(struct window *x) {
  if (x->count > 1) qsort(x->rows, x->count, sizeof *x->rows, by_slot_alone);
  for (size_t i = 0, first = 0; i < x->count; i++) {
    struct found *row = &x->rows[i];
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

static bool read_window(const struct dibs__sql_wire *w, size_t nth, struct window *x) {
  size_t rows = w->engine->rows(w, nth), size = 1;
  for (size_t row = 0; row < rows; row++) size += dibs__task_cell_text(w, nth, row, 3).len;
  *x = (struct window){.rows = malloc((rows + 1) * sizeof *x->rows),
                       .arrived = malloc((rows + 1) * sizeof *x->arrived),
                       .texts = malloc(size)};
  if (!x->rows || !x->arrived || !x->texts) return false;
  char *to = x->texts;
  for (size_t row = 0; row < rows; row++) {
    dibs__str serial = dibs__task_cell_text(w, nth, row, 3);
    struct found f = {.nr = (uint64_t)dibs__sql_cell_number(w, nth, row, 0),
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

static bool begins_key(const struct window *x, size_t i) {
  return i == 0 || x->rows[i].slot != x->rows[i - 1].slot || x->rows[i].head != x->rows[i - 1].head;
}

/* The first task of each key that is put aside. */
static sql_rc find_asides(struct laning *l, struct window *x) {
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
#define FIRST(column)                                                                                                  \
  "(SELECT " column " FROM dibs_task@{slot} WHERE kind = $1 AND slot = r_slot AND serial = r_serial"                   \
  " ORDER BY slot, nr LIMIT 1)"
  sql_rc end = dibs__task_put_rows(
      l->c->g, "WITH r(i, r_slot, r_serial) AS ($rows) SELECT i, " FIRST("nr") ", " FIRST("state") " FROM r", &kind, 1,
      rows, 3, count);
  free(rows);
  if (end == DIBS__SQL_OK) end = dibs__task_go(l->c->g);
  for (size_t row = 0; end == DIBS__SQL_OK && row < w->engine->rows(w, nth); row++) {
    size_t i = (size_t)dibs__sql_cell_number(w, nth, row, 0);
    if (i >= x->count || dibs__task_cell_is_null(w, nth, row, 1)) continue;
    x->asides[x->aside_count++] =
        (struct aside){.slot = x->rows[i].slot,
                       .serial = x->rows[i].serial,
                       .nr = (uint64_t)dibs__sql_cell_number(w, nth, row, 1),
                       .is_blocked = dibs__sql_cell_number(w, nth, row, 2) == DIBS__TASK_BLOCKED};
  }
  return end;
}

static const struct aside *aside_of(const struct window *x, const struct found *f) {
  for (size_t i = 0; i < x->aside_count; i++)
    if (x->asides[i].slot == f->slot && dibs__str_equal(x->asides[i].serial, f->serial)) return &x->asides[i];
  return NULL;
}

static bool has_arrived_before(const struct window *x, const struct found *f) {
  for (size_t i = 0; i < x->arrived_count; i++)
    if (x->arrived[i].nr < f->nr && dibs__str_equal(x->arrived[i].serial, f->serial)) return true;
  return false;
}

/* Decides as if all of them could be locked.  Returns how many it takes. */
static uint32_t decide(struct laning *l, struct window *x) {
  uint32_t taken = l->taken;
  const struct aside *aside = NULL;
  bool stops = false, waits = false;
  for (size_t i = 0; i < x->count && taken < l->c->most; i++) {
    struct found *f = &x->rows[i];
    if (begins_key(x, i)) {
      aside = aside_of(x, f);
      stops = waits = false;
    }
    l->last = f->slot;
    if (waits || (aside && aside->nr < f->nr))
      f->fate = BLOCKED;
    else if (stops || (stops = has_arrived_before(x, f)))
      f->fate = LEFT;
    else if (f->due > l->now)
      waits = (f->fate = WAITS);
    else
      f->fate = TAKEN;
    if (f->fate == TAKEN) taken++;
  }
  return taken - l->taken;
}

/* ---- Locking ---- */

/* Puts the statement that locks those with one fate.  (+ 0: so that no partial index fits.) */
static sql_rc put_locks(struct laning *l, const struct window *x, bool taken) {
  char text[DIBS__TASK_TEXT / 2];
  value *rows = malloc((x->count + 1) * sizeof *rows);
  size_t count = 0;
  if (!rows) return dibs__task_no_memory(l->c->g);
  for (size_t i = 0; i < x->count; i++)
    if (x->rows[i].fate != LEFT && (x->rows[i].fate == TAKEN) == taken)
      rows[count++] = dibs__sql_number((int64_t)x->rows[i].nr);
  snprintf(text, sizeof text, "SELECT %s %s AND state + 0 = 4 AND slot + 0 >= 0@{skip}",
           taken ? DIBS__TASK_COLUMNS ", payload" DIBS__CLAIM_LAST_ERROR "" : "nr", dibs__task_from_numbers(l->c->g));
  sql_rc end = count ? dibs__task_put_rows(l->c->g, text, NULL, 0, rows, 1, count) : DIBS__SQL_OK;
  free(rows);
  return end;
}

/* The blocked ones at the front of each key that it takes from, if nothing blocks them any more. */
static sql_rc put_backs(struct laning *l, const struct window *x) {
  sql_rc end = DIBS__SQL_OK;
  size_t count = 0;
  for (size_t i = 0; i < x->aside_count; i++) count += x->asides[i].is_blocked;
  value values[] = {dibs__task_text(l->c->op->kind), dibs__sql_null(), dibs__sql_null(),
                    dibs__sql_number(count ? 1 + BACK / (int64_t)count : 1)};
  for (size_t i = 0; i < x->aside_count && end == DIBS__SQL_OK; i++) {
    values[1] = dibs__sql_number(-1 - x->asides[i].slot);
    values[2] = dibs__task_text(x->asides[i].serial);
    if (x->asides[i].is_blocked)
      end = dibs__task_put(l->c->g,
                           "SELECT nr, state FROM dibs_task@{slot} WHERE kind = $1 AND slot = $2 AND serial = $3"
                           " ORDER BY slot, nr LIMIT $4@{skip}",
                           values, 4);
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

/* Those that could not be locked, and what comes behind them, are left. */
static void leave_unlocked(struct window *x, const uint64_t *locked, size_t count) {
  bool stops = false;
  for (size_t i = 0; i < x->count; i++) {
    struct found *f = &x->rows[i];
    if (begins_key(x, i)) stops = false;
    if (f->fate == LEFT) continue;
    stops = stops || !is_among(locked, count, f->nr);
    if (stops) f->fate = LEFT;
  }
}

/* (If all that is in the window comes behind a blocked one, this one would never come.) */
static bool takes_from(const struct window *x, const struct aside *a) {
  for (size_t i = 0; i < x->count; i++)
    if (x->rows[i].slot == a->slot && (x->rows[i].fate == TAKEN || x->rows[i].head > a->nr) &&
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
static bool look_again(struct laning *l, int64_t slot) {
  if (l->again && l->ranges[l->next].first == slot) return true; /* several keys have it */
  struct range *ranges = realloc(l->ranges, (l->range_count + 1) * sizeof *ranges);
  if (!ranges) return false;
  l->ranges = ranges;
  memmove(ranges + l->next + 1, ranges + l->next, (l->range_count - l->next) * sizeof *ranges);
  ranges[l->next] = (struct range){slot, slot};
  l->range_count++;
  l->again++;
  return true;
}

/* What is to be written: `nth` is the first of the answers of put_backs. */
static bool note_flips(struct laning *l, const struct window *x, size_t nth) {
  const struct dibs__sql_wire *w = l->c->g->wire;
  if (!grow(&l->flips, l->flip_count, x->count) || !grow(&l->waits, l->wait_count, x->count)) return false;
  for (size_t i = 0; i < x->count; i++) {
    if (x->rows[i].fate == WAITS) l->waits[l->wait_count++] = x->rows[i].nr;
    if (x->rows[i].fate == BLOCKED) l->flips[l->flip_count++] = x->rows[i].nr;
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
static sql_rc keep_taken(struct laning *l, const struct window *x, size_t nth) {
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
    if (x->rows[i].fate != TAKEN) continue;
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

/* Locks what a window takes and puts aside. */
static sql_rc take_window(struct laning *l, struct window *x) {
  struct dibs__sql_wire *w = l->c->g->wire;
  size_t first = w->put, backs, locked_count;
  uint64_t *locked = NULL;
  bool takes = decide(l, x) > 0;
  sql_rc end = takes ? put_locks(l, x, true) : DIBS__SQL_OK;
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

/* ---- Writing ---- */

static sql_rc put_taken(struct laning *l) {
  const task_op *op = l->c->op;
  const row_t *taken = op->got;
  uint32_t count = op->got_count - l->written;
  if (count == 0) return DIBS__SQL_OK;
  taken += l->written;
  value values[] = {dibs__sql_number((int64_t)dibs__id_digest(op->id)), dibs__sql_number(l->now + op->timeout_ms),
                    dibs__sql_number(l->now), dibs__task_text(op->by)};
  value *rows = malloc(2 * count * sizeof *rows);
  if (!rows) return dibs__task_no_memory(l->c->g);
  for (uint32_t i = 0; i < count; i++) {
    const struct dibs__task_lane *lane = lane_of(op, dibs__slot(taken[i].serial.p, taken[i].serial.len));
    rows[2 * i] = dibs__sql_number((int64_t)taken[i].nr);
    rows[2 * i + 1] = dibs__sql_number(lane ? (int64_t)lane->fence.v : 0);
  }
  sql_rc end = dibs__task_put_update(l->c->g, "r_nr, r_lane",
                                     DIBS__CLAIM_SET("$3") ", claim = $1, due = $2, owner = $4, lane = r_lane", "",
                                     values, 4, rows, 2, count);
  free(rows);
  l->written = op->got_count;
  return end;
}

static sql_rc put_waits(struct laning *l) {
  value *rows = malloc((l->wait_count + 1) * sizeof *rows);
  if (!rows) return dibs__task_no_memory(l->c->g);
  for (size_t i = 0; i < l->wait_count; i++) rows[i] = dibs__sql_number((int64_t)l->waits[i]);
  sql_rc end = l->wait_count ? dibs__task_put_update(l->c->g, "r_nr", "state = 3, slot = -1 - slot", "", NULL, 0, rows,
                                                     1, l->wait_count)
                             : DIBS__SQL_OK;
  free(rows);
  return end;
}

static int by_number(const void *x, const void *y) {
  const row_t *a = x, *b = y;
  return (a->nr > b->nr) - (a->nr < b->nr);
}

/* Puts what was decided so far: the next window sees it. */
static sql_rc put_all(struct laning *l) {
  l->wrote = l->wrote || l->c->op->got_count > l->written || l->flip_count || l->wait_count;
  sql_rc end = put_taken(l);
  if (end == DIBS__SQL_OK) end = dibs__task_put_flips(l->c->g, l->flips, l->flip_count);
  if (end == DIBS__SQL_OK) end = put_waits(l);
  l->flip_count = l->wait_count = 0;
  return end;
}

static sql_rc write_all(struct laning *l) {
  claiming *c = l->c;
  task_op *op = c->op;
  c->open = false;
  sql_rc end = put_all(l);
  if (end != DIBS__SQL_OK) return end;
  if (!l->wrote) {
    dibs__sql_rollback(c->g->wire);
    return dibs__sql_dead(c->g->wire) ? DIBS__SQL_FAILED : DIBS__SQL_OK;
  }
  end = dibs__task_commit(c->g);
  if (end != DIBS__SQL_OK) return end;
  dibs__claim_set_claimed(op, l->now);
  if (op->got_count > 1) qsort(op->got, op->got_count, sizeof(row_t), by_number);
  return end;
}

/* ---- Windows ---- */

/* One window, of the range that is next. */
static sql_rc take_range(struct laning *l, struct window *x, bool *goes_on) {
  struct range r = l->ranges[l->next];
  bool full = x->count == l->asked;
  l->seen += x->count;
  order_window(x);
  l->last = x->count ? x->rows[x->count - 1].slot : r.last;
  l->again = 0;
  sql_rc end = find_asides(l, x);
  if (end == DIBS__SQL_OK) end = take_window(l, x);
  if (end != DIBS__SQL_OK) return end;
  *goes_on = l->again == 0 && !full;
  struct range *rest = &l->ranges[l->next + l->again];
  rest->first = full ? l->last + 1 : rest->last + 1;
  if (rest->first <= rest->last) return end;
  l->range_count--;
  memmove(rest, rest + 1, (l->range_count - l->next - l->again) * sizeof *rest);
  return end;
}

/* Looks at windows of the next ranges. */
static sql_rc take_ranges(struct laning *l, struct window *windows, size_t count) {
  sql_rc end = DIBS__SQL_OK;
  bool goes_on = true;
  for (size_t i = 0; i < count && end == DIBS__SQL_OK && goes_on && l->taken < l->c->most; i++) {
    l->cut = l->cut || windows[i].arrived_count >= ARRIVED_MAX;
    if (l->cut) return end;
    end = take_range(l, &windows[i], &goes_on);
  }
  return end;
}

static sql_rc read_ranges(struct laning *l, size_t nth, size_t count) {
  struct window windows[AT_ONCE] = {{.rows = NULL}};
  bool memory = true;
  for (size_t i = 0; i < count && memory; i++) memory = read_window(l->c->g->wire, nth + i, &windows[i]);
  sql_rc end = memory ? take_ranges(l, windows, count) : dibs__task_no_memory(l->c->g);
  for (size_t i = 0; i < count; i++) free_window(&windows[i]);
  return end;
}

static bool goes_on(const struct laning *l) {
  return !l->cut && l->taken < l->c->most && l->next < l->range_count && l->seen < LOOKED_MAX;
}

/* `first`: the answer of the first window, which came with the lanes. */
static sql_rc take_all(struct laning *l, size_t first) {
  sql_rc end = read_ranges(l, first, 1);
  for (size_t at_once = 4; end == DIBS__SQL_OK && goes_on(l); at_once = at_once * 4 < AT_ONCE ? at_once * 4 : AT_ONCE) {
    size_t count = 0;
    end = put_all(l);
    size_t nth = l->c->g->wire->put;
    for (; count < at_once && l->next + count < l->range_count && end == DIBS__SQL_OK; count++)
      end = put_window(l, &l->ranges[l->next + count]);
    if (end == DIBS__SQL_OK) end = dibs__task_go(l->c->g);
    if (end == DIBS__SQL_OK) end = read_ranges(l, nth, count);
  }
  if (end == DIBS__SQL_OK && !l->cut && (l->taken || l->next < l->range_count))
    l->c->op->from = (uint32_t)((l->taken ? l->last_taken : l->last) + 1);
  return end == DIBS__SQL_OK ? write_all(l) : end;
}

/* ---- What comes before ---- */

enum next { TAKES, AGAIN, ENDS };

static sql_rc give_up(struct laning *l) {
  claiming *c = l->c;
  c->open = l->steps->limited = false;
  c->most = c->op->most;
  dibs__sql_rollback(c->g->wire);
  return dibs__sql_dead(c->g->wire) ? DIBS__SQL_FAILED : DIBS__SQL_OK;
}

static uint32_t count_stale(const task_op *op) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < op->lane_count; i++) count += op->lanes[i].status == DIBS_STALE;
  return count;
}

static bool is_ours(const struct laning *l) {
  dibs__str topic = dibs__str_of(l->looked.topic, l->looked.topic_len);
  return dibs__str_equal(topic, l->c->op->topic);
}

static sql_rc refuse_topic(claiming *c, enum next *next) {
  size_t len = c->topic_len;
  *next = ENDS;
  c->op->op.status = DIBS_INVALID;
  snprintf(c->op->why, sizeof c->op->why, "the kind belongs to the topic \"%.*s\"", (int)(len < 100 ? len : 100),
           c->topic);
  return DIBS__SQL_OK;
}

static sql_rc enter(struct laning *l, enum next *next) {
  bool other = false;
  sql_rc end = give_up(l);
  if (end == DIBS__SQL_OK) end = dibs__lanes_enter(l->c, &other);
  if (end == DIBS__SQL_OK && other) return refuse_topic(l->c, next);
  *next = AGAIN;
  return end;
}

static sql_rc convert(struct laning *l, enum next *next) {
  bool done = false;
  sql_rc end = give_up(l);
  if (end == DIBS__SQL_OK) end = dibs__lanes_convert(l->c->g, l->c->op->kind, &done);
  *next = done ? AGAIN : ENDS;
  l->c->op->more = !done;
  return end;
}

static sql_rc promote(struct laning *l, enum next *next) {
  sql_rc end = give_up(l);
  if (end == DIBS__SQL_OK) end = dibs__claim_promote(l->c, &l->looked);
  *next = AGAIN;
  return end;
}

/* A kind with a limit: its row is locked before those of the lanes. */
static sql_rc limit(struct laning *l, enum next *next) {
  bool none = false;
  sql_rc end = give_up(l);
  if (end == DIBS__SQL_OK) end = dibs__claim_lock_limit(l->c, &none);
  l->steps->limited = !none;
  *next = none ? ENDS : AGAIN;
  return end;
}

/* The first packet was answered: is anything to be done before? */
static sql_rc prepare(struct laning *l, size_t nth, enum next *next) {
  claiming *c = l->c;
  struct steps *steps = l->steps;
  uint32_t stale = count_stale(c->op);
  bool promotes = l->looked.arrived || l->looked.is_over || l->looked.waited;
  *next = TAKES;
  if (l->looked.topic_len && !is_ours(l)) {
    c->topic_len = l->looked.topic_len;
    memcpy(c->topic, l->looked.topic, c->topic_len);
    sql_rc end = give_up(l);
    return end == DIBS__SQL_OK ? refuse_topic(c, next) : end;
  }
  if (!l->looked.topic_len || !read_lane_rows(c, nth)) return enter(l, next);
  if (count_stale(c->op) == c->op->lane_count) {
    *next = ENDS;
    return give_up(l);
  }
  if (l->looked.begins) return convert(l, next);
  if (c->op->again && !steps->repeated) {
    sql_rc end = give_up(l);
    steps->repeated = true;
    if (end == DIBS__SQL_OK) end = dibs__claim_find_repeat(c);
    *next = c->op->got_count ? ENDS : AGAIN;
    return end;
  }
  if (promotes && !steps->promoted) {
    steps->promoted = true;
    return promote(l, next);
  }
  if (l->looked.paused) {
    *next = ENDS;
    return give_up(l);
  }
  if (l->looked.running > 0 && !steps->limited) return limit(l, next);
  if (count_stale(c->op) != stale) { /* it looked at slots of others */
    *next = AGAIN;
    return give_up(l);
  }
  return DIBS__SQL_OK;
}

static sql_rc begin(struct laning *l, enum next *next) {
  claiming *c = l->c;
  struct dibs__sql_wire *w = c->g->wire;
  sql_rc end = c->open ? DIBS__SQL_OK : dibs__sql_begin(w);
  c->open = true;
  size_t nth = w->put;
  if (end == DIBS__SQL_OK) end = dibs__claim_put_lanes(c);
  if (end == DIBS__SQL_OK) end = dibs__claim_put_look(c);
  /* (Lanes that are STALE are known afterwards: then it looks again.) */
  bool first = end == DIBS__SQL_OK && l->range_count > 0;
  if (first) end = put_window(l, &l->ranges[0]);
  if (end == DIBS__SQL_OK) end = dibs__task_go(c->g);
  if (end != DIBS__SQL_OK) return end;
  dibs__claim_read_look(c, nth + 1, &l->looked);
  l->now = l->looked.now;
  end = prepare(l, nth, next);
  if (end != DIBS__SQL_OK || *next != TAKES) return end;
  return take_all(l, nth + 2);
}

static void clear(struct laning *l) {
  free(l->ranges);
  free(l->flips);
  free(l->waits);
  *l = (struct laning){.c = l->c, .steps = l->steps};
}

/* With none: when to come again. */
static sql_rc say_next(struct laning *l, bool cut) {
  claiming *c = l->c;
  task_op *op = c->op;
  struct dibs__claim_looked looked;
  if (op->got_count || op->op.status == DIBS_INVALID) return DIBS__SQL_OK;
  sql_rc end = dibs__claim_look(c, &looked);
  if (end != DIBS__SQL_OK) return end;
  bool promotes = looked.arrived || looked.is_over || looked.waited;
  op->more = op->more || cut || (l->steps->promoted && c->promoted && promotes);
  if (looked.next) op->next_ms = looked.next > looked.now ? looked.next - looked.now : DIBS__CLAIM_SOON_MS;
  return end;
}

static sql_rc refuse_inside(task_op *op) {
  op->op.status = DIBS_UNSUPPORTED;
  snprintf(op->why, sizeof op->why,
           "a claim by lane keeps other claims of its lanes waiting until it is committed: make it outside of your"
           " transaction, and end the tasks inside");
  return DIBS__SQL_OK;
}

sql_rc dibs__claim_by_lane(claiming *c) {
  struct steps steps = {.promoted = false};
  struct laning l = {.c = c, .steps = &steps};
  task_op *op = c->op;
  sql_rc end = DIBS__SQL_OK;
  enum next next = AGAIN;
  dibs__op_free_answer(&op->op);
  op->got_count = 0;
  if (c->g->wire->inside) return refuse_inside(op);
  for (uint32_t i = 0; i < op->lane_count; i++) op->lanes[i].status = DIBS_OK;
  for (int round = 0; end == DIBS__SQL_OK && next == AGAIN; round++) {
    clear(&l);
    if (round == ROUNDS)
      end = dibs__sql_fail(c->g->wire, DIBS__SQL_DEADLOCK, "the lanes change all the time");
    else
      end = find_ranges(&l) ? begin(&l, &next) : dibs__task_no_memory(c->g);
  }
  if (end == DIBS__SQL_OK) end = say_next(&l, l.cut || l.seen >= LOOKED_MAX);
  clear(&l);
  return end;
}

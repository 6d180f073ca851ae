/* SPDX-License-Identifier: MIT */
/*
 * Keys by lane (R108 to R110): the tasks of one kind by lane with one serial text, by number.
 *
 *   free              state 4, slot >= 0; from `due` on
 *   claimed by lane   state 2, slot >= 0, with the fence of the lane
 *   put aside         slot < 0: waiting (3), parked (5), claimed without lanes (2); or blocked (4): behind one of these
 *
 * A claim reads the slots from 0 on, so it meets no task that is put aside, and finds the first such task of a key by
 * the index.  It puts aside the tasks after this one.  If the first task that is put aside is blocked, nothing blocks
 * it: a claim that takes a task of this key brings some of them back, and so does a change that finishes an unclaimed
 * task.
 *
 * Locks.  A claim locks the rows of its lanes first; all that ends a claim by lane before its task is finished, and all
 * that changes a task that is put aside, locks the lane, too.  So a claim never takes a task behind another that stops
 * being claimed at this moment.  DONE, EXTEND and ADD lock no lane.
 */
#include "sql/task_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__sql_value value;
typedef struct dibs__task_transition transition;
typedef struct dibs__task_locked locked_t;

enum { BACK = 100 /* blocked tasks of a key that come back at once */ };

static bool is_one_key(const transition *a, const transition *b) {
  return a->has_slot && b->has_slot && dibs__task_slot(a) == dibs__task_slot(b) &&
         dibs__str_equal(a->serial, b->serial) && dibs__str_equal(a->kind, b->kind);
}

static bool is_finishing(const transition *t) {
  return t->changes && (1u << t->to & DIBS__TASK_FINISHED);
}

/* ---- Lanes ---- */

sql_rc dibs__task_put_lanes(struct dibs__sql_guard *g, dibs__str kind, const int64_t *slots, size_t count) {
  if (!g->wire->engine->sessions || count == 0) return DIBS__SQL_OK;
  value of = dibs__task_text(kind), *rows = malloc(count * sizeof *rows);
  if (!rows) return dibs__task_no_memory(g);
  for (size_t i = 0; i < count; i++) rows[i] = dibs__sql_number(slots[i]);
#define LANES                                                                                                          \
  "WITH r(r_slot) AS ($rows) SELECT DISTINCT (r_slot * p.lanes) >> 32 AS r_lane FROM r, (SELECT lanes FROM dibs_lane"  \
  " WHERE kind = $1 AND lane = " DIBS__LANE_TOP ") p"
  sql_rc end = dibs__task_put_rows(g,
                                   g->wire->engine->joins
                                       ? "SELECT l.lane FROM (" LANES ") q STRAIGHT_JOIN dibs_lane l" DIBS__TASK_BY_KEY
                                         " ON l.kind = $1 AND l.lane = q.r_lane"
                                         " ORDER BY l.lane@{lock}"
                                       : "SELECT l.lane FROM dibs_lane l WHERE l.kind = $1 AND l.lane@{any}" LANES
                                         "@{none} ORDER BY l.lane@{lock}",
                                   &of, 1, rows, 1, count);
  free(rows);
  return end;
}

static sql_rc put_flips(struct dibs__sql_guard *g, const uint64_t *numbers, size_t count, const char *where) {
  if (count == 0) return DIBS__SQL_OK;
  value *rows = malloc(count * sizeof *rows);
  if (!rows) return dibs__task_no_memory(g);
  for (size_t i = 0; i < count; i++) rows[i] = dibs__sql_number((int64_t)numbers[i]);
  sql_rc end = dibs__task_put_update(g, "r_nr", "slot = -1 - slot", where, NULL, 0, rows, 1, count);
  free(rows);
  return end;
}

sql_rc dibs__task_put_flips(struct dibs__sql_guard *g, const uint64_t *numbers, size_t count) {
  return put_flips(g, numbers, count, "");
}

sql_rc dibs__task_put_backs(struct dibs__sql_guard *g, const uint64_t *numbers, size_t count) {
  return put_flips(g, numbers, count, " AND coalesce(dibs_task.slot, 0) < 0 AND dibs_task.state + 0 = 4");
}

/* ---- Claims that end with an earlier one ---- */

void dibs__task_ends_later(const locked_t *locked, const transition *t) {
  if (!t->has_slot || !t->lane || !t->changes || is_finishing(t)) return;
  for (size_t i = 0; i < locked->count; i++) {
    transition *u = &locked->rows[i];
    if (u->nr <= t->nr || u->changes || u->state != DIBS__TASK_CLAIMED || u->lane != t->lane || !is_one_key(t, u))
      continue;
    dibs__task_continues(u, 0, locked->now);
    u->follows = true;
  }
}

void dibs__task_ends_late(const locked_t *locked, transition *t, int64_t due, char text[DIBS__TASK_LATE_TEXT]) {
  int len = t->owner.len < DIBS_OWNER_MAX ? (int)t->owner.len : DIBS_OWNER_MAX;
  len = snprintf(text, DIBS__TASK_LATE_TEXT, "the claim of %.*s ended without an answer", len, t->owner.p);
  t->text = dibs__str_of(text, (size_t)len);
  dibs__task_fails(t, 0, due, locked->now);
  dibs__task_ends_later(locked, t);
}

static bool ends_others(const transition *t) {
  return t->changes && t->has_slot && t->lane && t->state == DIBS__TASK_CLAIMED && !is_finishing(t) && !t->follows;
}

/* Blocked tasks may come after it, which nothing else would bring back. */
static bool frees_others(const transition *t) {
  return is_finishing(t) && t->has_slot && (t->slot < 0 || t->state != DIBS__TASK_CLAIMED);
}

static bool locks_lane(const transition *t) {
  return t->changes && t->has_slot && (t->slot < 0 || ends_others(t) || frees_others(t));
}

/* The lanes of each kind. */
static sql_rc put_all_lanes(struct dibs__sql_guard *g, const locked_t *locked) {
  sql_rc end = DIBS__SQL_OK;
  int64_t *slots = malloc(locked->count * sizeof *slots);
  if (!slots) return dibs__task_no_memory(g);
  for (size_t i = 0; i < locked->count && end == DIBS__SQL_OK; i++) {
    size_t count = 0;
    bool seen = !locks_lane(&locked->rows[i]);
    for (size_t k = 0; k < i && !seen; k++)
      seen = locks_lane(&locked->rows[k]) && dibs__str_equal(locked->rows[k].kind, locked->rows[i].kind);
    for (size_t k = i; k < locked->count && !seen; k++)
      if (locks_lane(&locked->rows[k]) && dibs__str_equal(locked->rows[k].kind, locked->rows[i].kind))
        slots[count++] = dibs__task_slot(&locked->rows[k]);
    end = dibs__task_put_lanes(g, locked->rows[i].kind, slots, count);
  }
  free(slots);
  return end;
}

static int by_number(const void *x, const void *y) {
  uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;
  return (a > b) - (a < b);
}

/* The later claims of its key, of which a user's transaction sees the latest state: it may read all of the key. */
static sql_rc put_later(struct dibs__sql_guard *g, const transition *t) {
  value values[] = {dibs__task_text(t->kind), dibs__sql_number(t->slot), dibs__sql_number((int64_t)t->nr),
                    dibs__task_text(t->serial), dibs__sql_number((int64_t)t->lane)};
#define LATER(slot, than)                                                                                              \
  "SELECT " DIBS__TASK_LOCKED " FROM dibs_task@{slot} WHERE kind = $1 AND " slot " AND " than                          \
  " AND serial = $4 AND state + 0 = 2 AND lane = $5 ORDER BY slot, nr@{lock}"
  return dibs__task_put(g,
                        dibs__task_by_range(g) ? LATER(DIBS__TASK_IN_SLOT("slot", "$2"), "(slot, nr) > ($2, $3)")
                                               : LATER("slot = $2", "nr > $3"),
                        values, 5);
}

static bool ends_with(const locked_t *locked, const transition *t) {
  for (size_t i = 0; i < locked->count; i++) {
    const transition *e = &locked->rows[i];
    if (ends_others(e) && t->state == DIBS__TASK_CLAIMED && t->nr > e->nr && t->lane == e->lane && is_one_key(e, t))
      return true;
  }
  return false;
}

/* The claims of each kind of those that end others; their lanes are locked, so nothing more is claimed. */
static sql_rc put_claims(struct dibs__sql_guard *g, const locked_t *locked) {
  sql_rc end = DIBS__SQL_OK;
  for (size_t i = 0; i < locked->count && end == DIBS__SQL_OK; i++) {
    bool seen = !ends_others(&locked->rows[i]);
    for (size_t k = 0; k < i && !seen; k++)
      seen = ends_others(&locked->rows[k]) && dibs__str_equal(locked->rows[k].kind, locked->rows[i].kind);
    value kind = dibs__task_text(locked->rows[i].kind);
    if (!seen)
      end = dibs__task_put(g,
                           "SELECT " DIBS__TASK_LOCKED " FROM dibs_task@{busy} WHERE kind = $1 AND state = 2"
                           " AND state <> 1@{zero} AND coalesce(slot, -1) >= 0 AND lane IS NOT NULL",
                           &kind, 1);
  }
  return end;
}

/* Not by their key, of which many more may be free; and without a lock on those of other keys. */
static sql_rc lock_later(struct dibs__sql_guard *g, const locked_t *locked, locked_t *later) {
  locked_t all = {.count = 0};
  size_t first = g->wire->put, count = 0;
  sql_rc end = put_claims(g, locked);
  size_t answers = g->wire->put - first;
  if (end == DIBS__SQL_OK) end = dibs__task_go(g);
  if (end != DIBS__SQL_OK) return end;
  if (!dibs__task_read_all_locked(g->wire, first, answers, &all)) return dibs__task_no_memory(g);
  uint64_t *numbers = malloc((all.count + 1) * sizeof *numbers);
  for (size_t i = 0; i < all.count && numbers; i++)
    if (ends_with(locked, &all.rows[i]) && !dibs__task_locked_find(locked, all.rows[i].nr))
      numbers[count++] = all.rows[i].nr;
  dibs__task_locked_free(&all);
  if (!numbers) return dibs__task_no_memory(g);
  if (count > 1) qsort(numbers, count, sizeof *numbers, by_number);
  size_t nth = g->wire->put;
  if (count) end = dibs__task_put_lock(g, numbers, count, false);
  if (count && end == DIBS__SQL_OK) end = dibs__task_go(g);
  free(numbers);
  if (count && end == DIBS__SQL_OK && !dibs__task_read_locked(g->wire, nth, later)) end = dibs__task_no_memory(g);
  return end;
}

static sql_rc lock_later_inside(struct dibs__sql_guard *g, const locked_t *locked, locked_t *later) {
  size_t first = g->wire->put;
  sql_rc end = DIBS__SQL_OK;
  for (size_t i = 0; i < locked->count && end == DIBS__SQL_OK; i++)
    if (ends_others(&locked->rows[i])) end = put_later(g, &locked->rows[i]);
  size_t answers = g->wire->put - first;
  if (end == DIBS__SQL_OK) end = dibs__task_go(g);
  if (end != DIBS__SQL_OK) return end;
  return dibs__task_read_all_locked(g->wire, first, answers, later) ? end : dibs__task_no_memory(g);
}

sql_rc dibs__task_key_later(struct dibs__sql_guard *g, const locked_t *locked, locked_t *later) {
  bool any = false;
  for (size_t i = 0; i < locked->count; i++) any = any || locks_lane(&locked->rows[i]);
  if (!any) return DIBS__SQL_OK;
  sql_rc end = put_all_lanes(g, locked);
  if (end == DIBS__SQL_OK) end = g->wire->inside ? lock_later_inside(g, locked, later) : lock_later(g, locked, later);
  for (size_t i = 0; i < later->count && end == DIBS__SQL_OK; i++) {
    transition *t = &later->rows[i];
    if (dibs__task_locked_find(locked, t->nr) || (i && t->nr == t[-1].nr) || !ends_with(locked, t)) continue;
    dibs__task_continues(t, 0, later->now);
    t->follows = true;
  }
  return end;
}

/* ---- DONE before an earlier one ---- */

/* Those of a key one behind the other, by number. */
static int by_key(const void *x, const void *y) {
  const transition *a = *(transition *const *)x, *b = *(transition *const *)y;
  if (a->slot != b->slot) return a->slot < b->slot ? -1 : 1;
  if (!dibs__str_equal(a->kind, b->kind)) return dibs__str_before(a->kind, b->kind) ? -1 : 1;
  if (!dibs__str_equal(a->serial, b->serial)) return dibs__str_before(a->serial, b->serial) ? -1 : 1;
  return (a->nr > b->nr) - (a->nr < b->nr);
}

struct run {
  transition **first; /* of one key */
  size_t count;
};

/* Which of them are by lane, as runs of one key; *runs and *all are malloc'd.  false: no memory. */
static bool find_runs(const locked_t *locked, transition ***all, struct run **runs, size_t *count) {
  size_t n = 0;
  *count = 0;
  *all = malloc((locked->count + 1) * sizeof **all);
  *runs = malloc((locked->count + 1) * sizeof **runs);
  if (!*all || !*runs) return false;
  for (size_t i = 0; i < locked->count; i++)
    if (locked->rows[i].has_slot && locked->rows[i].lane) (*all)[n++] = &locked->rows[i];
  if (n > 1) qsort(*all, n, sizeof **all, by_key);
  for (size_t i = 0; i < n; i++) {
    if (i == 0 || !is_one_key((*all)[i - 1], (*all)[i])) (*runs)[(*count)++] = (struct run){&(*all)[i], 0};
    (*runs)[*count - 1].count++;
  }
  return true;
}

/* The unfinished ones of a key up to a number. */
#define BY_RANGE(slot, nr, serial)                                                                                     \
  " FROM dibs_task WHERE kind = $1 AND " DIBS__TASK_IN_SLOT("slot", slot) " AND (slot, nr) <= (" slot ", " nr ")"      \
                                                                          " AND serial = " serial
#define BY_NUMBER(slot, nr, serial)                                                                                    \
  " FROM dibs_task@{slot} WHERE kind = $1 AND slot = " slot " AND nr <= " nr " AND serial = " serial

/* How many unfinished ones each run has up to its last number. */
static sql_rc put_counts(struct dibs__sql_guard *g, const struct run *runs, size_t count) {
  value *rows = malloc(4 * count * sizeof *rows);
  if (!rows) return dibs__task_no_memory(g);
  for (size_t i = 0; i < count; i++) {
    const transition *last = runs[i].first[runs[i].count - 1];
    rows[4 * i] = dibs__sql_number((int64_t)i);
    rows[4 * i + 1] = dibs__sql_number(last->slot);
    rows[4 * i + 2] = dibs__sql_number((int64_t)last->nr);
    rows[4 * i + 3] = dibs__task_text(last->serial);
  }
  value kind = dibs__task_text(runs[0].first[0]->kind);
#define COUNTS(count)                                                                                                  \
  "WITH r(i, r_slot, r_nr, r_serial) AS ($rows) SELECT i, " count("r_slot") " + " count(                               \
      "(-1 - r_slot)") ", @{sees_latest} FROM r"
/* (Limited, because only rows that are ordered are found by the index for certain.) */
#define IN_ORDER(slot)                                                                                                 \
  "(SELECT count(*) FROM (SELECT 1" BY_RANGE(slot, "r_nr", "r_serial") " ORDER BY slot, nr LIMIT 1001) q)"
#define AT_ONCE(slot) "(SELECT count(*)" BY_NUMBER(slot, "r_nr", "r_serial") "@{latest})"
  sql_rc end =
      dibs__task_put_rows(g, dibs__task_by_range(g) ? COUNTS(IN_ORDER) : COUNTS(AT_ONCE), &kind, 1, rows, 4, count);
  free(rows);
  return end;
}

static sql_rc put_run(struct dibs__sql_guard *g, const struct run *run) {
  const transition *last = run->first[run->count - 1];
  value values[] = {dibs__task_text(last->kind), dibs__sql_number(last->slot), dibs__sql_number((int64_t)last->nr),
                    dibs__task_text(last->serial), dibs__sql_number((int64_t)run->count + 1)};
#define FIRST(rows, slot, name) "SELECT nr FROM (SELECT nr" rows(slot, "$3", "$4") " ORDER BY slot, nr LIMIT $5) " name
#define FIRSTS(rows) FIRST(rows, "$2", "a") " UNION ALL " FIRST(rows, "(-1 - $2)", "b")
  return dibs__task_put(g, dibs__task_by_range(g) ? FIRSTS(BY_RANGE) : FIRSTS(BY_NUMBER), values, 5);
}

/* The smallest number in the answer that is not locked here. */
static void read_run(const struct dibs__sql_wire *w, size_t nth, const locked_t *locked, const struct run *run) {
  uint64_t before = 0;
  for (size_t row = 0; row < w->engine->rows(w, nth); row++) {
    uint64_t nr = (uint64_t)dibs__sql_cell_number(w, nth, row, 0);
    if (!dibs__task_locked_find(locked, nr) && (before == 0 || nr < before)) before = nr;
  }
  for (size_t i = 0; i < run->count; i++) run->first[i]->before = before;
}

/* All of `runs` are of one kind. */
static sql_rc look_before(struct dibs__sql_guard *g, locked_t *locked, const struct run *runs, size_t count) {
  struct dibs__sql_wire *w = g->wire;
  size_t nth = w->put, wrong = 0;
  sql_rc end = put_counts(g, runs, count);
  if (end == DIBS__SQL_OK) end = dibs__task_go(g);
  if (end != DIBS__SQL_OK) return end;
  const struct run **others = malloc((count + 1) * sizeof(struct run *));
  if (!others) return dibs__task_no_memory(g);
  for (size_t row = 0; row < w->engine->rows(w, nth); row++) {
    size_t i = (size_t)dibs__sql_cell_number(w, nth, row, 0);
    locked->sees_latest = dibs__sql_cell_number(w, nth, row, 2) != 0;
    if (i < count && dibs__sql_cell_number(w, nth, row, 1) != (int64_t)runs[i].count) others[wrong++] = &runs[i];
  }
  nth = w->put;
  for (size_t i = 0; i < wrong && end == DIBS__SQL_OK; i++) end = put_run(g, others[i]);
  if (end == DIBS__SQL_OK && wrong) end = dibs__task_go(g);
  for (size_t i = 0; i < wrong && end == DIBS__SQL_OK; i++) read_run(w, nth + i, locked, others[i]);
  free(others);
  return end;
}

sql_rc dibs__task_key_before(struct dibs__sql_guard *g, locked_t *locked) {
  transition **all = NULL;
  struct run *runs = NULL;
  size_t count = 0;
  sql_rc end = find_runs(locked, &all, &runs, &count) ? DIBS__SQL_OK : dibs__task_no_memory(g);
  locked->sees_latest = true;
  for (size_t from = 0, to; from < count && end == DIBS__SQL_OK; from = to) {
    for (to = from + 1; to < count; to++)
      if (!dibs__str_equal(runs[to].first[0]->kind, runs[from].first[0]->kind)) break;
    end = look_before(g, locked, runs + from, to - from);
  }
  free(all);
  free(runs);
  return end;
}

bool dibs__task_too_early(const locked_t *locked, const transition *t) {
  if (!t->has_slot || !t->lane) return false;
  if (t->before && t->before < t->nr) return true;
  for (size_t i = 0; i < locked->count && locked->rows[i].nr < t->nr; i++)
    if (is_one_key(&locked->rows[i], t) && !is_finishing(&locked->rows[i])) return true;
  return false;
}

/* ---- Back ---- */

const char *dibs__task_asides(const struct dibs__sql_guard *g, const char *lock, char *text, size_t size) {
  snprintf(text, size,
           "SELECT nr, state FROM dibs_task@{slot} WHERE kind = $1 AND %s AND serial = $3 ORDER BY slot, nr LIMIT $4%s",
           dibs__task_by_range(g) ? DIBS__TASK_IN_SLOT("slot", "$2") : "slot = $2", lock);
  return text;
}

/* Each statement answers the first ones of a key that are put aside, by number. */
static sql_rc put_asides(struct dibs__sql_guard *g, const locked_t *locked) {
  sql_rc end = DIBS__SQL_OK;
  char text[400];
  for (size_t i = 0; i < locked->count && end == DIBS__SQL_OK; i++) {
    const transition *t = &locked->rows[i];
    value values[] = {dibs__task_text(t->kind), dibs__sql_number(-1 - dibs__task_slot(t)), dibs__task_text(t->serial),
                      dibs__sql_number(BACK)};
    if (frees_others(t)) end = dibs__task_put(g, dibs__task_asides(g, "@{lock}", text, sizeof text), values, 4);
  }
  return end;
}

sql_rc dibs__task_key_back(struct dibs__sql_guard *g, const locked_t *locked) {
  struct dibs__sql_wire *w = g->wire;
  size_t first = w->put, count = 0, size = 0, left = 0;
  sql_rc end = put_asides(g, locked);
  size_t answers = w->put - first;
  if (end != DIBS__SQL_OK || answers == 0) return end;
  end = dibs__task_go(g);
  for (size_t i = first; i < first + answers && end == DIBS__SQL_OK; i++) size += w->engine->rows(w, i);
  if (end != DIBS__SQL_OK || size == 0) return end;
  uint64_t *numbers = malloc(size * sizeof *numbers);
  if (!numbers) return dibs__task_no_memory(g);
  for (size_t i = first; i < first + answers; i++)
    for (size_t row = 0; row < w->engine->rows(w, i); row++) {
      if (dibs__sql_cell_number(w, i, row, 1) != DIBS__TASK_BLOCKED) break;
      numbers[count++] = (uint64_t)dibs__sql_cell_number(w, i, row, 0);
    }
  /* Two of one key may have finished. */
  if (count > 1) qsort(numbers, count, sizeof *numbers, by_number);
  for (size_t i = 0; i < count; i++)
    if (i == 0 || numbers[i] != numbers[i - 1]) numbers[left++] = numbers[i];
  end = dibs__task_put_flips(g, numbers, left);
  free(numbers);
  if (left) g->woke = true;
  return end;
}

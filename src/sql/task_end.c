/* SPDX-License-Identifier: MIT */
/*
 * Extending and ending claims.
 *
 * PostgreSQL does the common cases by one statement: extending without phases, and DONE of tasks without a serial text,
 * whose rows it moves.  All else locks the tasks first, decides here, and writes (task_write.c).
 *
 * Each statement leaves out what another session has locked, so that a slow client delays its own tasks alone: those
 * are then tried one by one, for a moment, or longer if there is no other item.  Those still locked then are
 * UNAVAILABLE.
 *
 * People may insert a task with the number of a finished one.  The statement for DONE fails at it, and the tasks are
 * locked: task_write.c replaces the finished one.  (A clause in that statement would cost each end.)
 */
#include "sql/task_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__sql_value value;
typedef struct dibs__task_op task_op;
typedef struct dibs__task_item item;
typedef struct dibs__task_transition transition;
typedef struct dibs__task_locked locked_t;

enum {
  HELD_MS = 100, /* how long all items of an operation wait for those whose rows others hold */
  HELD_NAP_MS = 5
};

/* Items that are not answered yet, by number. */
struct set {
  item **items;
  size_t count;
};

static int by_nr(const void *x, const void *y) {
  const item *a = *(item *const *)x, *b = *(item *const *)y;
  if (a->nr != b->nr) return a->nr < b->nr ? -1 : 1;
  return (a > b) - (a < b); /* of two for one task the first comes first */
}

static bool item_valid(const task_op *op, const item *x) {
  if (x->phase.len > DIBS_NAME_MAX || x->nr > INT64_MAX || x->fence.v > INT64_MAX) return false;
  if (op->op.verb == DIBS__TASK_EXTEND) return true;
  return x->verdict <= DIBS__TASK_END_GIVE && x->delay_ms >= 0 && x->delay_ms <= DIBS__TASK_MS_MAX;
}

static void collect_items(task_op *op, struct set *set) {
  set->count = 0;
  for (uint32_t i = 0; i < op->count; i++) {
    item *x = &op->items[i];
    if (x->status == DIBS_UNKNOWN && !item_valid(op, x)) x->status = DIBS_INVALID;
    if (x->status == DIBS_UNKNOWN) set->items[set->count++] = x;
  }
  if (set->count > 1) qsort(set->items, set->count, sizeof(item *), by_nr);
}

static void keep_unanswered(struct set *set) {
  size_t left = 0;
  for (size_t i = 0; i < set->count; i++)
    if (set->items[i]->status == DIBS_UNKNOWN) set->items[left++] = set->items[i];
  set->count = left;
}

/* Of two items for one task only the first goes with the others. */
static item *item_of(const struct set *set, uint64_t nr) {
  size_t from = 0, to = set->count;
  while (from < to) {
    size_t middle = (from + to) / 2;
    if (set->items[middle]->nr < nr)
      from = middle + 1;
    else
      to = middle;
  }
  return from < set->count && set->items[from]->nr == nr ? set->items[from] : NULL;
}

/* ---- One statement ---- */

/* The locked row of each claim, or NULL.  (+ 0: so that no partial index fits.) */
#define ROWS_OF_CLAIMS(also)                                                                                           \
  "SELECT (SELECT t.@{row} FROM dibs_task t WHERE t.nr = r_nr AND t.fence = r_fence AND t.state + 0 = 2" also          \
  "@{skip}) FROM r"

/* `of`: the rows that are done, as g; `text`: their results. */
#define DONE_TOGETHER(columns, of, text)                                                                               \
  "WITH r(" columns ") AS ($rows), gone AS (DELETE FROM dibs_task WHERE @{row}@{any}" ROWS_OF_CLAIMS(                  \
      " AND t.serial IS NULL") "@{none} RETURNING *),"                                                                 \
                               " kept AS (INSERT INTO dibs_task_done (nr, kind, state, until, fence, ended, verdict, " \
                               "attempts, fails, tries,"                                                               \
                               " priority, made, at, began, phase, uniq, owner, text, payload)"                        \
                               " SELECT g.nr, g.kind, 6, n.t + coalesce(k.keep, $1), g.fence, g.fence, 0, "            \
                               "g.attempts, g.fails, g.tries,"                                                         \
                               " g.priority, g.made, n.t, g.began, g.phase, g.uniq, g.owner, " text ", g.payload"      \
                               " FROM (SELECT @{now} AS t OFFSET 0) n, " of                                            \
                               " LEFT JOIN dibs_task_kind k ON k.kind = g.kind"                                        \
                               " WHERE coalesce(k.keep, $1) > 0),"                                                     \
                               " forgot AS (DELETE FROM dibs_task_error e USING gone g, dibs_task_kind k WHERE e.nr "  \
                               "= g.nr AND g.fails > 0"                                                                \
                               " AND k.kind = g.kind AND k.keep = 0)"                                                  \
                               " SELECT nr, 0 FROM gone"

static const char done_with_results[] =
    DONE_TOGETHER("r_nr, r_fence, r_text", "r JOIN gone g ON g.nr = r_nr", "r_text");
/* Without that join a batch of 1000 takes a tenth less. */
static const char done_without[] = DONE_TOGETHER("r_nr, r_fence", "gone g", "NULL");

static bool all_done(const struct set *set) {
  for (size_t i = 0; i < set->count; i++)
    if (set->items[i]->verdict != DIBS__TASK_END_DONE) return false;
  return true;
}

static bool has_texts(const struct set *set) {
  for (size_t i = 0; i < set->count; i++)
    if (set->items[i]->text.len) return true;
  return false;
}

static bool no_phases(const struct set *set) {
  for (size_t i = 0; i < set->count; i++)
    if (set->items[i]->phase.len) return false;
  return true;
}

/* One of two for the same task would be answered as the other. */
static bool has_twins(const struct set *set) {
  for (size_t i = 1; i < set->count; i++)
    if (set->items[i]->nr == set->items[i - 1]->nr) return true;
  return false;
}

static value *make_rows(const struct set *set, bool texts, size_t width) {
  value *rows = malloc(set->count * width * sizeof *rows);
  for (size_t i = 0; rows && i < set->count; i++) {
    const item *x = set->items[i];
    uint32_t over = x->text.len > DIBS__TASK_TEXT_MAX ? x->text.len - DIBS__TASK_TEXT_MAX : 0;
    rows[i * width] = dibs__sql_number((int64_t)x->nr);
    rows[i * width + 1] = dibs__sql_number((int64_t)x->fence.v);
    if (texts) rows[i * width + 2] = dibs__sql_bytes(over ? x->text.p + over : x->text.p, x->text.len - over);
  }
  return rows;
}

/* Answers what matched. */
static sql_rc run_single(struct dibs__sql_guard *g, const task_op *op, struct set *set) {
  struct dibs__sql_wire *w = g->wire;
  bool extends = op->op.verb == DIBS__TASK_EXTEND;
  bool texts = !extends && has_texts(set);
  size_t width = texts ? 3 : 2;
  value *rows = make_rows(set, texts, width);
  value number = dibs__sql_number(extends ? op->timeout_ms : DIBS__TASK_KEEP_MS);
  if (!rows) return dibs__task_no_memory(g);
  sql_rc end =
      extends ? dibs__task_put_rows(
                    g,
                    "UPDATE dibs_task SET due = (SELECT @{now}) + $1, at = (SELECT @{now}) WHERE @{row}@{any}"
                    "WITH r(r_nr, r_fence) AS ($rows) " ROWS_OF_CLAIMS("") "@{none} RETURNING nr, due",
                    &number, 1, rows, width, set->count)
              : dibs__task_put_rows(g, texts ? done_with_results : done_without, &number, 1, rows, width, set->count);
  free(rows);
  if (end == DIBS__SQL_OK) end = w->engine->go(w, true);
  if (end != DIBS__SQL_OK) return end;
  for (size_t row = 0; row < w->engine->rows(w, 0); row++) {
    item *x = item_of(set, (uint64_t)dibs__sql_cell_number(w, 0, row, 0));
    if (!x) continue;
    x->status = DIBS_OK;
    x->due_ms = dibs__sql_cell_number(w, 0, row, 1);
  }
  g->commits++;
  keep_unanswered(set);
  return end;
}

static bool is_single(const struct dibs__sql_guard *g, const task_op *op, const struct set *set) {
  const struct dibs__sql_engine *e = g->wire->engine;
  if (!e->update_returning || g->wire->inside || set->count == 0 || has_twins(set)) return false;
  return no_phases(set) && (op->op.verb == DIBS__TASK_EXTEND || (e->sessions && all_done(set)));
}

/* ---- Decisions ---- */

static dibs__status end_task(item *x, transition *t, const locked_t *locked) {
  int64_t now = locked->now;
  bool repeated = t->has_ended && (uint64_t)t->ended == x->fence.v && t->verdict == x->verdict;
  bool ends = !t->changes && t->state == DIBS__TASK_CLAIMED && t->fence == x->fence.v;
  x->repeated = repeated && !ends;
  if (!ends) return repeated ? DIBS_OK : DIBS_STALE;
  if (x->verdict == DIBS__TASK_END_DONE && dibs__task_too_early(locked, t))
    return locked->sees_latest ? DIBS_STALE : DIBS_UNAVAILABLE;
  t->has_ended = true;
  t->ended = (int64_t)x->fence.v;
  t->verdict = x->verdict;
  t->text = x->text;
  if (x->phase.len) t->phase = x->phase;
  switch ((enum dibs__task_verdict)x->verdict) {
  case DIBS__TASK_END_DONE:
    dibs__task_finishes(t, DIBS__TASK_DONE, now);
    break;
  case DIBS__TASK_END_NEXT:
    dibs__task_continues(t, 0, now);
    break;
  case DIBS__TASK_END_WAIT:
    dibs__task_continues(t, x->delay_ms, now);
    break;
  case DIBS__TASK_END_FAIL:
    dibs__task_fails(t, x->tries, now + x->delay_ms, now);
    break;
  case DIBS__TASK_END_DEAD:
    dibs__task_gives_up(t, now);
    break;
  case DIBS__TASK_END_GIVE:
    if (t->attempts > 0) t->attempts--;
    dibs__task_continues(t, 0, now);
    break;
  }
  dibs__task_ends_later(locked, t);
  x->due_ms = t->at_ms;
  return DIBS_OK;
}

static dibs__status extend_task(item *x, transition *t, int64_t until) {
  if (t->state != DIBS__TASK_CLAIMED || t->fence != x->fence.v) return DIBS_STALE;
  t->changes = true;
  t->to = DIBS__TASK_CLAIMED;
  t->at_ms = until;
  if (x->phase.len) t->phase = x->phase;
  x->due_ms = until;
  return DIBS_OK;
}

/* ---- Locked ---- */

/* The statement changes no other column of the claim. */
static sql_rc write_extended(struct dibs__sql_guard *g, const locked_t *locked, int64_t until) {
  value *rows = malloc(2 * locked->count * sizeof *rows),
        times[] = {dibs__sql_number(until), dibs__sql_number(locked->now)};
  size_t count = 0;
  if (!rows) return dibs__task_no_memory(g);
  for (size_t i = 0; i < locked->count; i++) {
    if (!locked->rows[i].changes) continue;
    rows[2 * count] = dibs__sql_number((int64_t)locked->rows[i].nr);
    rows[2 * count++ + 1] = dibs__task_text(locked->rows[i].phase);
  }
  sql_rc end = DIBS__SQL_OK;
  if (count)
    end = dibs__task_put_update(g, "r_nr, r_phase", "due = $1, at = $2, phase = r_phase", "", times, 2, rows, 2, count);
  free(rows);
  return end == DIBS__SQL_OK ? dibs__task_commit(g) : end;
}

/* As they were named: of two tasks of one key it matters. */
static int by_place(const void *x, const void *y) {
  const item *a = *(item *const *)x, *b = *(item *const *)y;
  return (a > b) - (a < b);
}

/* DONE of a task, before which an item comes whose row could not be locked: this one decides. */
static bool is_behind_held(const struct set *set, const item *x, const transition *t) {
  return x->verdict == DIBS__TASK_END_DONE && t->before && t->before < t->nr && item_of(set, t->before) != NULL;
}

static void say_too_early(task_op *op, uint64_t nr) {
  snprintf(op->why, sizeof op->why,
           "task %" PRIu64 ": your transaction may not see that earlier tasks of its key were ended; begin it with READ"
           " COMMITTED, or end the task outside of it",
           nr);
}

static sql_rc decide_all(struct dibs__sql_guard *g, task_op *op, const struct set *set, const locked_t *locked) {
  item **items = malloc((set->count + 1) * sizeof(item *));
  if (!items) return dibs__task_no_memory(g);
  if (set->count) memcpy(items, set->items, set->count * sizeof(item *));
  if (set->count > 1 && op->op.verb == DIBS__TASK_END) qsort(items, set->count, sizeof(item *), by_place);
  for (size_t i = 0; i < set->count; i++) {
    item *x = items[i];
    transition *t = dibs__task_locked_find(locked, x->nr);
    if (!t || (op->op.verb == DIBS__TASK_END && is_behind_held(set, x, t))) continue;
    x->status =
        op->op.verb == DIBS__TASK_END ? end_task(x, t, locked) : extend_task(x, t, locked->now + op->timeout_ms);
    if (x->status == DIBS_UNAVAILABLE) say_too_early(op, x->nr);
  }
  free(items);
  return DIBS__SQL_OK;
}

/* Does the operation look at earlier tasks of keys by lane? */
static bool has_done(const task_op *op, const struct set *set) {
  for (size_t i = 0; i < set->count && op->op.verb == DIBS__TASK_END; i++)
    if (set->items[i]->verdict == DIBS__TASK_END_DONE) return true;
  return false;
}

static sql_rc lock_items(struct dibs__sql_guard *g, const struct set *set, bool skip, locked_t *locked) {
  struct dibs__sql_wire *w = g->wire;
  uint64_t *numbers = malloc(set->count * sizeof *numbers);
  if (!numbers) return dibs__task_no_memory(g);
  size_t count = 0; /* (a join would have a row for each of two equal numbers) */
  for (size_t i = 0; i < set->count; i++)
    if (i == 0 || set->items[i]->nr != set->items[i - 1]->nr) numbers[count++] = set->items[i]->nr;
  sql_rc end = dibs__sql_begin(w);
  size_t nth = w->put;
  if (end == DIBS__SQL_OK) end = dibs__task_put_lock(g, numbers, count, skip);
  free(numbers);
  if (end == DIBS__SQL_OK) end = dibs__task_go(g);
  if (end == DIBS__SQL_OK && !dibs__task_read_locked(w, nth, locked)) end = dibs__task_no_memory(g);
  return end;
}

/* After a failure nothing was done, and no item is answered. */
static void unanswer(struct set *set) {
  for (size_t i = 0; i < set->count; i++) {
    set->items[i]->status = DIBS_UNKNOWN;
    set->items[i]->due_ms = 0;
  }
}

static sql_rc run_locked(struct dibs__sql_guard *g, task_op *op, struct set *set, bool skip) {
  locked_t locked = {.count = 0};
  sql_rc end = lock_items(g, set, skip, &locked);
  if (end == DIBS__SQL_OK && has_done(op, set)) end = dibs__task_key_before(g, &locked);
  if (end == DIBS__SQL_OK) end = decide_all(g, op, set, &locked);
  if (end == DIBS__SQL_OK) {
    end = op->op.verb == DIBS__TASK_END ? dibs__task_write(g, &locked)
                                        : write_extended(g, &locked, locked.now + op->timeout_ms);
    if (end != DIBS__SQL_OK) unanswer(set);
  }
  dibs__task_locked_free(&locked);
  if (end == DIBS__SQL_OK) keep_unanswered(set);
  return end;
}

/* ---- Those that were not locked ---- */

/* The rows of both tables, without a lock: number, fence, state, ended, verdict. */
static sql_rc put_lookup(struct dibs__sql_guard *g, const struct set *set) {
  char text[DIBS__TASK_TEXT / 2];
  value *rows = malloc(set->count * sizeof *rows);
  if (!rows) return dibs__task_no_memory(g);
  for (size_t i = 0; i < set->count; i++) rows[i] = dibs__sql_number((int64_t)set->items[i]->nr);
  snprintf(text, sizeof text, "SELECT nr, fence, state, ended, verdict %s", dibs__task_from_numbers(g));
  sql_rc end = dibs__task_put_rows(g, text, NULL, 0, rows, 1, set->count);
  if (end == DIBS__SQL_OK)
    end = dibs__task_put_rows(g,
                              "WITH r(r_nr) AS ($rows) SELECT nr, fence, state, ended, verdict FROM r"
                              " JOIN dibs_task_done ON nr = r_nr WHERE until IS NULL OR until > (SELECT @{start})",
                              NULL, 0, rows, 1, set->count);
  free(rows);
  return end == DIBS__SQL_OK ? dibs__task_go(g) : end;
}

/* An unfinished task counts, and not a finished one with the same number: so those are read first.  UNAVAILABLE: its
 * row is locked by another session. */
static void read_lookup(const struct dibs__sql_wire *w, const task_op *op, struct set *set, size_t nth) {
  for (size_t row = 0; row < w->engine->rows(w, nth); row++) {
    uint64_t nr = (uint64_t)dibs__sql_cell_number(w, nth, row, 0);
    int64_t fence = dibs__sql_cell_number(w, nth, row, 1), state = dibs__sql_cell_number(w, nth, row, 2);
    bool has_ended = !dibs__task_cell_is_null(w, nth, row, 3) && !dibs__task_cell_is_null(w, nth, row, 4) &&
                     op->op.verb == DIBS__TASK_END;
    int64_t ended = dibs__sql_cell_number(w, nth, row, 3), verdict = dibs__sql_cell_number(w, nth, row, 4);
    for (size_t i = 0; i < set->count; i++) {
      item *x = set->items[i];
      if (x->nr != nr || x->status != DIBS_UNKNOWN) continue;
      x->repeated = has_ended && ended == (int64_t)x->fence.v && verdict == x->verdict;
      if (x->repeated)
        x->status = DIBS_OK;
      else if (state == DIBS__TASK_CLAIMED && fence == (int64_t)x->fence.v)
        x->status = DIBS_UNAVAILABLE;
      else
        x->status = DIBS_STALE;
    }
  }
}

static sql_rc look_up(struct dibs__sql_guard *g, const task_op *op, struct set *set) {
  sql_rc end = put_lookup(g, set);
  if (end != DIBS__SQL_OK) return end;
  read_lookup(g->wire, op, set, 0);
  read_lookup(g->wire, op, set, 1);
  for (size_t i = 0; i < set->count; i++) {
    item *x = set->items[i];
    x->status = x->status == DIBS_UNKNOWN ? DIBS_NOT_FOUND : x->status == DIBS_UNAVAILABLE ? DIBS_UNKNOWN : x->status;
  }
  keep_unanswered(set);
  return end;
}

/* Until when items wait for their rows. */
static dibs__tick patience(const struct dibs__sql_wire *w, const task_op *op) {
  dibs__tick now = dibs__tick_now();
  int64_t left_ms = dibs__tick_left_ms(now, w->by) / 2;
  return dibs__tick_add_ms(now, op->count > 1 && left_ms > HELD_MS ? HELD_MS : left_ms);
}

static void answer_alone(struct dibs__sql_guard *g, task_op *op, item *x, bool held) {
  const struct dibs__sql_wire *w = g->wire;
  x->status = held ? DIBS_UNAVAILABLE : dibs__sql_explain(w, "end a claim in", g->store, g->result);
  snprintf(op->why, sizeof op->why, "task %" PRIu64 ": %.160s", x->nr,
           held ? "another session has locked its row" : w->message);
}

/* One item, until its row can be locked.  (Inside a user's transaction it waits for the lock itself.) */
static sql_rc run_alone(struct dibs__sql_guard *g, task_op *op, item *x, dibs__tick by) {
  struct dibs__sql_wire *w = g->wire;
  for (;;) {
    struct set one = {&x, 1};
    sql_rc end = run_locked(g, op, &one, !w->inside);
    if (end == DIBS__SQL_OK && one.count > 0) end = look_up(g, op, &one);
    bool held = end == DIBS__SQL_OK && one.count > 0;
    if (end == DIBS__SQL_OK && !held) return end;
    if (!held && (dibs__sql_dead(w) || w->unsure)) return end;
    dibs__sql_rollback(w);
    if (dibs__sql_dead(w) || (!held && w->trouble == DIBS__SQL_NO_SPACE)) return DIBS__SQL_FAILED;
    bool again = held || (!w->inside && (w->trouble == DIBS__SQL_LOCKED || w->trouble == DIBS__SQL_DEADLOCK));
    if (again && dibs__tick_before(dibs__tick_now(), by)) {
      dibs__nap_ms(HELD_NAP_MS);
      continue;
    }
    answer_alone(g, op, x, held);
    return DIBS__SQL_OK;
  }
}

static sql_rc run_items(struct dibs__sql_guard *g, task_op *op, struct set *set) {
  struct dibs__sql_wire *w = g->wire;
  sql_rc end = DIBS__SQL_OK;
  collect_items(op, set);
  if (is_single(g, op, set)) {
    end = run_single(g, op, set);
    if (end != DIBS__SQL_OK && (dibs__sql_dead(w) || w->unsure || w->trouble == DIBS__SQL_NO_SPACE)) return end;
    if (end != DIBS__SQL_OK) dibs__sql_rollback(w);
    if (dibs__sql_dead(w)) return DIBS__SQL_FAILED;
  }
  end = set->count ? run_locked(g, op, set, true) : DIBS__SQL_OK;
  if (end != DIBS__SQL_OK && !dibs__sql_dead(w) && !w->unsure && dibs__task_is_one(w->trouble)) {
    dibs__sql_rollback(w); /* the engine refuses a text: which one? */
    end = dibs__sql_dead(w) ? DIBS__SQL_FAILED : DIBS__SQL_OK;
  }
  if (end == DIBS__SQL_OK && set->count) end = look_up(g, op, set);
  dibs__tick by = patience(w, op);
  for (size_t i = 0; i < set->count && end == DIBS__SQL_OK; i++) end = run_alone(g, op, set->items[i], by);
  if (end == DIBS__SQL_OK) op->op.status = DIBS_OK;
  return end;
}

static sql_rc end_or_extend(struct dibs__sql_guard *g, task_op *op) {
  struct set set = {.items = malloc((op->count + 1) * sizeof(item *))};
  if (!set.items) return dibs__task_no_memory(g);
  sql_rc end = run_items(g, op, &set);
  free(set.items);
  return end;
}

sql_rc dibs__task_extend(struct dibs__sql_guard *g, task_op *op) {
  return end_or_extend(g, op);
}

sql_rc dibs__task_end(struct dibs__sql_guard *g, task_op *op) {
  return end_or_extend(g, op);
}

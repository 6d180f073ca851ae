/* SPDX-License-Identifier: MIT */
/*
 * Changes by hand, the settings of a kind, sweeping.
 *
 * A change first finds the numbers of the tasks, without a lock; then it locks them, decides again, and writes, all in
 * one transaction.  So it may change fewer than it found (R78).
 *
 * A finished task that is retried is inserted again.  It is left out if an unfinished one has its unique text.  With a
 * serial text it takes the text over from a later task that has not begun, which is blocked then; else it is blocked.
 * In a kind by lane it is free.
 */
#include "base/slot.h"
#include "sql/task_claim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__sql_value value;
typedef struct dibs__task_op task_op;
typedef struct dibs__task_transition transition;
typedef struct dibs__task_locked locked_t;

#define BIT(state) (1u << (state))

/* The states that the change applies to. */
static uint32_t states_of(const task_op *op) {
  static const uint32_t states[] = {[DIBS__TASK_RETRY] = BIT(DIBS__TASK_PARKED) | BIT(DIBS__TASK_WAITING) |
                                                         BIT(DIBS__TASK_DEAD) | BIT(DIBS__TASK_CANCELLED),
                                    [DIBS__TASK_CANCEL] = DIBS__TASK_UNFINISHED,
                                    [DIBS__TASK_PURGE] = DIBS__TASK_FINISHED | BIT(DIBS__TASK_PARKED)};
  return states[op->change];
}

/* The numbers of the tasks that match, by table. */
struct found {
  uint64_t *going, *finished;
  size_t going_count, finished_count;
};

static void add_half(struct dibs__text *to, const struct dibs__sql_guard *g, const task_op *op, bool finished,
                     value *values, size_t *count) {
  struct dibs__task_filter filter = op->filter;
  filter.states = (filter.states ? filter.states : ~0u) & states_of(op);
  filter.states &= finished ? DIBS__TASK_FINISHED : DIBS__TASK_UNFINISHED;
  bool none = filter.states == 0;
  if (none) filter.states = finished ? DIBS__TASK_FINISHED : DIBS__TASK_UNFINISHED;
  dibs__text_addf(to, "SELECT * FROM (SELECT t.nr, %d AS finished FROM %s t WHERE %s", finished,
                  finished ? "dibs_task_done" : "dibs_task", none ? "false" : "true");
  dibs__task_filter(to, g->wire->engine, &filter, finished, values, count);
  if (finished && op->change == DIBS__TASK_RETRY)
    dibs__text_adds(to, " AND (t.uniq IS NULL OR NOT EXISTS (SELECT 1 FROM dibs_task u WHERE u.kind = t.kind"
                        " AND u.uniq = t.uniq))");
  dibs__text_addf(to, " ORDER BY t.nr LIMIT $1) %s", finished ? "b" : "a");
}

/* The rows are ordered by number. */
static void note_looked_at(task_op *op, const struct dibs__sql_wire *w, size_t nth) {
  size_t rows = w->engine->rows(w, nth);
  op->last = rows ? (uint64_t)dibs__sql_cell_number(w, nth, rows - 1, 0) : 0;
  op->more = rows == op->most;
}

static bool read_found(const struct dibs__sql_wire *w, size_t nth, struct found *f) {
  size_t rows = w->engine->rows(w, nth);
  f->going = malloc((rows + 1) * sizeof *f->going);
  f->finished = malloc((rows + 1) * sizeof *f->finished);
  if (!f->going || !f->finished) return false;
  for (size_t row = 0; row < rows; row++) {
    uint64_t nr = (uint64_t)dibs__sql_cell_number(w, nth, row, 0);
    if (dibs__sql_cell_number(w, nth, row, 1))
      f->finished[f->finished_count++] = nr;
    else
      f->going[f->going_count++] = nr;
  }
  return true;
}

/* ---- Unfinished tasks ---- */

static void change_going(task_op *op, transition *t, int64_t now) {
  if (!(states_of(op) >> t->state & 1)) return; /* it changed since it was found */
  if (op->change == DIBS__TASK_RETRY) {
    t->fails = 0;
    dibs__task_continues(t, 0, now);
  } else {
    dibs__task_finishes(t, DIBS__TASK_CANCELLED, now);
    if (op->change == DIBS__TASK_PURGE) t->purged = true;
  }
  op->changed++;
}

/* ---- Finished tasks ---- */

static sql_rc put_purge(struct dibs__sql_guard *g, const struct found *f) {
  sql_rc end = dibs__task_put_delete(g, "dibs_task_error", f->finished, f->finished_count);
  return end == DIBS__SQL_OK ? dibs__task_put_delete(g, "dibs_task_done", f->finished, f->finished_count) : end;
}

static sql_rc put_back(struct dibs__sql_guard *g, uint64_t nr) {
  const struct dibs__sql_engine *e = g->wire->engine;
  char text[DIBS__TASK_TEXT / 4];
  value number = dibs__sql_number((int64_t)nr);
  snprintf(
      text, sizeof text,
      "INSERT %sINTO dibs_task (nr, kind, state, rank, due, queue, fence, ended, verdict, attempts, tries, priority,"
      " made, at, began, phase, serial, uniq, owner, payload) SELECT nr, kind, CASE WHEN serial IS NULL THEN 1 ELSE"
      " 0 END, CASE WHEN serial IS NULL THEN 0 - priority ELSE 0 END, @{now}, CASE WHEN serial IS NULL THEN"
      " nullif(phase, '') END, fence, ended, verdict, attempts, tries, priority, made, @{now}, began, phase,"
      " serial, uniq, owner, payload FROM dibs_task_done WHERE nr = $1 AND state > 6%s",
      e->on_conflict ? "" : "IGNORE ", e->on_conflict ? " ON CONFLICT DO NOTHING" : "");
  return dibs__task_put(g, text, &number, 1);
}

/* Its serial text: its row is locked, then the task that has the text. */
static sql_rc look_at_text(struct dibs__sql_guard *g, uint64_t nr, uint64_t *head, uint32_t *state) {
  struct dibs__sql_wire *w = g->wire;
  const struct dibs__sql_engine *e = w->engine;
  char text[DIBS__TASK_TEXT / 4];
  value number = dibs__sql_number((int64_t)nr);
  snprintf(text, sizeof text,
           "INSERT INTO dibs_task_serial (kind, serial, nr) SELECT t.kind, t.serial, t.nr FROM dibs_task t"
           " WHERE t.nr = $1 %s",
           e->on_conflict ? "ON CONFLICT (kind, serial) DO UPDATE SET nr = dibs_task_serial.nr"
                          : "ON DUPLICATE KEY UPDATE nr = dibs_task_serial.nr");
  sql_rc end = dibs__task_put(g, text, &number, 1);
  size_t nth = w->put;
  if (end == DIBS__SQL_OK)
    end = dibs__task_put(g,
                         "SELECT h.nr, h.state FROM dibs_task h WHERE h.nr = (SELECT s.nr FROM dibs_task t JOIN"
                         " dibs_task_serial s ON s.kind = t.kind AND s.serial = t.serial WHERE t.nr = $1)@{lock}",
                         &number, 1);
  if (end == DIBS__SQL_OK) end = dibs__task_go(g);
  if (end != DIBS__SQL_OK) return end;
  *head = w->engine->rows(w, nth) ? (uint64_t)dibs__sql_cell_number(w, nth, 0, 0) : nr;
  *state = w->engine->rows(w, nth) ? (uint32_t)dibs__sql_cell_number(w, nth, 0, 1) : 0;
  return end;
}

#define MAKE_READY                                                                                                     \
  "UPDATE dibs_task SET state = 1, rank = 0 - priority, queue = nullif(phase, ''), since = NULL WHERE nr = $1"
#define MAKE_BLOCKED "UPDATE dibs_task SET state = 4, rank = 0, queue = serial, since = due, due = 0 WHERE nr = $1"

static sql_rc settle_text(struct dibs__sql_guard *g, uint64_t nr) {
  value numbers[] = {dibs__sql_number((int64_t)nr), dibs__sql_null()};
  uint64_t head;
  uint32_t state;
  sql_rc end = look_at_text(g, nr, &head, &state);
  if (end != DIBS__SQL_OK) return end;
  bool begun = state != DIBS__TASK_READY && state != DIBS__TASK_WAITING;
  if (head == nr) return dibs__task_put(g, MAKE_READY, numbers, 1);
  if (head < nr || begun) return dibs__task_put(g, MAKE_BLOCKED, numbers, 1);
  value of_head = dibs__sql_number((int64_t)head);
  end = dibs__task_put(g, MAKE_BLOCKED, &of_head, 1);
  if (end == DIBS__SQL_OK) end = dibs__task_put(g, MAKE_READY, numbers, 1);
  numbers[1] = of_head;
  if (end != DIBS__SQL_OK) return end;
  return dibs__task_put(g,
                        "UPDATE dibs_task_serial SET nr = $1 WHERE nr = $2 AND kind = (SELECT kind FROM dibs_task WHERE"
                        " nr = $1) AND serial = (SELECT serial FROM dibs_task WHERE nr = $1)",
                        numbers, 2);
}

/* Inserts them again, and forgets those that an unfinished task with their unique text keeps out. */
static sql_rc put_all_back(struct dibs__sql_guard *g, task_op *op, struct found *f) {
  struct dibs__sql_wire *w = g->wire;
  sql_rc end = DIBS__SQL_OK;
  size_t first = w->put, left = 0;
  for (size_t i = 0; i < f->finished_count && end == DIBS__SQL_OK; i++) end = put_back(g, f->finished[i]);
  if (end == DIBS__SQL_OK) end = dibs__task_go(g);
  for (size_t i = 0; i < f->finished_count && end == DIBS__SQL_OK; i++) {
    if (w->engine->changed(w, first + i) == 0) continue;
    op->changed++;
    f->finished[left++] = f->finished[i];
  }
  f->finished_count = left;
  return end;
}

/* Nobody admits tasks of their kinds, and no kind becomes by lane, until this transaction ends. */
static sql_rc put_turns(struct dibs__sql_guard *g, const value *rows, size_t count) {
  char text[640];
  snprintf(text, sizeof text,
           "INSERT INTO dibs_task_serial (kind, serial, nr) SELECT DISTINCT kind, '', 0 %s AND serial IS NOT NULL"
           " ORDER BY kind %s",
           dibs__task_from_numbers(g),
           g->wire->engine->on_conflict ? "ON CONFLICT (kind, serial) DO UPDATE SET nr = dibs_task_serial.nr"
                                        : "ON DUPLICATE KEY UPDATE nr = dibs_task_serial.nr");
  return dibs__task_put_rows(g, text, NULL, 0, rows, 1, count);
}

/* Which of them have a serial text; *numbers has those of kinds that admit them.  Those of a kind by lane are free with
 * the slot of this text; and if the kind is it no more, but not all of its tasks are as before, they stay arrived. */
static sql_rc find_serials(struct dibs__sql_guard *g, const struct found *f, uint64_t *numbers, size_t *count) {
  struct dibs__sql_wire *w = g->wire;
  char text[640];
  size_t slots = 0;
  *count = 0;
  value *rows = malloc((2 * f->finished_count + 1) * sizeof *rows);
  if (!rows) return dibs__task_no_memory(g);
  for (size_t i = 0; i < f->finished_count; i++) rows[i] = dibs__sql_number((int64_t)f->finished[i]);
  sql_rc end = put_turns(g, rows, f->finished_count);
  size_t nth = w->put;
  snprintf(
      text, sizeof text,
      "SELECT nr, serial, (SELECT count(*) FROM dibs_task_kind k WHERE k.kind = dibs_task.kind AND k.topic IS NOT"
      " NULL), (SELECT s.nr + 0 FROM dibs_task_serial s WHERE s.kind = dibs_task.kind AND s.serial = '') %s AND serial"
      " IS NOT NULL ORDER BY nr",
      dibs__task_from_numbers(g));
  if (end == DIBS__SQL_OK) end = dibs__task_put_rows(g, text, NULL, 0, rows, 1, f->finished_count);
  if (end == DIBS__SQL_OK) end = dibs__task_go(g);
  for (size_t row = 0; end == DIBS__SQL_OK && row < w->engine->rows(w, nth); row++) {
    uint64_t nr = (uint64_t)dibs__sql_cell_number(w, nth, row, 0);
    dibs__str serial = dibs__task_cell_text(w, nth, row, 1);
    bool by_lane = dibs__sql_cell_number(w, nth, row, 2) > 0, admits = dibs__sql_cell_number(w, nth, row, 3) == 0;
    if (serial.len == 0 || (admits && !by_lane)) numbers[(*count)++] = nr;
    if (serial.len == 0 || !by_lane) continue;
    rows[2 * slots] = dibs__sql_number((int64_t)nr);
    rows[2 * slots++ + 1] = dibs__sql_number(dibs__slot(serial.p, serial.len));
  }
  if (end == DIBS__SQL_OK && slots)
    end = dibs__task_put_update(g, "r_nr, r_slot", "state = 4, slot = r_slot", "", NULL, 0, rows, 2, slots);
  free(rows);
  return end;
}

static sql_rc retry_finished(struct dibs__sql_guard *g, task_op *op, struct found *f) {
  size_t count = 0;
  sql_rc end = put_all_back(g, op, f);
  if (end != DIBS__SQL_OK || f->finished_count == 0) return end;
  uint64_t *serials = malloc(f->finished_count * sizeof *serials);
  if (!serials) return dibs__task_no_memory(g);
  end = find_serials(g, f, serials, &count);
  for (size_t i = 0; i < count && end == DIBS__SQL_OK; i++) end = settle_text(g, serials[i]);
  free(serials);
  return end == DIBS__SQL_OK ? dibs__task_put_delete(g, "dibs_task_done", f->finished, f->finished_count) : end;
}

/* ---- All of it ---- */

static sql_rc change_found(struct dibs__sql_guard *g, task_op *op, struct found *f) {
  locked_t locked = {.count = 0};
  sql_rc end = DIBS__SQL_OK;
  if (f->going_count) {
    size_t nth = g->wire->put;
    end = dibs__task_put_lock(g, f->going, f->going_count, false);
    if (end == DIBS__SQL_OK) end = dibs__task_go(g);
    if (end == DIBS__SQL_OK && !dibs__task_read_locked(g->wire, nth, &locked)) end = dibs__task_no_memory(g);
    for (size_t i = 0; i < locked.count; i++) change_going(op, &locked.rows[i], locked.now);
    /* Before finished tasks are retried, which may block one of these. */
    if (end == DIBS__SQL_OK) end = dibs__task_write_open(g, &locked);
  }
  if (end == DIBS__SQL_OK && f->finished_count) {
    if (op->change == DIBS__TASK_RETRY)
      end = retry_finished(g, op, f);
    else
      end = put_purge(g, f);
    if (op->change == DIBS__TASK_PURGE) op->changed += f->finished_count;
  }
  if (end == DIBS__SQL_OK) end = dibs__task_commit(g);
  dibs__task_locked_free(&locked);
  return end;
}

static sql_rc find_and_change(struct dibs__sql_guard *g, task_op *op, struct found *f) {
  sql_rc end = op->dry ? DIBS__SQL_OK : dibs__sql_begin(g->wire);
  size_t nth = g->wire->put;
  if (end == DIBS__SQL_OK) end = dibs__task_put_halves(g, op, add_half);
  if (end == DIBS__SQL_OK) end = dibs__task_go(g);
  if (end == DIBS__SQL_OK && !read_found(g->wire, nth, f)) end = dibs__task_no_memory(g);
  if (end != DIBS__SQL_OK) return end;
  note_looked_at(op, g->wire, nth);
  if (!op->dry) return change_found(g, op, f);
  op->changed = f->going_count + f->finished_count;
  return end;
}

sql_rc dibs__task_change(struct dibs__sql_guard *g, task_op *op) {
  struct found f = {.going = NULL};
  op->changed = 0;
  sql_rc end = find_and_change(g, op, &f);
  free(f.going);
  free(f.finished);
  if (end == DIBS__SQL_OK) op->op.status = DIBS_OK;
  if (end == DIBS__SQL_OK && op->changed && !op->dry && op->change == DIBS__TASK_RETRY) g->woke = true;
  return end;
}

/* ---- Settings ---- */

sql_rc dibs__task_kind(struct dibs__sql_guard *g, task_op *op) {
  const struct dibs__sql_engine *e = g->wire->engine;
  char memory[DIBS__TASK_TEXT / 4];
  struct dibs__text text;
  bool running = op->set & DIBS__TASK_SET_RUNNING, paused = op->set & DIBS__TASK_SET_PAUSED,
       keep = op->set & DIBS__TASK_SET_KEEP;
  value values[] = {dibs__task_text(op->kind), dibs__sql_number(running ? op->running : 0),
                    dibs__sql_number(paused && op->paused),
                    keep && op->keep_ms >= 0 ? dibs__sql_number(op->keep_ms) : dibs__sql_null()};
  dibs__text_begin(&text, memory, sizeof memory);
  dibs__text_addf(&text,
                  "INSERT INTO dibs_task_kind (kind, running, paused, keep) VALUES ($1, $2, $3, $4) %s kind = $1",
                  e->on_conflict ? "ON CONFLICT (kind) DO UPDATE SET" : "ON DUPLICATE KEY UPDATE");
  if (running) dibs__text_adds(&text, ", running = $2");
  if (paused) dibs__text_adds(&text, ", paused = $3");
  if (keep) dibs__text_adds(&text, ", keep = $4");
  sql_rc end = dibs__sql_begin(g->wire);
  if (end == DIBS__SQL_OK) end = dibs__task_put(g, memory, values, 4);
  if (end == DIBS__SQL_OK) end = dibs__task_commit(g);
  if (end == DIBS__SQL_OK && op->set & DIBS__TASK_SET_NO_LANES) end = dibs__lanes_end(g, op->kind);
  if (end == DIBS__SQL_OK) op->op.status = DIBS_OK;
  return end;
}

/* ---- Sweeping ---- */

static sql_rc sweep_finished(struct dibs__sql_guard *g, bool *more) {
  struct dibs__sql_wire *w = g->wire;
  value most = dibs__sql_number(DIBS__TASK_SWEPT);
  struct found f = {.going = NULL};
  sql_rc end = dibs__sql_begin(w);
  size_t nth = w->put;
  if (end == DIBS__SQL_OK)
    end = dibs__task_put(
        g, "SELECT nr, 1 FROM dibs_task_done WHERE until <= (SELECT @{start}) ORDER BY until LIMIT $1@{skip}", &most,
        1);
  if (end == DIBS__SQL_OK) end = dibs__task_go(g);
  if (end == DIBS__SQL_OK && !read_found(w, nth, &f)) end = dibs__task_no_memory(g);
  if (end == DIBS__SQL_OK && f.finished_count) end = put_purge(g, &f);
  if (end == DIBS__SQL_OK) end = dibs__task_commit(g);
  *more = f.finished_count >= DIBS__TASK_SWEPT;
  free(f.going);
  free(f.finished);
  return end;
}

sql_rc dibs__sql_task_sweep(struct dibs__sql_guard *g, bool *more) {
  *more = false;
  sql_rc end = sweep_finished(g, more);
  bool tokens = false;
  if (end == DIBS__SQL_OK) end = dibs__sql_sweep(g, "dibs_task_token", "token", DIBS__TASK_SWEPT, &tokens);
  *more = *more || tokens;
  if (end != DIBS__SQL_OK && !dibs__sql_dead(g->wire)) dibs__sql_rollback(g->wire);
  return end;
}

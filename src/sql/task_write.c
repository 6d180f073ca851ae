/* SPDX-License-Identifier: MIT */
/*
 * Locking tasks, deciding what becomes of them, and writing that: an end of a claim, a claim whose time is over, a
 * change by hand.
 *
 * All transitions of an operation are one transaction.  The first packet locked the tasks.  The second writes errors,
 * the tasks that go on, and moves those that finish into dibs_task_done; if one of these had a serial text, it also
 * locks the row of this text and the next task that is blocked by it, and a third packet makes that task ready.  The
 * row is locked after the task: a client that admits a task to the text at this moment has locked the row, and then its
 * task is seen as blocked here; or it waits for this transaction, and finds the text free.
 */
#include "sql/task_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__sql_value value;
typedef struct dibs__task_transition transition;
typedef struct dibs__task_locked locked_t;

/* ---- Locking ---- */

sql_rc dibs__task_put_lock(struct dibs__sql_guard *g, const uint64_t *numbers, size_t count, bool skip) {
  char text[DIBS__TASK_TEXT / 2];
  value *rows = malloc(count * sizeof *rows);
  if (!rows) return dibs__task_no_memory(g);
  for (size_t i = 0; i < count; i++) rows[i] = dibs__sql_number((int64_t)numbers[i]);
  snprintf(text, sizeof text, "SELECT " DIBS__TASK_LOCKED " %s ORDER BY nr + 0%s", dibs__task_from_numbers(g),
           skip ? "@{skip}" : "@{lock}");
  sql_rc end = dibs__task_put_rows(g, text, NULL, 0, rows, 1, count);
  free(rows);
  return end;
}

static size_t text_sizes(const struct dibs__sql_wire *w, size_t nth) {
  static const size_t texts[] = {1, 2, 3, 13};
  size_t size = 0;
  for (size_t row = 0; row < w->engine->rows(w, nth); row++)
    for (size_t i = 0; i < 4; i++) size += dibs__task_cell_text(w, nth, row, texts[i]).len;
  return size;
}

static dibs__str copy_text(char **to, dibs__str text) {
  dibs__str copy = {*to, text.len};
  if (text.len) memcpy(*to, text.p, text.len);
  *to += text.len;
  return copy;
}

static int64_t number_at(const struct dibs__sql_wire *w, size_t nth, size_t row, size_t column) {
  return dibs__sql_cell_number(w, nth, row, column);
}

static void read_transition(const struct dibs__sql_wire *w, size_t nth, size_t row, transition *t, char **texts) {
  *t = (transition){.nr = (uint64_t)number_at(w, nth, row, 0),
                    .state = (uint32_t)number_at(w, nth, row, 4),
                    .fence = (uint64_t)number_at(w, nth, row, 5),
                    .attempts = (uint32_t)number_at(w, nth, row, 6),
                    .fails = (uint32_t)number_at(w, nth, row, 7),
                    .tries = (uint32_t)number_at(w, nth, row, 8),
                    .priority = (int32_t)number_at(w, nth, row, 9),
                    .has_ended = !dibs__task_cell_is_null(w, nth, row, 10),
                    .ended = number_at(w, nth, row, 10),
                    .verdict = number_at(w, nth, row, 11),
                    .due = number_at(w, nth, row, 12),
                    .keep_ms =
                        dibs__task_cell_is_null(w, nth, row, 14) ? DIBS__TASK_KEEP_MS : number_at(w, nth, row, 14)};
  t->has_slot = !dibs__task_cell_is_null(w, nth, row, 16);
  t->slot = number_at(w, nth, row, 16);
  t->lane = (uint64_t)number_at(w, nth, row, 17);
  if (t->has_slot && t->slot >= 0 && t->state == DIBS__TASK_BLOCKED)
    t->state = t->due <= number_at(w, nth, row, 15) ? DIBS__TASK_READY : DIBS__TASK_WAITING;
  t->kind = copy_text(texts, dibs__task_cell_text(w, nth, row, 1));
  t->serial = copy_text(texts, dibs__task_cell_text(w, nth, row, 2));
  t->phase = copy_text(texts, dibs__task_cell_text(w, nth, row, 3));
  t->owner = copy_text(texts, dibs__task_cell_text(w, nth, row, 13));
}

static int by_nr(const void *x, const void *y) {
  const transition *a = x, *b = y;
  return (a->nr > b->nr) - (a->nr < b->nr);
}

bool dibs__task_read_all_locked(const struct dibs__sql_wire *w, size_t first, size_t answers, locked_t *locked) {
  size_t count = 0, size = 0;
  for (size_t nth = first; nth < first + answers; nth++) {
    count += w->engine->rows(w, nth);
    size += text_sizes(w, nth);
  }
  *locked = (locked_t){.count = count};
  if (count == 0) return true;
  locked->rows = malloc(count * sizeof *locked->rows + size);
  if (!locked->rows) return false;
  char *texts = (char *)(locked->rows + count);
  transition *to = locked->rows;
  for (size_t nth = first; nth < first + answers; nth++)
    for (size_t row = 0; row < w->engine->rows(w, nth); row++) {
      read_transition(w, nth, row, to++, &texts);
      locked->now = number_at(w, nth, row, 15);
    }
  if (count > 1) qsort(locked->rows, count, sizeof *locked->rows, by_nr);
  return true;
}

transition *dibs__task_locked_find(const locked_t *locked, uint64_t nr) {
  transition key = {.nr = nr};
  return locked->count ? bsearch(&key, locked->rows, locked->count, sizeof key, by_nr) : NULL;
}

void dibs__task_locked_free(locked_t *locked) {
  free(locked->rows);
  *locked = (locked_t){.count = 0};
}

/* ---- Deciding ---- */

static bool is_finished(uint32_t state) {
  return 1u << state & DIBS__TASK_FINISHED;
}

void dibs__task_finishes(transition *t, enum dibs__task_state state, int64_t now) {
  t->changes = true;
  t->to = state;
  t->at_ms = state == DIBS__TASK_DEAD ? 0 : now + t->keep_ms;
  t->purged = state != DIBS__TASK_DEAD && t->keep_ms <= 0;
}

void dibs__task_continues(transition *t, int64_t delay_ms, int64_t now) {
  t->changes = true;
  t->to = delay_ms > 0 ? DIBS__TASK_WAITING : DIBS__TASK_READY;
  t->at_ms = now + (delay_ms > 0 ? delay_ms : 0);
}

void dibs__task_gives_up(transition *t, int64_t now) {
  t->error = true;
  if (!t->serial.len) {
    dibs__task_finishes(t, DIBS__TASK_DEAD, now);
    return;
  }
  t->changes = true;
  t->to = DIBS__TASK_PARKED;
  t->at_ms = now;
}

void dibs__task_fails(transition *t, uint32_t tries, int64_t due, int64_t now) {
  if (tries == 0) tries = t->tries ? t->tries : DIBS__TASK_TRIES;
  t->fails++;
  if (t->fails >= tries) {
    dibs__task_gives_up(t, now);
    return;
  }
  t->error = t->changes = true;
  t->to = due > now ? DIBS__TASK_WAITING : DIBS__TASK_READY;
  t->at_ms = due;
}

/* ---- Writing ---- */

/* Which of the transitions a statement is about. */
typedef bool chosen(const transition *t);

static bool has_error(const transition *t) {
  return t->changes && t->error;
}
static bool goes_on(const transition *t) {
  return t->changes && !is_finished(t->to);
}
static bool is_kept(const transition *t) {
  return t->changes && is_finished(t->to) && !t->purged;
}
static bool ends(const transition *t) {
  return t->changes && is_finished(t->to);
}
static bool is_purged(const transition *t) {
  return t->changes && t->purged;
}

static size_t count_chosen(const locked_t *locked, chosen *which) {
  size_t count = 0;
  for (size_t i = 0; i < locked->count; i++) count += which(&locked->rows[i]);
  return count;
}

static dibs__str cut_text(dibs__str text) {
  uint32_t over = text.len > DIBS__TASK_TEXT_MAX ? text.len - DIBS__TASK_TEXT_MAX : 0;
  return (dibs__str){over ? text.p + over : text.p, text.len - over};
}

static value bytes_of(dibs__str text) {
  text = cut_text(text);
  return dibs__sql_bytes(text.p, text.len);
}

enum { ERROR_WIDTH = 2, NEXT_WIDTH = 11, DONE_WIDTH = 9, WIDTH_MAX = NEXT_WIDTH };

static void error_row(const transition *t, value *to) {
  to[0] = dibs__sql_number((int64_t)t->nr);
  to[1] = bytes_of(t->text);
}

/* The state of a task by lane as its row has it, which is put aside unless it is free. */
static value slot_of(const transition *t) {
  if (!t->has_slot) return dibs__sql_null();
  int64_t slot = dibs__task_slot(t);
  return dibs__sql_number(t->to == DIBS__TASK_READY ? slot : -1 - slot);
}

/* Column 5: 1: the phase is what it can be found by; 0: nothing is. */
static void next_row(const transition *t, value *to) {
  bool ready = t->to == DIBS__TASK_READY && !t->has_slot;
  to[0] = dibs__sql_number((int64_t)t->nr);
  to[1] = dibs__sql_number(t->has_slot && t->to == DIBS__TASK_READY ? DIBS__TASK_BLOCKED : t->to);
  to[2] = dibs__sql_number(ready ? -(int64_t)t->priority : 0);
  to[3] = dibs__sql_number(t->at_ms);
  to[4] = dibs__sql_number(ready && t->phase.len ? 1 : 0);
  to[5] = dibs__task_text(t->phase);
  to[6] = dibs__sql_number(t->attempts);
  to[7] = dibs__sql_number(t->fails);
  to[8] = t->has_ended ? dibs__sql_number(t->ended) : dibs__sql_null();
  to[9] = t->has_ended ? dibs__sql_number(t->verdict) : dibs__sql_null();
  to[10] = slot_of(t);
}
#define NEXT_COLUMNS "r_nr, r_state, r_rank, r_due, r_queue, r_phase, r_attempts, r_fails, r_ended, r_verdict, r_slot"
#define NEXT_SET                                                                                                       \
  "state = r_state, rank = r_rank, due = r_due, since = NULL,"                                                         \
  " queue = CASE r_queue WHEN 1 THEN r_phase END, phase = r_phase, attempts = r_attempts,"                             \
  " fails = r_fails, ended = r_ended, verdict = r_verdict, claim = NULL, at = $1, slot = r_slot, lane = NULL"

static void done_row(const transition *t, value *to) {
  to[0] = dibs__sql_number((int64_t)t->nr);
  to[1] = dibs__sql_number(t->to);
  to[2] = t->at_ms ? dibs__sql_number(t->at_ms) : dibs__sql_null();
  to[3] = t->has_ended ? dibs__sql_number(t->ended) : dibs__sql_null();
  to[4] = t->has_ended ? dibs__sql_number(t->verdict) : dibs__sql_null();
  to[5] = dibs__sql_number(t->attempts);
  to[6] = dibs__sql_number(t->fails);
  to[7] = bytes_of(t->text);
  to[8] = dibs__task_text(t->phase);
}

/* NULL: no memory. */
static value *make_rows(const locked_t *locked, chosen *which, void (*row)(const transition *, value *), size_t width,
                        size_t count) {
  value *rows = malloc(count * width * sizeof *rows), *at = rows;
  for (size_t i = 0; rows && i < locked->count; i++) {
    if (!which(&locked->rows[i])) continue;
    row(&locked->rows[i], at);
    at += width;
  }
  return rows;
}

/* Inserts rows; a row replaces another with its key. People may insert a task with the number of a finished one, and
 * the later one counts. */
static sql_rc put_over(struct dibs__sql_guard *g, const char *table, const char *key, const char *const *columns,
                       const char *select, const value *now, const value *rows, size_t width, size_t count) {
  bool on_conflict = g->wire->engine->on_conflict;
  char memory[DIBS__TASK_TEXT / 2];
  struct dibs__text text;
  dibs__text_begin(&text, memory, sizeof memory);
  dibs__text_addf(&text, "%s INTO %s (", on_conflict ? "INSERT" : "REPLACE", table);
  for (size_t i = 0; columns[i]; i++) dibs__text_addf(&text, "%s%s", i ? ", " : "", columns[i]);
  dibs__text_addf(&text, ") %s", select);
  if (on_conflict) dibs__text_addf(&text, " ON CONFLICT (%s) DO UPDATE SET", key);
  for (size_t i = 0; on_conflict && columns[i]; i++)
    dibs__text_addf(&text, "%s %s = excluded.%s", i ? "," : "", columns[i], columns[i]);
  return dibs__task_put_rows(g, memory, now, 1, rows, width, count);
}

static const char *const error_columns[] = {"nr", "fence", "at", "owner", "text", NULL};

static sql_rc put_errors(struct dibs__sql_guard *g, const locked_t *locked) {
  size_t count = count_chosen(locked, has_error);
  if (count == 0) return DIBS__SQL_OK;
  value *rows = make_rows(locked, has_error, error_row, ERROR_WIDTH, count), now = dibs__sql_number(locked->now);
  if (!rows) return dibs__task_no_memory(g);
  sql_rc end = put_over(g, "dibs_task_error", "nr, fence", error_columns,
                        "WITH r(nr, text) AS ($rows) SELECT t.nr, t.fence, $1, t.owner, r.text FROM r"
                        " JOIN dibs_task t ON t.nr = r.nr WHERE true",
                        &now, rows, ERROR_WIDTH, count);
  free(rows);
  for (size_t i = 0; i < locked->count && end == DIBS__SQL_OK; i++) {
    const transition *t = &locked->rows[i];
    value v[] = {dibs__sql_number((int64_t)t->nr), dibs__sql_number(DIBS__TASK_ERRORS)};
    if (!has_error(t) || t->fails <= DIBS__TASK_ERRORS) continue;
    end = dibs__task_put(g,
                         "DELETE FROM dibs_task_error WHERE nr = $1 AND fence <= (SELECT fence FROM (SELECT fence FROM"
                         " dibs_task_error WHERE nr = $1 ORDER BY fence DESC LIMIT 1 OFFSET $2) e)",
                         v, 2);
  }
  return end;
}

static sql_rc put_next(struct dibs__sql_guard *g, const locked_t *locked) {
  size_t count = count_chosen(locked, goes_on);
  if (count == 0) return DIBS__SQL_OK;
  value *rows = make_rows(locked, goes_on, next_row, NEXT_WIDTH, count), now = dibs__sql_number(locked->now);
  if (!rows) return dibs__task_no_memory(g);
  sql_rc end = dibs__task_put_update(g, NEXT_COLUMNS, NEXT_SET, "", &now, 1, rows, NEXT_WIDTH, count);
  free(rows);
  return end;
}

static sql_rc put_delete(struct dibs__sql_guard *g, const locked_t *locked, chosen *which, const char *table) {
  size_t count = 0;
  uint64_t *numbers = malloc(locked->count * sizeof *numbers);
  if (!numbers) return dibs__task_no_memory(g);
  for (size_t i = 0; i < locked->count; i++)
    if (which(&locked->rows[i])) numbers[count++] = locked->rows[i].nr;
  sql_rc end = count ? dibs__task_put_delete(g, table, numbers, count) : DIBS__SQL_OK;
  free(numbers);
  return end;
}

static const char *const done_columns[] = {"nr",       "kind",   "state", "until",    "fence", "ended",   "verdict",
                                           "attempts", "fails",  "tries", "priority", "made",  "at",      "began",
                                           "phase",    "serial", "uniq",  "owner",    "text",  "payload", NULL};

static sql_rc put_done(struct dibs__sql_guard *g, const locked_t *locked) {
  size_t count = count_chosen(locked, is_kept);
  sql_rc end = DIBS__SQL_OK;
  if (count > 0) {
    value *rows = make_rows(locked, is_kept, done_row, DONE_WIDTH, count), now = dibs__sql_number(locked->now);
    if (!rows) return dibs__task_no_memory(g);
    end = put_over(g, "dibs_task_done", "nr", done_columns,
                   "WITH r(nr, state, until, ended, verdict, attempts, fails, text, phase) AS ($rows)"
                   " SELECT t.nr, t.kind, r.state, r.until, t.fence, r.ended, r.verdict, r.attempts, r.fails, t.tries,"
                   " t.priority, t.made, $1, t.began, r.phase, t.serial, t.uniq, t.owner, r.text, t.payload FROM r"
                   " JOIN dibs_task t ON t.nr = r.nr WHERE true",
                   &now, rows, DONE_WIDTH, count);
    free(rows);
  }
  if (end == DIBS__SQL_OK) end = put_delete(g, locked, ends, "dibs_task");
  return end == DIBS__SQL_OK ? put_delete(g, locked, is_purged, "dibs_task_error") : end;
}

/* ---- Serial texts ---- */

struct passing {
  const transition *of; /* the task that finished */
  size_t nth;           /* its statements: the row of the text, then the next task */
};

static int by_text(const void *x, const void *y) {
  const transition *a = ((const struct passing *)x)->of, *b = ((const struct passing *)y)->of;
  if (dibs__str_equal(a->kind, b->kind))
    return dibs__str_before(a->serial, b->serial) ? -1 : dibs__str_before(b->serial, a->serial);
  return dibs__str_before(a->kind, b->kind) ? -1 : 1;
}

/* The tasks that finish and have a serial text, by this text; but not a task that was never admitted. */
static size_t find_passing(const locked_t *locked, struct passing *to) {
  size_t count = 0;
  for (size_t i = 0; i < locked->count; i++)
    if (ends(&locked->rows[i]) && locked->rows[i].serial.len && !locked->rows[i].has_slot &&
        locked->rows[i].state != DIBS__TASK_ARRIVED)
      to[count++].of = &locked->rows[i];
  if (count > 1) qsort(to, count, sizeof *to, by_text);
  return count;
}

static sql_rc put_looks(struct dibs__sql_guard *g, struct passing *p, size_t count) {
  sql_rc end = DIBS__SQL_OK;
  for (size_t i = 0; i < count && end == DIBS__SQL_OK; i++) {
    value v[] = {dibs__task_text(p[i].of->kind), dibs__task_text(p[i].of->serial)};
    p[i].nth = g->wire->put;
    end = dibs__task_put(g, "SELECT nr FROM dibs_task_serial WHERE kind = $1 AND serial = $2@{lock}", v, 2);
    if (end == DIBS__SQL_OK)
      end = dibs__task_put(g,
                           "SELECT nr, since, priority, phase FROM dibs_task@{queue}"
                           " WHERE kind = $1 AND queue = $2 AND state = 4 ORDER BY rank, due, nr LIMIT 1@{lock}",
                           v, 2);
  }
  return end;
}

/* What becomes of a text whose task has finished; texts are in the answers, until the next statement is put. */
struct passed {
  bool is_head; /* the text was its own, and passes on */
  uint64_t nr;  /* to this task; 0: there is none */
  bool ready, has_phase;
  int64_t due, priority;
};

static struct passed read_look(const struct dibs__sql_wire *w, const struct passing *p, int64_t now) {
  struct passed x = {.is_head = false};
  if (w->engine->rows(w, p->nth) == 0 || (uint64_t)number_at(w, p->nth, 0, 0) != p->of->nr) return x;
  x.is_head = true;
  if (w->engine->rows(w, p->nth + 1) == 0) return x;
  x.nr = (uint64_t)number_at(w, p->nth + 1, 0, 0);
  x.due = number_at(w, p->nth + 1, 0, 1);
  x.ready = x.due <= now;
  if (x.ready) x.due = now;
  x.priority = number_at(w, p->nth + 1, 0, 2);
  x.has_phase = dibs__task_cell_text(w, p->nth + 1, 0, 3).len > 0;
  return x;
}

/* The text is free, or its next task has it. */
static sql_rc put_text(struct dibs__sql_guard *g, const struct passing *p, const struct passed *x) {
  value v[] = {dibs__task_text(p->of->kind), dibs__task_text(p->of->serial), dibs__sql_number((int64_t)x->nr)};
  return x->nr ? dibs__task_put(g, "UPDATE dibs_task_serial SET nr = $3 WHERE kind = $1 AND serial = $2", v, 3)
               : dibs__task_put(g, "DELETE FROM dibs_task_serial WHERE kind = $1 AND serial = $2", v, 2);
}

enum { PASSED_WIDTH = 5 };

/* All next tasks, in one statement. */
static sql_rc put_passed(struct dibs__sql_guard *g, const struct passed *x, size_t count) {
  value *rows = malloc((count + 1) * PASSED_WIDTH * sizeof *rows), *to = rows;
  if (!rows) return dibs__task_no_memory(g);
  for (size_t i = 0; i < count; i++) {
    if (!x[i].is_head || !x[i].nr) continue;
    *to++ = dibs__sql_number((int64_t)x[i].nr);
    *to++ = dibs__sql_number(x[i].ready ? DIBS__TASK_READY : DIBS__TASK_WAITING);
    *to++ = dibs__sql_number(x[i].ready ? -x[i].priority : 0);
    *to++ = dibs__sql_number(x[i].due);
    *to++ = dibs__sql_number(x[i].ready && x[i].has_phase);
  }
  size_t next = (size_t)(to - rows) / PASSED_WIDTH;
  sql_rc end = DIBS__SQL_OK;
  if (next)
    end = dibs__task_put_update(g, "r_nr, r_state, r_rank, r_due, r_phased",
                                "state = r_state, rank = r_rank, due = r_due, since = NULL,"
                                " queue = CASE r_phased WHEN 1 THEN phase END",
                                "", NULL, 0, rows, PASSED_WIDTH, next);
  free(rows);
  return end;
}

static sql_rc pass_on(struct dibs__sql_guard *g, const struct passing *p, size_t count, int64_t now) {
  struct passed *x = malloc(count * sizeof *x);
  if (!x) return dibs__task_no_memory(g);
  for (size_t i = 0; i < count; i++) x[i] = read_look(g->wire, &p[i], now);
  sql_rc end = DIBS__SQL_OK;
  for (size_t i = 0; i < count && end == DIBS__SQL_OK; i++)
    if (x[i].is_head) end = put_text(g, &p[i], &x[i]);
  if (end == DIBS__SQL_OK) end = put_passed(g, x, count);
  free(x);
  return end;
}

/* ---- Serial texts whose task people deleted ---- */

/* The texts behind `after` whose task does not exist, and the last text of this step.  A text is never without its task
 * otherwise: both are written in one transaction. */
static sql_rc look_for_lost(struct dibs__sql_guard *g, dibs__str kind, dibs__str after) {
  value v[] = {dibs__task_text(kind), dibs__task_text(after), dibs__sql_number(DIBS__TASK_STEP),
               dibs__sql_number(DIBS__TASK_STEP - 1)};
  sql_rc end = dibs__task_put(g,
                              "SELECT s.serial, s.nr, @{now} FROM (SELECT serial, nr FROM dibs_task_serial WHERE"
                              " kind = $1 AND serial > $2 ORDER BY serial LIMIT $3) s"
                              " WHERE (SELECT t.nr FROM dibs_task t WHERE t.nr = s.nr) IS NULL ORDER BY s.serial",
                              v, 3);
  v[2] = v[3];
  if (end == DIBS__SQL_OK)
    end = dibs__task_put(g,
                         "SELECT serial FROM dibs_task_serial WHERE kind = $1 AND serial > $2 ORDER BY serial"
                         " LIMIT 1 OFFSET $3",
                         v, 3);
  return end == DIBS__SQL_OK ? dibs__task_go(g) : end;
}

static sql_rc pass_lost(struct dibs__sql_guard *g, const locked_t *lost) {
  struct passing *passing = malloc(lost->count * sizeof *passing);
  if (!passing) return dibs__task_no_memory(g);
  for (size_t i = 0; i < lost->count; i++) passing[i].of = &lost->rows[i];
  sql_rc end = dibs__sql_begin(g->wire);
  if (end == DIBS__SQL_OK) end = put_looks(g, passing, lost->count);
  if (end == DIBS__SQL_OK) end = dibs__task_go(g);
  if (end == DIBS__SQL_OK) end = pass_on(g, passing, lost->count, lost->now);
  free(passing);
  return end == DIBS__SQL_OK ? dibs__task_commit(g) : end;
}

sql_rc dibs__task_pass_lost(struct dibs__sql_guard *g, dibs__str kind, char after[DIBS_NAME_MAX], uint32_t *after_len) {
  const struct dibs__sql_wire *w = g->wire;
  sql_rc end = look_for_lost(g, kind, dibs__str_of(after, *after_len));
  if (end != DIBS__SQL_OK) return end;
  locked_t lost = {.count = w->engine->rows(w, 0)};
  size_t size = 0;
  for (size_t row = 0; row < lost.count; row++) size += dibs__task_cell_text(w, 0, row, 0).len;
  if (lost.count && !(lost.rows = malloc(lost.count * sizeof *lost.rows + size))) return dibs__task_no_memory(g);
  char *texts = (char *)(lost.rows + lost.count);
  for (size_t row = 0; row < lost.count; row++)
    lost.rows[row] = (transition){.nr = (uint64_t)number_at(w, 0, row, 1),
                                  .kind = kind,
                                  .serial = copy_text(&texts, dibs__task_cell_text(w, 0, row, 0))};
  if (lost.count) lost.now = number_at(w, 0, 0, 2);
  dibs__str last = w->engine->rows(w, 1) ? dibs__task_cell_text(w, 1, 0, 0) : (dibs__str){"", 0};
  *after_len = last.len <= DIBS_NAME_MAX ? last.len : 0;
  memcpy(after, last.p, *after_len);
  if (lost.count) end = pass_lost(g, &lost);
  dibs__task_locked_free(&lost);
  return end;
}

/* ---- All of it ---- */

static bool gets_ready(const transition *t) {
  return t->changes && t->to == DIBS__TASK_READY;
}

static sql_rc write_finished(struct dibs__sql_guard *g, const locked_t *locked, bool *passes) {
  struct passing *passing = malloc(locked->count * sizeof *passing);
  if (!passing) return dibs__task_no_memory(g);
  size_t count = find_passing(locked, passing);
  sql_rc end = put_done(g, locked);
  if (end == DIBS__SQL_OK && count > 0) {
    end = put_looks(g, passing, count);
    if (end == DIBS__SQL_OK) end = dibs__task_go(g);
    if (end == DIBS__SQL_OK) end = pass_on(g, passing, count, locked->now);
  }
  *passes = count > 0;
  free(passing);
  return end == DIBS__SQL_OK ? dibs__task_key_back(g, locked) : end;
}

sql_rc dibs__task_write_open(struct dibs__sql_guard *g, const locked_t *locked) {
  if (locked->count == 0) return DIBS__SQL_OK;
  locked_t later = {.count = 0};
  bool passes = false;
  sql_rc end = dibs__task_key_later(g, locked, &later);
  if (end == DIBS__SQL_OK) end = put_errors(g, locked);
  if (end == DIBS__SQL_OK) end = put_next(g, locked);
  if (end == DIBS__SQL_OK) end = put_next(g, &later);
  if (end == DIBS__SQL_OK) end = write_finished(g, locked, &passes);
  dibs__task_locked_free(&later);
  if (end == DIBS__SQL_OK && (passes || count_chosen(locked, gets_ready) > 0)) g->woke = true;
  return end;
}

sql_rc dibs__task_write(struct dibs__sql_guard *g, const locked_t *locked) {
  sql_rc end = dibs__task_write_open(g, locked);
  return end == DIBS__SQL_OK ? dibs__task_commit(g) : end;
}

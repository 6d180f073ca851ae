/* SPDX-License-Identifier: MIT */
/*
 * Claiming tasks.
 *
 * The common case is one statement, which takes the first ready tasks of the index; without UPDATE ... RETURNING it is
 * two packets: a SELECT that locks them, then the UPDATE.  That statement takes nothing if the kind has a limit or is
 * paused, or if there is something to promote: then, and if nothing is ready, a second packet reads the reason.
 *
 * Promotion makes ready, by up to DIBS__TASK_STEP rows of each:
 *
 *   WAITING tasks whose time has come
 *   ARRIVED tasks: READY or WAITING; with a serial text, BLOCKED if another task has it.  One client at a time admits
 *           tasks of a kind to serial texts, in the order of their numbers.  If a session has locked one of them, the
 *           later ones with its text stay where they are.
 *   CLAIMED tasks whose time is over: a failed try
 *
 * After it the claim takes what is ready, even if others have more to promote.
 *
 * Marks.  PostgreSQL keeps the index entries of tasks that were claimed until it vacuums, and each claim would walk
 * over them: they are the first of the index.  So a claim that took as many tasks as it requested leaves a mark on its
 * connection, and the next one begins there.  It takes nothing if a task with a larger priority is ready, and looks at
 * everything again if it gets fewer tasks than it requests, or after LOOK_MS.  Only a task whose insertion was
 * committed later than that of a younger one may be ready before the mark; it waits for LOOK_MS at most.
 *
 * If people delete a task that has a serial text, nothing ends it, and the next task with this text would wait for
 * ever. So a claim looks for such texts first: the first claim of a kind on a connection, and one in LOST_MS, each at
 * some of them.
 *
 * A kind with a limit: its row is locked, the claimed tasks are counted, and at most the difference is claimed.  Inside
 * a user's transaction an older snapshot would hide claims that were committed since, so the count is a locking read,
 * and where this can't help the claim is refused.
 */
#include "sql/task_claim.h"
#include "store/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__sql_value value;
typedef struct dibs__task_op task_op;
typedef struct dibs__task_row row_t;

enum {
  LOOK_MS = 1000,
  LOST_MS = 30000,    /* of one kind */
  LOST_ALL_MS = 1000, /* of all kinds: a connection remembers only some */
  CLOCK_MS = 10,      /* parts of a statement read the clock at slightly different times */
  ARRIVED_MS = 1000   /* arrived tasks that are younger are seen at once */
};

/* ---- Taking ---- */

#define OF_KIND "kind = $1"
#define NOW DIBS__CLAIM_NOW
#define LIMITED "SELECT 1 FROM dibs_task_kind k WHERE k.kind = $1 AND (running > 0 OR paused > 0)"
#define BUSY DIBS__CLAIM_BUSY
#define ARRIVED DIBS__CLAIM_ARRIVED
#define OVER(of) "SELECT 1" BUSY(of) " AND due <= " NOW
/* The kind has no limit and is not paused, and no task waits for promotion: one statement is sufficient. */
#define PLAIN                                                                                                          \
  " AND NOT EXISTS (" LIMITED ") AND NOT EXISTS (" ARRIVED                                                             \
  ") AND NOT EXISTS (" OVER("2") ") AND NOT EXISTS (" OVER("3") ")"
/* The same behind a mark: $6 its rank, $9 its time. */
#define SINCE(of, ms) "SELECT 1" BUSY(of) " AND due > $9 - " ms
#define PLAIN_BEHIND                                                                                                   \
  " AND rank = $6 AND (due, nr) > ($7, $8) AND NOT EXISTS (" LIMITED                                                   \
  ") AND NOT EXISTS (SELECT 1 FROM dibs_task@{ready} WHERE " OF_KIND                                                   \
  " AND state = 1 AND rank < $6) AND NOT EXISTS (" SINCE("0", "1000") ") AND NOT EXISTS (" SINCE(                      \
      "2", "10") " AND due <= " NOW ") AND NOT EXISTS (" SINCE("3", "10") " AND due <= " NOW ")"
_Static_assert(ARRIVED_MS == 1000 && CLOCK_MS == 10, "numbers, written twice");
#define LAST_ERROR DIBS__CLAIM_LAST_ERROR
#define READY " FROM dibs_task%s WHERE " OF_KIND "%s AND state = 1%s ORDER BY rank, due, nr LIMIT $%d@{skip}"
#define CLAIMED DIBS__CLAIM_SET
#define TAKE                                                                                                           \
  "UPDATE dibs_task SET " CLAIMED("n.t") ", claim = $2, due = n.t + $3, owner = $4 FROM (SELECT @{now} AS t) n"        \
                                         " WHERE @{row}@{any}SELECT @{row}" READY                                      \
                                         "@{none} RETURNING " DIBS__TASK_COLUMNS ", payload" LAST_ERROR ", since"

/* ---- Marks ---- */

/* The mark of the kind; a new mark is not set. */
static struct dibs__sql_mark *mark_of(const struct dibs__claiming *c) {
  struct dibs__sql_wire *w = c->g->wire;
  dibs__str kind = c->op->kind;
  for (size_t i = 0; i < DIBS__SQL_MARKS; i++)
    if (dibs__str_equal(dibs__str_of(w->marks[i].kind, w->marks[i].kind_len), kind)) return &w->marks[i];
  struct dibs__sql_mark *mark = &w->marks[w->next_mark++ % DIBS__SQL_MARKS];
  *mark = (struct dibs__sql_mark){.kind_len = kind.len};
  memcpy(mark->kind, kind.p, kind.len);
  return mark;
}

static bool is_fresh(const struct dibs__sql_mark *mark) {
  return mark->is_set && dibs__tick_before(dibs__tick_now(), dibs__tick_add_ms(mark->looked, LOOK_MS));
}

/* After a claim that began at `began`.  `all`: it looked at all that is ready. */
static void set_mark(const struct dibs__claiming *c, struct dibs__sql_mark *mark, dibs__tick began, bool all) {
  const row_t *rows = c->op->got;
  uint32_t count = c->op->got_count;
  mark->is_set = count > 0 && count == c->most;
  if (!mark->is_set) return;
  mark->rank = -(int64_t)rows[count - 1].priority;
  mark->due = c->since;
  mark->nr = (int64_t)rows[count - 1].nr;
  mark->at = rows[0].at_ms;
  if (all) mark->looked = began;
}

/* ---- One statement ---- */

static int by_order(const void *x, const void *y) {
  const row_t *a = x, *b = y;
  if (a->priority != b->priority) return a->priority > b->priority ? -1 : 1;
  if (a->due_ms != b->due_ms) return a->due_ms < b->due_ms ? -1 : 1;
  return (a->nr > b->nr) - (a->nr < b->nr);
}

/* `since`: the column from when each was ready. */
static bool read_rows(struct dibs__claiming *c, size_t nth, size_t since) {
  const struct dibs__sql_wire *w = c->g->wire;
  row_t *rows;
  if (!dibs__task_read_rows(w, nth, 1, false, c->op, &rows, &c->op->got_count)) return false;
  c->op->got = rows;
  int64_t due = c->op->got_count ? rows[0].due_ms : 0;
  for (uint32_t i = 0; i < c->op->got_count; i++) {
    rows[i].state = DIBS__TASK_CLAIMED;
    rows[i].due_ms = dibs__sql_cell_number(w, nth, i, since);
  }
  if (c->op->got_count > 1) qsort(rows, c->op->got_count, sizeof *rows, by_order);
  if (c->op->got_count) c->since = rows[c->op->got_count - 1].due_ms;
  for (uint32_t i = 0; i < c->op->got_count; i++) rows[i].due_ms = due;
  return true;
}

/* Claims of several tasks of a kind take turns.  Else a claim that began before another was committed would meet the
 * rows that this one took: PostgreSQL locks such a row before it finds that it is no longer ready, until the end of the
 * statement, and an END of this task, which leaves out locked rows, would have to be tried again.  The turn is a part
 * of the packet, so no client can hold it up. */
static bool takes_turn(const struct dibs__claiming *c) {
  return c->g->wire->engine->turn && c->most > 1 && !c->open && !c->g->wire->inside;
}

/* Any phase, or one.  `behind`: only behind this mark, if it is not NULL. */
static sql_rc take_at_once(struct dibs__claiming *c, const struct dibs__sql_mark *behind) {
  struct dibs__sql_wire *w = c->g->wire;
  const task_op *op = c->op;
  char text[DIBS__TASK_TEXT / 2];
  value values[9] = {dibs__task_text(op->kind), dibs__sql_number((int64_t)dibs__id_digest(op->id)),
                     dibs__sql_number(op->timeout_ms), dibs__task_text(op->by), dibs__sql_number(c->most)};
  if (op->phase_count) values[5] = dibs__task_text(op->phases[0]);
  if (behind) {
    values[5] = dibs__sql_number(behind->rank);
    values[6] = dibs__sql_number(behind->due);
    values[7] = dibs__sql_number(behind->nr);
    values[8] = dibs__sql_number(behind->at);
  }
  bool phase = op->phase_count > 0 && op->phases[0].len;
  snprintf(text, sizeof text, TAKE, phase ? "@{queue}" : "@{ready}",
           phase             ? " AND queue = $6"
           : op->phase_count ? " AND queue IS NULL"
                             : "",
           behind     ? PLAIN_BEHIND
           : c->plain ? PLAIN
                      : "",
           5);
  sql_rc end = takes_turn(c) ? dibs__task_put(c->g, w->engine->turn, values, 1) : DIBS__SQL_OK;
  size_t nth = w->put;
  if (end == DIBS__SQL_OK) end = dibs__task_put(c->g, text, values, behind ? 9 : phase ? 6 : 5);
  if (end == DIBS__SQL_OK && c->open) end = dibs__sql_commit(w);
  if (end == DIBS__SQL_OK) end = w->engine->go(w, !w->inside);
  if (end != DIBS__SQL_OK) return end;
  c->open = false;
  if (!read_rows(c, nth, 15)) return dibs__task_no_memory(c->g);
  if (c->op->got_count && !w->inside) c->g->commits++;
  return end;
}

/* ---- Taking by steps ---- */

static sql_rc put_ready(struct dibs__claiming *c, const dibs__str *of) {
  const dibs__str *phase = of && of->len ? of : NULL;
  char text[DIBS__TASK_TEXT / 2];
  value values[] = {dibs__task_text(c->op->kind), dibs__sql_number(c->most),
                    phase ? dibs__task_text(*phase) : dibs__sql_null()};
  snprintf(text, sizeof text, "SELECT " DIBS__TASK_COLUMNS ", payload" LAST_ERROR ", @{now}" READY,
           phase ? "@{queue}" : "@{ready}",
           phase ? " AND queue = $3"
           : of  ? " AND queue IS NULL"
                 : "",
           c->plain ? PLAIN : "", 2);
  return dibs__task_put(c->g, text, values, phase ? 3 : 2);
}

static bool is_named_before(const task_op *op, uint32_t at) {
  for (uint32_t i = 0; i < at; i++)
    if (dibs__str_equal(op->phases[i], op->phases[at])) return true;
  return false;
}

static sql_rc lock_ready(struct dibs__claiming *c, size_t *first, size_t *answers) {
  struct dibs__sql_wire *w = c->g->wire;
  sql_rc end = c->open ? DIBS__SQL_OK : dibs__sql_begin(w);
  c->open = true;
  *first = w->put;
  if (end == DIBS__SQL_OK && c->op->phase_count == 0) end = put_ready(c, NULL);
  for (uint32_t i = 0; i < c->op->phase_count && end == DIBS__SQL_OK; i++)
    if (!is_named_before(c->op, i)) end = put_ready(c, &c->op->phases[i]);
  *answers = w->put - *first;
  return end == DIBS__SQL_OK ? dibs__task_go(c->g) : end;
}

static sql_rc take_locked(struct dibs__claiming *c, int64_t now) {
  const task_op *op = c->op;
  const row_t *rows = op->got;
  value values[] = {dibs__sql_number((int64_t)dibs__id_digest(op->id)), dibs__sql_number(now + op->timeout_ms),
                    dibs__sql_number(now), dibs__task_text(op->by)};
  value *numbers = malloc(op->got_count * sizeof *numbers);
  if (!numbers) return dibs__task_no_memory(c->g);
  for (uint32_t i = 0; i < op->got_count; i++) numbers[i] = dibs__sql_number((int64_t)rows[i].nr);
  sql_rc end = dibs__task_put_update(c->g, "r_nr", CLAIMED("$3") ", claim = $1, due = $2, owner = $4", "", values, 4,
                                     numbers, 1, op->got_count);
  free(numbers);
  if (end == DIBS__SQL_OK) end = dibs__task_commit(c->g);
  c->open = false;
  return end;
}

/* The rows were read before the UPDATE: makes the answer agree with it. */
void dibs__claim_set_claimed(task_op *op, int64_t now) {
  row_t *rows = op->got;
  for (uint32_t i = 0; i < op->got_count; i++) {
    rows[i].fence = dibs__task_next_fence(rows[i].fence, now);
    rows[i].attempts++;
    rows[i].state = DIBS__TASK_CLAIMED;
    rows[i].due_ms = now + op->timeout_ms;
    rows[i].began_ms = rows[i].at_ms = now;
  }
}

static sql_rc take_by_steps(struct dibs__claiming *c) {
  struct dibs__sql_wire *w = c->g->wire;
  size_t first, answers;
  int64_t now = 0;
  sql_rc end = lock_ready(c, &first, &answers);
  if (end != DIBS__SQL_OK) return end;
  for (size_t i = 0; i < answers && !now; i++)
    if (w->engine->rows(w, first + i)) now = dibs__sql_cell_number(w, first + i, 0, 15);
  row_t *rows;
  if (!dibs__task_read_rows(w, first, answers, false, c->op, &rows, &c->op->got_count))
    return dibs__task_no_memory(c->g);
  c->op->got = rows;
  if (c->op->got_count > 1) qsort(c->op->got, c->op->got_count, sizeof(row_t), by_order);
  if (c->op->got_count > c->most) c->op->got_count = c->most;
  if (c->op->got_count == 0) {
    c->open = false;
    dibs__sql_rollback(w);
    return dibs__sql_dead(w) ? DIBS__SQL_FAILED : DIBS__SQL_OK;
  }
  end = take_locked(c, now);
  if (end == DIBS__SQL_OK) dibs__claim_set_claimed(c->op, now);
  return end;
}

/* After a claim behind a mark got too few: the rest, wherever it is.  If this fails, the tasks that were claimed before
 * are the answer. */
static sql_rc take_rest(struct dibs__claiming *c) {
  struct dibs__sql_wire *w = c->g->wire;
  row_t *first = c->op->got, *all = NULL;
  uint32_t count = c->op->got_count;
  c->op->got = NULL;
  c->op->got_count = 0;
  c->most -= count;
  sql_rc end = take_at_once(c, NULL);
  if (end == DIBS__SQL_OK && c->op->got_count) all = dibs__task_join_rows(first, count, c->op->got, c->op->got_count);
  if (end == DIBS__SQL_OK && c->op->got_count && !all) end = dibs__task_no_memory(c->g);
  if (end != DIBS__SQL_OK && !dibs__sql_dead(w)) dibs__sql_rollback(w);
  if (end == DIBS__SQL_OK) count += c->op->got_count;
  free(c->op->got);
  if (all) free(first);
  c->op->got = all ? all : first;
  c->op->got_count = count;
  return DIBS__SQL_OK;
}

static sql_rc take(struct dibs__claiming *c) {
  const struct dibs__sql_engine *e = c->g->wire->engine;
  dibs__op_free_answer(&c->op->op);
  c->op->got_count = 0;
  if (!e->update_returning || c->op->phase_count > 1 || c->g->wire->inside) return take_by_steps(c);
  if (!e->sessions || c->op->phase_count || !c->plain || c->open) return take_at_once(c, NULL);
  struct dibs__sql_mark *mark = mark_of(c);
  dibs__tick began = dibs__tick_now();
  bool behind = is_fresh(mark);
  sql_rc end = take_at_once(c, behind ? mark : NULL);
  if (end == DIBS__SQL_OK) set_mark(c, mark, began, !behind);
  if (end != DIBS__SQL_OK || !behind || c->op->got_count == c->most) return end;
  return c->op->got_count ? take_rest(c) : take_at_once(c, NULL);
}

/* ---- All of it ---- */

sql_rc dibs__claim_lock_limit(struct dibs__claiming *c, bool *none) {
  struct dibs__sql_wire *w = c->g->wire;
  value kind = dibs__task_text(c->op->kind);
  sql_rc end = dibs__sql_begin(w);
  size_t nth = w->put;
  if (end == DIBS__SQL_OK)
    end = dibs__task_put(c->g, "SELECT running, paused, @{sees_latest} FROM dibs_task_kind WHERE " OF_KIND "@{lock}",
                         &kind, 1);
  if (end == DIBS__SQL_OK)
    /* (Promotion has ended those whose time is over; a claim that ended since may still be extended, so it counts.) */
    end = dibs__task_put(c->g, "SELECT count(*)" BUSY("2") "@{latest}", &kind, 1);
  if (end == DIBS__SQL_OK) end = dibs__task_go(c->g);
  if (end != DIBS__SQL_OK) return end;
  int64_t running = dibs__sql_cell_number(w, nth, 0, 0), has = dibs__sql_cell_number(w, nth + 1, 0, 0);
  bool paused = w->engine->rows(w, nth) && dibs__sql_cell_number(w, nth, 0, 1) != 0;
  bool limited = w->engine->rows(w, nth) && running > 0;
  c->refused = limited && !paused && dibs__sql_cell_number(w, nth, 0, 2) == 0;
  *none = paused || c->refused || (limited && has >= running);
  if (limited && !*none && running - has < c->most) c->most = (uint32_t)(running - has);
  if (!*none) {
    c->open = true;
    return end;
  }
  dibs__sql_rollback(w);
  return dibs__sql_dead(w) ? DIBS__SQL_FAILED : DIBS__SQL_OK;
}

static sql_rc take_carefully(struct dibs__claiming *c, const struct dibs__claim_looked *l) {
  bool none = l->paused;
  sql_rc end = DIBS__SQL_OK;
  if (l->running > 0 && !none) end = dibs__claim_lock_limit(c, &none);
  if (end != DIBS__SQL_OK || none) return end;
  c->plain = false;
  return take(c);
}

static void say_next(struct dibs__claiming *c, const struct dibs__claim_looked *l) {
  bool ready = l->ready && !l->paused && l->running == 0 && c->op->phase_count == 0;
  if (c->op->got_count) return;
  c->op->more = c->promoted && (l->arrived || l->is_over || l->waited);
  if (l->next) c->op->next_ms = l->next > l->now ? l->next - l->now : DIBS__CLAIM_SOON_MS;
  if (ready && (c->op->next_ms < 0 || c->op->next_ms > DIBS__CLAIM_SOON_MS)) c->op->next_ms = DIBS__CLAIM_SOON_MS;
}

static int by_number(const void *x, const void *y) {
  const row_t *a = x, *b = y;
  return (a->nr > b->nr) - (a->nr < b->nr);
}

/* Only those under the fences that the claim names. */
static void keep_by_lane(struct dibs__claiming *c) {
  const struct dibs__sql_wire *w = c->g->wire;
  row_t *rows = c->op->got;
  uint32_t left = 0;
  for (uint32_t i = 0; i < c->op->got_count; i++) {
    int64_t slot = dibs__sql_cell_number(w, 0, i, 18), lane = dibs__sql_cell_number(w, 0, i, 19);
    bool has = lane && slot >= 0 && dibs__lanes_has(c->op, slot, (uint64_t)lane);
    if (has) rows[left++] = rows[i];
  }
  c->op->got_count = left;
  if (left == 0) dibs__op_free_answer(&c->op->op);
}

sql_rc dibs__claim_find_repeat(struct dibs__claiming *c) {
  value values[] = {dibs__task_text(c->op->kind), dibs__sql_number((int64_t)dibs__id_digest(c->op->id))};
  sql_rc end = dibs__task_put(c->g,
                              "SELECT " DIBS__TASK_COLUMNS ", payload" LAST_ERROR
                              ", state, kind, owner, slot, lane" BUSY("2") " AND claim = $2 AND due > " NOW,
                              values, 2);
  if (end == DIBS__SQL_OK) end = dibs__task_go(c->g);
  row_t *rows;
  if (end != DIBS__SQL_OK) return end;
  if (!dibs__task_read_rows(c->g->wire, 0, 1, true, c->op, &rows, &c->op->got_count)) return dibs__task_no_memory(c->g);
  c->op->got = rows;
  if (c->op->lane_count) keep_by_lane(c);
  if (c->op->got_count > 1) qsort(rows, c->op->got_count, sizeof *rows, by_number);
  return end;
}

static sql_rc claim(struct dibs__claiming *c) {
  struct dibs__claim_looked l;
  sql_rc end = c->op->again ? dibs__claim_find_repeat(c) : DIBS__SQL_OK;
  if (end == DIBS__SQL_OK && !c->op->got_count) end = take(c);
  if (end != DIBS__SQL_OK || c->op->got_count) return end;
  end = dibs__claim_look(c, &l);
  if (end != DIBS__SQL_OK) return end;
  bool promotes = l.arrived || l.is_over || l.waited;
  if (promotes) end = dibs__claim_promote(c, &l);
  if (end == DIBS__SQL_OK && (promotes || l.ready)) end = take_carefully(c, &l);
  if (end == DIBS__SQL_OK && !c->op->got_count && promotes) end = dibs__claim_look(c, &l);
  if (end == DIBS__SQL_OK) say_next(c, &l);
  if (end == DIBS__SQL_OK && !c->op->got_count && l.topic_len)
    snprintf(c->op->why, sizeof c->op->why, "its tasks with a key go to the lanes of the topic \"%.*s\"",
             (int)(l.topic_len < 100 ? l.topic_len : 100), l.topic);
  return end;
}

static bool is_past(dibs__tick at, int64_t ms) {
  return at.ns == 0 || dibs__tick_before(dibs__tick_add_ms(at, ms), dibs__tick_now());
}

/* If that fails the claim is not affected. */
static sql_rc look_for_lost(struct dibs__claiming *c) {
  struct dibs__sql_wire *w = c->g->wire;
  if (w->inside || !is_past(w->looked_lost, LOST_ALL_MS)) return DIBS__SQL_OK;
  struct dibs__sql_mark *mark = mark_of(c);
  if (!is_past(mark->looked_lost, LOST_MS)) return DIBS__SQL_OK;
  mark->looked_lost = w->looked_lost = dibs__tick_now();
  sql_rc end = dibs__task_pass_lost(c->g, c->op->kind, mark->lost, &mark->lost_len);
  if (end == DIBS__SQL_OK) end = dibs__lanes_heal(c->g, c->op->kind, &mark->lost_slot);
  if (end == DIBS__SQL_OK || dibs__sql_dead(w) || w->unsure) return end;
  dibs__sql_rollback(w);
  return dibs__sql_dead(w) ? DIBS__SQL_FAILED : DIBS__SQL_OK;
}

sql_rc dibs__task_claim(struct dibs__sql_guard *g, task_op *op) {
  struct dibs__claiming c = {.g = g, .op = op, .most = op->most, .plain = true};
  op->op.status = DIBS_UNKNOWN;
  sql_rc end = look_for_lost(&c);
  if (end == DIBS__SQL_OK) end = op->lane_count ? dibs__claim_by_lane(&c) : claim(&c);
  if (end == DIBS__SQL_OK && op->op.status == DIBS_UNKNOWN) op->op.status = c.refused ? DIBS_UNSUPPORTED : DIBS_OK;
  if (c.refused)
    snprintf(op->why, sizeof op->why,
             "the kind has a limit, and your transaction may not see the latest claims of others; begin it with READ"
             " COMMITTED, or claim outside of it");
  return end;
}

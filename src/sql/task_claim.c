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
#include "sql/task_impl.h"
#include "store/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__sql_value value;
typedef struct dibs__task_op task_op;
typedef struct dibs__task_row row_t;
typedef struct dibs__task_locked locked_t;

/* When a claim is repeated that found ready tasks, all of which other sessions had locked for a moment. */
enum { SOON_MS = 10 };

enum {
  LOOK_MS = 1000,
  LOST_MS = 30000,    /* of one kind */
  LOST_ALL_MS = 1000, /* of all kinds: a connection remembers only some */
  ALONE_MAX = 100,    /* late claims that a claim ends one by one */
  CLOCK_MS = 10,      /* parts of a statement read the clock at slightly different times */
  ARRIVED_MS = 1000   /* arrived tasks that are younger are seen at once */
};

/* ---- Taking ---- */

#define OF_KIND "kind = $1"
#define NOW "(SELECT @{start})"
#define LIMITED "SELECT 1 FROM dibs_task_kind k WHERE k.kind = $1 AND (running > 0 OR paused > 0)"
/* SQLite uses a partial index only if the statement has the very condition of this index. */
#define BUSY(of) " FROM dibs_task@{busy} WHERE " OF_KIND " AND state = " of " AND state <> 1@{zero}"
#define ARRIVED "SELECT 1" BUSY("0")
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
#define LAST_ERROR                                                                                                     \
  ", CASE WHEN fails > 0 THEN (SELECT e.text FROM dibs_task_error e WHERE e.nr = dibs_task.nr"                         \
  " ORDER BY e.fence DESC LIMIT 1) END"
#define READY " FROM dibs_task%s WHERE " OF_KIND "%s AND state = 1%s ORDER BY rank, due, nr LIMIT $%d@{skip}"
/* First `since`: MariaDB sets the columns one after the other.  The fence: R61. */
#define CLAIMED(now)                                                                                                   \
  "since = due, state = 2, rank = 0, queue = NULL, attempts = attempts + 1, began = " now ", at = " now                \
  ", fence = CASE WHEN fence < " now " THEN " now " ELSE fence + 1 END"
#define TAKE                                                                                                           \
  "UPDATE dibs_task SET " CLAIMED("n.t") ", claim = $2, due = n.t + $3, owner = $4 FROM (SELECT @{now} AS t) n"        \
                                         " WHERE @{row}@{any}SELECT @{row}" READY                                      \
                                         "@{none} RETURNING " DIBS__TASK_COLUMNS ", payload" LAST_ERROR ", since"

struct claiming {
  struct dibs__sql_guard *g;
  task_op *op;
  uint32_t most; /* fewer than the operation's, of a kind with a limit */
  bool plain;    /* only if nothing prevents it */
  bool open;     /* in a transaction */
  bool promoted; /* it changed some of the tasks that waited for promotion */
  bool refused;  /* inside a transaction in which the claimed tasks can't be counted */
  int64_t since; /* from when the last one of the answer was ready */
};

/* ---- Marks ---- */

/* The mark of the kind; a new mark is not set. */
static struct dibs__sql_mark *mark_of(const struct claiming *c) {
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
static void set_mark(const struct claiming *c, struct dibs__sql_mark *mark, dibs__tick began, bool all) {
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
static bool read_rows(struct claiming *c, size_t nth, size_t since) {
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
static bool takes_turn(const struct claiming *c) {
  return c->g->wire->engine->turn && c->most > 1 && !c->open && !c->g->wire->inside;
}

/* Any phase, or one.  `behind`: only behind this mark, if it is not NULL. */
static sql_rc take_at_once(struct claiming *c, const struct dibs__sql_mark *behind) {
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

static sql_rc put_ready(struct claiming *c, const dibs__str *of) {
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

static sql_rc lock_ready(struct claiming *c, size_t *first, size_t *answers) {
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

static sql_rc take_locked(struct claiming *c, int64_t now) {
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
static void set_claimed(task_op *op, int64_t now) {
  row_t *rows = op->got;
  for (uint32_t i = 0; i < op->got_count; i++) {
    rows[i].fence = dibs__task_next_fence(rows[i].fence, now);
    rows[i].attempts++;
    rows[i].state = DIBS__TASK_CLAIMED;
    rows[i].due_ms = now + op->timeout_ms;
    rows[i].began_ms = rows[i].at_ms = now;
  }
}

static sql_rc take_by_steps(struct claiming *c) {
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
  if (end == DIBS__SQL_OK) set_claimed(c->op, now);
  return end;
}

/* After a claim behind a mark got too few: the rest, wherever it is.  If this fails, the tasks that were claimed before
 * are the answer. */
static sql_rc take_rest(struct claiming *c) {
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

static sql_rc take(struct claiming *c) {
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

/* ---- The reason why nothing was claimed ---- */

struct looked {
  int64_t now;
  bool arrived, is_over, waited; /* there is something to promote */
  int64_t next;                  /* when a claim is over or a task has waited; 0: never */
  bool ready;                    /* some task is ready */
  int64_t running;               /* the limit; 0: none */
  bool paused;
};

#define FIRST_DUE(of) "(SELECT due" BUSY(of) " ORDER BY due LIMIT 1)"

static sql_rc look(struct claiming *c, struct looked *l) {
  struct dibs__sql_wire *w = c->g->wire;
  value kind = dibs__task_text(c->op->kind);
  sql_rc end = dibs__task_put(c->g,
                              "SELECT @{now}, (" ARRIVED " LIMIT 1), " FIRST_DUE("2") ", " FIRST_DUE(
                                  "3") ", (SELECT 1 FROM dibs_task@{ready} WHERE " OF_KIND
                                       " AND state = 1 LIMIT 1), (SELECT running FROM dibs_task_kind WHERE " OF_KIND
                                       "), (SELECT paused FROM dibs_task_kind WHERE " OF_KIND ")",
                              &kind, 1);
  if (end == DIBS__SQL_OK) end = dibs__task_go(c->g);
  if (end != DIBS__SQL_OK) return end;
  int64_t over = dibs__sql_cell_number(w, 0, 0, 2), waited = dibs__sql_cell_number(w, 0, 0, 3);
  bool claimed = !dibs__task_cell_is_null(w, 0, 0, 2), waits = !dibs__task_cell_is_null(w, 0, 0, 3);
  *l = (struct looked){.now = dibs__sql_cell_number(w, 0, 0, 0),
                       .arrived = !dibs__task_cell_is_null(w, 0, 0, 1),
                       .ready = !dibs__task_cell_is_null(w, 0, 0, 4),
                       .running = dibs__sql_cell_number(w, 0, 0, 5),
                       .paused = dibs__sql_cell_number(w, 0, 0, 6) != 0};
  l->is_over = claimed && over <= l->now;
  l->waited = waits && waited <= l->now;
  if (claimed) l->next = over;
  if (waits && (!claimed || waited < over)) l->next = waited;
  return end;
}

/* ---- Promotion ---- */

/* An arrived task with a serial text. */
struct arrived {
  uint64_t nr;
  dibs__str serial;
  bool locked;
};

struct promotion {
  struct dibs__sql_guard *g;
  dibs__str kind;
  struct looked found;
  uint64_t *waited, *plain; /* numbers of locked tasks */
  size_t waited_count, plain_count;
  locked_t over;
  struct arrived *serial; /* by number; malloc'd, with their texts */
  size_t serial_count;
};

static void free_promotion(struct promotion *p) {
  free(p->waited);
  free(p->plain);
  free(p->serial);
  dibs__task_locked_free(&p->over);
}

#define ARRIVED_PLAIN " FROM dibs_task@{plain} WHERE " OF_KIND " AND state = 0 AND rank = 0 AND serial IS NULL"
#define ARRIVED_KEYED                                                                                                  \
  " FROM dibs_task@{keyed} WHERE " OF_KIND " AND state = 0 AND rank = 0 AND serial IS NOT NULL ORDER BY nr LIMIT 1000"
#define IN_ORDER " ORDER BY due, nr LIMIT 1000@{skip}"
_Static_assert(DIBS__TASK_STEP == 1000, "one number, written twice");

/* The row with an empty text, by which clients take turns to admit tasks.  Two that begin with a kind at the same time
 * both miss it: the second one waits for the first, and then finds it. */
static sql_rc put_turn(struct promotion *p, const value *kind) {
  bool on_conflict = p->g->wire->engine->on_conflict;
  char text[400];
  snprintf(text, sizeof text,
           "INSERT %sINTO dibs_task_serial (kind, serial, nr) SELECT v.kind, '', 0 FROM (SELECT $1 AS kind) v"
           " WHERE NOT EXISTS (SELECT 1 FROM dibs_task_serial s WHERE s.kind = $1 AND s.serial = '')%s",
           on_conflict ? "" : "IGNORE ", on_conflict ? " ON CONFLICT DO NOTHING" : "");
  return dibs__task_put(p->g, text, kind, 1);
}

static sql_rc put_finds(struct promotion *p) {
  value kind = dibs__task_text(p->kind);
  sql_rc end = dibs__sql_begin(p->g->wire);
  if (end == DIBS__SQL_OK && p->found.waited)
    end = dibs__task_put(p->g, "SELECT nr" BUSY("3") " AND due <= " NOW IN_ORDER, &kind, 1);
  if (end == DIBS__SQL_OK && p->found.is_over)
    end = dibs__task_put(p->g, "SELECT " DIBS__TASK_LOCKED BUSY("2") " AND due <= " NOW IN_ORDER, &kind, 1);
  if (end != DIBS__SQL_OK || !p->found.arrived) return end;
  end = dibs__task_put(p->g, "SELECT nr" ARRIVED_PLAIN IN_ORDER, &kind, 1);
  /* Only the client that has locked the row with an empty text admits tasks. */
  if (end == DIBS__SQL_OK) end = put_turn(p, &kind);
  if (end == DIBS__SQL_OK)
    end = dibs__task_put(p->g, "SELECT nr FROM dibs_task_serial WHERE " OF_KIND " AND serial = ''@{skip}", &kind, 1);
  if (end == DIBS__SQL_OK) end = dibs__task_put(p->g, "SELECT nr, serial" ARRIVED_KEYED, &kind, 1);
  if (end == DIBS__SQL_OK) end = dibs__task_put(p->g, "SELECT nr" ARRIVED_KEYED "@{skip}", &kind, 1);
  return end;
}

static bool read_numbers(const struct dibs__sql_wire *w, size_t nth, uint64_t **numbers, size_t *count) {
  *count = w->engine->rows(w, nth);
  *numbers = malloc((*count + 1) * sizeof **numbers);
  for (size_t i = 0; *numbers && i < *count; i++) (*numbers)[i] = (uint64_t)dibs__sql_cell_number(w, nth, i, 0);
  return *numbers != NULL;
}

static bool read_serial(const struct dibs__sql_wire *w, size_t nth, struct promotion *p) {
  size_t count = w->engine->rows(w, nth), size = 0, locked = 0, locks = w->engine->rows(w, nth + 1);
  for (size_t i = 0; i < count; i++) size += dibs__task_cell_text(w, nth, i, 1).len;
  p->serial = malloc((count + 1) * sizeof *p->serial + size);
  if (!p->serial) return false;
  char *texts = (char *)(p->serial + count + 1);
  for (size_t i = 0; i < count; i++) {
    dibs__str text = dibs__task_cell_text(w, nth, i, 1);
    struct arrived *a = &p->serial[i];
    *a = (struct arrived){.nr = (uint64_t)dibs__sql_cell_number(w, nth, i, 0), .serial = {texts, text.len}};
    memcpy(texts, text.p, text.len);
    texts += text.len;
    while (locked < locks && (uint64_t)dibs__sql_cell_number(w, nth + 1, locked, 0) < a->nr) locked++;
    a->locked = locked < locks && (uint64_t)dibs__sql_cell_number(w, nth + 1, locked, 0) == a->nr;
  }
  p->serial_count = count;
  return true;
}

static bool read_finds(struct promotion *p) {
  const struct dibs__sql_wire *w = p->g->wire;
  size_t nth = 1; /* after BEGIN */
  if (p->found.waited && !read_numbers(w, nth++, &p->waited, &p->waited_count)) return false;
  if (p->found.is_over && !dibs__task_read_locked(w, nth++, &p->over)) return false;
  if (!p->found.arrived) return true;
  if (!read_numbers(w, nth, &p->plain, &p->plain_count)) return false;
  return w->engine->rows(w, nth + 2) == 0 || read_serial(w, nth + 3, p);
}

/* ---- Admission to serial texts ---- */

static int by_serial(const void *x, const void *y) {
  const struct arrived *a = x, *b = y;
  if (!dibs__str_equal(a->serial, b->serial)) return dibs__str_before(a->serial, b->serial) ? -1 : 1;
  return (a->nr > b->nr) - (a->nr < b->nr);
}

/* Leaves those that may be admitted, by text: not those behind a task that is not locked. */
static void choose_serial(struct promotion *p) {
  size_t left = 0;
  if (p->serial_count > 1) qsort(p->serial, p->serial_count, sizeof *p->serial, by_serial);
  for (size_t i = 0, first = 0; i < p->serial_count; i++) {
    if (!dibs__str_equal(p->serial[i].serial, p->serial[first].serial)) first = i;
    if (i > first && !p->serial[i - 1].locked) p->serial[i].locked = false;
  }
  for (size_t i = 0; i < p->serial_count; i++)
    if (p->serial[i].locked) p->serial[left++] = p->serial[i];
  p->serial_count = left;
}

/* An empty text is none.  (Sorted, those come first.)  false: no memory. */
static bool part_empty(struct promotion *p) {
  size_t empty = 0;
  while (empty < p->serial_count && p->serial[empty].serial.len == 0) empty++;
  if (empty == 0) return true;
  uint64_t *plain = realloc(p->plain, (p->plain_count + empty) * sizeof *plain);
  if (!plain) return false;
  p->plain = plain;
  for (size_t i = 0; i < empty; i++) p->plain[p->plain_count++] = p->serial[i].nr;
  p->serial_count -= empty;
  memmove(p->serial, p->serial + empty, p->serial_count * sizeof *p->serial);
  return true;
}

static sql_rc put_heads(struct promotion *p) {
  const struct dibs__sql_engine *e = p->g->wire->engine;
  char text[DIBS__TASK_TEXT / 4];
  value kind = dibs__task_text(p->kind), *rows = malloc(2 * p->serial_count * sizeof *rows);
  size_t count = 0;
  if (!rows) return dibs__task_no_memory(p->g);
  for (size_t i = 0; i < p->serial_count; i++) {
    if (i && dibs__str_equal(p->serial[i].serial, p->serial[i - 1].serial)) continue;
    rows[2 * count] = dibs__task_text(p->serial[i].serial);
    rows[2 * count++ + 1] = dibs__sql_number((int64_t)p->serial[i].nr);
  }
  snprintf(text, sizeof text,
           "INSERT INTO dibs_task_serial (kind, serial, nr) WITH r(r_serial, r_nr) AS ($rows)"
           " SELECT $1, r_serial, r_nr FROM r WHERE true %s",
           e->on_conflict ? "ON CONFLICT (kind, serial) DO UPDATE SET nr = dibs_task_serial.nr"
                          : "ON DUPLICATE KEY UPDATE nr = dibs_task_serial.nr");
  sql_rc end = dibs__task_put_rows(p->g, text, &kind, 1, rows, 2, count);
  free(rows);
  return end;
}

/* The row of its text is locked, and has the number of the task that runs. */
static sql_rc put_admission(struct promotion *p) {
  const struct dibs__sql_engine *e = p->g->wire->engine;
  char text[DIBS__TASK_TEXT / 2];
  value *rows = malloc(p->serial_count * sizeof *rows);
  value values[] = {dibs__sql_number(p->found.now), dibs__task_text(p->kind)};
  if (!rows) return dibs__task_no_memory(p->g);
  for (size_t i = 0; i < p->serial_count; i++) rows[i] = dibs__sql_number((int64_t)p->serial[i].nr);
  /* First `since`, last `due`: MariaDB sets the columns one after the other. */
  static const char set[] =
      "since = CASE WHEN head = nr THEN NULL ELSE due END, state = CASE WHEN head <> nr THEN 4 WHEN due <= $1 THEN 1"
      " ELSE 3 END, rank = CASE WHEN head = nr AND due <= $1 THEN 0 - priority ELSE 0 END, queue = CASE WHEN head <> nr"
      " THEN serial WHEN due <= $1 THEN nullif(phase, '') END, due = CASE WHEN head = nr THEN due ELSE 0 END";
#define HEADS                                                                                                          \
  "(WITH r(r_nr) AS ($rows) SELECT r_nr, %s(SELECT s.nr FROM dibs_task_serial s WHERE s.kind = $2 AND s.serial ="      \
  " (SELECT t.serial FROM dibs_task t WHERE t.nr = r_nr)) AS head FROM r) r"
  /* No join of PostgreSQL: for a minute after a vacuum of the emptied table it expects no rows, and would read a whole
   * index for each task. */
  if (e->joins)
    snprintf(text, sizeof text, "UPDATE " HEADS " STRAIGHT_JOIN dibs_task ON nr = r.r_nr SET %s", "", set);
  else
    snprintf(text, sizeof text, "UPDATE dibs_task SET %s FROM " HEADS " WHERE dibs_task.@{row} = r.r_row", set,
             "(SELECT t.@{row} FROM dibs_task t WHERE t.nr = r_nr) AS r_row, ");
  sql_rc end = dibs__task_put_rows(p->g, text, values, 2, rows, 1, p->serial_count);
  free(rows);
  return end;
}

/* ---- Writing ---- */

static sql_rc put_numbers(struct promotion *p, const uint64_t *numbers, size_t count, const char *set) {
  value *rows = malloc((count + 1) * sizeof *rows), now = dibs__sql_number(p->found.now);
  if (!rows) return dibs__task_no_memory(p->g);
  for (size_t i = 0; i < count; i++) rows[i] = dibs__sql_number((int64_t)numbers[i]);
  sql_rc end = count ? dibs__task_put_update(p->g, "r_nr", set, "", &now, 1, rows, 1, count) : DIBS__SQL_OK;
  free(rows);
  return end;
}

/* Claims without an answer until their time was over. */
static bool end_late_claims(struct promotion *p, char **texts) {
  enum { SIZE = DIBS_OWNER_MAX + 64 };
  *texts = malloc(p->over.count * SIZE + 1);
  for (size_t i = 0; *texts && i < p->over.count; i++) {
    struct dibs__task_transition *t = &p->over.rows[i];
    char *text = *texts + i * SIZE;
    int len = t->owner.len < DIBS_OWNER_MAX ? (int)t->owner.len : DIBS_OWNER_MAX;
    len = snprintf(text, SIZE, "the claim of %.*s ended without an answer", len, t->owner.p);
    t->text = dibs__str_of(text, (size_t)len);
    dibs__task_fails(t, 0, t->due, p->over.now);
  }
  return *texts != NULL;
}

static sql_rc write_promotion(struct promotion *p) {
  static const char when_due[] = "state = CASE WHEN due <= $1 THEN 1 ELSE 3 END, rank = CASE WHEN due <= $1 THEN"
                                 " 0 - priority ELSE 0 END, queue = CASE WHEN due <= $1 THEN nullif(phase, '') END";
  char *texts = NULL;
  choose_serial(p);
  if (!part_empty(p) || !end_late_claims(p, &texts)) return dibs__task_no_memory(p->g);
  sql_rc end = put_numbers(p, p->waited, p->waited_count, when_due);
  if (end == DIBS__SQL_OK) end = put_numbers(p, p->plain, p->plain_count, when_due);
  if (end == DIBS__SQL_OK && p->serial_count) end = put_heads(p);
  if (end == DIBS__SQL_OK && p->serial_count) end = put_admission(p);
  if (end == DIBS__SQL_OK) end = dibs__task_write(p->g, &p->over);
  free(texts);
  return end;
}

static sql_rc promote_together(struct claiming *c, const struct looked *found) {
  struct promotion p = {.g = c->g, .kind = c->op->kind, .found = *found};
  sql_rc end = put_finds(&p);
  if (end == DIBS__SQL_OK) end = dibs__task_go(p.g);
  if (end == DIBS__SQL_OK && !read_finds(&p)) end = dibs__task_no_memory(p.g);
  if (end == DIBS__SQL_OK) end = write_promotion(&p);
  c->promoted = end == DIBS__SQL_OK && p.waited_count + p.over.count + p.plain_count + p.serial_count > 0;
  free_promotion(&p);
  return end;
}

/* After a failure.  OK: the engine refused a row of it, and it is rolled back. */
static sql_rc undo_refused(struct dibs__sql_guard *g) {
  if (dibs__sql_dead(g->wire) || g->wire->unsure || !dibs__task_is_one(g->wire->trouble)) return DIBS__SQL_FAILED;
  dibs__sql_rollback(g->wire);
  return dibs__sql_dead(g->wire) ? DIBS__SQL_FAILED : DIBS__SQL_OK;
}

/* The nth of the late claims in a transaction of its own.  *more: there is one. */
static sql_rc end_late_claim(struct claiming *c, int64_t nth, bool *more) {
  struct dibs__sql_wire *w = c->g->wire;
  struct promotion p = {.g = c->g, .kind = c->op->kind};
  value values[] = {dibs__task_text(p.kind), dibs__sql_number(nth)};
  char *texts = NULL;
  sql_rc end = dibs__sql_begin(w);
  size_t at = w->put;
  if (end == DIBS__SQL_OK)
    end = dibs__task_put(
        p.g, "SELECT " DIBS__TASK_LOCKED BUSY("2") " AND due <= " NOW " ORDER BY due, nr LIMIT 1 OFFSET $2@{skip}",
        values, 2);
  if (end == DIBS__SQL_OK) end = dibs__task_go(p.g);
  if (end == DIBS__SQL_OK && (!dibs__task_read_locked(w, at, &p.over) || !end_late_claims(&p, &texts)))
    end = dibs__task_no_memory(p.g);
  *more = p.over.count > 0;
  if (end == DIBS__SQL_OK) end = *more ? dibs__task_write(p.g, &p.over) : dibs__task_commit(p.g);
  free(texts);
  free_promotion(&p);
  return end;
}

/* If the engine refuses to write what becomes of a late claim, this claim alone stays as it is: the others are ended
 * one by one, up to ALONE_MAX such ones. */
static sql_rc promote(struct claiming *c, const struct looked *found) {
  struct looked others = *found;
  sql_rc end = promote_together(c, found);
  if (end == DIBS__SQL_OK || !found->is_over || c->g->wire->inside || undo_refused(c->g) != DIBS__SQL_OK) return end;
  others.is_over = false;
  bool more = true;
  int64_t refused = 0;
  for (int i = 0; more && i < ALONE_MAX; i++) {
    end = end_late_claim(c, refused, &more);
    if (end == DIBS__SQL_OK) continue;
    if (undo_refused(c->g) != DIBS__SQL_OK) return end;
    refused++;
  }
  return others.arrived || others.waited ? promote_together(c, &others) : DIBS__SQL_OK;
}

/* ---- All of it ---- */

/* The kind's row stays locked until the claim is committed.  *none: the limit is reached. */
static sql_rc lock_limit(struct claiming *c, bool *none) {
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

static sql_rc take_carefully(struct claiming *c, const struct looked *l) {
  bool none = l->paused;
  sql_rc end = DIBS__SQL_OK;
  if (l->running > 0 && !none) end = lock_limit(c, &none);
  if (end != DIBS__SQL_OK || none) return end;
  c->plain = false;
  return take(c);
}

static void say_next(struct claiming *c, const struct looked *l) {
  bool ready = l->ready && !l->paused && l->running == 0 && c->op->phase_count == 0;
  if (c->op->got_count) return;
  c->op->more = c->promoted && (l->arrived || l->is_over || l->waited);
  if (l->next) c->op->next_ms = l->next > l->now ? l->next - l->now : SOON_MS;
  if (ready && (c->op->next_ms < 0 || c->op->next_ms > SOON_MS)) c->op->next_ms = SOON_MS;
}

static int by_number(const void *x, const void *y) {
  const row_t *a = x, *b = y;
  return (a->nr > b->nr) - (a->nr < b->nr);
}

/* The tasks that an earlier request with this id claimed and still has. */
static sql_rc find_repeat(struct claiming *c) {
  value values[] = {dibs__task_text(c->op->kind), dibs__sql_number((int64_t)dibs__id_digest(c->op->id))};
  sql_rc end = dibs__task_put(c->g,
                              "SELECT " DIBS__TASK_COLUMNS ", payload" LAST_ERROR
                              ", state, kind, owner" BUSY("2") " AND claim = $2 AND due > " NOW,
                              values, 2);
  if (end == DIBS__SQL_OK) end = dibs__task_go(c->g);
  row_t *rows;
  if (end != DIBS__SQL_OK) return end;
  if (!dibs__task_read_rows(c->g->wire, 0, 1, true, c->op, &rows, &c->op->got_count)) return dibs__task_no_memory(c->g);
  c->op->got = rows;
  if (c->op->got_count > 1) qsort(rows, c->op->got_count, sizeof *rows, by_number);
  return end;
}

static sql_rc claim(struct claiming *c) {
  struct looked l;
  sql_rc end = c->op->again ? find_repeat(c) : DIBS__SQL_OK;
  if (end == DIBS__SQL_OK && !c->op->got_count) end = take(c);
  if (end != DIBS__SQL_OK || c->op->got_count) return end;
  end = look(c, &l);
  if (end != DIBS__SQL_OK) return end;
  bool promotes = l.arrived || l.is_over || l.waited;
  if (promotes) end = promote(c, &l);
  if (end == DIBS__SQL_OK && (promotes || l.ready)) end = take_carefully(c, &l);
  if (end == DIBS__SQL_OK && !c->op->got_count && promotes) end = look(c, &l);
  if (end == DIBS__SQL_OK) say_next(c, &l);
  return end;
}

static bool is_past(dibs__tick at, int64_t ms) {
  return at.ns == 0 || dibs__tick_before(dibs__tick_add_ms(at, ms), dibs__tick_now());
}

/* If that fails the claim is not affected. */
static sql_rc look_for_lost(struct claiming *c) {
  struct dibs__sql_wire *w = c->g->wire;
  if (w->inside || !is_past(w->looked_lost, LOST_ALL_MS)) return DIBS__SQL_OK;
  struct dibs__sql_mark *mark = mark_of(c);
  if (!is_past(mark->looked_lost, LOST_MS)) return DIBS__SQL_OK;
  mark->looked_lost = w->looked_lost = dibs__tick_now();
  sql_rc end = dibs__task_pass_lost(c->g, c->op->kind, mark->lost, &mark->lost_len);
  if (end == DIBS__SQL_OK || dibs__sql_dead(w) || w->unsure) return end;
  dibs__sql_rollback(w);
  return dibs__sql_dead(w) ? DIBS__SQL_FAILED : DIBS__SQL_OK;
}

sql_rc dibs__task_claim(struct dibs__sql_guard *g, task_op *op) {
  struct claiming c = {.g = g, .op = op, .most = op->most, .plain = true};
  sql_rc end = look_for_lost(&c);
  if (end == DIBS__SQL_OK) end = claim(&c);
  if (end == DIBS__SQL_OK) op->op.status = c.refused ? DIBS_UNSUPPORTED : DIBS_OK;
  if (c.refused)
    snprintf(op->why, sizeof op->why,
             "the kind has a limit, and your transaction may not see the latest claims of others; begin it with READ"
             " COMMITTED, or claim outside of it");
  return end;
}

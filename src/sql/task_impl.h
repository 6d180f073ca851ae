/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SQL_TASK_IMPL_H
#define DIBS_SQL_TASK_IMPL_H
/*
 * What the files about tasks share.
 *
 *   task.c         a batch; statements with their words; retries
 *   task_add.c     ADD
 *   task_claim.h   CLAIM, and the files about it
 *   task_end.c     EXTEND and END
 *   task_write.c   locking tasks, and writing what becomes of them
 *   task_key.c     what else becomes of a key by lane then
 *   task_change.c  changes by hand, settings, sweeping
 *   task_list.c    LIST, COUNT; rows as answers
 *
 * Order of locks: the row of the kind, tasks by number, then rows of serial texts by (kind, serial text), or of lanes
 * by number, then the task that is next.  (The last one is a task again: a client that changes blocked tasks by hand
 * may meet it the other way round.  The engine finds that, and one of the two is run again.)
 */
#include "base/text.h"
#include "sql/wire.h"
#include "store/task.h"

enum {
  DIBS__TASK_TEXT = 6144, /* of a statement */
  DIBS__TASK_STEP = 1000, /* rows that a claim promotes, and a change handles, at once */
  DIBS__TASK_SWEPT = 500  /* rows that a step of sweeping deletes */
};

/* ---- task.c ---- */

/* Puts a statement: a template of text.h, which knows these words too: @{skip}, the clause that locks the rows of a
 * SELECT and leaves out those that another session has locked; @{ready}, @{busy}, @{queue}, @{slot}, @{plain} and
 * @{keyed}, which index a SELECT from dibs_task uses; @{zero}, a condition of rows that are not ready, for the index of
 * MariaDB;
 * @{any} and @{none} around a subquery of numbers or rows; @{row}, the column by which a locked row is found fastest;
 * @{latest} and @{sees_latest} of the engine, which are empty and 1 outside of users' transactions.
 *
 * PostgreSQL may expect no row in a full table (schema.c).  So these statements leave it one way to find tasks by their
 * numbers: a condition of one table (no join, which it may do by reading all tasks in the order of their numbers; and
 * no order by the number itself), in a subquery for each row where necessary. */
enum dibs__sql_rc dibs__task_put(struct dibs__sql_guard *guard, const char *text, const struct dibs__sql_value *values,
                                 size_t count);
enum dibs__sql_rc dibs__task_put_rows(struct dibs__sql_guard *guard, const char *text,
                                      const struct dibs__sql_value *values, size_t count,
                                      const struct dibs__sql_value *rows, size_t columns, size_t row_count);
/* UPDATE dibs_task by rows.  `columns` of r, the first of which is r_nr; `where`: " AND ..." or "". */
enum dibs__sql_rc dibs__task_put_update(struct dibs__sql_guard *guard, const char *columns, const char *set,
                                        const char *where, const struct dibs__sql_value *values, size_t count,
                                        const struct dibs__sql_value *rows, size_t width, size_t row_count);
/* DELETE FROM table, by the numbers of tasks. */
enum dibs__sql_rc dibs__task_put_delete(struct dibs__sql_guard *guard, const char *table, const uint64_t *numbers,
                                        size_t count);
/* "FROM dibs_task WHERE nr is one of $rows": for a SELECT. */
const char *dibs__task_from_numbers(const struct dibs__sql_guard *guard);
/* Sends what was put, as a transaction: puts COMMIT, and counts it. */
enum dibs__sql_rc dibs__task_commit(struct dibs__sql_guard *guard);
static inline enum dibs__sql_rc dibs__task_go(struct dibs__sql_guard *guard) {
  return guard->wire->engine->go(guard->wire, false);
}
enum dibs__sql_rc dibs__task_no_memory(struct dibs__sql_guard *guard);
/* Errors that may be one item's fault. */
bool dibs__task_is_one(enum dibs__sql_trouble trouble);

static inline struct dibs__sql_value dibs__task_text(dibs__str text) {
  return dibs__sql_text(text.p, text.len);
}
static inline dibs__str dibs__task_cell_text(const struct dibs__sql_wire *wire, size_t nth, size_t row, size_t column) {
  struct dibs__sql_value cell = wire->engine->cell(wire, nth, row, column, DIBS__SQL_TEXT);
  return cell.kind == DIBS__SQL_NULL ? (dibs__str){"", 0} : (dibs__str){cell.p, cell.len};
}
static inline bool dibs__task_cell_is_null(const struct dibs__sql_wire *wire, size_t nth, size_t row, size_t column) {
  return wire->engine->cell(wire, nth, row, column, DIBS__SQL_NUMBER).kind == DIBS__SQL_NULL;
}

/* ---- The operations: each answers one, or FAILED: its transaction was not committed, as far as is known. ---- */

enum dibs__sql_rc dibs__task_add(struct dibs__sql_guard *guard, struct dibs__task_op *op);
enum dibs__sql_rc dibs__task_claim(struct dibs__sql_guard *guard, struct dibs__task_op *op);
enum dibs__sql_rc dibs__task_extend(struct dibs__sql_guard *guard, struct dibs__task_op *op);
enum dibs__sql_rc dibs__task_end(struct dibs__sql_guard *guard, struct dibs__task_op *op);
enum dibs__sql_rc dibs__task_change(struct dibs__sql_guard *guard, struct dibs__task_op *op);
enum dibs__sql_rc dibs__task_list(struct dibs__sql_guard *guard, struct dibs__task_op *op);
enum dibs__sql_rc dibs__task_count(struct dibs__sql_guard *guard, struct dibs__task_op *op);
enum dibs__sql_rc dibs__task_kind(struct dibs__sql_guard *guard, struct dibs__task_op *op);

/* ---- task_write.c ---- */

/* A task that is locked, and what becomes of it. */
struct dibs__task_transition {
  uint64_t nr, fence;
  dibs__str kind, serial, phase;
  uint32_t state, attempts, fails, tries;
  int32_t priority;
  dibs__str owner;
  bool has_ended; /* `ended` and `verdict` are set */
  int64_t ended, verdict, due, keep_ms;
  bool has_slot; /* it is by lane: `state` is READY or WAITING where the row has 4 and is not put aside */
  int64_t slot;  /* as the row has it */
  uint64_t lane; /* of a claim by lane: the fence of the lane; 0: it was made without lanes */
  /* For DONE: the smallest unfinished number of its key that is not locked here, up to the largest of the key that is;
   * 0: there is none. */
  uint64_t before;
  /* What becomes of it. */
  bool changes;
  bool purged;   /* it is deleted, and not kept */
  uint32_t to;   /* its next state; attempts, fails, phase, ended and verdict above are the next ones, too */
  int64_t at_ms; /* its next due; of a finished one until when it is kept, 0: without end */
  bool error;    /* `text` is kept as that of a failed try */
  dibs__str text;
  bool follows; /* its claim ends with that of an earlier task of its key (R109) */
};

struct dibs__task_locked {
  struct dibs__task_transition *rows; /* by number; malloc'd, with their texts */
  size_t count;
  int64_t now;
  bool sees_latest; /* what dibs__task_key_before looked at */
};

/* Statements that lock tasks have these columns. */
#define DIBS__TASK_LOCKED                                                                                              \
  "nr, kind, serial, phase, state, fence, attempts, fails, tries, priority, ended, verdict, due,"                      \
  " owner, (SELECT k.keep FROM dibs_task_kind k WHERE k.kind = dibs_task.kind), @{now}, slot, lane"
/* Puts the statement; `skip`: without those that another session has locked. */
enum dibs__sql_rc dibs__task_put_lock(struct dibs__sql_guard *guard, const uint64_t *numbers, size_t count, bool skip);
/* Reads the answers, or one.  false: no memory. */
bool dibs__task_read_all_locked(const struct dibs__sql_wire *wire, size_t first, size_t answers,
                                struct dibs__task_locked *locked);
static inline bool dibs__task_read_locked(const struct dibs__sql_wire *wire, size_t nth,
                                          struct dibs__task_locked *locked) {
  return dibs__task_read_all_locked(wire, nth, 1, locked);
}
/* The locked task; NULL: it is not among them. */
struct dibs__task_transition *dibs__task_locked_find(const struct dibs__task_locked *locked, uint64_t nr);
void dibs__task_locked_free(struct dibs__task_locked *locked);

/* Each decides what becomes of the task; `now` is the instant from which delays count. */
void dibs__task_finishes(struct dibs__task_transition *t, enum dibs__task_state state, int64_t now);
void dibs__task_continues(struct dibs__task_transition *t, int64_t delay_ms, int64_t now);
/* A failed try (R70), after which it is ready at `due`.  `tries`: how often it may fail; 0: as its row says. */
void dibs__task_fails(struct dibs__task_transition *t, uint32_t tries, int64_t due, int64_t now);
void dibs__task_gives_up(struct dibs__task_transition *t, int64_t now);

/* Writes the transitions, and makes the next task of each serial text ready whose task has finished. */
enum dibs__sql_rc dibs__task_write_open(struct dibs__sql_guard *guard, const struct dibs__task_locked *locked);
/* The same, and commits. */
enum dibs__sql_rc dibs__task_write(struct dibs__sql_guard *guard, const struct dibs__task_locked *locked);
/* Serial texts of a kind whose task people deleted: the next task of each is ready then.  A transaction.  It looks at
 * up to DIBS__TASK_STEP texts behind `after`, which becomes the last of them, or empty after all. */
enum dibs__sql_rc dibs__task_pass_lost(struct dibs__sql_guard *guard, dibs__str kind, char after[DIBS_NAME_MAX],
                                       uint32_t *after_len);

/* ---- task_key.c ---- */

/* Rows of dibs_lane beside those of lanes: the present P, with the largest fence that was named; the largest one of an
 * earlier P; while the kind becomes by lane. */
#define DIBS__LANE_TOP "-1"
#define DIBS__LANE_FLOOR "-2"
#define DIBS__LANE_BEGINS "-3"

/* Of a task that is by lane. */
static inline int64_t dibs__task_slot(const struct dibs__task_transition *t) {
  return t->slot < 0 ? -1 - t->slot : t->slot;
}
/* PostgreSQL may expect no row in a full table, and then it would find the rows of a key by a condition on their number
 * alone, or by its order, among those of all kinds.  So there the slot is a range, rows are ordered by (slot, nr), and
 * a condition on the number is one on both.  Engines whose statements name the index find a key best by an equal slot.
 */
#define DIBS__TASK_IN_SLOT(column, slot) column " >= " slot " AND " column " <= " slot
static inline bool dibs__task_by_range(const struct dibs__sql_guard *guard) {
  return guard->wire->engine->by[0] == NULL;
}
/* The statement that answers number and state of the first tasks of a key with the slot $2, up to $4; in `text`. */
const char *dibs__task_asides(const struct dibs__sql_guard *guard, const char *lock, char *text, size_t size);
/* Puts the statement that locks the lanes of these slots. */
enum dibs__sql_rc dibs__task_put_lanes(struct dibs__sql_guard *guard, dibs__str kind, const int64_t *slots,
                                       size_t count);
/* Puts the statement that changes a row's slot: put aside or back. */
enum dibs__sql_rc dibs__task_put_flips(struct dibs__sql_guard *guard, const uint64_t *numbers, size_t count);
/* The same for those that are still blocked: back. */
enum dibs__sql_rc dibs__task_put_backs(struct dibs__sql_guard *guard, const uint64_t *numbers, size_t count);
/* The claim ended without an answer: a failed try, after which it is ready at `due`.  `text` is for the error. */
enum { DIBS__TASK_LATE_TEXT = DIBS_OWNER_MAX + 64 };
void dibs__task_ends_late(const struct dibs__task_locked *locked, struct dibs__task_transition *t, int64_t due,
                          char text[DIBS__TASK_LATE_TEXT]);
/* If `t` does not finish: the claims of later tasks of its key end with its own. */
void dibs__task_ends_later(const struct dibs__task_locked *locked, const struct dibs__task_transition *t);
/* Is DONE too early for it?  dibs__task_key_before was called. */
bool dibs__task_too_early(const struct dibs__task_locked *locked, const struct dibs__task_transition *t);
enum dibs__sql_rc dibs__task_key_before(struct dibs__sql_guard *guard, struct dibs__task_locked *locked);
/* Locks the lanes of what changes, and finds the other tasks whose claims end with one of these. */
enum dibs__sql_rc dibs__task_key_later(struct dibs__sql_guard *guard, const struct dibs__task_locked *locked,
                                       struct dibs__task_locked *later);
/* After tasks were finished that others were put aside for: puts the statement that brings some of them back. */
enum dibs__sql_rc dibs__task_key_back(struct dibs__sql_guard *guard, const struct dibs__task_locked *locked);

/* ---- task_list.c ---- */

/* The columns of a task as an answer has it. */
/* After a table that MariaDB joins: it reads all of a table with few rows, and so it would wait for every row that
 * another session has locked. */
#define DIBS__TASK_BY_KEY " FORCE INDEX (PRIMARY)"
#define DIBS__TASK_COLUMNS "nr, fence, phase, serial, uniq, attempts, fails, tries, priority, made, due, began, at"
/* Reads the rows of some answers, one after the other: DIBS__TASK_COLUMNS, the payload, the text; `more`: state, kind,
 * owner, which are those of the operation otherwise.  false: no memory. */
bool dibs__task_read_rows(const struct dibs__sql_wire *wire, size_t first, size_t answers, bool more,
                          const struct dibs__task_op *op, struct dibs__task_row **rows, uint32_t *count);
/* Both, with their texts, in one allocation.  NULL: no memory. */
struct dibs__task_row *dibs__task_join_rows(const struct dibs__task_row *a, uint32_t a_count,
                                            const struct dibs__task_row *b, uint32_t b_count);
/* Appends " AND ..." for the filter; the values follow those that there are.  `finished`: on dibs_task_done, under the
 * alias t in both cases. */
enum { DIBS__TASK_FILTER_VALUES = 8 };
void dibs__task_filter(struct dibs__text *to, const struct dibs__sql_engine *engine,
                       const struct dibs__task_filter *filter, bool finished, struct dibs__sql_value *values,
                       size_t *count);
/* Puts one SELECT over both tables, by number, up to `most`: $1.  `add` appends that of one of them, as a table of its
 * own, because SQLite limits no part of a UNION. */
typedef void dibs__task_half(struct dibs__text *to, const struct dibs__sql_guard *guard, const struct dibs__task_op *op,
                             bool finished, struct dibs__sql_value *values, size_t *count);
enum dibs__sql_rc dibs__task_put_halves(struct dibs__sql_guard *guard, const struct dibs__task_op *op,
                                        dibs__task_half *add);

#endif

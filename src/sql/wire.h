/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SQL_WIRE_H
#define DIBS_SQL_WIRE_H
/*
 * The schema, in portable text with the dialect's words put in.  Created on first use, migrated forward under a lock,
 * never dropped: step N takes a store from version N to N + 1, and DIBS__SQL_SCHEMA is what this build knows.
 */
#include "base/text.h"
#include "sql/sql.h"
#include "store/task.h"
#include "store/values.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dibs__sql_words {
  const char *number; /* 64 bits, signed */
  const char *name;   /* text, compared byte by byte, fit for a key */
  const char *text;   /* up to 127 characters */
  const char *id;     /* up to 64 bytes, fit for a key */
  const char *bytes;
  const char *tail;    /* after a table that is stored in the order of its key */
  const char *some;    /* before the condition of a partial index: " WHERE "; NULL where the engine has none */
  const char *counted; /* a key that the engine counts up, never giving a number twice */
  const char *now;     /* for a default: the engine's clock at the insertion, in ms since 1970, UTC */
  const char *checks;  /* more conditions of dibs_task, such as types that a column does not guard; NULL: none */
};

/* The nth statement of the step from `version` on; false after the last one.  `to` gets it, terminated. */
bool dibs__sql_schema(const struct dibs__sql_words *words, uint32_t version, size_t nth, char *to, size_t size);

/*
 * ---- The wire ----
 *
 * A connection to a SQL engine, as the code above the drivers uses it: statements are put, and travel together when
 * go() is called.  A transaction takes as many packets as it has decisions: on a hot row the round trips inside the
 * lock cost more than the flush.
 *
 * Texts are written once for all engines: $1, $2 are values, $rows is a table of values ("WITH r(a, b) AS ($rows)
 * SELECT ... FROM r"), and the engine's struct has the words that differ.  A text that is put twice is prepared once,
 * where the engine has that.
 *
 * An error ends a packet: statements after it were not done.  The code that put BEGIN rolls back.
 */

enum dibs__sql_kind { DIBS__SQL_NULL, DIBS__SQL_NUMBER, DIBS__SQL_TEXT, DIBS__SQL_BYTES };

struct dibs__sql_value {
  enum dibs__sql_kind kind;
  int64_t number;
  const char *p; /* of text and bytes; not terminated, except in a cell */
  uint32_t len;
};

/* The reason of FAILED. */
enum dibs__sql_trouble {
  DIBS__SQL_CALM,     /* nothing ever broke */
  DIBS__SQL_GONE,     /* the connection is closed; the wire is useless */
  DIBS__SQL_LATE,     /* the deadline passed before the answers: useless, too */
  DIBS__SQL_TWICE,    /* a unique key exists already */
  DIBS__SQL_ORPHAN,   /* a foreign key has no parent */
  DIBS__SQL_REFUSED,  /* another constraint, a value out of range, data too long */
  DIBS__SQL_DEADLOCK, /* or a serialization failure: the transaction was rolled back, run it again */
  DIBS__SQL_LOCKED,   /* the server's lock timeout */
  DIBS__SQL_DENIED,   /* no right, read-only, wrong password */
  DIBS__SQL_MISSING,  /* no such table, column, database */
  DIBS__SQL_FULL,     /* disk, connections */
  DIBS__SQL_DAMAGED,  /* rows that contradict each other */
  DIBS__SQL_NO_SPACE, /* our own memory */
  DIBS__SQL_ODD       /* anything else */
};

struct dibs__sql_wire;

/* Kinds of columns of the user's tables: the types that fit them. */
enum dibs__sql_column_kind {
  DIBS__COLUMN_INT64 = 'N', /* whole numbers of 64 bits */
  DIBS__COLUMN_UINT64 = 'U',
  DIBS__COLUMN_WHOLE = 'n',   /* other whole numbers */
  DIBS__COLUMN_TEXT = 't',    /* texts, compared byte by byte */
  DIBS__COLUMN_PADDED = 'c',  /* other texts: padded, or equal where their bytes differ */
  DIBS__COLUMN_INSTANT = 'i', /* dates with times */
  DIBS__COLUMN_ANY = '*',     /* any type */
  DIBS__COLUMN_OTHER = 'o'
};

/* How a column of the user's stores instants.  In the texts, @c is the column and @x a number of ms since 1970, UTC, in
 * parentheses; in `value` @c is its old value, and @o that of the table's other instant: a text keeps its form. */
struct dibs__sql_instant {
  char letter;        /* as the catalogue names it: DIBS__INSTANT_... */
  const char *value;  /* what to write for @x */
  const char *ms;     /* its ms, NULL where it is no instant */
  const char *text;   /* its exact value, the same in each session */
  const char *usable; /* a condition that it is an instant; NULL: its type ensures it */
  bool by_ms;         /* compared and sorted by its ms, because values in different forms do not compare */
  int64_t least_ms;   /* the smallest instant that it can store */
};
enum dibs__sql_instant_letter {
  DIBS__INSTANT_ZONED = 'z', /* a date with a time that the engine relates to UTC */
  DIBS__INSTANT_PLAIN = 'p', /* without a zone: taken as UTC */
  DIBS__INSTANT_TEXT = 't',  /* YYYY-MM-DD HH:MM:SS, with a T, a fraction and a zone or without */
  DIBS__INSTANT_MS = 'm',    /* a number of ms since 1970 */
  DIBS__INSTANT_S = 's'      /* a number of seconds */
};

/* What a table is used for. */
enum dibs__sql_use { DIBS__SQL_FOR_RECORDS, DIBS__SQL_FOR_STOCK, DIBS__SQL_FOR_TASKS, DIBS__SQL_FOR_COUNTERS };

/* What a connection knows of a user's table that it has checked: see table.c. */
struct dibs__sql_shape {
  uint64_t nr;   /* the table's; 0: none */
  uint32_t fits; /* a bit for each use */
  bool key_is_number, key_is_unique;
  /* FOR_TASKS */
  const struct dibs__sql_instant *locked, *updated;
  bool locked_may_be_null, updated_may_be_null;
};
enum { DIBS__SQL_SHAPES = 16 };

/* What claims of a kind of tasks remember on this connection, such as where the latest one ended: see task_claim.c. */
struct dibs__sql_mark {
  bool is_set;
  uint32_t kind_len;
  char kind[DIBS_NAME_MAX];
  int64_t rank, due, nr; /* of the last task that it took: nothing before it was ready */
  int64_t at;            /* the store's clock: what was due by then was promoted */
  dibs__tick looked;     /* when a claim last looked at all that is ready */
  /* Serial texts whose task people deleted: when it looked for some last, and behind which text it goes on. */
  dibs__tick looked_lost;
  uint32_t lost_len;
  char lost[DIBS_NAME_MAX];
  int64_t lost_slot; /* likewise, of keys by lane: see task_lane_kind.c */
};
enum { DIBS__SQL_MARKS = 8 };

/* The engine behind a wire. */
struct dibs__sql_engine {
  const char *name; /* "PostgreSQL" */
  struct dibs__sql_words words;
  char quote;             /* around identifiers */
  const char *begin;      /* READ COMMITTED, and for writing */
  const char *for_update; /* " FOR UPDATE", or "" */
  /* Inside a user's transaction a SELECT may see only what was committed before the transaction began.  `latest`: a
   * clause that lets it see what was committed last, and locks the rows; or "".  `sees_latest`: an expression, not 0 if
   * it sees that with this clause. */
  const char *latest, *sees_latest;
  /* Expressions, in ms since 1970, UTC.  now_ms: the server's clock at evaluation, for what is written.  start_ms: the
   * clock when the statement began, or once in it: constant, so that an index can be searched with it. */
  const char *now_ms, *start_ms;
  bool start_may_lie; /* a user's session can set the clock of start_ms */
  bool on_conflict;   /* INSERT ... ON CONFLICT; else ON DUPLICATE KEY UPDATE */
  bool returning;     /* INSERT, DELETE ... RETURNING */
  bool update_returning;
  bool sessions; /* statements wait for other sessions; false where one writer locks everything */
  bool typed;    /* a value has one type at all its positions in a statement */
  /* UPDATE r JOIN t ON ... SET, DELETE t FROM r JOIN t ON; else UPDATE t SET ... FROM r WHERE, DELETE FROM t WHERE IN
   */
  bool joins;
  bool instr;         /* instr(text, part); else position(part IN text) */
  const char *by[2];  /* after a table, around the name of the index to use */
  const char *any[2]; /* around a subquery of which a column is one of the values; it is evaluated once */
  /* Others that run it with the same text $1 wait until the end of this transaction.  NULL: there is none. */
  const char *turn;
  const char *row; /* the column by which a row of dibs_task that is locked is found fastest */
  /* ---- The user's tables: table.c ---- */
  /* $1 is the schema, or '', and $2 the table.  A row for each column: its name, its kind (DIBS__COLUMN_...), its type
   * in the engine's words, 1 if the engine computes it, the letter of its instants ('' for a number, and where it has
   * none), and 1 if it is never NULL. */
  const char *columns;
  const char *unique;   /* the same; a row for each column that alone has a unique index: its name */
  bool plain_index;     /* CREATE INDEX and ADD COLUMN have no IF NOT EXISTS: what exists is TWICE */
  bool fold;            /* names of columns that differ in case alone are the same */
  const char *exact[2]; /* before and after a column: its text, compared byte by byte */
  const char *whole[2]; /* before and after a column: a condition that it has a whole number; NULL: it always has */
  const char *as_is[2]; /* before and after a column: read so that a text differs from a number; NULL: not needed */
  const struct dibs__sql_instant *instants; /* ended by one without a letter; those of numbers are among them */

  /* Both never block.  Values are copied at once.  OK, or FAILED (no memory). */
  enum dibs__sql_rc (*put)(struct dibs__sql_wire *wire, const char *text, const struct dibs__sql_value *values,
                           size_t count);
  /* The same, with $rows: row_count > 0 rows of `columns` values, row by row; each column is of one kind except for
   * NULLs. */
  enum dibs__sql_rc (*put_rows)(struct dibs__sql_wire *wire, const char *text, const struct dibs__sql_value *values,
                                size_t count, const struct dibs__sql_value *rows, size_t columns, size_t row_count);
  /* Sends the statements and reads all answers, until wire->by.  `commits`: after a failure, wire->unsure is set unless
   * it is known that nothing was done.  FAILED: wire->trouble, wire->failed_at, wire->message. */
  enum dibs__sql_rc (*go)(struct dibs__sql_wire *wire, bool commits);
  /* Answers of the nth statement of the latest go: valid until the next put or go. */
  size_t (*rows)(const struct dibs__sql_wire *wire, size_t nth);
  uint64_t (*changed)(const struct dibs__sql_wire *wire, size_t nth); /* rows that matched */
  struct dibs__sql_value (*cell)(const struct dibs__sql_wire *wire, size_t nth, size_t row, size_t column,
                                 enum dibs__sql_kind as);
};

/* A driver's connection begins with it. */
struct dibs__sql_wire {
  const struct dibs__sql_engine *engine;
  dibs__tick by; /* of the current call */
  bool inside;   /* the user's own connection, in a transaction of theirs: ours are savepoints in it */
  size_t put;    /* statements put since the latest go; the next one's number */
  struct dibs__sql_shape shapes[DIBS__SQL_SHAPES];
  uint32_t next_shape; /* the position of the next one */
  struct dibs__sql_mark marks[DIBS__SQL_MARKS];
  uint32_t next_mark;     /* the position of the next one */
  dibs__tick looked_lost; /* the latest of all kinds */
  /* After FAILED. */
  enum dibs__sql_trouble trouble;
  bool unsure;
  /* Of script: the connection had ended before, so nothing of the transaction takes effect. */
  bool undone;
  size_t failed_at;  /* the statement that failed */
  char message[200]; /* the engine's */
};

static inline struct dibs__sql_value dibs__sql_number(int64_t number) {
  return (struct dibs__sql_value){.kind = DIBS__SQL_NUMBER, .number = number};
}
static inline struct dibs__sql_value dibs__sql_text(const char *p, size_t len) {
  return (struct dibs__sql_value){.kind = DIBS__SQL_TEXT, .p = p ? p : "", .len = (uint32_t)len};
}
static inline struct dibs__sql_value dibs__sql_bytes(const void *p, size_t len) {
  return (struct dibs__sql_value){.kind = DIBS__SQL_BYTES, .p = p ? p : "", .len = (uint32_t)len};
}
static inline struct dibs__sql_value dibs__sql_null(void) {
  return (struct dibs__sql_value){.kind = DIBS__SQL_NULL};
}

/* ---- guard.c: what every user of a wire needs ---- */

/* Puts BEGIN, or a savepoint inside a user's transaction; COMMIT; ROLLBACK (which is also sent, as far as possible). */
enum dibs__sql_rc dibs__sql_begin(struct dibs__sql_wire *wire);
enum dibs__sql_rc dibs__sql_commit(struct dibs__sql_wire *wire);
void dibs__sql_rollback(struct dibs__sql_wire *wire);
/* Sets FAILED for an error of our own. */
enum dibs__sql_rc dibs__sql_fail(struct dibs__sql_wire *wire, enum dibs__sql_trouble trouble, const char *message);
/* The status of a failed batch, with a message for people: "can't DOING STORE: ENGINE'S MESSAGE". */
dibs__status dibs__sql_explain(const struct dibs__sql_wire *wire, const char *doing, const char *store,
                               struct dibs__result *result);
/* Until when go() waits.  Inside a user's transaction as long as it takes: giving up would break their connection, and
 * lose all that they have done; their own lock timeout limits the wait for rows. */
static inline dibs__tick dibs__sql_patience(const struct dibs__sql_wire *wire) {
  return wire->inside ? DIBS__TICK_NEVER : wire->by;
}
/* The wire is useless. */
static inline bool dibs__sql_dead(const struct dibs__sql_wire *wire) {
  return wire->trouble == DIBS__SQL_GONE || wire->trouble == DIBS__SQL_LATE;
}
static inline int64_t dibs__sql_cell_number(const struct dibs__sql_wire *wire, size_t nth, size_t row, size_t column) {
  return wire->engine->cell(wire, nth, row, column, DIBS__SQL_NUMBER).number;
}

/*
 * ---- Rows over a wire (rows.c) ----
 *
 * Functions of struct dibs__sql_rows for every engine.  A dialect's `to` is a struct dibs__rows, or begins with one.
 */

struct dibs__rows {
  struct dibs__sql_wire *wire;
  char *const *texts; /* the dialect's: dibs__rows_texts for this store, then its own */
  bool wrote;         /* a statement that was put changes rows; the dialect clears it */
  /* Where nothing travels: runs a statement at once, with a prepared one for each text; then `texts` is NULL.  Its
   * answers have the number 0.  `first`: only the first row is wanted, until the next statement. */
  enum dibs__sql_rc (*run)(struct dibs__rows *rows, unsigned text, const struct dibs__sql_value *values, size_t count,
                           bool first);
  /* A waiter of this session was read, with the number that @{seen} gave.  NULL: there is no such column. */
  void (*seen)(struct dibs__rows *rows, uint64_t session, int64_t where);
};

/* Queues a statement. */
enum dibs__sql_rc dibs__rows_put(struct dibs__rows *rows, unsigned text, const struct dibs__sql_value *values,
                                 size_t count);
/* Queues it, and sends everything that is queued; its answers have the number *nth. */
enum dibs__sql_rc dibs__rows_request(struct dibs__rows *rows, unsigned text, const struct dibs__sql_value *values,
                                     size_t count, size_t *nth);
/* The same, if the first row is sufficient: it can be read until the next statement. */
enum dibs__sql_rc dibs__rows_request_first(struct dibs__rows *rows, unsigned text, const struct dibs__sql_value *values,
                                           size_t count, size_t *nth);

/* Row `row` of answer `nth`, with the columns of a head or a waiter.  false: it contradicts itself. */
bool dibs__rows_read_head(const struct dibs__rows *rows, size_t nth, size_t row, struct dibs__sql_head *head);
void dibs__rows_read_waiter(struct dibs__rows *rows, size_t nth, size_t row, struct dibs__sql_waiter *waiter);
bool dibs__rows_read_broken(const struct dibs__rows *rows, size_t nth, size_t row);
/* With the columns of DIBS__ROWS_HOLDERS. */
void dibs__rows_read_holder(const struct dibs__rows *rows, size_t nth, size_t row, struct dibs__sql_holder *holder);
/* 0 unless the cell has exactly this size. */
void dibs__rows_read_bytes(const struct dibs__rows *rows, size_t nth, size_t row, size_t column, void *to, size_t size);

enum dibs__sql_rc dibs__rows_head_add(void *to, const struct dibs__sql_head *head);
enum dibs__sql_rc dibs__rows_head_set(void *to, const struct dibs__sql_head *head);
enum dibs__sql_rc dibs__rows_head_set_queue(void *to, const struct dibs__sql_head *head);
enum dibs__sql_rc dibs__rows_head_drop(void *to, const struct dibs__sql_head *head);
enum dibs__sql_rc dibs__rows_holder_find(void *to, const struct dibs__sql_head *head, dibs__id id,
                                         struct dibs__sql_holder *x, bool *found);
enum dibs__sql_rc dibs__rows_holder_add(void *to, const struct dibs__sql_head *head, const struct dibs__sql_holder *x);
enum dibs__sql_rc dibs__rows_holder_set(void *to, const struct dibs__sql_head *head, const struct dibs__sql_holder *x);
enum dibs__sql_rc dibs__rows_holder_drop(void *to, const struct dibs__sql_head *head, dibs__id id);
enum dibs__sql_rc dibs__rows_holders_expire(void *to, const struct dibs__sql_head *head, int64_t now, uint32_t *gone);
enum dibs__sql_rc dibs__rows_holders_each(void *to, const struct dibs__sql_head *head,
                                          void (*each)(void *arg, const struct dibs__sql_holder *holder), void *arg);
enum dibs__sql_rc dibs__rows_holders_break(void *to, const struct dibs__sql_head *head);
enum dibs__sql_rc dibs__rows_holders_drop(void *to, const struct dibs__sql_head *head);
enum dibs__sql_rc dibs__rows_holders_first_until(void *to, const struct dibs__sql_head *head, int64_t *until);
enum dibs__sql_rc dibs__rows_slot_free(void *to, const struct dibs__sql_head *head, uint32_t *slot);
enum dibs__sql_rc dibs__rows_waiter_find(void *to, const struct dibs__sql_head *head, dibs__id id, uint64_t ticket,
                                         struct dibs__sql_waiter *w, bool *found);
/* The first WAITING one from this ticket on. */
enum dibs__sql_rc dibs__rows_waiter_next_from(void *to, const struct dibs__sql_head *head, uint64_t from,
                                              struct dibs__sql_waiter *w, bool *found);
enum dibs__sql_rc dibs__rows_waiter_offered(void *to, const struct dibs__sql_head *head, struct dibs__sql_waiter *w,
                                            bool *found);
enum dibs__sql_rc dibs__rows_waiter_add(void *to, const struct dibs__sql_head *head, const struct dibs__sql_waiter *w);
enum dibs__sql_rc dibs__rows_waiter_set(void *to, const struct dibs__sql_head *head, const struct dibs__sql_waiter *w);
enum dibs__sql_rc dibs__rows_waiter_drop(void *to, const struct dibs__sql_head *head, const struct dibs__sql_waiter *w);
enum dibs__sql_rc dibs__rows_offers_expire(void *to, const struct dibs__sql_head *head, int64_t now, uint32_t *gone);
enum dibs__sql_rc dibs__rows_offers_first_until(void *to, const struct dibs__sql_head *head, int64_t *until);
enum dibs__sql_rc dibs__rows_break_add(void *to, const struct dibs__sql_head *head, const struct dibs__sql_break *row);

/* Removes the waiters of dead sessions from a name that was entered, at any position of the queue.  An acquire skips
 * those at the front anyway; this also removes those with an offer, asleep, or further back. */
enum dibs__sql_rc dibs__rows_drop_dead(struct dibs__sql *sql, struct dibs__sql_head *head);

/* Those that no dialect changes. */
#define DIBS__ROWS_SHARED                                                                                              \
  .holder_find = dibs__rows_holder_find, .holder_add = dibs__rows_holder_add, .holder_set = dibs__rows_holder_set,     \
  .holder_drop = dibs__rows_holder_drop, .holders_expire = dibs__rows_holders_expire,                                  \
  .holders_each = dibs__rows_holders_each, .holders_break = dibs__rows_holders_break,                                  \
  .holders_drop = dibs__rows_holders_drop, .holders_first_until = dibs__rows_holders_first_until,                      \
  .slot_free = dibs__rows_slot_free, .break_add = dibs__rows_break_add

/*
 * ---- Guarded writes ----
 *
 * On any SQL engine, over a wire: stock, once, tasks, records in the user's own tables, and reports.
 *
 * Each function answers all operations that it is given, each on its own, in as few transactions and packets as
 * possible; it begins and commits them itself (inside a user's transaction they are savepoints).  Deadlocks,
 * serialization failures and lost races are tried again until the operation's deadline.  OK: all are answered, some
 * perhaps UNAVAILABLE.  FAILED: the wire is dead or out of memory, and operations that are still UNKNOWN may have
 * happened if wire->unsure.
 *
 * (Records in dibs' own table are decided on rows, as leases are: guard.c.)
 */

enum { DIBS__SQL_CLAIM_MAX = 64 };

struct dibs__task_op;

struct dibs__sql_guard {
  struct dibs__sql_wire *wire;
  const char *prefix; /* of dibs' own tables: "dibs_" */
  uint32_t commits;   /* counted */
  const char *lazy;   /* a statement before COMMIT: this transaction need not wait for the disk.  NULL: none */
  const char *store;  /* for messages: the URI without password */
  struct dibs__result *result;
  bool woke;   /* tasks became ready, which other workers should learn */
  char *swept; /* DIBS__SQL_CLAIM_MAX + 1: the position of the sweep of claims; "" at first */
};

/* Coalesced takes and gives of one row are decided together, in order; rows in the order of their keys. */
enum dibs__sql_rc dibs__sql_stock(struct dibs__sql_guard *guard, struct dibs__stock_op *const ops[], size_t count);
enum dibs__sql_rc dibs__sql_once(struct dibs__sql_guard *guard, struct dibs__once_op *const ops[], size_t count);
/* Those in a user's table. */
enum dibs__sql_rc dibs__sql_table_record(struct dibs__sql_guard *guard, struct dibs__record_op *const ops[],
                                         size_t count);
enum dibs__sql_rc dibs__sql_table_task(struct dibs__sql_guard *guard, struct dibs__task_op *const ops[], size_t count);
/* What the connection knows of the table: read from the engine's catalogue at the first use on it.  *shape is NULL if
 * the table does not fit its declaration, with the reason in `why`.  FAILED: the catalogue can't be read. */
enum dibs__sql_rc dibs__sql_table_check(struct dibs__sql_guard *guard, const struct dibs__table *table,
                                        enum dibs__sql_use use, const struct dibs__sql_shape **shape, char *why,
                                        size_t size);
/* Is it a number as engines write it, of at most 18 digits? */
bool dibs__sql_is_number(dibs__str text);
/* Reads a cell of a user's table that must be a whole number from 0 on: NULL, or what is wrong with it. */
const char *dibs__sql_whole(struct dibs__sql_value cell, int64_t *number);
/* The column, after the last part of its table's name; `of` is NULL: the column alone.  Names have no quotes in them:
 * guard/table.c. */
void dibs__sql_add_name(struct dibs__text *to, const struct dibs__sql_engine *engine, const char *name);
void dibs__sql_add_column(struct dibs__text *to, const struct dibs__sql_engine *engine, const char *table,
                          const char *column);

/* Expands a template (sql/text.h) and puts the statement. */
enum dibs__sql_rc dibs__sql_put_composed(const struct dibs__sql_guard *guard, const char *from,
                                         const struct dibs__sql_value *values, size_t count);
/* Deletes up to `most` rows of a table of dibs, by its key, whose `until` is past.  *more: it deleted so many; call it
 * again. */
enum dibs__sql_rc dibs__sql_sweep(struct dibs__sql_guard *guard, const char *table, const char *key, uint32_t most,
                                  bool *more);

/* What ran: run.c. */
struct dibs__run_op;
enum dibs__sql_rc dibs__sql_run(struct dibs__sql_guard *guard, struct dibs__run_op *const ops[], size_t count);
/* Deletes runs past their time, some at a time.  *more: there may be more. */
enum dibs__sql_rc dibs__sql_run_sweep(struct dibs__sql_guard *guard, bool *more);

/* Counters: counter.c. */
struct dibs__counter_op;
enum dibs__sql_rc dibs__sql_counter(struct dibs__sql_guard *guard, struct dibs__counter_op *const ops[], size_t count);
/* Deletes rows of the ledger past their time, some at a time.  *more: there may be more. */
enum dibs__sql_rc dibs__sql_counter_sweep(struct dibs__sql_guard *guard, bool *more);

enum dibs__sql_rc dibs__sql_task(struct dibs__sql_guard *guard, struct dibs__task_op *const ops[], size_t count);
/* Deletes finished tasks and tokens past their time, some at a time.  *more: there may be more. */
enum dibs__sql_rc dibs__sql_task_sweep(struct dibs__sql_guard *guard, bool *more);
/* Deletes expired answers, some at a time.  *more: there may be more. */
enum dibs__sql_rc dibs__sql_once_sweep(struct dibs__sql_guard *guard, bool *more);
/* Deletes claims of dibs' own stock past their time, some at a time, from guard->swept on.  Does nothing without
 * that. */
enum dibs__sql_rc dibs__sql_claims_sweep(struct dibs__sql_guard *guard, bool *more);

/* What every SQL driver does with a batch, whatever its connections are. */

/* How an operation runs; a batch runs in this order. */
enum dibs__sql_guarded {
  DIBS__SQL_ON_ROWS, /* decided here, on rows: leases, epochs, records of dibs' own */
  DIBS__SQL_AS_TABLE_RECORD,
  DIBS__SQL_AS_TABLE_TASK,
  DIBS__SQL_AS_STOCK,
  DIBS__SQL_AS_ONCE,
  DIBS__SQL_AS_REPORT,
  DIBS__SQL_AS_RUN,
  DIBS__SQL_AS_COUNTER,
  DIBS__SQL_AS_TASK,
  DIBS__SQL_GUARDED
};
enum dibs__sql_guarded dibs__sql_kind_of(const struct dibs__op *op);
/* Runs those of one kind, except ROWS. */
enum dibs__sql_rc dibs__sql_guarded(struct dibs__sql_guard *guard, enum dibs__sql_guarded kind,
                                    struct dibs__op *const ops[], size_t count);

/* Clears what answers point to, before a batch begins. */
void dibs__sql_begin_answer(struct dibs__op *op);
/* Frees the memory of an answer that is no longer valid. */
void dibs__sql_unanswer(struct dibs__op *op, dibs__status status);

/* May be part of a group: a savepoint of ours can undo it. */
bool dibs__sql_joins_groups(const struct dibs__op *op);
bool dibs__sql_first_of_group(struct dibs__op *const ops[], size_t at);

#endif

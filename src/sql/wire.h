/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SQL_WIRE_H
#define DIBS_SQL_WIRE_H
/*
 * A connection to a SQL engine, as everybody above the drivers uses it: statements are put, and travel together when
 * go() is called.  A transaction takes as many packets as it has decisions: on a hot row the round trips inside the
 * lock cost more than the flush.
 *
 * Texts are written once for all engines: $1, $2 stand for values, $rows for a table of values ("WITH r(a, b) AS
 * ($rows) SELECT ... FROM r"), and what differs is asked of the engine's words.  A text that is put twice is prepared
 * once, where the engine has that.
 *
 * An error ends a packet: what stands behind it was not done.  Whoever put BEGIN rolls back.
 */
#include "sql/schema.h"
#include "sql/sql.h"

enum dibs__sql_kind { DIBS__SQL_NULL, DIBS__SQL_NUMBER, DIBS__SQL_TEXT, DIBS__SQL_BYTES };

struct dibs__sql_value {
  enum dibs__sql_kind kind;
  int64_t number;
  const char *p; /* of text and bytes; not terminated, but in a cell */
  uint32_t len;
};

/* What a step that is BROKE came to. */
enum dibs__sql_trouble {
  DIBS__SQL_CALM,     /* nothing ever broke */
  DIBS__SQL_GONE,     /* the connection is; it is of no more use */
  DIBS__SQL_LATE,     /* the deadline came before the answers: of no more use either */
  DIBS__SQL_TWICE,    /* a unique key is there already */
  DIBS__SQL_ORPHAN,   /* a foreign key has no parent */
  DIBS__SQL_REFUSED,  /* another constraint, a value out of range, data too long */
  DIBS__SQL_DEADLOCK, /* or a serialization failure: the transaction was undone, ask again */
  DIBS__SQL_LOCKED,   /* the server's lock timeout */
  DIBS__SQL_DENIED,   /* no right, read-only, wrong password */
  DIBS__SQL_MISSING,  /* no such table, column, database */
  DIBS__SQL_FULL,     /* disk, connections */
  DIBS__SQL_DAMAGED,  /* rows that contradict each other */
  DIBS__SQL_NO_SPACE, /* our own memory */
  DIBS__SQL_ODD       /* anything else */
};

struct dibs__sql_wire;

/* The engine behind a wire. */
struct dibs__sql_engine {
  const char *name; /* "PostgreSQL" */
  struct dibs__sql_words words;
  char quote;             /* around identifiers */
  const char *begin;      /* READ COMMITTED, and for writing */
  const char *for_update; /* " FOR UPDATE", or "" */
  const char *now_ms;     /* an expression: the server's clock as it is evaluated, in ms since 1970, UTC */
  bool on_conflict;       /* INSERT ... ON CONFLICT; else ON DUPLICATE KEY UPDATE */
  bool returning;         /* INSERT, DELETE ... RETURNING */
  bool update_returning;
  bool sessions; /* statements wait for other sessions; false where one writer has it all */
  bool loose;    /* takes '12abc' for 12 where a column is a number */

  /* Both never block.  Values are taken over at once: they may go away.  FINE, or BROKE (no memory). */
  enum dibs__sql_step (*put)(struct dibs__sql_wire *wire, const char *text, const struct dibs__sql_value *values,
                             size_t count);
  /* The same, with $rows: row_count > 0 rows of `columns` values, row by row; each column is of one kind but for NULLs.
   */
  enum dibs__sql_step (*put_rows)(struct dibs__sql_wire *wire, const char *text, const struct dibs__sql_value *values,
                                  size_t count, const struct dibs__sql_value *rows, size_t columns, size_t row_count);
  /* Sends what was put and takes all answers, until wire->by.  `commits`: if it breaks, wire->unsure is set unless it
   * is known that nothing was done.  BROKE: wire->trouble, wire->broke_at, wire->words. */
  enum dibs__sql_step (*go)(struct dibs__sql_wire *wire, bool commits);
  /* Answers of the nth statement of the latest go: valid until something is put or gone again. */
  size_t (*rows)(const struct dibs__sql_wire *wire, size_t nth);
  uint64_t (*changed)(const struct dibs__sql_wire *wire, size_t nth); /* rows that matched */
  struct dibs__sql_value (*cell)(const struct dibs__sql_wire *wire, size_t nth, size_t row, size_t column,
                                 enum dibs__sql_kind as);
};

/* A driver's connection begins with it. */
struct dibs__sql_wire {
  const struct dibs__sql_engine *engine;
  dibs__tick by; /* of the call that goes on */
  bool inside;   /* the user's own connection, in a transaction of theirs: ours are savepoints in it */
  size_t put;    /* statements put since the latest go; the next one's number */
  /* After BROKE. */
  enum dibs__sql_trouble trouble;
  bool unsure;
  size_t broke_at; /* the statement that failed */
  char words[200]; /* the engine's */
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

/* ---- wire.c: what every user of a wire needs ---- */

/* Puts BEGIN, or a savepoint inside somebody's transaction; COMMIT; ROLLBACK (which also goes, as far as it can). */
enum dibs__sql_step dibs__sql_begin(struct dibs__sql_wire *wire);
enum dibs__sql_step dibs__sql_commit(struct dibs__sql_wire *wire);
void dibs__sql_rollback(struct dibs__sql_wire *wire);
/* BROKE by ourselves. */
enum dibs__sql_step dibs__sql_broke(struct dibs__sql_wire *wire, enum dibs__sql_trouble trouble, const char *words);
/* The status of a batch that broke, with words for people: "can't DOING STORE: ENGINE'S WORDS". */
dibs__status dibs__sql_excuse(const struct dibs__sql_wire *wire, const char *doing, const char *store,
                              struct dibs__said *said);
/* Until when go() waits.  Inside a transaction of the user's for as long as that takes: to give up would be to break
 * their connection, and with it all that they have done; how long rows are waited for is said by their own lock
 * timeout. */
static inline dibs__tick dibs__sql_patience(const struct dibs__sql_wire *wire) {
  return wire->inside ? DIBS__TICK_NEVER : wire->by;
}
/* The wire is of no more use. */
static inline bool dibs__sql_dead(const struct dibs__sql_wire *wire) {
  return wire->trouble == DIBS__SQL_GONE || wire->trouble == DIBS__SQL_LATE;
}
static inline int64_t dibs__sql_cell_number(const struct dibs__sql_wire *wire, size_t nth, size_t row, size_t column) {
  return wire->engine->cell(wire, nth, row, column, DIBS__SQL_NUMBER).number;
}

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_STORE_VALUES_H
#define DIBS_STORE_VALUES_H
/*
 * A user's table, as it was declared: the role of each column.  NULL if the table has no column for a role; an
 * operation that needs it is refused.  Immutable; reference-counted, because an operation that its caller abandoned may
 * still use it.
 *
 * Names are checked when a table is declared (letters, digits, _ and $; at most one dot, as in "schema.table").  Each
 * function that builds a statement quotes them.  Values are given to the engine as text and take the column's own type.
 */
#include "store/store.h"

enum { DIBS__TABLE_COLUMNS = 32 };

enum dibs__version_kind {
  DIBS__VERSION_NUMBER, /* each save increases it */
  DIBS__VERSION_TIME,   /* a timestamp column: the server's clock, at least a microsecond after the last value */
  DIBS__VERSION_HASH    /* of the content: the client computes it from the columns when there is no version column */
};

enum dibs__time_unit { DIBS__TIME_MS, DIBS__TIME_S };

struct dibs__table {
  _Atomic uint32_t refs;
  uint64_t nr;       /* differs for each table declared in this process: for caches of statements */
  const char *table; /* "booking.event" */
  const char *key;
  /* Records. */
  const char *version;
  enum dibs__version_kind version_kind;
  const char *fence, *owner;                    /* numbers, 64 bits; owner keeps the digest of the lease's id */
  const char *columns[DIBS__TABLE_COLUMNS + 1]; /* the columns that are loaded and saved */
  size_t column_count;
  /* Stock: the counted row, and its claims. */
  const char *used, *limit;
  const char *claims; /* the table */
  const char *claim;  /* its unique key */
  const char *stock;  /* the key of the counted row */
  const char *amount; /* NULL: the amount is always 1 */
  const char *given;  /* a mark, a number: 0 taken, 1 given back; NULL: dibs_stock_give is refused */
  const char *taker;  /* text: the client that took it */
  const char *taken;  /* a number: the time of the take, ms since 1970 */
  const char *count;  /* counters: the number that is added to */
  /* Tasks: all three, with a fence, or none. */
  const char *phase, *locked_at, *updated_at;
  enum dibs__time_unit time_unit; /* of instants that are numbers */
};

const struct dibs__table *dibs__table_hold(const struct dibs__table *table);
void dibs__table_drop(const struct dibs__table *table); /* accepts NULL */

/* ---- Versions that are hashes ---- */

static inline bool dibs__table_hashes(const struct dibs__table *table) {
  return table->version_kind == DIBS__VERSION_HASH;
}
/* The hash is of the row's content, and is stored in no column. */
static inline bool dibs__table_computes(const struct dibs__table *table) {
  return dibs__table_hashes(table) && !table->version;
}

/* SHA-256 over each column in the order of the declaration: its name, a NUL, then "-" if it is NULL, else its length in
 * digits, ":", and its bytes.  This never changes. */
void dibs__table_hash(const struct dibs__table *table, const dibs_value *values, char hex[65]);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_STORE_TABLE_H
#define DIBS_STORE_TABLE_H
/*
 * A table of the user's, as it was declared: which columns play which part.  NULL where a part is missing, and what
 * needs it is refused.  Immutable; counted, because an operation that its caller left may still point to it.
 *
 * Names are checked when a table is declared (letters, digits, _ and $; "schema.table" once), and quoted by whoever
 * makes a statement of them.  Values are handed to the engine as text and take the column's own type.
 */
#include "store/store.h"

enum { DIBS__TABLE_COLUMNS = 32 };

enum dibs__version_kind {
  DIBS__VERSION_NUMBER, /* counted up by each save */
  DIBS__VERSION_TIME,   /* a timestamp column: the server's clock, never less than a microsecond after the last */
  DIBS__VERSION_HASH    /* of the content: computed by us over the columns when there is no version column */
};

struct dibs__table {
  _Atomic uint32_t refs;
  uint64_t nr;       /* differs for each that was declared in this process: for caches of statements */
  const char *table; /* "booking.event" */
  const char *key;
  /* Records. */
  const char *version;
  enum dibs__version_kind version_kind;
  const char *fence, *owner;                    /* numbers, 64 bits; owner keeps the digest of the lease's id */
  const char *columns[DIBS__TABLE_COLUMNS + 1]; /* what is loaded and saved */
  size_t column_count;
  /* Stock: the counted row, and its claims. */
  const char *used, *limit;
  const char *claims; /* the table */
  const char *claim;  /* its unique key */
  const char *stock;  /* the key of the counted row */
  const char *amount; /* NULL: always 1 */
  const char *given;  /* a mark, a number: 0 taken, 1 given; NULL: dibs_stock_give is refused */
  const char *taker;  /* text: who took it */
  const char *taken;  /* a number: when, ms since 1970 */
};

const struct dibs__table *dibs__table_hold(const struct dibs__table *table);
void dibs__table_drop(const struct dibs__table *table); /* NULL is fine */

#endif

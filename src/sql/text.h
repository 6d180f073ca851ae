/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SQL_TEXT_H
#define DIBS_SQL_TEXT_H
/*
 * The SQL generator: a template, expanded for an engine and for a table.  In a template:
 *
 *   dibs_X         dibs' own table X, under the prefix of the store
 *   @{lock}        the engine's words: lock (the clause that locks the rows of a SELECT), now (the clock, ms since
 *                  1970, UTC), start (the clock as the bound of a search), leave (the clause that ignores an existing
 * row, of a table with a column "name"); and the caller's own
 *
 *   @S             the table; @k @v @f @o @u @m @n @P @L @U its key, version, fence, owner, used,
 *                  limit, count, phase, locked_at, updated_at
 *   @C             the claims' table; @c @s @a @g @t @w its claim, stock, amount, given, taker, time
 *                  (NULL where the table has no such column)
 *   @^u            a column that is set or inserted: its name alone
 *   @!k            the condition that this column is the key $1, byte by byte
 *   @~c            a column's text, compared byte by byte
 *   @=u            a column, read so that dibs__sql_whole can tell a text from a number
 *   @?u            the condition that a column has a whole number; @#u after a condition: and it has one from 0 on
 *   @[a ...@]      if the table has that column, @[!a ...@] if not; @[* ...@] if it is the user's, @[!* ...@] if not.
 *                  Not nested
 *
 *   $1             a value.  @ before anything else stays as it is
 *
 * Texts are composed each time: it takes a fifth of a microsecond, and a prepared statement is found again by its
 * text.
 */
#include "base/text.h"
#include "sql/wire.h"

struct dibs__sql_word {
  const char *name, *text;
};

struct dibs__sql_names {
  const struct dibs__sql_engine *engine;
  const char *prefix;                 /* of dibs' own tables */
  bool inside;                        /* the session is a user's */
  const struct dibs__table *table;    /* the user's; NULL: the stock of dibs' own */
  size_t key_text;                    /* the value that is the key as text; 0: $1 */
  size_t before;                      /* added to the number of each value */
  const struct dibs__sql_word *words; /* the caller's; ended by one without a name; NULL: none */
};

void dibs__sql_compose(struct dibs__text *to, const struct dibs__sql_names *names, const char *from);
/* The same into memory of its own; NULL: there is none. */
char *dibs__sql_composed(const struct dibs__sql_names *names, const char *from);

#endif

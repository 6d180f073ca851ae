/* SPDX-License-Identifier: MIT */
/*
 * Claims that are older than they are kept.  There is no index on their time, which every take would have to write: the
 * sweep walks through the table in the order of its key, a step each time, and begins anew at its end.
 */
#include "sql/stock_parts.h"

#include <stdlib.h>
#include <string.h>

typedef dibs__stock_step step;
typedef struct dibs__sql_value value;

enum { LOOKED_AT = 500 };
/* Who asks with a claim again after so long has a new one.  The texts hold these numbers. */
#define KEEP_MS "2592000000"

struct old {
  size_t count;
  dibs__str names[LOOKED_AT];
  char memory[LOOKED_AT][DIBS__SQL_CLAIM_MAX];
};

static step look(struct dibs__sql_guard *g, struct old *old, bool *more) {
  const struct dibs__sql_engine *e = g->wire->engine;
  value from = dibs__sql_text(g->swept, strlen(g->swept));
  size_t nth = g->wire->put;
  step end = dibs__stock_put(g, NULL,
                             "SELECT @c, CASE WHEN @w < @n - " KEEP_MS " THEN 1 ELSE 0 END FROM @C WHERE @c > $1 "
                             "ORDER BY @c LIMIT 500",
                             &from, 1);
  if (end == DIBS__SQL_FINE) end = e->go(g->wire, false);
  if (end != DIBS__SQL_FINE) return end;
  size_t rows = e->rows(g->wire, nth);
  *more = rows >= LOOKED_AT;
  g->swept[0] = '\0';
  for (size_t i = 0; i < rows; i++) {
    value name = e->cell(g->wire, nth, i, 0, DIBS__SQL_TEXT);
    if (name.len > DIBS__SQL_CLAIM_MAX) continue;
    if (*more && i == rows - 1) {
      memcpy(g->swept, name.p, name.len);
      g->swept[name.len] = '\0';
    }
    if (!dibs__sql_cell_number(g->wire, nth, i, 1)) continue;
    memcpy(old->memory[old->count], name.p, name.len);
    old->names[old->count] = dibs__str_of(old->memory[old->count], name.len);
    old->count++;
  }
  return DIBS__SQL_FINE;
}

/* $1, which every statement about claims has, is said to be no key. */
static step drop(struct dibs__sql_guard *g, const struct old *old) {
  step end = dibs__sql_begin(g->wire);
  if (end == DIBS__SQL_FINE)
    end = dibs__stock_put_claims(g, NULL, "DELETE FROM @C WHERE @s <> $1 AND", (dibs__str){0}, old->names, old->count);
  if (end == DIBS__SQL_FINE) end = dibs__sql_commit(g->wire);
  if (end == DIBS__SQL_FINE) end = g->wire->engine->go(g->wire, true);
  if (end == DIBS__SQL_FINE) g->commits++;
  if (end != DIBS__SQL_FINE && !dibs__sql_dead(g->wire)) dibs__sql_rollback(g->wire);
  return end;
}

step dibs__sql_claims_sweep(struct dibs__sql_guard *g, bool *more) {
  *more = false;
  if (!g->swept) return DIBS__SQL_FINE;
  struct old *old = calloc(1, sizeof *old);
  if (!old) return dibs__sql_broke(g->wire, DIBS__SQL_NO_SPACE, "out of memory");
  step end = look(g, old, more);
  if (end == DIBS__SQL_FINE && old->count > 0) end = drop(g, old);
  free(old);
  return end;
}

/* SPDX-License-Identifier: MIT */
/*
 * Statements with a table's names put in.  Composed each time: it takes a fifth of a microsecond, and what is prepared
 * is found again by its text.
 */
#include "base/text.h"
#include "sql/stock_parts.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef dibs__stock_step step;
typedef struct dibs__sql_value value;
typedef struct dibs__text text_t;

enum { TEXT_ROOM = 4096, MARK_ROOM = 8, NEW_VALUES = 2 };

static const struct dibs__table own = {.key = "name",
                                       .fence = "fence",
                                       .owner = "owner",
                                       .used = "used",
                                       .limit = "most",
                                       .claim = "claim",
                                       .stock = "stock",
                                       .amount = "amount",
                                       .given = "given",
                                       .taker = "taker",
                                       .taken = "taken"};

static const char *column(const struct dibs__table *t, char which) {
  switch (which) {
  case 'k':
    return t->key;
  case 'u':
    return t->used;
  case 'm':
    return t->limit;
  case 'f':
    return t->fence;
  case 'o':
    return t->owner;
  case 'c':
    return t->claim;
  case 's':
    return t->stock;
  case 'a':
    return t->amount;
  case 'g':
    return t->given;
  case 't':
    return t->taker;
  case 'w':
    return t->taken;
  default:
    return NULL;
  }
}

/* "booking.event" is two names. */
static void add_quoted(text_t *to, char quote, const char *name) {
  dibs__text_add(to, &quote, 1);
  for (const char *p = name; *p; p++) {
    if (*p == '.')
      dibs__text_addf(to, "%c.%c", quote, quote);
    else
      dibs__text_add(to, p, 1);
  }
  dibs__text_add(to, &quote, 1);
}

static void add_name(text_t *to, const struct dibs__sql_guard *g, const struct dibs__table *table, char which) {
  const struct dibs__sql_engine *e = g->wire->engine;
  const struct dibs__table *t = table ? table : &own;
  const char *name = which == 'S' ? t->table : which == 'C' ? t->claims : column(t, which);
  if (which == 'n')
    dibs__text_adds(to, e->now_ms);
  else if (which == 'L')
    dibs__text_adds(to, e->for_update);
  else if (!table && (which == 'S' || which == 'C'))
    dibs__text_addf(to, "%s%s", g->prefix, which == 'S' ? "stock" : "claim");
  else if (table && name)
    add_quoted(to, e->quote, name);
  else
    dibs__text_adds(to, name ? name : "NULL");
}

/* Behind the block if it is not for this table, else behind its beginning. */
static const char *enter_block(const char *at, const struct dibs__table *table) {
  const struct dibs__table *t = table ? table : &own;
  bool without = at[1] == '!';
  const char *letter = at + 1 + without;
  if (!column(t, *letter) == without) return letter + 1;
  const char *end = strchr(at, ']');
  return end ? end + 1 : letter + 1;
}

static void compose(text_t *to, const struct dibs__sql_guard *g, const struct dibs__table *table, const char *from) {
  for (const char *at = from; *at;) {
    size_t plain = strcspn(at, "@[]");
    dibs__text_add(to, at, plain);
    at += plain;
    if (*at == '[') {
      at = enter_block(at, table);
    } else if (*at == ']') {
      at++;
    } else if (*at == '@' && at[1] == '@') {
      dibs__text_add(to, at, 1);
      at += 2;
    } else if (*at == '@') {
      add_name(to, g, table, at[1]);
      at += 2;
    }
  }
}

step dibs__stock_put_rows(struct dibs__sql_guard *g, const struct dibs__table *table, const char *from,
                          const value *values, size_t count, const value *rows, size_t columns, size_t row_count) {
  char room[TEXT_ROOM];
  text_t text;
  dibs__text_begin(&text, room, sizeof room);
  compose(&text, g, table, from);
  if (text.cut) return dibs__sql_broke(g->wire, DIBS__SQL_NO_SPACE, "the names of the table are too long");
  if (row_count == 0) return g->wire->engine->put(g->wire, room, values, count);
  return g->wire->engine->put_rows(g->wire, room, values, count, rows, columns, row_count);
}

step dibs__stock_put(struct dibs__sql_guard *g, const struct dibs__table *table, const char *from, const value *values,
                     size_t count) {
  return dibs__stock_put_rows(g, table, from, values, count, NULL, 0, 0);
}

/* As rows where that is one statement for any number of them.  MariaDB would compare a column with texts of another
 * collation then, and not use the key: there they are literals in a list, which take the column's. */
static bool lists(const struct dibs__sql_engine *e) {
  return e->sessions && !e->update_returning;
}

static step put_list(struct dibs__sql_guard *g, const struct dibs__table *table, const char *from, dibs__str key,
                     const dibs__str *claims, size_t count) {
  size_t room = TEXT_ROOM + count * MARK_ROOM;
  char *memory = malloc(room);
  value *values = malloc((count + 1) * sizeof *values);
  text_t text;
  if (!memory || !values) {
    free(memory);
    free(values);
    return dibs__sql_broke(g->wire, DIBS__SQL_NO_SPACE, "out of memory");
  }
  dibs__text_begin(&text, memory, room);
  compose(&text, g, table, from);
  compose(&text, g, table, " @c IN (");
  values[0] = dibs__stock_key(key);
  for (size_t i = 0; i < count; i++) {
    dibs__text_addf(&text, i ? ", $%zu" : "$%zu", i + 2);
    values[i + 1] = dibs__sql_text(claims[i].p, claims[i].len);
  }
  dibs__text_adds(&text, ")");
  step end = g->wire->engine->put(g->wire, memory, values, count + 1);
  free(memory);
  free(values);
  return end;
}

step dibs__stock_put_claims(struct dibs__sql_guard *g, const struct dibs__table *table, const char *from, dibs__str key,
                            const dibs__str *claims, size_t count) {
  if (lists(g->wire->engine)) return put_list(g, table, from, key, claims, count);
  char room[TEXT_ROOM];
  value one = dibs__stock_key(key), *rows = malloc(count * sizeof *rows);
  if (!rows) return dibs__sql_broke(g->wire, DIBS__SQL_NO_SPACE, "out of memory");
  for (size_t i = 0; i < count; i++) rows[i] = dibs__sql_text(claims[i].p, claims[i].len);
  snprintf(room, sizeof room, "WITH r(claim) AS ($rows) %s @c IN (SELECT r.claim FROM r)", from);
  step end = dibs__stock_put_rows(g, table, room, &one, 1, rows, 1, count);
  free(rows);
  return end;
}

/* One claim needs no table of values, which MariaDB keeps in a temporary table: that costs it as much as all the rest
 * of a booking, while the counted row is locked. */
static step put_one_new(struct dibs__sql_guard *g, const struct dibs__table *table, const value *values, size_t count,
                        const value row[DIBS__STOCK_COLUMNS], const char *when) {
  char text[TEXT_ROOM];
  value all[NEW_VALUES + DIBS__STOCK_COLUMNS];
  assert(count <= NEW_VALUES);
  memcpy(all, values, count * sizeof *values);
  memcpy(all + count, row, DIBS__STOCK_COLUMNS * sizeof *row);
  snprintf(text, sizeof text, DIBS__STOCK_INTO "SELECT $%zu, $1[a, $%zu][g, $%zu][t, $%zu][w, @n] FROM DUAL%s",
           count + 1, count + 2, count + 3, count + 4, when);
  return dibs__stock_put(g, table, text, all, count + DIBS__STOCK_COLUMNS);
}

step dibs__stock_put_new(struct dibs__sql_guard *g, const struct dibs__table *table, const value *values, size_t count,
                         const value *rows, size_t row_count, const char *when) {
  char text[TEXT_ROOM];
  if (row_count == 1 && lists(g->wire->engine)) return put_one_new(g, table, values, count, rows, when);
  snprintf(text, sizeof text, DIBS__STOCK_INTO "WITH " DIBS__STOCK_ROWS " SELECT r.claim, $1" DIBS__STOCK_FROM "r%s",
           when);
  return dibs__stock_put_rows(g, table, text, values, count, rows, DIBS__STOCK_COLUMNS, row_count);
}

void dibs__stock_row(value row[DIBS__STOCK_COLUMNS], dibs__str claim, int64_t amount, bool given, dibs__str taker) {
  row[0] = dibs__sql_text(claim.p, claim.len);
  row[1] = dibs__sql_number(amount);
  row[2] = dibs__sql_number(given);
  row[3] = dibs__sql_text(taker.p, taker.len);
}

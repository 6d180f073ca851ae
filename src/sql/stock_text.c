/* SPDX-License-Identifier: MIT */
/*
 * The statements of stock: templates of text.h, with their values.  They are composed each time: it takes a fifth of a
 * microsecond, and a prepared statement is found again by its text.
 */
#include "base/text.h"
#include "sql/sql_impl.h"
#include "sql/text.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef dibs__stock_step sql_rc;
typedef struct dibs__sql_value value;
typedef struct dibs__text text_t;

enum { TEXT_CAPACITY = 8192, MARK_CAPACITY = 8, NEW_VALUES = 2, VALUES_MOST = NEW_VALUES + DIBS__STOCK_COLUMNS };

/* If a value has one type in a statement, the key as text is another value than the key: the last one. */
static size_t add_key_text(const struct dibs__sql_guard *g, const struct dibs__table *table, const char *from,
                           value *values, size_t *count) {
  if (!table || !g->wire->engine->typed || !strstr(from, "@!")) return 1;
  values[*count] = values[0];
  return ++*count;
}

sql_rc dibs__stock_put_rows(struct dibs__sql_guard *g, const struct dibs__table *table, const char *from,
                            const value *values, size_t count, const value *rows, size_t columns, size_t row_count) {
  char composed[TEXT_CAPACITY];
  value all[VALUES_MOST + 1];
  text_t text;
  assert(count <= VALUES_MOST);
  if (count) memcpy(all, values, count * sizeof *values);
  struct dibs__sql_names names = {.engine = g->wire->engine, .prefix = g->prefix, .table = table};
  names.key_text = add_key_text(g, table, from, all, &count);
  dibs__text_begin(&text, composed, sizeof composed);
  dibs__sql_compose(&text, &names, from);
  if (text.cut) return dibs__sql_fail(g->wire, DIBS__SQL_NO_SPACE, "the names of the table are too long");
  if (row_count == 0) return g->wire->engine->put(g->wire, composed, all, count);
  return g->wire->engine->put_rows(g->wire, composed, all, count, rows, columns, row_count);
}

sql_rc dibs__stock_put(struct dibs__sql_guard *g, const struct dibs__table *table, const char *from,
                       const value *values, size_t count) {
  return dibs__stock_put_rows(g, table, from, values, count, NULL, 0, 0);
}

/* As rows where that is one statement for any number of them.  MariaDB would then compare a column with texts of
 * another collation, and not use the key: there they are literals in a list, which take the column's collation. */
static bool needs_literals(const struct dibs__sql_engine *e) {
  return e->sessions && !e->update_returning;
}

static sql_rc put_list(struct dibs__sql_guard *g, const struct dibs__table *table, const char *from, dibs__str key,
                       const dibs__str *claims, size_t count) {
  size_t capacity = TEXT_CAPACITY + count * MARK_CAPACITY;
  char *memory = malloc(capacity);
  value *values = malloc((count + 1) * sizeof *values);
  text_t text;
  if (!memory || !values) {
    free(memory);
    free(values);
    return dibs__sql_fail(g->wire, DIBS__SQL_NO_SPACE, "out of memory");
  }
  struct dibs__sql_names names = {.engine = g->wire->engine, .prefix = g->prefix, .table = table};
  dibs__text_begin(&text, memory, capacity);
  dibs__sql_compose(&text, &names, from);
  dibs__sql_compose(&text, &names, " @c IN (");
  values[0] = dibs__stock_key(key);
  for (size_t i = 0; i < count; i++) {
    dibs__text_addf(&text, i ? ", $%zu" : "$%zu", i + 2);
    values[i + 1] = dibs__sql_text(claims[i].p, claims[i].len);
  }
  dibs__text_adds(&text, ")");
  sql_rc end = g->wire->engine->put(g->wire, memory, values, count + 1);
  free(memory);
  free(values);
  return end;
}

sql_rc dibs__stock_put_claims(struct dibs__sql_guard *g, const struct dibs__table *table, const char *from,
                              dibs__str key, const dibs__str *claims, size_t count) {
  if (needs_literals(g->wire->engine)) return put_list(g, table, from, key, claims, count);
  char composed[TEXT_CAPACITY];
  value one = dibs__stock_key(key), *rows = malloc(count * sizeof *rows);
  if (!rows) return dibs__sql_fail(g->wire, DIBS__SQL_NO_SPACE, "out of memory");
  for (size_t i = 0; i < count; i++) rows[i] = dibs__sql_text(claims[i].p, claims[i].len);
  /* The index may treat more texts than the claim itself as equal. */
  bool loose = table && !g->wire->engine->sessions;
  snprintf(composed, sizeof composed,
           "WITH dibsrows(claim) AS ($rows) %s @c IN (SELECT dibsrows.claim FROM dibsrows)%s", from,
           loose ? " AND @~c IN (SELECT dibsrows.claim FROM dibsrows)" : "");
  sql_rc end = dibs__stock_put_rows(g, table, composed, &one, 1, rows, 1, count);
  free(rows);
  return end;
}

/* One claim needs no table of values, which MariaDB keeps in a temporary table: that costs it as much as the rest
 * of a booking, while the counted row is locked. */
static sql_rc put_one_new(struct dibs__sql_guard *g, const struct dibs__table *table, const value *values, size_t count,
                          const value row[DIBS__STOCK_COLUMNS], const char *when) {
  char text[TEXT_CAPACITY];
  value all[NEW_VALUES + DIBS__STOCK_COLUMNS];
  assert(count <= NEW_VALUES);
  memcpy(all, values, count * sizeof *values);
  memcpy(all + count, row, DIBS__STOCK_COLUMNS * sizeof *row);
  snprintf(text, sizeof text,
           DIBS__STOCK_INTO "SELECT $%zu, $1@[a, $%zu@]@[g, $%zu@]@[t, $%zu@]@[w, @{now}@] FROM DUAL%s", count + 1,
           count + 2, count + 3, count + 4, when);
  return dibs__stock_put(g, table, text, all, count + DIBS__STOCK_COLUMNS);
}

sql_rc dibs__stock_put_new(struct dibs__sql_guard *g, const struct dibs__table *table, const value *values,
                           size_t count, const value *rows, size_t row_count, const char *when) {
  char text[TEXT_CAPACITY];
  if (row_count == 1 && needs_literals(g->wire->engine)) return put_one_new(g, table, values, count, rows, when);
  snprintf(text, sizeof text,
           DIBS__STOCK_INTO "WITH " DIBS__STOCK_ROWS " SELECT dibsrows.claim, $1" DIBS__STOCK_FROM "dibsrows%s", when);
  return dibs__stock_put_rows(g, table, text, values, count, rows, DIBS__STOCK_COLUMNS, row_count);
}

void dibs__stock_row(value row[DIBS__STOCK_COLUMNS], dibs__str claim, int64_t amount, bool given, dibs__str taker) {
  row[0] = dibs__sql_text(claim.p, claim.len);
  row[1] = dibs__sql_number(amount);
  row[2] = dibs__sql_number(given);
  row[3] = dibs__sql_text(taker.p, taker.len);
}

/* SPDX-License-Identifier: MIT */
/*
 * Does a user's table fit its declaration?  The engine's catalogue is read once for each connection, before the first
 * use: a column that is missing, of a wrong type or not unique must not be noticed only at a give, or never, because
 * an engine takes an unknown name for a text.
 *
 * The statements rely on the result:
 *   numbers are whole, so that a value that an engine rounds or truncates is never counted
 *   one row has the key, and one the claim
 *   a claim is text, and the index that keeps it unique compares it no looser than the column does
 * The content of the rows can change at any time, so each statement checks that itself.
 *
 * At the end: the transaction of an operation on such a table.
 */
#include "sql/sql_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__sql_shape shape_t;
typedef struct dibs__sql_value value;
typedef struct dibs__table table_t;

#define ANY DIBS__SQL_FOR_RECORDS
#define STOCK DIBS__SQL_FOR_STOCK
#define TASKS DIBS__SQL_FOR_TASKS
#define COUNTERS DIBS__SQL_FOR_COUNTERS
#define WHOLE "NUn*"
#define WIDE "NU*"

/* A role of a column; `fits`: the kinds that it may have, NULL: all. */
struct role {
  const char *field;
  size_t at;
  bool of_claims;
  enum dibs__sql_use use; /* FOR_RECORDS: any */
  bool written;
  const char *fits, *needs;
};
#define ROLE(field, member, ...)                                                                                       \
  { field, offsetof(table_t, member), __VA_ARGS__ }
static const struct role roles[] = {
    ROLE("key", key, false, ANY, false, NULL, NULL),
    ROLE("fence", fence, false, ANY, true, WIDE, "a whole number of 64 bits"),
    ROLE("owner", owner, false, ANY, true, "N*", "a whole number of 64 bits with a sign"),
    ROLE("used", used, false, STOCK, true, WHOLE, "a whole number"),
    ROLE("limit", limit, false, STOCK, false, WHOLE, "a whole number"),
    ROLE("claim", claim, true, STOCK, true, "t*", "text of any length, with a collation that distinguishes all texts"),
    ROLE("claim_stock", stock, true, STOCK, true, NULL, NULL),
    ROLE("claim_amount", amount, true, STOCK, true, WHOLE, "a whole number"),
    ROLE("claim_given", given, true, STOCK, true, WHOLE, "a whole number, 0 or 1"),
    ROLE("claim_owner", taker, true, STOCK, true, "tc*", "text"),
    ROLE("claim_time", taken, true, STOCK, true, WIDE, "a whole number of 64 bits, for milliseconds"),
    ROLE("count", count, false, COUNTERS, true, WHOLE, "a whole number"),
    ROLE("phase", phase, false, TASKS, true, NULL, NULL),
};
static const struct role locked_at = ROLE("locked_at", locked_at, false, TASKS, true, NULL, NULL);
static const struct role updated_at = ROLE("updated_at", updated_at, false, TASKS, true, NULL, NULL);
static const struct role versions[] = {
    [DIBS__VERSION_NUMBER] = ROLE("version", version, false, ANY, true, WHOLE, "a whole number"),
    [DIBS__VERSION_TIME] = ROLE("version", version, false, ANY, true, "it*", "a date with a time"),
    [DIBS__VERSION_HASH] = ROLE("version", version, false, ANY, true, "tc*", "text"),
};
enum { ROLES = sizeof roles / sizeof roles[0] };

/* ---- The catalogue ---- */

struct check {
  struct dibs__sql_guard *guard;
  const struct dibs__sql_engine *engine;
  const table_t *table;
  enum dibs__sql_use use;
  size_t columns[2], unique[2]; /* statements: of the table, of its claims */
  char *why;
  size_t size;
};

static const char *table_of(const struct check *c, bool of_claims) {
  return of_claims ? c->table->claims : c->table->table;
}

static sql_rc put_lookups(struct check *c, bool of_claims) {
  const char *table = table_of(c, of_claims), *dot = strchr(table, '.');
  const char *last = dot ? dot + 1 : table;
  value names[] = {dibs__sql_text(table, dot ? (size_t)(dot - table) : 0), dibs__sql_text(last, strlen(last))};
  struct dibs__sql_wire *w = c->guard->wire;
  c->columns[of_claims] = w->put;
  sql_rc end = c->engine->put(w, c->engine->columns, names, 2);
  c->unique[of_claims] = w->put;
  return end == DIBS__SQL_OK ? c->engine->put(w, c->engine->unique, names, 2) : end;
}

static value cell_text(const struct check *c, size_t nth, size_t row, size_t column) {
  return c->engine->cell(c->guard->wire, nth, row, column, DIBS__SQL_TEXT);
}

/* The row of the column in an answer; the number of rows: there is none. */
static size_t find_column(const struct check *c, size_t nth, const char *name) {
  size_t row = 0, rows = c->engine->rows(c->guard->wire, nth);
  for (; row < rows; row++) {
    value v = cell_text(c, nth, row, 0);
    if (v.kind == DIBS__SQL_NULL || v.len != strlen(name)) continue;
    if ((c->engine->fold ? strncasecmp : strncmp)(v.p, name, v.len) == 0) break;
  }
  return row;
}

static char kind_of(const struct check *c, bool of_claims, const char *name) {
  size_t nth = c->columns[of_claims];
  value v = cell_text(c, nth, find_column(c, nth, name), 1);
  return v.len ? *v.p : DIBS__COLUMN_OTHER;
}

static bool is_unique(const struct check *c, bool of_claims, const char *name) {
  size_t nth = c->unique[of_claims];
  return find_column(c, nth, name) < c->engine->rows(c->guard->wire, nth);
}

/* ---- Does it fit? ---- */

static bool has_column(const struct check *c, const struct role *role, const char *name) {
  const char *table = table_of(c, role->of_claims);
  size_t nth = c->columns[role->of_claims], rows = c->engine->rows(c->guard->wire, nth);
  if (find_column(c, nth, name) < rows) return true;
  if (rows == 0)
    snprintf(c->why, c->size,
             "the table \"%.64s\", declared with a column for %s, does not exist, or you have no privilege to see it",
             table, role->field);
  else
    snprintf(c->why, c->size, "the table \"%.64s\" has no column \"%.64s\" (declared as %s)", table, name, role->field);
  return false;
}

static bool column_fits_role(const struct check *c, const struct role *role) {
  const char *name = *(const char *const *)((const char *)c->table + role->at), *table = table_of(c, role->of_claims);
  if (!name || !table) return true;
  if (!has_column(c, role, name)) return false;
  size_t nth = c->columns[role->of_claims], row = find_column(c, nth, name);
  value kind = cell_text(c, nth, row, 1), type = cell_text(c, nth, row, 2);
  if (role->fits && (kind.len != 1 || !strchr(role->fits, *kind.p))) {
    snprintf(c->why, c->size, "the column \"%.40s\" of the table \"%.40s\" (%s) is %.*s: it must be %s", name, table,
             role->field, type.len < 60 ? (int)type.len : 60, type.p ? type.p : "", role->needs);
    return false;
  }
  if (!role->written || dibs__sql_cell_number(c->guard->wire, nth, row, 3) == 0) return true;
  snprintf(c->why, c->size,
           "the column \"%.40s\" of the table \"%.40s\" (%s) is computed by the engine; dibs needs a column that it "
           "can write",
           name, table, role->field);
  return false;
}

static bool fits_all(const struct check *c) {
  for (size_t i = 0; i < ROLES; i++) {
    if (roles[i].use != ANY && roles[i].use != c->use) continue;
    if (!column_fits_role(c, &roles[i])) return false;
  }
  if (!column_fits_role(c, &versions[c->table->version_kind])) return false;
  static const struct role listed = {"columns", 0, false, ANY, false, NULL, NULL};
  for (size_t i = 0; i < c->table->column_count; i++)
    if (!has_column(c, &listed, c->table->columns[i])) return false;
  return true;
}

static bool unique_or_says(const struct check *c, bool of_claims, const char *name) {
  if (!name || is_unique(c, of_claims, name)) return true;
  snprintf(c->why, c->size,
           "the column \"%.40s\" of the table \"%.40s\" has no unique index of its own (a view has none): without it a "
           "%s could exist twice",
           name, table_of(c, of_claims), of_claims ? "claim" : "key");
  return false;
}

static bool is_number_kind(char kind) {
  return kind == DIBS__COLUMN_INT64 || kind == DIBS__COLUMN_UINT64 || kind == DIBS__COLUMN_WHOLE;
}

static bool fits_stock(const struct check *c) {
  const table_t *t = c->table;
  if (c->use != STOCK) return true;
  if (!unique_or_says(c, false, t->key)) return false;
  if (!t->claims) return true;
  if (!unique_or_says(c, true, t->claim)) return false;
  if (is_number_kind(kind_of(c, false, t->key)) == is_number_kind(kind_of(c, true, t->stock))) return true;
  snprintf(c->why, c->size,
           "the column \"%.40s\" of the table \"%.40s\" (claim_stock) does not have the type of \"%.40s\" of \"%.40s\" "
           "(key)",
           t->stock, t->claims, t->key, t->table);
  return false;
}

static bool fits_counters(const struct check *c) {
  return c->use != COUNTERS || unique_or_says(c, false, c->table->key);
}

/* ---- Tasks ---- */

static const struct dibs__sql_instant *instant_of(const struct check *c, const char *name) {
  size_t nth = c->columns[false];
  value kind = cell_text(c, nth, find_column(c, nth, name), 1), form = cell_text(c, nth, find_column(c, nth, name), 4);
  char letter = form.len ? *form.p : '\0', number = kind.len ? *kind.p : DIBS__COLUMN_OTHER;
  bool seconds = c->table->time_unit == DIBS__TIME_S;
  if (letter == '\0' && is_number_kind(number) && (seconds || number != DIBS__COLUMN_WHOLE))
    letter = seconds ? DIBS__INSTANT_S : DIBS__INSTANT_MS;
  for (const struct dibs__sql_instant *i = c->engine->instants; letter && i->letter; i++)
    if (i->letter == letter) return i;
  return NULL;
}

static bool may_be_null(const struct check *c, const char *name) {
  size_t nth = c->columns[false];
  return dibs__sql_cell_number(c->guard->wire, nth, find_column(c, nth, name), 5) == 0;
}

static bool is_instant(const struct check *c, const struct role *role) {
  const char *name = *(const char *const *)((const char *)c->table + role->at);
  if (!column_fits_role(c, role)) return false;
  if (instant_of(c, name)) return true;
  size_t nth = c->columns[false];
  value type = cell_text(c, nth, find_column(c, nth, name), 2);
  snprintf(c->why, c->size,
           "the column \"%.40s\" of the table \"%.40s\" (%s) is %.*s: it must be a date with a time, or a whole number "
           "of %s",
           name, c->table->table, role->field, type.len < 40 ? (int)type.len : 40, type.p ? type.p : "",
           c->table->time_unit == DIBS__TIME_S ? "seconds" : "64 bits, for milliseconds");
  return false;
}

static bool fits_tasks(const struct check *c) {
  if (c->use != TASKS) return true;
  return unique_or_says(c, false, c->table->key) && is_instant(c, &locked_at) && is_instant(c, &updated_at);
}

/* ---- One check for each connection ---- */

static shape_t *known_shape(struct dibs__sql_wire *w, uint64_t nr) {
  for (size_t i = 0; i < DIBS__SQL_SHAPES; i++)
    if (w->shapes[i].nr == nr) return &w->shapes[i];
  return NULL;
}

static shape_t *remember_shape(struct check *c) {
  struct dibs__sql_wire *w = c->guard->wire;
  shape_t *s = known_shape(w, c->table->nr);
  if (!s) s = &w->shapes[w->next_shape++ % DIBS__SQL_SHAPES];
  if (s->nr != c->table->nr) *s = (shape_t){.nr = c->table->nr};
  s->fits |= 1u << c->use;
  s->key_is_number = is_number_kind(kind_of(c, false, c->table->key));
  s->key_is_unique = is_unique(c, false, c->table->key);
  if (c->use != TASKS) return s;
  s->locked = instant_of(c, c->table->locked_at);
  s->updated = instant_of(c, c->table->updated_at);
  s->locked_may_be_null = may_be_null(c, c->table->locked_at);
  s->updated_may_be_null = may_be_null(c, c->table->updated_at);
  return s;
}

sql_rc dibs__sql_table_check(struct dibs__sql_guard *g, const table_t *table, enum dibs__sql_use use,
                             const shape_t **shape, char *why, size_t size) {
  struct check c = {.guard = g, .engine = g->wire->engine, .table = table, .use = use, .why = why, .size = size};
  const shape_t *s = known_shape(g->wire, table->nr);
  *shape = s;
  if (s && (s->fits & 1u << use)) return DIBS__SQL_OK;
  *shape = NULL;
  sql_rc end = put_lookups(&c, false);
  if (end == DIBS__SQL_OK && use == STOCK && table->claims) end = put_lookups(&c, true);
  if (end == DIBS__SQL_OK) end = c.engine->go(g->wire, false);
  if (end == DIBS__SQL_OK && fits_all(&c) && fits_stock(&c) && fits_tasks(&c) && fits_counters(&c))
    *shape = remember_shape(&c);
  return end;
}

/* ---- Numbers ---- */

bool dibs__sql_is_number(dibs__str s) {
  size_t from = s.len > 1 && s.p[0] == '-';
  if (s.len == from || s.len > 18 || (s.p[from] == '0' && s.len > 1)) return false;
  for (size_t i = from; i < s.len; i++)
    if (s.p[i] < '0' || s.p[i] > '9') return false;
  return true;
}

/* As SQLite's quote() writes it, too: a NULL is the word, a text is in quotes. */
const char *dibs__sql_whole(value v, int64_t *number) {
  *number = 0;
  if (v.kind == DIBS__SQL_NULL || (v.len == 4 && memcmp(v.p, "NULL", 4) == 0)) return "is NULL";
  size_t from = v.len > 0 && v.p[0] == '-';
  if (v.len == from) return "is not a whole number";
  for (size_t i = from; i < v.len; i++) {
    if (v.p[i] < '0' || v.p[i] > '9') return "is not a whole number";
    if (__builtin_mul_overflow(*number, 10, number) || __builtin_add_overflow(*number, v.p[i] - '0', number))
      return "is too large";
  }
  if (!from) return NULL;
  *number = -*number;
  return "is below 0";
}

/* ---- Names ---- */

static void add_part(struct dibs__text *to, const struct dibs__sql_engine *e, const char *name, size_t len) {
  dibs__text_add(to, &e->quote, 1);
  dibs__text_add(to, name, len);
  dibs__text_add(to, &e->quote, 1);
}

void dibs__sql_add_name(struct dibs__text *to, const struct dibs__sql_engine *e, const char *name) {
  const char *dot = strchr(name, '.');
  if (dot) {
    add_part(to, e, name, (size_t)(dot - name));
    dibs__text_adds(to, ".");
    name = dot + 1;
  }
  add_part(to, e, name, strlen(name));
}

void dibs__sql_add_column(struct dibs__text *to, const struct dibs__sql_engine *e, const char *table,
                          const char *column) {
  const char *dot = strchr(table, '.');
  dibs__sql_add_name(to, e, dot ? dot + 1 : table);
  dibs__text_adds(to, ".");
  dibs__sql_add_name(to, e, column);
}

/* ---- The transaction of an operation on a user's table ---- */

sql_rc dibs__table_begin(struct dibs__sql_guard *g, bool *begun) {
  if (*begun) return DIBS__SQL_OK;
  *begun = true;
  return dibs__sql_begin(g->wire);
}

sql_rc dibs__table_go(struct dibs__sql_guard *g, bool *begun, bool commits) {
  sql_rc end = g->wire->engine->go(g->wire, commits);
  if (end == DIBS__SQL_OK && commits) {
    *begun = false;
    g->commits++;
  }
  return end;
}

sql_rc dibs__table_commit(struct dibs__sql_guard *g, bool *begun) {
  sql_rc end = *begun ? dibs__sql_commit(g->wire) : DIBS__SQL_OK;
  return end == DIBS__SQL_OK ? dibs__table_go(g, begun, true) : end;
}

sql_rc dibs__table_rollback(struct dibs__sql_guard *g, bool *begun) {
  struct dibs__sql_wire *w = g->wire;
  if (!*begun) return DIBS__SQL_OK;
  *begun = false;
  w->trouble = DIBS__SQL_ODD;
  dibs__sql_rollback(w);
  return dibs__sql_dead(w) ? DIBS__SQL_FAILED : DIBS__SQL_OK;
}

dibs__status dibs__table_status(enum dibs__sql_trouble trouble) {
  switch (trouble) {
  case DIBS__SQL_DENIED:
    return DIBS_DENIED;
  case DIBS__SQL_DAMAGED:
    return DIBS_CORRUPT;
  case DIBS__SQL_LOCKED:
  case DIBS__SQL_FULL:
    return DIBS_UNAVAILABLE;
  default: /* the failed statement is that of the request */
    return DIBS_INVALID;
  }
}

/* SPDX-License-Identifier: MIT */
/*
 * Statements about a row of the user's table.  A column that is read stands behind the table's name: some engines take
 * a quoted name that they do not know for a text.
 */
#include "sql/table_record.h"

#include <assert.h>
#include <string.h>

typedef struct dibs__table_text text_t;

static void begin(text_t *t) {
  dibs__text_begin(&t->text, t->memory, sizeof t->memory);
  t->count = 0;
}

static void say(text_t *t, const char *words) {
  dibs__text_adds(&t->text, words);
}

/* One part of a name; it has no quotes in it: see guard/table.c. */
static void quoted(text_t *t, const char *name, size_t len) {
  dibs__text_add(&t->text, &t->engine->quote, 1);
  dibs__text_add(&t->text, name, len);
  dibs__text_add(&t->text, &t->engine->quote, 1);
}

static void name(text_t *t, const char *column) {
  quoted(t, column, strlen(column));
}

static const char *last_part(const char *table) {
  const char *dot = strchr(table, '.');
  return dot ? dot + 1 : table;
}

static void table_name(text_t *t) {
  const char *table = t->op->table->table, *last = last_part(table);
  if (last != table) {
    quoted(t, table, (size_t)(last - table) - 1);
    say(t, ".");
  }
  name(t, last);
}

static void column(text_t *t, const char *of) {
  name(t, last_part(t->op->table->table));
  say(t, ".");
  name(t, of);
}

static void value(text_t *t, struct dibs__sql_value v) {
  assert(t->count < DIBS__TABLE_VALUES);
  t->values[t->count++] = v;
  dibs__text_addf(&t->text, "$%zu", t->count);
}

static struct dibs__sql_value text_of(dibs__str s) {
  return dibs__sql_text(s.p, s.len);
}

static struct dibs__sql_value digest_of(const text_t *t) {
  return dibs__sql_number((int64_t)dibs__id_digest(t->op->id));
}

static struct dibs__sql_value fence_of(const text_t *t) {
  return dibs__sql_number((int64_t)t->op->fence.v);
}

/* ---- Conditions ---- */

/* As an engine writes one that fits 64 bits. */
static bool is_number(dibs__str s) {
  size_t from = s.len > 1 && s.p[0] == '-';
  if (s.len == from || s.len > 18 || (s.p[from] == '0' && s.len > 1)) return false;
  for (size_t i = from; i < s.len; i++)
    if (s.p[i] < '0' || s.p[i] > '9') return false;
  return true;
}

/* A loose engine finds the row by the digits that the key begins with; then it must be written like the key, too. */
static void where_key(text_t *t) {
  say(t, " WHERE ");
  column(t, t->op->table->key);
  say(t, " = ");
  value(t, text_of(t->op->key));
  if (!t->engine->loose || is_number(t->op->key)) return;
  say(t, " AND CAST(");
  column(t, t->op->table->key);
  say(t, " AS CHAR) = ");
  value(t, text_of(t->op->key));
}

/* The version that no version is stands for NULL. */
static void version_stands(text_t *t) {
  const struct dibs__table *table = t->op->table;
  bool number = table->version_kind == DIBS__VERSION_NUMBER;
  if (!number && t->op->if_version.len == 0) {
    column(t, table->version);
    say(t, " IS NULL");
    return;
  }
  bool zero = number && dibs__str_is_number(t->op->if_version, 0);
  if (zero) {
    say(t, "(");
    column(t, table->version);
    say(t, " IS NULL OR ");
  }
  column(t, table->version);
  say(t, " = ");
  value(t, text_of(t->op->if_version));
  if (zero) say(t, ")");
}

static void fence_holds(text_t *t) {
  const struct dibs__table *table = t->op->table;
  say(t, " AND (");
  column(t, table->fence);
  say(t, " IS NULL OR ");
  column(t, table->fence);
  say(t, table->owner ? " < " : " <= ");
  value(t, fence_of(t));
  if (table->owner) {
    say(t, " OR (");
    column(t, table->fence);
    say(t, " = ");
    value(t, fence_of(t));
    say(t, " AND ");
    column(t, table->owner);
    say(t, " = ");
    value(t, digest_of(t));
    say(t, ")");
  }
  say(t, ")");
}

static void where_guarded(text_t *t) {
  where_key(t);
  uint32_t guards = dibs__record_guards(t->op);
  if (t->op->op.verb == DIBS__RECORD_SEAL) guards = DIBS__IF_FENCE;
  if ((guards & DIBS__IF_VERSION) && t->op->table->version) {
    say(t, " AND ");
    version_stands(t);
  }
  if (guards & DIBS__IF_FENCE) fence_holds(t);
}

/* ---- What is read ---- */

static void part(text_t *t, const char *of) {
  if (of)
    column(t, of);
  else
    say(t, "NULL");
}

static void read_list(text_t *t, bool columns) {
  const struct dibs__table *table = t->op->table;
  column(t, table->key);
  say(t, ", ");
  part(t, table->version);
  say(t, ", ");
  part(t, table->fence);
  say(t, ", ");
  part(t, table->owner);
  /* Instants have many forms: the engine compares. */
  if (table->version && table->version_kind == DIBS__VERSION_TIME && (t->op->guards & DIBS__IF_VERSION)) {
    say(t, ", CASE WHEN ");
    version_stands(t);
    say(t, " THEN 1 ELSE 0 END");
  } else {
    say(t, ", 0");
  }
  for (size_t i = 0; columns && i < table->column_count; i++) {
    say(t, ", ");
    column(t, table->columns[i]);
  }
}

void dibs__table_select(text_t *t, bool columns, bool lock) {
  begin(t);
  say(t, "SELECT ");
  read_list(t, columns);
  say(t, " FROM ");
  table_name(t);
  where_key(t);
  if (lock) say(t, t->engine->for_update);
}

/* ---- What is written ---- */

struct list {
  text_t *t;
  bool more;
};

static void next(struct list *l) {
  if (l->more) say(l->t, ", ");
  l->more = true;
}

static bool kept(const dibs_value *v) {
  return !v->data && v->length == DIBS_KEEP;
}

static void content(text_t *t, const dibs_value *v) {
  value(t, v->data ? dibs__sql_text(v->data, v->length) : dibs__sql_null());
}

static void set_number(struct list *l, const char *of, struct dibs__sql_value v) {
  next(l);
  name(l->t, of);
  say(l->t, " = ");
  value(l->t, v);
}

static void set_version(struct list *l, const char *version) {
  const char *of = l->t->op->table->version;
  if (!of) return;
  next(l);
  name(l->t, of);
  say(l->t, " = ");
  if (version) {
    value(l->t, dibs__sql_text(version, strlen(version)));
    return;
  }
  say(l->t, "COALESCE(");
  column(l->t, of);
  say(l->t, ", 0) + 1");
}

static void set_fence(struct list *l) {
  const struct dibs__table *table = l->t->op->table;
  if (!(dibs__record_guards(l->t->op) & DIBS__IF_FENCE)) return;
  set_number(l, table->fence, fence_of(l->t));
  if (table->owner) set_number(l, table->owner, digest_of(l->t));
}

static void returns(text_t *t, bool returning, bool columns) {
  if (!returning || !t->engine->update_returning) return;
  say(t, " RETURNING ");
  read_list(t, columns);
}

void dibs__table_update(text_t *t, const char *version, bool guarded, bool returning) {
  const struct dibs__table *table = t->op->table;
  struct list l = {t, false};
  begin(t);
  say(t, "UPDATE ");
  table_name(t);
  say(t, " SET ");
  for (size_t i = 0; i < table->column_count; i++) {
    if (kept(&t->op->values[i])) continue;
    next(&l);
    name(t, table->columns[i]);
    say(t, " = ");
    content(t, &t->op->values[i]);
  }
  set_version(&l, version);
  set_fence(&l);
  if (!l.more) { /* nothing but the guards */
    name(t, table->key);
    say(t, " = ");
    column(t, table->key);
  }
  if (guarded)
    where_guarded(t);
  else
    where_key(t);
  returns(t, returning, false);
}

void dibs__table_seal(text_t *t, bool returning) {
  struct list l = {t, false};
  begin(t);
  say(t, "UPDATE ");
  table_name(t);
  say(t, " SET ");
  set_fence(&l);
  where_guarded(t);
  returns(t, returning, true);
}

void dibs__table_insert(text_t *t, const char *version) {
  const struct dibs__table *table = t->op->table;
  bool fenced = (dibs__record_guards(t->op) & DIBS__IF_FENCE) != 0;
  begin(t);
  say(t, "INSERT INTO ");
  table_name(t);
  say(t, " (");
  name(t, table->key);
  for (int values = 0; values < 2; values++) {
    if (values) {
      say(t, ") VALUES (");
      value(t, text_of(t->op->key));
    }
    for (size_t i = 0; i < table->column_count; i++) {
      if (kept(&t->op->values[i])) continue; /* the column's default */
      say(t, ", ");
      values ? content(t, &t->op->values[i]) : name(t, table->columns[i]);
    }
    if (table->version) {
      say(t, ", ");
      values ? value(t, dibs__sql_text(version, strlen(version))) : name(t, table->version);
    }
    if (fenced) {
      say(t, ", ");
      values ? value(t, fence_of(t)) : name(t, table->fence);
    }
    if (fenced && table->owner) {
      say(t, ", ");
      values ? value(t, digest_of(t)) : name(t, table->owner);
    }
  }
  say(t, ")");
}

void dibs__table_delete(text_t *t, bool guarded) {
  begin(t);
  say(t, "DELETE FROM ");
  table_name(t);
  if (guarded)
    where_guarded(t);
  else
    where_key(t);
}

enum dibs__sql_step dibs__table_put(text_t *t, struct dibs__sql_wire *wire) {
  assert(!t->text.cut);
  return wire->engine->put(wire, t->memory, t->values, t->count);
}

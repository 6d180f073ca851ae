/* SPDX-License-Identifier: MIT */
/* Statements about a row of the user's table: pieces of templates (text.h), with their values. */
#include "sql/sql_impl.h"
#include "sql/text.h"

#include <assert.h>
#include <string.h>

typedef struct dibs__table_text text_t;
typedef struct dibs__sql_value value;

static void begin_text(text_t *t) {
  dibs__text_begin(&t->text, t->memory, sizeof t->memory);
  t->count = 0;
}

/* Adds a piece; its $1 is the first of these values. */
static void add_piece_with(text_t *t, const char *piece, const value *values, size_t count) {
  struct dibs__sql_names names = {.engine = t->engine, .prefix = "", .table = t->op->table, .before = t->count};
  assert(t->count + count <= DIBS__TABLE_VALUES);
  for (size_t i = 0; i < count; i++) t->values[t->count++] = values[i];
  dibs__sql_compose(&t->text, &names, piece);
}
#define ADD_WITH(t, piece, ...)                                                                                        \
  add_piece_with(t, piece, (value[]){__VA_ARGS__}, sizeof((value[]){__VA_ARGS__}) / sizeof(value))

static void add_piece(text_t *t, const char *piece) {
  add_piece_with(t, piece, NULL, 0);
}

/* A column of the list: its name alone. */
static void add_name(text_t *t, const char *column) {
  dibs__sql_add_name(&t->text, t->engine, column);
}

static value text_of(dibs__str s) {
  return dibs__sql_text(s.p, s.len);
}

static value key_of(const text_t *t) {
  return text_of(t->op->key);
}

static value digest_of(const text_t *t) {
  return dibs__sql_number((int64_t)dibs__id_digest(t->op->id));
}

static value fence_of(const text_t *t) {
  return dibs__sql_number((int64_t)t->op->fence.v);
}

/* ---- Conditions ---- */

/* An engine may treat other texts as equal to the key: a number by its leading digits, or another case. */
static void where_key(text_t *t) {
  ADD_WITH(t, " WHERE @k = $1 AND @~k = $2", key_of(t), key_of(t));
}

/* The empty version means NULL. */
static void version_matches(text_t *t) {
  const struct dibs__table *table = t->op->table;
  value version = text_of(t->op->if_version);
  bool number = table->version_kind == DIBS__VERSION_NUMBER;
  if (!number && t->op->if_version.len == 0)
    add_piece(t, "@v IS NULL");
  else if (number && dibs__str_is_number(t->op->if_version, 0))
    ADD_WITH(t, "(@v IS NULL OR @v = $1)", version);
  else if (table->version_kind == DIBS__VERSION_HASH)
    ADD_WITH(t, "@v = $1 AND @~v = $2", version, version);
  else
    ADD_WITH(t, "@v = $1", version);
}

/* A version that is counted up must be a number, or missing. */
static void version_counts(text_t *t) {
  const struct dibs__table *table = t->op->table;
  if (table->version && table->version_kind == DIBS__VERSION_NUMBER && t->engine->whole[0])
    add_piece(t, " AND (@v IS NULL OR @?v)");
}

static void fence_holds(text_t *t) {
  if (t->op->table->owner)
    ADD_WITH(t, " AND (@f IS NULL OR (@f >= 0 AND (@f < $1 OR (@f = $2 AND @o = $3))))", fence_of(t), fence_of(t),
             digest_of(t));
  else
    ADD_WITH(t, " AND (@f IS NULL OR (@f >= 0 AND (@f <= $1)))", fence_of(t));
}

static void where_guarded(text_t *t) {
  where_key(t);
  uint32_t guards = dibs__record_guards(t->op);
  if (t->op->op.verb == DIBS__RECORD_SEAL) guards = DIBS__IF_FENCE;
  if ((guards & DIBS__IF_VERSION) && t->op->table->version) {
    add_piece(t, " AND ");
    version_matches(t);
  }
  if (guards & DIBS__IF_FENCE) fence_holds(t);
  if (t->op->op.verb == DIBS__RECORD_PUT) version_counts(t);
}

/* ---- Columns that are read ---- */

static void read_list(text_t *t, bool columns) {
  const struct dibs__table *table = t->op->table;
  add_piece(t, table->version_kind == DIBS__VERSION_NUMBER ? "@k, @=v, @=f, @o" : "@k, @v, @=f, @o");
  /* Instants have many forms: the engine compares. */
  if (table->version && table->version_kind == DIBS__VERSION_TIME && (t->op->guards & DIBS__IF_VERSION)) {
    add_piece(t, ", CASE WHEN ");
    version_matches(t);
    add_piece(t, " THEN 1 ELSE 0 END");
  } else {
    add_piece(t, ", 0");
  }
  for (size_t i = 0; columns && i < table->column_count; i++) {
    add_piece(t, ", ");
    dibs__sql_add_column(&t->text, t->engine, table->table, table->columns[i]);
  }
}

void dibs__table_select(text_t *t, bool columns, bool lock) {
  begin_text(t);
  add_piece(t, "SELECT ");
  read_list(t, columns);
  add_piece(t, " FROM @S");
  where_key(t);
  if (lock) add_piece(t, "@{lock}");
}

/* ---- Columns that are written ---- */

struct list {
  text_t *t;
  bool more;
};

static void add_comma(struct list *l) {
  if (l->more) add_piece(l->t, ", ");
  l->more = true;
}

static bool is_kept(const dibs_value *v) {
  return !v->data && v->length == DIBS_KEEP;
}

static value content_of(const dibs_value *v) {
  return v->data ? dibs__sql_text(v->data, v->length) : dibs__sql_null();
}

static void set_version(struct list *l, const char *version) {
  if (!l->t->op->table->version) return;
  add_comma(l);
  if (version)
    ADD_WITH(l->t, "@^v = $1", dibs__sql_text(version, strlen(version)));
  else
    add_piece(l->t, "@^v = COALESCE(@v, 0) + 1");
}

static void set_fence(struct list *l) {
  if (!(dibs__record_guards(l->t->op) & DIBS__IF_FENCE)) return;
  add_comma(l);
  ADD_WITH(l->t, "@^f = $1", fence_of(l->t));
  if (l->t->op->table->owner) ADD_WITH(l->t, ", @^o = $1", digest_of(l->t));
}

static void add_returning(text_t *t, bool returning, bool columns) {
  if (!returning || !t->engine->update_returning) return;
  add_piece(t, " RETURNING ");
  read_list(t, columns);
}

void dibs__table_update(text_t *t, const char *version, bool guarded, bool returning) {
  const struct dibs__table *table = t->op->table;
  struct list l = {t, false};
  begin_text(t);
  add_piece(t, "UPDATE @S SET ");
  for (size_t i = 0; i < table->column_count; i++) {
    if (is_kept(&t->op->values[i])) continue;
    add_comma(&l);
    add_name(t, table->columns[i]);
    ADD_WITH(t, " = $1", content_of(&t->op->values[i]));
  }
  set_version(&l, version);
  set_fence(&l);
  if (!l.more) add_piece(t, "@^k = @k"); /* only the guards */
  if (guarded)
    where_guarded(t);
  else
    where_key(t);
  add_returning(t, returning, false);
}

void dibs__table_seal(text_t *t, bool returning) {
  struct list l = {t, false};
  begin_text(t);
  add_piece(t, "UPDATE @S SET ");
  set_fence(&l);
  where_guarded(t);
  add_returning(t, returning, true);
}

void dibs__table_insert(text_t *t, const char *version) {
  const struct dibs__table *table = t->op->table;
  bool fenced = (dibs__record_guards(t->op) & DIBS__IF_FENCE) != 0, owned = fenced && table->owner;
  begin_text(t);
  add_piece(t, "INSERT INTO @S (@^k");
  for (size_t i = 0; i < table->column_count; i++) {
    if (is_kept(&t->op->values[i])) continue; /* the column's default */
    add_piece(t, ", ");
    add_name(t, table->columns[i]);
  }
  if (table->version) add_piece(t, ", @^v");
  if (fenced) add_piece(t, ", @^f");
  if (owned) add_piece(t, ", @^o");
  ADD_WITH(t, ") VALUES ($1", key_of(t));
  for (size_t i = 0; i < table->column_count; i++)
    if (!is_kept(&t->op->values[i])) ADD_WITH(t, ", $1", content_of(&t->op->values[i]));
  if (table->version) ADD_WITH(t, ", $1", dibs__sql_text(version, strlen(version)));
  if (fenced) ADD_WITH(t, ", $1", fence_of(t));
  if (owned) ADD_WITH(t, ", $1", digest_of(t));
  add_piece(t, ")");
}

void dibs__table_delete(text_t *t, bool guarded) {
  begin_text(t);
  add_piece(t, "DELETE FROM @S");
  if (guarded)
    where_guarded(t);
  else
    where_key(t);
}

enum dibs__sql_rc dibs__table_put(text_t *t, struct dibs__sql_wire *wire) {
  assert(!t->text.cut);
  return wire->engine->put(wire, t->memory, t->values, t->count);
}

/* SPDX-License-Identifier: MIT */
/*
 * Declaring a table of the user's.  A name that is taken here stands in statements between quotes, so nothing that
 * could end them gets in, nor a '$' before what would be a mark for a value.
 */
#include "guard/table.h"

#include "lease/room.h"

#include <stdlib.h>
#include <string.h>

enum { PART_MAX = 64 }; /* bytes of a name: what MariaDB bears; PostgreSQL has 63 */

typedef struct dibs__table table_t;

/* Each part, where it stands in the options and in the table. */
enum plays { A_TABLE, ROW, CLAIM };
struct part {
  const char *field;
  size_t from, to;
  enum plays plays;
};

#define PART(field, to, plays)                                                                                         \
  { #field, offsetof(dibs_table_options, field), offsetof(table_t, to), plays }
static const struct part parts[] = {
    PART(table, table, A_TABLE),       PART(key, key, ROW),
    PART(version, version, ROW),       PART(fence, fence, ROW),
    PART(owner, owner, ROW),           PART(used, used, ROW),
    PART(limit, limit, ROW),           PART(claims, claims, A_TABLE),
    PART(claim, claim, CLAIM),         PART(claim_stock, stock, CLAIM),
    PART(claim_amount, amount, CLAIM), PART(claim_given, given, CLAIM),
    PART(claim_owner, taker, CLAIM),   PART(claim_time, taken, CLAIM),
};
enum { PARTS = sizeof parts / sizeof parts[0] };

static const char *given(const dibs_table_options *o, size_t i) {
  const char *name = *(const char *const *)((const char *)o + parts[i].from);
  return name && *name ? name : NULL;
}

static bool fits_a_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$';
}

/* NULL, or what is wrong with it. */
static const char *flaw(const char *name, size_t len) {
  if (len == 0) return "is empty";
  if (len > PART_MAX) return "is longer than 64 bytes";
  for (size_t i = 0; i < len; i++) {
    if (!fits_a_name(name[i])) return "has something else in it than letters, digits, _ and $";
    if (name[i] == '$' && i + 1 < len && name[i + 1] != '_' && name[i + 1] != '$')
      return "has a $ before a letter or digit";
  }
  return NULL;
}

static dibs_status refuse(const char *field, const char *name, const char *why, dibs_error *error) {
  return dibs__fail(error, DIBS_INVALID, "%s \"%.80s\" %s", field, name, why);
}

static dibs_status check_name(const char *field, const char *name, bool table, dibs_error *error) {
  const char *dot = table ? strchr(name, '.') : NULL;
  const char *why = dot ? flaw(name, (size_t)(dot - name)) : NULL;
  if (dot && !why) name = dot + 1;
  if (!why) why = flaw(name, strlen(name));
  return why ? refuse(field, name, why, error) : DIBS_OK;
}

/* ---- The list of columns ---- */

static const char *skip(const char *at) {
  while (*at == ' ' || *at == '\t' || *at == ',') at++;
  return at;
}

static size_t word(const char *at) {
  return strcspn(at, " \t,");
}

/* Copies the list's names to *to, each with a NUL. */
static dibs_status take_columns(table_t *table, const char *list, char **to, dibs_error *error) {
  for (const char *at = skip(list ? list : ""); *at; at = skip(at + word(at))) {
    size_t len = word(at);
    if (table->column_count == DIBS__TABLE_COLUMNS)
      return dibs__fail(error, DIBS_INVALID, "columns: more than %d", DIBS__TABLE_COLUMNS);
    memcpy(*to, at, len);
    (*to)[len] = '\0';
    table->columns[table->column_count++] = *to;
    *to += len + 1;
    dibs_status status = check_name("columns:", table->columns[table->column_count - 1], false, error);
    if (status != DIBS_OK) return status;
  }
  return DIBS_OK;
}

/* ---- What goes with what ---- */

static dibs_status check_kind(table_t *table, const char *kind, dibs_error *error) {
  static const char *const kinds[] = {"number", "time", "hash"};
  for (int i = 0; i < 3; i++) {
    if (strcmp(kind && *kind ? kind : "number", kinds[i]) != 0) continue;
    table->version_kind = (enum dibs__version_kind)i;
    return DIBS_OK;
  }
  return refuse("version_kind", kind, "is none of number, time, hash", error);
}

static dibs_status check_sense(const table_t *t, bool has_kind, dibs_error *error) {
  const char *wrong = NULL;
  if (!t->table || !t->key)
    wrong = "the table and its key must be named";
  else if (has_kind && !t->version && t->version_kind != DIBS__VERSION_HASH)
    wrong = "version_kind without a version column";
  else if (t->version_kind == DIBS__VERSION_HASH && t->column_count == 0)
    wrong = "a hash is one of columns, and there are none";
  else if (t->owner && !t->fence)
    wrong = "owner says whose the fence is, and there is no fence column";
  else if (!t->used != !t->limit)
    wrong = "used and limit go together";
  else if (t->claims && (!t->claim || !t->stock))
    wrong = "claims need claim and claim_stock";
  else if (!t->claims && (t->claim || t->stock || t->amount || t->given || t->taker || t->taken))
    wrong = "claim columns without claims, the table that they stand in";
  return wrong ? dibs__fail(error, DIBS_INVALID, "%s", wrong) : DIBS_OK;
}

static const char *nth_name(const table_t *t, size_t i, enum plays *plays) {
  if (i >= PARTS) {
    *plays = ROW;
    return t->columns[i - PARTS];
  }
  *plays = parts[i].plays;
  return *(const char *const *)((const char *)t + parts[i].to);
}

/* A column that played two parts would be set twice in one statement. */
static dibs_status check_once(const table_t *t, dibs_error *error) {
  enum plays a, b;
  for (size_t i = 0; i < PARTS + t->column_count; i++) {
    const char *name = nth_name(t, i, &a);
    if (!name || a == A_TABLE) continue;
    for (size_t j = 0; j < i; j++) {
      const char *other = nth_name(t, j, &b);
      if (other && a == b && strcasecmp(name, other) == 0) return refuse("column", name, "is named twice", error);
    }
  }
  return DIBS_OK;
}

/* ---- Declaring ---- */

static size_t room_for(const dibs_table_options *o) {
  size_t room = o->columns ? strlen(o->columns) + 1 : 0;
  for (size_t i = 0; i < PARTS; i++)
    if (given(o, i)) room += strlen(given(o, i)) + 1;
  return room;
}

static dibs_status fill(table_t *t, const dibs_table_options *o, dibs_error *error) {
  char *to = (char *)(t + 1);
  dibs_status status = DIBS_OK;
  for (size_t i = 0; i < PARTS && status == DIBS_OK; i++) {
    const char *name = given(o, i);
    if (!name) continue;
    size_t len = strlen(name);
    memcpy(to, name, len + 1);
    *(const char **)(void *)((char *)t + parts[i].to) = to;
    to += len + 1;
    status = check_name(parts[i].field, name, parts[i].plays == A_TABLE, error);
  }
  if (status == DIBS_OK) status = take_columns(t, o->columns, &to, error);
  if (status == DIBS_OK) status = check_kind(t, o->version_kind, error);
  if (status == DIBS_OK) status = check_sense(t, o->version_kind && *o->version_kind, error);
  return status == DIBS_OK ? check_once(t, error) : status;
}

dibs_status dibs_table_declare(const dibs_table_options *given_options, dibs_table **out, dibs_error *error) {
  static _Atomic uint64_t last;
  dibs_table_options o = {.size = sizeof o};
  if (!out) return dibs__fail(error, DIBS_INVALID, "dibs_table_declare: no place for the table was given");
  *out = NULL;
  if (!given_options || given_options->size < sizeof(size_t) || given_options->size > sizeof o)
    return dibs__fail(error, DIBS_INVALID, "options.size: set it to sizeof(dibs_table_options)");
  memcpy(&o, given_options, given_options->size);
  table_t *t = calloc(1, sizeof *t + room_for(&o) + 1);
  if (!t) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the table");
  t->refs = 1;
  t->nr = atomic_fetch_add(&last, 1) + 1;
  dibs_status status = fill(t, &o, error);
  if (status != DIBS_OK) {
    free(t);
    return status;
  }
  *out = t;
  return dibs__fine(error);
}

void dibs_table_free(dibs_table *table) {
  dibs__table_drop(dibs__table_of(table));
}

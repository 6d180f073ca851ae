/* SPDX-License-Identifier: MIT */
/* Declaring a table by a section of an INI file.  The whole file must be right, not only the section. */
#include "base/ini.h"
#include "guard/guard.h"
#include "handle/handle.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct {
  const char *key;
  size_t at;
} fields[] = {
#define FIELD(name)                                                                                                    \
  { #name, offsetof(dibs_table_options, name) }
    FIELD(table),       FIELD(key),          FIELD(version),     FIELD(fence),       FIELD(owner),
    FIELD(columns),     FIELD(used),         FIELD(limit),       FIELD(claims),      FIELD(claim),
    FIELD(claim_stock), FIELD(claim_amount), FIELD(claim_given), FIELD(claim_owner), FIELD(claim_time),
    FIELD(phase),       FIELD(locked_at),    FIELD(updated_at),  FIELD(count),
#undef FIELD
};
enum { FIELDS = sizeof fields / sizeof fields[0] };

struct declaring {
  const char *wanted; /* NULL: the only one */
  size_t sections;
  unsigned line; /* of the section; 0: not seen */
  dibs_table_options options;
  char values[FIELDS][DIBS__INI_LINE + 1];
};

/* `d` NULL: only checks the word. */
static const char *read_kind(const char *value, struct declaring *d) {
  static const char *const kinds[] = {"number", "time", "hash"};
  for (int i = 0; i < 3; i++) {
    if (strcmp(value, kinds[i]) != 0) continue;
    if (d) d->options.version_kind = (dibs_version_kind)i;
    return NULL;
  }
  return "version_kind is number, time or hash";
}

/* The same. */
static const char *read_unit(const char *value, struct declaring *d) {
  bool seconds = strcmp(value, "s") == 0;
  if (!seconds && strcmp(value, "ms") != 0) return "time_unit is ms or s";
  if (d) d->options.time_unit = seconds ? DIBS_TIME_S : DIBS_TIME_MS;
  return NULL;
}

static const char *entry(void *user, const char *section, const char *key, const char *value, unsigned line) {
  struct declaring *d = user;
  bool mine = !d->wanted || strcmp(section, d->wanted) == 0;
  if (!key) {
    d->sections++;
    if (mine && d->line == 0) d->line = line;
    return NULL;
  }
  bool kind = strcmp(key, "version_kind") == 0, unit = strcmp(key, "time_unit") == 0;
  if (kind && *value) return read_kind(value, mine ? d : NULL);
  if (unit && *value) return read_unit(value, mine ? d : NULL);
  for (size_t i = 0; i < FIELDS; i++) {
    if (!kind && !unit && strcmp(key, fields[i].key) != 0) continue;
    if (*value == '\0') return "a key has no value: omit it";
    if (!mine) return NULL;
    memcpy(d->values[i], value, strlen(value) + 1);
    *(const char **)(void *)((char *)&d->options + fields[i].at) = d->values[i];
    return NULL;
  }
  return "the key is unknown; a table has table, key, version, version_kind, fence, owner, columns, used, limit, "
         "count, claims, claim..., phase, locked_at, updated_at and time_unit";
}

static dibs_status read_file(const char *file, char **text, size_t *len, dibs_error *error) {
  int wrong = dibs__ini_load(file, text, len);
  if (wrong == 0) return DIBS_OK;
  return dibs__fail(error, wrong == ENOMEM ? DIBS_NO_MEMORY : DIBS_UNAVAILABLE, "can't open %.200s: %s", file,
                    strerror(wrong));
}

static dibs_status declare(struct declaring *d, const char *file, dibs_table **table, dibs_error *error) {
  dibs_error why;
  if (!d->wanted && d->sections != 1)
    return dibs__fail(error, DIBS_INVALID, "%.200s has %zu sections: name the section of the table", file, d->sections);
  if (d->line == 0)
    return dibs__fail(error, DIBS_NOT_FOUND, "%.200s has no section [%.64s]", file, d->wanted ? d->wanted : "");
  dibs_status status = dibs_table_declare(&d->options, table, &why);
  if (status == DIBS_OK) return dibs__fine(error);
  return dibs__fail(error, status, "%.200s:%u: %.200s", file, d->line, why.text);
}

dibs_status dibs_table_read(const char *file, const char *section, dibs_table **table, dibs_error *error) {
  char *text = NULL;
  size_t len = 0;
  if (!table) return dibs__fail(error, DIBS_INVALID, "dibs_table_read: table is NULL");
  *table = NULL;
  if (!file || !*file) return dibs__fail(error, DIBS_INVALID, "dibs_table_read: file is NULL or empty");
  struct declaring *d = calloc(1, sizeof *d);
  if (!d) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for %.200s", file);
  d->wanted = section && *section ? section : NULL;
  d->options.size = sizeof d->options;
  struct dibs__ini ini = {.entry = entry, .user = d};
  dibs_status status = read_file(file, &text, &len, error);
  if (status == DIBS_OK && !dibs__ini_parse(&ini, text, len))
    status = dibs__fail(error, DIBS_INVALID, "%.200s:%u: %s", file, ini.line, ini.wrong);
  if (status == DIBS_OK) status = declare(d, file, table, error);
  free(text);
  free(d);
  return status;
}

/*
 * Declaring a table of the user's.  An accepted name appears in statements between quotes.  It contains nothing that
 * could end them, and no '$', which would mark a value.
 */

enum { PART_MAX = 64 }; /* bytes of a name: what MariaDB bears; PostgreSQL has 63 */

typedef struct dibs__table table_t;

/* Each part, with its offset in the options and in the table. */
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
    PART(phase, phase, ROW),           PART(locked_at, locked_at, ROW),
    PART(updated_at, updated_at, ROW), PART(count, count, ROW),
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
    if (!fits_a_name(name[i])) return "has other characters than letters, digits, _ and $";
    if (name[i] == '$' && i + 1 < len && name[i + 1] != '_' && name[i + 1] != '$')
      return "has a $ before a letter or digit";
  }
  return NULL;
}

static dibs_status refuse_field(const char *field, const char *name, const char *why, dibs_error *error) {
  return dibs__fail(error, DIBS_INVALID, "%s \"%.80s\" %s", field, name, why);
}

static dibs_status check_name(const char *field, const char *name, bool table, dibs_error *error) {
  const char *dot = table ? strchr(name, '.') : NULL;
  const char *why = dot ? flaw(name, (size_t)(dot - name)) : NULL;
  if (dot && !why) name = dot + 1;
  if (!why) why = flaw(name, strlen(name));
  return why ? refuse_field(field, name, why, error) : DIBS_OK;
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

_Static_assert((int)DIBS_VERSION_NUMBER == (int)DIBS__VERSION_NUMBER &&
                   (int)DIBS_VERSION_TIME == (int)DIBS__VERSION_TIME &&
                   (int)DIBS_VERSION_HASH == (int)DIBS__VERSION_HASH,
               "converted by a cast");
_Static_assert((int)DIBS_TIME_MS == (int)DIBS__TIME_MS && (int)DIBS_TIME_S == (int)DIBS__TIME_S, "converted by a cast");

static dibs_status check_kind(table_t *table, const dibs_table_options *o, dibs_error *error) {
  if ((uint32_t)o->version_kind > DIBS_VERSION_HASH)
    return dibs__fail(error, DIBS_INVALID, "version_kind %u does not exist: use a DIBS_VERSION_ constant",
                      (unsigned)o->version_kind);
  table->version_kind = (enum dibs__version_kind)o->version_kind;
  if ((uint32_t)o->time_unit > DIBS_TIME_S)
    return dibs__fail(error, DIBS_INVALID, "time_unit %u does not exist: use a DIBS_TIME_ constant",
                      (unsigned)o->time_unit);
  table->time_unit = (enum dibs__time_unit)o->time_unit;
  return DIBS_OK;
}

static dibs_status check_sense(const table_t *t, dibs_error *error) {
  const char *wrong = NULL;
  if (!t->table || !t->key)
    wrong = "table and key are missing";
  else if (t->version_kind == DIBS__VERSION_TIME && !t->version)
    wrong = "version_kind needs a version column";
  else if (t->version_kind == DIBS__VERSION_HASH && t->column_count == 0)
    wrong = "version_kind = hash needs columns";
  else if (t->owner && !t->fence)
    wrong = "owner needs a fence column";
  else if (!t->used != !t->limit)
    wrong = "used and limit need each other: give both";
  else if (t->claims && !t->claim)
    wrong = "claims need claim and, in a table of their own, claim_stock";
  else if (!t->claims && (t->claim || t->stock || t->amount || t->given || t->taker || t->taken))
    wrong = "claim columns need claims, the table that has them";
  else if ((t->phase || t->locked_at || t->updated_at) && !(t->phase && t->locked_at && t->updated_at && t->fence))
    wrong = "tasks need phase, locked_at, updated_at and fence: give all four";
  else if (t->time_unit && !t->locked_at)
    wrong = "time_unit needs locked_at";
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
      if (other && a == b && strcasecmp(name, other) == 0) return refuse_field("column", name, "is named twice", error);
    }
  }
  return DIBS_OK;
}

/* ---- Declaring ---- */

static size_t capacity_for(const dibs_table_options *o) {
  size_t capacity = o->columns ? strlen(o->columns) + 1 : 0;
  for (size_t i = 0; i < PARTS; i++) {
    const char *name = given(o, i);
    if (name) capacity += strlen(name) + 1;
  }
  return capacity;
}

static dibs_status fill_table(table_t *t, const dibs_table_options *o, dibs_error *error) {
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
  if (status == DIBS_OK) status = check_kind(t, o, error);
  if (status == DIBS_OK) status = check_sense(t, error);
  return status == DIBS_OK ? check_once(t, error) : status;
}

dibs_status dibs_table_declare(const dibs_table_options *given_options, dibs_table **out, dibs_error *error) {
  static _Atomic uint64_t last;
  dibs_table_options o = {.size = sizeof o};
  if (!out) return dibs__fail(error, DIBS_INVALID, "dibs_table_declare: table is NULL");
  *out = NULL;
  if (!given_options || given_options->size < sizeof(size_t) || given_options->size > sizeof o)
    return dibs__fail(error, DIBS_INVALID, "options.size: set it to sizeof(dibs_table_options)");
  memcpy(&o, given_options, given_options->size);
  table_t *t = calloc(1, sizeof *t + capacity_for(&o) + 1);
  if (!t) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the table");
  t->refs = 1;
  t->nr = atomic_fetch_add(&last, 1) + 1;
  dibs_status status = fill_table(t, &o, error);
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

void dibs__guard_keeps(const dibs_store *store, uint32_t *families, uint32_t *caps) {
  *families = dibs__core_families(store->core);
  *caps = dibs__core_caps(store->core);
}

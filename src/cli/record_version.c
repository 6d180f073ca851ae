/* SPDX-License-Identifier: MIT */
/* `dibs record get`, `put`, `rm`: by version, in dibs' own table or in one of the user's. */
#include "cli/record.h"

#include "guard/table.h"

#include <string.h>

/* ---- What is to be written ---- */

/* The length of the word's column; the value stands behind it. */
static size_t column_of(const char *word) {
  return strcspn(word, "=");
}

static bool is_column(const char *word, const char *column) {
  return strlen(column) == column_of(word) && strncmp(word, column, column_of(word)) == 0;
}

static int check_word(const struct record_call *r, int at) {
  const char *word = r->call->pos[at];
  bool known = false;
  for (size_t i = 0; i < r->table->column_count; i++) known = known || is_column(word, r->table->columns[i]);
  if (!known)
    return dibs__cli_fail(r->globals, CLI_USAGE, "INVALID", "'%.*s' is none of the columns of %s in %s",
                          (int)column_of(word), word, r->table->table, r->call->v.table);
  for (int i = 2; i < at; i++)
    if (column_of(word) == column_of(r->call->pos[i]) && strncmp(word, r->call->pos[i], column_of(word)) == 0)
      return dibs__cli_fail(r->globals, CLI_USAGE, "INVALID", "column '%.*s' is given twice", (int)column_of(word),
                            word);
  return CLI_DONE;
}

int dibs__cli_record_values(struct record_call *r) {
  const struct cli_globals *g = r->globals;
  int npos = r->call->npos;
  r->given = npos > 2;
  if (r->table == NULL) {
    if (!r->given) return CLI_DONE;
    return dibs__cli_fail(g, CLI_USAGE, "INVALID",
                          "'%.40s': without --table a record is one value, and comes from standard input",
                          r->call->pos[2]);
  }
  if (!r->given && r->table->column_count != 1)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "%s has %zu columns: say COLUMN=VALUE...", r->table->table,
                          r->table->column_count);
  int code = CLI_DONE;
  for (int i = 2; i < npos && code == CLI_DONE; i++) code = check_word(r, i);
  return code;
}

/* NULL for a column alone; what is not named stays. */
static dibs_value value_of(const struct record_call *r, const char *column) {
  for (int i = 2; i < r->call->npos; i++) {
    const char *word = r->call->pos[i];
    if (!is_column(word, column)) continue;
    const char *value = word[column_of(word)] == '=' ? word + column_of(word) + 1 : NULL;
    return (dibs_value){value, value != NULL ? strlen(value) : 0};
  }
  return (dibs_value){NULL, DIBS_KEEP};
}

/* ---- What is there ---- */

int dibs__cli_record_print(const struct record_call *r, const char *version, const char *data, size_t length,
                           uint64_t fence) {
  if (r->globals->json) {
    struct cli_json j = {.out = stdout};
    dibs__cli_json_open(&j, NULL, '{');
    dibs__cli_json_text(&j, "key", r->key);
    if (version != NULL) dibs__cli_json_text(&j, "version", version);
    dibs__cli_json_uint(&j, "fence", fence);
    dibs__cli_json_uint(&j, "length", length);
    dibs__cli_json_text(&j, "data", data);
    dibs__cli_json_close(&j, '}');
  } else if (data != NULL) {
    fwrite(data, 1, length, stdout);
  }
  return dibs__cli_flush(r->globals);
}

static void print_json(const struct record_call *r, const dibs_record *record) {
  struct cli_json j = {.out = stdout};
  dibs__cli_json_open(&j, NULL, '{');
  dibs__cli_json_text(&j, "key", r->key);
  dibs__cli_json_text(&j, "version", record->version);
  dibs__cli_json_uint(&j, "fence", record->fence);
  dibs__cli_json_open(&j, "values", '{');
  for (size_t i = 0; i < record->count; i++) dibs__cli_json_text(&j, r->table->columns[i], record->values[i].data);
  dibs__cli_json_close(&j, '}');
  dibs__cli_json_close(&j, '}');
}

/* One column as it is; of several a line each, as put takes them. */
static void print_plain(const struct record_call *r, const dibs_record *record) {
  for (size_t i = 0; i < record->count; i++) {
    const dibs_value *v = &record->values[i];
    if (record->count > 1) fputs(r->table->columns[i], stdout);
    if (record->count > 1 && v->data != NULL) putchar('=');
    if (v->data != NULL) fwrite(v->data, 1, v->length, stdout);
    if (record->count > 1) putchar('\n');
  }
}

static dibs_record_options options_of(const struct record_call *r) {
  const struct cli_values *v = &r->call->v;
  return (dibs_record_options){.size = sizeof(dibs_record_options),
                               .table = r->table,
                               .lease = r->lease,
                               .if_version = v->if_version,
                               .flags = (v->create ? DIBS_IF_ABSENT : 0u) | (v->force ? DIBS_UNCHECKED : 0u)};
}

int dibs__cli_record_get(struct record_call *r) {
  dibs_record *record = NULL;
  dibs_error error = {0};
  dibs_record_options o = options_of(r);
  dibs_status status = dibs_record_get(r->store, r->key, &o, &record, &error);
  if (status != DIBS_OK) return dibs__cli_fail_status(r->globals, status, &error, r->key);
  int code = CLI_DONE;
  if (r->table == NULL) {
    code = dibs__cli_record_print(r, record->version, record->values[0].data, record->values[0].length, record->fence);
  } else {
    r->globals->json ? print_json(r, record) : print_plain(r, record);
    code = dibs__cli_flush(r->globals);
  }
  dibs_record_free(record);
  return code;
}

/* ---- Writing ---- */

static int done(const struct record_call *r, bool put, const dibs_record_result *result) {
  if (r->globals->json) {
    struct cli_json j = {.out = stdout};
    dibs__cli_json_open(&j, NULL, '{');
    dibs__cli_json_text(&j, "key", r->key);
    if (put) dibs__cli_json_text(&j, "version", result->version);
    if (r->lease != NULL) dibs__cli_json_uint(&j, "fence", dibs_lease_fence(r->lease));
    dibs__cli_json_close(&j, '}');
  } else if (put && result->version[0] != '\0') {
    puts(result->version);
  }
  return dibs__cli_flush(r->globals);
}

int dibs__cli_record_put(struct record_call *r) {
  dibs_value values[DIBS_COLUMNS_MAX];
  size_t count = r->table != NULL ? r->table->column_count : 1;
  dibs_record_result result = {.size = sizeof result};
  dibs_record_options o = options_of(r);
  dibs_error error = {0};
  for (size_t i = 0; i < count; i++)
    values[i] = r->given ? value_of(r, r->table->columns[i]) : (dibs_value){r->data, r->length};
  dibs_status status = dibs_record_put(r->store, r->key, values, count, &o, &result, &error);
  if (status != DIBS_OK) return dibs__cli_fail_status(r->globals, status, &error, r->key);
  return done(r, true, &result);
}

int dibs__cli_record_rm(struct record_call *r) {
  dibs_record_result result = {.size = sizeof result};
  dibs_record_options o = options_of(r);
  dibs_error error = {0};
  dibs_status status = dibs_record_remove(r->store, r->key, &o, &result, &error);
  if (status != DIBS_OK) return dibs__cli_fail_status(r->globals, status, &error, r->key);
  return done(r, false, &result);
}

/* SPDX-License-Identifier: MIT */
/* `dibs record get`, `put`, `rm`: in dibs' own table or in one of the user's, by version, by a lease, or by both. */
#include "base/text.h"
#include "cli/cli.h"
#include "guard/guard.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- The values ---- */

/* The length of the column's name in the word; the value follows it. */
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
    return dibs__cli_fail(r->globals, CLI_USAGE, "INVALID", "'%.*s' is not a column of %s in %s", (int)column_of(word),
                          word, r->table->table, r->call->v.table);
  for (int i = 2; i < at; i++)
    if (column_of(word) == column_of(r->call->pos[i]) && strncmp(word, r->call->pos[i], column_of(word)) == 0)
      return dibs__cli_fail(r->globals, CLI_USAGE, "INVALID", "column '%.*s' is given twice", (int)column_of(word),
                            word);
  return CLI_DONE;
}

/* Checks that the words after the key are COLUMN=VALUE of the table.  Sets `given`. */
static int record_values(struct record_call *r) {
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
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "%s has %zu columns: give COLUMN=VALUE for those that change",
                          r->table->table, r->table->column_count);
  int code = CLI_DONE;
  for (int i = 2; i < npos && code == CLI_DONE; i++) code = check_word(r, i);
  return code;
}

/* NULL for a column alone; other columns are unchanged. */
static dibs_value value_of(const struct record_call *r, const char *column) {
  for (int i = 2; i < r->call->npos; i++) {
    const char *word = r->call->pos[i];
    if (!is_column(word, column)) continue;
    const char *value = word[column_of(word)] == '=' ? word + column_of(word) + 1 : NULL;
    return (dibs_value){value, value != NULL ? strlen(value) : 0};
  }
  return (dibs_value){NULL, DIBS_KEEP};
}

/* ---- Reading ---- */

static int print_value(const struct record_call *r, const dibs_record *record) {
  const dibs_value *value = &record->values[0];
  if (r->globals->json) {
    struct dibs__json j = {.out = stdout};
    dibs__json_open(&j, NULL, '{');
    dibs__json_text(&j, "key", r->key);
    dibs__json_text(&j, "version", record->version);
    dibs__json_known(&j, "fence", (int64_t)record->fence.value, record->fence.value != 0);
    dibs__json_uint(&j, "length", value->length);
    dibs__json_bytes(&j, "data", value->data, value->length);
    dibs__json_close(&j, '}');
  } else if (value->data != NULL) {
    fwrite(value->data, 1, value->length, stdout);
  }
  return dibs__cli_flush(r->globals);
}

static void print_json(const struct record_call *r, const dibs_record *record) {
  struct dibs__json j = {.out = stdout};
  dibs__json_open(&j, NULL, '{');
  dibs__json_text(&j, "key", r->key);
  dibs__json_text(&j, "version", record->version);
  dibs__json_known(&j, "fence", (int64_t)record->fence.value, record->fence.value != 0);
  dibs__json_open(&j, "values", '{');
  for (size_t i = 0; i < record->count; i++) {
    const dibs_value *v = &record->values[i];
    dibs__json_bytes(&j, r->table->columns[i], v->data, v->length);
  }
  dibs__json_close(&j, '}');
  dibs__json_close(&j, '}');
}

/* One column unchanged; several columns one in each line, in the form that put accepts. */
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

/* Seals if there is a lease. */
static int record_get(struct record_call *r) {
  dibs_record *record = NULL;
  dibs_error error = {0};
  dibs_record_options o = options_of(r);
  dibs_status status = dibs_record_get(r->store, r->key, &o, &record, &error);
  if (status != DIBS_OK) return dibs__cli_fail_status(r->globals, status, &error, r->key);
  int code = CLI_DONE;
  if (r->table == NULL) {
    code = print_value(r, record);
  } else {
    r->globals->json ? print_json(r, record) : print_plain(r, record);
    code = dibs__cli_flush(r->globals);
  }
  dibs_record_free(record);
  return code;
}

/* ---- Writing ---- */

static int report_write(const struct record_call *r, bool put, const dibs_record_result *result) {
  if (r->globals->json) {
    struct dibs__json j = {.out = stdout};
    dibs__json_open(&j, NULL, '{');
    dibs__json_text(&j, "key", r->key);
    if (put) dibs__json_text(&j, "version", result->version);
    if (r->lease != NULL) dibs__json_uint(&j, "fence", dibs_lease_fence(r->lease).value);
    dibs__json_close(&j, '}');
  } else if (put && result->version[0] != '\0') {
    puts(result->version);
  }
  return dibs__cli_flush(r->globals);
}

static int record_put(struct record_call *r) {
  dibs_value values[DIBS_COLUMNS_MAX];
  size_t count = r->table != NULL ? r->table->column_count : 1;
  dibs_record_result result = {.size = sizeof result};
  dibs_record_options o = options_of(r);
  dibs_error error = {0};
  for (size_t i = 0; i < count; i++)
    values[i] = r->given ? value_of(r, r->table->columns[i]) : (dibs_value){r->data, r->length};
  dibs_status status = dibs_record_put(r->store, r->key, values, count, &o, &result, &error);
  if (status != DIBS_OK) return dibs__cli_fail_status(r->globals, status, &error, r->key);
  return report_write(r, true, &result);
}

static int record_rm(struct record_call *r) {
  dibs_record_result result = {.size = sizeof result};
  dibs_record_options o = options_of(r);
  dibs_error error = {0};
  dibs_status status = dibs_record_remove(r->store, r->key, &o, &result, &error);
  if (status != DIBS_OK) return dibs__cli_fail_status(r->globals, status, &error, r->key);
  return report_write(r, false, &result);
}

/* ---- The command ---- */

/* A verb: its requirements and its function. */
struct verb {
  const char *name;
  bool guards;  /* accepts --if and --force, and needs one of them, --create or a lease */
  bool creates; /* accepts --create */
  bool writes;  /* reads values, or standard input */
  int (*act)(struct record_call *call);
};

/* Reads all of standard input, up to one byte more than is allowed, to detect too much input. */
static int read_all(struct record_call *r) {
  const struct cli_globals *g = r->globals;
  size_t capacity = DIBS_RECORD_MAX + 1;
  r->data = malloc(capacity);
  if (r->data == NULL) return dibs__cli_fail(g, CLI_FAILED, "NO_MEMORY", "out of memory; nothing was written");
  while (r->length < capacity) {
    ssize_t got = read(STDIN_FILENO, r->data + r->length, capacity - r->length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return dibs__cli_fail(g, CLI_FAILED, "", "cannot read standard input: %s; nothing was written", strerror(errno));
    if (got == 0) return CLI_DONE;
    r->length += (size_t)got;
  }
  return dibs__cli_fail(g, CLI_USAGE, "INVALID", "a record has at most %d bytes; nothing was written", DIBS_RECORD_MAX);
}

static const struct verb verbs[] = {
    {.name = "get", .act = record_get},
    {.name = "put", .guards = true, .creates = true, .writes = true, .act = record_put},
    {.name = "rm", .guards = true, .act = record_rm},
};
enum { VERBS = sizeof verbs / sizeof verbs[0] };

static const char *nth_verb(size_t i, const void *arg) {
  (void)arg;
  return i < VERBS ? verbs[i].name : NULL;
}

/* NULL: after a message. */
static const struct verb *find_verb(const struct cli_call *call) {
  const char *word = call->pos[0];
  for (size_t i = 0; i < VERBS; i++)
    if (strcmp(verbs[i].name, word) == 0) return &verbs[i];
  const char *near = dibs__nearest(word, nth_verb, NULL);
  dibs__cli_fail(&call->v.globals, CLI_USAGE, "INVALID", "'%.40s' is not get, put or rm; %s%s%s", word,
                 near != NULL ? "did you mean " : "see dibs help record", near != NULL ? near : "",
                 near != NULL ? "?" : "");
  return NULL;
}

static int check_options(const struct cli_call *call, const struct verb *verb, bool leased) {
  const struct cli_globals *g = &call->v.globals;
  const struct cli_values *v = &call->v;
  const char *stray = NULL;
  if (v->create && !verb->creates) stray = "create";
  if (v->if_version != NULL && !verb->guards) stray = "if";
  if (v->force && !verb->guards) stray = "force";
  if (stray != NULL)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "dibs record %s does not take --%s", verb->name, stray);
  if (call->npos > 2 && !verb->writes)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "unexpected argument '%.40s': dibs record %s KEY", call->pos[2],
                          verb->name);
  if (!verb->guards) return CLI_DONE;
  if (v->if_version != NULL && v->create)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID",
                          "a record that does not exist has no version: give --if or --create, not both");
  if (v->force && (v->if_version != NULL || v->create || leased))
    return dibs__cli_fail(g, CLI_USAGE, "INVALID",
                          "--force writes without a guard: do not give it with --if, --create or a lease%s",
                          leased ? "; unset DIBS_LEASE" : "");
  if (!v->force && v->if_version == NULL && !v->create && !leased)
    return dibs__cli_fail(
        g, CLI_USAGE, "INVALID",
        "the write needs a guard: give --if VERSION%s, a lease in DIBS_LEASE and DIBS_FENCE, or --force",
        verb->creates ? ", --create" : "");
  return CLI_DONE;
}

int dibs__cli_record(struct cli_call *call) {
  struct record_call r = {.call = call, .globals = &call->v.globals, .key = call->pos[1]};
  const struct verb *verb = find_verb(call);
  struct cli_lease_in in = {0};
  const char *told = getenv("DIBS_LEASE");
  if (verb == NULL) return CLI_USAGE;
  bool leased = told != NULL && *told != '\0';
  int code = check_options(call, verb, leased);
  if (code == CLI_DONE && leased) code = dibs__cli_lease_in(call, call->npos, &in);
  if (!verb->guards && in.fence == 0) leased = false; /* a shared or counted lease has no fence to seal with */
  if (code == CLI_DONE) code = dibs__cli_table(call, &r.table);
  if (code == CLI_DONE && verb->writes) code = record_values(&r);
  /* Before the store is opened, because the writer of the pipe may be slow. */
  if (code == CLI_DONE && verb->writes && !r.given) code = read_all(&r);
  if (code == CLI_DONE) code = dibs__cli_open(r.globals, 0, &r.store);
  if (code == CLI_DONE && leased) code = dibs__cli_lease_adopt(call, r.store, &in, &r.lease);
  if (code == CLI_DONE) code = verb->act(&r);
  /* The lease belongs to dibs run or dibs lock, and is not released here. */
  if (r.lease != NULL) (void)!dibs_lease_detach(r.lease, NULL);
  dibs_lease_free(r.lease);
  dibs_close(r.store);
  dibs_table_free(r.table);
  free(r.data);
  return code;
}

/* SPDX-License-Identifier: MIT */
#include "record_bed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MANY = 64 };

const struct engine *engine;
const char KEEP[] = "(kept)";
dibs_error reported;
dibs_record_result result;

static const char *given_uri;
static char uri[512], folder[64];
static dibs_store *stores[MANY];
static dibs_lease *leases[MANY];
static dibs_table *tables[MANY];
static dibs_record *records[4096];
static char names[MANY][64];
static void *connections[MANY];
static size_t store_count, lease_count, table_count, record_count, name_count, connection_count;
static char *last_cell;

void bed_begin(int argc, char *argv[]) {
  static const struct engine *const engines[] = {&engine_sqlite,
#ifdef WITH_POSTGRES
                                                 &engine_postgres,
#endif
#ifdef WITH_MYSQL
                                                 &engine_mysql,
#endif
                                                 NULL};
  given_uri = argc > 1 ? argv[1] : "sqlite:";
  for (size_t i = 0; engines[i]; i++)
    if (strncmp(given_uri, engines[i]->scheme, strlen(engines[i]->scheme)) == 0) engine = engines[i];
  if (!engine) {
    fprintf(stderr, "this build has no client for %s\n", given_uri);
    exit(77);
  }
  if (argc > 2) cmocka_set_test_filter(argv[2]);
}

int case_begin(void **state) {
  (void)state;
  snprintf(uri, sizeof uri, "%s", given_uri);
  folder[0] = '\0';
  if (strcmp(given_uri, "sqlite:") == 0) {
    snprintf(folder, sizeof folder, "/tmp/dibs-guard-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(uri, sizeof uri, "sqlite://%s/dibs.db", folder);
  }
  return 0;
}

int case_end(void **state) {
  (void)state;
  while (record_count > 0) dibs_record_free(records[--record_count]);
  while (lease_count > 0) dibs_lease_free(leases[--lease_count]);
  while (store_count > 0) dibs_close(stores[--store_count]);
  while (table_count > 0) dibs_table_free(tables[--table_count]);
  while (name_count > 0) sql("DROP TABLE IF EXISTS %s", names[--name_count]);
  while (connection_count > 0) engine->close(connections[--connection_count]);
  free(last_cell);
  last_cell = NULL;
  if (folder[0]) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
  }
  return 0;
}

static dibs_store *open_at(const char *at) {
  assert_true(store_count < MANY);
  dibs_status status = dibs_open(at, NULL, &stores[store_count], &reported);
  if (status != DIBS_OK) fail_msg("%s", reported.text);
  return stores[store_count++];
}

dibs_store *store_open(void) {
  return open_at(uri);
}

const char *case_uri(void) {
  return uri;
}

dibs_store *memory_open(void) {
  return open_at("memory:");
}

void *another_connection(void) {
  if (connection_count == 0 && folder[0]) store_open(); /* dibs creates the file with its own permissions */
  assert_true(connection_count < MANY);
  connections[connection_count] = engine->open(uri);
  return connections[connection_count++];
}

void *connection(void) {
  return connection_count > 0 ? connections[0] : another_connection();
}

void bed_reconnect(void) {
  while (connection_count > 0) engine->close(connections[--connection_count]);
}

long sql(const char *format, ...) {
  char text[4096];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  return engine->run(connection(), text, NULL);
}

const char *cell(const char *format, ...) {
  char text[4096];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  free(last_cell);
  last_cell = NULL;
  engine->run(connection(), text, &last_cell);
  return last_cell;
}

void make_table(const char *name, const char *format, ...) {
  char columns[2048];
  va_list args;
  va_start(args, format);
  vsnprintf(columns, sizeof columns, format, args);
  va_end(args);
  sql("DROP TABLE IF EXISTS %s", name);
  sql("CREATE TABLE %s (%s)", name, columns);
  assert_true(name_count < MANY);
  snprintf(names[name_count++], sizeof names[0], "%s", name);
}

dibs_table *declare(const dibs_table_options *options) {
  assert_true(table_count < MANY);
  if (dibs_table_declare(options, &tables[table_count], &reported) != DIBS_OK) fail_msg("%s", reported.text);
  return tables[table_count++];
}

dibs_lease *lease_of(dibs_store *store, const char *name) {
  assert_true(lease_count < MANY);
  dibs_lease_options o = {.size = sizeof o, .wait_ms = 10000};
  if (dibs_acquire(store, name, &o, &leases[lease_count], &reported) != DIBS_OK) fail_msg("%s", reported.text);
  return leases[lease_count++];
}

static void expect(const char *what, const char *key, dibs_status got, dibs_status want) {
  if (got != want)
    fail_msg("%s \"%s\": %s, not %s: %s", what, key, dibs_status_name(got), dibs_status_name(want), reported.text);
  if ((got == DIBS_OK) != (reported.text[0] == '\0')) fail_msg("%s \"%s\": said \"%s\"", what, key, reported.text);
}

static dibs_record_options options_of(struct how how) {
  return (dibs_record_options){.size = sizeof(dibs_record_options),
                               .table = how.table,
                               .if_version = how.if_version,
                               .flags = how.flags,
                               .lease = how.lease};
}

const dibs_record *get_as(dibs_store *store, const char *key, struct how how, dibs_status want) {
  dibs_record_options o = options_of(how);
  dibs_record *record = NULL;
  expect("get", key, dibs_record_get(store, key, &o, &record, &reported), want);
  assert_true((record != NULL) == (want == DIBS_OK));
  assert_true(record_count < sizeof records / sizeof records[0]);
  if (record) records[record_count++] = record;
  return record;
}

void put_as(dibs_store *store, const char *key, const char *const *texts, size_t count, struct how how,
            dibs_status want) {
  dibs_record_options o = options_of(how);
  dibs_value values[40];
  for (size_t i = 0; i < count; i++) {
    values[i] = (dibs_value){texts[i], texts[i] ? strlen(texts[i]) : 0};
    if (texts[i] == KEEP) values[i] = (dibs_value){NULL, DIBS_KEEP};
  }
  result.size = sizeof result;
  expect("put", key, dibs_record_put(store, key, values, count, &o, &result, &reported), want);
}

void remove_as(dibs_store *store, const char *key, struct how how, dibs_status want) {
  dibs_record_options o = options_of(how);
  result.size = sizeof result;
  expect("remove", key, dibs_record_remove(store, key, &o, &result, &reported), want);
}

void assert_message(const char *words) {
  if (!strstr(reported.text, words)) fail_msg("\"%s\" is not in \"%s\"", words, reported.text);
}

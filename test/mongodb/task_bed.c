/* SPDX-License-Identifier: MIT */
#include "task_bed.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { REQUESTS = 4096, TABLES = 64, TEXT = 4096, AGOS = 8, PATIENCE_MS = 30000 };

static const char *server;
static mongoc_client_t *client;
static mongoc_database_t *database;
static dibs_store *opened;
static dibs_table *tables[TABLES];
static size_t table_count;
static struct dibs__request *requests[REQUESTS];
static size_t request_count;
static char collection[40];

void bed_begin(const char *uri) {
  bson_error_t error;
  server = uri;
  mongoc_init();
  mongoc_uri_t *parsed = mongoc_uri_new(uri);
  client = mongoc_client_new_from_uri(parsed);
  mongoc_client_set_error_api(client, MONGOC_ERROR_API_VERSION_2);
  database = mongoc_client_get_database(client, mongoc_uri_get_database(parsed));
  mongoc_uri_destroy(parsed);
  bson_t ping = BSON_INITIALIZER;
  BSON_APPEND_INT32(&ping, "ping", 1);
  if (!mongoc_client_command_simple(client, "admin", &ping, NULL, NULL, &error)) {
    fprintf(stderr, "%s: %s\n", uri, error.message);
    exit(1);
  }
  bson_destroy(&ping);
}

void case_next(void) {
  uint64_t random;
  dibs__random(&random, sizeof random);
  snprintf(collection, sizeof collection, "gateways_%016" PRIx64, random);
}

const char *gateways(void) {
  return collection;
}

const char *case_uri(void) {
  return server;
}

int case_begin(void **state) {
  (void)state;
  form = all_forms;
  case_next();
  return 0;
}

void case_is(const char *name) {
  snprintf(collection, sizeof collection, "%s", name);
}

void case_drop(void) {
  while (request_count > 0) dibs__request_drop(requests[--request_count]);
}

int case_end(void **state) {
  (void)state;
  case_drop();
  while (table_count > 0) dibs_table_free(tables[--table_count]);
  dibs_close(opened);
  opened = NULL;
  return 0;
}

/* ---- The user's client ---- */

static bson_t *parse(const char *text) {
  bson_error_t error;
  char *json = strdup(text);
  assert_non_null(json);
  for (char *c = json; *c; c++)
    if (*c == '\'') *c = '"';
  bson_t *made = bson_new_from_json((const uint8_t *)json, -1, &error);
  if (!made) fail_msg("%s: %s", json, error.message);
  free(json);
  return made;
}

__attribute__((format(printf, 1, 0))) static bson_t *parse_args(const char *format, va_list args) {
  char text[TEXT];
  assert_in_range(vsnprintf(text, sizeof text, format, args), 0, sizeof text - 1);
  return parse(text);
}

static mongoc_collection_t *of_case(void) {
  return mongoc_database_get_collection(database, collection);
}

void insert(const char *format, ...) {
  va_list args;
  bson_error_t error;
  va_start(args, format);
  bson_t *document = parse_args(format, args);
  va_end(args);
  mongoc_collection_t *to = of_case();
  if (!mongoc_collection_insert_one(to, document, NULL, NULL, &error)) fail_msg("insert: %s", error.message);
  mongoc_collection_destroy(to);
  bson_destroy(document);
}

/* Another command was changing the same document, and nothing was done. */
bool met_another(const bson_error_t *error) {
  return error->code == 112 || strstr(error->message, "deadlock detected");
}

int64_t update(const char *filter, const char *changes) {
  bson_error_t error;
  bson_t reply, *which = parse(filter), *how = parse(changes);
  bson_iter_t at;
  mongoc_collection_t *to = of_case();
  while (!mongoc_collection_update_many(to, which, how, NULL, &reply, &error)) {
    bson_destroy(&reply);
    if (!met_another(&error)) fail_msg("update: %s", error.message);
  }
  assert_true(bson_iter_init_find(&at, &reply, "modifiedCount"));
  int64_t n = bson_iter_as_int64(&at);
  mongoc_collection_destroy(to);
  bson_destroy(&reply);
  bson_destroy(which);
  bson_destroy(how);
  return n;
}

int64_t count(const char *format, ...) {
  va_list args;
  bson_error_t error;
  va_start(args, format);
  bson_t *filter = parse_args(format, args);
  va_end(args);
  mongoc_collection_t *of = of_case();
  int64_t n = mongoc_collection_count_documents(of, filter, NULL, NULL, NULL, &error);
  if (n < 0) fail_msg("count: %s", error.message);
  mongoc_collection_destroy(of);
  bson_destroy(filter);
  return n;
}

const char *shown(const char *format, ...) {
  static char *text;
  va_list args;
  const bson_t *document;
  va_start(args, format);
  bson_t *filter = parse_args(format, args);
  va_end(args);
  mongoc_collection_t *of = of_case();
  mongoc_cursor_t *cursor = mongoc_collection_find_with_opts(of, filter, NULL, NULL);
  bson_free(text);
  text = mongoc_cursor_next(cursor, &document) ? bson_as_relaxed_extended_json(document, NULL) : NULL;
  mongoc_cursor_destroy(cursor);
  mongoc_collection_destroy(of);
  bson_destroy(filter);
  return text ? text : "";
}

bool command(const char *format, ...) {
  va_list args;
  bson_t reply;
  bson_error_t error;
  va_start(args, format);
  bson_t *it = parse_args(format, args);
  va_end(args);
  bool done = mongoc_database_command_simple(database, it, NULL, &reply, &error);
  if (!done) print_message("refused: %s\n", error.message);
  bson_destroy(&reply);
  bson_destroy(it);
  return done;
}

bson_t *find_and_modify(const char *format, ...) {
  va_list args;
  bson_t reply, *found = NULL;
  bson_iter_t at;
  bson_error_t error;
  va_start(args, format);
  bson_t *it = parse_args(format, args);
  va_end(args);
  while (!mongoc_database_command_simple(database, it, NULL, &reply, &error)) {
    bson_destroy(&reply);
    if (!met_another(&error)) fail_msg("%s", error.message);
  }
  if (bson_iter_init_find(&at, &reply, "value") && BSON_ITER_HOLDS_DOCUMENT(&at)) {
    uint32_t len;
    const uint8_t *bytes;
    bson_iter_document(&at, &len, &bytes);
    found = bson_new_from_data(bytes, len);
  }
  bson_destroy(&reply);
  bson_destroy(it);
  return found;
}

/* ---- Instants ---- */

const struct form all_forms[FORMS] = {{"date", DIBS_TIME_MS, false},
                                      {"number of ms", DIBS_TIME_MS, false},
                                      {"number of s", DIBS_TIME_S, true},
                                      {"text", DIBS_TIME_MS, false}};
const struct form *form = all_forms;

static const char *instant(int64_t ms) {
  static char texts[AGOS][80];
  static size_t nth;
  char *to = texts[nth++ % AGOS], day[40];
  time_t s = (time_t)(ms / 1000);
  struct tm tm;
  assert_non_null(gmtime_r(&s, &tm));
  strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &tm);
  if (form == &all_forms[0])
    snprintf(to, sizeof texts[0], "{'$date':{'$numberLong':'%" PRId64 "'}}", ms);
  else if (form == &all_forms[3])
    snprintf(to, sizeof texts[0], "'%s.%03dZ'", day, (int)(ms % 1000));
  else
    snprintf(to, sizeof texts[0], "{'$numberLong':'%" PRId64 "'}", form->unit == DIBS_TIME_S ? ms / 1000 : ms);
  return to;
}

const char *never(void) {
  return instant(0);
}

const char *ago(int64_t ms) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return instant((int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000 - ms);
}

bool locked_about(const char *id, int64_t ago_ms) {
  return count("{'_id':%s,'lockedAt':{'$gte':%s,'$lte':%s}}", id, ago(ago_ms + 5000), ago(ago_ms - 1000)) == 1;
}

bool is_never(const char *id) {
  return count("{'_id':%s,'lockedAt':%s}", id, never()) == 1;
}

/* ---- dibs ---- */

dibs_store *store(void) {
  dibs_error error;
  dibs_store_options options = {.size = sizeof options};
  if (!opened && dibs_open(server, &options, &opened, &error) != DIBS_OK) fail_msg("%s", error.text);
  return opened;
}

dibs_table *declare(const dibs_table_options *options) {
  dibs_error error;
  assert_true(table_count < TABLES);
  if (dibs_table_declare(options, &tables[table_count], &error) != DIBS_OK) fail_msg("%s", error.text);
  return tables[table_count++];
}

dibs_table *table_with(const char *table, const char *key) {
  dibs_table_options options = {.size = sizeof options,
                                .table = table,
                                .key = key,
                                .phase = "phase",
                                .locked_at = "lockedAt",
                                .updated_at = "updatedAt",
                                .fence = "fence",
                                .time_unit = form->unit};
  return declare(&options);
}

dibs_table *gateway(void) {
  return table_with(collection, "_id");
}

struct dibs__task_op *task_make(dibs_table *t) {
  struct dibs__request *r = dibs__request_make(store(), DIBS__FAM_TASK, t, 4096);
  assert_non_null(r);
  assert_true(request_count < REQUESTS);
  requests[request_count++] = r;
  r->task.table = t;
  r->task.kind = dibs__request_keep(r, "gateway", 7);
  r->task.timeout_ms = LONG_MS;
  r->task.most = 1;
  return &r->task;
}

struct dibs__task_op *task_carry(struct dibs__task_op *op, enum dibs__task_verb verb, dibs_status want) {
  dibs_status got =
      dibs__request_carry((struct dibs__request *)op, (uint16_t)verb, dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS));
  if (got != want) fail_msg("verb %d: %s, not %s: %s", verb, dibs_status_name(got), dibs_status_name(want), op->why);
  return op;
}

struct dibs__task_op *claim_for(dibs_table *t, uint32_t most, int64_t timeout_ms, const char *one, const char *two) {
  static dibs__str phases[2];
  struct dibs__task_op *op = task_make(t);
  op->most = most;
  op->timeout_ms = timeout_ms;
  phases[0] = dibs__str_of(one, one ? strlen(one) : 0);
  phases[1] = dibs__str_of(two, two ? strlen(two) : 0);
  op->phases = phases;
  op->phase_count = (uint32_t)(one != NULL) + (two != NULL);
  return task_carry(op, DIBS__TASK_CLAIM, DIBS_OK);
}

const struct dibs__task_row *row_of(const struct dibs__task_op *op, uint32_t i) {
  if (i >= op->got_count) fail_msg("%u tasks, not %u: %s", op->got_count, i + 1, op->why);
  return &((const struct dibs__task_row *)op->got)[i];
}

const struct dibs__task_row *claim_row(dibs_table *t, const char *key) {
  const struct dibs__task_row *row = row_of(claim_for(t, 1, LONG_MS, NULL, NULL), 0);
  assert_string_equal(row->key.p, key);
  return row;
}

struct dibs__task_op *claim_none(dibs_table *t) {
  struct dibs__task_op *op = claim_for(t, 10, LONG_MS, NULL, NULL);
  assert_int_equal(op->got_count, 0);
  return op;
}

struct dibs__task_item item_of(const struct dibs__task_row *row) {
  return (struct dibs__task_item){.key = row->key, .fence = row->fence, .locked = row->locked};
}

struct dibs__task_op *change(dibs_table *t, enum dibs__task_verb verb, struct dibs__task_item *item, dibs_status want) {
  struct dibs__task_op *op = task_make(t);
  op->items = item;
  op->count = 1;
  task_carry(op, verb, DIBS_OK);
  if (item->status != (dibs__status)want)
    fail_msg("verb %d: item: %s, not %s: %s", verb, dibs_status_name((dibs_status)item->status), dibs_status_name(want),
             op->why);
  return op;
}

void end_with(dibs_table *t, const struct dibs__task_row *row, enum dibs__task_verdict verdict, const char *phase,
              int64_t delay_ms, dibs_status want) {
  struct dibs__task_item item = item_of(row);
  item.verdict = verdict;
  item.phase = dibs__str_of(phase, strlen(phase));
  item.delay_ms = delay_ms;
  change(t, DIBS__TASK_END, &item, want);
}

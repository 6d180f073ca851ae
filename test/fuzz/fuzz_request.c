/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as a request of dibs serve: its path, query, headers and body are either refused with a problem, or fill
 * the struct of the route within the limits of its fields.
 *
 * The input: "METHOD PATH?NAME=VALUE&...", a line for each header, "NAME: VALUE", an empty line, the body.  The names
 * and values of the query are taken as they are, because libmicrohttpd decodes them.
 */
#include "base/text.h"
#include "fuzz.h"
#include "serve/server.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                                                    \
  do                                                                                                                   \
    if (!(what)) {                                                                                                     \
      fprintf(stderr, "not so: %s\n", #what);                                                                          \
      abort();                                                                                                         \
    }                                                                                                                  \
  while (0)

enum { PAIRS_MAX = 32, TEXT_MOST = 255, DATA_MOST = 1000, ITEMS_MOST = 10 };

/* ---- A route with each kind of field ---- */

struct item_in {
  const char *text;
  struct field_data data;
  int64_t number;
};
struct in {
  const char *text, *id, *long_text, *query, *header;
  int64_t duration, number, choice, query_number;
  bool flag, query_flag;
  int32_t word;
  struct field_data data;
  struct json_t *items;
};
static const char *const words[] = {"one", "two", NULL};

#define ITEM(member) offsetof(struct item_in, member)
#define IN(member) offsetof(struct in, member)
static const struct field item_fields[] = {
    {.name = "text", .at = ITEM(text), .least = 1, .most = TEXT_MOST, .needed = true, .help = ""},
    {.name = "data", .kind = FIELD_DATA, .at = ITEM(data), .most = DATA_MOST, .help = ""},
    {.name = "number", .kind = FIELD_NUMBER, .at = ITEM(number), .most = 9, .help = ""},
    {.name = NULL}};
static const struct field fields[] = {
    {.name = "text", .at = IN(text), .least = 1, .most = TEXT_MOST, .help = ""},
    {.name = "id", .kind = FIELD_ID, .at = IN(id), .least = 32, .most = 32, .help = ""},
    {.name = "long", .kind = FIELD_LONG_TEXT, .at = IN(long_text), .help = ""},
    {.name = "duration",
     .kind = FIELD_DURATION,
     .at = IN(duration),
     .least = 100,
     .most = 5000,
     .forever = true,
     .help = ""},
    {.name = "number", .kind = FIELD_NUMBER, .at = IN(number), .least = -5, .most = 5, .help = ""},
    {.name = "choice", .kind = FIELD_SWITCH, .at = IN(choice), .help = ""},
    {.name = "flag", .kind = FIELD_FLAG, .at = IN(flag), .help = ""},
    {.name = "word", .kind = FIELD_WORD, .at = IN(word), .words = words, .help = ""},
    {.name = "data", .kind = FIELD_DATA, .at = IN(data), .most = DATA_MOST, .help = ""},
    {.name = "items",
     .kind = FIELD_ITEMS,
     .at = IN(items),
     .least = 1,
     .most = ITEMS_MOST,
     .items = item_fields,
     .help = ""},
    {.name = "q", .place = FIELD_QUERY, .at = IN(query), .most = TEXT_MOST, .help = ""},
    {.name = "n",
     .place = FIELD_QUERY,
     .kind = FIELD_NUMBER,
     .at = IN(query_number),
     .least = -9,
     .most = 9,
     .help = ""},
    {.name = "f", .place = FIELD_QUERY, .kind = FIELD_FLAG, .at = IN(query_flag), .help = ""},
    {.name = "Header", .place = FIELD_HEADER, .at = IN(header), .most = TEXT_MOST, .help = ""},
    {.name = NULL}};

static void handle(struct request *r) {
  (void)r;
}

static const struct route table[] = {
    {METHOD_POST, "/v1/things/{name}", SCOPE_USE, handle, sizeof(struct in), fields, "x", "200", "", "", NULL},
    {METHOD_GET, "/v1/things/{name}", SCOPE_USE, handle, 0, NULL, "y", "200", "", "", NULL},
    {METHOD_POST, "/v1/things/{name}/parts/{part}", SCOPE_USE, handle, sizeof(struct in), fields, "z", "200", "", "",
     NULL},
    {METHOD_GET, "/v1/things", SCOPE_USE, handle, 0, NULL, "w", "200", "", "", NULL},
    {.path = NULL}};
const struct route *const dibs__routes[] = {table, NULL};

/* ---- In place of libmicrohttpd and of answers ---- */

struct pair {
  char *name, *value;
};
struct pairs {
  size_t count;
  struct pair at[PAIRS_MAX];
};
static struct pairs query, headers;
static int refused;

const char *MHD_lookup_connection_value(struct MHD_Connection *connection, enum MHD_ValueKind kind, const char *key) {
  (void)connection, (void)kind;
  for (size_t i = 0; i < headers.count; i++)
    if (strcmp(headers.at[i].name, key) == 0) return headers.at[i].value;
  return NULL;
}

int MHD_get_connection_values_n(struct MHD_Connection *connection, enum MHD_ValueKind kind, MHD_KeyValueIteratorN see,
                                void *user) {
  (void)connection;
  for (size_t i = 0; i < query.count; i++) {
    const struct pair *p = &query.at[i];
    if (see(user, kind, p->name, strlen(p->name), p->value, p->value ? strlen(p->value) : 0) == MHD_NO) break;
  }
  return (int)query.count;
}

void dibs__answer_refuse(struct request *r, int status, const char *word, const char *format, ...) {
  (void)r, (void)format;
  CHECK((status >= 400 && status < 500) && *word);
  refused++;
}
void dibs__answer_problem(struct request *r, dibs_status status, const dibs_error *error) {
  (void)r, (void)status, (void)error;
  refused++;
}
void dibs__answer_header(struct request *r, const char *name, const char *format, ...) {
  (void)r, (void)name, (void)format;
}

/* ---- The input as a request ---- */

static void split_pairs(struct pairs *pairs, char *text, const char *between, char equals) {
  pairs->count = 0;
  for (char *next = text; *text && pairs->count < PAIRS_MAX; text = next) {
    next = text + strcspn(text, between);
    if (*next) *next++ = '\0';
    char *value = strchr(text, equals);
    if (value) *value++ = '\0';
    while (equals == ':' && value && *value == ' ') value++;
    pairs->at[pairs->count++] = (struct pair){text, value ? value : equals == ':' ? text : NULL};
  }
}

static enum method method_of(const char *word) {
  static const char *const methods[METHOD_COUNT] = {"GET", "POST", "PUT", "PATCH", "DELETE"};
  for (size_t i = 0; i < METHOD_COUNT; i++)
    if (strcmp(methods[i], word) == 0) return (enum method)i;
  return METHOD_OTHER;
}

static void check_text(const char *text) {
  CHECK(!text || !*text || dibs__name_check(text, strlen(text), TEXT_MOST, NULL) == DIBS__NAME_OK);
}

/* Of what was accepted; decoded bytes are within the body. */
static void check_data(const struct request *r, const struct field_data *data) {
  size_t sum = 0;
  CHECK(data->length <= DATA_MOST && r->decoded <= r->body_length);
  for (size_t i = 0; i < data->length; i++) sum += (uint8_t)data->p[i]; /* the sanitizers see each byte */
  CHECK(sum <= data->length * 255);
}

static void check_items(struct request *r, struct json_t *items) {
  if (!items) return;
  CHECK(json_array_size(items) >= 1 && json_array_size(items) <= ITEMS_MOST);
  for (size_t i = 0; i < json_array_size(items); i++) {
    struct item_in item = {.text = NULL};
    if (!dibs__fields_read_item(r, item_fields, json_array_get(items, i), &item)) {
      CHECK(refused == 1);
      return;
    }
    CHECK(item.text && *item.text);
    check_text(item.text);
    check_data(r, &item.data);
    CHECK(item.number == FIELD_UNSET || (item.number >= 0 && item.number <= 9));
  }
}

static void check_in(struct request *r, const struct in *in) {
  uint8_t id[16];
  check_text(in->text);
  check_text(in->query);
  check_text(in->header);
  CHECK(!in->text || *in->text);
  CHECK(!in->id || dibs__hex_read(in->id, id));
  CHECK(in->duration == FIELD_UNSET || in->duration == DIBS_FOREVER || (in->duration >= 100 && in->duration <= 5000));
  CHECK(in->number == FIELD_UNSET || (in->number >= -5 && in->number <= 5));
  CHECK(in->choice == FIELD_UNSET || in->choice == 0 || in->choice == 1);
  CHECK(in->query_number == FIELD_UNSET || (in->query_number >= -9 && in->query_number <= 9));
  CHECK(in->word == 0 || in->word == 1);
  check_data(r, &in->data);
  check_items(r, in->items);
}

static void read_request(struct request *r) {
  struct in in = {.text = NULL};
  refused = 0;
  if (!dibs__route_find(r)) {
    CHECK(refused == 1);
    return;
  }
  CHECK(refused == 0);
  for (size_t i = 0; i < PARAMS_MAX && r->param[i]; i++) CHECK(r->param[i] >= r->path && *r->param[i]);
  if (dibs__fields_read(r, r->route->fields, &in)) {
    CHECK(refused == 0);
    if (r->route->fields) check_in(r, &in);
  } else {
    CHECK(refused == 1);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = calloc(1, size + 1);
  if (!text) return 0;
  memcpy(text, data, size);
  char *body = strstr(text, "\n\n"), *target = strchr(text, ' '), *rest = text + strcspn(text, "\n");
  size_t from = body ? (size_t)(body + 2 - text) : size;
  if (body) *body = '\0';
  if (*rest) *rest++ = '\0';
  if (target && target < rest) *target++ = '\0';
  struct request r = {.method = method_of(text), .target = strdup(target ? target : "/")};
  char *parameters = r.target ? strchr(r.target, '?') : NULL;
  r.path = r.target ? strdup(r.target) : NULL;
  r.body_length = from < size ? size - from : 0;
  r.body = malloc(r.body_length + 1);
  if (r.path && r.body) {
    if (r.body_length) memcpy(r.body, data + from, r.body_length);
    char *list = strdup(parameters ? parameters + 1 : "");
    if (list) split_pairs(&query, list, "&", '=');
    split_pairs(&headers, rest, "\n", ':');
    if (list) read_request(&r);
    free(list);
  }
  json_decref(r.document);
  free(r.body);
  free(r.path);
  free(r.target);
  free(text);
  return 0;
}

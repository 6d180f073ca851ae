/* SPDX-License-Identifier: MIT */
/* /openapi.json, written from the tables that the server itself reads requests by. */
#include "base/text.h"
#include "dibs/lane.h"
#include "serve/server.h"
#include "serve/shape.h"

#include <stdlib.h>
#include <string.h>

/* What may be answered to any request. */
static const char common_statuses[] = "400 401 403 413 414 429 431 500 501 502 503 504";
/* Of routes that need no token: they have no rate, either. */
static const char open_statuses[] = "400 403 413 414 431 500 501 502 503 504";

static const char *const method_words[METHOD_COUNT] = {"get", "post", "put", "patch", "delete"};

static void write_number_type(struct dibs__json *j, const struct field *f) {
  dibs__json_text(j, "type", "integer");
  dibs__json_int(j, "minimum", f->least);
  dibs__json_int(j, "maximum", f->most);
}

/* A form of what dibs__duration_read takes, without the limits of a field. */
static const char duration_pattern[] =
    "^(?=.)([0-9]{1,4}d)?([0-9]{1,6}h)?([0-9]{1,7}m)?([0-9]{1,9}s)?([0-9]{1,12}ms)?$";
static const char duration_or_forever[] =
    "^(forever|(?=.)([0-9]{1,4}d)?([0-9]{1,6}h)?([0-9]{1,7}m)?([0-9]{1,9}s)?([0-9]{1,12}ms)?)$";
/* No control characters; what is too long in bytes is refused, too, which a schema cannot say. */
static const char text_pattern[] = "^[^\\x00-\\x1f\\x7f-\\x9f]*$";

static void write_duration_text(struct dibs__json *j, const struct field *f) {
  dibs__json_text(j, "type", "string");
  dibs__json_text(j, "pattern", f->forever ? duration_or_forever : duration_pattern);
}

/* "30s"; in a body also a number of milliseconds. */
static void write_duration_types(struct dibs__json *j, const struct field *f) {
  if (f->place != FIELD_BODY) {
    write_duration_text(j, f);
    return;
  }
  dibs__json_open(j, "oneOf", '[');
  dibs__json_open(j, NULL, '{');
  write_duration_text(j, f);
  dibs__json_text(j, "description",
                  f->forever ? "a number with a unit, 500ms 30s 5m 2h 1d, or forever"
                             : "a number with a unit: 500ms 30s 5m 2h 1d");
  dibs__json_close(j, '}');
  dibs__json_open(j, NULL, '{');
  write_number_type(j, f);
  dibs__json_text(j, "description", "milliseconds");
  dibs__json_close(j, '}');
  dibs__json_close(j, ']');
}

static const char data_types[] =
    "[{\"type\":\"string\",\"pattern\":\"^[^\\\\x00]*$\"},{\"type\":\"object\",\"additionalProperties\":false,"
    "\"required\":[\"base64\"],"
    "\"properties\":{\"base64\":{\"type\":\"string\",\"contentEncoding\":\"base64\",\"pattern\":"
    "\"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$\"}}}]";

static void write_schema(struct dibs__json *j, const struct field *f);

/* A member that is null counts as not given. */
static void write_or_null(struct dibs__json *j, const struct field *f) {
  dibs__json_open(j, "anyOf", '[');
  dibs__json_open(j, NULL, '{');
  write_schema(j, f);
  dibs__json_close(j, '}');
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "type", "null");
  dibs__json_close(j, '}');
  dibs__json_close(j, ']');
}

static void write_object(struct dibs__json *j, const struct field *fields) {
  dibs__json_text(j, "type", "object");
  dibs__json_bool(j, "additionalProperties", false);
  dibs__json_open(j, "properties", '{');
  for (const struct field *f = fields; f->name; f++) {
    if (f->place != FIELD_BODY) continue;
    dibs__json_open(j, f->name, '{');
    if (f->needed)
      write_schema(j, f);
    else
      write_or_null(j, f);
    dibs__json_text(j, "description", f->help);
    dibs__json_close(j, '}');
  }
  dibs__json_close(j, '}');
  dibs__json_open(j, "required", '[');
  for (const struct field *f = fields; f->name; f++)
    if (f->place == FIELD_BODY && f->needed) dibs__json_text(j, NULL, f->name);
  dibs__json_close(j, ']');
}

static void write_schema(struct dibs__json *j, const struct field *f) {
  switch (f->kind) {
  case FIELD_DURATION:
    write_duration_types(j, f);
    break;
  case FIELD_NUMBER:
    write_number_type(j, f);
    break;
  case FIELD_FLAG:
  case FIELD_SWITCH:
    dibs__json_text(j, "type", "boolean");
    break;
  case FIELD_WORD:
    dibs__json_text(j, "type", "string");
    dibs__json_open(j, "enum", '[');
    for (size_t i = 0; f->words[i]; i++) dibs__json_text(j, NULL, f->words[i]);
    dibs__json_close(j, ']');
    break;
  case FIELD_ID:
    dibs__json_text(j, "type", "string");
    dibs__json_text(j, "pattern", "^[0-9a-fA-F]{32}$");
    break;
  case FIELD_ITEMS:
    dibs__json_text(j, "type", "array");
    dibs__json_int(j, "minItems", f->least);
    dibs__json_int(j, "maxItems", f->most);
    dibs__json_open(j, "items", '{');
    write_object(j, f->items);
    dibs__json_close(j, '}');
    break;
  case FIELD_LONG_TEXT:
    dibs__json_text(j, "type", "string");
    dibs__json_text(j, "pattern", "^[^\\x00]*$");
    break;
  case FIELD_DATA:
    dibs__json_raw(j, "oneOf", data_types, sizeof data_types - 1);
    break;
  default:
    dibs__json_text(j, "type", "string");
    dibs__json_text(j, "pattern", f->pattern ? f->pattern : text_pattern);
    if (f->pattern) break;
    dibs__json_int(j, "minLength", f->least);
    dibs__json_int(j, "maxLength", f->most);
  }
}

/* ---- Parameters ---- */

static void write_parameter(struct dibs__json *j, const char *name, const char *in, bool needed, const char *help,
                            const struct field *f) {
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "name", name);
  dibs__json_text(j, "in", in);
  dibs__json_bool(j, "required", needed);
  dibs__json_text(j, "description", help);
  dibs__json_open(j, "schema", '{');
  write_schema(j, f);
  dibs__json_close(j, '}');
  dibs__json_close(j, '}');
}

/* Parameters of paths that are no names. */
static const struct {
  const char *name;
  struct field field;
  const char *help;
} path_parameters[] = {
    {"task", {.kind = FIELD_TEXT, .least = 1, .most = 19, .pattern = "^[1-9][0-9]{0,17}$"}, "the number of a task"},
    {"claim", {.kind = FIELD_TEXT, .least = 1, .most = 64}, "a text of the caller's; a / is written %2F"},
    {"fleet", {.kind = FIELD_TEXT, .least = 1, .most = 128}, "the name of a crontab; a / is written %2F"},
    {"job", {.kind = FIELD_TEXT, .least = 1, .most = 128}, "the name of a job; a / is written %2F"},
    {"topic",
     {.kind = FIELD_TEXT, .least = 1, .most = DIBS_TOPIC_MAX, .pattern = "^[^\\x00-\\x1f\\x7f-\\x9f#]{1,200}$"},
     "the name of a topic, without #; a / is written %2F"},
    {"slot",
     {.kind = FIELD_TEXT, .least = 1, .most = 5, .pattern = "^(0|[1-9][0-9]{0,3})$"},
     "of a member: the answer to its POST has it"},
    {NULL,
     {.kind = FIELD_TEXT, .least = 1, .most = DIBS_NAME_MAX},
     "UTF-8 without control characters; a / is written %2F"}};

static void write_path_parameters(struct dibs__json *j, const char *path) {
  for (const char *open = strchr(path, '{'); open; open = strchr(open + 1, '{')) {
    char name[32] = "";
    size_t length = strcspn(open + 1, "}"), i = 0;
    memcpy(name, open + 1, length < sizeof name ? length : sizeof name - 1);
    while (path_parameters[i].name && strcmp(path_parameters[i].name, name) != 0) i++;
    write_parameter(j, name, "path", true, path_parameters[i].help, &path_parameters[i].field);
  }
}

static void write_parameters(struct dibs__json *j, const struct route *route) {
  dibs__json_open(j, "parameters", '[');
  write_path_parameters(j, route->path);
  for (const struct field *f = route->fields; f && f->name; f++)
    if (f->place != FIELD_BODY)
      write_parameter(j, f->name, f->place == FIELD_QUERY ? "query" : "header", f->needed, f->help, f);
  dibs__json_close(j, ']');
}

/* ---- Bodies and answers ---- */

static void write_body(struct dibs__json *j, const struct route *route) {
  const struct field *f = route->fields;
  while (f && f->name && f->place != FIELD_BODY) f++;
  if (!f || !f->name) return;
  bool needed = false;
  for (const struct field *one = f; one->name; one++) needed = needed || (one->place == FIELD_BODY && one->needed);
  dibs__json_open(j, "requestBody", '{');
  dibs__json_bool(j, "required", needed);
  dibs__json_open(j, "content", '{');
  dibs__json_open(j, f->kind == FIELD_RAW ? "application/octet-stream" : "application/json", '{');
  dibs__json_open(j, "schema", '{');
  if (f->kind != FIELD_RAW) write_object(j, route->fields);
  dibs__json_close(j, '}');
  dibs__json_close(j, '}');
  dibs__json_close(j, '}');
  dibs__json_close(j, '}');
}

static void write_response(struct dibs__json *j, int status, const struct route *route) {
  char code[8];
  struct dibs__text text;
  dibs__text_begin(&text, code, sizeof code);
  dibs__text_addf(&text, "%d", status);
  dibs__json_open(j, code, '{');
  dibs__json_text(j, "description", MHD_get_reason_phrase_for((unsigned)status));
  if (status != 204 && status != 304) {
    const char *type = status >= 400    ? "application/problem+json"
                       : route->answers ? route->answers
                                        : "application/json";
    dibs__json_open(j, "content", '{');
    dibs__json_open(j, type, '{');
    dibs__json_open(j, "schema", '{');
    if (status >= 400)
      dibs__json_text(j, "$ref", "#/components/schemas/Problem");
    else if (!route->answers)
      (void)dibs__shape_write(j, route->name);
    dibs__json_close(j, '}');
    dibs__json_close(j, '}');
    dibs__json_close(j, '}');
  }
  dibs__json_close(j, '}');
}

static void write_responses(struct dibs__json *j, const struct route *route) {
  dibs__json_open(j, "responses", '{');
  const char *lists[] = {route->statuses, route->scope == SCOPE_NONE ? open_statuses : common_statuses};
  for (size_t i = 0; i < 2; i++)
    for (const char *at = lists[i]; *at;) {
      char *end;
      write_response(j, (int)strtol(at, &end, 10), route);
      at = *end ? end + 1 : end;
    }
  dibs__json_close(j, '}');
}

/* {} among the alternatives: a server without tokens needs none. */
static void write_security(struct dibs__json *j, const struct route *route) {
  static const char by_token[] = "[{\"token\":[]},{}]";
  dibs__json_text(j, "x-scope", dibs__scope_word(route->scope));
  if (route->scope == SCOPE_NONE)
    dibs__json_raw(j, "security", "[]", 2);
  else
    dibs__json_raw(j, "security", by_token, sizeof by_token - 1);
}

static void write_route(struct dibs__json *j, const struct route *route) {
  dibs__json_open(j, method_words[route->method], '{');
  dibs__json_text(j, "operationId", route->name);
  dibs__json_text(j, "summary", route->summary);
  if (*route->help) dibs__json_text(j, "description", route->help);
  write_security(j, route);
  write_parameters(j, route);
  write_body(j, route);
  write_responses(j, route);
  dibs__json_close(j, '}');
}

/* ---- The whole ---- */

/* Has an earlier route the same path? */
static bool comes_again(const struct route *const *tables, const struct route *table, const struct route *route) {
  (void)tables;
  for (const struct route *before = table; before != route; before++)
    if (strcmp(before->path, route->path) == 0) return true;
  return false;
}

static void write_paths(struct dibs__json *j) {
  dibs__json_open(j, "paths", '{');
  for (const struct route *const *table = dibs__routes; *table; table++)
    for (const struct route *route = *table; route->path; route++) {
      if (comes_again(dibs__routes, *table, route)) continue;
      dibs__json_open(j, route->path, '{');
      for (const struct route *same = route; same->path; same++)
        if (strcmp(same->path, route->path) == 0) write_route(j, same);
      dibs__json_close(j, '}');
    }
  dibs__json_close(j, '}');
}

static void write_problem_schema(struct dibs__json *j) {
  static const char schema[] =
      "{\"schemas\":{\"Problem\":{\"type\":\"object\",\"required\":[\"type\",\"title\",\"status\",\"detail\"],"
      "\"properties\":{\"type\":{\"type\":\"string\"},\"title\":{\"type\":\"string\"},\"status\":{\"type\":\"integer\"}"
      ","
      "\"detail\":{\"type\":\"string\"},\"name\":{\"type\":\"string\"}}}},\"securitySchemes\":{\"token\":{\"type\":"
      "\"http\",\"scheme\":\"bearer\",\"description\":\"Each token has a scope, read, use or admin, of which the later "
      "include the earlier; x-scope is what a request needs.  It may be limited to names that begin with a "
      "prefix.\"}}}";
  dibs__json_raw(j, "components", schema, sizeof schema - 1);
}

void dibs__openapi_write(struct dibs__json *j) {
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "openapi", "3.1.0");
  dibs__json_open(j, "info", '{');
  dibs__json_text(j, "title", "dibs");
  dibs__json_text(j, "version", dibs_version());
  dibs__json_text(j, "summary", "Leases, records, stocks, tasks over the database that you already run");
  dibs__json_close(j, '}');
  write_paths(j);
  write_problem_schema(j);
  dibs__json_close(j, '}');
}

/* SPDX-License-Identifier: MIT */
/* Reading a request by the table of its fields. */
#include "base/duration.h"
#include "base/text.h"
#include "serve/server.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHOLE_MOST 9007199254740992.0 /* 2^53: up to there a double has each whole number */

static const char *nth_name(size_t i, const void *arg) {
  const struct field *fields = arg;
  return fields[i].name;
}

static bool wrong(struct request *r, const struct field *f, const char *reason) {
  dibs__answer_refuse(r, 400, "invalid", "%s: %s", f->name, reason);
  return false;
}

static bool wrong_number(struct request *r, const struct field *f) {
  char reason[160], least[24], most[24];
  dibs__duration_write(least, sizeof least, f->least);
  dibs__duration_write(most, sizeof most, f->most);
  if (f->kind == FIELD_DURATION)
    snprintf(reason, sizeof reason, "give a duration from %s to %s, as \"30s\"%s; a number is in milliseconds", least,
             most, f->forever ? ", or \"forever\"" : "");
  else
    snprintf(reason, sizeof reason, "give a whole number from %" PRId64 " to %" PRId64, f->least, f->most);
  return wrong(r, f, reason);
}

static bool keep_number(struct request *r, const struct field *f, void *at, int64_t number) {
  if (number < f->least || number > f->most) return wrong_number(r, f);
  memcpy(at, &number, sizeof number);
  return true;
}

static bool keep_text(struct request *r, const struct field *f, void *at, const char *text) {
  size_t wrong_at;
  char reason[96];
  enum dibs__name_flaw what = dibs__name_check(text, strlen(text), (size_t)f->most, &wrong_at);
  uint8_t id[16];
  if (f->kind == FIELD_ID && !dibs__hex_read(text, id)) return wrong(r, f, "give 32 hexadecimal digits");
  snprintf(reason, sizeof reason, "it %s; give 1 to %" PRId64 " bytes without control characters",
           dibs__name_flaw_text(what), f->most);
  if (f->kind == FIELD_TEXT && what != DIBS__NAME_OK && (*text || f->least > 0)) return wrong(r, f, reason);
  memcpy(at, &text, sizeof text);
  return true;
}

static void keep_flag(const struct field *f, void *at, bool yes) {
  int64_t number = yes;
  if (f->kind == FIELD_SWITCH)
    memcpy(at, &number, sizeof number);
  else
    memcpy(at, &yes, sizeof yes);
}

static bool keep_word(struct request *r, const struct field *f, void *at, const char *text) {
  char reason[128];
  struct dibs__text list;
  dibs__text_begin(&list, reason, sizeof reason);
  dibs__text_adds(&list, "give one of");
  for (int32_t i = 0; f->words[i]; i++) {
    if (strcmp(f->words[i], text) == 0) {
      memcpy(at, &i, sizeof i);
      return true;
    }
    dibs__text_addf(&list, "%s %s", i > 0 ? "," : "", f->words[i]);
  }
  return wrong(r, f, reason);
}

/* A value that came as text: of the query or a header, or a string of the body. */
static bool read_text(struct request *r, const struct field *f, void *at, const char *text) {
  char reason[160], *end;
  int64_t ms;
  switch (f->kind) {
  case FIELD_DURATION:
    if (f->forever && strcmp(text, "forever") == 0) {
      ms = DIBS_FOREVER;
      memcpy(at, &ms, sizeof ms);
      return true;
    }
    if (!dibs__duration_read(text, &ms, reason, sizeof reason)) return wrong(r, f, reason);
    return keep_number(r, f, at, ms);
  case FIELD_NUMBER: {
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (*text < '-' || *text > '9' || *end || errno == ERANGE) return wrong_number(r, f);
    return keep_number(r, f, at, number);
  }
  case FIELD_SWITCH:
  case FIELD_FLAG: {
    bool yes = strcmp(text, "true") == 0 || strcmp(text, "1") == 0 || *text == '\0';
    if (!yes && strcmp(text, "false") != 0 && strcmp(text, "0") != 0) return wrong(r, f, "give true or false");
    keep_flag(f, at, yes);
    return true;
  }
  case FIELD_WORD:
    return keep_word(r, f, at, text);
  default:
    return keep_text(r, f, at, text);
  }
}

static int base64_value(char c) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const char *at = c ? strchr(digits, c) : NULL;
  return at ? (int)(at - digits) : -1;
}

/* Into the memory of the body, which was parsed and is longer than all that it contains.  false: it is not base64. */
static bool decode_base64(struct request *r, const char *text, size_t length, struct field_data *to) {
  char *out = r->body + r->decoded, *end = out;
  uint32_t bits = 0;
  size_t digits = length;
  while (digits > 0 && length - digits < 2 && text[digits - 1] == '=') digits--;
  if (length % 4 != 0) return false;
  for (size_t i = 0; i < digits; i++) {
    int value = base64_value(text[i]);
    if (value < 0) return false;
    bits = bits << 6 | (uint32_t)value;
    if (i % 4 > 0) *end++ = (char)(bits >> (6 - 2 * (i % 4)) & 0xff);
  }
  *to = (struct field_data){out, (size_t)(end - out)};
  r->decoded += to->length;
  return true;
}

static bool read_data(struct request *r, const struct field *f, void *at, const json_t *value) {
  const json_t *encoded = json_is_object(value) ? json_object_get(value, "base64") : NULL;
  const json_t *text = encoded ? encoded : value;
  struct field_data data = {json_string_value(text), json_string_length(text)};
  if (!json_is_string(text) || (encoded && json_object_size(value) != 1))
    return wrong(r, f, "give a JSON string, or {\"base64\": STRING}");
  if (encoded && !decode_base64(r, data.p, data.length, &data)) return wrong(r, f, "this is not base64");
  if (data.length > (size_t)f->most) return wrong(r, f, "it is too long");
  memcpy(at, &data, sizeof data);
  return true;
}

/* A number as 16.0, which JSON does not distinguish from 16. */
static bool is_whole(const json_t *value) {
  double number = json_real_value(value);
  return json_is_real(value) && number >= -WHOLE_MOST && number <= WHOLE_MOST && number == (double)(int64_t)number;
}

static bool read_member(struct request *r, const struct field *f, void *at, json_t *value) {
  bool numeric = f->kind == FIELD_NUMBER || f->kind == FIELD_DURATION;
  if (f->kind == FIELD_DATA) return read_data(r, f, at, value);
  if (numeric && json_is_integer(value)) return keep_number(r, f, at, json_integer_value(value));
  if (numeric && is_whole(value)) return keep_number(r, f, at, (int64_t)json_real_value(value));
  bool flag = f->kind == FIELD_FLAG || f->kind == FIELD_SWITCH;
  if (flag && json_is_boolean(value)) {
    keep_flag(f, at, json_is_true(value));
    return true;
  }
  if (f->kind == FIELD_ITEMS && json_is_array(value)) {
    int64_t count = (int64_t)json_array_size(value);
    if (count < f->least || count > f->most) return wrong(r, f, "it has too few or too many elements");
    memcpy(at, &value, sizeof value);
    return true;
  }
  bool as_text = json_is_string(value) && f->kind != FIELD_NUMBER && !flag && f->kind != FIELD_ITEMS;
  if (as_text) return read_text(r, f, at, json_string_value(value));
  if (numeric && f->kind == FIELD_NUMBER) return wrong_number(r, f);
  return wrong(r, f, flag ? "give true or false" : f->kind == FIELD_ITEMS ? "give an array" : "give a string");
}

static const struct field *find(const struct field *fields, const char *name, enum field_place place) {
  for (const struct field *f = fields; f && f->name; f++)
    if (f->place == place && strcmp(f->name, name) == 0) return f;
  return NULL;
}

static bool unknown(struct request *r, const struct field *fields, const char *what, const char *name) {
  const char *near = fields ? dibs__nearest(name, nth_name, fields) : NULL;
  dibs__answer_refuse(r, 400, "invalid", "there is no %s \"%.64s\"%s%s%s", what, name, near ? "; did you mean \"" : "",
                      near ? near : "", near ? "\"?" : "");
  return false;
}

static bool read_object(struct request *r, const struct field *fields, json_t *object, void *in) {
  const char *name;
  json_t *value;
  json_object_foreach(object, name, value) {
    const struct field *f = find(fields, name, FIELD_BODY);
    if (!f) return unknown(r, fields, "member", name);
    if (json_is_null(value)) continue;
    if (!read_member(r, f, (char *)in + f->at, value)) return false;
  }
  return true;
}

/* The first member of the body; NULL: the request takes no body. */
static const struct field *body_field(const struct field *fields) {
  const struct field *f = fields;
  while (f && f->name && f->place != FIELD_BODY) f++;
  return f && f->name ? f : NULL;
}

static bool read_body(struct request *r, const struct field *fields, void *in) {
  json_error_t failure;
  const struct field *body = body_field(fields);
  if (body && body->kind == FIELD_RAW) {
    struct field_data data = {r->body ? r->body : "", r->body_length};
    memcpy((char *)in + body->at, &data, sizeof data);
    return true;
  }
  if (r->body_length == 0) return true;
  if (!body) {
    dibs__answer_refuse(r, 400, "invalid", "this request takes no body");
    return false;
  }
  r->document = json_loadb(r->body, r->body_length, JSON_REJECT_DUPLICATES, &failure);
  if (!r->document) {
    dibs__answer_refuse(r, 400, "invalid", "the body is not JSON: %s, at line %d, column %d", failure.text,
                        failure.line, failure.column);
    return false;
  }
  if (!json_is_object(r->document)) {
    dibs__answer_refuse(r, 400, "invalid", "the body is not a JSON object");
    return false;
  }
  return read_object(r, fields, r->document, in);
}

struct reading {
  struct request *r;
  const struct field *fields;
  void *in;
  bool fine;
};

static enum MHD_Result read_parameter(void *arg, enum MHD_ValueKind kind, const char *name, size_t name_size,
                                      const char *value, size_t size) {
  struct reading *reading = arg;
  (void)kind, (void)name_size;
  const struct field *f = find(reading->fields, name, FIELD_QUERY);
  if (!f)
    reading->fine = unknown(reading->r, reading->fields, "parameter", name);
  else if (value && strlen(value) != size)
    reading->fine = wrong(reading->r, f, "it has a NUL");
  else
    reading->fine = read_text(reading->r, f, (char *)reading->in + f->at, value ? value : "");
  return reading->fine ? MHD_YES : MHD_NO;
}

static bool read_headers(struct request *r, const struct field *fields, void *in) {
  for (const struct field *f = fields; f && f->name; f++) {
    if (f->place != FIELD_HEADER) continue;
    const char *value = MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, f->name);
    if (value && !read_text(r, f, (char *)in + f->at, value)) return false;
  }
  return true;
}

static bool is_number(const struct field *f) {
  return f->kind == FIELD_DURATION || f->kind == FIELD_NUMBER || f->kind == FIELD_SWITCH;
}

/* Until it is given: FIELD_UNSET, and zero for all that is no number. */
static void clear(const struct field *fields, void *in) {
  static const int64_t unset = FIELD_UNSET;
  for (const struct field *f = fields; f && f->name; f++)
    if (is_number(f)) memcpy((char *)in + f->at, &unset, sizeof unset);
}

static bool is_given(const struct field *f, const void *in) {
  const char *at = (const char *)in + f->at;
  int64_t number;
  const void *pointer;
  if (is_number(f)) {
    memcpy(&number, at, sizeof number);
    return number != FIELD_UNSET;
  }
  memcpy(&pointer, at, sizeof pointer);
  return pointer != NULL;
}

static const char *const missing[] = {[FIELD_BODY] = "it is missing; give it as a member of the JSON in the body",
                                      [FIELD_QUERY] = "it is missing; give it in the query of the URL, after ?",
                                      [FIELD_HEADER] = "it is missing; give it as a header"};

static bool has_needed(struct request *r, const struct field *fields, const void *in) {
  for (const struct field *f = fields; f && f->name; f++)
    if (f->needed && !is_given(f, in)) return wrong(r, f, missing[f->place]);
  return true;
}

bool dibs__fields_read_item(struct request *r, const struct field *fields, json_t *item, void *in) {
  clear(fields, in);
  if (!json_is_object(item)) {
    dibs__answer_refuse(r, 400, "invalid", "an element of the array is not a JSON object");
    return false;
  }
  return read_object(r, fields, item, in) && has_needed(r, fields, in);
}

bool dibs__fields_read_query(struct request *r, const struct field *fields, char *query, void *in) {
  struct reading reading = {r, fields, in, true};
  clear(fields, in);
  for (char *rest = query, *one; reading.fine && (one = strsep(&rest, "&"));) {
    char *value = strchr(one, '=');
    if (value) *value++ = '\0';
    if (!*one && !value) continue;
    if (!dibs__percent_decode(one) || (value && !dibs__percent_decode(value))) {
      dibs__answer_refuse(r, 400, "invalid", "the query has a %% that two hexadecimal digits do not follow, or a NUL");
      return false;
    }
    read_parameter(&reading, MHD_GET_ARGUMENT_KIND, one, strlen(one), value, value ? strlen(value) : 0);
  }
  return reading.fine && has_needed(r, fields, in);
}

bool dibs__fields_read(struct request *r, const struct field *fields, void *in) {
  struct reading reading = {r, fields, in, true};
  clear(fields, in);
  if (!read_body(r, fields, in)) return false;
  MHD_get_connection_values_n(r->connection, MHD_GET_ARGUMENT_KIND, read_parameter, &reading);
  if (!reading.fine || !read_headers(r, fields, in)) return false;
  return has_needed(r, fields, in);
}

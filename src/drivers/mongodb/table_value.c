/* SPDX-License-Identifier: MIT */
/*
 * Values of the user's fields as text, and back.
 *
 * A field of a document has a type of its own.  A text that is written takes the type that the field has at that
 * moment, in the very command: the client sends the value in each type that the text can be, and the server chooses.  A
 * document whose field has another type is not matched.
 */
#include "drivers/mongodb/table_impl.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBER_MAX = 63 };
#define WRAPPED "{ \"v\" : "

typedef struct dibs__table table_t;

/* ---- Reading ---- */

static char *copy_bytes(const void *bytes, size_t len, size_t *to_len) {
  char *to = malloc(len + 1);
  if (!to) return NULL;
  if (len) memcpy(to, bytes, len);
  to[len] = '\0';
  *to_len = len;
  return to;
}

/* The program may use a locale with a decimal comma. */
static double parse_double(const char *text) {
  locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  double d = plain ? strtod_l(text, NULL, plain) : strtod(text, NULL);
  if (plain) freelocale(plain);
  return d;
}

/* The shortest text that is this number. */
static void print_double(double d, char to[NUMBER_MAX + 1]) {
  locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0), before = plain ? uselocale(plain) : (locale_t)0;
  for (int digits = 15; digits <= 17; digits++) {
    snprintf(to, NUMBER_MAX + 1, "%.*g", digits, d);
    if (strtod(to, NULL) == d) break;
  }
  if (before) uselocale(before);
  if (plain) freelocale(plain);
}

static void double_text(double d, char to[NUMBER_MAX + 1]) {
  if (isnan(d) || isinf(d)) {
    snprintf(to, NUMBER_MAX + 1, "%s", isnan(d) ? "NaN" : d > 0 ? "Infinity" : "-Infinity");
  } else if (fabs(d) < (double)DIBS__MF_EXACT && d == (double)(long long)d) {
    snprintf(to, NUMBER_MAX + 1, "%lld", (long long)d);
  } else {
    print_double(d, to);
  }
}

/* As extended JSON. */
static char *json_text(const bson_iter_t *at, size_t *len) {
  bson_t one = BSON_INITIALIZER;
  char *copy = NULL;
  size_t all = 0;
  char *json = bson_append_iter(&one, "v", -1, at) ? bson_as_relaxed_extended_json(&one, &all) : NULL;
  const size_t before = sizeof WRAPPED - 1, after = 2; /* " }" */
  if (json && all > before + after) copy = copy_bytes(json + before, all - before - after, len);
  bson_free(json);
  bson_destroy(&one);
  return copy;
}

static bool short_text(const bson_iter_t *at, char to[NUMBER_MAX + 1]) {
  int64_t ms;
  bson_decimal128_t decimal;
  switch (bson_iter_type(at)) {
  case BSON_TYPE_INT32:
  case BSON_TYPE_INT64:
    snprintf(to, NUMBER_MAX + 1, "%lld", (long long)bson_iter_as_int64(at));
    return true;
  case BSON_TYPE_DOUBLE:
    double_text(bson_iter_double(at), to);
    return true;
  case BSON_TYPE_DECIMAL128:
    bson_iter_decimal128(at, &decimal);
    bson_decimal128_to_string(&decimal, to);
    return true;
  case BSON_TYPE_BOOL:
    snprintf(to, NUMBER_MAX + 1, "%s", bson_iter_bool(at) ? "true" : "false");
    return true;
  case BSON_TYPE_OID:
    bson_oid_to_string(bson_iter_oid(at), to);
    return true;
  case BSON_TYPE_DATE_TIME:
    dibs__mf_iso(bson_iter_date_time(at), to);
    return dibs__mf_iso_ms(dibs__str_of(to, DIBS__MF_ISO), &ms) && ms == bson_iter_date_time(at);
  default:
    return false;
  }
}

bool dibs__mv_read(const bson_t *document, const char *field, char **text, size_t *len) {
  char brief[NUMBER_MAX + 1];
  bson_iter_t at;
  uint32_t size = 0;
  const uint8_t *bytes;
  *text = NULL;
  *len = 0;
  if (!dibs__mf_find(document, field, &at) || BSON_ITER_HOLDS_NULL(&at) || BSON_ITER_HOLDS_UNDEFINED(&at)) return true;
  if (BSON_ITER_HOLDS_UTF8(&at)) {
    dibs__str held = dibs__mf_text(&at);
    *text = copy_bytes(held.p, held.len, len);
  } else if (BSON_ITER_HOLDS_BINARY(&at)) {
    bson_iter_binary(&at, NULL, &size, &bytes);
    *text = copy_bytes(bytes, size, len);
  } else if (short_text(&at, brief)) {
    *text = copy_bytes(brief, strlen(brief), len);
  } else {
    *text = json_text(&at, len);
  }
  return *text != NULL;
}

/* ---- Writing: what the text is in each type ---- */

typedef bool put_fn(bson_t *to, const char *name, const dibs_value *v);

static bool put_text(bson_t *to, const char *name, const dibs_value *v) {
  return bson_utf8_validate(v->data, v->length, true) && bson_append_utf8(to, name, -1, v->data, (int)v->length);
}

static bool put_binary(bson_t *to, const char *name, const dibs_value *v) {
  return bson_append_binary(to, name, -1, BSON_SUBTYPE_BINARY, (const uint8_t *)v->data, (uint32_t)v->length);
}

static size_t digits(const char *at, const char *end) {
  size_t n = 0;
  while (at + n < end && at[n] >= '0' && at[n] <= '9') n++;
  return n;
}

/* As JSON writes numbers. */
static bool is_number(const dibs_value *v) {
  const char *at = v->data, *end = at + v->length;
  if (v->length == 0 || v->length > NUMBER_MAX) return false;
  if (*at == '-') at++;
  size_t n = digits(at, end);
  if (n == 0 || (n > 1 && *at == '0')) return false;
  at += n;
  if (at < end && *at == '.') {
    n = digits(++at, end);
    if (n == 0) return false;
    at += n;
  }
  if (at < end && (*at == 'e' || *at == 'E')) {
    at++;
    if (at < end && (*at == '+' || *at == '-')) at++;
    n = digits(at, end);
    if (n == 0) return false;
    at += n;
  }
  return at == end;
}

static bool whole(const dibs_value *v, int64_t *number) {
  return dibs__mf_is_number(dibs__str_of(v->data, v->length), number);
}

static bool is_word(const dibs_value *v, const char *word) {
  return v->length == strlen(word) && memcmp(v->data, word, v->length) == 0;
}

static bool put_double(bson_t *to, const char *name, const dibs_value *v) {
  char copy[NUMBER_MAX + 1];
  int64_t number;
  bool special = is_word(v, "NaN") || is_word(v, "Infinity") || is_word(v, "-Infinity");
  if (!special && !is_number(v)) return false;
  if (whole(v, &number) && (number >= DIBS__MF_EXACT || number <= -DIBS__MF_EXACT)) return false;
  memcpy(copy, v->data, v->length);
  copy[v->length] = '\0';
  double d = parse_double(copy);
  return (special || !isinf(d)) && bson_append_double(to, name, -1, d);
}

static bool put_long(bson_t *to, const char *name, const dibs_value *v) {
  int64_t number;
  return whole(v, &number) ? bson_append_int64(to, name, -1, number) : is_number(v) && put_double(to, name, v);
}

static bool put_int(bson_t *to, const char *name, const dibs_value *v) {
  int64_t number;
  if (!whole(v, &number) || number > INT32_MAX || number < INT32_MIN) return put_long(to, name, v);
  return bson_append_int32(to, name, -1, (int32_t)number);
}

static bool put_decimal(bson_t *to, const char *name, const dibs_value *v) {
  bson_decimal128_t decimal;
  return is_number(v) && bson_decimal128_from_string_w_len(v->data, (int)v->length, &decimal) &&
         bson_append_decimal128(to, name, -1, &decimal);
}

static bool put_bool(bson_t *to, const char *name, const dibs_value *v) {
  bool yes = is_word(v, "true");
  return (yes || is_word(v, "false")) && bson_append_bool(to, name, -1, yes);
}

static bool put_date(bson_t *to, const char *name, const dibs_value *v) {
  int64_t ms;
  char iso[DIBS__MF_ISO + 1];
  if (!dibs__mf_iso_ms(dibs__str_of(v->data, v->length), &ms)) return false;
  dibs__mf_iso(ms, iso); /* the 31st of February is none */
  return memcmp(iso, v->data, v->length) == 0 && bson_append_date_time(to, name, -1, ms);
}

static bool put_oid(bson_t *to, const char *name, const dibs_value *v) {
  return dibs__mf_put_key(to, name, dibs__str_of(v->data, v->length), DIBS__MF_OID);
}

/* Does the document or array that begins here end at the end?  (The parser ignores what follows.) */
static bool is_one_value(const dibs_value *v) {
  size_t open = 0;
  bool inside = false; /* of a string */
  for (size_t i = 0; i < v->length; i++) {
    char c = v->data[i];
    if (inside) {
      inside = c != '"';
      if (c == '\\') i++;
      continue;
    }
    if (i > 0 && open == 0 && (c == '\0' || !strchr(" \t\r\n", c))) return false;
    inside = c == '"';
    open += c == '{' || c == '[';
    if (c == '}' || c == ']') open--; /* it was not 0 */
  }
  return open == 0;
}

/* JSON that begins with `first`. */
static bool put_json(bson_t *to, const char *name, const dibs_value *v, char first, bson_type_t type) {
  bson_error_t error;
  bson_iter_t at;
  char *json = NULL;
  bool fine = v->length > 1 && v->data[0] == first && is_one_value(v) &&
              (json = malloc(v->length + sizeof WRAPPED + 2)) != NULL;
  if (!fine) return false;
  memcpy(json, WRAPPED, sizeof WRAPPED - 1);
  memcpy(json + sizeof WRAPPED - 1, v->data, v->length);
  memcpy(json + sizeof WRAPPED - 1 + v->length, " }", 3);
  bson_t *made = bson_new_from_json((const uint8_t *)json, (ssize_t)(sizeof WRAPPED + 1 + v->length), &error);
  fine = made && bson_count_keys(made) == 1 && bson_iter_init_find(&at, made, "v") && bson_iter_type(&at) == type &&
         bson_append_iter(to, name, -1, &at);
  bson_destroy(made);
  free(json);
  return fine;
}

static bool put_object(bson_t *to, const char *name, const dibs_value *v) {
  return put_json(to, name, v, '{', BSON_TYPE_DOCUMENT);
}
static bool put_array(bson_t *to, const char *name, const dibs_value *v) {
  return put_json(to, name, v, '[', BSON_TYPE_ARRAY);
}

static const struct kind {
  const char *type; /* MongoDB's word */
  bson_type_t code;
  put_fn *put;
  const char *needs;
} kinds[] = {{"string", BSON_TYPE_UTF8, put_text, "a text in UTF-8"},
             {"int", BSON_TYPE_INT32, put_int, "a number"},
             {"long", BSON_TYPE_INT64, put_long, "a number"},
             {"double", BSON_TYPE_DOUBLE, put_double, "a number that a double represents"},
             {"decimal", BSON_TYPE_DECIMAL128, put_decimal, "a number"},
             {"bool", BSON_TYPE_BOOL, put_bool, "true or false"},
             {"date", BSON_TYPE_DATE_TIME, put_date, "a date like 2026-01-02T03:04:05.006Z"},
             {"objectId", BSON_TYPE_OID, put_oid, "24 hex digits"},
             {"object", BSON_TYPE_DOCUMENT, put_object, "a document, as JSON"},
             {"array", BSON_TYPE_ARRAY, put_array, "an array, as JSON"},
             {"binData", BSON_TYPE_BINARY, put_binary, "bytes"}};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

bool dibs__mv_put_new(bson_t *to, const char *name, const dibs_value *v) {
  if (!v->data) return bson_append_null(to, name, -1);
  return put_text(to, name, v) || put_binary(to, name, v);
}

/* {'$in': [{'$type': '$FIELD'}, [TYPE...]]} */
static bool put_type_in(bson_t *to, const char *field, const char *const *types, size_t count) {
  bson_t list, one, in;
  char name[DIBS__MONGO_SHOWN + 8], index[12];
  const char *at;
  snprintf(name, sizeof name, "$%s", field);
  bool fine = BSON_APPEND_ARRAY_BEGIN(to, "$in", &list) && BSON_APPEND_DOCUMENT_BEGIN(&list, "0", &one) &&
              BSON_APPEND_UTF8(&one, "$type", name) && bson_append_document_end(&list, &one) &&
              BSON_APPEND_ARRAY_BEGIN(&list, "1", &in);
  for (size_t i = 0; i < count; i++) {
    bson_uint32_to_string((uint32_t)i, &at, index, sizeof index);
    fine = fine && bson_append_utf8(&in, at, -1, types[i], -1);
  }
  return fine && bson_append_array_end(&list, &in) && bson_append_array_end(to, &list);
}

static bool can_be(const struct kind *kind, const dibs_value *v) {
  bson_t one = BSON_INITIALIZER;
  bool fine = kind->put(&one, "v", v);
  bson_destroy(&one);
  return fine;
}

bool dibs__mv_put_condition(bson_t *to, const char *field, const dibs_value *v) {
  const char *types[KINDS + 3] = {"missing", "null", "undefined"};
  size_t count = 3;
  for (size_t i = 0; i < KINDS; i++)
    if (can_be(&kinds[i], v)) types[count++] = kinds[i].type;
  return put_type_in(to, field, types, count);
}

/* {case: {'$in': ...}, then: {'$literal': VALUE}} */
static bool put_branch(bson_t *branches, uint32_t *count, const char *field, const struct kind *kind,
                       const dibs_value *v) {
  bson_t literal = BSON_INITIALIZER, branch, is;
  char index[12];
  const char *at;
  bool fine = true;
  if (kind->put(&literal, "$literal", v)) {
    bson_uint32_to_string((*count)++, &at, index, sizeof index);
    fine = bson_append_document_begin(branches, at, -1, &branch) && BSON_APPEND_DOCUMENT_BEGIN(&branch, "case", &is) &&
           put_type_in(&is, field, &kind->type, 1) && bson_append_document_end(&branch, &is) &&
           BSON_APPEND_DOCUMENT(&branch, "then", &literal) && bson_append_document_end(branches, &branch);
  }
  bson_destroy(&literal);
  return fine;
}

bool dibs__mv_put_set(bson_t *set, const char *field, const dibs_value *v) {
  bson_t value, choice, branches, otherwise;
  uint32_t count = 0;
  if (!v->data)
    return bson_append_document_begin(set, field, -1, &value) && BSON_APPEND_NULL(&value, "$literal") &&
           bson_append_document_end(set, &value);
  bool fine = bson_append_document_begin(set, field, -1, &value) &&
              BSON_APPEND_DOCUMENT_BEGIN(&value, "$switch", &choice) &&
              BSON_APPEND_ARRAY_BEGIN(&choice, "branches", &branches);
  for (size_t i = 1; i < KINDS && fine; i++) fine = put_branch(&branches, &count, field, &kinds[i], v);
  return fine && bson_append_array_end(&choice, &branches) &&
         BSON_APPEND_DOCUMENT_BEGIN(&choice, "default", &otherwise) && dibs__mv_put_new(&otherwise, "$literal", v) &&
         bson_append_document_end(&choice, &otherwise) && bson_append_document_end(&value, &choice) &&
         bson_append_document_end(set, &value);
}

bool dibs__mv_fits(const bson_t *document, const char *field, const dibs_value *v, char *why, size_t size) {
  bson_iter_t at;
  char shown[DIBS__MONGO_SHOWN];
  if (!v->data || !dibs__mf_find(document, field, &at)) return true;
  if (BSON_ITER_HOLDS_NULL(&at) || BSON_ITER_HOLDS_UNDEFINED(&at)) return true;
  const char *needs = NULL;
  for (size_t i = 0; i < KINDS; i++) {
    if (bson_iter_type(&at) != kinds[i].code) continue;
    if (can_be(&kinds[i], v)) return true;
    needs = kinds[i].needs;
  }
  dibs__mf_show(document, shown);
  if (needs)
    snprintf(why, size, "\"%.40s\" of %.44s must be %s, as it is now", field, shown, needs);
  else
    snprintf(why, size, "\"%.40s\" of %.44s has a type that dibs does not write", field, shown);
  return false;
}

bool dibs__mv_put_same(bson_t *to, const char *field, const bson_t *document) {
  bson_t list, one, none, literal;
  bson_iter_t at;
  char name[DIBS__MONGO_SHOWN + 8];
  snprintf(name, sizeof name, "$%s", field);
  bool fine = BSON_APPEND_ARRAY_BEGIN(to, "$eq", &list) && BSON_APPEND_DOCUMENT_BEGIN(&list, "0", &one) &&
              BSON_APPEND_ARRAY_BEGIN(&one, "$ifNull", &none) && BSON_APPEND_UTF8(&none, "0", name) &&
              BSON_APPEND_NULL(&none, "1") && bson_append_array_end(&one, &none) &&
              bson_append_document_end(&list, &one) && BSON_APPEND_DOCUMENT_BEGIN(&list, "1", &literal);
  if (fine && dibs__mf_find(document, field, &at))
    fine = bson_append_iter(&literal, "$literal", -1, &at);
  else
    fine = fine && BSON_APPEND_NULL(&literal, "$literal");
  return fine && bson_append_document_end(&list, &literal) && bson_append_array_end(to, &list);
}

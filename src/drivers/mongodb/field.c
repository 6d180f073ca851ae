/* SPDX-License-Identifier: MIT */
/* Fields of the user's documents: filters and updates as templates; keys, numbers and instants as text. */
#include "drivers/mongodb/field_impl.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct dibs__table table_t;

enum { MS_PER_S = 1000 };

/* ---- Templates ---- */

void dibs__mf_iso(int64_t ms, char to[DIBS__MF_ISO + 1]) {
  struct tm tm;
  time_t s = (time_t)(ms / MS_PER_S - (ms % MS_PER_S < 0));
  unsigned rest = (unsigned)(ms - (int64_t)s * MS_PER_S);
  if (!gmtime_r(&s, &tm) || tm.tm_year < -1900 || tm.tm_year > 9999 - 1900) tm = (struct tm){.tm_mday = 1};
  snprintf(to, DIBS__MF_ISO + 1, "%04u-%02u-%02uT%02u:%02u:%02u.%03uZ", (unsigned)(tm.tm_year + 1900) % 10000,
           (unsigned)(tm.tm_mon + 1) % 100, (unsigned)tm.tm_mday % 100, (unsigned)tm.tm_hour % 100,
           (unsigned)tm.tm_min % 100, (unsigned)tm.tm_sec % 100, rest % MS_PER_S);
}

int64_t dibs__mf_unit(const table_t *t) {
  return t->time_unit == DIBS__TIME_S ? MS_PER_S : 1;
}

/* The name of a field; NULL: the letter is no field's. */
static const char *field_of(const table_t *t, char letter) {
  const struct {
    char letter;
    const char *name;
  } fields[] = {{'k', t->key},     {'P', t->phase},  {'L', t->locked_at}, {'U', t->updated_at}, {'f', t->fence},
                {'v', t->version}, {'o', t->owner},  {'s', t->used},      {'m', t->limit},      {'C', t->claims},
                {'c', t->claim},   {'a', t->amount}, {'g', t->given},     {'w', t->taken},      {'t', t->taker}};
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
    if (fields[i].letter == letter) return fields[i].name;
  return NULL;
}

/* The inside of a JSON string. */
static void put_text(FILE *to, dibs__str text) {
  for (uint32_t i = 0; i < text.len; i++) {
    unsigned char c = (unsigned char)text.p[i];
    if (c == '"' || c == '\\' || c < ' ')
      fprintf(to, "\\u%04x", c);
    else
      fputc(c, to);
  }
}

static void put_word(FILE *to, const table_t *t, char word, const struct dibs__mf_words *words) {
  char iso[DIBS__MF_ISO + 1];
  const char *field = field_of(t, word);
  if (field) {
    fputs(field, to);
  } else if (word == 'I' || word == 'O') {
    put_text(to, word == 'I' ? words->claim : words->owner);
  } else if (word == 'i') {
    dibs__mf_iso(words->numbers[1], iso);
    fputs(iso, to);
  } else if (word == 'u') {
    fprintf(to, "%" PRId64, dibs__mf_unit(t));
  } else if (word == '2') {
    fprintf(to, "%" PRId64, words->numbers[1] / dibs__mf_unit(t) + 1);
  } else {
    assert(word == '0' || word == '1');
    fprintf(to, "%" PRId64, words->numbers[word - '0']);
  }
}

static void put_template(FILE *to, const table_t *t, const char *template, const struct dibs__mf_words *words) {
  for (const char *at = template; *at; at++) {
    if (*at == '@')
      put_word(to, t, *++at, words);
    else
      fputc(*at == '\'' ? '"' : *at, to);
  }
}

bson_t *dibs__mf_expand_words(const table_t *t, const char *const templates[], const struct dibs__mf_words *words) {
  char *text = NULL;
  size_t size = 0;
  bson_error_t error;
  FILE *to = open_memstream(&text, &size);
  if (!to) return NULL;
  for (; *templates; templates++) put_template(to, t, *templates, words);
  bool failed = ferror(to) != 0;
  bson_t *made = fclose(to) == 0 && !failed ? bson_new_from_json((const uint8_t *)text, (ssize_t)size, &error) : NULL;
  free(text);
  return made;
}

bson_t *dibs__mf_expand(const table_t *t, const char *const templates[], int64_t first, int64_t second) {
  const struct dibs__mf_words words = {.numbers = {first, second}};
  return dibs__mf_expand_words(t, templates, &words);
}

bson_t *dibs__mf_expand_one(const table_t *t, const char *template, int64_t first, int64_t second) {
  const char *const templates[] = {template, NULL};
  return dibs__mf_expand(t, templates, first, second);
}

/* ---- What a field says ---- */

bool dibs__mf_whole(const bson_iter_t *at, int64_t *number) {
  if (BSON_ITER_HOLDS_DOUBLE(at)) {
    double d = bson_iter_double(at);
    if (!(d > -(double)DIBS__MF_EXACT && d < (double)DIBS__MF_EXACT)) return false;
    *number = (int64_t)d;
    return (double)*number == d;
  }
  if (!BSON_ITER_HOLDS_INT32(at) && !BSON_ITER_HOLDS_INT64(at)) return false;
  *number = bson_iter_as_int64(at);
  return true;
}

dibs__str dibs__mf_text(const bson_iter_t *at) {
  uint32_t len = 0;
  const char *text = bson_iter_utf8(at, &len);
  return dibs__str_of(text, len);
}

char dibs__mf_key(const bson_iter_t *at, char memory[DIBS__MF_KEY], dibs__str *key) {
  int64_t number;
  if (BSON_ITER_HOLDS_OID(at)) {
    char hex[25];
    bson_oid_to_string(bson_iter_oid(at), hex);
    memcpy(memory, hex, sizeof hex);
    *key = dibs__str_of(memory, 24);
    return 'o';
  }
  if (BSON_ITER_HOLDS_UTF8(at)) {
    *key = dibs__mf_text(at);
    return key->len > 0 && !memchr(key->p, 0, key->len) ? 't' : '\0';
  }
  if (!dibs__mf_whole(at, &number)) return '\0';
  *key = dibs__str_of(memory, (size_t)snprintf(memory, DIBS__MF_KEY, "%" PRId64, number));
  return 'n';
}

bool dibs__mf_iso_ms(dibs__str text, int64_t *ms) {
  static const char form[] = "dddd-dd-ddTdd:dd:dd.dddZ";
  int part[7] = {0};
  size_t nth = 0;
  if (text.len != DIBS__MF_ISO) return false;
  for (size_t i = 0; i < DIBS__MF_ISO; i++) {
    bool digit = text.p[i] >= '0' && text.p[i] <= '9';
    if (form[i] == 'd' ? !digit : text.p[i] != form[i]) return false;
    if (digit)
      part[nth] = part[nth] * 10 + (text.p[i] - '0');
    else
      nth++;
  }
  struct tm tm = {.tm_year = part[0] - 1900,
                  .tm_mon = part[1] - 1,
                  .tm_mday = part[2],
                  .tm_hour = part[3],
                  .tm_min = part[4],
                  .tm_sec = part[5]};
  *ms = (int64_t)timegm(&tm) * MS_PER_S + part[6];
  return true;
}

bool dibs__mf_find(const bson_t *document, const char *field, bson_iter_t *at) {
  return bson_iter_init_find(at, document, field);
}

bool dibs__mf_is_nothing(const bson_t *document, const char *field) {
  bson_iter_t at;
  return !dibs__mf_find(document, field, &at) || BSON_ITER_HOLDS_NULL(&at);
}

bool dibs__mf_fits_fence(const bson_iter_t *at) {
  int64_t number;
  return dibs__mf_whole(at, &number) && number >= 0 && number < DIBS__MF_EXACT - 1;
}

/* {"_id":7} */
void dibs__mf_show(const bson_t *document, char to[DIBS__MONGO_SHOWN]) {
  bson_iter_t at;
  bson_t id = BSON_INITIALIZER;
  if (dibs__mf_find(document, "_id", &at)) bson_append_iter(&id, "_id", -1, &at);
  char *json = bson_as_relaxed_extended_json(&id, NULL);
  snprintf(to, DIBS__MONGO_SHOWN, "%s", json ? json : "{}");
  bson_free(json);
  bson_destroy(&id);
}

/* ---- Keys, as people write them ---- */

bool dibs__mf_is_number(dibs__str text, int64_t *number) {
  char copy[24], *end;
  size_t from = text.len > 1 && text.p[0] == '-';
  if (text.len == from || text.len > 19 + from || (text.p[from] == '0' && (text.len > from + 1 || from))) return false;
  for (size_t i = from; i < text.len; i++)
    if (text.p[i] < '0' || text.p[i] > '9') return false;
  memcpy(copy, text.p, text.len);
  copy[text.len] = '\0';
  *number = strtoll(copy, &end, 10);
  return dibs__str_is_number(dibs__str_of(copy + from, text.len - from),
                             from ? (uint64_t)0 - (uint64_t)*number : (uint64_t)*number);
}

static bool text_is_oid(dibs__str text, bson_oid_t *oid) {
  char copy[25];
  if (text.len != 24) return false;
  for (size_t i = 0; i < 24; i++)
    if (!strchr("0123456789abcdef", text.p[i]) || !text.p[i]) return false;
  memcpy(copy, text.p, 24);
  copy[24] = '\0';
  bson_oid_init_from_string(oid, copy);
  return true;
}

uint32_t dibs__mf_types_of(dibs__str key) {
  int64_t number;
  bson_oid_t oid;
  uint32_t types = bson_utf8_validate(key.p, key.len, false) ? DIBS__MF_TEXT : 0;
  if (dibs__mf_is_number(key, &number)) types |= DIBS__MF_NUMBER;
  if (text_is_oid(key, &oid)) types |= DIBS__MF_OID;
  return types;
}

/* A key of one type, as the field `name`. */
bool dibs__mf_put_key(bson_t *to, const char *name, dibs__str key, uint32_t type) {
  int64_t number;
  bson_oid_t oid;
  if (!(dibs__mf_types_of(key) & type)) return false;
  if (type == DIBS__MF_NUMBER) return dibs__mf_is_number(key, &number) && bson_append_int64(to, name, -1, number);
  if (type == DIBS__MF_OID) return text_is_oid(key, &oid) && bson_append_oid(to, name, -1, &oid);
  return bson_append_utf8(to, name, -1, key.p, (int)key.len);
}

uint32_t dibs__mf_type_of(char letter) {
  return letter == 'n' ? DIBS__MF_NUMBER : letter == 't' ? DIBS__MF_TEXT : letter == 'o' ? DIBS__MF_OID : 0;
}

bool dibs__mf_put_types(bson_t *to, const char *field, uint32_t types) {
  bson_t part, list;
  bool fine = BSON_APPEND_DOCUMENT_BEGIN(to, field, &part) && BSON_APPEND_ARRAY_BEGIN(&part, "$type", &list);
  if (types & DIBS__MF_NUMBER) fine = fine && BSON_APPEND_UTF8(&list, "0", "number");
  if (types & DIBS__MF_TEXT) fine = fine && BSON_APPEND_UTF8(&list, "1", "string");
  if (types & DIBS__MF_OID) fine = fine && BSON_APPEND_UTF8(&list, "2", "objectId");
  return fine && bson_append_array_end(&part, &list) && bson_append_document_end(to, &part);
}

bson_t *dibs__mf_or_none(bson_t *made, bool fine) {
  if (fine) return made;
  bson_destroy(made);
  return NULL;
}

bson_t *dibs__mf_filter_same(const table_t *t, dibs__str key) {
  bson_t *made = bson_new(), part, list;
  uint32_t types = dibs__mf_types_of(key);
  bool fine = BSON_APPEND_DOCUMENT_BEGIN(made, t->key, &part) && BSON_APPEND_ARRAY_BEGIN(&part, "$in", &list);
  if (types & DIBS__MF_NUMBER) fine = fine && dibs__mf_put_key(&list, "0", key, DIBS__MF_NUMBER);
  if (types & DIBS__MF_TEXT) fine = fine && dibs__mf_put_key(&list, "1", key, DIBS__MF_TEXT);
  if (types & DIBS__MF_OID) fine = fine && dibs__mf_put_key(&list, "2", key, DIBS__MF_OID);
  fine = fine && bson_append_array_end(&part, &list) && bson_append_document_end(made, &part);
  return dibs__mf_or_none(made, fine);
}

bson_t *dibs__mf_filter_type(const table_t *t, uint32_t types) {
  bson_t *made = bson_new();
  return dibs__mf_or_none(made, dibs__mf_put_types(made, t->key, types));
}

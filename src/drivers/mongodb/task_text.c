/* SPDX-License-Identifier: MIT */
/*
 * Tasks in the user's own collections: filters, updates, and what the documents say.
 *
 * Documents have any content.  So each filter checks the types itself, by an expression that fails for no document.
 * Documents that are no tasks, or have wrong types, are not matched, and do not disturb the others.
 *
 * Expressions are templates, extended JSON with ' for ":
 *
 *   @k @P @L @U @f    names of fields: key, phase, locked_at, updated_at, fence
 *   @0 @1             numbers
 *   @i                the number @1, ms, as a text
 *   @u                how many ms are 1, where instants are numbers
 *
 * An instant is a date, a number, or a text as Date.toISOString() writes it: texts of this very form sort as instants.
 * An instant that dibs writes has the form of the old one, or else of the document's other instant.
 */
#include "drivers/mongodb/mongodb_impl.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct dibs__table table_t;
typedef struct dibs__task_op task_op;
typedef struct dibs__task_item item_t;

#define FREE_FIELD "dibs free" /* no declared field has a space */
#define EXACT_MAX (INT64_C(1) << 53)
enum { ISO_LEN = 24, MS_PER_S = 1000 };

/* ---- Templates ---- */

#define CASE(when, then) "{'case':" when ",'then':" then "}"
#define IF(when, then, otherwise) "{'$cond':[" when "," then "," otherwise "]}"
#define TYPE_IN(f, types) "{'$in':[{'$type':'$" f "'},[" types "]]}"
#define NOTHING "'missing','null'"
#define NUMBERS "'int','long','double'"
/* A number without a fraction that is exact in every type. */
#define WHOLE(f)                                                                                                       \
  IF(TYPE_IN(f, "'int','long'"), "true",                                                                               \
     IF(TYPE_IN(f, "'double'"),                                                                                        \
        "{'$and':[{'$gt':['$" f "',-9007199254740992]},{'$lt':['$" f "',9007199254740992]},"                           \
        "{'$eq':[{'$trunc':['$" f "']},'$" f "']}]}",                                                                  \
        "false"))
#define TEXT_FORMAT "'%Y-%m-%dT%H:%M:%S.%LZ'"
#define IS_TEXT(f)                                                                                                     \
  "{'$and':[{'$eq':[{'$strLenBytes':'$" f "'},24]},{'$regexMatch':{'input':'$" f "',"                                  \
  "'regex':'^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{3}Z'}}]}"
#define WITHOUT_NUL(f) "{'$lt':[{'$indexOfBytes':['$" f "','\\u0000']},0]}"
#define AS_TEXT(date) "{'$dateToString':{'date':" date ",'format':" TEXT_FORMAT "}}"
#define AS_NUMBER(date) "{'$toLong':{'$floor':{'$divide':[{'$toLong':" date "},@u]}}}"

#define KEY_FITS                                                                                                       \
  "{'$switch':{'branches':[" CASE(TYPE_IN("@k", "'objectId'"), "true") "," CASE(                                       \
      TYPE_IN("@k", "'string'"),                                                                                       \
      "{'$and':[{'$gt':['$@k','']}," WITHOUT_NUL("@k") "]}") "],'default':" WHOLE("@k") "}}"
#define PHASE_FITS IF(TYPE_IN("@P", "'string'"), WITHOUT_NUL("@P"), "false")
#define FENCE_FITS                                                                                                     \
  IF(TYPE_IN("@f", NOTHING), "true",                                                                                   \
     IF(WHOLE("@f"), "{'$and':[{'$gte':['$@f',0]},{'$lt':['$@f',9007199254740991]}]}", "false"))
#define LOCKED_FITS                                                                                                    \
  "{'$switch':{'branches':[" CASE(TYPE_IN("@L", NOTHING ",'date'"), "true") "," CASE(                                  \
      TYPE_IN("@L", "'string'"), IS_TEXT("@L")) "],"                                                                   \
                                                "'default':" WHOLE("@L") "}}"
/* Not after the server's clock less so many ms. */
#define THEN(ms) "{'$subtract':['$$NOW'," ms "]}"
#define IS_BEFORE(f, ms)                                                                                               \
  "{'$switch':{'branches':[" CASE(TYPE_IN(f, NOTHING), "true") "," CASE(                                               \
      TYPE_IN(f, "'date'"),                                                                                            \
      "{'$lte':['$" f "'," THEN(ms) "]}") "," CASE(TYPE_IN(f, "'string'"),                                             \
                                                   IF(IS_TEXT(f), "{'$lte':['$" f "'," AS_TEXT(THEN(ms)) "]}",         \
                                                      "false")) "," CASE(WHOLE(f),                                     \
                                                                         "{'$lte':['$" f                               \
                                                                         "',{'$divide':[{'$toLong':" THEN(             \
                                                                             ms) "},@u]}]}") "],"                      \
                                                                                             "'default':false}}"
/* The same without the types, for an index on locked_at: at least what is before @1. */
#define ABOUT_BEFORE                                                                                                   \
  "[{'@L':{'$not':{'$gt':{'$date':{'$numberLong':'@1'}}}}},{'@L':{'$not':{'$gt':'@i'}}},"                              \
  "{'@L':{'$not':{'$gt':{'$numberLong':'@2'}}}}]"
#define FITS KEY_FITS "," PHASE_FITS "," FENCE_FITS "," LOCKED_FITS

/* `date` in the form of the field `f`, or else of the field `g`. */
#define IN_FORM(f, g, date)                                                                                            \
  "{'$switch':{'branches':[" CASE(TYPE_IN(f, "'date'"), date) "," CASE(                                                \
      TYPE_IN(f, "'string'"),                                                                                          \
      AS_TEXT(date)) "," CASE(TYPE_IN(f, NUMBERS),                                                                     \
                              AS_NUMBER(date)) "," CASE(TYPE_IN(g, "'string'"),                                        \
                                                        AS_TEXT(date)) "," CASE(TYPE_IN(g, NUMBERS),                   \
                                                                                AS_NUMBER(date)) "],'default':" date   \
                                                                                                 "}}"
#define SET_LOCKED(date) "'@L':" IN_FORM("@L", "@U", date)
#define SET_UPDATED "'@U':" IN_FORM("@U", "@L", "'$$NOW'")
#define NEVER "{'$date':{'$numberLong':'0'}}"

static void iso_of(int64_t ms, char to[ISO_LEN + 1]) {
  struct tm tm;
  time_t s = (time_t)(ms / MS_PER_S - (ms % MS_PER_S < 0));
  unsigned rest = (unsigned)(ms - (int64_t)s * MS_PER_S);
  if (!gmtime_r(&s, &tm) || tm.tm_year < -1900 || tm.tm_year > 9999 - 1900) tm = (struct tm){.tm_mday = 1};
  snprintf(to, ISO_LEN + 1, "%04u-%02u-%02uT%02u:%02u:%02u.%03uZ", (unsigned)(tm.tm_year + 1900) % 10000,
           (unsigned)(tm.tm_mon + 1) % 100, (unsigned)tm.tm_mday % 100, (unsigned)tm.tm_hour % 100,
           (unsigned)tm.tm_min % 100, (unsigned)tm.tm_sec % 100, rest % MS_PER_S);
}

static int64_t unit_of(const table_t *t) {
  return t->time_unit == DIBS__TIME_S ? MS_PER_S : 1;
}

static void put_word(FILE *to, const table_t *t, char word, const int64_t numbers[2]) {
  char iso[ISO_LEN + 1];
  switch (word) {
  case 'k':
    fputs(t->key, to);
    return;
  case 'P':
    fputs(t->phase, to);
    return;
  case 'L':
    fputs(t->locked_at, to);
    return;
  case 'U':
    fputs(t->updated_at, to);
    return;
  case 'f':
    fputs(t->fence, to);
    return;
  case 'i':
    iso_of(numbers[1], iso);
    fputs(iso, to);
    return;
  case 'u':
    fprintf(to, "%" PRId64, unit_of(t));
    return;
  case '2': /* the number @1 in units, rounded up */
    fprintf(to, "%" PRId64, numbers[1] / unit_of(t) + 1);
    return;
  default:
    assert(word == '0' || word == '1');
    fprintf(to, "%" PRId64, numbers[word - '0']);
  }
}

static void put_template(FILE *to, const table_t *t, const char *template, const int64_t numbers[2]) {
  for (const char *at = template; *at; at++) {
    if (*at == '@')
      put_word(to, t, *++at, numbers);
    else
      fputc(*at == '\'' ? '"' : *at, to);
  }
}

/* Of several templates, one behind the other; NULL at the end. */
static bson_t *expand(const table_t *t, const char *const templates[], int64_t first, int64_t second) {
  const int64_t numbers[] = {first, second};
  char *text = NULL;
  size_t size = 0;
  bson_error_t error;
  FILE *to = open_memstream(&text, &size);
  if (!to) return NULL;
  for (; *templates; templates++) put_template(to, t, *templates, numbers);
  bool failed = ferror(to) != 0;
  bson_t *made = fclose(to) == 0 && !failed ? bson_new_from_json((const uint8_t *)text, (ssize_t)size, &error) : NULL;
  free(text);
  return made;
}

static bson_t *expand_one(const table_t *t, const char *template, int64_t first, int64_t second) {
  const char *const templates[] = {template, NULL};
  return expand(t, templates, first, second);
}

/* ---- Keys and instants, as text ---- */

static bool whole_number(const bson_iter_t *at, int64_t *number) {
  if (BSON_ITER_HOLDS_DOUBLE(at)) {
    double d = bson_iter_double(at);
    if (!(d > -(double)EXACT_MAX && d < (double)EXACT_MAX)) return false;
    *number = (int64_t)d;
    return (double)*number == d;
  }
  if (!BSON_ITER_HOLDS_INT32(at) && !BSON_ITER_HOLDS_INT64(at)) return false;
  *number = bson_iter_as_int64(at);
  return true;
}

static dibs__str text_at(const bson_iter_t *at) {
  uint32_t len = 0;
  const char *text = bson_iter_utf8(at, &len);
  return dibs__str_of(text, len);
}

/* The letter of its type: o, t, n; 0: it is none. */
static char key_at(const bson_iter_t *at, struct dibs__mongo_task *task) {
  int64_t number;
  if (BSON_ITER_HOLDS_OID(at)) {
    char hex[25];
    bson_oid_to_string(bson_iter_oid(at), hex);
    memcpy(task->key_text, hex, sizeof hex);
    task->key = dibs__str_of(task->key_text, 24);
    return 'o';
  }
  if (BSON_ITER_HOLDS_UTF8(at)) {
    task->key = text_at(at);
    return task->key.len > 0 && !memchr(task->key.p, 0, task->key.len) ? 't' : '\0';
  }
  if (!whole_number(at, &number)) return '\0';
  task->key = dibs__str_of(task->key_text, (size_t)snprintf(task->key_text, sizeof task->key_text, "%" PRId64, number));
  return 'n';
}

static bool iso_ms(dibs__str text, int64_t *ms) {
  static const char form[] = "dddd-dd-ddTdd:dd:dd.dddZ";
  int part[7] = {0};
  size_t nth = 0;
  if (text.len != ISO_LEN) return false;
  for (size_t i = 0; i < ISO_LEN; i++) {
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

/* The letter of its type: d, t, n; 0: it is none. */
static char instant_at(const table_t *t, const bson_iter_t *at, int64_t *ms) {
  *ms = 0;
  if (BSON_ITER_HOLDS_DATE_TIME(at)) {
    *ms = bson_iter_date_time(at);
    return 'd';
  }
  if (BSON_ITER_HOLDS_UTF8(at)) return iso_ms(text_at(at), ms) ? 't' : '\0';
  if (!whole_number(at, ms) || __builtin_mul_overflow(*ms, unit_of(t), ms)) return '\0';
  return 'n';
}

static bool find(const bson_t *document, const char *field, bson_iter_t *at) {
  return bson_iter_init_find(at, document, field);
}

static bool is_nothing(const bson_t *document, const char *field) {
  bson_iter_t at;
  return !find(document, field, &at) || BSON_ITER_HOLDS_NULL(&at);
}

bool dibs__mt_read(const table_t *t, const bson_t *document, struct dibs__mongo_task *task) {
  bson_iter_t at;
  int64_t fence = 0;
  char letter;
  *task = (struct dibs__mongo_task){.free = false};
  if (!find(document, t->key, &at) || !(letter = key_at(&at, task))) return false;
  if (!find(document, t->phase, &at) || !BSON_ITER_HOLDS_UTF8(&at)) return false;
  task->phase = text_at(&at);
  if (!is_nothing(document, t->fence) && (!find(document, t->fence, &at) || !whole_number(&at, &fence) || fence < 0))
    return false;
  task->fence.v = (uint64_t)fence;
  if (!is_nothing(document, t->locked_at)) {
    char form = find(document, t->locked_at, &at) ? instant_at(t, &at, &task->locked_ms) : '\0';
    if (!form) return false;
    snprintf(task->locked, sizeof task->locked, "%c%c%" PRId64, letter, form, task->locked_ms / unit_of(t));
    if (form != 'n') snprintf(task->locked, sizeof task->locked, "%c%c%" PRId64, letter, form, task->locked_ms);
  }
  if (!find(document, t->updated_at, &at) || !instant_at(t, &at, &task->updated_ms)) task->updated_ms = 0;
  task->free = find(document, FREE_FIELD, &at) && bson_iter_as_bool(&at);
  return true;
}

/* {"_id":7} */
static void show_document(const bson_t *document, char to[DIBS__MONGO_SHOWN]) {
  bson_iter_t at;
  bson_t id = BSON_INITIALIZER;
  if (find(document, "_id", &at)) bson_append_iter(&id, "_id", -1, &at);
  char *json = bson_as_relaxed_extended_json(&id, NULL);
  snprintf(to, DIBS__MONGO_SHOWN, "%s", json ? json : "{}");
  bson_free(json);
  bson_destroy(&id);
}

static bool is_odd(const bson_t *document, const char *field, bool may_be_nothing, bool (*fits)(const bson_iter_t *)) {
  bson_iter_t at;
  if (is_nothing(document, field)) return !may_be_nothing;
  return !find(document, field, &at) || !fits(&at);
}
static bool fits_key(const bson_iter_t *at) {
  struct dibs__mongo_task task;
  return key_at(at, &task) != '\0';
}
static bool fits_phase(const bson_iter_t *at) {
  dibs__str text = BSON_ITER_HOLDS_UTF8(at) ? text_at(at) : (dibs__str){0};
  return text.p && !memchr(text.p, 0, text.len);
}
static bool fits_fence(const bson_iter_t *at) {
  int64_t number;
  return whole_number(at, &number) && number >= 0 && number < EXACT_MAX - 1;
}

void dibs__mt_explain(const table_t *t, const bson_t *document, char *why, size_t size) {
  char shown[DIBS__MONGO_SHOWN];
  const char *field = t->locked_at, *must = "a date, a whole number, or a text like 2026-01-02T03:04:05.006Z";
  show_document(document, shown);
  if (is_odd(document, t->key, false, fits_key)) {
    field = t->key;
    must = "an ObjectId, a text, or a whole number";
  } else if (is_odd(document, t->phase, false, fits_phase)) {
    field = t->phase;
    must = "a text";
  } else if (is_odd(document, t->fence, true, fits_fence)) {
    field = t->fence;
    must = "a whole number from 0 to 2^53";
  }
  snprintf(why, size, "%.44s of \"%.30s\" is never claimed: \"%.20s\" is not %s", shown, t->table, field, must);
}

void dibs__mt_explain_refused(const table_t *t, const bson_t *document, const char *reason, char *why, size_t size) {
  char shown[DIBS__MONGO_SHOWN];
  show_document(document, shown);
  snprintf(why, size, "%.44s of \"%.30s\" can't be claimed: %.90s", shown, t->table, reason);
}

/* ---- Filters ---- */

static bool put_phases(bson_t *filter, const table_t *t, const dibs__str *phases, uint32_t count, bool any_type) {
  bson_t part, list;
  char index[12];
  const char *at;
  if (!BSON_APPEND_DOCUMENT_BEGIN(filter, t->phase, &part)) return false;
  if (count > 0) {
    BSON_APPEND_ARRAY_BEGIN(&part, "$in", &list);
    for (uint32_t i = 0; i < count; i++) {
      bson_uint32_to_string(i, &at, index, sizeof index);
      if (!bson_append_utf8(&list, at, -1, phases[i].len ? phases[i].p : "", (int)phases[i].len)) return false;
    }
    bson_append_array_end(&part, &list);
  } else if (any_type) {
    BSON_APPEND_NULL(&part, "$ne");
  } else {
    BSON_APPEND_UTF8(&part, "$type", "string");
  }
  return bson_append_document_end(filter, &part);
}

static bson_t *or_none(bson_t *made, bool fine) {
  if (fine) return made;
  bson_destroy(made);
  return NULL;
}

bson_t *dibs__mt_filter(const task_op *op, enum dibs__mt_which which, int64_t latest_ms) {
  static const char *const texts[] = {
      [DIBS__MT_FREE] = "{'$and':" ABOUT_BEFORE ",'$expr':{'$and':[" KEY_FITS "," PHASE_FITS "," FENCE_FITS
                        "," IS_BEFORE("@L", "@0") "]}}",
      [DIBS__MT_FIT] = "{'$expr':{'$and':[" FITS "]}}",
      [DIBS__MT_ODD] = "{'$expr':{'$not':[{'$and':[" FITS "]}]}}",
  };
  bson_t *made = expand_one(op->table, texts[which], op->timeout_ms, latest_ms - op->timeout_ms);
  if (!made) return NULL;
  return or_none(made, put_phases(made, op->table, op->phases, op->phase_count, which == DIBS__MT_ODD));
}

static bool text_is_number(dibs__str text, int64_t *number) {
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

uint32_t dibs__mt_types_of(dibs__str key) {
  int64_t number;
  bson_oid_t oid;
  uint32_t types = bson_utf8_validate(key.p, key.len, false) ? DIBS__MT_TEXT : 0;
  if (text_is_number(key, &number)) types |= DIBS__MT_NUMBER;
  if (text_is_oid(key, &oid)) types |= DIBS__MT_OID;
  return types;
}

/* A key of one type, as the field `name`. */
static bool put_key(bson_t *to, const char *name, dibs__str key, uint32_t type) {
  int64_t number;
  bson_oid_t oid;
  if (!(dibs__mt_types_of(key) & type)) return false;
  if (type == DIBS__MT_NUMBER) return text_is_number(key, &number) && bson_append_int64(to, name, -1, number);
  if (type == DIBS__MT_OID) return text_is_oid(key, &oid) && bson_append_oid(to, name, -1, &oid);
  return bson_append_utf8(to, name, -1, key.p, (int)key.len);
}

static uint32_t type_of_letter(char letter) {
  return letter == 'n' ? DIBS__MT_NUMBER : letter == 't' ? DIBS__MT_TEXT : letter == 'o' ? DIBS__MT_OID : 0;
}

uint32_t dibs__mt_type_in(const table_t *t, const bson_t *document) {
  struct dibs__mongo_task task;
  bson_iter_t at;
  return find(document, t->key, &at) ? type_of_letter(key_at(&at, &task)) : 0;
}

/* The type of the key, in the proof of a claim; 0: it is none. */
static uint32_t proof_type(const item_t *item) {
  return item->locked.len > 2 && item->locked.len < DIBS__MONGO_PROOF ? type_of_letter(item->locked.p[0]) : 0;
}

/* Exactly this value: not an array that contains it. */
static bool put_locked(bson_t *to, const item_t *item) {
  char iso[ISO_LEN + 1];
  bson_t no;
  int64_t value;
  dibs__str digits = dibs__str_of(item->locked.p + 2, item->locked.len - 2);
  if (!text_is_number(digits, &value)) return false;
  bool fine = true;
  switch (item->locked.p[1]) {
  case 'd':
    fine = BSON_APPEND_DATE_TIME(to, "$eq", value);
    break;
  case 't':
    iso_of(value, iso);
    fine = BSON_APPEND_UTF8(to, "$eq", iso);
    break;
  case 'n':
    fine = BSON_APPEND_INT64(to, "$eq", value);
    break;
  default:
    return false;
  }
  return fine && BSON_APPEND_DOCUMENT_BEGIN(to, "$not", &no) && BSON_APPEND_UTF8(&no, "$type", "array") &&
         bson_append_document_end(to, &no);
}

bson_t *dibs__mt_filter_key(const table_t *t, const item_t *item) {
  uint32_t type = proof_type(item);
  bson_t *made = bson_new();
  return or_none(made, type && put_key(made, t->key, item->key, type));
}

bson_t *dibs__mt_filter_item(const table_t *t, const item_t *item) {
  bson_t *made = dibs__mt_filter_key(t, item), part;
  if (!made) return NULL;
  bool fine = BSON_APPEND_INT64(made, t->fence, (int64_t)item->fence.v) &&
              BSON_APPEND_DOCUMENT_BEGIN(made, t->locked_at, &part);
  bool fits = fine && put_locked(&part, item);
  if (fine) bson_append_document_end(made, &part);
  return or_none(made, fits);
}

static bool put_types(bson_t *to, const char *field, uint32_t types) {
  bson_t part, list;
  bool fine = BSON_APPEND_DOCUMENT_BEGIN(to, field, &part) && BSON_APPEND_ARRAY_BEGIN(&part, "$type", &list);
  if (types & DIBS__MT_NUMBER) fine = fine && BSON_APPEND_UTF8(&list, "0", "number");
  if (types & DIBS__MT_TEXT) fine = fine && BSON_APPEND_UTF8(&list, "1", "string");
  if (types & DIBS__MT_OID) fine = fine && BSON_APPEND_UTF8(&list, "2", "objectId");
  return fine && bson_append_array_end(&part, &list) && bson_append_document_end(to, &part);
}

bson_t *dibs__mt_filter_type(const table_t *t, uint32_t types) {
  bson_t *made = bson_new();
  return or_none(made, put_types(made, t->key, types));
}

bson_t *dibs__mt_filter_same(const table_t *t, dibs__str key) {
  bson_t *made = bson_new(), part, list;
  uint32_t types = dibs__mt_types_of(key);
  bool fine = BSON_APPEND_DOCUMENT_BEGIN(made, t->key, &part) && BSON_APPEND_ARRAY_BEGIN(&part, "$in", &list);
  if (types & DIBS__MT_NUMBER) fine = fine && put_key(&list, "0", key, DIBS__MT_NUMBER);
  if (types & DIBS__MT_TEXT) fine = fine && put_key(&list, "1", key, DIBS__MT_TEXT);
  if (types & DIBS__MT_OID) fine = fine && put_key(&list, "2", key, DIBS__MT_OID);
  fine = fine && bson_append_array_end(&part, &list) && bson_append_document_end(made, &part);
  return or_none(made, fine);
}

/* Behind a key: larger ones of its type, and those of the types that MongoDB sorts behind this one. */
static bool put_after(bson_t *filter, const table_t *t, dibs__str after, uint32_t type) {
  bson_t list, one, range;
  uint32_t later = type == DIBS__MT_NUMBER ? DIBS__MT_TEXT | DIBS__MT_OID : type == DIBS__MT_TEXT ? DIBS__MT_OID : 0;
  bool fine = BSON_APPEND_ARRAY_BEGIN(filter, "$or", &list) && BSON_APPEND_DOCUMENT_BEGIN(&list, "0", &one) &&
              BSON_APPEND_DOCUMENT_BEGIN(&one, t->key, &range) && put_key(&range, "$gt", after, type) &&
              bson_append_document_end(&one, &range) && bson_append_document_end(&list, &one);
  if (later)
    fine = fine && BSON_APPEND_DOCUMENT_BEGIN(&list, "1", &one) && put_types(&one, t->key, later) &&
           bson_append_document_end(&list, &one);
  return fine && bson_append_array_end(filter, &list);
}

static bool put_listed_key(bson_t *filter, const table_t *t, dibs__str key) {
  bson_t *same = dibs__mt_filter_same(t, key), list;
  bool fine = same && BSON_APPEND_ARRAY_BEGIN(filter, "$and", &list) && BSON_APPEND_DOCUMENT(&list, "0", same) &&
              bson_append_array_end(filter, &list);
  bson_destroy(same);
  return fine;
}

bson_t *dibs__mt_filter_list(const task_op *op, uint32_t after_type) {
  const struct dibs__task_filter *f = &op->filter;
  bool claimed = !f->states || f->states & 1u << DIBS__TASK_CLAIMED,
       ready = !f->states || f->states & 1u << DIBS__TASK_READY;
  const char *const templates[] = {
      "{'$expr':{'$and':[" FITS,
      claimed ? "" : "," IS_BEFORE("@L", "@0"),
      ready ? "" : ",{'$not':[" IS_BEFORE("@L", "@0") "]}",
      f->older_ms > 0 ? "," TYPE_IN("@U", "'date','string'," NUMBERS) "," IS_BEFORE("@U", "@1") : "",
      "]}}",
      NULL};
  bson_t *made = expand(op->table, templates, op->timeout_ms, f->older_ms);
  bool fine = made && put_phases(made, op->table, &f->phase, f->phase.len > 0, false);
  if (f->key.len) fine = fine && put_listed_key(made, op->table, f->key);
  if (after_type) fine = fine && put_after(made, op->table, f->after_key, after_type);
  return or_none(made, fine);
}

/* ---- Updates ---- */

bson_t *dibs__mt_claim(const table_t *t) {
  return expand_one(
      t,
      "{'0':{'$set':{" SET_LOCKED("'$$NOW'") ",'@f':" IF(TYPE_IN("@f", NOTHING), "{'$numberLong':'1'}",
                                                         "{'$add':[{'$toLong':'$@f'},{'$numberLong':'1'}]}") "}}}",
      0, 0);
}

static bool put_phase(bson_t *pipeline, const table_t *t, dibs__str phase) {
  bson_t stage, set, literal;
  return BSON_APPEND_DOCUMENT_BEGIN(pipeline, "1", &stage) && BSON_APPEND_DOCUMENT_BEGIN(&stage, "$set", &set) &&
         BSON_APPEND_DOCUMENT_BEGIN(&set, t->phase, &literal) &&
         bson_append_utf8(&literal, "$literal", -1, phase.p, (int)phase.len) &&
         bson_append_document_end(&set, &literal) && bson_append_document_end(&stage, &set) &&
         bson_append_document_end(pipeline, &stage);
}

bson_t *dibs__mt_change(const task_op *op, const item_t *item) {
  bool extends = op->op.verb == DIBS__TASK_EXTEND;
  bool waits = !extends && (item->verdict == DIBS__TASK_END_WAIT || item->verdict == DIBS__TASK_END_FAIL);
  bool steps = item->phase.len > 0 || (!extends && item->verdict == DIBS__TASK_END_NEXT);
  static const char *const texts[3][2] = {
      {"{'0':{'$set':{" SET_LOCKED("'$$NOW'") "}}}", "{'0':{'$set':{" SET_LOCKED("'$$NOW'") "," SET_UPDATED "}}}"},
      {"{'0':{'$set':{" SET_LOCKED("{'$add':['$$NOW',@0]}") "}}}",
       "{'0':{'$set':{" SET_LOCKED("{'$add':['$$NOW',@0]}") "," SET_UPDATED "}}}"},
      {"{'0':{'$set':{" SET_LOCKED(NEVER) "}}}", "{'0':{'$set':{" SET_LOCKED(NEVER) "," SET_UPDATED "}}}"}};
  bson_t *made = expand_one(op->table,
                            texts[extends ? 0
                                  : waits ? 1
                                          : 2][steps],
                            waits ? item->delay_ms - op->timeout_ms : 0, 0);
  if (!made) return NULL;
  return or_none(made, item->phase.len == 0 || put_phase(made, op->table, item->phase));
}

/* ---- What is read, and in which order ---- */

bson_t *dibs__mt_fields(const task_op *op) {
  bool lists = op->op.verb == DIBS__TASK_LIST;
  const char *const templates[] = {"{'@k':1,'@P':1,'@L':1,'@U':1,'@f':1",
                                   lists ? ",'" FREE_FIELD "':" IS_BEFORE("@L", "@0") : "", "}", NULL};
  return expand(op->table, templates, op->timeout_ms, 0);
}

bson_t *dibs__mt_sort(const table_t *t, bool by_key) {
  return expand_one(t, by_key ? "{'@k':1}" : "{'@L':1,'@U':1}", 0, 0);
}

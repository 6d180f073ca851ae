/* SPDX-License-Identifier: MIT */
/*
 * Tasks in the user's own collections: filters, updates, and what the documents say.
 *
 * Documents have any content.  So each filter checks the types itself, by an expression that fails for no document.
 * Documents that are no tasks, or have wrong types, are not matched, and do not disturb the others.
 *
 * An instant is a date, a number, or a text as Date.toISOString() writes it: texts of this very form sort as instants.
 * An instant that dibs writes has the form of the old one, or else of the document's other instant.
 */
#include "drivers/mongodb/field_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dibs__table table_t;
typedef struct dibs__task_op task_op;
typedef struct dibs__task_item item_t;

#define FREE_FIELD "dibs free" /* no declared field has a space */

/* ---- Templates ---- */

#define TEXT_FORMAT "'%Y-%m-%dT%H:%M:%S.%LZ'"
#define IS_TEXT(f)                                                                                                     \
  "{'$and':[{'$eq':[{'$strLenBytes':'$" f "'},24]},{'$regexMatch':{'input':'$" f "',"                                  \
  "'regex':'^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{3}Z'}}]}"
#define AS_TEXT(date) "{'$dateToString':{'date':" date ",'format':" TEXT_FORMAT "}}"
#define AS_NUMBER(date) "{'$toLong':{'$floor':{'$divide':[{'$toLong':" date "},@u]}}}"

#define KEY_FITS                                                                                                       \
  "{'$switch':{'branches':[" CASE(TYPE_IN("@k", "'objectId'"), "true") "," CASE(                                       \
      TYPE_IN("@k", "'string'"),                                                                                       \
      "{'$and':[{'$gt':['$@k','']}," WITHOUT_NUL("@k") "]}") "],'default':" WHOLE("@k") "}}"
#define PHASE_FITS IF(TYPE_IN("@P", "'string'"), WITHOUT_NUL("@P"), "false")
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

/* ---- Keys and instants, as text ---- */

/* The letter of its type: d, t, n; 0: it is none. */
static char instant_at(const table_t *t, const bson_iter_t *at, int64_t *ms) {
  *ms = 0;
  if (BSON_ITER_HOLDS_DATE_TIME(at)) {
    *ms = bson_iter_date_time(at);
    return 'd';
  }
  if (BSON_ITER_HOLDS_UTF8(at)) return dibs__mf_iso_ms(dibs__mf_text(at), ms) ? 't' : '\0';
  if (!dibs__mf_whole(at, ms) || __builtin_mul_overflow(*ms, dibs__mf_unit(t), ms)) return '\0';
  return 'n';
}

/* Sums with an age or a timeout fit. */
static int64_t bounded(int64_t ms) {
  return ms > DIBS__MF_EXACT ? DIBS__MF_EXACT : ms < -DIBS__MF_EXACT ? -DIBS__MF_EXACT : ms;
}

bool dibs__mt_read_lock(const table_t *t, const bson_t *document, struct dibs__mongo_task *task) {
  bson_iter_t at;
  int64_t ms = 0;
  char letter;
  *task = (struct dibs__mongo_task){.free = false};
  if (!dibs__mf_find(document, t->key, &at) || !(letter = dibs__mf_key(&at, task->key_text, &task->key))) return false;
  if (dibs__mf_is_nothing(document, t->locked_at)) return true;
  char form = dibs__mf_find(document, t->locked_at, &at) ? instant_at(t, &at, &ms) : '\0';
  if (!form) return false;
  snprintf(task->locked, sizeof task->locked, "%c%c%" PRId64, letter, form, form == 'n' ? ms / dibs__mf_unit(t) : ms);
  task->locked_ms = bounded(ms);
  return true;
}

bool dibs__mt_read(const table_t *t, const bson_t *document, struct dibs__mongo_task *task) {
  bson_iter_t at;
  int64_t fence = 0;
  if (!dibs__mt_read_lock(t, document, task)) return false;
  if (!dibs__mf_find(document, t->phase, &at) || !BSON_ITER_HOLDS_UTF8(&at)) return false;
  task->phase = dibs__mf_text(&at);
  if (!dibs__mf_is_nothing(document, t->fence) &&
      (!dibs__mf_find(document, t->fence, &at) || !dibs__mf_whole(&at, &fence) || fence < 0))
    return false;
  task->fence.v = (uint64_t)fence;
  if (!dibs__mf_find(document, t->updated_at, &at) || !instant_at(t, &at, &task->updated_ms)) task->updated_ms = 0;
  task->updated_ms = bounded(task->updated_ms);
  task->free = dibs__mf_find(document, FREE_FIELD, &at) && bson_iter_as_bool(&at);
  return true;
}

static bool is_odd(const bson_t *document, const char *field, bool may_be_nothing, bool (*fits)(const bson_iter_t *)) {
  bson_iter_t at;
  if (dibs__mf_is_nothing(document, field)) return !may_be_nothing;
  return !dibs__mf_find(document, field, &at) || !fits(&at);
}
static bool fits_key(const bson_iter_t *at) {
  char memory[DIBS__MF_KEY];
  dibs__str key;
  return dibs__mf_key(at, memory, &key) != '\0';
}
static bool fits_phase(const bson_iter_t *at) {
  dibs__str text = BSON_ITER_HOLDS_UTF8(at) ? dibs__mf_text(at) : (dibs__str){0};
  return text.p && !memchr(text.p, 0, text.len);
}

void dibs__mt_explain(const table_t *t, const bson_t *document, char *why, size_t size) {
  char shown[DIBS__MONGO_SHOWN];
  const char *field = t->locked_at, *must = "a date, a whole number, or a text like 2026-01-02T03:04:05.006Z";
  dibs__mf_show(document, shown);
  if (is_odd(document, t->key, false, fits_key)) {
    field = t->key;
    must = "an ObjectId, a text, or a whole number";
  } else if (is_odd(document, t->phase, false, fits_phase)) {
    field = t->phase;
    must = "a text";
  } else if (is_odd(document, t->fence, true, dibs__mf_fits_fence)) {
    field = t->fence;
    must = "a whole number from 0 to 2^53";
  }
  snprintf(why, size, "%.44s of \"%.30s\" is never claimed: \"%.20s\" is not %s", shown, t->table, field, must);
}

void dibs__mt_explain_refused(const table_t *t, const bson_t *document, const char *reason, char *why, size_t size) {
  char shown[DIBS__MONGO_SHOWN];
  dibs__mf_show(document, shown);
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

bson_t *dibs__mt_filter(const task_op *op, enum dibs__mt_which which, int64_t latest_ms) {
  static const char *const texts[] = {
      [DIBS__MT_FREE] = "{'$and':" ABOUT_BEFORE ",'$expr':{'$and':[" KEY_FITS "," PHASE_FITS "," FENCE_FITS
                        "," IS_BEFORE("@L", "@0") "]}}",
      [DIBS__MT_FIT] = "{'$expr':{'$and':[" FITS "]}}",
      [DIBS__MT_ODD] = "{'$expr':{'$not':[{'$and':[" FITS "]}]}}",
  };
  bson_t *made = dibs__mf_expand_one(op->table, texts[which], op->timeout_ms, latest_ms - op->timeout_ms);
  if (!made) return NULL;
  return dibs__mf_or_none(made, put_phases(made, op->table, op->phases, op->phase_count, which == DIBS__MT_ODD));
}

uint32_t dibs__mt_type_in(const table_t *t, const bson_t *document) {
  struct dibs__mongo_task task;
  bson_iter_t at;
  return dibs__mf_find(document, t->key, &at) ? dibs__mf_type_of(dibs__mf_key(&at, task.key_text, &task.key)) : 0;
}

/* The type of the key, in the proof of a claim; 0: it is none. */
static uint32_t proof_type(const item_t *item) {
  return item->locked.len > 2 && item->locked.len < DIBS__MONGO_PROOF ? dibs__mf_type_of(item->locked.p[0]) : 0;
}

/* Exactly this value: not an array that contains it. */
static bool put_locked(bson_t *to, const item_t *item) {
  char iso[DIBS__MF_ISO + 1];
  bson_t no;
  int64_t value;
  dibs__str digits = dibs__str_of(item->locked.p + 2, item->locked.len - 2);
  if (!dibs__mf_is_number(digits, &value)) return false;
  bool fine = true;
  switch (item->locked.p[1]) {
  case 'd':
    fine = BSON_APPEND_DATE_TIME(to, "$eq", value);
    break;
  case 't':
    dibs__mf_iso(value, iso);
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
  return dibs__mf_or_none(made, type && dibs__mf_put_key(made, t->key, item->key, type));
}

bson_t *dibs__mt_filter_item(const table_t *t, const item_t *item) {
  bson_t *made = dibs__mt_filter_key(t, item), part;
  if (!made) return NULL;
  bool fine = BSON_APPEND_INT64(made, t->fence, (int64_t)item->fence.v) &&
              BSON_APPEND_DOCUMENT_BEGIN(made, t->locked_at, &part);
  bool fits = fine && put_locked(&part, item);
  if (fine) bson_append_document_end(made, &part);
  return dibs__mf_or_none(made, fits);
}

/* Behind a key: larger ones of its type, and those of the types that MongoDB sorts behind this one. */
static bool put_after(bson_t *filter, const table_t *t, dibs__str after, uint32_t type) {
  bson_t list, one, range;
  uint32_t later = type == DIBS__MF_NUMBER ? DIBS__MF_TEXT | DIBS__MF_OID : type == DIBS__MF_TEXT ? DIBS__MF_OID : 0;
  bool fine = BSON_APPEND_ARRAY_BEGIN(filter, "$or", &list) && BSON_APPEND_DOCUMENT_BEGIN(&list, "0", &one) &&
              BSON_APPEND_DOCUMENT_BEGIN(&one, t->key, &range) && dibs__mf_put_key(&range, "$gt", after, type) &&
              bson_append_document_end(&one, &range) && bson_append_document_end(&list, &one);
  if (later)
    fine = fine && BSON_APPEND_DOCUMENT_BEGIN(&list, "1", &one) && dibs__mf_put_types(&one, t->key, later) &&
           bson_append_document_end(&list, &one);
  return fine && bson_append_array_end(filter, &list);
}

static bool put_listed_key(bson_t *filter, const table_t *t, dibs__str key) {
  bson_t *same = dibs__mf_filter_same(t, key), list;
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
  bson_t *made = dibs__mf_expand(op->table, templates, op->timeout_ms, f->older_ms);
  bool fine = made && put_phases(made, op->table, &f->phase, f->phase.len > 0, false);
  if (f->key.len) fine = fine && put_listed_key(made, op->table, f->key);
  if (after_type) fine = fine && put_after(made, op->table, f->after_key, after_type);
  return dibs__mf_or_none(made, fine);
}

/* ---- Updates ---- */

bson_t *dibs__mt_claim(const table_t *t) {
  return dibs__mf_expand_one(
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
  bson_t *made = dibs__mf_expand_one(op->table,
                                     texts[extends ? 0
                                           : waits ? 1
                                                   : 2][steps],
                                     waits ? item->delay_ms - op->timeout_ms : 0, 0);
  if (!made) return NULL;
  return dibs__mf_or_none(made, item->phase.len == 0 || put_phase(made, op->table, item->phase));
}

/* ---- What is read, and in which order ---- */

bson_t *dibs__mt_fields(const task_op *op) {
  bool lists = op->op.verb == DIBS__TASK_LIST;
  const char *const templates[] = {"{'@k':1,'@P':1,'@L':1,'@U':1,'@f':1",
                                   lists ? ",'" FREE_FIELD "':" IS_BEFORE("@L", "@0") : "", "}", NULL};
  return dibs__mf_expand(op->table, templates, op->timeout_ms, 0);
}

bson_t *dibs__mt_sort(const table_t *t, bool by_key) {
  return dibs__mf_expand_one(t, by_key ? "{'@k':1}" : "{'@L':1,'@U':1}", 0, 0);
}

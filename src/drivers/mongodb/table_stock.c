/* SPDX-License-Identifier: MIT */
/*
 * Stock in the user's own collections: a document with two numbers, what is used and the limit, and an array of claims:
 *
 *   {_id: KEY, USED: 3, LIMIT: 50, CLAIMS: [{CLAIM: "order-4711", AMOUNT: 3, OWNER: "ann", TIME: date, GIVEN: true}]}
 *
 * A take or give is one findAndModify of this document, whose filter decides, by the content that the document has at
 * that moment: it is not sold twice, whatever other programs do at the same time, and a client that is killed has taken
 * all or nothing.  Only if the filter matches no document, the document is read to find out why.
 *
 * A claim that is given back before it is taken needs two of these commands: the first finds no claim, the second adds
 * the claim as given back, if it still does not exist.
 */
#include "drivers/mongodb/table_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  CLAIM_MAX = 64,
  CLAIMS_MAX = 5000 /* in a document, which is read and written whole: each has some 100 bytes */
};

#define KEEP_MS INT64_C(2592000000)

typedef struct dibs__stock_op stock_op;
typedef struct dibs__table table_t;

struct run {
  struct dibs__mr base;
  const table_t *table;
  stock_op *op;
};

/* What a document says as a stock. */
struct row {
  int64_t used, limit;
  size_t claims;  /* entries in the array, without those that the next take leaves out */
  size_t found;   /* of them with the claim of the operation */
  bool given;     /* it was given back */
  int64_t amount; /* -1: it is no number */
  bool stale;     /* a newer fence was seen */
};

static bool is_fenced(const stock_op *op) {
  return op->strategy == DIBS_FENCED;
}

/* ---- What a document says ---- */

static bool read_number(struct run *r, const bson_t *document, const char *field, int64_t *number) {
  bson_iter_t at;
  bool fits = dibs__mf_find(document, field, &at) && dibs__mf_whole(&at, number) && *number >= 0;
  return fits || dibs__mr_wrong(&r->base, document, field, "a whole number from 0 on");
}

/* As IS_GIVEN has it. */
static bool is_true(const bson_iter_t *at) {
  int64_t number;
  return BSON_ITER_HOLDS_BOOL(at) ? bson_iter_bool(at) : dibs__mf_whole(at, &number) && number == 1;
}

static void read_entry(const struct run *r, const bson_t *entry, struct row *row) {
  const table_t *t = r->table;
  bson_iter_t at;
  if (!dibs__mf_find(entry, t->claim, &at) || !BSON_ITER_HOLDS_UTF8(&at)) return;
  if (!dibs__str_equal(dibs__mf_text(&at), r->op->claim)) return;
  row->found++;
  row->amount = 1;
  row->given = t->given && dibs__mf_find(entry, t->given, &at) && is_true(&at);
  if (t->amount && !(dibs__mf_find(entry, t->amount, &at) && dibs__mf_whole(&at, &row->amount) && row->amount >= 0))
    row->amount = -1;
}

/* As OLD has it. */
static bool is_old(const struct run *r, const bson_t *entry) {
  const table_t *t = r->table;
  bson_iter_t at;
  if (!t->given || !t->taken || !dibs__mf_find(entry, t->given, &at) || !is_true(&at)) return false;
  return dibs__mf_find(entry, t->taken, &at) && BSON_ITER_HOLDS_DATE_TIME(&at) &&
         bson_iter_date_time(&at) < dibs__mongo_earliest(r->base.c.link) - KEEP_MS;
}

static bool read_claims(struct run *r, const bson_t *document, struct row *row) {
  bson_iter_t at, in;
  const char *field = r->table->claims;
  bool moves = r->op->op.verb == DIBS__STOCK_TAKE || r->op->op.verb == DIBS__STOCK_GIVE;
  if (!moves || dibs__mf_is_nothing(document, field)) return true;
  if (!dibs__mf_find(document, field, &at) || !BSON_ITER_HOLDS_ARRAY(&at) || !bson_iter_recurse(&at, &in))
    return dibs__mr_wrong(&r->base, document, field, "an array");
  while (bson_iter_next(&in)) {
    uint32_t len;
    const uint8_t *bytes;
    bson_t entry;
    row->claims++;
    if (!BSON_ITER_HOLDS_DOCUMENT(&in)) continue;
    bson_iter_document(&in, &len, &bytes);
    if (!bson_init_static(&entry, bytes, len)) continue;
    read_entry(r, &entry, row);
    if (is_old(r, &entry)) row->claims--;
  }
  if (row->found > 1) return dibs__mr_wrong(&r->base, document, field, "an array that has this claim once");
  if (row->found == 1 && row->amount < 0)
    return dibs__mr_wrong(&r->base, document, field, "an array in which this claim has an amount");
  if (row->found == 1 && !row->given && row->amount > row->used)
    return dibs__mr_wrong(&r->base, document, r->table->used, "as much as this claim holds");
  return true;
}

static bool read_fence(struct run *r, const bson_t *document, struct row *row) {
  const table_t *t = r->table;
  bson_iter_t at;
  int64_t fence = 0, owner = 0;
  if (!is_fenced(r->op) || dibs__mf_is_nothing(document, t->fence)) return true;
  if (!dibs__mf_find(document, t->fence, &at) || !dibs__mf_fits_fence(&at) || !dibs__mf_whole(&at, &fence))
    return dibs__mr_wrong(&r->base, document, t->fence, "a whole number from 0 to 2^53");
  bool mine = !t->owner || (dibs__mf_find(document, t->owner, &at) && dibs__mf_whole(&at, &owner) &&
                            (uint64_t)owner == dibs__id_digest(r->op->id));
  row->stale = (uint64_t)fence > r->op->fence.v || ((uint64_t)fence == r->op->fence.v && !mine);
  return true;
}

/* false: it is answered: the document can't be a stock. */
static bool read_document(struct run *r, const bson_t *document, struct row *row) {
  *row = (struct row){.amount = -1};
  return read_number(r, document, r->table->used, &row->used) &&
         read_number(r, document, r->table->limit, &row->limit) && read_claims(r, document, row) &&
         read_fence(r, document, row);
}

static void note_numbers(struct run *r, const struct row *row) {
  r->op->used = row->used;
  r->op->limit = row->limit;
}

static void answer_with(struct run *r, dibs__status status, const struct row *row, int64_t got) {
  note_numbers(r, row);
  r->op->got = got;
  dibs__mr_answer(&r->base, status, "");
}

/* ---- Filters and updates ---- */

#define COUNTS(f) IF(WHOLE(f), "{'$gte':['$" f "',0]}", "false")
#define ENTRIES IF("{'$isArray':'$@C'}", "'$@C'", "[]")
#define IS_MINE "{'$eq':['$$c.@c',{'$literal':'@I'}]}"
#define MINE "{'$filter':{'input':" ENTRIES ",'as':'c','cond':" IS_MINE "}}"
#define CLAIMS_FIT TYPE_IN("@C", NOTHING ",'array'") ",{'$eq':[{'$size':" MINE "},0]}"
/* A Decimal128 of 1 is $in [1], too. */
#define IS_GIVEN "{'$and':[" TYPE_IN("$c.@g", NUMBERS ",'bool'") ",{'$in':['$$c.@g',[true,1]]}]}"
#define FITS COUNTS("@s") "," COUNTS("@m")
/* Claims that were given back more than 30 days ago are left out. */
#define OLD                                                                                                            \
  IF("{'$and':[" IS_GIVEN ",{'$eq':[{'$type':'$$c.@w'},'date']}]}",                                                    \
     "{'$lt':['$$c.@w',{'$subtract':['$$NOW',{'$numberLong':'2592000000'}]}]}", "false")

static const char *entries_kept(const table_t *t) {
  return t->given && t->taken ? "{'$filter':{'input':" ENTRIES ",'as':'c','cond':{'$not':[" OLD "]}}}" : ENTRIES;
}

/* What the claim in the array holds. */
#define HELD(of) "{'$sum':{'$map':{'input':" MINE ",'as':'c','in':" of "}}}"

/* The stock is as it must be for a claim to be added. */
static const char *const may_add = FITS "," CLAIMS_FIT ",{'$gt':[5000,{'$size':";
static const char *const may_add_end = "}]}";
static const char *const has_room = "," IF("{'$and':[" FITS "]}", "{'$lte':[{'$add':['$@s',@0]},'$@m']}", "false");
static const char *const has_some = ",{'$lt':['$@s','$@m']}";
/* The claim is there once, not given back, and holds no more than is used. */
static const char *const may_give =
    FITS "," TYPE_IN("@C", "'array'") ",{'$eq':[{'$size':{'$filter':{'input':" ENTRIES
                                      ",'as':'c','cond':{'$and':[" IS_MINE ",{'$not':[" IS_GIVEN "]}]}}}},1]},"
                                      "{'$eq':[{'$size':" MINE "},1]}";
static const char *const holds_amount =
    ",{'$eq':[{'$size':{'$filter':{'input':" MINE
    ",'as':'c','cond':{'$and':[" WHOLE("$c.@a") ",{'$gte':['$$c.@a',0]},{'$lte':['$$c.@a','$@s']}]}}}},"
                                                "1]}";
static const char *const holds_one = ",{'$gte':['$@s',1]}";

/* Of the guard: its numbers are the fence and the digest. */
static bool put_fence_condition(const struct run *r, bson_t *list, uint32_t nth) {
  char index[12];
  const char *at;
  if (!is_fenced(r->op)) return true;
  bson_t *one = dibs__mf_expand_one(
      r->table, r->table->owner ? FENCE_HOLDS(SAME_OWNER) : FENCE_HOLDS("{'$lte':['$@f'," FENCE "]}"),
      (int64_t)r->op->fence.v, (int64_t)dibs__id_digest(r->op->id));
  bson_uint32_to_string(nth, &at, index, sizeof index);
  bool fine = one && bson_append_document(list, at, -1, one);
  bson_destroy(one);
  return fine;
}

static bson_t *expand(const struct run *r, const char *const templates[]) {
  const struct dibs__mf_words words = {
      .numbers = {r->op->amount, r->op->amount}, .claim = r->op->claim, .owner = r->op->owner};
  return dibs__mf_expand_words(r->table, templates, &words);
}

/* {KEY: ..., $expr: {$and: [CONDITIONS, the fence]}} */
static bson_t *make_filter(const struct run *r, const char *const conditions[4], bool fenced) {
  const char *const templates[] = {"{'list':[", conditions[0], conditions[1], conditions[2], conditions[3], "]}", NULL};
  bson_t *parsed = expand(r, templates), *filter = bson_new(), expr, list;
  bson_iter_t at, in;
  uint32_t count = 0;
  bool fine = parsed && dibs__mk_put(&r->base.c, filter, r->op->key, r->base.type) &&
              BSON_APPEND_DOCUMENT_BEGIN(filter, "$expr", &expr) && BSON_APPEND_ARRAY_BEGIN(&expr, "$and", &list);
  if (fine && bson_iter_init_find(&at, parsed, "list") && bson_iter_recurse(&at, &in))
    for (; fine && bson_iter_next(&in); count++) fine = bson_append_iter(&list, NULL, 0, &in);
  fine = fine && (!fenced || put_fence_condition(r, &list, count)) && bson_append_array_end(&expr, &list) &&
         bson_append_document_end(filter, &expr);
  bson_destroy(parsed);
  return dibs__mf_or_none(filter, fine);
}

/* [{$set: {USED: ..., CLAIMS: ..., FENCE, OWNER}}] */
static bson_t *make_pipeline(const struct run *r, const char *const parts[], bool fenced) {
  bson_t *set = expand(r, parts), *pipeline = bson_new(), stage;
  bool fine = set != NULL;
  if (fenced && is_fenced(r->op)) {
    fine = fine && bson_append_int64(set, r->table->fence, -1, (int64_t)r->op->fence.v);
    if (r->table->owner)
      fine = fine && bson_append_int64(set, r->table->owner, -1, (int64_t)dibs__id_digest(r->op->id));
  }
  fine = fine && BSON_APPEND_DOCUMENT_BEGIN(pipeline, "0", &stage) && BSON_APPEND_DOCUMENT(&stage, "$set", set) &&
         bson_append_document_end(pipeline, &stage);
  bson_destroy(set);
  return dibs__mf_or_none(pipeline, fine);
}

/* Sends it.  *row: what the document says now.  false: nothing matched, *matched is false; or it is answered. */
static bool change_document(struct run *r, bson_t *filter, bson_t *pipeline, bool *matched, struct row *row) {
  bson_t *document = NULL;
  const struct dibs__mongo_change change = {.query = filter, .pipeline = pipeline};
  dibs__status status = filter && pipeline ? dibs__mongo_modify(&r->base.c, &change, &document) : DIBS_NO_MEMORY;
  *matched = document != NULL;
  bool fine = document && read_document(r, document, row);
  if (status != DIBS_OK) dibs__mr_fail(&r->base, status);
  if (status != DIBS_OK) *matched = true; /* answered */
  bson_destroy(document);
  bson_destroy(filter);
  bson_destroy(pipeline);
  return fine;
}

/* ---- Taking ---- */

#define AMOUNT_ALL "@0"
#define AMOUNT_REST "{'$min':[@0,{'$subtract':['$@m','$@s']}]}"
/* The operation found no stock to take from: why not? */
static void answer_no_take(struct run *r) {
  struct row row;
  const stock_op *op = r->op;
  bson_t *document = dibs__mr_find(&r->base);
  if (document && read_document(r, document, &row)) {
    int64_t left = row.limit - row.used;
    if (row.found > 0)
      answer_with(r, row.given ? DIBS_CONFLICT : DIBS_REPLAY, &row, row.given ? 0 : row.amount);
    else if (row.stale)
      answer_with(r, DIBS_STALE, &row, 0);
    else if (left < (op->partial ? 1 : op->amount))
      answer_with(r, DIBS_FULL, &row, 0);
    else if (row.claims >= CLAIMS_MAX)
      dibs__mr_wrong(&r->base, document, r->table->claims, "an array of less than 5000 claims");
    else
      r->base.again = true;
  }
  bson_destroy(document);
}

static void run_take(struct run *r) {
  const table_t *t = r->table;
  bool matched, partial = r->op->partial;
  struct row row;
  const char *const conditions[4] = {may_add, entries_kept(t), may_add_end, partial ? has_some : has_room};
  const char *const parts[] = {"{'@s':{'$add':['$@s',",
                               partial ? AMOUNT_REST : AMOUNT_ALL,
                               "]},'@C':{'$concatArrays':[",
                               entries_kept(t),
                               ",[{'@c':{'$literal':'@I'}",
                               t->amount ? ",'@a':" : "",
                               !t->amount ? ""
                               : partial  ? AMOUNT_REST
                                          : AMOUNT_ALL,
                               t->taker ? ",'@t':{'$literal':'@O'}" : "",
                               t->taken ? ",'@w':'$$NOW'" : "",
                               "}]]}}",
                               NULL};
  if (change_document(r, make_filter(r, conditions, true), make_pipeline(r, parts, true), &matched, &row))
    answer_with(r, DIBS_OK, &row, row.amount);
  else if (!matched)
    answer_no_take(r);
}

/* ---- Giving back ---- */

#define MARKED(more) "{'$mergeObjects':['$$c',{'@g':true" more "}]}"

/* No such claim: it is remembered as given back, so that a late take does not count. */
static void remember_given(struct run *r) {
  const table_t *t = r->table;
  bool matched;
  struct row row;
  const char *const conditions[4] = {may_add, entries_kept(t), may_add_end, ""};
  const char *const parts[] = {"{'@C':{'$concatArrays':[",
                               entries_kept(t),
                               ",[{'@c':{'$literal':'@I'},'@g':true",
                               t->amount ? ",'@a':0" : "",
                               t->taker ? ",'@t':{'$literal':'@O'}" : "",
                               t->taken ? ",'@w':'$$NOW'" : "",
                               "}]]}}",
                               NULL};
  if (change_document(r, make_filter(r, conditions, true), make_pipeline(r, parts, true), &matched, &row))
    answer_with(r, DIBS_NOT_FOUND, &row, 0);
  else if (!matched)
    r->base.again = true;
}

static void answer_no_give(struct run *r) {
  struct row row;
  bson_t *document = dibs__mr_find(&r->base);
  if (document && read_document(r, document, &row)) {
    if (row.found > 0 && row.given)
      answer_with(r, DIBS_REPLAY, &row, row.amount);
    else if (row.stale)
      answer_with(r, DIBS_STALE, &row, 0);
    else if (row.found > 0)
      r->base.again = true;
    else if (row.claims >= CLAIMS_MAX)
      dibs__mr_wrong(&r->base, document, r->table->claims, "an array of less than 5000 claims");
    else
      remember_given(r);
  }
  bson_destroy(document);
}

static void run_give(struct run *r) {
  const table_t *t = r->table;
  bool matched;
  struct row row;
  const char *const conditions[4] = {may_give, t->amount ? holds_amount : holds_one, "", ""};
  const char *const parts[] = {"{'@s':{'$subtract':['$@s',",
                               t->amount ? HELD("'$$c.@a'") : "1",
                               "]},'@C':{'$map':{'input':" ENTRIES ",'as':'c','in':{'$cond':[" IS_MINE ",",
                               t->taken ? MARKED(",'@w':'$$NOW'") : MARKED(""),
                               ",'$$c']}}}}",
                               NULL};
  if (change_document(r, make_filter(r, conditions, true), make_pipeline(r, parts, true), &matched, &row))
    answer_with(r, DIBS_OK, &row, row.amount);
  else if (!matched)
    answer_no_give(r);
}

/* ---- Reading and setting ---- */

static void run_read(struct run *r) {
  struct row row;
  bson_t *document = dibs__mr_find(&r->base);
  if (document && read_document(r, document, &row)) answer_with(r, DIBS_OK, &row, 0);
  bson_destroy(document);
}

static void make_stock(struct run *r) {
  const table_t *t = r->table;
  bson_t document = BSON_INITIALIZER, claims;
  bool refused = false, twice = false;
  char why[sizeof r->op->why] = "";
  dibs__status status = dibs__mongo_collection_inserts(&r->base.c, why, sizeof why);
  if (status != DIBS_OK) {
    dibs__mr_answer(&r->base, status, why);
    return;
  }
  status = dibs__mk_choose(&r->base.c, r->op->key, &r->base.type);
  bool fine = dibs__mk_put_new(&r->base.c, &document, r->op->key, r->base.type) &&
              bson_append_int64(&document, t->used, -1, 0) && bson_append_int64(&document, t->limit, -1, r->op->amount);
  if (t->claims)
    fine =
        fine && bson_append_array_begin(&document, t->claims, -1, &claims) && bson_append_array_end(&document, &claims);
  if (status == DIBS_OK && !fine) status = DIBS_NO_MEMORY;
  if (status == DIBS_OK) status = dibs__mk_insert(&r->base.c, &document, &refused, why, sizeof why);
  if (status == DIBS_OK && !refused) status = dibs__mk_settle(&r->base.c, r->op->key, r->base.type, &document, &twice);
  bson_destroy(&document);
  if (status == DIBS_OK && refused)
    dibs__mr_missed(&r->base, why);
  else if (status == DIBS_OK && twice)
    r->base.again = true; /* another client made it meanwhile */
  else if (status == DIBS_INVALID)
    dibs__mr_answer(&r->base, status, why);
  else if (status != DIBS_OK)
    dibs__mr_fail(&r->base, status);
  else
    answer_with(r, DIBS_OK, &(struct row){.limit = r->op->amount}, 0);
}

static void answer_no_set(struct run *r) {
  struct row row;
  bson_t *document = dibs__mr_find(&r->base);
  if (document && read_document(r, document, &row)) {
    if (row.used > r->op->amount)
      answer_with(r, DIBS_FULL, &row, 0);
    else
      r->base.again = true;
  } else if (!document && r->op->op.status == DIBS_NOT_FOUND) {
    make_stock(r);
  }
  bson_destroy(document);
}

static void run_set(struct run *r) {
  bool matched;
  struct row row;
  const char *const conditions[4] = {FITS, ",{'$lte':['$@s',@0]}", "", ""};
  const char *const parts[] = {"{'@m':{'$literal':@0}}", NULL};
  if (change_document(r, make_filter(r, conditions, false), make_pipeline(r, parts, false), &matched, &row))
    answer_with(r, DIBS_OK, &row, 0);
  else if (!matched)
    answer_no_set(r);
}

/* ---- One operation ---- */

static void run_verb(struct dibs__mr *base) {
  struct run *r = (struct run *)base;
  if (!dibs__mf_types_of(r->op->key)) {
    dibs__mr_answer(&r->base, DIBS_NOT_FOUND, "");
    return;
  }
  r->base.type = dibs__mk_guess(&r->base.c, r->op->key);
  switch (r->op->op.verb) {
  case DIBS__STOCK_TAKE:
    run_take(r);
    return;
  case DIBS__STOCK_GIVE:
    run_give(r);
    return;
  case DIBS__STOCK_READ:
    run_read(r);
    return;
  default:
    run_set(r);
  }
}

static bool refuse(stock_op *op, dibs__status status, const char *why) {
  op->op.status = status;
  snprintf(op->why, sizeof op->why, "%s", why);
  return true;
}

/* Answers without the server. */
static bool is_refused(stock_op *op) {
  const table_t *t = op->table;
  bool takes = op->op.verb == DIBS__STOCK_TAKE, moves = takes || op->op.verb == DIBS__STOCK_GIVE;
  op->got = 0;
  op->used = op->limit = -1;
  op->retries = op->deadlocks = 0;
  op->why[0] = '\0';
  if (op->op.verb > DIBS__STOCK_SET || op->op.group || op->key.len < 1 || op->key.len > DIBS_NAME_MAX)
    return refuse(op, DIBS_INVALID, "");
  if (op->strategy > DIBS_FENCED || op->strategy == DIBS_NAMED || !t->used || !t->limit)
    return refuse(op, DIBS_INVALID, "");
  if (op->op.verb == DIBS__STOCK_SET && op->amount < 0) return refuse(op, DIBS_INVALID, "");
  if (t->claims && (t->stock || strchr(t->claims, '.')))
    return refuse(op, DIBS_UNSUPPORTED,
                  "in MongoDB claims are an array of the document itself: name its field, and leave out claim_stock");
  if (!moves) return false;
  if (!t->claims || !t->claim || (!takes && !t->given)) return refuse(op, DIBS_INVALID, "");
  if (takes && (op->amount < 1 || (!t->amount && op->amount != 1))) return refuse(op, DIBS_INVALID, "");
  if (is_fenced(op) && (!t->fence || op->fence.v == 0)) return refuse(op, DIBS_INVALID, "");
  if (op->claim.len < 1 || op->claim.len > CLAIM_MAX || op->owner.len > DIBS_OWNER_MAX)
    return refuse(op, DIBS_INVALID, "");
  if (!dibs__mongo_is_text(op->claim) || !dibs__mongo_is_text(op->owner))
    return refuse(op, DIBS_INVALID, "the claim, or its owner, is not UTF-8");
  return false;
}

void dibs__mongo_run_stock(struct dibs__mongo_session *session, stock_op *op, dibs__tick by,
                           struct dibs__result *result) {
  struct run r = {.base = {.c = {.session = session, .table = op->table, .result = result},
                           .op = &op->op,
                           .why = op->why,
                           .why_size = sizeof op->why,
                           .key = op->key},
                  .table = op->table,
                  .op = op};
  if (is_refused(op)) return;
  dibs__mr_run(&r.base, by, op->op.verb == DIBS__STOCK_SET, run_verb);
  op->retries = r.base.retries;
}

/* SPDX-License-Identifier: MIT */
/*
 * Records in the user's own collections: one document, guarded by its own fields.
 *
 * Each write is one findAndModify, whose filter has all guards: the version, the fence, and that the fields have types
 * to which the new values fit.  Only if it matches no document, the document is read to find out why.  If it would
 * match by now, the operation is tried again.
 *
 * A version that is a hash of the content can't be computed by the server.  The document is read first, and the write
 * requires that the fields are still as they were read.
 */
#include "drivers/mongodb/table_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAST_DATE INT64_C(253402300799999) /* of the year 9999 */

typedef struct dibs__record_op record_op;
typedef struct dibs__table table_t;

struct run {
  struct dibs__mr base;
  const table_t *table;
  record_op *op;
};

/* What a document says as a record. */
struct row {
  const bson_t *document;
  bool has_fence, has_owner;
  int64_t fence, owner;
  char version[DIBS_VERSION_MAX + 1];
};

static bool is_kept(const dibs_value *v) {
  return !v->data && v->length == DIBS_KEEP;
}

static uint32_t guards_of(const struct run *r) {
  return dibs__record_guards(r->op);
}

/* ---- Reading a document ---- */

/* The columns as texts, one after the other; NULL: no memory.  `size`: of the whole. */
static char *pack_values(const struct run *r, const bson_t *document, size_t *size) {
  size_t count = r->table->column_count, all = count * sizeof(dibs_value) + 1, used = count * sizeof(dibs_value);
  char *got = malloc(all);
  for (size_t i = 0; got && i < count; i++) {
    char *text, *more;
    size_t len;
    bool fine = dibs__mv_read(document, r->table->columns[i], &text, &len);
    more = fine ? realloc(got, all += len + 1) : NULL;
    if (!more) {
      free(text);
      free(got);
      return NULL;
    }
    got = more;
    /* The memory may still move: at first each value has where it begins. */
    ((dibs_value *)(void *)got)[i] = (dibs_value){text ? (const char *)(uintptr_t)used : NULL, len};
    if (text) memcpy(got + used, text, len + 1);
    if (text) used += len + 1;
    free(text);
  }
  for (size_t i = 0; got && i < count; i++) {
    dibs_value *v = &((dibs_value *)(void *)got)[i];
    if (v->data) v->data = got + (uintptr_t)v->data;
  }
  *size = used;
  return got;
}

/* false: no memory; it is answered. */
static bool hash_document(struct run *r, const bson_t *document, char hex[65]) {
  size_t size;
  char *got = pack_values(r, document, &size);
  if (!got) {
    dibs__mr_fail(&r->base, DIBS_NO_MEMORY);
    return false;
  }
  dibs__table_hash(r->table, (const dibs_value *)(const void *)got, hex);
  free(got);
  return true;
}

/* false: answered. */
static bool read_version(struct run *r, struct row *row) {
  const char *field = r->table->version;
  bson_iter_t at;
  int64_t number = 0;
  bool counts = r->table->version_kind == DIBS__VERSION_NUMBER;
  row->version[0] = '\0';
  if (!field) return !dibs__table_computes(r->table) || hash_document(r, row->document, row->version);
  bool nothing = dibs__mf_is_nothing(row->document, field) || !dibs__mf_find(row->document, field, &at);
  if (counts) {
    if (!nothing && !dibs__mf_whole(&at, &number))
      return dibs__mr_wrong(&r->base, row->document, field, "a whole number");
    snprintf(row->version, sizeof row->version, "%" PRId64, number);
  } else if (!nothing && r->table->version_kind == DIBS__VERSION_TIME) {
    int64_t ms = BSON_ITER_HOLDS_DATE_TIME(&at) ? bson_iter_date_time(&at) : 0;
    if (!BSON_ITER_HOLDS_DATE_TIME(&at)) return dibs__mr_wrong(&r->base, row->document, field, "a date");
    dibs__mf_iso(ms, row->version);
    bool shown = dibs__mf_iso_ms(dibs__str_of(row->version, DIBS__MF_ISO), &number) && number == ms;
    if (!shown) return dibs__mr_wrong(&r->base, row->document, field, "a date of the years 0 to 9999");
  } else if (!nothing) {
    dibs__str text = BSON_ITER_HOLDS_UTF8(&at) ? dibs__mf_text(&at) : (dibs__str){0};
    if (!BSON_ITER_HOLDS_UTF8(&at) || text.len > DIBS_VERSION_MAX)
      return dibs__mr_wrong(&r->base, row->document, field, "a text that is a version");
    snprintf(row->version, sizeof row->version, "%.*s", (int)text.len, text.p);
  }
  return true;
}

/* false: answered: it can't be a record. */
static bool read_document(struct run *r, const bson_t *document, struct row *row) {
  const char *field = r->table->fence;
  bson_iter_t at;
  *row = (struct row){.document = document};
  if (field && !dibs__mf_is_nothing(document, field)) {
    row->has_fence =
        dibs__mf_find(document, field, &at) && dibs__mf_fits_fence(&at) && dibs__mf_whole(&at, &row->fence);
    if (!row->has_fence) return dibs__mr_wrong(&r->base, document, field, "a whole number from 0 to 2^53");
  }
  if (r->table->owner && dibs__mf_find(document, r->table->owner, &at))
    row->has_owner = dibs__mf_whole(&at, &row->owner);
  return read_version(r, row);
}

static void hand_out(struct run *r, const struct row *row) {
  size_t size = 0;
  r->op->got = pack_values(r, row->document, &size);
  if (!r->op->got) {
    dibs__mr_fail(&r->base, DIBS_NO_MEMORY);
    return;
  }
  r->op->got_len = (uint32_t)size;
  r->op->seen = (dibs__fence){(uint64_t)row->fence};
  snprintf(r->op->version_text, sizeof r->op->version_text, "%s", row->version);
  dibs__mr_answer(&r->base, DIBS_OK, "");
}

/* ---- Checking the guards ---- */

/* false: answered. */
static bool guards_hold(struct run *r, const struct row *row) {
  record_op *op = r->op;
  uint32_t guards = guards_of(r);
  bool newer = row->has_fence && (uint64_t)row->fence > op->fence.v;
  bool others = row->has_fence && (uint64_t)row->fence == op->fence.v && r->table->owner &&
                !(row->has_owner && (uint64_t)row->owner == dibs__id_digest(op->id));
  if ((guards & DIBS__IF_FENCE) && (newer || others)) {
    op->seen = (dibs__fence){(uint64_t)row->fence};
    dibs__mr_answer(&r->base, DIBS_STALE, "");
    return false;
  }
  bool same = dibs__str_equal(dibs__str_of(row->version, strlen(row->version)), op->if_version);
  if ((guards & DIBS__IF_ABSENT) || ((guards & DIBS__IF_VERSION) && !same)) {
    snprintf(op->version_text, sizeof op->version_text, "%s", row->version);
    dibs__mr_answer(&r->base, DIBS_CONFLICT, "");
    return false;
  }
  return true;
}

static bool values_fit(struct run *r, const bson_t *document) {
  char why[sizeof r->op->why];
  if (r->op->op.verb != DIBS__RECORD_PUT) return true;
  for (size_t i = 0; i < r->table->column_count; i++) {
    if (dibs__mv_fits(document, r->table->columns[i], &r->op->values[i], why, sizeof why)) continue;
    dibs__mr_answer(&r->base, DIBS_INVALID, why);
    return false;
  }
  return true;
}

/* A put writes a larger one.  false: answered. */
static bool version_can_grow(struct run *r, const bson_t *document) {
  const char *field = r->table->version;
  bson_iter_t at;
  int64_t number;
  if (r->op->op.verb != DIBS__RECORD_PUT || !field || !dibs__mf_find(document, field, &at)) return true;
  if (r->table->version_kind == DIBS__VERSION_TIME && BSON_ITER_HOLDS_DATE_TIME(&at))
    return bson_iter_date_time(&at) < LAST_DATE ||
           dibs__mr_wrong(&r->base, document, field, "a date before the last of 9999");
  if (r->table->version_kind != DIBS__VERSION_NUMBER || !dibs__mf_whole(&at, &number)) return true;
  return number < (BSON_ITER_HOLDS_DOUBLE(&at) ? DIBS__MF_EXACT - 1 : INT64_MAX) ||
         dibs__mr_wrong(&r->base, document, field, "a number that can grow");
}

/* A filter matched nothing: answers why.  If it would match by now, tries again. */
static void answer_mismatch(struct run *r) {
  struct row row;
  bson_t *document = dibs__mr_find(&r->base);
  if (document && read_document(r, document, &row) && guards_hold(r, &row) && version_can_grow(r, document) &&
      values_fit(r, document))
    r->base.again = true;
  bson_destroy(document);
}

/* ---- Filters ---- */

#define IS_COUNTED                                                                                                     \
  IF(TYPE_IN("@v", NOTHING), "true",                                                                                   \
     IF(WHOLE("@v"),                                                                                                   \
        "{'$lt':['$@v'," IF(TYPE_IN("@v", "'double'"), "9007199254740991",                                             \
                            "{'$numberLong':'9223372036854775807'}") "]}",                                             \
        "false"))
/* Of the years 0 to 9999, and not the last. */
#define IS_DATED                                                                                                       \
  IF(TYPE_IN("@v", NOTHING), "true",                                                                                   \
     IF(TYPE_IN("@v", "'date'"),                                                                                       \
        "{'$and':[{'$gte':['$@v',{'$date':{'$numberLong':'-62167219200000'}}]},"                                       \
        "{'$lt':['$@v',{'$date':{'$numberLong':'253402300799999'}}]}]}",                                               \
        "false"))
/* The conditions of a filter's $expr. */
struct conditions {
  bson_t list; /* an array */
  uint32_t count;
  bool fine;
};

static void add_condition(struct conditions *all, const bson_t *one) {
  char index[12];
  const char *at;
  bson_uint32_to_string(all->count++, &at, index, sizeof index);
  all->fine = all->fine && one && bson_append_document(&all->list, at, -1, one);
}

static void add_template(const struct run *r, struct conditions *all, const char *template, int64_t number) {
  bson_t *one = dibs__mf_expand_one(r->table, template, number, (int64_t)dibs__id_digest(r->op->id));
  add_condition(all, one);
  bson_destroy(one);
}

/* {'$eq': ['$VERSION', {'$literal': TEXT}]} */
static void add_hash(const struct run *r, struct conditions *all) {
  bson_t one = BSON_INITIALIZER, list, literal;
  char name[DIBS__MONGO_SHOWN + 8];
  snprintf(name, sizeof name, "$%s", r->table->version);
  all->fine = all->fine && bson_utf8_validate(r->op->if_version.p, r->op->if_version.len, true) &&
              BSON_APPEND_ARRAY_BEGIN(&one, "$eq", &list) && BSON_APPEND_UTF8(&list, "0", name) &&
              BSON_APPEND_DOCUMENT_BEGIN(&list, "1", &literal) &&
              bson_append_utf8(&literal, "$literal", -1, r->op->if_version.p, (int)r->op->if_version.len) &&
              bson_append_document_end(&list, &literal) && bson_append_array_end(&one, &list);
  add_condition(all, &one);
  bson_destroy(&one);
}

/* The requested version is well-formed. */
static void add_version(const struct run *r, struct conditions *all) {
  int64_t number = 0;
  dibs__str version = r->op->if_version;
  if (r->table->version_kind == DIBS__VERSION_NUMBER) {
    (void)dibs__mf_is_number(version, &number);
    add_template(r, all,
                 number == 0 ? "{'$or':[" TYPE_IN("@v", NOTHING) ",{'$eq':['$@v',0]}]}" : "{'$eq':['$@v'," FENCE "]}",
                 number);
  } else if (version.len == 0) {
    add_template(r, all, TYPE_IN("@v", NOTHING), 0);
  } else if (r->table->version_kind == DIBS__VERSION_TIME) {
    (void)dibs__mf_iso_ms(version, &number);
    add_template(r, all, "{'$eq':['$@v',{'$date':{'$numberLong':'@0'}}]}", number);
  } else {
    add_hash(r, all);
  }
}

/* What a put needs to write the next version. */
static void add_version_type(const struct run *r, struct conditions *all) {
  static const char *const texts[] = {[DIBS__VERSION_NUMBER] = IS_COUNTED,
                                      [DIBS__VERSION_TIME] = IS_DATED,
                                      [DIBS__VERSION_HASH] = TYPE_IN("@v", NOTHING ",'string'")};
  add_template(r, all, texts[r->table->version_kind], 0);
}

static void add_values(const struct run *r, struct conditions *all) {
  for (size_t i = 0; i < r->table->column_count; i++) {
    bson_t one = BSON_INITIALIZER;
    if (r->op->values[i].data) {
      all->fine = all->fine && dibs__mv_put_condition(&one, r->table->columns[i], &r->op->values[i]);
      add_condition(all, &one);
    }
    bson_destroy(&one);
  }
}

static void add_same(const struct run *r, struct conditions *all, const bson_t *document) {
  for (size_t i = 0; i < r->table->column_count; i++) {
    bson_t one = BSON_INITIALIZER;
    all->fine = all->fine && dibs__mv_put_same(&one, r->table->columns[i], document);
    add_condition(all, &one);
    bson_destroy(&one);
  }
}

/* `read`: a document whose content must still be the same; NULL: none. */
static bson_t *make_filter(const struct run *r, const bson_t *read) {
  struct conditions all = {.fine = true};
  uint32_t guards = guards_of(r);
  bool puts = r->op->op.verb == DIBS__RECORD_PUT;
  bson_t *filter = bson_new(), expr;
  bson_init(&all.list);
  if ((guards & DIBS__IF_VERSION) && r->table->version) add_version(r, &all);
  if (guards & DIBS__IF_FENCE)
    add_template(r, &all, r->table->owner ? FENCE_HOLDS(SAME_OWNER) : FENCE_HOLDS("{'$lte':['$@f'," FENCE "]}"),
                 (int64_t)r->op->fence.v);
  if (puts && r->table->version) add_version_type(r, &all);
  if (puts) add_values(r, &all);
  if (read) add_same(r, &all, read);
  bool fine = all.fine && dibs__mk_put(&r->base.c, filter, r->op->key, r->base.type);
  if (all.count > 0)
    fine = fine && BSON_APPEND_DOCUMENT_BEGIN(filter, "$expr", &expr) && BSON_APPEND_ARRAY(&expr, "$and", &all.list) &&
           bson_append_document_end(filter, &expr);
  bson_destroy(&all.list);
  return dibs__mf_or_none(filter, fine);
}

/* ---- Updates ---- */

static bool put_literal(bson_t *set, const char *field, const char *text) {
  bson_t literal;
  return bson_append_document_begin(set, field, -1, &literal) && BSON_APPEND_UTF8(&literal, "$literal", text) &&
         bson_append_document_end(set, &literal);
}

/* [{$set: ...}]; *empty: it changes nothing.  `hash`: the next version, where it is one. */
static bson_t *make_pipeline(const struct run *r, const char *hash, bool *empty) {
  bool puts = r->op->op.verb == DIBS__RECORD_PUT, counts = r->table->version_kind == DIBS__VERSION_NUMBER;
  bool versioned = puts && r->table->version, fenced = (guards_of(r) & DIBS__IF_FENCE) != 0;
  const char *const templates[] = {"{",
                                   !versioned || dibs__table_hashes(r->table) ? ""
                                   : counts ? "'@v':{'$add':[" IF(TYPE_IN("@v", NOTHING), "0", "'$@v'") ",1]}"
                                            : "'@v':{'$max':['$$NOW',{'$add':['$@v',1]}]}",
                                   fenced && versioned && !dibs__table_hashes(r->table) ? "," : "",
                                   fenced ? "'@f':" FENCE : "",
                                   fenced && r->table->owner ? ",'@o':" DIGEST : "",
                                   "}",
                                   NULL};
  bson_t *set = dibs__mf_expand(r->table, templates, (int64_t)r->op->fence.v, (int64_t)dibs__id_digest(r->op->id));
  bson_t *pipeline = bson_new(), stage;
  bool fine = set != NULL;
  if (fine && versioned && dibs__table_hashes(r->table)) fine = put_literal(set, r->table->version, hash);
  for (size_t i = 0; fine && puts && i < r->table->column_count; i++)
    if (!is_kept(&r->op->values[i])) fine = dibs__mv_put_set(set, r->table->columns[i], &r->op->values[i]);
  *empty = fine && bson_empty(set);
  fine = fine && BSON_APPEND_DOCUMENT_BEGIN(pipeline, "0", &stage) && BSON_APPEND_DOCUMENT(&stage, "$set", set) &&
         bson_append_document_end(pipeline, &stage);
  bson_destroy(set);
  return dibs__mf_or_none(pipeline, fine);
}

/* ---- Reading and sealing ---- */

static void run_load(struct run *r) {
  struct row row;
  bson_t *document = dibs__mr_find(&r->base);
  if (document && read_document(r, document, &row)) hand_out(r, &row);
  bson_destroy(document);
}

static bool see_document(void *user, const bson_t *document) {
  *(bson_t **)user = bson_copy(document);
  return false;
}

/* Sends the change.  *document: as it is now; NULL: it is answered. */
static void change_document(struct run *r, const bson_t *read, const char *hash, bson_t **document) {
  bool empty = false;
  bson_t *filter = make_filter(r, read), *pipeline = make_pipeline(r, hash, &empty);
  const struct dibs__mongo_change change = {.query = filter, .pipeline = pipeline};
  dibs__status status = filter && pipeline ? DIBS_OK : DIBS_NO_MEMORY;
  *document = NULL;
  if (status == DIBS_OK && empty) { /* only the guards */
    status = dibs__mongo_look(&r->base.c, bson_copy(filter), NULL, NULL, 1, see_document, document);
  } else if (status == DIBS_OK) {
    status = dibs__mongo_modify(&r->base.c, &change, document);
  }
  bson_destroy(filter);
  bson_destroy(pipeline);
  if (status != DIBS_OK)
    dibs__mr_fail(&r->base, status);
  else if (!*document)
    answer_mismatch(r);
}

static void run_seal(struct run *r) {
  struct row row;
  bson_t *document;
  change_document(r, NULL, NULL, &document);
  if (document && read_document(r, document, &row)) hand_out(r, &row);
  bson_destroy(document);
}

/* ---- Writing ---- */

static bool keeps_some(const struct run *r) {
  for (size_t i = 0; i < r->table->column_count; i++)
    if (is_kept(&r->op->values[i])) return true;
  return false;
}

/* Of the new content; what is kept is as in the document.  false: no memory; it is answered. */
static bool hash_new(struct run *r, const bson_t *read, char hex[65]) {
  dibs_value values[DIBS__TABLE_COLUMNS];
  size_t size;
  char *got = read ? pack_values(r, read, &size) : NULL;
  if (read && !got) {
    dibs__mr_fail(&r->base, DIBS_NO_MEMORY);
    return false;
  }
  for (size_t i = 0; i < r->table->column_count; i++)
    values[i] = read && is_kept(&r->op->values[i]) ? ((const dibs_value *)(const void *)got)[i] : r->op->values[i];
  dibs__table_hash(r->table, values, hex);
  free(got);
  return true;
}

static void remove_document(struct run *r, const bson_t *read) {
  bson_t *filter = make_filter(r, read), *document = NULL;
  const struct dibs__mongo_change change = {.query = filter};
  dibs__status status = filter ? dibs__mongo_modify(&r->base.c, &change, &document) : DIBS_NO_MEMORY;
  bson_destroy(filter);
  if (status != DIBS_OK)
    dibs__mr_fail(&r->base, status);
  else if (document)
    dibs__mr_answer(&r->base, DIBS_OK, "");
  else
    answer_mismatch(r);
  bson_destroy(document);
}

static void put_document(struct run *r, const bson_t *read) {
  char hash[65] = "";
  bson_t *document = NULL;
  bool stored = dibs__table_hashes(r->table) && r->table->version;
  if (stored && !hash_new(r, read, hash)) return;
  change_document(r, read, hash, &document);
  struct row row = {.document = document};
  if (document && read_version(r, &row)) {
    snprintf(r->op->version_text, sizeof r->op->version_text, "%s", row.version);
    r->op->seen = r->op->fence;
    dibs__mr_answer(&r->base, DIBS_OK, "");
  }
  bson_destroy(document);
}

/* The version depends on the content, which must be read first. */
static bool needs_content(const struct run *r) {
  if (!dibs__table_hashes(r->table)) return false;
  if (r->op->op.verb == DIBS__RECORD_DROP) return !r->table->version && (guards_of(r) & DIBS__IF_VERSION);
  return r->table->version ? keeps_some(r) : (guards_of(r) & DIBS__IF_VERSION) != 0;
}

static void run_change(struct run *r) {
  struct row row;
  bool puts = r->op->op.verb == DIBS__RECORD_PUT, reads = needs_content(r);
  bson_t *read = reads ? dibs__mr_find(&r->base) : NULL;
  if (!reads || (read && read_document(r, read, &row) && guards_hold(r, &row))) {
    if (puts)
      put_document(r, read);
    else
      remove_document(r, read);
  }
  bson_destroy(read);
}

/* ---- A new document ---- */

static bool put_first_version(const struct run *r, bson_t *to, char version[DIBS_VERSION_MAX + 1]) {
  const char *field = r->table->version;
  int64_t now_ms = dibs__mongo_latest(r->base.c.link);
  version[0] = '\0';
  if (dibs__table_hashes(r->table)) {
    char hash[65];
    dibs_value values[DIBS__TABLE_COLUMNS];
    for (size_t i = 0; i < r->table->column_count; i++)
      values[i] = is_kept(&r->op->values[i]) ? (dibs_value){NULL, 0} : r->op->values[i];
    dibs__table_hash(r->table, values, hash);
    snprintf(version, DIBS_VERSION_MAX + 1, "%s", hash);
    return !field || bson_append_utf8(to, field, -1, hash, -1);
  }
  if (!field) return true;
  if (r->table->version_kind == DIBS__VERSION_TIME) {
    dibs__mf_iso(now_ms, version);
    return bson_append_date_time(to, field, -1, now_ms);
  }
  snprintf(version, DIBS_VERSION_MAX + 1, "1");
  return bson_append_int32(to, field, -1, 1);
}

static bool put_new(const struct run *r, bson_t *to, char version[DIBS_VERSION_MAX + 1]) {
  bool fenced = (guards_of(r) & DIBS__IF_FENCE) != 0, fine = dibs__mk_put_new(&r->base.c, to, r->op->key, r->base.type);
  for (size_t i = 0; fine && i < r->table->column_count; i++)
    if (!is_kept(&r->op->values[i])) fine = dibs__mv_put_new(to, r->table->columns[i], &r->op->values[i]);
  fine = fine && put_first_version(r, to, version);
  if (fenced) fine = fine && bson_append_int64(to, r->table->fence, -1, (int64_t)r->op->fence.v);
  if (fenced && r->table->owner)
    fine = fine && bson_append_int64(to, r->table->owner, -1, (int64_t)dibs__id_digest(r->op->id));
  return fine;
}

/* A document with this key, of any type.  true: there is none, so far. */
static bool key_is_free(struct run *r) {
  if (dibs__mf_types_of(r->op->key) == DIBS__MF_TEXT) return true; /* the unique index decides */
  bson_t *there = dibs__mr_find(&r->base);
  bool is_free = !there && r->op->op.status == DIBS_NOT_FOUND;
  bson_destroy(there);
  if (there) answer_mismatch(r);
  if (there && r->op->op.status == DIBS_NOT_FOUND) r->base.again = true; /* it was removed meanwhile */
  return is_free;
}

static void run_insert(struct run *r) {
  char version[DIBS_VERSION_MAX + 1], why[sizeof r->op->why] = "";
  bool twice = false;
  if (!dibs__mf_types_of(r->op->key)) {
    dibs__mr_answer(&r->base, DIBS_INVALID, "the key is not UTF-8");
    return;
  }
  if (!key_is_free(r)) return;
  dibs__status status = dibs__mongo_collection_inserts(&r->base.c, why, sizeof why);
  if (status != DIBS_OK) {
    dibs__mr_answer(&r->base, status, why);
    return;
  }
  bson_t document = BSON_INITIALIZER;
  status = dibs__mk_choose(&r->base.c, r->op->key, &r->base.type);
  if (status == DIBS_OK && !put_new(r, &document, version)) status = DIBS_NO_MEMORY;
  if (status == DIBS_OK) status = dibs__mk_insert(&r->base.c, &document, &twice, why, sizeof why);
  if (status == DIBS_OK && !twice)
    status = dibs__mk_settle(&r->base.c, r->op->key, r->base.type, &document, &r->base.again);
  bson_destroy(&document);
  if (r->base.again) {
    dibs__mr_answer(&r->base, status, "");
    r->base.again = status == DIBS_OK;
  } else if (twice) {
    answer_mismatch(r);
    if (r->op->op.status == DIBS_NOT_FOUND) dibs__mr_missed(&r->base, why);
  } else if (status == DIBS_INVALID) {
    dibs__mr_answer(&r->base, status, why);
  } else if (status != DIBS_OK) {
    dibs__mr_fail(&r->base, status);
  } else {
    r->op->seen = r->op->fence;
    snprintf(r->op->version_text, sizeof r->op->version_text, "%s", version);
    dibs__mr_answer(&r->base, DIBS_OK, "");
  }
}

/* ---- One operation ---- */

/* A text that is no version of that kind: no document has it. */
static bool version_is_well_formed(const struct run *r) {
  int64_t number;
  dibs__str version = r->op->if_version;
  if (!(guards_of(r) & DIBS__IF_VERSION) || !r->table->version) return true;
  if (r->table->version_kind == DIBS__VERSION_NUMBER) return dibs__mf_is_number(version, &number);
  if (version.len == 0) return true;
  if (r->table->version_kind == DIBS__VERSION_TIME) return dibs__mf_iso_ms(version, &number);
  return bson_utf8_validate(version.p, version.len, false);
}

static void run_verb(struct dibs__mr *base) {
  struct run *r = (struct run *)base;
  uint32_t types = dibs__mf_types_of(r->op->key);
  r->base.type = dibs__mk_guess(&r->base.c, r->op->key);
  if (guards_of(r) & DIBS__IF_ABSENT) {
    run_insert(r);
  } else if (!types) {
    dibs__mr_answer(&r->base, DIBS_NOT_FOUND, "");
  } else if (!version_is_well_formed(r)) {
    answer_mismatch(r);
    r->base.again = false;
  } else if (r->op->op.verb == DIBS__RECORD_LOAD) {
    run_load(r);
  } else if (r->op->op.verb == DIBS__RECORD_SEAL) {
    run_seal(r);
  } else {
    run_change(r);
  }
}

static bool part_missing(record_op *op, const char *what) {
  snprintf(op->why, sizeof op->why, "table %.60s was declared without %s", op->table->table, what);
  op->op.status = DIBS_UNSUPPORTED;
  return true;
}

/* Answers without the server. */
static bool is_refused(record_op *op) {
  uint32_t guards = dibs__record_guards(op), verb = op->op.verb;
  size_t size = 0;
  op->got = NULL;
  op->got_len = 0;
  op->version = 0;
  op->seen = DIBS__FENCE_NONE;
  op->version_text[0] = op->why[0] = '\0';
  op->op.status = DIBS_INVALID;
  if (verb > DIBS__RECORD_DROP || op->key.len == 0 || op->op.group || (guards & DIBS__IF_DIGEST)) return true;
  if ((guards & DIBS__IF_ABSENT) && ((guards & DIBS__IF_VERSION) || verb == DIBS__RECORD_DROP)) return true;
  if ((guards & DIBS__IF_FENCE) && op->fence.v == 0) return true;
  for (size_t i = 0; verb == DIBS__RECORD_PUT && i < op->table->column_count; i++)
    size += op->values[i].data ? op->values[i].length : 0;
  if (size > DIBS_RECORD_MAX) return true;
  if ((guards & DIBS__IF_FENCE) && !op->table->fence) return part_missing(op, "a fence column");
  if ((guards & DIBS__IF_VERSION) && !op->table->version && !dibs__table_computes(op->table))
    return part_missing(op, "a version column");
  op->op.status = DIBS_UNKNOWN;
  return false;
}

void dibs__mongo_run_record(struct dibs__mongo_session *session, record_op *op, dibs__tick by,
                            struct dibs__result *result) {
  struct run r = {.base = {.c = {.session = session, .table = op->table, .result = result},
                           .op = &op->op,
                           .why = op->why,
                           .why_size = sizeof op->why,
                           .key = op->key},
                  .table = op->table,
                  .op = op};
  if (is_refused(op)) return;
  dibs__mr_run(&r.base, by, (guards_of(&r) & DIBS__IF_ABSENT) != 0, run_verb);
}

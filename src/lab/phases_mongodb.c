/* SPDX-License-Identifier: MIT */
/*
 * The module dibs-lab-mongodb.so: the rows of the experiment `phases` as documents, in the form that programs have
 * which poll a collection:
 *
 *   rows    {_id, phase, state, lockedAt, createdAt, updatedAt, fence, certificate, late, effects: [{step, node,
 * late}]} effects {row, step, node, late}
 *
 * By hand an effect is a document of its own, in a second collection.  With dibs it is in the row's document: one
 * update is atomic on every server, and two would need a transaction.
 *
 * Commands are sent by the driver's own links, which know what an error means and wait no longer than they should.
 */
#include "drivers/mongodb/mongodb_impl.h"
#include "lab/phases.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AGAIN_MS = 10, TEXT_MAX = 1500, PART_MAX = 200, NS_NOT_FOUND = 26 };

struct mongodb {
  struct dibs__mongo_location *location;
  struct dibs__mongo_link *link;
};

static struct dibs__mongo_link *link_of(const struct phases_db *db) {
  return ((struct mongodb *)db->own)->link;
}

static dibs_status fail(struct phases_db *db, dibs__status status, const struct dibs__result *result) {
  snprintf(db->why, sizeof db->why, "%s", result->text[0] ? result->text : dibs_status_text((dibs_status)status));
  return status == DIBS_NO_MEMORY ? DIBS_NO_MEMORY : DIBS_UNAVAILABLE;
}

/* ---- Commands ---- */

/* Relaxed JSON, with ' in place of ".  NULL: no memory. */
__attribute__((format(printf, 1, 0))) static bson_t *parse_args(const char *format, va_list args) {
  char text[TEXT_MAX];
  bson_error_t error;
  int length = vsnprintf(text, sizeof text, format, args);
  if (length < 0 || (size_t)length >= sizeof text) return NULL;
  for (char *c = text; *c; c++)
    if (*c == '\'') *c = '"';
  return bson_new_from_json((const uint8_t *)text, length, &error);
}

__attribute__((format(printf, 1, 2))) static bson_t *parse(const char *format, ...) {
  va_list args;
  va_start(args, format);
  bson_t *made = parse_args(format, args);
  va_end(args);
  return made;
}

/* The first of the errors that an answer has for single documents. */
static dibs__status check_documents(struct dibs__mongo_link *link, const bson_t *reply, struct dibs__result *result) {
  bson_iter_t at, errors, in;
  bson_error_t error = {.domain = MONGOC_ERROR_SERVER};
  if (!bson_iter_init_find(&at, reply, "writeErrors") || !bson_iter_recurse(&at, &errors) || !bson_iter_next(&errors))
    return DIBS_OK;
  if (bson_iter_recurse(&errors, &in))
    while (bson_iter_next(&in)) {
      if (strcmp(bson_iter_key(&in), "code") == 0) error.code = (uint32_t)bson_iter_as_int64(&in);
      if (strcmp(bson_iter_key(&in), "errmsg") == 0 && BSON_ITER_HOLDS_UTF8(&in))
        snprintf(error.message, sizeof error.message, "%s", bson_iter_utf8(&in, NULL));
    }
  return dibs__mongo_explain(link, &error, reply, true, result);
}

/* A command that writes; again while it meets another one, and did nothing.  OK: the caller destroys `reply`. */
__attribute__((format(printf, 3, 4))) static dibs_status run(struct phases_db *db, bson_t *reply, const char *format,
                                                             ...) {
  struct dibs__mongo_link *link = link_of(db);
  struct dibs__result result = {0};
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), LAB_LINE_MS);
  va_list args;
  va_start(args, format);
  bson_t *command = parse_args(format, args);
  va_end(args);
  dibs__status status = DIBS_NO_MEMORY;
  link->by = by;
  while (command) {
    status = dibs__mongo_write_in(link, link->location->database, command, reply, &result);
    if (status == DIBS_OK) status = check_documents(link, reply, &result);
    if (status == DIBS_OK) break;
    bson_destroy(reply);
    if (status != DIBS_UNAVAILABLE || !dibs__tick_before(dibs__tick_now(), by)) break;
    dibs__nap_ms(AGAIN_MS);
  }
  bson_destroy(command);
  return status == DIBS_OK ? DIBS_OK : fail(db, status, &result);
}

static bool count_document(void *user, const bson_t *document) {
  (void)document;
  ++*(int64_t *)user;
  return true;
}

/* All documents that match.  The filter, which may be NULL, is destroyed. */
static dibs_status look(struct phases_db *db, const char *name, bson_t *filter, dibs__mongo_row *row, void *user) {
  struct dibs__mongo_link *link = link_of(db);
  struct dibs__result result = {0};
  bson_t options = BSON_INITIALIZER;
  mongoc_collection_t *collection = mongoc_client_get_collection(link->client, link->location->database, name);
  link->by = dibs__tick_add_ms(dibs__tick_now(), LAB_LINE_MS);
  dibs__status status = DIBS_NO_MEMORY;
  if (filter && collection) status = dibs__mongo_find_in(link, collection, filter, &options, false, row, user, &result);
  if (collection) mongoc_collection_destroy(collection);
  bson_destroy(&options);
  bson_destroy(filter);
  return status == DIBS_OK ? DIBS_OK : fail(db, status, &result);
}

/* An instant as JSON. */
static const char *instant(char text[PART_MAX], int64_t ms) {
  snprintf(text, PART_MAX, "{'$date':{'$numberLong':'%" PRId64 "'}}", ms);
  return text;
}

/* ---- Collections ---- */

static dibs_status drop_one(struct phases_db *db, const char *name) {
  struct dibs__mongo_link *link = link_of(db);
  struct dibs__result result = {0};
  bson_error_t error = {0};
  link->by = dibs__tick_add_ms(dibs__tick_now(), LAB_LINE_MS);
  mongoc_collection_t *collection = mongoc_client_get_collection(link->client, link->location->database, name);
  bool done = mongoc_collection_drop(collection, &error);
  mongoc_collection_destroy(collection);
  if (done || error.code == NS_NOT_FOUND || strstr(error.message, "ns not found")) return DIBS_OK;
  return fail(db, dibs__mongo_explain(link, &error, NULL, true, &result), &result);
}

static dibs_status drop(struct phases_db *db) {
  dibs_status status = drop_one(db, db->effects);
  return status == DIBS_OK ? drop_one(db, db->rows) : status;
}

static dibs_status make(struct phases_db *db) {
  char id[LAB_KEY_MAX], made[PART_MAX], updated[PART_MAX], never[PART_MAX];
  int64_t now = dibs__wall_ms();
  bson_t reply;
  dibs_status status = drop(db);
  if (status == DIBS_OK)
    status = run(db, &reply,
                 "{'createIndexes':'%s','indexes':[{'key':{'phase':1,'lockedAt':1,'updatedAt':1},'name':'oldest'}]}",
                 db->rows);
  if (status == DIBS_OK) bson_destroy(&reply);
  if (status == DIBS_OK) status = run(db, &reply, "{'create':'%s'}", db->effects); /* with dibs it stays empty */
  if (status == DIBS_OK) bson_destroy(&reply);
  for (uint32_t i = 1; status == DIBS_OK && i <= PHASES_ROWS; i++) {
    dibs__phases_id(id, i);
    status = run(db, &reply,
                 "{'insert':'%s','documents':[{'_id':'%s','phase':'Creating','state':0,'lockedAt':%s,'createdAt':%s,"
                 "'updatedAt':%s,'certificate':{'$numberLong':'0'},'late':0,'effects':[]}]}",
                 db->rows, id, instant(never, 0), instant(made, now), instant(updated, now + i));
    if (status == DIBS_OK) bson_destroy(&reply);
  }
  return status;
}

static const char *text_in(const bson_t *document, const char *path) {
  bson_iter_t at, in;
  if (!bson_iter_init(&at, document) || !bson_iter_find_descendant(&at, path, &in) || !BSON_ITER_HOLDS_UTF8(&in))
    return NULL;
  return bson_iter_utf8(&in, NULL);
}

static dibs_status version(struct phases_db *db, char *to, size_t size) {
  struct dibs__mongo_link *link = link_of(db);
  struct dibs__result result = {0};
  bson_error_t error = {0};
  bson_t reply, *command = parse("{'buildInfo':1}");
  link->by = dibs__tick_add_ms(dibs__tick_now(), LAB_LINE_MS);
  bool done = command && mongoc_client_command_simple(link->client, "admin", command, NULL, &reply, &error);
  bson_destroy(command);
  if (!command) return fail(db, DIBS_NO_MEMORY, &result);
  dibs_status status = DIBS_OK;
  const char *number = text_in(&reply, "version"), *stand_in = text_in(&reply, "ferretdb.version");
  if (done && stand_in)
    snprintf(to, size, "FerretDB %s, which calls itself MongoDB %s", stand_in, number ? number : "?");
  else if (done)
    snprintf(to, size, "MongoDB %s", number ? number : "of an unknown version");
  else
    status = fail(db, dibs__mongo_explain(link, &error, &reply, false, &result), &result);
  bson_destroy(&reply);
  return status;
}

/* ---- The lab's side ---- */

static dibs_status request_deletions(struct phases_db *db) {
  char now[PART_MAX];
  bson_t reply;
  dibs_status status = run(db, &reply,
                           "{'update':'%s','updates':[{'q':{'phase':'Ready'},'u':{'$set':{'phase':'Deleting',"
                           "'updatedAt':%s}},'multi':true}]}",
                           db->rows, instant(now, dibs__wall_ms()));
  if (status == DIBS_OK) bson_destroy(&reply);
  return status;
}

static dibs_status count_step(struct phases_db *db, const char *id, uint32_t step, int64_t *to) {
  *to = 0;
  dibs_status status = look(db, db->effects, parse("{'row':'%s','step':%u}", id, step), count_document, to);
  if (status != DIBS_OK) return status;
  return look(db, db->rows, parse("{'_id':'%s','effects.step':%u}", id, step), count_document, to);
}

static dibs_status count_ended(struct phases_db *db, int64_t *to) {
  char never[PART_MAX];
  *to = 0;
  return look(db, db->rows, parse("{'phase':'Deleted','lockedAt':{'$lte':%s}}", instant(never, 0)), count_document, to);
}

struct audit {
  struct phases_counted *to;
  bool seen[PHASES_ROWS + 1][PHASES_STEPS + 1]; /* the last step: every other number */
};

static uint32_t nth_of(const char *id) {
  const char *digits = id ? strchr(id, '-') : NULL;
  unsigned long nth = digits ? strtoul(digits + 1, NULL, 10) : 0;
  return nth <= PHASES_ROWS ? (uint32_t)nth : 0;
}

static void see_effect(struct audit *audit, const char *id, const bson_t *effect) {
  int64_t step = dibs__mongo_number_in(effect, "step", PHASES_STEPS);
  bool *seen = &audit->seen[nth_of(id)][step >= 0 && step < PHASES_STEPS ? step : PHASES_STEPS];
  audit->to->effects++;
  audit->to->distinct += !*seen;
  audit->to->late += dibs__mongo_number_in(effect, "late", 1);
  *seen = true;
}

static bool see_own_effect(void *user, const bson_t *document) {
  see_effect(user, text_in(document, "row"), document);
  return true;
}

static bool see_row(void *user, const bson_t *document) {
  struct audit *audit = user;
  bson_iter_t at, list;
  const char *phase = text_in(document, "phase");
  audit->to->done +=
      phase && strcmp(phase, "Deleted") == 0 && dibs__mongo_number_in(document, "state", 0) == PHASES_STEPS;
  audit->to->late += dibs__mongo_number_in(document, "late", 1);
  if (!bson_iter_init_find(&at, document, "effects") || !bson_iter_recurse(&at, &list)) return true;
  while (bson_iter_next(&list)) {
    const uint8_t *bytes;
    uint32_t length;
    bson_t effect;
    if (!BSON_ITER_HOLDS_DOCUMENT(&list)) continue;
    bson_iter_document(&list, &length, &bytes);
    if (bson_init_static(&effect, bytes, length)) see_effect(audit, text_in(document, "_id"), &effect);
  }
  return true;
}

static dibs_status count(struct phases_db *db, struct phases_counted *to) {
  struct audit audit = {.to = to};
  *to = (struct phases_counted){0};
  dibs_status status = look(db, db->rows, parse("{}"), see_row, &audit);
  return status == DIBS_OK ? look(db, db->effects, parse("{}"), see_own_effect, &audit) : status;
}

/* ---- A node's side ---- */

/* `mine` as JSON, and its field. */
static const char *guard_of(const struct phases_db *db, const struct phases_row *row, char mine[PART_MAX]) {
  if (db->method != PHASES_DIBS) {
    (void)instant(mine, row->mine);
    return "lockedAt";
  }
  snprintf(mine, PART_MAX, "{'$numberLong':'%" PRId64 "'}", row->mine);
  return "fence";
}

static void copy_row(const bson_t *document, struct phases_row *row) {
  const char *id = text_in(document, "_id"), *phase = text_in(document, "phase");
  snprintf(row->id, sizeof row->id, "%s", id ? id : "");
  snprintf(row->phase, sizeof row->phase, "%s", phase ? phase : "");
  row->state = dibs__mongo_number_in(document, "state", 0);
  row->certificate = dibs__mongo_number_in(document, "certificate", 0);
}

/* A findAndModify, sorted by lockedAt and updatedAt. */
static dibs_status claim(struct phases_db *db, struct phases_row *row) {
  char oldest[PART_MAX], locked[PART_MAX];
  bson_t reply, found;
  bson_iter_t at;
  row->mine = dibs__wall_ms();
  dibs_status status = run(db, &reply,
                           "{'findAndModify':'%s','query':{'phase':{'$in':['Creating','Deleting']},"
                           "'lockedAt':{'$lte':%s}},'sort':{'lockedAt':1,'updatedAt':1},"
                           "'update':{'$set':{'lockedAt':%s}},'new':true}",
                           db->rows, instant(oldest, row->mine - db->timeout_ms), instant(locked, row->mine));
  if (status != DIBS_OK) return status;
  status = DIBS_NOT_FOUND;
  if (bson_iter_init_find(&at, &reply, "value") && BSON_ITER_HOLDS_DOCUMENT(&at)) {
    const uint8_t *bytes;
    uint32_t length;
    bson_iter_document(&at, &length, &bytes);
    if (bson_init_static(&found, bytes, length)) {
      copy_row(&found, row);
      status = DIBS_OK;
    }
  }
  bson_destroy(&reply);
  return status;
}

static bool keep_first(void *user, const bson_t *document) {
  bson_t **kept = user;
  *kept = bson_copy(document);
  return false;
}

static dibs_status find_row(struct phases_db *db, const char *id, bson_t **document) {
  *document = NULL;
  dibs_status status = look(db, db->rows, parse("{'_id':'%s'}", id), keep_first, document);
  if (status != DIBS_OK || *document) return status;
  snprintf(db->why, sizeof db->why, "the document %s is missing", id);
  return DIBS_UNAVAILABLE;
}

static dibs_status read_row(struct phases_db *db, struct phases_row *row) {
  bson_t *document;
  dibs_status status = find_row(db, row->id, &document);
  if (status != DIBS_OK) return status;
  row->state = dibs__mongo_number_in(document, "state", 0);
  row->certificate = dibs__mongo_number_in(document, "certificate", 0);
  bson_destroy(document);
  return DIBS_OK;
}

/* Whether it is late is read before it: no command reads the one collection and writes the other. */
static dibs_status effect(struct phases_db *db, const struct phases_row *row) {
  bson_t *document, reply;
  bson_iter_t at;
  dibs_status status = find_row(db, row->id, &document);
  if (status != DIBS_OK) return status;
  bool in_time = bson_iter_init_find(&at, document, "lockedAt") && BSON_ITER_HOLDS_DATE_TIME(&at) &&
                 bson_iter_date_time(&at) == row->mine;
  bson_destroy(document);
  status = run(db, &reply, "{'insert':'%s','documents':[{'row':'%s','step':%" PRId64 ",'node':%u,'late':%d}]}",
               db->effects, row->id, row->state, db->node, in_time ? 0 : 1);
  if (status == DIBS_OK) bson_destroy(&reply);
  return status;
}

/* Updates the row's document, if its guard allows it.  `more`: further fields. */
static dibs_status update(struct phases_db *db, const struct phases_row *row, const char *more) {
  char mine[PART_MAX], guard[2 * PART_MAX] = "";
  const char *field = guard_of(db, row, mine);
  bson_t reply;
  if (db->method != PHASES_POLLED) snprintf(guard, sizeof guard, ",'%s':%s", field, mine);
  dibs_status status = run(db, &reply,
                           "{'update':'%s','updates':[{'q':{'_id':'%s'%s},'u':[{'$set':{"
                           "'late':{'$add':['$late',{'$cond':[{'$eq':['$%s',%s]},0,1]}]},"
                           "'state':%" PRId64 ",'certificate':{'$numberLong':'%" PRId64 "'},%s}}]}]}",
                           db->rows, row->id, guard, field, mine, row->state, row->certificate, more);
  if (status != DIBS_OK) return status;
  if (dibs__mongo_number_in(&reply, "n", 0) == 0) status = DIBS_STALE;
  bson_destroy(&reply);
  return status;
}

static dibs_status write_row(struct phases_db *db, const struct phases_row *row, const char *phase) {
  char more[3 * PART_MAX], never[PART_MAX], now[PART_MAX];
  snprintf(more, sizeof more, "'phase':'%s','lockedAt':%s,'updatedAt':%s", phase, instant(never, 0),
           instant(now, dibs__wall_ms()));
  return update(db, row, more);
}

static dibs_status commit(struct phases_db *db, const struct phases_row *row, const struct phases_row *next) {
  char more[3 * PART_MAX], mine[PART_MAX];
  const char *field = guard_of(db, row, mine);
  snprintf(more, sizeof more,
           "'effects':{'$concatArrays':['$effects',[{'step':%" PRId64 ",'node':%u,"
           "'late':{'$cond':[{'$eq':['$%s',%s]},0,1]}}]]}",
           row->state, db->node, field, mine);
  return update(db, next, more);
}

/* ---- The engine ---- */

static void close_db(struct phases_db *db) {
  struct mongodb *own = db->own;
  if (!own) return;
  dibs__mongo_disconnect(own->link);
  dibs__mongo_location_free(own->location);
  free(own);
  db->own = NULL;
}

static dibs_status open_db(struct phases_db *db) {
  struct dibs__result result = {0};
  mongoc_init();
  mongoc_log_set_handler(NULL, NULL); /* what it has to say is in the errors */
  struct mongodb *own = calloc(1, sizeof *own);
  db->own = own;
  dibs__status status = own ? dibs__mongo_location(db->parsed, &own->location, &result) : DIBS_NO_MEMORY;
  if (status == DIBS_OK)
    status = dibs__mongo_connect(own->location, dibs__tick_add_ms(dibs__tick_now(), LAB_LINE_MS), &own->link, &result);
  if (status == DIBS_OK) return DIBS_OK;
  close_db(db);
  return fail(db, status, &result);
}

static const struct phases_engine engine = {
    .head = {sizeof engine, PHASES_MODULE_ABI},
    .title = {[PHASES_POLLED] = "polled findAndModify",
              [PHASES_COMPARED] = "polled findAndModify, compared",
              [PHASES_DIBS] = "dibs"},
    .text = {[PHASES_POLLED] = "the oldest free document, claimed by its lockedAt; what follows checks nothing",
             [PHASES_COMPARED] = "the same, and the document is written only if its lockedAt is still that of the "
                                 "claim; the effect before it has happened by then",
             [PHASES_DIBS] = "claims of dibs; the effect is in the document, and one update, which compares the fence "
                             "of the claim, writes both"},
    .note = "By hand an effect is a document of a second collection, with dibs an element of an array in the row's own "
            "document, because one update is atomic without a transaction. An effect elsewhere needs an id of its "
            "step, or a check of the fence there.",
    .id = "_id",
    .fence = "fence",
    .phase = "phase",
    .locked_at = "lockedAt",
    .updated_at = "updatedAt",
    .open = open_db,
    .close = close_db,
    .make = make,
    .drop = drop,
    .version = version,
    .request_deletions = request_deletions,
    .count_step = count_step,
    .count_ended = count_ended,
    .count = count,
    .claim = claim,
    .read = read_row,
    .effect = effect,
    .write = write_row,
    .commit = commit,
};

DIBS__MODULE_API dibs__module_part_fn dibs__phases_module;
const struct dibs__module_head *dibs__phases_module(void) {
  return &engine.head;
}

/* SPDX-License-Identifier: MIT */
/*
 * Runs (R80 to R83): a document for each, which the server deletes when its time is over.
 *
 *   runs   {_id: ID, name, kind, host, command, output, fence, nr, how, code, began, ended, until}
 *   store  {_id: "settings", run_keep_ms}
 */
#include "drivers/mongodb/batch_impl.h"
#include "store/run.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

enum { RUN_ID = 33 };
#define LATEST_MS INT64_C(253402300799000) /* the end of the year 9999 */

typedef struct dibs__mongo_batch batch;
typedef struct dibs__run_op run_op;

static struct dibs__mongo_link *link_of(const batch *b) {
  return b->session->link;
}

/* ---- Settings ---- */

static bool see_settings(void *user, const bson_t *row) {
  int64_t *keep_ms = user;
  *keep_ms = dibs__mongo_number_in(row, "run_keep_ms", -1);
  return false;
}

static dibs__status read_settings(batch *b, int64_t *keep_ms) {
  bson_t filter = BSON_INITIALIZER;
  *keep_ms = -1;
  BSON_APPEND_UTF8(&filter, "_id", "settings");
  dibs__status status =
      dibs__mongo_find(link_of(b), DIBS__MONGO_META, &filter, 1, false, see_settings, keep_ms, b->result);
  bson_destroy(&filter);
  return status;
}

static dibs__status write_settings(batch *b, int64_t keep_ms) {
  bson_t command = BSON_INITIALIZER, list, one, q, u, set, reply;
  BSON_APPEND_UTF8(&command, "update", mongoc_collection_get_name(link_of(b)->collections[DIBS__MONGO_META]));
  BSON_APPEND_ARRAY_BEGIN(&command, "updates", &list);
  BSON_APPEND_DOCUMENT_BEGIN(&list, "0", &one);
  BSON_APPEND_DOCUMENT_BEGIN(&one, "q", &q);
  BSON_APPEND_UTF8(&q, "_id", "settings");
  bson_append_document_end(&one, &q);
  BSON_APPEND_DOCUMENT_BEGIN(&one, "u", &u);
  BSON_APPEND_DOCUMENT_BEGIN(&u, "$set", &set);
  BSON_APPEND_INT64(&set, "run_keep_ms", keep_ms);
  bson_append_document_end(&u, &set);
  bson_append_document_end(&one, &u);
  BSON_APPEND_BOOL(&one, "upsert", true);
  bson_append_document_end(&list, &one);
  bson_append_array_end(&command, &list);
  dibs__status status = dibs__mongo_write(link_of(b), &command, &reply, b->result);
  bool refused = bson_has_field(&reply, "writeErrors"); /* two clients have made it at once, say */
  bson_destroy(&reply);
  bson_destroy(&command);
  return status == DIBS_OK && refused ? DIBS_UNAVAILABLE : status;
}

/* ---- PUT ---- */

static bool see_run(void *user, const bson_t *row) {
  (void)row;
  *(bool *)user = true;
  return false;
}

/* The insert was refused: because the run is there already? */
static bool has_run(batch *b, const struct dibs__run_row *row) {
  bson_t filter = BSON_INITIALIZER;
  char id[RUN_ID];
  bool there = false;
  dibs__hex_write(row->id.b, id);
  BSON_APPEND_UTF8(&filter, "_id", id);
  (void)dibs__mongo_find(link_of(b), DIBS__MONGO_RUN, &filter, 1, false, see_run, &there, b->result);
  bson_destroy(&filter);
  return there;
}

static bool put_run(bson_t *to, const struct dibs__run_row *row, int64_t now, int64_t keep_ms) {
  char id[RUN_ID];
  dibs__hex_write(row->id.b, id);
  return BSON_APPEND_UTF8(to, "_id", id) && dibs__mongo_put_bytes(to, "name", row->name) &&
         dibs__mongo_put_bytes(to, "kind", row->kind) && dibs__mongo_put_bytes(to, "host", row->host) &&
         dibs__mongo_put_bytes(to, "command", row->command) && dibs__mongo_put_bytes(to, "output", row->output) &&
         BSON_APPEND_INT64(to, "fence", (int64_t)row->fence.v) && BSON_APPEND_INT64(to, "nr", (int64_t)row->nr) &&
         BSON_APPEND_INT64(to, "how", row->how) && BSON_APPEND_INT64(to, "code", row->code) &&
         BSON_APPEND_INT64(to, "began", now - row->began_ms) && BSON_APPEND_INT64(to, "ended", now - row->ended_ms) &&
         BSON_APPEND_DATE_TIME(to, "until", keep_ms > LATEST_MS - now ? LATEST_MS : now + keep_ms);
}

/* An id that exists stays as it is (R80): the insert is refused. */
static dibs__status keep_run(batch *b, const run_op *op) {
  int64_t keep_ms;
  dibs__status status = read_settings(b, &keep_ms);
  if (keep_ms < 0) keep_ms = DIBS__RUN_KEEP_MS;
  if (status != DIBS_OK || keep_ms == 0) return status;
  if (op->keep_ms >= 0) keep_ms = op->keep_ms;
  bson_t command = BSON_INITIALIZER, list, one, reply;
  BSON_APPEND_UTF8(&command, "insert", mongoc_collection_get_name(link_of(b)->collections[DIBS__MONGO_RUN]));
  BSON_APPEND_ARRAY_BEGIN(&command, "documents", &list);
  bool fine = BSON_APPEND_DOCUMENT_BEGIN(&list, "0", &one) && put_run(&one, &op->row, b->now, keep_ms) &&
              bson_append_document_end(&list, &one) && bson_append_array_end(&command, &list);
  status = DIBS_NO_MEMORY;
  if (fine) {
    status = dibs__mongo_write(link_of(b), &command, &reply, b->result);
    bool refused = bson_has_field(&reply, "writeErrors");
    bson_destroy(&reply);
    b->result->commits++;
    if (status == DIBS_OK && refused && !has_run(b, &op->row)) status = DIBS_UNAVAILABLE;
  }
  bson_destroy(&command);
  if (status != DIBS_OK) return status;
  dibs__mongo_index(b, DIBS__MONGO_RUN, "until", true);
  dibs__mongo_index(b, DIBS__MONGO_RUN, "ended", false);
  return status;
}

/* ---- LIST ---- */

struct listing {
  struct dibs__run_row rows[DIBS__RUN_ROWS];
  bson_t *kept[DIBS__RUN_ROWS]; /* their texts */
  uint32_t count;
};

static void list_run(struct listing *l, const bson_t *from) {
  bson_t *kept = bson_copy(from);
  struct dibs__run_row *row = &l->rows[l->count];
  dibs__str id = dibs__mongo_bytes_in(kept, "_id");
  if (id.len != RUN_ID - 1 || !dibs__hex_read(id.p, row->id.b)) {
    bson_destroy(kept);
    return;
  }
  row->name = dibs__mongo_bytes_in(kept, "name");
  row->kind = dibs__mongo_bytes_in(kept, "kind");
  row->host = dibs__mongo_bytes_in(kept, "host");
  row->command = dibs__mongo_bytes_in(kept, "command");
  row->output = dibs__mongo_bytes_in(kept, "output");
  row->fence.v = (uint64_t)dibs__mongo_number_in(kept, "fence", 0);
  row->nr = (uint64_t)dibs__mongo_number_in(kept, "nr", 0);
  row->how = (uint32_t)dibs__mongo_number_in(kept, "how", 0);
  row->code = (int32_t)dibs__mongo_number_in(kept, "code", 0);
  row->began_ms = dibs__mongo_number_in(kept, "began", 0);
  row->ended_ms = dibs__mongo_number_in(kept, "ended", 0);
  l->kept[l->count++] = kept;
}

static void put_compared(bson_t *to, const char *field, const char *how, int64_t number) {
  bson_t part;
  BSON_APPEND_DOCUMENT_BEGIN(to, field, &part);
  BSON_APPEND_INT64(&part, how, number);
  bson_append_document_end(to, &part);
}

/* {$or: [{ended: {$lt: before}}, {ended: before, _id: {$lt: ID}}]} */
static void put_before(bson_t *filter, const run_op *op) {
  static const dibs__id none;
  char id[RUN_ID];
  bson_t any, one, part;
  if (memcmp(&op->before_id, &none, sizeof none) == 0) {
    put_compared(filter, "ended", "$lt", op->before_ms);
    return;
  }
  dibs__hex_write(op->before_id.b, id);
  BSON_APPEND_ARRAY_BEGIN(filter, "$or", &any);
  BSON_APPEND_DOCUMENT_BEGIN(&any, "0", &one);
  put_compared(&one, "ended", "$lt", op->before_ms);
  bson_append_document_end(&any, &one);
  BSON_APPEND_DOCUMENT_BEGIN(&any, "1", &one);
  BSON_APPEND_INT64(&one, "ended", op->before_ms);
  BSON_APPEND_DOCUMENT_BEGIN(&one, "_id", &part);
  BSON_APPEND_UTF8(&part, "$lt", id);
  bson_append_document_end(&one, &part);
  bson_append_document_end(&any, &one);
  bson_append_array_end(filter, &any);
}

/* Names between the prefix and the largest text that begins with it. */
static void put_prefix(bson_t *filter, dibs__str prefix) {
  static const char last[] = "\xf4\x8f\xbf\xbf"; /* the last character that UTF-8 has */
  char most[DIBS_NAME_MAX + sizeof last];
  size_t len = prefix.len;
  bson_t part;
  memcpy(most, prefix.p, prefix.len);
  for (; len < DIBS_NAME_MAX; len += sizeof last - 1) memcpy(most + len, last, sizeof last);
  BSON_APPEND_DOCUMENT_BEGIN(filter, "name", &part);
  bson_append_utf8(&part, "$gte", -1, prefix.p, (int)prefix.len);
  bson_append_utf8(&part, "$lte", -1, most, (int)len);
  bson_append_document_end(filter, &part);
}

static void put_filter(bson_t *filter, const run_op *op, int64_t now) {
  bson_t part;
  BSON_APPEND_DOCUMENT_BEGIN(filter, "until", &part);
  BSON_APPEND_DATE_TIME(&part, "$gt", now);
  bson_append_document_end(filter, &part);
  if (op->name.len) bson_append_utf8(filter, "name", -1, op->name.p, (int)op->name.len);
  if (!op->name.len && op->prefix.len) put_prefix(filter, op->prefix);
  if (op->kind.len) bson_append_utf8(filter, "kind", -1, op->kind.p, (int)op->kind.len);
  if (op->nr) BSON_APPEND_INT64(filter, "nr", (int64_t)op->nr);
  if (op->failed) put_compared(filter, "how", "$ne", DIBS__RUN_DONE);
  bson_t both, one;
  BSON_APPEND_ARRAY_BEGIN(filter, "$and", &both);
  BSON_APPEND_DOCUMENT_BEGIN(&both, "0", &one);
  put_compared(&one, "ended", "$gte", op->since_ms ? op->since_ms : INT64_MIN);
  bson_append_document_end(&both, &one);
  BSON_APPEND_DOCUMENT_BEGIN(&both, "1", &one);
  if (op->before_ms) put_before(&one, op);
  bson_append_document_end(&both, &one);
  bson_append_array_end(filter, &both);
}

static bool put_options(const struct dibs__mongo_link *link, bson_t *options, uint32_t most) {
  bson_t part;
  bool fine = BSON_APPEND_DOCUMENT_BEGIN(options, "sort", &part) && BSON_APPEND_INT32(&part, "ended", -1) &&
              BSON_APPEND_INT32(&part, "_id", -1) && bson_append_document_end(options, &part) &&
              BSON_APPEND_INT64(options, "limit", most);
  if (!link->replicated) return fine;
  return fine && BSON_APPEND_DOCUMENT_BEGIN(options, "readConcern", &part) &&
         BSON_APPEND_UTF8(&part, "level", "majority") && bson_append_document_end(options, &part);
}

static bool is_listed(dibs__str name, const run_op *op) {
  return op->prefix.len == 0 || (name.len >= op->prefix.len && memcmp(name.p, op->prefix.p, op->prefix.len) == 0);
}

static dibs__status list_runs(batch *b, run_op *op) {
  int64_t keep_ms;
  bson_t filter = BSON_INITIALIZER, options = BSON_INITIALIZER;
  bson_error_t error;
  const bson_t *row, *reply = NULL;
  struct listing *l = calloc(1, sizeof *l);
  dibs__status status = l && put_options(link_of(b), &options, op->most) ? read_settings(b, &keep_ms) : DIBS_NO_MEMORY;
  bool possible = dibs__mongo_is_text(op->name) && dibs__mongo_is_text(op->prefix) && dibs__mongo_is_text(op->kind);
  if (status == DIBS_OK && possible) {
    put_filter(&filter, op, b->now);
    mongoc_cursor_t *cursor =
        mongoc_collection_find_with_opts(link_of(b)->collections[DIBS__MONGO_RUN], &filter, &options, NULL);
    while (l->count < DIBS__RUN_ROWS && mongoc_cursor_next(cursor, &row))
      if (is_listed(dibs__mongo_bytes_in(row, "name"), op)) list_run(l, row);
    if (mongoc_cursor_error_document(cursor, &error, &reply))
      status = dibs__mongo_explain(link_of(b), &error, reply, false, b->result);
    mongoc_cursor_destroy(cursor);
  }
  if (status == DIBS_OK) {
    op->off = keep_ms == 0;
    op->now_ms = b->now;
    dibs__run_answer(op, l->rows, l->count);
  }
  for (uint32_t i = 0; l && i < l->count; i++) bson_destroy(l->kept[i]);
  free(l);
  bson_destroy(&filter);
  bson_destroy(&options);
  return status;
}

/* ---- The family ---- */

/* What listings choose by; the command and the output are any bytes. */
static bool has_texts(const struct dibs__run_row *row) {
  return dibs__mongo_is_text(row->name) && dibs__mongo_is_text(row->kind) && dibs__mongo_is_text(row->host);
}

void dibs__mongo_runs(batch *b) {
  for (size_t i = 0; i < b->count; i++) {
    run_op *op = (run_op *)b->elements[i].op;
    dibs__status status = DIBS_UNAVAILABLE;
    if (op->op.family != DIBS__FAM_RUN || !dibs__run_valid(op)) continue;
    if (op->op.verb == DIBS__RUN_PUT && !has_texts(&op->row))
      status = DIBS_INVALID;
    else if (!link_of(b)->broken && dibs__tick_before(dibs__tick_now(), link_of(b)->by))
      status = op->op.verb == DIBS__RUN_PUT    ? keep_run(b, op)
               : op->op.verb == DIBS__RUN_LIST ? list_runs(b, op)
                                               : write_settings(b, op->keep_ms);
    op->op.status = status == DIBS_UNKNOWN && op->op.verb == DIBS__RUN_LIST ? DIBS_UNAVAILABLE : status;
  }
}

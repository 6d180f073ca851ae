/* SPDX-License-Identifier: MIT */
/*
 * The ledger of counters (R86, R89, R90): a document for each source, and one for each guard.
 *
 *   sources  {_id: SOURCE, v, sequence, refused, until | since, batch: {sequence, guard, fence, sure, items: [{key,
 * delta}]}}
 *
 * The server deletes a document at `until`.  One with a batch has `since` instead: it stays until the batch is applied.
 *
 * `batch` is there while a batch is applied: from then on it will be applied, by the client that put it there or by
 * another one (counter.c).  A batch under a guard is not `sure` until the guard's document has its fence; until
 * then it may be refused.
 */
#include "drivers/mongodb/counter_impl.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

typedef struct dibs__mongo_batch batch;
typedef struct dibs__mongo_ledger ledger;

void dibs__mongo_source_text(const dibs__id *id, char to[DIBS__MONGO_SOURCE]) {
  dibs__hex_write(id->b, to);
}

void dibs__mongo_ledger_clear(ledger *l) {
  bson_destroy(l->seen);
  *l = (ledger){0};
}

void dibs__mongo_ledger_read(ledger *l, const bson_t *row) {
  bson_iter_t at;
  uint32_t len;
  const uint8_t *bytes;
  dibs__mongo_ledger_clear(l);
  if (!row) return;
  l->seen = bson_copy(row);
  l->version = dibs__mongo_number_in(l->seen, "v", 0);
  l->sequence = (uint64_t)dibs__mongo_number_in(l->seen, "sequence", 0);
  l->refused = dibs__mongo_bytes_in(l->seen, "refused");
  if (!bson_iter_init_find(&at, l->seen, "batch") || !BSON_ITER_HOLDS_DOCUMENT(&at)) return;
  bson_iter_document(&at, &len, &bytes);
  l->applies = bson_init_static(&l->batch, bytes, len);
  if (!l->applies) return;
  l->batch_sequence = (uint64_t)dibs__mongo_number_in(&l->batch, "sequence", 0);
  l->sure = bson_iter_init_find(&at, &l->batch, "sure") && bson_iter_as_bool(&at);
}

static bool see_ledger(void *user, const bson_t *row) {
  dibs__mongo_ledger_read(user, row);
  return false;
}

dibs__status dibs__mongo_ledger_load(batch *b, const dibs__id *id, ledger *l) {
  char source[DIBS__MONGO_SOURCE];
  bson_t filter = BSON_INITIALIZER;
  dibs__mongo_source_text(id, source);
  dibs__mongo_ledger_clear(l);
  BSON_APPEND_UTF8(&filter, "_id", source);
  dibs__status status =
      dibs__mongo_find(b->session->link, DIBS__MONGO_SOURCE_ROW, &filter, 1, false, see_ledger, l, b->result);
  bson_destroy(&filter);
  return status;
}

/* ---- Writing ---- */

static bool put_items(bson_t *to, const struct dibs__counter_op *op) {
  bool fine = true;
  for (uint32_t i = 0; i < op->count && fine; i++) {
    char index[12];
    const char *at;
    bson_t one;
    bson_uint32_to_string(i, &at, index, sizeof index);
    fine = bson_append_document_begin(to, at, -1, &one) && dibs__mongo_put_bytes(&one, "key", op->items[i].key) &&
           BSON_APPEND_INT64(&one, "delta", op->items[i].delta) && bson_append_document_end(to, &one);
  }
  return fine;
}

static bool put_batch(bson_t *to, const struct dibs__counter_op *op, bool sure) {
  bson_t part, items;
  char guard[DIBS__MONGO_SOURCE];
  bool fine = BSON_APPEND_DOCUMENT_BEGIN(to, "batch", &part) &&
              BSON_APPEND_INT64(&part, "sequence", (int64_t)op->sequence) && BSON_APPEND_BOOL(&part, "sure", sure);
  if (op->fence.v) {
    dibs__mongo_source_text(&op->guard, guard);
    fine = fine && BSON_APPEND_UTF8(&part, "guard", guard) && BSON_APPEND_INT64(&part, "fence", (int64_t)op->fence.v);
  }
  return fine && BSON_APPEND_ARRAY_BEGIN(&part, "items", &items) && put_items(&items, op) &&
         bson_append_array_end(&part, &items) && bson_append_document_end(to, &part);
}

/* Sends {update: sources, updates: [{q: {_id, v}, u: document}]}, or {insert: ...}. */
static dibs__status send_ledger(batch *b, const char *source, const ledger *l, const bson_t *document, bool *done) {
  struct dibs__mongo_link *link = b->session->link;
  bson_t command = BSON_INITIALIZER, list, one, q, reply;
  bson_iter_t at;
  BSON_APPEND_UTF8(&command, l->seen ? "update" : "insert",
                   mongoc_collection_get_name(link->collections[DIBS__MONGO_SOURCE_ROW]));
  BSON_APPEND_ARRAY_BEGIN(&command, l->seen ? "updates" : "documents", &list);
  if (l->seen) {
    BSON_APPEND_DOCUMENT_BEGIN(&list, "0", &one);
    BSON_APPEND_DOCUMENT_BEGIN(&one, "q", &q);
    BSON_APPEND_UTF8(&q, "_id", source);
    BSON_APPEND_INT64(&q, "v", l->version);
    bson_append_document_end(&one, &q);
    BSON_APPEND_DOCUMENT(&one, "u", document);
    bson_append_document_end(&list, &one);
  } else {
    BSON_APPEND_DOCUMENT(&list, "0", document);
  }
  bson_append_array_end(&command, &list);
  dibs__status status = dibs__mongo_write(link, &command, &reply, b->result);
  b->result->commits++;
  *done = status == DIBS_OK && bson_iter_init_find(&at, &reply, "n") && bson_iter_as_int64(&at) == 1;
  bson_destroy(&reply);
  bson_destroy(&command);
  return status;
}

/* Replaces the document, if it is still as it was read; then `l` has the new one. */
dibs__status dibs__mongo_ledger_write(batch *b, const dibs__id *id, ledger *l, const struct dibs__mongo_entry *entry,
                                      bool *done) {
  char source[DIBS__MONGO_SOURCE];
  int64_t version;
  bson_t *document = bson_new();
  do dibs__random(&version, sizeof version);
  while (version == 0);
  dibs__mongo_source_text(id, source);
  bool fine = BSON_APPEND_UTF8(document, "_id", source) && BSON_APPEND_INT64(document, "v", version) &&
              BSON_APPEND_INT64(document, "sequence", (int64_t)entry->sequence);
  if (!entry->op) fine = fine && BSON_APPEND_DATE_TIME(document, "until", b->now + entry->keep_ms);
  if (entry->refused.len) fine = fine && dibs__mongo_put_bytes(document, "refused", entry->refused);
  if (entry->op)
    fine = fine && BSON_APPEND_INT64(document, "since", b->now) && put_batch(document, entry->op, entry->sure);
  *done = false;
  dibs__status status = fine ? send_ledger(b, source, l, document, done) : DIBS_NO_MEMORY;
  if (*done) dibs__mongo_ledger_read(l, document);
  bson_destroy(document);
  return status;
}

/* ---- A batch that another client has begun ---- */

static bool read_id(const bson_t *from, const char *field, dibs__id *id) {
  dibs__str text = dibs__mongo_bytes_in(from, field);
  return text.len == 2 * sizeof id->b && dibs__hex_read(text.p, id->b);
}

bool dibs__mongo_ledger_op(const ledger *l, struct dibs__counter_op *op) {
  bson_iter_t at, in;
  *op = (struct dibs__counter_op){.op = {.family = DIBS__FAM_COUNTER, .verb = DIBS__COUNTER_ADD}};
  op->sequence = l->batch_sequence;
  op->fence.v = (uint64_t)dibs__mongo_number_in(&l->batch, "fence", 0);
  if (!read_id(l->seen, "_id", &op->source) || (op->fence.v && !read_id(&l->batch, "guard", &op->guard))) return false;
  if (!bson_iter_init_find(&at, &l->batch, "items") || !BSON_ITER_HOLDS_ARRAY(&at)) return false;
  op->items = calloc(DIBS__COUNTER_ITEMS, sizeof *op->items);
  if (!op->items || !bson_iter_recurse(&at, &in)) return false;
  while (bson_iter_next(&in) && op->count < DIBS__COUNTER_ITEMS) {
    uint32_t len;
    const uint8_t *bytes;
    bson_t one;
    if (!BSON_ITER_HOLDS_DOCUMENT(&in)) return false;
    bson_iter_document(&in, &len, &bytes);
    if (!bson_init_static(&one, bytes, len)) return false;
    op->items[op->count++] = (struct dibs__counter_item){.key = dibs__mongo_bytes_in(&one, "key"),
                                                         .delta = dibs__mongo_number_in(&one, "delta", 0)};
  }
  return op->count > 0;
}

/* SPDX-License-Identifier: MIT */
/*
 * Reports (R36): a document for each client.  Each PUT deletes those that are older than its keep_ms.
 *
 *   reports  {_id: ID, seen, data}
 */
#include "drivers/mongodb/batch_impl.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

enum { REPORT_ID = 33 };

typedef struct dibs__mongo_batch batch;
typedef struct dibs__report_op report_op;

static struct dibs__mongo_link *link_of(const batch *b) {
  return b->session->link;
}

/* {delete: reports, deletes: [{q: {seen: {$lt: ...}}, limit: 0}]} */
static dibs__status forget_reports(batch *b, int64_t before) {
  bson_t command = BSON_INITIALIZER, list, one, q, part, reply;
  BSON_APPEND_UTF8(&command, "delete", mongoc_collection_get_name(link_of(b)->collections[DIBS__MONGO_REPORT]));
  BSON_APPEND_ARRAY_BEGIN(&command, "deletes", &list);
  BSON_APPEND_DOCUMENT_BEGIN(&list, "0", &one);
  BSON_APPEND_DOCUMENT_BEGIN(&one, "q", &q);
  BSON_APPEND_DOCUMENT_BEGIN(&q, "seen", &part);
  BSON_APPEND_INT64(&part, "$lt", before);
  bson_append_document_end(&q, &part);
  bson_append_document_end(&one, &q);
  BSON_APPEND_INT32(&one, "limit", 0);
  bson_append_document_end(&list, &one);
  bson_append_array_end(&command, &list);
  dibs__status status = dibs__mongo_write(link_of(b), &command, &reply, b->result);
  bson_destroy(&reply);
  bson_destroy(&command);
  return status;
}

/* {update: reports, updates: [{q: {_id}, u: document, upsert: true}]}, or {delete: ..., deletes: [{q, limit: 1}]} */
static dibs__status write_report(batch *b, const report_op *op) {
  bool drops = op->op.verb == DIBS__REPORT_DROP;
  bson_t command = BSON_INITIALIZER, list, one, part, reply;
  char id[REPORT_ID];
  dibs__hex_write(op->id.b, id);
  bool fine = BSON_APPEND_UTF8(&command, drops ? "delete" : "update",
                               mongoc_collection_get_name(link_of(b)->collections[DIBS__MONGO_REPORT])) &&
              BSON_APPEND_ARRAY_BEGIN(&command, drops ? "deletes" : "updates", &list) &&
              BSON_APPEND_DOCUMENT_BEGIN(&list, "0", &one) && BSON_APPEND_DOCUMENT_BEGIN(&one, "q", &part) &&
              BSON_APPEND_UTF8(&part, "_id", id) && bson_append_document_end(&one, &part);
  if (drops) {
    fine = fine && BSON_APPEND_INT32(&one, "limit", 1);
  } else {
    fine = fine && BSON_APPEND_DOCUMENT_BEGIN(&one, "u", &part) && BSON_APPEND_UTF8(&part, "_id", id) &&
           BSON_APPEND_INT64(&part, "seen", b->now) && dibs__mongo_put_bytes(&part, "data", op->data) &&
           bson_append_document_end(&one, &part) && BSON_APPEND_BOOL(&one, "upsert", true);
  }
  fine = fine && bson_append_document_end(&list, &one) && bson_append_array_end(&command, &list);
  dibs__status status = DIBS_NO_MEMORY;
  if (fine) {
    status = dibs__mongo_write(link_of(b), &command, &reply, b->result);
    bson_destroy(&reply);
  }
  bson_destroy(&command);
  return status == DIBS_OK && !drops ? forget_reports(b, b->now - op->keep_ms) : status;
}

struct reading {
  int64_t now;
  struct dibs__report *rows; /* with data in `kept` */
  bson_t **kept;
  uint32_t count;
};

static bool see_report(void *user, const bson_t *row) {
  struct reading *r = user;
  struct dibs__report *to = &r->rows[r->count];
  bson_t *kept = bson_copy(row);
  dibs__str id = dibs__mongo_bytes_in(kept, "_id");
  to->data = dibs__mongo_bytes_in(kept, "data");
  to->age_ms = r->now - dibs__mongo_number_in(kept, "seen", 0);
  if (to->age_ms < 0) to->age_ms = 0; /* it was seen by a client that reads the clock a few ms later */
  if (id.len != REPORT_ID - 1 || !dibs__hex_read(id.p, to->id.b) || to->data.len > DIBS__REPORT_MAX) {
    bson_destroy(kept);
    return true;
  }
  r->kept[r->count++] = kept;
  return r->count < DIBS__REPORTS_MAX;
}

static bool answer_reports(report_op *op, const struct reading *r) {
  size_t bytes = 0;
  if (r->count == 0) return true;
  for (uint32_t i = 0; i < r->count; i++) bytes += r->rows[i].data.len;
  op->got = malloc(r->count * sizeof *op->got + bytes);
  if (!op->got) return false;
  char *at = (char *)(op->got + r->count);
  for (uint32_t i = 0; i < r->count; i++) {
    op->got[i] = r->rows[i];
    op->got[i].data.p = at;
    if (r->rows[i].data.len) memcpy(at, r->rows[i].data.p, r->rows[i].data.len);
    at += r->rows[i].data.len;
  }
  op->got_count = r->count;
  return true;
}

static dibs__status read_reports(batch *b, report_op *op) {
  struct reading r = {.now = b->now};
  bson_t filter = BSON_INITIALIZER, part;
  r.rows = calloc(DIBS__REPORTS_MAX, sizeof *r.rows);
  r.kept = calloc(DIBS__REPORTS_MAX, sizeof *r.kept);
  dibs__status status = DIBS_NO_MEMORY;
  if (r.rows && r.kept) {
    BSON_APPEND_DOCUMENT_BEGIN(&filter, "seen", &part);
    BSON_APPEND_INT64(&part, "$gte", b->now - op->keep_ms);
    bson_append_document_end(&filter, &part);
    status =
        dibs__mongo_find(link_of(b), DIBS__MONGO_REPORT, &filter, DIBS__REPORTS_MAX, false, see_report, &r, b->result);
    if (status == DIBS_OK && !answer_reports(op, &r)) status = DIBS_NO_MEMORY;
    for (uint32_t i = 0; i < r.count; i++) bson_destroy(r.kept[i]);
  }
  free(r.rows);
  free(r.kept);
  bson_destroy(&filter);
  return status;
}

static dibs__status run_report(batch *b, report_op *op) {
  bool reads = op->op.verb == DIBS__REPORT_READ;
  dibs__status status = reads ? DIBS_OK : write_report(b, op);
  if (status == DIBS_OK && (reads || (op->op.verb == DIBS__REPORT_PUT && op->want))) status = read_reports(b, op);
  return status == DIBS_UNKNOWN && reads ? DIBS_UNAVAILABLE : status;
}

void dibs__mongo_reports(batch *b) {
  for (size_t i = 0; i < b->count; i++) {
    report_op *op = (report_op *)b->elements[i].op;
    if (op->op.family != DIBS__FAM_REPORT) continue;
    op->got = NULL;
    op->got_count = 0;
    if (op->op.verb > DIBS__REPORT_DROP || (op->op.verb != DIBS__REPORT_DROP && op->keep_ms <= 0) ||
        (op->op.verb == DIBS__REPORT_PUT && op->data.len > DIBS__REPORT_MAX))
      op->op.status = DIBS_INVALID;
    else if (!link_of(b)->broken && dibs__tick_before(dibs__tick_now(), link_of(b)->by))
      op->op.status = run_report(b, op);
    else
      op->op.status = DIBS_UNAVAILABLE;
  }
}

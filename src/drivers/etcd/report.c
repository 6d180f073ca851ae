/* SPDX-License-Identifier: MIT */
/*
 * Reports.  A report's key is on a lease of etcd that lives a little longer than a report is kept, so that it vanishes
 * by itself.  etcd tells no age.  A reader counts it from when it first saw the report's revision; at its first
 * reading, from what the lease of etcd has left, in whole seconds.
 */
#include "drivers/etcd/etcd_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { LEASE_MORE_S = 2, REMOVE_MOST = 64 };

struct seen {
  dibs__id id;
  uint64_t mod;
  dibs__tick at;
};

/* Guarded by the store's lock. */
struct dibs__etcd_reports {
  struct dibs__etcd_item item; /* of our own reports */
  dibs__tick read;             /* the latest reading; 0: none */
  size_t count;
  struct seen *seen; /* those of the latest reading */
};

typedef struct dibs__etcd_element element;
typedef struct dibs__etcd_batch batch;
typedef struct dibs__report_op report_op;

static struct dibs__etcd_reports *reports_locked(struct dibs__etcd *store) {
  if (!store->reports) store->reports = calloc(1, sizeof *store->reports);
  return store->reports;
}

void dibs__etcd_reports_free(struct dibs__etcd *store) {
  if (!store->reports) return;
  free(store->reports->seen);
  free(store->reports);
  store->reports = NULL;
}

static bool report_valid(report_op *op) {
  op->got = NULL;
  op->got_count = 0;
  bool drops = op->op.verb == DIBS__REPORT_DROP;
  return op->op.verb <= DIBS__REPORT_DROP && (drops || op->keep_ms > 0) &&
         (op->op.verb != DIBS__REPORT_PUT || op->data.len <= DIBS__REPORT_MAX);
}

/* ---- Putting ---- */

/* Of our reports; kept alive, or a new one. */
static dibs__status ensure_lease(batch *b, const report_op *op, int64_t *lease) {
  struct dibs__etcd_item item = {0};
  struct dibs__etcd_text body = {0};
  json_t *answers;
  uint32_t seconds = (uint32_t)((op->keep_ms < 3600000 ? op->keep_ms : 3600000) / 1000) + LEASE_MORE_S;
  dibs__mutex_lock(&b->store->lock);
  struct dibs__etcd_reports *reports = reports_locked(b->store);
  if (reports) item = reports->item;
  dibs__mutex_unlock(&b->store->lock);
  if (!reports) return DIBS_NO_MEMORY;
  if (item.id && item.class_s == seconds) {
    dibs__etcd_putf(&body, "{\"ID\":\"%" PRId64 "\"}", item.id);
    dibs__status status = dibs__etcd_post_lines(b->link, "/v3/lease/keepalive", &body, b->by, &answers, b->result);
    dibs__etcd_text_free(&body);
    if (status != DIBS_OK && status != DIBS_NOT_FOUND) return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
    const json_t *result = status == DIBS_OK ? json_object_get(json_array_get(answers, 0), "result") : NULL;
    bool lives = dibs__etcd_number(result, "TTL") > 0;
    if (status == DIBS_OK) json_decref(answers);
    *lease = item.id;
    if (lives) return DIBS_OK;
  }
  dibs__status status = dibs__etcd_grant(b->link, seconds, b->by, &item, b->result);
  if (status != DIBS_OK) return status;
  dibs__mutex_lock(&b->store->lock);
  reports->item = item;
  dibs__mutex_unlock(&b->store->lock);
  *lease = item.id;
  return DIBS_OK;
}

/* ---- Reading ---- */

static struct seen *find_seen_locked(const struct dibs__etcd_reports *reports, dibs__id id, uint64_t mod) {
  for (size_t i = 0; i < reports->count; i++)
    if (reports->seen[i].mod == mod && dibs__id_equal(reports->seen[i].id, id)) return &reports->seen[i];
  return NULL;
}

/* When the report was put, at the earliest that is sure. */
static dibs__tick put_at(batch *b, dibs__id id, uint64_t mod, int64_t lease, dibs__tick now) {
  dibs__tick at = now;
  int64_t left_s, granted_s;
  dibs__mutex_lock(&b->store->lock);
  const struct dibs__etcd_reports *reports = b->store->reports;
  const struct seen *seen = reports ? find_seen_locked(reports, id, mod) : NULL;
  bool first = !seen && (!reports || !reports->read.ns);
  if (seen) at = seen->at;
  dibs__mutex_unlock(&b->store->lock);
  if (!first || dibs__etcd_left(b->link, lease, b->by, &left_s, &granted_s, b->result) != DIBS_OK || left_s < 0)
    return at;
  int64_t age_ms = (granted_s - left_s - 1) * 1000;
  if (age_ms > 0) at.ns -= age_ms * DIBS__NS_PER_MS;
  return at;
}

static void remember(batch *b, struct seen *seen, size_t count, dibs__tick now) {
  dibs__mutex_lock(&b->store->lock);
  struct dibs__etcd_reports *reports = reports_locked(b->store);
  if (reports) {
    free(reports->seen);
    reports->seen = seen;
    reports->count = count;
    reports->read = now;
    seen = NULL;
  }
  dibs__mutex_unlock(&b->store->lock);
  free(seen);
}

static bool read_id(const struct dibs__etcd_key *key, dibs__id *id) {
  const char *slash = strrchr(key->text, '/');
  if (!slash || strlen(slash + 1) != 2 * sizeof id->b) return false;
  for (size_t i = 0; i < sizeof id->b; i++) {
    char two[3] = {slash[1 + 2 * i], slash[2 + 2 * i], '\0'}, *end;
    id->b[i] = (uint8_t)strtoul(two, &end, 16);
    if (*end) return false;
  }
  return true;
}

/* A put removes old reports, unless they were put again meanwhile; what it can't remove now, etcd does later. */
static void remove_old(batch *b, const report_op *op, const struct seen *seen, size_t count, dibs__tick now) {
  struct dibs__etcd_txn outer = {0}, inner = {0};
  struct dibs__etcd_text body = {0};
  struct dibs__etcd_key range, key;
  json_t *answer;
  size_t old = 0;
  dibs__etcd_key(b->store, "report", (dibs__str){0}, &range);
  for (size_t i = 0; i < count && old < REMOVE_MOST; i++) {
    if ((now.ns - seen[i].at.ns) / DIBS__NS_PER_MS <= op->keep_ms) continue;
    old++;
    dibs__etcd_key_id(&range, seen[i].id, &key);
    dibs__etcd_txn_begin(&inner);
    dibs__etcd_compare(&inner, &key, DIBS__ETCD_MOD, seen[i].mod);
    dibs__etcd_op_delete(&inner.success, &key);
    dibs__etcd_op_txn(&outer.success, &inner);
  }
  dibs__etcd_txn_put(&body, &outer);
  if (old && dibs__etcd_post(b->link, "/v3/kv/txn", &body, true, b->by, &answer, b->result) == DIBS_OK)
    json_decref(answer);
  dibs__etcd_txn_free(&outer);
  dibs__etcd_txn_free(&inner);
  dibs__etcd_text_free(&body);
}

/* Answers copies, if they are wanted: the texts follow the rows in the same memory. */
static dibs__status answer_reports(batch *b, report_op *op, const json_t *range, uint64_t put) {
  const json_t *kvs = json_object_get(range, "kvs"), *kv;
  size_t most = json_array_size(kvs), seen_count = 0, i, len;
  dibs__tick now = dibs__tick_now();
  if (most > DIBS__REPORTS_MAX) most = DIBS__REPORTS_MAX;
  struct seen *seen = calloc(most + 1, sizeof *seen);
  struct dibs__report *got = malloc((most + 1) * (sizeof *got + DIBS__REPORT_MAX));
  if (!seen || !got) {
    free(seen);
    free(got);
    return DIBS_NO_MEMORY;
  }
  char *at = (char *)(got + most + 1);
  json_array_foreach(kvs, i, kv) {
    struct dibs__etcd_key key;
    struct seen one = {.mod = (uint64_t)dibs__etcd_number(kv, "mod_revision")};
    if (seen_count == most || !dibs__etcd_key_of(kv, &key) || !read_id(&key, &one.id)) continue;
    one.at = one.mod == put ? now : put_at(b, one.id, one.mod, dibs__etcd_number(kv, "lease"), now);
    seen[seen_count++] = one;
    int64_t age_ms = (now.ns - one.at.ns) / DIBS__NS_PER_MS;
    bool wanted = age_ms <= op->keep_ms && (!put || op->want);
    char *bytes = wanted ? dibs__etcd_bytes(kv, "value", &len) : NULL;
    if (!bytes || len > DIBS__REPORT_MAX) {
      free(bytes);
      continue;
    }
    memcpy(at, bytes, len);
    got[op->got_count++] = (struct dibs__report){one.id, age_ms, dibs__str_of(at, len)};
    at += len;
    free(bytes);
  }
  if (put) remove_old(b, op, seen, seen_count, now);
  remember(b, seen, seen_count, now);
  op->got = op->got_count ? got : NULL;
  if (!op->got) free(got);
  return DIBS_OK;
}

void dibs__etcd_report_run(batch *b, element *e) {
  report_op *op = (report_op *)e->op;
  struct dibs__etcd_txn txn = {0};
  struct dibs__etcd_text body = {0};
  struct dibs__etcd_key range, key;
  json_t *answer = NULL;
  int64_t lease = 0;
  bool puts = op->op.verb == DIBS__REPORT_PUT, reads = op->op.verb != DIBS__REPORT_DROP;
  if (!report_valid(op)) {
    dibs__etcd_done(b, e, DIBS_INVALID);
    return;
  }
  dibs__status status = puts ? ensure_lease(b, op, &lease) : DIBS_OK;
  dibs__etcd_key(b->store, "report", (dibs__str){0}, &range);
  dibs__etcd_key_id(&range, op->id, &key);
  if (puts) dibs__etcd_op_put(&txn.success, &key, op->data.len ? op->data.p : "", op->data.len, lease);
  if (op->op.verb == DIBS__REPORT_DROP) dibs__etcd_op_delete(&txn.success, &key);
  if (reads) dibs__etcd_op_range(&txn.success, &range, "");
  dibs__etcd_txn_put(&body, &txn);
  if (status == DIBS_OK) status = dibs__etcd_post(b->link, "/v3/kv/txn", &body, true, b->by, &answer, b->result);
  if (status == DIBS_NOT_FOUND) status = DIBS_UNAVAILABLE;
  const json_t *responses = json_object_get(answer, "responses");
  uint64_t revision = (uint64_t)dibs__etcd_number(json_object_get(answer, "header"), "revision");
  if (status == DIBS_OK && reads)
    status = answer_reports(b, op, dibs__etcd_range_at(responses, puts ? 1 : 0), puts ? revision : 0);
  json_decref(answer);
  dibs__etcd_txn_free(&txn);
  dibs__etcd_text_free(&body);
  dibs__etcd_done(b, e, status);
}

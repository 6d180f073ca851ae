/* SPDX-License-Identifier: MIT */
/*
 * The store's incarnation, the mandates of its buckets, and fences.
 *
 * A fence is (epoch << 32) + (revision - base) * 1024 + nth: the revision of etcd at which the holder's key was put.
 * Every transaction has a larger revision than all before it, on every member, and grants of one transaction differ by
 * `nth`.  `base` is a revision at or before the beginning of the epoch.  A bucket that is the store's own may leave its
 * 32 bits, as that of a server does (decision 15); a bucket that is served for an anchor elsewhere is used up before.
 *
 * The incarnation is a number that the first client puts, with the cluster's id.  A cluster that was restored from a
 * snapshot, or lost all its data, has lower revisions than those that were lost, so it is a new incarnation.  Its
 * fences are above all that the restored one can have drawn, and above the clock: one revision for each millisecond
 * since 2026, as if `base` had been negative.  So an emptied cluster draws none again, either.
 *
 * Such a cluster has another id, unless it was made with the same --initial-cluster-token and the same addresses.  Then
 * a process that has seen a larger revision begins the new incarnation.
 */
#include "drivers/etcd/etcd_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 2026-01-01 in ms since 1970; an epoch for every 2^32 / 1024 ms since then, as for the servers of rows. */
#define CLOCK_BASE_MS INT64_C(1767225600000)
#define CLOCK_EPOCH_MS (INT64_C(1) << 22)

/* A fence that a served bucket can still draw, while the revision grows meanwhile. */
enum { RESERVE = 65536, META_TRIES = 16 };

static const char *const served_names[] = {"own", "served", "left", "void"};

/* ---- Fences ---- */

dibs__fence dibs__etcd_fence(uint32_t epoch, uint64_t base, uint64_t revision, uint32_t nth) {
  int64_t since = (int64_t)(revision - base); /* `base` may be negative */
  uint64_t seq = (since > 0 ? (uint64_t)since : 0) * DIBS__ETCD_FENCES + nth + 1;
  return (dibs__fence){(((uint64_t)epoch << 32) + seq) & DIBS__FENCE_MAX};
}

/* An epoch above all that was drawn in this one up to the revision, and for a moment after it. */
static uint32_t epoch_after(uint32_t epoch, uint64_t base, uint64_t revision) {
  uint64_t drawn = dibs__etcd_fence(epoch, base, revision + RESERVE, DIBS__ETCD_FENCES - 1).v >> 32;
  return drawn >= DIBS__EPOCH_MAX ? DIBS__EPOCH_MAX + 1 : (uint32_t)drawn + 1;
}

/* An epoch above all that the restored memory can have drawn, and fences above the clock. */
static void begin_by_clock(struct dibs__etcd_meta *meta, uint32_t above, uint64_t revision) {
  int64_t ms = dibs__wall_ms() - CLOCK_BASE_MS;
  uint32_t epoch = ms > 0 ? (uint32_t)(ms / CLOCK_EPOCH_MS) + 1 : 1;
  meta->epoch = above > epoch ? above : epoch;
  meta->base = revision - (uint64_t)(ms > 0 && epoch >= above ? ms % CLOCK_EPOCH_MS : 0);
}

/* ---- The incarnation ---- */

static void incarnation_hex(const dibs__incarnation *from, char to[41]) {
  for (size_t i = 0; i < sizeof from->b; i++) snprintf(to + 2 * i, 3, "%02x", from->b[i]);
}

static bool incarnation_read(const char *hex, dibs__incarnation *to) {
  if (!hex || strlen(hex) != 2 * sizeof to->b) return false;
  for (size_t i = 0; i < sizeof to->b; i++) {
    unsigned byte;
    if (sscanf(hex + 2 * i, "%2x", &byte) != 1) return false;
    to->b[i] = (uint8_t)byte;
  }
  return true;
}

void dibs__etcd_meta_key(const struct dibs__etcd *store, struct dibs__etcd_key *key) {
  key->len = (size_t)snprintf(key->text, sizeof key->text, "%smeta", store->location.prefix);
}

/* CORRUPT, TOO_NEW: with a message. */
static dibs__status meta_read(const struct dibs__etcd *store, const json_t *kv, struct dibs__etcd_meta *meta,
                              struct dibs__result *result) {
  json_t *value = dibs__etcd_value(kv);
  int64_t format = dibs__etcd_number(value, "format");
  meta->mod = (uint64_t)dibs__etcd_number(kv, "mod_revision");
  bool valid = incarnation_read(json_string_value(json_object_get(value, "incarnation")), &meta->incarnation);
  meta->cluster = strtoull(
      json_string_value(json_object_get(value, "cluster")) ? json_string_value(json_object_get(value, "cluster")) : "",
      NULL, 10);
  meta->epoch = (uint32_t)dibs__etcd_number(value, "epoch");
  meta->base = (uint64_t)dibs__etcd_number(value, "base");
  meta->drawn = (uint64_t)dibs__etcd_number(value, "drawn");
  json_decref(value);
  if (format > 1) {
    dibs__set_message(result, "%.80s was written by a newer dibs (format %" PRId64 "); use that version",
                      store->location.shown, format);
    return DIBS_TOO_NEW;
  }
  if (format == 1 && valid && meta->epoch > 0 && meta->epoch <= DIBS__EPOCH_MAX) return DIBS_OK;
  dibs__set_message(result, "%.80s: the key %.60smeta belongs to another program, or is damaged; use another prefix=",
                    store->location.shown, store->location.prefix);
  return DIBS_CORRUPT;
}

/* `revision` is the largest revision known. */
static void meta_write(struct dibs__etcd *store, const struct dibs__etcd_meta *old, uint64_t cluster, uint64_t revision,
                       struct dibs__etcd_text *body) {
  struct dibs__etcd_txn txn = {0};
  struct dibs__etcd_text value = {0};
  struct dibs__etcd_key key;
  struct dibs__etcd_meta new = {0};
  char hex[41];
  begin_by_clock(&new, old->mod ? epoch_after(old->epoch, old->base, revision) : 1, revision);
  dibs__random(&new.incarnation, sizeof new.incarnation);
  incarnation_hex(&new.incarnation, hex);
  dibs__etcd_putf(&value,
                  "{\"format\":1,\"incarnation\":\"%s\",\"cluster\":\"%" PRIu64 "\",\"epoch\":%" PRIu32
                  ",\"base\":%" PRId64 ",\"drawn\":%" PRIu64 "}",
                  hex, cluster, new.epoch, (int64_t) new.base, revision);
  dibs__etcd_meta_key(store, &key);
  dibs__etcd_compare(&txn, &key, DIBS__ETCD_MOD, old->mod);
  dibs__etcd_op_put(&txn.success, &key, value.p ? value.p : "", value.len, 0);
  if (value.failed) txn.success.failed = true;
  dibs__etcd_txn_put(body, &txn);
  dibs__etcd_txn_free(&txn);
  dibs__etcd_text_free(&value);
}

/* ---- Buckets ---- */

void dibs__etcd_bucket_key(const struct dibs__etcd *store, uint16_t bucket, struct dibs__etcd_key *key) {
  key->len = (size_t)snprintf(key->text, sizeof key->text, "%sbucket/%u", store->location.prefix, (unsigned)bucket);
}

static bool of_this_incarnation(const struct dibs__etcd_meta *meta, const json_t *value) {
  dibs__incarnation its;
  return incarnation_read(json_string_value(json_object_get(value, "incarnation")), &its) &&
         memcmp(&its, &meta->incarnation, sizeof its) == 0;
}

static enum dibs__etcd_served served_of(const json_t *value) {
  const char *text = json_string_value(json_object_get(value, "serves"));
  for (int i = DIBS__ETCD_OWN; text && i <= DIBS__ETCD_LEFT; i++)
    if (strcmp(text, served_names[i]) == 0) return (enum dibs__etcd_served)i;
  return DIBS__ETCD_VOID;
}

/* A bucket of an earlier incarnation is the store's own under the next epoch; a served one, void. */
static struct dibs__etcd_bucket bucket_of(const struct dibs__etcd_meta *meta, const json_t *kv) {
  struct dibs__etcd_bucket b = {.epoch = meta->epoch, .base = meta->base, .known = true};
  json_t *value = kv ? dibs__etcd_value(kv) : NULL;
  if (!kv) return b;
  b.mod = (uint64_t)dibs__etcd_number(kv, "mod_revision");
  b.epoch = (uint32_t)dibs__etcd_number(value, "epoch");
  b.base = (uint64_t)dibs__etcd_number(value, "base");
  b.used = json_is_true(json_object_get(value, "used"));
  b.served = served_of(value);
  if (!of_this_incarnation(meta, value) && b.served == DIBS__ETCD_OWN) {
    uint32_t next = epoch_after(b.epoch, b.base, b.mod > meta->drawn ? b.mod : meta->drawn);
    bool above = next > meta->epoch;
    uint64_t mod = b.mod, base = above ? meta->drawn : meta->base;
    b = (struct dibs__etcd_bucket){.mod = mod, .known = true, .epoch = above ? next : meta->epoch, .base = base};
  } else if (!of_this_incarnation(meta, value)) {
    b.served = DIBS__ETCD_VOID;
  }
  json_decref(value);
  return b;
}

struct dibs__etcd_meta dibs__etcd_meta_of(struct dibs__etcd *store) {
  dibs__mutex_lock(&store->lock);
  struct dibs__etcd_meta meta = store->meta;
  dibs__mutex_unlock(&store->lock);
  return meta;
}

void dibs__etcd_meta_forget(struct dibs__etcd *store) {
  dibs__mutex_lock(&store->lock);
  store->meta.mod = 0;
  dibs__mutex_unlock(&store->lock);
}

struct dibs__etcd_bucket dibs__etcd_bucket_read(struct dibs__etcd *store, const json_t *range) {
  struct dibs__etcd_meta meta = dibs__etcd_meta_of(store);
  return bucket_of(&meta, json_array_get(json_object_get(range, "kvs"), 0));
}

struct dibs__etcd_bucket dibs__etcd_bucket_known(struct dibs__etcd *store, uint16_t bucket) {
  dibs__mutex_lock(&store->lock);
  struct dibs__etcd_bucket b = store->buckets[bucket];
  dibs__mutex_unlock(&store->lock);
  return b;
}

void dibs__etcd_bucket_learn(struct dibs__etcd *store, uint16_t bucket, const struct dibs__etcd_bucket *state) {
  dibs__mutex_lock(&store->lock);
  store->buckets[bucket] = *state;
  dibs__mutex_unlock(&store->lock);
}

void dibs__etcd_bucket_value(struct dibs__etcd *store, const struct dibs__etcd_bucket *b, struct dibs__etcd_text *to) {
  struct dibs__etcd_meta meta = dibs__etcd_meta_of(store);
  char hex[41];
  incarnation_hex(&meta.incarnation, hex);
  dibs__etcd_putf(to,
                  "{\"serves\":\"%s\",\"epoch\":%" PRIu32 ",\"base\":%" PRId64 ",\"used\":%s,\"incarnation\":\"%s\"}",
                  served_names[b->served], b->epoch, (int64_t)b->base, b->used ? "true" : "false", hex);
}

dibs__mandate dibs__etcd_mandate(struct dibs__etcd *store, const struct dibs__etcd_bucket *b) {
  return (dibs__mandate){.epoch = b->epoch, .incarnation = dibs__etcd_meta_of(store).incarnation};
}

bool dibs__etcd_epoch_over(const struct dibs__etcd_bucket *b, uint64_t revision) {
  int64_t since = (int64_t)(revision - b->base);
  return b->served == DIBS__ETCD_SERVED && since >= (int64_t)((UINT64_C(1) << 32) / DIBS__ETCD_FENCES);
}

static bool used_up(const struct dibs__etcd_bucket *b, uint64_t revision, const struct dibs__lease_op *op) {
  if (op->op.verb > DIBS__RENEW || (op->op.verb == DIBS__RENEW && !op->want_block)) return false;
  return dibs__etcd_epoch_over(b, revision + RESERVE);
}

bool dibs__etcd_mandate_valid(struct dibs__etcd *store, const struct dibs__etcd_bucket *b, uint64_t revision,
                              struct dibs__lease_op *op) {
  dibs__mandate has = dibs__etcd_mandate(store, b);
  bool same = dibs__mandate_equal(&op->op.mandate, &has);
  op->op.status = DIBS__MOVED;
  op->op.has = has;
  if (b->served == DIBS__ETCD_LEFT && same) return true;
  if (b->served == DIBS__ETCD_OWN) {
    if (!store->as_tier || store->as_anchor) return same;
    op->op.has.epoch = 0;
    return false;
  }
  if (store->as_tier) return b->served == DIBS__ETCD_SERVED && same && !used_up(b, revision, op);
  op->op.status = DIBS_DENIED;
  op->op.has = (dibs__mandate){0};
  return false;
}

/* ---- Opening ---- */

uint64_t dibs__etcd_cluster(const json_t *answer) {
  const char *id = json_string_value(json_object_get(json_object_get(answer, "header"), "cluster_id"));
  return id ? strtoull(id, NULL, 10) : 0;
}

static dibs__status read_all(struct dibs__etcd *store, struct dibs__etcd_link *link, dibs__tick by, json_t **answer,
                             struct dibs__result *result) {
  struct dibs__etcd_txn txn = {0};
  struct dibs__etcd_text body = {0};
  struct dibs__etcd_key key;
  dibs__etcd_meta_key(store, &key);
  dibs__etcd_op_get(&txn.success, &key);
  dibs__etcd_key(store, "bucket", (dibs__str){0}, &key);
  dibs__etcd_op_range(&txn.success, &key, "");
  dibs__etcd_txn_put(&body, &txn);
  dibs__status status = dibs__etcd_post(link, "/v3/kv/txn", &body, true, by, answer, result);
  dibs__etcd_txn_free(&txn);
  dibs__etcd_text_free(&body);
  return status == DIBS_UNKNOWN || status == DIBS_NOT_FOUND ? DIBS_UNAVAILABLE : status;
}

static void learn_all(struct dibs__etcd *store, const struct dibs__etcd_meta *meta, const json_t *range,
                      uint64_t revision) {
  struct dibs__etcd_bucket all[DIBS__BUCKETS];
  struct dibs__etcd_key key;
  size_t i;
  const json_t *kv;
  for (i = 0; i < DIBS__BUCKETS; i++) all[i] = bucket_of(meta, NULL);
  json_array_foreach(json_object_get(range, "kvs"), i, kv) {
    if (!dibs__etcd_key_of(kv, &key)) continue;
    const char *slash = strrchr(key.text, '/');
    unsigned long nth = slash ? strtoul(slash + 1, NULL, 10) : DIBS__BUCKETS;
    if (nth < DIBS__BUCKETS) all[nth] = bucket_of(meta, kv);
  }
  dibs__mutex_lock(&store->lock);
  bool other = store->meta_known && memcmp(&store->meta.incarnation, &meta->incarnation, sizeof meta->incarnation) != 0;
  store->meta = *meta;
  store->meta_known = true;
  memcpy(store->buckets, all, sizeof all);
  if (other) store->spare_count = 0;
  if (other || revision > store->revision) store->revision = revision;
  dibs__mutex_unlock(&store->lock);
  if (other) dibs__etcd_recheck(store, DIBS__EV_NEW_INCARNATION);
}

uint64_t dibs__etcd_revision_seen(struct dibs__etcd *store) {
  dibs__mutex_lock(&store->lock);
  uint64_t revision = store->revision;
  dibs__mutex_unlock(&store->lock);
  return revision;
}

void dibs__etcd_revision_note(struct dibs__etcd *store, uint64_t revision) {
  dibs__mutex_lock(&store->lock);
  if (revision > store->revision) store->revision = revision;
  dibs__mutex_unlock(&store->lock);
}

/* The incarnation whose later revisions this process has seen. */
static bool is_ours(struct dibs__etcd *store, const struct dibs__etcd_meta *meta) {
  dibs__mutex_lock(&store->lock);
  bool is = store->meta_known && memcmp(&store->meta.incarnation, &meta->incarnation, sizeof meta->incarnation) == 0;
  dibs__mutex_unlock(&store->lock);
  return is;
}

/* OK with `body`: it is to be written; OK without: it is known. */
static dibs__status meta_learn(struct dibs__etcd *store, const json_t *answer, uint64_t seen,
                               struct dibs__etcd_text *body, struct dibs__result *result) {
  struct dibs__etcd_meta meta = {0};
  dibs__status status = DIBS_OK;
  const json_t *header = json_object_get(answer, "header"), *responses = json_object_get(answer, "responses");
  const json_t *kv = json_array_get(json_object_get(dibs__etcd_range_at(responses, 0), "kvs"), 0);
  uint64_t cluster = dibs__etcd_cluster(answer), revision = (uint64_t)dibs__etcd_number(header, "revision");
  if (!cluster) {
    dibs__set_message(result, "%.80s does not answer as etcd 3.4 or newer does", store->location.shown);
    return DIBS_UNSUPPORTED;
  }
  if (kv) status = meta_read(store, kv, &meta, result);
  if (status != DIBS_OK) return status;
  if (kv && meta.cluster == cluster && (revision >= seen || !is_ours(store, &meta))) {
    dibs__etcd_watch_notices(store, revision);
    learn_all(store, &meta, dibs__etcd_range_at(responses, 1), revision);
  } else {
    meta_write(store, &meta, cluster, revision > seen ? revision : seen, body);
  }
  return DIBS_OK;
}

dibs__status dibs__etcd_meta_ready(struct dibs__etcd *store, struct dibs__etcd_link *link, dibs__tick by,
                                   struct dibs__result *result) {
  for (int tries = 0; tries < META_TRIES; tries++) {
    struct dibs__etcd_text body = {0};
    json_t *answer;
    uint64_t seen = dibs__etcd_revision_seen(store); /* before the request: a later one may be ahead of its answer */
    dibs__status status = read_all(store, link, by, &answer, result);
    if (status != DIBS_OK) return status;
    status = meta_learn(store, answer, seen, &body, result);
    json_decref(answer);
    if (body.failed && status == DIBS_OK) status = DIBS_NO_MEMORY;
    if (status != DIBS_OK || !body.len) {
      dibs__etcd_text_free(&body);
      return status;
    }
    status = dibs__etcd_post(link, "/v3/kv/txn", &body, true, by, &answer, result);
    dibs__etcd_text_free(&body);
    if (status == DIBS_OK) json_decref(answer);
    if (status != DIBS_OK && status != DIBS_UNKNOWN) return status;
  }
  return DIBS_UNAVAILABLE;
}

/* ---- The anchor's operations ---- */

void dibs__etcd_anchor_begin(struct dibs__etcd_batch *b, struct dibs__etcd_element *e) {
  const struct dibs__anchor_op *op = (const struct dibs__anchor_op *)e->op;
  e->plan = DIBS__ETCD_READ;
  if (e->op->bucket >= DIBS__BUCKETS || e->op->verb > DIBS__ANCHOR_OPEN || op->above.v > DIBS__FENCE_MAX)
    dibs__etcd_done(b, e, DIBS_INVALID);
}

static dibs__status begin_epoch(struct dibs__etcd_bucket *k, dibs__fence above, uint64_t revision) {
  uint32_t next = epoch_after(k->epoch, k->served == DIBS__ETCD_OWN ? k->base : revision, revision);
  if (k->served != DIBS__ETCD_OWN) next = k->epoch + 1;
  if (dibs__fence_epoch(above) + 1 > next) next = dibs__fence_epoch(above) + 1;
  if (next > DIBS__EPOCH_MAX) return DIBS_UNAVAILABLE;
  k->epoch = next;
  k->base = revision;
  k->used = false;
  return DIBS_OK;
}

static dibs__status install(struct dibs__etcd_batch *b, struct dibs__etcd_bucket *k, const dibs__mandate *what,
                            uint64_t revision) {
  dibs__mandate here = dibs__etcd_mandate(b->store, k);
  if (what->epoch > DIBS__EPOCH_MAX) return DIBS_INVALID;
  if (memcmp(&what->incarnation, &here.incarnation, sizeof here.incarnation) != 0 || what->epoch <= k->epoch)
    return DIBS_CONFLICT;
  uint64_t mod = k->mod;
  *k = (struct dibs__etcd_bucket){.mod = mod, .known = true, .epoch = what->epoch, .base = revision};
  k->served = DIBS__ETCD_SERVED;
  return DIBS_OK;
}

/* What the verb makes of the bucket. */
static dibs__status decide(struct dibs__etcd_batch *b, const struct dibs__anchor_op *op, struct dibs__etcd_bucket *k,
                           uint64_t revision) {
  dibs__mandate has = dibs__etcd_mandate(b->store, k);
  bool own = k->served == DIBS__ETCD_OWN, same = dibs__mandate_equal(&op->op.mandate, &has);
  dibs__status status;
  switch (op->op.verb) {
  case DIBS__ANCHOR_NEXT:
    return own && same ? begin_epoch(k, DIBS__FENCE_NONE, revision) : DIBS_CONFLICT;
  case DIBS__ANCHOR_INSTALL:
    return install(b, k, &op->op.mandate, revision);
  case DIBS__ANCHOR_ALONE:
    if (own && !dibs__fence_below(dibs__etcd_fence(k->epoch, k->base, revision, 0), op->above)) return DIBS_OK;
    status = begin_epoch(k, op->above, revision);
    if (status == DIBS_OK) k->served = DIBS__ETCD_OWN;
    return status;
  case DIBS__ANCHOR_RAISE:
    return own ? begin_epoch(k, op->above, revision) : DIBS_CONFLICT;
  case DIBS__ANCHOR_LEAVE:
    if (k->served == DIBS__ETCD_VOID || !same) return DIBS_CONFLICT;
    k->served = DIBS__ETCD_LEFT;
    return DIBS_OK;
  case DIBS__ANCHOR_OPEN:
    if ((!own && k->served != DIBS__ETCD_SERVED) || !same) return DIBS_CONFLICT;
    k->served = DIBS__ETCD_OWN;
    return DIBS_OK;
  default:
    return DIBS_OK;
  }
}

static void answer_anchor(struct dibs__etcd_batch *b, struct dibs__etcd_element *e, const struct dibs__etcd_bucket *k,
                          dibs__status status) {
  struct dibs__anchor_op *op = (struct dibs__anchor_op *)e->op;
  dibs__etcd_bucket_learn(b->store, op->op.bucket, k);
  op->current = dibs__etcd_mandate(b->store, k);
  op->served = k->served != DIBS__ETCD_OWN;
  op->left = k->served == DIBS__ETCD_LEFT;
  op->used = !op->served && k->used;
  op->last = op->served && !op->left ? DIBS__FENCE_NONE
                                     : dibs__etcd_fence(k->epoch, k->base, b->revision, DIBS__ETCD_FENCES - 1);
  dibs__etcd_done(b, e, status);
}

void dibs__etcd_anchor_put(struct dibs__etcd_batch *b, struct dibs__etcd_element *e, struct dibs__etcd_txn *txn) {
  struct dibs__etcd_text value = {0};
  struct dibs__etcd_key key;
  dibs__etcd_bucket_key(b->store, e->op->bucket, &key);
  if (e->plan == DIBS__ETCD_WRITE) {
    dibs__etcd_compare(txn, &key, DIBS__ETCD_MOD, e->mod);
    dibs__etcd_bucket_value(b->store, &e->name.bucket, &value);
    dibs__etcd_op_put(&txn->success, &key, value.p, value.len, 0);
    if (value.failed) txn->success.failed = true;
    e->writes = true;
  }
  dibs__etcd_op_get(e->plan == DIBS__ETCD_WRITE ? &txn->failure : &txn->success, &key);
  dibs__etcd_text_free(&value);
}

static bool is_changed(const struct dibs__etcd_bucket *a, const struct dibs__etcd_bucket *b) {
  return a->epoch != b->epoch || a->base != b->base || a->served != b->served;
}

void dibs__etcd_anchor_take(struct dibs__etcd_batch *b, struct dibs__etcd_element *e, const json_t *txn) {
  if (e->plan == DIBS__ETCD_WRITE && json_is_true(json_object_get(txn, "succeeded"))) {
    e->name.bucket.mod = b->revision;
    answer_anchor(b, e, &e->name.bucket, DIBS_OK);
    return;
  }
  struct dibs__etcd_bucket k =
      dibs__etcd_bucket_read(b->store, dibs__etcd_range_at(json_object_get(txn, "responses"), 0));
  struct dibs__etcd_bucket now = k;
  dibs__status status = decide(b, (const struct dibs__anchor_op *)e->op, &now, b->revision);
  e->plan = DIBS__ETCD_WRITE;
  e->mod = k.mod;
  e->name.bucket = now;
  if (status != DIBS_OK || !is_changed(&k, &now)) answer_anchor(b, e, &k, status);
}

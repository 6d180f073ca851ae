/* SPDX-License-Identifier: MIT */
/*
 * Records: record/KEY has the content as it is, seal/KEY the remembered fence.  The version of a record is the revision
 * at which record/KEY was put, so `etcdctl put` makes another version, too; sealing does not.
 */
#include "drivers/etcd/etcd_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dibs__etcd_element element;
typedef struct dibs__etcd_batch batch;

/* seal/KEY */
struct seal {
  uint64_t mod, digest;
  dibs__fence fence;
  bool removed; /* the record had content, and has none now */
};

static struct dibs__record_op *op_of(const element *e) {
  return (struct dibs__record_op *)e->op;
}

static void keys_of(const batch *b, const element *e, struct dibs__etcd_key *record, struct dibs__etcd_key *seal) {
  dibs__etcd_key(b->store, "record", op_of(e)->key, record);
  dibs__etcd_key(b->store, "seal", op_of(e)->key, seal);
  record->text[--record->len] = '\0'; /* without the slash */
  seal->text[--seal->len] = '\0';
}

void dibs__etcd_record_begin(batch *b, element *e) {
  struct dibs__record_op *op = op_of(e);
  if (dibs__record_valid(op))
    e->plan = DIBS__ETCD_READ;
  else
    dibs__etcd_done(b, e, op->op.status);
}

static struct seal seal_of(const json_t *kv) {
  struct seal s = {0};
  json_t *value = kv ? dibs__etcd_value(kv) : NULL;
  const char *lease = json_string_value(json_object_get(value, "lease"));
  s.mod = (uint64_t)dibs__etcd_number(kv, "mod_revision");
  s.fence.v = (uint64_t)dibs__etcd_number(value, "fence");
  s.digest = lease ? strtoull(lease, NULL, 16) : 0;
  s.removed = json_is_true(json_object_get(value, "removed"));
  json_decref(value);
  return s;
}

static void put_seal(const struct dibs__record_op *op, const struct seal *was, const struct dibs__etcd_key *key,
                     struct dibs__etcd_text *to) {
  bool fenced = (dibs__record_guards(op) & DIBS__IF_FENCE) != 0;
  bool removed = op->op.verb == DIBS__RECORD_DROP || (op->op.verb == DIBS__RECORD_SEAL && was->removed);
  dibs__fence fence = fenced ? op->fence : was->fence;
  uint64_t digest = fenced ? dibs__id_digest(op->id) : was->digest;
  struct dibs__etcd_text value = {0};
  if (!fenced && removed == was->removed && (was->mod || !removed)) return; /* it stays as it is */
  dibs__etcd_putf(&value, "{\"fence\":%" PRIu64 ",\"lease\":\"%016" PRIx64 "\"%s}", fence.v, digest,
                  removed ? ",\"removed\":true" : "");
  dibs__etcd_op_put(to, key, value.p ? value.p : "", value.len, 0);
  if (value.failed) to->failed = true;
  dibs__etcd_text_free(&value);
}

/* What the last read found of the seal is in `hold`, which records do not use otherwise. */
static struct seal seal_read(const element *e) {
  return (struct seal){e->hold.mod, e->hold.name_hash, e->hold.first, e->ended};
}

void dibs__etcd_record_put(batch *b, element *e, struct dibs__etcd_txn *txn) {
  const struct dibs__record_op *op = op_of(e);
  struct dibs__etcd_key record, seal;
  keys_of(b, e, &record, &seal);
  if (e->plan == DIBS__ETCD_READ) {
    dibs__etcd_op_get(&txn->success, &record);
    dibs__etcd_op_get(&txn->success, &seal);
    return;
  }
  struct seal was = seal_read(e);
  e->writes = true;
  dibs__etcd_compare(txn, &record, DIBS__ETCD_MOD, e->mod);
  dibs__etcd_compare(txn, &seal, DIBS__ETCD_MOD, was.mod);
  if (op->op.verb == DIBS__RECORD_PUT)
    dibs__etcd_op_put(&txn->success, &record, op->data.len ? op->data.p : "", op->data.len, 0);
  if (op->op.verb == DIBS__RECORD_DROP) dibs__etcd_op_delete(&txn->success, &record);
  put_seal(op, &was, &seal, &txn->success);
  dibs__etcd_op_get(&txn->failure, &record);
  dibs__etcd_op_get(&txn->failure, &seal);
}

static dibs__status answer_content(struct dibs__record_op *op, const element *e, dibs__fence seen) {
  op->seen = seen;
  op->version = e->mod;
  if (!op->version) return DIBS_OK;
  op->got = malloc(e->read.len + 1);
  if (!op->got) return DIBS_NO_MEMORY;
  if (e->read.len) memcpy(op->got, e->read.p, e->read.len);
  op->got[e->read.len] = '\0';
  op->got_len = (uint32_t)e->read.len;
  return DIBS_OK;
}

static void done_writing(batch *b, element *e) {
  struct dibs__record_op *op = op_of(e);
  struct seal was = seal_read(e);
  dibs__fence seen = dibs__record_guards(op) & DIBS__IF_FENCE ? op->fence : was.fence;
  op->seen = seen;
  if (op->op.verb == DIBS__RECORD_SEAL) {
    dibs__etcd_done(b, e, answer_content(op, e, seen));
    return;
  }
  if (op->op.verb == DIBS__RECORD_PUT) op->version = b->revision;
  dibs__etcd_done(b, e, DIBS_OK);
}

static bool keep_content(element *e, const json_t *kv) {
  size_t len;
  e->read.len = 0;
  if (!kv) return true;
  char *bytes = dibs__etcd_bytes(kv, "value", &len);
  dibs__etcd_text_free(&e->read);
  e->read = (struct dibs__etcd_text){.p = bytes, .len = bytes ? len : 0, .cap = bytes ? len + 1 : 0};
  return bytes != NULL;
}

void dibs__etcd_record_take(batch *b, element *e, const json_t *txn) {
  struct dibs__record_op *op = op_of(e);
  const json_t *responses = json_object_get(txn, "responses");
  if (e->plan == DIBS__ETCD_WRITE && json_is_true(json_object_get(txn, "succeeded"))) {
    done_writing(b, e);
    return;
  }
  const json_t *kv = json_array_get(json_object_get(dibs__etcd_range_at(responses, 0), "kvs"), 0);
  struct seal seal = seal_of(json_array_get(json_object_get(dibs__etcd_range_at(responses, 1), "kvs"), 0));
  e->mod = (uint64_t)dibs__etcd_number(kv, "mod_revision");
  e->hold.mod = seal.mod;
  e->hold.name_hash = seal.digest;
  e->hold.first = seal.fence;
  e->ended = seal.removed;
  if (!keep_content(e, kv)) {
    dibs__etcd_done(b, e, DIBS_NO_MEMORY);
    return;
  }
  if (op->op.verb == DIBS__RECORD_LOAD) {
    bool exists = kv || (seal.mod && !seal.removed);
    dibs__etcd_done(b, e, exists ? answer_content(op, e, seal.fence) : DIBS_NOT_FOUND);
    return;
  }
  dibs__str data = dibs__str_of(e->read.p, e->read.len);
  if (!dibs__record_admits(op, seal.fence, seal.digest, e->mod, data)) {
    dibs__etcd_done(b, e, op->op.status);
    return;
  }
  e->plan = DIBS__ETCD_WRITE;
}

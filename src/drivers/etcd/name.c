/* SPDX-License-Identifier: MIT */
/*
 * A name as it was read: its bucket, its holders, the front of its queue.
 *
 * Offers.  A release deletes one key and writes nothing else: the first waiters that fit beside the holders *have* an
 * offer, by what is in the store.  Each client derives the same from the same revision.  Waiters are in the order of
 * the revision at which their keys were created, which is their ticket.
 */
#include "drivers/etcd/etcd_impl.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const mode_names[] = {"exclusive", "shared", "counted"};

void dibs__etcd_name_free(struct dibs__etcd_name *name) {
  free(name->holders);
  name->holders = NULL;
  name->holder_count = 0;
}

/* ---- Reading ---- */

void dibs__etcd_name_get(const struct dibs__etcd *store, const struct dibs__lease_op *op, struct dibs__etcd_text *to) {
  static const char by_age[] = ",\"sort_order\":\"ASCEND\",\"sort_target\":\"CREATE\"";
  struct dibs__etcd_key bucket, holders, waiters, own;
  char more[160];
  dibs__etcd_bucket_key(store, op->op.bucket, &bucket);
  dibs__etcd_key(store, "lease", op->name, &holders);
  dibs__etcd_key(store, "wait", op->name, &waiters);
  dibs__etcd_key_id(&waiters, op->id, &own);
  dibs__etcd_op_get(to, &bucket);
  dibs__etcd_op_range(to, &holders, by_age);
  snprintf(more, sizeof more, "%s,\"limit\":\"%d\"", by_age, (int)DIBS__ETCD_FRONT);
  dibs__etcd_op_range(to, &waiters, more);
  dibs__etcd_op_get(to, &own);
}

static uint32_t member(const json_t *value, const char *key) {
  return (uint32_t)json_integer_value(json_object_get(value, key));
}

static uint64_t wide_member(const json_t *value, const char *key) {
  return (uint64_t)json_integer_value(json_object_get(value, key));
}

static uint32_t mode_of(const json_t *value) {
  const char *text = json_string_value(json_object_get(value, "mode"));
  for (uint32_t i = 0; text && i < sizeof mode_names / sizeof mode_names[0]; i++)
    if (strcmp(text, mode_names[i]) == 0) return i;
  return DIBS_EXCLUSIVE;
}

static void owner_of(const json_t *value, struct dibs__etcd_claim *c) {
  const json_t *owner = json_object_get(value, "owner");
  size_t len = 0;
  if (json_is_string(owner)) {
    len = json_string_length(owner);
    if (len <= DIBS_OWNER_MAX) memcpy(c->owner, json_string_value(owner), len);
  } else {
    char *bytes = dibs__etcd_bytes(value, "owner_base64", &len);
    if (bytes && len <= DIBS_OWNER_MAX) memcpy(c->owner, bytes, len);
    free(bytes);
  }
  c->owner_len = len <= DIBS_OWNER_MAX ? (uint32_t)len : 0;
  c->owner[c->owner_len] = '\0';
}

static bool id_of(const char *hex, dibs__id *id) {
  if (strlen(hex) != 2 * sizeof id->b) return false;
  for (size_t i = 0; i < sizeof id->b; i++) {
    unsigned byte;
    if (sscanf(hex + 2 * i, "%2x", &byte) != 1) return false;
    id->b[i] = (uint8_t)byte;
  }
  return true;
}

/* The fence of a holder: as written, or by the revision at which its key was put. */
static void fences_of(const json_t *value, struct dibs__etcd_claim *c) {
  uint32_t epoch = member(value, "epoch");
  uint64_t base = wide_member(value, "base");
  c->block = member(value, "block");
  if (c->mode != DIBS_EXCLUSIVE || !c->block) return;
  c->first = dibs__etcd_fence(epoch, base, c->mod, member(value, "nth"));
  c->over = !json_object_get(value, "fence") && dibs__fence_epoch(c->first) != epoch;
  if (json_object_get(value, "fence")) c->first.v = wide_member(value, "fence");
  c->granted = c->first;
  if (json_object_get(value, "granted")) c->granted.v = wide_member(value, "granted");
}

bool dibs__etcd_claim_read(const struct dibs__etcd *store, const char *kind, const json_t *kv,
                           struct dibs__etcd_claim *c, char *name, uint32_t *name_len) {
  struct dibs__etcd_key key;
  const char *rest;
  memset(c, 0, sizeof *c);
  if (!dibs__etcd_key_of(kv, &key) || !dibs__etcd_key_read(store, kind, &key, name, name_len, &rest)) return false;
  if (!id_of(rest, &c->id)) return false;
  json_t *value = dibs__etcd_value(kv);
  c->create = (uint64_t)dibs__etcd_number(kv, "create_revision");
  c->mod = (uint64_t)dibs__etcd_number(kv, "mod_revision");
  c->lease = dibs__etcd_number(kv, "lease");
  c->waits = strcmp(kind, "wait") == 0;
  c->asleep = json_is_true(json_object_get(value, "asleep"));
  c->breaking = json_is_true(json_object_get(value, "breaking"));
  c->mode = mode_of(value);
  c->slots = member(value, "slots");
  c->slot = member(value, "slot");
  c->ttl_ms = member(value, "ttl_ms");
  c->pid = member(value, "pid");
  c->since = (int64_t)wide_member(value, "since");
  const char *session = json_string_value(json_object_get(value, "session"));
  c->session = session ? strtoull(session, NULL, 16) : 0;
  owner_of(value, c);
  fences_of(value, c);
  json_decref(value);
  return true;
}

/* A key among ours that another program has put.  It excludes every holder, and no operation of ours removes it. */
static void note_foreign(const json_t *kv, struct dibs__etcd_name *n) {
  struct dibs__etcd_key key;
  (void)dibs__etcd_key_of(kv, &key);
  snprintf(n->foreign, sizeof n->foreign, "%.150s", key.len ? key.text : "of more bytes than dibs writes");
}

static bool read_holders(struct dibs__etcd *store, const json_t *range, struct dibs__etcd_name *n) {
  const json_t *kvs = json_object_get(range, "kvs"), *kv;
  char name[DIBS_NAME_MAX];
  uint32_t len;
  size_t i;
  if (json_array_size(kvs) == 0) return true;
  n->holders = calloc(json_array_size(kvs), sizeof *n->holders);
  if (!n->holders) return false;
  json_array_foreach(kvs, i, kv) {
    if (dibs__etcd_claim_read(store, "lease", kv, &n->holders[n->holder_count], name, &len))
      n->holder_count++;
    else
      note_foreign(kv, n);
  }
  return true;
}

static void read_front(struct dibs__etcd *store, const json_t *range, struct dibs__etcd_name *n, dibs__id id) {
  const json_t *kv;
  char name[DIBS_NAME_MAX];
  uint32_t len;
  size_t i;
  n->waiter_count = (size_t)dibs__etcd_number(range, "count");
  json_array_foreach(json_object_get(range, "kvs"), i, kv) {
    struct dibs__etcd_claim *c = &n->front[n->front_count];
    if (n->front_count == DIBS__ETCD_FRONT) break;
    if (!dibs__etcd_claim_read(store, "wait", kv, c, name, &len)) {
      note_foreign(kv, n);
      continue;
    }
    if (dibs__id_equal(c->id, id)) {
      n->own_in_front = true;
      n->own_at = n->front_count;
    }
    n->front_count++;
  }
}

bool dibs__etcd_name_read(struct dibs__etcd *store, const struct dibs__lease_op *op, const json_t *responses, size_t at,
                          uint64_t revision, struct dibs__etcd_name *n) {
  char name[DIBS_NAME_MAX];
  uint32_t len;
  const json_t *kv;
  dibs__etcd_name_free(n);
  n->known = true;
  n->revision = revision;
  n->front_count = n->waiter_count = 0;
  n->own_waits = n->own_in_front = false;
  n->foreign[0] = '\0';
  n->bucket = dibs__etcd_bucket_read(store, dibs__etcd_range_at(responses, at));
  dibs__etcd_bucket_learn(store, op->op.bucket, &n->bucket);
  if (!read_holders(store, dibs__etcd_range_at(responses, at + 1), n)) return false;
  read_front(store, dibs__etcd_range_at(responses, at + 2), n, op->id);
  kv = json_array_get(json_object_get(dibs__etcd_range_at(responses, at + 3), "kvs"), 0);
  n->own_waits = kv && dibs__etcd_claim_read(store, "wait", kv, &n->own, name, &len);
  return true;
}

/* ---- Who is next ---- */

const struct dibs__etcd_claim *dibs__etcd_name_holder(const struct dibs__etcd_name *n, dibs__id id) {
  for (size_t i = 0; i < n->holder_count; i++)
    if (dibs__id_equal(n->holders[i].id, id)) return &n->holders[i];
  return NULL;
}

/* Beside the holders and the first `offers` offers. */
static bool fits_beside(const struct dibs__etcd_name *n, uint32_t mode, uint32_t slots) {
  const struct dibs__etcd_claim *other = n->holder_count ? &n->holders[0] : NULL;
  size_t count = n->holder_count;
  for (size_t i = 0; i < n->front_count; i++) {
    if (!n->front[i].offered) continue;
    if (!other) other = &n->front[i];
    count++;
  }
  if (!other) return true;
  if (other->mode != mode || mode == DIBS_EXCLUSIVE) return false;
  return mode == DIBS_SHARED || (other->slots == slots && count < slots);
}

bool dibs__etcd_name_fits(const struct dibs__etcd_name *n, uint32_t mode, uint32_t slots) {
  return fits_beside(n, mode, slots);
}

void dibs__etcd_name_offers(struct dibs__etcd_name *n, bool *awake) {
  bool more = true;
  *awake = n->waiter_count > n->front_count; /* not read: so we can't know */
  for (size_t i = 0; i < n->front_count; i++) n->front[i].offered = false;
  if (n->bucket.served == DIBS__ETCD_LEFT) more = false; /* R46 */
  for (size_t i = 0; i < n->front_count; i++) {
    struct dibs__etcd_claim *c = &n->front[i];
    if (c->asleep) continue;
    more = more && fits_beside(n, c->mode, c->slots);
    c->offered = more;
    *awake = *awake || !more;
  }
  n->own.offered = n->own_waits && n->own_in_front && n->front[n->own_at].offered;
}

uint32_t dibs__etcd_free_slot(const struct dibs__etcd_name *n, uint32_t slots) {
  uint64_t used[(DIBS_SLOTS_MAX + 64) / 64];
  uint32_t slot = 0;
  assert(slots <= DIBS_SLOTS_MAX);
  memset(used, 0, sizeof used);
  for (size_t i = 0; i < n->holder_count; i++)
    if (n->holders[i].slot <= DIBS_SLOTS_MAX) used[n->holders[i].slot / 64] |= UINT64_C(1) << n->holders[i].slot % 64;
  while (slot < slots && used[slot / 64] & UINT64_C(1) << slot % 64) slot++;
  return slot;
}

/* ---- Writing ---- */

static void put_member(json_t *value, const char *key, uint64_t number) {
  if (number) json_object_set_new(value, key, json_integer((json_int_t)number));
}

static void put_owner(json_t *value, const struct dibs__etcd_claim *c) {
  json_t *owner = json_stringn(c->owner, c->owner_len);
  struct dibs__etcd_text text = {0};
  if (owner) {
    json_object_set_new(value, "owner", owner);
    return;
  }
  dibs__etcd_put_base64(&text, c->owner, c->owner_len);
  if (!text.failed) json_object_set_new(value, "owner_base64", json_stringn(text.p + 1, text.len - 2));
  dibs__etcd_text_free(&text);
}

void dibs__etcd_claim_value(const struct dibs__etcd_claim *c, const struct dibs__etcd_bucket *bucket, uint32_t nth,
                            struct dibs__etcd_text *to) {
  json_t *value = json_object();
  char session[17];
  put_owner(value, c);
  json_object_set_new(value, "mode", json_string(mode_names[c->mode]));
  snprintf(session, sizeof session, "%016" PRIx64, c->session);
  json_object_set_new(value, "session", json_string(session));
  put_member(value, "ttl_ms", c->ttl_ms);
  put_member(value, "pid", c->pid);
  put_member(value, "since", (uint64_t)c->since);
  put_member(value, "slots", c->slots);
  put_member(value, "slot", c->slot);
  if (!c->waits && c->mode == DIBS_EXCLUSIVE) {
    put_member(value, "block", c->block);
    put_member(value, "granted", c->granted.v);
    if (c->first.v) {
      put_member(value, "fence", c->first.v);
    } else {
      put_member(value, "epoch", bucket->epoch);
      put_member(value, "base", bucket->base);
      put_member(value, "nth", nth);
    }
  }
  if (c->asleep) json_object_set_new(value, "asleep", json_true());
  if (c->breaking) json_object_set_new(value, "breaking", json_true());
  char *text = json_dumps(value, JSON_COMPACT | JSON_ENSURE_ASCII);
  if (text)
    dibs__etcd_put(to, text);
  else
    to->failed = true;
  free(text);
  json_decref(value);
}

/* SPDX-License-Identifier: MIT */
/* Records: rows that remember the largest fence they have seen. */
#include "drivers/memory_parts.h"

#include <stdlib.h>
#include <string.h>

typedef struct dibs__mem_record record;

record *dibs__mem_record_find(const struct dibs__memory *m, dibs__str key) {
  struct dibs__map_node *link = dibs__map_head(&m->records, dibs__hash(key.p, key.len));
  for (; link; link = link->next) {
    record *r = (record *)link;
    if (dibs__str_equal(dibs__str_of(r->key, r->key_len), key)) return r;
  }
  return NULL;
}

void dibs__mem_record_remove(struct dibs__memory *m, record *r) {
  dibs__map_remove(&m->records, &r->link);
  free(r->data);
  free(r);
}

static record *add(struct dibs__memory *m, dibs__str key) {
  record *r = calloc(1, sizeof *r + key.len + 1);
  if (!r) return NULL;
  r->key_len = key.len;
  memcpy(r->key, key.p, key.len);
  dibs__map_add(&m->records, &r->link, dibs__hash(key.p, key.len));
  return r;
}

static char *copy(const char *data, uint32_t len) {
  char *to = malloc((size_t)len + 1);
  if (!to) return NULL;
  if (len) memcpy(to, data, len);
  to[len] = 0;
  return to;
}

static void load(const record *r, struct dibs__record_op *op) {
  op->seen = r->fence;
  op->version = r->version;
  op->op.status = DIBS_OK;
  if (r->version == 0) return;
  op->got = copy(r->data, r->data_len);
  op->got_len = op->got ? r->data_len : 0;
  if (!op->got) op->op.status = DIBS_NO_MEMORY;
}

static void save(record *r, struct dibs__record_op *op, char *data) {
  free(r->data);
  r->data = data;
  r->data_len = op->data.len;
  op->version = ++r->version;
  op->seen = r->fence;
  op->op.status = DIBS_OK;
}

static bool valid(const struct dibs__record_op *op) {
  if (op->op.verb > DIBS__RECORD_SAVE || op->key.len < 1 || op->key.len > DIBS_NAME_MAX) return false;
  if (op->op.verb == DIBS__RECORD_LOAD) return true;
  return op->fence.v > 0 && (op->op.verb != DIBS__RECORD_SAVE || op->data.len <= DIBS_RECORD_MAX);
}

void dibs__mem_record(struct dibs__memory *m, struct dibs__record_op *op) {
  op->got = NULL;
  op->got_len = 0;
  op->version = 0;
  op->seen = DIBS__FENCE_NONE;
  if (!valid(op)) {
    op->op.status = DIBS_INVALID;
    return;
  }
  record *r = dibs__mem_record_find(m, op->key);
  if (op->op.verb == DIBS__RECORD_LOAD) {
    op->op.status = DIBS_NOT_FOUND;
    if (r) load(r, op);
    return;
  }
  uint64_t digest = dibs__id_digest(op->id);
  if (r && (dibs__fence_below(op->fence, r->fence) || (op->fence.v == r->fence.v && r->digest != digest))) {
    op->seen = r->fence;
    op->op.status = DIBS_STALE;
    return;
  }
  char *data = op->op.verb == DIBS__RECORD_SAVE ? copy(op->data.p, op->data.len) : NULL;
  bool enough = data || op->op.verb == DIBS__RECORD_SEAL;
  if (enough && !r) r = add(m, op->key);
  if (!enough || !r) {
    free(data);
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  r->fence = op->fence;
  r->digest = digest;
  if (op->op.verb == DIBS__RECORD_SEAL)
    load(r, op);
  else
    save(r, op, data);
}

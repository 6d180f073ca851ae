/* SPDX-License-Identifier: MIT */
/* Records: rows that remember the largest fence they have seen, and how many versions they have had. */
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

/* Without data nothing is there; the version goes on from where it was. */
static uint64_t version_of(const record *r) {
  return r && r->data ? r->version : 0;
}

static void load(const record *r, struct dibs__record_op *op) {
  op->seen = r->fence;
  op->version = version_of(r);
  op->op.status = DIBS_OK;
  if (op->version == 0) return;
  op->got = copy(r->data, r->data_len);
  op->got_len = op->got ? r->data_len : 0;
  if (!op->got) op->op.status = DIBS_NO_MEMORY;
}

static void write(record *r, struct dibs__record_op *op, char *data) {
  free(r->data);
  r->data = data;
  r->data_len = data ? op->data.len : 0;
  if (data) op->version = ++r->version;
  op->seen = r->fence;
  op->op.status = DIBS_OK;
}

void dibs__mem_record(struct dibs__memory *m, struct dibs__record_op *op) {
  if (!dibs__record_valid(op)) return;
  record *r = dibs__mem_record_find(m, op->key);
  if (op->op.verb == DIBS__RECORD_LOAD) {
    op->op.status = DIBS_NOT_FOUND;
    if (r && (r->data || r->version == 0)) load(r, op);
    return;
  }
  if (!dibs__record_admits(op, r ? r->fence : DIBS__FENCE_NONE, r ? r->digest : 0, version_of(r))) return;
  bool writes = op->op.verb == DIBS__RECORD_SAVE || op->op.verb == DIBS__RECORD_PUT;
  char *data = writes ? copy(op->data.p, op->data.len) : NULL;
  bool enough = data || !writes;
  if (enough && !r) r = add(m, op->key);
  if (!enough || !r) {
    free(data);
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  if (dibs__record_guards(op) & DIBS__IF_FENCE) {
    r->fence = op->fence;
    r->digest = dibs__id_digest(op->id);
  }
  if (op->op.verb == DIBS__RECORD_SEAL)
    load(r, op);
  else
    write(r, op, data);
}

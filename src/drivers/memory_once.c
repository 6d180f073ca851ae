/* SPDX-License-Identifier: MIT */
/* Once keys: the latest attempt, and perhaps an answer. */
#include "drivers/memory_parts.h"

#include <stdlib.h>
#include <string.h>

typedef struct dibs__mem_once once;

enum { SWEEP_FROM = 64 }; /* keys, before anybody looks for what is over */

static once *find(const struct dibs__memory *m, dibs__str key) {
  struct dibs__map_node *link = dibs__map_head(&m->onces, dibs__hash(key.p, key.len));
  for (; link; link = link->next) {
    once *o = (once *)link;
    if (dibs__str_equal(dibs__str_of(o->key, o->key_len), key)) return o;
  }
  return NULL;
}

static void drop(struct dibs__memory *m, once *o) {
  dibs__map_remove(&m->onces, &o->link);
  free(o->data);
  free(o);
}

void dibs__mem_onces_forget(struct dibs__memory *m, int64_t before) {
  struct dibs__map_node *next, *node = dibs__mem_next(&m->onces, NULL);
  for (; node; node = next) {
    next = dibs__mem_next(&m->onces, node);
    if (((once *)node)->until <= before) drop(m, (once *)node);
  }
}

static once *add(struct dibs__memory *m, dibs__str key, int64_t now) {
  if (m->onces.count >= SWEEP_FROM && m->onces.count >= m->onces_swept * 2) {
    dibs__mem_onces_forget(m, now);
    m->onces_swept = m->onces.count;
  }
  once *o = calloc(1, sizeof *o + key.len + 1);
  if (!o) return NULL;
  o->key_len = key.len;
  memcpy(o->key, key.p, key.len);
  dibs__map_add(&m->onces, &o->link, dibs__hash(key.p, key.len));
  return o;
}

static char *copy(const char *data, uint32_t len) {
  char *to = malloc((size_t)len + 1);
  if (!to) return NULL;
  if (len) memcpy(to, data, len);
  to[len] = '\0';
  return to;
}

static void answer(struct dibs__once_op *op, dibs__status status, const once *o, int64_t now) {
  op->op.status = status;
  op->age_ms = now - o->made;
  op->left_ms = o->until - now;
}

static void hand_out(struct dibs__once_op *op, dibs__status status, const once *o, int64_t now) {
  answer(op, status, o, now);
  op->got = copy(o->data, o->data_len);
  op->got_len = op->got ? o->data_len : 0;
  if (!op->got) op->op.status = DIBS_NO_MEMORY;
}

static void take(once *o, const struct dibs__once_op *op, uint64_t digest, char *data, int64_t now) {
  free(o->data);
  o->data = data;
  o->data_len = data ? op->data.len : 0;
  if (dibs__fence_below(o->fence, op->fence)) o->fence = op->fence;
  o->owner = digest;
  o->made = now;
  o->until = now + op->keep_ms;
}

/* Whether this attempt may have it, which has no answer that counts. */
static bool may(const once *o, const struct dibs__once_op *op, uint64_t digest) {
  if (op->fence.v) return dibs__fence_below(o->fence, op->fence) || (o->fence.v == op->fence.v && o->owner == digest);
  if (op->op.verb == DIBS__ONCE_STORE) return o->owner == digest;
  return o->fence.v == 0 || o->owner == 0 || o->owner == digest || o->data;
}

static void attempt(struct dibs__memory *m, once *o, struct dibs__once_op *op, int64_t now) {
  uint64_t digest = dibs__id_digest(op->id);
  bool stores = op->op.verb == DIBS__ONCE_STORE;
  if (o && o->data && o->until > now) {
    bool mine = o->owner == digest && (op->fence.v == 0 || o->fence.v == op->fence.v);
    if (mine && stores)
      answer(op, DIBS_OK, o, now);
    else
      hand_out(op, DIBS_REPLAY, o, now);
    return;
  }
  if (o && !may(o, op, digest)) {
    answer(op, op->fence.v || stores ? DIBS_STALE : DIBS_HELD, o, now);
    return;
  }
  char *data = stores ? copy(op->data.p, op->data.len) : NULL;
  if (!o && (data || !stores)) o = add(m, op->key, now);
  if (!o || (stores && !data)) {
    free(data);
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  take(o, op, digest, data, now);
  answer(op, DIBS_OK, o, now);
}

static bool valid(const struct dibs__once_op *op) {
  if (op->op.verb > DIBS__ONCE_LEAVE || op->key.len < 1 || op->key.len > DIBS_NAME_MAX) return false;
  if (op->op.verb != DIBS__ONCE_STORE && op->op.verb != DIBS__ONCE_BEGIN) return true;
  return op->keep_ms > 0 && op->data.len <= DIBS_RECORD_MAX;
}

void dibs__mem_once(struct dibs__memory *m, struct dibs__once_op *op, int64_t now) {
  op->got = NULL;
  op->got_len = 0;
  op->age_ms = op->left_ms = 0;
  op->op.status = DIBS_INVALID;
  if (!valid(op)) return;
  once *o = find(m, op->key);
  bool has = o && o->data && o->until > now;
  op->op.status = DIBS_NOT_FOUND;
  switch (op->op.verb) {
  case DIBS__ONCE_READ:
    if (has) hand_out(op, DIBS_OK, o, now);
    return;
  case DIBS__ONCE_FORGET:
    if (!has) return;
    free(o->data);
    o->data = NULL;
    o->data_len = 0;
    o->owner = 0;
    op->op.status = DIBS_OK;
    return;
  case DIBS__ONCE_LEAVE:
    if (!o || o->data || o->owner != dibs__id_digest(op->id)) return;
    o->owner = 0;
    op->op.status = DIBS_OK;
    return;
  default:
    attempt(m, o, op, now);
  }
}

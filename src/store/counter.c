/* SPDX-License-Identifier: MIT */
/* What every driver that keeps counters does alike: see counter.h. */
#include "store/counter.h"
#include "store/values.h"

#include <stdlib.h>
#include <string.h>

enum { REFUSED_BYTES = 3 }; /* of one item: two of its index, the lowest first, and one of its status */

static bool items_valid(const struct dibs__counter_op *op) {
  if (op->count < 1 || op->count > DIBS__COUNTER_ITEMS || !op->items) return false;
  for (uint32_t i = 0; i < op->count; i++) {
    if (op->items[i].key.len < 1 || op->items[i].key.len > DIBS_NAME_MAX) return false;
    if (op->op.verb == DIBS__COUNTER_ADD && i > 0 && !dibs__str_before(op->items[i - 1].key, op->items[i].key))
      return false;
  }
  return !op->table || op->table->count;
}

static bool take_valid(const struct dibs__counter_op *op) {
  return op->key.len >= 1 && op->key.len <= DIBS_NAME_MAX && op->limit >= 1 && op->limit <= DIBS__RATE_LIMIT_MAX &&
         op->per_ms >= 1 && op->per_ms <= DIBS__RATE_PER_MAX_MS && op->amount >= 1 && op->amount <= op->limit;
}

/* The time that brings one token, in whole ns, rounded up: so never more than the limit is allowed. */
static int64_t token_ns(const struct dibs__counter_op *op) {
  return (op->per_ms * DIBS__NS_PER_MS + op->limit - 1) / op->limit;
}

/* Of all tokens: the bucket has exactly `limit` of them. */
DIBS__MODULE_API int64_t dibs__rate_span_ns(const struct dibs__counter_op *op) {
  return token_ns(op) * op->limit;
}

int64_t dibs__rate_step_ns(const struct dibs__counter_op *op) {
  return token_ns(op) * op->amount;
}

void dibs__rate_refuse(struct dibs__counter_op *op, int64_t ahead_ns) {
  int64_t wait_ns = ahead_ns + dibs__rate_step_ns(op) - dibs__rate_span_ns(op);
  op->op.status = DIBS_FULL;
  op->wait_ms = wait_ns <= 0 ? 1 : (wait_ns + DIBS__NS_PER_MS - 1) / DIBS__NS_PER_MS;
}

DIBS__MODULE_API void dibs__counter_set_all(struct dibs__counter_op *op, dibs__status status) {
  for (uint32_t i = 0; i < op->count; i++) op->items[i].status = status;
}

static bool source_valid(const struct dibs__counter_op *op, bool inside) {
  if (inside) return op->sequence == 0 && op->fence.v == 0;
  return op->sequence >= 1 && op->sequence <= INT64_MAX;
}

DIBS__MODULE_API bool dibs__counter_valid(struct dibs__counter_op *op, bool inside) {
  op->got = NULL;
  op->got_count = 0;
  op->why[0] = '\0';
  op->wait_ms = 0;
  op->op.status = DIBS_INVALID;
  switch (op->op.verb) {
  case DIBS__COUNTER_ADD:
  case DIBS__COUNTER_READ:
    if (!items_valid(op) || (op->op.verb == DIBS__COUNTER_ADD && !source_valid(op, inside))) return false;
    for (uint32_t i = 0; i < op->count; i++) op->items[i].number = 0;
    dibs__counter_set_all(op, DIBS_UNKNOWN);
    return true;
  case DIBS__COUNTER_LIST:
    return !op->table && op->most >= 1 && op->most <= DIBS__COUNTER_ROWS && op->prefix.len <= DIBS_NAME_MAX &&
           op->after.len <= DIBS_NAME_MAX;
  case DIBS__COUNTER_TAKE:
    if (inside) op->op.status = DIBS_UNSUPPORTED;
    return !inside && take_valid(op);
  default:
    return false;
  }
}

DIBS__MODULE_API void dibs__counter_answer(struct dibs__counter_op *op, const struct dibs__counter_row *rows,
                                           size_t count) {
  size_t size = 0;
  op->op.status = DIBS_OK;
  if (count == 0) return;
  for (size_t i = 0; i < count; i++) size += sizeof *rows + rows[i].key.len + 1;
  op->got = malloc(size);
  if (!op->got) {
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  char *at = (char *)(op->got + count);
  for (size_t i = 0; i < count; i++) {
    struct dibs__counter_row *row = &op->got[op->got_count++];
    *row = (struct dibs__counter_row){{at, rows[i].key.len}, rows[i].number};
    if (rows[i].key.len) memcpy(at, rows[i].key.p, rows[i].key.len);
    at[rows[i].key.len] = '\0';
    at += rows[i].key.len + 1;
  }
}

DIBS__MODULE_API size_t dibs__counter_write_refused(const struct dibs__counter_op *op, uint8_t *to) {
  size_t len = 0;
  for (uint32_t i = 0; i < op->count; i++) {
    if (op->items[i].status == DIBS_OK) continue;
    to[len++] = (uint8_t)(i & 0xff);
    to[len++] = (uint8_t)(i >> 8);
    to[len++] = (uint8_t)op->items[i].status;
  }
  return len;
}

DIBS__MODULE_API void dibs__counter_read_refused(struct dibs__counter_op *op, const uint8_t *from, size_t len) {
  dibs__counter_set_all(op, DIBS_OK);
  for (size_t at = 0; at + REFUSED_BYTES <= len; at += REFUSED_BYTES) {
    uint32_t index = from[at] | (uint32_t)from[at + 1] << 8;
    if (index < op->count) op->items[index].status = from[at + 2];
  }
}

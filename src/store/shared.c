/* SPDX-License-Identifier: MIT */
/* Is an operation on shared sums well-formed?  See shared.h. */
#include "store/shared.h"

#include <string.h>

/* It becomes a part of a name in the store. */
static bool space_valid(dibs__str space) {
  if (space.len < 1 || space.len > DIBS__SHARED_SPACE_MAX) return false;
  for (uint32_t i = 0; i < space.len; i++) {
    char c = space.p[i];
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))) return false;
  }
  return true;
}

static bool items_valid(const struct dibs__shared_op *op, uint32_t least) {
  if (op->count < least || op->count > DIBS__COUNTER_ITEMS || (op->count > 0 && !op->items)) return false;
  for (uint32_t i = 0; i < op->count; i++) {
    dibs__str key = op->items[i].key;
    if (key.len < 1 || key.len > DIBS_NAME_MAX) return false;
    if (op->op.verb == DIBS__SHARED_ADD && i > 0 && !dibs__str_before(op->items[i - 1].key, key)) return false;
  }
  return true;
}

static void clear_answers(struct dibs__shared_op *op) {
  bool seals = op->op.verb == DIBS__SHARED_SEAL;
  op->got = NULL;
  op->got_count = 0;
  op->name[0] = '\0';
  op->sealed = op->age_ms = 0;
  op->waits = false;
  memset(op->parts, 0, sizeof op->parts);
  if (!seals) return;
  op->source = (dibs__id){{0}};
  op->sequence = 0;
}

DIBS__MODULE_API bool dibs__shared_valid(struct dibs__shared_op *op) {
  bool numbered = op->sequence >= 1 && op->sequence <= DIBS__SHARED_SEQUENCE_MAX;
  bool valid = space_valid(op->space) && op->part < DIBS__SHARED_PARTS;
  clear_answers(op);
  switch (op->op.verb) {
  case DIBS__SHARED_ADD:
    valid = valid && numbered && items_valid(op, 1);
    break;
  case DIBS__SHARED_READ:
    valid = valid && op->count == 1 && items_valid(op, 1);
    break;
  case DIBS__SHARED_DROP:
    valid = valid && numbered && items_valid(op, 0);
    break;
  case DIBS__SHARED_FORGET:
    valid = valid && items_valid(op, 1);
    break;
  case DIBS__SHARED_LOOK:
  case DIBS__SHARED_SEAL:
  case DIBS__SHARED_REFUSED:
    break;
  default:
    valid = false;
  }
  op->op.status = valid ? DIBS_UNKNOWN : DIBS_INVALID;
  return valid;
}

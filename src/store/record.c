/* SPDX-License-Identifier: MIT */
/* What every store decides in the same way about a record of dibs' own table. */
#include "store/store.h"

DIBS__MODULE_API bool dibs__record_valid(struct dibs__record_op *op) {
  const uint32_t known = DIBS__IF_VERSION | DIBS__IF_ABSENT | DIBS__IF_FENCE;
  uint32_t guards = dibs__record_guards(op);
  bool writes = op->op.verb == DIBS__RECORD_SAVE || op->op.verb == DIBS__RECORD_PUT;
  op->got = NULL;
  op->got_len = 0;
  op->version = 0;
  op->seen = DIBS__FENCE_NONE;
  op->stands[0] = '\0';
  op->why[0] = '\0';
  op->op.status = op->table ? DIBS_UNSUPPORTED : DIBS_INVALID;
  if (op->table || op->op.verb > DIBS__RECORD_DROP || (guards & ~known)) return false;
  if (op->key.len < 1 || op->key.len > DIBS_NAME_MAX) return false;
  if ((guards & DIBS__IF_FENCE) && op->fence.v == 0) return false;
  if ((guards & DIBS__IF_ABSENT) && ((guards & DIBS__IF_VERSION) || op->op.verb == DIBS__RECORD_DROP)) return false;
  return !writes || op->data.len <= DIBS_RECORD_MAX;
}

DIBS__MODULE_API bool dibs__record_admits(struct dibs__record_op *op, dibs__fence fence, uint64_t digest,
                                          uint64_t version) {
  uint32_t guards = dibs__record_guards(op);
  bool versioned = (guards & DIBS__IF_VERSION) != 0;
  bool empty = versioned && dibs__str_is_number(op->if_version, 0);
  op->op.status = DIBS_NOT_FOUND;
  if (version == 0 && (op->op.verb == DIBS__RECORD_DROP || (versioned && !empty))) return false;
  op->seen = fence;
  op->op.status = DIBS_STALE;
  if ((guards & DIBS__IF_FENCE) && dibs__fence_below(op->fence, fence)) return false;
  if ((guards & DIBS__IF_FENCE) && op->fence.v == fence.v && digest != dibs__id_digest(op->id)) return false;
  op->seen = DIBS__FENCE_NONE;
  op->version = version;
  op->op.status = DIBS_CONFLICT;
  if ((guards & DIBS__IF_ABSENT) && version != 0) return false;
  if (versioned && !dibs__str_is_number(op->if_version, version)) return false;
  op->version = 0;
  return true;
}

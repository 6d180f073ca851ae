/* SPDX-License-Identifier: MIT */
#ifndef DIBS_STORE_FENCE_H
#define DIBS_STORE_FENCE_H
/*
 * The one file that knows the parts of a fence: epoch (21 bits) over seq (32 bits), 53 bits in total, so that JSON,
 * JavaScript and Lua doubles represent it exactly.  All other code only compares fences.
 */
#include <stdbool.h>
#include <stdint.h>

typedef struct {
  uint64_t v;
} dibs__fence;

#define DIBS__EPOCH_MAX UINT32_C(0x1fffff)
#define DIBS__SEQ_MAX UINT32_C(0xffffffff)
#define DIBS__FENCE_MAX ((UINT64_C(1) << 53) - 1)
#define DIBS__FENCE_NONE ((dibs__fence){0})

static inline dibs__fence dibs__fence_make(uint32_t epoch, uint32_t seq) {
  return (dibs__fence){((uint64_t)(epoch & DIBS__EPOCH_MAX) << 32) | seq};
}
static inline uint32_t dibs__fence_epoch(dibs__fence fence) {
  return (uint32_t)(fence.v >> 32) & DIBS__EPOCH_MAX;
}
static inline uint32_t dibs__fence_seq(dibs__fence fence) {
  return (uint32_t)fence.v;
}
static inline bool dibs__fence_below(dibs__fence a, dibs__fence b) {
  return a.v < b.v;
}
/* The nth fence of a block that begins at `first`; blocks never cross an epoch. */
static inline dibs__fence dibs__fence_nth(dibs__fence first, uint32_t n) {
  return (dibs__fence){first.v + n};
}

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_BASE_SLOT_H
#define DIBS_BASE_SLOT_H
/*
 * The slot of a key: 32 bits of its hash.  Lane number n of P lanes is the n-th of P equal ranges of slots, so an index
 * by slot serves the keys of a lane for every P.  This may never change: processes of several versions share topics,
 * and stores keep slots.
 */
#include <stddef.h>
#include <stdint.h>

/* FNV-1a 64 and the finalizer of splitmix64: the last bytes of a key change all bits. */
static inline uint32_t dibs__slot(const void *key, size_t length) {
  const unsigned char *p = key;
  uint64_t hash = UINT64_C(14695981039346656037);
  for (size_t i = 0; i < length; i++) hash = (hash ^ p[i]) * UINT64_C(1099511628211);
  hash = (hash ^ hash >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  hash = (hash ^ hash >> 27) * UINT64_C(0x94d049bb133111eb);
  return (uint32_t)((hash ^ hash >> 31) >> 32);
}

/* `lanes` is 1 or more. */
static inline uint32_t dibs__slot_lane(uint32_t slot, uint32_t lanes) {
  return (uint32_t)((uint64_t)slot * lanes >> 32);
}

/* The first slot of a lane; of lane number `lanes`: 2^32. */
static inline uint64_t dibs__lane_slot(uint32_t lane, uint32_t lanes) {
  return (((uint64_t)lane << 32) + lanes - 1) / lanes;
}

#endif

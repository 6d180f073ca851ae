/* SPDX-License-Identifier: MIT */
/*
 * Rendezvous hashing with a bound.  Each pair of a member and a lane has a weight, a hash of both.  In the order of the
 * weights, the largest first, a pair is taken if its lane is free and its member may have one more.  With n members and
 * P lanes a member may have P/n, and the first P%n members that reach it have one more.  So every lane is taken, and
 * members differ by at most one.  Most pairs are the same with a member more or less, so few lanes move.
 */
#include "lane/lane_impl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* A pair in one number: its weight above the index of its member and its lane. */
enum { INDEX_BITS = 10 };
_Static_assert(DIBS_LANES_MAX == 1 << INDEX_BITS, "an index of a lane, or of a member that gets one, has so many bits");

static uint64_t pair(uint32_t member, uint32_t index, uint32_t lane) {
  uint64_t x = ((uint64_t)member << 32 | lane) + UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  x ^= x >> 31;
  return x >> (2 * INDEX_BITS) << (2 * INDEX_BITS) | (uint64_t)index << INDEX_BITS | lane;
}

static int larger_first(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x < y) - (x > y);
}

bool dibs__lane_assign(const uint32_t *members, size_t count, uint32_t lanes, uint32_t *owners) {
  assert(count > 0 && lanes > 0);
  size_t used = count < lanes ? count : lanes, pairs = used * lanes;
  uint64_t *list = malloc(pairs * sizeof *list);
  uint32_t *has = calloc(used, sizeof *has);
  if (!list || !has) {
    free(list);
    free(has);
    return false;
  }
  for (size_t m = 0; m < used; m++)
    for (uint32_t lane = 0; lane < lanes; lane++) list[m * lanes + lane] = pair(members[m], (uint32_t)m, lane);
  qsort(list, pairs, sizeof *list, larger_first);
  uint32_t each = lanes / (uint32_t)used, extra = lanes % (uint32_t)used;
  const uint32_t mask = DIBS_LANES_MAX - 1;
  memset(owners, 0xff, lanes * sizeof *owners);
  for (size_t i = 0; i < pairs; i++) {
    uint32_t m = (uint32_t)(list[i] >> INDEX_BITS) & mask, lane = (uint32_t)list[i] & mask;
    bool more = has[m] == each && extra > 0;
    if (owners[lane] != UINT32_MAX || (has[m] >= each && !more)) continue;
    extra -= more;
    has[m]++;
    owners[lane] = m;
  }
  free(list);
  free(has);
  return true;
}

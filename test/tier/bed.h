/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_TIER_BED_H
#define DIBS_TEST_TIER_BED_H
/* States for decisions, and random steps that are the same in each run. */
#include "tier/state.h"

enum { EPOCH_BITS_MS = 1 << 22 };
#define NOW INT64_C(1795300000000) /* an instant in 2026 */

static inline struct dibs__tiers_state two_tiers(void) {
  struct dibs__tiers_state state;
  dibs__tiers_begin(&state, (const char *const[]){"redis", "mysql"}, 2);
  return state;
}

static inline struct dibs__tiers_state three_tiers(void) {
  struct dibs__tiers_state state;
  dibs__tiers_begin(&state, (const char *const[]){"redis", "postgres", "mysql"}, 3);
  return state;
}

static inline dibs__incarnation incarnation_of(uint8_t which) {
  return (dibs__incarnation){{which, 0xfe}};
}

static inline uint64_t draw(uint64_t *seed, uint64_t below) {
  *seed ^= *seed << 13, *seed ^= *seed >> 7, *seed ^= *seed << 17;
  return *seed % below;
}

#endif

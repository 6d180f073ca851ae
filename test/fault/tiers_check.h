/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_FAULT_TIERS_CHECK_H
#define DIBS_TEST_FAULT_TIERS_CHECK_H
/* What the files of the checker share. */
#include "dibs.h"
#include "store/fence.h"
#include "tiers.h"

#include <stddef.h>

/* One ask, and what became of it.  0: that did not happen, or nobody lived to tell. */
struct tiers_grant {
  uint32_t party;
  uint16_t name;
  int64_t ask_at, at, until, letting_at;
  uint64_t fence;
};

enum tiers_step_kind { STEP_SEAL, STEP_SAVE, STEP_ADD };
struct tiers_step {
  enum tiers_step_kind kind;
  uint32_t party, lease;
  uint16_t name;
  uint64_t fence;
  int64_t number, began, ended; /* ended INT64_MAX: nobody lived to tell */
  int64_t status;
};

/* A time in which a party was stopped, or cut off from the anchor, or, of party 0, the anchor was away. */
struct tiers_trouble {
  uint32_t party;
  int64_t from, to;
};

struct tiers_check {
  const struct tiers_bounds *bounds;
  const int64_t *finals, *plains;
  struct tiers_sums *sums;
  struct tiers_grant *grants;
  struct tiers_step *steps;
  struct tiers_trouble *troubles;
  size_t grant_count, step_count, trouble_count;
  size_t fenced_count; /* of the grants, those that have an order: they stand first */
  int64_t began, over, well;
  bool full; /* a history had no more room */
};

void tiers_broken(struct tiers_check *check, enum tiers_rule rule, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static inline double tiers_ms(const struct tiers_check *check, int64_t at) {
  return (double)(at - check->began) / (double)DIBS__NS_PER_MS;
}
static inline uint32_t tiers_epoch(uint64_t fence) {
  return dibs__fence_epoch((dibs__fence){fence});
}

/* tiers_read.c.  What was not granted is not in grants. */
bool tiers_read(struct tiers_check *check, const char *folder);
void tiers_free(struct tiers_check *check);

/* tiers_check_numbers.c */
void tiers_check_numbers(struct tiers_check *check);

#endif

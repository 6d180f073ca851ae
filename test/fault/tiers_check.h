/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_FAULT_TIERS_CHECK_H
#define DIBS_TEST_FAULT_TIERS_CHECK_H
/* What the files of the checker share. */
#include "dibs.h"
#include "store/fence.h"
#include "tiers.h"

#include <stddef.h>

/* One request and its outcome.  0: it did not happen, or no process survived to record it. */
struct tiers_grant {
  uint32_t party;
  uint16_t name;
  int64_t request_at, at;
  uint64_t fence;
};

enum tiers_step_kind { STEP_SEAL, STEP_SAVE, STEP_ADD };
struct tiers_step {
  enum tiers_step_kind kind;
  uint32_t party, lease;
  uint16_t name;
  uint64_t fence;
  int64_t number, began, ended; /* ended INT64_MAX: no process survived to record it */
  int64_t status;
};

/* A period in which a party was stopped or cut off from the anchor; party 0: the anchor was unreachable. */
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
  size_t fenced_count; /* how many grants have an order: they come first */
  int64_t began, over, well;
  bool full; /* a history was full */
};

void tiers_broken(struct tiers_check *check, enum tiers_rule rule, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static inline double tiers_ms(const struct tiers_check *check, int64_t at) {
  return (double)(at - check->began) / (double)DIBS__NS_PER_MS;
}
static inline uint32_t tiers_epoch(uint64_t fence) {
  return dibs__fence_epoch((dibs__fence){fence});
}

/* tiers_read.c.  `grants` contains only granted requests. */
bool tiers_read(struct tiers_check *check, const char *folder);
void tiers_free(struct tiers_check *check);

/* tiers_check_numbers.c */
void tiers_check_numbers(struct tiers_check *check);

#endif

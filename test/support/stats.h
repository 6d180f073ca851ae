/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_SUPPORT_STATS_H
#define DIBS_TEST_SUPPORT_STATS_H
/* The metrics of dibs_metrics for a store (not for its tiers), as one struct. */
#include "dibs/admin.h"

#include <string.h>

struct stats {
  uint64_t acquired, handed_off, busy, timeout, failed, lost, renewed, stale, held, waiting;
  uint64_t batches, operations, transactions;
};

static inline int stats_add(const dibs_metric *metric, void *user) {
#define STATS_FIELD(name)                                                                                              \
  { #name, offsetof(struct stats, name) }
  static const struct {
    const char *name;
    size_t at;
  } fields[] = {STATS_FIELD(acquired),    STATS_FIELD(handed_off), STATS_FIELD(busy),    STATS_FIELD(timeout),
                STATS_FIELD(failed),      STATS_FIELD(lost),       STATS_FIELD(renewed), STATS_FIELD(stale),
                STATS_FIELD(held),        STATS_FIELD(waiting),    STATS_FIELD(batches), STATS_FIELD(operations),
                STATS_FIELD(transactions)};
#undef STATS_FIELD
  for (size_t i = 0; i < sizeof fields / sizeof fields[0] && !metric->tier; i++)
    if (strcmp(metric->name, fields[i].name) == 0) *(uint64_t *)(void *)((char *)user + fields[i].at) = metric->value;
  return 0;
}

static inline struct stats stats_of(dibs_store *store) {
  struct stats stats = {0};
  (void)!dibs_metrics(store, stats_add, &stats, NULL);
  return stats;
}

#endif

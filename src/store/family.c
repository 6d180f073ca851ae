/* SPDX-License-Identifier: MIT */
/* The table of the families of operations. */
#include "store/family.h"
#include "store/counter.h"
#include "store/engine.h"
#include "store/run.h"
#include "store/shared.h"
#include "store/task.h"

#define VERB(verb) (1u << (verb))

static const struct dibs__family_info families[DIBS__FAM_COUNT] = {
    [DIBS__FAM_LEASE] = {.name = "lease",
                         .verbs = {"acquire", "renew", "release", "cancel", "break"},
                         .served = DIBS__SERVED_BY_TIER,
                         .joins_groups = true,
                         .size = sizeof(struct dibs__lease_op),
                         .key = offsetof(struct dibs__lease_op, name)},
    [DIBS__FAM_ANCHOR] = {.name = "anchor",
                          .verbs = {"read", "next", "install", "alone", "raise", "leave", "open"},
                          .served = DIBS__SERVED_BY_ITSELF,
                          .reads = VERB(DIBS__ANCHOR_READ),
                          .size = sizeof(struct dibs__anchor_op)},
    [DIBS__FAM_RECORD] = {.name = "record",
                          .verbs = {"load", "seal", "put", "drop"},
                          .served = DIBS__SERVED_BY_LAST,
                          .joins_groups = true,
                          .reads = VERB(DIBS__RECORD_LOAD),
                          .size = sizeof(struct dibs__record_op),
                          .key = offsetof(struct dibs__record_op, key),
                          .got = offsetof(struct dibs__record_op, got),
                          .got_count = offsetof(struct dibs__record_op, got_len)},
    [DIBS__FAM_STOCK] = {.name = "stock",
                         .verbs = {"take", "give", "read", "set", "list"},
                         .served = DIBS__SERVED_BY_LAST,
                         .reads = VERB(DIBS__STOCK_READ) | VERB(DIBS__STOCK_LIST),
                         .size = sizeof(struct dibs__stock_op),
                         .key = offsetof(struct dibs__stock_op, key),
                         .got = offsetof(struct dibs__stock_op, rows),
                         .got_count = offsetof(struct dibs__stock_op, row_count)},
    [DIBS__FAM_ONCE] = {.name = "once",
                        .verbs = {"read", "store", "forget", "begin", "leave"},
                        .served = DIBS__SERVED_BY_LAST,
                        .reads = VERB(DIBS__ONCE_READ),
                        .size = sizeof(struct dibs__once_op),
                        .key = offsetof(struct dibs__once_op, key),
                        .got = offsetof(struct dibs__once_op, got),
                        .got_count = offsetof(struct dibs__once_op, got_len)},
    [DIBS__FAM_REPORT] = {.name = "report",
                          .verbs = {"put", "read", "drop"},
                          .served = DIBS__SERVED_BY_LAST,
                          .reads = VERB(DIBS__REPORT_READ),
                          .size = sizeof(struct dibs__report_op),
                          .got = offsetof(struct dibs__report_op, got),
                          .got_count = offsetof(struct dibs__report_op, got_count)},
    [DIBS__FAM_TIERS] = {.name = "tiers",
                         .verbs = {"view", "flag", "move", "switch", "strictness", "bump", "disband"},
                         .served = DIBS__SERVED_BY_ITSELF,
                         .reads = VERB(DIBS__TIERS_VIEW),
                         .size = sizeof(struct dibs__tiers_op),
                         .got = offsetof(struct dibs__tiers_op, got)},
    [DIBS__FAM_TASK] = {.name = "task",
                        .verbs = {"add", "claim", "extend", "end", "change", "list", "count", "kind"},
                        .served = DIBS__SERVED_BY_LAST,
                        .reads = VERB(DIBS__TASK_LIST) | VERB(DIBS__TASK_COUNT),
                        .size = sizeof(struct dibs__task_op),
                        .key = offsetof(struct dibs__task_op, kind),
                        .got = offsetof(struct dibs__task_op, got),
                        .got_count = offsetof(struct dibs__task_op, got_count)},
    [DIBS__FAM_RUN] = {.name = "run",
                       .verbs = {"put", "list", "set"},
                       .served = DIBS__SERVED_BY_LAST,
                       .reads = VERB(DIBS__RUN_LIST),
                       .size = sizeof(struct dibs__run_op),
                       .got = offsetof(struct dibs__run_op, got),
                       .got_count = offsetof(struct dibs__run_op, got_count)},
    [DIBS__FAM_COUNTER] = {.name = "counter",
                           .verbs = {"add", "read", "list", "take"},
                           .served = DIBS__SERVED_BY_LAST,
                           .reads = VERB(DIBS__COUNTER_READ) | VERB(DIBS__COUNTER_LIST),
                           .size = sizeof(struct dibs__counter_op),
                           .key = offsetof(struct dibs__counter_op, key),
                           .got = offsetof(struct dibs__counter_op, got),
                           .got_count = offsetof(struct dibs__counter_op, got_count)},
    [DIBS__FAM_SHARED] = {.name = "shared",
                          .verbs = {"add", "read", "look", "seal", "drop", "refused", "forget"},
                          .served = DIBS__SERVED_BY_FIRST,
                          .reads = VERB(DIBS__SHARED_READ) | VERB(DIBS__SHARED_LOOK) | VERB(DIBS__SHARED_REFUSED),
                          .size = sizeof(struct dibs__shared_op),
                          .got = offsetof(struct dibs__shared_op, got),
                          .got_count = offsetof(struct dibs__shared_op, got_count)},
    [DIBS__FAM_ENGINE] = {.name = "engine",
                          .verbs = {"describe"},
                          .served = DIBS__SERVED_BY_ITSELF,
                          .reads = VERB(DIBS__ENGINE_DESCRIBE),
                          .size = sizeof(struct dibs__engine_op),
                          .got = offsetof(struct dibs__engine_op, got),
                          .got_count = offsetof(struct dibs__engine_op, got_count)},
};

DIBS__MODULE_API const struct dibs__family_info *dibs__family_of(const struct dibs__op *op) {
  static const struct dibs__family_info unknown = {
      .name = "?", .served = DIBS__SERVED_BY_ITSELF, .size = sizeof(struct dibs__op)};
  return op->family < DIBS__FAM_COUNT ? &families[op->family] : &unknown;
}

uint32_t dibs__families_served(enum dibs__served by) {
  uint32_t bits = 0;
  for (uint16_t i = 0; i < DIBS__FAM_COUNT; i++)
    if (families[i].served == by) bits |= 1u << i;
  return bits;
}

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_CONTRACT_HISTORY_H
#define DIBS_TEST_CONTRACT_HISTORY_H
/*
 * Random histories: steps drawn from a seed run on the memory driver and on another driver in lock-step, and each
 * answer is compared. A step contains no numbers of a store (fences, tickets); it says "the fence of the last grant".
 *
 * Time: leases last half a second more than a whole number of seconds, clocks are moved by whole seconds.  So if a
 * history takes less than that half second of real time, no lease ends at nearly the time of a request.
 */
#include "harness.h"

enum { NAMES = 3, IDS = 9, PARTIES = 3, STEPS_MAX = 2000, JOINED_MAX = 6, BATCH_GROUP = 1, SEEN = STEPS_MAX };

enum step_kind {
  STEP_ACQUIRE,
  STEP_RENEW,
  STEP_RELEASE,
  STEP_CANCEL,
  STEP_BREAK,
  STEP_LOAD,
  STEP_SEAL,
  STEP_SAVE,
  STEP_ANCHOR_READ,
  STEP_ANCHOR_NEXT,
  STEP_LIST_NAME,
  STEP_LIST_ALL,
  STEP_TIME,
  STEP_CLOSE,
  STEP_USE_UP
};

enum fence_pick { FENCE_LAST, FENCE_BEFORE, FENCE_OF_ANOTHER, FENCE_NONE, FENCE_OFFERED };
enum mandate_pick { MANDATE_STANDING, MANDATE_OLDER, MANDATE_STRANGER, MANDATE_NONE };

struct step {
  enum step_kind kind;
  uint8_t name, id, party;
  uint8_t mode, slots;
  uint8_t fence, mandate; /* picks */
  uint8_t fence_plus;     /* into the block, or beyond it */
  uint32_t ttl_ms, block, ms;
  bool try_only, now, with_ticket;
  bool to_offered; /* instead of name and id: the waiter that received the last offer */
  bool joins;      /* the next one is in the same batch */
  bool group;      /* the whole batch is one group */
};

/* The same seed always gives the same steps. */
void history_draw(uint64_t seed, struct step steps[], size_t count);
void history_print_step(const struct step *step, size_t nr);

/* One of the two stores. */
struct side {
  const char *label;
  const char *uri;
  const struct contract_target *target;
  bool by_order; /* one of the two is clocked: fences are compared by their order */
  struct party *parties[PARTIES];
  int64_t moved; /* its clock */
  struct {
    dibs__fence last, before, offered;
    uint32_t block;
    uint64_t ticket;
  } grants[NAMES][IDS];
  dibs__mandate mandates[NAMES];
  uint32_t first_epoch[NAMES], first_seq[NAMES];
  /* In a run with a clocked store: the fences seen, in order, and whether each was the largest at that time. */
  struct {
    dibs__fence fence;
    bool largest;
  } seen[NAMES][SEEN];
  size_t seen_count[NAMES];
};

/* The result of a run. */
struct verdict {
  bool differs;
  bool untimely; /* the run took too long to compare times */
  size_t at;     /* the step whose answers differ */
  char text[400];
  uint64_t run_count[STEP_USE_UP + 1], answered[104];
};

/* Runs the steps on both stores.  `run` makes the names of this run unique. */
void history_run(const char *reference, const char *other, uint64_t run, const struct step steps[], size_t count,
                 struct verdict *verdict);

#endif

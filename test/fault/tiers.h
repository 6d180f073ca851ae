/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_FAULT_TIERS_H
#define DIBS_TEST_FAULT_TIERS_H
/*
 * Fault runs over tiers: what workers wrote down while servers and networks failed, and the check of it.
 *
 * Each worker has a lease of one of a few names, and adds 1 to two numbers that stand in the anchor's database: a
 * record that it seals and saves under the lease's fence, and a plain counter that it reads and writes while it
 * believes to hold the lease, as people do who know of no fences.
 */
#include "history.h"

enum { TIERS_NAMES = 16, TIERS_PARTIES = 16 };

/* How the records are written: the two that leave something out must be seen to lose increments. */
enum tiers_how { HOW_FENCED, HOW_NO_SEAL, HOW_NO_FENCE };

/* X(name, what it says) */
#define TIERS_RULES(X)                                                                                                 \
  X(HISTORY, "histories are there, and something happened")                                                            \
  X(TWICE, "a fence of a name is given once")                                                                          \
  X(GROWS, "in an epoch, who asks after a grant was seen gets a larger fence")                                         \
  X(FOLLOWS, "who can reach the anchor is granted under no epoch that is older than the lag")                          \
  X(ACCEPTS, "a record accepts no lower fence after a higher one")                                                     \
  X(NUMBERS, "no acknowledged number is written twice, and they grow with the fences")                                 \
  X(FINAL, "every acknowledged increment is in the final number, and none that nobody made")                           \
  X(IDLE, "somebody gets a lease every so often")                                                                      \
  X(ALL, "everybody adds something when all is well again")                                                            \
  X(STILL, "nothing moves")                                                                                            \
  X(EXCLUSION, "nobody has a name that another one was promised")                                                      \
  X(PLAIN, "no increment of a plain counter is lost")
enum tiers_rule {
#define TIERS_RULE(name, text) TIERS_##name,
  TIERS_RULES(TIERS_RULE)
#undef TIERS_RULE
      TIERS_RULE_COUNT
};

/* What holds in a run beside what always does. */
struct tiers_bounds {
  enum tiers_how how; /* what is left out is not checked, but counted */
  bool strict;        /* EXCLUSION */
  bool least;         /* least-strict: who goes on alone, by epoch 1, has no order */
  bool plain;         /* PLAIN: nobody was stopped, and no write was late */
  bool still;         /* STILL */
  int64_t lag_ms;     /* FOLLOWS; 0: 3 s */
  int64_t idle_ms;    /* IDLE; 0: no bound */
  uint32_t parties;   /* ALL: parties 1 to that */
  uint32_t excused;   /* bit a party: it is not expected to add anything */
};

struct tiers_sums {
  uint64_t asks, grants, acknowledged, unknown, refused; /* increments of records */
  uint64_t plain, plain_lost, lost;                      /* acknowledged, and those of them that are not there */
  uint64_t behind;                                       /* granted under an epoch that was not the newest any more */
  uint64_t alone;                                        /* grants by the memory of a process alone */
  uint64_t stops;                                        /* of parties */
  uint64_t highest;                                      /* fence */
  uint32_t epochs;                                       /* that fences were seen of, at most of one name */
  int64_t idle_ms, idle_at_ms;                           /* the longest time that nobody was granted anything */
  uint32_t broken[TIERS_RULE_COUNT];
};

/* Reads FOLDER/party-*.history.  `finals`: what the records say at the end, `plains`: the counters.  Prints what is
 * wrong; how many rules are broken. */
int tiers_check(const char *folder, const struct tiers_bounds *bounds, const int64_t finals[TIERS_NAMES],
                const int64_t plains[TIERS_NAMES], struct tiers_sums *sums);

const char *tiers_rule_name(enum tiers_rule rule);
const char *tiers_rule_text(enum tiers_rule rule);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_FAULT_TIERS_H
#define DIBS_TEST_FAULT_TIERS_H
/*
 * Fault runs over tiers: what workers wrote down while servers and networks failed, and the check of it.
 *
 * Each worker leases one of a few names and adds 1 to two numbers in the anchor's database: a record that it seals and
 * saves under the lease's fence, and a plain counter that it reads and writes while it believes to hold the lease, like
 * a program without fences.
 */
#include "history.h"

enum { TIERS_NAMES = 16, TIERS_PARTIES = 16 };

/* How the records are written: a run without seals or without fences must lose increments. */
enum tiers_how { HOW_FENCED, HOW_NO_SEAL, HOW_NO_FENCE };

/* X(name, the rule) */
#define TIERS_RULES(X)                                                                                                 \
  X(HISTORY, "histories exist and contain grants")                                                                     \
  X(TWICE, "a fence of a name is granted once")                                                                        \
  X(GROWS, "within an epoch, a request that begins after a grant was seen gets a larger fence")                        \
  X(FOLLOWS, "a client that reaches the anchor gets no grant under an epoch that is older than the lag")               \
  X(ACCEPTS, "a record accepts no lower fence after a higher one")                                                     \
  X(NUMBERS, "no acknowledged number is written twice, and they grow with the fences")                                 \
  X(FINAL, "the final number counts every acknowledged increment, and only increments that a client made")             \
  X(IDLE, "the time between grants is bounded")                                                                        \
  X(ALL, "every worker adds to a record after the failure ends")                                                       \
  X(STILL, "no bucket moves")                                                                                          \
  X(BELIEFS, "no two clients believe to hold one name under one epoch, or, in a strict store, under any epochs")       \
  X(PLAIN, "no increment of a plain counter is lost")
enum tiers_rule {
#define TIERS_RULE(name, text) TIERS_##name,
  TIERS_RULES(TIERS_RULE)
#undef TIERS_RULE
      TIERS_RULE_COUNT
};

/* The rules of a run in addition to those that always apply. */
struct tiers_bounds {
  enum tiers_how how; /* losses of a run without seals or fences are counted, not checked */
  bool strict;        /* BELIEFS: also between epochs */
  bool session;       /* session locks end with a connection: BELIEFS allows for this */
  bool least;         /* least-strict: grants of a process alone, under epoch 1, have no order */
  bool plain;         /* PLAIN: no worker was stopped, and no write was late */
  bool still;         /* STILL */
  int64_t still_from; /* an instant (ns): before it, a worker that starts may find a tier too slow, and leave it */
  int64_t lag_ms;     /* FOLLOWS; 0: 3 s */
  int64_t idle_ms;    /* IDLE; 0: no bound */
  uint32_t parties;   /* ALL: parties 1 to this number */
  uint32_t excused;   /* one bit for each party that is not expected to add anything */
};

struct tiers_sums {
  uint64_t requests, grants, acknowledged, unknown, refused; /* increments of records */
  uint64_t plain, plain_lost, lost;                          /* acknowledged, and those that are missing */
  uint64_t behind;                                           /* granted under an epoch that was no longer the newest */
  uint64_t believed, followed; /* beliefs; those that began soon after another one ended */
  uint64_t alone;              /* grants by the memory of a process alone */
  uint64_t stops;              /* of parties */
  uint64_t highest;            /* fence */
  uint32_t epochs;             /* of which fences were seen, at most for one name */
  int64_t idle_ms, idle_at_ms; /* the longest time without a grant */
  uint32_t broken[TIERS_RULE_COUNT];
};

/* Reads FOLDER/party-*.history.  `finals`: the records at the end, `plains`: the counters. Prints what is wrong.
 * Returns how many rules are broken. */
int tiers_check(const char *folder, const struct tiers_bounds *bounds, const int64_t finals[TIERS_NAMES],
                const int64_t plains[TIERS_NAMES], struct tiers_sums *sums);

const char *tiers_rule_name(enum tiers_rule rule);
const char *tiers_rule_text(enum tiers_rule rule);

#endif

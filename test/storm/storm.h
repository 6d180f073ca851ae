/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_STORM_H
#define DIBS_TEST_STORM_H
/*
 * Processes that take leases in a storm, and what is checked of it afterwards.
 *
 * Each process appends what it sees to a log of its own in memory that it shares with the parent, so that it survives
 * kill -9.  All stamps are of the one boot-time clock of the machine.  A hold is what was *surely* held: from the
 * return of acquire to the last moment before which dibs_lease_alive() said yes.  Two such holds that overlap are two
 * holders.
 */
#include "base/port.h"
#include "dibs.h"

enum { STORM_NAMES = 3, STORM_LOGS = 256, STORM_HOLDS = 20000, STORM_SLOTS = 2 };

/* x0 and x1 are exclusive and shared, c is counted. */
extern const char *const storm_names[STORM_NAMES];
enum { STORM_COUNTED = 2 };

struct storm_hold {
  uint32_t name, mode;
  uint64_t fence;
  int64_t asked_ns; /* before acquire was called; 0: the entry is not complete */
  int64_t from_ns;  /* after it returned; 0: it waits still, or waited in vain until `until_ns` */
  _Atomic int64_t until_ns;
  bool waits; /* it asked to wait */
};

struct storm_log {
  pid_t pid;
  bool spared;          /* never stopped or killed */
  int64_t began_ns;     /* the process */
  int64_t disturbed_ns; /* last stopped, continued or killed; 0: never */
  _Atomic uint32_t count;
  _Atomic uint64_t tried, acknowledged; /* increments of the record of x0 */
  _Atomic uint64_t lost, stale, unsure, trouble;
  char words[200]; /* of the first trouble */
  struct storm_hold holds[STORM_HOLDS];
};

struct storm {
  _Atomic bool over;
  uint64_t seed;
  _Atomic uint32_t logs;
  struct storm_log log[STORM_LOGS];
};

/* What a process does until storm->over. */
int storm_live(struct storm *storm, struct storm_log *log, const char *uri, uint32_t threads);
/* Reads all logs; prints what it counted; false: a promise was broken, and which. */
bool storm_check(struct storm *storm, uint64_t final_value);

uint64_t storm_draw(uint64_t *state);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_FAULT_STORM_H
#define DIBS_TEST_FAULT_STORM_H
/*
 * One process of a storm: clients that do at random everything that a lease allows, and write down what they believe.
 */
#include "belief.h"

#include <stdint.h>

enum { STORM_THREADS = 16, STORM_URI = 1536 };

struct storm_job {
  char uri[STORM_URI], folder[64];
  uint32_t process, threads, names;
  uint64_t seed;
  dibs__tick deadline;
  bool counted; /* all names have counted leases; every other name exclusive ones, too */
};

/* How names are used: all clients use name-N in one way. */
static inline dibs_mode storm_mode(const struct storm_job *job, uint16_t name) {
  if (job->counted) return DIBS_COUNTED;
  return name % 4 == 1 ? DIBS_SHARED : name % 4 == 3 ? DIBS_COUNTED : DIBS_EXCLUSIVE; /* readers write occasionally */
}
static inline bool storm_breaks(uint16_t name) {
  return name % 8 == 2 || name % 8 == 5 || name % 8 == 7;
}
static inline bool storm_breaks_now(uint16_t name) {
  return name % 8 == 4;
}

uint64_t storm_draw(uint64_t *seed);
static inline uint32_t storm_below(uint64_t *seed, uint32_t n) {
  return n > 0 ? (uint32_t)(storm_draw(seed) % n) : 0;
}

/* Runs until the deadline; returns the process's exit status. */
int storm_process(const struct storm_job *job);

#endif

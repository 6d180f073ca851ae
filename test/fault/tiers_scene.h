/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_FAULT_TIERS_SCENE_H
#define DIBS_TEST_FAULT_TIERS_SCENE_H
#include "tiers_bed.h"

/* The failures of a run.  Everything works when a scene begins and when it ends; between scenes there is load. */
struct scene {
  const char *name, *text;
  bool (*act)(struct run *run);
  bool strict;       /* for a store in which no two may hold */
  bool least;        /* for a store whose clients continue alone while all servers are unreachable */
  bool plain, still; /* struct tiers_bounds */
  uint32_t odd;      /* one bit for each side on which worker 1 has a user of its own */
  bool most_odd;     /* and so have all workers but the last */
  bool lone;         /* also without tiers */
};

bool scene_anything(struct run *run); /* tiers_storm.c */

extern const struct scene scenes[];
extern const size_t scene_count;

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_FAULT_TIERS_SCENE_H
#define DIBS_TEST_FAULT_TIERS_SCENE_H
#include "tiers_bed.h"

/* What goes wrong in a run.  All is well when it begins and when it ends; between them is load. */
struct scene {
  const char *name, *text;
  bool (*act)(struct run *run);
  bool strict;       /* of a store in which no two may hold */
  bool least;        /* of one where each goes on alone when all is away */
  bool plain, still; /* struct tiers_bounds */
  uint32_t odd;      /* bit a side: there worker 1 is a user of its own */
  bool most_odd;     /* and so are all but the last */
  bool lone;         /* also without tiers */
};

bool scene_anything(struct run *run); /* tiers_storm.c */

extern const struct scene scenes[];
extern const size_t scene_count;

#endif

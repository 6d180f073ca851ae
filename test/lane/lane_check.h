/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_LANE_LANE_CHECK_H
#define DIBS_TEST_LANE_LANE_CHECK_H
/*
 * What the members of a storm have written down, and what must be true of it.  Each member appends lines to a file:
 *
 *   G lane lanes fence ns     it owns the lane from now on
 *   D lane lanes fence ns     it has stopped, and gives the lane back now
 *   T key number fence ns     it is about to write effect `number` of the key
 *   A key number fence ns     the store has acknowledged it
 *   P ns                      (the parent's line) the member is stopped, or killed, from now on
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lane_facts {
  uint64_t acknowledged, unanswered, gains;
  uint64_t twice;    /* effects that were acknowledged twice */
  uint64_t missing;  /* effects that nobody wrote, below the last one */
  uint64_t backward; /* effects with a lower fence than an earlier one of the key */
  uint64_t overlaps; /* a lane that two members had at one time, of members that were never stopped or killed */
  uint64_t mixed;    /* lanes of two numbers of lanes at one time, likewise */
};

/* `last[key]` is the number in the key's record at the end.  false: a file can't be read. */
bool lane_check(const char *folder, uint32_t members, const uint64_t *last, uint32_t keys, struct lane_facts *facts);

#endif

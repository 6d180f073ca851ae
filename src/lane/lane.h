/* SPDX-License-Identifier: MIT */
#ifndef DIBS_LANE_LANE_H
#define DIBS_LANE_LANE_H
/*
 * Lanes for a caller that keeps the leases of a member itself, and no thread: the daemon, whose clients are members.
 * lane_impl.h describes the leases and records of a topic; these functions name them, and say what is to be a member's.
 *
 * Such a caller keeps the order that one writer at a time depends on:
 *
 *   1. its member lease is held
 *   2. dibs__lane_share: the lanes that are to be its own; `clear` is true
 *   3. it acquires the leases of these lanes
 *   4. its member lease is still held: asked of the store after 3, and before anybody works on a lane
 *
 * A member of another number of lanes was granted its member lease after this one was lost, so after 4; it then finds
 * these lanes in its own step 2, and waits.
 */
#include "dibs/lane.h"

#include <stdbool.h>

dibs_status dibs__lane_check_topic(const char *topic, dibs_error *error);
void dibs__lane_members_name(const char *topic, char to[DIBS_NAME_MAX + 1]);
void dibs__lane_name(const char *topic, uint32_t lanes, uint32_t number, char to[DIBS_NAME_MAX + 1]);
/* The slots of the counted lease of members of this many lanes. */
uint32_t dibs__lane_member_slots(uint32_t lanes);
/* The lanes of a member whose lease has so many slots; 0: it is none. */
uint32_t dibs__lane_member_lanes(uint32_t slots);

/* For a new member: the number of lanes of the topic, which is created if it is new.  `lanes`: what the member expects;
 * 0: any.  Blocks for I/O.  INVALID: the topic has another number; NOT_FOUND: `lanes` is 0, and there is no topic. */
dibs_status dibs__lane_enter(dibs_store *store, const char *topic, uint32_t lanes, uint32_t *number, dibs_error *error);

struct dibs__lane_share {
  uint32_t lanes;                 /* of the member in the slot; 0: the store does not show it as a member */
  uint32_t topic_lanes;           /* of the topic by now; 0: no record says it */
  uint32_t members;               /* with these `lanes` */
  bool clear;                     /* no lane of another number is in use */
  bool mine[DIBS_LANES_MAX];      /* by lane; all false unless `lanes` > 0 */
  char owner[DIBS_OWNER_MAX + 1]; /* of the member; "" as long as `lanes` is 0 */
};
/* What the member with this slot is to have.  Blocks for I/O. */
dibs_status dibs__lane_share(dibs_store *store, const char *topic, uint32_t slot, struct dibs__lane_share *share,
                             dibs_error *error);

/* The topic of a lane that a member owns. */
const char *dibs__lane_topic_of(const dibs_lane *lane);

/* A topic with members or owned lanes. */
struct dibs__lane_topic_row {
  const char *topic;
  uint32_t lanes, members, owned, leaving; /* members and owned lanes of another number than `lanes` */
};
/* Returns 0 to continue. */
typedef int (*dibs__lane_topic_fn)(const struct dibs__lane_topic_row *row, void *user);
/* Topics that begin with the prefix and come after `after` (NULL: all), by the bytes of their names with a # behind
 * them.  Blocks for I/O. */
dibs_status dibs__lane_topics(dibs_store *store, const char *prefix, const char *after, dibs__lane_topic_fn fn,
                              void *user, dibs_error *error);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_LANE_LANE_IMPL_H
#define DIBS_LANE_LANE_IMPL_H
/*
 * What the files of this folder share.
 *
 * A topic T with P lanes is, in the store:
 *
 *   the record lane:T          P, for as long as the store exists (not on stores that keep no records)
 *   the lease  lane/T#members  counted, with MEMBERS_BASE + P slots: each member holds one slot.  All holders of a
 *                              counted lease have the same number of slots (R9).  So while a member of the old P is
 *                              left, no client becomes a member of a new P
 *   the leases lane/T#P.N-K    exclusive: lane N of P.  K is chosen so that all names of a topic are in one bucket, and
 *                              get their fences from one sequence (R96): also the fences of lanes of different P grow
 *
 * The slot is the identity of a member: a member that is restarted usually gets its old slot, and with it its lanes.
 *
 * The change of P.  A lane of P is used only while its owner's member lease is held: acquired (lane.c) checks that
 * after the lane's lease was granted.  A new member of P' was granted its member lease after the last member of P had
 * lost its own.  From then on no lane of P begins to be used.  Those that are in use still have their leases: the new
 * member waits until a listing shows none (member.c), and only then acquires lanes.
 */
#include "handle/handle.h"
#include "lane/lane.h"

#include <stdbool.h>
#include <stdint.h>

enum {
  MEMBERS_BASE = 32768, /* slots = MEMBERS_BASE + P, so that the number of slots says P: R9 */
  LANE_TOPIC_WAIT_MS = 1000
};
_Static_assert(MEMBERS_BASE + DIBS_LANES_MAX <= DIBS_SLOTS_MAX, "P is a part of a number of slots");

/* ---- names.c; more of it is in lane.h ---- */
/* The prefix of all names of the topic's leases. */
void dibs__lane_prefix(const char *topic, char to[DIBS_NAME_MAX + 1]);
void dibs__lane_record_key(const char *topic, char to[DIBS_NAME_MAX + 1]);
/* Reads a name of the topic behind its prefix; false: it is not that of a lane. */
bool dibs__lane_name_read(const char *behind_prefix, uint32_t *lanes, uint32_t *number);

/* ---- assign.c ---- */
/* Which member each lane belongs to: owners[lane] is an index into `members`, which are sorted; at least one.  The same
 * for each caller.  Members differ by at most one lane; those beyond the number of lanes get none.  false: no memory.
 */
bool dibs__lane_assign(const uint32_t *members, size_t count, uint32_t lanes, uint32_t *owners);

/* ---- topic.c: the record of P ---- */
struct lane_topic {
  bool recorded;  /* the store keeps records */
  uint32_t lanes; /* 0: there is no record yet */
  char version[DIBS_VERSION_MAX + 1];
};
/* OK, also if there is none; CORRUPT: somebody else wrote the record. */
dibs_status dibs__lane_topic_read(dibs_store *store, const char *topic, struct lane_topic *at, dibs_error *error);
/* The topic that a new member joins: reads it, and creates it if it is new.  `lanes`: the member's, 0: any. */
dibs_status dibs__lane_topic_open(dibs_store *store, const char *topic, uint32_t lanes, struct lane_topic *at,
                                  dibs_error *error);
/* P by the members that are there; 0: none is. */
dibs_status dibs__lane_topic_by_members(dibs_store *store, const char *topic, uint32_t *lanes, dibs_error *error);

/* ---- lane.c ---- */

/* A lane that this member waits for or has. */
struct dibs_lane {
  /* Immutable. */
  struct dibs_lane_member *member; /* held */
  uint32_t number, lanes;
  dibs_lease *lease; /* set before it is granted; freed where callbacks are called, so none follows */
  /* Guarded by member->lock. */
  enum { LANE_WAITS, LANE_HELD, LANE_RELEASED } state;
  bool wanted; /* it is to be this member's */
  bool told;   /* on_lose was called, or will be, with OK */
  bool lost;
  bool over;   /* its end is due */
  bool queued; /* `due` is in the queue */
  struct dibs__due_call due;
};

struct dibs_lane_member {
  /* Immutable after the start. */
  dibs_store *store; /* held */
  char topic[DIBS_TOPIC_MAX + 1], members_name[DIBS_NAME_MAX + 1], prefix[DIBS_NAME_MAX + 1];
  char *owner; /* NULL: the store's */
  bool follows, recorded;
  int64_t ttl_ms, look_ms;
  dibs_lane_fn on_gain, on_lose;
  void *user;
  dibs__thread *thread;

  _Atomic uint32_t refs; /* the caller's, and one for each dibs_lane and each callback that runs */
  dibs__word word;       /* wakes the thread */
  dibs__word calm_word;  /* goes up when a callback returned, and when the member has left */

  /* The thread's own. */
  uint32_t lanes;     /* P */
  uint32_t next;      /* P as the topic has it by now; 0: as it is */
  bool clear;         /* no lane of another P was in use since this member joined */
  uint32_t *assigned; /* by lane: an index of members */
  uint32_t *seen;     /* the members of the latest assignment, sorted */
  size_t seen_count;

  dibs__mutex lock; /* guards what follows; before store->lock */
  dibs_lease *membership;
  struct dibs_lane **slot; /* by number; NULL: neither waited for nor held */
  uint32_t count;          /* of `slot` that are not NULL */
  bool leaving, left, freed;
  uint32_t calls;         /* callbacks that run: of one thread, more than one if a callback dispatches */
  uintptr_t calls_thread; /* that thread */
  dibs_lane_counts counts;
  dibs_error trouble;
};

void dibs__lane_member_drop(struct dibs_lane_member *member);
void dibs__lane_rouse(struct dibs_lane_member *member);
/* Begins to wait for the lane.  false: not now; it is tried again. */
bool dibs__lane_begin(struct dibs_lane_member *member, uint32_t number);
/* It is not to be this member's any more: ends the wait, or calls on_lose. */
void dibs__lane_hand_over(struct dibs_lane_member *member, uint32_t number);
/* Takes all lanes from the user, of whom none is called any more. */
void dibs__lane_take_all(struct dibs_lane_member *member);

#endif

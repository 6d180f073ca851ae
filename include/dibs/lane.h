/* SPDX-License-Identifier: MIT */
#ifndef DIBS_LANE_H
#define DIBS_LANE_H
/*
 * Lanes: one writer for each key, without a lock for each call.
 *
 * - The keys of a topic hash to P lanes (dibs_lane_of).  Members of the topic share the lanes: each lane has one owner
 *   at a time, and two members differ by at most one lane.  The owner of a lane holds a lease, and gives its fence to
 *   every write: dibs_record_put with dibs_lane_lease().  A record refuses the late write of an earlier owner.
 * - A member that is paused may wake up after its lanes have passed to others, and not know it yet.  As with any
 *   lease, only a fence that the data itself checks refuses its late write.
 * - P belongs to the topic.  The store keeps it in a record, and refuses a member that gives another number.
 *   dibs_lane_resize changes it: every member gives back its lanes of the old P before any member gets a lane of the
 *   new one.  A key may then belong to another lane; the fences of all lanes of a topic are from one sequence, so a
 *   later owner of the key has a larger fence than every earlier one.
 * - Lanes need counted leases, listing and fences in one order: not redlock:, mongodb: and lock=.  On redis: alone,
 *   which keeps no records, the topic has its P only as long as it has members, and dibs_lane_resize is UNSUPPORTED.
 *
 * The rules of dibs.h also apply here: INVALID of every call, and "a failure of the store".
 */
#include <dibs.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Members ---------------------------------------------------------------------------------------------------- */

enum {
  DIBS_LANES_MAX = 1024, /* lanes of a topic */
  DIBS_TOPIC_MAX = 200   /* bytes of a topic: a name without number signs */
};

typedef struct dibs_lane_member dibs_lane_member; /* this process, or a part of it, as a member of a topic */
typedef struct dibs_lane dibs_lane;               /* a lane that a member owns */

/* The lane of a key, from 0 to lanes - 1: the same in every process, for ever.  `lanes` is P, 1 or more (0 is taken for
 * 1).  Each lane is a range of the key's hash, so with twice as many lanes each lane becomes two.  It never fails. */
DIBS_EXPORT uint32_t dibs_lane_of(const void *key, size_t length, uint32_t lanes);

/* on_gain: the member owns the lane from now on; status is OK.  The lane is yours, for dibs_lane_release.
 * on_lose, status OK: another member is to get the lane, or the member leaves.  The lease is still held and renewed:
 * finish what you have begun, begin nothing new, then dibs_lane_release, from any thread.  Call it soon: the lane's
 * next owner waits.  on_lose, status LOST: the lease is lost or being broken.  Stop at once, then dibs_lane_release.
 * It is called before another member can own the lane, except if this process was paused.
 *
 * on_lose is called at most once with each status, OK before LOST, and not after dibs_lane_release, unless it is
 * already on its way in another thread.  Both are called as the callbacks of leases are: by a thread of the library, or
 * by dibs_dispatch. */
typedef void (*dibs_lane_fn)(dibs_lane *lane, dibs_status status, void *user);

/* Zero means the default for every field but `size`. */
typedef struct dibs_lane_options {
  size_t size;
  uint32_t lanes;    /* P, 1 to DIBS_LANES_MAX: the first member creates the topic with it, and for later ones it must
                        be the topic's; then the member ends when it is changed.  0: as the topic has, now and after a
                        change */
  uint32_t reserved; /* zero */
  int64_t ttl_ms;  /* of the leases of the member and of its lanes: a dead member's lanes pass to others after that; 0:
                      30 s */
  int64_t look_ms; /* how often the member checks for other members, 10 or more; 0: ttl / 10, a second at most */
  const char *owner;             /* a label for people; NULL: the store's */
  dibs_lane_fn on_gain, on_lose; /* both are needed */
  void *user;                    /* passed to them */
} dibs_lane_options;
#define DIBS_LANE_OPTIONS_INIT DIBS__INIT(dibs_lane_options)

/* Makes this process a member of the topic.  Later on_gain is called for each lane that it gets.  A member that lost
 * its own lease, for example because it was paused, gives back its lanes and joins again by itself.  *member is yours,
 * for dibs_lane_member_free before dibs_close; it is set before on_gain is called, which may be before this call
 * returns.  Blocks for I/O.
 * OK; INVALID (the topic, the options; the topic has another P); NOT_FOUND (options.lanes is 0, and there is no such
 * topic); HELD (the topic has more than thirty thousand members); or a failure of the store: UNSUPPORTED (see above).
 */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_lane_join(dibs_store *store, const char *topic,
                                                     const dibs_lane_options *options, dibs_lane_member **member,
                                                     dibs_error *error);

/* Of a lane that on_gain got, until dibs_lane_release: its number, from 0; P; its lease, which stays the library's (do
 * not release it); and the fence of that.  No I/O. */
DIBS_EXPORT uint32_t dibs_lane_number(const dibs_lane *lane);
DIBS_EXPORT uint32_t dibs_lane_lanes(const dibs_lane *lane);
DIBS_EXPORT dibs_lease *dibs_lane_lease(const dibs_lane *lane);
DIBS_EXPORT dibs_fence dibs_lane_fence(const dibs_lane *lane);

/* Gives the lane back.  You have stopped all work of this lane before, and do not use the pointer any more.  If the
 * lane still belongs to this member, it gets it again soon, under a larger fence.  Does not block and never fails. NULL
 * is fine. */
DIBS_EXPORT void dibs_lane_release(dibs_lane *lane);

/* Calls on_lose for every lane, gets no more lanes, and waits until you have given back all of them and the store knows
 * that the member has left, for wait_ms at most (0: does not wait; DIBS_FOREVER).  With DIBS_STORE_LOOP call it with 0,
 * and dispatch, until it answers OK.
 * OK; TIMEOUT (call it again); INVALID. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_lane_leave(dibs_lane_member *member, int64_t wait_ms, dibs_error *error);

/* Leaves, gives back what was not given back, waits for a callback that runs (but not in that callback itself), and
 * frees the member.  No callback follows.  Call dibs_lane_leave before, or stop the work of all lanes before.  NULL is
 * fine. */
DIBS_EXPORT void dibs_lane_member_free(dibs_lane_member *member);

typedef struct dibs_lane_counts {
  size_t size;
  uint32_t lanes;          /* P; 0: not known yet */
  uint32_t members;        /* that this member saw at its latest check; 0: it is not a member now */
  uint32_t assigned;       /* lanes that are to be this member's */
  uint32_t held;           /* lanes that it has */
  uint64_t gained, lost;   /* lanes: got since it joined, and of those, lost against its will */
  uint64_t joined, looked; /* how often it became a member, and checked for others */
} dibs_lane_counts;
#define DIBS_LANE_COUNTS_INIT DIBS__INIT(dibs_lane_counts)

/* OK; INVALID.  Does not block. */
DIBS_EXPORT dibs_status dibs_lane_count(dibs_lane_member *member, dibs_lane_counts *counts, dibs_error *error);
/* Why the member's latest request to the store failed; status OK: it did not.  CONFLICT: the topic has another P than
 * options.lanes by now, and the member has ended: free it. */
DIBS_EXPORT void dibs_lane_trouble(dibs_lane_member *member, dibs_error *error);

/* ---- For operators ---------------------------------------------------------------------------------------------- */

/* One lane.  Strings are valid during the call of the function that gets it. */
typedef struct dibs_lane_info {
  size_t size;
  uint32_t lane, lanes; /* its number; the P that it belongs to: while P is changed, owned lanes of the old one, too */
  const char *owner;    /* NULL: it has none now */
  dibs_fence fence;
  int64_t left_ms, age_ms; /* of the owner's lease: until it ends by itself, and since it was granted */
} dibs_lane_info;

typedef struct dibs_lane_topic_info {
  size_t size;
  uint32_t lanes;    /* P */
  uint32_t members;  /* now */
  uint32_t leaving;  /* members under another P, which have to leave before others get lanes */
  uint32_t recorded; /* 1: the store keeps P when no member is left */
} dibs_lane_topic_info;
#define DIBS_LANE_TOPIC_INFO_INIT DIBS__INIT(dibs_lane_topic_info)

/* Return 0 to continue, anything else to stop. */
typedef int (*dibs_lane_list_fn)(const dibs_lane_info *info, void *user);

/* Describes the topic, and calls `fn` (NULL: none) for each of its lanes, by number.  `info` may be NULL.  Blocks for
 * I/O.
 * OK, also if `fn` stopped it; NOT_FOUND (no such topic); INVALID; or a failure of the store. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_lane_list(dibs_store *store, const char *topic, dibs_lane_topic_info *info,
                                                     dibs_lane_list_fn fn, void *user, dibs_error *error);

/* Changes P.  Members that joined with options.lanes 0 give back their lanes and continue under the new P; the others
 * end.  Waits until every member has left the old P, for wait_ms at most (0: does not wait; DIBS_FOREVER).  Blocks for
 * I/O.
 * OK; TIMEOUT (it is changed, and members of the old P have not left yet); NOT_FOUND (no such topic); CONFLICT (another
 * client changed it at the same time); INVALID; or a failure of the store: UNSUPPORTED (it keeps no records), UNKNOWN
 * (repeat it). */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_lane_resize(dibs_store *store, const char *topic, uint32_t lanes,
                                                       int64_t wait_ms, dibs_error *error);

#ifdef __cplusplus
}
#endif
#endif

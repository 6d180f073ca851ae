/* SPDX-License-Identifier: MIT */
/*
 * One lane of a member: it waits for the lane's lease, gives the lane to the user, takes it back, and ends.
 *
 *   WAITS    -> HELD        granted, and the member is still one: on_gain
 *   HELD     -> RELEASED    dibs_lane_release, after on_lose or by the user's own decision
 *   WAITS    -> RELEASED    the wait ended, or what was granted is not wanted any more
 *   RELEASED -> (freed)     the store has answered the release
 *
 * Every function of the user is called where the callbacks of leases are.  So is the end: once the handle of the lease
 * is freed there, no callback of it follows, and the memory may go.
 *
 * member->lock is held across calls that begin to acquire, cancel or release: these do not block, and their callbacks
 * wait for the lock.  It is not held while a function of the user runs.
 */
#include "lane/lane_impl.h"

#include <assert.h>
#include <stdlib.h>

typedef struct dibs_lane lane_t;
typedef struct dibs_lane_member member_t;

void dibs__lane_rouse(member_t *m) {
  atomic_fetch_add(&m->word, 1);
  dibs__word_wake(&m->word, 1, false);
}

/* ---- Calling the user ---- */

/* false: the member was freed, and nobody is called any more; or the lane was released. */
static bool call_user(lane_t *lane, dibs_lane_fn fn, dibs_status status) {
  member_t *m = lane->member;
  dibs__mutex_lock(&m->lock);
  bool calls = !m->freed && lane->state == LANE_HELD;
  if (calls) {
    m->calls++;
    m->calls_thread = dibs__thread_self();
  }
  dibs__mutex_unlock(&m->lock);
  if (!calls) return false;
  atomic_fetch_add(&m->refs, 1);
  fn(lane, status, m->user); /* may free the member, and dispatch until the lane is gone */
  dibs__mutex_lock(&m->lock);
  m->calls--;
  dibs__mutex_unlock(&m->lock);
  atomic_fetch_add(&m->calm_word, 1);
  dibs__word_wake(&m->calm_word, UINT32_MAX, false);
  dibs__lane_member_drop(m);
  return true;
}

/* ---- The end ---- */

static void end_lane(lane_t *lane) {
  member_t *m = lane->member;
  dibs__mutex_lock(&m->lock);
  assert(m->slot[lane->number] == lane && lane->state == LANE_RELEASED && !lane->queued);
  m->slot[lane->number] = NULL;
  m->count--;
  dibs__mutex_unlock(&m->lock);
  dibs_lease_free(lane->lease);
  free(lane);
  dibs__lane_rouse(m);
  dibs__lane_member_drop(m);
}

/* Called as the callbacks of leases are.  The call that is due may be needless by now: no callback is made
 * for a lane that was released. */
static bool run_due_locked(dibs_store *store, struct dibs__due_call *due) {
  lane_t *lane = (lane_t *)(void *)((char *)due - offsetof(lane_t, due));
  dibs__mutex_unlock(&store->lock);
  dibs__mutex_lock(&lane->member->lock);
  lane->queued = false;
  bool over = lane->over, asks = !over && lane->told && !lane->lost && lane->state == LANE_HELD;
  dibs__mutex_unlock(&lane->member->lock);
  if (over) end_lane(lane);
  bool called = asks && call_user(lane, lane->member->on_lose, DIBS_OK);
  dibs__mutex_lock(&store->lock);
  return called;
}

/* With the member's lock. */
static void queue_due_locked(lane_t *lane) {
  dibs_store *store = lane->member->store;
  if (lane->queued) return;
  lane->queued = true;
  lane->due.run_locked = run_due_locked;
  dibs__mutex_lock(&store->lock);
  dibs__calls_queue_locked(store, &lane->due);
  dibs__mutex_unlock(&store->lock);
  dibs__calls_handed(store);
}

static void released(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  lane_t *lane = user;
  (void)lease, (void)status, (void)error; /* what was not released ends with its ttl */
  dibs__mutex_lock(&lane->member->lock);
  lane->over = true;
  bool queued = lane->queued;
  dibs__mutex_unlock(&lane->member->lock);
  if (!queued) end_lane(lane);
}

/* With the member's lock.  The lane may end as soon as the caller gives the lock back. */
static void release_locked(lane_t *lane) {
  lane->state = LANE_RELEASED;
  if (dibs_release_start(lane->lease, released, lane, NULL) == DIBS_OK) return;
  /* It was lost, or the store closes: no answer follows. */
  lane->over = true;
  queue_due_locked(lane);
}

/* ---- From the wait to the user ---- */

static void lost(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  lane_t *lane = user;
  member_t *m = lane->member;
  (void)lease, (void)status, (void)error;
  dibs__mutex_lock(&m->lock);
  bool calls = lane->state == LANE_HELD;
  lane->lost = true;
  m->counts.lost += calls;
  dibs__mutex_unlock(&m->lock);
  if (calls) (void)call_user(lane, m->on_lose, DIBS_LOST);
}

/* The wait has ended. */
static void acquired(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  lane_t *lane = user;
  member_t *m = lane->member;
  char id[33];
  /* An id that is known outside is never handed to another waiter of this process without the store: such a hand-off
   * would take the fence from a block, which may be below a fence that the topic's sequence has given meanwhile. */
  if (status == DIBS_OK) status = dibs_lease_id(lease, id, NULL) == DIBS_OK ? DIBS_OK : DIBS_LOST;
  dibs__mutex_lock(&m->lock);
  if (status != DIBS_OK) {
    if (status != DIBS_CANCELLED && status != DIBS_LOST) m->trouble = *error;
    lane->state = LANE_RELEASED;
    dibs__mutex_unlock(&m->lock);
    end_lane(lane);
    return;
  }
  /* Only now: a client that became a member under another P after this member lost its membership finds this lane in
   * the listing, and waits until it is released.  See lane_impl.h. */
  bool keeps = lane->wanted && !m->leaving && !m->freed && m->membership && dibs_lease_alive(m->membership);
  if (keeps) {
    lane->state = LANE_HELD;
    m->counts.gained++;
    m->counts.held++;
  } else {
    release_locked(lane);
  }
  dibs__mutex_unlock(&m->lock);
  if (keeps && !call_user(lane, m->on_gain, DIBS_OK)) dibs_lane_release(lane);
}

bool dibs__lane_begin(member_t *m, uint32_t number) {
  char name[DIBS_NAME_MAX + 1];
  lane_t *lane = calloc(1, sizeof *lane);
  if (!lane) return false;
  *lane = (lane_t){.member = m, .number = number, .lanes = m->lanes, .wanted = true};
  dibs__lane_name(m->topic, m->lanes, number, name);
  dibs_lease_options options = {.size = sizeof options,
                                .ttl_ms = m->ttl_ms,
                                .wait_ms = DIBS_FOREVER,
                                .owner = m->owner,
                                .on_lost = lost,
                                .user = lane};
  dibs__mutex_lock(&m->lock);
  dibs_error error;
  bool started = dibs_acquire_start(m->store, name, &options, acquired, lane, &lane->lease, &error) == DIBS_OK;
  if (started) {
    atomic_fetch_add(&m->refs, 1);
    m->slot[number] = lane;
    m->count++;
  } else {
    m->trouble = error;
  }
  dibs__mutex_unlock(&m->lock);
  if (!started) free(lane);
  return started;
}

void dibs__lane_hand_over(member_t *m, uint32_t number) {
  dibs__mutex_lock(&m->lock);
  lane_t *lane = m->slot[number];
  if (lane && lane->state == LANE_WAITS && lane->wanted) {
    lane->wanted = false;
    dibs_acquire_cancel(lane->lease);
  } else if (lane && lane->state == LANE_HELD && !lane->told) {
    lane->wanted = false;
    lane->told = true;
    queue_due_locked(lane);
  }
  dibs__mutex_unlock(&m->lock);
}

void dibs__lane_take_all(member_t *m) {
  dibs__mutex_lock(&m->lock);
  for (uint32_t number = 0; number < m->lanes; number++) {
    lane_t *lane = m->slot[number];
    if (lane && lane->state == LANE_WAITS) {
      lane->wanted = false;
      dibs_acquire_cancel(lane->lease);
    } else if (lane && lane->state == LANE_HELD) {
      m->counts.held--;
      release_locked(lane);
    }
  }
  dibs__mutex_unlock(&m->lock);
}

/* ---- The user's calls ---- */

void dibs_lane_release(dibs_lane *lane) {
  if (!lane || !dibs__is_of_this_process(lane->member->store)) return;
  member_t *m = lane->member;
  dibs__mutex_lock(&m->lock);
  if (lane->state == LANE_HELD) {
    m->counts.held--;
    release_locked(lane);
  }
  dibs__mutex_unlock(&m->lock);
}

uint32_t dibs_lane_number(const dibs_lane *lane) {
  return lane ? lane->number : 0;
}

uint32_t dibs_lane_lanes(const dibs_lane *lane) {
  return lane ? lane->lanes : 0;
}

const char *dibs__lane_topic_of(const dibs_lane *lane) {
  return lane->member->topic;
}

dibs_lease *dibs_lane_lease(const dibs_lane *lane) {
  return lane ? lane->lease : NULL;
}

dibs_fence dibs_lane_fence(const dibs_lane *lane) {
  return dibs_lease_fence(dibs_lane_lease(lane));
}

/* SPDX-License-Identifier: MIT */
/*
 * The lanes of a worker with a topic: it is a member of the topic, claims tasks of the lanes that it owns, and keeps
 * the order of each key (a serial text).
 *
 *   on_gain -> lane -> claims name it -> ... -> leaving: claims name it no more, what is not begun is given back
 *                                               -> nothing of it is held, no claim names it: dibs_lane_release
 *
 * A key has a queue of claimed tasks.  Its first one begins when no other of the key runs, or waits for the answer to
 * its end: so each begins after the store has accepted that the one before is done.  The key breaks when a task of it
 * does not end as done, or the store refuses its end or extension.  Then the queue is given back, the last task first,
 * because the end of a claim ends those of later tasks of the key (R109); and it stays broken, and what is claimed of
 * it is given back at once, until the store has answered all of these ends, and also the claim that was under way
 * meanwhile.  That claim may have taken tasks behind those that were not given back yet.
 *
 * In doubt a lane leaves: a claim whose answer was lost may still take effect, and the store lets the owner of a lane
 * claim tasks behind those that it has claimed itself.  The member gets the lane again, with a larger fence, which ends
 * all claims under the old one.
 *
 * Callbacks of the member take worker->lock, which comes before the member's own lock: releasing a lane takes that.
 */
#include "lane/lane.h"
#include "task/worker_impl.h"

#include <stdlib.h>
#include <string.h>

enum {
  HELD_FACTOR = 2, /* tasks of few keys fill no threads: so many times as may begin are held at most, */
  HELD_LEAST = 16  /* and these. Each costs extensions, and all of a key end with the first whose claim is over */
};

struct dibs__worker_lane {
  struct dibs__worker_lane *next;
  dibs_lane *lane;
  uint32_t number, lanes;
  dibs_fence fence;
  uint32_t held;
  bool named;   /* by the claim that is under way, or whose outcome is not known */
  bool leaving; /* nothing more is claimed, and it is released when nothing is held */
};

struct dibs__worker_key {
  struct dibs__map_node node;    /* first */
  struct dibs__worker_key *next; /* in the ready list, or in the list of broken keys */
  struct dibs__worker_lane *lane;
  struct dibs__held *first, *last; /* not begun, by their numbers */
  uint32_t held;                   /* with those that are begun, and whose ends are under way */
  struct dibs__held *current;      /* it is begun, and its end is not answered; NULL: none */
  bool ready;                      /* it is in the ready list */
  bool broken;                     /* it is in the list of broken keys */
  uint64_t until;                  /* broken, and nothing is held: until so many claims were answered */
  uint32_t length;
  char serial[];
};

struct dibs__worker_lanes {
  dibs_lane_member *member;
  char *topic;
  struct dibs__task_lane named[DIBS_LANES_MAX]; /* claimer only */

  /* Guarded by worker->lock. */
  struct dibs__worker_lane *list;
  struct dibs__map keys;
  struct dibs__worker_key *ready_first, *ready_last, *broken;
  uint32_t ready;
  uint64_t claims, answered; /* begun, and answered */
  bool unsure;               /* the outcome of the latest claim is not known */
  bool joined;               /* there is a member */
};

typedef struct dibs__worker_lanes lanes_t;
typedef struct dibs__worker_lane lane_t;
typedef struct dibs__worker_key serial_key;

/* ---- Lanes ---- */

/* Ends the lane if nothing of it is left. */
static void release_locked(dibs_worker *w, lane_t *lane) {
  if (!lane->leaving || lane->held > 0 || lane->named) return;
  lane_t **at = &w->lanes->list;
  while (*at != lane) at = &(*at)->next;
  *at = lane->next;
  w->counts.lanes--;
  dibs_lane_release(lane->lane);
  free(lane);
  if (!w->lanes->list) dibs__worker_rouse(&w->held_word, UINT32_MAX);
}

/* ---- Keys ---- */

static serial_key *find_key(const lanes_t *l, const char *serial, uint32_t length, uint64_t hash) {
  for (struct dibs__map_node *node = dibs__map_head(&l->keys, hash); node; node = node->next) {
    serial_key *key = (serial_key *)node;
    if (node->hash == hash && key->length == length && memcmp(key->serial, serial, length) == 0) return key;
  }
  return NULL;
}

/* NULL: no memory. */
static serial_key *key_of(lanes_t *l, const char *serial, uint32_t length) {
  uint64_t hash = dibs__hash(serial, length);
  serial_key *key = find_key(l, serial, length, hash);
  if (key) return key;
  key = calloc(1, sizeof *key + length);
  if (!key) return NULL;
  key->length = length;
  memcpy(key->serial, serial, length);
  dibs__map_add(&l->keys, &key->node, hash);
  return key;
}

static void free_key(lanes_t *l, serial_key *key) {
  dibs__map_remove(&l->keys, &key->node);
  free(key);
}

static void push_key(lanes_t *l, serial_key *key) {
  if (key->ready || key->broken || key->current || !key->first) return;
  key->ready = true;
  key->next = NULL;
  if (l->ready_last)
    l->ready_last->next = key;
  else
    l->ready_first = key;
  l->ready_last = key;
  l->ready++;
}

static void take_from_ready(lanes_t *l, serial_key *key) {
  serial_key *before = NULL;
  if (!key->ready) return;
  for (serial_key *k = l->ready_first; k != key; k = k->next) before = k;
  *(before ? &before->next : &l->ready_first) = key->next;
  if (l->ready_last == key) l->ready_last = before;
  key->ready = false;
  l->ready--;
}

/* By number: a person may have retried an earlier one. */
static void queue_task(serial_key *key, struct dibs__held *held) {
  struct dibs__held *before = NULL;
  if (key->last && key->last->task.nr < held->task.nr)
    before = key->last;
  else
    for (struct dibs__held *h = key->first; h && h->task.nr < held->task.nr; h = h->next) before = h;
  held->next = before ? before->next : key->first;
  *(before ? &before->next : &key->first) = held;
  if (!held->next) key->last = held;
}

/* Gives back the queue, the last task first. */
static void empty_queue_locked(dibs_worker *w, serial_key *key) {
  struct dibs__held *reversed = NULL, *next;
  take_from_ready(w->lanes, key);
  for (struct dibs__held *h = key->first; h; h = next) {
    next = h->next;
    h->next = reversed;
    reversed = h;
  }
  key->first = key->last = NULL;
  for (struct dibs__held *h = reversed; h; h = next) {
    next = h->next;
    dibs__worker_give_back_locked(w, h); /* it may drop the key: `key` is not used below */
  }
  if (reversed) dibs__worker_rouse(&w->keep_word, 1);
}

/* Something of the key is held. */
static void break_locked(dibs_worker *w, serial_key *key) {
  lanes_t *l = w->lanes;
  take_from_ready(l, key);
  if (!key->broken) {
    key->broken = true;
    key->next = l->broken;
    l->broken = key;
  }
  key->until = 0;
  empty_queue_locked(w, key);
}

/* Forgets the broken keys of which nothing is held, and that no claim under way concerns. */
static void mend_keys(lanes_t *l) {
  for (serial_key **at = &l->broken, *key; (key = *at) != NULL;) {
    if (key->held > 0 || l->answered < key->until) {
      at = &key->next;
      continue;
    }
    *at = key->next;
    free_key(l, key);
  }
}

/* Gives back what has not begun of the lane. */
static void empty_lane_locked(dibs_worker *w, const lane_t *lane) {
  struct dibs__map *keys = &w->lanes->keys;
  for (size_t i = 0; i < keys->capacity; i++) {
    for (struct dibs__map_node *node = keys->heads[i], *next; node; node = next) {
      next = node->next;
      if (((serial_key *)node)->lane == lane) empty_queue_locked(w, (serial_key *)node);
    }
  }
}

static void leave_lane_locked(dibs_worker *w, lane_t *lane) {
  if (!lane->leaving) {
    lane->leaving = true;
    lane->held++; /* it must not end here before its turn */
    empty_lane_locked(w, lane);
    lane->held--;
  }
  release_locked(w, lane);
}

/* ---- The member's callbacks ---- */

static void gain(dibs_lane *gained, dibs_status status, void *user) {
  dibs_worker *w = user;
  (void)status;
  lane_t *lane = calloc(1, sizeof *lane);
  dibs__mutex_lock(&w->lock);
  if (!lane || w->stopping) {
    dibs_lane_release(gained);
    free(lane);
  } else {
    *lane = (lane_t){.next = w->lanes->list,
                     .lane = gained,
                     .number = dibs_lane_number(gained),
                     .lanes = dibs_lane_lanes(gained),
                     .fence = dibs_lane_fence(gained)};
    w->lanes->list = lane;
    w->counts.lanes++;
    w->look_at = DIBS__TICK_ZERO;
    dibs__worker_rouse_claimer_locked(w);
  }
  dibs__mutex_unlock(&w->lock);
}

/* The claims of the lane are over: its next owner works on the tasks that run. */
static void lose_claims_locked(dibs_worker *w, const lane_t *lane) {
  for (struct dibs__held *h = w->held; h; h = h->after) {
    if (h->lane != lane) continue;
    h->over = true;
    if (h->ending || h->lost) continue;
    h->lost = true;
    w->counts.lost++;
  }
}

static void lose(dibs_lane *lost, dibs_status status, void *user) {
  dibs_worker *w = user;
  dibs__mutex_lock(&w->lock);
  lane_t *lane = w->lanes->list;
  while (lane && lane->lane != lost) lane = lane->next;
  if (lane) {
    lane->held++;
    leave_lane_locked(w, lane);
    if (status == DIBS_LOST) lose_claims_locked(w, lane);
    lane->held--;
    release_locked(w, lane);
  }
  dibs__mutex_unlock(&w->lock);
}

dibs_status dibs__lanes_join(dibs_worker *w, const dibs_worker_options *o, dibs_error *error) {
  lanes_t *l = calloc(1, sizeof *l);
  if (l) l->topic = strdup(o->topic);
  if (!l || !l->topic || !dibs__map_init(&l->keys)) {
    if (l) free(l->topic);
    free(l);
    return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the worker");
  }
  w->claim.lanes = l->named;
  w->claim.topic = l->topic;
  dibs__random(&w->claim.from, sizeof w->claim.from);
  w->lanes = l;
  dibs_lane_options lanes = {.size = sizeof lanes,
                             .lanes = o->lanes,
                             .ttl_ms = o->lane_ttl_ms,
                             .owner = w->owner,
                             .on_gain = gain,
                             .on_lose = lose,
                             .user = w};
  dibs_lane_member *member;
  dibs_status status = dibs_lane_join(w->store, o->topic, &lanes, &member, error);
  dibs__mutex_lock(&w->lock);
  l->member = member;
  dibs__mutex_unlock(&w->lock);
  return status;
}

void dibs__lanes_stop(dibs_worker *w) {
  dibs__mutex_lock(&w->lock);
  for (lane_t *lane = w->lanes->list, *next; lane; lane = next) {
    next = lane->next;
    leave_lane_locked(w, lane);
  }
  dibs_lane_member *member = w->lanes->member;
  dibs__mutex_unlock(&w->lock);
  if (member) (void)!dibs_lane_leave(member, 0, NULL);
}

bool dibs__lanes_have_left(dibs_worker *w, dibs__tick by) {
  if (!w->lanes || !w->lanes->member) return true;
  int64_t ms = dibs__tick_before(by, DIBS__TICK_NEVER) ? dibs__tick_left_ms(dibs__tick_now(), by) : DIBS_FOREVER;
  return dibs_lane_leave(w->lanes->member, ms, NULL) != DIBS_TIMEOUT;
}

void dibs__lanes_count(dibs_worker *w, dibs_worker_counts *counts) {
  dibs_lane_counts of_member = DIBS_LANE_COUNTS_INIT;
  if (!w->lanes) return;
  bool known = dibs_lane_count(w->lanes->member, &of_member, NULL) == DIBS_OK && of_member.members > 0;
  counts->lanes_assigned = known ? of_member.assigned : UINT64_MAX;
}

void dibs__lanes_trouble(dibs_worker *w, dibs_error *error) {
  dibs_error of_lanes = {0};
  if (!w->lanes || !w->lanes->member) return;
  dibs_lane_trouble(w->lanes->member, &of_lanes);
  if (of_lanes.status != DIBS_OK) *error = of_lanes;
}

void dibs__lanes_free(dibs_worker *w) {
  lanes_t *l = w->lanes;
  if (!l) return;
  dibs_lane_member_free(l->member);
  for (lane_t *lane; (lane = l->list) != NULL;) {
    l->list = lane->next;
    free(lane);
  }
  while (l->broken) {
    serial_key *key = l->broken;
    l->broken = key->next;
    free_key(l, key);
  }
  dibs__map_free(&l->keys);
  free(l->topic);
  free(l);
  w->lanes = NULL;
}

/* ---- The claimer ---- */

uint32_t dibs__lanes_wanted_locked(const dibs_worker *w) {
  const lanes_t *l = w->lanes;
  uint32_t most = w->threads + w->prefetch, busy = l->ready + w->running;
  if (w->stopping) return 0;
  if (l->unsure) return most < DIBS_TASKS_MAX ? most : DIBS_TASKS_MAX;
  const lane_t *lane = l->list;
  while (lane && lane->leaving) lane = lane->next;
  if (!lane || busy >= most || l->ready > w->prefetch / 2) return 0;
  if (w->counts.held >= HELD_FACTOR * (uint64_t)most + HELD_LEAST) return 0;
  return most - busy < DIBS_TASKS_MAX ? most - busy : DIBS_TASKS_MAX;
}

static int by_number(const void *a, const void *b) {
  const struct dibs__task_lane *x = a, *y = b;
  return (x->lane > y->lane) - (x->lane < y->lane);
}

bool dibs__lanes_name_locked(dibs_worker *w) {
  lanes_t *l = w->lanes;
  struct dibs__claim *claim = &w->claim;
  if (!l->unsure) {
    claim->lane_count = claim->of_lanes = 0;
    for (lane_t *lane = l->list; lane; lane = lane->next) {
      /* Of another P there are at most lost ones. */
      if (lane->leaving || (claim->of_lanes && lane->lanes != claim->of_lanes)) continue;
      claim->of_lanes = lane->lanes;
      l->named[claim->lane_count++] = (struct dibs__task_lane){.lane = lane->number, .fence = {lane->fence.value}};
      lane->named = true;
    }
    qsort(l->named, claim->lane_count, sizeof l->named[0], by_number);
  }
  if (claim->lane_count == 0) return false;
  l->claims++;
  return true;
}

static lane_t *named_lane(const dibs_worker *w, const struct dibs__held *held) {
  lane_t *lane = w->lanes->list;
  uint32_t number = dibs_lane_of(held->task.serial, held->serial, w->claim.of_lanes);
  while (lane && (!lane->named || lane->number != number)) lane = lane->next;
  return lane;
}

/* false: it is to be given back. */
static bool queue_claimed_locked(dibs_worker *w, struct dibs__held *held) {
  lane_t *lane = named_lane(w, held);
  if (!lane) return false;
  held->lane = lane;
  dibs__task_set_lane(held, lane->lane);
  lane->held++;
  serial_key *key = held->key = key_of(w->lanes, held->task.serial, held->serial);
  if (!key) return false;
  key->lane = lane;
  key->held++;
  if (w->stopping || lane->leaving || key->broken) return false;
  queue_task(key, held);
  push_key(w->lanes, key);
  return true;
}

static void end_claim_locked(dibs_worker *w, bool answered) {
  lanes_t *l = w->lanes;
  for (lane_t *lane = l->list, *next; lane; lane = next) {
    next = lane->next;
    if (!lane->named) continue;
    const struct dibs__task_lane key = {.lane = lane->number},
                                 *named = bsearch(&key, l->named, w->claim.lane_count, sizeof key, by_number);
    bool stale = answered && named->status == DIBS_STALE;
    lane->named = l->unsure;
    if (stale || l->unsure)
      leave_lane_locked(w, lane);
    else
      release_locked(w, lane);
  }
}

void dibs__lanes_take_locked(dibs_worker *w, dibs_status status, dibs_task **tasks, size_t *count) {
  lanes_t *l = w->lanes;
  bool back[DIBS_TASKS_MAX] = {false};
  size_t kept = 0;
  l->unsure = w->claim.unsure;
  mend_keys(l); /* those whose last end was answered before this claim was sent */
  for (size_t i = 0; i < *count; i++) {
    back[i] = !queue_claimed_locked(w, dibs__held_of(tasks[i]));
    kept += !back[i];
  }
  for (size_t i = *count; i-- > 0;)
    if (back[i]) dibs__worker_give_back_locked(w, dibs__held_of(tasks[i]));
  *count = kept;
  l->answered++;
  end_claim_locked(w, status == DIBS_OK);
}

void dibs__lanes_end_claims_locked(dibs_worker *w) {
  w->lanes->unsure = false;
  end_claim_locked(w, false);
}

/* ---- Tasks ---- */

struct dibs__held *dibs__lanes_begin_locked(dibs_worker *w) {
  lanes_t *l = w->lanes;
  for (serial_key *key; (key = l->ready_first) != NULL;) {
    take_from_ready(l, key);
    struct dibs__held *held = key->first;
    key->first = held->next;
    if (!key->first) key->last = NULL;
    if (dibs_task_left_ms(&held->task) > 0) {
      key->current = held;
      return held;
    }
    break_locked(w, key);
    dibs__worker_give_back_locked(w, held);
    dibs__worker_rouse(&w->keep_word, 1);
  }
  return NULL;
}

void dibs__lanes_judge_locked(dibs_worker *w, struct dibs__held *held, dibs_verdict verdict) {
  if (verdict != DIBS_END_DONE) break_locked(w, held->key);
}

void dibs__lanes_end_locked(dibs_worker *w, struct dibs__held *held, dibs_verdict verdict, dibs_status answer) {
  serial_key *key = held->key;
  bool fine = verdict == DIBS_END_DONE && answer == DIBS_OK;
  if (key && key->current == held) {
    key->current = NULL;
    if (!fine) break_locked(w, key);
    push_key(w->lanes, key);
    dibs__worker_rouse(&w->work_word, 1);
  }
  if (answer == DIBS_UNKNOWN) dibs__lanes_doubt_locked(w, held);
}

void dibs__lanes_lose_locked(dibs_worker *w, struct dibs__held *held) {
  if (held->key) break_locked(w, held->key);
}

bool dibs__lanes_is_last_locked(const struct dibs__held *held) {
  return !held->key || held->key->held == 1;
}

void dibs__lanes_doubt_locked(dibs_worker *w, struct dibs__held *held) {
  if (held->lane) leave_lane_locked(w, held->lane);
}

void dibs__lanes_drop_locked(dibs_worker *w, struct dibs__held *held) {
  lanes_t *l = w->lanes;
  serial_key *key = held->key;
  lane_t *lane = held->lane;
  held->key = NULL;
  held->lane = NULL;
  if (key && --key->held == 0) {
    key->until = l->claims;
    if (!key->broken) free_key(l, key);
  }
  if (!lane) return;
  lane->held--;
  release_locked(w, lane);
}

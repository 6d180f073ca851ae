/* SPDX-License-Identifier: MIT */
/*
 * Leases of different names.
 *
 * Each operation goes through steps, and all of them take each step together, in one round:
 *
 *   acquire   CREATE: the node, and the children after it -> granted, or WATCH the child before, or DELETE (HELD)
 *   counted   TAKE_SLOT: its slot and its data, together -> granted, or LOOK if another one has taken that slot
 *   again     LOOK: the children again -> the same; an offer needs no request, but for a slot
 *   renew     RENEW: the node's data, if its version is ours; READ: another client changed it, does it break the lease?
 *   release   DELETE
 *
 * A lost answer of CREATE: the node may exist, and SEARCH finds it by its digest after a sync, so that the server that
 * answers knows it, too; FIND reads its number and its czxid.  A lost answer of TAKE_SLOT: the same, and FIND reads the
 * slot, which is in the data if it was taken.  Until then its slot is not known, and neither is deleted.
 *
 * The gate is left while a round travels, so that batches of other threads travel, too.  An operation whose hold is
 * taken by another batch (the same id, twice) waits until that one is done (TAKEN).
 *
 * Every write that was done proves that the session was alive.  A grant after a long wait gets such a proof first
 * (CONFIRM) if the last one is old.
 */
#include "drivers/zk/zk_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dibs__zk store_t;
typedef struct dibs__zk_hold hold;
typedef struct dibs__zk_slot slot_t;

enum step { DONE, TAKEN, CREATE, MAKE, SEARCH, FIND, LOOK, WATCH, TAKE_SLOT, CONFIRM, RENEW, READ, DELETE };
enum { SLOTS = 4, TRIES_MAX = 100 };

struct doing {
  struct dibs__lease_op *op;
  hold *h;
  enum step step;
  size_t at; /* its first slot that is read */
  uint32_t tries;
  bool took;   /* its hold */
  bool fresh;  /* the hold is of this batch */
  bool sent;   /* a write of it may have been done */
  bool proves; /* LOOK: the slot before is a write */
  bool alone;  /* DELETE: the node without its slot */
  bool others; /* SEARCH: only before `below`; from there on the nodes for its id are of other sessions */
  int32_t below;
  uint32_t asked;     /* TAKE_SLOT */
  dibs__status after; /* of DELETE */
};

struct batch {
  store_t *store;
  struct dibs__result *result;
  dibs__tick by;
  int64_t now;
  size_t count;
  struct dibs__zk_round *round;
  struct doing all[];
};

/* ---- Answers ---- */

static void finish(struct doing *d, dibs__status status) {
  d->op->op.status = status;
  d->step = DONE;
}

/* A lease whose node is gone may have left its slot, if another program deleted the node. */
static void drop_hold(struct batch *b, struct doing *d) {
  if (dibs__zk_leaves_slot(b->store, d->h)) dibs__zk_free_slot(b->store, d->h, b->by);
  dibs__zk_hold_drop(b->store, d->h);
  d->h = NULL;
}

static void finish_dropped(struct batch *b, struct doing *d, dibs__status status) {
  drop_hold(b, d);
  finish(d, status);
}

static void answer_hold(struct doing *d) {
  const hold *h = d->h;
  d->op->fence.v = h->mode == DIBS_EXCLUSIVE ? h->fence : 0;
  d->op->got_block = h->mode == DIBS_EXCLUSIVE;
  if (h->mode == DIBS_COUNTED) d->op->slot = h->slot;
  d->op->until.ms = h->until;
  d->op->waiting = h->waiting;
  finish(d, DIBS_OK);
}

/* An operation that is done leaves its hold to others. */
static void leave_holds(struct batch *b) {
  bool any = false;
  for (size_t i = 0; i < b->count; i++) {
    struct doing *d = &b->all[i];
    if (d->step != DONE || !d->took) continue;
    if (d->h) d->h->taken = false;
    d->took = false;
    any = true;
  }
  if (!any) return;
  atomic_fetch_add(&b->store->freed, 1);
  dibs__word_wake(&b->store->freed, UINT32_MAX, false);
}

/* The first end of a lease of this process that holds the name; of others only the server knows. */
static int64_t first_end(const store_t *store, dibs__str name) {
  int64_t first = 0;
  for (const hold *h = store->all; h; h = h->next) {
    if (h->state != DIBS__ZK_HOLDS || !dibs__str_equal(dibs__zk_hold_name(h), name)) continue;
    if (!first || h->until < first) first = h->until;
  }
  return first;
}

static void answer_busy(struct batch *b, struct doing *d, dibs__status status) {
  dibs__mutex_lock(&b->store->lock);
  d->op->recheck.ms = first_end(b->store, d->op->name);
  dibs__mutex_unlock(&b->store->lock);
  d->op->ticket = d->h ? d->h->ticket : d->op->ticket;
  d->op->ahead = d->h ? d->h->ahead : 0;
  d->op->fence = DIBS__FENCE_NONE;
  finish(d, status);
}

static bool is_its_fence(const hold *h, dibs__fence fence) {
  return fence.v == (h->mode == DIBS_EXCLUSIVE ? h->fence : 0);
}

static enum dibs__zk_state state_of(store_t *store, const hold *h) {
  dibs__mutex_lock(&store->lock);
  enum dibs__zk_state state = h->state;
  dibs__mutex_unlock(&store->lock);
  return state;
}

/* Is it a lease that lasts? */
static bool holds_still(const struct batch *b, const hold *h) {
  if (!h) return false;
  dibs__mutex_lock(&b->store->lock);
  bool holds = h->state == DIBS__ZK_HOLDS && h->ends > b->now;
  dibs__mutex_unlock(&b->store->lock);
  return holds;
}

static void set_state(store_t *store, hold *h, enum dibs__zk_state state, int64_t ends) {
  dibs__mutex_lock(&store->lock);
  h->state = state;
  dibs__zk_end_locked(store, h, ends);
  dibs__mutex_unlock(&store->lock);
}

/* An answer that ends the operation.  Housekeeping deletes a node that it has made already, which keeps others out. */
static void refuse(struct batch *b, struct doing *d, int rc, const char *what) {
  dibs__status status = dibs__zk_explain(b->store, rc, what, b->result);
  bool unsure = d->h && state_of(b->store, d->h) == DIBS__ZK_UNSURE;
  if (unsure) d->h->node[0] = '\0'; /* it may be another session's: housekeeping searches ours */
  if (d->fresh && d->h && !unsure && !d->h->node[0]) {
    finish_dropped(b, d, status);
    return;
  }
  if (d->fresh && d->h) set_state(b->store, d->h, unsure ? DIBS__ZK_UNSURE : DIBS__ZK_WAITS, dibs__zk_now());
  finish(d, status);
}

/* ---- Granting ---- */

static void unwatch(store_t *store, hold *h) {
  dibs__mutex_lock(&store->lock);
  h->watches = DIBS__ZK_WATCH_NOTHING;
  h->offered_slot = DIBS__ZK_NO_SLOT;
  dibs__mutex_unlock(&store->lock);
}

static void restart(struct batch *b, struct doing *d) {
  if (dibs__zk_leaves_slot(b->store, d->h)) dibs__zk_free_slot(b->store, d->h, b->by);
  d->h->node[0] = '\0';
  d->others = false;
  d->after = DIBS_OK;
  d->h->version = 0;
  d->h->slot_unsure = false;
  dibs__zk_set_slot(b->store, d->h, DIBS__ZK_NO_SLOT);
  unwatch(b->store, d->h);
  set_state(b->store, d->h, DIBS__ZK_WAITS, INT64_MAX);
  d->step = CREATE;
}

/* Is the session's last proof recent enough for a new lease? */
static bool proof_is_recent(const struct batch *b) {
  int64_t life = dibs__zk_life_ms(b->store), proof = b->store->proof.ns / DIBS__NS_PER_MS;
  return proof + life - dibs__zk_now() > life / 2;
}

static void grant(struct batch *b, struct doing *d) {
  hold *h = d->h;
  if (h->mode == DIBS_COUNTED && h->slot == DIBS__ZK_NO_SLOT) {
    dibs__mutex_lock(&b->store->lock);
    d->step = h->offered_slot == DIBS__ZK_NO_SLOT ? LOOK : TAKE_SLOT;
    dibs__mutex_unlock(&b->store->lock);
    return;
  }
  if (!proof_is_recent(b)) {
    d->step = CONFIRM;
    return;
  }
  if (h->mode == DIBS_EXCLUSIVE && h->fence == 0) {
    dibs__set_message(b->result, "%.200s has used up its fences: remove the node %.200s when no client uses it",
                      b->store->location.shown, b->store->location.root);
    set_state(b->store, h, DIBS__ZK_WAITS, dibs__zk_now()); /* its node would keep others out */
    finish(d, DIBS_DENIED);
    return;
  }
  dibs__mutex_lock(&b->store->lock);
  bool gone = h->state == DIBS__ZK_GONE, first = b->store->guard_at.ns == DIBS__TICK_NEVER.ns;
  if (!gone) {
    h->state = DIBS__ZK_HOLDS;
    h->since = b->now;
    h->ttl_ms = d->op->ttl_ms;
    h->until = dibs__zk_until(b->store, b->now, h->ttl_ms);
    dibs__zk_end_locked(b->store, h, b->now + h->ttl_ms);
    if (h->tell) b->store->tells--;
    h->tell = false;
    if (first) b->store->guard_at = dibs__tick_add_ms(dibs__tick_now(), DIBS__ZK_GUARD_MS);
  }
  dibs__mutex_unlock(&b->store->lock);
  if (first && !gone) dibs__zk_changed(b->store);
  if (gone)
    restart(b, d);
  else
    answer_hold(d);
}

/* The waiter's watch, unless it has it already. */
static void wait_for(struct batch *b, struct doing *d, const struct dibs__zk_position *position) {
  hold *h = d->h;
  bool node = position->watch != DIBS__ZK_WATCH_CHILDREN;
  dibs__mutex_lock(&b->store->lock);
  /* Another lease has taken the slot that it was offered: it waits again, for as long as that takes. */
  if (h->mode == DIBS_COUNTED && h->state == DIBS__ZK_OFFERED) {
    h->state = DIBS__ZK_WAITS;
    dibs__zk_end_locked(b->store, h, INT64_MAX);
  }
  bool known = h->watches == position->watch && (!node || h->watched == position->watched.seq);
  h->watches = position->watch;
  h->watched = position->watched.seq;
  h->last = position->blockers == 1 && h->mode != DIBS_COUNTED;
  dibs__mutex_unlock(&b->store->lock);
  d->step = WATCH;
  if (known) answer_busy(b, d, DIBS__QUEUED);
  /* The watched node's name, for send(). */
  if (node) snprintf(h->watched_node, sizeof h->watched_node, "%s", position->watched.name);
}

/* Decides from the children of the name. */
static void look(struct batch *b, struct doing *d, const slot_t *children) {
  struct dibs__zk_position position;
  hold *h = d->h;
  dibs__zk_position_of_hold(children, h, &position);
  if (!position.exists) {
    restart(b, d);
    return;
  }
  h->waiting = position.waiting;
  h->ahead = position.ahead;
  bool has_slot = h->slot != DIBS__ZK_NO_SLOT || position.slot != DIBS__ZK_NO_SLOT;
  if (position.free && (h->mode != DIBS_COUNTED || has_slot)) {
    dibs__mutex_lock(&b->store->lock);
    h->offered_slot = position.slot;
    dibs__mutex_unlock(&b->store->lock);
    grant(b, d);
  } else if (d->fresh && (position.unlike || !d->op->queue)) {
    d->after = position.unlike ? DIBS_INVALID : DIBS_HELD;
    d->step = DELETE;
  } else {
    wait_for(b, d, &position);
  }
}

/* ---- Deciding what to send first ---- */

static void decide_acquire(struct batch *b, struct doing *d) {
  hold *h = d->h;
  enum dibs__zk_state state = h ? state_of(b->store, h) : DIBS__ZK_GONE;
  if (h && state == DIBS__ZK_GONE) {
    drop_hold(b, d);
    h = NULL;
  }
  if (!h) {
    d->h = dibs__zk_hold_new(b->store, d->op);
    d->fresh = true;
    d->step = CREATE;
    if (d->h)
      set_state(b->store, d->h, DIBS__ZK_WAITS, INT64_MAX);
    else
      finish(d, DIBS_NO_MEMORY);
  } else if (state == DIBS__ZK_HOLDS && h->broken) {
    finish(d, DIBS_LOST);
  } else if (state == DIBS__ZK_HOLDS) {
    answer_hold(d);
  } else if (h->slot_unsure) {
    set_state(b->store, h, state, INT64_MAX);
    d->step = SEARCH;
  } else if (state == DIBS__ZK_OFFERED) {
    grant(b, d);
  } else {
    set_state(b->store, h, state, INT64_MAX);
    d->step = state == DIBS__ZK_UNSURE ? (h->node[0] ? FIND : SEARCH) : LOOK;
  }
}

static void decide_renew(struct batch *b, struct doing *d) {
  const hold *h = d->h;
  bool holds = holds_still(b, h) && !h->broken;
  if (holds && (d->op->fence.v == 0 || is_its_fence(h, d->op->fence))) /* fence 0: by the id alone (R39) */
    d->step = RENEW;
  else
    finish(d, DIBS_LOST);
}

static void decide_release(struct batch *b, struct doing *d) {
  const hold *h = d->h;
  d->after = DIBS_OK;
  d->step = DELETE;
  if (!holds_still(b, h) || !is_its_fence(h, d->op->fence)) finish(d, DIBS_LOST);
}

static void decide_cancel(struct batch *b, struct doing *d) {
  enum dibs__zk_state state = d->h ? state_of(b->store, d->h) : DIBS__ZK_GONE;
  d->after = DIBS_OK;
  d->step = DELETE;
  if (d->h && state == DIBS__ZK_GONE) {
    finish_dropped(b, d, DIBS_NOT_FOUND);
  } else if (!d->h || (d->op->only_waits && state == DIBS__ZK_HOLDS)) { /* R84 */
    finish(d, DIBS_NOT_FOUND);
  } else {
    d->op->was = state == DIBS__ZK_HOLDS     ? DIBS__WAS_HELD
                 : state == DIBS__ZK_OFFERED ? DIBS__WAS_OFFERED
                                             : DIBS__WAS_WAITING;
    if (!d->h->node[0] || d->h->slot_unsure) d->step = SEARCH;
  }
}

static void decide_by_verb(struct batch *b, struct doing *d) {
  switch ((enum dibs__lease_verb)d->op->op.verb) {
  case DIBS__ACQUIRE:
    decide_acquire(b, d);
    return;
  case DIBS__RENEW:
    decide_renew(b, d);
    return;
  case DIBS__RELEASE:
    decide_release(b, d);
    return;
  case DIBS__CANCEL:
    decide_cancel(b, d);
    return;
  case DIBS__BREAK:
    d->step = DONE; /* after the others of its stretch */
    return;
  }
}

static void decide(struct batch *b, struct doing *d) {
  d->h = dibs__zk_hold_find(b->store, d->op->name, d->op->id);
  d->step = TAKEN;
  if (d->h && d->h->taken) {
    d->h = NULL;
    return;
  }
  decide_by_verb(b, d);
  d->took = d->h != NULL;
  if (d->h) d->h->taken = true;
}

/* ---- Sending ---- */

static void send_create(struct batch *b, struct doing *d) {
  char path[DIBS__ZK_PATH], data[DIBS__ZK_DATA];
  store_t *store = b->store;
  hold *h = d->h;
  if (d->step == MAKE) {
    snprintf(path, sizeof path, "%s/l/%02u", store->path, d->op->op.bucket);
    (void)dibs__zk_put_create(store, b->round, path, "", 0, ZOO_PERSISTENT);
    (void)dibs__zk_put_create(store, b->round, dibs__zk_dir(store, d->op->name, path), "", 0, ZOO_CONTAINER);
  }
  dibs__zk_dir(store, d->op->name, path);
  size_t len = strlen(path);
  if (h->mode == DIBS_COUNTED)
    snprintf(path + len, sizeof path - len, "/%s-c%u-", h->digest, h->slots);
  else
    snprintf(path + len, sizeof path - len, "/%s-%c-", h->digest, h->mode == DIBS_SHARED ? 's' : 'x');
  d->at = dibs__zk_put_create(store, b->round, path, data, dibs__zk_hold_data(h, data), ZOO_EPHEMERAL_SEQUENTIAL);
  path[len] = '\0';
  (void)dibs__zk_put_children(store, b->round, path, NULL, 0);
  d->sent = true;
}

/* The node's data is written: a renewal, or a proof alone. */
static void send_set(struct batch *b, struct doing *d, int version) {
  char path[DIBS__ZK_PATH], data[DIBS__ZK_DATA];
  size_t len = dibs__zk_hold_data(d->h, data);
  d->at = dibs__zk_put_set(b->store, b->round, dibs__zk_node(b->store, d->h, path), data, len, version);
}

static void send_watch(struct batch *b, struct doing *d) {
  char path[DIBS__ZK_PATH];
  store_t *store = b->store;
  uint64_t ticket = d->h->ticket;
  dibs__mutex_lock(&store->lock);
  enum dibs__zk_watch watch = d->h->watches;
  dibs__mutex_unlock(&store->lock);
  watcher_fn watcher = dibs__zk_watcher(watch);
  dibs__zk_dir(store, d->op->name, path);
  size_t len = strlen(path);
  if (watch != DIBS__ZK_WATCH_CHILDREN) snprintf(path + len, sizeof path - len, "/%s", d->h->watched_node);
  /* A node without children changes none: so a watch of its children fires once, when it is deleted, and at no
   * renewal. */
  d->at = watch == DIBS__ZK_WATCH_BEFORE ? dibs__zk_put_watch_data(store, b->round, path, watcher, ticket)
                                         : dibs__zk_put_children(store, b->round, path, watcher, ticket);
}

/* The slot is free as far as the children show; its data names the lease. */
static void send_slot(struct batch *b, struct doing *d) {
  char path[DIBS__ZK_PATH], slot_path[DIBS__ZK_PATH], data[DIBS__ZK_DATA];
  hold *h = d->h;
  dibs__mutex_lock(&b->store->lock);
  h->slot = h->offered_slot;
  h->offered_slot = DIBS__ZK_NO_SLOT;
  size_t len = dibs__zk_hold_data(h, data);
  d->asked = h->slot;
  h->slot = DIBS__ZK_NO_SLOT;
  dibs__mutex_unlock(&b->store->lock);
  h->slot_unsure = true;
  d->sent = true;
  dibs__zk_slot_path(b->store, h, d->asked, slot_path);
  d->at = dibs__zk_put_set_and_create(b->store, b->round, dibs__zk_node(b->store, h, path), data, len, h->version,
                                      slot_path, h->node);
}

static void send_step(struct batch *b, struct doing *d) {
  char path[DIBS__ZK_PATH];
  store_t *store = b->store;
  switch (d->step) {
  case DONE:
  case TAKEN:
    return;
  case CREATE:
  case MAKE:
    send_create(b, d);
    return;
  case SEARCH:
    (void)dibs__zk_put_sync(store, b->round, dibs__zk_dir(store, d->op->name, path));
    d->at = dibs__zk_put_children(store, b->round, path, NULL, 0);
    return;
  case LOOK:
    d->proves = !proof_is_recent(b);
    if (d->proves) send_set(b, d, d->h->version); /* for the grant that will come */
    d->at = dibs__zk_put_children(store, b->round, dibs__zk_dir(store, d->op->name, path), NULL, 0);
    return;
  case WATCH:
    send_watch(b, d);
    return;
  case TAKE_SLOT:
    send_slot(b, d);
    return;
  case FIND:
  case READ:
    d->at = dibs__zk_put_get(store, b->round, dibs__zk_node(store, d->h, path));
    return;
  case CONFIRM:
    send_set(b, d, d->h->version);
    return;
  case RENEW:
    d->sent = true;
    d->h->ttl_ms = d->op->ttl_ms;
    send_set(b, d, d->h->version);
    return;
  case DELETE:
    d->sent = true;
    d->at = dibs__zk_put_delete_hold(store, b->round, d->h, !d->alone);
    return;
  }
}

/* ---- Receiving ---- */

static void keep_node(struct batch *b, struct doing *d, const char *name, const struct Stat *stat) {
  struct dibs__zk_child child;
  hold *h = d->h;
  const char *slash = strrchr(name, '/');
  snprintf(h->node, sizeof h->node, "%s", slash ? slash + 1 : name);
  if (dibs__zk_child_read(h->node, &child)) h->seq = child.seq;
  h->fence = dibs__zk_fence(b->store, stat->czxid);
  h->version = stat->version;
  h->guarded = false;
  dibs__mutex_lock(&b->store->lock);
  h->ended = false;
  dibs__mutex_unlock(&b->store->lock);
  set_state(b->store, h, DIBS__ZK_WAITS, INT64_MAX);
}

static void received_create(struct batch *b, struct doing *d, const slot_t *slot) {
  if (slot->rc == ZOK) {
    keep_node(b, d, slot->text, &slot->stat);
    d->step = LOOK;
    if (slot[1].rc == ZOK) look(b, d, &slot[1]);
  } else if (slot->rc == ZNONODE) {
    if (d->step == MAKE) b->store->rooted = false; /* ROOT may have been removed */
    d->step = MAKE;
  } else if (dibs__zk_lost(slot->rc)) {
    set_state(b->store, d->h, DIBS__ZK_UNSURE, INT64_MAX);
    d->step = SEARCH;
  } else {
    refuse(b, d, slot->rc, "acquire a lease in");
  }
}

static void not_found(struct batch *b, struct doing *d) {
  if (d->op->op.verb == DIBS__ACQUIRE)
    restart(b, d);
  else
    finish_dropped(b, d, DIBS_NOT_FOUND);
}

static void received_search(struct batch *b, struct doing *d, const slot_t *slot) {
  if (dibs__zk_lost(slot->rc)) return;
  if (slot->rc == ZOK && dibs__zk_pick_node(slot, d->h, d->others ? &d->below : NULL))
    d->step = FIND;
  else if (slot->rc == ZOK || slot->rc == ZNONODE)
    not_found(b, d);
  else
    refuse(b, d, slot->rc, "search for a lease in");
}

static void received_find(struct batch *b, struct doing *d, const slot_t *slot) {
  char name[sizeof d->h->node];
  struct dibs__zk_data data;
  if (dibs__zk_lost(slot->rc)) return;
  snprintf(name, sizeof name, "%s", d->h->node);
  if (slot->rc == ZNONODE || (slot->rc == ZOK && !dibs__zk_is_ours(b->store, &slot->stat))) {
    d->others = dibs__zk_pass_over(d->h, &d->below);
    d->step = SEARCH;
  } else if (slot->rc == ZOK) {
    keep_node(b, d, name, &slot->stat);
    d->h->slot_unsure = false;
    if (dibs__zk_read_data(slot->text, slot->len, &data)) dibs__zk_set_slot(b->store, d->h, data.slot);
    d->step = d->op->op.verb == DIBS__ACQUIRE && d->after == DIBS_OK ? LOOK : DELETE;
  } else {
    refuse(b, d, slot->rc, "read a lease of");
  }
}

static void received_look(struct batch *b, struct doing *d, const slot_t *slot) {
  if (d->proves && slot[-1].rc == ZOK) d->h->version = slot[-1].stat.version;
  if (slot->rc == ZOK)
    look(b, d, slot);
  else if (slot->rc == ZNONODE)
    restart(b, d);
  else if (!dibs__zk_lost(slot->rc))
    refuse(b, d, slot->rc, "read a queue of");
}

static void received_watch(struct batch *b, struct doing *d, const slot_t *slot) {
  struct dibs__zk_data data;
  hold *h = d->h;
  dibs__mutex_lock(&b->store->lock);
  enum dibs__zk_state state = h->state;
  enum dibs__zk_watch watch = h->watches;
  dibs__mutex_unlock(&b->store->lock);
  /* Granted before the watch was set: then it would not fire. */
  bool late = watch == DIBS__ZK_WATCH_BEFORE && slot->rc == ZOK && dibs__zk_read_data(slot->text, slot->len, &data) &&
              data.slot != DIBS__ZK_NO_SLOT;
  d->step = LOOK;
  if (slot->rc == ZOK && state == DIBS__ZK_OFFERED) { /* the watch has fired already */
    grant(b, d);
  } else if (slot->rc == ZOK && state == DIBS__ZK_WAITS && watch == DIBS__ZK_WATCH_CHILDREN) {
    look(b, d, slot);
  } else if (slot->rc == ZOK && state == DIBS__ZK_WAITS && !late) {
    answer_busy(b, d, DIBS__QUEUED);
  } else {
    unwatch(b->store, h);
    if (slot->rc != ZOK && slot->rc != ZNONODE && !dibs__zk_lost(slot->rc)) refuse(b, d, slot->rc, "wait in");
  }
}

static void received_slot(struct batch *b, struct doing *d, const slot_t *slot) {
  if (dibs__zk_lost(slot->rc)) {
    d->step = SEARCH;
    return;
  }
  d->h->slot_unsure = false;
  if (slot->rc == ZOK) {
    d->h->version = slot->stat.version;
    dibs__zk_set_slot(b->store, d->h, d->asked);
    grant(b, d);
  } else if (slot->rc == ZNODEEXISTS) { /* another lease has taken it meanwhile */
    d->step = LOOK;
  } else if (slot->rc == ZNONODE) {
    restart(b, d);
  } else if (slot->rc == ZBADVERSION) {
    d->step = READ;
  } else {
    refuse(b, d, slot->rc, "take a slot in");
  }
}

static void received_confirm(struct batch *b, struct doing *d, const slot_t *slot) {
  if (slot->rc == ZOK) {
    d->h->version = slot->stat.version;
    grant(b, d);
  } else if (slot->rc == ZNONODE) {
    restart(b, d);
  } else if (slot->rc == ZBADVERSION) {
    d->step = READ;
  } else if (!dibs__zk_lost(slot->rc)) {
    refuse(b, d, slot->rc, "confirm a lease in");
  }
}

static void received_renew(struct batch *b, struct doing *d, const slot_t *slot) {
  hold *h = d->h;
  if (slot->rc == ZOK) {
    h->version = slot->stat.version;
    dibs__mutex_lock(&b->store->lock);
    bool holds = h->state == DIBS__ZK_HOLDS;
    h->until = dibs__zk_until(b->store, b->now, h->ttl_ms);
    if (holds) dibs__zk_end_locked(b->store, h, b->now + h->ttl_ms);
    dibs__mutex_unlock(&b->store->lock);
    h->waiting = true; /* unknown: so the name is released from time to time */
    if (holds)
      answer_hold(d);
    else
      finish(d, DIBS_LOST);
  } else if (slot->rc == ZNONODE) {
    finish_dropped(b, d, DIBS_LOST);
  } else if (slot->rc == ZBADVERSION) {
    d->step = READ;
  } else if (!dibs__zk_lost(slot->rc)) {
    refuse(b, d, slot->rc, "renew a lease in");
  }
}

/* A break, or a renewal of ours whose answer was lost. */
static void received_read(struct batch *b, struct doing *d, const slot_t *slot) {
  struct dibs__zk_data data;
  if (dibs__zk_lost(slot->rc)) return;
  if (slot->rc == ZNONODE) {
    finish_dropped(b, d, DIBS_LOST);
  } else if (slot->rc != ZOK) {
    refuse(b, d, slot->rc, "read a lease of");
  } else if (!dibs__zk_read_data(slot->text, slot->len, &data) || data.broken) {
    dibs__mutex_lock(&b->store->lock);
    d->h->broken = true;
    dibs__mutex_unlock(&b->store->lock);
    finish(d, DIBS_LOST);
  } else {
    d->h->version = slot->stat.version;
    dibs__zk_set_slot(b->store, d->h, data.slot);
    d->step = d->op->op.verb == DIBS__RENEW ? RENEW : CONFIRM;
  }
}

static void received_delete(struct batch *b, struct doing *d, const slot_t *slot) {
  if (dibs__zk_lost(slot->rc)) return;
  bool gone = slot->rc == ZNONODE;
  if (slot->rc == ZOK) dibs__zk_set_slot(b->store, d->h, DIBS__ZK_NO_SLOT);
  if (d->after == DIBS_HELD && (slot->rc == ZOK || gone)) {
    drop_hold(b, d);
    answer_busy(b, d, DIBS_HELD);
  } else if (slot->rc == ZOK || (gone && d->after == DIBS_INVALID)) {
    finish_dropped(b, d, d->after);
  } else if (slot->rc == ZBADVERSION) { /* it has a slot, or was marked as broken */
    d->h->slot_unsure = true;
    d->step = FIND;
  } else if (gone && d->h->slot != DIBS__ZK_NO_SLOT && !d->alone) { /* one of the two */
    d->alone = true;
  } else if (gone) { /* the session had ended, it was broken, or an answer of ours was lost */
    finish_dropped(b, d, d->op->op.verb == DIBS__CANCEL ? DIBS_NOT_FOUND : DIBS_LOST);
  } else {
    refuse(b, d, slot->rc, "release a lease in");
  }
}

static void receive(struct batch *b, struct doing *d) {
  static void (*const received[])(struct batch *, struct doing *, const slot_t *) = {
      [CREATE] = received_create, [MAKE] = received_create, [SEARCH] = received_search,  [FIND] = received_find,
      [LOOK] = received_look,     [WATCH] = received_watch, [TAKE_SLOT] = received_slot, [CONFIRM] = received_confirm,
      [RENEW] = received_renew,   [READ] = received_read,   [DELETE] = received_delete,
  };
  if (d->step == DONE || d->step == TAKEN) return;
  received[d->step](b, d, &b->round->slots[d->at]);
}

/* ---- A stretch ---- */

/* The session ended while the operation was under way. */
static void check_gone(struct batch *b, struct doing *d) {
  if (d->step == DONE || !d->h || state_of(b->store, d->h) != DIBS__ZK_GONE) return;
  if (d->op->op.verb == DIBS__ACQUIRE && d->step != DELETE)
    restart(b, d);
  else if (d->op->op.verb == DIBS__ACQUIRE)
    finish_dropped(b, d, d->after);
  else
    finish_dropped(b, d, d->op->op.verb == DIBS__CANCEL ? DIBS_NOT_FOUND : DIBS_LOST);
}

/* The deadline has passed, or no server answers. */
static void give_up(struct batch *b, struct doing *d, dibs__status status) {
  if (d->step == DONE) return;
  bool doubt = d->sent && (status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN);
  if (status == DIBS_UNKNOWN && !d->sent) status = DIBS_UNAVAILABLE;
  if (doubt) status = DIBS_UNKNOWN;
  hold *h = d->h;
  if (h && d->step == WATCH) unwatch(b->store, h);                                         /* it was not set */
  if (h && d->step == FIND && state_of(b->store, h) == DIBS__ZK_UNSURE) h->node[0] = '\0'; /* whose is it? */
  if (d->op->op.verb == DIBS__ACQUIRE && d->fresh && !d->sent) {
    finish_dropped(b, d, status);
    return;
  }
  int64_t now = dibs__zk_now();
  if (h && doubt && d->op->op.verb == DIBS__ACQUIRE && d->fresh)
    set_state(b->store, h, h->node[0] ? DIBS__ZK_WAITS : DIBS__ZK_UNSURE, now + DIBS__ZK_OFFER_MS);
  else if (h && d->op->op.verb == DIBS__CANCEL) /* housekeeping does it */
    set_state(b->store, h, h->node[0] ? DIBS__ZK_WAITS : DIBS__ZK_UNSURE, now);
  else if (h && doubt && d->step == DELETE)
    set_state(b->store, h, DIBS__ZK_WAITS, now);
  finish(d, status);
}

/* Sends one round for all that need one; false: none does. */
static bool run_round(struct batch *b) {
  bool any = false;
  b->round = dibs__zk_round_new(b->count * SLOTS);
  for (size_t i = 0; i < b->count; i++) {
    struct doing *d = &b->all[i];
    check_gone(b, d);
    if (d->step == TAKEN) decide(b, d);
    if (d->step == DONE || d->step == TAKEN) continue;
    if (!b->round || ++d->tries > TRIES_MAX) {
      give_up(b, d, DIBS_UNAVAILABLE);
      continue;
    }
    any = true;
    send_step(b, d);
  }
  if (any) {
    dibs__zk_go_aside(b->store, b->round, b->by);
    for (size_t i = 0; i < b->count; i++) receive(b, &b->all[i]);
    b->result->commits++;
  }
  dibs__zk_round_drop(b->round);
  return any;
}

static bool is_left(const struct batch *b) {
  for (size_t i = 0; i < b->count; i++)
    if (b->all[i].step != DONE) return true;
  return false;
}

/* Until another batch is done with the holds that this one needs. */
static void await_holds(struct batch *b) {
  uint32_t seen = atomic_load(&b->store->freed);
  dibs__zk_leave(b->store);
  (void)dibs__word_wait(&b->store->freed, seen, b->by, false);
  (void)dibs__zk_enter(b->store, DIBS__TICK_NEVER);
}

static void run_steps(struct batch *b) {
  dibs__status status = DIBS_OK;
  for (size_t i = 0; i < b->count; i++) decide(b, &b->all[i]);
  for (leave_holds(b); is_left(b); leave_holds(b)) {
    if (!dibs__tick_before(dibs__tick_now(), b->by)) {
      status = DIBS_UNAVAILABLE;
      dibs__set_message(b->result, "%.200s did not answer in time", b->store->location.shown);
    } else {
      status = dibs__zk_ready(b->store, b->by, b->result);
    }
    if (status != DIBS_OK) break;
    if (!run_round(b) && is_left(b)) await_holds(b);
  }
  for (size_t i = 0; i < b->count; i++) give_up(b, &b->all[i], status);
  leave_holds(b);
  for (size_t i = 0; i < b->count; i++)
    if (b->all[i].op->op.verb == DIBS__BREAK) dibs__zk_break(b->store, b->all[i].op, b->by, b->result);
}

void dibs__zk_leases(store_t *store, struct dibs__lease_op *const ops[], size_t count, int64_t now, dibs__tick by,
                     struct dibs__result *result) {
  struct batch *b = calloc(1, sizeof *b + count * sizeof b->all[0]);
  if (!b) {
    for (size_t i = 0; i < count; i++) ops[i]->op.status = DIBS_UNAVAILABLE;
    return;
  }
  *b = (struct batch){.store = store, .result = result, .by = by, .now = now, .count = count};
  for (size_t i = 0; i < count; i++) b->all[i].op = ops[i];
  run_steps(b);
  free(b);
}

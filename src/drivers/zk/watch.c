/* SPDX-License-Identifier: MIT */
/*
 * Watches, which fire in a thread of the library: of waiters (queue.c says what they watch), and over the nodes of
 * leases that last.
 *
 * A watch fires once.  Its context is the ticket of a hold, a number, because the hold may be freed before.  The
 * children are read here, so that a waiter is woken once, when it may hold the name.  The first of several waiters for
 * slots watches all children: what it reads here sets that watch again, and wakes nobody if nothing is free.
 */
#include "drivers/zk/zk_impl.h"

#include <stdlib.h>
#include <string.h>

typedef struct dibs__zk store_t;
typedef struct dibs__zk_hold hold;

enum { GUARD_BATCH = 256 };

struct look {
  store_t *store;
  uint64_t ticket;
};

static struct look *new_look(store_t *store, uint64_t ticket) {
  struct look *look = malloc(sizeof *look);
  if (look) *look = (struct look){store, ticket};
  return look;
}

static void offer_locked(store_t *store, hold *h, uint32_t slot) {
  h->state = DIBS__ZK_OFFERED;
  h->watches = DIBS__ZK_WATCH_NOTHING;
  h->offered_slot = slot;
  dibs__zk_end_locked(store, h, dibs__zk_now() + DIBS__ZK_OFFER_MS);
  dibs__zk_hold_tell_locked(store, h);
}

/* What the children say to a waiter.  If others are before it and it watches nothing, it requests again. */
static void decide_locked(store_t *store, hold *h, const struct dibs__zk_slot *children) {
  struct dibs__zk_position position;
  dibs__zk_position_of_hold(children, h, &position);
  bool free = position.exists && position.free;
  if (free && (h->mode != DIBS_COUNTED || position.slot != DIBS__ZK_NO_SLOT)) {
    offer_locked(store, h, position.slot);
  } else if (h->watches != DIBS__ZK_WATCH_CHILDREN || !position.exists || position.watch != DIBS__ZK_WATCH_CHILDREN) {
    h->watches = DIBS__ZK_WATCH_NOTHING;
    dibs__zk_hold_tell_locked(store, h);
  }
}

static void looked_again(int rc, const struct String_vector *strings, const void *data) {
  struct look *look = (struct look *)(uintptr_t)data;
  store_t *store = look->store;
  dibs__mutex_lock(&store->lock);
  hold *h = dibs__zk_hold_with_ticket_locked(store, look->ticket);
  if (h && h->state == DIBS__ZK_WAITS) {
    struct dibs__zk_slot children = {.count = rc == ZOK && strings ? strings->count : 0};
    if (children.count) children.names = (const char *const *)strings->data;
    decide_locked(store, h, &children);
  }
  dibs__mutex_unlock(&store->lock);
  free(look);
  dibs__zk_changed(store);
}

static void read_children(zhandle_t *zh, const char *folder, watcher_fn watcher, struct look *look) {
  void *context = (void *)(uintptr_t)look->ticket;
  int rc = ZCLOSING;
  if (!atomic_load(&look->store->closing))
    rc = watcher ? zoo_awget_children(zh, folder, watcher, context, looked_again, look)
                 : zoo_aget_children(zh, folder, 0, looked_again, look);
  if (rc != ZOK) looked_again(ZSYSTEMERROR, NULL, look);
}

/* The hold's watch of this kind has fired.  NULL: nothing is to be read. */
static struct look *fired(store_t *store, void *context, enum dibs__zk_watch watch) {
  struct look *look = NULL;
  dibs__mutex_lock(&store->lock);
  hold *h = dibs__zk_hold_with_ticket_locked(store, (uintptr_t)context);
  if (h && h->state == DIBS__ZK_WAITS && h->watches == watch) {
    if (watch != DIBS__ZK_WATCH_CHILDREN) h->watches = DIBS__ZK_WATCH_NOTHING;
    if (watch == DIBS__ZK_WATCH_GONE && h->last)
      offer_locked(store, h, DIBS__ZK_NO_SLOT);
    else if (!(look = new_look(store, h->ticket)))
      dibs__zk_hold_tell_locked(store, h);
  }
  dibs__mutex_unlock(&store->lock);
  if (!look) dibs__zk_changed(store);
  return look;
}

static void read_folder_of(zhandle_t *zh, const char *node, struct look *look) {
  char folder[DIBS__ZK_PATH];
  const char *slash = strrchr(node, '/');
  size_t len = slash ? (size_t)(slash - node) : 0;
  if (len >= sizeof folder) len = 0;
  memcpy(folder, node, len);
  folder[len] = '\0';
  read_children(zh, folder, NULL, look);
}

/* A node that excludes a waiter was deleted.  Nodes come only at the end: if no other excluded it, the name is ours. */
static void excluding_node_gone(zhandle_t *zh, int type, int state, const char *path, void *context) {
  (void)state;
  if (type != ZOO_DELETED_EVENT) return;
  struct look *look = fired((store_t *)(uintptr_t)zoo_get_context(zh), context, DIBS__ZK_WATCH_GONE);
  if (look) read_folder_of(zh, path, look);
}

/* The counted one before a waiter was granted, or deleted. */
static void node_before_changed(zhandle_t *zh, int type, int state, const char *path, void *context) {
  (void)state;
  if (type != ZOO_DELETED_EVENT && type != ZOO_CHANGED_EVENT) return;
  struct look *look = fired((store_t *)(uintptr_t)zoo_get_context(zh), context, DIBS__ZK_WATCH_BEFORE);
  if (look) read_folder_of(zh, path, look);
}

static void children_changed(zhandle_t *zh, int type, int state, const char *path, void *context) {
  (void)state;
  if (type != ZOO_DELETED_EVENT && type != ZOO_CHILD_EVENT) return;
  struct look *look = fired((store_t *)(uintptr_t)zoo_get_context(zh), context, DIBS__ZK_WATCH_CHILDREN);
  if (look) read_children(zh, path, children_changed, look);
}

watcher_fn dibs__zk_watcher(enum dibs__zk_watch watch) {
  return watch == DIBS__ZK_WATCH_GONE     ? excluding_node_gone
         : watch == DIBS__ZK_WATCH_BEFORE ? node_before_changed
                                          : children_changed;
}

/* ---- The nodes of leases ---- */

/* The node of a lease was deleted, by another client's break or by the end of the session. */
static void lose(store_t *store, uint64_t ticket) {
  int64_t now = dibs__zk_now();
  dibs__mutex_lock(&store->lock);
  hold *h = dibs__zk_hold_with_ticket_locked(store, ticket);
  if (h && h->state == DIBS__ZK_HOLDS) {
    h->state = DIBS__ZK_GONE;
    dibs__zk_end_locked(store, h, now + DIBS__ZK_GONE_MS);
    if (h->slot != DIBS__ZK_NO_SLOT) store->due = now; /* the next sweep frees it */
    dibs__zk_hold_tell_locked(store, h);
  }
  dibs__mutex_unlock(&store->lock);
  dibs__zk_changed(store);
}

static void own_node_gone(zhandle_t *zh, int type, int state, const char *path, void *context) {
  (void)state;
  (void)path;
  if (type == ZOO_DELETED_EVENT) lose((store_t *)(uintptr_t)zoo_get_context(zh), (uintptr_t)context);
}

/* The watch over a node was set, or the node is gone already. */
static void node_guarded(int rc, const struct String_vector *strings, const void *data) {
  struct look *guard = (struct look *)(uintptr_t)data;
  (void)strings;
  if (rc == ZNONODE) lose(guard->store, guard->ticket);
  free(guard);
}

/* No request waits for it; if it is lost, a renewal finds out. */
void dibs__zk_guard_holds(store_t *store) {
  char path[DIBS__ZK_PATH];
  hold *new[GUARD_BATCH];
  size_t count = 0;
  dibs__mutex_lock(&store->lock);
  for (hold *h = store->all; h && count < GUARD_BATCH; h = h->next)
    if (h->state == DIBS__ZK_HOLDS && !h->guarded) new[count++] = h;
  if (count == GUARD_BATCH) store->guard_at = dibs__tick_now(); /* more are left */
  dibs__mutex_unlock(&store->lock);
  for (size_t i = 0; i < count; i++) { /* only the busy thread frees holds */
    struct look *guard = new_look(store, new[i]->ticket);
    if (!guard) continue;
    new[i]->guarded = true;
    int rc = zoo_awget_children(store->zh, dibs__zk_node(store, new[i], path), own_node_gone,
                                (void *)(uintptr_t) new[i]->ticket, node_guarded, guard);
    if (rc != ZOK) free(guard);
  }
}

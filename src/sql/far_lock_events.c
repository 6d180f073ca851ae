/* SPDX-License-Identifier: MIT */
/*
 * Events: the sockets of all links are watched, so that the end of a connection is known at once.  Only the lock is
 * had, and never while something is waited for.
 */
#include "sql/far_lock_parts.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>

typedef struct dibs__far_locks locks_t;
typedef struct dibs__link link_t;

enum { FDS = DIBS__FAR_WAITERS_MAX + 2 };

void dibs__lock_ring(locks_t *locks) {
  dibs__bell_raise(locks->bell);
}

DIBS__MODULE_API void dibs__far_lock_wake(struct dibs__dstore *base) {
  struct dibs__far *store = (struct dibs__far *)base;
  dibs__mutex_lock(&store->locks->lock);
  store->locks->woken = true;
  dibs__mutex_unlock(&store->locks->lock);
  dibs__lock_ring(store->locks);
}

/* Each loss by its id, also when all of a store's leases are lost: one that was had again meanwhile is not. */
static size_t tell_locked(locks_t *locks, struct dibs__event *events, size_t cap) {
  size_t count = 0;
  if (cap && locks->again) {
    locks->again = false;
    events[count++] = (struct dibs__event){.what = DIBS__EV_RECHECK};
  }
  for (struct dibs__hold *h = locks->all; h && locks->tells && count < cap; h = h->next) {
    if (!h->tell) continue;
    h->tell = false;
    locks->tells--;
    enum dibs__event_what what = h->state == DIBS__HOLD_OFFERED ? DIBS__EV_OFFER : DIBS__EV_LOST;
    if (h->state != DIBS__HOLD_HOLDS || h->broken) events[count++] = (struct dibs__event){.what = what, .id = h->id};
  }
  return count;
}

static void add_fd(const link_t *link, struct pollfd *fds, size_t *count) {
  if (!link->wire || link->gone || *count == FDS) return;
  /* What is answered to whoever talks is not ours to hear, only the end. */
  short events = (short)(link->waiter ? POLLIN | POLLRDHUP : POLLRDHUP);
  fds[(*count)++] = (struct pollfd){.fd = link->fd, .events = events};
}

static size_t watched_locked(const locks_t *locks, struct pollfd *fds) {
  size_t count = 0;
  fds[count++] = (struct pollfd){.fd = locks->bell, .events = POLLIN};
  add_fd(&locks->base, fds, &count);
  for (const link_t *link = locks->links; link; link = link->next) add_fd(link, fds, &count);
  return count;
}

static void look_at_all_locked(locks_t *locks) {
  dibs__link_look_locked(locks, &locks->base);
  for (link_t *link = locks->links; link; link = link->next) dibs__link_look_locked(locks, link);
}

DIBS__MODULE_API dibs__status dibs__far_lock_events(struct dibs__dstore *base, struct dibs__event *events, size_t cap,
                                                    size_t *count, dibs__tick by) {
  locks_t *locks = ((struct dibs__far *)base)->locks;
  struct pollfd fds[FDS];
  *count = 0;
  for (;;) {
    dibs__mutex_lock(&locks->lock);
    look_at_all_locked(locks);
    *count = tell_locked(locks, events, cap);
    bool woken = locks->woken;
    locks->woken = false;
    size_t watched = watched_locked(locks, fds);
    dibs__mutex_unlock(&locks->lock);
    if (*count || woken) return DIBS_OK;
    int64_t left = by.ns == DIBS__TICK_NEVER.ns ? -1 : dibs__tick_left_ms(dibs__tick_now(), by);
    if (left == 0) return DIBS_OK;
    int got = poll(fds, watched, left > INT_MAX ? INT_MAX : (int)left);
    if (got < 0 && errno != EINTR) return DIBS_UNAVAILABLE;
    if (got > 0 && fds[0].revents) dibs__bell_lower(locks->bell);
  }
}

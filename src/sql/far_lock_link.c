/* SPDX-License-Identifier: MIT */
/*
 * Links: connections with locks on them.
 *
 * A link that has failed is closed and whatever it held is lost, whether or not the server knows that yet: nobody could
 * say any more when it does.  So a link is given some patience beyond an operation's own deadline.
 */
#include "sql/far_lock_parts.h"

#include <fcntl.h>
#include <poll.h>

typedef enum dibs__sql_step step;
typedef struct dibs__far_locks locks_t;
typedef struct dibs__link link_t;
typedef struct dibs__hold hold;

/* ---- Talking ---- */

bool dibs__link_send(locks_t *locks, link_t *link, dibs__tick by) {
  dibs__tick least = dibs__tick_add_ms(dibs__tick_now(), DIBS__LOCK_PATIENCE_MS);
  link->wire->by = dibs__tick_before(by, least) ? least : by;
  if (link->wire->engine->go(link->wire, false) == DIBS__SQL_FINE) return true;
  if (!dibs__sql_dead(link->wire)) return false;
  dibs__mutex_lock(&locks->lock);
  dibs__link_gone_locked(locks, link);
  dibs__mutex_unlock(&locks->lock);
  return false;
}

void dibs__link_go(locks_t *locks, dibs__tick by) {
  link_t *link = &locks->base;
  for (link_t *next = locks->links; link; link = next, next = link ? link->next : NULL) {
    if (link->asked) link->failed = link->gone || !dibs__link_send(locks, link, by);
    link->asked = false;
  }
}

void dibs__link_put_drop(locks_t *locks, hold *h) {
  link_t *link = h->link;
  const char *text = h->mode == DIBS_EXCLUSIVE ? locks->how->drop : locks->how->drop_shared;
  /* Should it fail the link is lost, and the lock with it. */
  if (link->wire->engine->put(link->wire, text, &h->key.value, 1) == DIBS__SQL_FINE)
    link->held--;
  else
    dibs__link_gone_locked(locks, link);
  link->asked = true;
  h->link = NULL;
}

/* ---- The end of a link ---- */

void dibs__link_gone_locked(locks_t *locks, link_t *link) {
  int64_t now = dibs__lock_now();
  if (link->gone) return;
  link->gone = true;
  link->held = 0;
  link->waiter = NULL;
  for (hold *h = locks->all; h; h = h->next) {
    if (h->link != link) continue;
    h->link = NULL;
    /* Who waited asks anew when it looks; who held is told. */
    if (h->state == DIBS__HOLD_HOLDS)
      dibs__hold_tell_locked(locks, h);
    else
      locks->again = true;
    h->state = DIBS__HOLD_GONE;
    h->until = now + DIBS__LOCK_GONE_MS;
  }
  locks->due = now;
}

static bool closed_by_peer(const link_t *link) {
  struct pollfd fd = {.fd = link->fd, .events = POLLRDHUP};
  return poll(&fd, 1, 0) > 0 && fd.revents;
}

static void hear_locked(locks_t *locks, link_t *link) {
  hold *h = link->waiter;
  switch (locks->how->heard(link->wire)) {
  case DIBS__FAR_NOT_YET:
    return;
  case DIBS__FAR_GOT:
    link->waiter = NULL;
    link->held = 1;
    h->state = DIBS__HOLD_OFFERED;
    h->until = dibs__lock_now() + DIBS__LOCK_OFFER_MS;
    if (h->until < locks->due) locks->due = h->until;
    dibs__hold_tell_locked(locks, h);
    return;
  case DIBS__FAR_AGAIN:
    if (locks->how->wait(link->wire, &h->key, h->mode != DIBS_EXCLUSIVE) == DIBS__SQL_FINE) return;
    break;
  case DIBS__FAR_BROKE:
    break;
  }
  dibs__link_gone_locked(locks, link);
}

void dibs__link_look_locked(locks_t *locks, link_t *link) {
  if (!link->wire || link->gone) return;
  if (link->waiter)
    hear_locked(locks, link);
  else if (closed_by_peer(link))
    dibs__link_gone_locked(locks, link);
}

static void reset_base_locked(locks_t *locks) {
  link_t *base = &locks->base;
  base->wire = NULL;
  base->fd = -1;
  base->held = 0;
  base->gone = base->asked = base->failed = false;
}

static void close_link(locks_t *locks, link_t *link) {
  if (link->wire) locks->how->abandon(link->wire);
  if (link == &locks->base)
    reset_base_locked(locks);
  else
    free(link);
}

void dibs__link_tidy(locks_t *locks) {
  link_t *away = NULL;
  uint32_t spares = 0;
  dibs__mutex_lock(&locks->lock);
  for (link_t **at = &locks->links, *link; (link = *at);) {
    bool spare = !link->held && !link->waiter;
    if (!link->gone && (!spare || spares++ < DIBS__LOCK_SPARES)) {
      at = &link->next;
      continue;
    }
    *at = link->next;
    link->next = away;
    away = link;
    locks->link_count--;
  }
  struct dibs__sql_wire *base = locks->base.gone ? locks->base.wire : NULL;
  if (base) reset_base_locked(locks);
  dibs__mutex_unlock(&locks->lock);
  if (base) locks->how->abandon(base);
  for (link_t *next; away; away = next) {
    next = away->next;
    close_link(locks, away);
  }
}

/* ---- Opening ---- */

static dibs__status connect_link(struct dibs__far *store, dibs__tick by, link_t *out, struct dibs__said *said) {
  locks_t *locks = store->locks;
  struct dibs__sql_wire *wire = NULL;
  dibs__status status = store->engine->connect(store, by, &wire, said);
  if (status != DIBS_OK) return status;
  wire->by = by;
  step end = wire->engine->put(wire, locks->how->ready, NULL, 0);
  if (end == DIBS__SQL_FINE) end = wire->engine->put(wire, locks->how->self, NULL, 0);
  if (end == DIBS__SQL_FINE) end = wire->engine->go(wire, false);
  if (end != DIBS__SQL_FINE) {
    status = dibs__sql_excuse(wire, "set up a connection for locks to", store->shown, said);
    said->dead = false; /* the session is another */
    store->engine->close(wire);
    return status;
  }
  /* The lock must not live on in a child. */
  int fd = locks->how->socket(wire), flags = fcntl(fd, F_GETFD);
  if (flags >= 0) (void)fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
  out->wire = wire;
  out->fd = fd;
  out->id = dibs__sql_cell_number(wire, 1, 0, 0);
  return DIBS_OK;
}

dibs__status dibs__link_base(struct dibs__far *store, dibs__tick by, struct dibs__said *said) {
  locks_t *locks = store->locks;
  link_t link = {.wire = NULL};
  if (locks->base.wire && !locks->base.gone) return DIBS_OK;
  dibs__link_tidy(locks);
  dibs__status status = connect_link(store, by, &link, said);
  if (status != DIBS_OK) return status;
  dibs__mutex_lock(&locks->lock);
  locks->base.wire = link.wire;
  locks->base.fd = link.fd;
  locks->base.id = link.id;
  dibs__mutex_unlock(&locks->lock);
  dibs__lock_ring(locks);
  return DIBS_OK;
}

static link_t *find_spare(locks_t *locks) {
  dibs__mutex_lock(&locks->lock);
  link_t *link = locks->links;
  while (link && (link->gone || link->held || link->waiter)) link = link->next;
  dibs__mutex_unlock(&locks->lock);
  return link;
}

static dibs__status add_link(struct dibs__far *store, dibs__tick by, link_t **out, struct dibs__said *said) {
  locks_t *locks = store->locks;
  if (locks->link_count >= locks->most) {
    dibs__say(said,
              "%s: %u connections wait for session locks, or hold one that they waited for, which is the most that "
              "lock_waiters=%u allows; raise it, or let fewer wait",
              store->shown, locks->link_count, locks->most);
    return DIBS_UNAVAILABLE;
  }
  link_t *link = calloc(1, sizeof *link);
  if (!link) return DIBS_NO_MEMORY;
  dibs__status status = connect_link(store, by, link, said);
  if (status != DIBS_OK) {
    free(link);
    return status;
  }
  dibs__mutex_lock(&locks->lock);
  link->next = locks->links;
  locks->links = link;
  locks->link_count++;
  dibs__mutex_unlock(&locks->lock);
  *out = link;
  return DIBS_OK;
}

dibs__status dibs__link_wait(struct dibs__far *store, hold *h, dibs__tick by, struct dibs__said *said) {
  locks_t *locks = store->locks;
  dibs__link_tidy(locks);
  link_t *link = find_spare(locks);
  dibs__status status = link ? DIBS_OK : add_link(store, by, &link, said);
  if (status != DIBS_OK) return status;
  dibs__mutex_lock(&locks->lock);
  bool sent = locks->how->wait(link->wire, &h->key, h->mode != DIBS_EXCLUSIVE) == DIBS__SQL_FINE;
  if (sent) {
    h->link = link;
    h->state = DIBS__HOLD_WAITS;
    link->waiter = h;
  } else {
    dibs__link_gone_locked(locks, link);
  }
  dibs__mutex_unlock(&locks->lock);
  dibs__lock_ring(locks);
  if (!sent) dibs__say(said, "the connection that was to wait at %s is gone", store->shown);
  return sent ? DIBS_OK : DIBS_UNAVAILABLE;
}

/* ---- Leaving ---- */

/* By the server's word, because it does not see that a connection was closed which waits for a lock. */
static void kill_link(locks_t *locks, int64_t id, dibs__tick by) {
  struct dibs__sql_value v = dibs__sql_number(id);
  link_t *base = &locks->base;
  if (!base->wire || base->gone) return;
  if (base->wire->engine->put(base->wire, locks->how->kill, &v, 1) == DIBS__SQL_FINE)
    (void)dibs__link_send(locks, base, by);
}

/* The lock may come this instant: then it goes with the connection. */
void dibs__link_leave(struct dibs__far *store, hold *h, dibs__tick by) {
  locks_t *locks = store->locks;
  dibs__mutex_lock(&locks->lock);
  link_t *link = h->link;
  if (!link) { /* its connection broke meanwhile */
    dibs__mutex_unlock(&locks->lock);
    return;
  }
  h->link = NULL;
  h->state = DIBS__HOLD_GONE;
  link->waiter = NULL;
  link->held = 0;
  link->gone = true;
  dibs__mutex_unlock(&locks->lock);
  kill_link(locks, link->id, by);
  dibs__link_tidy(locks);
}

/* The server notices the end of a connection when it gets around to it; a lock that is given back is free at once. */
void dibs__link_close_all(struct dibs__far *store) {
  locks_t *locks = store->locks;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), DIBS__LOCK_PATIENCE_MS);
  for (link_t *link = locks->links; link; link = link->next) {
    if (link->waiter && !link->gone) kill_link(locks, link->id, by);
    if (link->held && !link->gone && !link->waiter)
      link->asked = link->wire->engine->put(link->wire, locks->how->drop_all, NULL, 0) == DIBS__SQL_FINE;
  }
  if (locks->base.wire && !locks->base.gone && locks->base.held)
    locks->base.asked =
        locks->base.wire->engine->put(locks->base.wire, locks->how->drop_all, NULL, 0) == DIBS__SQL_FINE;
  dibs__link_go(locks, by);
  for (link_t *link = locks->links, *next; link; link = next) {
    next = link->next;
    close_link(locks, link);
  }
  locks->links = NULL;
  locks->link_count = 0;
  if (locks->base.wire) close_link(locks, &locks->base);
}

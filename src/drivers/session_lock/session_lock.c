/* SPDX-License-Identifier: MIT */
/*
 * A store of session locks: links, events, and what this process knows of its leases.
 *
 * A server lets the connection that has a lock take it again, so the tables here decide first: an acquire of a name
 * that a lease of this store has is refused, or waits on a connection of its own like any other waiter.  The server
 * knows no ttl.  This process releases a lease that is not renewed when its time is over, as long as it runs.
 *
 * A link that has failed is closed, and all its locks are lost, whether the server knows that yet or not: the time
 * when it does is unknown.  So a link is given some patience beyond an operation's own deadline.
 *
 * Events: the sockets of all links are polled, so that the end of a connection is known at once.  The thread holds
 * only `lock`, and never while it waits.
 */
#include "base/sha256.h"
#include "drivers/session_lock/session_lock_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__session_locks locks_t;
typedef struct dibs__link link_t;
typedef struct dibs__hold hold;

/* ---- Packets on a link ---- */

static bool link_send(locks_t *locks, link_t *link, dibs__tick by) {
  dibs__tick least = dibs__tick_add_ms(dibs__tick_now(), DIBS__LOCK_PATIENCE_MS);
  link->wire->by = dibs__tick_before(by, least) ? least : by;
  if (link->wire->engine->go(link->wire, false) == DIBS__SQL_OK) return true;
  if (!dibs__sql_dead(link->wire)) return false;
  dibs__mutex_lock(&locks->lock);
  dibs__link_gone_locked(locks, link);
  dibs__mutex_unlock(&locks->lock);
  return false;
}

void dibs__link_go(locks_t *locks, dibs__tick by) {
  link_t *link = &locks->base;
  for (link_t *next = locks->links; link; link = next, next = link ? link->next : NULL) {
    if (link->requested) link->failed = link->gone || !link_send(locks, link, by);
    link->requested = link->pinged = false;
  }
}

void dibs__link_put_drop(locks_t *locks, hold *h) {
  link_t *link = h->link;
  const char *text = h->mode == DIBS_EXCLUSIVE ? locks->how->drop : locks->how->drop_shared;
  /* If it fails, the link is lost, and the lock with it. */
  if (link->wire->engine->put(link->wire, text, &h->key.value, 1) == DIBS__SQL_OK)
    link->held--;
  else
    dibs__link_gone_locked(locks, link);
  link->requested = true;
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
    /* A waiter requests again when it polls; a holder gets an event. */
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
  case DIBS__SERVER_NOT_YET:
    return;
  case DIBS__SERVER_GOT:
    link->waiter = NULL;
    link->held = 1;
    h->state = DIBS__HOLD_OFFERED;
    h->until = dibs__lock_now() + DIBS__LOCK_OFFER_MS;
    if (h->until < locks->due) locks->due = h->until;
    dibs__hold_tell_locked(locks, h);
    return;
  case DIBS__SERVER_AGAIN:
    if (locks->how->wait(link->wire, &h->key, h->mode != DIBS_EXCLUSIVE) == DIBS__SQL_OK) return;
    break;
  case DIBS__SERVER_FAILED:
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
  base->gone = base->requested = base->pinged = base->failed = false;
}

static void close_link(locks_t *locks, link_t *link) {
  if (link->wire) locks->how->abandon(link->wire);
  if (link == &locks->base)
    reset_base_locked(locks);
  else
    free(link);
}

/* Closes links that are gone, and spare ones beyond the number that is kept. */
static void link_tidy(locks_t *locks) {
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

static dibs__status connect_link(struct dibs__server *store, dibs__tick by, link_t *out, struct dibs__result *result) {
  locks_t *locks = store->locks;
  struct dibs__sql_wire *wire = NULL;
  dibs__status status = store->engine->connect(store, by, &wire, result);
  if (status != DIBS_OK) return status;
  wire->by = by;
  sql_rc end = wire->engine->put(wire, locks->how->ready, NULL, 0);
  if (end == DIBS__SQL_OK) end = wire->engine->put(wire, locks->how->self, NULL, 0);
  if (end == DIBS__SQL_OK) end = wire->engine->go(wire, false);
  if (end != DIBS__SQL_OK) {
    status = dibs__sql_explain(wire, "set up a connection for locks to", store->shown, result);
    result->dead = false; /* the session has another connection */
    store->engine->close(wire);
    return status;
  }
  /* A child process must not keep the lock. */
  int fd = locks->how->socket(wire), flags = fcntl(fd, F_GETFD);
  if (flags >= 0) (void)fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
  out->wire = wire;
  out->fd = fd;
  out->id = dibs__sql_cell_number(wire, 1, 0, 0);
  return DIBS_OK;
}

dibs__status dibs__link_base(struct dibs__server *store, dibs__tick by, struct dibs__result *result) {
  locks_t *locks = store->locks;
  link_t link = {.wire = NULL};
  if (locks->base.wire && !locks->base.gone) return DIBS_OK;
  link_tidy(locks);
  dibs__status status = connect_link(store, by, &link, result);
  if (status != DIBS_OK) return status;
  dibs__mutex_lock(&locks->lock);
  locks->base.wire = link.wire;
  locks->base.fd = link.fd;
  locks->base.id = link.id;
  dibs__mutex_unlock(&locks->lock);
  dibs__lock_notify(locks);
  return DIBS_OK;
}

static link_t *find_spare(locks_t *locks) {
  dibs__mutex_lock(&locks->lock);
  link_t *link = locks->links;
  while (link && (link->gone || link->held || link->waiter)) link = link->next;
  dibs__mutex_unlock(&locks->lock);
  return link;
}

static dibs__status add_link(struct dibs__server *store, dibs__tick by, link_t **out, struct dibs__result *result) {
  locks_t *locks = store->locks;
  if (locks->link_count >= locks->most) {
    dibs__set_message(result,
                      "%s: %u connections wait for session locks, or hold a lock that they waited for; lock_waiters=%u "
                      "allows no more: raise it, or reduce the waiters",
                      store->shown, locks->link_count, locks->most);
    return DIBS_UNAVAILABLE;
  }
  link_t *link = calloc(1, sizeof *link);
  if (!link) return DIBS_NO_MEMORY;
  dibs__status status = connect_link(store, by, link, result);
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

dibs__status dibs__link_wait(struct dibs__server *store, hold *h, dibs__tick by, struct dibs__result *result) {
  locks_t *locks = store->locks;
  link_tidy(locks);
  link_t *link = find_spare(locks);
  dibs__status status = link ? DIBS_OK : add_link(store, by, &link, result);
  if (status != DIBS_OK) return status;
  dibs__mutex_lock(&locks->lock);
  bool sent = locks->how->wait(link->wire, &h->key, h->mode != DIBS_EXCLUSIVE) == DIBS__SQL_OK;
  if (sent) {
    h->link = link;
    h->state = DIBS__HOLD_WAITS;
    link->waiter = h;
  } else {
    dibs__link_gone_locked(locks, link);
  }
  dibs__mutex_unlock(&locks->lock);
  dibs__lock_notify(locks);
  if (!sent) dibs__set_message(result, "the connection that waited at %s was lost", store->shown);
  return sent ? DIBS_OK : DIBS_UNAVAILABLE;
}

/* ---- Leaving a queue ---- */

/* The server ends it, because it does not notice that a connection was closed while it waits for a lock. */
static void kill_link(locks_t *locks, int64_t id, dibs__tick by) {
  struct dibs__sql_value v = dibs__sql_number(id);
  link_t *base = &locks->base;
  if (!base->wire || base->gone) return;
  if (base->wire->engine->put(base->wire, locks->how->kill, &v, 1) == DIBS__SQL_OK) (void)link_send(locks, base, by);
}

/* The lock may come at this instant: then it ends with the connection. */
void dibs__link_leave(struct dibs__server *store, hold *h, dibs__tick by) {
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
  link_tidy(locks);
}

/* The server notices the end of a connection with some delay; a lock that is released is free at once. */
static void link_close_all(struct dibs__server *store) {
  locks_t *locks = store->locks;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), DIBS__LOCK_PATIENCE_MS);
  for (link_t *link = locks->links; link; link = link->next) {
    if (link->waiter && !link->gone) kill_link(locks, link->id, by);
    if (link->held && !link->gone && !link->waiter)
      link->requested = link->wire->engine->put(link->wire, locks->how->drop_all, NULL, 0) == DIBS__SQL_OK;
  }
  if (locks->base.wire && !locks->base.gone && locks->base.held)
    locks->base.requested =
        locks->base.wire->engine->put(locks->base.wire, locks->how->drop_all, NULL, 0) == DIBS__SQL_OK;
  dibs__link_go(locks, by);
  for (link_t *link = locks->links, *next; link; link = next) {
    next = link->next;
    close_link(locks, link);
  }
  locks->links = NULL;
  locks->link_count = 0;
  if (locks->base.wire) close_link(locks, &locks->base);
}

/* ---- Events ---- */

enum { FDS = DIBS__SERVER_WAITERS_MAX + 2 };

void dibs__lock_notify(locks_t *locks) {
  dibs__notifier_raise(locks->notifier);
}

static void wake_events(struct dibs__dstore *base) {
  struct dibs__server *store = (struct dibs__server *)base;
  dibs__mutex_lock(&store->locks->lock);
  store->locks->woken = true;
  dibs__mutex_unlock(&store->locks->lock);
  dibs__lock_notify(store->locks);
}

/* Reports each loss by its id, also if all of a store's leases are lost: a lease acquired again meanwhile is not
 * lost. */
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
  /* Answers are for the thread that sent the request, only the end is for this thread. */
  short events = (short)(link->waiter ? POLLIN | POLLRDHUP : POLLRDHUP);
  fds[(*count)++] = (struct pollfd){.fd = link->fd, .events = events};
}

static size_t watched_locked(const locks_t *locks, struct pollfd *fds) {
  size_t count = 0;
  fds[count++] = (struct pollfd){.fd = locks->notifier, .events = POLLIN};
  add_fd(&locks->base, fds, &count);
  for (const link_t *link = locks->links; link; link = link->next) add_fd(link, fds, &count);
  return count;
}

static void look_at_all_locked(locks_t *locks) {
  dibs__link_look_locked(locks, &locks->base);
  for (link_t *link = locks->links; link; link = link->next) dibs__link_look_locked(locks, link);
}

static dibs__status collect_events(struct dibs__dstore *base, struct dibs__event *events, size_t cap, size_t *count,
                                   dibs__tick by) {
  locks_t *locks = ((struct dibs__server *)base)->locks;
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
    if (got > 0 && fds[0].revents) dibs__notifier_lower(locks->notifier);
  }
}

/* ---- The tables ---- */

static uint64_t hash_of(dibs__str name) {
  return dibs__hash(name.p, name.len);
}

/* The id is random: some of its bytes serve as a hash. */
static uint64_t hash_with(dibs__str name, dibs__id id) {
  uint64_t some;
  memcpy(&some, id.b, sizeof some);
  return hash_of(name) ^ some;
}

void dibs__lock_key(const struct dibs__session_locks *locks, dibs__str name, struct dibs__server_key *key) {
  struct dibs__sha256 sum;
  char hex[65];
  dibs__sha256_begin(&sum);
  dibs__sha256_add(&sum, locks->space, strlen(locks->space));
  dibs__sha256_add(&sum, ":", 1);
  dibs__sha256_add(&sum, name.p, name.len);
  dibs__sha256_end(&sum, hex);
  locks->how->key(hex, key);
}

struct dibs__hold *dibs__hold_new(struct dibs__session_locks *locks, const struct dibs__lease_op *op) {
  struct dibs__hold *h = calloc(1, sizeof *h + op->name.len + 1);
  if (!h) return NULL;
  h->id = op->id;
  h->mode = op->mode;
  h->ttl_ms = op->ttl_ms;
  h->owner.len = op->owner.len;
  if (op->owner.len) memcpy(h->owner.text, op->owner.p, op->owner.len);
  h->len = op->name.len;
  memcpy(h->name, op->name.p, op->name.len);
  dibs__lock_key(locks, op->name, &h->key);
  return h;
}

void dibs__hold_add_locked(struct dibs__session_locks *locks, struct dibs__hold *h) {
  dibs__map_add(&locks->by_id, &h->by_id, hash_with(dibs__hold_name(h), h->id));
  dibs__map_add(&locks->by_name, &h->by_name, hash_of(dibs__hold_name(h)));
  h->next = locks->all;
  h->link_back = &locks->all;
  if (h->next) h->next->link_back = &h->next;
  locks->all = h;
}

void dibs__hold_drop_locked(struct dibs__session_locks *locks, struct dibs__hold *h) {
  dibs__map_remove(&locks->by_id, &h->by_id);
  dibs__map_remove(&locks->by_name, &h->by_name);
  *h->link_back = h->next;
  if (h->next) h->next->link_back = h->link_back;
  if (h->tell) locks->tells--;
  free(h);
}

struct dibs__hold *dibs__hold_find_locked(const struct dibs__session_locks *locks, dibs__str name, dibs__id id) {
  uint64_t hash = hash_with(name, id);
  for (struct dibs__map_node *node = dibs__map_head(&locks->by_id, hash); node; node = node->next) {
    struct dibs__hold *h = (struct dibs__hold *)((char *)node - offsetof(struct dibs__hold, by_id));
    if (node->hash == hash && dibs__id_equal(h->id, id) && dibs__str_equal(dibs__hold_name(h), name)) return h;
  }
  return NULL;
}

void dibs__hold_tell_locked(struct dibs__session_locks *locks, struct dibs__hold *h) {
  if (!h->tell) locks->tells++;
  h->tell = true;
}

struct dibs__lock_ours dibs__lock_ours_locked(const struct dibs__session_locks *locks, dibs__str name) {
  struct dibs__lock_ours ours = {0};
  uint64_t hash = hash_of(name);
  for (struct dibs__map_node *node = dibs__map_head(&locks->by_name, hash); node; node = node->next) {
    struct dibs__hold *h = (struct dibs__hold *)((char *)node - offsetof(struct dibs__hold, by_name));
    if (node->hash != hash || (h->state != DIBS__HOLD_HOLDS && h->state != DIBS__HOLD_OFFERED)) continue;
    if (!dibs__str_equal(dibs__hold_name(h), name)) continue;
    if (h->mode == DIBS_EXCLUSIVE)
      ours.exclusive++;
    else
      ours.shared++;
    if (ours.until == 0 || h->until < ours.until) ours.until = h->until;
  }
  return ours;
}

/* ---- Expiry ---- */

static int64_t ends_at(const struct dibs__hold *h) {
  switch (h->state) {
  case DIBS__HOLD_HOLDS:
  case DIBS__HOLD_OFFERED:
    return h->until;
  case DIBS__HOLD_GONE:
    return h->tell ? h->until : 0;
  default:
    return INT64_MAX;
  }
}

void dibs__lock_sweep(struct dibs__server *store, dibs__tick by) {
  struct dibs__session_locks *locks = store->locks;
  int64_t now = dibs__lock_now(), due = INT64_MAX;
  link_tidy(locks);
  if (now < locks->due) return;
  dibs__mutex_lock(&locks->lock);
  for (struct dibs__hold *h = locks->all, *next; h; h = next) {
    int64_t end = ends_at(h);
    next = h->next;
    if (end > now) {
      if (end < due) due = end;
      continue;
    }
    if (h->link) dibs__link_put_drop(locks, h);
    dibs__hold_drop_locked(locks, h);
  }
  locks->due = due;
  dibs__mutex_unlock(&locks->lock);
  dibs__link_go(locks, by);
}

/* ---- The store ---- */

static void free_locks(struct dibs__session_locks *locks) {
  if (!locks) return;
  while (locks->all) dibs__hold_drop_locked(locks, locks->all);
  dibs__map_free(&locks->by_id);
  dibs__map_free(&locks->by_name);
  dibs__mutex_destroy(&locks->busy);
  dibs__mutex_destroy(&locks->lock);
  if (locks->notifier >= 0) dibs__notifier_close(locks->notifier);
  free(locks->space);
  free(locks->draws);
  free(locks);
}

/* What the keys contain beside the names, as the server spells it: the spelling in the URI does not matter. */
static dibs__status read_space(struct dibs__server *store, struct dibs__session_locks *locks, dibs__tick by,
                               struct dibs__result *result) {
  struct dibs__sql_wire *wire = store->inside->spare->rows.wire;
  char text[256];
  size_t nth = wire->put;
  wire->by = by;
  struct dibs__sql_value schema = dibs__sql_text(store->options.schema, strlen(store->options.schema));
  enum dibs__sql_rc end = wire->engine->put(wire, locks->how->space, &schema, 1);
  if (end == DIBS__SQL_OK) end = wire->engine->go(wire, false);
  if (end != DIBS__SQL_OK) return dibs__sql_explain(wire, "read the name of", store->shown, result);
  struct dibs__sql_value cell = wire->engine->cell(wire, nth, 0, 0, DIBS__SQL_TEXT);
  int len = snprintf(text, sizeof text, "%.*s.%s", (int)cell.len, cell.p ? cell.p : "", store->options.prefix);
  locks->space = len > 0 && (size_t)len < sizeof text ? strdup(text) : NULL;
  return locks->space ? DIBS_OK : DIBS_NO_MEMORY;
}

static dibs__status make_locks(struct dibs__server *store, const struct dibs__session_locking *how, dibs__tick by,
                               struct dibs__result *result) {
  struct dibs__session_locks *locks = store->locks = calloc(1, sizeof *locks);
  if (!locks) return DIBS_NO_MEMORY;
  locks->how = how;
  locks->due = INT64_MAX;
  locks->most = store->options.lock_waiters;
  dibs__mutex_init(&locks->busy);
  dibs__mutex_init(&locks->lock);
  locks->notifier = dibs__notifier_open();
  locks->draws = calloc(DIBS__SERVER_BATCH, sizeof *locks->draws);
  if (!locks->draws) return DIBS_NO_MEMORY;
  if (!dibs__map_init(&locks->by_id) || !dibs__map_init(&locks->by_name)) return DIBS_NO_MEMORY;
  if (locks->notifier < 0) {
    dibs__set_message(result, "no file descriptor for notifications of %s", store->shown);
    return DIBS_UNAVAILABLE;
  }
  return read_space(store, locks, by, result);
}

static void close_store(struct dibs__dstore *base) {
  struct dibs__server *store = (struct dibs__server *)base;
  if (store->locks) link_close_all(store);
  free_locks(store->locks);
  store->locks = NULL;
  dibs__server_close(base);
}

static dibs__status connect_store(struct dibs__dstore *base, dibs__tick by, struct dibs__session **session,
                                  struct dibs__identity *identity, struct dibs__result *result) {
  struct dibs__server *store = (struct dibs__server *)base;
  dibs__status status = dibs__server_connect(base, by, session, identity, result);
  if (status != DIBS_OK) return status;
  identity->caps = DIBS__CAP_SESSION | DIBS__CAP_EVENTS | DIBS__CAP_ATOMIC | DIBS__CAP_ANCHOR | DIBS__CAP_BLOCKS;
  if (store->locks->how->shared) identity->caps |= DIBS__CAP_SHARED;
  identity->max_sessions = 1;
  return DIBS_OK;
}

static void tidy_store(struct dibs__dstore *base) {
  struct dibs__server *store = (struct dibs__server *)base;
  dibs__mutex_lock(&store->locks->busy);
  dibs__lock_sweep(store, dibs__tick_add_ms(dibs__tick_now(), DIBS__LOCK_PATIENCE_MS));
  dibs__mutex_unlock(&store->locks->busy);
  dibs__server_tidy(base);
}

/* The functions that differ from server.h's, and the others. */
static struct dibs__driver driver_of(const struct dibs__server_engine *engine) {
  return (struct dibs__driver){.size = sizeof(struct dibs__driver),
                               .abi = DIBS__DRIVER_ABI,
                               .name = engine->schemes[0],
                               .schemes = engine->schemes,
                               .close = close_store,
                               .connect = connect_store,
                               .disconnect = dibs__server_disconnect,
                               .attach = dibs__server_attach,
                               .transactor_open = dibs__server_transactor_open,
                               .transact = dibs__server_transact,
                               .transactor_close = dibs__server_transactor_close,
                               .run = dibs__session_lock_run,
                               .events = collect_events,
                               .wake = wake_events,
                               .list = dibs__session_lock_list,
                               .tidy = tidy_store};
}

DIBS__MODULE_API dibs__status dibs__session_lock_open(const struct dibs__server_engine *engine,
                                                      const struct dibs__session_locking *how,
                                                      const struct dibs__uri *uri, dibs__tick by,
                                                      struct dibs__dstore **store, struct dibs__result *result) {
  const char *mode = dibs__uri_param(uri, "lock");
  dibs__status status = dibs__server_open(engine, uri, by, store, result);
  if (status != DIBS_OK || !mode || strcmp(mode, how->mode) != 0) return status;
  struct dibs__server *opened = (struct dibs__server *)*store;
  status = make_locks(opened, how, by, result);
  if (status != DIBS_OK) {
    close_store(*store);
    return status;
  }
  opened->locks->driver = driver_of(engine);
  opened->base.driver = &opened->locks->driver;
  return DIBS_OK;
}

/* SPDX-License-Identifier: MIT */
/*
 * The bell: one subscription an open store, on the channel of its session.  The scripts count who hears it: a session
 * without one is dead, and its waiters are passed over.  So it is subscribed before the first waiter is queued, and
 * anew as soon as it is lost, or the server has another life (one who was demoted still passes on what its new master
 * says, but is not counted there).
 *
 * Locks: `opening` is held while one connects, so that two do not at once; `lock` guards the rest, for instants.  A
 * link is read by the thread in events() alone, which is the one that frees it, too.
 */
#include "drivers/redis_wire.h"
#include "sql/far.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* How long the thread of events() may be kept by one attempt to connect, and rests behind it; both grow. */
enum { TRY_MS = 250, TRY_MAX_MS = 1000, REST_MS = 100, REST_MAX_MS = 2000 };
enum { PARTING_MS = 300 }; /* closing waits so long for a server that does not answer */

struct dibs__redis_bell {
  int wake; /* immutable */
  dibs__mutex opening;
  dibs__mutex lock;
  /* Guarded by lock. */
  struct dibs__redis_link *link, *old; /* old: a list, to be freed by events() */
  bool was;                            /* there was a link before */
  bool recheck, new_life;              /* to be told */
  bool life_known;
  dibs__life life;
  /* Any thread: link is there, and of the latest life. */
  _Atomic bool stands;
  /* events() alone. */
  int64_t try_ms, rest_ms;
  dibs__tick again;
};

void dibs__redis_channel(const struct dibs__redis_place *place, uint64_t session, char channel[DIBS__REDIS_CHANNEL]) {
  snprintf(channel, DIBS__REDIS_CHANNEL, "%s:s:%016" PRIx64, place->prefix, session);
}

dibs__status dibs__redis_bell_open(struct dibs__redis *store) {
  struct dibs__redis_bell *b = calloc(1, sizeof *b);
  if (!b) return DIBS_NO_MEMORY;
  b->wake = dibs__bell_open();
  if (b->wake < 0) {
    free(b);
    return DIBS_UNAVAILABLE;
  }
  dibs__mutex_init(&b->opening);
  dibs__mutex_init(&b->lock);
  store->bell = b;
  return DIBS_OK;
}

static void free_links(struct dibs__redis_link *link) {
  while (link) {
    struct dibs__redis_link *next = link->next;
    dibs__redis_disconnect(link);
    link = next;
  }
}

/* When the server has closed its end, too, nothing more is offered to us. */
static void hang_up(const struct dibs__redis_link *link) {
  char rest[256];
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), PARTING_MS);
  if (!link || link->dead || shutdown(link->context->fd, SHUT_WR) != 0) return;
  for (int64_t ms = PARTING_MS; ms > 0; ms = dibs__tick_left_ms(dibs__tick_now(), by)) {
    struct pollfd end = {.fd = link->context->fd, .events = POLLIN};
    if (poll(&end, 1, (int)ms) > 0 && recv(end.fd, rest, sizeof rest, MSG_DONTWAIT) <= 0) return;
  }
}

void dibs__redis_bell_close(struct dibs__redis *store) {
  struct dibs__redis_bell *b = store->bell;
  if (!b) return;
  hang_up(b->link);
  dibs__redis_disconnect(b->link);
  free_links(b->old);
  dibs__bell_close(b->wake);
  dibs__mutex_destroy(&b->opening);
  dibs__mutex_destroy(&b->lock);
  free(b);
  store->bell = NULL;
}

void dibs__redis_bell_wake(struct dibs__redis *store) {
  dibs__bell_raise(store->bell->wake);
}

/* ---- Subscribing ---- */

static dibs__status subscribe(struct dibs__redis *store, dibs__tick by, struct dibs__redis_link **out,
                              struct dibs__said *said) {
  char channel[DIBS__REDIS_CHANNEL];
  struct dibs__redis_link *link = NULL;
  dibs__status status = dibs__redis_connect(store->place, 0, by, &link, said);
  if (status != DIBS_OK) return status;
  dibs__redis_channel(store->place, store->session, channel);
  const char *words[] = {"SUBSCRIBE", channel};
  const size_t lengths[] = {9, strlen(channel)};
  status = dibs__redis_put(link, 2, words, lengths) ? dibs__redis_go(link, by, said) : DIBS_NO_MEMORY;
  if (status == DIBS_UNKNOWN) status = DIBS_UNAVAILABLE;
  const redisReply *reply = status == DIBS_OK ? dibs__redis_reply(link, 0) : NULL;
  if (reply && reply->type != REDIS_REPLY_ARRAY)
    status = dibs__redis_refused(link, reply, "subscribe to a channel of", said);
  if (status == DIBS_OK)
    *out = link;
  else
    dibs__redis_disconnect(link);
  return status;
}

/* true: another one than before. */
static bool saw_locked(struct dibs__redis_bell *b, const dibs__life *life) {
  bool other = b->life_known && memcmp(&b->life, life, sizeof *life) != 0;
  b->life = *life;
  b->life_known = true;
  b->new_life = b->new_life || other;
  return other;
}

/* Only one at a time: who comes meanwhile finds it standing. */
static dibs__status open_link(struct dibs__redis *store, dibs__tick by, struct dibs__said *said) {
  struct dibs__redis_bell *b = store->bell;
  struct dibs__redis_link *link = NULL;
  dibs__status status = DIBS_OK;
  dibs__mutex_lock(&b->opening);
  if (!atomic_load(&b->stands)) status = subscribe(store, by, &link, said);
  if (link) {
    dibs__mutex_lock(&b->lock);
    if (b->link) {
      b->link->next = b->old;
      b->old = b->link;
    }
    b->link = link;
    b->recheck = b->recheck || b->was;
    b->was = true;
    (void)saw_locked(b, &link->life); /* nobody has seen a later one */
    atomic_store(&b->stands, true);
    dibs__mutex_unlock(&b->lock);
  }
  dibs__mutex_unlock(&b->opening);
  return status;
}

dibs__status dibs__redis_bell_ready(struct dibs__redis *store, dibs__tick by, struct dibs__said *said) {
  if (atomic_load(&store->bell->stands)) return DIBS_OK;
  dibs__status status = open_link(store, by, said);
  if (status == DIBS_OK) dibs__bell_raise(store->bell->wake); /* who is in events() does not read it yet */
  return status;
}

void dibs__redis_bell_life(struct dibs__redis *store, const dibs__life *life) {
  struct dibs__redis_bell *b = store->bell;
  dibs__mutex_lock(&b->lock);
  bool other = saw_locked(b, life);
  if (other) atomic_store(&b->stands, false);
  dibs__mutex_unlock(&b->lock);
  if (other) dibs__bell_raise(b->wake);
}

/* ---- Hearing ---- */

/* Whatever it says is only a reason to look. */
static void read_message(const redisReply *message, struct dibs__event *event) {
  const redisReply *text = message->type == REDIS_REPLY_ARRAY && message->elements == 3 ? message->element[2] : NULL;
  *event = (struct dibs__event){.what = DIBS__EV_RECHECK};
  if (!text || text->type != REDIS_REPLY_STRING || text->len != DIBS__REDIS_RING_BYTES) return;
  event->what = DIBS__EV_OFFER;
  dibs__far_ring_read((const uint8_t *)text->str, event);
  if (event->fence.v != DIBS__REDIS_RING_LOST) return;
  event->what = DIBS__EV_LOST;
  event->fence = DIBS__FENCE_NONE;
}

static size_t hear(struct dibs__redis_link *link, struct dibs__event *events, size_t cap) {
  size_t count = 0;
  const redisReply *message;
  while (count < cap && (message = dibs__redis_message(link))) read_message(message, &events[count++]);
  return count;
}

/* What there is to be told without asking the server; the link that is to be read now. */
static struct dibs__redis_link *take(struct dibs__redis_bell *b, struct dibs__event *events, size_t cap,
                                     size_t *count) {
  dibs__mutex_lock(&b->lock);
  struct dibs__redis_link *link = b->link, *old = b->old;
  b->old = NULL;
  if (b->new_life && *count < cap) {
    events[(*count)++] = (struct dibs__event){.what = DIBS__EV_NEW_LIFE};
    b->new_life = false;
  }
  if (b->recheck && *count < cap) {
    events[(*count)++] = (struct dibs__event){.what = DIBS__EV_RECHECK};
    b->recheck = false;
  }
  dibs__mutex_unlock(&b->lock);
  free_links(old);
  return link;
}

/* The link is gone, unless somebody has put another in its place. */
static void lose(struct dibs__redis_bell *b, struct dibs__redis_link *link) {
  dibs__mutex_lock(&b->lock);
  bool ours = b->link == link;
  if (ours) {
    b->link = NULL;
    atomic_store(&b->stands, false);
  }
  dibs__mutex_unlock(&b->lock);
  if (ours) dibs__redis_disconnect(link);
}

/* There was a link, and it is to be another.  When it is to be tried the next time, unless it stands. */
static dibs__tick mend(struct dibs__redis *store) {
  struct dibs__redis_bell *b = store->bell;
  dibs__mutex_lock(&b->lock);
  bool wanted = b->was && !atomic_load(&b->stands);
  dibs__mutex_unlock(&b->lock);
  if (!wanted) {
    b->try_ms = TRY_MS;
    b->rest_ms = REST_MS;
    b->again = DIBS__TICK_ZERO;
    return DIBS__TICK_NEVER;
  }
  dibs__tick now = dibs__tick_now();
  if (dibs__tick_before(now, b->again)) return b->again;
  struct dibs__said said = {.text = ""};
  if (open_link(store, dibs__tick_add_ms(now, b->try_ms), &said) == DIBS_OK) return DIBS__TICK_ZERO;
  b->again = dibs__tick_add_ms(dibs__tick_now(), b->rest_ms);
  b->try_ms = b->try_ms * 2 > TRY_MAX_MS ? TRY_MAX_MS : b->try_ms * 2;
  b->rest_ms = b->rest_ms * 2 > REST_MAX_MS ? REST_MAX_MS : b->rest_ms * 2;
  return b->again;
}

dibs__status dibs__redis_bell_events(struct dibs__redis *store, struct dibs__event *events, size_t cap, size_t *count,
                                     dibs__tick by) {
  struct dibs__redis_bell *b = store->bell;
  *count = 0;
  for (;;) {
    dibs__tick again = mend(store);
    struct dibs__redis_link *link = take(b, events, cap, count);
    if (link) *count += hear(link, events + *count, cap - *count);
    if (link && link->dead) {
      lose(b, link);
      if (*count == 0) continue;
    }
    if (*count > 0) return DIBS_OK;
    if (again.ns == DIBS__TICK_ZERO.ns) continue;
    int64_t left = dibs__tick_left_ms(dibs__tick_now(), dibs__tick_min(by, again));
    struct pollfd fds[] = {{.fd = b->wake, .events = POLLIN}, {.fd = link ? link->context->fd : -1, .events = POLLIN}};
    int got = poll(fds, 2, left > INT_MAX ? -1 : (int)left);
    if (got < 0 && errno != EINTR) return DIBS_UNAVAILABLE;
    if (got > 0 && fds[0].revents) {
      dibs__bell_lower(b->wake);
      (void)take(b, events, cap, count);
      return DIBS_OK;
    }
    if (got == 0 && !dibs__tick_before(dibs__tick_now(), by)) return DIBS_OK;
  }
}

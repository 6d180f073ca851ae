/* SPDX-License-Identifier: MIT */
/*
 * The driver of redis://: a module, loaded when its scheme is first used.  It has leases and reports: Redis may lose
 * data while it is up, so nothing durable.
 *
 * The notifier is one subscription for each open store, on the channel of its session.  The scripts count the
 * subscribers: a session without one is dead, and its waiters are skipped.  So it is subscribed before the first
 * waiter is queued, and again as soon as the subscription is lost or the server has another incarnation (a demoted
 * server still passes on what its new master publishes, but is not counted there).
 *
 * Locks: `opening` is held while one thread connects, so that two do not at once; `lock` guards the rest, for short
 * times.  Only the thread in events() reads a link, and it frees it, too.
 */
#include "drivers/redis/cluster.h"
#include "drivers/redis/wire.h"
#include "drivers/server/server.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* The longest time of one try to connect in events(), and the pause after it; both grow. */
enum { TRY_MS = 250, TRY_MAX_MS = 1000, REST_MS = 100, REST_MAX_MS = 2000 };
enum { PARTING_MS = 300 }; /* closing waits so long for a server that does not answer */

struct dibs__redis_notifier {
  int wake; /* immutable */
  dibs__mutex opening;
  dibs__mutex lock;
  /* Guarded by lock. */
  struct dibs__redis_link *link, *old; /* old: a list, to be freed by events() */
  bool was;                            /* there was a link before */
  bool recheck, new_incarnation;       /* to be returned as events */
  bool incarnation_known;
  dibs__incarnation incarnation;
  /* Any thread: link is connected, and of the latest incarnation. */
  _Atomic bool is_open;
  /* events() alone. */
  int64_t try_ms, rest_ms;
  dibs__tick again;
};

void dibs__redis_channel(const struct dibs__redis_location *location, uint64_t session,
                         char channel[DIBS__REDIS_CHANNEL]) {
  snprintf(channel, DIBS__REDIS_CHANNEL, "%s:s:%016" PRIx64, location->prefix, session);
}

dibs__status dibs__redis_notifier_open(struct dibs__redis *store) {
  struct dibs__redis_notifier *b = calloc(1, sizeof *b);
  if (!b) return DIBS_NO_MEMORY;
  b->wake = dibs__notifier_open();
  if (b->wake < 0) {
    free(b);
    return DIBS_UNAVAILABLE;
  }
  b->try_ms = TRY_MS;
  b->rest_ms = REST_MS;
  dibs__mutex_init(&b->opening);
  dibs__mutex_init(&b->lock);
  store->notifier = b;
  return DIBS_OK;
}

static void free_links(struct dibs__redis_link *link) {
  while (link) {
    struct dibs__redis_link *next = link->next;
    dibs__redis_disconnect(link);
    link = next;
  }
}

/* After the server has closed its end, too, it sends no more offers. */
static void hang_up(const struct dibs__redis_link *link) {
  char rest[256];
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), PARTING_MS);
  if (!link || link->dead || shutdown(link->context->fd, SHUT_WR) != 0) return;
  for (int64_t ms = PARTING_MS; ms > 0; ms = dibs__tick_left_ms(dibs__tick_now(), by)) {
    struct pollfd end = {.fd = link->context->fd, .events = POLLIN};
    if (poll(&end, 1, (int)ms) > 0 && recv(end.fd, rest, sizeof rest, MSG_DONTWAIT) <= 0) return;
  }
}

void dibs__redis_notifier_close(struct dibs__redis *store) {
  struct dibs__redis_notifier *b = store->notifier;
  if (!b) return;
  hang_up(b->link);
  dibs__redis_disconnect(b->link);
  free_links(b->old);
  dibs__notifier_close(b->wake);
  dibs__mutex_destroy(&b->opening);
  dibs__mutex_destroy(&b->lock);
  free(b);
  store->notifier = NULL;
}

void dibs__redis_notifier_wake(struct dibs__redis *store) {
  dibs__notifier_raise(store->notifier->wake);
}

/* ---- Subscribing ---- */

static void add_incarnation(char channel[DIBS__REDIS_CHANNEL], const dibs__incarnation *incarnation) {
  size_t len = strlen(channel);
  channel[len++] = ':';
  for (size_t i = 0; i < sizeof incarnation->b; i++, len += 2)
    snprintf(channel + len, DIBS__REDIS_CHANNEL - len, "%02x", incarnation->b[i]);
}

static dibs__status subscribe(struct dibs__redis *store, dibs__tick by, struct dibs__redis_link **out,
                              struct dibs__result *result) {
  char channel[DIBS__REDIS_CHANNEL];
  struct dibs__redis_link *link = NULL;
  dibs__status status = dibs__redis_connect(store->location, 0, by, &link, result);
  if (status != DIBS_OK) return status;
  dibs__redis_channel(store->location, store->session, channel);
  if (store->is_node) add_incarnation(channel, &link->incarnation);
  const char *words[] = {"SUBSCRIBE", channel};
  const size_t lengths[] = {9, strlen(channel)};
  status = dibs__redis_put(link, 2, words, lengths) ? dibs__redis_go(link, by, result) : DIBS_NO_MEMORY;
  if (status == DIBS_UNKNOWN) status = DIBS_UNAVAILABLE;
  const redisReply *reply = status == DIBS_OK ? dibs__redis_reply(link, 0) : NULL;
  if (reply && reply->type != REDIS_REPLY_ARRAY)
    status = dibs__redis_refused(link, reply, "subscribe to a channel of", result);
  if (status == DIBS_OK)
    *out = link;
  else
    dibs__redis_disconnect(link);
  return status;
}

/* true: it differs from the one before. */
static bool saw_locked(struct dibs__redis_notifier *b, const dibs__incarnation *incarnation) {
  bool other = b->incarnation_known && memcmp(&b->incarnation, incarnation, sizeof *incarnation) != 0;
  b->incarnation = *incarnation;
  b->incarnation_known = true;
  b->new_incarnation = b->new_incarnation || other;
  return other;
}

/* One thread at a time: a thread that waited for the lock finds the link open. */
static dibs__status open_link(struct dibs__redis *store, dibs__tick by, struct dibs__result *result) {
  struct dibs__redis_notifier *b = store->notifier;
  struct dibs__redis_link *link = NULL;
  dibs__status status = DIBS_OK;
  dibs__mutex_lock(&b->opening);
  if (!atomic_load(&b->is_open)) status = subscribe(store, by, &link, result);
  if (link) {
    dibs__mutex_lock(&b->lock);
    if (b->link) {
      b->link->next = b->old;
      b->old = b->link;
    }
    b->link = link;
    b->recheck = b->recheck || b->was;
    b->was = true;
    (void)saw_locked(b, &link->incarnation); /* no thread has seen a later one */
    atomic_store(&b->is_open, true);
    dibs__mutex_unlock(&b->lock);
  }
  dibs__mutex_unlock(&b->opening);
  return status;
}

bool dibs__redis_notifier_is_open(const struct dibs__redis *store) {
  return atomic_load(&store->notifier->is_open);
}

dibs__status dibs__redis_notifier_ready(struct dibs__redis *store, dibs__tick by, struct dibs__result *result) {
  if (atomic_load(&store->notifier->is_open)) return DIBS_OK;
  dibs__status status = open_link(store, by, result);
  if (status == DIBS_OK) dibs__notifier_raise(store->notifier->wake); /* the thread in events() does not read it yet */
  return status;
}

void dibs__redis_notifier_incarnation(struct dibs__redis *store, const dibs__incarnation *incarnation) {
  struct dibs__redis_notifier *b = store->notifier;
  dibs__mutex_lock(&b->lock);
  bool other = saw_locked(b, incarnation);
  if (other) atomic_store(&b->is_open, false);
  dibs__mutex_unlock(&b->lock);
  if (other) dibs__notifier_raise(b->wake);
}

/* ---- Receiving ---- */

/* Any other content only makes the waiters check again. */
static void read_message(const redisReply *message, struct dibs__event *event) {
  const redisReply *text = message->type == REDIS_REPLY_ARRAY && message->elements == 3 ? message->element[2] : NULL;
  *event = (struct dibs__event){.what = DIBS__EV_RECHECK};
  if (!text || text->type != REDIS_REPLY_STRING || text->len != DIBS__REDIS_NOTICE_BYTES) return;
  event->what = DIBS__EV_OFFER;
  dibs__server_notice_read((const uint8_t *)text->str, event);
  if (event->fence.v != DIBS__REDIS_NOTICE_LOST) return;
  event->what = DIBS__EV_LOST;
  event->fence = DIBS__FENCE_NONE;
}

static size_t read_messages(struct dibs__redis_link *link, struct dibs__event *events, size_t cap) {
  size_t count = 0;
  const redisReply *message;
  while (count < cap && (message = dibs__redis_message(link))) read_message(message, &events[count++]);
  return count;
}

/* Takes the events that need no server; gives the link to read next. */
static struct dibs__redis_link *take_pending(struct dibs__redis_notifier *b, struct dibs__event *events, size_t cap,
                                             size_t *count) {
  dibs__mutex_lock(&b->lock);
  struct dibs__redis_link *link = b->link, *old = b->old;
  b->old = NULL;
  if (b->new_incarnation && *count < cap) {
    events[(*count)++] = (struct dibs__event){.what = DIBS__EV_NEW_INCARNATION};
    b->new_incarnation = false;
  }
  if (b->recheck && *count < cap) {
    events[(*count)++] = (struct dibs__event){.what = DIBS__EV_RECHECK};
    b->recheck = false;
  }
  dibs__mutex_unlock(&b->lock);
  free_links(old);
  return link;
}

/* The link is dead, unless another thread has already replaced it. */
static void drop_link(struct dibs__redis_notifier *b, struct dibs__redis_link *link) {
  dibs__mutex_lock(&b->lock);
  bool ours = b->link == link;
  if (ours) {
    b->link = NULL;
    atomic_store(&b->is_open, false);
  }
  dibs__mutex_unlock(&b->lock);
  if (ours) dibs__redis_disconnect(link);
}

/* Subscribes from the first call on.  Gives the time of the next try, unless the subscription is open. */
static dibs__tick ensure_subscribed(struct dibs__redis *store) {
  struct dibs__redis_notifier *b = store->notifier;
  if (atomic_load(&b->is_open)) {
    b->try_ms = TRY_MS;
    b->rest_ms = REST_MS;
    b->again = DIBS__TICK_ZERO;
    return DIBS__TICK_NEVER;
  }
  dibs__tick now = dibs__tick_now();
  if (dibs__tick_before(now, b->again)) return b->again;
  struct dibs__result result = {.text = ""};
  if (open_link(store, dibs__tick_add_ms(now, b->try_ms), &result) == DIBS_OK) return DIBS__TICK_ZERO;
  b->again = dibs__tick_add_ms(dibs__tick_now(), b->rest_ms);
  b->try_ms = b->try_ms * 2 > TRY_MAX_MS ? TRY_MAX_MS : b->try_ms * 2;
  b->rest_ms = b->rest_ms * 2 > REST_MAX_MS ? REST_MAX_MS : b->rest_ms * 2;
  return b->again;
}

void dibs__redis_notifier_step(struct dibs__redis *store, struct dibs__event *events, size_t cap, size_t *count,
                               dibs__tick *again, struct pollfd fds[2]) {
  struct dibs__redis_notifier *b = store->notifier;
  for (;;) {
    dibs__tick next = ensure_subscribed(store);
    size_t before = *count;
    struct dibs__redis_link *link = take_pending(b, events, cap, count);
    if (link) *count += read_messages(link, events + *count, cap - *count);
    bool dies = link && link->dead;
    if (dies) drop_link(b, link);
    if (*count == before && (dies || next.ns == DIBS__TICK_ZERO.ns)) continue;
    if (dies) link = NULL;
    if (next.ns != DIBS__TICK_ZERO.ns) *again = dibs__tick_min(*again, next);
    fds[0] = (struct pollfd){.fd = b->wake, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = link ? link->context->fd : -1, .events = POLLIN};
    return;
  }
}

int dibs__redis_notifier_fd(const struct dibs__redis *store) {
  return store->notifier->wake;
}

void dibs__redis_notifier_lower(struct dibs__redis *store) {
  dibs__notifier_lower(store->notifier->wake);
}

dibs__status dibs__redis_notifier_events(struct dibs__redis *store, struct dibs__event *events, size_t cap,
                                         size_t *count, dibs__tick by) {
  struct dibs__redis_notifier *b = store->notifier;
  *count = 0;
  for (;;) {
    struct pollfd fds[2];
    dibs__tick again = by;
    dibs__redis_notifier_step(store, events, cap, count, &again, fds);
    if (*count > 0) return DIBS_OK;
    int64_t left = dibs__tick_left_ms(dibs__tick_now(), again);
    int got = poll(fds, 2, left > INT_MAX ? -1 : (int)left);
    if (got < 0 && errno != EINTR) return DIBS_UNAVAILABLE;
    if (got > 0 && fds[0].revents) {
      dibs__notifier_lower(b->wake);
      (void)take_pending(b, events, cap, count);
      return DIBS_OK;
    }
    if (got == 0 && !dibs__tick_before(dibs__tick_now(), by)) return DIBS_OK;
  }
}

/* ---- The driver ---- */

enum {
  CAPS = DIBS__CAP_SHARED | DIBS__CAP_COUNTED | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT | DIBS__CAP_EVENTS |
         DIBS__CAP_PARALLEL | DIBS__CAP_OFFERS_LAST | DIBS__CAP_BLOCKS
};

/* The first session takes over the connection that open checked. */
struct store {
  struct dibs__redis redis; /* first */
  dibs__mutex lock;
  struct dibs__redis_link *spare; /* guarded by lock */
};

static void close_store(struct dibs__dstore *base) {
  struct store *store = (struct store *)base;
  dibs__redis_disconnect(store->spare);
  dibs__redis_cluster_close(&store->redis);
  dibs__redis_notifier_close(&store->redis);
  dibs__redis_location_free(store->redis.location);
  dibs__mutex_destroy(&store->lock);
  free(store);
}

static dibs__status open_store(const struct dibs__uri *uri, struct dibs__dstore *const inner[], size_t count,
                               dibs__tick by, struct dibs__dstore **out, struct dibs__result *result) {
  (void)inner;
  (void)count;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  struct store *store = calloc(1, sizeof *store);
  if (!store) return DIBS_NO_MEMORY;
  dibs__mutex_init(&store->lock);
  store->redis.as_tier = uri->as_tier;
  do dibs__random(&store->redis.session, sizeof store->redis.session);
  while (store->redis.session == 0);
  dibs__status status = dibs__redis_location(uri, &store->redis.location, result);
  if (status == DIBS_OK) status = dibs__redis_notifier_open(&store->redis);
  if (status == DIBS_OK && store->redis.location->cluster)
    status = dibs__redis_cluster_open(&store->redis, by, result);
  else if (status == DIBS_OK)
    status = dibs__redis_connect(store->redis.location, 0, by, &store->spare, result);
  if (store->spare) dibs__redis_notifier_incarnation(&store->redis, &store->spare->incarnation);
  if (status == DIBS_OK)
    *out = &store->redis.base;
  else
    close_store(&store->redis.base);
  return status;
}

/* An offer that the replicas lack may vanish before it is confirmed. */
static uint32_t caps_of(const struct dibs__redis *store) {
  return store->location->replicas ? (uint32_t)CAPS & ~(uint32_t)DIBS__CAP_OFFERS_LAST : (uint32_t)CAPS;
}

static dibs__status connect_link(struct store *store, struct dibs__redis_session *s, dibs__tick by,
                                 struct dibs__result *result) {
  dibs__mutex_lock(&store->lock);
  s->link = store->spare;
  store->spare = NULL;
  dibs__mutex_unlock(&store->lock);
  dibs__status status = DIBS_OK;
  if (!s->link) status = dibs__redis_connect(store->redis.location, 0, by, &s->link, result);
  if (status != DIBS_OK) return status;
  s->incarnation = s->link->incarnation;
  dibs__redis_notifier_incarnation(&store->redis, &s->incarnation);
  return DIBS_OK;
}

static dibs__status connect_session(struct dibs__dstore *base, dibs__tick by, struct dibs__session **out,
                                    struct dibs__identity *identity, struct dibs__result *result) {
  struct store *store = (struct store *)base;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  struct dibs__redis_session *s = calloc(1, sizeof *s);
  if (!s) return DIBS_NO_MEMORY;
  s->base.store = base;
  dibs__status status =
      store->redis.cluster ? dibs__redis_cluster_connect(s, by, result) : connect_link(store, s, by, result);
  if (status != DIBS_OK) {
    free(s);
    return status;
  }
  /* The partitions of an addition are on several nodes of a cluster, each with an incarnation of its own. */
  uint32_t shared = store->redis.cluster ? 0 : 1u << DIBS__FAM_SHARED;
  *identity = (struct dibs__identity){.mandate = {.epoch = 0, .incarnation = s->incarnation},
                                      .caps = caps_of(&store->redis),
                                      .families = 1u << DIBS__FAM_LEASE | 1u << DIBS__FAM_ANCHOR |
                                                  1u << DIBS__FAM_REPORT | 1u << DIBS__FAM_ENGINE | shared,
                                      .max_batch = DIBS__REDIS_BATCH,
                                      .max_sessions = store->redis.location->connections,
                                      .session = store->redis.session};
  if (!store->redis.as_tier) identity->mandate.epoch = 1;
  if (store->redis.cluster) identity->families &= ~(1u << DIBS__FAM_SHARED);
  *out = &s->base;
  return DIBS_OK;
}

static void disconnect_session(struct dibs__session *base) {
  struct dibs__redis_session *s = (struct dibs__redis_session *)base;
  dibs__redis_cluster_disconnect(s);
  dibs__redis_disconnect(s->link);
  dibs__redis_scratch_free(s->scratch);
  free(s);
}

static dibs__status redis_events(struct dibs__dstore *base, struct dibs__event *events, size_t cap, size_t *count,
                                 dibs__tick by) {
  struct dibs__redis *store = (struct dibs__redis *)base;
  return store->cluster ? dibs__redis_cluster_events(store, events, cap, count, by)
                        : dibs__redis_notifier_events(store, events, cap, count, by);
}

static void redis_wake(struct dibs__dstore *base) {
  dibs__redis_notifier_wake((struct dibs__redis *)base);
}

static const char *const schemes[] = {"redis", "rediss", NULL};

const struct dibs__driver dibs__redis_driver = {.size = sizeof(struct dibs__driver),
                                                .abi = DIBS__DRIVER_ABI,
                                                .name = "redis",
                                                .schemes = schemes,
                                                .open = open_store,
                                                .close = close_store,
                                                .connect = connect_session,
                                                .disconnect = disconnect_session,
                                                .run = dibs__redis_run,
                                                .events = redis_events,
                                                .wake = redis_wake,
                                                .list = dibs__redis_list};

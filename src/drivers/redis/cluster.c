/* SPDX-License-Identifier: MIT */
/*
 * A batch over the nodes of a cluster.
 *
 * In each round the operations that have no answer yet go to the nodes that have their buckets, all nodes at once.  A
 * node that does not do them, because a slot is elsewhere, is being moved, or nobody serves it, leaves them for the
 * next round, which follows a newer map, or a short pause.  Nothing was done, so that they may go anywhere; an
 * operation whose answer is missing is UNKNOWN, and ends here.
 *
 * The operations of one name have one bucket and stay in their order: in a round those of a bucket are in one call of a
 * script, which does or refuses all of them.  What does not fit into the call has its turn in the next round.  A call
 * may have several buckets of the node; a bucket that was refused beside others goes again in a call of its own, whose
 * answer says why.
 *
 * A node that cannot be reached does not delay the others: it is left alone for a while, and its operations are
 * UNAVAILABLE.
 */
#include "drivers/redis/cluster.h"
#include "drivers/redis/wire.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* PATIENCE_MS: how long a batch waits for slots that are moved; READS_MS: reads.  NODE_MS: how long a node may take to
 * connect, while other operations wait. */
enum { PATIENCE_MS = 500, READS_MS = 3000, NAP_MS = 5, NODE_MS = 1000, NONE = UINT16_MAX, END = UINT16_MAX };

/* ---- Sessions ---- */

dibs__status dibs__redis_cluster_open(struct dibs__redis *store, dibs__tick by, struct dibs__result *result) {
  return dibs__redis_map_open(store, by, result);
}

void dibs__redis_cluster_close(struct dibs__redis *store) {
  dibs__redis_map_close(store);
}

/* Which node answers first shows whether the cluster can be reached; the others are connected when they are needed. */
dibs__status dibs__redis_cluster_connect(struct dibs__redis_session *session, dibs__tick by,
                                         struct dibs__result *result) {
  struct dibs__redis *store = (struct dibs__redis *)session->base.store;
  uint16_t of[DIBS__REDIS_PLACES];
  uint64_t version = dibs__redis_map_copy(store, of);
  bool known = false;
  for (size_t i = 0; i < DIBS__REDIS_PLACES; i++) known = known || of[i] != NONE;
  return known ? DIBS_OK : dibs__redis_map_read(store, version, by, result);
}

static void free_node_session(struct dibs__redis_session *s) {
  if (!s) return;
  dibs__redis_disconnect(s->link);
  dibs__redis_scratch_free(s->scratch);
  free(s);
}

void dibs__redis_cluster_disconnect(struct dibs__redis_session *session) {
  for (size_t i = 0; i < session->node_count; i++) free_node_session(session->nodes[i]);
  free(session->nodes);
}

static struct dibs__redis_session *node_session(struct dibs__redis_session *session, uint16_t number) {
  if (number >= session->node_count) {
    size_t count = (size_t)number + 4;
    struct dibs__redis_session **wider = realloc(session->nodes, count * sizeof *wider);
    if (!wider) return NULL;
    memset(wider + session->node_count, 0, (count - session->node_count) * sizeof *wider);
    session->nodes = wider;
    session->node_count = count;
  }
  if (!session->nodes[number]) session->nodes[number] = calloc(1, sizeof **session->nodes);
  return session->nodes[number];
}

struct dibs__redis_session *dibs__redis_cluster_at(struct dibs__redis_session *session, uint16_t number, dibs__tick by,
                                                   struct dibs__result *result) {
  struct dibs__redis *store = (struct dibs__redis *)session->base.store;
  struct dibs__redis_node *node = dibs__redis_map_node(store, number);
  if (!node) {
    dibs__set_message(result, "%s: the cluster has no master for a slot (redis-cli --cluster check)",
                      store->location->shown);
    return NULL;
  }
  struct dibs__redis_session *s = node_session(session, number);
  if (!s) return NULL;
  s->base.store = &node->redis.base;
  /* A node that was restarted, or that closes idle connections, is no failure for the next caller: as dibs__redis_go.
   */
  if (s->link && !s->link->dead && (s->link->put > 0 || dibs__redis_still_open(s->link))) return s;
  dibs__redis_disconnect(s->link);
  s->link = NULL;
  if (!dibs__redis_map_may_try(store, node)) {
    dibs__set_message(result, "%s cannot be reached", node->redis.location->shown);
    return NULL;
  }
  dibs__tick now = dibs__tick_now();
  int64_t share = dibs__tick_left_ms(now, by) / 3; /* the rest is for the other nodes */
  dibs__tick soon = dibs__tick_add_ms(now, share < NODE_MS ? share : NODE_MS);
  struct dibs__result own = {.text = ""};
  dibs__status status = dibs__redis_connect(node->redis.location, 0, soon, &s->link, &own);
  dibs__redis_map_learn(store, node, status != DIBS_OK);
  if (status != DIBS_OK) {
    dibs__set_message(result, "%s", own.text);
    return NULL;
  }
  s->incarnation = s->link->incarnation;
  dibs__redis_notifier_incarnation(&node->redis, &s->incarnation);
  return s;
}

/* ---- A round ---- */

/* The operations of a round, by node, and of a node by place. */
struct part {
  uint16_t number;
  size_t first, count;
  struct dibs__redis_session *at;
};

struct batch {
  struct dibs__redis_session *session;
  dibs__tick by;
  struct dibs__op *pending[DIBS__REDIS_BATCH];
  size_t count;
  struct part parts[DIBS__REDIS_PLACES];
  size_t part_count;
  size_t sent;      /* so many of `sorted` are in parts; the others have their turn later */
  uint64_t version; /* of the map that the round followed */
  bool subscribed;  /* some are sent again because a subscription is open now */
  bool moving;      /* a node refused some because of their slots */
  bool beside;      /* a node refused some beside those of another bucket: each bucket has a call of its own now */
  struct dibs__op *sorted[DIBS__REDIS_BATCH];
};

/* Appends the operations of a place, up to a call; `next` links them.  Returns the first that does not fit.
 */
static uint16_t add_place(struct batch *b, const uint16_t next[], uint16_t first, size_t *at) {
  uint16_t i = first;
  for (size_t n = 0; i != END && n < DIBS__REDIS_CALL; n++, i = next[i]) b->sorted[(*at)++] = b->pending[i];
  return i;
}

/* Stable: the operations of a place keep their order. */
static void sort_pending(struct batch *b) {
  uint16_t of[DIBS__REDIS_PLACES], first[DIBS__REDIS_PLACES], last[DIBS__REDIS_PLACES] = {0}, next[DIBS__REDIS_BATCH];
  bool added[DIBS__REDIS_PLACES] = {false};
  b->version = dibs__redis_map_copy((struct dibs__redis *)b->session->base.store, of);
  for (size_t p = 0; p < DIBS__REDIS_PLACES; p++) first[p] = END;
  for (size_t i = 0; i < b->count; i++) {
    size_t p = dibs__redis_place(b->pending[i]);
    if (p >= DIBS__REDIS_PLACES) p = 0; /* it is invalid wherever it goes */
    next[i] = END;
    if (first[p] == END)
      first[p] = (uint16_t)i;
    else
      next[last[p]] = (uint16_t)i;
    last[p] = (uint16_t)i;
  }
  size_t at = 0;
  b->part_count = 0;
  for (size_t p = 0; p < DIBS__REDIS_PLACES; p++) {
    if (first[p] == END || added[p]) continue;
    struct part *part = &b->parts[b->part_count++];
    *part = (struct part){.number = of[p], .first = at};
    for (size_t q = p; q < DIBS__REDIS_PLACES; q++) {
      if (first[q] == END || added[q] || of[q] != part->number) continue;
      first[q] = add_place(b, next, first[q], &at);
      added[q] = true;
    }
    part->count = at - part->first;
  }
  b->sent = at;
  for (size_t p = 0; p < DIBS__REDIS_PLACES; p++)
    for (uint16_t i = first[p]; i != END; i = next[i]) b->sorted[at++] = b->pending[i];
  assert(at == b->count);
}

/* Nothing was done: what has no answer goes to the next round. */
static void leave_for_later(struct batch *b, const struct part *part) {
  for (size_t i = part->first; i < part->first + part->count; i++)
    if (b->sorted[i]->status == DIBS_UNKNOWN) b->sorted[i]->status = DIBS__REDIS_REDIRECTED;
}

static void put_parts(struct batch *b, struct dibs__redis_link *links[], struct dibs__result *result) {
  for (size_t i = 0; i < b->part_count; i++) {
    struct part *part = &b->parts[i];
    links[i] = NULL;
    part->at = dibs__redis_cluster_at(b->session, part->number, b->by, result);
    if (!part->at) {
      leave_for_later(b, part);
      continue;
    }
    part->at->redirected = part->at->beside = false;
    if (!dibs__redis_begin(part->at, part->count) ||
        !dibs__redis_put_operations(part->at, b->sorted + part->first, part->count, b->by, result)) {
      dibs__redis_drop(part->at->link);
      dibs__set_message(result, "out of memory for a request to %s", part->at->link->location->shown);
      for (size_t k = part->first; k < part->first + part->count; k++) b->sorted[k]->status = DIBS_UNAVAILABLE;
      part->at = NULL;
      continue;
    }
    if (part->at->link->put) links[i] = part->at->link;
  }
}

/* A waiter is queued only where it can be notified: those that would wait are sent again after the subscription. */
static void subscribe_for(struct batch *b, const struct part *part, struct dibs__result *result) {
  struct dibs__redis *store = (struct dibs__redis *)part->at->base.store;
  dibs__status status = DIBS_UNKNOWN;
  for (size_t i = part->first; i < part->first + part->count && !part->at->subscribed; i++) {
    if (!dibs__redis_would_queue(b->sorted[i])) continue;
    if (status == DIBS_UNKNOWN) status = dibs__redis_ensure_subscribed(store, b->by, result);
    b->sorted[i]->status = status == DIBS_OK ? DIBS__REDIS_REDIRECTED : status;
    b->subscribed = b->subscribed || status == DIBS_OK;
  }
}

static void take_part(struct batch *b, const struct part *part, dibs__status status, struct dibs__result *result) {
  struct dibs__redis_node *node = (struct dibs__redis_node *)part->at->base.store;
  bool late = part->at->link->at == DIBS__REDIS_LATE;
  if (status == DIBS_UNAVAILABLE) {
    leave_for_later(b, part);
  } else {
    dibs__redis_take(part->at, result);
    b->moving = b->moving || part->at->redirected;
    b->beside = b->beside || part->at->beside;
    subscribe_for(b, part, result);
  }
  if (!part->at->link->dead) return;
  dibs__redis_disconnect(part->at->link);
  part->at->link = NULL;
  /* A node that hangs would take the whole deadline of every batch. */
  if (late) dibs__redis_map_learn(node->redis.whole, node, true);
}

/* Sets b->pending to the operations that go to the next round. */
static void run_round(struct batch *b, struct dibs__result *result) {
  struct dibs__redis_link *links[DIBS__REDIS_PLACES];
  dibs__status statuses[DIBS__REDIS_PLACES];
  struct dibs__result sent = {.text = ""};
  b->moving = b->beside = false;
  for (size_t i = 0; i < b->count; i++) b->pending[i]->status = DIBS_UNKNOWN;
  sort_pending(b);
  for (size_t i = b->sent; i < b->count; i++) b->sorted[i]->status = DIBS__REDIS_REDIRECTED;
  b->subscribed = false;
  put_parts(b, links, result);
  dibs__redis_go_all(links, b->part_count, b->by, statuses, &sent);
  if (sent.text[0]) dibs__set_message(result, "%s", sent.text);
  for (size_t i = 0; i < b->part_count; i++)
    if (links[i]) take_part(b, &b->parts[i], statuses[i], result);
  size_t left = 0, all = b->count;
  for (size_t i = 0; i < all; i++)
    if (b->sorted[i]->status == DIBS__REDIS_REDIRECTED) b->pending[left++] = b->sorted[i];
  b->count = left;
}

/* Reads the slots again if the map is still of that version.  true: it has changed. */
static bool map_is_newer(struct dibs__redis *store, uint64_t version, dibs__tick by) {
  struct dibs__redis_cluster *c = store->cluster;
  struct dibs__result aside = {.text = ""};
  uint16_t of[DIBS__REDIS_PLACES];
  dibs__mutex_lock(&c->lock);
  dibs__tick next = c->read_again;
  dibs__mutex_unlock(&c->lock);
  dibs__tick now = dibs__tick_now();
  if (dibs__redis_map_copy(store, of) != version) return true;
  if (dibs__tick_before(now, next)) return false;
  dibs__tick until = dibs__tick_min(by, dibs__tick_add_ms(now, NODE_MS));
  (void)dibs__redis_map_read(store, version, until, &aside);
  return dibs__redis_map_copy(store, of) != version;
}

static void run_batch(struct batch *b, struct dibs__result *result) {
  struct dibs__redis *store = (struct dibs__redis *)b->session->base.store;
  dibs__tick patient = dibs__tick_min(b->by, dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS));
  for (;;) {
    struct dibs__result latest = {.text = ""};
    size_t before = b->count;
    run_round(b, &latest);
    result->commits += latest.commits;
    if (latest.now.ms) result->now = latest.now;
    if (latest.text[0] || b->count == 0) memcpy(result->text, latest.text, sizeof result->text);
    dibs__tick now = dibs__tick_now();
    if (b->count == 0 || !dibs__tick_before(now, b->by)) break;
    if (b->subscribed || b->beside || (b->sent < before && b->count < before)) continue; /* those that did not fit */
    if (!dibs__tick_before(now, patient)) break;
    if (map_is_newer(store, b->version, b->by)) continue;
    if (!b->moving) break; /* their node cannot be reached, and no other one has their slots */
    dibs__nap_ms(NAP_MS);
  }
  for (size_t i = 0; i < b->count; i++) b->pending[i]->status = DIBS_UNAVAILABLE;
}

dibs__status dibs__redis_cluster_run(struct dibs__redis_session *session, struct dibs__op *const ops[], size_t count,
                                     dibs__tick by, struct dibs__result *result) {
  struct batch b = {.session = session, .by = by};
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  for (size_t at = 0; at < count; at += b.count) {
    size_t some = count - at < DIBS__REDIS_BATCH ? count - at : DIBS__REDIS_BATCH;
    b.count = some;
    memcpy(b.pending, ops + at, some * sizeof *b.pending);
    run_batch(&b, result);
    b.count = some;
  }
  return dibs__redis_status_of_batch(ops, count, true);
}

/* ---- Reads ---- */

struct reading {
  struct dibs__redis_session *session;
  const size_t *places;
  size_t count, each;
  dibs__redis_put_for *put;
  void *user;
  const redisReply **replies;
  dibs__tick by;
  uint64_t version;
  struct dibs__redis_session *at[DIBS__REDIS_PLACES]; /* of each place */
  size_t first[DIBS__REDIS_PLACES];                   /* its first reply there */
};

static dibs__status put_reads(struct reading *r, struct dibs__redis_link *links[], size_t *link_count,
                              struct dibs__result *result) {
  uint16_t of[DIBS__REDIS_PLACES];
  dibs__status status = DIBS_OK;
  *link_count = 0;
  r->version = dibs__redis_map_copy((struct dibs__redis *)r->session->base.store, of);
  for (size_t i = 0; i < r->count && status == DIBS_OK; i++) {
    struct dibs__redis_session *at = r->at[i] = dibs__redis_cluster_at(r->session, of[r->places[i]], r->by, result);
    if (!at) {
      status = DIBS_UNAVAILABLE;
      break;
    }
    if (at->link->put == 0) links[(*link_count)++] = at->link;
    r->first[i] = at->link->put;
    if (!r->put(r->user, at->link, i)) status = DIBS_NO_MEMORY;
  }
  for (size_t i = 0; i < *link_count && status != DIBS_OK; i++) dibs__redis_drop(links[i]);
  return status;
}

/* OK: all replies are there, and none is a redirection. */
static dibs__status read_once(struct reading *r, struct dibs__result *result) {
  struct dibs__redis_link *links[DIBS__REDIS_PLACES] = {NULL};
  dibs__status answers[DIBS__REDIS_PLACES];
  size_t count;
  dibs__status status = put_reads(r, links, &count, result);
  if (status != DIBS_OK) return status;
  dibs__redis_go_all(links, count, r->by, answers, result);
  result->dead = false;
  for (size_t i = 0; i < r->count; i++) {
    for (size_t k = 0; k < r->each; k++) {
      const redisReply *reply = dibs__redis_reply(r->at[i]->link, r->first[i] + k);
      struct dibs__redis_node *node = (struct dibs__redis_node *)r->at[i]->base.store;
      r->replies[i * r->each + k] = reply;
      if (reply && !dibs__redis_is_redirection(reply)) continue;
      status = DIBS_UNAVAILABLE;
      if (!reply) continue;
      dibs__set_message(result, "%s: %.150s", node->redis.location->shown, reply->str);
      if (strncmp(reply->str, "MOVED ", 6) == 0) dibs__redis_map_moved(node->redis.whole, reply->str, node);
    }
  }
  return status;
}

dibs__status dibs__redis_cluster_read(struct dibs__redis_session *session, const size_t places[], size_t count,
                                      size_t each, dibs__redis_put_for *put, void *user, const redisReply *replies[],
                                      dibs__tick by, struct dibs__result *result) {
  struct dibs__redis *store = (struct dibs__redis *)session->base.store;
  dibs__tick patient = dibs__tick_min(by, dibs__tick_add_ms(dibs__tick_now(), READS_MS));
  struct reading r = {session, places, count, each, put, user, replies, .by = by};
  for (;;) {
    result->text[0] = '\0';
    dibs__status status = read_once(&r, result);
    if (status != DIBS_UNAVAILABLE || !dibs__tick_before(dibs__tick_now(), patient)) return status;
    if (!map_is_newer(store, r.version, by)) dibs__nap_ms(NAP_MS);
  }
}

/* ---- Events ---- */

/* The nodes that have a bucket. */
static size_t find_masters(struct dibs__redis *store, struct dibs__redis *masters[DIBS__REDIS_PLACES]) {
  uint16_t of[DIBS__REDIS_PLACES];
  size_t count = 0;
  (void)dibs__redis_map_copy(store, of);
  for (size_t i = 0; i < DIBS__REDIS_PLACES; i++) {
    bool seen = of[i] == NONE;
    for (size_t k = 0; k < i && !seen; k++) seen = of[k] == of[i];
    if (!seen) masters[count++] = &dibs__redis_map_node(store, of[i])->redis;
  }
  return count;
}

dibs__status dibs__redis_cluster_events(struct dibs__redis *store, struct dibs__event *events, size_t cap,
                                        size_t *count, dibs__tick by) {
  *count = 0;
  for (;;) {
    struct dibs__redis *masters[DIBS__REDIS_PLACES];
    struct pollfd fds[2 * DIBS__REDIS_PLACES + 2];
    dibs__tick again = by;
    size_t some = find_masters(store, masters);
    for (size_t i = 0; i < some; i++) dibs__redis_notifier_step(masters[i], events, cap, count, &again, fds + 2 * i);
    if (*count > 0) return DIBS_OK;
    fds[2 * some] = (struct pollfd){.fd = dibs__redis_notifier_fd(store), .events = POLLIN};
    fds[2 * some + 1] = (struct pollfd){.fd = store->cluster->changed, .events = POLLIN};
    int64_t left = dibs__tick_left_ms(dibs__tick_now(), again);
    int got = poll(fds, 2 * some + 2, left > INT_MAX ? -1 : (int)left);
    if (got < 0 && errno != EINTR) return DIBS_UNAVAILABLE;
    if (got > 0 && fds[2 * some].revents) {
      dibs__redis_notifier_lower(store);
      return DIBS_OK;
    }
    /* There is another subscription or another node to listen to. */
    if (got > 0 && fds[2 * some + 1].revents) dibs__notifier_lower(store->cluster->changed);
    for (size_t i = 0; i < some && got > 0; i++)
      if (fds[2 * i].revents) dibs__redis_notifier_lower(masters[i]);
    if (got == 0 && !dibs__tick_before(dibs__tick_now(), by)) return DIBS_OK;
  }
}

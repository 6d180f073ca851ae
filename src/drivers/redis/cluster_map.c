/* SPDX-License-Identifier: MIT */
/*
 * Which node of the cluster has which bucket.
 *
 * Any node knows the slots (CLUSTER SLOTS); what it says may be old, or it may be cut off from the others.  A wrong map
 * does no harm: a node that does not have a slot answers MOVED, with the node that has it, and a node that is gone
 * cannot be reached; then the slots are read again, from another node.
 */
#include "drivers/redis/cluster.h"
#include "drivers/redis/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The shortest time that a node gets to answer, and how long a node that failed is left alone; the pause doubles. */
enum { SHARE_MS = 100, PAUSE_MS = 50, PAUSE_MAX_MS = 1600, NONE = UINT16_MAX };
/* How long the slots are not read again, after they were read, and after no node answered. */
enum { READ_MS = 200, FAILED_MS = 1000 };

typedef struct dibs__redis_cluster cluster_t;

/* XMODEM's CRC16, as Redis Cluster has it. */
static uint16_t crc16(const char *text) {
  uint32_t crc = 0;
  for (; *text; text++) {
    crc ^= (uint32_t)(uint8_t)*text << 8;
    for (int bit = 0; bit < 8; bit++) crc = crc & 0x8000 ? crc << 1 ^ 0x1021 : crc << 1;
  }
  return (uint16_t)crc;
}

uint16_t dibs__redis_slot(size_t place) {
  enum { SLOTS = 16384 };
  char tag[16] = "reports";
  if (place != DIBS__REDIS_REPORTS) snprintf(tag, sizeof tag, "%u", (unsigned)place);
  return crc16(tag) % SLOTS;
}

/* ---- Nodes ---- */

static struct dibs__redis_node *make_node(struct dibs__redis *store, const struct dibs__redis_address *address) {
  struct dibs__redis_node *node = calloc(1, sizeof *node);
  if (!node) return NULL;
  node->redis.base = store->base;
  node->redis.as_tier = store->as_tier;
  node->redis.session = store->session;
  node->redis.is_node = true;
  node->redis.whole = store;
  node->redis.location = dibs__redis_location_of_node(store->location, address);
  if (node->redis.location && dibs__redis_notifier_open(&node->redis) == DIBS_OK) return node;
  free(node->redis.location);
  free(node);
  return NULL;
}

/* The number of the node with that address, which may be new.  NONE: no memory, or too many. */
static uint16_t number_of_locked(struct dibs__redis *store, const struct dibs__redis_address *address) {
  cluster_t *c = store->cluster;
  for (size_t i = 0; i < c->count; i++) {
    const struct dibs__redis_address *known = &c->nodes[i]->redis.location->hosts[0];
    if (known->port == address->port && strcmp(known->host, address->host) == 0) return (uint16_t)i;
  }
  if (c->count == DIBS__REDIS_NODES) return NONE;
  struct dibs__redis_node *node = make_node(store, address);
  if (!node) return NONE;
  c->nodes[c->count] = node;
  return (uint16_t)c->count++;
}

struct dibs__redis_node *dibs__redis_map_node(struct dibs__redis *store, uint16_t number) {
  cluster_t *c = store->cluster;
  dibs__mutex_lock(&c->lock);
  struct dibs__redis_node *node = number < c->count ? c->nodes[number] : NULL;
  dibs__mutex_unlock(&c->lock);
  return node;
}

bool dibs__redis_map_may_try(struct dibs__redis *store, struct dibs__redis_node *node) {
  dibs__tick now = dibs__tick_now();
  dibs__mutex_lock(&store->cluster->lock);
  bool may = !dibs__tick_before(now, node->retry_at);
  dibs__mutex_unlock(&store->cluster->lock);
  return may;
}

void dibs__redis_map_learn(struct dibs__redis *store, struct dibs__redis_node *node, bool failed) {
  dibs__tick now = dibs__tick_now();
  dibs__mutex_lock(&store->cluster->lock);
  int64_t pause_ms = PAUSE_MS;
  for (uint32_t i = 0; i < node->failures && pause_ms < PAUSE_MAX_MS; i++) pause_ms *= 2;
  node->failures = failed ? node->failures + 1 : 0;
  node->retry_at = failed ? dibs__tick_add_ms(now, pause_ms) : DIBS__TICK_ZERO;
  dibs__mutex_unlock(&store->cluster->lock);
}

/* ---- The map ---- */

uint64_t dibs__redis_map_copy(struct dibs__redis *store, uint16_t of[DIBS__REDIS_PLACES]) {
  cluster_t *c = store->cluster;
  dibs__mutex_lock(&c->lock);
  memcpy(of, c->of, sizeof c->of);
  uint64_t version = c->version;
  dibs__mutex_unlock(&c->lock);
  return version;
}

/* "127.0.0.1:7001", "::1:7001", "host:7001@17001"; without a host it is `from`'s. */
static bool read_address(const char *text, size_t len, const struct dibs__redis_address *from,
                         struct dibs__redis_address *address) {
  size_t end = len;
  while (end > 0 && text[end - 1] != ':') end--;
  if (end == 0 || end > sizeof address->host) return false;
  unsigned long port = strtoul(text + end, NULL, 10);
  if (port == 0 || port > UINT16_MAX) return false;
  *address = *from;
  address->port = (uint16_t)port;
  if (end > 1) snprintf(address->host, sizeof address->host, "%.*s", (int)(end - 1), text);
  return address->host[0] != '?';
}

void dibs__redis_map_moved(struct dibs__redis *store, const char *words, const struct dibs__redis_node *from) {
  char *rest = NULL;
  unsigned long slot = strtoul(words + strlen("MOVED "), &rest, 10);
  struct dibs__redis_address address;
  size_t len = rest && *rest == ' ' ? strcspn(rest + 1, " \r\n") : 0;
  if (len == 0 || !read_address(rest + 1, len, &from->redis.location->hosts[0], &address)) return;
  cluster_t *c = store->cluster;
  bool changed = false;
  dibs__mutex_lock(&c->lock);
  uint16_t number = number_of_locked(store, &address);
  for (size_t i = 0; i < DIBS__REDIS_PLACES && number != NONE; i++) {
    if (dibs__redis_slot(i) != slot || c->of[i] == number) continue;
    c->of[i] = number;
    changed = true;
  }
  c->version += changed;
  dibs__mutex_unlock(&c->lock);
  if (changed) dibs__notifier_raise(c->changed);
}

/* One range of CLUSTER SLOTS: its first and last slot, then its master, then its replicas. */
static bool read_range(const redisReply *range, const struct dibs__redis_address *from, unsigned long slots[2],
                       struct dibs__redis_address *address) {
  if (range->type != REDIS_REPLY_ARRAY || range->elements < 3) return false;
  const redisReply *master = range->element[2];
  for (int i = 0; i < 2; i++) {
    if (range->element[i]->type != REDIS_REPLY_INTEGER) return false;
    slots[i] = (unsigned long)range->element[i]->integer;
  }
  if (master->type != REDIS_REPLY_ARRAY || master->elements < 2) return false;
  const redisReply *host = master->element[0], *port = master->element[1];
  bool named = host->type == REDIS_REPLY_STRING && host->len > 0;
  if (port->type != REDIS_REPLY_INTEGER || port->integer <= 0 || port->integer > UINT16_MAX) return false;
  *address = *from;
  address->port = (uint16_t)port->integer;
  if (named) snprintf(address->host, sizeof address->host, "%s", host->str);
  return address->host[0] != '?';
}

/* false: no slot of ours has a master. */
static bool adopt_slots(struct dibs__redis *store, const redisReply *ranges, const struct dibs__redis_address *from) {
  cluster_t *c = store->cluster;
  bool any = false, changed = false;
  uint16_t ours[DIBS__REDIS_PLACES];
  for (size_t k = 0; k < DIBS__REDIS_PLACES; k++) ours[k] = dibs__redis_slot(k);
  dibs__mutex_lock(&c->lock);
  for (size_t i = 0; i < ranges->elements; i++) {
    unsigned long slots[2];
    struct dibs__redis_address address;
    uint16_t number = NONE;
    if (!read_range(ranges->element[i], from, slots, &address)) continue;
    for (size_t k = 0; k < DIBS__REDIS_PLACES; k++) {
      if (ours[k] < slots[0] || ours[k] > slots[1]) continue;
      if (number == NONE) number = number_of_locked(store, &address);
      if (number == NONE) break;
      any = true;
      changed = changed || c->of[k] != number;
      c->of[k] = number;
    }
  }
  c->version += changed;
  dibs__mutex_unlock(&c->lock);
  if (changed) dibs__notifier_raise(c->changed);
  return any;
}

/* ---- Reading the slots ---- */

static dibs__status read_from(struct dibs__redis *store, const struct dibs__redis_address *address, dibs__tick by,
                              struct dibs__result *result) {
  static const char *const words[] = {"CLUSTER", "SLOTS"};
  static const size_t lengths[] = {7, 5};
  struct dibs__redis_location *location = dibs__redis_location_of_node(store->location, address);
  struct dibs__redis_link *link = NULL;
  if (!location) return DIBS_NO_MEMORY;
  location->any_role = true;
  dibs__status status = dibs__redis_connect(location, 0, by, &link, result);
  if (status == DIBS_OK)
    status = dibs__redis_put(link, 2, words, lengths) ? dibs__redis_go(link, by, result) : DIBS_NO_MEMORY;
  const redisReply *reply = status == DIBS_OK ? dibs__redis_reply(link, 0) : NULL;
  if (status == DIBS_UNKNOWN) status = DIBS_UNAVAILABLE;
  if (reply && reply->type != REDIS_REPLY_ARRAY) {
    status = dibs__redis_refused(link, reply, "read the slots of", result);
  } else if (reply && !adopt_slots(store, reply, address)) {
    dibs__set_message(result, "%s: the cluster has no master for the slots of dibs (redis-cli --cluster check)",
                      location->shown);
    status = DIBS_UNAVAILABLE;
  }
  dibs__redis_disconnect(link);
  free(location);
  return status;
}

static bool failed_just_now_locked(const cluster_t *c, const struct dibs__redis_address *address, dibs__tick now) {
  for (size_t i = 0; i < c->count; i++) {
    const struct dibs__redis_address *known = &c->nodes[i]->redis.location->hosts[0];
    if (known->port == address->port && strcmp(known->host, address->host) == 0)
      return dibs__tick_before(now, c->nodes[i]->retry_at);
  }
  return false;
}

/* The nodes that have a bucket, then those of the URI, which are there when all addresses have changed. */
static size_t find_sources(struct dibs__redis *store, struct dibs__redis_address *sources, size_t cap) {
  cluster_t *c = store->cluster;
  uint16_t of[DIBS__REDIS_PLACES];
  size_t count = 0;
  bool seen[DIBS__REDIS_NODES] = {false};
  (void)dibs__redis_map_copy(store, of);
  dibs__mutex_lock(&c->lock);
  dibs__tick now = dibs__tick_now();
  for (size_t i = 0; i < DIBS__REDIS_PLACES && count < cap; i++) {
    if (of[i] >= c->count || seen[of[i]]) continue;
    seen[of[i]] = true;
    if (dibs__tick_before(now, c->nodes[of[i]]->retry_at)) continue; /* it failed just now */
    sources[count++] = c->nodes[of[i]]->redis.location->hosts[0];
  }
  for (int all = 0; all < 2 && (!all || count == 0); all++)
    for (size_t i = 0; i < store->location->host_count && count < cap; i++)
      if (all || !failed_just_now_locked(c, &store->location->hosts[i], now))
        sources[count++] = store->location->hosts[i];
  dibs__mutex_unlock(&c->lock);
  return count;
}

static dibs__status read_from_any(struct dibs__redis *store, dibs__tick by, struct dibs__result *result) {
  enum { SOURCES = DIBS__REDIS_HOSTS + 16 };
  struct dibs__redis_address *sources = malloc(SOURCES * sizeof *sources);
  if (!sources) return DIBS_NO_MEMORY;
  size_t count = find_sources(store, sources, SOURCES);
  uint32_t first;
  dibs__random(&first, sizeof first);
  dibs__status worst = DIBS_UNAVAILABLE;
  for (size_t i = 0; i < count; i++) {
    struct dibs__result latest = {.text = ""};
    dibs__tick now = dibs__tick_now();
    int64_t left = dibs__tick_left_ms(now, by), share = left / (int64_t)(count - i);
    if (i > 0 && left == 0) break;
    dibs__tick until = dibs__tick_min(by, dibs__tick_add_ms(now, share > SHARE_MS ? share : SHARE_MS));
    dibs__status status = read_from(store, &sources[(first + i) % count], until, &latest);
    if (status == DIBS_OK) {
      free(sources);
      return DIBS_OK;
    }
    if (i > 0 && (worst != DIBS_UNAVAILABLE || status == DIBS_UNAVAILABLE)) continue;
    worst = status; /* a refusal says more than a node that cannot be reached */
    dibs__set_message(result, "%s", latest.text);
  }
  free(sources);
  return worst;
}

dibs__status dibs__redis_map_read(struct dibs__redis *store, uint64_t version, dibs__tick by,
                                  struct dibs__result *result) {
  cluster_t *c = store->cluster;
  dibs__mutex_lock(&c->reading);
  dibs__mutex_lock(&c->lock);
  bool changed = c->version != version;
  dibs__mutex_unlock(&c->lock);
  dibs__status status = changed ? DIBS_OK : read_from_any(store, by, result);
  dibs__mutex_lock(&c->lock);
  if (!changed) c->read_again = dibs__tick_add_ms(dibs__tick_now(), status == DIBS_OK ? READ_MS : FAILED_MS);
  dibs__mutex_unlock(&c->lock);
  dibs__mutex_unlock(&c->reading);
  return status;
}

dibs__status dibs__redis_map_open(struct dibs__redis *store, dibs__tick by, struct dibs__result *result) {
  cluster_t *c = calloc(1, sizeof *c);
  if (!c) return DIBS_NO_MEMORY;
  c->changed = dibs__notifier_open();
  if (c->changed < 0) {
    free(c);
    return DIBS_UNAVAILABLE;
  }
  dibs__mutex_init(&c->reading);
  dibs__mutex_init(&c->lock);
  for (size_t i = 0; i < DIBS__REDIS_PLACES; i++) c->of[i] = NONE;
  store->cluster = c;
  return dibs__redis_map_read(store, 0, by, result);
}

void dibs__redis_map_close(struct dibs__redis *store) {
  cluster_t *c = store->cluster;
  if (!c) return;
  for (size_t i = 0; i < c->count; i++) {
    dibs__redis_notifier_close(&c->nodes[i]->redis);
    free(c->nodes[i]->redis.location);
    free(c->nodes[i]);
  }
  dibs__notifier_close(c->changed);
  dibs__mutex_destroy(&c->reading);
  dibs__mutex_destroy(&c->lock);
  free(c);
  store->cluster = NULL;
}

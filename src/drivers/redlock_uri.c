/* SPDX-License-Identifier: MIT */
/*
 *   redlock://[user[:password]@]host1[:port],host2[:port],host3[:port][,...][/database][?parameter=value&...]
 *
 *   node_timeout=MS     how long a node may take to answer (500)
 *   max_ttl=MS          no lease may be longer; a node that lost its memory does not count for so long (600000)
 *   drift=PERMILLE      by how much the clocks of nodes may run apart (10), to which 2 ms are added
 *   retries=N           how often a vote that was split is repeated in one call (4)
 *   prefix=WORD, connect_timeout=MS   as redis://
 *
 * All clients must say the same hosts and max_ttl.
 */
#include "drivers/redlock_parts.h"

#include <stdio.h>
#include <string.h>

enum { NODES_MIN = 3, DRIFT_FLOOR_MS = 2 };

static const char *const params[] = {"node_timeout", "max_ttl", "drift", "retries", "prefix", "connect_timeout", NULL};

int64_t dibs__redlock_drift_ms(const struct dibs__redlock *store, int64_t ttl_ms) {
  return (ttl_ms * store->drift_permille + 999) / 1000 + DRIFT_FLOOR_MS;
}

static dibs__status check_hosts(const struct dibs__redis_place *place, struct dibs__said *said) {
  if (place->host_count < NODES_MIN) {
    dibs__say(said,
              "redlock:// wants at least %d hosts, each a Redis that knows nothing of the others; one Redis alone is "
              "redis://",
              (int)NODES_MIN);
    return DIBS_INVALID;
  }
  for (size_t i = 0; i < place->host_count; i++) {
    for (size_t j = 0; j < i; j++) {
      if (place->hosts[i].port != place->hosts[j].port || strcasecmp(place->hosts[i].host, place->hosts[j].host) != 0)
        continue;
      dibs__say(said, "%.100s:%u stands twice in the store URI: it would have two votes", place->hosts[i].host,
                (unsigned)place->hosts[i].port);
      return DIBS_INVALID;
    }
  }
  return DIBS_OK;
}

static uint64_t mix(uint64_t hash, const void *bytes, size_t len) {
  const uint8_t *p = bytes;
  for (size_t i = 0; i < len; i++) hash = (hash ^ p[i]) * UINT64_C(0x100000001b3);
  return hash;
}

/* The same for the same nodes in whatever order: that is all that tells one such store from another. */
static dibs__life life_of(const struct dibs__redis_place *place) {
  uint64_t sum[3] = {0};
  dibs__life life = {{0}};
  for (size_t i = 0; i < place->host_count; i++) {
    uint64_t hash = mix(UINT64_C(0xcbf29ce484222325), place->hosts[i].host, strlen(place->hosts[i].host));
    hash = mix(hash, &place->hosts[i].port, sizeof place->hosts[i].port);
    for (size_t k = 0; k < 3; k++) sum[k] += mix(hash, &k, sizeof k);
  }
  for (size_t k = 0; k < 3; k++) {
    sum[k] = mix(sum[k], place->prefix, strlen(place->prefix) + 1);
    sum[k] = mix(sum[k], &place->database, sizeof place->database);
  }
  memcpy(life.b, sum, sizeof life.b);
  return life;
}

static dibs__status read_numbers(const struct dibs__uri *uri, struct dibs__redlock *store, struct dibs__said *said) {
  const struct {
    const char *key;
    int64_t min, max, otherwise;
    int64_t *to;
  } all[] = {{"node_timeout", 10, 5000, 500, &store->node_timeout_ms},
             {"max_ttl", 1000, INT64_C(86400000), 600000, &store->max_ttl_ms},
             {"drift", 0, 500, 10, &store->drift_permille},
             {"retries", 0, 100, 4, &store->retries}};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    dibs__status status = dibs__uri_number(uri, all[i].key, all[i].min, all[i].max, all[i].otherwise, all[i].to, said);
    if (status != DIBS_OK) return status;
  }
  return DIBS_OK;
}

dibs__status dibs__redlock_place(const struct dibs__uri *uri, struct dibs__redlock *store, struct dibs__said *said) {
  if (uri->as_tier) {
    dibs__say(said, "%.150s can't be a tier: no majority remembers an anchor's mandate; use redis:// for the tier",
              uri->shown);
    return DIBS_UNSUPPORTED;
  }
  dibs__status status = dibs__uri_only(uri, NULL, params, said);
  if (status == DIBS_OK) status = read_numbers(uri, store, said);
  if (status == DIBS_OK) status = dibs__redis_place(uri, &store->place, said);
  if (status == DIBS_OK) status = check_hosts(store->place, said);
  if (status != DIBS_OK) return status;
  store->count = store->place->host_count;
  store->majority = store->count / 2 + 1;
  store->mandate = (dibs__mandate){.epoch = 1, .life = life_of(store->place)};
  snprintf(store->shown, sizeof store->shown, "%s", uri->shown);
  return DIBS_OK;
}

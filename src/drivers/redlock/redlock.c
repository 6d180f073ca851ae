/* SPDX-License-Identifier: MIT */
/*
 * redlock://: exclusive leases, granted by a majority of several Redis.  There is no queue and there are no events: a
 * waiter requests again after a random time.
 *
 *   redlock://[user[:password]@]host1[:port],host2[:port],host3[:port][,...][/database][?parameter=value&...]
 *
 *   node_timeout=MS     how long a node may take to answer (500)
 *   max_ttl=MS          no lease may be longer; a node that lost its memory does not count for so long (600000)
 *   drift=PERMILLE      by how much the clocks of nodes may run apart (10), to which 2 ms are added
 *   retries=N           how often a split vote is repeated in one call (4)
 *   prefix=WORD, connect_timeout=MS   as redis://
 *
 * All clients must give the same hosts and max_ttl.
 *
 * The nodes: a session has a link to each.  A node that does not answer in its time loses the link, and is tried
 * again after a pause that doubles; meanwhile the others decide.
 */
#include "drivers/redlock/redlock_impl.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { NODES_MIN = 3, DRIFT_FLOOR_MS = 2 };

static const char *const params[] = {"node_timeout", "max_ttl",         "drift",       "retries",
                                     "prefix",       "connect_timeout", "connections", NULL};

int64_t dibs__redlock_drift_ms(const struct dibs__redlock *store, int64_t ttl_ms) {
  return (ttl_ms * store->drift_permille + 999) / 1000 + DRIFT_FLOOR_MS;
}

static dibs__status check_hosts(const struct dibs__redis_location *location, struct dibs__result *result) {
  if (location->host_count < NODES_MIN) {
    dibs__set_message(
        result, "redlock:// needs at least %d hosts, each an independent Redis; for a single Redis write redis://",
        (int)NODES_MIN);
    return DIBS_INVALID;
  }
  for (size_t i = 0; i < location->host_count; i++) {
    for (size_t j = 0; j < i; j++) {
      if (location->hosts[i].port != location->hosts[j].port ||
          strcasecmp(location->hosts[i].host, location->hosts[j].host) != 0)
        continue;
      dibs__set_message(result, "%.100s:%u occurs twice in the store URI, and would have two votes; remove one",
                        location->hosts[i].host, (unsigned)location->hosts[i].port);
      return DIBS_INVALID;
    }
  }
  return DIBS_OK;
}

static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t len) {
  const uint8_t *p = bytes;
  for (size_t i = 0; i < len; i++) hash = (hash ^ p[i]) * UINT64_C(0x100000001b3);
  return hash;
}

/* The same for the same nodes in any order: the nodes alone identify the store. */
static dibs__incarnation incarnation_of(const struct dibs__redis_location *location) {
  uint64_t sum[3] = {0};
  dibs__incarnation incarnation = {{0}};
  for (size_t i = 0; i < location->host_count; i++) {
    uint64_t hash = hash_bytes(UINT64_C(0xcbf29ce484222325), location->hosts[i].host, strlen(location->hosts[i].host));
    hash = hash_bytes(hash, &location->hosts[i].port, sizeof location->hosts[i].port);
    for (size_t k = 0; k < 3; k++) sum[k] += hash_bytes(hash, &k, sizeof k);
  }
  for (size_t k = 0; k < 3; k++) {
    sum[k] = hash_bytes(sum[k], location->prefix, strlen(location->prefix) + 1);
    sum[k] = hash_bytes(sum[k], &location->database, sizeof location->database);
  }
  memcpy(incarnation.b, sum, sizeof incarnation.b);
  return incarnation;
}

static dibs__status read_numbers(const struct dibs__uri *uri, struct dibs__redlock *store,
                                 struct dibs__result *result) {
  const struct {
    const char *key;
    int64_t min, max, otherwise;
    int64_t *to;
  } all[] = {{"node_timeout", 10, 5000, 500, &store->node_timeout_ms},
             {"max_ttl", 1000, INT64_C(86400000), 600000, &store->max_ttl_ms},
             {"drift", 0, 500, 10, &store->drift_permille},
             {"retries", 0, 100, 4, &store->retries}};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    dibs__status status =
        dibs__uri_number(uri, all[i].key, all[i].min, all[i].max, all[i].otherwise, all[i].to, result);
    if (status != DIBS_OK) return status;
  }
  return DIBS_OK;
}

static dibs__status redlock_location(const struct dibs__uri *uri, struct dibs__redlock *store,
                                     struct dibs__result *result) {
  if (uri->as_tier) {
    dibs__set_message(result,
                      "%.150s can't be a tier: a majority can't store an anchor's mandate; use redis:// for the tier",
                      uri->shown);
    return DIBS_UNSUPPORTED;
  }
  dibs__status status = dibs__uri_only(uri, NULL, params, result);
  if (status == DIBS_OK) status = read_numbers(uri, store, result);
  if (status == DIBS_OK) status = dibs__redis_location(uri, &store->location, result);
  if (status == DIBS_OK) status = check_hosts(store->location, result);
  if (status != DIBS_OK) return status;
  store->count = store->location->host_count;
  store->majority = store->count / 2 + 1;
  store->mandate = (dibs__mandate){.epoch = 1, .incarnation = incarnation_of(store->location)};
  snprintf(store->shown, sizeof store->shown, "%s", uri->shown);
  return DIBS_OK;
}

/* ---- The nodes ---- */

typedef struct dibs__redlock_session session;

enum { RETRY_MIN_MS = 100, RETRY_MAX_MS = 3000, IDLE_MS = 20 };

/* ---- Words of a command ---- */

void dibs__redlock_word(struct dibs__redlock_words *words, const void *p, size_t len) {
  if (words->count == DIBS__REDLOCK_WORDS) return;
  words->p[words->count] = p;
  words->len[words->count++] = len;
}

static char *put_text(struct dibs__redlock_words *words, int len) {
  char *at = words->text + words->used;
  words->used += (size_t)len + 1;
  dibs__redlock_word(words, at, (size_t)len);
  return at;
}

void dibs__redlock_number(struct dibs__redlock_words *words, uint64_t number) {
  char *at = words->text + words->used;
  put_text(words, snprintf(at, sizeof words->text - words->used, "%llu", (unsigned long long)number));
}

void dibs__redlock_key(struct dibs__redlock_words *words, const struct dibs__redlock *store, const char *kind,
                       dibs__str tail) {
  char *at = words->text + words->used;
  size_t capacity = sizeof words->text - words->used;
  put_text(words, snprintf(at, capacity, "%s:rl:%s%.*s", store->location->prefix, kind, (int)tail.len,
                           tail.len ? tail.p : ""));
  words->keys = words->count;
}

void dibs__redlock_bucket_key(struct dibs__redlock_words *words, const struct dibs__redlock *store, uint16_t bucket) {
  char kind[16];
  snprintf(kind, sizeof kind, "{%u}", (unsigned)bucket);
  dibs__redlock_key(words, store, kind, (dibs__str){0});
}

/* ---- Links ---- */

/* The pause doubles; `why` is the message for people. */
static void node_failed(session *s, size_t node, const char *why) {
  struct dibs__redlock *store = s->store;
  dibs__mutex_lock(&store->lock);
  struct dibs__redlock_node *n = &store->nodes[node];
  int64_t pause = RETRY_MIN_MS;
  for (uint32_t i = 0; i < n->failures && pause < RETRY_MAX_MS; i++) pause *= 2;
  if (pause > RETRY_MAX_MS) pause = RETRY_MAX_MS;
  n->failures++;
  n->retry_at = dibs__tick_add_ms(dibs__tick_now(), pause);
  snprintf(n->why, sizeof n->why, "%s", why);
  dibs__mutex_unlock(&store->lock);
}

static void node_is_well(session *s, size_t node) {
  dibs__mutex_lock(&s->store->lock);
  s->store->nodes[node].failures = 0;
  s->store->nodes[node].why[0] = '\0';
  dibs__mutex_unlock(&s->store->lock);
}

static bool may_try(session *s, size_t node) {
  dibs__mutex_lock(&s->store->lock);
  bool may = !dibs__tick_before(dibs__tick_now(), s->store->nodes[node].retry_at);
  dibs__mutex_unlock(&s->store->lock);
  return may;
}

static void redlock_unlink(session *s, size_t node) {
  if (s->links[node]) dibs__redis_disconnect(s->links[node]);
  s->links[node] = NULL;
}

static const char *reason_of(dibs__status status) {
  switch (status) {
  case DIBS_DENIED:
    return "it refuses the user or the password";
  case DIBS_UNSUPPORTED:
  case DIBS_INVALID:
    return "its settings do not fit";
  default:
    return "it is unreachable";
  }
}

/* A node with two names or addresses would have two votes. */
static bool is_twin(session *s, size_t node) {
  for (size_t i = 0; i < s->store->count; i++) {
    if (i == node || !s->links[i] ||
        memcmp(&s->links[i]->incarnation, &s->links[node]->incarnation, sizeof(dibs__incarnation)) != 0)
      continue;
    s->twin = node;
    s->twin_of = i;
    return true;
  }
  return false;
}

/* A node may take twice as long to connect as to answer: that is two round trips. */
static void link_node(session *s, size_t node, dibs__tick by) {
  int64_t most = s->store->node_timeout_ms * 2;
  if (most > s->store->location->connect_timeout_ms) most = s->store->location->connect_timeout_ms;
  dibs__tick until = dibs__tick_min(by, dibs__tick_add_ms(dibs__tick_now(), most));
  struct dibs__result result = {0};
  dibs__status status = dibs__redis_connect(s->store->location, node, until, &s->links[node], &result);
  if (status != DIBS_OK) {
    node_failed(s, node, reason_of(status));
  } else if (is_twin(s, node)) {
    redlock_unlink(s, node);
    node_failed(s, node, "it is the same server as another");
  } else {
    node_is_well(s, node);
  }
}

/* Closed by the node meanwhile: a node that was restarted is connected again at once. */
static bool was_closed(const struct dibs__redis_link *link) {
  char byte;
  if (dibs__tick_before(dibs__tick_now(), dibs__tick_add_ms(link->answered_at, IDLE_MS))) return false;
  return recv(link->context->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || (errno != EAGAIN && errno != EINTR);
}

size_t dibs__redlock_links(session *s, dibs__tick by) {
  size_t linked = 0;
  uint32_t tried = 0;
  for (size_t i = 0; i < s->store->count; i++) {
    bool closed = s->links[i] && !s->links[i]->dead && was_closed(s->links[i]);
    if (closed || (s->links[i] && s->links[i]->dead)) redlock_unlink(s, i);
    if (!s->links[i] && (closed || may_try(s, i))) {
      link_node(s, i, by);
      tried |= 1u << i;
    }
    linked += s->links[i] != NULL;
  }
  /* Without them there is no majority: then no pause is respected. */
  for (size_t i = 0; i < s->store->count && linked < s->store->majority; i++) {
    if (s->links[i] || (tried >> i & 1) || !dibs__tick_before(dibs__tick_now(), by)) continue;
    link_node(s, i, by);
    linked += s->links[i] != NULL;
  }
  return linked;
}

/* ---- A round ---- */

void dibs__redlock_put(session *s, uint32_t nodes, enum dibs__redlock_script script,
                       const struct dibs__redlock_words *words, struct dibs__redlock_requested *requested) {
  for (size_t i = 0; i < DIBS__REDLOCK_NODES; i++) {
    requested->nth[i] = DIBS__REDLOCK_UNASKED;
    struct dibs__redis_link *link = nodes >> i & 1 ? s->links[i] : NULL;
    if (!link || link->dead) continue;
    size_t nth = link->put;
    if (dibs__redis_put_script(link, &s->store->scripts[script], words->keys, words->count, words->p, words->len))
      requested->nth[i] = (uint16_t)nth;
  }
}

void dibs__redlock_go(session *s, dibs__tick by) {
  struct dibs__redis_link *links[DIBS__REDLOCK_NODES];
  dibs__status answers[DIBS__REDLOCK_NODES];
  struct dibs__result result = {0};
  dibs__tick until = dibs__tick_min(by, dibs__tick_add_ms(dibs__tick_now(), s->store->node_timeout_ms));
  for (size_t i = 0; i < s->store->count; i++) links[i] = s->links[i] && s->links[i]->put ? s->links[i] : NULL;
  dibs__redis_go_all(links, s->store->count, until, answers, &result);
  for (size_t i = 0; i < s->store->count; i++)
    if (links[i] && links[i]->dead) node_failed(s, i, "it did not answer in time");
}

const redisReply *dibs__redlock_reply(session *s, const struct dibs__redlock_requested *requested, size_t node) {
  if (requested->nth[node] == DIBS__REDLOCK_UNASKED || !s->links[node]) return NULL;
  const redisReply *reply = dibs__redis_reply(s->links[node], requested->nth[node]);
  if (!reply || reply->type != REDIS_REPLY_ERROR) return reply;
  dibs__mutex_lock(&s->store->lock);
  snprintf(s->store->nodes[node].why, sizeof s->store->nodes[node].why, "%.60s", reply->str);
  dibs__mutex_unlock(&s->store->lock);
  return NULL;
}

int64_t dibs__redlock_int(const redisReply *reply, size_t nth) {
  if (reply->type == REDIS_REPLY_INTEGER && nth == 0) return reply->integer;
  bool there = reply->type == REDIS_REPLY_ARRAY && nth < reply->elements;
  return there && reply->element[nth]->type == REDIS_REPLY_INTEGER ? reply->element[nth]->integer : 0;
}

dibs__str dibs__redlock_text(const redisReply *reply, size_t nth) {
  bool there = reply->type == REDIS_REPLY_ARRAY && nth < reply->elements;
  if (!there || reply->element[nth]->type != REDIS_REPLY_STRING) return dibs__str_of("", 0);
  return dibs__str_of(reply->element[nth]->str, reply->element[nth]->len);
}

/* ---- Quorum ---- */

void dibs__redlock_say_no_quorum(session *s, uint32_t answered, const int64_t waits[], struct dibs__result *result) {
  const struct dibs__redlock *store = s->store;
  char text[sizeof result->text];
  size_t used = (size_t)snprintf(text, sizeof text, "no quorum: %zu of %zu nodes answered",
                                 dibs__redlock_bits(answered), store->count);
  dibs__mutex_lock(&s->store->lock);
  for (size_t i = 0; i < store->count && used < sizeof text; i++) {
    bool came = answered >> i & 1;
    if (came && waits[i] <= 0) continue;
    const char *host = store->location->hosts[i].host;
    unsigned port = store->location->hosts[i].port;
    int more = came ? snprintf(text + used, sizeof text - used, "; %.60s:%u lost its memory and votes again in %lld s",
                               host, port, (long long)(waits[i] + 999) / 1000)
                    : snprintf(text + used, sizeof text - used, "; %.60s:%u: %s", host, port,
                               store->nodes[i].why[0] ? store->nodes[i].why : "it did not answer");
    used += (size_t)more;
  }
  dibs__mutex_unlock(&s->store->lock);
  dibs__set_message(result, "%s", text);
}

/* Two rounds must agree: a node that was emptied after the first must not count. */
bool dibs__redlock_found(session *s, dibs__tick by) {
  struct dibs__redlock *store = s->store;
  struct dibs__redlock_requested requested;
  struct dibs__redlock_words words[DIBS__REDLOCK_NODES] = {{.count = 0}};
  uint32_t all = (uint32_t)(UINT64_C(1) << store->count) - 1;
  dibs__redlock_key(&words[0], store, "mark", (dibs__str){0});
  dibs__redlock_put(s, all, DIBS__REDLOCK_MARK, &words[0], &requested);
  dibs__redlock_go(s, by);
  for (size_t i = 0; i < store->count; i++) {
    const redisReply *reply = dibs__redlock_reply(s, &requested, i);
    if (!reply || dibs__redlock_int(reply, 0) != 0) return false;
    dibs__str incarnation = dibs__redlock_text(reply, 1), since = dibs__redlock_text(reply, 2);
    words[i] = (struct dibs__redlock_words){.count = 0};
    dibs__redlock_key(&words[i], store, "mark", (dibs__str){0});
    char *at = words[i].text + words[i].used;
    size_t capacity = sizeof words[i].text - words[i].used;
    if (incarnation.len + since.len > capacity) return false;
    memcpy(at, incarnation.p, incarnation.len);
    memcpy(at + incarnation.len, since.p, since.len);
    dibs__redlock_word(&words[i], at, incarnation.len);
    dibs__redlock_word(&words[i], at + incarnation.len, since.len);
  }
  for (size_t i = 0; i < store->count; i++) dibs__redlock_put(s, 1u << i, DIBS__REDLOCK_MARK, &words[i], &requested);
  dibs__redlock_go(s, by);
  return true;
}

/* ---- The driver ---- */

extern const char dibs__redis_lua_redlock_take[], dibs__redis_lua_redlock_seal[], dibs__redis_lua_redlock_renew[],
    dibs__redis_lua_redlock_heal[], dibs__redis_lua_redlock_drop[], dibs__redis_lua_redlock_break[],
    dibs__redis_lua_redlock_show[], dibs__redis_lua_redlock_mark[];

static void redlock_close(struct dibs__dstore *base) {
  struct dibs__redlock *store = (struct dibs__redlock *)base;
  dibs__redis_location_free(store->location);
  if (store->notifier >= 0) dibs__notifier_close(store->notifier);
  dibs__mutex_destroy(&store->lock);
  free(store);
}

static void name_scripts(struct dibs__redlock *store) {
  const char *const texts[DIBS__REDLOCK_SCRIPTS] = {
      [DIBS__REDLOCK_TAKE] = dibs__redis_lua_redlock_take,   [DIBS__REDLOCK_SEAL] = dibs__redis_lua_redlock_seal,
      [DIBS__REDLOCK_RENEW] = dibs__redis_lua_redlock_renew, [DIBS__REDLOCK_HEAL] = dibs__redis_lua_redlock_heal,
      [DIBS__REDLOCK_DROP] = dibs__redis_lua_redlock_drop,   [DIBS__REDLOCK_BREAK] = dibs__redis_lua_redlock_break,
      [DIBS__REDLOCK_SHOW] = dibs__redis_lua_redlock_show,   [DIBS__REDLOCK_MARK] = dibs__redis_lua_redlock_mark};
  for (size_t i = 0; i < DIBS__REDLOCK_SCRIPTS; i++) {
    store->scripts[i].text = texts[i];
    dibs__redis_script_name(&store->scripts[i]);
  }
}

static dibs__status redlock_open(const struct dibs__uri *uri, struct dibs__dstore *const inner[], size_t count,
                                 dibs__tick by, struct dibs__dstore **out, struct dibs__result *result) {
  (void)inner;
  (void)count;
  (void)by;
  *out = NULL;
  struct dibs__redlock *store = calloc(1, sizeof *store);
  if (!store) return DIBS_NO_MEMORY;
  dibs__mutex_init(&store->lock);
  store->base.driver = &dibs__redlock_driver;
  name_scripts(store);
  while (store->session == 0) dibs__random(&store->session, sizeof store->session);
  store->notifier = dibs__notifier_open();
  dibs__status status = redlock_location(uri, store, result);
  if (status == DIBS_OK && store->notifier < 0) {
    status = DIBS_UNAVAILABLE;
    dibs__set_message(result, "no file descriptor for notifications of %s", store->shown);
  }
  if (status == DIBS_OK)
    *out = &store->base;
  else
    redlock_close(&store->base);
  return status;
}

static void redlock_disconnect(struct dibs__session *base) {
  struct dibs__redlock_session *s = (struct dibs__redlock_session *)base;
  for (size_t i = 0; i < s->store->count; i++) redlock_unlink(s, i);
  free(s->doing);
  free(s);
}

static void identify(const struct dibs__redlock *store, struct dibs__identity *identity) {
  *identity =
      (struct dibs__identity){.mandate = store->mandate,
                              .caps = DIBS__CAP_PARALLEL | DIBS__CAP_BLOCKS | DIBS__CAP_ALONE,
                              .families = 1u << DIBS__FAM_LEASE | 1u << DIBS__FAM_ANCHOR | 1u << DIBS__FAM_ENGINE,
                              .max_batch = DIBS__REDLOCK_BATCH,
                              .max_sessions = store->location->connections,
                              .session = store->session};
}

/* Connects to a majority at least. */
static dibs__status connect_majority(struct dibs__redlock_session *s, dibs__tick by, struct dibs__result *result) {
  const struct dibs__redlock *store = s->store;
  size_t linked = dibs__redlock_links(s, by);
  if (s->twin != s->twin_of) {
    dibs__set_message(result, "%.80s:%u and %.80s:%u are the same server, which would have two votes; remove one",
                      store->location->hosts[s->twin].host, (unsigned)store->location->hosts[s->twin].port,
                      store->location->hosts[s->twin_of].host, (unsigned)store->location->hosts[s->twin_of].port);
    return DIBS_INVALID;
  }
  if (linked >= store->majority) return DIBS_OK;
  int64_t waits[DIBS__REDLOCK_NODES] = {0};
  uint32_t there = 0;
  for (size_t i = 0; i < store->count; i++) there |= (uint32_t)(s->links[i] != NULL) << i;
  dibs__redlock_say_no_quorum(s, there, waits, result);
  return DIBS_UNAVAILABLE;
}

static dibs__status redlock_connect(struct dibs__dstore *base, dibs__tick by, struct dibs__session **out,
                                    struct dibs__identity *identity, struct dibs__result *result) {
  struct dibs__redlock *store = (struct dibs__redlock *)base;
  struct dibs__redlock_session *s = calloc(1, sizeof *s);
  *out = NULL;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  result->now.ms = result->sent.ns / DIBS__NS_PER_MS;
  if (!s) return DIBS_NO_MEMORY;
  s->base.store = base;
  s->store = store;
  s->doing = calloc(DIBS__REDLOCK_BATCH, sizeof *s->doing);
  if (!s->doing) {
    free(s);
    return DIBS_NO_MEMORY;
  }
  dibs__status status = connect_majority(s, by, result);
  if (status != DIBS_OK) {
    redlock_disconnect(&s->base);
    return status;
  }
  identify(store, identity);
  *out = &s->base;
  return DIBS_OK;
}

static dibs__status redlock_events(struct dibs__dstore *base, struct dibs__event *events, size_t cap, size_t *count,
                                   dibs__tick by) {
  struct dibs__redlock *store = (struct dibs__redlock *)base;
  (void)events;
  (void)cap;
  *count = 0;
  while (!atomic_exchange(&store->woken, false)) {
    struct pollfd fd = {.fd = store->notifier, .events = POLLIN};
    int64_t left = by.ns == DIBS__TICK_NEVER.ns ? -1 : dibs__tick_left_ms(dibs__tick_now(), by);
    if (left == 0) break;
    int got = poll(&fd, 1, left > INT_MAX ? INT_MAX : (int)left);
    if (got < 0 && errno != EINTR) return DIBS_UNAVAILABLE;
    if (got > 0) dibs__notifier_lower(store->notifier);
  }
  return DIBS_OK;
}

static void redlock_wake(struct dibs__dstore *base) {
  struct dibs__redlock *store = (struct dibs__redlock *)base;
  atomic_store(&store->woken, true);
  dibs__notifier_raise(store->notifier);
}

static const char *const schemes[] = {"redlock", NULL};

const struct dibs__driver dibs__redlock_driver = {
    .size = sizeof(struct dibs__driver),
    .abi = DIBS__DRIVER_ABI,
    .name = "redlock",
    .schemes = schemes,
    .open = redlock_open,
    .close = redlock_close,
    .connect = redlock_connect,
    .disconnect = redlock_disconnect,
    .run = dibs__redlock_run,
    .events = redlock_events,
    .wake = redlock_wake,
    .list = dibs__redlock_list,
};

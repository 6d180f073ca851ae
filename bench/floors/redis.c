/* SPDX-License-Identifier: MIT */
/*
 * Redis through hiredis: only leases, because its writes are not durable.  The simplest fenced lease: SET NX PX and a
 * counter in one script, compare and delete in another, each called by its SHA with its words ready.  The pairs of one
 * round trip are sent at once and answered at once.
 */
#include "floor.h"

#include <hiredis/hiredis.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char acquire_text[] =
    "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return redis.call('INCR', KEYS[2]) end return 0";
static const char release_text[] =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

enum {
  SHA = 41,
  CONNECT_S = 5,
  PAIRS_MOST = 64,
  MASTERS_MOST = 16,
  SWEEP = 500 /* keys read in one round trip, outside of the measured
               * time */
};
#define TTL_MS "10000"
#define TTL_LONG_MS "600000" /* ttl of the leases whose memory is measured */

struct link {
  struct floor_link base;
  redisContext *redis;
  char acquire[SHA], release[SHA];
  char head[16]; /* of all keys: "floor", and in a cluster a hash tag whose slot the server has */
  int32_t names; /* names that setup created; 0: this link belongs to another user */
  char version[64];
  struct link *next; /* of the link that sets up: one to each other master of the cluster */
};

/* The hosts of the URI that are masters, as the link that sets up found them. */
static unsigned masters[MASTERS_MOST], master_count, spread;

/* The words of a call, and the buffers of its numbers. */
struct words {
  char key[48], fence[52], owner[24];
  const char *argv[7];
  size_t length[7];
  int count;
};

static enum floor_answer broken(struct link *l, const redisReply *got) {
  const char *why = got && got->type == REDIS_REPLY_ERROR ? got->str : l->redis->err ? l->redis->errstr : "odd answer";
  snprintf(l->base.why, sizeof l->base.why, "%s", why);
  return FLOOR_BROKEN;
}

static void add(struct words *w, const char *word, size_t length) {
  w->argv[w->count] = word;
  w->length[w->count++] = length;
}

static void acquire_words(const struct link *l, struct words *w, int32_t name, int32_t owner, const char *ttl_ms) {
  w->count = 0;
  size_t key = (size_t)snprintf(w->key, sizeof w->key, "%s:%d", l->head, name);
  size_t fence = (size_t)snprintf(w->fence, sizeof w->fence, "%s:%d:f", l->head, name);
  size_t own = (size_t)snprintf(w->owner, sizeof w->owner, "owner-%d", owner);
  add(w, "EVALSHA", 7);
  add(w, l->acquire, SHA - 1);
  add(w, "2", 1);
  add(w, w->key, key);
  add(w, w->fence, fence);
  add(w, w->owner, own);
  add(w, ttl_ms, strlen(ttl_ms));
}

static void release_words(const struct link *l, struct words *w, int32_t name, int32_t owner) {
  w->count = 0;
  size_t key = (size_t)snprintf(w->key, sizeof w->key, "%s:%d", l->head, name);
  size_t own = (size_t)snprintf(w->owner, sizeof w->owner, "owner-%d", owner);
  add(w, "EVALSHA", 7);
  add(w, l->release, SHA - 1);
  add(w, "1", 1);
  add(w, w->key, key);
  add(w, w->owner, own);
}

static bool put(struct link *l, struct words *w) {
  return redisAppendCommandArgv(l->redis, w->count, w->argv, w->length) == REDIS_OK;
}

/* The next answer, which must be a number. */
static enum floor_answer number(struct link *l, int64_t *to) {
  void *got = NULL;
  enum floor_answer answer = FLOOR_DONE;
  if (redisGetReply(l->redis, &got) != REDIS_OK) return broken(l, NULL);
  const redisReply *reply = got;
  if (reply->type == REDIS_REPLY_INTEGER)
    *to = reply->integer;
  else
    answer = broken(l, reply);
  freeReplyObject(got);
  return answer;
}

static enum floor_answer not_held(struct link *l) {
  snprintf(l->base.why, sizeof l->base.why, "the lease was no longer held");
  return FLOOR_BROKEN;
}

static enum floor_answer acquire(struct floor_link *link, int32_t name, int32_t owner, int64_t *fence) {
  struct link *l = (struct link *)link;
  struct words w;
  acquire_words(l, &w, name, owner, TTL_MS);
  if (!put(l, &w)) return broken(l, NULL);
  enum floor_answer answer = number(l, fence);
  return answer == FLOOR_DONE && *fence == 0 ? FLOOR_CONFLICT : answer;
}

static enum floor_answer release(struct floor_link *link, int32_t name, int32_t owner) {
  struct link *l = (struct link *)link;
  struct words w;
  int64_t gone = 0;
  release_words(l, &w, name, owner);
  if (!put(l, &w)) return broken(l, NULL);
  enum floor_answer answer = number(l, &gone);
  return answer == FLOOR_DONE && gone != 1 ? not_held(l) : answer;
}

static enum floor_answer pairs(struct floor_link *link, int32_t name, uint32_t count, int32_t owner) {
  struct link *l = (struct link *)link;
  struct words w;
  for (uint32_t i = 0; i < count; i++) {
    acquire_words(l, &w, name + (int32_t)i, owner, TTL_MS);
    bool fine = put(l, &w);
    release_words(l, &w, name + (int32_t)i, owner);
    if (!fine || !put(l, &w)) return broken(l, NULL);
  }
  for (uint32_t i = 0; i < count; i++) {
    int64_t fence = 0, gone = 0;
    enum floor_answer first = number(l, &fence), second = number(l, &gone);
    if (first != FLOOR_DONE || second != FLOOR_DONE) return FLOOR_BROKEN;
    if (!fence || gone != 1) return not_held(l);
  }
  return FLOOR_DONE;
}

static bool hold(struct floor_link *link, int32_t name, uint32_t count, int32_t owner) {
  struct link *l = (struct link *)link;
  struct words w;
  for (uint32_t i = 0; i < count; i++) {
    acquire_words(l, &w, name + (int32_t)i, owner, TTL_LONG_MS);
    if (!put(l, &w)) return broken(l, NULL) == FLOOR_DONE;
  }
  bool fine = true;
  for (uint32_t i = 0; i < count; i++) {
    int64_t fence = 0;
    fine = number(l, &fence) == FLOOR_DONE && fence && fine;
  }
  return fine;
}

/* ---- Keys and connections ---- */

/* A command outside of the measured time.  NULL: it failed, and `why` has the reason. */
__attribute__((format(printf, 2, 3))) static redisReply *send_request(struct link *l, const char *format, ...) {
  va_list list;
  va_start(list, format);
  redisReply *got = redisvCommand(l->redis, format, list);
  va_end(list);
  if (got && got->type != REDIS_REPLY_ERROR) return got;
  broken(l, got);
  freeReplyObject(got);
  return NULL;
}

static bool load(struct link *l, const char *text, char sha[SHA]) {
  redisReply *got = send_request(l, "SCRIPT LOAD %s", text);
  if (got) snprintf(sha, SHA, "%s", got->str);
  freeReplyObject(got);
  return got != NULL;
}

static void link_close(struct floor_link *link) {
  for (struct link *l = (struct link *)link, *next; l; l = next) {
    next = l->next;
    if (l->redis) redisFree(l->redis);
    free(l);
  }
}

/* Signs in, and selects the database of the path. */
static bool enter(struct link *l, const struct floor_uri *at) {
  redisReply *got = NULL;
  if (at->password[0]) {
    got =
        at->user[0] ? send_request(l, "AUTH %s %s", at->user, at->password) : send_request(l, "AUTH %s", at->password);
    if (!got) return false;
    freeReplyObject(got);
  }
  const char *database = at->path[0] == '/' ? at->path + 1 : at->path;
  if (database[0] && strcmp(database, "0") != 0) {
    if (!(got = send_request(l, "SELECT %s", database))) return false;
    freeReplyObject(got);
  }
  return load(l, acquire_text, l->acquire) && load(l, release_text, l->release);
}

/* A bare client of a cluster talks to one of its masters, with keys that have a slot of this master. */
static bool find_slot(struct link *l) {
  for (int tag = 0; tag < 1000; tag++) {
    snprintf(l->head, sizeof l->head, "floor{%d}", tag);
    redisReply *got = redisCommand(l->redis, "EXISTS %s", l->head);
    bool here = got && got->type == REDIS_REPLY_INTEGER;
    if (got) freeReplyObject(got);
    if (here) return true;
  }
  snprintf(l->base.why, sizeof l->base.why, "a host of the URI is no master of the cluster any more");
  return false;
}

static struct link *open_host(const struct floor_uri *at, char why[FLOOR_WHY]) {
  static const struct timeval patience = {.tv_sec = CONNECT_S};
  char socket[512];
  struct link *l = calloc(1, sizeof *l);
  if (!l) {
    snprintf(why, FLOOR_WHY, "out of memory");
    return NULL;
  }
  snprintf(l->head, sizeof l->head, "floor");
  if (floor_uri_param(at, "socket", socket, sizeof socket))
    l->redis = redisConnectUnixWithTimeout(socket, patience);
  else
    l->redis = redisConnectWithTimeout(at->host[0] ? at->host : "127.0.0.1", at->port ? (int)at->port : 6379, patience);
  bool fine = l->redis && !l->redis->err;
  if (!fine) snprintf(why, FLOOR_WHY, "%s", l->redis ? l->redis->errstr : "out of memory");
  if (fine && !(fine = enter(l, at))) snprintf(why, FLOOR_WHY, "%s", l->base.why);
  if (fine) return l;
  link_close(&l->base);
  return NULL;
}

/* The URI with only its nth host.  false: it has fewer. */
static bool cut_host(const char *uri, unsigned nth, struct floor_uri *at) {
  char text[sizeof at->query + sizeof at->path];
  const char *sign = strchr(uri, '@'), *from = sign ? sign + 1 : strstr(uri, "//") + 2;
  size_t head = (size_t)(from - uri), all = strcspn(from, "/?");
  const char *rest = from + all;
  for (; nth > 0; nth--) {
    size_t length = strcspn(from, ",/?");
    if (from[length] != ',') return false;
    from += length + 1;
  }
  int used = snprintf(text, sizeof text, "%.*s%.*s%s", (int)head, uri, (int)strcspn(from, ",/?"), from, rest);
  return used > 0 && (size_t)used < sizeof text && floor_uri_cut(text, at);
}

static bool is_master(struct link *l) {
  redisReply *got = send_request(l, "INFO replication");
  bool master = got && strstr(got->str, "role:master");
  freeReplyObject(got);
  return master;
}

/* One link to each master of the URI. */
static struct link *open_masters(const char *uri, char why[FLOOR_WHY]) {
  struct link *first = NULL, **last = &first;
  struct floor_uri at;
  master_count = spread = 0;
  for (unsigned i = 0; cut_host(uri, i, &at) && master_count < MASTERS_MOST; i++) {
    struct link *l = open_host(&at, why);
    if (l && is_master(l) && find_slot(l)) {
      masters[master_count++] = i;
      *last = l;
      last = &l->next;
    } else if (l) {
      link_close(&l->base);
    }
  }
  if (!first && !why[0]) snprintf(why, FLOOR_WHY, "no host of the URI is a master of the cluster");
  return first;
}

/* In a cluster each user that has names of its own talks to the next master. */
static struct floor_link *link_open(const char *uri, const struct floor_strategy *strategy, char why[FLOOR_WHY]) {
  struct floor_uri at;
  char cluster[8];
  if (!floor_uri_cut(uri, &at)) {
    snprintf(why, FLOOR_WHY, "not a URI of a Redis");
    return NULL;
  }
  struct link *l = NULL;
  if (!floor_uri_param(&at, "cluster", cluster, sizeof cluster) || strcmp(cluster, "1") != 0) {
    l = open_host(&at, why);
  } else if (!strategy) {
    l = open_masters(uri, why);
  } else if (master_count &&
             cut_host(uri, masters[strategy->kind == FLOOR_LEASE_OWN ? spread++ % master_count : 0], &at)) {
    l = open_host(&at, why);
    if (l && !find_slot(l)) {
      snprintf(why, FLOOR_WHY, "%s", l->base.why);
      link_close(&l->base);
      l = NULL;
    }
  }
  return l ? &l->base : NULL;
}

/* Sends `command` for the keys of all names to one server, a few hundred in each round trip; *sum adds the numbers of
 * the answers. */
static bool sweep_one(struct link *l, int32_t names, const char *command, int64_t *sum) {
  for (int32_t from = 0; from < names; from += SWEEP) {
    int32_t to = names - from > SWEEP ? from + SWEEP : names;
    for (int32_t name = from; name < to; name++)
      if (redisAppendCommand(l->redis, command, l->head, name, l->head, name) != REDIS_OK) return false;
    for (int32_t name = from; name < to; name++) {
      void *got = NULL;
      if (redisGetReply(l->redis, &got) != REDIS_OK) return broken(l, NULL) == FLOOR_DONE;
      const redisReply *reply = got;
      bool fine = reply->type != REDIS_REPLY_ERROR;
      if (!fine) broken(l, reply);
      if (reply->type == REDIS_REPLY_INTEGER) *sum += reply->integer;
      if (reply->type == REDIS_REPLY_STRING) *sum += strtoll(reply->str, NULL, 10);
      freeReplyObject(got);
      if (!fine) return false;
    }
  }
  return true;
}

static bool sweep(struct link *l, const char *command, int64_t *sum) {
  *sum = 0;
  for (struct link *one = l; one; one = one->next) {
    if (sweep_one(one, l->names, command, sum)) continue;
    if (one != l) memcpy(l->base.why, one->base.why, sizeof l->base.why);
    return false;
  }
  return true;
}

static bool setup(struct floor_link *link, int64_t limit, int32_t names) {
  (void)limit; /* no bookings here */
  struct link *l = (struct link *)link;
  int64_t gone;
  l->names = names;
  return sweep(l, "DEL %s:%d %s:%d:f", &gone);
}

/* Also removes the keys that the run left. */
static bool audit(struct floor_link *link, struct floor_audit *a) {
  struct link *l = (struct link *)link;
  int64_t gone;
  memset(a, 0, sizeof *a);
  return sweep(l, "EXISTS %s:%d", &a->held) && sweep(l, "GET %s:%d:f", &a->fences) &&
         sweep(l, "DEL %s:%d %s:%d:f", &gone);
}

/* The text after `key` in the answer of INFO. */
static void field(const char *info, const char *key, char *to, size_t size) {
  const char *at = strstr(info, key);
  size_t length = at ? strcspn(at + strlen(key), "\r\n") : 0;
  snprintf(to, size, "%.*s", (int)length, at ? at + strlen(key) : "");
}

static const char *version(struct floor_link *link) {
  struct link *l = (struct link *)link;
  redisReply *got = send_request(l, "INFO server");
  if (got) field(got->str, "redis_version:", l->version, sizeof l->version);
  freeReplyObject(got);
  return l->version;
}

static bool weigh(struct floor_link *link, struct floor_weight *weight) {
  struct link *l = (struct link *)link;
  char text[32];
  redisReply *memory = send_request(l, "INFO memory"), *stats = send_request(l, "INFO stats"),
             *size = send_request(l, "DBSIZE");
  bool fine = memory && stats && size;
  if (fine) {
    field(memory->str, "used_memory:", text, sizeof text);
    weight->bytes = strtoll(text, NULL, 10);
    field(stats->str, "total_commands_processed:", text, sizeof text);
    weight->commands = strtoll(text, NULL, 10);
    weight->keys = size->integer;
  }
  freeReplyObject(memory);
  freeReplyObject(stats);
  freeReplyObject(size);
  return fine;
}

static const struct floor_strategy strategies[] = {
    {"lease-own", "acquire and release a name of the user's own", .kind = FLOOR_LEASE_OWN},
    {"lease-16", "16 names of the user's own: 16 acquires and 16 releases in a round trip", .kind = FLOOR_LEASE_OWN,
     .pairs = 16},
    {"lease-64", "64 names of the user's own in a round trip", .kind = FLOOR_LEASE_OWN, .pairs = PAIRS_MOST},
    {"lease-shared", "all users try to acquire one name until they have it", .kind = FLOOR_LEASE_SHARED},
    {.name = NULL}};

static const struct floor_engine engine = {.name = "redis",
                                           .example = "redis://user:password@host:port/0 or redis:///0?socket=/path",
                                           .variable = "DIBS_TEST_REDIS",
                                           .strategies = strategies,
                                           .pairs = pairs,
                                           .hold = hold,
                                           .weigh = weigh,
                                           FLOOR_CALLS};

int main(int argc, char **argv) {
  return floor_main(&engine, argc, argv);
}

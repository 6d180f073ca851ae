/* SPDX-License-Identifier: MIT */
/*
 * A Redis as programs without dibs use it: hiredis, one command and its answer at a time.  redis_none.c replaces it
 * where hiredis is not installed.
 */
#include "lab/locks.h"
#include "store/uri.h"

#include <hiredis/hiredis.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

enum { PORT = 6379, CONNECT_S = 5, ANSWER_S = 10, HOST_MAX = 256, WORDS_MAX = 12 };

struct lab_redis {
  redisContext *context; /* NULL: not connected */
  char *uri;
};

bool dibs__lab_redis_built(void) {
  return true;
}

static bool simple(redisContext *c, char *why, size_t size, size_t count, const char **words) {
  redisReply *reply = redisCommandArgv(c, (int)count, words, NULL);
  bool fine = reply && reply->type != REDIS_REPLY_ERROR;
  if (!fine) snprintf(why, size, "%s", reply ? reply->str : c->errstr);
  if (reply) freeReplyObject(reply);
  return fine;
}

static redisContext *dial(const struct dibs__uri *uri) {
  struct timeval limit = {.tv_sec = CONNECT_S};
  const char *socket = dibs__uri_param(uri, "socket");
  if (socket) return redisConnectUnixWithTimeout(socket, limit);
  char host[HOST_MAX];
  snprintf(host, sizeof host, "%s", *uri->hosts ? uri->hosts : "localhost");
  char *colon = strrchr(host, ':');
  long port = colon && !strchr(colon, ']') ? strtol(colon + 1, NULL, 10) : PORT;
  if (colon && !strchr(colon, ']')) *colon = '\0';
  size_t len = strlen(host);
  bool bracketed = host[0] == '[' && host[len - 1] == ']';
  if (bracketed) host[len - 1] = '\0';
  return redisConnectWithTimeout(host + bracketed, (int)port, limit);
}

static bool greet(redisContext *c, const struct dibs__uri *uri, char *why, size_t size) {
  const char *user = uri->user && *uri->user ? uri->user : "default", *database = uri->path;
  struct timeval limit = {.tv_sec = ANSWER_S};
  if (*database == '/') database++;
  if (redisSetTimeout(c, limit) != REDIS_OK) {
    snprintf(why, size, "%s", c->errstr);
    return false;
  }
  /* A password alone is that of AUTH before Redis 6, too. */
  const char *with_user[] = {"AUTH", user, uri->password}, *alone[] = {"AUTH", uri->password};
  if (uri->password && !(uri->user && *uri->user ? simple(c, why, size, 3, with_user) : simple(c, why, size, 2, alone)))
    return false;
  const char *select[] = {"SELECT", database};
  return !*database || simple(c, why, size, 2, select);
}

static bool connect_now(struct lab_redis *redis, char *why, size_t size) {
  struct dibs__uri uri;
  struct dibs__result result = {0};
  char reason[LAB_WHY_MAX] = "";
  if (dibs__uri_parse(redis->uri, &uri, &result) != DIBS_OK) {
    snprintf(why, size, "%s", result.text);
    return false;
  }
  redisContext *c = dial(&uri);
  bool fine = c && !c->err && greet(c, &uri, reason, sizeof reason);
  if (!fine) snprintf(why, size, "%s: %s", uri.shown, reason[0] ? reason : c && c->err ? c->errstr : "out of memory");
  dibs__uri_free(&uri);
  if (!fine && c) redisFree(c);
  if (fine) redis->context = c;
  return fine;
}

struct lab_redis *dibs__lab_redis_open(const char *uri, char *why, size_t size) {
  struct lab_redis *redis = calloc(1, sizeof *redis);
  if (redis) redis->uri = strdup(uri);
  if (redis && redis->uri && connect_now(redis, why, size)) return redis;
  if (!redis || !redis->uri) snprintf(why, size, "out of memory");
  dibs__lab_redis_close(redis);
  return NULL;
}

void dibs__lab_redis_close(struct lab_redis *redis) {
  if (!redis) return;
  if (redis->context) redisFree(redis->context);
  free(redis->uri);
  free(redis);
}

enum lab_redis_answer dibs__lab_redis_run(struct lab_redis *redis, const char *const words[], size_t count,
                                          char *answer, size_t size) {
  const char *own[WORDS_MAX];
  if (count > WORDS_MAX) count = WORDS_MAX;
  for (size_t i = 0; i < count; i++) own[i] = words[i];
  answer[0] = '\0';
  if (!redis->context && !connect_now(redis, answer, size)) return LAB_REDIS_FAILED;
  redisReply *reply = redisCommandArgv(redis->context, (int)count, own, NULL);
  if (!reply) {
    snprintf(answer, size, "%s", redis->context->errstr);
    redisFree(redis->context);
    redis->context = NULL;
    return LAB_REDIS_FAILED;
  }
  enum lab_redis_answer got = LAB_REDIS_DONE;
  if (reply->type == REDIS_REPLY_ERROR) got = LAB_REDIS_FAILED;
  if (reply->type == REDIS_REPLY_NIL) got = LAB_REDIS_NIL;
  if (reply->type == REDIS_REPLY_INTEGER)
    snprintf(answer, size, "%lld", reply->integer);
  else if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 && reply->element[1]->str)
    snprintf(answer, size, "%s", reply->element[1]->str); /* of CONFIG GET: name and value */
  else if (reply->str)
    snprintf(answer, size, "%s", reply->str);
  freeReplyObject(reply);
  return got;
}

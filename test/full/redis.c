/* SPDX-License-Identifier: MIT */
#include "bed.h"

#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *open_raw(const char *uri) {
  char user[64], password[64], host[64];
  int port = 0;
  if (sscanf(uri, "redis://%63[^:]:%63[^@]@%63[^:]:%d", user, password, host, &port) != 4)
    fail_msg("%s is no URI of these tests", uri);
  redisContext *context = redisConnect(host, port);
  redisReply *reply = context && !context->err ? redisCommand(context, "AUTH %s %s", user, password) : NULL;
  bool in = reply && reply->type != REDIS_REPLY_ERROR;
  if (reply) freeReplyObject(reply);
  if (in) return context;
  if (context) redisFree(context);
  return NULL;
}

static void close_raw(void *raw) {
  redisFree(raw);
}

static int64_t say(void *raw, const char *text) {
  redisReply *reply = redisCommand(raw, text);
  if (!reply || reply->type == REDIS_REPLY_ERROR) fail_msg("%s: %s", text, reply ? reply->str : "no answer");
  int64_t number = reply->type == REDIS_REPLY_INTEGER ? reply->integer : 0;
  freeReplyObject(reply);
  return number;
}

static uint32_t count(void *admin, const char *user) {
  (void)user;
  redisReply *reply = redisCommand(admin, "CLIENT LIST");
  uint32_t lines = 0;
  assert_true(reply && reply->type == REDIS_REPLY_STRING);
  for (const char *at = reply->str; (at = strstr(at, "id=")); at += 3) lines += at == reply->str || at[-1] == '\n';
  freeReplyObject(reply);
  return lines - 1; /* this connection itself */
}

static void limit(void *admin, const char *given, const char *user, uint32_t most, char *uri, size_t size) {
  char text[64];
  for (int i = 0; i < 1000 && count(admin, user) > 0; i++) dibs__nap_ms(2); /* from the case before */
  snprintf(text, sizeof text, "CONFIG SET maxclients %u", most + 1);
  say(admin, text);
  snprintf(uri, size, "%s", given);
}

static void unlimit(void *admin, const char *user) {
  (void)user;
  say(admin, "CONFIG SET maxclients 2000");
}

static void kill_some(void *admin, const char *user, bool all) {
  (void)user;
  (void)all;
  say(admin, "CLIENT KILL TYPE normal SKIPME yes");
}

const struct server server_redis = {"redis", false, open_raw, close_raw, say, limit, unlimit, count, kill_some};

/* SPDX-License-Identifier: MIT */
#include "bed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *bed_uri, *bed_admin_uri;

void bed_args(int argc, char **argv) {
  if (argc > 1) bed_uri = argv[1];
  bed_admin_uri = getenv("DIBS_TEST_REDIS_ADMIN");
}

dibs__tick within(int64_t ms) {
  return dibs__tick_add_ms(dibs__tick_now(), ms);
}

const char *bed_with(const char *uri, const char *more) {
  static char text[1024];
  snprintf(text, sizeof text, "%s%c%s", uri, strchr(uri, '?') ? '&' : '?', more);
  return text;
}

struct dibs__redis_location *bed_location(const char *text) {
  struct dibs__uri uri;
  struct dibs__result reported = {.text = ""};
  struct dibs__redis_location *location = NULL;
  assert_int_equal(dibs__uri_parse(text, &uri, &reported), DIBS_OK);
  dibs__status status = dibs__redis_location(&uri, &location, &reported);
  dibs__uri_free(&uri);
  if (status != DIBS_OK) fail_msg("%s: %s", text, reported.text);
  return location;
}

struct dibs__redis_link *bed_connect(const struct dibs__redis_location *location) {
  struct dibs__result reported = {.text = ""};
  struct dibs__redis_link *link = NULL;
  dibs__status status = dibs__redis_connect(location, 0, within(LONG_MS), &link, &reported);
  if (status != DIBS_OK) fail_msg("%s", reported.text);
  return link;
}

void bed_refused(const char *text, dibs__status wanted, const char *words) {
  struct dibs__uri uri;
  struct dibs__result reported = {.text = ""};
  struct dibs__redis_location *location = NULL;
  struct dibs__redis_link *link = NULL;
  dibs__status status = dibs__uri_parse(text, &uri, &reported);
  if (status == DIBS_OK) {
    status = dibs__redis_location(&uri, &location, &reported);
    if (status == DIBS_OK) status = dibs__redis_connect(location, 0, within(LONG_MS), &link, &reported);
    dibs__uri_free(&uri);
  }
  if (status != wanted || !strstr(reported.text, words)) fail_msg("%s: %d, \"%s\"", text, status, reported.text);
  assert_null(strstr(reported.text, "secret"));
  assert_null(link);
  dibs__redis_location_free(location);
}

void bed_put(struct dibs__redis_link *link, const char *const words[]) {
  size_t lengths[32], count = 0;
  for (; words[count]; count++) lengths[count] = strlen(words[count]);
  assert_true(dibs__redis_put(link, count, words, lengths));
}

void bed_go(struct dibs__redis_link *link) {
  struct dibs__result reported = {.text = ""};
  dibs__status status = dibs__redis_go(link, within(LONG_MS), &reported);
  if (status != DIBS_OK) fail_msg("%s", reported.text);
}

const redisReply *bed_run(struct dibs__redis_link *link, const char *const words[]) {
  bed_put(link, words);
  bed_go(link);
  const redisReply *reply = dibs__redis_reply(link, 0);
  assert_non_null(reply);
  if (reply->type == REDIS_REPLY_ERROR) fail_msg("%s: %s", words[0], reply->str);
  return reply;
}

/* Does not use the driver to connect, because the driver may refuse the server. */
void bed_admin(const char *const words[]) {
  static struct dibs__redis_location *location;
  size_t lengths[32], count = 0;
  if (!location) location = bed_location(bed_admin_uri);
  for (; words[count]; count++) lengths[count] = strlen(words[count]);
  redisContext *context = redisConnect(location->hosts[0].host, location->hosts[0].port);
  assert_true(context && context->err == 0);
  redisReply *reply = redisCommand(context, "AUTH %s %s", location->user, location->password);
  assert_true(reply && reply->type != REDIS_REPLY_ERROR);
  freeReplyObject(reply);
  const char *copy[32];
  memcpy(copy, words, count * sizeof *copy);
  reply = redisCommandArgv(context, (int)count, copy, lengths);
  if (!reply || reply->type == REDIS_REPLY_ERROR) fail_msg("%s: %s", words[0], reply ? reply->str : context->errstr);
  freeReplyObject(reply);
  redisFree(context);
}

void bed_servers(const char *verb) {
  char command[512];
  snprintf(command, sizeof command, "\"$DIBS_TEST_SERVERS_SCRIPT\" %s redis >/dev/null", verb);
  assert_int_equal(system(command), 0);
}

/* SPDX-License-Identifier: MIT */
#include "bed.h"

#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LONG_MS = 20000 };

static struct {
  const char *servers;
  char dirs[NODES_MAX][160];
  uint16_t ports[NODES_MAX];
  size_t count;
  bool down[NODES_MAX], paused[NODES_MAX];
  char prefix[32];
} bed;

void bed_begin(void) {
  const char *at = getenv("DIBS_REDLOCK_NODES");
  unsigned port;
  int used;
  bed.servers = getenv("DIBS_REDLOCK_SERVERS");
  if (!at || !bed.servers) {
    fprintf(stderr, "run this through nodes.sh\n");
    exit(2);
  }
  while (bed.count < NODES_MAX && sscanf(at, "%159s %u %n", bed.dirs[bed.count], &port, &used) == 2) {
    bed.ports[bed.count++] = (uint16_t)port;
    at += used;
  }
  contract_begin("redlock://a,b,c");
}

/* ---- Nodes ---- */

static void control(const char *verb, size_t node) {
  char line[512];
  assert_true(node < bed.count);
  snprintf(line, sizeof line, "env -u LD_PRELOAD '%s' %s --dir '%s' redis >/dev/null 2>&1", bed.servers, verb,
           bed.dirs[node]);
  assert_int_equal(system(line), 0);
}

void node_kill(size_t node) {
  if (bed.paused[node]) node_resume(node);
  control("kill", node);
  bed.down[node] = true;
}

void node_start(size_t node) {
  control("start", node);
  bed.down[node] = false;
}

void node_pause(size_t node) {
  control("pause", node);
  bed.paused[node] = true;
}

void node_resume(size_t node) {
  control("resume", node);
  bed.paused[node] = false;
}

uint16_t node_port(size_t node) {
  return bed.ports[node];
}

int64_t node_say(size_t node, const char *format, ...) {
  va_list args;
  redisContext *c = redisConnect("127.0.0.1", bed.ports[node]);
  if (!c || c->err) fail_msg("node %zu: %s", node, c ? c->errstr : "no memory");
  redisReply *reply = redisCommand(c, "AUTH dibs dibs-secret");
  freeReplyObject(reply);
  va_start(args, format);
  reply = redisvCommand(c, format, args);
  va_end(args);
  int64_t number = -1;
  if (reply && reply->type == REDIS_REPLY_INTEGER) number = reply->integer;
  if (reply && reply->type == REDIS_REPLY_STRING) number = strtoll(reply->str, NULL, 10);
  if (reply && reply->type == REDIS_REPLY_ERROR) print_error("%s\n", reply->str);
  freeReplyObject(reply);
  redisFree(c);
  return number;
}

const char *key_of(const char *name) {
  static char key[400];
  dibs__str n = name_of(name);
  snprintf(key, sizeof key, "%s:rl:n:%.*s", bed.prefix, (int)n.len, n.p);
  return key;
}

const char *bucket_key_of(const char *name) {
  static char key[64];
  snprintf(key, sizeof key, "%s:rl:{%u}", bed.prefix, (unsigned)bucket_of(name));
  return key;
}

/* ---- Cases ---- */

int bed_case(void **state) {
  uint32_t salt;
  dibs__random(&salt, sizeof salt);
  snprintf(bed.prefix, sizeof bed.prefix, "t%08x", salt);
  return case_begin(state);
}

int bed_case_end(void **state) {
  for (size_t i = 0; i < bed.count; i++) {
    if (bed.paused[i]) node_resume(i);
    if (bed.down[i]) node_start(i);
  }
  return case_end(state);
}

/* ---- Stores ---- */

const char *quorum(size_t count, const char *params, const uint16_t ports[]) {
  static char uri[600];
  size_t len = (size_t)snprintf(uri, sizeof uri, "redlock://dibs:dibs-secret@");
  assert_true(count <= bed.count);
  for (size_t i = 0; i < count; i++)
    len += (size_t)snprintf(uri + len, sizeof uri - len, "%s127.0.0.1:%u", i ? "," : "",
                            (unsigned)(ports ? ports[i] : bed.ports[i]));
  /* Long, because the machine may be busy; cases about pauses use a shorter one. */
  snprintf(uri + len, sizeof uri - len, "/0?prefix=%s%s%s", bed.prefix, params,
           strstr(params, "node_timeout") ? "" : "&node_timeout=4000");
  return uri;
}

struct answer send_request(struct party *p, enum dibs__lease_verb verb, const char *name, int id, dibs__fence fence,
                           struct how how) {
  if (how.ttl == 0) how.ttl = LONG_TTL;
  struct answer a = {.op = lease_op(p, verb, name, id, how)};
  struct dibs__op *ops[] = {&a.op.op};
  int64_t began = now_ms();
  a.op.fence = fence;
  a.op.op.status = DIBS_UNKNOWN;
  a.run = store_of(p)->driver->run(p->session, ops, 1, dibs__tick_add_ms(dibs__tick_now(), 5000), &a.reported);
  a.took_ms = now_ms() - began;
  return a;
}

struct dibs__lease_op granted_at_last(struct party *p, const char *name, int id, uint32_t ttl_ms) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), LONG_MS);
  for (;;) {
    struct answer a = request_for(p, name, id, .ttl = ttl_ms);
    if (a.op.op.status == DIBS_OK) return a.op;
    if (!dibs__tick_before(dibs__tick_now(), by)) fail_msg("%s: %s", status_name(a.op.op.status), a.reported.text);
    dibs__nap_ms(5);
  }
}

int64_t now_ms(void) {
  return dibs__tick_now().ns / DIBS__NS_PER_MS;
}

/* SPDX-License-Identifier: MIT */
/*
 * The connections of a stage have the same time, so a list that is appended to is in the order of the deadlines.
 * Everything here belongs to the loop.
 */
#include "serve/connection.h"
#include "serve/server.h"

#include <stdlib.h>
#include <sys/socket.h>

/* 0: no deadline. */
static uint32_t stage_s(const struct serve_config *config, enum stage stage) {
  return config->read_s == 0      ? 0
         : stage == STAGE_IDLE    ? config->idle_s + config->read_s
         : stage == STAGE_READING ? config->read_s
                                  : config->send_s;
}

static void leave_stage(struct connection *c) {
  struct connections *list = c->stage < STAGE_COUNT ? &c->server->connections[c->stage] : NULL;
  if (!list) return;
  if (c->before)
    c->before->after = c->after;
  else
    list->first = c->after;
  if (c->after)
    c->after->before = c->before;
  else
    list->last = c->before;
  c->stage = STAGE_RUNNING;
}

void dibs__connection_stage(struct connection *c, enum stage stage) {
  if (!c) return;
  leave_stage(c);
  if (stage >= STAGE_COUNT || stage_s(&c->server->config, stage) == 0) return;
  c->stage = stage;
  struct connections *list = &c->server->connections[stage];
  c->by = dibs__tick_add_ms(dibs__tick_now(), INT64_C(1000) * stage_s(&c->server->config, stage));
  c->before = list->last;
  c->after = NULL;
  if (list->last)
    list->last->after = c;
  else
    list->first = c;
  list->last = c;
}

struct connection *dibs__connection_of(struct MHD_Connection *mhd) {
  const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
  return info ? info->socket_context : NULL;
}

void dibs__connection_notify(void *shard, struct MHD_Connection *mhd, void **context,
                             enum MHD_ConnectionNotificationCode code) {
  struct connection *c = *context;
  struct shard *in = shard;
  struct server *s = in->server;
  if (code == MHD_CONNECTION_NOTIFY_STARTED) {
    s->connection_count++;
    in->connections++;
    c = calloc(1, sizeof *c);
    if (!c) return;
    *c = (struct connection){.server = s, .mhd = mhd, .stage = STAGE_RUNNING};
    *context = c;
    dibs__connection_stage(c, STAGE_IDLE);
    return;
  }
  s->connection_count--;
  in->connections--;
  *context = NULL;
  if (c) leave_stage(c);
  free(c);
}

/* libmicrohttpd sees the end of the stream, and closes the connection; then the kernel drops what the client did not
 * read. */
static void cut(struct connection *c) {
  struct linger drop = {.l_onoff = 1};
  int fd = MHD_get_connection_info(c->mhd, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
  leave_stage(c);
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &drop, sizeof drop);
  shutdown(fd, SHUT_RDWR);
}

void dibs__connections_tick(struct server *server, dibs__tick now) {
  for (int stage = 0; stage < STAGE_COUNT; stage++)
    for (struct connection *c; (c = server->connections[stage].first) && !dibs__tick_before(now, c->by);) cut(c);
}

dibs__tick dibs__connections_next(const struct server *server) {
  dibs__tick next = DIBS__TICK_NEVER;
  for (int stage = 0; stage < STAGE_COUNT; stage++) {
    const struct connection *c = server->connections[stage].first;
    if (c) next = dibs__tick_min(next, c->by);
  }
  return next;
}

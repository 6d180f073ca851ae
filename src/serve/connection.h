/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SERVE_CONNECTION_H
#define DIBS_SERVE_CONNECTION_H
/*
 * Connections and how long a client may take.  libmicrohttpd closes a connection without any traffic (--idle), so a
 * client that sends or reads a byte from time to time would keep it for ever.  Here each stage of a connection has a
 * deadline, and a connection that misses it is shut down, without an answer: the client is not reading, or has not
 * finished asking.
 */
#include "base/port.h"

#include <microhttpd.h>
#include <stdbool.h>

struct server;

enum stage {
  STAGE_IDLE,    /* until the request line is complete: idle and read together */
  STAGE_READING, /* until headers and body are complete: read */
  STAGE_SENDING, /* until the client has taken the answer: send */
  STAGE_COUNT,
  STAGE_RUNNING /* the request is the server's: no deadline */
};

struct connection {
  struct server *server;
  struct MHD_Connection *mhd;
  enum stage stage;
  dibs__tick by;
  struct connection *before, *after; /* of the same stage, the earliest deadline first */
};

/* For MHD_OPTION_NOTIFY_CONNECTION, with the shard as its argument. */
void dibs__connection_notify(void *shard, struct MHD_Connection *mhd, void **context,
                             enum MHD_ConnectionNotificationCode code);
/* NULL: there was no memory for it when it began, and it is not limited. */
struct connection *dibs__connection_of(struct MHD_Connection *mhd);
/* A new stage, and its deadline.  Accepts NULL. */
void dibs__connection_stage(struct connection *c, enum stage stage);
/* Shuts down connections that missed their deadlines. */
void dibs__connections_tick(struct server *server, dibs__tick now);
/* The earliest deadline. */
dibs__tick dibs__connections_next(const struct server *server);

#endif

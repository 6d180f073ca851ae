/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SERVE_LOG_H
#define DIBS_SERVE_LOG_H
/*
 * The access log: a line of JSON for each request.  It has no query, no header and no body, because they contain
 * tokens, lease ids and the data of users; the only header is `traceparent`, if it is well-formed.
 */
#include "base/json.h"
#include "dibs.h"

#include <stdbool.h>

struct server;
struct request;

struct log {
  int fd; /* -1: there is no log */
  bool regular, failing;
  struct dibs__json lines; /* not yet written */
  uint64_t dropped;        /* since the reader of a pipe is too slow, or memory is missing */
};

/* Opens the file of the configuration, "-" for standard output; nothing if it names none. */
dibs_status dibs__log_open(struct server *server, dibs_error *error);
/* Opens it again, after it was moved; after a failure the server continues with the file that it has. */
void dibs__log_reload(struct server *server);
void dibs__log_close(struct server *server);
/* The request ends. */
void dibs__log_request(const struct request *r);
/* Writes what the round has added.  It does not wait for the reader of a pipe. */
void dibs__log_flush(struct server *server);

#endif

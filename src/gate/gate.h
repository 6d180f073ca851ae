/* SPDX-License-Identifier: MIT */
#ifndef DIBS_GATE_GATE_H
#define DIBS_GATE_GATE_H
/*
 * The gate: a reverse proxy in front of a service that does not check fences.  It checks and remembers the fence of a
 * request in the store, in one step, before the request goes on; keeps the requests of a name in order; and answers a
 * request that is repeated with its Idempotency-Key from what it stored.
 */
#include "serve/serve.h"

#include <stdbool.h>

/* Which requests must have a fence. */
enum gate_require { GATE_REQUIRE_WRITES, GATE_REQUIRE_ALL, GATE_REQUIRE_NONE };

struct gate_config {
  struct serve_config serve; /* body_bytes: of a request with an Idempotency-Key, which is kept in memory */
  const char *upstream;      /* "http://host:8080/base", "https://host", "unix:/run/app.sock" */
  const char *ca;            /* a file of certificates that sign the service's; NULL: those of the system */
  const char *scope;         /* keys belong to it; NULL: `upstream` */
  const char *metrics;       /* an address for metrics and health, for this machine alone; NULL: none */
  enum gate_require require;
  bool order;          /* one request of a name at a time */
  bool check_lease;    /* a fence must be that of the name's lease in the store */
  int64_t wait_ms;     /* how long a request may wait for those before it */
  int64_t connect_ms;  /* until a connection to the service is made */
  int64_t silence_ms;  /* how long the service may send and take nothing */
  int64_t keep_ms;     /* how long an answer is kept */
  uint32_t head_bytes; /* of the headers of a request, and of an answer, at most */
  uint32_t upstream_connections;
};

/* Serves until TERM or INT.  `ready` is called once requests are taken.  OK; or why it could not begin. */
dibs_status dibs__gate(const struct gate_config *config, void (*ready)(const char *store), dibs_error *error);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_PROXY_FRAME_H
#define DIBS_TEST_PROXY_FRAME_H
/* Finds where one request of a client ends and the next begins, in the protocols that the proxy knows. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum frame_protocol { FRAME_RAW, FRAME_POSTGRES, FRAME_MYSQL, FRAME_REDIS };

/* At the beginning of a connection everything but the protocol is zero. */
struct framer {
  enum frame_protocol protocol;
  uint8_t head[32]; /* of a message, or a line of Redis, as far as it has arrived */
  size_t have;
  uint64_t left; /* remaining bytes of the body */
  uint64_t args; /* Redis: remaining arguments */
  uint8_t type;  /* PostgreSQL: of the message whose body follows */
  bool body;     /* the head is complete */
  bool started;  /* PostgreSQL: the start-up packet is complete */
};

/* Takes bytes up to the end of a request, or all of them if it has not ended. Returns how many it took; at least 1 if
 * `count` is not 0. */
size_t frame_take(struct framer *framer, const uint8_t *bytes, size_t size, bool *ended);
/* "raw", "postgres", "mysql", "redis". */
bool frame_protocol_named(const char *name, enum frame_protocol *out);

#endif

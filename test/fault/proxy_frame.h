/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_PROXY_FRAME_H
#define DIBS_TEST_PROXY_FRAME_H
/* Where one request of a client ends and the next begins, in the protocols that the proxy knows. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum frame_protocol { FRAME_RAW, FRAME_POSTGRES, FRAME_MYSQL, FRAME_REDIS };

/* Zero but for the protocol at a connection's begin. */
struct framer {
  enum frame_protocol protocol;
  uint8_t head[32]; /* of a message, or a line of Redis, as far as it is there */
  size_t have;
  uint64_t left; /* bytes of the body to come */
  uint64_t args; /* Redis: arguments to come */
  uint8_t type;  /* PostgreSQL: of the message whose body comes */
  bool body;     /* the head is complete */
  bool started;  /* PostgreSQL: the start-up packet is behind us */
};

/* Takes bytes up to the end of a request, or all of them when it has not ended.  Returns how many it took; at least 1
 * if there are any. */
size_t frame_take(struct framer *framer, const uint8_t *bytes, size_t size, bool *ended);
/* "raw", "postgres", "mysql", "redis". */
bool frame_protocol_named(const char *name, enum frame_protocol *out);

#endif

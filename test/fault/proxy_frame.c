/* SPDX-License-Identifier: MIT */
/*
 * The head of each message of a protocol gives the length of its body; this state machine reads heads byte by byte and
 * bodies at once.
 */
#include "proxy_frame.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static uint32_t big_endian(const uint8_t *at) {
  return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* ---- PostgreSQL ---- */

/* Requests for TLS or GSS precede the start-up packet and have its form. */
enum { CODE_TLS = 80877103, CODE_GSS = 80877104 };

/* The server processes these only after a Sync or Flush. */
static bool waits_for_sync(uint8_t type) {
  return strchr("PBDEC", type) != NULL && type != 0;
}

static bool postgres_head(struct framer *framer) {
  size_t lead = framer->started ? 1 : 0;
  /* Before the start-up the code counts as part of the head, because this function reads it. */
  if (framer->have < (framer->started ? 5 : 8)) return false;
  uint32_t length = big_endian(framer->head + lead);
  framer->type = framer->started ? framer->head[0] : 0;
  size_t known = framer->started ? 4 : 8;
  framer->left = length > known ? length - known : 0;
  if (!framer->started) {
    uint32_t code = big_endian(framer->head + 4);
    framer->started = code != CODE_TLS && code != CODE_GSS;
  }
  return true;
}

/* ---- MySQL ---- */

/* The next packet continues a full packet. */
enum { MYSQL_FULL = 0xffffff };

static bool mysql_head(struct framer *framer) {
  if (framer->have < 4) return false;
  framer->left = (uint64_t)framer->head[0] | (uint64_t)framer->head[1] << 8 | (uint64_t)framer->head[2] << 16;
  framer->type = framer->left == MYSQL_FULL;
  return true;
}

/* ---- Redis ---- */

static uint64_t number_of(const struct framer *framer) {
  char digits[sizeof framer->head + 1] = {0};
  memcpy(digits, framer->head + 1, framer->have - 1);
  return strtoull(digits, NULL, 10);
}

/* A line, which may be longer than the stored part. */
static bool redis_head(struct framer *framer) {
  if (framer->head[framer->have - 1] != '\n') {
    if (framer->have == sizeof framer->head) framer->have--;
    return false;
  }
  framer->left = 0;
  if (framer->head[0] == '*') framer->args = number_of(framer);
  if (framer->head[0] == '$') {
    framer->left = number_of(framer) + 2; /* and its \r\n */
    if (framer->args > 0) framer->args--;
  }
  return true;
}

/* ---- All ---- */

static bool head_complete(struct framer *framer) {
  switch (framer->protocol) {
  case FRAME_POSTGRES:
    return postgres_head(framer);
  case FRAME_MYSQL:
    return mysql_head(framer);
  case FRAME_REDIS:
    return redis_head(framer);
  case FRAME_RAW:
    break;
  }
  assert(!"raw bytes have no heads");
  return true;
}

static bool request_complete(const struct framer *framer) {
  switch (framer->protocol) {
  case FRAME_POSTGRES:
    return !waits_for_sync(framer->type);
  case FRAME_MYSQL:
    return framer->type == 0;
  case FRAME_REDIS:
    return framer->args == 0;
  case FRAME_RAW:
    break;
  }
  return true;
}

size_t frame_take(struct framer *framer, const uint8_t *bytes, size_t size, bool *ended) {
  *ended = framer->protocol == FRAME_RAW;
  if (*ended) return size;
  for (size_t at = 0; at < size;) {
    if (!framer->body) {
      assert(framer->have < sizeof framer->head);
      framer->head[framer->have++] = bytes[at++];
      framer->body = head_complete(framer);
    } else {
      size_t part = framer->left < size - at ? (size_t)framer->left : size - at;
      framer->left -= part;
      at += part;
    }
    if (framer->body && framer->left == 0) {
      framer->body = false;
      framer->have = 0;
      *ended = request_complete(framer);
      if (*ended) return at;
    }
  }
  return size;
}

bool frame_protocol_named(const char *name, enum frame_protocol *out) {
  static const char *const names[] = {"raw", "postgres", "mysql", "redis"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (strcmp(name, names[i]) != 0) continue;
    *out = (enum frame_protocol)i;
    return true;
  }
  return false;
}

/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as a message of an http:// store: as a batch that a daemon reads, and as the answers that a driver reads.
 * An accepted operation is within the limits, and is written and read again as the same.
 */
#include "fuzz.h"
#include "store/message.h"

#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                                                    \
  do                                                                                                                   \
    if (!(what)) abort();                                                                                              \
  while (0)

enum { LEFT_MS = 1000, OPS_MAX = 64 };

static struct dibs__reader reader_of(const uint8_t *bytes, size_t size) {
  return (struct dibs__reader){bytes, bytes + size, false};
}

static const char *keep(void *context, dibs__str text) {
  (void)context;
  return text.len < 5 ? "tier" : NULL;
}

/* An operation that was read is sent by a driver as it is. */
static void send_again(const struct dibs__op *op) {
  struct dibs__writer first = {0}, second = {0};
  struct dibs__read_op again = {.arrays = {NULL}};
  bool no_memory;
  CHECK(dibs__op_check(op) == DIBS_OK);
  dibs__write_op(&first, op, LEFT_MS);
  struct dibs__reader r = reader_of(first.bytes, first.length);
  CHECK(dibs__read_op(&r, DIBS__TICK_ZERO, &again, &no_memory) && dibs__reader_done(&r));
  dibs__write_op(&second, &again.op, LEFT_MS);
  CHECK(first.length == second.length && memcmp(first.bytes, second.bytes, first.length) == 0);
  dibs__read_op_free(&again);
  dibs__writer_free(&first);
  dibs__writer_free(&second);
}

/* The rest of the message as its answer; what is accepted is written again. */
static void answer(struct dibs__read_op *op, struct dibs__reader *r) {
  struct dibs__writer w = {0};
  if (!dibs__read_answer(r, &op->op, keep, NULL)) return;
  dibs__write_answer(&w, &op->op);
  CHECK(!w.failed);
  dibs__writer_free(&w);
}

static void read_ops(const uint8_t *bytes, size_t size, bool answers) {
  struct dibs__reader r = reader_of(bytes, size);
  for (int i = 0; i < OPS_MAX && !r.bad && r.at < r.end; i++) {
    struct dibs__read_op op = {.arrays = {NULL}};
    bool no_memory;
    if (dibs__read_op(&r, DIBS__TICK_ZERO, &op, &no_memory)) {
      send_again(&op.op);
      if (answers) answer(&op, &r);
    }
    dibs__read_op_free(&op);
  }
}

static void read_others(const uint8_t *bytes, size_t size) {
  struct dibs__reader rows = reader_of(bytes, size), events = rows, hello = rows;
  struct dibs__lease_row row;
  struct dibs__event event;
  struct dibs__message_hello greeting;
  size_t touched = 0;
  bool more;
  while (dibs__read_row(&rows, &row, &more))
    for (uint32_t i = 0; i < row.name.len; i++) touched += (unsigned char)row.name.p[i];
  for (int i = 0; i < OPS_MAX && !events.bad; i++) dibs__read_event(&events, &event);
  dibs__read_hello(&hello, &greeting);
  CHECK(touched <= size * 255);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  uint8_t *exact = malloc(size ? size : 1); /* of exactly this size, so that a sanitizer reports reads beyond it */
  uint32_t format;
  CHECK(exact);
  if (size) memcpy(exact, data, size);
  struct dibs__reader r = reader_of(exact, size);
  (void)dibs__message_kind(&r, &format);
  read_ops(exact, size, false);
  read_ops(exact, size, true);
  read_others(exact, size);
  free(exact);
  return 0;
}

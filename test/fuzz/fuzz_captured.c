/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as the stored output of `dibs once`: refused, or parts that lie within them.  And any bytes as the output
 * of a command, in pieces on both streams: the stored part reads as it was written.
 */
#include "cli/cli.h"
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                                                    \
  do                                                                                                                   \
    if (!(what)) abort();                                                                                              \
  while (0)

static void read_captured(const char *text, size_t length) {
  struct captured_result told;
  if (!dibs__cli_captured_read(text, length, &told)) return;
  CHECK(told.status >= 0 && told.status <= 255 && told.took_ms >= 0);
  size_t at = 0, len;
  uint64_t sum = 0;
  int stream;
  const char *bytes;
  while (dibs__cli_captured_next(&told, &at, &stream, &bytes, &len)) {
    CHECK(stream == CAPTURED_OUT || stream == CAPTURED_ERR);
    CHECK(bytes >= text && bytes + len <= text + length);
    sum += len;
  }
  CHECK(at == told.len && sum + told.left_out == told.written[CAPTURED_OUT] + told.written[CAPTURED_ERR]);
}

/* Pieces: one byte whose lowest bit is the stream and whose other bits are the length. */
static void write_captured(const char *text, size_t length) {
  struct captured captured;
  char *written[CAPTURED_STREAMS] = {malloc(length + 1), malloc(length + 1)};
  size_t lengths[CAPTURED_STREAMS] = {0, 0}, at = 0, whole_length, next = 0, len, there[CAPTURED_STREAMS] = {0, 0};
  CHECK(written[0] && written[1]);
  dibs__cli_captured_begin(&captured);
  while (at < length) {
    int stream = text[at] & 1;
    size_t piece = (uint8_t)text[at++] / 2;
    if (piece > length - at) piece = length - at;
    dibs__cli_captured_add(&captured, stream, text + at, piece);
    memcpy(written[stream] + lengths[stream], text + at, piece);
    lengths[stream] += piece;
    at += piece;
  }
  char *whole = dibs__cli_captured_whole(&captured, (int)(length % 256), (int64_t)length, &whole_length);
  struct captured_result told;
  CHECK(whole && whole_length <= DIBS_RECORD_MAX && dibs__cli_captured_read(whole, whole_length, &told));
  CHECK(told.status == (int)(length % 256) && told.left_out == captured.left_out);
  int stream;
  const char *bytes;
  while (dibs__cli_captured_next(&told, &next, &stream, &bytes, &len)) {
    CHECK(there[stream] + len <= lengths[stream] && memcmp(written[stream] + there[stream], bytes, len) == 0);
    there[stream] += len;
  }
  CHECK(there[0] + there[1] + told.left_out == lengths[0] + lengths[1]);
  free(whole);
  free(written[0]);
  free(written[1]);
  dibs__cli_captured_free(&captured);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = malloc(size + 1); /* of exactly this size, so that a sanitizer reports reads beyond it */
  CHECK(text);
  if (size > 0) memcpy(text, data, size);
  read_captured(text, size);
  write_captured(text, size);
  free(text);
  return 0;
}

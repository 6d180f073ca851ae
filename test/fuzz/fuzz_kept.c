/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as what `dibs once` has kept: refused, or parts that lie within them.  And any bytes as what a command
 * writes, in pieces to both streams: what is kept of it reads as what was written.
 */
#include "cli/kept.h"
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                                                    \
  do                                                                                                                   \
    if (!(what)) abort();                                                                                              \
  while (0)

static void read_it(const char *text, size_t length) {
  struct told told;
  if (!dibs__cli_told_read(text, length, &told)) return;
  CHECK(told.status >= 0 && told.status <= 255 && told.took_ms >= 0);
  size_t at = 0, len;
  uint64_t sum = 0;
  int stream;
  const char *bytes;
  while (dibs__cli_told_next(&told, &at, &stream, &bytes, &len)) {
    CHECK(stream == KEPT_OUT || stream == KEPT_ERR);
    CHECK(bytes >= text && bytes + len <= text + length);
    sum += len;
  }
  CHECK(at == told.len && sum + told.left_out == told.written[KEPT_OUT] + told.written[KEPT_ERR]);
}

/* Pieces: a byte whose lowest bit is the stream and whose others tell how long it is. */
static void keep_it(const char *text, size_t length) {
  struct kept kept;
  char *written[KEPT_STREAMS] = {malloc(length + 1), malloc(length + 1)};
  size_t lengths[KEPT_STREAMS] = {0, 0}, at = 0, whole_length, next = 0, len, there[KEPT_STREAMS] = {0, 0};
  CHECK(written[0] && written[1]);
  dibs__cli_kept_begin(&kept);
  while (at < length) {
    int stream = text[at] & 1;
    size_t piece = (uint8_t)text[at++] / 2;
    if (piece > length - at) piece = length - at;
    dibs__cli_kept_add(&kept, stream, text + at, piece);
    memcpy(written[stream] + lengths[stream], text + at, piece);
    lengths[stream] += piece;
    at += piece;
  }
  char *whole = dibs__cli_kept_whole(&kept, (int)(length % 256), (int64_t)length, &whole_length);
  struct told told;
  CHECK(whole && whole_length <= DIBS_RECORD_MAX && dibs__cli_told_read(whole, whole_length, &told));
  CHECK(told.status == (int)(length % 256) && told.left_out == kept.left_out);
  int stream;
  const char *bytes;
  while (dibs__cli_told_next(&told, &next, &stream, &bytes, &len)) {
    CHECK(there[stream] + len <= lengths[stream] && memcmp(written[stream] + there[stream], bytes, len) == 0);
    there[stream] += len;
  }
  CHECK(there[0] + there[1] + told.left_out == lengths[0] + lengths[1]);
  free(whole);
  free(written[0]);
  free(written[1]);
  dibs__cli_kept_free(&kept);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = malloc(size + 1); /* of just this size, so that a step beyond is seen */
  CHECK(text);
  if (size > 0) memcpy(text, data, size);
  read_it(text, size);
  keep_it(text, size);
  free(text);
  return 0;
}

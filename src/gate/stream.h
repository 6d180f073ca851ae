/* SPDX-License-Identifier: MIT */
#ifndef DIBS_GATE_STREAM_H
#define DIBS_GATE_STREAM_H
/* Bytes on their way: added at the end, taken from the beginning. */
#include <stdbool.h>
#include <stddef.h>

struct stream {
  char *memory;
  size_t at, length, capacity; /* `length` bytes from `at` */
  bool ended;                  /* nothing will be added */
};

/* How much memory adding so many bytes would allocate. */
size_t dibs__stream_growth(const struct stream *stream, size_t length);
/* false: there is no memory, and nothing was added. */
bool dibs__stream_add(struct stream *stream, const void *bytes, size_t length);
/* Up to `size` bytes; how many. */
size_t dibs__stream_take(struct stream *stream, void *to, size_t size);
void dibs__stream_free(struct stream *stream);
static inline const char *dibs__stream_bytes(const struct stream *stream) {
  return stream->memory ? stream->memory + stream->at : "";
}

#endif

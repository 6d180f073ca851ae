/* SPDX-License-Identifier: MIT */
#include "gate/stream.h"

#include <stdlib.h>
#include <string.h>

enum { CAPACITY_FIRST = 4096 };

size_t dibs__stream_growth(const struct stream *stream, size_t length) {
  size_t capacity = stream->capacity ? stream->capacity : CAPACITY_FIRST;
  while (capacity < stream->length + length) capacity *= 2;
  return length == 0 ? 0 : capacity - stream->capacity;
}

bool dibs__stream_add(struct stream *stream, const void *bytes, size_t length) {
  if (length == 0) return true;
  if (stream->at + stream->length + length > stream->capacity && stream->at > 0) {
    memmove(stream->memory, stream->memory + stream->at, stream->length);
    stream->at = 0;
  }
  if (stream->length + length > stream->capacity) {
    size_t capacity = stream->capacity + dibs__stream_growth(stream, length);
    char *memory = realloc(stream->memory, capacity);
    if (!memory) return false;
    stream->memory = memory;
    stream->capacity = capacity;
  }
  memcpy(stream->memory + stream->at + stream->length, bytes, length);
  stream->length += length;
  return true;
}

size_t dibs__stream_take(struct stream *stream, void *to, size_t size) {
  size_t length = stream->length < size ? stream->length : size;
  if (length > 0) memcpy(to, stream->memory + stream->at, length);
  stream->length -= length;
  stream->at = stream->length > 0 ? stream->at + length : 0;
  return length;
}

void dibs__stream_free(struct stream *stream) {
  free(stream->memory);
  *stream = (struct stream){0};
}

/* SPDX-License-Identifier: MIT */
/* Numbers and texts as bytes: see bytes.h. */
#include "store/bytes.h"

#include <stdlib.h>
#include <string.h>

/* ---- Writing bytes ---- */

static uint8_t *take_space(struct dibs__writer *w, size_t size) {
  if (w->failed) return NULL;
  if (size > w->capacity - w->length) {
    size_t capacity = w->capacity ? w->capacity : 256;
    while (capacity - w->length < size) capacity *= 2;
    uint8_t *bytes = realloc(w->bytes, capacity);
    if (!bytes) {
      w->failed = true;
      return NULL;
    }
    w->bytes = bytes;
    w->capacity = capacity;
  }
  w->length += size;
  return w->bytes + w->length - size;
}

void dibs__write_bytes(struct dibs__writer *w, const void *bytes, size_t size) {
  uint8_t *to = take_space(w, size);
  if (to && size) memcpy(to, bytes, size);
}

void dibs__write_number(struct dibs__writer *w, uint64_t number) {
  uint8_t bytes[10];
  size_t count = 0;
  for (; number > 0x7f; number >>= 7) bytes[count++] = (uint8_t)(number | 0x80);
  bytes[count++] = (uint8_t)number;
  dibs__write_bytes(w, bytes, count);
}

void dibs__write_signed(struct dibs__writer *w, int64_t number) {
  dibs__write_number(w, number < 0 ? ~(uint64_t)number << 1 | 1 : (uint64_t)number << 1);
}

void dibs__write_text(struct dibs__writer *w, dibs__str text) {
  dibs__write_number(w, text.len);
  dibs__write_bytes(w, text.p, text.len);
}

void dibs__writer_free(struct dibs__writer *w) {
  free(w->bytes);
  *w = (struct dibs__writer){0};
}

/* ---- Reading bytes ---- */

size_t dibs__reader_left(const struct dibs__reader *r) {
  return r->bad ? 0 : (size_t)(r->end - r->at);
}

uint64_t dibs__read_number(struct dibs__reader *r, uint64_t most) {
  uint64_t number = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    if (dibs__reader_left(r) == 0) break;
    uint8_t byte = *r->at++;
    if (shift == 63 && byte > 1) break;
    number |= (uint64_t)(byte & 0x7f) << shift;
    if (byte & 0x80) continue;
    if (number > most) break;
    return number;
  }
  r->bad = true;
  return 0;
}

int64_t dibs__read_signed(struct dibs__reader *r, int64_t least, int64_t most) {
  uint64_t folded = dibs__read_number(r, UINT64_MAX);
  int64_t number = (int64_t)(folded >> 1);
  if (folded & 1) number = -number - 1;
  if (!r->bad && number >= least && number <= most) return number;
  r->bad = true;
  return 0;
}

dibs__str dibs__read_text(struct dibs__reader *r, size_t most) {
  size_t length = (size_t)dibs__read_number(r, most < UINT32_MAX ? most : UINT32_MAX);
  if (r->bad || length > dibs__reader_left(r)) {
    r->bad = true;
    return (dibs__str){"", 0};
  }
  dibs__str text = {(const char *)r->at, (uint32_t)length};
  r->at += length;
  return text;
}

void dibs__read_bytes(struct dibs__reader *r, void *to, size_t size) {
  r->bad = r->bad || size > dibs__reader_left(r);
  if (r->bad) {
    memset(to, 0, size);
    return;
  }
  memcpy(to, r->at, size);
  r->at += size;
}

bool dibs__reader_done(const struct dibs__reader *r) {
  return !r->bad && r->at == r->end;
}

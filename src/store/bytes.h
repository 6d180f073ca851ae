/* SPDX-License-Identifier: MIT */
#ifndef DIBS_STORE_BYTES_H
#define DIBS_STORE_BYTES_H
/* Numbers and texts as bytes, in the form that store/message.h describes. */
#include "store/store.h"

struct dibs__writer {
  uint8_t *bytes; /* malloc'd */
  size_t length, capacity;
  bool failed; /* no memory: what was written later is missing */
};

struct dibs__reader {
  const uint8_t *at, *end;
  bool bad; /* what was read since has no meaning */
};

void dibs__write_number(struct dibs__writer *w, uint64_t number);
void dibs__write_signed(struct dibs__writer *w, int64_t number);
void dibs__write_text(struct dibs__writer *w, dibs__str text);
void dibs__write_bytes(struct dibs__writer *w, const void *bytes, size_t size); /* without a length */
void dibs__writer_free(struct dibs__writer *w);

uint64_t dibs__read_number(struct dibs__reader *r, uint64_t most);
int64_t dibs__read_signed(struct dibs__reader *r, int64_t least, int64_t most);
dibs__str dibs__read_text(struct dibs__reader *r, size_t most); /* points into the message */
void dibs__read_bytes(struct dibs__reader *r, void *to, size_t size);
/* The bytes that were not read; 0: the message is bad. */
size_t dibs__reader_left(const struct dibs__reader *r);
/* All was read, and was well-formed. */
bool dibs__reader_done(const struct dibs__reader *r);

#endif

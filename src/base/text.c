/* SPDX-License-Identifier: MIT */
#include "base/text.h"

#include "base/port.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- Hex ---- */

DIBS__MODULE_API void dibs__hex_write(const uint8_t from[16], char to[33]) {
  static const char digits[] = "0123456789abcdef";
  for (size_t i = 0; i < 16; i++) {
    to[2 * i] = digits[from[i] >> 4];
    to[2 * i + 1] = digits[from[i] & 15];
  }
  to[32] = '\0';
}

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

DIBS__MODULE_API bool dibs__hex_read(const char *from, uint8_t to[16]) {
  uint8_t bytes[16];
  for (size_t i = 0; i < 32; i++) {
    int digit = hex_digit(from[i]); /* a NUL is not a digit: no byte after it is read */
    if (digit < 0) return false;
    bytes[i / 2] = (uint8_t)(i % 2 ? bytes[i / 2] << 4 | digit : digit);
  }
  if (from[32] != '\0') return false;
  memcpy(to, bytes, sizeof bytes);
  return true;
}

/* ---- UTF-8 ---- */

/* The length of a sequence by its first byte; 0 if the byte begins none. */
static size_t utf8_size(uint8_t first) {
  if (first < 0x80) return 1;
  if (first < 0xc2) return 0;
  if (first < 0xe0) return 2;
  if (first < 0xf0) return 3;
  if (first < 0xf5) return 4;
  return 0;
}

DIBS__MODULE_API size_t dibs__utf8_next(const char *p, size_t len, uint32_t *code) {
  *code = 0;
  if (len == 0) return 0;
  uint8_t first = (uint8_t)p[0];
  size_t size = utf8_size(first);
  if (size == 0 || size > len) return 0;
  uint32_t c = size == 1 ? first : first & (0x7fu >> size);
  for (size_t i = 1; i < size; i++) {
    uint8_t next = (uint8_t)p[i];
    if ((next & 0xc0) != 0x80) return 0;
    c = c << 6 | (next & 0x3f);
  }
  static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  if (c < least[size] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff)) return 0;
  *code = c;
  return size;
}

size_t dibs__utf8_cut(const char *p, size_t len) {
  /* Goes back over continuation bytes, at most three, to the beginning of the last sequence. */
  for (size_t back = 1; back <= 4 && back <= len; back++) {
    uint8_t byte = (uint8_t)p[len - back];
    if ((byte & 0xc0) == 0x80) continue;
    return utf8_size(byte) > back ? len - back : len;
  }
  return len;
}

enum dibs__name_flaw dibs__name_check(const char *p, size_t len, size_t max, size_t *at) {
  if (at) *at = 0;
  if (len == 0) return DIBS__NAME_EMPTY;
  if (len > max) {
    if (at) *at = max;
    return DIBS__NAME_LONG;
  }
  for (size_t i = 0; i < len;) {
    uint32_t code;
    size_t size = dibs__utf8_next(p + i, len - i, &code);
    if (at) *at = i;
    if (size == 0) return DIBS__NAME_NOT_UTF8;
    if (code < 0x20 || (code >= 0x7f && code <= 0x9f)) return DIBS__NAME_CONTROL;
    i += size;
  }
  if (at) *at = 0;
  return DIBS__NAME_OK;
}

const char *dibs__name_flaw_text(enum dibs__name_flaw flaw) {
  switch (flaw) {
  case DIBS__NAME_OK:
    return "is fine";
  case DIBS__NAME_EMPTY:
    return "is empty";
  case DIBS__NAME_LONG:
    return "is too long";
  case DIBS__NAME_NOT_UTF8:
    return "is not UTF-8";
  case DIBS__NAME_CONTROL:
    return "has a control character";
  }
  return "?";
}

/* ---- Building ---- */

DIBS__MODULE_API void dibs__text_begin(struct dibs__text *text, char *to, size_t size) {
  assert(to && size > 0);
  *text = (struct dibs__text){.to = to, .size = size};
  to[0] = '\0';
}

void dibs__text_add(struct dibs__text *text, const char *p, size_t len) {
  assert(text->len < text->size);
  if (text->cut || len == 0) return;
  size_t capacity = text->size - 1 - text->len;
  size_t keep = len;
  if (len > capacity) {
    text->cut = true;
    keep = dibs__utf8_cut(p, capacity);
  }
  memcpy(text->to + text->len, p, keep);
  text->len += keep;
  text->to[text->len] = '\0';
}

DIBS__MODULE_API void dibs__text_adds(struct dibs__text *text, const char *s) {
  dibs__text_add(text, s, strlen(s));
}

DIBS__MODULE_API void dibs__text_addf(struct dibs__text *text, const char *format, ...) {
  assert(text->len < text->size);
  if (text->cut) return;
  size_t capacity = text->size - text->len;
  char *to = text->to + text->len;
  va_list args;
  va_start(args, format);
  int n = vsnprintf(to, capacity, format, args);
  va_end(args);
  if (n < 0) {
    to[0] = '\0';
    text->cut = true;
  } else if ((size_t)n >= capacity) {
    text->cut = true;
    text->len += dibs__utf8_cut(to, capacity - 1);
    text->to[text->len] = '\0';
  } else {
    text->len += (size_t)n;
  }
}

/* The JSON escape of one character; false if it needs none. */
static bool json_escape(uint32_t code, char to[8]) {
  switch (code) {
  case '"':
    memcpy(to, "\\\"", 3);
    return true;
  case '\\':
    memcpy(to, "\\\\", 3);
    return true;
  case '\n':
    memcpy(to, "\\n", 3);
    return true;
  case '\t':
    memcpy(to, "\\t", 3);
    return true;
  default:
    break;
  }
  if (code >= 0x20 && !(code >= 0x7f && code <= 0x9f) && code != 0x2028 && code != 0x2029) return false;
  snprintf(to, 8, "\\u%04x", (unsigned)code & 0xffffu);
  return true;
}

DIBS__MODULE_API void dibs__text_add_json(struct dibs__text *text, const char *p, size_t len) {
  if (text->cut) return;
  size_t begin = text->len;
  dibs__text_add(text, "\"", 1);
  for (size_t i = 0; i < len && !text->cut;) {
    uint32_t code;
    char escaped[8];
    size_t size = dibs__utf8_next(p + i, len - i, &code);
    if (size == 0) {
      dibs__text_adds(text, "\xef\xbf\xbd");
      size = 1;
    } else if (json_escape(code, escaped)) {
      dibs__text_adds(text, escaped);
    } else {
      dibs__text_add(text, p + i, size);
    }
    i += size;
  }
  dibs__text_add(text, "\"", 1);
  if (text->cut) {
    text->len = begin;
    text->to[begin] = '\0';
  }
}

/* ---- Misspelt words ---- */

/* A longer word is not treated as misspelt. */
enum { WORD_MAX = 24 };

/* Edits between two words: change, insert, delete, swap of neighbours. */
static size_t distance(const char *a, const char *b) {
  size_t rows = strlen(a), columns = strlen(b);
  if (rows > WORD_MAX || columns > WORD_MAX) return WORD_MAX;
  size_t d[WORD_MAX + 1][WORD_MAX + 1];
  for (size_t i = 0; i <= rows; i++) d[i][0] = i;
  for (size_t j = 0; j <= columns; j++) d[0][j] = j;
  for (size_t i = 1; i <= rows; i++)
    for (size_t j = 1; j <= columns; j++) {
      size_t best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
      if (d[i - 1][j] + 1 < best) best = d[i - 1][j] + 1;
      if (d[i][j - 1] + 1 < best) best = d[i][j - 1] + 1;
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < best)
        best = d[i - 2][j - 2] + 1;
      d[i][j] = best;
    }
  return d[rows][columns];
}

const char *dibs__nearest(const char *wrong, const char *(*nth)(size_t i, const void *arg), const void *arg) {
  const char *near = NULL;
  size_t least = strlen(wrong) / 2 < 3 ? strlen(wrong) / 2 + 1 : 4;
  const char *word;
  for (size_t i = 0; (word = nth(i, arg)) != NULL; i++) {
    size_t d = distance(wrong, word);
    size_t length = strlen(wrong);
    /* "own" for "owner": a prefix is a good guess, too. */
    if (near == NULL && d >= least && length >= 2 && strncmp(wrong, word, length) == 0) d = least - 1;
    if (d < least) {
      least = d;
      near = word;
    }
  }
  return near;
}

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_BASE_TEXT_H
#define DIBS_BASE_TEXT_H
/* Hex, UTF-8, and building text in memory of a fixed size.  No function here allocates. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Hex ---- */

/* 32 lower-case digits and a NUL. */
void dibs__hex_write(const uint8_t from[16], char to[33]);
/* Reads exactly 32 digits of either case and then a NUL; with any other text it returns false and does not change `to`.
 */
bool dibs__hex_read(const char *from, uint8_t to[16]);

/* ---- UTF-8 ---- */

/* The length of the well-formed sequence at p (Unicode table 3-7: not overlong, no surrogate, at most U+10FFFF) and its
 * code point; 0 if there is none. */
size_t dibs__utf8_next(const char *p, size_t len, uint32_t *code);
/* How many of `len` bytes to keep so that the end does not cut a sequence in two. */
size_t dibs__utf8_cut(const char *p, size_t len);

enum dibs__name_flaw {
  DIBS__NAME_OK,
  DIBS__NAME_EMPTY,
  DIBS__NAME_LONG,
  DIBS__NAME_NOT_UTF8,
  DIBS__NAME_CONTROL /* C0, DEL, C1 */
};
/* Is it valid as a name of at most `max` bytes?  *at (may be NULL): the offset of the first bad byte. */
enum dibs__name_flaw dibs__name_check(const char *p, size_t len, size_t max, size_t *at);
/* "is empty", "is too long", ...: the end of a sentence whose subject is the name. */
const char *dibs__name_flaw_text(enum dibs__name_flaw flaw);

/* ---- Building ---- */

/* Text in the caller's buffer; always terminated, and never cut within a UTF-8 sequence.  A text that does not fit is
 * dropped, and so is all text after it; `cut` reports it. */
struct dibs__text {
  char *to;
  size_t size; /* of the buffer, > 0 */
  size_t len;  /* without the NUL */
  bool cut;
};
void dibs__text_begin(struct dibs__text *text, char *to, size_t size);
void dibs__text_add(struct dibs__text *text, const char *p, size_t len);
void dibs__text_adds(struct dibs__text *text, const char *s);
void dibs__text_addf(struct dibs__text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Adds a JSON string, with its quotes; a byte that is not UTF-8 becomes U+FFFD.  Adds all of it or nothing. */
void dibs__text_add_json(struct dibs__text *text, const char *p, size_t len);

/* ---- Misspelt words ---- */

/* The word nearest to a misspelt one, or NULL if no word is near.  `nth` returns the words and then NULL; "" is
 * skipped. */
const char *dibs__nearest(const char *wrong, const char *(*nth)(size_t i, const void *arg), const void *arg);

#endif

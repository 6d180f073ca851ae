/* SPDX-License-Identifier: MIT */
#ifndef DIBS_BASE_TEXT_H
#define DIBS_BASE_TEXT_H
/* Hex, UTF-8, and building text in memory of a fixed size.  Nothing here allocates. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Hex ---- */

/* 32 lower-case digits and a NUL. */
void dibs__hex_write(const uint8_t from[16], char to[33]);
/* Takes exactly 32 digits of either case and then a NUL; anything else is false and leaves `to` as it was. */
bool dibs__hex_read(const char *from, uint8_t to[16]);

/* ---- UTF-8 ---- */

/* Length of the well-formed sequence at p (Unicode table 3-7: no overlong, no surrogate, none above U+10FFFF) and its
 * code point; 0 when there is none. */
size_t dibs__utf8_next(const char *p, size_t len, uint32_t *code);
/* How many of `len` bytes can be kept so that no sequence is cut in two at the end. */
size_t dibs__utf8_cut(const char *p, size_t len);

enum dibs__name_flaw {
  DIBS__NAME_FINE,
  DIBS__NAME_EMPTY,
  DIBS__NAME_LONG,
  DIBS__NAME_NOT_UTF8,
  DIBS__NAME_CONTROL /* C0, DEL, C1 */
};
/* Is it fit to be a name of at most `max` bytes?  *at (may be NULL): the offset of the first bad byte. */
enum dibs__name_flaw dibs__name_check(const char *p, size_t len, size_t max, size_t *at);
/* "is empty", "is too long", ...: continues a sentence whose subject is the name. */
const char *dibs__name_flaw_text(enum dibs__name_flaw flaw);

/* ---- Building ---- */

/* Text in a buffer of the caller's; always terminated, and never cut within a UTF-8 sequence.  What does not fit is
 * dropped, and so is all that follows it: `cut` tells. */
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
/* As a JSON string, quotes included; bytes that are no UTF-8 become U+FFFD.  Added whole or not at all. */
void dibs__text_add_json(struct dibs__text *text, const char *p, size_t len);

#endif

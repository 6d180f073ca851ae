/* SPDX-License-Identifier: MIT */
#ifndef DIBS_BASE_JSON_H
#define DIBS_BASE_JSON_H
/* Writing JSON, to a file or into memory that grows. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Begin with {.out = FILE} or, for memory, zeroed.  Commas come by themselves, and a line end follows the outermost
 * closing bracket.  Members of an object have a key, elements of an array NULL.  When memory is missing, all later text
 * is dropped, and `failed` reports it. */
struct dibs__json {
  FILE *out;  /* NULL: `text` */
  char *text; /* malloc'd, not terminated; NULL: nothing was written */
  size_t length, capacity;
  int depth;
  bool comma, failed;
};
void dibs__json_open(struct dibs__json *json, const char *key, char bracket);
void dibs__json_close(struct dibs__json *json, char bracket);
/* NULL: null. */
void dibs__json_text(struct dibs__json *json, const char *key, const char *text);
/* The same with a length: a NUL byte becomes \u0000, bytes that are not UTF-8 become \ufffd. */
void dibs__json_bytes(struct dibs__json *json, const char *key, const char *text, size_t length);
void dibs__json_base64(struct dibs__json *json, const char *key, const char *bytes, size_t length);
void dibs__json_int(struct dibs__json *json, const char *key, int64_t number);
void dibs__json_uint(struct dibs__json *json, const char *key, uint64_t number);
/* null unless it is known, because 0 would be a value. */
void dibs__json_known(struct dibs__json *json, const char *key, int64_t number, bool known);
void dibs__json_real(struct dibs__json *json, const char *key, double number);
void dibs__json_bool(struct dibs__json *json, const char *key, bool yes);
/* Text that is JSON already. */
void dibs__json_raw(struct dibs__json *json, const char *key, const char *text, size_t length);
/* As it is, between values: a new line. */
void dibs__json_put(struct dibs__json *json, const char *text, size_t length);
void dibs__json_free(struct dibs__json *json);

#endif

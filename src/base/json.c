/* SPDX-License-Identifier: MIT */
#include "base/json.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_BYTES = 512 };

static bool make_room(struct dibs__json *json, size_t length) {
  if (json->failed) return false;
  if (json->capacity - json->length >= length) return true;
  size_t capacity = json->capacity ? json->capacity : FIRST_BYTES;
  while (capacity - json->length < length) capacity *= 2;
  char *text = realloc(json->text, capacity);
  json->failed = !text;
  if (!text) return false;
  json->text = text;
  json->capacity = capacity;
  return true;
}

void dibs__json_put(struct dibs__json *json, const char *text, size_t length) {
  if (json->out) {
    fwrite(text, 1, length, json->out);
    return;
  }
  if (length == 0 || !make_room(json, length)) return;
  memcpy(json->text + json->length, text, length);
  json->length += length;
}

static void put_char(struct dibs__json *json, char c) {
  dibs__json_put(json, &c, 1);
}

/* The character at `at`; a byte that is not UTF-8 is U+FFFD. */
static size_t next_of(const char *text, size_t length, size_t at, uint32_t *code) {
  uint8_t byte = (uint8_t)text[at];
  *code = byte;
  size_t size = byte < 0x80 ? 1 : dibs__utf8_next(text + at, length - at, code);
  if (size > 0) return size;
  *code = 0xfffd;
  return 1;
}

/* JSON demands the first four; other control characters would act on a terminal. */
static bool needs_escape(uint32_t code) {
  return code < 0x20 || code == '"' || code == '\\' || code == 0xfffd || (code >= 0x7f && code < 0xa0);
}

static void put_escape(struct dibs__json *json, uint32_t code) {
  static const char digits[] = "0123456789abcdef";
  char escape[6] = {'\\', (char)code};
  size_t size = 2;
  if (code == '\n') {
    escape[1] = 'n';
  } else if (code == '\t') {
    escape[1] = 't';
  } else if (code != '"' && code != '\\') {
    escape[1] = 'u';
    for (int i = 0; i < 4; i++) escape[2 + i] = digits[code >> (12 - 4 * i) & 15];
    size = sizeof escape;
  }
  dibs__json_put(json, escape, size);
}

static void put_text(struct dibs__json *json, const char *text, size_t length) {
  size_t plain = 0; /* from here on nothing was written */
  uint32_t code;
  put_char(json, '"');
  for (size_t at = 0, size; at < length; at += size) {
    size = next_of(text, length, at, &code);
    if (!needs_escape(code)) continue;
    dibs__json_put(json, text + plain, at - plain);
    put_escape(json, code);
    plain = at + size;
  }
  dibs__json_put(json, text + plain, length - plain);
  put_char(json, '"');
}

static void begin_value(struct dibs__json *json, const char *key) {
  if (json->comma) put_char(json, ',');
  json->comma = true;
  if (!key) return;
  put_text(json, key, strlen(key));
  put_char(json, ':');
}

void dibs__json_open(struct dibs__json *json, const char *key, char bracket) {
  begin_value(json, key);
  put_char(json, bracket);
  json->comma = false;
  json->depth++;
}

void dibs__json_close(struct dibs__json *json, char bracket) {
  put_char(json, bracket);
  json->comma = true;
  if (--json->depth > 0) return;
  put_char(json, '\n');
  json->comma = false;
}

void dibs__json_raw(struct dibs__json *json, const char *key, const char *text, size_t length) {
  begin_value(json, key);
  dibs__json_put(json, text, length);
}

void dibs__json_bytes(struct dibs__json *json, const char *key, const char *text, size_t length) {
  begin_value(json, key);
  if (text)
    put_text(json, text, length);
  else
    dibs__json_put(json, "null", 4);
}

void dibs__json_text(struct dibs__json *json, const char *key, const char *text) {
  dibs__json_bytes(json, key, text, text ? strlen(text) : 0);
}

void dibs__json_base64(struct dibs__json *json, const char *key, const char *bytes, size_t length) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  begin_value(json, key);
  put_char(json, '"');
  for (size_t at = 0; at < length; at += 3) {
    uint32_t three = 0;
    char four[4];
    for (size_t i = at; i < at + 3; i++) three = three << 8 | (i < length ? (uint8_t)bytes[i] : 0);
    for (size_t i = 0; i < 4; i++) four[i] = at + i <= length ? digits[three >> (18 - 6 * i) & 63] : '=';
    dibs__json_put(json, four, sizeof four);
  }
  put_char(json, '"');
}

void dibs__json_uint(struct dibs__json *json, const char *key, uint64_t number) {
  char digits[20];
  size_t at = sizeof digits;
  do digits[--at] = (char)('0' + number % 10);
  while ((number /= 10) > 0);
  dibs__json_raw(json, key, digits + at, sizeof digits - at);
}

void dibs__json_int(struct dibs__json *json, const char *key, int64_t number) {
  char text[24];
  dibs__json_raw(json, key, text, (size_t)snprintf(text, sizeof text, "%" PRId64, number));
}

void dibs__json_known(struct dibs__json *json, const char *key, int64_t number, bool known) {
  if (known)
    dibs__json_int(json, key, number);
  else
    dibs__json_text(json, key, NULL);
}

void dibs__json_real(struct dibs__json *json, const char *key, double number) {
  char text[400]; /* DBL_MAX has 309 digits before the point */
  /* Neither infinity nor "not a number" is JSON. */
  if (number - number != 0.0)
    dibs__json_text(json, key, NULL);
  else
    dibs__json_raw(json, key, text, (size_t)snprintf(text, sizeof text, "%.3f", number));
}

void dibs__json_bool(struct dibs__json *json, const char *key, bool yes) {
  dibs__json_raw(json, key, yes ? "true" : "false", yes ? 4 : 5);
}

void dibs__json_free(struct dibs__json *json) {
  free(json->text);
  *json = (struct dibs__json){0};
}

/* SPDX-License-Identifier: MIT */
/* The part of a store's URI that the floors need. */
#include "floor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = (char)(c | 0x20);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Decodes [from, to) into a NUL-terminated text; false when it does not fit. */
static bool decode(const char *from, const char *to, char *out, size_t size) {
  size_t used = 0;
  for (; from < to; from++) {
    if (used + 1 >= size) return false;
    char c = *from;
    if (c == '%' && to - from > 2 && hex_digit(from[1]) >= 0 && hex_digit(from[2]) >= 0) {
      c = (char)(hex_digit(from[1]) * 16 + hex_digit(from[2]));
      from += 2;
    }
    out[used++] = c;
  }
  out[used] = '\0';
  return true;
}

static bool cut_authority(const char *at, const char *end, struct floor_uri *uri) {
  const char *sign = memrchr(at, '@', (size_t)(end - at));
  if (sign) {
    const char *colon = memchr(at, ':', (size_t)(sign - at));
    if (!decode(at, colon ? colon : sign, uri->user, sizeof uri->user)) return false;
    if (colon && !decode(colon + 1, sign, uri->password, sizeof uri->password)) return false;
    at = sign + 1;
  }
  const char *comma = memchr(at, ',', (size_t)(end - at)); /* of several hosts, the first */
  if (comma) end = comma;
  const char *colon = memrchr(at, ':', (size_t)(end - at));
  if (colon) uri->port = (unsigned)strtoul(colon + 1, NULL, 10);
  return decode(at, colon ? colon : end, uri->host, sizeof uri->host);
}

bool floor_uri_cut(const char *text, struct floor_uri *uri) {
  memset(uri, 0, sizeof *uri);
  const char *at = strchr(text, ':');
  if (!at) return false;
  at++;
  const char *query = strchr(at, '?'), *end = query ? query : at + strlen(at);
  if (strncmp(at, "//", 2) == 0) {
    at += 2;
    const char *slash = memchr(at, '/', (size_t)(end - at));
    if (!cut_authority(at, slash ? slash : end, uri)) return false;
    at = slash ? slash : end;
  }
  if (query && strlen(query + 1) >= sizeof uri->query) return false;
  snprintf(uri->query, sizeof uri->query, "%s", query ? query + 1 : "");
  return decode(at, end, uri->path, sizeof uri->path);
}

bool floor_uri_param(const struct floor_uri *uri, const char *key, char *to, size_t size) {
  size_t length = strlen(key);
  for (const char *at = uri->query; at; at = strchr(at, '&') ? strchr(at, '&') + 1 : NULL)
    if (strncmp(at, key, length) == 0 && at[length] == '=')
      return decode(at + length + 1, at + strcspn(at, "&"), to, size);
  return false;
}

void floor_hex(const uint8_t id[16], char to[33]) {
  static const char digits[] = "0123456789abcdef";
  for (size_t i = 0; i < 16; i++) {
    to[2 * i] = digits[id[i] >> 4];
    to[2 * i + 1] = digits[id[i] & 15];
  }
  to[32] = '\0';
}

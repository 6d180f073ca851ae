/* SPDX-License-Identifier: MIT */
/*
 * Stored answers.  The data of a once key is
 *
 *   "1 FINGERPRINT STATUS kept\n"  "Name: value\n" ...  "\n"  BODY
 *
 * or, with "large" in place of "kept", the first line alone.  Set-Cookie is not kept: a session is a secret of the
 * client that got it first, and does not belong into a store.  Date is that of the present answer.
 */
#include "base/sha256.h"
#include "gate/gate_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { FIRST_LINE = 1 + 1 + 64 + 1 + 3 + 1 + 5 + 1 /* "1 F S large\n" */ };

void dibs__kept_fingerprint(struct exchange *e) {
  struct dibs__sha256 hash;
  dibs__sha256_begin(&hash);
  dibs__sha256_add(&hash, e->method, strlen(e->method) + 1);
  dibs__sha256_add(&hash, e->target, strlen(e->target) + 1);
  dibs__sha256_add(&hash, e->secrets, e->secrets_length);
  dibs__sha256_add(&hash, dibs__stream_bytes(&e->up), e->up.length);
  dibs__sha256_end(&hash, e->fingerprint);
}

bool dibs__kept_is_final(int status) {
  static const int passing[] = {408, 425, 429, 502, 503, 504};
  for (size_t i = 0; i < sizeof passing / sizeof *passing; i++)
    if (status == passing[i]) return false;
  return true;
}

size_t dibs__kept_body_max(const struct gate *gate) {
  return DIBS_RECORD_MAX - FIRST_LINE - 1 - gate->config.head_bytes;
}

void dibs__kept_lines(const struct stream *lines, struct head *head) {
  const char *at = dibs__stream_bytes(lines), *end = at + lines->length;
  while (at < end && head->count < HEAD_LINES_MAX) {
    const char *stop = memchr(at, '\n', (size_t)(end - at));
    const char *colon = stop ? memchr(at, ':', (size_t)(stop - at)) : NULL;
    if (!colon || stop - colon < 2) return;
    dibs__head_add(head, at, (size_t)(colon - at), colon + 2, (size_t)(stop - colon) - 2);
    at = stop + 1;
  }
}

static bool is_kept(const struct head *head, const struct head_line *line) {
  static const char *const names[] = {"Set-Cookie", "Set-Cookie2", "Date"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strlen(names[i]) == line->name_length && strncasecmp(names[i], line->name, line->name_length) == 0)
      return false;
  return dibs__head_goes_on(head, line);
}

bool dibs__kept_write(const struct exchange *e, struct stream *to) {
  char first[FIRST_LINE + 1];
  struct head head = {.count = 0};
  int length =
      snprintf(first, sizeof first, "1 %s %03d %s\n", e->fingerprint, e->status % 1000, e->large ? "large" : "kept");
  if (!dibs__stream_add(to, first, (size_t)length)) return false;
  if (e->large) return true;
  dibs__kept_lines(&e->lines, &head);
  for (size_t i = 0; i < head.count; i++) {
    const struct head_line *line = &head.lines[i];
    if (!is_kept(&head, line)) continue;
    if (!dibs__stream_add(to, line->name, line->name_length) || !dibs__stream_add(to, ": ", 2) ||
        !dibs__stream_add(to, line->value, line->value_length) || !dibs__stream_add(to, "\n", 1))
      return false;
  }
  return dibs__stream_add(to, "\n", 1) && dibs__stream_add(to, dibs__stream_bytes(&e->down), e->down.length);
}

enum kept dibs__kept_read(struct exchange *e, const char *data, size_t length) {
  const char *end = data + length, *line = length ? memchr(data, '\n', length) : NULL;
  if (!line || line - data < FIRST_LINE - 2 || memcmp(data, "1 ", 2) != 0) return KEPT_DAMAGED;
  if (memcmp(data + 2, e->fingerprint, 64) != 0) return KEPT_OTHER_REQUEST;
  e->status = 0;
  for (const char *digit = data + 67; digit < data + 70 && *digit >= '0' && *digit <= '9'; digit++)
    e->status = e->status * 10 + (*digit - '0');
  if (memcmp(data + 71, "large", 5) == 0) return KEPT_LARGE;
  const char *lines = line + 1, *at = lines;
  while (at < end && *at != '\n') {
    const char *next = memchr(at, '\n', (size_t)(end - at));
    at = next ? next + 1 : end;
  }
  if (at == end || e->status < 200 || e->status > 599) return KEPT_DAMAGED;
  dibs__stream_free(&e->lines);
  dibs__stream_free(&e->down);
  if (!dibs__stream_add(&e->lines, lines, (size_t)(at - lines)) ||
      !dibs__stream_add(&e->down, at + 1, (size_t)(end - at - 1)))
    return KEPT_DAMAGED;
  e->down.ended = true;
  e->answer_length = (int64_t)e->down.length;
  return KEPT_FINE;
}

/* SPDX-License-Identifier: MIT */
/* See cli.h.  Fuzzed by test/fuzz/fuzz_captured.c. */
#include "cli/cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
  HEAD_MAX = 128,
  PART_HEAD = 9, /* "o0000123\n" */
  PART_DIGITS = 7,
  PARTS_MAX = DIBS_RECORD_MAX - HEAD_MAX,
  CAPACITY_STEP = 4096,
  STATUS_MAX = 255
};
static const char magic[] = "dibs-once/1";
static const char letters[CAPTURED_STREAMS] = {'o', 'e'};

/* ---- While it comes ---- */

void dibs__cli_captured_begin(struct captured *captured) {
  *captured = (struct captured){.stream = -1};
}

void dibs__cli_captured_free(struct captured *captured) {
  free(captured->parts);
  dibs__cli_captured_begin(captured);
}

/* How many more bytes fit, `wanted` at most. */
static size_t make_capacity(struct captured *captured, size_t wanted) {
  if (wanted > PARTS_MAX - captured->len) wanted = PARTS_MAX - captured->len;
  if (captured->len + wanted > captured->capacity) {
    size_t capacity = captured->capacity * 2 + wanted + CAPACITY_STEP;
    if (capacity > PARTS_MAX) capacity = PARTS_MAX;
    char *parts = realloc(captured->parts, capacity);
    if (parts == NULL) return captured->capacity - captured->len;
    captured->parts = parts;
    captured->capacity = capacity;
  }
  return wanted;
}

static void write_head(struct captured *captured) {
  char head[PART_HEAD + 24];
  snprintf(head, sizeof head, "%c%0*zu\n", letters[captured->stream], PART_DIGITS,
           captured->len - captured->latest - PART_HEAD);
  memcpy(captured->parts + captured->latest, head, PART_HEAD);
}

void dibs__cli_captured_add(struct captured *captured, int stream, const char *bytes, size_t len) {
  captured->written[stream] += len;
  if (captured->cut) captured->left_out += len;
  if (len == 0 || captured->cut) return;
  size_t head = captured->stream == stream ? 0 : PART_HEAD;
  size_t capacity = make_capacity(captured, head + len);
  captured->cut = capacity < head + len;
  captured->left_out = head + len - (capacity > head ? capacity : head);
  if (capacity <= head) return;
  if (head > 0) {
    captured->stream = stream;
    captured->latest = captured->len;
    captured->len += head;
  }
  memcpy(captured->parts + captured->len, bytes, capacity - head);
  captured->len += capacity - head;
  write_head(captured);
}

char *dibs__cli_captured_whole(const struct captured *captured, int status, int64_t took_ms, size_t *length) {
  char *whole = malloc(HEAD_MAX + captured->len);
  if (whole == NULL) return NULL;
  int head = snprintf(whole, HEAD_MAX, "%s %d %" PRId64 " %" PRIu64 " %" PRIu64 "\n", magic, status, took_ms,
                      captured->written[CAPTURED_OUT], captured->written[CAPTURED_ERR]);
  if (captured->len > 0) memcpy(whole + head, captured->parts, captured->len);
  *length = (size_t)head + captured->len;
  return whole;
}

/* ---- Reading the copy ---- */

/* A number of digits only, up to `end`.  false: it is not one. */
static bool parse_number(const char **at, const char *limit, char end, uint64_t most, uint64_t *out) {
  const char *from = *at, *p = from;
  *out = 0;
  for (; p < limit && *p >= '0' && *p <= '9'; p++) {
    uint64_t digit = (uint64_t)(*p - '0');
    if (*out > (most - digit) / 10) return false;
    *out = *out * 10 + digit;
  }
  if (p == from || p == limit || *p != end) return false;
  *at = p + 1;
  return true;
}

bool dibs__cli_captured_next(const struct captured_result *result, size_t *at, int *stream, const char **bytes,
                             size_t *len) {
  const char *p = result->parts + *at, *limit = result->parts + result->len;
  uint64_t n;
  if (limit - p < PART_HEAD || (*p != letters[CAPTURED_OUT] && *p != letters[CAPTURED_ERR])) return false;
  *stream = *p == letters[CAPTURED_OUT] ? CAPTURED_OUT : CAPTURED_ERR;
  p++;
  if (!parse_number(&p, limit, '\n', PARTS_MAX, &n) || n > (uint64_t)(limit - p)) return false;
  *bytes = p;
  *len = (size_t)n;
  *at = (size_t)(p - result->parts) + *len;
  return true;
}

bool dibs__cli_captured_read(const char *text, size_t length, struct captured_result *result) {
  const char *at = text, *limit = text + length;
  uint64_t status, took;
  *result = (struct captured_result){0};
  if (length <= sizeof magic || memcmp(text, magic, sizeof magic - 1) != 0 || text[sizeof magic - 1] != ' ')
    return false;
  at += sizeof magic;
  if (!parse_number(&at, limit, ' ', STATUS_MAX, &status) || !parse_number(&at, limit, ' ', INT64_MAX, &took) ||
      !parse_number(&at, limit, ' ', INT64_MAX, &result->written[CAPTURED_OUT]) ||
      !parse_number(&at, limit, '\n', INT64_MAX, &result->written[CAPTURED_ERR]))
    return false;
  result->status = (int)status;
  result->took_ms = (int64_t)took;
  result->parts = at;
  result->len = (size_t)(limit - at);
  uint64_t there = 0, written = result->written[CAPTURED_OUT] + result->written[CAPTURED_ERR];
  size_t next = 0, len;
  int stream;
  const char *bytes;
  while (dibs__cli_captured_next(result, &next, &stream, &bytes, &len)) there += len;
  result->left_out = written > there ? written - there : 0;
  return next == result->len && there <= written;
}

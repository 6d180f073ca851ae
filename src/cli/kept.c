/* SPDX-License-Identifier: MIT */
/* See kept.h.  Fuzzed by test/fuzz/fuzz_kept.c. */
#include "cli/kept.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
  HEAD_MAX = 128,
  PART_HEAD = 9, /* "o0000123\n" */
  PART_DIGITS = 7,
  PARTS_MAX = DIBS_RECORD_MAX - HEAD_MAX,
  ROOM_STEP = 4096,
  STATUS_MAX = 255
};
static const char magic[] = "dibs-once/1";
static const char letters[KEPT_STREAMS] = {'o', 'e'};

/* ---- While it comes ---- */

void dibs__cli_kept_begin(struct kept *kept) {
  *kept = (struct kept){.stream = -1};
}

void dibs__cli_kept_free(struct kept *kept) {
  free(kept->parts);
  dibs__cli_kept_begin(kept);
}

/* How many more bytes there is room for, `wanted` at most. */
static size_t make_room(struct kept *kept, size_t wanted) {
  if (wanted > PARTS_MAX - kept->len) wanted = PARTS_MAX - kept->len;
  if (kept->len + wanted > kept->room) {
    size_t room = kept->room * 2 + wanted + ROOM_STEP;
    if (room > PARTS_MAX) room = PARTS_MAX;
    char *parts = realloc(kept->parts, room);
    if (parts == NULL) return kept->room - kept->len;
    kept->parts = parts;
    kept->room = room;
  }
  return wanted;
}

static void write_head(struct kept *kept) {
  char head[PART_HEAD + 24];
  snprintf(head, sizeof head, "%c%0*zu\n", letters[kept->stream], PART_DIGITS, kept->len - kept->latest - PART_HEAD);
  memcpy(kept->parts + kept->latest, head, PART_HEAD);
}

void dibs__cli_kept_add(struct kept *kept, int stream, const char *bytes, size_t len) {
  kept->written[stream] += len;
  if (kept->cut) kept->left_out += len;
  if (len == 0 || kept->cut) return;
  size_t head = kept->stream == stream ? 0 : PART_HEAD;
  size_t room = make_room(kept, head + len);
  kept->cut = room < head + len;
  kept->left_out = head + len - (room > head ? room : head);
  if (room <= head) return;
  if (head > 0) {
    kept->stream = stream;
    kept->latest = kept->len;
    kept->len += head;
  }
  memcpy(kept->parts + kept->len, bytes, room - head);
  kept->len += room - head;
  write_head(kept);
}

char *dibs__cli_kept_whole(const struct kept *kept, int status, int64_t took_ms, size_t *length) {
  char *whole = malloc(HEAD_MAX + kept->len);
  if (whole == NULL) return NULL;
  int head = snprintf(whole, HEAD_MAX, "%s %d %" PRId64 " %" PRIu64 " %" PRIu64 "\n", magic, status, took_ms,
                      kept->written[KEPT_OUT], kept->written[KEPT_ERR]);
  if (kept->len > 0) memcpy(whole + head, kept->parts, kept->len);
  *length = (size_t)head + kept->len;
  return whole;
}

/* ---- What was kept ---- */

/* A number of digits alone, up to `end`.  false: it is none. */
static bool number(const char **at, const char *limit, char end, uint64_t most, uint64_t *out) {
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

bool dibs__cli_told_next(const struct told *told, size_t *at, int *stream, const char **bytes, size_t *len) {
  const char *p = told->parts + *at, *limit = told->parts + told->len;
  uint64_t n;
  if (limit - p < PART_HEAD || (*p != letters[KEPT_OUT] && *p != letters[KEPT_ERR])) return false;
  *stream = *p == letters[KEPT_OUT] ? KEPT_OUT : KEPT_ERR;
  p++;
  if (!number(&p, limit, '\n', PARTS_MAX, &n) || n > (uint64_t)(limit - p)) return false;
  *bytes = p;
  *len = (size_t)n;
  *at = (size_t)(p - told->parts) + *len;
  return true;
}

bool dibs__cli_told_read(const char *text, size_t length, struct told *told) {
  const char *at = text, *limit = text + length;
  uint64_t status, took;
  *told = (struct told){0};
  if (length <= sizeof magic || memcmp(text, magic, sizeof magic - 1) != 0 || text[sizeof magic - 1] != ' ')
    return false;
  at += sizeof magic;
  if (!number(&at, limit, ' ', STATUS_MAX, &status) || !number(&at, limit, ' ', INT64_MAX, &took) ||
      !number(&at, limit, ' ', INT64_MAX, &told->written[KEPT_OUT]) ||
      !number(&at, limit, '\n', INT64_MAX, &told->written[KEPT_ERR]))
    return false;
  told->status = (int)status;
  told->took_ms = (int64_t)took;
  told->parts = at;
  told->len = (size_t)(limit - at);
  uint64_t there = 0, written = told->written[KEPT_OUT] + told->written[KEPT_ERR];
  size_t next = 0, len;
  int stream;
  const char *bytes;
  while (dibs__cli_told_next(told, &next, &stream, &bytes, &len)) there += len;
  told->left_out = written > there ? written - there : 0;
  return next == told->len && there <= written;
}

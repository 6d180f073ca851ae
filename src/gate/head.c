/* SPDX-License-Identifier: MIT */
#include "gate/head.h"
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define FENCE_MAX ((UINT64_C(1) << 53) - 1)

static bool refuse(struct head *head, int status, const char *word, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static bool refuse(struct head *head, int status, const char *word, const char *format, ...) {
  va_list args;
  head->status = status;
  head->word = word;
  va_start(args, format);
  vsnprintf(head->why, sizeof head->why, format, args);
  va_end(args);
  return false;
}

static bool equal(const char *p, size_t length, const char *word) {
  return strlen(word) == length && strncasecmp(p, word, length) == 0;
}

static bool is_token(const char *p, size_t length) {
  static const char others[] = "!#$%&'*+-.^_`|~";
  for (size_t i = 0; i < length; i++) {
    char c = p[i];
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!letter && (c == '\0' || !strchr(others, c))) return false;
  }
  return length > 0;
}

bool dibs__head_name_fine(const char *name, size_t length) {
  return is_token(name, length);
}

bool dibs__head_value_fine(const char *value, size_t length) {
  for (size_t i = 0; i < length; i++) {
    unsigned char c = (unsigned char)value[i];
    if ((c < 0x20 && c != '\t') || c == 0x7f) return false;
  }
  return true;
}

void dibs__head_add(struct head *head, const char *name, size_t name_length, const char *value, size_t value_length) {
  head->bytes += name_length + value_length + 4; /* ": " and the line end */
  if (head->count < HEAD_LINES_MAX)
    head->lines[head->count] = (struct head_line){name, value ? value : "", name_length, value ? value_length : 0};
  head->count++;
}

const struct head_line *dibs__head_find(const struct head *head, const char *name) {
  for (size_t i = 0; i < head->count; i++)
    if (equal(head->lines[i].name, head->lines[i].name_length, name)) return &head->lines[i];
  return NULL;
}

bool dibs__head_lists(const char *list, size_t list_length, const char *word, size_t word_length) {
  const char *end = list + list_length;
  while (list < end) {
    const char *comma = memchr(list, ',', (size_t)(end - list)), *next = comma ? comma : end, *last = next;
    while (list < last && (*list == ' ' || *list == '\t')) list++;
    while (last > list && (last[-1] == ' ' || last[-1] == '\t')) last--;
    if ((size_t)(last - list) == word_length && strncasecmp(list, word, word_length) == 0) return true;
    list = next + 1;
  }
  return false;
}

bool dibs__head_is_hop_by_hop(const char *name, size_t length) {
  static const char *const names[] = {
      "Connection",          "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "TE",
      "Proxy-Authorization", "Trailer",    "Upgrade",          "Transfer-Encoding"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (equal(name, length, names[i])) return true;
  return false;
}

/* Those that the gate writes itself, that it has served, or that are a secret between the client and the store. */
static bool is_own(const struct head_line *line) {
  static const char *const names[] = {"Host", "Content-Length", "Expect", "HTTP2-Settings", "Dibs-Lease"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (equal(line->name, line->name_length, names[i])) return true;
  return false;
}

bool dibs__head_goes_on(const struct head *head, const struct head_line *line) {
  if (is_own(line) || dibs__head_is_hop_by_hop(line->name, line->name_length)) return false;
  for (size_t i = 0; i < head->count; i++) {
    const struct head_line *other = &head->lines[i];
    if (equal(other->name, other->name_length, "Connection") &&
        dibs__head_lists(other->value, other->value_length, line->name, line->name_length))
      return false;
  }
  return true;
}

bool dibs__head_reads(const char *method) {
  return strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0 || strcmp(method, "OPTIONS") == 0;
}

/* ---- The request line ---- */

static bool check_method(struct head *head, const char *method) {
  static const char *const methods[] = {"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"};
  for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
    if (strcmp(methods[i], method) == 0) return true;
  return refuse(head, 501, "not-supported", "the gate passes no %.20s", method);
}

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/* The byte at p, decoded; *length: how many characters it has. */
static int decoded_byte(const char *p, size_t left, size_t *length) {
  *length = 1;
  if (*p != '%') return (unsigned char)*p;
  int high = left > 2 ? hex_digit(p[1]) : -1, low = left > 2 ? hex_digit(p[2]) : -1;
  if (high < 0 || low < 0) return -1;
  *length = 3;
  return high * 16 + low;
}

/* "." or "..", also encoded, also with a parameter after it, as in "..;x": a server may leave its folder then. */
static bool is_dots(const char *segment, size_t length) {
  size_t dots = 0;
  for (size_t at = 0, step; at < length; at += step) {
    int byte = decoded_byte(segment + at, length - at, &step);
    if (byte == ';') break;
    if (byte != '.') return false;
    dots++;
  }
  return dots == 1 || dots == 2;
}

static bool check_target(struct head *head, const char *target) {
  size_t path = strcspn(target, "?");
  if (target[0] != '/')
    return refuse(head, 400, "invalid", "the target must be a path, as in GET /path; the gate is not a forward proxy");
  for (const char *p = target; *p; p++)
    if ((unsigned char)*p <= 0x20 || *p == 0x7f || *p == '#')
      return refuse(head, 400, "invalid", "the target has a blank, a control character or a '#'");
  if (memchr(target, '\\', path)) return refuse(head, 400, "invalid", "the path has a backslash");
  for (size_t at = 0, step; at < path; at += step) {
    int byte = decoded_byte(target + at, path - at, &step);
    if (byte < 0) return refuse(head, 400, "invalid", "the path has a %% that two hexadecimal digits do not follow");
    if (byte == 0) return refuse(head, 400, "invalid", "the path has a NUL");
  }
  for (size_t at = 1; at <= path;) {
    size_t length = strcspn(target + at, "/?");
    if (is_dots(target + at, length)) return refuse(head, 400, "invalid", "the path has a '.' or '..' between slashes");
    at += length + 1;
  }
  return true;
}

/* ---- Headers ---- */

static bool check_lines(struct head *head, size_t bytes_max) {
  if (head->count > HEAD_LINES_MAX || head->bytes > bytes_max)
    return refuse(head, 431, "headers-too-large",
                  "the request has %zu headers of %zu bytes; the gate takes %d of %zu (--header)", head->count,
                  head->bytes, HEAD_LINES_MAX, bytes_max);
  for (size_t i = 0; i < head->count; i++) {
    const struct head_line *line = &head->lines[i];
    if (!is_token(line->name, line->name_length))
      return refuse(head, 400, "invalid", "header %zu has a name with a blank or another character that none may have",
                    i + 1);
    if (!dibs__head_value_fine(line->value, line->value_length))
      return refuse(head, 400, "invalid", "the header %.*s has a control character", (int)line->name_length,
                    line->name);
  }
  return true;
}

/* Headers that decide where a request ends, or what the gate does with it, come once. */
static bool check_single(struct head *head) {
  static const char *const names[] = {"Content-Length", "Transfer-Encoding", "Host",  "Dibs-Name",
                                      "Dibs-Fence",     "Idempotency-Key",   "Expect"};
  for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
    size_t found = 0;
    for (size_t i = 0; i < head->count; i++) found += equal(head->lines[i].name, head->lines[i].name_length, names[n]);
    if (found > 1) return refuse(head, 400, "invalid", "the header %s is given %zu times", names[n], found);
  }
  return true;
}

/* Digits alone, up to `most`. */
static bool read_number(const struct head_line *line, uint64_t most, uint64_t *number) {
  *number = 0;
  for (size_t i = 0; i < line->value_length; i++) {
    char c = line->value[i];
    if (c < '0' || c > '9' || *number > (most - (uint64_t)(c - '0')) / 10) return false;
    *number = *number * 10 + (uint64_t)(c - '0');
  }
  return line->value_length > 0;
}

/* Where the body ends. */
static bool check_framing(struct head *head, const char *version) {
  const struct head_line *length = dibs__head_find(head, "Content-Length");
  const struct head_line *coding = dibs__head_find(head, "Transfer-Encoding");
  if (coding && length)
    return refuse(head, 400, "invalid", "the request has both Content-Length and Transfer-Encoding");
  if (coding && strcmp(version, "HTTP/1.1") != 0)
    return refuse(head, 400, "invalid", "Transfer-Encoding needs HTTP/1.1");
  if (coding && !equal(coding->value, coding->value_length, "chunked"))
    return refuse(head, 501, "not-supported", "the gate takes no Transfer-Encoding but chunked");
  if (length && !read_number(length, INT64_MAX, &head->length))
    return refuse(head, 400, "invalid", "Content-Length is not a number");
  head->chunked = coding != NULL;
  head->has_length = length != NULL;
  return true;
}

/* An offer of HTTP/2 may be ignored, and some clients make it with every first request. */
static bool check_upgrade(struct head *head) {
  const struct head_line *upgrade = dibs__head_find(head, "Upgrade");
  if (!upgrade || equal(upgrade->value, upgrade->value_length, "h2c")) return true;
  return refuse(head, 501, "not-supported",
                "the gate passes requests and answers, and no upgrade to '%.*s': what a websocket carries has no fence "
                "of its own",
                upgrade->value_length < 40 ? (int)upgrade->value_length : 40, upgrade->value);
}

/* ---- The gate's own headers ---- */

/* Percent-encoded as in the path of /v1/leases/{name}. */
static bool read_name(struct head *head, const struct head_line *line) {
  size_t length = 0;
  for (size_t at = 0, step; at < line->value_length; at += step) {
    int byte = decoded_byte(line->value + at, line->value_length - at, &step);
    if (byte < 0) return refuse(head, 400, "invalid", "Dibs-Name has a %% that two hexadecimal digits do not follow");
    if (length == HEAD_NAME_MAX)
      return refuse(head, 400, "invalid", "Dibs-Name is longer than %d bytes", HEAD_NAME_MAX);
    head->name[length++] = (char)byte;
  }
  head->name[length] = '\0';
  enum dibs__name_flaw found = dibs__name_check(head->name, length, HEAD_NAME_MAX, NULL);
  if (found == DIBS__NAME_OK) return true;
  head->name[0] = '\0';
  return refuse(head, 400, "invalid", "Dibs-Name %s", dibs__name_flaw_text(found));
}

static bool check_fence(struct head *head) {
  const struct head_line *name = dibs__head_find(head, "Dibs-Name"), *fence = dibs__head_find(head, "Dibs-Fence");
  if (!name != !fence)
    return refuse(head, 400, "invalid", "Dibs-Name and Dibs-Fence belong together: give both, or neither");
  if (!name) return true;
  if (!read_name(head, name)) return false;
  if (read_number(fence, FENCE_MAX, &head->fence) && head->fence > 0) return true;
  return refuse(head, 400, "invalid", "Dibs-Fence is not a fence: give the number that acquiring the lease answered");
}

static bool check_key(struct head *head) {
  head->key = dibs__head_find(head, "Idempotency-Key");
  if (!head->key || (head->key->value_length > 0 && head->key->value_length <= HEAD_KEY_MAX)) return true;
  return refuse(head, 400, "invalid", "Idempotency-Key has %zu bytes; give 1 to %d", head->key->value_length,
                HEAD_KEY_MAX);
}

bool dibs__head_check(struct head *head, const char *method, const char *target, const char *version,
                      size_t bytes_max) {
  head->bytes += strlen(target);
  return check_lines(head, bytes_max) && check_single(head) && check_framing(head, version) &&
         check_method(head, method) && check_target(head, target) && check_upgrade(head) && check_fence(head) &&
         check_key(head);
}

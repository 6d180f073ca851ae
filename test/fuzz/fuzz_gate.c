/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as the head of a request to dibs gate, "METHOD TARGET VERSION" and lines of headers: refused, or a head
 * that cannot be understood in two ways.  And any bytes as a stored answer.
 */
#include "fuzz.h"
#include "gate/gate_impl.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define CHECK(what)                                                                                                    \
  do                                                                                                                   \
    if (!(what)) abort();                                                                                              \
  while (0)

static size_t count(const struct head *head, const char *name) {
  size_t found = 0;
  for (size_t i = 0; i < head->count; i++)
    found += head->lines[i].name_length == strlen(name) && strncasecmp(head->lines[i].name, name, strlen(name)) == 0;
  return found;
}

static void check_accepted(const struct head *head, const char *target) {
  CHECK(head->count <= HEAD_LINES_MAX && head->status == 0);
  const char *query = strchr(target, '?'), *up = strstr(target, "/../"), *encoded_up = strstr(target, "/%2e%2e/");
  CHECK(target[0] == '/' && !strpbrk(target, " \t\r\n#"));
  CHECK((!up || (query && query < up)) && (!encoded_up || (query && query < encoded_up)));
  CHECK(count(head, "Content-Length") + count(head, "Transfer-Encoding") <= 1);
  CHECK(head->has_length == (count(head, "Content-Length") == 1));
  CHECK(head->chunked == (count(head, "Transfer-Encoding") == 1));
  CHECK(count(head, "Dibs-Name") == count(head, "Dibs-Fence") && count(head, "Dibs-Name") <= 1);
  CHECK((head->fence > 0) == (head->name[0] != '\0') && head->fence < UINT64_C(1) << 53);
  CHECK(!head->name[0] || dibs__name_check(head->name, strlen(head->name), HEAD_NAME_MAX, NULL) == DIBS__NAME_OK);
  for (size_t i = 0; i < head->count; i++) {
    const struct head_line *line = &head->lines[i];
    CHECK(line->name_length > 0 && !memchr(line->name, ':', line->name_length) &&
          !memchr(line->name, ' ', line->name_length));
    CHECK(!memchr(line->value, '\r', line->value_length) && !memchr(line->value, '\n', line->value_length) &&
          !memchr(line->value, '\0', line->value_length));
    CHECK(line->name_length != 17 || strncasecmp(line->name, "Transfer-Encoding", 17) != 0 ||
          !dibs__head_goes_on(head, line));
  }
}

/* A line of `text`, cut off with a NUL; NULL: there is none. */
static char *next_line(char **text, const char *end, size_t *length) {
  char *line = *text;
  if (line >= end) return NULL;
  char *stop = memchr(line, '\n', (size_t)(end - line));
  if (!stop) stop = line + (end - line);
  *length = (size_t)(stop - line);
  *stop = '\0';
  *text = stop + 1;
  return line;
}

static void read_head(char *text, size_t size) {
  struct head head = {.count = 0};
  const char *end = text + size;
  size_t length;
  char *method = next_line(&text, end, &length);
  char *target = method ? strchr(method, ' ') : NULL, *version = target ? strchr(target + 1, ' ') : NULL;
  if (!version) return;
  *target++ = *version++ = '\0';
  for (char *line; (line = next_line(&text, end, &length));) {
    const char *colon = memchr(line, ':', length);
    size_t name = colon ? (size_t)(colon - line) : length, value = colon ? length - name - 1 : 0;
    dibs__head_add(&head, line, name, colon ? colon + 1 : NULL, value);
  }
  if (dibs__head_check(&head, method, target, version, 16384))
    check_accepted(&head, target);
  else
    CHECK(head.status >= 400 && head.word && head.why[0]);
}

static void read_kept(const char *text, size_t size) {
  struct exchange e = {.status = 0};
  memset(e.fingerprint, 'f', 64);
  if (dibs__kept_read(&e, text, size) == KEPT_FINE) {
    struct head head = {.count = 0};
    CHECK(e.status >= 200 && e.status <= 599 && e.down.length < size && e.lines.length < size);
    dibs__kept_lines(&e.lines, &head);
    CHECK(head.count <= HEAD_LINES_MAX);
  }
  dibs__stream_free(&e.lines);
  dibs__stream_free(&e.down);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = malloc(size + 1); /* of exactly this size, so that a sanitizer reports reads beyond it */
  CHECK(text);
  if (size > 0) memcpy(text, data, size);
  read_kept(text, size);
  read_head(text, size);
  free(text);
  return 0;
}

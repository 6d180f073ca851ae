/* SPDX-License-Identifier: MIT */
/* Checks that standard input is JSON; with --lines, one value in each line. Strict: RFC 8259 and UTF-8. Prints the
 * position of an error and exits with 1. */
#include "base/text.h"

#include <stdio.h>
#include <string.h>

enum { CAPACITY = 1 << 20, DEEP = 64 };

struct text {
  const char *at, *end;
  int depth;
};

static void blanks(struct text *t) {
  while (t->at < t->end && strchr(" \t\r\n", *t->at) != NULL && *t->at != '\0') t->at++;
}

static bool literal(struct text *t, const char *word) {
  size_t n = strlen(word);
  if ((size_t)(t->end - t->at) < n || memcmp(t->at, word, n) != 0) return false;
  t->at += n;
  return true;
}

static bool digits(struct text *t) {
  const char *from = t->at;
  while (t->at < t->end && *t->at >= '0' && *t->at <= '9') t->at++;
  return t->at > from;
}

static bool number(struct text *t) {
  if (t->at < t->end && *t->at == '-') t->at++;
  if (t->at < t->end && *t->at == '0')
    t->at++;
  else if (!digits(t))
    return false;
  if (t->at < t->end && *t->at == '.') {
    t->at++;
    if (!digits(t)) return false;
  }
  if (t->at < t->end && (*t->at == 'e' || *t->at == 'E')) {
    t->at++;
    if (t->at < t->end && (*t->at == '+' || *t->at == '-')) t->at++;
    return digits(t);
  }
  return true;
}

static bool string(struct text *t) {
  if (t->at == t->end || *t->at++ != '"') return false;
  while (t->at < t->end && *t->at != '"') {
    if ((unsigned char)*t->at < 0x20) return false;
    if (*t->at == '\\') {
      if (++t->at == t->end || strchr("\"\\/bfnrtu", *t->at) == NULL) return false;
      if (*t->at == 'u')
        for (int i = 0; i < 4; i++)
          if (++t->at == t->end || strchr("0123456789abcdefABCDEF", *t->at) == NULL) return false;
      t->at++;
      continue;
    }
    uint32_t code;
    size_t took = dibs__utf8_next(t->at, (size_t)(t->end - t->at), &code);
    if (took == 0) return false;
    t->at += took;
  }
  return t->at < t->end && *t->at++ == '"';
}

static bool value(struct text *t);

static bool members(struct text *t, char close) {
  t->at++;
  blanks(t);
  if (t->at < t->end && *t->at == close) return t->at++, true;
  for (;;) {
    if (close == '}') {
      blanks(t);
      if (!string(t)) return false;
      blanks(t);
      if (t->at == t->end || *t->at++ != ':') return false;
    }
    if (!value(t)) return false;
    blanks(t);
    if (t->at == t->end) return false;
    char c = *t->at++;
    if (c == close) return true;
    if (c != ',') return false;
  }
}

static bool value(struct text *t) {
  blanks(t);
  if (t->at == t->end || t->depth == DEEP) return false;
  t->depth++;
  bool fine;
  switch (*t->at) {
  case '{':
    fine = members(t, '}');
    break;
  case '[':
    fine = members(t, ']');
    break;
  case '"':
    fine = string(t);
    break;
  case 't':
    fine = literal(t, "true");
    break;
  case 'f':
    fine = literal(t, "false");
    break;
  case 'n':
    fine = literal(t, "null");
    break;
  default:
    fine = number(t);
    break;
  }
  t->depth--;
  return fine;
}

static bool whole(const char *at, const char *end) {
  struct text t = {at, end, 0};
  bool fine = value(&t);
  if (fine) blanks(&t);
  if (fine && t.at == t.end) return true;
  fprintf(stderr, "not JSON from byte %td on: %.*s\n", t.at - at, (int)(end - at > 200 ? 200 : end - at), at);
  return false;
}

int main(int argc, char **argv) {
  static char text[CAPACITY];
  size_t n = fread(text, 1, sizeof text, stdin);
  if (n == sizeof text) return 2;
  if (argc < 2 || strcmp(argv[1], "--lines") != 0) return whole(text, text + n) ? 0 : 1;
  for (const char *at = text; at < text + n;) {
    const char *end = memchr(at, '\n', (size_t)(text + n - at));
    if (end == NULL) end = text + n;
    if (!whole(at, end)) return 1;
    at = end + 1;
  }
  return 0;
}

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_BASE_INI_H
#define DIBS_BASE_INI_H
/*
 * A parser of small INI files, strict:
 *
 *     [section]            letters, digits, _ - . ; each section once
 *     key = value          # a comment: after a blank, or alone on its line; ; begins one, too
 *
 * UTF-8, lines of at most DIBS__INI_LINE bytes that end with LF or CRLF; a byte order mark is ignored.  A value has no
 * quotes and no escapes, does not continue on the next line, and does not include the blanks around it.  Each key is in
 * a section, and once in it.
 */
#include <stdbool.h>
#include <stddef.h>

enum {
  DIBS__INI_MAX = 65536,
  DIBS__INI_LINE = 1024,
  DIBS__INI_SECTIONS = 256,
  DIBS__INI_KEYS = 32,
  DIBS__INI_WORD = 64
};

struct dibs__ini {
  /* Called when a section begins (`key` NULL), and for each of its keys.  Returns what is wrong, or NULL; the text is
   * valid until the next call. */
  const char *(*entry)(void *user, const char *section, const char *key, const char *value, unsigned line);
  void *user;
  /* The file may contain passwords: messages do not quote it. */
  bool secret;
  /* The position of the error and its message. */
  unsigned line;
  char wrong[200];
};
/* Reads a file, at most one byte more than DIBS__INI_MAX; *text is malloc'd.  Returns 0, or errno. */
int dibs__ini_load(const char *file, char **text, size_t *len);
/* false: `line` and `wrong` have the position and the reason. */
bool dibs__ini_parse(struct dibs__ini *ini, const char *text, size_t len);

#endif

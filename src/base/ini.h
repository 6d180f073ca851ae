/* SPDX-License-Identifier: MIT */
#ifndef DIBS_BASE_INI_H
#define DIBS_BASE_INI_H
/*
 * A small INI file, strictly:
 *
 *   [section]            letters, digits, _ - . ; each once
 *   key = value          # a comment: behind a blank, or alone on its line; ; does the same
 *
 * UTF-8, lines of at most DIBS__INI_LINE bytes that end with LF or CRLF; a byte order mark is passed over.  Values have
 * no quotes, no escapes and do not go on in the next line; blanks around them are not theirs.  A key stands in a
 * section, once.
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
  /* A section begins (`key` NULL), or a key of it.  What is wrong with it, or NULL; good until the next call. */
  const char *(*entry)(void *user, const char *section, const char *key, const char *value, unsigned line);
  void *user;
  /* There may be passwords in it: what is refused is not quoted. */
  bool secret;
  /* Of what was refused. */
  unsigned line;
  char wrong[160];
};
/* Reads a file, whole up to a byte more than DIBS__INI_MAX; *text is malloc'd.  0, or errno. */
int dibs__ini_load(const char *file, char **text, size_t *len);
/* false: `line` and `wrong` say why. */
bool dibs__ini_parse(struct dibs__ini *ini, const char *text, size_t len);

#endif

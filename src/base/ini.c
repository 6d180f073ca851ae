/* SPDX-License-Identifier: MIT */
#include "base/ini.h"

#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The keys of the present section and the names of all sections so far, to detect duplicates. */
struct reading {
  struct dibs__ini *ini;
  char section[DIBS__INI_WORD + 1];
  char keys[DIBS__INI_KEYS][DIBS__INI_WORD + 1];
  char sections[DIBS__INI_SECTIONS][DIBS__INI_WORD + 1];
  size_t key_count, section_count;
};

static bool refuse_line(struct reading *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool refuse_line(struct reading *r, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(r->ini->wrong, sizeof r->ini->wrong, format, args);
  va_end(args);
  /* The cut may be inside a UTF-8 sequence. */
  r->ini->wrong[dibs__utf8_cut(r->ini->wrong, strlen(r->ini->wrong))] = '\0';
  return false;
}

static bool is_blank(char c) {
  return c == ' ' || c == '\t';
}

/* Quotes the text in the message, unless it may be a password or a part of one. */
static bool refuse_word(struct reading *r, const char *quoted, const char *what) {
  return r->ini->secret ? refuse_line(r, "the text on this line %s", what) : refuse_line(r, "'%.40s' %s", quoted, what);
}

/* Removes the blanks around the text, in place. */
static char *trimmed(char *from) {
  while (is_blank(*from)) from++;
  size_t len = strlen(from);
  while (len > 0 && is_blank(from[len - 1])) len--;
  from[len] = '\0';
  return from;
}

static void cut_comment(char *line) {
  for (char *at = line; *at; at++) {
    if ((*at != '#' && *at != ';') || (at > line && !is_blank(at[-1]))) continue;
    *at = '\0';
    return;
  }
}

static bool is_word(const char *text) {
  size_t len = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.");
  return len > 0 && len <= DIBS__INI_WORD && text[len] == '\0';
}

static bool is_listed(char (*words)[DIBS__INI_WORD + 1], size_t count, const char *wanted) {
  for (size_t i = 0; i < count; i++)
    if (strcmp(words[i], wanted) == 0) return true;
  return false;
}

static bool call_entry(struct reading *r, const char *key, const char *value) {
  const char *wrong = r->ini->entry(r->ini->user, r->section, key, value, r->ini->line);
  return wrong ? refuse_line(r, "%s", wrong) : true;
}

static bool begin_section(struct reading *r, char *line) {
  size_t len = strlen(line);
  if (line[len - 1] != ']') return refuse_word(r, line, "begins a section but has no ']' at its end");
  line[len - 1] = '\0';
  char *name = trimmed(line + 1);
  if (!is_word(name)) return refuse_word(r, name, "is not a section name: use at most 64 letters, digits, _ - .");
  if (is_listed(r->sections, r->section_count, name))
    return refuse_line(r, "the section [%s] already exists above", name);
  if (r->section_count == DIBS__INI_SECTIONS) return refuse_line(r, "there are more than 256 sections");
  memcpy(r->sections[r->section_count++], name, strlen(name) + 1);
  memcpy(r->section, name, strlen(name) + 1);
  r->key_count = 0;
  return call_entry(r, NULL, NULL);
}

static bool take_entry(struct reading *r, char *line) {
  char *equals = strchr(line, '=');
  if (!equals) return refuse_word(r, line, "is neither [section] nor key = value");
  *equals = '\0';
  char *key = trimmed(line), *value = trimmed(equals + 1);
  if (!is_word(key)) return refuse_word(r, key, "is not a key");
  if (!r->section[0]) return refuse_line(r, "'%.40s' is outside of a section", key);
  if (is_listed(r->keys, r->key_count, key)) return refuse_line(r, "'%.40s' occurs twice in its section", key);
  if (r->key_count == DIBS__INI_KEYS) return refuse_line(r, "there are more than 32 keys in one section");
  memcpy(r->keys[r->key_count++], key, strlen(key) + 1);
  return call_entry(r, key, value);
}

static bool take_line(struct reading *r, const char *from, size_t len) {
  char line[DIBS__INI_LINE + 1];
  uint32_t code;
  if (len > 0 && from[len - 1] == '\r') len--;
  if (len > DIBS__INI_LINE) return refuse_line(r, "the line is longer than 1024 bytes");
  for (size_t i = 0, n; i < len; i += n) {
    n = dibs__utf8_next(from + i, len - i, &code);
    if (n == 0) return refuse_line(r, "the line is not UTF-8");
    if (code < ' ' && code != '\t') return refuse_line(r, "the line contains a control character");
  }
  memcpy(line, from, len);
  line[len] = '\0';
  cut_comment(line);
  char *text = trimmed(line);
  if (*text == '\0') return true;
  return *text == '[' ? begin_section(r, text) : take_entry(r, text);
}

bool dibs__ini_parse(struct dibs__ini *ini, const char *text, size_t len) {
  static const char mark[] = "\xef\xbb\xbf";
  struct reading r;
  r.ini = ini;
  r.section[0] = '\0';
  r.key_count = r.section_count = 0;
  ini->line = 1;
  ini->wrong[0] = '\0';
  if (len > DIBS__INI_MAX) return refuse_line(&r, "the file is larger than 64 KiB");
  size_t at = len >= 3 && memcmp(text, mark, 3) == 0 ? 3 : 0;
  for (; at < len; ini->line++) {
    const char *end = memchr(text + at, '\n', len - at);
    size_t size = end ? (size_t)(end - text) - at : len - at;
    if (!take_line(&r, text + at, size)) return false;
    at += size + 1;
  }
  return true;
}

int dibs__ini_load(const char *file, char **text, size_t *len) {
  int fd = open(file, O_RDONLY | O_CLOEXEC), error = 0;
  *len = 0;
  *text = NULL;
  if (fd < 0) return errno;
  *text = malloc(DIBS__INI_MAX + 1);
  if (!*text) error = ENOMEM;
  while (error == 0 && *len <= DIBS__INI_MAX) {
    ssize_t got = read(fd, *text + *len, DIBS__INI_MAX + 1 - *len);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) error = errno;
    if (got <= 0) break;
    *len += (size_t)got;
  }
  close(fd);
  return error;
}

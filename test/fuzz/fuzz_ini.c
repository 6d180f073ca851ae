/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as an INI file.  Either a line is refused with a message, or the entries, written down again, read the
 * same.
 */
#include "base/ini.h"
#include "base/text.h"
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                                                    \
  do                                                                                                                   \
    if (!(what)) {                                                                                                     \
      fprintf(stderr, "not so: %s\n", #what);                                                                          \
      abort();                                                                                                         \
    }                                                                                                                  \
  while (0)

/* The entries, written as a file. */
struct told {
  char *text;
  size_t len, capacity;
  unsigned line;
};

static void add(struct told *t, const char *from) {
  size_t len = strlen(from);
  CHECK(t->len + len < t->capacity);
  memcpy(t->text + t->len, from, len);
  t->len += len;
}

static void check_value(const char *value) {
  size_t len = strlen(value);
  uint32_t code;
  CHECK(len <= DIBS__INI_LINE);
  CHECK(len == 0 || (value[0] != ' ' && value[0] != '\t' && value[len - 1] != ' ' && value[len - 1] != '\t'));
  for (size_t i = 0, n; i < len; i += n) {
    n = dibs__utf8_next(value + i, len - i, &code);
    CHECK(n > 0 && (code >= ' ' || code == '\t'));
  }
}

static const char *entry(void *user, const char *section, const char *key, const char *value, unsigned line) {
  struct told *t = user;
  CHECK(section[0] && strlen(section) <= DIBS__INI_WORD && line > t->line);
  t->line = line;
  if (key) {
    CHECK(key[0] && strlen(key) <= DIBS__INI_WORD && !strpbrk(key, " =[]#;"));
    check_value(value);
    add(t, key), add(t, "="), add(t, value), add(t, "\n");
  } else {
    CHECK(!value);
    add(t, "["), add(t, section), add(t, "]\n");
  }
  return NULL;
}

static bool parse(const char *text, size_t len, struct told *told) {
  *told = (struct told){.capacity = 2 * len + 64};
  told->text = malloc(told->capacity);
  CHECK(told->text);
  struct dibs__ini ini = {.entry = entry, .user = told};
  bool fine = dibs__ini_parse(&ini, text, len);
  CHECK(fine == (ini.wrong[0] == '\0'));
  CHECK(ini.line >= 1 && ini.line <= DIBS__INI_MAX + 2);
  CHECK(memchr(ini.wrong, '\0', sizeof ini.wrong));
  return fine;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct told first, second;
  char *text = malloc(size + 1);
  if (!text) return 0;
  if (size) memcpy(text, data, size);
  if (parse(text, size, &first)) {
    CHECK(first.len > DIBS__INI_MAX || parse(first.text, first.len, &second));
    if (first.len <= DIBS__INI_MAX) {
      CHECK(first.len == second.len && memcmp(first.text, second.text, first.len) == 0);
      free(second.text);
    }
  }
  free(first.text);
  free(text);
  return 0;
}

/* SPDX-License-Identifier: MIT */
#include "store/locate.h"

#include "base/ini.h"
#include "store/uri.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PARAMS_MAX = 2048, PATH_MAX_BYTES = 4096 };

struct reading {
  const char *wanted;
  bool seen;
  char store[DIBS__INI_LINE + 1];
  char params[PARAMS_MAX];
  size_t used;
};

bool dibs__locate_is_file(const char *name) {
  size_t len = strcspn(name, "#");
  return len > 4 && strncmp(name + len - 4, ".ini", 4) == 0 && memchr(name, ':', len) == NULL;
}

/* What needs no %xx in a URI. */
static bool is_plain(const char *value) {
  return *value && value[strspn(value, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")] == '\0';
}

static const char *entry(void *user, const char *section, const char *key, const char *value, unsigned line) {
  struct reading *r = user;
  bool mine = strcmp(section, r->wanted) == 0;
  (void)line;
  r->seen = r->seen || mine;
  if (!key) return NULL;
  if (strcmp(key, "store") == 0) {
    if (mine) memcpy(r->store, value, strlen(value) + 1);
    return *value ? NULL : "store is a URI, or several with commas between";
  }
  if (strncmp(key, "tiers.", 6) != 0)
    return "there is no such key; a store has store, and tiers.strictness and the like";
  if (!is_plain(value)) return "this value has letters, digits and . _ - only";
  if (!mine) return NULL;
  int n = snprintf(r->params + r->used, sizeof r->params - r->used, "&%s=%s", key, value);
  if (n < 0 || (size_t)n >= sizeof r->params - r->used) return "these are too many parameters";
  r->used += (size_t)n;
  return NULL;
}

/* The parameters belong to the last member. */
static char *joined(const struct reading *r) {
  size_t size = strlen(r->store) + r->used + 1;
  char *uri = malloc(size);
  if (!uri) return NULL;
  snprintf(uri, size, "%s%s", r->store, r->params);
  const char *last = strrchr(r->store, ',');
  bool has = strchr(last ? last : r->store, '?') != NULL;
  if (r->used && !has) uri[strlen(r->store)] = '?';
  return uri;
}

static dibs__status parse(struct reading *r, const char *file, char **uri, struct dibs__said *said) {
  char *text;
  size_t len;
  struct dibs__ini ini = {.entry = entry, .user = r};
  int error = dibs__ini_load(file, &text, &len);
  if (error) {
    free(text);
    dibs__say(said, "%.150s can't be read: %s", file, strerror(error));
    return error == ENOMEM ? DIBS_NO_MEMORY : DIBS_UNAVAILABLE;
  }
  bool fine = dibs__ini_parse(&ini, text, len);
  explicit_bzero(text, len);
  free(text);
  if (!fine) {
    dibs__say(said, "%.100s:%u: %.140s", file, ini.line, ini.wrong);
    return DIBS_INVALID;
  }
  if (!r->seen || !*r->store) {
    dibs__say(said, r->seen ? "%.150s: [%.64s] has no store: write store = URI" : "%.150s has no section [%.64s]", file,
              r->wanted);
    return r->seen ? DIBS_INVALID : DIBS_NOT_FOUND;
  }
  *uri = joined(r);
  return *uri ? DIBS_OK : DIBS_NO_MEMORY;
}

dibs__status dibs__locate(const char *name, char **uri, struct dibs__said *said) {
  *uri = NULL;
  if (!dibs__locate_is_file(name)) {
    *uri = strdup(name);
    return *uri ? DIBS_OK : DIBS_NO_MEMORY;
  }
  size_t len = strcspn(name, "#");
  char file[PATH_MAX_BYTES];
  if (len >= sizeof file) {
    dibs__say(said, "the name of the file is too long");
    return DIBS_INVALID;
  }
  memcpy(file, name, len);
  file[len] = '\0';
  struct reading *r = calloc(1, sizeof *r);
  if (!r) return DIBS_NO_MEMORY;
  r->wanted = name[len] && name[len + 1] ? name + len + 1 : "store";
  dibs__status status = parse(r, file, uri, said);
  explicit_bzero(r, sizeof *r);
  free(r);
  return status;
}

void dibs__locate_free(char *uri) {
  if (uri) explicit_bzero(uri, strlen(uri));
  free(uri);
}

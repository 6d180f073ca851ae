/* SPDX-License-Identifier: MIT */
#include "store/locate.h"

#include "base/ini.h"
#include "store/uri.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { PARAMS_MAX = 2048, PATH_MAX_BYTES = 4096, WRONG_MAX = 150 };

struct reading {
  const char *wanted;
  bool seen;
  char store[DIBS__INI_LINE + 1];
  char params[PARAMS_MAX];
  size_t used;
  char wrong[WRONG_MAX];
};

/* ---- Names ---- */

static bool is_ini(const char *name, size_t len) {
  bool path = *name == '/' || *name == '.';
  return len > 4 && memcmp(name + len - 4, ".ini", 4) == 0 && (path || memchr(name, ':', len) == NULL);
}

/* Of the file's name; 0: it is none.  A folder may have a # in its name, a section has not. */
static size_t file_length(const char *name) {
  const char *hash = strrchr(name, '#');
  size_t len = strlen(name);
  if (hash && is_ini(name, (size_t)(hash - name))) return (size_t)(hash - name);
  return is_ini(name, len) ? len : 0;
}

bool dibs__locate_is_file(const char *name) {
  return file_length(name) > 0;
}

/* Characters that mean something in the path of a URI. */
static char *escape(char *to, const char *from, size_t len) {
  static const char hex[] = "0123456789ABCDEF";
  for (const char *end = from + len; from < end; from++) {
    unsigned char c = (unsigned char)*from;
    if (strchr("%?#,", c) == NULL && c >= 0x20) {
      *to++ = *from;
      continue;
    }
    *to++ = '%';
    *to++ = hex[c >> 4];
    *to++ = hex[c & 15];
  }
  return to;
}

/* Does [at, end) name a SQLite file without its folder?  "sqlite:" alone is the default file. */
static bool is_relative(const char *at, const char *end, const char **path) {
  const char *colon = memchr(at, ':', (size_t)(end - at)), *scheme = at;
  if (!colon || colon + 1 == end || colon[1] == '/' || colon[1] == '?') return false;
  for (const char *c = at; c < colon; c++)
    if (*c == '+') scheme = c + 1;
  *path = colon + 1;
  return colon - scheme == 6 && strncasecmp(scheme, "sqlite", 6) == 0;
}

static char *rooted(const char *uri, const char *folder, size_t folder_len) {
  const char *end = uri + strlen(uri), *path;
  size_t size = strlen(uri) + 1;
  for (const char *at = uri; at < end; at = dibs__uri_next_member(at, end) + 1) size += 3 * folder_len + 4;
  char *whole = malloc(size), *to = whole;
  if (!whole) return NULL;
  for (const char *at = uri; at < end;) {
    const char *comma = dibs__uri_next_member(at, end), *from = at;
    if (is_relative(at, comma, &path)) {
      to = mempcpy(to, at, (size_t)(path - at));
      if (*folder == '/') to = mempcpy(to, "//", 2);
      to = escape(to, folder, folder_len);
      *to++ = '/';
      from = path;
    }
    to = mempcpy(to, from, (size_t)(comma - from));
    if (comma < end) *to++ = ',';
    at = comma + 1;
  }
  *to = '\0';
  return whole;
}

char *dibs__locate_from(const char *name, const char *folder) {
  size_t len = strlen(folder);
  while (len > 0 && folder[len - 1] == '/') len--;
  if (!dibs__locate_is_file(name)) return len > 0 ? rooted(name, folder, len) : rooted(name, "/.", 2);
  if (*name == '/') return strdup(name);
  size_t size = len + strlen(name) + 2;
  char *whole = malloc(size);
  if (whole) snprintf(whole, size, "%.*s/%s", (int)len, folder, name);
  return whole;
}

/* ---- What stands in the file ---- */

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
  if (strncmp(key, "tiers.", 6) != 0) {
    snprintf(r->wrong, sizeof r->wrong, "there is no key '%.40s'; a store has store, and tiers.strictness and the like",
             key);
    return r->wrong;
  }
  if (!is_plain(value)) {
    snprintf(r->wrong, sizeof r->wrong, "the value of %.40s has letters, digits and . _ - only", key);
    return r->wrong;
  }
  if (!mine) return NULL;
  int n = snprintf(r->params + r->used, sizeof r->params - r->used, "&%s=%s", key, value);
  if (n < 0 || (size_t)n >= sizeof r->params - r->used) return "these are too many parameters";
  r->used += (size_t)n;
  return NULL;
}

/* The parameters belong to the last member, whose own may have commas in them. */
static char *joined(const struct reading *r) {
  size_t len = strlen(r->store);
  const char *last = r->store, *end = r->store + len;
  for (const char *comma; (comma = dibs__uri_next_member(last, end)) < end;) last = comma + 1;
  bool has = strchr(last, '?') != NULL;
  char *uri = malloc(len + r->used + 1);
  if (!uri) return NULL;
  memcpy(uri, r->store, len);
  memcpy(uri + len, r->params, r->used + 1);
  if (r->used && !has) uri[len] = '?';
  return uri;
}

static dibs__status parse(struct reading *r, const char *file, char **uri, struct dibs__said *said) {
  char *text;
  size_t len;
  struct dibs__ini ini = {.entry = entry, .user = r, .secret = true};
  int error = dibs__ini_load(file, &text, &len);
  if (error) {
    free(text);
    dibs__say(said, "%.150s can't be read: %s", file, strerror(error));
    return error == ENOMEM ? DIBS_NO_MEMORY : error == EACCES ? DIBS_DENIED : DIBS_UNAVAILABLE;
  }
  bool fine = dibs__ini_parse(&ini, text, len);
  explicit_bzero(text, len);
  free(text);
  if (!fine) {
    dibs__say(said, "%.100s:%u: %.140s", file, ini.line, ini.wrong);
    return DIBS_INVALID;
  }
  if (!r->seen || !*r->store) {
    dibs__say(said,
              r->seen ? "%.150s: [%.64s] has no store: write store = URI"
                      : "%.150s has no section [%.64s]; behind # stands one that it has",
              file, r->wanted);
    return DIBS_INVALID;
  }
  char *meant = joined(r);
  const char *slash = strrchr(file, '/');
  size_t folder = slash ? (size_t)(slash - file) : 0;
  /* Without a slash the INI file is in the working folder, and what it names is looked for there anyway. */
  *uri = !meant || !slash ? meant : folder > 0 ? rooted(meant, file, folder) : rooted(meant, "/.", 2);
  if (meant != *uri) dibs__locate_free(meant);
  return *uri ? DIBS_OK : DIBS_NO_MEMORY;
}

dibs__status dibs__locate(const char *name, char **uri, struct dibs__said *said) {
  *uri = NULL;
  size_t len = file_length(name);
  if (len == 0) {
    *uri = strdup(name);
    return *uri ? DIBS_OK : DIBS_NO_MEMORY;
  }
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

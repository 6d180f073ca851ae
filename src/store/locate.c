/* SPDX-License-Identifier: MIT */
#include "store/locate.h"
#include "base/ini.h"
#include "store/registry.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* The length of the file's name; 0: it is not a file.  A folder may have a # in its name, a section may not. */
static size_t file_length(const char *name) {
  const char *hash = strrchr(name, '#');
  size_t len = strlen(name);
  if (hash && is_ini(name, (size_t)(hash - name))) return (size_t)(hash - name);
  return is_ini(name, len) ? len : 0;
}

bool dibs__locate_is_file(const char *name) {
  return file_length(name) > 0;
}

/* Escapes characters that have a meaning in the path of a URI. */
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

/* Is [at, end) a SQLite file without its folder?  "sqlite:" alone is the default file. */
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

/* ---- The content of the file ---- */

/* Characters that need no %xx in a URI. */
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
    return *value ? NULL : "store is not a URI, or several separated by commas";
  }
  if (strncmp(key, "tiers.", 6) != 0) {
    snprintf(r->wrong, sizeof r->wrong,
             "the key '%.40s' is unknown; a store has store, and keys such as tiers.strictness", key);
    return r->wrong;
  }
  if (!is_plain(value)) {
    snprintf(r->wrong, sizeof r->wrong, "the value of %.40s has other characters than letters, digits and . _ -", key);
    return r->wrong;
  }
  if (!mine) return NULL;
  int n = snprintf(r->params + r->used, sizeof r->params - r->used, "&%s=%s", key, value);
  if (n < 0 || (size_t)n >= sizeof r->params - r->used) return "there are too many parameters";
  r->used += (size_t)n;
  return NULL;
}

/* The parameters belong to the last member, whose own parameters may contain commas. */
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

static dibs__status parse(struct reading *r, const char *file, char **uri, struct dibs__result *result) {
  char *text;
  size_t len;
  struct dibs__ini ini = {.entry = entry, .user = r, .secret = true};
  int error = dibs__ini_load(file, &text, &len);
  if (error) {
    free(text);
    dibs__set_message(result, "can't read %.150s: %s", file, strerror(error));
    return error == ENOMEM ? DIBS_NO_MEMORY : error == EACCES ? DIBS_DENIED : DIBS_UNAVAILABLE;
  }
  bool fine = dibs__ini_parse(&ini, text, len);
  explicit_bzero(text, len);
  free(text);
  if (!fine) {
    dibs__set_message(result, "%.100s:%u: %.140s", file, ini.line, ini.wrong);
    return DIBS_INVALID;
  }
  if (!r->seen || !*r->store) {
    dibs__set_message(result,
                      r->seen ? "%.150s: [%.64s] has no store: write store = URI"
                              : "%.150s has no section [%.64s]: add it, or name an existing section, as FILE#SECTION",
                      file, r->wanted);
    return DIBS_INVALID;
  }
  char *meant = joined(r);
  const char *slash = strrchr(file, '/');
  size_t folder = slash ? (size_t)(slash - file) : 0;
  /* Without a slash the INI file is in the working folder, to which the files that it names are relative anyway. */
  *uri = !meant || !slash ? meant : folder > 0 ? rooted(meant, file, folder) : rooted(meant, "/.", 2);
  if (meant != *uri) dibs__locate_free(meant);
  return *uri ? DIBS_OK : DIBS_NO_MEMORY;
}

static dibs__status locate_default(char **uri, struct dibs__result *result) {
  char *name;
  enum dibs__named_by by;
  dibs__status status = dibs__locate_default(&name, &by, result);
  if (status == DIBS_OK) status = dibs__locate(name, uri, result);
  dibs__locate_free(name);
  return status;
}

dibs__status dibs__locate(const char *name, char **uri, struct dibs__result *result) {
  *uri = NULL;
  if (!name) return locate_default(uri, result);
  size_t len = file_length(name);
  if (len == 0) {
    *uri = strdup(name);
    return *uri ? DIBS_OK : DIBS_NO_MEMORY;
  }
  char file[PATH_MAX_BYTES];
  if (len >= sizeof file) {
    dibs__set_message(result, "the file name is too long");
    return DIBS_INVALID;
  }
  memcpy(file, name, len);
  file[len] = '\0';
  struct reading *r = calloc(1, sizeof *r);
  if (!r) return DIBS_NO_MEMORY;
  r->wanted = name[len] && name[len + 1] ? name + len + 1 : "store";
  dibs__status status = parse(r, file, uri, result);
  explicit_bzero(r, sizeof *r);
  free(r);
  return status;
}

void dibs__locate_free(char *uri) {
  if (uri) explicit_bzero(uri, strlen(uri));
  free(uri);
}

/* ---- Questions about a name ---- */

/* A text that is not a URI may be a password. */
static bool uri_has_secret(const char *text) {
  struct dibs__uri uri;
  struct dibs__result result = {.text = ""};
  if (dibs__uri_parse(text, &uri, &result) != DIBS_OK) return true;
  bool secret = strcmp(uri.shown, text) != 0;
  dibs__uri_free(&uri);
  return secret;
}

bool dibs__locate_has_secret(const char *name) {
  return !dibs__locate_is_file(name) && uri_has_secret(name);
}

bool dibs__locate_tells_secret(const char *name) {
  struct dibs__result result = {.text = ""};
  char *uri = NULL;
  if (!dibs__locate_is_file(name) || dibs__locate(name, &uri, &result) != DIBS_OK) return false;
  bool secret = uri_has_secret(uri);
  dibs__locate_free(uri);
  return secret;
}

bool dibs__locate_has_server(const char *name) {
  char *text = NULL;
  struct dibs__result result = {.text = ""};
  struct dibs__uri uri;
  bool server = false;
  if (dibs__locate(name, &text, &result) == DIBS_OK && dibs__uri_parse(text, &uri, &result) == DIBS_OK) {
    server = !dibs__driver_built_in(uri.scheme);
    for (size_t i = 0; i < uri.member_count; i++) server = server || !dibs__driver_built_in(uri.members[i].scheme);
    dibs__uri_free(&uri);
  }
  dibs__locate_free(text);
  return server;
}

/* ---- The store of a caller that names none ---- */

/* May this file name the store?  OK; NOT_FOUND: it does not exist. */
static dibs__status check_config(const char *file, bool users, struct dibs__result *result) {
  struct stat st;
  if (stat(file, &st) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return DIBS_NOT_FOUND;
    dibs__set_message(result, "can't inspect %.150s: %s", file, strerror(errno));
    return errno == EACCES ? DIBS_DENIED : DIBS_UNAVAILABLE;
  }
  if (!S_ISREG(st.st_mode)) { /* reading a FIFO would block */
    dibs__set_message(result, "%.150s is not a regular file; remove it, or name a store in DIBS_STORE", file);
    return DIBS_INVALID;
  }
  if (st.st_uid != 0 && st.st_uid != geteuid()) {
    dibs__set_message(
        result, "%.150s belongs to another user, who could choose the store; its owner must be root or you", file);
    return DIBS_DENIED;
  }
  if (st.st_mode & S_IWOTH) {
    dibs__set_message(result, "every user can write to %.150s and so choose the store: chmod o-w it", file);
    return DIBS_DENIED;
  }
  if (users && (st.st_mode & (S_IRGRP | S_IROTH)) && dibs__locate_tells_secret(file)) {
    dibs__set_message(result, "other users can read the password in %.150s: chmod 600 it", file);
    return DIBS_DENIED;
  }
  return DIBS_OK;
}

/* "" when there is none. */
static void find_user_config(char *to, size_t size) {
  char memory[PATH_MAX_BYTES];
  const char *config = secure_getenv("XDG_CONFIG_HOME"), *home;
  *to = '\0';
  if (geteuid() == 0) return;
  int n = 0;
  if (config && *config == '/') /* its specification: ignore it unless it is absolute */
    n = snprintf(to, size, "%s/dibs/dibs.ini", config);
  else if ((home = dibs__home_folder(memory, sizeof memory)) != NULL)
    n = snprintf(to, size, "%s/.config/dibs/dibs.ini", home);
  if (n < 0 || (size_t)n >= size) *to = '\0';
}

dibs__status dibs__locate_default(char **name, enum dibs__named_by *by, struct dibs__result *result) {
  char user[PATH_MAX_BYTES];
  const char *found = secure_getenv("DIBS_STORE");
  dibs__status status = DIBS_OK;
  *name = NULL;
  *by = DIBS__BY_ENVIRONMENT;
  if (found && !*found) {
    dibs__set_message(result, "DIBS_STORE is empty: set it to a store, or unset it");
    return DIBS_INVALID;
  }
  find_user_config(user, sizeof user);
  if (!found && *user) {
    *by = DIBS__BY_USER_FILE;
    status = check_config(user, true, result);
    if (status == DIBS_OK) found = user;
  }
  if (!found && (status == DIBS_OK || status == DIBS_NOT_FOUND)) {
    *by = DIBS__BY_SYSTEM_FILE;
    status = check_config(DIBS__SYSTEM_CONFIG, false, result);
    if (status == DIBS_OK) found = DIBS__SYSTEM_CONFIG;
  }
  if (!found && status == DIBS_NOT_FOUND) {
    *by = DIBS__BY_DEFAULT;
    found = "sqlite:";
  }
  if (!found) return status;
  *name = strdup(found);
  return *name ? DIBS_OK : DIBS_NO_MEMORY;
}

/* SPDX-License-Identifier: MIT */
/*
 * The URI, and paths.
 *
 *   zk://[user:password@]host[:port][,host[:port]]...[/path][?parameter=value&...]
 *
 *   /path        the node under which dibs has its own; it is created if it does not exist
 *   prefix=WORD  the name of that own node, for several stores under one path: dibs
 *   session=MS   the session's timeout to be requested; the server has bounds of its own
 *
 * With a user, nodes belong to this user (digest); without one, anybody may change them.
 */
#include "drivers/zk/zk_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PORT = 2181, SESSION_MS = 30000, SESSION_MIN_MS = 1000, SESSION_MAX_MS = 600000, PATH_MAX_LEN = 900 };

static const char *const params[] = {"prefix", "session", NULL};
static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";

/* The library's own default port differs from no server's, but it needs one for each host. */
static bool read_hosts(const struct dibs__uri *uri, char *to, size_t size) {
  const char *at = *uri->hosts ? uri->hosts : "localhost";
  size_t used = 0;
  while (*at) {
    size_t len = strcspn(at, ",");
    const char *close = memchr(at, ']', len),
               *colon = memchr(close ? close : at, ':', close ? len - (size_t)(close - at) : len);
    char port[8] = "";
    if (!colon) snprintf(port, sizeof port, ":%d", (int)PORT);
    int n = snprintf(to + used, size - used, "%s%.*s%s", used ? "," : "", (int)len, at, port);
    if (n < 0 || (size_t)n >= size - used) return false;
    used += (size_t)n;
    at += len + (at[len] == ',');
  }
  return true;
}

/* What ZooKeeper accepts as a path: absolute, no empty component, no "." and no "..". */
static bool path_valid(const char *path) {
  if (strlen(path) > PATH_MAX_LEN) return false;
  for (const char *at = path; *at;) {
    if (*at++ != '/') return false;
    size_t len = strcspn(at, "/");
    if (len == 0 || (len == 1 && at[0] == '.') || (len == 2 && at[0] == '.' && at[1] == '.')) return false;
    for (size_t i = 0; i < len; i++)
      if ((unsigned char)at[i] < 0x20 || at[i] == 0x7f) return false;
    at += len;
  }
  return strncmp(path, "/zookeeper/", 11) != 0 && strcmp(path, "/zookeeper") != 0;
}

static dibs__status refuse(struct dibs__result *result, const char *why) {
  dibs__set_message(result, "the store URI %s", why);
  return DIBS_INVALID;
}

static dibs__status read_root(const struct dibs__uri *uri, struct dibs__zk_location *location,
                              struct dibs__result *result) {
  char path[PATH_MAX_LEN + 2];
  const char *prefix = dibs__uri_param(uri, "prefix");
  size_t len = strlen(uri->path);
  if (!prefix) prefix = "dibs";
  if (!*prefix || strlen(prefix) > 64 || strspn(prefix, letters) != strlen(prefix))
    return refuse(result, "has a prefix= that is not 1 to 64 letters, digits, _ and -");
  while (len > 0 && uri->path[len - 1] == '/') len--;
  if (len >= sizeof path) return refuse(result, "has a path that is too long");
  memcpy(path, uri->path, len);
  path[len] = '\0';
  if (!path_valid(path))
    return refuse(result, "has a path that ZooKeeper does not allow: write zk://HOST:2181/app/locks");
  snprintf(location->root, sizeof location->root, "%s/%s", path, prefix);
  return DIBS_OK;
}

dibs__status dibs__zk_location(const struct dibs__uri *uri, struct dibs__zk_location *location,
                               struct dibs__result *result) {
  int64_t session = SESSION_MS;
  *location = (struct dibs__zk_location){.session_ms = 0};
  dibs__status status = dibs__uri_only(uri, NULL, params, result);
  if (status == DIBS_OK)
    status = dibs__uri_number(uri, "session", SESSION_MIN_MS, SESSION_MAX_MS, SESSION_MS, &session, result);
  if (status == DIBS_OK) status = read_root(uri, location, result);
  if (status != DIBS_OK) return status;
  location->session_ms = (int)session;
  snprintf(location->shown, sizeof location->shown, "%s", uri->shown);
  if (!read_hosts(uri, location->hosts, sizeof location->hosts)) return refuse(result, "has too many hosts");
  if (!uri->user && !uri->password) return DIBS_OK;
  if (!uri->user || !*uri->user || !uri->password || strchr(uri->user, ':'))
    return refuse(result, "has no user, or no password: write zk://USER:PASSWORD@HOST");
  int n = snprintf(location->credentials, sizeof location->credentials, "%s:%s", uri->user, uri->password);
  if (n < 0 || (size_t)n >= sizeof location->credentials) return refuse(result, "has a password that is too long");
  return DIBS_OK;
}

/* ---- Names as components of a path ---- */

void dibs__zk_encode(dibs__str name, char to[3 * DIBS_NAME_MAX + 1]) {
  static const char digits[] = "0123456789ABCDEF";
  for (uint32_t i = 0; i < name.len; i++) {
    unsigned char c = (unsigned char)name.p[i];
    if (c && strchr(letters, c)) {
      *to++ = (char)c;
    } else if (c == '.' && i > 0 && name.len > 2) { /* not "." nor ".." */
      *to++ = '.';
    } else {
      *to++ = '%';
      *to++ = digits[c >> 4];
      *to++ = digits[c & 15];
    }
  }
  *to = '\0';
}

static int hex_value(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool dibs__zk_decode(const char *from, char to[DIBS_NAME_MAX + 1], uint32_t *len) {
  uint32_t used = 0;
  for (; *from; from++) {
    if (used == DIBS_NAME_MAX) return false;
    if (*from != '%') {
      to[used++] = *from;
      continue;
    }
    int high = hex_value(from[1]), low = high < 0 ? -1 : hex_value(from[2]);
    if (low < 0) return false;
    to[used++] = (char)(high << 4 | low);
    from += 2;
  }
  to[used] = '\0';
  *len = used;
  return used > 0;
}

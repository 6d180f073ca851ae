/* SPDX-License-Identifier: MIT */
/*
 *   redis://[user[:password]@][host[:port]][/database][?parameter=value&...]
 *
 *   socket=PATH              a Unix socket; then there is no host
 *   sentinel=NAME            the hosts, of which there may be several, are sentinels; they know the master of this name
 *   sentinel_user=, sentinel_password=   what the sentinels themselves ask for
 *   prefix=WORD              what the keys begin with, for several stores in one database
 *   connect_timeout=MS       the longest that a connection may take
 */
#include "drivers/redis_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PORT = 6379, SENTINEL_PORT = 26379, DATABASES = 1 << 20 };
enum { CONNECT_MS = 5000, CONNECT_MIN_MS = 100, CONNECT_MAX_MS = 60000 };

const char *const dibs__redis_params[] = {"socket",          "sentinel", "sentinel_user", "sentinel_password", "prefix",
                                          "connect_timeout", NULL};

static int hex(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : 0;
}

/* len characters of `from`, with %xx decoded: the URI has left that to us. */
static bool read_name(const char *from, size_t len, char *to, size_t size) {
  size_t used = 0;
  for (size_t i = 0; i < len; i++) {
    char c = from[i];
    if (c == '%' && i + 2 < len) {
      c = (char)(hex(from[i + 1]) << 4 | hex(from[i + 2]));
      i += 2;
    }
    if (used + 1 == size || c == '\0') return false;
    to[used++] = c;
  }
  to[used] = '\0';
  return used > 0;
}

/* One of "h1:1,[::1]:2,h3", which the URI has found to be well-formed. */
static dibs__status read_host(struct dibs__redis_place *p, const char *from, size_t len, struct dibs__said *said) {
  const char *end = from + len, *port = NULL, *name_end = end;
  if (*from == '[') {
    const char *close = memchr(from, ']', len);
    name_end = close ? close : end;
    if (close && close + 1 < end) port = close + 2;
    from++;
  } else {
    const char *colon = memchr(from, ':', len);
    if (colon) name_end = colon, port = colon + 1;
  }
  size_t nth = p->host_count;
  if (nth == DIBS__REDIS_HOSTS) {
    dibs__say(said, "the store URI has more than %d hosts", (int)DIBS__REDIS_HOSTS);
    return DIBS_INVALID;
  }
  if (!read_name(from, (size_t)(name_end - from), p->hosts[nth].host, sizeof p->hosts[nth].host)) {
    dibs__say(said, "the name of a host is too long, in the store URI");
    return DIBS_INVALID;
  }
  unsigned long number = port ? strtoul(port, NULL, 10) : p->sentinel ? SENTINEL_PORT : PORT;
  p->hosts[nth].port = (uint16_t)number;
  p->host_count++;
  return DIBS_OK;
}

static dibs__status read_hosts(struct dibs__redis_place *p, const struct dibs__uri *uri, struct dibs__said *said) {
  const char *at = uri->hosts;
  if (p->socket) {
    if (!*at || strcmp(at, "localhost") == 0) return DIBS_OK;
    dibs__say(said, "either a host or socket=: %.64s is not needed to find the socket", at);
    return DIBS_INVALID;
  }
  if (!*at) at = "localhost";
  while (*at) {
    size_t len = strcspn(at, ",");
    dibs__status status = read_host(p, at, len, said);
    if (status != DIBS_OK) return status;
    at += len + (at[len] == ',');
  }
  if (p->host_count == 1 || p->sentinel || strcmp(uri->scheme, "redlock") == 0) return DIBS_OK;
  dibs__say(said,
            "%zu hosts: which of them is the master?  If they are sentinels, add sentinel=NAME; for a majority of"
            " several that know nothing of each other, it is redlock://",
            p->host_count);
  return DIBS_INVALID;
}

static dibs__status read_database(struct dibs__redis_place *p, const char *path, struct dibs__said *said) {
  const char *digits = *path == '/' ? path + 1 : path;
  size_t len = strlen(digits);
  if (len == 0 && *path != '\0') return DIBS_OK; /* redis://host/ */
  if (*path == '\0') return DIBS_OK;
  unsigned long number =
      *path == '/' && len <= 7 && strspn(digits, "0123456789") == len ? strtoul(digits, NULL, 10) : DATABASES;
  if (number >= DATABASES) {
    dibs__say(said, "the database of a Redis is a number: write redis://host/0, not %.64s", path);
    return DIBS_INVALID;
  }
  p->database = (uint32_t)number;
  return DIBS_OK;
}

/* Nothing in it may look like a hash tag, nor like a pattern. */
static dibs__status read_prefix(struct dibs__redis_place *p, const char *prefix, struct dibs__said *said) {
  static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:-";
  if (!prefix) prefix = "dibs";
  size_t len = strlen(prefix);
  if (len == 0 || len >= sizeof p->prefix || strspn(prefix, letters) != len) {
    dibs__say(said, "prefix= of the store URI is 1 to %zu letters, digits, and _ . : -", sizeof p->prefix - 1);
    return DIBS_INVALID;
  }
  memcpy(p->prefix, prefix, len + 1);
  return DIBS_OK;
}

static dibs__status read_all(struct dibs__redis_place *p, const struct dibs__uri *uri, struct dibs__said *said) {
  if (!p->sentinel && (p->sentinel_user || p->sentinel_password)) {
    dibs__say(said, "sentinel_user= and sentinel_password= go with sentinel=NAME");
    return DIBS_INVALID;
  }
  if (p->sentinel && (p->socket || !*p->sentinel || !*uri->hosts)) {
    dibs__say(said, "sentinel=NAME wants the sentinels as hosts: redis://host1,host2,host3/0?sentinel=NAME");
    return DIBS_INVALID;
  }
  if ((p->user && !p->password && *p->user) || (p->sentinel_user && !p->sentinel_password)) {
    dibs__say(said, "the store URI names a user and no password: write redis://USER:PASSWORD@HOST");
    return DIBS_INVALID;
  }
  if (p->socket && (*p->socket != '/' || strlen(p->socket) > 107)) {
    dibs__say(said, "socket= of the store URI is an absolute path of at most 107 bytes");
    return DIBS_INVALID;
  }
  dibs__status status = read_hosts(p, uri, said);
  if (status == DIBS_OK) status = read_database(p, uri->path, said);
  if (status == DIBS_OK) status = read_prefix(p, dibs__uri_param(uri, "prefix"), said);
  if (status == DIBS_OK)
    status = dibs__uri_number(uri, "connect_timeout", CONNECT_MIN_MS, CONNECT_MAX_MS, CONNECT_MS,
                              &p->connect_timeout_ms, said);
  return status;
}

dibs__status dibs__redis_place(const struct dibs__uri *uri, struct dibs__redis_place **place, struct dibs__said *said) {
  *place = NULL;
  /* redlock:// has more, and looks for itself. */
  dibs__status status =
      strcmp(uri->scheme, "redlock") == 0 ? DIBS_OK : dibs__uri_only(uri, NULL, dibs__redis_params, said);
  if (status != DIBS_OK) return status;
  struct dibs__redis_place *p = calloc(1, sizeof *p);
  const char *from[] = {uri->user,
                        uri->password,
                        dibs__uri_param(uri, "socket"),
                        dibs__uri_param(uri, "sentinel"),
                        dibs__uri_param(uri, "sentinel_user"),
                        dibs__uri_param(uri, "sentinel_password")};
  enum { COUNT = sizeof from / sizeof from[0] };
  size_t size = 1;
  for (size_t i = 0; i < COUNT; i++) size += from[i] ? strlen(from[i]) + 1 : 0;
  if (p) p->memory = malloc(size);
  if (!p || !p->memory) {
    free(p);
    dibs__say(said, "no memory for the store URI");
    return DIBS_NO_MEMORY;
  }
  const char **to[COUNT] = {&p->user, &p->password, &p->socket, &p->sentinel, &p->sentinel_user, &p->sentinel_password};
  char *at = p->memory;
  p->size = size;
  for (size_t i = 0; i < COUNT; i++) {
    if (!from[i]) continue;
    size_t len = strlen(from[i]) + 1;
    *to[i] = memcpy(at, from[i], len);
    at += len;
  }
  snprintf(p->shown, sizeof p->shown, "%s", uri->shown);
  status = read_all(p, uri, said);
  if (status == DIBS_OK)
    *place = p;
  else
    dibs__redis_place_free(p);
  return status;
}

void dibs__redis_place_free(struct dibs__redis_place *place) {
  if (!place) return;
  explicit_bzero(place->memory, place->size); /* passwords */
  free(place->memory);
  free(place);
}

/* SPDX-License-Identifier: MIT */
/*
 * etcd://[user:password@]host[:2379][,host[:2379]]...[/prefix]: plain HTTP.  etcds:// is the same with TLS.
 *
 * Parameters: ca=, cert=, key= (files, of etcds), prefix=, connections=, connect_timeout=MS.
 */
#include "drivers/etcd/etcd_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PORT = 2379, CONNECT_MS = 2000, CONNECT_MIN_MS = 50, CONNECT_MAX_MS = 60000 };

static const char *const params[] = {"ca", "cert", "key", "prefix", "connections", "connect_timeout", NULL};

static dibs__status no_memory(struct dibs__result *result) {
  dibs__set_message(result, "out of memory for the store URI");
  return DIBS_NO_MEMORY;
}

static dibs__status add_host(struct dibs__etcd_location *l, const char *host, size_t length,
                             struct dibs__result *result) {
  if (l->count == DIBS__ETCD_HOSTS) {
    dibs__set_message(result, "the store URI has more than %d hosts", (int)DIBS__ETCD_HOSTS);
    return DIBS_INVALID;
  }
  if (length == 0 || memchr(host, '%', length)) {
    dibs__set_message(result, "a host of the store URI is empty, or has a character that a URL cannot have");
    return DIBS_INVALID;
  }
  const char *bracket = memchr(host, ']', length);
  const char *from = bracket ? bracket : host;
  bool has_port = memchr(from, ':', length - (size_t)(from - host)) != NULL;
  size_t size = length + sizeof "https://:65535";
  char *url = malloc(size);
  if (!url) return no_memory(result);
  const char *scheme = l->tls ? "https" : "http";
  if (has_port)
    snprintf(url, size, "%s://%.*s", scheme, (int)length, host);
  else
    snprintf(url, size, "%s://%.*s:%d", scheme, (int)length, host, PORT);
  l->urls[l->count++] = url;
  return DIBS_OK;
}

static dibs__status read_hosts(struct dibs__etcd_location *l, const struct dibs__uri *uri,
                               struct dibs__result *result) {
  dibs__status status = DIBS_OK;
  const char *hosts = *uri->hosts ? uri->hosts : "localhost";
  if (*uri->path && strcmp(uri->path, "/") != 0) {
    if (*uri->path == '/')
      dibs__set_message(result, "an etcd store has no path: write ?prefix=%.60s for its keys", uri->path + 1);
    else
      dibs__set_message(result, "the store URI has no host: write %s://HOST:2379", uri->scheme);
    return DIBS_INVALID;
  }
  for (const char *at = hosts; *at && status == DIBS_OK;) {
    size_t length = strcspn(at, ",");
    status = add_host(l, at, length, result);
    at += length + (at[length] == ',');
  }
  return status;
}

static bool copy(char **to, const char *text) {
  if (!text) return true;
  *to = strdup(text);
  return *to != NULL;
}

static dibs__status read_security(struct dibs__etcd_location *l, const struct dibs__uri *uri,
                                  struct dibs__result *result) {
  const char *ca = dibs__uri_param(uri, "ca"), *cert = dibs__uri_param(uri, "cert"), *key = dibs__uri_param(uri, "key");
  if ((ca || cert || key) && !l->tls) {
    dibs__set_message(result, "ca=, cert= and key= need etcds://");
    return DIBS_INVALID;
  }
  if (!cert != !key) {
    dibs__set_message(result, "give both cert= and key=, or neither");
    return DIBS_INVALID;
  }
  if (uri->user && *uri->user &&
      (!copy(&l->user, uri->user) || !copy(&l->password, uri->password ? uri->password : "")))
    return no_memory(result);
  return copy(&l->ca, ca) && copy(&l->cert, cert) && copy(&l->key, key) ? DIBS_OK : no_memory(result);
}

/* An unreadable file would look like a server that does not answer, and is tried again for ever. */
static dibs__status check_files(const struct dibs__uri *uri, struct dibs__result *result) {
  static const char *const names[] = {"ca", "cacert", "cert", "key"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    const char *file = dibs__uri_param(uri, names[i]);
    if (!file || access(file, R_OK) == 0) continue;
    dibs__set_message(result, "can't read the file of %s= in the store URI, %.100s: %s", names[i], file,
                      strerror(errno));
    return DIBS_INVALID;
  }
  return DIBS_OK;
}

static dibs__status read_prefix(struct dibs__etcd_location *l, const struct dibs__uri *uri,
                                struct dibs__result *result) {
  const char *prefix = dibs__uri_param(uri, "prefix");
  if (!prefix) prefix = "dibs/";
  size_t len = strlen(prefix);
  bool valid = len >= 1 && len < DIBS__ETCD_PREFIX;
  for (size_t i = 0; i < len; i++) valid = valid && prefix[i] > ' ' && prefix[i] < 0x7f;
  if (!valid) {
    dibs__set_message(result, "prefix= must have 1 to %d printable characters", (int)DIBS__ETCD_PREFIX - 1);
    return DIBS_INVALID;
  }
  snprintf(l->prefix, sizeof l->prefix, "%s%s", prefix, prefix[len - 1] == '/' ? "" : "/");
  return DIBS_OK;
}

dibs__status dibs__etcd_location(const struct dibs__uri *uri, struct dibs__etcd_location *l,
                                 struct dibs__result *result) {
  int64_t connections = DIBS__CONNECTIONS;
  snprintf(l->shown, sizeof l->shown, "%s", uri->shown);
  l->tls = strcmp(uri->scheme, "etcds") == 0;
  dibs__status status = dibs__uri_only(uri, NULL, params, result);
  if (status == DIBS_OK) status = read_hosts(l, uri, result);
  if (status == DIBS_OK) status = read_security(l, uri, result);
  if (status == DIBS_OK) status = check_files(uri, result);
  if (status == DIBS_OK) status = read_prefix(l, uri, result);
  if (status == DIBS_OK)
    status = dibs__uri_number(uri, "connections", 1, DIBS__CONNECTIONS_MAX, DIBS__CONNECTIONS, &connections, result);
  if (status == DIBS_OK)
    status = dibs__uri_number(uri, "connect_timeout", CONNECT_MIN_MS, CONNECT_MAX_MS, CONNECT_MS,
                              &l->connect_timeout_ms, result);
  l->connections = (uint32_t)connections;
  return status;
}

void dibs__etcd_location_free(struct dibs__etcd_location *l) {
  for (uint32_t i = 0; i < l->count; i++) free(l->urls[i]);
  if (l->password) explicit_bzero(l->password, strlen(l->password));
  free(l->user);
  free(l->password);
  free(l->ca);
  free(l->cert);
  free(l->key);
}

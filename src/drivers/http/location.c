/* SPDX-License-Identifier: MIT */
/*
 * The URI of a daemon.
 *
 *   http://[:TOKEN@]host[:port][,host[:port]]...[/path][?parameter=value&...]     https:// likewise
 *   http:/path/of/a/socket
 *
 *   token_file=FILE     a token, on the first line of a file
 *   ca=FILE             the certificates that sign the daemon's; otherwise those of the system
 *   cert=FILE, key=FILE the client's own certificate
 *   connections=N       at most, beside the connection that waits for events
 *   connect_timeout=MS
 *
 * Without a token in the URI and without token_file, DIBS_TOKEN is used.
 */
#include "drivers/http/http_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PORT = 7380, CONNECT_MS = 5000, CONNECT_MIN_MS = 100, CONNECT_MAX_MS = 60000, TOKEN_MAX = 512 };

static const char *const params[] = {"token_file", "ca", "cert", "key", "connections", "connect_timeout", NULL};

static dibs__status no_memory(struct dibs__result *result) {
  dibs__set_message(result, "out of memory for the store URI");
  return DIBS_NO_MEMORY;
}

static dibs__status add_host(struct dibs__http_location *l, const struct dibs__uri *uri, const char *host,
                             size_t length, struct dibs__result *result) {
  if (l->count == DIBS__HTTP_HOSTS) {
    dibs__set_message(result, "the store URI has more than %d hosts", (int)DIBS__HTTP_HOSTS);
    return DIBS_INVALID;
  }
  size_t path = strlen(uri->path);
  while (path > 0 && uri->path[path - 1] == '/') path--;
  if (strcspn(uri->path, " \"<>\\^`{|}#?") < path || memchr(host, '%', length)) {
    dibs__set_message(result, "the host or the path of the store URI has a character that a URL cannot have");
    return DIBS_INVALID;
  }
  const char *bracket = memchr(host, ']', length);
  const char *from = bracket ? bracket : host;
  bool has_port = memchr(from, ':', length - (size_t)(from - host)) != NULL;
  char port[16] = "";
  if (!has_port) snprintf(port, sizeof port, ":%d", PORT);
  size_t size = strlen(uri->scheme) + length + path + sizeof port + sizeof ":///v1/store";
  char *url = malloc(size);
  if (!url) return no_memory(result);
  snprintf(url, size, "%s://%.*s%s%.*s/v1/store", uri->scheme, (int)length, host, port, (int)path, uri->path);
  l->urls[l->count++] = url;
  return DIBS_OK;
}

static dibs__status read_socket(struct dibs__http_location *l, const struct dibs__uri *uri,
                                struct dibs__result *result) {
  if (uri->path[0] != '/' || uri->path[1] == '\0' || strcmp(uri->scheme, "http") != 0) {
    dibs__set_message(result, "%s: names no daemon: write %s://HOST:PORT, or http:/PATH for a Unix socket", uri->scheme,
                      uri->scheme);
    return DIBS_INVALID;
  }
  l->socket = strdup(uri->path);
  l->urls[0] = strdup("http://localhost/v1/store");
  l->count = 1;
  return l->socket && l->urls[0] ? DIBS_OK : no_memory(result);
}

static dibs__status read_hosts(struct dibs__http_location *l, const struct dibs__uri *uri,
                               struct dibs__result *result) {
  dibs__status status = DIBS_OK;
  if (!*uri->hosts) return read_socket(l, uri, result);
  for (const char *at = uri->hosts; *at && status == DIBS_OK;) {
    size_t length = strcspn(at, ",");
    status = add_host(l, uri, at, length, result);
    at += length + (at[length] == ',');
  }
  return status;
}

/* ---- The token ---- */

static dibs__status set_token(struct dibs__http_location *l, const char *token, struct dibs__result *result) {
  static const char head[] = "Authorization: Bearer ";
  size_t length = strlen(token);
  for (size_t i = 0; i < length; i++)
    if (token[i] <= ' ' || token[i] > '~') length = 0;
  if (length == 0 || length > TOKEN_MAX) {
    dibs__set_message(result, "the token is empty, too long, or has a character that a token cannot have");
    return DIBS_INVALID;
  }
  l->authorization = malloc(sizeof head + length);
  if (!l->authorization) return no_memory(result);
  snprintf(l->authorization, sizeof head + length, "%s%s", head, token);
  return DIBS_OK;
}

static dibs__status read_token_file(struct dibs__http_location *l, const char *path, struct dibs__result *result) {
  char line[TOKEN_MAX + 2];
  FILE *file = fopen(path, "re");
  if (!file) {
    dibs__set_message(result, "can't read the file of the token, %.150s: %s", path, strerror(errno));
    return errno == EACCES ? DIBS_DENIED : DIBS_INVALID;
  }
  bool got = fgets(line, sizeof line, file) != NULL;
  fclose(file);
  if (!got) line[0] = '\0';
  line[strcspn(line, "\r\n")] = '\0';
  dibs__status status = set_token(l, line, result);
  explicit_bzero(line, sizeof line);
  return status;
}

static dibs__status read_token(struct dibs__http_location *l, const struct dibs__uri *uri,
                               struct dibs__result *result) {
  const char *file = dibs__uri_param(uri, "token_file"), *token = secure_getenv("DIBS_TOKEN");
  if (uri->user && *uri->user) {
    dibs__set_message(result, "a daemon knows tokens and no users: write %s://:TOKEN@HOST, or ?token_file=FILE",
                      uri->scheme);
    return DIBS_INVALID;
  }
  if (uri->password && file) {
    dibs__set_message(result, "give the token in the URI or by token_file=, not both");
    return DIBS_INVALID;
  }
  if (uri->password) return set_token(l, uri->password, result);
  if (file) return read_token_file(l, file, result);
  return token && *token ? set_token(l, token, result) : DIBS_OK;
}

/* ---- The whole ---- */

static bool copy(char **to, const char *text) {
  if (!text) return true;
  *to = strdup(text);
  return *to != NULL;
}

static dibs__status read_files(struct dibs__http_location *l, const struct dibs__uri *uri,
                               struct dibs__result *result) {
  const char *ca = dibs__uri_param(uri, "ca"), *cert = dibs__uri_param(uri, "cert"), *key = dibs__uri_param(uri, "key");
  if ((ca || cert || key) && strcmp(uri->scheme, "https") != 0) {
    dibs__set_message(result, "ca=, cert= and key= need https://");
    return DIBS_INVALID;
  }
  if (!cert != !key) {
    dibs__set_message(result, "give both cert= and key=, or neither");
    return DIBS_INVALID;
  }
  return copy(&l->ca, ca) && copy(&l->cert, cert) && copy(&l->key, key) ? DIBS_OK : no_memory(result);
}

dibs__status dibs__http_location(const struct dibs__uri *uri, struct dibs__http_location *l,
                                 struct dibs__result *result) {
  int64_t connections = DIBS__CONNECTIONS;
  snprintf(l->shown, sizeof l->shown, "%s", uri->shown);
  dibs__status status = dibs__uri_only(uri, NULL, params, result);
  if (status == DIBS_OK) status = read_hosts(l, uri, result);
  if (status == DIBS_OK) status = read_token(l, uri, result);
  if (status == DIBS_OK) status = read_files(l, uri, result);
  if (status == DIBS_OK)
    status = dibs__uri_number(uri, "connections", 1, DIBS__CONNECTIONS_MAX, DIBS__CONNECTIONS, &connections, result);
  if (status == DIBS_OK)
    status = dibs__uri_number(uri, "connect_timeout", CONNECT_MIN_MS, CONNECT_MAX_MS, CONNECT_MS,
                              &l->connect_timeout_ms, result);
  l->connections = (uint32_t)connections;
  return status;
}

void dibs__http_location_free(struct dibs__http_location *l) {
  for (uint32_t i = 0; i < l->count; i++) free(l->urls[i]);
  if (l->authorization) explicit_bzero(l->authorization, strlen(l->authorization));
  free(l->authorization);
  free(l->socket);
  free(l->ca);
  free(l->cert);
  free(l->key);
}

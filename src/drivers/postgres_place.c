/* SPDX-License-Identifier: MIT */
/*
 * The URI as libpq's parameters.  One attempt a host, each with its share of the time: libpq itself would stay with a
 * host that swallows packets for as long as the kernel does.
 */
#include "drivers/postgres_parts.h"

#include <stdlib.h>
#include <string.h>

/* Handed on to libpq as they are. */
static const char *const passed[] = {"sslmode",
                                     "sslrootcert",
                                     "sslcert",
                                     "sslkey",
                                     "sslcrl",
                                     "ssl_min_protocol_version",
                                     "channel_binding",
                                     "gssencmode",
                                     "application_name",
                                     "target_session_attrs",
                                     "options",
                                     "passfile",
                                     "service",
                                     "keepalives",
                                     "keepalives_idle",
                                     "keepalives_interval",
                                     "keepalives_count",
                                     "tcp_user_timeout",
                                     NULL};

/* All of them, with those that say where. */
const char *const dibs__pg_params[] = {"host",
                                       "port",
                                       "user",
                                       "dbname",
                                       "sslmode",
                                       "sslrootcert",
                                       "sslcert",
                                       "sslkey",
                                       "sslcrl",
                                       "ssl_min_protocol_version",
                                       "channel_binding",
                                       "gssencmode",
                                       "application_name",
                                       "target_session_attrs",
                                       "options",
                                       "passfile",
                                       "service",
                                       "keepalives",
                                       "keepalives_idle",
                                       "keepalives_interval",
                                       "keepalives_count",
                                       "tcp_user_timeout",
                                       NULL};

/* What stands where the URI says nothing.  A connection that hangs is noticed in a minute. */
static const char *const defaults[][2] = {{"application_name", "dibs"}, {"target_session_attrs", "read-write"},
                                          {"keepalives_idle", "30"},    {"keepalives_interval", "10"},
                                          {"keepalives_count", "3"},    {"client_encoding", "UTF8"}};

static bool set(struct dibs__pg_place *p, const char *keyword, const char *value) {
  if (p->count == DIBS__PG_KEYWORDS) return false;
  p->values[p->count] = strdup(value);
  if (!p->values[p->count]) return false;
  p->keywords[p->count++] = keyword;
  return true;
}

static int hex(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : 0;
}

/* len characters of `from`, with %xx decoded if the URI has left that to us. */
static char *piece(const char *from, size_t len, bool decode) {
  char *to = malloc(len + 1), *at = to;
  if (!to) return NULL;
  for (size_t i = 0; i < len; i++) {
    if (decode && from[i] == '%' && i + 2 < len) {
      *at++ = (char)(hex(from[i + 1]) << 4 | hex(from[i + 2]));
      i += 2;
    } else {
      *at++ = from[i];
    }
  }
  *at = '\0';
  return to;
}

/* One of "h1:1,[::1]:2,h3". */
static bool add_host(struct dibs__pg_place *p, const char *from, size_t len) {
  const char *port = NULL;
  size_t host_len = len;
  if (len && *from == '[') {
    const char *end = memchr(from, ']', len);
    host_len = (size_t)(end - from);
    if (host_len + 1 < len) port = end + 2;
    from++;
    host_len--;
    len -= 1;
  } else {
    const char *colon = memchr(from, ':', len);
    if (colon) {
      host_len = (size_t)(colon - from);
      port = colon + 1;
    }
  }
  struct dibs__pg_host *host = &p->hosts[p->host_count++];
  host->name = piece(from, host_len, true);
  host->port = port ? piece(port, (size_t)(from + len - port), false) : NULL;
  return host->name && (!port || host->port);
}

static size_t count_of(const char *list) {
  size_t n = 1;
  for (; *list; list++) n += *list == ',';
  return n;
}

/* Parameters: "?host=/run/postgresql&port=5433", each may be a list. */
static bool add_params(struct dibs__pg_place *p, const char *host, const char *port) {
  for (size_t i = 0; i < p->host_room; i++) {
    size_t host_len = host ? strcspn(host, ",") : 0, port_len = port ? strcspn(port, ",") : 0;
    struct dibs__pg_host *h = &p->hosts[p->host_count++];
    if (host && !(h->name = piece(host, host_len, false))) return false;
    if (port && !(h->port = piece(port, port_len, false))) return false;
    if (host && host[host_len]) host += host_len + 1;
    if (port && port[port_len]) port += port_len + 1; /* a lone port is everybody's */
  }
  return true;
}

static dibs__status hosts(struct dibs__pg_place *p, const struct dibs__uri *uri, struct dibs__said *said) {
  const char *host = dibs__uri_param(uri, "host"), *port = dibs__uri_param(uri, "port");
  if (*uri->hosts && (host || port)) {
    dibs__say(said, "%s names hosts both behind // and as parameters; drop one", uri->scheme);
    return DIBS_INVALID;
  }
  p->host_room = count_of(*uri->hosts ? uri->hosts : host ? host : "");
  if (p->host_room > DIBS__PG_HOSTS) {
    dibs__say(said, "%s: more than %d hosts", uri->scheme, DIBS__PG_HOSTS);
    return DIBS_INVALID;
  }
  bool fine = true;
  if (!*uri->hosts) fine = add_params(p, host, port);
  for (const char *at = uri->hosts; *at && fine;) {
    size_t len = strcspn(at, ",");
    fine = add_host(p, at, len);
    at += len;
    if (*at) at++;
  }
  return fine ? DIBS_OK : DIBS_NO_MEMORY;
}

static bool keywords(struct dibs__pg_place *p, const struct dibs__uri *uri) {
  const char *user = uri->user ? uri->user : dibs__uri_param(uri, "user");
  const char *name = uri->path[0] == '/' && uri->path[1] ? uri->path + 1 : dibs__uri_param(uri, "dbname");
  bool fine = true;
  if (user && *user) fine = set(p, "user", user);
  if (fine && uri->password) fine = set(p, "password", uri->password);
  if (fine && name) fine = set(p, "dbname", name);
  for (const char *const *key = passed; fine && *key; key++) {
    const char *value = dibs__uri_param(uri, *key);
    if (value) fine = set(p, *key, value);
  }
  for (size_t i = 0; fine && i < sizeof defaults / sizeof defaults[0]; i++)
    if (!dibs__uri_param(uri, defaults[i][0])) fine = set(p, defaults[i][0], defaults[i][1]);
  return fine;
}

void dibs__pg_forget(void *place) {
  struct dibs__pg_place *p = place;
  if (!p) return;
  for (size_t i = 0; i < p->count; i++) {
    explicit_bzero(p->values[i], strlen(p->values[i])); /* one is a password */
    free(p->values[i]);
  }
  for (size_t i = 0; i < p->host_count; i++) {
    free(p->hosts[i].name);
    free(p->hosts[i].port);
  }
  dibs__pg_fast_forget(p);
  free(p);
}

bool dibs__pg_wants_locks(const struct dibs__uri *uri) {
  const char *lock = dibs__uri_param(uri, "lock");
  return lock && strcmp(lock, "advisory") == 0;
}

/* `lock` belongs to all servers; which modes there are is ours to say. */
static dibs__status check_lock(const struct dibs__uri *uri, struct dibs__said *said) {
  const char *lock = dibs__uri_param(uri, "lock");
  if (!lock || strcmp(lock, "rows") == 0 || strcmp(lock, "advisory") == 0) return DIBS_OK;
  dibs__say(said, "lock=%s: rows or advisory is meant", lock);
  return DIBS_INVALID;
}

dibs__status dibs__pg_prepare(const struct dibs__uri *uri, struct dibs__far *store, void **place,
                              struct dibs__said *said) {
  *place = NULL;
  dibs__status status = check_lock(uri, said);
  if (status != DIBS_OK) return status;
  struct dibs__pg_place *p = calloc(1, sizeof *p);
  status = p ? hosts(p, uri, said) : DIBS_NO_MEMORY;
  if (status == DIBS_OK && (!keywords(p, uri) || !dibs__pg_fast_prepare(p, store))) status = DIBS_NO_MEMORY;
  if (status == DIBS_NO_MEMORY) dibs__say(said, "no memory for the store URI");
  if (status == DIBS_OK)
    *place = p;
  else
    dibs__pg_forget(p);
  return status;
}

/* SPDX-License-Identifier: MIT */
/*
 * Connections to Redis: the URI, connecting, and checking the server.
 *
 *   redis://[user[:password]@][host[:port]][/database][?parameter=value&...]
 *
 *   socket=PATH              a Unix socket; then there is no host
 *   sentinel=NAME            the hosts, of which there may be several, are sentinels; they know the master of this name
 *   sentinel_user=, sentinel_password=   the credentials for the sentinels
 *   prefix=WORD              the beginning of all keys, for several stores in one database
 *   rediss:// is the same over TLS, with the parameters of tls.c
 *
 *   connect_timeout=MS       the longest that a connection may take
 *   cluster=1                the hosts are nodes of a Redis Cluster: cluster.c connects to the others, too
 *   replicas=N               a grant counts when N replicas have confirmed it
 *
 * A socket is connected without blocking; the credentials and the questions about the server go in one packet; a
 * server that can't keep leases is refused there.
 *
 * Sentinels name the master, and their answers may be old, or they may be cut off: the server that they name is
 * checked for the role of a master, and the sentinels are queried again until it has it or the time is over.
 */
#include "drivers/redis/redis_impl.h"
#include "drivers/redis/tls.h"
#include "drivers/redis/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

enum { PORT = 6379, SENTINEL_PORT = 26379, DATABASES = 1 << 20 };
enum { REPLICAS_MAX = 16 };
enum { CONNECT_MS = 5000, CONNECT_MIN_MS = 100, CONNECT_MAX_MS = 60000 };

const char *const dibs__redis_params[] = {
    "socket",          "sentinel",    "sentinel_user", "sentinel_password", "prefix",
    "connect_timeout", "connections", "cluster",       "replicas",          NULL};

static int hex_value(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : 0;
}

/* len characters of `from`, with %xx decoded: the URI left that to the driver. */
static bool read_name(const char *from, size_t len, char *to, size_t size) {
  size_t used = 0;
  for (size_t i = 0; i < len; i++) {
    char c = from[i];
    if (c == '%' && i + 2 < len) {
      c = (char)(hex_value(from[i + 1]) << 4 | hex_value(from[i + 2]));
      i += 2;
    }
    if (used + 1 == size || c == '\0') return false;
    to[used++] = c;
  }
  to[used] = '\0';
  return used > 0;
}

/* One of "h1:1,[::1]:2,h3", which the URI has found to be well-formed. */
static dibs__status read_host(struct dibs__redis_location *p, const char *from, size_t len,
                              struct dibs__result *result) {
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
    dibs__set_message(result, "the store URI has more than %d hosts", (int)DIBS__REDIS_HOSTS);
    return DIBS_INVALID;
  }
  if (!read_name(from, (size_t)(name_end - from), p->hosts[nth].host, sizeof p->hosts[nth].host)) {
    dibs__set_message(result, "a host name in the store URI is too long");
    return DIBS_INVALID;
  }
  unsigned long number = port ? strtoul(port, NULL, 10) : p->sentinel ? SENTINEL_PORT : PORT;
  p->hosts[nth].port = (uint16_t)number;
  p->host_count++;
  return DIBS_OK;
}

static dibs__status read_hosts(struct dibs__redis_location *p, const struct dibs__uri *uri,
                               struct dibs__result *result) {
  const char *at = uri->hosts;
  if (p->socket) {
    if (!*at || strcmp(at, "localhost") == 0) return DIBS_OK;
    dibs__set_message(result, "give either a host or socket=, not both: remove %.64s or socket=", at);
    return DIBS_INVALID;
  }
  if (!*at) at = "localhost";
  while (*at) {
    size_t len = strcspn(at, ",");
    dibs__status status = read_host(p, at, len, result);
    if (status != DIBS_OK) return status;
    at += len + (at[len] == ',');
  }
  if (p->host_count == 1 || p->sentinel || p->cluster || strcmp(uri->scheme, "redlock") == 0) return DIBS_OK;
  dibs__set_message(result,
                    "redis:// with %zu hosts does not name the master.  If they are sentinels, add sentinel=NAME; for "
                    "a Redis Cluster, cluster=1; for a majority of independent servers use redlock://",
                    p->host_count);
  return DIBS_INVALID;
}

static dibs__status read_database(struct dibs__redis_location *p, const char *path, struct dibs__result *result) {
  const char *digits = *path == '/' ? path + 1 : path;
  size_t len = strlen(digits);
  if (len == 0 && *path != '\0') return DIBS_OK; /* redis://host/ */
  if (*path == '\0') return DIBS_OK;
  unsigned long number =
      *path == '/' && len <= 7 && strspn(digits, "0123456789") == len ? strtoul(digits, NULL, 10) : DATABASES;
  if (number >= DATABASES) {
    dibs__set_message(result, "the database of a Redis is a number: write redis://host/0, not %.64s", path);
    return DIBS_INVALID;
  }
  p->database = (uint32_t)number;
  return DIBS_OK;
}

/* It must not look like a hash tag, nor like a pattern. */
static dibs__status read_prefix(struct dibs__redis_location *p, const char *prefix, struct dibs__result *result) {
  static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:-";
  if (!prefix) prefix = "dibs";
  size_t len = strlen(prefix);
  if (len == 0 || len >= sizeof p->prefix || strspn(prefix, letters) != len) {
    dibs__set_message(result, "prefix= of the store URI is not 1 to %zu letters, digits, and _ . : -",
                      sizeof p->prefix - 1);
    return DIBS_INVALID;
  }
  memcpy(p->prefix, prefix, len + 1);
  return DIBS_OK;
}

static dibs__status read_cluster(struct dibs__redis_location *p, const struct dibs__uri *uri,
                                 struct dibs__result *result) {
  int64_t cluster = 0, replicas = 0;
  dibs__status status = dibs__uri_number(uri, "cluster", 0, 1, 0, &cluster, result);
  if (status == DIBS_OK) status = dibs__uri_number(uri, "replicas", 0, REPLICAS_MAX, 0, &replicas, result);
  p->cluster = cluster == 1;
  p->replicas = (uint32_t)replicas;
  const char *other = p->sentinel ? "sentinel=" : p->socket ? "socket=" : p->database ? "a database" : NULL;
  if (status != DIBS_OK || !p->cluster || !other) return status;
  dibs__set_message(
      result, "cluster=1 does not go with %s: name some nodes of the cluster, redis://host1,host2?cluster=1", other);
  return DIBS_INVALID;
}

static dibs__status read_all(struct dibs__redis_location *p, const struct dibs__uri *uri, struct dibs__result *result) {
  if (!p->sentinel && (p->sentinel_user || p->sentinel_password)) {
    dibs__set_message(result, "sentinel_user= and sentinel_password= need sentinel=NAME");
    return DIBS_INVALID;
  }
  if (p->sentinel && (p->socket || !*p->sentinel || !*uri->hosts)) {
    dibs__set_message(result, "sentinel=NAME needs the sentinels as hosts: redis://host1,host2,host3/0?sentinel=NAME");
    return DIBS_INVALID;
  }
  if ((p->user && !p->password && *p->user) || (p->sentinel_user && !p->sentinel_password)) {
    dibs__set_message(result, "the store URI has a user and no password: write redis://USER:PASSWORD@HOST");
    return DIBS_INVALID;
  }
  if (p->socket && (*p->socket != '/' || strlen(p->socket) > 107)) {
    dibs__set_message(result, "socket= of the store URI is not an absolute path of at most 107 bytes");
    return DIBS_INVALID;
  }
  if (strcmp(uri->scheme, "rediss") == 0 && p->socket) {
    dibs__set_message(result, "a Unix socket needs no TLS: write redis:///?socket=PATH");
    return DIBS_INVALID;
  }
  dibs__status status = read_database(p, uri->path, result);
  if (status == DIBS_OK && strcmp(uri->scheme, "rediss") == 0) status = dibs__redis_tls_context(uri, &p->tls, result);
  if (status == DIBS_OK && strcmp(uri->scheme, "redlock") != 0) status = read_cluster(p, uri, result);
  if (status == DIBS_OK) status = read_hosts(p, uri, result);
  if (status == DIBS_OK) status = read_prefix(p, dibs__uri_param(uri, "prefix"), result);
  if (status == DIBS_OK)
    status = dibs__uri_number(uri, "connect_timeout", CONNECT_MIN_MS, CONNECT_MAX_MS, CONNECT_MS,
                              &p->connect_timeout_ms, result);
  int64_t connections = 0;
  if (status == DIBS_OK)
    status = dibs__uri_number(uri, "connections", 1, DIBS__CONNECTIONS_MAX, DIBS__CONNECTIONS, &connections, result);
  p->connections = (uint32_t)connections;
  return status;
}

static dibs__status check_params(const struct dibs__uri *uri, struct dibs__result *result) {
  enum { PARAMS = 20 };
  const char *known[PARAMS] = {NULL};
  size_t count = 0;
  bool tls = strcmp(uri->scheme, "rediss") == 0;
  for (size_t i = 0; dibs__redis_params[i]; i++) known[count++] = dibs__redis_params[i];
  for (size_t i = 0; tls && dibs__redis_tls_params[i]; i++) known[count++] = dibs__redis_tls_params[i];
  return dibs__uri_only(uri, NULL, known, result);
}

dibs__status dibs__redis_location(const struct dibs__uri *uri, struct dibs__redis_location **location,
                                  struct dibs__result *result) {
  *location = NULL;
  /* redlock:// has more parameters, and checks them itself. */
  dibs__status status = strcmp(uri->scheme, "redlock") == 0 ? DIBS_OK : check_params(uri, result);
  if (status != DIBS_OK) return status;
  struct dibs__redis_location *p = calloc(1, sizeof *p);
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
    dibs__set_message(result, "out of memory for the store URI");
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
  status = read_all(p, uri, result);
  if (status == DIBS_OK)
    *location = p;
  else
    dibs__redis_location_free(p);
  return status;
}

struct dibs__redis_location *dibs__redis_location_of_node(const struct dibs__redis_location *location,
                                                          const struct dibs__redis_address *address) {
  struct dibs__redis_location *node = malloc(sizeof *node);
  if (!node) return NULL;
  *node = *location;
  node->hosts[0] = *address;
  node->host_count = 1;
  node->memory = NULL; /* it stays the cluster's */
  node->size = 0;
  snprintf(node->shown, sizeof node->shown, strchr(address->host, ':') ? "%.80s at [%.80s]:%u" : "%.80s at %.80s:%u",
           location->shown, address->host, address->port);
  return node;
}

void dibs__redis_location_free(struct dibs__redis_location *location) {
  if (!location) return;
  dibs__redis_tls_context_free(location->tls);
  explicit_bzero(location->memory, location->size); /* passwords */
  free(location->memory);
  free(location);
}

/* ---- Connections ---- */

typedef struct dibs__redis_link link_t;
typedef const struct dibs__redis_location location_t;

/* OLDEST: 5.0.0, the first version whose scripts may write after they read the time.  SILENCE_S: TCP probes a
 * connection after that much silence. */
enum {
  OLDEST = 50000,
  SILENCE_S = 10,
  REQUEST_S = 2,
  REQUESTS = 3,
  AGAIN_MS = 50,
  SENTINEL_MS = 300,
  READER_KEEP = 1 << 18
};

/* ---- Texts of INFO ---- */

/* "key:value\r\n"; the length of the value. */
static const char *info_field(const redisReply *info, const char *key, size_t *len) {
  size_t key_len = strlen(key);
  *len = 0;
  if (!info || info->type != REDIS_REPLY_STRING) return NULL;
  for (const char *line = info->str; line && *line; line = strchr(line, '\n')) {
    if (*line == '\n' && !*++line) break;
    if (strncmp(line, key, key_len) != 0 || line[key_len] != ':') continue;
    const char *value = line + key_len + 1;
    *len = strcspn(value, "\r\n");
    return value;
  }
  return NULL;
}

static bool info_field_is(const redisReply *info, const char *key, const char *wanted) {
  size_t len;
  const char *value = info_field(info, key, &len);
  return value && len == strlen(wanted) && memcmp(value, wanted, len) == 0;
}

/* "7.0.15" is 70015. */
static uint32_t read_version(const char *text) {
  unsigned long parts[3] = {0};
  char *end = NULL;
  for (size_t i = 0; text && i < 3; i++) {
    parts[i] = strtoul(text, &end, 10);
    if (*end != '.') break;
    text = end + 1;
  }
  return parts[0] > 1000 || parts[1] > 99 || parts[2] > 99 ? 0
                                                           : (uint32_t)(parts[0] * 10000 + parts[1] * 100 + parts[2]);
}

static int hex_digit(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool dibs__redis_incarnation(const char *hex, size_t length, dibs__incarnation *incarnation) {
  if (!hex || length != 2 * sizeof incarnation->b) return false;
  for (size_t i = 0; i < sizeof incarnation->b; i++) {
    int high = hex_digit(hex[2 * i]), low = hex_digit(hex[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    incarnation->b[i] = (uint8_t)(high << 4 | low);
  }
  return true;
}

/* ---- Meaning of errors ---- */

static const struct {
  const char *word; /* the beginning of the error */
  dibs__status status;
  const char *next; /* for people */
} meanings[] = {
    {"WRONGPASS", DIBS_DENIED, ": check the user and the password in the URI"},
    {"ERR invalid password", DIBS_DENIED, ": check the password in the URI"},
    {"NOAUTH", DIBS_DENIED, ": write redis://USER:PASSWORD@HOST"},
    {"ERR AUTH", DIBS_DENIED, ": the server has no password; remove it from the URI"},
    {"ERR Client sent AUTH", DIBS_DENIED, ": the server has no password; remove it from the URI"},
    {"ERR wrong number of arguments for 'auth'", DIBS_DENIED,
     ": it has no users (Redis 6 has); write redis://:PASSWORD@HOST"},
    {"NOPERM", DIBS_DENIED, ": doc/internals/redis.md lists what its user needs (ACL SETUSER)"},
    {"DENIED", DIBS_DENIED, ": it is in protected mode; set a password, or connect by loopback"},
    {"ERR DB index", DIBS_INVALID, ": name another database in the URI, or raise \"databases\""},
    {"ERR invalid DB", DIBS_INVALID, ": name another database in the URI"},
    {"ERR SELECT is not allowed", DIBS_UNSUPPORTED, ""},
    {"OOM", DIBS_NO_MEMORY, ": raise maxmemory, or remove other data"},
    {"ERR max number of clients", DIBS_UNAVAILABLE, ": raise maxclients"},
    {"BUSY", DIBS_UNAVAILABLE, ": a script of another client runs too long"},
    {"READONLY", DIBS_UNAVAILABLE, ": it is a replica now"},
};

/* After a change of role, or while the server loads, a new connection may reach another server. */
static bool ends_link(const char *words) {
  return strncmp(words, "READONLY", 8) == 0 || strncmp(words, "LOADING", 7) == 0 ||
         strncmp(words, "MASTERDOWN", 10) == 0 || strncmp(words, "NOAUTH", 6) == 0;
}

/* The part of an error that may be shown: one line, and never the words of a command, one of which is a password. */
dibs__status dibs__redis_refused(link_t *link, const redisReply *reply, const char *what, struct dibs__result *result) {
  const char *words = reply && reply->type == REDIS_REPLY_ERROR ? reply->str : "an invalid answer";
  dibs__status status = DIBS_UNAVAILABLE;
  const char *next = "";
  for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++) {
    if (strncmp(words, meanings[i].word, strlen(meanings[i].word)) != 0) continue;
    status = meanings[i].status;
    next = meanings[i].next;
    break;
  }
  bool ends = ends_link(words);
  if (ends) link->dead = true;
  if (!result) return status;
  if (ends) result->dead = true;
  size_t len = strnlen(words, 120);
  if (*next && len > 0 && words[len - 1] == '.') len--;
  dibs__set_message(result, "can't %s %s: %.*s%s", what, link->location->shown, (int)len, words, next);
  return status;
}

/* ---- A socket ---- */

static void free_link(link_t *link) {
  if (!link) return;
  dibs__redis_tls_free(link->tls);
  if (link->context) redisFree(link->context);
  dibs__redis_arena_free(link->reply_arena);
  free(link->replies);
  free(link->commands);
  if (link->out) explicit_bzero(link->out, link->out_capacity); /* AUTH */
  free(link->out);
  free(link);
}

/* With the receive timeout, a single command needs two system calls: wire.c. */
static bool set_socket_options(link_t *link) {
  int fd = link->context->fd, on = 1, idle = SILENCE_S, request = REQUEST_S, requests = REQUESTS;
  struct timeval patience = {.tv_usec = DIBS__REDIS_PATIENCE_MS * 1000};
  int flags = fcntl(fd, F_GETFL);
  if (!link->location->socket || link->location->sentinel) {
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &request, sizeof request);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &requests, sizeof requests);
  }
  return fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 &&
         setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0 && flags >= 0 &&
         fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) == 0;
}

static int connected(int fd, dibs__tick by) {
  for (;;) {
    int64_t left = dibs__tick_left_ms(dibs__tick_now(), by);
    struct pollfd ready = {.fd = fd, .events = POLLOUT};
    int got = poll(&ready, 1, left > INT_MAX ? INT_MAX : (int)left);
    if (got > 0) break;
    if (got < 0 && errno != EINTR) return errno;
    if (left == 0) return ETIMEDOUT;
  }
  int trouble = 0;
  socklen_t size = sizeof trouble;
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &trouble, &size) == 0 ? trouble : errno;
}

/* host: NULL: the socket. */
static dibs__status connect_socket(location_t *location, const char *host, uint16_t port, dibs__tick by, link_t **out,
                                   struct dibs__result *result) {
  char where[300];
  if (host)
    snprintf(where, sizeof where, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, port);
  else
    snprintf(where, sizeof where, "%s", location->socket);
  link_t *link = calloc(1, sizeof *link);
  if (link) link->reply_arena = dibs__redis_arena_new();
  if (link && link->reply_arena) {
    link->location = location;
    link->context = host ? redisConnectNonBlock(host, port) : redisConnectUnixNonBlock(location->socket);
  }
  redisReader *reader = link && link->context ? dibs__redis_arena_reader(link->reply_arena) : NULL;
  if (!reader) {
    free_link(link);
    dibs__set_message(result, "out of memory for a connection to %s", location->shown);
    return DIBS_NO_MEMORY;
  }
  reader->maxbuf = READER_KEEP;
  if (link->context->reader) redisReaderFree(link->context->reader);
  link->context->reader = reader;
  const char *why = link->context->errstr;
  int trouble = 0;
  if (link->context->err == 0) {
    trouble = connected(link->context->fd, by);
    if (trouble == 0 && !set_socket_options(link)) trouble = errno;
    if (trouble == 0) {
      dibs__status status = location->tls ? dibs__redis_tls_open(location->tls, host, link->context->fd, by,
                                                                 location->shown, &link->tls, result)
                                          : DIBS_OK;
      link->answered_at = dibs__tick_now(); /* a greeting that refuses us must not be taken for a broken connection */
      if (status == DIBS_OK)
        *out = link;
      else
        free_link(link);
      return status;
    }
    why = trouble == ETIMEDOUT ? "no answer before the deadline" : strerrordesc_np(trouble);
  }
  bool named = strstr(location->shown, where) != NULL;
  dibs__set_message(result, "can't connect to %s%s%s: %s", location->shown, named ? "" : " at ", named ? "" : where,
                    why);
  free_link(link);
  return DIBS_UNAVAILABLE;
}

/* ---- Credentials and checks ---- */

static bool put_command(link_t *link, size_t count, const char *const words[]) {
  size_t lengths[4];
  for (size_t i = 0; i < count; i++) lengths[i] = strlen(words[i]);
  return dibs__redis_put(link, count, words, lengths);
}

static bool put_auth(link_t *link, const char *user, const char *password) {
  if (user && *user) return put_command(link, 3, (const char *[]){"AUTH", user, password ? password : ""});
  return put_command(link, 2, (const char *[]){"AUTH", password});
}

extern const char dibs__redis_lua_lease[];

enum { SERVER, MEMORY, REPLICATION, CLUSTER, PARTS };

/* AUTH and SELECT where needed, questions about the server, and a name for CLIENT LIST, which the server may refuse. */
static bool put_hello(link_t *link) {
  static const char *const parts[PARTS] = {"server", "memory", "replication", "cluster"};
  location_t *p = link->location;
  char number[12];
  bool fine = !p->password || put_auth(link, p->user, p->password);
  snprintf(number, sizeof number, "%u", p->database);
  if (fine && p->database) fine = put_command(link, 2, (const char *[]){"SELECT", number});
  for (size_t i = 0; fine && i < PARTS; i++) fine = put_command(link, 2, (const char *[]){"INFO", parts[i]});
  fine = fine && put_command(link, 3, (const char *[]){"CLIENT", "SETNAME", "dibs"});
  /* With replicas=N a grant whose script was unknown is in doubt (run.c): so it is known from the beginning. */
  return fine && (!p->replicas || put_command(link, 3, (const char *[]){"SCRIPT", "LOAD", dibs__redis_lua_lease}));
}

static dibs__status check_server(link_t *link, const redisReply *server, const redisReply *cluster,
                                 struct dibs__result *result) {
  const char *shown = link->location->shown;
  size_t len;
  const char *version = info_field(server, "redis_version", &len);
  link->version = read_version(version);
  if (link->version < OLDEST) {
    dibs__set_message(result, "%s is version %.*s; dibs needs Redis 5 or newer", shown, (int)(version ? len : 1),
                      version ? version : "?");
    return DIBS_UNSUPPORTED;
  }
  if (info_field_is(server, "redis_mode", "sentinel")) {
    dibs__set_message(result, "%s is a sentinel, which stores no data; add sentinel=NAME, the name of the master",
                      shown);
    return DIBS_INVALID;
  }
  bool is_node = info_field_is(cluster, "cluster_enabled", "1") || info_field_is(server, "redis_mode", "cluster");
  if (is_node == link->location->cluster) return DIBS_OK;
  dibs__set_message(result,
                    is_node ? "%s is a node of a Redis Cluster: add cluster=1, redis://host1,host2?cluster=1"
                            : "%s is not a node of a Redis Cluster: remove cluster=1",
                    shown);
  return is_node ? DIBS_UNSUPPORTED : DIBS_INVALID;
}

static dibs__status check_role(link_t *link, const redisReply *replication, struct dibs__result *result) {
  const char *shown = link->location->shown;
  size_t len;
  if (link->location->any_role) return DIBS_OK;
  if (!info_field_is(replication, "role", "master")) {
    dibs__set_message(result,
                      "%s is a replica, which can't grant leases; name its master, or the sentinels with sentinel=NAME",
                      shown);
    return DIBS_UNAVAILABLE;
  }
  const char *incarnation = info_field(replication, "master_replid", &len);
  if (dibs__redis_incarnation(incarnation, len, &link->incarnation)) return DIBS_OK;
  dibs__set_message(result, "%s does not report its master_replid, which dibs needs to notice that it lost its memory",
                    shown);
  return DIBS_UNSUPPORTED;
}

static dibs__status check_memory(link_t *link, const redisReply *memory, struct dibs__result *result) {
  size_t len;
  const char *policy = info_field(memory, "maxmemory_policy", &len);
  if (info_field_is(memory, "maxmemory_policy", "noeviction")) return DIBS_OK;
  dibs__set_message(result,
                    "%s may evict leases that are held (maxmemory-policy %.*s): CONFIG SET maxmemory-policy "
                    "noeviction, and the same in its redis.conf",
                    link->location->shown, (int)(policy ? len : 1), policy ? policy : "?");
  return DIBS_UNSUPPORTED;
}

static dibs__status check_replies(link_t *link, struct dibs__result *result) {
  size_t first = (link->location->password ? 1u : 0u) + (link->location->database ? 1u : 0u);
  for (size_t i = 0; i < first + PARTS; i++) {
    const redisReply *r = dibs__redis_reply(link, i);
    /* INFO of a loading server also reports it. */
    if (!r || r->type == REDIS_REPLY_ERROR) return dibs__redis_refused(link, r, "use", result);
  }
  const redisReply *parts[PARTS];
  for (size_t i = 0; i < PARTS; i++) parts[i] = dibs__redis_reply(link, first + i);
  dibs__status status = check_server(link, parts[SERVER], parts[CLUSTER], result);
  if (status == DIBS_OK) status = check_role(link, parts[REPLICATION], result);
  return status == DIBS_OK ? check_memory(link, parts[MEMORY], result) : status;
}

/* Wipes the commands that were sent: they had a password. */
static void wipe_commands(link_t *link) {
  if (link->out) explicit_bzero(link->out, link->out_capacity);
}

static dibs__status shake_hands(link_t *link, dibs__tick by, struct dibs__result *result) {
  if (!put_hello(link)) {
    dibs__set_message(result, "out of memory for a connection to %s", link->location->shown);
    return DIBS_NO_MEMORY;
  }
  dibs__status status = dibs__redis_go(link, by, result);
  wipe_commands(link);
  const redisReply *first = dibs__redis_reply(link, 0);
  /* A server that refuses us sends the reason, and closes. */
  if (status != DIBS_OK && first && first->type == REDIS_REPLY_ERROR)
    return dibs__redis_refused(link, first, "connect to", result);
  bool closed =
      link->at == DIBS__REDIS_LOST && (link->trouble == 0 || link->trouble == ECONNRESET || link->trouble == EPIPE);
  /* With TLS it may close before its reason arrives. */
  if (status != DIBS_OK && !first && closed)
    dibs__set_message(result, "%s closed the connection before it answered; %s", link->location->shown,
                      link->location->tls ? "if it requires a certificate of the client, name one with cert= and key="
                                          : "a port for TLS needs rediss://");
  return status == DIBS_OK ? check_replies(link, result) : DIBS_UNAVAILABLE;
}

/* ---- Servers ---- */

static dibs__status try_server(location_t *location, const char *host, uint16_t port, dibs__tick by, link_t **link,
                               struct dibs__result *result) {
  link_t *made = NULL;
  dibs__status status = connect_socket(location, host, port, by, &made, result);
  if (status == DIBS_OK) status = shake_hands(made, by, result);
  if (status == DIBS_OK)
    *link = made;
  else
    free_link(made);
  return status;
}

/* ---- Sentinels ---- */

static dibs__status request_sentinel(location_t *location, size_t nth, dibs__tick by, char host[256], uint16_t *port,
                                     struct dibs__result *result) {
  link_t *link = NULL;
  dibs__status status =
      connect_socket(location, location->hosts[nth].host, location->hosts[nth].port, by, &link, result);
  if (status != DIBS_OK) return status;
  bool fine = !location->sentinel_password || put_auth(link, location->sentinel_user, location->sentinel_password);
  fine = fine && put_command(link, 3, (const char *[]){"SENTINEL", "get-master-addr-by-name", location->sentinel});
  status = fine ? dibs__redis_go(link, by, result) : DIBS_NO_MEMORY;
  if (fine) wipe_commands(link);
  if (status == DIBS_UNKNOWN) status = DIBS_UNAVAILABLE;
  size_t last = location->sentinel_password ? 1 : 0;
  for (size_t i = 0; i <= last && status == DIBS_OK; i++) {
    const redisReply *r = dibs__redis_reply(link, i);
    if (r->type == REDIS_REPLY_ERROR) status = dibs__redis_refused(link, r, "ask a sentinel of", result);
  }
  const redisReply *r = status == DIBS_OK ? dibs__redis_reply(link, last) : NULL;
  if (r && r->type == REDIS_REPLY_ARRAY && r->elements == 2 && r->element[0]->str && r->element[1]->str) {
    unsigned long number = strtoul(r->element[1]->str, NULL, 10);
    snprintf(host, 256, "%s", r->element[0]->str);
    *port = (uint16_t)number;
  } else if (r) {
    dibs__set_message(
        result, "the sentinel %s:%u knows no master \"%s\": use the name of its \"sentinel monitor\" line in the URI",
        location->hosts[nth].host, location->hosts[nth].port, location->sentinel);
    status = DIBS_INVALID;
  }
  free_link(link);
  return status;
}

/* Queries each sentinel once, until one names a master.  A silent sentinel must not keep us from the others. */
static dibs__status try_sentinels(location_t *location, int64_t patience_ms, dibs__tick by, link_t **link,
                                  struct dibs__result *result) {
  dibs__status worst = DIBS_UNAVAILABLE;
  bool requested = false; /* a sentinel has answered */
  for (size_t i = 0; i < location->host_count; i++) {
    struct dibs__result latest = {.text = ""};
    char host[256];
    uint16_t port = 0;
    dibs__tick now = dibs__tick_now();
    int64_t share = dibs__tick_left_ms(now, by) / (int64_t)(location->host_count - i);
    dibs__tick until = dibs__tick_min(by, dibs__tick_add_ms(now, share));
    dibs__tick patient = dibs__tick_min(until, dibs__tick_add_ms(now, patience_ms));
    dibs__status status = request_sentinel(location, i, patient, host, &port, &latest);
    bool knows = status == DIBS_OK;
    if (knows) status = try_server(location, host, port, until, link, &latest);
    if (status == DIBS_OK) return DIBS_OK;
    /* Reports the most informative failure: a refusal, then a master's message, then a sentinel's. */
    bool more = worst == DIBS_UNAVAILABLE && (status != DIBS_UNAVAILABLE || (knows && !requested));
    if (i > 0 && !more) continue;
    worst = status;
    requested = knows;
    dibs__set_message(result, "%s", latest.text);
  }
  return worst;
}

/* ---- Any kind of location ---- */

static dibs__status connect_to(location_t *location, size_t nth, dibs__tick by, link_t **link,
                               struct dibs__result *result) {
  if (location->socket) return try_server(location, NULL, 0, by, link, result);
  if (!location->sentinel)
    return try_server(location, location->hosts[nth].host, location->hosts[nth].port, by, link, result);
  for (int64_t patience_ms = SENTINEL_MS;; patience_ms *= 2) {
    dibs__status status = try_sentinels(location, patience_ms, by, link, result);
    if (status != DIBS_UNAVAILABLE) return status;
    if (dibs__tick_left_ms(dibs__tick_now(), by) <= AGAIN_MS) return status;
    dibs__nap_ms(AGAIN_MS);
  }
}

dibs__status dibs__redis_connect(location_t *location, size_t nth, dibs__tick by, link_t **link,
                                 struct dibs__result *result) {
  *link = NULL;
  result->sent = dibs__tick_now();
  by = dibs__tick_min(by, dibs__tick_add_ms(result->sent, location->connect_timeout_ms));
  dibs__status status = connect_to(location, nth, by, link, result);
  if (status != DIBS_OK) return status;
  (*link)->nth = nth;
  (*link)->made = true;
  return DIBS_OK;
}

bool dibs__redis_renew(link_t *link, dibs__tick by, struct dibs__result *result) {
  link_t *made = NULL;
  dibs__tick sent = result->sent;
  dibs__status status = dibs__redis_connect(link->location, link->nth, by, &made, result);
  result->sent = sent;
  if (status != DIBS_OK) return false;
  redisContext *context = link->context;
  struct dibs__redis_tls *tls = link->tls;
  struct dibs__redis_arena *arena = link->reply_arena;
  link->tls = made->tls;
  link->context = made->context;
  link->reply_arena = made->reply_arena;
  link->incarnation = made->incarnation;
  link->version = made->version;
  link->answered_at = made->answered_at;
  link->dead = false;
  made->tls = tls;
  made->context = context;
  made->reply_arena = arena;
  free_link(made);
  result->text[0] = '\0';
  return true;
}

void dibs__redis_disconnect(link_t *link) {
  free_link(link);
}

/* SPDX-License-Identifier: MIT */
/*
 * Connections.  A socket is made without blocking; who we are and what the server is go in one packet; what can't keep
 * leases is refused there.
 *
 * Sentinels say who the master is, and may be behind the times, or cut off: whoever they name is asked whether it is
 * one, and they are asked again until it is, or the time is over.
 */
#include "drivers/redis_room.h"
#include "drivers/redis_wire.h"

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

typedef struct dibs__redis_link link_t;
typedef const struct dibs__redis_place place_t;

/* OLDEST: 5.0.0, the first whose scripts may write after they asked the time.  SILENCE_S: a connection on which nothing
 * is heard that long is asked whether it lives. */
enum { OLDEST = 50000, SILENCE_S = 10, ASK_S = 2, ASKS = 3, AGAIN_MS = 50, SENTINEL_MS = 300, READER_KEEP = 1 << 18 };

/* ---- Texts of INFO ---- */

/* "key:value\r\n"; the length of the value. */
static const char *field(const redisReply *info, const char *key, size_t *len) {
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

static bool field_is(const redisReply *info, const char *key, const char *wanted) {
  size_t len;
  const char *value = field(info, key, &len);
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

bool dibs__redis_life(const char *hex, size_t length, dibs__life *life) {
  if (!hex || length != 2 * sizeof life->b) return false;
  for (size_t i = 0; i < sizeof life->b; i++) {
    int high = hex_digit(hex[2 * i]), low = hex_digit(hex[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    life->b[i] = (uint8_t)(high << 4 | low);
  }
  return true;
}

/* ---- What errors mean ---- */

static const struct {
  const char *word; /* that it begins with */
  dibs__status status;
  const char *next; /* for people */
} meanings[] = {
    {"WRONGPASS", DIBS_DENIED, ": check the user and the password in the URI"},
    {"ERR invalid password", DIBS_DENIED, ": check the password in the URI"},
    {"NOAUTH", DIBS_DENIED, ": write redis://USER:PASSWORD@HOST"},
    {"ERR AUTH", DIBS_DENIED, ": the server has no password; drop it from the URI"},
    {"ERR Client sent AUTH", DIBS_DENIED, ": the server has no password; drop it from the URI"},
    {"ERR wrong number of arguments for 'auth'", DIBS_DENIED,
     ": it knows no users yet (Redis 6); write redis://:PASSWORD@HOST"},
    {"NOPERM", DIBS_DENIED, ": see what its user needs in doc/internals/redis.md (ACL SETUSER)"},
    {"DENIED", DIBS_DENIED, ": it is in protected mode; give it a password, or reach it by loopback"},
    {"ERR DB index", DIBS_INVALID, ": name another database in the URI, or raise \"databases\""},
    {"ERR invalid DB", DIBS_INVALID, ": name another database in the URI"},
    {"ERR SELECT is not allowed", DIBS_UNSUPPORTED, ""},
    {"OOM", DIBS_NO_MEMORY, ": raise maxmemory, or remove what else it keeps"},
    {"ERR max number of clients", DIBS_UNAVAILABLE, ": raise maxclients"},
    {"BUSY", DIBS_UNAVAILABLE, ": somebody's script runs too long"},
    {"READONLY", DIBS_UNAVAILABLE, ": it is a replica now"},
};

/* Behind a change of role or while it loads, another connection may lead elsewhere. */
static bool ends_link(const char *words) {
  return strncmp(words, "READONLY", 8) == 0 || strncmp(words, "LOADING", 7) == 0 ||
         strncmp(words, "MASTERDOWN", 10) == 0 || strncmp(words, "NOAUTH", 6) == 0;
}

/* What of an error may be shown: on one line, and never the words of a command, of which one is a password. */
dibs__status dibs__redis_refused(link_t *link, const redisReply *reply, const char *what, struct dibs__said *said) {
  const char *words = reply && reply->type == REDIS_REPLY_ERROR ? reply->str : "an answer that makes no sense";
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
  if (!said) return status;
  if (ends) said->dead = true;
  size_t len = strnlen(words, 120);
  if (*next && len > 0 && words[len - 1] == '.') len--;
  dibs__say(said, "can't %s %s: %.*s%s", what, link->place->shown, (int)len, words, next);
  return status;
}

/* ---- A socket ---- */

static void free_link(link_t *link) {
  if (!link) return;
  if (link->context) redisFree(link->context);
  dibs__redis_room_free(link->reply_room);
  free(link->replies);
  free(link->commands);
  if (link->out) explicit_bzero(link->out, link->out_room); /* AUTH */
  free(link->out);
  free(link);
}

/* The receive timeout is what makes a lone command two calls of the system: redis_wire.c. */
static bool tune(link_t *link) {
  int fd = link->context->fd, on = 1, idle = SILENCE_S, ask = ASK_S, asks = ASKS;
  struct timeval patience = {.tv_usec = DIBS__REDIS_PATIENCE_MS * 1000};
  int flags = fcntl(fd, F_GETFL);
  if (!link->place->socket || link->place->sentinel) {
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &ask, sizeof ask);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &asks, sizeof asks);
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
static dibs__status reach(place_t *place, const char *host, uint16_t port, dibs__tick by, link_t **out,
                          struct dibs__said *said) {
  char where[300];
  if (host)
    snprintf(where, sizeof where, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, port);
  else
    snprintf(where, sizeof where, "%s", place->socket);
  link_t *link = calloc(1, sizeof *link);
  if (link) link->reply_room = dibs__redis_room_new();
  if (link && link->reply_room) {
    link->place = place;
    link->context = host ? redisConnectNonBlock(host, port) : redisConnectUnixNonBlock(place->socket);
  }
  redisReader *reader = link && link->context ? dibs__redis_room_reader(link->reply_room) : NULL;
  if (!reader) {
    free_link(link);
    dibs__say(said, "no memory for a connection to %s", place->shown);
    return DIBS_NO_MEMORY;
  }
  reader->maxbuf = READER_KEEP;
  if (link->context->reader) redisReaderFree(link->context->reader);
  link->context->reader = reader;
  const char *why = link->context->errstr;
  int trouble = 0;
  if (link->context->err == 0) {
    trouble = connected(link->context->fd, by);
    if (trouble == 0 && !tune(link)) trouble = errno;
    if (trouble == 0) {
      link->heard = dibs__tick_now(); /* a greeting that turns us away is not to be taken for a broken connection */
      *out = link;
      return DIBS_OK;
    }
    why = trouble == ETIMEDOUT ? "no answer before the deadline" : strerrordesc_np(trouble);
  }
  dibs__say(said, "can't connect to %s at %s: %s", place->shown, where, why);
  free_link(link);
  return DIBS_UNAVAILABLE;
}

/* ---- Who we are, what it is ---- */

static bool put(link_t *link, size_t count, const char *const words[]) {
  size_t lengths[4];
  for (size_t i = 0; i < count; i++) lengths[i] = strlen(words[i]);
  return dibs__redis_put(link, count, words, lengths);
}

static bool put_auth(link_t *link, const char *user, const char *password) {
  if (user && *user) return put(link, 3, (const char *[]){"AUTH", user, password ? password : ""});
  return put(link, 2, (const char *[]){"AUTH", password});
}

enum { SERVER, MEMORY, REPLICATION, CLUSTER, PARTS };

/* AUTH and SELECT where they are needed, what the server is, and a name for CLIENT LIST, which may be refused. */
static bool put_hello(link_t *link) {
  static const char *const parts[PARTS] = {"server", "memory", "replication", "cluster"};
  place_t *p = link->place;
  char number[12];
  bool fine = !p->password || put_auth(link, p->user, p->password);
  snprintf(number, sizeof number, "%u", p->database);
  if (fine && p->database) fine = put(link, 2, (const char *[]){"SELECT", number});
  for (size_t i = 0; fine && i < PARTS; i++) fine = put(link, 2, (const char *[]){"INFO", parts[i]});
  return fine && put(link, 3, (const char *[]){"CLIENT", "SETNAME", "dibs"});
}

static dibs__status check_server(link_t *link, const redisReply *server, const redisReply *cluster,
                                 struct dibs__said *said) {
  const char *shown = link->place->shown;
  size_t len;
  const char *version = field(server, "redis_version", &len);
  link->version = read_version(version);
  if (link->version < OLDEST) {
    dibs__say(said, "%s is version %.*s; dibs needs Redis 5 or newer", shown, (int)(version ? len : 1),
              version ? version : "?");
    return DIBS_UNSUPPORTED;
  }
  if (field_is(server, "redis_mode", "sentinel")) {
    dibs__say(said, "%s is a sentinel, which keeps nothing itself; add sentinel=NAME, the name of the master", shown);
    return DIBS_INVALID;
  }
  if (field_is(cluster, "cluster_enabled", "1") || field_is(server, "redis_mode", "cluster")) {
    dibs__say(said,
              "%s is a node of a Redis cluster, and dibs asks one server; name a Redis of its own"
              " (cluster-enabled no), or several with redlock://",
              shown);
    return DIBS_UNSUPPORTED;
  }
  return DIBS_OK;
}

static dibs__status check_role(link_t *link, const redisReply *replication, struct dibs__said *said) {
  const char *shown = link->place->shown;
  size_t len;
  if (!field_is(replication, "role", "master")) {
    dibs__say(said, "%s is a replica, which grants nothing: name its master, or the sentinels with sentinel=NAME",
              shown);
    return DIBS_UNAVAILABLE;
  }
  const char *life = field(replication, "master_replid", &len);
  if (dibs__redis_life(life, len, &link->life)) return DIBS_OK;
  dibs__say(said, "%s does not tell its master_replid, by which dibs knows that it has kept its memory", shown);
  return DIBS_UNSUPPORTED;
}

static dibs__status check_memory(link_t *link, const redisReply *memory, struct dibs__said *said) {
  size_t len;
  const char *policy = field(memory, "maxmemory_policy", &len);
  if (field_is(memory, "maxmemory_policy", "noeviction")) return DIBS_OK;
  dibs__say(said,
            "%s may drop leases that are held (maxmemory-policy %.*s): CONFIG SET maxmemory-policy noeviction, and the"
            " same in its redis.conf",
            link->place->shown, (int)(policy ? len : 1), policy ? policy : "?");
  return DIBS_UNSUPPORTED;
}

static dibs__status check(link_t *link, struct dibs__said *said) {
  size_t first = (link->place->password ? 1u : 0u) + (link->place->database ? 1u : 0u);
  for (size_t i = 0; i < first + PARTS; i++) {
    const redisReply *r = dibs__redis_reply(link, i);
    /* Of a loading server also INFO says so. */
    if (!r || r->type == REDIS_REPLY_ERROR) return dibs__redis_refused(link, r, "use", said);
  }
  const redisReply *parts[PARTS];
  for (size_t i = 0; i < PARTS; i++) parts[i] = dibs__redis_reply(link, first + i);
  dibs__status status = check_server(link, parts[SERVER], parts[CLUSTER], said);
  if (status == DIBS_OK) status = check_role(link, parts[REPLICATION], said);
  return status == DIBS_OK ? check_memory(link, parts[MEMORY], said) : status;
}

/* Wipes what was sent: there was a password in it. */
static void forget_words(link_t *link) {
  if (link->out) explicit_bzero(link->out, link->out_room);
}

static dibs__status shake_hands(link_t *link, dibs__tick by, struct dibs__said *said) {
  if (!put_hello(link)) {
    dibs__say(said, "no memory for a connection to %s", link->place->shown);
    return DIBS_NO_MEMORY;
  }
  dibs__status status = dibs__redis_go(link, by, said);
  forget_words(link);
  const redisReply *first = dibs__redis_reply(link, 0);
  /* A server that turns us away says why, and closes. */
  if (status != DIBS_OK && first && first->type == REDIS_REPLY_ERROR)
    return dibs__redis_refused(link, first, "connect to", said);
  return status == DIBS_OK ? check(link, said) : DIBS_UNAVAILABLE;
}

/* ---- Servers ---- */

static dibs__status try_server(place_t *place, const char *host, uint16_t port, dibs__tick by, link_t **link,
                               struct dibs__said *said) {
  link_t *made = NULL;
  dibs__status status = reach(place, host, port, by, &made, said);
  if (status == DIBS_OK) status = shake_hands(made, by, said);
  if (status == DIBS_OK)
    *link = made;
  else
    free_link(made);
  return status;
}

/* ---- Sentinels ---- */

static dibs__status ask_sentinel(place_t *place, size_t nth, dibs__tick by, char host[256], uint16_t *port,
                                 struct dibs__said *said) {
  link_t *link = NULL;
  dibs__status status = reach(place, place->hosts[nth].host, place->hosts[nth].port, by, &link, said);
  if (status != DIBS_OK) return status;
  bool fine = !place->sentinel_password || put_auth(link, place->sentinel_user, place->sentinel_password);
  fine = fine && put(link, 3, (const char *[]){"SENTINEL", "get-master-addr-by-name", place->sentinel});
  status = fine ? dibs__redis_go(link, by, said) : DIBS_NO_MEMORY;
  if (fine) forget_words(link);
  if (status == DIBS_UNKNOWN) status = DIBS_UNAVAILABLE;
  size_t last = place->sentinel_password ? 1 : 0;
  for (size_t i = 0; i <= last && status == DIBS_OK; i++) {
    const redisReply *r = dibs__redis_reply(link, i);
    if (r->type == REDIS_REPLY_ERROR) status = dibs__redis_refused(link, r, "ask a sentinel of", said);
  }
  const redisReply *r = status == DIBS_OK ? dibs__redis_reply(link, last) : NULL;
  if (r && r->type == REDIS_REPLY_ARRAY && r->elements == 2 && r->element[0]->str && r->element[1]->str) {
    unsigned long number = strtoul(r->element[1]->str, NULL, 10);
    snprintf(host, 256, "%s", r->element[0]->str);
    *port = (uint16_t)number;
  } else if (r) {
    dibs__say(said, "the sentinel %s:%u knows no master \"%s\": name it in the URI as in its \"sentinel monitor\" line",
              place->hosts[nth].host, place->hosts[nth].port, place->sentinel);
    status = DIBS_INVALID;
  }
  free_link(link);
  return status;
}

/* One turn round the sentinels: of each what it says, until one leads to a master.  One that is silent must not keep
 * us from the others. */
static dibs__status try_sentinels(place_t *place, int64_t patience_ms, dibs__tick by, link_t **link,
                                  struct dibs__said *said) {
  dibs__status worst = DIBS_UNAVAILABLE;
  bool asked = false; /* one has answered */
  for (size_t i = 0; i < place->host_count; i++) {
    struct dibs__said heard = {.text = ""};
    char host[256];
    uint16_t port = 0;
    dibs__tick now = dibs__tick_now();
    int64_t share = dibs__tick_left_ms(now, by) / (int64_t)(place->host_count - i);
    dibs__tick until = dibs__tick_min(by, dibs__tick_add_ms(now, share));
    dibs__tick patient = dibs__tick_min(until, dibs__tick_add_ms(now, patience_ms));
    dibs__status status = ask_sentinel(place, i, patient, host, &port, &heard);
    bool knows = status == DIBS_OK;
    if (knows) status = try_server(place, host, port, until, link, &heard);
    if (status == DIBS_OK) return DIBS_OK;
    /* The most telling failure is told: a refusal, then what a master said, then what a sentinel did. */
    bool more = worst == DIBS_UNAVAILABLE && (status != DIBS_UNAVAILABLE || (knows && !asked));
    if (i > 0 && !more) continue;
    worst = status;
    asked = knows;
    dibs__say(said, "%s", heard.text);
  }
  return worst;
}

/* ---- The whole ---- */

static dibs__status connect_to(place_t *place, size_t nth, dibs__tick by, link_t **link, struct dibs__said *said) {
  if (place->socket) return try_server(place, NULL, 0, by, link, said);
  if (!place->sentinel) return try_server(place, place->hosts[nth].host, place->hosts[nth].port, by, link, said);
  for (int64_t patience_ms = SENTINEL_MS;; patience_ms *= 2) {
    dibs__status status = try_sentinels(place, patience_ms, by, link, said);
    if (status != DIBS_UNAVAILABLE) return status;
    if (dibs__tick_left_ms(dibs__tick_now(), by) <= AGAIN_MS) return status;
    dibs__nap_ms(AGAIN_MS);
  }
}

dibs__status dibs__redis_connect(place_t *place, size_t nth, dibs__tick by, link_t **link, struct dibs__said *said) {
  *link = NULL;
  said->sent = dibs__tick_now();
  by = dibs__tick_min(by, dibs__tick_add_ms(said->sent, place->connect_timeout_ms));
  dibs__status status = connect_to(place, nth, by, link, said);
  if (status != DIBS_OK) return status;
  (*link)->nth = nth;
  (*link)->made = true;
  return DIBS_OK;
}

bool dibs__redis_renew(link_t *link, dibs__tick by, struct dibs__said *said) {
  link_t *made = NULL;
  dibs__tick sent = said->sent;
  dibs__status status = dibs__redis_connect(link->place, link->nth, by, &made, said);
  said->sent = sent;
  if (status != DIBS_OK) return false;
  redisContext *context = link->context;
  struct dibs__redis_room *room = link->reply_room;
  link->context = made->context;
  link->reply_room = made->reply_room;
  link->life = made->life;
  link->version = made->version;
  link->heard = made->heard;
  link->dead = false;
  made->context = context;
  made->reply_room = room;
  free_link(made);
  said->text[0] = '\0';
  return true;
}

void dibs__redis_disconnect(link_t *link) {
  free_link(link);
}

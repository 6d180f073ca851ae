/* SPDX-License-Identifier: MIT */
/*
 * Connections to MariaDB and MySQL: the URI, connecting, and setting a connection up.
 *
 *   mysql://[user[:password]@]host[:port][,host[:port]]/database[?parameter=value&...]
 *
 *   socket=PATH                  a Unix socket; then there is no host
 *   ssl=off|prefer|on|verify     prefer (the default): TLS if the server offers it, but not over a Unix socket; on: TLS
 *                                or no connection; verify: and the certificate is checked, with its name
 *   ssl_ca=, ssl_cert=, ssl_key= files; ssl_ca alone means verify, and goes with nothing else
 *
 * Several hosts are tried in their order.  The parameters of all servers are valid, too: see
 * src/drivers/server/server.h.
 *
 * Failovers.  Several hosts are a primary and its replicas, so only one may accept writes.  A primary that was replaced
 * and returns does not know that, and nothing in the two servers says which is the newer one: so the other hosts are
 * asked, at most every ASKED_MS for one server, and after each loss of a connection; and two servers that accept writes
 * are both refused.
 *
 * A connection is set up in one packet after the handshake.  Servers that can't be used are refused there: a server
 * that only reads, a Galera node (its locks and its clock are local), a proxy that moves us between connections.
 */
#include "drivers/mysql/mysql_impl.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

const char *const dibs__mysql_params[] = {"socket", "ssl", "ssl_ca", "ssl_cert", "ssl_key", NULL};

/* The notifier's texts follow these: see mysql.c. */
static const char *const texts[DIBS__MYSQL_TEXTS] = {
    [DIBS__MYSQL_MAIL_CLEAN] = "DELETE FROM dibs_mail WHERE IS_USED_LOCK(CONCAT('dibs.s.', session)) IS NULL",
    [DIBS__MYSQL_MAIL_SLEEP] = "DO IF(EXISTS (SELECT 1 FROM dibs_mail WHERE session = ",
    [DIBS__MYSQL_MAIL_READ] = "SELECT nr, what, id FROM dibs_mail WHERE session = ",
    [DIBS__MYSQL_MAIL_DROP] = "DELETE FROM dibs_mail WHERE session = ",
    [DIBS__MYSQL_MAIL_PUT] = "INSERT INTO dibs_mail (session, nr, what, id) VALUES ",
    [DIBS__MYSQL_NAME] = "dibs_name",
    [DIBS__MYSQL_FLOOR] = "@{floor}",
    [DIBS__MYSQL_LEAD] = "@{lead}",
};

static const char *copy_param(char **at, const char *from) {
  if (!from) return NULL;
  size_t size = strlen(from) + 1;
  char *to = memcpy(*at, from, size);
  *at += size;
  return to;
}

static dibs__status read_ssl(struct dibs__mysql_location *p, const char *word, struct dibs__result *result) {
  static const char *const words[] = {"off", "prefer", "on", "verify"};
  p->ssl = p->ssl_ca ? DIBS__MYSQL_SSL_VERIFY : DIBS__MYSQL_SSL_PREFER;
  if (!word) return DIBS_OK;
  for (unsigned i = 0; i < sizeof words / sizeof words[0]; i++) {
    if (strcmp(word, words[i]) != 0) continue;
    p->ssl = i;
    if (!p->ssl_ca || p->ssl == DIBS__MYSQL_SSL_VERIFY) return DIBS_OK;
    dibs__set_message(
        result, "ssl=%s checks no certificate, so ssl_ca= has no effect: write ssl=verify, or remove ssl_ca=", word);
    return DIBS_INVALID;
  }
  dibs__set_message(result, "ssl=%s is not off, prefer, on or verify", word);
  return DIBS_INVALID;
}

/* One of "h1:1,h2,[::1]:3"; the strings are malloc'd. */
static dibs__status read_host(struct dibs__mysql_location *p, char *text, struct dibs__result *result) {
  char *port = strrchr(text, ':'), *end = text + strlen(text);
  struct dibs__mysql_host *host = &p->hosts[p->host_count++];
  host->name = text;
  if (*text == '[') {
    host->name = text + 1;
    char *close = strchr(text, ']');
    if (!close) close = end;
    port = *close && close[1] == ':' ? close + 1 : NULL;
    *close = '\0';
  }
  if (!port) return DIBS_OK;
  *port++ = '\0';
  unsigned long number = strtoul(port, &end, 10);
  if (*end == '\0' && number > 0 && number <= 65535) {
    host->port = (unsigned)number;
    return DIBS_OK;
  }
  dibs__set_message(result, "%s: a port is a number from 1 to 65535", port);
  return DIBS_INVALID;
}

static dibs__status read_hosts(struct dibs__mysql_location *p, char *text, struct dibs__result *result) {
  if (p->socket) {
    if (*text && strcmp(text, "localhost") != 0) {
      dibs__set_message(result, "give either a host or socket=, not both: remove %s or socket=", text);
      return DIBS_INVALID;
    }
    p->host_count = 1;
    return DIBS_OK;
  }
  while (text) {
    char *comma = strchr(text, ',');
    if (comma) *comma++ = '\0';
    if (p->host_count == DIBS__MYSQL_HOSTS) {
      dibs__set_message(result, "more than %d hosts", (int)DIBS__MYSQL_HOSTS);
      return DIBS_INVALID;
    }
    if (!*text) text[0] = '\0';
    dibs__status status = read_host(p, text, result);
    if (status != DIBS_OK) return status;
    text = comma;
  }
  for (size_t i = 0; i < p->host_count; i++)
    if (!*p->hosts[i].name) p->hosts[i].name = "localhost";
  return DIBS_OK;
}

static dibs__status read_all(struct dibs__mysql_location *p, const struct dibs__uri *uri, char *hosts,
                             struct dibs__result *result) {
  if (!*p->database || strchr(p->database, '/')) {
    dibs__set_message(result, "name a database: %s://host/DATABASE", uri->scheme);
    return DIBS_INVALID;
  }
  if (dibs__uri_param(uri, "schema")) {
    dibs__set_message(result, "%s has no schema=: name the database in the path, and use prefix= to separate tables",
                      uri->scheme);
    return DIBS_INVALID;
  }
  const char *lock = dibs__uri_param(uri, "lock");
  if (lock && strcmp(lock, "rows") != 0 && strcmp(lock, "named") != 0) {
    dibs__set_message(result, "lock=%s is not rows or named", lock);
    return DIBS_INVALID;
  }
  if (!p->ssl_cert != !p->ssl_key) {
    dibs__set_message(result, "ssl_cert= and ssl_key= need each other: give both");
    return DIBS_INVALID;
  }
  dibs__status status = read_ssl(p, dibs__uri_param(uri, "ssl"), result);
  if (status == DIBS_OK && p->ssl == DIBS__MYSQL_SSL_OFF && p->ssl_cert) {
    dibs__set_message(result, "ssl=off uses no certificate: remove ssl_cert= and ssl_key=, or write ssl=on");
    return DIBS_INVALID;
  }
  return status == DIBS_OK ? read_hosts(p, hosts, result) : status;
}

dibs__status dibs__mysql_prepare(const struct dibs__uri *uri, struct dibs__server *store, void **location,
                                 struct dibs__result *result) {
  const char *path = *uri->path == '/' ? uri->path + 1 : uri->path;
  const char *from[] = {uri->user,
                        uri->password,
                        path,
                        uri->hosts,
                        dibs__uri_param(uri, "socket"),
                        dibs__uri_param(uri, "ssl_ca"),
                        dibs__uri_param(uri, "ssl_cert"),
                        dibs__uri_param(uri, "ssl_key")};
  size_t size = 1;
  for (size_t i = 0; i < sizeof from / sizeof from[0]; i++) size += from[i] ? strlen(from[i]) + 1 : 0;
  *location = NULL;
  struct dibs__mysql_location *p = calloc(1, sizeof *p);
  if (p) p->memory = malloc(size);
  if (p) p->tasks = calloc(1, sizeof *p->tasks);
  if (!p || !p->memory || !p->tasks) {
    dibs__mysql_forget(p);
    return DIBS_NO_MEMORY;
  }
  char *at = p->memory;
  p->user = copy_param(&at, from[0]);
  p->password = copy_param(&at, from[1]);
  p->database = copy_param(&at, from[2]);
  char *hosts = at;
  (void)copy_param(&at, from[3]);
  p->socket = copy_param(&at, from[4]);
  p->ssl_ca = copy_param(&at, from[5]);
  p->ssl_cert = copy_param(&at, from[6]);
  p->ssl_key = copy_param(&at, from[7]);
  dibs__status status = read_all(p, uri, hosts, result);
  for (size_t i = 0; i < DIBS__MYSQL_TEXTS && status == DIBS_OK; i++) {
    p->texts[i] = dibs__server_text(store, texts[i]);
    if (!p->texts[i]) status = DIBS_NO_MEMORY;
  }
  if (status == DIBS_OK)
    *location = p;
  else
    dibs__mysql_forget(p);
  return status;
}

void dibs__mysql_forget(void *location) {
  struct dibs__mysql_location *p = location;
  if (!p) return;
  for (size_t i = 0; i < DIBS__MYSQL_TEXTS; i++) free(p->texts[i]);
  free(p->memory);
  free(p->tasks);
  free(p);
}

/* ---- Connections ---- */

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__mysql_wire wire_t;

enum { STACK = 65536, IDLE_S = 31536000, IDLE_INSIDE_S = 5 };

/* Under TLS the connector leaves its socket blocking, also for its non-blocking calls: a deadline would not be kept. */
static void unblock(wire_t *w) {
  int fd = mysql_get_socket(w->my), flags = fcntl(fd, F_GETFL);
  w->tls = mysql_get_ssl_cipher(w->my) != NULL;
  w->unblocked = w->tls && flags >= 0 && !(flags & O_NONBLOCK) && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

static void block_again(const wire_t *w) {
  int fd = mysql_get_socket(w->my), flags = fcntl(fd, F_GETFL);
  if (w->unblocked && flags >= 0) (void)fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
}

/* OpenSSL keeps an error queue for each thread; an error left by a broken connection would be read as one of the next
 * connection. */
static void forget_errors(void) {
  union {
    void *found;
    void (*call)(void);
  } forget = {.found = dlsym(RTLD_NEXT, "ERR_clear_error")};
  if (forget.found) forget.call();
}

void dibs__mysql_close(struct dibs__sql_wire *wire) {
  wire_t *w = dibs__my(wire);
  if (!w) return;
  if (w->trusted && w->dead) atomic_store(&w->trusted->asked_ns, 0);
  dibs__mysql_clear(w);
  if (!w->ours) block_again(w);
  if (w->ours && w->my) {
    /* A dead connection sends no goodbye packet. */
    if (w->dead && mysql_get_socket(w->my) != MARIADB_INVALID_SOCKET)
      (void)shutdown(mysql_get_socket(w->my), SHUT_RDWR);
    mysql_close(w->my);
  }
  if (w->tls && w->dead) forget_errors();
  free(w->text.p);
  free(w->starts);
  free(w->answers);
  free(w->cells);
  free(w);
}

/* ---- Connecting ---- */

/* The message of an error for people, and its status. */
static dibs__status explain_connect_error(const struct dibs__server *store, const struct dibs__mysql_host *host,
                                          const wire_t *w, struct dibs__result *result) {
  const struct dibs__mysql_location *p = store->location;
  unsigned error = mysql_errno(w->my);
  const char *next = "";
  dibs__status status = DIBS_UNAVAILABLE;
  switch (dibs__mysql_trouble(error)) {
  case DIBS__SQL_DENIED:
    status = DIBS_DENIED;
    if (error == 1045 || error == 1698) next = ": check the user and the password in the URI";
    if (error == 1044) next = ": it does not exist, or this user has no access to it";
    break;
  case DIBS__SQL_MISSING:
    status = DIBS_INVALID;
    next = ": create it (CREATE DATABASE), or name another one in the URI";
    break;
  case DIBS__SQL_FULL:
    next = ": raise max_connections, or open fewer connections";
    break;
  case DIBS__SQL_NO_SPACE:
    status = DIBS_NO_MEMORY;
    break;
  default:
    if (error == 2026) status = DIBS_DENIED;
  }
  dibs__set_message(result, "can't connect to %s at %s: %s%s", store->shown, host->name ? host->name : p->socket,
                    w->late ? "no answer before the deadline" : mysql_error(w->my), next);
  return status;
}

static bool is_unix_socket(const struct dibs__mysql_location *p, const struct dibs__mysql_host *host) {
  return p->socket || (!host->port && strcmp(host->name, "localhost") == 0);
}

/* To the connector MYSQL_OPT_SSL_ENFORCE means: use TLS if the server offers it.  It enforces nothing. */
static bool wants_tls(const struct dibs__mysql_location *p, const struct dibs__mysql_host *host) {
  return p->ssl >= DIBS__MYSQL_SSL_ON || (p->ssl == DIBS__MYSQL_SSL_PREFER && !is_unix_socket(p, host));
}

static void set_options(wire_t *w, const struct dibs__mysql_location *p, const struct dibs__mysql_host *host) {
  MYSQL *my = w->my;
  size_t stack = STACK;
  my_bool off = 0, on = 1;
  unsigned no_files = 0;
  unsigned tcp = MYSQL_PROTOCOL_TCP, unix_socket = MYSQL_PROTOCOL_SOCKET;
  mysql_options(my, MYSQL_OPT_NONBLOCK, &stack);
  mysql_options(my, MYSQL_SET_CHARSET_NAME, "utf8mb4");
  mysql_options(my, MYSQL_OPT_RECONNECT, &off);
  mysql_options(my, MYSQL_OPT_LOCAL_INFILE, &no_files);
  mysql_options4(my, MYSQL_OPT_CONNECT_ATTR_ADD, "program_name", "dibs");
  if (p->socket)
    mysql_options(my, MYSQL_OPT_PROTOCOL, &unix_socket);
  else if (host->port)
    mysql_options(my, MYSQL_OPT_PROTOCOL, &tcp); /* else the connector takes a socket for "localhost" */
  if (p->ssl_ca) mysql_options(my, MYSQL_OPT_SSL_CA, p->ssl_ca);
  if (p->ssl_cert) mysql_options(my, MYSQL_OPT_SSL_CERT, p->ssl_cert);
  if (p->ssl_key) mysql_options(my, MYSQL_OPT_SSL_KEY, p->ssl_key);
  mysql_options(my, MYSQL_OPT_SSL_ENFORCE, wants_tls(p, host) ? &on : &off);
  mysql_options(my, MYSQL_OPT_SSL_VERIFY_SERVER_CERT, p->ssl == DIBS__MYSQL_SSL_VERIFY ? &on : &off);
}

enum greeting { NONE_YET, TLS_OFFERED, NO_TLS };

/* The server sends first: length (3 bytes), number, protocol, version and NUL, thread (4), salt (8), NUL, capabilities
 * (2).  The connector reads an error that comes instead. */
static enum greeting read_greeting(const uint8_t *p, size_t len) {
  enum { VERSION = 5, BEHIND_VERSION = 1 + 4 + 8 + 1, HAS_TLS = 0x08 /* of the second byte */ };
  if (len <= VERSION) return NONE_YET;
  if (p[4] == 0xff) return TLS_OFFERED;
  const uint8_t *end = memchr(p + VERSION, '\0', len - VERSION);
  size_t at = end ? (size_t)(end - p) + BEHIND_VERSION : len;
  if (at + 2 > len) return NONE_YET;
  return p[at + 1] & HAS_TLS ? TLS_OFFERED : NO_TLS;
}

/* Reads the greeting before the connector does: without TLS the connector would answer with the password, in whatever
 * form the peer requests, and fail afterwards.  (Where the kernel connects at once, to this machine, the connector may
 * be faster; then the lack of a cipher is noticed afterwards.) */
static enum greeting await_greeting(wire_t *w) {
  struct pollfd fd = {.fd = mysql_get_socket(w->my), .events = POLLIN};
  uint8_t peek[256];
  for (;;) {
    /* An error that recv() took would be missing for the connector. */
    if (dibs__mysql_await(w, MYSQL_WAIT_READ) == MYSQL_WAIT_TIMEOUT) return NONE_YET;
    if (poll(&fd, 1, 0) != 1 || fd.revents != POLLIN) return NONE_YET;
    ssize_t n = recv(fd.fd, peek, sizeof peek, MSG_PEEK | MSG_DONTWAIT);
    enum greeting greeting = n > 0 ? read_greeting(peek, (size_t)n) : NONE_YET;
    if (greeting != NONE_YET || n <= 0 || n == sizeof peek) return greeting;
    /* A part of it keeps the socket readable for as long as the peer wants. */
    if (!dibs__tick_before(dibs__tick_now(), w->base.by)) return NONE_YET;
    dibs__nap_ms(1); /* half of it has arrived */
  }
}

/* False: see *bare (the server offers no TLS, and it is wanted), else the connector's error. */
static bool shake_hands(wire_t *w, const struct dibs__mysql_location *p, const struct dibs__mysql_host *host,
                        bool *bare) {
  MYSQL *made = NULL;
  unsigned long flags = CLIENT_MULTI_STATEMENTS | CLIENT_FOUND_ROWS;
  enum greeting greeting = p->ssl >= DIBS__MYSQL_SSL_ON ? NONE_YET : TLS_OFFERED;
  int want = mysql_real_connect_start(&made, w->my, host->name, p->user, p->password ? p->password : "", p->database,
                                      host->port, p->socket, flags);
  while (want) {
    int came = dibs__mysql_await(w, want);
    if (greeting == NONE_YET && came != MYSQL_WAIT_TIMEOUT) greeting = await_greeting(w);
    if (greeting == NO_TLS) {
      (void)shutdown(mysql_get_socket(w->my), SHUT_RDWR);
      came = MYSQL_WAIT_TIMEOUT;
    }
    want = mysql_real_connect_cont(&made, w->my, came);
  }
  *bare = greeting == NO_TLS || (made && p->ssl >= DIBS__MYSQL_SSL_ON && !mysql_get_ssl_cipher(w->my));
  return made && !*bare;
}

static dibs__status refuse_bare(const struct dibs__server *store, const struct dibs__mysql_host *host,
                                struct dibs__result *result) {
  const struct dibs__mysql_location *p = store->location;
  bool verify = p->ssl == DIBS__MYSQL_SSL_VERIFY;
  dibs__set_message(result,
                    "can't connect to %s at %s: the server offers no TLS, which ssl=%s requires: enable TLS on the "
                    "server, or write ssl=prefer",
                    store->shown, host->name ? host->name : p->socket, verify ? "verify" : "on");
  return DIBS_DENIED;
}

/* ---- Setting up ---- */

enum { HOST_SIZE = 120 };

/* "db1:3306", for messages. */
static const char *place_of(const struct dibs__mysql_location *p, const struct dibs__mysql_host *host,
                            char to[HOST_SIZE]) {
  if (host->port && !p->socket)
    snprintf(to, HOST_SIZE, "%s:%u", host->name, host->port);
  else
    snprintf(to, HOST_SIZE, "%s", p->socket ? p->socket : host->name);
  return to;
}

static sql_rc put_session(wire_t *w, const struct dibs__server_options *o) {
  char text[640], idle[64] = "", finer[64] = "";
  int64_t lock_s = (o->lock_timeout_ms + 999) / 1000;
  /* A client that is stopped or cut off in the middle of a transaction keeps the locks of its rows. */
  if (w->maria) snprintf(idle, sizeof idle, ", idle_transaction_timeout = %d", IDLE_INSIDE_S);
  /* The server's lock timeout counts whole seconds; a statement's own timeout is finer. */
  if (w->maria && o->lock_timeout_ms % 1000 != 0)
    snprintf(finer, sizeof finer, ", max_statement_time = %lld.%03lld", (long long)(o->lock_timeout_ms / 1000),
             (long long)(o->lock_timeout_ms % 1000));
  snprintf(text, sizeof text,
           "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', autocommit = 1,"
           " innodb_lock_wait_timeout = %lld, lock_wait_timeout = %lld, wait_timeout = %d, foreign_key_checks = 1,"
           " unique_checks = 1, sql_safe_updates = 0, default_storage_engine = InnoDB%s%s",
           (long long)lock_s, (long long)lock_s, IDLE_S, idle, finer);
  sql_rc end = dibs__mysql_put(&w->base, text, NULL, 0);
  if (end == DIBS__SQL_OK)
    end = dibs__mysql_put(&w->base, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", NULL, 0);
  if (end == DIBS__SQL_OK)
    end = dibs__mysql_put(&w->base, "SELECT CONNECTION_ID(), @@global.read_only, @@max_allowed_packet, VERSION()", NULL,
                          0);
  /* The last, because not every server has it: its answer is not needed then. */
  if (end == DIBS__SQL_OK && w->maria) end = dibs__mysql_put(&w->base, "SELECT @@wsrep_on", NULL, 0);
  return end;
}

enum { SET, ISOLATION, FACTS, GALERA };

static dibs__status refuse_server(wire_t *w, const char *shown, const char *host, struct dibs__result *result) {
  uint64_t id = (uint64_t)dibs__mysql_cell(&w->base, FACTS, 0, 0, DIBS__SQL_NUMBER).number;
  if ((uint32_t)id != (uint32_t)mysql_thread_id(w->my)) {
    dibs__set_message(result,
                      "%s is a proxy that moves statements between connections: give dibs the server's own address, or "
                      "a proxy that does not",
                      shown);
    return DIBS_UNSUPPORTED;
  }
  if (dibs__mysql_rows(&w->base, GALERA) && dibs__mysql_cell(&w->base, GALERA, 0, 0, DIBS__SQL_NUMBER).number) {
    dibs__set_message(result,
                      "%s is a node of a Galera cluster, whose nodes do not share locks and clock; use a single server",
                      shown);
    return DIBS_UNSUPPORTED;
  }
  if (dibs__mysql_cell(&w->base, FACTS, 0, 1, DIBS__SQL_NUMBER).number) {
    w->read_only = true;
    dibs__set_message(result, "%s: %s is read-only (read_only=1: a replica, or in maintenance); name the primary, too",
                      shown, host);
    return DIBS_UNAVAILABLE;
  }
  return DIBS_OK;
}

/* The version as the handshake gave it: "10.11.6-MariaDB", "8.0.36". */
static bool new_enough(const wire_t *w) {
  unsigned long version = mysql_get_server_version(w->my);
  return version >= (w->maria ? 100500 : 80019);
}

static dibs__status set_up_session(wire_t *w, const struct dibs__server *store, const struct dibs__mysql_host *host,
                                   struct dibs__result *result) {
  const char *version = mysql_get_server_info(w->my);
  w->maria = version && strstr(version, "MariaDB") != NULL;
  w->base.engine = w->maria ? &store->engine->sql : &dibs__mysql_mysql;
  w->many = w->found = true;
  unblock(w);
  w->packet_max = w->packet_limit = 1 << 20;
  if (!new_enough(w)) {
    dibs__set_message(result, "%s is version %s: dibs needs MariaDB 10.5 or MySQL 8.0.19", store->shown,
                      version ? version : "?");
    return DIBS_UNSUPPORTED;
  }
  sql_rc end = put_session(w, &store->options);
  if (end == DIBS__SQL_OK) end = dibs__mysql_go(&w->base, false);
  if (end != DIBS__SQL_OK && w->base.failed_at != GALERA) {
    dibs__set_message(result, "can't set up a connection to %s: %s", store->shown, w->base.message);
    return w->base.trouble == DIBS__SQL_DENIED ? DIBS_DENIED : DIBS_UNAVAILABLE;
  }
  /* Some bytes for the SQL around a statement. */
  w->packet_max = w->packet_limit = (size_t)dibs__mysql_cell(&w->base, FACTS, 0, 2, DIBS__SQL_NUMBER).number - 64;
  char place[HOST_SIZE];
  return refuse_server(w, store->shown, place_of(store->location, host, place), result);
}

/* *read_only: it failed because the host is. */
static dibs__status try_host(struct dibs__server *store, const struct dibs__mysql_host *host, dibs__tick by,
                             wire_t **out, bool *read_only, struct dibs__result *result) {
  wire_t *w = calloc(1, sizeof *w);
  *read_only = false;
  if (!w) return DIBS_NO_MEMORY;
  dibs__status status = DIBS_NO_MEMORY;
  bool bare = false;
  w->ours = true;
  w->base.by = by;
  w->my = mysql_init(NULL);
  if (!w->my) goto out;
  set_options(w, store->location, host);
  if (shake_hands(w, store->location, host, &bare)) {
    status = set_up_session(w, store, host, result);
  } else if (bare) {
    status = refuse_bare(store, host, result);
    w->dead = true;
  } else {
    status = explain_connect_error(store, host, w, result);
    w->dead = w->late;
  }
out:
  *read_only = w->read_only;
  if (status == DIBS_OK)
    *out = w;
  else
    dibs__mysql_close(&w->base);
  return status;
}

/* Until when the nth host is waited for: each of those that are left has its share of the time, `most` at most. */
static dibs__tick share_of(const struct dibs__mysql_location *p, size_t nth, int64_t most, dibs__tick by) {
  dibs__tick now = dibs__tick_now();
  int64_t share = dibs__tick_left_ms(now, by) / (int64_t)(p->host_count - nth);
  return dibs__tick_min(by, dibs__tick_add_ms(now, share < most ? share : most));
}

/* ---- Two primaries ---- */

enum { ASKED_MS = 5000, ASK_MS = 1000, SERVER_SIZE = 600 };

/* What distinguishes servers.  false: it does not answer. */
static bool read_server(wire_t *w, char to[SERVER_SIZE]) {
  sql_rc end =
      dibs__mysql_put(&w->base, "SELECT CONCAT_WS(' ', @@hostname, @@server_id, @@port, @@socket, @@datadir)", NULL, 0);
  if (end == DIBS__SQL_OK) end = dibs__mysql_go(&w->base, false);
  if (end != DIBS__SQL_OK || dibs__mysql_rows(&w->base, 0) != 1) return false;
  struct dibs__sql_value cell = dibs__mysql_cell(&w->base, 0, 0, 0, DIBS__SQL_TEXT);
  snprintf(to, SERVER_SIZE, "%.*s", (int)cell.len, cell.p ? cell.p : "");
  return true;
}

static uint64_t digest_of(const char *text) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (; *text; text++) hash = (hash ^ (uint8_t)*text) * UINT64_C(0x100000001b3);
  return hash;
}

/* Another host accepts writes, and is not the same server under another name. */
static bool is_rival(struct dibs__server *store, const struct dibs__mysql_host *host, const char *here, dibs__tick by) {
  char there[SERVER_SIZE];
  struct dibs__result heard = {.text = ""};
  wire_t *w = NULL;
  bool read_only;
  if (try_host(store, host, by, &w, &read_only, &heard) != DIBS_OK) return false;
  bool rival = read_server(w, there) && strcmp(here, there) != 0;
  dibs__mysql_close(&w->base);
  return rival;
}

static dibs__status check_rivals(struct dibs__server *store, size_t nth, wire_t *w, dibs__tick by,
                                 struct dibs__result *result) {
  const struct dibs__mysql_location *p = store->location;
  char here[SERVER_SIZE], a[HOST_SIZE], b[HOST_SIZE];
  int64_t now_ns = dibs__tick_now().ns, asked = atomic_load(&p->tasks->asked_ns);
  if (p->host_count < 2) return DIBS_OK;
  if (!read_server(w, here)) {
    dibs__set_message(result, "can't set up a connection to %s: %s", store->shown, w->base.message);
    return DIBS_UNAVAILABLE;
  }
  uint64_t digest = digest_of(here);
  if (asked && now_ns - asked < ASKED_MS * DIBS__NS_PER_MS && digest == atomic_load(&p->tasks->asked_for))
    return DIBS_OK;
  for (size_t i = 0; i < p->host_count; i++) {
    if (i == nth || !is_rival(store, &p->hosts[i], here, share_of(p, i, ASK_MS, by))) continue;
    dibs__set_message(result,
                      "%s: %s and %s both accept writes, so one of them is a primary that was replaced; make that one "
                      "a replica, or SET GLOBAL read_only = 1 there",
                      store->shown, place_of(p, &p->hosts[nth], a), place_of(p, &p->hosts[i], b));
    return DIBS_UNAVAILABLE;
  }
  atomic_store(&p->tasks->asked_for, digest); /* before the time: a thread that reads the new time reads it, too */
  atomic_store(&p->tasks->asked_ns, now_ns);
  return DIBS_OK;
}

dibs__status dibs__mysql_connect(struct dibs__server *store, dibs__tick by, struct dibs__sql_wire **wire,
                                 struct dibs__result *result) {
  const struct dibs__mysql_location *p = store->location;
  dibs__status status = DIBS_UNAVAILABLE;
  struct dibs__result heard;
  wire_t *w = NULL;
  size_t nth = 0;
  bool read_only;
  *wire = NULL;
  for (size_t i = 0; i < p->host_count && status != DIBS_OK; i++) {
    heard.text[0] = '\0';
    dibs__status answer =
        try_host(store, &p->hosts[i], share_of(p, i, store->options.connect_timeout_ms, by), &w, &read_only, &heard);
    /* The most informative failure is reported: a refusal, or that of the first host. */
    if (i == 0 || answer == DIBS_OK || (status == DIBS_UNAVAILABLE && answer != DIBS_UNAVAILABLE)) {
      dibs__set_message(result, "%s", heard.text);
      status = answer;
    }
    nth = i;
  }
  if (status == DIBS_OK) status = check_rivals(store, nth, w, by, result);
  if (status != DIBS_OK) {
    if (w) dibs__mysql_close(&w->base);
    return status;
  }
  result->text[0] = '\0'; /* of the hosts tried before */
  w->trusted = p->tasks;
  *wire = &w->base;
  return DIBS_OK;
}

enum dibs__mysql_host_is dibs__mysql_ask_host(struct dibs__server *store, const struct dibs__mysql_host *host,
                                              wire_t *here, dibs__tick by, struct dibs__result *result) {
  char mine[SERVER_SIZE] = "", its[SERVER_SIZE] = "";
  wire_t *w = NULL;
  bool read_only;
  if (try_host(store, host, by, &w, &read_only, result) != DIBS_OK)
    return read_only ? DIBS__MYSQL_HOST_READ_ONLY : DIBS__MYSQL_HOST_SILENT;
  bool same = read_server(here, mine) && read_server(w, its) && strcmp(mine, its) == 0;
  dibs__mysql_close(&w->base);
  return same ? DIBS__MYSQL_HOST_HERE : DIBS__MYSQL_HOST_WRITES;
}

/* ---- The user's own connection ---- */

dibs__status dibs__mysql_adopt(struct dibs__server *store, void *connection, struct dibs__sql_wire **wire,
                               struct dibs__result *result) {
  MYSQL *my = connection;
  size_t stack = STACK;
  *wire = NULL;
  if (mysql_get_socket(my) == MARIADB_INVALID_SOCKET) {
    dibs__set_message(result, "the given MYSQL is not connected");
    return DIBS_INVALID;
  }
  if (!(my->server_status & SERVER_STATUS_IN_TRANS)) {
    dibs__set_message(
        result, "the given MYSQL has no open transaction; begin one first (with autocommit=0 a statement begins it)");
    return DIBS_INVALID;
  }
  wire_t *w = calloc(1, sizeof *w);
  if (!w) return DIBS_NO_MEMORY;
  const char *version = mysql_get_server_info(my);
  w->my = my;
  w->maria = version && strstr(version, "MariaDB");
  w->base.engine = w->maria ? &store->engine->sql : &dibs__mysql_mysql;
  w->base.inside = true;
  w->base.by = DIBS__TICK_NEVER;
  w->many = my->client_flag & CLIENT_MULTI_STATEMENTS;
  w->found = my->client_flag & CLIENT_FOUND_ROWS;
  w->packet_max = 1 << 20; /* the lowest limit of real servers; more travels in several packets */
  w->packet_limit = 1 << 30;
  if (mysql_options(my, MYSQL_OPT_NONBLOCK, &stack) != 0) {
    dibs__set_message(result, "the given MYSQL has an unfinished call; read its results first");
    dibs__mysql_close(&w->base);
    return DIBS_INVALID;
  }
  unblock(w);
  *wire = &w->base;
  return DIBS_OK;
}

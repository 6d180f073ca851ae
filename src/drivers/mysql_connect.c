/* SPDX-License-Identifier: MIT */
/*
 * Connections.  What a connection needs is set in one packet behind the handshake; what we can't work on is refused
 * there: a server that only reads, a Galera node (its locks and its clock are its own), a proxy that moves us between
 * connections.
 */
#include "drivers/mysql_parts.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

typedef enum dibs__sql_step step;
typedef struct dibs__my_wire wire_t;

enum { STACK = 65536, IDLE_S = 31536000 };

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

/* OpenSSL keeps errors a thread; one that a broken connection left would be taken for that of the next one's reading.
 */
static void forget_errors(void) {
  void (*forget)(void) = NULL;
  void *found = dlsym(RTLD_NEXT, "ERR_clear_error");
  if (!found) return;
  memcpy(&forget, &found, sizeof forget);
  forget();
}

void dibs__my_close(struct dibs__sql_wire *wire) {
  wire_t *w = dibs__my(wire);
  if (!w) return;
  dibs__my_clear(w);
  if (!w->ours) block_again(w);
  if (w->ours && w->my) {
    /* Farewells are for those who listen. */
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

/* The words of an error for people, and its status. */
static dibs__status excuse(const struct dibs__far *store, const struct dibs__my_host *host, const wire_t *w,
                           struct dibs__said *said) {
  const struct dibs__my_place *p = store->place;
  unsigned error = mysql_errno(w->my);
  const char *next = "";
  dibs__status status = DIBS_UNAVAILABLE;
  switch (dibs__my_trouble(error)) {
  case DIBS__SQL_DENIED:
    status = DIBS_DENIED;
    if (error == 1045 || error == 1698) next = ": check the user and the password in the URI";
    if (error == 1044) next = ": there is none, or this user may not use it";
    break;
  case DIBS__SQL_MISSING:
    status = DIBS_INVALID;
    next = ": create it (CREATE DATABASE), or name another in the URI";
    break;
  case DIBS__SQL_FULL:
    next = ": raise max_connections, or open fewer";
    break;
  case DIBS__SQL_NO_SPACE:
    status = DIBS_NO_MEMORY;
    break;
  default:
    if (error == 2026) status = DIBS_DENIED;
  }
  dibs__say(said, "can't connect to %s at %s: %s%s", store->shown, host->name ? host->name : p->socket,
            w->late ? "no answer before the deadline" : mysql_error(w->my), next);
  return status;
}

static void set_options(wire_t *w, const struct dibs__my_place *p, const struct dibs__my_host *host) {
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
  mysql_options(my, MYSQL_OPT_SSL_ENFORCE, p->ssl >= DIBS__MY_SSL_ON ? &on : &off);
  mysql_options(my, MYSQL_OPT_SSL_VERIFY_SERVER_CERT, p->ssl == DIBS__MY_SSL_VERIFY ? &on : &off);
}

static bool shake_hands(wire_t *w, const struct dibs__my_place *p, const struct dibs__my_host *host) {
  MYSQL *made = NULL;
  unsigned long flags = CLIENT_MULTI_STATEMENTS | CLIENT_FOUND_ROWS;
  int want = mysql_real_connect_start(&made, w->my, host->name, p->user, p->password ? p->password : "", p->database,
                                      host->port, p->socket, flags);
  while (want) want = mysql_real_connect_cont(&made, w->my, dibs__my_await(w, want));
  return made != NULL;
}

/* ---- Setting up ---- */

static step put_session(wire_t *w, const struct dibs__far_options *o) {
  char text[640], finer[64] = "";
  int64_t lock_s = (o->lock_timeout_ms + 999) / 1000;
  /* The server's lock timeout counts whole seconds; a statement's own time is finer. */
  if (w->maria && o->lock_timeout_ms % 1000 != 0)
    snprintf(finer, sizeof finer, ", max_statement_time = %lld.%03lld", (long long)(o->lock_timeout_ms / 1000),
             (long long)(o->lock_timeout_ms % 1000));
  snprintf(text, sizeof text,
           "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', autocommit = 1,"
           " innodb_lock_wait_timeout = %lld, lock_wait_timeout = %lld, wait_timeout = %d, foreign_key_checks = 1,"
           " unique_checks = 1, sql_safe_updates = 0, default_storage_engine = InnoDB%s",
           (long long)lock_s, (long long)lock_s, IDLE_S, finer);
  step end = dibs__my_put(&w->base, text, NULL, 0);
  if (end == DIBS__SQL_FINE)
    end = dibs__my_put(&w->base, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", NULL, 0);
  if (end == DIBS__SQL_FINE)
    end =
        dibs__my_put(&w->base, "SELECT CONNECTION_ID(), @@global.read_only, @@max_allowed_packet, VERSION()", NULL, 0);
  /* The last, because not every server has it: what it says is not needed then. */
  if (end == DIBS__SQL_FINE && w->maria) end = dibs__my_put(&w->base, "SELECT @@wsrep_on", NULL, 0);
  return end;
}

enum { SET, ISOLATION, FACTS, GALERA };

static dibs__status refuse(wire_t *w, const char *shown, struct dibs__said *said) {
  uint64_t id = (uint64_t)dibs__my_cell(&w->base, FACTS, 0, 0, DIBS__SQL_NUMBER).number;
  if ((uint32_t)id != (uint32_t)mysql_thread_id(w->my)) {
    dibs__say(said,
              "%s is a proxy that moves statements between connections: give dibs the server's own address, or"
              " a proxy that passes connections through",
              shown);
    return DIBS_UNSUPPORTED;
  }
  if (dibs__my_rows(&w->base, GALERA) && dibs__my_cell(&w->base, GALERA, 0, 0, DIBS__SQL_NUMBER).number) {
    dibs__say(said,
              "%s is a node of a Galera cluster: its locks and its clock are not those of the others; use a"
              " server of its own",
              shown);
    return DIBS_UNSUPPORTED;
  }
  if (dibs__my_cell(&w->base, FACTS, 0, 1, DIBS__SQL_NUMBER).number) {
    dibs__say(said, "%s is read only (read_only=1: a replica, or in maintenance): name the primary", shown);
    return DIBS_DENIED;
  }
  return DIBS_OK;
}

/* The version as the handshake gave it: "10.11.6-MariaDB", "8.0.36". */
static bool new_enough(const wire_t *w) {
  unsigned long version = mysql_get_server_version(w->my);
  return version >= (w->maria ? 100500 : 80019);
}

static dibs__status set_up(wire_t *w, const struct dibs__far *store, struct dibs__said *said) {
  const char *version = mysql_get_server_info(w->my);
  w->maria = version && strstr(version, "MariaDB") != NULL;
  w->base.engine = w->maria ? &store->engine->sql : &dibs__my_mysql;
  w->many = w->found = true;
  unblock(w);
  w->packet_max = w->packet_limit = 1 << 20;
  if (!new_enough(w)) {
    dibs__say(said, "%s is version %s: dibs needs MariaDB 10.5 or MySQL 8.0.19", store->shown, version ? version : "?");
    return DIBS_UNSUPPORTED;
  }
  step end = put_session(w, &store->options);
  if (end == DIBS__SQL_FINE) end = dibs__my_go(&w->base, false);
  if (end != DIBS__SQL_FINE && w->base.broke_at != GALERA) {
    dibs__say(said, "can't set up a connection to %s: %s", store->shown, w->base.words);
    return w->base.trouble == DIBS__SQL_DENIED ? DIBS_DENIED : DIBS_UNAVAILABLE;
  }
  /* Some bytes for what stands around a statement. */
  w->packet_max = w->packet_limit = (size_t)dibs__my_cell(&w->base, FACTS, 0, 2, DIBS__SQL_NUMBER).number - 64;
  return refuse(w, store->shown, said);
}

static dibs__status try_host(struct dibs__far *store, const struct dibs__my_host *host, dibs__tick by, wire_t **out,
                             struct dibs__said *said) {
  wire_t *w = calloc(1, sizeof *w);
  if (!w) return DIBS_NO_MEMORY;
  dibs__status status = DIBS_NO_MEMORY;
  w->ours = true;
  w->base.by = by;
  w->my = mysql_init(NULL);
  if (!w->my) goto out;
  set_options(w, store->place, host);
  if (shake_hands(w, store->place, host)) {
    status = set_up(w, store, said);
  } else {
    status = excuse(store, host, w, said);
    w->dead = w->late;
  }
out:
  if (status == DIBS_OK)
    *out = w;
  else
    dibs__my_close(&w->base);
  return status;
}

dibs__status dibs__my_connect(struct dibs__far *store, dibs__tick by, struct dibs__sql_wire **wire,
                              struct dibs__said *said) {
  const struct dibs__my_place *p = store->place;
  dibs__status status = DIBS_UNAVAILABLE;
  wire_t *w = NULL;
  *wire = NULL;
  for (size_t i = 0; i < p->host_count && status != DIBS_OK; i++) {
    dibs__tick now = dibs__tick_now();
    int64_t share = dibs__tick_left_ms(now, by) / (int64_t)(p->host_count - i);
    dibs__tick until = dibs__tick_min(
        by,
        dibs__tick_add_ms(now, share < store->options.connect_timeout_ms ? share : store->options.connect_timeout_ms));
    status = try_host(store, &p->hosts[i], until, &w, said);
  }
  if (status != DIBS_OK) return status;
  said->text[0] = '\0'; /* of hosts before */
  *wire = &w->base;
  return DIBS_OK;
}

/* ---- The user's own connection ---- */

dibs__status dibs__my_adopt(struct dibs__far *store, void *connection, struct dibs__sql_wire **wire,
                            struct dibs__said *said) {
  MYSQL *my = connection;
  size_t stack = STACK;
  *wire = NULL;
  if (mysql_get_socket(my) == MARIADB_INVALID_SOCKET) {
    dibs__say(said, "the MYSQL that was given is not connected");
    return DIBS_INVALID;
  }
  if (!(my->server_status & SERVER_STATUS_IN_TRANS)) {
    dibs__say(said, "the MYSQL that was given is in no transaction: begin one first (autocommit=0 needs a statement"
                    " too)");
    return DIBS_INVALID;
  }
  wire_t *w = calloc(1, sizeof *w);
  if (!w) return DIBS_NO_MEMORY;
  const char *version = mysql_get_server_info(my);
  w->my = my;
  w->maria = version && strstr(version, "MariaDB");
  w->base.engine = w->maria ? &store->engine->sql : &dibs__my_mysql;
  w->base.inside = true;
  w->base.by = DIBS__TICK_NEVER;
  w->many = my->client_flag & CLIENT_MULTI_STATEMENTS;
  w->found = my->client_flag & CLIENT_FOUND_ROWS;
  w->packet_max = 1 << 20; /* the least that servers are set to in earnest; more goes in several packets */
  w->packet_limit = 1 << 30;
  if (mysql_options(my, MYSQL_OPT_NONBLOCK, &stack) != 0) {
    dibs__say(said, "the MYSQL that was given is in the middle of a call");
    dibs__my_close(&w->base);
    return DIBS_INVALID;
  }
  unblock(w);
  *wire = &w->base;
  return DIBS_OK;
}

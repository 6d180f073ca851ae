/* SPDX-License-Identifier: MIT */
/*
 * What doctor asks a MariaDB or MySQL: its version and role, its replicas, the other hosts of the URI, TLS, and the
 * settings on which promises depend.  Each question is a statement of its own, so that a question that this user may
 * not ask costs only its own answer.
 */
#include "drivers/mysql/mysql_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CELL = 200 };

typedef struct dibs__mysql_wire wire_t;

static bool query(wire_t *w, const char *text) {
  return dibs__mysql_put(&w->base, text, NULL, 0) == DIBS__SQL_OK && dibs__mysql_go(&w->base, false) == DIBS__SQL_OK;
}

/* "": NULL. */
static const char *cell(const wire_t *w, size_t row, size_t column, char to[CELL]) {
  struct dibs__sql_value value = dibs__mysql_cell(&w->base, 0, row, column, DIBS__SQL_TEXT);
  snprintf(to, CELL, "%.*s", value.kind == DIBS__SQL_NULL ? 0 : (int)value.len, value.p ? value.p : "");
  return to;
}

/* The first cell of the first row; false: see find_failed. */
static bool read_cell(wire_t *w, const char *text, char to[CELL]) {
  to[0] = '\0';
  if (!query(w, text) || dibs__mysql_rows(&w->base, 0) == 0) return false;
  cell(w, 0, 0, to);
  return true;
}

/* A statement that failed: what this user may not see is no trouble, nor what this version of the server does not have.
 */
static void find_failed(struct dibs__findings *to, const wire_t *w, const char *check, const char *what) {
  if (w->base.trouble == DIBS__SQL_DENIED)
    dibs__find_hidden(to, check, what);
  else if (dibs__sql_dead(&w->base))
    dibs__find_trouble(to, check, "read the message, then try again", "%s: %s", what, w->base.message);
  else
    dibs__find(to, check, "%s: cannot be read: %s", what, w->base.message);
}

static const char *name_of(const wire_t *w) {
  return w->maria ? "MariaDB" : "MySQL";
}

static void describe_server(wire_t *w, struct dibs__findings *to) {
  const char *version = mysql_get_server_info(w->my), *via = mysql_get_host_info(w->my);
  char where[CELL];
  bool named = read_cell(w, "SELECT CONCAT(@@hostname, ':', @@port)", where);
  dibs__find(to, "server", "%s %s, %s%s%s", name_of(w), version ? version : "of an unknown version", via ? via : "",
             named ? ", calls itself " : "", where);
}

/* GTIDs may be many: the text is cut. */
static void describe_role(wire_t *w, struct dibs__findings *to) {
  char gtid[CELL], id[CELL];
  const char *text = w->maria ? "SELECT @@gtid_current_pos" : "SELECT @@gtid_executed";
  bool read = read_cell(w, "SELECT @@server_id", id) && read_cell(w, text, gtid);
  if (!read) {
    find_failed(to, w, "role", "server id and GTID");
    return;
  }
  dibs__find(to, "role", "accepts writes, server id %s, GTID %.150s", id, *gtid ? gtid : "none");
  /* Has it a primary of its own?  A server that accepts writes and replicates from another one is a ring. */
  if (query(w, w->maria ? "SHOW ALL SLAVES STATUS" : "SHOW REPLICA STATUS")) {
    if (dibs__mysql_rows(&w->base, 0) > 0)
      dibs__find_warning(to, "role",
                         "make it read-only, or end its replication: of two servers that write, one loses leases",
                         "it also replicates from another server");
  } else {
    find_failed(to, w, "role", "whether it replicates from another server");
  }
}

/* After its timeout a primary continues without the replica. */
static void find_semi_sync(wire_t *w, struct dibs__findings *to) {
  enum { LONG_MS = 86400000 };
  char value[CELL] = "";
  if (query(w, "SHOW GLOBAL VARIABLES WHERE Variable_name IN"
               " ('rpl_semi_sync_master_timeout', 'rpl_semi_sync_source_timeout')") &&
      dibs__mysql_rows(&w->base, 0) > 0)
    cell(w, 0, 1, value);
  if (*value && strtoull(value, NULL, 10) < LONG_MS)
    dibs__find_warning(to, "setting", "set that timeout to 4000000000: a replica may lack what is committed after it",
                       "replication is semi-synchronous, until a replica does not answer for %s ms", value);
  else
    dibs__find(to, "setting", "replication is semi-synchronous");
}

static void describe_replicas(wire_t *w, const struct dibs__server *store, struct dibs__findings *to) {
  char id[CELL], host[CELL], port[CELL], state[CELL];
  if (!query(w, w->maria ? "SHOW SLAVE HOSTS" : "SHOW REPLICAS")) {
    find_failed(to, w, "node", "replicas");
    return;
  }
  size_t rows = dibs__mysql_rows(&w->base, 0);
  for (size_t i = 0; i < rows && i < 32; i++)
    dibs__find(to, "node", "replica %s%s%s:%s", cell(w, i, 0, id), *cell(w, i, 1, host) ? " at " : "", host,
               cell(w, i, 2, port));
  if (rows == 0) {
    dibs__find(to, "node", "no replica is connected");
    return;
  }
  bool semi = read_cell(w,
                        "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = "
                        "'Rpl_semi_sync_master_status'",
                        state) ||
              read_cell(w,
                        "SELECT VARIABLE_VALUE FROM performance_schema.global_status WHERE VARIABLE_NAME IN "
                        "('Rpl_semi_sync_source_status', 'Rpl_semi_sync_master_status')",
                        state);
  if (semi && strcmp(state, "ON") == 0) {
    find_semi_sync(w, to);
    return;
  }
  if (store->options.failover_wait_ms == 0)
    dibs__find_warning(to, "setting",
                       "use semi-synchronous replication, or give ?failover_wait=, or never promote one within a ttl",
                       "replication is asynchronous: a promoted replica may lack leases that are still valid");
}

static void describe_tls(wire_t *w, const struct dibs__mysql_location *p, struct dibs__findings *to) {
  const char *cipher = mysql_get_ssl_cipher(w->my);
  char version[CELL] = "TLS";
  if (!cipher || !*cipher) {
    bool local = p->socket || (mysql_get_host_info(w->my) && strstr(mysql_get_host_info(w->my), "socket"));
    dibs__find(to, "tls", local ? "not needed: a Unix socket" : "none: the connection is not encrypted");
    return;
  }
  if (query(w, "SHOW SESSION STATUS LIKE 'Ssl_version'") && dibs__mysql_rows(&w->base, 0) == 1) cell(w, 0, 1, version);
  if (p->ssl == DIBS__MYSQL_SSL_VERIFY)
    dibs__find(to, "tls", "%s, %s; the server's certificate and name are verified", version, cipher);
  else
    dibs__find_warning(to, "tls", "?ssl=verify with ?ssl_ca= verifies it", "%s, %s; the server is not verified",
                       version, cipher);
}

static void describe_settings(wire_t *w, struct dibs__findings *to) {
  static const struct {
    const char *name, *strong, *next;
  } settings[] = {
      {"innodb_flush_log_at_trx_commit", "1",
       "set it to 1: what was committed last is lost in a power failure, leases and records too"},
      {"innodb_doublewrite", "ON", "set it to ON, unless the file system writes whole pages at once"},
      {"sync_binlog", "1", "set it to 1: after a power failure replicas may have more or less than this server"}};
  char value[CELL], text[160];
  for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
    snprintf(text, sizeof text, "SHOW GLOBAL VARIABLES LIKE '%s'", settings[i].name);
    if (!query(w, text) || dibs__mysql_rows(&w->base, 0) != 1) {
      find_failed(to, w, "setting", settings[i].name);
      continue;
    }
    cell(w, 0, 1, value);
    bool binlog = strcmp(settings[i].name, "sync_binlog") == 0;
    char log[CELL] = "";
    if (binlog && read_cell(w, "SELECT @@log_bin", log) && strcmp(log, "1") != 0) continue; /* it writes none */
    if (strcmp(value, settings[i].strong) == 0)
      dibs__find(to, "setting", "%s = %s", settings[i].name, value);
    else
      dibs__find_warning(to, "setting", settings[i].next, "%s = %s", settings[i].name, value);
  }
}

/* The other hosts of the URI, one after the other. */
static void describe_hosts(struct dibs__server *store, wire_t *w, dibs__tick by, struct dibs__findings *to) {
  const struct dibs__mysql_location *p = store->location;
  for (size_t i = 0; i < p->host_count && p->host_count > 1; i++) {
    char text[320];
    struct dibs__result heard = {.text = ""};
    const char *name = p->hosts[i].name ? p->hosts[i].name : p->socket;
    enum dibs__mysql_host_is is =
        dibs__mysql_ask_host(store, &p->hosts[i], w, dibs__engine_node_by(by, p->host_count - i), &heard);
    if (is == DIBS__MYSQL_HOST_HERE) continue;
    snprintf(text, sizeof text, "%s:%u", name ? name : "?", p->hosts[i].port ? p->hosts[i].port : 3306);
    if (is == DIBS__MYSQL_HOST_READ_ONLY)
      dibs__find(to, "node", "%s: read-only, as a replica", text);
    else if (is == DIBS__MYSQL_HOST_WRITES)
      dibs__find_trouble(to, "node", "make one of the two a replica, or SET GLOBAL read_only = 1 there",
                         "%s accepts writes, too", text);
    else
      dibs__find_trouble(to, "node", "look at that server; a failover to it is not possible now",
                         "%s does not answer: %s", text, heard.text);
  }
}

void dibs__mysql_describe(struct dibs__server *store, struct dibs__sql_wire *wire, struct dibs__findings *to) {
  wire_t *w = dibs__my(wire);
  dibs__tick by = wire->by;
  describe_server(w, to);
  describe_role(w, to);
  describe_replicas(w, store, to);
  describe_hosts(store, w, by, to);
  describe_tls(w, store->location, to);
  describe_settings(w, to);
}

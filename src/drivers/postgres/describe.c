/* SPDX-License-Identifier: MIT */
/*
 * What doctor asks a PostgreSQL: its version and role, its standbys, the other hosts of the URI, TLS, and the settings
 * on which promises depend.  Each question is a statement of its own, so that a question that this user may not ask
 * costs only its own answer.
 */
#include "drivers/postgres/postgres_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { CELL = 120 };

typedef struct dibs__sql_wire wire_t;

/* false: the wire's message says why. */
static bool query(wire_t *wire, const char *text) {
  return dibs__pg_put(wire, text, NULL, 0) == DIBS__SQL_OK && dibs__pg_go(wire, false) == DIBS__SQL_OK;
}

/* "": NULL. */
static const char *cell(const wire_t *wire, size_t row, size_t column, char to[CELL]) {
  struct dibs__sql_value value = dibs__pg_cell(wire, 0, row, column, DIBS__SQL_TEXT);
  snprintf(to, CELL, "%.*s", value.kind == DIBS__SQL_NULL ? 0 : (int)value.len, value.p ? value.p : "");
  return to;
}

/* A statement that failed: what this user may not see is no trouble, nor what this version of the server does not have.
 */
static void find_failed(struct dibs__findings *to, const wire_t *wire, const char *check, const char *what) {
  if (wire->trouble == DIBS__SQL_DENIED)
    dibs__find_hidden(to, check, what);
  else if (dibs__sql_dead(wire))
    dibs__find_trouble(to, check, "read the message, then try again", "%s: %s", what, wire->message);
  else
    dibs__find(to, check, "%s: cannot be read: %s", what, wire->message);
}

static bool is_socket(const PGconn *pg) {
  const char *host = PQhost(pg);
  return !host || !*host || *host == '/' || *host == '@';
}

static void describe_server(const struct dibs__pg_wire *w, struct dibs__findings *to) {
  const char *version = PQparameterStatus(w->pg, "server_version"), *host = PQhost(w->pg), *port = PQport(w->pg);
  dibs__find(to, "server", "PostgreSQL %s at %s:%s", version ? version : "of an unknown version", host ? host : "",
             port ? port : "");
}

static void describe_tls(const struct dibs__pg_wire *w, const struct dibs__pg_location *p, struct dibs__findings *to) {
  const char *mode = "";
  for (size_t i = 0; i < p->count; i++)
    if (strcmp(p->keywords[i], "sslmode") == 0 && p->values[i]) mode = p->values[i];
  if (!PQsslInUse(w->pg)) {
    dibs__find(to, "tls", is_socket(w->pg) ? "not needed: a Unix socket" : "none: the connection is not encrypted");
    return;
  }
  const char *protocol = PQsslAttribute(w->pg, "protocol"), *cipher = PQsslAttribute(w->pg, "cipher");
  const char *verified = strcmp(mode, "verify-full") == 0 ? "the server's certificate and name are verified"
                         : strcmp(mode, "verify-ca") == 0 ? "the server's certificate is verified, its name is not"
                                                          : NULL;
  if (verified)
    dibs__find(to, "tls", "%s, %s; %s", protocol ? protocol : "TLS", cipher ? cipher : "?", verified);
  else
    dibs__find_warning(to, "tls", "?sslmode=verify-full verifies it", "%s, %s; the server is not verified",
                       protocol ? protocol : "TLS", cipher ? cipher : "?");
}

static void describe_role(wire_t *wire, struct dibs__findings *to) {
  char system[CELL], timeline[CELL];
  if (query(wire, dibs__pg_timeline) && dibs__pg_rows(wire, 0) == 1)
    dibs__find(to, "role", "primary, timeline %s, system %s", cell(wire, 0, 1, timeline), cell(wire, 0, 0, system));
  else
    find_failed(to, wire, "role", "the timeline");
}

/* Without the rights of pg_monitor a row has no state. */
static void describe_standbys(wire_t *wire, const struct dibs__server *store, struct dibs__findings *to) {
  static const char text[] =
      "SELECT coalesce(application_name, ''), coalesce(host(client_addr), 'a Unix socket'), state, sync_state,"
      " pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn)::int8 FROM pg_stat_replication"
      " WHERE state IS NULL OR state <> 'backup' ORDER BY 1, 2 LIMIT 32";
  char name[CELL], address[CELL], state[CELL], sync[CELL];
  if (!query(wire, text)) {
    find_failed(to, wire, "node", "standbys");
    return;
  }
  size_t rows = dibs__pg_rows(wire, 0), waits = 0, hidden = 0;
  for (size_t i = 0; i < rows; i++) {
    if (!*cell(wire, i, 2, state)) {
      hidden++;
      continue;
    }
    cell(wire, i, 3, sync);
    waits += strcmp(sync, "sync") == 0 || strcmp(sync, "quorum") == 0;
    dibs__find(to, "node", "standby %s at %s: %s, %s, %" PRId64 " bytes behind", cell(wire, i, 0, name),
               cell(wire, i, 1, address), state, sync, dibs__sql_cell_number(wire, 0, i, 4));
  }
  if (rows == 0) dibs__find(to, "node", "no standby is connected");
  if (hidden > 0) {
    snprintf(name, sizeof name, "the state of %zu standbys (grant pg_monitor)", hidden);
    dibs__find_hidden(to, "node", name);
  }
  if (rows > hidden && hidden == 0 && waits == 0 && store->options.failover_wait_ms == 0)
    dibs__find_warning(
        to, "setting",
        "name one in synchronous_standby_names, or give ?failover_wait=, or never promote one within a ttl",
        "no standby is synchronous: a promoted standby may lack leases that are still valid");
}

struct setting {
  const char *name, *weak, *next; /* the values that weaken a promise, separated by commas */
};

static bool is_weak(const struct setting *setting, const char *value) {
  size_t len = strlen(value);
  for (const char *at = setting->weak; len > 0 && at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
    if (strncmp(at, value, len) == 0 && (at[len] == ',' || at[len] == '\0')) return true;
  return false;
}

static void describe_settings(wire_t *wire, const struct dibs__server *store, struct dibs__findings *to) {
  static const struct setting settings[] = {
      {"fsync", "off", "set fsync=on: a power failure may damage the database, and loses leases and records"},
      {"full_page_writes", "off", "set full_page_writes=on, unless the file system writes whole pages at once"},
      {"synchronous_commit", "off,local",
       "set synchronous_commit=on: what was committed last is lost with this server, leases and records too"}};
  char value[CELL], text[160];
  for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
    const struct setting *s = &settings[i];
    snprintf(text, sizeof text, "SELECT current_setting('%s')", s->name);
    if (!query(wire, text) || dibs__pg_rows(wire, 0) != 1) {
      find_failed(to, wire, "setting", s->name);
      continue;
    }
    cell(wire, 0, 0, value);
    if (is_weak(s, value))
      dibs__find_warning(to, "setting", s->next, "%s = %s", s->name, value);
    else
      dibs__find(to, "setting", "%s = %s", s->name, value);
  }
  if (!store->options.lease_sync) dibs__find(to, "setting", "lease_sync = off: a start of the server ends all leases");
}

/* Two hosts of the URI may be one server. */
static const char identity[] = "SELECT pg_is_in_recovery()::text, (pg_control_system()).system_identifier::text || ' '"
                               " || date_part('epoch', pg_postmaster_start_time())::text";

static void describe_host(wire_t *other, const char *host, const char *port, const char *here,
                          struct dibs__findings *to) {
  char standby[CELL], there[CELL];
  if (!query(other, identity) || dibs__pg_rows(other, 0) != 1)
    find_failed(to, other, "node", host);
  else if (strcmp(cell(other, 0, 0, standby), "true") == 0)
    dibs__find(to, "node", "%s:%s: a standby", host, port);
  else if (strcmp(cell(other, 0, 1, there), here) == 0)
    dibs__find(to, "node", "%s:%s: the same server", host, port);
  else
    dibs__find_trouble(to, "node", "make the replaced server a standby of the other, or stop it",
                       "%s:%s accepts writes, too", host, port);
}

/* The other hosts of the URI, one after the other. */
static void describe_hosts(struct dibs__server *store, struct dibs__pg_wire *w, dibs__tick by,
                           struct dibs__findings *to) {
  const struct dibs__pg_location *p = store->location;
  char here[CELL] = "";
  if (p->host_count > 1 && query(&w->wire, identity)) cell(&w->wire, 0, 1, here);
  for (size_t i = 0; i < p->host_count && p->host_count > 1; i++) {
    const char *host = p->hosts[i].name ? p->hosts[i].name : "", *port = p->hosts[i].port ? p->hosts[i].port : "5432";
    if (strcmp(host, PQhost(w->pg)) == 0 && strcmp(port, PQport(w->pg)) == 0) continue;
    struct dibs__result heard = {.text = ""};
    struct dibs__pg_wire *other = dibs__pg_open_any(store, i, dibs__engine_node_by(by, p->host_count - i), &heard);
    if (!other) {
      dibs__find_trouble(to, "node", "look at that server; a failover to it is not possible now",
                         "%s:%s does not answer: %s", host, port, heard.text);
      continue;
    }
    describe_host(&other->wire, host, port, here, to);
    dibs__pg_wire_free(other);
  }
}

void dibs__pg_describe(struct dibs__server *store, wire_t *wire, struct dibs__findings *to) {
  struct dibs__pg_wire *w = (struct dibs__pg_wire *)wire;
  dibs__tick by = wire->by;
  describe_server(w, to);
  describe_role(wire, to);
  describe_standbys(wire, store, to);
  describe_hosts(store, w, by, to);
  describe_tls(w, store->location, to);
  describe_settings(wire, store, to);
}

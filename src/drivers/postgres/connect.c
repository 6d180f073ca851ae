/* SPDX-License-Identifier: MIT */
/*
 * Connections to PostgreSQL: the URI as libpq's parameters, connecting, and setting a connection up.
 *
 * There is one attempt for each host, with its share of the time: libpq itself would wait for a host that drops
 * packets as long as the kernel does.  A connection is made without blocking, set up in one packet, and checked
 * before it is used.
 *
 * Poolers.  Session state (prepared statements, the notifier's lock) can't go through a pooler that gives each
 * transaction another server process.  A pooler is recognized by a process number that is not the server's; only then
 * a second connection finds out which kind it is: while our first one is open, does the second get the same server
 * process?
 *
 * Failovers.  A promoted standby begins another timeline, with a larger number, and a primary that was replaced does
 * not know that.  Such a primary is refused: by a store that has seen a larger number, and, if the URI has several
 * hosts, by asking the other hosts, at most every ASKED_MS, and after each loss of a connection: a primary that returns
 * was gone before.  A standby that follows the new primary knows its timeline, too.
 */
#include "drivers/postgres/postgres_impl.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Those that say where the server is, then those that are passed to libpq as they are. */
enum { LOCATION_PARAMS = 4 };
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

/* Used where the URI gives no value.  A hanging connection is noticed within a minute. */
static const char *const defaults[][2] = {{"application_name", "dibs"}, {"target_session_attrs", "read-write"},
                                          {"keepalives_idle", "30"},    {"keepalives_interval", "10"},
                                          {"keepalives_count", "3"},    {"client_encoding", "UTF8"}};

static bool add_keyword(struct dibs__pg_location *p, const char *keyword, const char *value) {
  if (p->count == DIBS__PG_KEYWORDS) return false;
  p->values[p->count] = strdup(value);
  if (!p->values[p->count]) return false;
  p->keywords[p->count++] = keyword;
  return true;
}

static int hex_digit(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : 0;
}

/* len characters of `from`, with %xx decoded if the URI left that to the driver. */
static char *copy_piece(const char *from, size_t len, bool decode) {
  char *to = malloc(len + 1), *at = to;
  if (!to) return NULL;
  for (size_t i = 0; i < len; i++) {
    if (decode && from[i] == '%' && i + 2 < len) {
      *at++ = (char)(hex_digit(from[i + 1]) << 4 | hex_digit(from[i + 2]));
      i += 2;
    } else {
      *at++ = from[i];
    }
  }
  *at = '\0';
  return to;
}

/* One of "h1:1,[::1]:2,h3". */
static bool add_host(struct dibs__pg_location *p, const char *from, size_t len) {
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
  host->name = copy_piece(from, host_len, true);
  host->port = port ? copy_piece(port, (size_t)(from + len - port), false) : NULL;
  return host->name && (!port || host->port);
}

static size_t count_of(const char *list) {
  size_t n = 1;
  for (; *list; list++) n += *list == ',';
  return n;
}

/* Parameters: "?host=/run/postgresql&port=5433", each may be a list. */
static bool add_params(struct dibs__pg_location *p, const char *host, const char *port) {
  for (size_t i = 0; i < p->host_capacity; i++) {
    size_t host_len = host ? strcspn(host, ",") : 0, port_len = port ? strcspn(port, ",") : 0;
    struct dibs__pg_host *h = &p->hosts[p->host_count++];
    if (host && !(h->name = copy_piece(host, host_len, false))) return false;
    if (port && !(h->port = copy_piece(port, port_len, false))) return false;
    if (host && host[host_len]) host += host_len + 1;
    if (port && port[port_len]) port += port_len + 1; /* a single port is valid for all hosts */
  }
  return true;
}

static dibs__status read_hosts(struct dibs__pg_location *p, const struct dibs__uri *uri, struct dibs__result *result) {
  const char *host = dibs__uri_param(uri, "host"), *port = dibs__uri_param(uri, "port");
  if (*uri->hosts && (host || port)) {
    dibs__set_message(result, "%s names hosts both after // and as parameters; remove one of them", uri->scheme);
    return DIBS_INVALID;
  }
  p->host_capacity = count_of(*uri->hosts ? uri->hosts : host ? host : "");
  if (p->host_capacity > DIBS__PG_HOSTS) {
    dibs__set_message(result, "%s: more than %d hosts", uri->scheme, DIBS__PG_HOSTS);
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

static bool read_keywords(struct dibs__pg_location *p, const struct dibs__uri *uri) {
  const char *user = uri->user ? uri->user : dibs__uri_param(uri, "user");
  const char *name = uri->path[0] == '/' && uri->path[1] ? uri->path + 1 : dibs__uri_param(uri, "dbname");
  bool fine = true;
  if (user && *user) fine = add_keyword(p, "user", user);
  if (fine && uri->password) fine = add_keyword(p, "password", uri->password);
  if (fine && name) fine = add_keyword(p, "dbname", name);
  for (const char *const *key = dibs__pg_params + LOCATION_PARAMS; fine && *key; key++) {
    const char *value = dibs__uri_param(uri, *key);
    if (value) fine = add_keyword(p, *key, value);
  }
  for (size_t i = 0; fine && i < sizeof defaults / sizeof defaults[0]; i++)
    if (!dibs__uri_param(uri, defaults[i][0])) fine = add_keyword(p, defaults[i][0], defaults[i][1]);
  return fine;
}

void dibs__pg_forget(void *location) {
  struct dibs__pg_location *p = location;
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

/* `lock` is a parameter of all servers; each engine has its own modes. */
static dibs__status check_lock(const struct dibs__uri *uri, struct dibs__result *result) {
  const char *lock = dibs__uri_param(uri, "lock");
  if (!lock || strcmp(lock, "rows") == 0 || strcmp(lock, "advisory") == 0) return DIBS_OK;
  dibs__set_message(result, "lock=%s is not rows or advisory", lock);
  return DIBS_INVALID;
}

dibs__status dibs__pg_prepare(const struct dibs__uri *uri, struct dibs__server *store, void **location,
                              struct dibs__result *result) {
  *location = NULL;
  dibs__status status = check_lock(uri, result);
  if (status != DIBS_OK) return status;
  struct dibs__pg_location *p = calloc(1, sizeof *p);
  status = p ? read_hosts(p, uri, result) : DIBS_NO_MEMORY;
  if (status == DIBS_OK && (!read_keywords(p, uri) || !dibs__pg_fast_prepare(p, store))) status = DIBS_NO_MEMORY;
  if (status == DIBS_NO_MEMORY) dibs__set_message(result, "out of memory for the store URI");
  if (status == DIBS_OK)
    *location = p;
  else
    dibs__pg_forget(p);
  return status;
}

/* ---- Connections ---- */

enum { OLDEST = 120000, POOLER_TRIES = 3, MESSAGE_SIZE = 200 };

/* ---- libpq's message about a failed connection ---- */

/* "...FATAL:  28P01: password ..." of the verbose form: the state from the last host that sent one. */
static bool state_in(const char *message, char state[6]) {
  bool found = false;
  for (const char *at = message; (at = strstr(at, ":  ")); at++) {
    size_t n = 3;
    while (isupper((unsigned char)at[n]) || isdigit((unsigned char)at[n])) n++;
    if (n != 8 || at[8] != ':') continue;
    memcpy(state, at + 3, 5);
    state[5] = '\0';
    found = true;
  }
  return found;
}

/* The message without state, LOCATION and the like, on one line. */
static void plain_message(char *to, size_t size, const char *message) {
  size_t used = 0;
  const char *line = message;
  for (; *line; line += *line == '\n') {
    size_t len = strcspn(line, "\n");
    char state[6];
    if (strncmp(line, "LOCATION:", 9) != 0 && strncmp(line, "\t", 1) != 0 && len > 0) {
      char copy[512];
      snprintf(copy, sizeof copy, "%.*s", (int)(len < sizeof copy ? len : sizeof copy - 1), line);
      char *mark = state_in(copy, state) ? strstr(copy, state) : NULL;
      if (mark) memmove(mark, mark + 7, strlen(mark + 7) + 1);
      int n = snprintf(to + used, size - used, "%s%s", used ? "; " : "", copy);
      used = n < 0 || (size_t)n >= size - used ? size - 1 : used + (size_t)n;
    }
    line += len;
    if (!*line) break;
  }
  to[used] = '\0';
}

static dibs__status status_of(const char *state) {
  switch (dibs__pg_trouble(state)) {
  case DIBS__SQL_DENIED:
    return DIBS_DENIED;
  case DIBS__SQL_MISSING:
    return DIBS_INVALID;
  default:
    return DIBS_UNAVAILABLE;
  }
}

/* libpq has no code for a server without TLS, nor for a certificate that it refuses; a retry repairs neither.  (A
 * connection that breaks within the handshake is "SSL SYSCALL error" or "unexpected eof": that is the network.) */
static bool refused_for_tls(const char *message) {
  return strstr(message, "does not support SSL") || strstr(message, "certificate");
}

static dibs__status explain_connect_failure(struct dibs__server *store, PGconn *pg, struct dibs__result *result) {
  char state[6] = "", message[MESSAGE_SIZE];
  const char *all = PQerrorMessage(pg);
  bool known = state_in(all, state);
  plain_message(message, sizeof message, all);
  dibs__set_message(result, "can't connect to %s: %s", store->shown, message[0] ? message : "the connection was lost");
  if (PQconnectionNeedsPassword(pg) || (!known && refused_for_tls(all))) return DIBS_DENIED;
  return known ? status_of(state) : DIBS_UNAVAILABLE;
}

/* ---- Connecting ---- */

/* `any`: to a standby, too. */
static PGconn *start_connect(const struct dibs__pg_location *p, const struct dibs__pg_host *host, bool any) {
  const char *keywords[DIBS__PG_KEYWORDS + 3], *values[DIBS__PG_KEYWORDS + 3];
  size_t n = 0;
  if (host->name) keywords[n] = "host", values[n++] = host->name;
  if (host->port) keywords[n] = "port", values[n++] = host->port;
  for (size_t i = 0; i < p->count; i++) {
    bool attrs = strcmp(p->keywords[i], "target_session_attrs") == 0;
    keywords[n] = p->keywords[i], values[n++] = any && attrs ? "any" : p->values[i];
  }
  keywords[n] = values[n] = NULL;
  return PQconnectStartParams(keywords, values, 0);
}

/* Before the first byte is written, the socket must be polled for writing. */
static dibs__status finish_connect(struct dibs__server *store, PGconn *pg, dibs__tick by, struct dibs__result *result) {
  if (PQstatus(pg) == CONNECTION_BAD) return explain_connect_failure(store, pg, result);
  PQsetErrorVerbosity(pg, PQERRORS_VERBOSE);
  PostgresPollingStatusType next = PGRES_POLLING_WRITING;
  while (next != PGRES_POLLING_OK) {
    if (!dibs__pg_wait_for(pg, next == PGRES_POLLING_READING, next == PGRES_POLLING_WRITING, by)) {
      dibs__set_message(result, "can't connect to %s: no answer from the server before the deadline", store->shown);
      return DIBS_UNAVAILABLE;
    }
    next = PQconnectPoll(pg);
    if (next == PGRES_POLLING_FAILED) return explain_connect_failure(store, pg, result);
  }
  PQsetErrorVerbosity(pg, PQERRORS_DEFAULT);
  return DIBS_OK;
}

/* Ranks statuses, so that the most informative failure of several hosts is reported. */
static int failure_rank(dibs__status status) {
  return status == DIBS_UNAVAILABLE ? 0 : 1;
}

/* Connects to the first host from *nth on that accepts writes; *nth becomes its number. */
static dibs__status connect_any_host(struct dibs__server *store, size_t *nth, dibs__tick by, PGconn **out,
                                     struct dibs__result *result) {
  struct dibs__pg_location *p = store->location;
  dibs__status worst = DIBS_UNAVAILABLE;
  size_t from = *nth;
  *out = NULL;
  for (size_t i = from; i < p->host_count; i++) {
    struct dibs__result heard = {.text = ""};
    dibs__tick now = dibs__tick_now();
    int64_t share = dibs__tick_left_ms(now, by) / (int64_t)(p->host_count - i);
    if (store->options.connect_timeout_ms > 0 && share > store->options.connect_timeout_ms)
      share = store->options.connect_timeout_ms;
    PGconn *pg = start_connect(p, &p->hosts[i], false);
    if (!pg) {
      dibs__set_message(result, "out of memory for a connection to %s", store->shown);
      return DIBS_NO_MEMORY;
    }
    dibs__status status = finish_connect(store, pg, dibs__tick_min(by, dibs__tick_add_ms(now, share)), &heard);
    if (status == DIBS_OK) {
      *out = pg;
      *nth = i;
      return DIBS_OK;
    }
    PQfinish(pg);
    if (i == from || failure_rank(status) > failure_rank(worst)) {
      worst = status;
      dibs__set_message(result, "%s", heard.text);
    }
  }
  *nth = p->host_count;
  return worst;
}

/* ---- Setting up ---- */

/* The search path: our schema, then the role's own path, for the user's own tables.  While our tables do not exist, it
 * is our schema alone: otherwise those of another schema in the path would be taken for ours. */
#define THERE(schema, prefix) "to_regclass(quote_ident(" schema ") || '.' || " prefix " || 'meta') IS NOT NULL"
#define PATH(schema, prefix, rest)                                                                                     \
  "concat_ws(', ', quote_ident(" schema "), CASE WHEN " THERE(schema, prefix) " THEN nullif(" rest ", '') END)"
static const char widening[] =
    "SELECT CASE WHEN " THERE("$1", "$2") " THEN 1 ELSE 0 END, set_config('search_path', " PATH(
        "$1", "$2", "(SELECT reset_val FROM pg_settings WHERE name = 'search_path')") ", false)";
/* In a user's transaction their own path stays in front, and ours ends with the transaction. */
static const char joining[] =
    "SELECT 1, set_config('search_path', concat_ws(', ', nullif(current_setting('search_path'), ''), quote_ident($1)),"
    " true) WHERE $2 <> '' AND to_regnamespace(quote_ident($1)) IS NOT NULL AND NOT $1::name = ANY "
    "(current_schemas(false))";

bool dibs__pg_widen(struct dibs__pg_wire *w) {
  const char *values[] = {w->store->options.schema, w->store->options.prefix};
  return PQsendQueryParams(w->pg, w->wire.inside ? joining : widening, 2, NULL, values, NULL, NULL, 0) == 1;
}

/* Plans: our statements look rows up by key, in tables that change faster than their statistics, and are planned once;
 * a plan made when a table was small must not scan it later.  So an index lookup is cheap here and each row that is
 * read is expensive: rows are looked up one by one, and the table is never scanned and hashed.  Without bitmaps, which
 * have no order: a claim of the first tasks of an index would collect and sort all that are ready. */
static const char settings[] = "SELECT CASE WHEN " THERE(
    "$3", "$7") " THEN 1 ELSE 0 END, set_config('default_transaction_isolation', 'read committed', false),"
                " set_config('default_transaction_read_only', 'off', false), set_config('TimeZone', 'UTC', false),"
                " set_config('lock_timeout', $1, false), set_config('idle_in_transaction_session_timeout', $2, false),"
                " set_config('search_path', " PATH(
                    "$3", "$7",
                    "current_setting('search_path')") ", false), set_config('bytea_output', 'hex', false), "
                                                      "set_config('standard_conforming_strings', 'on', false),"
                                                      " set_config('client_min_messages', 'error', false), "
                                                      "set_config('jit', 'off', false),"
                                                      " set_config('plan_cache_mode', 'force_generic_plan', false), "
                                                      "set_config('enable_seqscan', 'off', false),"
                                                      " set_config('enable_bitmapscan', 'off', false),"
                                                      " set_config('random_page_cost', '0.1', false), "
                                                      "set_config('cpu_operator_cost', '0.0001', false),"
                                                      " set_config('cpu_index_tuple_cost', '0.05', false), "
                                                      "set_config('cpu_tuple_cost', '0.1', false),"
                                                      " CASE WHEN $4 AND current_setting('synchronous_commit') = 'off'"
                                                      " THEN set_config('synchronous_commit', 'on', false) END"
                                                      /* Not in a pooler's process, which may serve other clients
                                                       * next. */
                                                      " WHERE pg_backend_pid() = $5 OR $6";
static const char question[] = "SELECT pg_backend_pid(), CASE WHEN pg_is_in_recovery() THEN 1 ELSE 0 END";

/* Of a primary, the timeline that it writes; of a standby, the newest that it has read. */
const char dibs__pg_timeline[] =
    "SELECT (pg_control_system()).system_identifier::text, CASE WHEN pg_is_in_recovery() THEN"
    " greatest((pg_control_checkpoint()).timeline_id, (pg_control_recovery()).min_recovery_end_timeline)"
    " ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END";
enum { SETTINGS, QUESTION, TIMELINE };

static sql_rc set_up(struct dibs__server *store, struct dibs__pg_wire *w) {
  char timeout[24];
  struct dibs__pg_location *p = store->location;
  struct dibs__sql_wire *wire = &w->wire;
  snprintf(timeout, sizeof timeout, "%" PRId64, store->options.lock_timeout_ms);
  struct dibs__sql_value values[] = {dibs__sql_text(timeout, strlen(timeout)),
                                     dibs__sql_text(DIBS__PG_IDLE_MS, sizeof DIBS__PG_IDLE_MS - 1),
                                     dibs__sql_text(store->options.schema, strlen(store->options.schema)),
                                     dibs__sql_text(store->options.lease_sync ? "t" : "f", 1),
                                     dibs__sql_number(PQbackendPID(w->pg)),
                                     dibs__sql_text(atomic_load(&p->pooler_fine) ? "t" : "f", 1),
                                     dibs__sql_text(store->options.prefix, strlen(store->options.prefix))};
  sql_rc end = dibs__pg_put(wire, settings, values, sizeof values / sizeof values[0]);
  if (end == DIBS__SQL_OK) end = dibs__pg_put(wire, question, NULL, 0);
  if (end == DIBS__SQL_OK) end = dibs__pg_put(wire, dibs__pg_timeline, NULL, 0);
  return end == DIBS__SQL_OK ? dibs__pg_go(wire, false) : end;
}

static dibs__status explain_set_up(struct dibs__server *store, const struct dibs__pg_wire *w,
                                   struct dibs__result *result) {
  return dibs__sql_explain(&w->wire, "set up a connection to", store->shown, result);
}

/* The server process that this connection has now; 0: unknown. */
static int64_t process_of(struct dibs__pg_wire *w) {
  if (dibs__pg_put(&w->wire, question, NULL, 0) != DIBS__SQL_OK || dibs__pg_go(&w->wire, false) != DIBS__SQL_OK)
    return 0;
  return dibs__sql_cell_number(&w->wire, 0, 0, 0);
}

/* A pooler that keeps a server process for each of its clients never shows the same process to two of ours. */
static dibs__status check_pooler(struct dibs__server *store, struct dibs__pg_wire *w, dibs__tick by,
                                 struct dibs__result *result) {
  struct dibs__pg_location *p = store->location;
  bool changes = false;
  for (int i = 0; i < POOLER_TRIES && !changes; i++) {
    int64_t first = process_of(w);
    PGconn *pg;
    size_t nth = 0;
    dibs__status status = connect_any_host(store, &nth, by, &pg, result);
    if (status != DIBS_OK) return status;
    struct dibs__pg_wire *other = dibs__pg_wire_new(pg, &dibs__pg_engine.sql, false);
    if (!other) {
      PQfinish(pg);
      return DIBS_NO_MEMORY;
    }
    other->wire.by = by;
    other->nameless = true;
    int64_t theirs = process_of(other);
    /* Is the first connection still on the same process?  Both are read, because another client may have got it
     * meanwhile. */
    changes = first == 0 || theirs == 0 || theirs == first || process_of(w) != first;
    bool lost = dibs__sql_dead(&w->wire) || dibs__sql_dead(&other->wire);
    dibs__pg_wire_free(other);
    if (lost) return explain_set_up(store, w, result);
  }
  if (!changes) {
    atomic_store(&p->pooler_fine, true);
    return DIBS_OK;
  }
  dibs__set_message(result,
                    "%s is a pooler that may give each transaction another server process; name the server itself, or "
                    "a pool in session mode",
                    store->shown);
  return DIBS_UNSUPPORTED;
}

static dibs__status check_server(struct dibs__server *store, const struct dibs__pg_wire *w,
                                 struct dibs__result *result) {
  if (PQserverVersion(w->pg) < OLDEST) {
    dibs__set_message(result, "%s is PostgreSQL %s; dibs needs 12 or newer", store->shown,
                      PQparameterStatus(w->pg, "server_version"));
    return DIBS_UNSUPPORTED;
  }
  if (dibs__sql_cell_number(&w->wire, QUESTION, 0, 1)) {
    dibs__set_message(result, "%s is a standby, which is read-only; name the primary, or all of them", store->shown);
    return DIBS_UNAVAILABLE;
  }
  return DIBS_OK;
}

static dibs__status prepare_connection(struct dibs__server *store, struct dibs__pg_wire *w, dibs__tick by,
                                       struct dibs__result *result) {
  w->nameless = true;
  if (set_up(store, w) != DIBS__SQL_OK) return explain_set_up(store, w, result);
  if (dibs__pg_rows(&w->wire, 0) == 0) {
    dibs__status status = check_pooler(store, w, by, result);
    if (status != DIBS_OK) return status;
    if (set_up(store, w) != DIBS__SQL_OK) return explain_set_up(store, w, result);
  }
  w->nameless = false;
  w->narrow = !dibs__sql_cell_number(&w->wire, 0, 0, 0);
  return check_server(store, w, result);
}

/* ---- Timelines ---- */

enum { ASKED_MS = 5000, ASK_MS = 1000 };

struct timeline {
  uint64_t system; /* digest */
  int64_t number;  /* 0: unknown */
};

static struct timeline timeline_of(const struct dibs__sql_wire *wire, size_t nth) {
  struct dibs__sql_value system = wire->engine->cell(wire, nth, 0, 0, DIBS__SQL_TEXT);
  char text[32];
  snprintf(text, sizeof text, "%.*s", (int)system.len, system.p ? system.p : "");
  return (struct timeline){.system = dibs__pg_hash(text, "") | 1, .number = dibs__sql_cell_number(wire, nth, 0, 1)};
}

struct dibs__pg_wire *dibs__pg_open_any(struct dibs__server *store, size_t nth, dibs__tick by,
                                        struct dibs__result *result) {
  struct dibs__pg_location *p = store->location;
  PGconn *pg = start_connect(p, &p->hosts[nth], true);
  if (!pg) return NULL;
  struct dibs__pg_wire *w =
      finish_connect(store, pg, by, result) == DIBS_OK ? dibs__pg_wire_new(pg, &dibs__pg_engine.sql, false) : NULL;
  if (!w) {
    PQfinish(pg);
    return NULL;
  }
  w->store = store;
  w->wire.by = by;
  w->nameless = true;
  return w;
}

/* The timeline of another host, which may be a standby; false: it does not answer. */
static bool ask_host(struct dibs__server *store, size_t nth, dibs__tick by, struct timeline *found) {
  struct dibs__result heard = {.text = ""};
  struct dibs__pg_wire *w = dibs__pg_open_any(store, nth, by, &heard);
  if (!w) return false;
  bool fine = dibs__pg_put(&w->wire, dibs__pg_timeline, NULL, 0) == DIBS__SQL_OK &&
              dibs__pg_go(&w->wire, false) == DIBS__SQL_OK;
  if (fine) *found = timeline_of(&w->wire, 0);
  dibs__pg_wire_free(w);
  return fine;
}

/* The newest timeline of this system that a host other than `nth` knows, at least `number`. */
static int64_t ask_others(struct dibs__server *store, size_t nth, struct timeline here, dibs__tick by) {
  struct dibs__pg_location *p = store->location;
  int64_t newest = here.number, now_ns = dibs__tick_now().ns, asked = atomic_load(&p->asked_ns);
  if (asked && now_ns - asked < ASKED_MS * DIBS__NS_PER_MS) return newest;
  for (size_t i = 0; i < p->host_count; i++) {
    struct timeline there;
    dibs__tick now = dibs__tick_now();
    int64_t share = dibs__tick_left_ms(now, by) / (int64_t)(p->host_count - i + 1);
    dibs__tick until = dibs__tick_add_ms(now, share < ASK_MS ? share : ASK_MS);
    if (i != nth && ask_host(store, i, until, &there) && there.system == here.system && there.number > newest)
      newest = there.number;
  }
  atomic_store(&p->asked_ns, now_ns);
  return newest;
}

/* Threads that connect at one time may learn different numbers: the largest one stays. */
static void remember_timeline(struct dibs__pg_location *p, struct timeline seen) {
  bool known = atomic_load(&p->system) == seen.system;
  uint64_t number = known ? atomic_load(&p->timeline) : 0, larger = (uint64_t)seen.number;
  if (!known) atomic_store(&p->timeline, larger);
  while (known && number < larger && !atomic_compare_exchange_weak(&p->timeline, &number, larger))
    ;
  atomic_store(&p->system, seen.system);
}

/* UNAVAILABLE: a standby was promoted since, and this server does not know that. */
static dibs__status check_timeline(struct dibs__server *store, const struct dibs__pg_wire *w, size_t nth, dibs__tick by,
                                   struct dibs__result *result) {
  struct dibs__pg_location *p = store->location;
  struct timeline here = timeline_of(&w->wire, TIMELINE);
  bool known = atomic_load(&p->system) == here.system;
  int64_t newest = known ? (int64_t)atomic_load(&p->timeline) : 0;
  if (newest <= here.number && p->host_count > 1) newest = ask_others(store, nth, here, by);
  remember_timeline(p, (struct timeline){here.system, newest > here.number ? newest : here.number});
  if (newest <= here.number) return DIBS_OK;
  const char *host = p->hosts[nth].name, *port = p->hosts[nth].port;
  dibs__set_message(result,
                    "%s: %s%s%s is a primary that was replaced: it writes timeline %" PRId64
                    ", and a standby was promoted to timeline %" PRId64 "; make it a standby of the new primary",
                    store->shown, host ? host : "the server", port ? ":" : "", port ? port : "", here.number, newest);
  return DIBS_UNAVAILABLE;
}

/* ---- Opening ---- */

static dibs__status open_host(struct dibs__server *store, size_t *nth, dibs__tick by, struct dibs__pg_wire **out,
                              struct dibs__result *result) {
  PGconn *pg;
  dibs__status status = connect_any_host(store, nth, by, &pg, result);
  if (status != DIBS_OK) return status;
  struct dibs__pg_wire *w = dibs__pg_wire_new(pg, &dibs__pg_engine.sql, false);
  if (!w) {
    PQfinish(pg);
    dibs__set_message(result, "out of memory for a connection to %s", store->shown);
    return DIBS_NO_MEMORY;
  }
  w->store = store;
  w->wire.by = by;
  status = prepare_connection(store, w, by, result);
  if (status == DIBS_OK) status = check_timeline(store, w, *nth, by, result);
  w->trusted = status == DIBS_OK;
  if (status == DIBS_OK)
    *out = w;
  else
    dibs__pg_wire_free(w);
  return status;
}

dibs__status dibs__pg_open_wire(struct dibs__server *store, dibs__tick by, struct dibs__pg_wire **out,
                                struct dibs__result *result) {
  const struct dibs__pg_location *p = store->location;
  *out = NULL;
  size_t nth = 0;
  dibs__status status = open_host(store, &nth, by, out, result);
  /* A host that cannot be used is not the last one: another host may be the primary. */
  while (status == DIBS_UNAVAILABLE && nth + 1 < p->host_count && dibs__tick_before(dibs__tick_now(), by)) {
    struct dibs__result heard = {.text = ""};
    nth++;
    if (open_host(store, &nth, by, out, &heard) != DIBS_OK) continue;
    result->text[0] = '\0';
    return DIBS_OK;
  }
  return status;
}

dibs__status dibs__pg_connect(struct dibs__server *store, dibs__tick by, struct dibs__sql_wire **wire,
                              struct dibs__result *result) {
  struct dibs__pg_wire *w;
  dibs__status status = dibs__pg_open_wire(store, by, &w, result);
  *wire = w ? &w->wire : NULL;
  return status;
}

void dibs__pg_close(struct dibs__sql_wire *wire) {
  dibs__pg_wire_free((struct dibs__pg_wire *)wire);
}

/* ---- The user's own connection ---- */

dibs__status dibs__pg_adopt(struct dibs__server *store, void *connection, struct dibs__sql_wire **wire,
                            struct dibs__result *result) {
  PGconn *pg = connection;
  *wire = NULL;
  if (!pg || PQstatus(pg) != CONNECTION_OK) {
    dibs__set_message(result, "the given connection is not open");
    return DIBS_INVALID;
  }
  if (PQpipelineStatus(pg) != PQ_PIPELINE_OFF) {
    dibs__set_message(result, "the given connection is in pipeline mode; leave it with PQexitPipelineMode first");
    return DIBS_INVALID;
  }
  if (PQtransactionStatus(pg) != PQTRANS_INTRANS) {
    dibs__set_message(result, "the given connection has no open transaction, or a failed one; begin one first");
    return DIBS_INVALID;
  }
  /* In another encoding a name would become a different one. */
  const char *encoding = PQparameterStatus(pg, "client_encoding");
  if (!encoding || (strcmp(encoding, "UTF8") != 0 && strcmp(encoding, "SQL_ASCII") != 0)) {
    dibs__set_message(result,
                      "the given connection has client_encoding %s, and names are UTF-8: call "
                      "PQsetClientEncoding(connection, \"UTF8\") first",
                      encoding ? encoding : "?");
    return DIBS_INVALID;
  }
  struct dibs__pg_wire *w = dibs__pg_wire_new(pg, &dibs__pg_engine.sql, true);
  if (!w) return DIBS_NO_MEMORY;
  w->store = store;
  w->narrow = true;
  *wire = &w->wire;
  return DIBS_OK;
}

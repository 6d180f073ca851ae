/* SPDX-License-Identifier: MIT */
/*
 * A connection: made without blocking, set up in one packet, and looked at before it is used.
 *
 * Poolers.  What lives by its session (prepared statements, the bell's lock) can't go through one that gives each
 * transaction another server process.  A pooler shows itself by a process number that is not the server's; only then
 * is it worth asking which kind it is: while one connection of ours is open, does another get the same server process?
 */
#include "drivers/postgres_parts.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OLDEST = 120000, POOLER_TRIES = 3, WORDS = 200 };

/* ---- libpq's words for a connection that did not come about ---- */

/* "...FATAL:  28P01: password ..." of the verbose form: the state of the last host that said one. */
static bool state_in(const char *words, char state[6]) {
  bool found = false;
  for (const char *at = words; (at = strstr(at, ":  ")); at++) {
    size_t n = 3;
    while (isupper((unsigned char)at[n]) || isdigit((unsigned char)at[n])) n++;
    if (n != 8 || at[8] != ':') continue;
    memcpy(state, at + 3, 5);
    state[5] = '\0';
    found = true;
  }
  return found;
}

/* Without state, LOCATION and the like, on one line. */
static void plain(char *to, size_t size, const char *words) {
  size_t used = 0;
  const char *line = words;
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

static dibs__status failed(struct dibs__far *store, PGconn *pg, struct dibs__said *said) {
  char state[6] = "", words[WORDS];
  const char *all = PQerrorMessage(pg);
  bool known = state_in(all, state);
  plain(words, sizeof words, all);
  dibs__say(said, "can't connect to %s: %s", store->shown, words[0] ? words : "the connection was lost");
  if (PQconnectionNeedsPassword(pg)) return DIBS_DENIED;
  return known ? status_of(state) : DIBS_UNAVAILABLE;
}

/* ---- Connecting ---- */

static PGconn *start(const struct dibs__pg_place *p, const struct dibs__pg_host *host) {
  const char *keywords[DIBS__PG_KEYWORDS + 3], *values[DIBS__PG_KEYWORDS + 3];
  size_t n = 0;
  if (host->name) keywords[n] = "host", values[n++] = host->name;
  if (host->port) keywords[n] = "port", values[n++] = host->port;
  for (size_t i = 0; i < p->count; i++) keywords[n] = p->keywords[i], values[n++] = p->values[i];
  keywords[n] = values[n] = NULL;
  return PQconnectStartParams(keywords, values, 0);
}

/* Before the first byte was written the socket is to be waited for as writable. */
static dibs__status finish(struct dibs__far *store, PGconn *pg, dibs__tick by, struct dibs__said *said) {
  if (PQstatus(pg) == CONNECTION_BAD) return failed(store, pg, said);
  PQsetErrorVerbosity(pg, PQERRORS_VERBOSE);
  PostgresPollingStatusType next = PGRES_POLLING_WRITING;
  while (next != PGRES_POLLING_OK) {
    if (!dibs__pg_wait_for(pg, next == PGRES_POLLING_READING, next == PGRES_POLLING_WRITING, by)) {
      dibs__say(said, "can't connect to %s: no answer from the server before the deadline", store->shown);
      return DIBS_UNAVAILABLE;
    }
    next = PQconnectPoll(pg);
    if (next == PGRES_POLLING_FAILED) return failed(store, pg, said);
  }
  PQsetErrorVerbosity(pg, PQERRORS_DEFAULT);
  return DIBS_OK;
}

/* What a status says of a host, so that the most telling failure of several hosts is told. */
static int weight(dibs__status status) {
  return status == DIBS_UNAVAILABLE ? 0 : 1;
}

static dibs__status reach(struct dibs__far *store, dibs__tick by, PGconn **out, struct dibs__said *said) {
  struct dibs__pg_place *p = store->place;
  dibs__status worst = DIBS_UNAVAILABLE;
  *out = NULL;
  for (size_t i = 0; i < p->host_count; i++) {
    struct dibs__said heard = {.text = ""};
    dibs__tick now = dibs__tick_now();
    int64_t share = dibs__tick_left_ms(now, by) / (int64_t)(p->host_count - i);
    if (store->options.connect_timeout_ms > 0 && share > store->options.connect_timeout_ms)
      share = store->options.connect_timeout_ms;
    PGconn *pg = start(p, &p->hosts[i]);
    if (!pg) {
      dibs__say(said, "no memory for a connection to %s", store->shown);
      return DIBS_NO_MEMORY;
    }
    dibs__status status = finish(store, pg, dibs__tick_min(by, dibs__tick_add_ms(now, share)), &heard);
    if (status == DIBS_OK) {
      *out = pg;
      return DIBS_OK;
    }
    PQfinish(pg);
    if (i == 0 || weight(status) > weight(worst)) {
      worst = status;
      dibs__say(said, "%s", heard.text);
    }
  }
  return worst;
}

/* ---- Setting up ---- */

/* One who stands still in a transaction holds up everybody whose name is in the same bucket. */
#define IDLE_MS "5000"

/* Our schema, and what the role's path has behind it, for tables of the user's own.  But while our tables are not there
 * it is our schema alone: or those of another schema that lies in the path would be taken for them. */
#define THERE(schema, prefix) "to_regclass(quote_ident(" schema ") || '.' || " prefix " || 'meta') IS NOT NULL"
#define PATH(schema, prefix, rest)                                                                                     \
  "concat_ws(', ', quote_ident(" schema "), CASE WHEN " THERE(schema, prefix) " THEN nullif(" rest ", '') END)"
static const char widening[] =
    "SELECT CASE WHEN " THERE("$1", "$2") " THEN 1 ELSE 0 END, set_config('search_path', " PATH(
        "$1", "$2", "(SELECT reset_val FROM pg_settings WHERE name = 'search_path')") ", false)";
/* In a user's transaction their own path stays in front, and ours goes with the transaction. */
static const char joining[] =
    "SELECT 1, set_config('search_path', concat_ws(', ', nullif(current_setting('search_path'), ''), quote_ident($1)),"
    " true) WHERE $2 <> '' AND to_regnamespace(quote_ident($1)) IS NOT NULL AND NOT $1::name = ANY "
    "(current_schemas(false))";

bool dibs__pg_widen(struct dibs__pg_wire *w) {
  const char *values[] = {w->store->options.schema, w->store->options.prefix};
  return PQsendQueryParams(w->pg, w->wire.inside ? joining : widening, 2, NULL, values, NULL, NULL, 0) == 1;
}

/* Plans: our statements go by key, on tables that change faster than anybody counts their rows, and are planned once; a
 * plan that was made when a table was small must not read it whole.  So going down an index costs little here, and
 * each row that is looked at much: the rows that we send are sought one by one, never the table read and hashed. */
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
                                                      " set_config('random_page_cost', '0.1', false), "
                                                      "set_config('cpu_operator_cost', '0.0001', false),"
                                                      " set_config('cpu_index_tuple_cost', '0.05', false), "
                                                      "set_config('cpu_tuple_cost', '0.1', false),"
                                                      " CASE WHEN $4 AND current_setting('synchronous_commit') = 'off'"
                                                      " THEN set_config('synchronous_commit', 'on', false) END"
                                                      /* Not in a pooler's, as long as that may give the server process
                                                         to others. */
                                                      " WHERE pg_backend_pid() = $5 OR $6";
static const char question[] = "SELECT pg_backend_pid(), CASE WHEN pg_is_in_recovery() THEN 1 ELSE 0 END";

static step_t set_up(struct dibs__far *store, struct dibs__pg_wire *w) {
  char timeout[24];
  struct dibs__pg_place *p = store->place;
  struct dibs__sql_wire *wire = &w->wire;
  snprintf(timeout, sizeof timeout, "%" PRId64, store->options.lock_timeout_ms);
  struct dibs__sql_value values[] = {dibs__sql_text(timeout, strlen(timeout)),
                                     dibs__sql_text(IDLE_MS, sizeof IDLE_MS - 1),
                                     dibs__sql_text(store->options.schema, strlen(store->options.schema)),
                                     dibs__sql_text(store->options.lease_sync ? "t" : "f", 1),
                                     dibs__sql_number(PQbackendPID(w->pg)),
                                     dibs__sql_text(atomic_load(&p->pooler_fine) ? "t" : "f", 1),
                                     dibs__sql_text(store->options.prefix, strlen(store->options.prefix))};
  step_t end = dibs__pg_put(wire, settings, values, sizeof values / sizeof values[0]);
  if (end == DIBS__SQL_FINE) end = dibs__pg_put(wire, question, NULL, 0);
  return end == DIBS__SQL_FINE ? dibs__pg_go(wire, false) : end;
}

static dibs__status excuse(struct dibs__far *store, const struct dibs__pg_wire *w, struct dibs__said *said) {
  return dibs__sql_excuse(&w->wire, "set up a connection to", store->shown, said);
}

/* The server process that this connection has now; 0: it did not say. */
static int64_t process_of(struct dibs__pg_wire *w) {
  if (dibs__pg_put(&w->wire, question, NULL, 0) != DIBS__SQL_FINE || dibs__pg_go(&w->wire, false) != DIBS__SQL_FINE)
    return 0;
  return dibs__sql_cell_number(&w->wire, 0, 0, 0);
}

/* A pooler that keeps a server process for each of its clients never shows the same one to two of ours. */
static dibs__status check_pooler(struct dibs__far *store, struct dibs__pg_wire *w, dibs__tick by,
                                 struct dibs__said *said) {
  struct dibs__pg_place *p = store->place;
  bool changes = false;
  for (int i = 0; i < POOLER_TRIES && !changes; i++) {
    int64_t first = process_of(w);
    PGconn *pg;
    dibs__status status = reach(store, by, &pg, said);
    if (status != DIBS_OK) return status;
    struct dibs__pg_wire *other = dibs__pg_wire_new(pg, &dibs__pg_engine.sql, false);
    if (!other) {
      PQfinish(pg);
      return DIBS_NO_MEMORY;
    }
    other->wire.by = by;
    other->nameless = true;
    int64_t theirs = process_of(other);
    /* It is on our own connection still?  Both must be asked, in case somebody else was given it in between. */
    changes = first == 0 || theirs == 0 || theirs == first || process_of(w) != first;
    bool lost = dibs__sql_dead(&w->wire) || dibs__sql_dead(&other->wire);
    dibs__pg_wire_free(other);
    if (lost) return excuse(store, w, said);
  }
  if (!changes) {
    atomic_store(&p->pooler_fine, true);
    return DIBS_OK;
  }
  dibs__say(said,
            "%s is a pooler that gives each transaction another server process; name the server itself, or a pool in "
            "session mode",
            store->shown);
  return DIBS_UNSUPPORTED;
}

static dibs__status check(struct dibs__far *store, const struct dibs__pg_wire *w, struct dibs__said *said) {
  if (PQserverVersion(w->pg) < OLDEST) {
    dibs__say(said, "%s is PostgreSQL %s; dibs needs 12 or newer", store->shown,
              PQparameterStatus(w->pg, "server_version"));
    return DIBS_UNSUPPORTED;
  }
  if (dibs__sql_cell_number(&w->wire, 1, 0, 1)) {
    dibs__say(said, "%s is a standby, which can't be written to; name the primary, or all of them", store->shown);
    return DIBS_UNAVAILABLE;
  }
  return DIBS_OK;
}

static dibs__status ready(struct dibs__far *store, struct dibs__pg_wire *w, dibs__tick by, struct dibs__said *said) {
  w->nameless = true;
  if (set_up(store, w) != DIBS__SQL_FINE) return excuse(store, w, said);
  if (dibs__pg_rows(&w->wire, 0) == 0) {
    dibs__status status = check_pooler(store, w, by, said);
    if (status != DIBS_OK) return status;
    if (set_up(store, w) != DIBS__SQL_FINE) return excuse(store, w, said);
  }
  w->nameless = false;
  w->narrow = !dibs__sql_cell_number(&w->wire, 0, 0, 0);
  return check(store, w, said);
}

dibs__status dibs__pg_open_wire(struct dibs__far *store, dibs__tick by, struct dibs__pg_wire **out,
                                struct dibs__said *said) {
  PGconn *pg;
  *out = NULL;
  dibs__status status = reach(store, by, &pg, said);
  if (status != DIBS_OK) return status;
  struct dibs__pg_wire *w = dibs__pg_wire_new(pg, &dibs__pg_engine.sql, false);
  if (!w) {
    PQfinish(pg);
    dibs__say(said, "no memory for a connection to %s", store->shown);
    return DIBS_NO_MEMORY;
  }
  w->store = store;
  w->wire.by = by;
  status = ready(store, w, by, said);
  if (status == DIBS_OK)
    *out = w;
  else
    dibs__pg_wire_free(w);
  return status;
}

dibs__status dibs__pg_connect(struct dibs__far *store, dibs__tick by, struct dibs__sql_wire **wire,
                              struct dibs__said *said) {
  struct dibs__pg_wire *w;
  dibs__status status = dibs__pg_open_wire(store, by, &w, said);
  *wire = w ? &w->wire : NULL;
  return status;
}

void dibs__pg_close(struct dibs__sql_wire *wire) {
  dibs__pg_wire_free((struct dibs__pg_wire *)wire);
}

/* ---- The user's own ---- */

dibs__status dibs__pg_adopt(struct dibs__far *store, void *connection, struct dibs__sql_wire **wire,
                            struct dibs__said *said) {
  PGconn *pg = connection;
  *wire = NULL;
  if (!pg || PQstatus(pg) != CONNECTION_OK) {
    dibs__say(said, "the connection that was handed in is not open");
    return DIBS_INVALID;
  }
  if (PQpipelineStatus(pg) != PQ_PIPELINE_OFF) {
    dibs__say(said, "the connection that was handed in is in pipeline mode; leave it with PQexitPipelineMode first");
    return DIBS_INVALID;
  }
  if (PQtransactionStatus(pg) != PQTRANS_INTRANS) {
    dibs__say(said,
              "the connection that was handed in is not in a transaction, or in one that failed; begin one first");
    return DIBS_INVALID;
  }
  struct dibs__pg_wire *w = dibs__pg_wire_new(pg, &dibs__pg_engine.sql, true);
  if (!w) return DIBS_NO_MEMORY;
  w->store = store;
  w->narrow = true;
  *wire = &w->wire;
  return DIBS_OK;
}

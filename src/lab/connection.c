/* SPDX-License-Identifier: MIT */
/*
 * The one file of the lab that knows the engines.  A server's driver begins with a struct dibs__server, whose engine
 * makes connections; the embedded one has links, which have wires.
 */
#include "base/text.h"
#include "drivers/server/server.h"
#include "drivers/sqlite/sqlite_impl.h"
#include "lab/lab.h"
#include "store/registry.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPEN_MS = 15000 };

struct lab_connection {
  struct dibs__chain chain;
  struct dibs__dstore *engine; /* the innermost */
  bool embedded;
  char shown[512];
};

static bool is_server(const char *scheme) {
  static const char *const servers[] = {"postgres", "postgresql", "mysql", "mariadb"};
  for (size_t i = 0; i < sizeof servers / sizeof *servers; i++)
    if (strcmp(servers[i], scheme) == 0) return true;
  return false;
}

dibs__status dibs__lab_connection_open(const char *uri, struct lab_connection **out, struct dibs__result *result) {
  *out = NULL;
  struct dibs__uri parsed;
  dibs__status status = dibs__uri_parse(uri, &parsed, result);
  if (status != DIBS_OK) return status;
  struct lab_connection *connection = calloc(1, sizeof *connection);
  if (!connection) {
    status = DIBS_NO_MEMORY;
    goto out;
  }
  snprintf(connection->shown, sizeof connection->shown, "%s", parsed.shown);
  connection->embedded = strcmp(parsed.scheme, "sqlite") == 0;
  if (!connection->embedded && !is_server(parsed.scheme)) {
    dibs__set_message(result, "%s has no SQL", connection->shown);
    status = DIBS_NOT_FOUND;
    goto out;
  }
  status = dibs__chain_open(&parsed, NULL, dibs__tick_add_ms(dibs__tick_now(), OPEN_MS), &connection->chain, result);
  if (status == DIBS_OK) connection->engine = connection->chain.stores[connection->chain.count - 1];
out:
  dibs__uri_free(&parsed);
  if (status == DIBS_OK)
    *out = connection;
  else
    free(connection);
  return status;
}

void dibs__lab_connection_close(struct lab_connection *connection) {
  if (!connection) return;
  dibs__chain_close(&connection->chain);
  free(connection);
}

const char *dibs__lab_connection_shown(const struct lab_connection *connection) {
  return connection->shown;
}

/* dibs gives up on a lock early, and tries again, and lets the server end an idle transaction; plain SQL waits for the
 * server to find the deadlock, and may wait for a lock elsewhere inside a transaction. */
static dibs__status be_patient(struct lab_line *line, struct dibs__result *result) {
  bool postgres = strcmp(line->wire->engine->name, "PostgreSQL") == 0;
  const char *text = postgres ? "SELECT set_config('lock_timeout', '10000', false), "
                                "set_config('idle_in_transaction_session_timeout', '0', false)"
                              : "SET innodb_lock_wait_timeout = 10";
  bool fine = dibs__lab_run_sql(line, text, NULL, 0) == DIBS__SQL_OK;
  /* MySQL does not have it. */
  if (fine && !postgres) (void)dibs__lab_run_sql(line, "SET idle_transaction_timeout = 0", NULL, 0);
  if (fine && !dibs__sql_dead(line->wire)) return DIBS_OK;
  dibs__status status = dibs__sql_explain(line->wire, "set up", line->connection->shown, result);
  dibs__lab_line_close(line);
  return status;
}

dibs__status dibs__lab_line_open(struct lab_connection *connection, struct lab_line *line,
                                 struct dibs__result *result) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), OPEN_MS);
  *line = (struct lab_line){.connection = connection};
  if (!connection->embedded) {
    struct dibs__server *server = (struct dibs__server *)connection->engine;
    dibs__status opened = server->engine->connect(server, by, &line->wire, result);
    return opened == DIBS_OK ? be_patient(line, result) : opened;
  }
  struct dibs__lite *lite = (struct dibs__lite *)connection->engine;
  struct dibs__sqlite_link *link;
  dibs__status status = dibs__sqlite_link_open(lite, lite->path, by, &link, result);
  if (status != DIBS_OK) return status;
  if (lite->write_sync) (void)dibs__sqlite_full(link, true); /* as durable as the writes of dibs */
  line->wire = dibs__sqlite_wire(link);
  line->own = link;
  if (line->wire) return DIBS_OK;
  status = dibs__sqlite_excuse(link, "open", result);
  dibs__lab_line_close(line);
  return status;
}

void dibs__lab_line_close(struct lab_line *line) {
  if (line->own)
    dibs__sqlite_link_close(line->own);
  else if (line->wire)
    ((struct dibs__server *)line->connection->engine)->engine->close(line->wire);
  line->own = NULL;
  line->wire = NULL;
}

enum dibs__sql_rc dibs__lab_run_sql_by(struct lab_line *line, const char *text, const struct dibs__sql_value *values,
                                       size_t count, dibs__tick by, bool commits) {
  struct dibs__sql_wire *wire = line->wire;
  if (line->own) ((struct dibs__sqlite_link *)line->own)->by = by;
  wire->by = by;
  enum dibs__sql_rc step = wire->engine->put(wire, text, values, count);
  return step == DIBS__SQL_OK ? wire->engine->go(wire, commits) : step;
}

enum dibs__sql_rc dibs__lab_run_sql(struct lab_line *line, const char *text, const struct dibs__sql_value *values,
                                    size_t count) {
  return dibs__lab_run_sql_by(line, text, values, count, dibs__tick_add_ms(dibs__tick_now(), LAB_LINE_MS),
                              strcmp(text, "COMMIT") == 0);
}

enum dibs__sql_rc dibs__lab_number(struct lab_line *line, const char *text, int64_t otherwise, int64_t *number) {
  enum dibs__sql_rc step = dibs__lab_run_sql(line, text, NULL, 0);
  *number = otherwise;
  if (step == DIBS__SQL_OK && line->wire->engine->rows(line->wire, 0) > 0)
    *number = dibs__sql_cell_number(line->wire, 0, 0, 0);
  return step;
}

void dibs__lab_version(struct lab_line *line, char *to, size_t size) {
  const struct dibs__sql_engine *engine = line->wire->engine;
  snprintf(to, size, "%s", engine->name);
  const char *text = line->own ? "SELECT sqlite_version()" : "SELECT version()";
  if (dibs__lab_run_sql(line, text, NULL, 0) != DIBS__SQL_OK || engine->rows(line->wire, 0) == 0) return;
  struct dibs__sql_value cell = engine->cell(line->wire, 0, 0, 0, DIBS__SQL_TEXT);
  /* "15.2 (Debian 15.2-1) on x86_64, compiled by ..." */
  uint32_t len = 0;
  while (len < cell.len && !strchr("(,", cell.p[len])) len++;
  while (len > 0 && cell.p[len - 1] == ' ') len--;
  cell.len = len;
  bool named = cell.len > strlen(engine->name) && strncmp(cell.p, engine->name, strlen(engine->name)) == 0;
  snprintf(to, size, "%s%s%.*s", named ? "" : engine->name, named ? "" : " ", (int)cell.len, cell.p);
}

enum { HELP_MAX = 16384, OUT_MAX = 8192 };

/* Is it a strategy that the program's help lists?  A line of the help begins with two blanks and its name. */
static bool offers(const char *help, const char *name) {
  size_t length = strlen(name);
  for (const char *at = help; (at = strstr(at, "\n  ")); at++)
    if (strncmp(at + 3, name, length) == 0 && strchr(" \n", at[3 + length])) return true;
  return false;
}

static const char *floor_strategy(const char *help, const char *way) {
  /* In few packets if there is such a variant, because that is the better way to send it. */
  static const char *const names[][3] = {{"coalesced", "coalesced1", "coalesced"},
                                         {"atomic", "atomic1", "atomic"},
                                         {"pessimistic", "pessimistic1", "pessimistic"},
                                         {"optimistic", "optimistic1", "optimistic"},
                                         {"named", "getlock1", "mutex"},
                                         {"none", "none", "none"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (strcmp(names[i][0], way) != 0) continue;
    for (size_t n = 1; n < 3; n++)
      if (offers(help, names[i][n])) return names[i][n];
  }
  return NULL;
}

const char *dibs__lab_floor_name(const char *program, const char *way) {
  static char help[HELP_MAX];
  static const char *of;
  char why[LAB_WHY_MAX];
  if (of != program) {
    char option[] = "--help", *own = strdup(program);
    if (!own || !dibs__lab_capture((char *[]){own, option, NULL}, help, sizeof help, why, sizeof why)) help[0] = '\0';
    free(own);
    of = program;
  }
  return floor_strategy(help, way);
}

static bool json_number(const char *json, const char *key, double *to) {
  char wanted[48];
  snprintf(wanted, sizeof wanted, "\"%s\":", key);
  const char *at = strstr(json, wanted);
  if (at) *to = strtod(at + strlen(wanted), NULL);
  return at != NULL;
}

bool dibs__lab_floor_run(struct lab *lab, const char *strategy, uint32_t users, struct lab_floor_result *result) {
  char out[OUT_MAX], count[16], seconds[32], why[LAB_WHY_MAX];
  char o_uri[] = "--uri", o_strategy[] = "--strategy", o_users[] = "--users", o_seconds[] = "--seconds",
       o_json[] = "--json";
  snprintf(count, sizeof count, "%u", users);
  snprintf(seconds, sizeof seconds, "%.3f", (double)lab->ms / 1000);
  char *program = strdup(lab->floor), *uri = strdup(lab->uri), *wanted = strdup(strategy);
  bool fine = program && uri && wanted;
  if (!fine) dibs__lab_fail(lab, "out of memory");
  char *argv[] = {program, o_uri, uri, o_strategy, wanted, o_users, count, o_seconds, seconds, o_json, NULL};
  /* It ends with a special status when it found its count wrong; its output has that, too. */
  if (fine && !dibs__lab_capture(argv, out, sizeof out, why, sizeof why) && !strchr(out, '{'))
    fine = dibs__lab_fail(lab, "%s, %s: %s", lab->floor, strategy, why);
  if (fine &&
      (!json_number(out, "per_second", &result->per_second) || !json_number(out, "p50_ns", &result->p50_ns) ||
       !json_number(out, "p99_ns", &result->p99_ns) || !json_number(out, "max_ns", &result->max_ns) ||
       !json_number(out, "conflicts", &result->conflicts) || !json_number(out, "deadlocks", &result->deadlocks)))
    fine = dibs__lab_fail(lab, "%s printed no figures of %s", lab->floor, strategy);
  if (fine) result->correct = strstr(out, "\"correct\":true") != NULL;
  if (fine) result->expected = strstr(out, "\"expected\":true") != NULL;
  free(program);
  free(uri);
  free(wanted);
  return fine;
}

static void obey(struct lab_session *s) {
  struct dibs__sql_wire *wire = s->line.wire;
  s->changed = 0;
  s->number = 0;
  s->message[0] = '\0';
  if (strcmp(s->text, "ROLLBACK") == 0) {
    dibs__sql_rollback(wire); /* also if the engine has already done it */
    s->step = DIBS__SQL_OK;
    return;
  }
  s->step = dibs__lab_run_sql(&s->line, s->text, NULL, 0);
  if (s->step != DIBS__SQL_OK) {
    s->trouble = wire->trouble;
    snprintf(s->message, sizeof s->message, "%s", wire->message);
    return;
  }
  s->changed = wire->engine->changed(wire, 0);
  if (wire->engine->rows(wire, 0) > 0) s->number = dibs__sql_cell_number(wire, 0, 0, 0);
}

static void body(void *arg) {
  struct lab_session *s = arg;
  for (uint32_t done = 0;;) {
    while (atomic_load(&s->requested) == done) dibs__word_wait(&s->requested, done, DIBS__TICK_NEVER, false);
    if (s->leave) return;
    obey(s);
    atomic_store(&s->answered, ++done);
    dibs__word_wake(&s->answered, 1, false);
  }
}

bool dibs__lab_session_open(struct lab *lab, struct lab_session *s) {
  struct dibs__result result = {0};
  if (dibs__lab_line_open(lab->connection, &s->line, &result) != DIBS_OK) return dibs__lab_fail(lab, "%s", result.text);
  s->thread = dibs__thread_start("dibs-lab-session", body, s);
  return s->thread || dibs__lab_fail(lab, "cannot start another thread");
}

void dibs__lab_session_request(struct lab_session *s, const char *text) {
  snprintf(s->text, sizeof s->text, "%s", text);
  atomic_fetch_add(&s->requested, 1);
  dibs__word_wake(&s->requested, 1, false);
}

bool dibs__lab_session_wait(struct lab_session *s, int64_t ms) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), ms);
  for (;;) {
    uint32_t answered = atomic_load(&s->answered);
    if (answered == atomic_load(&s->requested)) return true;
    if (!dibs__tick_before(dibs__tick_now(), by)) return false;
    dibs__word_wait(&s->answered, answered, by, false);
  }
}

void dibs__lab_session_close(struct lab_session *s) {
  if (s->thread) {
    (void)dibs__lab_session_wait(s, LAB_LINE_MS * 2);
    s->leave = true;
    atomic_fetch_add(&s->requested, 1);
    dibs__word_wake(&s->requested, 1, false);
    dibs__thread_join(s->thread);
    s->thread = NULL;
  }
  dibs__lab_line_close(&s->line);
}

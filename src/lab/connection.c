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

/* dibs gives up on a lock early, and tries again; plain SQL waits for the server to find the deadlock. */
static dibs__status be_patient(struct lab_line *line, struct dibs__result *result) {
  bool postgres = strcmp(line->wire->engine->name, "PostgreSQL") == 0;
  const char *text = postgres ? "SET lock_timeout = 10000" : "SET innodb_lock_wait_timeout = 10";
  if (dibs__lab_run_sql(line, text, NULL, 0) == DIBS__SQL_OK) return DIBS_OK;
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

/*
 * One user: connects, becomes ready, books, ends.  Its results are in its slot of the board; the same code runs in
 * threads of the lab's process and of its helpers.
 */

enum { BY_HAND_MS = 10000, CONNECT_MS = 30000, REPEATS = 20 /* after UNKNOWN */ };

struct user {
  struct lab_board *board;
  struct lab_user *mine;
  uint32_t number;
  const struct lab_way *way;
  dibs_store *store;
  bool own; /* the store is its own */
  struct lab_connection *connection;
  struct lab_line line;
  const dibs_table *table;
  const char *uri;
  uint64_t random;
  char drawn[17]; /* begins the claims of this user */
  uint64_t claims;
};

static void lab_trouble(struct lab_board *board, const char *text) {
  uint32_t nobody = 0;
  if (!text || !*text || !atomic_compare_exchange_strong(&board->troubled, &nobody, 1)) return;
  snprintf(board->why, sizeof board->why, "%s", text);
}

static uint32_t dice(struct user *u, uint32_t sides) {
  u->random ^= u->random << 13;
  u->random ^= u->random >> 7;
  u->random ^= u->random << 17;
  return (uint32_t)((u->random >> 32) % sides);
}

/* ---- Booking ---- */

static dibs_status take_seat(struct user *u, const char *key, const char *claim, dibs_stock_result *result,
                             dibs_error *error) {
  dibs_stock_options options = {.size = sizeof options,
                                .table = u->table,
                                .strategy = u->way->strategy,
                                .claim = claim,
                                .owner = "lab",
                                .wait_ms = u->board->wait_ms};
  dibs_status status = DIBS_OK;
  bool unknown = false;
  for (int i = 0; i < REPEATS; i++) {
    *result = (dibs_stock_result){.size = sizeof *result};
    status = dibs_stock_take(u->store, key, 1, &options, result, error);
    u->mine->deadlocks += result->deadlocks;
    u->mine->conflicts += result->retries - (result->deadlocks < result->retries ? result->deadlocks : result->retries);
    if (status != DIBS_UNKNOWN) break;
    unknown = true;
    u->mine->unknown++;
  }
  /* The claim was drawn for this booking: an earlier attempt of this user, whose answer was lost, took it. */
  if (status == DIBS_REPLAY && (unknown || result->retries > 0)) status = DIBS_OK;
  return status;
}

/* The outcome of a transaction in plain SQL; an open one is rolled back. */
static dibs_status transaction_outcome(struct user *u, enum dibs__sql_rc step, bool counted) {
  struct dibs__sql_wire *wire = u->line.wire;
  if (step == DIBS__SQL_OK && counted) return DIBS_OK;
  enum dibs__sql_trouble trouble = wire->trouble;
  if (step == DIBS__SQL_OK || !dibs__sql_dead(wire)) dibs__sql_rollback(wire);
  if (step == DIBS__SQL_OK) return DIBS_FULL;
  return trouble == DIBS__SQL_DEADLOCK ? DIBS_CONFLICT : trouble == DIBS__SQL_LOCKED ? DIBS_TIMEOUT : DIBS_UNAVAILABLE;
}

static enum dibs__sql_rc insert_by_hand(struct user *u, const char *key, const char *claim) {
  char text[512];
  struct dibs__sql_value values[] = {dibs__sql_text(claim, strlen(claim)), dibs__sql_text(key, strlen(key))};
  snprintf(text, sizeof text, "INSERT INTO %s (claim, event, amount, given, who, at) VALUES ($1, $2, 1, 0, 'lab', 0)",
           u->board->applicant);
  return dibs__lab_run_sql(&u->line, text, values, 2);
}

/* Its flaw: the applicant's row takes a shared lock on the counted row, which two transactions then want to write. */
static dibs_status child_first(struct user *u, const char *key, const char *claim) {
  char text[512];
  struct dibs__sql_wire *wire = u->line.wire;
  struct dibs__sql_value value = dibs__sql_text(key, strlen(key));
  snprintf(text, sizeof text, "UPDATE %s SET used = used + 1, version = version + 1 WHERE id = $1 AND used < seats",
           u->board->event);
  enum dibs__sql_rc step = dibs__lab_run_sql(&u->line, wire->engine->begin, NULL, 0);
  if (step == DIBS__SQL_OK) step = insert_by_hand(u, key, claim);
  if (step == DIBS__SQL_OK) step = dibs__lab_run_sql(&u->line, text, &value, 1);
  bool counted = step == DIBS__SQL_OK && wire->engine->changed(wire, 0) == 1;
  if (counted) step = dibs__lab_run_sql(&u->line, "COMMIT", NULL, 0);
  return transaction_outcome(u, step, counted);
}

/* Its flaw: the value may be old when it is written back; and, as above, the order of locks. */
static dibs_status read_then_write(struct user *u, const char *key, const char *claim) {
  char text[512];
  struct dibs__sql_wire *wire = u->line.wire;
  struct dibs__sql_value values[] = {dibs__sql_text(key, strlen(key)), dibs__sql_number(0)};
  snprintf(text, sizeof text, "SELECT used, seats FROM %s WHERE id = $1", u->board->event);
  enum dibs__sql_rc step = dibs__lab_run_sql(&u->line, text, values, 1);
  if (step != DIBS__SQL_OK || wire->engine->rows(wire, 0) == 0) return transaction_outcome(u, step, false);
  int64_t used = dibs__sql_cell_number(wire, 0, 0, 0), seats = dibs__sql_cell_number(wire, 0, 0, 1);
  if (used >= seats) return DIBS_FULL;
  values[1] = dibs__sql_number(used + 1);
  snprintf(text, sizeof text, "UPDATE %s SET used = $2 WHERE id = $1", u->board->event);
  step = dibs__lab_run_sql(&u->line, wire->engine->begin, NULL, 0);
  if (step == DIBS__SQL_OK) step = insert_by_hand(u, key, claim);
  if (step == DIBS__SQL_OK) step = dibs__lab_run_sql(&u->line, text, values, 2);
  if (step == DIBS__SQL_OK) step = dibs__lab_run_sql(&u->line, "COMMIT", NULL, 0);
  return transaction_outcome(u, step, step == DIBS__SQL_OK);
}

static dibs_status by_hand(struct user *u, const char *key, const char *claim, dibs_error *error) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), BY_HAND_MS);
  for (uint32_t i = 0;; i++) {
    dibs_status status = u->way->kind == LAB_CHILD_FIRST ? child_first(u, key, claim) : read_then_write(u, key, claim);
    if (status != DIBS_CONFLICT && status != DIBS_TIMEOUT) {
      if (status != DIBS_OK) snprintf(error->text, sizeof error->text, "%s", u->line.wire->message);
      return status;
    }
    *(status == DIBS_CONFLICT ? &u->mine->deadlocks : &u->mine->conflicts) += 1;
    snprintf(error->text, sizeof error->text, "gave up after %u tries: %s", i + 1, u->line.wire->message);
    if (!dibs__tick_before(dibs__tick_now(), by)) return DIBS_TIMEOUT;
    dibs__nap_ms(1 + dice(u, 1u << (i < 5 ? i : 5)));
  }
}

/* false: nothing is left. */
static bool book_once(struct user *u) {
  struct lab_board *b = u->board;
  char key[LAB_KEY_MAX], claim[40];
  dibs_stock_result result = {.size = sizeof result};
  dibs_error error = {0};
  dibs__lab_key(key, b->run, 1 + (b->rows > 1 ? dice(u, b->rows) : 0));
  snprintf(claim, sizeof claim, "%s-%" PRIu64, u->drawn, ++u->claims);
  dibs__tick from = dibs__tick_now();
  dibs_status status = u->board->by_hand ? by_hand(u, key, claim, &error) : take_seat(u, key, claim, &result, &error);
  if (status == DIBS_OK) {
    dibs__hist_add(&u->mine->hist, dibs__tick_now().ns - from.ns);
    atomic_store_explicit(&u->mine->done, u->mine->hist.count, memory_order_relaxed);
    return true;
  }
  if (status == DIBS_FULL) {
    u->mine->full++;
    return b->once;
  }
  if (status == DIBS_UNSUPPORTED) atomic_store(&b->unsupported, true);
  u->mine->given_up++;
  lab_trouble(b, error.text[0] ? error.text : dibs_status_text(status));
  /* An unreachable engine answers at once: avoid a busy loop. */
  if (status != DIBS_CONFLICT && status != DIBS_TIMEOUT) dibs__nap_ms(20);
  return status != DIBS_UNSUPPORTED && status != DIBS_INVALID && status != DIBS_DENIED && status != DIBS_NOT_FOUND;
}

/* ---- Coming and going ---- */

static dibs_status try_to_connect(struct user *u, dibs_error *error) {
  if (!u->board->by_hand) return dibs_open(u->uri, NULL, &u->store, error);
  struct dibs__result result = {0};
  dibs_status status = (dibs_status)dibs__lab_line_open(u->connection, &u->line, &result);
  snprintf(error->text, sizeof error->text, "%s", result.text);
  return status;
}

/* A server accepts a limited number of connections at a time: a refused user tries again. */
static bool connect_user(struct user *u) {
  if (u->store) return true;
  dibs_error error = {0};
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), CONNECT_MS);
  dibs_status status;
  while ((status = try_to_connect(u, &error)) == DIBS_UNAVAILABLE && dibs__tick_before(dibs__tick_now(), by) &&
         !atomic_load(&u->board->stop))
    dibs__nap_ms(20 + dice(u, 400));
  u->own = status == DIBS_OK;
  if (status != DIBS_OK) lab_trouble(u->board, error.text);
  return status == DIBS_OK;
}

static void user_body(void *arg) {
  struct user *u = arg;
  struct lab_board *b = u->board;
  bool here = connect_user(u);
  if (!here) atomic_fetch_add(&b->absent, 1);
  atomic_fetch_add(&b->ready, 1);
  dibs__word_wake(&b->ready, 1, true);
  while (atomic_load(&b->go) == 0) dibs__word_wait(&b->go, 0, DIBS__TICK_NEVER, true);
  while (here && !atomic_load_explicit(&b->stop, memory_order_relaxed) && book_once(u) && !b->once) continue;
  if (u->own) dibs_close(u->store);
  dibs__lab_line_close(&u->line);
  atomic_fetch_add(&b->ended, 1);
  dibs__word_wake(&b->ended, 1, true);
}

/* Reports users that could not be started, so that nobody waits for them. */
static void report_not_started(struct lab_board *b, uint32_t count, const char *why) {
  if (!count) return;
  lab_trouble(b, why);
  atomic_fetch_add(&b->absent, count);
  atomic_fetch_add(&b->ready, count);
  atomic_fetch_add(&b->ended, count);
  dibs__word_wake(&b->ready, 1, true);
  dibs__word_wake(&b->ended, 1, true);
}

struct shared {
  dibs_store *store;
  struct lab_connection *connection;
  dibs_table *table;
};

static bool share(struct lab_board *b, const char *uri, struct shared *s, char *why, size_t size) {
  const struct lab_way *way = &dibs__lab_ways[b->way];
  dibs_error error = {0};
  struct dibs__result result = {0};
  if (b->sql && !(s->table = dibs__lab_declare(b->event, b->applicant, &error))) {
    snprintf(why, size, "%s", error.text);
    return false;
  }
  if (way->kind == LAB_ONE_STORE && dibs_open(uri, NULL, &s->store, &error) != DIBS_OK) {
    snprintf(why, size, "%s", error.text);
    return false;
  }
  if (b->by_hand && dibs__lab_connection_open(uri, &s->connection, &result) != DIBS_OK) {
    snprintf(why, size, "%s", result.text);
    return false;
  }
  return true;
}

void dibs__lab_users_run(struct lab_board *b, const char *uri, uint32_t from, uint32_t to) {
  char why[LAB_WHY_MAX] = "out of memory for so many users";
  struct shared shared = {0};
  uint32_t count = to - from, started = 0;
  struct user *users = calloc(count, sizeof *users);
  dibs__thread **threads = calloc(count, sizeof(dibs__thread *));
  bool fine = users && threads && share(b, uri, &shared, why, sizeof why);
  for (; fine && started < count; started++) {
    struct user *u = &users[started];
    uint8_t drawn[16];
    char hex[33];
    dibs__random(drawn, sizeof drawn);
    dibs__hex_write(drawn, hex);
    memcpy(u->drawn, hex, 16);
    memcpy(&u->random, drawn + 8, sizeof u->random);
    u->random |= 1;
    u->board = b;
    u->number = from + started;
    u->mine = &b->user[u->number];
    u->way = &dibs__lab_ways[b->way];
    u->store = shared.store;
    u->connection = shared.connection;
    u->table = shared.table;
    u->uri = uri;
    threads[started] = dibs__thread_start("dibs-lab-user", user_body, u);
    if (threads[started]) continue;
    snprintf(why, sizeof why, "cannot start a thread for user %u", u->number + 1);
    break;
  }
  report_not_started(b, count - started, why);
  for (uint32_t i = 0; i < started; i++) dibs__thread_join(threads[i]);
  dibs_table_free(shared.table);
  dibs_close(shared.store);
  dibs__lab_connection_close(shared.connection);
  free(threads);
  free(users);
}

/* SPDX-License-Identifier: MIT */
/*
 * One user: connects, becomes ready, books, ends.  Its results are in its slot of the board; the same code runs in
 * threads of the lab's process and of its helpers.
 */
#include "base/text.h"
#include "lab/lab.h"
#include "lab/locks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BY_HAND_MS = 10000, CONNECT_MS = 30000, REPEATS = 20 /* after UNKNOWN */ };
/* Other work of the program between an early release and the commit.  Without it a fast disk may commit before the next
 * user reads, and hide the flaw. */
enum { EARLY_MS = 5 };

struct user {
  struct lab_board *board;
  struct lab_user *mine;
  uint32_t number;
  const struct lab_way *way;
  dibs_store *store;
  bool own; /* the store is its own */
  struct lab_connection *connection;
  struct lab_line line;
  struct lab_lock lock; /* of a strategy that locks elsewhere */
  struct lab_locks *locks;
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

struct seen {
  int64_t used, seats;
};
static enum dibs__sql_rc read_row(struct user *u, const char *key, struct seen *seen) {
  char text[512];
  struct dibs__sql_wire *wire = u->line.wire;
  struct dibs__sql_value value = dibs__sql_text(key, strlen(key));
  snprintf(text, sizeof text, "SELECT used, seats FROM %s WHERE id = $1", u->board->event);
  *seen = (struct seen){0};
  enum dibs__sql_rc step = dibs__lab_run_sql(&u->line, text, &value, 1);
  if (step != DIBS__SQL_OK || wire->engine->rows(wire, 0) == 0) return step;
  *seen = (struct seen){dibs__sql_cell_number(wire, 0, 0, 0), dibs__sql_cell_number(wire, 0, 0, 1)};
  return step;
}

/* Writes what was computed from the value that was read, as a program does that has it in an object. */
static enum dibs__sql_rc write_row(struct user *u, const char *key, const char *claim, const struct seen *seen) {
  char text[512];
  struct dibs__sql_value values[] = {dibs__sql_text(key, strlen(key)), dibs__sql_number(seen->used + 1)};
  enum dibs__sql_rc step = insert_by_hand(u, key, claim);
  snprintf(text, sizeof text, "UPDATE %s SET used = $2 WHERE id = $1", u->board->event);
  return step == DIBS__SQL_OK ? dibs__lab_run_sql(&u->line, text, values, 2) : step;
}

/* Its flaw: the value may be old when it is written back; and, as above, the order of locks. */
static dibs_status read_then_write(struct user *u, const char *key, const char *claim) {
  struct seen seen;
  enum dibs__sql_rc step = read_row(u, key, &seen);
  if (step != DIBS__SQL_OK) return transaction_outcome(u, step, false);
  if (seen.used >= seen.seats) return DIBS_FULL;
  step = dibs__lab_run_sql(&u->line, u->line.wire->engine->begin, NULL, 0);
  if (step == DIBS__SQL_OK) step = write_row(u, key, claim, &seen);
  if (step == DIBS__SQL_OK) step = dibs__lab_run_sql(&u->line, "COMMIT", NULL, 0);
  return transaction_outcome(u, step, step == DIBS__SQL_OK);
}

/* ---- Under a lock that is elsewhere ---- */

/* INSIDE on MariaDB: the transaction has the isolation that is its default, whose snapshot is that of the first read;
 * the drivers of dibs change the default of their connections. */
static enum dibs__sql_rc begin_inside(struct user *u, const char *key) {
  struct dibs__sql_wire *wire = u->line.wire;
  bool maria = wire->engine->sessions && strcmp(wire->engine->name, "PostgreSQL") != 0;
  enum dibs__sql_rc step = DIBS__SQL_OK;
  struct seen seen;
  if (maria) step = dibs__lab_run_sql(&u->line, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", NULL, 0);
  /* SQLite's own BEGIN IMMEDIATE would be a lock of the whole database. */
  if (step == DIBS__SQL_OK)
    step = dibs__lab_run_sql(&u->line, wire->engine->sessions ? wire->engine->begin : "BEGIN", NULL, 0);
  return step == DIBS__SQL_OK ? read_row(u, key, &seen) : step;
}

/* The transaction, with the lock held: it is released early, or by the caller. */
static dibs_status write_locked(struct user *u, const char *key, const char *claim) {
  struct dibs__sql_wire *wire = u->line.wire;
  enum lab_order order = u->way->order;
  struct seen seen;
  enum dibs__sql_rc step = DIBS__SQL_OK;
  const char *begin = wire->engine->sessions ? wire->engine->begin : "BEGIN";
  if (order != LAB_INSIDE) step = dibs__lab_run_sql(&u->line, begin, NULL, 0);
  if (step == DIBS__SQL_OK) step = read_row(u, key, &seen);
  if (step != DIBS__SQL_OK) return transaction_outcome(u, step, false);
  if (seen.used >= seen.seats) return transaction_outcome(u, DIBS__SQL_OK, false);
  step = write_row(u, key, claim, &seen);
  if (step == DIBS__SQL_OK && order != LAB_AROUND) {
    dibs__lab_lock_give(&u->lock);
    dibs__nap_ms(EARLY_MS);
  } else if (step == DIBS__SQL_OK && !dibs__lab_lock_alive(&u->lock)) {
    dibs__sql_rollback(wire); /* another user may hold the lock by now */
    return DIBS_TIMEOUT;
  }
  if (step == DIBS__SQL_OK) step = dibs__lab_run_sql(&u->line, "COMMIT", NULL, 0);
  return transaction_outcome(u, step, step == DIBS__SQL_OK);
}

static dibs_status under_lock(struct user *u, const char *key, const char *claim, dibs_error *error) {
  if (u->way->order == LAB_INSIDE) {
    enum dibs__sql_rc step = begin_inside(u, key);
    if (step != DIBS__SQL_OK) return transaction_outcome(u, step, false);
  }
  dibs_status status = dibs__lab_lock_take(&u->lock, key, BY_HAND_MS, error);
  if (status == DIBS_OK)
    status = write_locked(u, key, claim);
  else if (u->way->order == LAB_INSIDE)
    dibs__sql_rollback(u->line.wire);
  dibs__lab_lock_give(&u->lock);
  return status;
}

static dibs_status by_hand_once(struct user *u, const char *key, const char *claim, dibs_error *error) {
  error->text[0] = '\0';
  dibs_status status = u->way->kind == LAB_LOCKED        ? under_lock(u, key, claim, error)
                       : u->way->kind == LAB_CHILD_FIRST ? child_first(u, key, claim)
                                                         : read_then_write(u, key, claim);
  if (status != DIBS_OK && !error->text[0]) snprintf(error->text, sizeof error->text, "%s", u->line.wire->message);
  return status;
}

static dibs_status by_hand(struct user *u, const char *key, const char *claim, dibs_error *error) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), BY_HAND_MS);
  for (uint32_t i = 0;; i++) {
    dibs_status status = by_hand_once(u, key, claim, error);
    if (status != DIBS_CONFLICT && status != DIBS_TIMEOUT) return status;
    *(status == DIBS_CONFLICT ? &u->mine->deadlocks : &u->mine->conflicts) += 1;
    char why[sizeof error->text];
    snprintf(why, sizeof why, "%s", error->text);
    snprintf(error->text, sizeof error->text, "gave up after %u %s: %.400s", i + 1, i ? "tries" : "try", why);
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
  if (status != DIBS_OK || u->way->kind != LAB_LOCKED) return status;
  if (dibs__lab_lock_connect(&u->lock, u->locks, error->text, sizeof error->text)) return DIBS_OK;
  dibs__lab_line_close(&u->line);
  return DIBS_UNAVAILABLE;
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
  dibs__lab_lock_disconnect(&u->lock);
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
  struct lab_locks *locks;
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
  return way->kind != LAB_LOCKED || (s->locks = dibs__lab_locks_open(way->lock, b->locks, why, size));
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
    u->locks = shared.locks;
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
  dibs__lab_locks_close(shared.locks);
  free(threads);
  free(users);
}

/* SPDX-License-Identifier: MIT */
/*
 * One user: connects, stands ready, books, ends.  What it did is in its place of the board; the same code runs in
 * threads of the lab's process and of its helpers.
 */
#include "base/text.h"
#include "lab/lab.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BY_HAND_MS = 10000, CONNECT_MS = 30000, REPEATS = 20 /* after UNKNOWN */ };

struct user {
  struct lab_board *board;
  struct lab_user *mine;
  uint32_t number;
  const struct lab_way *way;
  dibs_store *store;
  bool own; /* the store is */
  struct lab_door *door;
  struct lab_line line;
  const dibs_table *table;
  const char *uri;
  uint64_t random;
  char drawn[17]; /* begins the claims of this user */
  uint64_t claims;
};

void dibs__lab_trouble(struct lab_board *board, const char *text) {
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

static dibs_status take(struct user *u, const char *key, const char *claim, dibs_stock_result *result,
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
  /* The claim was drawn for this booking: who took it before was us, in an attempt whose answer was lost. */
  if (status == DIBS_REPLAY && (unknown || result->retries > 0)) status = DIBS_OK;
  return status;
}

/* What a transaction by hand came to; what stands open is undone. */
static dibs_status outcome(struct user *u, enum dibs__sql_step step, bool counted) {
  struct dibs__sql_wire *wire = u->line.wire;
  if (step == DIBS__SQL_FINE && counted) return DIBS_OK;
  enum dibs__sql_trouble trouble = wire->trouble;
  if (step == DIBS__SQL_FINE || !dibs__sql_dead(wire)) dibs__sql_rollback(wire);
  if (step == DIBS__SQL_FINE) return DIBS_FULL;
  return trouble == DIBS__SQL_DEADLOCK ? DIBS_CONFLICT : trouble == DIBS__SQL_LOCKED ? DIBS_TIMEOUT : DIBS_UNAVAILABLE;
}

static enum dibs__sql_step insert_by_hand(struct user *u, const char *key, const char *claim) {
  char text[512];
  struct dibs__sql_value values[] = {dibs__sql_text(claim, strlen(claim)), dibs__sql_text(key, strlen(key))};
  snprintf(text, sizeof text, "INSERT INTO %s (claim, event, amount, given, who, at) VALUES ($1, $2, 1, 0, 'lab', 0)",
           u->board->applicant);
  return dibs__lab_say(&u->line, text, values, 2);
}

/* What is wrong with it: the applicant's row takes a shared lock on the counted one, which two then want to write. */
static dibs_status child_first(struct user *u, const char *key, const char *claim) {
  char text[512];
  struct dibs__sql_wire *wire = u->line.wire;
  struct dibs__sql_value value = dibs__sql_text(key, strlen(key));
  snprintf(text, sizeof text, "UPDATE %s SET used = used + 1, version = version + 1 WHERE id = $1 AND used < seats",
           u->board->event);
  enum dibs__sql_step step = dibs__lab_say(&u->line, wire->engine->begin, NULL, 0);
  if (step == DIBS__SQL_FINE) step = insert_by_hand(u, key, claim);
  if (step == DIBS__SQL_FINE) step = dibs__lab_say(&u->line, text, &value, 1);
  bool counted = step == DIBS__SQL_FINE && wire->engine->changed(wire, 0) == 1;
  if (counted) step = dibs__lab_say(&u->line, "COMMIT", NULL, 0);
  return outcome(u, step, counted);
}

/* `none` on an engine whose driver has all writers stand in line, so that not even they can lose an update.  What is
 * wrong with it: what was read may be old when it is written back. */
static dibs_status read_then_write(struct user *u, const char *key, const char *claim) {
  char text[512];
  struct dibs__sql_wire *wire = u->line.wire;
  struct dibs__sql_value values[] = {dibs__sql_text(key, strlen(key)), dibs__sql_number(0)};
  snprintf(text, sizeof text, "SELECT used, seats FROM %s WHERE id = $1", u->board->event);
  enum dibs__sql_step step = dibs__lab_say(&u->line, text, values, 1);
  if (step != DIBS__SQL_FINE || wire->engine->rows(wire, 0) == 0) return outcome(u, step, false);
  int64_t used = dibs__sql_cell_number(wire, 0, 0, 0), seats = dibs__sql_cell_number(wire, 0, 0, 1);
  if (used >= seats) return DIBS_FULL;
  values[1] = dibs__sql_number(used + 1);
  snprintf(text, sizeof text, "UPDATE %s SET used = $2 WHERE id = $1", u->board->event);
  step = dibs__lab_say(&u->line, wire->engine->begin, NULL, 0);
  if (step == DIBS__SQL_FINE) step = insert_by_hand(u, key, claim);
  if (step == DIBS__SQL_FINE) step = dibs__lab_say(&u->line, text, values, 2);
  if (step == DIBS__SQL_FINE) step = dibs__lab_say(&u->line, "COMMIT", NULL, 0);
  return outcome(u, step, step == DIBS__SQL_FINE);
}

static dibs_status by_hand(struct user *u, const char *key, const char *claim, dibs_error *error) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), BY_HAND_MS);
  for (uint32_t i = 0;; i++) {
    dibs_status status = u->way->kind == LAB_CHILD_FIRST ? child_first(u, key, claim) : read_then_write(u, key, claim);
    if (status != DIBS_CONFLICT && status != DIBS_TIMEOUT) {
      if (status != DIBS_OK) snprintf(error->text, sizeof error->text, "%s", u->line.wire->words);
      return status;
    }
    *(status == DIBS_CONFLICT ? &u->mine->deadlocks : &u->mine->conflicts) += 1;
    snprintf(error->text, sizeof error->text, "gave up after %u tries: %s", i + 1, u->line.wire->words);
    if (!dibs__tick_before(dibs__tick_now(), by)) return DIBS_TIMEOUT;
    dibs__nap_ms(1 + dice(u, 1u << (i < 5 ? i : 5)));
  }
}

/* false: there is nothing more to get. */
static bool book(struct user *u) {
  struct lab_board *b = u->board;
  char key[LAB_KEY_MAX], claim[40];
  dibs_stock_result result = {.size = sizeof result};
  dibs_error error = {0};
  dibs__lab_key(key, b->run, 1 + (b->rows > 1 ? dice(u, b->rows) : 0));
  snprintf(claim, sizeof claim, "%s-%" PRIu64, u->drawn, ++u->claims);
  dibs__tick from = dibs__tick_now();
  dibs_status status = u->board->by_hand ? by_hand(u, key, claim, &error) : take(u, key, claim, &result, &error);
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
  dibs__lab_trouble(b, error.text[0] ? error.text : dibs_status_text(status));
  /* An engine that is away answers at once: do not turn into a busy loop. */
  if (status != DIBS_CONFLICT && status != DIBS_TIMEOUT) dibs__nap_ms(20);
  return status != DIBS_UNSUPPORTED && status != DIBS_INVALID && status != DIBS_DENIED && status != DIBS_NOT_FOUND;
}

/* ---- Coming and going ---- */

static dibs_status try_to_connect(struct user *u, dibs_error *error) {
  if (!u->board->by_hand) return dibs_open(u->uri, NULL, &u->store, error);
  struct dibs__said said = {0};
  dibs_status status = (dibs_status)dibs__lab_line_open(u->door, &u->line, &said);
  snprintf(error->text, sizeof error->text, "%s", said.text);
  return status;
}

/* A server takes only so many at a time: who is turned away comes again. */
static bool connect_user(struct user *u) {
  if (u->store) return true;
  dibs_error error = {0};
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), CONNECT_MS);
  dibs_status status;
  while ((status = try_to_connect(u, &error)) == DIBS_UNAVAILABLE && dibs__tick_before(dibs__tick_now(), by) &&
         !atomic_load(&u->board->stop))
    dibs__nap_ms(20 + dice(u, 400));
  u->own = status == DIBS_OK;
  if (status != DIBS_OK) dibs__lab_trouble(u->board, error.text);
  return status == DIBS_OK;
}

static void body(void *arg) {
  struct user *u = arg;
  struct lab_board *b = u->board;
  bool here = connect_user(u);
  if (!here) atomic_fetch_add(&b->absent, 1);
  atomic_fetch_add(&b->ready, 1);
  dibs__word_wake(&b->ready, 1, true);
  while (atomic_load(&b->go) == 0) dibs__word_wait(&b->go, 0, DIBS__TICK_NEVER, true);
  while (here && !atomic_load_explicit(&b->stop, memory_order_relaxed) && book(u) && !b->once) continue;
  if (u->own) dibs_close(u->store);
  dibs__lab_line_close(&u->line);
  atomic_fetch_add(&b->ended, 1);
  dibs__word_wake(&b->ended, 1, true);
}

/* Users that could not be started stand for themselves: nobody waits for them. */
static void never(struct lab_board *b, uint32_t count, const char *why) {
  if (!count) return;
  dibs__lab_trouble(b, why);
  atomic_fetch_add(&b->absent, count);
  atomic_fetch_add(&b->ready, count);
  atomic_fetch_add(&b->ended, count);
  dibs__word_wake(&b->ready, 1, true);
  dibs__word_wake(&b->ended, 1, true);
}

struct shared {
  dibs_store *store;
  struct lab_door *door;
  dibs_table *table;
};

static bool share(struct lab_board *b, const char *uri, struct shared *s, char *why, size_t size) {
  const struct lab_way *way = &dibs__lab_ways[b->way];
  dibs_error error = {0};
  struct dibs__said said = {0};
  if (b->sql && !(s->table = dibs__lab_declare(b->event, b->applicant, &error))) {
    snprintf(why, size, "%s", error.text);
    return false;
  }
  if (way->kind == LAB_ONE_STORE && dibs_open(uri, NULL, &s->store, &error) != DIBS_OK) {
    snprintf(why, size, "%s", error.text);
    return false;
  }
  if (b->by_hand && dibs__lab_door_open(uri, &s->door, &said) != DIBS_OK) {
    snprintf(why, size, "%s", said.text);
    return false;
  }
  return true;
}

void dibs__lab_users_run(struct lab_board *b, const char *uri, uint32_t from, uint32_t to) {
  char why[LAB_WHY_MAX] = "no memory for so many users";
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
    u->door = shared.door;
    u->table = shared.table;
    u->uri = uri;
    threads[started] = dibs__thread_start("dibs-lab-user", body, u);
    if (threads[started]) continue;
    snprintf(why, sizeof why, "the system has no thread left for user %u", u->number + 1);
    break;
  }
  never(b, count - started, why);
  for (uint32_t i = 0; i < started; i++) dibs__thread_join(threads[i]);
  dibs_table_free(shared.table);
  dibs_close(shared.store);
  dibs__lab_door_close(shared.door);
  free(threads);
  free(users);
}

/* SPDX-License-Identifier: MIT */
/*
 * Locks beside the row.  SPIN is what is usually written by hand: SET NX PX, a pause, again; released by a script that
 * compares the token.  LEASE, QUORUM and SESSION are dibs' leases, in one store for each process, as in a program that
 * uses dibs.  SERVER is a lock of the database server, GET_LOCK or pg_advisory_lock, on a connection of a pool: such a
 * lock belongs to its connection, and a pool of the usual size bounds how many users can wait for it at once.
 */
#include "lab/locks.h"
#include "base/text.h"
#include "store/uri.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POLL_MS = 50 /* between two tries of SPIN: the usual choice */, LOCK_WAIT_S = 10 };

struct lab_locks {
  enum lab_lock_kind kind;
  char *uri;
  dibs_store *store;
  struct lab_connection *connection;
  dibs__mutex mutex;
  /* Guarded by mutex. */
  struct lab_line line[LAB_LOCK_POOL];
  bool taken[LAB_LOCK_POOL];
  /* Counts the lines that were given back. */
  dibs__word returned;
};

/* ---- Which store ---- */

struct need {
  const char *schemes[4], *example;
  bool session; /* lock= must be set, because otherwise leases are rows */
};
static const struct need needs[] = {
    [LAB_LOCK_SPIN] = {{"redis"}, "redis://HOST", false},
    [LAB_LOCK_LEASE] = {{"redis", "rediss"}, "redis://HOST", false},
    [LAB_LOCK_QUORUM] = {{"redlock"}, "redlock://HOST,HOST,HOST", false},
    [LAB_LOCK_SESSION] = {{"mysql", "mariadb", "postgres", "postgresql"},
                          "mysql://HOST/DATABASE?lock=named or postgres://HOST/DATABASE?lock=advisory",
                          true},
    [LAB_LOCK_SERVER] = {{"mysql", "mariadb", "postgres", "postgresql"},
                         "mysql://HOST/DATABASE or postgres://HOST/DATABASE",
                         false},
    [LAB_LOCK_ANY] = {{"redis", "mysql", "mariadb", "postgres"},
                      "redis://HOST, mysql://HOST/DATABASE or postgres://HOST/DATABASE",
                      false},
};

bool dibs__lab_lock_fits(enum lab_lock_kind kind, const char *uri) {
  struct dibs__uri parsed;
  struct dibs__result result = {0};
  if (kind == LAB_NO_LOCK || dibs__uri_parse(uri, &parsed, &result) != DIBS_OK) return false;
  bool fits = false;
  for (size_t i = 0; i < sizeof needs[kind].schemes / sizeof *needs[kind].schemes && needs[kind].schemes[i]; i++)
    fits = fits || strcmp(needs[kind].schemes[i], parsed.scheme) == 0;
  if (needs[kind].session && !dibs__uri_param(&parsed, "lock")) fits = false;
  if (strcmp(parsed.scheme, "redis") == 0 && kind != LAB_LOCK_LEASE && !dibs__lab_redis_built()) fits = false;
  if (kind != LAB_LOCK_LEASE && dibs__uri_param(&parsed, "sentinel")) fits = false;
  dibs__uri_free(&parsed);
  return fits;
}

const char *dibs__lab_lock_example(enum lab_lock_kind kind) {
  return needs[kind].example;
}

/* Without lock=, so that the URI opens plain connections. */
static char *plain_uri(const char *uri) {
  char *own = strdup(uri), *mark = own ? strchr(own, '?') : NULL;
  for (char *at = mark; at && *at;) {
    char *from = at + 1, *end = from + strcspn(from, "&");
    if (strncmp(from, "lock=", 5) != 0) {
      at = *end ? end : NULL;
      continue;
    }
    if (*end)
      memmove(from, end + 1, strlen(end + 1) + 1);
    else
      *at = '\0';
  }
  return own;
}

/* ---- The locks of a process ---- */

static bool open_locks(struct lab_locks *locks, char *why, size_t size) {
  dibs_error error = {0};
  struct dibs__result result = {0};
  if (locks->kind == LAB_LOCK_SPIN) return true;
  if (locks->kind == LAB_LOCK_SERVER) {
    char *plain = plain_uri(locks->uri);
    dibs__status status =
        plain ? dibs__lab_connection_open(plain, &locks->connection, &result) : (dibs__status)DIBS_NO_MEMORY;
    free(plain);
    if (status != DIBS_OK) snprintf(why, size, "the locks: %s", result.text);
    return status == DIBS_OK;
  }
  bool fine = dibs_open(locks->uri, NULL, &locks->store, &error) == DIBS_OK;
  if (!fine) snprintf(why, size, "the locks: %s", error.text);
  return fine;
}

struct lab_locks *dibs__lab_locks_open(enum lab_lock_kind kind, const char *uri, char *why, size_t size) {
  struct lab_locks *locks = calloc(1, sizeof *locks);
  if (locks) locks->uri = strdup(uri);
  if (!locks || !locks->uri) {
    snprintf(why, size, "out of memory");
    free(locks);
    return NULL;
  }
  dibs__mutex_init(&locks->mutex);
  locks->kind = kind;
  if (kind == LAB_LOCK_ANY) locks->kind = dibs__lab_lock_fits(LAB_LOCK_SPIN, uri) ? LAB_LOCK_SPIN : LAB_LOCK_SERVER;
  if (open_locks(locks, why, size)) return locks;
  dibs__lab_locks_close(locks);
  return NULL;
}

void dibs__lab_locks_close(struct lab_locks *locks) {
  if (!locks) return;
  for (size_t i = 0; i < LAB_LOCK_POOL; i++) dibs__lab_line_close(&locks->line[i]);
  dibs__lab_connection_close(locks->connection);
  dibs_close(locks->store);
  dibs__mutex_destroy(&locks->mutex);
  free(locks->uri);
  free(locks);
}

/* ---- The pool of connections ---- */

static struct lab_line *borrow(struct lab_locks *locks, dibs__tick by) {
  for (;;) {
    uint32_t seen = atomic_load(&locks->returned);
    struct lab_line *line = NULL;
    dibs__mutex_lock(&locks->mutex);
    for (size_t i = 0; i < LAB_LOCK_POOL && !line; i++) {
      if (locks->taken[i]) continue;
      locks->taken[i] = true;
      line = &locks->line[i];
    }
    dibs__mutex_unlock(&locks->mutex);
    if (line || !dibs__tick_before(dibs__tick_now(), by)) return line;
    dibs__word_wait(&locks->returned, seen, by, false);
  }
}

static void give_back(struct lab_locks *locks, struct lab_line *line) {
  if (line->wire && dibs__sql_dead(line->wire)) dibs__lab_line_close(line);
  dibs__mutex_lock(&locks->mutex);
  locks->taken[line - locks->line] = false;
  dibs__mutex_unlock(&locks->mutex);
  atomic_fetch_add(&locks->returned, 1);
  dibs__word_wake(&locks->returned, 1, false);
}

static enum dibs__sql_rc server_lock(struct lab_line *line, const char *name, bool take, int64_t *got) {
  bool postgres = strcmp(line->wire->engine->name, "PostgreSQL") == 0;
  const char *text;
  if (postgres)
    text = take ? "SELECT CASE WHEN pg_advisory_lock(hashtextextended($1, 0)) IS NULL THEN 1 ELSE 1 END"
                : "SELECT CASE WHEN pg_advisory_unlock(hashtextextended($1, 0)) THEN 1 ELSE 0 END";
  else
    text = take ? "SELECT GET_LOCK($1, 10)" : "SELECT RELEASE_LOCK($1)";
  struct dibs__sql_value value = dibs__sql_text(name, strlen(name));
  enum dibs__sql_rc step = dibs__lab_run_sql(line, text, &value, 1);
  *got = 0;
  if (step == DIBS__SQL_OK && line->wire->engine->rows(line->wire, 0) > 0)
    *got = dibs__sql_cell_number(line->wire, 0, 0, 0);
  return step;
}

/* A server that is full has a connection again when another user has ended. */
static dibs_status connect_line(struct lab_locks *locks, struct lab_line *line, dibs__tick by,
                                struct dibs__result *result) {
  for (;;) {
    dibs_status status = (dibs_status)dibs__lab_line_open(locks->connection, line, result);
    if (status != DIBS_UNAVAILABLE || !dibs__tick_before(dibs__tick_now(), by)) return status;
    dibs__nap_ms(POLL_MS);
  }
}

static dibs_status take_server(struct lab_lock *lock, int64_t wait_ms, dibs_error *error) {
  struct lab_locks *locks = lock->locks;
  struct dibs__result result = {0};
  dibs_status status = DIBS_OK;
  int64_t got = 0;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), wait_ms);
  struct lab_line *line = borrow(locks, by);
  if (!line) {
    snprintf(error->text, sizeof error->text, "no connection of the pool for locks was free in time");
    return DIBS_TIMEOUT;
  }
  if (!line->wire) status = connect_line(locks, line, by, &result);
  if (status != DIBS_OK) snprintf(error->text, sizeof error->text, "%s", result.text);
  if (status == DIBS_OK && server_lock(line, lock->name, true, &got) != DIBS__SQL_OK) {
    snprintf(error->text, sizeof error->text, "%s", line->wire->message);
    status = line->wire->trouble == DIBS__SQL_LOCKED ? DIBS_TIMEOUT : DIBS_UNAVAILABLE;
  } else if (status == DIBS_OK && got != 1) {
    snprintf(error->text, sizeof error->text, "GET_LOCK waited for %d s", LOCK_WAIT_S);
    status = DIBS_TIMEOUT;
  }
  if (status != DIBS_OK)
    give_back(locks, line);
  else
    lock->line = line;
  return status;
}

/* ---- SPIN ---- */

static dibs_status take_spin(struct lab_lock *lock, int64_t wait_ms, dibs_error *error) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), wait_ms);
  char ttl[16], answer[200];
  uint8_t drawn[16];
  dibs__random(drawn, sizeof drawn);
  dibs__hex_write(drawn, lock->token);
  snprintf(ttl, sizeof ttl, "%d", LAB_LOCK_TTL_MS);
  const char *words[] = {"SET", lock->name, lock->token, "NX", "PX", ttl};
  for (;;) {
    enum lab_redis_answer got = dibs__lab_redis_run(lock->redis, words, 6, answer, sizeof answer);
    if (got == LAB_REDIS_DONE) return DIBS_OK;
    snprintf(error->text, sizeof error->text, "%s", got == LAB_REDIS_FAILED ? answer : "the lock is held");
    if (got == LAB_REDIS_FAILED) return DIBS_UNAVAILABLE;
    if (!dibs__tick_before(dibs__tick_now(), by)) return DIBS_TIMEOUT;
    dibs__nap_ms(POLL_MS);
  }
}

static void give_spin(struct lab_lock *lock) {
  static const char script[] =
      "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
  const char *words[] = {"EVAL", script, "1", lock->name, lock->token};
  char answer[200];
  (void)dibs__lab_redis_run(lock->redis, words, 5, answer, sizeof answer); /* otherwise it ends after its ttl */
}

/* ---- One user's lock ---- */

bool dibs__lab_lock_connect(struct lab_lock *lock, struct lab_locks *locks, char *why, size_t size) {
  lock->locks = locks;
  if (locks->kind != LAB_LOCK_SPIN) return true;
  lock->redis = dibs__lab_redis_open(locks->uri, why, size);
  return lock->redis != NULL;
}

void dibs__lab_lock_disconnect(struct lab_lock *lock) {
  dibs__lab_lock_give(lock);
  dibs__lab_redis_close(lock->redis);
  lock->redis = NULL;
}

dibs_status dibs__lab_lock_take(struct lab_lock *lock, const char *name, int64_t wait_ms, dibs_error *error) {
  dibs_status status;
  struct lab_locks *locks = lock->locks;
  snprintf(lock->name, sizeof lock->name, "dibs.lab:%s", name);
  if (locks->kind == LAB_LOCK_SPIN) {
    status = take_spin(lock, wait_ms, error);
  } else if (locks->kind == LAB_LOCK_SERVER) {
    status = take_server(lock, wait_ms, error);
  } else {
    dibs_lease_options options = {
        .size = sizeof options, .ttl_ms = LAB_LOCK_TTL_MS, .wait_ms = wait_ms, .owner = "lab"};
    status = dibs_acquire(locks->store, lock->name, &options, &lock->lease, error);
  }
  lock->held = status == DIBS_OK;
  if (lock->held) error->text[0] = '\0'; /* of the tries that failed before */
  return status;
}

bool dibs__lab_lock_alive(const struct lab_lock *lock) {
  return lock->held && (!lock->lease || dibs_lease_alive(lock->lease));
}

void dibs__lab_lock_give(struct lab_lock *lock) {
  int64_t got;
  if (lock->lease) (void)dibs_release(lock->lease, NULL); /* LOST: the user's transaction was not committed */
  dibs_lease_free(lock->lease);
  lock->lease = NULL;
  if (lock->held && lock->redis) give_spin(lock);
  if (lock->line) {
    (void)server_lock(lock->line, lock->name, false, &got);
    give_back(lock->locks, lock->line);
  }
  lock->line = NULL;
  lock->held = false;
}

/* SPDX-License-Identifier: MIT */
/*
 * SQLite in one process: a connection for each user, prepared statements, WAL, and foreign keys.  synchronous=FULL
 * makes each commit durable; ?synchronous=normal in the URI leaves the flush to checkpoints.  There are no packets, so
 * no strategy has a variant with fewer of them.
 */
#include "floor.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A user that finds the file locked tries again after up to NAP_MOST_US, for PATIENCE tries: SQLite's own handler
 * sleeps up to 100 ms and starves the longest waiter. */
enum { NAP_LEAST_US = 50, NAP_MOST_US = 1000, PATIENCE = 20000 };

enum statement {
  BEGIN,
  COMMIT,
  ROLLBACK,
  READ,
  WRITE,
  WRITE_IF_VERSION,
  INSERT,
  COUNT_UP,
  COUNT_MANY,
  ACQUIRE,
  RELEASE,
  CLAIM_TASKS,
  DELETE_TASK,
  STATEMENTS
};

#define UP_BY(n, more) ("UPDATE floor_row SET used = used + " n ", version = version + 1 WHERE id = 1 " more)
static const char *const texts[STATEMENTS] = {
    [BEGIN] = "BEGIN IMMEDIATE",
    [COMMIT] = "COMMIT",
    [ROLLBACK] = "ROLLBACK",
    [READ] = "SELECT used, lim, version FROM floor_row WHERE id = 1",
    [WRITE] = "UPDATE floor_row SET used = ?1, version = version + 1 WHERE id = 1",
    [WRITE_IF_VERSION] = "UPDATE floor_row SET used = ?1, version = version + 1 WHERE id = 1 AND version = ?2",
    [INSERT] = "INSERT INTO floor_claim(claim, row_id, amount, owner, taken_at) VALUES (?1, 1, 1, ?2, unixepoch())",
    [COUNT_UP] = UP_BY("1", "AND used < lim"),
    [COUNT_MANY] = UP_BY("?1", "AND used + ?1 <= lim"),
    [ACQUIRE] = ("UPDATE floor_lease SET owner = ?2, fence = fence + 1, until = unixepoch() + 10 "
                 "WHERE name = ?1 AND (owner IS NULL OR until < unixepoch()) RETURNING fence"),
    [RELEASE] = "UPDATE floor_lease SET owner = NULL WHERE name = ?1 AND owner = ?2",
    [CLAIM_TASKS] = ("UPDATE floor_task SET state = 1, fence = fence + 1 WHERE id IN"
                     " (SELECT id FROM floor_task WHERE state = 0 ORDER BY id LIMIT ?1) RETURNING id"),
    [DELETE_TASK] = "DELETE FROM floor_task WHERE id = ?1 AND state = 1",
};

struct link {
  struct floor_link base;
  sqlite3 *db;
  sqlite3_stmt *statements[STATEMENTS];
};

static dibs__mutex mutex; /* the lock of the strategy `mutex` */

static int wait_a_little(void *arg, int tries) {
  (void)arg;
  uint32_t random;
  dibs__random(&random, sizeof random);
  dibs__tick by = dibs__tick_now();
  by.ns += (int64_t)(NAP_LEAST_US + random % (NAP_MOST_US - NAP_LEAST_US)) * 1000;
  dibs__word never = 0;
  while (dibs__word_wait(&never, 0, by, false)) continue;
  return tries < PATIENCE;
}

/* ---- Statements ---- */

static enum floor_answer failed(struct link *l, int code) {
  if ((code & 0xff) == SQLITE_BUSY) return FLOOR_CONFLICT;
  snprintf(l->base.why, sizeof l->base.why, "%s", sqlite3_errmsg(l->db));
  return FLOOR_BROKEN;
}

/* Runs to the end; `columns` are those of the first row, *found whether it exists. */
static enum floor_answer step(struct link *l, enum statement which, int64_t *columns, int count, bool *found) {
  sqlite3_stmt *s = l->statements[which];
  int code = sqlite3_step(s);
  if (found) *found = code == SQLITE_ROW;
  if (code == SQLITE_ROW) {
    for (int i = 0; i < count; i++) columns[i] = sqlite3_column_int64(s, i);
    code = sqlite3_step(s);
  }
  enum floor_answer answer = code == SQLITE_DONE ? FLOOR_DONE : failed(l, code);
  sqlite3_reset(s);
  return answer;
}

static enum floor_answer say(struct link *l, enum statement which) {
  return step(l, which, NULL, 0, NULL);
}

static enum floor_answer say_number(struct link *l, enum statement which, int64_t value) {
  sqlite3_bind_int64(l->statements[which], 1, value);
  return say(l, which);
}

static enum floor_answer insert(struct link *l, const struct floor_claim *claim) {
  sqlite3_bind_blob(l->statements[INSERT], 1, claim->id, sizeof claim->id, SQLITE_STATIC);
  sqlite3_bind_int(l->statements[INSERT], 2, claim->owner);
  return say(l, INSERT);
}

static enum floor_answer end(struct link *l, enum floor_answer answer) {
  if (answer == FLOOR_DONE) answer = say(l, COMMIT);
  if (answer != FLOOR_DONE && !sqlite3_get_autocommit(l->db)) {
    enum floor_answer back = say(l, ROLLBACK);
    if (back != FLOOR_DONE) return back;
  }
  return answer;
}

/* A statement that must change one row; otherwise the result is `otherwise`. */
static enum floor_answer must_change(struct link *l, enum floor_answer answer, enum floor_answer otherwise) {
  return answer == FLOOR_DONE && sqlite3_changes(l->db) != 1 ? otherwise : answer;
}

struct row {
  int64_t used, limit, version;
};

static enum floor_answer read_row(struct link *l, struct row *row) {
  int64_t columns[3] = {0};
  enum floor_answer answer = step(l, READ, columns, 3, NULL);
  *row = (struct row){columns[0], columns[1], columns[2]};
  return answer == FLOOR_DONE && row->used >= row->limit ? FLOOR_FULL : answer;
}

/* ---- Bookings ---- */

static enum floor_answer book_none(struct floor_link *link, const struct floor_claim *claim) {
  struct link *l = (struct link *)link;
  struct row row;
  enum floor_answer answer = read_row(l, &row);
  if (answer == FLOOR_DONE) answer = say(l, BEGIN);
  if (answer != FLOOR_DONE) return answer;
  answer = say_number(l, WRITE, row.used + 1);
  if (answer == FLOOR_DONE) answer = insert(l, claim);
  return end(l, answer);
}

static enum floor_answer book_optimistic(struct floor_link *link, const struct floor_claim *claim) {
  struct link *l = (struct link *)link;
  struct row row;
  enum floor_answer answer = read_row(l, &row);
  if (answer == FLOOR_DONE) answer = say(l, BEGIN);
  if (answer != FLOOR_DONE) return answer;
  sqlite3_bind_int64(l->statements[WRITE_IF_VERSION], 2, row.version);
  answer = must_change(l, say_number(l, WRITE_IF_VERSION, row.used + 1), FLOOR_CONFLICT);
  if (answer == FLOOR_DONE) answer = insert(l, claim);
  return end(l, answer);
}

static enum floor_answer book_pessimistic(struct floor_link *link, const struct floor_claim *claim) {
  struct link *l = (struct link *)link;
  struct row row;
  enum floor_answer answer = say(l, BEGIN);
  if (answer != FLOOR_DONE) return answer;
  answer = read_row(l, &row);
  if (answer == FLOOR_DONE) answer = say_number(l, WRITE, row.used + 1);
  if (answer == FLOOR_DONE) answer = insert(l, claim);
  return end(l, answer);
}

static enum floor_answer book_atomic(struct floor_link *link, const struct floor_claim *claim) {
  struct link *l = (struct link *)link;
  enum floor_answer answer = say(l, BEGIN);
  if (answer != FLOOR_DONE) return answer;
  answer = must_change(l, say(l, COUNT_UP), FLOOR_FULL);
  if (answer == FLOOR_DONE) answer = insert(l, claim);
  return end(l, answer);
}

static enum floor_answer book_mutex(struct floor_link *link, const struct floor_claim *claim) {
  dibs__mutex_lock(&mutex);
  enum floor_answer answer = book_atomic(link, claim);
  dibs__mutex_unlock(&mutex);
  return answer;
}

static enum floor_answer book_coalesced(struct floor_link *link, const struct floor_claim *const claims[],
                                        size_t count) {
  struct link *l = (struct link *)link;
  enum floor_answer answer = say(l, BEGIN);
  if (answer != FLOOR_DONE) return answer;
  answer = must_change(l, say_number(l, COUNT_MANY, (int64_t)count), FLOOR_FULL);
  for (size_t i = 0; i < count && answer == FLOOR_DONE; i++) answer = insert(l, claims[i]);
  return end(l, answer);
}

/* ---- Leases ---- */

static enum floor_answer acquire(struct floor_link *link, int32_t name, int32_t owner, int64_t *fence) {
  struct link *l = (struct link *)link;
  sqlite3_bind_int(l->statements[ACQUIRE], 1, name);
  sqlite3_bind_int(l->statements[ACQUIRE], 2, owner);
  bool found;
  enum floor_answer answer = step(l, ACQUIRE, fence, 1, &found);
  return answer == FLOOR_DONE && !found ? FLOOR_CONFLICT : answer;
}

static enum floor_answer release(struct floor_link *link, int32_t name, int32_t owner) {
  struct link *l = (struct link *)link;
  sqlite3_bind_int(l->statements[RELEASE], 1, name);
  sqlite3_bind_int(l->statements[RELEASE], 2, owner);
  enum floor_answer answer = say(l, RELEASE);
  if (answer != FLOOR_DONE || sqlite3_changes(l->db) == 1) return answer;
  snprintf(l->base.why, sizeof l->base.why, "the lease was no longer held");
  return FLOOR_BROKEN;
}

/* ---- Tasks ---- */

static enum floor_answer claim_tasks(struct link *l, int64_t ids[FLOOR_TASKS_MOST], uint32_t count, uint32_t *got) {
  sqlite3_stmt *s = l->statements[CLAIM_TASKS];
  int code;
  sqlite3_bind_int64(s, 1, count);
  for (*got = 0; (code = sqlite3_step(s)) == SQLITE_ROW && *got < count;) ids[(*got)++] = sqlite3_column_int64(s, 0);
  enum floor_answer answer = code == SQLITE_DONE ? FLOOR_DONE : failed(l, code);
  sqlite3_reset(s);
  return answer;
}

static enum floor_answer drain(struct floor_link *link, uint32_t count) {
  struct link *l = (struct link *)link;
  int64_t ids[FLOOR_TASKS_MOST];
  uint32_t got;
  enum floor_answer answer = claim_tasks(l, ids, count, &got);
  if (answer == FLOOR_DONE && got < count) return FLOOR_FULL;
  if (answer == FLOOR_DONE) answer = say(l, BEGIN);
  if (answer != FLOOR_DONE) return answer;
  for (uint32_t i = 0; i < got && answer == FLOOR_DONE; i++)
    answer = must_change(l, say_number(l, DELETE_TASK, ids[i]), FLOOR_BROKEN);
  return end(l, answer);
}

/* ---- Tables and connections ---- */

static const struct floor_strategy strategies[] = {
    {.name = "none",
     .what = "read, then write back and claim in a transaction: loses updates",
     .unsafe = true,
     .book = book_none},
    {.name = "optimistic",
     .what = "read; UPDATE .. WHERE version, retried after a random pause",
     .book = book_optimistic},
    {.name = "pessimistic", .what = "BEGIN IMMEDIATE, read, write, claim, commit", .book = book_pessimistic},
    {.name = "atomic", .what = "BEGIN IMMEDIATE, UPDATE .. WHERE used < lim, claim, commit", .book = book_atomic},
    {.name = "mutex",
     .what = "the same inside a mutex of the process, so that no user polls the file",
     .book = book_mutex},
    {.name = "coalesced",
     .what = "one writer books for all waiting users",
     .kind = FLOOR_TOGETHER,
     .book_all = book_coalesced},
    {.name = "lease-own",
     .what = "acquire and release a name of the user's own, one UPDATE each",
     .kind = FLOOR_LEASE_OWN},
    {.name = "lease-shared", .what = "the same on one name, tried until it is granted", .kind = FLOOR_LEASE_SHARED},
    {.name = "task-1", .what = "claim the oldest task, delete it", .kind = FLOOR_TASKS, .pairs = 1},
    {.name = "task-10", .what = "the same, 10 in a statement", .kind = FLOOR_TASKS, .pairs = 10},
    {.name = "task-100", .what = "the same, 100 in a statement", .kind = FLOOR_TASKS, .pairs = 100},
    {.name = "task-1000", .what = "the same, 1000 in a statement", .kind = FLOOR_TASKS, .pairs = 1000},
    {.name = NULL},
};

static bool run(struct link *l, const char *text) {
  if (sqlite3_exec(l->db, text, NULL, NULL, NULL) == SQLITE_OK) return true;
  snprintf(l->base.why, sizeof l->base.why, "%s", sqlite3_errmsg(l->db));
  return false;
}

static void link_close(struct floor_link *link) {
  struct link *l = (struct link *)link;
  for (int s = 0; s < STATEMENTS; s++) sqlite3_finalize(l->statements[s]);
  sqlite3_close(l->db);
  free(l);
}

static bool prepare(struct link *l) {
  for (int s = 0; s < STATEMENTS; s++) {
    int code = sqlite3_prepare_v3(l->db, texts[s], -1, SQLITE_PREPARE_PERSISTENT, &l->statements[s], NULL);
    if (code == SQLITE_OK) continue;
    snprintf(l->base.why, sizeof l->base.why, "%s", sqlite3_errmsg(l->db));
    return false;
  }
  return true;
}

static struct floor_link *link_open(const char *text, const struct floor_strategy *strategy, char why[FLOOR_WHY]) {
  struct floor_uri uri;
  char level[16] = "full", pragmas[128];
  if (!floor_uri_cut(text, &uri) || !*uri.path) {
    snprintf(why, FLOOR_WHY, "the URI names no file: sqlite:///path");
    return NULL;
  }
  floor_uri_param(&uri, "synchronous", level, sizeof level);
  if (strcasecmp(level, "full") != 0 && strcasecmp(level, "normal") != 0) {
    snprintf(why, FLOOR_WHY, "synchronous=%s: full or normal", level);
    return NULL;
  }
  struct link *l = calloc(1, sizeof *l);
  if (!l) return NULL;
  snprintf(pragmas, sizeof pragmas, "PRAGMA journal_mode=WAL;PRAGMA synchronous=%s;PRAGMA foreign_keys=ON", level);
  int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  if (sqlite3_open_v2(uri.path, &l->db, flags, NULL) != SQLITE_OK)
    snprintf(why, FLOOR_WHY, "%.200s: %.200s", uri.path, sqlite3_errmsg(l->db));
  else if (sqlite3_busy_handler(l->db, wait_a_little, NULL), !run(l, pragmas) || (strategy && !prepare(l)))
    snprintf(why, FLOOR_WHY, "%.200s: %.200s", uri.path, l->base.why);
  else
    return &l->base;
  link_close(&l->base);
  return NULL;
}

static bool setup(struct floor_link *link, int64_t limit, int32_t names) {
  char text[1600];
  snprintf(text, sizeof text,
           "BEGIN IMMEDIATE;"
           "DROP TABLE IF EXISTS floor_claim; DROP TABLE IF EXISTS floor_row; DROP TABLE IF EXISTS floor_lease;"
           "CREATE TABLE floor_row(id INTEGER PRIMARY KEY, used INTEGER NOT NULL, lim INTEGER NOT NULL,"
           " version INTEGER NOT NULL DEFAULT 0);"
           "INSERT INTO floor_row VALUES (1, 0, %lld, 0);"
           "CREATE TABLE floor_claim(claim BLOB PRIMARY KEY, row_id INTEGER NOT NULL REFERENCES floor_row(id),"
           " amount INTEGER NOT NULL, owner INTEGER NOT NULL, taken_at INTEGER NOT NULL) WITHOUT ROWID;"
           "CREATE TABLE IF NOT EXISTS floor_task(id INTEGER PRIMARY KEY, state INTEGER, fence INTEGER, payload TEXT);"
           "CREATE TABLE floor_lease(name INTEGER PRIMARY KEY, owner INTEGER, fence INTEGER NOT NULL DEFAULT 0,"
           " until INTEGER NOT NULL DEFAULT 0);"
           "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < %d)"
           " INSERT INTO floor_lease(name) SELECT i FROM n;"
           "COMMIT",
           (long long)limit, (int)names);
  return run((struct link *)link, text);
}

static bool fill(struct floor_link *link, int64_t tasks) {
  char text[700];
  snprintf(text, sizeof text,
           "BEGIN IMMEDIATE;"
           "DROP TABLE IF EXISTS floor_task;"
           "CREATE TABLE floor_task(id INTEGER PRIMARY KEY, state INTEGER NOT NULL DEFAULT 0,"
           " fence INTEGER NOT NULL DEFAULT 0, payload TEXT);"
           "CREATE INDEX floor_task_ready ON floor_task(id) WHERE state = 0;"
           "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %lld)"
           " INSERT INTO floor_task(payload) SELECT 'payload ' || i FROM n;"
           "COMMIT",
           (long long)tasks);
  return run((struct link *)link, text);
}

static bool numbers(struct link *l, const char *text, int64_t *to, int count) {
  sqlite3_stmt *s = NULL;
  bool ok = sqlite3_prepare_v2(l->db, text, -1, &s, NULL) == SQLITE_OK && sqlite3_step(s) == SQLITE_ROW;
  for (int i = 0; ok && i < count; i++) to[i] = sqlite3_column_int64(s, i);
  if (!ok) snprintf(l->base.why, sizeof l->base.why, "%s", sqlite3_errmsg(l->db));
  sqlite3_finalize(s);
  return ok;
}

static bool audit(struct floor_link *link, struct floor_audit *a) {
  int64_t n[6];
  if (!numbers((struct link *)link,
               "SELECT used, lim, (SELECT count(*) FROM floor_claim), (SELECT total(amount) FROM floor_claim),"
               " (SELECT total(fence) FROM floor_lease), (SELECT count(owner) FROM floor_lease) FROM floor_row",
               n, 6))
    return false;
  *a = (struct floor_audit){n[0], n[1], n[2], n[3], n[4], n[5]};
  return true;
}

static bool capacity(struct floor_link *link, int64_t *out) {
  return numbers((struct link *)link, "SELECT lim - used FROM floor_row WHERE id = 1", out, 1);
}

static bool count_tasks(struct floor_link *link, int64_t *left) {
  return numbers((struct link *)link, "SELECT count(*) FROM floor_task", left, 1);
}

static const char *version(struct floor_link *link) {
  (void)link;
  return sqlite3_libversion();
}

static const struct floor_engine engine = {
    .name = "sqlite",
    .example = "sqlite:///path, or sqlite:///path?synchronous=normal (not durable at power loss)",
    .strategies = strategies,
    FLOOR_CALLS,
    FLOOR_BOOKINGS};

int main(int argc, char **argv) {
  dibs__mutex_init(&mutex);
  int status = floor_main(&engine, argc, argv);
  dibs__mutex_destroy(&mutex);
  return status;
}

/* SPDX-License-Identifier: MIT */
/*
 * MariaDB through Connector/C.  Text queries: a prepared statement cannot contain several statements, and a whole
 * transaction in one packet gains more than parsing costs.
 */
#include "floor.h"

#include <inttypes.h>
#include <mysql.h>
#include <mysqld_error.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_MOST = 640, CLAIM_TEXT_MOST = 64, STATEMENTS_MOST = 8, COLUMNS_MOST = 6 };

struct link {
  struct floor_link base;
  MYSQL *my;
  char many[TEXT_MOST + FLOOR_BATCH_MOST * CLAIM_TEXT_MOST];
};

#define READ "SELECT used, lim, version FROM floor_row WHERE id=1"
#define UP_BY_1 "UPDATE floor_row SET used=used+1, version=version+1 WHERE id=1 "
#define WRITE_BACK "UPDATE floor_row SET used=%" PRId64 ", version=version+1 WHERE id=1 "
#define CLAIM "INSERT INTO floor_claim(claim, row_id, amount, owner) "
/* Directly after the UPDATE: inserts only if that one counted. */
#define CLAIM_IF_COUNTED CLAIM "SELECT x'%s', 1, 1, %" PRId32 " FROM DUAL WHERE ROW_COUNT()=1"

/* ---- Sending ---- */

static enum floor_answer failed(struct link *l) {
  unsigned code = mysql_errno(l->my);
  if (code == ER_LOCK_DEADLOCK) return FLOOR_DEADLOCK;
  if (code == ER_CHECKREAD) return FLOOR_CONFLICT;
  if (code == ER_CONSTRAINT_FAILED) return FLOOR_FULL; /* the row's CHECK */
  snprintf(l->base.why, sizeof l->base.why, "%s (error %u)", mysql_error(l->my), code);
  return FLOOR_BROKEN;
}

/* Sends one packet and reads all its answers.  rows[i]: how many statement i changed or found; cells: the first row of
 * the last answer that has any. */
static enum floor_answer send(struct link *l, const char *text, size_t length, int64_t rows[STATEMENTS_MOST],
                              int64_t cells[COLUMNS_MOST]) {
  if (mysql_real_query(l->my, text, (unsigned long)length) != 0) return failed(l);
  for (size_t i = 0;; i++) {
    MYSQL_RES *got = mysql_store_result(l->my);
    if (!got && mysql_field_count(l->my) > 0) return failed(l);
    if (rows && i < STATEMENTS_MOST) rows[i] = (int64_t)mysql_affected_rows(l->my);
    MYSQL_ROW row = got && cells ? mysql_fetch_row(got) : NULL;
    for (unsigned c = 0; row && c < mysql_num_fields(got) && c < COLUMNS_MOST; c++)
      cells[c] = row[c] ? strtoll(row[c], NULL, 10) : 0;
    mysql_free_result(got);
    int more = mysql_next_result(l->my);
    if (more > 0) return failed(l);
    if (more < 0) return FLOOR_DONE;
  }
}

/* Rolls an open transaction back; keeps the answer. */
static enum floor_answer back(struct link *l, enum floor_answer answer) {
  if (answer != FLOOR_BROKEN) {
    enum floor_answer got = send(l, "ROLLBACK", 8, NULL, NULL);
    return got == FLOOR_DONE ? answer : got;
  }
  char why[FLOOR_WHY];
  memcpy(why, l->base.why, sizeof why);
  send(l, "ROLLBACK", 8, NULL, NULL);
  memcpy(l->base.why, why, sizeof why);
  return answer;
}

static enum floor_answer say(struct link *l, const char *text) {
  return send(l, text, strlen(text), NULL, NULL);
}

struct row {
  int64_t used, limit, version;
};

static enum floor_answer read_row(struct link *l, const char *text, struct row *row) {
  int64_t cells[COLUMNS_MOST] = {0};
  enum floor_answer answer = send(l, text, strlen(text), NULL, cells);
  *row = (struct row){cells[0], cells[1], cells[2]};
  if (answer == FLOOR_DONE && row->used >= row->limit) answer = FLOOR_FULL;
  return answer;
}

/* ---- One packet for each statement ---- */

static enum floor_answer insert(struct link *l, const struct floor_claim *claim) {
  char text[TEXT_MOST], hex[33];
  floor_hex(claim->id, hex);
  snprintf(text, sizeof text, CLAIM "VALUES(x'%s', 1, 1, %" PRId32 ")", hex, claim->owner);
  return say(l, text);
}

static enum floor_answer read_and_write(struct link *l, const char *read, const struct floor_claim *claim) {
  struct row row;
  enum floor_answer answer = say(l, "BEGIN");
  if (answer == FLOOR_DONE) answer = read_row(l, read, &row);
  if (answer == FLOOR_DONE) {
    char text[TEXT_MOST];
    snprintf(text, sizeof text, WRITE_BACK, row.used + 1);
    answer = say(l, text);
  }
  if (answer == FLOOR_DONE) answer = insert(l, claim);
  if (answer == FLOOR_DONE) answer = say(l, "COMMIT");
  return answer == FLOOR_DONE ? answer : back(l, answer);
}

static enum floor_answer book_none(struct floor_link *link, const struct floor_claim *claim) {
  return read_and_write((struct link *)link, READ, claim);
}

static enum floor_answer book_pessimistic(struct floor_link *link, const struct floor_claim *claim) {
  return read_and_write((struct link *)link, READ " FOR UPDATE", claim);
}

static enum floor_answer book_optimistic(struct floor_link *link, const struct floor_claim *claim) {
  struct link *l = (struct link *)link;
  struct row row;
  enum floor_answer answer = read_row(l, READ, &row);
  if (answer != FLOOR_DONE) return answer;
  answer = say(l, "BEGIN");
  if (answer == FLOOR_DONE) {
    char text[TEXT_MOST];
    int64_t rows[STATEMENTS_MOST] = {0};
    int n = snprintf(text, sizeof text, WRITE_BACK "AND version=%" PRId64, row.used + 1, row.version);
    answer = send(l, text, (size_t)n, rows, NULL);
    if (answer == FLOOR_DONE && rows[0] == 0) answer = FLOOR_CONFLICT;
  }
  if (answer == FLOOR_DONE) answer = insert(l, claim);
  if (answer == FLOOR_DONE) answer = say(l, "COMMIT");
  return answer == FLOOR_DONE ? answer : back(l, answer);
}

static enum floor_answer book_atomic(struct floor_link *link, const struct floor_claim *claim) {
  struct link *l = (struct link *)link;
  enum floor_answer answer = say(l, "BEGIN");
  if (answer == FLOOR_DONE) {
    static const char text[] = UP_BY_1 "AND used<lim";
    int64_t rows[STATEMENTS_MOST] = {0};
    answer = send(l, text, sizeof text - 1, rows, NULL);
    if (answer == FLOOR_DONE && rows[0] == 0) answer = FLOOR_FULL;
  }
  if (answer == FLOOR_DONE) answer = insert(l, claim);
  if (answer == FLOOR_DONE) answer = say(l, "COMMIT");
  return answer == FLOOR_DONE ? answer : back(l, answer);
}

#define LOCK "SELECT GET_LOCK('floor', 60)"
#define UNLOCK "SELECT RELEASE_LOCK('floor')"

static enum floor_answer lock(struct link *l) {
  int64_t cells[COLUMNS_MOST] = {0};
  enum floor_answer answer = send(l, LOCK, sizeof LOCK - 1, NULL, cells);
  if (answer != FLOOR_DONE || cells[0] == 1) return answer;
  snprintf(l->base.why, sizeof l->base.why, "GET_LOCK was not granted within a minute");
  return FLOOR_BROKEN;
}

static enum floor_answer book_getlock(struct floor_link *link, const struct floor_claim *claim) {
  struct link *l = (struct link *)link;
  enum floor_answer answer = lock(l);
  if (answer != FLOOR_DONE) return answer;
  answer = read_and_write(l, READ, claim);
  enum floor_answer unlocked = say(l, UNLOCK);
  return answer == FLOOR_DONE ? unlocked : answer;
}

/* ---- One packet for each transaction ---- */

/* `counting` is the number of the statement that counts; `otherwise` is the result if it did not count. */
static enum floor_answer whole(struct link *l, const char *text, int length, size_t counting,
                               enum floor_answer otherwise) {
  int64_t rows[STATEMENTS_MOST] = {0};
  enum floor_answer answer = send(l, text, (size_t)length, rows, NULL);
  if (answer != FLOOR_DONE) return back(l, answer);
  return rows[counting] == 0 ? otherwise : FLOOR_DONE;
}

static enum floor_answer book_optimistic1(struct floor_link *link, const struct floor_claim *claim) {
  struct link *l = (struct link *)link;
  struct row row;
  enum floor_answer answer = read_row(l, READ, &row);
  if (answer != FLOOR_DONE) return answer;
  char text[TEXT_MOST], hex[33];
  floor_hex(claim->id, hex);
  int n = snprintf(text, sizeof text, "BEGIN;" WRITE_BACK "AND version=%" PRId64 ";" CLAIM_IF_COUNTED ";COMMIT",
                   row.used + 1, row.version, hex, claim->owner);
  return whole(l, text, n, 1, FLOOR_CONFLICT);
}

/* Decides in the client, so two packets. */
static enum floor_answer book_pessimistic2(struct floor_link *link, const struct floor_claim *claim) {
  struct link *l = (struct link *)link;
  struct row row;
  enum floor_answer answer = read_row(l, "BEGIN;" READ " FOR UPDATE", &row);
  if (answer != FLOOR_DONE) return back(l, answer);
  char text[TEXT_MOST], hex[33];
  floor_hex(claim->id, hex);
  int n = snprintf(text, sizeof text, WRITE_BACK ";" CLAIM "VALUES(x'%s', 1, 1, %" PRId32 ");COMMIT", row.used + 1, hex,
                   claim->owner);
  return whole(l, text, n, 0, FLOOR_BROKEN);
}

static enum floor_answer conditional(struct link *l, const char *before, const char *behind, size_t counting,
                                     const struct floor_claim *claim) {
  char text[TEXT_MOST], hex[33];
  floor_hex(claim->id, hex);
  int n = snprintf(text, sizeof text, "%s" UP_BY_1 "AND used<lim;" CLAIM_IF_COUNTED ";COMMIT%s", before, hex,
                   claim->owner, behind);
  return whole(l, text, n, counting, FLOOR_FULL);
}

static enum floor_answer book_pessimistic1(struct floor_link *link, const struct floor_claim *claim) {
  return conditional((struct link *)link, "BEGIN;" READ " FOR UPDATE;", "", 2, claim);
}

static enum floor_answer book_atomic1(struct floor_link *link, const struct floor_claim *claim) {
  return conditional((struct link *)link, "BEGIN;", "", 1, claim);
}

/* The row's CHECK refuses one too many, which ends the packet, so the insertion needs no condition. */
static enum floor_answer book_atomic1c(struct floor_link *link, const struct floor_claim *claim) {
  char text[TEXT_MOST], hex[33];
  floor_hex(claim->id, hex);
  int n = snprintf(text, sizeof text, "BEGIN;" UP_BY_1 ";" CLAIM "VALUES(x'%s', 1, 1, %" PRId32 ");COMMIT", hex,
                   claim->owner);
  return whole((struct link *)link, text, n, 1, FLOOR_BROKEN);
}

/* The UPDATE decides in the engine, so a lock that is not granted in time cannot break the count. */
static enum floor_answer book_getlock1(struct floor_link *link, const struct floor_claim *claim) {
  struct link *l = (struct link *)link;
  enum floor_answer answer = conditional(l, LOCK ";BEGIN;", ";" UNLOCK, 2, claim);
  /* A failed statement ends the packet, and this connection still has the lock. */
  if (answer != FLOOR_DONE && answer != FLOOR_FULL) say(l, UNLOCK);
  return answer;
}

/* ---- Many at once ---- */

static char *put(char *at, const char *text) {
  size_t length = strlen(text);
  memcpy(at, text, length);
  return at + length;
}

/* The claims' ids and owners, as the rows of VALUES. */
static char *put_claims(char *at, const struct floor_claim *const claims[], size_t count) {
  for (size_t i = 0; i < count; i++) {
    at = put(at, i == 0 ? "(x'" : ",(x'");
    char hex[33];
    floor_hex(claims[i]->id, hex);
    memcpy(at, hex, 32);
    at += 32;
    at += snprintf(at, CLAIM_TEXT_MOST - 40, "',1,1,%" PRId32 ")", claims[i]->owner);
  }
  return at;
}

static enum floor_answer book_coalesced(struct floor_link *link, const struct floor_claim *const claims[],
                                        size_t count) {
  struct link *l = (struct link *)link;
  enum floor_answer answer = say(l, "BEGIN");
  if (answer == FLOOR_DONE) {
    char text[TEXT_MOST];
    int64_t rows[STATEMENTS_MOST] = {0};
    int n =
        snprintf(text, sizeof text,
                 "UPDATE floor_row SET used=used+%zu, version=version+1 WHERE id=1 AND used+%zu<=lim", count, count);
    answer = send(l, text, (size_t)n, rows, NULL);
    if (answer == FLOOR_DONE && rows[0] == 0) answer = FLOOR_FULL;
  }
  if (answer == FLOOR_DONE) {
    char *end = put_claims(put(l->many, CLAIM "VALUES "), claims, count);
    answer = send(l, l->many, (size_t)(end - l->many), NULL, NULL);
  }
  if (answer == FLOOR_DONE) answer = say(l, "COMMIT");
  return answer == FLOOR_DONE ? answer : back(l, answer);
}

static enum floor_answer book_coalesced1(struct floor_link *link, const struct floor_claim *const claims[],
                                         size_t count) {
  struct link *l = (struct link *)link;
  int n = snprintf(l->many, TEXT_MOST,
                   "BEGIN;UPDATE floor_row SET used=used+%zu, version=version+1 WHERE id=1 AND used+%zu<=lim;" CLAIM
                   "WITH t(c, r, a, o) AS (VALUES ",
                   count, count);
  char *end = put_claims(l->many + n, claims, count);
  end = put(end, ") SELECT c, r, a, o FROM t WHERE ROW_COUNT()>0;COMMIT");
  return whole(l, l->many, (int)(end - l->many), 1, FLOOR_FULL);
}

static enum floor_answer book_coalesced1c(struct floor_link *link, const struct floor_claim *const claims[],
                                          size_t count) {
  struct link *l = (struct link *)link;
  int n = snprintf(l->many, TEXT_MOST,
                   "BEGIN;UPDATE floor_row SET used=used+%zu, version=version+1 WHERE id=1;" CLAIM "VALUES ", count);
  char *end = put(put_claims(l->many + n, claims, count), ";COMMIT");
  return whole(l, l->many, (int)(end - l->many), 1, FLOOR_BROKEN);
}

/* ---- Leases ---- */

static enum floor_answer acquire(struct floor_link *link, int32_t name, int32_t owner, int64_t *fence) {
  struct link *l = (struct link *)link;
  char text[TEXT_MOST];
  int64_t rows[STATEMENTS_MOST] = {0};
  int n = snprintf(text, sizeof text,
                   "UPDATE floor_lease SET owner=%" PRId32 ", fence=LAST_INSERT_ID(fence+1),"
                   " until=NOW(6)+INTERVAL 10 SECOND WHERE name=%" PRId32 " AND (owner IS NULL OR until<NOW(6))",
                   owner, name);
  enum floor_answer answer = send(l, text, (size_t)n, rows, NULL);
  if (answer == FLOOR_DONE && rows[0] == 0) return FLOOR_CONFLICT;
  if (answer == FLOOR_DONE) *fence = (int64_t)mysql_insert_id(l->my);
  return answer;
}

static enum floor_answer release(struct floor_link *link, int32_t name, int32_t owner) {
  struct link *l = (struct link *)link;
  char text[TEXT_MOST];
  int64_t rows[STATEMENTS_MOST] = {0};
  int n = snprintf(text, sizeof text, "UPDATE floor_lease SET owner=NULL WHERE name=%" PRId32 " AND owner=%" PRId32,
                   name, owner);
  enum floor_answer answer = send(l, text, (size_t)n, rows, NULL);
  if (answer != FLOOR_DONE || rows[0] == 1) return answer;
  snprintf(l->base.why, sizeof l->base.why, "the lease was no longer held");
  return FLOOR_BROKEN;
}

/* ---- Tasks ---- */

/* Locks the oldest tasks; their numbers, with commas between, at `to`.  The transaction stays open. */
static enum floor_answer lock_tasks(struct link *l, uint32_t count, char *to, uint32_t *got) {
  char text[TEXT_MOST];
  int n =
      snprintf(text, sizeof text,
               "SELECT id FROM floor_task WHERE state=0 ORDER BY id LIMIT %" PRIu32 " FOR UPDATE SKIP LOCKED", count);
  *got = 0;
  enum floor_answer answer = say(l, "BEGIN");
  if (answer != FLOOR_DONE) return answer;
  if (mysql_real_query(l->my, text, (unsigned long)n) != 0) return failed(l);
  MYSQL_RES *rows = mysql_store_result(l->my);
  if (!rows) return failed(l);
  *to = '\0';
  for (MYSQL_ROW row; (row = mysql_fetch_row(rows)); (*got)++) {
    if (*got) to = put(to, ",");
    to = put(to, row[0]);
    *to = '\0';
  }
  mysql_free_result(rows);
  return FLOOR_DONE;
}

static enum floor_answer drain(struct floor_link *link, uint32_t count) {
  struct link *l = (struct link *)link;
  char ids[FLOOR_TASKS_MOST * 20];
  int64_t rows[STATEMENTS_MOST] = {0};
  uint32_t got;
  enum floor_answer answer = lock_tasks(l, count, ids, &got);
  if (answer == FLOOR_DONE && got < count) answer = FLOOR_FULL;
  if (answer == FLOOR_DONE) {
    char *end = put(put(put(l->many, "UPDATE floor_task SET state=1, fence=fence+1 WHERE id IN ("), ids), ");COMMIT");
    answer = send(l, l->many, (size_t)(end - l->many), NULL, NULL);
  }
  if (answer != FLOOR_DONE) return back(l, answer);
  char *end = put(put(put(l->many, "DELETE FROM floor_task WHERE id IN ("), ids), ") AND state=1");
  /* The tasks are ours, so a deadlock with a neighbour's claim only means that it must be said again. */
  do answer = send(l, l->many, (size_t)(end - l->many), rows, NULL);
  while (answer == FLOOR_DEADLOCK || answer == FLOOR_CONFLICT);
  if (answer != FLOOR_DONE || rows[0] == (int64_t)count) return answer;
  snprintf(l->base.why, sizeof l->base.why, "%" PRId64 " of %" PRIu32 " claimed tasks were there", rows[0], count);
  return FLOOR_BROKEN;
}

/* ---- Tables and connections ---- */

static const struct floor_strategy strategies[] = {
    {.name = "none",
     .what = "read, write back, claim, commit, with no lock: loses updates",
     .unsafe = true,
     .book = book_none},
    {.name = "optimistic",
     .what = "UPDATE .. WHERE version, retried after a random pause; a packet a statement",
     .book = book_optimistic},
    {.name = "optimistic1", .what = "the same in two packets: the read, then all the rest", .book = book_optimistic1},
    {.name = "pessimistic",
     .what = "SELECT .. FOR UPDATE, decide in the client; a packet a statement",
     .book = book_pessimistic},
    {.name = "pessimistic2",
     .what = "the same in two packets: up to the read, then the rest",
     .book = book_pessimistic2},
    {.name = "pessimistic1",
     .what = "SELECT .. FOR UPDATE, decide in the engine; one packet",
     .book = book_pessimistic1},
    {.name = "atomic", .what = "UPDATE .. WHERE used < lim, claim, commit; a packet a statement", .book = book_atomic},
    {.name = "atomic1", .what = "the same in one packet", .book = book_atomic1},
    {.name = "atomic1c", .what = "the same in one packet, where a CHECK refuses one too many", .book = book_atomic1c},
    {.name = "getlock",
     .what = "GET_LOCK around read, write back, claim, commit; a packet a statement",
     .book = book_getlock},
    {.name = "getlock1", .what = "GET_LOCK, atomic1, RELEASE_LOCK; one packet", .book = book_getlock1},
    {.name = "coalesced",
     .what = "one writer books for all waiting users; a packet for each statement",
     .kind = FLOOR_TOGETHER,
     .book_all = book_coalesced},
    {.name = "coalesced1", .what = "the same in one packet", .kind = FLOOR_TOGETHER, .book_all = book_coalesced1},
    {.name = "coalesced1c",
     .what = "the same in one packet, where a CHECK refuses bookings above the limit",
     .kind = FLOOR_TOGETHER,
     .book_all = book_coalesced1c},
    {.name = "lease-own",
     .what = "acquire and release a name of the user's own, one UPDATE each",
     .kind = FLOOR_LEASE_OWN},
    {.name = "lease-shared", .what = "the same on one name, tried until it is granted", .kind = FLOOR_LEASE_SHARED},
    {.name = "task-1",
     .what = "claim the oldest task with SKIP LOCKED in two packets, delete it",
     .kind = FLOOR_TASKS,
     .pairs = 1},
    {.name = "task-10", .what = "the same, 10 at a time", .kind = FLOOR_TASKS, .pairs = 10},
    {.name = "task-100", .what = "the same, 100 at a time", .kind = FLOOR_TASKS, .pairs = 100},
    {.name = "task-1000", .what = "the same, 1000 at a time", .kind = FLOOR_TASKS, .pairs = 1000},
    {.name = NULL},
};

static void link_close(struct floor_link *link) {
  struct link *l = (struct link *)link;
  mysql_close(l->my);
  free(l);
}

static struct floor_link *link_open(const char *text, const struct floor_strategy *strategy, char why[FLOOR_WHY]) {
  (void)strategy;
  struct floor_uri uri;
  if (!floor_uri_cut(text, &uri) || !*uri.path) {
    snprintf(why, FLOOR_WHY, "the URI names no database: mysql://user:password@host:port/database");
    return NULL;
  }
  char socket[256] = "";
  floor_uri_param(&uri, "socket", socket, sizeof socket);
  struct link *l = calloc(1, sizeof *l);
  if (!l) return NULL;
  l->my = mysql_init(NULL);
  /* Without CLIENT_FOUND_ROWS, because the statements need the number of changed rows. */
  if (!l->my || !mysql_real_connect(l->my,
                                    *socket     ? NULL
                                    : *uri.host ? uri.host
                                                : "127.0.0.1",
                                    uri.user, uri.password, uri.path + 1, uri.port, *socket ? socket : NULL,
                                    CLIENT_MULTI_STATEMENTS)) {
    snprintf(why, FLOOR_WHY, "%s", l->my ? mysql_error(l->my) : "out of memory");
  } else if (say(l, "SET tx_isolation='READ-COMMITTED', sql_mode='STRICT_ALL_TABLES'") != FLOOR_DONE) {
    snprintf(why, FLOOR_WHY, "%s", l->base.why);
  } else {
    return &l->base;
  }
  link_close(&l->base);
  return NULL;
}

static bool setup(struct floor_link *link, int64_t limit, int32_t names) {
  struct link *l = (struct link *)link;
  char text[1600];
  int n = snprintf(text, sizeof text,
                   "DROP TABLE IF EXISTS floor_claim, floor_row, floor_lease;"
                   "CREATE TABLE floor_row(id INT PRIMARY KEY, used BIGINT NOT NULL, lim BIGINT NOT NULL,"
                   " version BIGINT NOT NULL DEFAULT 0, CHECK (used <= lim)) ENGINE=InnoDB;"
                   "INSERT INTO floor_row VALUES (1, 0, %" PRId64 ", 0);"
                   "CREATE TABLE floor_claim(claim BINARY(16) PRIMARY KEY, row_id INT NOT NULL, amount BIGINT NOT NULL,"
                   " owner INT NOT NULL, taken_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),"
                   " FOREIGN KEY(row_id) REFERENCES floor_row(id)) ENGINE=InnoDB;"
                   "CREATE TABLE floor_lease(name INT PRIMARY KEY, owner INT, fence BIGINT NOT NULL DEFAULT 0,"
                   " until DATETIME(6) NOT NULL DEFAULT '2000-01-01') ENGINE=InnoDB;",
                   limit);
  if (send(l, text, (size_t)n, NULL, NULL) != FLOOR_DONE) return false;
  char *end = put(l->many, "INSERT INTO floor_lease(name) VALUES ");
  for (int32_t i = 0; i < names; i++) end += snprintf(end, CLAIM_TEXT_MOST, "%s(%" PRId32 ")", i > 0 ? "," : "", i);
  return send(l, l->many, (size_t)(end - l->many), NULL, NULL) == FLOOR_DONE;
}

static bool fill(struct floor_link *link, int64_t tasks) {
  struct link *l = (struct link *)link;
  char text[TEXT_MOST];
  int n = snprintf(text, sizeof text,
                   "DROP TABLE IF EXISTS floor_task;"
                   "CREATE TABLE floor_task(id BIGINT AUTO_INCREMENT PRIMARY KEY, state TINYINT NOT NULL DEFAULT 0,"
                   " fence INT NOT NULL DEFAULT 0, payload VARCHAR(40), KEY (state, id)) ENGINE=InnoDB;"
                   "INSERT INTO floor_task(payload) SELECT CONCAT('payload ', seq) FROM seq_1_to_%" PRId64,
                   tasks);
  return send(l, text, (size_t)n, NULL, NULL) == FLOOR_DONE;
}

static bool count_tasks(struct floor_link *link, int64_t *left) {
  static const char text[] = "SELECT COUNT(*) FROM floor_task";
  int64_t cells[COLUMNS_MOST] = {0};
  if (send((struct link *)link, text, sizeof text - 1, NULL, cells) != FLOOR_DONE) return false;
  *left = cells[0];
  return true;
}

static bool audit(struct floor_link *link, struct floor_audit *a) {
  static const char text[] = "SELECT used, lim, (SELECT COUNT(*) FROM floor_claim),"
                             " (SELECT COALESCE(SUM(amount), 0) FROM floor_claim),"
                             " (SELECT COALESCE(SUM(fence), 0) FROM floor_lease),"
                             " (SELECT COUNT(owner) FROM floor_lease) FROM floor_row";
  int64_t cells[COLUMNS_MOST] = {0};
  if (send((struct link *)link, text, sizeof text - 1, NULL, cells) != FLOOR_DONE) return false;
  *a = (struct floor_audit){cells[0], cells[1], cells[2], cells[3], cells[4], cells[5]};
  return true;
}

static bool capacity(struct floor_link *link, int64_t *out) {
  static const char text[] = "SELECT lim - used FROM floor_row WHERE id=1";
  int64_t cells[COLUMNS_MOST] = {0};
  if (send((struct link *)link, text, sizeof text - 1, NULL, cells) != FLOOR_DONE) return false;
  *out = cells[0];
  return true;
}

static const char *version(struct floor_link *link) {
  return mysql_get_server_info(((struct link *)link)->my);
}

static const struct floor_engine engine = {
    .name = "mariadb",
    .example = "mysql://user:password@host:port/database, or mysql://user:password@/database?socket=/path",
    .variable = "DIBS_TEST_MYSQL",
    .strategies = strategies,
    FLOOR_CALLS,
    FLOOR_BOOKINGS};

int main(int argc, char **argv) {
  return floor_main(&engine, argc, argv);
}

/* SPDX-License-Identifier: MIT */
/*
 * PostgreSQL through libpq: prepared statements, parameters and answers in binary.  A packet a statement, or what a
 * name with a number says: pipeline mode sends several statements at once, and without BEGIN they are one transaction
 * up to the next sync.
 */
#include "floor.h"

#include <endian.h>
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum statement {
  BEGIN,
  COMMIT,
  ROLLBACK,
  READ,
  READ_LOCKED,
  WRITE,
  WRITE_IF_VERSION,
  INSERT,
  COUNT_UP,
  COUNT_UP_CHECKED,
  BOOK,
  BOOK_IF_VERSION,
  COUNT_MANY,
  INSERT_MANY,
  BOOK_MANY,
  LOCK,
  UNLOCK,
  ACQUIRE,
  RELEASE,
  STATEMENTS
};

#define UP_BY(n, more) "UPDATE floor_row SET used = used + " n ", version = version + 1 WHERE id = 1 " more
#define CLAIM "INSERT INTO floor_claim(claim, row_id, amount, owner) "
static const char *const texts[STATEMENTS] = {
    [BEGIN] = "BEGIN",
    [COMMIT] = "COMMIT",
    [ROLLBACK] = "ROLLBACK",
    [READ] = "SELECT used, lim, version FROM floor_row WHERE id = 1",
    [READ_LOCKED] = "SELECT used, lim, version FROM floor_row WHERE id = 1 FOR UPDATE",
    [WRITE] = "UPDATE floor_row SET used = $1::int8, version = version + 1 WHERE id = 1",
    [WRITE_IF_VERSION] = UP_BY("1", "AND version = $1::int8"),
    [INSERT] = CLAIM "VALUES ($1::uuid, 1, 1, $2::int4)",
    [COUNT_UP] = UP_BY("1", "AND used < lim"),
    [COUNT_UP_CHECKED] = UP_BY("1", ""), /* the row's CHECK refuses one too many */
    [BOOK] =
        "WITH up AS (" UP_BY("1", "AND used < lim") " RETURNING id) " CLAIM "SELECT $1::uuid, id, 1, $2::int4 FROM up",
    [BOOK_IF_VERSION] = "WITH up AS (" UP_BY("1", "AND version = $3::int8") " RETURNING id) " CLAIM
                                                                            "SELECT $1::uuid, id, 1, $2::int4 FROM up",
    [COUNT_MANY] = UP_BY("$1::int8", "AND used + $1::int8 <= lim"),
    [INSERT_MANY] = CLAIM "SELECT c, 1, 1, o FROM unnest($1::uuid[], $2::int4[]) AS t(c, o)",
    [BOOK_MANY] = "WITH up AS (" UP_BY(
        "$1::int8",
        "AND used + $1::int8 <= lim") " RETURNING id) " CLAIM
                                      "SELECT c, up.id, 1, o FROM up, unnest($2::uuid[], $3::int4[]) AS t(c, o)",
    [LOCK] = "SELECT pg_advisory_lock(4711)",
    [UNLOCK] = "SELECT pg_advisory_unlock(4711)",
    [ACQUIRE] = "UPDATE floor_lease SET owner = $2::int4, fence = fence + 1, until = now() + interval '10 s' "
                "WHERE name = $1::int4 AND (owner IS NULL OR until < now()) RETURNING fence",
    [RELEASE] = "UPDATE floor_lease SET owner = NULL WHERE name = $1::int4 AND owner = $2::int4",
};

enum { PARAMS_MOST = 3 };

/* The head of a one-dimensional array in binary; then its elements, each behind its length. */
enum { ARRAY_HEAD = 20, UUID_OID = 2950, INT4_OID = 23, UUID_SIZE = 16, INT4_SIZE = 4, LENGTH_SIZE = 4 };

struct link {
  struct floor_link base;
  PGconn *pg;
  char version[32];
  char uuids[ARRAY_HEAD + FLOOR_BATCH_MOST * (LENGTH_SIZE + UUID_SIZE)];
  char owners[ARRAY_HEAD + FLOOR_BATCH_MOST * (LENGTH_SIZE + INT4_SIZE)];
};

struct params {
  int count;
  const char *values[PARAMS_MOST];
  int lengths[PARAMS_MOST];
};

static const int binary[PARAMS_MOST] = {1, 1, 1};
static const struct params none;

static void add(struct params *p, const void *value, size_t size) {
  p->values[p->count] = value;
  p->lengths[p->count++] = (int)size;
}

static int64_t number(const PGresult *got, int column) {
  uint64_t big;
  memcpy(&big, PQgetvalue(got, 0, column), sizeof big);
  return (int64_t)be64toh(big);
}

static long changed(PGresult *got) {
  return strtol(PQcmdTuples(got), NULL, 10);
}

static const char *name_of(enum statement s, char name[8]) {
  snprintf(name, 8, "s%d", (int)s);
  return name;
}

/* What a failed result means. */
static enum floor_answer failed(struct link *l, const PGresult *got) {
  const char *state = got ? PQresultErrorField(got, PG_DIAG_SQLSTATE) : NULL;
  if (state && strcmp(state, "40P01") == 0) return FLOOR_DEADLOCK;
  if (state && strcmp(state, "40001") == 0) return FLOOR_CONFLICT;
  if (state && strcmp(state, "23514") == 0) return FLOOR_FULL; /* the row's CHECK */
  snprintf(l->base.why, sizeof l->base.why, "%s", got ? PQresultErrorMessage(got) : PQerrorMessage(l->pg));
  return FLOOR_BROKEN;
}

static bool fine(const PGresult *got) {
  ExecStatusType status = PQresultStatus(got);
  return status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK;
}

/* ---- A packet a statement ---- */

/* FLOOR_DONE, and *rows: how many came or changed.  *got, if wanted, is to be cleared also after a failure. */
static enum floor_answer ask(struct link *l, enum statement s, const struct params *p, long *rows, PGresult **got) {
  char name[8];
  PGresult *result = PQexecPrepared(l->pg, name_of(s, name), p->count, p->values, p->lengths, binary, 1);
  enum floor_answer answer = fine(result) ? FLOOR_DONE : failed(l, result);
  if (rows) *rows = answer == FLOOR_DONE ? changed(result) : 0;
  if (got)
    *got = result;
  else
    PQclear(result);
  return answer;
}

static enum floor_answer say(struct link *l, enum statement s) {
  return ask(l, s, &none, NULL, NULL);
}

/* Ends the transaction: COMMIT, or ROLLBACK and the answer as it was. */
static enum floor_answer end(struct link *l, enum floor_answer answer) {
  if (answer == FLOOR_DONE) return say(l, COMMIT);
  if (PQtransactionStatus(l->pg) != PQTRANS_IDLE) {
    char why[FLOOR_WHY];
    memcpy(why, l->base.why, sizeof why);
    say(l, ROLLBACK);
    memcpy(l->base.why, why, sizeof why);
  }
  return answer;
}

struct row {
  int64_t used, limit, version;
};

static enum floor_answer row_of(struct link *l, const PGresult *got, struct row *row) {
  if (PQntuples(got) != 1) {
    snprintf(l->base.why, sizeof l->base.why, "the counted row is gone");
    return FLOOR_BROKEN;
  }
  *row = (struct row){number(got, 0), number(got, 1), number(got, 2)};
  return row->used < row->limit ? FLOOR_DONE : FLOOR_FULL;
}

static enum floor_answer read_row(struct link *l, enum statement s, struct row *row) {
  PGresult *got;
  enum floor_answer answer = ask(l, s, &none, NULL, &got);
  if (answer == FLOOR_DONE) answer = row_of(l, got, row);
  PQclear(got);
  return answer;
}

static void add_claim(struct params *p, const struct floor_claim *claim, uint32_t *owner) {
  *owner = htobe32((uint32_t)claim->owner);
  add(p, claim->id, sizeof claim->id);
  add(p, owner, sizeof *owner);
}

static enum floor_answer insert(struct link *l, const struct floor_claim *claim) {
  uint32_t owner;
  struct params p = none;
  add_claim(&p, claim, &owner);
  return ask(l, INSERT, &p, NULL, NULL);
}

static enum floor_answer write_back(struct link *l, int64_t used) {
  uint64_t big = htobe64((uint64_t)used);
  struct params p = none;
  add(&p, &big, sizeof big);
  return ask(l, WRITE, &p, NULL, NULL);
}

static enum floor_answer read_and_write(struct link *l, enum statement read, const struct floor_claim *claim) {
  struct row row;
  enum floor_answer answer = say(l, BEGIN);
  if (answer != FLOOR_DONE) return answer;
  answer = read_row(l, read, &row);
  if (answer == FLOOR_DONE) answer = write_back(l, row.used + 1);
  if (answer == FLOOR_DONE) answer = insert(l, claim);
  return end(l, answer);
}

static enum floor_answer book_none(struct floor_link *link, const struct floor_claim *claim) {
  return read_and_write((struct link *)link, READ, claim);
}

static enum floor_answer book_pessimistic(struct floor_link *link, const struct floor_claim *claim) {
  return read_and_write((struct link *)link, READ_LOCKED, claim);
}

static enum floor_answer book_optimistic(struct floor_link *link, const struct floor_claim *claim) {
  struct link *l = (struct link *)link;
  struct row row;
  enum floor_answer answer = read_row(l, READ, &row);
  if (answer == FLOOR_DONE) answer = say(l, BEGIN);
  if (answer != FLOOR_DONE) return answer;
  uint64_t version = htobe64((uint64_t)row.version);
  struct params p = none;
  add(&p, &version, sizeof version);
  long rows;
  answer = ask(l, WRITE_IF_VERSION, &p, &rows, NULL);
  if (answer == FLOOR_DONE && rows == 0) answer = FLOOR_CONFLICT;
  if (answer == FLOOR_DONE) answer = insert(l, claim);
  return end(l, answer);
}

static enum floor_answer book_optimistic1(struct floor_link *link, const struct floor_claim *claim) {
  struct link *l = (struct link *)link;
  struct row row;
  enum floor_answer answer = read_row(l, READ, &row);
  if (answer != FLOOR_DONE) return answer;
  uint64_t version = htobe64((uint64_t)row.version);
  uint32_t owner;
  struct params p = none;
  add_claim(&p, claim, &owner);
  add(&p, &version, sizeof version);
  long rows;
  answer = ask(l, BOOK_IF_VERSION, &p, &rows, NULL);
  return answer == FLOOR_DONE && rows == 0 ? FLOOR_CONFLICT : answer;
}

static enum floor_answer book_atomic(struct floor_link *link, const struct floor_claim *claim) {
  struct link *l = (struct link *)link;
  enum floor_answer answer = say(l, BEGIN);
  if (answer != FLOOR_DONE) return answer;
  long rows;
  answer = ask(l, COUNT_UP, &none, &rows, NULL);
  if (answer == FLOOR_DONE && rows == 0) answer = FLOOR_FULL;
  if (answer == FLOOR_DONE) answer = insert(l, claim);
  return end(l, answer);
}

static enum floor_answer book_atomic1(struct floor_link *link, const struct floor_claim *claim) {
  uint32_t owner;
  struct params p = none;
  add_claim(&p, claim, &owner);
  long rows;
  enum floor_answer answer = ask((struct link *)link, BOOK, &p, &rows, NULL);
  return answer == FLOOR_DONE && rows == 0 ? FLOOR_FULL : answer;
}

static enum floor_answer book_getlock(struct floor_link *link, const struct floor_claim *claim) {
  struct link *l = (struct link *)link;
  enum floor_answer answer = say(l, LOCK);
  if (answer != FLOOR_DONE) return answer;
  answer = read_and_write(l, READ, claim);
  enum floor_answer unlocked = say(l, UNLOCK);
  return answer == FLOOR_DONE ? unlocked : answer;
}

/* ---- Several statements in one packet ---- */

static bool put(struct link *l, enum statement s, const struct params *p) {
  char name[8];
  return PQsendQueryPrepared(l->pg, name_of(s, name), p->count, p->values, p->lengths, binary, 1) == 1;
}

/* The answer to the next statement of the pipeline; one that was passed over after a failure counts as done. */
static enum floor_answer next(struct link *l, long *rows, struct row *row) {
  PGresult *got = PQgetResult(l->pg);
  enum floor_answer answer = FLOOR_DONE;
  if (PQresultStatus(got) != PGRES_PIPELINE_ABORTED) {
    if (!fine(got))
      answer = failed(l, got);
    else if (rows)
      *rows = changed(got);
    if (answer == FLOOR_DONE && row) answer = row_of(l, got, row);
  }
  PQclear(got);
  if (got) PQclear(PQgetResult(l->pg)); /* the NULL behind each */
  return answer;
}

/* The first failure of `count` statements and the sync behind them; *rows is the last one's. */
static enum floor_answer drain(struct link *l, unsigned count, long *rows) {
  enum floor_answer answer = FLOOR_DONE;
  for (unsigned i = 0; i < count; i++) {
    enum floor_answer got = next(l, rows, NULL);
    if (answer == FLOOR_DONE) answer = got;
  }
  PGresult *sync = PQgetResult(l->pg);
  if (PQresultStatus(sync) != PGRES_PIPELINE_SYNC && answer == FLOOR_DONE) answer = failed(l, sync);
  PQclear(sync);
  return answer;
}

static enum floor_answer unsent(struct link *l) {
  return failed(l, NULL);
}

/* Reads and decides here, so two packets: BEGIN and the read, then the rest. */
static enum floor_answer book_pessimistic2(struct floor_link *link, const struct floor_claim *claim) {
  struct link *l = (struct link *)link;
  struct row row = {0};
  if (!put(l, BEGIN, &none) || !put(l, READ_LOCKED, &none) || !PQpipelineSync(l->pg)) return unsent(l);
  enum floor_answer answer = next(l, NULL, NULL);
  enum floor_answer read = next(l, NULL, &row);
  if (answer == FLOOR_DONE) answer = read;
  read = drain(l, 0, NULL);
  if (answer == FLOOR_DONE) answer = read;
  if (answer == FLOOR_BROKEN) return answer;

  if (answer != FLOOR_DONE) {
    if (!put(l, ROLLBACK, &none) || !PQpipelineSync(l->pg)) return unsent(l);
    read = drain(l, 1, NULL);
    return read == FLOOR_DONE ? answer : read;
  }
  uint64_t used = htobe64((uint64_t)row.used + 1);
  uint32_t owner;
  struct params write = none, insertion = none;
  add(&write, &used, sizeof used);
  add_claim(&insertion, claim, &owner);
  if (!put(l, WRITE, &write) || !put(l, INSERT, &insertion) || !put(l, COMMIT, &none) || !PQpipelineSync(l->pg))
    return unsent(l);
  return drain(l, 3, NULL);
}

/* The row is locked by a statement of its own; the next one decides in the engine. */
static enum floor_answer book_pessimistic1(struct floor_link *link, const struct floor_claim *claim) {
  struct link *l = (struct link *)link;
  uint32_t owner;
  struct params p = none;
  add_claim(&p, claim, &owner);
  if (!put(l, READ_LOCKED, &none) || !put(l, BOOK, &p) || !PQpipelineSync(l->pg)) return unsent(l);
  long rows = 0;
  enum floor_answer answer = drain(l, 2, &rows);
  return answer == FLOOR_DONE && rows == 0 ? FLOOR_FULL : answer;
}

static enum floor_answer book_atomic1p(struct floor_link *link, const struct floor_claim *claim) {
  struct link *l = (struct link *)link;
  uint32_t owner;
  struct params p = none;
  add_claim(&p, claim, &owner);
  if (!put(l, COUNT_UP_CHECKED, &none) || !put(l, INSERT, &p) || !PQpipelineSync(l->pg)) return unsent(l);
  return drain(l, 2, NULL);
}

/* The lock must outlive the commit, so the unlocking stands behind a sync of its own. */
static enum floor_answer book_getlock1(struct floor_link *link, const struct floor_claim *claim) {
  struct link *l = (struct link *)link;
  uint32_t owner;
  struct params p = none;
  add_claim(&p, claim, &owner);
  if (!put(l, LOCK, &none) || !put(l, BOOK, &p) || !PQpipelineSync(l->pg)) return unsent(l);
  if (!put(l, UNLOCK, &none) || !PQpipelineSync(l->pg)) return unsent(l);
  long rows = 0;
  enum floor_answer answer = drain(l, 2, &rows), unlocked = drain(l, 1, NULL);
  if (answer == FLOOR_DONE) answer = unlocked;
  return answer == FLOOR_DONE && rows == 0 ? FLOOR_FULL : answer;
}

/* ---- Many at once ---- */

static char *put32(char *at, uint32_t value) {
  value = htobe32(value);
  memcpy(at, &value, sizeof value);
  return at + sizeof value;
}

static char *array_head(char *at, uint32_t oid, size_t count) {
  at = put32(at, 1); /* dimensions */
  at = put32(at, 0); /* no NULL in it */
  at = put32(at, oid);
  at = put32(at, (uint32_t)count);
  return put32(at, 1); /* the first one's number */
}

static void add_claims(struct link *l, struct params *p, const struct floor_claim *const claims[], size_t count) {
  char *uuid = array_head(l->uuids, UUID_OID, count), *owner = array_head(l->owners, INT4_OID, count);
  for (size_t i = 0; i < count; i++) {
    uuid = put32(uuid, UUID_SIZE);
    memcpy(uuid, claims[i]->id, UUID_SIZE);
    uuid += UUID_SIZE;
    owner = put32(owner, INT4_SIZE);
    owner = put32(owner, (uint32_t)claims[i]->owner);
  }
  add(p, l->uuids, (size_t)(uuid - l->uuids));
  add(p, l->owners, (size_t)(owner - l->owners));
}

static enum floor_answer book_coalesced(struct floor_link *link, const struct floor_claim *const claims[],
                                        size_t count) {
  struct link *l = (struct link *)link;
  enum floor_answer answer = say(l, BEGIN);
  if (answer != FLOOR_DONE) return answer;
  uint64_t amount = htobe64(count);
  struct params up = none, insertion = none;
  add(&up, &amount, sizeof amount);
  add_claims(l, &insertion, claims, count);
  long rows;
  answer = ask(l, COUNT_MANY, &up, &rows, NULL);
  if (answer == FLOOR_DONE && rows == 0) answer = FLOOR_FULL;
  if (answer == FLOOR_DONE) answer = ask(l, INSERT_MANY, &insertion, NULL, NULL);
  return end(l, answer);
}

static enum floor_answer book_coalesced1(struct floor_link *link, const struct floor_claim *const claims[],
                                         size_t count) {
  struct link *l = (struct link *)link;
  uint64_t amount = htobe64(count);
  struct params p = none;
  add(&p, &amount, sizeof amount);
  add_claims(l, &p, claims, count);
  long rows;
  enum floor_answer answer = ask(l, BOOK_MANY, &p, &rows, NULL);
  return answer == FLOOR_DONE && rows == 0 ? FLOOR_FULL : answer;
}

/* ---- Leases ---- */

static void add_lease(struct params *p, uint32_t *name, uint32_t *owner) {
  *name = htobe32(*name);
  *owner = htobe32(*owner);
  add(p, name, sizeof *name);
  add(p, owner, sizeof *owner);
}

static enum floor_answer acquire(struct floor_link *link, int32_t name, int32_t owner, int64_t *fence) {
  uint32_t n = (uint32_t)name, o = (uint32_t)owner;
  struct params p = none;
  add_lease(&p, &n, &o);
  PGresult *got;
  enum floor_answer answer = ask((struct link *)link, ACQUIRE, &p, NULL, &got);
  if (answer == FLOOR_DONE && PQntuples(got) == 0) answer = FLOOR_CONFLICT;
  if (answer == FLOOR_DONE) *fence = number(got, 0);
  PQclear(got);
  return answer;
}

static enum floor_answer release(struct floor_link *link, int32_t name, int32_t owner) {
  uint32_t n = (uint32_t)name, o = (uint32_t)owner;
  struct params p = none;
  add_lease(&p, &n, &o);
  long rows;
  enum floor_answer answer = ask((struct link *)link, RELEASE, &p, &rows, NULL);
  if (answer != FLOOR_DONE || rows == 1) return answer;
  snprintf(link->why, sizeof link->why, "the lease was not held any more");
  return FLOOR_BROKEN;
}

/* ---- Tables and connections ---- */

#define BIT(s) (1u << (s))
#define TRANSACTION (BIT(BEGIN) | BIT(COMMIT) | BIT(ROLLBACK))
static const struct floor_strategy strategies[] = {
    {.name = "none",
     .what = "read, write back, claim, commit, with no lock: loses updates",
     .unsafe = true,
     .book = book_none,
     .prepared = TRANSACTION | BIT(READ) | BIT(WRITE) | BIT(INSERT)},
    {.name = "optimistic",
     .what = "UPDATE .. WHERE version, retried after a random pause; a packet a statement",
     .book = book_optimistic,
     .prepared = TRANSACTION | BIT(READ) | BIT(WRITE_IF_VERSION) | BIT(INSERT)},
    {.name = "optimistic1",
     .what = "the same in two packets: the read, then all the rest as one statement",
     .book = book_optimistic1,
     .prepared = BIT(READ) | BIT(BOOK_IF_VERSION)},
    {.name = "pessimistic",
     .what = "SELECT .. FOR UPDATE, decide in the client; a packet a statement",
     .book = book_pessimistic,
     .prepared = TRANSACTION | BIT(READ_LOCKED) | BIT(WRITE) | BIT(INSERT)},
    {.name = "pessimistic2",
     .what = "the same in two packets: up to the read, then the rest",
     .book = book_pessimistic2,
     .prepared = TRANSACTION | BIT(READ_LOCKED) | BIT(WRITE) | BIT(INSERT)},
    {.name = "pessimistic1",
     .what = "SELECT .. FOR UPDATE, decide in the engine; one packet",
     .book = book_pessimistic1,
     .prepared = BIT(READ_LOCKED) | BIT(BOOK)},
    {.name = "atomic",
     .what = "UPDATE .. WHERE used < lim, claim, commit; a packet a statement",
     .book = book_atomic,
     .prepared = TRANSACTION | BIT(COUNT_UP) | BIT(INSERT)},
    {.name = "atomic1", .what = "the same as one statement (CTE)", .book = book_atomic1, .prepared = BIT(BOOK)},
    {.name = "atomic1p",
     .what = "the same in one packet (pipeline mode, a CHECK refuses one too many)",
     .book = book_atomic1p,
     .prepared = BIT(COUNT_UP_CHECKED) | BIT(INSERT)},
    {.name = "getlock",
     .what = "pg_advisory_lock around read, write back, claim, commit; a packet a statement",
     .book = book_getlock,
     .prepared = TRANSACTION | BIT(LOCK) | BIT(UNLOCK) | BIT(READ) | BIT(WRITE) | BIT(INSERT)},
    {.name = "getlock1",
     .what = "pg_advisory_lock, atomic1, unlock; one packet",
     .book = book_getlock1,
     .prepared = BIT(LOCK) | BIT(BOOK) | BIT(UNLOCK)},
    {.name = "coalesced",
     .what = "one writer books for all who wait; a packet a statement",
     .kind = FLOOR_TOGETHER,
     .book_all = book_coalesced,
     .prepared = TRANSACTION | BIT(COUNT_MANY) | BIT(INSERT_MANY)},
    {.name = "coalesced1",
     .what = "the same as one statement (CTE)",
     .kind = FLOOR_TOGETHER,
     .book_all = book_coalesced1,
     .prepared = BIT(BOOK_MANY)},
    {.name = "lease-own",
     .what = "acquire and release a name of one's own, an UPDATE each",
     .kind = FLOOR_LEASE_OWN,
     .prepared = BIT(ACQUIRE) | BIT(RELEASE)},
    {.name = "lease-shared",
     .what = "the same on one name, tried until it is granted",
     .kind = FLOOR_LEASE_SHARED,
     .prepared = BIT(ACQUIRE) | BIT(RELEASE)},
    {.name = NULL},
};

static bool run(struct link *l, const char *text) {
  PGresult *got = PQexec(l->pg, text);
  bool ok = fine(got);
  if (!ok) failed(l, got);
  PQclear(got);
  return ok;
}

static bool pipelined(const struct floor_strategy *strategy) {
  return strategy->book == book_pessimistic1 || strategy->book == book_pessimistic2 ||
         strategy->book == book_atomic1p || strategy->book == book_getlock1;
}

static bool prepare(struct link *l, const struct floor_strategy *strategy) {
  for (int s = 0; s < STATEMENTS; s++) {
    if (!(strategy->prepared & BIT(s))) continue;
    char name[8];
    PGresult *got = PQprepare(l->pg, name_of((enum statement)s, name), texts[s], 0, NULL);
    bool ok = fine(got);
    if (!ok) failed(l, got);
    PQclear(got);
    if (!ok) return false;
  }
  return !pipelined(strategy) || PQenterPipelineMode(l->pg);
}

static void link_close(struct floor_link *link) {
  struct link *l = (struct link *)link;
  PQfinish(l->pg);
  free(l);
}

static struct floor_link *link_open(const char *uri, const struct floor_strategy *strategy, char why[FLOOR_WHY]) {
  struct link *l = calloc(1, sizeof *l);
  if (!l) return NULL;
  l->pg = PQconnectdb(uri);
  if (PQstatus(l->pg) != CONNECTION_OK) {
    snprintf(why, FLOOR_WHY, "%s", PQerrorMessage(l->pg));
  } else if (!run(l, "SET default_transaction_isolation = 'read committed'; SET client_min_messages = warning") ||
             (strategy && !prepare(l, strategy))) {
    snprintf(why, FLOOR_WHY, "%s", l->base.why);
  } else {
    return &l->base;
  }
  link_close(&l->base);
  return NULL;
}

static bool setup(struct floor_link *link, int64_t limit, int32_t names) {
  char text[1600];
  snprintf(text, sizeof text,
           "DROP TABLE IF EXISTS floor_claim, floor_row, floor_lease;"
           "CREATE TABLE floor_row(id int PRIMARY KEY, used bigint NOT NULL, lim bigint NOT NULL,"
           " version bigint NOT NULL DEFAULT 0, CHECK (used <= lim)) WITH (fillfactor = 50);"
           "INSERT INTO floor_row VALUES (1, 0, %lld, 0);"
           "CREATE TABLE floor_claim(claim uuid PRIMARY KEY, row_id int NOT NULL REFERENCES floor_row(id),"
           " amount bigint NOT NULL, owner int NOT NULL, taken_at timestamptz NOT NULL DEFAULT now());"
           "CREATE TABLE floor_lease(name int PRIMARY KEY, owner int, fence bigint NOT NULL DEFAULT 0,"
           " until timestamptz NOT NULL DEFAULT '-infinity') WITH (fillfactor = 50);"
           "INSERT INTO floor_lease(name) SELECT generate_series(0, %d - 1)",
           (long long)limit, (int)names);
  return run((struct link *)link, text);
}

static bool audit(struct floor_link *link, struct floor_audit *a) {
  struct link *l = (struct link *)link;
  PGresult *got = PQexecParams(l->pg,
                               "SELECT used, lim, (SELECT count(*) FROM floor_claim),"
                               " (SELECT coalesce(sum(amount), 0)::int8 FROM floor_claim),"
                               " (SELECT coalesce(sum(fence), 0)::int8 FROM floor_lease),"
                               " (SELECT count(owner) FROM floor_lease) FROM floor_row",
                               0, NULL, NULL, NULL, NULL, 1);
  bool ok = fine(got) && PQntuples(got) == 1;
  if (ok)
    *a = (struct floor_audit){number(got, 0), number(got, 1), number(got, 2),
                              number(got, 3), number(got, 4), number(got, 5)};
  else
    failed(l, got);
  PQclear(got);
  return ok;
}

static bool room(struct floor_link *link, int64_t *out) {
  struct link *l = (struct link *)link;
  PGresult *got = PQexecParams(l->pg, "SELECT lim - used FROM floor_row WHERE id = 1", 0, NULL, NULL, NULL, NULL, 1);
  bool ok = fine(got) && PQntuples(got) == 1;
  if (ok)
    *out = number(got, 0);
  else
    failed(l, got);
  PQclear(got);
  return ok;
}

static const char *version(struct floor_link *link) {
  struct link *l = (struct link *)link;
  const char *text = PQparameterStatus(l->pg, "server_version");
  snprintf(l->version, sizeof l->version, "%.*s", text ? (int)strcspn(text, " ") : 0, text ? text : "");
  return l->version;
}

static const struct floor_engine engine = {
    .name = "postgres",
    .example = "postgres://user:password@host:port/database",
    .variable = "DIBS_TEST_POSTGRES",
    .strategies = strategies,
    .open = link_open,
    .close = link_close,
    .setup = setup,
    .audit = audit,
    .room = room,
    .acquire = acquire,
    .release = release,
    .version = version,
};

int main(int argc, char **argv) {
  return floor_main(&engine, argc, argv);
}

/* SPDX-License-Identifier: MIT */
/* The bookings on PostgreSQL. */
#include "postgres.h"

#include <endian.h>
#include <stdio.h>
#include <string.h>

/* ---- One packet for each statement ---- */

static enum floor_answer say(struct link *l, enum statement s) {
  return floor_pg_request(l, s, &floor_pg_none, NULL, NULL);
}

/* Ends the transaction: COMMIT, or ROLLBACK and the same answer. */
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
    snprintf(l->base.why, sizeof l->base.why, "the counted row is missing");
    return FLOOR_BROKEN;
  }
  *row = (struct row){floor_pg_number(got, 0), floor_pg_number(got, 1), floor_pg_number(got, 2)};
  return row->used < row->limit ? FLOOR_DONE : FLOOR_FULL;
}

static enum floor_answer read_row(struct link *l, enum statement s, struct row *row) {
  PGresult *got;
  enum floor_answer answer = floor_pg_request(l, s, &floor_pg_none, NULL, &got);
  if (answer == FLOOR_DONE) answer = row_of(l, got, row);
  PQclear(got);
  return answer;
}

static void add_claim(struct params *p, const struct floor_claim *claim, uint32_t *owner) {
  *owner = htobe32((uint32_t)claim->owner);
  floor_pg_add(p, claim->id, sizeof claim->id);
  floor_pg_add(p, owner, sizeof *owner);
}

static enum floor_answer insert(struct link *l, const struct floor_claim *claim) {
  uint32_t owner;
  struct params p = floor_pg_none;
  add_claim(&p, claim, &owner);
  return floor_pg_request(l, INSERT, &p, NULL, NULL);
}

static enum floor_answer write_back(struct link *l, int64_t used) {
  uint64_t big = htobe64((uint64_t)used);
  struct params p = floor_pg_none;
  floor_pg_add(&p, &big, sizeof big);
  return floor_pg_request(l, WRITE, &p, NULL, NULL);
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
  uint64_t used = htobe64((uint64_t)row.used + 1), version = htobe64((uint64_t)row.version);
  struct params p = floor_pg_none;
  floor_pg_add(&p, &used, sizeof used);
  floor_pg_add(&p, &version, sizeof version);
  long rows;
  answer = floor_pg_request(l, WRITE_IF_VERSION, &p, &rows, NULL);
  if (answer == FLOOR_DONE && rows == 0) answer = FLOOR_CONFLICT;
  if (answer == FLOOR_DONE) answer = insert(l, claim);
  return end(l, answer);
}

static enum floor_answer book_optimistic1(struct floor_link *link, const struct floor_claim *claim) {
  struct link *l = (struct link *)link;
  struct row row;
  enum floor_answer answer = read_row(l, READ, &row);
  if (answer != FLOOR_DONE) return answer;
  uint64_t used = htobe64((uint64_t)row.used + 1), version = htobe64((uint64_t)row.version);
  uint32_t owner;
  struct params p = floor_pg_none;
  add_claim(&p, claim, &owner);
  floor_pg_add(&p, &used, sizeof used);
  floor_pg_add(&p, &version, sizeof version);
  long rows;
  answer = floor_pg_request(l, BOOK_IF_VERSION, &p, &rows, NULL);
  return answer == FLOOR_DONE && rows == 0 ? FLOOR_CONFLICT : answer;
}

static enum floor_answer book_atomic(struct floor_link *link, const struct floor_claim *claim) {
  struct link *l = (struct link *)link;
  enum floor_answer answer = say(l, BEGIN);
  if (answer != FLOOR_DONE) return answer;
  long rows;
  answer = floor_pg_request(l, COUNT_UP, &floor_pg_none, &rows, NULL);
  if (answer == FLOOR_DONE && rows == 0) answer = FLOOR_FULL;
  if (answer == FLOOR_DONE) answer = insert(l, claim);
  return end(l, answer);
}

static enum floor_answer book_atomic1(struct floor_link *link, const struct floor_claim *claim) {
  uint32_t owner;
  struct params p = floor_pg_none;
  add_claim(&p, claim, &owner);
  long rows;
  enum floor_answer answer = floor_pg_request((struct link *)link, BOOK, &p, &rows, NULL);
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
  return PQsendQueryPrepared(l->pg, floor_pg_name(s, name), p->count, p->values, p->lengths, floor_pg_binary, 1) == 1;
}

/* The answer to the next statement of the pipeline; a statement that was skipped after a failure counts as done. */
static enum floor_answer next(struct link *l, long *rows, struct row *row) {
  PGresult *got = PQgetResult(l->pg);
  enum floor_answer answer = FLOOR_DONE;
  if (PQresultStatus(got) != PGRES_PIPELINE_ABORTED) {
    if (!floor_pg_fine(got))
      answer = floor_pg_failed(l, got);
    else if (rows)
      *rows = floor_pg_changed(got);
    if (answer == FLOOR_DONE && row) answer = row_of(l, got, row);
  }
  PQclear(got);
  if (got) PQclear(PQgetResult(l->pg)); /* the NULL after each */
  return answer;
}

/* The first failure of `count` statements and the sync after them; *rows is that of the last statement. */
static enum floor_answer drain(struct link *l, unsigned count, long *rows) {
  enum floor_answer answer = FLOOR_DONE;
  for (unsigned i = 0; i < count; i++) {
    enum floor_answer got = next(l, rows, NULL);
    if (answer == FLOOR_DONE) answer = got;
  }
  PGresult *sync = PQgetResult(l->pg);
  if (PQresultStatus(sync) != PGRES_PIPELINE_SYNC && answer == FLOOR_DONE) answer = floor_pg_failed(l, sync);
  PQclear(sync);
  return answer;
}

static enum floor_answer unsent(struct link *l) {
  return floor_pg_failed(l, NULL);
}

/* Reads and decides here, so two packets: BEGIN and the read, then the rest. */
static enum floor_answer book_pessimistic2(struct floor_link *link, const struct floor_claim *claim) {
  struct link *l = (struct link *)link;
  struct row row = {0};
  if (!put(l, BEGIN, &floor_pg_none) || !put(l, READ_LOCKED, &floor_pg_none) || !PQpipelineSync(l->pg))
    return unsent(l);
  enum floor_answer answer = next(l, NULL, NULL);
  enum floor_answer read = next(l, NULL, &row);
  if (answer == FLOOR_DONE) answer = read;
  read = drain(l, 0, NULL);
  if (answer == FLOOR_DONE) answer = read;
  if (answer == FLOOR_BROKEN) return answer;

  if (answer != FLOOR_DONE) {
    if (!put(l, ROLLBACK, &floor_pg_none) || !PQpipelineSync(l->pg)) return unsent(l);
    read = drain(l, 1, NULL);
    return read == FLOOR_DONE ? answer : read;
  }
  uint64_t used = htobe64((uint64_t)row.used + 1);
  uint32_t owner;
  struct params write = floor_pg_none, insertion = floor_pg_none;
  floor_pg_add(&write, &used, sizeof used);
  add_claim(&insertion, claim, &owner);
  if (!put(l, WRITE, &write) || !put(l, INSERT, &insertion) || !put(l, COMMIT, &floor_pg_none) ||
      !PQpipelineSync(l->pg))
    return unsent(l);
  return drain(l, 3, NULL);
}

/* The row is locked by a statement of its own; the next one decides in the engine. */
static enum floor_answer book_pessimistic1(struct floor_link *link, const struct floor_claim *claim) {
  struct link *l = (struct link *)link;
  uint32_t owner;
  struct params p = floor_pg_none;
  add_claim(&p, claim, &owner);
  if (!put(l, READ_LOCKED, &floor_pg_none) || !put(l, BOOK, &p) || !PQpipelineSync(l->pg)) return unsent(l);
  long rows = 0;
  enum floor_answer answer = drain(l, 2, &rows);
  return answer == FLOOR_DONE && rows == 0 ? FLOOR_FULL : answer;
}

static enum floor_answer book_atomic1p(struct floor_link *link, const struct floor_claim *claim) {
  struct link *l = (struct link *)link;
  uint32_t owner;
  struct params p = floor_pg_none;
  add_claim(&p, claim, &owner);
  if (!put(l, COUNT_UP_CHECKED, &floor_pg_none) || !put(l, INSERT, &p) || !PQpipelineSync(l->pg)) return unsent(l);
  return drain(l, 2, NULL);
}

/* The lock must outlive the commit, so the unlock follows a sync of its own. */
static enum floor_answer book_getlock1(struct floor_link *link, const struct floor_claim *claim) {
  struct link *l = (struct link *)link;
  uint32_t owner;
  struct params p = floor_pg_none;
  add_claim(&p, claim, &owner);
  if (!put(l, LOCK, &floor_pg_none) || !put(l, BOOK, &p) || !PQpipelineSync(l->pg)) return unsent(l);
  if (!put(l, UNLOCK, &floor_pg_none) || !PQpipelineSync(l->pg)) return unsent(l);
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
  floor_pg_add(p, l->uuids, (size_t)(uuid - l->uuids));
  floor_pg_add(p, l->owners, (size_t)(owner - l->owners));
}

static enum floor_answer book_coalesced(struct floor_link *link, const struct floor_claim *const claims[],
                                        size_t count) {
  struct link *l = (struct link *)link;
  enum floor_answer answer = say(l, BEGIN);
  if (answer != FLOOR_DONE) return answer;
  uint64_t amount = htobe64(count);
  struct params up = floor_pg_none, insertion = floor_pg_none;
  floor_pg_add(&up, &amount, sizeof amount);
  add_claims(l, &insertion, claims, count);
  long rows;
  answer = floor_pg_request(l, COUNT_MANY, &up, &rows, NULL);
  if (answer == FLOOR_DONE && rows == 0) answer = FLOOR_FULL;
  if (answer == FLOOR_DONE) answer = floor_pg_request(l, INSERT_MANY, &insertion, NULL, NULL);
  return end(l, answer);
}

static enum floor_answer book_coalesced1(struct floor_link *link, const struct floor_claim *const claims[],
                                         size_t count) {
  struct link *l = (struct link *)link;
  uint64_t amount = htobe64(count);
  struct params p = floor_pg_none;
  floor_pg_add(&p, &amount, sizeof amount);
  add_claims(l, &p, claims, count);
  long rows;
  enum floor_answer answer = floor_pg_request(l, BOOK_MANY, &p, &rows, NULL);
  return answer == FLOOR_DONE && rows == 0 ? FLOOR_FULL : answer;
}

/* ---- All of them ---- */

#define TRANSACTION (FLOOR_PG_BIT(BEGIN) | FLOOR_PG_BIT(COMMIT) | FLOOR_PG_BIT(ROLLBACK))
#define TASKS (FLOOR_PG_BIT(CLAIM_TASKS) | FLOOR_PG_BIT(DELETE_TASKS))
const struct floor_strategy floor_pg_strategies[] = {
    {.name = "none",
     .what = "read, write back, claim, commit, with no lock: loses updates",
     .unsafe = true,
     .book = book_none,
     .prepared = TRANSACTION | FLOOR_PG_BIT(READ) | FLOOR_PG_BIT(WRITE) | FLOOR_PG_BIT(INSERT)},
    {.name = "optimistic",
     .what = "UPDATE .. WHERE version, retried after a random pause; a packet a statement",
     .book = book_optimistic,
     .prepared = TRANSACTION | FLOOR_PG_BIT(READ) | FLOOR_PG_BIT(WRITE_IF_VERSION) | FLOOR_PG_BIT(INSERT)},
    {.name = "optimistic1",
     .what = "the same in two packets: the read, then all the rest as one statement",
     .book = book_optimistic1,
     .prepared = FLOOR_PG_BIT(READ) | FLOOR_PG_BIT(BOOK_IF_VERSION)},
    {.name = "pessimistic",
     .what = "SELECT .. FOR UPDATE, decide in the client; a packet a statement",
     .book = book_pessimistic,
     .prepared = TRANSACTION | FLOOR_PG_BIT(READ_LOCKED) | FLOOR_PG_BIT(WRITE) | FLOOR_PG_BIT(INSERT)},
    {.name = "pessimistic2",
     .what = "the same in two packets: up to the read, then the rest",
     .book = book_pessimistic2,
     .prepared = TRANSACTION | FLOOR_PG_BIT(READ_LOCKED) | FLOOR_PG_BIT(WRITE) | FLOOR_PG_BIT(INSERT)},
    {.name = "pessimistic1",
     .what = "SELECT .. FOR UPDATE, decide in the engine; one packet",
     .book = book_pessimistic1,
     .prepared = FLOOR_PG_BIT(READ_LOCKED) | FLOOR_PG_BIT(BOOK)},
    {.name = "atomic",
     .what = "UPDATE .. WHERE used < lim, claim, commit; a packet a statement",
     .book = book_atomic,
     .prepared = TRANSACTION | FLOOR_PG_BIT(COUNT_UP) | FLOOR_PG_BIT(INSERT)},
    {.name = "atomic1",
     .what = "the same as one statement (CTE)",
     .book = book_atomic1,
     .prepared = FLOOR_PG_BIT(BOOK)},
    {.name = "atomic1p",
     .what = "the same in one packet (pipeline mode, a CHECK refuses one too many)",
     .book = book_atomic1p,
     .prepared = FLOOR_PG_BIT(COUNT_UP_CHECKED) | FLOOR_PG_BIT(INSERT)},
    {.name = "getlock",
     .what = "pg_advisory_lock around read, write back, claim, commit; a packet a statement",
     .book = book_getlock,
     .prepared = TRANSACTION | FLOOR_PG_BIT(LOCK) | FLOOR_PG_BIT(UNLOCK) | FLOOR_PG_BIT(READ) | FLOOR_PG_BIT(WRITE) |
                 FLOOR_PG_BIT(INSERT)},
    {.name = "getlock1",
     .what = "pg_advisory_lock, atomic1, unlock; one packet",
     .book = book_getlock1,
     .prepared = FLOOR_PG_BIT(LOCK) | FLOOR_PG_BIT(BOOK) | FLOOR_PG_BIT(UNLOCK)},
    {.name = "coalesced",
     .what = "one writer books for all waiting users; a packet for each statement",
     .kind = FLOOR_TOGETHER,
     .book_all = book_coalesced,
     .prepared = TRANSACTION | FLOOR_PG_BIT(COUNT_MANY) | FLOOR_PG_BIT(INSERT_MANY)},
    {.name = "coalesced1",
     .what = "the same as one statement (CTE)",
     .kind = FLOOR_TOGETHER,
     .book_all = book_coalesced1,
     .prepared = FLOOR_PG_BIT(BOOK_MANY)},
    {.name = "lease-own",
     .what = "acquire and release a name of the user's own, one UPDATE each",
     .kind = FLOOR_LEASE_OWN,
     .prepared = FLOOR_PG_BIT(ACQUIRE) | FLOOR_PG_BIT(RELEASE)},
    {.name = "lease-shared",
     .what = "the same on one name, tried until it is granted",
     .kind = FLOOR_LEASE_SHARED,
     .prepared = FLOOR_PG_BIT(ACQUIRE) | FLOOR_PG_BIT(RELEASE)},
    {.name = "task-1",
     .what = "drains a queue: claims a task by SKIP LOCKED, then deletes it",
     .kind = FLOOR_TASKS,
     .pairs = 1,
     .prepared = TASKS},
    {.name = "task-10",
     .what = "the same with 10 tasks at a time",
     .kind = FLOOR_TASKS,
     .pairs = 10,
     .prepared = TASKS},
    {.name = "task-100", .what = "with 100", .kind = FLOOR_TASKS, .pairs = 100, .prepared = TASKS},
    {.name = "task-1000", .what = "with 1000", .kind = FLOOR_TASKS, .pairs = 1000, .prepared = TASKS},
    {.name = NULL},
};

bool floor_pg_pipelined(const struct floor_strategy *strategy) {
  return strategy->book == book_pessimistic1 || strategy->book == book_pessimistic2 ||
         strategy->book == book_atomic1p || strategy->book == book_getlock1;
}

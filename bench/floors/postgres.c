/* SPDX-License-Identifier: MIT */
/*
 * PostgreSQL through libpq: prepared statements, parameters and answers in binary.  One packet for each statement, or
 * as many as the digit in a strategy's name says: pipeline mode sends several statements at once, and without BEGIN
 * they are one transaction up to the next sync.
 */
#include "postgres.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UP_BY(n, more) "UPDATE floor_row SET used = used + " n ", version = version + 1 WHERE id = 1 " more
#define WRITE_BACK_IF(used, version)                                                                                   \
  "UPDATE floor_row SET used = " used ", version = version + 1 WHERE id = 1 AND version = " version " "
#define CLAIM "INSERT INTO floor_claim(claim, row_id, amount, owner) "
static const char *const texts[STATEMENTS] = {
    [BEGIN] = "BEGIN",
    [COMMIT] = "COMMIT",
    [ROLLBACK] = "ROLLBACK",
    [READ] = "SELECT used, lim, version FROM floor_row WHERE id = 1",
    [READ_LOCKED] = "SELECT used, lim, version FROM floor_row WHERE id = 1 FOR UPDATE",
    [WRITE] = "UPDATE floor_row SET used = $1::int8, version = version + 1 WHERE id = 1",
    [WRITE_IF_VERSION] = WRITE_BACK_IF("$1::int8", "$2::int8"),
    [INSERT] = CLAIM "VALUES ($1::uuid, 1, 1, $2::int4)",
    [COUNT_UP] = UP_BY("1", "AND used < lim"),
    [COUNT_UP_CHECKED] = UP_BY("1", ""), /* the row's CHECK refuses one too many */
    [BOOK] =
        "WITH up AS (" UP_BY("1", "AND used < lim") " RETURNING id) " CLAIM "SELECT $1::uuid, id, 1, $2::int4 FROM up",
    [BOOK_IF_VERSION] = "WITH up AS (" WRITE_BACK_IF("$3::int8", "$4::int8") " RETURNING id) " CLAIM
                                                                             "SELECT $1::uuid, id, 1, $2::int4 FROM up",
    [COUNT_MANY] = UP_BY("$1::int8", "AND used + $1::int8 <= lim"),
    [INSERT_MANY] = CLAIM "SELECT c, 1, 1, o FROM unnest($1::uuid[], $2::int4[]) AS t(c, o)",
    [BOOK_MANY] = "WITH up AS (" UP_BY(
        "$1::int8",
        "AND used + $1::int8 <= lim") " RETURNING id) " CLAIM
                                      "SELECT c, up.id, 1, o FROM up, unnest($2::uuid[], $3::int4[]) AS t(c, o)",
    [LOCK] = "SELECT pg_advisory_lock(4711)",
    [UNLOCK] = "SELECT pg_advisory_unlock(4711)",
    [ACQUIRE] = ("UPDATE floor_lease SET owner = $2::int4, fence = fence + 1, until = now() + interval '10 s' "
                 "WHERE name = $1::int4 AND (owner IS NULL OR until < now()) RETURNING fence"),
    [RELEASE] = "UPDATE floor_lease SET owner = NULL WHERE name = $1::int4 AND owner = $2::int4",
    [CLAIM_TASKS] = ("WITH c AS (UPDATE floor_task SET state = 1, fence = fence + 1 WHERE id IN"
                     " (SELECT id FROM floor_task WHERE state = 0 ORDER BY id LIMIT $1::int8 FOR UPDATE SKIP LOCKED)"
                     " RETURNING id) SELECT count(*), coalesce(array_agg(id), '{}') FROM c"),
    [DELETE_TASKS] = "DELETE FROM floor_task WHERE id = ANY($1::int8[]) AND state = 1",
};

const int floor_pg_binary[PARAMS_MOST] = {1, 1, 1, 1};
const struct params floor_pg_none;

void floor_pg_add(struct params *p, const void *value, size_t size) {
  p->values[p->count] = value;
  p->lengths[p->count++] = (int)size;
}

int64_t floor_pg_number(const PGresult *got, int column) {
  uint64_t big;
  memcpy(&big, PQgetvalue(got, 0, column), sizeof big);
  return (int64_t)be64toh(big);
}

long floor_pg_changed(PGresult *got) {
  return strtol(PQcmdTuples(got), NULL, 10);
}

const char *floor_pg_name(enum statement s, char name[8]) {
  snprintf(name, 8, "s%d", (int)s);
  return name;
}

enum floor_answer floor_pg_failed(struct link *l, const PGresult *got) {
  const char *state = got ? PQresultErrorField(got, PG_DIAG_SQLSTATE) : NULL;
  if (state && strcmp(state, "40P01") == 0) return FLOOR_DEADLOCK;
  if (state && strcmp(state, "40001") == 0) return FLOOR_CONFLICT;
  if (state && strcmp(state, "23514") == 0) return FLOOR_FULL; /* the row's CHECK */
  snprintf(l->base.why, sizeof l->base.why, "%s", got ? PQresultErrorMessage(got) : PQerrorMessage(l->pg));
  return FLOOR_BROKEN;
}

bool floor_pg_fine(const PGresult *got) {
  ExecStatusType status = PQresultStatus(got);
  return status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK;
}

enum floor_answer floor_pg_request(struct link *l, enum statement s, const struct params *p, long *rows,
                                   PGresult **got) {
  char name[8];
  PGresult *result = PQexecPrepared(l->pg, floor_pg_name(s, name), p->count, p->values, p->lengths, floor_pg_binary, 1);
  enum floor_answer answer = floor_pg_fine(result) ? FLOOR_DONE : floor_pg_failed(l, result);
  if (rows) *rows = answer == FLOOR_DONE ? floor_pg_changed(result) : 0;
  if (got)
    *got = result;
  else
    PQclear(result);
  return answer;
}

/* ---- Leases ---- */

static void add_lease(struct params *p, uint32_t *name, uint32_t *owner) {
  *name = htobe32(*name);
  *owner = htobe32(*owner);
  floor_pg_add(p, name, sizeof *name);
  floor_pg_add(p, owner, sizeof *owner);
}

static enum floor_answer acquire(struct floor_link *link, int32_t name, int32_t owner, int64_t *fence) {
  uint32_t n = (uint32_t)name, o = (uint32_t)owner;
  struct params p = floor_pg_none;
  add_lease(&p, &n, &o);
  PGresult *got;
  enum floor_answer answer = floor_pg_request((struct link *)link, ACQUIRE, &p, NULL, &got);
  if (answer == FLOOR_DONE && PQntuples(got) == 0) answer = FLOOR_CONFLICT;
  if (answer == FLOOR_DONE) *fence = floor_pg_number(got, 0);
  PQclear(got);
  return answer;
}

static enum floor_answer release(struct floor_link *link, int32_t name, int32_t owner) {
  uint32_t n = (uint32_t)name, o = (uint32_t)owner;
  struct params p = floor_pg_none;
  add_lease(&p, &n, &o);
  long rows;
  enum floor_answer answer = floor_pg_request((struct link *)link, RELEASE, &p, &rows, NULL);
  if (answer != FLOOR_DONE || rows == 1) return answer;
  snprintf(link->why, sizeof link->why, "the lease was no longer held");
  return FLOOR_BROKEN;
}

/* ---- Tasks ---- */

static enum floor_answer drain(struct floor_link *link, uint32_t count) {
  uint64_t most = htobe64(count);
  struct params p = floor_pg_none, ids = floor_pg_none;
  PGresult *got;
  floor_pg_add(&p, &most, sizeof most);
  enum floor_answer answer = floor_pg_request((struct link *)link, CLAIM_TASKS, &p, NULL, &got);
  if (answer == FLOOR_DONE && floor_pg_number(got, 0) < (int64_t)count) answer = FLOOR_FULL;
  if (answer == FLOOR_DONE) {
    long rows;
    floor_pg_add(&ids, PQgetvalue(got, 0, 1), (size_t)PQgetlength(got, 0, 1)); /* the array as it came */
    answer = floor_pg_request((struct link *)link, DELETE_TASKS, &ids, &rows, NULL);
    if (answer == FLOOR_DONE && rows != (long)count) {
      snprintf(link->why, sizeof link->why, "%ld of %u claimed tasks were there", rows, count);
      answer = FLOOR_BROKEN;
    }
  }
  PQclear(got);
  return answer;
}

/* ---- Tables and connections ---- */

static bool run(struct link *l, const char *text) {
  PGresult *got = PQexec(l->pg, text);
  bool ok = floor_pg_fine(got);
  if (!ok) floor_pg_failed(l, got);
  PQclear(got);
  return ok;
}

static bool prepare(struct link *l, const struct floor_strategy *strategy) {
  for (int s = 0; s < STATEMENTS; s++) {
    if (!(strategy->prepared & FLOOR_PG_BIT(s))) continue;
    char name[8];
    PGresult *got = PQprepare(l->pg, floor_pg_name((enum statement)s, name), texts[s], 0, NULL);
    bool ok = floor_pg_fine(got);
    if (!ok) floor_pg_failed(l, got);
    PQclear(got);
    if (!ok) return false;
  }
  return !floor_pg_pipelined(strategy) || PQenterPipelineMode(l->pg);
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

static bool fill(struct floor_link *link, int64_t tasks) {
  char text[800];
  snprintf(text, sizeof text,
           "DROP TABLE IF EXISTS floor_task;"
           "CREATE TABLE floor_task(id bigserial PRIMARY KEY, state smallint NOT NULL DEFAULT 0,"
           " fence int NOT NULL DEFAULT 0, payload text) WITH (fillfactor = 70);"
           "CREATE INDEX floor_task_ready ON floor_task(id) WHERE state = 0;"
           "INSERT INTO floor_task(payload) SELECT 'payload ' || n FROM generate_series(1, %lld) AS n;"
           "ANALYZE floor_task",
           (long long)tasks);
  return run((struct link *)link, text);
}

static bool count_tasks(struct floor_link *link, int64_t *left) {
  struct link *l = (struct link *)link;
  PGresult *got = PQexecParams(l->pg, "SELECT count(*) FROM floor_task", 0, NULL, NULL, NULL, NULL, 1);
  bool ok = floor_pg_fine(got);
  if (ok)
    *left = floor_pg_number(got, 0);
  else
    floor_pg_failed(l, got);
  PQclear(got);
  return ok;
}

static bool audit(struct floor_link *link, struct floor_audit *a) {
  struct link *l = (struct link *)link;
  PGresult *got = PQexecParams(l->pg,
                               "SELECT used, lim, (SELECT count(*) FROM floor_claim),"
                               " (SELECT coalesce(sum(amount), 0)::int8 FROM floor_claim),"
                               " (SELECT coalesce(sum(fence), 0)::int8 FROM floor_lease),"
                               " (SELECT count(owner) FROM floor_lease) FROM floor_row",
                               0, NULL, NULL, NULL, NULL, 1);
  bool ok = floor_pg_fine(got) && PQntuples(got) == 1;
  if (ok)
    *a = (struct floor_audit){floor_pg_number(got, 0), floor_pg_number(got, 1), floor_pg_number(got, 2),
                              floor_pg_number(got, 3), floor_pg_number(got, 4), floor_pg_number(got, 5)};
  else
    floor_pg_failed(l, got);
  PQclear(got);
  return ok;
}

static bool capacity(struct floor_link *link, int64_t *out) {
  struct link *l = (struct link *)link;
  PGresult *got = PQexecParams(l->pg, "SELECT lim - used FROM floor_row WHERE id = 1", 0, NULL, NULL, NULL, NULL, 1);
  bool ok = floor_pg_fine(got) && PQntuples(got) == 1;
  if (ok)
    *out = floor_pg_number(got, 0);
  else
    floor_pg_failed(l, got);
  PQclear(got);
  return ok;
}

static const char *version(struct floor_link *link) {
  struct link *l = (struct link *)link;
  const char *text = PQparameterStatus(l->pg, "server_version");
  snprintf(l->version, sizeof l->version, "%.*s", text ? (int)strcspn(text, " ") : 0, text ? text : "");
  return l->version;
}

static const struct floor_engine engine = {.name = "postgres",
                                           .example = "postgres://user:password@host:port/database",
                                           .variable = "DIBS_TEST_POSTGRES",
                                           .strategies = floor_pg_strategies,
                                           FLOOR_CALLS,
                                           FLOOR_BOOKINGS};

int main(int argc, char **argv) {
  return floor_main(&engine, argc, argv);
}

/* SPDX-License-Identifier: MIT */
/*
 * Session locks: lock=advisory.  A name's key is the first 8 bytes of the SHA-256 of SCHEMA.PREFIX:NAME, as a bigint:
 *
 *   pg_advisory_lock(('x' || left(encode(sha256('dibs.dibs_:nightly'), 'hex'), 16))::bit(64)::bigint)
 *
 * Advisory locks are a database's own, and so is the name space.
 */
#include "drivers/postgres_parts.h"
#include "sql/far_lock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static struct dibs__pg_wire *of(struct dibs__sql_wire *wire) {
  return (struct dibs__pg_wire *)wire;
}

static void key(const char hex[65], struct dibs__far_key *to) {
  snprintf(to->text, sizeof to->text, "%.16s", hex);
  to->value = dibs__sql_number((int64_t)strtoull(to->text, NULL, 16));
}

/* A wait may be long; the time for rows stays as it is. */
#define WAITING "SELECT set_config('lock_timeout', '0', true), "

/* Outside of pipeline mode, in which nothing is answered before the packet's end is sent, or after it is not. */
static step_t wait_for(struct dibs__sql_wire *wire, const struct dibs__far_key *at, bool shared) {
  struct dibs__pg_wire *w = of(wire);
  char number[24];
  const char *values[] = {number};
  snprintf(number, sizeof number, "%" PRId64, at->value.number);
  w->lock_got = w->lock_ended = false;
  if (w->piping && PQexitPipelineMode(w->pg) != 1) return dibs__sql_broke(wire, DIBS__SQL_GONE, "it is busy");
  w->piping = false;
  const char *text = shared ? WAITING "pg_advisory_lock_shared($1::bigint)" : WAITING "pg_advisory_lock($1::bigint)";
  bool sent = PQsetnonblocking(w->pg, 1) == 0 && PQsendQueryParams(w->pg, text, 1, NULL, values, NULL, NULL, 0) == 1 &&
              PQflush(w->pg) >= 0;
  return sent ? DIBS__SQL_FINE : dibs__sql_broke(wire, DIBS__SQL_GONE, "the connection was lost");
}

static enum dibs__far_heard heard(struct dibs__sql_wire *wire) {
  struct dibs__pg_wire *w = of(wire);
  if (PQflush(w->pg) < 0 || !PQconsumeInput(w->pg)) return DIBS__FAR_BROKE;
  while (!PQisBusy(w->pg)) {
    PGresult *result = PQgetResult(w->pg);
    if (!result) return w->lock_got ? DIBS__FAR_GOT : w->lock_ended ? DIBS__FAR_AGAIN : DIBS__FAR_BROKE;
    enum dibs__sql_trouble trouble = dibs__pg_trouble(PQresultErrorField(result, PG_DIAG_SQLSTATE));
    if (PQresultStatus(result) == PGRES_TUPLES_OK)
      w->lock_got = true;
    else
      w->lock_ended = trouble == DIBS__SQL_LOCKED || trouble == DIBS__SQL_DEADLOCK;
    PQclear(result);
    if (PQstatus(w->pg) != CONNECTION_OK) return DIBS__FAR_BROKE;
  }
  return DIBS__FAR_NOT_YET;
}

static int socket_of(const struct dibs__sql_wire *wire) {
  return PQsocket(((const struct dibs__pg_wire *)wire)->pg);
}

#define OF_KEY                                                                                                         \
  "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND (classid::bigint << 32 | objid::bigint)"  \
  " = $1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND "

const struct dibs__far_locking dibs__pg_locking = {
    .shared = true,
    .space = "SELECT $1::text",
    /* That a client is gone is noticed while it waits; some of these are not in every version. */
    .ready = "SELECT set_config(name, CASE name WHEN 'client_connection_check_interval' THEN '1000' ELSE '0' END, "
             "false) FROM pg_settings WHERE name IN ('statement_timeout', 'idle_session_timeout', "
             "'client_connection_check_interval')",
    .self = "SELECT pg_backend_pid()",
    .take = "SELECT CASE WHEN pg_try_advisory_lock($1) THEN 1 ELSE 0 END",
    .take_shared = "SELECT CASE WHEN pg_try_advisory_lock_shared($1) THEN 1 ELSE 0 END",
    .drop = "SELECT CASE WHEN pg_advisory_unlock($1) THEN 1 ELSE 0 END",
    .drop_shared = "SELECT CASE WHEN pg_advisory_unlock_shared($1) THEN 1 ELSE 0 END",
    .drop_all = "SELECT pg_advisory_unlock_all()",
    .holders = OF_KEY "granted",
    .waiters = OF_KEY "NOT granted ORDER BY pid",
    .kill = "SELECT CASE WHEN pg_terminate_backend($1::int) THEN 1 ELSE 0 END",
    .ping = "SELECT 1",
    .key = key,
    .wait = wait_for,
    .heard = heard,
    .socket = socket_of,
    .abandon = dibs__pg_close,
};

/* SPDX-License-Identifier: MIT */
#include "dibs/postgres.h"
#include "record_bed.h"

#include <libpq-fe.h>
#include <stdlib.h>
#include <string.h>

static void *open_it(const char *uri) {
  PGconn *pg = PQconnectdb(uri);
  if (PQstatus(pg) != CONNECTION_OK) fail_msg("%s", PQerrorMessage(pg));
  PQclear(PQexec(pg, "SET client_min_messages = error"));
  return pg;
}

static void close_it(void *connection) {
  PQfinish(connection);
}

static long run(void *connection, const char *text, char **cell) {
  PGresult *answer = PQexec(connection, text);
  ExecStatusType status = PQresultStatus(answer);
  if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK) fail_msg("%s: %s", text, PQerrorMessage(connection));
  if (cell && PQntuples(answer) > 0 && !PQgetisnull(answer, 0, 0)) *cell = strdup(PQgetvalue(answer, 0, 0));
  long changed = strtol(PQcmdTuples(answer), NULL, 10);
  PQclear(answer);
  return changed;
}

static dibs_status inside(dibs_store *store, void *connection, dibs_store **out, dibs_error *error) {
  return dibs_inside_postgres(store, connection, out, error);
}

const struct engine engine_postgres = {
    "postgres", "bigint", "text",   "text", "uuid", {"timestamptz", "timestamp(3)", "timestamp(0)"},
    "public",   open_it,  close_it, run,    inside};

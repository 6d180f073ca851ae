/* SPDX-License-Identifier: MIT */
#include "bed.h"

#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *open_raw(const char *uri) {
  PGconn *pg = PQconnectdb(uri);
  if (PQstatus(pg) == CONNECTION_OK) return pg;
  PQfinish(pg);
  return NULL;
}

static void close_raw(void *raw) {
  PQfinish(raw);
}

static int64_t say(void *raw, const char *text) {
  PGresult *answer = PQexec(raw, text);
  ExecStatusType status = PQresultStatus(answer);
  if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK) fail_msg("%s: %s", text, PQerrorMessage(raw));
  int64_t number = PQntuples(answer) > 0 ? strtoll(PQgetvalue(answer, 0, 0), NULL, 10) : 0;
  PQclear(answer);
  return number;
}

static void limit(void *admin, const char *given, const char *user, uint32_t most, char *uri, size_t size) {
  char text[256];
  snprintf(text, sizeof text, "CREATE ROLE %s LOGIN PASSWORD 'full' IN ROLE dibs CONNECTION LIMIT %u", user, most);
  say(admin, text);
  snprintf(uri, size, "postgres://%s:full%s", user, strchr(given, '@'));
}

static void unlimit(void *admin, const char *user) {
  char text[256];
  snprintf(text, sizeof text, "REASSIGN OWNED BY %s TO dibs; DROP OWNED BY %s; DROP ROLE %s", user, user, user);
  say(admin, text);
}

static uint32_t count(void *admin, const char *user) {
  char text[256];
  snprintf(text, sizeof text, "SELECT count(*) FROM pg_stat_activity WHERE usename = '%s'", user);
  return (uint32_t)say(admin, text);
}

static void kill_some(void *admin, const char *user, bool all) {
  char text[256];
  snprintf(text, sizeof text,
           "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = '%s' AND wait_event_type"
           " IS DISTINCT FROM 'Lock' AND query NOT LIKE 'LISTEN%%' ORDER BY backend_start DESC %s",
           user, all ? "" : "LIMIT 1");
  say(admin, text);
}

const struct server server_postgres = {"postgres", true, open_raw, close_raw, say, limit, unlimit, count, kill_some};

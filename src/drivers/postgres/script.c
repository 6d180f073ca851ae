/* SPDX-License-Identifier: MIT */
/* Statements of users in transactions of theirs, on a connection of ours: in one simple query, outside pipeline mode,
 * so that the user can use the connection as well. */
#include "drivers/postgres/postgres_impl.h"

#include <stdio.h>
#include <string.h>

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__pg_wire wire_t;

static sql_rc gone(wire_t *w, enum dibs__sql_trouble trouble) {
  const char *message = trouble == DIBS__SQL_LATE ? "the server does not answer" : PQerrorMessage(w->pg);
  snprintf(w->wire.message, sizeof w->wire.message, "%.*s", (int)strcspn(message, "\n"),
           *message ? message : "the connection was lost");
  w->wire.trouble = trouble;
  w->dead = true;
  return DIBS__SQL_FAILED;
}

static sql_rc refused(wire_t *w, const PGresult *result) {
  const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
  w->wire.trouble = dibs__pg_trouble(PQresultErrorField(result, PG_DIAG_SQLSTATE));
  snprintf(w->wire.message, sizeof w->wire.message, "%s", message ? message : "the server refused it");
  if (w->wire.trouble == DIBS__SQL_GONE) w->dead = true;
  /* idle_in_transaction_session_timeout: the server ended the session before it read the statement. */
  const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
  if (state && strcmp(state, "25P03") == 0) w->wire.undone = true;
  return DIBS__SQL_FAILED;
}

/* The next result, NULL at the end; false: gone. */
static bool next_result(wire_t *w, PGresult **result) {
  while (PQisBusy(w->pg)) {
    int unsent = PQflush(w->pg);
    if (unsent < 0 || !dibs__pg_wait_for(w->pg, true, unsent > 0, w->wire.by) || !PQconsumeInput(w->pg)) return false;
  }
  *result = PQgetResult(w->pg);
  return true;
}

static sql_rc read_results(wire_t *w, bool commits) {
  sql_rc end = DIBS__SQL_OK;
  for (;;) {
    PGresult *result;
    if (!next_result(w, &result))
      return gone(w, dibs__tick_before(dibs__tick_now(), w->wire.by) ? DIBS__SQL_GONE : DIBS__SQL_LATE);
    if (!result) return end;
    ExecStatusType status = PQresultStatus(result);
    if (status == PGRES_FATAL_ERROR || status == PGRES_BAD_RESPONSE) {
      if (end == DIBS__SQL_OK) end = refused(w, result);
    } else if (status == PGRES_COPY_IN || status == PGRES_COPY_OUT || status == PGRES_COPY_BOTH) {
      /* Nobody feeds or reads it. */
      PQclear(result);
      (void)gone(w, DIBS__SQL_ODD);
      snprintf(w->wire.message, sizeof w->wire.message, "COPY FROM STDIN and COPY TO STDOUT are not possible here");
      return DIBS__SQL_FAILED;
    } else if (commits && strcmp(PQcmdStatus(result), "COMMIT") != 0) {
      /* The server answers COMMIT of a failed transaction with ROLLBACK, as a success. */
      w->wire.trouble = DIBS__SQL_REFUSED;
      snprintf(w->wire.message, sizeof w->wire.message, "a statement had failed: the transaction was rolled back");
      end = DIBS__SQL_FAILED;
    }
    PQclear(result);
  }
}

sql_rc dibs__pg_script(struct dibs__sql_wire *wire, const char *sql) {
  wire_t *w = (wire_t *)wire;
  if (w->dead || PQstatus(w->pg) != CONNECTION_OK) {
    w->wire.undone = true;
    return gone(w, DIBS__SQL_GONE);
  }
  if (PQsetnonblocking(w->pg, 1) != 0 || !PQsendQuery(w->pg, sql)) return gone(w, DIBS__SQL_GONE);
  sql_rc end = read_results(w, strcmp(sql, "COMMIT") == 0);
  if (!w->dead) (void)PQsetnonblocking(w->pg, 0);
  return end;
}

/* Of a connection that was lost nobody knows: the next statement finds out. */
bool dibs__pg_in_transaction(const struct dibs__sql_wire *wire) {
  PGTransactionStatusType status = PQtransactionStatus(((const wire_t *)wire)->pg);
  return status == PQTRANS_INTRANS || status == PQTRANS_INERROR || status == PQTRANS_UNKNOWN;
}

/* Plans and the search path as the role has them: the settings of our own statements do not fit those of users.  Two
 * remain: a client that is stopped must not keep the locks of its rows. */
sql_rc dibs__pg_lend(struct dibs__server *store, struct dibs__sql_wire *wire, void **connection) {
  wire_t *w = (wire_t *)wire;
  char text[256];
  if (w->piping && !PQexitPipelineMode(w->pg)) return gone(w, DIBS__SQL_GONE);
  w->piping = false;
  *connection = w->pg;
  snprintf(text, sizeof text,
           "RESET ALL; SET default_transaction_isolation = 'read committed'; SET lock_timeout = %lld; SET "
           "idle_in_transaction_session_timeout = " DIBS__PG_IDLE_MS "; SET client_min_messages = error",
           (long long)store->options.lock_timeout_ms);
  return dibs__pg_script(wire, text);
}

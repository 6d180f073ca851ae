/* SPDX-License-Identifier: MIT */
/* Transactions on a connection that the library opens: dibs/transaction.h. */
#include "dibs/transaction.h"
#include "handle/handle.h"
#include "store/combiner.h"

#include <stdlib.h>

enum { STATEMENTS_MS = 30000 }; /* statements of users may take longer than ours */

struct dibs_transaction {
  dibs_store *store; /* held */
  struct dibs__transactor *connection;
  dibs_store *inside; /* NULL: none has begun */
  bool useless;       /* the connection: the next begin opens another */
};

static dibs_status fail(const dibs_transaction *t, dibs_status status, const struct dibs__result *result,
                        dibs_error *error) {
  return dibs__fail(error, status, "a transaction at %s: %s", t->store->shown,
                    result->text[0] ? result->text : dibs_status_text(status));
}

static void drop_connection(dibs_transaction *t) {
  dibs__core_transactor_close(t->store->core, t->connection);
  t->connection = NULL;
  t->useless = false;
}

static dibs_status connect_transaction(dibs_transaction *t, dibs_error *error) {
  struct dibs__result result;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), DIBS__IO_MS);
  dibs_status status = (dibs_status)dibs__core_transactor_open(t->store->core, by, &t->connection, &result);
  return status == DIBS_OK ? DIBS_OK : fail(t, status, &result, error);
}

static dibs_status transact(dibs_transaction *t, enum dibs__transact what, const char *sql, int64_t ms,
                            dibs_error *error) {
  struct dibs__result result;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), ms);
  dibs_status status = (dibs_status)dibs__core_transact(t->store->core, t->connection, what, sql, by, &result);
  t->useless = t->useless || result.dead;
  return status == DIBS_OK ? dibs__fine(error) : fail(t, status, &result, error);
}

dibs_status dibs_transaction_open(dibs_store *store, dibs_transaction **out, dibs_error *error) {
  if (!out) return dibs__fail(error, DIBS_INVALID, "dibs_transaction_open: the pointer for the transaction is NULL");
  *out = NULL;
  dibs_status status = dibs__enter(store, "dibs_transaction_open", error);
  if (status != DIBS_OK) return status;
  dibs_transaction *t = calloc(1, sizeof *t);
  if (store->outer)
    status = dibs__fail(error, DIBS_INVALID, "dibs_transaction_open: this handle is inside a transaction already");
  else if (!t)
    status = dibs__fail(error, DIBS_NO_MEMORY, "out of memory for a transaction");
  if (status == DIBS_OK) {
    t->store = store;
    status = connect_transaction(t, error);
  }
  if (status == DIBS_OK) {
    atomic_fetch_add(&store->refs, 1);
    *out = t;
  } else {
    free(t);
  }
  dibs__exit(store);
  return status == DIBS_OK ? dibs__fine(error) : status;
}

/* A connection that the server closed meanwhile is only noticed when it is used. */
static dibs_status begin_connected(dibs_transaction *t, dibs_error *error) {
  bool fresh = !t->connection;
  if (fresh) {
    dibs_status status = connect_transaction(t, error);
    if (status != DIBS_OK) return status;
  }
  dibs_status status = transact(t, DIBS__TRANSACT_BEGIN, NULL, DIBS__IO_MS, error);
  if (status == DIBS_OK || !t->useless) return status;
  drop_connection(t);
  return fresh ? status : begin_connected(t, error);
}

dibs_status dibs_transaction_begin(dibs_transaction *t, dibs_error *error) {
  if (!t) return dibs__fail(error, DIBS_INVALID, "dibs_transaction_begin: the transaction is NULL");
  if (t->inside) return dibs__fail(error, DIBS_INVALID, "dibs_transaction_begin: it has begun already");
  dibs_status status = dibs__enter(t->store, "dibs_transaction_begin", error);
  if (status != DIBS_OK) return status;
  if (t->useless) drop_connection(t);
  status = begin_connected(t, error);
  if (status == DIBS_OK) status = dibs__store_inside(t->store, t->connection->connection, &t->inside, error);
  if (status != DIBS_OK && t->connection) drop_connection(t);
  dibs__exit(t->store);
  return status;
}

dibs_store *dibs_transaction_inside(dibs_transaction *t) {
  return t ? t->inside : NULL;
}

void *dibs_transaction_connection(dibs_transaction *t) {
  return t && t->inside ? t->connection->connection : NULL;
}

static dibs_status enter_begun(dibs_transaction *t, const char *call, dibs_error *error) {
  if (!t) return dibs__fail(error, DIBS_INVALID, "%s: the transaction is NULL", call);
  if (!t->inside) return dibs__fail(error, DIBS_INVALID, "%s: no transaction has begun", call);
  return dibs__enter(t->store, call, error);
}

dibs_status dibs_transaction_sql(dibs_transaction *t, const char *statements, dibs_error *error) {
  if (!statements) return dibs__fail(error, DIBS_INVALID, "dibs_transaction_sql: the statements are NULL");
  dibs_status status = enter_begun(t, "dibs_transaction_sql", error);
  if (status != DIBS_OK) return status;
  status = transact(t, DIBS__TRANSACT_SQL, statements, STATEMENTS_MS, error);
  dibs__exit(t->store);
  return status;
}

/* The handle ends before the transaction does: what it remembers of the connection belongs to it. */
static dibs_status end_transaction(dibs_transaction *t, enum dibs__transact what, dibs_error *error) {
  dibs_close(t->inside);
  t->inside = NULL;
  return transact(t, what, NULL, DIBS__IO_MS, error);
}

dibs_status dibs_transaction_commit(dibs_transaction *t, dibs_error *error) {
  dibs_error ignored;
  dibs_status status = enter_begun(t, "dibs_transaction_commit", error);
  if (status != DIBS_OK) return status;
  status = end_transaction(t, DIBS__TRANSACT_COMMIT, error);
  if (status != DIBS_OK && transact(t, DIBS__TRANSACT_ROLLBACK, NULL, DIBS__IO_MS, &ignored) != DIBS_OK)
    drop_connection(t);
  dibs__exit(t->store);
  return status;
}

void dibs_transaction_rollback(dibs_transaction *t) {
  dibs_error ignored;
  if (!t || !t->inside || !dibs__is_of_this_process(t->store)) return;
  if (end_transaction(t, DIBS__TRANSACT_ROLLBACK, &ignored) != DIBS_OK) drop_connection(t);
}

void dibs_transaction_close(dibs_transaction *t) {
  if (!t || !dibs__is_of_this_process(t->store)) return; /* the parent's connection */
  dibs_close(t->inside);
  dibs__core_transactor_close(t->store->core, t->connection);
  dibs__store_drop(t->store);
  free(t);
}

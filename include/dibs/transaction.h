/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TRANSACTION_H
#define DIBS_TRANSACTION_H
/*
 * Transactions of the store's database on a connection that the library opens: calls of dibs and statements of yours
 * take effect together, or not at all.  For a connection that you opened yourself, see "Inside a transaction of yours"
 * in dibs.h.
 *
 * - For sqlite:, postgres: and mysql: stores.  Others answer UNSUPPORTED.
 * - The servers end a transaction that sends nothing for 5 s, because a client that was stopped keeps the locks of its
 *   rows.  Do slow work before dibs_transaction_begin.  (MySQL has no such limit; MariaDB has.)
 * - On SQLite a transaction excludes all other writers of the file, also the renewals of leases.
 * - One thread at a time uses a transaction.
 *
 * The rules of dibs.h also apply here: INVALID of every call, and "a failure of the store".
 */
#include <dibs.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dibs_transaction dibs_transaction;

/* Opens a connection, which serves one transaction after the other.  *transaction is yours, for dibs_transaction_close
 * before dibs_close.  Blocks for I/O.
 * OK; UNSUPPORTED; or a failure of the store. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_transaction_open(dibs_store *store, dibs_transaction **transaction,
                                                            dibs_error *error);

/* Begins a transaction; opens the connection again if it was lost.  Blocks for I/O.
 * OK; INVALID (one has begun already); or a failure of the store. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_transaction_begin(dibs_transaction *transaction, dibs_error *error);

/* Of a transaction that has begun, until it ends; else NULL.  The first is a handle whose calls run in it: records,
 * stock, once, tasks and counters, as with dibs_inside_postgres; do not close it.  The second is its connection, for
 * statements of yours: sqlite3 *, PGconn * or MYSQL *; do not end the transaction with it, nor close it. */
DIBS_EXPORT dibs_store *dibs_transaction_inside(dibs_transaction *transaction);
DIBS_EXPORT void *dibs_transaction_connection(dibs_transaction *transaction);

/* Runs statements of yours, separated by semicolons, in the transaction.  The rows that they select are ignored.  After
 * a failure roll back.  Blocks for I/O.
 * OK; INVALID (no transaction has begun, the database refuses a statement: error->text; or one of them ended the
 * transaction); CONFLICT (the database rolled the transaction back, because of a deadlock for example: begin again); or
 * a failure of the store: DENIED, UNAVAILABLE. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_transaction_sql(dibs_transaction *transaction, const char *statements,
                                                           dibs_error *error);

/* Ends the transaction.  None is begun afterwards, also after a failure.  Blocks for I/O.
 * OK: everything took effect; INVALID (no transaction has begun; the database refused it, and nothing took effect);
 * CONFLICT (nothing took effect: begin again); UNKNOWN (the answer was lost); or a failure of the store: nothing took
 * effect. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_transaction_commit(dibs_transaction *transaction, dibs_error *error);

/* Nothing takes effect.  None begun, and NULL, are fine. */
DIBS_EXPORT void dibs_transaction_rollback(dibs_transaction *transaction);

/* Rolls back, and closes the connection.  NULL is fine. */
DIBS_EXPORT void dibs_transaction_close(dibs_transaction *transaction);

#ifdef __cplusplus
}
#endif
#endif

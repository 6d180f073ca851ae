/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SQL_GUARD_H
#define DIBS_SQL_GUARD_H
/*
 * Guarded writes on any SQL engine, over a wire: stock, once, records in tables of the user's own, and reports.
 *
 * Each function answers all operations that it is given, each on its own, in as few transactions and packets as it can;
 * it begins and commits them itself (inside a user's transaction they are savepoints).  Deadlocks, serialization
 * failures and lost races are tried again until the operation's deadline.  FINE: all are answered, some perhaps
 * UNAVAILABLE.  BROKE: the wire is dead or out of memory, and what still says UNKNOWN may have happened if
 * wire->unsure.
 *
 * (Records in dibs' own table are decided with leases, on rows: guard.c.)
 */
#include "sql/wire.h"
#include "store/table.h"

enum { DIBS__SQL_CLAIM_MAX = 64 };

struct dibs__sql_guard {
  struct dibs__sql_wire *wire;
  const char *prefix; /* of dibs' own tables: "dibs_" */
  uint32_t commits;   /* counted */
  const char *lazy;   /* a statement before COMMIT: this transaction need not wait for the disk.  NULL: none */
  const char *store;  /* for messages: the URI without password */
  struct dibs__said *said;
  char *swept; /* DIBS__SQL_CLAIM_MAX + 1: how far the sweep of claims came; "" to begin with */
};

/* Coalesced takes and gives of one row are decided together, in order; rows in the order of their keys. */
enum dibs__sql_step dibs__sql_stock(struct dibs__sql_guard *guard, struct dibs__stock_op *const ops[], size_t count);
enum dibs__sql_step dibs__sql_once(struct dibs__sql_guard *guard, struct dibs__once_op *const ops[], size_t count);
/* Each in a packet. */
enum dibs__sql_step dibs__sql_report(struct dibs__sql_guard *guard, struct dibs__report_op *const ops[], size_t count);
/* Those with a table. */
enum dibs__sql_step dibs__sql_table_record(struct dibs__sql_guard *guard, struct dibs__record_op *const ops[],
                                           size_t count);
/* Once answers whose time is over, some at a time.  *more: there may be more. */
enum dibs__sql_step dibs__sql_once_sweep(struct dibs__sql_guard *guard, bool *more);
/* Claims of dibs' own stock that are older than they are kept, some at a time, behind guard->swept.  Nothing without
 * that. */
enum dibs__sql_step dibs__sql_claims_sweep(struct dibs__sql_guard *guard, bool *more);

#endif

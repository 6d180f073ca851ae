/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SQL_BATCH_H
#define DIBS_SQL_BATCH_H
/* What every SQL driver does with a batch, whatever its connections are. */
#include "sql/guard.h"

/* How an operation is carried out; a batch is served in this order. */
enum dibs__sql_guarded {
  DIBS__SQL_ON_ROWS, /* decided here, on rows: leases, epochs, records of dibs' own */
  DIBS__SQL_AS_TABLE_RECORD,
  DIBS__SQL_AS_STOCK,
  DIBS__SQL_AS_ONCE,
  DIBS__SQL_AS_REPORT,
  DIBS__SQL_GUARDED
};
enum dibs__sql_guarded dibs__sql_kind_of(const struct dibs__op *op);
/* Carries out those of one kind, but on rows. */
enum dibs__sql_step dibs__sql_guarded(struct dibs__sql_guard *guard, enum dibs__sql_guarded kind,
                                      struct dibs__op *const ops[], size_t count);

/* Clears what answers point to, before a batch begins. */
void dibs__sql_begin_answer(struct dibs__op *op);
/* Gives back what an answer that no longer stands had allocated. */
void dibs__sql_unanswer(struct dibs__op *op, dibs__status status);

/* May be part of a group: what can be undone by a savepoint of ours. */
bool dibs__sql_joins_groups(const struct dibs__op *op);
bool dibs__sql_first_of_group(struct dibs__op *const ops[], size_t at);

#endif

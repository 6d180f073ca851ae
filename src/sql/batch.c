/* SPDX-License-Identifier: MIT */
#include "sql/batch.h"

#include <stdlib.h>

/* A group is one transaction on rows; the others make transactions of their own. */
enum dibs__sql_guarded dibs__sql_kind_of(const struct dibs__op *op) {
  if (op->group) return DIBS__SQL_ON_ROWS;
  switch (op->family) {
  case DIBS__FAM_STOCK:
    return DIBS__SQL_AS_STOCK;
  case DIBS__FAM_ONCE:
    return DIBS__SQL_AS_ONCE;
  case DIBS__FAM_REPORT:
    return DIBS__SQL_AS_REPORT;
  case DIBS__FAM_RECORD:
    return ((const struct dibs__record_op *)op)->table ? DIBS__SQL_AS_TABLE_RECORD : DIBS__SQL_ON_ROWS;
  default:
    return DIBS__SQL_ON_ROWS;
  }
}

/* The head is the first member of each, so the array of heads is the array of what they head. */
enum dibs__sql_step dibs__sql_guarded(struct dibs__sql_guard *guard, enum dibs__sql_guarded kind,
                                      struct dibs__op *const ops[], size_t count) {
  const void *all = ops;
  switch (kind) {
  case DIBS__SQL_AS_TABLE_RECORD:
    return dibs__sql_table_record(guard, (struct dibs__record_op *const *)all, count);
  case DIBS__SQL_AS_STOCK:
    return dibs__sql_stock(guard, (struct dibs__stock_op *const *)all, count);
  case DIBS__SQL_AS_ONCE:
    return dibs__sql_once(guard, (struct dibs__once_op *const *)all, count);
  case DIBS__SQL_AS_REPORT:
    return dibs__sql_report(guard, (struct dibs__report_op *const *)all, count);
  default:
    return DIBS__SQL_FINE;
  }
}

/* What the operation's answer points to is taken off it; to be freed. */
static void *take_answer(struct dibs__op *op) {
  void *got = NULL;
  if (op->family == DIBS__FAM_RECORD) {
    struct dibs__record_op *record = (struct dibs__record_op *)op;
    got = record->got;
    record->got = NULL;
    record->got_len = 0;
  } else if (op->family == DIBS__FAM_ONCE) {
    struct dibs__once_op *once = (struct dibs__once_op *)op;
    got = once->got;
    once->got = NULL;
    once->got_len = 0;
  } else if (op->family == DIBS__FAM_REPORT) {
    struct dibs__report_op *report = (struct dibs__report_op *)op;
    got = report->got;
    report->got = NULL;
    report->got_count = 0;
  }
  return got;
}

void dibs__sql_begin_answer(struct dibs__op *op) {
  (void)take_answer(op);
}

void dibs__sql_unanswer(struct dibs__op *op, dibs__status status) {
  free(take_answer(op));
  op->status = status;
}

bool dibs__sql_joins_groups(const struct dibs__op *op) {
  if (op->family == DIBS__FAM_RECORD) return !((const struct dibs__record_op *)op)->table;
  return op->family == DIBS__FAM_LEASE;
}

bool dibs__sql_first_of_group(struct dibs__op *const ops[], size_t at) {
  for (size_t i = 0; i < at; i++)
    if (ops[i]->group == ops[at]->group) return false;
  return true;
}

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
  default:
    return DIBS__SQL_FINE;
  }
}

static char **answer_of(struct dibs__op *op, uint32_t **len) {
  if (op->family == DIBS__FAM_RECORD) {
    struct dibs__record_op *record = (struct dibs__record_op *)op;
    *len = &record->got_len;
    return &record->got;
  }
  if (op->family == DIBS__FAM_ONCE) {
    struct dibs__once_op *once = (struct dibs__once_op *)op;
    *len = &once->got_len;
    return &once->got;
  }
  return NULL;
}

void dibs__sql_begin_answer(struct dibs__op *op) {
  uint32_t *len;
  char **got = answer_of(op, &len);
  if (!got) return;
  *got = NULL;
  *len = 0;
}

void dibs__sql_unanswer(struct dibs__op *op, dibs__status status) {
  uint32_t *len;
  char **got = answer_of(op, &len);
  if (got) free(*got);
  dibs__sql_begin_answer(op);
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

/* SPDX-License-Identifier: MIT */
/* Until they are written. */
#include "sql/guard.h"

__attribute__((weak)) enum dibs__sql_step dibs__sql_stock(struct dibs__sql_guard *guard,
                                                          struct dibs__stock_op *const ops[], size_t count) {
  (void)guard;
  for (size_t i = 0; i < count; i++) ops[i]->op.status = DIBS_UNSUPPORTED;
  return DIBS__SQL_FINE;
}

__attribute__((weak)) enum dibs__sql_step dibs__sql_table_record(struct dibs__sql_guard *guard,
                                                                 struct dibs__record_op *const ops[], size_t count) {
  (void)guard;
  for (size_t i = 0; i < count; i++) ops[i]->op.status = DIBS_UNSUPPORTED;
  return DIBS__SQL_FINE;
}

__attribute__((weak)) enum dibs__sql_step dibs__sql_claims_sweep(struct dibs__sql_guard *guard, bool *more) {
  (void)guard;
  *more = false;
  return DIBS__SQL_FINE;
}

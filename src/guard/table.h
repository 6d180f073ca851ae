/* SPDX-License-Identifier: MIT */
#ifndef DIBS_GUARD_TABLE_H
#define DIBS_GUARD_TABLE_H
/* A declared table: what a caller holds is what operations point to. */
#include "dibs.h"
#include "store/table.h"

static inline const struct dibs__table *dibs__table_of(const dibs_table *table) {
  return table;
}

#endif

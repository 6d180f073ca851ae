/* SPDX-License-Identifier: MIT */
/* Tables of the user's: counted.  One allocation each, names included, made by whoever declares it. */
#include "store/table.h"

#include <stdlib.h>

const struct dibs__table *dibs__table_hold(const struct dibs__table *table) {
  /* The count is the one thing about it that changes. */
  if (table) atomic_fetch_add(&((struct dibs__table *)(uintptr_t)table)->refs, 1);
  return table;
}

void dibs__table_drop(const struct dibs__table *table) {
  struct dibs__table *mine = (struct dibs__table *)(uintptr_t)table;
  if (mine && atomic_fetch_sub(&mine->refs, 1) == 1) free(mine);
}

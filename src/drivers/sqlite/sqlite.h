/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_SQLITE_SQLITE_H
#define DIBS_DRIVERS_SQLITE_SQLITE_H
/* The SQLite driver, and what tests may do to a store of it that no caller can.  Any thread. */
#include "store/store.h"

extern const struct dibs__driver dibs__sqlite_driver;

/* Moves this open's reading of the store's clock by `ms` forward.  Other opens of the file keep theirs. */
void dibs__sqlite_skew(struct dibs__dstore *store, int64_t ms);

/* Leaves `left` fences in the bucket's epoch. */
dibs__status dibs__sqlite_use_up(struct dibs__session *session, uint16_t bucket, uint32_t left, dibs__tick by,
                                 struct dibs__result *result);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_MEMORY_MEMORY_H
#define DIBS_DRIVERS_MEMORY_MEMORY_H
/*
 * The memory driver, and what tests may do to one of its stores that no caller can: move its clock, kill a session as
 * if its process had died, lose its memory, use up its fences.  `store` is a store of this driver (of a chain, the
 * innermost).  Any thread.
 *
 *   memory:       private to the open that made it; ends with it
 *   memory:NAME   one store for all opens of that name in this process, until the process ends
 */
#include "store/store.h"

extern const struct dibs__driver dibs__memory_driver;

/* Moves the store's clock forward for all its opens, and sends them RECHECK. */
void dibs__memory_skew(struct dibs__dstore *store, int64_t ms);

/* This open's session is gone as after kill -9: its waiters stay until an operation finds them dead. */
void dibs__memory_kill(struct dibs__dstore *store);

/* A restart that lost all leases, waiters and recorded breaks.  As its own anchor the store keeps its epochs and
 * records: a new incarnation begins at once, in the next epoch of every bucket. */
void dibs__memory_forget(struct dibs__dstore *store);

/* Leaves `left` fences in the bucket's epoch. */
void dibs__memory_use_up(struct dibs__dstore *store, uint16_t bucket, uint32_t left);

#endif

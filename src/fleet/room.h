/* SPDX-License-Identifier: MIT */
#ifndef DIBS_FLEET_ROOM_H
#define DIBS_FLEET_ROOM_H
/*
 * What people ask of a store, and of all who use it: how its tiers stand, flags, moves by hand, what is counted.  This
 * room stands above the lease room and the tier room: it asks a store of tiers by operations of DIBS__FAM_TIERS.
 */
#include "lease/room.h"
#include "tier/tiers.h"

/* A question, which outlives a caller that leaves before its answer. */
struct dibs__fleet_ask {
  union {
    struct dibs__op op;
    struct dibs__tiers_op tiers;
    struct dibs__anchor_op anchor;
    struct dibs__record_op record;
  };
  dibs_store *store;
  _Atomic uint32_t refs;
  dibs__word answered;
  char name[128]; /* what tiers.name may point to */
};

/* Of the caller; for dibs__fleet_drop.  NULL: no memory. */
struct dibs__fleet_ask *dibs__fleet_make(dibs_store *store, uint16_t family);
void dibs__fleet_drop(struct dibs__fleet_ask *ask); /* NULL is fine */
/* Asks, and waits for the answer: OK, or what it came to, with words. */
dibs_status dibs__fleet_carry(struct dibs__fleet_ask *ask, uint16_t verb, uint16_t bucket, const char *what,
                              dibs_error *error);
/* Between dibs__enter and dibs__exit: is it of several tiers?  Else UNSUPPORTED, with words. */
dibs_status dibs__fleet_tiered(dibs_store *store, const char *what, dibs_error *error);
/* How things stand: ask->tiers.got.  *ask NULL unless OK. */
dibs_status dibs__fleet_view(dibs_store *store, const char *what, struct dibs__fleet_ask **ask, dibs_error *error);

#endif

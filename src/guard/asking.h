/* SPDX-License-Identifier: MIT */
#ifndef DIBS_GUARD_ASKING_H
#define DIBS_GUARD_ASKING_H
/*
 * A question of a guarded write: an operation with a copy of all that it points to, counted, because it may travel on
 * when its caller has left.
 *
 *   make -> keep the texts, fill the operation -> carry -> look at the answers -> drop
 *
 * One that was carried is not carried again: make another.
 */
#include "lease/room.h"
#include "store/table.h"

struct dibs__asking {
  union { /* first: an operation is its question */
    struct dibs__op op;
    struct dibs__record_op record;
    struct dibs__stock_op stock;
    struct dibs__once_op once;
  };
  dibs_store *store;
  const struct dibs__table *table; /* held; NULL: dibs' own */
  _Atomic uint32_t refs;
  dibs__word answered;
  size_t used, room;
  char memory[]; /* of the texts */
};

/* For an operation of `family`, with room for texts of `room` bytes and a NUL behind each of at most 8.  NULL: no
 * memory. */
struct dibs__asking *dibs__asking_make(dibs_store *store, uint16_t family, const struct dibs__table *table,
                                       size_t room);
/* What the operation points to from now on. */
dibs__str dibs__asking_keep(struct dibs__asking *asking, const char *p, size_t len);
/* Frees what an answer had allocated, unless it was taken over (got = NULL).  NULL is fine. */
void dibs__asking_drop(struct dibs__asking *asking);

/* Asks, and waits until `by` (and never longer than a call of the core may take).  The operation's key tells the
 * bucket. TIMEOUT and MOVED come back as UNAVAILABLE.  UNKNOWN: no answer in time, or the store's own; if it was not
 * answered the operation is somebody else's now and must not be looked at: see dibs__asking_is_answered. */
dibs_status dibs__asking_carry(struct dibs__asking *asking, uint16_t verb, uint16_t flags, uint32_t lane,
                               dibs__tick by);
static inline bool dibs__asking_is_answered(struct dibs__asking *asking) {
  return atomic_load(&asking->answered) != 0;
}

/* Is the key fit, and does the store serve the family?  `what`: "record", continues "the key of the". */
dibs_status dibs__asking_check(dibs_store *store, uint16_t family, const char *what, const char *key,
                               dibs_error *error);
/* The grant that the handle had, alive or not.  *lost: it is known to be over.  INVALID: it never had a fence. */
dibs_status dibs__asking_grant(dibs_lease *lease, dibs__id *id, dibs__fence *fence, bool *lost, dibs_error *error);

#endif

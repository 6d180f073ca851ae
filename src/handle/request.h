/* SPDX-License-Identifier: MIT */
#ifndef DIBS_HANDLE_REQUEST_H
#define DIBS_HANDLE_REQUEST_H
/*
 * A request: one operation with a copy of all that it points to.  It is counted, because it may still be in flight when
 * its caller has left.  Every feature uses one to reach the store, except for acquiring, renewing and releasing: those
 * belong to a grant.
 *
 *   make -> keep the texts, fill the operation -> carry -> read the answers -> drop
 *
 * A request that was carried is not carried again: make another.
 */
#include "handle/handle.h"
#include "store/counter.h"
#include "store/engine.h"
#include "store/run.h"
#include "store/shared.h"
#include "store/task.h"
#include "store/values.h"

struct dibs__request {
  union { /* first: an operation is its request */
    struct dibs__op op;
    struct dibs__lease_op lease; /* BREAK */
    struct dibs__anchor_op anchor;
    struct dibs__record_op record;
    struct dibs__stock_op stock;
    struct dibs__once_op once;
    struct dibs__tiers_op tiers;
    struct dibs__task_op task;
    struct dibs__run_op run;
    struct dibs__counter_op counter;
    struct dibs__shared_op shared;
    struct dibs__engine_op engine;
  };
  dibs_store *store;
  const struct dibs__table *table; /* held; NULL: dibs' own */
  _Atomic uint32_t refs;
  dibs__word answered;
  struct dibs__due_call due; /* of dibs__request_start */
  void (*done)(struct dibs__request *, dibs_status);
  void *user;
  size_t used, capacity;
  _Alignas(max_align_t) char memory[]; /* of arrays and texts */
};

/* For an operation of `family`, with `capacity` bytes for texts and a NUL behind each of at most 8.  NULL: no memory.
 */
struct dibs__request *dibs__request_make(dibs_store *store, uint16_t family, const struct dibs__table *table,
                                         size_t capacity);
/* What the operation points to from now on. */
dibs__str dibs__request_keep(struct dibs__request *request, const char *p, size_t len);
/* Zeroed memory for an array to which the operation points: count it into `capacity`. */
void *dibs__request_array(struct dibs__request *request, size_t size);
/* Frees what an answer had allocated, unless it was taken over (got = NULL).  NULL is fine. */
void dibs__request_drop(struct dibs__request *request);

/* Sends it and waits until `by`, and never longer than a call of the core may take.  The caller has set op.lane and
 * op.flags where they are not 0, and op.bucket of a family whose operations have no key.  TIMEOUT and MOVED come back
 * as UNAVAILABLE. UNKNOWN: no answer in time, or the store's own; if it was not answered, another thread uses the
 * operation and it must not be read: see dibs__request_is_answered. */
dibs_status dibs__request_carry(struct dibs__request *request, uint16_t verb, dibs__tick by);
/* The same, repeated after UNAVAILABLE until `by`: the store may come back, or a full server may have a connection
 * again.  Not inside a transaction of the user's. */
dibs_status dibs__request_carry_until(struct dibs__request *request, uint16_t verb, dibs__tick by);
/* Sends it and returns at once.  `done` is called exactly once, later, where the callbacks of leases are, with the
 * status that dibs__request_carry would have returned; then the answers may be read, and the caller drops the request.
 * OK; NO_MEMORY: no thread could be started, and `done` is never called. */
dibs_status dibs__request_start(struct dibs__request *request, uint16_t verb, dibs__tick by,
                                void (*done)(struct dibs__request *request, dibs_status status), void *user);
/* Before the next try, of which `nth` were made; not beyond `by`. */
void dibs__request_pause(uint32_t nth, dibs__tick by);
static inline bool dibs__request_is_answered(struct dibs__request *request) {
  return atomic_load(&request->answered) != 0;
}

/* What helps when the store does not serve a family, for people. */
const char *dibs__database_advice(dibs_store *store);
/* Is the key fit, and does the store serve the family?  `what`: "record", continues "the key of the". */
dibs_status dibs__request_check(dibs_store *store, uint16_t family, const char *what, const char *key,
                                dibs_error *error);

#endif

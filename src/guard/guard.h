/* SPDX-License-Identifier: MIT */
#ifndef DIBS_GUARD_GUARD_H
#define DIBS_GUARD_GUARD_H
/*
 * Once, step by step: for dibs_once, and for `dibs once`, which waits and works in a way of its own.
 *
 *   read -> the lease of dibs__once_name -> begin, which reads again and shuts older attempts out -> the work ->
 *   store -> release
 *
 * An attempt that ends without an answer leaves.  Each step may block for I/O and writes `error` unless it answers OK.
 */
#include "dibs.h"
#include "store/engine.h"
#include "store/values.h"

#include <stdbool.h>

struct dibs__once_answer {
  char *data; /* malloc'd, NUL behind the last byte; NULL: none */
  size_t length;
  int64_t age_ms, left_ms;
};

enum { DIBS__ONCE_TRIES = 3 }; /* a store whose outcome is unknown is asked again so often */
#define DIBS__ONCE_KEEP_MS INT64_C(86400000)
#define DIBS__ONCE_KEEP_MAX_MS (INT64_C(3653) * 86400000)

/* The name of the key's lease: "once:KEY", its end replaced by a hash where that is too long. */
void dibs__once_name(const char *key, char name[DIBS_NAME_MAX + 1]);
/* INVALID, or UNSUPPORTED. */
dibs_status dibs__once_check(dibs_store *store, const char *key, dibs_error *error);
/* OK, NOT_FOUND. */
dibs_status dibs__once_read(dibs_store *store, const char *key, struct dibs__once_answer *answer, dibs_error *error);
/* OK; REPLAY with the answer; STALE. */
dibs_status dibs__once_begin(dibs_store *store, const char *key, dibs_lease *lease, struct dibs__once_answer *answer,
                             dibs_error *error);
/* OK; REPLAY with the answer that somebody else stored; STALE, LOST: it was not kept.  UNKNOWN: it may be. */
dibs_status dibs__once_store(dibs_store *store, const char *key, dibs_lease *lease, int64_t keep_ms, const char *data,
                             size_t length, struct dibs__once_answer *answer, dibs_error *error);
/* As well as it can. */
void dibs__once_leave(dibs_store *store, const char *key, dibs_lease *lease);

/*
 * The asynchronous form of dibs_stock_*, for programs with an event loop.  It sends one request; after UNKNOWN and
 * UNAVAILABLE the caller repeats it with the same claim.  `done` is called once, in dibs_dispatch or in the thread of
 * callbacks; what it gets is valid during the call.  Strategies that use a lease are not supported.
 * OK; or a failure, and `done` is never called.
 */
typedef void (*dibs__stock_fn)(dibs_status status, const dibs_stock_result *result, const dibs_error *error,
                               void *user);
dibs_status dibs__stock_start(dibs_store *store, enum dibs__stock_verb verb, const char *key, int64_t amount,
                              const dibs_stock_options *options, dibs__stock_fn done, void *user, dibs_error *error);

/* Calls `fn` for up to `most` stocks (DIBS__STOCK_ROWS at most) of dibs' own table, by key in byte order: those whose
 * keys begin with `prefix` and are larger than `after`; either may be NULL.  Blocks for I/O.
 * OK; INVALID; or a failure of the store. */
typedef void (*dibs__stock_row_fn)(const char *key, int64_t used, int64_t limit, void *user);
dibs_status dibs__stock_list(dibs_store *store, const char *prefix, const char *after, uint32_t most,
                             dibs__stock_row_fn fn, void *user, dibs_error *error);

/* The id and the fence of a lease that a client elsewhere holds. */
struct dibs__proof {
  dibs__id id;
  dibs__fence fence;
};
/* The same for records.  `value`: of a put.  `proof` in place of options.lease; may be NULL.  `record`
 * is NULL unless it was read. */
typedef void (*dibs__record_fn)(dibs_status status, const dibs_record *record, const dibs_record_result *result,
                                const dibs_error *error, void *user);
dibs_status dibs__record_start(dibs_store *store, enum dibs__record_verb verb, const char *key, const dibs_value *value,
                               const dibs_record_options *options, const struct dibs__proof *proof,
                               dibs__record_fn done, void *user, dibs_error *error);

/* One step of once, for programs with an event loop: READ, BEGIN, STORE or LEAVE.  Of READ the lease is NULL.  It sends
 * one request; the caller repeats BEGIN and STORE after UNKNOWN.  `answer` is valid during the call; who takes its data
 * sets that to NULL. */
typedef void (*dibs__once_step_fn)(dibs_status status, struct dibs__once_answer *answer, const dibs_error *error,
                                   void *user);
dibs_status dibs__once_start(dibs_store *store, enum dibs__once_verb verb, const char *key, dibs_lease *lease,
                             int64_t keep_ms, const char *data, size_t length, dibs__once_step_fn done, void *user,
                             dibs_error *error);

/* What the store keeps, as bits DIBS__FAM_, and its capabilities, DIBS__CAP_: as they were when it was opened. */
void dibs__guard_keeps(const dibs_store *store, uint32_t *families, uint32_t *caps);

/* What the store's driver sees of its servers within `ms`: `row` is called for each finding, whose texts are valid
 * during the call.  UNSUPPORTED: the driver says nothing of them. */
typedef void dibs__finding_fn(const struct dibs__finding *finding, void *user);
dibs_status dibs__guard_engine(dibs_store *store, int64_t ms, dibs__finding_fn *row, void *user, dibs_error *error);

/* A declared table: what a caller holds is what operations point to. */

static inline const struct dibs__table *dibs__table_of(const dibs_table *table) {
  return table;
}

#endif

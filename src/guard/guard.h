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

/* A declared table: what a caller holds is what operations point to. */

static inline const struct dibs__table *dibs__table_of(const dibs_table *table) {
  return table;
}

#endif

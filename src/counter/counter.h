/* SPDX-License-Identifier: MIT */
#ifndef DIBS_COUNTER_LIST_H
#define DIBS_COUNTER_LIST_H
/* What programs on this library use beside dibs/counter.h. */
#include "dibs/counter.h"

#include <stdbool.h>

/* As dibs_counter_list, from the key after `after` on (NULL: from the first). */
dibs_status dibs__counter_list(dibs_store *store, const char *prefix, const char *after, dibs_counter_fn fn, void *user,
                               dibs_error *error);

/* What waits in the fast store, as the flusher of this process saw it last, of dibs' own table and those that it
 * writes. */
struct dibs__counter_lag {
  int64_t lag_ms;   /* the age of the oldest sum that is not in the database; 0: there is none */
  uint64_t waiting; /* batches of sums */
  uint64_t refused; /* sums that the database has refused, which wait for somebody */
  int64_t age_ms;   /* how long ago it looked */
};
/* From now on this process writes shared sums of dibs' own table, although it may add none.  false: the store has no
 * fast store, or there is no memory. */
bool dibs__counter_serve(dibs_store *store);
/* false: this process writes none, or has not looked yet. */
bool dibs__counter_lag(dibs_store *store, struct dibs__counter_lag *lag);

#endif

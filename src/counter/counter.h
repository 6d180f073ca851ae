/* SPDX-License-Identifier: MIT */
#ifndef DIBS_COUNTER_LIST_H
#define DIBS_COUNTER_LIST_H
/* What programs on this library use beside dibs/counter.h. */
#include "dibs/counter.h"

/* As dibs_counter_list, from the key after `after` on (NULL: from the first). */
dibs_status dibs__counter_list(dibs_store *store, const char *prefix, const char *after, dibs_counter_fn fn, void *user,
                               dibs_error *error);

#endif

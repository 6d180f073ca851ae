/* SPDX-License-Identifier: MIT */
#ifndef DIBS_POSTGRES_H
#define DIBS_POSTGRES_H
#include <dibs.h>

#ifdef __cplusplus
extern "C" {
#endif

struct pg_conn; /* PGconn of libpq */

/* See "Inside a transaction of yours" in dibs.h. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_inside_postgres(dibs_store *store, struct pg_conn *connection,
                                                           dibs_store **inside, dibs_error *error);

#ifdef __cplusplus
}
#endif
#endif

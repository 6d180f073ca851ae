/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SQLITE_H
#define DIBS_SQLITE_H
#include <dibs.h>

#ifdef __cplusplus
extern "C" {
#endif

struct sqlite3; /* sqlite3 of SQLite */

/* See "Inside a transaction of yours" in dibs.h. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_inside_sqlite(dibs_store *store, struct sqlite3 *connection,
                                                         dibs_store **inside, dibs_error *error);

#ifdef __cplusplus
}
#endif
#endif

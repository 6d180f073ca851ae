/* SPDX-License-Identifier: MIT */
#ifndef DIBS_MYSQL_H
#define DIBS_MYSQL_H
#include <dibs.h>

#ifdef __cplusplus
extern "C" {
#endif

struct st_mysql; /* MYSQL of MariaDB Connector/C */

/* See "Inside a transaction of yours" in dibs.h. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_inside_mysql(dibs_store *store, struct st_mysql *connection,
                                                        dibs_store **inside, dibs_error *error);

#ifdef __cplusplus
}
#endif
#endif

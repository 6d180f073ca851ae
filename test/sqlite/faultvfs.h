/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_SQLITE_FAULTVFS_H
#define DIBS_TEST_SQLITE_FAULTVFS_H
/*
 * SQLite's file layer with failures: the nth call that can fail does, once or from then on.  Stands before SQLite's own
 * as the default while it is installed.  One thread at a time arms it.
 */
#include <stdbool.h>

void faultvfs_install(void);
void faultvfs_remove(void);
/* The nth call from now on fails; with `for_ever` all after it too.  0: none. */
void faultvfs_arm(unsigned nth, bool for_ever);
/* How many calls failed since arm. */
unsigned faultvfs_failed(void);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_SQLITE_FAULTVFS_H
#define DIBS_TEST_SQLITE_FAULTVFS_H
/*
 * SQLite's file layer with failures: the nth call that can fail does, once or from then on.  While it is installed, it
 * is the default layer above SQLite's own.  One thread at a time arms it.
 */
#include <stdbool.h>

void faultvfs_install(void);
void faultvfs_remove(void);
/* The nth call from now on fails; with `for_ever` all later ones, too.  0: none. */
void faultvfs_arm(unsigned nth, bool for_ever);
/* How many calls have failed since faultvfs_arm(). */
unsigned faultvfs_failed(void);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_SQLITE_POWERVFS_H
#define DIBS_TEST_SQLITE_POWERVFS_H
/*
 * SQLite's file layer on a disk that loses power.  While it is installed, it is the default layer above SQLite's own.
 *
 * Every file has two contents: what programs read (the real file), and what the disk has for certain: the state at its
 * last sync.  Between the two are the writes that nobody has synced.  When the power fails, the disk has any of them:
 * none, all, the first ones, some in any order, and of one write only some sectors.  A file or a rename that was not
 * followed by a sync of its folder may be missing.
 *
 * The program must be linked with --wrap for fsync, renameat2 and dibs__boot_id: dibs syncs and renames a new file
 * itself, and reads another boot after each failure.
 *
 *   power_install(path);                      the database; its folder is the disk
 *   power_arm(n);                             the power fails at the nth call that changes the disk
 *   ...                                       threads use the store; power_hold() says whether there is still power
 *   power_restore(path);                      all handles are closed: the files are what the disk had; another boot
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void power_install(const char *path);
void power_remove(void);
void power_seed(uint64_t seed);

/* The nth write, truncation, sync or creation from now on finds no power.  0: none. */
void power_arm(unsigned nth);
/* It fails now, if it has not failed yet. */
void power_fail(void);
/* True: there is power, and it does not fail before power_let_go().  Note acknowledgements in between. */
bool power_hold(void);
void power_let_go(void);
void power_restore(void);

/* Syncs are answered and not done, as by a disk that lies. */
void power_lie(bool lies);

/* Bytes that a failure now could lose, of all files of the database. */
size_t power_unsynced(void);
/* Renames of a file with unsynced bytes. */
unsigned power_careless(void);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_SQLITE_PLACE_H
#define DIBS_DRIVERS_SQLITE_PLACE_H
/*
 * Where the embedded database is, and whether it may be there.
 *
 *   sqlite:                    the standard place: /var/lib/dibs/dibs.db for root (whatever its environment says, so
 * that a shell and a cron job mean the same store), else $XDG_STATE_HOME/dibs/dibs.db, else
 *                              ~/.local/state/dibs/dibs.db.  Its folder is made, for its owner alone.
 *   sqlite:///path, sqlite:p   that file.  Its folder must be there: one that was made because a file system was not
 *                              mounted yet would be another store, with leases of its own.
 *   ?mode=0660                 permissions of the files that are made, octal; a folder that is made gets them too, with
 *                              x where there is r or w.  Exactly these, whatever the umask.
 *   ?fs=any                    also on FUSE, at the user's risk.
 *
 * Network and cluster file systems are refused: there locks and shared memory of one machine do not reach the others.
 */
#include "store/uri.h"

struct dibs__place {
  char *path;   /* of the database: absolute; after dibs__place_prepare without links */
  char *folder; /* that it is in */
  bool standard;
  bool any_fs;
  uint32_t file_mode, folder_mode;
};

/* Reads the URI; touches nothing.  INVALID (mode, fs, a host, no path to be had), NO_MEMORY.  On OK the place is for
 * dibs__place_free.  The caller checks that the URI has no other parameters than it knows. */
dibs__status dibs__place_resolve(const struct dibs__uri *uri, struct dibs__place *place, struct dibs__said *said);
void dibs__place_free(struct dibs__place *place);

/* The standard place: makes its folder and the folders above it, refuses one that is a link, somebody else's, or open
 * to others.  Elsewhere: looks that the folder is there.  Then resolves links.  DENIED INVALID UNAVAILABLE NO_MEMORY.
 */
dibs__status dibs__place_make_folder(struct dibs__place *place, struct dibs__said *said);
/* UNSUPPORTED: a file system that can't be trusted with it, and why. */
dibs__status dibs__place_check_fs(const struct dibs__place *place, struct dibs__said *said);
/* The three above, one after another. */
dibs__status dibs__place_prepare(const struct dibs__uri *uri, struct dibs__place *place, struct dibs__said *said);

/* Under the gate of the side file: makes an empty database with its permissions, if there is none.  *made: it was not
 * there.  (SQLite gives its own files beside it the same.)  DENIED INVALID UNAVAILABLE. */
dibs__status dibs__place_make_file(const struct dibs__place *place, bool *made, struct dibs__said *said);

/* Pure.  Octal, three digits and perhaps a zero before them; its owner may read and write, nobody may execute, not
 * everybody may write: else false. */
bool dibs__place_mode(const char *text, uint32_t *mode);
/* Pure.  Why a file system whose statfs() magic this is can't be used, or NULL: "NFS", ...  *perhaps: ?fs=any helps. */
const char *dibs__place_fs_flaw(uint64_t magic, bool *perhaps);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_SQLITE_PATH_H
#define DIBS_DRIVERS_SQLITE_PATH_H
/*
 * Where the embedded database is, and whether it may be there.
 *
 *   sqlite:                    the standard path: /var/lib/dibs/dibs.db for root (whatever its environment has, so that
 *                              a shell and a cron job use the same store), else $XDG_STATE_HOME/dibs/dibs.db, else
 *                              ~/.local/state/dibs/dibs.db.  Its folder is made, for its owner alone.
 *   sqlite:///path, sqlite:p   that file.  Its folder must exist: a folder made because a file system was not mounted
 *                              yet would have another store, with leases of its own.
 *   ?mode=0660                 permissions of the files that are made, octal; a folder that is made gets them too, with
 *                              x where there is r or w.  Exactly these, whatever the umask.
 *   ?fs=any                    also on FUSE, at the user's risk.
 *
 * Network and cluster file systems are refused: there locks and shared memory of one machine do not reach the others.
 */
#include "store/uri.h"

struct dibs__location {
  char *path;   /* of the database: absolute; after dibs__location_prepare without links */
  char *folder; /* the folder of the database */
  bool standard;
  bool any_fs;
  uint32_t file_mode, folder_mode;
};

/* Reads the URI; touches nothing.  INVALID (mode, fs, a host, no path possible), NO_MEMORY.  On OK the caller frees the
 * location with dibs__location_free, and checks that the URI has no other parameters than it knows. */
dibs__status dibs__location_resolve(const struct dibs__uri *uri, struct dibs__location *location,
                                    struct dibs__result *result);
void dibs__location_free(struct dibs__location *location);

/* The standard path: makes its folder and the folders above it; refuses a folder that is a link, another user's, or
 * open to others.  Another path: checks that the folder exists.  Then resolves links.  DENIED INVALID UNAVAILABLE
 * NO_MEMORY. */
dibs__status dibs__location_make_folder(struct dibs__location *location, struct dibs__result *result);
/* The three above, one after another. */
dibs__status dibs__location_prepare(const struct dibs__uri *uri, struct dibs__location *location,
                                    struct dibs__result *result);

/* Pure.  Octal, three digits and perhaps a zero before them; the owner may read and write, nobody may execute, others
 * may not write: else false. */
bool dibs__location_mode(const char *text, uint32_t *mode);
/* Pure.  Why a file system whose statfs() magic this is can't be used, or NULL: "NFS", ...  *perhaps: ?fs=any helps. */
const char *dibs__location_fs_flaw(uint64_t magic, bool *perhaps);

#endif

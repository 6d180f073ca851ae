/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TASK_CRONTAB_KEPT_H
#define DIBS_TASK_CRONTAB_KEPT_H
/*
 * The crontab of a fleet, in the record crontab:NAME of the store; and the names of all these fleets, in the record
 * crontabs.  It is one of two:
 *
 *   a copy   of the file that the nodes of the fleet last read, for people and tools that have no file
 *   stored   for nodes without a file, which read it here: somebody put it there (dibs__crontab_put)
 *
 * A copy never replaces a stored one, and the other way round.  All calls block for I/O and answer as those of records.
 */
#include "dibs/cron.h"

#include <stdbool.h>

struct dibs__crontab_kept {
  char zone[128], version[DIBS_VERSION_MAX + 1];
  bool stored;
  char *text; /* malloc'd; with a NUL after it */
  size_t length;
};

/* Of a node, its copy.  CONFLICT: there is a stored one. */
dibs_status dibs__crontab_keep(dibs_store *store, const char *name, const dibs_cron_table *table, dibs_error *error);
/* Stores it in place of the one with this version; NULL: in place of none.  CONFLICT: there is another one, or a copy;
 * or NOT_FOUND. `version` (DIBS_VERSION_MAX + 1 bytes) is that of the new one. */
dibs_status dibs__crontab_put(dibs_store *store, const char *name, const dibs_cron_table *table, const char *if_version,
                              char *version, dibs_error *error);
/* Free kept->text in any case.  NOT_FOUND: there is none. */
dibs_status dibs__crontab_load(dibs_store *store, const char *name, struct dibs__crontab_kept *kept, dibs_error *error);
dibs_status dibs__crontab_forget(dibs_store *store, const char *name, dibs_error *error);
/* Calls `fn` for each name, in byte order, until it returns false. */
dibs_status dibs__crontab_names(dibs_store *store, bool (*fn)(const char *name, void *user), void *user,
                                dibs_error *error);

#endif

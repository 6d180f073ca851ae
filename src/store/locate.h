/* SPDX-License-Identifier: MIT */
#ifndef DIBS_STORE_LOCATE_H
#define DIBS_STORE_LOCATE_H
/*
 * What people name a store by: a URI, or a section of an INI file, so that passwords and tiers stand in one place that
 * is not everybody's to read:
 *
 *   --store /etc/app/dibs.ini#production        without #...: the section [store]
 *
 *   [production]
 *   store = redis://cache,mysql://app:secret@db/app
 *   tiers.strictness = strict
 *
 * `store` is a URI; every tiers.KEY is a parameter of the whole (tier/tiers.h).  A name ends in .ini, or has .ini#
 * in it; with a colon in its path it begins with / or a dot.  The whole file must be right, not only the section.
 */
#include "store/store.h"

/* Is it a file's name, and not a URI? */
bool dibs__locate_is_file(const char *name);
/* The URI that is meant, malloc'd; the password in it is wiped by who frees it (dibs__locate_free).  A file that a
 * section names without its folder is in the folder of the INI file.  INVALID (also: no such section), DENIED and
 * UNAVAILABLE (the file), NO_MEMORY, with words that quote no value. */
dibs__status dibs__locate(const char *name, char **uri, struct dibs__said *said);
void dibs__locate_free(char *uri);
/* The same store, named so that it is found from another folder: INI files and SQLite files, also of tiers, that are
 * meant relative to `folder` are named whole.  For dibs__locate_free; NULL: no memory. */
char *dibs__locate_from(const char *name, const char *folder);

#endif

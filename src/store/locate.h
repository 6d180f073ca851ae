/* SPDX-License-Identifier: MIT */
#ifndef DIBS_STORE_LOCATE_H
#define DIBS_STORE_LOCATE_H
/*
 * Names of stores: a URI, or a section of an INI file, so that passwords and tiers are in one file that only some users
 * may read:
 *
 *     --store /etc/app/dibs.ini#production        without #...: the section [store]
 *
 *     [production]
 *     store = redis://cache,mysql://app:secret@db/app
 *     tiers.strictness = strict
 *
 * `store` is a URI; every tiers.KEY is a parameter of the tiered store (tier/tiers.h).  A file name ends in .ini, or
 * contains .ini#; if its path has a colon, it begins with / or a dot.  The whole file must be correct, not only the
 * section.
 */
#include "store/store.h"

/* Is it the name of a file, and not a URI? */
bool dibs__locate_is_file(const char *name);
/* The URI of the store, malloc'd; name NULL: the store of a caller that names none, see below.  Free it with
 * dibs__locate_free, which wipes the password.  A file that a section names without its folder is in the folder of the
 * INI file.  INVALID (also: no such section), DENIED and UNAVAILABLE (the file), NO_MEMORY, with a message that quotes
 * no value. */
dibs__status dibs__locate(const char *name, char **uri, struct dibs__result *result);
void dibs__locate_free(char *uri);
/* The same store, named so that it can be found from another folder: names of INI and SQLite files, also of tiers, that
 * are relative to `folder` become absolute.  For dibs__locate_free; NULL: no memory. */
char *dibs__locate_from(const char *name, const char *folder);

/*
 * The store of a caller that names none, from the first of:
 *
 *     $DIBS_STORE                          INVALID if it is empty
 *     $XDG_CONFIG_HOME/dibs/dibs.ini       ~/.config/dibs/dibs.ini if that is not set; not for root, whose shell and
 *                                          cron jobs must mean the same store in any environment
 *     /etc/dibs/dibs.ini
 *     the default file
 *
 * A file that exists must be correct and readable: ignoring it would silently choose another store.  DENIED if another
 * user may have written it, or if everybody may read the password in a user's own file.
 */
#define DIBS__SYSTEM_CONFIG "/etc/dibs/dibs.ini"
enum dibs__named_by { DIBS__BY_ENVIRONMENT, DIBS__BY_USER_FILE, DIBS__BY_SYSTEM_FILE, DIBS__BY_DEFAULT };
/* *name is for dibs__locate_free. */
dibs__status dibs__locate_default(char **name, enum dibs__named_by *by, struct dibs__result *result);

/* Does the name itself, which will be shown, contain a password?  The name of a file does not. */
bool dibs__locate_has_secret(const char *name);
/* Does the file, which only some users may read, contain a password?  false also if it cannot be read. */
bool dibs__locate_tells_secret(const char *name);
/* Is it a server, which may become reachable again later?  NULL as for dibs__locate. */
bool dibs__locate_has_server(const char *name);

#endif

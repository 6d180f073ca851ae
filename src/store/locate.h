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
 * `store` is a URI; every tiers.KEY is a parameter of the whole (tier/tiers.h).
 */
#include "store/store.h"

/* Is it a file's name, and not a URI? */
bool dibs__locate_is_file(const char *name);
/* The URI that is meant, malloc'd; the password in it is wiped by who frees it (dibs__locate_free).  INVALID, NOT_FOUND
 * (no such section), UNAVAILABLE (the file), with words that quote no value. */
dibs__status dibs__locate(const char *name, char **uri, struct dibs__said *said);
void dibs__locate_free(char *uri);

#endif

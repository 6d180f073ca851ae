/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SERVE_TAG_H
#define DIBS_SERVE_TAG_H
/* Versions of records as entity tags (RFC 9110), in record.c. */
#include "serve/server.h"

#define TAG_PATTERN "^(W/)?\"[!#-~]{1,127}\"$"

/* The version in "..." or W/"...".  false: it is none. */
bool dibs__tag_read(const char *text, char to[DIBS_VERSION_MAX + 1]);
void dibs__tag_set(struct request *r, const char *version);

#endif

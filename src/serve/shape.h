/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SERVE_SHAPE_H
#define DIBS_SERVE_SHAPE_H
/* The form of good answers, for /openapi.json. */
#include "base/json.h"

/* Writes the members of the JSON schema of what an operation answers.  false: none is known, and nothing was written.
 */
bool dibs__shape_write(struct dibs__json *j, const char *operation);

#endif

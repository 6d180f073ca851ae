/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SERVE_TRACE_H
#define DIBS_SERVE_TRACE_H
/* The trace of a request: its header `traceparent` (W3C Trace Context). */
#include <stdbool.h>

struct request;

enum { TRACE_LENGTH = 55 };

/* "00-<32 digits>-<16 digits>-<2 digits>"; of a header of a later version its beginning.  false: the request has none,
 * several, or a malformed one: it is ignored, and could be a secret in the wrong header. */
bool dibs__trace_of(const struct request *r, char to[TRACE_LENGTH + 1]);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SERVE_PROBE_H
#define DIBS_SERVE_PROBE_H
/*
 * Does the store answer?  All that need to know share one probe and its result, which is at most a second old: any
 * number of requests without a token costs the store one read a second, and the daemon one thread.
 */
#include <stdbool.h>

struct server;
struct request;

bool dibs__probe_open(struct server *server);
void dibs__probe_close(struct server *server);
/* Blocks for I/O if the result is too old.  Any thread. */
bool dibs__probe_store_is_up(struct server *server);
/* Calls `answer` in the loop, at once or later, unless it answers the request 503: too many wait, or the server stops.
 */
void dibs__probe_run(struct request *r, void (*answer)(struct request *r, bool up));

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SERVE_STALE_H
#define DIBS_SERVE_STALE_H
/*
 * Which names had late holders: how many writes of each name's leases this server refused as stale.
 *
 * A write has the id of a lease, not its name.  So the names of the leases that this server granted last are kept by
 * their ids; the refusal of another lease is counted in the metrics only.  Any thread may call these.
 */
#include "base/port.h"
#include "store/store.h"

struct server;

bool dibs__stale_open(struct server *server);
void dibs__stale_close(struct server *server);
/* A lease was granted. */
void dibs__stale_granted(struct server *server, const dibs__id *id, dibs__str name);
/* A write with its id was refused. */
void dibs__stale_refused(struct server *server, const dibs__id *id);
/* Of a name since the server began. */
uint64_t dibs__stale_count(struct server *server, const char *name);

#endif

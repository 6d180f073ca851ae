/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SERVE_ACCEPT_H
#define DIBS_SERVE_ACCEPT_H
/*
 * New connections, of all addresses.  When there are as many as --connections allows, the others stay in the queues of
 * the system until one ends.  Everything here belongs to the loop.
 */
#include "base/port.h"

#include <stdbool.h>

struct server;
struct listener;

/* false: the loop cannot wait for it. */
bool dibs__accept_begin(struct server *server, struct listener *listener);
/* Goes on when a connection has ended, or it is time to try again. */
void dibs__accept_tick(struct server *server, dibs__tick now);
/* The system had no descriptor or memory for a connection: when to try again.  No event says that there is one. */
dibs__tick dibs__accept_next(const struct server *server);
/* Closes the sockets of all listeners. */
void dibs__accept_end(struct server *server);

#endif

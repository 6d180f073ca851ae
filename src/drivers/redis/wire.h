/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_REDIS_WIRE_H
#define DIBS_DRIVERS_REDIS_WIRE_H
/* What the wire of Redis gives to connect.c, redis.c and cluster.c alone. */
#include "drivers/redis/redis_impl.h"

#include <hiredis/hiredis.h>

struct dibs__redis_arena;
struct dibs__redis_arena *dibs__redis_arena_new(void); /* NULL: no memory */
void dibs__redis_arena_free(struct dibs__redis_arena *arena);
/* A reader that puts its replies there; free it before the arena. */
redisReader *dibs__redis_arena_reader(struct dibs__redis_arena *arena);

/* How long a read may sleep before it checks the deadline again: the receive timeout of a link's socket. */
enum { DIBS__REDIS_PATIENCE_MS = 20 };

/* The next message of a subscription that has arrived, or NULL: none yet, or the link is dead.  Never waits.  Valid
 * until the next call.  A message that was read in part stays in the reader. */
const redisReply *dibs__redis_message(struct dibs__redis_link *link);

/* Connects again a connection that was found closed before anything was sent; the commands stay.  false: see
 * `result`. */
bool dibs__redis_renew(struct dibs__redis_link *link, dibs__tick by, struct dibs__result *result);

/* Before commands are put: false, and the link is dead, if the server has closed it in a silence. */
bool dibs__redis_still_open(struct dibs__redis_link *link);

extern const char *const dibs__redis_params[];

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_REDIS_WIRE_H
#define DIBS_DRIVERS_REDIS_WIRE_H
/* What the wire of Redis gives to redis_connect.c and redis_bell.c alone. */
#include "drivers/redis_parts.h"

/* How long a read may sleep before the deadline is looked at again: the receive timeout of a link's socket. */
enum { DIBS__REDIS_PATIENCE_MS = 20 };

/* The next message of a subscription that has arrived, or NULL: none yet, or the link is dead.  Never waits.  Valid
 * until the next call.  A message that was read in part stays in the reader. */
const redisReply *dibs__redis_message(struct dibs__redis_link *link);

/* Connects anew what was found closed before anything was sent; what was put stays.  false: said tells. */
bool dibs__redis_renew(struct dibs__redis_link *link, dibs__tick by, struct dibs__said *said);

extern const char *const dibs__redis_params[];

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_REDIS_ROOM_H
#define DIBS_DRIVERS_REDIS_ROOM_H
/* Where the replies of a link live: redis_room.c. */
#include <hiredis/hiredis.h>

struct dibs__redis_room;
struct dibs__redis_room *dibs__redis_room_new(void); /* NULL: no memory */
void dibs__redis_room_free(struct dibs__redis_room *room);
/* All replies in it are gone. */
void dibs__redis_room_clear(struct dibs__redis_room *room);
/* One that puts its replies there; free it before the room. */
redisReader *dibs__redis_room_reader(struct dibs__redis_room *room);

#endif

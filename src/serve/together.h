/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SERVE_TOGETHER_H
#define DIBS_SERVE_TOGETHER_H
/*
 * Requests that become one call of the store.  A request whose kind has no call in flight is sent at once.  Those that
 * come while one is in flight wait for it, and then go together: a store that takes 5 ms to commit serves a hundred
 * clients of one kind with a few commits in place of a hundred.
 *
 * A call is of up to DIBS_TASKS_MAX tasks and SHARED_BYTES; requests that are larger than a small part of these are not
 * shared, so that a client that adds a million tasks delays no other.
 */
#include "serve/server.h"

enum {
  SHARED_TASKS = 100,         /* of one request */
  SHARED_BYTES = 4 << 20,     /* of one call */
  SHARED_BYTES_ONE = 64 << 10 /* of one request */
};

struct member;

/* Of all requests of one route; constant. */
struct sharing {
  void (*call)(struct member *first); /* in a thread of the pool: writes the answer of each of the list */
  void (*free)(struct member *member);
};

/* The first member of what a handler keeps of its request, as `work`. */
struct member {
  struct request *request;
  struct member *next;
  size_t tasks, bytes;
};

/* May it share a call? */
bool dibs__may_share(const struct member *member);
/* Answers the request, sooner or later: with others of the kind, the first parameter of its path.  `sharing` frees the
 * member. */
void dibs__together_run(struct member *member, const struct sharing *sharing);
/* The same in a call of its own. */
void dibs__alone_run(struct member *member, void (*block)(struct request *r), void (*drop)(struct request *r));

bool dibs__together_open(struct server *server);
void dibs__together_close(struct server *server);
/* Requests that wait for a call of others. */
uint32_t dibs__together_waiting(const struct server *server);

#endif

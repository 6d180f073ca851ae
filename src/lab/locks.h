/* SPDX-License-Identifier: MIT */
#ifndef DIBS_LAB_LOCKS_H
#define DIBS_LAB_LOCKS_H
/*
 * Locks that are not in the row's store, as programs without dibs use them, and dibs' own leases in another store.
 *
 *   locks.c                  the locks of a process, the lock of one user
 *   redis.c, redis_none.c    a Redis, without dibs: with hiredis, and without it
 */
#include "lab/lab.h"

/* ---- A Redis, without dibs ---- */

struct lab_redis; /* one thread at a time */
bool dibs__lab_redis_built(void);
/* NULL: `why`. */
struct lab_redis *dibs__lab_redis_open(const char *uri, char *why, size_t size);
void dibs__lab_redis_close(struct lab_redis *redis); /* NULL is allowed */

enum lab_redis_answer { LAB_REDIS_FAILED, LAB_REDIS_NIL, LAB_REDIS_DONE };
/* One command.  DONE: `answer` is its answer as text; FAILED: the reason, and the next command connects again. */
enum lab_redis_answer dibs__lab_redis_run(struct lab_redis *redis, const char *const words[], size_t count,
                                          char *answer, size_t size);

/* ---- Locks ---- */

enum { LAB_LOCK_TTL_MS = 10000, LAB_LOCK_POOL = 10 /* connections for locks of a server, as usual pools have */ };

/* Can a lock of this kind be in the store of the URI? */
bool dibs__lab_lock_fits(enum lab_lock_kind kind, const char *uri);
/* What --locks must be for it: "redis://HOST". */
const char *dibs__lab_lock_example(enum lab_lock_kind kind);

/* The locks of a process: the connections that its users share. */
struct lab_locks;
/* NULL: `why`.  LAB_LOCK_ANY: what the URI is. */
struct lab_locks *dibs__lab_locks_open(enum lab_lock_kind kind, const char *uri, char *why, size_t size);
void dibs__lab_locks_close(struct lab_locks *locks); /* NULL is allowed */

/* One user's lock; zero it first. */
struct lab_lock {
  struct lab_locks *locks;
  struct lab_redis *redis;
  char name[LAB_KEY_MAX + 16], token[33];
  dibs_lease *lease;
  struct lab_line *line; /* of the pool, while it holds */
  bool held;
};
/* Connects the user where each has a connection of its own. */
bool dibs__lab_lock_connect(struct lab_lock *lock, struct lab_locks *locks, char *why, size_t size);
void dibs__lab_lock_disconnect(struct lab_lock *lock);
/* OK; TIMEOUT; UNAVAILABLE and others: the error's text. */
dibs_status dibs__lab_lock_take(struct lab_lock *lock, const char *name, int64_t wait_ms, dibs_error *error);
/* As far as the holder can know without asking. */
bool dibs__lab_lock_alive(const struct lab_lock *lock);
void dibs__lab_lock_give(struct lab_lock *lock); /* also if it is not held */

#endif

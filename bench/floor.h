/* SPDX-License-Identifier: MIT */
#ifndef DIBS_BENCH_FLOOR_H
#define DIBS_BENCH_FLOOR_H
/*
 * The floors that `dibs bench lease` is compared with: the same work without dibs, as simple and as fast as the machine
 * allows.  They call the system and the engine directly, on purpose.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- A fair lock between threads: a queue with one condition variable for each waiter, and direct hand-over ---- */

struct floor_fifo;
struct floor_fifo_waiter;
struct floor_fifo *dibs__floor_fifo_new(void); /* NULL: out of memory */
void dibs__floor_fifo_free(struct floor_fifo *fifo);
struct floor_fifo_waiter *dibs__floor_fifo_waiter_new(void);
void dibs__floor_fifo_waiter_free(struct floor_fifo_waiter *waiter);
void dibs__floor_fifo_lock(struct floor_fifo *fifo, struct floor_fifo_waiter *waiter);
void dibs__floor_fifo_unlock(struct floor_fifo *fifo);

/* ---- Transactions on a SQLite file ---- */

enum floor_kind {
  FLOOR_DIBS, /* the statements of dibs for an uncontended acquire and release, in a file that dibs created */
  FLOOR_NAIVE /* the simplest lease, one conditional UPDATE for each call, in a new file */
};

struct floor_sqlite;
/* Opens the database at `path` (WAL, synchronous=NORMAL), with its statements prepared.  NULL: `why` has the reason. */
struct floor_sqlite *dibs__floor_sqlite_open(const char *path, enum floor_kind kind, char *why, size_t size);
void dibs__floor_sqlite_close(struct floor_sqlite *floor); /* removes the files */
/* Acquires and releases `pairs` times.  one: each in a transaction of its own; otherwise all in one. */
bool dibs__floor_sqlite_pairs(struct floor_sqlite *floor, uint32_t pairs, bool one, int64_t now_ms, char *why,
                              size_t size);

const char *dibs__floor_sqlite_version(void);

/* ---- flock(2) between processes ---- */

int dibs__floor_flock_open(const char *path); /* -1 and errno */
bool dibs__floor_flock_lock(int fd);
bool dibs__floor_flock_unlock(int fd);

#endif

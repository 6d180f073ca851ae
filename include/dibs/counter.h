/* SPDX-License-Identifier: MIT */
#ifndef DIBS_COUNTER_H
#define DIBS_COUNTER_H
/*
 * Counters: numbers that many clients add to and few read, such as likes, views and bytes sent; and quotas.
 *
 * Read this first:
 *
 * - A counter is a key and a signed number of 64 bits, in dibs' own table, or in a column of a table of yours (`count`
 *   of dibs_table_options).  In dibs' own table the first addition creates it.
 * - An addition names its level, which says what a crash can lose (doc/counters.md has the whole table):
 *     DURABLE   the call returns when the addition is committed in the database.  Threads that add at the same time
 *               share a transaction, so one hot key takes as many additions as any other
 *     SHARED    the call returns when Redis, the first of several tiers (redis:,mysql:), has the addition.  A thread
 *               of each process that uses this level writes the sums of all processes to the database, within 3 s.
 *               If Redis loses its memory, the additions that were not written yet are lost
 *     BUFFERED  the call returns at once.  The process sums its additions, and writes the sums to the database each
 *               second, or when there are 10,000 keys.  A crash of the process loses at most the additions of the
 *               last second, and those that the database could not take before.  dibs_counter_flush and dibs_close
 *               write the rest
 * - Each addition is counted once.  A batch of additions has an id, which the database remembers: if the answer of the
 *   database is lost, the library repeats the batch with the same id until it knows the outcome.
 * - An addition that the counter can't take is reported and not lost: FULL, if the sum does not fit in 64 bits or in
 *   your column; NOT_FOUND, if a table of yours has no such row.  With DURABLE the call returns the status; for
 *   BUFFERED see dibs_counter_refused, for SHARED dibs_counter_refused_shared.
 * - After fork() the child must open a store of its own.  It never writes what its parent has buffered.
 *
 * Counters need a database: sqlite:, postgres:, mysql: or memory:, alone or as the last tier, mongodb: (without tables
 * of yours), or a daemon (http:) over one of these.  Elsewhere each call returns UNSUPPORTED.  SHARED needs redis: as
 * the first of several tiers.  The rules of dibs.h also apply here: INVALID of every call, and "a failure of the
 * store".
 *
 * With a handle of dibs_inside_..., in a transaction of yours:
 *
 * - A DURABLE addition counts when you commit, and only then.  It needs no id, because its outcome is that of your
 *   transaction.  If it is refused (FULL, NOT_FOUND, INVALID), your transaction is as it was before the call.
 * - It locks the counter's row until you commit or roll back, and every other addition to this key waits for you, also
 *   those of BUFFERED in other processes.  So add last, and several keys in byte order, as dibs' own batches do.
 * - It waits for the row as long as your own lock timeout allows (lock_timeout, innodb_lock_wait_timeout), whatever
 *   wait_ms is; then it returns UNAVAILABLE.  Until your transaction ends, its thread must not add to the same key
 *   with the store itself: it would wait for itself, until wait_ms is over.
 * - CONFLICT: the engine ended your transaction, or it can't continue (a deadlock, a serialization failure).  Roll it
 *   back and begin again.
 * - A read gives what your transaction sees, and `buffered` is 0.
 * - BUFFERED, SHARED, dibs_counter_flush and dibs_rate are UNSUPPORTED: memory and Redis are not part of a transaction,
 *   and what is taken from a quota stays taken.
 */
#include <dibs.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dibs_count_level {
  DIBS_COUNT_DURABLE = 0,  /* committed in the database: the default */
  DIBS_COUNT_BUFFERED = 1, /* in the memory of this process */
  DIBS_COUNT_SHARED = 2    /* in Redis, the first tier, in front of the database */
} dibs_count_level;

typedef struct dibs_counter_options {
  size_t size;
  const dibs_table *table; /* NULL: dibs' own.  Declare it once: the store keeps memory for each until it is closed */
  dibs_count_level level;  /* of dibs_counter_add; of dibs_counter_flush, see there */
  uint32_t reserved;       /* 0 */
  int64_t wait_ms;         /* for the whole call; 0: 5 s; DIBS_FOREVER: a day */
} dibs_counter_options;
#define DIBS_COUNTER_OPTIONS_INIT DIBS__INIT(dibs_counter_options)

/* Adds `delta`, which may be below 0.  options NULL: DURABLE, in dibs' own table.  DURABLE and SHARED block for I/O;
 * BUFFERED does not.
 * OK; FULL (the sum does not fit; BUFFERED: what this process has buffered for the key and did not write yet would not
 * fit in 57 bits); NOT_FOUND (DURABLE, a table of yours: there is no such row); INVALID (the key, the options, the
 * table; DURABLE, a table of yours: the row has no whole number); CONFLICT (in a transaction of yours); or a failure of
 * the store: UNAVAILABLE (nothing was added; BUFFERED: this process has buffered as many keys as it can, a million),
 * UNKNOWN (DURABLE, SHARED: it may be added, because the outcome did not become known in time; SHARED: also because the
 * answer was lost and Redis has lost its memory, or a replica was promoted). */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_counter_add(dibs_store *store, const char *key, int64_t delta,
                                                       const dibs_counter_options *options, dibs_error *error);

/* Writes everything that this process has buffered, of all tables, and waits until it is committed: all additions that
 * returned before this call.  options NULL: 5 s.  With the level SHARED it then writes what all processes have added at
 * that level, of the table of the options, and waits until it is committed in the database.  Otherwise level and table
 * have no effect.  Blocks for I/O.
 * OK; NOT_FOUND, FULL, INVALID or UNKNOWN (all is written but for refused additions, which dibs_counter_refused gives;
 * the status is that of one of them); NOT_FOUND with the level SHARED also if the database has refused sums, now or
 * earlier, which dibs_counter_refused_shared gives; or a failure of the store: UNAVAILABLE, DENIED, UNKNOWN (some of it
 * is not written, or it is not known yet; the process keeps it and tries again each second). */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_counter_flush(dibs_store *store, const dibs_counter_options *options,
                                                         dibs_error *error);

/* Refused additions of one key, as the sum that the process tried to write.  Valid during the call. */
typedef struct dibs_counter_refusal {
  size_t size;
  const char *key;
  const dibs_table *table; /* NULL: dibs' own */
  int64_t delta;
  /* FULL, NOT_FOUND, INVALID; UNKNOWN: it may be added, because the outcome did not become known in a day. */
  dibs_status status;
  uint32_t reserved;
} dibs_counter_refusal;
/* Returns 0 to continue, another number to stop: the refusals that follow are kept for the next call. */
typedef int (*dibs_counter_refusal_fn)(const dibs_counter_refusal *refusal, void *user);
/* Calls `fn` for each refused addition of this process, and forgets it.  `fn` may add it again, to another counter for
 * example.  Does not block.
 * OK (also if there is none). */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_counter_refused(dibs_store *store, dibs_counter_refusal_fn fn, void *user,
                                                           dibs_error *error);

/* The same for the level SHARED: calls `fn` for each sum of `table` (NULL: dibs' own), from all processes, that the
 * database has refused.  A sum stays in Redis until `fn` has returned, so each is given at least once.  If `fn` returns
 * 0, the sum is forgotten; DIBS_COUNT_KEEP: it stays, and the next one follows; another number: it stays, and the call
 * ends.  The status of a refusal is UNKNOWN if the sum is so old that it may have been added, because an old copy of
 * Redis was restored.  Blocks for I/O.
 * OK; INVALID; or a failure of the store. */
enum { DIBS_COUNT_KEEP = 1 };
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_counter_refused_shared(dibs_store *store, const dibs_table *table,
                                                                  dibs_counter_refusal_fn fn, void *user,
                                                                  dibs_error *error);

/* The parts that a value can contain: bits. */
enum { DIBS_COUNT_STORED_PART = 1, DIBS_COUNT_BUFFERED_PART = 2, DIBS_COUNT_SHARED_PART = 4 };

/* The value of a counter, and its parts. */
typedef struct dibs_counter_value {
  size_t size;
  int64_t value;    /* stored + shared + buffered */
  int64_t stored;   /* in the database */
  int64_t buffered; /* in this process: not written yet.  No part contains what other processes have buffered */
  int64_t shared;   /* in Redis, added by all processes: not written yet */
  /* Which of the three are known.  Without DIBS_COUNT_SHARED_PART Redis did not answer: `shared` is 0, and `value` may
   * be too small.  Of a store without the level SHARED all three are known. */
  uint32_t parts;
  uint32_t reserved;
} dibs_counter_value;
#define DIBS_COUNTER_VALUE_INIT DIBS__INIT(dibs_counter_value)

/* Reads a counter.  If a batch with this key is being written at this moment, the call waits until it is written, for a
 * short time.  Blocks for I/O.
 * OK; NOT_FOUND (there is no such counter or row, and nothing is buffered or shared for it, as far as `parts` says);
 * FULL (the value does not fit in 64 bits); INVALID (also: your column has no whole number); or a failure of the store.
 */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_counter_read(dibs_store *store, const char *key,
                                                        const dibs_counter_options *options, dibs_counter_value *value,
                                                        dibs_error *error);

/* Returns 0 to continue, another number to stop. */
typedef int (*dibs_counter_fn)(const char *key, int64_t stored, void *user);
/* Calls `fn` for each counter of dibs' own table whose key begins with `prefix` (NULL: all), by key in byte order,
 * until it returns another number than 0.  Blocks for I/O between these calls.
 * OK; INVALID; or a failure of the store. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_counter_list(dibs_store *store, const char *prefix, dibs_counter_fn fn,
                                                        void *user, dibs_error *error);

/* ---- Quotas ------------------------------------------------------------------------------------------------- */

typedef struct dibs_rate_options {
  size_t size;
  int64_t limit;   /* at most so many, 1 to a billion, */
  int64_t per_ms;  /* in this time, 1 ms to 31 days */
  int64_t amount;  /* how many this call takes, up to the limit; 0: 1 */
  int64_t wait_ms; /* how long to wait until it is allowed; 0: answer at once; DIBS_FOREVER */
} dibs_rate_options;
#define DIBS_RATE_OPTIONS_INIT DIBS__INIT(dibs_rate_options)

/* Takes from a quota that all clients of the store share: at most `limit` at once, and `limit` for each `per_ms` in the
 * long run (a token bucket, by the store's clock).  A quota need not be created: a key that nobody has used has its
 * whole quota.  *retry_ms, which may be NULL: after FULL, the time after which the same call is allowed if nobody else
 * takes meanwhile; else 0.  A call whose outcome is UNKNOWN may have taken, and if you repeat it, it takes again: then
 * fewer than `limit` are allowed, and never more.  Blocks for I/O, and with wait_ms for the quota.
 * OK (it is allowed); FULL (it is refused, and took nothing); INVALID; or a failure of the store. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_rate(dibs_store *store, const char *key, const dibs_rate_options *options,
                                                int64_t *retry_ms, dibs_error *error);

#ifdef __cplusplus
}
#endif
#endif

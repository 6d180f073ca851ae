/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SQL_FAR_H
#define DIBS_SQL_FAR_H
/*
 * A store in a database server: what PostgreSQL and MariaDB share.  A driver gives connections (struct dibs__sql_wire),
 * its fast statements, and a way to ring another process; everything else of a driver is here: opening, the schema,
 * incarnations, batches, rows, listing, sweeping, events.
 *
 *   far_open.c    open, connect, schema, incarnations
 *   far_text.c    the statements
 *   far_rows.c    rows to structs and back: the dialect of src/sql, answered from what was loaded ahead
 *   far_load.c    what a batch needs, loaded in its first packet
 *   far_run.c     a batch
 *   far_list.c    listing, sweeping
 *   far_bell.c    events
 *
 * A batch in two packets:
 *
 *   BEGIN, lock the buckets (sorted), the clock, each name's head and first waiters
 *   -> decided in C by src/sql ->  what changed, COMMIT, and who is to be rung
 *
 * or in one, by the engine's fast statements, for names that nobody else wants.
 *
 * The bucket's row is the lock of all its names for whoever queues or draws a fence; a renewal or release of a name
 * that nobody waits for locks the head alone.  So who decides on rows locks the bucket first, then the head.
 *
 * A process lives by a bell: a connection that holds a lock of the server's named after its session, and hears.  It is
 * opened before the first waiter of the process is queued.  Dead bell, dead waiters.
 */
#include "sql/wire.h"
#include "store/uri.h"

enum {
  DIBS__FAR_BATCH = 1024,
  DIBS__FAR_AHEAD = 8,     /* waiters loaded with a name's head */
  DIBS__FAR_WORD_MAX = 64, /* of a schema or prefix */
  DIBS__FAR_WAITERS = 32,
  DIBS__FAR_WAITERS_MAX = 1000 /* a server has some hundred connections for everybody */
};

/* What the URI said, beyond what the driver itself understands.  Parameters of all servers:
 *   schema=NAME       PostgreSQL: where our tables are (default dibs); created if it is missing and we may
 *   prefix=NAME       of our tables (default dibs_)
 *   lock=MODE         rows (default); advisory, named: the server's own session locks (far_lock.h)
 *   lock_waiters=N    of those: connections that wait at most (default 32)
 *   lease_sync=on|off
 *   lock_timeout=MS, connect_timeout=MS */
struct dibs__far_options {
  char schema[DIBS__FAR_WORD_MAX + 1], prefix[DIBS__FAR_WORD_MAX + 1];
  bool lease_sync;
  int64_t lock_timeout_ms, connect_timeout_ms;
  uint32_t lock_waiters;
};

struct dibs__far;

/* What a ring says. */
struct dibs__far_ring {
  uint64_t session;
  struct dibs__event event;
};

/* An event as it travels: its id, then its fence, the largest byte first. */
enum { DIBS__FAR_RING_BYTES = 16 + 8 };
static inline void dibs__far_ring_write(const struct dibs__event *event, uint8_t to[DIBS__FAR_RING_BYTES]) {
  for (size_t i = 0; i < 16; i++) to[i] = event->id.b[i];
  for (size_t i = 0; i < 8; i++) to[16 + i] = (uint8_t)(event->fence.v >> (56 - 8 * i));
}
static inline void dibs__far_ring_read(const uint8_t from[DIBS__FAR_RING_BYTES], struct dibs__event *event) {
  event->fence.v = 0;
  for (size_t i = 0; i < 16; i++) event->id.b[i] = from[i];
  for (size_t i = 0; i < 8; i++) event->fence.v = event->fence.v << 8 | from[16 + i];
}

/* A server engine.  Functions that get a wire run on the thread that uses it. */
struct dibs__far_engine {
  struct dibs__sql_engine sql; /* first: a wire's engine is one of these */
  const char *const *schemes;  /* NULL at the end */
  const char *const *params;   /* known in the URI beside the ones above; NULL at the end */
  uint32_t caps;               /* beside those of every server */

  /* Immutable, checked URI of the driver's own making: connection strings.  INVALID with what is wrong. */
  dibs__status (*prepare)(const struct dibs__uri *uri, struct dibs__far *store, void **place, struct dibs__said *said);
  void (*forget)(void *place);
  /* A connection, set up for READ COMMITTED, UTC, the lock timeout, our schema.  UNAVAILABLE, DENIED, UNSUPPORTED (too
   * old, a transaction pooler), INVALID.  May be asked from any thread. */
  dibs__status (*connect)(struct dibs__far *store, dibs__tick by, struct dibs__sql_wire **wire,
                          struct dibs__said *said);
  void (*close)(struct dibs__sql_wire *wire); /* NULL is fine */
  /* The caller's own connection (PGconn, MYSQL) as a wire; closing it leaves the connection alone. */
  dibs__status (*adopt)(struct dibs__far *store, void *connection, struct dibs__sql_wire **wire,
                        struct dibs__said *said);

  /* What identifies this life of the server's memory, as text that is hashed: one statement that gives one cell;
   * `fleeting`: each start of the server is another life. */
  const char *(*life)(bool fleeting);
  /* Statements of our schema beside dibs__sql_schema, the nth from `version` on; NULL when there are no more. */
  const char *(*schema)(uint32_t version, size_t nth);
  /* Puts what keeps others from making the schema, until it is unlocked or the connection ends. */
  enum dibs__sql_step (*lock_schema)(struct dibs__sql_wire *wire, bool lock);

  /* A statement before COMMIT: this transaction need not wait for the disk (those behind it in the log do).  NULL: none
   */
  const char *lazy;

  /* An expression over a column or value with a session's number: where it lives, above 0; NULL or 0: it is gone. */
  const char *alive; /* with $s where the number stands */

  /* ---- Bells.  One thread listens. ---- */
  /* Holds the session's lock and hears from now on. */
  dibs__status (*bell_open)(struct dibs__far *store, uint64_t session, dibs__tick by, void **bell,
                            struct dibs__said *said);
  void (*bell_close)(void *bell);
  /* Sleeps until rung, bell_wake or `by`; gives what was heard (RECHECK where it only knows that something was).
   * UNAVAILABLE: the bell is broken; close it and open another. */
  dibs__status (*bell_wait)(void *bell, struct dibs__event *events, size_t cap, size_t *count, dibs__tick by);
  void (*bell_wake)(void *bell); /* any thread, also before bell_wait */
  /* Puts what makes others hear.  Within the transaction, before COMMIT; then behind it, in the same packet: an error
   * of the latter is nobody's trouble.  `where` is what `alive` told of each.  Either may be NULL. */
  enum dibs__sql_step (*ring_within)(struct dibs__far *store, struct dibs__sql_wire *wire,
                                     const struct dibs__far_ring *rings, size_t count);
  enum dibs__sql_step (*ring_after)(struct dibs__far *store, struct dibs__sql_wire *wire,
                                    const struct dibs__far_ring *rings, const int64_t *where, size_t count);

  /* ---- Fast statements ----
   * Exclusive acquires without ticket, renewals without a block, releases: of names that differ, sorted by bucket and
   * name, nobody of which is known to be waited for, each under its op.mandate.  Puts one packet, goes, and answers
   * those that went through (status OK, `waiting` false, and all other answers); what it did not find as expected it
   * leaves UNKNOWN, unchanged. NULL: none. */
  enum dibs__sql_step (*fast)(struct dibs__far *store, struct dibs__sql_wire *wire, uint64_t session,
                              struct dibs__lease_op *const ops[], size_t count, int64_t *now);
};

/* An open store.  Beside the engine's place everything is far_*.c's. */
struct dibs__far {
  struct dibs__dstore base;
  const struct dibs__far_engine *engine;
  /* Immutable after open. */
  void *place;
  struct dibs__far_options options;
  char shown[256]; /* the URI without password, for messages */
  char **texts;    /* with the prefix put in; far_text.c */
  uint64_t session;
  bool as_tier;
  struct dibs__far_inside *inside; /* what is far_*.c's alone */
  struct dibs__far_locks *locks;   /* far_lock.h; NULL: leases are rows */
};

/* The functions of struct dibs__driver for a server, given the engine: a driver's open calls far_open, its table has
 * the rest as they are. */
dibs__status dibs__far_open(const struct dibs__far_engine *engine, const struct dibs__uri *uri, dibs__tick by,
                            struct dibs__dstore **store, struct dibs__said *said);
void dibs__far_close(struct dibs__dstore *store);
dibs__status dibs__far_connect(struct dibs__dstore *store, dibs__tick by, struct dibs__session **session,
                               struct dibs__identity *identity, struct dibs__said *said);
dibs__status dibs__far_attach(struct dibs__dstore *store, void *connection, struct dibs__session **session,
                              struct dibs__identity *identity, struct dibs__said *said);
void dibs__far_disconnect(struct dibs__session *session);
dibs__status dibs__far_run(struct dibs__session *session, struct dibs__op *const ops[], size_t count, dibs__tick by,
                           struct dibs__said *said);
dibs__status dibs__far_events(struct dibs__dstore *store, struct dibs__event *events, size_t cap, size_t *count,
                              dibs__tick by);
void dibs__far_wake(struct dibs__dstore *store);
dibs__status dibs__far_list(struct dibs__session *session, const struct dibs__list *list, dibs__tick by,
                            struct dibs__said *said);
void dibs__far_tidy(struct dibs__dstore *store);

/* A text with "dibs_" replaced by the prefix, @now by the clock, @lock by what locks rows, @ours by whether the `state`
 * before it is that of a bucket that this open may be granted from; malloc'd, NULL: no memory.  For fast statements:
 * once a store, in prepare. */
char *dibs__far_text(struct dibs__far *store, const char *text);

#endif

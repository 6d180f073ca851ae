/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_SERVER_SERVER_H
#define DIBS_DRIVERS_SERVER_SERVER_H
/*
 * A store in a database server: what PostgreSQL and MariaDB share.  A driver gives connections (struct
 * dibs__sql_wire), its fast statements, and a way to notify another process; everything else of a driver is here:
 * opening, the schema, incarnations, batches, rows, listing, sweeping, events.
 *
 *   server.c   opening, schema, incarnations, sessions, events
 *   text.c     the statements, beside those of every engine (sql/schema.c)
 *   rows.c     the dialect of src/sql, over sql/rows.c: answered from what the first packet loaded
 *   run.c      a batch
 *   list.c     listing, sweeping
 *
 * A batch in two packets:
 *
 *   BEGIN, lock the buckets (sorted), the clock, each name's head and first waiters
 *   -> decided in C by src/sql ->  what changed, COMMIT, and the notifications
 *
 * or in one, by the engine's fast statements, for uncontended names.
 *
 * The bucket's row is the lock of all its names for an operation that queues or draws a fence; a renewal or release
 * of a name without waiters locks the head alone.  So an operation on rows locks the bucket first, then the head.
 *
 * A process is alive as long as its notifier: a connection that holds a server lock named after its session, and
 * listens.  It is opened before the first waiter of the process is queued.  When the notifier dies, its waiters are
 * dead.
 */
#include "sql/wire.h"
#include "store/engine.h"
#include "store/uri.h"

enum {
  DIBS__SERVER_BATCH = 1024,
  DIBS__SERVER_AHEAD = 8,     /* waiters loaded with a name's head */
  DIBS__SERVER_WORD_MAX = 64, /* of a schema or prefix */
  DIBS__SERVER_WAITERS = 32,
  DIBS__SERVER_WAITERS_MAX = 1000 /* a server has some hundred connections for everybody */
};

/*
 * What the URI said, beyond what the driver itself understands.  Parameters of all servers:
 *   schema=NAME       PostgreSQL: the schema of our tables (default dibs); created if it is missing and we may
 *   prefix=NAME       of our tables (default dibs_)
 *   lock=MODE         rows (default); advisory, named: the server's own session locks (session_lock.h)
 *   lock_waiters=N    of session locks: connections that wait at most (default 32)
 *   lease_sync=on|off
 *   connections=N     sessions at most (default 2), beside the notifier of a process that waits
 *   lock_timeout=MS, connect_timeout=MS
 *   failover_wait=MS  after a new incarnation nothing is granted for so long, and no lease has a longer ttl (default 0)
 */
struct dibs__server_options {
  char schema[DIBS__SERVER_WORD_MAX + 1], prefix[DIBS__SERVER_WORD_MAX + 1];
  bool lease_sync;
  int64_t lock_timeout_ms, connect_timeout_ms, failover_wait_ms;
  uint32_t lock_waiters, connections;
};

struct dibs__server;

/* What a notification contains. */
struct dibs__server_notice {
  uint64_t session;
  struct dibs__event event;
};

/* An event as it travels: its id, then its fence, the largest byte first. */
enum { DIBS__SERVER_NOTICE_BYTES = 16 + 8 };
static inline void dibs__server_notice_write(const struct dibs__event *event, uint8_t to[DIBS__SERVER_NOTICE_BYTES]) {
  for (size_t i = 0; i < 16; i++) to[i] = event->id.b[i];
  for (size_t i = 0; i < 8; i++) to[16 + i] = (uint8_t)(event->fence.v >> (56 - 8 * i));
}
static inline void dibs__server_notice_read(const uint8_t from[DIBS__SERVER_NOTICE_BYTES], struct dibs__event *event) {
  event->fence.v = 0;
  for (size_t i = 0; i < 16; i++) event->id.b[i] = from[i];
  for (size_t i = 0; i < 8; i++) event->fence.v = event->fence.v << 8 | from[16 + i];
}

/* A server engine.  Functions that get a wire run on the thread that uses it. */
struct dibs__server_engine {
  struct dibs__sql_engine sql; /* first: a wire's engine is one of these */
  const char *const *schemes;  /* NULL at the end */
  const char *const *params;   /* also valid in the URI; NULL at the end */
  uint32_t caps;               /* beside the parameters of every server */

  /* Immutable, checked URI of the driver's own making: connection strings.  INVALID with what is wrong. */
  dibs__status (*prepare)(const struct dibs__uri *uri, struct dibs__server *store, void **location,
                          struct dibs__result *result);
  void (*forget)(void *location);
  /* A connection, set up for READ COMMITTED, UTC, the lock timeout, our schema.  UNAVAILABLE, DENIED, UNSUPPORTED (too
   * old, a transaction pooler), INVALID.  May be asked from any thread. */
  dibs__status (*connect)(struct dibs__server *store, dibs__tick by, struct dibs__sql_wire **wire,
                          struct dibs__result *result);
  void (*close)(struct dibs__sql_wire *wire); /* NULL is fine */
  /* The caller's own connection (PGconn, MYSQL) as a wire; closing it leaves the connection alone. */
  dibs__status (*adopt)(struct dibs__server *store, void *connection, struct dibs__sql_wire **wire,
                        struct dibs__result *result);

  /* ---- Transactions of users, on a wire of `connect`: transactor.c ---- */
  /* Sets the wire up for statements of users, and gives its connection. */
  enum dibs__sql_rc (*lend)(struct dibs__server *store, struct dibs__sql_wire *wire, void **connection);
  /* Runs statements of a user, separated by semicolons. */
  enum dibs__sql_rc (*script)(struct dibs__sql_wire *wire, const char *sql);
  /* Is a transaction open? */
  bool (*in_transaction)(const struct dibs__sql_wire *wire);

  /* What identifies the server's incarnation and, if dibs_meta exists, the time of its creation, as text that is
   * hashed: one statement that gives one cell; `fleeting`: each start of the server is another incarnation. */
  const char *(*incarnation)(bool fleeting);
  /* Statements of our schema beside dibs__sql_schema, the nth from `version` on; NULL when there are no more. */
  const char *(*schema)(uint32_t version, size_t nth);
  /* Takes the lock under which the schema is made, until it is unlocked or the connection ends. */
  enum dibs__sql_rc (*lock_schema)(struct dibs__sql_wire *wire, bool lock);

  /* A statement before COMMIT: this transaction need not wait for the disk (those after it in the log do).  NULL:
   * none. */
  const char *lazy;

  /* An expression over a column or value with a session's number: the connection id of its notifier, above 0; NULL or
   * 0: it is gone. */
  const char *alive; /* with $s in place of the number */

  /* ---- The notifier.  One thread listens. ---- */
  /* Holds the session's lock, and listens from now on. */
  dibs__status (*notifier_open)(struct dibs__server *store, uint64_t session, dibs__tick by, void **notifier,
                                struct dibs__result *result);
  void (*notifier_close)(void *notifier);
  /* Sleeps until a notification, notifier_wake or `by`; gives the events (RECHECK where only the fact of a notification
   * is known).  UNAVAILABLE: the notifier is broken; close it and open another. */
  dibs__status (*notifier_wait)(void *notifier, struct dibs__event *events, size_t cap, size_t *count, dibs__tick by);
  void (*notifier_wake)(void *notifier); /* any thread, also before notifier_wait */
  /* Sends DIBS__EV_TASKS to other processes, after a commit of operations that made tasks ready; an error changes
   * nothing.  NULL: it can't. */
  enum dibs__sql_rc (*notify_tasks)(struct dibs__server *store, struct dibs__sql_wire *wire,
                                    struct dibs__op *const ops[], size_t count);
  /* A claim of this kind found less than it wanted, and only processes in which this was called are notified.  true:
   * call notifier_wake.  NULL: all processes are notified, also this one. */
  bool (*expect_tasks)(struct dibs__server *store, dibs__str kind);
  /* Queues statements that notify others: within the transaction, before COMMIT; then after it, in the same packet,
   * where an error changes nothing.  `where` is what `alive` gave for each.  Either may be NULL. */
  enum dibs__sql_rc (*notify_within)(struct dibs__server *store, struct dibs__sql_wire *wire,
                                     const struct dibs__server_notice *notices, size_t count);
  enum dibs__sql_rc (*notify_after)(struct dibs__server *store, struct dibs__sql_wire *wire,
                                    const struct dibs__server_notice *notices, const int64_t *where, size_t count);

  /* Adds what it sees of its servers: store/engine.h.  By wire->by. */
  void (*describe)(struct dibs__server *store, struct dibs__sql_wire *wire, struct dibs__findings *to);

  /*
   * ---- Fast statements ----
   * Exclusive acquires without ticket, renewals without a block, releases: of distinct names, sorted by bucket and
   * name, none of which is known to have waiters, each under its op.mandate.  Sends one packet, and answers those
   * that succeeded (status OK, `waiting` false, and all other answers); those that did not match it leaves UNKNOWN,
   * unchanged.  NULL: none.
   */
  enum dibs__sql_rc (*fast)(struct dibs__server *store, struct dibs__sql_wire *wire, uint64_t session,
                            struct dibs__lease_op *const ops[], size_t count, int64_t *now);
};

/* An open store. */
struct dibs__server {
  struct dibs__dstore base;
  const struct dibs__server_engine *engine;
  /* Immutable after open. */
  void *location;
  struct dibs__server_options options;
  char shown[256]; /* the URI without password, for messages */
  char **texts;    /* with the prefix put in; text.c */
  uint64_t session;
  struct dibs__sql_opened opened;
  struct dibs__server_inside *inside; /* private to src/drivers/server */
  struct dibs__session_locks *locks;  /* session_lock.h; NULL: leases are rows */
};

/* The functions of struct dibs__driver for a server. */
dibs__status dibs__server_open(const struct dibs__server_engine *engine, const struct dibs__uri *uri, dibs__tick by,
                               struct dibs__dstore **store, struct dibs__result *result);
dibs__driver_close dibs__server_close;
dibs__driver_connect dibs__server_connect;
dibs__driver_attach dibs__server_attach;
dibs__driver_transactor_open dibs__server_transactor_open;
dibs__driver_transact dibs__server_transact;
dibs__driver_transactor_close dibs__server_transactor_close;
dibs__driver_disconnect dibs__server_disconnect;
dibs__driver_run dibs__server_run;
dibs__driver_events dibs__server_events;
dibs__driver_wake dibs__server_wake;
dibs__driver_list dibs__server_list;
dibs__driver_tidy dibs__server_tidy;
/* A driver's table; `open` calls dibs__session_lock_open with the engine. */
#define DIBS__SERVER_DRIVER(its_name, its_schemes, its_open)                                                           \
  {                                                                                                                    \
    .size = sizeof(struct dibs__driver), .abi = DIBS__DRIVER_ABI, .name = (its_name), .schemes = (its_schemes),        \
    .open = (its_open), .close = dibs__server_close, .connect = dibs__server_connect,                                  \
    .disconnect = dibs__server_disconnect, .attach = dibs__server_attach, .run = dibs__server_run,                     \
    .events = dibs__server_events, .wake = dibs__server_wake, .list = dibs__server_list, .tidy = dibs__server_tidy,    \
    .transactor_open = dibs__server_transactor_open, .transact = dibs__server_transact,                                \
    .transactor_close = dibs__server_transactor_close                                                                  \
  }

/* Composes a template of sql/text.h, with the words of text.c, for this store; malloc'd, NULL: no memory.  For fast
 * statements: once a store, in prepare. */
char *dibs__server_text(struct dibs__server *store, const char *text);

#endif

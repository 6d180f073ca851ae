/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_SESSION_LOCK_SESSION_LOCK_H
#define DIBS_DRIVERS_SESSION_LOCK_SESSION_LOCK_H
/*
 * Session locks: a lease is a lock of the server's own, which lives as long as the connection that took it.
 * Everything else in such a store (records, stock, once, epochs) is as in server.h.  doc/internals/session-locks.md.
 *
 *   session_lock.c   the store: opening, closing, holds; connections that hold, and connections that wait; events
 *   run.c            a batch; mandates and fences
 *   break.c          breaking, listing
 *
 * A server's driver opens its stores by dibs__session_lock_open.
 */
#include "drivers/server/server.h"

enum { DIBS__SERVER_KEY_MAX = 64 };

/* A lock's key at the server: the value may point into `text`. */
struct dibs__server_key {
  struct dibs__sql_value value;
  char text[DIBS__SERVER_KEY_MAX + 1];
};

enum dibs__server_heard {
  DIBS__SERVER_NOT_YET,
  DIBS__SERVER_GOT,
  DIBS__SERVER_AGAIN /* it ended without the lock */,
  DIBS__SERVER_FAILED
};

/* What an engine provides.  Statements answer one cell, 1: done, 0 or NULL: not; $1 is the key. */
struct dibs__session_locking {
  const char *mode; /* of lock= in the URI */
  bool shared;
  const char *space; /* $1 is the schema; what distinguishes the locks of this database from the server's other locks */
  const char *ready; /* no values: no timeout of the server may end an idle or waiting connection */
  const char *self;  /* no values; the server's number of the connection */
  const char *take, *take_shared, *drop, *drop_shared, *drop_all;
  /* A cell a row: connections that hold the lock, connections that wait for it; 0, NULL: none. */
  const char *holders, *waiters;
  const char *kill; /* $1 is a connection: ends it */
  /* No values.  A cell: 1, unless the server has become a replica: then its successor grants the same names. */
  const char *ping;
  /* The key of "SPACE:NAME", given its SHA-256 as 64 digits.  It never changes: other programs compute it, too. */
  void (*key)(const char hex[65], struct dibs__server_key *key);

  /* A lock that is waited for, in flight on a connection.  None of these block. */
  enum dibs__sql_rc (*wait)(struct dibs__sql_wire *wire, const struct dibs__server_key *key, bool shared);
  enum dibs__server_heard (*heard)(struct dibs__sql_wire *wire);
  int (*socket)(const struct dibs__sql_wire *wire); /* -1: it is closed */
  void (*abandon)(struct dibs__sql_wire *wire);     /* closes it, also while it waits */
};

/* The open of a server's driver: a store on rows or, if the URI has lock=MODE of `how`, on session locks. */
dibs__status dibs__session_lock_open(const struct dibs__server_engine *engine, const struct dibs__session_locking *how,
                                     const struct dibs__uri *uri, dibs__tick by, struct dibs__dstore **store,
                                     struct dibs__result *result);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SQL_FAR_LOCK_H
#define DIBS_SQL_FAR_LOCK_H
/*
 * Session locks: a lease is a lock of the server's own, which lives by the connection that took it.  All else of such a
 * store (records, stock, once, epochs) is far.h's.  doc/internals/session-locks.md.
 *
 *   far_lock.c         the store: opening, closing, what is held
 *   far_lock_link.c    connections that hold, and connections that wait
 *   far_lock_run.c     a batch
 *   far_lock_draw.c    mandates and fences
 *   far_lock_break.c   breaking, listing
 *   far_lock_events.c  events
 *
 * A driver opens a far store, then makes it one of these by dibs__far_lock_open, with a table of its own.
 */
#include "sql/far.h"

enum { DIBS__FAR_KEY_MAX = 64 };

/* A lock's key at the server: `text` lends the value its room. */
struct dibs__far_key {
  struct dibs__sql_value value;
  char text[DIBS__FAR_KEY_MAX + 1];
};

enum dibs__far_heard {
  DIBS__FAR_NOT_YET,
  DIBS__FAR_GOT,
  DIBS__FAR_AGAIN /* it ended without the lock */,
  DIBS__FAR_BROKE
};

/* What an engine has.  Statements answer one cell, 1: done, 0 or NULL: not; $1 is the key. */
struct dibs__far_locking {
  bool shared;
  const char *space; /* $1 is the schema; what tells the locks of this database from others' that the server has */
  const char *ready; /* no values: no timeout of the server's may end what idles or waits */
  const char *self;  /* no values; the server's number of the connection */
  const char *take, *take_shared, *drop, *drop_shared, *drop_all;
  /* A cell a row: connections that hold the lock, that wait for it; 0, NULL: none. */
  const char *holders, *waiters;
  const char *kill; /* $1 is a connection: ends it */
  const char *ping; /* no values */
  /* The key of "SPACE:NAME", given its SHA-256 as 64 digits.  Fixed for ever: other programs make it too. */
  void (*key)(const char hex[65], struct dibs__far_key *key);

  /* A lock that is waited for, in flight on a connection.  None of these block. */
  enum dibs__sql_step (*wait)(struct dibs__sql_wire *wire, const struct dibs__far_key *key, bool shared);
  enum dibs__far_heard (*heard)(struct dibs__sql_wire *wire);
  int (*socket)(const struct dibs__sql_wire *wire); /* -1: it is closed */
  void (*abandon)(struct dibs__sql_wire *wire);     /* closes it, also while it waits */
};

/* Makes the store one of session locks; on failure it is closed. */
dibs__status dibs__far_lock_open(struct dibs__dstore *store, const struct dibs__far_locking *how,
                                 const struct dibs__driver *driver, dibs__tick by, struct dibs__said *said);
/* The functions of struct dibs__driver that differ from far.h's. */
void dibs__far_lock_close(struct dibs__dstore *store);
dibs__status dibs__far_lock_connect(struct dibs__dstore *store, dibs__tick by, struct dibs__session **session,
                                    struct dibs__identity *identity, struct dibs__said *said);
dibs__status dibs__far_lock_run(struct dibs__session *session, struct dibs__op *const ops[], size_t count,
                                dibs__tick by, struct dibs__said *said);
dibs__status dibs__far_lock_events(struct dibs__dstore *store, struct dibs__event *events, size_t cap, size_t *count,
                                   dibs__tick by);
void dibs__far_lock_wake(struct dibs__dstore *store);
dibs__status dibs__far_lock_list(struct dibs__session *session, const struct dibs__list *list, dibs__tick by,
                                 struct dibs__said *said);
void dibs__far_lock_tidy(struct dibs__dstore *store);

#endif

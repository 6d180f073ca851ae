/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_SESSION_LOCK_SESSION_LOCK_IMPL_H
#define DIBS_DRIVERS_SESSION_LOCK_SESSION_LOCK_IMPL_H
/*
 * What the files of src/drivers/session_lock share.
 *
 * A hold is what this store knows of one lease: it waits, is offered, holds, or its connection is gone.  A link is a
 * connection with locks: the base, on which every free lock is taken; and one for each waiter, which keeps the lock
 * when it comes.
 *
 * Two locks.  `busy` is held by the thread that sends to the server (run, sweep, close), for as long as that takes:
 * it alone makes, moves and frees holds and links.  `lock`, inside it, is never held while a thread waits for the
 * server: the listening thread (events) takes only that one, and marks what came: offered, gone.
 */
#include "base/map.h"
#include "drivers/server/server_impl.h"
#include "drivers/session_lock/session_lock.h"

enum {
  DIBS__LOCK_SPARES = 4,        /* spare connections for later waiters */
  DIBS__LOCK_PATIENCE_MS = 250, /* before a connection is given up, and with it all its locks */
  DIBS__LOCK_OFFER_MS = 3000,   /* an offer that nobody confirms is released; a waiter polls each second */
  DIBS__LOCK_GONE_MS = 10000    /* a loss is reported for so long, then nobody listens */
};

enum dibs__hold_state { DIBS__HOLD_WAITS, DIBS__HOLD_OFFERED, DIBS__HOLD_HOLDS, DIBS__HOLD_GONE };

struct dibs__link {
  struct dibs__link *next;
  struct dibs__sql_wire *wire;
  int fd;
  int64_t id;        /* the server's number */
  _Atomic bool gone; /* closed by the server, or useless: nothing on it is held; never reset */
  uint32_t held;
  struct dibs__hold *waiter;
  bool requested; /* of a batch: something was put */
  bool pinged;    /* and the ping is its statement `ping` */
  bool failed;    /* its latest packet */
  size_t ping;
};

struct dibs__hold {
  struct dibs__map_node by_id, by_name;
  struct dibs__hold *next, **link_back; /* in `all` */
  struct dibs__link *link;              /* NULL: gone */
  enum dibs__hold_state state;
  bool tell; /* events() owes an event */
  bool broken;
  dibs__id id;
  uint64_t ticket, granted, first;
  uint32_t block, mode, ttl_ms;
  int64_t since, until; /* in ms of our boot-time clock */
  struct dibs__server_key key;
  struct dibs__sql_label owner;
  uint32_t len;
  char name[];
};

struct dibs__lock_draw;
struct dibs__session_locks {
  /* Immutable after open. */
  const struct dibs__session_locking *how;
  struct dibs__driver driver; /* the store's */
  char *space;
  uint32_t most; /* links that wait, or that got their lock by waiting */
  int notifier;

  dibs__mutex busy;
  uint64_t tickets;              /* of `busy`, as is `due` */
  int64_t due;                   /* nothing expires before; of `lock` too */
  struct dibs__lock_draw *draws; /* space for a batch */

  dibs__mutex lock; /* guards what follows; the thread with `busy` changes it under both, the listening thread only sets
                       marks */
  struct dibs__map by_id, by_name;
  struct dibs__hold *all;
  struct dibs__link base, *links;
  uint32_t link_count;
  uint32_t tells; /* holds with `tell` */
  bool again;     /* a waiter's connection broke: all waiters poll */
  bool woken;
};

static inline dibs__str dibs__hold_name(const struct dibs__hold *h) {
  return dibs__str_of(h->name, h->len);
}
static inline int64_t dibs__lock_now(void) {
  return dibs__tick_now().ns / DIBS__NS_PER_MS;
}

/* ---- session_lock.c ---- */
/* A hold that is not in the tables yet; NULL: no memory. */
struct dibs__hold *dibs__hold_new(struct dibs__session_locks *locks, const struct dibs__lease_op *op);
void dibs__hold_add_locked(struct dibs__session_locks *locks, struct dibs__hold *h);
void dibs__hold_drop_locked(struct dibs__session_locks *locks, struct dibs__hold *h); /* and frees it */
struct dibs__hold *dibs__hold_find_locked(const struct dibs__session_locks *locks, dibs__str name, dibs__id id);
void dibs__hold_tell_locked(struct dibs__session_locks *locks, struct dibs__hold *h);
/* What this store itself has of a name: holders and offers. */
struct dibs__lock_ours {
  uint32_t exclusive, shared;
  int64_t until; /* the first that expires; 0: none */
};
struct dibs__lock_ours dibs__lock_ours_locked(const struct dibs__session_locks *locks, dibs__str name);
void dibs__lock_key(const struct dibs__session_locks *locks, dibs__str name, struct dibs__server_key *key);
/* Releases what has expired and offers that nobody confirmed.  `busy` is held. */
void dibs__lock_sweep(struct dibs__server *store, dibs__tick by);

/* ---- session_lock.c ---- */
/* The base is open, as far as known. */
dibs__status dibs__link_base(struct dibs__server *store, dibs__tick by, struct dibs__result *result);
/* Begins to wait on a connection of its own; UNAVAILABLE: there are too many, or none can be opened. */
dibs__status dibs__link_wait(struct dibs__server *store, struct dibs__hold *h, dibs__tick by,
                             struct dibs__result *result);
/* Nothing of it is held any more. */
void dibs__link_gone_locked(struct dibs__session_locks *locks, struct dibs__link *link);
/* Reads what arrived by itself, without waiting. */
void dibs__link_look_locked(struct dibs__session_locks *locks, struct dibs__link *link);
/* Queues the statement that releases the hold's lock, and takes it off its link. */
void dibs__link_put_drop(struct dibs__session_locks *locks, struct dibs__hold *h);
/* Sends the statements on all links that have some, and reads the answers.  A link that fails is gone. */
void dibs__link_go(struct dibs__session_locks *locks, dibs__tick by);
/* Ends the wait of a hold, and its connection. */
void dibs__link_leave(struct dibs__server *store, struct dibs__hold *h, dibs__tick by);

/* ---- run.c ---- */
dibs__driver_run dibs__session_lock_run;
struct dibs__lock_draw {
  struct dibs__lease_op *op;
  struct dibs__hold *hold; /* NULL: only the mandate is checked */
  bool valid;              /* the mandate is the operation's */
  bool drawn;
};

/* ---- break.c ---- */
dibs__driver_list dibs__session_lock_list;
void dibs__lock_break(struct dibs__server_session *s, struct dibs__lease_op *op, int64_t now, dibs__tick by,
                      struct dibs__result *result);

/* ---- session_lock.c ---- */
void dibs__lock_notify(struct dibs__session_locks *locks); /* the listening thread polls the links again */

#endif

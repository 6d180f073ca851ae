/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SQL_FAR_LOCK_PARTS_H
#define DIBS_SQL_FAR_LOCK_PARTS_H
/*
 * What far_lock*.c share.
 *
 * A hold is what this store knows of one lease: it waits, is offered, holds, or its connection is gone.  A link is a
 * connection with locks on it: the base, on which everything is taken that is free; and for each that waits one of its
 * own, which keeps the lock when it comes.
 *
 * Two locks.  `busy` is had by whoever talks to the server (run, tidy, close), for as long as that takes: it alone
 * makes, moves and frees holds and links.  `lock`, inside it, is never held while the server is waited for: who
 * listens (events) has only that one, and marks what came: offered, gone.
 */
#include "base/map.h"
#include "sql/far_lock.h"
#include "sql/far_parts.h"

enum {
  DIBS__LOCK_SPARES = 4,        /* connections kept for those who will wait */
  DIBS__LOCK_PATIENCE_MS = 250, /* before a connection is given up, and with it all that it holds */
  DIBS__LOCK_OFFER_MS = 3000,   /* what nobody comes for is given back; a waiter looks each second */
  DIBS__LOCK_GONE_MS = 10000    /* a loss is told of for so long, then nobody listens */
};

enum dibs__hold_state { DIBS__HOLD_WAITS, DIBS__HOLD_OFFERED, DIBS__HOLD_HOLDS, DIBS__HOLD_GONE };

struct dibs__link {
  struct dibs__link *next;
  struct dibs__sql_wire *wire;
  int fd;
  int64_t id;        /* the server's number */
  _Atomic bool gone; /* closed by the server, or of no more use: nothing on it is held; for ever */
  uint32_t held;
  struct dibs__hold *waiter;
  bool asked;  /* of a batch: something was put */
  bool failed; /* its latest packet */
};

struct dibs__hold {
  struct dibs__map_node by_id, by_name;
  struct dibs__hold *next, **link_back; /* in `all` */
  struct dibs__link *link;              /* NULL: gone */
  enum dibs__hold_state state;
  bool tell; /* events() owes a word */
  bool broken;
  dibs__id id;
  uint64_t ticket, granted, first;
  uint32_t block, mode, ttl_ms;
  int64_t since, until; /* in ms of our boot-time clock */
  struct dibs__far_key key;
  struct dibs__sql_label owner;
  uint32_t len;
  char name[];
};

struct dibs__lock_draw;
struct dibs__far_locks {
  /* Immutable after open. */
  const struct dibs__far_locking *how;
  char *space;
  uint32_t most; /* links that wait or came to hold by waiting */
  int bell;

  dibs__mutex busy;
  uint64_t tickets;              /* of `busy`, as is `due` */
  int64_t due;                   /* nothing ends before; of `lock` too */
  struct dibs__lock_draw *draws; /* room for a batch */

  dibs__mutex lock; /* guards what follows; changed by who has `busy` too, but for marks */
  struct dibs__map by_id, by_name;
  struct dibs__hold *all;
  struct dibs__link base, *links;
  uint32_t link_count;
  uint32_t tells; /* holds with `tell` */
  bool again;     /* a waiter's connection broke: all who wait look */
  bool woken;
};

static inline dibs__str dibs__hold_name(const struct dibs__hold *h) {
  return dibs__str_of(h->name, h->len);
}
static inline int64_t dibs__lock_now(void) {
  return dibs__tick_now().ns / DIBS__NS_PER_MS;
}

/* ---- far_lock.c ---- */
/* A hold that is not in the tables yet; NULL: no memory. */
struct dibs__hold *dibs__hold_new(struct dibs__far_locks *locks, const struct dibs__lease_op *op);
void dibs__hold_add_locked(struct dibs__far_locks *locks, struct dibs__hold *h);
void dibs__hold_drop_locked(struct dibs__far_locks *locks, struct dibs__hold *h); /* and frees it */
struct dibs__hold *dibs__hold_find_locked(const struct dibs__far_locks *locks, dibs__str name, dibs__id id);
void dibs__hold_tell_locked(struct dibs__far_locks *locks, struct dibs__hold *h);
/* What this store has of a name itself: holders and offers. */
struct dibs__lock_ours {
  uint32_t exclusive, shared;
  int64_t until; /* the first that ends; 0: none */
};
struct dibs__lock_ours dibs__lock_ours_locked(const struct dibs__far_locks *locks, dibs__str name);
void dibs__lock_key(const struct dibs__far_locks *locks, dibs__str name, struct dibs__far_key *key);
/* Gives back what is over and what nobody came for. `busy` is had. */
void dibs__lock_sweep(struct dibs__far *store, dibs__tick by);

/* ---- far_lock_link.c ---- */
/* The base is open, as far as we know. */
dibs__status dibs__link_base(struct dibs__far *store, dibs__tick by, struct dibs__said *said);
/* Begins to wait on a connection of its own; UNAVAILABLE: there are too many, or none is to be had. */
dibs__status dibs__link_wait(struct dibs__far *store, struct dibs__hold *h, dibs__tick by, struct dibs__said *said);
/* Nothing of it is held any more. */
void dibs__link_gone_locked(struct dibs__far_locks *locks, struct dibs__link *link);
/* Looks at what came on its own, without waiting. */
void dibs__link_look_locked(struct dibs__far_locks *locks, struct dibs__link *link);
/* Puts the statement that gives the hold's lock back, and takes it from its link. */
void dibs__link_put_drop(struct dibs__far_locks *locks, struct dibs__hold *h);
/* Sends what was put on all links that were asked, and takes the answers.  A link that fails is gone. */
void dibs__link_go(struct dibs__far_locks *locks, dibs__tick by);
bool dibs__link_send(struct dibs__far_locks *locks, struct dibs__link *link, dibs__tick by);
/* Ends the wait of a hold, and its connection. */
void dibs__link_leave(struct dibs__far *store, struct dibs__hold *h, dibs__tick by);
/* Closes links that are gone, and spares beyond what is kept. */
void dibs__link_tidy(struct dibs__far_locks *locks);
void dibs__link_close_all(struct dibs__far *store);

/* ---- far_lock_draw.c ---- */
struct dibs__lock_draw {
  struct dibs__lease_op *op;
  struct dibs__hold *hold; /* NULL: only the mandate is asked */
  bool stands;             /* the mandate is the operation's */
  bool drawn;
};
/* Which of the operations stand under their bucket's mandate; the others answer MOVED. */
enum dibs__sql_step dibs__lock_mandates(struct dibs__far_session *s, struct dibs__lock_draw *draws, size_t count);
/* Draws a fence for each (into the operation, `drawn`) whose mandate still stands, in one transaction.  What was not
 * drawn answers MOVED.  After lock_mandates. */
enum dibs__sql_step dibs__lock_draws(struct dibs__far_session *s, struct dibs__lock_draw *draws, size_t count,
                                     struct dibs__said *said);

/* ---- far_lock_break.c ---- */
void dibs__lock_break(struct dibs__far_session *s, struct dibs__lease_op *op, int64_t now, dibs__tick by,
                      struct dibs__said *said);

/* ---- far_lock_events.c ---- */
void dibs__lock_ring(struct dibs__far_locks *locks); /* who listens looks at the links anew */

#endif

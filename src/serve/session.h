/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SERVE_SESSION_H
#define DIBS_SERVE_SESSION_H
/*
 * Sessions: the processes that use this daemon as their store (the driver of http://).  A session has a number, which
 * its client draws and keeps secret.  All of them share the daemon's store: in the engine their waiters are those of
 * the daemon's own session, so
 *
 *   - an event for a waiter or holder is passed to the session that sent the request with its id, by a long poll;
 *   - when a session ends, its waiters are cancelled.  It ends when its client ends it, when the client hangs up while
 * it polls, or when it neither polls nor sends anything for GRACE_MS.
 *
 * If the daemon is killed, its own session in the store ends, and with it all waiters; leases stay.
 *
 * The loop alone uses sessions, but for the queue of events that the store's threads fill.
 */
#include "base/map.h"
#include "serve/server.h"
#include "store/message.h"

enum { SESSION_EVENTS = 256 };

/* An id that waits, or holds a lease, by a session. */
struct interest {
  struct dibs__map_node by_id;
  dibs__id id;
  struct session *session;
  struct interest *before, *after;
  bool waits;
  uint32_t length;
  char name[];
};

struct session {
  struct dibs__map_node by_number;
  dibs__id number;
  struct session *before, *after;
  struct request *poll; /* waits for events; NULL: none does */
  dibs__tick poll_until;
  dibs__tick seen;       /* the last request, or the end of the last poll */
  uint32_t running;      /* batches whose answer is missing */
  uint32_t cancels;      /* cancels whose answer is missing */
  bool ended;            /* it is freed when neither is missing; */
  struct request *ender; /* and then this is answered; NULL: none */
  struct interest *first;
  uint32_t ids;
  uint32_t for_all; /* a bit for each kind of event that has no id */
  size_t event_count;
  struct dibs__event events[SESSION_EVENTS];
};

/* store.c: the message becomes the answer's body. */
void dibs__store_answer(struct request *r, struct dibs__writer *w);
/* store.c: answers a BYE. */
void dibs__store_bye(struct request *r);

/* NULL: there is none with this number. */
struct session *dibs__session_find(struct server *server, const dibs__id *number);
/* Finds it, or makes it.  NULL: no memory, or too many. */
struct session *dibs__session_make(struct server *server, const dibs__id *number);
/* Its waiters are cancelled, and then `ender`, which may be NULL, is answered. */
void dibs__session_end(struct server *server, struct session *session, struct request *ender);
/* A batch of it was answered. */
void dibs__session_answered(struct server *server, struct session *session);

/* Before an acquire is sent that may wait: events for it may come before its answer.  false: no memory, or too many. */
bool dibs__session_expects(struct server *server, struct session *session, const struct dibs__lease_op *op);
/* After an operation on a lease was answered. */
void dibs__session_learns(struct server *server, struct session *session, const struct dibs__lease_op *op);
/* Answers the request when there are events, at the latest after wait_ms. */
void dibs__session_poll(struct session *session, struct request *r, int64_t wait_ms);

#endif

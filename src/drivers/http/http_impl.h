/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_HTTP_HTTP_IMPL_H
#define DIBS_DRIVERS_HTTP_HTTP_IMPL_H
/*
 * What the files of the HTTP driver share: a store that is a daemon, `dibs serve`.
 *
 *   location.c   a URI: hosts or a socket, the token, certificates
 *   link.c       one connection, over libcurl: a message out, an answer in
 *   events.c     the thread that polls for events while somebody waits
 *   http.c       the driver: sessions, batches, listings
 *
 * The messages are those of store/message.h.  A client has a number, which it draws; the daemon passes the events of
 * its waiters to the poll with this number, and cancels the waiters when the poll ends.  So a poll is on its way before
 * the first waiter is queued.
 *
 * With several hosts, all connections of a client use the same one.  They move to the next when it cannot be reached,
 * when it or a proxy before it answers 502, 503 or 504, and when it cannot reach its store.  A daemon at one of its
 * limits, or a row that somebody has locked, is no reason.  The waiters are queued again there, and leases are those of
 * the store behind.  What no daemon has begun is sent to each of them in turn; what one may have done is not sent
 * again.
 */
#include "store/engine.h"
#include "store/message.h"
#include "store/uri.h"

#include <curl/curl.h>

enum { DIBS__HTTP_HOSTS = 8, DIBS__HTTP_TIERS = 8, DIBS__HTTP_EVENTS = 1024 };

/* ---- The location: immutable after open ---- */

struct dibs__http_location {
  char *urls[DIBS__HTTP_HOSTS]; /* of the route */
  uint32_t count;
  char *socket;        /* a Unix socket; NULL: TCP */
  char *authorization; /* a header with the token; NULL: none */
  char *ca, *cert, *key;
  int64_t connect_timeout_ms;
  uint32_t connections;
  char shown[256];
};

dibs__status dibs__http_location(const struct dibs__uri *uri, struct dibs__http_location *location,
                                 struct dibs__result *result);
void dibs__http_location_free(struct dibs__http_location *location);

/* ---- The store ---- */

struct dibs__http_link;

struct dibs__http {
  struct dibs__dstore base;
  struct dibs__http_location location;
  dibs__id number;               /* of this client's session at the daemon */
  dibs__mutex lock;              /* guards what follows, but for what is atomic */
  uint32_t host;                 /* which of the location's is used */
  bool greeted;                  /* a daemon knew this session before */
  char *tiers[DIBS__HTTP_TIERS]; /* names, for answers */
  struct dibs__message_hello hello;
  /* events.c */
  dibs__thread *thread;
  struct dibs__http_link *polling; /* the thread's */
  bool recheck;
  size_t event_count;
  struct dibs__event events[DIBS__HTTP_EVENTS];
  _Atomic bool leaving;  /* this poll is the last */
  _Atomic bool stopping; /* it ends at once */
  dibs__word polls;      /* goes up when a poll was sent, or could not be sent */
  int notifier;
};

/* ---- Links ---- */

struct dibs__http_answer {
  uint8_t *bytes; /* malloc'd */
  size_t length, capacity;
  bool no_session; /* the daemon does not know the session; nothing was done */
};

/* NULL: no memory. */
struct dibs__http_link *dibs__http_link_open(struct dibs__http *store);
void dibs__http_link_close(struct dibs__http_link *link);
/* Sends the message, and waits for the answer.  Of a poll, *sent goes up when it was sent; dibs__http_link_wake ends
 * the wait.  OK: the answer.  UNAVAILABLE: the daemon has not done anything; UNKNOWN: it may have.  DENIED, INVALID,
 * UNSUPPORTED: it refused the message as a whole. */
dibs__status dibs__http_post(struct dibs__http_link *link, const struct dibs__writer *message, dibs__tick by,
                             struct dibs__http_answer *answer, dibs__word *sent, struct dibs__result *result);
void dibs__http_answer_free(struct dibs__http_answer *answer);
void dibs__http_link_wake(struct dibs__http_link *link); /* any thread */
void dibs__http_link_rest(struct dibs__http_link *link, int64_t ms);
/* The daemon of the latest request is of no use now: all connections move to the next one. */
void dibs__http_link_leave(struct dibs__http_link *link);
/* Is the next request for another daemon than the latest? */
bool dibs__http_link_left(struct dibs__http_link *link);

/* Opens the session at the present host, or at the next that can be reached and reaches its store; if there is none, at
 * any that can be reached. */
dibs__status dibs__http_hello(struct dibs__http_link *link, dibs__tick by, struct dibs__message_hello *hello,
                              struct dibs__result *result);

/* The certificates of the location, for another connection. */
bool dibs__http_security(const struct dibs__http_location *l, CURL *easy);
/* Which of the location's is used. */
uint32_t dibs__http_present_host(struct dibs__http *store);

/* ---- What doctor asks (describe.c) ---- */

/* The daemons of the URI. */
void dibs__http_describe(struct dibs__http *store, dibs__tick by, struct dibs__findings *to);

/* ---- Events ---- */

/* A poll is on its way when it returns, if the daemon can be reached by then. */
dibs__status dibs__http_poll_ready(struct dibs__http *store, dibs__tick by);
void dibs__http_poll_stop(struct dibs__http *store);
void dibs__http_recheck(struct dibs__http *store);
dibs__driver_events dibs__http_events;
dibs__driver_wake dibs__http_wake;

#endif

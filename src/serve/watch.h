/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SERVE_WATCH_H
#define DIBS_SERVE_WATCH_H
/*
 * A watch is a GET of one of this server's own lists, as "/v1/leases?prefix=app&limit=50".  One
 * thread reads all watches again and again, each once for all clients, and only while a client listens; it compares the
 * rows with those before, and makes events of the differences (events.c sends them).
 *
 * An event has the rows as the GET answers them.  Of durations the watcher expects that the client moves them on by
 * itself: "left_ms" counts down, and "age_ms" and "oldest_ready_ms" count up.
 */
#include "serve/server.h"

enum {
  WATCH_PAUSE_MS = 400,       /* between two readings of a list: a change reaches clients within a second */
  WATCH_CHANGED_MS = 50,      /* the same when something was changed through this server */
  WATCH_PAUSE_MAX_MS = 10000, /* the same when a reading takes long */
  WATCH_PAUSE_FACTOR = 10,    /* a watch that takes 50 ms is read every 500 ms: a tenth of the time at most */
  WATCH_LIMIT = 200,          /* rows of a watch */
  WATCH_GRACE_MS = 10000      /* how long a watch without clients is kept: they may connect again */
};

/* An event is "event: list|change|problem" with a JSON text:
 *   list     {"watch": TARGET, "body": {...}}: the whole answer of the GET
 *   change   {"watch": TARGET, "set": [ROW, ...], "removed": [KEY, ...], "next": ...}: new and changed rows
 *   problem  {"watch": TARGET, "problem": {...}}: the GET fails; a list follows when it works again */
struct event {
  struct event *next; /* in the queue of the watcher */
  uint64_t watch;
  bool requested; /* a list only for clients that need one (dibs__watch_again): the others know its rows */
  const char *kind;
  char *text; /* the JSON, malloc'd */
  size_t length;
  uint32_t uses; /* events.c: streams that are sending it, and the ring */
};

struct watcher *dibs__watcher_open(struct server *server, int *ready_fd);
void dibs__watcher_close(struct watcher *watcher); /* accepts NULL */
/* In the loop.  The number of the watch, which has one user more; 0: the request was answered.  `seq` becomes the
 * number of the next event when the watch was made (see events.c). */
uint64_t dibs__watch_join(struct watcher *watcher, struct request *r, const char *target, uint64_t seq,
                          uint64_t *made_at);
void dibs__watch_leave(struct watcher *watcher, uint64_t nr);
/* A client needs a list of all rows: the next reading makes one. */
void dibs__watch_again(struct watcher *watcher, uint64_t nr);
/* The events since the last call, the oldest first; the caller frees them. */
struct event *dibs__watcher_take(struct watcher *watcher);
/* Something was changed through this server: read the lists soon. */
void dibs__watcher_changed(struct watcher *watcher);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_PROXY_H
#define DIBS_TEST_PROXY_H
/*
 * A TCP proxy between a client under test and its server, that breaks the connection where a test wants it broken.
 * One thread, one epoll loop; lines of text tell it what to do while it runs.  Each is answered by one line, `ok ...`
 * or `error ...`:
 *
 *   pass                        back to normal: no delay, no trigger; connections that lost bytes are reset
 *   delay MS                    what either side says from now on arrives MS later (so a round trip takes 2 MS more)
 *   cut                         resets all connections, now; new ones pass
 *   stall                       nothing moves until `pass`; nothing is lost
 *   half-open                   takes connections and bytes and says nothing, as a machine that has vanished does.  The
 *                               server's side of older connections stays open, until `cut` or `pass`
 *   refuse                      connection refused, until `pass`; older connections go on
 *   to HOST:PORT                new connections go there from now on, also after `pass`; older ones stay where they are
 *   cut-before-request PATTERN  the request is not forwarded; both sides are reset
 *   cut-after-request PATTERN   the request is forwarded; the server works it off, its answer is dropped, and when it
 *                               has ended the connection the client's is reset: done, and the client never hears of it
 *   orphan-request PATTERN MS   the client is reset at once, and the request is forwarded MS later, after which the
 *                               server sees the connection end: what the client does next races what still lands
 *   hold-request PATTERN MS     this request, and what follows on its connection, arrives MS later
 *   stats                       ok accepted=N open=N doomed=N up=BYTES down=BYTES fired=N; doomed: of those open, how
 *                               many have lost their client and not ended at the server yet
 *   quit                        ends the proxy, all connections reset
 *
 * A request is what the protocol says is one: PostgreSQL, a simple query or all up to a Sync or Flush; MySQL, a packet;
 * Redis, a command; raw, what came in one piece.  Not through TLS, whose bytes say nothing.  PATTERN is found anywhere
 * in it, letters in either case; \xNN, \s (a blank) and \\ are understood.  A trigger fires once, at the first match;
 * before PATTERN, `nth=N` waits for the Nth match, and `times=N` fires at N matches from there (0: always).
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proxy_frame.h"

struct proxy;

struct proxy_options {
  const char *to; /* "host:port" */
  uint16_t port;  /* of 127.0.0.1 to listen on; 0: any that is free */
  enum frame_protocol protocol;
};

enum { PROXY_WHY = 256, PROXY_LINE = 1024 };

/* NULL, and why: an address that is not understood, a port that is taken. */
struct proxy *proxy_open(const struct proxy_options *options, char why[PROXY_WHY]);
uint16_t proxy_port(const struct proxy *proxy);
/* Lines come in at `in`, answers go to `out`, which may be the same; neither is closed.  `last`: the proxy quits when
 * the lines end. */
bool proxy_listen_to(struct proxy *proxy, int in, int out, bool last);
/* Lines come in through connections to a Unix socket; the file is removed by proxy_close. */
bool proxy_listen_at(struct proxy *proxy, const char *path, char why[PROXY_WHY]);
void proxy_run(struct proxy *proxy); /* until it quits */
void proxy_close(struct proxy *proxy);

/* A proxy in a thread of this process, for tests. */
struct proxied;
struct proxied *proxied_start(const struct proxy_options *options, char why[PROXY_WHY]);
uint16_t proxied_port(const struct proxied *proxied);
/* Says a line, waits for the answer, without its end of line.  false: it was not `ok`. */
bool proxied_say(struct proxied *proxied, const char *line, char answer[PROXY_LINE]);
/* One of the numbers of stats; -1 if there is none of that name. */
int64_t proxied_stat(struct proxied *proxied, const char *name);
void proxied_stop(struct proxied *proxied);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_PROXY_H
#define DIBS_TEST_PROXY_H
/*
 * A TCP proxy between a client under test and its server, which breaks the connection where a test wants it broken.
 * One thread, one epoll loop; lines of text control it while it runs.  It answers each with one line, `ok ...` or
 * `error ...`:
 *
 *   pass                        back to normal: no delay, no trigger; connections that lost bytes are reset
 *   delay MS                    bytes of either side arrive MS later from now on (so a round trip takes 2 MS more)
 *   cut                         resets all connections now; new ones pass
 *   stall                       nothing moves until `pass`; nothing is lost
 *   half-open                   accepts connections and bytes and sends nothing, like a machine that has vanished.  The
 *                               server's side of older connections stays open until `cut` or `pass`
 *   refuse                      refuses connections until `pass`; older connections continue
 *   to HOST:PORT                new connections go there from now on, also after `pass`; older ones are unchanged
 *   cut-before-request PATTERN  does not forward the request; resets both sides
 *   cut-after-request PATTERN   forwards the request and drops its answer; when the server has processed it and closed
 *                               its connection, resets the client: the request is done, and the client never learns it
 *   orphan-request PATTERN MS   resets the client at once and forwards the request MS later; then the server sees the
 *                               connection end.  The client's next requests race the late one
 *   hold-request PATTERN MS     delays this request, and what follows on its connection, by MS
 *   stats                       ok accepted=N open=N doomed=N up=BYTES down=BYTES fired=N; doomed: open connections
 * whose client side is closed and whose server side is not quit                        ends the proxy and resets all
 * connections
 *
 * The protocol defines a request: PostgreSQL, a simple query or all messages up to a Sync or Flush; MySQL, a packet;
 * Redis, a command; raw, the bytes of one read.  TLS hides requests from the proxy.  PATTERN matches anywhere in a
 * request, ignoring case; it may contain \xNN, \s (a blank) and \\.  A trigger fires once, at the first match; before
 * PATTERN, `nth=N` waits for the Nth match, and `times=N` fires at N matches from there (0: always).
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proxy_frame.h"

struct proxy;

struct proxy_options {
  const char *to; /* "host:port" */
  uint16_t port;  /* the port on 127.0.0.1 to listen on; 0: any free port */
  enum frame_protocol protocol;
};

enum { PROXY_WHY = 256, PROXY_LINE = 1024 };

/* NULL, and `why` has the reason: a malformed address, or a port in use. */
struct proxy *proxy_open(const struct proxy_options *options, char why[PROXY_WHY]);
uint16_t proxy_port(const struct proxy *proxy);
/* Commands arrive on `in`, answers go to `out`, which may be the same; neither is closed. `last`: the proxy quits when
 * the commands end. */
bool proxy_listen_to(struct proxy *proxy, int in, int out, bool last);
/* Commands arrive through connections to a Unix socket; proxy_close removes the file. */
bool proxy_listen_at(struct proxy *proxy, const char *path, char why[PROXY_WHY]);
void proxy_run(struct proxy *proxy); /* until the proxy quits */
void proxy_close(struct proxy *proxy);

/* A proxy in a thread of this process, for tests. */
struct proxied;
struct proxied *proxied_start(const struct proxy_options *options, char why[PROXY_WHY]);
uint16_t proxied_port(const struct proxied *proxied);
/* Sends a command and waits for the answer, which has no end of line.  false: the answer was not `ok`. */
bool proxied_say(struct proxied *proxied, const char *line, char answer[PROXY_LINE]);
/* One of the numbers of stats; -1 if no number has that name. */
int64_t proxied_stat(struct proxied *proxied, const char *name);
void proxied_stop(struct proxied *proxied);

#endif

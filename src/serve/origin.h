/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SERVE_ORIGIN_H
#define DIBS_SERVE_ORIGIN_H
/*
 * Pages in browsers.  A page of any site can make a browser send requests to this server, also to a loopback address,
 * where the browser is and other machines are not.  Hence:
 *
 *   - A request with an Origin other than the server's own is refused, unless --cors lists it.  Browsers let a page of
 * a listed origin read the answer (CORS).
 *   - Without tokens, a Host with a dot that is neither an address nor of a listed origin is refused: its owner may
 * have pointed that name to this machine, and then the page would have the server's own origin (DNS rebinding).
 */
#include <microhttpd.h>
#include <stdbool.h>

struct request;

/* Before the route is known.  false: it was answered, a preflight request of a listed origin with 204. */
bool dibs__origin_admits(struct request *r, const char *method);
/* Adds the headers of CORS, if the request has a listed origin. */
void dibs__origin_add(const struct request *r, struct MHD_Response *response);
/* Has it the form of an origin, "https://app.example:8443"? */
bool dibs__origin_valid(const char *text);

#endif

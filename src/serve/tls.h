/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SERVE_TLS_H
#define DIBS_SERVE_TLS_H
/* TLS 1.2 and 1.3: the certificate of the configuration, which may be replaced while the server runs, and those of
 * clients. */
#include "dibs.h"

#include <microhttpd.h>
#include <stdbool.h>

struct server;
struct request;

/* Loads the files of the configuration; nothing if it names no certificate. */
dibs_status dibs__tls_open(const struct server *server, dibs_error *error);
void dibs__tls_close(void);
/* Loads certificate and key again, for new connections, and the authorities of clients, for new requests.  After a
 * failure the server keeps those that it has. */
void dibs__tls_reload(const struct server *server);

enum { TLS_OPTIONS_MAX = 4 };
/* Writes the options of a daemon of libmicrohttpd that serves TLS, with their end.  Returns the flags that it needs. */
unsigned dibs__tls_options(struct MHD_OptionItem items[TLS_OPTIONS_MAX]);

/* Does its client have the certificate that the configuration requires?  false: it was answered 403. */
bool dibs__tls_admits(struct request *r);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_REDIS_TLS_H
#define DIBS_DRIVERS_REDIS_TLS_H
/*
 * rediss://: TLS over the socket of a link.  hiredis has TLS from 1.0 on, as functions that replace its own send and
 * recv; dibs does not use these, with any hiredis.  So TLS is here, over OpenSSL, and behind the same two calls.
 *
 * tls.c: with OpenSSL; tls_none.c: in a build without it, where a location with TLS is refused.
 */
#include "store/uri.h"

#include <stdbool.h>
#include <sys/types.h>

extern const char *const dibs__redis_tls_params[];

/* Of a location: the certificates; thread-safe.  NULL where the scheme is not rediss. */
struct dibs__redis_tls_context;
/* Parameters: ca=FILE, cert=FILE, key=FILE, tls_name=NAME, insecure=1.  OK, INVALID, UNSUPPORTED, NO_MEMORY. */
dibs__status dibs__redis_tls_context(const struct dibs__uri *uri, struct dibs__redis_tls_context **context,
                                     struct dibs__result *result);
void dibs__redis_tls_context_free(struct dibs__redis_tls_context *context);

/* Of a connection; to be used by one thread at a time. */
struct dibs__redis_tls;
/* Shakes hands over the connected socket, and checks the certificate for `host`.  `shown`: for messages.  UNAVAILABLE;
 * DENIED: the certificate is not acceptable; INVALID: the server does not speak TLS. */
dibs__status dibs__redis_tls_open(struct dibs__redis_tls_context *context, const char *host, int fd, dibs__tick by,
                                  const char *shown, struct dibs__redis_tls **tls, struct dibs__result *result);
void dibs__redis_tls_free(struct dibs__redis_tls *tls);

/* As send and recv with these flags, and their errno; EPROTO: see why.  send accepts some bytes, which may still have
 * to leave: has_output (send no more bytes for that). */
ssize_t dibs__redis_tls_send(struct dibs__redis_tls *tls, const void *bytes, size_t count);
ssize_t dibs__redis_tls_recv(struct dibs__redis_tls *tls, void *bytes, size_t count, int flags);
bool dibs__redis_tls_has_output(const struct dibs__redis_tls *tls);
/* Something was received that recv has not returned yet: poll does not know of it. */
bool dibs__redis_tls_has_input(const struct dibs__redis_tls *tls);
/* "TLSv1.3, TLS_AES_256_GCM_SHA384".  false: the server was not verified. */
bool dibs__redis_tls_words(const struct dibs__redis_tls *tls, char *to, size_t size);
const char *dibs__redis_tls_why(const struct dibs__redis_tls *tls);

#endif

/* SPDX-License-Identifier: MIT */
/* A build without OpenSSL: rediss:// is refused, because a connection without TLS would expose what was to be hidden.
 */
#include "drivers/redis/tls.h"

const char *const dibs__redis_tls_params[] = {NULL};

dibs__status dibs__redis_tls_context(const struct dibs__uri *uri, struct dibs__redis_tls_context **context,
                                     struct dibs__result *result) {
  (void)uri;
  *context = NULL;
  dibs__set_message(result,
                    "rediss://: this build of dibs has no TLS for Redis; build it with OpenSSL, or use redis:// "
                    "over a Unix socket, loopback, a private network or a TLS tunnel (stunnel)");
  return DIBS_UNSUPPORTED;
}

void dibs__redis_tls_context_free(struct dibs__redis_tls_context *context) {
  (void)context;
}

dibs__status dibs__redis_tls_open(struct dibs__redis_tls_context *context, const char *host, int fd, dibs__tick by,
                                  const char *shown, struct dibs__redis_tls **tls, struct dibs__result *result) {
  (void)context, (void)host, (void)fd, (void)by, (void)shown, (void)result;
  *tls = NULL;
  return DIBS_UNSUPPORTED;
}

void dibs__redis_tls_free(struct dibs__redis_tls *tls) {
  (void)tls;
}

ssize_t dibs__redis_tls_send(struct dibs__redis_tls *tls, const void *bytes, size_t count) {
  (void)tls, (void)bytes, (void)count;
  return -1;
}

ssize_t dibs__redis_tls_recv(struct dibs__redis_tls *tls, void *bytes, size_t count, int flags) {
  (void)tls, (void)bytes, (void)count, (void)flags;
  return -1;
}

bool dibs__redis_tls_has_output(const struct dibs__redis_tls *tls) {
  (void)tls;
  return false;
}

bool dibs__redis_tls_has_input(const struct dibs__redis_tls *tls) {
  (void)tls;
  return false;
}

const char *dibs__redis_tls_why(const struct dibs__redis_tls *tls) {
  (void)tls;
  return "";
}

bool dibs__redis_tls_words(const struct dibs__redis_tls *tls, char *to, size_t size) {
  (void)tls, (void)size;
  to[0] = '\0';
  return false;
}

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SERVE_LISTEN_H
#define DIBS_SERVE_LISTEN_H
/* The sockets that the server listens at.  An address that other machines can reach needs tokens and TLS;
 * that of a service, as dibs gate, certificates of clients and TLS. */
#include "serve/serve.h"

#include <stdbool.h>

/* "127.0.0.1:7380", "[::1]:7380" or "unix:/run/dibs.sock".  `config` NULL: for this machine alone, whatever TLS there
 * is. -1: `error` has the reason. */
int dibs__socket_listen(const struct serve_config *config, bool service, const char *address, bool *local,
                        dibs_error *error);

/* Those that systemd has made for this process (socket activation); a process that this one starts inherits the
 * variables, but not the sockets. */
int dibs__sockets_count(void);
struct passed_sockets {
  size_t count;
  int fd[SERVE_ADDRESSES_MAX];
  bool local[SERVE_ADDRESSES_MAX]; /* a Unix socket */
};
/* false: one of them cannot be used. */
bool dibs__sockets_passed(const struct serve_config *config, bool service, struct passed_sockets *passed,
                          dibs_error *error);

#endif

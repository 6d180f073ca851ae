/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SERVE_SERVE_H
#define DIBS_SERVE_SERVE_H
/* The daemon as the command line sees it. */
#include "dibs.h"

enum { SERVE_ADDRESSES_MAX = 8, SERVE_ORIGINS_MAX = 8 };

struct serve_config {
  const char *store;
  const char *addresses[SERVE_ADDRESSES_MAX]; /* "127.0.0.1:7380", "[::1]:7380", "unix:/run/dibs.sock" */
  size_t address_count;
  const char *origins[SERVE_ORIGINS_MAX]; /* whose pages may use the server: "https://app.example" */
  size_t origin_count;
  const char *tokens;            /* a file; NULL: every client may send every request */
  const char *certificate, *key; /* files; NULL: no TLS */
  const char *client_ca;         /* a file: clients need a certificate that it signed; NULL: they need none */
  const char *access_log;        /* a file, "-": standard output; NULL: none */
  /* Prints a message for people. */
  void (*note)(const char *format, ...) __attribute__((format(printf, 1, 2)));
  /* Prints a line of the log of actions, which is no message that may be left out. */
  void (*act)(const char *format, ...) __attribute__((format(printf, 1, 2)));
  uint32_t threads;       /* for work that blocks */
  uint32_t connections;   /* at most */
  uint32_t waiters;       /* at most */
  uint32_t body_bytes;    /* at most, of one request */
  uint32_t header_bytes;  /* at most, with the request line */
  uint32_t idle_s;        /* a connection without a request is closed after it */
  uint32_t read_s;        /* a request must be complete after it */
  uint32_t send_s;        /* an answer must have been taken after it */
  uint32_t bodies_mib;    /* of memory for the bodies of all requests, at most */
  uint32_t requests;      /* that run, at most: those that wait are not among them */
  uint32_t event_clients; /* of /v1/events, at most */
  uint32_t watched_lists; /* of all of them together, at most */
  uint32_t queue;         /* of requests that wait for a thread, at most */
  uint32_t page;          /* entries in a page of a list, at most */
  uint32_t session_ids;   /* of waiters and leases of one remote client of the store, at most */
  uint32_t rate;          /* of requests a second, for each token, at most; 0: no limit */
};

/* Serves until TERM or INT.  `ready` is called with the URI of the store, without its
 * password, once requests are taken.  OK; or why it could not begin. */
dibs_status dibs__serve(const struct serve_config *config, void (*ready)(const char *store), dibs_error *error);

#endif

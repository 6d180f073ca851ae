/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TASK_HTTP_H
#define DIBS_TASK_HTTP_H
/*
 * Messages as HTTP requests: POST, to one URL.  Many threads each send one request and wait for its answer; one thread
 * of the client performs all of them, over connections that it keeps.
 *
 * The protocol itself is in a module, dibs-http.so, over libcurl (curl.c): most users of dibs do not need it, and
 * loading libcurl would double the time in which `dibs run` starts.
 *
 * Nothing that a receiver does takes more memory or time than this: a response ends after DIBS__HTTP_HEADERS bytes of
 * headers (no answer then), DIBS__HTTP_BODY bytes of its body (its status counts), and total_ms.
 */
#include "base/port.h"
#include "store/module.h"
#include "task/reply.h"

enum { DIBS__HTTP_HEADERS = 65536, DIBS__HTTP_BODY = 1048576, DIBS__HTTP_CONNECTIONS = 1024 };

struct dibs__http_options {
  const char *url;
  const char *ca;       /* a file of certificates that sign the receiver's; NULL: those of the system */
  const char *agent;    /* User-Agent */
  int64_t connect_ms;   /* until a connection is made, with TLS */
  int64_t total_ms;     /* of one request, from its beginning to the end of its response */
  uint32_t connections; /* at most */
};

struct dibs__http_request {
  /* The caller's, unchanged until the answer. */
  const char *const *headers; /* "Name: value", NULL at the end */
  const char *body;
  size_t length;
  /* The answer. */
  struct dibs__http_answer answer;
  /* The client's. */
  dibs__word over;
  bool cancelled;
  struct dibs__http_request *next;
  void *transfer; /* of the module */
};

/* ---- The client (http.c) ---- */

struct dibs__http;

/* false: `why` says what is wrong: an option, the module, or the memory. */
bool dibs__http_open(const struct dibs__http_options *options, struct dibs__http **http, char *why, size_t size);
/* After the last answer.  NULL is fine. */
void dibs__http_close(struct dibs__http *http);
/* Sends a request and waits for its answer.  `gone` is called now and then, and if it returns true the request is given
 * up.  Any thread. */
void dibs__http_send(struct dibs__http *http, struct dibs__http_request *request, bool (*gone)(void *arg), void *arg);

/* ---- The module (curl.c) ---- */

struct dibs__transfers;

#define DIBS__HTTP_MODULE_ABI 1u
#define DIBS__HTTP_MODULE_FILE "dibs-http.so"
#define DIBS__HTTP_MODULE_SYMBOL "dibs__http_module"

/* One thread calls all of them, but `wake`. */
struct dibs__http_module {
  struct dibs__module_head head;
  struct dibs__transfers *(*open)(const struct dibs__http_options *options, char *why, size_t size);
  void (*close)(struct dibs__transfers *transfers);
  bool (*start)(struct dibs__transfers *transfers, struct dibs__http_request *request); /* false: no memory */
  void (*cancel)(struct dibs__transfers *transfers, struct dibs__http_request *request);
  /* Waits for progress, for `ms` at most, and returns a request that was answered; NULL: none yet. */
  struct dibs__http_request *(*step)(struct dibs__transfers *transfers, int ms);
  void (*wake)(struct dibs__transfers *transfers); /* ends the wait of step; any thread */
};

#endif

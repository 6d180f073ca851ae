/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_PROXY_INSIDE_H
#define DIBS_TEST_PROXY_INSIDE_H
/* What the files of the proxy share.  All of it belongs to the one thread that runs the proxy. */
#include "base/port.h"
#include "proxy.h"

#include <sys/socket.h>

/* The receiver of an epoll event. */
enum source_kind { SOURCE_LISTENER, SOURCE_CONTROL_LISTENER, SOURCE_CONTROL, SOURCE_CLIENT, SOURCE_SERVER };
struct source {
  enum source_kind kind;
  void *owner; /* struct proxy, struct control, struct link */
};

struct chunk {
  struct chunk *next;
  dibs__tick due;
  size_t at, size;
  uint8_t bytes[];
};

/* One direction of a connection.  Only the first chunk's `due` counts: the order is kept. */
struct flow {
  struct chunk *first, *last;
  size_t queued;
  bool ended;   /* the sender has ended its side */
  bool passed;  /* and the receiver has seen that */
  bool blocked; /* the receiver accepts no more now */
};

/* A client's connection and its connection to the server. */
struct link {
  struct link *next;
  struct proxy *proxy;
  struct source client_source, server_source;
  int client, server;                    /* -1: closed */
  uint32_t client_events, server_events; /* what epoll watches for; 0: nothing */
  struct flow up, down;
  struct framer framer;
  uint8_t *pending; /* an incomplete request, held because a trigger may match it */
  size_t pending_size, pending_capacity;
  dibs__tick doom_by; /* if doomed: how long the server may take */
  bool connecting;
  bool lost;   /* bytes were dropped: this connection cannot continue */
  bool doomed; /* the queue to the server is still sent; the answer is dropped */
  bool dead;   /* closed; freed at the end of the loop's pass */
};

enum trigger_kind { CUT_BEFORE, CUT_AFTER, ORPHAN, HOLD };
enum { PATTERN_MAX = 256, TRIGGERS_MAX = 16 };
struct trigger {
  enum trigger_kind kind;
  uint8_t pattern[PATTERN_MAX];
  size_t size;
  int64_t ms;
  uint32_t nth;   /* matches until it fires; 0: it fires from now on */
  uint32_t times; /* how often it fires */
};
#define TIMES_ALWAYS UINT32_MAX

enum proxy_mode { MODE_PASS, MODE_STALL, MODE_HALF_OPEN };

struct control {
  struct control *next;
  struct proxy *proxy;
  struct source source;
  int in, out;
  bool owned; /* `in` is the proxy's own socket, closed at the end */
  bool last;
  bool dead;
  size_t have;
  char line[PROXY_LINE];
};

struct proxy {
  int epoll, listener, control_listener;
  uint16_t port;
  bool listening, hears; /* epoll watches the listener */
  bool full;             /* no descriptor was available for the last connection */
  struct source listener_source, control_source;
  struct sockaddr_storage to;
  socklen_t to_size;
  enum frame_protocol protocol;
  struct link *links;
  struct control *controls;
  char *control_path;
  enum proxy_mode mode;
  int64_t delay_ms;
  struct trigger triggers[TRIGGERS_MAX];
  size_t trigger_count;
  uint64_t accepted, up_bytes, down_bytes, fired;
  bool quit;
};

/* ---- Connections: proxy_link.c ---- */

void link_accept(struct proxy *proxy);
void link_event(struct link *link, bool client, uint32_t events);
/* Moves the bytes that are due and closes finished sides; returns when to call it again. */
dibs__tick link_serve(struct link *link, dibs__tick now);
void link_reset(struct link *link);
/* Back to normal: forwards the bytes that were held, resets a connection that lost bytes. */
void link_pass(struct link *link);
void link_free(struct link *link);

/* ---- Lines: proxy_control.c ---- */

void control_event(struct control *control);
void control_accept(struct proxy *proxy);

/* ---- The loop: proxy.c ---- */

/* Watches fd for these events instead of `seen`; 0: not at all, so that an error on it does not make the loop spin. */
void proxy_watch(struct proxy *proxy, int fd, struct source *source, uint32_t *seen, uint32_t events);
bool proxy_refuse(struct proxy *proxy, bool refuse);
/* Where new connections go: "host:port". */
bool proxy_aim(struct proxy *proxy, const char *to, char why[PROXY_WHY]);
/* The trigger that this request fires, or NULL.  Counts the match. */
const struct trigger *proxy_match(struct proxy *proxy, const uint8_t *request, size_t size, struct trigger *copy);

#endif

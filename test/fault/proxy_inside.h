/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_PROXY_INSIDE_H
#define DIBS_TEST_PROXY_INSIDE_H
/* What the parts of the proxy share.  All of it belongs to the one thread that runs it. */
#include "base/port.h"
#include "proxy.h"

#include <sys/socket.h>

/* Who an event of epoll is for. */
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

/* One direction of a connection.  Only the first chunk's due counts: order is kept. */
struct flow {
  struct chunk *first, *last;
  size_t queued;
  bool ended;   /* who sends has said that no more comes */
  bool passed;  /* and who receives has been told */
  bool blocked; /* who receives takes no more now */
};

/* A client's connection and the server's that belongs to it. */
struct link {
  struct link *next;
  struct proxy *proxy;
  struct source client_source, server_source;
  int client, server;                    /* -1: closed */
  uint32_t client_events, server_events; /* what epoll watches for; 0: it is not asked */
  struct flow up, down;
  struct framer framer;
  uint8_t *pending; /* a request that has not ended, kept back because it may be a trigger's */
  size_t pending_size, pending_room;
  dibs__tick doom_by; /* of a doomed one: how long its server may take */
  bool connecting;
  bool lost;   /* bytes were swallowed: this connection can't go on */
  bool doomed; /* what is queued for the server still goes there; nobody hears the answer */
  bool dead;   /* closed; freed at the end of the turn */
};

enum trigger_kind { CUT_BEFORE, CUT_AFTER, ORPHAN, HOLD };
enum { PATTERN_MAX = 256, TRIGGERS_MAX = 16 };
struct trigger {
  enum trigger_kind kind;
  uint8_t pattern[PATTERN_MAX];
  size_t size;
  int64_t ms;
  uint32_t nth;   /* matches until it fires; 0: it fires from now on */
  uint32_t times; /* that it fires */
};
#define TIMES_ALWAYS UINT32_MAX

enum proxy_mode { MODE_PASS, MODE_STALL, MODE_HALF_OPEN };

struct control {
  struct control *next;
  struct proxy *proxy;
  struct source source;
  int in, out;
  bool owned; /* in is a socket of ours, closed at the end */
  bool last;
  bool dead;
  size_t have;
  char line[PROXY_LINE];
};

struct proxy {
  int epoll, listener, control_listener;
  uint16_t port;
  bool listening, hears; /* epoll watches the listener */
  bool full;             /* no descriptor was left for the last one that came */
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
/* Moves what is due, ends what has ended; when it must be looked at again. */
dibs__tick link_serve(struct link *link, dibs__tick now);
void link_reset(struct link *link);
/* Back to normal: what was held is let go, what has lost bytes is reset. */
void link_pass(struct link *link);
void link_free(struct link *link);

/* ---- Lines: proxy_control.c ---- */

void control_event(struct control *control);
void control_accept(struct proxy *proxy);

/* ---- The loop: proxy.c ---- */

/* Watches fd for these events instead of `seen`; 0: not at all, so that an error on it does not spin the loop. */
void proxy_watch(struct proxy *proxy, int fd, struct source *source, uint32_t *seen, uint32_t events);
bool proxy_refuse(struct proxy *proxy, bool refuse);
/* Where new connections go: "host:port". */
bool proxy_aim(struct proxy *proxy, const char *to, char why[PROXY_WHY]);
/* The trigger that this request of a client sets off, or NULL.  Counts. */
const struct trigger *proxy_match(struct proxy *proxy, const uint8_t *request, size_t size, struct trigger *copy);

#endif

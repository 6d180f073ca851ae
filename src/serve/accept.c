/* SPDX-License-Identifier: MIT */
/*
 * The daemon takes connections itself: libmicrohttpd has a limit for each address, and --connections is one for all.
 *
 * libmicrohttpd up to 0.9.75 begins a connection, which counts it, in MHD_add_connection.  Later versions put it into a
 * queue, and begin it in the next MHD_run.
 */
#include "serve/accept.h"
#include "serve/server.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
  RESERVED = 16, /* connections to the address of dibs__loop_listen beyond the limit: operators look at a full server */
  ACCEPTED_MOST = 64,  /* in one round of the loop: requests of the others are not delayed for longer */
  RETRY_AFTER_MS = 100 /* when the system has no descriptor or memory for a connection */
};

static bool is_full(const struct server *server, const struct listener *listener) {
  return server->connection_count >= server->config.connections + (listener->reserves ? (uint32_t)RESERVED : 0);
}

/* `all`: no listener can take a connection; otherwise those that are full. */
static void pause_accepting(struct server *server, bool all, int64_t ms) {
  server->accepts_from = dibs__tick_add_ms(dibs__tick_now(), ms);
  server->accept_paused = true;
  server->accept_retries = all;
  for (size_t i = 0; i < server->listener_count; i++)
    if (all || is_full(server, &server->listeners[i]))
      epoll_ctl(server->epoll, EPOLL_CTL_DEL, server->listeners[i].socket, NULL);
}

/* false: there is none, or the system cannot take it now. */
static bool accept_one(struct server *server, struct listener *listener) {
  struct sockaddr_storage address = {0};
  socklen_t size = sizeof address;
  int fd = accept4(listener->socket, (struct sockaddr *)&address, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd >= 0) {
    struct MHD_Daemon *daemon = dibs__http_shard(listener)->daemon;
    uint32_t before = server->connection_count;
    enum MHD_Result result = MHD_add_connection(daemon, fd, (struct sockaddr *)&address, size);
    if (result == MHD_YES && server->connection_count == before)
      MHD_run(daemon); /* (It closes a connection that it refuses.) */
    return true;
  }
  if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
    pause_accepting(server, true, RETRY_AFTER_MS);
  return errno == EINTR || errno == ECONNABORTED;
}

static void accept_ready(struct server *server, struct source *source) {
  struct listener *listener = (struct listener *)((char *)source - offsetof(struct listener, accepts));
  bool more = true;
  for (int i = 0; i < ACCEPTED_MOST && more && !is_full(server, listener); i++) more = accept_one(server, listener);
  if (more && is_full(server, listener)) pause_accepting(server, false, 0);
}

bool dibs__accept_begin(struct server *server, struct listener *listener) {
  return dibs__loop_add(server, &listener->accepts, listener->socket, accept_ready);
}

void dibs__accept_tick(struct server *server, dibs__tick now) {
  if (!server->accept_paused || server->stopping || dibs__tick_before(now, server->accepts_from)) return;
  server->accept_paused = server->accept_retries = false;
  for (size_t i = 0; i < server->listener_count; i++)
    if (is_full(server, &server->listeners[i]))
      server->accept_paused = true;
    else
      (void)dibs__accept_begin(server, &server->listeners[i]); /* it may be there still */
}

dibs__tick dibs__accept_next(const struct server *server) {
  return server->accept_retries ? server->accepts_from : DIBS__TICK_NEVER;
}

void dibs__accept_end(struct server *server) {
  server->accept_retries = false;
  for (size_t i = 0; i < server->listener_count; i++) {
    struct listener *listener = &server->listeners[i];
    if (listener->socket < 0) continue;
    if (server->epoll >= 0) epoll_ctl(server->epoll, EPOLL_CTL_DEL, listener->socket, NULL);
    close(listener->socket); /* closing alone would leave it in the epoll set if another process has it, too */
    listener->socket = -1;
  }
}

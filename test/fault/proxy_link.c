/* SPDX-License-Identifier: MIT */
/*
 * One connection of the proxy.  Bytes pass through a queue in each direction; each chunk has an instant before which it
 * is not forwarded.  While a trigger is armed, a request is kept until it is complete, because the whole request
 * decides whether the trigger fires.
 */
#include "proxy_inside.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
  READ_SIZE = 64 * 1024,
  QUEUE_MAX = 1024 * 1024,        /* beyond this, the proxy does not read from the sender */
  PENDING_MAX = 64 * 1024 * 1024, /* longer data is not a request; four times MariaDB's largest packet */
  DOOM_MS = 10000                 /* a server that has not closed a connection by then never will */
};

/* ---- Flows ---- */

static bool flow_push(struct flow *flow, const uint8_t *bytes, size_t size, dibs__tick due) {
  if (size == 0) return true;
  struct chunk *chunk = malloc(sizeof *chunk + size);
  if (!chunk) return false;
  *chunk = (struct chunk){.due = due, .size = size};
  memcpy(chunk->bytes, bytes, size);
  if (flow->last)
    flow->last->next = chunk;
  else
    flow->first = chunk;
  flow->last = chunk;
  flow->queued += size;
  return true;
}

static void flow_drop(struct flow *flow) {
  while (flow->first) {
    struct chunk *next = flow->first->next;
    free(flow->first);
    flow->first = next;
  }
  flow->last = NULL;
  flow->queued = 0;
}

/* Sends the bytes that are due; false if the connection is broken. */
static bool flow_send(struct flow *flow, int fd, dibs__tick now, uint64_t *sent) {
  while (flow->first && !flow->blocked && !dibs__tick_before(now, flow->first->due)) {
    struct chunk *chunk = flow->first;
    ssize_t n = send(fd, chunk->bytes + chunk->at, chunk->size - chunk->at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) continue;
      flow->blocked = errno == EAGAIN;
      return flow->blocked;
    }
    *sent += (uint64_t)n;
    chunk->at += (size_t)n;
    flow->queued -= (size_t)n;
    if (chunk->at < chunk->size) continue;
    flow->first = chunk->next;
    if (!flow->first) flow->last = NULL;
    free(chunk);
  }
  return true;
}

/* ---- Ends ---- */

static void close_end(struct proxy *proxy, int *fd, struct source *source, uint32_t *events, bool reset) {
  if (*fd < 0) return;
  proxy_watch(proxy, *fd, source, events, 0);
  if (reset) setsockopt(*fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
  close(*fd);
  *fd = -1;
}

static void close_client(struct link *link, bool reset) {
  close_end(link->proxy, &link->client, &link->client_source, &link->client_events, reset);
}

static void close_server(struct link *link, bool reset) {
  close_end(link->proxy, &link->server, &link->server_source, &link->server_events, reset);
}

void link_reset(struct link *link) {
  close_client(link, true);
  close_server(link, true);
  link->dead = true;
}

void link_free(struct link *link) {
  link_reset(link);
  flow_drop(&link->up);
  flow_drop(&link->down);
  free(link->pending);
  free(link);
}

/* ---- Bytes from the client ---- */

static dibs__tick due_after(const struct link *link, int64_t ms) {
  if (link->proxy->delay_ms + ms == 0) return DIBS__TICK_ZERO;
  return dibs__tick_add_ms(dibs__tick_now(), link->proxy->delay_ms + ms);
}

static bool append_pending(struct link *link, const uint8_t *bytes, size_t size) {
  size_t wanted = link->pending_size + size;
  if (wanted > PENDING_MAX) return false;
  if (wanted > link->pending_capacity) {
    size_t capacity = wanted * 2;
    uint8_t *more = realloc(link->pending, capacity);
    if (!more) return false;
    link->pending = more;
    link->pending_capacity = capacity;
  }
  if (size > 0) memcpy(link->pending + link->pending_size, bytes, size);
  link->pending_size = wanted;
  return true;
}

static bool forward_pending(struct link *link, int64_t extra_ms) {
  bool ok = flow_push(&link->up, link->pending, link->pending_size, due_after(link, extra_ms));
  link->pending_size = 0;
  return ok;
}

/* A complete request is pending: decides its fate.  false: the link must end. */
static bool decide(struct link *link) {
  struct trigger copy;
  const struct trigger *trigger = proxy_match(link->proxy, link->pending, link->pending_size, &copy);
  if (!trigger) return forward_pending(link, 0);
  switch (trigger->kind) {
  case HOLD:
    return forward_pending(link, trigger->ms);
  case CUT_BEFORE:
    return false;
  case CUT_AFTER:
    break;
  case ORPHAN:
    close_client(link, true);
    break;
  }
  link->doomed = true;
  flow_drop(&link->down);
  return forward_pending(link, trigger->kind == ORPHAN ? trigger->ms : 0);
}

static bool client_says(struct link *link, const uint8_t *bytes, size_t size) {
  while (size > 0 && !link->doomed) {
    bool whole = link->proxy->trigger_count > 0 || link->pending_size > 0, ended = false;
    size_t took = frame_take(&link->framer, bytes, size, &ended);
    if (whole) {
      if (!append_pending(link, bytes, took)) return false;
      if (ended && !decide(link)) return false;
    } else {
      /* No trigger is armed: forwards everything and only tracks where requests end. */
      while (took < size) took += frame_take(&link->framer, bytes + took, size - took, &ended);
      if (!flow_push(&link->up, bytes, took, due_after(link, 0))) return false;
    }
    bytes += took;
    size -= took;
  }
  return true;
}

/* ---- Events ---- */

static bool took_bytes(struct link *link, bool client, const uint8_t *bytes, size_t size) {
  if (link->proxy->mode == MODE_HALF_OPEN) link->lost = true;
  if (link->lost) return true;
  if (client) return client_says(link, bytes, size);
  if (link->doomed) return true;
  return flow_push(&link->down, bytes, size, due_after(link, 0));
}

/* One side has ended, cleanly or not. */
static void side_ended(struct link *link, bool client, bool broken) {
  if (link->proxy->mode == MODE_HALF_OPEN || link->lost) {
    /* The other side must not see it. */
    link->lost = true;
    if (client)
      close_client(link, false);
    else
      close_server(link, false);
  } else if (link->doomed && client)
    close_client(link, true);
  else if (broken || link->doomed)
    link_reset(link);
  else if (client)
    link->up.ended = true;
  else
    link->down.ended = true;
}

static void read_side(struct link *link, bool client) {
  static _Thread_local uint8_t bytes[READ_SIZE];
  /* One piece may be longer than one read; after a few reads the other connections are served. */
  for (int turn = 0; turn < 16 && !link->dead; turn++) {
    int fd = client ? link->client : link->server;
    if (fd < 0) return;
    ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n > 0) {
      if (!took_bytes(link, client, bytes, (size_t)n)) link_reset(link);
      if ((size_t)n < sizeof bytes) return;
    } else {
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return;
      side_ended(link, client, n < 0);
      return;
    }
  }
}

void link_event(struct link *link, bool client, uint32_t events) {
  if (link->dead) return;
  if (!client && link->connecting) {
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(link->server, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) {
      link_reset(link);
      return;
    }
    link->connecting = false;
  }
  if (events & EPOLLOUT) {
    if (client)
      link->down.blocked = false;
    else
      link->up.blocked = false;
  }
  if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read_side(link, client);
}

/* ---- One pass of the loop ---- */

static void pass_end(struct flow *flow, int fd) {
  if (!flow->ended || flow->passed || flow->first || fd < 0) return;
  shutdown(fd, SHUT_WR);
  flow->passed = true;
}

/* The server has all queued bytes: it sees the end of the connection and gets time to process them. */
static void serve_doomed(struct link *link, dibs__tick now) {
  if (!link->up.first && !link->up.passed) {
    shutdown(link->server, SHUT_WR);
    link->up.passed = true;
    link->doom_by = dibs__tick_add_ms(now, DOOM_MS);
  }
  if (link->up.passed && !dibs__tick_before(now, link->doom_by)) link_reset(link);
}

static void watch_ends(struct link *link) {
  uint32_t client = 0, server = 0;
  if (link->proxy->mode != MODE_STALL) {
    if (!link->up.ended && !link->doomed && link->up.queued < QUEUE_MAX) client |= EPOLLIN;
    if (link->down.blocked) client |= EPOLLOUT;
    if (!link->connecting && !link->down.ended && (link->doomed || link->lost || link->down.queued < QUEUE_MAX))
      server |= EPOLLIN;
    if (link->connecting || link->up.blocked) server |= EPOLLOUT;
  }
  if (link->client >= 0) proxy_watch(link->proxy, link->client, &link->client_source, &link->client_events, client);
  if (link->server >= 0) proxy_watch(link->proxy, link->server, &link->server_source, &link->server_events, server);
}

dibs__tick link_serve(struct link *link, dibs__tick now) {
  struct proxy *proxy = link->proxy;
  if (link->dead) return DIBS__TICK_NEVER;
  if (link->lost) {
    if (link->client < 0 && link->server < 0)
      link->dead = true;
    else
      watch_ends(link);
    return DIBS__TICK_NEVER;
  }
  dibs__tick next = DIBS__TICK_NEVER;
  if (proxy->mode == MODE_PASS) {
    bool whole = link->connecting || flow_send(&link->up, link->server, now, &proxy->up_bytes);
    if (whole && link->client >= 0) whole = flow_send(&link->down, link->client, now, &proxy->down_bytes);
    if (!whole)
      link_reset(link);
    else if (link->doomed)
      serve_doomed(link, now);
    else {
      if (!link->connecting) pass_end(&link->up, link->server);
      pass_end(&link->down, link->client);
      if (link->up.passed && link->down.passed) {
        close_client(link, false);
        close_server(link, false);
        link->dead = true;
      }
    }
    if (link->dead) return next;
    if (link->up.first && !link->up.blocked && !link->connecting) next = link->up.first->due;
    if (link->down.first && !link->down.blocked) next = dibs__tick_min(next, link->down.first->due);
    if (link->doomed && link->up.passed) next = dibs__tick_min(next, link->doom_by);
  }
  watch_ends(link);
  return next;
}

void link_pass(struct link *link) {
  if (link->lost) {
    link_reset(link);
    return;
  }
  if (!forward_pending(link, 0)) link_reset(link);
  for (struct chunk *chunk = link->up.first; chunk; chunk = chunk->next) chunk->due = DIBS__TICK_ZERO;
  for (struct chunk *chunk = link->down.first; chunk; chunk = chunk->next) chunk->due = DIBS__TICK_ZERO;
}

static void link_open(struct proxy *proxy, int client) {
  static const int on = 1;
  struct link *link = calloc(1, sizeof *link);
  if (!link) {
    close(client);
    return;
  }
  *link = (struct link){.next = proxy->links, .proxy = proxy, .client = client, .server = -1};
  link->framer.protocol = proxy->protocol;
  link->client_source = (struct source){SOURCE_CLIENT, link};
  link->server_source = (struct source){SOURCE_SERVER, link};
  proxy->links = link;
  proxy->accepted++;
  setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  link->lost = proxy->mode == MODE_HALF_OPEN;
  if (link->lost) return;
  link->server = socket(proxy->to.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (link->server < 0) {
    link_reset(link);
    return;
  }
  setsockopt(link->server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  link->connecting = connect(link->server, (struct sockaddr *)&proxy->to, proxy->to_size) != 0;
  if (link->connecting && errno != EINPROGRESS) link_reset(link);
}

void link_accept(struct proxy *proxy) {
  for (int turn = 0; turn < 64; turn++) {
    int client = accept4(proxy->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (client < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      proxy->full = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
      return;
    }
    link_open(proxy, client);
  }
}

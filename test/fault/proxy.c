/* SPDX-License-Identifier: MIT */
/* The proxy's loop: waits for an event or for the next instant, then serves all connections. */
#include "proxy.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/un.h>
#include <unistd.h>

#include "proxy_inside.h"

enum { EVENTS = 64, BACKLOG = 1024 };

/* ---- Triggers ---- */

static bool found(const uint8_t *in, size_t size, const struct trigger *trigger) {
  for (size_t at = 0; at + trigger->size <= size; at++) {
    size_t same = 0;
    while (same < trigger->size && tolower(in[at + same]) == tolower(trigger->pattern[same])) same++;
    if (same == trigger->size) return true;
  }
  return false;
}

const struct trigger *proxy_match(struct proxy *proxy, const uint8_t *request, size_t size, struct trigger *copy) {
  for (size_t i = 0; i < proxy->trigger_count; i++) {
    struct trigger *trigger = &proxy->triggers[i];
    if (!found(request, size, trigger)) continue;
    if (trigger->nth > 1) {
      trigger->nth--;
      continue;
    }
    *copy = *trigger;
    proxy->fired++;
    if (trigger->times != TIMES_ALWAYS && --trigger->times == 0) {
      proxy->trigger_count--;
      memmove(trigger, trigger + 1, (proxy->trigger_count - i) * sizeof *trigger);
    }
    return copy;
  }
  return NULL;
}

/* ---- The loop ---- */

void proxy_watch(struct proxy *proxy, int fd, struct source *source, uint32_t *seen, uint32_t events) {
  if (*seen == events) return;
  struct epoll_event event = {.events = events, .data.ptr = source};
  int verb = events == 0 ? EPOLL_CTL_DEL : *seen == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  int r = epoll_ctl(proxy->epoll, verb, fd, &event);
  assert(r == 0);
  (void)r;
  *seen = events;
}

/* A bound socket that does not listen refuses connections, and keeps the port from other programs. */
bool proxy_refuse(struct proxy *proxy, bool refuse) {
  if (refuse != proxy->listening) return true;
  int r = refuse ? shutdown(proxy->listener, SHUT_RDWR) : listen(proxy->listener, BACKLOG);
  if (r == 0) proxy->listening = !refuse;
  return r == 0;
}

static void watch_listener(struct proxy *proxy) {
  uint32_t seen = proxy->hears ? EPOLLIN : 0;
  uint32_t wanted = proxy->listening && !proxy->full && proxy->mode != MODE_STALL ? EPOLLIN : 0;
  proxy_watch(proxy, proxy->listener, &proxy->listener_source, &seen, wanted);
  proxy->hears = seen != 0;
}

static void dispatch(struct proxy *proxy, const struct epoll_event *event) {
  const struct source *source = event->data.ptr;
  switch (source->kind) {
  case SOURCE_LISTENER:
    link_accept(proxy);
    break;
  case SOURCE_CONTROL_LISTENER:
    control_accept(proxy);
    break;
  case SOURCE_CONTROL:
    control_event(source->owner);
    break;
  case SOURCE_CLIENT:
    link_event(source->owner, true, event->events);
    break;
  case SOURCE_SERVER:
    link_event(source->owner, false, event->events);
    break;
  }
}

/* Serves all connections; returns the next instant at which one must be served. */
static dibs__tick serve(struct proxy *proxy) {
  dibs__tick now = dibs__tick_now(), next = DIBS__TICK_NEVER;
  for (struct link **at = &proxy->links; *at;) {
    struct link *link = *at;
    next = dibs__tick_min(next, link_serve(link, now));
    if (link->dead) {
      *at = link->next;
      link_free(link);
      proxy->full = false; /* a descriptor is available again */
    } else
      at = &link->next;
  }
  watch_listener(proxy);
  return next;
}

static void free_controls(struct proxy *proxy, bool all) {
  for (struct control **at = &proxy->controls; *at;) {
    struct control *control = *at;
    if (all || control->dead) {
      *at = control->next;
      epoll_ctl(proxy->epoll, EPOLL_CTL_DEL, control->in, NULL);
      if (control->owned) close(control->in);
      free(control);
    } else
      at = &control->next;
  }
}

void proxy_run(struct proxy *proxy) {
  while (!proxy->quit) {
    dibs__tick next = serve(proxy);
    int wait = -1;
    if (next.ns != DIBS__TICK_NEVER.ns) {
      int64_t left = dibs__tick_left_ms(dibs__tick_now(), next);
      wait = left > 60000 ? 60000 : (int)left;
    }
    struct epoll_event events[EVENTS];
    int n = epoll_wait(proxy->epoll, events, EVENTS, wait);
    for (int i = 0; i < n; i++) dispatch(proxy, &events[i]);
    free_controls(proxy, false);
  }
}

/* ---- Opening and closing ---- */

bool proxy_aim(struct proxy *proxy, const char *to, char why[PROXY_WHY]) {
  const char *colon = strrchr(to, ':');
  if (!colon || colon == to || !colon[1]) {
    snprintf(why, PROXY_WHY, "%s is not HOST:PORT", to);
    return false;
  }
  char host[256];
  snprintf(host, sizeof host, "%.*s", (int)(colon - to), to);
  struct addrinfo *found_at = NULL, hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  int r = getaddrinfo(host, colon + 1, &hints, &found_at);
  if (r != 0) {
    snprintf(why, PROXY_WHY, "%s: %s", to, gai_strerror(r));
    return false;
  }
  memcpy(&proxy->to, found_at->ai_addr, found_at->ai_addrlen);
  proxy->to_size = found_at->ai_addrlen;
  freeaddrinfo(found_at);
  return true;
}

/* A socket bound to the port on 127.0.0.1; it keeps the port while it does not listen.  0 takes any port. */
static int bound(uint16_t *port) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(*port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof at;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
  if (bind(fd, (struct sockaddr *)&at, size) != 0 || getsockname(fd, (struct sockaddr *)&at, &size) != 0) {
    close(fd);
    return -1;
  }
  *port = ntohs(at.sin_port);
  return fd;
}

static bool take_port(struct proxy *proxy, uint16_t wanted, char why[PROXY_WHY]) {
  /* When a socket stops listening, it loses a port that the kernel chose and keeps a port that was requested. So a
   * second socket requests the chosen port while the first one still exists. */
  int chosen = -1;
  proxy->port = wanted;
  if (wanted == 0) chosen = bound(&proxy->port);
  if (wanted != 0 || chosen >= 0) proxy->listener = bound(&proxy->port);
  if (chosen >= 0) close(chosen);
  if (proxy->listener >= 0 && proxy_refuse(proxy, false)) return true;
  snprintf(why, PROXY_WHY, "127.0.0.1:%u: %s", (unsigned)wanted, strerror(errno));
  return false;
}

struct proxy *proxy_open(const struct proxy_options *options, char why[PROXY_WHY]) {
  struct proxy *proxy = calloc(1, sizeof *proxy);
  if (!proxy) return NULL;
  proxy->listener = proxy->control_listener = -1;
  proxy->protocol = options->protocol;
  proxy->listener_source = (struct source){SOURCE_LISTENER, proxy};
  proxy->control_source = (struct source){SOURCE_CONTROL_LISTENER, proxy};
  proxy->epoll = epoll_create1(EPOLL_CLOEXEC);
  if (proxy->epoll < 0) snprintf(why, PROXY_WHY, "epoll: %s", strerror(errno));
  if (proxy->epoll < 0 || !proxy_aim(proxy, options->to, why) || !take_port(proxy, options->port, why)) {
    proxy_close(proxy);
    return NULL;
  }
  return proxy;
}

uint16_t proxy_port(const struct proxy *proxy) {
  return proxy->port;
}

bool proxy_listen_at(struct proxy *proxy, const char *path, char why[PROXY_WHY]) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof at.sun_path) {
    snprintf(why, PROXY_WHY, "%.100s...: the path of a socket has at most %zu bytes", path, sizeof at.sun_path - 1);
    return false;
  }
  memcpy(at.sun_path, path, strlen(path));
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  uint32_t seen = 0;
  if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) != 0 || listen(fd, 16) != 0 ||
      !(proxy->control_path = strdup(path))) {
    snprintf(why, PROXY_WHY, "%s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return false;
  }
  proxy->control_listener = fd;
  proxy_watch(proxy, fd, &proxy->control_source, &seen, EPOLLIN);
  return true;
}

void proxy_close(struct proxy *proxy) {
  if (!proxy) return;
  while (proxy->links) {
    struct link *link = proxy->links;
    proxy->links = link->next;
    link_free(link);
  }
  free_controls(proxy, true);
  if (proxy->control_path) unlink(proxy->control_path);
  free(proxy->control_path);
  if (proxy->control_listener >= 0) close(proxy->control_listener);
  if (proxy->listener >= 0) close(proxy->listener);
  if (proxy->epoll >= 0) close(proxy->epoll);
  free(proxy);
}

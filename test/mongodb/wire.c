/* SPDX-License-Identifier: MIT */
/* One thread, one connection at a time.  A message of the protocol begins with its length. */
#include "wire.h"

#include "base/port.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MESSAGE_MAX = 48 << 20, TURN_MS = 2 };

struct wire {
  dibs__thread *thread;
  int listener, client, server; /* -1: none */
  uint16_t port;
  struct sockaddr_in to;
  uint8_t *message;
  size_t len;
  dibs__mutex lock; /* guards what follows */
  enum wire_end how;
  int left; /* 0: nothing is counted */
  bool ended, held, release, closing;
};

/* ---- Messages ---- */

static bool move(int fd, uint8_t *at, size_t len, bool reads) {
  while (len > 0) {
    ssize_t n = reads ? recv(fd, at, len, 0) : send(fd, at, len, MSG_NOSIGNAL);
    if (n <= 0) return false;
    at += n;
    len -= (size_t)n;
  }
  return true;
}

static bool receive(struct wire *w, int from) {
  int32_t len = 0;
  if (!move(from, w->message, sizeof len, true)) return false;
  memcpy(&len, w->message, sizeof len);
  if (len < 16 || len > MESSAGE_MAX) return false;
  w->len = (size_t)len;
  return move(from, w->message + sizeof len, w->len - sizeof len, true);
}

static void hang_up(struct wire *w) {
  if (w->client >= 0) close(w->client);
  if (w->server >= 0) close(w->server);
  w->client = w->server = -1;
}

/* ---- The thread ---- */

static void take_client(struct wire *w) {
  int fd = accept(w->listener, NULL, NULL);
  if (fd < 0) return;
  dibs__mutex_lock(&w->lock);
  bool dead = w->ended && w->how == WIRE_KILL;
  dibs__mutex_unlock(&w->lock);
  if (dead || w->client >= 0) {
    close(fd);
    return;
  }
  w->client = fd;
  w->server = socket(AF_INET, SOCK_STREAM, 0);
  if (w->server < 0 || connect(w->server, (const struct sockaddr *)&w->to, sizeof w->to) != 0) hang_up(w);
}

/* The request that was just received is the last one. */
static bool is_last(struct wire *w, enum wire_end *how) {
  dibs__mutex_lock(&w->lock);
  bool last = w->left > 0 && --w->left == 0;
  w->ended = w->ended || last;
  w->held = w->held || (last && w->how == WIRE_STOP);
  *how = w->how;
  dibs__mutex_unlock(&w->lock);
  return last;
}

static void carry_request(struct wire *w) {
  enum wire_end how;
  if (!receive(w, w->client)) {
    hang_up(w);
    return;
  }
  bool last = is_last(w, &how);
  if (last && how == WIRE_STOP) return;
  bool fine = move(w->server, w->message, w->len, false) && (!last || receive(w, w->server));
  if (fine && last && how == WIRE_DAMAGE) {
    memset(w->message, 0, sizeof(int32_t)); /* its length */
    fine = move(w->client, w->message, w->len, false);
  }
  if (last || !fine) hang_up(w);
}

static void deliver_held(struct wire *w) {
  if (w->server < 0 || !move(w->server, w->message, w->len, false)) hang_up(w);
  dibs__mutex_lock(&w->lock);
  w->held = false;
  dibs__mutex_unlock(&w->lock);
}

static void run_wire(void *arg) {
  struct wire *w = arg;
  for (;;) {
    dibs__mutex_lock(&w->lock);
    bool closing = w->closing, held = w->held, release = w->release;
    dibs__mutex_unlock(&w->lock);
    if (closing) break;
    if (held && release) deliver_held(w);
    struct pollfd fds[] = {
        {w->listener, POLLIN, 0}, {held ? -1 : w->client, POLLIN, 0}, {held ? -1 : w->server, POLLIN, 0}};
    if (poll(fds, 3, TURN_MS) <= 0) continue;
    if (fds[1].fd >= 0 && fds[1].fd == w->client && fds[1].revents) carry_request(w);
    if (fds[2].fd >= 0 && fds[2].fd == w->server && fds[2].revents && w->client >= 0 &&
        (!receive(w, w->server) || !move(w->client, w->message, w->len, false)))
      hang_up(w);
    if (fds[0].revents) take_client(w); /* after the one before was hung up */
  }
  hang_up(w);
}

/* ---- For the test ---- */

struct wire *wire_open(const char *host, uint16_t port) {
  struct wire *w = calloc(1, sizeof *w);
  struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof here;
  if (!w) return NULL;
  dibs__mutex_init(&w->lock);
  w->client = w->server = -1;
  w->message = malloc(MESSAGE_MAX);
  w->to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
  w->listener = socket(AF_INET, SOCK_STREAM, 0);
  bool fine = w->message && inet_pton(AF_INET, host, &w->to.sin_addr) == 1 && w->listener >= 0 &&
              bind(w->listener, (const struct sockaddr *)&here, size) == 0 && listen(w->listener, 8) == 0 &&
              getsockname(w->listener, (struct sockaddr *)&here, &size) == 0;
  w->port = ntohs(here.sin_port);
  if (fine) w->thread = dibs__thread_start("wire", run_wire, w);
  if (w->thread) return w;
  wire_close(w);
  return NULL;
}

uint16_t wire_port(const struct wire *w) {
  return w->port;
}

void wire_arm(struct wire *w, enum wire_end how, int nth) {
  dibs__mutex_lock(&w->lock);
  w->how = how;
  w->left = nth;
  w->ended = w->held = w->release = false;
  dibs__mutex_unlock(&w->lock);
}

bool wire_ended(struct wire *w) {
  dibs__mutex_lock(&w->lock);
  bool ended = w->ended;
  dibs__mutex_unlock(&w->lock);
  return ended;
}

void wire_release(struct wire *w) {
  for (bool held = true; held;) {
    dibs__mutex_lock(&w->lock);
    w->release = true;
    held = w->held;
    dibs__mutex_unlock(&w->lock);
    if (held) dibs__nap_ms(1);
  }
}

void wire_close(struct wire *w) {
  if (!w) return;
  dibs__mutex_lock(&w->lock);
  w->closing = true;
  dibs__mutex_unlock(&w->lock);
  if (w->thread) dibs__thread_join(w->thread);
  if (w->listener >= 0) close(w->listener);
  dibs__mutex_destroy(&w->lock);
  free(w->message);
  free(w);
}

/* SPDX-License-Identifier: MIT */
#include "proxy_bed.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/port.h"

enum { CLIENTS = 32, LINES = 4096, LINE = 64 };

struct peer {
  int fd;
  size_t have;
  char line[LINE];
};

struct echo {
  int listener, notifier; /* the notifier: check `stop` and `hang_up` */
  uint16_t port;
  dibs__thread *thread;
  dibs__mutex lock; /* guards the members below */
  bool stop, hang_up;
  struct peer peers[CLIENTS];
  size_t count, lines, ends, resets;
  char heard[LINES][LINE];
};

/* ---- The server ---- */

static void take_line(struct echo *echo, const char *line) {
  if (strncmp(line, "slow", 4) == 0) dibs__nap_ms(SLOW_MS);
  dibs__mutex_lock(&echo->lock);
  if (echo->lines < LINES) snprintf(echo->heard[echo->lines++], LINE, "%s", line);
  dibs__mutex_unlock(&echo->lock);
}

/* Sends everything back unchanged; while the client does not read, the server does not read either. */
static void say_again(int fd, const char *bytes, size_t size) {
  while (size > 0) {
    ssize_t n = send(fd, bytes, size, MSG_NOSIGNAL);
    if (n < 0) return;
    bytes += n;
    size -= (size_t)n;
  }
}

/* false: the connection has ended. */
static bool serve_peer(struct echo *echo, struct peer *peer) {
  char bytes[16 * 1024];
  ssize_t n = recv(peer->fd, bytes, sizeof bytes, 0);
  if (n <= 0) {
    dibs__mutex_lock(&echo->lock);
    if (n == 0)
      echo->ends++;
    else
      echo->resets++;
    dibs__mutex_unlock(&echo->lock);
    return false;
  }
  for (ssize_t i = 0; i < n; i++) {
    if (bytes[i] != '\n') {
      if (peer->have < LINE - 1) peer->line[peer->have++] = bytes[i];
      continue;
    }
    peer->line[peer->have] = '\0';
    peer->have = 0;
    take_line(echo, peer->line);
  }
  say_again(peer->fd, bytes, (size_t)n);
  return true;
}

static void drop_peer(struct echo *echo, size_t at) {
  dibs__mutex_lock(&echo->lock);
  close(echo->peers[at].fd);
  echo->peers[at] = echo->peers[--echo->count];
  dibs__mutex_unlock(&echo->lock);
}

static void accept_peer(struct echo *echo) {
  int fd = accept4(echo->listener, NULL, NULL, SOCK_CLOEXEC);
  if (fd < 0) return;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
  dibs__mutex_lock(&echo->lock);
  if (echo->count < CLIENTS)
    echo->peers[echo->count++] = (struct peer){.fd = fd};
  else
    close(fd);
  dibs__mutex_unlock(&echo->lock);
}

static void serve(void *arg) {
  struct echo *echo = arg;
  for (;;) {
    struct pollfd ready[CLIENTS + 2] = {{.fd = echo->listener, .events = POLLIN},
                                        {.fd = echo->notifier, .events = POLLIN}};
    size_t count = echo->count; /* only this thread changes it */
    for (size_t i = 0; i < count; i++) ready[i + 2] = (struct pollfd){.fd = echo->peers[i].fd, .events = POLLIN};
    if (poll(ready, count + 2, -1) < 0) continue;
    dibs__notifier_lower(echo->notifier);
    dibs__mutex_lock(&echo->lock);
    bool stop = echo->stop, hang_up = echo->hang_up;
    echo->hang_up = false;
    dibs__mutex_unlock(&echo->lock);
    for (size_t i = count; i-- > 0;)
      if (stop || hang_up || (ready[i + 2].revents && !serve_peer(echo, &echo->peers[i]))) drop_peer(echo, i);
    if (stop) return;
    if (ready[0].revents) accept_peer(echo);
  }
}

static struct echo *echo_start(void) {
  struct echo *echo = calloc(1, sizeof *echo);
  assert_non_null(echo);
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof at;
  echo->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(echo->listener, (struct sockaddr *)&at, size), 0);
  assert_int_equal(listen(echo->listener, CLIENTS), 0);
  assert_int_equal(getsockname(echo->listener, (struct sockaddr *)&at, &size), 0);
  echo->port = ntohs(at.sin_port);
  echo->notifier = dibs__notifier_open();
  dibs__mutex_init(&echo->lock);
  echo->thread = dibs__thread_start("test-echo", serve, echo);
  assert_non_null(echo->thread);
  return echo;
}

static void echo_request(struct echo *echo, bool *what) {
  dibs__mutex_lock(&echo->lock);
  *what = true;
  dibs__mutex_unlock(&echo->lock);
  dibs__notifier_raise(echo->notifier);
}

struct bed bed_make(enum frame_protocol protocol) {
  struct bed bed = {.echo = echo_start()};
  char to[32], why[PROXY_WHY] = "no memory";
  snprintf(to, sizeof to, "127.0.0.1:%u", (unsigned)bed.echo->port);
  bed.proxied = proxied_start(&(struct proxy_options){.to = to, .protocol = protocol}, why);
  if (!bed.proxied) fail_msg("%s", why);
  return bed;
}

void bed_end(struct bed *bed) {
  proxied_stop(bed->proxied);
  echo_request(bed->echo, &bed->echo->stop);
  dibs__thread_join(bed->echo->thread);
  close(bed->echo->listener);
  dibs__notifier_close(bed->echo->notifier);
  dibs__mutex_destroy(&bed->echo->lock);
  free(bed->echo);
}

void tell(struct bed *bed, const char *line) {
  char answer[PROXY_LINE];
  if (!proxied_say(bed->proxied, line, answer)) fail_msg("%s: %s", line, answer);
}

/* ---- What the server saw ---- */

bool echo_heard(struct bed *bed, const char *line) {
  bool heard = false;
  dibs__mutex_lock(&bed->echo->lock);
  for (size_t i = 0; i < bed->echo->lines; i++) heard = heard || strcmp(bed->echo->heard[i], line) == 0;
  dibs__mutex_unlock(&bed->echo->lock);
  return heard;
}

bool echo_hears(struct bed *bed, const char *line) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), LONG_MS);
  while (!echo_heard(bed, line)) {
    if (!dibs__tick_before(dibs__tick_now(), by)) return false;
    dibs__nap_ms(1);
  }
  return true;
}

static size_t read_count(struct bed *bed, const size_t *count) {
  dibs__mutex_lock(&bed->echo->lock);
  size_t value = *count;
  dibs__mutex_unlock(&bed->echo->lock);
  return value;
}

size_t echo_lines(struct bed *bed) {
  return read_count(bed, &bed->echo->lines);
}

size_t echo_open(struct bed *bed) {
  return read_count(bed, &bed->echo->count);
}

bool echo_sees_ends(struct bed *bed, size_t ends, size_t resets) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), LONG_MS);
  while (read_count(bed, &bed->echo->ends) != ends || read_count(bed, &bed->echo->resets) != resets) {
    if (!dibs__tick_before(dibs__tick_now(), by)) return false;
    dibs__nap_ms(1);
  }
  return true;
}

void echo_hang_up(struct bed *bed) {
  echo_request(bed->echo, &bed->echo->hang_up);
}

/* ---- Clients ---- */

int client_connect(struct bed *bed) {
  struct sockaddr_in at = {
      .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(proxied_port(bed->proxied))};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(fd >= 0);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
  if (connect(fd, (struct sockaddr *)&at, sizeof at) == 0) return fd;
  int error = errno;
  close(fd);
  errno = error;
  return -1;
}

void client_say(int fd, const char *text) {
  size_t size = strlen(text);
  assert_int_equal(send(fd, text, size, MSG_NOSIGNAL), size);
}

static bool readable(int fd, int ms) {
  struct pollfd ready = {.fd = fd, .events = POLLIN};
  return poll(&ready, 1, ms) == 1;
}

void client_hears(int fd, const char *line) {
  char got[LINE];
  size_t have = 0;
  do {
    assert_true(have < sizeof got);
    if (!readable(fd, LONG_MS)) fail_msg("the server did not receive %s", line);
    assert_int_equal(recv(fd, got + have, 1, 0), 1);
  } while (got[have++] != '\n');
  got[have - 1] = '\0';
  assert_string_equal(got, line);
}

void client_hears_nothing(int fd) {
  assert_false(readable(fd, 100));
}

enum client_end client_end(int fd) {
  char byte;
  if (!readable(fd, LONG_MS)) return CLIENT_OPEN;
  ssize_t n = recv(fd, &byte, 1, 0);
  if (n > 0) fail_msg("heard a byte: %c", byte);
  if (n == 0) return CLIENT_ENDED;
  assert_int_equal(errno, ECONNRESET);
  return CLIENT_RESET;
}

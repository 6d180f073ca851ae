/* SPDX-License-Identifier: MIT */
/* The proxy in a thread of the test, which talks to it through a pair of sockets. */
#include "proxy.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/port.h"

/* The loop answers at once; a longer wait is a defect. */
enum { ANSWER_MS = 20000 };

struct proxied {
  struct proxy *proxy;
  dibs__thread *thread;
  int ours, theirs;
};

static void run(void *arg) {
  proxy_run(arg);
}

struct proxied *proxied_start(const struct proxy_options *options, char why[PROXY_WHY]) {
  struct proxied *proxied = calloc(1, sizeof *proxied);
  if (!proxied) return NULL;
  int pair[2] = {-1, -1};
  proxied->proxy = proxy_open(options, why);
  if (proxied->proxy && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    snprintf(why, PROXY_WHY, "socketpair: %s", strerror(errno));
  proxied->ours = pair[0];
  proxied->theirs = pair[1];
  if (pair[0] >= 0 && proxy_listen_to(proxied->proxy, pair[1], pair[1], true))
    proxied->thread = dibs__thread_start("test-proxy", run, proxied->proxy);
  if (proxied->thread) return proxied;
  proxied_stop(proxied);
  return NULL;
}

uint16_t proxied_port(const struct proxied *proxied) {
  return proxy_port(proxied->proxy);
}

/* Reads one line of the answer; false if none arrives. */
static bool read_answer(struct proxied *proxied, char answer[PROXY_LINE]) {
  size_t have = 0;
  while (have < PROXY_LINE - 1) {
    struct pollfd ready = {.fd = proxied->ours, .events = POLLIN};
    int r = poll(&ready, 1, ANSWER_MS);
    if (r < 0 && errno == EINTR) continue;
    if (r <= 0 || read(proxied->ours, answer + have, 1) != 1) return false;
    if (answer[have] == '\n') {
      answer[have] = '\0';
      return true;
    }
    have++;
  }
  return false;
}

bool proxied_say(struct proxied *proxied, const char *line, char answer[PROXY_LINE]) {
  char whole[PROXY_LINE];
  int size = snprintf(whole, sizeof whole, "%s\n", line);
  answer[0] = '\0';
  if (size < 0 || (size_t)size >= sizeof whole) return false;
  if (send(proxied->ours, whole, (size_t)size, MSG_NOSIGNAL) != size || !read_answer(proxied, answer)) return false;
  return strcmp(answer, "ok") == 0 || strncmp(answer, "ok ", 3) == 0;
}

int64_t proxied_stat(struct proxied *proxied, const char *name) {
  char answer[PROXY_LINE], wanted[64];
  snprintf(wanted, sizeof wanted, " %s=", name);
  if (!proxied_say(proxied, "stats", answer)) return -1;
  const char *at = strstr(answer, wanted);
  return at ? strtoll(at + strlen(wanted), NULL, 10) : -1;
}

void proxied_stop(struct proxied *proxied) {
  if (!proxied) return;
  if (proxied->ours >= 0) close(proxied->ours); /* the end of the commands: the proxy quits */
  dibs__thread_join(proxied->thread);
  proxy_close(proxied->proxy);
  if (proxied->theirs >= 0) close(proxied->theirs);
  free(proxied);
}

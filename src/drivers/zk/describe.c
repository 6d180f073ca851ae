/* SPDX-License-Identifier: MIT */
/*
 * What doctor asks ZooKeeper: each server of the URI by itself, with the four-letter word srvr, which needs no session;
 * and the configuration of the ensemble, a node that every server has.
 *
 * ZooKeeper always allows srvr; a server of another make may refuse it.  Then it answers, and its version and role are
 * not visible.
 */
#include "drivers/zk/zk_impl.h"

#include "store/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HOST = 256, ANSWER = 4096, HOSTS = 32 };

struct server {
  char host[HOST + 8], port[8];
  bool connects, answers; /* answers: it told its version */
  char why[100], version[80], mode[24];
};

/* ---- One server ---- */

static bool wait_for(int fd, short events, dibs__tick by) {
  struct pollfd p = {.fd = fd, .events = events};
  for (;;) {
    int64_t ms = dibs__tick_left_ms(dibs__tick_now(), by);
    int n = poll(&p, 1, (int)ms);
    if (n > 0) return true;
    if (n == 0 || (n < 0 && errno != EINTR)) return false;
  }
}

/* -1: errno says why; ETIMEDOUT at the deadline. */
static int connect_one(const struct addrinfo *address, dibs__tick by) {
  int fd = socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, address->ai_protocol);
  if (fd < 0) return -1;
  int error = 0;
  socklen_t size = sizeof error;
  if (connect(fd, address->ai_addr, address->ai_addrlen) != 0) {
    error = errno;
    if (error == EINPROGRESS && !wait_for(fd, POLLOUT, by))
      error = ETIMEDOUT;
    else if (error == EINPROGRESS && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
      error = errno;
  }
  if (error == 0) return fd;
  close(fd);
  errno = error;
  return -1;
}

static int connect_to(struct server *s, dibs__tick by) {
  const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
  struct addrinfo *all = NULL;
  int failed = getaddrinfo(s->host, s->port, &hints, &all), fd = -1;
  if (failed) {
    snprintf(s->why, sizeof s->why, "%s", gai_strerror(failed));
    return -1;
  }
  for (const struct addrinfo *a = all; a && fd < 0; a = a->ai_next) fd = connect_one(a, by);
  if (fd < 0) snprintf(s->why, sizeof s->why, "%s", strerror(errno));
  freeaddrinfo(all);
  return fd;
}

/* The text behind `label` in a line; "": none. */
static void line_of(const char *text, const char *label, char *to, size_t size) {
  const char *at = strstr(text, label);
  to[0] = '\0';
  if (!at) return;
  at += strlen(label);
  at += strspn(at, " ");
  snprintf(to, size, "%.*s", (int)strcspn(at, "\r\n,"), at);
}

static void read_srvr(struct server *s, int fd, dibs__tick by) {
  char text[ANSWER + 1];
  size_t used = 0;
  if (send(fd, "srvr", 4, MSG_NOSIGNAL) != 4) {
    snprintf(s->why, sizeof s->why, "%s", strerror(errno));
    return;
  }
  for (;;) {
    if (!wait_for(fd, POLLIN, by)) {
      snprintf(s->why, sizeof s->why, "it accepts connections, and says nothing");
      s->connects = false;
      return;
    }
    ssize_t n = recv(fd, text + used, ANSWER - used, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n <= 0 || (used += (size_t)n) == ANSWER) break;
  }
  text[used] = '\0';
  line_of(text, "Zookeeper version:", s->version, sizeof s->version);
  s->version[strcspn(s->version, "-")] = '\0'; /* without the number of its build */
  line_of(text, "Mode:", s->mode, sizeof s->mode);
  s->answers = *s->version != '\0';
  if (strstr(text, "not currently serving requests")) {
    snprintf(s->why, sizeof s->why, "it serves no requests: it has no majority");
    s->connects = false;
  }
}

static void ask_server(struct server *s, dibs__tick by) {
  int fd = connect_to(s, by);
  if (fd < 0) return;
  s->connects = true;
  read_srvr(s, fd, by);
  close(fd);
}

/* "h1:2181,[::1]:2181" */
static size_t read_hosts(const char *hosts, struct server servers[HOSTS]) {
  size_t count = 0;
  for (const char *at = hosts; *at && count < HOSTS;) {
    int len = (int)strcspn(at, ",");
    char one[HOST + 8];
    snprintf(one, sizeof one, "%.*s", len, at);
    char *colon = strrchr(one, ':');
    if (colon) {
      struct server *s = &servers[count++];
      *colon = '\0';
      bool bracket = one[0] == '[' && colon > one + 1 && colon[-1] == ']';
      if (bracket) colon[-1] = '\0';
      snprintf(s->host, sizeof s->host, "%s", bracket ? one + 1 : one);
      snprintf(s->port, sizeof s->port, "%.7s", colon + 1);
    }
    at += len + (at[len] == ',');
  }
  return count;
}

/* ---- The ensemble ---- */

/* The lines "server.N=..." of the configuration. */
static int count_servers(const char *text) {
  int count = 0;
  for (const char *at = text; at && (at = strstr(at, "server.")); at++) count += at == text || at[-1] == '\n';
  return count;
}

/* By the session, which others must not wait for while servers are silent: so it is used last, and shortly.  `servers`
 * -1: it can't be read. */
static void read_ensemble(struct dibs__zk *store, dibs__tick by, int *servers, int *session_ms) {
  struct dibs__result result = {.text = ""};
  struct dibs__zk_round *round = dibs__zk_round_new(1);
  *servers = -1;
  *session_ms = 0;
  if (!round || !dibs__zk_enter(store, by)) {
    dibs__zk_round_drop(round);
    return;
  }
  if (dibs__zk_ready(store, by, &result) == DIBS_OK) {
    size_t nth = dibs__zk_put_get(store, round, "/zookeeper/config");
    *session_ms = zoo_recv_timeout(store->zh);
    dibs__zk_go(store, round, by);
    if (round->slots[nth].rc == ZOK) *servers = count_servers(round->slots[nth].text);
  }
  dibs__zk_leave(store);
  dibs__zk_round_drop(round);
}

static void find_role(const struct server *servers, size_t count, int participants, struct dibs__findings *to) {
  size_t leaders = 0, answer = 0, alone = 0;
  for (size_t i = 0; i < count; i++) {
    leaders += strcmp(servers[i].mode, "leader") == 0;
    alone += strcmp(servers[i].mode, "standalone") == 0;
    answer += servers[i].connects;
  }
  if (alone > 0)
    dibs__find(to, "role", "one server: nothing takes its place when it fails");
  else if (participants > 0)
    dibs__find(to, "role", "an ensemble of %d servers, of which the URI names %zu; %zu of these answer%s", participants,
               count, answer, leaders ? "" : ", and none of them is the leader");
  else
    dibs__find(to, "role", "the URI names %zu servers; %zu of them answer", count, answer);
  if (participants < 0) dibs__find_hidden(to, "role", "the configuration of the ensemble (/zookeeper/config)");
}

static void find_server(const struct server *s, struct dibs__findings *to) {
  if (s->answers && s->connects)
    dibs__find(to, "node", "%s:%s: %s, ZooKeeper %s", s->host, s->port, *s->mode ? s->mode : "in an unknown role",
               s->version);
  else if (s->connects)
    dibs__find(to, "node", "%s:%s answers; its version and role are not visible (it does not allow srvr)", s->host,
               s->port);
  else
    dibs__find_trouble(to, "node", "look at that server: ZooKeeper serves as long as a majority of its servers works",
                       "%s:%s does not answer: %s", s->host, s->port, s->why);
}

void dibs__zk_describe(struct dibs__zk *store, dibs__tick by, struct dibs__findings *to) {
  struct server *servers = calloc(HOSTS, sizeof *servers);
  if (!servers) {
    to->no_memory = true;
    return;
  }
  const struct dibs__zk_location *l = &store->location;
  size_t count = read_hosts(l->hosts, servers), first = 0;
  for (size_t i = 0; i < count; i++) ask_server(&servers[i], dibs__engine_node_by(by, count - i + 1));
  int participants, session_ms;
  read_ensemble(store, dibs__engine_node_by(by, 1), &participants, &session_ms);
  while (first < count && !servers[first].answers) first++;
  if (first < count)
    dibs__find(to, "server", "ZooKeeper %s at %s:%s", servers[first].version, servers[first].host, servers[first].port);
  else
    dibs__find_hidden(to, "server", "the version of ZooKeeper");
  find_role(servers, count, participants, to);
  for (size_t i = 0; i < count; i++) find_server(&servers[i], to);
  dibs__find(to, "tls", "none: the connection is not encrypted");
  if (session_ms > 0)
    dibs__find(to, "setting", "a session ends %d ms after its client is gone (%d were requested)", session_ms,
               l->session_ms);
  free(servers);
}

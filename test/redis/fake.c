/* SPDX-License-Identifier: MIT */
/* A server that answers INFO and other commands as the test chooses; +OK by default. */
#include "bed.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CLIENTS = 8, LOOK_MS = 10 };

struct client {
  int fd;
  redisReader *reader;
  size_t answered;
};

static const char * or (const char *text, const char *otherwise) {
  return text ? text : otherwise;
}

static bool say(const struct fake *fake, int fd, const char *text) {
  size_t left = strlen(text);
  while (left > 0) {
    ssize_t n = send(fd, text, fake->piece && fake->piece < left ? fake->piece : left, MSG_NOSIGNAL);
    if (n <= 0) return false;
    text += n;
    left -= (size_t)n;
    /* A pause, so that the client usually reads each piece separately. */
    if (fake->piece) dibs__yield();
  }
  return true;
}

static bool answer(const struct fake *fake, struct client *client, const redisReply *command) {
  char info[512], text[600];
  bool requests = command->elements > 0 && strcasecmp(command->element[0]->str, "INFO") == 0;
  if (fake->error) return say(fake, client->fd, fake->error);
  if (!requests && fake->silent) return true;
  if (!requests) return say(fake, client->fd, "+OK\r\n");
  snprintf(info, sizeof info,
           "# All\r\nredis_version:%s\r\nmaxmemory_policy:%s\r\nrole:%s\r\n"
           "master_replid:0123456789abcdef0123456789abcdef01234567\r\ncluster_enabled:%s\r\n",
           or (fake->version, "7.0.15"), or (fake->policy, "noeviction"), or (fake->role, "master"),
           or (fake->cluster, "0"));
  snprintf(text, sizeof text, "$%zu\r\n%s\r\n", strlen(info), info);
  return say(fake, client->fd, text);
}

/* false: the connection has ended. */
static bool serve(struct fake *fake, struct client *client) {
  char bytes[4096];
  void *command;
  ssize_t n = recv(client->fd, bytes, sizeof bytes, 0);
  if (n <= 0 || redisReaderFeed(client->reader, bytes, (size_t)n) != REDIS_OK) return false;
  while (redisReaderGetReply(client->reader, &command) == REDIS_OK && command) {
    bool fine = answer(fake, client, command);
    freeReplyObject(command);
    if (!fine || ++client->answered == fake->dies_after) return false;
  }
  return true;
}

static void close_connection(struct client *client) {
  close(client->fd);
  redisReaderFree(client->reader);
  client->fd = -1;
}

static void run(void *arg) {
  struct fake *fake = arg;
  struct client clients[CLIENTS];
  for (size_t i = 0; i < CLIENTS; i++) clients[i].fd = -1;
  while (!atomic_load(&fake->ends)) {
    struct pollfd fds[CLIENTS + 1] = {{.fd = fake->listens, .events = POLLIN}};
    for (size_t i = 0; i < CLIENTS; i++) fds[i + 1] = (struct pollfd){.fd = clients[i].fd, .events = POLLIN};
    if (poll(fds, CLIENTS + 1, LOOK_MS) <= 0) continue;
    for (size_t i = 0; i < CLIENTS; i++)
      if (clients[i].fd >= 0 && fds[i + 1].revents && !serve(fake, &clients[i])) close_connection(&clients[i]);
    if (!fds[0].revents) continue;
    int fd = accept4(fake->listens, NULL, NULL, SOCK_CLOEXEC);
    size_t at = 0;
    while (at < CLIENTS && clients[at].fd >= 0) at++;
    if (fd < 0) continue;
    if (at == CLIENTS || fake->greets) {
      if (fake->greets) (void)say(fake, fd, fake->greets);
      shutdown(fd, SHUT_WR);
      char rest[256];
      while (recv(fd, rest, sizeof rest, 0) > 0) continue;
      close(fd);
      continue;
    }
    clients[at] = (struct client){.fd = fd, .reader = redisReaderCreate()};
  }
  for (size_t i = 0; i < CLIENTS; i++)
    if (clients[i].fd >= 0) close_connection(&clients[i]);
}

void fake_start(struct fake *fake) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof at;
  fake->listens = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(fake->listens >= 0);
  assert_int_equal(bind(fake->listens, (struct sockaddr *)&at, sizeof at), 0);
  assert_int_equal(listen(fake->listens, 16), 0);
  assert_int_equal(getsockname(fake->listens, (struct sockaddr *)&at, &size), 0);
  fake->port = ntohs(at.sin_port);
  atomic_store(&fake->ends, false);
  fake->thread = dibs__thread_start("fake-redis", run, fake);
  assert_non_null(fake->thread);
}

void fake_stop(struct fake *fake) {
  atomic_store(&fake->ends, true);
  dibs__thread_join(fake->thread);
  close(fake->listens);
}

const char *fake_uri(const struct fake *fake) {
  static char text[64];
  snprintf(text, sizeof text, "redis://127.0.0.1:%u/0", fake->port);
  return text;
}

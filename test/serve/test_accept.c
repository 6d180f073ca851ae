/* SPDX-License-Identifier: MIT */
/* When the daemon takes connections: src/serve/accept.c, with sockets of the system and a libmicrohttpd of the test. */
#include "serve/accept.h"
#include "serve/server.h"
#include "unit/unit.h"

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CLIENTS = 8, LIMIT = 3 };

static struct server server;
static bool queues; /* as libmicrohttpd after 0.9.75 */
static uint32_t queued;
static int clients[CLIENTS], taken[CLIENTS];
static uint32_t taken_count;

bool dibs__loop_add(struct server *s, struct source *source, int fd, void (*ready)(struct server *, struct source *)) {
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = source};
  source->ready = ready;
  return epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

struct shard *dibs__http_shard(struct listener *listener) {
  static struct shard shard;
  (void)listener;
  return &shard;
}

enum MHD_Result MHD_add_connection(struct MHD_Daemon *daemon, MHD_socket socket, const struct sockaddr *address,
                                   socklen_t size) {
  (void)daemon, (void)address, (void)size;
  assert_true(taken_count < CLIENTS);
  taken[taken_count++] = socket;
  if (queues)
    queued++;
  else
    server.connection_count++;
  return MHD_YES;
}

enum MHD_Result MHD_run(struct MHD_Daemon *daemon) {
  (void)daemon;
  server.connection_count += queued;
  queued = 0;
  return MHD_YES;
}

/* A round of the loop.  true: a listener was ready. */
static bool run_round(void) {
  struct epoll_event event;
  bool ready = epoll_wait(server.epoll, &event, 1, 0) == 1;
  struct source *source = ready ? event.data.ptr : NULL;
  if (source) source->ready(&server, source);
  return ready;
}

static int begin_case(void **state) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof address;
  (void)state;
  server = (struct server){.config.connections = LIMIT, .listener_count = 1, .epoll = epoll_create1(EPOLL_CLOEXEC)};
  int fd = server.listeners[0].socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
  assert_int_equal(listen(fd, CLIENTS), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
  for (int i = 0; i < CLIENTS; i++) {
    clients[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(clients[i], (struct sockaddr *)&address, sizeof address), 0);
  }
  queued = taken_count = 0;
  assert_true(dibs__accept_begin(&server, &server.listeners[0]));
  return 0;
}

static int end_case(void **state) {
  (void)state;
  dibs__accept_end(&server);
  for (int i = 0; i < CLIENTS; i++) close(clients[i]);
  for (uint32_t i = 0; i < taken_count; i++) close(taken[i]);
  close(server.epoll);
  return 0;
}

static void takes_as_many_as_the_limit(void) {
  while (run_round()) continue;
  assert_int_equal(taken_count, LIMIT); /* the others stay in the queue of the system */
  assert_int_equal(server.connection_count, LIMIT);
  assert_true(dibs__accept_next(&server).ns == DIBS__TICK_NEVER.ns); /* the end of a connection wakes the loop */
  server.connection_count--;
  dibs__accept_tick(&server, dibs__tick_now());
  while (run_round()) continue;
  assert_int_equal(taken_count, LIMIT + 1);
}

static void connections_that_begin_at_once_are_limited(void **state) {
  (void)state;
  queues = false;
  takes_as_many_as_the_limit();
}

static void connections_in_a_queue_are_limited(void **state) {
  (void)state;
  queues = true;
  takes_as_many_as_the_limit();
}

/* No event tells that there is a descriptor again, so the loop wakes up for it. */
static void a_system_without_descriptors_is_asked_again(void **state) {
  (void)state;
  struct rlimit before, none;
  int free_fd = dup(server.epoll);
  close(free_fd);
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
  none = before;
  none.rlim_cur = (rlim_t)free_fd;
  dibs__tick began = dibs__tick_now();
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
  assert_true(run_round());
  dibs__tick next = dibs__accept_next(&server), ended = dibs__tick_now();
  assert_false(run_round()); /* meanwhile the loop can sleep */
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
  assert_int_equal(taken_count, 0);
  assert_true(!dibs__tick_before(next, dibs__tick_add_ms(began, 100)));
  assert_true(!dibs__tick_before(dibs__tick_add_ms(ended, 100), next));
  dibs__accept_tick(&server, (dibs__tick){next.ns - 1});
  assert_false(run_round());
  dibs__accept_tick(&server, next);
  assert_true(dibs__accept_next(&server).ns == DIBS__TICK_NEVER.ns);
  while (run_round()) continue;
  assert_int_equal(taken_count, LIMIT);
}

static void a_daemon_that_stops_does_not_try_again(void **state) {
  (void)state;
  server.accept_paused = server.accept_retries = true;
  dibs__accept_end(&server);
  assert_true(dibs__accept_next(&server).ns == DIBS__TICK_NEVER.ns);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(connections_that_begin_at_once_are_limited, begin_case, end_case),
      cmocka_unit_test_setup_teardown(connections_in_a_queue_are_limited, begin_case, end_case),
      cmocka_unit_test_setup_teardown(a_system_without_descriptors_is_asked_again, begin_case, end_case),
      cmocka_unit_test_setup_teardown(a_daemon_that_stops_does_not_try_again, begin_case, end_case),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

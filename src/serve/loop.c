/* SPDX-License-Identifier: MIT */
/* The loop: what the daemon waits for, and the order in which it acts. */
#include "dibs.h"
#include "handle/handle.h"
#include "serve/accept.h"
#include "serve/http_count.h"
#include "serve/kinds.h"
#include "serve/listen.h"
#include "serve/probe.h"
#include "serve/server.h"
#include "serve/stale.h"
#include "serve/task_count.h"
#include "serve/tls.h"
#include "serve/together.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum {
  WATCH_AFTER_MS = 20, /* a request that waits longer is watched for its client's hanging up */
  STOP_MS = 10000,     /* how long running requests may take to end */
  LAST_MS = 1000       /* how long the last requests and answers may take to be sent */
};

/* ---- Clients that hang up ---- */

bool dibs__may_wait(struct request *r) {
  if (r->server->waiting < r->server->config.waiters) return true;
  dibs__answer_refuse(r, 503, "overload", "%u requests wait already (--waiters); repeat it later",
                      r->server->config.waiters);
  return false;
}

static void call_end_wait(struct request *r) {
  void (*end_wait)(struct request * r) = r->end_wait;
  r->end_wait = NULL;
  end_wait(r);
}

static void leave(struct request *r) {
  if (r->left) return;
  r->left = true;
  call_end_wait(r);
}

/* Ends the waits of all that have left.  The end of one is the turn of the next one with its id, which leaves the list:
 * dibs__wait_end moves next_to_end on.  All are marked as left before, so that none of them begins. */
static void end_waits(struct server *server) {
  server->next_to_end = server->first_waiting;
  for (struct request *r; (r = server->next_to_end);) {
    server->next_to_end = r->after;
    if (r->left && r->end_wait) call_end_wait(r);
  }
}

static void hung_up(struct server *server, struct source *source) {
  struct request *r = (struct request *)((char *)source - offsetof(struct request, hang_up));
  (void)server;
  leave(r);
}

static int socket_of(const struct request *r) {
  return MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
}

static void watch(struct request *r) {
  struct epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.ptr = &r->hang_up};
  r->hang_up.ready = hung_up;
  r->watched = epoll_ctl(r->server->epoll, EPOLL_CTL_ADD, socket_of(r), &event) == 0;
}

void dibs__loop_unwatch(struct request *r) {
  struct server *server = r->server;
  if (server->unwatched == r) server->unwatched = r->after;
  if (!r->watched) return;
  r->watched = false;
  epoll_ctl(server->epoll, EPOLL_CTL_DEL, socket_of(r), NULL);
  /* Its client may have hung up in this round. */
  for (int i = 0; i < server->event_count; i++)
    if (server->events[i].data.ptr == &r->hang_up) server->events[i].data.ptr = NULL;
}

/* false: the tokens were read again without its token, and it is to end. */
static bool keeps_token(struct request *r) {
  if (dibs__auth_still_admits(r)) return true;
  r->revoked = true;
  return false;
}

/* Most requests are answered before it is worth watching them.  One of them may have begun to wait after its token was
 * removed. */
static void watch_those_that_wait(struct server *server, dibs__tick now) {
  for (struct request *r; (r = server->unwatched);) {
    if (dibs__tick_before(now, dibs__tick_add_ms(r->waits_from, WATCH_AFTER_MS))) return;
    server->unwatched = r->after;
    if (keeps_token(r))
      watch(r);
    else
      leave(r);
  }
}

/* ---- What is ready ---- */

static void store_ready(struct server *server, struct source *source) {
  (void)source;
  dibs_dispatch(server->store, 0);
}

static void pool_ready(struct server *server, struct source *source) {
  (void)source;
  dibs__pool_finish(server);
}

/* Those that wait are answered at once; those that run have STOP_MS. */
static void begin_stop(struct server *server) {
  server->stopping = true;
  dibs__notify_send("STOPPING=1");
  dibs__accept_end(server);
  for (struct request *r = server->first_waiting; r; r = r->after) r->left = true;
  end_waits(server);
}

/* Files that may have been replaced. */
static void reload(struct server *server) {
  dibs__notify_send("RELOADING=1");
  dibs__tokens_reload(server);
  for (struct request *r = server->first_waiting; r; r = r->after)
    if (!keeps_token(r)) r->left = true;
  end_waits(server);
  dibs__tls_reload(server);
  dibs__log_reload(server);
  dibs__notify_send("READY=1");
}

static void signal_ready(struct server *server, struct source *source) {
  struct signalfd_siginfo info;
  (void)source;
  while (read(server->signals, &info, sizeof info) == (ssize_t)sizeof info) {
    if (info.ssi_signo == SIGHUP) reload(server);
    if (!server->stopping && (info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT)) begin_stop(server);
  }
}

bool dibs__loop_add(struct server *server, struct source *source, int fd,
                    void (*ready)(struct server *, struct source *)) {
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = source};
  source->ready = ready;
  return fd >= 0 && epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* ---- The parts of a server ---- */

static bool open_pool(struct server *server) {
  server->pool = dibs__pool_open(server->config.threads, &server->pool_fd);
  return server->pool && dibs__loop_add(server, &server->pool_source, server->pool_fd, pool_ready);
}

/* Each member may be NULL.  A part whose open failed, or was not called, is ended and closed, too. */
struct part {
  const char *name;
  bool (*open)(struct server *server); /* the store is open */
  void (*tick)(struct server *server, dibs__tick now);
  void (*end)(struct server *server);   /* it uses the store no more: what waits in it was answered */
  void (*close)(struct server *server); /* after the last request */
  bool of_routes;                       /* a service has none */
};

/* In the order of opening and ticking; they end, and are closed, in the reverse order.  The pool ends first, because
 * what it has done goes on in other parts. */
static const struct part parts[] = {
    {.name = "connections", .tick = dibs__connections_tick},
    {.name = "accept", .tick = dibs__accept_tick},
    {.name = "HTTP counts", .open = dibs__http_counts_open, .close = dibs__http_counts_close},
    {.name = "task counts", .open = dibs__task_counts_open, .close = dibs__task_counts_close},
    {.name = "probe", .open = dibs__probe_open, .close = dibs__probe_close},
    {.name = "stale", .open = dibs__stale_open, .close = dibs__stale_close},
    {.name = "counters", .open = dibs__counters_open},
    {.name = "kinds", .open = dibs__kinds_open, .close = dibs__kinds_close},
    {.name = "series", .open = dibs__series_open, .end = dibs__series_close, .of_routes = true},
    {.name = "events",
     .open = dibs__events_open,
     .tick = dibs__events_tick,
     .end = dibs__events_end_all,
     .close = dibs__events_close,
     .of_routes = true},
    {.name = "tasks", .open = dibs__tasks_open, .tick = dibs__tasks_tick, .end = dibs__tasks_close},
    {.name = "visits", .open = dibs__visits_open, .tick = dibs__visits_tick, .close = dibs__visits_close},
    {.name = "together", .open = dibs__together_open, .close = dibs__together_close},
    {.name = "turns", .open = dibs__turns_open, .tick = dibs__turns_tick, .close = dibs__turns_close},
    {.name = "sessions", .open = dibs__sessions_open, .tick = dibs__sessions_tick, .close = dibs__sessions_close},
    {.name = "pool", .open = open_pool, .end = dibs__pool_close},
};
enum { PARTS = sizeof parts / sizeof *parts };

static bool has(const struct server *server, const struct part *part) {
  return !part->of_routes || !server->service;
}

static dibs_status open_parts(struct server *server, dibs_error *error) {
  for (size_t i = 0; i < PARTS; i++)
    if (has(server, &parts[i]) && parts[i].open && !parts[i].open(server))
      return dibs__fail(error, DIBS_NO_MEMORY, "no memory, threads or descriptors for the server (%s)", parts[i].name);
  return DIBS_OK;
}

static void tick_parts(struct server *server, dibs__tick now) {
  for (size_t i = 0; i < PARTS; i++)
    if (has(server, &parts[i]) && parts[i].tick) parts[i].tick(server, now);
  if (server->service) server->service->tick(server, now);
}

static void end_parts(struct server *server) {
  for (size_t i = PARTS; i-- > 0;)
    if (has(server, &parts[i]) && parts[i].end) parts[i].end(server);
}

static void close_parts(struct server *server) {
  for (size_t i = PARTS; i-- > 0;)
    if (has(server, &parts[i]) && parts[i].close) parts[i].close(server);
}

/* ---- The loop itself ---- */

static int next_ms(struct server *server, dibs__tick now) {
  int64_t ms = dibs__turns_held(server) ? 5 : server->stopping || dibs__tasks_wait(server) ? 100 : 1000;
  ms = dibs__notify_tick(&server->notify, now, ms);
  if (server->resumed) return 0;
  dibs__tick deadline = dibs__tick_min(dibs__connections_next(server), dibs__accept_next(server));
  int64_t deadline_ms = dibs__tick_left_ms(now, dibs__tick_min(deadline, dibs__visits_next(server)));
  if (deadline_ms < ms) ms = deadline_ms;
  if (server->unwatched) {
    int64_t watch_ms = dibs__tick_left_ms(now, dibs__tick_add_ms(server->unwatched->waits_from, WATCH_AFTER_MS));
    if (watch_ms < ms) ms = watch_ms;
  }
  if (server->service) {
    int64_t service_ms = server->service->next_ms(server, now);
    if (service_ms < ms) ms = service_ms;
  }
  for (size_t i = 0; i < server->listener_count; i++)
    for (const struct shard *shard = server->listeners[i].first; shard; shard = shard->next) {
      MHD_UNSIGNED_LONG_LONG daemon_ms;
      if (MHD_get_timeout(shard->daemon, &daemon_ms) == MHD_YES && (int64_t)daemon_ms < ms) ms = (int64_t)daemon_ms;
    }
  return (int)ms;
}

/* Does it have input that epoll does not see, because TLS has read it already? */
static bool is_due(const struct shard *shard) {
  MHD_UNSIGNED_LONG_LONG ms;
  return shard->listener->tls && MHD_get_timeout(shard->daemon, &ms) == MHD_YES && ms == 0;
}

/* Those whose connections go on; `all`: time has passed. */
static void run_shards(struct server *server, bool all) {
  server->resumed = false;
  for (size_t i = 0; i < server->listener_count; i++)
    for (struct shard *shard = server->listeners[i].first; shard; shard = shard->next) {
      if (!all && !shard->resumed && !is_due(shard)) continue;
      shard->resumed = false;
      MHD_run(shard->daemon);
    }
}

/* All that the requests of this round start goes to the store in one batch. */
static void run_round(struct server *server) {
  int count = epoll_wait(server->epoll, server->events, EVENTS_MAX, next_ms(server, dibs__tick_now()));
  bool batch = dibs__batch_begin(server->store);
  server->event_count = count > 0 ? count : 0;
  for (int i = 0; i < server->event_count; i++) {
    struct source *source = server->events[i].data.ptr;
    if (source && source != &server->store_source) source->ready(server, source);
  }
  server->event_count = 0;
  run_shards(server, count == 0);
  dibs__tick now = dibs__tick_now();
  watch_those_that_wait(server, now);
  tick_parts(server, now);
  if (batch) dibs__batch_end(server->store);
  dibs_dispatch(server->store, 0);
  dibs__log_flush(server);
}

static void run(struct server *server) {
  dibs__tick until = DIBS__TICK_NEVER;
  while (!server->stopping || (server->running > 0 && dibs__tick_before(dibs__tick_now(), until))) {
    run_round(server);
    if (server->stopping && until.ns == DIBS__TICK_NEVER.ns) until = dibs__tick_add_ms(dibs__tick_now(), STOP_MS);
  }
}

/* ---- Opening ---- */

static bool serve_socket(struct server *server, int fd, bool tls, dibs_error *error) {
  struct listener *listener = &server->listeners[server->listener_count];
  return dibs__http_listen(server, fd, tls, error) && dibs__accept_begin(server, listener);
}

struct listener *dibs__loop_listen(struct server *server, const char *address, dibs_error *error) {
  bool local;
  int fd = dibs__socket_listen(NULL, false, address, &local, error);
  struct listener *listener = &server->listeners[server->listener_count];
  listener->reserves = true;
  return fd >= 0 && serve_socket(server, fd, false, error) ? listener : NULL;
}

/* What systemd has passed, or else the addresses. */
static bool listen_all(struct server *server, dibs_error *error) {
  const struct serve_config *config = &server->config;
  struct passed_sockets passed;
  if (!dibs__sockets_passed(config, server->service, &passed, error)) return false;
  for (size_t i = 0; i < passed.count; i++)
    if (!serve_socket(server, passed.fd[i], !passed.local[i] && config->certificate, error)) return false;
  for (size_t i = 0; i < config->address_count && passed.count == 0; i++) {
    bool local;
    int fd = dibs__socket_listen(config, server->service, config->addresses[i], &local, error);
    if (fd < 0 || !serve_socket(server, fd, !local && config->certificate, error)) return false;
  }
  return true;
}

static int open_signals(void) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGHUP);
  sigaddset(&set, SIGPIPE); /* a client that is gone must not end the server */
  sigprocmask(SIG_BLOCK, &set, NULL);
  return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

/* Each connection is a descriptor. */
static void raise_descriptors(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

static dibs_status open_server(struct server *server, dibs_error *error) {
  dibs_store_options options = {.size = sizeof options, .flags = DIBS_STORE_LOOP};
  const struct serve_config *config = &server->config;
  dibs_status status = DIBS_OK;
  server->signals = open_signals();
  raise_descriptors();
  if (config->tokens) status = dibs__tokens_read(config->tokens, &server->tokens, error);
  if (status == DIBS_OK) status = dibs__tls_open(server, error);
  if (status == DIBS_OK) status = dibs__log_open(server, error);
  if (status == DIBS_OK) status = dibs_open(config->store, &options, &server->store, error);
  if (status != DIBS_OK) return status;
  server->epoll = epoll_create1(EPOLL_CLOEXEC);
  if (!dibs__loop_add(server, &server->signal_source, server->signals, signal_ready) ||
      !dibs__loop_add(server, &server->store_source, dibs_fd(server->store), store_ready))
    return dibs__fail(error, DIBS_NO_MEMORY, "no memory or descriptors to serve");
  status = open_parts(server, error);
  if (status != DIBS_OK) return status;
  if (server->service && !server->service->open(server, error)) return error->status;
  return listen_all(server, error) ? DIBS_OK : DIBS_INVALID;
}

/* Clients that are still sending or reading have LAST_MS; of some that are gone libmicrohttpd does not know. */
static void send_last_answers(struct server *server) {
  dibs__tick until = dibs__tick_add_ms(dibs__tick_now(), LAST_MS);
  while (server->begun > 0 && dibs__tick_before(dibs__tick_now(), until))
    for (size_t i = 0; i < server->listener_count; i++)
      for (struct shard *shard = server->listeners[i].first; shard; shard = shard->next)
        MHD_run_wait(shard->daemon, shard->next ? 0 : 10);
}

/* Every request is answered before its connection is closed: libmicrohttpd must not close a suspended one. */
static void close_server(struct server *server) {
  if (server->service && server->store) server->service->stop(server);
  end_parts(server);
  dibs_close(server->store); /* calls what waits for the store */
  send_last_answers(server);
  dibs__accept_end(server);
  for (size_t i = 0; i < server->listener_count; i++) dibs__http_end(&server->listeners[i]);
  if (server->service) server->service->close(server);
  close_parts(server);
  dibs__tokens_free(server->tokens);
  dibs__tls_close();
  dibs__log_close(server);
  if (server->signals >= 0) close(server->signals);
  if (server->epoll >= 0) close(server->epoll);
}

dibs_status dibs__serve_with(const struct serve_config *config, const struct service *service, void *state,
                             void (*ready)(const char *store), dibs_error *error) {
  struct server server = {.config = *config,
                          .log.fd = -1,
                          .service = service,
                          .service_state = state,
                          .epoll = -1,
                          .signals = -1,
                          .pool_fd = -1};
  dibs_status status = open_server(&server, error);
  if (status == DIBS_OK) {
    dibs__notify_open(&server.notify);
    dibs__notify_send("READY=1");
    if (ready) ready(dibs_store_uri(server.store));
    run(&server);
  }
  close_server(&server);
  return status;
}

dibs_status dibs__serve(const struct serve_config *config, void (*ready)(const char *store), dibs_error *error) {
  return dibs__serve_with(config, NULL, NULL, ready, error);
}

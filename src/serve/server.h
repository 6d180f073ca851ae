/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SERVE_SERVER_H
#define DIBS_SERVE_SERVER_H
/*
 * The daemon.  One thread, the loop, owns everything here but the queue of done work: it reads requests, starts
 * operations of the store, runs their callbacks and writes answers.  A request that waits is an object: its connection
 * is suspended until it is answered.  Calls that block (all of tasks, listings) are made by a few threads.
 *
 *   connection -> request (http.c) -> route (route.c) -> a handler -> answer (answer.c) -> connection
 *
 * A handler runs in the loop.  It answers at once or later; each request is answered exactly once.
 */
#include "base/json.h"
#include "base/port.h"
#include "dibs.h"
#include "dibs/admin.h"
#include "serve/auth.h"
#include "serve/connection.h"
#include "serve/field.h"
#include "serve/log.h"
#include "serve/notify.h"
#include "serve/serve.h"

#include <microhttpd.h>
#include <sys/epoll.h>

enum {
  PARAMS_MAX = 2,
  HEADERS_MAX = 6,
  LISTENERS_MAX = SERVE_ADDRESSES_MAX + 1 /* one of dibs__loop_listen */,
  SHARD_CONNECTIONS = 512, /* fewer would cost each round of the loop more calls of epoll_wait */
  EVENTS_MAX = 64
};

struct server;

struct request;

struct dibs__op;

/* What the loop waits for. */
struct source {
  void (*ready)(struct server *server, struct source *source);
};

enum method {
  METHOD_GET,
  METHOD_POST,
  METHOD_PUT,
  METHOD_PATCH,
  METHOD_DELETE,
  METHOD_COUNT,
  METHOD_OTHER /* no route has it */
};

struct route {
  enum method method;
  const char *path; /* "/v1/leases/{name}" */
  enum scope scope;
  void (*handle)(struct request *r);
  size_t in_size;             /* of the struct that `fields` fill */
  const struct field *fields; /* NULL: none */
  const char *name;           /* of the operation: "acquireLease" */
  const char *statuses;       /* that it may answer, beside those of every route: "201 409" */
  const char *summary, *help;
  const char *answers; /* the type of the body of a good answer; NULL: application/json */
};
/* A table for each folder of paths, path NULL at its end; NULL at the end. */
extern const struct route *const dibs__routes[];

/* What handles requests in place of the routes: the gate (src/gate/).  All are called in the loop. */
struct service {
  /* The store is open, and no request was taken yet.  false: `error` says why. */
  bool (*open)(struct server *server, dibs_error *error);
  void (*stop)(struct server *server);  /* what runs had time to end, and the store is about to be closed */
  void (*close)(struct server *server); /* after the last request */
  /* A call of libmicrohttpd for a request: see http.c. */
  enum MHD_Result (*handle_part)(struct request *r, const char *method, const char *part, size_t *size);
  void (*end_request)(struct request *r);                          /* before its memory is freed */
  int64_t (*next_ms)(const struct server *server, dibs__tick now); /* the loop may sleep so long */
  void (*tick)(struct server *server, dibs__tick now);             /* once in each round */
};

/* ---- Requests (http.c) ---- */

struct answer_header {
  const char *name;
  char value[192];
};

struct answer {
  int status;
  const char *type; /* NULL: application/json */
  struct dibs__json body;
  size_t header_count;
  struct answer_header *headers; /* HEADERS_MAX; NULL: there was none yet, so that a request that waits is small */
};

struct request {
  struct server *server;
  struct shard *shard; /* that its connection is in */
  struct MHD_Connection *connection;
  const struct route *route; /* NULL: there is none */
  struct connection *on;     /* `connection` as the deadlines know it */
  struct token *token;       /* NULL: the server has no tokens, or the route needs none */
  struct tokens *tokens;     /* that it is one of */
  const char *origin;        /* of the page that sends it, if --cors lists it; NULL */
  enum method method;
  char *target;        /* as it was sent */
  const char *version; /* "HTTP/1.1"; libmicrohttpd's */
  char *path;          /* decoded parameters point into it */
  const char *param[PARAMS_MAX];
  char *body;
  size_t body_length, body_capacity;
  size_t dropped;          /* of the body, after the request was answered */
  size_t body_expected;    /* as its headers say; 0: they do not */
  size_t decoded;          /* bytes of the body's memory that hold decoded values */
  struct json_t *document; /* of the body; fields point into it */
  void *in;                /* of the route's fields */
  struct answer answer;
  bool has_headers, whole, answered, suspended, queued;
  bool left;    /* the client has hung up, its token was removed, or the daemon stops: it gets nothing of the store's */
  bool revoked; /* its token was removed */
  bool listens; /* it waits for events, without an end */
  void (*end_wait)(struct request *r); /* of dibs__wait_begin; NULL: it does not wait, or was called */
  void *work;                          /* the handler's */
  struct MHD_Response *own_answer;     /* of the handler, in place of `answer`, which has its status; NULL: none */
  void (*end)(struct request *r);      /* the connection ends the request: frees `work`; NULL: nothing to do */
  dibs__tick began, queued_at;
  size_t answer_bytes;            /* of its body */
  const char *outcome;            /* for the access log; NULL: the status says all */
  bool endless;                   /* its answer is a stream, which lasts as long as its client wants it: no deadline */
  struct request *before, *after; /* those that wait, oldest first */
  bool waits, watched;
  dibs__tick waits_from;
  struct source hang_up;
  struct request *next; /* in a queue of the pool, or of an id */
  bool in_pool;
  void (*block)(struct request *r);
  void (*then)(struct request *r); /* after it, in the loop; NULL: the request was answered */
  void (*drop)(struct request *r); /* frees `work` if the pool does not run it; NULL: there is none */
};

/* ---- Answers (answer.c) ---- */

/* Begins an answer: its body is written into the result. */
struct dibs__json *dibs__answer_begin(struct request *r, int status);
void dibs__answer_free(struct answer *answer);
void dibs__answer_header(struct request *r, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The answer is complete: it is sent as soon as the connection takes it. */
void dibs__answer_end(struct request *r);
/* A complete problem: of a status of the library, or of HTTP alone. */
void dibs__answer_problem(struct request *r, dibs_status status, const dibs_error *error);
/* The same with members of its own, which are written into the result before dibs__answer_problem_end. */
struct dibs__json *dibs__answer_problem_begin(struct request *r, dibs_status status, const dibs_error *error);
void dibs__answer_problem_end(struct request *r);
/* `word` is one of problem.c. */
void dibs__answer_refuse(struct request *r, int status, const char *word, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* ---- Fields (field.c) ---- */

/* Fills `in` by the table, from the body, the query and the headers.  false: the request was answered. */
bool dibs__fields_read(struct request *r, const struct field *fields, void *in);
/* The same from one element of an array of the body. */
bool dibs__fields_read_item(struct request *r, const struct field *fields, struct json_t *item, void *in);
/* The same from a query without its '?', which it changes: values point into it. */
bool dibs__fields_read_query(struct request *r, const struct field *fields, char *query, void *in);

/* ---- The loop (loop.c) ---- */

/* Runs `block`, which writes the answer, in a thread of the pool.  If the pool is full, or the server stops before it
 * is begun, the request is answered 503 instead, and `drop` is called. */
void dibs__pool_run(struct request *r, void (*block)(struct request *r), void (*drop)(struct request *r));
/* The same, but false if the pool is full: nothing was done. */
bool dibs__pool_try(struct request *r, void (*block)(struct request *r), void (*drop)(struct request *r));

/* A daemon of libmicrohttpd, with some of the connections of a listener.  Whenever a suspended connection goes on,
 * libmicrohttpd looks at all that are suspended in the same daemon: with 10,000 in one daemon, it took half of the
 * processor time of a hand-off.  An empty one is kept for later connections. */
struct shard {
  struct source source;
  struct server *server;
  struct listener *listener;
  struct MHD_Daemon *daemon;
  struct shard *next; /* of the listener */
  uint32_t connections;
  bool resumed; /* a connection of it goes on at the next MHD_run */
};

struct listener {
  struct server *server;
  struct source accepts;
  struct shard *first; /* there is one at least */
  int socket;          /* -1: it was closed */
  bool tls;
  bool reserves; /* of dibs__loop_listen: it takes some connections beyond --connections */
};

/* `ready` is called in the loop when the descriptor is readable. */
bool dibs__loop_add(struct server *server, struct source *source, int fd,
                    void (*ready)(struct server *, struct source *));
/* For a request that is about to wait.  false: too many do, and it was answered. */
bool dibs__may_wait(struct request *r);
void dibs__loop_unwatch(struct request *r);
/* Listens at one more address, without TLS: a loopback address or unix:PATH.  For service.open.  NULL: `error` says why
 * not. */
struct listener *dibs__loop_listen(struct server *server, const char *address, dibs_error *error);

struct pool;

struct connections {
  struct connection *first, *last;
};

struct server {
  struct serve_config config;
  const struct service *service; /* NULL: the routes */
  void *service_state;
  dibs_store *store;
  struct listener listeners[LISTENERS_MAX];
  size_t listener_count;
  int epoll, signals, pool_fd;
  struct epoll_event events[EVENTS_MAX]; /* of this round; data.ptr is the source, NULL: it is gone */
  int event_count;
  struct connections connections[STAGE_COUNT];
  uint32_t connection_count;
  bool accept_paused;  /* there are as many connections as may be; accept.c */
  bool accept_retries; /* the system had no descriptor or memory for one */
  dibs__tick accepts_from;
  struct log log;
  struct notify notify;
  struct source store_source, signal_source, pool_source, events_source;
  struct pool *pool;
  struct tokens *tokens; /* NULL: every client may send every request */
  struct ids *ids;       /* turn.c: lease ids with a request in flight */
  struct request *first_waiting, *last_waiting;
  struct request *unwatched;   /* the first that waits and is not watched */
  struct request *next_to_end; /* while the loop ends the waits of several */
  uint32_t waiting;
  struct streams *streams; /* events.c */
  struct series *series;   /* series.c */
  struct http_counts *http_counts;
  struct kinds *kinds;             /* kinds.c: the counts of tasks */
  struct task_counts *task_counts; /* task_count.c */
  struct stale *stale;             /* stale.c: refused writes by name */
  struct probe *probe;             /* probe.c: does the store answer? */
  struct sessions *sessions;       /* session.c */
  struct queues *queues;           /* claim.c: of requests that wait for tasks */
  struct visits *visits;           /* lane_member.c: of members that wait for lanes */
  struct groups *groups;           /* together.c: of requests that share calls of the store */
  uint64_t begun;                  /* requests whose answer is not sent */
  uint64_t running;                /* those of them that were read to their end */
  size_t body_bytes;               /* memory of all bodies */
  struct rate rate;                /* of clients without tokens */
  bool resumed;                    /* connections were, and must be run */
  bool stopping;
};

/* loop.c */
/* dibs__serve with a service and its state; NULL: the routes. */
dibs_status dibs__serve_with(const struct serve_config *config, const struct service *service, void *state,
                             void (*ready)(const char *store), dibs_error *error);
/* http.c */
/* `tls`: with the certificate of the configuration. */
bool dibs__http_listen(struct server *server, int socket, bool tls, dibs_error *error);
/* For a new connection. */
struct shard *dibs__http_shard(struct listener *listener);
/* Closes all connections of the listener; none is suspended. */
void dibs__http_end(struct listener *listener);
void dibs__http_answer_ready(struct request *r);
/* Its suspended connection goes on in the next round of the loop. */
void dibs__http_resume(struct request *r);
/* Suspends its connection until dibs__http_answer_ready.  With end_wait set, the loop watches its client meanwhile. */
void dibs__http_suspend(struct request *r);
/* Sends what dibs__answer_begin and its like wrote.  In handle_part only. */
enum MHD_Result dibs__http_queue_answer(struct request *r);
/* It waits from now on.  end_wait is called once, if the client hangs up or the daemon stops meanwhile: the request is
 * answered soon after it. */
void dibs__wait_begin(struct request *r, void (*end_wait)(struct request *r));
/* It waits no more: it is being done, or was answered. */
void dibs__wait_end(struct request *r);
/* route.c: finds the route and decodes its parameters; false: the request was answered. */
bool dibs__route_find(struct request *r);
/* Decodes %XX in place.  false: it is not well-formed, or has a NUL. */
bool dibs__percent_decode(char *segment);
/* pool.c */
struct pool *dibs__pool_open(uint32_t threads, int *done_fd);
void dibs__pool_finish(struct server *server); /* in the loop: what is done is answered */
/* Requests that no thread has begun. */
uint32_t dibs__pool_waiting(const struct server *server);
/* Answers 503: the pool is full, or the server stops. */
void dibs__pool_refuse(struct request *r);
/* Waits for what was begun; when it returns, all requests of the pool are answered. */
void dibs__pool_close(struct server *server);

/* action.c: when the request was answered */
void dibs__action_log(const struct request *r);
/* An operation of a client that has the daemon as its store. */
void dibs__action_log_op(const struct request *r, const struct dibs__op *op);

/* events.c */
bool dibs__events_open(struct server *server);
void dibs__events_tick(struct server *server, dibs__tick now);
/* Something may have changed through this server. */
void dibs__events_changed(struct server *server);
void dibs__events_end_all(struct server *server); /* the watcher ends, before the store is closed */
void dibs__events_close(struct server *server);

/* series.c */
bool dibs__series_open(struct server *server);
void dibs__series_close(struct server *server);

/* counter.c */
bool dibs__counters_open(struct server *server);

/* openapi.c */
void dibs__openapi_write(struct dibs__json *j);

/* claim.c */
void dibs__payload_write(struct dibs__json *j, const char *key, const char *p, size_t length);
bool dibs__tasks_open(struct server *server);
bool dibs__tasks_wait(const struct server *server); /* do requests wait for tasks? */
void dibs__tasks_tick(struct server *server, dibs__tick now);
void dibs__tasks_close(struct server *server);

/* lane_member.c */
bool dibs__visits_open(struct server *server);
dibs__tick dibs__visits_next(const struct server *server); /* the loop may sleep so long */
void dibs__visits_tick(struct server *server, dibs__tick now);
void dibs__visits_close(struct server *server);

/* session.c: remote clients of the store */
bool dibs__sessions_open(struct server *server);
void dibs__sessions_tick(struct server *server, dibs__tick now);
void dibs__sessions_close(struct server *server);

/* lease.c */
int dibs__lease_row_write(const dibs_lease_info *info, void *json); /* a dibs_list_fn */

/* turn.c */
bool dibs__turns_open(struct server *server);
void dibs__turns_tick(struct server *server, dibs__tick now);
/* Does a request wait for the next tick? */
bool dibs__turns_held(const struct server *server);
void dibs__turns_close(struct server *server);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Connections and requests, over libmicrohttpd, which reads and writes when the loop lets it.
 *
 * libmicrohttpd calls handle_part for a request: once when its headers are there, for each part of its body, once when
 * all was read, and, if its connection was suspended then, once more when that is resumed.
 */
#include "handle/handle.h"
#include "serve/http_count.h"
#include "serve/origin.h"
#include "serve/server.h"
#include "serve/tls.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum {
  BODY_FIRST = 1024,
  LINES_MAX = 128,     /* headers, and parameters of the query, of a request */
  LINE_MEMORY = 64,    /* that libmicrohttpd needs for each of them, beside its text */
  ANSWER_MEMORY = 4096 /* of the headers of an answer, which are in the same memory */
};

/* ---- Answering ---- */

static void add_headers(struct MHD_Response *response, const struct answer *a) {
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, a->type ? a->type : "application/json");
  MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
  for (size_t i = 0; i < a->header_count; i++)
    MHD_add_response_header(response, a->headers[i].name, a->headers[i].value);
}

/* Passes the response to libmicrohttpd. */
static enum MHD_Result queue(struct request *r, int status, struct MHD_Response *response) {
  dibs__origin_add(r, response);
  enum MHD_Result result = MHD_queue_response(r->connection, (unsigned)status, response);
  MHD_destroy_response(response);
  dibs__http_count(r);
  r->queued = true;
  r->queued_at = dibs__tick_now();
  if (!r->endless) dibs__connection_stage(r->on, STAGE_SENDING);
  return result;
}

static enum MHD_Result queue_own(struct request *r) {
  struct MHD_Response *response = r->own_answer;
  r->own_answer = NULL;
  return queue(r, r->answer.status, response);
}

/* There is no memory for the answer: this problem needs none, but for the response itself. */
static enum MHD_Result queue_no_memory(struct request *r) {
  static char problem[] = "{\"type\":\"/problems/no-memory\",\"title\":\"the daemon has no memory for it\","
                          "\"status\":503,\"detail\":\"there was no memory for the answer; repeat the request with "
                          "the same id or key, which does it once\"}";
  struct answer lacking = {.type = "application/problem+json"};
  struct MHD_Response *response = MHD_create_response_from_buffer(sizeof problem - 1, problem, MHD_RESPMEM_PERSISTENT);
  if (!response) return MHD_NO;
  r->answer.status = 503;
  r->answer_bytes = sizeof problem - 1;
  add_headers(response, &lacking);
  MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, "1");
  return queue(r, 503, response);
}

enum MHD_Result dibs__http_queue_answer(struct request *r) {
  if (r->own_answer) return queue_own(r);
  struct answer *a = &r->answer;
  if (a->body.failed) return queue_no_memory(r);
  struct MHD_Response *response = MHD_create_response_from_buffer(a->body.length, a->body.text, MHD_RESPMEM_MUST_FREE);
  if (!response) return MHD_NO;
  r->answer_bytes = a->body.length;
  a->body = (struct dibs__json){0}; /* it is the response's now */
  add_headers(response, a);
  return queue(r, a->status, response);
}

/* ---- Requests that wait ---- */

void dibs__wait_end(struct request *r) {
  struct server *server = r->server;
  r->end_wait = NULL;
  if (!r->waits) return;
  dibs__loop_unwatch(r);
  if (server->next_to_end == r) server->next_to_end = r->after;
  if (r->before)
    r->before->after = r->after;
  else
    server->first_waiting = r->after;
  if (r->after)
    r->after->before = r->before;
  else
    server->last_waiting = r->before;
  r->waits = false;
  server->waiting--;
}

/* Its connection is suspended. */
static void add_waiting(struct request *r) {
  struct server *server = r->server;
  r->before = server->last_waiting;
  r->after = NULL;
  if (r->before)
    r->before->after = r;
  else
    server->first_waiting = r;
  server->last_waiting = r;
  if (!server->unwatched) server->unwatched = r;
  r->waits_from = dibs__tick_now();
  r->waits = true;
  server->waiting++;
}

void dibs__wait_begin(struct request *r, void (*end_wait)(struct request *r)) {
  r->end_wait = end_wait;
  if (r->suspended) add_waiting(r);
}

/* The document has all of its body but what was decoded.  The log of actions shows the body itself. */
static void free_body(struct request *r) {
  if (!r->document || r->decoded > 0 || (r->route && r->route->scope == SCOPE_ADMIN)) return;
  free(r->body);
  r->body = NULL;
}

void dibs__http_suspend(struct request *r) {
  free_body(r);
  MHD_suspend_connection(r->connection);
  r->suspended = true;
  if (r->end_wait) add_waiting(r);
}

void dibs__http_resume(struct request *r) {
  r->shard->resumed = r->server->resumed = true;
  MHD_resume_connection(r->connection);
}

void dibs__http_answer_ready(struct request *r) {
  dibs__wait_end(r);
  if (!r->suspended) return; /* handle_part sends it */
  r->suspended = false;
  dibs__http_resume(r);
}

/* ---- Reading ---- */

static void *begin_request(void *cls, const char *target, struct MHD_Connection *connection) {
  struct request *r = calloc(1, sizeof *r);
  if (!r) return NULL;
  r->shard = cls;
  r->server = r->shard->server;
  r->connection = connection;
  r->target = strdup(target);
  r->path = strdup(target);
  r->began = dibs__tick_now();
  r->server->begun++;
  r->on = dibs__connection_of(connection);
  dibs__connection_stage(r->on, STAGE_READING);
  return r;
}

static void end_request(void *cls, struct MHD_Connection *connection, void **context,
                        enum MHD_RequestTerminationCode how) {
  struct request *r = *context;
  (void)cls, (void)connection, (void)how;
  if (!r) return;
  *context = NULL;
  if (r->end) r->end(r);
  if (r->whole && r->method != METHOD_GET) dibs__events_changed(r->server);
  dibs__action_log(r);
  if (r->server->service) r->server->service->end_request(r);
  dibs__log_request(r);
  r->server->begun--;
  if (r->whole) r->server->running--;
  r->server->body_bytes -= r->body_capacity;
  dibs__connection_stage(r->on, STAGE_IDLE);
  dibs__auth_end(r);
  dibs__answer_free(&r->answer);
  json_decref(r->document);
  free(r->target);
  free(r->path);
  free(r->body);
  free(r->in);
  free(r);
}

static enum method find_method(const char *name) {
  static const struct {
    const char *name;
    enum method method;
  } methods[] = {{"GET", METHOD_GET}, {"HEAD", METHOD_GET},    {"POST", METHOD_POST},
                 {"PUT", METHOD_PUT}, {"PATCH", METHOD_PATCH}, {"DELETE", METHOD_DELETE}};
  for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
    if (strcmp(methods[i].name, name) == 0) return methods[i].method;
  return METHOD_OTHER;
}

/* A body that is too large is read and dropped, up to this many times the limit: a client that is still sending when
 * its connection is closed does not see the answer. */
enum { DROPPED = 8 };

/* Are there as many requests and bodies as the server may have?  It refuses before it reads a body.  Requests for
 * health are always answered. */
static bool has_capacity(struct request *r, unsigned long long bytes) {
  const struct server *server = r->server;
  const struct serve_config *config = &server->config;
  if (r->route->scope != SCOPE_NONE && server->running - server->waiting >= config->requests) {
    dibs__answer_refuse(r, 503, "overload", "%u requests run already (--requests); repeat it later", config->requests);
    return false;
  }
  if (server->body_bytes + bytes <= (size_t)config->bodies_mib << 20) return true;
  dibs__answer_refuse(r, 503, "overload", "the bodies of requests have %u MiB already (--bodies); repeat it later",
                      config->bodies_mib);
  return false;
}

struct head_size {
  size_t bytes, lines;
};

static enum MHD_Result measure_line(void *cls, enum MHD_ValueKind kind, const char *name, size_t name_size,
                                    const char *value, size_t size) {
  struct head_size *head = cls;
  (void)name, (void)value;
  head->lines++;
  if (kind == MHD_HEADER_KIND) head->bytes += name_size + size + sizeof ": \r\n" - 1;
  return MHD_YES;
}

/* libmicrohttpd itself refuses only what does not fit into the memory of the connection. */
static bool admits_head(struct request *r, const char *method) {
  size_t most = r->server->config.header_bytes;
  size_t first = strlen(method) + strlen(r->target) + strlen(r->version) + sizeof "  \r\n" - 1;
  struct head_size head = {.bytes = first + sizeof "\r\n" - 1};
  MHD_get_connection_values_n(r->connection, MHD_HEADER_KIND | MHD_GET_ARGUMENT_KIND, measure_line, &head);
  if (head.bytes <= most && head.lines <= LINES_MAX) return true;
  dibs__answer_refuse(r, first > most ? 414 : 431, "headers-too-large",
                      "the request has %zu bytes of headers and %zu headers and parameters; dibs takes %zu and "
                      "%d (--header)",
                      head.bytes, head.lines, most, LINES_MAX);
  return false;
}

/* The headers are there. */
static enum MHD_Result begin_reading(struct request *r, const char *method) {
  r->has_headers = true;
  const char *length = MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
  size_t most = r->server->config.body_bytes;
  unsigned long long bytes = length ? strtoull(length, NULL, 10) : 0;
  /* An answer that is made here is sent when the whole request was read. */
  if (!admits_head(r, method) || !dibs__origin_admits(r, method) || !dibs__route_find(r) || !dibs__tls_admits(r) ||
      !dibs__auth_admits(r) || !dibs__rate_admits(r))
    return MHD_YES;
  if (bytes <= most) {
    r->body_expected = bytes;
    has_capacity(r, bytes);
    return MHD_YES;
  }
  dibs__answer_refuse(r, 413, "too-large", "the body has %.20s bytes; dibs takes %zu (--body)", length, most);
  return bytes / DROPPED > most ? dibs__http_queue_answer(r) : MHD_YES;
}

/* false: there is no memory, or too much would be used, and then it was answered. */
static bool grow_body(struct request *r, size_t length) {
  struct server *server = r->server;
  size_t capacity = r->body_capacity ? r->body_capacity : BODY_FIRST;
  while (capacity < length) capacity *= 2;
  if (r->body_expected >= length && r->body_expected < capacity) capacity = r->body_expected;
  if (capacity == r->body_capacity) return true;
  if (!has_capacity(r, capacity - r->body_capacity)) return false;
  char *body = realloc(r->body, capacity);
  if (!body) return false;
  server->body_bytes += capacity - r->body_capacity;
  r->body = body;
  r->body_capacity = capacity;
  return true;
}

/* Of a request that was answered already. */
static enum MHD_Result drop_part(struct request *r, size_t length) {
  r->dropped += length;
  return r->dropped / DROPPED > r->server->config.body_bytes ? MHD_NO : MHD_YES;
}

static enum MHD_Result read_part(struct request *r, const char *part, size_t *size) {
  size_t length = *size, most = r->server->config.body_bytes;
  *size = 0;
  if (r->answered) return drop_part(r, length);
  if (length > most - r->body_length) {
    dibs__answer_refuse(r, 413, "too-large", "the body is larger than the %zu bytes that dibs takes (--body)", most);
    return drop_part(r, length);
  }
  if (!grow_body(r, r->body_length + length)) return r->answered ? drop_part(r, length) : MHD_NO;
  memcpy(r->body + r->body_length, part, length);
  r->body_length += length;
  return MHD_YES;
}

static void handle(struct request *r) {
  const struct route *route = r->route;
  if (r->server->stopping) {
    dibs__answer_refuse(r, 503, "stopping", "dibs is stopping; repeat the request");
    return;
  }
  if (route->in_size > 0 && !(r->in = calloc(1, route->in_size))) {
    dibs__answer_problem(r, DIBS_NO_MEMORY, NULL);
    return;
  }
  if (dibs__fields_read(r, route->fields, r->in)) route->handle(r);
}

static enum MHD_Result handle_part(void *cls, struct MHD_Connection *connection, const char *url, const char *method,
                                   const char *version, const char *part, size_t *size, void **context) {
  struct request *r = *context;
  (void)cls, (void)connection, (void)url;
  if (!r || !r->target || !r->path) return MHD_NO; /* there is no memory */
  r->version = version;
  r->method = find_method(method);
  if (r->server->service) return r->server->service->handle_part(r, method, part, size);
  if (!r->has_headers) return begin_reading(r, method);
  if (*size > 0) return read_part(r, part, size);
  if (r->queued) return MHD_YES;
  if (!r->whole) r->server->running++;
  r->whole = true;
  dibs__connection_stage(r->on, STAGE_RUNNING);
  if (!r->answered) handle(r);
  if (r->answered) return dibs__http_queue_answer(r);
  dibs__http_suspend(r);
  return MHD_YES;
}

/* ---- Listening ---- */

static void shard_ready(struct server *server, struct source *source) {
  (void)server;
  MHD_run(((struct shard *)source)->daemon);
}

static bool start_shard(struct shard *shard) {
  const struct listener *listener = shard->listener;
  const struct serve_config *config = &shard->server->config;
  struct MHD_OptionItem tls_options[TLS_OPTIONS_MAX] = {{MHD_OPTION_END, 0, NULL}};
  unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_NO_LISTEN_SOCKET;
  if (listener->tls) flags |= dibs__tls_options(tls_options);
  shard->daemon = MHD_start_daemon(
      flags, 0, NULL, NULL, handle_part, NULL, MHD_OPTION_URI_LOG_CALLBACK, begin_request, shard,
      MHD_OPTION_NOTIFY_COMPLETED, end_request, NULL, MHD_OPTION_NOTIFY_CONNECTION, dibs__connection_notify, shard,
      MHD_OPTION_CONNECTION_LIMIT, config->connections, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
      (size_t)config->header_bytes + LINES_MAX * LINE_MEMORY + ANSWER_MEMORY, MHD_OPTION_CONNECTION_TIMEOUT,
      config->idle_s, MHD_OPTION_ARRAY, tls_options, MHD_OPTION_END);
  if (!shard->daemon) return false;
  int epoll = MHD_get_daemon_info(shard->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
  if (dibs__loop_add(shard->server, &shard->source, epoll, shard_ready)) return true;
  MHD_stop_daemon(shard->daemon);
  return false;
}

/* NULL: the system has no memory or no descriptors for it. */
static struct shard *add_shard(struct listener *listener) {
  struct shard *shard = calloc(1, sizeof *shard), **end = &listener->first;
  if (!shard) return NULL;
  *shard = (struct shard){.server = listener->server, .listener = listener};
  if (!start_shard(shard)) {
    free(shard);
    return NULL;
  }
  while (*end) end = &(*end)->next;
  *end = shard;
  return shard;
}

struct shard *dibs__http_shard(struct listener *listener) {
  struct shard *shard = listener->first;
  while (shard && shard->connections >= SHARD_CONNECTIONS) shard = shard->next;
  if (!shard) shard = add_shard(listener);
  return shard ? shard : listener->first;
}

bool dibs__http_listen(struct server *server, int socket, bool tls, dibs_error *error) {
  struct listener *listener = &server->listeners[server->listener_count];
  listener->server = server;
  listener->socket = socket;
  listener->tls = tls;
  if (!add_shard(listener)) {
    dibs__fail(error, DIBS_INVALID, "cannot serve at this socket%s", tls ? " with TLS" : "");
    return false;
  }
  server->listener_count++;
  return true;
}

void dibs__http_end(struct listener *listener) {
  for (struct shard *shard = listener->first, *next; shard; shard = next) {
    next = shard->next;
    MHD_stop_daemon(shard->daemon);
    free(shard);
  }
  listener->first = NULL;
}

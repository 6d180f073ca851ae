/* SPDX-License-Identifier: MIT */
/*
 * The client's side of an exchange, over libmicrohttpd.
 *
 * A body is passed on in parts of FLOW_BYTES: while there is no space for more of it, or nothing to send, the client's
 * connection is suspended.  Only a request with an Idempotency-Key, and its answer, are in memory as a whole.
 */
#include "base/sha256.h"
#include "gate/gate_impl.h"
#include "handle/handle.h"
#include "serve/tls.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RESPONSE_BLOCK = 32768 };

/* ---- Life ---- */

static void free_exchange(struct exchange *e) {
  curl_slist_free_all(e->headers);
  dibs__stream_free(&e->up);
  dibs__stream_free(&e->down);
  dibs__stream_free(&e->lines);
  free(e->method);
  free(e->target);
  free(e->secrets);
  free(e);
}

/* Not before the end of the round: callers of our callers look at it. */
void dibs__exchange_unref(struct exchange *e) {
  if (--e->refs > 0) return;
  e->gate->server->body_bytes -= e->counted;
  e->next_dead = e->gate->dead;
  e->gate->dead = e;
}

static void free_dead(struct gate *gate) {
  for (struct exchange *e; (e = gate->dead);) {
    gate->dead = e->next_dead;
    free_exchange(e);
  }
}

void dibs__exchange_end(struct exchange *e) {
  e->step = STEP_DONE;
  e->gate->server->running--;
  dibs__guard_release(e);
  e->down.ended = true;
  dibs__exchange_wake(e);
  dibs__exchange_unref(e);
}

/* Is there memory for so much more of bodies? */
static bool has_capacity(const struct gate *gate, size_t bytes) {
  return gate->server->body_bytes + bytes <= (size_t)gate->config.serve.bodies_mib << 20;
}

bool dibs__exchange_keep(struct exchange *e, struct stream *body, const void *bytes, size_t length) {
  size_t growth = dibs__stream_growth(body, length);
  if (!has_capacity(e->gate, growth) || !dibs__stream_add(body, bytes, length)) return false;
  e->counted += growth;
  e->gate->server->body_bytes += growth;
  return true;
}

static void unref_response(void *cls) {
  dibs__exchange_unref(cls);
}

/* ---- Waking the client ---- */

static bool upload_can_go_on(const struct exchange *e) {
  return e->step == STEP_BODY || e->step == STEP_DONE || (e->step == STEP_UPSTREAM && e->up.length <= FLOW_BYTES / 2);
}

void dibs__exchange_wake(struct exchange *e) {
  struct request *r = e->request;
  if (!r || !r->suspended) return;
  bool goes_on = e->gone || (e->sent       ? e->down.length > 0 || e->down.ended || e->broken
                             : e->up.ended ? e->ready
                                           : upload_can_go_on(e));
  if (goes_on) dibs__http_answer_ready(r);
}

/* The client is gone: what was begun and must be known to its end goes on. */
static void leave(struct exchange *e) {
  if (e->gone) return;
  e->gone = true;
  bool finishes = e->up.ended && (e->key[0] || e->order_lease);
  if (e->step == STEP_GUARD) {
    dibs__guard_cancel(e);
  } else if (e->step == STEP_UPSTREAM && !finishes) {
    dibs__upstream_abort(e);
    dibs__guard_leave(e);
    dibs__exchange_end(e);
  } else if (e->step == STEP_UPSTREAM) {
    dibs__upstream_continue(e);
  } else if (e->step == STEP_BODY) {
    dibs__exchange_end(e);
  }
}

/* Called while the connection is suspended: the client has hung up, or the gate stops. */
static void end_wait(struct request *r) {
  struct exchange *e = r->work;
  if (r->server->stopping) {
    if (e->step == STEP_GUARD) dibs__guard_cancel(e);
    return;
  }
  leave(e);
  dibs__exchange_wake(e);
}

static void suspend(struct request *r) {
  r->end_wait = end_wait;
  dibs__http_suspend(r);
}

void dibs__exchange_refuse(struct exchange *e, int status, const char *word, const char *format, ...) {
  char why[400];
  va_list args;
  if (e->sent) {
    e->broken = true;
    dibs__exchange_wake(e);
    return;
  }
  if (!e->request || e->request->answered) return;
  va_start(args, format);
  vsnprintf(why, sizeof why, format, args);
  va_end(args);
  dibs__answer_refuse(e->request, status, word, "%s", why);
}

/* ---- The service is done ---- */

void dibs__exchange_upstream_done(struct exchange *e, int status, const char *word, const char *why) {
  e->down.ended = true;
  if (status != 0) {
    dibs__exchange_refuse(e, status, word, "%s", why);
    dibs__guard_leave(e);
    dibs__exchange_end(e);
  } else if (e->key[0] && !e->large) {
    e->answer_length = (int64_t)e->down.length;
    e->step = STEP_STORE;
    dibs__guard_store(e);
  } else {
    dibs__exchange_end(e);
  }
}

void dibs__exchange_is_large(struct exchange *e) {
  curl_off_t length = -1;
  e->large = true;
  curl_easy_getinfo(e->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
  e->answer_length = length;
  dibs__guard_store(e);
}

/* ---- Answering ---- */

static ssize_t read_answer(void *cls, uint64_t position, char *to, size_t size) {
  struct exchange *e = cls;
  (void)position;
  size_t length = dibs__stream_take(&e->down, to, size);
  dibs__upstream_continue(e);
  if (length > 0 && e->request) e->request->answer_bytes += length;
  if (length > 0) return (ssize_t)length;
  if (e->broken || e->gone || !e->request) return MHD_CONTENT_READER_END_WITH_ERROR;
  if (e->down.ended) return e->answer_length < 0 ? MHD_CONTENT_READER_END_OF_STREAM : MHD_CONTENT_READER_END_WITH_ERROR;
  suspend(e->request);
  return 0;
}

/* "Name: value\n" and so on, as `lines` have them. */
static void add_headers(struct MHD_Response *response, const struct exchange *e) {
  struct head head = {.count = 0};
  char name[256];
  dibs__kept_lines(&e->lines, &head);
  for (size_t i = 0; i < head.count; i++) {
    const struct head_line *line = &head.lines[i];
    if (!dibs__head_goes_on(&head, line) || line->name_length >= sizeof name) continue;
    snprintf(name, sizeof name, "%.*s", (int)line->name_length, line->name);
    char *value = calloc(1, line->value_length + 1);
    if (!value) continue;
    memcpy(value, line->value, line->value_length);
    MHD_add_response_header(response, name, value);
    free(value);
  }
  MHD_add_response_header(response, "Via", "1.1 dibs-gate");
  if (e->replayed) MHD_add_response_header(response, "Idempotent-Replayed", "true");
  if (e->not_kept) MHD_add_response_header(response, "Dibs-Kept", "false");
}

static enum MHD_Result send_response(struct request *r, struct exchange *e, struct MHD_Response *response) {
  add_headers(response, e);
  enum MHD_Result result = MHD_queue_response(r->connection, (unsigned)e->status, response);
  e->sent = r->queued = r->answered = true;
  r->queued_at = dibs__tick_now();
  r->answer.status = e->status;
  MHD_destroy_response(response);
  return result;
}

/* The body is there: it goes with the headers in one piece. */
static enum MHD_Result respond_whole(struct request *r, struct exchange *e) {
  /* libmicrohttpd wants memory that could be changed. */
  static char none[1];
  char *bytes = e->down.memory ? e->down.memory + e->down.at : none;
  struct MHD_Response *response = MHD_create_response_from_buffer(e->down.length, bytes, MHD_RESPMEM_MUST_COPY);
  r->answer_bytes = e->down.length;
  dibs__connection_stage(r->on, STAGE_SENDING);
  return response ? send_response(r, e, response) : MHD_NO;
}

static enum MHD_Result respond(struct request *r, struct exchange *e) {
  bool none = e->status == 204 || e->status == 304;
  uint64_t length = e->answer_length < 0 ? MHD_SIZE_UNKNOWN : (uint64_t)e->answer_length;
  if (!none && e->down.length == length) return respond_whole(r, e);
  struct MHD_Response *response =
      none ? MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT)
           : MHD_create_response_from_callback(length, RESPONSE_BLOCK, read_answer, e, unref_response);
  if (!response) return MHD_NO;
  if (!none) e->refs++;
  return send_response(r, e, response);
}

/* ---- Reading a request ---- */

static enum MHD_Result collect_header(void *cls, enum MHD_ValueKind kind, const char *name, size_t name_length,
                                      const char *value, size_t value_length) {
  (void)kind;
  dibs__head_add(cls, name, name_length, value, value_length);
  return MHD_YES;
}

static bool add_forwarded(struct exchange *e, const char *name, size_t name_length, const char *value,
                          size_t value_length) {
  size_t size = name_length + value_length + 3;
  char *text = malloc(size);
  if (!text) return false;
  /* libcurl: "Name:" removes a header, "Name;" is one without a value. */
  if (value_length == 0)
    snprintf(text, size, "%.*s;", (int)name_length, name);
  else
    snprintf(text, size, "%.*s: %.*s", (int)name_length, name, (int)value_length, value);
  struct curl_slist *longer = curl_slist_append(e->headers, text);
  free(text);
  if (longer) e->headers = longer;
  return longer != NULL;
}

static bool forward_headers(struct exchange *e, const struct head *head) {
  static const char *const own[] = {"Accept", "Content-Type"}; /* libcurl would add its own */
  bool done = add_forwarded(e, "Via", 3, "1.1 dibs-gate", 13);
  struct curl_slist *longer = done ? curl_slist_append(e->headers, "Expect:") : NULL;
  if (!longer) return false;
  e->headers = longer;
  for (size_t i = 0; i < head->count && done; i++) {
    const struct head_line *line = &head->lines[i];
    if (dibs__head_goes_on(head, line))
      done = add_forwarded(e, line->name, line->name_length, line->value, line->value_length);
  }
  for (size_t i = 0; i < sizeof own / sizeof *own && done; i++) {
    char text[32];
    if (dibs__head_find(head, own[i])) continue;
    snprintf(text, sizeof text, "%s:", own[i]);
    longer = curl_slist_append(e->headers, text);
    done = longer != NULL;
    if (longer) e->headers = longer;
  }
  return done;
}

/* The key of once, and what else the fingerprint needs.  The scope keeps the keys of two services apart. */
static bool keep_key(struct exchange *e, const struct head *head) {
  static const char *const names[] = {"Authorization", "Cookie", "Content-Type"};
  const struct gate_config *config = &e->gate->config;
  const char *scope = config->scope ? config->scope : config->upstream;
  struct dibs__sha256 hash;
  struct stream secrets = {0};
  char hex[65];
  bool kept = true;
  for (size_t i = 0; i < sizeof names / sizeof *names && kept; i++) {
    const struct head_line *line = dibs__head_find(head, names[i]);
    kept = dibs__stream_add(&secrets, line ? line->value : "", line ? line->value_length : 0) &&
           dibs__stream_add(&secrets, "", 1);
  }
  if (!kept) {
    dibs__stream_free(&secrets);
    return false;
  }
  e->secrets = secrets.memory;
  e->secrets_length = secrets.length;
  dibs__sha256_begin(&hash);
  dibs__sha256_add(&hash, scope, strlen(scope) + 1);
  dibs__sha256_add(&hash, head->key->value, head->key->value_length);
  dibs__sha256_end(&hash, hex);
  snprintf(e->key, sizeof e->key, "gate:%s", hex);
  return true;
}

static struct exchange *make_exchange(struct request *r, const struct head *head, const char *method) {
  struct gate *gate = r->server->service_state;
  struct exchange *e = calloc(1, sizeof *e);
  if (!e) return NULL;
  e->gate = gate;
  e->request = r;
  e->refs = 2; /* of the request, and of the steps */
  e->method = strdup(method);
  e->target = dibs__upstream_target(gate, r->target);
  e->has_body = head->chunked || head->length > 0;
  e->length = head->chunked ? -1 : (int64_t)head->length;
  e->fence = head->fence;
  e->answer_length = -1;
  memcpy(e->name, head->name, sizeof e->name);
  bool keyed = head->key && gate->config.keep_ms > 0 && !dibs__head_reads(method);
  if (e->method && e->target && forward_headers(e, head) && (!keyed || keep_key(e, head))) {
    r->server->running++;
    return e;
  }
  free_exchange(e);
  return NULL;
}

/* true: the request lacks what this gate requires, and was answered. */
static bool lacks(struct request *r, const struct head *head, const char *method) {
  const struct gate *gate = r->server->service_state;
  enum gate_require require = gate->config.require;
  if (head->fence > 0 || require == GATE_REQUIRE_NONE) return false;
  if (require == GATE_REQUIRE_WRITES && dibs__head_reads(method)) return false;
  dibs__answer_refuse(r, 428, "fence-missing",
                      "this gate passes %s only with Dibs-Name and Dibs-Fence: the name of a lease that you hold, and "
                      "its fence",
                      require == GATE_REQUIRE_ALL ? "requests" : "requests that may change something");
  return true;
}

/* Read as a whole before the fence is checked: a slow client does not hold its name meanwhile, and the time between the
 * check and the end of the request is short. */
static bool is_small(const struct exchange *e) {
  return !e->has_body || (e->length >= 0 && e->length <= FLOW_BYTES);
}

static void refuse_body(struct exchange *e) {
  dibs__exchange_refuse(e, 503, "overload", "the bodies at this gate have %u MiB already (--bodies); repeat it later",
                        e->gate->config.serve.bodies_mib);
  dibs__exchange_end(e);
}

/* The headers are there.  A refused head ends its connection: where its body ends may be in doubt. */
static enum MHD_Result begin(struct request *r, const char *method) {
  struct gate *gate = r->server->service_state;
  struct head head = {.count = 0};
  r->has_headers = true;
  r->whole = true; /* a graceful stop waits for it */
  r->server->running++;
  if (dibs__operations_has(r)) return MHD_YES;
  MHD_get_connection_values_n(r->connection, MHD_HEADER_KIND, collect_header, &head);
  if (!dibs__head_check(&head, method, r->target, r->version, gate->config.head_bytes)) {
    dibs__answer_refuse(r, head.status, head.word, "%s", head.why);
    dibs__answer_header(r, "Connection", "close");
    return dibs__http_queue_answer(r);
  }
  if (!dibs__tls_admits(r)) return MHD_YES;
  if (r->server->stopping) {
    dibs__answer_refuse(r, 503, "stopping", "this gate is stopping; repeat the request");
    return MHD_YES;
  }
  if (lacks(r, &head, method)) return MHD_YES;
  struct exchange *e = r->work = make_exchange(r, &head, method);
  if (!e) {
    dibs__answer_problem(r, DIBS_NO_MEMORY, NULL);
    return MHD_YES;
  }
  r->param[0] = e->name[0] ? e->name : NULL;
  if (e->key[0] && head.length > gate->config.serve.body_bytes) {
    dibs__exchange_refuse(e, 413, "too-large",
                          "a request with an Idempotency-Key may have %u bytes at this gate (--body)",
                          gate->config.serve.body_bytes);
    dibs__exchange_end(e);
  } else if (e->key[0] || is_small(e)) {
    /* Its client has --read to send the rest.  Memory is counted as it comes. */
    if (!has_capacity(gate, e->length > 0 ? (size_t)e->length : 0)) refuse_body(e);
  } else {
    dibs__connection_stage(r->on, STAGE_RUNNING); /* a stream may take as long as it moves */
    dibs__guard_begin(e);
  }
  return MHD_YES; /* it is suspended in a later call: libmicrohttpd would repeat this one */
}

/* Nobody wants this part. */
static enum MHD_Result drop_part(struct request *r, size_t *size) {
  r->dropped += *size;
  *size = 0;
  return r->dropped > DROP_BYTES ? MHD_NO : MHD_YES;
}

static enum MHD_Result collect_part(struct exchange *e, const char *part, size_t *size) {
  size_t length = *size, most = e->key[0] ? e->gate->config.serve.body_bytes : FLOW_BYTES;
  *size = 0;
  if (e->up.length + length <= most) {
    if (!dibs__exchange_keep(e, &e->up, part, length)) refuse_body(e);
    return MHD_YES;
  }
  dibs__exchange_refuse(e, 413, "too-large",
                        "a request with an Idempotency-Key may have %zu bytes at this gate (--body)", most);
  dibs__exchange_end(e);
  return MHD_YES;
}

static enum MHD_Result take_part(struct request *r, const char *part, size_t *size) {
  struct exchange *e = r->work;
  if (r->answered || !e || e->step == STEP_DONE) return drop_part(r, size);
  if (e->gone) return MHD_NO;
  if (e->step == STEP_BODY) return collect_part(e, part, size);
  if (e->step == STEP_GUARD) {
    suspend(r);
    return MHD_YES;
  }
  size_t space = FLOW_BYTES > e->up.length ? FLOW_BYTES - e->up.length : 0, length = *size < space ? *size : space;
  if (!dibs__stream_add(&e->up, part, length)) return MHD_NO;
  *size -= length;
  dibs__upstream_continue(e);
  if (*size > 0) suspend(r);
  return MHD_YES;
}

static enum MHD_Result answer_operator(struct request *r) {
  dibs__connection_stage(r->on, STAGE_RUNNING);
  dibs__operations_answer(r);
  if (r->answered) return dibs__http_queue_answer(r);
  dibs__http_suspend(r);
  return MHD_YES;
}

/* All was read. */
static enum MHD_Result finish_reading(struct request *r) {
  struct exchange *e = r->work;
  if (r->queued) return MHD_YES;
  if (!r->answered && dibs__operations_has(r)) return answer_operator(r);
  if (r->answered) return dibs__http_queue_answer(r);
  if (!e || e->gone) return MHD_NO;
  if (!e->up.ended) {
    e->up.ended = true;
    dibs__connection_stage(r->on, STAGE_RUNNING);
    if (e->step == STEP_BODY) {
      e->length = (int64_t)e->up.length;
      if (e->key[0]) dibs__kept_fingerprint(e);
      dibs__guard_begin(e);
    } else {
      dibs__upstream_continue(e);
    }
    if (r->answered) return dibs__http_queue_answer(r);
  }
  if (e->ready) return respond(r, e);
  suspend(r);
  return MHD_YES;
}

static enum MHD_Result handle_part(struct request *r, const char *method, const char *part, size_t *size) {
  if (!r->has_headers) return begin(r, method);
  if (*size > 0) return take_part(r, part, size);
  return finish_reading(r);
}

static void end_request(struct request *r) {
  struct exchange *e = r->work;
  if (r->has_headers && !dibs__operations_has(r)) dibs__count_request(r);
  if (!e) return;
  r->work = NULL;
  e->request = NULL;
  if (e->step != STEP_DONE) leave(e);
  dibs__exchange_unref(e);
}

/* ---- In the loop ---- */

static bool open_gate(struct server *server, dibs_error *error) {
  struct gate *gate = server->service_state;
  gate->server = server;
  if (!dibs__map_init(&gate->checks) || !dibs__count_open(gate)) {
    dibs__fail(error, DIBS_NO_MEMORY, "no memory for the gate");
    return false;
  }
  return dibs__guard_check(gate, error) && dibs__upstream_open(gate, error) && dibs__operations_open(gate, error);
}

static void close_gate(struct server *server) {
  struct gate *gate = server->service_state;
  dibs__upstream_close(gate);
  free_dead(gate);
  dibs__map_free(&gate->checks);
  dibs__count_close(gate);
}

static int64_t next_ms(const struct server *server, dibs__tick now) {
  return dibs__upstream_next_ms(server->service_state, now);
}

static void tick(struct server *server, dibs__tick now) {
  dibs__upstream_tick(server->service_state, now);
  free_dead(server->service_state);
}

static void stop(struct server *server) {
  dibs__upstream_stop(server->service_state);
}

static const struct service service = {.open = open_gate,
                                       .stop = stop,
                                       .close = close_gate,
                                       .handle_part = handle_part,
                                       .end_request = end_request,
                                       .next_ms = next_ms,
                                       .tick = tick};

dibs_status dibs__gate(const struct gate_config *config, void (*ready)(const char *store), dibs_error *error) {
  struct gate gate = {.config = *config};
  gate.config.serve.send_s = gate.config.serve.idle_s;
  gate.config.serve.header_bytes = 2 * config->head_bytes; /* a request and its answer share the memory */
  return dibs__serve_with(&gate.config.serve, &service, &gate, ready, error);
}

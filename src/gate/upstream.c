/* SPDX-License-Identifier: MIT */
/*
 * The service behind the gate, over libcurl, in the loop of the server: its sockets are in an epoll descriptor of their
 * own, which is a source of the loop.
 *
 * libcurl keeps connections and checks certificates.  It follows no redirect, keeps no cookie, decodes no content, uses
 * no proxy, and repeats no request that may change something.
 */
#include "gate/gate_impl.h"
#include "handle/handle.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
  EVENTS = 64,
  MAX_IDLE_S = 30,       /* a connection that was not used for longer is not used again */
  SENDING_BYTES = 16384, /* the smallest buffer that libcurl sends from: ours is in front of it */
};

struct upstream {
  CURLM *multi;
  int epoll;
  struct source source;
  dibs__tick timer;          /* libcurl's */
  char *url, *base, *socket; /* "https://host:443/"; the path before all targets; of unix: */
  struct exchange *to_continue;
  struct exchange *first;
  struct exchange *oldest, *newest; /* those that wait for the service, by silent_from */
};

/* ---- Silence ---- */

static void stop_timing(struct exchange *e) {
  struct upstream *u = e->gate->upstream;
  if (!e->timed) return;
  if (e->older)
    e->older->newer = e->newer;
  else
    u->oldest = e->newer;
  if (e->newer)
    e->newer->older = e->older;
  else
    u->newest = e->older;
  e->timed = false;
}

/* The service has just done something, or it is its turn from now on. */
static void time_silence(struct exchange *e) {
  struct upstream *u = e->gate->upstream;
  stop_timing(e);
  if (e->paused_up || e->paused_down) return; /* it is the client's turn */
  e->silent_from = dibs__tick_now();
  e->older = u->newest;
  e->newer = NULL;
  if (e->older)
    e->older->newer = e;
  else
    u->oldest = e;
  u->newest = e;
  e->timed = true;
}

static dibs__tick silent_until(const struct exchange *e) {
  return dibs__tick_add_ms(e->silent_from, e->gate->config.silence_ms);
}

/* ---- What libcurl calls ---- */

/* A line of the head: without its end.  false: it cannot be passed. */
static bool add_line(struct exchange *e, const char *line, size_t length) {
  const char *colon = memchr(line, ':', length);
  size_t name = colon ? (size_t)(colon - line) : 0;
  const char *value = colon ? colon + 1 : line, *end = line + length;
  while (value < end && (*value == ' ' || *value == '\t')) value++;
  while (end > value && (end[-1] == ' ' || end[-1] == '\t')) end--;
  if (!colon || !dibs__head_name_fine(line, name) || !dibs__head_value_fine(value, (size_t)(end - value))) {
    e->wrong = "its answer has a malformed header line";
    return false;
  }
  bool length_again = name == 14 && strncasecmp(line, "Content-Length", name) == 0 && e->length_count++ > 0;
  if (++e->line_count > HEAD_LINES_MAX || length_again) {
    e->wrong = length_again ? "its answer has two lengths" : "its answer has too many headers";
    return false;
  }
  if (dibs__stream_add(&e->lines, line, name) && dibs__stream_add(&e->lines, ": ", 2) &&
      dibs__stream_add(&e->lines, value, (size_t)(end - value)) && dibs__stream_add(&e->lines, "\n", 1))
    return true;
  e->wrong = "there is no memory for its answer";
  return false;
}

/* "HTTP/1.1 200 OK" */
static bool begin_head(struct exchange *e, const char *line, size_t length) {
  const char *blank = memchr(line, ' ', length);
  e->status = 0;
  e->line_count = e->length_count = 0;
  for (const char *p = blank ? blank + 1 : line + length; p < line + length && *p >= '0' && *p <= '9'; p++)
    e->status = e->status < 1000 ? e->status * 10 + (*p - '0') : e->status;
  dibs__stream_free(&e->lines);
  if (e->status >= 100 && e->status <= 599 && e->status != 101) return true;
  e->wrong = "its answer has no status that can be passed";
  return false;
}

static size_t receive_head(char *bytes, size_t size, size_t count, void *arg) {
  struct exchange *e = arg;
  size_t length = size * count, taken = length;
  time_silence(e);
  if (e->has_head) return taken; /* trailers */
  e->head_bytes += length;
  if (e->head_bytes > e->gate->config.head_bytes) {
    e->wrong = "its answer has too many headers";
    return 0;
  }
  while (length > 0 && (bytes[length - 1] == '\n' || bytes[length - 1] == '\r')) length--;
  if (length >= 5 && memcmp(bytes, "HTTP/", 5) == 0) return begin_head(e, bytes, length) ? taken : 0;
  if (length > 0) return add_line(e, bytes, length) ? taken : 0;
  e->has_head = e->status >= 200;
  if (e->has_head && !e->key[0]) {
    curl_off_t answer_length = -1;
    curl_easy_getinfo(e->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &answer_length);
    e->answer_length = answer_length;
    e->ready = true;
    dibs__exchange_wake(e);
  }
  return taken;
}

/* It goes on to the client as it comes: libcurl waits until there is space. */
static size_t pass_part(struct exchange *e, const char *bytes, size_t length) {
  if (e->gone) return length;
  if (e->down.length + length > FLOW_BYTES) {
    e->paused_down = true;
    stop_timing(e);
    return CURL_WRITEFUNC_PAUSE;
  }
  if (dibs__stream_add(&e->down, bytes, length)) {
    dibs__exchange_wake(e);
    return length;
  }
  e->wrong = "there is no memory for its answer";
  return 0;
}

static size_t receive_body(char *bytes, size_t size, size_t count, void *arg) {
  struct exchange *e = arg;
  size_t length = size * count;
  time_silence(e);
  if (!e->key[0] || e->large) return pass_part(e, bytes, length);
  if (e->down.length + length <= dibs__kept_body_max(e->gate) && dibs__exchange_keep(e, &e->down, bytes, length))
    return length;
  /* This part comes again. */
  e->paused_down = true;
  stop_timing(e);
  dibs__exchange_is_large(e);
  return CURL_WRITEFUNC_PAUSE;
}

static size_t send_body(char *to, size_t size, size_t count, void *arg) {
  struct exchange *e = arg;
  size_t length = dibs__stream_take(&e->up, to, size * count);
  if (length == 0 && !e->up.ended) {
    e->paused_up = true;
    stop_timing(e);
    return CURL_READFUNC_PAUSE;
  }
  time_silence(e);
  dibs__exchange_wake(e);
  return length;
}

/* Called before each time that the request is sent.  libcurl sends it again over a new connection if an old one ends
 * without an answer; by then the service may have done it. */
static int before_sending(void *arg, char *ip, char *own_ip, int port, int own_port) {
  struct exchange *e = arg;
  (void)ip, (void)own_ip, (void)port, (void)own_port;
  if (e->sending && !dibs__head_reads(e->method)) {
    e->wrong = "it closed the connection without an answer";
    return CURL_PREREQFUNC_ABORT;
  }
  e->sending = true;
  return CURL_PREREQFUNC_OK;
}

static int watch_socket(CURL *easy, curl_socket_t socket, int what, void *arg, void *known) {
  struct upstream *u = arg;
  struct epoll_event event = {.data.fd = socket};
  (void)easy;
  if (what == CURL_POLL_REMOVE) {
    epoll_ctl(u->epoll, EPOLL_CTL_DEL, socket, NULL);
    return 0;
  }
  event.events = (what & CURL_POLL_IN ? EPOLLIN : 0u) | (what & CURL_POLL_OUT ? EPOLLOUT : 0u);
  if (epoll_ctl(u->epoll, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, socket, &event) != 0)
    epoll_ctl(u->epoll, known ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, socket, &event);
  curl_multi_assign(u->multi, socket, u);
  return 0;
}

static int set_timer(CURLM *multi, long ms, void *arg) {
  struct upstream *u = arg;
  (void)multi;
  u->timer = ms < 0 ? DIBS__TICK_NEVER : dibs__tick_add_ms(dibs__tick_now(), ms);
  return 0;
}

/* ---- A request ---- */

static CURLcode set_body(struct exchange *e) {
  CURL *easy = e->easy;
  CURLcode code = CURLE_OK;
  if (e->has_body && e->up.ended) {
    /* It goes on in one piece with the headers. */
    code = curl_easy_setopt(easy, CURLOPT_POST, 1L);
    if (!code) code = curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)e->up.length);
    if (!code) code = curl_easy_setopt(easy, CURLOPT_POSTFIELDS, dibs__stream_bytes(&e->up));
  } else if (e->has_body) {
    code = curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
    if (!code) code = curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, (long)SENDING_BYTES);
    if (!code) code = curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, (curl_off_t)e->length);
    if (!code) code = curl_easy_setopt(easy, CURLOPT_READFUNCTION, send_body);
    if (!code) code = curl_easy_setopt(easy, CURLOPT_READDATA, e);
  } else if (strcmp(e->method, "HEAD") == 0) {
    return curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
  } else if (dibs__head_reads(e->method) || strcmp(e->method, "DELETE") == 0) {
    code = curl_easy_setopt(easy, CURLOPT_HTTPGET, 1L);
  } else {
    code = curl_easy_setopt(easy, CURLOPT_POST, 1L); /* with Content-Length: 0 */
    if (!code) code = curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE, 0L);
    if (!code) code = curl_easy_setopt(easy, CURLOPT_POSTFIELDS, "");
  }
  return code ? code : curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, e->method);
}

/* flat: the options of one request */
static bool set_options(struct exchange *e) {
  const struct gate *gate = e->gate;
  const struct upstream *u = gate->upstream;
  CURL *easy = e->easy;
  bool set = curl_easy_setopt(easy, CURLOPT_URL, u->url) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_PROXY, "") == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_REQUEST_TARGET, e->target) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_HTTP_CONTENT_DECODING, 0L) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_HTTPHEADER, e->headers) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, receive_head) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_HEADERDATA, e) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, receive_body) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_WRITEDATA, e) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_PREREQFUNCTION, before_sending) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_PREREQDATA, e) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, e->trouble) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_PRIVATE, e) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_MAXAGE_CONN, (long)MAX_IDLE_S) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)gate->config.connect_ms) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2) == CURLE_OK;
  if (set && gate->config.ca) set = curl_easy_setopt(easy, CURLOPT_CAINFO, gate->config.ca) == CURLE_OK;
  if (set && u->socket) set = curl_easy_setopt(easy, CURLOPT_UNIX_SOCKET_PATH, u->socket) == CURLE_OK;
  return set && set_body(e) == CURLE_OK;
}

static void free_easy(struct exchange *e) {
  struct upstream *u = e->gate->upstream;
  stop_timing(e);
  if (e->to_continue) {
    struct exchange **at = &u->to_continue;
    while (*at != e) at = &(*at)->next_to_continue;
    *at = e->next_to_continue;
    e->to_continue = false;
  }
  if (e->before)
    e->before->after = e->after;
  else
    u->first = e->after;
  if (e->after) e->after->before = e->before;
  curl_easy_cleanup(e->easy);
  e->easy = NULL;
}

bool dibs__upstream_start(struct exchange *e) {
  struct upstream *u = e->gate->upstream;
  e->easy = curl_easy_init();
  if (!e->easy) return false;
  e->before = NULL;
  e->after = u->first;
  if (e->after) e->after->before = e;
  u->first = e;
  if (!set_options(e) || curl_multi_add_handle(u->multi, e->easy) != CURLM_OK) {
    free_easy(e);
    return false;
  }
  time_silence(e);
  return true;
}

void dibs__upstream_abort(struct exchange *e) {
  if (!e->easy) return;
  curl_multi_remove_handle(e->gate->upstream->multi, e->easy);
  free_easy(e);
}

/* Not at once: libcurl may be the caller of our caller. */
void dibs__upstream_continue(struct exchange *e) {
  struct upstream *u = e->gate->upstream;
  if (!e->easy || e->to_continue || (!e->paused_up && !e->paused_down)) return;
  e->to_continue = true;
  e->next_to_continue = u->to_continue;
  u->to_continue = e;
}

static void continue_paused(struct upstream *u) {
  for (struct exchange *e; (e = u->to_continue);) {
    u->to_continue = e->next_to_continue;
    e->to_continue = false;
    if (e->up.length > 0 || e->up.ended) e->paused_up = false;
    bool collecting = e->key[0] && !e->large;
    if (!collecting && (e->gone || e->down.length <= FLOW_BYTES / 2)) e->paused_down = false;
    time_silence(e);
    curl_easy_pause(e->easy, (e->paused_up ? CURLPAUSE_SEND : 0) | (e->paused_down ? CURLPAUSE_RECV : 0));
  }
}

/* ---- Ends ---- */

static const char *outcome(const struct exchange *e) {
  return e->sending ? "it may have done what was requested" : "nothing was sent to it";
}

static void end_transfer(struct exchange *e, CURLcode code) {
  char why[CURL_ERROR_SIZE + 80];
  const char *text = e->wrong ? e->wrong : e->trouble[0] ? e->trouble : curl_easy_strerror(code);
  curl_multi_remove_handle(e->gate->upstream->multi, e->easy);
  free_easy(e);
  if (code == CURLE_OK && !e->has_head) text = "its answer has no head";
  if (code == CURLE_OK && e->has_head) {
    dibs__exchange_upstream_done(e, 0, NULL, NULL);
    return;
  }
  snprintf(why, sizeof why, "the service: %s; %s", text, outcome(e));
  bool late = code == CURLE_OPERATION_TIMEDOUT;
  dibs__exchange_upstream_done(e, late ? 504 : 502, late ? "gateway-timeout" : "bad-gateway", why);
}

static void end_silent(struct gate *gate, dibs__tick now) {
  struct upstream *u = gate->upstream;
  while (u->oldest && !dibs__tick_before(now, silent_until(u->oldest))) {
    struct exchange *e = u->oldest;
    char why[120];
    snprintf(why, sizeof why, "the service was silent for %lld ms; %s", (long long)gate->config.silence_ms, outcome(e));
    dibs__upstream_abort(e);
    dibs__exchange_upstream_done(e, 504, "gateway-timeout", why);
  }
}

static void end_done(struct upstream *u) {
  int left;
  const CURLMsg *message;
  while ((message = curl_multi_info_read(u->multi, &left))) {
    struct exchange *e = NULL;
    if (message->msg != CURLMSG_DONE) continue;
    curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&e);
    end_transfer(e, message->data.result);
  }
}

/* ---- In the loop ---- */

static void sockets_ready(struct server *server, struct source *source) {
  struct upstream *u = ((struct gate *)server->service_state)->upstream;
  struct epoll_event events[EVENTS];
  int running, count = epoll_wait(u->epoll, events, EVENTS, 0);
  (void)source;
  for (int i = 0; i < count; i++) {
    int what = (events[i].events & (EPOLLIN | EPOLLHUP) ? CURL_CSELECT_IN : 0) |
               (events[i].events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
               (events[i].events & EPOLLERR ? CURL_CSELECT_ERR : 0);
    curl_multi_socket_action(u->multi, events[i].data.fd, what, &running);
  }
  end_done(u);
}

int64_t dibs__upstream_next_ms(const struct gate *gate, dibs__tick now) {
  const struct upstream *u = gate->upstream;
  if (u->to_continue) return 0;
  dibs__tick next = u->oldest ? dibs__tick_min(u->timer, silent_until(u->oldest)) : u->timer;
  return dibs__tick_left_ms(now, next);
}

void dibs__upstream_tick(struct gate *gate, dibs__tick now) {
  struct upstream *u = gate->upstream;
  int running;
  continue_paused(u);
  if (!dibs__tick_before(now, u->timer)) {
    u->timer = DIBS__TICK_NEVER; /* libcurl sets the next one */
    curl_multi_socket_action(u->multi, CURL_SOCKET_TIMEOUT, 0, &running);
  }
  end_done(u);
  end_silent(gate, now);
}

/* ---- Opening ---- */

/* The reason why it can't be used; NULL: it can. */
static const char *read_url(struct upstream *u, const char *text) {
  static const CURLUPart unwanted[] = {CURLUPART_USER, CURLUPART_PASSWORD, CURLUPART_QUERY, CURLUPART_FRAGMENT};
  const char *reason = "it is not a URL; write http://HOST:PORT, https://HOST or unix:PATH";
  char *scheme = NULL, *path = NULL, *part = NULL;
  CURLU *url = curl_url();
  if (!url || curl_url_set(url, CURLUPART_URL, text, CURLU_NON_SUPPORT_SCHEME | CURLU_PATH_AS_IS) ||
      curl_url_get(url, CURLUPART_SCHEME, &scheme, 0) || curl_url_get(url, CURLUPART_PATH, &path, 0))
    goto out;
  reason = "it does not begin with http://, https:// or unix:";
  if (strcmp(scheme, "http") != 0 && strcmp(scheme, "https") != 0) goto out;
  reason = "it has a user, a password, a query or a fragment";
  for (size_t i = 0; i < sizeof unwanted / sizeof *unwanted; i++)
    if (curl_url_get(url, unwanted[i], &part, 0) == CURLUE_OK) goto out;
  size_t length = strlen(path);
  while (length > 0 && path[length - 1] == '/') length--;
  u->base = strndup(path, length);
  curl_url_set(url, CURLUPART_PATH, "/", 0);
  reason = u->base && curl_url_get(url, CURLUPART_URL, &part, 0) == CURLUE_OK && (u->url = strdup(part))
               ? NULL
               : "there is no memory for it";
out:
  curl_free(scheme);
  curl_free(path);
  curl_free(part);
  curl_url_cleanup(url);
  return reason;
}

static const char *read_upstream(struct upstream *u, const char *text) {
  if (strncmp(text, "unix:", 5) != 0) return read_url(u, text);
  if (text[5] == '\0') return "the path of the socket is missing";
  u->socket = strdup(text + 5);
  u->url = strdup("http://localhost/");
  u->base = strdup("");
  return u->socket && u->url && u->base ? NULL : "there is no memory for it";
}

static bool open_multi(struct upstream *u, const struct gate_config *config) {
  return (u->multi = curl_multi_init()) && (u->epoll = epoll_create1(EPOLL_CLOEXEC)) >= 0 &&
         curl_multi_setopt(u->multi, CURLMOPT_SOCKETFUNCTION, watch_socket) == CURLM_OK &&
         curl_multi_setopt(u->multi, CURLMOPT_SOCKETDATA, u) == CURLM_OK &&
         curl_multi_setopt(u->multi, CURLMOPT_TIMERFUNCTION, set_timer) == CURLM_OK &&
         curl_multi_setopt(u->multi, CURLMOPT_TIMERDATA, u) == CURLM_OK &&
         curl_multi_setopt(u->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, (long)config->upstream_connections) == CURLM_OK &&
         curl_multi_setopt(u->multi, CURLMOPT_MAXCONNECTS, (long)config->upstream_connections) == CURLM_OK;
}

bool dibs__upstream_open(struct gate *gate, dibs_error *error) {
  const struct gate_config *config = &gate->config;
  struct upstream *u = gate->upstream = calloc(1, sizeof *u);
  if (u) {
    u->epoll = -1;
    u->timer = DIBS__TICK_NEVER;
  }
  if (!u || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK || !open_multi(u, config)) {
    dibs__fail(error, DIBS_NO_MEMORY, "no memory or descriptors for the service");
    return false;
  }
  const char *reason = read_upstream(u, config->upstream);
  if (!reason && config->ca && access(config->ca, R_OK) != 0) reason = "the file of --ca cannot be read";
  if (!reason && dibs__loop_add(gate->server, &u->source, u->epoll, sockets_ready)) return true;
  dibs__fail(error, DIBS_INVALID, "the upstream can't be used: %s", reason ? reason : strerror(errno));
  return false;
}

void dibs__upstream_stop(struct gate *gate) {
  for (struct exchange *e; gate->upstream && (e = gate->upstream->first);) {
    char why[120];
    snprintf(why, sizeof why, "this gate is stopping; the service did not answer in time; %s", outcome(e));
    dibs__upstream_abort(e);
    dibs__exchange_upstream_done(e, 504, "gateway-timeout", why);
  }
}

void dibs__upstream_close(struct gate *gate) {
  struct upstream *u = gate->upstream;
  if (!u) return;
  if (u->multi) curl_multi_cleanup(u->multi);
  if (u->epoll >= 0) close(u->epoll);
  free(u->url);
  free(u->base);
  free(u->socket);
  free(u);
  gate->upstream = NULL;
}

char *dibs__upstream_target(const struct gate *gate, const char *target) {
  const char *base = gate->upstream->base;
  size_t size = strlen(base) + strlen(target) + 1;
  char *whole = malloc(size);
  if (whole) snprintf(whole, size, "%s%s", base, target);
  return whole;
}

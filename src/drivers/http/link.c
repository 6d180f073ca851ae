/* SPDX-License-Identifier: MIT */
/*
 * One connection to a daemon, over libcurl.
 *
 * libcurl would send a request again by itself if a connection that it uses again ends before the answer: the daemon
 * may have done the first one, and a release that is repeated is answered LOST.  So the body comes from a callback that
 * cannot be rewound, and such a request fails instead: UNKNOWN, as for every other driver.
 */
#include "drivers/http/http_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ANSWER_MAX = 128 << 20, DETAIL = 200 };

struct dibs__http_link {
  struct dibs__http *store;
  CURLM *multi;
  CURL *easy;
  struct curl_slist *headers;
  uint32_t host;
  /* Of the request. */
  const struct dibs__writer *message;
  size_t taken; /* of its body, by libcurl */
  struct dibs__http_answer *answer;
  dibs__word *sent;
  char error[CURL_ERROR_SIZE];
};

/* ---- Callbacks ---- */

static size_t give_body(char *to, size_t size, size_t count, void *arg) {
  struct dibs__http_link *link = arg;
  size_t left = link->message->length - link->taken, length = size * count < left ? size * count : left;
  if (length) memcpy(to, link->message->bytes + link->taken, length);
  link->taken += length;
  if (link->sent && link->taken == link->message->length) {
    atomic_fetch_add(link->sent, 1);
    dibs__word_wake(link->sent, 1, false);
    link->sent = NULL;
  }
  return length;
}

/* From the beginning, before any of it was taken; else libcurl gives up. */
static int seek_body(void *arg, curl_off_t offset, int origin) {
  const struct dibs__http_link *link = arg;
  return origin == SEEK_SET && offset == 0 && link->taken == 0 ? CURL_SEEKFUNC_OK : CURL_SEEKFUNC_FAIL;
}

static size_t take_answer(char *bytes, size_t size, size_t count, void *arg) {
  struct dibs__http_answer *answer = ((struct dibs__http_link *)arg)->answer;
  size_t length = size * count;
  if (length > ANSWER_MAX - answer->length) return 0;
  if (answer->length + length + 1 > answer->capacity) {
    size_t capacity = answer->capacity ? answer->capacity : 1024;
    while (capacity < answer->length + length + 1) capacity *= 2;
    uint8_t *grown = realloc(answer->bytes, capacity);
    if (!grown) return 0;
    answer->bytes = grown;
    answer->capacity = capacity;
  }
  memcpy(answer->bytes + answer->length, bytes, length);
  answer->length += length;
  answer->bytes[answer->length] = '\0';
  return length;
}

void dibs__http_answer_free(struct dibs__http_answer *answer) {
  free(answer->bytes);
  *answer = (struct dibs__http_answer){0};
}

/* ---- Opening ---- */

static bool add_header(struct dibs__http_link *link, const char *header) {
  struct curl_slist *longer = curl_slist_append(link->headers, header);
  if (longer) link->headers = longer;
  return longer != NULL;
}

bool dibs__http_security(const struct dibs__http_location *l, CURL *easy) {
  return curl_easy_setopt(easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2) == CURLE_OK &&
         (!l->ca || curl_easy_setopt(easy, CURLOPT_CAINFO, l->ca) == CURLE_OK) &&
         (!l->cert || curl_easy_setopt(easy, CURLOPT_SSLCERT, l->cert) == CURLE_OK) &&
         (!l->key || curl_easy_setopt(easy, CURLOPT_SSLKEY, l->key) == CURLE_OK);
}

static bool set_options(struct dibs__http_link *link) {
  const struct dibs__http_location *l = &link->store->location;
  CURL *easy = link->easy;
  bool tls = strncmp(l->urls[0], "https:", 6) == 0;
  return add_header(link, "Expect:") && add_header(link, "Content-Type: application/octet-stream") &&
         (!l->authorization || add_header(link, l->authorization)) &&
         curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1) == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_PROXY, "") == CURLE_OK && /* no proxy of the environment gets the token */
         curl_easy_setopt(easy, CURLOPT_POST, 1L) == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_HTTPHEADER, link->headers) == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_READFUNCTION, give_body) == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_READDATA, link) == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, seek_body) == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_SEEKDATA, link) == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_answer) == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_WRITEDATA, link) == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, link->error) == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)l->connect_timeout_ms) == CURLE_OK &&
         (!l->socket || curl_easy_setopt(easy, CURLOPT_UNIX_SOCKET_PATH, l->socket) == CURLE_OK) &&
         (!tls || dibs__http_security(l, easy));
}

struct dibs__http_link *dibs__http_link_open(struct dibs__http *store) {
  struct dibs__http_link *link = calloc(1, sizeof *link);
  if (!link) return NULL;
  link->store = store;
  link->multi = curl_multi_init();
  link->easy = curl_easy_init();
  if (link->multi && link->easy && set_options(link)) return link;
  dibs__http_link_close(link);
  return NULL;
}

void dibs__http_link_close(struct dibs__http_link *link) {
  if (!link) return;
  curl_easy_cleanup(link->easy);
  curl_multi_cleanup(link->multi);
  curl_slist_free_all(link->headers);
  free(link);
}

void dibs__http_link_wake(struct dibs__http_link *link) {
  curl_multi_wakeup(link->multi);
}

void dibs__http_link_rest(struct dibs__http_link *link, int64_t ms) {
  curl_multi_poll(link->multi, NULL, 0, (int)ms, NULL);
}

/* ---- Several hosts ---- */

uint32_t dibs__http_present_host(struct dibs__http *store) {
  dibs__mutex_lock(&store->lock);
  uint32_t host = store->host;
  dibs__mutex_unlock(&store->lock);
  return host;
}

/* Unless another connection has moved already.  The poll moves at once, and the waiters are queued again. */
void dibs__http_link_leave(struct dibs__http_link *link) {
  struct dibs__http *store = link->store;
  if (store->location.count == 1) return;
  dibs__mutex_lock(&store->lock);
  bool moves = store->host == link->host, polls = moves && store->polling;
  if (moves) store->host = (link->host + 1) % store->location.count;
  if (polls) dibs__http_link_wake(store->polling);
  dibs__mutex_unlock(&store->lock);
  if (polls) dibs__http_recheck(store);
}

bool dibs__http_link_left(struct dibs__http_link *link) {
  return dibs__http_present_host(link->store) != link->host;
}

/* ---- Answers that are refusals ---- */

/* The text of the member "detail", as far as it is plain: it is for people. */
static void copy_detail(const struct dibs__http_answer *answer, char to[DETAIL]) {
  static const char key[] = "\"detail\":\"";
  const char *from = answer->bytes ? strstr((const char *)answer->bytes, key) : NULL;
  size_t length = 0;
  if (from) {
    for (from += sizeof key - 1; *from && *from != '"' && length + 1 < DETAIL; from++) {
      if (*from == '\\' && from[1]) from++;
      to[length++] = (unsigned char)*from < ' ' ? ' ' : *from;
    }
  }
  to[length] = '\0';
}

static bool is_problem(const struct dibs__http_link *link) {
  const char *type = NULL;
  curl_easy_getinfo(link->easy, CURLINFO_CONTENT_TYPE, &type);
  return type && strncmp(type, "application/problem+json", 24) == 0;
}

/* A proxy's answer says nothing of what the daemon has done; the daemon's own refusal, that it has done nothing. */
static dibs__status status_of(const struct dibs__http_link *link, long code) {
  bool problem = is_problem(link);
  switch (code) {
  case 400:
  case 413:
  case 431:
    return DIBS_INVALID;
  case 401:
  case 403:
  case 407:
    return DIBS_DENIED;
  case 404:
  case 405:
  case 501:
    return DIBS_UNSUPPORTED;
  case 410:
  case 429:
    return DIBS_UNAVAILABLE;
  default:
    return problem && code == 503 ? DIBS_UNAVAILABLE : DIBS_UNKNOWN;
  }
}

/* Could another daemon do what this one, or the proxy before it, could not?  A limit would be that of the next one,
 * too, as soon as all clients have moved there. */
static bool is_disabled(const struct dibs__http_link *link, long code, const struct dibs__http_answer *answer) {
  const char *body = answer->bytes ? (const char *)answer->bytes : "";
  if (code != 502 && code != 503 && code != 504) return false;
  return !is_problem(link) || (!strstr(body, "\"/problems/overload\"") && !strstr(body, "\"/problems/no-memory\""));
}

static dibs__status refused(struct dibs__http_link *link, long code, struct dibs__http_answer *answer,
                            struct dibs__result *result) {
  char detail[DETAIL];
  dibs__status status = status_of(link, code);
  copy_detail(answer, detail);
  answer->no_session = code == 410;
  if (is_disabled(link, code, answer)) dibs__http_link_leave(link);
  if (code == 404)
    dibs__set_message(result, "there is no dibs serve at %.100s (HTTP status 404); write the URL that it has",
                      link->store->location.shown);
  else if (code == 401)
    dibs__set_message(result, "%.60s: %.120s; set DIBS_TOKEN, or add ?token_file=FILE to the URI",
                      link->store->location.shown, detail[0] ? detail : "the token is not known");
  else if (detail[0] && is_problem(link))
    dibs__set_message(result, "%.60s: %s", link->store->location.shown, detail);
  else if (status == DIBS_UNSUPPORTED)
    dibs__set_message(result, "%.100s is not a dibs serve, or an older one: it has no POST /v1/store",
                      link->store->location.shown);
  else
    dibs__set_message(result, "%.100s answered with the HTTP status %ld", link->store->location.shown, code);
  return status;
}

/* ---- A request ---- */

static dibs__status failed(struct dibs__http_link *link, CURLcode code, struct dibs__result *result) {
  const char *socket = link->store->location.socket;
  long system = 0;
  if (socket && curl_easy_getinfo(link->easy, CURLINFO_OS_ERRNO, &system) == CURLE_OK && system != 0)
    dibs__set_message(result, "cannot connect to the socket %.120s: %s; dibs serve --listen unix:PATH makes it", socket,
                      strerror((int)system));
  else
    dibs__set_message(result, "cannot reach %.80s: %.120s", link->store->location.shown,
                      link->error[0] ? link->error : curl_easy_strerror(code));
  dibs__http_link_leave(link);
  return link->taken == link->message->length ? DIBS_UNKNOWN : DIBS_UNAVAILABLE;
}

/* CURLE_ABORTED_BY_CALLBACK: the store is being closed, or the other connections use another daemon. */
static CURLcode transfer(struct dibs__http_link *link, bool polls) {
  int running = 1, left;
  CURLcode code = CURLE_ABORTED_BY_CALLBACK;
  if (curl_multi_add_handle(link->multi, link->easy) != CURLM_OK) return CURLE_FAILED_INIT;
  while (curl_multi_perform(link->multi, &running) == CURLM_OK && running) {
    if (polls && (atomic_load(&link->store->stopping) || dibs__http_link_left(link))) break;
    if (curl_multi_poll(link->multi, NULL, 0, 1000, NULL) != CURLM_OK) break;
  }
  for (CURLMsg *message; (message = curl_multi_info_read(link->multi, &left));)
    if (message->msg == CURLMSG_DONE) code = message->data.result;
  curl_multi_remove_handle(link->multi, link->easy);
  return code;
}

dibs__status dibs__http_post(struct dibs__http_link *link, const struct dibs__writer *message, dibs__tick by,
                             struct dibs__http_answer *answer, dibs__word *sent, struct dibs__result *result) {
  int64_t left_ms = dibs__tick_left_ms(dibs__tick_now(), by);
  long code = 0;
  *answer = (struct dibs__http_answer){0};
  if (message->failed) return DIBS_NO_MEMORY;
  if (left_ms == 0) {
    dibs__set_message(result, "no time was left to send a request to %.80s", link->store->location.shown);
    return DIBS_UNAVAILABLE;
  }
  link->message = message;
  link->taken = 0;
  link->answer = answer;
  link->sent = sent;
  link->error[0] = '\0';
  link->host = dibs__http_present_host(link->store);
  curl_easy_setopt(link->easy, CURLOPT_URL, link->store->location.urls[link->host]);
  curl_easy_setopt(link->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)message->length);
  curl_easy_setopt(link->easy, CURLOPT_TIMEOUT_MS, left_ms < 86400000 ? (long)left_ms : 86400000L);
  CURLcode end = transfer(link, sent != NULL);
  if (end != CURLE_OK) return failed(link, end, result);
  curl_easy_getinfo(link->easy, CURLINFO_RESPONSE_CODE, &code);
  return code == 200 ? DIBS_OK : refused(link, code, answer, result);
}

/* ---- Opening the session ---- */

static dibs__status hello_once(struct dibs__http_link *link, dibs__tick by, struct dibs__message_hello *hello,
                               struct dibs__result *result) {
  struct dibs__writer w = {0};
  struct dibs__http_answer answer;
  uint32_t format;
  dibs__message_begin(&w, DIBS__MESSAGE_HELLO);
  dibs__write_bytes(&w, link->store->number.b, sizeof link->store->number.b);
  dibs__status status = dibs__http_post(link, &w, by, &answer, NULL, result);
  if (status == DIBS_OK) {
    struct dibs__reader r = {answer.bytes, answer.bytes + answer.length, false};
    enum dibs__message_kind kind = dibs__message_kind(&r, &format);
    dibs__read_hello(&r, hello);
    if (kind != DIBS__MESSAGE_HELLO || !dibs__reader_done(&r)) {
      dibs__set_message(result, "%.100s is not a dibs serve, or one of another version", link->store->location.shown);
      status = DIBS_UNSUPPORTED;
    }
  }
  dibs__writer_free(&w);
  dibs__http_answer_free(&answer);
  return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
}

dibs__status dibs__http_hello(struct dibs__http_link *link, dibs__tick by, struct dibs__message_hello *hello,
                              struct dibs__result *result) {
  struct dibs__http *store = link->store;
  dibs__status status = DIBS_UNAVAILABLE;
  uint32_t hosts = store->location.count;
  bool found = false; /* a daemon that is cut off from its store: the second round takes it */
  for (uint32_t i = 0; status == DIBS_UNAVAILABLE && i < (found ? 2 * hosts : hosts); i++) {
    status = hello_once(link, by, hello, result);
    if (status != DIBS_OK || !hello->cut_off || i >= hosts || hosts == 1) continue;
    found = true;
    status = DIBS_UNAVAILABLE;
    dibs__http_link_leave(link);
  }
  if (status != DIBS_OK) return status;
  dibs__mutex_lock(&store->lock);
  bool again = hello->fresh && store->greeted;
  store->greeted = true;
  store->hello = *hello;
  dibs__mutex_unlock(&store->lock);
  if (again) dibs__http_recheck(store); /* the waiters were those of the earlier session */
  return DIBS_OK;
}

/* SPDX-License-Identifier: MIT */
/*
 * One connection to etcd's JSON gateway, over libcurl.
 *
 * libcurl sends a request again by itself if a connection that it uses again ends before any answer.  Of a write it may
 * not: the first attempt may have been done, and then the second one finds another revision, or no server at all.  The
 * caller would learn that somebody else wrote the record, or that nothing was done.  So a write is sent once, and
 * whatever ends after a request has begun is UNKNOWN.
 *
 * Endpoints.  All connections of a store use the same one, and move to the next when it cannot be reached, does not
 * answer within its share of the deadline (a member that is stopped or cut off), or has no leader.
 */
#include "drivers/etcd/etcd_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ANSWER_MAX = 64 << 20, SHARE_MIN_MS = 300 };
enum { TOKEN_MAX = 4096 }; /* a JWT signed with a key of 4096 bits is longer than 700 */
enum { GRPC_INVALID = 3, GRPC_NOT_FOUND = 5, GRPC_DENIED = 7, GRPC_EXHAUSTED = 8, GRPC_UNAUTHENTICATED = 16 };

struct dibs__etcd_link {
  struct dibs__etcd *store;
  CURL *easy;
  struct curl_slist *headers; /* with the token of token_number */
  uint32_t token_number;
  uint32_t begun; /* how often libcurl has begun to send this request */
  bool once;      /* it may not be sent a second time */
  struct dibs__etcd_text answer;
  char error[CURL_ERROR_SIZE];
};

/* ---- Opening ---- */

static size_t take_answer(char *bytes, size_t size, size_t count, void *arg) {
  struct dibs__etcd_link *link = arg;
  if (link->answer.len + size * count > ANSWER_MAX) return 0;
  dibs__etcd_put_bytes(&link->answer, bytes, size * count);
  return link->answer.failed ? 0 : size * count;
}

/* Before each attempt, on a connection that exists. */
static int begin_attempt(void *arg, char *to, char *from, int to_port, int from_port) {
  struct dibs__etcd_link *link = arg;
  (void)to, (void)from, (void)to_port, (void)from_port;
  if (link->begun && link->once) return CURL_PREREQFUNC_ABORT;
  link->begun++;
  return CURL_PREREQFUNC_OK;
}

static bool set_security(const struct dibs__etcd_location *l, CURL *easy) {
  return curl_easy_setopt(easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2) == CURLE_OK &&
         (!l->ca || curl_easy_setopt(easy, CURLOPT_CAINFO, l->ca) == CURLE_OK) &&
         (!l->cert || curl_easy_setopt(easy, CURLOPT_SSLCERT, l->cert) == CURLE_OK) &&
         (!l->key || curl_easy_setopt(easy, CURLOPT_SSLKEY, l->key) == CURLE_OK);
}

bool dibs__etcd_options(struct dibs__etcd *store, CURL *easy) {
  const struct dibs__etcd_location *l = &store->location;
  return curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1) == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_TCP_NODELAY, 1L) == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_PROXY, "") == CURLE_OK && /* no proxy of the environment gets the token */
         curl_easy_setopt(easy, CURLOPT_POST, 1L) == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)l->connect_timeout_ms) == CURLE_OK &&
         (!l->tls || set_security(l, easy));
}

struct dibs__etcd_link *dibs__etcd_link_open(struct dibs__etcd *store) {
  struct dibs__etcd_link *link = calloc(1, sizeof *link);
  if (!link) return NULL;
  link->store = store;
  link->easy = curl_easy_init();
  link->token_number = UINT32_MAX;
  if (link->easy && dibs__etcd_options(store, link->easy) &&
      curl_easy_setopt(link->easy, CURLOPT_WRITEFUNCTION, take_answer) == CURLE_OK &&
      curl_easy_setopt(link->easy, CURLOPT_WRITEDATA, link) == CURLE_OK &&
      curl_easy_setopt(link->easy, CURLOPT_PREREQFUNCTION, begin_attempt) == CURLE_OK &&
      curl_easy_setopt(link->easy, CURLOPT_PREREQDATA, link) == CURLE_OK &&
      curl_easy_setopt(link->easy, CURLOPT_ERRORBUFFER, link->error) == CURLE_OK)
    return link;
  dibs__etcd_link_close(link);
  return NULL;
}

void dibs__etcd_link_close(struct dibs__etcd_link *link) {
  if (!link) return;
  curl_easy_cleanup(link->easy);
  curl_slist_free_all(link->headers);
  dibs__etcd_text_free(&link->answer);
  free(link);
}

uint32_t dibs__etcd_host(struct dibs__etcd *store) {
  dibs__mutex_lock(&store->lock);
  uint32_t host = store->host;
  dibs__mutex_unlock(&store->lock);
  return host;
}

/* Unless another connection has moved already. */
void dibs__etcd_leave_host(struct dibs__etcd *store, uint32_t host) {
  dibs__mutex_lock(&store->lock);
  if (store->host == host) store->host = (host + 1) % store->location.count;
  dibs__mutex_unlock(&store->lock);
}

/* ---- One request ---- */

static bool set_headers(struct dibs__etcd_link *link) {
  struct dibs__etcd *store = link->store;
  char token[sizeof store->token];
  dibs__mutex_lock(&store->lock);
  memcpy(token, store->token, sizeof token);
  uint32_t number = store->token_number;
  dibs__mutex_unlock(&store->lock);
  if (link->token_number == number) return true;
  struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
  struct curl_slist *longer = headers ? curl_slist_append(headers, "Expect:") : NULL;
  if (longer && *token) longer = curl_slist_append(longer, token);
  if (!longer || curl_easy_setopt(link->easy, CURLOPT_HTTPHEADER, longer) != CURLE_OK) {
    curl_slist_free_all(headers);
    return false;
  }
  curl_slist_free_all(link->headers);
  link->headers = longer;
  link->token_number = number;
  return true;
}

static dibs__status failed(struct dibs__etcd_link *link, CURLcode code, const char *base, struct dibs__result *result) {
  dibs__set_message(result, "cannot reach etcd at %.80s: %.120s", base,
                    code == CURLE_ABORTED_BY_CALLBACK ? "the connection ended before the answer"
                    : link->error[0]                  ? link->error
                                                      : curl_easy_strerror(code));
  return link->begun ? DIBS_UNKNOWN : DIBS_UNAVAILABLE;
}

/* What an error of etcd means.  Its texts are part of its API (rpctypes). */
static dibs__status refused(struct dibs__etcd_link *link, const json_t *answer, long http,
                            struct dibs__result *result) {
  const char *text = json_string_value(json_object_get(answer, "message"));
  if (!text) text = json_string_value(json_object_get(answer, "error"));
  int64_t code = dibs__etcd_number(answer, "code");
  if (text)
    dibs__set_message(result, "%.80s: %.150s", link->store->location.shown, text);
  else
    dibs__set_message(result, "%.80s answered with the HTTP status %ld; is it etcd 3.4 or newer?",
                      link->store->location.shown, http);
  if (!text) return http == 404 ? DIBS_UNSUPPORTED : DIBS_UNKNOWN;
  if (code == GRPC_NOT_FOUND && strstr(text, "lease not found")) return DIBS_NOT_FOUND;
  if (strstr(text, "authentication is not enabled")) {
    dibs__set_message(result, "%.80s: this etcd has no users: remove USER:PASSWORD@ from the store URI",
                      link->store->location.shown);
    return DIBS_DENIED;
  }
  if (code == GRPC_DENIED || code == GRPC_UNAUTHENTICATED) return DIBS_DENIED;
  if (code == GRPC_EXHAUSTED && strstr(text, "larger than max")) return DIBS_INVALID;
  if (code == GRPC_EXHAUSTED || strstr(text, "no leader")) return DIBS_UNAVAILABLE;
  if (code == GRPC_INVALID) return strstr(text, "auth") || strstr(text, "user name") ? DIBS_DENIED : DIBS_INVALID;
  return DIBS_UNKNOWN;
}

static bool token_is_invalid(const json_t *answer) {
  const char *text = json_string_value(json_object_get(answer, "message"));
  if (!text) text = json_string_value(json_object_get(answer, "error"));
  return text && (strstr(text, "invalid auth token") || strstr(text, "revision of auth store is old") ||
                  strstr(text, "user name is empty"));
}

/* With the headers that are set. */
static dibs__status send_to(struct dibs__etcd_link *link, const char *base, const char *path,
                            const struct dibs__etcd_text *body, bool once, int64_t ms, struct dibs__result *result,
                            long *http) {
  char url[512];
  link->once = once;
  link->begun = 0;
  snprintf(url, sizeof url, "%s%s", base, path);
  link->answer.len = 0;
  link->answer.failed = false;
  link->error[0] = '\0';
  curl_easy_setopt(link->easy, CURLOPT_URL, url);
  curl_easy_setopt(link->easy, CURLOPT_POSTFIELDS, body->p);
  curl_easy_setopt(link->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body->len);
  curl_easy_setopt(link->easy, CURLOPT_TIMEOUT_MS, ms < 86400000 ? (long)ms : 86400000L);
  CURLcode code = curl_easy_perform(link->easy);
  if (code != CURLE_OK) return failed(link, code, base, result);
  curl_easy_getinfo(link->easy, CURLINFO_RESPONSE_CODE, http);
  return DIBS_OK;
}

static dibs__status send_once(struct dibs__etcd_link *link, const char *path, const struct dibs__etcd_text *body,
                              bool once, int64_t ms, uint32_t host, struct dibs__result *result, long *http) {
  if (body->failed || !set_headers(link)) {
    dibs__set_message(result, "out of memory for a request to %.80s", link->store->location.shown);
    return DIBS_UNAVAILABLE;
  }
  return send_to(link, link->store->location.urls[host], path, body, once, ms, result, http);
}

/* ---- Tokens ---- */

static dibs__status authenticate(struct dibs__etcd_link *link, int64_t ms, uint32_t host, struct dibs__result *result) {
  struct dibs__etcd *store = link->store;
  long http = 0;
  json_t *ask = json_pack("{s:s, s:s}", "name", store->location.user, "password", store->location.password);
  char *text = ask ? json_dumps(ask, JSON_COMPACT) : NULL;
  struct dibs__etcd_text body = {.p = text, .len = text ? strlen(text) : 0, .failed = !text};
  dibs__mutex_lock(&store->lock);
  store->token[0] = '\0';
  store->token_number++;
  dibs__mutex_unlock(&store->lock);
  dibs__status status = send_once(link, "/v3/auth/authenticate", &body, false, ms, host, result, &http);
  if (text) explicit_bzero(text, strlen(text));
  free(text);
  json_decref(ask);
  if (status != DIBS_OK) return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
  json_t *answer = json_loadb(link->answer.p ? link->answer.p : "", link->answer.len, 0, NULL);
  const char *token = json_string_value(json_object_get(answer, "token"));
  if (http != 200 || !token || strlen(token) > TOKEN_MAX || strpbrk(token, "\r\n")) {
    status = refused(link, answer, http, result);
    if (status == DIBS_UNKNOWN) status = DIBS_UNAVAILABLE;
  } else {
    dibs__mutex_lock(&store->lock);
    snprintf(store->token, sizeof store->token, "Authorization: %s", token);
    store->token_number++;
    dibs__mutex_unlock(&store->lock);
  }
  json_decref(answer);
  return status;
}

static bool has_token(struct dibs__etcd *store) {
  dibs__mutex_lock(&store->lock);
  bool has = store->token[0] != '\0';
  dibs__mutex_unlock(&store->lock);
  return has || !store->location.user;
}

dibs__status dibs__etcd_authorize(struct dibs__etcd_link *link, dibs__tick by, struct dibs__result *result) {
  if (has_token(link->store)) return DIBS_OK;
  int64_t ms = dibs__tick_left_ms(dibs__tick_now(), by);
  return ms ? authenticate(link, ms, dibs__etcd_host(link->store), result) : DIBS_UNAVAILABLE;
}

/* ---- A request, by endpoints ---- */

static json_t *read_lines(const struct dibs__etcd_text *text) {
  json_t *all = json_array();
  for (size_t at = 0; all && at < text->len;) {
    json_error_t error;
    json_t *one = json_loadb(text->p + at, text->len - at, JSON_DISABLE_EOF_CHECK, &error);
    if (!one) break;
    json_array_append_new(all, one);
    at += (size_t)error.position;
    while (at < text->len && (text->p[at] == '\n' || text->p[at] == ' ')) at++;
  }
  return all;
}

/* An error answers with its HTTP status; but that of a stream comes after the status 200. */
static dibs__status read_answer(struct dibs__etcd_link *link, long http, bool lines, json_t **answer, bool *expired,
                                struct dibs__result *result) {
  const char *text = link->answer.p ? link->answer.p : "";
  json_t *value = lines && http == 200 ? read_lines(&link->answer) : json_loadb(text, link->answer.len, 0, NULL);
  const json_t *error = json_is_array(value) ? json_object_get(json_array_get(value, 0), "error") : NULL;
  if (http == 200 && value && !error) {
    *answer = value;
    return DIBS_OK;
  }
  *expired = token_is_invalid(json_is_object(error) ? error : value);
  dibs__status status = refused(link, json_is_object(error) ? error : value, http, result);
  json_decref(value);
  return status;
}

static int64_t share_of(int64_t left_ms, uint32_t hosts_left) {
  int64_t share = hosts_left > 1 ? left_ms / (int64_t)hosts_left : left_ms;
  if (share < SHARE_MIN_MS) share = SHARE_MIN_MS;
  return share < left_ms ? share : left_ms;
}

static dibs__status post(struct dibs__etcd_link *link, const char *path, const struct dibs__etcd_text *body,
                         bool repeats, bool lines, dibs__tick by, json_t **answer, struct dibs__result *result) {
  struct dibs__etcd *store = link->store;
  dibs__status status = DIBS_UNAVAILABLE;
  uint32_t hosts = store->location.count;
  int tokens = 0;
  *answer = NULL;
  dibs__set_message(result, "no time was left to send a request to %.80s", store->location.shown);
  for (uint32_t tried = 0; tried < hosts;) {
    int64_t left_ms = dibs__tick_left_ms(dibs__tick_now(), by);
    if (left_ms == 0) return status;
    uint32_t host = dibs__etcd_host(store);
    int64_t ms = share_of(left_ms, hosts - tried);
    long http = 0;
    bool expired = false;
    if (has_token(store)) {
      status = send_once(link, path, body, !repeats, ms, host, result, &http);
      if (status == DIBS_OK) status = read_answer(link, http, lines, answer, &expired, result);
    } else {
      status = authenticate(link, ms, host, result);
      if (status == DIBS_OK && tokens++ < 3) continue;
      if (status == DIBS_OK) status = DIBS_UNAVAILABLE; /* other threads found each token invalid: nothing was sent */
    }
    if (expired && store->location.user && tokens < 3) { /* nothing was done: a new token, then again */
      dibs__mutex_lock(&store->lock);
      store->token[0] = '\0';
      store->token_number++;
      dibs__mutex_unlock(&store->lock);
      continue;
    }
    if (status != DIBS_UNAVAILABLE && status != DIBS_UNKNOWN) {
      if (status == DIBS_OK) result->text[0] = '\0';
      return status;
    }
    dibs__etcd_leave_host(store, host);
    if (status == DIBS_UNKNOWN && !repeats) return status;
    tried++;
  }
  return status;
}

dibs__status dibs__etcd_post(struct dibs__etcd_link *link, const char *path, const struct dibs__etcd_text *body,
                             bool repeats, dibs__tick by, json_t **answer, struct dibs__result *result) {
  return post(link, path, body, repeats, false, by, answer, result);
}

dibs__status dibs__etcd_post_lines(struct dibs__etcd_link *link, const char *path, const struct dibs__etcd_text *body,
                                   dibs__tick by, json_t **answers, struct dibs__result *result) {
  return post(link, path, body, true, true, by, answers, result);
}

/* Headers without the token. */
static bool bare_headers(struct dibs__etcd_link *link) {
  struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
  if (!headers || curl_easy_setopt(link->easy, CURLOPT_HTTPHEADER, headers) != CURLE_OK) {
    curl_slist_free_all(headers);
    return false;
  }
  curl_slist_free_all(link->headers);
  link->headers = headers;
  link->token_number = UINT32_MAX;
  return true;
}

dibs__status dibs__etcd_ask_at(struct dibs__etcd_link *link, const char *base, bool with_token, const char *path,
                               dibs__tick by, json_t **answer, struct dibs__result *result) {
  char empty[] = "{}";
  const struct dibs__etcd_text body = {.p = empty, .len = sizeof empty - 1};
  int64_t ms = dibs__tick_left_ms(dibs__tick_now(), by);
  long http = 0;
  bool expired = false;
  *answer = NULL;
  if (ms == 0) {
    dibs__set_message(result, "no time was left to ask it");
    return DIBS_UNAVAILABLE;
  }
  if (!(with_token ? set_headers(link) : bare_headers(link))) return DIBS_NO_MEMORY;
  dibs__status status = send_to(link, base, path, &body, false, ms, result, &http);
  if (status == DIBS_OK) status = read_answer(link, http, false, answer, &expired, result);
  return expired ? DIBS_DENIED : status;
}

/* SPDX-License-Identifier: MIT */
/* What doctor asks of the daemons that the URI names: each at /healthz, which needs no token, so none is sent. */
#include "drivers/http/http_impl.h"

#include <stdio.h>
#include <string.h>

enum { URL = 600 };

static size_t ignore_answer(char *bytes, size_t size, size_t count, void *arg) {
  (void)bytes, (void)arg;
  return size * count;
}

/* The daemon's address, without the route of stores. */
static void base_of(const char *url, char to[URL]) {
  static const char route[] = "/v1/store";
  size_t len = strlen(url), tail = sizeof route - 1;
  if (len >= tail && strcmp(url + len - tail, route) == 0) len -= tail;
  snprintf(to, URL, "%.*s", (int)len, url);
}

static bool set_options(const struct dibs__http_location *l, CURL *easy, const char *url, long ms, char *why) {
  return curl_easy_setopt(easy, CURLOPT_URL, url) == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_PROXY, "") == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, ms) == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, ignore_answer) == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, why) == CURLE_OK &&
         (!l->socket || curl_easy_setopt(easy, CURLOPT_UNIX_SOCKET_PATH, l->socket) == CURLE_OK) &&
         (strncmp(url, "https:", 6) != 0 || dibs__http_security(l, easy));
}

static void find_daemon(const struct dibs__http_location *l, const char *base, dibs__tick by,
                        struct dibs__findings *to) {
  char url[URL + 16], why[CURL_ERROR_SIZE] = "";
  long ms = (long)dibs__tick_left_ms(dibs__tick_now(), by), status = 0;
  CURL *easy = curl_easy_init();
  snprintf(url, sizeof url, "%s/healthz", base);
  CURLcode code = CURLE_OUT_OF_MEMORY;
  if (easy && set_options(l, easy, url, ms > 0 ? ms : 1, why)) code = curl_easy_perform(easy);
  if (code == CURLE_OK) curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
  if (code != CURLE_OK)
    dibs__find_trouble(to, "node", "look at that daemon", "%s does not answer: %s", base,
                       *why ? why : curl_easy_strerror(code));
  else if (status != 200)
    dibs__find_trouble(to, "node", "look at that daemon", "%s answers with the HTTP status %ld", base, status);
  else
    dibs__find(to, "node", "%s answers", base);
  curl_easy_cleanup(easy);
}

void dibs__http_describe(struct dibs__http *store, dibs__tick by, struct dibs__findings *to) {
  const struct dibs__http_location *l = &store->location;
  char base[URL];
  base_of(l->urls[dibs__http_present_host(store)], base);
  dibs__find(to, "server", "dibs serve at %s", l->socket ? l->socket : base);
  for (uint32_t i = 0; i < l->count && l->count > 1; i++) {
    base_of(l->urls[i], base);
    find_daemon(l, base, dibs__engine_node_by(by, l->count - i), to);
  }
  if (l->socket)
    dibs__find(to, "tls", "not needed: a Unix socket");
  else if (strncmp(l->urls[0], "https:", 6) == 0)
    dibs__find(to, "tls", "at least TLS 1.2; the daemon's certificate and name are verified, by %s%s",
               l->ca ? l->ca : "the system's authorities", l->cert ? "; this client has a certificate" : "");
  else
    dibs__find(to, "tls", "none: the connection is not encrypted");
}

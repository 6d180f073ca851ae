/* SPDX-License-Identifier: MIT */
/*
 * The module of http.h, over libcurl.  It needs nothing of libdibs.
 *
 * libcurl reuses connections, speaks HTTP/2 where TLS agrees on it, and checks certificates and host names.  It follows
 * no redirect, reads no .netrc, keeps no cookie, and decodes no content.  Proxies are those of the environment
 * (https_proxy, no_proxy).
 */
#include "task/http.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct dibs__transfers {
  CURLM *multi;
  char *url, *ca, *agent;
  long connect_ms, total_ms;
  bool tls;
};

struct transfer {
  CURL *easy;
  struct curl_slist *headers;
  struct dibs__http_request *request;
  size_t header_bytes, body_bytes;
  bool too_many_headers, enough; /* it was ended here */
  char error[CURL_ERROR_SIZE];
};

/* ---- Receiving ---- */

static size_t receive_header(char *bytes, size_t size, size_t count, void *arg) {
  struct transfer *t = arg;
  (void)bytes;
  t->header_bytes += size * count;
  t->too_many_headers = t->header_bytes > DIBS__HTTP_HEADERS;
  return t->too_many_headers ? 0 : size * count;
}

static size_t receive_body(char *bytes, size_t size, size_t count, void *arg) {
  struct transfer *t = arg;
  struct dibs__http_answer *answer = &t->request->answer;
  size_t length = size * count, left = sizeof answer->body - answer->length, keep = length < left ? length : left;
  if (keep > 0) memcpy(answer->body + answer->length, bytes, keep);
  answer->length += keep;
  t->body_bytes += length;
  t->enough = t->body_bytes > DIBS__HTTP_BODY;
  return t->enough ? 0 : length;
}

static void read_header(const struct transfer *t, const char *name, char *to, size_t size) {
  struct curl_header *header;
  to[0] = '\0';
  /* A longer value is none of those that dibs understands, but for an address. */
  if (curl_easy_header(t->easy, name, 0, CURLH_HEADER, -1, &header) == CURLHE_OK)
    snprintf(to, size, "%s", header->value);
}

static void read_answer(const struct transfer *t, CURLcode code) {
  struct dibs__http_answer *answer = &t->request->answer;
  long status = 0;
  if (t->too_many_headers) {
    snprintf(answer->trouble, sizeof answer->trouble, "the response has more than %d bytes of headers",
             DIBS__HTTP_HEADERS);
  } else if (code == CURLE_OK || t->enough) {
    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
    answer->status = (int)status;
    read_header(t, "Retry-After", answer->retry_after, sizeof answer->retry_after);
    read_header(t, "Date", answer->date, sizeof answer->date);
    read_header(t, "Location", answer->location, sizeof answer->location);
  } else if (code == CURLE_OUT_OF_MEMORY) {
    /* libcurl has one code for both. */
    snprintf(answer->trouble, sizeof answer->trouble, "out of memory, or a header line of the response is too long");
  } else {
    snprintf(answer->trouble, sizeof answer->trouble, "%s", t->error[0] != '\0' ? t->error : curl_easy_strerror(code));
  }
  if (answer->status == 0 && answer->trouble[0] == '\0')
    snprintf(answer->trouble, sizeof answer->trouble, "no HTTP response");
}

/* ---- Requests ---- */

static void free_transfer(struct transfer *t) {
  if (t == NULL) return;
  curl_easy_cleanup(t->easy);
  curl_slist_free_all(t->headers);
  free(t);
}

static bool add_header(struct transfer *t, const char *header) {
  struct curl_slist *longer = curl_slist_append(t->headers, header);
  if (longer == NULL) return false;
  t->headers = longer;
  return true;
}

static bool set_options(const struct dibs__transfers *transfers, struct transfer *t) {
  CURL *easy = t->easy;
  const struct dibs__http_request *request = t->request;
  bool set = curl_easy_setopt(easy, CURLOPT_URL, transfers->url) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_POST, 1L) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request->length) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_POSTFIELDS, request->body) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_HTTPHEADER, t->headers) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_USERAGENT, transfers->agent) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, receive_header) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_HEADERDATA, t) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, receive_body) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_WRITEDATA, t) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, t->error) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_PRIVATE, t) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, transfers->connect_ms) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, transfers->total_ms) == CURLE_OK;
  if (set && transfers->tls)
    set = curl_easy_setopt(easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2) == CURLE_OK &&
          /* Rather share a connection of HTTP/2 than open another one. */
          curl_easy_setopt(easy, CURLOPT_PIPEWAIT, 1L) == CURLE_OK &&
          (transfers->ca == NULL || curl_easy_setopt(easy, CURLOPT_CAINFO, transfers->ca) == CURLE_OK);
  return set;
}

static bool start(struct dibs__transfers *transfers, struct dibs__http_request *request) {
  struct transfer *t = calloc(1, sizeof *t);
  if (t == NULL) return false;
  t->request = request;
  t->easy = curl_easy_init();
  /* Without this, libcurl waits a second for receivers that do not know "100 Continue". */
  bool ready = t->easy != NULL && add_header(t, "Expect:");
  for (size_t i = 0; ready && request->headers[i] != NULL; i++) ready = add_header(t, request->headers[i]);
  if (!ready || !set_options(transfers, t) || curl_multi_add_handle(transfers->multi, t->easy) != CURLM_OK) {
    free_transfer(t);
    return false;
  }
  request->transfer = t;
  return true;
}

static void end(struct dibs__transfers *transfers, struct dibs__http_request *request) {
  struct transfer *t = request->transfer;
  curl_multi_remove_handle(transfers->multi, t->easy);
  free_transfer(t);
  request->transfer = NULL;
}

static struct dibs__http_request *next_answered(struct dibs__transfers *transfers) {
  int left;
  const CURLMsg *message;
  while ((message = curl_multi_info_read(transfers->multi, &left)) != NULL) {
    if (message->msg != CURLMSG_DONE) continue;
    struct transfer *t = NULL;
    curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&t);
    struct dibs__http_request *request = t->request;
    read_answer(t, message->data.result);
    end(transfers, request);
    return request;
  }
  return NULL;
}

static struct dibs__http_request *step(struct dibs__transfers *transfers, int ms) {
  int running;
  struct dibs__http_request *request = next_answered(transfers);
  if (request != NULL) return request;
  curl_multi_perform(transfers->multi, &running);
  request = next_answered(transfers);
  if (request != NULL) return request;
  curl_multi_poll(transfers->multi, NULL, 0, ms, NULL);
  curl_multi_perform(transfers->multi, &running);
  return next_answered(transfers);
}

static void wake(struct dibs__transfers *transfers) {
  curl_multi_wakeup(transfers->multi);
}

/* ---- Opening ---- */

/* The reason why it can't be used; NULL: it can. */
static const char *check_url(const char *text, bool *tls) {
  CURLU *url = curl_url();
  char *scheme = NULL, *host = NULL;
  const char *flaw = NULL;
  CURLUcode code =
      url != NULL ? curl_url_set(url, CURLUPART_URL, text, CURLU_NON_SUPPORT_SCHEME) : CURLUE_OUT_OF_MEMORY;
  if (code == CURLUE_OK) code = curl_url_get(url, CURLUPART_SCHEME, &scheme, 0);
  if (code == CURLUE_OK) code = curl_url_get(url, CURLUPART_HOST, &host, 0);
  if (code != CURLUE_OK)
    flaw = curl_url_strerror(code);
  else if (strcmp(scheme, "http") != 0 && strcmp(scheme, "https") != 0)
    flaw = "it does not begin with https:// or http://";
  else
    *tls = strcmp(scheme, "https") == 0;
  curl_free(scheme);
  curl_free(host);
  curl_url_cleanup(url);
  return flaw;
}

static void close_transfers(struct dibs__transfers *transfers) {
  if (transfers == NULL) return;
  if (transfers->multi != NULL) curl_multi_cleanup(transfers->multi);
  free(transfers->url);
  free(transfers->ca);
  free(transfers->agent);
  free(transfers);
}

static struct dibs__transfers *open_transfers(const struct dibs__http_options *options, char *why, size_t size) {
  bool tls = false;
  if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
    snprintf(why, size, "libcurl can't be started");
    return NULL;
  }
  const char *flaw = check_url(options->url, &tls);
  if (flaw != NULL) {
    snprintf(why, size, "the URL can't be used: %s", flaw);
    return NULL;
  }
  if (options->ca != NULL && access(options->ca, R_OK) != 0) {
    snprintf(why, size, "cannot read the certificates in '%s'", options->ca);
    return NULL;
  }
  struct dibs__transfers *transfers = calloc(1, sizeof *transfers);
  bool ready = transfers != NULL && (transfers->multi = curl_multi_init()) != NULL &&
               (transfers->url = strdup(options->url)) != NULL && (transfers->agent = strdup(options->agent)) != NULL &&
               (options->ca == NULL || (transfers->ca = strdup(options->ca)) != NULL);
  if (!ready) {
    close_transfers(transfers);
    snprintf(why, size, "out of memory");
    return NULL;
  }
  transfers->tls = tls;
  transfers->connect_ms = (long)options->connect_ms;
  transfers->total_ms = (long)options->total_ms;
  curl_multi_setopt(transfers->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, (long)options->connections);
  curl_multi_setopt(transfers->multi, CURLMOPT_MAXCONNECTS, (long)options->connections);
  return transfers;
}

__attribute__((visibility("default"))) dibs__module_part_fn dibs__http_module;

const struct dibs__module_head *dibs__http_module(void) {
  static const struct dibs__http_module module = {.head = {sizeof module, DIBS__HTTP_MODULE_ABI},
                                                  .open = open_transfers,
                                                  .close = close_transfers,
                                                  .start = start,
                                                  .cancel = end,
                                                  .step = step,
                                                  .wake = wake};
  return &module.head;
}

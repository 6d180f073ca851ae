/* SPDX-License-Identifier: MIT */
#include "serve/origin.h"
#include "serve/server.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <netinet/in.h>
#include <string.h>
#include <strings.h>

/* What pages may send beside the simple headers, and see beside the simple ones. */
static const char may_send[] = "Authorization, Content-Type, Dibs-Fence, Dibs-Lease, Idempotency-Key, If-Match, "
                               "If-None-Match, Last-Event-ID, traceparent";
static const char may_see[] =
    "Allow, Dibs-Fence, Dibs-Lease, ETag, Idempotent-Replayed, Location, Retry-After, WWW-Authenticate";

static const char *header(const struct request *r, const char *name) {
  return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, name);
}

/* What follows "http://" or "https://"; NULL: it is no origin. */
static const char *authority_of(const char *origin) {
  if (strncasecmp(origin, "https://", 8) == 0) return origin + 8;
  return strncasecmp(origin, "http://", 7) == 0 ? origin + 7 : NULL;
}

bool dibs__origin_valid(const char *text) {
  const char *authority = authority_of(text);
  if (!authority || !*authority) return false;
  for (const char *p = authority; *p; p++)
    if (!isalnum((unsigned char)*p) && !strchr(".-:[]", *p)) return false;
  return true;
}

static const char *listed(const struct request *r, const char *origin) {
  const struct serve_config *config = &r->server->config;
  for (size_t i = 0; origin && i < config->origin_count; i++)
    if (strcasecmp(config->origins[i], origin) == 0) return config->origins[i];
  return NULL;
}

/* Is `host` the Host of a listed origin? */
static bool is_host_of_listed(const struct request *r, const char *host) {
  const struct serve_config *config = &r->server->config;
  for (size_t i = 0; i < config->origin_count; i++)
    if (strcasecmp(authority_of(config->origins[i]), host) == 0) return true;
  return false;
}

/* Nobody can own a name without a dot in the public DNS. */
static bool is_local_name(const char *host) {
  char name[INET6_ADDRSTRLEN + 2];
  struct in_addr address;
  size_t length = strcspn(host, ":");
  if (*host == '[' || !memchr(host, '.', length)) return true;
  if (length >= sizeof name) return false;
  memcpy(name, host, length);
  name[length] = '\0';
  return inet_pton(AF_INET, name, &address) == 1;
}

static bool has_good_host(const struct request *r) {
  const char *host = header(r, MHD_HTTP_HEADER_HOST);
  return r->server->tokens || !host || is_local_name(host) || is_host_of_listed(r, host);
}

static bool is_own(const struct request *r, const char *origin) {
  const char *authority = authority_of(origin), *host = header(r, MHD_HTTP_HEADER_HOST);
  return authority && host && strcasecmp(authority, host) == 0;
}

static void answer_preflight(struct request *r) {
  dibs__answer_begin(r, 204);
  dibs__answer_header(r, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, PUT, PATCH, DELETE");
  dibs__answer_header(r, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_HEADERS, "%s", may_send);
  dibs__answer_header(r, MHD_HTTP_HEADER_ACCESS_CONTROL_MAX_AGE, "600");
  dibs__answer_end(r);
}

bool dibs__origin_admits(struct request *r, const char *method) {
  const char *origin = header(r, MHD_HTTP_HEADER_ORIGIN);
  r->origin = listed(r, origin);
  if (!has_good_host(r)) {
    dibs__answer_refuse(r, 403, "origin",
                        "a daemon without tokens does not answer to the name in Host; use localhost, "
                        "an address, or list the origin with --cors");
    return false;
  }
  if (origin && !r->origin && !is_own(r, origin)) {
    dibs__answer_refuse(r, 403, "origin", "pages of this origin may not use the daemon; --cors lists those that may");
    return false;
  }
  if (!r->origin || strcmp(method, MHD_HTTP_METHOD_OPTIONS) != 0 ||
      !header(r, MHD_HTTP_HEADER_ACCESS_CONTROL_REQUEST_METHOD))
    return true;
  answer_preflight(r);
  return false;
}

void dibs__origin_add(const struct request *r, struct MHD_Response *response) {
  if (r->server->config.origin_count > 0) MHD_add_response_header(response, MHD_HTTP_HEADER_VARY, "Origin");
  if (!r->origin) return;
  MHD_add_response_header(response, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_ORIGIN, r->origin);
  MHD_add_response_header(response, MHD_HTTP_HEADER_ACCESS_CONTROL_EXPOSE_HEADERS, may_see);
}

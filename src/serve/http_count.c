/* SPDX-License-Identifier: MIT */
#include "serve/http_count.h"
#include "base/hist.h"
#include "serve/meter.h"
#include "serve/server.h"
#include "serve/together.h"

#include <stdio.h>
#include <stdlib.h>

/* The statuses that routes answer; 0 counts every other status. */
static const int statuses[] = {200, 201, 204, 304, 400, 401, 403, 404, 405, 409, 410, 412,
                               413, 414, 428, 429, 431, 500, 501, 502, 503, 504, 0};
enum { STATUSES = sizeof statuses / sizeof *statuses };

/* Of one route; 9 KiB. */
struct route_count {
  const struct route *route; /* NULL: requests that no route has */
  uint64_t statuses[STATUSES];
  struct dibs__hist took;
};

struct http_counts {
  size_t count;
  struct route_count routes[];
};

bool dibs__http_counts_open(struct server *server) {
  size_t count = 1;
  for (const struct route *const *table = dibs__routes; *table; table++)
    for (const struct route *route = *table; route->path; route++) count++;
  struct http_counts *c = calloc(1, sizeof *c + count * sizeof *c->routes);
  server->http_counts = c;
  if (!c) return false;
  for (const struct route *const *table = dibs__routes; *table; table++)
    for (const struct route *route = *table; route->path; route++) c->routes[c->count++].route = route;
  c->count++;
  return true;
}

void dibs__http_counts_close(struct server *server) {
  free(server->http_counts);
}

/* The last one is that of no route. */
static struct route_count *find_count(struct http_counts *c, const struct route *route) {
  size_t i = 0;
  while (i + 1 < c->count && c->routes[i].route != route) i++;
  return &c->routes[i];
}

void dibs__http_count(const struct request *r) {
  struct http_counts *c = r->server->http_counts;
  size_t i = 0;
  if (!c) return;
  struct route_count *count = find_count(c, r->route);
  while (i + 1 < STATUSES && statuses[i] != r->answer.status) i++;
  count->statuses[i]++;
  dibs__hist_add(&count->took, dibs__tick_now().ns - r->began.ns);
}

static void add_route(struct meter *meter, const struct route_count *count) {
  static const char *const methods[METHOD_COUNT] = {"GET", "POST", "PUT", "PATCH", "DELETE"};
  char status[16];
  struct label labels[] = {{"method", count->route ? methods[count->route->method] : "other"},
                           {"route", count->route ? count->route->path : "other"},
                           {NULL, NULL},
                           {NULL, NULL}};
  if (count->took.count == 0) return;
  dibs__meter_add_hist(meter, "http.request.seconds", "time from a request's first line to its answer, with its wait",
                       labels, &count->took);
  for (size_t i = 0; i < STATUSES; i++) {
    if (count->statuses[i] == 0) continue;
    snprintf(status, sizeof status, "%d", statuses[i]);
    labels[2] = (struct label){"status", statuses[i] ? status : "other"};
    dibs__meter_add(meter, "http.requests", DIBS_COUNTER, "requests that were answered", labels,
                    (double)count->statuses[i]);
  }
}

/* Those that wait for events do so for hours: they are no sign of trouble. */
static void add_waiting(const struct server *server, struct meter *meter) {
  const struct request *oldest = NULL;
  unsigned count = 0;
  for (const struct request *r = server->first_waiting; r; r = r->after) {
    if (r->listens) continue;
    if (!oldest) oldest = r;
    count++;
  }
  dibs__meter_add(meter, "http.requests.waiting", DIBS_GAUGE, "requests that wait for a lease or a task", NULL, count);
  dibs__meter_add(meter, "http.requests.oldest_waiting.seconds", DIBS_GAUGE, "how long the oldest of them has waited",
                  NULL, oldest ? (double)(dibs__tick_now().ns - oldest->waits_from.ns) / 1e9 : 0);
}

void dibs__http_counts_add(const struct server *server, struct meter *meter) {
  const struct http_counts *c = server->http_counts;
  dibs__meter_add(meter, "http.connections", DIBS_GAUGE, "connections that are open", NULL, server->connection_count);
  dibs__meter_add(meter, "http.requests.running", DIBS_GAUGE, "requests that are being done or wait", NULL,
                  (double)server->running);
  dibs__meter_add(meter, "http.requests.queued", DIBS_GAUGE,
                  "requests that wait for a thread for what blocks, or for a call that they will share", NULL,
                  dibs__pool_waiting(server) + dibs__together_waiting(server));
  add_waiting(server, meter);
  for (size_t i = 0; i < c->count; i++) add_route(meter, &c->routes[i]);
}

/* SPDX-License-Identifier: MIT */
/*
 * Metrics: what this server has counted since it started, and the tasks of the store, for Prometheus (/metrics) and as
 * JSON.  A scrape costs the store a count of tasks at most (kinds.c), and with several tiers a read of their state.
 */
#include "counter/counter.h"
#include "info/info.h"
#include "serve/http_count.h"
#include "serve/kinds.h"
#include "serve/meter.h"
#include "serve/page.h"
#include "serve/probe.h"
#include "serve/task_count.h"

#include <string.h>

enum { KINDS_MOST = 200 }; /* kinds with samples of their own; those of the others are added up as METER_OTHERS */

/* ---- What the library counts ---- */

/* Its names, and ours. */
static const struct {
  const char *from, *to;
  double scale;
} names[] = {{"granted_by", "lock.acquired", 1},
             {"handed_off", "lock.handed_off", 1},
             {"busy", "lock.busy", 1},
             {"timeout", "lock.timeout", 1},
             {"failed", "lock.failed", 1},
             {"lost", "lock.lost", 1},
             {"lost_in_time", "lock.lost_in_time", 1},
             {"renewed", "lock.renewed", 1},
             {"stale", "lock.stale", 1},
             {"held", "lock.held", 1},
             {"waiting", "lock.waiting", 1},
             {"acquire", "lock.acquire.seconds", 1},
             {"release", "lock.release.seconds", 1},
             {"fallback", "lock.fallback", 1},
             {"least_strict", "lock.least_strict", 1},
             {"batch_sizes", "store.batch_size", 1},
             {"pending", "store.pending", 1},
             {"transactions", "store.transactions", 1},
             {"tier_moves", "tier.moves", 1},
             {"tier_epochs", "tier.epochs", 1},
             {"anchor_rollbacks", "anchor.rollbacks", 1},
             {"breaker_opened", "breaker.opened", 1},
             {"clients", "fleet.clients", 1},
             {"strict", "fleet.strict", 1},
             {"all_tiers_down", "fleet.all_tiers_down", 1},
             {"anchor_confirmed_age_ms", "anchor.confirmed_age.seconds", 1e-3},
             {"tier_breaker", "breaker.state", 1},
             {"tier_breaker_mode", "breaker.forced", 1},
             {"tier_down", "tier.down", 1},
             {"tier_percent", "tier.rollout.ratio", 1e-2},
             {"tier_buckets", "tier.buckets", 1},
             {"tier_active", "tier.clients.active", 1},
             {"tier_clients_down", "tier.clients.down", 1},
             {"tier_operations", "tier.operations", 1},
             {"tier_failures", "tier.failures", 1},
             {"tier_p50_ns", "tier.p50.seconds", 1e-9},
             {"tier_p99_ns", "tier.p99.seconds", 1e-9},
             {"tier_max_ns", "tier.max.seconds", 1e-9}};

static int add_metric(const dibs_metric *metric, void *user) {
  struct label labels[] = {{metric->tier ? "tier" : NULL, metric->tier},
                           {metric->strategy ? "strategy" : NULL, metric->strategy},
                           {NULL, NULL}};
  size_t i = 0;
  while (i < sizeof names / sizeof *names && strcmp(names[i].from, metric->name) != 0) i++;
  if (i == sizeof names / sizeof *names) return 0;
  if (metric->kind == DIBS_LATENCY)
    dibs__meter_add_latency(user, names[i].to, metric->help, labels, metric->latency);
  else if (metric->kind == DIBS_SIZES)
    dibs__meter_add_sizes(user, names[i].to, metric->help, labels, metric->sizes);
  else
    dibs__meter_add(user, names[i].to, metric->kind, metric->help, labels, (double)metric->value * names[i].scale);
  return 0;
}

/* ---- Tasks ---- */

struct tasks {
  struct meter *meter;
  size_t kinds; /* that have samples of their own */
  bool has_others;
  uint64_t others[DIBS_TASK_STATES];
  int64_t others_oldest_ms;
};

static void add_states(struct meter *meter, const char *kind, const uint64_t states[], int64_t oldest_ms) {
  struct label labels[] = {{"kind", kind}, {NULL, NULL}, {NULL, NULL}};
  for (uint32_t i = 0; i < DIBS_TASK_STATES; i++) {
    labels[1] = (struct label){"state", dibs__info_task_state(i)};
    dibs__meter_add(meter, "tasks", DIBS_GAUGE, "tasks of the store", labels, (double)states[i]);
  }
  labels[1].name = NULL;
  dibs__meter_add(meter, "tasks.oldest_ready.seconds", DIBS_GAUGE, "how long the oldest ready task has been ready",
                  labels, oldest_ms > 0 ? (double)oldest_ms / 1e3 : 0);
}

static bool add_kind(const struct kind_row *row, void *user) {
  struct tasks *t = user;
  if (t->kinds < KINDS_MOST && strcmp(row->kind, METER_OTHERS) != 0) {
    t->kinds++;
    add_states(t->meter, row->kind, row->states, row->oldest_ms);
    return true;
  }
  t->has_others = true;
  for (size_t i = 0; i < DIBS_TASK_STATES; i++) t->others[i] += row->states[i];
  if (row->oldest_ms > t->others_oldest_ms) t->others_oldest_ms = row->oldest_ms;
  return true;
}

/* A store without tasks, or a store that does not answer, has no such metrics. */
static void add_tasks(struct server *server, struct meter *meter) {
  struct tasks tasks = {.meter = meter, .others_oldest_ms = -1};
  int64_t age_ms;
  if (dibs__kinds_read(server, add_kind, &tasks, &age_ms, NULL) != DIBS_OK) return;
  if (tasks.has_others) add_states(meter, METER_OTHERS, tasks.others, tasks.others_oldest_ms);
  dibs__meter_add(meter, "tasks.counted_age.seconds", DIBS_GAUGE, "how long ago the tasks were counted", NULL,
                  (double)age_ms / 1e3);
}

/* ---- Shared sums of counters ---- */

static void add_counters(struct server *server, struct meter *meter) {
  struct dibs__counter_lag lag;
  if (!dibs__counter_lag(server->store, &lag)) return;
  dibs__meter_add(meter, "shared.flush_lag.seconds", DIBS_GAUGE,
                  "the age of the oldest shared sum that is not in the database", NULL, (double)lag.lag_ms / 1e3);
  dibs__meter_add(meter, "shared.batches_waiting", DIBS_GAUGE, "batches of shared sums that are not in the database",
                  NULL, (double)lag.waiting);
  dibs__meter_add(meter, "shared.refused", DIBS_GAUGE, "shared sums that the database has refused", NULL,
                  (double)lag.refused);
  dibs__meter_add(meter, "shared.looked_age.seconds", DIBS_GAUGE, "how long ago shared sums were counted", NULL,
                  (double)lag.age_ms / 1e3);
}

/* ---- The answers ---- */

/* Without the store there is still what this server counted: an alert must see that it is up, and its store is not. */
static void collect(struct server *server, struct meter *meter) {
  bool up = dibs__probe_store_is_up(server);
  dibs__meter_add(meter, "store.up", DIBS_GAUGE, "1: the store answered a probe less than a second ago", NULL, up);
  (void)!dibs_metrics(server->store, add_metric, meter, NULL);
  dibs__task_counts_add(server, meter);
  add_counters(server, meter);
  if (up) add_tasks(server, meter);
}

static void drop_meter(struct request *r) {
  dibs__meter_free(r->work);
}

static void write_text(struct request *r) {
  struct meter *meter = r->work;
  collect(r->server, meter);
  if (dibs__meter_is_whole(meter)) {
    dibs__meter_write_text(meter, dibs__answer_begin(r, 200));
    r->answer.type = "text/plain; version=0.0.4; charset=utf-8";
  } else {
    dibs__answer_problem(r, DIBS_NO_MEMORY, NULL);
  }
  drop_meter(r);
}

static void write_json(struct request *r) {
  struct meter *meter = r->work;
  const char *name = r->param[0];
  collect(r->server, meter);
  if (!dibs__meter_is_whole(meter))
    dibs__answer_problem(r, DIBS_NO_MEMORY, NULL);
  else if (!dibs__meter_write_json(meter, dibs__answer_begin(r, 200), name))
    dibs__answer_refuse(r, 404, "not-found", "there is no metric \"%.64s\"; /v1/metrics has all", name);
  drop_meter(r);
}

/* What the loop has counted is read in the loop, the rest in a thread. */
static void run(struct request *r, void (*block)(struct request *r)) {
  struct meter *meter = dibs__meter_new();
  struct label version[] = {{"version", dibs_version()}, {NULL, NULL}};
  if (!meter) {
    dibs__answer_problem(r, DIBS_NO_MEMORY, NULL);
    return;
  }
  dibs__meter_add(meter, "build_info", DIBS_GAUGE, "1, with the version of this daemon", version, 1);
  dibs__http_counts_add(r->server, meter);
  r->work = meter;
  dibs__pool_run(r, block, drop_meter);
}

static void get_text(struct request *r) {
  run(r, write_text);
}

static void get_json(struct request *r) {
  run(r, write_json);
}

const struct route dibs__metric_routes[] = {
    {METHOD_GET, "/metrics", SCOPE_READ, get_text, 0, NULL, "getMetricsText", "200",
     "Metrics, in the text format of Prometheus", "", "text/plain"},
    {METHOD_GET, "/v1/metrics", SCOPE_READ, get_json, 0, NULL, "listMetrics", "200", "Metrics as JSON", "", NULL},
    {METHOD_GET, "/v1/metrics/{metric}", SCOPE_READ, get_json, 0, NULL, "showMetric", "200 404",
     "One metric: lock.acquired", "", NULL},
    {.path = NULL}};

/* SPDX-License-Identifier: MIT */
/* `dibs stats`: what all clients count, how the tiers stand, and what a lease costs now. */
#include "cli/tier.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 20 };

struct stats {
  const struct cli_globals *globals;
  struct cli_json json;
  size_t held, waiting;
};

/* ---- A lease of our own ---- */

/* The library times it: what it told before these rounds is what opening the store did. */
static dibs_status probe(dibs_store *store, dibs_error *error) {
  dibs_lease_options options = {.size = sizeof options, .flags = DIBS_NO_RENEW};
  char id[33], name[64];
  dibs_status status = DIBS_OK;
  dibs__cli_draw_id(id);
  snprintf(name, sizeof name, "dibs.stats.%s", id);
  for (int i = 0; i < ROUNDS && status == DIBS_OK; i++) {
    dibs_lease *lease = NULL;
    status = dibs_acquire(store, name, &options, &lease, error);
    if (status == DIBS_OK) status = dibs_release(lease, error);
    dibs_lease_free(lease);
  }
  return status;
}

static int tell_latency(const dibs_metric *metric, void *user) {
  struct stats *s = user;
  const dibs_latency *l = metric->latency;
  if (metric->kind != DIBS_LATENCY) return 0;
  if (!s->globals->json) {
    printf("%-8s %8.3f ms, p99 %.3f ms, at most %.3f ms of %" PRIu64 "\n", metric->name, (double)l->p50 / 1e6,
           (double)l->p99 / 1e6, (double)l->max / 1e6, l->count);
    return 0;
  }
  dibs__cli_json_open(&s->json, metric->name, '{');
  dibs__cli_json_uint(&s->json, "count", l->count);
  dibs__cli_json_uint(&s->json, "p50_ns", l->p50);
  dibs__cli_json_uint(&s->json, "p90_ns", l->p90);
  dibs__cli_json_uint(&s->json, "p99_ns", l->p99);
  dibs__cli_json_uint(&s->json, "max_ns", l->max);
  dibs__cli_json_close(&s->json, '}');
  return 0;
}

static int count_row(const dibs_lease_info *info, void *user) {
  struct stats *s = user;
  if (info->state == DIBS_WAITS || info->state == DIBS_OFFERED)
    s->waiting++;
  else
    s->held++;
  return 0;
}

/* ---- Printing ---- */

static void print_tiers(struct stats *s, const struct cli_tiers *tiers) {
  if (s->globals->json) {
    dibs__cli_tiers_json(tiers, &s->json);
    return;
  }
  dibs__cli_tiers_table(tiers, dibs__cli_columns(STDOUT_FILENO), stdout);
  printf("\nclients %u, since each began\n", tiers->info.clients);
  for (size_t i = 0; i < DIBS_TIERS_COUNTED; i++)
    printf("%-14s %12" PRIu64 "\n", dibs__cli_tiers_count_name(i), tiers->info.all[i]);
  putchar('\n');
}

static int print(struct stats *s, dibs_store *store, const struct cli_tiers *tiers) {
  dibs_error error = {0};
  bool json = s->globals->json;
  if (json) {
    dibs__cli_json_open(&s->json, NULL, '{');
    dibs__cli_json_text(&s->json, "store", dibs_store_uri(store));
    dibs__cli_json_uint(&s->json, "held", s->held);
    dibs__cli_json_uint(&s->json, "waiting", s->waiting);
  } else {
    printf("%s\n%zu held, %zu waiting\n\n", dibs_store_uri(store), s->held, s->waiting);
  }
  if (tiers->count > 0) print_tiers(s, tiers);
  if (json)
    dibs__cli_json_open(&s->json, "lease", '{');
  else
    printf("a lease, from here\n");
  dibs_status status = dibs_metrics(store, tell_latency, s, &error);
  if (json) {
    dibs__cli_json_close(&s->json, '}');
    dibs__cli_json_close(&s->json, '}');
  }
  if (status != DIBS_OK) return dibs__cli_fail_status(s->globals, status, &error, "stats");
  return dibs__cli_flush(s->globals);
}

int dibs__cli_stats(struct cli_call *call) {
  struct stats s = {.globals = &call->v.globals, .json = {.out = stdout}};
  struct cli_tiers tiers = {0};
  dibs_store *store = NULL;
  dibs_error error = {0};
  int code = dibs__cli_open(s.globals, 0, &store);
  if (code != CLI_DONE) return code;
  dibs_status status = dibs_list(store, NULL, count_row, &s, &error);
  if (status == DIBS_OK) status = probe(store, &error);
  if (status == DIBS_OK) {
    status = dibs__cli_tiers_look(store, &tiers, &error);
    if (status == DIBS_UNSUPPORTED) status = DIBS_OK; /* one store alone */
  }
  if (status == DIBS_OK && tiers.full) status = DIBS_NO_MEMORY;
  code = status == DIBS_OK ? print(&s, store, &tiers) : dibs__cli_fail_status(s.globals, status, &error, "stats");
  dibs__cli_tiers_free(&tiers);
  dibs_close(store);
  return code;
}

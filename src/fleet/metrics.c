/* SPDX-License-Identifier: MIT */
/* Everything that is counted, one by one. */
#include "fleet/room.h"

#include <stdlib.h>

/* From 2^10 ns on: about a microsecond. */
enum { STEPS_FROM = 10 };

struct telling {
  dibs_metric_fn fn;
  void *user;
  const char *tier;
  int stop;
};

static void tell(struct telling *t, uint32_t kind, const char *name, uint64_t value, const char *help) {
  dibs_metric metric = {
      .size = sizeof metric, .name = name, .help = help, .tier = t->tier, .kind = kind, .value = value};
  if (!t->stop) t->stop = t->fn(&metric, t->user);
}

static void tell_latency(struct telling *t, const char *name, const struct dibs__hist *hist, const char *help) {
  dibs_latency latency = {.count = hist->count,
                          .sum = hist->sum,
                          .max = hist->max,
                          .p50 = dibs__hist_percentile(hist, 50),
                          .p90 = dibs__hist_percentile(hist, 90),
                          .p99 = dibs__hist_percentile(hist, 99),
                          .p999 = dibs__hist_percentile(hist, 99.9)};
  for (unsigned i = 0; i < DIBS_LATENCY_STEPS; i++) latency.steps[i] = dibs__hist_below(hist, STEPS_FROM + i);
  dibs_metric metric = {.size = sizeof metric, .name = name, .help = help, .kind = DIBS_LATENCY, .latency = &latency};
  if (!t->stop) t->stop = t->fn(&metric, t->user);
}

static void tell_leases(struct telling *t, const dibs_stats *s) {
  tell(t, DIBS_COUNTER, "acquired", s->granted, "leases granted to callers, hand-offs included");
  tell(t, DIBS_COUNTER, "handed_off", s->handed_off, "leases passed on inside the process, without the store");
  tell(t, DIBS_COUNTER, "busy", s->busy, "acquisitions that somebody else's lease refused");
  tell(t, DIBS_COUNTER, "timeout", s->timeouts, "acquisitions whose wait ended");
  tell(t, DIBS_COUNTER, "failed", s->failed, "acquisitions that the store did not answer");
  tell(t, DIBS_COUNTER, "lost", s->lost, "leases lost while they were held");
  tell(t, DIBS_COUNTER, "renewed", s->renewed, "renewals that succeeded");
  tell(t, DIBS_COUNTER, "stale", s->stale, "writes that a newer fence refused");
  tell(t, DIBS_GAUGE, "held", s->held, "leases held now");
  tell(t, DIBS_GAUGE, "waiting", s->waiting, "acquisitions waiting now");
  tell(t, DIBS_COUNTER, "batches", s->batches, "calls of the driver");
  tell(t, DIBS_COUNTER, "operations", s->operations, "operations that these carried");
  tell(t, DIBS_COUNTER, "transactions", s->transactions, "transactions of the store, as far as it counts them");
}

static void tell_whole(struct telling *t, const struct dibs__tiers_view *view) {
  tell(t, DIBS_COUNTER, "fallback", view->counts[DIBS__M_FALLBACK], "leases granted by another tier than the first");
  tell(t, DIBS_COUNTER, "least_strict", view->counts[DIBS__M_LEAST_STRICT],
       "leases granted by the memory of the process alone");
  tell(t, DIBS_COUNTER, "tier_moves", view->counts[DIBS__M_MOVES], "buckets that this process moved to another tier");
  tell(t, DIBS_COUNTER, "tier_epochs", view->counts[DIBS__M_EPOCHS],
       "epochs that it made because a tier's memory was lost or used up");
  tell(t, DIBS_COUNTER, "breaker_opened", view->counts[DIBS__M_TURNS], "times that a breaker opened");
  tell(t, DIBS_GAUGE, "clients", view->tally.clients, "clients that have reported in the last 10 s");
  tell(t, DIBS_GAUGE, "strict", view->state.strictness == DIBS__STRICT, "1: strict");
  tell(t, DIBS_GAUGE, "on_their_own", view->local, "1: every tier is down, and this process goes on alone");
  if (view->confirmed_ms >= 0)
    tell(t, DIBS_GAUGE, "anchor_confirmed_ms", (uint64_t)view->confirmed_ms,
         "since the anchor confirmed how it stands");
}

static void tell_tier(struct telling *t, const struct dibs__tiers_view *view, uint32_t nth) {
  char name[64];
  t->tier = dibs__tiers_tier_name(&view->state, nth, name, sizeof name);
  tell(t, DIBS_GAUGE, "tier_breaker", view->tiers[nth].breaker, "of this process: 0 closed, 1 open, 2 half-open");
  tell(t, DIBS_GAUGE, "tier_down", view->state.tiers[nth].down, "1: voted down");
  tell(t, DIBS_GAUGE, "tier_hand", view->state.tiers[nth].hand, "by hand: 0 automatic, 1 open, 2 closed");
  tell(t, DIBS_GAUGE, "tier_percent", view->state.tiers[nth].percent, "of buckets that it is rolled out to");
  tell(t, DIBS_GAUGE, "tier_buckets", view->tiers[nth].buckets, "buckets of 100 that it serves");
  tell(t, DIBS_GAUGE, "tier_active", view->tally.active[nth], "clients that use it");
  tell(t, DIBS_GAUGE, "tier_clients_down", view->tally.down[nth], "of these, clients that it fails");
  tell(t, DIBS_COUNTER, "tier_operations", view->tiers[nth].operations, "operations that it was asked");
  tell(t, DIBS_COUNTER, "tier_failures", view->tiers[nth].failures, "operations that it did not answer");
  tell(t, DIBS_GAUGE, "tier_p50_ns", view->tiers[nth].p50_ns, "half of its calls took at most this");
  tell(t, DIBS_GAUGE, "tier_p99_ns", view->tiers[nth].p99_ns, "99% of its calls took at most this");
  tell(t, DIBS_GAUGE, "tier_max_ns", view->tiers[nth].max_ns, "its longest call");
  t->tier = NULL;
}

static dibs_status tell_all(dibs_store *store, struct telling *t, dibs_error *error) {
  dibs_stats stats = {.size = sizeof stats};
  struct dibs__fleet_ask *ask = NULL;
  struct dibs__hist *took = malloc(2 * sizeof *took);
  if (!took) return dibs__fail(error, DIBS_NO_MEMORY, "dibs_metrics: out of memory");
  dibs_status status = dibs__fine(error);
  if (dibs__fleet_tiered(store, "", NULL) == DIBS_OK) status = dibs__fleet_view(store, "counting", &ask, error);
  if (status == DIBS_OK) {
    dibs_store_stats(store, &stats);
    dibs__mutex_lock(&store->lock);
    took[0] = store->acquiring;
    took[1] = store->releasing;
    dibs__mutex_unlock(&store->lock);
    tell_leases(t, &stats);
    tell_latency(t, "acquire", &took[0], "from asking for a lease to having it, waiting included");
    tell_latency(t, "release", &took[1], "from releasing a lease to the store's answer");
    if (ask) tell_whole(t, ask->tiers.got);
    for (uint32_t i = 0; ask && i < ask->tiers.got->state.count; i++) tell_tier(t, ask->tiers.got, i);
  }
  dibs__fleet_drop(ask);
  free(took);
  return status;
}

dibs_status dibs_metrics(dibs_store *store, dibs_metric_fn fn, void *user, dibs_error *error) {
  if (!fn) return dibs__fail(error, DIBS_INVALID, "dibs_metrics: no function was given");
  struct telling telling = {.fn = fn, .user = user};
  dibs_status status = dibs__enter(store, "dibs_metrics", error);
  if (status != DIBS_OK) return status;
  status = tell_all(store, &telling, error);
  dibs__exit(store);
  return status;
}

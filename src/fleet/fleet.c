/* SPDX-License-Identifier: MIT */
/*
 * Requests of operators about all clients of a store: the state of its tiers, flags, moves by hand, counters.  They
 * reach a store of tiers as operations of DIBS__FAM_TIERS.
 */
#include "fleet/fleet.h"
#include "base/text.h"
#include "handle/request.h"
#include "lease/lease.h"
#include "store/combiner.h"
#include "tier/tiers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_CAPACITY = 127 }; /* of a flag, or of the tiers' record; a longer name is no flag's, cut or not */

static dibs_status fail_request(const struct dibs__request *request, dibs_status status, bool told, const char *what,
                                dibs_error *error) {
  dibs_store *store = request->store;
  char trouble[256] = "";
  const char *why = told && request->op.family == DIBS__FAM_TIERS ? request->tiers.why : "";
  /* The text for a wrong call is complete. */
  if (status == DIBS_INVALID && why[0]) return dibs__fail(error, status, "%s", why);
  if (!why[0] && status != DIBS_INVALID && status != DIBS_UNSUPPORTED) {
    dibs__core_trouble(store->core, trouble, sizeof trouble);
    why = trouble;
  }
  return dibs__fail(error, status, "%s at %s: %s%s%s", what, store->shown, dibs_status_text(status), why[0] ? ": " : "",
                    why);
}

/* Sends the request and waits: OK, or the status with its text. */
static dibs_status fleet_carry(struct dibs__request *request, uint16_t verb, const char *what, dibs_error *error) {
  dibs_status status = dibs__request_carry(request, verb, DIBS__TICK_NEVER);
  if (status == DIBS_OK) return dibs__fine(error);
  return fail_request(request, status, dibs__request_is_answered(request), what, error);
}

/* Between dibs__enter and dibs__exit: is it of several tiers?  Else UNSUPPORTED, with words. */
static dibs_status fleet_tiered(dibs_store *store, const char *what, dibs_error *error) {
  if (!store->outer && dibs__core_families(store->core) & (1u << DIBS__FAM_TIERS)) return DIBS_OK;
  /* The last tier keeps the records of all of them, so a store of leases alone comes first. */
  bool anchor = dibs__core_families(store->core) & (1u << DIBS__FAM_RECORD);
  bool daemon = strncmp(store->shown, "http", 4) == 0;
  if (anchor && !daemon && !(dibs__core_identity(store->core)->caps & DIBS__CAP_ANCHOR))
    return dibs__fail(
        error, DIBS_UNSUPPORTED,
        "%s: %s is one store, not several tiers, and can't be one of them: use other stores, with a comma "
        "between them (doc/tiers.md)",
        what, store->shown);
  if (anchor && daemon && !(dibs__core_identity(store->core)->caps & DIBS__CAP_ANCHOR))
    return dibs__fail(error, DIBS_UNSUPPORTED,
                      "%s: the tiers of a daemon, as %s, are in its own URI: run this command with that URI, where "
                      "dibs serve runs",
                      what, store->shown);
  return dibs__fail(error, DIBS_UNSUPPORTED,
                    "%s: %s is one store, not several tiers; for tiers, write %s it, with a comma: \"%s%s%s\"", what,
                    store->shown, anchor ? "another store before" : "a database after", anchor ? "FIRST," : "",
                    store->shown, anchor ? "" : ",DATABASE");
}

/* The present state, in tiers.got of *out; NULL unless OK. */
static dibs_status fleet_view(dibs_store *store, const char *what, struct dibs__request **out, dibs_error *error) {
  *out = NULL;
  dibs_status status = fleet_tiered(store, what, error);
  if (status != DIBS_OK) return status;
  struct dibs__request *request = dibs__request_make(store, DIBS__FAM_TIERS, NULL, NAME_CAPACITY);
  if (!request) {
    dibs__fail(error, DIBS_NO_MEMORY, "%s: out of memory", what);
    return DIBS_NO_MEMORY;
  }
  status = fleet_carry(request, DIBS__TIERS_VIEW, what, error);
  if (status == DIBS_OK)
    *out = request;
  else
    dibs__request_drop(request);
  return status;
}

/* ---- The state of the tiers, the reports of their clients, and the flags ---- */

_Static_assert((int)DIBS_BUCKETS == (int)DIBS__BUCKETS && (int)DIBS_TIERS_MAX == (int)DIBS__URI_TIERS, "shown");
_Static_assert((int)DIBS_TIERS_COUNTS == (int)DIBS__TIERS_COUNTS_MAX && (int)DIBS_TIERS_COUNTED == (int)DIBS__M_COUNT &&
                   (int)DIBS_TIERS_WENT_BACK == (int)DIBS__M_WENT_BACK && (int)DIBS_TIERS_STALE == (int)DIBS__M_STALE,
               "shown");
_Static_assert((int)DIBS_BREAKER_HALF_OPEN == (int)DIBS__BREAKER_HALF_OPEN &&
                   (int)DIBS_HAND_CLOSED == (int)DIBS__HAND_CLOSED && (int)DIBS_STRICTNESS_STRICT == (int)DIBS__STRICT,
               "shown");

static dibs_strictness strictness_of(const struct dibs__tiers_state *state) {
  if (state->strictness == DIBS__STRICT) return DIBS_STRICTNESS_STRICT;
  return state->least_strict ? DIBS_STRICTNESS_LEAST : DIBS_STRICTNESS_FENCED;
}

static uint32_t epochs_left_percent(const struct dibs__tiers_state *state) {
  uint32_t most = 0;
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++)
    if (state->mandates[b].epoch > most) most = state->mandates[b].epoch;
  return (uint32_t)((uint64_t)(DIBS__EPOCH_MAX - most) * 100 / DIBS__EPOCH_MAX);
}

static void tell_whole(const struct dibs__tiers_view *view, dibs_tiers_info *to) {
  dibs_tiers_info info = {.size = to->size,
                          .tiers = view->state.count,
                          .clients = view->tally.clients,
                          .pinned = view->state.pinned,
                          .on_their_own = view->local,
                          .strictness = strictness_of(&view->state),
                          .confirmed_ms = view->confirmed_ms,
                          .restored_ms = -1,
                          .epochs_left_percent = epochs_left_percent(&view->state)};
  if (view->state.repaired) {
    int64_t ago = view->now_ms - view->state.repaired;
    info.restored_ms = ago > 0 ? ago : 0;
  }
  for (size_t i = 0; i < DIBS__M_COUNT; i++) info.here[i] = view->counts[i];
  for (size_t c = 0; c < view->client_count; c++)
    for (size_t i = 0; i < DIBS__M_COUNT; i++) info.all[i] += view->clients[c].report.counts[i];
  memcpy(to, &info, to->size < sizeof info ? to->size : sizeof info);
}

static int tell_tier(const struct dibs__tiers_view *view, uint32_t nth, dibs_tier_fn fn, void *user) {
  const struct dibs__tiers_tier *tier = &view->state.tiers[nth];
  char name[64];
  dibs_tier_info info = {.size = sizeof info,
                         .name = dibs__tiers_tier_name(&view->state, nth, name, sizeof name),
                         .uri = view->tiers[nth].uri,
                         .trouble = view->tiers[nth].trouble,
                         .tier = nth,
                         .percent = tier->percent,
                         .buckets = view->tiers[nth].buckets,
                         .hand = (dibs_hand)tier->hand,
                         .breaker = (dibs_breaker)view->tiers[nth].breaker,
                         .down = tier->down,
                         .reached = view->tiers[nth].reached,
                         .turned_ms = tier->changed ? view->now_ms - tier->changed : -1,
                         .dwell_ms = tier->dwell_ms,
                         .active = view->tally.active[nth],
                         .clients_down = view->tally.down[nth],
                         .clients_well = view->tally.well[nth],
                         .calls = view->tiers[nth].calls,
                         .failed_percent = view->tiers[nth].failed_percent,
                         .slow_percent = view->tiers[nth].slow_percent,
                         .operations = view->tiers[nth].operations,
                         .failures = view->tiers[nth].failures,
                         .p50_ns = view->tiers[nth].p50_ns,
                         .p99_ns = view->tiers[nth].p99_ns,
                         .max_ns = view->tiers[nth].max_ns};
  if (info.turned_ms < 0 && tier->changed) info.turned_ms = 0; /* by a clock that is a little ahead of ours */
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) {
    const struct dibs__tiers_left *left = &view->state.mandates[b].left;
    info.wanted += dibs__tiers_wanted(&view->state, b) == nth;
    info.leaving += left->epoch && left->tier == nth;
  }
  return fn(&info, user);
}

static int tell_client(const struct dibs__tiers_client *client, dibs_tier_client_fn fn, void *user) {
  const struct dibs__tiers_report *report = &client->report;
  dibs_tier_client info = {
      .size = sizeof info, .owner = report->owner, .us = client->us, .tiers = report->count, .age_ms = client->age_ms};
  for (uint32_t i = 0; i < report->count; i++) {
    info.active[i] = report->tiers[i].active;
    info.down[i] = report->tiers[i].down;
    info.well[i] = report->tiers[i].well;
    info.breaker[i] = (dibs_breaker)report->tiers[i].breaker;
  }
  memcpy(info.counts, report->counts, sizeof info.counts);
  return fn(&info, user);
}

dibs_status dibs_tiers(dibs_store *store, dibs_tiers_info *info, dibs_tier_fn tier, dibs_tier_client_fn client,
                       void *user, dibs_error *error) {
  struct dibs__request *request;
  if (info && info->size < sizeof(size_t))
    return dibs__fail(error, DIBS_INVALID, "info->size is %zu: set it to sizeof(dibs_tiers_info)", info->size);
  dibs_status status = dibs__enter(store, "dibs_tiers", error);
  if (status != DIBS_OK) return status;
  status = fleet_view(store, "reading the tiers", &request, error);
  if (status == DIBS_OK) {
    const struct dibs__tiers_view *view = request->tiers.got;
    int stop = 0;
    if (info) tell_whole(view, info);
    for (uint32_t i = 0; tier && !stop && i < view->state.count; i++) stop = tell_tier(view, i, tier, user);
    for (size_t i = 0; client && !stop && i < view->client_count; i++)
      stop = tell_client(&view->clients[i], client, user);
    dibs__request_drop(request);
  }
  dibs__exit(store);
  return status;
}

dibs_status dibs_strictness_get(dibs_store *store, dibs_strictness *strictness, dibs_error *error) {
  struct dibs__request *request;
  if (!strictness) return dibs__fail(error, DIBS_INVALID, "dibs_strictness_get: strictness is NULL");
  *strictness = DIBS_STRICTNESS_FENCED;
  dibs_status status = dibs__enter(store, "dibs_strictness_get", error);
  if (status != DIBS_OK) return status;
  status = fleet_view(store, "reading the strictness", &request, error);
  if (status == DIBS_OK) *strictness = strictness_of(&request->tiers.got->state);
  dibs__request_drop(request);
  dibs__exit(store);
  return status;
}

/* ---- Flags ---- */

dibs_status dibs_flags(dibs_store *store, dibs_flag_fn fn, void *user, dibs_error *error) {
  struct dibs__request *request;
  struct dibs__result result;
  char name[64];
  uint32_t percent;
  if (!fn) return dibs__fail(error, DIBS_INVALID, "dibs_flags: fn is NULL");
  dibs_status status = dibs__enter(store, "dibs_flags", error);
  if (status != DIBS_OK) return status;
  status = fleet_view(store, "listing the flags", &request, error);
  if (status == DIBS_OK) {
    const struct dibs__tiers_state *state = &request->tiers.got->state;
    for (size_t n = 0; dibs__tiers_flag_name(state, n, name, sizeof name); n++)
      if (dibs__tiers_flag_get(state, name, &percent, &result) == DIBS_OK && fn(name, percent, user)) break;
  }
  dibs__request_drop(request);
  dibs__exit(store);
  return status;
}

dibs_status dibs_flag_get(dibs_store *store, const char *name, uint32_t *percent, dibs_error *error) {
  struct dibs__request *request;
  if (!name || !percent) return dibs__fail(error, DIBS_INVALID, "dibs_flag_get: name or percent is NULL");
  *percent = 0;
  dibs_status status = dibs__enter(store, "dibs_flag_get", error);
  if (status != DIBS_OK) return status;
  status = fleet_view(store, "reading a flag", &request, error);
  if (status == DIBS_OK) {
    struct dibs__result result = {0};
    status = (dibs_status)dibs__tiers_flag_get(&request->tiers.got->state, name, percent, &result);
    if (status != DIBS_OK) dibs__fail(error, status, "%s", result.text);
  }
  dibs__request_drop(request);
  dibs__exit(store);
  return status;
}

/* Everything that is counted, one by one. */

/* From 2^10 ns on: about a microsecond. */
enum { STEPS_FROM = 10 };

struct counts {
  struct dibs__core_counts core;
  struct dibs__lease_counts lease;
};

struct telling {
  dibs_metric_fn fn;
  void *user;
  const char *tier;
  int stop;
};

static void tell_number(struct telling *t, uint32_t kind, const char *name, uint64_t value, const char *help) {
  dibs_metric metric = {
      .size = sizeof metric, .name = name, .help = help, .tier = t->tier, .kind = kind, .value = value};
  if (!t->stop) t->stop = t->fn(&metric, t->user);
}

void dibs__latency_of(const struct dibs__hist *hist, dibs_latency *latency) {
  *latency = (dibs_latency){.count = hist->count,
                            .sum = hist->sum,
                            .max = hist->max,
                            .p50 = dibs__hist_percentile(hist, 50),
                            .p90 = dibs__hist_percentile(hist, 90),
                            .p99 = dibs__hist_percentile(hist, 99),
                            .p999 = dibs__hist_percentile(hist, 99.9)};
  for (unsigned i = 0; i < DIBS_LATENCY_STEPS; i++) latency->steps[i] = dibs__hist_below(hist, STEPS_FROM + i);
}

static void tell_latency(struct telling *t, const char *name, const struct dibs__hist *hist, const char *help) {
  dibs_latency latency;
  dibs__latency_of(hist, &latency);
  dibs_metric metric = {.size = sizeof metric, .name = name, .help = help, .kind = DIBS_LATENCY, .latency = &latency};
  if (!t->stop) t->stop = t->fn(&metric, t->user);
}

_Static_assert((int)DIBS_SIZES_STEPS == (int)DIBS__CORE_SIZES, "shown");

static void tell_batches(struct telling *t, const struct dibs__core_counts *counts) {
  dibs_sizes sizes = {.count = counts->batches, .sum = counts->operations, .max = counts->largest};
  for (size_t i = 0; i < DIBS_SIZES_STEPS; i++) sizes.steps[i] = counts->at_most[i];
  dibs_metric metric = {.size = sizeof metric,
                        .name = "batch_sizes",
                        .help = "operations that a call of the driver carried together",
                        .kind = DIBS_SIZES,
                        .sizes = &sizes};
  if (!t->stop) t->stop = t->fn(&metric, t->user);
}

/* "trace+rediss://host" has the engine "redis", and "trace+NAME+srv://host" the engine NAME. */
static void write_engine(struct dibs__text *to, const char *uri) {
  char scheme[32];
  struct dibs__text text;
  const char *end = strchrnul(uri, ':'), *from;
  if (end - uri > 4 && memcmp(end - 4, "+srv", 4) == 0) end -= 4;
  from = end;
  while (from > uri && from[-1] != '+') from--;
  dibs__text_begin(&text, scheme, sizeof scheme);
  dibs__text_add(&text, from, (size_t)(end - from));
  dibs__text_adds(to, dibs__tiers_scheme(scheme));
}

/* What grants the leases of a store: its engine, and the kind of lock if that is not the ordinary one. */
static void write_strategy(struct dibs__text *to, const char *uri) {
  static const char key[] = "lock=", ordinary[] = "rows";
  const char *at = strchr(uri, '?');
  write_engine(to, uri);
  while (at && strncmp(at + 1, key, sizeof key - 1) != 0) at = strchr(at + 1, '&');
  if (!at) return;
  at += sizeof key;
  size_t length = strcspn(at, "&");
  if (length == sizeof ordinary - 1 && strncmp(at, ordinary, length) == 0) return;
  dibs__text_adds(to, "-");
  dibs__text_add(to, at, length);
}

/* `tier` NULL: the name of its engine. */
static void tell_granted(struct telling *t, const char *tier, const char *uri, uint64_t granted) {
  char strategy[64], engine[32];
  struct dibs__text text;
  dibs__text_begin(&text, engine, sizeof engine);
  write_engine(&text, uri);
  dibs__text_begin(&text, strategy, sizeof strategy);
  write_strategy(&text, uri);
  dibs_metric metric = {.size = sizeof metric,
                        .name = "granted_by",
                        .help = "leases granted to callers, by tier and strategy",
                        .tier = tier ? tier : engine,
                        .kind = DIBS_COUNTER,
                        .value = granted,
                        .strategy = strategy};
  if (!t->stop) t->stop = t->fn(&metric, t->user);
}

static uint64_t granted_by(const struct dibs__lease_counts *counts, const char *tier) {
  uint64_t granted = 0;
  for (size_t i = 0; i < DIBS__LEASE_TIERS; i++)
    if (counts->by_tier[i].tier && strcmp(counts->by_tier[i].tier, tier) == 0) granted += counts->by_tier[i].granted;
  return granted;
}

/* A waiter that began by an offer of one of several tiers does not know which: these count for the tier "unknown". */
static void tell_granted_by_tiers(struct telling *t, const struct dibs__tiers_view *view,
                                  const struct dibs__lease_counts *counts) {
  char name[64];
  uint64_t rest = counts->granted;
  for (uint32_t nth = 0; nth < view->state.count; nth++) {
    uint64_t granted = granted_by(counts, view->tiers[nth].uri);
    tell_granted(t, dibs__tiers_tier_name(&view->state, nth, name, sizeof name), view->tiers[nth].uri, granted);
    rest -= granted;
  }
  uint64_t local = granted_by(counts, "memory");
  if (local > 0) tell_granted(t, "least-strict", "memory:", local);
  if (rest > local) tell_granted(t, "unknown", "unknown:", rest - local);
}

static void tell_leases(struct telling *t, const struct counts *s) {
  tell_number(t, DIBS_COUNTER, "acquired", s->lease.granted, "leases granted to callers, including hand-offs");
  tell_number(t, DIBS_COUNTER, "handed_off", s->lease.handed_off,
              "leases passed on within the process, without the store");
  tell_number(t, DIBS_COUNTER, "busy", s->lease.busy, "acquisitions refused because another client held the name");
  tell_number(t, DIBS_COUNTER, "timeout", s->lease.timeouts, "acquisitions whose wait ended");
  tell_number(t, DIBS_COUNTER, "failed", s->lease.failed, "acquisitions that the store did not answer");
  tell_number(t, DIBS_COUNTER, "lost", s->lease.lost, "leases lost while they were held");
  tell_number(t, DIBS_COUNTER, "lost_in_time", s->lease.lost_in_time,
              "of these, leases whose loss this process noticed before the store could grant the name again");
  tell_number(t, DIBS_COUNTER, "renewed", s->lease.renewed, "renewals that succeeded");
  tell_number(t, DIBS_COUNTER, "stale", s->lease.stale, "writes that a newer fence refused");
  tell_number(t, DIBS_GAUGE, "held", s->lease.held, "leases held now");
  tell_number(t, DIBS_GAUGE, "waiting", s->lease.waiting, "acquisitions waiting now");
  tell_number(t, DIBS_COUNTER, "batches", s->core.batches, "calls of the driver");
  tell_number(t, DIBS_COUNTER, "operations", s->core.operations, "operations in these calls");
  tell_number(t, DIBS_COUNTER, "transactions", s->core.transactions, "transactions of the store, if it counts them");
  tell_number(t, DIBS_GAUGE, "pending", s->core.pending, "operations that wait to be sent to the store now");
  tell_batches(t, &s->core);
}

static void metrics_tell_whole(struct telling *t, const struct dibs__tiers_view *view) {
  tell_number(t, DIBS_COUNTER, "fallback", view->counts[DIBS__M_FALLBACK],
              "leases granted by another tier than the first");
  tell_number(t, DIBS_COUNTER, "least_strict", view->counts[DIBS__M_LEAST_STRICT],
              "leases granted from the memory of this process alone");
  tell_number(t, DIBS_COUNTER, "tier_moves", view->counts[DIBS__M_MOVES],
              "buckets that this process moved to another tier");
  tell_number(t, DIBS_COUNTER, "tier_epochs", view->counts[DIBS__M_EPOCHS],
              "epochs created because a tier lost its memory or used up its epochs");
  tell_number(t, DIBS_COUNTER, "breaker_opened", view->counts[DIBS__M_TURNS], "number of times that a breaker opened");
  tell_number(t, DIBS_COUNTER, "anchor_rollbacks", view->counts[DIBS__M_WENT_BACK],
              "number of times that the anchor's record was older than before");
  tell_number(t, DIBS_GAUGE, "clients", view->tally.clients, "clients that have reported in the last 10 s");
  tell_number(t, DIBS_GAUGE, "strict", view->state.strictness == DIBS__STRICT, "1: strict");
  tell_number(t, DIBS_GAUGE, "all_tiers_down", view->local, "1: every tier is down, and this process continues alone");
  if (view->confirmed_ms >= 0)
    tell_number(t, DIBS_GAUGE, "anchor_confirmed_age_ms", (uint64_t)view->confirmed_ms,
                "time since the anchor confirmed the state of the tiers");
}

static void metrics_tell_tier(struct telling *t, const struct dibs__tiers_view *view, uint32_t nth) {
  char name[64];
  t->tier = dibs__tiers_tier_name(&view->state, nth, name, sizeof name);
  tell_number(t, DIBS_GAUGE, "tier_breaker", view->tiers[nth].breaker,
              "breaker of this process: 0 closed, 1 open, 2 half-open");
  tell_number(t, DIBS_GAUGE, "tier_down", view->state.tiers[nth].down, "1: down by vote");
  tell_number(t, DIBS_GAUGE, "tier_breaker_mode", view->state.tiers[nth].hand,
              "manual setting: 0 automatic, 1 open, 2 closed");
  tell_number(t, DIBS_GAUGE, "tier_percent", view->state.tiers[nth].percent,
              "percentage of buckets that it is rolled out to");
  tell_number(t, DIBS_GAUGE, "tier_buckets", view->tiers[nth].buckets, "buckets of 100 that it serves");
  tell_number(t, DIBS_GAUGE, "tier_active", view->tally.active[nth], "clients that use it");
  tell_number(t, DIBS_GAUGE, "tier_clients_down", view->tally.down[nth], "clients for which it fails");
  tell_number(t, DIBS_COUNTER, "tier_operations", view->tiers[nth].operations, "operations that it received");
  tell_number(t, DIBS_COUNTER, "tier_failures", view->tiers[nth].failures, "operations that it did not answer");
  tell_number(t, DIBS_GAUGE, "tier_p50_ns", view->tiers[nth].p50_ns, "median duration of its calls");
  tell_number(t, DIBS_GAUGE, "tier_p99_ns", view->tiers[nth].p99_ns, "99th percentile of the duration of its calls");
  tell_number(t, DIBS_GAUGE, "tier_max_ns", view->tiers[nth].max_ns, "duration of its longest call");
  t->tier = NULL;
}

static dibs_status tell_all(dibs_store *store, struct telling *t, dibs_error *error) {
  struct dibs__request *request = NULL;
  struct counts *counts = malloc(sizeof *counts);
  if (!counts) return dibs__fail(error, DIBS_NO_MEMORY, "dibs_metrics: out of memory");
  dibs_status status = dibs__fine(error);
  if (fleet_tiered(store, "", NULL) == DIBS_OK) status = fleet_view(store, "counting", &request, error);
  if (status == DIBS_OK) {
    dibs__core_count(store->core, &counts->core);
    dibs__lease_count(store, &counts->lease);
    tell_leases(t, counts);
    tell_latency(t, "acquire", &counts->lease.acquiring,
                 "time from requesting a lease to getting it, including the wait");
    tell_latency(t, "release", &counts->lease.releasing, "time from releasing a lease to the store's answer");
    if (request)
      tell_granted_by_tiers(t, request->tiers.got, &counts->lease);
    else
      tell_granted(t, NULL, store->shown, counts->lease.granted);
    if (request) metrics_tell_whole(t, request->tiers.got);
    for (uint32_t i = 0; request && i < request->tiers.got->state.count; i++)
      metrics_tell_tier(t, request->tiers.got, i);
  }
  dibs__request_drop(request);
  free(counts);
  return status;
}

dibs_status dibs_metrics(dibs_store *store, dibs_metric_fn fn, void *user, dibs_error *error) {
  if (!fn) return dibs__fail(error, DIBS_INVALID, "dibs_metrics: fn is NULL");
  struct telling telling = {.fn = fn, .user = user};
  dibs_status status = dibs__enter(store, "dibs_metrics", error);
  if (status != DIBS_OK) return status;
  status = tell_all(store, &telling, error);
  dibs__exit(store);
  return status;
}

/* ---- Changes by hand ---- */

/* One request that changes something; `of` has its other fields. */
static dibs_status change(dibs_store *store, uint16_t verb, const struct dibs__tiers_op *of, const char *what,
                          dibs_error *error) {
  struct dibs__request *request = dibs__request_make(store, DIBS__FAM_TIERS, NULL, NAME_CAPACITY);
  if (!request) return dibs__fail(error, DIBS_NO_MEMORY, "%s: out of memory", what);
  if (of->name) request->tiers.name = dibs__request_keep(request, of->name, strnlen(of->name, NAME_CAPACITY)).p;
  request->tiers.tier = of->tier;
  request->tiers.value = of->value;
  request->tiers.above = of->above;
  dibs_status status = fleet_carry(request, verb, what, error);
  dibs__request_drop(request);
  return status;
}

/* By its name, or its number. */
static dibs_status find_tier(dibs_store *store, const char *tier, const char *what, int32_t *nth, dibs_error *error) {
  struct dibs__request *request;
  char name[64], all[256] = "";
  *nth = -1;
  dibs_status status = fleet_view(store, what, &request, error);
  if (status != DIBS_OK) return status;
  const struct dibs__tiers_state *state = &request->tiers.got->state;
  for (uint32_t i = 0; i < state->count; i++) {
    if (!dibs__tiers_tier_name(state, i, name, sizeof name)) continue;
    if (strcmp(tier, name) == 0 || (tier[0] == (char)('0' + i) && tier[1] == '\0')) *nth = (int32_t)i;
    size_t used = strlen(all);
    snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "", name);
  }
  dibs__request_drop(request);
  if (*nth >= 0) return DIBS_OK;
  return dibs__fail(error, DIBS_INVALID, "%s: there is no tier \"%.40s\"; the tiers are: %s", what, tier, all);
}

dibs_status dibs_tier_move(dibs_store *store, const char *tier, dibs_error *error) {
  static const char what[] = "moving to a tier";
  struct dibs__tiers_op of = {.tier = -1};
  dibs_status status = dibs__enter(store, "dibs_tier_move", error);
  if (status != DIBS_OK) return status;
  status = fleet_tiered(store, what, error);
  if (status == DIBS_OK && tier) status = find_tier(store, tier, what, &of.tier, error);
  if (status == DIBS_OK) status = change(store, DIBS__TIERS_MOVE, &of, what, error);
  dibs__exit(store);
  return status;
}

dibs_status dibs_tier_switch(dibs_store *store, const char *tier, dibs_hand hand, dibs_error *error) {
  static const char what[] = "switching a tier's breaker";
  struct dibs__tiers_op of = {.value = (uint32_t)hand};
  if (!tier || (unsigned)hand > DIBS_HAND_CLOSED)
    return dibs__fail(error, DIBS_INVALID, "dibs_tier_switch: tier is NULL, or the position is unknown");
  dibs_status status = dibs__enter(store, "dibs_tier_switch", error);
  if (status != DIBS_OK) return status;
  status = find_tier(store, tier, what, &of.tier, error);
  if (status == DIBS_OK) status = change(store, DIBS__TIERS_SWITCH, &of, what, error);
  dibs__exit(store);
  return status;
}

/* What a restored store made since its backup is not known: so many epochs above what it has. */
static dibs_status pass_over(dibs_store *store, uint16_t bucket, const char *what, dibs__fence *above,
                             dibs_error *error) {
  struct dibs__request *request = dibs__request_make(store, DIBS__FAM_ANCHOR, NULL, NAME_CAPACITY);
  if (!request) return dibs__fail(error, DIBS_NO_MEMORY, "%s: out of memory", what);
  request->op.bucket = bucket;
  dibs_status status = fleet_carry(request, DIBS__ANCHOR_READ, what, error);
  uint32_t epoch = request->anchor.current.epoch, drawn = dibs__fence_epoch(request->anchor.last);
  if (drawn > epoch) epoch = drawn;
  uint32_t pass = (DIBS__EPOCH_MAX - epoch) / DIBS__TIERS_PASS_PART;
  if (pass > DIBS__TIERS_PASS_OVER) pass = DIBS__TIERS_PASS_OVER;
  *above = dibs__fence_make(epoch + pass, 0);
  dibs__request_drop(request);
  return status;
}

/* Of all buckets of a store that is opened by itself. */
static dibs_status of_all(dibs_store *store, enum dibs__anchor_verb verb, dibs__fence above, const char *what,
                          dibs_error *error) {
  dibs_status status = DIBS_OK;
  for (uint16_t b = 0; b < DIBS__BUCKETS && status == DIBS_OK; b++) {
    struct dibs__request *request = dibs__request_make(store, DIBS__FAM_ANCHOR, NULL, NAME_CAPACITY);
    if (!request) return dibs__fail(error, DIBS_NO_MEMORY, "%s: out of memory", what);
    request->op.bucket = b;
    request->anchor.above = above;
    if (verb == DIBS__ANCHOR_RAISE && above.v == 0) status = pass_over(store, b, what, &request->anchor.above, error);
    if (status == DIBS_OK) status = fleet_carry(request, (uint16_t)verb, what, error);
    dibs__request_drop(request);
  }
  if (status != DIBS_CONFLICT) return status;
  return dibs__fail(error, DIBS_DENIED,
                    "%s: %s is a tier; to raise the fences, open it with all tiers, as in --store FIRST,SECOND", what,
                    store->shown);
}

static void request_for_tiers(struct dibs__request *request) {
  request->record.key = dibs__request_keep(request, DIBS__TIERS_KEY, strlen(DIBS__TIERS_KEY));
}

dibs_status dibs_tier_bump(dibs_store *store, dibs_fence above, dibs_error *error) {
  static const char what[] = "raising the fences";
  if (above.value >> 53) return dibs__fail(error, DIBS_INVALID, "%s: a fence must be below 2^53", what);
  if (dibs__fence_epoch((dibs__fence){above.value}) == DIBS__EPOCH_MAX)
    return dibs__fail(error, DIBS_INVALID, "%s: no epoch is left above the fence %" PRIu64, what, above.value);
  struct dibs__tiers_op of = {.above = dibs__fence_epoch((dibs__fence){above.value})};
  dibs_status status = dibs__enter(store, "dibs_tier_bump", error);
  if (status != DIBS_OK) return status;
  uint32_t families = store->outer ? 0 : dibs__core_families(store->core);
  if (families & (1u << DIBS__FAM_TIERS))
    status = change(store, DIBS__TIERS_BUMP, &of, what, error);
  else if (families & (1u << DIBS__FAM_ANCHOR))
    status = of_all(store, DIBS__ANCHOR_RAISE, (dibs__fence){above.value}, what, error);
  else
    status = dibs__fail(error, DIBS_UNSUPPORTED, "%s: %s has no epochs", what, store->shown);
  dibs__exit(store);
  return status;
}

/* Least-strict is fenced, and a flag. */
dibs_status dibs_strictness_set(dibs_store *store, dibs_strictness strictness, dibs_error *error) {
  static const char what[] = "setting the strictness";
  if ((unsigned)strictness > DIBS_STRICTNESS_LEAST)
    return dibs__fail(error, DIBS_INVALID, "dibs_strictness_set: the strictness is unknown");
  struct dibs__tiers_op flag = {.name = "least-strict.enabled", .value = strictness == DIBS_STRICTNESS_LEAST ? 100 : 0};
  struct dibs__tiers_op rule = {.value = strictness == DIBS_STRICTNESS_STRICT ? DIBS__STRICT : DIBS__FENCED};
  dibs_status status = dibs__enter(store, "dibs_strictness_set", error);
  if (status != DIBS_OK) return status;
  status = fleet_tiered(store, what, error);
  if (status == DIBS_OK) status = change(store, DIBS__TIERS_STRICTNESS, &rule, what, error);
  if (status == DIBS_OK) status = change(store, DIBS__TIERS_FLAG, &flag, what, error);
  dibs__exit(store);
  return status;
}

dibs_status dibs_flag_set(dibs_store *store, const char *name, uint32_t percent, dibs_error *error) {
  struct dibs__tiers_op of = {.name = name, .value = percent};
  if (!name) return dibs__fail(error, DIBS_INVALID, "dibs_flag_set: name is NULL");
  dibs_status status = dibs__enter(store, "dibs_flag_set", error);
  if (status != DIBS_OK) return status;
  status = fleet_tiered(store, "setting a flag", error);
  if (status == DIBS_OK) status = change(store, DIBS__TIERS_FLAG, &of, "setting a flag", error);
  dibs__exit(store);
  return status;
}

/* ---- Alone again ---- */

/* Of a former anchor: the largest epoch of its tiers in its record; 0: none. */
static dibs_status remembered(dibs_store *store, const char *what, uint32_t *epoch, dibs_error *error) {
  struct dibs__request *request = dibs__request_make(store, DIBS__FAM_RECORD, NULL, NAME_CAPACITY);
  struct dibs__tiers_state *state = calloc(1, sizeof *state);
  struct dibs__result result;
  *epoch = 0;
  dibs_status status = DIBS_NO_MEMORY;
  if (!request || !state) {
    status = dibs__fail(error, status, "%s: out of memory", what);
  } else {
    request_for_tiers(request);
    status = fleet_carry(request, DIBS__RECORD_LOAD, what, error);
    if (status == DIBS_NOT_FOUND) status = dibs__fine(error);
  }
  /* A record that cannot be read gives no epoch, and is removed too. */
  if (status == DIBS_OK && request->record.version &&
      dibs__tiers_read(request->record.got, request->record.got_len, state, &result) == DIBS_OK)
    for (uint32_t b = 0; b < DIBS__BUCKETS; b++)
      if (state->mandates[b].epoch > *epoch) *epoch = state->mandates[b].epoch;
  free(state);
  dibs__request_drop(request);
  return status;
}

/* Removes the record of a former anchor.  A record that does not exist is fine. */
static dibs_status forget(dibs_store *store, const char *what, dibs_error *error) {
  struct dibs__request *request = dibs__request_make(store, DIBS__FAM_RECORD, NULL, NAME_CAPACITY);
  if (!request) return dibs__fail(error, DIBS_NO_MEMORY, "%s: out of memory", what);
  request_for_tiers(request);
  dibs_status status = fleet_carry(request, DIBS__RECORD_DROP, what, error);
  dibs__request_drop(request);
  return status == DIBS_NOT_FOUND ? dibs__fine(error) : status;
}

dibs_status dibs_tier_dissolve(dibs_store *store, dibs_error *error) {
  static const char what[] = "making it a store of its own again";
  dibs_status status = dibs__enter(store, "dibs_tier_dissolve", error);
  if (status != DIBS_OK) return status;
  uint32_t families = store->outer ? 0 : dibs__core_families(store->core);
  if (families & (1u << DIBS__FAM_TIERS)) {
    status = change(store, DIBS__TIERS_DISBAND, &(struct dibs__tiers_op){0}, what, error);
  } else if (!(families & (1u << DIBS__FAM_ANCHOR))) {
    status = dibs__fail(error, DIBS_UNSUPPORTED, "%s: %s can't be a tier", what, store->shown);
  } else {
    bool records = families & (1u << DIBS__FAM_RECORD);
    uint32_t epoch = 0;
    if (records) status = remembered(store, what, &epoch, error);
    dibs__fence above = epoch ? dibs__fence_make(epoch, DIBS__SEQ_MAX) : DIBS__FENCE_NONE;
    if (status == DIBS_OK) status = of_all(store, DIBS__ANCHOR_ALONE, above, what, error);
    if (status == DIBS_OK && records) status = forget(store, what, error);
  }
  dibs__exit(store);
  return status;
}

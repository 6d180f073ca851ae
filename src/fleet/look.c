/* SPDX-License-Identifier: MIT */
/* How the tiers stand, what their clients say, and the flags. */
#include "fleet/room.h"

#include <string.h>

_Static_assert((int)DIBS_BUCKETS == (int)DIBS__BUCKETS && (int)DIBS_TIERS_MAX == (int)DIBS__URI_TIERS, "shown");
_Static_assert((int)DIBS_TIERS_COUNTS == (int)DIBS__TIERS_COUNTS_MAX && (int)DIBS_TIERS_COUNTED == (int)DIBS__M_COUNT &&
                   (int)DIBS_TIERS_LEAST_STRICT == (int)DIBS__M_LEAST_STRICT &&
                   (int)DIBS_TIERS_STALE == (int)DIBS__M_STALE,
               "shown");
_Static_assert((int)DIBS_BREAKER_HALF_OPEN == (int)DIBS__BREAKER_HALF_OPEN &&
                   (int)DIBS_HAND_CLOSED == (int)DIBS__HAND_CLOSED && (int)DIBS_STRICTNESS_STRICT == (int)DIBS__STRICT,
               "shown");

static dibs_strictness strictness_of(const struct dibs__tiers_state *state) {
  if (state->strictness == DIBS__STRICT) return DIBS_STRICTNESS_STRICT;
  return state->least_strict ? DIBS_STRICTNESS_LEAST : DIBS_STRICTNESS_FENCED;
}

static void tell_whole(const struct dibs__tiers_view *view, dibs_tiers_info *to) {
  dibs_tiers_info info = {.size = to->size,
                          .tiers = view->state.count,
                          .clients = view->tally.clients,
                          .pinned = view->state.pinned,
                          .on_their_own = view->local,
                          .strictness = strictness_of(&view->state),
                          .confirmed_ms = view->confirmed_ms};
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
                         .turned_ms = tier->turned ? view->now_ms - tier->turned : -1,
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
  if (info.turned_ms < 0 && tier->turned) info.turned_ms = 0; /* by a clock that is a little ahead of ours */
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) info.wanted += dibs__tiers_wanted(&view->state, b) == nth;
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
  struct dibs__fleet_ask *ask;
  if (info && info->size < sizeof(size_t))
    return dibs__fail(error, DIBS_INVALID, "info->size is %zu: set it to sizeof(dibs_tiers_info)", info->size);
  dibs_status status = dibs__enter(store, "dibs_tiers", error);
  if (status != DIBS_OK) return status;
  status = dibs__fleet_view(store, "looking at the tiers", &ask, error);
  if (status == DIBS_OK) {
    const struct dibs__tiers_view *view = ask->tiers.got;
    int stop = 0;
    if (info) tell_whole(view, info);
    for (uint32_t i = 0; tier && !stop && i < view->state.count; i++) stop = tell_tier(view, i, tier, user);
    for (size_t i = 0; client && !stop && i < view->client_count; i++)
      stop = tell_client(&view->clients[i], client, user);
    dibs__fleet_drop(ask);
  }
  dibs__exit(store);
  return status;
}

dibs_status dibs_strictness_get(dibs_store *store, dibs_strictness *strictness, dibs_error *error) {
  struct dibs__fleet_ask *ask;
  if (!strictness) return dibs__fail(error, DIBS_INVALID, "dibs_strictness_get: no place for it was given");
  *strictness = DIBS_STRICTNESS_FENCED;
  dibs_status status = dibs__enter(store, "dibs_strictness_get", error);
  if (status != DIBS_OK) return status;
  status = dibs__fleet_view(store, "reading the strictness", &ask, error);
  if (status == DIBS_OK) *strictness = strictness_of(&ask->tiers.got->state);
  dibs__fleet_drop(ask);
  dibs__exit(store);
  return status;
}

/* ---- Flags ---- */

dibs_status dibs_flags(dibs_store *store, dibs_flag_fn fn, void *user, dibs_error *error) {
  struct dibs__fleet_ask *ask;
  struct dibs__said said;
  char name[64];
  uint32_t percent;
  if (!fn) return dibs__fail(error, DIBS_INVALID, "dibs_flags: no function was given");
  dibs_status status = dibs__enter(store, "dibs_flags", error);
  if (status != DIBS_OK) return status;
  status = dibs__fleet_view(store, "listing the flags", &ask, error);
  if (status == DIBS_OK) {
    const struct dibs__tiers_state *state = &ask->tiers.got->state;
    for (size_t n = 0; dibs__tiers_flag_name(state, n, name, sizeof name); n++)
      if (dibs__tiers_flag_get(state, name, &percent, &said) == DIBS_OK && fn(name, percent, user)) break;
  }
  dibs__fleet_drop(ask);
  dibs__exit(store);
  return status;
}

dibs_status dibs_flag_get(dibs_store *store, const char *name, uint32_t *percent, dibs_error *error) {
  struct dibs__fleet_ask *ask;
  if (!name || !percent) return dibs__fail(error, DIBS_INVALID, "dibs_flag_get: a name and a place are needed");
  *percent = 0;
  dibs_status status = dibs__enter(store, "dibs_flag_get", error);
  if (status != DIBS_OK) return status;
  status = dibs__fleet_view(store, "reading a flag", &ask, error);
  if (status == DIBS_OK) {
    struct dibs__said said = {0};
    status = (dibs_status)dibs__tiers_flag_get(&ask->tiers.got->state, name, percent, &said);
    if (status != DIBS_OK) dibs__fail(error, status, "%s", said.text);
  }
  dibs__fleet_drop(ask);
  dibs__exit(store);
  return status;
}

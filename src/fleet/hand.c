/* SPDX-License-Identifier: MIT */
/* What is changed by hand. */
#include "fleet/room.h"

#include <stdio.h>
#include <string.h>

/* One question that changes something; `of` is what else it says. */
static dibs_status change(dibs_store *store, uint16_t verb, const struct dibs__tiers_op *of, const char *what,
                          dibs_error *error) {
  struct dibs__fleet_ask *ask = dibs__fleet_make(store, DIBS__FAM_TIERS);
  if (!ask) return dibs__fail(error, DIBS_NO_MEMORY, "%s: out of memory", what);
  if (of->name) {
    snprintf(ask->name, sizeof ask->name, "%s", of->name);
    ask->tiers.name = ask->name;
  }
  ask->tiers.tier = of->tier;
  ask->tiers.value = of->value;
  ask->tiers.above = of->above;
  dibs_status status = dibs__fleet_carry(ask, verb, 0, what, error);
  dibs__fleet_drop(ask);
  return status;
}

/* By its name, or its number. */
static dibs_status find_tier(dibs_store *store, const char *tier, const char *what, int32_t *nth, dibs_error *error) {
  struct dibs__fleet_ask *ask;
  char name[64], all[256] = "";
  *nth = -1;
  dibs_status status = dibs__fleet_view(store, what, &ask, error);
  if (status != DIBS_OK) return status;
  const struct dibs__tiers_state *state = &ask->tiers.got->state;
  for (uint32_t i = 0; i < state->count; i++) {
    if (!dibs__tiers_tier_name(state, i, name, sizeof name)) continue;
    if (strcmp(tier, name) == 0 || (tier[0] == (char)('0' + i) && tier[1] == '\0')) *nth = (int32_t)i;
    size_t used = strlen(all);
    snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "", name);
  }
  dibs__fleet_drop(ask);
  if (*nth >= 0) return DIBS_OK;
  return dibs__fail(error, DIBS_INVALID, "%s: there is no tier \"%.40s\"; there are: %s", what, tier, all);
}

dibs_status dibs_tier_move(dibs_store *store, const char *tier, dibs_error *error) {
  static const char what[] = "moving to a tier";
  struct dibs__tiers_op of = {.tier = -1};
  dibs_status status = dibs__enter(store, "dibs_tier_move", error);
  if (status != DIBS_OK) return status;
  status = dibs__fleet_tiered(store, what, error);
  if (status == DIBS_OK && tier) status = find_tier(store, tier, what, &of.tier, error);
  if (status == DIBS_OK) status = change(store, DIBS__TIERS_MOVE, &of, what, error);
  dibs__exit(store);
  return status;
}

dibs_status dibs_tier_switch(dibs_store *store, const char *tier, dibs_hand hand, dibs_error *error) {
  static const char what[] = "switching a tier's breaker";
  struct dibs__tiers_op of = {.value = (uint32_t)hand};
  if (!tier || (unsigned)hand > DIBS_HAND_CLOSED)
    return dibs__fail(error, DIBS_INVALID, "dibs_tier_switch: no tier, or no such position");
  dibs_status status = dibs__enter(store, "dibs_tier_switch", error);
  if (status != DIBS_OK) return status;
  status = find_tier(store, tier, what, &of.tier, error);
  if (status == DIBS_OK) status = change(store, DIBS__TIERS_SWITCH, &of, what, error);
  dibs__exit(store);
  return status;
}

dibs_status dibs_tier_bump(dibs_store *store, uint64_t above, dibs_error *error) {
  static const char what[] = "raising the fences";
  if (above >> 53) return dibs__fail(error, DIBS_INVALID, "%s: a fence is below 2^53", what);
  struct dibs__tiers_op of = {.above = dibs__fence_epoch((dibs__fence){above})};
  dibs_status status = dibs__enter(store, "dibs_tier_bump", error);
  if (status != DIBS_OK) return status;
  status = dibs__fleet_tiered(store, what, error);
  if (status == DIBS_OK) status = change(store, DIBS__TIERS_BUMP, &of, what, error);
  dibs__exit(store);
  return status;
}

/* Least-strict is fenced, and a flag. */
dibs_status dibs_strictness_set(dibs_store *store, dibs_strictness strictness, dibs_error *error) {
  static const char what[] = "setting the strictness";
  if ((unsigned)strictness > DIBS_STRICTNESS_LEAST)
    return dibs__fail(error, DIBS_INVALID, "dibs_strictness_set: there is no such strictness");
  struct dibs__tiers_op flag = {.name = "least-strict.enabled", .value = strictness == DIBS_STRICTNESS_LEAST ? 100 : 0};
  struct dibs__tiers_op rule = {.value = strictness == DIBS_STRICTNESS_STRICT ? DIBS__STRICT : DIBS__FENCED};
  dibs_status status = dibs__enter(store, "dibs_strictness_set", error);
  if (status != DIBS_OK) return status;
  status = dibs__fleet_tiered(store, what, error);
  if (status == DIBS_OK) status = change(store, DIBS__TIERS_STRICTNESS, &rule, what, error);
  if (status == DIBS_OK) status = change(store, DIBS__TIERS_FLAG, &flag, what, error);
  dibs__exit(store);
  return status;
}

dibs_status dibs_flag_set(dibs_store *store, const char *name, uint32_t percent, dibs_error *error) {
  struct dibs__tiers_op of = {.name = name, .value = percent};
  if (!name) return dibs__fail(error, DIBS_INVALID, "dibs_flag_set: the flag's name is missing");
  dibs_status status = dibs__enter(store, "dibs_flag_set", error);
  if (status != DIBS_OK) return status;
  status = dibs__fleet_tiered(store, "setting a flag", error);
  if (status == DIBS_OK) status = change(store, DIBS__TIERS_FLAG, &of, "setting a flag", error);
  dibs__exit(store);
  return status;
}

/* ---- Alone again ---- */

static dibs_status alone(dibs_store *store, uint16_t bucket, const char *what, dibs_error *error) {
  struct dibs__fleet_ask *ask = dibs__fleet_make(store, DIBS__FAM_ANCHOR);
  if (!ask) return dibs__fail(error, DIBS_NO_MEMORY, "%s: out of memory", what);
  dibs_status status = dibs__fleet_carry(ask, DIBS__ANCHOR_ALONE, bucket, what, error);
  dibs__fleet_drop(ask);
  return status;
}

/* Of one that was the anchor: what it remembers of its tiers.  Gone already is as good. */
static dibs_status forget(dibs_store *store, const char *what, dibs_error *error) {
  struct dibs__fleet_ask *ask = dibs__fleet_make(store, DIBS__FAM_RECORD);
  if (!ask) return dibs__fail(error, DIBS_NO_MEMORY, "%s: out of memory", what);
  snprintf(ask->name, sizeof ask->name, "%s", DIBS__TIERS_KEY);
  ask->record.key = dibs__str_of(ask->name, strlen(ask->name));
  dibs_status status = dibs__fleet_carry(ask, DIBS__RECORD_DROP, 0, what, error);
  dibs__fleet_drop(ask);
  return status == DIBS_NOT_FOUND ? dibs__fine(error) : status;
}

dibs_status dibs_tier_alone(dibs_store *store, dibs_error *error) {
  static const char what[] = "making it a store of its own again";
  dibs_status status = dibs__enter(store, "dibs_tier_alone", error);
  if (status != DIBS_OK) return status;
  uint32_t families = store->outer ? 0 : dibs__core_families(store->core);
  if (families & (1u << DIBS__FAM_TIERS)) {
    status = change(store, DIBS__TIERS_DISBAND, &(struct dibs__tiers_op){0}, what, error);
  } else if (!(families & (1u << DIBS__FAM_ANCHOR))) {
    status = dibs__fail(error, DIBS_UNSUPPORTED, "%s: %s is never a tier", what, store->shown);
  } else {
    for (uint16_t b = 0; b < DIBS__BUCKETS && status == DIBS_OK; b++) status = alone(store, b, what, error);
    if (status == DIBS_OK && families & (1u << DIBS__FAM_RECORD)) status = forget(store, what, error);
  }
  dibs__exit(store);
  return status;
}

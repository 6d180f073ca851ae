/* SPDX-License-Identifier: MIT */
/* Carrying a question of this room to the store. */
#include "fleet/room.h"

#include <stdlib.h>

struct dibs__fleet_ask *dibs__fleet_make(dibs_store *store, uint16_t family) {
  struct dibs__fleet_ask *ask = calloc(1, sizeof *ask);
  if (!ask) return NULL;
  ask->store = store;
  ask->op.family = family;
  ask->refs = 1;
  return ask;
}

void dibs__fleet_drop(struct dibs__fleet_ask *ask) {
  if (!ask || atomic_fetch_sub(&ask->refs, 1) != 1) return;
  if (ask->op.family == DIBS__FAM_TIERS) free(ask->tiers.got);
  if (ask->op.family == DIBS__FAM_RECORD) free(ask->record.got);
  free(ask);
}

static void answered(struct dibs__op *op) {
  struct dibs__fleet_ask *ask = (struct dibs__fleet_ask *)op;
  dibs_store *store = ask->store;
  atomic_store(&ask->answered, 1);
  dibs__mutex_lock(&store->lock);
  store->flying--;
  dibs__mutex_unlock(&store->lock);
  dibs__fleet_drop(ask);
}

static dibs_status fail(const struct dibs__fleet_ask *ask, dibs_status status, bool told, const char *what,
                        dibs_error *error) {
  dibs_store *store = ask->store;
  char trouble[256] = "";
  const char *why = told && ask->op.family == DIBS__FAM_TIERS ? ask->tiers.why : "";
  /* What is wrong with the call needs no more words than its own. */
  if (status == DIBS_INVALID && why[0]) return dibs__fail(error, status, "%s", why);
  if (!why[0] && status != DIBS_INVALID && status != DIBS_UNSUPPORTED) {
    dibs__core_trouble(store->core, trouble, sizeof trouble);
    why = trouble;
  }
  return dibs__fail(error, status, "%s at %s: %s%s%s", what, store->shown, dibs_status_text(status), why[0] ? ": " : "",
                    why);
}

dibs_status dibs__fleet_carry(struct dibs__fleet_ask *ask, uint16_t verb, uint16_t bucket, const char *what,
                              dibs_error *error) {
  dibs_store *store = ask->store;
  uint16_t reads = ask->op.family == DIBS__FAM_TIERS && verb == DIBS__TIERS_VIEW ? DIBS__OP_READS : 0;
  dibs__core_head(store->core, &ask->op, ask->op.family, verb, reads, bucket, answered);
  atomic_fetch_add(&ask->refs, 1);
  dibs__mutex_lock(&store->lock);
  store->flying++;
  dibs__mutex_unlock(&store->lock);
  dibs__core_run(store->core, &ask->op, dibs__tick_add_ms(ask->op.by, LEAVE_MS));
  bool told = atomic_load(&ask->answered);
  dibs__status status = told ? ask->op.status : DIBS_UNKNOWN;
  if (status == DIBS_OK) return dibs__fine(error);
  if (status == DIBS__MOVED || status == DIBS_TIMEOUT) status = DIBS_UNAVAILABLE;
  return fail(ask, (dibs_status)status, told, what, error);
}

dibs_status dibs__fleet_tiered(dibs_store *store, const char *what, dibs_error *error) {
  if (!store->outer && dibs__core_families(store->core) & (1u << DIBS__FAM_TIERS)) return DIBS_OK;
  return dibs__fail(error, DIBS_UNSUPPORTED,
                    "%s: %s is one store, not several tiers; to have tiers, open it behind another one, with a comma "
                    "between: \"FIRST,%s\"",
                    what, store->shown, store->shown);
}

dibs_status dibs__fleet_view(dibs_store *store, const char *what, struct dibs__fleet_ask **out, dibs_error *error) {
  *out = NULL;
  dibs_status status = dibs__fleet_tiered(store, what, error);
  if (status != DIBS_OK) return status;
  struct dibs__fleet_ask *ask = dibs__fleet_make(store, DIBS__FAM_TIERS);
  if (!ask) return dibs__fail(error, DIBS_NO_MEMORY, "%s: out of memory", what);
  status = dibs__fleet_carry(ask, DIBS__TIERS_VIEW, 0, what, error);
  if (status == DIBS_OK)
    *out = ask;
  else
    dibs__fleet_drop(ask);
  return status;
}

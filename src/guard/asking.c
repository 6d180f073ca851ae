/* SPDX-License-Identifier: MIT */
/* A question of a guarded write. */
#include "guard/asking.h"

#include "base/text.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { TEXTS = 8 };

typedef struct dibs__asking asking_t;

asking_t *dibs__asking_make(dibs_store *store, uint16_t family, const struct dibs__table *table, size_t room) {
  asking_t *asking = calloc(1, sizeof *asking + room + TEXTS);
  if (!asking) return NULL;
  asking->store = store;
  asking->op.family = family;
  asking->refs = 1;
  asking->room = room + TEXTS;
  if (table) asking->table = dibs__table_hold(table);
  return asking;
}

dibs__str dibs__asking_keep(asking_t *asking, const char *p, size_t len) {
  assert(asking->used + len + 1 <= asking->room);
  char *to = asking->memory + asking->used;
  if (len) memcpy(to, p, len);
  to[len] = '\0';
  asking->used += len + 1;
  return dibs__str_of(to, len);
}

void dibs__asking_drop(asking_t *asking) {
  if (!asking || atomic_fetch_sub(&asking->refs, 1) != 1) return;
  if (asking->op.family == DIBS__FAM_RECORD) free(asking->record.got);
  if (asking->op.family == DIBS__FAM_ONCE) free(asking->once.got);
  dibs__table_drop(asking->table);
  free(asking);
}

static void answered(struct dibs__op *op) {
  asking_t *asking = (asking_t *)op;
  dibs_store *store = asking->store;
  atomic_store(&asking->answered, 1);
  dibs__mutex_lock(&store->lock);
  store->flying--;
  dibs__mutex_unlock(&store->lock);
  dibs__asking_drop(asking);
}

static dibs__str key_of(const asking_t *asking) {
  switch (asking->op.family) {
  case DIBS__FAM_RECORD:
    return asking->record.key;
  case DIBS__FAM_STOCK:
    return asking->stock.key;
  default:
    return asking->once.key;
  }
}

/* Inside a transaction it is the store's, which outlives it. */
static void count_stale(dibs_store *store) {
  if (store->outer) store = store->outer;
  dibs__mutex_lock(&store->lock);
  store->stale++;
  dibs__mutex_unlock(&store->lock);
}

dibs_status dibs__asking_carry(asking_t *asking, uint16_t verb, uint16_t flags, uint32_t lane, dibs__tick by) {
  dibs_store *store = asking->store;
  struct dibs__op *op = &asking->op;
  assert(!dibs__asking_is_answered(asking));
  dibs__core_head(store->core, op, op->family, verb, flags, dibs__bucket(key_of(asking)), answered);
  op->lane = lane;
  op->by = dibs__tick_min(op->by, by);
  atomic_fetch_add(&asking->refs, 1);
  dibs__mutex_lock(&store->lock);
  store->flying++;
  dibs__mutex_unlock(&store->lock);
  dibs__core_run(store->core, op, dibs__tick_add_ms(op->by, LEAVE_MS));
  dibs__status status = dibs__asking_is_answered(asking) ? op->status : DIBS_UNKNOWN;
  if (status == DIBS_STALE) count_stale(store);
  return status == DIBS_TIMEOUT || status == DIBS__MOVED ? DIBS_UNAVAILABLE : (dibs_status)status;
}

dibs_status dibs__asking_check(dibs_store *store, uint16_t family, const char *what, const char *key,
                               dibs_error *error) {
  enum dibs__name_flaw flaw = key ? dibs__name_check(key, strlen(key), DIBS_NAME_MAX, NULL) : DIBS__NAME_EMPTY;
  if (flaw != DIBS__NAME_FINE)
    return dibs__fail(error, DIBS_INVALID, "the key of the %s %s", what, dibs__name_flaw_text(flaw));
  if (!(dibs__core_families(store->core) & (1u << family)))
    return dibs__fail(error, DIBS_UNSUPPORTED,
                      "%s keeps leases and no %ss: name a database behind it as its last tier (STORE,DATABASE)",
                      store->shown, what);
  return DIBS_OK;
}

dibs_status dibs__asking_grant(dibs_lease *lease, dibs__id *id, dibs__fence *fence, bool *lost, dibs_error *error) {
  uint64_t number = dibs_lease_fence(lease);
  if (number == 0)
    return dibs__fail(error, DIBS_INVALID, "\"%s\": only an exclusive lease that was held has a fence",
                      dibs_lease_name(lease));
  dibs__mutex_lock(&lease->store->lock); /* of another handle on the same store, it may be */
  *id = lease->id;
  *lost = lease->status == DIBS_LOST;
  dibs__mutex_unlock(&lease->store->lock);
  *fence = (dibs__fence){number};
  return DIBS_OK;
}

/* SPDX-License-Identifier: MIT */
/*
 * Grants: as many exist as leases do, so that whoever must ask the store, in the middle of a release too, finds one
 * spare and never allocates.
 */
#include "lease/room.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static uint64_t id_hash(const dibs__id *id) {
  return dibs__hash(id->b, sizeof id->b);
}

struct grant *dibs__grant_find_locked(dibs_store *store, const dibs__id *id) {
  uint64_t hash = id_hash(id);
  for (struct dibs__map_node *node = dibs__map_head(&store->grants, hash); node; node = node->next) {
    struct grant *grant = (struct grant *)((char *)node - offsetof(struct grant, by_id));
    if (node->hash == hash && dibs__id_equal(grant->op.id, *id)) return grant;
  }
  return NULL;
}

/* The lease needs a grant of its own; the id is the lease's if it has one. */
struct grant *dibs__grant_take_locked(dibs_lease *lease) {
  dibs_store *store = lease->store;
  struct grant *grant = store->spares;
  assert(grant);
  store->spares = grant->spare_next;
  memset(grant, 0, sizeof *grant);
  grant->store = store;
  if (!lease->own_id) dibs__random(lease->id.b, sizeof lease->id.b);
  grant->op.id = lease->id;
  grant->shown = lease->own_id;
  grant->ttl_ms = lease->ttl_ms;
  dibs__map_add(&store->grants, &grant->by_id, id_hash(&grant->op.id));
  grant->lease = lease;
  lease->grant = grant;
  dibs__lease_hold(lease);
  return grant;
}

static void part_locked(struct grant *grant) {
  dibs_lease *lease = grant->lease;
  grant->lease = NULL;
  if (lease->grant == grant) lease->grant = NULL;
  dibs__lease_drop_locked(lease);
}

void dibs__grant_end_locked(struct grant *grant) {
  dibs_store *store = grant->store;
  assert(grant->asked == ASK_NOTHING && !grant->cohort);
  dibs__unwatch_locked(grant);
  dibs__heap_remove(&store->rechecks, &grant->recheck);
  dibs__map_remove(&store->grants, &grant->by_id);
  part_locked(grant);
  if (store->grants_owed > 0) {
    store->grants_owed--;
    free(grant);
    return;
  }
  grant->spare_next = store->spares;
  store->spares = grant;
}

/* The grant becomes this lease's, with the grant's present fence. */
void dibs__grant_give_locked(struct grant *grant, dibs_lease *lease) {
  if (grant->lease != lease) {
    assert(grant_parked(grant) && !lease->grant);
    part_locked(grant);
    grant->lease = lease;
    lease->grant = grant;
    dibs__lease_hold(lease);
  }
  lease->id = grant->op.id;
  lease->slot = grant->slot;
  atomic_store(&lease->tier, grant->tier);
  atomic_store(&lease->fence, grant->fence.v);
  atomic_store(&lease->until_ns, grant->until.ns);
}

/* SPDX-License-Identifier: MIT */
/*
 * Hand-off inside the process.  The exclusive leases of one name in one process form a cohort: a front, which has the
 * grant or asks for it, and a line.  A release with a line behind it parks the grant and passes it on: the next lease
 * gets the next fence of the block that the store granted in advance, and the store hears nothing.
 *
 * A run is bounded: after RUN_MAX hand-offs or RUN_MAX_MS the grant is given back if others may wait in the store, and
 * the next in line queues there like anybody.  In the middle of a run the grant is renewed beside the path: that draws
 * the next block, extends the time, and tells whether others wait.  If nobody does, a new run begins.
 *
 * A lease is handed on only with at least its whole ttl left (less the margin); else it is renewed first.  What is
 * shown outside (dibs_lease_id) is never handed on.
 */
#include "lease/room.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static uint64_t name_hash(const char *name) {
  return dibs__hash(name, strlen(name));
}

static struct cohort *find_locked(dibs_store *store, const char *name, uint64_t hash) {
  for (struct dibs__map_node *node = dibs__map_head(&store->cohorts, hash); node; node = node->next) {
    struct cohort *cohort = (struct cohort *)((char *)node - offsetof(struct cohort, by_name));
    if (node->hash == hash && strcmp(cohort->name, name) == 0) return cohort;
  }
  return NULL;
}

bool dibs__cohort_has_locked(dibs_store *store, const char *name) {
  return find_locked(store, name, name_hash(name)) != NULL;
}

static struct cohort *make_locked(dibs_store *store, const char *name, uint64_t hash) {
  size_t size = strlen(name) + 1;
  struct cohort *cohort = calloc(1, sizeof *cohort + size);
  if (!cohort) return NULL;
  memcpy(cohort->name, name, size);
  cohort->others = true;
  dibs__map_add(&store->cohorts, &cohort->by_name, hash);
  return cohort;
}

static void ask_renew_locked(struct cohort *cohort, int64_t ttl_ms, struct after *after) {
  cohort->asked_at = dibs__tick_now();
  cohort->asked_run = cohort->run;
  dibs__after_rest(after, dibs__ask_renew_locked(cohort->grant, ttl_ms, RUN_MAX));
}

bool dibs__cohort_join_locked(dibs_lease *lease, bool *local, struct after *after) {
  dibs_store *store = lease->store;
  uint64_t hash = name_hash(lease->name);
  struct cohort *cohort = find_locked(store, lease->name, hash);
  *local = cohort != NULL;
  if (!cohort) {
    cohort = make_locked(store, lease->name, hash);
    if (!cohort) return false;
    cohort->grant = dibs__grant_take_locked(lease);
    cohort->grant->cohort = cohort;
    return true;
  }
  lease->cohort = cohort;
  lease->next_local = NULL;
  if (cohort->last)
    cohort->last->next_local = lease;
  else
    cohort->first = lease;
  cohort->last = lease;
  dibs__lease_hold(lease);
  /* The line has begun: a block of fences will be wanted when the front lets go. */
  struct grant *grant = cohort->grant;
  if (grant->held && !grant->shown && grant->asked == ASK_NOTHING && grant->left + grant->fresh_left == 0)
    ask_renew_locked(cohort, grant->lease->ttl_ms, after);
  return true;
}

static dibs_lease *take_first_locked(struct cohort *cohort) {
  dibs_lease *lease = cohort->first;
  cohort->first = lease->next_local;
  if (!cohort->first) cohort->last = NULL;
  lease->cohort = NULL;
  lease->next_local = NULL;
  return lease; /* with the line's reference */
}

void dibs__cohort_leave_locked(dibs_lease *lease) {
  struct cohort *cohort = lease->cohort;
  dibs_lease *before = NULL;
  for (dibs_lease *at = cohort->first; at != lease; at = at->next_local) before = at;
  if (before)
    before->next_local = lease->next_local;
  else
    cohort->first = lease->next_local;
  if (cohort->last == lease) cohort->last = before;
  lease->cohort = NULL;
  lease->next_local = NULL;
  dibs__lease_drop_locked(lease); /* its handle, or its caller, still holds it */
}

/* The grant is the cohort's no more: the next in line asks anew, or the cohort ends. */
void dibs__cohort_part_locked(struct grant *grant, struct after *after, bool mine) {
  struct cohort *cohort = grant->cohort;
  dibs_store *store = grant->store;
  grant->cohort = NULL;
  cohort->grant = NULL;
  if (!cohort->first) {
    dibs__map_remove(&store->cohorts, &cohort->by_name);
    free(cohort);
    return;
  }
  dibs_lease *next = take_first_locked(cohort);
  atomic_store(&next->phase, LEASE_ASKING);
  cohort->grant = dibs__grant_take_locked(next);
  cohort->grant->cohort = cohort;
  struct dibs__op *op = dibs__ask_acquire_locked(cohort->grant);
  if (mine)
    dibs__after_mine(after, op);
  else
    dibs__after_rest(after, op);
  dibs__lease_drop_locked(next); /* the grant holds it now */
}

static void give_back_locked(struct cohort *cohort, struct after *after) {
  struct grant *grant = cohort->grant;
  dibs__give_up_locked(grant, after, false);
  dibs__cohort_part_locked(grant, after, false);
}

static void hand_locked(struct cohort *cohort, dibs__tick now, struct after *after) {
  struct grant *grant = cohort->grant;
  dibs_lease *next = take_first_locked(cohort);
  if (grant->left > 0) {
    grant->fence = dibs__fence_nth(grant->fence, 1);
    grant->left--;
  } else {
    grant->fence = grant->fresh;
    grant->left = grant->fresh_left - 1;
    grant->fresh_left = 0;
  }
  cohort->run++;
  dibs__grant_give_locked(grant, next);
  grant->store->handed_off++;
  grant->store->granted++;
  grant->store->held++;
  dibs__wait_over_locked(next, DIBS_OK, after);
  dibs__lease_drop_locked(next);
  bool soon = cohort->run - cohort->asked_run >= RUN_MAX / 2 ||
              !dibs__tick_before(now, dibs__tick_add_ms(cohort->asked_at, RUN_MAX_MS / 2));
  if (soon && cohort->first && grant->asked == ASK_NOTHING) ask_renew_locked(cohort, next->ttl_ms, after);
}

void dibs__cohort_pass_locked(struct cohort *cohort, struct after *after) {
  struct grant *grant = cohort->grant;
  dibs__tick now = dibs__tick_now();
  assert(grant_parked(grant));
  bool bound = cohort->run >= RUN_MAX || !dibs__tick_before(now, dibs__tick_add_ms(cohort->began, RUN_MAX_MS));
  if (!cohort->first || !dibs__tick_before(now, grant->until)) {
    give_back_locked(cohort, after);
    return;
  }
  int64_t ttl_ms = cohort->first->ttl_ms;
  bool whole = dibs__tick_left_ms(now, grant->until) >= ttl_ms - dibs__margin_ms(ttl_ms);
  if (!bound && whole && grant->left + grant->fresh_left > 0) {
    hand_locked(cohort, now, after);
    return;
  }
  if (grant->asked != ASK_NOTHING) return; /* its answer passes on */
  /* Out of turn: give it back unless nobody waits, which only a renewal of this run can tell. */
  if (bound && cohort->others && cohort->asked_run > 0)
    give_back_locked(cohort, after);
  else
    ask_renew_locked(cohort, ttl_ms, after);
}

void dibs__cohort_renewed_locked(struct cohort *cohort, bool others, struct after *after) {
  cohort->others = others;
  if (!others) {
    cohort->run = cohort->asked_run = 0;
    cohort->began = dibs__tick_now();
  } else if (cohort->asked_run == 0) {
    cohort->asked_run = 1; /* this run knows that others wait */
  }
  if (!grant_parked(cohort->grant)) return;
  dibs__cohort_pass_locked(cohort, after);
}

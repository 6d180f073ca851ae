/* SPDX-License-Identifier: MIT */
/* The checker: exclusion, growth of fences, no lost increment, no lost wake-up, fairness. */
#include "storm.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* A name that somebody awaits is free for at most this long: a ttl and a few offers to processes that are stopped. */
#define IDLE_MAX_NS (INT64_C(4000) * DIBS__NS_PER_MS)

struct seen {
  const struct storm_hold *hold;
  const struct storm_log *log;
  int64_t from, until;
};

struct all {
  struct seen *seen;
  size_t count;
};

static int by_start(const void *a, const void *b) {
  const struct seen *x = a, *y = b;
  return x->from < y->from ? -1 : x->from > y->from;
}

static struct all holds_of(struct storm *storm, uint32_t name) {
  struct all all = {0};
  size_t room = 0;
  for (uint32_t l = 0; l < atomic_load(&storm->logs); l++) {
    const struct storm_log *log = &storm->log[l];
    uint32_t count = atomic_load(&log->count);
    for (uint32_t i = 0; i < count && i < STORM_HOLDS; i++) {
      const struct storm_hold *hold = &log->holds[i];
      if (hold->name != name || hold->from_ns == 0) continue;
      if (all.count == room) {
        room = room ? room * 2 : 1024;
        all.seen = realloc(all.seen, room * sizeof *all.seen);
        if (!all.seen) abort();
      }
      all.seen[all.count++] = (struct seen){hold, log, hold->from_ns, atomic_load(&hold->until_ns)};
    }
  }
  if (all.count) qsort(all.seen, all.count, sizeof *all.seen, by_start);
  return all;
}

static bool fits(const struct seen *a, const struct seen *b) {
  return a->hold->mode == b->hold->mode && a->hold->mode != DIBS_EXCLUSIVE;
}

/* At each beginning: who else holds?  The spans are in order of their beginnings. */
static bool check_exclusion(const struct all *all, uint32_t name) {
  bool fine = true;
  for (size_t i = 0; i < all->count; i++) {
    uint32_t beside = 1;
    for (size_t j = i; j-- > 0 && all->seen[i].from - all->seen[j].from < INT64_C(20000) * DIBS__NS_PER_MS;) {
      if (all->seen[j].until <= all->seen[i].from) continue;
      beside++;
      if (fits(&all->seen[i], &all->seen[j])) continue;
      printf("two hold %s: pid %d fence %" PRIu64 " from %" PRId64 ", and pid %d fence %" PRIu64 " until %" PRId64 "\n",
             storm_names[name], all->seen[i].log->pid, all->seen[i].hold->fence, all->seen[i].from,
             all->seen[j].log->pid, all->seen[j].hold->fence, all->seen[j].until);
      fine = false;
    }
    if (name == STORM_COUNTED && beside > STORM_SLOTS) {
      printf("%u hold %s, which has %d slots\n", beside, storm_names[name], STORM_SLOTS);
      fine = false;
    }
  }
  return fine;
}

/* Who surely began to hold later has the larger fence.  (A stamp is taken after acquire returned: only holds that do
 * not overlap in [asked, until] are surely ordered; those of one name never do while both live.) */
static bool check_fences(const struct all *all, uint32_t name) {
  uint64_t last = 0;
  int64_t last_until = 0;
  for (size_t i = 0; i < all->count; i++) {
    const struct seen *seen = &all->seen[i];
    if (seen->hold->mode != DIBS_EXCLUSIVE) continue;
    if (seen->hold->fence <= last && seen->from > last_until) {
      printf("a fence of %s fell: %" PRIu64 " after %" PRIu64 "\n", storm_names[name], seen->hold->fence, last);
      return false;
    }
    if (seen->hold->fence > last) {
      last = seen->hold->fence;
      last_until = seen->until;
    }
  }
  return true;
}

/* Did somebody undisturbed wait through all of [from, to]? */
static bool awaited(struct storm *storm, uint32_t name, int64_t from, int64_t to) {
  for (uint32_t l = 0; l < atomic_load(&storm->logs); l++) {
    const struct storm_log *log = &storm->log[l];
    if (!log->spared) continue;
    uint32_t count = atomic_load(&log->count);
    for (uint32_t i = 0; i < count && i < STORM_HOLDS; i++) {
      const struct storm_hold *hold = &log->holds[i];
      if (hold->name != name || !hold->waits || hold->asked_ns == 0 || hold->asked_ns > from) continue;
      if (hold->from_ns == 0 ? atomic_load(&hold->until_ns) == 0 : hold->from_ns >= to) return true;
    }
  }
  return false;
}

static bool check_wakes(struct storm *storm, const struct all *all, uint32_t name, int64_t *longest) {
  int64_t until = 0;
  for (size_t i = 0; i < all->count; i++) {
    int64_t idle = until ? all->seen[i].from - until : 0;
    if (idle > *longest && awaited(storm, name, until, all->seen[i].from)) *longest = idle;
    if (all->seen[i].until > until) until = all->seen[i].until;
  }
  if (*longest <= IDLE_MAX_NS) return true;
  printf("%s was free for %" PRId64 " ms while somebody waited for it\n", storm_names[name],
         *longest / DIBS__NS_PER_MS);
  return false;
}

static uint64_t grants_of(const struct storm_log *log) {
  uint64_t grants = 0;
  uint32_t count = atomic_load(&log->count);
  for (uint32_t i = 0; i < count && i < STORM_HOLDS; i++) grants += log->holds[i].from_ns != 0;
  return grants;
}

/* Those who were left alone asked as much as each other, and got as much, within a factor. */
static bool check_fairness(struct storm *storm) {
  uint64_t least = UINT64_MAX, most = 0;
  for (uint32_t l = 0; l < atomic_load(&storm->logs); l++) {
    if (!storm->log[l].spared) continue;
    uint64_t grants = grants_of(&storm->log[l]);
    if (grants < least) least = grants;
    if (grants > most) most = grants;
  }
  printf("undisturbed processes got %" PRIu64 " to %" PRIu64 " grants\n", least, most);
  return least > 0 && most <= least * 3;
}

static bool check_increments(struct storm *storm, uint64_t final_value) {
  uint64_t tried = 0, acknowledged = 0, stale = 0;
  for (uint32_t l = 0; l < atomic_load(&storm->logs); l++) {
    tried += atomic_load(&storm->log[l].tried);
    acknowledged += atomic_load(&storm->log[l].acknowledged);
    stale += atomic_load(&storm->log[l].stale);
  }
  printf("increments: %" PRIu64 " tried, %" PRIu64 " acknowledged, %" PRIu64
         " refused as stale; the record says %" PRIu64 "\n",
         tried, acknowledged, stale, final_value);
  return final_value >= acknowledged && final_value <= tried - stale && acknowledged > 0;
}

static bool check_trouble(struct storm *storm) {
  bool fine = true;
  uint64_t lost = 0, unsure = 0;
  for (uint32_t l = 0; l < atomic_load(&storm->logs); l++) {
    lost += atomic_load(&storm->log[l].lost);
    unsure += atomic_load(&storm->log[l].unsure);
    if (atomic_load(&storm->log[l].trouble) == 0) continue;
    printf("process %d: %s\n", storm->log[l].pid, storm->log[l].words);
    fine = false;
  }
  printf("%" PRIu64 " leases were found lost, %" PRIu64 " answers were unsure\n", lost, unsure);
  return fine;
}

bool storm_check(struct storm *storm, uint64_t final_value) {
  bool fine = check_trouble(storm);
  for (uint32_t name = 0; name < STORM_NAMES; name++) {
    struct all all = holds_of(storm, name);
    int64_t longest = 0;
    fine = check_exclusion(&all, name) && fine;
    fine = check_fences(&all, name) && fine;
    fine = check_wakes(storm, &all, name, &longest) && fine;
    printf("%s: %zu holds; free at most %" PRId64 " ms while awaited\n", storm_names[name], all.count,
           longest / DIBS__NS_PER_MS);
    fine = all.count > 0 && fine;
    free(all.seen);
  }
  fine = check_fairness(storm) && fine;
  return check_increments(storm, final_value) && fine;
}

/* SPDX-License-Identifier: MIT */
/* Watches the workers: scenes wait for their progress instead of for a fixed time. */
#include "dibs.h"
#include "store/fence.h"
#include "tiers_bed.h"

#include <stddef.h>
#include <stdio.h>

static void saved(struct run *run, struct watched *watched, const struct reported *reported) {
  if (reported->extra != DIBS_OK) return;
  bool *written = &run->written[reported->name % TIERS_NAMES][(uint64_t)reported->value % NUMBERS];
  watched->saves++;
  /* A repeated save has the same worker and lease; only runs without fences, which repeat nothing, use this. */
  run->twice += *written;
  *written = true;
}

static void look_at(struct run *run, struct watched *watched, const struct reported *reported) {
  switch ((enum what)atomic_load(&reported->what)) {
  case REPORTED_REQUEST:
    watched->requested[reported->thread % (TIERS_THREADS + 1)] = reported->at;
    break;
  case REPORTED_GRANT:
    watched->grants++;
    watched->epoch = dibs__fence_epoch((dibs__fence){reported->fence});
    watched->granted_at = reported->at;
    watched->granted_request = watched->requested[reported->thread % (TIERS_THREADS + 1)];
    break;
  case REPORTED_SAVED:
    saved(run, watched, reported);
    break;
  default:
    break;
  }
}

/* Reads one more record.  false: there is none yet. */
static bool look_on(struct run *run, uint32_t party) {
  struct watched *watched = &run->watched[party];
  if (!run->seen[party]) run->seen[party] = history_look(run->folder, party);
  const struct history *history = run->seen[party];
  if (!history || watched->from >= atomic_load(&history->count) || watched->from >= HISTORY_CAPACITY) return false;
  const struct reported *reported = &history->reported[watched->from];
  if (atomic_load(&reported->what) == REPORTED_NOTHING) return false; /* a worker is writing it */
  look_at(run, watched, reported);
  watched->from++;
  return true;
}

static uint64_t sum(struct run *run, uint32_t party, bool saves) {
  uint64_t all = 0;
  for (uint32_t p = 1; p <= run->workers; p++) {
    if (party != 0 && p != party) continue;
    while (look_on(run, p)) continue;
    all += saves ? run->watched[p].saves : run->watched[p].grants;
  }
  return all;
}
uint64_t bed_grants(struct run *run, uint32_t party) {
  return sum(run, party, false);
}
uint64_t bed_saves(struct run *run, uint32_t party) {
  return sum(run, party, true);
}

uint64_t bed_twice(struct run *run) {
  bed_saves(run, 0);
  return run->twice;
}

uint32_t bed_epoch(struct run *run, uint32_t party) {
  uint32_t epoch = 0;
  bed_grants(run, party);
  for (uint32_t p = 1; p <= run->workers; p++)
    if ((party == 0 || p == party) && run->watched[p].epoch > epoch) epoch = run->watched[p].epoch;
  return epoch;
}

bool bed_all_add(struct run *run, int64_t within_ms) {
  uint64_t before[TIERS_PARTIES] = {0};
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), within_ms);
  for (uint32_t p = 1; p <= run->workers; p++) before[p] = bed_saves(run, p);
  for (uint32_t p = 1; p <= run->workers; p++) {
    while (!(run->gone >> p & 1) && bed_saves(run, p) == before[p]) {
      if (!dibs__tick_before(dibs__tick_now(), by))
        return bed_fail(run, "worker %u added nothing within %lld ms", p, (long long)within_ms);
      dibs__nap_ms(5);
    }
  }
  return true;
}

int64_t bed_next_grant(struct run *run, int64_t within_ms) {
  dibs__tick now = dibs__tick_now(), by = dibs__tick_add_ms(now, within_ms);
  while (dibs__tick_before(dibs__tick_now(), by)) {
    for (uint32_t p = 1; p <= run->workers; p++)
      while (look_on(run, p)) {
        const struct watched *watched = &run->watched[p];
        if (watched->granted_request > now.ns) return (watched->granted_at - now.ns) / DIBS__NS_PER_MS;
      }
    dibs__nap_ms(2);
  }
  bed_fail(run, "no request was granted within %lld ms", (long long)within_ms);
  return -1;
}

bool bed_load(struct run *run) {
  dibs__nap_ms(run->phase_ms);
  return !run->failed;
}
bool bed_granted(struct run *run) {
  int64_t ms = bed_next_grant(run, run->soon_ms);
  if (ms >= 0) bed_print(run, "a new request was granted after %lld ms", (long long)ms);
  return ms >= 0;
}

bool bed_newer(struct run *run, uint32_t party, uint32_t than) {
  dibs__tick began = dibs__tick_now(), by = dibs__tick_add_ms(began, run->soon_ms);
  char who[32] = "somebody";
  if (party != 0) snprintf(who, sizeof who, "worker %u", party);
  while (bed_epoch(run, party) <= than) {
    if (!dibs__tick_before(dibs__tick_now(), by)) return bed_fail(run, "%s got no newer epoch than %u", who, than);
    dibs__nap_ms(TIERS_POLL_MS);
  }
  bed_print(run, "%s got a newer epoch after %lld ms", who, (long long)dibs__tick_left_ms(began, dibs__tick_now()));
  return true;
}

/* SPDX-License-Identifier: MIT */
/* What the workers do while they do it: scenes wait for it instead of for a while. */
#include "dibs.h"
#include "store/fence.h"
#include "tiers_bed.h"

#include <stddef.h>
#include <stdio.h>

static void saved(struct run *run, struct watched *watched, const struct said *said) {
  if (said->extra != DIBS_OK) return;
  bool *written = &run->written[said->name % TIERS_NAMES][(uint64_t)said->value % NUMBERS];
  watched->saves++;
  /* What is asked again is said by the same worker and lease; only runs without fences, which ask nothing again, look
   * at this. */
  run->twice += *written;
  *written = true;
}

static void look_at(struct run *run, struct watched *watched, const struct said *said) {
  switch ((enum what)atomic_load(&said->what)) {
  case SAID_ASK:
    watched->asked[said->thread % (TIERS_THREADS + 1)] = said->at;
    break;
  case SAID_GRANT:
    watched->grants++;
    watched->epoch = dibs__fence_epoch((dibs__fence){said->fence});
    watched->granted_at = said->at;
    watched->granted_ask = watched->asked[said->thread % (TIERS_THREADS + 1)];
    break;
  case SAID_SAVED:
    saved(run, watched, said);
    break;
  default:
    break;
  }
}

/* One record on.  false: there is none yet. */
static bool look_on(struct run *run, uint32_t party) {
  struct watched *watched = &run->watched[party];
  if (!run->seen[party]) run->seen[party] = history_look(run->folder, party);
  const struct history *history = run->seen[party];
  if (!history || watched->from >= atomic_load(&history->count) || watched->from >= HISTORY_ROOM) return false;
  const struct said *said = &history->said[watched->from];
  if (atomic_load(&said->what) == SAID_NOTHING) return false; /* it is being written */
  look_at(run, watched, said);
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
        return bed_fail(run, "worker %u added nothing for %lld ms", p, (long long)within_ms);
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
        if (watched->granted_ask > now.ns) return (watched->granted_at - now.ns) / DIBS__NS_PER_MS;
      }
    dibs__nap_ms(2);
  }
  bed_fail(run, "nobody was granted anything for %lld ms", (long long)within_ms);
  return -1;
}

bool bed_load(struct run *run) {
  dibs__nap_ms(run->phase_ms);
  return !run->failed;
}
bool bed_granted(struct run *run) {
  int64_t ms = bed_next_grant(run, run->soon_ms);
  if (ms >= 0) bed_tell(run, "somebody asked and had a lease after %lld ms", (long long)ms);
  return ms >= 0;
}

bool bed_newer(struct run *run, uint32_t party, uint32_t than) {
  dibs__tick began = dibs__tick_now(), by = dibs__tick_add_ms(began, run->soon_ms);
  char who[32] = "somebody";
  if (party != 0) snprintf(who, sizeof who, "worker %u", party);
  while (bed_epoch(run, party) <= than) {
    if (!dibs__tick_before(dibs__tick_now(), by)) return bed_fail(run, "%s had no newer epoch than %u", who, than);
    dibs__nap_ms(TIERS_POLL_MS);
  }
  bed_tell(run, "%s had a newer epoch after %lld ms", who, (long long)dibs__tick_left_ms(began, dibs__tick_now()));
  return true;
}

/* SPDX-License-Identifier: MIT */
/* Random failures, two at once. */
#include "dibs/admin.h"
#include "tiers_scene.h"

#include <stddef.h>

/* Each failure lasts for a while; `off` ends it. */
static bool redis_away(struct run *run, uint32_t party, bool on) {
  (void)party;
  return bed_redis(run, 0, on ? "kill" : "start");
}
static bool redis_still(struct run *run, uint32_t party, bool on) {
  (void)party;
  return bed_redis(run, 0, on ? "pause" : "resume");
}
static bool redis_forgets(struct run *run, uint32_t party, bool on) {
  (void)party;
  return on || bed_redis_cli(run, 0, "FLUSHALL");
}
static bool redis_silent(struct run *run, uint32_t party, bool on) {
  return bed_proxy(run, SIDE_REDIS, party, on ? "half-open" : "pass");
}
static bool redis_refuses(struct run *run, uint32_t party, bool on) {
  return bed_proxy(run, SIDE_REDIS, party, on ? "refuse" : "pass") && bed_proxy(run, SIDE_REDIS, party, "cut");
}
static bool redis_late(struct run *run, uint32_t party, bool on) {
  if (!on) return bed_proxy(run, SIDE_REDIS, party, "pass");
  return bed_proxy(run, SIDE_REDIS, party, "cut-after-request nth=2 times=3 EVALSHA") &&
         bed_proxy(run, SIDE_REDIS, party, "orphan-request nth=4 times=3 EVALSHA 400") &&
         bed_proxy(run, SIDE_REDIS, party, "hold-request nth=8 times=3 EVALSHA 1200");
}
static bool anchor_silent(struct run *run, uint32_t party, bool on) {
  if (on) bed_note(run, REPORTED_STOP, party);
  bool fine = bed_proxy(run, SIDE_ANCHOR, party, on ? "half-open" : "pass");
  if (!on) bed_note(run, REPORTED_GO_ON, party);
  return fine;
}
static bool anchor_late(struct run *run, uint32_t party, bool on) {
  if (!on) return bed_proxy(run, SIDE_ANCHOR, party, "pass");
  return bed_proxy(run, SIDE_ANCHOR, party, "cut-after-request nth=2 times=3 record-") &&
         bed_proxy(run, SIDE_ANCHOR, party, "orphan-request nth=4 times=3 record- 400") &&
         bed_proxy(run, SIDE_ANCHOR, party, "hold-request nth=8 times=3 record- 1200");
}
static bool worker_stopped(struct run *run, uint32_t party, bool on) {
  return on || bed_stop(run, party ? party : 1, run->job.ttl_ms * 3 / 2);
}

static bool worker_killed(struct run *run, uint32_t party, bool on) {
  return !on || bed_kill(run, party ? party : 1);
}
static bool redis_unwanted(struct run *run, uint32_t party, bool on) {
  dibs_store *store = bed_observer(run);
  dibs_error error;
  if (!store || dibs_flag_set(store, "redis.enabled", on ? 100 * party / (run->workers + 1) : 100, &error) == DIBS_OK)
    return store != NULL;
  return bed_fail(run, "%s", error.text);
}

static const struct {
  const char *text;
  bool (*turn)(struct run *run, uint32_t party, bool on);
  bool server; /* at most one of these at once */
} faults[] = {{"redis is killed", redis_away, true},
              {"redis is stopped", redis_still, true},
              {"redis is flushed", redis_forgets, true},
              {"redis is silent", redis_silent, false},
              {"redis refuses", redis_refuses, false},
              {"redis answers late", redis_late, false},
              {"the anchor is silent", anchor_silent, false},
              {"the anchor answers late", anchor_late, false},
              {"stopped", worker_stopped, false},
              {"killed", worker_killed, false},
              {"redis is switched off in part", redis_unwanted, false}};
enum { SERVER_FAULTS = 3, FAULTS = sizeof faults / sizeof *faults };

static uint32_t drawn(struct run *run, uint32_t n) {
  run->chance = run->chance * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint32_t)(run->chance >> 33) % n;
}

/* One failure of a server and one of any kind, each with a beginning and an end of its own. */
bool scene_anything(struct run *run) {
  for (int i = 0; i < 4 && !run->failed; i++) {
    uint32_t server = drawn(run, SERVER_FAULTS), other = SERVER_FAULTS + drawn(run, FAULTS - SERVER_FAULTS);
    uint32_t party = drawn(run, run->workers + 1), first = drawn(run, 2);
    bed_print(run, "%s; %s, of worker %u", faults[server].text, faults[other].text, party);
    bool fine = faults[first ? server : other].turn(run, party, true);
    dibs__nap_ms(drawn(run, (uint32_t)run->phase_ms));
    fine = faults[first ? other : server].turn(run, party, true) && fine;
    dibs__nap_ms(drawn(run, (uint32_t)run->phase_ms * 2));
    fine = faults[server].turn(run, party, false) && fine;
    dibs__nap_ms(drawn(run, (uint32_t)run->phase_ms));
    fine = faults[other].turn(run, party, false) && fine;
    if (!fine || !bed_granted(run)) return false;
    dibs__nap_ms(drawn(run, (uint32_t)run->phase_ms * 2));
  }
  return bed_granted(run);
}

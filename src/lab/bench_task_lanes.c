/* SPDX-License-Identifier: MIT */
/*
 * Members of a topic for `dibs bench task`: each claims tasks of its lanes.  They join before the measurement, and keep
 * their lanes during it.
 */
#include "lab/bench_task.h"

#include <stdlib.h>
#include <string.h>

enum { LOOK_MS = 20, SETTLE_MS = 30000 };

static void gain(dibs_lane *lane, dibs_status status, void *user) {
  struct bench_lanes *lanes = user;
  (void)status;
  dibs__mutex_lock(&lanes->mutex);
  lanes->lanes[lanes->count++] = lane;
  dibs__mutex_unlock(&lanes->mutex);
}

static void lose(dibs_lane *lane, dibs_status status, void *user) {
  struct bench_lanes *lanes = user;
  (void)status;
  dibs__mutex_lock(&lanes->mutex);
  for (uint32_t i = 0; i < lanes->count; i++)
    if (lanes->lanes[i] == lane) lanes->lanes[i--] = lanes->lanes[--lanes->count];
  dibs__mutex_unlock(&lanes->mutex);
  dibs_lane_release(lane);
}

bool dibs__bench_lanes_join(struct bench *b, dibs_store *store, const char *topic, struct bench_lanes *lanes) {
  const dibs_lane_options options = {.size = sizeof options,
                                     .lanes = BENCH_LANES,
                                     .look_ms = LOOK_MS,
                                     .on_gain = gain,
                                     .on_lose = lose,
                                     .user = lanes};
  dibs_error error;
  dibs__mutex_init(&lanes->mutex);
  if (dibs_lane_join(store, topic, &options, &lanes->member, &error))
    return dibs__bench_fail(b, "cannot join a topic: %s", error.text);
  return true;
}

/* All members know each other, and have what is theirs. */
static bool is_settled(struct bench_lanes *const members[], uint32_t count) {
  uint32_t held = 0;
  for (uint32_t i = 0; i < count; i++) {
    dibs_lane_counts counts = {.size = sizeof counts};
    if (dibs_lane_count(members[i]->member, &counts, NULL)) return false;
    if (counts.members != count || counts.held != counts.assigned) return false;
    held += counts.held;
  }
  return held == BENCH_LANES;
}

bool dibs__bench_lanes_settle(struct bench *b, struct bench_lanes *const members[], uint32_t count) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), SETTLE_MS);
  while (!is_settled(members, count)) {
    if (!dibs__tick_before(dibs__tick_now(), by))
      return dibs__bench_fail(b, "%u members did not share their lanes within %d s", count, SETTLE_MS / 1000);
    dibs__nap_ms(1);
  }
  return true;
}

void dibs__bench_lanes_leave(struct bench_lanes *lanes) {
  if (!lanes->member) return;
  dibs_status ignored = dibs_lane_leave(lanes->member, SETTLE_MS, NULL); /* freeing leaves as well */
  (void)ignored;
  dibs_lane_member_free(lanes->member);
  dibs__mutex_destroy(&lanes->mutex);
  lanes->member = NULL;
}

/* SPDX-License-Identifier: MIT */
/*
 * lane_history URI [--seed N] [--runs N] [--steps N] [--seconds N]: random histories of tasks by lane of the store at
 * URI compared with a model, from the seed on (drawn if not given; it is printed).  If they differ, it prints the
 * shortest differing history that it found, and the command that repeats it.
 */
#include "lane_history.h"

static void draw_steps(uint64_t seed, void *to, size_t count) {
  static const uint32_t weights[] = {
      [LANE_ADD] = 16, [LANE_CLAIM] = 30, [LANE_REPEAT] = 4, [LANE_END] = 30,    [LANE_EXTEND] = 4, [LANE_CHANGE] = 8,
      [LANE_PASS] = 6, [LANE_LEARN] = 5,  [LANE_NUMBER] = 1, [LANE_WITHOUT] = 2, [LANE_LIST] = 5};
  struct lane_step *steps = to;
  uint64_t state = history_seeded(seed);
  for (size_t i = 0; i < count; i++) {
    uint32_t kind = history_pick(&state, weights, sizeof weights / sizeof weights[0]);
    steps[i] = (struct lane_step){.kind = (enum lane_step_kind)kind};
    history_fill(&state, steps[i].drawn, 6);
    for (int n = 0; n < LANE_ITEMS; n++) history_fill(&state, steps[i].items[n], 4);
  }
}

static void run_steps(const void *steps, size_t count, bool prints, struct history_verdict *verdict) {
  lane_history_run(case_store_uri(), steps, count, prints, verdict);
}

static bool has_lanes(void) {
  return !target()->no_lanes && (party()->identity.families & 1u << DIBS__FAM_TASK) != 0;
}

int main(int argc, char *argv[]) {
  static const struct history_kind kind = {
      .name = "lane_history",
      .compares = "",
      .lacks = "tasks by lane",
      .counted = {[LANE_CLAIMED] = "claims", [LANE_TAKEN_OVER] = "of them taken over", [LANE_DONE] = "tasks done"},
      .step_size = sizeof(struct lane_step),
      .steps_max = LANE_STEPS_MAX,
      .fits = has_lanes,
      .draw = draw_steps,
      .run = run_steps};
  return history_main(argc, argv, &kind);
}

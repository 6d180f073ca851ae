/* SPDX-License-Identifier: MIT */
/*
 * task_history URI [--seed N] [--runs N] [--steps N] [--seconds N]: random histories of tasks of the store at URI
 * compared with the memory driver, from the seed on (drawn if not given; it is printed).  If they differ, it prints the
 * shortest differing history that it found, and the command that repeats it.
 */
#include "task_history.h"

#include <stdio.h>

static void draw_steps(uint64_t seed, void *to, size_t count) {
  static const uint32_t weights[] = {
      [STEP_ADD] = 16, [STEP_CLAIM] = 26, [STEP_EXTEND] = 4, [STEP_END] = 30, [STEP_CHANGE] = 9,
      [STEP_LIST] = 8, [STEP_ERRORS] = 2, [STEP_COUNT] = 5,  [STEP_KIND] = 2};
  struct task_step *steps = to;
  uint64_t state = history_seeded(seed);
  for (size_t i = 0; i < count; i++) {
    struct task_step *s = &steps[i];
    uint32_t kind = history_pick(&state, weights, sizeof weights / sizeof weights[0]);
    *s = (struct task_step){.kind = (enum task_step_kind)kind};
    s->of = history_random(&state) % 4 == 0;
    s->party = history_random(&state) % 2;
    history_fill(&state, s->drawn, 8);
    for (int n = 0; n < HISTORY_ITEMS; n++) history_fill(&state, s->items[n], 6);
  }
}

static void run_steps(const void *steps, size_t count, bool prints, struct history_verdict *verdict) {
  static unsigned nr;
  char reference[64];
  snprintf(reference, sizeof reference, "memory:tasks-%u", nr++);
  task_history_run(reference, case_store_uri(), steps, count, prints, verdict);
}

static bool has_tasks(void) {
  return (party()->identity.families & 1u << DIBS__FAM_TASK) != 0;
}

int main(int argc, char *argv[]) {
  static const struct history_kind kind = {.name = "task_history",
                                           .compares = "memory and the other: ",
                                           .lacks = "tasks",
                                           .step_size = sizeof(struct task_step),
                                           .steps_max = HISTORY_STEPS_MAX,
                                           .fits = has_tasks,
                                           .draw = draw_steps,
                                           .run = run_steps};
  return history_main(argc, argv, &kind);
}

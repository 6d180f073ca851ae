/* SPDX-License-Identifier: MIT */
/*
 * lane_history URI [--seed N] [--runs N] [--steps N] [--seconds N]: random histories of tasks by lane of the store at
 * URI compared with a model, from the seed on (drawn if not given; it is printed).  If they differ, it prints the
 * shortest differing history that it found, and the command that repeats it.
 */
#include "lane_history.h"
#include "history_args.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHRINK_MS = 60000 };

static struct history_args args = {.runs = 10, .steps = 200};

/* splitmix64: small, and the same on every platform. */
static uint64_t draw(uint64_t *state) {
  uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  return x ^ x >> 31;
}

static void draw_steps(uint64_t seed, struct lane_step steps[], size_t count) {
  static const uint32_t weights[] = {
      [LANE_ADD] = 16, [LANE_CLAIM] = 30, [LANE_REPEAT] = 4, [LANE_END] = 30,    [LANE_EXTEND] = 4, [LANE_CHANGE] = 8,
      [LANE_PASS] = 6, [LANE_LEARN] = 5,  [LANE_NUMBER] = 1, [LANE_WITHOUT] = 2, [LANE_LIST] = 5};
  uint64_t state = seed * UINT64_C(0x2545f4914f6cdd1d) + 1;
  uint32_t sum = 0;
  for (size_t i = 0; i < sizeof weights / sizeof weights[0]; i++) sum += weights[i];
  for (size_t i = 0; i < count; i++) {
    uint32_t at = (uint32_t)(draw(&state) % sum), kind = 0;
    while (at >= weights[kind]) at -= weights[kind++];
    steps[i] = (struct lane_step){.kind = (enum lane_step_kind)kind};
    for (int k = 0; k < 6; k++) steps[i].drawn[k] = (uint32_t)(draw(&state) >> 32);
    for (int n = 0; n < LANE_ITEMS; n++)
      for (int k = 0; k < 4; k++) steps[i].items[n][k] = (uint32_t)(draw(&state) >> 32);
  }
}

static bool one_run(const struct lane_step steps[], size_t count, bool prints, struct lane_verdict *verdict) {
  (void)case_begin(NULL);
  lane_history_run(case_store_uri(), steps, count, prints, verdict);
  (void)case_end(NULL);
  return !verdict->differs;
}

static void shrink_and_print(struct lane_step steps[], struct lane_verdict verdict) {
  struct lane_step *fewer = calloc(args.steps, sizeof *fewer);
  struct lane_verdict tried;
  size_t count = verdict.at + 1;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), SHRINK_MS);
  assert_non_null(fewer);
  printf("seed %" PRIu64 ": step %zu: %s\n", args.seed, verdict.at, verdict.text);
  (void)fflush(stdout);
  for (size_t chunk = count / 2; chunk > 0; chunk /= 2)
    for (size_t at = 0; at < count && dibs__tick_before(dibs__tick_now(), by);) {
      size_t end = at + chunk < count ? at + chunk : count, n = at + count - end;
      memcpy(fewer, steps, at * sizeof *steps);
      memcpy(fewer + at, steps + end, (count - end) * sizeof *steps);
      if (n == 0 || one_run(fewer, n, false, &tried)) {
        at = end;
        continue;
      }
      memcpy(steps, fewer, n * sizeof *steps);
      count = tried.at + 1 < n ? tried.at + 1 : n;
    }
  (void)one_run(steps, count, true, &tried);
  printf("step %zu: %s\n", tried.at, tried.text);
  printf("repeat it with: lane_history '%s' --seed %" PRIu64 " --steps %" PRIu64 " --runs 1\n", args.uri, args.seed,
         args.steps);
  free(fewer);
}

static bool has_lanes(void) {
  (void)case_begin(NULL);
  bool has = !target()->no_lanes && (party()->identity.families & 1u << DIBS__FAM_TASK) != 0;
  (void)case_end(NULL);
  return has;
}

int main(int argc, char *argv[]) {
  if (!history_begin(argc, argv, LANE_STEPS_MAX, &args)) return 2;
  contract_begin(args.uri);
  if (!has_lanes()) {
    printf("%s has no tasks by lane: nothing to compare\n", args.uri);
    contract_end();
    return 77;
  }
  struct lane_step *steps = calloc(args.steps, sizeof *steps);
  if (!steps) return 2;
  uint64_t run = 0, answered[104] = {0}, claimed = 0, taken_over = 0, done = 0;
  bool agree = true;
  dibs__tick began = dibs__tick_now(), until = DIBS__TICK_NEVER;
  if (args.seconds) until = dibs__tick_add_ms(began, (int64_t)args.seconds * 1000);
  printf("lane_history %s from seed %" PRIu64 "\n", args.uri, args.seed);
  for (; run < args.runs && agree && dibs__tick_before(dibs__tick_now(), until); run++) {
    struct lane_verdict verdict;
    draw_steps(args.seed, steps, args.steps);
    agree = one_run(steps, args.steps, false, &verdict);
    for (int i = 0; i < 104; i++) answered[i] += verdict.answered[i];
    claimed += verdict.claimed;
    taken_over += verdict.taken_over;
    done += verdict.done;
    if (agree)
      args.seed++;
    else
      shrink_and_print(steps, verdict);
  }
  printf("%" PRIu64 " histories of %" PRIu64 " steps in %" PRId64 " ms\n%" PRIu64 " claims, %" PRIu64
         " of them taken over, %" PRIu64 " tasks done; answers:",
         run, args.steps, dibs__tick_left_ms(began, dibs__tick_now()), claimed, taken_over, done);
  history_print_answers(answered);
  free(steps);
  contract_end();
  return agree ? 0 : 1;
}

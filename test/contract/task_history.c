/* SPDX-License-Identifier: MIT */
/*
 * task_history URI [--seed N] [--runs N] [--steps N] [--seconds N]: random histories of tasks of the store at URI
 * compared with the memory driver, from the seed on (drawn if not given; it is printed).  If they differ, it prints the
 * shortest differing history that it found, and the command that repeats it.
 */
#include "task_history.h"
#include "history_args.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHRINK_MS = 60000 };

static struct history_args args = {.runs = 10, .steps = 200};

/* ---- Steps ---- */

/* splitmix64: small, and the same on every platform. */
static uint64_t draw(uint64_t *state) {
  uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  return x ^ x >> 31;
}

static enum task_step_kind draw_kind(uint64_t *state) {
  static const uint32_t weights[] = {
      [STEP_ADD] = 16, [STEP_CLAIM] = 26, [STEP_EXTEND] = 4, [STEP_END] = 30, [STEP_CHANGE] = 9,
      [STEP_LIST] = 8, [STEP_ERRORS] = 2, [STEP_COUNT] = 5,  [STEP_KIND] = 2};
  uint32_t sum = 0;
  for (size_t i = 0; i < sizeof weights / sizeof weights[0]; i++) sum += weights[i];
  uint32_t at = (uint32_t)(draw(state) % sum), kind = 0;
  while (at >= weights[kind]) at -= weights[kind++];
  return (enum task_step_kind)kind;
}

void task_history_draw(uint64_t seed, struct task_step steps[], size_t count) {
  uint64_t state = seed * UINT64_C(0x2545f4914f6cdd1d) + 1;
  for (size_t i = 0; i < count; i++) {
    struct task_step *s = &steps[i];
    *s = (struct task_step){.kind = draw_kind(&state)};
    s->of = draw(&state) % 4 == 0;
    s->party = draw(&state) % 2;
    for (int k = 0; k < 8; k++) s->drawn[k] = (uint32_t)(draw(&state) >> 32);
    for (int n = 0; n < HISTORY_ITEMS; n++)
      for (int k = 0; k < 6; k++) s->items[n][k] = (uint32_t)(draw(&state) >> 32);
  }
}

/* ---- Runs ---- */

static bool one_run(const struct task_step steps[], size_t count, bool prints, struct task_verdict *verdict) {
  static unsigned nr;
  char reference[64];
  (void)case_begin(NULL);
  snprintf(reference, sizeof reference, "memory:tasks-%u", nr++);
  task_history_run(reference, case_store_uri(), steps, count, prints, verdict);
  (void)case_end(NULL);
  return !verdict->differs;
}

static void shrink_and_print(struct task_step steps[], struct task_verdict verdict) {
  struct task_step *fewer = calloc(args.steps, sizeof *fewer);
  struct task_verdict tried;
  size_t count = verdict.at + 1;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), SHRINK_MS);
  assert_non_null(fewer);
  printf("seed %" PRIu64 ": step %zu: memory and %s differ: %s\n", args.seed, verdict.at, args.uri, verdict.text);
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
      count = tried.at + 1;
    }
  (void)one_run(steps, count, true, &tried);
  printf("step %zu: memory and the other: %s\n", tried.at, tried.text);
  printf("repeat it with: task_history '%s' --seed %" PRIu64 " --steps %" PRIu64 " --runs 1\n", args.uri, args.seed,
         args.steps);
  free(fewer);
}

/* Opened alone, the store may have no tasks yet. */
static bool has_tasks(void) {
  (void)case_begin(NULL);
  bool has = (party()->identity.families & 1u << DIBS__FAM_TASK) != 0;
  (void)case_end(NULL);
  return has;
}

int main(int argc, char *argv[]) {
  if (!history_begin(argc, argv, HISTORY_STEPS_MAX, &args)) return 2;
  contract_begin(args.uri);
  if (!has_tasks()) {
    printf("%s has no tasks: nothing to compare\n", args.uri);
    contract_end();
    return 77;
  }
  struct task_step *steps = calloc(args.steps, sizeof *steps);
  if (!steps) return 2;
  uint64_t run = 0, answered[104] = {0};
  bool agree = true;
  dibs__tick began = dibs__tick_now(), until = DIBS__TICK_NEVER;
  if (args.seconds) until = dibs__tick_add_ms(began, (int64_t)args.seconds * 1000);
  printf("task_history %s from seed %" PRIu64 "\n", args.uri, args.seed);
  for (; run < args.runs && agree && dibs__tick_before(dibs__tick_now(), until); run++) {
    struct task_verdict verdict;
    task_history_draw(args.seed, steps, args.steps);
    agree = one_run(steps, args.steps, false, &verdict);
    for (int i = 0; i < 104; i++) answered[i] += verdict.answered[i];
    if (agree)
      args.seed++;
    else
      shrink_and_print(steps, verdict);
  }
  printf("%" PRIu64 " histories of %" PRIu64 " steps in %" PRId64 " ms\nanswers:", run, args.steps,
         dibs__tick_left_ms(began, dibs__tick_now()));
  history_print_answers(answered);
  free(steps);
  contract_end();
  return agree ? 0 : 1;
}

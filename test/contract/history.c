/* SPDX-License-Identifier: MIT */
/*
 * history URI [--seed N] [--runs N] [--steps N] [--seconds N]: random histories of the store at URI compared with the
 * memory driver, from the seed on (drawn if not given; it is printed).  If they differ, it prints the shortest
 * differing history that it found, and the command that repeats it.
 */
#include "history.h"
#include "history_args.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Number of runs that share a pair of stores: opening new stores costs more than a history. */
enum { RUNS_A_STORE = 20, RETRIES = 5, SHRINKS_MAX = 400 };

static struct history_args args = {.runs = 200, .steps = 150};

static char reference[64];

static void stores_begin(void) {
  static unsigned nr;
  (void)case_begin(NULL);
  snprintf(reference, sizeof reference, "memory:reference-%u", nr++);
}

static bool still_differs(const struct step steps[], size_t count, struct verdict *verdict) {
  bool differs = false;
  for (int i = 0; i < RETRIES; i++) {
    stores_begin();
    history_run(reference, case_store_uri(), args.seed, steps, count, verdict);
    (void)case_end(NULL);
    differs = verdict->differs;
    if (!differs || !verdict->untimely) break;
    differs = false;
  }
  return differs;
}

/* Removes the steps [from, to) and joins the batches that this divides. */
static size_t without(const struct step steps[], size_t count, size_t from, size_t to, struct step out[]) {
  size_t n = 0;
  for (size_t i = 0; i < count; i++)
    if (i < from || i >= to) out[n++] = steps[i];
  for (size_t i = 0; i < n; i++) {
    bool mates = i + 1 < n && out[i].kind <= STEP_SAVE && out[i + 1].kind <= STEP_SAVE &&
                 out[i].party == out[i + 1].party && out[i].group == out[i + 1].group;
    out[i].joins = out[i].joins && mates;
  }
  return n;
}

static void shrink_and_print(struct step steps[], size_t count, struct verdict first) {
  struct step *fewer = calloc(count + 1, sizeof *fewer);
  struct verdict verdict = first, tried;
  int tries = 0;
  assert_non_null(fewer);
  printf("seed %" PRIu64 ": step %zu: memory and %s differ: %s\n", args.seed, first.at, args.uri, first.text);
  count = first.at + 1;
  while (count < args.steps && steps[count - 1].joins) count++;
  if (still_differs(steps, count, &tried))
    verdict = tried;
  else
    printf("(on new stores it does not differ: earlier histories matter)\n");
  for (size_t chunk = count / 2; chunk > 0 && tries < SHRINKS_MAX; chunk /= 2)
    for (size_t at = 0; at < count && tries < SHRINKS_MAX; tries++) {
      size_t end = at + chunk < count ? at + chunk : count;
      size_t n = without(steps, count, at, end, fewer);
      if (n > 0 && still_differs(fewer, n, &tried)) {
        memcpy(steps, fewer, n * sizeof *steps);
        count = n;
        verdict = tried;
      } else {
        at = end;
      }
    }
  for (size_t i = 0; i < count; i++) history_print_step(&steps[i], i);
  printf("step %zu: memory and the other: %s\n", verdict.at, verdict.text);
  printf("repeat it with: history '%s' --seed %" PRIu64 " --steps %" PRIu64 " --runs 1\n", args.uri, args.seed,
         args.steps);
  free(fewer);
}

/* true: they agree.  *vain: the run took too long to compare. */
static bool one_history(struct step steps[], struct verdict *verdict, bool *vain) {
  history_draw(args.seed, steps, args.steps);
  for (uint64_t i = 0; i < RETRIES; i++) {
    history_run(reference, case_store_uri(), args.seed + i * UINT64_C(1000000000000), steps, args.steps, verdict);
    *vain = verdict->untimely && verdict->differs;
    if (!*vain) return !verdict->differs;
  }
  return true;
}

/* An epoch that is nearly used up would disturb the next history. */
static bool uses_up(const struct step steps[]) {
  for (size_t i = 0; i < args.steps; i++)
    if (steps[i].kind == STEP_USE_UP) return true;
  return false;
}

int main(int argc, char *argv[]) {
  if (!history_begin(argc, argv, STEPS_MAX, &args)) return 2;
  contract_begin(args.uri);
  if (!target()->skew) {
    printf("cannot move the clock of %s: nothing to compare\n", args.uri);
    return 77;
  }
  struct step *steps = calloc(args.steps, sizeof *steps);
  uint64_t vain_count = 0, run = 0, answered[104] = {0};
  bool agree = true;
  if (!steps) return 2;
  dibs__tick began = dibs__tick_now(), until = DIBS__TICK_NEVER;
  if (args.seconds) until = dibs__tick_add_ms(began, (int64_t)args.seconds * 1000);
  printf("history %s from seed %" PRIu64 "\n", args.uri, args.seed);
  stores_begin();
  for (; run < args.runs && agree && dibs__tick_before(dibs__tick_now(), until); run++, args.seed++) {
    struct verdict verdict;
    bool vain, spent = run > 0 && uses_up(steps);
    if (run && (run % RUNS_A_STORE == 0 || spent)) {
      (void)case_end(NULL);
      stores_begin();
    }
    agree = one_history(steps, &verdict, &vain);
    vain_count += vain;
    for (int i = 0; i < 104; i++) answered[i] += verdict.answered[i];
    if (!agree) {
      (void)case_end(NULL);
      shrink_and_print(steps, args.steps, verdict);
      break;
    }
  }
  if (agree) (void)case_end(NULL);
  int64_t ms = dibs__tick_left_ms(began, dibs__tick_now());
  printf("%" PRIu64 " histories of %" PRIu64 " steps in %" PRId64 " ms (%" PRIu64 " too slow to tell)\nanswers:", run,
         args.steps, ms, vain_count);
  history_print_answers(answered);
  free(steps);
  contract_end();
  return agree && vain_count * 10 <= run ? 0 : 1;
}

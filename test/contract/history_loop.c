/* SPDX-License-Identifier: MIT */
#include "history_loop.h"
#include "harness.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHRINK_MS = 60000 };

static struct history_args args = {.runs = 10, .steps = 200};
static const struct history_kind *kind;

void history_differ(struct history_verdict *verdict, size_t at, const char *format, ...) {
  va_list list;
  if (verdict->differs) return;
  verdict->differs = true;
  verdict->at = at;
  va_start(list, format);
  vsnprintf(verdict->text, sizeof verdict->text, format, list);
  va_end(list);
}

static bool one_run(const void *steps, size_t count, bool prints, struct history_verdict *verdict) {
  *verdict = (struct history_verdict){.differs = false};
  (void)case_begin(NULL);
  kind->run(steps, count, prints, verdict);
  (void)case_end(NULL);
  return !verdict->differs;
}

static void shrink_and_print(char *steps, struct history_verdict verdict) {
  size_t size = kind->step_size, count = verdict.at + 1;
  char *fewer = calloc(args.steps, size);
  struct history_verdict tried;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), SHRINK_MS);
  assert_non_null(fewer);
  printf("seed %" PRIu64 ": step %zu: %s%s\n", args.seed, verdict.at, kind->compares, verdict.text);
  (void)fflush(stdout);
  for (size_t chunk = count / 2; chunk > 0; chunk /= 2)
    for (size_t at = 0; at < count && dibs__tick_before(dibs__tick_now(), by);) {
      size_t end = at + chunk < count ? at + chunk : count, n = at + count - end;
      memcpy(fewer, steps, at * size);
      memcpy(fewer + at * size, steps + end * size, (count - end) * size);
      if (n == 0 || one_run(fewer, n, false, &tried)) {
        at = end;
        continue;
      }
      memcpy(steps, fewer, n * size);
      count = tried.at + 1 < n ? tried.at + 1 : n;
    }
  (void)one_run(steps, count, true, &tried);
  printf("step %zu: %s%s\n", tried.at, kind->compares, tried.text);
  printf("repeat it with: %s '%s' --seed %" PRIu64 " --steps %" PRIu64 " --runs 1\n", kind->name, args.uri, args.seed,
         args.steps);
  free(fewer);
}

/* Opened alone, the store may have nothing of them yet. */
static bool fits(void) {
  (void)case_begin(NULL);
  bool fine = kind->fits();
  (void)case_end(NULL);
  return fine;
}

static void add_up(struct history_verdict *sum, const struct history_verdict *verdict) {
  for (size_t i = 0; i < sizeof sum->answered / sizeof sum->answered[0]; i++) sum->answered[i] += verdict->answered[i];
  for (size_t i = 0; i < sizeof sum->counts / sizeof sum->counts[0]; i++) sum->counts[i] += verdict->counts[i];
}

static void print_sum(const struct history_verdict *sum) {
  for (size_t i = 0; i < sizeof sum->counts / sizeof sum->counts[0] && kind->counted[i]; i++)
    printf("%s%" PRIu64 " %s", i ? ", " : "", sum->counts[i], kind->counted[i]);
  printf("%sanswers:", kind->counted[0] ? "; " : "");
  history_print_answers(sum->answered);
}

int history_main(int argc, char *argv[], const struct history_kind *of) {
  kind = of;
  if (!history_begin(argc, argv, kind->steps_max, &args)) return 2;
  contract_begin(args.uri);
  if (!fits()) {
    printf("%s has no %s: nothing to compare\n", args.uri, kind->lacks);
    contract_end();
    return 77;
  }
  char *steps = calloc(args.steps, kind->step_size);
  if (!steps) return 2;
  uint64_t run = 0;
  bool agree = true;
  struct history_verdict sum = {.differs = false};
  dibs__tick began = dibs__tick_now(), until = DIBS__TICK_NEVER;
  if (args.seconds) until = dibs__tick_add_ms(began, (int64_t)args.seconds * 1000);
  printf("%s %s from seed %" PRIu64 "\n", kind->name, args.uri, args.seed);
  for (; run < args.runs && agree && dibs__tick_before(dibs__tick_now(), until); run++) {
    struct history_verdict verdict;
    kind->draw(args.seed, steps, args.steps);
    agree = one_run(steps, args.steps, false, &verdict);
    add_up(&sum, &verdict);
    if (agree)
      args.seed++;
    else
      shrink_and_print(steps, verdict);
  }
  printf("%" PRIu64 " histories of %" PRIu64 " steps in %" PRId64 " ms\n", run, args.steps,
         dibs__tick_left_ms(began, dibs__tick_now()));
  print_sum(&sum);
  free(steps);
  contract_end();
  return agree ? 0 : 1;
}

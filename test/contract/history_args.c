/* SPDX-License-Identifier: MIT */
/* Arguments of the programs that compare random histories. */
#include "history_args.h"
#include "drivers/wrap/shim.h"
#include "harness.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool number(const char *text, uint64_t *to) {
  char *end;
  *to = strtoull(text, &end, 10);
  return *text && !*end;
}

static bool parse(int argc, char *argv[], uint64_t steps_max, struct history_args *args) {
  for (int i = 1; i < argc; i++) {
    uint64_t *to = NULL;
    if (strcmp(argv[i], "--seed") == 0) to = &args->seed;
    if (strcmp(argv[i], "--runs") == 0) to = &args->runs;
    if (strcmp(argv[i], "--steps") == 0) to = &args->steps;
    if (strcmp(argv[i], "--seconds") == 0) to = &args->seconds;
    if (to) {
      if (++i == argc || !number(argv[i], to)) return false;
    } else if (args->uri || argv[i][0] == '-') {
      return false;
    } else {
      args->uri = argv[i];
    }
  }
  return args->uri && args->steps >= 1 && args->steps <= steps_max;
}

bool history_begin(int argc, char *argv[], uint64_t steps_max, struct history_args *args) {
  const struct dibs__driver *const shims[] = {&dibs__trace_driver, &dibs__fault_driver, &dibs__latency_driver};
  for (size_t i = 0; i < sizeof shims / sizeof shims[0]; i++)
    if (!dibs__driver_add(shims[i])) return false;
  dibs__random(&args->seed, sizeof args->seed);
  args->seed %= UINT64_C(1000000000);
  if (parse(argc, argv, steps_max, args)) return true;
  fprintf(stderr, "usage: %s URI [--seed N] [--runs N] [--steps N] [--seconds N]\n", argv[0]);
  return false;
}

void history_print_answers(const uint64_t answered[104]) {
  for (int i = 0; i < 104; i++)
    if (answered[i]) printf(" %s %" PRIu64, status_name(i), answered[i]);
  printf("\n");
}

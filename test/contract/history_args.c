/* SPDX-License-Identifier: MIT */
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

uint64_t history_seeded(uint64_t seed) {
  return seed * UINT64_C(0x2545f4914f6cdd1d) + 1;
}

uint64_t history_random(uint64_t *state) {
  uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  return x ^ x >> 31;
}

uint32_t history_pick(uint64_t *state, const uint32_t weights[], size_t count) {
  uint32_t sum = 0, picked = 0;
  for (size_t i = 0; i < count; i++) sum += weights[i];
  uint32_t at = (uint32_t)(history_random(state) % sum);
  while (at >= weights[picked]) at -= weights[picked++];
  return picked;
}

void history_fill(uint64_t *state, uint32_t to[], size_t count) {
  for (size_t i = 0; i < count; i++) to[i] = (uint32_t)(history_random(state) >> 32);
}

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_CONTRACT_HISTORY_ARGS_H
#define DIBS_TEST_CONTRACT_HISTORY_ARGS_H
/* What the programs that compare random histories share: arguments, shims, drawn numbers, and printed answers. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct history_args {
  const char *uri;
  uint64_t seed, runs, steps, seconds; /* 0 seconds: no limit */
};

/* URI [--seed N] [--runs N] [--steps N] [--seconds N]: sets those that are given.  The seed is drawn otherwise.  Also
 * adds the shims that URIs may name.  false: after a message. */
bool history_begin(int argc, char *argv[], uint64_t steps_max, struct history_args *args);
/* How often each status was answered. */
void history_print_answers(const uint64_t answered[104]);

/* Drawn numbers: splitmix64, which is small, and the same on every platform. */
uint64_t history_seeded(uint64_t seed); /* the state for this seed */
uint64_t history_random(uint64_t *state);
/* An index, each as often as its weight says. */
uint32_t history_pick(uint64_t *state, const uint32_t weights[], size_t count);
void history_fill(uint64_t *state, uint32_t to[], size_t count);

#endif

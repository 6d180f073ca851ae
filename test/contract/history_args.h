/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_CONTRACT_HISTORY_ARGS_H
#define DIBS_TEST_CONTRACT_HISTORY_ARGS_H
/* What the programs that compare random histories share: their arguments, the shims, and how they print answers. */
#include <stdbool.h>
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

#endif

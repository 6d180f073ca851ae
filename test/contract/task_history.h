/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_CONTRACT_TASK_HISTORY_H
#define DIBS_TEST_CONTRACT_TASK_HISTORY_H
/*
 * Random histories of tasks: steps drawn from a seed run on the memory driver and on another driver in lock-step, and
 * each answer is compared.  A step contains drawn numbers only; which task it means is decided when it runs, by the
 * tasks that exist then, so that steps can be left out.
 *
 * Time: claims and waits last for an hour or for SOON_MS, and each step is followed by a pause that is longer.  So both
 * stores see the same times as over, and two steps make tasks ready at two instants on both.
 */
#include "history_loop.h"
#include "task_calls.h"

enum { HISTORY_STEPS_MAX = 20000, HISTORY_ITEMS = 4, SOON_MS = 1, PAUSE_MS = 4 };

enum task_step_kind {
  STEP_ADD,
  STEP_CLAIM,
  STEP_EXTEND,
  STEP_END,
  STEP_CHANGE,
  STEP_LIST,
  STEP_ERRORS,
  STEP_COUNT,
  STEP_KIND
};

struct task_step {
  enum task_step_kind kind;
  uint8_t of, party;                /* which of the kinds; which of the parties */
  uint32_t drawn[8];                /* of the operation */
  uint32_t items[HISTORY_ITEMS][6]; /* of its items */
};

/* Runs the steps on both stores, with kinds of their own.  `prints`: also prints them. */
void task_history_run(const char *reference, const char *other, const struct task_step steps[], size_t count,
                      bool prints, struct history_verdict *verdict);

#endif

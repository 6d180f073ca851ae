/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_CONTRACT_LANE_HISTORY_H
#define DIBS_TEST_CONTRACT_LANE_HISTORY_H
/*
 * Random histories of tasks by lane: steps drawn from a seed run on one store, and each answer is compared with a plain
 * model.  Owners of lanes get growing fences; the former ones do not notice, and continue.  A step contains drawn
 * numbers only; which task it means is decided when it runs, so that steps can be left out.
 *
 * Time: claims and waits last for an hour or for SOON_MS, and a step with a short one is followed by a longer pause.
 */
#include "history_loop.h"
#include "task_calls.h"

enum { LANE_STEPS_MAX = 20000, LANE_ITEMS = 4 };

enum lane_step_kind {
  LANE_ADD,
  LANE_CLAIM,
  LANE_REPEAT, /* of the owner's last CLAIM */
  LANE_END,
  LANE_EXTEND,
  LANE_CHANGE,
  LANE_PASS,    /* a lane passes to another owner */
  LANE_LEARN,   /* an owner learns which lanes it has */
  LANE_NUMBER,  /* the number of lanes changes */
  LANE_WITHOUT, /* a CLAIM without lanes */
  LANE_LIST
};

struct lane_step {
  enum lane_step_kind kind;
  uint32_t drawn[6];
  uint32_t items[LANE_ITEMS][4];
};

/* In the counts of a verdict. */
enum { LANE_CLAIMED, LANE_TAKEN_OVER, LANE_DONE };

/* Runs the steps, then ends every task.  `prints`: also prints them. */
void lane_history_run(const char *uri, const struct lane_step steps[], size_t count, bool prints,
                      struct history_verdict *verdict);

#endif

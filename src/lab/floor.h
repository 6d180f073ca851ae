/* SPDX-License-Identifier: MIT */
#ifndef DIBS_LAB_FLOOR_H
#define DIBS_LAB_FLOOR_H
/* A bare client (bench/floors) as one more member of a round: run as a process, its figures read from its JSON. */
#include "lab/lab.h"

struct lab_floor_result {
  double per_second, p50_ns, p99_ns, max_ns, conflicts, deadlocks;
  bool correct, expected; /* it counted right; or wrong, as it is meant to */
};
/* What the program calls the strategy that does the same as `way`; NULL: it has none. */
const char *dibs__lab_floor_name(const char *program, const char *way);
bool dibs__lab_floor_run(struct lab *lab, const char *strategy, uint32_t users, struct lab_floor_result *result);

#endif

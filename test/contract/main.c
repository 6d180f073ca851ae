/* SPDX-License-Identifier: MIT */
/*
 * contract URI [PATTERN]: the suite that every driver must pass, against the store at URI; only the cases that
 * match PATTERN (with * and ?).  "memory:" and "sqlite:" without a path get a store of their own for each case.
 */
#include "drivers/wrap/shim.h"
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct contract_tests *const suites[] = {
    &contract_batches,
    &contract_grants,
    &contract_fences,
    &contract_queue,
    &contract_ends,
    &contract_records,
    &contract_events,
    &contract_lists,
    &contract_refusals,
    &contract_many_waiters,
    &contract_offers,
    &contract_races,
    &contract_once,
    &contract_stock,
    &contract_texts,
    &contract_tiers,
    &contract_clock,
    &contract_reports,
    &contract_tasks,
    &contract_tasks_order,
    &contract_tasks_ends,
    &contract_tasks_lists,
    &contract_tasks_races,
    &contract_runs,
    &contract_counters,
    &contract_shared,
    &contract_transactors,
    &contract_tasks_lanes,
    &contract_tasks_lanes_ends,
    &contract_tasks_lanes_races,
};

int main(int argc, char *argv[]) {
  const struct dibs__driver *const shims[] = {&dibs__trace_driver, &dibs__fault_driver, &dibs__latency_driver};
  for (size_t i = 0; i < sizeof shims / sizeof shims[0]; i++)
    if (!dibs__driver_add(shims[i])) return 2;
  if (argc > 2 && strcmp(argv[1], "--ghost") == 0) return ghost_main(argc - 2, argv + 2);
  if (argc < 2 || argc > 3) {
    fprintf(stderr, "usage: contract URI [PATTERN]\n");
    return 2;
  }
  if (argc == 3) cmocka_set_test_filter(argv[2]);
  contract_begin(argv[1]);
  size_t count = 0;
  for (size_t i = 0; i < sizeof suites / sizeof suites[0]; i++) count += suites[i]->count;
  struct CMUnitTest *tests = calloc(count, sizeof *tests);
  if (!tests) return 2;
  count = 0;
  for (size_t i = 0; i < sizeof suites / sizeof suites[0]; i++) {
    memcpy(tests + count, suites[i]->tests, suites[i]->count * sizeof *tests);
    count += suites[i]->count;
  }
  int failed = _cmocka_run_group_tests("contract", tests, count, NULL, NULL);
  free(tests);
  contract_end();
  return failed ? 1 : 0;
}

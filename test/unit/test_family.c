/* SPDX-License-Identifier: MIT */
/* The table of the families of operations. */
#include "store/counter.h"
#include "store/engine.h"
#include "store/family.h"
#include "store/run.h"
#include "store/shared.h"
#include "store/task.h"
#include "unit.h"

#include <stdlib.h>
#include <string.h>

union any {
  struct dibs__op op;
  struct dibs__lease_op lease;
  struct dibs__record_op record;
  struct dibs__stock_op stock;
  struct dibs__once_op once;
  struct dibs__report_op report;
  struct dibs__tiers_op tiers;
  struct dibs__task_op task;
  struct dibs__run_op run;
  struct dibs__counter_op counter;
  struct dibs__shared_op shared;
  struct dibs__engine_op engine;
};

static void every_family_has_a_name_and_verbs_of_its_own(void **state) {
  (void)state;
  for (uint16_t i = 0; i < DIBS__FAM_COUNT; i++) {
    const struct dibs__family_info *family = dibs__family_of(&(struct dibs__op){.family = i});
    assert_non_null(family->name);
    assert_non_null(family->verbs[0]);
    assert_true(family->size > sizeof(struct dibs__op));
    for (uint32_t verb = 0; verb < 32; verb++)
      if (family->reads >> verb & 1) assert_true(verb < DIBS__VERBS_MAX && family->verbs[verb]);
    for (uint16_t j = 0; j < i; j++)
      assert_string_not_equal(family->name, dibs__family_of(&(struct dibs__op){.family = j})->name);
  }
}

static void an_unknown_family_has_no_entry(void **state) {
  (void)state;
  struct dibs__op op = {.family = DIBS__FAM_COUNT, .verb = 1};
  assert_string_equal(dibs__family_of(&op)->name, "?");
  assert_string_equal(dibs__verb_name(&op), "?");
  assert_int_equal(dibs__op_key(&op).len, 0);
  assert_false(dibs__op_reads(&op));
  assert_null(dibs__op_take_answer(&op));
}

static void keys_are_at_the_offset_of_the_table(void **state) {
  (void)state;
  const dibs__str key = dibs__str_of("nightly", 7);
  union any lease = {.lease = {.op = {.family = DIBS__FAM_LEASE}, .name = key}};
  union any record = {.record = {.op = {.family = DIBS__FAM_RECORD}, .key = key}};
  union any stock = {.stock = {.op = {.family = DIBS__FAM_STOCK}, .key = key}};
  union any once = {.once = {.op = {.family = DIBS__FAM_ONCE}, .key = key}};
  assert_true(dibs__str_equal(dibs__op_key(&lease.op), key));
  assert_true(dibs__str_equal(dibs__op_key(&record.op), key));
  assert_true(dibs__str_equal(dibs__op_key(&stock.op), key));
  union any task = {.task = {.op = {.family = DIBS__FAM_TASK}, .kind = key}};
  assert_true(dibs__str_equal(dibs__op_key(&once.op), key));
  assert_true(dibs__str_equal(dibs__op_key(&task.op), key));
}

static void only_read_verbs_change_nothing(void **state) {
  (void)state;
  static const struct {
    uint16_t family, verb;
  } reads[] = {{DIBS__FAM_ANCHOR, DIBS__ANCHOR_READ},    {DIBS__FAM_RECORD, DIBS__RECORD_LOAD},
               {DIBS__FAM_STOCK, DIBS__STOCK_READ},      {DIBS__FAM_STOCK, DIBS__STOCK_LIST},
               {DIBS__FAM_ONCE, DIBS__ONCE_READ},        {DIBS__FAM_REPORT, DIBS__REPORT_READ},
               {DIBS__FAM_TIERS, DIBS__TIERS_VIEW},      {DIBS__FAM_TASK, DIBS__TASK_LIST},
               {DIBS__FAM_TASK, DIBS__TASK_COUNT},       {DIBS__FAM_RUN, DIBS__RUN_LIST},
               {DIBS__FAM_COUNTER, DIBS__COUNTER_READ},  {DIBS__FAM_COUNTER, DIBS__COUNTER_LIST},
               {DIBS__FAM_SHARED, DIBS__SHARED_READ},    {DIBS__FAM_SHARED, DIBS__SHARED_LOOK},
               {DIBS__FAM_SHARED, DIBS__SHARED_REFUSED}, {DIBS__FAM_ENGINE, DIBS__ENGINE_DESCRIBE}};
  for (uint16_t family = 0; family < DIBS__FAM_COUNT; family++)
    for (uint16_t verb = 0; verb < 64; verb++) {
      bool wanted = false;
      for (size_t i = 0; i < sizeof reads / sizeof reads[0]; i++)
        wanted = wanted || (reads[i].family == family && reads[i].verb == verb);
      assert_int_equal(dibs__op_reads(&(struct dibs__op){.family = family, .verb = verb}), wanted);
    }
}

/* Under valgrind and the sanitizers: nothing is freed twice, and nothing leaks. */
static void answers_are_freed_once(void **state) {
  (void)state;
  union any record = {.record = {.op = {.family = DIBS__FAM_RECORD}, .got = malloc(8), .got_len = 7}};
  union any once = {.once = {.op = {.family = DIBS__FAM_ONCE}, .got = malloc(8), .got_len = 7}};
  union any report = {.report = {.op = {.family = DIBS__FAM_REPORT}, .got = malloc(8), .got_count = 1}};
  union any tiers = {.tiers = {.op = {.family = DIBS__FAM_TIERS}, .got = malloc(8)}};
  union any task = {.task = {.op = {.family = DIBS__FAM_TASK}, .got = malloc(8), .got_count = 1}};
  union any run = {.run = {.op = {.family = DIBS__FAM_RUN}, .got = malloc(8), .got_count = 1}};
  union any counter = {.counter = {.op = {.family = DIBS__FAM_COUNTER}, .got = malloc(8), .got_count = 1}};
  union any shared = {.shared = {.op = {.family = DIBS__FAM_SHARED}, .got = malloc(8), .got_count = 1}};
  union any *all[] = {&record, &once, &report, &tiers, &task, &run, &counter, &shared};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
    for (int twice = 0; twice < 2; twice++) dibs__op_free_answer(&all[i]->op);
  assert_true(!record.record.got && record.record.got_len == 0);
  assert_true(!once.once.got && once.once.got_len == 0);
  assert_true(!report.report.got && report.report.got_count == 0);
  assert_null(tiers.tiers.got);
  assert_true(!task.task.got && task.task.got_count == 0);
  assert_true(!run.run.got && run.run.got_count == 0);
  assert_true(!counter.counter.got && counter.counter.got_count == 0);
  assert_true(!shared.shared.got && shared.shared.got_count == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_family_has_a_name_and_verbs_of_its_own), cmocka_unit_test(an_unknown_family_has_no_entry),
      cmocka_unit_test(keys_are_at_the_offset_of_the_table), cmocka_unit_test(only_read_verbs_change_nothing),
      cmocka_unit_test(answers_are_freed_once)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}

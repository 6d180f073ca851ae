/* SPDX-License-Identifier: MIT */
/* The pauses after verdicts: of a task that waits, and of a task that failed. */
#include "task/task_impl.h"
#include "unit/unit.h"

#include <stdlib.h>

static void a_waiting_task_is_looked_at_after_a_tenth_of_its_waiting(void **state) {
  (void)state;
  assert_int_equal(dibs__task_relock_ms(-5), 0);
  assert_int_equal(dibs__task_relock_ms(0), 0);
  assert_int_equal(dibs__task_relock_ms(10000), 1000);
  assert_int_equal(dibs__task_relock_ms(60000), 6000);
  assert_int_equal(dibs__task_relock_ms(120000), 12000);
}

static void after_two_minutes_it_is_looked_at_every_half_minute(void **state) {
  (void)state;
  assert_int_equal(dibs__task_relock_ms(120001), 30000);
  assert_int_equal(dibs__task_relock_ms(180000), 30000);
  assert_int_equal(dibs__task_relock_ms(INT64_MAX), 30000);
}

static void the_pause_after_a_failure_doubles_up_to_an_hour(void **state) {
  (void)state;
  assert_int_equal(dibs__task_fail_most_ms(0), 1000);
  assert_int_equal(dibs__task_fail_most_ms(1), 2000);
  assert_int_equal(dibs__task_fail_most_ms(5), 32000);
  assert_int_equal(dibs__task_fail_most_ms(11), 2048000);
  assert_int_equal(dibs__task_fail_most_ms(12), 3600000);
  assert_int_equal(dibs__task_fail_most_ms(UINT32_MAX), 3600000);
}

/* A claimed task of dibs' own table, in a batch of its own, which the caller frees. */
static struct dibs__task_batch *task_that_failed(uint32_t fails) {
  struct dibs__task_batch *batch = calloc(1, sizeof *batch + sizeof batch->held[0]);
  assert_non_null(batch);
  batch->held[0].batch = batch;
  batch->held[0].task.fails = fails;
  return batch;
}

static void the_pause_after_a_failure_is_random_in_its_whole_range(void **state) {
  (void)state;
  struct dibs__task_batch *batch = task_that_failed(3);
  dibs_task_end end = {.size = sizeof end, .task = &batch->held[0].task, .verdict = DIBS_END_FAIL, .delay_ms = -1};
  int low = 0, high = 0;
  for (int i = 0; i < 1000; i++) {
    int64_t ms = dibs__task_pause_ms(&end);
    assert_in_range(ms, 0, 8000);
    low += ms < 2000;
    high += ms > 6000;
  }
  /* A quarter each: outside of these bounds once in 10^30 runs. */
  assert_in_range(low, 100, 400);
  assert_in_range(high, 100, 400);
  free(batch);
}

static void the_least_pause_comes_before_the_random_one(void **state) {
  (void)state;
  struct dibs__task_batch *batch = task_that_failed(3);
  dibs_task_end end = {
      .size = sizeof end, .task = &batch->held[0].task, .verdict = DIBS_END_FAIL, .delay_ms = -1, .least_ms = 7000};
  bool differs = false;
  int64_t first = dibs__task_pause_ms(&end);
  for (int i = 0; i < 100; i++) {
    int64_t ms = dibs__task_pause_ms(&end);
    assert_in_range(ms, 7000, 15000);
    differs = differs || ms != first;
  }
  assert_true(differs);
  free(batch);
}

static void only_waiting_and_failing_pause(void **state) {
  (void)state;
  struct dibs__task_batch *batch = task_that_failed(3);
  for (int verdict = DIBS_END_DONE; verdict <= DIBS_END_RELEASE; verdict++) {
    dibs_task_end end = {
        .size = sizeof end, .task = &batch->held[0].task, .verdict = (dibs_verdict)verdict, .delay_ms = 77};
    bool pauses = verdict == DIBS_END_WAIT || verdict == DIBS_END_FAIL;
    assert_int_equal(dibs__task_pause_ms(&end), pauses ? 77 : 0);
  }
  free(batch);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_waiting_task_is_looked_at_after_a_tenth_of_its_waiting),
      cmocka_unit_test(after_two_minutes_it_is_looked_at_every_half_minute),
      cmocka_unit_test(the_pause_after_a_failure_doubles_up_to_an_hour),
      cmocka_unit_test(the_pause_after_a_failure_is_random_in_its_whole_range),
      cmocka_unit_test(the_least_pause_comes_before_the_random_one),
      cmocka_unit_test(only_waiting_and_failing_pause),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

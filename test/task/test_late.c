/* SPDX-License-Identifier: MIT */
/* Answers that arrive after the lane of a task was lost. */
#include "lease/hold.h"

#include "dibs/task.h"

#include <stdbool.h>
#include <stdio.h>

static struct {
  dibs_task *_Atomic task; /* it runs */
  atomic_bool go;          /* it may end */
} seen;

static dibs_verdict work(dibs_task *task, dibs_work_reply *reply, void *user) {
  (void)reply, (void)user;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), LONG_MS);
  seen.task = task;
  while (!seen.go && dibs__tick_before(dibs__tick_now(), by)) dibs__nap_ms(1);
  return DIBS_END_DONE;
}

static int break_lane(const dibs_lease_info *info, void *user) {
  if (strstr(info->name, "#1.")) (void)!dibs_break(user, info->name, NULL, NULL);
  return 0;
}

static void *extend(void *user) {
  *(dibs_status *)user = dibs_task_extend(seen.task, 0, NULL);
  return NULL;
}

static void an_extension_that_is_answered_after_its_lane_was_lost_brings_no_claim_back(void **state) {
  (void)state;
  dibs_store *near = open_store(), *store = open_uri(shimmed("hold", ""), 0);
  dibs_task_options key = {.size = sizeof key, .serial = "k"};
  dibs_worker_options o = {.size = sizeof o,
                           .work = work,
                           .topic = "topic",
                           .lanes = 1,
                           .lane_ttl_ms = 30000,
                           .timeout_ms = 60000,
                           .flags = DIBS_WORKER_NO_PREFETCH};
  dibs_worker *worker;
  pthread_t extender;
  dibs_status extended = DIBS_UNKNOWN;
  seen.task = NULL;
  seen.go = false;
  assert_int_equal(dibs_task_add(near, "kind", "x", 1, &key, NULL, NULL), DIBS_OK);
  assert_int_equal(dibs_worker_start(store, "kind", &o, &worker, NULL), DIBS_OK);
  UNTIL(seen.task != NULL);
  assert_true(dibs_task_left_ms(seen.task) > 0);

  hold_extensions(true);
  assert_int_equal(pthread_create(&extender, NULL, extend, &extended), 0);
  UNTIL(held_now() == 1);
  assert_int_equal(dibs_list(near, "lane/topic#", break_lane, near, NULL), DIBS_OK);
  UNTIL(dibs_task_left_ms(seen.task) == 0);
  hold_extensions(false);
  pthread_join(extender, NULL);
  assert_true(extended == DIBS_OK || extended == DIBS_UNKNOWN); /* a busy machine may need its 5 s until here */
  assert_int_equal(dibs_task_left_ms(seen.task), 0);

  seen.go = true;
  dibs_worker_free(worker);
}

int main(int argc, char *argv[]) {
  lease_begin(argc, argv);
  hold_begin();
  const struct CMUnitTest tests[] = {
      TEST(an_extension_that_is_answered_after_its_lane_was_lost_brings_no_claim_back),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: MIT */
/* Firings in a store: added once by any number of nodes; and what the nodes know together. */
#include "dibs/task.h"
#include "task/firing.h"
#include "unit/unit.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NODES = 4, INSTANTS = 50 };

static struct dibs__crontab *tab;
static char uri[128];
static dibs_error error;

static int begin(void **state) {
  static const char text[] = "* * * * * * name=skip ./a\n"
                             "* * * * * * name=queue overlap=queue ./a\n"
                             "* * * * * * name=allow overlap=allow ./a\n";
  static int nth;
  (void)state;
  snprintf(uri, sizeof uri, "memory:firing-%d", nth++);
  tab = dibs__crontab_read(text, sizeof text - 1, "UTC");
  return tab && tab->job_count == 3 ? 0 : -1;
}

static int end(void **state) {
  (void)state;
  dibs__crontab_free(tab);
  return 0;
}

static dibs_store *opened(void) {
  dibs_store *store;
  if (dibs_open(uri, NULL, &store, &error) != DIBS_OK) fail_msg("%s", error.text);
  return store;
}

#define FINE(call)                                                                                                     \
  do {                                                                                                                 \
    if ((call) != DIBS_OK) fail_msg("%s: %s", #call, error.text);                                                      \
  } while (0)

static bool fire(dibs_store *store, size_t job, int64_t at_ms, bool by_hand, uint64_t *nr) {
  static uint32_t tokens;
  const struct dibs__cron_due due = {at_ms, at_ms};
  char token[65];
  bool skipped;
  snprintf(token, sizeof token, "%064" PRIx32, ++tokens);
  FINE(dibs__cron_fire(store, "space", &tab->jobs[job], &due, by_hand ? token : NULL, &skipped, nr, &error));
  return skipped;
}

static dibs_task *claim(dibs_store *store) {
  dibs_task *task;
  size_t count;
  dibs_status status = dibs_tasks_claim(store, "cron:space", NULL, &task, &count, &error);
  if (status == DIBS_NOT_FOUND) return NULL;
  FINE(status);
  return task;
}

static void finish(dibs_task *task) {
  assert_non_null(task);
  FINE(dibs_task_done(task, NULL, &error));
  dibs_task_free(task);
}

static void a_firing_is_added_once(void **state) {
  (void)state;
  dibs_store *a = opened(), *b = opened();
  uint64_t first, again, other;
  assert_false(fire(a, 2, 1000, false, &first));
  assert_false(fire(b, 2, 1000, false, &again));
  assert_int_equal(first, again);
  assert_false(fire(b, 2, 2000, false, &other));
  assert_int_not_equal(first, other);
  finish(claim(a));
  finish(claim(b));
  assert_null(claim(a));
  assert_false(fire(a, 2, 1000, false, &again)); /* also when it is done */
  assert_null(claim(a));
  dibs_close(a);
  dibs_close(b);
}

static void a_claimed_firing_has_its_job_and_instant(void **state) {
  (void)state;
  dibs_store *a = opened();
  struct dibs__cron_said said;
  uint64_t nr;
  fire(a, 1, 123000, false, &nr);
  dibs_task *task = claim(a);
  assert_non_null(task);
  if (!task) return; /* not reached; the compiler does not know that */
  assert_true(dibs__cron_read_payload(task->payload, task->length, &said));
  assert_string_equal(said.job, "queue");
  assert_int_equal(said.at_ms, 123000);
  assert_false(said.by_hand);
  assert_int_equal(task->nr, nr);
  finish(task);
  assert_false(dibs__cron_read_payload("", 0, &said));
  assert_false(dibs__cron_read_payload("12", 2, &said));
  assert_false(dibs__cron_read_payload("x y", 3, &said));
  assert_false(dibs__cron_read_payload("hand x", 6, &said));
  dibs_close(a);
}

static void a_job_that_runs_skips_and_all_nodes_agree(void **state) {
  (void)state;
  dibs_store *a = opened(), *b = opened();
  uint64_t nr;
  assert_false(fire(a, 0, 1000, false, &nr));
  dibs_task *task = claim(a);
  assert_true(fire(a, 0, 2000, false, &nr));
  finish(task);
  assert_true(fire(b, 0, 2000, false, &nr)); /* a later node decides it in the same way */
  assert_null(claim(a));
  assert_false(fire(b, 0, 3000, false, &nr));
  finish(claim(a));
  dibs_close(a);
  dibs_close(b);
}

static void a_firing_by_hand_is_another_one_each_time(void **state) {
  (void)state;
  dibs_store *a = opened();
  uint64_t first, second;
  assert_false(fire(a, 2, 1000, true, &first));
  assert_false(fire(a, 2, 1000, true, &second));
  assert_int_not_equal(first, second);
  finish(claim(a));
  finish(claim(a));
  assert_false(fire(a, 0, 1000, true, &first));
  assert_true(fire(a, 0, 1000, true, &first));
  dibs_close(a);
}

static void *fire_all(void *arg) {
  dibs_store *store = arg;
  for (int64_t i = 1; i <= INSTANTS; i++) {
    const struct dibs__cron_due due = {i * 1000, i * 1000};
    bool skipped;
    uint64_t nr;
    dibs_error mine;
    if (dibs__cron_fire(store, "space", &tab->jobs[2], &due, NULL, &skipped, &nr, &mine) != DIBS_OK) return arg;
  }
  return NULL;
}

static void nodes_that_race_add_each_firing_once(void **state) {
  (void)state;
  dibs_store *stores[NODES];
  pthread_t threads[NODES];
  for (int i = 0; i < NODES; i++) stores[i] = opened();
  for (int i = 0; i < NODES; i++) assert_int_equal(pthread_create(&threads[i], NULL, fire_all, stores[i]), 0);
  for (int i = 0; i < NODES; i++) {
    void *failed;
    assert_int_equal(pthread_join(threads[i], &failed), 0);
    assert_null(failed);
  }
  for (int i = 0; i < INSTANTS; i++) finish(claim(stores[i % NODES]));
  assert_null(claim(stores[0]));
  for (int i = 0; i < NODES; i++) dibs_close(stores[i]);
}

static void decisions_only_go_forward(void **state) {
  (void)state;
  dibs_store *a = opened(), *b = opened();
  struct dibs__cron_state known = {0};
  size_t kept;
  FINE(dibs__cron_load(a, "space", &known, &error));
  assert_int_equal(known.count, 0);
  const struct dibs__cron_line one = {.job = 1, .decided_ms = 5000, .missed = 2, .last_missed = 4000, .skipped = 1};
  FINE(dibs__cron_save(a, "space", &one, 1, 9000, &known, &kept, &error));
  assert_int_equal(kept, 1);
  FINE(dibs__cron_save(b, "space", &one, 1, 9000, &known, &kept, &error)); /* another node decided the same */
  assert_int_equal(kept, 0);
  const struct dibs__cron_line late = {.job = 1, .decided_ms = 3000, .missed = 7},
                               next[] = {{.job = 2, .decided_ms = 6000}, {.job = 1, .decided_ms = 6000, .skipped = 3}};
  FINE(dibs__cron_save(b, "space", &late, 1, 9000, &known, &kept, &error));
  assert_int_equal(kept, 0);
  FINE(dibs__cron_save(b, "space", next, 2, 9000, &known, &kept, &error));
  assert_int_equal(kept, 2);
  dibs__cron_state_free(&known);
  FINE(dibs__cron_load(a, "space", &known, &error));
  assert_int_equal(known.count, 2);
  const struct dibs__cron_line *line = dibs__cron_state_find(&known, 1);
  assert_non_null(line);
  assert_int_equal(line->decided_ms, 6000);
  assert_int_equal(line->missed, 2);
  assert_int_equal(line->last_missed, 4000);
  assert_int_equal(line->skipped, 4);
  dibs__cron_state_free(&known);
  FINE(dibs__cron_load(a, "other", &known, &error));
  assert_int_equal(known.count, 0);
  dibs__cron_state_free(&known);
  dibs_close(a);
  dibs_close(b);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(a_firing_is_added_once),
      CASE(a_claimed_firing_has_its_job_and_instant),
      CASE(a_job_that_runs_skips_and_all_nodes_agree),
      CASE(a_firing_by_hand_is_another_one_each_time),
      CASE(nodes_that_race_add_each_firing_once),
      CASE(decisions_only_go_forward),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

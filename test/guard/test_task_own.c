/* SPDX-License-Identifier: MIT */
/* Tasks in the user's own table through dibs/task.h: single claims, and a worker.  test_task_table.c has each verb and
 * each type of column. */
#include "dibs/task.h"
#include "task_bed.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define EXPECT(call, want)                                                                                             \
  do {                                                                                                                 \
    dibs_status expect_got = (call);                                                                                   \
    if (expect_got != (want)) fail_msg("%s: %s: %s", #call, dibs_status_name(expect_got), reported.text);              \
  } while (0)

/* Until `condition`, for LONG_MS at most. */
#define UNTIL(condition)                                                                                               \
  do {                                                                                                                 \
    dibs__tick until_by = dibs__tick_add_ms(dibs__tick_now(), LONG_MS);                                                \
    bool until_true;                                                                                                   \
    while (!(until_true = (condition)) && dibs__tick_before(dibs__tick_now(), until_by)) dibs__nap_ms(5);              \
    assert_true(until_true);                                                                                           \
  } while (0)

static size_t claim_tasks(dibs_store *s, dibs_table *t, uint32_t most, int64_t timeout_ms, dibs_task **tasks) {
  const char *phases[] = {"Creating", "Deleting"};
  dibs_claim_options o = {
      .size = sizeof o, .phases = phases, .phase_count = 2, .most = most, .timeout_ms = timeout_ms, .table = t};
  size_t count = 99;
  dibs_status status = dibs_tasks_claim(s, NULL, &o, tasks, &count, &reported);
  if (status != DIBS_OK && status != DIBS_NOT_FOUND) fail_msg("%s: %s", dibs_status_name(status), reported.text);
  return count;
}

/* The one row that is free. */
static dibs_task *claimed(dibs_store *s, dibs_table *t) {
  dibs_task *task = NULL;
  assert_int_equal(claim_tasks(s, t, 1, 0, &task), 1);
  return task;
}

static const char *phase_of(int id) {
  return cell("SELECT phase FROM gateway WHERE id = %d", id);
}

/* ---- Claims ---- */

static void a_row_is_claimed_with_its_key_and_its_phase(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = plain_gateway();
  add(7, "Deleting", type->never, ago(90));
  add(8, "Deleted", type->never, ago(90));
  dibs_task *task = claimed(s, t), *none;
  assert_string_equal(task->key, "7");
  assert_string_equal(task->phase, "Deleting");
  assert_string_equal(task->kind, "gateway");
  assert_string_equal(task->payload, "");
  assert_string_equal(task->error, "");
  assert_int_equal(task->nr, 0);
  assert_int_equal(task->fence.value, 1);
  assert_in_range(task->age_ms, 88000, 93000);
  assert_in_range(dibs_task_left_ms(task), 20000, 30000);
  assert_int_equal(claim_tasks(s, t, 1, 0, &none), 0);
  assert_message("gateway");
  dibs_task_free(task);
}

static void a_task_holds_its_table(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = NULL;
  plain_gateway();
  dibs_table_options o = {.size = sizeof o,
                          .table = "gateway",
                          .key = "id",
                          .phase = "phase",
                          .locked_at = "locked_at",
                          .updated_at = "updated_at",
                          .fence = "fence",
                          .time_unit = type->unit};
  EXPECT(dibs_table_declare(&o, &t, &reported), DIBS_OK);
  add(1, "Deleting", type->never, ago(90));
  dibs_task *task = claimed(s, t);
  dibs_table_free(t);
  EXPECT(dibs_task_unlock(task, "Deleted", &reported), DIBS_OK);
  assert_string_equal(phase_of(1), "Deleted");
  dibs_task_free(task);
}

static void a_claim_in_whole_seconds_is_trusted_for_a_second_less(void **state) {
  (void)state;
  dibs_store *s = store_open();
  FOR_EACH_TYPE {
    if (!type->coarse) continue;
    dibs_table *t = gateway();
    add(1, "Deleting", type->never, ago(90));
    dibs_task *task = claimed(s, t);
    assert_in_range(dibs_task_left_ms(task), 20000, 29000);
    EXPECT(dibs_task_extend(task, 0, &reported), DIBS_OK);
    assert_in_range(dibs_task_left_ms(task), 20000, 29000);
    dibs_task_free(task);
    sql("DROP TABLE gateway");
  }
}

/* ---- While it is claimed ---- */

static void each_extension_and_step_follows_the_one_before(void **state) {
  (void)state;
  dibs_store *s = store_open();
  FOR_EACH_TYPE {
    dibs_table *t = gateway();
    add(1, "Creating", type->never, ago(90));
    dibs_task *task = claimed(s, t);
    for (int i = 0; i < 3; i++) {
      dibs__nap_ms(type->coarse && i == 0 ? 1100 : 3);
      EXPECT(dibs_task_extend(task, 0, &reported), DIBS_OK);
    }
    assert_true(locked_between(1, 3, -2));
    EXPECT(dibs_task_step(task, "Deleting", &reported), DIBS_OK);
    assert_string_equal(task->phase, "Deleting");
    assert_string_equal(phase_of(1), "Deleting");
    EXPECT(dibs_task_extend(task, 1000, &reported), DIBS_INVALID);
    assert_message("timeout_ms");
    EXPECT(dibs_task_unlock(task, "Deleted", &reported), DIBS_OK);
    assert_true(is_never(1));
    assert_string_equal(phase_of(1), "Deleted");
    EXPECT(dibs_task_extend(task, 0, &reported), DIBS_INVALID);
    dibs_task_free(task);
    sql("DROP TABLE gateway");
  }
}

static void many_are_extended_and_ended_at_once(void **state) {
  (void)state;
  enum { MANY = 150 };
  dibs_store *s = store_open();
  dibs_table *t = plain_gateway();
  dibs_task *tasks[MANY];
  dibs_status statuses[MANY];
  dibs_task_end ends[MANY];
  for (int i = 0; i < MANY; i++) add(i, "Deleting", type->never, ago(90));
  assert_int_equal(claim_tasks(s, t, MANY, 0, tasks), MANY);
  sql("DELETE FROM gateway WHERE id = %s", tasks[1]->key);
  for (int round = 0; round < 2; round++) {
    dibs__nap_ms(3);
    EXPECT(dibs_tasks_extend(tasks, MANY, 0, statuses, &reported), DIBS_OK);
    for (int i = 0; i < MANY; i++) assert_int_equal(statuses[i], i == 1 ? DIBS_NOT_FOUND : DIBS_OK);
  }
  for (int i = 0; i < MANY; i++)
    ends[i] = (dibs_task_end){.size = sizeof ends[i], .task = tasks[i], .verdict = DIBS_END_NEXT, .phase = "Deleted"};
  ends[2].verdict = DIBS_END_DONE;
  EXPECT(dibs_task_end_many(NULL, ends, MANY, &reported), DIBS_OK);
  for (int i = 0; i < MANY; i++)
    assert_int_equal(ends[i].status, i == 1 ? DIBS_NOT_FOUND : i == 2 ? DIBS_UNSUPPORTED : DIBS_OK);
  EXPECT(dibs_task_release(tasks[2], &reported), DIBS_OK);
  dibs_task *twice[] = {tasks[3], tasks[3]};
  EXPECT(dibs_tasks_extend(twice, 2, 0, NULL, &reported), DIBS_INVALID);
  for (int i = 0; i < MANY; i++) dibs_task_free(tasks[i]);
  assert_int_equal(claim_tasks(s, t, 1, 0, tasks), 1);
  twice[0] = twice[1] = tasks[0];
  EXPECT(dibs_tasks_extend(twice, 2, 0, NULL, &reported), DIBS_INVALID);
  assert_message("twice");
  dibs_task_free(tasks[0]);
}

/* ---- Ends ---- */

static void relock_frees_the_row_after_a_tenth_of_the_time_waited(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = plain_gateway();
  add(1, "Creating", type->never, ago(100));
  dibs_task *task = claimed(s, t);
  EXPECT(dibs_task_relock(task, -1, &reported), DIBS_OK);
  assert_true(locked_between(1, 23, 17)); /* free for a program that compares with 30 s in 10 s */
  assert_string_equal(cell("SELECT COUNT(*) FROM gateway WHERE updated_at < %s", ago(90)), "1");
  dibs_task_free(task);
  sql("UPDATE gateway SET locked_at = %s", type->never);
  task = claimed(s, t);
  EXPECT(dibs_task_relock(task, 50000, &reported), DIBS_OK);
  assert_true(locked_between(1, 28, 22));
  dibs_task_free(task);
  sql("UPDATE gateway SET locked_at = %s", type->never);
  task = claimed(s, t);
  EXPECT(dibs_task_fail(task, "could not", &reported), DIBS_OK);
  assert_true(locked_between(1, 23, 16)); /* the same, and up to a second */
  dibs_task_free(task);
}

static void claims_of_different_times_wait_each_for_its_own_delay(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = plain_gateway();
  dibs_task *tasks[2];
  add(1, "Creating", type->never, ago(300));
  add(2, "Creating", type->never, ago(200));
  assert_int_equal(claim_tasks(s, t, 1, 20000, &tasks[0]), 1);
  assert_int_equal(claim_tasks(s, t, 1, 60000, &tasks[1]), 1);
  dibs_task_end ends[2];
  for (int i = 0; i < 2; i++)
    ends[i] = (dibs_task_end){
        .size = sizeof ends[i], .task = tasks[i], .verdict = DIBS_END_WAIT, .delay_ms = 5000 + 5000 * i};
  EXPECT(dibs_task_end_many(NULL, ends, 2, &reported), DIBS_OK);
  assert_true(locked_between(1, 18, 12));
  assert_true(locked_between(2, 53, 47));
  for (int i = 0; i < 2; i++) dibs_task_free(tasks[i]);
}

static void done_and_dead_are_not_for_a_row_of_the_users(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = plain_gateway();
  add(1, "Deleting", type->never, ago(90));
  dibs_task *task = claimed(s, t);
  EXPECT(dibs_task_done(task, "fine", &reported), DIBS_UNSUPPORTED);
  assert_message("dibs_task_unlock");
  assert_message("gateway");
  EXPECT(dibs_task_dead(task, "never", &reported), DIBS_UNSUPPORTED);
  assert_message("phase");
  EXPECT(dibs_task_unlock(task, NULL, &reported), DIBS_OK); /* the claim had not ended */
  dibs_task_free(task);
}

static void a_claim_that_another_program_took_over_is_refused(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = plain_gateway();
  add(1, "Deleting", type->never, ago(90));
  dibs_task *task = claimed(s, t);
  sql("UPDATE gateway SET locked_at = %s", ago(-5));
  EXPECT(dibs_task_extend(task, 0, &reported), DIBS_STALE);
  assert_message("row \"1\"");
  assert_int_equal(dibs_task_left_ms(task), 0);
  EXPECT(dibs_task_unlock(task, "Deleted", &reported), DIBS_STALE);
  assert_string_equal(phase_of(1), "Deleting");
  dibs_task_free(task);
}

static void an_end_inside_the_users_transaction_counts_when_it_commits(void **state) {
  (void)state;
  dibs_store *s = store_open(), *inside = NULL;
  dibs_table *t = plain_gateway();
  add(1, "Deleting", type->never, ago(90));
  dibs_task *task = claimed(s, t);
  dibs_task_end end = {.size = sizeof end, .task = task, .verdict = DIBS_END_NEXT, .phase = "Deleted"};
  for (int commits = 0; commits < 2; commits++) {
    sql("BEGIN");
    sql("UPDATE gateway SET step = 'done'");
    EXPECT(engine->inside(s, connection(), &inside, &reported), DIBS_OK);
    EXPECT(dibs_task_end_many(inside, &end, 1, &reported), DIBS_OK);
    assert_int_equal(end.status, DIBS_OK);
    dibs_close(inside);
    sql(commits ? "COMMIT" : "ROLLBACK");
    assert_string_equal(phase_of(1), commits ? "Deleted" : "Deleting");
  }
  dibs_task_free(task);
}

/* ---- A worker ---- */

static struct {
  atomic_uint calls, done_calls;
  atomic_bool go;
} seen;

static dibs_verdict work(dibs_task *task, dibs_work_reply *reply, void *user) {
  (void)user;
  atomic_fetch_add(&seen.calls, 1);
  if (strcmp(task->key, "900") == 0) { /* steps while its claim is extended */
    for (int i = 0; i < 120; i++) {
      if (dibs_task_step(task, i % 2 ? "Creating" : "Deleting", NULL) != DIBS_OK) return DIBS_END_RELEASE;
      dibs__nap_ms(20);
    }
  }
  if (strcmp(task->key, "901") == 0) { /* a mistake: it is a failed try */
    atomic_fetch_add(&seen.done_calls, 1);
    return DIBS_END_DONE;
  }
  if (strcmp(task->key, "902") == 0)
    while (!seen.go) dibs__nap_ms(5);
  if (strcmp(task->key, "903") == 0) {
    for (int i = 0; i < 40; i++) dibs__nap_ms(30);
    assert_int_equal(dibs_task_unlock(task, "Deleted", NULL), DIBS_OK);
    return DIBS_END_FAIL;
  }
  snprintf(reply->phase, sizeof reply->phase, "%s", strcmp(task->phase, "Creating") == 0 ? "Deleting" : "Deleted");
  return DIBS_END_NEXT;
}

static dibs_worker *start(dibs_store *s, dibs_table *t, int64_t timeout_ms) {
  static const char *const phases[] = {"Creating", "Deleting"};
  dibs_worker_options o = {.size = sizeof o,
                           .phases = phases,
                           .phase_count = 2,
                           .threads = 4,
                           .timeout_ms = timeout_ms,
                           .poll_ms = 50,
                           .table = t,
                           .work = work};
  dibs_worker *worker = NULL;
  memset(&seen, 0, sizeof seen);
  EXPECT(dibs_worker_start(s, NULL, &o, &worker, &reported), DIBS_OK);
  return worker;
}

static dibs_worker_counts counted(dibs_worker *worker) {
  dibs_worker_counts counts = DIBS_WORKER_COUNTS_INIT;
  EXPECT(dibs_worker_count(worker, &counts, &reported), DIBS_OK);
  return counts;
}

static void a_worker_takes_each_row_through_its_phases(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = plain_gateway();
  for (int i = 0; i < 40; i++) add(i, i % 2 ? "Creating" : "Deleting", type->never, ago(90));
  dibs_worker *worker = start(s, t, 0);
  UNTIL(counted(worker).next == 60);
  assert_string_equal(cell("SELECT COUNT(*) FROM gateway WHERE phase = 'Deleted' AND locked_at = %s", type->never),
                      "40");
  assert_int_equal(seen.calls, 60);
  assert_int_equal(counted(worker).refused, 0);
  dibs_worker_free(worker);
}

static void a_worker_extends_rows_while_they_change_and_end(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = plain_gateway();
  add(900, "Creating", type->never, ago(90));
  add(903, "Deleting", type->never, ago(90));
  dibs_worker *worker = start(s, t, 2000);
  UNTIL(counted(worker).next == 3); /* 900 ends in Creating: then once more in Deleting */
  dibs_worker_counts c = counted(worker);
  assert_int_equal(c.refused + c.lost + c.failed + c.released, 0);
  assert_true(c.extended >= 4);
  assert_string_equal(phase_of(903), "Deleted");
  dibs_worker_free(worker);
}

static void the_verdict_done_of_a_worker_is_a_failed_try(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = plain_gateway();
  add(901, "Deleting", type->never, ago(100));
  dibs_worker *worker = start(s, t, 0);
  UNTIL(counted(worker).failed == 1);
  assert_string_equal(phase_of(901), "Deleting");
  assert_true(locked_between(901, 23, 16));
  assert_int_equal(seen.done_calls, 1);
  dibs_worker_free(worker);
}

static void a_worker_that_lost_a_row_is_refused(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = plain_gateway();
  add(902, "Deleting", type->never, ago(100));
  dibs_worker *worker = start(s, t, 600);
  UNTIL(seen.calls == 1);
  sql("UPDATE gateway SET locked_at = %s", ago(-3600));
  UNTIL(counted(worker).lost == 1);
  seen.go = true;
  UNTIL(counted(worker).refused == 1);
  assert_string_equal(phase_of(902), "Deleting");
  dibs_worker_free(worker);
}

/* ---- What is refused ---- */

static void a_table_without_the_columns_of_tasks_is_refused(void **state) {
  (void)state;
  dibs_store *s = store_open(), *memory = memory_open();
  dibs_table *t = TABLE(.table = "gateway", .key = "id", .fence = "fence");
  dibs_task *task;
  size_t count;
  dibs_claim_options o = {.size = sizeof o, .table = t};
  EXPECT(dibs_tasks_claim(s, NULL, &o, &task, &count, &reported), DIBS_UNSUPPORTED);
  assert_message("locked_at");
  o.table = plain_gateway();
  EXPECT(dibs_tasks_claim(memory, NULL, &o, &task, &count, &reported), DIBS_UNSUPPORTED);
  assert_message("gateway");
  o.table = NULL;
  EXPECT(dibs_tasks_claim(s, NULL, &o, &task, &count, &reported), DIBS_INVALID);
  o.table = TABLE(.table = "gateway", .key = "id", .phase = "phase", .locked_at = "misspelt",
                  .updated_at = "updated_at", .fence = "fence");
  EXPECT(dibs_tasks_claim(s, "label", &o, &task, &count, &reported), DIBS_INVALID);
  assert_message("misspelt");
}

int main(int argc, char *argv[]) {
  bed_begin(argc, argv);
  const struct CMUnitTest tests[] = {
      CASE(a_row_is_claimed_with_its_key_and_its_phase),
      CASE(a_task_holds_its_table),
      CASE(a_claim_in_whole_seconds_is_trusted_for_a_second_less),
      CASE(each_extension_and_step_follows_the_one_before),
      CASE(many_are_extended_and_ended_at_once),
      CASE(relock_frees_the_row_after_a_tenth_of_the_time_waited),
      CASE(claims_of_different_times_wait_each_for_its_own_delay),
      CASE(done_and_dead_are_not_for_a_row_of_the_users),
      CASE(a_claim_that_another_program_took_over_is_refused),
      CASE(an_end_inside_the_users_transaction_counts_when_it_commits),
      CASE(a_worker_takes_each_row_through_its_phases),
      CASE(a_worker_extends_rows_while_they_change_and_end),
      CASE(the_verdict_done_of_a_worker_is_a_failed_try),
      CASE(a_worker_that_lost_a_row_is_refused),
      CASE(a_table_without_the_columns_of_tasks_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

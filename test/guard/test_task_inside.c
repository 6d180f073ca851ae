/* SPDX-License-Identifier: MIT */
/* Tasks inside a transaction of the user's own: they are added, and claims are ended, together with its own rows. */
#include "dibs/task.h"
#include "record_bed.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *kind(void) {
  static char text[60];
  static unsigned nr;
  snprintf(text, sizeof text, "inside-%d-%u-%lld", (int)getpid(), nr++, (long long)time(NULL));
  return text;
}

#define EXPECT(call, want)                                                                                             \
  do {                                                                                                                 \
    dibs_status expect_got = (call);                                                                                   \
    if (expect_got != (want)) fail_msg("%s: %s: %s", #call, dibs_status_name(expect_got), reported.text);              \
  } while (0)

static dibs_status claim_phase(dibs_store *s, const char *of, const char *phase, dibs_task **task) {
  dibs_claim_options o = {.size = sizeof o, .most = 1, .phases = &phase, .phase_count = phase ? 1 : 0};
  size_t count;
  *task = NULL;
  return dibs_tasks_claim(s, of, &o, task, &count, &reported);
}

static dibs_status claim_one(dibs_store *s, const char *of, dibs_task **task) {
  return claim_phase(s, of, NULL, task);
}

static void a_task_exists_when_its_transaction_commits(void **state) {
  (void)state;
  dibs_store *s = store_open(), *inside = NULL;
  const char *of = kind();
  void *mine = connection();
  dibs_task *task;
  uint64_t nr = 0;
  make_table("orders", "id %s", engine->number);
  sql("BEGIN");
  EXPECT(engine->inside(s, mine, &inside, &reported), DIBS_OK);
  sql("INSERT INTO orders VALUES (1)");
  EXPECT(dibs_task_add(inside, of, "one", 3, NULL, &nr, &reported), DIBS_OK);
  /* SQLite has one writer: a claim would wait for this transaction. */
  if (engine != &engine_sqlite) EXPECT(claim_one(s, of, &task), DIBS_NOT_FOUND);
  sql("ROLLBACK");
  dibs_close(inside);
  EXPECT(claim_one(s, of, &task), DIBS_NOT_FOUND);
  assert_string_equal(cell("SELECT COUNT(*) FROM orders"), "0");

  sql("BEGIN");
  EXPECT(engine->inside(s, mine, &inside, &reported), DIBS_OK);
  sql("INSERT INTO orders VALUES (2)");
  EXPECT(dibs_task_add(inside, of, "two", 3, NULL, &nr, &reported), DIBS_OK);
  sql("COMMIT");
  dibs_close(inside);
  EXPECT(claim_one(s, of, &task), DIBS_OK);
  assert_int_equal(task->nr, nr);
  assert_string_equal(task->payload, "two");
  EXPECT(dibs_task_done(task, NULL, &reported), DIBS_OK);
  dibs_task_free(task);
}

static void a_claim_ends_with_the_rows_of_its_work(void **state) {
  (void)state;
  dibs_store *s = store_open(), *inside = NULL;
  const char *of = kind();
  void *mine = connection();
  dibs_task *task, *none;
  make_table("effects", "id %s", engine->number);
  EXPECT(dibs_task_add(s, of, "x", 1, NULL, NULL, &reported), DIBS_OK);
  EXPECT(claim_one(s, of, &task), DIBS_OK);
  dibs_task_end end = {.size = sizeof end, .task = task, .verdict = DIBS_END_DONE};
  for (int commits = 0; commits <= 1; commits++) {
    sql("BEGIN");
    EXPECT(engine->inside(s, mine, &inside, &reported), DIBS_OK);
    sql("INSERT INTO effects VALUES (7)");
    EXPECT(dibs_task_end_many(inside, &end, 1, &reported), DIBS_OK);
    assert_int_equal(end.status, DIBS_OK);
    sql(commits ? "COMMIT" : "ROLLBACK");
    dibs_close(inside);
    assert_string_equal(cell("SELECT COUNT(*) FROM effects"), commits ? "1" : "0");
    /* After the rollback it is still claimed: this extends it. */
    EXPECT(dibs_task_extend(task, 0, &reported), commits ? DIBS_STALE : DIBS_OK);
  }
  EXPECT(dibs_task_done(task, NULL, &reported), DIBS_OK); /* a repetition: it was done before */
  EXPECT(claim_one(s, of, &none), DIBS_NOT_FOUND);
  dibs_task_free(task);
}

/* The transaction has a snapshot in which no task is claimed. */
static void begin_with_old_snapshot(void) {
  const char *schema = engine == &engine_postgres ? "dibs." : "";
  if (engine == &engine_mysql) sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ");
  sql(engine == &engine_postgres ? "BEGIN ISOLATION LEVEL REPEATABLE READ" : "BEGIN");
  (void)cell("SELECT COUNT(*) FROM %sdibs_task", schema);
}

static void a_limit_holds_inside_a_transaction_with_an_old_snapshot(void **state) {
  (void)state;
  dibs_store *s = store_open(), *inside = NULL;
  const char *of = kind();
  dibs_kind_options limit = {.size = sizeof limit, .set = DIBS_KIND_RUNNING, .running = 1};
  dibs_task_options one = {.size = sizeof one, .phase = "one"}, two = {.size = sizeof two, .phase = "two"};
  dibs_task *first, *second;
  EXPECT(dibs_task_kind_set(s, of, &limit, &reported), DIBS_OK);
  EXPECT(dibs_task_add(s, of, "x", 1, &one, NULL, &reported), DIBS_OK);
  EXPECT(dibs_task_add(s, of, "x", 1, &two, NULL, &reported), DIBS_OK);
  void *mine = connection();
  begin_with_old_snapshot();
  EXPECT(claim_phase(s, of, "one", &first), DIBS_OK);
  EXPECT(engine->inside(s, mine, &inside, &reported), DIBS_OK);
  /* A task that did not change since. */
  dibs_status status = claim_phase(inside, of, "two", &second);
  if (engine == &engine_postgres) {
    assert_int_equal(status, DIBS_UNSUPPORTED);
    assert_message("READ COMMITTED");
  } else if (engine == &engine_mysql) {
    /* Newer versions of MariaDB refuse to read a row that is newer than the snapshot. */
    assert_true(status == DIBS_NOT_FOUND || status == DIBS_CONFLICT);
  } else {
    assert_int_equal(status, DIBS_CONFLICT);
  }
  sql("ROLLBACK");
  dibs_close(inside);
  EXPECT(dibs_task_done(first, NULL, &reported), DIBS_OK);
  dibs_task_free(first);

  sql("BEGIN");
  EXPECT(engine->inside(s, mine, &inside, &reported), DIBS_OK);
  EXPECT(claim_one(inside, of, &second), DIBS_OK);
  EXPECT(claim_one(inside, of, &first), DIBS_NOT_FOUND);
  EXPECT(dibs_task_done(second, NULL, &reported), DIBS_OK);
  dibs_task_free(second);
  sql("COMMIT");
  dibs_close(inside);
}

static dibs_verdict never(dibs_task *task, dibs_work_reply *reply, void *user) {
  (void)task;
  (void)reply;
  (void)user;
  fail_msg("no task was to be begun");
  return DIBS_END_FAIL;
}

static void a_worker_and_another_store_are_refused_inside(void **state) {
  (void)state;
  dibs_store *s = store_open(), *other = store_open(), *inside = NULL;
  const char *of = kind();
  dibs_worker *worker = NULL;
  dibs_worker_options o = {.size = sizeof o, .work = never};
  dibs_task *task;
  EXPECT(dibs_task_add(s, of, "x", 1, NULL, NULL, &reported), DIBS_OK);
  EXPECT(claim_one(s, of, &task), DIBS_OK);
  dibs_task_end end = {.size = sizeof end, .task = task};
  sql("BEGIN");
  EXPECT(engine->inside(other, connection(), &inside, &reported), DIBS_OK);
  EXPECT(dibs_task_end_many(inside, &end, 1, &reported), DIBS_INVALID);
  EXPECT(dibs_worker_start(inside, of, &o, &worker, &reported), DIBS_UNSUPPORTED);
  sql("ROLLBACK");
  dibs_close(inside);
  dibs_task_free(task);
}

int main(int argc, char *argv[]) {
  bed_begin(argc, argv);
  const struct CMUnitTest tests[] = {
      TEST(a_task_exists_when_its_transaction_commits),
      TEST(a_claim_ends_with_the_rows_of_its_work),
      TEST(a_limit_holds_inside_a_transaction_with_an_old_snapshot),
      TEST(a_worker_and_another_store_are_refused_inside),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

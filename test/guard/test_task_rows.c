/* SPDX-License-Identifier: MIT */
/* Rows of dibs' tables that people insert, delete and lock by statements of their own.  test/e2e/relay_test.sh has the
 * rows that an INSERT refuses. */
#include "base/port.h"
#include "dibs/task.h"
#include "record_bed.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXPECT(call, want)                                                                                             \
  do {                                                                                                                 \
    dibs_status expect_got = (call);                                                                                   \
    if (expect_got != (want)) fail_msg("%s: %s: %s", #call, dibs_status_name(expect_got), reported.text);              \
  } while (0)

enum { PATIENCE_MS = 20000, SHORT_MS = 100, MANY = 8 };

static dibs_store *store;
static char kind[60];

static const char *table(const char *name) {
  static char text[40];
  snprintf(text, sizeof text, "%s%s", engine == &engine_postgres ? "dibs." : "", name);
  return text;
}

/* A store with its tables, and a kind of its own. */
static void begin(void) {
  static unsigned nr;
  dibs_task *none;
  size_t count;
  snprintf(kind, sizeof kind, "rows-%d-%u-%lld", (int)getpid(), nr++, (long long)time(NULL));
  store = store_open();
  EXPECT(dibs_tasks_claim(store, kind, NULL, &none, &count, &reported), DIBS_NOT_FOUND);
}

static uint64_t number_of(const char *text) {
  return text ? strtoull(text, NULL, 10) : 0;
}

/* NULL: no serial text. */
static uint64_t insert(const char *serial) {
  if (serial)
    sql("INSERT INTO %s (kind, serial) VALUES ('%s', '%s')", table("dibs_task"), kind, serial);
  else
    sql("INSERT INTO %s (kind) VALUES ('%s')", table("dibs_task"), kind);
  return number_of(cell("SELECT max(nr) FROM %s WHERE kind = '%s'", table("dibs_task"), kind));
}

static void insert_as(uint64_t nr, int tries) {
  sql("INSERT INTO %s (nr, kind, tries) VALUES (%" PRIu64 ", '%s', %d)", table("dibs_task"), nr, kind, tries);
}

static const char *count_of(const char *name, uint64_t nr) {
  return cell("SELECT count(*) FROM %s WHERE nr = %" PRIu64, table(name), nr);
}

static size_t claim(int64_t timeout_ms, dibs_task *tasks[MANY]) {
  dibs_claim_options o = {.size = sizeof o, .most = MANY, .timeout_ms = timeout_ms};
  size_t count = 0;
  dibs_status status = dibs_tasks_claim(store, kind, &o, tasks, &count, &reported);
  if (status != DIBS_OK && status != DIBS_NOT_FOUND) fail_msg("%s: %s", dibs_status_name(status), reported.text);
  return count;
}

/* Claims this task alone, in time. */
static dibs_task *claimed(uint64_t nr) {
  dibs_task *tasks[MANY];
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  while (claim(0, tasks) == 0) {
    if (!dibs__tick_before(dibs__tick_now(), by)) fail_msg("task %" PRIu64 " is not claimed", nr);
    dibs__nap_ms(5);
  }
  assert_int_equal(tasks[0]->nr, nr);
  return tasks[0];
}

static void end_all(dibs_task *tasks[], size_t count, dibs_verdict verdict) {
  dibs_task_end ends[MANY];
  for (size_t i = 0; i < count; i++)
    ends[i] = (dibs_task_end){.size = sizeof ends[i], .task = tasks[i], .verdict = verdict, .text = "why"};
  EXPECT(dibs_task_end_many(NULL, ends, count, &reported), DIBS_OK);
  for (size_t i = 0; i < count; i++) {
    assert_int_equal(ends[i].status, DIBS_OK);
    dibs_task_free(tasks[i]);
  }
}

static void end_one(dibs_task *task, dibs_verdict verdict) {
  end_all(&task, 1, verdict);
}

/* ---- Numbers that were used before ---- */

static void a_number_of_a_finished_task_is_inserted_and_done_again(void **state) {
  (void)state;
  dibs_task *tasks[MANY];
  begin();
  uint64_t nr = insert(NULL);
  end_one(claimed(nr), DIBS_END_DONE);
  for (int round = 0; round < 2; round++) {
    insert(NULL);
    insert_as(nr, 0);
    insert(NULL);
    assert_int_equal(claim(0, tasks), 3);
    end_all(tasks, 3, DIBS_END_DONE);
    assert_string_equal(count_of("dibs_task", nr), "0");
    assert_string_equal(count_of("dibs_task_done", nr), "1");
  }
  assert_string_equal(cell("SELECT count(*) FROM %s WHERE kind = '%s'", table("dibs_task_done"), kind), "5");
}

static void a_number_of_a_dead_task_fails_again(void **state) {
  (void)state;
  dibs_task *tasks[MANY];
  begin();
  insert_as(1000000, 1);
  end_one(claimed(1000000), DIBS_END_FAIL);
  insert_as(1000000, 1);
  insert(NULL);
  assert_int_equal(claim(0, tasks), 2);
  end_all(tasks, 2, DIBS_END_FAIL);
  assert_string_equal(count_of("dibs_task", 1000000), "0");
  assert_string_equal(cell("SELECT state FROM %s WHERE nr = 1000000", table("dibs_task_done")), "7");
}

/* The claim of such a task ends without an answer: that is written by the next claim of the kind. */
static void a_late_claim_of_a_number_used_before_stops_no_other_task(void **state) {
  (void)state;
  dibs_task *tasks[MANY];
  begin();
  insert_as(2000000, 1);
  end_one(claimed(2000000), DIBS_END_DEAD);
  insert_as(2000000, 1);
  assert_int_equal(claim(SHORT_MS, tasks), 1);
  dibs_task_free(tasks[0]);
  dibs__nap_ms(2 * SHORT_MS);
  insert_as(2000001, 0);
  end_one(claimed(2000001), DIBS_END_DONE);
  assert_string_equal(count_of("dibs_task", 2000000), "0");
}

/* Its row is held by another session: the end of an earlier task with the same number is no answer for it. */
static void the_end_of_an_earlier_task_is_no_answer_for_a_later_one(void **state) {
  (void)state;
  dibs_task *tasks[MANY];
  if (engine == &engine_sqlite) skip(); /* it has one writer */
  begin();
  uint64_t nr = insert(NULL);
  end_one(claimed(nr), DIBS_END_DONE);
  insert_as(nr, 0);
  assert_int_equal(claim(0, tasks), 1);
  sql("BEGIN");
  sql("UPDATE %s SET made = made WHERE nr = %" PRIu64, table("dibs_task"), nr);
  dibs_task_end end = {.size = sizeof end, .task = tasks[0], .verdict = DIBS_END_DONE};
  dibs_status status = dibs_task_end_many(NULL, &end, 1, &reported);
  assert_false(status == DIBS_OK && end.status == DIBS_OK);
  sql("ROLLBACK");
  end_one(tasks[0], DIBS_END_DONE);
  assert_string_equal(count_of("dibs_task", nr), "0");
}

/* ---- A row that the engine refuses ---- */

/* Tasks with this payload cannot finish. */
static void refuse_finished(bool refuses) {
  bool trigger = engine == &engine_sqlite;
  if (refuses && trigger)
    sql("CREATE TRIGGER no_poison BEFORE INSERT ON dibs_task_done WHEN new.payload = 'poison'"
        " BEGIN SELECT RAISE(ABORT, 'no_poison is here'); END");
  else if (refuses)
    sql("ALTER TABLE %s ADD CONSTRAINT no_poison CHECK (phase <> 'poison' OR kind <> '%s')", table("dibs_task_done"),
        kind);
  else if (trigger)
    sql("DROP TRIGGER no_poison");
  else
    sql("ALTER TABLE %s DROP CONSTRAINT no_poison", table("dibs_task_done"));
}

static void insert_poison(uint64_t nr, int tries) {
  sql("INSERT INTO %s (nr, kind, payload, phase, tries) VALUES (%" PRIu64 ", '%s', 'poison', 'poison', %d)",
      table("dibs_task"), nr, kind, tries);
}

static void an_end_that_the_engine_refuses_names_its_task_and_harms_no_other(void **state) {
  (void)state;
  dibs_task *tasks[MANY];
  dibs_task_end ends[3];
  begin();
  refuse_finished(true);
  insert(NULL);
  insert_poison(3000000, 0);
  insert_as(3000001, 0);
  assert_int_equal(claim(0, tasks), 3);
  size_t bad = 3;
  for (size_t i = 0; i < 3; i++) {
    ends[i] = (dibs_task_end){.size = sizeof ends[i], .task = tasks[i], .verdict = DIBS_END_DONE};
    if (tasks[i]->nr == 3000000) bad = i;
  }
  EXPECT(dibs_task_end_many(NULL, ends, 3, &reported), DIBS_OK);
  assert_in_range(bad, 0, 2);
  for (size_t i = 0; i < 3; i++) {
    if (i != bad) assert_int_equal(ends[i].status, DIBS_OK);
    if (i == bad) assert_int_not_equal(ends[i].status, DIBS_OK);
  }
  assert_int_not_equal(dibs_task_done(tasks[bad], NULL, &reported), DIBS_OK);
  assert_message("3000000");
  assert_message("no_poison");
  refuse_finished(false);
  end_one(tasks[bad], DIBS_END_DONE);
  for (size_t i = 0; i < 3; i++)
    if (i != bad) dibs_task_free(tasks[i]);
}

static void a_late_claim_that_cannot_be_written_stops_no_other_task(void **state) {
  (void)state;
  dibs_task *tasks[MANY];
  begin();
  refuse_finished(true);
  insert_poison(4000000, 1);
  insert_as(4000001, 0);
  assert_int_equal(claim(SHORT_MS, tasks), 2);
  for (int i = 0; i < 2; i++) dibs_task_free(tasks[i]);
  dibs__nap_ms(2 * SHORT_MS);
  insert_as(4000002, 0);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  for (size_t done = 0, count = 0; done < 2; done += count) {
    if ((count = claim(0, tasks)) > 0) end_all(tasks, count, DIBS_END_DONE);
    if (!dibs__tick_before(dibs__tick_now(), by)) fail_msg("the other tasks are not claimed");
  }
  refuse_finished(false);
  while (strcmp(count_of("dibs_task_done", 4000000), "1") != 0) {
    assert_int_equal(claim(0, tasks), 0);
    if (!dibs__tick_before(dibs__tick_now(), by)) fail_msg("the late claim was not ended");
  }
}

/* ---- Tasks that people delete ---- */

static void delete_task(uint64_t nr) {
  assert_int_equal(sql("DELETE FROM %s WHERE nr = %" PRIu64, table("dibs_task"), nr), 1);
}

static void the_next_task_of_a_key_follows_one_that_was_deleted(void **state) {
  (void)state;
  dibs_task *tasks[MANY];
  begin();
  uint64_t nrs[3];
  for (int i = 0; i < 3; i++) nrs[i] = insert("key");
  assert_int_equal(claim(0, tasks), 1);
  dibs_task_free(tasks[0]);
  delete_task(nrs[0]);
  store =
      store_open(); /* each connection looks for such keys at its first claim of a kind, and later from time to time */
  for (int i = 1; i < 3; i++) end_one(claimed(nrs[i]), DIBS_END_DONE);
  assert_string_equal(
      cell("SELECT count(*) FROM %s WHERE kind = '%s' AND serial = 'key'", table("dibs_task_serial"), kind), "0");
}

static void a_later_task_of_a_key_follows_a_deleted_one_as_well(void **state) {
  (void)state;
  begin();
  uint64_t nr = insert("key"), other = insert("other");
  dibs_task *tasks[MANY];
  assert_int_equal(claim(0, tasks), 2);
  for (int i = 0; i < 2; i++) dibs_task_free(tasks[i]);
  delete_task(nr);
  store = store_open();
  nr = insert("key");
  insert("other"); /* waits, because its key has a claimed task */
  end_one(claimed(nr), DIBS_END_DONE);
  assert_int_equal(
      number_of(cell("SELECT nr FROM %s WHERE kind = '%s' AND serial = 'other'", table("dibs_task_serial"), kind)),
      other);
}

/* ---- More rows than one claim looks at ---- */

/* The last statistics are those of empty tables: PostgreSQL plans for them until the next vacuum, a minute later. */
static void vacuum(void) {
  if (engine != &engine_postgres) return;
  sql("VACUUM ANALYZE %s", table("dibs_task"));
  sql("VACUUM ANALYZE %s", table("dibs_task_serial"));
}

static void claim_behind_a_parked_key(bool vacuums) {
  begin();
  uint64_t nr = insert("key");
  if (vacuums) vacuum();
  end_one(claimed(nr), DIBS_END_DEAD);
  if (vacuums) vacuum();
  for (int i = 0; i < 5; i++)
    assert_int_equal(sql("INSERT INTO %s (kind, serial) WITH d(i) AS (SELECT 0 UNION ALL SELECT 1 UNION ALL SELECT 2"
                         " UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL"
                         " SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9) SELECT '%s', 'key' FROM d a, d b, d c",
                         table("dibs_task"), kind),
                     1000);
  nr = insert("other");
  dibs_task *tasks[MANY];
  assert_int_equal(claim(0, tasks), 1); /* it does not wait */
  assert_int_equal(tasks[0]->nr, nr);
  end_all(tasks, 1, DIBS_END_DONE);
}

static void a_task_behind_thousands_of_a_parked_key_is_claimed(void **state) {
  (void)state;
  claim_behind_a_parked_key(false);
}

static void a_task_behind_thousands_of_a_parked_key_is_claimed_soon_after_a_vacuum(void **state) {
  (void)state;
  claim_behind_a_parked_key(true);
}

/* ---- The time of an inserted row ---- */

/* MariaDB's tables of time zones may be empty.  There the time of a session may also be set: to the second of two equal
 * local times in Berlin. */
static void an_insert_has_the_right_time_in_the_hour_that_a_time_zone_repeats(void **state) {
  (void)state;
  if (engine != &engine_mysql) skip();
  begin();
  if (!cell("SELECT CONVERT_TZ('2025-01-01', 'UTC', 'Europe/Berlin')")) skip();
  sql("SET SESSION time_zone = 'Europe/Berlin', timestamp = 1761442200");
  uint64_t nr = insert(NULL);
  sql("SET SESSION time_zone = '+00:00', timestamp = DEFAULT");
  assert_string_equal(cell("SELECT made FROM %s WHERE nr = %" PRIu64, table("dibs_task"), nr), "1761442200000");
}

/* The clock of a user's session may be set: a claim within its transaction does not take it for the store's. */
static void a_session_whose_clock_is_set_ends_no_claim_of_others(void **state) {
  (void)state;
  if (engine != &engine_mysql) skip();
  begin();
  dibs_task *late[MANY], *mine[MANY], *theirs;
  size_t count;
  insert(NULL);
  assert_int_equal(claim(SHORT_MS, late), 1);
  insert(NULL);
  assert_int_equal(claim(0, mine), 1);
  dibs__nap_ms(2 * SHORT_MS); /* so that there is a late claim to end */
  sql("SET SESSION timestamp = UNIX_TIMESTAMP() + 86400");
  sql("BEGIN");
  dibs_store *inside = NULL;
  EXPECT(engine->inside(store, connection(), &inside, &reported), DIBS_OK);
  dibs_claim_options one = {.size = sizeof one, .most = 1};
  dibs_status status = dibs_tasks_claim(inside, kind, &one, &theirs, &count, &reported);
  dibs_close(inside);
  sql("COMMIT");
  sql("SET SESSION timestamp = DEFAULT");
  if (status == DIBS_OK) dibs_task_free(theirs);
  dibs_task_free(late[0]);
  end_one(mine[0], DIBS_END_DONE);
}

/* ---- Two clients begin with a kind ---- */

struct first_claim {
  dibs_task *task;
  size_t count;
  dibs_status status;
  dibs_error error;
};

static void claim_first(void *arg) {
  struct first_claim *c = arg;
  c->status = dibs_tasks_claim(store, kind, NULL, &c->task, &c->count, &c->error);
}

/* The other one has inserted the row by which they take turns, and has not committed it. */
static void two_first_claims_of_a_kind_do_not_refuse_each_other(void **state) {
  (void)state;
  if (engine == &engine_sqlite) skip(); /* it has one writer */
  begin();
  uint64_t nr = insert("key");
  static struct first_claim c;
  c = (struct first_claim){.count = 0};
  sql("BEGIN");
  sql("INSERT INTO %s (kind, serial, nr) VALUES ('%s', '', 0)", table("dibs_task_serial"), kind);
  dibs__thread *thread = dibs__thread_start("first claim", claim_first, &c);
  assert_non_null(thread);
  dibs__nap_ms(3 * SHORT_MS); /* it waits for the row, unless the machine is slow */
  sql("COMMIT");
  dibs__thread_join(thread);
  if (c.status != DIBS_OK) fail_msg("%s: %s", dibs_status_name(c.status), c.error.text);
  assert_int_equal(c.task->nr, nr);
  end_one(c.task, DIBS_END_DONE);
}

/* ---- A table that was empty when the engine looked at it last ---- */

enum { WAVE = 20, WAVE_TASKS = 1000, CLAIM_MS = 8000 };

static void add_wave(void) {
  static dibs_task_new news[WAVE_TASKS];
  for (size_t i = 0; i < WAVE_TASKS; i++) news[i] = (dibs_task_new){.size = sizeof news[i]};
  for (int i = 0; i < WAVE; i++) EXPECT(dibs_task_add_many(store, kind, news, WAVE_TASKS, 0, &reported), DIBS_OK);
}

/* PostgreSQL expects no rows after a vacuum of an empty table, until it looks again. */
static void many_tasks_are_claimed_and_ended_soon_after_a_vacuum_of_the_empty_table(void **state) {
  (void)state;
  static dibs_task *tasks[WAVE_TASKS];
  static dibs_task_end ends[WAVE_TASKS];
  dibs_claim_options o = {.size = sizeof o, .most = WAVE_TASKS};
  size_t count;
  begin();
  vacuum();
  add_wave();
  for (int round = 0; round < 3; round++) {
    dibs__tick began = dibs__tick_now();
    EXPECT(dibs_tasks_claim(store, kind, &o, tasks, &count, &reported), DIBS_OK);
    assert_int_equal(count, WAVE_TASKS);
    for (size_t i = 0; i < count; i++) ends[i] = (dibs_task_end){.size = sizeof ends[i], .task = tasks[i]};
    EXPECT(dibs_task_end_many(NULL, ends, count, &reported), DIBS_OK);
    assert_in_range(dibs__tick_left_ms(began, dibs__tick_now()), 0, CLAIM_MS);
    for (size_t i = 0; i < count; i++) {
      assert_int_equal(ends[i].status, DIBS_OK);
      dibs_task_free(tasks[i]);
    }
  }
}

/* ---- Old rows ---- */

static void add_run(const char *name) {
  dibs_run_info run = {.size = sizeof run, .name = name, .kind = "test"};
  EXPECT(dibs_runs_add(store, &run, &reported), DIBS_OK);
}

static bool has_run(const char *name) {
  return strcmp(cell("SELECT count(*) FROM %s WHERE name = '%s'", table("dibs_run"), name), "0") != 0;
}

/* One run in 32, or so, also deletes old ones. */
static void an_old_run_is_deleted_while_a_session_has_locked_a_young_one(void **state) {
  (void)state;
  if (engine == &engine_sqlite) skip(); /* a session locks the whole file */
  begin();
  char old[80], young[80];
  snprintf(old, sizeof old, "old-%s", kind);
  snprintf(young, sizeof young, "young-%s", kind);
  add_run(old);
  add_run(young);
  sql("UPDATE %s SET until = 1 WHERE name = '%s'", table("dibs_run"), old);
  void *other = another_connection();
  char lock[200];
  snprintf(lock, sizeof lock, "SELECT * FROM %s WHERE name = '%s' FOR UPDATE", table("dibs_run"), young);
  engine->run(other, "BEGIN", NULL);
  engine->run(other, lock, NULL);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  while (has_run(old) && dibs__tick_before(dibs__tick_now(), by)) add_run("many");
  assert_false(has_run(old));
  engine->run(other, "ROLLBACK", NULL);
}

enum { MANY_RUNS = 200 }; /* some of which delete old ones */

static void add_many_runs(void *arg) {
  (void)arg;
  for (int i = 0; i < MANY_RUNS; i++) {
    dibs_run_info run = {.size = sizeof run, .name = "many", .kind = "test"};
    if (dibs_runs_add(store, &run, NULL) != DIBS_OK) break;
  }
}

static void a_row_that_a_session_keeps_for_longer_is_not_deleted_as_an_old_one(void **state) {
  (void)state;
  if (engine == &engine_sqlite) skip(); /* it has one writer */
  begin();
  char name[80];
  snprintf(name, sizeof name, "kept-%s", kind);
  add_run(name);
  sql("UPDATE %s SET until = 1 WHERE name = '%s'", table("dibs_run"), name);
  sql("BEGIN");
  sql("UPDATE %s SET until = 9999999999999 WHERE name = '%s'", table("dibs_run"), name);
  dibs__thread *thread = dibs__thread_start("runs", add_many_runs, NULL);
  assert_non_null(thread);
  dibs__nap_ms(5 * SHORT_MS); /* a deletion has read the old row by now, unless the machine is slow */
  sql("COMMIT");
  dibs__thread_join(thread);
  assert_true(has_run(name));
}

int main(int argc, char *argv[]) {
  bed_begin(argc, argv);
  const struct CMUnitTest tests[] = {
      TEST(a_number_of_a_finished_task_is_inserted_and_done_again),
      TEST(a_number_of_a_dead_task_fails_again),
      TEST(a_late_claim_of_a_number_used_before_stops_no_other_task),
      TEST(the_end_of_an_earlier_task_is_no_answer_for_a_later_one),
      TEST(an_end_that_the_engine_refuses_names_its_task_and_harms_no_other),
      TEST(a_late_claim_that_cannot_be_written_stops_no_other_task),
      TEST(the_next_task_of_a_key_follows_one_that_was_deleted),
      TEST(a_later_task_of_a_key_follows_a_deleted_one_as_well),
      TEST(a_task_behind_thousands_of_a_parked_key_is_claimed),
      TEST(a_task_behind_thousands_of_a_parked_key_is_claimed_soon_after_a_vacuum),
      TEST(an_insert_has_the_right_time_in_the_hour_that_a_time_zone_repeats),
      TEST(a_session_whose_clock_is_set_ends_no_claim_of_others),
      TEST(two_first_claims_of_a_kind_do_not_refuse_each_other),
      TEST(many_tasks_are_claimed_and_ended_soon_after_a_vacuum_of_the_empty_table),
      TEST(an_old_run_is_deleted_while_a_session_has_locked_a_young_one),
      TEST(a_row_that_a_session_keeps_for_longer_is_not_deleted_as_an_old_one),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

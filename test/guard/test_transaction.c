/* SPDX-License-Identifier: MIT */
/* dibs/transaction.h: transactions on a connection of the library, beside a connection of the user's own. */
#include "dibs/task.h"
#include "dibs/transaction.h"
#include "record_bed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPECT(call, want)                                                                                             \
  do {                                                                                                                 \
    dibs_status expect_got = (call);                                                                                   \
    if (expect_got != (want)) fail_msg("%s: %s: %s", #call, dibs_status_name(expect_got), reported.text);              \
  } while (0)

static dibs_transaction *open_transaction(dibs_store *s) {
  dibs_transaction *t;
  EXPECT(dibs_transaction_open(s, &t, &reported), DIBS_OK);
  return t;
}

static dibs_status put_inside(dibs_transaction *t, const char *key, const char *text, dibs_lease *lease) {
  dibs_value value = {text, strlen(text)};
  dibs_record_options o = {.size = sizeof o, .lease = lease, .flags = lease ? 0 : DIBS_UNCHECKED};
  return dibs_record_put(dibs_transaction_inside(t), key, &value, 1, &o, NULL, &reported);
}

static void calls_and_statements_take_effect_together(void **state) {
  (void)state;
  dibs_store *s = store_open();
  make_table("effects", "id %s PRIMARY KEY", engine->number);
  dibs_transaction *t = open_transaction(s);
  assert_null(dibs_transaction_inside(t));
  assert_null(dibs_transaction_connection(t));
  for (int commits = 0; commits <= 1; commits++) {
    EXPECT(dibs_transaction_begin(t, &reported), DIBS_OK);
    EXPECT(dibs_transaction_begin(t, &reported), DIBS_INVALID);
    EXPECT(dibs_transaction_sql(t, "INSERT INTO effects VALUES (1); INSERT INTO effects VALUES (2)", &reported),
           DIBS_OK);
    EXPECT(put_inside(t, "together", "yes", NULL), DIBS_OK);
    /* The user's statements on the same connection. */
    engine->run(dibs_transaction_connection(t), "INSERT INTO effects VALUES (3)", NULL);
    if (commits)
      EXPECT(dibs_transaction_commit(t, &reported), DIBS_OK);
    else
      dibs_transaction_rollback(t);
    assert_string_equal(cell("SELECT COUNT(*) FROM effects"), commits ? "3" : "0");
    const dibs_record *r = get(s, "together", commits ? DIBS_OK : DIBS_NOT_FOUND);
    if (commits) assert_string_equal(r->values[0].data, "yes");
  }
  EXPECT(dibs_transaction_commit(t, &reported), DIBS_INVALID);
  EXPECT(dibs_transaction_sql(t, "SELECT 1", &reported), DIBS_INVALID);
  dibs_transaction_close(t);
}

static void a_refused_statement_undoes_the_others(void **state) {
  (void)state;
  dibs_store *s = store_open();
  make_table("effects", "id %s PRIMARY KEY", engine->number);
  dibs_transaction *t = open_transaction(s);
  static const char *const wrong[] = {"INSERT INTO effects VALUES (1); INSERT INTO effects VALUES (1)",
                                      "INSERT INTO effects VALUES (1); INSERT INTO no_such_table VALUES (1)",
                                      "INSERT INTO effects VALUES (1); INSERT INTO"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    EXPECT(dibs_transaction_begin(t, &reported), DIBS_OK);
    EXPECT(dibs_transaction_sql(t, wrong[i], &reported), DIBS_INVALID);
    assert_true(strlen(reported.text) > 20);
    dibs_transaction_rollback(t);
    assert_string_equal(cell("SELECT COUNT(*) FROM effects"), "0");
  }
  /* The connection is as before. */
  EXPECT(dibs_transaction_begin(t, &reported), DIBS_OK);
  EXPECT(dibs_transaction_sql(t, "INSERT INTO effects VALUES (5)", &reported), DIBS_OK);
  EXPECT(dibs_transaction_commit(t, &reported), DIBS_OK);
  assert_string_equal(cell("SELECT COUNT(*) FROM effects"), "1");
  dibs_transaction_close(t);
}

static void a_statement_that_ends_the_transaction_is_noticed(void **state) {
  (void)state;
  dibs_store *s = store_open();
  make_table("effects", "id %s", engine->number);
  dibs_transaction *t = open_transaction(s);
  EXPECT(dibs_transaction_begin(t, &reported), DIBS_OK);
  EXPECT(dibs_transaction_sql(t, "INSERT INTO effects VALUES (1); COMMIT", &reported), DIBS_INVALID);
  assert_message("ended");
  assert_true(put_inside(t, "outside", "never", NULL) != DIBS_OK);
  EXPECT(dibs_transaction_commit(t, &reported), DIBS_INVALID);
  (void)get(s, "outside", DIBS_NOT_FOUND);
  EXPECT(dibs_transaction_begin(t, &reported), DIBS_OK);
  EXPECT(dibs_transaction_commit(t, &reported), DIBS_OK);
  dibs_transaction_close(t);
}

static void the_write_of_a_former_holder_undoes_its_effects(void **state) {
  (void)state;
  dibs_store *s = store_open();
  make_table("effects", "id %s", engine->number);
  dibs_lease *first = lease_of(s, "name");
  dibs_transaction *t = open_transaction(s);
  EXPECT(dibs_transaction_begin(t, &reported), DIBS_OK);
  EXPECT(dibs_transaction_sql(t, "INSERT INTO effects VALUES (1)", &reported), DIBS_OK);
  EXPECT(put_inside(t, "fenced", "first", first), DIBS_OK);
  EXPECT(dibs_transaction_commit(t, &reported), DIBS_OK);
  EXPECT(dibs_release(first, &reported), DIBS_OK);
  dibs_lease *second = lease_of(s, "name");
  (void)get(s, "fenced", DIBS_OK, .lease = second);
  EXPECT(dibs_transaction_begin(t, &reported), DIBS_OK);
  EXPECT(dibs_transaction_sql(t, "INSERT INTO effects VALUES (2)", &reported), DIBS_OK);
  dibs_status status = put_inside(t, "fenced", "late", first);
  assert_true(status == DIBS_STALE || status == DIBS_LOST);
  dibs_transaction_rollback(t);
  assert_string_equal(cell("SELECT COUNT(*) FROM effects"), "1");
  dibs_transaction_close(t);
}

static void tasks_and_stock_join_it(void **state) {
  (void)state;
  dibs_store *s = store_open();
  char kind[60], counted[160];
  snprintf(kind, sizeof kind, "transaction-%p", (void *)s);
  dibs_transaction *t = open_transaction(s);
  EXPECT(dibs_transaction_begin(t, &reported), DIBS_OK);
  EXPECT(dibs_task_add(dibs_transaction_inside(t), kind, "x", 1, NULL, NULL, &reported), DIBS_OK);
  dibs_transaction_rollback(t);
  EXPECT(dibs_transaction_begin(t, &reported), DIBS_OK);
  EXPECT(dibs_task_add(dibs_transaction_inside(t), kind, "y", 1, NULL, NULL, &reported), DIBS_OK);
  EXPECT(dibs_transaction_commit(t, &reported), DIBS_OK);
  dibs_claim_options o = {.size = sizeof o, .most = 2};
  dibs_task *tasks[2];
  size_t count;
  EXPECT(dibs_tasks_claim(s, kind, &o, tasks, &count, &reported), DIBS_OK);
  snprintf(counted, sizeof counted, "%zu %s", count, tasks[0]->payload);
  assert_string_equal(counted, "1 y");
  EXPECT(dibs_task_done(tasks[0], NULL, &reported), DIBS_OK);
  dibs_task_free(tasks[0]);
  dibs_transaction_close(t);
}

/* The server ends the connection of a client that stops for too long. */
static void a_connection_that_the_server_ended_is_opened_again(void **state) {
  (void)state;
  if (engine == &engine_sqlite) skip();
  dibs_store *s = store_open();
  make_table("effects", "id %s", engine->number);
  dibs_transaction *t = open_transaction(s);
  EXPECT(dibs_transaction_begin(t, &reported), DIBS_OK);
  EXPECT(dibs_transaction_sql(t, "INSERT INTO effects VALUES (1)", &reported), DIBS_OK);
  /* It ends itself, as the administrator would. */
  (void)!dibs_transaction_sql(t,
                              strcmp(engine->scheme, "mysql") == 0 ? "KILL CONNECTION_ID()"
                                                                   : "SELECT pg_terminate_backend(pg_backend_pid())",
                              &reported);
  EXPECT(dibs_transaction_commit(t, &reported), DIBS_UNAVAILABLE); /* nothing was sent any more: nothing took effect */
  assert_string_equal(cell("SELECT COUNT(*) FROM effects"), "0");
  EXPECT(dibs_transaction_begin(t, &reported), DIBS_OK);
  EXPECT(dibs_transaction_sql(t, "INSERT INTO effects VALUES (2)", &reported), DIBS_OK);
  EXPECT(dibs_transaction_commit(t, &reported), DIBS_OK);
  assert_string_equal(cell("SELECT COUNT(*) FROM effects"), "1");
  dibs_transaction_close(t);
}

static const char *backends(const char *pid) {
  return cell("SELECT COUNT(*) FROM pg_stat_activity WHERE pid = %s", pid);
}

/* Not INVALID: the client did nothing wrong but wait. */
static void a_transaction_that_waited_too_long_is_unavailable(void **state) {
  (void)state;
  if (strcmp(engine->scheme, "postgres") != 0) skip();
  dibs_store *s = store_open();
  dibs_transaction *t = open_transaction(s);
  for (int by_put = 0; by_put <= 1; by_put++) {
    EXPECT(dibs_transaction_begin(t, &reported), DIBS_OK);
    EXPECT(put_inside(t, "idle", "never", NULL), DIBS_OK);
    char pid[24], *got = NULL;
    engine->run(dibs_transaction_connection(t), "SELECT pg_backend_pid()", &got);
    snprintf(pid, sizeof pid, "%s", got);
    free(got);
    EXPECT(dibs_transaction_sql(t, "SET LOCAL idle_in_transaction_session_timeout = '50ms'", &reported), DIBS_OK);
    for (int i = 0; i < 600 && strcmp(backends(pid), "0") != 0; i++)
      nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    assert_string_equal(backends(pid), "0");
    if (by_put) assert_int_equal(put_inside(t, "idle", "never", NULL), DIBS_UNAVAILABLE);
    if (by_put) EXPECT(dibs_transaction_sql(t, "SELECT 1", &reported), DIBS_UNAVAILABLE);
    EXPECT(dibs_transaction_commit(t, &reported), DIBS_UNAVAILABLE);
    (void)get(s, "idle", DIBS_NOT_FOUND);
  }
  EXPECT(dibs_transaction_begin(t, &reported), DIBS_OK);
  EXPECT(put_inside(t, "idle", "now", NULL), DIBS_OK);
  EXPECT(dibs_transaction_commit(t, &reported), DIBS_OK);
  dibs_transaction_close(t);
}

static void other_stores_have_none(void **state) {
  (void)state;
  dibs_transaction *t = (dibs_transaction *)state;
  EXPECT(dibs_transaction_open(memory_open(), &t, &reported), DIBS_UNSUPPORTED);
  assert_null(t);
  EXPECT(dibs_transaction_open(NULL, &t, &reported), DIBS_INVALID);
  EXPECT(dibs_transaction_begin(NULL, &reported), DIBS_INVALID);
  EXPECT(dibs_transaction_commit(NULL, &reported), DIBS_INVALID);
  dibs_transaction_rollback(NULL);
  dibs_transaction_close(NULL);
}

int main(int argc, char *argv[]) {
  bed_begin(argc, argv);
  const struct CMUnitTest tests[] = {
      TEST(calls_and_statements_take_effect_together),
      TEST(a_refused_statement_undoes_the_others),
      TEST(a_statement_that_ends_the_transaction_is_noticed),
      TEST(the_write_of_a_former_holder_undoes_its_effects),
      TEST(tasks_and_stock_join_it),
      TEST(a_connection_that_the_server_ended_is_opened_again),
      TEST(a_transaction_that_waited_too_long_is_unavailable),
      TEST(other_stores_have_none),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

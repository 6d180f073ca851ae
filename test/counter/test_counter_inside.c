/* SPDX-License-Identifier: MIT */
/* Counters in the user's own transaction (R107), on each SQL engine. */
#include "dibs/counter.h"
#include "guard/record_bed.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CREW = 4, TRANSACTIONS = 21, LONG_MS = 60000 };

static bool is_sqlite(void) {
  return strcmp(engine->scheme, "sqlite") == 0;
}

static void expect_status(int line, dibs_status got, dibs_status want) {
  if (got != want)
    fail_msg("line %d: %s, expected %s: %s", line, dibs_status_name(got), dibs_status_name(want), reported.text);
}
#define EXPECT(call, want) expect_status(__LINE__, call, want)

static dibs_status count_up(dibs_store *s, const char *key, int64_t delta, dibs_table *table) {
  const dibs_counter_options o = {.size = sizeof o, .table = table, .wait_ms = LONG_MS};
  return dibs_counter_add(s, key, delta, &o, &reported);
}

static int64_t value_of(dibs_store *s, const char *key) {
  dibs_counter_value value = DIBS_COUNTER_VALUE_INIT;
  EXPECT(dibs_counter_read(s, key, NULL, &value, &reported), DIBS_OK);
  return value.value;
}

/* A transaction that may write: SQLite's waits here for its turn, and the servers' at the row. */
static dibs_store *begin(dibs_store *s, void *mine) {
  dibs_store *inside = NULL;
  dibs_error error; /* threads call this */
  if (is_sqlite()) engine->run(mine, "PRAGMA busy_timeout = 60000", NULL);
  engine->run(mine, is_sqlite() ? "BEGIN IMMEDIATE" : "BEGIN", NULL);
  if (engine->inside(s, mine, &inside, &error) != DIBS_OK) fail_msg("%s", error.text);
  return inside;
}

static void end(dibs_store *inside, void *mine, bool commits) {
  dibs_close(inside);
  engine->run(mine, commits ? "COMMIT" : "ROLLBACK", NULL);
}

static dibs_table *pages(void) {
  make_table("pages", "name %s PRIMARY KEY, hits %s", engine->text, engine->number);
  sql("INSERT INTO pages (name, hits) VALUES ('home', 10), ('new', NULL), ('top', 9223372036854775807)");
  return TABLE(.table = "pages", .key = "name", .count = "hits");
}

/* ---- With the transaction ---- */

static void R107_an_addition_inside_counts_with_the_commit(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = pages();
  void *mine = another_connection();
  EXPECT(count_up(s, "inside/a", 1, NULL), DIBS_OK);
  for (int commits = 0; commits < 2; commits++) {
    dibs_store *inside = begin(s, mine);
    EXPECT(count_up(inside, "inside/a", 10, NULL), DIBS_OK);
    EXPECT(count_up(inside, "inside/a", 5, NULL), DIBS_OK); /* a second time: it is no repeat */
    EXPECT(count_up(inside, "inside/b", -2, NULL), DIBS_OK);
    EXPECT(count_up(inside, "home", 3, t), DIBS_OK);
    EXPECT(count_up(inside, "new", 4, t), DIBS_OK);
    assert_int_equal(value_of(inside, "inside/a"), 16);
    assert_int_equal(value_of(s, "inside/a"), 1);
    end(inside, mine, commits != 0);
    assert_int_equal(value_of(s, "inside/a"), commits ? 16 : 1);
    assert_string_equal(cell("SELECT count(*) FROM dibs_counter WHERE name = 'inside/b'"), commits ? "1" : "0");
    assert_string_equal(cell("SELECT hits FROM pages WHERE name = 'home'"), commits ? "13" : "10");
  }
  assert_string_equal(cell("SELECT hits FROM pages WHERE name = 'new'"), "4");
}

static void refuse_changes_of_home(void) {
  if (strcmp(engine->scheme, "postgres") == 0) {
    sql("CREATE OR REPLACE FUNCTION refuse_home() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.name = 'home' THEN RAISE EXCEPTION 'closed' USING ERRCODE = 'U0815'; END IF; RETURN NEW; END $$");
    sql("CREATE TRIGGER refuses BEFORE UPDATE ON pages FOR EACH ROW EXECUTE FUNCTION refuse_home()");
  } else if (strcmp(engine->scheme, "mysql") == 0) {
    sql("CREATE TRIGGER refuses BEFORE UPDATE ON pages FOR EACH ROW"
        " IF NEW.name = 'home' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'closed'; END IF");
  } else {
    sql("CREATE TRIGGER refuses BEFORE UPDATE ON pages WHEN NEW.name = 'home' BEGIN SELECT RAISE(ABORT, 'closed'); "
        "END");
  }
}

static void R107_a_refused_addition_leaves_the_transaction_usable(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = pages();
  void *mine = another_connection();
  EXPECT(count_up(s, "inside/full", INT64_MAX, NULL), DIBS_OK);
  refuse_changes_of_home();
  dibs_store *inside = begin(s, mine);
  engine->run(mine, "INSERT INTO pages (name, hits) VALUES ('mine', 1)", NULL);
  EXPECT(count_up(inside, "inside/full", 1, NULL), DIBS_FULL);
  assert_message("does not fit");
  EXPECT(count_up(inside, "top", 1, t), DIBS_FULL);
  EXPECT(count_up(inside, "nobody", 1, t), DIBS_NOT_FOUND);
  assert_message("pages");
  EXPECT(count_up(inside, "home", 1, t), DIBS_FULL); /* by the trigger */
  EXPECT(count_up(inside, "a\nb", 1, NULL), DIBS_INVALID);
  EXPECT(count_up(inside, "mine", 6, t), DIBS_OK);
  EXPECT(count_up(inside, "inside/after", 6, NULL), DIBS_OK);
  end(inside, mine, true);
  assert_string_equal(cell("SELECT hits FROM pages WHERE name = 'mine'"), "7");
  assert_string_equal(cell("SELECT hits FROM pages WHERE name = 'home'"), "10");
  assert_int_equal(value_of(s, "inside/after"), 6);
  assert_true(value_of(s, "inside/full") == INT64_MAX);
}

static int note_row(const char *key, int64_t stored, void *user) {
  int64_t *sum = user;
  *sum += stored * (strcmp(key, "list/mine") == 0 ? 1000 : 1);
  return 0;
}

static void R107_a_list_has_what_the_transaction_added(void **state) {
  (void)state;
  dibs_store *s = store_open();
  void *mine = another_connection();
  int64_t sum = 0, outside = 0;
  EXPECT(count_up(s, "list/old", 3, NULL), DIBS_OK);
  dibs_store *inside = begin(s, mine);
  EXPECT(count_up(inside, "list/mine", 2, NULL), DIBS_OK);
  EXPECT(dibs_counter_list(inside, "list/", note_row, &sum, &reported), DIBS_OK);
  EXPECT(dibs_counter_list(s, "list/", note_row, &outside, &reported), DIBS_OK);
  end(inside, mine, true);
  assert_int_equal(sum, 2003);
  assert_int_equal(outside, 3);
}

static void R107_what_is_no_part_of_a_transaction_is_refused(void **state) {
  (void)state;
  dibs_store *s = store_open();
  void *mine = another_connection();
  const dibs_counter_options buffered = {.size = sizeof buffered, .level = DIBS_COUNT_BUFFERED};
  const dibs_counter_options shared = {.size = sizeof shared, .level = DIBS_COUNT_SHARED};
  const dibs_rate_options rate = {.size = sizeof rate, .limit = 1, .per_ms = 1000};
  dibs_store *inside = begin(s, mine);
  EXPECT(dibs_counter_add(inside, "refused", 1, &buffered, &reported), DIBS_UNSUPPORTED);
  assert_message("durable");
  EXPECT(dibs_counter_add(inside, "refused", 1, &shared, &reported), DIBS_UNSUPPORTED);
  assert_message("durable");
  EXPECT(dibs_counter_flush(inside, NULL, &reported), DIBS_UNSUPPORTED);
  assert_message("the store itself");
  EXPECT(dibs_rate(inside, "refused", &rate, NULL, &reported), DIBS_UNSUPPORTED);
  EXPECT(count_up(inside, "refused", 2, NULL), DIBS_OK);
  end(inside, mine, true);
  assert_int_equal(value_of(s, "refused"), 2);
}

/* ---- Beside others ---- */

struct worker {
  pthread_t thread;
  dibs_store *store;
  void *mine;
  dibs_status bad; /* a status that was not expected */
  int committed;
};

static void *commit_and_roll_back(void *arg) {
  struct worker *w = arg;
  const dibs_counter_options o = {.size = sizeof o};
  for (int i = 0; i < TRANSACTIONS; i++) {
    dibs_store *inside = begin(w->store, w->mine);
    dibs_status status = dibs_counter_add(inside, "crew/hot", 1, &o, NULL);
    if (status != DIBS_OK) w->bad = status;
    bool commits = i % 3 != 0 && status == DIBS_OK;
    end(inside, w->mine, commits);
    w->committed += commits;
    if (dibs_counter_add(w->store, "crew/hot", 1000, &o, NULL) != DIBS_OK) w->bad = DIBS_UNKNOWN;
  }
  return NULL;
}

static void transactions_and_batches_on_one_key_lose_nothing(void **state) {
  (void)state;
  dibs_store *s = store_open();
  struct worker crew[CREW] = {0};
  int64_t want = 0;
  EXPECT(count_up(s, "crew/hot", 0, NULL), DIBS_OK);
  for (int i = 0; i < CREW; i++) crew[i] = (struct worker){.store = s, .mine = another_connection()};
  for (int i = 0; i < CREW; i++)
    assert_int_equal(pthread_create(&crew[i].thread, NULL, commit_and_roll_back, &crew[i]), 0);
  for (int i = 0; i < CREW; i++) {
    pthread_join(crew[i].thread, NULL);
    assert_int_equal(crew[i].bad, DIBS_OK);
    want += crew[i].committed + INT64_C(1000) * TRANSACTIONS;
  }
  assert_int_equal(value_of(s, "crew/hot"), want);
}

struct later {
  dibs_store *store;
  const char *key;
  _Atomic int returned;
  dibs_status status;
};

static void *add_later(void *arg) {
  struct later *l = arg;
  const dibs_counter_options o = {.size = sizeof o, .wait_ms = LONG_MS};
  l->status = dibs_counter_add(l->store, l->key, 7, &o, NULL);
  atomic_store(&l->returned, 1);
  return NULL;
}

static void an_addition_of_the_store_waits_for_the_transaction(void **state) {
  (void)state;
  dibs_store *s = store_open();
  void *mine = another_connection();
  pthread_t thread;
  struct later later = {.store = s, .key = "waits"};
  EXPECT(count_up(s, "waits", 1, NULL), DIBS_OK);
  dibs_store *inside = begin(s, mine);
  EXPECT(count_up(inside, "waits", 20, NULL), DIBS_OK);
  assert_int_equal(pthread_create(&thread, NULL, add_later, &later), 0);
  nanosleep(&(struct timespec){.tv_nsec = 400000000}, NULL);
  assert_int_equal(atomic_load(&later.returned), 0);
  end(inside, mine, true);
  pthread_join(thread, NULL);
  assert_int_equal(later.status, DIBS_OK);
  assert_int_equal(value_of(s, "waits"), 28);
}

static void inside_the_users_lock_timeout_limits_the_wait(void **state) {
  (void)state;
  dibs_store *s = store_open();
  void *mine = another_connection(), *other = another_connection();
  if (is_sqlite()) skip(); /* one transaction writes there, so the row is never locked by another */
  EXPECT(count_up(s, "timeout", 1, NULL), DIBS_OK);
  engine->run(other, "BEGIN", NULL);
  engine->run(other, "UPDATE dibs_counter SET number = number + 1 WHERE name = 'timeout'", NULL);
  engine->run(
      mine, strcmp(engine->scheme, "mysql") == 0 ? "SET innodb_lock_wait_timeout = 1" : "SET lock_timeout = 300", NULL);
  dibs_store *inside = begin(s, mine);
  EXPECT(count_up(inside, "timeout/mine", 5, NULL), DIBS_OK);
  EXPECT(count_up(inside, "timeout", 100, NULL), DIBS_UNAVAILABLE);
  EXPECT(count_up(inside, "timeout/mine", 6, NULL), DIBS_OK); /* the transaction goes on */
  engine->run(other, "COMMIT", NULL);
  EXPECT(count_up(inside, "timeout", 100, NULL), DIBS_OK);
  end(inside, mine, true);
  assert_int_equal(value_of(s, "timeout"), 102);
  assert_int_equal(value_of(s, "timeout/mine"), 11);
}

struct deadlocked {
  dibs_store *inside;
  void *mine;
  const char *key;
  dibs_status status;
  bool explained;
};

/* The engine's victim rolls back at once: only that ends the wait of the other one. */
static void *add_in_a_circle(void *arg) {
  struct deadlocked *d = arg;
  const dibs_counter_options o = {.size = sizeof o};
  dibs_error error;
  d->status = dibs_counter_add(d->inside, d->key, 7, &o, &error);
  d->explained = strstr(error.text, "roll it back") != NULL;
  end(d->inside, d->mine, d->status == DIBS_OK);
  return NULL;
}

static void inside_a_deadlock_answers_CONFLICT(void **state) {
  (void)state;
  dibs_store *s = store_open();
  void *mine = another_connection(), *other = another_connection();
  if (is_sqlite()) skip(); /* one transaction writes there */
  EXPECT(count_up(s, "dead/a", 0, NULL), DIBS_OK);
  EXPECT(count_up(s, "dead/b", 0, NULL), DIBS_OK);
  dibs_store *first = begin(s, mine), *second = begin(s, other);
  EXPECT(count_up(first, "dead/a", 1, NULL), DIBS_OK);
  EXPECT(count_up(second, "dead/b", 1, NULL), DIBS_OK);
  struct deadlocked circle[] = {{.inside = first, .mine = mine, .key = "dead/b"},
                                {.inside = second, .mine = other, .key = "dead/a"}};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, add_in_a_circle, &circle[0]), 0);
  (void)add_in_a_circle(&circle[1]);
  pthread_join(thread, NULL);
  int victim = circle[0].status == DIBS_CONFLICT ? 0 : 1;
  assert_int_equal(circle[victim].status, DIBS_CONFLICT);
  assert_true(circle[victim].explained);
  assert_int_equal(circle[1 - victim].status, DIBS_OK);
  assert_int_equal(value_of(s, "dead/a") + value_of(s, "dead/b"), 8);
}

static void inside_a_change_since_the_snapshot_answers_CONFLICT(void **state) {
  (void)state;
  dibs_store *s = store_open(), *inside = NULL;
  void *mine = another_connection();
  if (strcmp(engine->scheme, "mysql") == 0) skip(); /* its updates see the latest row */
  EXPECT(count_up(s, "snapshot", 1, NULL), DIBS_OK);
  engine->run(mine, is_sqlite() ? "BEGIN" : "BEGIN ISOLATION LEVEL REPEATABLE READ", NULL);
  EXPECT(engine->inside(s, mine, &inside, &reported), DIBS_OK);
  assert_int_equal(value_of(inside, "snapshot"), 1);
  EXPECT(count_up(s, "snapshot", 10, NULL), DIBS_OK);
  EXPECT(count_up(inside, "snapshot", 100, NULL), DIBS_CONFLICT);
  assert_message("roll it back");
  end(inside, mine, false);
  inside = begin(s, mine);
  EXPECT(count_up(inside, "snapshot", 100, NULL), DIBS_OK);
  end(inside, mine, true);
  assert_int_equal(value_of(s, "snapshot"), 111);
}

int main(int argc, char *argv[]) {
  bed_begin(argc, argv);
  const struct CMUnitTest tests[] = {
      TEST(R107_an_addition_inside_counts_with_the_commit),
      TEST(R107_a_refused_addition_leaves_the_transaction_usable),
      TEST(R107_a_list_has_what_the_transaction_added),
      TEST(R107_what_is_no_part_of_a_transaction_is_refused),
      TEST(transactions_and_batches_on_one_key_lose_nothing),
      TEST(an_addition_of_the_store_waits_for_the_transaction),
      TEST(inside_the_users_lock_timeout_limits_the_wait),
      TEST(inside_a_deadlock_answers_CONFLICT),
      TEST(inside_a_change_since_the_snapshot_answers_CONFLICT),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

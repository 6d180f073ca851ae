/* SPDX-License-Identifier: MIT */
/* Rows of dibs_task that people insert and delete by statements of their own, in a kind by lane. */
#include "base/port.h"
#include "dibs/task.h"
#include "store/task.h"
#include "task_bed.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { KEYS = 130, OF_KEY = 3, MOST = 1000, INSERTED = 3000, PATIENCE_MS = 60000, MEET_MS = 1000 };

static dibs_store *store;
static char kind[60];

static const char *table(const char *name) {
  static char text[40];
  snprintf(text, sizeof text, "%s%s", engine == &engine_postgres ? "dibs." : "", name);
  return text;
}

static struct dibs__task_op *make(void) {
  struct dibs__task_op *op = task_make(store, NULL);
  op->kind = dibs__str_of(kind, strlen(kind));
  return op;
}

/* A claim for all lanes; of one owner. */
static struct dibs__task_op *claim_lanes(uint32_t most) {
  static struct dibs__task_lane lanes[4];
  static uint64_t nr;
  struct dibs__task_op *op = make();
  for (uint32_t i = 0; i < 4; i++) lanes[i] = (struct dibs__task_lane){.lane = i, .fence = {10 + i}};
  nr++;
  memcpy(op->id.b, &nr, sizeof nr);
  op->lanes = lanes;
  op->lane_count = op->of_lanes = 4;
  op->topic = dibs__str_of("topic", 5);
  op->most = most;
  return task_carry(op, DIBS__TASK_CLAIM, DIBS_OK);
}

static void begin(bool by_lane) {
  static unsigned nr;
  snprintf(kind, sizeof kind, "lanes-%d-%u-%lld", (int)getpid(), nr++, (long long)time(NULL));
  store = store_open();
  if (by_lane) assert_int_equal(claim_lanes(1)->got_count, 0);
}

static uint64_t insert(const char *serial) {
  sql("INSERT INTO %s (kind, serial) VALUES ('%s', '%s')", table("dibs_task"), kind, serial);
  return strtoull(cell("SELECT max(nr) FROM %s WHERE kind = '%s'", table("dibs_task"), kind), NULL, 10);
}

static uint64_t add_one(const char *serial) {
  struct dibs__task_op *op = make();
  struct dibs__task_new n = {.serial = dibs__str_of(serial, strlen(serial))};
  op->news = &n;
  op->count = 1;
  task_carry(op, DIBS__TASK_ADD, DIBS_OK);
  assert_int_equal(n.status, DIBS_OK);
  return n.nr;
}

/* Ends what was claimed; which of them first does not matter to tasks of other keys. */
static void end_claimed(const struct dibs__task_op *claimed, uint32_t verdict) {
  struct dibs__task_item items[MOST];
  struct dibs__task_op *op = make();
  for (uint32_t i = 0; i < claimed->got_count; i++)
    items[i] =
        (struct dibs__task_item){.nr = row_of(claimed, i)->nr, .fence = row_of(claimed, i)->fence, .verdict = verdict};
  op->items = items;
  op->count = claimed->got_count;
  task_carry(op, DIBS__TASK_END, DIBS_OK);
  for (uint32_t i = 0; i < op->count; i++) assert_int_equal(items[i].status, DIBS_OK);
}

/* ---- Cases ---- */

static void an_inserted_task_comes_between_those_that_were_added(void **state) {
  (void)state;
  begin(true);
  uint64_t nrs[4] = {add_one("key"), insert("key"), add_one("key"), insert("key")};
  struct dibs__task_op *op = claim_lanes(10);
  assert_int_equal(op->got_count, 4);
  for (uint32_t i = 0; i < 4; i++) assert_int_equal(row_of(op, i)->nr, nrs[i]);
  end_claimed(op, DIBS__TASK_END_DONE);
}

/* So it gets no slot, and what was added after it must not come before it. */
static void an_inserted_task_that_a_session_has_locked_holds_up_its_key_alone(void **state) {
  (void)state;
  if (on_engine("sqlite")) skip(); /* there a session that writes keeps all others waiting */
  begin(true);
  uint64_t first = insert("key");
  sql("BEGIN");
  sql("UPDATE %s SET priority = 1 WHERE nr = %" PRIu64, table("dibs_task"), first);
  uint64_t second = add_one("key"), other = add_one("other");
  struct dibs__task_op *op = claim_lanes(10);
  assert_int_equal(op->got_count, 1);
  assert_int_equal(row_of(op, 0)->nr, other);
  sql("COMMIT");
  op = claim_lanes(10);
  assert_int_equal(op->got_count, 2);
  assert_int_equal(row_of(op, 0)->nr, first);
  assert_int_equal(row_of(op, 1)->nr, second);
}

/* It looks for later claims of its key, and not at what is free after them, of which there may be very many. */
static void the_end_of_a_claim_does_not_wait_for_a_free_task_that_a_session_has_locked(void **state) {
  (void)state;
  if (on_engine("sqlite")) skip();
  begin(true);
  uint64_t nrs[3] = {add_one("key"), add_one("key"), add_one("key")};
  struct dibs__task_op *op = claim_lanes(2);
  assert_int_equal(op->got_count, 2);
  assert_int_equal(row_of(op, 1)->nr, nrs[1]);
  sql("BEGIN");
  sql("UPDATE %s SET priority = 1 WHERE nr = %" PRIu64, table("dibs_task"), nrs[2]);
  op->got_count = 1;
  end_claimed(op, DIBS__TASK_END_FAIL);
  sql("COMMIT");
  op = claim_lanes(10);
  assert_int_equal(op->got_count, 3);
  for (uint32_t i = 0; i < 3; i++) assert_int_equal(row_of(op, i)->nr, nrs[i]);
}

/* More of them than one claim gives slots to. */
static void many_inserted_tasks_are_claimed_in_their_order(void **state) {
  (void)state;
  begin(true);
  for (int i = 0; i < 3; i++)
    assert_int_equal(sql("INSERT INTO %s (kind, serial) WITH d(i) AS (SELECT 0 UNION ALL SELECT 1 UNION ALL SELECT 2"
                         " UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL"
                         " SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9) SELECT '%s', 'key' FROM d a, d b, d c",
                         table("dibs_task"), kind),
                     1000);
  uint64_t last = 0;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  for (uint32_t count = 0; count < INSERTED;) {
    struct dibs__task_op *op = claim_lanes(MOST);
    for (uint32_t i = 0; i < op->got_count; i++, count++) {
      assert_true(row_of(op, i)->nr > last);
      last = row_of(op, i)->nr;
    }
    if (op->got_count) end_claimed(op, DIBS__TASK_END_DONE);
    if (!dibs__tick_before(dibs__tick_now(), by)) fail_msg("%u of %d tasks were claimed", count, INSERTED);
  }
}

static void a_key_goes_on_when_people_delete_its_parked_task(void **state) {
  (void)state;
  begin(true);
  uint64_t first = add_one("key"), second = add_one("key");
  struct dibs__task_op *op = claim_lanes(1);
  assert_int_equal(row_of(op, 0)->nr, first);
  end_claimed(op, DIBS__TASK_END_DEAD);
  assert_int_equal(claim_lanes(10)->got_count, 0); /* the second is put aside */
  assert_int_equal(sql("DELETE FROM %s WHERE nr = %" PRIu64, table("dibs_task"), first), 1);
  store = store_open(); /* each connection looks for such keys at its first claim, and later from time to time */
  op = claim_lanes(10);
  assert_int_equal(op->got_count, 1);
  assert_int_equal(row_of(op, 0)->nr, second);
  end_claimed(op, DIBS__TASK_END_DONE);
}

/* More serial texts than one step turns into keys, and back. */
static void a_kind_with_many_admitted_keys_becomes_by_lane_and_is_it_no_more(void **state) {
  (void)state;
  char key[24];
  begin(false);
  for (uint32_t i = 0; i < KEYS * OF_KEY; i++) {
    snprintf(key, sizeof key, "key-%u", i % KEYS);
    insert(key);
  }
  struct dibs__task_op *op = make();
  op->most = MOST;
  assert_int_equal(task_carry(op, DIBS__TASK_CLAIM, DIBS_OK)->got_count, KEYS);
  end_claimed(op, DIBS__TASK_END_NEXT);
  op = claim_lanes(MOST);
  assert_int_equal(op->got_count, KEYS * OF_KEY);
  struct dibs__task_op *settings = make();
  settings->set = DIBS__TASK_SET_NO_LANES;
  task_carry(settings, DIBS__TASK_KIND, DIBS_OK);
  assert_string_equal(cell("SELECT count(*) FROM %s WHERE kind = '%s' AND slot IS NOT NULL", table("dibs_task"), kind),
                      "0");
  op = make();
  op->most = MOST;
  assert_int_equal(task_carry(op, DIBS__TASK_CLAIM, DIBS_OK)->got_count, KEYS);
  for (uint32_t i = 0; i < KEYS; i++) assert_int_equal(row_of(op, i)->fails, 0);
  end_claimed(op, DIBS__TASK_END_DONE);
  assert_int_equal(claim_lanes(MOST)->got_count, KEYS * (OF_KEY - 1));
}

static uint64_t change_one(enum dibs__task_change change, uint64_t nr) {
  struct dibs__task_op *op = make();
  op->filter.nr = nr;
  op->change = change;
  op->most = 1;
  return task_carry(op, DIBS__TASK_CHANGE, DIBS_OK)->changed;
}

/* A task is retried by a client of its own. */
struct retry {
  dibs_store *store;
  uint64_t nr, changed;
  dibs_status status;
  pthread_t thread;
};

static void *run_retry(void *arg) {
  struct retry *r = arg;
  dibs_task_filter filter = {.size = sizeof filter, .nr = r->nr};
  r->status = dibs_tasks_change(r->store, DIBS_TASK_RETRY, &filter, 0, 1, &r->changed, NULL, NULL);
  return NULL;
}

static void *run_claim(void *arg) {
  atomic_bool *ended = arg;
  (void)claim_lanes(1);
  *ended = true;
  return NULL;
}

/* The retry waits for a row of finished tasks, which the connection of the case has locked. */
static void await_retry(void) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  void *other = another_connection();
  const char *query = on_engine("postgres")
                          ? "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname ="
                            " current_database() AND query LIKE '%DELETE%dibs_task_done%'"
                          : "SELECT count(*) FROM information_schema.processlist WHERE id <> connection_id() AND db ="
                            " database() AND info LIKE '%DELETE%dibs_task_done%'";
  for (bool waits = false; !waits;) {
    char *count = NULL;
    engine->run(other, query, &count);
    waits = count && strcmp(count, "0") != 0;
    free(count);
    if (!dibs__tick_before(dibs__tick_now(), by)) fail_msg("the retry does not wait");
    dibs__nap_ms(5);
  }
}

/* Else a claim without lanes would take it, and no claim by lane ever. */
static void a_task_that_is_retried_while_its_kind_becomes_by_lane_is_by_lane(void **state) {
  (void)state;
  if (on_engine("sqlite")) skip(); /* there one of them is complete before the other */
  begin(false);
  struct retry r = {.nr = add_one("key"), .store = store_open()};
  uint64_t later = add_one("key");
  assert_int_equal(change_one(DIBS__TASK_CANCEL, r.nr), 1);
  sql("BEGIN");
  sql("UPDATE %s SET priority = 0 WHERE nr = %" PRIu64, table("dibs_task_done"), r.nr);
  assert_int_equal(pthread_create(&r.thread, NULL, run_retry, &r), 0);
  await_retry();
  pthread_t claimer;
  atomic_bool ended = false;
  assert_int_equal(pthread_create(&claimer, NULL, run_claim, &ended), 0);
  /* It may wait for the retry, or end before it. */
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), MEET_MS);
  while (!ended && dibs__tick_before(dibs__tick_now(), by)) dibs__nap_ms(5);
  sql("COMMIT");
  pthread_join(r.thread, NULL);
  pthread_join(claimer, NULL);
  assert_int_equal(r.status, DIBS_OK);
  assert_int_equal(r.changed, 1);
  struct dibs__task_op *op = make();
  op->most = 10;
  assert_int_equal(task_carry(op, DIBS__TASK_CLAIM, DIBS_OK)->got_count, 0);
  (void)claim_lanes(10);
  assert_string_equal(cell("SELECT count(*) FROM %s WHERE kind = '%s' AND state = 2 AND lane > 0 AND nr IN (%" PRIu64
                           ", %" PRIu64 ")",
                           table("dibs_task"), kind, r.nr, later),
                      "2");
}

int main(int argc, char *argv[]) {
  bed_begin(argc, argv);
  const struct CMUnitTest tests[] = {
      CASE(an_inserted_task_comes_between_those_that_were_added),
      CASE(an_inserted_task_that_a_session_has_locked_holds_up_its_key_alone),
      CASE(the_end_of_a_claim_does_not_wait_for_a_free_task_that_a_session_has_locked),
      CASE(many_inserted_tasks_are_claimed_in_their_order),
      CASE(a_key_goes_on_when_people_delete_its_parked_task),
      CASE(a_kind_with_many_admitted_keys_becomes_by_lane_and_is_it_no_more),
      CASE(a_task_that_is_retried_while_its_kind_becomes_by_lane_is_by_lane),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

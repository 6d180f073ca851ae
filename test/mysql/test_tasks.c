/* SPDX-License-Identifier: MIT */
/* Notifiers that wait for tasks on a real server: new tasks wake as many as there are tasks, soon, and a flood wakes
 * few of them. */
#include "bed.h"

#include "store/family.h"
#include "store/task.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FLEET = DIBS__MYSQL_SLOTS + 4, SHORT_MS = 60, FLOOD = 2000 };
static const char kind[] = "mail", other_kind[] = "page";

/* The notifier of a process. */
struct process {
  struct bed bed;
  void *notifier;
};

static struct bed sender;
static struct dibs__sql_wire *wire;
static struct process fleet[FLEET];

static dibs__str text(const char *of) {
  return dibs__str_of(of, strlen(of));
}

static void begin_process(struct process *p) {
  uint64_t session;
  dibs__random(&session, sizeof session);
  bed_make(&p->bed, bed_uri);
  dibs__status status = dibs__mysql_notifier_open(
      &p->bed.store, session >> 1, dibs__tick_add_ms(dibs__tick_now(), LONG_MS), &p->notifier, &p->bed.reported);
  if (status != DIBS_OK) print_error("%s\n", p->bed.reported.text);
  assert_int_equal(status, DIBS_OK);
}

static void end_process(struct process *p) {
  if (!p->notifier) return;
  dibs__mysql_notifier_close(p->notifier);
  bed_drop(&p->bed);
  p->notifier = NULL;
}

static int begin(void **state) {
  (void)state;
  bed_make(&sender, bed_uri);
  wire = bed_connect(&sender);
  run(wire, "DROP TABLE IF EXISTS dibs_mail");
  run(wire, dibs__mysql_engine.schema(0, 0));
  /* A wake-up that was lost would be found when the sleep ends, which is longer than a test waits. */
  dibs__mysql_nap_ms = 10 * LONG_MS;
  return 0;
}

static int end(void **state) {
  (void)state;
  for (size_t i = 0; i < FLEET; i++) end_process(&fleet[i]);
  dibs__mysql_nap_ms = 30000;
  dibs__mysql_close(wire);
  bed_drop(&sender);
  return 0;
}

/* How many events for tasks arrive: waits up to `ms` for the first. */
static size_t receive(struct process *p, int64_t ms) {
  struct dibs__event events[8];
  size_t count, tasks = 0;
  assert_int_equal(
      dibs__mysql_notifier_wait(p->notifier, events, COUNT_OF(events), &count, dibs__tick_add_ms(dibs__tick_now(), ms)),
      DIBS_OK);
  for (size_t i = 0; i < count; i++) tasks += events[i].what == DIBS__EV_TASKS;
  return tasks;
}

/* A KILL before the server has begun the sleep would have no effect. */
static void await_sleep(const struct process *p) {
  const struct dibs__mysql_location *location = p->bed.store.location;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), LONG_MS);
  char query[160];
  snprintf(query, sizeof query, "SELECT COUNT(*) FROM information_schema.processlist WHERE id = %lld AND state = '%s'",
           (long long)atomic_load(&location->tasks->notifier), "User lock");
  do {
    assert_true(dibs__tick_before(dibs__tick_now(), by));
    wire->by = by;
    run(wire, query);
  } while (number(wire, 0, 0, 0) == 0);
}

/* Its worker has claimed, and found less than it wanted; then it waits.  true: it will be woken. */
static bool waits(struct process *p, const char *of, int64_t ms) {
  (void)dibs__mysql_expect_tasks(&p->bed.store, text(of));
  if (receive(p, ms) == 0) return false;
  await_sleep(p);
  return true;
}

/* After the COMMIT of another process. */
static void add(const char *of, uint32_t count) {
  struct dibs__task_op op = {
      .op = {.family = DIBS__FAM_TASK, .verb = DIBS__TASK_ADD}, .kind = text(of), .count = count};
  struct dibs__op *ops[] = {&op.op};
  wire->by = dibs__tick_add_ms(dibs__tick_now(), LONG_MS);
  if (dibs__mysql_notify_tasks(&sender.store, wire, ops, 1) != DIBS__SQL_OK) fail_msg("%s", wire->message);
}

/* How many of the first processes are woken: waits for as many as are expected, and a little for more. */
static size_t woken(size_t count, size_t expected) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), LONG_MS);
  size_t found = 0;
  bool last = false;
  while (!last) {
    last = found >= expected || !dibs__tick_before(dibs__tick_now(), by);
    for (size_t i = 0; i < count; i++) found += receive(&fleet[i], SHORT_MS) > 0;
  }
  return found;
}
static void expect_woken(size_t count, size_t expected) {
  assert_int_equal(woken(count, expected), expected);
}

/* ---- The cases ---- */

static void a_task_wakes_a_process_that_waits_for_its_kind(void **state) {
  (void)state;
  struct process *p = &fleet[0];
  begin_process(p);
  assert_int_equal(receive(p, SHORT_MS), 0);
  add(kind, 1);
  assert_int_equal(receive(p, SHORT_MS), 0); /* it waits for none */
  assert_true(waits(p, kind, LONG_MS));
  add(other_kind, 1);
  assert_int_equal(receive(p, SHORT_MS), 0);
  for (int i = 0; i < 20; i++) {
    add(kind, 1);
    assert_int_equal(receive(p, LONG_MS), 1);
    assert_true(waits(p, kind, LONG_MS));
  }
}

static void a_busy_process_is_not_woken(void **state) {
  (void)state;
  struct process *p = &fleet[0];
  begin_process(p);
  assert_true(waits(p, kind, LONG_MS));
  add(kind, 1);
  assert_int_equal(receive(p, LONG_MS), 1);
  /* It claims as many as it wants, and does not wait for more. */
  for (int i = 0; i < 5; i++) {
    add(kind, 1);
    assert_int_equal(receive(p, SHORT_MS), 0);
  }
}

static void other_prefixes_are_other_stores(void **state) {
  (void)state;
  struct process *p = &fleet[0];
  begin_process(p);
  snprintf(p->bed.store.options.prefix, sizeof p->bed.store.options.prefix, "another_");
  assert_true(waits(p, kind, LONG_MS));
  add(kind, 1);
  assert_int_equal(receive(p, SHORT_MS), 0);
}

static void as_many_processes_are_woken_as_there_are_tasks(void **state) {
  (void)state;
  size_t armed = 0;
  for (size_t i = 0; i < FLEET; i++) {
    begin_process(&fleet[i]);
    armed += waits(&fleet[i], kind, i < DIBS__MYSQL_SLOTS ? LONG_MS : SHORT_MS);
  }
  assert_int_equal(armed, DIBS__MYSQL_SLOTS); /* the others poll */
  add(kind, 3);
  expect_woken(FLEET, 3);
  add(kind, 1000);
  expect_woken(FLEET, DIBS__MYSQL_SLOTS - 3);
  add(kind, 1000);
  expect_woken(FLEET, 0);
}

static void a_process_that_ends_leaves_its_lock_to_others(void **state) {
  (void)state;
  for (size_t i = 0; i < DIBS__MYSQL_SLOTS; i++) {
    begin_process(&fleet[i]);
    assert_true(waits(&fleet[i], kind, LONG_MS));
  }
  end_process(&fleet[0]);
  begin_process(&fleet[0]);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), 3 * LONG_MS); /* it looks for a free one again and again */
  while (!waits(&fleet[0], kind, SHORT_MS)) assert_true(dibs__tick_before(dibs__tick_now(), by));
  add(kind, DIBS__MYSQL_SLOTS);
  expect_woken(DIBS__MYSQL_SLOTS, DIBS__MYSQL_SLOTS);
}

/* ---- A flood ---- */

static _Atomic bool flood_over;

static void flooding_thread(void *arg) {
  (void)arg;
  for (int i = 0; i < FLOOD; i++) add(kind, 1);
  atomic_store(&flood_over, true);
}

/* A process whose worker always wants more is woken once in the pause, however many tasks are added. */
static void a_flood_wakes_rarely(void **state) {
  (void)state;
  struct process *p = &fleet[0];
  size_t events = 0;
  begin_process(p);
  assert_true(waits(p, kind, LONG_MS));
  atomic_store(&flood_over, false);
  dibs__tick began = dibs__tick_now();
  struct dibs__thread *thread = dibs__thread_start("flood", flooding_thread, NULL);
  while (!atomic_load(&flood_over)) {
    (void)dibs__mysql_expect_tasks(&p->bed.store, text(kind));
    events += receive(p, SHORT_MS);
  }
  dibs__thread_join(thread);
  int64_t ms = dibs__tick_left_ms(began, dibs__tick_now());
  print_message("%d tasks in %lld ms: %zu events\n", FLOOD, (long long)ms, events);
  assert_true(events > 0);
  /* Two for each wake-up: one when it is woken, and one when it is ready for the next. */
  assert_true((int64_t)events <= 2 * (ms / DIBS__MYSQL_TASKS_PAUSE_MS + 2));
}

int main(int argc, char **argv) {
  if (argc < 2) return 77;
  bed_uri = argv[1];
#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)
  const struct CMUnitTest tests[] = {
      CASE(a_task_wakes_a_process_that_waits_for_its_kind),
      CASE(a_busy_process_is_not_woken),
      CASE(other_prefixes_are_other_stores),
      CASE(as_many_processes_are_woken_as_there_are_tasks),
      CASE(a_process_that_ends_leaves_its_lock_to_others),
      CASE(a_flood_wakes_rarely),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: MIT */
/*
 * Tasks on a store that often does not answer: each request may fail before it was done, or after, or with its session.
 * Nothing is added twice, claimed for nobody, or done twice; every task is done.
 */
#include "task/bed.h"

#include <stdatomic.h>

enum { ADDED = 120 };

static atomic_uint done_of[ADDED + 1];

static void count_done(const dibs_task *task) {
  long nr = strtol(task->payload, NULL, 10);
  assert_in_range(nr, 1, ADDED);
  atomic_fetch_add(&done_of[nr], 1);
}

static dibs_verdict work(dibs_task *task, dibs_work_reply *reply, void *user) {
  (void)reply;
  (void)user;
  count_done(task);
  return DIBS_END_DONE;
}

static void open_faulty(const char *how, unsigned seed) {
  char faulty[300];
  snprintf(faulty, sizeof faulty, "fault+%s?fault.rate=250&fault.how=%s&fault.seed=%u", uri, how, seed);
  EXPECT(dibs_open(faulty, NULL, &store, &error), DIBS_OK);
  memset(done_of, 0, sizeof done_of);
}

static uint64_t states_of[DIBS_TASK_STATES];

static int keep_states(const dibs_task_kind *k, void *user) {
  (void)user;
  memcpy(states_of, k->states, sizeof states_of);
  return 0;
}

/* All were done, once, and there are no others. */
static void expect_done_once(void) {
  for (int i = 1; i <= ADDED; i++) assert_int_equal(done_of[i], 1);
  UNTIL(dibs_tasks_count(store, kind, keep_states, NULL, &error) == DIBS_OK);
  for (int s = 0; s < DIBS_TASK_STATES; s++) assert_int_equal(states_of[s], s == DIBS_TASK_DONE ? ADDED : 0);
}

static void add_all(void) {
  for (int i = 1; i <= ADDED; i++) {
    char payload[20];
    snprintf(payload, sizeof payload, "%d", i);
    /* 5 s are many repetitions: the call itself repeats. */
    EXPECT(dibs_task_add(store, kind, payload, strlen(payload), NULL, NULL, &error), DIBS_OK);
  }
}

static void do_by_hand(void) {
  for (size_t done = 0; done < ADDED;) {
    dibs_task *tasks[7];
    size_t count;
    dibs_claim_options o = {.size = sizeof o, .most = 7, .wait_ms = LONG_MS};
    EXPECT(dibs_tasks_claim(store, kind, &o, tasks, &count, &error), DIBS_OK);
    for (size_t i = 0; i < count; i++) {
      count_done(tasks[i]);
      assert_int_equal(tasks[i]->fence.value, 1);
      EXPECT(dibs_task_done(tasks[i], NULL, &error), DIBS_OK);
      dibs_task_free(tasks[i]);
    }
    done += count;
  }
}

static void do_by_worker(void) {
  dibs_worker *worker;
  dibs_worker_options o = {.size = sizeof o, .threads = 3, .prefetch = 5, .poll_ms = 50, .work = work};
  EXPECT(dibs_worker_start(store, kind, &o, &worker, &error), DIBS_OK);
  dibs_worker_counts c = DIBS_WORKER_COUNTS_INIT;
  UNTIL(dibs_worker_count(worker, &c, &error) == DIBS_OK && c.done == ADDED);
  EXPECT(dibs_worker_stop(worker, LONG_MS, &error), DIBS_OK);
  EXPECT(dibs_worker_count(worker, &c, &error), DIBS_OK);
  assert_int_equal(c.claimed, ADDED);
  assert_int_equal(c.refused + c.lost + c.unsent, 0);
  dibs_worker_free(worker);
}

static const char *const hows[] = {"unavailable", "unknown-before", "unknown-after", "dead", "dead-after"};

static void each_way(void (*do_all)(void)) {
  for (unsigned i = 0; i < COUNT_OF(hows); i++) {
    snprintf(kind, sizeof kind, "faults-%d-%u-%s", (int)getpid(), do_all == do_by_hand, hows[i]);
    open_faulty(hows[i], i + 1);
    add_all();
    do_all();
    expect_done_once();
    dibs_close(store);
  }
}

static void by_hand_each_task_is_done_once(void **state) {
  (void)state;
  each_way(do_by_hand);
}

static void by_a_worker_each_task_is_done_once(void **state) {
  (void)state;
  each_way(do_by_worker);
}

int main(int argc, char **argv) {
  begin_bed(argc, argv);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(by_hand_each_task_is_done_once),
      cmocka_unit_test(by_a_worker_each_task_is_done_once),
  };
  return end_bed(cmocka_run_group_tests(tests, NULL, NULL));
}

/* SPDX-License-Identifier: MIT */
/*
 * Tasks on a store that often does not answer: each request may fail before it was done, or after, or with its session.
 * Nothing is added twice, claimed for nobody, or done twice; every task is done.
 */
#include "task/bed.h"

#include <pthread.h>
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

static bool kept; /* finished tasks are kept */

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
  if (!kept) states_of[DIBS_TASK_DONE] = 0; /* those that are not swept yet */
  for (int s = 0; s < DIBS_TASK_STATES; s++)
    if (states_of[s] != (kept && s == DIBS_TASK_DONE ? ADDED : 0))
      fail_msg("%s: %u tasks are in the state %d", kind, (unsigned)states_of[s], s);
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
      assert_int_equal(tasks[i]->attempt, 1);
      /* Where finished tasks are not kept, nobody knows whose end it was after an answer was lost. */
      dibs_status status = dibs_task_done(tasks[i], NULL, &error);
      if (status != DIBS_UNKNOWN || kept) assert_int_equal(status, DIBS_OK);
      if (status == DIBS_UNKNOWN) assert_non_null(strstr(error.text, "there is no such task"));
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
  UNTIL(dibs_worker_count(worker, &c, &error) == DIBS_OK && c.done + c.unsent == ADDED);
  EXPECT(dibs_worker_stop(worker, LONG_MS, &error), DIBS_OK);
  EXPECT(dibs_worker_count(worker, &c, &error), DIBS_OK);
  assert_int_equal(c.claimed, ADDED);
  assert_int_equal(c.refused + c.lost, 0);
  if (kept) assert_int_equal(c.unsent, 0);
  dibs_worker_free(worker);
}

static const char *const hows[] = {"unavailable", "unknown-before", "unknown-after", "dead", "dead-after"};

static void each_way(void (*do_all)(void), bool keep) {
  dibs_kind_options o = {.size = sizeof o, .set = DIBS_KIND_KEEP, .keep_ms = 0};
  kept = keep;
  for (unsigned i = 0; i < COUNT_OF(hows); i++) {
    snprintf(kind, sizeof kind, "faults-%d-%u-%d-%s", (int)getpid(), do_all == do_by_hand, keep, hows[i]);
    open_faulty(hows[i], i + 1);
    if (!keep) UNTIL(dibs_task_kind_set(store, kind, &o, &error) == DIBS_OK);
    add_all();
    do_all();
    expect_done_once();
    dibs_close(store);
  }
}

/* ---- By lane: a claim whose answer was lost may have taken earlier tasks than the next one ---- */

enum { KEYS = 8 };
static atomic_uint last_of[KEYS], disordered;

/* The tasks of a key are numbered. */
static dibs_verdict work_in_order(dibs_task *task, dibs_work_reply *reply, void *user) {
  unsigned key = (unsigned)strtoul(task->serial + 1, NULL, 10), nr = (unsigned)strtoul(task->payload, NULL, 10);
  (void)reply;
  (void)user;
  if (nr > last_of[key] + 1) disordered++;
  nap_ms(1);
  if (nr > last_of[key]) last_of[key] = nr;
  return DIBS_END_DONE;
}

static void add_numbers_of_keys(void) {
  for (int i = 0; i < ADDED; i++) {
    char payload[20], serial[20];
    snprintf(payload, sizeof payload, "%d", i / KEYS + 1);
    snprintf(serial, sizeof serial, "k%d", i % KEYS);
    dibs_task_options o = {.size = sizeof o, .serial = serial, .tries = 1000};
    EXPECT(dibs_task_add(store, kind, payload, strlen(payload), &o, NULL, &error), DIBS_OK);
  }
}

static void by_lane_keys_keep_their_order(void **state) {
  (void)state;
  for (unsigned i = 0; i < COUNT_OF(hows); i++) {
    char faulty[300];
    snprintf(kind, sizeof kind, "faults-%d-lane-%s", (int)getpid(), hows[i]);
    snprintf(faulty, sizeof faulty, "fault+%s?fault.rate=80&fault.how=%s&fault.seed=%u", uri, hows[i], i + 1);
    EXPECT(dibs_open(faulty, NULL, &store, &error), DIBS_OK);
    memset(last_of, 0, sizeof last_of);
    disordered = 0;
    add_numbers_of_keys();
    dibs_worker *worker = NULL;
    dibs_worker_options o = {.size = sizeof o,
                             .threads = 3,
                             .prefetch = 5,
                             .poll_ms = 50,
                             .work = work_in_order,
                             .topic = kind,
                             .lanes = 4,
                             .lane_ttl_ms = 500};
    UNTIL(dibs_worker_start(store, kind, &o, &worker, &error) == DIBS_OK);
    int64_t by = now_ms() + 6 * LONG_MS; /* after an unknown answer the lanes are given back and acquired again */
    do UNTIL(dibs_tasks_count(store, kind, keep_states, NULL, &error) == DIBS_OK);
    while (states_of[DIBS_TASK_DONE] < ADDED && now_ms() < by);
    EXPECT(dibs_worker_stop(worker, LONG_MS, &error), DIBS_OK);
    dibs_worker_free(worker);
    assert_int_equal(states_of[DIBS_TASK_DONE], ADDED);
    assert_int_equal(disordered, 0);
    for (int key = 0; key < KEYS; key++) assert_int_equal(last_of[key], ADDED / KEYS);
    dibs_close(store);
  }
}

static void by_hand_each_task_is_done_once(void **state) {
  (void)state;
  each_way(do_by_hand, true);
}

static void by_a_worker_each_task_is_done_once(void **state) {
  (void)state;
  each_way(do_by_worker, true);
}

static void by_hand_each_task_that_is_not_kept_is_done_once(void **state) {
  (void)state;
  each_way(do_by_hand, false);
}

static void by_a_worker_each_task_that_is_not_kept_is_done_once(void **state) {
  (void)state;
  each_way(do_by_worker, false);
}

static atomic_bool all_added;

static void *do_second_steps(void *arg) {
  (void)arg;
  const char *phases[] = {"second"};
  dibs_claim_options o = {.size = sizeof o, .phases = phases, .phase_count = 1, .wait_ms = 20};
  dibs_store *sound;
  dibs_task *task;
  size_t count;
  if (dibs_open(uri, NULL, &sound, NULL) != DIBS_OK) return NULL;
  while (!all_added) {
    if (dibs_tasks_claim(sound, kind, &o, &task, &count, NULL) != DIBS_OK) continue;
    dibs_status ignored = dibs_task_done(task, NULL, NULL);
    (void)ignored;
    dibs_task_free(task);
  }
  dibs_close(sound);
  return NULL;
}

/* The answer of a first step is lost; before the repetition another client does the second one. */
static void a_verdict_that_took_effect_is_not_called_refused(void **state) {
  (void)state;
  const char *phases[] = {"first"};
  dibs_task_options added = {.size = sizeof added, .phase = "first"};
  dibs_claim_options o = {.size = sizeof o, .phases = phases, .phase_count = 1, .wait_ms = LONG_MS};
  pthread_t other;
  snprintf(kind, sizeof kind, "faults-%d-second", (int)getpid());
  open_faulty("unknown-after", 7);
  all_added = false;
  assert_int_equal(pthread_create(&other, NULL, do_second_steps, NULL), 0);
  for (int i = 0; i < ADDED; i++) {
    dibs_task *task;
    size_t count;
    EXPECT(dibs_task_add(store, kind, "x", 1, &added, NULL, &error), DIBS_OK);
    EXPECT(dibs_tasks_claim(store, kind, &o, &task, &count, &error), DIBS_OK);
    dibs_status status = dibs_task_unlock(task, "second", &error);
    if (status != DIBS_UNKNOWN) assert_int_equal(status, DIBS_OK);
    dibs_task_free(task);
  }
  all_added = true;
  pthread_join(other, NULL);
  dibs_close(store);
}

static uint64_t cancelled(void) {
  UNTIL(dibs_tasks_count(store, kind, keep_states, NULL, &error) == DIBS_OK);
  return states_of[DIBS_TASK_CANCELLED];
}

/* A request that is repeated changes the next tasks. */
static void a_change_never_exceeds_its_limit(void **state) {
  (void)state;
  enum { ROUNDS = 36, MOST = 3 };
  for (unsigned i = 0; i < COUNT_OF(hows); i++) {
    dibs_task_filter filter = {.size = sizeof filter, .kind = kind};
    uint64_t before = 0, changed, now;
    int lost = 0;
    snprintf(kind, sizeof kind, "faults-%d-change-%s", (int)getpid(), hows[i]);
    open_faulty(hows[i], i + 1);
    add_all();
    for (int round = 0; round < ROUNDS; round++, before = now) {
      dibs_status status = dibs_tasks_change(store, DIBS_TASK_CANCEL, &filter, 0, MOST, &changed, NULL, &error);
      bool told = strstr(error.text, "up to 3 more tasks") != NULL;
      now = cancelled();
      assert_in_range(now - before, 0, MOST);
      if (status == DIBS_OK) assert_int_equal(now - before, changed);
      if (status == DIBS_OK) continue;
      assert_int_equal(status, DIBS_UNKNOWN);
      assert_true(told);
      lost++;
    }
    bool loses = strstr(hows[i], "unknown") || strstr(hows[i], "after");
    if (loses) assert_true(lost > 0);
    EXPECT(dibs_tasks_change(store, DIBS_TASK_CANCEL, &filter, 0, 0, &changed, NULL, &error), DIBS_OK);
    assert_int_equal(cancelled(), ADDED);
    assert_in_range(changed, 0, ADDED - before);
    dibs_close(store);
  }
}

/* The store fails from now on: the function sees to that. */
static dibs_verdict work_until_it_fails(dibs_task *task, dibs_work_reply *reply, void *user) {
  dibs_error ignored;
  (void)task;
  (void)reply;
  while (dibs_tasks_count(store, kind, keep_states, NULL, &ignored) == DIBS_OK) continue;
  atomic_store((atomic_bool *)user, true);
  return DIBS_END_DONE;
}

static void freeing_a_worker_whose_store_is_away_takes_seconds(void **state) {
  (void)state;
  enum { TIMEOUT_MS = 60000, MOST_MS = 30000, CALLS = 60 };
  char faulty[300];
  atomic_bool away = false;
  snprintf(kind, sizeof kind, "faults-%d-away", (int)getpid());
  snprintf(faulty, sizeof faulty, "fault+%s?fault.nth=%d&fault.forever=1", uri, CALLS);
  EXPECT(dibs_open(faulty, NULL, &store, &error), DIBS_OK);
  EXPECT(dibs_task_add(store, kind, "1", 1, NULL, NULL, &error), DIBS_OK);
  dibs_worker *worker;
  dibs_worker_options o = {
      .size = sizeof o, .timeout_ms = TIMEOUT_MS, .poll_ms = 60000, .work = work_until_it_fails, .user = &away};
  EXPECT(dibs_worker_start(store, kind, &o, &worker, &error), DIBS_OK);
  UNTIL(away);
  /* It is tried as long as the claim lasts, and says what is wrong. */
  EXPECT(dibs_worker_stop(worker, 1000, &error), DIBS_TIMEOUT);
  dibs_worker_trouble(worker, &error);
  assert_int_equal(error.status, DIBS_UNAVAILABLE);
  int64_t began = now_ms();
  dibs_worker_free(worker);
  assert_in_range(now_ms() - began, 0, MOST_MS);
  dibs_close(store);
  assert_in_range(now_ms() - began, 0, MOST_MS);
}

int main(int argc, char **argv) {
  begin_bed(argc, argv);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(by_hand_each_task_is_done_once),
      cmocka_unit_test(by_a_worker_each_task_is_done_once),
      cmocka_unit_test(by_hand_each_task_that_is_not_kept_is_done_once),
      cmocka_unit_test(by_a_worker_each_task_that_is_not_kept_is_done_once),
      cmocka_unit_test(by_lane_keys_keep_their_order),
      cmocka_unit_test(a_verdict_that_took_effect_is_not_called_refused),
      cmocka_unit_test(a_change_never_exceeds_its_limit),
      cmocka_unit_test(freeing_a_worker_whose_store_is_away_takes_seconds),
  };
  return end_bed(cmocka_run_group_tests(tests, NULL, NULL));
}

/* SPDX-License-Identifier: MIT */
/* Tasks by lane through dibs/task.h: workers with a topic, and claims with lanes. */
#include "task/bed.h"

#include "dibs/admin.h"

#include <pthread.h>
#include <stdatomic.h>

enum { KEYS = 12, OF_KEY = 40, LANE_TTL_MS = 2000 };

static dibs_worker *workers[2];

/* What the function under test does, and what it has seen. */
static struct {
  atomic_uint calls, inside, most_inside, of_key[KEYS], twice;
  atomic_bool go;    /* tasks with the payload "block" go on */
  atomic_bool stays; /* they do not end before, also when their claim is over */
  atomic_int lost;   /* tasks that saw that their claim was over */
  pthread_mutex_t lock;
  char order[8192];                        /* "key:payload.attempt ", in the order in which they were begun */
  unsigned next[KEYS], done[KEYS][OF_KEY]; /* of numbered tasks */
  unsigned wrong;                          /* numbered tasks that came before their turn */
} seen;

static void note_begin(const dibs_task *task) {
  unsigned inside = atomic_fetch_add(&seen.inside, 1) + 1, most = seen.most_inside;
  while (inside > most && !atomic_compare_exchange_weak(&seen.most_inside, &most, inside)) continue;
  pthread_mutex_lock(&seen.lock);
  size_t at = strlen(seen.order);
  snprintf(seen.order + at, sizeof seen.order - at, "%s:%s.%u ", task->serial, task->payload, task->attempt);
  pthread_mutex_unlock(&seen.lock);
  atomic_fetch_add(&seen.calls, 1);
}

static void block(const dibs_task *task) {
  int64_t by = now_ms() + LONG_MS;
  bool lost = false;
  for (; !seen.go && now_ms() < by && (seen.stays || !lost); nap_ms(1)) {
    if (lost || dibs_task_left_ms(task) > 0) continue;
    lost = true;
    seen.lost++;
  }
}

/* "#n" with the serial text "kN": in order, one at a time. */
static dibs_verdict count_number(const dibs_task *task) {
  unsigned key = (unsigned)strtoul(task->serial + 1, NULL, 10), number = (unsigned)strtoul(task->payload + 1, NULL, 10);
  if (atomic_fetch_add(&seen.of_key[key], 1) != 0) seen.twice++;
  pthread_mutex_lock(&seen.lock);
  seen.wrong += number != seen.next[key];
  seen.next[key] = number + 1;
  seen.done[key][number]++;
  pthread_mutex_unlock(&seen.lock);
  if (number % 8 == 0) nap_ms(1);
  atomic_fetch_sub(&seen.of_key[key], 1);
  return DIBS_END_DONE;
}

static dibs_verdict decide(dibs_task *task, dibs_work_reply *reply) {
  reply->delay_ms = 0;
  if (task->payload[0] == '#') return count_number(task);
  if (strncmp(task->payload, "fail", 4) == 0 && task->attempt == 1) return DIBS_END_FAIL;
  if (strncmp(task->payload, "next", 4) == 0 && task->attempt == 1) return DIBS_END_NEXT;
  if (strncmp(task->payload, "wait", 4) == 0 && task->attempt == 1) return DIBS_END_WAIT;
  if (strncmp(task->payload, "back", 4) == 0 && atomic_load(&seen.calls) < 4) return DIBS_END_RELEASE;
  if (strncmp(task->payload, "dead", 4) == 0) return DIBS_END_DEAD;
  if (strncmp(task->payload, "itself", 6) == 0) assert_int_equal(dibs_task_done(task, "by itself", NULL), DIBS_OK);
  return DIBS_END_DONE;
}

static dibs_verdict work(dibs_task *task, dibs_work_reply *reply, void *user) {
  (void)user;
  note_begin(task);
  assert_non_null(task->lane);
  assert_int_equal(dibs_lane_of(task->serial, strlen(task->serial), dibs_lane_lanes(task->lane)),
                   dibs_lane_number(task->lane));
  if (strncmp(task->payload, "block", 5) == 0) block(task);
  dibs_verdict verdict = decide(task, reply);
  atomic_fetch_sub(&seen.inside, 1);
  return verdict;
}

static int open_lanes_bed(void **state) {
  memset(&seen, 0, sizeof seen);
  pthread_mutex_init(&seen.lock, NULL);
  return open_bed(state);
}

static int close_lanes_bed(void **state) {
  seen.go = true;
  for (size_t i = 0; i < COUNT_OF(workers); i++) {
    dibs_worker_free(workers[i]);
    workers[i] = NULL;
  }
  return close_bed(state);
}

static void start(size_t nth, dibs_worker_options o) {
  o.size = sizeof o;
  o.work = work;
  o.topic = kind;
  if (o.lanes == 0) o.lanes = 8;
  o.lane_ttl_ms = LANE_TTL_MS;
  EXPECT(dibs_worker_start(store, kind, &o, &workers[nth], &error), DIBS_OK);
}

static dibs_worker_counts counted(size_t nth) {
  dibs_worker_counts counts = DIBS_WORKER_COUNTS_INIT;
  EXPECT(dibs_worker_count(workers[nth], &counts, &error), DIBS_OK);
  return counts;
}

static uint64_t add_keyed(const char *serial, const char *payload) {
  dibs_task_options o = {.size = sizeof o, .serial = serial};
  uint64_t nr = 0;
  EXPECT(dibs_task_add(store, kind, payload, strlen(payload), &o, &nr, &error), DIBS_OK);
  return nr;
}

static void add_numbered(unsigned from, unsigned to) {
  static dibs_task_new tasks[KEYS];
  static char serials[KEYS][8], payloads[8];
  for (unsigned number = from; number < to; number++) {
    snprintf(payloads, sizeof payloads, "#%u", number);
    for (unsigned key = 0; key < KEYS; key++) {
      snprintf(serials[key], sizeof serials[key], "k%u", key);
      tasks[key] = (dibs_task_new){
          .size = sizeof tasks[key], .payload = payloads, .length = strlen(payloads), .serial = serials[key]};
    }
    EXPECT(dibs_task_add_many(store, kind, tasks, KEYS, 0, &error), DIBS_OK);
  }
}

static dibs_task_kind of_kind;
static char its_topic[DIBS_TOPIC_MAX + 1];

static int take_kind(const dibs_task_kind *got, void *user) {
  (void)user;
  of_kind = *got;
  snprintf(its_topic, sizeof its_topic, "%s", got->topic);
  return 0;
}

static uint64_t in_state(dibs_task_state state) {
  memset(&of_kind, 0, sizeof of_kind);
  EXPECT(dibs_tasks_count(store, kind, take_kind, NULL, &error), DIBS_OK);
  return of_kind.states[state];
}

static void change(dibs_task_change how, uint64_t nr, uint64_t want) {
  dibs_task_filter filter = {.size = sizeof filter, .nr = nr};
  uint64_t changed = 0;
  EXPECT(dibs_tasks_change(store, how, &filter, 0, 0, &changed, NULL, &error), DIBS_OK);
  assert_int_equal(changed, want);
}

static void expect_numbers(void) {
  for (unsigned key = 0; key < KEYS; key++)
    for (unsigned number = 0; number < OF_KEY; number++) assert_int_equal(seen.done[key][number], 1);
  assert_int_equal(seen.wrong, 0);
  assert_int_equal(seen.twice, 0);
}

/* ---- Order ---- */

static void tasks_of_a_key_run_in_order_and_keys_in_parallel(void **state) {
  (void)state;
  add_numbered(0, OF_KEY);
  start(0, (dibs_worker_options){.threads = 4, .prefetch = 100, .poll_ms = 60000});
  UNTIL(counted(0).done == KEYS * OF_KEY);
  expect_numbers();
  assert_in_range(seen.most_inside, 2, 4);
  assert_int_equal(counted(0).refused + counted(0).unsent + counted(0).lost, 0);
  assert_int_equal(counted(0).lanes, 8);
  assert_true(counted(0).requests < KEYS * OF_KEY * 3);
}

static void a_key_with_many_tasks_does_not_stop_the_others(void **state) {
  (void)state;
  add_keyed("busy", "block");
  for (int i = 0; i < 300; i++) add_keyed("busy", "x");
  for (unsigned i = 0; i < 8; i++) {
    char serial[8];
    snprintf(serial, sizeof serial, "o%u", i);
    add_keyed(serial, "x");
  }
  start(0, (dibs_worker_options){.threads = 2, .prefetch = 4});
  UNTIL(counted(0).done == 8); /* while the first of "busy" runs */
  assert_int_equal(counted(0).running, 1);
  seen.go = true;
  UNTIL(counted(0).done == 309);
}

/* Three tasks of one key, of which the first does not end as done at its first attempt. */
static void expect_order(const char *first, const char *order) {
  add_keyed("k", first);
  add_keyed("k", "b");
  add_keyed("k", "c");
  start(0, (dibs_worker_options){.threads = 4, .prefetch = 10, .poll_ms = 60000});
  UNTIL(counted(0).done == 3);
  assert_string_equal(seen.order, order);
  assert_int_equal(counted(0).refused + counted(0).unsent, 0);
  assert_int_equal(in_state(DIBS_TASK_DONE), 3);
}

static void what_is_behind_a_failed_task_waits_for_it(void **state) {
  (void)state;
  expect_order("fail", "k:fail.1 k:fail.2 k:b.1 k:c.1 ");
  assert_int_equal(counted(0).failed, 1);
}

static void what_is_behind_a_next_step_waits_for_it(void **state) {
  (void)state;
  expect_order("next", "k:next.1 k:next.2 k:b.1 k:c.1 ");
}

static void what_is_behind_a_waiting_task_waits_for_it(void **state) {
  (void)state;
  expect_order("wait", "k:wait.1 k:wait.2 k:b.1 k:c.1 ");
}

static void what_is_behind_a_task_that_was_given_back_waits_for_it(void **state) {
  (void)state;
  expect_order("back", "k:back.1 k:back.1 k:back.1 k:back.1 k:b.1 k:c.1 ");
}

static void a_task_that_ended_itself_is_followed_by_the_next(void **state) {
  (void)state;
  expect_order("itself", "k:itself.1 k:b.1 k:c.1 ");
}

static void a_parked_task_stops_its_key_until_a_person_decides(void **state) {
  (void)state;
  uint64_t nr = add_keyed("k", "dead");
  add_keyed("k", "b");
  add_keyed("other", "x");
  start(0, (dibs_worker_options){.threads = 2, .prefetch = 10});
  UNTIL(counted(0).dead == 1 && counted(0).done == 1);
  add_keyed("k", "c");
  add_keyed("other", "y");
  UNTIL(counted(0).done == 2);
  assert_int_equal(in_state(DIBS_TASK_PARKED), 1);
  assert_null(strstr(seen.order, "k:b"));
  change(DIBS_TASK_PURGE, nr, 1);
  UNTIL(counted(0).done == 4);
  assert_non_null(strstr(seen.order, "k:b.1 k:c.1 "));
}

/* Then the store refuses the verdict of the later one, and it is begun again behind the earlier one. */
static void a_task_that_a_person_retries_comes_before_the_later_one_that_runs(void **state) {
  (void)state;
  uint64_t nr = add_keyed("k", "a");
  change(DIBS_TASK_CANCEL, nr, 1);
  add_keyed("k", "block");
  start(0, (dibs_worker_options){.threads = 2, .prefetch = 10});
  UNTIL(seen.inside == 1);
  change(DIBS_TASK_RETRY, nr, 1);
  UNTIL(in_state(DIBS_TASK_CLAIMED) == 2 || in_state(DIBS_TASK_READY) == 1);
  seen.go = true;
  UNTIL(counted(0).done == 2);
  assert_int_equal(counted(0).refused, 1);
  seen.order[strlen("k:block.1 k:a.1 k:block.")] = '\0'; /* whether the refused attempt counts depends on the moment */
  assert_string_equal(seen.order, "k:block.1 k:a.1 k:block.");
}

/* ---- Lanes come and go ---- */

static void a_second_worker_takes_half_of_the_lanes_and_the_order_stays(void **state) {
  (void)state;
  add_numbered(0, OF_KEY / 2);
  start(0, (dibs_worker_options){.threads = 2, .prefetch = 20});
  UNTIL(counted(0).done >= 20);
  start(1, (dibs_worker_options){.threads = 2, .prefetch = 20, .owner = "the second"});
  UNTIL(counted(0).lanes == 4 && counted(1).lanes == 4);
  add_numbered(OF_KEY / 2, OF_KEY);
  UNTIL(counted(0).done + counted(1).done >= KEYS * OF_KEY - 30);
  EXPECT(dibs_worker_stop(workers[1], LONG_MS, &error), DIBS_OK);
  UNTIL(counted(0).done + counted(1).done == KEYS * OF_KEY);
  expect_numbers();
  assert_true(counted(1).done > 0);
  UNTIL(counted(0).lanes == 8);
}

static void stopping_gives_back_what_was_not_begun_and_leaves_the_topic(void **state) {
  (void)state;
  add_keyed("k", "block");
  add_keyed("k", "b");
  add_keyed("k", "c");
  start(0, (dibs_worker_options){.threads = 2, .prefetch = 10});
  UNTIL(counted(0).held == 3 && seen.inside == 1);
  EXPECT(dibs_worker_stop(workers[0], 50, &error), DIBS_TIMEOUT);
  UNTIL(in_state(DIBS_TASK_CLAIMED) == 1);
  assert_int_equal(counted(0).lanes, 1); /* that of the task which runs */
  seen.go = true;
  EXPECT(dibs_worker_stop(workers[0], LONG_MS, &error), DIBS_OK);
  assert_int_equal(counted(0).done, 1);
  assert_int_equal(counted(0).released, 2);
  assert_int_equal(counted(0).lanes, 0);
  dibs_lane_topic_info info = DIBS_LANE_TOPIC_INFO_INIT;
  EXPECT(dibs_lane_list(store, kind, &info, NULL, NULL, &error), DIBS_OK);
  assert_int_equal(info.members, 0);
}

static int break_lane(const dibs_lease_info *info, void *user) {
  (void)user;
  if (strstr(info->name, "#8.")) (void)!dibs_break(store, info->name, NULL, NULL);
  return 0;
}

static void a_lost_lane_ends_its_claims_and_its_tasks_are_begun_again(void **state) {
  (void)state;
  char prefix[DIBS_NAME_MAX + 1];
  seen.stays = true;
  add_keyed("k", "block");
  add_keyed("k", "b");
  start(0, (dibs_worker_options){.threads = 2, .prefetch = 10});
  UNTIL(seen.inside == 1 && counted(0).held == 2);
  snprintf(prefix, sizeof prefix, "lane/%s#", kind);
  EXPECT(dibs_list(store, prefix, break_lane, NULL, &error), DIBS_OK);
  UNTIL(seen.lost == 1 && counted(0).lost == 1); /* its function may see it before the worker does */
  seen.go = true;
  UNTIL(in_state(DIBS_TASK_DONE) == 2);
  UNTIL(counted(0).lanes == 8);
  size_t length = strlen(seen.order);
  assert_string_equal(seen.order + length - strlen("k:b.1 "), "k:b.1 ");
}

static void a_topic_with_another_number_of_lanes_is_refused(void **state) {
  (void)state;
  start(0, (dibs_worker_options){.lanes = 4});
  UNTIL(counted(0).lanes == 4);
  dibs_worker_options o = {.size = sizeof o, .work = work, .topic = kind, .lanes = 5};
  EXPECT(dibs_worker_start(store, kind, &o, &workers[1], &error), DIBS_INVALID);
  assert_null(workers[1]);
}

static dibs_status troubled(size_t nth) {
  dibs_error trouble = {0};
  dibs_worker_trouble(workers[nth], &trouble);
  return trouble.status;
}

static void after_a_change_of_lanes_a_worker_that_named_none_goes_on(void **state) {
  (void)state;
  dibs_status status = DIBS_OK;
  add_numbered(0, OF_KEY / 2);
  start(0, (dibs_worker_options){.threads = 2, .prefetch = 20, .lanes = 4});
  UNTIL(counted(0).lanes == 4);
  dibs_worker_options o = {.size = sizeof o, .work = work, .topic = kind, .threads = 2, .lane_ttl_ms = LANE_TTL_MS};
  EXPECT(dibs_worker_start(store, kind, &o, &workers[1], &error), DIBS_OK);
  UNTIL(counted(1).lanes == 2);
  if ((status = dibs_lane_resize(store, kind, 6, LONG_MS, &error)) != DIBS_OK) fail_msg("%s", error.text);
  UNTIL(troubled(0) == DIBS_CONFLICT && counted(1).lanes == 6);
  add_numbered(OF_KEY / 2, OF_KEY);
  UNTIL(counted(0).done + counted(1).done == KEYS * OF_KEY);
  expect_numbers();
}

static void a_worker_without_lanes_says_where_the_tasks_go(void **state) {
  (void)state;
  start(0, (dibs_worker_options){0});
  add_keyed("k", "x");
  UNTIL(counted(0).done == 1);
  EXPECT(dibs_worker_stop(workers[0], LONG_MS, &error), DIBS_OK);
  add_keyed("k", "y");
  dibs_worker_options o = {.size = sizeof o, .work = work};
  EXPECT(dibs_worker_start(store, kind, &o, &workers[1], &error), DIBS_OK);
  UNTIL(troubled(1) == DIBS_NOT_FOUND);
  dibs_error trouble = {0};
  dibs_worker_trouble(workers[1], &trouble);
  assert_non_null(strstr(trouble.text, kind));
  assert_non_null(strstr(trouble.text, "lane"));
  assert_int_equal(counted(1).claimed, 0);
}

/* ---- Claims with lanes ---- */

static struct {
  dibs_lane_member *member;
  dibs_lane *lanes[8];
  atomic_uint count;
  dibs_lane *_Atomic asked; /* on_lose with OK */
  atomic_bool lost;
} mine[2];

static void gain(dibs_lane *lane, dibs_status status, void *user) {
  (void)status;
  mine[user != NULL].lanes[mine[user != NULL].count] = lane;
  mine[user != NULL].count++;
}

static void lose(dibs_lane *lane, dibs_status status, void *user) {
  if (status == DIBS_OK) mine[user != NULL].asked = lane;
  if (status == DIBS_LOST) mine[user != NULL].lost = true;
}

static void join(size_t nth, uint32_t lanes) {
  dibs_lane_options o = {.size = sizeof o,
                         .lanes = lanes,
                         .ttl_ms = LANE_TTL_MS,
                         .on_gain = gain,
                         .on_lose = lose,
                         .user = nth ? &mine : NULL};
  memset(&mine[nth], 0, sizeof mine[nth]);
  EXPECT(dibs_lane_join(store, kind, &o, &mine[nth].member, &error), DIBS_OK);
}

static dibs_status claim_lanes(dibs_claim_options o, size_t nth, dibs_task **tasks, size_t *count) {
  o.size = sizeof o;
  o.lanes = mine[nth].lanes;
  o.lane_count = mine[nth].count;
  return dibs_tasks_claim(store, kind, &o, tasks, count, &error);
}

static void leave(size_t nth) {
  for (unsigned i = 0; i < mine[nth].count; i++) dibs_lane_release(mine[nth].lanes[i]);
  dibs_lane_member_free(mine[nth].member);
}

static void a_claim_with_lanes_takes_several_of_a_key_in_their_order(void **state) {
  (void)state;
  dibs_task *tasks[5];
  size_t count;
  for (int i = 0; i < 5; i++) add_keyed("k", (const char *[]){"a", "b", "c", "d", "e"}[i]);
  join(0, 2);
  UNTIL(mine[0].count == 2);
  EXPECT(claim_lanes((dibs_claim_options){.most = 5}, 0, tasks, &count), DIBS_OK);
  assert_int_equal(count, 5);
  for (size_t i = 0; i < count; i++) {
    assert_int_equal(tasks[i]->payload[0], "abcde"[i]);
    assert_int_equal(dibs_lane_number(tasks[i]->lane), dibs_lane_of("k", 1, 2));
  }
  EXPECT(dibs_task_done(tasks[1], NULL, &error), DIBS_STALE);
  for (size_t i = 0; i < count; i++) {
    if (i != 1) EXPECT(dibs_task_done(tasks[i], NULL, &error), i == 0 ? DIBS_OK : DIBS_STALE);
    dibs_task_free(tasks[i]);
  }
  leave(0);
}

static void a_claim_without_lanes_says_where_the_tasks_go(void **state) {
  (void)state;
  dibs_task *tasks[1];
  size_t count;
  add_keyed("k", "a");
  join(0, 1);
  UNTIL(mine[0].count == 1);
  EXPECT(claim_lanes((dibs_claim_options){.most = 1}, 0, tasks, &count), DIBS_OK);
  EXPECT(dibs_task_release(tasks[0], &error), DIBS_OK);
  dibs_task_free(tasks[0]);
  dibs_claim_options o = DIBS_CLAIM_OPTIONS_INIT;
  EXPECT(dibs_tasks_claim(store, kind, &o, tasks, &count, &error), DIBS_NOT_FOUND);
  assert_non_null(strstr(error.text, kind));
  assert_int_equal(in_state(DIBS_TASK_READY), 1);
  assert_string_equal(its_topic, kind);
  leave(0);
  dibs_kind_options no_lanes = {.size = sizeof no_lanes, .set = DIBS_KIND_NO_LANES};
  EXPECT(dibs_task_kind_set(store, kind, &no_lanes, &error), DIBS_OK);
  EXPECT(dibs_tasks_claim(store, kind, &o, tasks, &count, &error), DIBS_OK);
  EXPECT(dibs_task_done(tasks[0], NULL, &error), DIBS_OK);
  dibs_task_free(tasks[0]);
  assert_int_equal(in_state(DIBS_TASK_DONE), 1);
  assert_string_equal(its_topic, "");
}

static void a_lane_that_a_later_owner_claimed_with_is_stale(void **state) {
  (void)state;
  dibs_task *tasks[2], *late[1];
  size_t count;
  char serial[16] = "k0";
  join(0, 2);
  UNTIL(mine[0].count == 2);
  join(1, 2);
  UNTIL(mine[0].asked);
  dibs_lane *old = mine[0].asked; /* it is not given back */
  for (unsigned i = 0; dibs_lane_of(serial, strlen(serial), 2) != dibs_lane_number(old); i++)
    snprintf(serial, sizeof serial, "k%u", i);
  add_keyed(serial, "a");
  EXPECT(claim_lanes((dibs_claim_options){.most = 1}, 0, tasks, &count), DIBS_OK);
  EXPECT(dibs_break(store, dibs_lease_name(dibs_lane_lease(old)), NULL, &error), DIBS_OK);
  UNTIL(mine[1].count == 1 && mine[0].lost);
  EXPECT(claim_lanes((dibs_claim_options){.most = 1}, 1, tasks + 1, &count), DIBS_OK);
  assert_int_equal(tasks[1]->nr, tasks[0]->nr);
  dibs_status statuses[1] = {DIBS_OK};
  dibs_claim_options o = {
      .size = sizeof o, .lanes = &old, .lane_count = 1, .lane_statuses = statuses, .wait_ms = LONG_MS};
  EXPECT(dibs_tasks_claim(store, kind, &o, late, &count, &error), DIBS_STALE);
  assert_int_equal(statuses[0], DIBS_STALE);
  EXPECT(dibs_task_done(tasks[0], NULL, &error), DIBS_STALE);
  EXPECT(dibs_task_done(tasks[1], NULL, &error), DIBS_OK);
  dibs_task_free(tasks[0]);
  dibs_task_free(tasks[1]);
  leave(0);
  leave(1);
}

static void a_claim_by_lane_lasts_no_longer_than_the_lane(void **state) {
  (void)state;
  dibs_task *tasks[1];
  size_t count;
  add_keyed("k", "a");
  join(0, 1);
  UNTIL(mine[0].count == 1);
  EXPECT(claim_lanes((dibs_claim_options){.most = 1, .timeout_ms = 60000}, 0, tasks, &count), DIBS_OK);
  int64_t left_ms = dibs_task_left_ms(tasks[0]);
  assert_in_range(left_ms, 1, LANE_TTL_MS);
  EXPECT(dibs_task_extend(tasks[0], 0, &error), DIBS_OK);
  left_ms = dibs_task_left_ms(tasks[0]);
  assert_in_range(left_ms, 1, LANE_TTL_MS);
  leave(0);
  UNTIL(dibs_task_left_ms(tasks[0]) == 0); /* the task may be freed after the lane */
  dibs_task_free(tasks[0]);
}

static void wrong_arguments_are_named(void **state) {
  (void)state;
  const char *phases[] = {"p"};
  dibs_task *tasks[1];
  size_t count;
  join(0, 2);
  UNTIL(mine[0].count == 2);
  EXPECT(claim_lanes((dibs_claim_options){.phases = phases, .phase_count = 1}, 0, tasks, &count), DIBS_INVALID);
  EXPECT(claim_lanes((dibs_claim_options){.reserved = 1}, 0, tasks, &count), DIBS_INVALID);
  dibs_lane *same[] = {mine[0].lanes[0], mine[0].lanes[0]};
  dibs_claim_options o = {.size = sizeof o, .lanes = same, .lane_count = 2};
  EXPECT(dibs_tasks_claim(store, kind, &o, tasks, &count, &error), DIBS_INVALID);
  assert_non_null(strstr(error.text, "twice"));
  o.lane_count = 0;
  EXPECT(dibs_tasks_claim(store, kind, &o, tasks, &count, &error), DIBS_INVALID);
  leave(0);
  dibs_worker_options w = {.size = sizeof w, .work = work, .topic = "a#b"};
  EXPECT(dibs_worker_start(store, kind, &w, &workers[0], &error), DIBS_INVALID);
  w = (dibs_worker_options){.size = sizeof w, .work = work, .topic = kind, .phases = phases, .phase_count = 1};
  EXPECT(dibs_worker_start(store, kind, &w, &workers[0], &error), DIBS_INVALID);
  w = (dibs_worker_options){.size = sizeof w, .work = work, .lanes = 3};
  EXPECT(dibs_worker_start(store, kind, &w, &workers[0], &error), DIBS_INVALID);
  w = (dibs_worker_options){.size = sizeof w, .work = work, .topic = "no-such-topic"};
  EXPECT(dibs_worker_start(store, kind, &w, &workers[0], &error), DIBS_NOT_FOUND);
  assert_null(workers[0]);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, open_lanes_bed, close_lanes_bed)

int main(int argc, char **argv) {
  begin_bed(argc, argv);
  const struct CMUnitTest tests[] = {
      CASE(tasks_of_a_key_run_in_order_and_keys_in_parallel),
      CASE(a_key_with_many_tasks_does_not_stop_the_others),
      CASE(what_is_behind_a_failed_task_waits_for_it),
      CASE(what_is_behind_a_next_step_waits_for_it),
      CASE(what_is_behind_a_waiting_task_waits_for_it),
      CASE(what_is_behind_a_task_that_was_given_back_waits_for_it),
      CASE(a_task_that_ended_itself_is_followed_by_the_next),
      CASE(a_parked_task_stops_its_key_until_a_person_decides),
      CASE(a_task_that_a_person_retries_comes_before_the_later_one_that_runs),
      CASE(a_second_worker_takes_half_of_the_lanes_and_the_order_stays),
      CASE(stopping_gives_back_what_was_not_begun_and_leaves_the_topic),
      CASE(a_lost_lane_ends_its_claims_and_its_tasks_are_begun_again),
      CASE(a_topic_with_another_number_of_lanes_is_refused),
      CASE(after_a_change_of_lanes_a_worker_that_named_none_goes_on),
      CASE(a_worker_without_lanes_says_where_the_tasks_go),
      CASE(a_claim_with_lanes_takes_several_of_a_key_in_their_order),
      CASE(a_claim_without_lanes_says_where_the_tasks_go),
      CASE(a_lane_that_a_later_owner_claimed_with_is_stale),
      CASE(a_claim_by_lane_lasts_no_longer_than_the_lane),
      CASE(wrong_arguments_are_named),
  };
  return end_bed(cmocka_run_group_tests(tests, NULL, NULL));
}

/* SPDX-License-Identifier: MIT */
/* The worker of dibs/task.h: threads, claims in advance, extensions, verdicts that travel together, stopping. */
#include "task/bed.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

static dibs_worker *worker;

/* What the function under test does, and what it has seen. */
static struct {
  atomic_uint calls, inside, most_inside;
  atomic_bool go; /* tasks with the payload "block" go on */
  pthread_mutex_t lock;
  char order[4096]; /* payloads, in the order in which they were begun */
  unsigned char times[2000];
  atomic_int left_ms; /* of the latest claim that ended while its task ran */
} seen;

static void note_begin(const dibs_task *task) {
  unsigned inside = atomic_fetch_add(&seen.inside, 1) + 1, most = seen.most_inside;
  while (inside > most && !atomic_compare_exchange_weak(&seen.most_inside, &most, inside)) continue;
  pthread_mutex_lock(&seen.lock);
  size_t at = strlen(seen.order);
  if (at + task->length + 2 < sizeof seen.order)
    snprintf(seen.order + at, sizeof seen.order - at, "%s ", task->payload);
  if (task->payload[0] == '#') seen.times[strtol(task->payload + 1, NULL, 10)]++;
  pthread_mutex_unlock(&seen.lock);
  atomic_fetch_add(&seen.calls, 1);
}

static void block(const dibs_task *task) {
  int64_t by = now_ms() + LONG_MS;
  while (!seen.go && now_ms() < by && dibs_task_left_ms(task) > 0) nap_ms(1);
  if (dibs_task_left_ms(task) == 0) {
    seen.left_ms = 0;
    while (!seen.go && now_ms() < by) nap_ms(1);
  }
}

static dibs_verdict decide(dibs_task *task, dibs_work_reply *reply) {
  if (strcmp(task->payload, "fail") == 0) {
    snprintf(reply->text, sizeof reply->text, "could not");
    reply->delay_ms = 0;
    return DIBS_END_FAIL;
  }
  if (strcmp(task->payload, "phases") == 0 && strcmp(task->phase, "last") != 0) {
    snprintf(reply->phase, sizeof reply->phase, "%s", task->phase[0] ? "last" : "middle");
    return DIBS_END_NEXT;
  }
  if (strcmp(task->payload, "wait") == 0 && task->attempt < 3) {
    reply->delay_ms = 20;
    return DIBS_END_WAIT;
  }
  if (strcmp(task->payload, "dead") == 0) return DIBS_END_DEAD;
  if (strcmp(task->payload, "nonsense") == 0) return (dibs_verdict)42;
  if (strcmp(task->payload, "itself") == 0 || strcmp(task->payload, "block itself") == 0) {
    assert_int_equal(dibs_task_done(task, "by itself", NULL), DIBS_OK);
    return DIBS_END_FAIL; /* does not count any more */
  }
  return DIBS_END_DONE;
}

static dibs_verdict work(dibs_task *task, dibs_work_reply *reply, void *user) {
  assert_ptr_equal(user, &seen);
  note_begin(task);
  if (strncmp(task->payload, "block", 5) == 0) block(task);
  if (strcmp(task->payload, "long") == 0) nap_ms(1300);
  dibs_verdict verdict = decide(task, reply);
  atomic_fetch_sub(&seen.inside, 1);
  return verdict;
}

static int open_worker_bed(void **state) {
  memset(&seen, 0, sizeof seen);
  pthread_mutex_init(&seen.lock, NULL);
  seen.left_ms = -1;
  return open_bed(state);
}

static int close_worker_bed(void **state) {
  seen.go = true;
  dibs_worker_free(worker);
  worker = NULL;
  return close_bed(state);
}

static void start(dibs_worker_options o) {
  o.size = sizeof o;
  o.work = work;
  o.user = &seen;
  EXPECT(dibs_worker_start(store, kind, &o, &worker, &error), DIBS_OK);
}

static dibs_worker_counts counted(void) {
  dibs_worker_counts counts = DIBS_WORKER_COUNTS_INIT;
  EXPECT(dibs_worker_count(worker, &counts, &error), DIBS_OK);
  return counts;
}

static void add_numbered(unsigned count) {
  static dibs_task_new tasks[DIBS_TASKS_MAX];
  static char payloads[DIBS_TASKS_MAX][8];
  for (unsigned i = 0; i < count; i++) {
    snprintf(payloads[i], sizeof payloads[i], "#%u", i);
    tasks[i] = (dibs_task_new){.size = sizeof tasks[i], .payload = payloads[i], .length = strlen(payloads[i])};
  }
  EXPECT(dibs_task_add_many(store, kind, tasks, count, 0, &error), DIBS_OK);
}

/* ---- Work ---- */

static void each_task_is_done_once(void **state) {
  (void)state;
  add_numbered(1000);
  start((dibs_worker_options){.threads = 4, .prefetch = 100});
  UNTIL(counted().done == 1000);
  for (int i = 0; i < 1000; i++) assert_int_equal(seen.times[i], 1);
  dibs_worker_counts c = counted();
  assert_int_equal(c.claimed, 1000);
  assert_int_equal(c.begun, 1000);
  assert_int_equal(c.refused + c.lost + c.released + c.unsent, 0);
  assert_int_equal(c.held, 0);
  /* Claims are made ahead and verdicts are sent together. */
  assert_true(c.requests < 1000);
}

/* Without a word from the store: the tasks become ready one after the other while others are being begun. */
static void a_free_thread_does_not_wait_for_the_others(void **state) {
  (void)state;
  enum { FREE = 32, APART_MS = 10 };
  for (int i = 0; i < FREE; i++) add("block", (dibs_task_options){.delay_ms = i * APART_MS});
  start((dibs_worker_options){.threads = FREE, .flags = DIBS_WORKER_NO_PREFETCH, .poll_ms = APART_MS});
  UNTIL(seen.inside == FREE);
  seen.go = true;
  UNTIL(counted().done == FREE);
}

static void as_many_run_at_once_as_there_are_threads(void **state) {
  (void)state;
  for (int i = 0; i < 20; i++) add("block", (dibs_task_options){0});
  start((dibs_worker_options){.threads = 3, .prefetch = 4});
  UNTIL(seen.inside == 3);
  UNTIL(counted().claimed == 7);
  nap_ms(100);
  assert_int_equal(counted().claimed, 7);
  assert_int_equal(counted().running, 3);
  seen.go = true;
  UNTIL(counted().done == 20);
  assert_int_equal(seen.most_inside, 3);
}

static void without_prefetch_only_what_can_begin_is_claimed(void **state) {
  (void)state;
  for (int i = 0; i < 6; i++) add("block", (dibs_task_options){0});
  start((dibs_worker_options){.threads = 2, .flags = DIBS_WORKER_NO_PREFETCH});
  UNTIL(seen.inside == 2);
  nap_ms(100);
  assert_int_equal(counted().claimed, 2);
  seen.go = true;
  UNTIL(counted().done == 6);
}

static void a_task_added_here_begins_at_once(void **state) {
  (void)state;
  start((dibs_worker_options){.poll_ms = 60000});
  UNTIL(counted().idle == 1);
  for (unsigned i = 1; i <= 5; i++) {
    int64_t began = now_ms();
    add("x", (dibs_task_options){0});
    UNTIL(seen.calls == i);
    assert_true(now_ms() - began < 2000);
    UNTIL(counted().done == i);
  }
}

static void a_task_that_waits_for_its_time_begins_then(void **state) {
  (void)state;
  int64_t began = now_ms();
  add("x", (dibs_task_options){.delay_ms = 200});
  start((dibs_worker_options){.poll_ms = 60000});
  UNTIL(seen.calls == 1);
  assert_in_range(now_ms() - began, 195, 5000); /* far from poll_ms */
}

static void tasks_with_a_serial_text_run_one_after_the_other(void **state) {
  (void)state;
  char expected[400] = "";
  for (int i = 0; i < 30; i++) {
    char payload[8];
    snprintf(payload, sizeof payload, "s%d", i);
    add(payload, (dibs_task_options){.serial = "key"});
    size_t at = strlen(expected);
    snprintf(expected + at, sizeof expected - at, "%s ", payload);
  }
  start((dibs_worker_options){.threads = 4, .prefetch = 10, .poll_ms = 60000});
  UNTIL(counted().done == 30);
  assert_string_equal(seen.order, expected);
  assert_int_equal(seen.most_inside, 1);
}

static void an_idle_worker_asks_about_once_a_second(void **state) {
  (void)state;
  start((dibs_worker_options){.threads = 8});
  nap_ms(3000);
  assert_in_range(counted().requests, 2, 6);
}

/* ---- Verdicts ---- */

static void the_phases_of_a_task_follow_one_another(void **state) {
  (void)state;
  uint64_t nr = add("phases", (dibs_task_options){0});
  start((dibs_worker_options){.poll_ms = 60000});
  UNTIL(state_of(nr) == DIBS_TASK_DONE);
  UNTIL(counted().done == 1);
  assert_int_equal(counted().next, 2);
  assert_int_equal(seen.calls, 3);
}

static void a_task_that_waits_is_begun_again(void **state) {
  (void)state;
  uint64_t nr = add("wait", (dibs_task_options){0});
  start((dibs_worker_options){.poll_ms = 60000});
  UNTIL(state_of(nr) == DIBS_TASK_DONE);
  assert_int_equal(seen.calls, 3);
  UNTIL(counted().waits == 2);
}

static int keep_text(const dibs_task_info *info, void *user) {
  snprintf(user, 200, "%s", info->text);
  return 0;
}

static void a_failing_task_is_dead_after_its_tries(void **state) {
  (void)state;
  uint64_t nr = add("fail", (dibs_task_options){.tries = 3});
  start((dibs_worker_options){.poll_ms = 60000});
  UNTIL(state_of(nr) == DIBS_TASK_DEAD);
  UNTIL(counted().failed == 3);
  assert_int_equal(seen.calls, 3);
  char text[200] = "";
  EXPECT(dibs_task_errors(store, nr, keep_text, text, &error), DIBS_OK);
  assert_string_equal(text, "could not");
}

static void dead_at_once_and_no_verdict(void **state) {
  (void)state;
  uint64_t dead = add("dead", (dibs_task_options){0});
  uint64_t nonsense = add("nonsense", (dibs_task_options){.tries = 1});
  start((dibs_worker_options){0});
  UNTIL(state_of(dead) == DIBS_TASK_DEAD);
  UNTIL(state_of(nonsense) == DIBS_TASK_DEAD);
  char text[200] = "";
  EXPECT(dibs_task_errors(store, nonsense, keep_text, text, &error), DIBS_OK);
  assert_non_null(strstr(text, "no verdict"));
}

static void the_function_may_end_the_claim_itself(void **state) {
  (void)state;
  uint64_t nr = add("itself", (dibs_task_options){0});
  start((dibs_worker_options){0});
  UNTIL(counted().done == 1);
  assert_int_equal(state_of(nr), DIBS_TASK_DONE);
  assert_int_equal(counted().failed + counted().refused, 0);
}

/* ---- Claims ---- */

static void a_task_that_takes_longer_than_its_claim_is_extended(void **state) {
  (void)state;
  uint64_t nr = add("long", (dibs_task_options){0});
  for (int i = 0; i < 3; i++) add("x", (dibs_task_options){0}); /* claimed ahead, and extended, too */
  start((dibs_worker_options){.timeout_ms = 600, .prefetch = 5});
  UNTIL(counted().done == 4);
  assert_int_equal(state_of(nr), DIBS_TASK_DONE);
  dibs_worker_counts c = counted();
  assert_int_equal(c.claimed, 4);
  assert_true(c.extended >= 4 * 3);
  assert_int_equal(c.lost + c.refused, 0);
  /* All are extended in one request, at about a third of 600 ms: at most 8 in 1.3 s; beside it claims and ends. */
  assert_true(c.requests < 30);
}

static void a_verdict_after_the_claim_was_lost_is_refused(void **state) {
  (void)state;
  uint64_t nr = add("block", (dibs_task_options){0});
  start((dibs_worker_options){.timeout_ms = 3000});
  UNTIL(seen.inside == 1);
  dibs_task_filter filter = {.size = sizeof filter, .nr = nr};
  EXPECT(dibs_tasks_change(store, DIBS_TASK_CANCEL, &filter, 0, 0, NULL, NULL, &error), DIBS_OK);
  UNTIL(seen.left_ms == 0); /* its function saw it */
  seen.go = true;
  UNTIL(counted().refused == 1);
  assert_int_equal(counted().lost, 1);
  assert_int_equal(counted().done, 0);
  assert_int_equal(state_of(nr), DIBS_TASK_CANCELLED);
}

/* It was claimed in advance, and its claim is over before it begins: nothing is sent for it, so no answer wakes the
 * claimer. */
static void a_task_that_was_cancelled_before_it_began_holds_up_no_other(void **state) {
  (void)state;
  add("block itself", (dibs_task_options){0});
  uint64_t cancelled = add("cancelled", (dibs_task_options){0});
  add("third", (dibs_task_options){0});
  start((dibs_worker_options){.timeout_ms = 3000, .poll_ms = 50});
  UNTIL(seen.inside == 1 && counted().claimed == 2);
  dibs_task_filter filter = {.size = sizeof filter, .nr = cancelled};
  EXPECT(dibs_tasks_change(store, DIBS_TASK_CANCEL, &filter, 0, 0, NULL, NULL, &error), DIBS_OK);
  UNTIL(counted().lost == 1);
  seen.go = true;
  UNTIL(counted().done == 2);
  assert_string_equal(seen.order, "block itself third ");
  assert_int_equal(counted().held, 0);
}

/* ---- Stopping ---- */

static void stopping_gives_back_what_was_not_begun(void **state) {
  (void)state;
  for (int i = 0; i < 5; i++) add("block", (dibs_task_options){0});
  start((dibs_worker_options){.threads = 1, .prefetch = 10});
  UNTIL(counted().claimed == 5 && seen.inside == 1);
  int64_t began = now_ms();
  EXPECT(dibs_worker_stop(worker, 50, &error), DIBS_TIMEOUT);
  assert_in_range(now_ms() - began, 50, 5000);
  assert_non_null(strstr(error.text, "1 tasks"));
  UNTIL(counted().released == 4);
  dibs_task *tasks[5];
  assert_int_equal(claim(5, 0, tasks), 4);
  for (int i = 0; i < 4; i++) {
    assert_int_equal(tasks[i]->attempt, 1); /* given back is no attempt */
    dibs_task_free(tasks[i]);
  }
  seen.go = true;
  EXPECT(dibs_worker_stop(worker, LONG_MS, &error), DIBS_OK);
  assert_int_equal(counted().done, 1);
  assert_int_equal(counted().held, 0);
  add("x", (dibs_task_options){0});
  nap_ms(50);
  assert_int_equal(seen.calls, 1); /* it claims no more */
}

static void a_running_task_is_extended_while_the_worker_stops(void **state) {
  (void)state;
  uint64_t nr = add("long", (dibs_task_options){0});
  start((dibs_worker_options){.timeout_ms = 400});
  UNTIL(seen.inside == 1);
  EXPECT(dibs_worker_stop(worker, DIBS_FOREVER, &error), DIBS_OK);
  assert_int_equal(state_of(nr), DIBS_TASK_DONE);
  assert_int_equal(counted().refused, 0);
}

static void an_idle_worker_stops_at_once(void **state) {
  (void)state;
  start((dibs_worker_options){.poll_ms = 60000, .threads = 16});
  UNTIL(counted().idle == 1);
  int64_t began = now_ms();
  EXPECT(dibs_worker_stop(worker, DIBS_FOREVER, &error), DIBS_OK);
  EXPECT(dibs_worker_stop(worker, 0, &error), DIBS_OK);
  dibs_worker_free(worker);
  worker = NULL;
  assert_true(now_ms() - began < 2000);
}

static void a_child_after_fork_does_not_wait_for_its_parents_worker(void **state) {
  (void)state;
  uint64_t nr = add("block", (dibs_task_options){0});
  start((dibs_worker_options){0});
  UNTIL(seen.inside == 1);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    dibs_worker_counts counts = DIBS_WORKER_COUNTS_INIT;
    dibs_error trouble = {0};
    alarm(LONG_MS / 1000);
    bool refused = dibs_worker_stop(worker, DIBS_FOREVER, NULL) == DIBS_INVALID &&
                   dibs_worker_stop(worker, 0, NULL) == DIBS_INVALID &&
                   dibs_worker_count(worker, &counts, NULL) == DIBS_INVALID;
    dibs_worker_trouble(worker, &trouble);
    dibs_worker_free(worker);
    dibs_close(store);
    _exit(refused && trouble.status == DIBS_INVALID ? 0 : 1);
  }
  int code = -1;
  assert_int_equal(waitpid(child, &code, 0), child);
  assert_int_equal(code, 0);
  seen.go = true;
  UNTIL(counted().done == 1); /* the parent's goes on */
  assert_int_equal(state_of(nr), DIBS_TASK_DONE);
}

static void wrong_arguments_are_named(void **state) {
  (void)state;
  dibs_worker_options o = {.size = sizeof o};
  EXPECT(dibs_worker_start(store, kind, &o, &worker, &error), DIBS_INVALID);
  assert_non_null(strstr(error.text, "work"));
  o.work = work;
  o.threads = DIBS_WORKER_THREADS + 1;
  EXPECT(dibs_worker_start(store, kind, &o, &worker, &error), DIBS_INVALID);
  o.threads = 1;
  o.timeout_ms = 7;
  EXPECT(dibs_worker_start(store, kind, &o, &worker, &error), DIBS_INVALID);
  assert_null(worker);
  EXPECT(dibs_worker_stop(NULL, 0, &error), DIBS_INVALID);
  dibs_worker_free(NULL);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, open_worker_bed, close_worker_bed)

int main(int argc, char **argv) {
  begin_bed(argc, argv);
  const struct CMUnitTest tests[] = {
      CASE(each_task_is_done_once),
      CASE(a_free_thread_does_not_wait_for_the_others),
      CASE(as_many_run_at_once_as_there_are_threads),
      CASE(without_prefetch_only_what_can_begin_is_claimed),
      CASE(a_task_added_here_begins_at_once),
      CASE(a_task_that_waits_for_its_time_begins_then),
      CASE(tasks_with_a_serial_text_run_one_after_the_other),
      CASE(an_idle_worker_asks_about_once_a_second),
      CASE(the_phases_of_a_task_follow_one_another),
      CASE(a_task_that_waits_is_begun_again),
      CASE(a_failing_task_is_dead_after_its_tries),
      CASE(dead_at_once_and_no_verdict),
      CASE(the_function_may_end_the_claim_itself),
      CASE(a_task_that_takes_longer_than_its_claim_is_extended),
      CASE(a_verdict_after_the_claim_was_lost_is_refused),
      CASE(a_task_that_was_cancelled_before_it_began_holds_up_no_other),
      CASE(stopping_gives_back_what_was_not_begun),
      CASE(a_running_task_is_extended_while_the_worker_stops),
      CASE(an_idle_worker_stops_at_once),
      CASE(a_child_after_fork_does_not_wait_for_its_parents_worker),
      CASE(wrong_arguments_are_named),
  };
  return end_bed(cmocka_run_group_tests(tests, NULL, NULL));
}

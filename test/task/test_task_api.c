/* SPDX-License-Identifier: MIT */
/* Tasks through dibs/task.h: adding, claiming, extending, every verdict, and what people do with them. */
#include "task/bed.h"

/* ---- Adding ---- */

static void a_task_is_claimed_as_it_was_added(void **state) {
  (void)state;
  char payload[] = {'a', '\0', '\n', (char)0xff, 'z'};
  dibs_task_options o = {
      .size = sizeof o, .phase = "trigger", .serial = "gw-1", .unique = "create gw-1", .priority = -3, .tries = 5};
  uint64_t nr;
  EXPECT(dibs_task_add(store, kind, payload, sizeof payload, &o, &nr, &error), DIBS_OK);
  dibs_task *t = claimed(0);
  assert_int_equal(t->nr, nr);
  assert_true(t->fence.value > 0);
  assert_int_equal(t->length, sizeof payload);
  assert_memory_equal(t->payload, payload, sizeof payload);
  assert_int_equal(t->payload[t->length], '\0');
  assert_string_equal(t->kind, kind);
  assert_string_equal(t->phase, "trigger");
  assert_string_equal(t->serial, "gw-1");
  assert_string_equal(t->unique, "create gw-1");
  assert_string_equal(t->error, "");
  assert_int_equal(t->priority, -3);
  assert_int_equal(t->attempt, 1);
  assert_int_equal(t->fails, 0);
  assert_int_equal(t->tries, 5);
  assert_in_range(dibs_task_left_ms(t), 20000, 30000);
  EXPECT(dibs_task_done(t, "fine", &error), DIBS_OK);
  assert_int_equal(dibs_task_left_ms(t), 0);
  assert_int_equal(state_of(nr), DIBS_TASK_DONE);
  dibs_task_free(t);
}

static void an_empty_payload_and_a_large_one_are_kept(void **state) {
  (void)state;
  char *large = malloc(DIBS_RECORD_MAX + 1);
  assert_non_null(large);
  for (size_t i = 0; i <= DIBS_RECORD_MAX; i++) large[i] = (char)(i * 7);
  EXPECT(dibs_task_add(store, kind, NULL, 0, NULL, NULL, &error), DIBS_OK);
  EXPECT(dibs_task_add(store, kind, large, DIBS_RECORD_MAX, NULL, NULL, &error), DIBS_OK);
  EXPECT(dibs_task_add(store, kind, large, DIBS_RECORD_MAX + 1, NULL, NULL, &error), DIBS_INVALID);
  dibs_task *tasks[3];
  assert_int_equal(claim(3, 0, tasks), 2);
  assert_int_equal(tasks[0]->length, 0);
  assert_string_equal(tasks[0]->payload, "");
  assert_int_equal(tasks[1]->length, DIBS_RECORD_MAX);
  assert_memory_equal(tasks[1]->payload, large, DIBS_RECORD_MAX);
  dibs_task_free(tasks[0]);
  dibs_task_free(tasks[1]);
  free(large);
}

static void a_second_unfinished_task_with_a_unique_text_is_not_added(void **state) {
  (void)state;
  uint64_t first = add("1", (dibs_task_options){.unique = "one"}), second = 0;
  dibs_task_options o = {.size = sizeof o, .unique = "one"};
  EXPECT(dibs_task_add(store, kind, "2", 1, &o, &second, &error), DIBS_REPLAY);
  assert_int_equal(second, first);
  assert_non_null(strstr(error.text, "one"));
  dibs_task *t = claimed(0);
  EXPECT(dibs_task_done(t, NULL, &error), DIBS_OK);
  dibs_task_free(t);
  EXPECT(dibs_task_add(store, kind, "3", 1, &o, &second, &error), DIBS_OK);
  assert_true(second > first);
}

static void many_are_added_and_each_has_its_own_answer(void **state) {
  (void)state;
  dibs_task_new tasks[] = {{.size = sizeof tasks[0], .payload = "a", .length = 1, .unique = "u"},
                           {.size = sizeof tasks[0], .payload = "b", .length = 1, .phase = "bad\nphase"},
                           {.size = sizeof tasks[0], .payload = "c", .length = 1, .unique = "u"},
                           {.size = sizeof tasks[0], .payload = "d", .length = 1}};
  EXPECT(dibs_task_add_many(store, kind, tasks, COUNT_OF(tasks), 0, &error), DIBS_OK);
  assert_int_equal(tasks[0].status, DIBS_OK);
  assert_int_equal(tasks[1].status, DIBS_INVALID);
  assert_int_equal(tasks[1].nr, 0);
  assert_int_equal(tasks[2].status, DIBS_REPLAY);
  assert_int_equal(tasks[2].nr, tasks[0].nr);
  assert_int_equal(tasks[3].status, DIBS_OK);
  assert_true(tasks[3].nr > tasks[0].nr);
}

static void wrong_arguments_of_add_are_named(void **state) {
  (void)state;
  dibs_task_options o = {.size = sizeof o, .priority = 1001};
  EXPECT(dibs_task_add(store, kind, "", 0, &o, NULL, &error), DIBS_INVALID);
  assert_non_null(strstr(error.text, "1001"));
  o = (dibs_task_options){.size = sizeof o, .serial = ""};
  EXPECT(dibs_task_add(store, kind, "", 0, &o, NULL, &error), DIBS_INVALID);
  assert_non_null(strstr(error.text, "serial"));
  o = (dibs_task_options){.size = 3};
  EXPECT(dibs_task_add(store, kind, "", 0, &o, NULL, &error), DIBS_INVALID);
  EXPECT(dibs_task_add(store, "", "", 0, NULL, NULL, &error), DIBS_INVALID);
  EXPECT(dibs_task_add(store, kind, NULL, 3, NULL, NULL, &error), DIBS_INVALID);
  EXPECT(dibs_task_add(NULL, kind, "", 0, NULL, NULL, &error), DIBS_INVALID);
}

/* ---- Claiming ---- */

static void nothing_ready_is_an_answer_and_a_wait_ends(void **state) {
  (void)state;
  dibs_task *t = NULL;
  size_t count = 9;
  EXPECT(dibs_tasks_claim(store, kind, NULL, &t, &count, &error), DIBS_NOT_FOUND);
  assert_int_equal(count, 0);
  dibs_claim_options o = {.size = sizeof o, .wait_ms = 50};
  int64_t began = now_ms();
  EXPECT(dibs_tasks_claim(store, kind, &o, &t, &count, &error), DIBS_NOT_FOUND);
  assert_true(now_ms() - began >= 50);
}

static void a_claim_that_waits_gets_a_task_when_its_time_has_come(void **state) {
  (void)state;
  int64_t began = now_ms();
  add("later", (dibs_task_options){.delay_ms = 120});
  dibs_task *t = NULL;
  size_t count;
  dibs_claim_options o = {.size = sizeof o, .wait_ms = LONG_MS};
  EXPECT(dibs_tasks_claim(store, kind, &o, &t, &count, &error), DIBS_OK);
  assert_in_range(now_ms() - began, 115, 3000);
  dibs_task_free(t);
}

static void phases_priorities_and_order_are_heeded(void **state) {
  (void)state;
  add("low", (dibs_task_options){.phase = "a"});
  add("other", (dibs_task_options){.phase = "b"});
  add("high", (dibs_task_options){.phase = "a", .priority = 7});
  const char *phases[] = {"a", "c"};
  dibs_claim_options o = {.size = sizeof o, .phases = phases, .phase_count = 2, .most = 10};
  dibs_task *tasks[10];
  size_t count;
  EXPECT(dibs_tasks_claim(store, kind, &o, tasks, &count, &error), DIBS_OK);
  assert_int_equal(count, 2);
  assert_string_equal(tasks[0]->payload, "high");
  assert_string_equal(tasks[1]->payload, "low");
  for (size_t i = 0; i < count; i++) dibs_task_free(tasks[i]);
}

static void a_claim_whose_time_is_over_is_refused_and_counts_as_a_failed_try(void **state) {
  (void)state;
  add("x", (dibs_task_options){0});
  dibs_task *old = claimed(100), *new = NULL;
  size_t count;
  dibs_claim_options o = {.size = sizeof o, .wait_ms = LONG_MS};
  EXPECT(dibs_tasks_claim(store, kind, &o, &new, &count, &error), DIBS_OK);
  assert_int_equal(dibs_task_left_ms(old), 0);
  assert_true(new->fence.value > old->fence.value);
  assert_int_equal(new->fails, 1);
  assert_int_equal(new->attempt, 2);
  EXPECT(dibs_task_extend(old, 0, &error), DIBS_STALE);
  EXPECT(dibs_task_step(old, "p", &error), DIBS_STALE);
  EXPECT(dibs_task_done(old, "late", &error), DIBS_STALE);
  char fence[32];
  snprintf(fence, sizeof fence, "fence %llu", (unsigned long long)old->fence.value);
  assert_non_null(strstr(error.text, fence));
  EXPECT(dibs_task_done(old, "late", &error), DIBS_INVALID); /* its end is known */
  EXPECT(dibs_task_done(new, NULL, &error), DIBS_OK);
  dibs_task_free(old);
  dibs_task_free(new);
}

static void wrong_arguments_of_claim_are_named(void **state) {
  (void)state;
  dibs_task *t;
  size_t count;
  dibs_claim_options o = {.size = sizeof o, .timeout_ms = 5};
  EXPECT(dibs_tasks_claim(store, kind, &o, &t, &count, &error), DIBS_INVALID);
  assert_non_null(strstr(error.text, "timeout_ms"));
  o = (dibs_claim_options){.size = sizeof o, .most = DIBS_TASKS_MAX + 1};
  EXPECT(dibs_tasks_claim(store, kind, &o, &t, &count, &error), DIBS_INVALID);
  o = (dibs_claim_options){.size = sizeof o, .phase_count = 1};
  EXPECT(dibs_tasks_claim(store, kind, &o, &t, &count, &error), DIBS_INVALID);
  EXPECT(dibs_tasks_claim(store, kind, NULL, NULL, &count, &error), DIBS_INVALID);
}

/* ---- While it is claimed ---- */

static void an_extended_claim_lasts_longer(void **state) {
  (void)state;
  add("x", (dibs_task_options){0});
  dibs_task *t = claimed(300);
  int64_t before = dibs_task_left_ms(t);
  assert_in_range(before, 1, 300);
  EXPECT(dibs_task_extend(t, 20000, &error), DIBS_OK);
  assert_in_range(dibs_task_left_ms(t), 15000, 20000);
  nap_ms(350);
  dibs_task *other = NULL;
  assert_int_equal(claim(1, 0, &other), 0);
  EXPECT(dibs_task_done(t, NULL, &error), DIBS_OK);
  dibs_task_free(t);
}

static void several_claims_are_extended_together(void **state) {
  (void)state;
  for (int i = 0; i < 3; i++) add("x", (dibs_task_options){0});
  dibs_task *tasks[3];
  dibs_status statuses[3];
  assert_int_equal(claim(3, 1000, tasks), 3);
  dibs_task_filter filter = {.size = sizeof filter, .nr = tasks[1]->nr};
  uint64_t changed;
  EXPECT(dibs_tasks_change(store, DIBS_TASK_CANCEL, &filter, 0, 0, &changed, NULL, &error), DIBS_OK);
  assert_int_equal(changed, 1);
  EXPECT(dibs_tasks_extend(tasks, 3, 30000, statuses, &error), DIBS_OK);
  assert_int_equal(statuses[0], DIBS_OK);
  assert_int_equal(statuses[1], DIBS_STALE);
  assert_int_equal(statuses[2], DIBS_OK);
  assert_int_equal(dibs_task_left_ms(tasks[1]), 0);
  assert_true(dibs_task_left_ms(tasks[2]) > 20000);
  for (int i = 0; i < 3; i++) dibs_task_free(tasks[i]);
}

static void a_step_keeps_the_claim_and_survives_it(void **state) {
  (void)state;
  uint64_t nr = add("x", (dibs_task_options){.phase = "one"});
  dibs_task *t = claimed(0);
  EXPECT(dibs_task_step(t, "two", &error), DIBS_OK);
  assert_string_equal(t->phase, "two");
  assert_int_equal(state_of(nr), DIBS_TASK_CLAIMED);
  EXPECT(dibs_task_unlock(t, NULL, &error), DIBS_OK);
  uint64_t first = t->fence.value;
  dibs_task_free(t);
  t = claimed(0);
  assert_string_equal(t->phase, "two");
  assert_true(t->fence.value > first);
  EXPECT(dibs_task_unlock(t, "three", &error), DIBS_OK);
  dibs_task_free(t);
  t = claimed(0);
  assert_string_equal(t->phase, "three");
  assert_int_equal(t->fails, 0);
  dibs_task_free(t);
}

/* ---- Verdicts ---- */

static void relock_waits_and_is_no_failure(void **state) {
  (void)state;
  uint64_t nr = add("x", (dibs_task_options){0});
  dibs_task *t = claimed(0);
  int64_t began = now_ms();
  EXPECT(dibs_task_relock(t, 8000, &error), DIBS_OK); /* 800 ms */
  dibs_task_free(t);
  assert_int_equal(claim(1, 0, &t), 0);
  assert_int_equal(state_of(nr), DIBS_TASK_WAITING);
  UNTIL(claim(1, 0, &t) == 1);
  assert_in_range(now_ms() - began, 790, 7000);
  assert_int_equal(t->fails, 0);
  assert_int_equal(t->attempt, 2);
  EXPECT(dibs_task_relock(t, 0, &error), DIBS_OK); /* at once */
  dibs_task_free(t);
  t = claimed(0);
  dibs_task_free(t);
}

static void a_task_that_fails_too_often_is_dead_and_keeps_its_errors(void **state) {
  (void)state;
  uint64_t nr = add("x", (dibs_task_options){.tries = 2});
  dibs_task *t = claimed(0);
  dibs_task_end end = {.size = sizeof end, .task = t, .verdict = DIBS_END_FAIL, .text = "first"};
  EXPECT(dibs_task_end_many(NULL, &end, 1, &error), DIBS_OK);
  assert_int_equal(end.status, DIBS_OK);
  dibs_task_free(t);
  UNTIL(claim(1, 0, &t) == 1);
  assert_string_equal(t->error, "first");
  assert_int_equal(t->fails, 1);
  EXPECT(dibs_task_fail(t, "second", &error), DIBS_OK);
  dibs_task_free(t);
  assert_int_equal(state_of(nr), DIBS_TASK_DEAD);
}

static void a_verdict_says_how_often_a_task_may_fail(void **state) {
  (void)state;
  uint64_t nr = add("x", (dibs_task_options){.tries = 1});
  for (uint32_t i = 1; i <= 3; i++) {
    dibs_task *t = NULL;
    UNTIL(claim(1, 0, &t) == 1);
    dibs_task_end end = {.size = sizeof end, .task = t, .verdict = DIBS_END_FAIL, .tries = 3};
    EXPECT(dibs_task_end_many(NULL, &end, 1, &error), DIBS_OK);
    assert_int_equal(end.status, DIBS_OK);
    dibs_task_free(t);
    assert_int_equal(state_of(nr) == DIBS_TASK_DEAD, i == 3);
  }
}

static int join_errors(const dibs_task_info *info, void *user) {
  char *to = user;
  size_t at = strlen(to);
  static uint64_t before;
  if (at > 0) assert_true(info->fence.value > before);
  before = info->fence.value;
  snprintf(to + at, 200 - at, "%s;", info->text);
  return 0;
}

static void the_errors_of_a_task_are_listed_in_their_order(void **state) {
  (void)state;
  uint64_t nr = add("x", (dibs_task_options){0});
  for (int i = 1; i <= 2; i++) {
    dibs_task *t = NULL;
    UNTIL(claim(1, 0, &t) == 1);
    char text[20];
    snprintf(text, sizeof text, "error %d", i);
    dibs_task_end end = {.size = sizeof end, .task = t, .verdict = DIBS_END_FAIL, .text = text};
    EXPECT(dibs_task_end_many(NULL, &end, 1, &error), DIBS_OK);
    dibs_task_free(t);
  }
  char all[200] = "";
  EXPECT(dibs_task_errors(store, nr, join_errors, all, &error), DIBS_OK);
  assert_string_equal(all, "error 1;error 2;");
}

static int keep_length(const dibs_task_info *info, void *user) {
  *(size_t *)user = info->text_length;
  assert_string_equal(info->text + info->text_length - 3, "end");
  return 0;
}

static void of_a_long_text_the_end_is_kept(void **state) {
  (void)state;
  uint64_t nr = add("x", (dibs_task_options){0});
  dibs_task *t = claimed(0);
  char text[5001];
  for (size_t i = 0; i + 1 < sizeof text; i += 2) memcpy(text + i, "\xc3\xa9", 2);
  memcpy(text + sizeof text - 4, "end", 4);
  EXPECT(dibs_task_done(t, text, &error), DIBS_OK);
  dibs_task_free(t);
  dibs_task_filter filter = {.size = sizeof filter, .nr = nr};
  size_t length = 0;
  EXPECT(dibs_tasks_list(store, &filter, 0, keep_length, &length, &error), DIBS_OK);
  assert_in_range(length, DIBS_TASK_TEXT_MAX - 3, DIBS_TASK_TEXT_MAX);
}

static void dead_at_once_and_parked_with_a_serial_text(void **state) {
  (void)state;
  uint64_t plain = add("x", (dibs_task_options){0});
  dibs_task *t = claimed(0);
  EXPECT(dibs_task_dead(t, "never", &error), DIBS_OK);
  dibs_task_free(t);
  assert_int_equal(state_of(plain), DIBS_TASK_DEAD);
  uint64_t first = add("1", (dibs_task_options){.serial = "key"});
  add("2", (dibs_task_options){.serial = "key"});
  add("3", (dibs_task_options){.serial = "other"});
  t = claimed(0);
  assert_int_equal(t->nr, first);
  EXPECT(dibs_task_dead(t, "poison", &error), DIBS_OK);
  dibs_task_free(t);
  assert_int_equal(state_of(first), DIBS_TASK_PARKED);
  t = claimed(0); /* of the other key */
  assert_string_equal(t->payload, "3");
  dibs_task *none;
  assert_int_equal(claim(1, 0, &none), 0);
  dibs_task_free(t);
  dibs_task_filter filter = {.size = sizeof filter, .kind = kind, .states = 1u << DIBS_TASK_PARKED};
  uint64_t changed, last;
  EXPECT(dibs_tasks_change(store, DIBS_TASK_CANCEL, &filter, 0, 0, &changed, &last, &error), DIBS_OK);
  assert_int_equal(changed, 1);
  assert_int_equal(last, first);
  t = claimed(0);
  assert_string_equal(t->payload, "2");
  dibs_task_free(t);
}

static void what_is_given_back_was_no_attempt(void **state) {
  (void)state;
  add("x", (dibs_task_options){0});
  dibs_task *t = claimed(0);
  EXPECT(dibs_task_release(t, &error), DIBS_OK);
  uint64_t first = t->fence.value;
  dibs_task_free(t);
  t = claimed(0);
  assert_int_equal(t->attempt, 1);
  assert_true(t->fence.value > first);
  dibs_task_free(t);
}

static void a_task_is_extended_once_in_a_call(void **state) {
  (void)state;
  add("x", (dibs_task_options){0});
  dibs_task *twice[2] = {claimed(0)};
  twice[1] = twice[0];
  EXPECT(dibs_tasks_extend(twice, 2, 0, NULL, &error), DIBS_INVALID);
  assert_non_null(strstr(error.text, "given twice"));
  EXPECT(dibs_tasks_extend(twice, 1, 0, NULL, &error), DIBS_OK);
  dibs_task_free(twice[0]);
}

static void several_claims_end_together(void **state) {
  (void)state;
  for (int i = 0; i < 4; i++) add("x", (dibs_task_options){0});
  dibs_task *tasks[4];
  assert_int_equal(claim(4, 0, tasks), 4);
  dibs_task_filter filter = {.size = sizeof filter, .nr = tasks[2]->nr};
  EXPECT(dibs_tasks_change(store, DIBS_TASK_CANCEL, &filter, 0, 0, NULL, NULL, &error), DIBS_OK);
  dibs_task_end ends[4];
  for (int i = 0; i < 4; i++) ends[i] = (dibs_task_end){.size = sizeof ends[i], .task = tasks[i]};
  ends[1].verdict = DIBS_END_NEXT;
  ends[1].phase = "next";
  ends[3].task = tasks[1];
  EXPECT(dibs_task_end_many(NULL, ends, 4, &error), DIBS_INVALID);
  assert_non_null(strstr(error.text, "given twice"));
  assert_int_equal(state_of(tasks[0]->nr), DIBS_TASK_CLAIMED);
  ends[3].task = tasks[3];
  EXPECT(dibs_task_end_many(NULL, ends, 4, &error), DIBS_OK);
  assert_int_equal(ends[0].status, DIBS_OK);
  assert_int_equal(ends[1].status, DIBS_OK);
  assert_int_equal(ends[2].status, DIBS_STALE);
  assert_int_equal(ends[3].status, DIBS_OK);
  assert_int_equal(state_of(tasks[0]->nr), DIBS_TASK_DONE);
  assert_int_equal(state_of(tasks[1]->nr), DIBS_TASK_READY);
  assert_int_equal(state_of(tasks[2]->nr), DIBS_TASK_CANCELLED);
  ends[0].verdict = (dibs_verdict)17;
  EXPECT(dibs_task_end_many(NULL, ends, 1, &error), DIBS_INVALID);
  for (int i = 0; i < 4; i++) dibs_task_free(tasks[i]);
}

static void a_task_outlives_its_store(void **state) {
  (void)state;
  add("x", (dibs_task_options){0});
  dibs_task *t = claimed(0);
  dibs_close(store);
  store = NULL;
  assert_string_equal(t->payload, "x");
  EXPECT(dibs_task_done(t, NULL, &error), DIBS_INVALID);
  dibs_task_free(t);
  dibs_task_free(NULL);
}

/* ---- For people ---- */

struct listed {
  uint64_t nrs[2000];
  size_t count, stop;
};

static int list_fn(const dibs_task_info *info, void *user) {
  struct listed *l = user;
  assert_string_equal(info->kind, kind);
  l->nrs[l->count++] = info->nr;
  return l->stop > 0 && l->count == l->stop;
}

static void a_listing_has_each_task_once_page_by_page(void **state) {
  (void)state;
  static dibs_task_new tasks[DIBS_TASKS_MAX];
  for (size_t i = 0; i < DIBS_TASKS_MAX; i++)
    tasks[i] = (dibs_task_new){.size = sizeof tasks[i], .payload = "p", .length = 1};
  EXPECT(dibs_task_add_many(store, kind, tasks, DIBS_TASKS_MAX, 0, &error), DIBS_OK);
  add("one more", (dibs_task_options){.phase = "special"});
  static struct listed l;
  l = (struct listed){0};
  dibs_task_filter filter = {.size = sizeof filter, .kind = kind};
  EXPECT(dibs_tasks_list(store, &filter, 0, list_fn, &l, &error), DIBS_OK);
  assert_int_equal(l.count, DIBS_TASKS_MAX + 1);
  for (size_t i = 1; i < l.count; i++) assert_true(l.nrs[i] > l.nrs[i - 1]);
  l = (struct listed){.stop = 7};
  EXPECT(dibs_tasks_list(store, &filter, DIBS_LIST_PAYLOADS, list_fn, &l, &error), DIBS_OK);
  assert_int_equal(l.count, 7);
  filter.phase = "special";
  l = (struct listed){0};
  EXPECT(dibs_tasks_list(store, &filter, 0, list_fn, &l, &error), DIBS_OK);
  assert_int_equal(l.count, 1);
}

static int kind_fn(const dibs_task_kind *k, void *user) {
  if (strcmp(k->kind, kind) != 0) return 0;
  *(dibs_task_kind *)user = *k;
  return 0;
}

static void kinds_are_counted_with_their_settings(void **state) {
  (void)state;
  add("1", (dibs_task_options){0});
  add("2", (dibs_task_options){0});
  add("3", (dibs_task_options){.delay_ms = 100000});
  dibs_task *t = claimed(0);
  dibs_kind_options o = {.size = sizeof o, .set = DIBS_KIND_RUNNING | DIBS_KIND_KEEP, .running = 1, .keep_ms = 5000};
  EXPECT(dibs_task_kind_set(store, kind, &o, &error), DIBS_OK);
  dibs_task_kind k = {0};
  EXPECT(dibs_tasks_count(store, kind, kind_fn, &k, &error), DIBS_OK);
  assert_int_equal(k.states[DIBS_TASK_CLAIMED], 1);
  assert_int_equal(k.states[DIBS_TASK_READY] + k.states[DIBS_TASK_ARRIVED], 1);
  assert_int_equal(k.states[DIBS_TASK_WAITING], 1);
  assert_int_equal(k.running, 1);
  assert_int_equal(k.paused, 0);
  assert_int_equal(k.keep_ms, 5000);
  assert_true(k.oldest_ms >= 0);
  dibs_task *other;
  assert_int_equal(claim(1, 0, &other), 0); /* one runs */
  EXPECT(dibs_task_done(t, NULL, &error), DIBS_OK);
  dibs_task_free(t);
  o = (dibs_kind_options){.size = sizeof o, .set = DIBS_KIND_PAUSED, .paused = 1};
  EXPECT(dibs_task_kind_set(store, kind, &o, &error), DIBS_OK);
  assert_int_equal(claim(1, 0, &other), 0);
  o.paused = 0;
  EXPECT(dibs_task_kind_set(store, kind, &o, &error), DIBS_OK);
  t = claimed(0);
  dibs_task_free(t);
  memset(&k, 0, sizeof k);
  EXPECT(dibs_tasks_count(store, NULL, kind_fn, &k, &error), DIBS_OK);
  assert_int_equal(k.states[DIBS_TASK_DONE], 1);
}

static void many_are_changed_by_hand(void **state) {
  (void)state;
  enum { DEAD = 5 };
  uint64_t nrs[DEAD], changed, last, before = 0;
  for (int i = 0; i < DEAD; i++) {
    nrs[i] = add("x", (dibs_task_options){0});
    dibs_task *t = claimed(0);
    EXPECT(dibs_task_dead(t, i == 0 ? "disk full" : "no route", &error), DIBS_OK);
    if (i == 1) before = t->fence.value; /* the fences of two tasks may be equal */
    dibs_task_free(t);
  }
  dibs_task_filter filter = {.size = sizeof filter, .kind = kind, .text = "route"};
  EXPECT(dibs_tasks_change(store, DIBS_TASK_RETRY, &filter, DIBS_CHANGE_DRY, 0, &changed, &last, &error), DIBS_OK);
  assert_int_equal(changed, DEAD - 1);
  assert_int_equal(state_of(nrs[1]), DIBS_TASK_DEAD);
  EXPECT(dibs_tasks_change(store, DIBS_TASK_RETRY, &filter, 0, 2, &changed, &last, &error), DIBS_OK);
  assert_int_equal(changed, 2);
  assert_int_equal(last, nrs[2]);
  filter.after = last;
  EXPECT(dibs_tasks_change(store, DIBS_TASK_RETRY, &filter, 0, 0, &changed, &last, &error), DIBS_OK);
  assert_int_equal(changed, 2);
  dibs_task *t = claimed(0);
  assert_int_equal(t->nr, nrs[1]);
  assert_int_equal(t->fails, 0);
  assert_true(t->fence.value > before); /* it never starts again */
  dibs_task_free(t);
  filter = (dibs_task_filter){.size = sizeof filter, .kind = kind};
  EXPECT(dibs_tasks_change(store, DIBS_TASK_PURGE, &filter, 0, 0, &changed, NULL, &error), DIBS_OK);
  assert_int_equal(changed, 1);
  assert_int_equal(state_of(nrs[0]), -1);
  EXPECT(dibs_tasks_change(store, DIBS_TASK_PURGE, NULL, 0, 0, NULL, NULL, &error), DIBS_INVALID);
}

/* Dead tasks with one unique text: one of them is ready again, and the others are left out.  They are more than one
 * request looks at. */
static void a_change_goes_on_behind_tasks_that_it_leaves_out(void **state) {
  (void)state;
  enum { TWINS = 3, MANY = 1100 };
  static dibs_task_new news[MANY - TWINS];
  dibs_task *tasks[DIBS_TASKS_MAX];
  uint64_t changed, last, largest = 0;
  for (int i = 0; i < TWINS; i++) {
    (void)add("twin", (dibs_task_options){.unique = "twin"});
    dibs_task *t = claimed(0);
    EXPECT(dibs_task_dead(t, "no route", &error), DIBS_OK);
    dibs_task_free(t);
  }
  for (size_t i = 0; i < COUNT_OF(news); i++) news[i] = (dibs_task_new){.size = sizeof news[i], .tries = 1};
  for (size_t at = 0; at < COUNT_OF(news); at += DIBS_TASKS_MAX) {
    size_t left = COUNT_OF(news) - at;
    EXPECT(dibs_task_add_many(store, kind, news + at, left < DIBS_TASKS_MAX ? left : DIBS_TASKS_MAX, 0, &error),
           DIBS_OK);
  }
  for (size_t done = 0, count; done < COUNT_OF(news); done += count) {
    static dibs_task_end ends[DIBS_TASKS_MAX];
    count = claim(DIBS_TASKS_MAX, 0, tasks);
    assert_true(count > 0);
    for (size_t i = 0; i < count; i++) {
      ends[i] = (dibs_task_end){.size = sizeof ends[i], .task = tasks[i], .verdict = DIBS_END_DEAD};
      if (tasks[i]->nr > largest) largest = tasks[i]->nr;
    }
    EXPECT(dibs_task_end_many(NULL, ends, count, &error), DIBS_OK);
    for (size_t i = 0; i < count; i++) dibs_task_free(tasks[i]);
  }
  dibs_task_filter filter = {.size = sizeof filter, .kind = kind};
  EXPECT(dibs_tasks_change(store, DIBS_TASK_RETRY, &filter, DIBS_CHANGE_DRY, 0, &changed, &last, &error), DIBS_OK);
  assert_int_equal(changed, MANY);
  /* As many as it may: those that it leaves out do not count. */
  EXPECT(dibs_tasks_change(store, DIBS_TASK_RETRY, &filter, 0, 10, &changed, &last, &error), DIBS_OK);
  assert_int_equal(changed, 10);
  filter.after = last;
  EXPECT(dibs_tasks_change(store, DIBS_TASK_CANCEL, &filter, 0, 0, &changed, &last, &error), DIBS_OK);
  assert_int_equal(changed, 0);
  filter.after = 0;
  EXPECT(dibs_tasks_change(store, DIBS_TASK_CANCEL, &filter, 0, 0, &changed, &last, &error), DIBS_OK);
  assert_int_equal(changed, 10);
  EXPECT(dibs_tasks_change(store, DIBS_TASK_RETRY, &filter, 0, 0, &changed, &last, &error), DIBS_OK);
  assert_int_equal(changed, MANY - (TWINS - 1));
  assert_int_equal(last, largest);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, open_bed, close_bed)

int main(int argc, char **argv) {
  begin_bed(argc, argv);
  const struct CMUnitTest tests[] = {
      CASE(a_task_is_claimed_as_it_was_added),
      CASE(an_empty_payload_and_a_large_one_are_kept),
      CASE(a_second_unfinished_task_with_a_unique_text_is_not_added),
      CASE(many_are_added_and_each_has_its_own_answer),
      CASE(wrong_arguments_of_add_are_named),
      CASE(nothing_ready_is_an_answer_and_a_wait_ends),
      CASE(a_claim_that_waits_gets_a_task_when_its_time_has_come),
      CASE(phases_priorities_and_order_are_heeded),
      CASE(a_claim_whose_time_is_over_is_refused_and_counts_as_a_failed_try),
      CASE(wrong_arguments_of_claim_are_named),
      CASE(an_extended_claim_lasts_longer),
      CASE(several_claims_are_extended_together),
      CASE(a_step_keeps_the_claim_and_survives_it),
      CASE(relock_waits_and_is_no_failure),
      CASE(a_task_that_fails_too_often_is_dead_and_keeps_its_errors),
      CASE(a_verdict_says_how_often_a_task_may_fail),
      CASE(the_errors_of_a_task_are_listed_in_their_order),
      CASE(of_a_long_text_the_end_is_kept),
      CASE(dead_at_once_and_parked_with_a_serial_text),
      CASE(what_is_given_back_was_no_attempt),
      CASE(a_task_is_extended_once_in_a_call),
      CASE(several_claims_end_together),
      CASE(a_task_outlives_its_store),
      CASE(a_listing_has_each_task_once_page_by_page),
      CASE(kinds_are_counted_with_their_settings),
      CASE(many_are_changed_by_hand),
      CASE(a_change_goes_on_behind_tasks_that_it_leaves_out),
  };
  return end_bed(cmocka_run_group_tests(tests, NULL, NULL));
}

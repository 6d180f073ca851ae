/* SPDX-License-Identifier: MIT */
/* Tasks (R70 to R73): failed and finished ones, and answers to single items. */
#include "task_calls.h"

#include <stdio.h>
#include <string.h>

static void expect_state(struct party *p, uint64_t nr, uint32_t state) {
  assert_int_equal(state_of(p, nr), state);
}

/* ---- R70 ---- */

static void R70_a_task_that_fails_too_often_is_dead(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nr = added(p, "k", .tries = 3);
  for (uint32_t i = 1; i <= 3; i++) {
    task_row got = claimed_in_time(p, "k", nr);
    expect_status(ended(p, got, DIBS__TASK_END_FAIL, .text = "no"), DIBS_OK);
    assert_int_equal(row_of(p, nr).fails, i);
  }
  expect_state(p, nr, DIBS__TASK_DEAD);
  expect_none_claimed(claimed(p, "k"));
  assert_int_equal(row_of(p, nr).attempts, 3);
  assert_int_equal(row_of(p, added(p, "k")).tries, DIBS__TASK_TRIES);
}

static void R70_an_end_may_say_how_often_its_task_may_fail(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nr = added(p, "k", .tries = 1);
  task_row got = claimed_in_time(p, "k", nr);
  expect_status(ended(p, got, DIBS__TASK_END_FAIL, .tries = 3), DIBS_OK);
  expect_state(p, nr, DIBS__TASK_READY);
  assert_int_equal(row_of(p, nr).tries, 1);
  got = claimed_in_time(p, "k", nr);
  expect_status(ended(p, got, DIBS__TASK_END_FAIL, .tries = 2, .delay_ms = TASK_LONG_MS), DIBS_OK);
  expect_state(p, nr, DIBS__TASK_DEAD);
}

static void R70_only_failed_tries_count(void **state) {
  (void)state;
  struct party *p = task_party();
  static const enum dibs__task_verdict verdicts[] = {DIBS__TASK_END_NEXT, DIBS__TASK_END_WAIT, DIBS__TASK_END_GIVE};
  uint64_t nr = added(p, "k", .tries = 1);
  for (int i = 0; i < 6; i++)
    expect_status(ended(p, claimed_in_time(p, "k", nr), verdicts[i % 3], .delay_ms = i == 1 ? 2 : 0), DIBS_OK);
  task_row row = row_of(p, nr);
  assert_int_equal(row.fails, 0);
  assert_int_equal(row.attempts, 4);
  expect_status(ended(p, claimed_in_time(p, "k", nr), DIBS__TASK_END_DEAD), DIBS_OK);
  row = row_of(p, nr);
  assert_int_equal(row.state, DIBS__TASK_DEAD);
  assert_int_equal(row.fails, 0);
}

static void R70_a_failed_task_waits_as_long_as_it_shall(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nr = added(p, "k");
  expect_status(ended(p, claimed_in_time(p, "k", nr), DIBS__TASK_END_FAIL, .delay_ms = TASK_LONG_MS), DIBS_OK);
  task_row row = row_of(p, nr);
  assert_int_equal(row.state, DIBS__TASK_WAITING);
  assert_true(row.due_ms >= row.began_ms + TASK_LONG_MS && row.due_ms <= row.at_ms + TASK_LONG_MS);
  expect_none_claimed(claimed(p, "k"));
  changed(p, DIBS__TASK_RETRY, only(nr));
  row = claimed_in_time(p, "k", nr);
  assert_int_equal(row.fails, 0);
}

static void R70_a_claim_whose_time_is_over_is_a_failed_try(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nr = added(p, "k", .tries = 2), other = added(p, "k", .tries = 1, .serial = str_of("s"));
  assert_int_equal(claimed(p, "k", .most = 2, .timeout_ms = TASK_SHORT_MS).count, 2);
  task_row row = claimed_in_time(p, "k", nr);
  assert_int_equal(row.fails, 1);
  expect_state(p, other, DIBS__TASK_PARKED);
  task_item item = {.nr = nr, .fence = row.fence};
  task_op op = task_call(DIBS__TASK_EXTEND, "k");
  op.items = &item;
  op.count = 1;
  op.timeout_ms = 1;
  expect(run_task(p, op), DIBS_OK);
  dibs__nap_ms(5);
  expect_none_claimed(claimed(p, "k"));
  expect_state(p, nr, DIBS__TASK_DEAD);
  assert_int_equal(row_of(p, nr).fails, 2);
}

static void R70_a_dead_task_with_a_serial_text_is_parked(void **state) {
  (void)state;
  struct party *p = task_party();
  static const enum dibs__task_verdict verdicts[] = {DIBS__TASK_END_FAIL, DIBS__TASK_END_DEAD};
  char kind[8];
  for (int by = 0; by < 3; by++) {
    snprintf(kind, sizeof kind, "k%d", by);
    uint64_t first = added(p, kind, .serial = str_of("s"), .tries = 1), second = added(p, kind, .serial = str_of("s")),
             other = added(p, kind, .serial = str_of("t"));
    struct claimed got = claimed(p, kind);
    expect_one(got, first);
    expect_status(ended(p, got.rows[0], verdicts[by % 2], .text = "no"), DIBS_OK);
    expect_state(p, first, DIBS__TASK_PARKED);
    expect_one(claimed(p, kind, .most = 9), other);
    if (by == 0) changed(p, DIBS__TASK_RETRY, only(first));
    if (by == 1) changed(p, DIBS__TASK_CANCEL, only(first));
    if (by == 2) changed(p, DIBS__TASK_PURGE, only(first));
    expect_one(claimed(p, kind, .most = 9), by == 0 ? first : second);
    if (by < 2) assert_int_equal(row_of(p, first).fails, 0);
    assert_true(task_exists(p, first) == (by < 2));
  }
}

/* Nothing of the key runs before a person decides about the parked task. */
static void R70_a_retried_task_waits_for_a_parked_one(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nrs[2];
  added_many(p, "k", 2, (task_new){.serial = str_of("s")}, nrs);
  changed(p, DIBS__TASK_CANCEL, only(nrs[0]));
  expect_status(ended(p, claimed_in_time(p, "k", nrs[1]), DIBS__TASK_END_DEAD), DIBS_OK);
  changed(p, DIBS__TASK_RETRY, only(nrs[0]));
  expect_state(p, nrs[0], DIBS__TASK_BLOCKED);
  expect_state(p, nrs[1], DIBS__TASK_PARKED);
  expect_none_claimed(claimed(p, "k"));
  changed(p, DIBS__TASK_PURGE, only(nrs[1]));
  expect_one(claimed(p, "k"), nrs[0]);
}

/* ---- R71 ---- */

static void R71_the_last_errors_are_kept(void **state) {
  (void)state;
  struct party *p = task_party();
  enum { FAILS = DIBS__TASK_ERRORS + 3 };
  uint64_t nr = added(p, "k", .tries = FAILS), fences[FAILS + 1];
  char text[16];
  for (int i = 1; i <= FAILS; i++) {
    snprintf(text, sizeof text, "error %d", i);
    task_row got = claimed_in_time(p, "k", nr);
    fences[i] = got.fence.v;
    expect_status(ended(p, got, DIBS__TASK_END_FAIL, .text = text), DIBS_OK);
    if (i == 2) assert_string_equal(row_of(p, nr).text.p, "error 2");
  }
  for (int round = 0; round < 2; round++) {
    task_op errors = errors_of(p, nr);
    const task_row *rows = errors.got;
    assert_int_equal(errors.got_count, DIBS__TASK_ERRORS);
    for (int i = 0; i < DIBS__TASK_ERRORS; i++) {
      snprintf(text, sizeof text, "error %d", i + 1 + FAILS - DIBS__TASK_ERRORS);
      assert_string_equal(rows[i].text.p, text);
      assert_string_equal(rows[i].by.p, "somebody");
      assert_int_equal(rows[i].fence.v, fences[i + 1 + FAILS - DIBS__TASK_ERRORS]);
      assert_true(rows[i].at_ms >= row_of(p, nr).made_ms);
    }
    if (round == 0) expect_state(p, nr, DIBS__TASK_DEAD);
    assert_string_equal(row_of(p, nr).text.p, text);
    changed(p, DIBS__TASK_RETRY, only(nr));
  }
  changed(p, DIBS__TASK_CANCEL, only(nr));
  changed(p, DIBS__TASK_PURGE, only(nr));
  assert_int_equal(errors_of(p, nr).got_count, 0);
}

static void R71_a_claim_that_ended_is_an_error(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nr = added(p, "k");
  struct claimed got = claimed(p, "k", .timeout_ms = TASK_SHORT_MS, .by = "node 7");
  expect_one(got, nr);
  claimed_in_time(p, "k", nr);
  task_op errors = errors_of(p, nr);
  const task_row *rows = errors.got;
  assert_int_equal(errors.got_count, 1);
  assert_string_equal(rows[0].text.p, "the claim of node 7 ended without an answer");
  assert_string_equal(rows[0].by.p, "node 7");
  assert_int_equal(rows[0].fence.v, got.rows[0].fence.v);
}

static void R71_a_long_text_keeps_its_end(void **state) {
  (void)state;
  struct party *p = task_party();
  enum { MORE = 100 };
  static char text[DIBS__TASK_TEXT_MAX + MORE + 1];
  for (int i = 0; i < DIBS__TASK_TEXT_MAX + MORE; i++) text[i] = (char)('a' + i % 26);
  uint64_t failed = added(p, "k", .tries = 1), done = added(p, "k");
  expect_status(ended(p, claimed_in_time(p, "k", failed), DIBS__TASK_END_FAIL, .text = text), DIBS_OK);
  expect_status(ended(p, claimed_in_time(p, "k", done), DIBS__TASK_END_DONE, .text = text), DIBS_OK);
  assert_string_equal(row_of(p, failed).text.p, text + MORE);
  assert_string_equal(row_of(p, done).text.p, text + MORE);
  assert_int_equal(row_of(p, done).text.len, DIBS__TASK_TEXT_MAX);
}

static void R71_an_error_may_contain_any_bytes(void **state) {
  (void)state;
  struct party *p = task_party();
  static const char bytes[] = "a\0b\xff\x01'\\\n";
  uint64_t nr = added(p, "k");
  struct claimed got = claimed(p, "k");
  task_item item = {.nr = nr, .fence = got.rows[0].fence, .verdict = DIBS__TASK_END_FAIL};
  item.text = dibs__str_of(bytes, 8);
  task_op op = task_call(DIBS__TASK_END, "k");
  op.items = &item;
  op.count = 1;
  expect(run_task(p, op), DIBS_OK);
  expect_status(item.status, DIBS_OK);
  task_row row = row_of(p, nr);
  assert_int_equal(row.text.len, 8);
  assert_memory_equal(row.text.p, bytes, 8);
}

/* ---- R72 ---- */

static void R72_a_finished_task_is_kept(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t done = added(p, "k"), cancelled = added(p, "k");
  expect_status(ended(p, claimed_in_time(p, "k", done), DIBS__TASK_END_DONE, .text = "all", .phase = "last"), DIBS_OK);
  changed(p, DIBS__TASK_CANCEL, only(cancelled));
  expect_none_claimed(claimed(p, "k", .most = 9));
  task_row row = row_of(p, done);
  assert_int_equal(row.state, DIBS__TASK_DONE);
  assert_string_equal(row.text.p, "all");
  assert_string_equal(row.phase.p, "last");
  assert_int_equal(row.due_ms, row.at_ms + DIBS__TASK_KEEP_MS);
  row = row_of(p, cancelled);
  assert_int_equal(row.due_ms, row.at_ms + DIBS__TASK_KEEP_MS);
}

static void wait_until_gone(struct party *p, uint64_t nr) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), TASK_PATIENCE_MS);
  const struct dibs__driver *driver = store_of(p)->driver;
  while (task_exists(p, nr)) {
    if (!dibs__tick_before(dibs__tick_now(), by)) fail_msg("the task is still kept after its time");
    dibs__nap_ms(5);
    if (driver->tidy) driver->tidy(store_of(p));
  }
}

static void R72_a_finished_task_is_deleted_after_its_time(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t dead = added(p, "k"), done = added(p, "k"), kept = added(p, "k"), cancelled = added(p, "k");
  expect_status(ended(p, claimed_in_time(p, "k", dead), DIBS__TASK_END_DEAD, .text = "no"), DIBS_OK);
  struct claimed got = claimed(p, "k", .most = 2);
  expect_claimed(got, 2, (const uint64_t[]){done, kept});
  bool kept_first = got.rows[0].nr == kept; /* if the claim was repeated, they come by number */
  task_row of_kept = got.rows[!kept_first], of_done = got.rows[kept_first];
  expect_status(ended(p, of_kept, DIBS__TASK_END_DONE), DIBS_OK);
  set_kind(p, "k", 0, false, TASK_SHORT_MS);
  assert_int_equal(count_of(p, "k").keep_ms, TASK_SHORT_MS);
  expect_status(ended(p, of_done, DIBS__TASK_END_DONE), DIBS_OK);
  changed(p, DIBS__TASK_CANCEL, only(cancelled));
  wait_until_gone(p, done);
  wait_until_gone(p, cancelled);
  expect_state(p, kept, DIBS__TASK_DONE); /* it was finished before */
  expect_state(p, dead, DIBS__TASK_DEAD);
  assert_int_equal(row_of(p, dead).due_ms, 0);
  expect_status(ended(p, of_done, DIBS__TASK_END_DONE), DIBS_NOT_FOUND);
  changed(p, DIBS__TASK_PURGE, only(dead));
  assert_false(task_exists(p, dead));
}

static void R72_a_done_task_is_not_retried(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nr = added(p, "k");
  expect_status(ended(p, claimed_in_time(p, "k", nr), DIBS__TASK_END_DONE), DIBS_OK);
  assert_int_equal(changed(p, DIBS__TASK_RETRY, only(nr)).changed, 0);
  assert_int_equal(changed(p, DIBS__TASK_CANCEL, only(nr)).changed, 0);
  expect_state(p, nr, DIBS__TASK_DONE);
}

/* ---- R73 ---- */

static void R73_a_bad_item_of_add_is_refused_alone(void **state) {
  (void)state;
  struct party *p = task_party();
  static char long_text[DIBS_NAME_MAX + 1];
  memset(long_text, 'x', sizeof long_text);
  dibs__str too_long = dibs__str_of(long_text, sizeof long_text), fits = dibs__str_of(long_text, DIBS_NAME_MAX);
  task_new news[] = {{.phase = fits, .serial = fits, .unique = fits},
                     {.phase = too_long},
                     {.serial = too_long},
                     {.unique = too_long},
                     {.priority = DIBS__TASK_PRIORITY + 1},
                     {.priority = -DIBS__TASK_PRIORITY - 1},
                     {.delay_ms = -1},
                     {.at_ms = -1},
                     {.delay_ms = DIBS__TASK_MS_MAX + 1},
                     {.at_ms = DIBS__TASK_MS_MAX + 1},
                     {.at_ms = DIBS__TASK_MS_MAX, .delay_ms = DIBS__TASK_MS_MAX}};
  enum { COUNT = sizeof news / sizeof news[0] };
  task_op op = task_call(DIBS__TASK_ADD, "k");
  op.news = news;
  op.count = COUNT;
  op.token = name_of("t");
  op.token_ms = TASK_LONG_MS;
  expect(run_task(p, op), DIBS_OK);
  for (int i = 0; i < COUNT; i++) {
    bool good = i == 0 || i == COUNT - 1;
    expect_status(news[i].status, good ? DIBS_OK : DIBS_INVALID);
    assert_true((news[i].nr != 0) == good);
  }
  task_row row = row_of(p, news[0].nr);
  assert_int_equal(row.phase.len, DIBS_NAME_MAX);
  assert_int_equal(row.serial.len, DIBS_NAME_MAX);
  assert_int_equal(row.unique.len, DIBS_NAME_MAX);
  admit(p, "k");
  struct dibs__task_kind count = count_of(p, "k");
  assert_int_equal(count.states[DIBS__TASK_READY], 1);
  assert_int_equal(count.states[DIBS__TASK_WAITING], 1);
}

static void R73_each_item_of_end_has_its_answer(void **state) {
  (void)state;
  struct party *p = task_party();
  static char long_text[DIBS_NAME_MAX + 1];
  uint64_t nrs[8];
  added_many(p, "k", 8, (task_new){.nr = 0}, nrs);
  struct claimed got = claimed(p, "k", .most = 7);
  assert_int_equal(got.count, 7);
  dibs__fence one = got.rows[0].fence, next = {one.v + 1}; /* they were claimed together */
  task_item items[] = {{.nr = nrs[0], .fence = one, .verdict = DIBS__TASK_END_DONE},
                       {.nr = nrs[7] + 1000000, .fence = one, .verdict = DIBS__TASK_END_DONE},
                       {.nr = nrs[1], .fence = next, .verdict = DIBS__TASK_END_DONE},
                       {.nr = nrs[2], .fence = one, .verdict = DIBS__TASK_END_GIVE + 1},
                       {.nr = nrs[3], .fence = one, .verdict = DIBS__TASK_END_WAIT, .delay_ms = -1},
                       {.nr = nrs[4], .fence = one, .verdict = DIBS__TASK_END_NEXT, .phase = {long_text, 256}},
                       {.nr = nrs[5], .fence = one, .verdict = DIBS__TASK_END_FAIL},
                       {.nr = nrs[7], .fence = {0}, .verdict = DIBS__TASK_END_DONE},
                       {.nr = 0, .fence = one, .verdict = DIBS__TASK_END_DONE},
                       {.nr = nrs[6], .fence = one, .verdict = DIBS__TASK_END_WAIT, .delay_ms = TASK_LONG_MS}};
  static const dibs__status want[] = {DIBS_OK,      DIBS_NOT_FOUND, DIBS_STALE, DIBS_INVALID,   DIBS_INVALID,
                                      DIBS_INVALID, DIBS_OK,        DIBS_STALE, DIBS_NOT_FOUND, DIBS_OK};
  static const uint32_t states[] = {DIBS__TASK_DONE,    DIBS__TASK_CLAIMED, DIBS__TASK_CLAIMED, DIBS__TASK_CLAIMED,
                                    DIBS__TASK_CLAIMED, DIBS__TASK_READY,   DIBS__TASK_WAITING, DIBS__TASK_READY};
  task_op op = task_call(DIBS__TASK_END, "k");
  op.items = items;
  op.count = sizeof items / sizeof items[0];
  expect(run_task(p, op), DIBS_OK);
  for (uint32_t i = 0; i < op.count; i++) expect_status(items[i].status, want[i]);
  for (int i = 0; i < 8; i++) expect_state(p, nrs[i], states[i]);
}

static void R73_each_item_of_extend_has_its_answer(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nrs[4];
  added_many(p, "k", 4, (task_new){.nr = 0}, nrs);
  struct claimed got = claimed(p, "k", .most = 3);
  assert_int_equal(got.count, 3);
  dibs__fence one = got.rows[0].fence, next = {one.v + 1};
  task_item items[] = {{.nr = nrs[0], .fence = one},
                       {.nr = nrs[1], .fence = next},
                       {.nr = nrs[3] + 1000000, .fence = one},
                       {.nr = nrs[3], .fence = one},
                       {.nr = nrs[2], .fence = one, .phase = str_of("x")}};
  static const dibs__status want[] = {DIBS_OK, DIBS_STALE, DIBS_NOT_FOUND, DIBS_STALE, DIBS_OK};
  task_op op = task_call(DIBS__TASK_EXTEND, "k");
  op.items = items;
  op.count = 5;
  op.timeout_ms = 2 * TASK_LONG_MS;
  expect(run_task(p, op), DIBS_OK);
  for (int i = 0; i < 5; i++) {
    expect_status(items[i].status, want[i]);
    if (want[i] == DIBS_OK) assert_int_equal(row_of(p, items[i].nr).due_ms, items[i].due_ms);
  }
  assert_true(row_of(p, nrs[0]).due_ms > row_of(p, nrs[1]).due_ms + TASK_LONG_MS / 2);
  assert_string_equal(row_of(p, nrs[2]).phase.p, "x");
}

/* (A repeated claim answers by number.) */
static dibs__fence fence_of(struct claimed got, uint64_t nr) {
  for (uint32_t i = 0; i < got.count; i++)
    if (got.rows[i].nr == nr) return got.rows[i].fence;
  fail_msg("task %llu is not claimed", (unsigned long long)nr);
  return (dibs__fence){0};
}

static void R73_a_task_that_is_named_twice_is_answered_in_order(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nrs[3];
  added_many(p, "k", 3, (task_new){.nr = 0}, nrs);
  struct claimed got = claimed(p, "k", .most = 3);
  expect_claimed(got, 3, nrs);
  dibs__fence one = fence_of(got, nrs[0]), two = fence_of(got, nrs[1]), three = fence_of(got, nrs[2]);
  task_item extends[] = {{.nr = nrs[0], .fence = one, .phase = str_of("one")},
                         {.nr = nrs[1], .fence = two},
                         {.nr = nrs[0], .fence = one, .phase = str_of("two")},
                         {.nr = nrs[1], .fence = {two.v + 1}},
                         {.nr = nrs[2], .fence = three},
                         {.nr = nrs[2], .fence = three}};
  task_op op = task_call(DIBS__TASK_EXTEND, "k");
  op.items = extends;
  op.count = sizeof extends / sizeof extends[0];
  expect(run_task(p, op), DIBS_OK);
  for (uint32_t i = 0; i < op.count; i++) expect_status(extends[i].status, i == 3 ? DIBS_STALE : DIBS_OK);
  assert_string_equal(row_of(p, nrs[0]).phase.p, "two");

  task_item ends[] = {{.nr = nrs[0], .fence = one, .verdict = DIBS__TASK_END_DONE, .text = str_of("one")},
                      {.nr = nrs[0], .fence = one, .verdict = DIBS__TASK_END_DONE, .text = str_of("two")},
                      {.nr = nrs[1], .fence = two, .verdict = DIBS__TASK_END_FAIL, .delay_ms = TASK_LONG_MS},
                      {.nr = nrs[1], .fence = two, .verdict = DIBS__TASK_END_DONE},
                      {.nr = nrs[2], .fence = three, .verdict = DIBS__TASK_END_GIVE + 1},
                      {.nr = nrs[2], .fence = three, .verdict = DIBS__TASK_END_GIVE}};
  static const dibs__status want[] = {DIBS_OK, DIBS_OK, DIBS_OK, DIBS_STALE, DIBS_INVALID, DIBS_OK};
  op = task_call(DIBS__TASK_END, "k");
  op.items = ends;
  op.count = sizeof ends / sizeof ends[0];
  expect(run_task(p, op), DIBS_OK);
  for (uint32_t i = 0; i < op.count; i++) expect_status(ends[i].status, want[i]);
  assert_string_equal(row_of(p, nrs[0]).text.p, "one");
  assert_int_equal(row_of(p, nrs[1]).fails, 1);
  expect_state(p, nrs[1], DIBS__TASK_WAITING);
  expect_state(p, nrs[2], DIBS__TASK_READY);
}

static void R73_an_operation_may_have_a_thousand_items(void **state) {
  (void)state;
  struct party *p = task_party();
  static uint64_t nrs[DIBS__TASK_ITEMS];
  static task_item items[DIBS__TASK_ITEMS + 1];
  added_many(p, "k", DIBS__TASK_ITEMS, (task_new){.payload = str_of("work")}, nrs);
  struct claimed got = claimed(p, "k", .most = DIBS__TASK_ITEMS);
  expect_claimed(got, DIBS__TASK_ITEMS, nrs);
  for (int i = 0; i < DIBS__TASK_ITEMS; i++) items[i] = (task_item){.nr = nrs[i], .fence = got.rows[0].fence};
  task_op op = task_call(DIBS__TASK_EXTEND, "k");
  op.items = items;
  op.count = DIBS__TASK_ITEMS;
  expect(run_task(p, op), DIBS_OK);
  op.op.verb = DIBS__TASK_END;
  for (int i = 0; i < DIBS__TASK_ITEMS; i++) items[i].verdict = i % 2 ? DIBS__TASK_END_DONE : DIBS__TASK_END_FAIL;
  expect(run_task(p, op), DIBS_OK);
  for (int i = 0; i < DIBS__TASK_ITEMS; i++) expect_status(items[i].status, DIBS_OK);
  struct dibs__task_kind count = count_of(p, "k");
  assert_int_equal(count.states[DIBS__TASK_DONE], DIBS__TASK_ITEMS / 2);
  assert_int_equal(count.states[DIBS__TASK_READY], DIBS__TASK_ITEMS / 2);
  op.count = DIBS__TASK_ITEMS + 1;
  expect(run_task(p, op), DIBS_INVALID);
}

static const struct CMUnitTest contract_tasks_ends_cases[] = {
    CASE(R70_a_task_that_fails_too_often_is_dead),
    CASE(R70_an_end_may_say_how_often_its_task_may_fail),
    CASE(R70_only_failed_tries_count),
    CASE(R70_a_failed_task_waits_as_long_as_it_shall),
    CASE(R70_a_claim_whose_time_is_over_is_a_failed_try),
    CASE(R70_a_dead_task_with_a_serial_text_is_parked),
    CASE(R70_a_retried_task_waits_for_a_parked_one),
    CASE(R71_the_last_errors_are_kept),
    CASE(R71_a_claim_that_ended_is_an_error),
    CASE(R71_a_long_text_keeps_its_end),
    CASE(R71_an_error_may_contain_any_bytes),
    CASE(R72_a_finished_task_is_kept),
    CASE(R72_a_finished_task_is_deleted_after_its_time),
    CASE(R72_a_done_task_is_not_retried),
    CASE(R73_a_bad_item_of_add_is_refused_alone),
    CASE(R73_each_item_of_end_has_its_answer),
    CASE(R73_each_item_of_extend_has_its_answer),
    CASE(R73_a_task_that_is_named_twice_is_answered_in_order),
    CASE(R73_an_operation_may_have_a_thousand_items),
};
CONTRACT_TESTS(contract_tasks_ends);

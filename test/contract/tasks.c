/* SPDX-License-Identifier: MIT */
/* Tasks (R60 to R66): claims, their fences, and operations that are repeated. */
#include "task_calls.h"

#include <string.h>

static dibs__fence fence_after(dibs__fence fence, int64_t n) {
  return (dibs__fence){(uint64_t)((int64_t)fence.v + n)};
}

/* ---- R60 ---- */

static void R60_a_task_is_claimed_by_one_claim(void **state) {
  (void)state;
  struct party *p = task_party(), *q = party();
  uint64_t nr = added(p, "k", .payload = str_of("work"));
  expect_none_claimed(claimed(q, "another"));
  struct claimed got = claimed(p, "k", .by = "first");
  expect_one(got, nr);
  assert_string_equal(got.rows[0].payload.p, "work");
  assert_string_equal(got.rows[0].by.p, "first");
  assert_int_equal(got.rows[0].attempts, 1);
  struct claimed none = claimed(q, "k", .most = 10);
  expect_none_claimed(none);
  assert_true(none.next_ms > 0 && none.next_ms <= TASK_LONG_MS);
  assert_int_equal(claimed(q, "another").next_ms, -1);
  expect_status(ended(p, got.rows[0], DIBS__TASK_END_NEXT), DIBS_OK);
  got = claimed(q, "k");
  expect_one(got, nr);
  expect_none_claimed(claimed(p, "k"));
  expect_status(ended(q, got.rows[0], DIBS__TASK_END_GIVE), DIBS_OK);
  expect_one(claimed(p, "k"), nr);
}

static void R60_a_claim_ends_with_its_time(void **state) {
  (void)state;
  struct party *p = task_party(), *q = party();
  uint64_t nr = added(p, "k");
  struct claimed got = claimed(p, "k", .timeout_ms = TASK_SHORT_MS);
  expect_one(got, nr);
  assert_true(got.rows[0].due_ms - got.rows[0].began_ms == TASK_SHORT_MS || got.in_doubt);
  task_row again = claimed_in_time(q, "k", nr);
  assert_true(again.began_ms >= got.rows[0].due_ms);
  assert_int_equal(again.attempts, 2);
}

static void R60_a_given_back_claim_is_no_attempt(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nr = added(p, "k"), fence = 0;
  for (int i = 1; i <= 3; i++) {
    struct claimed got = claimed(p, "k");
    expect_one(got, nr);
    assert_int_equal(got.rows[0].attempts, 1);
    assert_true(got.rows[0].fence.v > fence);
    fence = got.rows[0].fence.v;
    expect_status(ended(p, got.rows[0], DIBS__TASK_END_GIVE), DIBS_OK);
    assert_int_equal(row_of(p, nr).attempts, 0);
  }
}

/* ---- R61 ---- */

static void R61_each_claim_has_a_larger_fence(void **state) {
  (void)state;
  struct party *p = task_party(), *q = party();
  static const enum dibs__task_verdict verdicts[] = {DIBS__TASK_END_NEXT, DIBS__TASK_END_FAIL, DIBS__TASK_END_GIVE,
                                                     DIBS__TASK_END_WAIT};
  uint64_t nr = added(p, "k"), last = 0;
  assert_int_equal(row_of(p, nr).fence.v, 0);
  for (uint64_t i = 1; i <= 8; i++) {
    task_row got = claimed_in_time(i % 2 ? p : q, "k", nr);
    assert_true(got.fence.v > last);
    last = got.fence.v;
    expect_status(ended(p, got, verdicts[i % 4]), DIBS_OK);
    assert_int_equal(row_of(p, nr).fence.v, last);
  }
}

/* By one statement, and by two, as with several phases. */
static void R61_a_fence_is_not_before_its_instant(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nr = added(p, "k");
  struct claimed got = claimed(p, "k");
  expect_one(got, nr);
  assert_true(got.rows[0].began_ms > 0 && got.rows[0].fence.v >= (uint64_t)got.rows[0].began_ms);
  expect_status(ended(p, got.rows[0], DIBS__TASK_END_NEXT), DIBS_OK);
  got = claimed(p, "k", .phases = {"", "a"});
  expect_one(got, nr);
  assert_true(got.rows[0].fence.v >= (uint64_t)got.rows[0].began_ms);
  assert_int_equal(row_of(p, nr).fence.v, got.rows[0].fence.v);
}

static void R61_the_fence_remains_after_a_retry_by_hand(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nr = added(p, "k");
  task_row got = claimed_in_time(p, "k", nr);
  expect_status(ended(p, got, DIBS__TASK_END_DEAD, .text = "no"), DIBS_OK);
  assert_int_equal(state_of(p, nr), DIBS__TASK_DEAD);
  changed(p, DIBS__TASK_RETRY, only(nr));
  uint64_t first = got.fence.v;
  assert_int_equal(row_of(p, nr).fence.v, first);
  got = claimed_in_time(p, "k", nr);
  assert_true(got.fence.v > first);
  uint64_t second = got.fence.v;
  changed(p, DIBS__TASK_CANCEL, only(nr));
  changed(p, DIBS__TASK_RETRY, only(nr));
  got = claimed_in_time(p, "k", nr);
  assert_true(got.fence.v > second);
}

/* ---- R62 ---- */

static void R62_only_the_present_fence_ends_a_claim(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nr = added(p, "k");
  struct claimed old = claimed(p, "k");
  expect_one(old, nr);
  expect_status(ended(p, old.rows[0], DIBS__TASK_END_GIVE), DIBS_OK);
  struct claimed got = claimed(p, "k");
  task_row before = row_of(p, nr);
  dibs__fence now = got.rows[0].fence;
  for (int n = -2; n <= 1; n++) {
    if (n == 0) continue;
    task_row other = {.nr = nr, .fence = fence_after(now, n)};
    expect_status(ended(p, other, DIBS__TASK_END_DONE), DIBS_STALE);
    expect_status(ended(p, other, DIBS__TASK_END_FAIL, .text = "late", .phase = "x"), DIBS_STALE);
    expect_status(extended(p, other, TASK_LONG_MS * 2, "x"), DIBS_STALE);
  }
  task_row after = row_of(p, nr);
  assert_int_equal(after.state, DIBS__TASK_CLAIMED);
  assert_int_equal(after.due_ms, before.due_ms);
  assert_int_equal(after.fails, 0);
  assert_int_equal(after.phase.len, 0);
  assert_int_equal(errors_of(p, nr).got_count, 0);
  expect_status(ended(p, got.rows[0], DIBS__TASK_END_DONE), DIBS_OK);
  expect_status(extended(p, got.rows[0], TASK_LONG_MS, ""), DIBS_STALE);
  expect_status(ended(p, got.rows[0], DIBS__TASK_END_FAIL), DIBS_STALE);
}

static void R62_a_task_that_does_not_exist_is_not_found(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nr = added(p, "k");
  task_row other = {.nr = nr + 1000000, .fence = {1}};
  expect_status(ended(p, other, DIBS__TASK_END_DONE), DIBS_NOT_FOUND);
  expect_status(extended(p, other, TASK_LONG_MS, ""), DIBS_NOT_FOUND);
  expect_status(ended(p, ((task_row){.nr = nr, .fence = {1}}), DIBS__TASK_END_DONE), DIBS_STALE);
  assert_int_equal(state_of(p, nr), DIBS__TASK_READY);
}

static void R62_a_late_answer_counts_before_another_claim(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nr = added(p, "k"), other = added(p, "k");
  struct claimed got = claimed(p, "k", .most = 2, .timeout_ms = TASK_SHORT_MS);
  assert_int_equal(got.count, 2);
  nap_past_short();
  assert_int_equal(state_of(p, nr), DIBS__TASK_CLAIMED);
  uint32_t of_other = got.rows[0].nr == other ? 0 : 1;
  expect_status(ended(p, got.rows[1 - of_other], DIBS__TASK_END_DONE), DIBS_OK);
  assert_int_equal(state_of(p, nr), DIBS__TASK_DONE);
  expect_status(extended(p, got.rows[of_other], TASK_LONG_MS, ""), DIBS_OK);
  expect_none_claimed(claimed(p, "k"));
  assert_int_equal(row_of(p, other).fails, 0);
  expect_status(ended(p, got.rows[of_other], DIBS__TASK_END_DONE), DIBS_OK);
}

static void R62_a_late_answer_is_stale_after_another_claim(void **state) {
  (void)state;
  struct party *p = task_party(), *q = party();
  uint64_t nr = added(p, "k");
  struct claimed late = claimed(p, "k", .timeout_ms = TASK_SHORT_MS);
  expect_one(late, nr);
  task_row got = claimed_in_time(q, "k", nr);
  expect_status(ended(p, late.rows[0], DIBS__TASK_END_DONE), DIBS_STALE);
  expect_status(extended(p, late.rows[0], TASK_LONG_MS, ""), DIBS_STALE);
  assert_int_equal(state_of(p, nr), DIBS__TASK_CLAIMED);
  expect_status(ended(q, got, DIBS__TASK_END_DONE), DIBS_OK);
}

/* The claim took a task with a higher priority; the late one is ready. */
static void R62_a_claim_of_the_kind_ends_late_ones(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nr = added(p, "k");
  struct claimed late = claimed(p, "k", .timeout_ms = TASK_SHORT_MS);
  expect_one(late, nr);
  nap_past_short();
  uint64_t first = added(p, "k", .priority = 5);
  expect_one(claimed(p, "k"), first);
  assert_int_equal(state_of(p, nr), DIBS__TASK_READY);
  assert_int_equal(row_of(p, nr).fails, 1);
  expect_status(ended(p, late.rows[0], DIBS__TASK_END_DONE), DIBS_STALE);
}

static void R62_an_extended_claim_lasts_longer(void **state) {
  (void)state;
  struct party *p = task_party(), *q = party();
  uint64_t nr = added(p, "k", .phase = str_of("one"));
  struct claimed got = claimed(p, "k", .timeout_ms = TASK_SHORT_MS);
  expect_status(extended(p, got.rows[0], TASK_LONG_MS, "two"), DIBS_OK);
  nap_past_short();
  expect_none_claimed(claimed(q, "k"));
  task_row row = row_of(p, nr);
  assert_int_equal(row.state, DIBS__TASK_CLAIMED);
  assert_string_equal(row.phase.p, "two");
  assert_true(row.due_ms >= row.began_ms + TASK_LONG_MS);
  expect_status(ended(p, got.rows[0], DIBS__TASK_END_NEXT), DIBS_OK);
  expect_none_claimed(claimed(q, "k", .phases = {"one"}));
  expect_one(claimed(q, "k", .phases = {"two"}), nr);
}

static void R62_extend_answers_the_end_of_the_claim(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nr = added(p, "k");
  struct claimed got = claimed(p, "k");
  task_item item = {.nr = nr, .fence = got.rows[0].fence};
  task_op op = task_call(DIBS__TASK_EXTEND, "k");
  op.items = &item;
  op.count = 1;
  op.timeout_ms = 3 * TASK_LONG_MS;
  expect(run_task(p, op), DIBS_OK);
  expect_status(item.status, DIBS_OK);
  assert_int_equal(row_of(p, nr).due_ms, item.due_ms);
}

/* ---- R63 ---- */

/* Then the first answer that arrives may be that of a repeat. */
static bool loses_answers(void) {
  return strncmp(case_store_uri(), "fault+", strlen("fault+")) == 0;
}

static void R63_a_repeated_end_changes_nothing(void **state) {
  (void)state;
  struct party *p = task_party();
  for (int verdict = DIBS__TASK_END_DONE; verdict <= DIBS__TASK_END_GIVE; verdict++) {
    enum dibs__task_verdict same = (enum dibs__task_verdict)verdict, another = DIBS__TASK_END_DONE;
    if (same == another) another = DIBS__TASK_END_NEXT;
    uint64_t nr = added(p, "k");
    struct claimed got = claimed(p, "k");
    expect_one(got, nr);
    expect_status(ended(p, got.rows[0], same, .text = "text", .delay_ms = TASK_LONG_MS), DIBS_OK);
    task_row once = row_of(p, nr);
    for (int i = 0; i < 2; i++)
      expect_status(ended(p, got.rows[0], same, .text = "text", .delay_ms = TASK_LONG_MS), DIBS_OK);
    task_item item = {.nr = nr, .fence = got.rows[0].fence, .verdict = same};
    task_op repeat = task_call(DIBS__TASK_END, "");
    repeat.items = &item;
    repeat.count = 1;
    expect(run_task(p, repeat), DIBS_OK);
    expect_status(item.status, DIBS_OK);
    assert_true(item.repeated);
    expect_status(ended(p, got.rows[0], another, .text = "other"), DIBS_STALE);
    task_row twice = row_of(p, nr);
    assert_int_equal(twice.state, once.state);
    assert_int_equal(twice.attempts, once.attempts);
    assert_int_equal(twice.fails, once.fails);
    assert_int_equal(twice.due_ms, once.due_ms);
    assert_string_equal(twice.text.p, once.text.p);
    assert_true(errors_of(p, nr).got_count <= 1);
    changed(p, DIBS__TASK_CANCEL, only(nr));
  }
}

static void R63_an_end_is_remembered_until_the_next(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nr = added(p, "k");
  struct claimed first = claimed(p, "k");
  expect_status(ended(p, first.rows[0], DIBS__TASK_END_NEXT), DIBS_OK);
  struct claimed second = claimed(p, "k");
  expect_one(second, nr);
  expect_status(ended(p, first.rows[0], DIBS__TASK_END_NEXT), DIBS_OK);
  assert_int_equal(state_of(p, nr), DIBS__TASK_CLAIMED); /* and the second claim goes on */
  expect_status(ended(p, second.rows[0], DIBS__TASK_END_FAIL), DIBS_OK);
  expect_status(ended(p, first.rows[0], DIBS__TASK_END_NEXT), DIBS_STALE);
  expect_status(ended(p, second.rows[0], DIBS__TASK_END_FAIL), DIBS_OK);
  assert_int_equal(row_of(p, nr).fails, 1);
}

static void R63_a_retried_task_remembers_its_end(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nr = added(p, "k");
  struct claimed got = claimed(p, "k");
  expect_status(ended(p, got.rows[0], DIBS__TASK_END_DEAD), DIBS_OK);
  changed(p, DIBS__TASK_RETRY, only(nr));
  expect_status(ended(p, got.rows[0], DIBS__TASK_END_DEAD), DIBS_OK);
  expect_status(ended(p, got.rows[0], DIBS__TASK_END_DONE), DIBS_STALE);
  assert_int_equal(state_of(p, nr), DIBS__TASK_READY);
}

static void R63_an_end_of_a_task_that_is_not_kept_is_forgotten(void **state) {
  (void)state;
  struct party *p = task_party();
  set_kind(p, "k", 0, false, 0);
  uint64_t nr = added(p, "k"), dead = added(p, "k");
  struct claimed got = claimed(p, "k", .most = 2);
  assert_int_equal(got.count, 2);
  for (int i = 0; i < 2; i++) {
    task_row row = got.rows[i];
    bool done = row.nr == nr;
    dibs__status first = ended(p, row, done ? DIBS__TASK_END_DONE : DIBS__TASK_END_DEAD, .text = "text");
    /* (A shim that loses answers repeats it.) */
    if (!done || first != DIBS_NOT_FOUND) expect_status(first, DIBS_OK);
    expect_status(ended(p, row, done ? DIBS__TASK_END_DONE : DIBS__TASK_END_DEAD), done ? DIBS_NOT_FOUND : DIBS_OK);
  }
  assert_false(task_exists(p, nr));
  assert_int_equal(state_of(p, dead), DIBS__TASK_DEAD);
}

/* ---- R64 ---- */

static void R64_a_repeated_claim_finds_its_tasks(void **state) {
  (void)state;
  struct party *p = task_party(), *q = party();
  uint64_t nrs[6];
  added_many(p, "k", 6, (task_new){.payload = str_of("work")}, nrs);
  struct claimed got = claimed(p, "k", .most = 3, .id = 7);
  expect_claimed(got, 3, nrs);
  struct claimed again = claimed(q, "k", .most = 3, .id = 7);
  assert_int_equal(again.count, 3);
  for (uint32_t i = 0; i < 3; i++) {
    assert_int_equal(again.rows[i].nr, nrs[i]);
    assert_int_equal(again.rows[i].fence.v, got.rows[i].fence.v);
    assert_int_equal(again.rows[i].attempts, 1);
    assert_string_equal(again.rows[i].payload.p, "work");
  }
  expect_status(ended(p, got.rows[1], DIBS__TASK_END_DONE), DIBS_OK);
  again = claimed(q, "k", .most = 3, .id = 7);
  expect_claimed(again, 2, (const uint64_t[]){nrs[0], nrs[2]});
  expect_claimed(claimed(q, "k", .most = 2, .id = 8), 2, nrs + 3);
}

static void R64_a_claim_that_has_nothing_claims_anew(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nr = added(p, "k");
  expect_none_claimed(claimed(p, "none", .id = 7));
  struct claimed got = claimed(p, "k", .id = 7);
  expect_one(got, nr);
  expect_status(ended(p, got.rows[0], DIBS__TASK_END_NEXT), DIBS_OK);
  uint64_t first = got.rows[0].fence.v;
  got = claimed(p, "k", .id = 7);
  expect_one(got, nr);
  assert_true(got.rows[0].fence.v > first);
}

static void R64_a_late_claim_is_not_found_again(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nr = added(p, "k");
  struct claimed got = claimed(p, "k", .id = 7, .timeout_ms = TASK_SHORT_MS);
  expect_one(got, nr);
  uint64_t first = got.rows[0].fence.v;
  nap_past_short();
  got = claimed(p, "k", .id = 7);
  expect_one(got, nr);
  assert_true(got.rows[0].fence.v > first);
  assert_int_equal(got.rows[0].fails, 1);
}

static void R64_without_again_a_claim_takes_others(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nrs[2];
  added_many(p, "k", 2, (task_new){.nr = 0}, nrs);
  expect_one(claimed(p, "k", .id = 7), nrs[0]);
  task_op op = task_call(DIBS__TASK_CLAIM, "k");
  op.id = id_of(7);
  op = run_task(p, op);
  expect(op, DIBS_OK);
  if (in_doubt(&op.op)) return;
  assert_int_equal(op.got_count, 1);
  assert_int_equal(((task_row *)op.got)->nr, nrs[1]);
}

/* ---- R65 ---- */

static task_op add_with_token(struct party *p, const char *token, task_new *news, uint32_t count, bool wants_new,
                              int64_t token_ms) {
  task_op op = task_call(DIBS__TASK_ADD, "k");
  op.token = name_of(token);
  op.token_ms = token_ms;
  op.news = news;
  op.count = count;
  op.wants_new = wants_new;
  op = run_task(p, op);
  expect(op, DIBS_OK);
  return op;
}

static void R65_an_add_with_a_token_is_done_once(void **state) {
  (void)state;
  struct party *p = task_party(), *q = party();
  task_new first[3] = {{.unique = str_of("u")}, {.unique = str_of("u")}, {.priority = DIBS__TASK_PRIORITY + 1}};
  task_new again[3], third[3];
  memcpy(again, first, sizeof first);
  memcpy(third, first, sizeof first);
  add_with_token(p, "t", first, 3, false, DIBS__TASK_TOKEN_MS);
  add_with_token(q, "t", again, 3, false, DIBS__TASK_TOKEN_MS);
  add_with_token(q, "t", third, 3, true, DIBS__TASK_TOKEN_MS);
  const dibs__status want[] = {DIBS_OK, DIBS_REPLAY, DIBS_INVALID};
  for (int i = 0; i < 3; i++) {
    expect_status(first[i].status, want[i]);
    expect_status(again[i].status, want[i]);
    expect_status(third[i].status, i < 2 ? DIBS_REPLAY : DIBS_INVALID);
    assert_int_equal(first[i].nr, again[i].nr);
    assert_int_equal(first[i].nr, third[i].nr);
    assert_true(again[i].repeated && third[i].repeated);
    if (!loses_answers()) assert_false(first[i].repeated);
  }
  assert_int_equal(count_of(p, "k").states[DIBS__TASK_READY], 1);
  add_with_token(p, "T", third, 3, true, DIBS__TASK_TOKEN_MS); /* another token */
  expect_status(third[0].status, DIBS_REPLAY);
  assert_int_equal(third[0].nr, first[0].nr);
}

/* The repeat finds its answer although its task was finished and is gone. */
static void R65_a_token_is_kept_for_its_time(void **state) {
  (void)state;
  struct party *p = task_party();
  task_new first = {.delay_ms = 0}, again = first, late = first;
  add_with_token(p, "short", &first, 1, false, TASK_SHORT_MS);
  nap_past_short();
  add_with_token(p, "short", &late, 1, true, TASK_LONG_MS);
  if (late.status != DIBS_REPLAY) expect_status(late.status, DIBS_OK); /* a repeat after UNKNOWN is a REPLAY */
  assert_true(late.nr > first.nr);
  changed(p, DIBS__TASK_CANCEL, only(late.nr));
  changed(p, DIBS__TASK_PURGE, only(late.nr));
  add_with_token(p, "short", &again, 1, true, TASK_LONG_MS);
  expect_status(again.status, DIBS_REPLAY);
  assert_int_equal(again.nr, late.nr);
  assert_false(task_exists(p, late.nr));
}

static void R65_a_token_for_another_number_of_items_is_refused(void **state) {
  (void)state;
  struct party *p = task_party();
  task_new news[2] = {{.priority = 1}, {.priority = 2}};
  add_with_token(p, "t", news, 2, false, DIBS__TASK_TOKEN_MS);
  task_op op = task_call(DIBS__TASK_ADD, "k");
  op.token = name_of("t");
  op.token_ms = DIBS__TASK_TOKEN_MS;
  op.news = news;
  op.count = 1;
  op = run_task(p, op);
  expect(op, DIBS_INVALID);
  assert_true(op.why[0] != '\0');
  assert_int_equal(count_of(p, "k").states[DIBS__TASK_READY], 2);
}

/* ---- R66 ---- */

static dibs__status add_unique(struct party *p, const char *kind, const char *unique, uint64_t *nr) {
  task_new n = {.unique = str_of(unique)};
  task_op op = task_call(DIBS__TASK_ADD, kind);
  op.news = &n;
  op.count = 1;
  op = run_task(p, op);
  expect(op, DIBS_OK);
  bool second = in_doubt(&op.op) && n.status == DIBS_REPLAY;
  *nr = n.nr;
  return second ? DIBS_OK : n.status;
}

static void R66_one_unfinished_task_has_a_unique_text(void **state) {
  (void)state;
  struct party *p = task_party(), *q = party();
  uint64_t nr, other;
  expect_status(add_unique(p, "k", "u", &nr), DIBS_OK);
  expect_status(add_unique(p, "other", "u", &other), DIBS_OK);
  expect_status(add_unique(p, "k", "U", &other), DIBS_OK);
  task_new n = {.unique = str_of("u"), .priority = 9, .payload = str_of("new")};
  task_op op = task_call(DIBS__TASK_ADD, "k");
  op.news = &n;
  op.count = 1;
  expect(run_task(q, op), DIBS_OK);
  expect_status(n.status, DIBS_REPLAY);
  assert_int_equal(n.nr, nr);
  assert_int_equal(row_of(p, nr).priority, 0);
  assert_int_equal(row_of(p, nr).payload.len, 0);
  struct claimed got = claimed(p, "k");
  expect_one(got, nr);
  expect(run_task(q, op), DIBS_OK);
  expect_status(n.status, DIBS_REPLAY);
  expect_status(ended(p, got.rows[0], DIBS__TASK_END_WAIT, .delay_ms = TASK_LONG_MS), DIBS_OK);
  expect(run_task(q, op), DIBS_OK);
  expect_status(n.status, DIBS_REPLAY);
  assert_int_equal(n.nr, nr);
}

static void R66_a_finished_task_frees_its_unique_text(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t first, second, third;
  expect_status(add_unique(p, "k", "u", &first), DIBS_OK);
  expect_status(ended(p, claimed(p, "k").rows[0], DIBS__TASK_END_DEAD), DIBS_OK);
  expect_status(add_unique(p, "k", "u", &second), DIBS_OK);
  assert_true(second > first);
  task_op retry = changed(p, DIBS__TASK_RETRY, only(first));
  assert_int_equal(retry.changed, 0); /* the second one has the text */
  assert_int_equal(state_of(p, first), DIBS__TASK_DEAD);
  expect_status(ended(p, claimed(p, "k").rows[0], DIBS__TASK_END_DONE), DIBS_OK);
  changed(p, DIBS__TASK_RETRY, only(first));
  assert_int_equal(state_of(p, first), DIBS__TASK_READY);
  expect_status(add_unique(p, "k", "u", &third), DIBS_REPLAY);
  assert_int_equal(third, first);
}

static void R66_items_of_one_add_are_compared_too(void **state) {
  (void)state;
  struct party *p = task_party();
  task_new news[5] = {
      {.unique = str_of("a")}, {.unique = str_of("b")}, {.unique = str_of("a")}, {.nr = 0}, {.unique = str_of("b")}};
  add_with_token(p, "t", news, 5, false, DIBS__TASK_TOKEN_MS);
  const dibs__status want[] = {DIBS_OK, DIBS_OK, DIBS_REPLAY, DIBS_OK, DIBS_REPLAY};
  for (int i = 0; i < 5; i++) expect_status(news[i].status, want[i]);
  assert_int_equal(news[2].nr, news[0].nr);
  assert_int_equal(news[4].nr, news[1].nr);
  assert_true(news[0].nr < news[1].nr && news[1].nr < news[3].nr);
  assert_int_equal(count_of(p, "k").states[DIBS__TASK_READY], 3);
}

static const struct CMUnitTest contract_tasks_cases[] = {
    CASE(R60_a_task_is_claimed_by_one_claim),
    CASE(R60_a_claim_ends_with_its_time),
    CASE(R60_a_given_back_claim_is_no_attempt),
    CASE(R61_each_claim_has_a_larger_fence),
    CASE(R61_a_fence_is_not_before_its_instant),
    CASE(R61_the_fence_remains_after_a_retry_by_hand),
    CASE(R62_only_the_present_fence_ends_a_claim),
    CASE(R62_a_task_that_does_not_exist_is_not_found),
    CASE(R62_a_late_answer_counts_before_another_claim),
    CASE(R62_a_late_answer_is_stale_after_another_claim),
    CASE(R62_a_claim_of_the_kind_ends_late_ones),
    CASE(R62_an_extended_claim_lasts_longer),
    CASE(R62_extend_answers_the_end_of_the_claim),
    CASE(R63_a_repeated_end_changes_nothing),
    CASE(R63_an_end_is_remembered_until_the_next),
    CASE(R63_a_retried_task_remembers_its_end),
    CASE(R63_an_end_of_a_task_that_is_not_kept_is_forgotten),
    CASE(R64_a_repeated_claim_finds_its_tasks),
    CASE(R64_a_claim_that_has_nothing_claims_anew),
    CASE(R64_a_late_claim_is_not_found_again),
    CASE(R64_without_again_a_claim_takes_others),
    CASE(R65_an_add_with_a_token_is_done_once),
    CASE(R65_a_token_is_kept_for_its_time),
    CASE(R65_a_token_for_another_number_of_items_is_refused),
    CASE(R66_one_unfinished_task_has_a_unique_text),
    CASE(R66_a_finished_task_frees_its_unique_text),
    CASE(R66_items_of_one_add_are_compared_too),
};
CONTRACT_TESTS(contract_tasks);

/* SPDX-License-Identifier: MIT */
/* Tasks (R67 to R69, R74): which one is claimed next. */
#include "task_calls.h"

#include <stdio.h>
#include <string.h>

/* ---- R67 ---- */

static void R67_claims_go_by_priority_then_by_number(void **state) {
  (void)state;
  struct party *p = task_party();
  static const int32_t priorities[] = {0, -1000, 5, 5, 1000, 0, -3};
  static const int order[] = {4, 2, 3, 0, 5, 6, 1};
  enum { COUNT = 7 };
  uint64_t nrs[COUNT], want[COUNT];
  task_new news[COUNT] = {{.nr = 0}};
  for (int i = 0; i < COUNT; i++) news[i].priority = priorities[i];
  task_op op = task_call(DIBS__TASK_ADD, "k");
  op.news = news;
  op.count = COUNT;
  op.token = name_of("t");
  op.token_ms = TASK_LONG_MS;
  expect(run_task(p, op), DIBS_OK);
  for (int i = 0; i < COUNT; i++) nrs[i] = news[i].nr;
  for (int i = 0; i < COUNT; i++) want[i] = nrs[order[i]];
  expect_claimed(claimed(p, "k", .most = 2), 2, want);
  expect_claimed(claimed(p, "k", .most = 100), COUNT - 2, want + 2);
}

/* A task that was ready before keeps its turn, whatever its number. */
static void R67_claims_go_by_the_instant_from_which_they_were_ready(void **state) {
  (void)state;
  enum { LATER_MS = 400 }; /* longer than the second ADD and a claim take, with lost connections too */
  struct party *p = task_party();
  uint64_t a = added(p, "k", .delay_ms = LATER_MS), b = added(p, "k", .delay_ms = 1);
  assert_int_equal(state_of(p, a), DIBS__TASK_WAITING);
  claimed_in_time(p, "k", b);
  uint64_t c = added(p, "k", .priority = -1);
  dibs__nap_ms(LATER_MS + 5);
  uint64_t d = added(p, "k");
  dibs__nap_ms(2); /* so that the claim is at a later instant */
  expect_claimed(claimed(p, "k", .most = 9), 3, (const uint64_t[]){a, d, c});
}

static void R67_a_late_claim_is_ready_since_its_end(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t late = added(p, "k");
  expect_one(claimed(p, "k", .timeout_ms = TASK_SHORT_MS), late);
  nap_past_short();
  uint64_t other = added(p, "k");
  dibs__nap_ms(2); /* so that the claim is at a later instant */
  expect_claimed(claimed(p, "k", .most = 2), 2, (const uint64_t[]){late, other});
}

static void R67_a_task_that_is_free_at_once_goes_to_the_end(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nrs[2];
  added_many(p, "k", 2, (task_new){.nr = 0}, nrs);
  struct claimed got = claimed(p, "k");
  expect_one(got, nrs[0]);
  dibs__nap_ms(2); /* a later instant than that of ADD */
  expect_status(ended(p, got.rows[0], DIBS__TASK_END_NEXT), DIBS_OK);
  expect_claimed(claimed(p, "k", .most = 2), 2, (const uint64_t[]){nrs[1], nrs[0]});
}

static void R67_a_task_waits_for_its_time(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t soon = added(p, "k", .delay_ms = 2 * TASK_SHORT_MS), later = added(p, "k", .delay_ms = TASK_LONG_MS);
  int64_t made = row_of(p, soon).made_ms;
  uint64_t at = added(p, "other", .at_ms = made + TASK_LONG_MS, .delay_ms = 1000);
  uint64_t past = added(p, "other", .at_ms = 1000);
  struct claimed none = claimed(p, "k", .most = 2);
  if (none.count == 0) assert_true(none.next_ms >= 0 && none.next_ms <= 2 * TASK_SHORT_MS);
  task_row got = none.count ? none.rows[0] : claimed_in_time(p, "k", soon);
  assert_int_equal(got.nr, soon);
  assert_true(got.began_ms >= made + 2 * TASK_SHORT_MS);
  assert_int_equal(state_of(p, later), DIBS__TASK_WAITING);
  assert_int_equal(row_of(p, at).due_ms, made + TASK_LONG_MS + 1000);
  expect_one(claimed(p, "other", .most = 2), past);
}

static void R67_the_clock_of_tasks_counts_from_1970(void **state) {
  (void)state;
  struct party *p = task_party();
  task_row row = row_of(p, added(p, "k"));
  assert_true(is_instant(row.made_ms));
}

static void R67_a_claim_may_name_phases(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t a1 = added(p, "k", .phase = str_of("a")), b1 = added(p, "k", .phase = str_of("b"), .priority = 1),
           none = added(p, "k"), c1 = added(p, "k", .phase = str_of("c")),
           a2 = added(p, "k", .phase = str_of("a"), .priority = 2), A = added(p, "k", .phase = str_of("A"));
  expect_none_claimed(claimed(p, "k", .most = 9, .phases = {"x", "y"}));
  expect_claimed(claimed(p, "k", .most = 2, .phases = {"a", "b"}), 2, (const uint64_t[]){a2, b1});
  expect_claimed(claimed(p, "k", .most = 9, .phases = {"c", "a", "c"}), 2, (const uint64_t[]){a1, c1});
  expect_one(claimed(p, "k", .most = 9, .phases = {"", "b"}), none);
  struct claimed got = claimed(p, "k", .most = 9);
  expect_one(got, A);
  expect_status(ended(p, got.rows[0], DIBS__TASK_END_NEXT, .phase = "b"), DIBS_OK);
  expect_none_claimed(claimed(p, "k", .phases = {"A"}));
  expect_one(claimed(p, "k", .phases = {"b"}), A);
}

/* ---- R68 ---- */

static void R68_tasks_with_one_serial_text_run_in_order(void **state) {
  (void)state;
  struct party *p = task_party(), *q = party();
  dibs__str serial = str_of("s");
  uint64_t first = added(p, "k", .serial = serial), second = added(p, "k", .serial = serial, .priority = 9),
           other = added(p, "k", .serial = str_of("S")), free_one = added(p, "k"),
           third = added(p, "k", .serial = serial), kind = added(p, "other", .serial = serial);
  admit(p, "k");
  assert_int_equal(state_of(p, second), DIBS__TASK_BLOCKED);
  struct claimed got = claimed(p, "k", .most = 10);
  expect_claimed(got, 3, (const uint64_t[]){first, other, free_one});
  expect_one(claimed(q, "other"), kind);
  task_row row = got.rows[0];
  assert_int_equal(row.nr, first);
  expect_none_claimed(claimed(q, "k", .most = 10));
  expect_status(ended(p, row, DIBS__TASK_END_NEXT), DIBS_OK);
  got = claimed(q, "k", .most = 10);
  expect_one(got, first); /* it goes on as the first */
  expect_status(ended(p, got.rows[0], DIBS__TASK_END_DONE), DIBS_OK);
  got = claimed(q, "k", .most = 10);
  expect_one(got, second);
  expect_status(ended(p, got.rows[0], DIBS__TASK_END_DONE), DIBS_OK);
  expect_one(claimed(q, "k", .most = 10), third);
}

static void R68_a_waiting_task_keeps_the_later_ones_waiting(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t first = added(p, "k", .serial = str_of("s"), .delay_ms = TASK_LONG_MS),
           second = added(p, "k", .serial = str_of("s")),
           third = added(p, "k", .serial = str_of("s"), .delay_ms = TASK_LONG_MS);
  admit(p, "k");
  assert_int_equal(state_of(p, first), DIBS__TASK_WAITING);
  expect_none_claimed(claimed(p, "k", .most = 10));
  changed(p, DIBS__TASK_CANCEL, only(first));
  struct claimed got = claimed(p, "k", .most = 10);
  expect_one(got, second);
  expect_status(ended(p, got.rows[0], DIBS__TASK_END_WAIT, .delay_ms = TASK_LONG_MS), DIBS_OK);
  assert_int_equal(state_of(p, third), DIBS__TASK_BLOCKED);
  changed(p, DIBS__TASK_CANCEL, only(second));
  assert_int_equal(state_of(p, third), DIBS__TASK_WAITING); /* for its own time */
  expect_none_claimed(claimed(p, "k", .most = 10));
}

static void R68_a_cancelled_task_blocks_nobody(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nrs[4];
  added_many(p, "k", 4, (task_new){.serial = str_of("s")}, nrs);
  changed(p, DIBS__TASK_CANCEL, only(nrs[1]));
  struct claimed got = claimed(p, "k", .most = 4);
  expect_one(got, nrs[0]);
  changed(p, DIBS__TASK_CANCEL, only(nrs[0])); /* also while it is claimed */
  expect_one(claimed(p, "k", .most = 4), nrs[2]);
  expect_status(ended(p, got.rows[0], DIBS__TASK_END_DONE), DIBS_STALE);
  changed(p, DIBS__TASK_CANCEL, (struct dibs__task_filter){.kind = name_of("k")});
  for (int i = 0; i < 4; i++) assert_int_equal(state_of(p, nrs[i]), DIBS__TASK_CANCELLED);
  uint64_t later = added(p, "k", .serial = str_of("s"));
  expect_one(claimed(p, "k"), later);
}

static void R68_a_retried_task_goes_by_its_number(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nrs[3];
  added_many(p, "k", 3, (task_new){.serial = str_of("s")}, nrs);
  admit(p, "k");
  changed(p, DIBS__TASK_CANCEL, only(nrs[0]));
  assert_int_equal(state_of(p, nrs[1]), DIBS__TASK_READY);
  changed(p, DIBS__TASK_RETRY, only(nrs[0]));
  assert_int_equal(state_of(p, nrs[0]), DIBS__TASK_READY);
  assert_int_equal(state_of(p, nrs[1]), DIBS__TASK_BLOCKED);
  changed(p, DIBS__TASK_CANCEL, only(nrs[0]));
  struct claimed got = claimed(p, "k", .most = 3);
  expect_one(got, nrs[1]);
  changed(p, DIBS__TASK_RETRY, only(nrs[0]));
  assert_int_equal(state_of(p, nrs[0]), DIBS__TASK_BLOCKED); /* one runs already */
  expect_none_claimed(claimed(p, "k", .most = 3));
  expect_status(ended(p, got.rows[0], DIBS__TASK_END_DONE), DIBS_OK);
  expect_one(claimed(p, "k", .most = 3), nrs[0]);
  assert_int_equal(state_of(p, nrs[2]), DIBS__TASK_BLOCKED);
}

/* One operation retries both, and one of them runs. */
static void R68_tasks_that_are_retried_together_keep_their_order(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nrs[3];
  added_many(p, "k", 3, (task_new){.serial = str_of("s")}, nrs);
  admit(p, "k");
  changed(p, DIBS__TASK_CANCEL, only(nrs[0]));
  task_row got = claimed_in_time(p, "k", nrs[1]);
  expect_status(ended(p, got, DIBS__TASK_END_WAIT, .delay_ms = TASK_LONG_MS), DIBS_OK);
  changed(p, DIBS__TASK_RETRY, (struct dibs__task_filter){.kind = name_of("k")});
  struct dibs__task_kind count = count_of(p, "k");
  assert_int_equal(count.states[DIBS__TASK_READY], 1);
  assert_int_equal(count.states[DIBS__TASK_BLOCKED], 2);
  for (int i = 0; i < 3; i++) {
    struct claimed one = claimed(p, "k", .most = 3);
    expect_one(one, nrs[i]);
    expect_status(ended(p, one.rows[0], DIBS__TASK_END_DONE), DIBS_OK);
  }
}

/* ---- More tasks than one claim looks at ---- */

static void added_thousands(struct party *p, task_new n) {
  for (int i = 0; i < 3; i++) added_many(p, "k", DIBS__TASK_ITEMS, n, NULL);
}

static void R67_a_task_behind_many_that_arrived_for_a_parked_text_is_claimed(void **state) {
  (void)state;
  struct party *p = task_party();
  dibs__str serial = str_of("s");
  uint64_t first = added(p, "k", .serial = serial);
  struct claimed got = claimed(p, "k");
  expect_one(got, first);
  expect_status(ended(p, got.rows[0], DIBS__TASK_END_DEAD), DIBS_OK);
  assert_int_equal(state_of(p, first), DIBS__TASK_PARKED);
  added_thousands(p, (task_new){.serial = serial});
  uint64_t nr = added(p, "k", .serial = str_of("t"));
  expect_one(claimed_at_last(p, "k", (struct claim_how){.most = 10}), nr);
}

/* The times of all of them have come. */
static void R67_a_task_behind_many_of_another_phase_that_waited_is_claimed(void **state) {
  (void)state;
  struct party *p = task_party();
  added_thousands(p, (task_new){.phase = str_of("a"), .delay_ms = TASK_SHORT_MS});
  uint64_t nr = added(p, "k", .phase = str_of("b"), .delay_ms = TASK_SHORT_MS);
  nap_past_short();
  expect_one(claimed_at_last(p, "k", (struct claim_how){.most = 10, .phases = {"b"}}), nr);
}

/* ---- R69 ---- */

static void R69_a_kind_has_at_most_as_many_claims_as_its_limit(void **state) {
  (void)state;
  struct party *p = task_party(), *q = party();
  uint64_t nrs[10];
  set_kind(p, "k", 3, false, -1);
  added_many(p, "k", 10, (task_new){.nr = 0}, nrs);
  added_many(p, "other", 10, (task_new){.nr = 0}, NULL);
  struct claimed got = claimed(p, "k", .most = 2);
  expect_claimed(got, 2, nrs);
  expect_one(claimed(q, "k", .most = 10), nrs[2]);
  expect_none_claimed(claimed(q, "k", .most = 10));
  assert_int_equal(claimed(q, "other", .most = 10).count, 10);
  expect_status(ended(p, got.rows[0], DIBS__TASK_END_DONE), DIBS_OK);
  expect_one(claimed(q, "k", .most = 10), nrs[3]);
  set_kind(p, "k", 5, false, -1);
  expect_claimed(claimed(q, "k", .most = 10), 2, nrs + 4);
  set_kind(p, "k", 1, false, -1);
  expect_none_claimed(claimed(q, "k", .most = 10));
  set_kind(p, "k", 0, false, -1);
  expect_claimed(claimed(q, "k", .most = 10), 4, nrs + 6);
  assert_int_equal(count_of(p, "k").running, 0);
}

static void R69_a_claim_whose_time_is_over_does_not_count(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nrs[2];
  set_kind(p, "k", 1, false, -1);
  added_many(p, "k", 2, (task_new){.nr = 0}, nrs);
  expect_one(claimed(p, "k", .most = 2, .timeout_ms = TASK_SHORT_MS), nrs[0]);
  nap_past_short();
  struct claimed got = claimed(p, "k", .most = 2);
  assert_int_equal(got.count, 1);
}

static void R69_a_paused_kind_gives_nothing(void **state) {
  (void)state;
  struct party *p = task_party(), *q = party();
  uint64_t nr = added(p, "k");
  set_kind(p, "k", 0, true, -1);
  assert_true(count_of(q, "k").paused);
  expect_none_claimed(claimed(q, "k"));
  task_op op = task_call(DIBS__TASK_KIND, "k");
  op.set = DIBS__TASK_SET_RUNNING; /* the others are unchanged */
  op.running = 2;
  op.paused = false;
  expect(run_task(q, op), DIBS_OK);
  assert_int_equal(count_of(q, "k").running, 2);
  expect_none_claimed(claimed(q, "k"));
  set_kind(p, "k", 2, false, -1);
  expect_one(claimed(q, "k"), nr);
}

/* A person who looks at the paused kind sees which claims were lost. */
static void R69_claims_of_a_paused_kind_end(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nr = added(p, "k");
  expect_one(claimed(p, "k", .timeout_ms = TASK_SHORT_MS), nr);
  set_kind(p, "k", 0, true, -1);
  nap_past_short();
  expect_none_claimed(claimed(p, "k"));
  assert_int_equal(state_of(p, nr), DIBS__TASK_READY);
  assert_int_equal(row_of(p, nr).fails, 1);
}

/* ---- R74 ---- */

enum { CROWD = 1000, WAITING = 10 * CROWD };

static int64_t claim_ns(struct party *p, const char *kind) {
  bool loses_answers = strncmp(case_store_uri(), "fault+", strlen("fault+")) == 0;
  dibs__tick began = dibs__tick_now();
  assert_int_equal(claimed(p, kind, .first_try = !loses_answers).count, 1);
  return dibs__tick_now().ns - began.ns;
}

static void R74_a_claim_costs_the_same_beside_many_others(void **state) {
  (void)state;
  struct party *p = task_party();
  added_many(p, "k", CROWD, (task_new){.nr = 0}, NULL);
  struct claimed got = claimed(p, "k", .most = CROWD);
  assert_int_equal(got.count, CROWD);
  end_done(p, got);
  added_many(p, "k", CROWD, (task_new){.nr = 0}, NULL);
  assert_int_equal(claimed(p, "k", .most = CROWD).count, CROWD);
  for (int i = 0; i < WAITING / CROWD; i++) {
    added_many(p, "k", CROWD, (task_new){.delay_ms = TASK_LONG_MS}, NULL);
    admit(p, "k");
  }
  added_many(p, "k", CROWD, (task_new){.serial = str_of("s"), .delay_ms = TASK_LONG_MS}, NULL);
  admit(p, "k");
  struct dibs__task_kind count = count_of(p, "k");
  assert_int_equal(count.states[DIBS__TASK_DONE], CROWD);
  assert_int_equal(count.states[DIBS__TASK_CLAIMED], CROWD);
  assert_int_equal(count.states[DIBS__TASK_WAITING], WAITING + 1);
  assert_int_equal(count.states[DIBS__TASK_BLOCKED], CROWD - 1);
  static const char *const kinds[2] = {"alone", "k"};
  int64_t took[2][TASK_MEASURED];
  for (int k = 0; k < 2; k++) added_many(p, kinds[k], TASK_MEASURED, (task_new){.nr = 0}, NULL);
  for (int i = 0; i < 2 * TASK_MEASURED; i++) took[i % 2][i / 2] = claim_ns(p, kinds[i % 2]);
  expect_same_cost(took);
}

static const struct CMUnitTest contract_tasks_order_cases[] = {
    CASE(R67_claims_go_by_priority_then_by_number),
    CASE(R67_claims_go_by_the_instant_from_which_they_were_ready),
    CASE(R67_a_late_claim_is_ready_since_its_end),
    CASE(R67_a_task_that_is_free_at_once_goes_to_the_end),
    CASE(R67_a_task_waits_for_its_time),
    CASE(R67_the_clock_of_tasks_counts_from_1970),
    CASE(R67_a_claim_may_name_phases),
    CASE(R68_tasks_with_one_serial_text_run_in_order),
    CASE(R68_a_waiting_task_keeps_the_later_ones_waiting),
    CASE(R68_a_cancelled_task_blocks_nobody),
    CASE(R68_a_retried_task_goes_by_its_number),
    CASE(R68_tasks_that_are_retried_together_keep_their_order),
    CASE(R67_a_task_behind_many_that_arrived_for_a_parked_text_is_claimed),
    CASE(R67_a_task_behind_many_of_another_phase_that_waited_is_claimed),
    CASE(R69_a_kind_has_at_most_as_many_claims_as_its_limit),
    CASE(R69_a_claim_whose_time_is_over_does_not_count),
    CASE(R69_a_paused_kind_gives_nothing),
    CASE(R69_claims_of_a_paused_kind_end),
    CASE(R74_a_claim_costs_the_same_beside_many_others),
};
CONTRACT_TESTS(contract_tasks_order);

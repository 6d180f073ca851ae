/* SPDX-License-Identifier: MIT */
/* Tasks by lane: how claims end (R109), and what is not claimed (R110). */
#include "base/slot.h"
#include "task_calls.h"

#include <string.h>

typedef struct dibs__task_lane task_lane;

enum { ITEMS = 8 };

/* One END of several. */
static void end_items(struct party *p, uint32_t count, const task_row rows[], const enum dibs__task_verdict verdicts[],
                      const dibs__status statuses[]) {
  task_item items[ITEMS];
  task_op op = task_call(DIBS__TASK_END, "k");
  assert_true(count <= ITEMS);
  for (uint32_t i = 0; i < count; i++)
    items[i] = (task_item){.nr = rows[i].nr, .fence = rows[i].fence, .verdict = verdicts[i]};
  op.items = items;
  op.count = count;
  expect(run_task(p, op), DIBS_OK);
  for (uint32_t i = 0; i < count; i++) expect_status(items[i].status, statuses[i]);
}

static void expect_fails(struct party *p, uint32_t count, const uint64_t nrs[], const uint32_t fails[]) {
  for (uint32_t i = 0; i < count; i++) assert_int_equal(row_of(p, nrs[i]).fails, fails[i]);
}

/* So many tasks of one key, all claimed. */
static struct claimed key_claimed(struct party *p, uint32_t count, uint64_t nrs[]) {
  added_many(p, "k", count, (task_new){.serial = str_of("s")}, nrs);
  struct claimed got = owned(p, "k", 10, .most = 10);
  expect_claimed(got, count, nrs);
  return got;
}

/* Claims under this fence until it has as many; they are these, by number. */
static void owned_in_time(struct party *p, uint64_t fence, uint32_t count, const uint64_t nrs[]) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), TASK_PATIENCE_MS);
  for (uint32_t has = 0; has < count;) {
    struct claimed got = owned(p, "k", fence, .most = 10);
    for (uint32_t i = 0; i < got.count; i++) assert_int_equal(got.rows[i].nr, nrs[has + i]);
    has += got.count;
    assert_true(has <= count);
    if (!dibs__tick_before(dibs__tick_now(), by)) fail_msg("%u of %u became ready", has, count);
    if (has < count) dibs__nap_ms(3);
  }
}

/* ---- R109: the next owner of a lane ---- */

static void R109_the_next_owner_takes_over_at_once(void **state) {
  (void)state;
  struct party *p = lane_party(), *q = party();
  uint64_t nrs[3], other = added(p, "k", .serial = str_of("t"));
  added_many(p, "k", 3, (task_new){.serial = str_of("s")}, nrs);
  struct claimed old = owned(p, "k", 10, .most = 10, .by = "last owner");
  assert_int_equal(old.count, 4);
  expect_none_claimed(owned(q, "k", 10, .most = 10));
  struct claimed got = owned(q, "k", 20, .most = 10, .by = "next owner");
  assert_int_equal(got.count, 4);
  expect_fails(p, 3, nrs, (const uint32_t[]){1, 0, 0});
  assert_int_equal(row_of(p, other).fails, 1);
  task_op errors = errors_of(p, nrs[0]);
  assert_int_equal(errors.got_count, 1);
  const task_row *error = errors.got;
  assert_string_equal(error->text.p, "the claim of last owner ended without an answer");
  assert_int_equal(errors_of(p, nrs[1]).got_count, 0);
  for (uint32_t i = 0; i < 4; i++) {
    expect_status(ended(p, old.rows[i], DIBS__TASK_END_DONE), DIBS_STALE);
    expect_status(extended(p, old.rows[i], TASK_LONG_MS, ""), DIBS_STALE);
    assert_int_equal(got.rows[i].attempts, 2);
    assert_string_equal(got.rows[i].by.p, "next owner");
  }
  end_done(q, got);
}

static void R109_an_extended_claim_is_taken_over_too(void **state) {
  (void)state;
  struct party *p = lane_party(), *q = party();
  uint64_t nr = added(p, "k", .serial = str_of("s"));
  struct claimed old = owned(p, "k", 10, .timeout_ms = TASK_SHORT_MS);
  expect_status(extended(p, old.rows[0], 10 * TASK_LONG_MS, ""), DIBS_OK);
  nap_past_short();
  expect_none_claimed(owned(p, "k", 10));
  expect_one(owned(q, "k", 11), nr);
  expect_status(extended(p, old.rows[0], TASK_LONG_MS, ""), DIBS_STALE);
}

/* One at a time: the claims behind the first have ended with it. */
static void R109_what_is_behind_a_task_that_was_taken_over_is_free(void **state) {
  (void)state;
  struct party *p = lane_party(), *q = party();
  uint64_t nrs[3];
  added_many(p, "k", 3, (task_new){.serial = str_of("s")}, nrs);
  struct claimed old = owned(p, "k", 10, .most = 3);
  expect_claimed(old, 3, nrs);
  for (uint32_t i = 0; i < 3; i++) {
    struct claimed got = owned(q, "k", 20);
    expect_one(got, nrs[i]);
    for (uint32_t n = i; n < 3; n++) expect_status(ended(p, old.rows[n], DIBS__TASK_END_DONE), DIBS_STALE);
    expect_status(ended(q, got.rows[0], DIBS__TASK_END_DONE), DIBS_OK);
  }
  expect_fails(p, 3, nrs, (const uint32_t[]){1, 0, 0});
}

static void R109_an_owner_of_another_number_of_lanes_takes_over(void **state) {
  (void)state;
  struct party *p = lane_party(), *q = party();
  uint64_t nrs[2];
  dibs__str text = text_of_lane(1, 2, 0);
  task_lane old = {.lane = 1, .fence = {10}},
            new = {.lane = dibs__slot_lane(dibs__slot(text.p, text.len), 3), .fence = {11}};
  added_many(p, "k", 2, (task_new){.serial = text}, nrs);
  struct claimed late = lanes_claimed(p, "k", &old, 1, 2, .most = 10).got;
  expect_claimed(late, 2, nrs);
  expect_claimed(lanes_claimed(q, "k", &new, 1, 3, .most = 10).got, 2, nrs);
  expect_fails(p, 2, nrs, (const uint32_t[]){1, 0});
  expect_status(ended(p, late.rows[0], DIBS__TASK_END_DONE), DIBS_STALE);
}

/* Of two lanes one has a new owner. */
static void R109_claims_of_other_lanes_go_on(void **state) {
  (void)state;
  struct party *p = lane_party(), *q = party();
  uint64_t nrs[2];
  for (uint32_t i = 0; i < 2; i++) nrs[i] = added(p, "k", .serial = text_of_lane(i, 2, 0));
  task_lane lanes[] = {{.lane = 0, .fence = {10}}, {.lane = 1, .fence = {11}}}, next = {.lane = 1, .fence = {20}};
  struct claimed old = lanes_claimed(p, "k", lanes, 2, 2, .most = 10).got;
  assert_int_equal(old.count, 2);
  uint32_t of_first = old.rows[0].nr == nrs[0] ? 0 : 1;
  expect_one(lanes_claimed(q, "k", &next, 1, 2, .most = 10).got, nrs[1]);
  expect_status(ended(p, old.rows[of_first], DIBS__TASK_END_DONE), DIBS_OK);
  expect_status(ended(p, old.rows[1 - of_first], DIBS__TASK_END_DONE), DIBS_STALE);
}

static void R109_a_last_try_that_is_taken_over_parks_its_key(void **state) {
  (void)state;
  struct party *p = lane_party(), *q = party();
  uint64_t nr = added(p, "k", .serial = str_of("s"), .tries = 1), behind = added(p, "k", .serial = str_of("s"));
  assert_int_equal(owned(p, "k", 10, .most = 10).count, 2);
  expect_none_claimed(owned(q, "k", 20, .most = 10));
  assert_int_equal(state_of(p, nr), DIBS__TASK_PARKED);
  assert_int_equal(row_of(p, behind).fails, 0);
  changed(p, DIBS__TASK_RETRY, only(nr));
  expect_claimed(owned(q, "k", 20, .most = 10), 2, (const uint64_t[]){nr, behind});
}

/* The last owner may be dead: its claims must not keep the next one from working. */
static void R109_what_is_taken_over_does_not_count_for_the_limit(void **state) {
  (void)state;
  struct party *p = lane_party(), *q = party();
  uint64_t nrs[4];
  set_kind(p, "k", 2, false, -1);
  added_many(p, "k", 4, (task_new){.serial = str_of("s")}, nrs);
  expect_claimed(owned(p, "k", 10, .most = 10), 2, nrs);
  expect_claimed(owned(q, "k", 20, .most = 10), 2, nrs);
  expect_none_claimed(owned(q, "k", 20, .most = 10));
}

/* ---- R109: a claim that ends early ---- */

static void R109_the_claims_behind_one_that_ends_end_with_it(void **state) {
  (void)state;
  struct party *p = lane_party();
  for (int verdict = DIBS__TASK_END_NEXT; verdict <= DIBS__TASK_END_GIVE; verdict++) {
    uint64_t nrs[4];
    bool waits = verdict == DIBS__TASK_END_WAIT, dead = verdict == DIBS__TASK_END_DEAD;
    added_many(p, "k", 4, (task_new){.serial = text_of_lane(0, 1, (uint32_t)verdict)}, nrs);
    uint64_t other = added(p, "k", .serial = str_of("other"));
    struct claimed got = owned(p, "k", 10, .most = 10);
    assert_int_equal(got.count, 5);
    task_row rows[5];
    for (uint32_t i = 0; i < 5; i++) rows[got.rows[i].nr == other ? 4 : got.rows[i].nr - nrs[0]] = got.rows[i];
    expect_status(ended(p, rows[1], (enum dibs__task_verdict)verdict, .delay_ms = waits ? TASK_SHORT_MS : 0), DIBS_OK);
    for (uint32_t i = 2; i < 4; i++) {
      expect_status(ended(p, rows[i], DIBS__TASK_END_DONE), DIBS_STALE);
      expect_status(extended(p, rows[i], TASK_LONG_MS, ""), DIBS_STALE);
      assert_int_equal(row_of(p, nrs[i]).fails, 0);
    }
    expect_status(extended(p, rows[0], TASK_LONG_MS, ""), DIBS_OK);
    expect_status(ended(p, rows[4], DIBS__TASK_END_DONE), DIBS_OK);
    if (dead) expect_none_claimed(owned(p, "k", 10, .most = 10));
    if (dead) changed(p, DIBS__TASK_RETRY, only(nrs[1]));
    owned_in_time(p, 10, 3, nrs + 1);
    assert_int_equal(row_of(p, nrs[1]).fails, verdict == DIBS__TASK_END_FAIL);
    expect_status(ended(p, rows[0], DIBS__TASK_END_DONE), DIBS_OK);
    for (uint32_t i = 1; i < 4; i++) expect_status(ended(p, row_of(p, nrs[i]), DIBS__TASK_END_DONE), DIBS_OK);
  }
}

static void R109_the_claims_behind_one_whose_time_is_over_end_with_it(void **state) {
  (void)state;
  struct party *p = lane_party();
  uint64_t nrs[3];
  added_many(p, "k", 3, (task_new){.serial = str_of("s")}, nrs);
  struct claimed old = owned(p, "k", 10, .most = 10, .timeout_ms = TASK_SHORT_MS);
  expect_claimed(old, 3, nrs);
  for (uint32_t i = 1; i < 3; i++) expect_status(extended(p, old.rows[i], TASK_LONG_MS, ""), DIBS_OK);
  owned_in_time(p, 10, 3, nrs);
  expect_fails(p, 3, nrs, (const uint32_t[]){1, 0, 0});
  for (uint32_t i = 0; i < 3; i++) expect_status(ended(p, old.rows[i], DIBS__TASK_END_DONE), DIBS_STALE);
}

static void R109_of_claims_that_end_together_one_is_a_failed_try(void **state) {
  (void)state;
  struct party *p = lane_party();
  uint64_t nrs[4];
  added_many(p, "k", 4, (task_new){.serial = str_of("s")}, nrs);
  struct claimed old = owned(p, "k", 10, .most = 10, .timeout_ms = TASK_SHORT_MS);
  expect_claimed(old, 4, nrs);
  expect_status(extended(p, old.rows[0], TASK_LONG_MS, ""), DIBS_OK);
  owned_in_time(p, 10, 3, nrs + 1);
  expect_fails(p, 4, nrs, (const uint32_t[]){0, 1, 0, 0});
  expect_status(ended(p, old.rows[0], DIBS__TASK_END_DONE), DIBS_OK);
}

static void R109_a_cancelled_task_ends_no_other_claim(void **state) {
  (void)state;
  struct party *p = lane_party();
  uint64_t nrs[3];
  struct claimed got = key_claimed(p, 3, nrs);
  changed(p, DIBS__TASK_CANCEL, only(nrs[0]));
  expect_status(ended(p, got.rows[0], DIBS__TASK_END_DONE), DIBS_STALE);
  for (uint32_t i = 1; i < 3; i++) expect_status(ended(p, got.rows[i], DIBS__TASK_END_DONE), DIBS_OK);
}

/* ---- R109: the order of ENDs ---- */

static void R109_a_task_is_not_done_before_an_earlier_one(void **state) {
  (void)state;
  struct party *p = lane_party();
  uint64_t nrs[3];
  struct claimed got = key_claimed(p, 3, nrs);
  task_row before = row_of(p, nrs[1]);
  for (uint32_t i = 2; i > 0; i--)
    expect_status(ended(p, got.rows[i], DIBS__TASK_END_DONE, .text = "early"), DIBS_STALE);
  task_row after = row_of(p, nrs[1]);
  assert_int_equal(after.state, DIBS__TASK_CLAIMED);
  assert_int_equal(after.due_ms, before.due_ms);
  assert_int_equal(after.at_ms, before.at_ms);
  for (uint32_t i = 0; i < 3; i++) expect_status(ended(p, got.rows[i], DIBS__TASK_END_DONE, .text = "fine"), DIBS_OK);
  assert_string_equal(row_of(p, nrs[1]).text.p, "fine");
}

static void R109_one_end_may_finish_several_of_a_key_in_their_order(void **state) {
  (void)state;
  struct party *p = lane_party();
  uint64_t nrs[4];
  struct claimed got = key_claimed(p, 4, nrs);
  const task_row *r = got.rows;
  static const enum dibs__task_verdict done[3] = {DIBS__TASK_END_DONE, DIBS__TASK_END_DONE, DIBS__TASK_END_DONE};
  end_items(p, 3, (const task_row[]){r[1], r[0], r[2]}, done, (const dibs__status[]){DIBS_STALE, DIBS_OK, DIBS_STALE});
  end_items(p, 3, (const task_row[]){r[1], r[2], r[3]}, done, (const dibs__status[]){DIBS_OK, DIBS_OK, DIBS_OK});
  assert_int_equal(count_of(p, "k").states[DIBS__TASK_DONE], 4);
}

/* R73. */
static void R109_a_task_that_is_named_twice_is_no_earlier_one(void **state) {
  (void)state;
  struct party *p = lane_party();
  uint64_t nrs[2];
  struct claimed got = key_claimed(p, 2, nrs);
  const task_row *r = got.rows;
  static const enum dibs__task_verdict done[3] = {DIBS__TASK_END_DONE, DIBS__TASK_END_DONE, DIBS__TASK_END_DONE};
  end_items(p, 2, (const task_row[]){r[1], r[1]}, done, (const dibs__status[]){DIBS_STALE, DIBS_STALE});
  end_items(p, 3, (const task_row[]){r[0], r[0], r[1]}, done, (const dibs__status[]){DIBS_OK, DIBS_OK, DIBS_OK});
}

static void R109_a_task_is_not_done_after_one_that_failed_in_the_same_end(void **state) {
  (void)state;
  struct party *p = lane_party();
  uint64_t nrs[3];
  struct claimed got = key_claimed(p, 3, nrs);
  static const enum dibs__task_verdict verdicts[] = {DIBS__TASK_END_DONE, DIBS__TASK_END_FAIL, DIBS__TASK_END_DONE};
  end_items(p, 3, got.rows, verdicts, (const dibs__status[]){DIBS_OK, DIBS_OK, DIBS_STALE});
  expect_claimed(owned(p, "k", 10, .most = 10), 2, nrs + 1);
  expect_fails(p, 3, nrs, (const uint32_t[]){0, 1, 0});
}

static void R109_a_task_is_not_done_before_an_earlier_one_that_is_retried(void **state) {
  (void)state;
  struct party *p = lane_party();
  uint64_t nrs[2];
  added_many(p, "k", 2, (task_new){.serial = str_of("s")}, nrs);
  changed(p, DIBS__TASK_CANCEL, only(nrs[0]));
  struct claimed late = owned(p, "k", 10, .most = 10);
  expect_one(late, nrs[1]);
  changed(p, DIBS__TASK_RETRY, only(nrs[0]));
  expect_status(ended(p, late.rows[0], DIBS__TASK_END_DONE), DIBS_STALE);
  struct claimed got = owned(p, "k", 10, .most = 10);
  expect_one(got, nrs[0]);
  expect_status(ended(p, got.rows[0], DIBS__TASK_END_DONE), DIBS_OK);
  expect_status(ended(p, late.rows[0], DIBS__TASK_END_DONE), DIBS_OK);
}

/* R63. */
static void R109_a_repeated_end_ends_no_later_claims(void **state) {
  (void)state;
  struct party *p = lane_party();
  uint64_t nrs[3];
  added_many(p, "k", 3, (task_new){.serial = str_of("s")}, nrs);
  struct claimed old = owned(p, "k", 10, .most = 10), got;
  expect_claimed(old, 3, nrs);
  expect_status(ended(p, old.rows[0], DIBS__TASK_END_DONE), DIBS_OK);
  expect_status(ended(p, old.rows[0], DIBS__TASK_END_DONE), DIBS_OK);
  expect_status(ended(p, old.rows[1], DIBS__TASK_END_NEXT), DIBS_OK);
  got = owned(p, "k", 10, .most = 10);
  expect_claimed(got, 2, nrs + 1);
  expect_status(ended(p, old.rows[1], DIBS__TASK_END_NEXT), DIBS_OK); /* repeated */
  for (uint32_t i = 0; i < 2; i++) expect_status(ended(p, got.rows[i], DIBS__TASK_END_DONE), DIBS_OK);
}

/* ---- R110 ---- */

static void R110_nothing_is_claimed_behind_a_waiting_task(void **state) {
  (void)state;
  struct party *p = lane_party();
  uint64_t first = added(p, "k", .serial = str_of("s"), .delay_ms = TASK_LONG_MS), behind[2];
  added_many(p, "k", 2, (task_new){.serial = str_of("s")}, behind);
  struct claimed none = owned(p, "k", 10, .most = 10);
  expect_none_claimed(none);
  assert_true(none.next_ms > 0 && none.next_ms <= TASK_LONG_MS);
  assert_int_equal(state_of(p, first), DIBS__TASK_WAITING);
  uint32_t state_behind = state_of(p, behind[0]);
  assert_true(state_behind == DIBS__TASK_READY || state_behind == DIBS__TASK_BLOCKED);
  expect_none_claimed(owned(p, "k", 20, .most = 10));
  changed(p, DIBS__TASK_RETRY, only(first));
  expect_claimed(owned(p, "k", 20, .most = 10), 3, (const uint64_t[]){first, behind[0], behind[1]});
}

static void R110_they_are_claimed_when_its_time_has_come(void **state) {
  (void)state;
  struct party *p = lane_party();
  uint64_t nrs[3];
  nrs[0] = added(p, "k", .serial = str_of("s"), .delay_ms = TASK_SHORT_MS);
  added_many(p, "k", 2, (task_new){.serial = str_of("s")}, nrs + 1);
  owned_in_time(p, 10, 3, nrs);
}

/* Earlier tasks are claimed before its time, later ones after it. */
static void R110_a_task_in_the_middle_waits_for_its_own_time(void **state) {
  (void)state;
  struct party *p = lane_party();
  uint64_t nrs[4];
  added_many(p, "k", 2, (task_new){.serial = str_of("s")}, nrs);
  nrs[2] = added(p, "k", .serial = str_of("s"), .delay_ms = TASK_LONG_MS);
  nrs[3] = added(p, "k", .serial = str_of("s"));
  struct claimed got = owned(p, "k", 10, .most = 10);
  expect_claimed(got, 2, nrs);
  expect_none_claimed(owned(p, "k", 10, .most = 10));
  end_done(p, got);
  expect_none_claimed(owned(p, "k", 10, .most = 10));
  changed(p, DIBS__TASK_RETRY, only(nrs[2]));
  expect_claimed(owned(p, "k", 10, .most = 10), 2, nrs + 2);
}

static void R110_a_parked_task_parks_its_key_alone(void **state) {
  (void)state;
  struct party *p = lane_party();
  static const enum dibs__task_change changes[] = {DIBS__TASK_RETRY, DIBS__TASK_CANCEL, DIBS__TASK_PURGE};
  for (uint32_t by = 0; by < 3; by++) {
    uint64_t nrs[3];
    dibs__str text = text_of_lane(0, 1, by);
    added_many(p, "k", 3, (task_new){.serial = text}, nrs);
    struct claimed got = owned(p, "k", 10 + by);
    expect_one(got, nrs[0]);
    expect_status(ended(p, got.rows[0], DIBS__TASK_END_DEAD, .text = "no"), DIBS_OK);
    assert_int_equal(state_of(p, nrs[0]), DIBS__TASK_PARKED);
    uint64_t other = added(p, "k", .serial = str_of("other")), last = added(p, "k", .serial = text);
    got = owned(p, "k", 10 + by, .most = 10);
    expect_one(got, other);
    end_done(p, got);
    expect_none_claimed(owned(p, "k", 10 + by, .most = 10));
    changed(p, changes[by], only(nrs[0]));
    got = owned(p, "k", 10 + by, .most = 10);
    if (by == 0) expect_claimed(got, 4, (const uint64_t[]){nrs[0], nrs[1], nrs[2], last});
    if (by > 0) expect_claimed(got, 3, (const uint64_t[]){nrs[1], nrs[2], last});
    end_done(p, got);
  }
}

/* Not only the first. */
static void R110_tasks_behind_a_waiting_one_may_be_changed(void **state) {
  (void)state;
  struct party *p = lane_party();
  uint64_t nrs[4];
  nrs[0] = added(p, "k", .serial = str_of("s"), .delay_ms = TASK_LONG_MS);
  added_many(p, "k", 3, (task_new){.serial = str_of("s")}, nrs + 1);
  expect_none_claimed(owned(p, "k", 10, .most = 10));
  changed(p, DIBS__TASK_CANCEL, only(nrs[2]));
  changed(p, DIBS__TASK_CANCEL, only(nrs[1]));
  expect_none_claimed(owned(p, "k", 10, .most = 10));
  changed(p, DIBS__TASK_RETRY, only(nrs[1]));
  expect_none_claimed(owned(p, "k", 10, .most = 10));
  changed(p, DIBS__TASK_CANCEL, only(nrs[0]));
  expect_claimed(owned(p, "k", 10, .most = 10), 2, (const uint64_t[]){nrs[1], nrs[3]});
}

static void R110_a_thousand_of_a_key_are_claimed_in_their_order(void **state) {
  (void)state;
  struct party *p = lane_party();
  static uint64_t nrs[DIBS__TASK_ITEMS];
  added_many(p, "k", DIBS__TASK_ITEMS, (task_new){.serial = str_of("s")}, nrs);
  uint64_t other = added(p, "k", .serial = str_of("t"));
  bool others = false;
  for (uint32_t has = 0, from = 0; has < DIBS__TASK_ITEMS;) {
    task_lane lane = {.lane = 0, .fence = {10}};
    struct lanes_claimed some = lanes_claimed(p, "k", &lane, 1, 1, .most = 130, .from = from);
    from = some.from;
    assert_true(some.got.count > 0);
    for (uint32_t i = 0; i < some.got.count; i++) {
      if (some.got.rows[i].nr == other)
        others = true;
      else
        assert_int_equal(some.got.rows[i].nr, nrs[has++]);
    }
  }
  assert_true(others);
  struct claimed next = owned(p, "k", 20, .most = DIBS__TASK_ITEMS);
  while (next.count == 1) next = owned(p, "k", 20, .most = DIBS__TASK_ITEMS); /* the other one */
  assert_int_equal(row_of(p, nrs[0]).fails, 1);
  assert_int_equal(row_of(p, nrs[1]).fails, 0);
}

/* ---- R110: cost ---- */

enum { CROWD = 1000, BEHIND = 5 * CROWD, WAITING_KEYS = 300 };

static int64_t claim_ns(struct party *p, const char *kind, uint32_t *from) {
  task_lane lane = {.lane = 0, .fence = {10}};
  dibs__tick began = dibs__tick_now();
  struct lanes_claimed got = lanes_claimed(p, kind, &lane, 1, 2, .from = *from);
  int64_t took = dibs__tick_now().ns - began.ns;
  assert_int_equal(got.got.count, 1);
  *from = got.from;
  return took;
}

/* Tasks behind a waiting one, keys that wait, keys that are claimed, and keys of another lane. */
static void add_beside(struct party *p, const char *kind) {
  added(p, kind, .serial = text_of_lane(0, 2, 0), .delay_ms = TASK_LONG_MS);
  for (int i = 0; i < BEHIND / CROWD; i++)
    added_many(p, kind, CROWD, (task_new){.serial = text_of_lane(0, 2, 0)}, NULL);
  for (uint32_t i = 1; i <= WAITING_KEYS; i++)
    added(p, kind, .serial = text_of_lane(0, 2, i), .delay_ms = TASK_LONG_MS);
  added_many(p, kind, CROWD, (task_new){.serial = text_of_lane(1, 2, 0)}, NULL);
  for (int i = 0; i < 3 + BEHIND / 100; i++) {
    task_lane lane = {.lane = 0, .fence = {10}};
    expect_none_claimed(lanes_claimed(p, kind, &lane, 1, 2, .most = CROWD).got);
  }
}

static void R110_a_claim_costs_the_same_beside_tasks_that_cannot_be_claimed(void **state) {
  (void)state;
  struct party *p = lane_party();
  static const char *const kinds[2] = {"alone", "k"};
  uint32_t from[2] = {0, 0};
  int64_t took[2][TASK_MEASURED];
  add_beside(p, "k");
  for (int k = 0; k < 2; k++)
    for (uint32_t i = 0; i < TASK_MEASURED; i++) added(p, kinds[k], .serial = text_of_lane(0, 2, 1000 + i));
  for (int i = 0; i < 2 * TASK_MEASURED; i++) took[i % 2][i / 2] = claim_ns(p, kinds[i % 2], &from[i % 2]);
  expect_same_cost(took);
}

static const struct CMUnitTest contract_tasks_lanes_ends_cases[] = {
    CASE(R109_the_next_owner_takes_over_at_once),
    CASE(R109_an_extended_claim_is_taken_over_too),
    CASE(R109_what_is_behind_a_task_that_was_taken_over_is_free),
    CASE(R109_an_owner_of_another_number_of_lanes_takes_over),
    CASE(R109_claims_of_other_lanes_go_on),
    CASE(R109_a_last_try_that_is_taken_over_parks_its_key),
    CASE(R109_what_is_taken_over_does_not_count_for_the_limit),
    CASE(R109_the_claims_behind_one_that_ends_end_with_it),
    CASE(R109_the_claims_behind_one_whose_time_is_over_end_with_it),
    CASE(R109_of_claims_that_end_together_one_is_a_failed_try),
    CASE(R109_a_cancelled_task_ends_no_other_claim),
    CASE(R109_a_task_is_not_done_before_an_earlier_one),
    CASE(R109_one_end_may_finish_several_of_a_key_in_their_order),
    CASE(R109_a_task_that_is_named_twice_is_no_earlier_one),
    CASE(R109_a_task_is_not_done_after_one_that_failed_in_the_same_end),
    CASE(R109_a_task_is_not_done_before_an_earlier_one_that_is_retried),
    CASE(R109_a_repeated_end_ends_no_later_claims),
    CASE(R110_nothing_is_claimed_behind_a_waiting_task),
    CASE(R110_they_are_claimed_when_its_time_has_come),
    CASE(R110_a_task_in_the_middle_waits_for_its_own_time),
    CASE(R110_a_parked_task_parks_its_key_alone),
    CASE(R110_tasks_behind_a_waiting_one_may_be_changed),
    CASE(R110_a_thousand_of_a_key_are_claimed_in_their_order),
    CASE(R110_a_claim_costs_the_same_beside_tasks_that_cannot_be_claimed),
};
CONTRACT_TESTS(contract_tasks_lanes_ends);

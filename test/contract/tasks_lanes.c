/* SPDX-License-Identifier: MIT */
/* Tasks by lane (R108): what a claim of lanes takes, and the kind that belongs to a topic. */
#include "task_calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dibs__task_lane task_lane;

enum { LANES = 4, KEYS = 24 };

/* ---- Which tasks ---- */

static void R108_a_claim_takes_the_keys_of_its_lanes_only(void **state) {
  (void)state;
  struct party *p = lane_party(), *q = party();
  uint64_t of_lane[LANES][3], without = added(p, "k");
  for (uint32_t n = 0; n < 3; n++)
    for (uint32_t lane = 0; lane < LANES; lane++)
      of_lane[lane][n] = added(p, "k", .serial = text_of_lane(lane, LANES, n));
  for (uint32_t turn = 0; turn < 2; turn++) {
    task_lane lanes[] = {{.lane = turn, .fence = {10}}, {.lane = 2 + turn, .fence = {11}}};
    struct claimed got = lanes_claimed(turn ? q : p, "k", lanes, 2, LANES, .most = 100).got;
    assert_int_equal(got.count, 6);
    for (uint32_t i = 0; i < 2; i++) {
      expect_status(lanes[i].status, DIBS_OK);
      for (uint32_t n = 0; n < 3; n++) assert_int_equal(row_of(p, of_lane[lanes[i].lane][n]).state, DIBS__TASK_CLAIMED);
    }
    expect_none_claimed(lanes_claimed(turn ? q : p, "k", lanes, 2, LANES, .most = 100).got);
  }
  assert_int_equal(state_of(p, without), DIBS__TASK_READY);
  expect_one(claimed(p, "k", .most = 10), without);
}

static void R108_one_fence_claims_several_of_a_key_in_their_order(void **state) {
  (void)state;
  struct party *p = lane_party();
  uint64_t nrs[5];
  added_many(p, "k", 5, (task_new){.serial = str_of("s"), .payload = str_of("work")}, nrs);
  struct claimed got = owned(p, "k", 10, .most = 2, .by = "first");
  expect_claimed(got, 2, nrs);
  assert_string_equal(got.rows[0].payload.p, "work");
  assert_string_equal(got.rows[0].serial.p, "s");
  assert_string_equal(got.rows[0].by.p, "first");
  assert_int_equal(got.rows[0].attempts, 1);
  assert_true(got.rows[0].fence.v >= (uint64_t)got.rows[0].began_ms);
  expect_claimed(owned(p, "k", 10, .most = 2), 2, nrs + 2);
  for (int i = 0; i < 2; i++) expect_status(ended(p, got.rows[i], DIBS__TASK_END_DONE), DIBS_OK);
  expect_one(owned(p, "k", 10, .most = 2), nrs[4]);
  expect_none_claimed(owned(p, "k", 10, .most = 2));
}

/* Their priorities and times make no difference. */
static void R108_tasks_of_a_key_are_answered_by_number(void **state) {
  (void)state;
  struct party *p = lane_party();
  for (int i = 0; i < 30; i++)
    added(p, "k", .serial = text_of_lane(0, 1, (uint32_t)i % 3), .priority = i * 7 % 30, .at_ms = 1000 - i);
  struct claimed got = owned(p, "k", 10, .most = 30);
  assert_int_equal(got.count, 30);
  for (uint32_t i = 0; i < 30; i++)
    for (uint32_t j = i + 1; j < 30; j++)
      if (dibs__str_equal(got.rows[i].serial, got.rows[j].serial)) assert_true(got.rows[i].nr < got.rows[j].nr);
}

static void R108_a_claim_may_name_every_lane_of_the_largest_number(void **state) {
  (void)state;
  struct party *p = lane_party();
  static task_lane lanes[DIBS__TASK_LANES];
  uint64_t keyed = 0;
  for (uint32_t i = 0; i < DIBS__TASK_LANES; i++) lanes[i] = (task_lane){.lane = i, .fence = {10 + i % 3}};
  for (uint32_t i = 0; i < 60; i++) keyed += added(p, "k", .serial = text_of_lane(0, 1, i / 2)) != 0;
  for (uint32_t got = 0, from = 0; keyed > 0; keyed -= got) {
    struct lanes_claimed some =
        lanes_claimed(p, "k", lanes, DIBS__TASK_LANES, DIBS__TASK_LANES, .most = 25, .from = from);
    from = some.from;
    got = some.got.count;
    assert_true(got > 0 && got <= 25);
  }
  expect_none_claimed(lanes_claimed(p, "k", lanes, DIBS__TASK_LANES, DIBS__TASK_LANES, .most = 25).got);
  for (uint32_t i = 0; i < DIBS__TASK_LANES; i++) expect_status(lanes[i].status, DIBS_OK);
}

static void R108_lanes_without_tasks_make_the_kind_by_lane(void **state) {
  (void)state;
  struct party *p = lane_party(), *q = party();
  assert_int_equal(count_of(p, "k").topic.len, 0);
  struct claimed none = owned(p, "k", 10, .topic = "cars");
  expect_none_claimed(none);
  assert_int_equal(none.next_ms, -1);
  assert_string_equal(count_of(q, "k").topic.p, "cars");
  uint64_t nr = added(p, "k", .serial = str_of("s"));
  expect_none_claimed(claimed(q, "k"));
  expect_one(owned(q, "k", 10, .topic = "cars"), nr);
}

/* ---- Fences of lanes ---- */

static void R108_a_lane_with_a_smaller_fence_is_stale(void **state) {
  (void)state;
  struct party *p = lane_party(), *q = party();
  uint64_t nrs[2];
  task_lane late[] = {{.lane = 0, .fence = {9}}, {.lane = 1, .fence = {5}}};
  task_lane lane = {.lane = 0, .fence = {10}};
  expect_none_claimed(lanes_claimed(p, "k", &lane, 1, 2).got);
  for (uint32_t i = 0; i < 2; i++) nrs[i] = added(p, "k", .serial = text_of_lane(i, 2, 0));
  expect_one(lanes_claimed(q, "k", late, 2, 2, .most = 10).got, nrs[1]);
  expect_status(late[0].status, DIBS_STALE);
  expect_status(late[1].status, DIBS_OK);
  expect_none_claimed(lanes_claimed(q, "k", late, 1, 2, .most = 10).got);
  expect_status(late[0].status, DIBS_STALE);
  expect_one(lanes_claimed(p, "k", &lane, 1, 2).got, nrs[0]);
  expect_status(lane.status, DIBS_OK);
  task_row row = row_of(p, nrs[0]);
  assert_int_equal(row.attempts, 1);
  assert_int_equal(row.fails, 0);
}

/* The fences of all numbers of lanes of a topic grow together. */
static void R108_another_number_of_lanes_needs_a_larger_fence(void **state) {
  (void)state;
  struct party *p = lane_party();
  static const struct {
    uint32_t lane, of;
    uint64_t fence;
    dibs__status status;
  } claims[] = {
      {0, 4, 10, DIBS_OK},    {1, 4, 20, DIBS_OK},    {1, 8, 15, DIBS_STALE}, {3, 4, 11, DIBS_OK},
      {7, 8, 22, DIBS_OK},    {2, 4, 21, DIBS_STALE}, {1, 4, 20, DIBS_STALE}, {5, 8, 19, DIBS_STALE},
      {5, 8, 24, DIBS_OK},    {7, 8, 22, DIBS_OK},    {0, 4, 23, DIBS_STALE}, {0, 4, 30, DIBS_OK},
      {1, 4, 20, DIBS_STALE}, {5, 8, 25, DIBS_STALE}, {2, 4, 31, DIBS_OK},
  };
  for (size_t i = 0; i < sizeof claims / sizeof claims[0]; i++) {
    task_lane lane = {.lane = claims[i].lane, .fence = {claims[i].fence}};
    expect_none_claimed(lanes_claimed(p, "k", &lane, 1, claims[i].of).got);
    if (lane.status != claims[i].status) print_error("claim %zu:\n", i);
    expect_status(lane.status, claims[i].status);
  }
}

static void R108_each_kind_has_its_own_fences(void **state) {
  (void)state;
  struct party *p = lane_party();
  expect_none_claimed(owned(p, "k", 10));
  uint64_t nr = added(p, "other", .serial = str_of("s"));
  expect_one(owned(p, "other", 3), nr);
  expect_none_claimed(owned(p, "k", 10));
}

/* ---- Turns ---- */

enum { LONG_KEY = 400, FEW = 4, ENOUGH = 30 };

static void R108_no_key_waits_behind_one_with_many_tasks(void **state) {
  (void)state;
  struct party *p = lane_party();
  added_many(p, "k", LONG_KEY, (task_new){.serial = text_of_lane(0, 1, 0)}, NULL);
  for (uint32_t i = 1; i <= 6; i++) added(p, "k", .serial = text_of_lane(0, 1, i));
  uint32_t others = 0, from = 0;
  for (int i = 0; i < ENOUGH && others < 6; i++) {
    task_lane lane = {.lane = 0, .fence = {10}};
    struct lanes_claimed some = lanes_claimed(p, "k", &lane, 1, 1, .most = FEW, .from = from);
    from = some.from;
    assert_true(some.got.count > 0);
    dibs__str of_long = text_of_lane(0, 1, 0);
    for (uint32_t n = 0; n < some.got.count; n++) others += !dibs__str_equal(some.got.rows[n].serial, of_long);
  }
  assert_int_equal(others, 6);
}

/* The first one always has more. */
static void R108_of_two_keys_of_one_slot_none_waits_for_ever(void **state) {
  (void)state;
  struct party *p = lane_party();
  dibs__str texts[2];
  texts_of_one_slot(texts);
  added_many(p, "k", 10 * FEW, (task_new){.serial = texts[0]}, NULL);
  uint64_t nr = added(p, "k", .serial = texts[1]);
  uint32_t from = 0;
  for (int i = 0; i < ENOUGH && state_of(p, nr) != DIBS__TASK_CLAIMED; i++) {
    task_lane lane = {.lane = 0, .fence = {10}};
    added_many(p, "k", FEW, (task_new){.serial = texts[0]}, NULL);
    struct lanes_claimed some = lanes_claimed(p, "k", &lane, 1, 1, .most = FEW, .from = from);
    assert_true(some.got.count > 0);
    from = some.from;
  }
  assert_int_equal(state_of(p, nr), DIBS__TASK_CLAIMED);
}

static void R108_two_keys_of_one_slot_are_two_keys(void **state) {
  (void)state;
  struct party *p = lane_party();
  dibs__str texts[2];
  uint64_t nrs[6];
  texts_of_one_slot(texts);
  for (uint32_t i = 0; i < 6; i++) nrs[i] = added(p, "k", .serial = texts[i % 2]);
  struct claimed got = owned(p, "k", 10, .most = 10);
  assert_int_equal(got.count, 6);
  task_row rows[6];
  for (uint32_t i = 0; i < 6; i++)
    for (uint32_t n = 0; n < 6; n++)
      if (got.rows[n].nr == nrs[i]) rows[i] = got.rows[n];
  expect_status(ended(p, rows[1], DIBS__TASK_END_DONE), DIBS_OK);               /* an earlier one of the other key */
  expect_status(ended(p, rows[0], DIBS__TASK_END_DEAD, .text = "no"), DIBS_OK); /* parks its key, not the other */
  expect_status(ended(p, rows[2], DIBS__TASK_END_DONE), DIBS_STALE);            /* its claim ended */
  expect_status(ended(p, rows[3], DIBS__TASK_END_NEXT), DIBS_OK);
  expect_status(ended(p, rows[5], DIBS__TASK_END_DONE), DIBS_STALE);
  got = owned(p, "k", 10, .most = 10);
  expect_claimed(got, 2, (const uint64_t[]){nrs[3], nrs[5]});
  changed(p, DIBS__TASK_CANCEL, only(nrs[0]));
  expect_claimed(owned(p, "k", 10, .most = 10), 2, (const uint64_t[]){nrs[2], nrs[4]});
}

/* ---- Settings, texts, repeats ---- */

static void R108_the_limit_and_the_pause_hold(void **state) {
  (void)state;
  struct party *p = lane_party();
  uint64_t nrs[8];
  added_many(p, "k", 8, (task_new){.serial = str_of("s")}, nrs);
  set_kind(p, "k", 3, false, -1);
  struct claimed got = owned(p, "k", 10, .most = 10);
  expect_claimed(got, 3, nrs);
  expect_none_claimed(owned(p, "k", 10, .most = 10));
  expect_status(ended(p, got.rows[0], DIBS__TASK_END_DONE), DIBS_OK);
  expect_one(owned(p, "k", 10, .most = 10), nrs[3]);
  set_kind(p, "k", 0, true, -1);
  expect_none_claimed(owned(p, "k", 10, .most = 10));
  set_kind(p, "k", 0, false, -1);
  expect_claimed(owned(p, "k", 10, .most = 10), 4, nrs + 4);
}

static void R108_a_repeated_claim_finds_its_tasks(void **state) {
  (void)state;
  struct party *p = lane_party(), *q = party();
  uint64_t nrs[6];
  added_many(p, "k", 6, (task_new){.serial = str_of("s")}, nrs);
  struct claimed got = owned(p, "k", 10, .most = 3, .id = 7);
  expect_claimed(got, 3, nrs);
  struct claimed again = owned(q, "k", 10, .most = 3, .id = 7);
  assert_int_equal(again.count, 3);
  for (uint32_t i = 0; i < 3; i++) {
    assert_int_equal(again.rows[i].nr, nrs[i]);
    assert_int_equal(again.rows[i].fence.v, got.rows[i].fence.v);
    assert_int_equal(again.rows[i].attempts, 1);
  }
  expect_status(ended(p, got.rows[0], DIBS__TASK_END_DONE), DIBS_OK);
  expect_claimed(owned(q, "k", 10, .most = 3, .id = 7), 2, nrs + 1);
  expect_claimed(owned(q, "k", 10, .most = 3, .id = 8), 3, nrs + 3);
}

static void R108_a_repeated_claim_finds_tasks_of_the_lanes_that_it_names(void **state) {
  (void)state;
  struct party *p = lane_party();
  task_lane lanes[] = {{.lane = 0, .fence = {10}}, {.lane = 1, .fence = {11}}};
  uint64_t nrs[2];
  for (uint32_t i = 0; i < 2; i++) nrs[i] = added(p, "k", .serial = text_of_lane(i, 2, 0));
  assert_int_equal(lanes_claimed(p, "k", lanes, 2, 2, .most = 2, .id = 7).got.count, 2);
  for (uint32_t i = 0; i < 2; i++) expect_one(lanes_claimed(p, "k", &lanes[i], 1, 2, .most = 2, .id = 7).got, nrs[i]);
}

/* Its owner would work beside the next one. */
static void R108_a_repeated_claim_finds_nothing_under_another_fence(void **state) {
  (void)state;
  struct party *p = lane_party(), *q = party();
  uint64_t nrs[2];
  task_lane old = {.lane = 0, .fence = {10}};
  added_many(p, "k", 2, (task_new){.serial = str_of("s")}, nrs);
  struct claimed first = lanes_claimed(p, "k", &old, 1, 1, .most = 2, .id = 7).got;
  expect_claimed(first, 2, nrs);
  set_kind(p, "k", 0, true, -1);
  expect_none_claimed(owned(q, "k", 20, .most = 2)); /* the lane has another owner; nothing was taken */
  expect_none_claimed(lanes_claimed(p, "k", &old, 1, 1, .most = 2, .id = 7).got);
  expect_status(old.status, DIBS_STALE);
  set_kind(p, "k", 0, false, -1);
  uint64_t before = first.rows[0].fence.v;
  struct claimed got = owned(q, "k", 20, .most = 2, .id = 7);
  expect_claimed(got, 2, nrs);
  assert_true(got.rows[0].fence.v > before);
  assert_int_equal(got.rows[0].attempts, 2);
}

static void R108_unique_texts_and_tokens_are_as_in_other_kinds(void **state) {
  (void)state;
  struct party *p = lane_party();
  expect_none_claimed(owned(p, "k", 10));
  task_new n = {.serial = str_of("s"), .unique = str_of("u")};
  task_op op = task_call(DIBS__TASK_ADD, "k");
  op.news = &n;
  op.count = 1;
  op.token = name_of("token");
  op.token_ms = DIBS__TASK_TOKEN_MS;
  expect(run_task(p, op), DIBS_OK);
  uint64_t nr = n.nr;
  op.wants_new = true;
  for (int i = 0; i < 3; i++) {
    if (i == 1) op.token = dibs__str_of("", 0);
    if (i == 2) expect_one(owned(p, "k", 10), nr);
    expect(run_task(p, op), DIBS_OK);
    expect_status(n.status, DIBS_REPLAY);
    assert_int_equal(n.nr, nr);
  }
  expect_status(ended(p, row_of(p, nr), DIBS__TASK_END_DONE), DIBS_OK);
  assert_true(added(p, "k", .serial = str_of("s"), .unique = str_of("u")) > nr);
}

static void R108_wrong_lanes_are_invalid(void **state) {
  (void)state;
  struct party *p = lane_party();
  static char long_topic[DIBS__TASK_TOPIC_MAX + 1];
  static task_lane many[DIBS__TASK_LANES + 1];
  static dibs__str phase;
  memset(long_topic, 't', sizeof long_topic);
  for (uint32_t i = 0; i <= DIBS__TASK_LANES; i++) many[i] = (task_lane){.lane = i, .fence = {1}};
  task_lane twice[] = {{.lane = 1, .fence = {1}}, {.lane = 1, .fence = {1}}};
  task_lane unsorted[] = {{.lane = 2, .fence = {1}}, {.lane = 1, .fence = {1}}};
  task_lane unfenced[] = {{.lane = 0, .fence = {1}}, {.lane = 1, .fence = {0}}};
  task_op bad[10];
  for (int i = 0; i < 10; i++) {
    bad[i] = task_call(DIBS__TASK_CLAIM, "k");
    bad[i].lanes = many;
    bad[i].lane_count = 2;
    bad[i].of_lanes = 4;
    bad[i].topic = str_of("topic");
  }
  bad[0].lanes = twice;
  bad[1].lanes = unsorted;
  bad[2].lanes = unfenced;
  bad[3].lane_count = 5;
  bad[4].lane_count = DIBS__TASK_LANES + 1;
  bad[4].of_lanes = DIBS__TASK_LANES;
  bad[5].of_lanes = DIBS__TASK_LANES + 1;
  bad[6].lane_count = 0;
  bad[7].topic = dibs__str_of("", 0);
  bad[8].topic = dibs__str_of(long_topic, sizeof long_topic);
  bad[9].phases = &phase;
  bad[9].phase_count = 1;
  for (int i = 0; i < 10; i++) {
    task_op got = run_task(p, bad[i]);
    if (got.op.status != DIBS_INVALID) print_error("claim %d:\n", i);
    expect(got, DIBS_INVALID);
    assert_true(got.why[0] != '\0');
  }
  assert_int_equal(count_of(p, "k").topic.len, 0);
  task_op op = task_call(DIBS__TASK_CLAIM, "k");
  op.lanes = many;
  op.lane_count = 1;
  op.of_lanes = 1;
  op.topic = dibs__str_of(long_topic, DIBS__TASK_TOPIC_MAX);
  expect(run_task(p, op), DIBS_OK);
  assert_int_equal(count_of(p, "k").topic.len, DIBS__TASK_TOPIC_MAX);
}

/* Of an engine that has no tasks by lane: a CLAIM that ignored the lanes would take what others own. */
static void R108_lanes_are_refused_or_served(void **state) {
  (void)state;
  struct party *p = task_party();
  task_lane lane = {.lane = 0, .fence = {10}};
  uint64_t nr = added(p, "k", .serial = str_of("s"));
  struct lanes_claimed answer = lanes_claimed(p, "k", &lane, 1, 1, .refused = true);
  expect_status(answer.status, target()->no_lanes ? DIBS_UNSUPPORTED : DIBS_OK);
  assert_int_equal(answer.got.count, !target()->no_lanes);
  assert_int_equal(row_of(p, nr).attempts, !target()->no_lanes);
}

/* ---- Becoming by lane, and no longer ---- */

static void R108_a_kind_belongs_to_one_topic(void **state) {
  (void)state;
  struct party *p = lane_party();
  task_lane lane = {.lane = 0, .fence = {50}};
  uint64_t nr = added(p, "k", .serial = str_of("s"));
  expect_one(owned(p, "k", 10, .topic = "cars"), nr);
  struct lanes_claimed got = lanes_claimed(p, "k", &lane, 1, 1, .topic = "car", .refused = true);
  expect_status(got.status, DIBS_INVALID);
  assert_non_null(strstr(got.why, "cars"));
  task_op op = task_call(DIBS__TASK_KIND, "k");
  op.set = DIBS__TASK_SET_NO_LANES;
  expect(run_task(p, op), DIBS_OK);
  assert_int_equal(count_of(p, "k").topic.len, 0);
  expect_one(owned(p, "k", 5, .topic = "car"), nr);
  assert_string_equal(count_of(p, "k").topic.p, "car");
}

static void R108_a_claim_without_lanes_leaves_keyed_tasks_alone_and_says_so(void **state) {
  (void)state;
  struct party *p = lane_party();
  expect_none_claimed(owned(p, "k", 10, .topic = "cars"));
  uint64_t keyed = added(p, "k", .serial = str_of("s"), .priority = 9), other = added(p, "k");
  expect_one(claimed(p, "k", .most = 10), other);
  task_op op = task_call(DIBS__TASK_CLAIM, "k");
  op.by = str_of("worker");
  op.id = id_of(1);
  op = run_task(p, op);
  expect(op, DIBS_OK);
  assert_int_equal(op.got_count, 0);
  assert_non_null(strstr(op.why, "cars"));
  expect_none_claimed(claimed(p, "k", .most = 10, .phases = {"", "a"}));
  expect_one(owned(p, "k", 10, .topic = "cars"), keyed);
}

/* The claim of `a` was made without lanes, the head of `b` was admitted. */
static struct claimed old_claim(struct party *p, const char *kind, uint64_t a[2], uint64_t b[2], int64_t timeout_ms) {
  added_many(p, kind, 2, (task_new){.serial = str_of("a"), .priority = 1}, a);
  added_many(p, kind, 2, (task_new){.serial = str_of("b")}, b);
  struct claimed old = claimed(p, kind, .timeout_ms = timeout_ms);
  expect_one(old, a[0]);
  return old;
}

static void R108_a_claim_from_before_lasts_until_it_ends(void **state) {
  (void)state;
  struct party *p = lane_party();
  uint64_t a[2], b[2];
  for (int next = 0; next < 2; next++) {
    const char *kind = next ? "k" : "kind";
    struct claimed old = old_claim(p, kind, a, b, TASK_LONG_MS);
    expect_claimed(owned(p, kind, 10, .most = 10), 2, b);
    expect_none_claimed(owned(p, kind, 10, .most = 10));
    assert_int_equal(state_of(p, a[0]), DIBS__TASK_CLAIMED);
    expect_status(extended(p, old.rows[0], TASK_LONG_MS, ""), DIBS_OK);
    expect_status(ended(p, old.rows[0], next ? DIBS__TASK_END_NEXT : DIBS__TASK_END_DONE), DIBS_OK);
    expect_claimed(owned(p, kind, 10, .most = 10), next ? 2 : 1, next ? a : a + 1);
  }
}

/* It is not a claim of this lane, so its lane's next owner waits as well. */
static void R108_a_claim_from_before_is_not_taken_over(void **state) {
  (void)state;
  struct party *p = lane_party();
  uint64_t a[2], b[2];
  struct claimed old = old_claim(p, "k", a, b, TASK_LONG_MS);
  expect_claimed(owned(p, "k", 10, .most = 10), 2, b);
  expect_claimed(owned(p, "k", 20, .most = 10), 2, b);
  assert_int_equal(row_of(p, a[0]).fence.v, old.rows[0].fence.v);
  expect_status(ended(p, old.rows[0], DIBS__TASK_END_DONE), DIBS_OK);
  expect_one(owned(p, "k", 20, .most = 10), a[1]);
}

static void R108_a_claim_from_before_ends_with_its_time(void **state) {
  (void)state;
  struct party *p = lane_party();
  uint64_t a[2], b[2];
  (void)old_claim(p, "k", a, b, TASK_SHORT_MS);
  nap_past_short();
  struct claimed got = owned(p, "k", 10, .most = 10);
  assert_int_equal(got.count, 4);
  assert_int_equal(row_of(p, a[0]).fails, 1);
  assert_int_equal(row_of(p, a[1]).fails, 0);
}

static void R109_an_end_of_a_claim_from_before_does_not_look_at_earlier_tasks(void **state) {
  (void)state;
  struct party *p = lane_party();
  uint64_t nrs[2];
  added_many(p, "k", 2, (task_new){.serial = str_of("s")}, nrs);
  changed(p, DIBS__TASK_CANCEL, only(nrs[0]));
  struct claimed old = claimed(p, "k");
  expect_one(old, nrs[1]);
  expect_none_claimed(owned(p, "k", 10, .most = 10));
  changed(p, DIBS__TASK_RETRY, only(nrs[0]));
  expect_status(ended(p, old.rows[0], DIBS__TASK_END_DONE), DIBS_OK);
  expect_one(owned(p, "k", 10, .most = 10), nrs[0]);
}

static void set_no_lanes(struct party *p, const char *kind) {
  task_op op = task_call(DIBS__TASK_KIND, kind);
  op.set = DIBS__TASK_SET_NO_LANES;
  expect(run_task(p, op), DIBS_OK);
}

static void R108_without_lanes_again_tasks_of_a_key_run_one_at_a_time(void **state) {
  (void)state;
  struct party *p = lane_party();
  uint64_t nrs[4], waits[2], parked[2];
  added_many(p, "k", 3, (task_new){.serial = str_of("s")}, nrs);
  added_many(p, "k", 2, (task_new){.serial = str_of("waits")}, waits);
  added_many(p, "k", 2, (task_new){.serial = str_of("parked")}, parked);
  struct claimed got = owned(p, "k", 10, .most = 10);
  assert_int_equal(got.count, 7);
  for (uint32_t i = 0; i < 7; i++) {
    if (got.rows[i].nr == waits[0])
      expect_status(ended(p, got.rows[i], DIBS__TASK_END_WAIT, .delay_ms = TASK_LONG_MS), DIBS_OK);
    if (got.rows[i].nr == parked[0]) expect_status(ended(p, got.rows[i], DIBS__TASK_END_DEAD), DIBS_OK);
  }
  set_no_lanes(p, "k");
  for (uint32_t i = 0; i < 7; i++)
    if (got.rows[i].nr == nrs[0] || got.rows[i].nr == nrs[1])
      expect_status(ended(p, got.rows[i], DIBS__TASK_END_DONE), DIBS_STALE);
  nrs[3] = added(p, "k", .serial = str_of("s"));
  for (int i = 0; i < 2; i++) {
    got = claimed_at_last(p, "k", (struct claim_how){.most = 10});
    expect_one(got, nrs[i]);
    assert_int_equal(got.rows[0].fails, 0);
    expect_none_claimed(claimed_at_last(p, "k", (struct claim_how){.most = 10}));
    expect_status(ended(p, got.rows[0], DIBS__TASK_END_DONE), DIBS_OK);
  }
  expect_claimed(owned(p, "k", 5, .most = 10), 2, nrs + 2);
  changed(p, DIBS__TASK_RETRY, only(parked[0]));
  changed(p, DIBS__TASK_CANCEL, only(waits[0]));
  assert_int_equal(owned(p, "k", 5, .most = 10).count, 3);
}

/* Twice in turn: nothing is lost or stuck. */
static void R108_a_kind_may_be_by_lane_and_not_in_turn(void **state) {
  (void)state;
  struct party *p = lane_party();
  enum { COUNT = 12 };
  uint64_t left = 0;
  for (uint32_t i = 0; i < COUNT; i++) left += added(p, "k", .serial = text_of_lane(0, 1, i % 3)) != 0;
  for (uint64_t turn = 1; left > 0; turn++) {
    struct claimed got =
        turn % 2 ? owned(p, "k", turn, .most = 2) : claimed_at_last(p, "k", (struct claim_how){.most = 2});
    assert_true(got.count > 0 && turn < 3 * COUNT);
    for (uint32_t i = 0; i < got.count; i++) {
      bool done = (turn + i) % 4 != 0;
      left -= done;
      expect_status(ended(p, got.rows[i], done ? DIBS__TASK_END_DONE : DIBS__TASK_END_NEXT), DIBS_OK);
      if (!done && turn % 2) break; /* later ones may have ended with it */
    }
    if (turn % 2) set_no_lanes(p, "k");
  }
  assert_int_equal(count_of(p, "k").states[DIBS__TASK_DONE], COUNT);
}

static const struct CMUnitTest contract_tasks_lanes_cases[] = {
    CASE(R108_a_claim_takes_the_keys_of_its_lanes_only),
    CASE(R108_one_fence_claims_several_of_a_key_in_their_order),
    CASE(R108_tasks_of_a_key_are_answered_by_number),
    CASE(R108_a_claim_may_name_every_lane_of_the_largest_number),
    CASE(R108_lanes_without_tasks_make_the_kind_by_lane),
    CASE(R108_a_lane_with_a_smaller_fence_is_stale),
    CASE(R108_another_number_of_lanes_needs_a_larger_fence),
    CASE(R108_each_kind_has_its_own_fences),
    CASE(R108_no_key_waits_behind_one_with_many_tasks),
    CASE(R108_of_two_keys_of_one_slot_none_waits_for_ever),
    CASE(R108_two_keys_of_one_slot_are_two_keys),
    CASE(R108_the_limit_and_the_pause_hold),
    CASE(R108_a_repeated_claim_finds_its_tasks),
    CASE(R108_a_repeated_claim_finds_tasks_of_the_lanes_that_it_names),
    CASE(R108_a_repeated_claim_finds_nothing_under_another_fence),
    CASE(R108_unique_texts_and_tokens_are_as_in_other_kinds),
    CASE(R108_wrong_lanes_are_invalid),
    CASE(R108_lanes_are_refused_or_served),
    CASE(R108_a_kind_belongs_to_one_topic),
    CASE(R108_a_claim_without_lanes_leaves_keyed_tasks_alone_and_says_so),
    CASE(R108_a_claim_from_before_lasts_until_it_ends),
    CASE(R108_a_claim_from_before_is_not_taken_over),
    CASE(R108_a_claim_from_before_ends_with_its_time),
    CASE(R109_an_end_of_a_claim_from_before_does_not_look_at_earlier_tasks),
    CASE(R108_without_lanes_again_tasks_of_a_key_run_one_at_a_time),
    CASE(R108_a_kind_may_be_by_lane_and_not_in_turn),
};
CONTRACT_TESTS(contract_tasks_lanes);

/* SPDX-License-Identifier: MIT */
/* Batches: each element has its own answer (R1, R3), groups (R4), the answer of run() (R6), deadlines (R7). */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- R1, R3 ---- */

static void R1_each_element_is_answered_on_its_own(void **state) {
  (void)state;
  needs(DIBS__CAP_SHARED);
  struct party *p = party();
  struct how shared = {.mode = DIBS_SHARED}, try_it = {.try_only = true};
  struct dibs__lease_op enter = lease_op(p, DIBS__ACQUIRE, "n", 1, shared);
  struct dibs__lease_op refused = lease_op(p, DIBS__ACQUIRE, "n", 2, try_it);
  struct dibs__lease_op wrong = lease_op(p, DIBS__ACQUIRE, "n", 3, (struct how){.mode = 44});
  struct dibs__lease_op stale = lease_op(p, DIBS__ACQUIRE, "n", 4, shared);
  struct dibs__lease_op leave_it = lease_op(p, DIBS__RELEASE, "n", 1, shared);
  struct dibs__lease_op twice = lease_op(p, DIBS__RELEASE, "n", 1, shared);
  struct dibs__lease_op granted = lease_op(p, DIBS__ACQUIRE, "n", 2, try_it);
  struct dibs__record_op nothing = record_op(DIBS__RECORD_LOAD, "n", 0, DIBS__FENCE_NONE, NULL);
  struct dibs__op *ops[] = {&enter.op,    &refused.op, &wrong.op,   &stale.op,
                            &leave_it.op, &twice.op,   &granted.op, &nothing.op};
  stale.op.mandate.epoch += 3;
  run_batch(p, ops, 8);
  expect(enter, DIBS_OK);
  expect(refused, DIBS_HELD);
  expect(wrong, DIBS_INVALID);
  expect(stale, DIBS__MOVED);
  expect(leave_it, DIBS_OK);
  expect(twice, DIBS_LOST);
  expect(granted, DIBS_OK);
  expect(nothing, p->identity.families & 1u << DIBS__FAM_RECORD ? DIBS_NOT_FOUND : DIBS_UNSUPPORTED);
}

/* What the client last knew of "lost" and "taken" is no longer true; the other names share a transaction with them. */
static void R1_what_another_client_changed_fails_alone(void **state) {
  (void)state;
  struct party *p = party(), *q = party();
  struct how try_it = {.try_only = true};
  struct dibs__lease_op lost = acquire(p, "lost", 1), kept = acquire(p, "kept", 2), left = acquire(p, "left", 3);
  expect(acquire(q, "taken", 4), DIBS_OK);
  expect(break_it(breaking_party(p, q), "lost", true), DIBS_OK);
  struct dibs__lease_op release_lost = lease_op(p, DIBS__RELEASE, "lost", 1, try_it);
  struct dibs__lease_op renew = lease_op(p, DIBS__RENEW, "kept", 2, try_it);
  struct dibs__lease_op release_left = lease_op(p, DIBS__RELEASE, "left", 3, try_it);
  struct dibs__lease_op taken = lease_op(p, DIBS__ACQUIRE, "taken", 5, try_it);
  struct dibs__lease_op free_name = lease_op(p, DIBS__ACQUIRE, "free", 6, try_it);
  struct dibs__op *ops[] = {&release_lost.op, &renew.op, &taken.op, &release_left.op, &free_name.op};
  release_lost.fence = lost.fence;
  renew.fence = kept.fence;
  release_left.fence = left.fence;
  run_batch(p, ops, 5);
  expect(release_lost, DIBS_LOST);
  expect(renew, DIBS_OK);
  expect(taken, DIBS_HELD);
  expect(release_left, DIBS_OK);
  expect(free_name, DIBS_OK);
  expect(acquire_as(q, "left", 7, try_it), DIBS_OK);
  expect(acquire_as(q, "kept", 8, try_it), DIBS_HELD);
  expect(acquire_as(q, "free", 9, try_it), DIBS_HELD);
}

static void R1_the_order_in_a_batch_is_the_order_in_the_queue(void **state) {
  (void)state;
  needs(DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
  struct party *p = party();
  struct dibs__lease_op ops[20];
  struct dibs__op *batch[20];
  for (int i = 0; i < 20; i++) {
    ops[i] = lease_op(p, DIBS__ACQUIRE, "n", i, (struct how){.mode = 0});
    batch[i] = &ops[i].op;
  }
  run_batch(p, batch, 20);
  dibs__fence held = ops[0].fence;
  expect(ops[0], DIBS_OK);
  for (int i = 1; i < 20; i++) expect(ops[i], DIBS__QUEUED);
  for (int i = 1; i < 20; i++) {
    expect(release(p, "n", i - 1, held), DIBS_OK);
    struct dibs__lease_op next = acquire(p, "n", i, .ticket = ops[i].ticket);
    expect(next, DIBS_OK);
    held = next.fence;
  }
}

static void R1_a_batch_may_contain_a_release_and_the_next_acquire(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  struct dibs__lease_op out = lease_op(p, DIBS__RELEASE, "n", 1, (struct how){.mode = 0});
  struct dibs__lease_op in = lease_op(p, DIBS__ACQUIRE, "n", 2, (struct how){.try_only = true});
  struct dibs__op *ops[] = {&out.op, &in.op};
  out.fence = held.fence;
  run_batch(p, ops, 2);
  expect(out, DIBS_OK);
  expect(in, DIBS_OK);
  assert_true(dibs__fence_below(held.fence, in.fence));
}

static void R1_a_batch_may_be_as_large_as_promised(void **state) {
  (void)state;
  struct party *p = party();
  uint32_t count = p->identity.max_batch < 5000 ? p->identity.max_batch : 5000;
  assert_true(count >= 1);
  struct dibs__lease_op *ops = calloc(count, sizeof *ops);
  struct dibs__op **batch = calloc(count, sizeof *batch);
  char(*names)[32] = calloc(count, sizeof *names);
  assert_true(ops && batch && names);
  free_at_end((char *)ops), free_at_end((char *)batch), free_at_end((char *)names);
  dibs__str prefix = name_of("many.");
  for (uint32_t i = 0; i < count; i++) {
    int len = snprintf(names[i], sizeof names[i], "%.*s%u", (int)prefix.len, prefix.p, i);
    ops[i] = lease_op(p, DIBS__ACQUIRE, "many.", (int)i, (struct how){.mode = 0});
    ops[i].name = dibs__str_of(names[i], (size_t)len);
    ops[i].op.bucket = dibs__bucket(ops[i].name);
    ops[i].op.mandate = mandate_for(p, ops[i].op.bucket);
    ops[i].op.lane = i % 7;
    batch[i] = &ops[i].op;
  }
  run_batch(p, batch, count);
  for (uint32_t i = 0; i < count; i++) {
    expect(ops[i], DIBS_OK);
    assert_int_equal(ops[i].got_block, 1);
    ops[i].op.verb = DIBS__RELEASE;
  }
  run_batch(p, batch, count);
  for (uint32_t i = 0; i < count; i++) expect(ops[i], DIBS_OK);
}

static void R1_an_unknown_family_is_refused_alone(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op good = lease_op(p, DIBS__ACQUIRE, "n", 1, (struct how){.mode = 0}), strange = good;
  struct dibs__op *ops[] = {&strange.op, &good.op};
  strange.op.family = 999;
  run_batch(p, ops, 2);
  assert_true(strange.op.status == DIBS_UNSUPPORTED || strange.op.status == DIBS_INVALID);
  expect(good, DIBS_OK);
}

static void R3_a_driver_accepts_equal_lanes_in_one_batch(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op ops[3];
  struct dibs__op *batch[3];
  for (int i = 0; i < 3; i++) {
    ops[i] = lease_op(p, DIBS__ACQUIRE, "n", i, (struct how){.try_only = true});
    ops[i].op.lane = 5;
    batch[i] = &ops[i].op;
  }
  run_batch(p, batch, 3);
  expect(ops[0], DIBS_OK);
  expect(ops[1], DIBS_HELD);
  expect(ops[2], DIBS_HELD);
}

/* ---- R4 ---- */

static void R4_a_group_commits_together(void **state) {
  (void)state;
  needs(DIBS__CAP_ATOMIC);
  needs_rows();
  struct party *p = party(), *q = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  struct dibs__record_op one = save_op("one", 1, held.fence, "1");
  struct dibs__record_op two = save_op("two", 1, held.fence, "2");
  struct dibs__lease_op out = lease_op(p, DIBS__RELEASE, "n", 1, (struct how){.mode = 0});
  struct dibs__op *ops[] = {&one.op, &two.op, &out.op};
  out.fence = held.fence;
  for (int i = 0; i < 3; i++) ops[i]->group = 9;
  run_batch(p, ops, 3);
  expect(one, DIBS_OK);
  expect(two, DIBS_OK);
  expect(out, DIBS_OK);
  assert_string_equal(load(q, "one").got, "1");
  assert_string_equal(load(q, "two").got, "2");
  expect(acquire(q, "n", 2, .try_only = true), DIBS_OK);
}

static void R4_a_group_fails_as_one(void **state) {
  (void)state;
  needs(DIBS__CAP_ATOMIC | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1, .block = 4);
  expect(save(p, "r", 1, held.fence, "before"), DIBS_OK);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  struct dibs__record_op better = save_op("r", 1, (dibs__fence){held.fence.v + 1}, "after");
  struct dibs__record_op fresh = record_op(DIBS__RECORD_SEAL, "fresh", 1, held.fence, NULL);
  struct dibs__lease_op out = lease_op(p, DIBS__RELEASE, "n", 1, (struct how){.mode = 0});
  struct dibs__lease_op in = lease_op(p, DIBS__ACQUIRE, "free", 3, (struct how){.mode = 0});
  struct dibs__lease_op broken = lease_op(p, DIBS__RELEASE, "n", 7, (struct how){.mode = 0});
  struct dibs__op *ops[] = {&better.op, &fresh.op, &out.op, &in.op, &broken.op};
  out.fence = held.fence;
  for (int i = 0; i < 5; i++) ops[i]->group = 3;
  run_batch(p, ops, 5);
  expect(broken, DIBS_LOST);
  expect(better, DIBS_CONFLICT);
  expect(fresh, DIBS_CONFLICT);
  expect(out, DIBS_CONFLICT);
  expect(in, DIBS_CONFLICT);
  struct dibs__record_op still = load(p, "r");
  assert_string_equal(still.got, "before");
  assert_int_equal(still.version, 1);
  assert_int_equal(still.seen.v, held.fence.v);
  expect(load(p, "fresh"), DIBS_NOT_FOUND);
  expect(cancel(p, "free", 3), DIBS_NOT_FOUND);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  expect(renew(p, "n", 1, held.fence), DIBS_OK);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  expect(acquire(p, "n", 2), DIBS_OK);
}

static void R4_the_first_failure_decides_at_any_position(void **state) {
  (void)state;
  needs(DIBS__CAP_ATOMIC);
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(seal(p, "r", 1, (dibs__fence){held.fence.v}), DIBS_OK);
  for (int at = 0; at < 3; at++) {
    struct dibs__record_op ops[3];
    struct dibs__op *batch[3];
    for (int i = 0; i < 3; i++) {
      ops[i] = save_op(i == 0 ? "a" : i == 1 ? "b" : "c", 1, held.fence, "x");
      if (i == at) ops[i] = save_op("r", 2, held.fence, "x"); /* the fence of another lease */
      ops[i].op.group = 1;
      batch[i] = &ops[i].op;
    }
    run_batch(p, batch, 3);
    for (int i = 0; i < 3; i++) expect(ops[i], i == at ? DIBS_STALE : DIBS_CONFLICT);
    expect(load(p, "a"), DIBS_NOT_FOUND);
    expect(load(p, "b"), DIBS_NOT_FOUND);
    expect(load(p, "c"), DIBS_NOT_FOUND);
  }
}

static void R4_other_elements_of_the_batch_are_unaffected(void **state) {
  (void)state;
  needs(DIBS__CAP_ATOMIC);
  needs_rows();
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  struct dibs__record_op before = save_op("before", 1, held.fence, "1");
  struct dibs__record_op failed = save_op("failed", 1, held.fence, "2");
  struct dibs__lease_op lost = lease_op(p, DIBS__RENEW, "n", 2, (struct how){.mode = 0});
  struct dibs__record_op good = save_op("good", 1, held.fence, "3");
  struct dibs__record_op after = save_op("after", 1, held.fence, "4");
  struct dibs__op *ops[] = {&before.op, &failed.op, &lost.op, &good.op, &after.op};
  failed.op.group = lost.op.group = 1;
  good.op.group = 2;
  run_batch(p, ops, 5);
  expect(before, DIBS_OK);
  expect(failed, DIBS_CONFLICT);
  expect(lost, DIBS_LOST);
  expect(good, DIBS_OK);
  expect(after, DIBS_OK);
  assert_non_null(load(p, "before").got);
  expect(load(p, "failed"), DIBS_NOT_FOUND);
  assert_non_null(load(p, "good").got);
  assert_non_null(load(p, "after").got);
}

/* ---- R6, R7 ---- */

static void R6_run_reports_the_time_and_its_status(void **state) {
  (void)state;
  struct party *p = party();
  dibs__tick before = dibs__tick_now();
  struct dibs__lease_op held = acquire(p, "n", 1);
  dibs__tick after = dibs__tick_now();
  expect(held, DIBS_OK);
  assert_false(dibs__tick_before(p->reported.sent, before));
  assert_false(dibs__tick_before(after, p->reported.sent));
  assert_string_equal(p->reported.text, "");
  assert_true(p->reported.commits >= 1);
  assert_true(p->reported.now.ms > 0);
}

static void R7_run_returns_by_its_deadline(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op op = lease_op(p, DIBS__ACQUIRE, "n", 1, (struct how){.mode = 0});
  struct dibs__op *ops[] = {&op.op};
  struct dibs__result reported = {0};
  op.op.status = DIBS_UNKNOWN;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), 100);
  dibs__status status = store_of(p)->driver->run(p->session, ops, 1, by, &reported);
  assert_true(dibs__tick_left_ms(by, dibs__tick_now()) < 1000);
  if (status == DIBS_OK)
    assert_true(op.op.status == DIBS_OK || op.op.status == DIBS_UNAVAILABLE);
  else
    assert_true(status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN);
}

static void R7_a_passed_deadline_is_not_waited_for(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op op = lease_op(p, DIBS__ACQUIRE, "n", 1, (struct how){.mode = 0});
  struct dibs__op *ops[] = {&op.op};
  struct dibs__result reported = {0};
  op.op.status = DIBS_UNKNOWN;
  dibs__tick began = dibs__tick_now();
  dibs__status status = store_of(p)->driver->run(p->session, ops, 1, DIBS__TICK_ZERO, &reported);
  assert_true(dibs__tick_left_ms(began, dibs__tick_now()) < 1000);
  if (status == DIBS_UNAVAILABLE || op.op.status == DIBS_UNAVAILABLE) /* run() did nothing */
    expect(cancel(p, "n", 1), DIBS_NOT_FOUND);
  else if (op.op.status == DIBS__QUEUED) /* tiers: a waiter is asked to retry */
    assert_string_equal(store_of(p)->driver->name, "tiers");
  else if (status == DIBS_OK)
    expect(op, DIBS_OK);
}

static const struct CMUnitTest contract_batches_cases[] = {
    CASE(R1_each_element_is_answered_on_its_own),
    CASE(R1_what_another_client_changed_fails_alone),
    CASE(R1_the_order_in_a_batch_is_the_order_in_the_queue),
    CASE(R1_a_batch_may_contain_a_release_and_the_next_acquire),
    CASE(R1_a_batch_may_be_as_large_as_promised),
    CASE(R1_an_unknown_family_is_refused_alone),
    CASE(R3_a_driver_accepts_equal_lanes_in_one_batch),
    CASE(R4_a_group_commits_together),
    CASE(R4_a_group_fails_as_one),
    CASE(R4_the_first_failure_decides_at_any_position),
    CASE(R4_other_elements_of_the_batch_are_unaffected),
    CASE(R6_run_reports_the_time_and_its_status),
    CASE(R7_run_returns_by_its_deadline),
    CASE(R7_a_passed_deadline_is_not_waited_for),
};
CONTRACT_TESTS(contract_batches);

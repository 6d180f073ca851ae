/* SPDX-License-Identifier: MIT */
/*
 * The combiner alone, above a driver that the test controls: which operations share a batch, which caller leads, and
 * what happens when a caller leaves.
 */
#include "gate.h"

enum { CALLERS = 6 };
#define ALONE ((struct gate_plan){.max_batch = 16, .shut = true})
#define PARALLEL ((struct gate_plan){.caps = DIBS__CAP_PARALLEL, .max_sessions = 3, .max_batch = 16, .shut = true})

/* Whether the batch contained exactly these, in this order. */
static void carried(size_t at, struct probe *probes[], size_t count) {
  struct gate_batch batch = gate_batch(at);
  assert_int_equal(batch.count, count);
  for (size_t i = 0; i < count; i++) assert_ptr_equal(batch.ops[i], &probes[i]->op);
}
#define CARRIED(at, ...)                                                                                               \
  do {                                                                                                                 \
    struct probe *carried_probes[] = {__VA_ARGS__};                                                                    \
    carried(at, carried_probes, sizeof carried_probes / sizeof carried_probes[0]);                                     \
  } while (0)

static void start(struct dibs__core *core, struct probe *probe) {
  dibs__core_start(core, &probe->op);
}

static void start_group(struct dibs__core *core, struct probe *a, struct probe *b) {
  a->op.group = b->op.group = 1;
  struct probe *both[] = {a, b};
  dibs__core_start(core, probe_list(both, 2));
}

/* ---- Leaders ---- */

static void a_single_caller_leads_its_own_batch(void **state) {
  (void)state;
  gate_begin((struct gate_plan){.max_batch = 16});
  struct dibs__core *core = gate_core();
  uint32_t threads = threads_now();
  struct probe one;
  for (int i = 0; i < 10; i++) {
    probe_make(&one, core, 0);
    assert_true(dibs__core_run(core, &one.op, DIBS__TICK_NEVER));
    assert_int_equal(one.dones, 1);
    assert_int_equal(one.status, DIBS_OK);
    assert_int_equal(gate_batch((size_t)i).thread, dibs__thread_self());
  }
  assert_int_equal(threads_now(), threads); /* no other thread was needed */
  gate_close(core);
}

static void operations_that_arrive_meanwhile_share_a_batch(void **state) {
  (void)state;
  gate_begin(ALONE);
  struct dibs__core *core = gate_core();
  struct probe probes[CALLERS];
  struct runner runners[CALLERS];
  for (int i = 0; i < CALLERS; i++) {
    probe_make(&probes[i], core, 0);
    runner_start(&runners[i], core, &probes[i].op, LONG_MS);
    if (i == 0) UNTIL(gate_seen() == 1);
  }
  UNTIL(gate_pending(core) == CALLERS - 1);
  gate_let(0);
  UNTIL(gate_seen() == 2);
  assert_int_equal(gate_batch(1).count, CALLERS - 1);
  gate_open();
  for (int i = 0; i < CALLERS; i++) assert_true(runner_join(&runners[i]));
  for (int i = 0; i < CALLERS; i++) assert_int_equal(probes[i].dones, 1);
  struct dibs__core_counts counts;
  dibs__core_count(core, &counts);
  assert_int_equal(counts.operations, CALLERS);
  assert_int_equal(counts.batches, 2);
  assert_int_equal(counts.transactions, 2);
  gate_close(core);
}

/* A driver carries it before all that it does with a batch. */
static void a_question_about_the_engine_travels_alone(void **state) {
  (void)state;
  gate_begin(ALONE);
  struct dibs__core *core = gate_core();
  struct probe first, probes[4], *all[4];
  struct runner runner;
  probe_make(&first, core, 0);
  runner_start(&runner, core, &first.op, LONG_MS);
  UNTIL(gate_seen() == 1);
  for (int i = 0; i < 4; i++) {
    probe_make(&probes[i], core, 0);
    all[i] = &probes[i];
  }
  probes[1].op.family = DIBS__FAM_ENGINE;
  dibs__core_start(core, probe_list(all, 4));
  UNTIL(gate_pending(core) == 4);
  gate_open();
  assert_true(runner_join(&runner));
  UNTIL(gate_seen() == 4);
  CARRIED(1, &probes[0]);
  CARRIED(2, &probes[1]);
  CARRIED(3, &probes[2], &probes[3]);
  for (int i = 0; i < 4; i++) UNTIL(probes[i].dones == 1);
  gate_close(core);
}

static void the_successor_is_named_before_answers_are_delivered(void **state) {
  (void)state;
  gate_begin(ALONE);
  struct dibs__core *core = gate_core();
  struct probe first, second;
  struct runner runners[2];
  _Atomic uint32_t go = 0;
  probe_make(&first, core, 0);
  probe_make(&second, core, 0);
  first.hold = &go;
  runner_start(&runners[0], core, &first.op, LONG_MS);
  UNTIL(gate_seen() == 1);
  runner_start(&runners[1], core, &second.op, LONG_MS);
  UNTIL(gate_pending(core) == 1);
  gate_let(0);
  UNTIL(gate_seen() == 2); /* while the first answer is stuck in its callback */
  assert_int_equal(first.dones, 0);
  gate_open();
  assert_true(runner_join(&runners[1]));
  atomic_store(&go, 1);
  assert_true(runner_join(&runners[0]));
  gate_close(core);
}

static void full_batches_follow_each_other_in_order(void **state) {
  (void)state;
  gate_begin((struct gate_plan){.max_batch = 4, .shut = true});
  struct dibs__core *core = gate_core();
  struct probe probes[11], *all[11];
  for (int i = 0; i < 11; i++) {
    probe_make(&probes[i], core, 0);
    all[i] = &probes[i];
  }
  start(core, &probes[0]);
  UNTIL(gate_seen() == 1);
  dibs__core_start(core, probe_list(all + 1, 10));
  gate_open();
  UNTIL(probes[10].dones == 1);
  CARRIED(0, &probes[0]);
  carried(1, all + 1, 4);
  carried(2, all + 5, 4);
  carried(3, all + 9, 2);
  gate_close(core);
}

static void done_may_submit_more(void **state) {
  (void)state;
  gate_begin((struct gate_plan){.max_batch = 16});
  struct dibs__core *core = gate_core();
  struct probe probes[3];
  for (int i = 0; i < 3; i++) probe_make(&probes[i], core, 0);
  probes[0].hand_in = &probes[1].op;
  probes[1].hand_in = &probes[2].op;
  assert_true(dibs__core_run(core, &probes[0].op, DIBS__TICK_NEVER));
  UNTIL(probes[2].dones == 1);
  assert_int_equal(probes[1].dones, 1);
  /* Submits the same operation again, from its own callback. */
  probe_make(&probes[0], core, 0);
  probes[0].hand_in = &probes[0].op;
  start(core, &probes[0]);
  UNTIL(probes[0].dones == 2);
  gate_close(core);
}

/* ---- Lanes and groups ---- */

static void lane_is_never_in_two_batches(void **state) {
  (void)state;
  gate_begin(PARALLEL);
  struct dibs__core *core = gate_core();
  struct probe seven, again, eight, last;
  probe_make(&seven, core, 0);
  probe_make(&again, core, 0);
  probe_make(&eight, core, 0);
  probe_make(&last, core, 0);
  seven.op.lane = again.op.lane = last.op.lane = 7;
  eight.op.lane = 8;
  start(core, &seven);
  UNTIL(gate_seen() == 1);
  struct runner runners[3];
  runner_start(&runners[0], core, &again.op, LONG_MS);
  runner_start(&runners[1], core, &eight.op, LONG_MS);
  runner_start(&runners[2], core, &last.op, LONG_MS);
  UNTIL(gate_seen() == 2); /* another lane uses another session */
  CARRIED(1, &eight);
  assert_ptr_not_equal(gate_batch(0).session, gate_batch(1).session);
  UNTIL(gate_pending(core) == 2);
  gate_let(1);
  UNTIL(eight.dones == 1);
  assert_int_equal(gate_seen(), 2);
  gate_let(0);
  UNTIL(gate_seen() == 3);
  for (size_t i = 0; i < gate_batch(2).count; i++) assert_int_equal(gate_batch(2).ops[i]->lane, 7);
  gate_open();
  for (int i = 0; i < 3; i++) assert_true(runner_join(&runners[i]));
  gate_close(core);
}

/* The lane is in a batch on the session for urgent operations; a waiter for the lane may not use that session. */
static void a_lane_that_becomes_free_continues_on_another_session(void **state) {
  (void)state;
  gate_begin(PARALLEL);
  struct dibs__core *core = gate_core();
  struct probe urgent, ordinary;
  probe_make(&urgent, core, DIBS__OP_URGENT);
  probe_make(&ordinary, core, 0);
  urgent.op.lane = ordinary.op.lane = 7;
  struct runner runner;
  runner_start(&runner, core, &urgent.op, LONG_MS);
  UNTIL(gate_seen() == 1);
  start(core, &ordinary);
  gate_open();
  assert_true(runner_join(&runner));
  UNTIL(ordinary.dones == 1);
  gate_close(core);
}

static void a_group_waits_for_the_lanes_of_all_its_operations(void **state) {
  (void)state;
  for (int which = 0; which < 2; which++) { /* the lane is the first's, the second's */
    gate_begin(PARALLEL);
    struct dibs__core *core = gate_core();
    struct probe lane, a, b, free_one;
    probe_make(&lane, core, 0);
    probe_make(&a, core, 0);
    probe_make(&b, core, 0);
    probe_make(&free_one, core, 0);
    lane.op.lane = 7;
    if (which)
      b.op.lane = 7;
    else
      a.op.lane = 7;
    start(core, &lane);
    UNTIL(gate_seen() == 1);
    start_group(core, &a, &b);
    start(core, &free_one);
    UNTIL(gate_seen() == 2);
    CARRIED(1, &free_one);
    gate_let(1);
    UNTIL(free_one.dones == 1);
    assert_int_equal(gate_pending(core), 2);
    assert_int_equal(gate_seen(), 2);
    gate_let(0);
    UNTIL(gate_seen() == 3);
    CARRIED(2, &a, &b);
    gate_open();
    UNTIL(a.dones == 1 && b.dones == 1);
    gate_close(core);
  }
}

static void group_that_does_not_fit_waits_for_the_next_batch(void **state) {
  (void)state;
  gate_begin((struct gate_plan){.max_batch = 4, .shut = true});
  struct dibs__core *core = gate_core();
  struct probe first, ones[3], a, b, *all[3];
  probe_make(&first, core, 0);
  probe_make(&a, core, 0);
  probe_make(&b, core, 0);
  for (int i = 0; i < 3; i++) {
    probe_make(&ones[i], core, 0);
    all[i] = &ones[i];
  }
  start(core, &first);
  UNTIL(gate_seen() == 1);
  dibs__core_start(core, probe_list(all, 3));
  start_group(core, &a, &b);
  gate_open();
  UNTIL(b.dones == 1);
  CARRIED(1, &ones[0], &ones[1], &ones[2]);
  CARRIED(2, &a, &b);
  gate_close(core);
}

static void groups_of_two_callers_stay_separate(void **state) {
  (void)state;
  gate_begin(ALONE);
  struct dibs__core *core = gate_core();
  struct probe first, a, b, c, d;
  struct probe *all[] = {&first, &a, &b, &c, &d};
  for (int i = 0; i < 5; i++) probe_make(all[i], core, 0);
  start(core, &first);
  UNTIL(gate_seen() == 1);
  start_group(core, &a, &b);
  start_group(core, &c, &d);
  gate_open();
  UNTIL(d.dones == 1);
  CARRIED(1, &a, &b, &c, &d);
  assert_int_equal(a.op.group, b.op.group);
  assert_int_equal(c.op.group, d.op.group);
  assert_int_not_equal(a.op.group, c.op.group);
  gate_close(core);
}

static void urgent_operations_never_wait_for_others(void **state) {
  (void)state;
  gate_begin(PARALLEL);
  struct dibs__core *core = gate_core();
  struct probe slow[2], ordinary, urgent;
  for (int i = 0; i < 2; i++) { /* all sessions that it could use are busy */
    probe_make(&slow[i], core, 0);
    start(core, &slow[i]);
    UNTIL(gate_seen() == (size_t)i + 1);
    if (i == 0) continue;
    assert_ptr_not_equal(gate_batch(0).session, gate_batch(1).session);
  }
  probe_make(&ordinary, core, 0);
  probe_make(&urgent, core, DIBS__OP_URGENT);
  start(core, &ordinary);
  struct runner runner;
  runner_start(&runner, core, &urgent.op, LONG_MS);
  UNTIL(gate_seen() == 3);
  CARRIED(2, &urgent);
  gate_let(2);
  assert_true(runner_join(&runner));
  assert_int_equal(ordinary.dones, 0);
  gate_close(core);
}

/* ---- Leaving ---- */

static void leaving_before_sending_removes_the_operation(void **state) {
  (void)state;
  gate_begin(ALONE);
  struct dibs__core *core = gate_core();
  struct probe first, waits, behind;
  struct runner runners[2];
  probe_make(&first, core, 0);
  probe_make(&waits, core, 0);
  probe_make(&behind, core, 0);
  runner_start(&runners[0], core, &first.op, LONG_MS);
  UNTIL(gate_seen() == 1);
  runner_start(&runners[1], core, &waits.op, 50);
  assert_false(runner_join(&runners[1]));
  assert_int_equal(waits.dones, 1);
  assert_int_equal(waits.status, DIBS_TIMEOUT);
  start(core, &behind);
  gate_open();
  assert_true(runner_join(&runners[0]));
  UNTIL(behind.dones == 1);
  CARRIED(1, &behind);
  assert_int_equal(waits.dones, 1);
  gate_close(core);
}

static void a_sent_operation_continues_without_its_caller(void **state) {
  (void)state;
  gate_begin(ALONE);
  struct dibs__core *core = gate_core();
  struct probe first, second, third;
  struct runner runners[3];
  probe_make(&first, core, 0);
  probe_make(&second, core, 0);
  probe_make(&third, core, 0);
  runner_start(&runners[0], core, &first.op, LONG_MS);
  UNTIL(gate_seen() == 1);
  runner_start(&runners[1], core, &second.op, LONG_MS);
  UNTIL(gate_pending(core) == 1);
  runner_start(&runners[2], core, &third.op, 300);
  UNTIL(gate_pending(core) == 2);
  gate_let(0);
  UNTIL(gate_seen() == 2);
  CARRIED(1, &second, &third); /* led by the second */
  assert_false(runner_join(&runners[2]));
  assert_int_equal(third.dones, 0);
  gate_open();
  UNTIL(third.dones == 1);
  assert_int_equal(third.status, DIBS_OK);
  assert_true(runner_join(&runners[0]));
  assert_true(runner_join(&runners[1]));
  gate_close(core);
}

/* ---- Failures ---- */

static dibs__mandate stands;
static void moved(struct dibs__op *op) {
  bool same = dibs__mandate_equal(&op->mandate, &stands);
  op->status = same ? DIBS_OK : DIBS__MOVED;
  op->has = stands;
}
static void always_moved(struct dibs__op *op) {
  op->status = DIBS__MOVED;
  op->has = stands;
  op->has.epoch = op->mandate.epoch + 1;
}

/* The session for urgent operations breaks.  Its leader wakes a caller to search for another session, but the time of
 * this caller is just over: an operation behind its own, for which nobody waits, must not be forgotten. */
static void an_operation_behind_a_caller_that_leaves_is_carried(void **state) {
  (void)state;
  enum { ROUNDS = 40, ON_TIME_MS = 40 };
  struct gate_plan broken = PARALLEL;
  broken.run = DIBS_UNAVAILABLE;
  broken.dead = true;
  for (int round = 0; round < ROUNDS; round++) {
    gate_begin(PARALLEL);
    struct dibs__core *core = gate_core();
    struct probe slow, first, leaves, behind;
    struct runner leader, leaver;
    probe_make(&slow, core, 0);
    start(core, &slow);
    UNTIL(gate_seen() == 1);
    probe_make(&first, core, DIBS__OP_URGENT);
    runner_start(&leader, core, &first.op, LONG_MS);
    UNTIL(gate_seen() == 2); /* on the second session */
    gate_let(0);
    UNTIL(slow.dones == 1);
    probe_make(&leaves, core, DIBS__OP_URGENT);
    probe_make(&behind, core, DIBS__OP_URGENT);
    dibs__tick over = dibs__tick_add_ms(dibs__tick_now(), ON_TIME_MS);
    runner_start(&leaver, core, &leaves.op, ON_TIME_MS);
    UNTIL(gate_pending(core) == 1 || leaver.over || gate_seen() > 2);
    start(core, &behind);
    gate_change(broken);
    while (dibs__tick_now().ns < over.ns + (round - ROUNDS / 2) * 10000) {
    }
    gate_let(1);
    gate_open();
    gate_change((struct gate_plan){.caps = DIBS__CAP_PARALLEL, .max_sessions = 3, .max_batch = 16});
    (void)runner_join(&leaver);
    assert_true(runner_join(&leader));
    dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), 5000);
    while (behind.dones == 0 && dibs__tick_before(dibs__tick_now(), by)) dibs__nap_ms(1);
    assert_int_equal(behind.dones, 1);
    gate_close(core);
  }
}

/* The only session carries an urgent operation for which nobody waits, with a caller's.  Meanwhile the second session,
 * for urgent operations, is opened for another one, and is idle again.  The mandate of the first has moved: it is
 * repeated on the second session, although the caller that led its batch has its own answer and leaves. */
static void an_urgent_operation_that_is_put_back_finds_the_new_session(void **state) {
  (void)state;
  struct gate_plan alone = PARALLEL, then = PARALLEL;
  alone.refuse_connects = UINT32_MAX;
  then.answer = moved;
  gate_begin(PARALLEL);
  struct dibs__core *core = gate_core();
  struct probe before, first, own, other;
  struct runner leader;
  stands = (dibs__mandate){.epoch = 9, .incarnation = {{1, 2, 3}}};
  gate_change(alone);
  probe_make(&before, core, 0);
  start(core, &before);
  UNTIL(gate_seen() == 1);
  probe_make(&first, core, DIBS__OP_URGENT | DIBS__OP_FOLLOWS);
  start(core, &first);
  probe_make(&own, core, DIBS__OP_URGENT);
  runner_start(&leader, core, &own.op, LONG_MS);
  UNTIL(gate_pending(core) == 2);
  gate_let(0);
  UNTIL(gate_seen() == 2);
  CARRIED(1, &first, &own);
  gate_change(PARALLEL);
  probe_make(&other, core, DIBS__OP_URGENT);
  start(core, &other);
  UNTIL(gate_seen() == 3);
  gate_let(2);
  UNTIL(other.dones == 1);
  gate_change(then);
  gate_let(1);
  assert_true(runner_join(&leader));
  assert_int_equal(own.status, DIBS__MOVED);
  UNTIL(gate_seen() == 4);
  gate_let(3);
  UNTIL(first.dones == 1);
  assert_int_equal(first.status, DIBS_OK);
  assert_ptr_equal(gate_batch(3).session, gate_batch(2).session);
  gate_open();
  gate_close(core);
}

/* A thread leads a batch without its own operation, which an urgent session could carry: that one is not left to it.
 * Here an ordinary operation of somebody else comes first, and waits, as behind a row's lock. */
static void a_slot_is_not_passed_to_a_thread_that_carries_a_batch(void **state) {
  (void)state;
  gate_begin(PARALLEL);
  struct dibs__core *core = gate_core();
  struct probe first, urgent, slow, own;
  struct runner leader;
  probe_make(&first, core, 0);
  start(core, &first);
  UNTIL(gate_seen() == 1);
  probe_make(&urgent, core, DIBS__OP_URGENT);
  start(core, &urgent); /* opens the second session */
  UNTIL(gate_seen() == 2);
  gate_let(0);
  UNTIL(first.dones == 1);
  /* Nobody leads it yet: the thread below is the first that looks. */
  probe_make(&slow, core, 0);
  dibs__core_leave(core, &slow.op);
  probe_make(&own, core, DIBS__OP_URGENT);
  runner_start(&leader, core, &own.op, LONG_MS);
  UNTIL(gate_seen() == 3);
  CARRIED(2, &slow);
  gate_let(1);
  UNTIL(gate_seen() == 4);
  CARRIED(3, &own);
  gate_let(3);
  UNTIL(own.dones == 1);
  gate_let(2);
  assert_true(runner_join(&leader));
  UNTIL(slow.dones == 1);
  gate_open();
  gate_close(core);
}

static void mandate_is_followed_in_order(void **state) {
  (void)state;
  stands = (dibs__mandate){.epoch = 9, .incarnation = {{1, 2, 3}}};
  gate_begin((struct gate_plan){.max_batch = 16, .answer = moved});
  struct dibs__core *core = gate_core();
  struct probe probes[4], *all[4];
  for (int i = 0; i < 4; i++) {
    probe_make(&probes[i], core, i == 1 ? 0 : DIBS__OP_FOLLOWS);
    all[i] = &probes[i];
  }
  assert_true(dibs__core_run(core, probe_list(all, 4), DIBS__TICK_NEVER));
  for (int i = 0; i < 4; i++) assert_int_equal(probes[i].status, i == 1 ? DIBS__MOVED : DIBS_OK);
  CARRIED(1, &probes[0], &probes[2], &probes[3]);
  /* The new mandate is used from now on. */
  struct probe next;
  probe_make(&next, core, 0);
  assert_true(dibs__core_run(core, &next.op, DIBS__TICK_NEVER));
  assert_int_equal(next.status, DIBS_OK);
  gate_close(core);
}

static void a_moving_mandate_is_not_followed_for_ever(void **state) {
  (void)state;
  gate_begin((struct gate_plan){.max_batch = 16, .answer = always_moved});
  struct dibs__core *core = gate_core();
  struct probe probe;
  probe_make(&probe, core, DIBS__OP_FOLLOWS);
  assert_true(dibs__core_run(core, &probe.op, DIBS__TICK_NEVER));
  assert_int_equal(probe.status, DIBS__MOVED);
  assert_true(gate_seen() > 1 && gate_seen() < 20);
  gate_close(core);
}

static void answer_first_only(struct dibs__op *op) {
  if (op == gate_batch(gate_seen() - 1).ops[0]) op->status = DIBS_HELD;
}

static void operations_without_an_answer_are_unknown(void **state) {
  (void)state;
  gate_begin((struct gate_plan){.max_batch = 16, .run = DIBS_UNKNOWN, .answer = answer_first_only});
  struct dibs__core *core = gate_core();
  struct probe a, b, *both[] = {&a, &b};
  probe_make(&a, core, 0);
  probe_make(&b, core, 0);
  assert_true(dibs__core_run(core, probe_list(both, 2), DIBS__TICK_NEVER));
  assert_int_equal(a.status, DIBS_HELD);
  assert_int_equal(b.status, DIBS_UNKNOWN);
  gate_change((struct gate_plan){.max_batch = 16, .run = DIBS_UNAVAILABLE});
  probe_make(&a, core, 0);
  assert_true(dibs__core_run(core, &a.op, DIBS__TICK_NEVER));
  assert_int_equal(a.status, DIBS_UNAVAILABLE);
  gate_close(core);
}

static void dead_session_is_replaced(void **state) {
  (void)state;
  gate_begin((struct gate_plan){.max_batch = 16, .run = DIBS_UNAVAILABLE, .dead = true});
  struct dibs__core *core = gate_core();
  struct probe probe;
  assert_int_equal(gate_connects(), 1);
  probe_make(&probe, core, 0);
  assert_true(dibs__core_run(core, &probe.op, DIBS__TICK_NEVER));
  assert_int_equal(probe.status, DIBS_UNAVAILABLE);
  gate_change((struct gate_plan){.max_batch = 16, .refuse_connects = 1});
  probe_make(&probe, core, 0);
  assert_true(dibs__core_run(core, &probe.op, DIBS__TICK_NEVER)); /* the first attempt fails */
  assert_int_equal(probe.status, DIBS_UNAVAILABLE);
  assert_int_equal(gate_connects(), 2);
  UNTIL((probe_make(&probe, core, 0), dibs__core_run(core, &probe.op, DIBS__TICK_NEVER), probe.status == DIBS_OK));
  assert_int_equal(gate_connects(), 3);
  gate_close(core);
}

int main(int argc, char *argv[]) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_single_caller_leads_its_own_batch),
      cmocka_unit_test(operations_that_arrive_meanwhile_share_a_batch),
      cmocka_unit_test(a_question_about_the_engine_travels_alone),
      cmocka_unit_test(the_successor_is_named_before_answers_are_delivered),
      cmocka_unit_test(full_batches_follow_each_other_in_order),
      cmocka_unit_test(done_may_submit_more),
      cmocka_unit_test(lane_is_never_in_two_batches),
      cmocka_unit_test(a_lane_that_becomes_free_continues_on_another_session),
      cmocka_unit_test(a_group_waits_for_the_lanes_of_all_its_operations),
      cmocka_unit_test(group_that_does_not_fit_waits_for_the_next_batch),
      cmocka_unit_test(groups_of_two_callers_stay_separate),
      cmocka_unit_test(urgent_operations_never_wait_for_others),
      cmocka_unit_test(leaving_before_sending_removes_the_operation),
      cmocka_unit_test(a_sent_operation_continues_without_its_caller),
      cmocka_unit_test(an_operation_behind_a_caller_that_leaves_is_carried),
      cmocka_unit_test(an_urgent_operation_that_is_put_back_finds_the_new_session),
      cmocka_unit_test(a_slot_is_not_passed_to_a_thread_that_carries_a_batch),
      cmocka_unit_test(mandate_is_followed_in_order),
      cmocka_unit_test(a_moving_mandate_is_not_followed_for_ever),
      cmocka_unit_test(operations_without_an_answer_are_unknown),
      cmocka_unit_test(dead_session_is_replaced),
  };
  lease_begin(argc, argv);
  return cmocka_run_group_tests(tests, NULL, NULL);
}

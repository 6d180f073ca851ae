/* SPDX-License-Identifier: MIT */
/*
 * Threads, each with its own session, request one name at the same time (R9, R10, R11). Holders update a tally that
 * shows when two of them hold the name and must not. The threads call nothing of cmocka: they count failures, and the
 * test checks the counts at the end.
 */
#include "harness.h"

#include <stdio.h>
#include <string.h>

enum { RACERS = 4, TURNS = 150, PATIENCE_MS = 60000 };

struct track {
  uint32_t mode[RACERS], slots;
  /* Changed by holders. */
  _Atomic int exclusive, others;
  _Atomic uint64_t slots_taken;
  _Atomic uint64_t last_fence;
  uint64_t tally; /* not atomic: exclusive holders alone */
  /* Failures. */
  _Atomic int two_at_once, fences_fell, gave_up;
};

struct racer {
  struct track *track;
  struct party *p;
  dibs__thread *thread;
  struct dibs__lease_op op; /* as first requested */
  dibs__tick by;
  int nr;
};

/* Repeats the request until it is answered. */
static dibs__status send_request(struct racer *r, struct dibs__lease_op *op) {
  const struct dibs__driver *driver = store_of(r->p)->driver;
  struct dibs__op *ops[] = {&op->op};
  while (dibs__tick_before(dibs__tick_now(), r->by)) {
    op->op.status = DIBS_UNKNOWN;
    dibs__status run = r->p->session ? driver->run(r->p->session, ops, 1, r->by, &r->p->reported) : DIBS_UNAVAILABLE;
    if (r->p->reported.dead || !r->p->session) {
      if (r->p->session) driver->disconnect(r->p->session);
      r->p->session = NULL;
      (void)driver->connect(store_of(r->p), r->by, &r->p->session, &r->p->identity, &r->p->reported);
    }
    if (run == DIBS_OK && op->op.status != DIBS_UNKNOWN && op->op.status != DIBS_UNAVAILABLE) return op->op.status;
  }
  return DIBS_TIMEOUT;
}

static bool acquire_and_wait(struct racer *r, struct dibs__lease_op *op) {
  const struct dibs__driver *driver = store_of(r->p)->driver;
  *op = r->op;
  while (send_request(r, op) == DIBS__QUEUED) {
    struct dibs__event events[4];
    size_t count;
    uint64_t ticket = op->ticket;
    /* A lost event causes this delay. */
    (void)driver->events(store_of(r->p), events, 4, &count, dibs__tick_add_ms(dibs__tick_now(), 20));
    *op = r->op;
    op->ticket = ticket;
  }
  return op->op.status == DIBS_OK;
}

static void hold_alone(struct track *t, const struct dibs__lease_op *op) {
  uint64_t last = atomic_exchange(&t->last_fence, op->fence.v);
  if (last >= op->fence.v) t->fences_fell++;
  if (atomic_fetch_add(&t->exclusive, 1) != 0 || atomic_load(&t->others) != 0) t->two_at_once++;
  t->tally++;
  dibs__spin_pause();
  if (atomic_fetch_sub(&t->exclusive, 1) != 1 || atomic_load(&t->others) != 0) t->two_at_once++;
}

static void hold_with_others(struct track *t, const struct dibs__lease_op *op) {
  int there = atomic_fetch_add(&t->others, 1);
  if (atomic_load(&t->exclusive) != 0) t->two_at_once++;
  if (op->mode == DIBS_COUNTED) {
    uint64_t bit = UINT64_C(1) << op->slot;
    if (there >= (int)t->slots || op->slot >= t->slots) t->two_at_once++;
    if (atomic_fetch_or(&t->slots_taken, bit) & bit) t->two_at_once++;
    dibs__spin_pause();
    atomic_fetch_and(&t->slots_taken, ~bit);
  }
  atomic_fetch_sub(&t->others, 1);
}

static void race(void *arg) {
  struct racer *r = arg;
  struct track *t = r->track;
  for (int turn = 0; turn < TURNS; turn++) {
    struct dibs__lease_op op;
    if (!acquire_and_wait(r, &op)) {
      t->gave_up++;
      return;
    }
    if (op.mode == DIBS_EXCLUSIVE)
      hold_alone(t, &op);
    else
      hold_with_others(t, &op);
    op.op.verb = DIBS__RELEASE;
    if (send_request(r, &op) == DIBS_TIMEOUT) {
      t->gave_up++;
      return;
    }
  }
}

static void run_race(struct track *t) {
  struct racer racers[RACERS];
  uint64_t exclusive = 0;
  for (int i = 0; i < RACERS; i++) {
    struct racer *r = &racers[i];
    memset(r, 0, sizeof *r);
    r->track = t;
    r->nr = i;
    r->p = party();
    r->op =
        lease_op(r->p, DIBS__ACQUIRE, "n", 100 + i, (struct how){.mode = t->mode[i], .slots = t->slots, .ttl = 600000});
    r->by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
    if (t->mode[i] == DIBS_EXCLUSIVE) exclusive += TURNS;
  }
  for (int i = 0; i < RACERS; i++) {
    racers[i].thread = dibs__thread_start("racer", race, &racers[i]);
    assert_non_null(racers[i].thread);
  }
  for (int i = 0; i < RACERS; i++) dibs__thread_join(racers[i].thread);
  assert_int_equal(t->gave_up, 0);
  assert_int_equal(t->two_at_once, 0);
  assert_int_equal(t->fences_fell, 0);
  assert_int_equal(t->tally, exclusive);
}

static void R9_threads_hold_one_after_another(void **state) {
  (void)state;
  if (!has_cap(DIBS__CAP_SESSION)) needs(DIBS__CAP_FIFO);
  run_race(&(struct track){.slots = 0});
}

static void R9_reader_and_writer_threads_exclude_each_other(void **state) {
  (void)state;
  needs(DIBS__CAP_SHARED);
  if (!has_cap(DIBS__CAP_SESSION)) needs(DIBS__CAP_FIFO);
  run_race(&(struct track){.mode = {DIBS_SHARED, DIBS_SHARED, DIBS_EXCLUSIVE, DIBS_SHARED}});
}

static void R9_threads_fill_the_slots(void **state) {
  (void)state;
  needs(DIBS__CAP_COUNTED);
  if (!has_cap(DIBS__CAP_SESSION)) needs(DIBS__CAP_FIFO);
  run_race(&(struct track){.mode = {DIBS_COUNTED, DIBS_COUNTED, DIBS_COUNTED, DIBS_COUNTED}, .slots = 2});
}

static void R9_threads_of_all_modes(void **state) {
  (void)state;
  needs(DIBS__CAP_COUNTED | DIBS__CAP_SHARED);
  if (!has_cap(DIBS__CAP_SESSION)) needs(DIBS__CAP_FIFO);
  run_race(&(struct track){.mode = {DIBS_COUNTED, DIBS_SHARED, DIBS_EXCLUSIVE, DIBS_COUNTED}, .slots = 2});
}

static const struct CMUnitTest contract_races_cases[] = {
    CASE(R9_threads_hold_one_after_another),
    CASE(R9_reader_and_writer_threads_exclude_each_other),
    CASE(R9_threads_fill_the_slots),
    CASE(R9_threads_of_all_modes),
};
CONTRACT_TESTS(contract_races);

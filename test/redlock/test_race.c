/* SPDX-License-Identifier: MIT */
/*
 * Several clients acquire one name, undisturbed and while nodes are paused, killed and emptied: two never hold it while
 * each has reason to believe that it does, fences grow, and after the disturbance every client acquires it again.
 */
#include "bed.h"

#include <stdio.h>
#include <string.h>

enum { RACERS = 4, TTL_MS = 1500, SURE_MS = 500, PATIENCE_MS = 30000, TURNS = 25 };

struct track {
  _Atomic int inside, two_at_once, fences_fell, turns[RACERS];
  _Atomic uint64_t last_fence;
  _Atomic bool stop, enough;
  uint64_t tally; /* not atomic: holders alone */
  _Atomic uint64_t counted;
};

struct racer {
  struct track *track;
  struct party *p;
  dibs__thread *thread;
  struct dibs__lease_op first;
  int nr;
};

/* The status of the operation; UNAVAILABLE if run() failed. */
static dibs__status run_once(struct racer *r, struct dibs__lease_op *op, struct dibs__result *reported) {
  struct dibs__op *ops[] = {&op->op};
  op->op.status = DIBS_UNKNOWN;
  store_of(r->p)->driver->run(r->p->session, ops, 1, dibs__tick_add_ms(dibs__tick_now(), 2000), reported);
  return op->op.status;
}

static void hold(struct track *t, int nr, const struct dibs__lease_op *op) {
  if (now_ms() + SURE_MS > op->until.ms) return; /* too little time remains to rely on */
  if (atomic_fetch_add(&t->inside, 1) != 0) t->two_at_once++;
  if (op->fence.v <= atomic_load(&t->last_fence)) t->fences_fell++;
  atomic_store(&t->last_fence, op->fence.v);
  uint64_t before = t->tally;
  dibs__yield();
  /* The thread was delayed beyond its lease: this run does not test what two holders do then. */
  bool in_time = now_ms() < op->until.ms;
  if (in_time) {
    t->tally = before + 1;
    t->counted++;
    t->turns[nr]++;
  }
  atomic_fetch_sub(&t->inside, 1);
}

static void race(void *arg) {
  struct racer *r = arg;
  struct track *t = r->track;
  uint64_t ticket = 0;
  for (uint64_t turn = 1; !atomic_load(&t->stop); turn++) {
    struct dibs__result reported;
    struct dibs__lease_op op = r->first;
    op.ticket = ticket;
    memcpy(op.id.b + 4, &turn, sizeof turn); /* each turn uses a new lease id */
    dibs__status status = run_once(r, &op, &reported);
    ticket = status == DIBS__QUEUED ? op.ticket : 0;
    if (status == DIBS_OK) {
      hold(t, r->nr, &op);
      op.op.verb = DIBS__RELEASE;
      run_once(r, &op, &reported);
    }
    int64_t pause = status == DIBS__QUEUED ? op.recheck.ms - now_ms() : status == DIBS_OK ? 0 : 5;
    if (pause > 0) dibs__nap_ms(pause);
  }
}

static void begin(struct track *t, struct racer racers[RACERS], const char *uri) {
  memset(t, 0, sizeof *t);
  for (int i = 0; i < RACERS; i++) {
    struct racer *r = &racers[i];
    *r = (struct racer){.track = t, .nr = i, .p = party_at(uri)};
    r->first = lease_op(r->p, DIBS__ACQUIRE, "n", 100 + i, (struct how){.ttl = TTL_MS});
  }
  for (int i = 0; i < RACERS; i++) {
    racers[i].thread = dibs__thread_start("racer", race, &racers[i]);
    assert_non_null(racers[i].thread);
  }
}

/* Waits until each racer has had this many turns from now on. */
static void all_have_turns(struct track *t, int turns) {
  int from[RACERS];
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  for (int i = 0; i < RACERS; i++) from[i] = t->turns[i];
  for (int i = 0; i < RACERS; i++) {
    while (t->turns[i] < from[i] + turns && dibs__tick_before(dibs__tick_now(), by)) dibs__nap_ms(5);
    if (t->turns[i] < from[i] + turns) print_error("racer %d had %d turns\n", i, t->turns[i] - from[i]);
  }
}

static void end(struct track *t, struct racer racers[RACERS]) {
  atomic_store(&t->stop, true);
  for (int i = 0; i < RACERS; i++) dibs__thread_join(racers[i].thread);
  assert_int_equal(t->two_at_once, 0);
  assert_int_equal(t->fences_fell, 0);
  assert_int_equal(t->tally, t->counted);
  for (int i = 0; i < RACERS; i++) assert_true(t->turns[i] > 0);
}

static void clients_take_turns(void **state) {
  (void)state;
  struct track t;
  struct racer racers[RACERS];
  int64_t began = now_ms();
  begin(&t, racers, quorum(3, "", NULL));
  all_have_turns(&t, TURNS);
  end(&t, racers);
  for (int i = 0; i < RACERS; i++) assert_true(t.turns[i] >= TURNS);
  print_message("%llu sections in %lld ms\n", (unsigned long long)t.counted, (long long)(now_ms() - began));
}

static void pause_for(size_t node, int64_t ms) {
  node_pause(node);
  dibs__nap_ms(ms);
  node_resume(node);
}

static void clients_take_turns_while_one_of_three_nodes_fails(void **state) {
  (void)state;
  struct track t;
  struct racer racers[RACERS];
  begin(&t, racers, quorum(3, "&max_ttl=1500&node_timeout=200", NULL));
  all_have_turns(&t, 1);
  pause_for(0, 500);
  all_have_turns(&t, 1);
  node_kill(1);
  all_have_turns(&t, 1);
  node_start(1);
  pause_for(2, 300); /* and the emptied node does not count yet */
  all_have_turns(&t, 3);
  end(&t, racers);
}

static void clients_take_turns_while_two_of_five_nodes_fail(void **state) {
  (void)state;
  struct track t;
  struct racer racers[RACERS];
  begin(&t, racers, quorum(5, "&max_ttl=1500&node_timeout=200", NULL));
  all_have_turns(&t, 1);
  node_kill(4);
  node_pause(1);
  all_have_turns(&t, 1);
  node_start(4);
  node_resume(1);
  node_kill(0);
  all_have_turns(&t, 1);
  node_start(0);
  all_have_turns(&t, 3);
  end(&t, racers);
}

static const struct CMUnitTest cases[] = {
    NODE_CASE(clients_take_turns),
    NODE_CASE(clients_take_turns_while_one_of_three_nodes_fails),
    NODE_CASE(clients_take_turns_while_two_of_five_nodes_fail),
};

int main(int argc, char *argv[]) {
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  bed_begin();
  return cmocka_run_group_tests(cases, NULL, NULL);
}

/* SPDX-License-Identifier: MIT */
/* Slow and failing stores: behind the latency shim and the fault shim. */
#include "hold.h"

#include "drivers/wrap/fault.h"

#include <stdio.h>

#define ID_A "00112233445566778899aabbccddeeff"

/* With one session, all operations wait for the batch in flight. */
static bool one_session(void) {
  return !case_in_memory();
}

static dibs_store *slow_store(void) {
  return open_uri(shimmed("hold", ""), 0);
}

/* ---- A refusal, and what has changed since ---- */

static void expect_refused(dibs_store *store, const char *id, const char *words) {
  options how = HOW(.mode = DIBS_COUNTED, .slots = 3, .id = id);
  dibs_lease *lease;
  dibs_error error;
  assert_int_equal(dibs_acquire(store, "n", &how, &lease, &error), DIBS_INVALID);
  if (!strstr(error.text, words)) fail_msg("\"%s\" is not in \"%s\"", words, error.text);
}

/* What happens between the refusal and the listing that explains it. */
struct change {
  dibs_store *store;
  dibs_lease *leaves, *comes; /* in `mode`, with `slots` */
  dibs_mode mode;
  uint32_t slots;
  bool fails, waits;
  struct later waiter; /* with 4 slots */
};

static bool change_holder(void *user) {
  struct change *c = user;
  if (c->leaves) give(c->leaves);
  if (c->slots || c->mode != DIBS_COUNTED) c->comes = take(c->store, "n", .mode = c->mode, .slots = c->slots);
  if (c->waits) later_start(&c->waiter, c->store, "n", HOW(.mode = DIBS_COUNTED, .slots = 4, .wait_ms = LONG_MS));
  if (c->waits) UNTIL(rows_of(c->store, "n", DIBS_WAITS) == 1);
  return !c->fails;
}

static void a_refused_number_of_slots_is_explained_by_what_holds_the_name_now(void **state) {
  (void)state;
  static const struct {
    struct change change;
    bool stays;
    const char *id, *words;
  } cases[] = {
      {{.mode = DIBS_COUNTED}, true, NULL, "is held with 2 slots; give that number"},
      {{.mode = DIBS_COUNTED}, true, ID_A, "is held with 2 slots; give that number"},
      {{.mode = DIBS_COUNTED, .fails = true}, true, NULL, "is held with another number of slots; see `dibs show`"},
      {{.mode = DIBS_COUNTED}, false, NULL, "was held with another number of slots, and is not any more; try again"},
      {{.mode = DIBS_COUNTED}, false, ID_A, "was held with another number of slots, and is not any more; try again"},
      {{.mode = DIBS_COUNTED, .slots = 3}, false, NULL, "was held with another number of slots"},
      {{.mode = DIBS_COUNTED, .slots = 4}, false, NULL, "is held with 4 slots; give that number"},
      {{.mode = DIBS_EXCLUSIVE}, false, NULL, "was held with another number of slots"},
      {{.mode = DIBS_EXCLUSIVE, .waits = true}, false, NULL, "was held with another number of slots"},
  };
  static struct change change; /* its waiter may outlive a case that fails */
  dibs_store *one = open_store(), *two = slow_store();
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    dibs_lease *holder = take(one, "n", .mode = DIBS_COUNTED, .slots = 2);
    change = cases[i].change;
    change.store = one;
    change.leaves = cases[i].stays ? NULL : holder;
    hold_list(change_holder, &change);
    expect_refused(two, cases[i].id, cases[i].words);
    if (cases[i].stays) give(holder);
    if (change.comes) give(change.comes);
    if (change.waits) assert_int_equal(later_wait(&change.waiter), DIBS_OK);
    if (change.waits) give(change.waiter.lease);
  }
}

/* ---- Slow ---- */

static void slow_batch_does_not_block_other_sessions(void **state) {
  (void)state;
  if (one_session()) skip();
  dibs_store *store = slow_store();
  struct caller slow;
  hold_name("slow");
  caller_start(&slow, store, "slow", HOW());
  UNTIL(held_now() == 1);
  assert_int_equal(send_request(store, "other"), DIBS_OK);
  struct later later;
  later_start(&later, store, "another", HOW());
  assert_int_equal(later_wait(&later), DIBS_OK);
  give(later.lease);
  assert_int_equal(slow.over, 0);
  hold_name(NULL);
  assert_int_equal(caller_join(&slow), DIBS_OK);
  give(slow.lease);
}

static void slow_batch_does_not_block_what_completes_later(void **state) {
  (void)state;
  if (one_session()) skip();
  dibs_store *store = slow_store();
  struct later slow, other, timed;
  hold_name("slow");
  later_start(&slow, store, "slow", HOW(.wait_ms = LONG_MS)); /* the two held batches may be served in either order */
  UNTIL(held_now() == 1);
  later_start(&other, store, "other", HOW());
  assert_int_equal(later_wait(&other), DIBS_OK);
  give(other.lease);
  /* Nor does it block timers: the request of this one is held, too. */
  later_start(&timed, store, "slow", HOW(.mode = DIBS_SHARED, .wait_ms = 200));
  assert_int_equal(later_wait(&timed), DIBS_UNKNOWN);
  assert_int_equal(slow.calls, 0);
  hold_name(NULL);
  assert_int_equal(later_wait(&slow), DIBS_OK);
  dibs_lease_free(timed.lease);
  give(slow.lease);
  assert_int_equal(send_request(store, "slow", .wait_ms = LONG_MS), DIBS_OK);
}

static void renewals_are_not_behind_a_slow_batch(void **state) {
  (void)state;
  if (one_session()) skip();
  dibs_store *store = slow_store();
  struct later slow[3];
  dibs_lease *lease = take(store, "n", .ttl_ms = 900);
  hold_name("slow");
  for (uint32_t i = 0; i < 3; i++) { /* more than one session is blocked */
    later_start(&slow[i], store, "slow", HOW(.mode = DIBS_SHARED));
    UNTIL(held_now() == i + 1);
  }
  uint64_t renewed = stats_of(store).renewed;
  UNTIL(stats_of(store).renewed >= renewed + 4); /* more than its ttl */
  assert_int_equal(dibs_lease_alive(lease), 1);
  assert_int_equal(dibs_release(lease, NULL), DIBS_OK);
  assert_int_equal(held_now(), 3);
  hold_name(NULL);
  dibs_lease_free(lease);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(later_wait(&slow[i]), DIBS_OK);
    give(slow[i].lease);
  }
}

/* The thread that renews carries it, and does not come back. */
static void renewals_are_not_behind_one_that_hangs(void **state) {
  (void)state;
  if (one_session()) skip();
  dibs_store *store = slow_store();
  dibs_lease *slow = take(store, "slow", .ttl_ms = 1500);
  hold_name("slow");
  dibs_lease *before = take(store, "before", .ttl_ms = 6000);
  UNTIL(held_now() == 1);
  dibs_lease *after = take(store, "after", .ttl_ms = 3000);
  uint64_t renewed = stats_of(store).renewed;
  UNTIL(stats_of(store).renewed >= renewed + 4 || !dibs_lease_alive(after));
  UNTIL(dibs_lease_left_ms(before) < 4500);
  UNTIL(dibs_lease_left_ms(before) > 5000 || !dibs_lease_alive(before));
  bool kept_after = dibs_lease_alive(after), kept_before = dibs_lease_alive(before), hung = held_now() == 1;
  hold_name(NULL); /* else a failure waits for ever */
  assert_true(kept_after && kept_before && hung);
  give(after);
  give(before);
  dibs_lease_free(slow);
}

static void queued_behind_a_slow_batch_times_out_unsent(void **state) {
  (void)state;
  if (!one_session()) skip();
  dibs_store *store = slow_store();
  struct caller slow;
  hold_name("slow");
  caller_start(&slow, store, "slow", HOW());
  UNTIL(held_now() == 1);
  assert_int_equal(send_request(store, "second", .wait_ms = 100), DIBS_TIMEOUT);
  hold_name(NULL);
  assert_int_equal(caller_join(&slow), DIBS_OK);
  assert_int_equal(stats_of(store).operations, 1);
  give(slow.lease);
}

/* Three callers of one session: the second leads a batch with the third, which leaves while its request is in
 * flight. */
static void leave_the_third(const char *id, dibs_store *store) {
  static const char *const names[] = {"slow", "second", "third"};
  struct caller callers[3];
  hold_name("slow");
  for (uint32_t i = 0; i < 3; i++) {
    caller_start(&callers[i], store, names[i], HOW(.wait_ms = i == 2 ? 2500 : LONG_MS, .id = i == 2 ? id : NULL));
    UNTIL(i == 0 ? held_now() == 1 : pending_in(store) == i);
  }
  hold_name("third");
  hold_continue();
  UNTIL(held_now() == 1 && pending_in(store) == 0);
  assert_int_equal(caller_join(&callers[2]), DIBS_UNKNOWN);
  assert_int_equal(held_now(), 1);
  hold_name(NULL);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(caller_join(&callers[i]), DIBS_OK);
    give(callers[i].lease);
  }
}

static void a_late_grant_is_released(void **state) {
  (void)state;
  if (!one_session()) skip();
  dibs_store *near = open_store();
  leave_the_third(NULL, slow_store());
  assert_int_equal(send_request(near, "third", .wait_ms = LONG_MS), DIBS_OK);
}

static void a_late_grant_is_found_by_its_id(void **state) {
  (void)state;
  if (!one_session()) skip();
  dibs_store *near = open_store(), *store = slow_store();
  leave_the_third(ID_A, store);
  assert_int_equal(send_request(near, "third"), DIBS_HELD);
  dibs_lease *lease = take(store, "third", .id = ID_A);
  assert_int_equal(dibs_lease_alive(lease), 1);
  give(lease);
  assert_int_equal(send_request(near, "third"), DIBS_OK);
}

static void a_request_cancelled_in_flight_is_released(void **state) {
  (void)state;
  dibs_store *near = open_store(), *store = slow_store();
  struct later later;
  hold_name("n");
  later_start(&later, store, "n", HOW(.wait_ms = DIBS_FOREVER));
  UNTIL(held_now() == 1);
  dibs_acquire_cancel(later.lease);
  assert_int_equal(later_wait(&later), DIBS_CANCELLED);
  dibs_lease_free(later.lease);
  hold_name(NULL);
  UNTIL(stats_of(store).operations >= 2); /* requested, and released */
  assert_int_equal(send_request(near, "n", .wait_ms = LONG_MS), DIBS_OK);
}

/* The waiter joins the line while its holder's request is in flight.  It receives events itself while it waits, and no
 * other thread does. */
static void a_break_reaches_a_lease_that_was_handed_on(void **state) {
  (void)state;
  enum { TTL_MS = 120000 };
  dibs_store *near = open_store(), *store = slow_store();
  struct told told = {.calls = 0};
  struct caller first, next;
  hold_name("n");
  caller_start(&first, store, "n", HOW(.ttl_ms = TTL_MS));
  UNTIL(held_now() == 1);
  caller_start(&next, store, "n", HOW(.ttl_ms = TTL_MS, .wait_ms = DIBS_FOREVER, .on_lost = count_loss, .user = &told));
  UNTIL(stats_of(store).waiting == 2);
  hold_name(NULL);
  assert_int_equal(caller_join(&first), DIBS_OK);
  give(first.lease);
  assert_int_equal(caller_join(&next), DIBS_OK);
  assert_int_equal(stats_of(store).handed_off, 1);
  assert_int_equal(dibs_break(near, "n", NULL, NULL), DIBS_OK);
  UNTIL(told.calls == 1); /* its renewal comes later than that */
  dibs_lease_free(next.lease);
}

/* Else a crash of its holder would block the name for an hour.  The renewal of the holder before may be in flight. */
static void a_short_lease_is_not_held_for_the_time_of_a_long_one(void **state) {
  (void)state;
  enum { SHORT_MS = 5000, LONG_TTL_MS = 3600000 };
  dibs_store *store = slow_store();
  for (int i = 0; i < 8; i++) {
    bool travels = i % 2;
    struct caller next;
    uint64_t renewed = stats_of(store).renewed, handed_off = stats_of(store).handed_off;
    dibs_lease *lease = take(store, "n", .ttl_ms = LONG_TTL_MS);
    caller_start(&next, store, "n", HOW(.ttl_ms = SHORT_MS, .wait_ms = DIBS_FOREVER));
    UNTIL(stats_of(store).waiting == 1 && stats_of(store).renewed > renewed); /* it has a block of fences */
    if (travels) hold_name("n");
    if (travels) assert_int_equal(dibs_renew_start(lease, 0, NULL, NULL, NULL), DIBS_OK);
    if (travels) UNTIL(held_now() == 1);
    give(lease);
    /* A hand-off waits for that renewal if the line is older than a run, as on a slow machine. */
    for (int ms = 0; ms < 100 && travels && !next.over; ms++) dibs__nap_ms(1);
    hold_name(NULL);
    assert_int_equal(caller_join(&next), DIBS_OK);
    assert_int_equal(stats_of(store).handed_off, handed_off + 1);
    UNTIL(dibs_lease_store_left_ms(next.lease) < SHORT_MS + 100);
    assert_int_equal(dibs_lease_alive(next.lease), 1);
    give(next.lease);
  }
}

/* The store shortens the lease after 800 ms, and its answer would come after the deadline, half of what remains. */
static void a_renewal_for_less_counts_from_its_sending(void **state) {
  (void)state;
  dibs_store *near = open_store(), *store = open_uri(shimmed("latency", "latency.ms=1600"), 0);
  struct told told = {.calls = 0};
  dibs_lease *lease = take(store, "n", .ttl_ms = 30000, .flags = DIBS_NO_RENEW, .on_lost = count_loss, .user = &told);
  dibs_error error;
  struct caller next;
  caller_start(&next, near, "n", HOW(.wait_ms = DIBS_FOREVER));
  UNTIL(rows_of(near, "n", DIBS_WAITS) == 1);
  assert_int_equal(dibs_renew(lease, 0, &error), DIBS_OK); /* its session is connected by now */
  dibs__tick began = dibs__tick_now();
  assert_int_equal(dibs_renew(lease, 3000, &error), DIBS_UNKNOWN);
  UNTIL(told.calls == 1);
  assert_int_equal(dibs_lease_alive(lease), 0);
  assert_true(ms_since(began) < 3000);
  assert_int_equal(dibs_release(lease, NULL), DIBS_LOST);
  assert_int_equal(caller_join(&next), DIBS_OK);
  dibs_lease_free(lease);
  give(next.lease);
}

/* Each renewal takes longer than what a cohort requests beyond the ttl, and no other client waits. */
static void a_waiter_of_the_process_gets_it_from_a_slow_store(void **state) {
  (void)state;
  dibs_store *store = open_uri(shimmed("latency", "latency.ms=60"), 0);
  struct caller line[3];
  dibs_lease *lease = take(store, "n");
  for (uint32_t i = 0; i < 3; i++) {
    caller_start(&line[i], store, "n", HOW(.wait_ms = LONG_MS / 3, .ttl_ms = i == 2 ? 60000 : 0));
    UNTIL(stats_of(store).waiting == i + 1);
  }
  give(lease);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(caller_join(&line[i]), DIBS_OK);
    assert_true(dibs_lease_left_ms(line[i].lease) > (i == 2 ? 50000 : 20000));
    give(line[i].lease);
  }
  assert_true(stats_of(store).handed_off > 0);
}

/* ---- Failing ---- */

static dibs_store *failing(const char *params) {
  return open_uri(shimmed("fault", params), 0);
}

static void unknown_acquire_is_cleaned_up(void **state) {
  (void)state;
  dibs_store *near = open_store(), *store = failing("fault.nth=1&fault.how=unknown-after");
  dibs_error error;
  dibs_lease *lease = NULL;
  assert_int_equal(dibs_acquire(store, "n", NULL, &lease, &error), DIBS_UNKNOWN);
  assert_null(lease);
  assert_non_null(strstr(error.text, "\"n\""));
  assert_int_equal(send_request(near, "n", .wait_ms = LONG_MS), DIBS_OK);
}

static void unknown_acquire_with_an_id_is_found_again(void **state) {
  (void)state;
  dibs_store *near = open_store(), *store = failing("fault.nth=1&fault.how=unknown-after");
  assert_int_equal(send_request(store, "n", .id = ID_A), DIBS_UNKNOWN);
  assert_int_equal(send_request(near, "n"), DIBS_HELD);
  dibs_lease *lease = take(store, "n", .id = ID_A);
  give(lease);
  assert_int_equal(send_request(near, "n"), DIBS_OK);
}

/* A caller that has learned that it waits no more does not repeat its request: what the request may have is removed. */
static void a_cancelled_request_with_an_id_leaves_nothing(void **state) {
  (void)state;
  dibs_store *far = open_uri(shimmed("hold+fault", ""), 0), *near = open_store();
  for (int frees = 0; frees < 2; frees++) {
    struct later later;
    hold_name("n");
    later_start(&later, far, "n", HOW(.ttl_ms = 10 * LONG_MS, .wait_ms = 2 * LONG_MS, .id = ID_A));
    UNTIL(held_now() == 1);
    if (frees)
      dibs_lease_free(later.lease);
    else
      dibs_acquire_cancel(later.lease);
    dibs__fault_arm(&(struct dibs__fault_plan){.on = DIBS__FAULT_RUN, .nth = 1, .how = DIBS__FAULT_UNKNOWN_AFTER});
    hold_name(NULL);
    assert_int_equal(later_wait(&later), DIBS_CANCELLED);
    UNTIL(send_request(near, "n") == DIBS_OK);
    assert_int_equal(dibs__fault_struck(), 1);
    dibs__fault_arm(NULL);
    if (!frees) dibs_lease_free(later.lease);
  }
}

static void a_waiter_that_leaves_during_a_failure_is_in_no_queue(void **state) {
  (void)state;
  dibs_store *far = open_uri(shimmed("hold+fault", ""), 0), *near = open_store();
  dibs_lease *held = take(near, "n", .ttl_ms = 10 * LONG_MS);
  for (int with_id = 0; with_id < 2; with_id++) {
    struct later later;
    later_start(&later, far, "n", HOW(.ttl_ms = 10 * LONG_MS, .wait_ms = 2 * LONG_MS, .id = with_id ? ID_A : NULL));
    UNTIL(rows_of(near, "n", DIBS_WAITS) == 1);
    hold_name("n"); /* when it repeats its request */
    UNTIL(held_now() == 1);
    dibs_acquire_cancel(later.lease);
    dibs__fault_arm(&(struct dibs__fault_plan){.on = DIBS__FAULT_RUN, .nth = 1, .how = DIBS__FAULT_UNAVAILABLE});
    hold_name(NULL);
    assert_int_equal(later_wait(&later), DIBS_CANCELLED);
    UNTIL(rows_of(near, "n", DIBS_WAITS) == 0);
    dibs__fault_arm(NULL);
    dibs_lease_free(later.lease);
  }
  give(held);
}

static void after_an_unknown_release_the_lease_ends_with_its_ttl_at_the_latest(void **state) {
  (void)state;
  dibs_store *near = open_store(), *store = failing("fault.nth=2&fault.how=unknown-before");
  dibs_lease *lease = take(store, "n", .ttl_ms = 700);
  assert_int_equal(dibs_release(lease, NULL), DIBS_UNKNOWN);
  assert_int_equal(dibs_lease_alive(lease), 0);
  dibs_lease_free(lease);
  assert_int_equal(send_request(near, "n", .wait_ms = LONG_MS), DIBS_OK);
}

static void failed_renewal_is_tried_again(void **state) {
  (void)state;
  dibs_store *store = failing("fault.nth=2");
  struct told told = {.calls = 0};
  dibs_lease *lease = take(store, "n", .ttl_ms = 1500, .on_lost = count_loss, .user = &told);
  UNTIL(stats_of(store).renewed >= 2);
  assert_int_equal(dibs_lease_alive(lease), 1);
  assert_int_equal(told.calls, 0);
  give(lease);
}

/* The automatic renewal goes on, as if nothing had been requested. */
static void what_the_store_did_not_prolong_is_renewed(void **state) {
  (void)state;
  enum { HOUR_MS = 3600000 };
  dibs_store *faulty = open_uri(shimmed("fault", ""), 0);
  static const enum dibs__fault_how hows[] = {DIBS__FAULT_UNAVAILABLE, DIBS__FAULT_UNKNOWN_BEFORE};
  for (int i = 0; i < 4; i++) {
    bool keeps = i % 2;
    dibs_status expected = i / 2 ? DIBS_UNKNOWN : DIBS_UNAVAILABLE;
    dibs_lease *lease = take(faulty, "n", .ttl_ms = 6000);
    dibs__fault_arm(&(struct dibs__fault_plan){.on = DIBS__FAULT_RUN, .how = hows[i / 2], .nth = 1});
    assert_int_equal(keeps ? dibs_release_after(lease, HOUR_MS, NULL) : dibs_renew(lease, HOUR_MS, NULL), expected);
    dibs__fault_arm(NULL);
    uint64_t renewed = stats_of(faulty).renewed;
    UNTIL(stats_of(faulty).renewed > renewed || stats_of(faulty).lost > 0);
    assert_int_equal(dibs_lease_alive(lease), 1);
    assert_true(dibs_lease_left_ms(lease) <= 6000);
    give(lease);
  }
}

static void a_lease_is_lost_when_the_store_is_unreachable(void **state) {
  (void)state;
  dibs_store *near = open_store(), *store = failing("fault.nth=2&fault.forever=1");
  struct told told = {.calls = 0};
  dibs_lease *lease = take(store, "n", .ttl_ms = 800, .on_lost = count_loss, .user = &told);
  struct caller next;
  caller_start(&next, near, "n", HOW(.wait_ms = DIBS_FOREVER));
  UNTIL(told.calls == 1);
  assert_int_equal(dibs_lease_alive(lease), 0);
  assert_int_equal(caller_join(&next), DIBS_OK);
  assert_int_equal(dibs_release(lease, NULL), DIBS_LOST);
  dibs_lease_free(lease);
  give(next.lease);
}

/* The dead session did nothing: its operations use another one, and their callers do not notice. */
static void dead_session_is_connected_again(void **state) {
  (void)state;
  dibs_store *store = failing("fault.nth=2&fault.how=dead");
  dibs_lease *lease = take(store, "a");
  assert_int_equal(dibs_release(lease, NULL), DIBS_OK);
  dibs_lease_free(lease);
  assert_int_equal(send_request(store, "b"), DIBS_OK);
}

static void the_death_of_all_sessions_is_reported(void **state) {
  (void)state;
  dibs_store *store = failing("fault.nth=2&fault.how=dead&fault.forever=1");
  dibs_lease *lease = take(store, "a", .ttl_ms = 700);
  assert_int_equal(dibs_release(lease, NULL), DIBS_UNAVAILABLE);
  dibs_lease_free(lease);
}

static void waiters_survive_failures_and_lost_events(void **state) {
  (void)state;
  dibs_store *near = open_store();
  dibs_store *store = failing("fault.events=800");
  dibs_lease *lease = take(near, "n");
  struct later line[4];
  for (int i = 0; i < 4; i++) later_start(&line[i], store, "n", HOW(.mode = DIBS_SHARED, .wait_ms = DIBS_FOREVER));
  UNTIL(rows_of(near, "n", DIBS_WAITS) == 4);
  struct dibs__fault_plan plan = {.on = DIBS__FAULT_RUN, .rate = 500, .seed = 7};
  dibs__fault_arm(&plan);
  UNTIL(dibs__fault_struck() >= 2); /* they re-check nevertheless */
  give(lease);
  for (int i = 0; i < 4; i++) assert_int_equal(later_wait(&line[i]), DIBS_OK);
  dibs__fault_arm(NULL);
  for (int i = 0; i < 4; i++) give(line[i].lease);
  assert_int_equal(send_request(near, "n", .wait_ms = LONG_MS), DIBS_OK);
}

/* ---- Many, with failures of every kind ---- */

enum { WORKERS = 4, TURNS = 15 };
struct worker {
  pthread_t thread;
  dibs_store *store;
  _Atomic int *inside;
  _Atomic uint32_t *held, *doubles;
};

static void *work(void *arg) {
  struct worker *w = arg;
  options how = HOW(.wait_ms = 3000, .ttl_ms = 600);
  for (int i = 0; i < TURNS; i++) {
    dibs_lease *lease = NULL;
    if (dibs_acquire(w->store, "n", &how, &lease, NULL) != DIBS_OK) continue;
    int before = atomic_fetch_add(w->inside, 1);
    if (before != 0) atomic_fetch_add(w->doubles, 1);
    atomic_fetch_add(w->held, 1);
    atomic_fetch_sub(w->inside, 1);
    (void)dibs_release(lease, NULL);
    dibs_lease_free(lease);
  }
  return NULL;
}

static void failures_never_grant_a_name_twice(void **state) {
  (void)state;
  static const char *const hows[] = {"unavailable", "unknown-before", "unknown-after", "dead", "dead-after"};
  for (size_t h = 0; h < sizeof hows / sizeof hows[0]; h++) {
    char params[128];
    snprintf(params, sizeof params, "fault.on=run,connect&fault.rate=60&fault.seed=%zu&fault.how=%s", h + 1, hows[h]);
    dibs_store *stores[2] = {failing(params), open_store()};
    struct worker workers[WORKERS];
    _Atomic int inside = 0;
    _Atomic uint32_t held = 0, doubles = 0;
    for (int i = 0; i < WORKERS; i++) {
      workers[i] = (struct worker){.store = stores[i % 2], .inside = &inside, .held = &held, .doubles = &doubles};
      assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < WORKERS; i++) pthread_join(workers[i].thread, NULL);
    assert_int_equal(doubles, 0);
    assert_true(held >= TURNS); /* the store without failures was used, too */
    close_store(stores[0]);
    assert_int_equal(send_request(stores[1], "n", .wait_ms = LONG_MS), DIBS_OK);
    close_store(stores[1]);
  }
}

int main(int argc, char *argv[]) {
  const struct CMUnitTest tests[] = {
      TEST(a_refused_number_of_slots_is_explained_by_what_holds_the_name_now),
      TEST(slow_batch_does_not_block_other_sessions),
      TEST(slow_batch_does_not_block_what_completes_later),
      TEST(renewals_are_not_behind_a_slow_batch),
      TEST(renewals_are_not_behind_one_that_hangs),
      TEST(queued_behind_a_slow_batch_times_out_unsent),
      TEST(a_late_grant_is_released),
      TEST(a_late_grant_is_found_by_its_id),
      TEST(a_request_cancelled_in_flight_is_released),
      TEST(a_break_reaches_a_lease_that_was_handed_on),
      TEST(a_short_lease_is_not_held_for_the_time_of_a_long_one),
      TEST(a_renewal_for_less_counts_from_its_sending),
      TEST(a_waiter_of_the_process_gets_it_from_a_slow_store),
      TEST(unknown_acquire_is_cleaned_up),
      TEST(unknown_acquire_with_an_id_is_found_again),
      TEST(a_cancelled_request_with_an_id_leaves_nothing),
      TEST(a_waiter_that_leaves_during_a_failure_is_in_no_queue),
      TEST(after_an_unknown_release_the_lease_ends_with_its_ttl_at_the_latest),
      TEST(failed_renewal_is_tried_again),
      TEST(what_the_store_did_not_prolong_is_renewed),
      TEST(a_lease_is_lost_when_the_store_is_unreachable),
      TEST(dead_session_is_connected_again),
      TEST(the_death_of_all_sessions_is_reported),
      TEST(waiters_survive_failures_and_lost_events),
      TEST(failures_never_grant_a_name_twice),
  };
  lease_begin(argc, argv);
  hold_begin();
  return cmocka_run_group_tests(tests, NULL, NULL);
}

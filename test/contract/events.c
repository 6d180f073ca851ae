/* SPDX-License-Identifier: MIT */
/* Events (R17): they arrive soon, never mislead, and there are ways to end the sleep of a receiver. */
#include "task_calls.h"

#include <string.h>

enum { SEEN_MAX = 256, PATIENCE_MS = 5000 };

/* A thread in events() of one party, like the core's receiver. */
struct listener {
  struct party *p;
  dibs__thread *thread;
  dibs__mutex lock;
  struct dibs__event seen[SEEN_MAX]; /* guarded by lock */
  size_t count;                      /* guarded by lock */
  bool failed;                       /* guarded by lock */
  dibs__word arrivals;
  _Atomic bool stop;
};

static void receive_once(struct listener *l) {
  struct dibs__event events[8];
  size_t count = 0;
  dibs__status status = store_of(l->p)->driver->events(store_of(l->p), events, 8, &count,
                                                       dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS));
  dibs__mutex_lock(&l->lock);
  if ((status != DIBS_OK && status != DIBS_UNAVAILABLE) || count > 8) l->failed = true;
  for (size_t i = 0; i < count && l->count < SEEN_MAX; i++) l->seen[l->count++] = events[i];
  dibs__mutex_unlock(&l->lock);
  atomic_fetch_add(&l->arrivals, 1);
  dibs__word_wake(&l->arrivals, 1, false);
}

static void listen_body(void *arg) {
  struct listener *l = arg;
  while (!atomic_load(&l->stop)) receive_once(l);
}

static void listen_to(struct listener *l, struct party *p) {
  memset(l, 0, sizeof *l);
  l->p = p;
  dibs__mutex_init(&l->lock);
  /* A store may receive events only from its first call on. */
  store_of(p)->driver->wake(store_of(p));
  receive_once(l);
  l->thread = dibs__thread_start("listener", listen_body, l);
  assert_non_null(l->thread);
}

static void stop_listening(struct listener *l) {
  atomic_store(&l->stop, true);
  store_of(l->p)->driver->wake(store_of(l->p));
  dibs__thread_join(l->thread);
  dibs__mutex_destroy(&l->lock);
  assert_false(l->failed);
}

static bool received(struct listener *l, enum dibs__event_what what, int id) {
  bool found = false;
  dibs__id want = id_of(id);
  dibs__mutex_lock(&l->lock);
  for (size_t i = 0; i < l->count; i++)
    if (l->seen[i].what == DIBS__EV_RECHECK || (l->seen[i].what == what && dibs__id_equal(l->seen[i].id, want)))
      found = true;
  dibs__mutex_unlock(&l->lock);
  return found;
}

/* Milliseconds until the event arrived; -1 if it did not. */
static int64_t wait_until_received(struct listener *l, enum dibs__event_what what, int id) {
  dibs__tick began = dibs__tick_now(), by = dibs__tick_add_ms(began, PATIENCE_MS);
  for (;;) {
    uint32_t seen = atomic_load(&l->arrivals);
    if (received(l, what, id)) return dibs__tick_left_ms(began, dibs__tick_now());
    if (!dibs__word_wait(&l->arrivals, seen, by, false)) return -1;
  }
}

static void R17_the_next_waiter_learns_of_a_release(void **state) {
  (void)state;
  needs(DIBS__CAP_EVENTS | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
  struct party *p = party(), *q = party();
  struct listener l;
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(q, "n", 2), DIBS__QUEUED);
  listen_to(&l, q);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  int64_t ms = wait_until_received(&l, DIBS__EV_OFFER, 2);
  stop_listening(&l);
  assert_in_range(ms, 0, 1000);
  expect(acquire(q, "n", 2), DIBS_OK);
}

static void R17_a_late_listener_finds_the_event(void **state) {
  (void)state;
  needs(DIBS__CAP_EVENTS | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
  struct party *p = party(), *q = party();
  struct listener l;
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(q, "n", 2), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  listen_to(&l, q);
  int64_t ms = wait_until_received(&l, DIBS__EV_OFFER, 2);
  stop_listening(&l);
  assert_in_range(ms, 0, 1000);
}

static void R17_a_session_receives_its_own_events(void **state) {
  (void)state;
  needs(DIBS__CAP_EVENTS | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
  struct party *p = party();
  struct listener l;
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  listen_to(&l, p);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  int64_t ms = wait_until_received(&l, DIBS__EV_OFFER, 2);
  stop_listening(&l);
  assert_in_range(ms, 0, 1000);
}

static void R17_all_granted_readers_receive_an_event(void **state) {
  (void)state;
  needs(DIBS__CAP_EVENTS | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT | DIBS__CAP_SHARED);
  struct party *p = party(), *q = party();
  struct listener l;
  struct dibs__lease_op held = acquire(p, "n", 1);
  for (int i = 2; i < 30; i++) expect(acquire(q, "n", i, .mode = DIBS_SHARED), DIBS__QUEUED);
  listen_to(&l, q);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  int64_t ms = 0;
  for (int i = 2; i < 30 && ms >= 0; i++) ms = wait_until_received(&l, DIBS__EV_OFFER, i);
  stop_listening(&l);
  assert_true(ms >= 0);
}

static void R17_a_broken_holder_receives_an_event(void **state) {
  (void)state;
  needs(DIBS__CAP_EVENTS);
  for (int now = 0; now < 2; now++) {
    struct party *p = party(), *q = party();
    struct listener l;
    expect(acquire(p, now ? "now" : "later", 1 + now), DIBS_OK);
    listen_to(&l, p);
    expect(break_it(now ? q : breaking_party(p, q), now ? "now" : "later", now == 1), DIBS_OK);
    int64_t ms = wait_until_received(&l, DIBS__EV_LOST, 1 + now);
    stop_listening(&l);
    assert_in_range(ms, 0, 1000);
    close_party(p);
    close_party(q);
  }
}

static void R17_the_next_waiter_learns_that_an_offered_session_closed(void **state) {
  (void)state;
  needs(DIBS__CAP_EVENTS | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
  struct party *p = party(), *q = party(), *r = party();
  struct listener l;
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(q, "n", 2), DIBS__QUEUED);
  expect(acquire(r, "n", 3), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  listen_to(&l, r);
  close_party(q);
  advance_past_offer(p); /* at the latest */
  expect(cancel(p, "n", 99), DIBS_NOT_FOUND);
  int64_t ms = wait_until_received(&l, DIBS__EV_OFFER, 3);
  stop_listening(&l);
  assert_in_range(ms, 0, 1000);
  expect(acquire(r, "n", 3), DIBS_OK);
}

static void R17_waiters_behind_a_cancelled_one_receive_an_event(void **state) {
  (void)state;
  needs(DIBS__CAP_EVENTS | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT | DIBS__CAP_SHARED);
  struct party *p = party(), *q = party();
  struct listener l;
  expect(acquire(p, "n", 1, .mode = DIBS_SHARED), DIBS_OK);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  expect(acquire(q, "n", 3, .mode = DIBS_SHARED), DIBS__QUEUED);
  listen_to(&l, q);
  expect_was(cancel(p, "n", 2), DIBS__WAS_WAITING);
  int64_t ms = wait_until_received(&l, DIBS__EV_OFFER, 3);
  stop_listening(&l);
  assert_in_range(ms, 0, 1000);
}

static void R17_the_next_waiter_learns_of_a_cancelled_lease_or_offer(void **state) {
  (void)state;
  needs(DIBS__CAP_EVENTS | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
  struct party *p = party(), *q = party();
  struct listener l;
  expect(acquire(p, "n", 1), DIBS_OK);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  expect(acquire(q, "n", 3), DIBS__QUEUED);
  listen_to(&l, q);
  expect_was(cancel(p, "n", 1), DIBS__WAS_HELD);
  expect_was(cancel(p, "n", 2), DIBS__WAS_OFFERED);
  int64_t ms = wait_until_received(&l, DIBS__EV_OFFER, 3);
  stop_listening(&l);
  assert_in_range(ms, 0, 1000);
}

static void R17_the_next_waiter_learns_of_a_break_with_now(void **state) {
  (void)state;
  needs(DIBS__CAP_EVENTS | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
  struct party *p = party(), *q = party();
  struct listener l;
  expect(acquire(p, "n", 1), DIBS_OK);
  expect(acquire(q, "n", 2), DIBS__QUEUED);
  listen_to(&l, q);
  expect(break_it(p, "n", true), DIBS_OK);
  int64_t ms = wait_until_received(&l, DIBS__EV_OFFER, 2);
  stop_listening(&l);
  assert_in_range(ms, 0, 1000);
}

/* Discards the events of opening the store.  The last call slept until its deadline. */
static void discard_events(struct party *p, int64_t ms) {
  size_t count = 1;
  for (int i = 0; i < 10 && count; i++) {
    struct dibs__event events[4];
    dibs__tick began = dibs__tick_now();
    count = 99;
    dibs__status status = store_of(p)->driver->events(store_of(p), events, 4, &count, dibs__tick_add_ms(began, ms));
    assert_int_equal(status, DIBS_OK);
    if (count == 0) assert_in_range(dibs__tick_left_ms(began, dibs__tick_now()), ms, ms + 2000);
  }
  assert_int_equal(count, 0);
}

static void R17_wake_ends_the_sleep(void **state) {
  (void)state;
  struct party *p = party();
  struct listener l;
  listen_to(&l, p);
  dibs__tick began = dibs__tick_now();
  stop_listening(&l);
  assert_true(dibs__tick_left_ms(began, dibs__tick_now()) < PATIENCE_MS - 1000);
}

static void R17_a_wake_before_the_sleep_ends_it(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__event events[4];
  size_t count = 99;
  const struct dibs__driver *driver = store_of(p)->driver;
  discard_events(p, 20);
  driver->wake(store_of(p));
  dibs__tick began = dibs__tick_now();
  assert_int_equal(driver->events(store_of(p), events, 4, &count, dibs__tick_add_ms(began, PATIENCE_MS)), DIBS_OK);
  assert_int_equal(count, 0);
  assert_true(dibs__tick_left_ms(began, dibs__tick_now()) < PATIENCE_MS - 1000);
}

static void R17_the_sleep_ends_at_its_deadline(void **state) {
  (void)state;
  discard_events(party(), 100);
}

static void R17_a_small_buffer_receives_the_rest_later(void **state) {
  (void)state;
  needs(DIBS__CAP_EVENTS | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT | DIBS__CAP_SHARED);
  struct party *p = party(), *q = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  bool heard[6] = {false};
  for (int i = 0; i < 6; i++) expect(acquire(q, "n", 10 + i, .mode = DIBS_SHARED), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  for (int left = 6, tries = 0; left > 0 && tries < 20; tries++) {
    struct dibs__event event;
    size_t count = 0;
    dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
    assert_int_equal(store_of(q)->driver->events(store_of(q), &event, 1, &count, by), DIBS_OK);
    for (int i = 0; i < 6 && count; i++) {
      dibs__id id = id_of(10 + i);
      bool all = event.what == DIBS__EV_RECHECK;
      if (heard[i] || (!all && !(event.what == DIBS__EV_OFFER && dibs__id_equal(event.id, id)))) continue;
      heard[i] = true;
      left--;
    }
  }
  for (int i = 0; i < 6; i++) assert_true(heard[i]);
}

/* ---- Tasks ---- */

static size_t count_of_task_events(struct listener *l) {
  size_t count = 0;
  dibs__mutex_lock(&l->lock);
  for (size_t i = 0; i < l->count; i++) count += l->seen[i].what == DIBS__EV_TASKS;
  dibs__mutex_unlock(&l->lock);
  return count;
}

static void expect_task_event(struct listener *l, size_t before) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  for (;;) {
    uint32_t seen = atomic_load(&l->arrivals);
    if (count_of_task_events(l) > before) return;
    assert_true(dibs__word_wait(&l->arrivals, seen, by, false));
  }
}

/* Its worker finds no task, and waits for one.  On MariaDB, also as the anchor of tiers, only a process that waits is
 * notified, and an event shows that it will be. */
static size_t wait_for_tasks(struct listener *l, struct party *p) {
  size_t before = count_of_task_events(l);
  expect_none_claimed(claimed(p, "k"));
  if (!strstr(case_store_uri(), "mysql:")) return before;
  expect_task_event(l, before);
  return count_of_task_events(l);
}

static void R17_workers_learn_of_tasks(void **state) {
  (void)state;
  struct party *p = task_party(), *q = party();
  needs(DIBS__CAP_EVENTS);
  needs_rows(); /* with leases of connections only a process's own tasks wake it */
  struct listener l;
  listen_to(&l, q);
  size_t before = wait_for_tasks(&l, q); /* a store of several tiers begins to listen */
  dibs__nap_ms(target()->scheme && strcmp(target()->scheme, "tiers") == 0 ? 200 : 0);
  uint64_t nr = added(p, "k");
  expect_task_event(&l, before);
  struct claimed got = claimed(p, "k");
  expect_one(got, nr);
  before = wait_for_tasks(&l, q);
  expect_status(ended(p, got.rows[0], DIBS__TASK_END_NEXT), DIBS_OK);
  expect_task_event(&l, before);
  stop_listening(&l);
}

static const struct CMUnitTest contract_events_cases[] = {
    CASE(R17_the_next_waiter_learns_of_a_release),
    CASE(R17_a_late_listener_finds_the_event),
    CASE(R17_a_session_receives_its_own_events),
    CASE(R17_all_granted_readers_receive_an_event),
    CASE(R17_a_broken_holder_receives_an_event),
    CASE(R17_the_next_waiter_learns_that_an_offered_session_closed),
    CASE(R17_waiters_behind_a_cancelled_one_receive_an_event),
    CASE(R17_the_next_waiter_learns_of_a_cancelled_lease_or_offer),
    CASE(R17_the_next_waiter_learns_of_a_break_with_now),
    CASE(R17_wake_ends_the_sleep),
    CASE(R17_a_wake_before_the_sleep_ends_it),
    CASE(R17_the_sleep_ends_at_its_deadline),
    CASE(R17_a_small_buffer_receives_the_rest_later),
    CASE(R17_workers_learn_of_tasks),
};
CONTRACT_TESTS(contract_events);

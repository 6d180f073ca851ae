/* SPDX-License-Identifier: MIT */
/* What happened (R17): told soon, never misleading; and ways to end the sleep. */
#include "harness.h"

#include <string.h>

enum { SEEN_MAX = 256, PATIENCE_MS = 5000 };

/* A thread in events() of one party, as the core's receiver is. */
struct listener {
  struct party *p;
  dibs__thread *thread;
  dibs__mutex lock;
  struct dibs__event seen[SEEN_MAX]; /* guarded by lock */
  size_t count;                      /* guarded by lock */
  bool failed;                       /* guarded by lock */
  dibs__word bell;
  _Atomic bool stop;
};

static void hear_once(struct listener *l) {
  struct dibs__event events[8];
  size_t count = 0;
  dibs__status status = store_of(l->p)->driver->events(store_of(l->p), events, 8, &count,
                                                       dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS));
  dibs__mutex_lock(&l->lock);
  if ((status != DIBS_OK && status != DIBS_UNAVAILABLE) || count > 8) l->failed = true;
  for (size_t i = 0; i < count && l->count < SEEN_MAX; i++) l->seen[l->count++] = events[i];
  dibs__mutex_unlock(&l->lock);
  atomic_fetch_add(&l->bell, 1);
  dibs__word_wake(&l->bell, 1, false);
}

static void listen_body(void *arg) {
  struct listener *l = arg;
  while (!atomic_load(&l->stop)) hear_once(l);
}

static void listen_to(struct listener *l, struct party *p) {
  memset(l, 0, sizeof *l);
  l->p = p;
  dibs__mutex_init(&l->lock);
  /* A store may hear from its first call on only. */
  store_of(p)->driver->wake(store_of(p));
  hear_once(l);
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

static bool told(struct listener *l, enum dibs__event_what what, int id) {
  bool found = false;
  dibs__id want = id_of(id);
  dibs__mutex_lock(&l->lock);
  for (size_t i = 0; i < l->count; i++)
    if (l->seen[i].what == DIBS__EV_RECHECK || (l->seen[i].what == what && dibs__id_equal(l->seen[i].id, want)))
      found = true;
  dibs__mutex_unlock(&l->lock);
  return found;
}

/* Milliseconds until it was told, -1 when it never was. */
static int64_t wait_until_told(struct listener *l, enum dibs__event_what what, int id) {
  dibs__tick began = dibs__tick_now(), by = dibs__tick_add_ms(began, PATIENCE_MS);
  for (;;) {
    uint32_t seen = atomic_load(&l->bell);
    if (told(l, what, id)) return dibs__tick_left_ms(began, dibs__tick_now());
    if (!dibs__word_wait(&l->bell, seen, by, false)) return -1;
  }
}

static void R17_the_next_in_line_is_told_of_a_release(void **state) {
  (void)state;
  needs(DIBS__CAP_EVENTS | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
  struct party *p = party(), *q = party();
  struct listener l;
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(q, "n", 2), DIBS__QUEUED);
  listen_to(&l, q);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  int64_t ms = wait_until_told(&l, DIBS__EV_OFFER, 2);
  stop_listening(&l);
  assert_in_range(ms, 0, 1000);
  expect(acquire(q, "n", 2), DIBS_OK);
}

static void R17_who_was_away_finds_the_event_later(void **state) {
  (void)state;
  needs(DIBS__CAP_EVENTS | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
  struct party *p = party(), *q = party();
  struct listener l;
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(q, "n", 2), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  listen_to(&l, q);
  int64_t ms = wait_until_told(&l, DIBS__EV_OFFER, 2);
  stop_listening(&l);
  assert_in_range(ms, 0, 1000);
}

static void R17_a_session_hears_of_its_own(void **state) {
  (void)state;
  needs(DIBS__CAP_EVENTS | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
  struct party *p = party();
  struct listener l;
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  listen_to(&l, p);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  int64_t ms = wait_until_told(&l, DIBS__EV_OFFER, 2);
  stop_listening(&l);
  assert_in_range(ms, 0, 1000);
}

static void R17_all_readers_that_are_let_in_are_told(void **state) {
  (void)state;
  needs(DIBS__CAP_EVENTS | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT | DIBS__CAP_SHARED);
  struct party *p = party(), *q = party();
  struct listener l;
  struct dibs__lease_op held = acquire(p, "n", 1);
  for (int i = 2; i < 30; i++) expect(acquire(q, "n", i, .mode = DIBS_SHARED), DIBS__QUEUED);
  listen_to(&l, q);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  int64_t ms = 0;
  for (int i = 2; i < 30 && ms >= 0; i++) ms = wait_until_told(&l, DIBS__EV_OFFER, i);
  stop_listening(&l);
  assert_true(ms >= 0);
}

static void R17_a_broken_holder_is_told(void **state) {
  (void)state;
  needs(DIBS__CAP_EVENTS);
  for (int now = 0; now < 2; now++) {
    struct party *p = party(), *q = party();
    struct listener l;
    expect(acquire(p, now ? "now" : "later", 1 + now), DIBS_OK);
    listen_to(&l, p);
    expect(break_it(now ? q : who_breaks(p, q), now ? "now" : "later", now == 1), DIBS_OK);
    int64_t ms = wait_until_told(&l, DIBS__EV_LOST, 1 + now);
    stop_listening(&l);
    assert_in_range(ms, 0, 1000);
    leave(p);
    leave(q);
  }
}

static void R17_the_next_is_told_when_an_offered_session_closes(void **state) {
  (void)state;
  needs(DIBS__CAP_EVENTS | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
  struct party *p = party(), *q = party(), *r = party();
  struct listener l;
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(acquire(q, "n", 2), DIBS__QUEUED);
  expect(acquire(r, "n", 3), DIBS__QUEUED);
  expect(release(p, "n", 1, held.fence), DIBS_OK);
  listen_to(&l, r);
  leave(q);
  pass_offer(p); /* at the latest */
  expect(cancel(p, "n", 99), DIBS_NOT_FOUND);
  int64_t ms = wait_until_told(&l, DIBS__EV_OFFER, 3);
  stop_listening(&l);
  assert_in_range(ms, 0, 1000);
  expect(acquire(r, "n", 3), DIBS_OK);
}

static void R17_those_behind_who_leaves_the_line_are_told(void **state) {
  (void)state;
  needs(DIBS__CAP_EVENTS | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT | DIBS__CAP_SHARED);
  struct party *p = party(), *q = party();
  struct listener l;
  expect(acquire(p, "n", 1, .mode = DIBS_SHARED), DIBS_OK);
  expect(acquire(p, "n", 2), DIBS__QUEUED);
  expect(acquire(q, "n", 3, .mode = DIBS_SHARED), DIBS__QUEUED);
  listen_to(&l, q);
  expect_was(cancel(p, "n", 2), DIBS__WAS_WAITING);
  int64_t ms = wait_until_told(&l, DIBS__EV_OFFER, 3);
  stop_listening(&l);
  assert_in_range(ms, 0, 1000);
}

static void R17_the_next_is_told_when_a_lease_or_an_offer_is_given_back(void **state) {
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
  int64_t ms = wait_until_told(&l, DIBS__EV_OFFER, 3);
  stop_listening(&l);
  assert_in_range(ms, 0, 1000);
}

static void R17_the_next_is_told_when_a_holder_is_broken_at_once(void **state) {
  (void)state;
  needs(DIBS__CAP_EVENTS | DIBS__CAP_FIFO | DIBS__CAP_GRANT_NEXT);
  struct party *p = party(), *q = party();
  struct listener l;
  expect(acquire(p, "n", 1), DIBS_OK);
  expect(acquire(q, "n", 2), DIBS__QUEUED);
  listen_to(&l, q);
  expect(break_it(p, "n", true), DIBS_OK);
  int64_t ms = wait_until_told(&l, DIBS__EV_OFFER, 2);
  stop_listening(&l);
  assert_in_range(ms, 0, 1000);
}

/* What opening left behind.  The last call slept until its deadline. */
static void hear_it_out(struct party *p, int64_t ms) {
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

static void R17_wake_before_the_sleep_counts(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__event events[4];
  size_t count = 99;
  const struct dibs__driver *driver = store_of(p)->driver;
  hear_it_out(p, 20);
  driver->wake(store_of(p));
  dibs__tick began = dibs__tick_now();
  assert_int_equal(driver->events(store_of(p), events, 4, &count, dibs__tick_add_ms(began, PATIENCE_MS)), DIBS_OK);
  assert_int_equal(count, 0);
  assert_true(dibs__tick_left_ms(began, dibs__tick_now()) < PATIENCE_MS - 1000);
}

static void R17_the_sleep_ends_at_its_deadline(void **state) {
  (void)state;
  hear_it_out(party(), 100);
}

static void R17_a_small_buffer_gets_the_rest_later(void **state) {
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

static const struct CMUnitTest contract_events_cases[] = {
    CASE(R17_the_next_in_line_is_told_of_a_release),
    CASE(R17_who_was_away_finds_the_event_later),
    CASE(R17_a_session_hears_of_its_own),
    CASE(R17_all_readers_that_are_let_in_are_told),
    CASE(R17_a_broken_holder_is_told),
    CASE(R17_the_next_is_told_when_an_offered_session_closes),
    CASE(R17_those_behind_who_leaves_the_line_are_told),
    CASE(R17_the_next_is_told_when_a_lease_or_an_offer_is_given_back),
    CASE(R17_the_next_is_told_when_a_holder_is_broken_at_once),
    CASE(R17_wake_ends_the_sleep),
    CASE(R17_wake_before_the_sleep_counts),
    CASE(R17_the_sleep_ends_at_its_deadline),
    CASE(R17_a_small_buffer_gets_the_rest_later),
};
CONTRACT_TESTS(contract_events);

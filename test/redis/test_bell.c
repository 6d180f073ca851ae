/* SPDX-License-Identifier: MIT */
/* The bell: who subscribes, when, and what is heard. */
#include "bed.h"
#include "sql/far.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct dibs__redis store;
static struct dibs__redis_link *link_; /* who publishes */
static char channel[DIBS__REDIS_CHANNEL];

static int begin(void **state) {
  (void)state;
  store = (struct dibs__redis){.place = bed_place(bed_uri)};
  dibs__random(&store.session, sizeof store.session);
  dibs__redis_channel(store.place, store.session, channel);
  link_ = bed_connect(store.place);
  return dibs__redis_bell_open(&store) == DIBS_OK ? 0 : -1;
}

static int end(void **state) {
  (void)state;
  dibs__redis_disconnect(link_);
  dibs__redis_bell_close(&store);
  dibs__redis_place_free(store.place);
  return 0;
}

static int64_t listeners(void) {
  return RUN(link_, "PUBSUB", "NUMSUB", channel)->element[1]->integer;
}

static void ready(void) {
  struct dibs__said said = {.text = ""};
  if (dibs__redis_bell_ready(&store, within(LONG_MS), &said) != DIBS_OK) fail_msg("%s", said.text);
}

/* An offer to the waiter `nth`.  Returns how many heard it. */
static int64_t ring(uint64_t nth) {
  struct dibs__event event = {.what = DIBS__EV_OFFER, .fence = {nth << 32 | 7}};
  uint8_t bytes[DIBS__FAR_RING_BYTES];
  memcpy(event.id.b, &nth, sizeof nth);
  dibs__far_ring_write(&event, bytes);
  const char *words[] = {"PUBLISH", channel, (const char *)bytes};
  const size_t lengths[] = {7, strlen(channel), sizeof bytes};
  assert_true(dibs__redis_put(link_, 3, words, lengths));
  bed_go(link_);
  return dibs__redis_reply(link_, 0)->integer;
}

static size_t hear(struct dibs__event *events, size_t cap, int64_t ms) {
  size_t count = 99;
  assert_int_equal(dibs__redis_bell_events(&store, events, cap, &count, within(ms)), DIBS_OK);
  assert_true(count <= cap);
  return count;
}

static void is_offer(const struct dibs__event *event, uint64_t nth) {
  uint64_t said;
  memcpy(&said, event->id.b, sizeof said);
  assert_int_equal(event->what, DIBS__EV_OFFER);
  assert_int_equal(said, nth);
  assert_int_equal(event->fence.v, nth << 32 | 7);
  assert_int_equal(event->held_until.ns, 0);
}

/* The wake of ready() comes first, if nobody was in events(). */
static size_t hear_something(struct dibs__event *events, size_t cap) {
  dibs__tick by = within(LONG_MS);
  size_t count = 0;
  while (count == 0) {
    assert_true(dibs__tick_before(dibs__tick_now(), by));
    count = hear(events, cap, LONG_MS);
  }
  return count;
}

static void a_store_without_waiters_has_no_bell(void **state) {
  (void)state;
  struct dibs__event events[4];
  assert_int_equal(hear(events, 4, 30), 0);
  assert_int_equal(listeners(), 0);
  dibs__redis_bell_wake(&store);
  dibs__tick from = dibs__tick_now();
  assert_int_equal(hear(events, 4, LONG_MS), 0);
  assert_true(dibs__tick_left_ms(from, dibs__tick_now()) < 1000);
}

static void an_offer_is_heard_once(void **state) {
  (void)state;
  struct dibs__event events[4];
  ready();
  ready();
  assert_int_equal(listeners(), 1);
  assert_int_equal(ring(5), 1);
  assert_int_equal(hear_something(events, 4), 1);
  is_offer(&events[0], 5);
  assert_int_equal(hear(events, 4, 30), 0);
}

static void none_is_lost_where_there_is_little_room(void **state) {
  (void)state;
  enum { RINGS = 2000 };
  struct dibs__event events[3];
  ready();
  for (uint64_t i = 0; i < RINGS; i++) assert_int_equal(ring(i), 1);
  for (uint64_t next = 0; next < RINGS;) {
    size_t count = hear_something(events, 3);
    for (size_t i = 0; i < count; i++) is_offer(&events[i], next++);
  }
  assert_int_equal(hear(events, 3, 0), 0);
}

static void what_is_not_understood_is_a_reason_to_look(void **state) {
  (void)state;
  struct dibs__event events[4];
  ready();
  RUN(link_, "PUBLISH", channel, "hello");
  assert_int_equal(hear_something(events, 4), 1);
  assert_int_equal(events[0].what, DIBS__EV_RECHECK);
}

static void a_lost_subscription_comes_back_and_all_look(void **state) {
  (void)state;
  struct dibs__event events[4];
  ready();
  for (uint64_t i = 0; i < 3; i++) {
    ADMIN("CLIENT", "KILL", "TYPE", "pubsub");
    dibs__tick by = within(LONG_MS);
    size_t count = hear_something(events, 4);
    assert_int_equal(count, 1);
    assert_int_equal(events[0].what, DIBS__EV_RECHECK);
    assert_true(dibs__tick_before(dibs__tick_now(), by));
    assert_int_equal(ring(i), 1);
    assert_int_equal(hear_something(events, 4), 1);
    is_offer(&events[0], i);
  }
  assert_int_equal(listeners(), 1);
}

/* While the server is away events() goes on sleeping until its time, and hears a wake. */
static void a_server_that_is_away_is_waited_for(void **state) {
  (void)state;
  struct dibs__event events[4];
  ready();
  (void)hear(events, 4, 0);
  bed_servers("kill");
  dibs__tick from = dibs__tick_now();
  assert_int_equal(hear(events, 4, 200), 0);
  int64_t took = dibs__tick_left_ms(from, dibs__tick_now());
  dibs__redis_bell_wake(&store);
  size_t woken = hear(events, 4, LONG_MS);
  bed_servers("start");
  assert_in_range(took, 150, 1500);
  assert_int_equal(woken, 0);
  dibs__redis_disconnect(link_);
  link_ = bed_connect(store.place);
  size_t count = hear_something(events, 4);
  /* It is another server now, and who waits there has lost their places. */
  bool recheck = false, new_life = false;
  for (size_t i = 0; i < count; i++) {
    recheck = recheck || events[i].what == DIBS__EV_RECHECK;
    new_life = new_life || events[i].what == DIBS__EV_NEW_LIFE;
  }
  assert_true(recheck && new_life);
  assert_int_equal(listeners(), 1);
  assert_int_equal(ring(1), 1);
  assert_int_equal(hear_something(events, 4), 1);
  is_offer(&events[0], 1);
}

/* A session that is answered by another life than before: told once, and subscribed there. */
static void a_new_life_is_told_once(void **state) {
  (void)state;
  struct dibs__event events[4];
  dibs__life life = link_->life;
  dibs__redis_bell_life(&store, &life);
  dibs__redis_bell_life(&store, &life);
  ready();
  (void)hear(events, 4, 0);
  assert_int_equal(hear(events, 4, 0), 0);
  ADMIN("REPLICAOF", "127.0.0.1", "1");
  ADMIN("REPLICAOF", "NO", "ONE");
  struct dibs__redis_link *other = bed_connect(store.place);
  assert_memory_not_equal(&life, &other->life, sizeof life);
  dibs__redis_bell_life(&store, &other->life);
  dibs__redis_bell_life(&store, &other->life);
  dibs__redis_disconnect(other);
  size_t told = 0, rechecks = 0;
  dibs__tick by = within(LONG_MS);
  while (rechecks == 0) {
    assert_true(dibs__tick_before(dibs__tick_now(), by));
    size_t count = hear(events, 4, LONG_MS);
    for (size_t i = 0; i < count; i++) {
      told += events[i].what == DIBS__EV_NEW_LIFE;
      rechecks += events[i].what == DIBS__EV_RECHECK;
    }
  }
  assert_int_equal(told, 1);
  assert_int_equal(hear(events, 4, 30), 0);
  dibs__redis_disconnect(link_);
  link_ = bed_connect(store.place);
  assert_int_equal(listeners(), 1);
}

/* ---- Many at once ---- */

enum { THREADS = 4, TURNS = 100, KILLS = 5 };

static void *be_ready(void *arg) {
  struct dibs__said said = {.text = ""};
  size_t *failed = arg;
  for (int i = 0; i < TURNS; i++) *failed += dibs__redis_bell_ready(&store, within(LONG_MS), &said) != DIBS_OK;
  return NULL;
}

/* Sessions that queue, one that listens, and an administrator who cuts the subscription. */
static void one_subscription_is_enough_for_all(void **state) {
  (void)state;
  pthread_t threads[THREADS];
  size_t failed[THREADS] = {0};
  struct dibs__event events[4];
  for (size_t i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, be_ready, &failed[i]), 0);
  for (int i = 0; i < KILLS; i++) {
    ADMIN("CLIENT", "KILL", "TYPE", "pubsub");
    (void)hear(events, 4, 5);
  }
  size_t sum = 0;
  for (size_t i = 0; i < THREADS; i++) {
    assert_int_equal(pthread_join(threads[i], NULL), 0);
    sum += failed[i];
  }
  assert_true(sum <= KILLS); /* one opens at a time, and may be cut off in the middle */
  dibs__tick by = within(LONG_MS);
  do {
    assert_true(dibs__tick_before(dibs__tick_now(), by));
    (void)hear(events, 4, 20);
  } while (listeners() != 1);
  assert_int_equal(ring(9), 1);
  do assert_true(dibs__tick_before(dibs__tick_now(), by));
  while (hear(events, 1, 20) == 0 || events[0].what != DIBS__EV_OFFER);
  is_offer(&events[0], 9);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_store_without_waiters_has_no_bell, begin, end),
      cmocka_unit_test_setup_teardown(an_offer_is_heard_once, begin, end),
      cmocka_unit_test_setup_teardown(none_is_lost_where_there_is_little_room, begin, end),
      cmocka_unit_test_setup_teardown(what_is_not_understood_is_a_reason_to_look, begin, end),
      cmocka_unit_test_setup_teardown(a_lost_subscription_comes_back_and_all_look, begin, end),
      cmocka_unit_test_setup_teardown(a_server_that_is_away_is_waited_for, begin, end),
      cmocka_unit_test_setup_teardown(a_new_life_is_told_once, begin, end),
      cmocka_unit_test_setup_teardown(one_subscription_is_enough_for_all, begin, end),
  };
  bed_args(argc, argv);
  return cmocka_run_group_tests(tests, NULL, NULL);
}

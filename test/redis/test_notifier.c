/* SPDX-License-Identifier: MIT */
/* The notifier: subscriptions, and the events that arrive. */
#include "bed.h"
#include "drivers/server/server.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct dibs__redis store;
static struct dibs__redis_link *link_; /* the publisher */
static char channel[DIBS__REDIS_CHANNEL];

static int begin(void **state) {
  (void)state;
  store = (struct dibs__redis){.location = bed_location(bed_uri)};
  dibs__random(&store.session, sizeof store.session);
  dibs__redis_channel(store.location, store.session, channel);
  link_ = bed_connect(store.location);
  return dibs__redis_notifier_open(&store) == DIBS_OK ? 0 : -1;
}

static int end(void **state) {
  (void)state;
  dibs__redis_disconnect(link_);
  dibs__redis_notifier_close(&store);
  dibs__redis_location_free(store.location);
  return 0;
}

static int64_t listeners(void) {
  return RUN(link_, "PUBSUB", "NUMSUB", channel)->element[1]->integer;
}

static void ready(void) {
  struct dibs__result reported = {.text = ""};
  if (dibs__redis_notifier_ready(&store, within(LONG_MS), &reported) != DIBS_OK) fail_msg("%s", reported.text);
}

/* Publishes an offer to the waiter `nth`.  Returns how many subscribers received it. */
static int64_t notice(uint64_t nth) {
  struct dibs__event event = {.what = DIBS__EV_OFFER, .fence = {nth << 32 | 7}};
  uint8_t bytes[DIBS__SERVER_NOTICE_BYTES];
  memcpy(event.id.b, &nth, sizeof nth);
  dibs__server_notice_write(&event, bytes);
  const char *words[] = {"PUBLISH", channel, (const char *)bytes};
  const size_t lengths[] = {7, strlen(channel), sizeof bytes};
  assert_true(dibs__redis_put(link_, 3, words, lengths));
  bed_go(link_);
  return dibs__redis_reply(link_, 0)->integer;
}

static size_t receive(struct dibs__event *events, size_t cap, int64_t ms) {
  size_t count = 99;
  assert_int_equal(dibs__redis_notifier_events(&store, events, cap, &count, within(ms)), DIBS_OK);
  assert_true(count <= cap);
  return count;
}

static void is_offer(const struct dibs__event *event, uint64_t nth) {
  uint64_t reported;
  memcpy(&reported, event->id.b, sizeof reported);
  assert_int_equal(event->what, DIBS__EV_OFFER);
  assert_int_equal(reported, nth);
  assert_int_equal(event->fence.v, nth << 32 | 7);
  assert_int_equal(event->held_until.ns, 0);
}

/* The wake of ready() arrives first if no thread was in events(). */
static size_t receive_any(struct dibs__event *events, size_t cap) {
  dibs__tick by = within(LONG_MS);
  size_t count = 0;
  while (count == 0) {
    assert_true(dibs__tick_before(dibs__tick_now(), by));
    count = receive(events, cap, LONG_MS);
  }
  return count;
}

static void a_store_subscribes_when_somebody_listens(void **state) {
  (void)state;
  struct dibs__event events[4];
  assert_int_equal(listeners(), 0);
  assert_int_equal(receive(events, 4, 30), 0);
  assert_int_equal(listeners(), 1);
  dibs__redis_notifier_wake(&store);
  dibs__tick from = dibs__tick_now();
  assert_int_equal(receive(events, 4, LONG_MS), 0);
  assert_true(dibs__tick_left_ms(from, dibs__tick_now()) < 1000);
}

static void an_offer_arrives_once(void **state) {
  (void)state;
  struct dibs__event events[4];
  ready();
  ready();
  assert_int_equal(listeners(), 1);
  assert_int_equal(notice(5), 1);
  assert_int_equal(receive_any(events, 4), 1);
  is_offer(&events[0], 5);
  assert_int_equal(receive(events, 4, 30), 0);
}

static void no_event_is_lost_with_a_small_buffer(void **state) {
  (void)state;
  enum { NOTICES = 2000 };
  struct dibs__event events[3];
  ready();
  for (uint64_t i = 0; i < NOTICES; i++) assert_int_equal(notice(i), 1);
  for (uint64_t next = 0; next < NOTICES;) {
    size_t count = receive_any(events, 3);
    for (size_t i = 0; i < count; i++) is_offer(&events[i], next++);
  }
  assert_int_equal(receive(events, 3, 0), 0);
}

static void an_unknown_message_causes_a_recheck(void **state) {
  (void)state;
  struct dibs__event events[4];
  ready();
  RUN(link_, "PUBLISH", channel, "hello");
  assert_int_equal(receive_any(events, 4), 1);
  assert_int_equal(events[0].what, DIBS__EV_RECHECK);
}

static void a_lost_subscription_returns_and_causes_a_recheck(void **state) {
  (void)state;
  struct dibs__event events[4];
  ready();
  for (uint64_t i = 0; i < 3; i++) {
    ADMIN("CLIENT", "KILL", "TYPE", "pubsub");
    dibs__tick by = within(LONG_MS);
    size_t count = receive_any(events, 4);
    assert_int_equal(count, 1);
    assert_int_equal(events[0].what, DIBS__EV_RECHECK);
    assert_true(dibs__tick_before(dibs__tick_now(), by));
    assert_int_equal(notice(i), 1);
    assert_int_equal(receive_any(events, 4), 1);
    is_offer(&events[0], i);
  }
  assert_int_equal(listeners(), 1);
}

/* While the server is unreachable, events() sleeps until its deadline, and a wake ends it. */
static void an_unreachable_server_is_waited_for(void **state) {
  (void)state;
  struct dibs__event events[4];
  ready();
  (void)receive(events, 4, 0);
  bed_servers("kill");
  dibs__tick from = dibs__tick_now();
  assert_int_equal(receive(events, 4, 200), 0);
  int64_t took = dibs__tick_left_ms(from, dibs__tick_now());
  dibs__redis_notifier_wake(&store);
  size_t woken = receive(events, 4, LONG_MS);
  bed_servers("start");
  assert_in_range(took, 150, 1500);
  assert_int_equal(woken, 0);
  dibs__redis_disconnect(link_);
  link_ = bed_connect(store.location);
  size_t count = receive_any(events, 4);
  /* It is another server now, and waiters have lost their positions. */
  bool recheck = false, new_incarnation = false;
  for (size_t i = 0; i < count; i++) {
    recheck = recheck || events[i].what == DIBS__EV_RECHECK;
    new_incarnation = new_incarnation || events[i].what == DIBS__EV_NEW_INCARNATION;
  }
  assert_true(recheck && new_incarnation);
  assert_int_equal(listeners(), 1);
  assert_int_equal(notice(1), 1);
  assert_int_equal(receive_any(events, 4), 1);
  is_offer(&events[0], 1);
}

/* A session that reaches another incarnation reports it once, and subscribes there. */
static void a_new_incarnation_is_reported_once(void **state) {
  (void)state;
  struct dibs__event events[4];
  dibs__incarnation incarnation = link_->incarnation;
  dibs__redis_notifier_incarnation(&store, &incarnation);
  dibs__redis_notifier_incarnation(&store, &incarnation);
  ready();
  (void)receive(events, 4, 0);
  assert_int_equal(receive(events, 4, 0), 0);
  ADMIN("REPLICAOF", "127.0.0.1", "1");
  ADMIN("REPLICAOF", "NO", "ONE");
  struct dibs__redis_link *other = bed_connect(store.location);
  assert_memory_not_equal(&incarnation, &other->incarnation, sizeof incarnation);
  dibs__redis_notifier_incarnation(&store, &other->incarnation);
  dibs__redis_notifier_incarnation(&store, &other->incarnation);
  dibs__redis_disconnect(other);
  size_t told = 0, rechecks = 0;
  dibs__tick by = within(LONG_MS);
  while (rechecks == 0) {
    assert_true(dibs__tick_before(dibs__tick_now(), by));
    size_t count = receive(events, 4, LONG_MS);
    for (size_t i = 0; i < count; i++) {
      told += events[i].what == DIBS__EV_NEW_INCARNATION;
      rechecks += events[i].what == DIBS__EV_RECHECK;
    }
  }
  assert_int_equal(told, 1);
  assert_int_equal(receive(events, 4, 30), 0);
  dibs__redis_disconnect(link_);
  link_ = bed_connect(store.location);
  assert_int_equal(listeners(), 1);
}

/* ---- Many at once ---- */

enum { THREADS = 4, TURNS = 100, KILLS = 5 };

static void *be_ready(void *arg) {
  struct dibs__result reported = {.text = ""};
  size_t *failed = arg;
  for (int i = 0; i < TURNS; i++) *failed += dibs__redis_notifier_ready(&store, within(LONG_MS), &reported) != DIBS_OK;
  return NULL;
}

/* Sessions that queue, a session that listens, and an administrator that cuts the subscription. */
static void one_subscription_is_enough_for_all(void **state) {
  (void)state;
  pthread_t threads[THREADS];
  size_t failed[THREADS] = {0};
  struct dibs__event events[4];
  for (size_t i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, be_ready, &failed[i]), 0);
  for (int i = 0; i < KILLS; i++) {
    ADMIN("CLIENT", "KILL", "TYPE", "pubsub");
    (void)receive(events, 4, 5);
  }
  size_t sum = 0;
  for (size_t i = 0; i < THREADS; i++) {
    assert_int_equal(pthread_join(threads[i], NULL), 0);
    sum += failed[i];
  }
  assert_true(sum <= KILLS); /* sessions open one at a time, and may be cut off in the middle */
  dibs__tick by = within(LONG_MS);
  do {
    assert_true(dibs__tick_before(dibs__tick_now(), by));
    (void)receive(events, 4, 20);
  } while (listeners() != 1);
  assert_int_equal(notice(9), 1);
  do assert_true(dibs__tick_before(dibs__tick_now(), by));
  while (receive(events, 1, 20) == 0 || events[0].what != DIBS__EV_OFFER);
  is_offer(&events[0], 9);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_store_subscribes_when_somebody_listens, begin, end),
      cmocka_unit_test_setup_teardown(an_offer_arrives_once, begin, end),
      cmocka_unit_test_setup_teardown(no_event_is_lost_with_a_small_buffer, begin, end),
      cmocka_unit_test_setup_teardown(an_unknown_message_causes_a_recheck, begin, end),
      cmocka_unit_test_setup_teardown(a_lost_subscription_returns_and_causes_a_recheck, begin, end),
      cmocka_unit_test_setup_teardown(an_unreachable_server_is_waited_for, begin, end),
      cmocka_unit_test_setup_teardown(a_new_incarnation_is_reported_once, begin, end),
      cmocka_unit_test_setup_teardown(one_subscription_is_enough_for_all, begin, end),
  };
  bed_args(argc, argv);
  return cmocka_run_group_tests(tests, NULL, NULL);
}

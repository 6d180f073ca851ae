/* SPDX-License-Identifier: MIT */
/* The breaker, on a clock that the tests set. */
#include "tier/breaker.h"
#include "unit.h"

#include <string.h>

static dibs__tick at_ms(int64_t ms) {
  return (dibs__tick){ms * DIBS__NS_PER_MS};
}

/* A closed breaker with the default parameters except the given ones. */
static struct dibs__breaker closed(struct dibs__breaker_options options) {
  struct dibs__breaker b;
  dibs__breaker_begin(&b, &options, at_ms(0));
  return b;
}

/* One operation that took a millisecond. */
static bool call(struct dibs__breaker *b, int64_t ms, bool failed) {
  assert_true(dibs__breaker_may(b, at_ms(ms)));
  return dibs__breaker_done(b, at_ms(ms), at_ms(ms + 1), 1, failed);
}

/* Opened by five failures at 0..4 ms, so at 5 ms. */
static struct dibs__breaker opened(void) {
  struct dibs__breaker b = closed((struct dibs__breaker_options){0});
  for (int i = 0; i < 5; i++) assert_int_equal(call(&b, i, true), i == 4);
  assert_int_equal(b.state, DIBS__BREAKER_OPEN);
  return b;
}

static void defaults_are_those_of_the_page(void **state) {
  (void)state;
  struct dibs__breaker b;
  dibs__breaker_begin(&b, NULL, at_ms(7));
  assert_int_equal(b.state, DIBS__BREAKER_CLOSED);
  assert_int_equal(b.options.window, 20);
  assert_int_equal(b.options.min_calls, 5);
  assert_int_equal(b.options.failure_percent, 50);
  assert_int_equal(b.options.slow_percent, 80);
  assert_int_equal(b.options.probes, 3);
  assert_true(b.options.window_ms == 10000 && b.options.slow_ms == 1000 && b.options.wait_ms == 2000);
  b = closed((struct dibs__breaker_options){.window = 1000, .min_calls = 500, .failure_percent = 300});
  assert_int_equal(b.options.window, DIBS__BREAKER_WINDOW);
  assert_int_equal(b.options.min_calls, DIBS__BREAKER_WINDOW);
  assert_int_equal(b.options.failure_percent, 100);
}

static void too_few_calls_open_nothing(void **state) {
  (void)state;
  struct dibs__breaker b = closed((struct dibs__breaker_options){0});
  for (int i = 0; i < 4; i++) assert_false(call(&b, i, true));
  assert_int_equal(b.state, DIBS__BREAKER_CLOSED);
  assert_true(call(&b, 4, true));
  assert_int_equal(b.state, DIBS__BREAKER_OPEN);
}

static void it_opens_at_the_rate_and_not_below_it(void **state) {
  (void)state;
  struct dibs__breaker b = closed((struct dibs__breaker_options){.window = 20});
  for (int i = 0; i < 11; i++) assert_false(call(&b, i, false));
  for (int i = 11; i < 21; i++) assert_int_equal(call(&b, i, true), i == 20); /* the first one has left the window */
  assert_int_equal(b.state, DIBS__BREAKER_OPEN);

  b = closed((struct dibs__breaker_options){.failure_percent = 60});
  for (int i = 0; i < 100; i++) assert_false(call(&b, i, i % 2 == 1));
  assert_int_equal(b.state, DIBS__BREAKER_CLOSED);
}

static void old_calls_do_not_count(void **state) {
  (void)state;
  struct dibs__breaker b = closed((struct dibs__breaker_options){.window_ms = 1000});
  uint32_t calls, failed, slow;
  for (int i = 0; i < 4; i++) assert_false(call(&b, i, true));
  dibs__breaker_rates(&b, at_ms(500), &calls, &failed, &slow);
  assert_int_equal(calls, 4);
  assert_int_equal(failed, 100);
  /* Calls that ended at 1, 2, 3 and 4 ms: at 1003 ms the last two are within the second. */
  dibs__breaker_rates(&b, at_ms(1003), &calls, &failed, &slow);
  assert_int_equal(calls, 2);
  assert_false(call(&b, 1100, true));
  dibs__breaker_rates(&b, at_ms(1101), &calls, &failed, &slow);
  assert_int_equal(calls, 1);
  assert_int_equal(b.state, DIBS__BREAKER_CLOSED);
}

static void slow_calls_open_it(void **state) {
  (void)state;
  struct dibs__breaker b = closed((struct dibs__breaker_options){.slow_ms = 100});
  for (int i = 0; i < 5; i++) {
    int64_t ms = i * 200;
    assert_true(dibs__breaker_may(&b, at_ms(ms)));
    assert_int_equal(dibs__breaker_done(&b, at_ms(ms), at_ms(ms + 100), 1, false), i == 4);
  }
  assert_int_equal(b.state, DIBS__BREAKER_OPEN);
  /* 99 ms is not slow; and 79% is not enough. */
  b = closed((struct dibs__breaker_options){.slow_ms = 100, .window = 5});
  for (int i = 0; i < 50; i++) {
    assert_true(dibs__breaker_may(&b, at_ms(i * 200)));
    assert_false(dibs__breaker_done(&b, at_ms(i * 200), at_ms(i * 200 + (i % 5 < 2 ? 99 : 100)), 1, false));
  }
  uint32_t calls, failed, slow;
  dibs__breaker_rates(&b, at_ms(10000), &calls, &failed, &slow);
  assert_int_equal(calls, 5);
  assert_int_equal(failed, 0);
  assert_int_equal(slow, 60);
}

static void a_call_counts_its_operations(void **state) {
  (void)state;
  struct dibs__breaker b = closed((struct dibs__breaker_options){0});
  uint32_t calls, failed, slow;
  assert_false(dibs__breaker_done(&b, at_ms(1), at_ms(2), 3, false));
  assert_false(dibs__breaker_done(&b, at_ms(3), at_ms(4), 1000, false));
  assert_false(dibs__breaker_done(&b, at_ms(4), at_ms(5), 0, false)); /* a listing counts as one */
  dibs__breaker_rates(&b, at_ms(5), &calls, &failed, &slow);
  assert_int_equal(calls, 3 + DIBS__BREAKER_WEIGHT + 1);
  /* 12 succeed; 8 failures of 20 are not enough, and 16 of 20 are. */
  assert_false(dibs__breaker_done(&b, at_ms(5), at_ms(6), 8, true));
  assert_true(dibs__breaker_done(&b, at_ms(6), at_ms(7), 8, true));
}

static void an_open_breaker_allows_no_call_until_the_wait_ends(void **state) {
  (void)state;
  struct dibs__breaker b = opened();
  assert_false(dibs__breaker_may(&b, at_ms(5)));
  assert_false(dibs__breaker_may(&b, at_ms(2004)));
  assert_int_equal(b.state, DIBS__BREAKER_OPEN);
  assert_true(dibs__breaker_may(&b, at_ms(2005)));
  assert_int_equal(b.state, DIBS__BREAKER_HALF_OPEN);
}

static void it_closes_after_the_permitted_number_of_probes(void **state) {
  (void)state;
  struct dibs__breaker b = opened();
  for (int i = 0; i < 3; i++) assert_true(dibs__breaker_may(&b, at_ms(2005)));
  assert_false(dibs__breaker_may(&b, at_ms(2005)));
  assert_false(dibs__breaker_done(&b, at_ms(2005), at_ms(2006), 1, false));
  assert_false(dibs__breaker_may(&b, at_ms(2006)));
  assert_false(dibs__breaker_done(&b, at_ms(2005), at_ms(2007), 8, false)); /* a probe counts as one, for any number of
                                                                             * operations */
  assert_true(dibs__breaker_done(&b, at_ms(2005), at_ms(2008), 1, false));
  assert_int_equal(b.state, DIBS__BREAKER_CLOSED);
  /* It has forgotten earlier calls: five more failures are needed to open it. */
  for (int i = 0; i < 5; i++) assert_int_equal(call(&b, 2010 + i, true), i == 4);
}

static void one_bad_probe_opens_it_again(void **state) {
  (void)state;
  struct dibs__breaker b = opened();
  for (int i = 0; i < 3; i++) assert_true(dibs__breaker_may(&b, at_ms(3000)));
  assert_false(dibs__breaker_done(&b, at_ms(3000), at_ms(3001), 1, false));
  assert_true(dibs__breaker_done(&b, at_ms(3000), at_ms(3002), 1, true));
  assert_int_equal(b.state, DIBS__BREAKER_OPEN);
  /* The wait begins again, and the third probe's answer belongs to the time before. */
  assert_false(dibs__breaker_done(&b, at_ms(3000), at_ms(3003), 1, false));
  assert_false(dibs__breaker_may(&b, at_ms(5001)));
  assert_true(dibs__breaker_may(&b, at_ms(5002)));
}

static void a_slow_probe_fails(void **state) {
  (void)state;
  struct dibs__breaker b = opened();
  assert_true(dibs__breaker_may(&b, at_ms(3000)));
  assert_true(dibs__breaker_done(&b, at_ms(3000), at_ms(4000), 1, false));
  assert_int_equal(b.state, DIBS__BREAKER_OPEN);
}

static void a_probe_that_never_came_back_does_not_keep_it_half_open(void **state) {
  (void)state;
  struct dibs__breaker b = opened();
  for (int i = 0; i < 3; i++) assert_true(dibs__breaker_may(&b, at_ms(3000)));
  assert_false(dibs__breaker_may(&b, at_ms(4999)));
  for (int i = 0; i < 3; i++) {
    assert_true(dibs__breaker_may(&b, at_ms(5000)));
    assert_int_equal(dibs__breaker_done(&b, at_ms(5000), at_ms(5001), 1, false), i == 2);
  }
  assert_int_equal(b.state, DIBS__BREAKER_CLOSED);
}

static void answers_to_earlier_calls_are_ignored(void **state) {
  (void)state;
  struct dibs__breaker b = opened();
  /* Calls that began before it opened fail while it is open, half-open and closed again. */
  for (int i = 0; i < 20; i++) assert_false(dibs__breaker_done(&b, at_ms(1), at_ms(100), 1, true));
  for (int i = 0; i < 3; i++) assert_true(dibs__breaker_may(&b, at_ms(3000)));
  assert_false(dibs__breaker_done(&b, at_ms(1), at_ms(3000), 1, true));
  for (int i = 0; i < 3; i++) dibs__breaker_done(&b, at_ms(3000), at_ms(3001), 1, false);
  assert_int_equal(b.state, DIBS__BREAKER_CLOSED);
  for (int i = 0; i < 20; i++) assert_false(dibs__breaker_done(&b, at_ms(2999), at_ms(3002), 1, true));
  assert_int_equal(b.state, DIBS__BREAKER_CLOSED);
  uint32_t calls, failed, slow;
  dibs__breaker_rates(&b, at_ms(3002), &calls, &failed, &slow);
  assert_int_equal(calls, 0);
  assert_int_equal(failed + slow, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(defaults_are_those_of_the_page),
      cmocka_unit_test(too_few_calls_open_nothing),
      cmocka_unit_test(it_opens_at_the_rate_and_not_below_it),
      cmocka_unit_test(old_calls_do_not_count),
      cmocka_unit_test(slow_calls_open_it),
      cmocka_unit_test(a_call_counts_its_operations),
      cmocka_unit_test(an_open_breaker_allows_no_call_until_the_wait_ends),
      cmocka_unit_test(it_closes_after_the_permitted_number_of_probes),
      cmocka_unit_test(one_bad_probe_opens_it_again),
      cmocka_unit_test(a_slow_probe_fails),
      cmocka_unit_test(a_probe_that_never_came_back_does_not_keep_it_half_open),
      cmocka_unit_test(answers_to_earlier_calls_are_ignored),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

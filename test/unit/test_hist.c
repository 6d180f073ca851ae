/* SPDX-License-Identifier: MIT */
#include "base/hist.h"
#include "unit.h"

#include <stdlib.h>
#include <string.h>

static struct dibs__hist hist, other;

static int clear(void **state) {
  (void)state;
  dibs__hist_clear(&hist);
  dibs__hist_clear(&other);
  return 0;
}

static void an_empty_histogram_has_no_values(void **state) {
  (void)state;
  assert_int_equal(dibs__hist_percentile(&hist, 50), 0);
  assert_int_equal(dibs__hist_percentile(&hist, 100), 0);
  assert_int_equal(hist.max, 0);
}

static void one_value_is_every_percentile(void **state) {
  (void)state;
  dibs__hist_add(&hist, 123456789);
  assert_int_equal(dibs__hist_percentile(&hist, 0), 123456789);
  assert_int_equal(dibs__hist_percentile(&hist, 50), 123456789);
  assert_int_equal(dibs__hist_percentile(&hist, 100), 123456789);
  assert_int_equal(hist.min, 123456789);
  assert_int_equal(hist.max, 123456789);
}

static void small_values_are_exact(void **state) {
  (void)state;
  for (int i = 0; i < 32; i++) dibs__hist_add(&hist, i);
  for (int i = 1; i <= 32; i++) assert_int_equal(dibs__hist_percentile(&hist, 100.0 * i / 32), i - 1);
}

static void a_negative_value_counts_as_zero(void **state) {
  (void)state;
  dibs__hist_add(&hist, -5);
  assert_int_equal(hist.min, 0);
  assert_int_equal(hist.max, 0);
  assert_int_equal(hist.count, 1);
}

static int compare(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* The sorted values are the reference: a percentile is never below, and at most a step above. */
static void percentiles_are_never_low_and_at_most_a_step_high(void **state) {
  (void)state;
  enum { MANY = 20000 };
  static uint64_t values[MANY];
  uint64_t x = 88172645463325252u, sum = 0;
  for (size_t i = 0; i < MANY; i++) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    values[i] = (x >> 24) >> (x % 40); /* all magnitudes up to 2^40 */
    sum += values[i];
    dibs__hist_add(&hist, (int64_t)values[i]);
  }
  qsort(values, MANY, sizeof values[0], compare);
  static const double percents[] = {0.01, 1, 10, 25, 50, 75, 90, 99, 99.9, 99.99, 100};
  for (size_t i = 0; i < COUNT_OF(percents); i++) {
    size_t rank = (size_t)((double)MANY * percents[i] / 100 + 0.5);
    uint64_t exact = values[rank - 1], told = dibs__hist_percentile(&hist, percents[i]);
    assert_true(told >= exact);
    assert_true((double)told <= (double)exact * 1.032 + 1);
  }
  assert_int_equal(hist.max, values[MANY - 1]);
  assert_int_equal(hist.min, values[0]);
  assert_int_equal(dibs__hist_percentile(&hist, 100), values[MANY - 1]);
  assert_int_equal(hist.sum, sum);
  assert_int_equal(hist.count, MANY);
}

static void rank_of_999_in_1000_is_not_the_last(void **state) {
  (void)state;
  for (int i = 0; i < 999; i++) dibs__hist_add(&hist, 10);
  dibs__hist_add(&hist, 1000000);
  assert_int_equal(dibs__hist_percentile(&hist, 99.9), 10);
  assert_int_equal(dibs__hist_percentile(&hist, 99.95), 1000000);
}

static void longest_durations_are_kept_in_max(void **state) {
  (void)state;
  dibs__hist_add(&hist, 1);
  dibs__hist_add(&hist, INT64_MAX);
  assert_int_equal(dibs__hist_percentile(&hist, 50), 1);
  assert_int_equal(dibs__hist_percentile(&hist, 100), INT64_MAX);
}

static void merging_equals_adding_to_one_histogram(void **state) {
  (void)state;
  static struct dibs__hist whole;
  dibs__hist_clear(&whole);
  for (int64_t i = 0; i < 1000; i++) {
    dibs__hist_add(i % 3 ? &hist : &other, 5 + i * i * 37);
    dibs__hist_add(&whole, 5 + i * i * 37);
  }
  dibs__hist_merge(&hist, &other);
  assert_memory_equal(&hist, &whole, sizeof whole);
  dibs__hist_clear(&other);
  dibs__hist_merge(&hist, &other); /* an empty histogram changes nothing, min included */
  assert_memory_equal(&hist, &whole, sizeof whole);
  dibs__hist_merge(&other, &hist);
  assert_memory_equal(&other, &whole, sizeof whole);
}

static void counts_below_a_power_of_two_are_exact(void **state) {
  (void)state;
  static const uint64_t values[] = {0, 1, 31, 32, 1023, 1024, 1025, 4095, 4096, 1u << 20, (1u << 20) - 1};
  for (size_t i = 0; i < COUNT_OF(values); i++) dibs__hist_add(&hist, (int64_t)values[i]);
  for (unsigned power = 5; power <= 40; power++) {
    uint64_t exact = 0;
    for (size_t i = 0; i < COUNT_OF(values); i++) exact += values[i] < UINT64_C(1) << power;
    assert_int_equal(dibs__hist_below(&hist, power), exact);
  }
  assert_int_equal(dibs__hist_below(&hist, 0), 1);
}

#define CASE(f) cmocka_unit_test_setup(f, clear)
int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(an_empty_histogram_has_no_values),
      CASE(one_value_is_every_percentile),
      CASE(small_values_are_exact),
      CASE(a_negative_value_counts_as_zero),
      CASE(percentiles_are_never_low_and_at_most_a_step_high),
      CASE(rank_of_999_in_1000_is_not_the_last),
      CASE(longest_durations_are_kept_in_max),
      CASE(merging_equals_adding_to_one_histogram),
      CASE(counts_below_a_power_of_two_are_exact),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: MIT */
#include "base/date.h"
#include "unit/unit.h"

#include <time.h>

/* Against the C library, a day at a time and in large steps. */
static void dates_are_those_of_the_c_library(void **state) {
  (void)state;
  for (int64_t days = -800000; days<800000; days += days> - 40000 && days < 80000 ? 1 : 97) {
    time_t seconds = (time_t)days * DIBS__DAY_S;
    struct tm tm;
    int64_t year, month, day;
    assert_non_null(gmtime_r(&seconds, &tm));
    dibs__date_of(days, &year, &month, &day);
    assert_int_equal(year, tm.tm_year + 1900);
    assert_int_equal(month, tm.tm_mon + 1);
    assert_int_equal(day, tm.tm_mday);
    assert_int_equal(dibs__weekday_of(days), tm.tm_wday);
    assert_int_equal(dibs__days_of(year, month, day), days);
  }
}

static void days_round_down(void **state) {
  (void)state;
  assert_int_equal(dibs__day_of(0), 0);
  assert_int_equal(dibs__day_of(DIBS__DAY_S - 1), 0);
  assert_int_equal(dibs__day_of(DIBS__DAY_S), 1);
  assert_int_equal(dibs__day_of(-1), -1);
  assert_int_equal(dibs__day_of(-DIBS__DAY_S), -1);
  assert_int_equal(dibs__day_of(-DIBS__DAY_S - 1), -2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(dates_are_those_of_the_c_library),
      cmocka_unit_test(days_round_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: MIT */
/* Which firings are due: catch-up, jitter, clock changes, new and changed jobs, and the state that nodes share. */
#include "base/date.h"
#include "task/cron.h"
#include "unit/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MINUTE_MS INT64_C(60000)
#define HOUR_MS INT64_C(3600000)
#define DAY_MS INT64_C(86400000)

static struct dibs__crontab *tab;
static struct dibs__cron_decision d;

/* The one job of a line. */
static const struct dibs__cron_job *job(const char *line) {
  dibs__crontab_free(tab);
  tab = dibs__crontab_read(line, strlen(line), "UTC");
  assert_non_null(tab);
  if (tab->flaw_count > 0) fail_msg("%s", tab->flaws[0].message);
  assert_int_equal(tab->job_count, 1);
  return &tab->jobs[0];
}

static int free_tab(void **state) {
  (void)state;
  dibs__crontab_free(tab);
  tab = NULL;
  return 0;
}

/* 2026-11-23 HH:MM:SS UTC */
static int64_t at(int hour, int minute, int second) {
  return (dibs__days_of(2026, 11, 23) * DIBS__DAY_S + hour * 3600 + minute * 60 + second) * 1000;
}

static void decide(const struct dibs__cron_job *j, int64_t decided_ms, int64_t now_ms) {
  dibs__cron_decide(j, decided_ms, now_ms, &d);
}

static void expect_due(size_t count, const int64_t *wanted) {
  assert_int_equal(d.count, count);
  for (size_t i = 0; i < count; i++) assert_int_equal(d.due[i].at_ms, wanted[i]);
}
#define DUE(...)                                                                                                       \
  do {                                                                                                                 \
    const int64_t due_[] = {__VA_ARGS__};                                                                              \
    expect_due(sizeof due_ / sizeof due_[0], due_);                                                                    \
  } while (0)

static void an_instant_fires_when_it_comes(void **state) {
  (void)state;
  const struct dibs__cron_job *j = job("*/5 * * * * name=a ./a");
  decide(j, at(10, 0, 0), at(10, 4, 59));
  assert_int_equal(d.count, 0);
  assert_int_equal(d.decided_ms, at(10, 4, 59));
  decide(j, d.decided_ms, at(10, 5, 0));
  DUE(at(10, 5, 0));
  assert_int_equal(d.due[0].start_ms, at(10, 5, 0));
  decide(j, d.decided_ms, at(10, 5, 1));
  assert_int_equal(d.count, 0);
  assert_int_equal(d.missed, 0);
}

static void a_clock_that_goes_back_decides_nothing(void **state) {
  (void)state;
  decide(job("* * * * * * name=a ./a"), at(10, 0, 30), at(10, 0, 10));
  assert_int_equal(d.count, 0);
  assert_int_equal(d.decided_ms, at(10, 0, 30));
}

static void milliseconds_do_not_lose_an_instant(void **state) {
  (void)state;
  const struct dibs__cron_job *j = job("* * * * * * name=a ./a");
  int64_t decided = at(10, 0, 0) + 400, fired = 0;
  for (int64_t now = decided; now < at(10, 0, 10); now += 370) {
    decide(j, decided, now);
    decided = d.decided_ms;
    fired += (int64_t)d.count;
  }
  assert_int_equal(fired, 9);
}

static void without_catch_up_late_ones_are_missed(void **state) {
  (void)state;
  const struct dibs__cron_job *j = job("*/5 * * * * name=a catch-up=none ./a");
  decide(j, at(10, 0, 0), at(10, 20, 30));
  assert_int_equal(d.count, 0);
  assert_int_equal(d.missed, 4);
  assert_int_equal(d.last_missed, at(10, 20, 0));
  assert_int_equal(d.decided_ms, at(10, 20, 30));
  decide(j, at(10, 0, 0), at(10, 20, 5)); /* the last one is in time */
  DUE(at(10, 20, 0));
  assert_int_equal(d.missed, 3);
}

static void the_last_one_is_made_up_for(void **state) {
  (void)state;
  const struct dibs__cron_job *j = job("*/5 * * * * name=a catch-up=last:1h ./a");
  decide(j, at(10, 0, 0), at(10, 22, 0));
  DUE(at(10, 20, 0));
  assert_int_equal(d.missed, 3);
  assert_int_equal(d.last_missed, at(10, 15, 0));
  decide(j, at(10, 0, 0), at(10, 25, 3)); /* one in time makes up for those before */
  DUE(at(10, 25, 0));
  assert_int_equal(d.missed, 4);
}

static void one_outside_of_the_window_is_missed(void **state) {
  (void)state;
  const struct dibs__cron_job *j = job("30 2 * * * name=a catch-up=last:6h ./a");
  decide(j, at(0, 0, 0), at(8, 29, 0));
  DUE(at(2, 30, 0));
  decide(j, at(0, 0, 0), at(8, 31, 0));
  assert_int_equal(d.count, 0);
  assert_int_equal(d.missed, 1);
  assert_int_equal(d.last_missed, at(2, 30, 0));
}

static void all_in_the_window_are_made_up_for(void **state) {
  (void)state;
  const struct dibs__cron_job *j = job("*/10 * * * * name=a catch-up=all:30m ./a");
  decide(j, at(8, 0, 0), at(10, 1, 0));
  DUE(at(9, 40, 0), at(9, 50, 0), at(10, 0, 0));
  assert_int_equal(d.missed, 9);
  assert_int_equal(d.decided_ms, at(10, 1, 0));
}

static void many_come_in_several_decisions(void **state) {
  (void)state;
  const struct dibs__cron_job *j = job("* * * * * * name=a catch-up=all:1h ./a");
  int64_t decided = at(9, 0, 0), now = at(9, 30, 0), last = decided;
  size_t fired = 0;
  for (int rounds = 0; decided < now; rounds++) {
    assert_true(rounds < 100);
    decide(j, decided, now);
    assert_true(d.count <= DIBS__CRON_DUE && d.missed == 0);
    for (size_t i = 0; i < d.count; i++) {
      assert_int_equal(d.due[i].at_ms, last + 1000);
      last = d.due[i].at_ms;
    }
    decided = d.decided_ms;
    fired += d.count;
  }
  assert_int_equal(fired, 1800);
}

static void a_pause_of_years_is_bounded(void **state) {
  (void)state;
  const struct dibs__cron_job *j = job("* * * * * * name=a catch-up=last:1h ./a");
  decide(j, at(0, 0, 0) - 3000 * DAY_MS, at(12, 0, 0) + 500);
  assert_true(d.count >= 1 && d.count <= DIBS__CRON_DUE);
  assert_int_equal(d.due[d.count - 1].at_ms, at(12, 0, 0));
  assert_int_equal(d.decided_ms, at(12, 0, 0) + 500);
  assert_true(d.missed >= DIBS__CRON_LOOKED_MAX);
}

static void jitter_is_the_same_everywhere_and_within_its_time(void **state) {
  (void)state;
  int64_t least = INT64_MAX, most = 0;
  for (int i = 0; i < 200; i++) {
    const struct dibs__cron_job *j = job("*/5 * * * * name=a jitter=5m ./a");
    int64_t instant = at(0, 0, 0) + i * 5 * MINUTE_MS, start = dibs__cron_start(j, instant);
    assert_in_range(start - instant, 0, 5 * MINUTE_MS - 1);
    assert_int_equal(start, dibs__cron_start(job("*/5 * * * * name=a jitter=5m ./b"), instant));
    if (start - instant < least) least = start - instant;
    if (start - instant > most) most = start - instant;
  }
  assert_true(least < MINUTE_MS && most > 4 * MINUTE_MS);
  decide(job("*/5 * * * * name=a jitter=5m ./a"), at(10, 0, 0), at(10, 5, 0));
  DUE(at(10, 5, 0));
  assert_int_equal(d.due[0].start_ms, dibs__cron_start(&tab->jobs[0], at(10, 5, 0)));
}

/* In Berlin 02:30 is skipped on 2026-03-29, and comes twice on 2026-10-25. */
static void a_nightly_job_fires_once_when_clocks_change(void **state) {
  (void)state;
  const struct dibs__cron_job *j = job("30 2 * * * name=a zone=Europe/Berlin ./a");
  int64_t spring = dibs__days_of(2026, 3, 29) * DAY_MS, autumn = dibs__days_of(2026, 10, 25) * DAY_MS;
  size_t fired = 0;
  for (int64_t now = spring - HOUR_MS, decided = now; now < spring + 6 * HOUR_MS; now += MINUTE_MS / 2) {
    decide(j, decided, now);
    decided = d.decided_ms;
    fired += d.count;
    if (d.count) assert_int_equal(d.due[0].at_ms, spring + HOUR_MS); /* 03:00 summer time */
  }
  assert_int_equal(fired, 1);
  for (int64_t now = autumn - HOUR_MS, decided = now; now < autumn + 6 * HOUR_MS; now += MINUTE_MS / 2) {
    decide(j, decided, now);
    decided = d.decided_ms;
    fired += d.count;
    if (d.count) assert_int_equal(d.due[0].at_ms, autumn + HOUR_MS / 2); /* the first 02:30 */
  }
  assert_int_equal(fired, 2);
}

static void a_token_belongs_to_one_firing(void **state) {
  (void)state;
  char a[65], b[65];
  dibs__cron_token("space", "job", 1000, a);
  dibs__cron_token("space", "job", 1000, b);
  assert_string_equal(a, b);
  dibs__cron_token("space", "job", 2000, b);
  assert_string_not_equal(a, b);
  dibs__cron_token("spacejob", "", 1000, b);
  assert_string_not_equal(a, b);
  dibs__cron_token("other", "job", 1000, b);
  assert_string_not_equal(a, b);
}

static void a_changed_job_is_another_one(void **state) {
  (void)state;
  uint64_t was = dibs__cron_job_digest(job("0 23 * * * name=a ./a"));
  assert_true(was == dibs__cron_job_digest(job("0 23 * * * name=a timeout=1h ./b")));
  assert_true(was != dibs__cron_job_digest(job("0 11 * * * name=a ./a")));
  assert_true(was != dibs__cron_job_digest(job("0 23 * * * name=b ./a")));
  assert_true(was != dibs__cron_job_digest(job("0 23 * * * name=a zone=Europe/Berlin ./a")));
}

static void the_state_survives_as_text(void **state) {
  (void)state;
  struct dibs__cron_state s = {0}, back;
  size_t length;
  bool no_memory;
  for (uint64_t i = 0; i < 100; i++) {
    struct dibs__cron_line *line =
        dibs__cron_state_add(&s, i * UINT64_C(0x9e3779b97f4a7c15), at(10, 0, 0) + (int64_t)i);
    assert_non_null(line);
    line->missed = i;
    line->skipped = UINT64_MAX;
    line->last_missed = INT64_MIN;
  }
  assert_non_null(dibs__cron_state_add(&s, 7, at(10, 0, 0) - DIBS__CRON_FORGET_MS - DAY_MS)); /* long gone */
  char *text = dibs__cron_state_write(&s, at(10, 0, 0), &length);
  assert_non_null(text);
  assert_true(dibs__cron_state_read(&back, text, length, &no_memory));
  assert_int_equal(back.count, 100);
  assert_null(dibs__cron_state_find(&back, 7));
  const struct dibs__cron_line *line = dibs__cron_state_find(&back, 42 * UINT64_C(0x9e3779b97f4a7c15));
  assert_non_null(line);
  assert_int_equal(line->decided_ms, at(10, 0, 0) + 42);
  assert_int_equal(line->missed, 42);
  assert_true(line->skipped == UINT64_MAX && line->last_missed == INT64_MIN);
  dibs__cron_state_free(&back);
  for (size_t cut = 0; cut < length; cut++) { /* no part of it is taken for the whole, or is read beyond its end */
    char *part = malloc(cut + 1);
    assert_non_null(part);
    memcpy(part, text, cut);
    if (dibs__cron_state_read(&back, part, cut, &no_memory)) assert_true(cut == 12 || part[cut - 1] == '\n');
    dibs__cron_state_free(&back);
    free(part);
  }
  free(text);
  dibs__cron_state_free(&s);
}

static void a_state_fits_into_a_record(void **state) {
  (void)state;
  struct dibs__cron_state s = {0}, back;
  size_t length;
  bool no_memory;
  enum { LINES = 40000 };
  for (int64_t i = 0; i < LINES; i++)
    assert_non_null(dibs__cron_state_add(&s, (uint64_t)i * UINT64_C(0x9e3779b97f4a7c15), at(10, 0, 0) - i * 60000));
  char *text = dibs__cron_state_write(&s, at(10, 0, 0), &length);
  assert_non_null(text);
  assert_in_range(length, 100000, DIBS_RECORD_MAX);
  assert_true(dibs__cron_state_read(&back, text, length, &no_memory));
  assert_non_null(dibs__cron_state_find(&back, 0)); /* the latest ones are kept */
  assert_null(dibs__cron_state_find(&back, (uint64_t)(LINES - 1) * UINT64_C(0x9e3779b97f4a7c15)));
  dibs__cron_state_free(&back);
  dibs__cron_state_free(&s);
  free(text);
}

static void a_text_of_another_kind_is_no_state(void **state) {
  (void)state;
  static const char *const texts[] = {"",
                                      "dibs-cron/2\n",
                                      "dibs-cron/1\nx\n",
                                      "dibs-cron/1\n1 2 3 4 5 6\n",
                                      "dibs-cron/1\n1 2 3 4\n",
                                      "dibs-cron/1\n1 2 3 4 5"};
  struct dibs__cron_state s;
  bool no_memory;
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    assert_false(dibs__cron_state_read(&s, texts[i], strlen(texts[i]), &no_memory));
  assert_true(dibs__cron_state_read(&s, "dibs-cron/1\n", 12, &no_memory));
  assert_int_equal(s.count, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_instant_fires_when_it_comes),
      cmocka_unit_test(a_clock_that_goes_back_decides_nothing),
      cmocka_unit_test(milliseconds_do_not_lose_an_instant),
      cmocka_unit_test(without_catch_up_late_ones_are_missed),
      cmocka_unit_test(the_last_one_is_made_up_for),
      cmocka_unit_test(one_outside_of_the_window_is_missed),
      cmocka_unit_test(all_in_the_window_are_made_up_for),
      cmocka_unit_test(many_come_in_several_decisions),
      cmocka_unit_test(a_pause_of_years_is_bounded),
      cmocka_unit_test(jitter_is_the_same_everywhere_and_within_its_time),
      cmocka_unit_test(a_nightly_job_fires_once_when_clocks_change),
      cmocka_unit_test(a_token_belongs_to_one_firing),
      cmocka_unit_test(a_changed_job_is_another_one),
      cmocka_unit_test(the_state_survives_as_text),
      cmocka_unit_test(a_state_fits_into_a_record),
      cmocka_unit_test(a_text_of_another_kind_is_no_state),
  };
  return cmocka_run_group_tests(tests, NULL, free_tab);
}

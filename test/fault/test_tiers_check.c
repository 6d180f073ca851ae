/* SPDX-License-Identifier: MIT */
/*
 * The checker of runs over tiers, on histories made by hand: each history breaks exactly one rule, and the checker
 * reports only that rule.
 */
#include "belief.h"
#include "dibs.h"
#include "tiers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PARTIES = 3 };
#define EPOCH(n) ((uint64_t)(n) << 32)

static char folder[64];
static struct history *histories[PARTIES + 1];
static uint32_t leases;
static int64_t finals[TIERS_NAMES], plains[TIERS_NAMES];
static struct tiers_bounds bounds;
static struct tiers_sums sums;

static int begin(void **state) {
  (void)state;
  snprintf(folder, sizeof folder, "/tmp/dibs-tiers-check-XXXXXX");
  assert_non_null(mkdtemp(folder));
  for (uint32_t party = 0; party <= PARTIES; party++) assert_non_null(histories[party] = history_make(folder, party));
  memset(finals, 0, sizeof finals);
  memset(plains, 0, sizeof plains);
  bounds = (struct tiers_bounds){.parties = PARTIES, .excused = ~0u};
  leases = 0;
  return 0;
}

static int end(void **state) {
  char path[128];
  (void)state;
  for (uint32_t party = 0; party <= PARTIES; party++) {
    munmap(histories[party], sizeof *histories[party]);
    snprintf(path, sizeof path, "%s/party-%u.history", folder, party);
    unlink(path);
    snprintf(path, sizeof path, "%s/process-%u.beliefs", folder, party);
    unlink(path);
  }
  return rmdir(folder);
}

/* ---- The events, each at an instant in ms ---- */

static void say(uint32_t party, enum what what, int64_t ms, uint64_t fence, int64_t value, int64_t extra) {
  struct reported reported = {
      .at = ms * DIBS__NS_PER_MS, .fence = fence, .value = value, .extra = extra, .lease = leases};
  reported.what = what;
  assert_true(history_say(histories[party], reported));
}
static void granted(uint32_t party, uint64_t fence, int64_t requested_ms, int64_t at_ms) {
  leases++;
  say(party, REPORTED_REQUEST, requested_ms, 0, 0, 0);
  say(party, REPORTED_GRANT, at_ms, fence, 0, 0);
}
static void sealed(uint32_t party, uint64_t fence, int64_t number, int64_t ms) {
  say(party, REPORTED_SEALING, ms, fence, 0, 0);
  say(party, REPORTED_SEALED, ms + 1, fence, number, DIBS_OK);
}
static void saving(uint32_t party, uint64_t fence, int64_t number, int64_t ms) {
  say(party, REPORTED_SAVING, ms, fence, number, 0);
}
static void saved(uint32_t party, uint64_t fence, int64_t number, int64_t ms, dibs_status status) {
  saving(party, fence, number, ms);
  say(party, REPORTED_SAVED, ms + 1, fence, number, status);
}
static void added(uint32_t party, uint64_t fence, int64_t number, int64_t ms) {
  say(party, REPORTED_ADDING, ms, fence, number, 0);
  say(party, REPORTED_ADDED, ms + 1, fence, number, DIBS_OK);
}
/* A complete round without failures, of 10 ms. */
static void complete_round(uint32_t party, uint64_t fence, int64_t number, int64_t ms) {
  granted(party, fence, ms, ms + 1);
  sealed(party, fence, number - 1, ms + 2);
  saved(party, fence, number, ms + 4, DIBS_OK);
}

/* `rule` -1: no rule is broken. */
static void expect(int rule, int64_t over_ms) {
  char what[1024] = "";
  leases = 0;
  say(0, REPORTED_OVER, over_ms, 0, 0, 0);
  int broken = tiers_check(folder, &bounds, finals, plains, &sums);
  for (int r = 0; r < TIERS_RULE_COUNT; r++)
    if (sums.broken[r] > 0)
      snprintf(what + strlen(what), sizeof what - strlen(what), " %s", tiers_rule_name((enum tiers_rule)r));
  if (rule < 0 ? broken != 0 : sums.broken[rule] == 0)
    fail_msg("expected %s to be broken; broken are:%s", rule < 0 ? "nothing" : tiers_rule_name((enum tiers_rule)rule),
             what);
  if (broken != (rule >= 0))
    fail_msg("expected only %s to be broken; broken are:%s", tiers_rule_name((enum tiers_rule)rule), what);
}

/* ---- Cases ---- */

static void a_run_without_failures_is_correct(void **state) {
  (void)state;
  bounds.excused = 0;
  bounds.strict = bounds.plain = bounds.still = true;
  bounds.idle_ms = 50;
  for (int i = 0; i < 9; i++)
    complete_round(1 + (uint32_t)i % PARTIES, EPOCH(7) + 1 + (uint64_t)i, i + 1, 100 + 20 * i);
  finals[0] = 9;
  expect(-1, 300);
  assert_int_equal(sums.acknowledged, 9);
  assert_int_equal(sums.highest, EPOCH(7) + 9);
  assert_int_equal(sums.epochs, 1);
  assert_int_equal(sums.idle_ms, 39); /* at the end */
}

static void a_fence_granted_twice(void **state) {
  (void)state;
  granted(1, 10, 100, 120);
  granted(2, 10, 110, 130);
  complete_round(3, 11, 1, 200);
  finals[0] = 1;
  expect(TIERS_TWICE, 300);
}

static void a_fence_of_none(void **state) {
  (void)state;
  granted(1, 0, 100, 110);
  complete_round(3, 11, 1, 200);
  finals[0] = 1;
  expect(TIERS_TWICE, 300);
}

static void a_fence_that_decreases_within_its_epoch(void **state) {
  (void)state;
  complete_round(1, EPOCH(3) + 9, 1, 100);
  granted(2, EPOCH(3) + 8, 120, 130);
  finals[0] = 1;
  expect(TIERS_GROWS, 300);
}

static void concurrent_requests_may_get_fences_in_any_order(void **state) {
  (void)state;
  granted(1, EPOCH(3) + 9, 100, 120);
  granted(2, EPOCH(3) + 8, 119, 130);
  complete_round(3, EPOCH(3) + 11, 1, 200);
  finals[0] = 1;
  expect(-1, 300);
}

static void an_old_epoch_within_the_lag_is_only_counted(void **state) {
  (void)state;
  complete_round(1, EPOCH(4) + 1, 1, 100);
  granted(2, EPOCH(3) + 8, 200, 210);
  finals[0] = 1;
  expect(-1, 300);
  assert_int_equal(sums.behind, 1);
  assert_int_equal(sums.epochs, 2);
}

static void an_old_epoch_after_the_lag(void **state) {
  (void)state;
  complete_round(1, EPOCH(4) + 1, 1, 100);
  granted(2, EPOCH(3) + 8, 3200, 3210);
  finals[0] = 1;
  expect(TIERS_FOLLOWS, 3300);
}

static void an_old_epoch_of_a_stopped_party_is_excused(void **state) {
  (void)state;
  complete_round(1, EPOCH(4) + 1, 1, 100);
  leases = 2;
  say(0, REPORTED_STOP, 150, 0, 0, 0);
  say(0, REPORTED_GO_ON, 3100, 0, 0, 0);
  granted(2, EPOCH(3) + 8, 3200, 3210);
  finals[0] = 1;
  leases = 2;
  granted(3, EPOCH(3) + 7, 3200, 3210);
  expect(TIERS_FOLLOWS, 3300);
  assert_int_equal(sums.broken[TIERS_FOLLOWS], 1); /* the party that was not stopped */
}

static void a_lower_fence_that_a_record_takes_after_a_higher_one(void **state) {
  (void)state;
  granted(1, EPOCH(3) + 5, 100, 101);
  granted(2, EPOCH(4) + 1, 102, 103);
  leases = 1;
  sealed(1, EPOCH(3) + 5, 0, 105);
  leases = 2;
  sealed(2, EPOCH(4) + 1, 0, 107);
  leases = 1;
  saved(1, EPOCH(3) + 5, 1, 110, DIBS_OK);
  finals[0] = 1;
  expect(TIERS_ACCEPTS, 300);
}

static void a_lower_fence_that_a_record_refuses(void **state) {
  (void)state;
  granted(1, EPOCH(3) + 5, 100, 101);
  granted(2, EPOCH(4) + 1, 102, 103);
  leases = 1;
  sealed(1, EPOCH(3) + 5, 0, 105);
  leases = 2;
  sealed(2, EPOCH(4) + 1, 0, 107);
  leases = 1;
  saved(1, EPOCH(3) + 5, 1, 110, DIBS_STALE);
  leases = 2;
  saved(2, EPOCH(4) + 1, 1, 112, DIBS_OK);
  finals[0] = 1;
  expect(-1, 300);
  assert_int_equal(sums.refused, 1);
}

static void a_number_that_decreases(void **state) {
  (void)state;
  complete_round(1, 5, 1, 100);
  complete_round(2, 6, 2, 120);
  complete_round(3, 8, 3, 140);
  finals[0] = 4;
  complete_round(1, 7, 4, 139); /* during the request before */
  bounds.how = HOW_FENCED;
  leases = 0;
  say(0, REPORTED_OVER, 300, 0, 0, 0);
  tiers_check(folder, &bounds, finals, plains, &sums);
  assert_true(sums.broken[TIERS_NUMBERS] > 0);
}

static void an_increment_that_is_lost(void **state) {
  (void)state;
  complete_round(1, 5, 1, 100);
  complete_round(2, 6, 2, 120);
  finals[0] = 1;
  expect(TIERS_FINAL, 300);
  assert_int_equal(sums.lost, 1);
}

static void a_number_that_was_acknowledged_twice(void **state) {
  (void)state;
  complete_round(1, 5, 1, 100);
  complete_round(2, 6, 1, 120);
  finals[0] = 1;
  leases = 0;
  say(0, REPORTED_OVER, 300, 0, 0, 0);
  tiers_check(folder, &bounds, finals, plains, &sums);
  assert_true(sums.broken[TIERS_NUMBERS] > 0 && sums.broken[TIERS_FINAL] > 0);
  assert_int_equal(sums.lost, 1);
}

static void an_unknown_increment_may_count_or_not(void **state) {
  (void)state;
  complete_round(1, 5, 1, 100);
  granted(2, 6, 120, 121);
  sealed(2, 6, 1, 122);
  saved(2, 6, 2, 124, DIBS_UNKNOWN);
  granted(3, 7, 140, 141);
  sealed(3, 7, 1, 142);
  saving(3, 7, 2, 144); /* no process survived to record it */
  finals[0] = 2;
  expect(-1, 300);
  assert_int_equal(sums.unknown, 2);
  assert_int_equal(sums.acknowledged, 1);
}

static void an_unknown_increment_that_is_found_again_is_acknowledged(void **state) {
  (void)state;
  granted(2, 6, 120, 121);
  sealed(2, 6, 0, 122);
  saved(2, 6, 1, 124, DIBS_UNKNOWN);
  saved(2, 6, 1, 126, DIBS_OK);
  finals[0] = 1;
  expect(-1, 300);
  assert_int_equal(sums.unknown, 0);
  assert_int_equal(sums.acknowledged, 1);
}

static void a_number_that_no_party_wrote(void **state) {
  (void)state;
  complete_round(1, 5, 1, 100);
  finals[0] = 2;
  expect(TIERS_FINAL, 300);
}

static void without_seals_lost_increments_are_counted(void **state) {
  (void)state;
  bounds.how = HOW_NO_SEAL;
  complete_round(1, 5, 1, 100);
  complete_round(2, 6, 1, 120);
  complete_round(3, 7, 2, 140);
  finals[0] = 2;
  expect(-1, 300);
  assert_int_equal(sums.lost, 1);
}

static void a_period_without_grants(void **state) {
  (void)state;
  bounds.idle_ms = 500;
  complete_round(1, 5, 1, 100);
  complete_round(2, 6, 2, 700);
  finals[0] = 2;
  expect(TIERS_IDLE, 800);
  assert_int_equal(sums.idle_ms, 600);
}

static void a_period_without_the_anchor_does_not_count(void **state) {
  (void)state;
  bounds.idle_ms = 500;
  complete_round(1, 5, 1, 100);
  leases = 0;
  say(0, REPORTED_STOP, 200, 0, 0, 0);
  say(0, REPORTED_GO_ON, 400, 0, 0, 0);
  leases = 1;
  complete_round(2, 6, 2, 700);
  finals[0] = 2;
  expect(-1, 800);
  assert_int_equal(sums.idle_ms, 600);
}

static void a_run_that_ends_without_grants(void **state) {
  (void)state;
  bounds.idle_ms = 500;
  complete_round(1, 5, 1, 100);
  finals[0] = 1;
  expect(TIERS_IDLE, 800);
}

static void a_party_that_never_continues(void **state) {
  (void)state;
  bounds.excused = 1u << 3;
  complete_round(1, 5, 1, 100);
  complete_round(2, 6, 2, 120);
  say(0, REPORTED_MARK, 150, 0, 0, 0);
  complete_round(1, 7, 3, 200);
  finals[0] = 3;
  expect(TIERS_ALL, 300);
  assert_int_equal(sums.broken[TIERS_ALL], 1);
}

static void a_bucket_that_moves(void **state) {
  (void)state;
  bounds.still = true;
  complete_round(1, EPOCH(1) + 5, 1, 100);
  complete_round(2, EPOCH(2) + 1, 2, 120);
  finals[0] = 2;
  expect(TIERS_STILL, 300);
}

static void a_bucket_that_moved_before_all_were_running(void **state) {
  (void)state;
  bounds.still = true;
  bounds.still_from = 130 * DIBS__NS_PER_MS;
  complete_round(1, EPOCH(1) + 5, 1, 100);
  complete_round(2, EPOCH(2) + 1, 2, 120);
  complete_round(1, EPOCH(2) + 2, 3, 140);
  finals[0] = 3;
  expect(-1, 300);
}

static void believes(uint32_t party, uint64_t fence, int64_t from_ms) {
  struct beliefs *beliefs = beliefs_open(folder, party, false);
  struct belief request = {.id = {party, fence}, .ttl_ms = 1000, .handle = party};
  assert_non_null(beliefs);
  struct belief *belief = belief_request(beliefs, &request);
  assert_non_null(belief);
  belief->fence = fence;
  belief->requested = belief->from = from_ms * DIBS__NS_PER_MS;
  belief->seen = belief->until = (from_ms + 50) * DIBS__NS_PER_MS;
  beliefs_close(beliefs);
}

static void two_beliefs_at_once(void **state) {
  (void)state;
  complete_round(3, 4, 1, 50);
  finals[0] = 1;
  believes(1, 5, 100);
  believes(2, 6, 120);
  expect(TIERS_BELIEFS, 300);
  assert_int_equal(sums.believed, 2);
}

static void two_beliefs_under_two_epochs(void **state) {
  (void)state;
  complete_round(3, 4, 1, 50);
  finals[0] = 1;
  believes(1, EPOCH(1) + 5, 100);
  believes(2, EPOCH(2) + 6, 120);
  expect(-1, 300);
  bounds.strict = true;
  expect(TIERS_BELIEFS, 300);
  bounds.least = true; /* the first continues alone */
  expect(-1, 300);
}

static void a_plain_counter_that_loses_increments(void **state) {
  (void)state;
  complete_round(1, 5, 1, 100);
  added(1, 5, 1, 106);
  complete_round(2, 6, 2, 120);
  added(2, 6, 1, 126);
  finals[0] = 2;
  plains[0] = 1;
  expect(-1, 300);
  assert_int_equal(sums.plain, 2);
  assert_int_equal(sums.plain_lost, 1);
  bounds.plain = true;
  expect(TIERS_PLAIN, 300);
}

static void grants_of_a_process_alone_have_no_order(void **state) {
  (void)state;
  complete_round(1, EPOCH(9) + 5, 1, 100);
  granted(2, EPOCH(1) + 1, 200, 201);
  granted(3, EPOCH(1) + 1, 210, 211);
  granted(2, EPOCH(1) + 1, 220, 221);
  finals[0] = 1;
  bounds.least = true;
  bounds.idle_ms = 120;
  expect(-1, 300);
  assert_int_equal(sums.alone, 3);
  bounds.least = false;
  leases = 0;
  tiers_check(folder, &bounds, finals, plains, &sums);
  assert_true(sums.broken[TIERS_TWICE] > 0 && sums.broken[TIERS_GROWS] > 0);
}

static void a_run_without_events(void **state) {
  (void)state;
  expect(TIERS_HISTORY, 300);
}

int main(void) {
#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)
  static const struct CMUnitTest tests[] = {
      CASE(a_run_without_failures_is_correct),
      CASE(a_fence_granted_twice),
      CASE(a_fence_of_none),
      CASE(a_fence_that_decreases_within_its_epoch),
      CASE(concurrent_requests_may_get_fences_in_any_order),
      CASE(an_old_epoch_within_the_lag_is_only_counted),
      CASE(an_old_epoch_after_the_lag),
      CASE(an_old_epoch_of_a_stopped_party_is_excused),
      CASE(a_lower_fence_that_a_record_takes_after_a_higher_one),
      CASE(a_lower_fence_that_a_record_refuses),
      CASE(a_number_that_decreases),
      CASE(an_increment_that_is_lost),
      CASE(a_number_that_was_acknowledged_twice),
      CASE(an_unknown_increment_may_count_or_not),
      CASE(an_unknown_increment_that_is_found_again_is_acknowledged),
      CASE(a_number_that_no_party_wrote),
      CASE(without_seals_lost_increments_are_counted),
      CASE(a_period_without_grants),
      CASE(a_period_without_the_anchor_does_not_count),
      CASE(a_run_that_ends_without_grants),
      CASE(a_party_that_never_continues),
      CASE(a_bucket_that_moves),
      CASE(a_bucket_that_moved_before_all_were_running),
      CASE(two_beliefs_at_once),
      CASE(two_beliefs_under_two_epochs),
      CASE(a_plain_counter_that_loses_increments),
      CASE(grants_of_a_process_alone_have_no_order),
      CASE(a_run_without_events),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

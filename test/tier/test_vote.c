/* SPDX-License-Identifier: MIT */
/* When the fleet leaves a tier, and when it returns. */
#include "bed.h"
#include "unit.h"

#include <string.h>

enum { FLEET = 20 };

/* Clients of two tiers: how many use the first tier, find it unreachable, find it working. */
static struct dibs__tiers_tally fleet(uint32_t active, uint32_t down, uint32_t well) {
  struct dibs__tiers_report reports[FLEET] = {{0}};
  struct dibs__tiers_tally tally;
  for (uint32_t c = 0; c < FLEET; c++) {
    reports[c].count = 2;
    reports[c].tiers[0].active = c < active;
    reports[c].tiers[0].down = c < down;
    reports[c].tiers[0].well = c < well;
  }
  dibs__tiers_tally(reports, FLEET, &tally);
  return tally;
}

static bool vote(struct dibs__tiers_state *s, struct dibs__tiers_tally tally, int64_t now) {
  return dibs__tiers_vote(s, &tally, now);
}

static void an_idle_client_has_no_vote(void **state) {
  (void)state;
  struct dibs__tiers_tally tally = fleet(5, FLEET, 3);
  assert_int_equal(tally.clients, FLEET);
  assert_int_equal(tally.active[0], 5);
  assert_int_equal(tally.down[0], 5);
  assert_int_equal(tally.well[0], 3);
  assert_int_equal(tally.active[1] + tally.down[1] + tally.well[1], 0);
  struct dibs__tiers_state s = two_tiers();
  assert_false(vote(&s, fleet(0, FLEET, 0), NOW)); /* all idle */
}

static void one_client_with_a_wrong_password_moves_nothing(void **state) {
  (void)state;
  struct dibs__tiers_state s = two_tiers(), before = s;
  assert_false(vote(&s, fleet(FLEET, 1, 0), NOW));
  assert_false(vote(&s, fleet(FLEET, FLEET / 2, 0), NOW)); /* half is not a majority */
  assert_false(vote(&s, fleet(0, 0, 0), NOW));
  assert_memory_equal(&s, &before, sizeof s);
}

static void a_majority_of_its_users_turns_a_tier_down(void **state) {
  (void)state;
  struct dibs__tiers_state s = two_tiers();
  assert_true(vote(&s, fleet(FLEET, FLEET / 2 + 1, 0), NOW));
  assert_true(s.tiers[0].down && s.tiers[0].changed == NOW);
  assert_true(s.tiers[0].dwell_ms == DIBS__TIERS_DWELL_MS);
  assert_int_equal(dibs__tiers_wanted(&s, 0), 1);
  assert_false(vote(&s, fleet(FLEET, FLEET, 0), NOW + 1)); /* the tier is down already */
  /* 15 idle clients do not count: 2 of 3 are enough. */
  s = two_tiers();
  assert_false(vote(&s, fleet(3, 1, 0), NOW));
  assert_true(vote(&s, fleet(3, 2, 0), NOW));
}

static void it_returns_after_its_dwell_time_and_by_majority(void **state) {
  (void)state;
  struct dibs__tiers_state s = two_tiers();
  assert_true(vote(&s, fleet(FLEET, FLEET, 0), NOW));
  assert_false(vote(&s, fleet(0, 0, FLEET), NOW + DIBS__TIERS_DWELL_MS - 1));
  assert_false(vote(&s, fleet(0, 0, FLEET / 2), NOW + DIBS__TIERS_DWELL_MS));
  assert_true(vote(&s, fleet(0, 0, FLEET / 2 + 1), NOW + DIBS__TIERS_DWELL_MS));
  assert_false(s.tiers[0].down);
  assert_true(s.tiers[0].changed == NOW + DIBS__TIERS_DWELL_MS);
  /* Without clients, no client found it working. */
  struct dibs__tiers_tally none;
  dibs__tiers_tally(NULL, 0, &none);
  assert_true(vote(&s, fleet(FLEET, FLEET, 0), NOW + 400000));
  assert_false(vote(&s, none, NOW + 800000));
}

/* Down, up as soon as possible, and down again `up_ms` later; returns how long it must then be down. */
static int64_t flap(struct dibs__tiers_state *s, int64_t *now, int64_t up_ms) {
  assert_true(vote(s, fleet(FLEET, FLEET, 0), *now));
  int64_t dwell = s->tiers[0].dwell_ms;
  *now += dwell - 1;
  assert_false(vote(s, fleet(0, 0, FLEET), *now));
  *now += 1;
  assert_true(vote(s, fleet(0, 0, FLEET), *now));
  *now += up_ms;
  return dwell;
}

static void a_tier_that_flaps_is_left_longer_each_time(void **state) {
  (void)state;
  struct dibs__tiers_state s = two_tiers();
  int64_t now = NOW, dwell = DIBS__TIERS_DWELL_MS;
  for (int i = 0; i < 10; i++) {
    assert_true(flap(&s, &now, 5000) == dwell);
    dwell = dwell * 2 < DIBS__TIERS_DWELL_MAX_MS ? dwell * 2 : DIBS__TIERS_DWELL_MAX_MS;
  }
  assert_true(dwell == DIBS__TIERS_DWELL_MAX_MS);
  /* After a long time without a failure the dwell time is normal again. */
  now += DIBS__TIERS_DWELL_MAX_MS;
  assert_true(flap(&s, &now, 0) == DIBS__TIERS_DWELL_MS);
  /* With another dwell time. */
  s = two_tiers();
  s.dwell_ms = 500;
  for (dwell = 500; dwell <= 4000; dwell *= 2) assert_true(flap(&s, &now, 5) == dwell);
}

static void a_clock_that_was_stepped_back_does_not_delay_the_return(void **state) {
  (void)state;
  struct dibs__tiers_state s = two_tiers();
  assert_true(vote(&s, fleet(FLEET, FLEET, 0), NOW));
  assert_false(vote(&s, fleet(0, 0, FLEET), NOW - 100));
  assert_true(vote(&s, fleet(0, 0, FLEET), NOW - 3600000));
}

static void manual_states_overrule_votes(void **state) {
  (void)state;
  struct dibs__tiers_state s = two_tiers();
  s.tiers[0].hand = DIBS__HAND_CLOSED;
  assert_false(vote(&s, fleet(FLEET, FLEET, 0), NOW));
  s.tiers[0].hand = DIBS__HAND_OPEN;
  assert_false(vote(&s, fleet(FLEET, FLEET, 0), NOW));
  /* Down by vote, then closed by hand: up; opened by hand: the vote is kept for the time after. */
  for (int hand = 0; hand < 2; hand++) {
    s = two_tiers();
    assert_true(vote(&s, fleet(FLEET, FLEET, 0), NOW));
    s.tiers[0].hand = hand ? DIBS__HAND_CLOSED : DIBS__HAND_OPEN;
    assert_int_equal(vote(&s, fleet(FLEET, FLEET, 0), NOW + 1), hand);
    assert_int_equal(s.tiers[0].down, !hand);
  }
}

static void without_the_breaker_no_client_votes(void **state) {
  (void)state;
  struct dibs__tiers_state s = two_tiers();
  s.breaker = false;
  assert_false(vote(&s, fleet(FLEET, FLEET, 0), NOW));
  s.breaker = true;
  assert_true(vote(&s, fleet(FLEET, FLEET, 0), NOW));
  s.breaker = false;
  assert_true(vote(&s, fleet(FLEET, FLEET, 0), NOW + 1)); /* the breaker is switched off while the tier is down: it is
                                                           * up */
  assert_false(s.tiers[0].down);
}

static void the_last_tier_has_no_vote(void **state) {
  (void)state;
  struct dibs__tiers_state s = two_tiers(), one;
  struct dibs__tiers_tally all = {.clients = 3, .active = {3, 3}, .down = {0, 3}};
  assert_false(dibs__tiers_vote(&s, &all, NOW));
  dibs__tiers_begin(&one, (const char *const[]){"sqlite"}, 1);
  assert_false(vote(&one, fleet(FLEET, FLEET, 0), NOW));
  assert_false(one.tiers[0].down || s.tiers[1].down);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_idle_client_has_no_vote),
      cmocka_unit_test(one_client_with_a_wrong_password_moves_nothing),
      cmocka_unit_test(a_majority_of_its_users_turns_a_tier_down),
      cmocka_unit_test(it_returns_after_its_dwell_time_and_by_majority),
      cmocka_unit_test(a_tier_that_flaps_is_left_longer_each_time),
      cmocka_unit_test(a_clock_that_was_stepped_back_does_not_delay_the_return),
      cmocka_unit_test(manual_states_overrule_votes),
      cmocka_unit_test(without_the_breaker_no_client_votes),
      cmocka_unit_test(the_last_tier_has_no_vote),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: MIT */
/*
 * A Redis before a database: what works while the anchor is unreachable, and while everything is.
 *
 * with.sh --private runs it with the Redis; the test starts the database beside it.
 */
#include "tiers_bed.h"

enum { CONFIRMED_MS = 3000 };

static const char *redis_uri;
static char database[512], uri[1600];
static int nth;

static int begin(void **state) {
  (void)state;
  nth++;
  snprintf(uri, sizeof uri, "%s?prefix=w%d,%s?prefix=w%d_&tiers.dwell=300&tiers.wait=200&connect_timeout=1000",
           redis_uri, nth, database, nth);
  return 0;
}

static void strictness(dibs_store *store, dibs_strictness which) {
  FINE(dibs_strictness_set(store, which, &error));
}

static void fenced_continues_without_the_anchor_and_does_not_move(void **state) {
  (void)state;
  dibs_store *a = open_at(uri);
  dibs_lease *held = take_in_the_end(a, "held");
  uint64_t last = 0;
  servers("kill", "mariadb");
  for (int i = 0; i < 50; i++) {
    dibs_lease *lease;
    FINE(take(a, "n", 0, &lease));
    assert_string_equal(dibs_lease_tier(lease), dibs_lease_tier(held));
    assert_true(dibs_lease_fence(lease).value > last);
    last = dibs_lease_fence(lease).value;
    FINE(dibs_release(lease, &error));
    dibs_lease_free(lease);
    dibs__nap_ms(10);
  }
  FINE(dibs_renew(held, 0, &error));
  assert_int_not_equal(dibs_tier_move(a, "mysql", &error), DIBS_OK);
  /* A client that opens now uses the mandates that Redis serves. */
  dibs_store *late = open_at(uri);
  dibs_lease *lease;
  FINE(take(late, "n", 0, &lease));
  assert_true(dibs_lease_fence(lease).value > last);
  give(lease);
  dibs_close(late);
  servers("restart", "mariadb");
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), SOON_MS);
  while (dibs_tier_move(a, "mysql", &error) != DIBS_OK) {
    if (!dibs__tick_before(dibs__tick_now(), by)) fail_msg("the buckets cannot be moved: %s", error.text);
    dibs__nap_ms(20);
  }
  lease = take_in_the_end(a, "n");
  assert_true(dibs_lease_fence(lease).value > last);
  give(lease);
  dibs_lease_free(held);
  dibs_close(a);
}

static void strict_stops_without_the_anchor(void **state) {
  (void)state;
  dibs_store *a = open_at(uri);
  strictness(a, DIBS_STRICTNESS_STRICT);
  give(take_in_the_end(a, "n"));
  servers("kill", "mariadb");
  /* A confirmed mandate is valid for another moment; then nothing is granted any more. */
  dibs__nap_ms(CONFIRMED_MS + 200);
  for (int i = 0; i < 20; i++) {
    dibs_lease *lease = NULL;
    dibs_status status = take(a, "n", 0, &lease);
    if (status == DIBS_OK) fail_msg("granted by %s", dibs_lease_tier(lease));
    dibs__nap_ms(20);
  }
  servers("restart", "mariadb");
  give(take_in_the_end(a, "n"));
  dibs_close(a);
}

static void nothing_is_granted_when_everything_is_unreachable(void **state) {
  (void)state;
  dibs_store *a = open_at(uri);
  give(take_in_the_end(a, "n"));
  servers("kill", "redis");
  servers("kill", "mariadb");
  for (int i = 0; i < 50; i++) {
    dibs_lease *lease = NULL;
    assert_int_not_equal(take(a, "n", 0, &lease), DIBS_OK);
    dibs__nap_ms(5);
  }
  servers("restart", "mariadb");
  servers("restart", "redis");
  give(take_in_the_end(a, "n"));
  dibs_close(a);
}

static void least_strict_continues_alone_and_reports_it(void **state) {
  (void)state;
  dibs_store *a = open_at(uri), *b = open_at(uri);
  strictness(a, DIBS_STRICTNESS_LEAST);
  dibs_lease *lease = take_in_the_end(a, "n");
  uint64_t last = dibs_lease_fence(lease).value;
  assert_string_not_equal(dibs_lease_tier(lease), "memory");
  give(lease);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), SOON_MS);
  for (dibs_strictness known = DIBS_STRICTNESS_FENCED; known != DIBS_STRICTNESS_LEAST; dibs__nap_ms(20)) {
    FINE(dibs_strictness_get(b, &known, &error));
    assert_true(dibs__tick_before(dibs__tick_now(), by));
  }
  servers("kill", "redis");
  servers("kill", "mariadb");
  /* Each continues alone: two hold the same name. */
  dibs_lease *mine = take_in_the_end(a, "n"), *theirs = take_in_the_end(b, "n");
  assert_string_equal(dibs_lease_tier(mine), "memory");
  assert_string_equal(dibs_lease_tier(theirs), "memory");
  assert_int_equal(dibs_lease_alive(mine), 1);
  dibs_tiers_info info = {.size = sizeof info};
  FINE(dibs_tiers(a, &info, NULL, NULL, NULL, &error));
  assert_int_equal(info.on_their_own, 1);
  assert_true(info.here[DIBS_TIERS_LEAST_STRICT] >= 1);
  servers("restart", "mariadb");
  servers("restart", "redis");
  by = dibs__tick_add_ms(dibs__tick_now(), SOON_MS);
  do {
    assert_true(dibs__tick_before(dibs__tick_now(), by));
    lease = take_in_the_end(b, "m");
    bool back = strcmp(dibs_lease_tier(lease), "memory") != 0;
    if (back) assert_true(dibs_lease_fence(lease).value > last);
    give(lease);
    if (back) break;
    dibs__nap_ms(5);
  } while (true);
  /* A lease that was granted alone is lost. */
  assert_int_equal(dibs_renew(theirs, 0, &error), DIBS_LOST);
  dibs_lease_free(theirs);
  dibs_lease_free(mine);
  dibs_close(a);
  dibs_close(b);
}

/* A name in the first half of the buckets, or in the second. */
static const char *name_in(bool first, char *to, size_t size) {
  for (int i = 0;; i++) {
    int n = snprintf(to, size, "name %d", i);
    if ((dibs__bucket(dibs__str_of(to, (size_t)n)) < DIBS__BUCKETS / 2) == first) return to;
  }
}

/* Renews a lease at the paused anchor, which gets no answer, on the path that also renews `other`: is that one alive
 * afterwards? */
static bool alive_beside_a_paused_anchor(dibs_lease *at_anchor, dibs_lease *other) {
  bool alive = true;
  FINE(dibs_renew(at_anchor, 0, &error)); /* so that this path is open */
  servers("pause", "mariadb");
  for (int i = 0; i < 3 && alive; i++) {
    assert_int_not_equal(dibs_renew(at_anchor, 0, &error), DIBS_OK);
    alive = dibs_lease_alive(other);
  }
  servers("resume", "mariadb");
  return alive;
}

/* A machine that is busy may lose the short lease, too, but not three times. */
static void a_paused_anchor_does_not_delay_renewals_on_redis(void **state) {
  (void)state;
  char there[32], here[32];
  dibs_store *a = open_at(uri);
  FINE(dibs_flag_set(a, "redis.enabled", 50, &error));
  dibs_lease_options slow = {.size = sizeof slow, .ttl_ms = 60000}, quick = {.size = sizeof quick, .ttl_ms = 1800};
  dibs_lease *at_anchor, *at_redis;
  FINE(dibs_acquire(a, name_in(false, there, sizeof there), &slow, &at_anchor, &error));
  bool alive = false;
  for (int attempt = 0; attempt < 3 && !alive; attempt++) {
    FINE(dibs_acquire(a, name_in(true, here, sizeof here), &quick, &at_redis, &error));
    assert_string_not_equal(dibs_lease_tier(at_anchor), dibs_lease_tier(at_redis));
    alive = alive_beside_a_paused_anchor(at_anchor, at_redis);
    if (!alive) dibs_lease_free(at_redis);
  }
  assert_true(alive);
  give(at_redis);
  give(at_anchor);
  dibs_close(a);
}

/* A client that opens now is granted nothing. */
static void assert_new_client_gets_nothing(void) {
  dibs_store *late = NULL;
  dibs_lease *lease = NULL;
  if (dibs_open(uri, NULL, &late, &error) != DIBS_OK) return;
  for (int i = 0; i < 20; i++) {
    if (take(late, "n", 0, &lease) == DIBS_OK) fail_msg("granted by %s", dibs_lease_tier(lease));
    dibs__nap_ms(5);
  }
  dibs_close(late);
}

static void without_the_anchor_a_new_client_is_not_granted_names_of_a_left_tier(void **state) {
  (void)state;
  dibs_store *a = open_at(uri);
  give(take_in_the_end(a, "n"));
  FINE(dibs_tier_move(a, "mysql", &error));
  give(take_in_the_end(a, "n"));
  servers("kill", "mariadb");
  assert_new_client_gets_nothing();
  servers("restart", "mariadb");
  FINE(dibs_tier_move(a, "redis", &error));
  give(take_in_the_end(a, "n"));
  dibs_close(a);
}

static void without_the_anchor_a_new_client_of_a_strict_store_is_granted_nothing(void **state) {
  (void)state;
  dibs_store *a = open_at(uri);
  strictness(a, DIBS_STRICTNESS_STRICT);
  give(take_in_the_end(a, "n"));
  servers("kill", "mariadb");
  assert_new_client_gets_nothing();
  servers("restart", "mariadb");
  dibs_close(a);
}

static void a_tier_that_was_never_reached_is_left(void **state) {
  (void)state;
  servers("kill", "redis");
  dibs_store *a = open_at(uri);
  dibs_lease *lease = take_in_the_end(a, "n");
  uint64_t first = dibs_lease_fence(lease).value;
  give(lease);
  servers("restart", "redis");
  until_on(a, 0);
  lease = take_in_the_end(a, "n");
  assert_true(dibs_lease_fence(lease).value > first);
  give(lease);
  dibs_close(a);
}

int main(int argc, char **argv) {
  if (argc < 2) return 77;
  redis_uri = argv[1];
  servers("start", "mariadb");
  server_uri("DIBS_TEST_MYSQL", database, sizeof database);
#define CASE(f) cmocka_unit_test_setup(f, begin)
  const struct CMUnitTest tests[] = {
      CASE(fenced_continues_without_the_anchor_and_does_not_move),
      CASE(strict_stops_without_the_anchor),
      CASE(nothing_is_granted_when_everything_is_unreachable),
      CASE(least_strict_continues_alone_and_reports_it),
      CASE(a_paused_anchor_does_not_delay_renewals_on_redis),
      CASE(without_the_anchor_a_new_client_is_not_granted_names_of_a_left_tier),
      CASE(without_the_anchor_a_new_client_of_a_strict_store_is_granted_nothing),
      CASE(a_tier_that_was_never_reached_is_left),
  };
  if (argc > 2) cmocka_set_test_filter(argv[2]);
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: MIT */
/*
 * A Redis before an embedded anchor: what holders, waiters and clients see when mandates move.
 *
 * Runs by with.sh --private, which says how this Redis is killed and started again; the anchor is a file.
 */
#include "tiers_bed.h"

enum { CLIENTS = 5 };

static const char *redis_uri;
static char folder[64], uri[1200];
static int nth;

static void redis_says(const char *words) {
  char text[512];
  snprintf(text, sizeof text, "redis-cli -u \"$DIBS_TEST_REDIS_ADMIN\" --no-auth-warning %s >/dev/null", words);
  command(text);
}

static int begin(void **state) {
  (void)state;
  snprintf(uri, sizeof uri, "%s?prefix=t%d,sqlite:%s/%d.db?tiers.dwell=300&tiers.wait=200", redis_uri, nth, folder,
           nth);
  nth++;
  return 0;
}

static _Atomic int lost_calls;
static void lost(dibs_lease *lease, dibs_status status, void *user) {
  (void)lease, (void)user;
  assert_int_equal(status, DIBS_LOST);
  lost_calls++;
}

/* ---- Moves ---- */

static void a_holder_whose_bucket_moved_learns_it(void **state) {
  (void)state;
  dibs_store *a = open_at(uri), *b = open_at(uri);
  dibs_lease_options o = {.size = sizeof o, .ttl_ms = 900, .on_lost = lost};
  dibs_lease *held, *next;
  lost_calls = 0;
  FINE(dibs_acquire(a, "n", &o, &held, &error));
  uint64_t first = dibs_lease_fence(held);
  FINE(dibs_tier_move(b, "sqlite", &error));
  assert_int_equal(look(b).buckets[1], DIBS__BUCKETS);
  next = take_in_the_end(b, "n");
  assert_true(dibs_lease_fence(next) > first);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), 2000);
  while (!lost_calls && dibs__tick_before(dibs__tick_now(), by)) dibs__nap_ms(1);
  assert_int_equal(lost_calls, 1);
  assert_int_equal(dibs_lease_alive(held), 0);
  assert_int_equal(dibs_release(held, &error), DIBS_LOST);
  dibs_lease_free(held);
  assert_int_equal(dibs_lease_alive(next), 1);
  FINE(dibs_release(next, &error));
  dibs_lease_free(next);
  /* And back, still upwards. */
  FINE(dibs_tier_move(a, "redis", &error));
  held = take_in_the_end(b, "n");
  assert_true(dibs_lease_fence(held) > first);
  give(held);
  dibs_close(a);
  dibs_close(b);
}

struct wait {
  _Atomic int over;
  dibs_status status;
};
static void waited(dibs_lease *lease, dibs_status status, void *user) {
  struct wait *wait = user;
  (void)lease;
  wait->status = status;
  wait->over = 1;
}

static void a_waiter_goes_on_waiting_on_the_new_tier(void **state) {
  (void)state;
  dibs_store *a = open_at(uri), *b = open_at(uri);
  dibs_lease_options o = {.size = sizeof o, .ttl_ms = TTL_MS, .wait_ms = SOON_MS};
  dibs_lease *held, *waits, *again;
  struct wait wait = {.status = DIBS_UNKNOWN};
  FINE(take(a, "n", 0, &held));
  uint64_t first = dibs_lease_fence(held);
  FINE(dibs_acquire_start(b, "n", &o, waited, &wait, &waits, &error));
  dibs__nap_ms(50);
  assert_int_equal(wait.over, 0);
  FINE(dibs_tier_move(a, "sqlite", &error));
  /* Nobody holds it on the new tier: it is the waiter's at once, or behind who was quicker. */
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), 3000);
  while (!wait.over && dibs__tick_before(dibs__tick_now(), by)) dibs__nap_ms(1);
  assert_int_equal(wait.over, 1);
  assert_int_equal(wait.status, DIBS_OK);
  assert_true(dibs_lease_fence(waits) > first);
  assert_int_equal(take(a, "n", 0, &again), DIBS_HELD);
  give(waits);
  give(held);
  dibs_close(a);
  dibs_close(b);
}

static void redis_killed_the_anchor_takes_over_and_gives_back(void **state) {
  (void)state;
  dibs_store *a = open_at(uri);
  dibs_lease *lease = take_in_the_end(a, "n");
  uint64_t first = dibs_lease_fence(lease);
  assert_int_equal(look(a).buckets[0], DIBS__BUCKETS);
  servers("kill", "redis");
  dibs__tick from = dibs__tick_now();
  give(take_in_the_end(a, "other"));
  print_message("# the anchor granted after %lld ms\n", (long long)((dibs__tick_now().ns - from.ns) / 1000000));
  dibs_lease *second = take_in_the_end(a, "n"); /* when the holder in this process knows that it is none any more */
  assert_true(dibs_lease_fence(second) > first);
  assert_int_equal(look(a).buckets[1], DIBS__BUCKETS);
  give(lease);
  give(second);
  servers("restart", "redis");
  until_on(a, 0);
  second = take_in_the_end(a, "n");
  assert_true(dibs_lease_fence(second) > first);
  give(second);
  dibs_close(a);
}

static void a_waiter_outlives_the_death_of_redis(void **state) {
  (void)state;
  dibs_store *a = open_at(uri), *b = open_at(uri);
  dibs_lease_options o = {.size = sizeof o, .ttl_ms = TTL_MS, .wait_ms = SOON_MS};
  dibs_lease *held = take_in_the_end(a, "n"), *waits;
  uint64_t first = dibs_lease_fence(held);
  struct wait wait = {.status = DIBS_UNKNOWN};
  FINE(dibs_acquire_start(b, "n", &o, waited, &wait, &waits, &error));
  servers("kill", "redis");
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), SOON_MS);
  while (!wait.over && dibs__tick_before(dibs__tick_now(), by)) give(take_in_the_end(a, "other"));
  assert_int_equal(wait.over, 1);
  assert_int_equal(wait.status, DIBS_OK);
  assert_true(dibs_lease_fence(waits) > first);
  give(waits);
  give(held);
  servers("restart", "redis");
  dibs_close(a);
  dibs_close(b);
}

static void who_begins_to_wait_while_redis_is_dead_is_served(void **state) {
  (void)state;
  dibs_store *a = open_at(uri);
  dibs_lease *lease;
  give(take_in_the_end(a, "n"));
  servers("kill", "redis");
  FINE(take(a, "n", SOON_MS, &lease)); /* one call, and no trouble of it: the names move while it waits */
  assert_non_null(strstr(dibs_lease_tier(lease), "sqlite"));
  give(lease);
  servers("restart", "redis");
  dibs_close(a);
}

/* ---- What is lost ---- */

static void an_emptied_redis_gets_the_next_epoch(void **state) {
  (void)state;
  dibs_store *a = open_at(uri), *b = open_at(uri);
  dibs_lease *lease;
  uint64_t last = 0;
  for (int i = 0; i < 3; i++) {
    lease = take_in_the_end(i % 2 ? a : b, "n");
    assert_true(dibs_lease_fence(lease) > last);
    last = dibs_lease_fence(lease);
    redis_says("FLUSHALL");
    dibs_lease *other = take_in_the_end(i % 2 ? b : a, "n");
    assert_true(dibs_lease_fence(other) > last);
    last = dibs_lease_fence(other);
    /* What was held before the memory was lost is not ours any more. */
    assert_int_equal(dibs_renew(lease, 0, &error), DIBS_LOST);
    dibs_lease_free(lease);
    give(other);
  }
  assert_int_equal(look(a).buckets[0], DIBS__BUCKETS);
  dibs_close(a);
  dibs_close(b);
}

static void an_old_dump_gets_the_next_epoch(void **state) {
  (void)state;
  dibs_store *a = open_at(uri);
  redis_says("SAVE");
  char text[400];
  const char *at = getenv("DIBS_TEST_SERVERS_DIR");
  snprintf(text, sizeof text, "find '%s/redis' -name '*.rdb' -exec cp {} {}.old ';'", at);
  command(text);
  uint64_t last = 0;
  for (int i = 0; i < 20; i++) {
    dibs_lease *lease = take_in_the_end(a, "n");
    assert_true(dibs_lease_fence(lease) > last);
    last = dibs_lease_fence(lease);
    give(lease);
  }
  servers("kill", "redis");
  snprintf(text, sizeof text, "find '%s/redis' -name '*.rdb' -exec mv {}.old {} ';'", at);
  command(text);
  servers("restart", "redis");
  for (int i = 0; i < 20; i++) {
    dibs_lease *lease = take_in_the_end(a, "n");
    assert_true(dibs_lease_fence(lease) > last);
    last = dibs_lease_fence(lease);
    give(lease);
  }
  dibs_close(a);
}

/* ---- Who decides ---- */

static void one_with_a_wrong_password_moves_nothing(void **state) {
  (void)state;
  char wrong[1200];
  const char *colon = strchr(redis_uri + strlen("redis://"), ':'), *sign = strchr(redis_uri, '@');
  assert_true(colon && sign);
  snprintf(wrong, sizeof wrong, "%.*s:wrong%s%s", (int)(colon - redis_uri), redis_uri, sign, uri + strlen(redis_uri));
  dibs_store *a = open_at(uri), *denied;
  dibs_lease *lease = take_in_the_end(a, "n"), *theirs;
  denied = open_at(wrong);
  /* Neither at once, nor by waiting: that would be for ever. */
  for (int i = 0; i < 20; i++) {
    assert_int_equal(take(denied, "other", i % 2 ? SOON_MS : 0, &theirs), DIBS_DENIED);
    assert_non_null(strstr(error.text, "redis://"));
    assert_null(strstr(error.text, "wrong@"));
  }
  FINE(dibs_renew(lease, 0, &error));
  assert_int_equal(look(a).buckets[0], DIBS__BUCKETS);
  /* Who is let in nowhere else can still move the names. */
  FINE(dibs_tier_move(denied, "sqlite", &error));
  give(take_in_the_end(denied, "other"));
  give(lease);
  dibs_close(denied);
  dibs_close(a);
}

static void whoever_opens_one_tier_alone_is_refused(void **state) {
  (void)state;
  char alone[1200];
  dibs_lease *lease;
  dibs_store *a = open_at(uri);
  give(take_in_the_end(a, "n"));
  snprintf(alone, sizeof alone, "%.*s", (int)(strchr(uri, ',') - uri), uri);
  dibs_store *lone = open_at(alone);
  assert_int_equal(take(lone, "n", 0, &lease), DIBS_DENIED);
  assert_non_null(strstr(error.text, "tiers"));
  dibs_close(lone);
  dibs_close(a);
}

static void a_tenth_of_the_buckets_is_rolled_out(void **state) {
  (void)state;
  dibs_store *a = open_at(uri);
  FINE(dibs_flag_set(a, "redis.enabled", 10, &error));
  struct seen seen = look(a);
  assert_int_equal(seen.buckets[0], 10);
  assert_int_equal(seen.buckets[1], 90);
  for (int i = 0; i < 200; i++) {
    char name[32];
    snprintf(name, sizeof name, "name %d", i);
    give(take_in_the_end(a, name));
  }
  FINE(dibs_flag_set(a, "redis.enabled", 100, &error));
  assert_int_equal(look(a).buckets[0], DIBS__BUCKETS);
  dibs_close(a);
}

/* ---- Strictness ---- */

static void strict_lets_no_two_hold(void **state) {
  (void)state;
  dibs_store *a = open_at(uri), *b = open_at(uri);
  dibs_lease_options o = {.size = sizeof o, .ttl_ms = 1000, .flags = DIBS_NO_RENEW};
  dibs_lease *held, *next;
  FINE(dibs_strictness_set(a, DIBS_STRICTNESS_STRICT, &error));
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), SOON_MS);
  while (dibs_acquire(a, "n", &o, &held, &error) != DIBS_OK) {
    assert_true(dibs__tick_before(dibs__tick_now(), by));
    dibs__nap_ms(5);
  }
  FINE(dibs_tier_move(b, "sqlite", &error));
  bool alive_then = false;
  for (by = dibs__tick_add_ms(dibs__tick_now(), SOON_MS);;) {
    bool alive = dibs_lease_alive(held);
    if (take(b, "n", 0, &next) == DIBS_OK) break;
    alive_then = alive_then || alive;
    assert_true(dibs__tick_before(dibs__tick_now(), by));
    dibs__nap_ms(2);
  }
  assert_true(alive_then); /* it did wait */
  assert_int_equal(dibs_lease_alive(held), 0);
  assert_true(dibs_lease_fence(next) > dibs_lease_fence(held));
  dibs_lease_free(held);
  give(next);
  dibs_close(a);
  dibs_close(b);
}

static void many_clients_move_together(void **state) {
  (void)state;
  dibs_store *all[CLIENTS];
  for (int i = 0; i < CLIENTS; i++) {
    all[i] = open_at(uri);
    give(take_in_the_end(all[i], "n"));
  }
  servers("pause", "redis");
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), SOON_MS);
  uint64_t last = 0;
  while (look(all[0]).buckets[1] != DIBS__BUCKETS) {
    assert_true(dibs__tick_before(dibs__tick_now(), by));
    for (int i = 0; i < CLIENTS; i++) {
      dibs_lease *lease;
      if (take(all[i], "n", 0, &lease) == DIBS_OK) give(lease);
    }
  }
  for (int i = 0; i < CLIENTS; i++) {
    dibs_lease *lease = take_in_the_end(all[i], "n");
    assert_true(dibs_lease_fence(lease) > last);
    last = dibs_lease_fence(lease);
    give(lease);
  }
  servers("resume", "redis");
  until_on(all[0], 0);
  for (int i = 0; i < CLIENTS; i++) {
    dibs_lease *lease = take_in_the_end(all[i], "n");
    assert_true(dibs_lease_fence(lease) > last);
    last = dibs_lease_fence(lease);
    give(lease);
    dibs_close(all[i]);
  }
}

int main(int argc, char **argv) {
  if (argc < 2) return 77;
  redis_uri = argv[1];
  snprintf(folder, sizeof folder, "/tmp/dibs-tiers-XXXXXX");
  if (!mkdtemp(folder)) return 1;
#define CASE(f) cmocka_unit_test_setup(f, begin)
  const struct CMUnitTest tests[] = {
      CASE(a_holder_whose_bucket_moved_learns_it),
      CASE(a_waiter_goes_on_waiting_on_the_new_tier),
      CASE(redis_killed_the_anchor_takes_over_and_gives_back),
      CASE(a_waiter_outlives_the_death_of_redis),
      CASE(who_begins_to_wait_while_redis_is_dead_is_served),
      CASE(an_emptied_redis_gets_the_next_epoch),
      CASE(an_old_dump_gets_the_next_epoch),
      CASE(one_with_a_wrong_password_moves_nothing),
      CASE(whoever_opens_one_tier_alone_is_refused),
      CASE(a_tenth_of_the_buckets_is_rolled_out),
      CASE(strict_lets_no_two_hold),
      CASE(many_clients_move_together),
  };
  if (argc > 2) cmocka_set_test_filter(argv[2]);
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  char text[128];
  snprintf(text, sizeof text, "rm -rf '%s'", folder);
  return system(text) == 0 ? failed : 1;
}

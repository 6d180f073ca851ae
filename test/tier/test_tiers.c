/* SPDX-License-Identifier: MIT */
/*
 * A Redis before an embedded anchor: holders, waiters and clients while mandates move.
 *
 * with.sh --private runs it and tells it how this Redis is killed and started again; the anchor is a file.
 */
#include "drivers/wrap/fault.h"
#include "store/registry.h"
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
static void lost(dibs_lease *lease, dibs_status status, const dibs_error *why, void *user) {
  (void)why;
  (void)lease, (void)user;
  assert_int_equal(status, DIBS_LOST);
  lost_calls++;
}

/* ---- Moves ---- */

static void a_holder_keeps_its_lease_when_its_bucket_moves(void **state) {
  (void)state;
  dibs_store *a = open_at(uri), *b = open_at(uri);
  dibs_lease_options o = {.size = sizeof o, .ttl_ms = 900, .on_lost = lost};
  dibs_lease *held, *next;
  lost_calls = 0;
  FINE(dibs_acquire(a, "n", &o, &held, &error));
  uint64_t first = dibs_lease_fence(held).value;
  FINE(dibs_tier_move(b, "sqlite", &error));
  assert_int_equal(look(b).buckets[1], DIBS__BUCKETS);
  /* It is renewed on its old tier, and no other client is granted the name. */
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), 2000);
  while (dibs__tick_before(dibs__tick_now(), by)) {
    assert_int_equal(take(b, "n", 0, &next), DIBS_HELD);
    dibs__nap_ms(50);
  }
  assert_int_equal(lost_calls, 0);
  assert_int_equal(dibs_lease_alive(held), 1);
  FINE(dibs_release(held, &error));
  dibs_lease_free(held);
  next = take_in_the_end(b, "n");
  assert_ptr_equal(strstr(dibs_lease_tier(next), "sqlite:"), dibs_lease_tier(next));
  assert_true(dibs_lease_fence(next).value > first);
  first = dibs_lease_fence(next).value;
  give(next);
  /* And back, still with larger fences. */
  FINE(dibs_tier_move(a, "redis", &error));
  until_on(a, 0);
  held = take_in_the_end(a, "n");
  assert_true(dibs_lease_fence(held).value > first);
  give(held);
  dibs_close(a);
  dibs_close(b);
}

/* Each call of the anchor fails in turn while the buckets move away from it. */
static void no_failure_of_the_anchor_moves_its_buckets_without_their_holders(void **state) {
  (void)state;
  char faulty[1300];
  const char *comma = strchr(uri, ',');
  snprintf(faulty, sizeof faulty, "%.*sfault+%s", (int)(comma + 1 - uri), uri, comma + 1);
  dibs_store *a = open_at(faulty), *b = open_at(faulty);
  uint64_t struck = 1;
  for (uint64_t call = 1; call <= 40 && struck; call++) {
    dibs_lease *held, *next;
    FINE(dibs_tier_move(b, "sqlite", &error));
    until_on(b, 1);
    held = take_in_the_end(a, "n");
    dibs__fault_arm(&(struct dibs__fault_plan){.on = DIBS__FAULT_RUN, .nth = call});
    dibs_status moved = dibs_tier_move(b, "redis", &error);
    struck = dibs__fault_struck();
    dibs__fault_arm(NULL);
    dibs_status other = take(b, "n", 0, &next);
    if (other == DIBS_OK) fail_msg("call %u failed (the move: %d), and two hold the name", (unsigned)call, moved);
    assert_int_equal(dibs_lease_alive(held), 1);
    give(held);
    FINE(dibs_tier_move(b, "redis", &error));
  }
  dibs_close(a);
  dibs_close(b);
}

static void a_holder_learns_that_its_tier_was_opened_by_hand(void **state) {
  (void)state;
  dibs_store *a = open_at(uri), *b = open_at(uri);
  dibs_lease_options o = {.size = sizeof o, .ttl_ms = 900, .on_lost = lost};
  dibs_lease *held, *next;
  lost_calls = 0;
  FINE(dibs_acquire(a, "n", &o, &held, &error));
  uint64_t first = dibs_lease_fence(held).value;
  FINE(dibs_tier_switch(b, "redis", DIBS_HAND_OPEN, &error));
  assert_int_equal(look(b).buckets[1], DIBS__BUCKETS);
  next = take_in_the_end(b, "n");
  assert_true(dibs_lease_fence(next).value > first);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), 2000);
  while (!lost_calls && dibs__tick_before(dibs__tick_now(), by)) dibs__nap_ms(1);
  assert_int_equal(lost_calls, 1);
  assert_int_equal(dibs_lease_alive(held), 0);
  assert_int_equal(dibs_release(held, &error), DIBS_LOST);
  dibs_lease_free(held);
  assert_int_equal(dibs_lease_alive(next), 1);
  give(next);
  dibs_close(a);
  dibs_close(b);
}

struct wait {
  _Atomic int over;
  dibs_status status;
};
static void waited(dibs_lease *lease, dibs_status status, const dibs_error *why, void *user) {
  (void)why;
  struct wait *wait = user;
  (void)lease;
  wait->status = status;
  wait->over = 1;
}

struct taker {
  dibs_store *store;
  dibs__thread *thread;
  dibs_status status;
  char tier[200];
};

/* Reads the tier as soon as it holds: an offer that it uses is not confirmed yet.  `error` is of the other thread. */
static void take_and_look(void *arg) {
  struct taker *t = arg;
  dibs_lease *lease;
  dibs_lease_options o = {.size = sizeof o, .wait_ms = SOON_MS};
  t->status = dibs_acquire(t->store, "offered", &o, &lease, NULL);
  if (t->status != DIBS_OK) return;
  snprintf(t->tier, sizeof t->tier, "%s", dibs_lease_tier(lease));
  (void)dibs_release(lease, NULL);
  dibs_lease_free(lease);
}

static void a_lease_used_from_an_offer_has_its_tier(void **state) {
  (void)state;
  char two[sizeof uri];
  dibs_lease *held;
  /* Files: a waiter uses their offers before it has confirmed them, unless the tiers are strict. */
  snprintf(two, sizeof two, "sqlite:%s/first%d.db,sqlite:%s/second%d.db?tiers.strictness=fenced", folder, nth, folder,
           nth);
  dibs_store *a = open_at(two), *b = open_at(two);
  for (int i = 0; i < 40; i++) {
    struct taker taker = {.store = b};
    FINE(take(a, "offered", SOON_MS, &held));
    assert_non_null(taker.thread = dibs__thread_start("taker", take_and_look, &taker));
    dibs__nap_ms(10); /* so that it usually waits; the tier does not depend on it */
    give(held);
    dibs__thread_join(taker.thread);
    assert_int_equal(taker.status, DIBS_OK);
    assert_non_null(strstr(taker.tier, "/first"));
    assert_null(strchr(taker.tier, ',')); /* the URI of the tier, not of all */
  }
  dibs_close(a);
  dibs_close(b);
}

static void a_waiter_keeps_waiting_on_the_new_tier(void **state) {
  (void)state;
  dibs_store *a = open_at(uri), *b = open_at(uri);
  dibs_lease_options o = {.size = sizeof o, .ttl_ms = TTL_MS, .wait_ms = SOON_MS};
  dibs_lease *held, *waits, *again;
  struct wait wait = {.status = DIBS_UNKNOWN};
  FINE(take(a, "n", 0, &held));
  uint64_t first = dibs_lease_fence(held).value;
  FINE(dibs_acquire_start(b, "n", &o, waited, &wait, &waits, &error));
  dibs__nap_ms(50);
  assert_int_equal(wait.over, 0);
  FINE(dibs_tier_move(a, "sqlite", &error));
  dibs__nap_ms(300);
  assert_int_equal(wait.over, 0);
  give(held);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), 3000);
  while (!wait.over && dibs__tick_before(dibs__tick_now(), by)) dibs__nap_ms(1);
  assert_int_equal(wait.over, 1);
  assert_int_equal(wait.status, DIBS_OK);
  assert_true(dibs_lease_fence(waits).value > first);
  assert_ptr_equal(strstr(dibs_lease_tier(waits), "sqlite:"), dibs_lease_tier(waits));
  assert_int_equal(take(a, "n", 0, &again), DIBS_HELD);
  give(waits);
  dibs_close(a);
  dibs_close(b);
}

static void the_anchor_replaces_a_killed_redis_and_returns_the_buckets(void **state) {
  (void)state;
  dibs_store *a = open_at(uri);
  dibs_lease *lease = take_in_the_end(a, "n");
  uint64_t first = dibs_lease_fence(lease).value;
  assert_int_equal(look(a).buckets[0], DIBS__BUCKETS);
  servers("kill", "redis");
  dibs__tick from = dibs__tick_now();
  give(take_in_the_end(a, "other"));
  print_message("# the anchor granted after %lld ms\n", (long long)((dibs__tick_now().ns - from.ns) / 1000000));
  dibs_lease *second = take_in_the_end(a, "n"); /* when the holder in this process knows that it has lost the lease */
  assert_true(dibs_lease_fence(second).value > first);
  assert_int_equal(look(a).buckets[1], DIBS__BUCKETS);
  give(lease);
  give(second);
  servers("restart", "redis");
  until_on(a, 0);
  second = take_in_the_end(a, "n");
  assert_true(dibs_lease_fence(second).value > first);
  give(second);
  dibs_close(a);
}

static void a_waiter_survives_the_death_of_redis(void **state) {
  (void)state;
  dibs_store *a = open_at(uri), *b = open_at(uri);
  dibs_lease_options o = {.size = sizeof o, .ttl_ms = TTL_MS, .wait_ms = SOON_MS};
  dibs_lease *held = take_in_the_end(a, "n"), *waits;
  uint64_t first = dibs_lease_fence(held).value;
  struct wait wait = {.status = DIBS_UNKNOWN};
  FINE(dibs_acquire_start(b, "n", &o, waited, &wait, &waits, &error));
  servers("kill", "redis");
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), SOON_MS);
  while (!wait.over && dibs__tick_before(dibs__tick_now(), by)) give(take_in_the_end(a, "other"));
  assert_int_equal(wait.over, 1);
  assert_int_equal(wait.status, DIBS_OK);
  assert_true(dibs_lease_fence(waits).value > first);
  give(waits);
  give(held);
  servers("restart", "redis");
  dibs_close(a);
  dibs_close(b);
}

static void a_wait_that_begins_while_redis_is_dead_is_served(void **state) {
  (void)state;
  dibs_store *a = open_at(uri);
  dibs_lease *lease;
  give(take_in_the_end(a, "n"));
  servers("kill", "redis");
  FINE(take(a, "n", SOON_MS, &lease)); /* one call without a failure: the names move while it waits */
  assert_non_null(strstr(dibs_lease_tier(lease), "sqlite"));
  give(lease);
  servers("restart", "redis");
  dibs_close(a);
}

/* ---- Lost memory ---- */

static void an_emptied_redis_gets_the_next_epoch(void **state) {
  (void)state;
  dibs_store *a = open_at(uri), *b = open_at(uri);
  dibs_lease *lease;
  uint64_t last = 0;
  for (int i = 0; i < 3; i++) {
    lease = take_in_the_end(i % 2 ? a : b, "n");
    assert_true(dibs_lease_fence(lease).value > last);
    last = dibs_lease_fence(lease).value;
    redis_says("FLUSHALL");
    dibs_lease *other = take_in_the_end(i % 2 ? b : a, "n");
    assert_true(dibs_lease_fence(other).value > last);
    last = dibs_lease_fence(other).value;
    /* A lease from before the memory was lost is lost, too. */
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
    assert_true(dibs_lease_fence(lease).value > last);
    last = dibs_lease_fence(lease).value;
    give(lease);
  }
  servers("kill", "redis");
  snprintf(text, sizeof text, "find '%s/redis' -name '*.rdb' -exec mv {}.old {} ';'", at);
  command(text);
  servers("restart", "redis");
  for (int i = 0; i < 20; i++) {
    dibs_lease *lease = take_in_the_end(a, "n");
    assert_true(dibs_lease_fence(lease).value > last);
    last = dibs_lease_fence(lease).value;
    give(lease);
  }
  dibs_close(a);
}

/* ---- Decisions ---- */

static void a_client_with_a_wrong_password_moves_nothing(void **state) {
  (void)state;
  char wrong[1200];
  const char *colon = strchr(redis_uri + strlen("redis://"), ':'), *sign = strchr(redis_uri, '@');
  assert_true(colon && sign);
  snprintf(wrong, sizeof wrong, "%.*s:wrong%s%s", (int)(colon - redis_uri), redis_uri, sign, uri + strlen(redis_uri));
  dibs_store *a = open_at(uri), *denied;
  dibs_lease *lease = take_in_the_end(a, "n"), *theirs;
  denied = open_at(wrong);
  /* Neither at once nor after waiting, which would last for ever. */
  for (int i = 0; i < 20; i++) {
    assert_int_equal(take(denied, "other", i % 2 ? SOON_MS : 0, &theirs), DIBS_DENIED);
    assert_non_null(strstr(error.text, "redis://"));
    assert_null(strstr(error.text, "wrong@"));
  }
  FINE(dibs_renew(lease, 0, &error));
  assert_int_equal(look(a).buckets[0], DIBS__BUCKETS);
  /* A client that only the anchor accepts can still move the names. */
  FINE(dibs_tier_move(denied, "sqlite", &error));
  give(take_in_the_end(denied, "other"));
  give(lease);
  dibs_close(denied);
  dibs_close(a);
}

static void a_client_that_opens_one_tier_alone_is_refused(void **state) {
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

static void strict_never_has_two_holders(void **state) {
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
  assert_true(alive_then); /* the grant waited */
  assert_int_equal(dibs_lease_alive(held), 0);
  assert_true(dibs_lease_fence(next).value > dibs_lease_fence(held).value);
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
    assert_true(dibs_lease_fence(lease).value > last);
    last = dibs_lease_fence(lease).value;
    give(lease);
  }
  servers("resume", "redis");
  until_on(all[0], 0);
  for (int i = 0; i < CLIENTS; i++) {
    dibs_lease *lease = take_in_the_end(all[i], "n");
    assert_true(dibs_lease_fence(lease).value > last);
    last = dibs_lease_fence(lease).value;
    give(lease);
    dibs_close(all[i]);
  }
}

int main(int argc, char **argv) {
  if (argc < 2) return 77;
  dibs__driver_add(&dibs__fault_driver);
  redis_uri = argv[1];
  snprintf(folder, sizeof folder, "/tmp/dibs-tiers-XXXXXX");
  if (!mkdtemp(folder)) return 1;
#define CASE(f) cmocka_unit_test_setup(f, begin)
  const struct CMUnitTest tests[] = {
      CASE(a_holder_keeps_its_lease_when_its_bucket_moves),
      CASE(no_failure_of_the_anchor_moves_its_buckets_without_their_holders),
      CASE(a_holder_learns_that_its_tier_was_opened_by_hand),
      CASE(a_lease_used_from_an_offer_has_its_tier),
      CASE(a_waiter_keeps_waiting_on_the_new_tier),
      CASE(the_anchor_replaces_a_killed_redis_and_returns_the_buckets),
      CASE(a_waiter_survives_the_death_of_redis),
      CASE(a_wait_that_begins_while_redis_is_dead_is_served),
      CASE(an_emptied_redis_gets_the_next_epoch),
      CASE(an_old_dump_gets_the_next_epoch),
      CASE(a_client_with_a_wrong_password_moves_nothing),
      CASE(a_client_that_opens_one_tier_alone_is_refused),
      CASE(a_tenth_of_the_buckets_is_rolled_out),
      CASE(strict_never_has_two_holders),
      CASE(many_clients_move_together),
  };
  if (argc > 2) cmocka_set_test_filter(argv[2]);
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  char text[128];
  snprintf(text, sizeof text, "rm -rf '%s'", folder);
  return system(text) == 0 ? failed : 1;
}

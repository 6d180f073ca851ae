/* SPDX-License-Identifier: MIT */
/*
 * Tiers and metrics as a program sees them. The tiers are files in a folder of the test's own; the fault shim makes the
 * first tier fail where a case needs that.
 */
#include "dibs/admin.h"
#include "support/records.h"
#include "unit.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char folder[64], lone[128], tiers[256];

static int make_folder(void **state) {
  (void)state;
  snprintf(folder, sizeof folder, "/tmp/dibs-fleet.XXXXXX");
  if (!mkdtemp(folder)) return -1;
  snprintf(lone, sizeof lone, "sqlite:%s/lone.db", folder);
  snprintf(tiers, sizeof tiers, "sqlite:%s/a.db,sqlite:%s/b.db", folder, folder);
  return 0;
}

static int remove_folder(void **state) {
  char command[128];
  (void)state;
  snprintf(command, sizeof command, "rm -rf '%s'", folder);
  return system(command);
}

static dibs_store *opened(const char *uri) {
  dibs_store *store;
  dibs_error error;
  if (dibs_open(uri, NULL, &store, &error) != DIBS_OK) fail_msg("%s: %s", uri, error.text);
  return store;
}

#define FINE(call)                                                                                                     \
  do {                                                                                                                 \
    dibs_status fine = (call);                                                                                         \
    if (fine != DIBS_OK) fail_msg("%s: %s, %s", #call, dibs_status_name(fine), error.text);                            \
  } while (0)

static uint64_t lease_once(dibs_store *store, const char *name) {
  dibs_lease *lease;
  dibs_error error;
  dibs_lease_options options = {.size = sizeof options, .wait_ms = LONG_MS};
  FINE(dibs_acquire(store, name, &options, &lease, &error));
  uint64_t fence = dibs_lease_fence(lease).value;
  FINE(dibs_release(lease, &error));
  dibs_lease_free(lease);
  return fence;
}

/* ---- Metrics ---- */

static int64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

struct metrics {
  size_t count, tiers;
  uint64_t value[32]; /* of the metrics that are searched */
  dibs_latency acquire, release;
  dibs_sizes batches;
  size_t strategies;
  char strategy[4][32]; /* "sqlite-2 sqlite" */
  uint64_t granted[4];  /* by it */
};

static const char *const wanted[] = {"acquired", "busy", "timeout",  "failed",      "lost",
                                     "stale",    "held", "fallback", "lost_in_time"};
enum { ACQUIRED, BUSY, TIMED_OUT, FAILED, LOST, STALE, HELD, FALLBACK, LOST_IN_TIME };

static int keep(const dibs_metric *metric, void *user) {
  struct metrics *m = user;
  m->count++;
  assert_true(metric->size == sizeof *metric && metric->help[0] != '\0');
  for (const char *p = metric->name; *p; p++)
    assert_true((*p >= 'a' && *p <= 'z') || *p == '_' || (*p >= '0' && *p <= '9'));
  assert_int_equal(metric->kind == DIBS_LATENCY, metric->latency != NULL);
  assert_int_equal(metric->kind == DIBS_SIZES, metric->sizes != NULL);
  assert_int_equal(strcmp(metric->name, "granted_by") == 0, metric->strategy != NULL);
  if (metric->strategy) {
    assert_true(m->strategies < COUNT_OF(m->strategy));
    snprintf(m->strategy[m->strategies], sizeof m->strategy[0], "%s %s", metric->tier, metric->strategy);
    m->granted[m->strategies++] = metric->value;
    return 0;
  }
  if (metric->sizes) m->batches = *metric->sizes;
  if (metric->tier) m->tiers++;
  if (strcmp(metric->name, "acquire") == 0) m->acquire = *metric->latency;
  if (strcmp(metric->name, "release") == 0) m->release = *metric->latency;
  for (size_t i = 0; i < COUNT_OF(wanted); i++)
    if (strcmp(metric->name, wanted[i]) == 0) m->value[i] = metric->value;
  return 0;
}

static struct metrics metrics_of(dibs_store *store) {
  struct metrics m = {0};
  dibs_error error;
  FINE(dibs_metrics(store, keep, &m, &error));
  return m;
}

static void a_single_store_counts_the_outcomes_of_leases(void **state) {
  (void)state;
  dibs_error error;
  dibs_store *store = opened(lone), *other = opened(lone);
  dibs_lease *held, *refused;
  dibs_lease_options options = {.size = sizeof options};
  for (int i = 0; i < 10; i++) lease_once(store, "name");
  FINE(dibs_acquire(other, "name", &options, &held, &error));
  for (int i = 0; i < 3; i++) assert_int_equal(dibs_acquire(store, "name", &options, &refused, &error), DIBS_HELD);
  options.wait_ms = 30;
  assert_int_equal(dibs_acquire(store, "name", &options, &refused, &error), DIBS_TIMEOUT);
  struct metrics m = metrics_of(store);
  assert_int_equal(m.value[ACQUIRED], 10);
  assert_int_equal(m.value[BUSY], 3);
  assert_int_equal(m.value[TIMED_OUT], 1);
  assert_int_equal(m.value[FAILED] + m.value[LOST] + m.value[STALE] + m.value[HELD], 0);
  assert_int_equal(m.tiers, 0);
  assert_true(m.strategies == 1 && m.granted[0] == 10);
  assert_string_equal(m.strategy[0], "sqlite sqlite");
  assert_true(m.acquire.count == 10 && m.release.count == 10);
  for (int i = 1; i < DIBS_LATENCY_STEPS; i++) assert_true(m.acquire.steps[i] >= m.acquire.steps[i - 1]);
  assert_true(m.acquire.steps[DIBS_LATENCY_STEPS - 1] == 10);
  assert_true(m.acquire.p50 > 0 && m.acquire.p50 <= m.acquire.p99 && m.acquire.p99 <= m.acquire.max);
  assert_true(m.acquire.sum >= m.acquire.max);
  assert_int_equal(metrics_of(other).value[HELD], 1);
  dibs_lease_free(held);
  dibs_close(other);
  dibs_close(store);
}

static void a_loss_that_is_noticed_in_time_is_counted(void **state) {
  (void)state;
  dibs_error error;
  dibs_store *store = opened(lone), *other = opened(lone);
  dibs_lease *lease;
  dibs_lease_options options = {.size = sizeof options, .ttl_ms = 3600000};
  FINE(dibs_acquire(store, "broken", &options, &lease, &error));
  FINE(dibs_break(other, "broken", NULL, &error));
  assert_int_equal(dibs_renew(lease, 0, &error), DIBS_LOST);
  struct metrics m = metrics_of(store);
  assert_true(m.value[LOST] == 1 && m.value[LOST_IN_TIME] == 1);
  dibs_lease_free(lease);
  FINE(dibs_acquire(store, "short",
                    &(dibs_lease_options){.size = sizeof options, .ttl_ms = 100, .flags = DIBS_NO_RENEW}, &lease,
                    &error));
  int64_t by = now_ms() + LONG_MS;
  while (dibs_lease_alive(lease) && now_ms() < by) usleep(10000);
  while (metrics_of(store).value[LOST] == 1 && now_ms() < by) usleep(10000);
  m = metrics_of(store);
  assert_true(m.value[LOST] == 2 && m.value[LOST_IN_TIME] >= 1);
  dibs_lease_free(lease);
  dibs_close(other);
  dibs_close(store);
}

enum { TOGETHER = 20 };

static void count_answer(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  (void)lease, (void)error;
  assert_int_equal(status, DIBS_OK);
  atomic_fetch_add((atomic_int *)user, 1);
}

static void the_sizes_of_batches_are_counted(void **state) {
  (void)state;
  dibs_error error;
  dibs_store *store = opened(lone);
  dibs_lease *leases[TOGETHER];
  atomic_int answered = 0;
  struct metrics before = metrics_of(store);
  for (int i = 0; i < TOGETHER; i++) {
    char name[16];
    snprintf(name, sizeof name, "batch-%d", i);
    FINE(dibs_acquire_start(store, name, NULL, count_answer, &answered, &leases[i], &error));
  }
  int64_t by = now_ms() + LONG_MS;
  while (atomic_load(&answered) < TOGETHER && now_ms() < by) usleep(10000);
  struct metrics m = metrics_of(store);
  assert_true(m.batches.sum >= before.batches.sum + TOGETHER && m.batches.count > before.batches.count);
  assert_true(m.batches.max >= 1 && m.batches.steps[0] <= m.batches.steps[1]);
  assert_int_equal(m.batches.steps[DIBS_SIZES_STEPS - 1], m.batches.count);
  for (int i = 0; i < TOGETHER; i++) dibs_lease_free(leases[i]);
  dibs_close(store);
}

static void writes_that_are_too_late_are_counted(void **state) {
  (void)state;
  dibs_error error;
  dibs_store *store = opened(lone);
  dibs_lease *old, *young;
  char *data;
  size_t length;
  dibs_lease_options options = {.size = sizeof options, .wait_ms = LONG_MS};
  FINE(dibs_acquire(store, "work", &options, &old, &error));
  FINE(dibs_release(old, &error));
  FINE(dibs_acquire(store, "work", &options, &young, &error));
  FINE(record_seal(store, "row", young, &data, &length, &error));
  free(data);
  for (int i = 0; i < 2; i++) assert_int_equal(record_save(store, "row", old, "x", 1, &error), DIBS_STALE);
  assert_int_equal(metrics_of(store).value[STALE], 2);
  dibs_lease_free(old);
  dibs_lease_free(young);
  dibs_close(store);
}

static void waiting_is_part_of_acquiring(void **state) {
  (void)state;
  dibs_error error;
  dibs_store *store = opened("memory:");
  dibs_lease *first;
  dibs_lease_options options = {.size = sizeof options, .ttl_ms = 200, .flags = DIBS_NO_RENEW};
  FINE(dibs_acquire(store, "slow", &options, &first, &error));
  lease_once(store, "slow"); /* when the ttl ends */
  struct metrics m = metrics_of(store);
  assert_true(m.acquire.count == 2 && m.acquire.max >= 150000000 && m.acquire.steps[17] == 1);
  dibs_lease_free(first);
  dibs_close(store);
}

/* ---- Tiers ---- */

struct seen {
  size_t tiers, clients;
  dibs_tier_info tier[DIBS_TIERS_MAX];
  char name[DIBS_TIERS_MAX][32];
  dibs_tier_client us;
};

static int see_tier(const dibs_tier_info *tier, void *user) {
  struct seen *seen = user;
  assert_int_equal(tier->tier, seen->tiers);
  snprintf(seen->name[seen->tiers], sizeof seen->name[0], "%s", tier->name);
  seen->tier[seen->tiers++] = *tier;
  return 0;
}

static int see_client(const dibs_tier_client *client, void *user) {
  struct seen *seen = user;
  seen->clients++;
  if (client->us) seen->us = *client;
  return 0;
}

static struct seen look(dibs_store *store, dibs_tiers_info *info) {
  struct seen seen = {0};
  dibs_error error;
  *info = (dibs_tiers_info){.size = sizeof *info};
  FINE(dibs_tiers(store, info, see_tier, see_client, &seen, &error));
  assert_int_equal(seen.tiers, info->tiers);
  return seen;
}

/* Polls until the second tier serves this many buckets. */
static struct seen until_anchor_serves(dibs_store *store, uint32_t buckets) {
  dibs_tiers_info info;
  int64_t by = now_ms() + LONG_MS;
  for (;;) {
    struct seen seen = look(store, &info);
    if (seen.tier[1].buckets == buckets) return seen;
    if (now_ms() > by) fail_msg("the anchor serves %u buckets, expected %u", seen.tier[1].buckets, buckets);
    usleep(20000);
  }
}

static void the_tiers_of_a_store_are_listed(void **state) {
  (void)state;
  dibs_tiers_info info;
  dibs_store *store = opened(tiers);
  lease_once(store, "a");
  struct seen seen = look(store, &info);
  assert_int_equal(info.tiers, 2);
  assert_int_equal(info.clients, 1);
  assert_int_equal(info.pinned, -1);
  assert_int_equal(info.on_their_own, 0);
  assert_int_equal(info.strictness, DIBS_STRICTNESS_FENCED);
  assert_true(info.confirmed_ms >= 0 && info.confirmed_ms < LONG_MS);
  assert_int_equal(info.here[DIBS_TIERS_ACQUIRED], 1);
  assert_int_equal(info.all[DIBS_TIERS_ACQUIRED], 1);
  assert_string_equal(seen.name[0], "sqlite");
  assert_string_equal(seen.name[1], "sqlite-2");
  assert_int_equal(seen.tier[0].buckets, 100);
  assert_int_equal(seen.tier[0].wanted, 100);
  assert_int_equal(seen.tier[0].active, 1);
  assert_int_equal(seen.tier[0].breaker, DIBS_BREAKER_CLOSED);
  assert_true(seen.tier[0].operations >= 2 && seen.tier[0].p50_ns > 0);
  assert_true(seen.tier[0].turned_ms == -1);
  assert_int_equal(seen.clients, 1);
  assert_int_equal(seen.us.tiers, 2);
  assert_int_equal(seen.us.active[0], 1);
  struct metrics m = metrics_of(store);
  assert_int_equal(m.value[ACQUIRED], 1);
  assert_true(m.tiers >= 20); /* the same number on each of the two */
  /* The struct of an older program, and NULL. */
  dibs_error error;
  dibs_tiers_info small;
  memset(&small, 0x55, sizeof small);
  small.size = offsetof(dibs_tiers_info, clients);
  FINE(dibs_tiers(store, &small, NULL, NULL, NULL, &error));
  assert_true(small.tiers == 2 && small.clients == 0x55555555);
  dibs_close(store);
}

static void moves_and_flags_are_followed(void **state) {
  (void)state;
  uint32_t percent;
  dibs_error error;
  dibs_tiers_info info;
  dibs_store *store = opened(tiers), *other = opened(tiers);
  uint64_t fence = lease_once(other, "a");
  FINE(dibs_tier_move(store, "sqlite-2", &error));
  until_anchor_serves(store, 100);
  look(store, &info);
  assert_int_equal(info.pinned, 1);
  assert_true(lease_once(other, "a") > fence);
  fence = lease_once(other, "a");
  FINE(dibs_tier_move(store, NULL, &error));
  until_anchor_serves(store, 0);
  assert_true(lease_once(other, "a") > fence);
  FINE(dibs_flag_set(store, "sqlite.enabled", 10, &error));
  FINE(dibs_flag_get(other, "sqlite.enabled", &percent, &error));
  assert_int_equal(percent, 10);
  until_anchor_serves(other, 90);
  FINE(dibs_flag_set(other, "sqlite.enabled", 100, &error));
  FINE(dibs_tier_switch(store, "0", DIBS_HAND_OPEN, &error));
  assert_int_equal(until_anchor_serves(store, 100).tier[0].hand, DIBS_HAND_OPEN);
  FINE(dibs_tier_switch(store, "sqlite", DIBS_HAND_AUTO, &error));
  until_anchor_serves(store, 0);
  fence = lease_once(store, "a");
  FINE(dibs_tier_bump(store, (dibs_fence){0}, &error));
  assert_true(lease_once(store, "a") > fence);
  dibs_strictness strictness;
  for (int s = DIBS_STRICTNESS_LEAST; s >= 0; s--) {
    FINE(dibs_strictness_set(store, (dibs_strictness)s, &error));
    FINE(dibs_strictness_get(other, &strictness, &error));
    assert_int_equal(strictness, s);
  }
  dibs_close(other);
  dibs_close(store);
}

static int count_flag(const char *name, uint32_t percent, void *user) {
  assert_true(name[0] != '\0' && percent <= 100);
  ++*(int *)user;
  return 0;
}

static void mistakes_are_refused_with_a_message(void **state) {
  (void)state;
  int flags = 0;
  uint32_t percent;
  dibs_error error;
  dibs_strictness strictness;
  dibs_store *store = opened(tiers), *alone = opened(lone);
  FINE(dibs_flags(store, count_flag, &flags, &error));
  assert_int_equal(flags, 4);
  assert_int_equal(dibs_flag_set(store, "redis.enabled", 1, &error), DIBS_INVALID);
  assert_non_null(strstr(error.text, "sqlite.enabled, circuit-breaker.enabled"));
  assert_ptr_equal(strstr(error.text, "there is no flag"), error.text); /* not about the store, which works */
  assert_int_equal(dibs_flag_get(store, "redis.enabled", &percent, &error), DIBS_INVALID);
  assert_int_equal(dibs_flag_set(store, "sqlite.enabled", 101, &error), DIBS_INVALID);
  assert_int_equal(dibs_tier_move(store, "redis", &error), DIBS_INVALID);
  assert_non_null(strstr(error.text, "sqlite, sqlite-2"));
  assert_int_equal(dibs_tier_switch(store, "2", DIBS_HAND_OPEN, &error), DIBS_INVALID);
  assert_int_equal(dibs_tier_switch(store, "0", (dibs_hand)3, &error), DIBS_INVALID);
  assert_int_equal(dibs_tier_bump(store, (dibs_fence){UINT64_C(1) << 53}, &error), DIBS_INVALID);
  assert_int_equal(dibs_tier_bump(store, (dibs_fence){(UINT64_C(1) << 53) - 1}, &error), DIBS_INVALID);
  assert_int_equal(dibs_strictness_set(store, (dibs_strictness)3, &error), DIBS_INVALID);
  dibs_tiers_info bad = {0};
  assert_int_equal(dibs_tiers(store, &bad, NULL, NULL, NULL, &error), DIBS_INVALID);
  /* On one store. */
  assert_int_equal(dibs_tiers(alone, NULL, NULL, NULL, NULL, &error), DIBS_UNSUPPORTED);
  assert_non_null(strstr(error.text, "comma"));
  assert_int_equal(dibs_flags(alone, count_flag, &flags, &error), DIBS_UNSUPPORTED);
  assert_int_equal(dibs_flag_get(alone, "x", &percent, &error), DIBS_UNSUPPORTED);
  assert_int_equal(dibs_flag_set(alone, "x", 0, &error), DIBS_UNSUPPORTED);
  assert_int_equal(dibs_tier_move(alone, NULL, &error), DIBS_UNSUPPORTED);
  assert_int_equal(dibs_tier_switch(alone, "0", DIBS_HAND_OPEN, &error), DIBS_UNSUPPORTED);
  assert_int_equal(dibs_tier_bump(alone, (dibs_fence){0}, &error), DIBS_OK);
  assert_int_equal(dibs_strictness_get(alone, &strictness, &error), DIBS_UNSUPPORTED);
  assert_int_equal(dibs_strictness_set(alone, DIBS_STRICTNESS_STRICT, &error), DIBS_UNSUPPORTED);
  dibs_close(alone);
  dibs_close(store);
}

/* The breaker needs some failures, and the only client is the majority of the fleet. */
static void a_tier_that_fails_is_left_and_reported_to_be_down(void **state) {
  (void)state;
  char uri[512];
  dibs_error error;
  dibs_tiers_info info;
  snprintf(uri, sizeof uri,
           "fault+sqlite:%s/fault-a.db?fault.nth=8&fault.how=unavailable&fault.forever=1,"
           "sqlite:%s/fault-b.db?tiers.wait=100&tiers.min_calls=3",
           folder, folder);
  dibs_store *store = opened(uri);
  for (int i = 0; i < 30; i++) { /* a lease that it cannot release ends with its ttl */
    char name[16];
    dibs_lease *lease;
    dibs_lease_options options = {.size = sizeof options, .wait_ms = LONG_MS};
    snprintf(name, sizeof name, "a%d", i);
    FINE(dibs_acquire(store, name, &options, &lease, &error));
    (void)dibs_release(lease, &error);
    dibs_lease_free(lease);
  }
  struct seen seen = until_anchor_serves(store, 100);
  look(store, &info);
  assert_int_equal(seen.tier[0].down, 1);
  assert_int_equal(seen.tier[0].buckets, 0);
  assert_true(seen.tier[0].turned_ms >= 0 && seen.tier[0].failures > 0 && seen.tier[0].dwell_ms == 10000);
  assert_true(info.here[DIBS_TIERS_TURNS] >= 1 && info.here[DIBS_TIERS_FALLBACK] >= 1 &&
              info.here[DIBS_TIERS_MOVES] == 100);
  struct metrics m = metrics_of(store);
  assert_true(m.value[FALLBACK] >= 1);
  assert_true(m.strategies == 2 && m.granted[1] >= 1 && m.granted[0] + m.granted[1] == m.value[ACQUIRED]);
  /* Closed by hand, the tier is used again although it fails. */
  FINE(dibs_tier_switch(store, "sqlite", DIBS_HAND_CLOSED, &error));
  look(store, &info);
  assert_int_equal(info.strictness, DIBS_STRICTNESS_FENCED);
  dibs_close(store);
}

static void tiers_are_made_stores_of_their_own_again(void **state) {
  (void)state;
  char first[128];
  uint32_t percent;
  dibs_error error;
  dibs_lease *lease;
  dibs_lease_options options = {.size = sizeof options};
  snprintf(first, sizeof first, "sqlite:%s/a.db", folder);
  dibs_store *store = opened(tiers);
  uint64_t fence = lease_once(store, "a");
  dibs_store *alone = opened(first);
  assert_int_equal(dibs_acquire(alone, "a", &options, &lease, &error), DIBS_DENIED);
  FINE(dibs_tier_dissolve(store, &error));
  dibs_close(store);
  assert_true(lease_once(alone, "a") > fence);
  dibs_close(alone);
  /* This also works for one member alone. */
  store = opened(tiers);
  FINE(dibs_tier_bump(store, (dibs_fence){0}, &error));
  FINE(dibs_flag_set(store, "fallback.enabled", 0, &error));
  /* A client used the anchor alone meanwhile: names stay on the anchor until a flag changes that. */
  FINE(dibs_flag_get(store, "sqlite.enabled", &percent, &error));
  assert_int_equal(percent, 0);
  FINE(dibs_flag_set(store, "sqlite.enabled", 100, &error));
  until_anchor_serves(store, 0);
  fence = lease_once(store, "b");
  dibs_close(store);
  alone = opened(first);
  assert_int_equal(dibs_acquire(alone, "b", &options, &lease, &error), DIBS_DENIED);
  FINE(dibs_tier_dissolve(alone, &error));
  assert_true(lease_once(alone, "b") > fence);
  dibs_close(alone);
  /* Dissolving the anchor alone forgets the state of its tiers. */
  snprintf(first, sizeof first, "sqlite:%s/b.db", folder);
  alone = opened(first);
  FINE(dibs_tier_dissolve(alone, &error));
  FINE(dibs_tier_dissolve(alone, &error)); /* a repetition also succeeds */
  dibs_close(alone);
  store = opened(tiers);
  FINE(dibs_flag_get(store, "fallback.enabled", &percent, &error));
  assert_int_equal(percent, 100);
  dibs_close(store);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_single_store_counts_the_outcomes_of_leases),
      cmocka_unit_test(a_loss_that_is_noticed_in_time_is_counted),
      cmocka_unit_test(the_sizes_of_batches_are_counted),
      cmocka_unit_test(writes_that_are_too_late_are_counted),
      cmocka_unit_test(waiting_is_part_of_acquiring),
      cmocka_unit_test(the_tiers_of_a_store_are_listed),
      cmocka_unit_test(moves_and_flags_are_followed),
      cmocka_unit_test(mistakes_are_refused_with_a_message),
      cmocka_unit_test(a_tier_that_fails_is_left_and_reported_to_be_down),
      cmocka_unit_test(tiers_are_made_stores_of_their_own_again),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

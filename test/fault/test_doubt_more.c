/* SPDX-License-Identifier: MIT */
/*
 * Records, once keys and leases after unknown outcomes: the answer to a request whose connection broke, and the effect
 * of a request that lands late, after other clients' requests.
 */
#include "doubt_bed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect_at(int line, dibs_status got, dibs_status want) {
  if (got != want)
    fail_msg("line %d: %s, expected %s: %s", line, dibs_status_name(got), dibs_status_name(want), reported.text);
}
#define EXPECT(got, want) expect_at(__LINE__, got, want)

/* ---- Records by version ---- */

/* In dibs' own table one packet locks and reads the row and the next one writes it; in a user's table one statement
 * does both. Each contains the key. */
struct position {
  dibs_table *table;
  unsigned commits;
};

static dibs_status put_text(dibs_store *store, const struct position *position, const char *key, const char *version,
                            const char *text) {
  dibs_record_options how = {.size = sizeof how, .table = position->table, .if_version = version};
  if (!version) how.flags = DIBS_IF_ABSENT;
  dibs_value value = {text, strlen(text)};
  result = (dibs_record_result){.size = sizeof result};
  return dibs_record_put(store, key, &value, 1, &how, &result, &reported);
}

static const char *version_of(const struct position *position, const char *key) {
  const dibs_record *record = get(straight, key, DIBS_OK, .table = position->table);
  return record->version;
}

static bool has(const struct position *position, const char *key, const char *text) {
  const dibs_record *record = get(straight, key, DIBS_OK, .table = position->table);
  return strcmp(record->values[0].data, text) == 0;
}

/* A record at its first version, after each kind of write went once through the proxy. */
static const char *record(const struct position *position) {
  const char *key = fresh("record");
  if (position->table) sql("INSERT INTO doubt (k, v, t) VALUES ('%s', 1, 'zero')", key);
  if (!position->table) EXPECT(put_text(straight, position, key, NULL, "zero"), DIBS_OK);
  EXPECT(put_text(through, position, key, version_of(position, key), "one"), DIBS_OK);
  return key;
}

static void put_cut_before(const struct position *position) {
  const char *key = record(position), *version = version_of(position, key);
  breaks("cut-before-request", position->commits, key, 0);
  EXPECT(put_text(through, position, key, version, "two"), DIBS_UNKNOWN);
  fired();
  assert_true(has(position, key, "one"));
  EXPECT(put_text(through, position, key, version, "two"), DIBS_OK);
  assert_true(has(position, key, "two"));
}

static void put_cut_after(const struct position *position) {
  const char *key = record(position), *version = version_of(position, key);
  breaks("cut-after-request", position->commits, key, 0);
  EXPECT(put_text(through, position, key, version, "two"), DIBS_UNKNOWN);
  fired();
  assert_true(has(position, key, "two"));
  EXPECT(put_text(through, position, key, version, "three"), DIBS_CONFLICT);
  assert_string_equal(result.version, version_of(position, key));
  assert_true(has(position, key, "two"));
}

/* The first write wins; the other one changes nothing, and its answer reports that. */
static void put_races_another(const struct position *position) {
  const char *key = record(position), *version = version_of(position, key);
  breaks("orphan-request", position->commits, key, LATE_MS);
  EXPECT(put_text(through, position, key, version, "late"), DIBS_UNKNOWN);
  dibs_status status = put_text(straight, position, key, version, "other");
  landed();
  if (status == DIBS_OK) {
    assert_true(has(position, key, "other"));
    assert_string_equal(result.version, version_of(position, key));
  } else {
    EXPECT(status, DIBS_CONFLICT);
    assert_true(has(position, key, "late"));
  }
  EXPECT(put_text(through, position, key, version, "again"), DIBS_CONFLICT);
}

static void removal_races_a_put(const struct position *position) {
  const char *key = record(position), *version = version_of(position, key);
  dibs_record_options how = {.size = sizeof how, .table = position->table, .if_version = version};
  breaks("orphan-request", position->commits, key, LATE_MS);
  EXPECT(dibs_record_remove(through, key, &how, NULL, &reported), DIBS_UNKNOWN);
  dibs_status status = put_text(straight, position, key, version, "other");
  landed();
  if (status == DIBS_OK)
    assert_true(has(position, key, "other"));
  else
    get(straight, key, DIBS_NOT_FOUND, .table = position->table);
}

/* A holder's save lands after the next holder's seal. */
static void late_save_after_a_seal(const struct position *position) {
  const char *key = record(position), *name = fresh("writer");
  dibs_lease_options short_one = {.size = sizeof short_one, .ttl_ms = 2000, .flags = DIBS_NO_RENEW};
  dibs_lease *late = NULL, *next = NULL;
  EXPECT(dibs_acquire(through, name, &short_one, &late, &reported), DIBS_OK);
  const dibs_value value = {"late", 4};
  dibs_record_options as_late = {.size = sizeof as_late, .table = position->table, .lease = late};
  breaks("orphan-request", position->commits, key, LATE_MS);
  EXPECT(dibs_record_put(through, key, &value, 1, &as_late, NULL, &reported), DIBS_UNKNOWN);
  EXPECT(dibs_release(late, &reported), DIBS_OK);
  EXPECT(dibs_acquire(straight, name, &short_one, &next, &reported), DIBS_OK);
  assert_true(dibs_lease_fence(next).value > dibs_lease_fence(late).value);
  const dibs_record *sealed = get(straight, key, DIBS_OK, .table = position->table, .lease = next);
  const char *seen = sealed->values[0].data; /* "one", or "late" if the seal waited for its lock */
  landed();
  assert_true(has(position, key, seen));
  EXPECT(dibs_record_put(through, key, &value, 1, &as_late, NULL, &reported), DIBS_STALE);
  assert_true(has(position, key, seen));
  dibs_lease_free(late);
  dibs_lease_free(next);
}

static void each_position(void (*test)(const struct position *position)) {
  make_table("doubt", "k VARCHAR(80) PRIMARY KEY, v %s NOT NULL, f %s, o %s, t VARCHAR(80)", engine->number,
             engine->number, engine->number);
  dibs_table *table = TABLE(.table = "doubt", .key = "k", .version = "v", .fence = "f", .owner = "o", .columns = "t");
  test(&(struct position){NULL, 2});
  test(&(struct position){table, 1});
}
#define EACH_POSITION(name)                                                                                            \
  static void name##_each(void **state) {                                                                              \
    (void)state;                                                                                                       \
    each_position(name);                                                                                               \
  }
EACH_POSITION(put_cut_before)
EACH_POSITION(put_cut_after)
EACH_POSITION(put_races_another)
EACH_POSITION(removal_races_a_put)
EACH_POSITION(late_save_after_a_seal)

/* ---- Once ---- */

/* The work of a key: breaks the request that stores its answer, the next request with the key. */
struct work {
  const char *key, *how, *answer;
  int ms, ran;
  bool waits; /* until the broken request has landed */
};

static dibs_status do_work(dibs_lease *lease, char **answer, size_t *length, void *user) {
  struct work *work = user;
  (void)lease;
  work->ran++;
  if (work->how) breaks(work->how, 1, work->key, work->ms);
  if (work->waits) landed();
  *answer = strdup(work->answer);
  *length = *answer ? strlen(*answer) : 0;
  return *answer ? DIBS_OK : DIBS_NO_MEMORY;
}

static char answered[80];
static dibs_status once(dibs_store *store, struct work *work, int64_t wait_ms) {
  dibs_once_options how = {.size = sizeof how, .wait_ms = wait_ms, .ttl_ms = 3000};
  char *answer = NULL;
  size_t length = 0;
  dibs_status status = dibs_once(store, work->key, &how, do_work, work, &answer, &length, &reported);
  snprintf(answered, sizeof answered, "%s", answer ? answer : "");
  free(answer);
  return status;
}

/* All callers after the first one get the same answer, for every outcome of the first. */
static void once_in_doubt(const char *how, int ms) {
  const char *key = fresh("once");
  struct work first = {.key = key, .how = how, .ms = ms, .answer = "first"}, second = {.key = key, .answer = "second"};
  dibs_status told = once(through, &first, 5000);
  if (told != DIBS_UNKNOWN) EXPECT(told, DIBS_OK);
  EXPECT(once(straight, &second, 5000), DIBS_REPLAY);
  assert_string_equal(answered, "first");
  if (ms) landed();
  if (!ms) fired();
  EXPECT(once(straight, &second, 0), DIBS_REPLAY);
  assert_string_equal(answered, "first");
  EXPECT(once(through, &second, 0), DIBS_REPLAY);
  assert_string_equal(answered, "first");
  assert_int_equal(first.ran, 1);
  assert_int_equal(second.ran, 0);
}

static void once_cut_before(void **state) {
  (void)state;
  once_in_doubt("cut-before-request", 0);
}
static void once_cut_after(void **state) {
  (void)state;
  once_in_doubt("cut-after-request", 0);
}
static void once_races_its_answer(void **state) {
  (void)state;
  once_in_doubt("orphan-request", LATE_MS);
}

/* An answer that lands late does not reappear after it was forgotten, and does not replace a newer one. */
static void once_answer_lands(bool while_another_runs) {
  const char *key = fresh("once");
  struct work first = {.key = key, .how = "orphan-request", .ms = 3 * LATE_MS, .answer = "first"};
  struct work second = {.key = key, .answer = "second", .waits = while_another_runs},
              third = {.key = key, .answer = "third"};
  dibs_status told = once(through, &first, 5000);
  if (told != DIBS_UNKNOWN) EXPECT(told, DIBS_OK);
  EXPECT(dibs_once_forget(straight, key, &reported), DIBS_OK);
  EXPECT(once(straight, &second, 5000), DIBS_OK);
  if (!while_another_runs) {
    assert_true(proxied_stat(proxy, "doomed") == 1); /* otherwise this tested nothing */
    landed();
  }
  assert_string_equal(answered, "second");
  EXPECT(once(straight, &third, 0), DIBS_REPLAY);
  assert_string_equal(answered, "second");
}

static void once_answer_lands_after_it_was_forgotten(void **state) {
  (void)state;
  once_answer_lands(false);
}

static void once_answer_lands_while_another_runs(void **state) {
  (void)state;
  once_answer_lands(true);
}

/* ---- Leases ---- */

static int keep_holder(const dibs_lease_info *info, void *user) {
  dibs_lease_info *kept = user;
  if (info->state == DIBS_HOLDS) {
    assert_int_equal(kept->size, 0);
    *kept = *info;
  }
  return 0;
}
static const dibs_lease_info *only_holder(const char *name) {
  static dibs_lease_info kept;
  kept = (dibs_lease_info){.size = 0};
  dibs_status status = dibs_show(straight, name, keep_holder, &kept, &reported);
  if (status != DIBS_NOT_FOUND) EXPECT(status, DIBS_OK);
  return kept.size ? &kept : NULL;
}

/* 0: no client holds it. */
static uint64_t fence_of_holder(const char *name) {
  const dibs_lease_info *holder = only_holder(name);
  return holder ? holder->fence.value : 0;
}

static const char id[] = "0123456789abcdef0123456789abcdef";

static dibs_status acquire(dibs_store *store, const char *name, const char *with, dibs_lease **lease) {
  dibs_lease_options how = {.size = sizeof how, .ttl_ms = 20000, .id = with, .flags = DIBS_NO_RENEW};
  return dibs_acquire(store, name, &how, lease, &reported);
}

/* A repetition with the same id finds the grant of the first request. */
static void acquire_cut_after(void **state) {
  (void)state;
  const char *name = fresh("lease");
  dibs_lease *lease = NULL, *other = NULL;
  breaks("cut-after-request", 1, name, 0);
  dibs_status status = acquire(through, name, id, &lease);
  fired();
  if (status != DIBS_OK) {
    EXPECT(status, DIBS_UNKNOWN);
    EXPECT(acquire(through, name, id, &lease), DIBS_OK);
  }
  assert_int_equal(fence_of_holder(name), dibs_lease_fence(lease).value);
  EXPECT(acquire(straight, name, NULL, &other), DIBS_HELD);
  EXPECT(dibs_release(lease, &reported), DIBS_OK);
  uint64_t fence = dibs_lease_fence(lease).value;
  dibs_lease_free(lease);
  EXPECT(acquire(straight, name, NULL, &other), DIBS_OK);
  assert_true(dibs_lease_fence(other).value > fence);
  dibs_lease_free(other);
}

static void acquire_lands_after_another_clients(void **state) {
  (void)state;
  const char *name = fresh("lease");
  dibs_lease *late = NULL, *other = NULL;
  breaks("orphan-request", 1, name, LATE_MS);
  dibs_status status = acquire(through, name, id, &late);
  dibs_status theirs = acquire(straight, name, NULL, &other);
  landed();
  if (status == DIBS_OK) {
    EXPECT(theirs, DIBS_HELD); /* the client repeated the request, and has the lease already */
    assert_int_equal(fence_of_holder(name), dibs_lease_fence(late).value);
  } else {
    if (status != DIBS_UNAVAILABLE) EXPECT(status, DIBS_UNKNOWN);
    EXPECT(theirs, DIBS_OK);
    assert_int_equal(fence_of_holder(name), dibs_lease_fence(other).value);
    EXPECT(dibs_renew(other, 0, &reported), DIBS_OK);
  }
  dibs_lease_free(late);
  dibs_lease_free(other);
}

/* A renewal or release that lands when another client has the name affects no client. */
static void late_one_finds_another_holder(const char *what) {
  const char *name = fresh("lease");
  dibs_lease *late = NULL, *adopted = NULL, *next = NULL;
  EXPECT(acquire(through, name, id, &late), DIBS_OK);
  breaks("orphan-request", 1, name, LATE_MS);
  dibs_status told = strcmp(what, "renew") == 0 ? dibs_renew(late, 20000, &reported) : dibs_release(late, &reported);
  EXPECT(dibs_lease_adopt(straight, name, id, dibs_lease_fence(late), NULL, &adopted, &reported), DIBS_OK);
  dibs_status released = dibs_release(adopted, &reported);
  if (released != DIBS_LOST) EXPECT(released, DIBS_OK); /* the library repeated the release */
  EXPECT(acquire(straight, name, NULL, &next), DIBS_OK);
  landed();
  if (told != DIBS_OK && told != DIBS_LOST) EXPECT(told, DIBS_UNKNOWN);
  assert_int_equal(fence_of_holder(name), dibs_lease_fence(next).value);
  assert_true(dibs_lease_fence(next).value > dibs_lease_fence(late).value);
  EXPECT(dibs_renew(next, 0, &reported), DIBS_OK);
  dibs_lease_free(late);
  dibs_lease_free(adopted);
  dibs_lease_free(next);
}
static void late_renewal_finds_another_holder(void **state) {
  (void)state;
  late_one_finds_another_holder("renew");
}
static void late_release_finds_another_holder(void **state) {
  (void)state;
  late_one_finds_another_holder("release");
}

int main(int argc, char *argv[]) {
  static const struct CMUnitTest tests[] = {
      DOUBT(put_cut_before_each),
      DOUBT(put_cut_after_each),
      DOUBT(put_races_another_each),
      DOUBT(removal_races_a_put_each),
      DOUBT(late_save_after_a_seal_each),
      DOUBT(once_cut_before),
      DOUBT(once_cut_after),
      DOUBT(once_races_its_answer),
      DOUBT(once_answer_lands_after_it_was_forgotten),
      DOUBT(once_answer_lands_while_another_runs),
      DOUBT(acquire_cut_after),
      DOUBT(acquire_lands_after_another_clients),
      DOUBT(late_renewal_finds_another_holder),
      DOUBT(late_release_finds_another_holder),
  };
  bed_begin(argc, argv);
  return cmocka_run_group_tests(tests, NULL, NULL);
}

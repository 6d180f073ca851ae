/* SPDX-License-Identifier: MIT */
/*
 * Stock after unknown outcomes: the connection is cut before, after and while the request that commits is on its way,
 * and the retry races the commit that lands late.  Each strategy commits with the request named below.
 */
#include "doubt_bed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The request that commits is the nth request with the claim: nothing reads the claim first. The stock's name
 * would not identify it, because the read and the surrounding lease contain it, too. */
static const struct way {
  dibs_strategy strategy;
  unsigned commits, by_key;
} ways[] = {{DIBS_COALESCED, 1, 1},  {DIBS_ATOMIC, 1, 1}, {DIBS_PESSIMISTIC, 1, 2},
            {DIBS_OPTIMISTIC, 1, 2}, {DIBS_NAMED, 1, 2},  {DIBS_FENCED, 1, 2}};
enum { WAYS = sizeof ways / sizeof ways[0], LIMIT = 10, AMOUNT = 3, GIVE_COMMITS = 2 };

static dibs_stock_result came;

static dibs_status take(dibs_store *store, const char *key, const char *claim, const struct way *way, uint32_t tries) {
  dibs_stock_options how = {.size = sizeof how, .claim = claim, .strategy = way->strategy, .tries = tries};
  came = (dibs_stock_result){.size = sizeof came};
  return dibs_stock_take(store, key, AMOUNT, &how, &came, &reported);
}

static dibs_status give(dibs_store *store, const char *key, const char *claim, uint32_t tries) {
  dibs_stock_options how = {.size = sizeof how, .tries = tries};
  came = (dibs_stock_result){.size = sizeof came};
  return dibs_stock_give(store, key, claim, &how, &came, &reported);
}

static void expect_at(int line, dibs_status got, dibs_status want) {
  if (got != want)
    fail_msg("line %d: %s, expected %s: %s", line, dibs_status_name(got), dibs_status_name(want), reported.text);
}
#define EXPECT(got, want) expect_at(__LINE__, got, want)

/* Takes and gives once without the proxy's triggers, so that all statements are prepared before the first request of a
 * case. */
static const char *stock(void) {
  const char *key = fresh("stock"), *claim = fresh("first");
  static const struct way plain = {DIBS_COALESCED, 1, 1};
  EXPECT(dibs_stock_set(straight, key, LIMIT, NULL, NULL, &reported), DIBS_OK);
  EXPECT(take(through, key, claim, &plain, 0), DIBS_OK);
  EXPECT(give(through, key, claim, 0), DIBS_OK);
  return key;
}

/* Compares the state: `used` of the stock, the sum of its claims, and how many rows the claim has. */
static void counts_at(int line, const char *key, const char *claim, int64_t want, int64_t rows) {
  dibs_stock_result now = {.size = sizeof now};
  EXPECT(dibs_stock_show(straight, key, NULL, &now, &reported), DIBS_OK);
  int64_t sum =
      atoll(cell("SELECT COALESCE(SUM(amount), 0) FROM %s WHERE stock = '%s' AND given = 0", own_table("claim"), key));
  int64_t there = atoll(cell("SELECT COUNT(*) FROM %s WHERE claim = '%s'", own_table("claim"), claim));
  if (now.used != want || sum != want || there != rows)
    fail_msg("line %d: used %lld, claims %lld, expected %lld; the claim has %lld rows, expected %lld", line,
             (long long)now.used, (long long)sum, (long long)want, (long long)there, (long long)rows);
}
#define COUNTS(key, claim, want, rows) counts_at(__LINE__, key, claim, want, rows)

/* ---- Takes ---- */

static void cut_before(const struct way *way) {
  const char *key = stock(), *claim = fresh("claim");
  breaks("cut-before-request", way->commits, claim, 0);
  EXPECT(take(through, key, claim, way, 1), DIBS_UNKNOWN);
  fired();
  COUNTS(key, claim, 0, 0);
  EXPECT(take(through, key, claim, way, 0), DIBS_OK);
  COUNTS(key, claim, AMOUNT, 1);
}

static void cut_after(const struct way *way) {
  const char *key = stock(), *claim = fresh("claim");
  breaks("cut-after-request", way->commits, claim, 0);
  EXPECT(take(through, key, claim, way, 1), DIBS_UNKNOWN);
  fired();
  COUNTS(key, claim, AMOUNT, 1);
  EXPECT(take(through, key, claim, way, 0), DIBS_REPLAY);
  assert_int_equal(came.got, AMOUNT);
  EXPECT(take(straight, key, claim, way, 0), DIBS_REPLAY);
  COUNTS(key, claim, AMOUNT, 1);
}

/* The library itself repeats the request, with a claim that only it knows. */
static void cut_after_and_repeated_by_the_library(const struct way *way) {
  const char *key = stock();
  breaks("cut-after-request", way->by_key, key, 0);
  EXPECT(take(through, key, NULL, way, 0), DIBS_OK);
  fired();
  assert_int_equal(came.got, AMOUNT);
  assert_true(came.retries > 0);
  COUNTS(key, came.claim, AMOUNT, 1);
}

static void retry_races_the_commit(const struct way *way) {
  const char *key = stock(), *claim = fresh("claim");
  breaks("orphan-request", way->commits, claim, LATE_MS);
  EXPECT(take(through, key, claim, way, 1), DIBS_UNKNOWN);
  dibs_status status = take(straight, key, claim, way, 0);
  if (status != DIBS_REPLAY)
    EXPECT(status, DIBS_OK); /* after waiting for the row lock it finds the effect of the first
                              * attempt */
  assert_int_equal(came.got, AMOUNT);
  landed();
  COUNTS(key, claim, AMOUNT, 1);
  EXPECT(take(through, key, claim, way, 0), DIBS_REPLAY);
  COUNTS(key, claim, AMOUNT, 1);
}

static void retry_by_the_library_races_the_commit(const struct way *way) {
  const char *key = stock(), *claim = fresh("claim");
  breaks("orphan-request", way->commits, claim, LATE_MS);
  dibs_status status = take(through, key, claim, way, 0);
  if (status != DIBS_REPLAY) EXPECT(status, DIBS_OK);
  landed();
  COUNTS(key, claim, AMOUNT, 1);
}

static void given_before_the_take_lands(const struct way *way) {
  const char *key = stock(), *claim = fresh("claim");
  breaks("orphan-request", way->commits, claim, LATE_MS);
  EXPECT(take(through, key, claim, way, 1), DIBS_UNKNOWN);
  dibs_status status = give(straight, key, claim, 0);
  if (status != DIBS_OK) EXPECT(status, DIBS_NOT_FOUND);
  landed();
  COUNTS(key, claim, 0, 1);
  EXPECT(take(through, key, claim, way, 0), DIBS_CONFLICT);
  COUNTS(key, claim, 0, 1);
}

static void taken_then_given_then_taken_again(const struct way *way) {
  const char *key = stock(), *claim = fresh("claim");
  breaks("cut-after-request", way->commits, claim, 0);
  EXPECT(take(through, key, claim, way, 1), DIBS_UNKNOWN);
  fired();
  EXPECT(give(straight, key, claim, 0), DIBS_OK);
  assert_int_equal(came.got, AMOUNT);
  EXPECT(take(through, key, claim, way, 0), DIBS_CONFLICT);
  COUNTS(key, claim, 0, 1);
}

/* Another client has taken the rest before the late request lands. */
static void full_before_the_take_lands(const struct way *way) {
  static const struct way other = {DIBS_COALESCED, 1, 1};
  const char *key = stock(), *claim = fresh("claim");
  int64_t taken = 0;
  breaks("orphan-request", way->commits, claim, LATE_MS);
  EXPECT(take(through, key, claim, way, 1), DIBS_UNKNOWN);
  while (take(straight, key, NULL, &other, 0) == DIBS_OK) taken += AMOUNT;
  landed();
  bool in = atoll(cell("SELECT COUNT(*) FROM %s WHERE claim = '%s'", own_table("claim"), claim)) == 1;
  COUNTS(key, claim, taken + (in ? AMOUNT : 0), in);
  assert_int_equal(taken + (in ? AMOUNT : 0), LIMIT / AMOUNT * AMOUNT);
  EXPECT(take(through, key, claim, way, 0), in ? DIBS_REPLAY : DIBS_FULL);
}

/* The retry finds FULL while the first attempt is still on its way, and units are free again when that lands. The
 * caller must not get an answer that says that nothing was taken. */
static void refused_before_the_take_lands(const struct way *way) {
  static const struct way other = {DIBS_COALESCED, 1, 1};
  const char *key = stock(), *claim = fresh("claim"), *others[LIMIT / AMOUNT];
  for (size_t i = 0; i < LIMIT / AMOUNT; i++)
    EXPECT(take(straight, key, others[i] = fresh("other"), &other, 0), DIBS_OK);
  breaks("orphan-request", way->commits, claim, LATE_MS);
  dibs_status status = take(through, key, claim, way, 0);
  EXPECT(give(straight, key, others[0], 0), DIBS_OK);
  landed();
  bool in = atoll(cell("SELECT COUNT(*) FROM %s WHERE claim = '%s'", own_table("claim"), claim)) == 1;
  COUNTS(key, claim, LIMIT / AMOUNT * AMOUNT - (in ? 0 : AMOUNT), in);
  EXPECT(status, DIBS_UNKNOWN);
  EXPECT(take(through, key, claim, way, 0), in ? DIBS_REPLAY : DIBS_OK);
  COUNTS(key, claim, LIMIT / AMOUNT * AMOUNT, 1);
}

#define EACH_WAY(name)                                                                                                 \
  static void name##_each(void **state) {                                                                              \
    (void)state;                                                                                                       \
    for (size_t i = 0; i < WAYS; i++) {                                                                                \
      name(&ways[i]);                                                                                                  \
    }                                                                                                                  \
  }
EACH_WAY(cut_before)
EACH_WAY(cut_after)
EACH_WAY(cut_after_and_repeated_by_the_library)
EACH_WAY(retry_races_the_commit)
EACH_WAY(retry_by_the_library_races_the_commit)
EACH_WAY(given_before_the_take_lands)
EACH_WAY(taken_then_given_then_taken_again)
EACH_WAY(full_before_the_take_lands)

static void refused_before_the_take_lands_each(void **state) {
  (void)state;
  refused_before_the_take_lands(&ways[0]);
  refused_before_the_take_lands(&ways[1]);
}

/* ---- Gives ---- */

static const char *taken(const char *key) {
  const char *claim = fresh("claim");
  EXPECT(take(straight, key, claim, &ways[0], 0), DIBS_OK);
  return claim;
}

static void give_cut_after(void **state) {
  (void)state;
  const char *key = stock(), *claim = taken(key), *other = taken(key);
  breaks("cut-after-request", GIVE_COMMITS, claim, 0);
  EXPECT(give(through, key, claim, 1), DIBS_UNKNOWN);
  fired();
  COUNTS(key, claim, AMOUNT, 1);
  EXPECT(give(through, key, claim, 0), DIBS_REPLAY);
  assert_int_equal(came.got, AMOUNT);
  COUNTS(key, other, AMOUNT, 1);
}

static void give_races_itself(void **state) {
  (void)state;
  const char *key = stock(), *claim = taken(key), *other = taken(key);
  breaks("orphan-request", GIVE_COMMITS, claim, LATE_MS);
  EXPECT(give(through, key, claim, 1), DIBS_UNKNOWN);
  dibs_status status = give(straight, key, claim, 0);
  if (status != DIBS_REPLAY) EXPECT(status, DIBS_OK);
  landed();
  COUNTS(key, claim, AMOUNT, 1);
  COUNTS(key, other, AMOUNT, 1);
}

/* The request is delayed, not lost: its client waits for it while another client sends the same request. */
static void delayed_take_and_its_repetition(void **state) {
  (void)state;
  for (size_t i = 0; i < WAYS; i++) {
    const char *key = stock(), *claim = fresh("claim");
    breaks("hold-request", ways[i].commits, claim, LATE_MS);
    dibs_status status = take(through, key, claim, &ways[i], 0);
    if (status != DIBS_REPLAY) EXPECT(status, DIBS_OK);
    fired();
    EXPECT(take(straight, key, claim, &ways[i], 0), DIBS_REPLAY);
    COUNTS(key, claim, AMOUNT, 1);
  }
}

int main(int argc, char *argv[]) {
  static const struct CMUnitTest tests[] = {
      DOUBT(cut_before_each),
      DOUBT(cut_after_each),
      DOUBT(cut_after_and_repeated_by_the_library_each),
      DOUBT(retry_races_the_commit_each),
      DOUBT(retry_by_the_library_races_the_commit_each),
      DOUBT(given_before_the_take_lands_each),
      DOUBT(taken_then_given_then_taken_again_each),
      DOUBT(full_before_the_take_lands_each),
      DOUBT(refused_before_the_take_lands_each),
      DOUBT(give_cut_after),
      DOUBT(give_races_itself),
      DOUBT(delayed_take_and_its_repetition),
  };
  bed_begin(argc, argv);
  return cmocka_run_group_tests(tests, NULL, NULL);
}

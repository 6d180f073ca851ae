/* SPDX-License-Identifier: MIT */
/* Stocks and their claims (R24 to R29, R54, R55). */
#include "base/text.h"
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dibs__stock_op stock;

enum { CLAIMS = 4096, PATIENCE_MS = 30000, TAKERS = 4, RACE_LIMIT = 60, WAITERS = 1000, ROUNDS = 150, ROUND_MOST = 24 };

/* ---- Operations ---- */

static struct party *stock_party(void) {
  struct party *p = party();
  if (!(p->identity.families & 1u << DIBS__FAM_STOCK)) skip();
  return p;
}

/* A claim of this case: the same number gives the same text. */
static dibs__str claim_of(int n) {
  static char texts[CLAIMS][33];
  dibs__id id = id_of(n);
  dibs__hex_write(id.b, texts[n % CLAIMS]);
  return dibs__str_of(texts[n % CLAIMS], 32);
}

static stock stock_op(enum dibs__stock_verb verb, const char *key, int64_t amount, int claim) {
  stock op = {.op = {.family = DIBS__FAM_STOCK, .verb = (uint16_t)verb}, .key = name_of(key), .amount = amount};
  op.op.flags = verb == DIBS__STOCK_READ ? DIBS__OP_READS : 0;
  op.op.bucket = dibs__bucket(op.key);
  op.op.lane = bucket_of(key) + 1u;
  op.op.by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  op.claim = claim ? claim_of(claim) : (dibs__str){0};
  op.owner = dibs__str_of("somebody", 8);
  return op;
}

static stock run(struct party *p, stock op) {
  struct dibs__op *ops[] = {&op.op};
  run_batch(p, ops, 1);
  return op;
}

static stock take(struct party *p, const char *key, int64_t amount, int claim) {
  return run(p, stock_op(DIBS__STOCK_TAKE, key, amount, claim));
}
static stock give(struct party *p, const char *key, int claim) {
  return run(p, stock_op(DIBS__STOCK_GIVE, key, 0, claim));
}
static stock show(struct party *p, const char *key) {
  return run(p, stock_op(DIBS__STOCK_READ, key, 0, 0));
}
static stock set(struct party *p, const char *key, int64_t limit) {
  return run(p, stock_op(DIBS__STOCK_SET, key, limit, 0));
}

static void run_all(struct party *p, stock *ops, size_t count) {
  struct dibs__op **list = calloc(count, sizeof(struct dibs__op *));
  assert_non_null(list);
  for (size_t i = 0; i < count; i++) list[i] = &ops[i].op;
  for (size_t done = 0; done < count; done += p->identity.max_batch)
    run_batch(p, list + done, count - done < p->identity.max_batch ? count - done : p->identity.max_batch);
  free(list);
}

/* A repetition of an OK is REPLAY, or CONFLICT if the claim was given back in between. */
#define expect_stock(got, want) expect_stock_at(__FILE__, __LINE__, got, want)
static void expect_stock_at(const char *file, int line, stock got, dibs__status want) {
  bool given = got.op.verb == DIBS__STOCK_GIVE && want == DIBS_NOT_FOUND;
  if (in_doubt(&got.op) && (want == DIBS_OK || given) && got.op.status == DIBS_REPLAY) return;
  if (in_doubt(&got.op) && want == DIBS_OK && got.op.status == DIBS_CONFLICT) return;
  expect_at(file, line, got.op, want);
}

#define expect_used(p, key, used, limit) expect_used_at(__FILE__, __LINE__, p, key, used, limit)
static void expect_used_at(const char *file, int line, struct party *p, const char *key, int64_t used, int64_t limit) {
  stock got = show(p, key);
  expect_at(file, line, got.op, DIBS_OK);
  if (got.used == used && got.limit == limit) return;
  print_error("%lld of %lld are used, expected %lld of %lld\n", (long long)got.used, (long long)got.limit,
              (long long)used, (long long)limit);
  _fail(file, line);
}

/* ---- Listing ---- */

static stock list(struct party *p, const char *prefix, dibs__str after, int64_t most) {
  stock op = stock_op(DIBS__STOCK_LIST, prefix, most, 0);
  op.op.flags = DIBS__OP_READS;
  op.op.lane = 0;
  op.claim = after;
  op = run(p, op);
  if (op.rows) free_at_end((char *)op.rows);
  return op;
}

static void expect_keys(const stock *got, const char *const *keys, uint32_t count) {
  assert_int_equal(got->op.status, DIBS_OK);
  assert_int_equal(got->row_count, count);
  for (uint32_t i = 0; i < count; i++) assert_true(dibs__str_equal(got->rows[i].key, name_of(keys[i])));
}

static void R56_stocks_are_listed_by_key_from_any_key_on(void **state) {
  (void)state;
  struct party *p = stock_party();
  static const char *const keys[] = {"A", "a", "a%", "a_", "aa", "ab", "a\xc3\xa9", "b"};
  for (int i = 7; i >= 0; i--) expect_stock(set(p, keys[i], 10 + i), DIBS_OK);
  expect_stock(take(p, "ab", 3, 1), DIBS_OK);
  dibs__str none = {"", 0};
  stock got = list(p, "", none, 100);
  expect_keys(&got, keys, 8);
  assert_int_equal(got.rows[5].used, 3);
  assert_int_equal(got.rows[5].limit, 15);
  got = list(p, "a", none, 100);
  expect_keys(&got, keys + 1, 6);
  got = list(p, "a", name_of("a_"), 2);
  expect_keys(&got, keys + 4, 2);
  got = list(p, "a", name_of("ab"), 100);
  expect_keys(&got, keys + 6, 1);
  got = list(p, "a", name_of("c"), 100);
  expect_keys(&got, keys, 0);
  assert_int_equal(list(p, "", none, 0).op.status, DIBS_INVALID);
}

/* ---- R24: capacity ---- */

static void R24_a_stock_that_was_never_set_is_not_found(void **state) {
  (void)state;
  struct party *p = stock_party();
  expect(show(p, "s"), DIBS_NOT_FOUND);
  expect(take(p, "s", 1, 1), DIBS_NOT_FOUND);
  expect(give(p, "s", 1), DIBS_NOT_FOUND);
  expect(set(p, "s", 0), DIBS_OK);
  expect(take(p, "s", 1, 2), DIBS_FULL);
  expect_used(p, "s", 0, 0);
}

static void R24_takes_never_exceed_the_limit(void **state) {
  (void)state;
  struct party *p = stock_party(), *q = stock_party();
  expect(set(p, "s", 10), DIBS_OK);
  stock got = take(p, "s", 4, 1);
  expect_stock(got, DIBS_OK);
  assert_int_equal(got.got, 4);
  expect_stock(take(q, "s", 6, 2), DIBS_OK);
  got = take(p, "s", 1, 3);
  expect(got, DIBS_FULL);
  assert_int_equal(got.got, 0);
  expect_used(q, "s", 10, 10);
}

static void R24_the_limit_is_never_set_below_what_is_used(void **state) {
  (void)state;
  struct party *p = stock_party();
  expect(set(p, "s", 10), DIBS_OK);
  expect_stock(take(p, "s", 4, 1), DIBS_OK);
  expect(set(p, "s", 3), DIBS_FULL);
  expect_used(p, "s", 4, 10);
  expect(set(p, "s", 4), DIBS_OK);
  expect(take(p, "s", 1, 2), DIBS_FULL);
  expect(set(p, "s", INT64_MAX), DIBS_OK);
  expect(take(p, "s", INT64_MAX - 3, 3), DIBS_FULL); /* no number is large enough to overflow */
  expect_stock(take(p, "s", INT64_MAX - 4, 4), DIBS_OK);
  expect_used(p, "s", INT64_MAX, INT64_MAX);
}

static void R24_malformed_operations_are_invalid(void **state) {
  (void)state;
  struct party *p = stock_party();
  expect(set(p, "s", 10), DIBS_OK);
  expect(take(p, "s", 0, 1), DIBS_INVALID);
  expect(take(p, "s", -1, 1), DIBS_INVALID);
  expect(set(p, "s", -1), DIBS_INVALID);
  stock op = stock_op(DIBS__STOCK_TAKE, "s", 1, 0);
  expect(run(p, op), DIBS_INVALID);
  char letters[66];
  memset(letters, 'x', sizeof letters);
  op.claim = dibs__str_of(letters, 65);
  expect(run(p, op), DIBS_INVALID);
  op = stock_op(DIBS__STOCK_TAKE, "s", 1, 1);
  op.strategy = DIBS_FENCED; /* without a fence */
  expect(run(p, op), DIBS_INVALID);
  op = stock_op(DIBS__STOCK_TAKE, "s", 1, 1);
  op.key.len = 0;
  expect(run(p, op), DIBS_INVALID);
  expect_used(p, "s", 0, 10);
}

struct taker {
  struct party *p;
  uint32_t strategy;
  int first;
  int64_t taken;
  bool wrong;
};

static void take_until_full(void *arg) {
  struct taker *t = arg;
  for (int i = 0; i < RACE_LIMIT + 1; i++) {
    stock op = stock_op(DIBS__STOCK_TAKE, "s", 1, t->first + i);
    op.strategy = t->strategy;
    op = run(t->p, op);
    if (op.op.status == DIBS_FULL) return;
    bool taken = op.op.status == DIBS_OK || (in_doubt(&op.op) && op.op.status == DIBS_REPLAY);
    if (taken) t->taken += op.got;
    if (!taken) t->wrong = true;
  }
}

/* name_of() is for one thread at a time, so it runs before the threads. */
static void race(uint32_t strategy) {
  struct party *p = stock_party();
  struct taker takers[TAKERS];
  dibs__thread *threads[TAKERS];
  int64_t taken = 0;
  expect(set(p, "s", RACE_LIMIT), DIBS_OK);
  for (int i = 0; i < TAKERS; i++) {
    takers[i] = (struct taker){.p = party(), .strategy = strategy, .first = 1 + i * (RACE_LIMIT + 1)};
    for (int c = 0; c <= RACE_LIMIT; c++) (void)claim_of(takers[i].first + c);
  }
  for (int i = 0; i < TAKERS; i++) threads[i] = dibs__thread_start("taker", take_until_full, &takers[i]);
  for (int i = 0; i < TAKERS; i++) {
    assert_non_null(threads[i]);
    dibs__thread_join(threads[i]);
    taken += takers[i].taken;
    assert_false(takers[i].wrong);
  }
  assert_int_equal(taken, RACE_LIMIT);
  expect_used(p, "s", RACE_LIMIT, RACE_LIMIT);
}

static void R24_takers_race_coalesced(void **state) {
  (void)state;
  race(DIBS_COALESCED);
}
static void R24_takers_race_atomic(void **state) {
  (void)state;
  race(DIBS_ATOMIC);
}
static void R24_takers_race_pessimistic(void **state) {
  (void)state;
  race(DIBS_PESSIMISTIC);
}
static void R24_takers_race_optimistic(void **state) {
  (void)state;
  race(DIBS_OPTIMISTIC);
}

/* ---- R25: a claim counts once ---- */

static void repeated_take(uint32_t strategy) {
  struct party *p = stock_party(), *q = stock_party();
  expect(set(p, "s", 5), DIBS_OK);
  expect(set(p, "t", 5), DIBS_OK);
  stock op = stock_op(DIBS__STOCK_TAKE, "s", 3, 1);
  op.strategy = strategy;
  expect_stock(run(p, op), DIBS_OK);
  stock got = run(q, op);
  expect(got, DIBS_REPLAY);
  assert_int_equal(got.got, 3);
  op.amount = 1; /* the requested amount does not matter any more */
  got = run(p, op);
  expect(got, DIBS_REPLAY);
  assert_int_equal(got.got, 3);
  expect_used(p, "s", 3, 5);
  op.key = name_of("t");
  expect(run(p, op), DIBS_CONFLICT);
  expect_used(p, "t", 0, 5);
}

static void R25_a_repeated_take_coalesced(void **state) {
  (void)state;
  repeated_take(DIBS_COALESCED);
}
static void R25_a_repeated_take_atomic(void **state) {
  (void)state;
  repeated_take(DIBS_ATOMIC);
}
static void R25_a_repeated_take_pessimistic(void **state) {
  (void)state;
  repeated_take(DIBS_PESSIMISTIC);
}
static void R25_a_repeated_take_optimistic(void **state) {
  (void)state;
  repeated_take(DIBS_OPTIMISTIC);
}

static void R25_a_replay_does_not_need_free_units(void **state) {
  (void)state;
  struct party *p = stock_party();
  expect(set(p, "s", 3), DIBS_OK);
  expect_stock(take(p, "s", 3, 1), DIBS_OK);
  expect(take(p, "s", 1, 2), DIBS_FULL);
  expect(take(p, "s", 3, 1), DIBS_REPLAY);
  stock op = stock_op(DIBS__STOCK_TAKE, "s", 3, 1);
  op.partial = true;
  stock got = run(p, op);
  expect(got, DIBS_REPLAY);
  assert_int_equal(got.got, 3);
}

/* ---- R26: first come, first served ---- */

static void R26_takes_are_decided_in_the_batch_order(void **state) {
  (void)state;
  struct party *p = stock_party();
  expect(set(p, "s", 10), DIBS_OK);
  stock ops[] = {stock_op(DIBS__STOCK_TAKE, "s", 6, 1), stock_op(DIBS__STOCK_TAKE, "s", 5, 2),
                 stock_op(DIBS__STOCK_TAKE, "s", 3, 3), stock_op(DIBS__STOCK_TAKE, "s", 2, 4),
                 stock_op(DIBS__STOCK_TAKE, "s", 1, 5), stock_op(DIBS__STOCK_TAKE, "s", 1, 6)};
  run_all(p, ops, 6);
  expect_stock(ops[0], DIBS_OK);
  expect(ops[1], DIBS_FULL);
  expect_stock(ops[2], DIBS_OK);
  expect(ops[3], DIBS_FULL);
  expect_stock(ops[4], DIBS_OK);
  expect(ops[5], DIBS_FULL);
  expect_used(p, "s", 10, 10);
}

static void R26_each_take_gets_the_remaining_amount(void **state) {
  (void)state;
  struct party *p = stock_party();
  expect(set(p, "s", 10), DIBS_OK);
  stock ops[] = {stock_op(DIBS__STOCK_TAKE, "s", 1, 1), stock_op(DIBS__STOCK_TAKE, "s", 2, 2),
                 stock_op(DIBS__STOCK_TAKE, "s", 3, 3)};
  run_all(p, ops, 3);
  static const int64_t left[] = {1, 3, 6};
  for (size_t i = 0; i < 3; i++) {
    expect_stock(ops[i], DIBS_OK);
    if (in_doubt(&ops[i].op)) continue;
    assert_true(ops[i].used == left[i] || ops[i].used == -1);
    assert_true(ops[i].limit == 10 || ops[i].limit == -1);
  }
}

static void R26_a_take_may_accept_a_part(void **state) {
  (void)state;
  struct party *p = stock_party();
  expect(set(p, "s", 10), DIBS_OK);
  stock ops[] = {stock_op(DIBS__STOCK_TAKE, "s", 6, 1), stock_op(DIBS__STOCK_TAKE, "s", 6, 2),
                 stock_op(DIBS__STOCK_TAKE, "s", 1, 3), stock_op(DIBS__STOCK_TAKE, "s", 1, 4)};
  ops[1].partial = ops[3].partial = true;
  run_all(p, ops, 4);
  expect_stock(ops[0], DIBS_OK);
  expect_stock(ops[1], DIBS_OK);
  assert_int_equal(ops[1].got, 4);
  expect(ops[2], DIBS_FULL);
  expect(ops[3], DIBS_FULL);
  assert_int_equal(ops[3].got, 0);
  expect_used(p, "s", 10, 10);
}

static void R26_takes_and_gives_keep_their_order(void **state) {
  (void)state;
  struct party *p = stock_party();
  expect(set(p, "s", 5), DIBS_OK);
  stock ops[] = {stock_op(DIBS__STOCK_TAKE, "s", 5, 1), stock_op(DIBS__STOCK_TAKE, "s", 1, 2),
                 stock_op(DIBS__STOCK_GIVE, "s", 0, 1), stock_op(DIBS__STOCK_TAKE, "s", 2, 3),
                 stock_op(DIBS__STOCK_GIVE, "s", 0, 3), stock_op(DIBS__STOCK_TAKE, "s", 5, 1),
                 stock_op(DIBS__STOCK_GIVE, "s", 0, 3), stock_op(DIBS__STOCK_GIVE, "s", 0, 4),
                 stock_op(DIBS__STOCK_TAKE, "s", 4, 4), stock_op(DIBS__STOCK_TAKE, "s", 4, 5),
                 stock_op(DIBS__STOCK_READ, "s", 0, 0)};
  run_all(p, ops, sizeof ops / sizeof ops[0]);
  expect_stock(ops[0], DIBS_OK);
  if (!in_doubt(&ops[1].op)) expect(ops[1], DIBS_FULL); /* a repetition may find free units */
  expect_stock(ops[2], DIBS_OK);
  expect_stock(ops[3], DIBS_OK);
  expect_stock(ops[4], DIBS_OK);
  expect(ops[5], DIBS_CONFLICT);
  expect(ops[6], DIBS_REPLAY);
  assert_int_equal(ops[6].got, 2);
  expect_stock(ops[7], DIBS_NOT_FOUND);
  expect(ops[8], DIBS_CONFLICT);
  if (in_doubt(&ops[1].op)) return;
  expect_stock(ops[9], DIBS_OK);
  expect(ops[10], DIBS_OK);
  assert_int_equal(ops[10].used, 4);
}

static void R26_a_batch_of_a_thousand_takes(void **state) {
  (void)state;
  struct party *p = stock_party();
  size_t count = p->identity.max_batch < WAITERS ? p->identity.max_batch : WAITERS, taken = 0;
  stock *ops = calloc(count, sizeof *ops);
  assert_non_null(ops);
  expect(set(p, "s", (int64_t)count - 7), DIBS_OK);
  for (size_t i = 0; i < count; i++) ops[i] = stock_op(DIBS__STOCK_TAKE, "s", 1, (int)i + 1);
  run_all(p, ops, count);
  for (size_t i = 0; i < count; i++) {
    if (i < count - 7)
      expect_stock(ops[i], DIBS_OK);
    else
      expect(ops[i], DIBS_FULL);
    taken += ops[i].op.status != DIBS_FULL;
  }
  assert_int_equal(taken, count - 7);
  expect_used(p, "s", (int64_t)count - 7, (int64_t)count - 7);
  free(ops);
}

static void R26_rows_do_not_mix(void **state) {
  (void)state;
  struct party *p = stock_party();
  enum { ROWS = 20, EACH = 5 };
  stock ops[ROWS * EACH];
  char key[8];
  for (int r = 0; r < ROWS; r++) {
    snprintf(key, sizeof key, "s%d", r);
    expect(set(p, key, r % EACH), DIBS_OK);
  }
  for (int i = 0; i < ROWS * EACH; i++) {
    snprintf(key, sizeof key, "s%d", i % ROWS);
    ops[i] = stock_op(DIBS__STOCK_TAKE, key, 1, i + 1);
  }
  run_all(p, ops, ROWS * EACH);
  for (int i = 0; i < ROWS * EACH; i++) {
    if (i / ROWS < i % ROWS % EACH)
      expect_stock(ops[i], DIBS_OK);
    else
      expect(ops[i], DIBS_FULL);
  }
  for (int r = 0; r < ROWS; r++) {
    snprintf(key, sizeof key, "s%d", r);
    expect_used(p, key, r % EACH, r % EACH);
  }
}

/* ---- R27: one bad claim does not harm others ---- */

static void R27_each_claim_has_its_own_answer(void **state) {
  (void)state;
  struct party *p = stock_party();
  expect(set(p, "s", 10), DIBS_OK);
  expect(set(p, "t", 10), DIBS_OK);
  expect_stock(take(p, "s", 1, 1), DIBS_OK);
  expect_stock(take(p, "t", 1, 2), DIBS_OK);
  expect_stock(take(p, "s", 1, 3), DIBS_OK);
  expect_stock(give(p, "s", 3), DIBS_OK);
  stock ops[] = {
      stock_op(DIBS__STOCK_TAKE, "s", 1, 10),
      stock_op(DIBS__STOCK_TAKE, "s", 1, 1), /* a repetition */
      stock_op(DIBS__STOCK_TAKE, "s", 1, 11),
      stock_op(DIBS__STOCK_TAKE, "s", 1, 2), /* a claim of another
                                              * stock */
      stock_op(DIBS__STOCK_TAKE, "s", 1, 12),
      stock_op(DIBS__STOCK_TAKE, "s", 1, 3), /* given back */
      stock_op(DIBS__STOCK_TAKE, "s", 1, 10),
      stock_op(DIBS__STOCK_TAKE, "s", 9, 13), /* more than the limit */
      stock_op(DIBS__STOCK_TAKE, "nowhere", 1, 14),
      stock_op(DIBS__STOCK_TAKE, "s", -4, 15),
      stock_op(DIBS__STOCK_TAKE, "s", 2, 16),
      stock_op(DIBS__STOCK_TAKE, "t", 9, 17),
  };
  static const dibs__status want[] = {DIBS_OK,     DIBS_REPLAY, DIBS_OK,        DIBS_CONFLICT, DIBS_OK, DIBS_CONFLICT,
                                      DIBS_REPLAY, DIBS_FULL,   DIBS_NOT_FOUND, DIBS_INVALID,  DIBS_OK, DIBS_OK};
  run_all(p, ops, sizeof ops / sizeof ops[0]);
  for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) expect_stock(ops[i], want[i]);
  expect_used(p, "s", 6, 10);
  expect_used(p, "t", 10, 10);
}

/* ---- R28: giving back ---- */

static void R28_a_claim_is_given_back_once(void **state) {
  (void)state;
  struct party *p = stock_party(), *q = stock_party();
  expect(set(p, "s", 5), DIBS_OK);
  expect_stock(take(p, "s", 3, 1), DIBS_OK);
  stock got = give(q, "s", 1);
  expect_stock(got, DIBS_OK);
  assert_int_equal(got.got, 3);
  expect_used(p, "s", 0, 5);
  got = give(p, "s", 1);
  expect(got, DIBS_REPLAY);
  assert_int_equal(got.got, 3);
  expect_used(p, "s", 0, 5);
  expect(take(p, "s", 3, 1), DIBS_CONFLICT);
  expect_used(p, "s", 0, 5);
  expect_stock(take(p, "s", 5, 2), DIBS_OK);
}

static void R28_a_take_that_comes_late_does_not_count(void **state) {
  (void)state;
  struct party *p = stock_party();
  expect(set(p, "s", 5), DIBS_OK);
  expect_stock(give(p, "s", 1), DIBS_NOT_FOUND);
  expect(take(p, "s", 1, 1), DIBS_CONFLICT);
  expect_used(p, "s", 0, 5);
  expect(give(p, "s", 1), DIBS_REPLAY);
}

static void R28_a_claim_of_another_stock_is_not_given_back(void **state) {
  (void)state;
  struct party *p = stock_party();
  expect(set(p, "s", 5), DIBS_OK);
  expect(set(p, "t", 5), DIBS_OK);
  expect_stock(take(p, "s", 2, 1), DIBS_OK);
  expect(give(p, "t", 1), DIBS_CONFLICT);
  expect_used(p, "s", 2, 5);
  expect_used(p, "t", 0, 5);
}

/* ---- R29: fences ---- */

static stock fenced(struct party *p, enum dibs__stock_verb verb, int claim, int id, uint64_t fence) {
  stock op = stock_op(verb, "s", 1, claim);
  op.strategy = DIBS_FENCED;
  op.id = id_of(id);
  op.fence = (dibs__fence){fence};
  return run(p, op);
}

static void R29_an_older_fence_is_refused(void **state) {
  (void)state;
  struct party *p = stock_party();
  expect(set(p, "s", 9), DIBS_OK);
  expect_stock(fenced(p, DIBS__STOCK_TAKE, 1, 1, 7), DIBS_OK);
  expect_stock(fenced(p, DIBS__STOCK_TAKE, 2, 1, 7), DIBS_OK); /* the same lease */
  expect(fenced(p, DIBS__STOCK_TAKE, 3, 1, 6), DIBS_STALE);
  expect(fenced(p, DIBS__STOCK_TAKE, 3, 2, 7), DIBS_STALE); /* its fence with the id of another lease */
  expect(fenced(p, DIBS__STOCK_GIVE, 1, 1, 6), DIBS_STALE);
  expect_used(p, "s", 2, 9);
  expect_stock(fenced(p, DIBS__STOCK_TAKE, 3, 2, 8), DIBS_OK);
  expect(fenced(p, DIBS__STOCK_TAKE, 4, 1, 7), DIBS_STALE);
  expect(fenced(p, DIBS__STOCK_TAKE, 1, 1, 7), DIBS_REPLAY); /* a done operation stays done */
  expect_stock(fenced(p, DIBS__STOCK_GIVE, 1, 2, 8), DIBS_OK);
  expect_used(p, "s", 2, 9);
}

/* ---- Random operations, compared with the reference ---- */

static uint64_t next_random(uint64_t *seed) {
  *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return *seed >> 33;
}

/* In one batch a claim names one row only, because rows are decided in any order. A later batch may name another
 * row. */
static stock random_op(uint64_t *seed, int round) {
  static const char *const keys[] = {"a", "b", "c", "d"};
  static const uint32_t strategies[] = {DIBS_COALESCED,   DIBS_COALESCED,  DIBS_COALESCED, DIBS_ATOMIC,
                                        DIBS_PESSIMISTIC, DIBS_OPTIMISTIC, DIBS_FENCED};
  uint64_t dice = next_random(seed) % 16;
  int claim = 1 + (int)(next_random(seed) % 120);
  const char *key = keys[(claim + round / 10) % 4];
  stock op;
  if (dice == 0)
    op = stock_op(DIBS__STOCK_SET, key, (int64_t)(next_random(seed) % 40), 0);
  else if (dice == 1)
    op = stock_op(DIBS__STOCK_READ, key, 0, 0);
  else if (dice < 6)
    op = stock_op(DIBS__STOCK_GIVE, key, 0, claim);
  else
    op = stock_op(DIBS__STOCK_TAKE, key, 1 + (int64_t)(next_random(seed) % 4), claim);
  op.strategy = strategies[next_random(seed) % 7];
  op.partial = next_random(seed) % 8 == 0;
  op.id = id_of(1 + (int)(next_random(seed) % 2));
  op.fence = (dibs__fence){1 + next_random(seed) % 30};
  return op;
}

static void compare(const stock *got, const stock *want, int round, size_t nth) {
  bool same = got->op.status == want->op.status && got->got == want->got &&
              (got->used == want->used || got->used == -1) && (got->limit == want->limit || got->limit == -1);
  if (same) return;
  fail_msg("round %d, %zu: verb %d strategy %u: %s got %lld (%lld of %lld), expected %s got %lld (%lld of %lld)", round,
           nth, got->op.verb, got->strategy, status_name(got->op.status), (long long)got->got, (long long)got->used,
           (long long)got->limit, status_name(want->op.status), (long long)want->got, (long long)want->used,
           (long long)want->limit);
}

static void R24_to_R29_like_the_reference(void **state) {
  (void)state;
  struct party *p = stock_party(), *reference = party_at("memory:");
  stock mine[ROUND_MOST], theirs[ROUND_MOST];
  uint64_t seed = 20240807;
  for (int round = 0; round < ROUNDS; round++) {
    size_t count = 1 + next_random(&seed) % ROUND_MOST;
    for (size_t i = 0; i < count; i++) mine[i] = theirs[i] = random_op(&seed, round);
    run_all(p, mine, count);
    if (in_doubt(&mine[0].op)) skip(); /* a repetition may have another result and no longer matches the reference */
    run_all(reference, theirs, count);
    for (size_t i = 0; i < count; i++) compare(&mine[i], &theirs[i], round, i);
  }
}

/* ---- R54: a claim is kept as long as it holds units ---- */

static void R54_a_claim_that_holds_units_is_kept(void **state) {
  (void)state;
  enum { MONTHS = 13, OTHERS = 1200 };
  struct party *p = stock_party();
  static stock others[OTHERS];
  if (!target()->skew) skip();
  expect_stock(set(p, "n", 100000), DIBS_OK);
  expect_stock(take(p, "n", 7, 1), DIBS_OK);
  expect_stock(take(p, "n", 5, 2), DIBS_OK);
  for (int month = 0; month < MONTHS; month++) {
    advance_time(p, INT64_C(31) * 86400000);
    if (month == MONTHS - 1) expect_stock(give(p, "n", 2), DIBS_OK); /* the 30 days start now */
    for (int i = 0; month % 6 == 0 && i < OTHERS; i++)               /* enough claims that the store looks for old
                                                                      * ones */
      others[i] = stock_op(DIBS__STOCK_TAKE, "n", 1, 10 + i + month * OTHERS / 6);
    if (month % 6 == 0) run_all(p, others, OTHERS);
    if (store_of(p)->driver->tidy) store_of(p)->driver->tidy(store_of(p));
  }
  expect_stock(take(p, "n", 5, 2), DIBS_CONFLICT);
  stock held = give(p, "n", 1);
  expect_stock(held, DIBS_OK);
  assert_int_equal(held.got, 7);
}

/* ---- R55: keys and claims are their bytes ---- */

static const char *const alike[] = {"aB3x", "Ab3X",
                                    "\xc3\xa4"
                                    "B3x",
                                    "aB3x ",
                                    "a\xcc\x88"
                                    "B3x"};
enum { ALIKE = sizeof alike / sizeof alike[0] };

static stock of_claim(enum dibs__stock_verb verb, const char *key, const char *claim, int64_t amount,
                      uint32_t strategy) {
  stock op = stock_op(verb, key, amount, 1);
  op.claim = dibs__str_of(claim, strlen(claim));
  op.strategy = strategy;
  return op;
}

static void R55_claims_are_their_bytes(void **state) {
  (void)state;
  static const uint32_t strategies[] = {DIBS_COALESCED, DIBS_ATOMIC, DIBS_PESSIMISTIC, DIBS_OPTIMISTIC};
  struct party *p = stock_party();
  for (size_t k = 0; k < sizeof strategies / sizeof strategies[0]; k++) {
    for (size_t i = 0; i < ALIKE; i++) {
      char key[8];
      snprintf(key, sizeof key, "n%zu", k);
      if (i == 0) expect_stock(set(p, key, 100), DIBS_OK);
      char claim[32]; /* of this strategy */
      snprintf(claim, sizeof claim, "%zu%s", k, alike[i]);
      expect_stock(run(p, of_claim(DIBS__STOCK_TAKE, key, claim, (int64_t)i + 1, strategies[k])), DIBS_OK);
    }
    for (size_t i = 0; i < ALIKE; i++) {
      char key[8], claim[32];
      snprintf(key, sizeof key, "n%zu", k);
      snprintf(claim, sizeof claim, "%zu%s", k, alike[i]);
      stock again = run(p, of_claim(DIBS__STOCK_TAKE, key, claim, 50, strategies[k]));
      expect_stock(again, DIBS_REPLAY);
      assert_int_equal(again.got, i + 1);
    }
  }
}

static void R55_keys_are_their_bytes(void **state) {
  (void)state;
  struct party *p = stock_party();
  for (size_t i = 0; i < ALIKE; i++) {
    expect_stock(show(p, alike[i]), DIBS_NOT_FOUND);
    expect_stock(set(p, alike[i], (int64_t)i + 1), DIBS_OK);
  }
  for (size_t i = 0; i < ALIKE; i++) expect_used(p, alike[i], 0, (int64_t)i + 1);
}

static const struct CMUnitTest contract_stock_cases[] = {
    CASE(R56_stocks_are_listed_by_key_from_any_key_on),
    CASE(R24_a_stock_that_was_never_set_is_not_found),
    CASE(R24_takes_never_exceed_the_limit),
    CASE(R24_the_limit_is_never_set_below_what_is_used),
    CASE(R24_malformed_operations_are_invalid),
    CASE(R24_takers_race_coalesced),
    CASE(R24_takers_race_atomic),
    CASE(R24_takers_race_pessimistic),
    CASE(R24_takers_race_optimistic),
    CASE(R25_a_repeated_take_coalesced),
    CASE(R25_a_repeated_take_atomic),
    CASE(R25_a_repeated_take_pessimistic),
    CASE(R25_a_repeated_take_optimistic),
    CASE(R25_a_replay_does_not_need_free_units),
    CASE(R26_takes_are_decided_in_the_batch_order),
    CASE(R26_each_take_gets_the_remaining_amount),
    CASE(R26_a_take_may_accept_a_part),
    CASE(R26_takes_and_gives_keep_their_order),
    CASE(R26_a_batch_of_a_thousand_takes),
    CASE(R26_rows_do_not_mix),
    CASE(R27_each_claim_has_its_own_answer),
    CASE(R28_a_claim_is_given_back_once),
    CASE(R28_a_take_that_comes_late_does_not_count),
    CASE(R28_a_claim_of_another_stock_is_not_given_back),
    CASE(R29_an_older_fence_is_refused),
    CASE(R24_to_R29_like_the_reference),
    CASE(R54_a_claim_that_holds_units_is_kept),
    CASE(R55_claims_are_their_bytes),
    CASE(R55_keys_are_their_bytes),
};
CONTRACT_TESTS(contract_stock);

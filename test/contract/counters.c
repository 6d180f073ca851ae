/* SPDX-License-Identifier: MIT */
/* Counters, and buckets of tokens (R86 to R95). */
#include "harness.h"
#include "store/counter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dibs__counter_op counter_op;
typedef struct dibs__counter_item item_t;

enum { PATIENCE_MS = 60000, MANY = 60, PAGE = 17, ADDERS = 4, BATCHES = 30, RACE_KEYS = 12, BIG = DIBS__COUNTER_ITEMS };
#define DAY_MS INT64_C(86400000)

/* ---- Operations ---- */

static struct party *counter_party(void) {
  struct party *p = party();
  needs_family(p, DIBS__FAM_COUNTER);
  return p;
}

static counter_op counter_op_of(enum dibs__counter_verb verb) {
  counter_op op = {.op = {.family = DIBS__FAM_COUNTER, .verb = (uint16_t)verb}};
  op.op.flags = verb == DIBS__COUNTER_ADD ? 0 : DIBS__OP_READS;
  op.op.by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  return op;
}

static counter_op carry(struct party *p, counter_op op) {
  struct dibs__op *ops[] = {&op.op};
  run_batch(p, ops, 1);
  if (op.got) free_at_end((char *)op.got);
  return op;
}

static item_t item(const char *key, int64_t delta) {
  return (item_t){.key = name_of(key), .delta = delta};
}

static counter_op batch_of(int source, uint64_t sequence, item_t *items, uint32_t count) {
  counter_op op = counter_op_of(DIBS__COUNTER_ADD);
  op.source = id_of(source);
  op.sequence = sequence;
  op.items = items;
  op.count = count;
  return op;
}

static counter_op add_one(struct party *p, int source, uint64_t sequence, const char *key, int64_t delta) {
  item_t one = item(key, delta);
  counter_op op = carry(p, batch_of(source, sequence, &one, 1));
  op.items = NULL;
  return op;
}

/* Applied by this call, or by an attempt of it whose answer was lost. */
static void expect_applied_at(int line, const counter_op *op) {
  if (op->op.status == DIBS_OK || (op->op.status == DIBS_REPLAY && in_doubt(&op->op))) return;
  fail_msg("line %d: the batch was answered %s", line, status_name(op->op.status));
}
#define expect_applied(op)                                                                                             \
  do {                                                                                                                 \
    counter_op applied_ = (op);                                                                                        \
    expect_applied_at(__LINE__, &applied_);                                                                            \
  } while (0)

static void expect_item_at(int line, const item_t *got, dibs__status want) {
  if (got->status != want) fail_msg("line %d: the item was answered %s", line, status_name(got->status));
}
#define expect_item(item, want) expect_item_at(__LINE__, &(item), want)

static int64_t number_of(struct party *p, const char *key) {
  item_t one = item(key, 0);
  counter_op op = counter_op_of(DIBS__COUNTER_READ);
  op.items = &one;
  op.count = 1;
  op = carry(p, op);
  if (op.op.status != DIBS_OK) fail_msg("reading: %s", status_name(op.op.status));
  if (one.status == DIBS_NOT_FOUND) return INT64_MIN;
  assert_int_equal(one.status, DIBS_OK);
  return one.number;
}
#define expect_number(p, key, want) assert_true(number_of(p, key) == (want))

/* ---- R86 ---- */

static void R86_a_batch_is_applied_once(void **state) {
  (void)state;
  struct party *p = counter_party(), *q = party();
  item_t items[] = {item("a", 3), item("b", -4), item("c", 0)};
  expect_applied(carry(p, batch_of(1, 1, items, 3)));
  for (int i = 0; i < 3; i++) expect_item(items[i], DIBS_OK);
  for (int again = 0; again < 3; again++) {
    counter_op op = carry(again % 2 ? p : q, batch_of(1, 1, items, 3));
    expect(op, DIBS_REPLAY);
    for (int i = 0; i < 3; i++) expect_item(items[i], DIBS_OK);
  }
  expect_number(q, "a", 3);
  expect_number(q, "b", -4);
  expect_number(q, "c", 0);
}

static void R86_an_earlier_batch_that_comes_late_is_not_applied(void **state) {
  (void)state;
  struct party *p = counter_party(), *q = party();
  expect_applied(add_one(p, 1, 1, "k", 10));
  expect_applied(add_one(p, 1, 2, "k", 100));
  expect(add_one(q, 1, 1, "k", 10), DIBS_REPLAY);
  expect_applied(add_one(q, 1, 7, "k", 1000)); /* gaps are fine */
  expect(add_one(p, 1, 6, "k", 10), DIBS_REPLAY);
  expect_number(p, "k", 1110);
}

static void R86_sources_are_independent(void **state) {
  (void)state;
  struct party *p = counter_party();
  for (int source = 1; source <= 5; source++) expect_applied(add_one(p, source, 1, "k", 1));
  expect(add_one(p, 3, 1, "k", 1), DIBS_REPLAY);
  expect_number(p, "k", 5);
}

static void R86_batches_of_one_run_are_each_answered(void **state) {
  (void)state;
  struct party *p = counter_party();
  item_t items[4] = {item("k", 1), item("k", 2), item("k", 4), item("", 8)};
  counter_op batches[4];
  struct dibs__op *ops[4];
  for (int i = 0; i < 4; i++) {
    batches[i] = batch_of(i == 2 ? 0 : i, 1, &items[i], 1); /* the third repeats the first */
    ops[i] = &batches[i].op;
  }
  items[3].key = (dibs__str){"", 0};
  run_batch(p, ops, 4);
  expect_applied(batches[0]);
  expect_applied(batches[1]);
  expect(batches[2], DIBS_REPLAY);
  expect(batches[3], DIBS_INVALID);
  expect_number(p, "k", 3);
}

static void R86_a_whole_batch_is_applied(void **state) {
  (void)state;
  struct party *p = counter_party();
  static item_t items[BIG];
  char key[16];
  for (int i = 0; i < BIG; i++) {
    snprintf(key, sizeof key, "big%04d", i);
    items[i] = item(key, i);
  }
  for (uint64_t sequence = 1; sequence <= 3; sequence++) expect_applied(carry(p, batch_of(1, sequence, items, BIG)));
  expect(carry(p, batch_of(1, 3, items, BIG)), DIBS_REPLAY);
  expect_number(p, "big0001", 3);
  expect_number(p, "big0999", 2997);
}

static void R86_bad_batches_are_refused(void **state) {
  (void)state;
  struct party *p = counter_party();
  item_t items[] = {item("a", 1), item("b", 1)};
  expect(carry(p, batch_of(1, 0, items, 2)), DIBS_INVALID);
  expect(carry(p, batch_of(1, 1, items, 0)), DIBS_INVALID);
  items[1] = item("a", 1);
  expect(carry(p, batch_of(1, 1, items, 2)), DIBS_INVALID); /* a key twice */
  items[0] = item("b", 1);
  expect(carry(p, batch_of(1, 1, items, 2)), DIBS_INVALID); /* not in order */
  assert_true(number_of(p, "a") == INT64_MIN);
}

/* ---- R87 ---- */

struct adder {
  struct party *p;
  dibs__thread *thread;
  dibs__id source;
  item_t items[RACE_KEYS];
  int failures;
};

static dibs__status send_batch(struct adder *a, uint64_t sequence, dibs__tick by) {
  const struct dibs__driver *driver = store_of(a->p)->driver;
  counter_op op = batch_of(0, sequence, a->items, RACE_KEYS);
  struct dibs__op *ops[] = {&op.op};
  op.source = a->source;
  while (dibs__tick_before(dibs__tick_now(), by)) {
    op.op.status = DIBS_UNKNOWN;
    dibs__status run = a->p->session ? driver->run(a->p->session, ops, 1, by, &a->p->reported) : DIBS_UNAVAILABLE;
    if (a->p->reported.dead || !a->p->session) {
      if (a->p->session) driver->disconnect(a->p->session);
      a->p->session = NULL;
      (void)driver->connect(store_of(a->p), by, &a->p->session, &a->p->identity, &a->p->reported);
    }
    if (run == DIBS_OK && op.op.status != DIBS_UNKNOWN && op.op.status != DIBS_UNAVAILABLE) return op.op.status;
  }
  return DIBS_TIMEOUT;
}

static void add_in_thread(void *arg) {
  struct adder *a = arg;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  for (uint64_t sequence = 1; sequence <= BATCHES; sequence++) {
    dibs__status status = send_batch(a, sequence, by);
    if (status != DIBS_OK && status != DIBS_REPLAY) a->failures++;
    if (send_batch(a, sequence, by) != DIBS_REPLAY) a->failures++;
  }
}

static void R87_batches_at_the_same_time_lose_nothing(void **state) {
  (void)state;
  static struct adder adders[ADDERS];
  struct party *p = counter_party();
  char key[16];
  for (int i = 0; i < ADDERS; i++) {
    adders[i] = (struct adder){.p = i ? party() : p, .source = id_of(i + 1)};
    for (int k = 0; k < RACE_KEYS; k++) {
      snprintf(key, sizeof key, "race%02d", k);
      adders[i].items[k] = item(key, k + 1);
    }
  }
  for (int i = 0; i < ADDERS; i++) {
    adders[i].thread = dibs__thread_start("adder", add_in_thread, &adders[i]);
    assert_non_null(adders[i].thread);
  }
  for (int i = 0; i < ADDERS; i++) dibs__thread_join(adders[i].thread);
  for (int i = 0; i < ADDERS; i++) assert_int_equal(adders[i].failures, 0);
  for (int k = 0; k < RACE_KEYS; k++) {
    snprintf(key, sizeof key, "race%02d", k);
    expect_number(p, key, ADDERS * BATCHES * (k + 1));
  }
}

/* ---- R88 ---- */

static void R88_a_sum_beyond_64_bits_is_refused_alone(void **state) {
  (void)state;
  struct party *p = counter_party(), *q = party();
  item_t items[] = {item("a", 1), item("high", INT64_MAX - 1), item("low", INT64_MIN), item("z", 1)};
  expect_applied(carry(p, batch_of(1, 1, items, 4)));
  items[1].delta = 2;
  items[2].delta = -1;
  expect_applied(carry(p, batch_of(1, 2, items, 4)));
  for (int again = 0; again < 2; again++) {
    expect_item(items[0], DIBS_OK);
    expect_item(items[1], DIBS_FULL);
    expect_item(items[2], DIBS_FULL);
    expect_item(items[3], DIBS_OK);
    expect(carry(q, batch_of(1, 2, items, 4)), DIBS_REPLAY); /* the repeat knows which */
  }
  expect_number(q, "a", 2);
  expect_number(q, "high", INT64_MAX - 1);
  expect_number(q, "low", INT64_MIN);
  expect_number(q, "z", 2);
  items[1].delta = 1; /* to the very end */
  items[2].delta = INT64_MAX;
  expect_applied(carry(p, batch_of(1, 3, items, 4)));
  for (int i = 0; i < 4; i++) expect_item(items[i], DIBS_OK);
  expect_number(q, "high", INT64_MAX);
  expect_number(q, "low", -1);
}

/* ---- R89 ---- */

static counter_op add_guarded(struct party *p, int source, uint64_t sequence, int guard, uint64_t fence) {
  item_t one = item("k", 1);
  counter_op op = batch_of(source, sequence, &one, 1);
  op.guard = id_of(guard);
  op.fence.v = fence;
  op = carry(p, op);
  op.items = NULL;
  return op;
}

static void R89_an_older_fence_of_the_guard_is_refused(void **state) {
  (void)state;
  struct party *p = counter_party(), *q = party();
  expect_applied(add_guarded(p, 1, 1, 100, 7));
  expect_applied(add_guarded(q, 2, 1, 100, 7));
  expect_applied(add_guarded(q, 3, 1, 100, 9));
  expect(add_guarded(p, 4, 1, 100, 8), DIBS_STALE);
  expect_applied(add_guarded(p, 4, 1, 101, 1));      /* another guard */
  expect(add_guarded(p, 1, 1, 100, 7), DIBS_REPLAY); /* it was done before */
  expect(add_guarded(p, 1, 2, 100, 7), DIBS_STALE);
  expect_applied(add_one(p, 1, 2, "k", 1)); /* the refused one left no trace in the ledger */
  expect_number(p, "k", 5);
}

/* ---- R90 ---- */

static void tidy(struct party *p) {
  if (store_of(p)->driver->tidy) store_of(p)->driver->tidy(store_of(p));
}

static void R90_the_ledger_keeps_a_source_for_its_time(void **state) {
  (void)state;
  struct party *p = counter_party();
  if (!target()->skew) skip();
  expect_applied(add_one(p, 1, 1, "k", 1));
  expect_applied(add_one(p, 2, 1, "k", 10));
  for (int day = 0; day < 6; day++) {
    advance_time(p, DAY_MS);
    tidy(p);
    expect(add_one(p, 1, 1, "k", 1), DIBS_REPLAY);
  }
  expect_applied(add_one(p, 1, 2, "k", 100)); /* begins the time again */
  advance_time(p, 6 * DAY_MS);
  tidy(p);
  expect(add_one(p, 1, 2, "k", 100), DIBS_REPLAY);
  expect_applied(add_one(p, 1, 3, "k", 1000));
  expect_number(p, "k", 1111);
}

/* A process that adds nothing for weeks continues with its sequence. */
static void R90_a_forgotten_source_continues(void **state) {
  (void)state;
  struct party *p = counter_party();
  if (!target()->skew) skip();
  expect_applied(add_one(p, 1, 41, "k", 1));
  advance_time(p, 30 * DAY_MS);
  tidy(p);
  expect_applied(add_one(p, 1, 42, "k", 1));
  expect(add_one(p, 1, 42, "k", 1), DIBS_REPLAY);
  expect_number(p, "k", 2);
}

/* ---- R91 ---- */

static void R91_reading_answers_each_key(void **state) {
  (void)state;
  struct party *p = counter_party();
  expect_applied(add_one(p, 1, 1, "b", 5));
  item_t items[] = {item("c", 0), item("b", 0), item("a", 0), item("b", 0)}; /* in any order */
  counter_op op = counter_op_of(DIBS__COUNTER_READ);
  op.items = items;
  op.count = 4;
  expect(carry(p, op), DIBS_OK);
  expect_item(items[0], DIBS_NOT_FOUND);
  expect_item(items[1], DIBS_OK);
  expect_item(items[2], DIBS_NOT_FOUND);
  expect_item(items[3], DIBS_OK);
  assert_int_equal(items[1].number, 5);
}

static void R91_keys_are_their_bytes(void **state) {
  (void)state;
  struct party *p = counter_party();
  static const char *const alike[] = {"aB", "Ab", "aB ", "ab", "a\xcc\x88", "\xc3\xa4"};
  enum { ALIKE = sizeof alike / sizeof alike[0] };
  for (int i = 0; i < ALIKE; i++) expect_applied(add_one(p, 1, (uint64_t)i + 1, alike[i], i + 1));
  for (int i = 0; i < ALIKE; i++) expect_number(p, alike[i], i + 1);
}

static void R49_a_key_that_cannot_be_kept_is_refused_alone(void **state) {
  (void)state;
  struct party *p = counter_party();
  item_t items[] = {item("a", 1), item("z", 1), {.key = dibs__str_of("\xff\xfe", 2), .delta = 1}};
  counter_op op = carry(p, batch_of(1, 1, items, 3));
  if (op.op.status == DIBS_UNAVAILABLE) fail_msg("one key makes the batch unavailable");
  expect_item(items[0], DIBS_OK);
  expect_item(items[1], DIBS_OK);
  if (items[2].status != DIBS_OK) expect_item(items[2], DIBS_INVALID);
  expect_number(p, "a", 1);
  expect_number(p, "z", 1);
}

/* ---- R92 ---- */

static counter_op list(struct party *p, dibs__str prefix, dibs__str after, uint32_t most) {
  counter_op op = counter_op_of(DIBS__COUNTER_LIST);
  op.prefix = prefix;
  op.after = after;
  op.most = most;
  op = carry(p, op);
  expect(op, DIBS_OK);
  return op;
}

static void R92_pages_have_each_counter_once(void **state) {
  (void)state;
  struct party *p = counter_party(), *q = party();
  char key[16];
  dibs__str prefix = name_of("list"), after = {"", 0};
  assert_int_equal(list(p, prefix, after, 5).got_count, 0);
  expect_applied(add_one(p, 9, 1, "lis", 1)); /* others beside them */
  expect_applied(add_one(p, 9, 2, "lisu", 1));
  for (int i = 0; i < MANY; i++) {
    snprintf(key, sizeof key, "list%02d", i * 37 % MANY);
    expect_applied(add_one(p, 1, (uint64_t)i + 1, key, i * 37 % MANY));
  }
  int seen = 0;
  for (;;) {
    counter_op page = list(q, prefix, after, PAGE);
    for (uint32_t i = 0; i < page.got_count; i++, seen++) {
      snprintf(key, sizeof key, "list%02d", seen);
      assert_true(dibs__str_equal(page.got[i].key, name_of(key)));
      assert_int_equal(page.got[i].number, seen);
    }
    if (page.got_count < PAGE) break;
    after = page.got[page.got_count - 1].key;
  }
  assert_int_equal(seen, MANY);
}

static void R92_bad_listings_are_refused(void **state) {
  (void)state;
  struct party *p = counter_party();
  counter_op op = counter_op_of(DIBS__COUNTER_LIST);
  expect(carry(p, op), DIBS_INVALID);
  op.most = DIBS__COUNTER_ROWS + 1;
  expect(carry(p, op), DIBS_INVALID);
}

/* ---- R93 to R95 ---- */

#define HOUR_MS INT64_C(3600000)

static counter_op take_op(const char *key, int64_t amount, int64_t limit, int64_t per_ms) {
  counter_op op = counter_op_of(DIBS__COUNTER_TAKE);
  op.key = name_of(key);
  op.op.bucket = dibs__bucket(op.key);
  op.amount = amount;
  op.limit = limit;
  op.per_ms = per_ms;
  return op;
}

/* How many of `count` takes are allowed.  *doubtful: an answer was lost, so one of them may have taken twice. */
static int take_many(struct party *p, const char *key, int count, int64_t limit, int64_t per_ms, bool *doubtful) {
  int allowed = 0;
  for (int i = 0; i < count; i++) {
    counter_op op = carry(p, take_op(key, 1, limit, per_ms));
    if (op.op.status != DIBS_OK && op.op.status != DIBS_FULL) expect(op, DIBS_OK);
    allowed += op.op.status == DIBS_OK;
    *doubtful = *doubtful || in_doubt(&op.op);
  }
  return allowed;
}

static void R93_clients_share_a_bucket(void **state) {
  (void)state;
  struct party *p = counter_party(), *q = party();
  bool doubtful = false;
  int allowed = take_many(p, "k", 4, 7, HOUR_MS, &doubtful);
  allowed += take_many(q, "k", 10, 7, HOUR_MS, &doubtful);
  if (doubtful ? allowed > 7 : allowed != 7) fail_msg("%d of 7 were allowed", allowed);
  assert_int_equal(take_many(q, "other", 1, 7, HOUR_MS, &doubtful), 1);
}

/* The clock is that of this process: it reads before the first take, and after the last one. */
static void R93_tokens_come_back_with_time(void **state) {
  (void)state;
  enum { LIMIT = 20, PER_MS = 1000, SPAN_MS = 1500 };
  struct party *p = counter_party();
  bool doubtful = false;
  dibs__tick began = dibs__tick_now(), end = dibs__tick_add_ms(began, SPAN_MS);
  int64_t allowed = 0;
  while (dibs__tick_before(dibs__tick_now(), end)) allowed += take_many(p, "k", 5, LIMIT, PER_MS, &doubtful);
  int64_t took_ms = dibs__tick_left_ms(began, dibs__tick_now());
  /* Instants of the store are whole milliseconds. */
  if (allowed > LIMIT + (took_ms + 2) * LIMIT / PER_MS + 1)
    fail_msg("%lld were allowed in %lld ms", (long long)allowed, (long long)took_ms);
  if (!doubtful && allowed < LIMIT) fail_msg("only %lld were allowed", (long long)allowed);
}

struct taker {
  struct party *p;
  dibs__thread *thread;
  counter_op op;
  int allowed, failures;
};

static void take_in_thread(void *arg) {
  struct taker *t = arg;
  const struct dibs__driver *driver = store_of(t->p)->driver;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  for (int i = 0; i < BATCHES; i++) {
    counter_op op = t->op;
    struct dibs__op *ops[] = {&op.op};
    op.op.status = DIBS_UNKNOWN;
    (void)(t->p->session ? driver->run(t->p->session, ops, 1, by, &t->p->reported) : DIBS_UNAVAILABLE);
    t->allowed += op.op.status == DIBS_OK;
    if (op.op.status == DIBS_OK || op.op.status == DIBS_FULL) continue;
    t->failures++;
    if (!t->p->reported.dead && t->p->session) continue;
    if (t->p->session) driver->disconnect(t->p->session);
    t->p->session = NULL;
    (void)driver->connect(store_of(t->p), by, &t->p->session, &t->p->identity, &t->p->reported);
  }
}

static void R93_takes_at_the_same_time_do_not_exceed_the_limit(void **state) {
  (void)state;
  enum { LIMIT = 50 };
  static struct taker takers[ADDERS];
  struct party *p = counter_party();
  int allowed = 0, failures = 0;
  for (int i = 0; i < ADDERS; i++)
    takers[i] = (struct taker){.p = i ? party() : p, .op = take_op("k", 1, LIMIT, 31 * DAY_MS)};
  for (int i = 0; i < ADDERS; i++) {
    takers[i].thread = dibs__thread_start("taker", take_in_thread, &takers[i]);
    assert_non_null(takers[i].thread);
  }
  for (int i = 0; i < ADDERS; i++) {
    dibs__thread_join(takers[i].thread);
    allowed += takers[i].allowed;
    failures += takers[i].failures;
  }
  if (allowed > LIMIT || (failures == 0 && allowed != LIMIT)) fail_msg("%d of %d were allowed", allowed, LIMIT);
}

static void R94_a_refused_take_changes_nothing(void **state) {
  (void)state;
  struct party *p = counter_party();
  bool doubtful = false;
  counter_op op = carry(p, take_op("k", 6, 10, 10 * HOUR_MS));
  expect(op, DIBS_OK);
  doubtful = in_doubt(&op.op);
  for (int i = 0; i < 5; i++) {
    op = carry(p, take_op("k", 5, 10, 10 * HOUR_MS));
    expect(op, DIBS_FULL);
    doubtful = doubtful || in_doubt(&op.op);
    if (doubtful) return; /* it may have taken before it was refused */
    assert_true(op.wait_ms > HOUR_MS - PATIENCE_MS && op.wait_ms <= HOUR_MS);
  }
  expect(carry(p, take_op("k", 4, 10, 10 * HOUR_MS)), DIBS_OK);
}

static void R94_after_the_time_it_is_allowed(void **state) {
  (void)state;
  struct party *p = counter_party();
  bool doubtful = false;
  (void)take_many(p, "k", 5, 5, 1000, &doubtful);
  counter_op op = carry(p, take_op("k", 5, 5, 1000));
  for (int i = 0; op.op.status == DIBS_FULL; i++) {
    assert_true(op.wait_ms >= 1 && op.wait_ms <= 1000);
    if (i > 0 && !in_doubt(&op.op) && !doubtful) fail_msg("it was refused after its time");
    doubtful = doubtful || in_doubt(&op.op);
    /* The store's clock may be read up to so much earlier. */
    dibs__nap_ms(op.wait_ms + 3);
    op = carry(p, take_op("k", 5, 5, 1000));
  }
  expect(op, DIBS_OK);
}

static void R95_a_smaller_time_applies_at_once(void **state) {
  (void)state;
  struct party *p = counter_party();
  bool doubtful = false;
  (void)take_many(p, "k", 9, 9, DAY_MS, &doubtful);
  counter_op op = carry(p, take_op("k", 1, 9, 900));
  if (op.op.status == DIBS_OK) return; /* a slow machine: the bucket was emptied for longer than a tenth of a second */
  expect(op, DIBS_FULL);
  assert_true(op.wait_ms <= 100);
  dibs__nap_ms(1000);
  expect(carry(p, take_op("k", 9, 9, 900)), DIBS_OK); /* full, and no more */
}

static void R95_bad_takes_are_refused(void **state) {
  (void)state;
  struct party *p = counter_party();
  expect(carry(p, take_op("k", 0, 5, 1000)), DIBS_INVALID);
  expect(carry(p, take_op("k", 6, 5, 1000)), DIBS_INVALID);
  expect(carry(p, take_op("k", 1, 0, 1000)), DIBS_INVALID);
  expect(carry(p, take_op("k", 1, DIBS__RATE_LIMIT_MAX + 1, 1000)), DIBS_INVALID);
  expect(carry(p, take_op("k", 1, 5, 0)), DIBS_INVALID);
  expect(carry(p, take_op("k", 1, 5, DIBS__RATE_PER_MAX_MS + 1)), DIBS_INVALID);
  expect(carry(p, take_op("k", DIBS__RATE_LIMIT_MAX, DIBS__RATE_LIMIT_MAX, DIBS__RATE_PER_MAX_MS)), DIBS_OK);
}

static const struct CMUnitTest contract_counters_cases[] = {
    CASE(R86_a_batch_is_applied_once),
    CASE(R86_an_earlier_batch_that_comes_late_is_not_applied),
    CASE(R86_sources_are_independent),
    CASE(R86_batches_of_one_run_are_each_answered),
    CASE(R86_a_whole_batch_is_applied),
    CASE(R86_bad_batches_are_refused),
    CASE(R87_batches_at_the_same_time_lose_nothing),
    CASE(R88_a_sum_beyond_64_bits_is_refused_alone),
    CASE(R89_an_older_fence_of_the_guard_is_refused),
    CASE(R90_the_ledger_keeps_a_source_for_its_time),
    CASE(R90_a_forgotten_source_continues),
    CASE(R91_reading_answers_each_key),
    CASE(R91_keys_are_their_bytes),
    CASE(R49_a_key_that_cannot_be_kept_is_refused_alone),
    CASE(R92_pages_have_each_counter_once),
    CASE(R92_bad_listings_are_refused),
    CASE(R93_clients_share_a_bucket),
    CASE(R93_tokens_come_back_with_time),
    CASE(R93_takes_at_the_same_time_do_not_exceed_the_limit),
    CASE(R94_a_refused_take_changes_nothing),
    CASE(R94_after_the_time_it_is_allowed),
    CASE(R95_a_smaller_time_applies_at_once),
    CASE(R95_bad_takes_are_refused),
};
CONTRACT_TESTS(contract_counters);

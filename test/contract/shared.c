/* SPDX-License-Identifier: MIT */
/* Sums that wait in a fast store (R98 to R102). */
#include "store/shared.h"
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dibs__shared_op shared_op;
typedef struct dibs__counter_item item_t;

enum { PATIENCE_MS = 60000, BIG = DIBS__COUNTER_ITEMS, MANY = 2500, ROUNDS = 3 };

/* ---- Operations ---- */

static struct party *shared_party(void) {
  struct party *p = party();
  needs_family(p, DIBS__FAM_SHARED);
  return p;
}

/* A space for each case: all cases may use one server. */
static dibs__str space(void) {
  static char text[33];
  dibs__id id = id_of(0);
  for (size_t i = 0; i < sizeof id.b; i++) snprintf(text + 2 * i, 3, "%02x", id.b[i]);
  return dibs__str_of(text, 32);
}

static shared_op op_of(enum dibs__shared_verb verb, uint32_t part) {
  shared_op op = {.op = {.family = DIBS__FAM_SHARED, .verb = (uint16_t)verb}, .space = space(), .part = part};
  op.op.by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  return op;
}

static shared_op carry(struct party *p, shared_op op) {
  struct dibs__op *ops[] = {&op.op};
  run_batch(p, ops, 1);
  if (op.got) free_at_end((char *)op.got);
  return op;
}

static item_t item(const char *key, int64_t delta) {
  return (item_t){.key = dibs__str_of(key, strlen(key)), .delta = delta};
}

/* Under the store's present incarnation. */
static shared_op add(struct party *p, int source, uint64_t sequence, item_t *items, uint32_t count) {
  static dibs__incarnation known;
  for (int tries = 0;; tries++) {
    shared_op op = op_of(DIBS__SHARED_ADD, 0);
    op.source = id_of(source);
    op.sequence = sequence;
    op.fresh = id_of(1000 + source);
    op.incarnation = known;
    op.items = items;
    op.count = count;
    op = carry(p, op);
    if (op.op.status != DIBS_CONFLICT || tries > 2) return op;
    known = op.incarnation;
  }
}

static shared_op add_one(struct party *p, int source, uint64_t sequence, const char *key, int64_t delta) {
  item_t one = item(key, delta);
  shared_op op = add(p, source, sequence, &one, 1);
  op.items = NULL;
  return op;
}

static void expect_added_at(int line, const shared_op *op) {
  if (op->op.status == DIBS_OK || (op->op.status == DIBS_REPLAY && in_doubt(&op->op))) return;
  fail_msg("line %d: the batch was answered %s", line, status_name(op->op.status));
}
#define expect_added(op)                                                                                               \
  do {                                                                                                                 \
    shared_op added_ = (op);                                                                                           \
    expect_added_at(__LINE__, &added_);                                                                                \
  } while (0)

static shared_op read_key(struct party *p, const char *key, int64_t *number) {
  item_t one = item(key, 0);
  shared_op op = op_of(DIBS__SHARED_READ, 0);
  op.items = &one;
  op.count = 1;
  op = carry(p, op);
  if (op.op.status != DIBS_OK) fail_msg("reading: %s", status_name(op.op.status));
  *number = one.number;
  op.items = NULL;
  return op;
}

static void expect_sums_at(int line, struct party *p, const char *key, int64_t added, int64_t sealed) {
  int64_t number;
  shared_op op = read_key(p, key, &number);
  if (number == added && op.sealed == sealed) return;
  fail_msg("line %d: %lld are added up and %lld sealed", line, (long long)number, (long long)op.sealed);
}
#define expect_sums(p, key, added, sealed) expect_sums_at(__LINE__, p, key, added, sealed)

static uint32_t part_of(const char *key) {
  return dibs__shared_part(dibs__str_of(key, strlen(key)));
}

static shared_op seal_sums(struct party *p, uint32_t part) {
  return carry(p, op_of(DIBS__SHARED_SEAL, part));
}

static dibs__status drop_sums(struct party *p, uint32_t part, const shared_op *sealed, item_t *refused,
                              uint32_t count) {
  shared_op op = op_of(DIBS__SHARED_DROP, part);
  op.source = sealed->source;
  op.sequence = sealed->sequence;
  op.items = refused;
  op.count = count;
  return carry(p, op).op.status;
}

static void expect_dropped_at(int line, dibs__status status) {
  if (status != DIBS_OK && status != DIBS_NOT_FOUND) fail_msg("line %d: %s", line, status_name(status));
}
#define expect_dropped(status) expect_dropped_at(__LINE__, status)

static int64_t sum_in(const shared_op *sealed, const char *key) {
  for (uint32_t i = 0; i < sealed->got_count; i++)
    if (dibs__str_equal(sealed->got[i].key, dibs__str_of(key, strlen(key)))) return sealed->got[i].sum;
  return 0;
}

/* ---- R98 ---- */

static void R98_a_batch_is_added_once(void **state) {
  (void)state;
  struct party *p = shared_party(), *q = party();
  item_t items[] = {item("a", 3), item("b", -4), item("c", 0)};
  expect_added(add(p, 1, 1, items, 3));
  for (int i = 0; i < 3; i++) assert_int_equal(items[i].status, DIBS_OK);
  for (int again = 0; again < 3; again++) {
    expect(add(again % 2 ? p : q, 1, 1, items, 3), DIBS_REPLAY);
    for (int i = 0; i < 3; i++) assert_int_equal(items[i].status, DIBS_OK);
  }
  expect_sums(q, "a", 3, 0);
  expect_sums(q, "b", -4, 0);
  expect_sums(q, "c", 0, 0);
}

static void R98_an_earlier_batch_that_comes_late_is_not_added(void **state) {
  (void)state;
  struct party *p = shared_party(), *q = party();
  expect_added(add_one(p, 1, 1, "k", 10));
  expect_added(add_one(p, 1, 5, "k", 100));
  expect(add_one(q, 1, 1, "k", 10), DIBS_REPLAY);
  expect(add_one(q, 1, 4, "k", 10), DIBS_REPLAY);
  expect_added(add_one(q, 2, 1, "k", 1000));
  expect_sums(p, "k", 1110, 0);
}

/* A repeat with other partitions than those of the first attempt that was lost half way. */
static void R98_each_partition_adds_once(void **state) {
  (void)state;
  struct party *p = shared_party();
  item_t items[] = {item("a", 1), item("b", 2), item("c", 4), item("d", 8)};
  expect_added(add(p, 1, 1, items, 2));
  shared_op op = add(p, 1, 1, items, 4);
  assert_true(op.op.status == DIBS_OK || op.op.status == DIBS_REPLAY);
  expect_sums(p, "a", 1, 0);
  expect_sums(p, "b", 2, 0);
}

static void R98_a_sum_that_does_not_fit_is_refused_by_itself(void **state) {
  (void)state;
  struct party *p = shared_party();
  expect_added(add_one(p, 1, 1, "k", INT64_MAX - 5));
  item_t items[] = {item("a", 1), item("k", 6), item("z", 2)};
  for (int again = 0; again < 2; again++) {
    shared_op op = add(p, 1, 2, items, 3);
    if (again)
      expect(op, DIBS_REPLAY);
    else
      expect_added(op);
    assert_int_equal(items[0].status, DIBS_OK);
    assert_int_equal(items[1].status, DIBS_FULL);
    assert_int_equal(items[2].status, DIBS_OK);
  }
  expect_sums(p, "a", 1, 0);
  expect_sums(p, "k", INT64_MAX - 5, 0);
  expect_added(add_one(p, 1, 3, "k", 5));
  expect_sums(p, "k", INT64_MAX, 0);
  expect_added(add_one(p, 1, 4, "low", INT64_MIN));
  expect_sums(p, "low", INT64_MIN, 0);
}

static void R98_nothing_is_added_to_another_incarnation(void **state) {
  (void)state;
  struct party *p = shared_party();
  item_t one = item("k", 7);
  shared_op op = op_of(DIBS__SHARED_ADD, 0);
  op.source = id_of(1);
  op.sequence = 1;
  op.fresh = id_of(2);
  memset(op.incarnation.b, 0xab, sizeof op.incarnation.b);
  op.items = &one;
  op.count = 1;
  op = carry(p, op);
  expect(op, DIBS_CONFLICT);
  expect_sums(p, "k", 0, 0);
  dibs__incarnation present = op.incarnation;
  op = op_of(DIBS__SHARED_ADD, 0);
  op.source = id_of(1);
  op.sequence = 1;
  op.fresh = id_of(2);
  op.incarnation = present;
  op.items = &one;
  op.count = 1;
  expect_added(carry(p, op));
  expect_sums(p, "k", 7, 0);
}

/* A repeat whose first attempt was sent `since_ms` ago. */
static shared_op repeat_one(struct party *p, uint64_t sequence, int64_t since_ms) {
  item_t one = item("k", 3);
  shared_op op = op_of(DIBS__SHARED_ADD, 0);
  op.source = id_of(1);
  op.sequence = sequence;
  op.fresh = id_of(1001);
  op.since_ms = since_ms;
  op.items = &one;
  op.count = 1;
  op = carry(p, op);
  if (op.op.status != DIBS_CONFLICT) return op;
  op.got = NULL;
  return carry(p, op); /* with the incarnation that was answered */
}

static void R98_a_repeat_is_not_added_to_a_memory_that_began_later(void **state) {
  (void)state;
  struct party *p = shared_party();
  expect(repeat_one(p, 1, 1), DIBS_CONFLICT); /* there is nothing: it may have been emptied */
  expect_sums(p, "k", 0, 0);
  expect_added(add_one(p, 2, 1, "k", 40));
  expect(repeat_one(p, 1, PATIENCE_MS * 100), DIBS_CONFLICT); /* begun by another client meanwhile */
  expect_sums(p, "k", 40, 0);
  dibs__nap_ms(20);
  expect_added(repeat_one(p, 1, 10));
  expect_sums(p, "k", 43, 0);
  expect(repeat_one(p, 1, PATIENCE_MS * 100), DIBS_REPLAY);
}

/* ---- R99 ---- */

static void R99_what_is_sealed_does_not_change(void **state) {
  (void)state;
  struct party *p = shared_party(), *q = party();
  uint32_t part = part_of("k");
  expect(seal_sums(p, part), DIBS_NOT_FOUND);
  expect_added(add_one(p, 1, 1, "k", 3));
  shared_op first = seal_sums(p, part);
  expect(first, DIBS_OK);
  expect_added(add_one(p, 1, 2, "k", 40));
  for (int again = 0; again < ROUNDS; again++) {
    shared_op op = seal_sums(again % 2 ? p : q, part);
    expect(op, DIBS_OK);
    assert_true(dibs__id_equal(op.source, first.source));
    assert_true(op.sequence == first.sequence);
    assert_int_equal(op.got_count, 1);
    assert_int_equal(sum_in(&op, "k"), 3);
  }
  expect_sums(q, "k", 40, 3);
  expect_dropped(drop_sums(p, part, &first, NULL, 0));
  shared_op second = seal_sums(p, part);
  expect(second, DIBS_OK);
  assert_true(dibs__id_equal(second.source, first.source) && second.sequence > first.sequence);
  assert_int_equal(sum_in(&second, "k"), 40);
  expect_dropped(drop_sums(q, part, &second, NULL, 0));
  expect(seal_sums(p, part), DIBS_NOT_FOUND);
  expect_sums(p, "k", 0, 0);
}

/* Many keys of one partition: batches of at most so many, in which each sum is once. */
static void R99_many_keys_are_several_batches(void **state) {
  (void)state;
  struct party *p = shared_party();
  static char keys[MANY][16];
  static item_t items[MANY];
  int n = 0, count = 0;
  for (int i = 0; n < MANY; i++) {
    snprintf(keys[n], sizeof keys[n], "k%09d", i);
    if (part_of(keys[n]) == 5) n++;
  }
  for (int i = 0; i < MANY; i++) items[i] = item(keys[i], i + 1);
  uint64_t sequence = 0;
  for (int at = 0; at < MANY; at += BIG)
    expect_added(add(p, 1, ++sequence, items + at, (uint32_t)(MANY - at < BIG ? MANY - at : BIG)));
  int64_t sum = 0;
  uint64_t last = 0;
  for (;;) {
    shared_op op = seal_sums(p, 5);
    if (op.op.status == DIBS_NOT_FOUND) break;
    expect(op, DIBS_OK);
    assert_true(op.got_count >= 1 && op.got_count <= BIG && op.sequence > last);
    last = op.sequence;
    for (uint32_t i = 0; i < op.got_count; i++) {
      sum += op.got[i].sum;
      count++;
      if (i > 0) assert_true(dibs__str_before(op.got[i - 1].key, op.got[i].key));
    }
    expect_dropped(drop_sums(p, 5, &op, NULL, 0));
  }
  assert_int_equal(count, MANY);
  assert_true(sum == (int64_t)MANY * (MANY + 1) / 2);
}

static void R99_each_partition_has_a_source_of_its_own(void **state) {
  (void)state;
  struct party *p = shared_party();
  item_t items[] = {item("a", 1), item("b", 2), item("c", 4), item("d", 8)};
  expect_added(add(p, 1, 1, items, 4));
  dibs__id sources[4];
  uint32_t seen = 0;
  for (int i = 0; i < 4; i++) {
    uint32_t part = dibs__shared_part(items[i].key);
    if (seen >> part & 1) fail_msg("the keys of this case must be in different partitions");
    seen |= 1u << part;
    shared_op op = seal_sums(p, part);
    expect(op, DIBS_OK);
    sources[i] = op.source;
    for (int j = 0; j < i; j++) assert_false(dibs__id_equal(sources[i], sources[j]));
  }
}

/* ---- R100 ---- */

/* Requests with one number are repeats of one. */
static shared_op forget(struct party *p, uint32_t part, int number, item_t *refused) {
  shared_op op = op_of(DIBS__SHARED_FORGET, part);
  op.fresh = id_of(2000 + number);
  op.items = refused;
  op.count = 1;
  return carry(p, op);
}

static void R100_only_the_sealed_batch_is_dropped(void **state) {
  (void)state;
  struct party *p = shared_party();
  uint32_t part = part_of("k");
  expect_added(add_one(p, 1, 1, "k", 3));
  shared_op first = seal_sums(p, part);
  expect_dropped(drop_sums(p, part, &first, NULL, 0));
  expect_added(add_one(p, 1, 2, "k", 40));
  shared_op second = seal_sums(p, part);
  assert_int_equal(drop_sums(p, part, &first, NULL, 0), DIBS_NOT_FOUND); /* it comes late */
  shared_op wrong = second;
  wrong.sequence += 1;
  assert_int_equal(drop_sums(p, part, &wrong, NULL, 0), DIBS_NOT_FOUND);
  wrong = second;
  wrong.source.b[3] ^= 1;
  assert_int_equal(drop_sums(p, part, &wrong, NULL, 0), DIBS_NOT_FOUND);
  expect_sums(p, "k", 0, 40);
}

static void R100_what_was_refused_stays_until_it_is_forgotten(void **state) {
  (void)state;
  struct party *p = shared_party();
  uint32_t part = part_of("k");
  item_t refused = item("k", 0);
  for (int i = 1; i <= 2; i++) {
    expect_added(add_one(p, 1, (uint64_t)i, "k", 3 * i));
    shared_op op = seal_sums(p, part);
    refused.delta = sum_in(&op, "k");
    refused.status = DIBS_NOT_FOUND;
    if (drop_sums(p, part, &op, &refused, 1) != DIBS_OK) return; /* a fault: whether it was dropped once is not known */
  }
  shared_op op = carry(p, op_of(DIBS__SHARED_REFUSED, part));
  expect(op, DIBS_OK);
  assert_int_equal(op.got_count, 1);
  assert_true(dibs__str_equal(op.got[0].key, refused.key));
  assert_int_equal(op.got[0].sum, 9);
  assert_int_equal(op.got[0].status, DIBS_NOT_FOUND);
  refused.delta = 3; /* it was answered before the second one was added to it */
  for (int i = 0; i < 2; i++) expect(forget(p, part, 1, &refused), DIBS_OK); /* and a repeat */
  op = carry(p, op_of(DIBS__SHARED_REFUSED, part));
  assert_int_equal(op.got_count, 1);
  assert_int_equal(op.got[0].sum, 6);
  refused.delta = 6;
  expect(forget(p, part, 2, &refused), DIBS_OK);
  assert_int_equal(carry(p, op_of(DIBS__SHARED_REFUSED, part)).got_count, 0);
}

static void R100_refused_sums_that_fit_in_none_are_forgotten_one_by_one(void **state) {
  (void)state;
  struct party *p = shared_party();
  uint32_t part = part_of("k");
  item_t refused = item("k", INT64_MIN);
  for (int i = 1; i <= 2; i++) {
    expect_added(add_one(p, 1, (uint64_t)i, "k", INT64_MIN));
    shared_op op = seal_sums(p, part);
    refused.status = DIBS_NOT_FOUND;
    if (drop_sums(p, part, &op, &refused, 1) != DIBS_OK) return; /* a fault: whether it was dropped once is not known */
  }
  shared_op all = carry(p, op_of(DIBS__SHARED_REFUSED, part));
  assert_int_equal(all.got_count, 2);
  for (uint32_t i = 0; i < 2; i++) {
    int64_t first = all.got[0].repeat;
    refused.number = i == 0 ? 0 : 1; /* the first one leaves a gap */
    assert_true(all.got[i].sum == INT64_MIN && all.got[1].repeat == 1 - first);
    expect(forget(p, part, (int)i + 1, &refused), DIBS_OK);
    assert_int_equal(carry(p, op_of(DIBS__SHARED_REFUSED, part)).got_count, 1 - i);
  }
}

/* ---- R101 ---- */

/* The server gets another incarnation, with its memory: as a replica that is promoted. */
static void begin_incarnation(void) {
  if (!getenv("DIBS_TEST_REDIS_ALONE")) skip(); /* other tests use this server, too */
  assert_non_null(getenv("DIBS_TEST_REDIS_ADMIN"));
  assert_int_equal(system("redis-cli -e -u \"$DIBS_TEST_REDIS_ADMIN\" REPLICAOF 127.0.0.1 1 >/dev/null 2>&1 &&"
                          " redis-cli -e -u \"$DIBS_TEST_REDIS_ADMIN\" REPLICAOF NO ONE >/dev/null 2>&1"),
                   0);
}

static void R101_sums_of_an_earlier_incarnation_are_sealed_first(void **state) {
  (void)state;
  struct party *p = shared_party();
  uint32_t part = part_of("k");
  expect_added(add_one(p, 1, 1, "k", 3));
  begin_incarnation();
  expect_added(add_one(p, 2, 1, "k", 40));
  expect_sums(p, "k", 40, 3);
  shared_op first = seal_sums(p, part);
  expect(first, DIBS_OK);
  assert_int_equal(sum_in(&first, "k"), 3);
  expect_dropped(drop_sums(p, part, &first, NULL, 0));
  shared_op second = seal_sums(p, part);
  expect(second, DIBS_OK);
  assert_int_equal(sum_in(&second, "k"), 40);
  assert_false(dibs__id_equal(second.source, first.source)); /* numbers begin again */
  assert_int_equal(second.sequence, 1);
}

/* ---- R102 ---- */

static void R102_reads_tell_which_sums_they_saw(void **state) {
  (void)state;
  struct party *p = shared_party();
  int64_t number;
  uint32_t part = part_of("k");
  shared_op none = read_key(p, "k", &number);
  assert_string_equal(none.name, "");
  assert_false(none.waits);
  expect_added(add_one(p, 1, 1, "k", 3));
  shared_op first = read_key(p, "k", &number), same = read_key(p, "k", &number);
  assert_string_not_equal(first.name, "");
  assert_string_equal(first.name, same.name);
  shared_op sealed = seal_sums(p, part);
  expect_added(add_one(p, 1, 2, "k", 40));
  shared_op later = read_key(p, "k", &number);
  assert_string_not_equal(later.name, first.name);
  assert_true(later.waits && later.sealed == 3 && number == 40);
  expect_dropped(drop_sums(p, part, &sealed, NULL, 0));
  shared_op after = read_key(p, "k", &number);
  assert_string_equal(after.name, later.name);
  assert_true(!after.waits && after.sealed == 0);
}

static void R102_a_look_counts_what_waits(void **state) {
  (void)state;
  struct party *p = shared_party();
  uint32_t part = part_of("k");
  shared_op op = carry(p, op_of(DIBS__SHARED_LOOK, 0));
  expect(op, DIBS_OK);
  for (int i = 0; i < DIBS__SHARED_PARTS; i++) {
    assert_true(op.parts[i].age_ms == -1);
    assert_int_equal(op.parts[i].batches, 0);
  }
  expect_added(add_one(p, 1, 1, "k", 3));
  shared_op sealed = seal_sums(p, part);
  expect(sealed, DIBS_OK);
  expect_added(add_one(p, 1, 2, "k", 40));
  op = carry(p, op_of(DIBS__SHARED_LOOK, 0));
  assert_true(op.parts[part].age_ms >= 0 && op.parts[part].age_ms < PATIENCE_MS);
  assert_int_equal(op.parts[part].batches, 2);
  assert_int_equal(op.parts[part].keys, 1);
}

static void R98_what_is_not_well_formed_is_refused(void **state) {
  (void)state;
  struct party *p = shared_party();
  item_t twice[] = {item("k", 1), item("k", 2)}, empty = item("", 1);
  expect(add(p, 1, 1, twice, 2), DIBS_INVALID);
  expect(add(p, 1, 1, &empty, 1), DIBS_INVALID);
  expect(add_one(p, 1, 0, "k", 1), DIBS_INVALID);
  shared_op op = op_of(DIBS__SHARED_SEAL, DIBS__SHARED_PARTS);
  expect(carry(p, op), DIBS_INVALID);
  op = op_of(DIBS__SHARED_LOOK, 0);
  op.space = dibs__str_of("a:b", 3);
  expect(carry(p, op), DIBS_INVALID);
}

static const struct CMUnitTest contract_shared_cases[] = {
    CASE(R98_a_batch_is_added_once),
    CASE(R98_an_earlier_batch_that_comes_late_is_not_added),
    CASE(R98_each_partition_adds_once),
    CASE(R98_a_sum_that_does_not_fit_is_refused_by_itself),
    CASE(R98_what_is_not_well_formed_is_refused),
    CASE(R98_nothing_is_added_to_another_incarnation),
    CASE(R98_a_repeat_is_not_added_to_a_memory_that_began_later),
    CASE(R99_what_is_sealed_does_not_change),
    CASE(R99_many_keys_are_several_batches),
    CASE(R99_each_partition_has_a_source_of_its_own),
    CASE(R100_only_the_sealed_batch_is_dropped),
    CASE(R100_what_was_refused_stays_until_it_is_forgotten),
    CASE(R100_refused_sums_that_fit_in_none_are_forgotten_one_by_one),
    CASE(R101_sums_of_an_earlier_incarnation_are_sealed_first),
    CASE(R102_reads_tell_which_sums_they_saw),
    CASE(R102_a_look_counts_what_waits),
};
CONTRACT_TESTS(contract_shared);

/* SPDX-License-Identifier: MIT */
/* Names, keys, claims and owners are bytes (R48, R49): the strings of test/hostile. */
#include "harness.h"
#include "hostile/hostile.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOGETHER = 32, PATIENCE_MS = 30000 };
#define DAY_MS INT64_C(86400000)

static dibs__str str(const struct hostile *h) {
  return dibs__str_of(h->p, h->len);
}

static size_t fit_count(void) {
  return hostile_short_count + hostile_long_count;
}
static dibs__str fit(size_t i) {
  return str(i < hostile_short_count ? &hostile_short[i] : &hostile_long[i - hostile_short_count]);
}
/* A label that is unrelated to the name. */
static dibs__str label(size_t i) {
  assert(hostile_short_count > 0);
  return str(&hostile_short[(i * 7 + 3) % hostile_short_count]);
}

static bool begins(dibs__str text, dibs__str with) {
  return text.len >= with.len && memcmp(text.p, with.p, with.len) == 0;
}

static bool is(const char *seen, dibs__str text) {
  return strlen(seen) == text.len && memcmp(seen, text.p, text.len) == 0;
}

static dibs__tick patience(void) {
  return dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
}

/* Makes a text unique to this case, because stores remember some texts for ever: the case's name comes before or after
 * the text, or, in a long one, before its last bytes. */
static dibs__str joined(char to[DIBS_NAME_MAX], dibs__str first, dibs__str second) {
  assert_true(first.len + second.len <= DIBS_NAME_MAX);
  memcpy(to, first.p, first.len);
  memcpy(to + first.len, second.p, second.len);
  return dibs__str_of(to, first.len + second.len);
}

static size_t salted_count(void) {
  return 2 * hostile_short_count + hostile_long_count;
}

static dibs__str salted(size_t i, char to[DIBS_NAME_MAX]) {
  dibs__str salt = name_of("");
  if (i < hostile_short_count) return joined(to, salt, str(&hostile_short[i]));
  if (i < 2 * hostile_short_count) return joined(to, str(&hostile_short[i - hostile_short_count]), salt);
  dibs__str text = str(&hostile_long[i - 2 * hostile_short_count]);
  size_t from = text.len > DIBS_NAME_MAX - salt.len ? text.len - (DIBS_NAME_MAX - salt.len) : 0;
  while (((uint8_t)text.p[from] & 0xc0) == 0x80) from++;
  return joined(to, salt, dibs__str_of(text.p + from, text.len - from));
}

/* ---- Leases ---- */

static struct dibs__lease_op lease_of(struct party *p, enum dibs__lease_verb verb, dibs__str name, dibs__str owner,
                                      int id) {
  struct dibs__lease_op op = lease_op(p, verb, "", id, (struct how){.ttl = 600000, .try_only = true});
  op.name = name;
  op.owner = owner;
  op.op.bucket = dibs__bucket(name);
  op.op.mandate = mandate_for(p, op.op.bucket);
  return op;
}

static struct dibs__lease_op send_request(struct party *p, enum dibs__lease_verb verb, dibs__str name, dibs__str owner,
                                          int id, dibs__fence fence) {
  struct dibs__lease_op op = lease_of(p, verb, name, owner, id);
  struct dibs__op *ops[] = {&op.op};
  op.fence = fence;
  run_batch(p, ops, 1);
  return op;
}

/* All of them in large batches; ids from `first` on. */
static void request_all(struct party *p, enum dibs__lease_verb verb, int first, struct dibs__lease_op *ops,
                        dibs__status want) {
  for (size_t at = 0; at < fit_count(); at += TOGETHER) {
    struct dibs__op *batch[TOGETHER];
    size_t n = 0;
    for (size_t i = at; i < fit_count() && n < TOGETHER; i++) {
      dibs__fence fence = ops[i].fence;
      ops[i] = lease_of(p, verb, fit(i), label(i), first + (int)i);
      ops[i].fence = fence;
      batch[n++] = &ops[i].op;
    }
    run_batch(p, batch, n);
  }
  for (size_t i = 0; i < fit_count(); i++) {
    if (ops[i].op.status != want && !in_doubt(&ops[i].op)) print_error("\"%.*s\":\n", (int)fit(i).len, fit(i).p);
    expect(ops[i], want);
  }
}

static struct dibs__lease_op *capacity_for_all(void) {
  struct dibs__lease_op *ops = calloc(fit_count(), sizeof *ops);
  assert_non_null(ops);
  free_at_end((char *)ops);
  return ops;
}

static void expect_alone(struct party *p, size_t i) {
  struct seen seen = list_how(p, (struct dibs__list){.name = fit(i)});
  size_t holders = 0;
  for (size_t k = 0; k < seen.count; k++) {
    assert_true(is(seen.rows[k].name, fit(i)));
    if (seen.rows[k].row.state != DIBS__HOLDS) continue;
    holders++;
    assert_true(is(seen.rows[k].owner, label(i)));
  }
  assert_int_equal(holders, 1);
}

/* The names of this test; the store may contain others. */
static void expect_listed(struct party *p, dibs__str prefix) {
  struct seen seen = list_how(p, (struct dibs__list){.prefix = prefix});
  for (size_t i = 0; i < fit_count(); i++) {
    size_t rows = 0;
    for (size_t k = 0; k < seen.count; k++) {
      if (!is(seen.rows[k].name, fit(i))) continue;
      rows++;
      assert_true(is(seen.rows[k].owner, label(i)));
    }
    if (rows != begins(fit(i), prefix))
      fail_msg("\"%.*s\" occurs %zu times among names that begin with \"%.*s\"", (int)fit(i).len, fit(i).p, rows,
               (int)prefix.len, prefix.p);
  }
}

static void R48_each_name_is_distinct(void **state) {
  (void)state;
  struct party *p = party(), *q = party();
  struct dibs__lease_op *held = capacity_for_all(), *others = capacity_for_all();
  request_all(p, DIBS__ACQUIRE, 0, held, DIBS_OK);
  request_all(q, DIBS__ACQUIRE, 1000, others, DIBS_HELD);
  for (size_t i = 0; i < fit_count(); i++) expect_alone(p, i);
  request_all(p, DIBS__RENEW, 0, held, DIBS_OK);
  expect_listed(p, dibs__str_of("", 0));
  for (size_t i = 0; i < fit_count(); i += 2) {
    expect(send_request(p, DIBS__RELEASE, fit(i), label(i), (int)i, held[i].fence), DIBS_OK);
    if (i + 1 < fit_count()) expect_alone(p, i + 1);
  }
  for (size_t i = 1; i < fit_count(); i += 2)
    expect(send_request(p, DIBS__RELEASE, fit(i), label(i), (int)i, held[i].fence), DIBS_OK);
}

static void R48_a_prefix_matches_bytes(void **state) {
  (void)state;
  struct party *p = party();
  struct dibs__lease_op *held = capacity_for_all();
  request_all(p, DIBS__ACQUIRE, 0, held, DIBS_OK);
  for (size_t i = 0; i < fit_count(); i++) expect_listed(p, fit(i));
  request_all(p, DIBS__RELEASE, 0, held, DIBS_OK);
}

static void R48_waiters_and_breaks_keep_their_labels(void **state) {
  (void)state;
  needs_rows();
  needs(DIBS__CAP_FIFO);
  struct party *p = party(), *q = party();
  struct dibs__lease_op *held = capacity_for_all();
  request_all(p, DIBS__ACQUIRE, 0, held, DIBS_OK);
  for (size_t i = 0; i < fit_count(); i++) {
    struct dibs__lease_op wait = lease_of(q, DIBS__ACQUIRE, fit(i), label(i + 1), 1000 + (int)i);
    struct dibs__op *ops[] = {&wait.op};
    wait.queue = true;
    run_batch(q, ops, 1);
    expect(wait, DIBS__QUEUED);
    expect(send_request(q, DIBS__CANCEL, fit(i), label(i), 2000 + (int)i, DIBS__FENCE_NONE), DIBS_NOT_FOUND);
    struct seen seen = list_how(p, (struct dibs__list){.name = fit(i)});
    size_t waits = 0;
    for (size_t k = 0; k < seen.count; k++)
      waits += seen.rows[k].row.state == DIBS__WAITS && is(seen.rows[k].owner, label(i + 1));
    assert_int_equal(waits, 1);
    expect_was(send_request(q, DIBS__CANCEL, fit(i), label(i), 1000 + (int)i, DIBS__FENCE_NONE), DIBS__WAS_WAITING);
    expect(send_request(q, DIBS__BREAK, fit(i), label(i + 2), 0, DIBS__FENCE_NONE), DIBS_OK);
    seen = list_how(p, (struct dibs__list){.name = fit(i)});
    size_t breaks = 0;
    for (size_t k = 0; k < seen.count; k++)
      breaks += seen.rows[k].row.state == DIBS__BROKEN && is(seen.rows[k].owner, label(i + 2));
    assert_true(breaks >= 1);
  }
  request_all(p, DIBS__RELEASE, 0, held, DIBS_OK);
}

/* ---- Records, once, stock ---- */

static struct dibs__record_op record(struct party *p, enum dibs__record_verb verb, dibs__str key, dibs__str data) {
  struct dibs__record_op op = record_op(verb, "", 1, DIBS__FENCE_NONE, NULL);
  struct dibs__op *ops[] = {&op.op};
  op.key = key;
  op.data = data;
  op.op.bucket = dibs__bucket(key);
  run_batch(p, ops, 1);
  free_at_end(op.got);
  return op;
}

static void R48_each_key_is_one_record(void **state) {
  (void)state;
  struct party *p = party();
  needs_family(p, DIBS__FAM_RECORD);
  for (size_t i = 0; i < fit_count(); i++) expect(record(p, DIBS__RECORD_PUT, fit(i), label(i)), DIBS_OK);
  for (size_t i = 0; i < fit_count(); i++) {
    struct dibs__record_op got = record(p, DIBS__RECORD_LOAD, fit(i), (dibs__str){0});
    expect(got, DIBS_OK);
    assert_int_equal(got.got_len, label(i).len);
    assert_memory_equal(got.got, label(i).p, label(i).len);
  }
  for (size_t i = 0; i < fit_count(); i++) {
    struct dibs__record_op gone = record(p, DIBS__RECORD_DROP, fit(i), (dibs__str){0});
    if (!in_doubt(&gone.op)) expect(gone, DIBS_OK);
    expect(record(p, DIBS__RECORD_LOAD, fit(i), (dibs__str){0}), DIBS_NOT_FOUND);
  }
}

static struct dibs__once_op once(struct party *p, enum dibs__once_verb verb, dibs__str key, dibs__str data) {
  struct dibs__once_op op = {.op = {.family = DIBS__FAM_ONCE, .verb = (uint16_t)verb}, .key = key, .data = data};
  struct dibs__op *ops[] = {&op.op};
  op.op.flags = verb == DIBS__ONCE_READ ? DIBS__OP_READS : 0;
  op.op.bucket = dibs__bucket(key);
  op.op.by = patience();
  op.id = id_of(1);
  op.fence = (dibs__fence){1};
  op.keep_ms = DAY_MS;
  run_batch(p, ops, 1);
  free_at_end(op.got);
  return op;
}

static void R48_each_key_is_one_answer(void **state) {
  (void)state;
  struct party *p = party();
  char to[DIBS_NAME_MAX];
  needs_family(p, DIBS__FAM_ONCE);
  for (size_t i = 0; i < salted_count(); i++) expect(once(p, DIBS__ONCE_STORE, salted(i, to), label(i)), DIBS_OK);
  for (size_t i = 0; i < salted_count(); i++) {
    struct dibs__once_op got = once(p, DIBS__ONCE_READ, salted(i, to), (dibs__str){0});
    expect(got, DIBS_OK);
    assert_int_equal(got.got_len, label(i).len);
    assert_memory_equal(got.got, label(i).p, label(i).len);
  }
  for (size_t i = 0; i < salted_count(); i++) {
    (void)once(p, DIBS__ONCE_FORGET, salted(i, to), (dibs__str){0});
    expect(once(p, DIBS__ONCE_READ, salted(i, to), (dibs__str){0}), DIBS_NOT_FOUND);
  }
}

static struct dibs__stock_op stock(struct party *p, enum dibs__stock_verb verb, dibs__str key, int64_t amount,
                                   dibs__str claim, dibs__str owner) {
  struct dibs__stock_op op = {.op = {.family = DIBS__FAM_STOCK, .verb = (uint16_t)verb}, .key = key};
  struct dibs__op *ops[] = {&op.op};
  op.op.flags = verb == DIBS__STOCK_READ ? DIBS__OP_READS : 0;
  op.op.bucket = dibs__bucket(key);
  op.op.lane = op.op.bucket + 1u;
  op.op.by = patience();
  op.amount = amount;
  op.claim = claim;
  op.owner = owner;
  run_batch(p, ops, 1);
  return op;
}

static void expect_taken(struct dibs__stock_op got, bool first) {
  if (in_doubt(&got.op) && got.op.status == DIBS_REPLAY) return;
  expect(got, first ? DIBS_OK : DIBS_REPLAY);
}

static void R48_each_key_is_one_stock(void **state) {
  (void)state;
  struct party *p = party();
  needs_family(p, DIBS__FAM_STOCK);
  dibs__str none = {0};
  char to[DIBS_NAME_MAX];
  for (size_t i = 0; i < fit_count(); i++)
    expect(stock(p, DIBS__STOCK_SET, fit(i), 1000 + (int64_t)i, none, none), DIBS_OK);
  for (size_t i = 0; i < fit_count(); i++)
    expect_taken(stock(p, DIBS__STOCK_TAKE, fit(i), 1 + (int64_t)i, salted(i, to), label(i)), true);
  for (size_t i = 0; i < fit_count(); i++) {
    struct dibs__stock_op got = stock(p, DIBS__STOCK_READ, fit(i), 0, none, none);
    expect(got, DIBS_OK);
    assert_int_equal(got.limit, 1000 + i);
    assert_int_equal(got.used, 1 + i);
    got = stock(p, DIBS__STOCK_GIVE, fit(i), 0, salted(i, to), none);
    if (!in_doubt(&got.op)) expect(got, DIBS_OK);
  }
}

static void R48_each_claim_is_distinct(void **state) {
  (void)state;
  struct party *p = party();
  needs_family(p, DIBS__FAM_STOCK);
  dibs__str none = {0}, key = name_of("seats");
  char to[DIBS_NAME_MAX];
  size_t count = 2 * hostile_short_count;
  expect(stock(p, DIBS__STOCK_SET, key, 100000, none, none), DIBS_OK);
  for (size_t i = 0; i < count; i++)
    expect_taken(stock(p, DIBS__STOCK_TAKE, key, 1 + (int64_t)i, salted(i, to), label(i)), true);
  for (size_t i = 0; i < count; i++) {
    struct dibs__stock_op got = stock(p, DIBS__STOCK_TAKE, key, 1 + (int64_t)i, salted(i, to), label(i));
    expect(got, DIBS_REPLAY);
    assert_int_equal(got.got, 1 + i);
  }
  struct dibs__stock_op got = stock(p, DIBS__STOCK_READ, key, 0, none, none);
  assert_int_equal(got.used, count * (count + 1) / 2);
  for (size_t i = 0; i < count; i++) {
    got = stock(p, DIBS__STOCK_GIVE, key, 0, salted(i, to), none);
    if (in_doubt(&got.op)) continue;
    expect(got, DIBS_OK);
    assert_int_equal(got.got, 1 + i);
  }
  assert_int_equal(stock(p, DIBS__STOCK_READ, key, 0, none, none).used, 0);
}

/* ---- Texts that some stores cannot keep ---- */

/* The store keeps the text unchanged, or refuses it. */
static bool kept_or_refused(const struct dibs__op *op) {
  if (op->status != DIBS_INVALID && op->status != DIBS_UNSUPPORTED) expect_at(__FILE__, __LINE__, *op, DIBS_OK);
  return op->status == DIBS_OK;
}

static void R49_a_refused_name_is_refused_alone(void **state) {
  (void)state;
  struct party *p = party();
  for (size_t i = 0; i < hostile_raw_count; i++) {
    dibs__str names[] = {name_of("before"), str(&hostile_raw[i]), name_of("behind")};
    dibs__str owners[] = {label(i), label(i), str(&hostile_raw[i])};
    struct dibs__lease_op ops[3];
    struct dibs__op *batch[3];
    for (int k = 0; k < 3; k++) {
      ops[k] = lease_of(p, DIBS__ACQUIRE, names[k], owners[k], k);
      batch[k] = &ops[k].op;
    }
    run_batch(p, batch, 3);
    expect(ops[0], DIBS_OK);
    for (int k = 0; k < 3; k++)
      if (kept_or_refused(&ops[k].op))
        expect(send_request(p, DIBS__RELEASE, names[k], owners[k], k, ops[k].fence), DIBS_OK);
  }
}

static void R49_a_refused_key_is_refused_alone(void **state) {
  (void)state;
  struct party *p = party();
  dibs__str none = {0};
  needs_family(p, DIBS__FAM_RECORD);
  for (size_t i = 0; i < hostile_raw_count; i++) {
    dibs__str keys[] = {name_of("before"), str(&hostile_raw[i]), name_of("behind")};
    struct dibs__record_op ops[3];
    struct dibs__op *batch[3];
    for (int k = 0; k < 3; k++) {
      ops[k] = record_op(DIBS__RECORD_PUT, "", 1, DIBS__FENCE_NONE, NULL);
      ops[k].key = keys[k];
      ops[k].data = label(i);
      ops[k].op.bucket = dibs__bucket(keys[k]);
      batch[k] = &ops[k].op;
    }
    run_batch(p, batch, 3);
    expect(ops[0], DIBS_OK);
    expect(ops[2], DIBS_OK);
    if (!kept_or_refused(&ops[1].op)) continue;
    struct dibs__record_op got = record(p, DIBS__RECORD_LOAD, keys[1], none);
    expect(got, DIBS_OK);
    assert_memory_equal(got.got, label(i).p, label(i).len);
    (void)record(p, DIBS__RECORD_DROP, keys[1], none);
  }
  if (p->identity.families & 1u << DIBS__FAM_ONCE)
    for (size_t i = 0; i < hostile_raw_count; i++) {
      char to[DIBS_NAME_MAX];
      dibs__str key = joined(to, name_of(""), str(&hostile_raw[i]));
      struct dibs__once_op got = once(p, DIBS__ONCE_STORE, key, label(i));
      if (kept_or_refused(&got.op)) expect(once(p, DIBS__ONCE_READ, key, none), DIBS_OK);
    }
}

static void R49_a_refused_claim_is_refused_alone(void **state) {
  (void)state;
  struct party *p = party();
  needs_family(p, DIBS__FAM_STOCK);
  dibs__str none = {0}, key = name_of("seats");
  expect(stock(p, DIBS__STOCK_SET, key, 100000, none, none), DIBS_OK);
  int64_t used = 0;
  for (size_t i = 0; i < hostile_raw_count; i++) {
    char texts[3][DIBS_NAME_MAX];
    struct dibs__stock_op ops[3];
    struct dibs__op *batch[3];
    for (int k = 0; k < 3; k++) {
      dibs__str salt = name_of(k == 0 ? "before" : k == 1 ? "" : "behind"), raw = str(&hostile_raw[i]);
      char letter = (char)('a' + (char)i);
      ops[k] = (struct dibs__stock_op){.op = {.family = DIBS__FAM_STOCK, .verb = DIBS__STOCK_TAKE}, .key = key};
      ops[k].op.bucket = dibs__bucket(key);
      ops[k].op.lane = ops[k].op.bucket + 1u;
      ops[k].op.by = patience();
      ops[k].amount = 1;
      ops[k].claim = joined(texts[k], salt, k == 1 ? raw : dibs__str_of(&letter, 1));
      ops[k].owner = label(i);
      batch[k] = &ops[k].op;
    }
    run_batch(p, batch, 3);
    expect_taken(ops[0], true);
    expect_taken(ops[2], true);
    bool replayed = in_doubt(&ops[1].op) && ops[1].op.status == DIBS_REPLAY;
    used += 2 + (replayed || kept_or_refused(&ops[1].op));
    assert_int_equal(stock(p, DIBS__STOCK_READ, key, 0, none, none).used, used);
  }
}

static const struct CMUnitTest contract_texts_cases[] = {
    CASE(R48_each_name_is_distinct),
    CASE(R48_a_prefix_matches_bytes),
    CASE(R48_waiters_and_breaks_keep_their_labels),
    CASE(R48_each_key_is_one_record),
    CASE(R48_each_key_is_one_answer),
    CASE(R48_each_key_is_one_stock),
    CASE(R48_each_claim_is_distinct),
    CASE(R49_a_refused_name_is_refused_alone),
    CASE(R49_a_refused_key_is_refused_alone),
    CASE(R49_a_refused_claim_is_refused_alone),
};
CONTRACT_TESTS(contract_texts);

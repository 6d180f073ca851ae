/* SPDX-License-Identifier: MIT */
/* The fast statements alone: they decide rows in the expected state, and leave all others to the general statements. */
#include "drivers/postgres/postgres_impl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { EPOCH = 5, SEQ = 10, SESSION = 77, TTL = 1000 };

static const char *server;
static struct dibs__server store;
static struct dibs__uri uri;
static struct dibs__sql_wire *w;
static const dibs__incarnation incarnation = {.b = "a life of the store"};

/* ---- The bed ---- */

static void say(const char *text) {
  w->by = dibs__tick_add_ms(dibs__tick_now(), 10000);
  bool fine = w->engine->put(w, text, NULL, 0) == DIBS__SQL_OK && w->engine->go(w, true) == DIBS__SQL_OK;
  if (!fine) fail_msg("%s: %s", text, w->message);
}

static int64_t send_request(const char *text) {
  say(text);
  return w->engine->rows(w, 0) ? dibs__sql_cell_number(w, 0, 0, 0) : -1;
}

static int setup(void **state) {
  struct dibs__result reported = {.text = ""};
  char text[4096];
  (void)state;
  assert_int_equal(dibs__uri_parse(server, &uri, &reported), DIBS_OK);
  store.engine = &dibs__pg_engine;
  snprintf(store.options.schema, sizeof store.options.schema, "fast_test");
  snprintf(store.options.prefix, sizeof store.options.prefix, "dibs_");
  store.options.lock_timeout_ms = 2000;
  store.opened.as_tier = true; /* a bucket of its own draws by the clock: test/contract/clock.c */
  assert_int_equal(dibs__pg_prepare(&uri, &store, &store.location, &reported), DIBS_OK);
  if (dibs__pg_connect(&store, dibs__tick_add_ms(dibs__tick_now(), 10000), &w, &reported))
    fail_msg("%s", reported.text);
  say("DROP SCHEMA IF EXISTS fast_test CASCADE");
  say("CREATE SCHEMA fast_test");
  for (size_t i = 0; dibs__sql_schema(&dibs__pg_engine.sql.words, 0, i, text, sizeof text); i++) say(text);
  struct dibs__sql_value v[] = {dibs__sql_bytes(incarnation.b, sizeof incarnation.b), dibs__sql_number(EPOCH),
                                dibs__sql_number(SEQ)};
  assert_int_equal(w->engine->put(w,
                                  "INSERT INTO dibs_name (bucket, name, place, life, epoch, seq, state)"
                                  " SELECT b, '', 0, $1, $2, $3, 1 FROM generate_series(0, 3) b",
                                  v, 3),
                   DIBS__SQL_OK);
  assert_int_equal(w->engine->go(w, true), DIBS__SQL_OK);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  dibs__pg_close(w);
  dibs__pg_forget(store.location);
  dibs__uri_free(&uri);
  return 0;
}

static struct dibs__lease_op op_of(enum dibs__lease_verb verb, const char *name, uint16_t bucket, int id) {
  struct dibs__lease_op op = {.name = {name, (uint32_t)strlen(name)}, .owner = {"me", 2}, .ttl_ms = TTL};
  op.op.family = DIBS__FAM_LEASE;
  op.op.verb = (uint16_t)verb;
  op.op.bucket = bucket;
  op.op.mandate = (dibs__mandate){EPOCH, incarnation};
  op.op.status = DIBS_UNKNOWN;
  op.id.b[0] = (uint8_t)id;
  op.waiting = true;
  return op;
}

static int64_t run(struct dibs__lease_op *ops, size_t count) {
  struct dibs__lease_op *all[64];
  int64_t now = 0;
  for (size_t i = 0; i < count; i++) {
    ops[i].op.status = DIBS_UNKNOWN;
    all[i] = &ops[i];
  }
  w->by = dibs__tick_add_ms(dibs__tick_now(), 10000);
  if (dibs__pg_fast(&store, w, SESSION, all, count, &now) != DIBS__SQL_OK) fail_msg("%s", w->message);
  return now;
}

static uint64_t fence(uint32_t seq) {
  return dibs__fence_make(EPOCH, seq).v;
}

static struct dibs__lease_op take(const char *name, uint16_t bucket, int id, uint32_t want) {
  struct dibs__lease_op op = op_of(DIBS__ACQUIRE, name, bucket, id);
  op.want_block = want;
  run(&op, 1);
  assert_int_equal(op.op.status, DIBS_OK);
  assert_false(op.waiting);
  return op;
}

/* ---- Acquires ---- */

static void each_bucket_draws_its_own_fences(void **state) {
  (void)state;
  struct dibs__lease_op ops[] = {op_of(DIBS__ACQUIRE, "a", 0, 1), op_of(DIBS__ACQUIRE, "b", 1, 2),
                                 op_of(DIBS__ACQUIRE, "c", 2, 3)};
  ops[1].want_block = 4;
  int64_t now = run(ops, 3);
  for (size_t i = 0; i < 3; i++) {
    assert_int_equal(ops[i].op.status, DIBS_OK);
    assert_false(ops[i].waiting);
    assert_int_equal(ops[i].fence.v, fence(SEQ + 1));
    assert_int_equal(ops[i].got_block, i == 1 ? 4 : 1);
    assert_in_range(ops[i].until.ms, now + TTL - 100, now + TTL);
  }
  assert_int_equal(send_request("SELECT sum(seq)::bigint FROM dibs_name WHERE name = ''"), 4 * SEQ + 1 + 4 + 1);
  assert_int_equal(
      send_request("SELECT count(*) FROM dibs_name WHERE name <> '' AND place = 0 AND holders = 1 AND session = 77"
                   " AND granted = first AND waiters = 0 AND mode = 0 AND owner = 'me' AND until - since = ttl"),
      3);
}

static void a_held_name_of_many_draws_nothing(void **state) {
  (void)state;
  take("b", 0, 9, 1);
  struct dibs__lease_op ops[] = {op_of(DIBS__ACQUIRE, "a", 0, 1), op_of(DIBS__ACQUIRE, "b", 0, 2),
                                 op_of(DIBS__ACQUIRE, "c", 0, 3), op_of(DIBS__ACQUIRE, "d", 1, 4)};
  ops[0].want_block = 2, ops[2].want_block = 3;
  run(ops, 4);
  assert_int_equal(ops[0].fence.v, fence(SEQ + 2));
  assert_int_equal(ops[0].got_block, 2);
  assert_int_equal(ops[1].op.status, DIBS_UNKNOWN);
  assert_int_equal(ops[2].fence.v, fence(SEQ + 4));
  assert_int_equal(ops[3].fence.v, fence(SEQ + 1));
  assert_int_equal(send_request("SELECT seq FROM dibs_name WHERE bucket = 0 AND name = ''"), SEQ + 6);
  run(&ops[1], 1); /* nor in a batch of one */
  assert_int_equal(ops[1].op.status, DIBS_UNKNOWN);
  assert_int_equal(send_request("SELECT seq FROM dibs_name WHERE bucket = 0 AND name = ''"), SEQ + 6);
}

static void another_mandate_gets_nothing(void **state) {
  (void)state;
  struct dibs__lease_op ops[] = {op_of(DIBS__ACQUIRE, "a", 0, 1), op_of(DIBS__ACQUIRE, "b", 1, 2)};
  ops[0].op.mandate.epoch++;
  run(ops, 2);
  assert_int_equal(ops[0].op.status, DIBS_UNKNOWN);
  assert_int_equal(ops[1].op.status, DIBS_OK);
  ops[0].op.mandate.epoch--;
  ops[0].op.mandate.incarnation.b[0]++;
  run(ops, 1);
  assert_int_equal(ops[0].op.status, DIBS_UNKNOWN);
  assert_int_equal(send_request("SELECT seq FROM dibs_name WHERE bucket = 0 AND name = ''"), SEQ);
}

static void an_epoch_is_not_exceeded(void **state) {
  (void)state;
  say("UPDATE dibs_name SET seq = 4294967294 WHERE name = ''");
  struct dibs__lease_op ops[] = {op_of(DIBS__ACQUIRE, "a", 0, 1), op_of(DIBS__ACQUIRE, "b", 1, 2),
                                 op_of(DIBS__ACQUIRE, "c", 2, 3), op_of(DIBS__ACQUIRE, "d", 2, 4)};
  ops[0].want_block = 2;
  run(ops, 2);
  assert_int_equal(ops[0].op.status, DIBS_UNKNOWN);
  assert_int_equal(ops[1].fence.v, fence(DIBS__SEQ_MAX));
  run(&ops[2], 2); /* two requests, and one remaining fence */
  assert_int_equal(ops[2].op.status, DIBS_UNKNOWN);
  assert_int_equal(ops[3].op.status, DIBS_UNKNOWN);
}

/* ---- Renewals and releases ---- */

/* Ways in which a head may differ from the state that the operation expects. */
static const struct {
  const char *change; /* the head has a block of 3 from SEQ + 1 on */
  int id, fence;      /* 0: as granted */
  bool epoch, releases;
} oddities[] = {
    {.change = "waiters = 1"},
    {.change = "broken = 1", .releases = true},
    {.change = "until = 1"},
    {.id = 8},
    {.fence = SEQ},
    {.fence = SEQ + 4},
    {.epoch = true},
    {.change = "granted = first + 1"},
};

static void rows_in_an_unexpected_state_are_unchanged(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof oddities / sizeof oddities[0]; i++) {
    for (int verb = DIBS__RENEW; verb <= DIBS__RELEASE; verb++) {
      char text[200];
      struct dibs__lease_op held = take("n", 1, 7, 3);
      struct dibs__lease_op op = op_of((enum dibs__lease_verb)verb, "n", 1, oddities[i].id ? oddities[i].id : 7);
      op.fence.v = oddities[i].fence ? held.fence.v - SEQ - 1 + (uint64_t)oddities[i].fence : held.fence.v;
      op.op.mandate.epoch += oddities[i].epoch;
      op.ttl_ms = 5 * TTL;
      snprintf(text, sizeof text, "UPDATE dibs_name SET %s WHERE name = 'n'",
               oddities[i].change ? oddities[i].change : "ttl = ttl");
      say(text);
      int64_t until = send_request("SELECT until FROM dibs_name WHERE name = 'n'");
      run(&op, 1);
      bool works = verb == DIBS__RELEASE && oddities[i].releases;
      if (op.op.status != (works ? DIBS_OK : DIBS_UNKNOWN)) fail_msg("oddity %zu, verb %d: %d", i, verb, op.op.status);
      assert_int_equal(send_request("SELECT until FROM dibs_name WHERE name = 'n'"), works ? -1 : until);
      say("DELETE FROM dibs_name WHERE name = 'n'");
    }
  }
}

static void any_fence_of_the_block_renews_and_releases(void **state) {
  (void)state;
  for (uint32_t nth = 0; nth < 3; nth++) {
    struct dibs__lease_op held = take("n", 1, 7, 3), op = op_of(DIBS__RENEW, "n", 1, 7);
    op.fence = dibs__fence_nth(held.fence, nth);
    op.ttl_ms = 5 * TTL;
    int64_t now = run(&op, 1);
    assert_int_equal(op.op.status, DIBS_OK);
    assert_int_equal(op.fence.v, held.fence.v);
    assert_int_equal(op.got_block, 3);
    assert_int_equal(op.until.ms, now + 5 * TTL);
    assert_int_equal(send_request("SELECT until FROM dibs_name WHERE name = 'n'"), op.until.ms);
    op.op.verb = DIBS__RELEASE;
    op.fence = dibs__fence_nth(held.fence, nth);
    run(&op, 1);
    assert_int_equal(op.op.status, DIBS_OK);
    assert_int_equal(send_request("SELECT count(*) FROM dibs_name WHERE name = 'n'"), 0);
  }
}

static void all_kinds_share_one_transaction(void **state) {
  (void)state;
  struct dibs__lease_op kept = take("k", 1, 2, 1), given = take("g", 2, 3, 1);
  struct dibs__lease_op ops[] = {op_of(DIBS__ACQUIRE, "a", 0, 1), op_of(DIBS__RENEW, "k", 1, 2),
                                 op_of(DIBS__RELEASE, "g", 2, 3)};
  ops[1].fence = kept.fence;
  ops[2].fence = given.fence;
  run(ops, 3);
  for (size_t i = 0; i < 3; i++) assert_int_equal(ops[i].op.status, DIBS_OK);
  /* All written rows have one transaction number. */
  assert_int_equal(send_request("SELECT count(DISTINCT xmin::text) FROM dibs_name WHERE name IN ('a', 'k')"), 1);
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: %s postgres://...\n", argv[0]);
    return 2;
  }
  server = argv[1];
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
  const struct CMUnitTest tests[] = {
      TEST(each_bucket_draws_its_own_fences),
      TEST(a_held_name_of_many_draws_nothing),
      TEST(another_mandate_gets_nothing),
      TEST(an_epoch_is_not_exceeded),
      TEST(rows_in_an_unexpected_state_are_unchanged),
      TEST(any_fence_of_the_block_renews_and_releases),
      TEST(all_kinds_share_one_transaction),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

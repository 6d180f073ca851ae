/* SPDX-License-Identifier: MIT */
/* The fast statements alone: what they decide, and what they leave to the general statements. */
#include "bed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dibs__lease_op lease;

enum { NAMES = 5, SESSION = 99 };

static struct bed bed;
static struct dibs__dstore *opened;
static struct dibs__server *store;
static struct dibs__sql_wire *w;
static dibs__mandate mandates[DIBS__BUCKETS];
static char names[NAMES][16];
static lease ops[NAMES];
static lease *all[NAMES];
static int64_t now;

static int by_name(const void *a, const void *b) {
  const lease *x = *(lease *const *)a, *y = *(lease *const *)b;
  return x->op.bucket != y->op.bucket ? (x->op.bucket < y->op.bucket ? -1 : 1) : strcmp(x->name.p, y->name.p);
}

static int begin(void **state) {
  (void)state;
  bed_make(&bed, bed_uri);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), LONG_MS);
  if (dibs__server_open(&dibs__mysql_engine, &bed.uri, by, &opened, &bed.reported) != DIBS_OK)
    fail_msg("%s", bed.reported.text);
  store = (struct dibs__server *)opened;
  w = bed_connect(&bed);
  run(w, "DELETE FROM dibs_name WHERE name <> ''");
  run(w, "SELECT bucket, life, epoch FROM dibs_name WHERE place = 0 AND name = ''");
  assert_int_equal(w->engine->rows(w, 0), DIBS__BUCKETS);
  for (size_t i = 0; i < DIBS__BUCKETS; i++) {
    dibs__mandate *m = &mandates[number(w, 0, i, 0)];
    memcpy(m->incarnation.b, w->engine->cell(w, 0, i, 1, DIBS__SQL_BYTES).p, sizeof m->incarnation.b);
    m->epoch = (uint32_t)number(w, 0, i, 2);
  }
  for (size_t i = 0; i < NAMES; i++) {
    snprintf(names[i], sizeof names[i], "fast '%zu$1", i);
    ops[i] = (lease){.name = dibs__str_of(names[i], strlen(names[i])), .ttl_ms = 20000, .owner = {"$2", 2}};
    ops[i].op.bucket = dibs__bucket(ops[i].name);
    ops[i].op.mandate = mandates[ops[i].op.bucket];
    dibs__random(ops[i].id.b, sizeof ops[i].id.b);
    all[i] = &ops[i];
  }
  qsort(all, NAMES, sizeof all[0], by_name);
  return 0;
}

static int end(void **state) {
  (void)state;
  dibs__mysql_close(w);
  dibs__server_close(opened);
  bed_drop(&bed);
  return 0;
}

static void send_request(uint16_t verb) {
  for (size_t i = 0; i < NAMES; i++) {
    ops[i].op.verb = verb;
    ops[i].op.status = DIBS_UNKNOWN;
  }
}

/* Sends the operations; returns how many were answered. */
static size_t go(void) {
  size_t answered = 0;
  enum dibs__sql_rc step = dibs__mysql_fast(store, w, SESSION, all, NAMES, &now);
  if (step != DIBS__SQL_OK) {
    dibs__sql_rollback(w);
    return 0;
  }
  for (size_t i = 0; i < NAMES; i++) {
    assert_true(ops[i].op.status == DIBS_OK || ops[i].op.status == DIBS_UNKNOWN);
    answered += ops[i].op.status == DIBS_OK;
  }
  return answered;
}

static int64_t count(const char *what) {
  char text[200];
  snprintf(text, sizeof text, "SELECT count(*) FROM dibs_name WHERE %s", what);
  run(w, text);
  return number(w, 0, 0, 0);
}

static int64_t drawn(void) {
  run(w, "SELECT sum(seq) FROM dibs_name WHERE name = '' AND place = 0");
  return number(w, 0, 0, 0);
}

static void a_lease_is_acquired_renewed_and_released(void **state) {
  (void)state;
  uint64_t fences[NAMES];
  int64_t before = drawn();
  ops[2].want_block = 7;
  send_request(DIBS__ACQUIRE);
  assert_int_equal(go(), NAMES);
  assert_true(drawn() - before >= NAMES + 6); /* drawn by the clock */
  for (size_t i = 0; i < NAMES; i++) {
    fences[i] = ops[i].fence.v;
    assert_int_equal(ops[i].got_block, i == 2 ? 7 : 1);
    assert_int_equal(ops[i].until.ms, now + 20000);
    assert_true(dibs__fence_epoch(ops[i].fence) > ops[i].op.mandate.epoch);
  }
  run(w, "DO SLEEP(0.005)");
  int64_t then = now;
  send_request(DIBS__RENEW);
  ops[2].fence.v += 6; /* any fence of the block */
  assert_int_equal(go(), NAMES);
  assert_true(now > then);
  for (size_t i = 0; i < NAMES; i++) {
    assert_int_equal(ops[i].fence.v, fences[i]);
    assert_int_equal(ops[i].until.ms, now + 20000);
  }
  /* Repeated acquires: the names are already held, which the fast statements do not handle. */
  send_request(DIBS__ACQUIRE);
  assert_int_equal(go(), 0);
  for (size_t i = 0; i < NAMES; i++) ops[i].fence.v = fences[i];
  send_request(DIBS__RELEASE);
  assert_int_equal(go(), NAMES);
  assert_int_equal(count("name <> ''"), 0);
  send_request(DIBS__RELEASE);
  assert_int_equal(go(), 0);
}

static void all_verbs_share_a_batch(void **state) {
  (void)state;
  send_request(DIBS__ACQUIRE);
  assert_int_equal(go(), NAMES);
  for (size_t i = 0; i < NAMES; i++) {
    ops[i].op.verb = i < 2 ? DIBS__RENEW : DIBS__RELEASE;
    ops[i].op.status = DIBS_UNKNOWN;
  }
  assert_int_equal(go(), NAMES);
  ops[2].op.verb = DIBS__ACQUIRE;
  ops[3].op.verb = DIBS__ACQUIRE;
  ops[4].op.verb = DIBS__RELEASE; /* which it is already */
  ops[0].op.verb = DIBS__RELEASE;
  for (size_t i = 0; i < NAMES; i++) ops[i].op.status = DIBS_UNKNOWN;
  assert_int_equal(go(), 4);
  assert_int_equal(ops[4].op.status, DIBS_UNKNOWN);
  assert_int_equal(count("name <> ''"), 3);
}

static void rows_in_an_unexpected_state_are_unchanged(void **state) {
  (void)state;
  static const char *const spoilt[] = {"id = x'00'", "until = 1", "granted = first + 9, first = first + 9",
                                       "waiters = 1", "broken = 1"};
  send_request(DIBS__ACQUIRE);
  assert_int_equal(go(), NAMES);
  for (size_t i = 0; i < NAMES; i++) {
    char text[200];
    struct dibs__sql_value v[] = {dibs__sql_number(ops[i].op.bucket), dibs__sql_text(names[i], strlen(names[i]))};
    snprintf(text, sizeof text, "UPDATE dibs_name SET %s WHERE bucket = $1 AND name = $2 AND place = 0", spoilt[i]);
    assert_int_equal(w->engine->put(w, text, v, 2), DIBS__SQL_OK);
    assert_int_equal(w->engine->go(w, true), DIBS__SQL_OK);
    assert_int_equal(w->engine->changed(w, 0), 1);
  }
  send_request(DIBS__RENEW);
  assert_int_equal(go(), 0);
  send_request(DIBS__ACQUIRE);
  assert_int_equal(go(), 0);
  send_request(DIBS__RELEASE);
  assert_int_equal(go(), 1); /* a broken lease can be released */
  assert_int_equal(ops[4].op.status, DIBS_OK);
  assert_int_equal(count("name <> ''"), NAMES - 1);
}

static void another_mandate_changes_nothing(void **state) {
  (void)state;
  send_request(DIBS__ACQUIRE);
  assert_int_equal(go(), NAMES);
  int64_t before = drawn();
  for (int verb = DIBS__ACQUIRE; verb <= DIBS__RELEASE; verb++) {
    if (verb == DIBS__ACQUIRE) run(w, "DELETE FROM dibs_name WHERE name <> ''");
    for (int what = 0; what < 2; what++) {
      send_request((uint16_t)verb);
      if (what) ops[3].op.mandate.epoch++;
      for (size_t i = 0; i < NAMES && !what; i++) ops[i].op.mandate.incarnation.b[3] ^= 1;
      assert_int_equal(go(), 0);
      if (what) ops[3].op.mandate.epoch--;
      for (size_t i = 0; i < NAMES && !what; i++) ops[i].op.mandate.incarnation.b[3] ^= 1;
    }
    assert_int_equal(drawn(), before);
    if (verb == DIBS__ACQUIRE) assert_int_equal(go(), NAMES);
    if (verb == DIBS__ACQUIRE) before = drawn();
  }
  assert_int_equal(count("name <> ''"), NAMES);
}

static void a_bucket_far_ahead_of_the_clock_grants_nothing(void **state) {
  (void)state;
  struct dibs__sql_value v[] = {dibs__sql_number(INT64_C(1) << 52)};
  assert_int_equal(w->engine->put(w, "UPDATE dibs_name SET seq = $1 WHERE name = '' AND place = 0", v, 1),
                   DIBS__SQL_OK);
  assert_int_equal(w->engine->go(w, true), DIBS__SQL_OK);
  int64_t before = drawn();
  send_request(DIBS__ACQUIRE);
  assert_int_equal(go(), 0);
  assert_int_equal(count("name <> ''"), 0);
  assert_int_equal(drawn(), before);
  run(w, "UPDATE dibs_name SET seq = 0 WHERE name = '' AND place = 0");
}

int main(int argc, char **argv) {
  if (argc < 2) return 77;
  bed_uri = argv[1];
#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)
  const struct CMUnitTest tests[] = {
      CASE(a_lease_is_acquired_renewed_and_released),       CASE(all_verbs_share_a_batch),
      CASE(rows_in_an_unexpected_state_are_unchanged),      CASE(another_mandate_changes_nothing),
      CASE(a_bucket_far_ahead_of_the_clock_grants_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

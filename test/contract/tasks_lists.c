/* SPDX-License-Identifier: MIT */
/* Tasks (R75, R76): their texts, and what people read and change. */
#include "hostile/hostile.h"
#include "task_calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- R75 ---- */

static void R75_a_payload_may_contain_any_bytes(void **state) {
  (void)state;
  struct party *p = task_party();
  static const char bytes[] = "a\0b\xff\xfe\x01'\\\"\n";
  uint64_t nr = added(p, "k", .payload = dibs__str_of(bytes, 10)), empty = added(p, "k");
  struct claimed got = claimed(p, "k", .most = 2);
  expect_claimed(got, 2, (const uint64_t[]){nr, empty});
  for (int i = 0; i < 2; i++) {
    task_row row = got.rows[i];
    uint32_t len = row.nr == nr ? 10 : 0;
    assert_int_equal(row.payload.len, len);
    assert_memory_equal(row.payload.p, bytes, len);
    assert_int_equal(row.payload.p[len], 0);
  }
  expect_status(ended(p, got.rows[got.rows[0].nr != nr], DIBS__TASK_END_DONE), DIBS_OK);
  assert_memory_equal(row_of(p, nr).payload.p, bytes, 10); /* also of a finished one */
}

static void R75_a_payload_has_at_most_a_megabyte(void **state) {
  (void)state;
  struct party *p = task_party();
  char *big = malloc(DIBS_RECORD_MAX + 1);
  assert_non_null(big);
  free_at_end(big);
  for (size_t i = 0; i <= DIBS_RECORD_MAX; i++) big[i] = (char)(i * 7 + i / 251);
  task_new news[2] = {{.payload = dibs__str_of(big, DIBS_RECORD_MAX)}, {.payload = {big, DIBS_RECORD_MAX + 1}}};
  task_op op = task_call(DIBS__TASK_ADD, "k");
  op.news = news;
  op.count = 2;
  op.token = name_of("t");
  op.token_ms = TASK_LONG_MS;
  expect(run_task(p, op), DIBS_OK);
  expect_status(news[0].status, DIBS_OK);
  expect_status(news[1].status, DIBS_INVALID);
  struct claimed got = claimed(p, "k", .most = 2);
  expect_one(got, news[0].nr);
  assert_int_equal(got.rows[0].payload.len, DIBS_RECORD_MAX);
  assert_memory_equal(got.rows[0].payload.p, big, DIBS_RECORD_MAX);
}

static void R75_phases_serial_and_unique_texts_are_bytes(void **state) {
  (void)state;
  struct party *p = task_party();
  size_t count = hostile_short_count + hostile_long_count;
  task_new *news = calloc(count, sizeof *news);
  assert_non_null(news);
  free_at_end((char *)news);
  for (size_t i = 0; i < count; i++) {
    const struct hostile *h = i < hostile_short_count ? &hostile_short[i] : &hostile_long[i - hostile_short_count];
    news[i].phase = news[i].serial = news[i].unique = dibs__str_of(h->p, h->len);
  }
  task_op op = task_call(DIBS__TASK_ADD, "k");
  op.news = news;
  op.count = (uint32_t)count;
  op.token = name_of("t");
  op.token_ms = TASK_LONG_MS;
  expect(run_task(p, op), DIBS_OK);
  for (size_t i = 0; i < count; i++) {
    expect_status(news[i].status, DIBS_OK);
    task_op claim = task_call(DIBS__TASK_CLAIM, "k");
    claim.id = id_of((int)i);
    claim.again = true;
    claim.most = 2;
    claim.phases = &news[i].phase;
    claim.phase_count = 1;
    claim = run_task(p, claim);
    expect(claim, DIBS_OK);
    assert_int_equal(claim.got_count, 1);
    const task_row *row = claim.got;
    assert_int_equal(row->nr, news[i].nr);
    assert_true(dibs__str_equal(row->phase, news[i].phase));
    assert_true(dibs__str_equal(row->serial, news[i].serial));
    assert_true(dibs__str_equal(row->unique, news[i].unique));
  }
}

static void R75_kinds_are_bytes(void **state) {
  (void)state;
  struct party *p = task_party();
  char kind[DIBS_NAME_MAX];
  dibs__str salt = name_of("");
  for (size_t round = 0; round < 2; round++)
    for (size_t i = 0; i < hostile_short_count; i++) {
      const struct hostile *h = &hostile_short[i];
      memcpy(kind, h->p, h->len);
      memcpy(kind + h->len, salt.p, salt.len);
      task_op op = task_call(round ? DIBS__TASK_COUNT : DIBS__TASK_ADD, "");
      task_new n = {.phase = dibs__str_of(h->p, h->len)};
      op.kind = dibs__str_of(kind, h->len + salt.len);
      op.token = dibs__str_of(kind, op.kind.len < DIBS__TASK_TOKEN_MAX ? op.kind.len : DIBS__TASK_TOKEN_MAX);
      op.token = round ? dibs__str_of("", 0) : op.token;
      op.token_ms = TASK_LONG_MS;
      op.news = &n;
      op.count = 1;
      op = run_task(p, op);
      expect(op, DIBS_OK);
      if (!round) continue;
      const struct dibs__task_kind *got = op.got;
      assert_int_equal(op.got_count, 1);
      assert_true(dibs__str_equal(got->kind, op.kind));
      assert_int_equal(got->states[DIBS__TASK_READY], 1);
    }
}

/* R49 for the texts of tasks. */
static void R75_a_refused_text_is_refused_alone(void **state) {
  (void)state;
  struct party *p = task_party();
  for (size_t i = 0; i < hostile_raw_count; i++) {
    dibs__str raw = dibs__str_of(hostile_raw[i].p, hostile_raw[i].len);
    task_new news[] = {{.priority = 1}, {.phase = raw}, {.serial = raw}, {.unique = raw}, {.priority = 1}};
    char token[24];
    snprintf(token, sizeof token, "t%zu", i);
    task_op op = task_call(DIBS__TASK_ADD, "k");
    op.news = news;
    op.count = 5;
    op.token = name_of(token);
    op.token_ms = TASK_LONG_MS;
    expect(run_task(p, op), DIBS_OK);
    expect_status(news[0].status, DIBS_OK);
    expect_status(news[4].status, DIBS_OK);
    for (int k = 1; k < 4; k++) {
      if (news[k].status == DIBS_INVALID) continue;
      expect_status(news[k].status, DIBS_OK);
      task_row row = row_of(p, news[k].nr);
      assert_true(dibs__str_equal(k == 1 ? row.phase : k == 2 ? row.serial : row.unique, raw));
      changed(p, DIBS__TASK_CANCEL, only(news[k].nr));
    }
    task_new n = {.priority = 0};
    op.kind = raw;
    op.token.len = 0;
    op.news = &n;
    op.count = 1;
    op = run_task(p, op);
    if (op.op.status == DIBS_INVALID || op.op.status == DIBS_UNSUPPORTED) continue;
    expect(op, DIBS_OK);
    changed(p, DIBS__TASK_CANCEL, only(n.nr));
    changed(p, DIBS__TASK_PURGE, only(n.nr));
  }
}

static void R75_malformed_operations_are_invalid(void **state) {
  (void)state;
  struct party *p = task_party();
  static char long_text[DIBS_NAME_MAX + 1];
  static dibs__str phases[DIBS__TASK_PHASES + 1];
  dibs__str too_long = dibs__str_of(memset(long_text, 'x', sizeof long_text), sizeof long_text);
  task_op bad[20];
  size_t n = 0;
  static const enum dibs__task_verb named[] = {DIBS__TASK_ADD, DIBS__TASK_CLAIM, DIBS__TASK_KIND};
  for (size_t i = 0; i < 3; i++) {
    bad[n++] = task_call(named[i], "");
    bad[n++] = task_call(named[i], "k");
    bad[n - 1].kind = too_long;
  }
  for (int most = 0; most < 2; most++) {
    bad[n++] = task_call(DIBS__TASK_CLAIM, "k");
    bad[n - 1].most = most ? DIBS__TASK_ITEMS + 1 : 0;
    bad[n++] = task_call(DIBS__TASK_LIST, "");
    bad[n - 1].most = most ? DIBS__TASK_ITEMS + 1 : 0;
  }
  bad[n++] = task_call(DIBS__TASK_CLAIM, "k");
  bad[n - 1].timeout_ms = 0;
  bad[n++] = task_call(DIBS__TASK_EXTEND, "k");
  bad[n - 1].timeout_ms = -1;
  bad[n++] = task_call(DIBS__TASK_CLAIM, "k");
  bad[n - 1].phases = phases;
  bad[n - 1].phase_count = DIBS__TASK_PHASES + 1;
  bad[n++] = task_call(DIBS__TASK_ADD, "k");
  bad[n - 1].token = dibs__str_of(long_text, DIBS__TASK_TOKEN_MAX + 1);
  bad[n++] = task_call(DIBS__TASK_CHANGE, "");
  bad[n - 1].change = DIBS__TASK_PURGE + 1;
  bad[n++] = task_call(DIBS__TASK_LIST, "");
  bad[n - 1].errors = true;
  bad[n++] = task_call(DIBS__TASK_KIND, "k");
  bad[n - 1].set = 16;
  bad[n++] = task_call(DIBS__TASK_KIND, "k");
  bad[n - 1].set = DIBS__TASK_SET_KEEP;
  bad[n - 1].keep_ms = -2;
  bad[n++] = task_call(DIBS__TASK_KIND, "k");
  bad[n - 1].op.verb = DIBS__TASK_KIND + 1;
  for (size_t i = 0; i < n; i++) {
    bad[i].op.bucket = dibs__bucket(bad[i].kind);
    task_op got = run_task(p, bad[i]);
    if (got.op.status != DIBS_INVALID) print_error("operation %zu:\n", i);
    expect(got, DIBS_INVALID);
    assert_true(got.why[0] != '\0');
  }
}

/* ---- R76 ---- */

static void R76_count_has_every_state(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nrs[3];
  assert_int_equal(run_task(p, task_call(DIBS__TASK_COUNT, "k")).got_count, 0);
  uint64_t dead = added(p, "k"), done = added(p, "k"), parked = added(p, "k", .serial = str_of("s"));
  expect_status(ended(p, claimed_in_time(p, "k", dead), DIBS__TASK_END_DEAD), DIBS_OK);
  expect_status(ended(p, claimed_in_time(p, "k", done), DIBS__TASK_END_DONE), DIBS_OK);
  expect_status(ended(p, claimed_in_time(p, "k", parked), DIBS__TASK_END_DEAD), DIBS_OK);
  added_many(p, "k", 2, (task_new){.serial = str_of("s")}, NULL);
  admit(p, "k");
  changed(p, DIBS__TASK_CANCEL, only(added(p, "k")));
  assert_int_equal(count_of(p, "k").oldest_ms, -1);
  added_many(p, "k", 3, (task_new){.delay_ms = TASK_LONG_MS}, NULL);
  added_many(p, "k", 3, (task_new){.payload = str_of("x")}, nrs);
  expect_one(claimed(p, "k"), nrs[0]);
  dibs__nap_ms(3);
  struct dibs__task_kind count = count_of(p, "k");
  static const uint64_t want[] = {0, 2, 1, 3, 2, 1, 1, 1, 1};
  for (int i = 0; i <= DIBS__TASK_CANCELLED; i++) assert_int_equal(count.states[i], want[i]);
  assert_true(count.oldest_ms >= 3 && count.oldest_ms < TASK_PATIENCE_MS);
  assert_int_equal(count.keep_ms, -1);
  assert_int_equal(count.running, 0);
  assert_false(count.paused);
}

static void R76_count_has_every_kind_in_order(void **state) {
  (void)state;
  struct party *p = task_party();
  static const char *const kinds[] = {"b", "a", "c", "B"};
  added(p, "b");
  changed(p, DIBS__TASK_CANCEL, only(added(p, "a")));
  set_kind(p, "c", 4, true, 12345);
  added(p, "B");
  task_op op = run_task(p, task_call(DIBS__TASK_COUNT, ""));
  expect(op, DIBS_OK);
  const struct dibs__task_kind *got = op.got;
  uint32_t found = 0;
  for (uint32_t i = 0; i < op.got_count; i++) {
    if (i) assert_true(dibs__str_before(got[i - 1].kind, got[i].kind));
    for (int k = 0; k < 4; k++) {
      if (!dibs__str_equal(got[i].kind, name_of(kinds[k]))) continue;
      found++;
      assert_int_equal(got[i].states[DIBS__TASK_READY], kinds[k][0] == 'b' || kinds[k][0] == 'B');
      assert_int_equal(got[i].states[DIBS__TASK_CANCELLED], kinds[k][0] == 'a');
      assert_int_equal(got[i].running, kinds[k][0] == 'c' ? 4 : 0);
      assert_int_equal(got[i].keep_ms, kinds[k][0] == 'c' ? 12345 : -1);
    }
  }
  assert_int_equal(found, 4);
}

/* The numbers that match. */
static uint32_t list_of(struct party *p, struct dibs__task_filter filter, uint32_t most, uint64_t nrs[]) {
  task_op op = task_call(DIBS__TASK_LIST, "");
  op.filter = filter;
  op.most = most;
  op = run_task(p, op);
  expect(op, DIBS_OK);
  const task_row *rows = op.got;
  for (uint32_t i = 0; i < op.got_count; i++) {
    nrs[i] = rows[i].nr;
    assert_int_equal(rows[i].payload.len, 0); /* without `payloads` */
    if (i) assert_true(rows[i].nr > rows[i - 1].nr);
  }
  return op.got_count;
}

static void expect_listed(struct party *p, struct dibs__task_filter filter, uint32_t count, const uint64_t want[]) {
  uint64_t nrs[64];
  filter.kind = name_of("k");
  assert_int_equal(list_of(p, filter, 64, nrs), count);
  for (uint32_t i = 0; i < count; i++) assert_int_equal(nrs[i], want[i]);
}

static void R76_list_has_what_matches_its_filter(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t a = added(p, "k", .phase = str_of("x"), .payload = str_of("p")),
           b = added(p, "k", .phase = str_of("y"), .serial = str_of("s"), .priority = 7, .tries = 4),
           c = added(p, "k", .serial = str_of("s"), .unique = str_of("u")), other = added(p, "other");
  (void)other;
  expect_status(ended(p, claimed_in_time(p, "k", b), DIBS__TASK_END_FAIL, .text = "it 100% broke_", .delay_ms = 99999),
                DIBS_OK);
  expect_status(ended(p, claimed_in_time(p, "k", a), DIBS__TASK_END_DONE, .text = "broke"), DIBS_OK);
  expect_listed(p, (struct dibs__task_filter){.nr = 0}, 3, (const uint64_t[]){a, b, c});
  expect_listed(p, (struct dibs__task_filter){.after = a}, 2, (const uint64_t[]){b, c});
  expect_listed(p, (struct dibs__task_filter){.phase = str_of("x")}, 1, &a);
  expect_listed(p, (struct dibs__task_filter){.serial = str_of("s")}, 2, (const uint64_t[]){b, c});
  expect_listed(p, (struct dibs__task_filter){.states = BIT(DIBS__TASK_WAITING) | BIT(DIBS__TASK_DONE)}, 2,
                (const uint64_t[]){a, b});
  expect_listed(p, (struct dibs__task_filter){.text = str_of("broke")}, 1, &b);
  expect_listed(p, (struct dibs__task_filter){.text = str_of("0% broke_")}, 1, &b); /* nothing in it is special */
  expect_listed(p, (struct dibs__task_filter){.text = str_of("0_ broke")}, 0, NULL);
  expect_listed(p, (struct dibs__task_filter){.older_ms = TASK_LONG_MS}, 0, NULL);
  expect_listed(p, (struct dibs__task_filter){.nr = b, .phase = str_of("x")}, 0, NULL);
  task_row row = row_of(p, b);
  assert_true(dibs__str_equal(row.kind, name_of("k")));
  assert_string_equal(row.phase.p, "y");
  assert_string_equal(row.serial.p, "s");
  assert_string_equal(row.unique.p, "");
  assert_string_equal(row_of(p, c).unique.p, "u");
  assert_string_equal(row.text.p, "it 100% broke_");
  assert_string_equal(row.by.p, "somebody");
  assert_int_equal(row.state, DIBS__TASK_WAITING);
  assert_int_equal(row.priority, 7);
  assert_int_equal(row.tries, 4);
  assert_int_equal(row.fails, 1);
  assert_true(row.fence.v >= (uint64_t)row.began_ms);
  assert_true(row.began_ms >= row.made_ms && row.at_ms >= row.began_ms);
}

static void R76_list_has_pages(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nrs[25], page[10];
  added_many(p, "k", 25, (task_new){.nr = 0}, nrs);
  expect_status(ended(p, claimed_in_time(p, "k", nrs[0]), DIBS__TASK_END_DONE), DIBS_OK); /* in another table */
  struct dibs__task_filter filter = {.kind = name_of("k")};
  uint32_t seen = 0, count;
  while ((count = list_of(p, filter, 10, page))) {
    for (uint32_t i = 0; i < count; i++) assert_int_equal(page[i], nrs[seen++]);
    assert_true(count == 10 || seen == 25);
    filter.after = page[count - 1];
    /* A task that moves to another table within a listing is still there once. */
    if (seen == 10) changed(p, DIBS__TASK_CANCEL, only(nrs[20]));
  }
  assert_int_equal(seen, 25);
}

static void R76_change_has_pages_and_a_rehearsal(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nrs[7];
  added_many(p, "k", 7, (task_new){.nr = 0}, nrs);
  task_op op = task_call(DIBS__TASK_CHANGE, "");
  op.change = DIBS__TASK_CANCEL;
  op.filter.kind = name_of("k");
  op.most = 5;
  op.dry = true;
  task_op got = run_task(p, op);
  expect(got, DIBS_OK);
  assert_int_equal(got.changed, 5);
  assert_int_equal(got.last, nrs[4]);
  assert_int_equal(count_of(p, "k").states[DIBS__TASK_READY], 7);
  op.dry = false;
  got = run_task(p, op);
  if (in_doubt(&got.op)) return;
  assert_int_equal(got.changed, 5);
  assert_int_equal(got.last, nrs[4]);
  assert_int_equal(count_of(p, "k").states[DIBS__TASK_CANCELLED], 5);
  op.filter.after = got.last;
  got = run_task(p, op);
  assert_true(got.changed == 2 || in_doubt(&got.op));
  op.filter.after = 0;
  got = run_task(p, op);
  assert_int_equal(got.changed, 0);
  assert_int_equal(got.last, 0);
  op.change = DIBS__TASK_RETRY;
  op.filter.states = BIT(DIBS__TASK_DEAD);
  assert_int_equal(run_task(p, op).changed, 0);
  op.change = DIBS__TASK_PURGE;
  op.filter.states = 0;
  op.most = DIBS__TASK_ITEMS;
  got = run_task(p, op);
  assert_true(got.changed == 7 || in_doubt(&got.op));
  assert_int_equal(run_task(p, task_call(DIBS__TASK_COUNT, "k")).got_count, 0);
}

/* A CHANGE of the kind "k", looking at `most` tasks behind `after`. */
static task_op change_behind(struct party *p, enum dibs__task_change change, uint64_t after, uint32_t most, bool dry) {
  task_op op = task_call(DIBS__TASK_CHANGE, "");
  op.change = change;
  op.filter = (struct dibs__task_filter){.kind = name_of("k"), .after = after};
  op.most = most;
  op.dry = dry;
  op = run_task(p, op);
  expect(op, DIBS_OK);
  return op;
}

static void R78_change_says_what_it_looked_at(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nrs[5];
  for (int i = 0; i < 5; i++) {
    nrs[i] = added(p, "k", .unique = str_of(i == 4 ? "" : "one"));
    expect_status(ended(p, claimed_in_time(p, "k", nrs[i]), DIBS__TASK_END_DEAD), DIBS_OK);
  }
  task_op got = change_behind(p, DIBS__TASK_RETRY, 0, 3, true);
  assert_int_equal(got.changed, 3);
  assert_int_equal(got.last, nrs[2]);
  assert_true(got.more);
  /* The second and the third are left out: the first one is unfinished again, with their text. */
  got = change_behind(p, DIBS__TASK_RETRY, 0, 3, false);
  if (in_doubt(&got.op)) return;
  assert_int_equal(got.changed, 1);
  assert_int_equal(got.last, nrs[2]);
  assert_true(got.more);
  got = change_behind(p, DIBS__TASK_RETRY, got.last, 3, false);
  if (in_doubt(&got.op)) return;
  assert_int_equal(got.changed, 1);
  assert_int_equal(got.last, nrs[4]);
  assert_false(got.more);
  static const uint32_t want[] = {DIBS__TASK_READY, DIBS__TASK_DEAD, DIBS__TASK_DEAD, DIBS__TASK_DEAD,
                                  DIBS__TASK_READY};
  for (int i = 0; i < 5; i++) assert_int_equal(state_of(p, nrs[i]), want[i]);
  got = change_behind(p, DIBS__TASK_RETRY, 0, 3, false);
  assert_int_equal(got.changed, 0);
  assert_int_equal(got.last, 0);
  assert_false(got.more);
}

static void R76_reading_writes_nothing(void **state) {
  (void)state;
  struct party *p = task_party();
  added(p, "k", .delay_ms = 1);
  dibs__nap_ms(5);
  task_op list = task_call(DIBS__TASK_LIST, ""), count = task_call(DIBS__TASK_COUNT, "k");
  list.filter.kind = name_of("k");
  expect(run_task(p, list), DIBS_OK);
  assert_int_equal(p->reported.commits, 0);
  count = run_task(p, count);
  expect(count, DIBS_OK);
  assert_int_equal(p->reported.commits, 0);
  const struct dibs__task_kind *got = count.got;
  assert_int_equal(got->states[DIBS__TASK_WAITING], 1); /* no CLAIM has seen that its time has come */
  assert_true(got->oldest_ms >= 0);
}

/* ---- Batches ---- */

static void R1_operations_on_one_kind_keep_the_batch_order(void **state) {
  (void)state;
  struct party *p = task_party();
  task_new first = {.payload = str_of("first")}, second = {.payload = str_of("second")};
  task_op ops[6];
  struct dibs__op *batch[6];
  for (int i = 0; i < 6; i++) {
    ops[i] = task_call(i == 1 || i == 4 ? DIBS__TASK_ADD : DIBS__TASK_CLAIM, "k");
    ops[i].news = i == 1 ? &first : &second;
    ops[i].count = 1;
    ops[i].id = id_of(i);
    batch[i] = &ops[i].op;
  }
  run_batch(p, batch, 6);
  for (int i = 0; i < 6; i++)
    if (ops[i].got) free_at_end(ops[i].got);
  for (int i = 0; i < 6; i++)
    if (in_doubt(&ops[i].op)) return;
  static const uint32_t want[] = {0, 0, 1, 0, 0, 1};
  for (int i = 0; i < 6; i++) {
    expect(ops[i], DIBS_OK);
    if (ops[i].op.verb == DIBS__TASK_CLAIM) assert_int_equal(ops[i].got_count, want[i]);
  }
  assert_int_equal(((const task_row *)ops[2].got)->nr, first.nr);
  assert_int_equal(((const task_row *)ops[5].got)->nr, second.nr);
}

/* A driver may do several of one kind together. */
static void R1_ends_of_one_batch_have_their_own_answers(void **state) {
  (void)state;
  struct party *p = task_party();
  uint64_t nrs[3];
  added_many(p, "k", 3, (task_new){.nr = 0}, nrs);
  struct claimed got = claimed(p, "k", .most = 3);
  assert_int_equal(got.count, 3);
  task_item a = {.nr = got.rows[0].nr, .fence = got.rows[0].fence}, waits = a, again = a;
  task_item two[2] = {{.nr = got.rows[1].nr, .fence = {got.rows[1].fence.v + 1}},
                      {.nr = got.rows[2].nr, .fence = got.rows[2].fence}};
  waits.verdict = DIBS__TASK_END_WAIT;
  task_op ops[5];
  struct dibs__op *batch[5];
  task_item *const items[] = {&a, two, &again, &waits, NULL};
  static const uint32_t counts[] = {1, 2, 1, 1, 0};
  for (int i = 0; i < 5; i++) {
    ops[i] = task_call(DIBS__TASK_END, "k");
    ops[i].items = items[i];
    ops[i].count = counts[i];
    batch[i] = &ops[i].op;
  }
  run_batch(p, batch, 5);
  for (int i = 0; i < 5; i++)
    if (in_doubt(&ops[i].op)) return;
  for (int i = 0; i < 5; i++) expect(ops[i], DIBS_OK);
  expect_status(a.status, DIBS_OK);
  assert_false(a.repeated);
  expect_status(two[0].status, DIBS_STALE);
  expect_status(two[1].status, DIBS_OK);
  expect_status(again.status, DIBS_OK);
  assert_true(again.repeated);
  expect_status(waits.status, DIBS_STALE);
  assert_int_equal(state_of(p, got.rows[1].nr), DIBS__TASK_CLAIMED);
  assert_int_equal(state_of(p, got.rows[2].nr), DIBS__TASK_DONE);
}

static const struct CMUnitTest contract_tasks_lists_cases[] = {
    CASE(R75_a_payload_may_contain_any_bytes),
    CASE(R75_a_payload_has_at_most_a_megabyte),
    CASE(R75_phases_serial_and_unique_texts_are_bytes),
    CASE(R75_kinds_are_bytes),
    CASE(R75_a_refused_text_is_refused_alone),
    CASE(R75_malformed_operations_are_invalid),
    CASE(R76_count_has_every_state),
    CASE(R76_count_has_every_kind_in_order),
    CASE(R76_list_has_what_matches_its_filter),
    CASE(R76_list_has_pages),
    CASE(R76_change_has_pages_and_a_rehearsal),
    CASE(R76_reading_writes_nothing),
    CASE(R78_change_says_what_it_looked_at),
    CASE(R1_operations_on_one_kind_keep_the_batch_order),
    CASE(R1_ends_of_one_batch_have_their_own_answers),
};
CONTRACT_TESTS(contract_tasks_lists);

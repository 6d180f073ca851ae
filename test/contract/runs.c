/* SPDX-License-Identifier: MIT */
/* What ran (R80 to R83). */
#include "harness.h"
#include "hostile/hostile.h"
#include "store/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dibs__run_op run_op;

enum { PATIENCE_MS = 30000, MANY = 150, PAGE = 40 };
#define DAY_MS INT64_C(86400000)

static dibs__str str(const char *text) {
  return dibs__str_of(text, strlen(text));
}

static run_op run_of(enum dibs__run_verb verb) {
  run_op op = {.op = {.family = DIBS__FAM_RUN, .verb = (uint16_t)verb}, .keep_ms = -1};
  op.op.flags = verb == DIBS__RUN_LIST ? DIBS__OP_READS : 0;
  op.op.by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  return op;
}

static run_op carry(struct party *p, run_op op) {
  struct dibs__op *ops[] = {&op.op};
  run_batch(p, ops, 1);
  if (op.got) free_at_end((char *)op.got);
  return op;
}

static run_op set_keep(struct party *p, int64_t keep_ms) {
  run_op op = run_of(DIBS__RUN_SET);
  op.keep_ms = keep_ms;
  return carry(p, op);
}

/* The setting is the store's, which cases may share. */
static struct party *run_party(void) {
  struct party *p = party();
  needs_family(p, DIBS__FAM_RUN);
  expect(set_keep(p, -1), DIBS_OK);
  return p;
}

/* Ended `ago_ms` ago, after a second. */
static run_op put_op(const char *name, int id, int64_t ago_ms, enum dibs__run_end how) {
  run_op op = run_of(DIBS__RUN_PUT);
  op.row = (struct dibs__run_row){.id = id_of(id),
                                  .name = name_of(name),
                                  .kind = str("run"),
                                  .host = str("ann@node1:77"),
                                  .command = str("make all"),
                                  .output = str("done\n"),
                                  .fence = {77},
                                  .nr = 5,
                                  .how = how,
                                  .code = how == DIBS__RUN_FAILED ? 3 : 0,
                                  .began_ms = ago_ms + 1000,
                                  .ended_ms = ago_ms};
  return op;
}

static run_op put(struct party *p, const char *name, int id, int64_t ago_ms, enum dibs__run_end how) {
  return carry(p, put_op(name, id, ago_ms, how));
}

static run_op list_op(const char *name) {
  run_op op = run_of(DIBS__RUN_LIST);
  if (name) op.name = name_of(name);
  if (!name) op.prefix = name_of("");
  op.most = DIBS__RUN_ROWS;
  return op;
}

static run_op list(struct party *p, const char *name) {
  run_op op = carry(p, list_op(name));
  expect(op, DIBS_OK);
  return op;
}

static void expect_ids(const run_op *op, const int *ids, size_t count) {
  assert_int_equal(op->got_count, count);
  for (size_t i = 0; i < count; i++) assert_true(dibs__id_equal(op->got[i].id, id_of(ids[i])));
}
#define expect_list(op, ...)                                                                                           \
  do {                                                                                                                 \
    run_op listed_ = (op);                                                                                             \
    const int ids_[] = {__VA_ARGS__};                                                                                  \
    expect(listed_, DIBS_OK);                                                                                          \
    expect_ids(&listed_, ids_, sizeof ids_ / sizeof ids_[0]);                                                          \
  } while (0)

static void expect_str(dibs__str got, dibs__str want) {
  assert_int_equal(got.len, want.len);
  if (want.len) assert_memory_equal(got.p, want.p, want.len);
}

/* ---- R80 ---- */

static void R80_a_repeat_replaces_nothing(void **state) {
  (void)state;
  struct party *p = run_party(), *q = party();
  expect(put(p, "backup", 1, 5000, DIBS__RUN_FAILED), DIBS_OK);
  run_op again = put_op("backup", 1, 9000, DIBS__RUN_DONE);
  again.row.output = str("other");
  again.row.fence.v = 99;
  expect(carry(q, again), DIBS_OK);
  expect(carry(p, again), DIBS_OK);
  run_op got = list(q, "backup");
  assert_int_equal(got.got_count, 1);
  assert_int_equal(got.got[0].how, DIBS__RUN_FAILED);
  assert_int_equal(got.got[0].code, 3);
  assert_int_equal(got.got[0].fence.v, 77);
  assert_int_equal(got.got[0].nr, 5);
  expect_str(got.got[0].output, str("done\n"));
}

static void R80_a_batch_keeps_each_and_refuses_only_the_bad(void **state) {
  (void)state;
  struct party *p = run_party();
  run_op puts[5];
  struct dibs__op *ops[5];
  for (int i = 0; i < 5; i++) {
    puts[i] = put_op("batch", i == 3 ? 1 : i, 100 * (5 - i), DIBS__RUN_DONE); /* the fourth repeats the second */
    ops[i] = &puts[i].op;
  }
  puts[2].row.how = DIBS__RUN_NOT_RUN + 1;
  run_batch(p, ops, 5);
  for (int i = 0; i < 5; i++) expect(puts[i], i == 2 ? DIBS_INVALID : DIBS_OK);
  expect_list(list(p, "batch"), 4, 1, 0);
}

static void R80_bad_runs_are_refused(void **state) {
  (void)state;
  struct party *p = run_party();
  static char much[DIBS__RUN_OUTPUT_MAX + 1];
  run_op bad = put_op("bad", 1, 0, DIBS__RUN_DONE);
  bad.row.output = dibs__str_of(much, sizeof much);
  expect(carry(p, bad), DIBS_INVALID);
  bad = put_op("bad", 1, 0, DIBS__RUN_DONE);
  bad.row.ended_ms = bad.row.began_ms + 1;
  expect(carry(p, bad), DIBS_INVALID);
  bad = put_op("bad", 1, 0, DIBS__RUN_DONE);
  bad.row.name = (dibs__str){"", 0};
  expect(carry(p, bad), DIBS_INVALID);
  bad = list_op("bad");
  bad.most = DIBS__RUN_ROWS + 1;
  expect(carry(p, bad), DIBS_INVALID);
  assert_int_equal(list(p, "bad").got_count, 0);
}

/* ---- R81 ---- */

static void R81_the_latest_end_is_first(void **state) {
  (void)state;
  struct party *p = run_party();
  assert_int_equal(list(p, NULL).got_count, 0);
  expect(put(p, "b", 1, 3000, DIBS__RUN_DONE), DIBS_OK);
  expect(put(p, "a", 2, 9000, DIBS__RUN_KILLED), DIBS_OK);
  expect(put(p, "a", 3, 1000, DIBS__RUN_LOST), DIBS_OK);
  expect_list(list(p, NULL), 3, 1, 2);
  expect_list(list(p, "a"), 3, 2);
  run_op first = list_op(NULL);
  first.most = 1;
  expect_list(carry(p, first), 3);
  run_op got = list(p, "b");
  expect_str(got.got[0].name, name_of("b"));
  expect_str(got.got[0].kind, str("run"));
  expect_str(got.got[0].host, str("ann@node1:77"));
  expect_str(got.got[0].command, str("make all"));
  int64_t took_ms = got.got[0].ended_ms - got.got[0].began_ms;
  assert_true(took_ms >= 999 && took_ms <= 1001); /* each may be rounded */
  assert_true(is_instant(got.got[0].ended_ms));
  assert_true(got.now_ms >= got.got[0].ended_ms + 3000 && got.now_ms <= got.got[0].ended_ms + PATIENCE_MS);
}

static void R81_filters_choose(void **state) {
  (void)state;
  struct party *p = run_party();
  expect(put(p, "web/1", 1, 8000, DIBS__RUN_DONE), DIBS_OK);
  expect(put(p, "web/2", 2, 6000, DIBS__RUN_FAILED), DIBS_OK);
  expect(put(p, "we", 3, 4000, DIBS__RUN_OVERTIME), DIBS_OK);
  run_op cron = put_op("web/1", 4, 2000, DIBS__RUN_DONE);
  cron.row.kind = str("cron");
  expect(carry(p, cron), DIBS_OK);
  run_op op = list_op(NULL);
  op.failed = true;
  expect_list(carry(p, op), 3, 2);
  op = list_op(NULL);
  op.prefix = name_of("web/");
  expect_list(carry(p, op), 4, 2, 1);
  op.kind = str("run");
  expect_list(carry(p, op), 2, 1);
  run_op all = list(p, NULL);
  op = list_op(NULL);
  op.since_ms = all.got[2].ended_ms; /* of 2 */
  expect_list(carry(p, op), 4, 3, 2);
  op.before_ms = all.got[0].ended_ms; /* of 4, and not itself */
  expect_list(carry(p, op), 3, 2);
}

/* All of them, however many others ran since. */
static void R81_a_task_has_its_runs(void **state) {
  (void)state;
  struct party *p = run_party();
  static run_op puts[MANY];
  struct dibs__op *ops[MANY];
  for (int i = 0; i < MANY; i++) {
    puts[i] = put_op("mail", i, 60000 - i, DIBS__RUN_DONE);
    puts[i].row.nr = i < 2 ? 5 : i == 2 ? INT64_MAX : 6 + (uint64_t)i;
    ops[i] = &puts[i].op;
  }
  run_batch(p, ops, MANY);
  for (int i = 0; i < MANY; i++) expect(puts[i], DIBS_OK);
  run_op op = list_op("mail");
  op.nr = 5;
  expect_list(carry(p, op), 1, 0);
  op.most = 1;
  expect_list(carry(p, op), 1);
  op = list_op(NULL);
  op.nr = INT64_MAX;
  expect_list(carry(p, op), 2);
  op.failed = true;
  assert_int_equal(carry(p, op).got_count, 0);
  op = list_op("letter");
  op.nr = 5;
  assert_int_equal(carry(p, op).got_count, 0);
  op.nr = (uint64_t)INT64_MAX + 1;
  expect(carry(p, op), DIBS_INVALID);
}

static void R81_pages_have_each_run_once(void **state) {
  (void)state;
  struct party *p = run_party(), *q = party();
  static run_op puts[MANY];
  static bool seen[MANY];
  memset(seen, 0, sizeof seen);
  for (int i = 0; i < MANY; i++) {
    puts[i] = put_op("many", i, 60000 - i / 10 * 100, DIBS__RUN_DONE); /* ten end at one instant */
    struct dibs__op *ops[] = {&puts[i].op};
    run_batch(p, ops, 1);
    expect(puts[i], DIBS_OK);
  }
  run_op page = list_op("many");
  int64_t last_ms = INT64_MAX;
  size_t count = 0;
  page.most = PAGE;
  for (int more = MANY;; more++) {
    run_op got = carry(p, page);
    expect(got, DIBS_OK);
    for (uint32_t i = 0; i < got.got_count; i++) {
      assert_true(got.got[i].ended_ms <= last_ms);
      last_ms = got.got[i].ended_ms;
      for (int k = 0; k < MANY; k++) {
        if (!dibs__id_equal(got.got[i].id, id_of(k))) continue;
        assert_false(seen[k]);
        seen[k] = true;
        count++;
      }
    }
    if (got.got_count < PAGE) break;
    page.before_ms = last_ms;
    page.before_id = got.got[got.got_count - 1].id;
    expect(put(q, "many", more, 0, DIBS__RUN_DONE), DIBS_OK); /* meanwhile */
  }
  assert_int_equal(count, MANY);
}

/* ---- R82 ---- */

static void wait_until_gone(struct party *p, const char *name) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  while (list(p, name).got_count > 0) {
    if (!dibs__tick_before(dibs__tick_now(), by)) fail_msg("the run is still listed after its time");
    dibs__nap_ms(5);
  }
}

static void R82_a_run_is_kept_for_its_time(void **state) {
  (void)state;
  struct party *p = run_party();
  run_op brief = put_op("brief", 1, 0, DIBS__RUN_DONE);
  brief.keep_ms = 60;
  expect(carry(p, brief), DIBS_OK);
  expect(put(p, "stays", 2, 0, DIBS__RUN_DONE), DIBS_OK);
  wait_until_gone(p, "brief");
  expect_list(list(p, NULL), 2);
  run_op none = put_op("none", 3, 0, DIBS__RUN_DONE);
  none.keep_ms = 0;
  expect(carry(p, none), DIBS_OK);
  assert_int_equal(list(p, "none").got_count, 0);
}

static void R82_the_setting_is_the_stores(void **state) {
  (void)state;
  struct party *p = run_party(), *q = party();
  expect(put(p, "before", 1, 0, DIBS__RUN_DONE), DIBS_OK);
  expect(set_keep(q, 60), DIBS_OK);
  expect(put(p, "brief", 2, 0, DIBS__RUN_DONE), DIBS_OK);
  wait_until_gone(q, "brief");
  assert_false(list(p, NULL).off);
  expect_list(list(p, "before"), 1);
  expect(set_keep(p, -1), DIBS_OK);
  expect(put(p, "after", 3, 0, DIBS__RUN_DONE), DIBS_OK);
  expect_list(list(p, "after"), 3);
}

static void R82_a_store_may_keep_none(void **state) {
  (void)state;
  struct party *p = run_party(), *q = party();
  expect(put(p, "before", 1, 0, DIBS__RUN_DONE), DIBS_OK);
  expect(set_keep(p, 0), DIBS_OK);
  run_op own = put_op("own", 2, 0, DIBS__RUN_DONE);
  own.keep_ms = DAY_MS;
  expect(carry(q, own), DIBS_OK);
  expect(put(q, "off", 3, 0, DIBS__RUN_DONE), DIBS_OK);
  run_op got = list(q, NULL);
  expect_list(got, 1);
  assert_true(got.off);
  expect(set_keep(p, -1), DIBS_OK);
  assert_false(list(p, NULL).off);
}

/* ---- R83 ---- */

static void R83_texts_are_kept_unchanged(void **state) {
  (void)state;
  struct party *p = run_party();
  for (size_t i = 0; i < hostile_short_count; i++) {
    dibs__str text = dibs__str_of(hostile_short[i].p, hostile_short[i].len);
    run_op op = put_op("texts", (int)i, 0, DIBS__RUN_DONE);
    op.row.kind = op.row.host = op.row.command = op.row.output = text;
    expect(carry(p, op), DIBS_OK);
    run_op back = list_op("texts");
    back.kind = text;
    back = carry(p, back);
    expect(back, DIBS_OK);
    assert_int_equal(back.got_count, 1);
    expect_str(back.got[0].kind, text);
    expect_str(back.got[0].host, text);
    expect_str(back.got[0].command, text);
    expect_str(back.got[0].output, text);
  }
}

static void R83_output_is_any_bytes(void **state) {
  (void)state;
  struct party *p = run_party();
  char bytes[DIBS__RUN_OUTPUT_MAX];
  for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)(i * 7);
  run_op op = put_op("bytes", 1, 0, DIBS__RUN_DONE);
  op.row.output = dibs__str_of(bytes, sizeof bytes);
  op.row.command = dibs__str_of(bytes, DIBS__RUN_COMMAND_MAX);
  expect(carry(p, op), DIBS_OK);
  run_op got = list(p, "bytes");
  assert_int_equal(got.got_count, 1);
  expect_str(got.got[0].output, op.row.output);
  expect_str(got.got[0].command, op.row.command);
}

static void R83_a_name_that_cannot_be_kept_is_refused_alone(void **state) {
  (void)state;
  struct party *p = run_party();
  run_op puts[3];
  struct dibs__op *ops[3];
  for (int i = 0; i < 3; i++) {
    puts[i] = put_op("alone", i, 100 * (3 - i), DIBS__RUN_DONE);
    ops[i] = &puts[i].op;
  }
  puts[1].row.kind = dibs__str_of("\xff\xfe", 2);
  run_batch(p, ops, 3);
  expect(puts[0], DIBS_OK);
  expect(puts[2], DIBS_OK);
  if (puts[1].op.status == DIBS_OK)
    expect_list(list(p, "alone"), 2, 1, 0);
  else if (puts[1].op.status == DIBS_INVALID || puts[1].op.status == DIBS_UNSUPPORTED)
    expect_list(list(p, "alone"), 2, 0);
  else
    expect(puts[1], DIBS_INVALID);
}

static const struct CMUnitTest contract_runs_cases[] = {
    CASE(R80_a_repeat_replaces_nothing),
    CASE(R80_a_batch_keeps_each_and_refuses_only_the_bad),
    CASE(R80_bad_runs_are_refused),
    CASE(R81_the_latest_end_is_first),
    CASE(R81_filters_choose),
    CASE(R81_a_task_has_its_runs),
    CASE(R81_pages_have_each_run_once),
    CASE(R82_a_run_is_kept_for_its_time),
    CASE(R82_the_setting_is_the_stores),
    CASE(R82_a_store_may_keep_none),
    CASE(R83_texts_are_kept_unchanged),
    CASE(R83_output_is_any_bytes),
    CASE(R83_a_name_that_cannot_be_kept_is_refused_alone),
};
CONTRACT_TESTS(contract_runs);

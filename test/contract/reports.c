/* SPDX-License-Identifier: MIT */
/* Reports that clients of several tiers exchange at the anchor (R36). */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEEP_MS = 60000 };

enum { PATIENCE_MS = 5000 };

typedef struct dibs__report_op report;

static struct party *reporter(void) {
  struct party *p = party();
  if (!(p->identity.families & 1u << DIBS__FAM_REPORT)) skip();
  return p;
}

static report report_op(enum dibs__report_verb verb, int id, const char *data, int64_t keep_ms) {
  report op = {.op = {.family = DIBS__FAM_REPORT, .verb = (uint16_t)verb}, .id = id_of(id), .keep_ms = keep_ms};
  op.op.flags = verb == DIBS__REPORT_READ ? DIBS__OP_READS : 0;
  op.op.by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  if (data) op.data = dibs__str_of(data, strlen(data));
  return op;
}

static report run(struct party *p, report op) {
  struct dibs__op *ops[] = {&op.op};
  run_batch(p, ops, 1);
  free_at_end((char *)op.got);
  return op;
}

static report put(struct party *p, int id, const char *data, bool want) {
  report op = report_op(DIBS__REPORT_PUT, id, data, KEEP_MS);
  op.want = want;
  return run(p, op);
}

static const struct dibs__report *report_of(const report *op, int id) {
  for (uint32_t i = 0; i < op->got_count; i++)
    if (dibs__id_equal(op->got[i].id, id_of(id))) return &op->got[i];
  return NULL;
}

static void expect_report(const report *op, int id, const char *data) {
  const struct dibs__report *r = report_of(op, id);
  if (!data) {
    assert_null(r);
    return;
  }
  assert_non_null(r);
  assert_int_equal(r->data.len, strlen(data));
  assert_memory_equal(r->data.p, data, r->data.len);
  assert_in_range(r->age_ms, 0, PATIENCE_MS);
}

static void R36_a_reader_gets_the_latest_report_of_each_client(void **state) {
  (void)state;
  struct party *p = reporter(), *q = party();
  report read = run(q, report_op(DIBS__REPORT_READ, 0, NULL, KEEP_MS));
  expect(read, DIBS_OK);
  expect_report(&read, 1, NULL);
  report first = put(p, 1, "one", false);
  expect(first, DIBS_OK);
  assert_int_equal(first.got_count, 0);
  report second = put(q, 2, "", true);
  expect(second, DIBS_OK);
  expect_report(&second, 1, "one");
  expect_report(&second, 2, "");
  report third = put(p, 1, "one, later", true);
  expect_report(&third, 1, "one, later");
  expect_report(&third, 2, "");
  read = run(q, report_op(DIBS__REPORT_READ, 0, NULL, KEEP_MS));
  expect_report(&read, 1, "one, later");
  expect(run(q, report_op(DIBS__REPORT_DROP, 1, NULL, 0)), DIBS_OK);
  expect(run(q, report_op(DIBS__REPORT_DROP, 1, NULL, 0)), DIBS_OK);
  read = run(p, report_op(DIBS__REPORT_READ, 0, NULL, KEEP_MS));
  expect_report(&read, 1, NULL);
  expect_report(&read, 2, "");
}

static void R36_reports_older_than_requested_are_not_read(void **state) {
  (void)state;
  struct party *p = reporter();
  enum { SHORT_MS = 300 };
  expect(put(p, 1, "old", false), DIBS_OK);
  dibs__nap_ms(SHORT_MS + 50); /* sleeps, because not every clock can be moved */
  report read = run(p, report_op(DIBS__REPORT_READ, 0, NULL, SHORT_MS));
  expect_report(&read, 1, NULL);
  read = run(p, report_op(DIBS__REPORT_READ, 0, NULL, KEEP_MS)); /* reading removes nothing */
  expect_report(&read, 1, "old");
  report op = report_op(DIBS__REPORT_PUT, 2, "new", SHORT_MS);
  expect(run(p, op), DIBS_OK);
  read = run(p, report_op(DIBS__REPORT_READ, 0, NULL, KEEP_MS)); /* a put removes old reports */
  expect_report(&read, 1, NULL);
  expect_report(&read, 2, "new");
}

static void R36_a_report_may_contain_any_bytes_up_to_its_limit(void **state) {
  (void)state;
  struct party *p = reporter();
  char data[DIBS__REPORT_MAX + 1];
  for (size_t i = 0; i < sizeof data; i++) data[i] = (char)(i * 7);
  report op = report_op(DIBS__REPORT_PUT, 1, NULL, KEEP_MS);
  op.want = true;
  op.data = dibs__str_of(data, DIBS__REPORT_MAX);
  report all = run(p, op);
  expect(all, DIBS_OK);
  const struct dibs__report *r = report_of(&all, 1);
  assert_true(r && r->data.len == DIBS__REPORT_MAX && memcmp(r->data.p, data, DIBS__REPORT_MAX) == 0);
  op.data.len++;
  expect(run(p, op), DIBS_INVALID);
  expect(run(p, report_op(DIBS__REPORT_READ, 0, NULL, 0)), DIBS_INVALID);
  op.op.verb = DIBS__REPORT_DROP + 1;
  expect(run(p, op), DIBS_INVALID);
}

static void R36_a_batch_may_contain_many_reports(void **state) {
  (void)state;
  struct party *p = reporter(), *t = tier();
  report ops[20];
  struct dibs__op *batch[20];
  char text[20][8];
  for (int i = 0; i < 20; i++) {
    snprintf(text[i], sizeof text[i], "%d", i);
    ops[i] = report_op(DIBS__REPORT_PUT, i, text[i], KEEP_MS);
    batch[i] = &ops[i].op;
  }
  run_batch(p, batch, 20);
  for (int i = 0; i < 20; i++) expect(ops[i], DIBS_OK);
  report read = run(t, report_op(DIBS__REPORT_READ, 0, NULL, KEEP_MS));
  for (int i = 0; i < 20; i++) expect_report(&read, i, text[i]);
}

static void R20_a_store_of_an_older_dibs_is_migrated(void **state) {
  (void)state;
  if (!target()->aged) skip();
  struct party *p = party();
  struct dibs__lease_op held = acquire(p, "n", 1);
  expect(held, DIBS_OK);
  expect(save(p, "r", 1, held.fence, "kept"), DIBS_OK);
  target()->aged(p);
  struct party *q = party();
  expect(put(q, 1, "one", false), DIBS_OK);
  report read = run(p, report_op(DIBS__REPORT_READ, 0, NULL, KEEP_MS));
  expect_report(&read, 1, "one");
  assert_string_equal(load(q, "r").got, "kept");
  expect(renew(p, "n", 1, held.fence), DIBS_OK);
  struct dibs__anchor_op bucket = anchor_read(q, bucket_of("n"));
  expect(bucket, DIBS_OK);
  assert_false(bucket.served);
}

static const struct CMUnitTest contract_reports_cases[] = {
    CASE(R20_a_store_of_an_older_dibs_is_migrated),      CASE(R36_a_reader_gets_the_latest_report_of_each_client),
    CASE(R36_reports_older_than_requested_are_not_read), CASE(R36_a_report_may_contain_any_bytes_up_to_its_limit),
    CASE(R36_a_batch_may_contain_many_reports),
};
CONTRACT_TESTS(contract_reports);

/* SPDX-License-Identifier: MIT */
/* One-line operations on tasks, for the contract's tests. */
#include "task_calls.h"
#include "base/slot.h"
#include "store/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dibs__tick patience(void) {
  return dibs__tick_add_ms(dibs__tick_now(), TASK_PATIENCE_MS);
}

struct party *task_party(void) {
  struct party *p = party();
  needs_family(p, DIBS__FAM_TASK);
  return p;
}

struct party *lane_party(void) {
  struct party *p = task_party();
  if (target()->no_lanes) skip();
  return p;
}

dibs__str str_of(const char *text) {
  return dibs__str_of(text, strlen(text));
}

task_op task_call(enum dibs__task_verb verb, const char *kind) {
  task_op op = {.op = {.family = DIBS__FAM_TASK, .verb = (uint16_t)verb, .by = patience()}};
  bool reads = verb == DIBS__TASK_LIST || verb == DIBS__TASK_COUNT;
  op.op.flags = reads ? DIBS__OP_READS : 0;
  op.kind = *kind ? name_of(kind) : dibs__str_of("", 0);
  op.op.bucket = dibs__bucket(op.kind);
  op.keep_ms = -1;
  op.timeout_ms = TASK_LONG_MS;
  op.most = 1;
  return op;
}

task_op run_task(struct party *p, task_op op) {
  struct dibs__op *ops[] = {&op.op};
  run_batch(p, ops, 1);
  if (op.got) free_at_end(op.got);
  return op;
}

uint32_t sent_task(struct party *p, task_op *op, bool keeps) {
  const struct dibs__driver *driver = store_of(p)->driver;
  struct dibs__op *ops[] = {&op->op};
  dibs__tick by = patience();
  for (uint32_t sent = 1; dibs__tick_before(dibs__tick_now(), by); sent++) {
    op->op.status = DIBS_UNKNOWN;
    op->got = NULL;
    op->op.by = by;
    p->reported = (struct dibs__result){0};
    dibs__status run = p->session ? driver->run(p->session, ops, 1, by, &p->reported) : DIBS_UNAVAILABLE;
    if (run == DIBS_OK && op->op.status != DIBS_UNKNOWN && op->op.status != DIBS_UNAVAILABLE) {
      if (!keeps) dibs__op_free_answer(&op->op);
      return sent;
    }
    if (!p->reported.dead && p->session) continue;
    if (p->session) driver->disconnect(p->session);
    p->session = NULL;
    (void)driver->connect(store_of(p), by, &p->session, &p->identity, &p->reported);
  }
  return 0;
}

/* ---- ADD ---- */

static task_op add_call(const char *kind, task_new *news, uint32_t count, uint8_t token[16]) {
  task_op op = task_call(DIBS__TASK_ADD, kind);
  dibs__random(token, 16);
  for (int i = 0; i < 16; i++) token[i] = (uint8_t)('a' + token[i] % 26);
  op.news = news;
  op.count = count;
  op.token = dibs__str_of((const char *)token, 16);
  op.token_ms = DIBS__TASK_TOKEN_MS;
  return op;
}

uint64_t added_as(struct party *p, const char *kind, task_new n) {
  uint8_t token[16];
  task_op op = run_task(p, add_call(kind, &n, 1, token));
  if (op.why[0]) print_error("%s\n", op.why);
  expect(op, DIBS_OK);
  expect_status(n.status, DIBS_OK);
  assert_true(n.nr > 0);
  return n.nr;
}

void added_many(struct party *p, const char *kind, uint32_t count, task_new n, uint64_t nrs[]) {
  task_new *news = calloc(count, sizeof *news);
  uint8_t token[16];
  assert_non_null(news);
  for (uint32_t i = 0; i < count; i++) news[i] = n;
  task_op op = run_task(p, add_call(kind, news, count, token));
  expect(op, DIBS_OK);
  for (uint32_t i = 0; i < count; i++) {
    expect_status(news[i].status, DIBS_OK);
    if (i) assert_true(news[i].nr > news[i - 1].nr);
    if (nrs) nrs[i] = news[i].nr;
  }
  free(news);
}

/* ---- CLAIM ---- */

struct claimed claimed_as(struct party *p, const char *kind, struct claim_how how) {
  static int last_id = 1000000;
  dibs__str phases[sizeof how.phases / sizeof how.phases[0]];
  task_op op = task_call(DIBS__TASK_CLAIM, kind);
  op.most = how.most ? how.most : 1;
  if (how.timeout_ms) op.timeout_ms = how.timeout_ms;
  for (; op.phase_count < 4 && how.phases[op.phase_count]; op.phase_count++)
    phases[op.phase_count] = str_of(how.phases[op.phase_count]);
  op.phases = phases;
  op.id = id_of(how.id ? how.id : ++last_id);
  op.again = !how.first_try;
  op.by = str_of(how.by ? how.by : "somebody");
  op = run_task(p, op);
  if (op.why[0]) print_error("%s\n", op.why);
  expect(op, DIBS_OK);
  return (struct claimed){op.got_count, op.got, op.next_ms, op.more, in_doubt(&op.op)};
}

struct claimed claimed_at_last(struct party *p, const char *kind, struct claim_how how) {
  enum { TIMES = 100 };
  struct claimed got = claimed_as(p, kind, how);
  for (int i = 0; i < TIMES && got.count == 0 && got.more; i++) got = claimed_as(p, kind, how);
  return got;
}

void admit(struct party *p, const char *kind) {
  expect_none_claimed(claimed(p, kind, .phases = {"no task has this phase"}));
}

task_row claimed_in_time(struct party *p, const char *kind, uint64_t nr) {
  dibs__tick by = patience();
  for (;;) {
    struct claimed got = claimed(p, kind);
    if (got.count) {
      assert_int_equal(got.rows[0].nr, nr);
      return got.rows[0];
    }
    if (!dibs__tick_before(dibs__tick_now(), by)) fail_msg("task %llu did not become ready", (unsigned long long)nr);
    assert_true(got.next_ms >= 0);
    dibs__nap_ms(3);
  }
}

void nap_past_short(void) {
  dibs__nap_ms(TASK_SHORT_MS + 5 + target()->told_ms);
}

void expect_claimed(struct claimed got, uint32_t count, const uint64_t nrs[]) {
  assert_int_equal(got.count, count);
  for (uint32_t i = 0; i < count && !got.in_doubt; i++) {
    assert_int_equal(got.rows[i].nr, nrs[i]);
    assert_int_equal(got.rows[i].state, DIBS__TASK_CLAIMED);
  }
  for (uint32_t i = 0; i < count && got.in_doubt; i++) {
    bool there = false;
    for (uint32_t j = 0; j < count; j++) there = there || got.rows[j].nr == nrs[i];
    assert_true(there);
  }
}

/* ---- By lane ---- */

static task_op lanes_call(const char *kind, struct dibs__task_lane *lanes, uint32_t count, uint32_t of,
                          struct lanes_how how) {
  static int last_id = 2000000;
  task_op op = task_call(DIBS__TASK_CLAIM, kind);
  op.most = how.most ? how.most : 1;
  if (how.timeout_ms) op.timeout_ms = how.timeout_ms;
  op.id = id_of(how.id ? how.id : ++last_id);
  op.again = true;
  op.by = str_of(how.by ? how.by : "owner");
  op.lanes = lanes;
  op.lane_count = count;
  op.of_lanes = of;
  op.topic = str_of(how.topic ? how.topic : "topic");
  op.from = how.from;
  return op;
}

struct lanes_claimed lanes_claimed_as(struct party *p, const char *kind, struct dibs__task_lane *lanes, uint32_t count,
                                      uint32_t of, struct lanes_how how) {
  enum { TIMES = 100 };
  task_op op = {.more = true};
  for (int i = 0; i < TIMES && op.got_count == 0 && op.more; i++)
    op = run_task(p, lanes_call(kind, lanes, count, of, how));
  if (op.why[0] && !how.refused) print_error("%s\n", op.why);
  if (!how.refused) expect(op, DIBS_OK);
  struct lanes_claimed answer = {
      {op.got_count, op.got, op.next_ms, op.more, in_doubt(&op.op)}, op.op.status, op.from, ""};
  memcpy(answer.why, op.why, sizeof answer.why);
  return answer;
}

struct claimed owned_as(struct party *p, const char *kind, uint64_t fence, struct lanes_how how) {
  struct dibs__task_lane lane = {.lane = 0, .fence = {fence}};
  struct lanes_claimed answer = lanes_claimed_as(p, kind, &lane, 1, 1, how);
  expect_status(lane.status, DIBS_OK);
  return answer.got;
}

dibs__str text_of_lane(uint32_t lane, uint32_t of, uint32_t nth) {
  char text[16];
  for (uint32_t i = 0;; i++) {
    snprintf(text, sizeof text, "s%u", i);
    if (dibs__slot_lane(dibs__slot(text, strlen(text)), of) != lane || nth-- > 0) continue;
    char *kept = strdup(text);
    assert_non_null(kept);
    free_at_end(kept);
    return str_of(kept);
  }
}

static int compare_slots(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* Of 2^18 texts some pairs have one slot, and always the same ones. */
void texts_of_one_slot(dibs__str texts[2]) {
  enum { COUNT = 1 << 18 };
  uint64_t *slots = calloc(COUNT, sizeof *slots);
  static char found[2][16];
  assert_non_null(slots);
  for (uint32_t i = 0; i < COUNT; i++) {
    int len = snprintf(found[0], sizeof found[0], "c%u", i);
    slots[i] = (uint64_t)dibs__slot(found[0], (size_t)len) << 32 | i;
  }
  qsort(slots, COUNT, sizeof *slots, compare_slots);
  uint32_t at = 1;
  while (at < COUNT && slots[at] >> 32 != slots[at - 1] >> 32) at++;
  assert_true(at < COUNT);
  for (uint32_t i = 0; i < 2; i++) {
    snprintf(found[i], sizeof found[i], "c%u", (uint32_t)slots[at - 1 + i]);
    texts[i] = str_of(found[i]);
  }
  free(slots);
  assert_int_equal(dibs__slot(texts[0].p, texts[0].len), dibs__slot(texts[1].p, texts[1].len));
  assert_false(dibs__str_equal(texts[0], texts[1]));
}

/* ---- END, EXTEND ---- */

static dibs__status one_item(struct party *p, enum dibs__task_verb verb, task_item *item, int64_t timeout_ms) {
  task_op op = task_call(verb, "k");
  op.items = item;
  op.count = 1;
  op.timeout_ms = timeout_ms;
  op = run_task(p, op);
  if (op.why[0]) print_error("%s\n", op.why);
  expect(op, DIBS_OK);
  return item->status;
}

dibs__status ended_as(struct party *p, task_row row, enum dibs__task_verdict verdict, struct end_how how) {
  task_item item = {.nr = row.nr, .fence = row.fence, .verdict = verdict, .tries = how.tries};
  item.delay_ms = how.delay_ms;
  item.phase = str_of(how.phase ? how.phase : "");
  item.text = str_of(how.text ? how.text : "");
  return one_item(p, DIBS__TASK_END, &item, TASK_LONG_MS);
}

dibs__status extended(struct party *p, task_row row, int64_t timeout_ms, const char *phase) {
  task_item item = {.nr = row.nr, .fence = row.fence, .phase = str_of(phase)};
  return one_item(p, DIBS__TASK_EXTEND, &item, timeout_ms);
}

void end_done(struct party *p, struct claimed got) {
  static task_item items[DIBS__TASK_ITEMS];
  for (uint32_t i = 0; i < got.count; i++) items[i] = (task_item){.nr = got.rows[i].nr, .fence = got.rows[i].fence};
  task_op op = task_call(DIBS__TASK_END, "k");
  op.items = items;
  op.count = got.count;
  expect(run_task(p, op), DIBS_OK);
  for (uint32_t i = 0; i < got.count; i++) expect_status(items[i].status, DIBS_OK);
}

/* ---- LIST, COUNT, CHANGE, KIND ---- */

static task_op listed(struct party *p, uint64_t nr, bool errors) {
  task_op op = task_call(DIBS__TASK_LIST, "");
  op.filter.nr = nr;
  op.most = DIBS__TASK_ITEMS;
  op.errors = errors;
  op.payloads = true;
  op = run_task(p, op);
  expect(op, DIBS_OK);
  return op;
}

bool task_exists(struct party *p, uint64_t nr) {
  return listed(p, nr, false).got_count > 0;
}

task_row row_of(struct party *p, uint64_t nr) {
  task_op op = listed(p, nr, false);
  assert_int_equal(op.got_count, 1);
  task_row row = *(const task_row *)op.got;
  assert_int_equal(row.nr, nr);
  return row;
}

uint32_t state_of(struct party *p, uint64_t nr) {
  return row_of(p, nr).state;
}

task_op errors_of(struct party *p, uint64_t nr) {
  return listed(p, nr, true);
}

struct dibs__task_kind count_of(struct party *p, const char *kind) {
  task_op op = run_task(p, task_call(DIBS__TASK_COUNT, kind));
  expect(op, DIBS_OK);
  assert_true(op.got_count <= 1);
  struct dibs__task_kind none = {.kind = name_of(kind), .oldest_ms = -1, .keep_ms = -1};
  return op.got_count ? *(const struct dibs__task_kind *)op.got : none;
}

task_op changed(struct party *p, enum dibs__task_change change, struct dibs__task_filter filter) {
  task_op op = task_call(DIBS__TASK_CHANGE, "");
  op.change = change;
  op.filter = filter;
  op.most = DIBS__TASK_ITEMS;
  op = run_task(p, op);
  expect(op, DIBS_OK);
  return op;
}

void set_kind(struct party *p, const char *kind, uint32_t running, bool paused, int64_t keep_ms) {
  task_op op = task_call(DIBS__TASK_KIND, kind);
  op.set = DIBS__TASK_SET_RUNNING | DIBS__TASK_SET_PAUSED | DIBS__TASK_SET_KEEP;
  op.running = running;
  op.paused = paused;
  op.keep_ms = keep_ms;
  expect(run_task(p, op), DIBS_OK);
}

/* ---- Cost ---- */

static int by_number(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

void expect_same_cost(int64_t took[2][TASK_MEASURED]) {
  for (int k = 0; k < 2; k++) qsort(took[k], TASK_MEASURED, sizeof took[k][0], by_number);
  int64_t alone = took[0][TASK_MEASURED / 2], beside = took[1][TASK_MEASURED / 2];
  if (beside > 3 * alone + 1000000)
    fail_msg("%lld us beside others, %lld us alone", (long long)beside / 1000, (long long)alone / 1000);
}

/* SPDX-License-Identifier: MIT */
/*
 * Threads, each with its own session, claim by lane and end tasks at the same time (R108, R109).  Lanes pass from one
 * to another at any time, and the former owner does not notice until it is STALE.  Claims last for long, so only the
 * next owner of a lane can go on with what a thread left.  The threads call nothing of cmocka.
 */
#include "base/slot.h"
#include "task_calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RACERS = 4, TASKS = 240, KEYS = 12, LANES = 4, MOST = 5 };

struct race {
  dibs__str kind;
  bool changes; /* the kind is by lane and not by turns, and some claim without lanes */
  _Atomic uint64_t last_fence;
  _Atomic bool tried[TASKS]; /* an END of it was sent */
  _Atomic int done[TASKS], ended;
  /* Failures. */
  _Atomic int out_of_order, of_other_lanes, unordered, refused, gave_up;
};

struct racer {
  struct race *race;
  struct party *p;
  dibs__thread *thread;
  int nr, claims;
  uint32_t drawn;
  uint64_t fences[LANES]; /* 0: not its lane */
};

static int index_of(const task_row *row) {
  int i = 0;
  for (uint32_t k = 0; k < row->payload.len; k++) i = i * 10 + (row->payload.p[k] - '0');
  return i < TASKS ? i : 0;
}

static uint32_t draw(struct racer *r) {
  r->drawn = r->drawn * 1664525 + 1013904223;
  return r->drawn >> 8;
}

/* The rows are by number within each key. */
static void note_claims(struct race *race, const struct dibs__task_lane *lanes, uint32_t count, const task_op *op) {
  const task_row *rows = op->got;
  for (uint32_t i = 0; i < op->got_count; i++) {
    uint32_t lane = dibs__slot_lane(dibs__slot(rows[i].serial.p, rows[i].serial.len), LANES);
    bool named = false;
    for (uint32_t n = 0; n < count; n++) named = named || (lanes[n].lane == lane && lanes[n].status == DIBS_OK);
    if (!named) race->of_other_lanes++;
    for (uint32_t n = 0; n < i; n++)
      if (dibs__str_equal(rows[n].serial, rows[i].serial) && rows[n].nr >= rows[i].nr) race->unordered++;
  }
}

/* Each END was sent after those of all earlier tasks of its key, or it is not OK. */
static void note_end(struct race *race, int i) {
  for (int earlier = i - KEYS; earlier >= 0; earlier -= KEYS)
    if (!atomic_load(&race->tried[earlier])) race->out_of_order++;
  race->done[i]++;
  race->ended++;
}

/* Repeats what the rows' locks of others kept from being done; what was done is done once.  false: it was not answered.
 */
static bool send_end(struct racer *r, task_op *op) {
  for (dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), TASK_PATIENCE_MS);
       sent_task(r->p, op, false) && op->op.status == DIBS_OK; dibs__nap_ms(1)) {
    bool locked = false;
    for (uint32_t i = 0; i < op->count; i++) locked = locked || op->items[i].status == DIBS_UNAVAILABLE;
    if (!locked || !dibs__tick_before(dibs__tick_now(), by)) return true;
  }
  return false;
}

/* Some one after the other, some in one END.  false: it was not answered. */
static bool end_claims(struct racer *r, const task_row *rows, uint32_t count, uint32_t at_once) {
  for (uint32_t at = 0; at < count; at += at_once) {
    task_item items[MOST];
    task_op op = {.op = {.family = DIBS__FAM_TASK, .verb = DIBS__TASK_END}, .kind = r->race->kind};
    bool ok = true;
    op.op.bucket = dibs__bucket(op.kind);
    op.items = items;
    op.count = count - at < at_once ? count - at : at_once;
    for (uint32_t i = 0; i < op.count; i++) {
      items[i] = (task_item){.nr = rows[at + i].nr, .fence = rows[at + i].fence};
      atomic_store(&r->race->tried[index_of(&rows[at + i])], true);
    }
    if (!send_end(r, &op)) return false;
    for (uint32_t i = 0; i < op.count; i++) {
      if (items[i].status == DIBS_OK) note_end(r->race, index_of(&rows[at + i]));
      if (items[i].status != DIBS_OK && items[i].status != DIBS_STALE) r->race->refused++;
      ok = ok && items[i].status == DIBS_OK;
    }
    if (!ok) return true;
  }
  return true;
}

static bool claim(struct racer *r) {
  struct dibs__task_lane lanes[LANES];
  task_op op = {.op = {.family = DIBS__FAM_TASK, .verb = DIBS__TASK_CLAIM}, .kind = r->race->kind};
  op.op.bucket = dibs__bucket(op.kind);
  op.id = id_of(r->nr * 1000000 + r->claims++);
  op.again = true;
  op.by = str_of("racer");
  op.topic = str_of("topic");
  op.timeout_ms = TASK_LONG_MS;
  op.most = MOST;
  op.lanes = lanes;
  op.of_lanes = LANES;
  op.from = draw(r);
  for (uint32_t i = 0; i < LANES; i++)
    if (r->fences[i]) lanes[op.lane_count++] = (struct dibs__task_lane){.lane = i, .fence = {r->fences[i]}};
  bool without = r->race->changes && draw(r) % 3 == 0;
  if (without) op.lane_count = op.of_lanes = 0;
  if (op.lane_count == 0 && !without) return true;
  if (!sent_task(r->p, &op, true) || op.op.status != DIBS_OK) return false;
  for (uint32_t i = 0; i < op.lane_count; i++)
    if (lanes[i].status != DIBS_OK) r->fences[lanes[i].lane] = 0;
  if (!without) note_claims(r->race, lanes, op.lane_count, &op);
  bool vanishes = !without && draw(r) % 5 == 0, ok = true; /* nobody takes over a claim without lanes */
  if (op.got_count && !vanishes) ok = end_claims(r, op.got, op.got_count, draw(r) % 2 ? 1 : MOST);
  free(op.got);
  return ok;
}

static bool end_lanes(struct racer *r) {
  task_op op = {.op = {.family = DIBS__FAM_TASK, .verb = DIBS__TASK_KIND}, .kind = r->race->kind};
  op.op.bucket = dibs__bucket(op.kind);
  op.set = DIBS__TASK_SET_NO_LANES;
  return sent_task(r->p, &op, false) && op.op.status == DIBS_OK;
}

static void own_and_work(void *arg) {
  struct racer *r = arg;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), 2 * TASK_PATIENCE_MS);
  while (atomic_load(&r->race->ended) < TASKS) {
    if (draw(r) % 4 == 0) r->fences[draw(r) % LANES] = atomic_fetch_add(&r->race->last_fence, 1) + 1;
    bool fine = !r->race->changes || draw(r) % 30 != 0 || end_lanes(r);
    if (fine && dibs__tick_before(dibs__tick_now(), by) && claim(r)) continue;
    r->race->gave_up++;
    return;
  }
}

static void run_race(bool changes) {
  struct party *p = lane_party();
  static struct race race;
  static struct racer racers[RACERS];
  static task_new news[TASKS];
  static char payloads[TASKS][8];
  race = (struct race){.kind = name_of("k"), .changes = changes};
  for (int i = 0; i < TASKS; i++) {
    snprintf(payloads[i], sizeof payloads[i], "%d", i);
    news[i] = (task_new){.payload = str_of(payloads[i]), .tries = 1000000};
    news[i].serial = text_of_lane((uint32_t)i % LANES, LANES, (uint32_t)(i % KEYS) / LANES);
  }
  task_op op = task_call(DIBS__TASK_ADD, "k");
  op.news = news;
  op.count = TASKS;
  op.token = name_of("tasks");
  op.token_ms = TASK_LONG_MS;
  expect(run_task(p, op), DIBS_OK);
  for (int i = 0; i < RACERS; i++)
    racers[i] = (struct racer){.race = &race, .p = i ? party() : p, .nr = i, .drawn = (uint32_t)i};
  for (int i = 0; i < RACERS; i++) {
    racers[i].thread = dibs__thread_start("racer", own_and_work, &racers[i]);
    assert_non_null(racers[i].thread);
  }
  for (int i = 0; i < RACERS; i++) dibs__thread_join(racers[i].thread);
  assert_int_equal(race.gave_up, 0);
  assert_int_equal(race.of_other_lanes, 0);
  assert_int_equal(race.unordered, 0);
  assert_int_equal(race.out_of_order, 0);
  assert_int_equal(race.refused, 0);
  for (int i = 0; i < TASKS; i++) assert_int_equal(race.done[i], 1);
  assert_int_equal(count_of(p, "k").states[DIBS__TASK_DONE], TASKS);
}

static void R109_threads_finish_the_tasks_of_each_key_in_order_while_lanes_pass(void **state) {
  (void)state;
  run_race(false);
}

static void R108_threads_finish_the_tasks_of_each_key_in_order_while_the_kind_changes(void **state) {
  (void)state;
  run_race(true);
}

static const struct CMUnitTest contract_tasks_lanes_races_cases[] = {
    CASE(R109_threads_finish_the_tasks_of_each_key_in_order_while_lanes_pass),
    CASE(R108_threads_finish_the_tasks_of_each_key_in_order_while_the_kind_changes),
};
CONTRACT_TESTS(contract_tasks_lanes_races);

/* SPDX-License-Identifier: MIT */
/*
 * A change of dibs' own tasks in MongoDB has several steps, each a request.  A client is killed or stopped at each of
 * them, then another one repeats the operation, or does something else with the same tasks; what was stopped arrives
 * after that.  In every case an operation is done once, or not at all, to all of its tasks.
 *
 *   test_task_steps URI
 */
#include "steps_bed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 40, KEY = 24, MOST = 8, LONG_MS = 600000 };

typedef struct dibs__task_op task_op;

static struct {
  struct bed bed;
  uint32_t cases;
  char kind[KEY], token[KEY], before[KEY], another[KEY]; /* tokens of different ADDs */
  dibs__id first, second;                                /* of claims */
  uint64_t nrs[MOST];
  struct dibs__task_item item; /* of the claim that is ended */
} s;

static dibs__str str(const char *text) {
  return dibs__str_of(text, (uint32_t)strlen(text));
}

static dibs__status run(const struct bed_client *c, enum dibs__task_verb verb, task_op *op) {
  struct dibs__op *ops[] = {&op->op};
  struct dibs__result result;
  op->op.family = DIBS__FAM_TASK;
  op->op.verb = (uint16_t)verb;
  op->op.by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  op->op.status = DIBS_UNKNOWN;
  if (verb != DIBS__TASK_LIST) op->kind = str(s.kind);
  (void)dibs__mongodb_driver.run(c->session, ops, 1, op->op.by, &result);
  return op->op.status;
}

/* ---- What a client does ---- */

/* Two tasks, of which the second has a unique text. */
static dibs__status add(const struct bed_client *c, const char *token, uint64_t nrs[2]) {
  struct dibs__task_new news[2] = {{.payload = str("one")}, {.payload = str("two"), .unique = str("only")}};
  task_op op = {.news = news, .count = 2, .token = str(token), .token_ms = LONG_MS};
  dibs__status status = run(c, DIBS__TASK_ADD, &op);
  for (int i = 0; i < 2 && nrs; i++) nrs[i] = status == DIBS_OK ? news[i].nr : 0;
  return status;
}

/* How many it claimed, and which. */
static uint32_t claim(const struct bed_client *c, dibs__id id, uint32_t most, uint64_t nrs[MOST],
                      uint64_t fences[MOST]) {
  task_op op = {.id = id, .again = true, .by = str("a client"), .timeout_ms = LONG_MS, .most = most};
  uint32_t count = run(c, DIBS__TASK_CLAIM, &op) == DIBS_OK ? op.got_count : 0;
  const struct dibs__task_row *rows = op.got;
  for (uint32_t i = 0; i < count; i++) {
    nrs[i] = rows[i].nr;
    fences[i] = rows[i].fence.v;
  }
  if (op.op.status == DIBS_OK) free(op.got);
  return count;
}

static dibs__status end(const struct bed_client *c) {
  struct dibs__task_item item = s.item;
  task_op op = {.items = &item, .count = 1};
  dibs__status status = run(c, DIBS__TASK_END, &op);
  return status == DIBS_OK ? item.status : status;
}

static dibs__status cancel(const struct bed_client *c) {
  task_op op = {.change = DIBS__TASK_CANCEL, .most = 1};
  op.filter.nr = s.nrs[0];
  return run(c, DIBS__TASK_CHANGE, &op);
}

/* All tasks of the kind, by number. */
static uint32_t list(struct dibs__task_row rows[MOST]) {
  task_op op = {.most = MOST};
  op.filter.kind = str(s.kind);
  assert_int_equal(run(&s.bed.other, DIBS__TASK_LIST, &op), DIBS_OK);
  assert_true(op.got_count < MOST);
  if (op.got_count) memcpy(rows, op.got, op.got_count * sizeof *rows);
  free(op.got); /* the texts are not looked at */
  return op.got_count;
}

/* ---- A case ---- */

enum scene { ADDS, CLAIMS, ENDS, CANCELS, SCENES };
enum next { REPEATS, OTHERS, NEXTS };
static const char *const scene_names[] = {"adds", "claims", "ends", "cancels"};
static const char *const next_names[] = {"repeats it", "does something else"};

static void add_serials(void) {
  struct dibs__task_new news[2] = {{.serial = str("s")}, {.serial = str("s")}};
  task_op op = {.news = news, .count = 2, .token = str(s.before), .token_ms = LONG_MS};
  assert_int_equal(run(&s.bed.other, DIBS__TASK_ADD, &op), DIBS_OK);
  for (int i = 0; i < 2; i++) s.nrs[i] = news[i].nr;
}

/* For ENDS and CANCELS two tasks with one serial text, for ENDS the first is claimed. */
static void begin_case(enum scene scene) {
  uint64_t fences[MOST], nrs[MOST];
  snprintf(s.kind, KEY, "kind%u", s.cases++);
  snprintf(s.token, KEY, "token%u", s.cases);
  snprintf(s.before, KEY, "before%u", s.cases);
  snprintf(s.another, KEY, "another%u", s.cases);
  dibs__random(&s.first, sizeof s.first);
  dibs__random(&s.second, sizeof s.second);
  if (scene == CLAIMS) {
    for (int i = 0; i < 2; i++) {
      struct dibs__task_new news[2] = {{.priority = 1}, {.priority = 2}};
      task_op op = {.news = news, .count = 2};
      assert_int_equal(run(&s.bed.other, DIBS__TASK_ADD, &op), DIBS_OK);
    }
  }
  if (scene >= ENDS) add_serials();
  if (scene != ENDS) return;
  assert_int_equal(claim(&s.bed.other, s.first, 1, nrs, fences), 1);
  assert_int_equal(nrs[0], s.nrs[0]);
  s.item = (struct dibs__task_item){.nr = nrs[0], .fence = {fences[0]}, .verdict = DIBS__TASK_END_DONE};
}

struct acting {
  struct bed_client client;
  enum scene scene;
  dibs__status status;
  uint32_t count;
  uint64_t nrs[MOST], fences[MOST];
};

static void do_scene(struct acting *a, const struct bed_client *c) {
  a->status = DIBS_OK;
  if (a->scene == ADDS) a->status = add(c, s.token, a->nrs);
  if (a->scene == CLAIMS) a->count = claim(c, s.first, 2, a->nrs, a->fences);
  if (a->scene == ENDS) a->status = end(c);
  if (a->scene == CANCELS) a->status = cancel(c);
}

static void act(void *user) {
  struct acting *a = user;
  do_scene(a, &a->client);
}

/* What another client does: the same, or it adds the unique text, or claims. */
static void continue_with(struct acting *second, enum next next) {
  if (next == REPEATS) {
    do_scene(second, &s.bed.other);
    assert_int_equal(second->status, DIBS_OK);
    if (second->scene == CLAIMS) assert_int_equal(second->count, 2);
  } else if (second->scene == ADDS) {
    assert_int_equal(add(&s.bed.other, s.another, second->nrs), DIBS_OK);
  } else {
    second->count = claim(&s.bed.other, s.second, 2, second->nrs, second->fences);
  }
}

/* ---- The tasks then ---- */

static void expect_added(const struct acting *first, const struct acting *second, enum next next) {
  struct dibs__task_row rows[MOST];
  uint64_t again[2];
  uint32_t count = list(rows);
  if (next == OTHERS && count != 2 && count != 3) fail_msg("%u tasks", count); /* one unique text */
  if (next == REPEATS) assert_int_equal(count, 2);
  if (first->status == DIBS_OK && next == OTHERS) assert_int_equal(count, 3);
  if (first->status == DIBS_OK) assert_int_equal(first->nrs[1], second->nrs[1]);
  assert_int_equal(add(&s.bed.other, s.token, again), DIBS_OK); /* the token has it, or it is done now */
  assert_int_equal(again[1], second->nrs[1]);
  if (next == REPEATS) assert_int_equal(again[0], second->nrs[0]);
  assert_int_equal(list(rows), next == REPEATS ? 2 : 3);
  for (int i = 0; i < 2; i++) assert_int_equal(rows[i].state, DIBS__TASK_READY);
}

static uint64_t fence_in(const struct acting *a, uint64_t nr) {
  for (uint32_t i = 0; i < a->count; i++)
    if (a->nrs[i] == nr) return a->fences[i];
  return 0;
}

/* A task that was given to both has the fence of one of them, unless it is the same claim. */
static void expect_claimed(const struct acting *first, const struct acting *second, enum next next) {
  struct dibs__task_row rows[MOST];
  uint32_t count = list(rows), claimed = 0;
  assert_int_equal(count, 4);
  for (uint32_t i = 0; i < count; i++) {
    uint64_t a = fence_in(first, rows[i].nr), b = fence_in(second, rows[i].nr);
    if (a && b && (next == OTHERS || a != b)) fail_msg("a task was claimed twice");
    if ((a || b) && rows[i].fence.v != (a ? a : b)) fail_msg("a claim has another fence than its task");
    claimed += rows[i].state == DIBS__TASK_CLAIMED;
  }
  if (next == REPEATS) assert_int_equal(claimed, 2);
  if (next == OTHERS) assert_int_equal(second->count, 2);
  if (claimed != 2 && claimed != 4) fail_msg("%u tasks are claimed", claimed);
}

/* The second one may go when the first one has finished, and not before. */
static void expect_serial(const struct acting *first, enum next next) {
  struct dibs__task_row rows[MOST];
  uint64_t nrs[MOST], fences[MOST];
  (void)claim(&s.bed.other, s.second, 1, nrs, fences); /* whatever is still to be done, is done */
  assert_int_equal(list(rows), 2);
  bool finished = rows[0].state == DIBS__TASK_DONE || rows[0].state == DIBS__TASK_CANCELLED;
  if (first->status == DIBS_OK || next == REPEATS) assert_true(finished);
  assert_int_equal(rows[1].state, finished ? DIBS__TASK_CLAIMED : DIBS__TASK_BLOCKED);
}

static void expect_state(const struct acting *first, const struct acting *second, enum next next) {
  if (first->scene == ADDS) expect_added(first, second, next);
  if (first->scene == CLAIMS) expect_claimed(first, second, next);
  if (first->scene >= ENDS) expect_serial(first, next);
}

/* false: the client ended before that step. */
static bool play(enum scene scene, enum wire_end how, enum next next, int step) {
  struct acting first = {.scene = scene}, second = {.scene = scene};
  struct bed_acting acting = {.act = act, .user = &first};
  begin_case(scene);
  wire_arm(s.bed.wire, how, 0);
  assert_true(bed_connect(&s.bed, &first.client, wire_port(s.bed.wire)));
  wire_arm(s.bed.wire, how, step);
  assert_true(bed_begin(&s.bed, &acting, how));
  bool ended = wire_ended(s.bed.wire);
  print_message("%s, step %d (%d), another client %s\n", scene_names[scene], step, (int)how, next_names[next]);
  if (!ended) assert_int_equal(first.status, DIBS_OK);
  continue_with(&second, next);
  bed_finish(&s.bed, &acting);
  expect_state(&first, &second, next);
  bed_disconnect(&first.client);
  return ended;
}

static void end_at_each_step(enum wire_end how) {
  for (enum scene scene = 0; scene < SCENES; scene++)
    for (enum next next = 0; next < NEXTS; next++) {
      int step = 1;
      while (step < STEPS && play(scene, how, next, step)) step++;
      assert_in_range(step, 4, STEPS - 1);
    }
}

static void a_client_is_killed_after_each_step(void **state) {
  (void)state;
  end_at_each_step(WIRE_KILL);
}
static void a_client_is_stopped_at_each_step_and_continues(void **state) {
  (void)state;
  end_at_each_step(WIRE_STOP);
}

/* ---- */

static int open_all(void **state) {
  (void)state;
  return bed_open(&s.bed) ? 0 : -1;
}

static int close_all(void **state) {
  (void)state;
  bed_close(&s.bed);
  return 0;
}

int main(int argc, char **argv) {
  static const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_client_is_killed_after_each_step),
      cmocka_unit_test(a_client_is_stopped_at_each_step_and_continues),
  };
  if (argc != 2) return 2;
  s.bed.server = argv[1];
  return cmocka_run_group_tests_name("mongodb task steps", tests, open_all, close_all);
}

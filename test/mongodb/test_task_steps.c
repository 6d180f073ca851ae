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
  op->op.family = DIBS__FAM_TASK;
  op->op.verb = (uint16_t)verb;
  if (verb != DIBS__TASK_LIST) op->kind = str(s.kind);
  return bed_run(c, &op->op, NULL);
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
  assert_int_equal(run(&bed.other, DIBS__TASK_LIST, &op), DIBS_OK);
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
  assert_int_equal(run(&bed.other, DIBS__TASK_ADD, &op), DIBS_OK);
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
      assert_int_equal(run(&bed.other, DIBS__TASK_ADD, &op), DIBS_OK);
    }
  }
  if (scene >= ENDS) add_serials();
  if (scene != ENDS) return;
  assert_int_equal(claim(&bed.other, s.first, 1, nrs, fences), 1);
  assert_int_equal(nrs[0], s.nrs[0]);
  s.item = (struct dibs__task_item){.nr = nrs[0], .fence = {fences[0]}, .verdict = DIBS__TASK_END_DONE};
}

/* What a client was answered. */
struct answer {
  dibs__status status;
  uint32_t count;
  uint64_t nrs[MOST], fences[MOST];
};

struct play {
  enum scene scene;
  enum next next;
  struct answer first, second;
};

static void begin(void *user) {
  struct play *p = user;
  p->first = p->second = (struct answer){.status = DIBS_OK};
  begin_case(p->scene);
}

static void do_scene(enum scene scene, const struct bed_client *c, struct answer *a) {
  if (scene == ADDS) a->status = add(c, s.token, a->nrs);
  if (scene == CLAIMS) a->count = claim(c, s.first, 2, a->nrs, a->fences);
  if (scene == ENDS) a->status = end(c);
  if (scene == CANCELS) a->status = cancel(c);
}

static void act(const struct bed_client *c, void *user) {
  struct play *p = user;
  do_scene(p->scene, c, &p->first);
}

/* What another client does: the same, or it adds the unique text, or claims. */
static void continue_with(void *user) {
  struct play *p = user;
  struct answer *second = &p->second;
  print_message("%s, step %d (%d), another client %s\n", scene_names[p->scene], bed.step, (int)bed.how,
                next_names[p->next]);
  if (!bed.ended) assert_int_equal(p->first.status, DIBS_OK);
  if (p->next == REPEATS) {
    do_scene(p->scene, &bed.other, second);
    assert_int_equal(second->status, DIBS_OK);
    if (p->scene == CLAIMS) assert_int_equal(second->count, 2);
  } else if (p->scene == ADDS) {
    assert_int_equal(add(&bed.other, s.another, second->nrs), DIBS_OK);
  } else {
    second->count = claim(&bed.other, s.second, 2, second->nrs, second->fences);
  }
}

/* ---- The tasks then ---- */

static void expect_added(const struct answer *first, const struct answer *second, enum next next) {
  struct dibs__task_row rows[MOST];
  uint64_t again[2];
  uint32_t count = list(rows);
  if (next == OTHERS && count != 2 && count != 3) fail_msg("%u tasks", count); /* one unique text */
  if (next == REPEATS) assert_int_equal(count, 2);
  if (first->status == DIBS_OK && next == OTHERS) assert_int_equal(count, 3);
  if (first->status == DIBS_OK) assert_int_equal(first->nrs[1], second->nrs[1]);
  assert_int_equal(add(&bed.other, s.token, again), DIBS_OK); /* the token has it, or it is done now */
  assert_int_equal(again[1], second->nrs[1]);
  if (next == REPEATS) assert_int_equal(again[0], second->nrs[0]);
  assert_int_equal(list(rows), next == REPEATS ? 2 : 3);
  for (int i = 0; i < 2; i++) assert_int_equal(rows[i].state, DIBS__TASK_READY);
}

static uint64_t fence_in(const struct answer *a, uint64_t nr) {
  for (uint32_t i = 0; i < a->count; i++)
    if (a->nrs[i] == nr) return a->fences[i];
  return 0;
}

/* A task that was given to both has the fence of one of them, unless it is the same claim. */
static void expect_claimed(const struct answer *first, const struct answer *second, enum next next) {
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
static void expect_serial(const struct answer *first, enum next next) {
  struct dibs__task_row rows[MOST];
  uint64_t nrs[MOST], fences[MOST];
  (void)claim(&bed.other, s.second, 1, nrs, fences); /* whatever is still to be done, is done */
  assert_int_equal(list(rows), 2);
  bool finished = rows[0].state == DIBS__TASK_DONE || rows[0].state == DIBS__TASK_CANCELLED;
  if (first->status == DIBS_OK || next == REPEATS) assert_true(finished);
  assert_int_equal(rows[1].state, finished ? DIBS__TASK_CLAIMED : DIBS__TASK_BLOCKED);
}

static void check(void *user) {
  const struct play *p = user;
  if (p->scene == ADDS) expect_added(&p->first, &p->second, p->next);
  if (p->scene == CLAIMS) expect_claimed(&p->first, &p->second, p->next);
  if (p->scene >= ENDS) expect_serial(&p->first, p->next);
}

static void end_at_each_step(enum wire_end how) {
  for (enum scene scene = 0; scene < SCENES; scene++)
    for (enum next next = 0; next < NEXTS; next++) {
      struct play p = {.scene = scene, .next = next};
      bed_end_at_each(how, 4, STEPS, &(struct bed_scene){begin, act, continue_with, check, &p});
    }
}

int main(int argc, char **argv) {
  return bed_main(argc, argv, "mongodb task steps", end_at_each_step);
}

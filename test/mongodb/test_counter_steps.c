/* SPDX-License-Identifier: MIT */
/*
 * A batch of counters in MongoDB is applied in several steps, each a request.  A client is killed or stopped at each of
 * them, then another one repeats the batch, or adds the next one of its source, or adds its own; what was stopped
 * arrives after that.  In every case a batch is applied once, or not at all, to all of its counters.
 *
 *   test_counter_steps URI
 */
#include "drivers/mongodb/counter_impl.h"
#include "steps_bed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 30, KEY = 24, ITEMS = 3, DELTA = 10, NEXT_DELTA = 1000, OTHER_DELTA = 100000 };

static struct {
  uint32_t cases;
  char keys[ITEMS][KEY]; /* a counter that exists, a new one, and a full one */
  dibs__id source, other, guard;
} s;

struct outcome {
  dibs__status status, items[ITEMS];
};

static struct outcome add(const struct bed_client *c, dibs__id source, uint64_t sequence, int64_t delta,
                          uint64_t fence) {
  struct dibs__counter_item items[ITEMS] = {{.delta = delta}, {.delta = delta}, {.delta = delta}};
  struct dibs__counter_op op = {.op = {.family = DIBS__FAM_COUNTER, .verb = DIBS__COUNTER_ADD},
                                .items = items,
                                .count = ITEMS,
                                .source = source,
                                .sequence = sequence,
                                .guard = s.guard,
                                .fence = {fence}};
  struct outcome o;
  for (int i = 0; i < ITEMS; i++) items[i].key = dibs__str_of(s.keys[i], strlen(s.keys[i]));
  o.status = bed_run(c, &op.op, NULL);
  for (int i = 0; i < ITEMS; i++) o.items[i] = items[i].status;
  return o;
}

static int64_t number(int nth) {
  struct dibs__counter_item item = {.key = dibs__str_of(s.keys[nth], strlen(s.keys[nth]))};
  struct dibs__counter_op op = {
      .op = {.family = DIBS__FAM_COUNTER, .verb = DIBS__COUNTER_READ, .flags = DIBS__OP_READS},
      .items = &item,
      .count = 1};
  assert_int_equal(bed_run(&bed.other, &op.op, NULL), DIBS_OK);
  return item.status == DIBS_NOT_FOUND ? 0 : item.number;
}

/* ---- A case ---- */

enum next { REPEATS, CONTINUES, OTHERS, NEXTS };
static const char *const next_names[] = {"repeats it", "adds the next one of its source", "adds another one"};

static dibs__id draw(void) {
  dibs__id id;
  dibs__random(&id, sizeof id);
  return id;
}

struct play {
  enum next next;
  uint64_t fence;
  dibs__status first; /* what the first client was answered */
  int64_t added;      /* by the other client */
};

static void begin(void *user) {
  static const char *const kinds[ITEMS] = {"a", "b", "full"};
  for (int i = 0; i < ITEMS; i++) snprintf(s.keys[i], KEY, "%s%u", kinds[i], s.cases);
  s.cases++;
  s.source = draw();
  s.other = draw();
  s.guard = draw();
  struct dibs__counter_item items[] = {{.key = dibs__str_of(s.keys[0], strlen(s.keys[0])), .delta = 1},
                                       {.key = dibs__str_of(s.keys[2], strlen(s.keys[2])), .delta = INT64_MAX}};
  struct dibs__counter_op op = {.op = {.family = DIBS__FAM_COUNTER, .verb = DIBS__COUNTER_ADD},
                                .items = items,
                                .count = 2,
                                .source = draw(),
                                .sequence = 1};
  assert_int_equal(bed_run(&bed.other, &op.op, NULL), DIBS_OK);
  (void)user;
}

static void expect_items(const struct outcome *o) {
  assert_true(o->status == DIBS_OK || o->status == DIBS_REPLAY);
  assert_int_equal(o->items[0], DIBS_OK);
  assert_int_equal(o->items[1], DIBS_OK);
  assert_int_equal(o->items[2], DIBS_FULL);
}

static void act(const struct bed_client *c, void *user) {
  struct play *p = user;
  p->first = add(c, s.source, 1, DELTA, p->fence).status;
}

/* What another client does. */
static void continue_with(void *user) {
  struct play *p = user;
  struct outcome o;
  p->added = 0;
  if (!bed.ended) assert_int_equal(p->first, DIBS_OK);
  if (p->next == REPEATS) {
    o = add(&bed.other, s.source, 1, DELTA, p->fence);
    expect_items(&o);
  } else if (p->next == CONTINUES) {
    o = add(&bed.other, s.source, 2, NEXT_DELTA, p->fence);
    p->added = NEXT_DELTA;
    expect_items(&o);
  } else {
    for (uint64_t sequence = 1; sequence <= 2; sequence++) {
      o = add(&bed.other, s.other, sequence, OTHER_DELTA, p->fence ? p->fence + 1 : 0);
      p->added += OTHER_DELTA;
      expect_items(&o);
      assert_int_equal(o.status, DIBS_OK);
    }
  }
}

static void check(void *user) {
  const struct play *p = user;
  int64_t a = number(0) - 1 - p->added, b = number(1) - p->added;
  bool all = a == DELTA && b == DELTA, none = a == 0 && b == 0 && p->first != DIBS_OK && p->next != REPEATS;
  if ((!all && !none) || number(2) != INT64_MAX)
    fail_msg("ended at step %d (%d), fence %d; then another client %s: %lld and %lld were added", bed.step,
             (int)bed.how, (int)p->fence, next_names[p->next], (long long)a, (long long)b);
  struct outcome again = add(&bed.other, s.source, 1, DELTA, p->fence);
  if (all || p->next == CONTINUES) {
    assert_int_equal(again.status, DIBS_REPLAY);
  } else if (p->fence) {
    assert_int_equal(again.status, DIBS_STALE);
  } else {
    expect_items(&again);
    all = true;
  }
  a = number(0) - 1 - p->added;
  b = number(1) - p->added;
  if (a != (all ? DELTA : 0) || b != (all ? DELTA : 0))
    fail_msg("ended at step %d (%d), fence %d; another client %s: the repeat made it %lld and %lld", bed.step,
             (int)bed.how, (int)p->fence, next_names[p->next], (long long)a, (long long)b);
}

static void end_at_each_step(enum wire_end how) {
  for (uint64_t fence = 0; fence <= 7; fence += 7)
    for (enum next next = 0; next < NEXTS; next++) {
      struct play p = {.next = next, .fence = fence};
      bed_end_at_each(how, 4, STEPS, &(struct bed_scene){begin, act, continue_with, check, &p});
    }
}

int main(int argc, char **argv) {
  dibs__mongo_late_ms = 0; /* everybody applies what was begun */
  return bed_main(argc, argv, "mongodb counter steps", end_at_each_step);
}

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
  struct bed bed;
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
  struct dibs__op *ops[] = {&op.op};
  struct dibs__result result;
  struct outcome o;
  for (int i = 0; i < ITEMS; i++) items[i].key = dibs__str_of(s.keys[i], strlen(s.keys[i]));
  op.op.by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  op.op.status = DIBS_UNKNOWN;
  (void)dibs__mongodb_driver.run(c->session, ops, 1, op.op.by, &result);
  o.status = op.op.status;
  for (int i = 0; i < ITEMS; i++) o.items[i] = items[i].status;
  return o;
}

static int64_t number(int nth) {
  struct dibs__counter_item item = {.key = dibs__str_of(s.keys[nth], strlen(s.keys[nth]))};
  struct dibs__counter_op op = {
      .op = {.family = DIBS__FAM_COUNTER, .verb = DIBS__COUNTER_READ, .flags = DIBS__OP_READS},
      .items = &item,
      .count = 1};
  struct dibs__op *ops[] = {&op.op};
  struct dibs__result result;
  op.op.by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  (void)dibs__mongodb_driver.run(s.bed.other.session, ops, 1, op.op.by, &result);
  assert_int_equal(op.op.status, DIBS_OK);
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

static void begin_case(void) {
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
  struct dibs__op *ops[] = {&op.op};
  struct dibs__result result;
  op.op.by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  (void)dibs__mongodb_driver.run(s.bed.other.session, ops, 1, op.op.by, &result);
  assert_int_equal(op.op.status, DIBS_OK);
}

static void expect_items(const struct outcome *o) {
  assert_true(o->status == DIBS_OK || o->status == DIBS_REPLAY);
  assert_int_equal(o->items[0], DIBS_OK);
  assert_int_equal(o->items[1], DIBS_OK);
  assert_int_equal(o->items[2], DIBS_FULL);
}

/* What another client does; how much it has added. */
static int64_t continue_with(enum next next, uint64_t fence) {
  struct outcome o;
  int64_t added = 0;
  if (next == REPEATS) {
    o = add(&s.bed.other, s.source, 1, DELTA, fence);
    expect_items(&o);
  } else if (next == CONTINUES) {
    o = add(&s.bed.other, s.source, 2, NEXT_DELTA, fence);
    added = NEXT_DELTA;
    expect_items(&o);
  } else {
    for (uint64_t sequence = 1; sequence <= 2; sequence++) {
      o = add(&s.bed.other, s.other, sequence, OTHER_DELTA, fence ? fence + 1 : 0);
      added += OTHER_DELTA;
      expect_items(&o);
      assert_int_equal(o.status, DIBS_OK);
    }
  }
  return added;
}

/* The server may delete the document of a source at its `until`, so one with a batch has none. */
static void expect_kept(void) {
  struct dibs__mongo_session *session = (struct dibs__mongo_session *)s.bed.other.session;
  char source[DIBS__MONGO_SOURCE];
  bson_t filter = BSON_INITIALIZER;
  const bson_t *found;
  dibs__mongo_source_text(&s.source, source);
  BSON_APPEND_UTF8(&filter, "_id", source);
  mongoc_cursor_t *cursor =
      mongoc_collection_find_with_opts(session->link->collections[DIBS__MONGO_SOURCE_ROW], &filter, NULL, NULL);
  if (mongoc_cursor_next(cursor, &found)) assert_true(bson_has_field(found, "batch") != bson_has_field(found, "until"));
  mongoc_cursor_destroy(cursor);
  bson_destroy(&filter);
}

struct acting {
  struct bed_client client;
  uint64_t fence;
  struct outcome outcome;
};

static void act(void *user) {
  struct acting *a = user;
  a->outcome = add(&a->client, s.source, 1, DELTA, a->fence);
}

/* false: the client ended before that step. */
static bool play(enum wire_end how, enum next next, uint64_t fence, int step) {
  struct acting c = {.fence = fence};
  struct bed_acting acting = {.act = act, .user = &c};
  begin_case();
  wire_arm(s.bed.wire, how, 0);
  assert_true(bed_connect(&s.bed, &c.client, wire_port(s.bed.wire)));
  wire_arm(s.bed.wire, how, step);
  assert_true(bed_begin(&s.bed, &acting, how));
  bool ended = wire_ended(s.bed.wire);
  if (!ended) assert_int_equal(c.outcome.status, DIBS_OK);
  expect_kept();
  int64_t added = continue_with(next, fence);
  bed_finish(&s.bed, &acting);
  dibs__status first = c.outcome.status;
  int64_t a = number(0) - 1 - added, b = number(1) - added;
  bool all = a == DELTA && b == DELTA, none = a == 0 && b == 0 && first != DIBS_OK && next != REPEATS;
  if ((!all && !none) || number(2) != INT64_MAX)
    fail_msg("ended at step %d (%d), fence %d; then another client %s: %lld and %lld were added", step, (int)how,
             (int)fence, next_names[next], (long long)a, (long long)b);
  struct outcome again = add(&s.bed.other, s.source, 1, DELTA, fence);
  if (all || next == CONTINUES) {
    assert_int_equal(again.status, DIBS_REPLAY);
  } else if (fence) {
    assert_int_equal(again.status, DIBS_STALE);
  } else {
    expect_items(&again);
    all = true;
  }
  if (number(0) - 1 - added != (all ? DELTA : 0) || number(1) - added != (all ? DELTA : 0))
    fail_msg("ended at step %d (%d), fence %d; another client %s: the repeat made it %lld and %lld", step, (int)how,
             (int)fence, next_names[next], (long long)number(0) - 1 - added, (long long)number(1) - added);
  bed_disconnect(&c.client);
  return ended;
}

static void end_at_each_step(enum wire_end how) {
  for (uint64_t fence = 0; fence <= 7; fence += 7)
    for (enum next next = 0; next < NEXTS; next++) {
      int step = 1;
      while (step < STEPS && play(how, next, fence, step)) step++;
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
  dibs__mongo_late_ms = 0; /* everybody applies what was begun */
  return cmocka_run_group_tests_name("mongodb counter steps", tests, open_all, close_all);
}

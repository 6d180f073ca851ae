/* SPDX-License-Identifier: MIT */
/*
 * Claiming tasks by lane.
 *
 * One transaction: it locks the rows of its lanes, which are those of this owner alone, so claims for other lanes do
 * not wait; it reads free tasks in windows of slots, from `from` on (task_window.c), locks those that it takes, and
 * writes.
 *
 * A window has each key once, and if it has no more of the tasks of a key than that, the others come at the next claim,
 * after the other keys.  But if blocked tasks came back, it looks at their slot once more.
 *
 * All else is done before, in transactions of their own: a lane that has another fence than its row (task_lane_kind.c),
 * and promotion.  Then the claim begins again.
 */
#include "base/slot.h"
#include "sql/task_window.h"
#include "store/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__sql_value value;
typedef struct dibs__task_op task_op;
typedef struct dibs__task_row row_t;
typedef struct dibs__claiming claiming;
typedef struct dibs__laning laning;
typedef struct dibs__window window;

enum {
  AT_ONCE = 64,      /* windows in one packet, at most */
  LOOKED_MAX = 4000, /* rows that a claim looks at */
  ROUNDS = 16        /* how often a claim begins again */
};

/* ---- Lanes ---- */

static const struct dibs__task_lane *lane_of(const task_op *op, int64_t slot) {
  uint32_t wanted = dibs__slot_lane((uint32_t)slot, op->of_lanes), first = 0, end = op->lane_count;
  while (first < end) {
    uint32_t middle = first + (end - first) / 2;
    if (op->lanes[middle].lane < wanted)
      first = middle + 1;
    else
      end = middle;
  }
  return first < op->lane_count && op->lanes[first].lane == wanted ? &op->lanes[first] : NULL;
}

bool dibs__lanes_has(const task_op *op, int64_t slot, uint64_t fence) {
  const struct dibs__task_lane *lane = lane_of(op, slot);
  return lane && lane->status == DIBS_OK && lane->fence.v == fence;
}

sql_rc dibs__claim_put_lanes(claiming *c) {
  const task_op *op = c->op;
  value kind = dibs__task_text(op->kind), *rows = malloc(op->lane_count * sizeof *rows);
  if (!rows) return dibs__task_no_memory(c->g);
  for (uint32_t i = 0; i < op->lane_count; i++) rows[i] = dibs__sql_number(op->lanes[i].lane);
  sql_rc end = dibs__task_put_rows(
      c->g,
      c->g->wire->engine->joins
          ? "SELECT lane, lanes, fence FROM (WITH r(r_lane) AS ($rows) SELECT r_lane FROM r) r STRAIGHT_JOIN "
            "dibs_lane" DIBS__TASK_BY_KEY " ON kind = $1 AND lane = r_lane WHERE true ORDER BY lane@{lock}"
          : "SELECT lane, lanes, fence FROM dibs_lane WHERE kind = $1 AND lane@{any}WITH r(r_lane) AS ($rows) SELECT"
            " r_lane FROM r@{none} ORDER BY lane@{lock}",
      &kind, 1, rows, 1, op->lane_count);
  free(rows);
  return end;
}

/* false: some lane has a larger fence than its row, or none, or they are of another P. */
static bool read_lane_rows(const claiming *c, size_t nth) {
  const struct dibs__sql_wire *w = c->g->wire;
  const task_op *op = c->op;
  size_t row = 0, rows = w->engine->rows(w, nth);
  for (uint32_t i = 0; i < op->lane_count; i++) {
    struct dibs__task_lane *lane = &op->lanes[i];
    if (row >= rows || dibs__sql_cell_number(w, nth, row, 0) != lane->lane) {
      if (lane->status != DIBS_STALE) return false;
      continue;
    }
    uint64_t fence = (uint64_t)dibs__sql_cell_number(w, nth, row, 2);
    bool same = dibs__sql_cell_number(w, nth, row++, 1) == op->of_lanes;
    if (!same && lane->status == DIBS_STALE) continue;
    if (!same || fence < lane->fence.v) return false;
    lane->status = fence > lane->fence.v ? DIBS_STALE : DIBS_OK;
  }
  return true;
}
/* ---- Writing ---- */

static sql_rc put_taken(laning *l) {
  const task_op *op = l->c->op;
  const row_t *taken = op->got;
  uint32_t count = op->got_count - l->written;
  if (count == 0) return DIBS__SQL_OK;
  taken += l->written;
  value values[] = {dibs__sql_number((int64_t)dibs__id_digest(op->id)), dibs__sql_number(l->now + op->timeout_ms),
                    dibs__sql_number(l->now), dibs__task_text(op->by)};
  value *rows = malloc(2 * count * sizeof *rows);
  if (!rows) return dibs__task_no_memory(l->c->g);
  for (uint32_t i = 0; i < count; i++) {
    const struct dibs__task_lane *lane = lane_of(op, dibs__slot(taken[i].serial.p, taken[i].serial.len));
    rows[2 * i] = dibs__sql_number((int64_t)taken[i].nr);
    rows[2 * i + 1] = dibs__sql_number(lane ? (int64_t)lane->fence.v : 0);
  }
  sql_rc end = dibs__task_put_update(l->c->g, "r_nr, r_lane",
                                     DIBS__CLAIM_SET("$3") ", claim = $1, due = $2, owner = $4, lane = r_lane", "",
                                     values, 4, rows, 2, count);
  free(rows);
  l->written = op->got_count;
  return end;
}

static sql_rc put_waits(laning *l) {
  value *rows = malloc((l->wait_count + 1) * sizeof *rows);
  if (!rows) return dibs__task_no_memory(l->c->g);
  for (size_t i = 0; i < l->wait_count; i++) rows[i] = dibs__sql_number((int64_t)l->waits[i]);
  sql_rc end = l->wait_count ? dibs__task_put_update(l->c->g, "r_nr", "state = 3, slot = -1 - slot", "", NULL, 0, rows,
                                                     1, l->wait_count)
                             : DIBS__SQL_OK;
  free(rows);
  return end;
}

static int by_number(const void *x, const void *y) {
  const row_t *a = x, *b = y;
  return (a->nr > b->nr) - (a->nr < b->nr);
}

/* Puts what was decided so far: the next window sees it. */
static sql_rc put_all(laning *l) {
  l->wrote = l->wrote || l->c->op->got_count > l->written || l->flip_count || l->wait_count;
  sql_rc end = put_taken(l);
  if (end == DIBS__SQL_OK) end = dibs__task_put_flips(l->c->g, l->flips, l->flip_count);
  if (end == DIBS__SQL_OK) end = put_waits(l);
  l->flip_count = l->wait_count = 0;
  return end;
}

static sql_rc write_all(laning *l) {
  claiming *c = l->c;
  task_op *op = c->op;
  c->open = false;
  sql_rc end = put_all(l);
  if (end != DIBS__SQL_OK) return end;
  if (!l->wrote) {
    dibs__sql_rollback(c->g->wire);
    return dibs__sql_dead(c->g->wire) ? DIBS__SQL_FAILED : DIBS__SQL_OK;
  }
  end = dibs__task_commit(c->g);
  if (end != DIBS__SQL_OK) return end;
  dibs__claim_set_claimed(op, l->now);
  if (op->got_count > 1) qsort(op->got, op->got_count, sizeof(row_t), by_number);
  return end;
}

/* ---- Windows ---- */

/* One window, of the range that is next. */
static sql_rc take_range(laning *l, window *x, bool *goes_on) {
  bool full = x->count == l->asked;
  l->seen += x->count;
  l->again = 0;
  sql_rc end = dibs__window_take(l, x);
  if (end != DIBS__SQL_OK) return end;
  *goes_on = l->again == 0 && !full;
  struct dibs__slot_range *rest = &l->ranges[l->next + l->again];
  rest->first = full ? l->last + 1 : rest->last + 1;
  if (rest->first <= rest->last) return end;
  l->range_count--;
  memmove(rest, rest + 1, (l->range_count - l->next - l->again) * sizeof *rest);
  return end;
}

/* Looks at windows of the next ranges. */
static sql_rc take_ranges(laning *l, window *windows, size_t count) {
  sql_rc end = DIBS__SQL_OK;
  bool goes_on = true;
  for (size_t i = 0; i < count && end == DIBS__SQL_OK && goes_on && l->taken < l->c->most; i++) {
    l->cut = l->cut || windows[i].arrived_count >= DIBS__WINDOW_ARRIVED_MAX;
    if (l->cut) return end;
    end = take_range(l, &windows[i], &goes_on);
  }
  return end;
}

static sql_rc read_ranges(laning *l, size_t nth, size_t count) {
  window windows[AT_ONCE] = {{.rows = NULL}};
  bool memory = true;
  for (size_t i = 0; i < count && memory; i++) memory = dibs__window_read(l->c->g->wire, nth + i, &windows[i]);
  sql_rc end = memory ? take_ranges(l, windows, count) : dibs__task_no_memory(l->c->g);
  for (size_t i = 0; i < count; i++) dibs__window_free(&windows[i]);
  return end;
}

static bool goes_on(const laning *l) {
  return !l->cut && l->taken < l->c->most && l->next < l->range_count && l->seen < LOOKED_MAX;
}

/* `first`: the answer of the first window, which came with the lanes. */
static sql_rc take_all(laning *l, size_t first) {
  sql_rc end = read_ranges(l, first, 1);
  for (size_t at_once = 4; end == DIBS__SQL_OK && goes_on(l); at_once = at_once * 4 < AT_ONCE ? at_once * 4 : AT_ONCE) {
    size_t count = 0;
    end = put_all(l);
    size_t nth = l->c->g->wire->put;
    for (; count < at_once && l->next + count < l->range_count && end == DIBS__SQL_OK; count++)
      end = dibs__window_put(l, &l->ranges[l->next + count]);
    if (end == DIBS__SQL_OK) end = dibs__task_go(l->c->g);
    if (end == DIBS__SQL_OK) end = read_ranges(l, nth, count);
  }
  if (end == DIBS__SQL_OK && !l->cut && (l->taken || l->next < l->range_count))
    l->c->op->from = (uint32_t)((l->taken ? l->last_taken : l->last) + 1);
  return end == DIBS__SQL_OK ? write_all(l) : end;
}

/* ---- What comes before ---- */

enum next { TAKES, AGAIN, ENDS };

static sql_rc give_up(laning *l) {
  claiming *c = l->c;
  c->open = l->steps->limited = false;
  c->most = c->op->most;
  dibs__sql_rollback(c->g->wire);
  return dibs__sql_dead(c->g->wire) ? DIBS__SQL_FAILED : DIBS__SQL_OK;
}

static uint32_t count_stale(const task_op *op) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < op->lane_count; i++) count += op->lanes[i].status == DIBS_STALE;
  return count;
}

static bool is_ours(const laning *l) {
  dibs__str topic = dibs__str_of(l->looked.topic, l->looked.topic_len);
  return dibs__str_equal(topic, l->c->op->topic);
}

static sql_rc refuse_topic(claiming *c, enum next *next) {
  size_t len = c->topic_len;
  *next = ENDS;
  c->op->op.status = DIBS_INVALID;
  snprintf(c->op->why, sizeof c->op->why, "the kind belongs to the topic \"%.*s\"; dibs task kind --no-lanes ends that",
           (int)(len < 100 ? len : 100), c->topic);
  return DIBS__SQL_OK;
}

static sql_rc enter(laning *l, enum next *next) {
  bool other = false;
  sql_rc end = give_up(l);
  if (end == DIBS__SQL_OK) end = dibs__lanes_enter(l->c, &other);
  if (end == DIBS__SQL_OK && other) return refuse_topic(l->c, next);
  *next = AGAIN;
  return end;
}

static sql_rc convert(laning *l, enum next *next) {
  bool done = false;
  sql_rc end = give_up(l);
  if (end == DIBS__SQL_OK) end = dibs__lanes_convert(l->c->g, l->c->op->kind, &done);
  *next = done ? AGAIN : ENDS;
  l->c->op->more = !done;
  return end;
}

static sql_rc promote(laning *l, enum next *next) {
  sql_rc end = give_up(l);
  if (end == DIBS__SQL_OK) end = dibs__claim_promote(l->c, &l->looked);
  *next = AGAIN;
  return end;
}

/* A kind with a limit: its row is locked before those of the lanes. */
static sql_rc limit(laning *l, enum next *next) {
  bool none = false;
  sql_rc end = give_up(l);
  if (end == DIBS__SQL_OK) end = dibs__claim_lock_limit(l->c, &none);
  l->steps->limited = !none;
  *next = none ? ENDS : AGAIN;
  return end;
}

/* The first packet was answered: is anything to be done before? */
static sql_rc prepare(laning *l, size_t nth, enum next *next) {
  claiming *c = l->c;
  struct dibs__lane_steps *steps = l->steps;
  uint32_t stale = count_stale(c->op);
  bool promotes = l->looked.arrived || l->looked.is_over || l->looked.waited;
  *next = TAKES;
  if (l->looked.topic_len && !is_ours(l)) {
    c->topic_len = l->looked.topic_len;
    memcpy(c->topic, l->looked.topic, c->topic_len);
    sql_rc end = give_up(l);
    return end == DIBS__SQL_OK ? refuse_topic(c, next) : end;
  }
  if (!l->looked.topic_len || !read_lane_rows(c, nth)) return enter(l, next);
  if (count_stale(c->op) == c->op->lane_count) {
    *next = ENDS;
    return give_up(l);
  }
  if (l->looked.begins) return convert(l, next);
  if (c->op->again && !steps->repeated) {
    sql_rc end = give_up(l);
    steps->repeated = true;
    if (end == DIBS__SQL_OK) end = dibs__claim_find_repeat(c);
    *next = c->op->got_count ? ENDS : AGAIN;
    return end;
  }
  if (promotes && !steps->promoted) {
    steps->promoted = true;
    return promote(l, next);
  }
  if (l->looked.paused) {
    *next = ENDS;
    return give_up(l);
  }
  if (l->looked.running > 0 && !steps->limited) return limit(l, next);
  if (count_stale(c->op) != stale) { /* it looked at slots of others */
    *next = AGAIN;
    return give_up(l);
  }
  return DIBS__SQL_OK;
}

static sql_rc begin(laning *l, enum next *next) {
  claiming *c = l->c;
  struct dibs__sql_wire *w = c->g->wire;
  sql_rc end = c->open ? DIBS__SQL_OK : dibs__sql_begin(w);
  c->open = true;
  size_t nth = w->put;
  if (end == DIBS__SQL_OK) end = dibs__claim_put_lanes(c);
  if (end == DIBS__SQL_OK) end = dibs__claim_put_look(c);
  /* (Lanes that are STALE are known afterwards: then it looks again.) */
  bool first = end == DIBS__SQL_OK && l->range_count > 0;
  if (first) end = dibs__window_put(l, &l->ranges[0]);
  if (end == DIBS__SQL_OK) end = dibs__task_go(c->g);
  if (end != DIBS__SQL_OK) return end;
  dibs__claim_read_look(c, nth + 1, &l->looked);
  l->now = l->looked.now;
  end = prepare(l, nth, next);
  if (end != DIBS__SQL_OK || *next != TAKES) return end;
  return take_all(l, nth + 2);
}

static void clear(laning *l) {
  free(l->ranges);
  free(l->flips);
  free(l->waits);
  *l = (laning){.c = l->c, .steps = l->steps};
}

/* With none: when to come again. */
static sql_rc say_next(laning *l, bool cut) {
  claiming *c = l->c;
  task_op *op = c->op;
  struct dibs__claim_looked looked;
  if (op->got_count || op->op.status == DIBS_INVALID) return DIBS__SQL_OK;
  sql_rc end = dibs__claim_look(c, &looked);
  if (end != DIBS__SQL_OK) return end;
  bool promotes = looked.arrived || looked.is_over || looked.waited;
  op->more = op->more || cut || (l->steps->promoted && c->promoted && promotes);
  if (looked.next) op->next_ms = looked.next > looked.now ? looked.next - looked.now : DIBS__CLAIM_SOON_MS;
  return end;
}

static sql_rc refuse_inside(task_op *op) {
  op->op.status = DIBS_UNSUPPORTED;
  snprintf(op->why, sizeof op->why,
           "a claim by lane keeps other claims of its lanes waiting until it is committed: make it outside of your"
           " transaction, and end the tasks inside");
  return DIBS__SQL_OK;
}

sql_rc dibs__claim_by_lane(claiming *c) {
  struct dibs__lane_steps steps = {.promoted = false};
  laning l = {.c = c, .steps = &steps};
  task_op *op = c->op;
  sql_rc end = DIBS__SQL_OK;
  enum next next = AGAIN;
  dibs__op_free_answer(&op->op);
  op->got_count = 0;
  if (c->g->wire->inside) return refuse_inside(op);
  for (uint32_t i = 0; i < op->lane_count; i++) op->lanes[i].status = DIBS_OK;
  for (int round = 0; end == DIBS__SQL_OK && next == AGAIN; round++) {
    clear(&l);
    if (round == ROUNDS)
      end = dibs__sql_fail(c->g->wire, DIBS__SQL_DEADLOCK, "the lanes change all the time");
    else
      end = dibs__window_ranges(&l) ? begin(&l, &next) : dibs__task_no_memory(c->g);
  }
  if (end == DIBS__SQL_OK) end = say_next(&l, l.cut || l.seen >= LOOKED_MAX);
  clear(&l);
  return end;
}

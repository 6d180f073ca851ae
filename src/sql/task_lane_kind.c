/* SPDX-License-Identifier: MIT */
/*
 * When a kind becomes by lane, or is it no more; the fences of lanes.
 *
 * dibs_lane has a row for each lane of the present P that a claim named, with the largest fence, and some below 0:
 *
 *   -1   the present P, and the largest fence of any lane of any P
 *   -2   the largest fence when P changed last: a lane of this P with a smaller one is STALE
 *   -3   while the kind becomes by lane: then no claim with lanes takes anything
 *
 * They change under the lock of the kind's row, and a lane's row also under its own, which each claim holds: so a claim
 * under the old fence is complete, or sees the new one.  All claims under smaller fences end in the transaction that
 * raises the fence.  So the claims by lane of one lane always have one fence.
 *
 * Becoming by lane.  The first transaction names the topic, and sets the number of the kind's row in dibs_task_serial
 * with an empty text: with it no task is admitted to a serial text any more (task_promote.c).  Further ones turn the
 * tasks that had been admitted into keys by lane, some texts at a time, in the order of their numbers.
 *
 * No more by lane.  The first transaction forgets the topic and the lanes, further ones make the tasks arrived ones,
 * and the last one lets them be admitted again.  If there is no time for all of it, the next claims go on.
 *
 * Healing.  Nothing says when people delete a task, so a claim looks from time to time for keys whose first task is
 * blocked; and in a kind that is not by lane for tasks that are, which an ADD that began before may have left.
 */
#include "base/slot.h"
#include "sql/task_claim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__sql_value value;
typedef struct dibs__task_op task_op;
typedef struct dibs__task_lane lane_t;
typedef struct dibs__task_transition transition;
typedef struct dibs__task_locked locked_t;
typedef struct dibs__claiming claiming;

enum { TOP = -1, FLOOR = -2, BEGINS = -3 };
enum { TEXTS = 100 /* serial texts that a step turns into keys */ };

/* ---- The rows of the kind ---- */

struct entering {
  claiming *c;
  bool has_topic, other;
  int64_t lanes; /* the present P; 0: none */
  uint64_t top, floor;
  uint64_t *fences; /* of the lanes that the claim names; 0: no row */
};

static sql_rc put_kind(struct dibs__sql_guard *g, const value *kind) {
  char text[300];
  snprintf(text, sizeof text, "INSERT INTO dibs_task_kind (kind, running, paused) VALUES ($1, 0, 0) %s kind = $1",
           g->wire->engine->on_conflict ? "ON CONFLICT (kind) DO UPDATE SET" : "ON DUPLICATE KEY UPDATE");
  return dibs__task_put(g, text, kind, 1);
}

/* A claim of tasks with serial texts that are not by lane: 0; by lane: 1. */
static sql_rc put_flag(struct dibs__sql_guard *g, dibs__str kind, int64_t flag) {
  char text[300];
  value values[] = {dibs__task_text(kind), dibs__sql_number(flag)};
  snprintf(text, sizeof text, "INSERT INTO dibs_task_serial (kind, serial, nr) VALUES ($1, '', $2) %s nr = $2",
           g->wire->engine->on_conflict ? "ON CONFLICT (kind, serial) DO UPDATE SET" : "ON DUPLICATE KEY UPDATE");
  return dibs__task_put(g, text, values, 2);
}

/* Locks the kind's row, and reads what there is. */
static sql_rc read_kind(struct entering *e) {
  struct dibs__sql_guard *g = e->c->g;
  struct dibs__sql_wire *w = g->wire;
  value kind = dibs__task_text(e->c->op->kind);
  sql_rc end = dibs__sql_begin(w);
  if (end == DIBS__SQL_OK) end = put_kind(g, &kind);
  size_t nth = w->put;
  if (end == DIBS__SQL_OK) end = dibs__task_put(g, "SELECT topic FROM dibs_task_kind WHERE kind = $1@{lock}", &kind, 1);
  if (end == DIBS__SQL_OK)
    end = dibs__task_put(g, "SELECT lane, lanes, fence FROM dibs_lane WHERE kind = $1 AND lane < 0", &kind, 1);
  if (end == DIBS__SQL_OK) end = dibs__task_go(g);
  if (end != DIBS__SQL_OK) return end;
  dibs__str topic = w->engine->rows(w, nth) ? dibs__task_cell_text(w, nth, 0, 0) : (dibs__str){"", 0};
  e->has_topic = topic.len > 0;
  e->other = topic.len && !dibs__str_equal(topic, e->c->op->topic);
  e->c->topic_len = topic.len < DIBS__TASK_TOPIC_MAX ? topic.len : DIBS__TASK_TOPIC_MAX;
  memcpy(e->c->topic, topic.p, e->c->topic_len);
  for (size_t row = 0; row < w->engine->rows(w, nth + 1) && e->has_topic; row++) {
    int64_t lane = dibs__sql_cell_number(w, nth + 1, row, 0);
    uint64_t fence = (uint64_t)dibs__sql_cell_number(w, nth + 1, row, 2);
    if (lane == TOP) e->lanes = dibs__sql_cell_number(w, nth + 1, row, 1);
    if (lane == TOP) e->top = fence;
    if (lane == FLOOR) e->floor = fence;
  }
  return end;
}

static bool changes_lanes(const struct entering *e) {
  return e->lanes != e->c->op->of_lanes;
}

/* Locks the rows of all lanes, or of those that the claim names. */
static sql_rc lock_lanes(struct entering *e) {
  struct dibs__sql_guard *g = e->c->g;
  struct dibs__sql_wire *w = g->wire;
  const task_op *op = e->c->op;
  value kind = dibs__task_text(op->kind);
  size_t nth = w->put;
  sql_rc end =
      changes_lanes(e)
          ? dibs__task_put(g, "SELECT lane, fence FROM dibs_lane WHERE kind = $1 AND lane >= 0 ORDER BY lane@{lock}",
                           &kind, 1)
          : dibs__claim_put_lanes(e->c);
  if (end == DIBS__SQL_OK) end = dibs__task_go(g);
  for (size_t row = 0; end == DIBS__SQL_OK && !changes_lanes(e) && row < w->engine->rows(w, nth); row++)
    for (uint32_t i = 0; i < op->lane_count; i++)
      if (op->lanes[i].lane == dibs__sql_cell_number(w, nth, row, 0))
        e->fences[i] = (uint64_t)dibs__sql_cell_number(w, nth, row, 2);
  return end;
}

/* Whether any is not STALE. */
static bool find_stale(struct entering *e) {
  const task_op *op = e->c->op;
  bool any = false, same = !changes_lanes(e);
  for (uint32_t i = 0; i < op->lane_count; i++) {
    lane_t *lane = &op->lanes[i];
    bool stale = lane->fence.v < (same ? e->floor : e->top) || (same && lane->fence.v < e->fences[i]);
    lane->status = stale ? DIBS_STALE : DIBS_OK;
    any = any || !stale;
  }
  return any;
}

/* ---- Claims under smaller fences ---- */

struct claim {
  uint64_t nr;
  int64_t slot;
};

static int by_slot(const void *x, const void *y) {
  const struct claim *a = x, *b = y;
  if (a->slot != b->slot) return a->slot < b->slot ? -1 : 1;
  return (a->nr > b->nr) - (a->nr < b->nr);
}

/* Does a claim under this fence of the slot's lane end now? */
static bool is_over(const struct entering *e, int64_t slot, uint64_t fence) {
  const task_op *op = e->c->op;
  if (changes_lanes(e)) return true;
  uint32_t lane = dibs__slot_lane((uint32_t)slot, op->of_lanes);
  for (uint32_t i = 0; i < op->lane_count; i++)
    if (op->lanes[i].lane == lane) return op->lanes[i].status == DIBS_OK && fence < op->lanes[i].fence.v;
  return false;
}

static sql_rc find_claims(struct entering *e, struct claim **claims, size_t *count) {
  struct dibs__sql_wire *w = e->c->g->wire;
  value kind = dibs__task_text(e->c->op->kind);
  size_t nth = w->put;
  *count = 0;
  sql_rc end = dibs__task_put(
      e->c->g, "SELECT nr, slot, lane" DIBS__CLAIM_BUSY("2") " AND coalesce(slot, -1) >= 0 AND lane IS NOT NULL", &kind,
      1);
  if (end == DIBS__SQL_OK) end = dibs__task_go(e->c->g);
  if (end != DIBS__SQL_OK) return end;
  *claims = malloc((w->engine->rows(w, nth) + 1) * sizeof **claims);
  if (!*claims) return dibs__task_no_memory(e->c->g);
  for (size_t row = 0; row < w->engine->rows(w, nth); row++) {
    struct claim x = {(uint64_t)dibs__sql_cell_number(w, nth, row, 0), dibs__sql_cell_number(w, nth, row, 1)};
    if (is_over(e, x.slot, (uint64_t)dibs__sql_cell_number(w, nth, row, 2))) (*claims)[(*count)++] = x;
  }
  if (*count > 1) qsort(*claims, *count, sizeof **claims, by_slot);
  return end;
}

/* Ends them: of each key the first one with a failed try. */
static sql_rc end_some(struct dibs__sql_guard *g, const struct claim *claims, size_t count) {
  uint64_t *numbers = malloc(count * sizeof *numbers);
  char *texts = malloc(count * DIBS__TASK_LATE_TEXT);
  locked_t locked = {.count = 0};
  sql_rc end = numbers && texts ? DIBS__SQL_OK : dibs__task_no_memory(g);
  for (size_t i = 0; i < count && numbers; i++) numbers[i] = claims[i].nr;
  size_t nth = g->wire->put;
  if (end == DIBS__SQL_OK) end = dibs__task_put_lock(g, numbers, count, false);
  if (end == DIBS__SQL_OK) end = dibs__task_go(g);
  if (end == DIBS__SQL_OK && !dibs__task_read_locked(g->wire, nth, &locked)) end = dibs__task_no_memory(g);
  for (size_t i = 0; i < locked.count && end == DIBS__SQL_OK; i++) {
    transition *t = &locked.rows[i];
    if (!t->changes && t->state == DIBS__TASK_CLAIMED && t->lane)
      dibs__task_ends_late(&locked, t, locked.now, texts + i * DIBS__TASK_LATE_TEXT);
  }
  if (end == DIBS__SQL_OK) end = dibs__task_write_open(g, &locked);
  dibs__task_locked_free(&locked);
  free(numbers);
  free(texts);
  return end;
}

static sql_rc end_claims(struct entering *e) {
  struct claim *claims = NULL;
  size_t count = 0;
  sql_rc end = find_claims(e, &claims, &count);
  for (size_t from = 0; from < count && end == DIBS__SQL_OK; from += DIBS__TASK_STEP)
    end = end_some(e->c->g, claims + from, count - from < DIBS__TASK_STEP ? count - from : DIBS__TASK_STEP);
  free(claims);
  return end;
}

/* ---- Entering ---- */

static sql_rc put_lane_rows(struct entering *e) {
  const task_op *op = e->c->op;
  const struct dibs__sql_engine *engine = e->c->g->wire->engine;
  char text[400];
  value values[] = {dibs__task_text(op->kind), dibs__sql_number(op->of_lanes)};
  value *rows = malloc((2 * (size_t)op->lane_count + 4) * sizeof *rows);
  uint64_t top = e->top;
  size_t count = 0;
  if (!rows) return dibs__task_no_memory(e->c->g);
  for (uint32_t i = 0; i < op->lane_count; i++) {
    if (op->lanes[i].status != DIBS_OK) continue;
    rows[2 * count] = dibs__sql_number(op->lanes[i].lane);
    rows[2 * count++ + 1] = dibs__sql_number((int64_t)op->lanes[i].fence.v);
    if (op->lanes[i].fence.v > top) top = op->lanes[i].fence.v;
  }
  rows[2 * count] = dibs__sql_number(TOP);
  rows[2 * count++ + 1] = dibs__sql_number((int64_t)top);
  rows[2 * count] = dibs__sql_number(FLOOR);
  rows[2 * count++ + 1] = dibs__sql_number((int64_t)(changes_lanes(e) ? e->top : e->floor));
  snprintf(text, sizeof text,
           "INSERT INTO dibs_lane (kind, lane, lanes, fence) WITH r(r_lane, r_fence) AS ($rows)"
           " SELECT $1, r_lane, $2, r_fence FROM r WHERE true %s",
           engine->on_conflict ? "ON CONFLICT (kind, lane) DO UPDATE SET lanes = excluded.lanes, fence = excluded.fence"
                               : "ON DUPLICATE KEY UPDATE lanes = VALUES(lanes), fence = VALUES(fence)");
  sql_rc end = dibs__task_put_rows(e->c->g, text, values, 2, rows, 2, count);
  free(rows);
  return end;
}

/* The kind was not by lane. */
static sql_rc put_topic(struct entering *e) {
  struct dibs__sql_guard *g = e->c->g;
  value values[] = {dibs__task_text(e->c->op->kind), dibs__task_text(e->c->op->topic)};
  sql_rc end = dibs__task_put(g, "DELETE FROM dibs_lane WHERE kind = $1", values, 1);
  if (end == DIBS__SQL_OK) end = dibs__task_put(g, "UPDATE dibs_task_kind SET topic = $2 WHERE kind = $1", values, 2);
  if (end == DIBS__SQL_OK)
    end = dibs__task_put(g, "INSERT INTO dibs_lane (kind, lane, lanes, fence) VALUES ($1, " DIBS__LANE_BEGINS ", 0, 0)",
                         values, 1);
  return end == DIBS__SQL_OK ? put_flag(g, e->c->op->kind, 1) : end;
}

static sql_rc write_lanes(struct entering *e) {
  value kind = dibs__task_text(e->c->op->kind);
  sql_rc end = end_claims(e);
  if (end == DIBS__SQL_OK && !e->has_topic)
    end = put_topic(e);
  else if (end == DIBS__SQL_OK && changes_lanes(e))
    end = dibs__task_put(e->c->g, "DELETE FROM dibs_lane WHERE kind = $1 AND lane >= 0", &kind, 1);
  if (end == DIBS__SQL_OK) end = put_lane_rows(e);
  return end == DIBS__SQL_OK ? dibs__task_commit(e->c->g) : end;
}

sql_rc dibs__lanes_enter(claiming *c, bool *other) {
  struct entering e = {.c = c, .fences = calloc(c->op->lane_count, sizeof *e.fences)};
  if (!e.fences) return dibs__task_no_memory(c->g);
  sql_rc end = read_kind(&e);
  *other = e.other;
  if (end == DIBS__SQL_OK && !e.other) end = lock_lanes(&e);
  if (end == DIBS__SQL_OK && !e.other && find_stale(&e)) {
    end = write_lanes(&e);
  } else if (end == DIBS__SQL_OK) {
    dibs__sql_rollback(c->g->wire);
    end = dibs__sql_dead(c->g->wire) ? DIBS__SQL_FAILED : DIBS__SQL_OK;
  }
  free(e.fences);
  return end;
}

/* ---- Becoming by lane ---- */

struct text {
  dibs__str serial;
  uint64_t nr; /* the task that runs, or runs next */
  bool all;    /* all of its tasks have slots */
};

struct texts {
  struct text *all;
  size_t count;
  char *memory;
};

static bool read_texts(const struct dibs__sql_wire *w, size_t nth, struct texts *t) {
  size_t size = 1;
  t->count = w->engine->rows(w, nth);
  for (size_t row = 0; row < t->count; row++) size += dibs__task_cell_text(w, nth, row, 0).len;
  t->all = malloc((t->count + 1) * sizeof *t->all);
  t->memory = malloc(size);
  if (!t->all || !t->memory) return false;
  char *to = t->memory;
  for (size_t row = 0; row < t->count; row++) {
    dibs__str serial = dibs__task_cell_text(w, nth, row, 0);
    memcpy(to, serial.p, serial.len);
    t->all[row] = (struct text){{to, serial.len}, (uint64_t)dibs__sql_cell_number(w, nth, row, 1), false};
    to += serial.len;
  }
  return true;
}

/* Locks the tasks of these texts: the heads, then the blocked ones of each. */
static sql_rc lock_texts(struct dibs__sql_guard *g, const value *kind, const struct texts *t) {
  uint64_t *heads = malloc((t->count + 1) * sizeof *heads);
  if (!heads) return dibs__task_no_memory(g);
  for (size_t i = 0; i < t->count; i++) heads[i] = t->all[i].nr;
  sql_rc end = dibs__task_put_lock(g, heads, t->count, false);
  free(heads);
  for (size_t i = 0; i < t->count && end == DIBS__SQL_OK; i++) {
    value values[] = {*kind, dibs__task_text(t->all[i].serial), dibs__sql_number(DIBS__TASK_STEP)};
    end = dibs__task_put(g,
                         "SELECT " DIBS__TASK_LOCKED " FROM dibs_task@{queue} WHERE kind = $1 AND queue = $2 AND"
                         " state = 4 ORDER BY rank, due, nr LIMIT $3@{lock}",
                         values, 3);
  }
  return end == DIBS__SQL_OK ? dibs__task_go(g) : end;
}

/* A free one stays free, from the time on that it wants; others are put aside. */
static sql_rc put_keys(struct dibs__sql_guard *g, const locked_t *locked) {
  value *rows = malloc((3 * locked->count + 1) * sizeof *rows);
  size_t count = 0;
  if (!rows) return dibs__task_no_memory(g);
  for (size_t i = 0; i < locked->count; i++) {
    const transition *t = &locked->rows[i];
    if (t->has_slot || !t->serial.len) continue;
    int64_t slot = dibs__slot(t->serial.p, t->serial.len);
    bool is_free = t->state == DIBS__TASK_READY || t->state == DIBS__TASK_BLOCKED || t->state == DIBS__TASK_ARRIVED;
    rows[3 * count] = dibs__sql_number((int64_t)t->nr);
    rows[3 * count + 1] = dibs__sql_number(is_free ? DIBS__TASK_BLOCKED : t->state);
    rows[3 * count++ + 2] = dibs__sql_number(is_free ? slot : -1 - slot);
  }
  /* First `due`, then `since`, last `state`: MariaDB sets the columns one after the other. */
  sql_rc end =
      count
          ? dibs__task_put_update(g, "r_nr, r_state, r_slot",
                                  "due = CASE WHEN state = 4 THEN coalesce(since, due) ELSE due END, since = CASE WHEN"
                                  " state = 2 THEN since END, rank = 0, queue = NULL, slot = r_slot, state = r_state",
                                  "", NULL, 0, rows, 3, count)
          : DIBS__SQL_OK;
  free(rows);
  return end;
}

/* Forgets the texts of which no task is left without a slot. */
static sql_rc put_forget(struct dibs__sql_guard *g, const value *kind, const struct texts *t) {
  sql_rc end = DIBS__SQL_OK;
  for (size_t i = 0; i < t->count && end == DIBS__SQL_OK; i++) {
    value values[] = {*kind, dibs__task_text(t->all[i].serial), dibs__sql_number((int64_t)t->all[i].nr)};
    if (t->all[i].all)
      end = dibs__task_put(g, "DELETE FROM dibs_task_serial WHERE kind = $1 AND serial = $2 AND nr = $3", values, 3);
  }
  return end;
}

/* After the last text: tasks that were admitted and have none, as several parked ones of one text. */
static sql_rc lock_others(struct dibs__sql_guard *g, const value *kind, locked_t *locked) {
  size_t nth = g->wire->put;
  sql_rc end =
      dibs__task_put(g,
                     "SELECT " DIBS__TASK_LOCKED " FROM dibs_task@{busy} WHERE kind = $1 AND state IN (2, 3, 5)"
                     " AND state <> 1@{zero} AND slot IS NULL AND serial <> '' ORDER BY nr + 0 LIMIT 1000@{lock}",
                     kind, 1);
  if (end == DIBS__SQL_OK) end = dibs__task_go(g);
  if (end == DIBS__SQL_OK && !dibs__task_read_locked(g->wire, nth, locked)) end = dibs__task_no_memory(g);
  return end;
}

static sql_rc convert_texts(struct dibs__sql_guard *g, const value *kind, struct texts *t) {
  locked_t heads = {.count = 0}, blocked = {.count = 0};
  sql_rc end = lock_texts(g, kind, t);
  if (end != DIBS__SQL_OK) return end;
  for (size_t i = 0; i < t->count; i++) t->all[i].all = g->wire->engine->rows(g->wire, i + 1) < DIBS__TASK_STEP;
  if (!dibs__task_read_locked(g->wire, 0, &heads) || !dibs__task_read_all_locked(g->wire, 1, t->count, &blocked))
    end = dibs__task_no_memory(g);
  if (end == DIBS__SQL_OK) end = put_keys(g, &heads);
  if (end == DIBS__SQL_OK) end = put_keys(g, &blocked);
  if (end == DIBS__SQL_OK) end = put_forget(g, kind, t);
  dibs__task_locked_free(&heads);
  dibs__task_locked_free(&blocked);
  return end;
}

static sql_rc convert_others(struct dibs__sql_guard *g, const value *kind, bool *done) {
  locked_t others = {.count = 0};
  sql_rc end = lock_others(g, kind, &others);
  if (end == DIBS__SQL_OK) end = put_keys(g, &others);
  *done = others.count < DIBS__TASK_STEP;
  if (end == DIBS__SQL_OK && *done)
    end = dibs__task_put(g, "DELETE FROM dibs_lane WHERE kind = $1 AND lane = " DIBS__LANE_BEGINS, kind, 1);
  dibs__task_locked_free(&others);
  return end;
}

/* A transaction. */
static sql_rc convert_some(struct dibs__sql_guard *g, dibs__str of, bool *done) {
  struct dibs__sql_wire *w = g->wire;
  struct texts texts = {.all = NULL};
  value kind[] = {dibs__task_text(of), dibs__sql_number(TEXTS)};
  sql_rc end = dibs__sql_begin(w);
  size_t nth = w->put;
  if (end == DIBS__SQL_OK)
    end = dibs__task_put(g, "SELECT lane FROM dibs_lane WHERE kind = $1 AND lane = " DIBS__LANE_BEGINS "@{lock}", kind,
                         1);
  if (end == DIBS__SQL_OK)
    end = dibs__task_put(g,
                         "SELECT serial, nr FROM dibs_task_serial WHERE kind = $1 AND serial > '' ORDER BY serial"
                         " LIMIT $2",
                         kind, 2);
  if (end == DIBS__SQL_OK) end = dibs__task_go(g);
  if (end != DIBS__SQL_OK) return end;
  *done = w->engine->rows(w, nth) == 0;
  if (!read_texts(w, nth + 1, &texts)) end = dibs__task_no_memory(g);
  if (end == DIBS__SQL_OK && !*done) end = texts.count ? convert_texts(g, kind, &texts) : convert_others(g, kind, done);
  free(texts.all);
  free(texts.memory);
  return end == DIBS__SQL_OK ? dibs__task_commit(g) : end;
}

/* Half of what is left of the operation's time. */
static dibs__tick patience(const struct dibs__sql_wire *w) {
  dibs__tick now = dibs__tick_now();
  return dibs__tick_add_ms(now, dibs__tick_left_ms(now, w->by) / 2);
}

sql_rc dibs__lanes_convert(struct dibs__sql_guard *g, dibs__str kind, bool *done) {
  dibs__tick by = patience(g->wire);
  sql_rc end;
  do end = convert_some(g, kind, done);
  while (end == DIBS__SQL_OK && !*done && dibs__tick_before(dibs__tick_now(), by));
  return end;
}

/* ---- No more by lane ---- */

static bool stays(const transition *t) {
  return t->state == DIBS__TASK_PARKED || (t->state == DIBS__TASK_CLAIMED && !t->lane);
}

/* Claims by lane end; parked tasks and other claims have their serial texts. */
static sql_rc put_arrived(struct dibs__sql_guard *g, const locked_t *locked) {
  value *rows = malloc((2 * locked->count + 1) * sizeof *rows), now = dibs__sql_number(locked->now);
  if (!rows) return dibs__task_no_memory(g);
  for (size_t i = 0; i < locked->count; i++) {
    rows[2 * i] = dibs__sql_number((int64_t)locked->rows[i].nr);
    rows[2 * i + 1] = dibs__sql_number(stays(&locked->rows[i]) ? locked->rows[i].state : DIBS__TASK_ARRIVED);
  }
  sql_rc end = dibs__task_put_update(
      g, "r_nr, r_state",
      "due = CASE WHEN state = 2 AND r_state = 0 THEN $1 ELSE due END, since = CASE WHEN r_state = 2 THEN since END,"
      " claim = CASE WHEN r_state = 2 THEN claim END, rank = 0, queue = NULL, slot = NULL, lane = NULL, state = "
      "r_state",
      "", &now, 1, rows, 2, locked->count);
  free(rows);
  return end;
}

static sql_rc put_heads(struct dibs__sql_guard *g, dibs__str of, const locked_t *locked) {
  value kind = dibs__task_text(of), *rows = malloc((2 * locked->count + 1) * sizeof *rows);
  const struct dibs__sql_engine *e = g->wire->engine;
  char text[400];
  size_t count = 0;
  if (!rows) return dibs__task_no_memory(g);
  for (size_t i = 0; i < locked->count; i++) {
    if (!stays(&locked->rows[i])) continue;
    rows[2 * count] = dibs__task_text(locked->rows[i].serial);
    rows[2 * count++ + 1] = dibs__sql_number((int64_t)locked->rows[i].nr);
  }
  snprintf(text, sizeof text,
           "INSERT %sINTO dibs_task_serial (kind, serial, nr) WITH r(r_serial, r_nr) AS ($rows)"
           " SELECT $1, r_serial, r_nr FROM r WHERE true%s",
           e->on_conflict ? "" : "IGNORE ", e->on_conflict ? " ON CONFLICT DO NOTHING" : "");
  sql_rc end = count ? dibs__task_put_rows(g, text, &kind, 1, rows, 2, count) : DIBS__SQL_OK;
  free(rows);
  return end;
}

/* A transaction.  The kind's row is locked, so that the kind does not become by lane meanwhile. */
static sql_rc leave_some(struct dibs__sql_guard *g, dibs__str of, bool *done) {
  struct dibs__sql_wire *w = g->wire;
  value kind = dibs__task_text(of);
  locked_t locked = {.count = 0};
  sql_rc end = dibs__sql_begin(w);
  size_t nth = w->put;
  if (end == DIBS__SQL_OK) end = dibs__task_put(g, "SELECT topic FROM dibs_task_kind WHERE kind = $1@{lock}", &kind, 1);
  if (end == DIBS__SQL_OK)
    end = dibs__task_put(g,
                         "SELECT " DIBS__TASK_LOCKED " FROM dibs_task@{slot} WHERE kind = $1 AND slot > -4294967297"
                         " ORDER BY slot, nr LIMIT 1000@{lock}",
                         &kind, 1);
  if (end == DIBS__SQL_OK) end = dibs__task_go(g);
  if (end != DIBS__SQL_OK) return end;
  bool by_lane = w->engine->rows(w, nth) && !dibs__task_cell_is_null(w, nth, 0, 0);
  *done = by_lane || w->engine->rows(w, nth + 1) == 0;
  if (!*done && !dibs__task_read_locked(w, nth + 1, &locked)) end = dibs__task_no_memory(g);
  if (end == DIBS__SQL_OK && locked.count) end = put_arrived(g, &locked);
  if (end == DIBS__SQL_OK && locked.count) end = put_heads(g, of, &locked);
  if (end == DIBS__SQL_OK && *done && !by_lane) end = put_flag(g, of, 0);
  if (end == DIBS__SQL_OK && locked.count) g->woke = true;
  dibs__task_locked_free(&locked);
  return end == DIBS__SQL_OK ? dibs__task_commit(g) : end;
}

sql_rc dibs__lanes_leave(struct dibs__sql_guard *g, dibs__str kind, bool *done) {
  dibs__tick by = patience(g->wire);
  sql_rc end;
  do end = leave_some(g, kind, done);
  while (end == DIBS__SQL_OK && !*done && dibs__tick_before(dibs__tick_now(), by));
  return end;
}

/* ---- Healing ---- */

/* From a slot on: tasks that are put aside, and which of them are blocked although they are the first of their key. */
static sql_rc put_lost(struct dibs__sql_guard *g, const value *values) {
#define FIRST_OF_KEY(slot)                                                                                             \
  "(SELECT e.nr FROM dibs_task e WHERE e.kind = $1 AND " slot " AND e.serial = a.serial ORDER BY e.slot, e.nr LIMIT "  \
  "1)"
#define LOST(aside, not_aside)                                                                                         \
  "SELECT nr, slot, state, CASE WHEN state = 4 AND nr = " FIRST_OF_KEY(aside) " AND nr < coalesce(" FIRST_OF_KEY(      \
      not_aside) ", nr + 1) THEN 1 ELSE 0 END FROM (SELECT kind, nr, slot,"                                            \
                 " state, serial FROM dibs_task@{slot} WHERE kind = $1 AND slot < 0 AND slot > $2 ORDER BY slot, nr "  \
                 "LIMIT 1000) a"                                                                                       \
                 " ORDER BY slot, nr"
  return dibs__task_put(g,
                        dibs__task_by_range(g) ? LOST(DIBS__TASK_IN_SLOT("e.slot", "a.slot"),
                                                      DIBS__TASK_IN_SLOT("e.slot", "(-1 - a.slot)"))
                                               : LOST("e.slot = a.slot", "e.slot = -1 - a.slot"),
                        values, 2);
}

static sql_rc bring_lost(struct dibs__sql_guard *g, dibs__str kind, int64_t *slot) {
  struct dibs__sql_wire *w = g->wire;
  value values[] = {dibs__task_text(kind), dibs__sql_number(*slot)};
  size_t nth = w->put, count = 0;
  sql_rc end = put_lost(g, values);
  if (end == DIBS__SQL_OK) end = dibs__task_go(g);
  if (end != DIBS__SQL_OK) return end;
  size_t rows = w->engine->rows(w, nth);
  uint64_t *numbers = malloc((rows + 1) * sizeof *numbers);
  int64_t *slots = malloc((rows + 1) * sizeof *slots);
  if (!numbers || !slots) end = dibs__task_no_memory(g);
  for (size_t row = 0; row < rows && end == DIBS__SQL_OK; row++) {
    if (!dibs__sql_cell_number(w, nth, row, 3)) continue;
    slots[count] = -1 - dibs__sql_cell_number(w, nth, row, 1);
    numbers[count++] = (uint64_t)dibs__sql_cell_number(w, nth, row, 0);
  }
  *slot = rows == DIBS__TASK_STEP ? dibs__sql_cell_number(w, nth, rows - 1, 1) : INT64_MIN;
  if (end == DIBS__SQL_OK && count) {
    end = dibs__sql_begin(w);
    if (end == DIBS__SQL_OK) end = dibs__task_put_lanes(g, kind, slots, count);
    if (end == DIBS__SQL_OK) end = dibs__task_put_backs(g, numbers, count);
    if (end == DIBS__SQL_OK) end = dibs__task_commit(g);
  }
  free(numbers);
  free(slots);
  return end;
}

sql_rc dibs__lanes_heal(struct dibs__sql_guard *g, dibs__str kind, int64_t *slot) {
  struct dibs__sql_wire *w = g->wire;
  value of = dibs__task_text(kind);
  size_t nth = w->put;
  bool done;
  sql_rc end = dibs__task_put(g,
                              "SELECT (SELECT topic FROM dibs_task_kind WHERE kind = $1), (SELECT 1 FROM"
                              " dibs_task@{slot} WHERE kind = $1 AND slot > -4294967297 LIMIT 1), (SELECT 1 FROM"
                              " dibs_task@{slot} WHERE kind = $1 AND slot < 0 LIMIT 1)",
                              &of, 1);
  if (end == DIBS__SQL_OK) end = dibs__task_go(g);
  if (end != DIBS__SQL_OK) return end;
  bool by_lane = !dibs__task_cell_is_null(w, nth, 0, 0), some = !dibs__task_cell_is_null(w, nth, 0, 1);
  bool aside = !dibs__task_cell_is_null(w, nth, 0, 2);
  if (some && !by_lane) return dibs__lanes_leave(g, kind, &done);
  if (*slot == 0) *slot = INT64_MIN;
  return aside && by_lane ? bring_lost(g, kind, slot) : end;
}

/* ---- KIND ---- */

sql_rc dibs__lanes_end(struct dibs__sql_guard *g, dibs__str of) {
  value kind = dibs__task_text(of);
  bool done;
  sql_rc end = dibs__sql_begin(g->wire);
  if (end == DIBS__SQL_OK) end = put_kind(g, &kind);
  if (end == DIBS__SQL_OK) end = dibs__task_put(g, "UPDATE dibs_task_kind SET topic = NULL WHERE kind = $1", &kind, 1);
  if (end == DIBS__SQL_OK) end = dibs__task_put(g, "DELETE FROM dibs_lane WHERE kind = $1", &kind, 1);
  if (end == DIBS__SQL_OK) end = dibs__task_commit(g);
  return end == DIBS__SQL_OK ? dibs__lanes_leave(g, of, &done) : end;
}

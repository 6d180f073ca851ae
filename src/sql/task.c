/* SPDX-License-Identifier: MIT */
/*
 * Tasks: a batch, statements with their words, retries.
 *
 * Each operation is a transaction of its own, and has many items; operations that only read need none.  Inside a user's
 * transaction it is a savepoint.
 */
#include "sql/task_impl.h"
#include "sql/text.h"
#include "store/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__sql_value value;
typedef struct dibs__task_op task_op;

enum { NAP_MS = 2, NAP_MAX_MS = 50, INDEX_MAX = 128 };

/* ---- Statements ---- */

sql_rc dibs__task_put_rows(struct dibs__sql_guard *g, const char *from, const value *values, size_t count,
                           const value *rows, size_t columns, size_t row_count) {
  const struct dibs__sql_engine *e = g->wire->engine;
  static const char *const indexes[] = {"ready", "queue", "slot", "plain", "keyed", "busy"};
  enum { INDEXES = sizeof indexes / sizeof indexes[0], PARTIAL = 3 };
  char by[INDEXES][INDEX_MAX] = {""};
  for (size_t i = 0; e->by[0] && i < INDEXES; i++)
    snprintf(by[i], sizeof by[i], "%s%stask_%s%s", e->by[0], g->prefix,
             i >= PARTIAL && !e->words.some ? indexes[0] : indexes[i], e->by[1]);
  const struct dibs__sql_word words[] = {{"skip", e->sessions ? " FOR UPDATE SKIP LOCKED" : ""},
                                         {"any", e->any[0]},
                                         {"none", e->any[1]},
                                         {indexes[0], by[0]},
                                         {indexes[1], by[1]},
                                         {indexes[2], by[2]},
                                         {indexes[3], by[3]},
                                         {indexes[4], by[4]},
                                         {indexes[5], by[5]},
                                         {"zero", e->words.some ? "" : " AND rank = 0"},
                                         {"row", e->row},
                                         {"latest", g->wire->inside ? e->latest : ""},
                                         {"sees_latest", g->wire->inside ? e->sees_latest : "1"},
                                         {NULL, NULL}};
  struct dibs__sql_names names = {.engine = e, .prefix = g->prefix, .inside = g->wire->inside, .words = words};
  char composed[DIBS__TASK_TEXT];
  struct dibs__text text;
  dibs__text_begin(&text, composed, sizeof composed);
  dibs__sql_compose(&text, &names, from);
  if (text.cut) return dibs__sql_fail(g->wire, DIBS__SQL_NO_SPACE, "the prefix of the tables is too long");
  if (row_count == 0) return e->put(g->wire, composed, values, count);
  return e->put_rows(g->wire, composed, values, count, rows, columns, row_count);
}

sql_rc dibs__task_put(struct dibs__sql_guard *g, const char *text, const value *values, size_t count) {
  return dibs__task_put_rows(g, text, values, count, NULL, 0, 0);
}

sql_rc dibs__task_put_update(struct dibs__sql_guard *g, const char *columns, const char *set, const char *where,
                             const value *values, size_t count, const value *rows, size_t width, size_t row_count) {
  char text[DIBS__TASK_TEXT / 2];
  if (g->wire->engine->joins)
    snprintf(text, sizeof text,
             "UPDATE (WITH r(%s) AS ($rows) SELECT * FROM r) r STRAIGHT_JOIN dibs_task" DIBS__TASK_BY_KEY
             " ON nr = r.r_nr%s"
             " SET %s",
             columns, where, set);
  else
    snprintf(text, sizeof text,
             "UPDATE dibs_task SET %s FROM (WITH r(%s) AS ($rows) SELECT r.*, (SELECT t.@{row} FROM dibs_task t"
             " WHERE t.nr = r_nr) AS r_row FROM r) r WHERE dibs_task.@{row} = r.r_row%s",
             set, columns, where);
  return dibs__task_put_rows(g, text, values, count, rows, width, row_count);
}

/* NULL: no memory. */
static value *rows_of_numbers(const uint64_t *numbers, size_t count) {
  value *rows = malloc(count * sizeof *rows);
  for (size_t i = 0; rows && i < count; i++) rows[i] = dibs__sql_number((int64_t)numbers[i]);
  return rows;
}

sql_rc dibs__task_put_delete(struct dibs__sql_guard *g, const char *table, const uint64_t *numbers, size_t count) {
  char text[512];
  value *rows = rows_of_numbers(numbers, count);
  if (!rows) return dibs__task_no_memory(g);
  if (g->wire->engine->joins)
    snprintf(text, sizeof text,
             "DELETE t FROM (WITH r(r_nr) AS ($rows) SELECT r_nr FROM r) r STRAIGHT_JOIN %s t" DIBS__TASK_BY_KEY
             " ON t.nr = r.r_nr",
             table);
  else
    snprintf(text, sizeof text, "DELETE FROM %s WHERE nr@{any}WITH r(r_nr) AS ($rows) SELECT r_nr FROM r@{none}",
             table);
  sql_rc end = dibs__task_put_rows(g, text, NULL, 0, rows, 1, count);
  free(rows);
  return end;
}

const char *dibs__task_from_numbers(const struct dibs__sql_guard *g) {
  return g->wire->engine->joins
             ? "FROM (WITH r(r_nr) AS ($rows) SELECT r_nr FROM r) r STRAIGHT_JOIN dibs_task" DIBS__TASK_BY_KEY
               " ON nr = r.r_nr WHERE true"
             : "FROM dibs_task WHERE nr@{any}WITH r(r_nr) AS ($rows) SELECT r_nr FROM r@{none}";
}

sql_rc dibs__task_commit(struct dibs__sql_guard *g) {
  sql_rc end = dibs__sql_commit(g->wire);
  if (end == DIBS__SQL_OK) end = g->wire->engine->go(g->wire, !g->wire->inside);
  if (end == DIBS__SQL_OK && !g->wire->inside) g->commits++;
  return end;
}

sql_rc dibs__task_no_memory(struct dibs__sql_guard *g) {
  return dibs__sql_fail(g->wire, DIBS__SQL_NO_SPACE, "out of memory");
}

bool dibs__task_is_one(enum dibs__sql_trouble trouble) {
  return trouble == DIBS__SQL_REFUSED || trouble == DIBS__SQL_ODD || trouble == DIBS__SQL_ORPHAN ||
         trouble == DIBS__SQL_TWICE;
}

/* ---- One operation ---- */

static bool say(task_op *op, const char *why) {
  op->op.status = DIBS_INVALID;
  snprintf(op->why, sizeof op->why, "%s", why);
  return false;
}

static sql_rc run_verb(struct dibs__sql_guard *g, task_op *op) {
  switch ((enum dibs__task_verb)op->op.verb) {
  case DIBS__TASK_ADD:
    return dibs__task_add(g, op);
  case DIBS__TASK_CLAIM:
    return dibs__task_claim(g, op);
  case DIBS__TASK_EXTEND:
    return dibs__task_extend(g, op);
  case DIBS__TASK_END:
    return dibs__task_end(g, op);
  case DIBS__TASK_CHANGE:
    return dibs__task_change(g, op);
  case DIBS__TASK_LIST:
    return dibs__task_list(g, op);
  case DIBS__TASK_COUNT:
    return dibs__task_count(g, op);
  case DIBS__TASK_KIND:
    return dibs__task_kind(g, op);
  }
  (void)say(op, "an unknown verb");
  return DIBS__SQL_OK;
}

/* Answers a step that failed and is not tried again. */
static void answer_refused(struct dibs__sql_guard *g, task_op *op) {
  const struct dibs__sql_wire *w = g->wire;
  op->op.status = dibs__sql_explain(w, "work on tasks in", g->store, g->result);
  snprintf(op->why, sizeof op->why, "%.150s%s", w->message,
           w->trouble == DIBS__SQL_LOCKED ? "; another session has locked a row" : "");
  if (!w->inside || w->trouble != DIBS__SQL_DEADLOCK) return;
  op->op.status = DIBS_CONFLICT;
  dibs__set_message(g->result, "the transaction can't continue: %s; roll it back and begin again", w->message);
}

/* Until it is answered, or its time is over. */
static sql_rc run_op(struct dibs__sql_guard *g, task_op *op) {
  struct dibs__sql_wire *w = g->wire;
  for (int64_t nap_ms = NAP_MS;; nap_ms = nap_ms * 2 < NAP_MAX_MS ? nap_ms * 2 : NAP_MAX_MS) {
    sql_rc end = run_verb(g, op);
    if (end == DIBS__SQL_OK) return end;
    dibs__op_free_answer(&op->op);
    if (dibs__sql_dead(w) || w->unsure) return end;
    dibs__sql_rollback(w);
    if (dibs__sql_dead(w) || w->trouble == DIBS__SQL_NO_SPACE) return end;
    bool again = !w->inside && (w->trouble == DIBS__SQL_DEADLOCK || w->trouble == DIBS__SQL_LOCKED);
    if (!again || dibs__tick_left_ms(dibs__tick_now(), w->by) <= nap_ms) {
      answer_refused(g, op);
      return DIBS__SQL_OK;
    }
    uint8_t draw;
    dibs__random(&draw, sizeof draw);
    dibs__nap_ms(1 + draw % nap_ms);
  }
}

/* ---- A batch ---- */

static bool is_time(int64_t ms) {
  return ms >= 0 && ms <= DIBS__TASK_MS_MAX;
}

static bool lanes_valid(task_op *op) {
  if (op->lane_count < 1 || op->lane_count > DIBS__TASK_LANES || !op->lanes)
    return say(op, "a claim by lane names 1 to 1024 lanes");
  if (op->of_lanes < 1 || op->of_lanes > DIBS__TASK_LANES) return say(op, "a topic has 1 to 1024 lanes");
  if (op->topic.len < 1 || op->topic.len > DIBS__TASK_TOPIC_MAX) return say(op, "a topic has 1 to 200 bytes");
  if (op->phase_count) return say(op, "a claim by lane names no phases");
  for (uint32_t i = 0; i < op->lane_count; i++) {
    const struct dibs__task_lane *lane = &op->lanes[i];
    if (lane->lane >= op->of_lanes || (i && lane->lane <= op->lanes[i - 1].lane))
      return say(op, "lanes are named by number, each once, from 0 to of_lanes - 1");
    if (lane->fence.v == 0 || lane->fence.v > INT64_MAX) return say(op, "a lane has no valid fence");
  }
  return true;
}

static bool claim_valid(task_op *op) {
  if (op->phase_count > DIBS__TASK_PHASES) return say(op, "a claim names at most 16 phases");
  for (uint32_t i = 0; i < op->phase_count; i++)
    if (op->phases[i].len > DIBS_NAME_MAX) return say(op, "the name of a phase is too long");
  if (op->by.len > DIBS_OWNER_MAX) return say(op, "the claimant's name is too long");
  return (op->lane_count == 0 && op->of_lanes == 0) || lanes_valid(op);
}

static bool filter_valid(task_op *op) {
  const struct dibs__task_filter *f = &op->filter;
  if (f->kind.len > DIBS_NAME_MAX || f->phase.len > DIBS_NAME_MAX || f->serial.len > DIBS_NAME_MAX)
    return say(op, "a text of the filter is too long");
  if (f->states & ~(DIBS__TASK_UNFINISHED | DIBS__TASK_FINISHED)) return say(op, "the filter has an unknown state");
  if (!is_time(f->older_ms)) return say(op, "older_ms is out of range");
  if (op->op.verb == DIBS__TASK_CHANGE && op->change > DIBS__TASK_PURGE) return say(op, "an unknown change");
  return op->op.verb != DIBS__TASK_LIST || !op->errors || f->nr || say(op, "errors are those of one task");
}

enum { ALL_SETTINGS = DIBS__TASK_SET_RUNNING | DIBS__TASK_SET_PAUSED | DIBS__TASK_SET_KEEP | DIBS__TASK_SET_NO_LANES };

/* Is it well-formed?  If not, it is answered. */
static bool is_valid(task_op *op) {
  uint16_t verb = op->op.verb;
  bool of_a_kind = verb == DIBS__TASK_ADD || verb == DIBS__TASK_CLAIM || verb == DIBS__TASK_KIND;
  bool has_items = verb == DIBS__TASK_ADD || verb == DIBS__TASK_EXTEND || verb == DIBS__TASK_END;
  bool has_most = verb == DIBS__TASK_CLAIM || verb == DIBS__TASK_CHANGE || verb == DIBS__TASK_LIST;
  bool has_timeout = verb == DIBS__TASK_CLAIM || verb == DIBS__TASK_EXTEND;
  if (op->kind.len > DIBS_NAME_MAX || (of_a_kind && op->kind.len < 1)) return say(op, "the kind has no valid name");
  if (has_items && op->count > DIBS__TASK_ITEMS) return say(op, "more than 1000 tasks");
  if (op->token.len > DIBS__TASK_TOKEN_MAX) return say(op, "the token is longer than 64 bytes");
  if (has_most && (op->most < 1 || op->most > DIBS__TASK_ITEMS)) return say(op, "`most` is from 1 to 1000");
  if (has_timeout && (op->timeout_ms < 1 || !is_time(op->timeout_ms))) return say(op, "the timeout is out of range");
  if (verb == DIBS__TASK_ADD && op->token.len && (op->token_ms < 1 || !is_time(op->token_ms)))
    return say(op, "the time of the token is out of range");
  if (verb == DIBS__TASK_CHANGE || verb == DIBS__TASK_LIST) return filter_valid(op);
  if (verb == DIBS__TASK_KIND && op->set & ~(uint32_t)ALL_SETTINGS) return say(op, "an unknown setting");
  if (verb == DIBS__TASK_KIND && op->set & DIBS__TASK_SET_KEEP && op->keep_ms != -1 && !is_time(op->keep_ms))
    return say(op, "keep_ms is out of range");
  return verb != DIBS__TASK_CLAIM || claim_valid(op);
}

static void begin_answer(task_op *op) {
  op->got = NULL;
  op->got_count = 0;
  op->next_ms = -1;
  op->more = false;
  op->changed = op->last = 0;
  op->why[0] = '\0';
  if (op->op.verb == DIBS__TASK_ADD)
    for (uint32_t i = 0; i < op->count; i++) {
      op->news[i].status = DIBS_UNKNOWN;
      op->news[i].nr = 0;
    }
  if (op->op.verb == DIBS__TASK_CLAIM)
    for (uint32_t i = 0; i < op->lane_count && op->lanes; i++) op->lanes[i].status = DIBS_UNKNOWN;
  if (op->op.verb == DIBS__TASK_EXTEND || op->op.verb == DIBS__TASK_END)
    for (uint32_t i = 0; i < op->count; i++) {
      op->items[i].status = DIBS_UNKNOWN;
      op->items[i].due_ms = 0;
    }
}

sql_rc dibs__sql_task(struct dibs__sql_guard *g, task_op *const ops[], size_t count) {
  sql_rc end = DIBS__SQL_OK;
  for (size_t i = 0; i < count; i++) begin_answer(ops[i]);
  for (size_t i = 0; i < count && end == DIBS__SQL_OK; i++)
    if (is_valid(ops[i])) end = run_op(g, ops[i]);
  return end;
}

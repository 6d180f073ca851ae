/* SPDX-License-Identifier: MIT */
/*
 * Why a claim found nothing, and the promotion of tasks that became ready.
 *
 * In a kind by lane, arrived tasks with a serial text get the slot of this text, and then they are free; see
 * task_lane.c.
 */
#include "base/slot.h"
#include "sql/task_claim.h"
#include "store/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__sql_value value;
typedef struct dibs__task_op task_op;
typedef struct dibs__task_locked locked_t;
typedef struct dibs__claim_looked looked_t;

enum { ALONE_MAX = 100 }; /* late claims that a claim ends one by one */

#define OF_KIND "kind = $1"
#define NOW DIBS__CLAIM_NOW
#define BUSY DIBS__CLAIM_BUSY
#define ARRIVED DIBS__CLAIM_ARRIVED
#define ARRIVED_KEYED DIBS__CLAIM_KEYED

/* ---- The reason why nothing was claimed ---- */

#define FIRST_DUE(of) "(SELECT due" BUSY(of) " ORDER BY due LIMIT 1)"
#define OF_THIS(column) "(SELECT " column " FROM dibs_task_kind WHERE " OF_KIND ")"

sql_rc dibs__claim_put_look(struct dibs__claiming *c) {
  value kind = dibs__task_text(c->op->kind);
  return dibs__task_put(c->g,
                        "SELECT @{now}, (" ARRIVED " LIMIT 1), " FIRST_DUE("2") ", " FIRST_DUE(
                            "3") ", (SELECT 1 FROM dibs_task@{ready} WHERE " OF_KIND
                                 " AND state = 1 LIMIT 1), " OF_THIS("running") ", " OF_THIS("paused") ", " OF_THIS(
                                     "topic") ", (SELECT 1 FROM dibs_task@{slot} WHERE " OF_KIND
                                              " AND slot < 0 LIMIT 1), (SELECT 1 FROM dibs_lane WHERE " OF_KIND
                                              " AND lane = " DIBS__LANE_BEGINS ")",
                        &kind, 1);
}

void dibs__claim_read_look(const struct dibs__claiming *c, size_t nth, looked_t *l) {
  const struct dibs__sql_wire *w = c->g->wire;
  int64_t over = dibs__sql_cell_number(w, nth, 0, 2), waited = dibs__sql_cell_number(w, nth, 0, 3);
  bool claimed = !dibs__task_cell_is_null(w, nth, 0, 2), waits = !dibs__task_cell_is_null(w, nth, 0, 3);
  dibs__str topic = dibs__task_cell_text(w, nth, 0, 7);
  *l = (looked_t){.now = dibs__sql_cell_number(w, nth, 0, 0),
                  .arrived = !dibs__task_cell_is_null(w, nth, 0, 1),
                  .ready = !dibs__task_cell_is_null(w, nth, 0, 4),
                  .running = dibs__sql_cell_number(w, nth, 0, 5),
                  .paused = dibs__sql_cell_number(w, nth, 0, 6) != 0,
                  .aside = !dibs__task_cell_is_null(w, nth, 0, 8),
                  .begins = !dibs__task_cell_is_null(w, nth, 0, 9),
                  .topic_len = topic.len < DIBS__TASK_TOPIC_MAX ? topic.len : DIBS__TASK_TOPIC_MAX};
  memcpy(l->topic, topic.p, l->topic_len);
  l->is_over = claimed && over <= l->now;
  l->waited = waits && waited <= l->now;
  if (claimed) l->next = over;
  if (waits && (!claimed || waited < over)) l->next = waited;
}

sql_rc dibs__claim_look(struct dibs__claiming *c, looked_t *l) {
  size_t nth = c->g->wire->put;
  sql_rc end = dibs__claim_put_look(c);
  if (end == DIBS__SQL_OK) end = dibs__task_go(c->g);
  if (end == DIBS__SQL_OK) dibs__claim_read_look(c, nth, l);
  return end;
}

/* ---- Promotion ---- */

/* An arrived task with a serial text. */
struct arrived {
  uint64_t nr;
  dibs__str serial;
  bool locked;
};

struct promotion {
  struct dibs__sql_guard *g;
  dibs__str kind;
  looked_t found;
  uint64_t *waited, *plain; /* numbers of locked tasks */
  size_t waited_count, plain_count;
  uint64_t *aside; /* the same of those that were put aside while they waited, with their slots */
  int64_t *slots;
  size_t aside_count;
  locked_t over;
  struct arrived *serial; /* by number; malloc'd, with their texts */
  size_t serial_count;
  bool leaves; /* the kind was by lane, and not all of its tasks are as they were before */
};

static void free_promotion(struct promotion *p) {
  free(p->waited);
  free(p->plain);
  free(p->aside);
  free(p->slots);
  free(p->serial);
  dibs__task_locked_free(&p->over);
}

#define ARRIVED_PLAIN " FROM dibs_task@{plain} WHERE " OF_KIND " AND state = 0 AND rank = 0 AND serial IS NULL"
#define IN_ORDER " ORDER BY due, nr LIMIT 1000@{skip}"
_Static_assert(DIBS__TASK_STEP == 1000, "one number, written twice");

/* The row with an empty text, by which clients take turns to admit tasks.  Two that begin with a kind at the same time
 * both miss it: the second one waits for the first, and then finds it. */
static sql_rc put_turn(struct promotion *p, const value *kind) {
  bool on_conflict = p->g->wire->engine->on_conflict;
  char text[400];
  snprintf(text, sizeof text,
           "INSERT %sINTO dibs_task_serial (kind, serial, nr) SELECT v.kind, '', 0 FROM (SELECT $1 AS kind) v"
           " WHERE NOT EXISTS (SELECT 1 FROM dibs_task_serial s WHERE s.kind = $1 AND s.serial = '')%s",
           on_conflict ? "" : "IGNORE ", on_conflict ? " ON CONFLICT DO NOTHING" : "");
  return dibs__task_put(p->g, text, kind, 1);
}

static sql_rc put_finds(struct promotion *p) {
  value kind = dibs__task_text(p->kind);
  sql_rc end = dibs__sql_begin(p->g->wire);
  if (end == DIBS__SQL_OK && p->found.waited)
    end = dibs__task_put(p->g, "SELECT nr, slot" BUSY("3") " AND due <= " NOW IN_ORDER, &kind, 1);
  if (end == DIBS__SQL_OK && p->found.is_over)
    end = dibs__task_put(p->g, "SELECT " DIBS__TASK_LOCKED BUSY("2") " AND due <= " NOW IN_ORDER, &kind, 1);
  if (end != DIBS__SQL_OK || !p->found.arrived) return end;
  end = dibs__task_put(p->g, "SELECT nr" ARRIVED_PLAIN IN_ORDER, &kind, 1);
  if (p->found.topic_len)
    return end == DIBS__SQL_OK ? dibs__task_put(p->g, "SELECT nr, serial" ARRIVED_KEYED "@{skip}", &kind, 1) : end;
  /* Only the client that has locked the row with an empty text admits tasks. */
  if (end == DIBS__SQL_OK) end = put_turn(p, &kind);
  if (end == DIBS__SQL_OK)
    end = dibs__task_put(p->g, "SELECT nr FROM dibs_task_serial WHERE " OF_KIND " AND serial = ''@{skip}", &kind, 1);
  if (end == DIBS__SQL_OK) end = dibs__task_put(p->g, "SELECT nr, serial" ARRIVED_KEYED, &kind, 1);
  if (end == DIBS__SQL_OK) end = dibs__task_put(p->g, "SELECT nr" ARRIVED_KEYED "@{skip}", &kind, 1);
  return end;
}

static bool read_numbers(const struct dibs__sql_wire *w, size_t nth, uint64_t **numbers, size_t *count) {
  *count = w->engine->rows(w, nth);
  *numbers = malloc((*count + 1) * sizeof **numbers);
  for (size_t i = 0; *numbers && i < *count; i++) (*numbers)[i] = (uint64_t)dibs__sql_cell_number(w, nth, i, 0);
  return *numbers != NULL;
}

static bool read_waited(const struct dibs__sql_wire *w, size_t nth, struct promotion *p) {
  size_t count = w->engine->rows(w, nth);
  p->waited = malloc((count + 1) * sizeof *p->waited);
  p->aside = malloc((count + 1) * sizeof *p->aside);
  p->slots = malloc((count + 1) * sizeof *p->slots);
  if (!p->waited || !p->aside || !p->slots) return false;
  for (size_t i = 0; i < count; i++) {
    uint64_t nr = (uint64_t)dibs__sql_cell_number(w, nth, i, 0);
    if (dibs__task_cell_is_null(w, nth, i, 1)) {
      p->waited[p->waited_count++] = nr;
      continue;
    }
    int64_t slot = dibs__sql_cell_number(w, nth, i, 1);
    p->slots[p->aside_count] = slot < 0 ? -1 - slot : slot;
    p->aside[p->aside_count++] = nr;
  }
  return true;
}

/* `of_locks`: the answer that says which of them are locked; `nth`: all are. */
static bool read_serial(const struct dibs__sql_wire *w, size_t nth, size_t of_locks, struct promotion *p) {
  size_t count = w->engine->rows(w, nth), size = 0, locked = 0, locks = w->engine->rows(w, of_locks);
  for (size_t i = 0; i < count; i++) size += dibs__task_cell_text(w, nth, i, 1).len;
  p->serial = malloc((count + 1) * sizeof *p->serial + size);
  if (!p->serial) return false;
  char *texts = (char *)(p->serial + count + 1);
  for (size_t i = 0; i < count; i++) {
    dibs__str text = dibs__task_cell_text(w, nth, i, 1);
    struct arrived *a = &p->serial[i];
    *a = (struct arrived){.nr = (uint64_t)dibs__sql_cell_number(w, nth, i, 0), .serial = {texts, text.len}};
    memcpy(texts, text.p, text.len);
    texts += text.len;
    while (locked < locks && (uint64_t)dibs__sql_cell_number(w, of_locks, locked, 0) < a->nr) locked++;
    a->locked = locked < locks && (uint64_t)dibs__sql_cell_number(w, of_locks, locked, 0) == a->nr;
  }
  p->serial_count = count;
  return true;
}

static bool read_finds(struct promotion *p) {
  const struct dibs__sql_wire *w = p->g->wire;
  size_t nth = 1; /* after BEGIN */
  if (p->found.waited && !read_waited(w, nth++, p)) return false;
  if (p->found.is_over && !dibs__task_read_locked(w, nth++, &p->over)) return false;
  if (!p->found.arrived) return true;
  if (!read_numbers(w, nth, &p->plain, &p->plain_count)) return false;
  if (p->found.topic_len) return read_serial(w, nth + 1, nth + 1, p);
  bool turn = w->engine->rows(w, nth + 2) > 0;
  p->leaves = turn && dibs__sql_cell_number(w, nth + 2, 0, 0) != 0;
  return !turn || p->leaves || read_serial(w, nth + 3, nth + 4, p);
}

/* ---- Admission to serial texts ---- */

static int by_serial(const void *x, const void *y) {
  const struct arrived *a = x, *b = y;
  if (!dibs__str_equal(a->serial, b->serial)) return dibs__str_before(a->serial, b->serial) ? -1 : 1;
  return (a->nr > b->nr) - (a->nr < b->nr);
}

/* Leaves those that may be admitted, by text: not those behind a task that is not locked. */
static void choose_serial(struct promotion *p) {
  size_t left = 0;
  if (p->serial_count > 1) qsort(p->serial, p->serial_count, sizeof *p->serial, by_serial);
  for (size_t i = 0, first = 0; i < p->serial_count; i++) {
    if (!dibs__str_equal(p->serial[i].serial, p->serial[first].serial)) first = i;
    if (i > first && !p->serial[i - 1].locked) p->serial[i].locked = false;
  }
  for (size_t i = 0; i < p->serial_count; i++)
    if (p->serial[i].locked) p->serial[left++] = p->serial[i];
  p->serial_count = left;
}

/* An empty text is none.  (Sorted, those come first.)  false: no memory. */
static bool part_empty(struct promotion *p) {
  size_t empty = 0;
  while (empty < p->serial_count && p->serial[empty].serial.len == 0) empty++;
  if (empty == 0) return true;
  uint64_t *plain = realloc(p->plain, (p->plain_count + empty) * sizeof *plain);
  if (!plain) return false;
  p->plain = plain;
  for (size_t i = 0; i < empty; i++) p->plain[p->plain_count++] = p->serial[i].nr;
  p->serial_count -= empty;
  memmove(p->serial, p->serial + empty, p->serial_count * sizeof *p->serial);
  return true;
}

static sql_rc put_heads(struct promotion *p) {
  const struct dibs__sql_engine *e = p->g->wire->engine;
  char text[DIBS__TASK_TEXT / 4];
  value kind = dibs__task_text(p->kind), *rows = malloc(2 * p->serial_count * sizeof *rows);
  size_t count = 0;
  if (!rows) return dibs__task_no_memory(p->g);
  for (size_t i = 0; i < p->serial_count; i++) {
    if (i && dibs__str_equal(p->serial[i].serial, p->serial[i - 1].serial)) continue;
    rows[2 * count] = dibs__task_text(p->serial[i].serial);
    rows[2 * count++ + 1] = dibs__sql_number((int64_t)p->serial[i].nr);
  }
  snprintf(text, sizeof text,
           "INSERT INTO dibs_task_serial (kind, serial, nr) WITH r(r_serial, r_nr) AS ($rows)"
           " SELECT $1, r_serial, r_nr FROM r WHERE true %s",
           e->on_conflict ? "ON CONFLICT (kind, serial) DO UPDATE SET nr = dibs_task_serial.nr"
                          : "ON DUPLICATE KEY UPDATE nr = dibs_task_serial.nr");
  sql_rc end = dibs__task_put_rows(p->g, text, &kind, 1, rows, 2, count);
  free(rows);
  return end;
}

/* The row of its text is locked, and has the number of the task that runs. */
static sql_rc put_admission(struct promotion *p) {
  const struct dibs__sql_engine *e = p->g->wire->engine;
  char text[DIBS__TASK_TEXT / 2];
  value *rows = malloc(p->serial_count * sizeof *rows);
  value values[] = {dibs__sql_number(p->found.now), dibs__task_text(p->kind)};
  if (!rows) return dibs__task_no_memory(p->g);
  for (size_t i = 0; i < p->serial_count; i++) rows[i] = dibs__sql_number((int64_t)p->serial[i].nr);
  /* First `since`, last `due`: MariaDB sets the columns one after the other. */
  static const char set[] =
      "since = CASE WHEN head = nr THEN NULL ELSE due END, state = CASE WHEN head <> nr THEN 4 WHEN due <= $1 THEN 1"
      " ELSE 3 END, rank = CASE WHEN head = nr AND due <= $1 THEN 0 - priority ELSE 0 END, queue = CASE WHEN head <> nr"
      " THEN serial WHEN due <= $1 THEN nullif(phase, '') END, due = CASE WHEN head = nr THEN due ELSE 0 END";
#define HEADS                                                                                                          \
  "(WITH r(r_nr) AS ($rows) SELECT r_nr, %s(SELECT s.nr FROM dibs_task_serial s WHERE s.kind = $2 AND s.serial ="      \
  " (SELECT t.serial FROM dibs_task t WHERE t.nr = r_nr)) AS head FROM r) r"
  /* No join of PostgreSQL: for a minute after a vacuum of the emptied table it expects no rows, and would read a whole
   * index for each task. */
  if (e->joins)
    snprintf(text, sizeof text, "UPDATE " HEADS " STRAIGHT_JOIN dibs_task" DIBS__TASK_BY_KEY " ON nr = r.r_nr SET %s",
             "", set);
  else
    snprintf(text, sizeof text, "UPDATE dibs_task SET %s FROM " HEADS " WHERE dibs_task.@{row} = r.r_row", set,
             "(SELECT t.@{row} FROM dibs_task t WHERE t.nr = r_nr) AS r_row, ");
  sql_rc end = dibs__task_put_rows(p->g, text, values, 2, rows, 1, p->serial_count);
  free(rows);
  return end;
}

/* ---- Writing ---- */

static sql_rc put_numbers(struct promotion *p, const uint64_t *numbers, size_t count, const char *set) {
  value *rows = malloc((count + 1) * sizeof *rows), now = dibs__sql_number(p->found.now);
  if (!rows) return dibs__task_no_memory(p->g);
  for (size_t i = 0; i < count; i++) rows[i] = dibs__sql_number((int64_t)numbers[i]);
  sql_rc end = count ? dibs__task_put_update(p->g, "r_nr", set, "", &now, 1, rows, 1, count) : DIBS__SQL_OK;
  free(rows);
  return end;
}

/* Waiting tasks by lane whose time has come are free again. */
static sql_rc put_free(struct promotion *p) {
  static const char set[] = "state = 4, slot = CASE WHEN slot < 0 THEN -1 - slot ELSE slot END";
  value *rows = malloc((p->aside_count + 1) * sizeof *rows);
  if (!rows) return dibs__task_no_memory(p->g);
  for (size_t i = 0; i < p->aside_count; i++) rows[i] = dibs__sql_number((int64_t)p->aside[i]);
  sql_rc end = dibs__task_put_lanes(p->g, p->kind, p->slots, p->aside_count);
  if (end == DIBS__SQL_OK) end = dibs__task_put_update(p->g, "r_nr", set, "", NULL, 0, rows, 1, p->aside_count);
  free(rows);
  return end;
}

static sql_rc put_slots(struct promotion *p) {
  value *rows = malloc(2 * p->serial_count * sizeof *rows);
  if (!rows) return dibs__task_no_memory(p->g);
  for (size_t i = 0; i < p->serial_count; i++) {
    rows[2 * i] = dibs__sql_number((int64_t)p->serial[i].nr);
    rows[2 * i + 1] = dibs__sql_number(dibs__slot(p->serial[i].serial.p, p->serial[i].serial.len));
  }
  sql_rc end =
      dibs__task_put_update(p->g, "r_nr, r_slot", "state = 4, slot = r_slot", "", NULL, 0, rows, 2, p->serial_count);
  free(rows);
  return end;
}

static int by_due(const void *x, const void *y) {
  const struct dibs__task_transition *a = *(struct dibs__task_transition *const *)x,
                                     *b = *(struct dibs__task_transition *const *)y;
  if (a->due != b->due) return a->due < b->due ? -1 : 1;
  return (a->nr > b->nr) - (a->nr < b->nr);
}

/* Claims without an answer until their time was over. */
static bool end_late_claims(struct promotion *p, char **texts) {
  struct dibs__task_transition **order = malloc((p->over.count + 1) * sizeof(struct dibs__task_transition *));
  *texts = malloc(p->over.count * DIBS__TASK_LATE_TEXT + 1);
  for (size_t i = 0; order && i < p->over.count; i++) order[i] = &p->over.rows[i];
  if (order && p->over.count > 1) qsort(order, p->over.count, sizeof(struct dibs__task_transition *), by_due);
  for (size_t i = 0; order && *texts && i < p->over.count; i++)
    if (!order[i]->changes) dibs__task_ends_late(&p->over, order[i], order[i]->due, *texts + i * DIBS__TASK_LATE_TEXT);
  free(order);
  return order && *texts;
}

static sql_rc write_promotion(struct promotion *p) {
  static const char when_due[] = "state = CASE WHEN due <= $1 THEN 1 ELSE 3 END, rank = CASE WHEN due <= $1 THEN"
                                 " 0 - priority ELSE 0 END, queue = CASE WHEN due <= $1 THEN nullif(phase, '') END";
  char *texts = NULL;
  choose_serial(p);
  if (!part_empty(p) || !end_late_claims(p, &texts)) {
    free(texts);
    return dibs__task_no_memory(p->g);
  }
  sql_rc end = put_numbers(p, p->waited, p->waited_count, when_due);
  if (end == DIBS__SQL_OK && p->aside_count) end = put_free(p);
  if (end == DIBS__SQL_OK) end = put_numbers(p, p->plain, p->plain_count, when_due);
  if (end == DIBS__SQL_OK && p->serial_count && p->found.topic_len)
    end = put_slots(p);
  else if (end == DIBS__SQL_OK && p->serial_count && (end = put_heads(p)) == DIBS__SQL_OK)
    end = put_admission(p);
  if (end == DIBS__SQL_OK) end = dibs__task_write(p->g, &p->over);
  free(texts);
  return end;
}

static sql_rc promote_together(struct dibs__claiming *c, const looked_t *found) {
  struct promotion p = {.g = c->g, .kind = c->op->kind, .found = *found};
  sql_rc end = put_finds(&p);
  if (end == DIBS__SQL_OK) end = dibs__task_go(p.g);
  if (end == DIBS__SQL_OK && !read_finds(&p)) end = dibs__task_no_memory(p.g);
  if (end == DIBS__SQL_OK) end = write_promotion(&p);
  bool done, changed = p.waited_count + p.aside_count + p.over.count + p.plain_count + p.serial_count > 0;
  if (end == DIBS__SQL_OK && p.leaves && !c->g->wire->inside) {
    end = dibs__lanes_leave(c->g, p.kind, &done);
    changed = true;
  }
  c->promoted = end == DIBS__SQL_OK && changed;
  free_promotion(&p);
  return end;
}

/* After a failure.  OK: the engine refused a row of it, and it is rolled back. */
static sql_rc undo_refused(struct dibs__sql_guard *g) {
  if (dibs__sql_dead(g->wire) || g->wire->unsure || !dibs__task_is_one(g->wire->trouble)) return DIBS__SQL_FAILED;
  dibs__sql_rollback(g->wire);
  return dibs__sql_dead(g->wire) ? DIBS__SQL_FAILED : DIBS__SQL_OK;
}

/* The nth of the late claims in a transaction of its own.  *more: there is one. */
static sql_rc end_late_claim(struct dibs__claiming *c, int64_t nth, bool *more) {
  struct dibs__sql_wire *w = c->g->wire;
  struct promotion p = {.g = c->g, .kind = c->op->kind};
  value values[] = {dibs__task_text(p.kind), dibs__sql_number(nth)};
  char *texts = NULL;
  sql_rc end = dibs__sql_begin(w);
  size_t at = w->put;
  if (end == DIBS__SQL_OK)
    end = dibs__task_put(
        p.g, "SELECT " DIBS__TASK_LOCKED BUSY("2") " AND due <= " NOW " ORDER BY due, nr LIMIT 1 OFFSET $2@{skip}",
        values, 2);
  if (end == DIBS__SQL_OK) end = dibs__task_go(p.g);
  if (end == DIBS__SQL_OK && (!dibs__task_read_locked(w, at, &p.over) || !end_late_claims(&p, &texts)))
    end = dibs__task_no_memory(p.g);
  *more = p.over.count > 0;
  if (end == DIBS__SQL_OK) end = *more ? dibs__task_write(p.g, &p.over) : dibs__task_commit(p.g);
  free(texts);
  free_promotion(&p);
  return end;
}

/* If the engine refuses to write what becomes of a late claim, this claim alone stays as it is: the others are ended
 * one by one, up to ALONE_MAX such ones. */
sql_rc dibs__claim_promote(struct dibs__claiming *c, const looked_t *found) {
  looked_t others = *found;
  sql_rc end = promote_together(c, found);
  if (end == DIBS__SQL_OK || !found->is_over || c->g->wire->inside || undo_refused(c->g) != DIBS__SQL_OK) return end;
  others.is_over = false;
  bool more = true;
  int64_t refused = 0;
  for (int i = 0; more && i < ALONE_MAX; i++) {
    end = end_late_claim(c, refused, &more);
    if (end == DIBS__SQL_OK) continue;
    if (undo_refused(c->g) != DIBS__SQL_OK) return end;
    refused++;
  }
  return others.arrived || others.waited ? promote_together(c, &others) : DIBS__SQL_OK;
}

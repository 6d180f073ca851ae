/* SPDX-License-Identifier: MIT */
/*
 * The rows of tasks in memory.  A task is in every order that its state needs:
 *
 *   READY              kind.ready (by turn), kind.phased
 *   WAITING, CLAIMED   kind.timed (by turn: by `due`, because the rank is 0); CLAIMED also kind.claims
 *   DONE, CANCELLED    tasks.kept (by `due`)
 *   unfinished         kind.serials and kind.uniques, if it has these texts
 *   all                tasks.all
 *
 * Of the tasks with one serial text all but one are BLOCKED; this one is the head.
 *
 * In a kind by lane those with a serial text are never BLOCKED, and READY ones are not in kind.ready and kind.phased:
 *
 *   CLAIMED by lane    kind.held
 *   else               kind.keyed; the first of each key also kind.heads, if it is READY
 *
 * Each claim by lane has the fence that its lane has now (task_lane.c).  So a CLAIM may take the heads, and the READY
 * tasks that follow each in kind.keyed, and finds them without looking at others.
 *
 * An order is a treap: a binary tree by the order, and a heap by the weights that were drawn.
 */
#include "base/slot.h"
#include "drivers/memory/task_impl.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dibs__mem_task task;
typedef struct dibs__mem_kind kind;
typedef struct dibs__mem_tasks tasks;
typedef enum dibs__mem_order order;

/* ---- Orders ---- */

static int compare_numbers(int64_t a, int64_t b) {
  return (a > b) - (a < b);
}

static int compare_nrs(const task *a, const task *b) {
  return (a->nr > b->nr) - (a->nr < b->nr);
}

static int compare_texts(dibs__str a, dibs__str b) {
  if (dibs__str_equal(a, b)) return 0;
  return dibs__str_before(a, b) ? -1 : 1;
}

static int compare_turns(const task *a, const task *b) {
  if (a->rank != b->rank) return compare_numbers(a->rank, b->rank);
  if (a->due != b->due) return compare_numbers(a->due, b->due);
  return compare_nrs(a, b);
}

static int compare_phases(const task *a, const task *b) {
  int by_phase = compare_texts(dibs__str_of(a->phase, a->phase_len), dibs__str_of(b->phase, b->phase_len));
  return by_phase ? by_phase : compare_turns(a, b);
}

static int compare_serials(const task *a, const task *b) {
  int by_text = compare_texts(a->serial, b->serial);
  return by_text ? by_text : compare_nrs(a, b);
}

/* (One text is that of one task, R66; but another driver may load rows that somebody else has changed.) */
static int compare_uniques(const task *a, const task *b) {
  int by_text = compare_texts(a->unique, b->unique);
  return by_text ? by_text : compare_nrs(a, b);
}

static int compare_claims(const task *a, const task *b) {
  if (a->claim != b->claim) return a->claim < b->claim ? -1 : 1;
  return compare_nrs(a, b);
}

static int compare_slots(const task *a, const task *b) {
  return a->slot != b->slot ? compare_numbers(a->slot, b->slot) : compare_nrs(a, b);
}

int dibs__mem_order_compare(order by, const task *a, const task *b) {
  static int (*const compare[DIBS__MEM_ORDERS])(const task *, const task *) = {
      [DIBS__MEM_BY_NR] = compare_nrs,         [DIBS__MEM_BY_TURN] = compare_turns,
      [DIBS__MEM_BY_PHASE] = compare_phases,   [DIBS__MEM_BY_SERIAL] = compare_serials,
      [DIBS__MEM_BY_UNIQUE] = compare_uniques, [DIBS__MEM_BY_CLAIM] = compare_claims,
      [DIBS__MEM_BY_KEY] = compare_serials,    [DIBS__MEM_BY_SLOT] = compare_slots};
  return compare[by](a, b);
}

/* Divides the tree into those before `at`, and the others. */
static void split(task *tree, const task *at, order by, task **before, task **others) {
  if (!tree) {
    *before = *others = NULL;
  } else if (dibs__mem_order_compare(by, tree, at) < 0) {
    split(tree->links[by].right, at, by, &tree->links[by].right, others);
    *before = tree;
  } else {
    split(tree->links[by].left, at, by, before, &tree->links[by].left);
    *others = tree;
  }
}

/* All of `a` are before all of `b`. */
static task *joined(task *a, task *b, order by) {
  if (!a || !b) return a ? a : b;
  if (a->weight >= b->weight) {
    a->links[by].right = joined(a->links[by].right, b, by);
    return a;
  }
  b->links[by].left = joined(a, b->links[by].left, by);
  return b;
}

static void order_add(task **root, task *t, order by) {
  task *before, *others;
  t->links[by].left = t->links[by].right = NULL;
  split(*root, t, by, &before, &others);
  *root = joined(joined(before, t, by), others, by);
}

/* What it is ordered by must not have changed since it was added. */
static void order_remove(task **root, task *t, order by) {
  while (*root != t) {
    assert(*root);
    root = dibs__mem_order_compare(by, t, *root) < 0 ? &(*root)->links[by].left : &(*root)->links[by].right;
  }
  *root = joined(t->links[by].left, t->links[by].right, by);
}

task *dibs__mem_order_first(task *root, order by) {
  while (root && root->links[by].left) root = root->links[by].left;
  return root;
}

task *dibs__mem_order_next(task *root, const task *t, order by) {
  task *best = NULL;
  while (root) {
    bool behind = dibs__mem_order_compare(by, root, t) > 0;
    if (behind) best = root;
    root = behind ? root->links[by].left : root->links[by].right;
  }
  return best;
}

/* ---- Kinds ---- */

kind *dibs__mem_kind_find(const tasks *all, dibs__str text) {
  struct dibs__map_node *link = dibs__map_head(&all->kinds, dibs__hash(text.p, text.len));
  for (; link; link = link->next) {
    kind *k = (kind *)link;
    if (dibs__str_equal(dibs__str_of(k->text, k->len), text)) return k;
  }
  return NULL;
}

DIBS__MODULE_API kind *dibs__mem_kind_get(tasks *all, dibs__str text) {
  kind *k = dibs__mem_kind_find(all, text);
  if (k || !(k = calloc(1, sizeof *k + text.len + 1))) return k;
  k->keep_ms = -1;
  k->len = text.len;
  memcpy(k->text, text.p, text.len);
  dibs__map_add(&all->kinds, &k->link, dibs__hash(text.p, text.len));
  return k;
}

void dibs__mem_kind_drop_if_idle(tasks *all, kind *k) {
  for (size_t i = 0; i < sizeof k->states / sizeof k->states[0]; i++)
    if (k->states[i]) return;
  if (k->has_settings) return;
  dibs__map_remove(&all->kinds, &k->link);
  free(k->lanes);
  free(k);
}

/* ---- Rows ---- */

DIBS__MODULE_API task *dibs__mem_task_find(const tasks *all, uint64_t nr) {
  task *t = all->all;
  while (t && t->nr != nr) t = nr < t->nr ? t->links[DIBS__MEM_BY_NR].left : t->links[DIBS__MEM_BY_NR].right;
  return t;
}

DIBS__MODULE_API task *dibs__mem_task_of_unique(const kind *k, dibs__str unique) {
  task *t = k->uniques;
  while (t && !dibs__str_equal(t->unique, unique))
    t = dibs__str_before(unique, t->unique) ? t->links[DIBS__MEM_BY_UNIQUE].left : t->links[DIBS__MEM_BY_UNIQUE].right;
  return t;
}

static dibs__str append(char **at, dibs__str text) {
  char *to = *at;
  if (text.len) memcpy(to, text.p, text.len);
  *at = to + text.len;
  return dibs__str_of(to, text.len);
}

DIBS__MODULE_API task *dibs__mem_task_make(const struct dibs__task_new *from) {
  task *t = calloc(1, sizeof *t + (size_t)from->serial.len + from->unique.len + from->payload.len + 1);
  if (!t) return NULL;
  char *at = t->bytes;
  dibs__random(&t->weight, sizeof t->weight);
  t->priority = from->priority;
  t->tries = from->tries ? from->tries : DIBS__TASK_TRIES;
  t->phase_len = from->phase.len;
  if (t->phase_len) memcpy(t->phase, from->phase.p, t->phase_len);
  t->serial = append(&at, from->serial);
  t->slot = dibs__slot(t->serial.p, t->serial.len);
  t->unique = append(&at, from->unique);
  t->payload = append(&at, from->payload);
  return t;
}

static void forget_errors(task *t) {
  while (t->errors) {
    struct dibs__mem_failed *first = t->errors;
    t->errors = first->next;
    free(first);
  }
}

DIBS__MODULE_API void dibs__mem_task_free(task *t) {
  if (!t) return;
  forget_errors(t);
  free(t->result);
  free(t);
}

DIBS__MODULE_API bool dibs__mem_task_load_error(task *t, dibs__fence fence, dibs__str by, dibs__str text,
                                                int64_t at_ms) {
  struct dibs__mem_failed *e = calloc(1, sizeof *e + by.len + text.len + 1), **at = &t->errors;
  if (!e) return false;
  char *bytes = e->bytes;
  e->fence = fence;
  e->at = at_ms;
  e->by_len = append(&bytes, by).len;
  e->text_len = append(&bytes, text).len;
  while (*at) at = &(*at)->next;
  *at = e;
  if (++t->error_count <= DIBS__TASK_ERRORS) return true;
  t->error_count--;
  e = t->errors;
  t->errors = e->next;
  free(e);
  return true;
}

bool dibs__mem_task_failed(task *t, dibs__str text, int64_t now) {
  if (text.len > DIBS__TASK_TEXT_MAX) text = dibs__str_of(text.p + text.len - DIBS__TASK_TEXT_MAX, DIBS__TASK_TEXT_MAX);
  return dibs__mem_task_load_error(t, t->fence, dibs__str_of(t->by, t->by_len), text, now);
}

dibs__str dibs__mem_task_text(const task *t) {
  const struct dibs__mem_failed *e = t->errors;
  if (t->state == DIBS__TASK_DONE) return dibs__str_of(t->result ? t->result : "", t->result_len);
  while (e && e->next) e = e->next;
  return e ? dibs__str_of(e->bytes + e->by_len, e->text_len) : dibs__str_of("", 0);
}

/* ---- States ---- */

static bool finished(uint32_t state) {
  return (DIBS__TASK_FINISHED >> state & 1) != 0;
}

static bool by_lane(const task *t) {
  return t->kind->topic_len && t->serial.len;
}

static task **root_of_turns(tasks *all, const task *t) {
  if (t->state == DIBS__TASK_READY) return by_lane(t) ? NULL : &t->kind->ready;
  if (t->state == DIBS__TASK_WAITING || t->state == DIBS__TASK_CLAIMED) return &t->kind->timed;
  return t->state == DIBS__TASK_DONE || t->state == DIBS__TASK_CANCELLED ? &all->kept : NULL;
}

static task *first_of_key(const kind *k, const task *of) {
  task before = {.serial = of->serial};
  task *t = dibs__mem_order_next(k->keyed, &before, DIBS__MEM_BY_KEY);
  return t && dibs__str_equal(t->serial, of->serial) ? t : NULL;
}

static void enter_key(kind *k, task *t) {
  if (t->lane.v) {
    order_add(&k->held, t, DIBS__MEM_BY_SLOT);
    return;
  }
  task *first = first_of_key(k, t);
  order_add(&k->keyed, t, DIBS__MEM_BY_KEY);
  if (first && first->nr < t->nr) return;
  if (first && first->state == DIBS__TASK_READY) order_remove(&k->heads, first, DIBS__MEM_BY_SLOT);
  if (t->state == DIBS__TASK_READY) order_add(&k->heads, t, DIBS__MEM_BY_SLOT);
}

static void leave_key(kind *k, task *t) {
  if (t->lane.v) {
    order_remove(&k->held, t, DIBS__MEM_BY_SLOT);
    return;
  }
  bool was_first = first_of_key(k, t) == t;
  order_remove(&k->keyed, t, DIBS__MEM_BY_KEY);
  if (!was_first) return;
  task *first = first_of_key(k, t);
  if (t->state == DIBS__TASK_READY) order_remove(&k->heads, t, DIBS__MEM_BY_SLOT);
  if (first && first->state == DIBS__TASK_READY) order_add(&k->heads, first, DIBS__MEM_BY_SLOT);
}

static void leave_state(tasks *all, task *t) {
  task **root = root_of_turns(all, t);
  if (root) order_remove(root, t, DIBS__MEM_BY_TURN);
  if (by_lane(t) && !finished(t->state))
    leave_key(t->kind, t);
  else if (t->state == DIBS__TASK_READY)
    order_remove(&t->kind->phased, t, DIBS__MEM_BY_PHASE);
  if (t->state == DIBS__TASK_CLAIMED) order_remove(&t->kind->claims, t, DIBS__MEM_BY_CLAIM);
  t->kind->states[t->state]--;
}

static void enter_state(tasks *all, task *t, uint32_t state, int64_t due) {
  t->state = state;
  t->due = due;
  t->rank = state == DIBS__TASK_READY ? -t->priority : 0;
  if (state != DIBS__TASK_CLAIMED) t->lane.v = 0;
  task **root = root_of_turns(all, t);
  if (root) order_add(root, t, DIBS__MEM_BY_TURN);
  if (by_lane(t) && !finished(state))
    enter_key(t->kind, t);
  else if (state == DIBS__TASK_READY)
    order_add(&t->kind->phased, t, DIBS__MEM_BY_PHASE);
  if (state == DIBS__TASK_CLAIMED) order_add(&t->kind->claims, t, DIBS__MEM_BY_CLAIM);
  t->kind->states[state]++;
}

static void change_state(tasks *all, task *t, uint32_t state, int64_t due) {
  leave_state(all, t);
  enter_state(all, t, state, due);
}

void dibs__mem_task_ready(tasks *all, task *t, int64_t since) {
  change_state(all, t, DIBS__TASK_READY, since);
}

void dibs__mem_task_wait(tasks *all, task *t, uint32_t state, int64_t due) {
  change_state(all, t, state, due);
}

/* By its own time, as nothing blocks it. */
static void enter_free(tasks *all, task *t, int64_t now) {
  if (t->due > now)
    enter_state(all, t, DIBS__TASK_WAITING, t->due);
  else
    enter_state(all, t, DIBS__TASK_READY, now);
}

/* ---- Serial texts ---- */

static task *first_of_serial(const kind *k, dibs__str serial) {
  task before = {.serial = serial};
  task *t = dibs__mem_order_next(k->serials, &before, DIBS__MEM_BY_SERIAL);
  return t && dibs__str_equal(t->serial, serial) ? t : NULL;
}

static task *head_of_serial(const kind *k, dibs__str serial) {
  task *t = first_of_serial(k, serial);
  while (t && t->state == DIBS__TASK_BLOCKED) t = dibs__mem_order_next(k->serials, t, DIBS__MEM_BY_SERIAL);
  return t && dibs__str_equal(t->serial, serial) ? t : NULL;
}

static void enter_unfinished(task *t) {
  if (t->serial.len) order_add(&t->kind->serials, t, DIBS__MEM_BY_SERIAL);
  if (t->unique.len) order_add(&t->kind->uniques, t, DIBS__MEM_BY_UNIQUE);
}

/* The next one of its serial text goes if this was the head.  (In a kind that was by lane before, a parked one may be
 * the first.) */
static void leave_unfinished(tasks *all, task *t, int64_t now) {
  if (t->unique.len) order_remove(&t->kind->uniques, t, DIBS__MEM_BY_UNIQUE);
  if (!t->serial.len) return;
  order_remove(&t->kind->serials, t, DIBS__MEM_BY_SERIAL);
  task *next = t->state == DIBS__TASK_BLOCKED || by_lane(t) ? NULL : first_of_serial(t->kind, t->serial);
  if (!next || next->state != DIBS__TASK_BLOCKED) return;
  leave_state(all, next);
  enter_free(all, next, now);
}

/* ---- By lane or not ---- */

/* Without lanes: one of its serial text is claimed or parked, so that the others are blocked. */
static bool serial_is_held(const kind *k, const task *first) {
  const task *t = first;
  for (; t && dibs__str_equal(t->serial, first->serial); t = dibs__mem_order_next(k->serials, t, DIBS__MEM_BY_SERIAL))
    if (t->state == DIBS__TASK_PARKED || (t->state == DIBS__TASK_CLAIMED && t->lane.v == 0)) return true;
  return false;
}

/* A claim by lane ends. */
static void enter_serial(tasks *all, task *t, bool blocked, int64_t now) {
  uint32_t state = t->state;
  if (state == DIBS__TASK_CLAIMED && t->lane.v) {
    state = DIBS__TASK_READY;
    t->at = t->due = now;
  }
  bool holds = state == DIBS__TASK_CLAIMED || state == DIBS__TASK_PARKED;
  enter_state(all, t, blocked && !holds ? DIBS__TASK_BLOCKED : state, t->due);
}

/* Those of one text are one behind the other, by number. */
static void enter_serials(tasks *all, kind *k, int64_t now) {
  task *before = NULL, *t = dibs__mem_order_first(k->serials, DIBS__MEM_BY_SERIAL);
  while (t) {
    bool first = !before || !dibs__str_equal(before->serial, t->serial);
    enter_serial(all, t, !first || serial_is_held(k, t), now);
    before = t;
    t = dibs__mem_order_next(k->serials, t, DIBS__MEM_BY_SERIAL);
  }
}

void dibs__mem_kind_set_topic(tasks *all, kind *k, dibs__str topic, int64_t now) {
  task *first = dibs__mem_order_first(k->serials, DIBS__MEM_BY_SERIAL);
  for (task *t = first; t; t = dibs__mem_order_next(k->serials, t, DIBS__MEM_BY_SERIAL)) leave_state(all, t);
  k->topic_len = topic.len;
  if (topic.len) memcpy(k->topic, topic.p, topic.len);
  if (!topic.len) enter_serials(all, k, now);
  for (task *t = topic.len ? first : NULL; t; t = dibs__mem_order_next(k->serials, t, DIBS__MEM_BY_SERIAL)) {
    if (t->state == DIBS__TASK_BLOCKED)
      enter_free(all, t, now);
    else
      enter_state(all, t, t->state, t->due);
  }
}

/* ---- Transitions ---- */

void dibs__mem_task_add(tasks *all, kind *k, task *t, int64_t now) {
  t->kind = k;
  t->nr = ++all->last_nr;
  t->made = t->at = now;
  order_add(&all->all, t, DIBS__MEM_BY_NR);
  bool blocked = t->serial.len && !by_lane(t) && first_of_serial(k, t->serial);
  enter_unfinished(t);
  if (blocked)
    enter_state(all, t, DIBS__TASK_BLOCKED, t->due);
  else
    enter_free(all, t, now);
}

DIBS__MODULE_API void dibs__mem_task_load(tasks *all, kind *k, task *t) {
  uint32_t state = t->state;
  t->kind = k;
  order_add(&all->all, t, DIBS__MEM_BY_NR);
  if (!finished(state)) enter_unfinished(t);
  enter_state(all, t, state, t->due);
}

void dibs__mem_task_claim(tasks *all, task *t, const struct dibs__task_op *op, dibs__fence lane, int64_t now) {
  assert(t->state == DIBS__TASK_READY);
  leave_state(all, t);
  t->fence = dibs__task_next_fence(t->fence, now);
  t->lane = lane;
  t->attempts++;
  t->claim = dibs__id_digest(op->id);
  t->began = t->at = now;
  t->by_len = op->by.len;
  if (t->by_len) memcpy(t->by, op->by.p, t->by_len);
  enter_state(all, t, DIBS__TASK_CLAIMED, now + op->timeout_ms);
}

void dibs__mem_task_finish(tasks *all, task *t, uint32_t state, int64_t now) {
  assert(!finished(t->state) && finished(state));
  int64_t keep_ms = t->kind->keep_ms < 0 ? DIBS__TASK_KEEP_MS : t->kind->keep_ms;
  t->at = now;
  leave_unfinished(all, t, now);
  change_state(all, t, state, state == DIBS__TASK_DEAD ? 0 : now + keep_ms);
}

void dibs__mem_task_give_up(tasks *all, task *t, int64_t now) {
  if (t->serial.len)
    change_state(all, t, DIBS__TASK_PARKED, 0);
  else
    dibs__mem_task_finish(all, t, DIBS__TASK_DEAD, now);
}

void dibs__mem_task_fail_try(tasks *all, task *t, uint32_t tries, int64_t due, int64_t now) {
  t->fails++;
  if (t->fails >= tries)
    dibs__mem_task_give_up(all, t, now);
  else if (due > now)
    dibs__mem_task_wait(all, t, DIBS__TASK_WAITING, due);
  else
    dibs__mem_task_ready(all, t, due);
}

bool dibs__mem_task_end_late(tasks *all, task *t, int64_t since, int64_t now) {
  char text[64 + DIBS_OWNER_MAX];
  dibs__fence lane = t->lane;
  int len = snprintf(text, sizeof text, "the claim of %.*s ended without an answer", (int)t->by_len, t->by);
  if (!dibs__mem_task_failed(t, dibs__str_of(text, (size_t)len), now)) return false;
  t->at = now;
  dibs__mem_task_fail_try(all, t, t->tries, since, now);
  dibs__mem_task_end_later(all, t, lane, now);
  return true;
}

void dibs__mem_task_end_later(tasks *all, const task *t, dibs__fence lane, int64_t now) {
  if (lane.v == 0) return;
  for (task *next, *later = dibs__mem_order_next(t->kind->held, t, DIBS__MEM_BY_SLOT); later; later = next) {
    if (later->slot != t->slot) return;
    next = dibs__mem_order_next(t->kind->held, later, DIBS__MEM_BY_SLOT);
    if (!dibs__str_equal(later->serial, t->serial) || later->lane.v != lane.v) continue;
    later->at = now;
    dibs__mem_task_ready(all, later, now);
  }
}

bool dibs__mem_task_too_early(const task *t) {
  return t->lane.v && first_of_serial(t->kind, t->serial) != t;
}

void dibs__mem_task_retry(tasks *all, task *t, int64_t now) {
  t->fails = 0;
  t->at = now;
  if (t->state == DIBS__TASK_BLOCKED) { /* an earlier one was retried in the same operation */
    t->due = now;
    return;
  }
  if (!finished(t->state)) {
    dibs__mem_task_ready(all, t, now);
    return;
  }
  task *head = t->serial.len && !by_lane(t) ? head_of_serial(t->kind, t->serial) : NULL;
  bool later = head && head->nr > t->nr;
  bool waits = head && (!later || head->state == DIBS__TASK_CLAIMED || head->state == DIBS__TASK_PARKED);
  if (head && !waits) change_state(all, head, DIBS__TASK_BLOCKED, head->due);
  leave_state(all, t);
  enter_unfinished(t);
  enter_state(all, t, waits ? DIBS__TASK_BLOCKED : DIBS__TASK_READY, now);
}

void dibs__mem_task_purge(tasks *all, task *t, int64_t now) {
  kind *k = t->kind;
  if (!finished(t->state)) leave_unfinished(all, t, now);
  leave_state(all, t);
  order_remove(&all->all, t, DIBS__MEM_BY_NR);
  dibs__mem_task_free(t);
  dibs__mem_kind_drop_if_idle(all, k);
}

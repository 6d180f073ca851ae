/* SPDX-License-Identifier: MIT */
/* What people read and change of the tasks in memory: LIST, COUNT, CHANGE, and the rows that answers have. */
#include "drivers/memory/task_impl.h"

#include <stdlib.h>
#include <string.h>

typedef struct dibs__mem_task task;
typedef struct dibs__mem_kind kind;
typedef struct dibs__mem_tasks tasks;
typedef struct dibs__task_op task_op;

#define BIT(state) (1u << (state))

/* ---- Rows of an answer ---- */

static dibs__str append(char **at, const char *p, uint32_t len) {
  char *to = *at;
  if (len) memcpy(to, p, len);
  to[len] = '\0';
  *at = to + len + 1;
  return dibs__str_of(to, len);
}

void *dibs__mem_task_rows_alloc(task *const some[], size_t count, bool payloads) {
  size_t size = 0;
  for (size_t i = 0; i < count; i++) {
    const task *t = some[i];
    size += sizeof(struct dibs__task_row) + t->kind->len + t->phase_len + t->serial.len + t->unique.len;
    size += DIBS_OWNER_MAX + dibs__mem_task_text(t).len + 7; /* a NUL behind each */
    if (payloads) size += t->payload.len;
  }
  return malloc(size + 1);
}

static bool has_end(const task *t) {
  uint32_t states = BIT(DIBS__TASK_CLAIMED) | BIT(DIBS__TASK_WAITING) | DIBS__TASK_FINISHED;
  return (states & BIT(t->state)) != 0;
}

static void fill_row(struct dibs__task_row *row, const task *t, bool payloads, char **at) {
  dibs__str text = dibs__mem_task_text(t);
  *row = (struct dibs__task_row){.nr = t->nr,
                                 .fence = t->fence,
                                 .state = t->state,
                                 .attempts = t->attempts,
                                 .fails = t->fails,
                                 .tries = t->tries,
                                 .priority = t->priority,
                                 .made_ms = t->made,
                                 .due_ms = has_end(t) ? t->due : 0,
                                 .began_ms = t->began,
                                 .at_ms = t->at};
  row->kind = append(at, t->kind->text, t->kind->len);
  row->phase = append(at, t->phase, t->phase_len);
  row->serial = append(at, t->serial.p, t->serial.len);
  row->unique = append(at, t->unique.p, t->unique.len);
  row->payload = append(at, t->payload.p, payloads ? t->payload.len : 0);
  row->by = append(at, t->by, t->by_len);
  row->text = append(at, text.p, text.len);
  row->key = row->locked = dibs__str_of("", 0);
}

void dibs__mem_task_rows_fill(void *rows, task *const some[], size_t count, bool payloads) {
  struct dibs__task_row *row = rows;
  char *at = (char *)(row + count);
  for (size_t i = 0; i < count; i++) fill_row(&row[i], some[i], payloads, &at);
}

static struct dibs__task_row row_of_error(const task *t, const struct dibs__mem_failed *e, char **at) {
  dibs__str none = dibs__str_of("", 0);
  struct dibs__task_row row = {.nr = t->nr, .fence = e->fence, .at_ms = e->at};
  row.kind = row.phase = row.serial = row.unique = row.payload = row.key = row.locked = none;
  row.by = append(at, e->bytes, e->by_len);
  row.text = append(at, e->bytes + e->by_len, e->text_len);
  return row;
}

static void list_errors(const tasks *all, task_op *op) {
  const task *t = dibs__mem_task_find(all, op->filter.nr);
  if (!t || !t->errors) return;
  size_t size = 0;
  uint32_t count = 0;
  for (const struct dibs__mem_failed *e = t->errors; e && count < op->most; e = e->next, count++)
    size += sizeof(struct dibs__task_row) + e->by_len + e->text_len + 2;
  struct dibs__task_row *rows = malloc(size);
  if (!rows) {
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  char *at = (char *)(rows + count);
  const struct dibs__mem_failed *e = t->errors;
  for (uint32_t i = 0; i < count; i++, e = e->next) rows[i] = row_of_error(t, e, &at);
  op->got = rows;
  op->got_count = count;
}

/* ---- The filter ---- */

static bool text_fits(dibs__str wanted, const char *p, uint32_t len) {
  return wanted.len == 0 || dibs__str_equal(wanted, dibs__str_of(p, len));
}

static bool error_contains(const task *t, dibs__str part) {
  if (part.len == 0) return true;
  dibs__str text = dibs__mem_task_text(t);
  return t->state != DIBS__TASK_DONE && memmem(text.p, text.len, part.p, part.len);
}

/* (Of rows that another driver loaded, the latest change may be later than `now`, by another client's clock.) */
static bool matches(const task *t, const struct dibs__task_filter *f, int64_t now) {
  return (f->nr == 0 || t->nr == f->nr) && (f->states == 0 || (f->states & BIT(t->state))) &&
         text_fits(f->kind, t->kind->text, t->kind->len) && text_fits(f->phase, t->phase, t->phase_len) &&
         text_fits(f->serial, t->serial.p, t->serial.len) && (f->older_ms == 0 || now - t->at >= f->older_ms) &&
         error_contains(t, f->text);
}

/* Its unique text belongs to an unfinished task. */
static bool replaced(const task *t) {
  return (DIBS__TASK_FINISHED & BIT(t->state)) && t->unique.len && dibs__mem_task_of_unique(t->kind, t->unique);
}

/* Those that match, by number, and are in one of these states. */
static uint32_t find_matches(const tasks *all, const task_op *op, uint32_t states, int64_t now, task **some) {
  bool retries = op->op.verb == DIBS__TASK_CHANGE && op->change == DIBS__TASK_RETRY;
  task before = {.nr = op->filter.after};
  uint32_t count = 0;
  task *t = dibs__mem_order_next(all->all, &before, DIBS__MEM_BY_NR);
  for (; t && count < op->most; t = dibs__mem_order_next(all->all, t, DIBS__MEM_BY_NR))
    if ((states & BIT(t->state)) && matches(t, &op->filter, now) && !(retries && replaced(t))) some[count++] = t;
  return count;
}

void dibs__mem_task_list(const tasks *all, task_op *op, int64_t now) {
  task *some[DIBS__TASK_ITEMS];
  if (op->errors) {
    list_errors(all, op);
    return;
  }
  uint32_t count = find_matches(all, op, DIBS__TASK_UNFINISHED | DIBS__TASK_FINISHED, now, some);
  if (count == 0) return;
  op->got = dibs__mem_task_rows_alloc(some, count, op->payloads);
  if (!op->got) {
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  dibs__mem_task_rows_fill(op->got, some, count, op->payloads);
  op->got_count = count;
}

/* ---- CHANGE ---- */

static void change_one(tasks *all, const task_op *op, task *t, int64_t now) {
  if (op->change == DIBS__TASK_RETRY)
    dibs__mem_task_retry(all, t, now);
  else if (op->change == DIBS__TASK_PURGE)
    dibs__mem_task_purge(all, t, now);
  else
    dibs__mem_task_finish(all, t, DIBS__TASK_CANCELLED, now);
}

DIBS__MODULE_API uint32_t dibs__mem_task_changeable(enum dibs__task_change change) {
  static const uint32_t states[] = {[DIBS__TASK_RETRY] = BIT(DIBS__TASK_PARKED) | BIT(DIBS__TASK_WAITING) |
                                                         BIT(DIBS__TASK_DEAD) | BIT(DIBS__TASK_CANCELLED),
                                    [DIBS__TASK_CANCEL] = DIBS__TASK_UNFINISHED,
                                    [DIBS__TASK_PURGE] = DIBS__TASK_FINISHED | BIT(DIBS__TASK_PARKED)};
  return states[change];
}

static void change_all(tasks *all, task_op *op, task *const some[], uint32_t count, int64_t now) {
  for (uint32_t i = 0; i < count; i++) {
    if (op->change == DIBS__TASK_RETRY && replaced(some[i])) continue; /* by a task that this CHANGE retried */
    op->changed++;
    if (!op->dry) change_one(all, op, some[i], now);
  }
}

DIBS__MODULE_API void dibs__mem_task_change_some(tasks *all, task_op *op, const uint64_t nrs[], uint32_t count,
                                                 int64_t now) {
  task *some[DIBS__TASK_ITEMS];
  uint32_t matching = 0, states = dibs__mem_task_changeable(op->change);
  for (uint32_t i = 0; i < count && matching < DIBS__TASK_ITEMS; i++) {
    task *t = dibs__mem_task_find(all, nrs[i]);
    bool fits = t && (states & BIT(t->state)) && matches(t, &op->filter, now);
    if (fits && !(op->change == DIBS__TASK_RETRY && replaced(t))) some[matching++] = t;
  }
  change_all(all, op, some, matching, now);
}

void dibs__mem_task_change(tasks *all, task_op *op, int64_t now) {
  task *some[DIBS__TASK_ITEMS];
  uint32_t count = find_matches(all, op, dibs__mem_task_changeable(op->change), now, some);
  op->last = count ? some[count - 1]->nr : 0;
  op->more = count == op->most;
  change_all(all, op, some, count, now);
}

/* ---- COUNT ---- */

static int compare_kinds(const void *left, const void *right) {
  const kind *a = *(const kind *const *)left, *b = *(const kind *const *)right;
  dibs__str x = dibs__str_of(a->text, a->len), y = dibs__str_of(b->text, b->len);
  if (dibs__str_equal(x, y)) return 0;
  return dibs__str_before(x, y) ? -1 : 1;
}

static int64_t oldest_ms(const tasks *all, const kind *k, int64_t now) {
  int64_t since = now + 1;
  const task *t = dibs__mem_order_first(all->all, DIBS__MEM_BY_NR);
  for (; t; t = dibs__mem_order_next(all->all, t, DIBS__MEM_BY_NR))
    if (t->kind == k && (t->state == DIBS__TASK_READY || t->state == DIBS__TASK_WAITING) && t->due < since)
      since = t->due;
  return since > now ? -1 : now - since;
}

static uint32_t find_kinds(const tasks *all, const task_op *op, const kind **some) {
  uint32_t count = 0;
  for (const struct dibs__map_node *node = NULL; (node = dibs__mem_next(&all->kinds, node));) {
    const kind *k = (const kind *)node;
    if (text_fits(op->kind, k->text, k->len)) some[count++] = k;
  }
  if (count) qsort(some, count, sizeof *some, compare_kinds);
  return count < DIBS__TASK_ITEMS ? count : DIBS__TASK_ITEMS;
}

static void count_kinds(const tasks *all, task_op *op, const kind *const some[], uint32_t count, int64_t now) {
  size_t size = 1;
  for (uint32_t i = 0; i < count; i++) size += sizeof(struct dibs__task_kind) + some[i]->len + some[i]->topic_len + 2;
  struct dibs__task_kind *rows = malloc(size);
  if (!rows) {
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  char *at = (char *)(rows + count);
  for (uint32_t i = 0; i < count; i++) {
    const kind *k = some[i];
    rows[i] = (struct dibs__task_kind){
        .running = k->running, .paused = k->paused, .keep_ms = k->keep_ms, .oldest_ms = oldest_ms(all, k, now)};
    memcpy(rows[i].states, k->states, sizeof k->states);
    rows[i].kind = append(&at, k->text, k->len);
    rows[i].topic = append(&at, k->topic, k->topic_len);
  }
  op->got = rows;
  op->got_count = count;
}

void dibs__mem_task_count(const tasks *all, task_op *op, int64_t now) {
  const kind **some = malloc((all->kinds.count + 1) * sizeof(const kind *));
  if (!some) {
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  uint32_t count = find_kinds(all, op, some);
  if (count) count_kinds(all, op, some, count, now);
  free(some);
}

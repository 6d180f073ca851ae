/* SPDX-License-Identifier: MIT */
/*
 * A claimed task: how long its claim lasts, extending it, and ending it with a verdict.  The store decides by the fence
 * of the claim.  A verdict that is repeated after UNKNOWN finds its own effect, so it is repeated.
 */
#include "lease/lease.h"
#include "task/task_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  RELOCK_PART = 10,
  RELOCK_GROWS_MS = 120000, /* up to here the pause is a part of the time waited; then RELOCK_MOST_MS */
  RELOCK_MOST_MS = 30000,
  FAIL_FIRST_MS = 1000,
  FAIL_MOST_MS = 3600000,
  FAIL_DOUBLINGS = 12, /* 2^12 s is more than an hour */
  LARGE_REQUEST = 64   /* tasks; it gets a lane of its own */
};

/* ---- Pauses ---- */

int64_t dibs__task_relock_ms(int64_t waited_ms) {
  if (waited_ms <= 0) return 0;
  return waited_ms <= RELOCK_GROWS_MS ? waited_ms / RELOCK_PART : RELOCK_MOST_MS;
}

int64_t dibs__task_fail_most_ms(uint32_t fails) {
  if (fails >= FAIL_DOUBLINGS) return FAIL_MOST_MS;
  int64_t most = (int64_t)FAIL_FIRST_MS << fails;
  return most < FAIL_MOST_MS ? most : FAIL_MOST_MS;
}

/* Full jitter: tasks that failed together do not come back together. */
static int64_t fail_ms(uint32_t fails) {
  uint32_t drawn;
  dibs__random(&drawn, sizeof drawn);
  return (int64_t)drawn % (dibs__task_fail_most_ms(fails) + 1);
}

/* ---- The time of a claim ---- */

static dibs__tick until_of(const struct dibs__held *held) {
  return (dibs__tick){atomic_load(&held->until_ns)};
}

int64_t dibs_task_left_ms(const dibs_task *task) {
  const struct dibs__held *held = (const struct dibs__held *)task;
  if (!task || held->ended || held->over) return 0;
  int64_t left_ms = dibs__tick_left_ms(dibs__tick_now(), until_of(held));
  int64_t lane_ms = held->lease ? dibs_lease_left_ms(held->lease) : left_ms;
  return lane_ms < left_ms ? lane_ms : left_ms;
}

/* How long it has existed, by now. */
static int64_t age_of(const struct dibs__held *held) {
  return held->task.age_ms + dibs__tick_left_ms(held->began, dibs__tick_now());
}

/* ---- Extending ---- */

static void take_extension(struct dibs__held *held, const struct dibs__task_item *item, dibs__tick sent,
                           int64_t timeout_ms) {
  bool own = held->batch->table != NULL;
  if (item->status == DIBS_OK)
    held->until_ns = own ? dibs__own_until(sent, held->timeout_ms, item->due_ms - timeout_ms).ns
                         : dibs__sure_until(sent, timeout_ms).ns;
  if (item->status == DIBS_OK && own) dibs__own_keep(held, item->locked_now, strlen(item->locked_now));
  if (item->status != DIBS_STALE && item->status != DIBS_NOT_FOUND) return;
  held->until_ns = 0;
  /* Of two calls at the same time the earlier answer may be taken last.  In a table of the user's there is one at a
   * time. */
  if (!own) held->over = true;
}

static size_t item_bytes(const dibs_task *task) {
  return sizeof(struct dibs__task_item) + dibs__length(task->kind) + dibs__own_bytes(task) + 4;
}

void dibs__task_lane(struct dibs__request *request, size_t count) {
  if (count >= LARGE_REQUEST) request->op.lane = (uint32_t)((uintptr_t)request >> 4) | 1;
}

static struct dibs__request *items_request(dibs_store *store, dibs_task *first, size_t size, size_t count) {
  const struct dibs__table *table = dibs__held_of(first)->batch->table;
  struct dibs__request *request = dibs__request_make(store, DIBS__FAM_TASK, table, size);
  if (!request) return NULL;
  request->task.table = table;
  request->task.items = dibs__request_array(request, count * sizeof *request->task.items);
  request->task.count = (uint32_t)count;
  dibs__task_lane(request, count);
  request->task.kind = dibs__request_keep(request, first->kind, strlen(first->kind));
  return request;
}

static dibs_status send_extension(dibs_store *store, dibs_task *const *tasks, size_t count, int64_t timeout_ms,
                                  const char *phase, dibs_status *statuses, dibs__tick by, char why[DIBS__TASK_WHY]) {
  size_t size = dibs__length(phase) + 1;
  for (size_t i = 0; i < count; i++) size += item_bytes(tasks[i]);
  struct dibs__request *request = items_request(store, tasks[0], size, count);
  if (!request) return DIBS_NO_MEMORY;
  dibs__str to = dibs__request_keep(request, phase, dibs__length(phase));
  for (size_t i = 0; i < count; i++) {
    struct dibs__task_item *item = &request->task.items[i];
    *item = (struct dibs__task_item){.nr = tasks[i]->nr, .fence = {tasks[i]->fence.value}, .phase = to};
    dibs__own_fill(request, item, tasks[i]);
  }
  request->task.timeout_ms = timeout_ms;
  dibs__tick sent = dibs__tick_now();
  dibs_status status = dibs__request_carry(request, DIBS__TASK_EXTEND, by);
  dibs__task_keep_why(request, why);
  for (size_t i = 0; i < count && status == DIBS_OK; i++) {
    statuses[i] = (dibs_status)request->task.items[i].status;
    take_extension(dibs__held_of(tasks[i]), &request->task.items[i], sent, timeout_ms);
  }
  dibs__request_drop(request);
  return status;
}

static dibs_task *nth_task(const void *of, size_t i) {
  return ((dibs_task *const *)of)[i];
}

dibs_status dibs__extend_once(dibs_store *store, dibs_task *const *tasks, size_t count, int64_t timeout_ms,
                              const char *phase, dibs_status *statuses, dibs__tick by, char why[DIBS__TASK_WHY]) {
  why[0] = '\0';
  if (!dibs__own_enter(nth_task, tasks, count, by)) return DIBS_UNAVAILABLE;
  dibs_status status = send_extension(store, tasks, count, timeout_ms, phase, statuses, by, why);
  dibs__own_leave(nth_task, tasks, count);
  return status;
}

struct extending {
  dibs_store *store;
  dibs_task *const *tasks;
  size_t count;
  int64_t timeout_ms;
  const char *phase;
  dibs_status *statuses;
  dibs__tick by;
  char why[DIBS__TASK_WHY];
};

static dibs_status extend_once(void *arg) {
  struct extending *e = arg;
  return dibs__extend_once(e->store, e->tasks, e->count, e->timeout_ms, e->phase, e->statuses, e->by, e->why);
}

dibs_status dibs__task_explain(dibs_store *store, const struct dibs__table *table, dibs_status status,
                               const char *doing, const char *kind, const char *why, dibs_error *error) {
  if (status == DIBS_UNSUPPORTED && table && !*why) why = "it has no tables of yours; use a store that has them";
  if ((status == DIBS_UNSUPPORTED || status == DIBS_INVALID) && table && *why)
    return dibs__fail(error, status, "%s \"%.80s\": the table \"%.80s\" in %s: %s", doing, kind, table->table,
                      store->shown, why);
  bool said = status == DIBS_UNAVAILABLE || status == DIBS_INVALID || status == DIBS_UNSUPPORTED;
  if (said && *why)
    return dibs__fail(error, status, "%s \"%.80s\" at %s: nothing was changed: %s", doing, kind, store->shown, why);
  return dibs__explain(store, status, doing, kind, error);
}

/* "task 7 of kind "mail"" */
static void name_task(const dibs_task *task, char *to, size_t size) {
  const struct dibs__table *table = ((const struct dibs__held *)task)->batch->table;
  if (table)
    snprintf(to, size, "the row \"%.80s\" of \"%.80s\"", task->key, table->table);
  else
    snprintf(to, size, "task %" PRIu64 " of kind \"%s\"", task->nr, task->kind);
}

/* The answer for one task. */
static dibs_status explain_task(const dibs_task *task, dibs_status status, const char *doing, const char *why,
                                dibs_error *error) {
  const struct dibs__task_batch *batch = ((const struct dibs__held *)task)->batch;
  char name[DIBS_NAME_MAX + 60], nr[32];
  name_task(task, name, sizeof name);
  snprintf(nr, sizeof nr, "%" PRIu64, task->nr);
  switch (status) {
  case DIBS_OK:
    return dibs__fine(error);
  case DIBS_STALE:
    return dibs__fail(error, status,
                      "%s %s: its claim with fence %" PRIu64
                      " is over, and the task was claimed again or changed by hand; nothing was changed",
                      doing, name, task->fence.value);
  case DIBS_NOT_FOUND:
    return dibs__fail(error, status, "%s %s: there is no such task any more", doing, name);
  case DIBS_UNAVAILABLE:
    return dibs__fail(error, status, "%s %s: nothing was changed: %s; repeat the call", doing, name,
                      *why ? why : "the store can't do it now");
  case DIBS_UNKNOWN:
    return dibs__fail(
        error, status,
        "%s %s: the first answer was lost, and now there is no such task, or it was claimed again: this call"
        " ended the claim, or changed nothing",
        doing, name);
  case DIBS_INVALID:
    return dibs__fail(error, status, "%s %s: %s", doing, name, *why ? why : "the store refused the text");
  default:
    return dibs__explain(batch->store, status, doing, batch->table ? task->key : nr, error);
  }
}

/* A request that has no answers for its tasks. */
static dibs_status explain_request(const dibs_task *first, dibs_status status, const char *doing, const char *why,
                                   dibs_error *error) {
  const struct dibs__task_batch *batch = ((const struct dibs__held *)first)->batch;
  bool failed = status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN;
  if (!failed) return explain_task(first, status, doing, why, error);
  return dibs__task_explain(batch->store, batch->table, status, doing, first->kind, why, error);
}

/* The end of a claim is as far as a repetition makes sense, and some seconds are as long as a call may take. */
static dibs__tick repeat_by(void) {
  return dibs__tick_add_ms(dibs__tick_now(), DIBS__TASK_WAIT_MS);
}

static dibs_status check_timeout(int64_t timeout_ms, dibs_error *error) {
  if (timeout_ms == 0 || (timeout_ms >= DIBS_TTL_MIN_MS && timeout_ms <= DIBS_TTL_MAX_MS)) return DIBS_OK;
  return dibs__fail(error, DIBS_INVALID, "timeout_ms is %" PRId64 ": give 0, or 100 ms to a day", timeout_ms);
}

/* The row does not say for how long it is claimed: every client that shares the table claims it after the same time. */
static dibs_status check_own_timeout(dibs_task *task, int64_t timeout_ms, dibs_error *error) {
  const struct dibs__held *held = dibs__held_of(task);
  if (!held->batch->table || timeout_ms == 0 || timeout_ms == held->timeout_ms) return DIBS_OK;
  return dibs__fail(error, DIBS_INVALID,
                    "timeout_ms is %" PRId64 ": in a table of yours a claim always lasts as long as it was claimed for;"
                    " give 0",
                    timeout_ms);
}

static dibs_status check_tasks(dibs_task *const *tasks, size_t count, const char *call, dibs_error *error) {
  if (!tasks || count == 0 || count > DIBS_TASKS_MAX)
    return dibs__fail(error, DIBS_INVALID, "%s: give 1 to %d tasks", call, DIBS_TASKS_MAX);
  for (size_t i = 0; i < count; i++) {
    if (!tasks[i]) return dibs__fail(error, DIBS_INVALID, "%s: a task is NULL", call);
    if (dibs__held_of(tasks[i])->batch->store != dibs__held_of(tasks[0])->batch->store)
      return dibs__fail(error, DIBS_INVALID, "%s: the tasks are of different stores", call);
    if (dibs__held_of(tasks[i])->batch->table != dibs__held_of(tasks[0])->batch->table)
      return dibs__fail(error, DIBS_INVALID, "%s: the tasks are of different tables", call);
    if (dibs__held_of(tasks[i])->ended)
      return dibs__fail(error, DIBS_INVALID, "%s: the claim of task %" PRIu64 " was ended before", call, tasks[i]->nr);
  }
  return DIBS_OK;
}

static int by_address(const void *x, const void *y) {
  uintptr_t a = (uintptr_t) * (dibs_task *const *)x, b = (uintptr_t) * (dibs_task *const *)y;
  return (a > b) - (a < b);
}

static dibs_status check_twice(dibs__own_nth *nth, const void *of, size_t count, const char *call, dibs_error *error) {
  dibs_task *tasks[DIBS_TASKS_MAX];
  char name[DIBS_NAME_MAX + 60];
  for (size_t i = 0; i < count; i++) tasks[i] = nth(of, i);
  /* cppcheck-suppress uninitvar ; the loop sets the `count` pointers that are sorted */
  qsort(tasks, count, sizeof tasks[0], by_address);
  for (size_t i = 1; i < count; i++) {
    if (tasks[i] != tasks[i - 1]) continue;
    name_task(tasks[i], name, sizeof name);
    return dibs__fail(error, DIBS_INVALID, "%s: %s is given twice", call, name);
  }
  return DIBS_OK;
}

/* `own_why` may be NULL. */
static dibs_status extend(dibs_task *const *tasks, size_t count, int64_t timeout_ms, const char *phase,
                          dibs_status *statuses, const char *call, char *own_why, dibs_error *error) {
  dibs_status status = check_tasks(tasks, count, call, error);
  if (status == DIBS_OK) status = check_timeout(timeout_ms, error);
  if (status == DIBS_OK) status = check_twice(nth_task, tasks, count, call, error);
  for (size_t i = 0; i < count && status == DIBS_OK; i++) status = check_own_timeout(tasks[i], timeout_ms, error);
  if (status != DIBS_OK) return status;
  struct dibs__held *first = dibs__held_of(tasks[0]);
  struct extending e = {.store = first->batch->store,
                        .tasks = tasks,
                        .count = count,
                        .timeout_ms = timeout_ms ? timeout_ms : first->timeout_ms,
                        .phase = phase,
                        .statuses = statuses,
                        .by = repeat_by()};
  status = dibs__enter(e.store, call, error);
  if (status != DIBS_OK) return status;
  status = dibs__task_repeat(e.store, e.by, DIBS__AFTER_UNKNOWN, extend_once, &e);
  if (status != DIBS_OK) (void)explain_request(tasks[0], status, "extending claims of tasks of kind", e.why, error);
  if (own_why) memcpy(own_why, e.why, sizeof e.why);
  dibs__exit(e.store);
  return status;
}

dibs_status dibs_tasks_extend(dibs_task *const *tasks, size_t count, int64_t timeout_ms, dibs_status *statuses,
                              dibs_error *error) {
  dibs_status own[DIBS_TASKS_MAX];
  dibs_status status =
      extend(tasks, count, timeout_ms, NULL, statuses ? statuses : own, "dibs_tasks_extend", NULL, error);
  return status == DIBS_OK ? dibs__fine(error) : status;
}

dibs_status dibs_task_extend(dibs_task *task, int64_t timeout_ms, dibs_error *error) {
  dibs_status one = DIBS_OK;
  char why[DIBS__TASK_WHY] = "";
  dibs_status status = extend(&task, 1, timeout_ms, NULL, &one, "dibs_task_extend", why, error);
  return status == DIBS_OK ? explain_task(task, one, "extending the claim of", why, error) : status;
}

dibs_status dibs_task_step(dibs_task *task, const char *phase, dibs_error *error) {
  dibs_status one = DIBS_OK;
  char why[DIBS__TASK_WHY] = "";
  dibs_status status = dibs__check_text(phase, DIBS_NAME_MAX, "the phase", error);
  if (status == DIBS_OK) status = extend(&task, 1, 0, phase, &one, "dibs_task_step", why, error);
  if (status != DIBS_OK) return status;
  if (one == DIBS_OK) memcpy(dibs__held_of(task)->phase, phase, strlen(phase) + 1);
  return explain_task(task, one, "changing the phase of", why, error);
}

/* ---- Ending ---- */

/* Of a long text the end is kept, from the beginning of a character on. */
static const char *end_of(const char *text) {
  size_t length = dibs__length(text);
  if (length <= DIBS_TASK_TEXT_MAX) return text;
  text += length - DIBS_TASK_TEXT_MAX;
  while (((unsigned char)*text & 0xc0) == 0x80) text++;
  return text;
}

int64_t dibs__task_pause_ms(const dibs_task_end *end) {
  const struct dibs__held *held = (const struct dibs__held *)end->task;
  if (end->verdict != DIBS_END_WAIT && end->verdict != DIBS_END_FAIL) return 0;
  if (end->delay_ms >= 0) return end->delay_ms;
  if (end->verdict == DIBS_END_WAIT) return dibs__task_relock_ms(age_of(held));
  if (held->batch->table)
    return dibs__task_relock_ms(age_of(held)) + fail_ms(0) + (end->least_ms > 0 ? end->least_ms : 0);
  return fail_ms(end->task->fails) + (end->least_ms > 0 ? end->least_ms : 0);
}

static void fill_end(struct dibs__request *request, struct dibs__task_item *item, const dibs_task_end *end) {
  static const uint32_t verdicts[] = {[DIBS_END_DONE] = DIBS__TASK_END_DONE, [DIBS_END_NEXT] = DIBS__TASK_END_NEXT,
                                      [DIBS_END_WAIT] = DIBS__TASK_END_WAIT, [DIBS_END_FAIL] = DIBS__TASK_END_FAIL,
                                      [DIBS_END_DEAD] = DIBS__TASK_END_DEAD, [DIBS_END_RELEASE] = DIBS__TASK_END_GIVE};
  const char *phase = end->verdict == DIBS_END_NEXT ? end->phase : NULL, *text = end_of(end->text);
  *item = (struct dibs__task_item){.nr = end->task->nr,
                                   .fence = {end->task->fence.value},
                                   .verdict = verdicts[end->verdict],
                                   .tries = end->verdict == DIBS_END_FAIL ? end->tries : 0,
                                   .delay_ms = dibs__task_pause_ms(end)};
  dibs__own_fill(request, item, end->task);
  item->phase = dibs__request_keep(request, phase, dibs__length(phase));
  item->text = dibs__request_keep(request, text, dibs__length(text));
}

/* After a lost answer: where finished tasks are not kept, this end may be the reason that there is no such task; and
 * STALE may be the answer of a store that has forgotten this end, because the task was claimed and ended again since.
 */
static void take_end(dibs_task_end *end, const struct dibs__task_item *item, bool inside) {
  struct dibs__held *held = dibs__held_of(end->task);
  dibs_status status = (dibs_status)item->status;
  held->repeated = item->repeated && !held->unsure;
  bool forgotten = status == DIBS_NOT_FOUND || (status == DIBS_STALE && !held->batch->table);
  if (forgotten && held->unsure) status = DIBS_UNKNOWN;
  end->status = status;
  /* The user's transaction may still be rolled back; UNAVAILABLE: another session holds the row. */
  if (inside || status == DIBS_INVALID || status == DIBS_UNSUPPORTED || status == DIBS_UNAVAILABLE) return;
  held->verdict = end->verdict;
  held->answer = status;
  held->ended = true;
}

/* A row is free after a delay when its locked_at is older than the timeout of its claim: where these differ, the
 * largest one goes with the request, and the delays make up for it. */
static void level_delays(struct dibs__task_op *op, const dibs_task_end *ends) {
  for (uint32_t i = 0; i < op->count; i++) {
    int64_t ms = dibs__held_of(ends[i].task)->timeout_ms;
    if (ms > op->timeout_ms) op->timeout_ms = ms;
  }
  for (uint32_t i = 0; i < op->count; i++)
    op->items[i].delay_ms += op->timeout_ms - dibs__held_of(ends[i].task)->timeout_ms;
}

static dibs_status send_ends(dibs_store *inside, dibs_task_end *ends, size_t count, dibs__tick by,
                             char why[DIBS__TASK_WHY]) {
  size_t size = 0;
  for (size_t i = 0; i < count; i++)
    size += item_bytes(ends[i].task) + dibs__length(ends[i].phase) + dibs__length(end_of(ends[i].text));
  struct dibs__request *request = items_request(inside, ends[0].task, size, count);
  if (!request) return DIBS_NO_MEMORY;
  for (size_t i = 0; i < count; i++) fill_end(request, &request->task.items[i], &ends[i]);
  if (request->task.table) level_delays(&request->task, ends);
  dibs_status status = dibs__request_carry(request, DIBS__TASK_END, by);
  dibs__task_keep_why(request, why);
  for (size_t i = 0; i < count && status == DIBS_OK; i++)
    take_end(&ends[i], &request->task.items[i], inside->outer != NULL);
  for (size_t i = 0; i < count && status == DIBS_UNKNOWN; i++) dibs__held_of(ends[i].task)->unsure = true;
  dibs__request_drop(request);
  return status;
}

static dibs_task *nth_end(const void *of, size_t i) {
  return ((const dibs_task_end *)of)[i].task;
}

bool dibs__task_end_repeated(const dibs_task *task) {
  return ((const struct dibs__held *)task)->repeated;
}

dibs_status dibs__end_once(dibs_store *inside, dibs_task_end *ends, size_t count, dibs__tick by,
                           char why[DIBS__TASK_WHY]) {
  why[0] = '\0';
  if (!dibs__own_enter(nth_end, ends, count, by)) return DIBS_UNAVAILABLE;
  dibs_status status = send_ends(inside, ends, count, by, why);
  dibs__own_leave(nth_end, ends, count);
  return status;
}

struct ending {
  dibs_store *inside;
  dibs_task_end *ends;
  size_t count;
  dibs__tick by;
  char why[DIBS__TASK_WHY];
};

static dibs_status end_once(void *arg) {
  struct ending *e = arg;
  return dibs__end_once(e->inside, e->ends, e->count, e->by, e->why);
}

static dibs_status check_end(const dibs_task_end *end, const dibs_task *first, dibs_error *error) {
  if (end->size != sizeof *end)
    return dibs__fail(error, DIBS_INVALID, "the size of a dibs_task_end is %zu: set it to sizeof(dibs_task_end)",
                      end->size);
  dibs_task *two[] = {(dibs_task *)(uintptr_t)first, end->task};
  if (check_tasks(two, 2, "dibs_task_end_many", error) != DIBS_OK) return DIBS_INVALID;
  if ((int)end->verdict < DIBS_END_DONE || end->verdict > DIBS_END_RELEASE)
    return dibs__fail(error, DIBS_INVALID, "there is no verdict %d", (int)end->verdict);
  return dibs__task_check_text(end->phase, "the phase", error);
}

/* `own_why` may be NULL. */
static dibs_status end_tasks(dibs_store *inside, dibs_task_end *ends, size_t count, const char *call, char *own_why,
                             dibs_error *error) {
  dibs_store *store = dibs__held_of(ends[0].task)->batch->store;
  struct ending e = {.inside = inside ? inside : store, .ends = ends, .count = count, .by = repeat_by()};
  if (inside && inside->outer != store)
    return dibs__fail(error, DIBS_INVALID, "%s: the transaction belongs to another store than the tasks", call);
  dibs_status status = dibs__enter(e.inside, call, error);
  if (status != DIBS_OK) return status;
  for (size_t i = 0; i < count; i++) ends[i].status = DIBS_UNKNOWN;
  status = dibs__task_repeat(e.inside, e.by, DIBS__AFTER_UNKNOWN, end_once, &e);
  if (status != DIBS_OK) (void)explain_request(ends[0].task, status, "ending tasks of kind", e.why, error);
  if (own_why) memcpy(own_why, e.why, sizeof e.why);
  dibs__exit(e.inside);
  return status;
}

dibs_status dibs_task_end_many(dibs_store *inside, dibs_task_end *ends, size_t count, dibs_error *error) {
  if (!ends || count == 0 || count > DIBS_TASKS_MAX)
    return dibs__fail(error, DIBS_INVALID, "dibs_task_end_many: give 1 to %d ends", DIBS_TASKS_MAX);
  for (size_t i = 0; i < count; i++)
    if (check_end(&ends[i], ends[0].task, error) != DIBS_OK) return DIBS_INVALID;
  if (check_twice(nth_end, ends, count, "dibs_task_end_many", error) != DIBS_OK) return DIBS_INVALID;
  dibs_status status = end_tasks(inside, ends, count, "dibs_task_end_many", NULL, error);
  return status == DIBS_OK ? dibs__fine(error) : status;
}

static dibs_status end_one(dibs_task *task, dibs_task_end end, const char *call, dibs_error *error) {
  end.size = sizeof end;
  end.task = task;
  char why[DIBS__TASK_WHY] = "";
  if (check_tasks(&task, 1, call, error) != DIBS_OK) return DIBS_INVALID;
  const struct dibs__table *table = dibs__held_of(task)->batch->table;
  if (table && (end.verdict == DIBS_END_DONE || end.verdict == DIBS_END_DEAD))
    return dibs__fail(error, DIBS_UNSUPPORTED,
                      "%s: the row \"%.80s\" of \"%.80s\" is yours: call dibs_task_unlock with the phase that ends it",
                      call, task->key, table->table);
  dibs_status status = end_tasks(NULL, &end, 1, call, why, error);
  return status == DIBS_OK ? explain_task(task, end.status, "ending", why, error) : status;
}

dibs_status dibs_task_done(dibs_task *task, const char *result, dibs_error *error) {
  return end_one(task, (dibs_task_end){.verdict = DIBS_END_DONE, .text = result}, "dibs_task_done", error);
}

dibs_status dibs_task_unlock(dibs_task *task, const char *phase, dibs_error *error) {
  if (dibs__task_check_text(phase, "the phase", error) != DIBS_OK) return DIBS_INVALID;
  return end_one(task, (dibs_task_end){.verdict = DIBS_END_NEXT, .phase = phase}, "dibs_task_unlock", error);
}

dibs_status dibs_task_relock(dibs_task *task, int64_t waited_ms, dibs_error *error) {
  int64_t delay = waited_ms < 0 ? -1 : dibs__task_relock_ms(waited_ms);
  return end_one(task, (dibs_task_end){.verdict = DIBS_END_WAIT, .delay_ms = delay}, "dibs_task_relock", error);
}

dibs_status dibs_task_fail(dibs_task *task, const char *text, dibs_error *error) {
  return end_one(task, (dibs_task_end){.verdict = DIBS_END_FAIL, .text = text, .delay_ms = -1}, "dibs_task_fail",
                 error);
}

dibs_status dibs_task_dead(dibs_task *task, const char *text, dibs_error *error) {
  return end_one(task, (dibs_task_end){.verdict = DIBS_END_DEAD, .text = text}, "dibs_task_dead", error);
}

dibs_status dibs_task_release(dibs_task *task, dibs_error *error) {
  return end_one(task, (dibs_task_end){.verdict = DIBS_END_RELEASE}, "dibs_task_release", error);
}

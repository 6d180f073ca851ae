/* SPDX-License-Identifier: MIT */
/*
 * Adding tasks.  Outside of a transaction of the user's each call draws a token, so that a request that is repeated
 * after UNKNOWN adds nothing a second time.  Inside there is none: the transaction itself says what was added.
 */
#include "base/sha256.h"
#include "base/text.h"
#include "task/task_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { TOKEN_BYTES = 16, PAYLOADS_MAX = 16 * 1024 * 1024 };

struct adding {
  dibs_store *store;
  const char *kind;
  dibs_task_new *tasks;
  size_t count;
  dibs_error flaw; /* of the first task that is not fit */
  char token[DIBS__TASK_TOKEN_MAX + 1];
  size_t token_length; /* 0: to be drawn */
  int64_t token_ms;
  dibs__tick by;
  bool unsure;   /* an attempt of this call may have added them */
  bool repeated; /* an earlier call did */
  char why[DIBS__TASK_WHY];
};

dibs_status dibs__task_served(dibs_store *store, const struct dibs__table *table, dibs_error *error) {
  bool tables = dibs__core_caps(store->core) & DIBS__CAP_TASK_TABLES;
  if (dibs__core_families(store->core) & (1u << DIBS__FAM_TASK) || (table && tables)) return DIBS_OK;
  if (tables)
    return dibs__fail(error, DIBS_UNSUPPORTED,
                      "%s keeps no tasks of dibs' own, only those in a collection of yours: declare it as a table, or"
                      " use another store (dibs doctor lists what each keeps)",
                      store->shown);
  return dibs__fail(error, DIBS_UNSUPPORTED, "%s keeps no tasks: %s", store->shown, dibs__database_advice(store));
}

dibs_status dibs__task_check_text(const char *text, const char *what, dibs_error *error) {
  return text ? dibs__check_text(text, DIBS_NAME_MAX, what, error) : DIBS_OK;
}

dibs_status dibs__task_repeat(dibs_store *store, dibs__tick by, enum dibs__repeats repeats,
                              dibs_status (*once)(void *arg), void *arg) {
  bool unsure = false;
  for (uint32_t tries = 1;; tries++) {
    dibs_status status = once(arg);
    if (status != DIBS_UNKNOWN && status != DIBS_UNAVAILABLE) return status;
    unsure = unsure || status == DIBS_UNKNOWN;
    bool over = store->outer || store->closing || !dibs__tick_before(dibs__tick_now(), by);
    over = over || (unsure && repeats == DIBS__UNLESS_UNKNOWN);
    if (over) return unsure ? DIBS_UNKNOWN : DIBS_UNAVAILABLE;
    dibs__request_pause(tries, by);
  }
}

/* ---- Checks ---- */

static dibs_status check_task(const dibs_task_new *t, dibs_error *error) {
  dibs_status status = dibs__task_check_text(t->phase, "the phase of the task", error);
  if (status == DIBS_OK) status = dibs__task_check_text(t->serial, "the key (serial) of the task", error);
  if (status == DIBS_OK) status = dibs__task_check_text(t->unique, "the unique text of the task", error);
  if (status != DIBS_OK) return status;
  if (t->length > DIBS_RECORD_MAX)
    return dibs__fail(error, DIBS_INVALID, "the payload has %zu bytes; give at most %d", t->length, DIBS_RECORD_MAX);
  if (t->length > 0 && !t->payload)
    return dibs__fail(error, DIBS_INVALID, "the payload is NULL, and its length is not 0");
  if (t->at_ms < 0 || t->delay_ms < 0)
    return dibs__fail(error, DIBS_INVALID, "at_ms and delay_ms of a task can't be negative");
  if (t->priority < -DIBS_TASK_PRIORITY || t->priority > DIBS_TASK_PRIORITY)
    return dibs__fail(error, DIBS_INVALID, "the priority is %" PRId32 "; give one from -%d to %d", t->priority,
                      DIBS_TASK_PRIORITY, DIBS_TASK_PRIORITY);
  return DIBS_OK;
}

/* ---- The request ---- */

static size_t memory_of(const struct adding *a) {
  size_t size = strlen(a->kind) + sizeof a->token + a->count * sizeof(struct dibs__task_new);
  for (size_t i = 0; i < a->count; i++) {
    const dibs_task_new *t = &a->tasks[i];
    size += t->length + dibs__length(t->phase) + dibs__length(t->serial) + dibs__length(t->unique) + 4;
  }
  return size;
}

static void fill(struct dibs__request *request, struct dibs__task_new *to, const dibs_task_new *t) {
  *to = (struct dibs__task_new){.at_ms = t->at_ms, .delay_ms = t->delay_ms, .priority = t->priority, .tries = t->tries};
  to->phase = dibs__request_keep(request, t->phase, dibs__length(t->phase));
  to->serial = dibs__request_keep(request, t->serial, dibs__length(t->serial));
  to->unique = dibs__request_keep(request, t->unique, dibs__length(t->unique));
  to->payload = dibs__request_keep(request, t->payload, t->length);
}

/* Those that were INVALID here are not sent. */
static dibs_status add_once(void *arg) {
  struct adding *a = arg;
  struct dibs__request *request = dibs__request_make(a->store, DIBS__FAM_TASK, NULL, memory_of(a));
  if (!request) return DIBS_NO_MEMORY;
  struct dibs__task_op *op = &request->task;
  op->news = dibs__request_array(request, a->count * sizeof *op->news);
  op->kind = dibs__request_keep(request, a->kind, strlen(a->kind));
  if (!a->store->outer) op->token = dibs__request_keep(request, a->token, a->token_length);
  op->token_ms = a->token_ms;
  for (size_t i = 0; i < a->count; i++)
    if (a->tasks[i].status != DIBS_INVALID) fill(request, &op->news[op->count++], &a->tasks[i]);
  dibs_status status = dibs__request_carry(request, DIBS__TASK_ADD, a->by);
  dibs__task_keep_why(request, a->why);
  uint32_t at = 0;
  for (size_t i = 0; i < a->count && status == DIBS_OK; i++) {
    if (a->tasks[i].status == DIBS_INVALID) continue;
    a->repeated = op->news[at].repeated && !a->unsure;
    a->tasks[i].status = (dibs_status)op->news[at].status;
    a->tasks[i].nr = op->news[at++].nr;
  }
  a->unsure = a->unsure || status == DIBS_UNKNOWN;
  dibs__request_drop(request);
  return status;
}

static void draw_token(struct adding *a) {
  dibs__random((uint8_t *)a->token, TOKEN_BYTES);
  a->token_length = TOKEN_BYTES;
  a->token_ms = DIBS__TASK_TOKEN_MS;
}

/* Each task that is fit; the others have INVALID. */
static dibs_status add_tasks(struct adding *a, int64_t wait_ms, dibs_error *error) {
  size_t bytes = 0, fit = 0;
  dibs_status status = dibs__task_served(a->store, NULL, error);
  if (status == DIBS_OK) status = dibs__check_text(a->kind, DIBS_NAME_MAX, "the kind of the task", error);
  if (status != DIBS_OK) return status;
  for (size_t i = 0; i < a->count; i++) {
    dibs_task_new *t = &a->tasks[i];
    t->nr = 0;
    t->status = check_task(t, fit == i ? &a->flaw : NULL); /* all before it are fit */
    fit += t->status == DIBS_OK;
    if (t->status == DIBS_OK) bytes += t->length;
  }
  if (bytes > PAYLOADS_MAX)
    return dibs__fail(error, DIBS_INVALID, "the payloads have %zu bytes together; give at most %d in one call", bytes,
                      PAYLOADS_MAX);
  if (fit > 0) {
    int64_t most = wait_ms ? wait_ms : DIBS__TASK_WAIT_MS;
    a->by = most == DIBS_FOREVER ? DIBS__TICK_NEVER : dibs__tick_add_ms(dibs__tick_now(), most);
    if (!a->token_length) draw_token(a);
    status = dibs__task_repeat(a->store, a->by, DIBS__AFTER_UNKNOWN, add_once, a);
    if (status != DIBS_OK)
      return dibs__task_explain(a->store, NULL, status, "adding tasks of kind", a->kind, a->why, error);
    if (!a->store->outer) dibs__rouse_listeners(a->store, a->kind);
  }
  return dibs__fine(error);
}

static dibs_status add_to(struct adding *a, const char *call, int64_t wait_ms, dibs_error *error) {
  if (wait_ms < DIBS_FOREVER)
    return dibs__fail(error, DIBS_INVALID, "wait_ms is %lld: give 0, a positive time or DIBS_FOREVER",
                      (long long)wait_ms);
  dibs_status status = dibs__enter(a->store, call, error);
  if (status != DIBS_OK) return status;
  status = add_tasks(a, wait_ms, error);
  dibs__exit(a->store);
  return status;
}

static dibs_status add_many(struct adding *a, int64_t wait_ms, dibs_error *error) {
  const dibs_task_new *tasks = a->tasks;
  size_t count = a->count;
  if (!tasks || count == 0 || count > DIBS_TASKS_MAX)
    return dibs__fail(error, DIBS_INVALID, "dibs_task_add_many: give 1 to %d tasks", DIBS_TASKS_MAX);
  for (size_t i = 0; i < count; i++)
    if (tasks[i].size != sizeof *tasks)
      return dibs__fail(error, DIBS_INVALID, "the size of tasks[%zu] is %zu: set it to sizeof(dibs_task_new)", i,
                        tasks[i].size);
  return add_to(a, "dibs_task_add_many", wait_ms, error);
}

dibs_status dibs_task_add_many(dibs_store *store, const char *kind, dibs_task_new *tasks, size_t count, int64_t wait_ms,
                               dibs_error *error) {
  struct adding a = {.store = store, .kind = kind, .tasks = tasks, .count = count};
  return add_many(&a, wait_ms, error);
}

void dibs__task_key_token(const char *scope, const char *what, const char *key, char token[DIBS__TASK_KEY_DIGITS + 1]) {
  struct dibs__sha256 hash;
  dibs__sha256_begin(&hash);
  dibs__sha256_add(&hash, scope, strlen(scope) + 1); /* with its NUL: no two lists of texts are the same bytes */
  dibs__sha256_add(&hash, what, strlen(what) + 1);
  dibs__sha256_add(&hash, key, strlen(key));
  dibs__sha256_end(&hash, token);
}

dibs_status dibs__task_add_once(dibs_store *store, const char *kind, dibs_task_new *tasks, size_t count,
                                const char *token, bool *repeated, dibs_error *error) {
  struct adding a = {.store = store, .kind = kind, .tasks = tasks, .count = count, .token_ms = DIBS__TASK_KEY_MS};
  if (token) {
    memcpy(a.token, token, DIBS__TASK_KEY_DIGITS);
    a.token_length = DIBS__TASK_KEY_DIGITS;
  }
  dibs_status status = add_many(&a, 0, error);
  *repeated = a.repeated;
  return status;
}

dibs_status dibs_task_add(dibs_store *store, const char *kind, const void *payload, size_t length,
                          const dibs_task_options *given, uint64_t *nr, dibs_error *error) {
  if (nr) *nr = 0;
  dibs_task_options o = DIBS_TASK_OPTIONS_INIT;
  if (given && dibs__check_size(given->size, sizeof o, "dibs_task_options", error) != DIBS_OK) return DIBS_INVALID;
  if (given) memcpy(&o, given, given->size);
  dibs_task_new task = {.size = sizeof task,
                        .payload = payload,
                        .length = length,
                        .phase = o.phase,
                        .serial = o.serial,
                        .unique = o.unique,
                        .at_ms = o.at_ms,
                        .delay_ms = o.delay_ms,
                        .priority = o.priority,
                        .tries = o.tries};
  struct adding a = {.store = store, .kind = kind, .tasks = &task, .count = 1};
  dibs_status status = add_to(&a, "dibs_task_add", o.wait_ms, error);
  if (status != DIBS_OK) return status;
  if (nr) *nr = task.nr;
  if (task.status == DIBS_REPLAY)
    return dibs__fail(error, DIBS_REPLAY,
                      "task %" PRIu64 " of kind \"%s\" has the unique text \"%s\" and is not finished", task.nr, kind,
                      o.unique ? o.unique : "");
  if (task.status == DIBS_OK) return DIBS_OK;
  if (a.flaw.text[0]) return dibs__fail(error, task.status, "%s", a.flaw.text);
  return dibs__fail(error, task.status, "%s refused the task: %s", store->shown,
                    a.why[0] ? a.why : "it can't keep one of its texts");
}

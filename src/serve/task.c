/* SPDX-License-Identifier: MIT */
/*
 * Adding tasks over HTTP, and ending and extending claims (claim.c).  A claim belongs to the caller that has the task's
 * number and fence: this daemon keeps nothing of it, and any daemon on the same store extends and ends it.
 */
#include "dibs/task.h"
#include "base/text.h"
#include "history/history.h"
#include "serve/server.h"
#include "serve/task_count.h"
#include "serve/together.h"
#include "serve/trace.h"
#include "task/task.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- Adding ---- */

struct add_in {
  struct field_data payload;
  const char *phase, *key, *unique, *repeat_key;
  int64_t at_ms, delay_ms, priority, tries;
  struct json_t *tasks;
};

#define IN(member) offsetof(struct add_in, member)
#define TASK_FIELDS                                                                                                    \
  {.name = "payload",                                                                                                  \
   .kind = FIELD_DATA,                                                                                                 \
   .at = IN(payload),                                                                                                  \
   .most = DIBS_RECORD_MAX,                                                                                            \
   .help = "any text, or {\"base64\": ...}"},                                                                          \
      {.name = "phase", .at = IN(phase), .least = 1, .most = DIBS_NAME_MAX, .help = "the first step"},                 \
      {.name = "key",                                                                                                  \
       .at = IN(key),                                                                                                  \
       .least = 1,                                                                                                     \
       .most = DIBS_NAME_MAX,                                                                                          \
       .help = "tasks of the kind with one key run one at a time, in their order"},                                    \
      {.name = "unique",                                                                                               \
       .at = IN(unique),                                                                                               \
       .least = 1,                                                                                                     \
       .most = DIBS_NAME_MAX,                                                                                          \
       .help = "of unfinished tasks of the kind one has this text"},                                                   \
      {.name = "at_ms",                                                                                                \
       .kind = FIELD_NUMBER,                                                                                           \
       .at = IN(at_ms),                                                                                                \
       .most = INT64_C(1) << 48,                                                                                       \
       .help = "from when on it may be claimed: ms since 1970"},                                                       \
      {.name = "delay",                                                                                                \
       .kind = FIELD_DURATION,                                                                                         \
       .at = IN(delay_ms),                                                                                             \
       .most = INT64_C(315619200000),                                                                                  \
       .help = "the same, from now"},                                                                                  \
      {.name = "priority",                                                                                             \
       .kind = FIELD_NUMBER,                                                                                           \
       .at = IN(priority),                                                                                             \
       .least = -DIBS_TASK_PRIORITY,                                                                                   \
       .most = DIBS_TASK_PRIORITY,                                                                                     \
       .help = "the largest first"},                                                                                   \
  {                                                                                                                    \
    .name = "max_failures", .kind = FIELD_NUMBER, .at = IN(tries), .least = 1, .most = 1000000,                        \
    .help = "how often it may fail"                                                                                    \
  }
static const struct field one_fields[] = {TASK_FIELDS, {.name = NULL}};
static const struct field add_fields[] = {TASK_FIELDS,
                                          {.name = "tasks",
                                           .kind = FIELD_ITEMS,
                                           .at = IN(tasks),
                                           .least = 1,
                                           .most = DIBS_TASKS_MAX,
                                           .items = one_fields,
                                           .help = "several tasks, in place of the members of one"},
                                          {.name = "Idempotency-Key",
                                           .place = FIELD_HEADER,
                                           .at = IN(repeat_key),
                                           .least = 1,
                                           .most = DIBS_NAME_MAX,
                                           .help = "a text of the caller's for this request: a repeat adds nothing and "
                                                   "gets the answer of the first, for a day"},
                                          {.name = NULL}};

struct adding {
  struct member member; /* first */
  struct add_in *ins;
  dibs_task_new *news; /* of the call */
};

static void free_adding(struct member *member) {
  struct adding *a = (struct adding *)member;
  free(a->ins);
  free(a);
}

static void write_added(struct request *r, const struct adding *a) {
  const struct add_in *in = r->in;
  bool any = false;
  for (size_t i = 0; i < a->member.tasks; i++) any = any || a->news[i].status == DIBS_OK;
  struct dibs__json *j = dibs__answer_begin(r, any ? 201 : 200);
  if (in->tasks) dibs__json_open(j, NULL, '{');
  if (in->tasks) dibs__json_open(j, "tasks", '[');
  for (size_t i = 0; i < a->member.tasks; i++) {
    dibs__json_open(j, NULL, '{');
    dibs__json_uint(j, "task", a->news[i].nr);
    dibs__json_text(j, "status", dibs_status_name(a->news[i].status));
    dibs__json_close(j, '}');
  }
  if (in->tasks) dibs__json_close(j, ']');
  if (in->tasks) dibs__json_close(j, '}');
}

static void fill_news(const struct adding *a) {
  for (size_t i = 0; i < a->member.tasks; i++) {
    const struct add_in *in = &a->ins[i];
    a->news[i] = (dibs_task_new){.size = sizeof a->news[i],
                                 .payload = in->payload.p ? in->payload.p : "",
                                 .length = in->payload.length,
                                 .phase = in->phase,
                                 .serial = in->key,
                                 .unique = in->unique,
                                 .at_ms = dibs__given_or(in->at_ms, 0),
                                 .delay_ms = dibs__given_or(in->delay_ms, 0),
                                 .priority = (int32_t)dibs__given_or(in->priority, 0),
                                 .tries = (uint32_t)dibs__given_or(in->tries, 0)};
  }
}

/* `key`: of the only member; NULL: none. */
static dibs_status add_all(const struct member *first, const char *key, dibs_task_new *news, size_t count,
                           bool *repeated, dibs_error *error) {
  const struct request *r = first->request;
  char token[DIBS__TASK_KEY_DIGITS + 1];
  if (!news) return DIBS_NO_MEMORY;
  if (key) dibs__task_key_token("tasks", r->param[0], key, token);
  return dibs__task_add_once(r->server->store, r->param[0], news, count, key ? token : NULL, repeated, error);
}

/* `status` and `error`: of the call. */
static void answer_adding(const struct adding *a, dibs_status status, bool repeated, const dibs_error *error) {
  struct request *r = a->member.request;
  const struct add_in *in = r->in;
  if (status == DIBS_OK && !in->tasks && a->news[0].status == DIBS_INVALID) status = DIBS_INVALID;
  for (size_t i = 0; status == DIBS_OK && !repeated && i < a->member.tasks; i++)
    if (a->news[i].status == DIBS_OK) dibs__task_count_one(r, TASK_ADDED, r->param[0], a->ins[i].phase);
  if (status == DIBS_OK)
    write_added(r, a);
  else if (status == DIBS_INVALID && in->repeat_key && error->text[0])
    dibs__answer_refuse(r, 400, "invalid", "%.400s; the token is the Idempotency-Key of the request", error->text);
  else
    dibs__answer_problem(r, status, error);
}

/* The tasks of all members in one call, in their order. */
static void add_members(struct member *first) {
  dibs_error error = {0};
  size_t count = 0, at = 0;
  bool repeated = false;
  for (const struct member *m = first; m; m = m->next) count += m->tasks;
  dibs_task_new *news = calloc(count, sizeof *news);
  for (struct member *m = first; m && news; at += m->tasks, m = m->next) {
    ((struct adding *)m)->news = news + at;
    fill_news((struct adding *)m);
  }
  const char *key = ((const struct add_in *)first->request->in)->repeat_key;
  dibs_status status = add_all(first, key, news, count, &repeated, &error);
  for (const struct member *m = first; m; m = m->next)
    answer_adding((const struct adding *)m, status, repeated, &error);
  free(news);
}

static const struct sharing adding_sharing = {add_members, free_adding};

static void add_alone(struct request *r) {
  add_members(r->work);
  free_adding(r->work);
}

static void drop_adding(struct request *r) {
  free_adding(r->work);
}

/* A task of a crontab fires a job, as POST /v1/cron/FLEET/jobs/JOB does, and needs the same scope. */
static bool may_add(struct request *r) {
  static const char firings[] = "cron:";
  if (strncmp(r->param[0], firings, sizeof firings - 1) != 0 || dibs__auth_has(r, SCOPE_ADMIN)) return true;
  dibs__answer_refuse(r, 403, "scope",
                      "the token \"%s\" may not add tasks of the kind \"%.255s\": they fire jobs of a"
                      " crontab, which needs the scope admin",
                      dibs__auth_label(r), r->param[0]);
  return false;
}

static void post_tasks(struct request *r) {
  struct add_in *in = r->in;
  if (!may_add(r)) return;
  size_t count = in->tasks ? json_array_size(in->tasks) : 1;
  struct adding *a = calloc(1, sizeof *a);
  if (a) a->ins = calloc(count, sizeof *a->ins);
  if (!a || !a->ins) {
    free(a);
    dibs__answer_problem(r, DIBS_NO_MEMORY, NULL);
    return;
  }
  a->member = (struct member){.request = r, .tasks = count};
  if (!in->tasks) a->ins[0] = *in;
  for (size_t i = 0; in->tasks && i < count; i++)
    if (!dibs__fields_read_item(r, one_fields, json_array_get(in->tasks, i), &a->ins[i])) {
      free_adding(&a->member);
      return;
    }
  for (size_t i = 0; i < count; i++) a->member.bytes += a->ins[i].payload.length;
  /* A key is that of one call. */
  if (!in->repeat_key && dibs__may_share(&a->member))
    dibs__together_run(&a->member, &adding_sharing);
  else
    dibs__alone_run(&a->member, add_alone, drop_adding);
}

/* ---- Ending and extending ---- */

enum { HISTORY_MS = 1000 };

struct item_in {
  int64_t task, fence, fails, age_ms, delay_ms, took_ms;
  int32_t outcome;
  const char *phase, *text;
};

/* In the order of dibs_verdict. */
static const char *const outcomes[] = {"done", "next", "wait", "fail", "dead", "release", NULL};

#undef IN
#define IN(member) offsetof(struct item_in, member)
#define CLAIMED_FIELDS                                                                                                 \
  {.name = "task",                                                                                                     \
   .kind = FIELD_NUMBER,                                                                                               \
   .at = IN(task),                                                                                                     \
   .least = 1,                                                                                                         \
   .most = INT64_MAX,                                                                                                  \
   .needed = true,                                                                                                     \
   .help = "its number"},                                                                                              \
  {                                                                                                                    \
    .name = "fence", .kind = FIELD_NUMBER, .at = IN(fence), .least = 1, .most = (INT64_C(1) << 53) - 1,                \
    .needed = true, .help = "that of the claim"                                                                        \
  }
static const struct field item_fields[] = {
    CLAIMED_FIELDS,
    {.name = "outcome",
     .kind = FIELD_WORD,
     .at = IN(outcome),
     .words = outcomes,
     .help =
         "done, the default; next: ready at once, in `phase` if that is given; wait: not yet; fail; dead: it can never "
         "succeed; release: it was not begun"},
    {.name = "phase", .at = IN(phase), .least = 1, .most = DIBS_NAME_MAX, .help = "of next"},
    {.name = "delay",
     .kind = FIELD_DURATION,
     .at = IN(delay_ms),
     .most = INT64_C(315619200000),
     .help = "of wait and fail: the pause; else it grows with the age or the failed tries"},
    {.name = "text",
     .kind = FIELD_LONG_TEXT,
     .at = IN(text),
     .help = "the result or the error, for people; of more than 4096 bytes the end is kept"},
    {.name = "failures",
     .kind = FIELD_NUMBER,
     .at = IN(fails),
     .most = UINT32_MAX,
     .help = "as the claim had it: the pause after fail grows with it"},
    {.name = "age_ms",
     .kind = FIELD_NUMBER,
     .at = IN(age_ms),
     .most = INT64_C(1) << 53,
     .help = "as the claim had it: the pause after wait grows with it"},
    {.name = "took",
     .kind = FIELD_DURATION,
     .at = IN(took_ms),
     .most = INT64_C(315619200000),
     .help = "for the history: how long the work took"},
    {.name = NULL}};
static const struct field claimed_fields[] = {CLAIMED_FIELDS, {.name = NULL}};

struct items_in {
  struct json_t *tasks;
  int64_t timeout_ms;
  const char *phase;
  bool history;
};
#undef IN
#define IN(member) offsetof(struct items_in, member)
static const struct field ends_fields[] = {{.name = "tasks",
                                            .kind = FIELD_ITEMS,
                                            .at = IN(tasks),
                                            .least = 1,
                                            .most = DIBS_TASKS_MAX,
                                            .needed = true,
                                            .items = item_fields,
                                            .help = "the claims to end"},
                                           {.name = "history",
                                            .kind = FIELD_FLAG,
                                            .at = IN(history),
                                            .help = "leave a run of each in the history, as with a traceparent"},
                                           {.name = NULL}};
static const struct field extend_fields[] = {{.name = "tasks",
                                              .kind = FIELD_ITEMS,
                                              .at = IN(tasks),
                                              .least = 1,
                                              .most = DIBS_TASKS_MAX,
                                              .needed = true,
                                              .items = claimed_fields,
                                              .help = "the claims to extend"},
                                             {.name = "timeout",
                                              .kind = FIELD_DURATION,
                                              .at = IN(timeout_ms),
                                              .least = DIBS_TTL_MIN_MS,
                                              .most = DIBS_TTL_MAX_MS,
                                              .help = "how long they last from now on; 30s if it is not given"},
                                             {.name = "phase",
                                              .at = IN(phase),
                                              .least = 1,
                                              .most = DIBS_NAME_MAX,
                                              .help = "also their phase, so that another worker would continue there"},
                                             {.name = NULL}};

/* Claims that the request names. */
struct items {
  struct member member;         /* first; of those that end claims */
  char trace[TRACE_LENGTH + 1]; /* "": none */
  size_t count;
  struct item_in *ins;
  dibs_task **tasks;
  dibs_status *statuses;
};

static void free_items(struct items *items) {
  for (size_t i = 0; items->tasks && i < items->count; i++) dibs_task_free(items->tasks[i]);
  free(items->ins);
  free(items->tasks);
  free(items->statuses);
  free(items);
}

static struct items *make_items(struct request *r) {
  const struct items_in *in = r->in;
  struct items *items = calloc(1, sizeof *items);
  if (!items) return NULL;
  items->count = json_array_size(in->tasks);
  if (!dibs__trace_of(r, items->trace)) items->trace[0] = '\0';
  items->ins = calloc(items->count, sizeof *items->ins);
  items->tasks = calloc(items->count, sizeof *items->tasks);
  items->statuses = calloc(items->count, sizeof *items->statuses);
  if (items->ins && items->tasks && items->statuses) return items;
  free_items(items);
  return NULL;
}

/* NULL: the request was answered. */
static struct items *read_items(struct request *r, const struct field *fields) {
  const struct items_in *in = r->in;
  struct items *items = make_items(r);
  dibs_status status = items ? DIBS_OK : DIBS_NO_MEMORY;
  for (size_t i = 0; items && i < items->count && status == DIBS_OK; i++) {
    struct item_in *item = &items->ins[i];
    item->fails = item->age_ms = item->delay_ms = item->took_ms = FIELD_UNSET; /* `fields` may have less */
    if (!dibs__fields_read_item(r, fields, json_array_get(in->tasks, i), item)) {
      free_items(items);
      return NULL;
    }
    items->tasks[i] = dibs__task_adopt(r->server->store, r->param[0], (uint64_t)item->task,
                                       (dibs_fence){(uint64_t)item->fence}, dibs__given_or(in->timeout_ms, 0),
                                       (uint32_t)dibs__given_or(item->fails, 0), dibs__given_or(item->age_ms, 0));
    if (!items->tasks[i]) status = DIBS_NO_MEMORY;
  }
  if (status == DIBS_OK) return items;
  if (items) free_items(items);
  dibs__answer_problem(r, status, NULL);
  return NULL;
}

/* The answer of each, in their order. */
static void write_items(struct request *r, const struct items *items) {
  struct dibs__json *j = dibs__answer_begin(r, 200);
  dibs__json_open(j, NULL, '{');
  dibs__json_open(j, "tasks", '[');
  for (size_t i = 0; i < items->count; i++) {
    dibs__json_open(j, NULL, '{');
    dibs__json_uint(j, "task", items->tasks[i]->nr);
    dibs__json_text(j, "status", dibs_status_name(items->statuses[i]));
    dibs__json_close(j, '}');
  }
  dibs__json_close(j, ']');
  dibs__json_close(j, '}');
}

static void answer_items(struct request *r, const struct items *items, dibs_status status, const dibs_error *error) {
  for (size_t i = 0; status == DIBS_OK && i < items->count; i++)
    if (items->statuses[i] == DIBS_STALE) dibs__task_count_one(r, TASK_REFUSED, r->param[0], NULL);
  if (status == DIBS_OK)
    write_items(r, items);
  else
    dibs__answer_problem(r, status, error);
}

static int compare_kind(const dibs_task_info *info, void *user) {
  struct request *r = user;
  if (strcmp(info->kind, r->param[0]) != 0)
    dibs__answer_refuse(r, 403, "prefix", "task %" PRIu64 " is of a kind that the token is not for", info->nr);
  return 1;
}

/* The store finds a claim by number and fence alone, so a token for some kinds could end a task of another.  A task
 * never changes its kind.  false: the request was answered, and the items are freed. */
static bool kinds_are_covered(struct request *r, struct items *items) {
  dibs_error error = {0};
  dibs_status status = DIBS_OK;
  if (dibs__auth_covers(r, "")) return true;
  for (size_t i = 0; i < items->count && status == DIBS_OK && r->answer.status == 0; i++) {
    dibs_task_filter filter = {.size = sizeof filter, .nr = items->tasks[i]->nr};
    status = dibs_tasks_list(r->server->store, &filter, 0, compare_kind, r, &error);
  }
  if (status != DIBS_OK) dibs__answer_problem(r, status, &error);
  if (r->answer.status != 0) free_items(items);
  return r->answer.status == 0;
}

/* "TRACEPARENT=... next PHASE": the trace of a worker elsewhere where commands have theirs, in the environment, and
 * what became of a task that goes on. */
static dibs__str describe_work(const struct items *items, const struct item_in *in, char *to, size_t size) {
  struct dibs__text text;
  dibs__text_begin(&text, to, size);
  if (items->trace[0]) dibs__text_addf(&text, "TRACEPARENT=%s", items->trace);
  if (in->outcome == DIBS_END_NEXT || in->outcome == DIBS_END_WAIT)
    dibs__text_addf(&text, "%s%s", items->trace[0] ? " " : "", outcomes[in->outcome]);
  if (in->outcome == DIBS_END_NEXT && in->phase) dibs__text_addf(&text, " %s", in->phase);
  return dibs__str_of(to, strlen(to));
}

/* What a worker elsewhere ran.  When the work began is known to the worker alone: the run takes no time if it does not
 * say how much. */
static dibs_status keep_run(struct request *r, const struct items *items, size_t nth, dibs__tick by) {
  const struct item_in *in = &items->ins[nth];
  const char *host = dibs__auth_label(r), *kind = r->param[0];
  char command[DIBS__RUN_COMMAND_MAX];
  bool failed = in->outcome == DIBS_END_FAIL || in->outcome == DIBS_END_DEAD;
  struct dibs__run_row row = {.name = dibs__str_of(kind, strlen(kind)),
                              .kind = dibs__str_of("worker", 6),
                              .host = dibs__str_of(host, strlen(host)),
                              .command = describe_work(items, in, command, sizeof command),
                              .output = dibs__str_of(in->text ? in->text : "", in->text ? strlen(in->text) : 0),
                              .fence = {(uint64_t)in->fence},
                              .nr = (uint64_t)in->task,
                              .how = items->statuses[nth] != DIBS_OK ? DIBS_RUN_LOST
                                     : failed                        ? DIBS_RUN_FAILED
                                                                     : DIBS_RUN_DONE,
                              .code = failed,
                              .began_ms = dibs__given_or(in->took_ms, 0)};
  return dibs__history_put(r->server->store, &row, by, NULL);
}

/* As a worker's own rows: the store has a second to take them, and no outcome depends on them. */
static void keep_runs(struct request *r, const struct items *items) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), HISTORY_MS);
  dibs_status status = DIBS_OK;
  if (!items->trace[0] && !((const struct items_in *)r->in)->history) return;
  for (size_t i = 0; i < items->count && status == DIBS_OK && dibs__tick_before(dibs__tick_now(), by); i++)
    if (items->ins[i].outcome != DIBS_END_RELEASE) status = keep_run(r, items, i, by);
}

static void fill_ends(const struct items *items, dibs_task_end *ends) {
  for (size_t i = 0; i < items->count; i++) {
    const struct item_in *in = &items->ins[i];
    ends[i] = (dibs_task_end){.size = sizeof ends[i],
                              .task = items->tasks[i],
                              .verdict = (dibs_verdict)in->outcome,
                              .phase = in->phase,
                              .text = in->text,
                              .delay_ms = dibs__given_or(in->delay_ms, -1)};
  }
}

static void take_ends(struct request *r, struct items *items, const dibs_task_end *ends) {
  for (size_t i = 0; i < items->count; i++) {
    items->statuses[i] = ends[i].status;
    if (ends[i].status == DIBS_OK && !dibs__task_end_repeated(items->tasks[i]))
      dibs__task_count_one(r, TASK_ENDED, r->param[0], outcomes[items->ins[i].outcome]);
  }
}

/* The claims of all members in one call, in their order. */
static void end_members(struct member *first) {
  dibs_error error = {0};
  dibs_status status = DIBS_NO_MEMORY;
  size_t count = 0, at = 0;
  for (const struct member *m = first; m; m = m->next) count += m->tasks;
  dibs_task_end *ends = calloc(count, sizeof *ends);
  for (const struct member *m = first; m && ends; at += m->tasks, m = m->next)
    fill_ends((const struct items *)m, ends + at);
  if (ends) status = dibs_task_end_many(NULL, ends, count, &error);
  at = 0;
  for (struct member *m = first; m; at += m->tasks, m = m->next) {
    if (status == DIBS_OK) take_ends(m->request, (struct items *)m, ends + at);
    if (status == DIBS_OK) keep_runs(m->request, (struct items *)m);
    answer_items(m->request, (struct items *)m, status, &error);
  }
  free(ends);
}

static void free_ending(struct member *member) {
  free_items((struct items *)member);
}

static const struct sharing ending_sharing = {end_members, free_ending};

static void end_alone(struct request *r) {
  struct items *items = r->work;
  if (!kinds_are_covered(r, items)) return;
  end_members(&items->member);
  free_items(items);
}

static void extend_in_pool(struct request *r) {
  const struct items_in *in = r->in;
  struct items *items = r->work;
  dibs_error error = {0};
  dibs_status status;
  if (!kinds_are_covered(r, items)) return;
  if (in->phase && items->count == 1) {
    status = dibs_task_step(items->tasks[0], in->phase, &error);
    items->statuses[0] = status;
    if (status == DIBS_STALE || status == DIBS_NOT_FOUND) status = DIBS_OK; /* it is the answer for this one */
  } else {
    status = dibs_tasks_extend(items->tasks, items->count, 0, items->statuses, &error);
  }
  answer_items(r, items, status, &error);
  free_items(items);
}

static void drop_items(struct request *r) {
  free_items(r->work);
}

/* The kinds of the tasks may have to be read, and the rows of runs are written one by one: others do not wait for that.
 */
static bool may_share_end(const struct items *items) {
  return dibs__auth_covers(items->member.request, "") && !items->trace[0] && dibs__may_share(&items->member);
}

static void post_ends(struct request *r) {
  struct items *items = read_items(r, item_fields);
  if (!items) return;
  items->member = (struct member){.request = r, .tasks = items->count};
  for (size_t i = 0; i < items->count; i++) items->member.bytes += items->ins[i].text ? strlen(items->ins[i].text) : 0;
  if (may_share_end(items))
    dibs__together_run(&items->member, &ending_sharing);
  else
    dibs__alone_run(&items->member, end_alone, drop_items);
}

static void post_extensions(struct request *r) {
  const struct items_in *in = r->in;
  if (in->phase && json_array_size(in->tasks) != 1)
    dibs__answer_refuse(r, 400, "invalid", "phase: it is for one task at a time");
  else if ((r->work = read_items(r, claimed_fields)))
    dibs__pool_run(r, extend_in_pool, drop_items);
}

/* ---- The routes ---- */

const struct route dibs__task_routes[] = {
    {METHOD_POST, "/v1/kinds/{kind}/tasks", SCOPE_USE, post_tasks, sizeof(struct add_in), add_fields, "addTasks",
     "200 201", "Add a task, or several", "200: unfinished tasks have these unique texts already.", NULL},
    {METHOD_POST, "/v1/kinds/{kind}/results", SCOPE_USE, post_ends, sizeof(struct items_in), ends_fields, "endTasks",
     "200", "End claims with an outcome each",
     "Each task has a status of its own: OK, or STALE if it was claimed again.", NULL},
    {METHOD_POST, "/v1/kinds/{kind}/extensions", SCOPE_USE, post_extensions, sizeof(struct items_in), extend_fields,
     "extendTasks", "200", "Extend claims", "", NULL},
    {.path = NULL}};

/* SPDX-License-Identifier: MIT */
/* Tasks page by page, the whole story of one, and changes of many. */
#include "serve/task_list.h"
#include "dibs/admin.h"
#include "info/info.h"
#include "serve/page.h"

#include <jansson.h>
#include <stdlib.h>

enum {
  STATES_TEXT = 256,     /* bytes of a list of states */
  CHANGE_DEFAULT = 1000, /* tasks that one request changes */
  CHANGE_MOST = 10000,   /* the same: a second or two of the store's work */
  NAMED_MOST = 500,      /* tasks that one request names, each of which is a transaction */
  RUNS_MOST = 1000       /* runs of one task: the latest */
};

/* ---- Which tasks ---- */

struct filter_in {
  const char *kind, *phase, *key, *text, *state;
  int64_t older_ms, after;
};

#define A_STATE "(arrived|ready|claimed|waiting|blocked|parked|done|dead|cancelled|finished|unfinished)"
#define STATES_PATTERN "^" A_STATE "(," A_STATE ")*$"

#define DETAIL_FIELDS(where, at_)                                                                                      \
  {.name = "key",                                                                                                      \
   .place = (where),                                                                                                   \
   .at = (at_) + offsetof(struct filter_in, key),                                                                      \
   .least = 1,                                                                                                         \
   .most = DIBS_NAME_MAX,                                                                                              \
   .help = "only tasks with this key"},                                                                                \
      {.name = "text",                                                                                                 \
       .place = (where),                                                                                               \
       .at = (at_) + offsetof(struct filter_in, text),                                                                 \
       .least = 1,                                                                                                     \
       .most = DIBS_NAME_MAX,                                                                                          \
       .help = "only tasks whose latest error contains this"},                                                         \
      {.name = "older",                                                                                                \
       .place = (where),                                                                                               \
       .kind = FIELD_DURATION,                                                                                         \
       .at = (at_) + offsetof(struct filter_in, older_ms),                                                             \
       .most = INT64_C(315619200000),                                                                                  \
       .help = "only tasks that were not changed for so long"},                                                        \
  {                                                                                                                    \
    .name = "after", .place = (where), .kind = FIELD_NUMBER, .at = (at_) + offsetof(struct filter_in, after),          \
    .most = INT64_MAX, .help = "only tasks with larger numbers: the `next` of the answer before"                       \
  }
#define FILTER_FIELDS(where, at_)                                                                                      \
  {.name = "kind",                                                                                                     \
   .place = (where),                                                                                                   \
   .at = (at_) + offsetof(struct filter_in, kind),                                                                     \
   .least = 1,                                                                                                         \
   .most = DIBS_NAME_MAX,                                                                                              \
   .help = "only tasks of this kind"},                                                                                 \
      {.name = "phase",                                                                                                \
       .place = (where),                                                                                               \
       .at = (at_) + offsetof(struct filter_in, phase),                                                                \
       .least = 1,                                                                                                     \
       .most = DIBS_NAME_MAX,                                                                                          \
       .help = "only tasks in this phase"},                                                                            \
      {.name = "state",                                                                                                \
       .place = (where),                                                                                               \
       .at = (at_) + offsetof(struct filter_in, state),                                                                \
       .least = 1,                                                                                                     \
       .most = STATES_TEXT,                                                                                            \
       .pattern = STATES_PATTERN,                                                                                      \
       .help = "only tasks in these states, with commas: arrived, ready, claimed, waiting, blocked, parked, done, "    \
               "dead, cancelled, finished, unfinished"},                                                               \
      DETAIL_FIELDS(where, at_)

/* false: the request was answered. */
static bool read_filter(struct request *r, const struct filter_in *in, dibs_task_filter *filter) {
  *filter = (dibs_task_filter){.size = sizeof *filter,
                               .after = in->after == FIELD_UNSET ? 0 : (uint64_t)in->after,
                               .kind = in->kind,
                               .phase = in->phase,
                               .serial = in->key,
                               .text = in->text,
                               .older_ms = in->older_ms == FIELD_UNSET ? 0 : in->older_ms};
  size_t length;
  if (!in->state || !dibs__info_task_states(in->state, &filter->states, &length)) return true;
  dibs__answer_refuse(r, 400, "invalid",
                      "state: give some of arrived, ready, claimed, waiting, blocked, parked, done, dead, cancelled, "
                      "finished, unfinished, with commas");
  return false;
}

/* ---- A page ---- */

struct tasks_in {
  struct filter_in filter;
  int64_t limit;
};
static const struct field tasks_fields[] = {FILTER_FIELDS(FIELD_QUERY, offsetof(struct tasks_in, filter)),
                                            PAGE_LIMIT(offsetof(struct tasks_in, limit)),
                                            {.name = NULL}};

struct listing {
  struct dibs__json *json;
  size_t limit, count;
  uint64_t last;
  bool more;
};

static int add_task(const dibs_task_info *info, void *user) {
  struct listing *l = user;
  l->more = l->count == l->limit;
  if (l->more) return 1;
  l->count++;
  l->last = info->nr;
  dibs__json_open(l->json, NULL, '{');
  dibs__info_task(l->json, info);
  dibs__json_close(l->json, '}');
  return 0;
}

dibs_status dibs__tasks_page_write(struct request *r, const dibs_task_filter *filter, int64_t limit,
                                   dibs_error *error) {
  struct listing l = {.json = &r->answer.body, .limit = dibs__page_limit(r, limit)};
  dibs__json_open(l.json, "tasks", '[');
  dibs_status status = dibs_tasks_list(r->server->store, filter, 0, add_task, &l, error);
  dibs__json_close(l.json, ']');
  dibs__json_known(l.json, "next", (int64_t)l.last, l.more);
  return status;
}

static void list_tasks(struct request *r) {
  const struct tasks_in *in = r->in;
  dibs_error error = {0};
  dibs_task_filter filter;
  if (!read_filter(r, &in->filter, &filter)) return;
  dibs__json_open(dibs__answer_begin(r, 200), NULL, '{');
  dibs_status status = dibs__tasks_page_write(r, &filter, in->limit, &error);
  dibs__json_close(&r->answer.body, '}');
  if (status != DIBS_OK) dibs__answer_problem(r, status, &error);
}

static void get_tasks(struct request *r) {
  dibs__pool_run(r, list_tasks, NULL);
}

/* ---- The story of one task ---- */

struct story {
  struct dibs__json *json;
  uint64_t nr;
  uint32_t runs;
  bool found;
};

static int write_story(const dibs_task_info *info, void *user) {
  struct story *s = user;
  s->found = true;
  dibs__info_task(s->json, info);
  dibs__json_uint(s->json, "payload_bytes", info->length);
  dibs__payload_write(s->json, "payload", info->payload, info->length);
  return 1;
}

static int write_error(const dibs_task_info *info, void *user) {
  struct dibs__json *j = user;
  dibs__json_open(j, NULL, '{');
  dibs__json_uint(j, "fence", info->fence.value);
  dibs__json_text(j, "owner", info->owner);
  dibs__json_int(j, "at_ms", info->at_ms);
  dibs__json_bytes(j, "text", info->text, info->text_length);
  dibs__json_close(j, '}');
  return 0;
}

static int write_its_run(const dibs_run_info *run, void *user) {
  struct story *s = user;
  if (s->runs++ == RUNS_MOST) return 1;
  dibs__json_open(s->json, NULL, '{');
  dibs__info_run(s->json, run);
  dibs__json_close(s->json, '}');
  return 0;
}

/* A store without a history has a story without runs. */
static dibs_status write_runs(dibs_store *store, struct story *s, dibs_error *error) {
  dibs_runs_options options = {.size = sizeof options, .most = RUNS_MOST + 1, .task = s->nr};
  dibs_status status = dibs_runs(store, &options, write_its_run, s, error);
  return status == DIBS_UNSUPPORTED ? DIBS_OK : status;
}

static void show_task(struct request *r) {
  dibs_error error = {0};
  dibs_store *store = r->server->store;
  char *end;
  struct story s = {.nr = strtoull(r->param[0], &end, 10), .json = dibs__answer_begin(r, 200)};
  bool number = r->param[0][0] >= '1' && r->param[0][0] <= '9' && *end == '\0' && s.nr <= INT64_MAX;
  dibs_task_filter filter = {.size = sizeof filter, .nr = s.nr};
  dibs_status status = DIBS_OK;
  dibs__json_open(s.json, NULL, '{');
  if (number) status = dibs_tasks_list(store, &filter, DIBS_LIST_PAYLOADS, write_story, &s, &error);
  if (status == DIBS_OK && !s.found) {
    dibs__answer_refuse(r, 404, "not-found",
                        "there is no task %.40s; finished tasks are deleted after the `keep` of their kind",
                        r->param[0]);
    return;
  }
  dibs__json_open(s.json, "errors", '[');
  if (status == DIBS_OK) status = dibs_task_errors(store, s.nr, write_error, s.json, &error);
  dibs__json_close(s.json, ']');
  dibs__json_open(s.json, "runs", '[');
  if (status == DIBS_OK) status = write_runs(store, &s, &error);
  dibs__json_close(s.json, ']');
  dibs__json_bool(s.json, "more_runs", s.runs > RUNS_MOST);
  dibs__json_close(s.json, '}');
  if (status != DIBS_OK) dibs__answer_problem(r, status, &error);
}

static void get_task(struct request *r) {
  dibs__pool_run(r, show_task, NULL);
}

/* ---- Changing many ---- */

static const char *const changes[] = {"retry", "cancel", "purge", NULL};

struct change_in {
  struct filter_in filter;
  int32_t change;
  int64_t limit;
  bool dry_run;
  struct json_t *tasks;
};
struct named_in {
  int64_t task;
};

static const struct field named_fields[] = {{.name = "task",
                                             .kind = FIELD_NUMBER,
                                             .at = offsetof(struct named_in, task),
                                             .least = 1,
                                             .most = INT64_MAX,
                                             .needed = true,
                                             .help = "the number of a task"},
                                            {.name = NULL}};

#define IN(member) offsetof(struct change_in, member)
#define CHANGE_FIELDS                                                                                                  \
  {.name = "tasks",                                                                                                    \
   .kind = FIELD_ITEMS,                                                                                                \
   .at = IN(tasks),                                                                                                    \
   .least = 1,                                                                                                         \
   .most = NAMED_MOST,                                                                                                 \
   .items = named_fields,                                                                                              \
   .help = "these tasks, in place of a filter"},                                                                       \
      {.name = "limit",                                                                                                \
       .kind = FIELD_NUMBER,                                                                                           \
       .at = IN(limit),                                                                                                \
       .least = 1,                                                                                                     \
       .most = CHANGE_MOST,                                                                                            \
       .help = "how many tasks this request changes at most; 1000 if it is not given"},                                \
  {                                                                                                                    \
    .name = "dry_run", .kind = FIELD_FLAG, .at = IN(dry_run), .help = "change nothing, only count"                     \
  }
static const struct field change_fields[] = {FILTER_FIELDS(FIELD_BODY, IN(filter)), CHANGE_FIELDS, {.name = NULL}};
static const struct field letters_fields[] = {DETAIL_FIELDS(FIELD_BODY, IN(filter)), CHANGE_FIELDS, {.name = NULL}};

static bool is_filtered(const struct filter_in *f) {
  return f->kind || f->phase || f->key || f->text || f->state || f->older_ms != FIELD_UNSET;
}

struct change {
  dibs_task_change what;
  uint64_t changed, next;
};

/* By a filter: the next ones up to the limit. */
static dibs_status change_filtered(struct request *r, struct change *c, const dibs_task_filter *filter,
                                   dibs_error *error) {
  const struct change_in *in = r->in;
  uint64_t limit = in->limit == FIELD_UNSET ? CHANGE_DEFAULT : (uint64_t)in->limit, last;
  dibs_status status = dibs_tasks_change(r->server->store, c->what, filter, in->dry_run ? DIBS_CHANGE_DRY : 0, limit,
                                         &c->changed, &last, error);
  c->next = c->changed == limit ? last : 0;
  return status;
}

/* Each of them only if it matches `which`, too. */
static dibs_status change_named(struct request *r, struct change *c, const dibs_task_filter *which, dibs_error *error) {
  const struct change_in *in = r->in;
  dibs_status status = DIBS_OK;
  for (size_t i = 0; i < json_array_size(in->tasks) && status == DIBS_OK; i++) {
    dibs_task_filter filter = {.size = sizeof filter, .kind = which->kind, .states = which->states};
    uint64_t changed;
    filter.nr = (uint64_t)json_integer_value(json_object_get(json_array_get(in->tasks, i), "task")); /* checked */
    status = dibs_tasks_change(r->server->store, c->what, &filter, in->dry_run ? DIBS_CHANGE_DRY : 0, 0, &changed, NULL,
                               error);
    c->changed += changed;
  }
  return status;
}

static void write_change(struct request *r, const struct change *c) {
  const struct change_in *in = r->in;
  struct dibs__json *j = dibs__answer_begin(r, 200);
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "change", changes[c->what]);
  dibs__json_bool(j, "dry_run", in->dry_run);
  dibs__json_uint(j, "changed", c->changed);
  dibs__json_known(j, "next", (int64_t)c->next, c->next > 0);
  dibs__json_close(j, '}');
}

static void change_tasks(struct request *r) {
  const struct change_in *in = r->in;
  struct change c = {.what = (dibs_task_change)in->change};
  dibs_task_filter filter;
  dibs_error error = {0};
  if (!read_filter(r, &in->filter, &filter)) return;
  dibs_status status = in->tasks ? change_named(r, &c, &filter, &error) : change_filtered(r, &c, &filter, &error);
  if (status == DIBS_OK)
    write_change(r, &c);
  else
    dibs__answer_problem(r, status, &error);
}

static void begin_change(struct request *r, dibs_task_change what) {
  struct change_in *in = r->in;
  struct named_in named;
  in->change = (int32_t)what;
  for (size_t i = 0; in->tasks && i < json_array_size(in->tasks); i++)
    if (!dibs__fields_read_item(r, named_fields, json_array_get(in->tasks, i), &named)) return;
  dibs__pool_run(r, change_tasks, NULL);
}

static void change(struct request *r, dibs_task_change what) {
  const struct change_in *in = r->in;
  if (!in->tasks == !is_filtered(&in->filter))
    dibs__answer_refuse(r, 400, "invalid", "say which tasks: give their numbers (tasks), or a filter, such as kind");
  else
    begin_change(r, what);
}

static void post_retry(struct request *r) {
  change(r, DIBS_TASK_RETRY);
}
static void post_cancel(struct request *r) {
  change(r, DIBS_TASK_CANCEL);
}
static void post_purge(struct request *r) {
  change(r, DIBS_TASK_PURGE);
}

/* ---- Dead letters of an outbox ---- */

static const char letters_states[] = "dead,parked";

static void change_letters(struct request *r, dibs_task_change what) {
  struct filter_in *f = &((struct change_in *)r->in)->filter;
  if (((const struct change_in *)r->in)->tasks && is_filtered(f)) {
    dibs__answer_refuse(r, 400, "invalid", "give the numbers of messages (tasks), or a filter, but not both");
    return;
  }
  f->kind = r->param[0];
  f->state = letters_states;
  begin_change(r, what);
}

static void retry_letters(struct request *r) {
  change_letters(r, DIBS_TASK_RETRY);
}
static void purge_letters(struct request *r) {
  change_letters(r, DIBS_TASK_PURGE);
}

/* ---- The routes ---- */

#define CHANGE_HELP                                                                                                    \
  "One request changes up to `limit` tasks.  While `next` is not null, more may match: repeat the request with it as " \
  "`after`."

const struct route dibs__task_list_routes[] = {
    {METHOD_GET, "/v1/tasks", SCOPE_READ, get_tasks, sizeof(struct tasks_in), tasks_fields, "listTasks", "200",
     "Tasks, page by page", "By number.", NULL},
    {METHOD_GET, "/v1/tasks/{task}", SCOPE_READ, get_task, 0, NULL, "showTask", "200 404",
     "A task with its payload, its errors and its runs",
     "The latest 1000 runs; `more_runs`: there are older ones, which GET /v1/history?task= lists.", NULL},
    {METHOD_POST, "/v1/changes/retry", SCOPE_ADMIN, post_retry, sizeof(struct change_in), change_fields, "retryTasks",
     "200", "Make dead, parked, waiting and cancelled tasks ready again", CHANGE_HELP, NULL},
    {METHOD_POST, "/v1/changes/cancel", SCOPE_ADMIN, post_cancel, sizeof(struct change_in), change_fields,
     "cancelTasks", "200", "End unfinished tasks; the claim of a claimed one is refused from then on", CHANGE_HELP,
     NULL},
    {METHOD_POST, "/v1/changes/purge", SCOPE_ADMIN, post_purge, sizeof(struct change_in), change_fields, "purgeTasks",
     "200", "Delete finished and parked tasks, with their errors", CHANGE_HELP, NULL},
    {METHOD_POST, "/v1/outbox/{kind}/retry", SCOPE_ADMIN, retry_letters, sizeof(struct change_in), letters_fields,
     "retryMessages", "200", "Deliver dead letters again: dead and parked messages", CHANGE_HELP, NULL},
    {METHOD_POST, "/v1/outbox/{kind}/purge", SCOPE_ADMIN, purge_letters, sizeof(struct change_in), letters_fields,
     "purgeMessages", "200", "Delete dead letters, with their errors", CHANGE_HELP, NULL},
    {.path = NULL}};

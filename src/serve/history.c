/* SPDX-License-Identifier: MIT */
/* What ran, the latest end first. */
#include "history/history.h"
#include "base/text.h"
#include "info/info.h"
#include "serve/page.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POSITION = 64 }; /* bytes of the text of a position */

struct history_in {
  const char *name, *prefix, *kind, *after;
  bool failed;
  int64_t since_ms, until_ms, task, limit;
};

#define IN(member) offsetof(struct history_in, member)
static const struct field history_fields[] = {
    {.name = "name",
     .place = FIELD_QUERY,
     .at = IN(name),
     .least = 1,
     .most = DIBS_NAME_MAX,
     .help = "only runs of this name: of a lease, a key, a job, or a kind of tasks"},
    {.name = "prefix",
     .place = FIELD_QUERY,
     .at = IN(prefix),
     .most = DIBS_NAME_MAX,
     .help = "only names that begin so"},
    {.name = "kind",
     .place = FIELD_QUERY,
     .at = IN(kind),
     .least = 1,
     .most = DIBS_NAME_MAX,
     .help = "only runs of this kind: run, once, cron, worker"},
    {.name = "failed", .place = FIELD_QUERY, .kind = FIELD_FLAG, .at = IN(failed), .help = "only runs that failed"},
    {.name = "since_at_ms",
     .place = FIELD_QUERY,
     .kind = FIELD_NUMBER,
     .at = IN(since_ms),
     .most = INT64_C(1) << 53,
     .help = "only runs that ended at this instant or later: ms since 1970"},
    {.name = "until_at_ms",
     .place = FIELD_QUERY,
     .kind = FIELD_NUMBER,
     .at = IN(until_ms),
     .most = INT64_C(1) << 53,
     .help = "only runs that ended before this instant"},
    {.name = "task",
     .place = FIELD_QUERY,
     .kind = FIELD_NUMBER,
     .at = IN(task),
     .least = 1,
     .most = INT64_MAX,
     .help = "only runs of the task with this number"},
    {.name = "after",
     .place = FIELD_QUERY,
     .at = IN(after),
     .least = 1,
     .most = POSITION - 1,
     .pattern = "^[1-9][0-9]{0,17}-[0-9a-f]{32}$",
     .help = "the `next` of the page before"},
    PAGE_LIMIT(IN(limit)),
    {.name = NULL}};

/* "ENDED-ID" */
static void write_position(const struct dibs__run_at *at, char to[POSITION]) {
  char id[33];
  struct dibs__text text;
  dibs__hex_write(at->id.b, id);
  dibs__text_begin(&text, to, POSITION);
  dibs__text_addf(&text, "%" PRId64 "-%s", at->ended_ms, id);
}

static bool read_position(const char *text, struct dibs__run_at *at) {
  char *end;
  at->ended_ms = strtoll(text, &end, 10);
  return at->ended_ms > 0 && *end == '-' && dibs__hex_read(end + 1, at->id.b);
}

struct listing {
  struct dibs__json *json;
  size_t count;
};

static int add_run(const dibs_run_info *run, void *user) {
  struct listing *l = user;
  l->count++;
  dibs__json_open(l->json, NULL, '{');
  dibs__info_run(l->json, run);
  dibs__json_close(l->json, '}');
  return 0;
}

static int64_t given_or_0(int64_t number) {
  return number == FIELD_UNSET ? 0 : number;
}

static void list_runs(struct request *r) {
  const struct history_in *in = r->in;
  dibs_error error = {0};
  struct dibs__run_at at = {.ended_ms = 0};
  bool off;
  char next[POSITION];
  dibs_runs_options options = {.size = sizeof options,
                               .name = in->name,
                               .prefix = in->prefix,
                               .kind = in->kind,
                               .flags = in->failed ? DIBS_RUNS_FAILED : 0,
                               .most = (uint32_t)dibs__page_limit(r, in->limit),
                               .since_ms = given_or_0(in->since_ms),
                               .until_ms = given_or_0(in->until_ms),
                               .task = (uint64_t)given_or_0(in->task)};
  if (in->after && !read_position(in->after, &at)) {
    dibs__answer_refuse(r, 400, "invalid", "after: give the `next` of the page before");
    return;
  }
  struct listing l = {.json = dibs__answer_begin(r, 200)};
  dibs__json_open(l.json, NULL, '{');
  dibs__json_open(l.json, "runs", '[');
  dibs_status status = dibs__history_page(r->server->store, &options, &at, add_run, &l, &off, &error);
  if (status != DIBS_OK) {
    dibs__answer_problem(r, status, &error);
    return;
  }
  dibs__json_close(l.json, ']');
  if (l.count == options.most) write_position(&at, next);
  dibs__json_text(l.json, "next", l.count == options.most ? next : NULL);
  dibs__json_bool(l.json, "recording", !off);
  dibs__json_close(l.json, '}');
}

static void get_history(struct request *r) {
  dibs__pool_run(r, list_runs, NULL);
}

const struct route dibs__history_routes[] = {
    {METHOD_GET, "/v1/history", SCOPE_READ, get_history, sizeof(struct history_in), history_fields, "listRuns", "200",
     "What ran, the latest end first, page by page", "`kept` is false if the store is set to keep no runs.", NULL},
    {.path = NULL}};

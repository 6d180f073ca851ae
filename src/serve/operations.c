/* SPDX-License-Identifier: MIT */
/* For operators: is it alive, is it ready, what can it do. */
#include "base/text.h"
#include "dibs/admin.h"
#include "handle/handle.h"
#include "serve/probe.h"
#include "serve/problem.h"
#include "serve/server.h"

static void write_state(struct request *r, int status, const char *state) {
  struct dibs__json *j = dibs__answer_begin(r, status);
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "status", state);
  dibs__json_close(j, '}');
}

static void get_health(struct request *r) {
  write_state(r, 200, "alive");
  dibs__answer_end(r);
}

/* The request needs no token, so the answer does not have the reason: it may name the database and its user. */
static void answer_ready(struct request *r, bool up) {
  dibs_error error = {0};
  if (up) {
    write_state(r, 200, "ready");
    dibs__answer_end(r);
    return;
  }
  (void)dibs__fail(&error, DIBS_UNAVAILABLE, "the store does not answer; the daemon's messages have the reason");
  dibs__answer_problem(r, DIBS_UNAVAILABLE, &error);
}

static void get_ready(struct request *r) {
  dibs__probe_run(r, answer_ready);
}

static void get_openapi(struct request *r) {
  dibs__openapi_write(dibs__answer_begin(r, 200));
  dibs__answer_end(r);
}

/* ---- Problems ---- */

static void write_problem(struct dibs__json *j, const struct problem *p) {
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "problem", p->word);
  dibs__json_int(j, "status", p->http);
  dibs__json_text(j, "meaning", p->meaning);
  dibs__json_text(j, "cause", p->cause);
  dibs__json_text(j, "next_step", p->next);
  dibs__json_close(j, '}');
}

/* What the `type` of a problem points to. */
static void get_problem(struct request *r) {
  const struct problem *p = dibs__problem_find(r->param[0]);
  if (!p) {
    dibs__answer_refuse(r, 404, "not-found", "there is no kind of problem \"%.64s\"; /problems lists them",
                        r->param[0]);
    return;
  }
  write_problem(dibs__answer_begin(r, 200), p);
  dibs__answer_end(r);
}

static void list_problems(struct request *r) {
  struct dibs__json *j = dibs__answer_begin(r, 200);
  const struct problem *p;
  dibs__json_open(j, NULL, '{');
  dibs__json_open(j, "problems", '[');
  for (size_t i = 0; (p = dibs__problem_nth(i)); i++) write_problem(j, p);
  dibs__json_close(j, ']');
  dibs__json_close(j, '}');
  dibs__answer_end(r);
}

const struct route dibs__operation_routes[] = {
    {METHOD_GET, "/healthz", SCOPE_NONE, get_health, 0, NULL, "getHealth", "200", "Does the daemon run?", "", NULL},
    {METHOD_GET, "/readyz", SCOPE_NONE, get_ready, 0, NULL, "getReady", "200", "Does the store answer?", "", NULL},
    {METHOD_GET, "/openapi.json", SCOPE_NONE, get_openapi, 0, NULL, "getOpenApi", "200",
     "What this daemon takes and answers", "", NULL},
    {METHOD_GET, "/problems", SCOPE_NONE, list_problems, 0, NULL, "listProblems", "200",
     "All kinds of problems: what they mean, what causes them, what to do next", "", NULL},
    {METHOD_GET, "/problems/{word}", SCOPE_NONE, get_problem, 0, NULL, "getProblem", "200 404",
     "What a kind of problem means, what causes it, what to do next", "", NULL},
    {.path = NULL}};

/* SPDX-License-Identifier: MIT */
/* Answers: JSON, and problems (RFC 9457). */
#include "serve/problem.h"
#include "serve/server.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void dibs__answer_free(struct answer *answer) {
  dibs__json_free(&answer->body);
  free(answer->headers);
}

struct dibs__json *dibs__answer_begin(struct request *r, int status) {
  dibs__answer_free(&r->answer);
  r->answer = (struct answer){.status = status};
  return &r->answer.body;
}

void dibs__answer_header(struct request *r, const char *name, const char *format, ...) {
  struct answer *a = &r->answer;
  if (a->header_count == HEADERS_MAX) return;
  if (!a->headers && !(a->headers = malloc(HEADERS_MAX * sizeof *a->headers))) {
    a->body.failed = true; /* an answer without its headers would say something else */
    return;
  }
  va_list args;
  va_start(args, format);
  vsnprintf(a->headers[a->header_count].value, sizeof a->headers[0].value, format, args);
  va_end(args);
  a->headers[a->header_count++].name = name;
}

void dibs__answer_end(struct request *r) {
  if (r->in_pool) return; /* dibs__pool_finish sends it */
  r->answered = true;
  dibs__http_answer_ready(r);
}

/* `word` names the kind of problem: "held". */
static struct dibs__json *begin_problem(struct request *r, int status, const char *word, const char *detail) {
  const struct problem *p = dibs__problem_find(word);
  struct dibs__json *j = dibs__answer_begin(r, status);
  char type[64];
  snprintf(type, sizeof type, "/problems/%s", word);
  r->answer.type = "application/problem+json";
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "type", type);
  dibs__json_text(j, "title", p ? p->meaning : MHD_get_reason_phrase_for((unsigned)status));
  dibs__json_int(j, "status", status);
  dibs__json_text(j, "detail", detail);
  if (r->param[0]) dibs__json_text(j, "name", r->param[0]);
  if (p && p->again > 0) dibs__answer_header(r, "Retry-After", "%u", p->again);
  return j;
}

void dibs__answer_problem_end(struct request *r) {
  dibs__json_close(&r->answer.body, '}');
  dibs__answer_end(r);
}

struct dibs__json *dibs__answer_problem_begin(struct request *r, dibs_status status, const dibs_error *error) {
  const struct problem *p = dibs__problem_of(status);
  return begin_problem(r, p->http, p->word, error && error->text[0] ? error->text : p->meaning);
}

void dibs__answer_problem(struct request *r, dibs_status status, const dibs_error *error) {
  if (status == DIBS_CANCELLED && r->server->stopping) {
    dibs__answer_refuse(r, 503, "stopping", "dibs is stopping; repeat the request");
    return;
  }
  if (status == DIBS_CANCELLED && r->revoked) {
    dibs__auth_refuse_revoked(r);
    return;
  }
  (void)dibs__answer_problem_begin(r, status, error);
  dibs__answer_problem_end(r);
}

void dibs__answer_refuse(struct request *r, int status, const char *word, const char *format, ...) {
  char detail[512];
  va_list args;
  va_start(args, format);
  vsnprintf(detail, sizeof detail, format, args);
  va_end(args);
  (void)begin_problem(r, status, word, detail);
  dibs__answer_problem_end(r);
}

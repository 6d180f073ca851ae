/* SPDX-License-Identifier: MIT */
/*
 * The log of actions: every request, and every operation of a client with the daemon as its store, that needs the scope
 * admin, done or refused, and who sent it.  A line of JSON each, so that no text of a client can look like another
 * line.
 */
#include "serve/server.h"
#include "store/family.h"
#include "store/task.h"

#include <stdio.h>

enum { BODY_SHOWN = 400 };

static const char *const words[METHOD_COUNT] = {"GET", "POST", "PUT", "PATCH", "DELETE"};

static void begin_line(struct dibs__json *j, const struct request *r, const char *action) {
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "action", action);
  dibs__json_text(j, "token", *dibs__auth_label(r) ? dibs__auth_label(r) : NULL);
}

static void end_line(struct dibs__json *j, const struct request *r) {
  dibs__json_close(j, '}');
  if (!j->failed) r->server->config.act("%.*s", (int)j->length - 1, j->text); /* without its line end */
  dibs__json_free(j);
}

void dibs__action_log(const struct request *r) {
  if (!r->route || r->route->scope != SCOPE_ADMIN || r->method == METHOD_GET || !r->server->config.act) return;
  struct dibs__json j = {.text = NULL};
  size_t shown = r->body_length < BODY_SHOWN ? r->body_length : BODY_SHOWN;
  begin_line(&j, r, r->route->name);
  dibs__json_text(&j, "method", words[r->method]);
  dibs__json_text(&j, "target", r->target);
  if (r->body && shown > 0) dibs__json_bytes(&j, "body", r->body, shown);
  dibs__json_int(&j, "status", r->answer.status);
  end_line(&j, r);
}

/* What a change of tasks is for: one number, or a kind. */
static void add_tasks(struct dibs__json *j, const struct dibs__task_op *op) {
  dibs__str kind = op->filter.kind;
  if (op->filter.nr) dibs__json_uint(j, "task", op->filter.nr);
  if (kind.len > 0) dibs__json_bytes(j, "name", kind.p, kind.len);
}

void dibs__action_log_op(const struct request *r, const struct dibs__op *op) {
  if (!r->server->config.act) return;
  struct dibs__json j = {.text = NULL};
  dibs__str key = dibs__op_key(op);
  char action[40];
  snprintf(action, sizeof action, "%s.%s", dibs__family_of(op)->name, dibs__verb_name(op));
  begin_line(&j, r, action);
  dibs__json_text(&j, "target", r->target);
  if (key.len > 0) dibs__json_bytes(&j, "name", key.p, key.len);
  if (op->family == DIBS__FAM_TASK && op->verb == DIBS__TASK_CHANGE) add_tasks(&j, (const struct dibs__task_op *)op);
  dibs__json_text(&j, "status", dibs_status_name((dibs_status)op->status));
  end_line(&j, r);
}

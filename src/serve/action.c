/* SPDX-License-Identifier: MIT */
/* The log of actions: every request that needs the scope admin, done or refused, and who sent it. */
#include "serve/server.h"

enum { BODY_SHOWN = 400 };

static const char *const words[METHOD_COUNT] = {"GET", "POST", "PUT", "PATCH", "DELETE"};

/* A line of JSON, so that no text of a client can look like another line. */
void dibs__action_log(const struct request *r) {
  if (!r->route || r->route->scope != SCOPE_ADMIN || r->method == METHOD_GET || !r->server->config.note) return;
  struct dibs__json j = {.text = NULL};
  size_t shown = r->body_length < BODY_SHOWN ? r->body_length : BODY_SHOWN;
  dibs__json_open(&j, NULL, '{');
  dibs__json_text(&j, "action", r->route->name);
  dibs__json_text(&j, "token", *dibs__auth_label(r) ? dibs__auth_label(r) : NULL);
  dibs__json_text(&j, "method", words[r->method]);
  dibs__json_text(&j, "target", r->target);
  if (r->body && shown > 0) dibs__json_bytes(&j, "body", r->body, shown);
  dibs__json_int(&j, "status", r->answer.status);
  dibs__json_close(&j, '}');
  if (!j.failed) r->server->config.note("%.*s", (int)j.length - 1, j.text); /* without its line end */
  dibs__json_free(&j);
}

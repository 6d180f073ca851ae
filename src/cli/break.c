/* SPDX-License-Identifier: MIT */
/* `dibs break`: takes a name from its holder by force. */
#include "cli/cli.h"

int dibs__cli_break(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  const char *name = call->pos[0];
  if (call->v.now && call->v.wait_ms != CLI_UNSET)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "--now does not wait; give --now or --wait, not both");
  dibs_store *store = NULL;
  int code = dibs__cli_open(g, 0, &store);
  if (code != CLI_DONE) return code;
  dibs_break_options options = {.size = sizeof options, .who = g->owner};
  options.flags = call->v.now ? DIBS_BREAK_NOW : 0;
  options.wait_ms = call->v.now ? 0 : call->v.wait_ms != CLI_UNSET ? call->v.wait_ms : DIBS_FOREVER;
  dibs_error error = {0};
  dibs_status status = dibs_break(store, name, &options, &error);
  if (status != DIBS_OK) {
    code = dibs__cli_fail_status(g, status, &error, name);
  } else if (g->json) {
    struct cli_json j = {.out = stdout};
    dibs__cli_json_open(&j, NULL, '{');
    dibs__cli_json_text(&j, "name", name);
    dibs__cli_json_bool(&j, "broken", true);
    dibs__cli_json_bool(&j, "now", call->v.now);
    dibs__cli_json_close(&j, '}');
    code = dibs__cli_flush(g);
  } else if (call->v.now) {
    dibs__cli_note(g, "'%s' is free; its old holder may go on until it notices, for up to a third of its ttl", name);
  }
  dibs_close(store);
  return code;
}

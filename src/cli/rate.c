/* SPDX-License-Identifier: MIT */
/* `dibs rate`: a quota that all clients of a store share. */
#include "base/duration.h"
#include "cli/cli.h"
#include "dibs/counter.h"
#include "store/counter.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* N/TIME */
static int read_limit(const struct cli_globals *g, const char *text, dibs_rate_options *o) {
  const char *slash = text != NULL ? strchr(text, '/') : NULL;
  char number[32], why[128];
  uint64_t limit = 0;
  if (text == NULL) return dibs__cli_fail(g, CLI_USAGE, "INVALID", "--limit is missing; for example --limit 100/1m");
  size_t len = slash != NULL ? (size_t)(slash - text) : 0;
  if (len < 1 || len >= sizeof number)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "--limit: '%.40s' is not N/TIME, such as 100/1m", text);
  memcpy(number, text, len);
  number[len] = '\0';
  if (!dibs__cli_number(number, INT64_MAX, &limit))
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "--limit: '%.31s' is not a number", number);
  if (!dibs__duration_read(slash + 1, &o->per_ms, why, sizeof why))
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "--limit: %s", why);
  o->limit = (int64_t)limit;
  if (o->per_ms > DIBS__RATE_PER_MAX_MS)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "--limit: '%.40s': give a time of 31d at most", text);
  if (o->limit == 0 || o->per_ms == 0)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "--limit: '%.40s' allows nothing; give numbers from 1 on", text);
  return CLI_DONE;
}

static int print_json(const struct cli_globals *g, const char *key, dibs_status status, int64_t retry_ms) {
  struct dibs__json j = {.out = stdout};
  dibs__json_open(&j, NULL, '{');
  dibs__json_text(&j, "key", key);
  dibs__json_text(&j, "status", dibs_status_name(status));
  dibs__json_int(&j, "retry_ms", retry_ms);
  dibs__json_close(&j, '}');
  return dibs__cli_flush(g);
}

/* A refusal is an answer: with --json it is on standard output, too. */
static int answer(const struct cli_globals *g, const char *key, dibs_status status, int64_t retry_ms,
                  dibs_error *error) {
  if (status != DIBS_OK && status != DIBS_FULL) return dibs__cli_fail_status(g, status, error, key);
  if (g->json) {
    int code = print_json(g, key, status, retry_ms);
    return code != CLI_DONE || status == DIBS_OK ? code : CLI_BUSY;
  }
  if (status == DIBS_OK) return CLI_DONE;
  char text[40];
  dibs__duration_write(text, sizeof text, retry_ms);
  snprintf(error->text, sizeof error->text, "the quota \"%s\" is used up; try again in %s", key, text);
  return dibs__cli_fail_status(g, status, error, key);
}

int dibs__cli_rate(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  const char *key = call->pos[0];
  dibs_rate_options o = DIBS_RATE_OPTIONS_INIT;
  dibs_store *store = NULL;
  dibs_error error = {0};
  uint64_t amount = 1;
  int64_t retry_ms = 0;
  int code = read_limit(g, call->v.limit, &o);
  if (code == CLI_DONE && call->npos > 1 && (!dibs__cli_number(call->pos[1], INT64_MAX, &amount) || amount == 0))
    code = dibs__cli_fail(g, CLI_USAGE, "INVALID", "'%.40s' is not a number from 1 on", call->pos[1]);
  if (code == CLI_DONE && amount > (uint64_t)o.limit)
    code = dibs__cli_fail(g, CLI_USAGE, "INVALID", "'%.40s' is more than the whole quota, --limit %.40s", call->pos[1],
                          call->v.limit);
  o.amount = (int64_t)amount;
  if (call->v.wait_ms != CLI_UNSET) o.wait_ms = call->v.wait_ms;
  if (code == CLI_DONE) code = dibs__cli_open(g, 0, &store);
  if (code == CLI_DONE) {
    dibs_status status = dibs_rate(store, key, &o, &retry_ms, &error);
    code = answer(g, key, status, retry_ms, &error);
  }
  dibs_close(store);
  return code;
}

/* SPDX-License-Identifier: MIT */
/* `dibs stock`: a bounded quantity, taken and given back under claim ids. */
#include "base/text.h"
#include "cli/cli.h"

#include <inttypes.h>
#include <string.h>

static const struct {
  const char *name;
  dibs_strategy strategy;
} strategies[] = {{"coalesced", DIBS_COALESCED},   {"atomic", DIBS_ATOMIC}, {"pessimistic", DIBS_PESSIMISTIC},
                  {"optimistic", DIBS_OPTIMISTIC}, {"named", DIBS_NAMED},   {"fenced", DIBS_FENCED},
                  {"unguarded", DIBS_UNGUARDED}};
enum { STRATEGIES = sizeof strategies / sizeof *strategies };

struct stock {
  const struct cli_globals *globals;
  const struct cli_values *values;
  const char *verb, *key;
  const char *third; /* LIMIT, N or CLAIM; NULL: not given */
  int64_t amount;
  dibs_stock_options options;
  dibs_stock_result result;
};

/* ---- What was asked ---- */

static const char *nth_strategy(size_t i, const void *arg) {
  (void)arg;
  return i < STRATEGIES ? strategies[i].name : NULL;
}

static int set_strategy(struct stock *s) {
  const char *word = s->values->strategy;
  if (word == NULL) return CLI_DONE;
  for (size_t i = 0; i < STRATEGIES; i++) {
    if (strcmp(strategies[i].name, word) != 0) continue;
    s->options.strategy = strategies[i].strategy;
    return CLI_DONE;
  }
  const char *near = dibs__cli_nearest(word, nth_strategy, NULL);
  return dibs__cli_fail(s->globals, CLI_USAGE, "INVALID", "--strategy: there is no '%.40s'%s%s%s", word,
                        near != NULL ? "; did you mean " : "; see dibs help stock", near != NULL ? near : "",
                        near != NULL ? "?" : "");
}

static int set_amount(struct stock *s, uint64_t least) {
  uint64_t n = 1;
  if (s->third != NULL && (!dibs__cli_number(s->third, INT64_MAX, &n) || n < least))
    return dibs__cli_fail(s->globals, CLI_USAGE, "INVALID", "'%.40s' is no number from %" PRIu64 " on", s->third,
                          least);
  s->amount = (int64_t)n;
  return CLI_DONE;
}

/* Which options go with which verb: claim, partial, strategy, wait. */
static int check_options(const struct stock *s, bool takes, bool gives) {
  const struct cli_values *v = s->values;
  const char *stray = NULL;
  if (!takes && v->claim != NULL) stray = "--claim";
  if (!takes && v->partial) stray = "--partial";
  if (!takes && !gives && v->strategy != NULL) stray = "--strategy";
  if (stray == NULL) return CLI_DONE;
  return dibs__cli_fail(s->globals, CLI_USAGE, "INVALID", "%s goes with %s, not with stock %s", stray,
                        strcmp(stray, "--strategy") == 0 ? "stock take and give" : "stock take", s->verb);
}

static int missing(const struct stock *s, const char *what) {
  return dibs__cli_fail(s->globals, CLI_USAGE, "INVALID", "something is missing: dibs stock %s %s; see dibs help stock",
                        s->verb, what);
}

/* ---- What came of it ---- */

static int print(const struct stock *s, dibs_status status) {
  const dibs_stock_result *r = &s->result;
  bool moves = strcmp(s->verb, "take") == 0 || strcmp(s->verb, "give") == 0;
  bool known = r->used >= 0 && r->limit >= 0;
  if (s->globals->json) {
    struct cli_json j = {.out = stdout};
    dibs__cli_json_open(&j, NULL, '{');
    dibs__cli_json_text(&j, "key", s->key);
    dibs__cli_json_text(&j, "status", dibs_status_name(status));
    if (moves) dibs__cli_json_text(&j, "claim", r->claim);
    if (moves) dibs__cli_json_int(&j, "got", r->got);
    if (known) dibs__cli_json_int(&j, "used", r->used);
    if (known) dibs__cli_json_int(&j, "limit", r->limit);
    if (moves) dibs__cli_json_uint(&j, "retries", r->retries);
    if (moves) dibs__cli_json_uint(&j, "deadlocks", r->deadlocks);
    dibs__cli_json_close(&j, '}');
    return dibs__cli_flush(s->globals);
  }
  if (strcmp(s->verb, "take") == 0) printf("claim %s\n", r->claim);
  if (moves) printf("got %" PRId64 "\n", r->got);
  if (known && strcmp(s->verb, "set") != 0) printf("used %" PRId64 "\nlimit %" PRId64 "\n", r->used, r->limit);
  return dibs__cli_flush(s->globals);
}

static int act(struct stock *s, dibs_store *store) {
  dibs_error error = {0};
  dibs_status status;
  s->result.size = sizeof s->result;
  s->result.used = s->result.limit = -1;
  if (strcmp(s->verb, "take") == 0)
    status = dibs_stock_take(store, s->key, s->amount, &s->options, &s->result, &error);
  else if (strcmp(s->verb, "give") == 0)
    status = dibs_stock_give(store, s->key, s->third, &s->options, &s->result, &error);
  else if (strcmp(s->verb, "set") == 0)
    status = dibs_stock_set(store, s->key, s->amount, &s->options, &s->result, &error);
  else
    status = dibs_stock_show(store, s->key, &s->options, &s->result, &error);
  /* Who repeats a call finds what it came to: that is what claims are for, and no failure. */
  if (status == DIBS_OK || status == DIBS_REPLAY) return print(s, status);
  int code = dibs__cli_fail_status(s->globals, status, &error, s->key);
  if (status == DIBS_UNKNOWN && strcmp(s->verb, "take") == 0 && s->values->claim == NULL && s->result.claim[0] != '\0')
    dibs__cli_note(s->globals, "ask again with --claim %s to learn what came of it", s->result.claim);
  return code;
}

int dibs__cli_stock(struct cli_call *call) {
  struct stock s = {.globals = &call->v.globals,
                    .values = &call->v,
                    .verb = call->pos[0],
                    .key = call->pos[1],
                    .third = call->npos > 2 ? call->pos[2] : NULL};
  const struct cli_globals *g = s.globals;
  bool sets = strcmp(s.verb, "set") == 0, takes = strcmp(s.verb, "take") == 0, gives = strcmp(s.verb, "give") == 0;
  if (!sets && !takes && !gives && strcmp(s.verb, "show") != 0)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "'%.40s' is none of set, take, give, show; see dibs help stock",
                          s.verb);
  if (sets && s.third == NULL) return missing(&s, "KEY LIMIT");
  if (gives && s.third == NULL) return missing(&s, "KEY CLAIM");
  if (!sets && !takes && !gives && s.third != NULL)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "'%.40s' is one word too many: dibs stock show KEY", s.third);
  s.options = (dibs_stock_options){.size = sizeof s.options, .owner = g->owner, .claim = call->v.claim};
  if (call->v.wait_ms != CLI_UNSET) s.options.wait_ms = call->v.wait_ms > 0 ? call->v.wait_ms : 1;
  if (call->v.partial) s.options.flags |= DIBS_TAKE_PARTIAL;
  int code = check_options(&s, takes, gives);
  if (code == CLI_DONE) code = set_strategy(&s);
  if (code == CLI_DONE && (sets || takes)) code = set_amount(&s, takes ? 1 : 0);
  dibs_store *store = NULL;
  dibs_table *table = NULL;
  if (code == CLI_DONE) code = dibs__cli_table(call, &table);
  s.options.table = table;
  if (code == CLI_DONE) code = dibs__cli_open(g, 0, &store);
  if (code == CLI_DONE) code = act(&s, store);
  dibs_close(store);
  dibs_table_free(table);
  return code;
}

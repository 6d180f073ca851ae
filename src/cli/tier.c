/* SPDX-License-Identifier: MIT */
/* `dibs tier`: see and steer the tiers of a store. */
#include "cli/tier.h"

#include <string.h>
#include <unistd.h>

struct tier_call {
  const struct cli_globals *globals;
  const struct cli_values *values;
  const char *verb, *word; /* NULL: not given */
  dibs_store *store;
};

static int told(const struct tier_call *c, dibs_status status, const dibs_error *error) {
  return status == DIBS_OK ? CLI_DONE : dibs__cli_fail_status(c->globals, status, error, c->verb);
}

/* ---- status ---- */

static int show(const struct tier_call *c) {
  const struct cli_globals *g = c->globals;
  struct cli_tiers tiers;
  dibs_error error = {0};
  int code = told(c, dibs__cli_tiers_look(c->store, &tiers, &error), &error);
  if (code == CLI_DONE && tiers.full) code = dibs__cli_fail(g, CLI_FAILED, "NO_MEMORY", "out of memory");
  if (code == CLI_DONE && g->json) {
    struct cli_json j = {.out = stdout};
    dibs__cli_json_open(&j, NULL, '{');
    dibs__cli_tiers_json(&tiers, &j);
    dibs__cli_json_close(&j, '}');
  } else if (code == CLI_DONE) {
    size_t columns = dibs__cli_columns(STDOUT_FILENO);
    dibs__cli_tiers_say(&tiers, stdout);
    putc('\n', stdout);
    dibs__cli_tiers_table(&tiers, columns, stdout);
    dibs__cli_tiers_troubled(&tiers, columns, stdout);
    printf("\nstrictness %s, clients %u\n", dibs__cli_strictness_name(tiers.info.strictness), tiers.info.clients);
  }
  bool confirmed = dibs__cli_tiers_confirmed(&tiers);
  dibs__cli_tiers_free(&tiers);
  if (code == CLI_DONE) code = dibs__cli_flush(g);
  if (code != CLI_DONE || confirmed) return code;
  return dibs__cli_fail(g, CLI_STORE, "UNAVAILABLE",
                        "the anchor, the last tier, can't be reached: nothing can be moved or set until it is back");
}

/* ---- Changes ---- */

static int move(const struct tier_call *c) {
  dibs_error error = {0};
  bool automatic = strcmp(c->word, "auto") == 0;
  return told(c, dibs_tier_move(c->store, automatic ? NULL : c->word, &error), &error);
}

static int switch_to(const struct tier_call *c, dibs_hand hand) {
  dibs_error error = {0};
  return told(c, dibs_tier_switch(c->store, c->word, hand, &error), &error);
}
static int open_it(const struct tier_call *c) {
  return switch_to(c, DIBS_HAND_OPEN);
}
static int close_it(const struct tier_call *c) {
  return switch_to(c, DIBS_HAND_CLOSED);
}
static int hand_off(const struct tier_call *c) {
  return switch_to(c, DIBS_HAND_AUTO);
}

static int bump(const struct tier_call *c) {
  dibs_error error = {0};
  uint64_t above = 0;
  if (c->word != NULL && !dibs__cli_number(c->word, (UINT64_C(1) << 53) - 1, &above))
    return dibs__cli_fail(c->globals, CLI_USAGE, "INVALID", "'%.40s' is no fence: a number below 2^53", c->word);
  return told(c, dibs_tier_bump(c->store, above, &error), &error);
}

static int strictness(const struct tier_call *c) {
  dibs_error error = {0};
  dibs_strictness now = DIBS_STRICTNESS_FENCED;
  if (c->word == NULL) {
    int code = told(c, dibs_strictness_get(c->store, &now, &error), &error);
    if (code != CLI_DONE) return code;
    struct cli_json j = {.out = stdout};
    if (c->globals->json) {
      dibs__cli_json_open(&j, NULL, '{');
      dibs__cli_json_text(&j, "strictness", dibs__cli_strictness_name(now));
      dibs__cli_json_close(&j, '}');
    } else {
      puts(dibs__cli_strictness_name(now));
    }
    return dibs__cli_flush(c->globals);
  }
  for (int i = DIBS_STRICTNESS_FENCED; i <= DIBS_STRICTNESS_LEAST; i++)
    if (strcmp(c->word, dibs__cli_strictness_name((dibs_strictness)i)) == 0)
      return told(c, dibs_strictness_set(c->store, (dibs_strictness)i, &error), &error);
  return dibs__cli_fail(c->globals, CLI_USAGE, "INVALID", "'%.40s' is none of fenced, strict, least-strict", c->word);
}

/* Whoever still goes by the old mandates would be refused by its store, or worse, be let in elsewhere. */
static int alone(const struct tier_call *c) {
  struct cli_tiers tiers;
  dibs_error error = {0};
  int code = CLI_DONE;
  dibs_status status = dibs__cli_tiers_look(c->store, &tiers, &error);
  size_t others = 0;
  for (size_t i = 0; status == DIBS_OK && i < tiers.clients; i++) others += !tiers.client[i].info.us;
  dibs__cli_tiers_free(&tiers);
  if (!c->values->force && status == DIBS_UNSUPPORTED)
    code =
        dibs__cli_fail(c->globals, CLI_BUSY, "HELD",
                       "whether somebody still uses %s as a tier can't be seen from here: open it with all its tiers, "
                       "or be sure and give --force",
                       dibs_store_uri(c->store));
  else if (!c->values->force && status == DIBS_OK && others > 0)
    code = dibs__cli_fail(c->globals, CLI_BUSY, "HELD",
                          "%zu other client%s used the tiers in the last 10 s: end them first (dibs tier status --json "
                          "names them), or give --force",
                          others, others == 1 ? "" : "s");
  if (code != CLI_DONE) return code;
  return told(c, dibs_tier_alone(c->store, &error), &error);
}

/* ---- The command ---- */

static const struct {
  const char *name;
  uint8_t least, most; /* words behind it */
  int (*act)(const struct tier_call *call);
  const char *args;
} verbs[] = {{"status", 0, 0, show, ""},
             {"move", 1, 1, move, " TIER|auto"},
             {"open", 1, 1, open_it, " TIER"},
             {"close", 1, 1, close_it, " TIER"},
             {"auto", 1, 1, hand_off, " TIER"},
             {"bump", 0, 1, bump, " [FENCE]"},
             {"strictness", 0, 1, strictness, " [fenced|strict|least-strict]"},
             {"alone", 0, 0, alone, ""}};
enum { VERBS = sizeof verbs / sizeof *verbs };

static const char *nth_verb(size_t i, const void *arg) {
  (void)arg;
  return i < VERBS ? verbs[i].name : NULL;
}

int dibs__cli_tier(struct cli_call *call) {
  struct tier_call c = {.globals = &call->v.globals,
                        .values = &call->v,
                        .verb = call->pos[0],
                        .word = call->npos > 1 ? call->pos[1] : NULL};
  size_t v = 0;
  while (v < VERBS && strcmp(verbs[v].name, c.verb) != 0) v++;
  if (v == VERBS) {
    const char *near = dibs__cli_nearest(c.verb, nth_verb, NULL);
    return dibs__cli_fail(c.globals, CLI_USAGE, "INVALID", "there is no dibs tier %.40s%s%s%s", c.verb,
                          near != NULL ? "; did you mean " : "; see dibs help tier", near != NULL ? near : "",
                          near != NULL ? "?" : "");
  }
  uint8_t given = c.word != NULL;
  if (given < verbs[v].least || given > verbs[v].most)
    return dibs__cli_fail(c.globals, CLI_USAGE, "INVALID", "%s: dibs tier %s%s",
                          given ? "one word too many" : "something is missing", verbs[v].name, verbs[v].args);
  if (call->v.force && verbs[v].act != alone)
    return dibs__cli_fail(c.globals, CLI_USAGE, "INVALID", "--force goes with dibs tier alone, not with %s", c.verb);
  int code = dibs__cli_open(c.globals, 0, &c.store);
  if (code == CLI_DONE) code = verbs[v].act(&c);
  dibs_close(c.store);
  return code;
}

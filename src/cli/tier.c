/* SPDX-License-Identifier: MIT */
/* The state of a store's tiers, as a table and as JSON. */
#include "base/duration.h"
#include "base/text.h"
#include "cli/cli.h"
#include "info/info.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TROUBLED_MAX = 20, CONFIRMED_MS = 3000, FEW_EPOCHS_PERCENT = 25 };

/* ---- Reading ---- */

static int keep_tier(const dibs_tier_info *info, void *user) {
  struct cli_tiers *tiers = user;
  if (tiers->count == DIBS_TIERS_MAX) return 1;
  size_t i = tiers->count++;
  snprintf(tiers->tier[i].name, sizeof tiers->tier[i].name, "%s", info->name);
  snprintf(tiers->tier[i].uri, sizeof tiers->tier[i].uri, "%s", info->uri);
  snprintf(tiers->tier[i].trouble, sizeof tiers->tier[i].trouble, "%s", info->trouble);
  tiers->tier[i].info = *info;
  tiers->tier[i].info.name = tiers->tier[i].name;
  tiers->tier[i].info.uri = tiers->tier[i].uri;
  tiers->tier[i].info.trouble = tiers->tier[i].trouble;
  return 0;
}

static int keep_client(const dibs_tier_client *info, void *user) {
  struct cli_tiers *tiers = user;
  if (tiers->clients == tiers->capacity) {
    size_t capacity = tiers->capacity ? tiers->capacity * 2 : 32;
    struct cli_tier_client *client = realloc(tiers->client, capacity * sizeof *client);
    if (client == NULL) {
      tiers->full = true;
      return 1;
    }
    tiers->client = client;
    tiers->capacity = capacity;
  }
  struct cli_tier_client *client = &tiers->client[tiers->clients++];
  client->info = *info;
  snprintf(client->owner, sizeof client->owner, "%s", info->owner);
  client->info.owner = NULL; /* the array may move: client->owner */
  return 0;
}

dibs_status dibs__cli_tiers_read(dibs_store *store, struct cli_tiers *tiers, dibs_error *error) {
  *tiers = (struct cli_tiers){.info = {.size = sizeof tiers->info}};
  return dibs_tiers(store, &tiers->info, keep_tier, keep_client, tiers, error);
}

void dibs__cli_tiers_free(struct cli_tiers *tiers) {
  free(tiers->client);
  *tiers = (struct cli_tiers){0};
}

/* ---- In words ---- */

bool dibs__cli_tiers_confirmed(const struct cli_tiers *t) {
  return t->info.confirmed_ms >= 0 && t->info.confirmed_ms <= CONFIRMED_MS;
}

bool dibs__cli_tiers_few_epochs(const struct cli_tiers *t) {
  return t->info.epochs_left_percent < FEW_EPOCHS_PERCENT;
}

static bool is_left(const struct cli_tiers *t, size_t nth) {
  const dibs_tier_info *tier = &t->tier[nth].info;
  return tier->hand == DIBS_HAND_OPEN || (tier->hand == DIBS_HAND_AUTO && tier->down);
}

static void print_served(const struct cli_tiers *t, FILE *out) {
  uint32_t served = 0, astray = 0, leaving = 0;
  const char *between = "";
  for (size_t i = 0; i < t->count; i++) {
    const dibs_tier_info *tier = &t->tier[i].info;
    served += tier->buckets;
    leaving += tier->leaving;
    if (tier->wanted > tier->buckets) astray += tier->wanted - tier->buckets;
    if (tier->buckets == 0) continue;
    fprintf(out, "%s%s serves %" PRIu32 " of %d buckets", between, tier->name, tier->buckets, DIBS_BUCKETS);
    between = ", ";
  }
  if (served == 0)
    fputs("these stores are not used as tiers yet: the first lease, or dibs flag set, makes them tiers", out);
  fputs(".\n", out);
  if (served == DIBS_BUCKETS && astray > 0)
    fprintf(out, "%" PRIu32 " buckets are not yet on their tier: they wait for %s.\n", astray,
            leaving > 0 ? "a move to end, or for an unreachable tier" : "an unreachable tier");
  for (size_t i = 0; i < t->count; i++)
    if (t->tier[i].info.leaving > 0)
      fprintf(out, "%" PRIu32 " buckets are moving away from %s; leases that are still held there end there.\n",
              t->tier[i].info.leaving, t->tier[i].name);
}

static void print_tier(const struct cli_tiers *t, size_t nth, FILE *out) {
  const dibs_tier_info *tier = &t->tier[nth].info;
  char since[24];
  dibs__duration_write(since, sizeof since, tier->turned_ms > 0 ? tier->turned_ms : 0);
  if (tier->hand == DIBS_HAND_OPEN)
    fprintf(out, "%s is switched off by hand; dibs tier auto %s removes that setting.\n", tier->name, tier->name);
  else if (tier->hand == DIBS_HAND_CLOSED)
    fprintf(out, "%s is kept on by hand, despite the votes of clients; dibs tier auto %s removes that setting.\n",
            tier->name, tier->name);
  else if (tier->down)
    fprintf(out,
            "%s has been DOWN for %s, by the vote of its clients; %" PRIu32 " of %" PRIu32
            " clients can use it again.\n",
            tier->name, since, tier->clients_well, t->info.clients);
  else if (tier->clients_down > 0)
    fprintf(out,
            "%s fails %" PRIu32 " of the %" PRIu32
            " clients that use it; names leave it when it fails more than half.\n",
            tier->name, tier->clients_down, tier->active);
  if (tier->trouble[0] != '\0' && !tier->reached) {
    fprintf(out, "%s, from this process: ", tier->name);
    dibs__cli_put(out, tier->trouble, 0);
    putc('\n', out);
  }
}

static void print_summary(const struct cli_tiers *t, FILE *out) {
  char since[24];
  if (t->info.on_their_own)
    fputs("EVERY TIER IS DOWN: each process continues with its own memory, and two may hold the same name.\n", out);
  if (t->info.pinned >= 0 && (size_t)t->info.pinned < t->count)
    fprintf(out, "All names were moved to %s by hand; dibs tier move auto ends that.\n",
            t->tier[t->info.pinned].info.name);
  if (t->info.restored_ms >= 0) {
    dibs__duration_write(since, sizeof since, t->info.restored_ms);
    fprintf(out,
            "THE ANCHOR WENT BACK %s ago: a backup was restored, or another server replaced it.  New fences are larger "
            "than\nall that clients and tiers had seen.  Check dibs flag ls and dibs tier strictness, then confirm "
            "with dibs tier bump.\n",
            since);
  }
  if (dibs__cli_tiers_few_epochs(t))
    fprintf(out,
            "ONLY %" PRIu32
            "%% OF THE EPOCHS ARE LEFT: without one no name moves, and a tier that loses its memory grants\nnothing.  "
            "Moves and epochs use them, which dibs stats counts; each dibs tier bump uses thousands.\n",
            t->info.epochs_left_percent);
  for (size_t i = 0; i < t->count; i++) print_tier(t, i, out);
  print_served(t, out);
  if (dibs__cli_tiers_confirmed(t)) return;
  if (t->info.confirmed_ms < 0) {
    fputs("THE ANCHOR IS UNREACHABLE: this is what the tiers themselves remember.\n", out);
    return;
  }
  dibs__duration_write(since, sizeof since, t->info.confirmed_ms);
  fprintf(out, "THE ANCHOR IS UNREACHABLE: this is its state of %s ago.\n", since);
}

/* ---- As tables ---- */

static void state_cell(char *to, size_t size, const struct cli_tiers *t, size_t nth) {
  const dibs_tier_info *tier = &t->tier[nth].info;
  char since[24];
  if (tier->hand == DIBS_HAND_AUTO && tier->down) {
    dibs__duration_write(since, sizeof since, tier->turned_ms > 0 ? tier->turned_ms : 0);
    snprintf(to, size, "DOWN %s", since);
  } else {
    const char *word = tier->hand == DIBS_HAND_OPEN     ? "off by hand"
                       : tier->hand == DIBS_HAND_CLOSED ? "on by hand"
                                                        : "up";
    bool pinned = t->info.pinned == (int32_t)nth;
    snprintf(to, size, "%s%s", word, pinned ? ", pinned" : nth + 1 == t->count ? ", anchor" : "");
  }
}

static void latency_cell(char *to, size_t size, uint64_t ns) {
  if (ns == 0)
    snprintf(to, size, "-");
  else if (ns < 10000000)
    snprintf(to, size, "%" PRIu64 "us", ns / 1000);
  else
    dibs__duration_write(to, size, (int64_t)(ns / 1000000));
}

void dibs__cli_tiers_table(const struct cli_tiers *t, size_t columns, FILE *out) {
  static const char *const heads[] = {"TIER",         "STATE", ">SERVES", ">-ROLLOUT", ">ACTIVE", ">FAILED",
                                      "BREAKER HERE", ">-P50", ">-P99",   "*STORE",    NULL};
  struct cli_table *table = dibs__cli_table_new(heads);
  for (size_t i = 0; table != NULL && i < t->count; i++) {
    const dibs_tier_info *tier = &t->tier[i].info;
    char state[48], serves[24], rollout[16], active[16], failed[16], p50[24], p99[24];
    bool idle = tier->calls == 0 && !tier->reached && tier->breaker == DIBS_BREAKER_CLOSED;
    state_cell(state, sizeof state, t, i);
    snprintf(serves, sizeof serves, tier->wanted == tier->buckets ? "%" PRIu32 : "%" PRIu32 " of %" PRIu32,
             tier->buckets, tier->wanted);
    snprintf(rollout, sizeof rollout, "%" PRIu32 "%%", tier->percent);
    snprintf(active, sizeof active, "%" PRIu32, tier->active);
    snprintf(failed, sizeof failed, "%" PRIu32, tier->clients_down);
    latency_cell(p50, sizeof p50, tier->p50_ns);
    latency_cell(p99, sizeof p99, tier->p99_ns);
    const char *const cells[] = {
        tier->name, state, serves,   rollout, active, failed, idle ? "not used" : dibs__info_breakers[tier->breaker],
        p50,        p99,   tier->uri};
    for (size_t c = 0; c < sizeof cells / sizeof *cells; c++)
      if (!dibs__cli_table_add(table, cells[c])) break;
  }
  if (table != NULL) dibs__cli_table_print(table, columns, out);
  dibs__cli_table_free(table);
}

static bool troubled(const struct cli_tier_client *client) {
  for (uint32_t i = 0; i < client->info.tiers; i++)
    if (client->info.down[i] || client->info.breaker[i] != DIBS_BREAKER_CLOSED) return true;
  return false;
}

static void trouble_cell(char *to, size_t size, const struct cli_tiers *t, const struct cli_tier_client *client) {
  size_t used = 0;
  to[0] = '\0';
  for (uint32_t i = 0; i < client->info.tiers && i < t->count; i++) {
    if (!client->info.down[i] && client->info.breaker[i] == DIBS_BREAKER_CLOSED) continue;
    /* Open, and no vote: the cause is its own password or configuration. */
    const char *vote = client->info.down[i] ? "down" : "its own fault, no vote";
    int n = snprintf(to + used, size - used, "%s%s: %s, %s", used ? "; " : "", t->tier[i].name,
                     dibs__info_breakers[client->info.breaker[i]], vote);
    if (n > 0) used = used + (size_t)n < size ? used + (size_t)n : size - 1;
  }
}

/* Clients for which a tier fails. */
static void tiers_troubled(const struct cli_tiers *t, size_t columns, FILE *out) {
  static const char *const heads[] = {"*CLIENT IN TROUBLE", "WITH", ">LAST HEARD", NULL};
  size_t shown = 0, more = 0;
  struct cli_table *table = dibs__cli_table_new(heads);
  for (size_t c = 0; table != NULL && c < t->clients; c++) {
    const struct cli_tier_client *client = &t->client[c];
    char trouble[200], age[24];
    if (!troubled(client)) continue;
    if (shown == TROUBLED_MAX) {
      more++;
      continue;
    }
    trouble_cell(trouble, sizeof trouble, t, client);
    dibs__duration_write(age, sizeof age, client->info.age_ms);
    if (!dibs__cli_table_add(table, client->owner) || !dibs__cli_table_add(table, trouble) ||
        !dibs__cli_table_add(table, age))
      break;
    shown++;
  }
  if (shown > 0) {
    putc('\n', out);
    dibs__cli_table_print(table, columns, out);
  }
  if (more > 0) fprintf(out, "and %zu more\n", more);
  dibs__cli_table_free(table);
}

/* ---- As JSON ---- */

static const char *name_of(const void *tiers, size_t nth) {
  const struct cli_tiers *t = tiers;
  return nth < t->count ? t->tier[nth].name : NULL;
}

static void tier_json(const struct cli_tiers *t, size_t nth, struct dibs__json *j) {
  const dibs_tier_info *tier = &t->tier[nth].info;
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "name", tier->name);
  dibs__json_text(j, "store", tier->uri);
  dibs__json_bool(j, "anchor", nth + 1 == t->count);
  dibs__json_bool(j, "left", is_left(t, nth));
  dibs__info_tier(j, tier);
  dibs__json_close(j, '}');
}

void dibs__cli_tiers_json(const struct cli_tiers *t, struct dibs__json *j) {
  dibs__info_tiers(j, &t->info, name_of, t);
  dibs__json_open(j, "tiers", '[');
  for (size_t i = 0; i < t->count; i++) tier_json(t, i, j);
  dibs__json_close(j, ']');
  dibs__info_counts(j, t->info.all);
  dibs__json_open(j, "clients", '[');
  for (size_t i = 0; i < t->clients; i++) {
    dibs__json_open(j, NULL, '{');
    dibs_tier_client client = t->client[i].info;
    client.owner = t->client[i].owner;
    dibs__info_tier_client(j, &client, name_of, t);
    dibs__json_close(j, '}');
  }
  dibs__json_close(j, ']');
}

/* `dibs tier`: shows and controls the tiers of a store. */

struct tier_call {
  const struct cli_globals *globals;
  const struct cli_values *values;
  const char *verb, *word; /* NULL: not given */
  dibs_store *store;
};

static int exit_of_status(const struct tier_call *c, dibs_status status, const dibs_error *error) {
  return status == DIBS_OK ? CLI_DONE : dibs__cli_fail_status(c->globals, status, error, c->verb);
}

/* With --json what was changed, as an object. */
static int report_change(const struct tier_call *c, dibs_status status, const dibs_error *error, const char *key) {
  int code = exit_of_status(c, status, error);
  if (code != CLI_DONE || !c->globals->json) return code;
  struct dibs__json j = {.out = stdout};
  dibs__json_open(&j, NULL, '{');
  dibs__json_text(&j, "verb", c->verb);
  if (key != NULL) dibs__json_text(&j, key, c->word);
  dibs__json_close(&j, '}');
  return dibs__cli_flush(c->globals);
}

/* ---- status ---- */

static int show_status(const struct tier_call *c) {
  const struct cli_globals *g = c->globals;
  struct cli_tiers tiers;
  dibs_error error = {0};
  int code = exit_of_status(c, dibs__cli_tiers_read(c->store, &tiers, &error), &error);
  if (code == CLI_DONE && tiers.full) code = dibs__cli_fail(g, CLI_FAILED, "NO_MEMORY", "out of memory");
  if (code == CLI_DONE && g->json) {
    struct dibs__json j = {.out = stdout};
    dibs__json_open(&j, NULL, '{');
    dibs__cli_tiers_json(&tiers, &j);
    dibs__json_close(&j, '}');
  } else if (code == CLI_DONE) {
    size_t columns = dibs__cli_columns(STDOUT_FILENO);
    print_summary(&tiers, stdout);
    putc('\n', stdout);
    dibs__cli_tiers_table(&tiers, columns, stdout);
    tiers_troubled(&tiers, columns, stdout);
    printf("\nstrictness %s, clients %u, epochs left %u%%\n", dibs__info_strictness(tiers.info.strictness),
           tiers.info.clients, tiers.info.epochs_left_percent);
  }
  bool confirmed = dibs__cli_tiers_confirmed(&tiers);
  dibs__cli_tiers_free(&tiers);
  if (code == CLI_DONE) code = dibs__cli_flush(g);
  if (code != CLI_DONE || confirmed) return code;
  return dibs__cli_fail(g, CLI_STORE, "UNAVAILABLE",
                        "the anchor, the last tier, is unreachable: nothing can be moved or set until it is back");
}

/* ---- Changes ---- */

static int move_buckets(const struct tier_call *c) {
  dibs_error error = {0};
  bool automatic = strcmp(c->word, "auto") == 0;
  return report_change(c, dibs_tier_move(c->store, automatic ? NULL : c->word, &error), &error, "tier");
}

static int switch_to(const struct tier_call *c, dibs_hand hand) {
  dibs_error error = {0};
  return report_change(c, dibs_tier_switch(c->store, c->word, hand, &error), &error, "tier");
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

/* For a server that is used alone, only its own tables record the bump, and a replica may not have them yet. */
static void warn_of_replicas(const struct tier_call *c) {
  static const char *const schemes[] = {"postgres", "mysql", "mariadb"};
  const char *store = c->globals->store;
  dibs_tiers_info info = {.size = sizeof info};
  bool server = false;
  for (size_t i = 0; store && i < sizeof schemes / sizeof schemes[0]; i++)
    server = server || strncmp(store, schemes[i], strlen(schemes[i])) == 0;
  if (!server || dibs_tiers(c->store, &info, NULL, NULL, NULL, NULL) == DIBS_OK) return;
  dibs__cli_note(c->globals, "if a replica that has not received this takes over, run \"dibs tier bump FENCE\" there, "
                             "with the largest fence that you know");
}

static int bump_fences(const struct tier_call *c) {
  dibs_error error = {0};
  uint64_t above = 0;
  if (c->word != NULL && !dibs__cli_number(c->word, (UINT64_C(1) << 53) - 1, &above))
    return dibs__cli_fail(c->globals, CLI_USAGE, "INVALID", "'%.40s' is not a fence: give a number below 2^53",
                          c->word);
  int code = exit_of_status(c, dibs_tier_bump(c->store, (dibs_fence){above}, &error), &error);
  if (code == CLI_DONE) warn_of_replicas(c);
  if (code != CLI_DONE || !c->globals->json) return code;
  struct dibs__json j = {.out = stdout};
  dibs__json_open(&j, NULL, '{');
  dibs__json_text(&j, "verb", c->verb);
  dibs__json_known(&j, "above", (int64_t)above, c->word != NULL);
  dibs__json_close(&j, '}');
  return dibs__cli_flush(c->globals);
}

static int strictness(const struct tier_call *c) {
  dibs_error error = {0};
  dibs_strictness now = DIBS_STRICTNESS_FENCED;
  if (c->word == NULL) {
    int code = exit_of_status(c, dibs_strictness_get(c->store, &now, &error), &error);
    if (code != CLI_DONE) return code;
    struct dibs__json j = {.out = stdout};
    if (c->globals->json) {
      dibs__json_open(&j, NULL, '{');
      dibs__json_text(&j, "strictness", dibs__info_strictness(now));
      dibs__json_close(&j, '}');
    } else {
      puts(dibs__info_strictness(now));
    }
    return dibs__cli_flush(c->globals);
  }
  for (int i = DIBS_STRICTNESS_FENCED; i <= DIBS_STRICTNESS_LEAST; i++)
    if (strcmp(c->word, dibs__info_strictness((dibs_strictness)i)) == 0)
      return report_change(c, dibs_strictness_set(c->store, (dibs_strictness)i, &error), &error, "strictness");
  return dibs__cli_fail(c->globals, CLI_USAGE, "INVALID", "'%.40s' is not fenced, strict or least-strict", c->word);
}

/* A client that still uses the old mandates would be refused by its store, or worse, be granted what another store
 * granted. */
static int dissolve_tiers(const struct tier_call *c) {
  struct cli_tiers tiers;
  dibs_error error = {0};
  int code = CLI_DONE;
  dibs_status status = dibs__cli_tiers_read(c->store, &tiers, &error);
  size_t others = 0;
  for (size_t i = 0; status == DIBS_OK && i < tiers.clients; i++) others += !tiers.client[i].info.us;
  dibs__cli_tiers_free(&tiers);
  if (!c->values->force && status == DIBS_UNSUPPORTED)
    code = dibs__cli_fail(c->globals, CLI_BUSY, "HELD",
                          "dibs can't see from here whether other clients still use %s as a tier: open it with all its "
                          "tiers, or give --force if you are sure that none does",
                          dibs_store_uri(c->store));
  else if (!c->values->force && status == DIBS_OK && others > 0)
    code = dibs__cli_fail(c->globals, CLI_BUSY, "HELD",
                          "%zu other client%s used the tiers in the last 10 s: end them first (dibs tier status --json "
                          "lists them), or give --force",
                          others, others == 1 ? "" : "s");
  if (code != CLI_DONE) return code;
  return report_change(c, dibs_tier_dissolve(c->store, &error), &error, NULL);
}

/* ---- The command ---- */

static const struct {
  const char *name;
  uint8_t least, most; /* words after it */
  int (*act)(const struct tier_call *call);
  const char *args;
} verbs[] = {{"status", 0, 0, show_status, ""},
             {"move", 1, 1, move_buckets, " TIER|auto"},
             {"open", 1, 1, open_it, " TIER"},
             {"close", 1, 1, close_it, " TIER"},
             {"auto", 1, 1, hand_off, " TIER"},
             {"bump", 0, 1, bump_fences, " [FENCE]"},
             {"strictness", 0, 1, strictness, " [fenced|strict|least-strict]"},
             {"dissolve", 0, 0, dissolve_tiers, ""}};
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
    const char *near = dibs__nearest(c.verb, nth_verb, NULL);
    return dibs__cli_fail(c.globals, CLI_USAGE, "INVALID", "there is no dibs tier %.40s%s%s%s", c.verb,
                          near != NULL ? "; did you mean " : "; see dibs help tier", near != NULL ? near : "",
                          near != NULL ? "?" : "");
  }
  uint8_t given = c.word != NULL;
  if (given < verbs[v].least || given > verbs[v].most)
    return dibs__cli_fail(c.globals, CLI_USAGE, "INVALID", "%s: dibs tier %s%s",
                          given ? "too many arguments" : "an argument is missing", verbs[v].name, verbs[v].args);
  if (call->v.force && verbs[v].act != dissolve_tiers)
    return dibs__cli_fail(c.globals, CLI_USAGE, "INVALID", "only dibs tier dissolve takes --force, not %s", c.verb);
  int code = dibs__cli_open(c.globals, 0, &c.store);
  if (code == CLI_DONE) code = verbs[v].act(&c);
  dibs_close(c.store);
  return code;
}

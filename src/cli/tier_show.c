/* SPDX-License-Identifier: MIT */
/* How the tiers of a store stand, as a table and as JSON. */
#include "cli/tier.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { TROUBLED_MAX = 20, CONFIRMED_MS = 3000 };

static const char *const breakers[] = {"closed", "open", "half-open"};
static const char *const hands[] = {"auto", "open", "closed"};

const char *dibs__cli_strictness_name(dibs_strictness strictness) {
  static const char *const names[] = {"fenced", "strict", "least-strict"};
  return names[strictness];
}

const char *dibs__cli_tiers_count_name(size_t nth) {
  static const char *const names[DIBS_TIERS_COUNTED] = {[DIBS_TIERS_ACQUIRED] = "acquired",
                                                        [DIBS_TIERS_BUSY] = "busy",
                                                        [DIBS_TIERS_LOST] = "lost",
                                                        [DIBS_TIERS_FALLBACK] = "fallback",
                                                        [DIBS_TIERS_FAILED] = "failed",
                                                        [DIBS_TIERS_STALE] = "stale",
                                                        [DIBS_TIERS_MOVES] = "moves",
                                                        [DIBS_TIERS_EPOCHS] = "epochs",
                                                        [DIBS_TIERS_TURNS] = "breaker_opened",
                                                        [DIBS_TIERS_LEAST_STRICT] = "least_strict"};
  return nth < DIBS_TIERS_COUNTED ? names[nth] : NULL;
}

/* ---- Looking ---- */

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
  if (tiers->clients == tiers->room) {
    size_t room = tiers->room ? tiers->room * 2 : 32;
    struct cli_tier_client *client = realloc(tiers->client, room * sizeof *client);
    if (client == NULL) {
      tiers->full = true;
      return 1;
    }
    tiers->client = client;
    tiers->room = room;
  }
  struct cli_tier_client *client = &tiers->client[tiers->clients++];
  client->info = *info;
  snprintf(client->owner, sizeof client->owner, "%s", info->owner);
  client->info.owner = NULL; /* the array may move: client->owner */
  return 0;
}

dibs_status dibs__cli_tiers_look(dibs_store *store, struct cli_tiers *tiers, dibs_error *error) {
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

static bool is_left(const struct cli_tiers *t, size_t nth) {
  const dibs_tier_info *tier = &t->tier[nth].info;
  return tier->hand == DIBS_HAND_OPEN || (tier->hand == DIBS_HAND_AUTO && tier->down);
}

static void say_served(const struct cli_tiers *t, FILE *out) {
  uint32_t served = 0, astray = 0;
  const char *between = "";
  for (size_t i = 0; i < t->count; i++) {
    const dibs_tier_info *tier = &t->tier[i].info;
    served += tier->buckets;
    if (tier->wanted > tier->buckets) astray += tier->wanted - tier->buckets;
    if (tier->buckets == 0) continue;
    fprintf(out, "%s%s serves %" PRIu32 " of %d buckets", between, tier->name, tier->buckets, DIBS_BUCKETS);
    between = ", ";
  }
  if (served == 0) fputs("no name was ever leased", out);
  fputs(".\n", out);
  if (served == DIBS_BUCKETS && astray > 0)
    fprintf(out, "%" PRIu32 " buckets are not where they should be: they wait for a tier that can be reached.\n",
            astray);
}

static void say_tier(const struct cli_tiers *t, size_t nth, FILE *out) {
  const dibs_tier_info *tier = &t->tier[nth].info;
  char since[24];
  dibs__cli_span(since, sizeof since, tier->turned_ms > 0 ? tier->turned_ms : 0);
  if (tier->hand == DIBS_HAND_OPEN)
    fprintf(out, "%s is switched off by hand; dibs tier auto %s takes the hand off.\n", tier->name, tier->name);
  else if (tier->hand == DIBS_HAND_CLOSED)
    fprintf(out, "%s is kept on by hand, whatever clients find; dibs tier auto %s takes the hand off.\n", tier->name,
            tier->name);
  else if (tier->down)
    fprintf(out, "%s is DOWN for %s: left by vote; %" PRIu32 " of %" PRIu32 " clients find it well again.\n",
            tier->name, since, tier->clients_well, t->info.clients);
  else if (tier->clients_down > 0)
    fprintf(out, "%s fails %" PRIu32 " of the %" PRIu32 " clients that use it; it is left when it is more than half.\n",
            tier->name, tier->clients_down, tier->active);
  if (tier->trouble[0] != '\0' && !tier->reached) {
    fprintf(out, "%s, from here: ", tier->name);
    dibs__cli_put(out, tier->trouble, 0);
    putc('\n', out);
  }
}

void dibs__cli_tiers_say(const struct cli_tiers *t, FILE *out) {
  char since[24];
  if (t->info.on_their_own)
    fputs("EVERY TIER IS DOWN: processes go on by their own memory, and two may hold one name.\n", out);
  if (t->info.pinned >= 0 && (size_t)t->info.pinned < t->count)
    fprintf(out, "Everything was moved to %s by hand; dibs tier move auto ends that.\n",
            t->tier[t->info.pinned].info.name);
  for (size_t i = 0; i < t->count; i++) say_tier(t, i, out);
  say_served(t, out);
  if (dibs__cli_tiers_confirmed(t)) return;
  if (t->info.confirmed_ms < 0) {
    fputs("THE ANCHOR CAN'T BE REACHED: this is what the tiers themselves remember.\n", out);
    return;
  }
  dibs__cli_span(since, sizeof since, t->info.confirmed_ms);
  fprintf(out, "THE ANCHOR CAN'T BE REACHED: this is how it stood %s ago.\n", since);
}

/* ---- As tables ---- */

static void state_cell(char *to, size_t size, const struct cli_tiers *t, size_t nth) {
  const dibs_tier_info *tier = &t->tier[nth].info;
  char since[24];
  if (tier->hand == DIBS_HAND_AUTO && tier->down) {
    dibs__cli_span(since, sizeof since, tier->turned_ms > 0 ? tier->turned_ms : 0);
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
    dibs__cli_span(to, size, (int64_t)(ns / 1000000));
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
        tier->name, state, serves,   rollout, active, failed, idle ? "not asked" : breakers[tier->breaker],
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
    /* Open, and no vote: its own password or configuration is the trouble. */
    const char *vote = client->info.down[i] ? "down" : "by its own fault: no vote";
    int n = snprintf(to + used, size - used, "%s%s: %s, %s", used ? "; " : "", t->tier[i].name,
                     breakers[client->info.breaker[i]], vote);
    if (n > 0) used = used + (size_t)n < size ? used + (size_t)n : size - 1;
  }
}

void dibs__cli_tiers_troubled(const struct cli_tiers *t, size_t columns, FILE *out) {
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
    dibs__cli_span(age, sizeof age, client->info.age_ms);
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

void dibs__cli_tiers_counts_json(const uint64_t counts[DIBS_TIERS_COUNTS], struct cli_json *j, const char *key) {
  dibs__cli_json_open(j, key, '{');
  for (size_t i = 0; i < DIBS_TIERS_COUNTED; i++) dibs__cli_json_uint(j, dibs__cli_tiers_count_name(i), counts[i]);
  dibs__cli_json_close(j, '}');
}

static void tier_json(const struct cli_tiers *t, size_t nth, struct cli_json *j) {
  const dibs_tier_info *tier = &t->tier[nth].info;
  dibs__cli_json_open(j, NULL, '{');
  dibs__cli_json_text(j, "name", tier->name);
  dibs__cli_json_text(j, "store", tier->uri);
  dibs__cli_json_bool(j, "anchor", nth + 1 == t->count);
  dibs__cli_json_bool(j, "left", is_left(t, nth));
  dibs__cli_json_bool(j, "down", tier->down);
  dibs__cli_json_text(j, "hand", hands[tier->hand]);
  dibs__cli_json_uint(j, "percent", tier->percent);
  dibs__cli_json_uint(j, "buckets", tier->buckets);
  dibs__cli_json_uint(j, "wanted", tier->wanted);
  dibs__cli_json_int(j, "turned_ms", tier->turned_ms);
  dibs__cli_json_int(j, "dwell_ms", tier->dwell_ms);
  dibs__cli_json_uint(j, "active", tier->active);
  dibs__cli_json_uint(j, "clients_down", tier->clients_down);
  dibs__cli_json_uint(j, "clients_well", tier->clients_well);
  dibs__cli_json_open(j, "here", '{');
  dibs__cli_json_text(j, "breaker", breakers[tier->breaker]);
  dibs__cli_json_bool(j, "reached", tier->reached);
  dibs__cli_json_text(j, "trouble", tier->trouble);
  dibs__cli_json_uint(j, "calls", tier->calls);
  dibs__cli_json_uint(j, "failed_percent", tier->failed_percent);
  dibs__cli_json_uint(j, "slow_percent", tier->slow_percent);
  dibs__cli_json_uint(j, "operations", tier->operations);
  dibs__cli_json_uint(j, "failures", tier->failures);
  dibs__cli_json_uint(j, "p50_ns", tier->p50_ns);
  dibs__cli_json_uint(j, "p99_ns", tier->p99_ns);
  dibs__cli_json_uint(j, "max_ns", tier->max_ns);
  dibs__cli_json_close(j, '}');
  dibs__cli_json_close(j, '}');
}

static void client_json(const struct cli_tiers *t, const struct cli_tier_client *client, struct cli_json *j) {
  dibs__cli_json_open(j, NULL, '{');
  dibs__cli_json_text(j, "owner", client->owner);
  dibs__cli_json_bool(j, "us", client->info.us);
  dibs__cli_json_int(j, "age_ms", client->info.age_ms);
  dibs__cli_json_open(j, "tiers", '[');
  for (uint32_t i = 0; i < client->info.tiers && i < t->count; i++) {
    dibs__cli_json_open(j, NULL, '{');
    dibs__cli_json_text(j, "name", t->tier[i].name);
    dibs__cli_json_bool(j, "active", client->info.active[i]);
    dibs__cli_json_bool(j, "down", client->info.down[i]);
    dibs__cli_json_bool(j, "well", client->info.well[i]);
    dibs__cli_json_text(j, "breaker", breakers[client->info.breaker[i]]);
    dibs__cli_json_close(j, '}');
  }
  dibs__cli_json_close(j, ']');
  dibs__cli_tiers_counts_json(client->info.counts, j, "counts");
  dibs__cli_json_close(j, '}');
}

void dibs__cli_tiers_json(const struct cli_tiers *t, struct cli_json *j) {
  dibs__cli_json_text(j, "strictness", dibs__cli_strictness_name(t->info.strictness));
  dibs__cli_json_text(j, "pinned", t->info.pinned >= 0 ? t->tier[t->info.pinned].name : NULL);
  dibs__cli_json_bool(j, "on_their_own", t->info.on_their_own);
  dibs__cli_json_int(j, "confirmed_ms", t->info.confirmed_ms);
  dibs__cli_json_open(j, "tiers", '[');
  for (size_t i = 0; i < t->count; i++) tier_json(t, i, j);
  dibs__cli_json_close(j, ']');
  dibs__cli_tiers_counts_json(t->info.all, j, "counts");
  dibs__cli_json_open(j, "clients", '[');
  for (size_t i = 0; i < t->clients; i++) client_json(t, &t->client[i], j);
  dibs__cli_json_close(j, ']');
}

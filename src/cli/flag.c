/* SPDX-License-Identifier: MIT */
/* `dibs stats`: the counts of all clients, the state of the tiers, and the cost of a lease. */
#include "cli/cli.h"
#include "info/info.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 20 };

struct stats {
  const struct cli_globals *globals;
  struct dibs__json json;
  size_t held, waiting;
};

/* ---- A lease of our own ---- */

/* The library times it; the counts from before these rounds belong to opening the store. */
static dibs_status probe_lease_cost(dibs_store *store, dibs_error *error) {
  dibs_lease_options options = {.size = sizeof options, .flags = DIBS_NO_RENEW};
  char id[33], name[64];
  dibs_status status = DIBS_OK;
  dibs__cli_draw_id(id);
  snprintf(name, sizeof name, "dibs.stats.%s", id);
  for (int i = 0; i < ROUNDS && status == DIBS_OK; i++) {
    dibs_lease *lease = NULL;
    status = dibs_acquire(store, name, &options, &lease, error);
    if (status == DIBS_OK) status = dibs_release(lease, error);
    dibs_lease_free(lease);
  }
  return status;
}

static int tell_latency(const dibs_metric *metric, void *user) {
  struct stats *s = user;
  const dibs_latency *l = metric->latency;
  if (metric->kind != DIBS_LATENCY) return 0;
  if (!s->globals->json) {
    printf("%-8s %8.3f ms, p99 %.3f ms, max %.3f ms of %" PRIu64 "\n", metric->name, (double)l->p50 / 1e6,
           (double)l->p99 / 1e6, (double)l->max / 1e6, l->count);
    return 0;
  }
  dibs__json_open(&s->json, metric->name, '{');
  dibs__json_uint(&s->json, "count", l->count);
  dibs__json_uint(&s->json, "p50_ns", l->p50);
  dibs__json_uint(&s->json, "p90_ns", l->p90);
  dibs__json_uint(&s->json, "p99_ns", l->p99);
  dibs__json_uint(&s->json, "max_ns", l->max);
  dibs__json_close(&s->json, '}');
  return 0;
}

static int count_row(const dibs_lease_info *info, void *user) {
  struct stats *s = user;
  if (info->state == DIBS_WAITS || info->state == DIBS_OFFERED)
    s->waiting++;
  else
    s->held++;
  return 0;
}

/* ---- Printing ---- */

static void print_tiers(struct stats *s, const struct cli_tiers *tiers) {
  if (s->globals->json) {
    dibs__cli_tiers_json(tiers, &s->json);
    return;
  }
  dibs__cli_tiers_table(tiers, dibs__cli_columns(STDOUT_FILENO), stdout);
  printf("\nclients %u, counts since each one started\n", tiers->info.clients);
  for (size_t i = 0; i < DIBS_TIERS_COUNTED; i++)
    printf("%-14s %12" PRIu64 "\n", dibs__info_count_name(i), tiers->info.all[i]);
  putchar('\n');
}

static dibs_status print_lease(struct stats *s, dibs_store *store, dibs_error *error) {
  if (s->globals->json)
    dibs__json_open(&s->json, "lease", '{');
  else
    printf("a lease, from this machine\n");
  dibs_status status = dibs_metrics(store, tell_latency, s, error);
  if (s->globals->json) dibs__json_close(&s->json, '}');
  return status;
}

static int print_stats(struct stats *s, dibs_store *store, const struct cli_tiers *tiers, bool probed) {
  dibs_error error = {0};
  bool json = s->globals->json;
  if (json) {
    dibs__json_open(&s->json, NULL, '{');
    dibs__json_text(&s->json, "store", dibs_store_uri(store));
    dibs__json_uint(&s->json, "held", s->held);
    dibs__json_uint(&s->json, "waiting", s->waiting);
  } else {
    printf("%s\n%zu held, %zu waiting\n\n", dibs_store_uri(store), s->held, s->waiting);
  }
  if (tiers->count > 0) print_tiers(s, tiers);
  dibs_status status = probed ? print_lease(s, store, &error) : DIBS_OK;
  if (json) dibs__json_close(&s->json, '}');
  if (status != DIBS_OK) return dibs__cli_fail_status(s->globals, status, &error, "stats");
  return dibs__cli_flush(s->globals);
}

int dibs__cli_stats(struct cli_call *call) {
  struct stats s = {.globals = &call->v.globals, .json = {.out = stdout}};
  struct cli_tiers tiers = {0};
  dibs_store *store = NULL;
  dibs_error error = {0};
  int code = dibs__cli_open(s.globals, 0, &store);
  if (code != CLI_DONE) return code;
  dibs_status status = dibs_list(store, NULL, count_row, &s, &error);
  if (status == DIBS_OK && call->v.probe) status = probe_lease_cost(store, &error);
  if (status == DIBS_OK) {
    status = dibs__cli_tiers_read(store, &tiers, &error);
    if (status == DIBS_UNSUPPORTED) status = DIBS_OK; /* one store alone */
  }
  if (status == DIBS_OK && tiers.full) status = DIBS_NO_MEMORY;
  code = status == DIBS_OK ? print_stats(&s, store, &tiers, call->v.probe)
                           : dibs__cli_fail_status(s.globals, status, &error, "stats");
  dibs__cli_tiers_free(&tiers);
  dibs_close(store);
  return code;
}

/* `dibs flag`: controls how a store of several tiers uses them. */

struct flags {
  const struct cli_globals *globals;
  struct dibs__json json;
  struct cli_table *table;
};

static void value_text(uint32_t percent, char *to, size_t size) {
  if (percent == 0 || percent == 100)
    snprintf(to, size, "%s", percent ? "on" : "off");
  else
    snprintf(to, size, "%" PRIu32 "%%", percent);
}

static void flag_json(struct dibs__json *j, const char *key, const char *name, uint32_t percent) {
  dibs__json_open(j, key, '{');
  dibs__json_text(j, "name", name);
  dibs__json_uint(j, "percent", percent);
  dibs__json_close(j, '}');
}

static int list_one(const char *name, uint32_t percent, void *user) {
  struct flags *f = user;
  char value[16];
  value_text(percent, value, sizeof value);
  if (f->globals->json) {
    dibs__cli_list_begin(&f->json);
    flag_json(&f->json, NULL, name, percent);
  } else if (f->table != NULL && dibs__cli_table_add(f->table, name)) {
    (void)dibs__cli_table_add(f->table, value);
  }
  return 0;
}

static int list_flags(const struct cli_globals *g, dibs_store *store) {
  static const char *const heads[] = {"FLAG", "VALUE", NULL};
  struct flags f = {.globals = g, .json = {.out = stdout}};
  dibs_error error = {0};
  if (!g->json) f.table = dibs__cli_table_new(heads);
  dibs_status status = dibs_flags(store, list_one, &f, &error);
  if (status == DIBS_OK && f.table != NULL) dibs__cli_table_print(f.table, dibs__cli_columns(STDOUT_FILENO), stdout);
  if (g->json) dibs__cli_list_end(&f.json, status == DIBS_OK);
  dibs__cli_table_free(f.table);
  if (status != DIBS_OK) return dibs__cli_fail_status(g, status, &error, "flag ls");
  return dibs__cli_flush(g);
}

static int get_flag(const struct cli_globals *g, dibs_store *store, const char *name) {
  dibs_error error = {0};
  uint32_t percent = 0;
  dibs_status status = dibs_flag_get(store, name, &percent, &error);
  if (status != DIBS_OK) return dibs__cli_fail_status(g, status, &error, name);
  struct dibs__json j = {.out = stdout};
  if (g->json)
    flag_json(&j, NULL, name, percent);
  else
    printf("%" PRIu32 "\n", percent);
  return dibs__cli_flush(g);
}

/* "on", "off", "10", "10%", and --percent. */
static bool read_value(const char *word, int64_t option, uint32_t *percent) {
  static const struct {
    const char *word;
    uint32_t percent;
  } words[] = {{"on", 100}, {"true", 100}, {"yes", 100}, {"off", 0}, {"false", 0}, {"no", 0}};
  if (word == NULL) {
    *percent = (uint32_t)option;
    return option != CLI_UNSET;
  }
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    if (strcmp(word, words[i].word) != 0) continue;
    /* --percent means "on for some"; "off for some" does not exist. */
    *percent = words[i].percent > 0 && option != CLI_UNSET ? (uint32_t)option : words[i].percent;
    return words[i].percent > 0 || option == CLI_UNSET;
  }
  char digits[8];
  uint64_t number;
  snprintf(digits, sizeof digits, "%s", word);
  size_t length = strlen(digits);
  if (length > 1 && digits[length - 1] == '%') digits[length - 1] = '\0';
  if (strlen(word) >= sizeof digits || !dibs__cli_number(digits, 100, &number) || option != CLI_UNSET) return false;
  *percent = (uint32_t)number;
  return true;
}

static int set_flag(const struct cli_globals *g, dibs_store *store, const char *name, uint32_t percent) {
  dibs_error error = {0};
  dibs_status status = dibs_flag_set(store, name, percent, &error);
  if (status != DIBS_OK) return dibs__cli_fail_status(g, status, &error, name);
  struct dibs__json j = {.out = stdout};
  if (g->json) flag_json(&j, NULL, name, percent);
  return dibs__cli_flush(g);
}

int dibs__cli_flag(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  const char *verb = call->pos[0], *name = call->npos > 1 ? call->pos[1] : NULL;
  const char *value = call->npos > 2 ? call->pos[2] : NULL;
  bool lists = strcmp(verb, "ls") == 0, gets = strcmp(verb, "get") == 0, sets = strcmp(verb, "set") == 0;
  uint32_t percent = 0;
  if (!lists && !gets && !sets)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "'%.40s' is not ls, get or set; see dibs help flag", verb);
  if ((lists && name != NULL) || (gets && value != NULL) || (!sets && call->v.percent != CLI_UNSET))
    return dibs__cli_fail(g, CLI_USAGE, "INVALID",
                          "only dibs flag set takes a value, and only get and set take a name");
  if (!lists && name == NULL)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "which flag? dibs flag %s NAME; dibs flag ls lists them", verb);
  if (sets && !read_value(value, call->v.percent, &percent))
    return dibs__cli_fail(
        g, CLI_USAGE, "INVALID",
        "the value is missing: dibs flag set %.60s on, off, or a percentage from 0 to 100 (--percent N)", name);
  dibs_store *store = NULL;
  int code = dibs__cli_open(g, 0, &store);
  if (code == CLI_DONE)
    code = lists ? list_flags(g, store) : gets ? get_flag(g, store, name) : set_flag(g, store, name, percent);
  dibs_close(store);
  return code;
}

/* SPDX-License-Identifier: MIT */
/* `dibs flag`: what a store of several tiers is allowed to do. */
#include "cli/cli.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

struct flags {
  const struct cli_globals *globals;
  struct cli_json json;
  struct cli_table *table;
};

static void value_text(uint32_t percent, char *to, size_t size) {
  if (percent == 0 || percent == 100)
    snprintf(to, size, "%s", percent ? "on" : "off");
  else
    snprintf(to, size, "%" PRIu32 "%%", percent);
}

static void flag_json(struct cli_json *j, const char *key, const char *name, uint32_t percent) {
  dibs__cli_json_open(j, key, '{');
  dibs__cli_json_text(j, "name", name);
  dibs__cli_json_uint(j, "percent", percent);
  dibs__cli_json_close(j, '}');
}

static int list_one(const char *name, uint32_t percent, void *user) {
  struct flags *f = user;
  char value[16];
  value_text(percent, value, sizeof value);
  if (f->globals->json)
    flag_json(&f->json, NULL, name, percent);
  else if (f->table != NULL && dibs__cli_table_add(f->table, name))
    (void)dibs__cli_table_add(f->table, value);
  return 0;
}

static int list(const struct cli_globals *g, dibs_store *store) {
  static const char *const heads[] = {"FLAG", "VALUE", NULL};
  struct flags f = {.globals = g, .json = {.out = stdout}};
  dibs_error error = {0};
  if (g->json)
    dibs__cli_json_open(&f.json, NULL, '[');
  else
    f.table = dibs__cli_table_new(heads);
  dibs_status status = dibs_flags(store, list_one, &f, &error);
  if (status == DIBS_OK && f.table != NULL) dibs__cli_table_print(f.table, dibs__cli_columns(STDOUT_FILENO), stdout);
  if (g->json) dibs__cli_json_close(&f.json, ']');
  dibs__cli_table_free(f.table);
  if (status != DIBS_OK) return dibs__cli_fail_status(g, status, &error, "flag ls");
  return dibs__cli_flush(g);
}

static int get(const struct cli_globals *g, dibs_store *store, const char *name) {
  dibs_error error = {0};
  uint32_t percent = 0;
  dibs_status status = dibs_flag_get(store, name, &percent, &error);
  if (status != DIBS_OK) return dibs__cli_fail_status(g, status, &error, name);
  struct cli_json j = {.out = stdout};
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
    /* On for some: that is what a percent is.  Off for some is not. */
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

static int set(const struct cli_globals *g, dibs_store *store, const char *name, uint32_t percent) {
  dibs_error error = {0};
  dibs_status status = dibs_flag_set(store, name, percent, &error);
  return status == DIBS_OK ? CLI_DONE : dibs__cli_fail_status(g, status, &error, name);
}

int dibs__cli_flag(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  const char *verb = call->pos[0], *name = call->npos > 1 ? call->pos[1] : NULL;
  const char *value = call->npos > 2 ? call->pos[2] : NULL;
  bool lists = strcmp(verb, "ls") == 0, gets = strcmp(verb, "get") == 0, sets = strcmp(verb, "set") == 0;
  uint32_t percent = 0;
  if (!lists && !gets && !sets)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "'%.40s' is none of ls, get, set; see dibs help flag", verb);
  if ((lists && name != NULL) || (gets && value != NULL) || (!sets && call->v.percent != CLI_UNSET))
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "a value goes with dibs flag set, a name with get and set");
  if (!lists && name == NULL)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "which flag? dibs flag %s NAME; dibs flag ls names them", verb);
  if (sets && !read_value(value, call->v.percent, &percent))
    return dibs__cli_fail(g, CLI_USAGE, "INVALID",
                          "to what? dibs flag set %.60s on, off, or a percent from 0 to 100 (--percent N)", name);
  dibs_store *store = NULL;
  int code = dibs__cli_open(g, 0, &store);
  if (code == CLI_DONE) code = lists ? list(g, store) : gets ? get(g, store, name) : set(g, store, name, percent);
  dibs_close(store);
  return code;
}

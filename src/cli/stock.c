/* SPDX-License-Identifier: MIT */
/*
 * `dibs stock table`: the SQL of tables for a stock, for an engine's own client.  With --table the tables have the
 * names that the section declares, and columns of records and tasks are in them, too.
 */
#include "base/text.h"
#include "cli/cli.h"
#include "store/values.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct engine {
  const char *name, *schemes[3];
  char quote;
  const char *number, *small, *key, *claim, *text, *long_text, *instant, *hash, *tail;
};

/* A claim and a key are compared by their bytes; MariaDB's collations take different ones for equal. */
static const struct engine engines[] = {
    {"sqlite", {"sqlite:"}, '"', "INTEGER", "INTEGER", "TEXT", "TEXT", "TEXT", "TEXT", "TEXT", "TEXT", ""},
    {"postgres",
     {"postgres:", "postgresql:"},
     '"',
     "bigint",
     "smallint",
     "text",
     "text",
     "text",
     "text",
     "timestamptz",
     "text",
     ""},
    {"mysql",
     {"mysql:", "mariadb:"},
     '`',
     "BIGINT",
     "SMALLINT",
     "VARBINARY(255)",
     "VARBINARY(64)",
     "VARCHAR(127) CHARACTER SET utf8mb4",
     "LONGTEXT CHARACTER SET utf8mb4",
     "DATETIME(6)",
     "CHAR(64) CHARACTER SET ascii",
     " ENGINE=InnoDB"},
};
enum { ENGINES = sizeof engines / sizeof engines[0] };

/* By its name, or by the scheme of a store's URI; a path is SQLite's.  NULL: no such engine. */
static const struct engine *find_engine(const char *word) {
  const char *colon = strchr(word, ':');
  for (size_t i = 0; i < ENGINES; i++) {
    if (strcmp(engines[i].name, word) == 0) return &engines[i];
    for (size_t k = 0; k < 3 && engines[i].schemes[k] != NULL; k++)
      if (strncmp(engines[i].schemes[k], word, strlen(engines[i].schemes[k])) == 0) return &engines[i];
  }
  return colon == NULL && strchr(word, '/') != NULL ? &engines[0] : NULL;
}

/* ---- Printing ---- */

static void print_name(const struct engine *e, const char *name) {
  putchar(e->quote);
  for (; *name != '\0'; name++) {
    if (*name == '.')
      printf("%c.%c", e->quote, e->quote);
    else
      putchar(*name);
  }
  putchar(e->quote);
}

/* A column, unless the table has none for this; `last` is NULL in the first line. */
static void print_column(const struct engine *e, const char *name, const char *type, const char *more) {
  if (name == NULL) return;
  fputs(",\n  ", stdout);
  print_name(e, name);
  printf(" %s%s", type, more);
}

static void print_number(const struct engine *e, const char *name, const char *more) {
  if (name == NULL) return;
  print_column(e, name, e->number, more);
  fputs(" CHECK (", stdout);
  print_name(e, name);
  fputs(" >= 0)", stdout);
}

static void begin_table(const struct engine *e, const char *table, const char *key, const char *type) {
  fputs("CREATE TABLE ", stdout);
  print_name(e, table);
  fputs(" (\n  ", stdout);
  print_name(e, key);
  printf(" %s NOT NULL PRIMARY KEY", type);
}

static void print_version(const struct engine *e, const struct dibs__table *t) {
  if (t->version_kind == DIBS__VERSION_NUMBER) print_column(e, t->version, e->number, " NOT NULL DEFAULT 1");
  if (t->version_kind == DIBS__VERSION_TIME) print_column(e, t->version, e->instant, "");
  if (t->version_kind == DIBS__VERSION_HASH) print_column(e, t->version, e->hash, "");
}

static void print_tables(const struct engine *e, const struct dibs__table *t) {
  begin_table(e, t->table, t->key, e->key);
  print_number(e, t->used, " NOT NULL DEFAULT 0");
  print_number(e, t->limit, " NOT NULL");
  for (size_t i = 0; i < t->column_count; i++) print_column(e, t->columns[i], e->long_text, "");
  print_version(e, t);
  print_column(e, t->fence, e->number, "");
  print_column(e, t->owner, e->number, "");
  print_column(e, t->phase, e->key, " NOT NULL");
  /* Numbers in the table's unit; 0, of 1970, is free. */
  print_column(e, t->locked_at, e->number, " NOT NULL DEFAULT 0");
  print_column(e, t->updated_at, e->number, " NOT NULL DEFAULT 0");
  printf("\n)%s;\n", e->tail);
  if (t->claims == NULL) return;
  begin_table(e, t->claims, t->claim, e->claim);
  print_column(e, t->stock, e->key, " NOT NULL");
  print_number(e, t->amount, " NOT NULL");
  print_column(e, t->given, e->small, " NOT NULL DEFAULT 0");
  print_column(e, t->taker, e->text, "");
  print_column(e, t->taken, e->number, "");
  fputs(",\n  FOREIGN KEY (", stdout);
  print_name(e, t->stock);
  fputs(") REFERENCES ", stdout);
  print_name(e, t->table);
  fputs(" (", stdout);
  print_name(e, t->key);
  printf(")\n)%s;\n", e->tail);
}

static const char declaration[] = "-- As a section of an INI file, for --table FILE#seats:\n"
                                  "--   [seats]\n"
                                  "--   table        = seats\n"
                                  "--   key          = name\n"
                                  "--   used         = used\n"
                                  "--   limit        = capacity\n"
                                  "--   fence        = fence\n"
                                  "--   owner        = fence_owner\n"
                                  "--   claims       = seat_claims\n"
                                  "--   claim        = claim\n"
                                  "--   claim_stock  = seats\n"
                                  "--   claim_amount = amount\n"
                                  "--   claim_given  = given\n"
                                  "--   claim_owner  = taker\n"
                                  "--   claim_time   = taken_ms\n";

static const struct dibs__table example = {.table = "seats",
                                           .key = "name",
                                           .used = "used",
                                           .limit = "capacity",
                                           .fence = "fence",
                                           .owner = "fence_owner",
                                           .claims = "seat_claims",
                                           .claim = "claim",
                                           .stock = "seats",
                                           .amount = "amount",
                                           .given = "given",
                                           .taker = "taker",
                                           .taken = "taken_ms"};

static int stock_table(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  const char *word = call->npos > 1 ? call->pos[1] : g->store != NULL ? g->store : getenv("DIBS_STORE");
  const struct engine *engine = find_engine(word != NULL && *word != '\0' ? word : "sqlite");
  dibs_table *table = NULL;
  if (call->npos > 2)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "unexpected argument '%.40s': dibs stock table [ENGINE]",
                          call->pos[2]);
  if (engine == NULL)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID",
                          "only SQL stores have tables; name the engine: dibs stock table sqlite, postgres or mysql");
  int code = dibs__cli_table(call, &table);
  if (code != CLI_DONE) return code;
  if (table != NULL && ((const struct dibs__table *)table)->claims && !((const struct dibs__table *)table)->stock) {
    dibs_table_free(table);
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "the table was declared without claim_stock, which SQL needs");
  }
  if (table == NULL) fputs(declaration, stdout);
  print_tables(engine, table == NULL ? &example : (const struct dibs__table *)table);
  dibs_table_free(table);
  return dibs__cli_flush(g);
}

/* `dibs stock`: a bounded quantity, taken and given back under claim ids. */

static const struct {
  const char *name;
  dibs_strategy strategy;
} strategies[] = {{"coalesced", DIBS_COALESCED},   {"atomic", DIBS_ATOMIC}, {"pessimistic", DIBS_PESSIMISTIC},
                  {"optimistic", DIBS_OPTIMISTIC}, {"named", DIBS_NAMED},   {"fenced", DIBS_FENCED}};
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

/* ---- The request ---- */

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
  const char *near = dibs__nearest(word, nth_strategy, NULL);
  return dibs__cli_fail(s->globals, CLI_USAGE, "INVALID", "--strategy: there is no '%.40s'%s%s%s", word,
                        near != NULL ? "; did you mean " : "; see dibs help stock", near != NULL ? near : "",
                        near != NULL ? "?" : "");
}

static int set_amount(struct stock *s, uint64_t least) {
  uint64_t n = 1;
  if (s->third != NULL && (!dibs__cli_number(s->third, INT64_MAX, &n) || n < least))
    return dibs__cli_fail(s->globals, CLI_USAGE, "INVALID", "'%.40s' is not a number from %" PRIu64 " on", s->third,
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
  return dibs__cli_fail(s->globals, CLI_USAGE, "INVALID", "%s is an option of %s, not of stock %s", stray,
                        strcmp(stray, "--strategy") == 0 ? "stock take and give" : "stock take", s->verb);
}

static int fail_missing(const struct stock *s, const char *what) {
  return dibs__cli_fail(s->globals, CLI_USAGE, "INVALID",
                        "an argument is missing: dibs stock %s %s; see dibs help stock", s->verb, what);
}

/* ---- The outcome ---- */

static int print_result(const struct stock *s, dibs_status status) {
  const dibs_stock_result *r = &s->result;
  bool moves = strcmp(s->verb, "take") == 0 || strcmp(s->verb, "give") == 0;
  bool known = r->used >= 0 && r->limit >= 0;
  if (s->globals->json) {
    struct dibs__json j = {.out = stdout};
    dibs__json_open(&j, NULL, '{');
    dibs__json_text(&j, "key", s->key);
    dibs__json_text(&j, "status", dibs_status_name(status));
    if (moves) dibs__json_text(&j, "claim", r->claim);
    if (moves) dibs__json_int(&j, "got", r->got);
    if (known) dibs__json_int(&j, "used", r->used);
    if (known) dibs__json_int(&j, "limit", r->limit);
    if (moves) dibs__json_uint(&j, "retries", r->retries);
    if (moves) dibs__json_uint(&j, "deadlocks", r->deadlocks);
    dibs__json_close(&j, '}');
    return dibs__cli_flush(s->globals);
  }
  if (strcmp(s->verb, "take") == 0) printf("claim %s\n", r->claim);
  if (moves) printf("got %" PRId64 "\n", r->got);
  if (known && strcmp(s->verb, "set") != 0) printf("used %" PRId64 "\nlimit %" PRId64 "\n", r->used, r->limit);
  return dibs__cli_flush(s->globals);
}

static int run_verb(struct stock *s, dibs_store *store) {
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
  /* A repeated call finds the first result: that is the purpose of claims, and not a failure. */
  if (status == DIBS_OK || status == DIBS_REPLAY) return print_result(s, status);
  int code = dibs__cli_fail_status(s->globals, status, &error, s->key);
  if (status == DIBS_UNKNOWN && strcmp(s->verb, "take") == 0 && s->values->claim == NULL && s->result.claim[0] != '\0')
    dibs__cli_note(s->globals, "repeat the call with --claim %s to learn the outcome", s->result.claim);
  return code;
}

int dibs__cli_stock(struct cli_call *call) {
  if (strcmp(call->pos[0], "table") == 0) return stock_table(call);
  struct stock s = {.globals = &call->v.globals,
                    .values = &call->v,
                    .verb = call->pos[0],
                    .key = call->npos > 1 ? call->pos[1] : NULL,
                    .third = call->npos > 2 ? call->pos[2] : NULL};
  const struct cli_globals *g = s.globals;
  bool sets = strcmp(s.verb, "set") == 0, takes = strcmp(s.verb, "take") == 0, gives = strcmp(s.verb, "give") == 0;
  if (!sets && !takes && !gives && strcmp(s.verb, "show") != 0)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "'%.40s' is not set, take, give, show or table; see dibs help stock",
                          s.verb);
  if (s.key == NULL) return fail_missing(&s, sets ? "KEY LIMIT" : gives ? "KEY CLAIM" : "KEY");
  if (sets && s.third == NULL) return fail_missing(&s, "KEY LIMIT");
  if (gives && s.third == NULL) return fail_missing(&s, "KEY CLAIM");
  if (!sets && !takes && !gives && s.third != NULL)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "unexpected argument '%.40s': dibs stock show KEY", s.third);
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
  if (code == CLI_DONE) code = run_verb(&s, store);
  dibs_close(store);
  dibs_table_free(table);
  return code;
}

/* SPDX-License-Identifier: MIT */
/* `dibs counter`: numbers that many clients add to. */
#include "dibs/counter.h"
#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_MAX_BYTES = DIBS_NAME_MAX + 32 };

struct counter {
  const struct cli_globals *globals;
  const char *verb, *key;
  dibs_counter_options options;
};

/* ---- Numbers and lines ---- */

static bool read_delta(const char *text, int64_t *delta) {
  bool below = *text == '-';
  uint64_t n;
  if (!dibs__cli_number(text + (below || *text == '+'), below ? (uint64_t)INT64_MAX + 1 : INT64_MAX, &n)) return false;
  *delta = below ? (int64_t)(0 - n) : (int64_t)n;
  return true;
}

static int fail_line(const struct counter *c, uint64_t nr, const char *line) {
  return dibs__cli_fail(c->globals, CLI_USAGE, "INVALID",
                        "line %" PRIu64 ": '%.60s' is not KEY, a blank and a whole number; lines before it are added",
                        nr, line);
}

static int fail_long_line(const struct counter *c, uint64_t nr) {
  return dibs__cli_fail(c->globals, CLI_USAGE, "INVALID",
                        "line %" PRIu64 ": it is longer than a key of %d bytes and a number; lines before it are added",
                        nr, DIBS_NAME_MAX);
}

/* The last word is the number, if it is one and there is a word before it. */
static bool split_line(char *line, int64_t *delta) {
  size_t len = strlen(line);
  while (len > 0 && (line[len - 1] == '\r' || line[len - 1] == ' ' || line[len - 1] == '\t')) line[--len] = '\0';
  char *blank = strrchr(line, ' '), *tab = strrchr(line, '\t');
  if (tab && (!blank || tab > blank)) blank = tab;
  *delta = 1;
  if (!blank) return len > 0;
  if (!read_delta(blank + 1, delta)) return false;
  while (blank > line && (blank[-1] == ' ' || blank[-1] == '\t')) blank--;
  *blank = '\0';
  return blank > line;
}

/* ---- Adding ---- */

static int add_one(const struct counter *c, dibs_store *store, const char *text) {
  int64_t delta = 1;
  dibs_error error = {0};
  if (text != NULL && !read_delta(text, &delta))
    return dibs__cli_fail(c->globals, CLI_USAGE, "INVALID", "'%.40s' is not a whole number of 64 bits", text);
  dibs_status status = dibs_counter_add(store, c->key, delta, &c->options, &error);
  return status == DIBS_OK ? CLI_DONE : dibs__cli_fail_status(c->globals, status, &error, c->key);
}

struct refusals {
  const struct cli_globals *globals;
  int code;
};

static int print_refusal(const dibs_counter_refusal *r, void *user) {
  struct refusals *to = user;
  dibs_error error = {.status = r->status};
  const char *why = r->status == DIBS_NOT_FOUND ? "the table has no such row"
                    : r->status == DIBS_FULL    ? "the sum does not fit"
                                                : dibs_status_text(r->status);
  snprintf(error.text, sizeof error.text, "%" PRId64 " was not added to \"%s\": %s", r->delta, r->key, why);
  to->code = dibs__cli_fail_status(to->globals, r->status, &error, r->key);
  return 0;
}

/* Everything that was added is written, or the message says what is not. */
static int flush(const struct counter *c, dibs_store *store) {
  dibs_error error = {0};
  struct refusals refusals = {c->globals, CLI_DONE};
  dibs_status status = dibs_counter_flush(store, &c->options, &error);
  if (dibs_counter_refused(store, print_refusal, &refusals, NULL) != DIBS_OK) return CLI_FAILED;
  if (refusals.code != CLI_DONE) return refusals.code;
  if (status != DIBS_UNAVAILABLE && status != DIBS_UNKNOWN)
    return status == DIBS_OK ? CLI_DONE : dibs__cli_fail_status(c->globals, status, &error, "-");
  /* A batch may be on its way, and dibs_close sends what is left. */
  dibs_error unknown = {.status = DIBS_UNKNOWN};
  snprintf(unknown.text, sizeof unknown.text, "some lines may be added or not: %.*s", (int)sizeof unknown.text - 40,
           error.text);
  return dibs__cli_fail_status(c->globals, DIBS_UNKNOWN, &unknown, "-");
}

static int add_line(const struct counter *c, dibs_store *store, char *line, uint64_t nr) {
  dibs_counter_options options = c->options;
  dibs_error error = {0};
  int64_t delta;
  if (options.level == DIBS_COUNT_DURABLE) options.level = DIBS_COUNT_BUFFERED; /* durable at the end */
  if (!split_line(line, &delta)) return fail_line(c, nr, line);
  dibs_status status = dibs_counter_add(store, line, delta, &options, &error);
  /* A million keys, or a sum of 57 bits: this process writes what it has first. */
  if (status == DIBS_UNAVAILABLE || status == DIBS_FULL) {
    int code = flush(c, store);
    if (code != CLI_DONE) return code;
    status = dibs_counter_add(store, line, delta, &options, &error);
  }
  if (status == DIBS_FULL) status = dibs_counter_add(store, line, delta, &c->options, &error);
  return status == DIBS_OK ? CLI_DONE : dibs__cli_fail_status(c->globals, status, &error, line);
}

/* false: the end.  *whole: it is a text of at most so many bytes; if not, the rest of it is not read. */
static bool read_line(char line[LINE_MAX_BYTES], bool *whole) {
  size_t len = 0;
  int byte;
  while ((byte = getc_unlocked(stdin)) != EOF && byte != '\n') {
    *whole = byte != '\0' && len < LINE_MAX_BYTES - 1;
    line[len] = *whole ? (char)byte : '\0';
    if (!*whole) return true;
    len++;
  }
  *whole = true;
  line[len] = '\0';
  return byte != EOF || len > 0;
}

static int add_lines(const struct counter *c, dibs_store *store) {
  char line[LINE_MAX_BYTES];
  uint64_t nr = 0;
  int code = CLI_DONE;
  bool whole;
  while (code == CLI_DONE && read_line(line, &whole)) {
    nr++;
    if (whole && line[strspn(line, " \t\r")] == '\0') continue;
    code = whole ? add_line(c, store, line, nr) : fail_long_line(c, nr);
  }
  if (code == CLI_DONE && ferror(stdin))
    code = dibs__cli_fail(c->globals, CLI_FAILED, "", "cannot read standard input: %s", strerror(errno));
  int flushed = flush(c, store);
  return code == CLI_DONE ? flushed : code;
}

/* ---- Flushing ---- */

struct shared_refusals {
  struct refusals printed;
  bool forget;
};

static int print_shared_refusal(const dibs_counter_refusal *r, void *user) {
  struct shared_refusals *to = user;
  (void)print_refusal(r, &to->printed);
  return to->forget && dibs__cli_all_said() ? 0 : DIBS_COUNT_KEEP; /* nobody would know of the sum */
}

static int flush_shared(const struct counter *c, dibs_store *store, bool forget) {
  dibs_counter_options options = c->options;
  struct shared_refusals refusals = {.printed = {c->globals, CLI_DONE}, .forget = forget};
  dibs_error error = {0};
  options.level = DIBS_COUNT_SHARED;
  dibs_status status = dibs_counter_flush(store, &options, &error);
  if (status != DIBS_OK && status != DIBS_NOT_FOUND)
    return dibs__cli_fail_status(c->globals, status, &error, "the shared counters");
  if (status == DIBS_OK) return CLI_DONE;
  status = dibs_counter_refused_shared(store, options.table, print_shared_refusal, &refusals, &error);
  if (status != DIBS_OK) return dibs__cli_fail_status(c->globals, status, &error, "the shared counters");
  return refusals.printed.code;
}

/* ---- Reading ---- */

static int get(const struct counter *c, dibs_store *store) {
  dibs_counter_value value = DIBS_COUNTER_VALUE_INIT;
  dibs_error error = {0};
  dibs_status status = dibs_counter_read(store, c->key, &c->options, &value, &error);
  if (status != DIBS_OK) return dibs__cli_fail_status(c->globals, status, &error, c->key);
  bool partial = (value.parts & DIBS_COUNT_SHARED_PART) == 0;
  if (partial)
    dibs__cli_note(c->globals, "Redis does not answer: the sums that it has are missing in the value of \"%s\"",
                   c->key);
  if (c->globals->json) {
    struct dibs__json j = {.out = stdout};
    dibs__json_open(&j, NULL, '{');
    dibs__json_text(&j, "key", c->key);
    dibs__json_int(&j, "value", value.value);
    if (partial) dibs__json_bool(&j, "partial", true);
    dibs__json_close(&j, '}');
  } else {
    printf("%" PRId64 "\n", value.value);
  }
  return dibs__cli_flush(c->globals);
}

struct listing {
  struct dibs__json json;
  struct cli_table *table; /* NULL with --json */
  uint64_t count;
  bool failed; /* no memory */
};

static int list_one(const char *key, int64_t stored, void *user) {
  struct listing *l = user;
  char number[32];
  l->count++;
  if (l->table == NULL) {
    dibs__cli_list_begin(&l->json);
    dibs__json_open(&l->json, NULL, '{');
    dibs__json_text(&l->json, "key", key);
    dibs__json_int(&l->json, "value", stored);
    dibs__json_close(&l->json, '}');
    return 0;
  }
  snprintf(number, sizeof number, "%" PRId64, stored);
  l->failed = !dibs__cli_table_add(l->table, key) || !dibs__cli_table_add(l->table, number);
  return l->failed;
}

static int list(const struct counter *c, dibs_store *store) {
  static const char *const heads[] = {"*KEY", ">=VALUE", NULL};
  struct listing l = {.json = {.out = stdout}, .table = c->globals->json ? NULL : dibs__cli_table_new(heads)};
  dibs_error error = {0};
  if (!c->globals->json && l.table == NULL) return dibs__cli_fail(c->globals, CLI_FAILED, "NO_MEMORY", "out of memory");
  dibs_status status = dibs_counter_list(store, c->key, list_one, &l, &error);
  if (c->globals->json) dibs__cli_list_end(&l.json, status == DIBS_OK);
  if (status == DIBS_OK && !l.failed && l.table != NULL && l.count > 0)
    dibs__cli_table_print(l.table, dibs__cli_columns(1), stdout);
  dibs__cli_table_free(l.table);
  if (status != DIBS_OK) return dibs__cli_fail_status(c->globals, status, &error, "the counters");
  if (l.failed) return dibs__cli_fail(c->globals, CLI_FAILED, "NO_MEMORY", "out of memory");
  return dibs__cli_flush(c->globals);
}

/* ---- The command line ---- */

static int read_level(const struct cli_call *call, bool adds, dibs_count_level *level) {
  static const char *const names[] = {"durable", "buffered", "shared"}; /* as dibs_count_level */
  const char *word = call->v.level;
  if (word == NULL) return CLI_DONE;
  if (!adds) return dibs__cli_fail(&call->v.globals, CLI_USAGE, "INVALID", "--level is an option of counter add");
  for (int i = 0; i < 3; i++) {
    if (strcmp(word, names[i]) != 0) continue;
    *level = (dibs_count_level)i;
    return CLI_DONE;
  }
  return dibs__cli_fail(&call->v.globals, CLI_USAGE, "INVALID",
                        "'%.40s' is not a level: give durable, shared or buffered", word);
}

static int check_words(const struct cli_call *call, bool adds, bool gets, bool flushes) {
  const char *verb = call->pos[0];
  int most = adds ? 3 : flushes ? 1 : 2;
  if (!adds && !gets && !flushes && strcmp(verb, "ls") != 0)
    return dibs__cli_fail(&call->v.globals, CLI_USAGE, "INVALID",
                          "'%.40s' is not add, get, ls or flush; see dibs help counter", verb);
  if ((adds || gets) && call->npos < 2)
    return dibs__cli_fail(&call->v.globals, CLI_USAGE, "INVALID", "an argument is missing: dibs counter %s KEY", verb);
  if (adds && call->npos > 2 && strcmp(call->pos[1], "-") == 0) most = 2;
  if (call->npos > most)
    return dibs__cli_fail(&call->v.globals, CLI_USAGE, "INVALID", "unexpected argument '%.40s': see dibs help counter",
                          call->pos[most]);
  if (!adds && !gets && !flushes && call->v.table != NULL)
    return dibs__cli_fail(&call->v.globals, CLI_USAGE, "INVALID",
                          "--table is an option of counter add, get and flush; list your table with its own client");
  if (!flushes && call->v.forget)
    return dibs__cli_fail(&call->v.globals, CLI_USAGE, "INVALID", "--forget is an option of counter flush");
  if (call->v.forget && call->v.globals.quiet)
    return dibs__cli_fail(&call->v.globals, CLI_USAGE, "INVALID",
                          "--forget removes what it prints, and --quiet prints less; leave one of them out");
  return CLI_DONE;
}

int dibs__cli_counter(struct cli_call *call) {
  bool adds = strcmp(call->pos[0], "add") == 0, gets = strcmp(call->pos[0], "get") == 0;
  bool flushes = strcmp(call->pos[0], "flush") == 0;
  struct counter c = {.globals = &call->v.globals,
                      .verb = call->pos[0],
                      .key = call->npos > 1 ? call->pos[1] : "", /* of ls: all */
                      .options = DIBS_COUNTER_OPTIONS_INIT};
  if (call->v.wait_ms != CLI_UNSET) c.options.wait_ms = call->v.wait_ms > 0 ? call->v.wait_ms : 1;
  dibs_store *store = NULL;
  dibs_table *table = NULL;
  int code = check_words(call, adds, gets, flushes);
  if (code == CLI_DONE) code = read_level(call, adds, &c.options.level);
  if (code == CLI_DONE) code = dibs__cli_table(call, &table);
  c.options.table = table;
  if (code == CLI_DONE) code = dibs__cli_open_within(c.globals, &c.options.wait_ms, &store);
  if (code == CLI_DONE)
    code = gets                      ? get(&c, store)
           : flushes                 ? flush_shared(&c, store, call->v.forget)
           : !adds                   ? list(&c, store)
           : strcmp(c.key, "-") == 0 ? add_lines(&c, store)
                                     : add_one(&c, store, call->npos > 2 ? call->pos[2] : NULL);
  dibs_close(store);
  dibs_table_free(table);
  return code;
}

/* SPDX-License-Identifier: MIT */
#include "cli/daemon_options.h"
#include "base/duration.h"
#include "base/ini.h"
#include "base/text.h"
#include "serve/origin.h"

#include <ctype.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum source { FROM_NOTHING, FROM_FILE, FROM_ENVIRONMENT, FROM_LINE };

/* A later source replaces the lists of an earlier one. */
struct reading {
  const struct cli_globals *globals;
  const struct daemon_program *program;
  struct daemon_options *options;
  struct serve_config *config;
  char *values; /* what `at` of a row is counted from */
  enum source source, addresses_from, origins_from;
  char wrong[300];
};

/* ---- Values ---- */

static bool wrong(struct reading *in, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool wrong(struct reading *in, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(in->wrong, sizeof in->wrong, format, args);
  va_end(args);
  return false;
}

static bool set_number(struct reading *in, const struct daemon_row *row, const char *text) {
  uint64_t value;
  if (!dibs__cli_number(text, (uint64_t)row->most, &value) || value < (uint64_t)row->least)
    return wrong(in, "'%.40s' is not a number from %lld to %lld", text, (long long)row->least, (long long)row->most);
  uint32_t number = (uint32_t)value;
  memcpy(in->values + row->at, &number, sizeof number);
  return true;
}

static bool set_duration(struct reading *in, const struct daemon_row *row, const char *text) {
  int64_t ms;
  if (!dibs__duration_read(text, &ms, in->wrong, sizeof in->wrong)) return false;
  if (ms < row->least || ms > row->most)
    return wrong(in, "'%.40s' is not from %lld to %lld ms", text, (long long)row->least, (long long)row->most);
  memcpy(in->values + row->at, &ms, sizeof ms);
  return true;
}

/* One of the words; its number. */
static bool set_word(struct reading *in, const struct daemon_row *row, const char *text) {
  struct dibs__text list;
  char words[100];
  dibs__text_begin(&list, words, sizeof words);
  for (size_t i = 0; row->words[i]; i++) {
    if (strcmp(row->words[i], text) == 0) {
      *(int32_t *)(void *)(in->values + row->at) = (int32_t)i;
      return true;
    }
    dibs__text_addf(&list, "%s%s", i == 0 ? "" : row->words[i + 1] ? ", " : " or ", row->words[i]);
  }
  return wrong(in, "'%.40s' is not %s", text, words);
}

/* On the command line it has no value. */
static bool set_flag(struct reading *in, const struct daemon_row *row, const char *text) {
  bool on = !text || strcmp(text, "on") == 0;
  if (!on && strcmp(text, "off") != 0) return wrong(in, "'%.40s' is not on or off", text);
  *(bool *)(void *)(in->values + row->at) = on;
  return true;
}

static bool add_address(struct reading *in, const char *text) {
  struct serve_config *config = in->config;
  if (in->addresses_from != in->source) config->address_count = 0;
  in->addresses_from = in->source;
  if (config->address_count == SERVE_ADDRESSES_MAX) return wrong(in, "%d addresses at most", SERVE_ADDRESSES_MAX);
  config->addresses[config->address_count++] = text;
  return true;
}

static bool add_origin(struct reading *in, const char *text) {
  struct serve_config *config = in->config;
  if (in->origins_from != in->source) config->origin_count = 0;
  in->origins_from = in->source;
  if (config->origin_count == SERVE_ORIGINS_MAX) return wrong(in, "%d origins at most", SERVE_ORIGINS_MAX);
  if (!dibs__origin_valid(text)) return wrong(in, "'%.60s' is not an origin; write it as https://app.example", text);
  config->origins[config->origin_count++] = text;
  return true;
}

/* `text` lasts as long as the options.  false: in->wrong has the reason. */
static bool set(struct reading *in, const struct daemon_row *row, char *text) {
  if (row->kind == DAEMON_NUMBER) return set_number(in, row, text);
  if (row->kind == DAEMON_DURATION) return set_duration(in, row, text);
  if (row->kind == DAEMON_WORD) return set_word(in, row, text);
  if (row->kind == DAEMON_FLAG) return set_flag(in, row, text);
  if (row->kind == DAEMON_TEXT) {
    memcpy(in->values + row->at, &text, sizeof text);
    return true;
  }
  for (char *word; (word = strsep(&text, " \t"));) {
    if (*word == '\0') continue;
    if (!(row->kind == DAEMON_ADDRESSES ? add_address(in, word) : add_origin(in, word))) return false;
  }
  return true;
}

/* The same with a copy. */
static bool set_copy(struct reading *in, const struct daemon_row *row, const char *text) {
  struct daemon_options *options = in->options;
  char *copy = options->kept_count < DAEMON_OPTIONS_MAX ? strdup(text) : NULL;
  if (!copy) return wrong(in, "out of memory, or too many values");
  options->kept[options->kept_count++] = copy;
  return set(in, row, copy);
}

static const struct daemon_row *find_row(const struct daemon_program *program, const char *name) {
  for (size_t i = 0; i < program->row_count; i++)
    if (strcmp(program->rows[i].name, name) == 0) return &program->rows[i];
  return NULL;
}

/* ---- The file ---- */

/* One file may configure both daemons. */
static const char *const sections[] = {"serve", "gate"};
enum { SECTIONS = sizeof sections / sizeof *sections, SUGGESTION_BYTES = 96 };

static const char *nth_name(size_t i, const void *arg) {
  const struct daemon_program *program = arg;
  return i >= program->row_count ? NULL : program->rows[i].line_only ? "" : program->rows[i].name;
}

/* "; did you mean listen?", or nothing. */
static const char *suggest(char to[SUGGESTION_BYTES], const char *before, const char *near, const char *after) {
  struct dibs__text text;
  dibs__text_begin(&text, to, SUGGESTION_BYTES);
  if (near) dibs__text_addf(&text, "; did you mean %s%s%s?", before, near, after);
  return to;
}

static const char *nth_section(size_t i, const void *arg) {
  (void)arg;
  return i < SECTIONS ? sections[i] : NULL;
}

static const char *refuse_section(struct reading *in, const char *section) {
  char suggestion[SUGGESTION_BYTES];
  suggest(suggestion, "[", dibs__nearest(section, nth_section, NULL), "]");
  if (*suggestion)
    wrong(in, "there is no section [%.40s]%s", section, suggestion);
  else
    wrong(in, "there is no section [%.40s]; the options of dibs %s belong into [%s]", section, in->program->name,
          in->program->name);
  return in->wrong;
}

static const char *take_entry(void *user, const char *section, const char *key, const char *value, unsigned line) {
  struct reading *in = user;
  char suggestion[SUGGESTION_BYTES];
  bool known = false;
  (void)line;
  for (size_t i = 0; i < SECTIONS; i++) known = known || strcmp(section, sections[i]) == 0;
  if (!known) return refuse_section(in, section);
  if (strcmp(section, in->program->name) != 0 || !key) return NULL;
  /* Everywhere else it is an option of all commands. */
  const struct daemon_row store = {.name = "store", .kind = DAEMON_TEXT, .at = in->program->store_at};
  const struct daemon_row *row = strcmp(key, store.name) == 0 ? &store : find_row(in->program, key);
  if (row && !row->line_only) return set_copy(in, row, value) ? NULL : in->wrong;
  wrong(in, "[%s] has no %.40s%s", section, key,
        suggest(suggestion, "", dibs__nearest(key, nth_name, in->program), ""));
  return in->wrong;
}

static int read_file(struct reading *in, const char *path) {
  struct dibs__ini ini = {.entry = take_entry, .user = in, .secret = true}; /* a store's URI may have a password */
  char *text = NULL;
  size_t length = 0;
  in->source = FROM_FILE;
  int error = dibs__ini_load(path, &text, &length);
  if (error != 0)
    return dibs__cli_fail(in->globals, CLI_USAGE, "INVALID", "%s: --config: cannot read %.200s: %s", in->program->name,
                          path, strerror(error));
  bool fine = dibs__ini_parse(&ini, text, length);
  free(text);
  if (fine) return CLI_DONE;
  return dibs__cli_fail(in->globals, CLI_USAGE, "INVALID", "%s: %.200s:%u: %.200s", in->program->name, path, ini.line,
                        ini.wrong);
}

/* ---- The environment ---- */

/* "access-log": DIBS_SERVE_ACCESS_LOG. */
static void write_variable(const struct daemon_program *program, const char *name, char *to, size_t size) {
  struct dibs__text text;
  dibs__text_begin(&text, to, size);
  dibs__text_adds(&text, program->variables);
  for (const char *p = name; *p; p++) {
    char letter = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
    dibs__text_add(&text, &letter, 1);
  }
}

/* "DIBS_SERVE_ACCESS_LOG=-": "access-log".  false: it is another program's. */
static bool read_variable_name(const struct daemon_program *program, const char *entry, char *to, size_t size) {
  size_t prefix = strlen(program->variables), length = strcspn(entry, "=");
  struct dibs__text text;
  if (strncmp(entry, program->variables, prefix) != 0) return false;
  dibs__text_begin(&text, to, size);
  for (size_t i = prefix; i < length; i++) {
    char letter = entry[i] == '_' ? '-' : (char)tolower((unsigned char)entry[i]);
    dibs__text_add(&text, &letter, 1);
  }
  return true;
}

/* A misspelt variable would leave a limit or the tokens out. */
static int refuse_unknown_variables(const struct reading *in) {
  char name[64], variable[64], suggestion[SUGGESTION_BYTES];
  for (char **entry = environ; *entry; entry++) {
    if (!read_variable_name(in->program, *entry, name, sizeof name)) continue;
    const struct daemon_row *row = find_row(in->program, name);
    if (row) write_variable(in->program, row->name, variable, sizeof variable);
    bool exact = row && strncmp(*entry, variable, strlen(variable)) == 0; /* also in upper case */
    if (exact && (!row->line_only || strcmp(name, "config") == 0)) continue;
    const char *near = dibs__nearest(name, nth_name, in->program);
    if (near) write_variable(in->program, near, variable, sizeof variable);
    return dibs__cli_fail(in->globals, CLI_USAGE, "INVALID", "%s: there is no variable %.*s%s", in->program->name,
                          (int)strcspn(*entry, "="), *entry, suggest(suggestion, "", near ? variable : NULL, ""));
  }
  return CLI_DONE;
}

static int read_environment(struct reading *in) {
  char variable[64];
  in->source = FROM_ENVIRONMENT;
  int code = refuse_unknown_variables(in);
  if (code != CLI_DONE) return code;
  for (size_t i = 0; i < in->program->row_count; i++) {
    const struct daemon_row *row = &in->program->rows[i];
    if (row->line_only) continue;
    write_variable(in->program, row->name, variable, sizeof variable);
    const char *value = getenv(variable);
    if (value && *value && !set_copy(in, row, value))
      return dibs__cli_fail(in->globals, CLI_USAGE, "INVALID", "%s: %s: %s", in->program->name, variable, in->wrong);
  }
  return CLI_DONE;
}

/* ---- The command line ---- */

enum { FIRST_OPTION = 256, OPTION_HELP = 1 };

static int refuse_word(const struct cli_call *call, const char *program, int option) {
  const struct cli_globals *g = &call->v.globals;
  const char *word = call->rest[optind - 1];
  if (option == ':') return dibs__cli_fail(g, CLI_USAGE, "INVALID", "%s: %.60s needs a value", program, word);
  return dibs__cli_fail(g, CLI_USAGE, "INVALID", "%s: there is no option %.60s; see dibs %s --help", program, word,
                        program);
}

/* Only --config, or all: the file comes before everything else. */
static int read_line(struct cli_call *call, struct reading *in, bool only_config) {
  struct option options[DAEMON_OPTIONS_MAX + 2] = {{"help", no_argument, NULL, OPTION_HELP}};
  const struct daemon_program *program = in->program;
  for (size_t i = 0; i < program->row_count && i < DAEMON_OPTIONS_MAX; i++)
    options[i + 1] =
        (struct option){program->rows[i].name, program->rows[i].kind == DAEMON_FLAG ? no_argument : required_argument,
                        NULL, FIRST_OPTION + (int)i};
  in->source = FROM_LINE;
  opterr = 0;
  optind = 1;
  for (int option; (option = getopt_long(call->nrest, call->rest, "+:", options, NULL)) != -1;) {
    const struct daemon_row *row = option >= FIRST_OPTION ? &program->rows[option - FIRST_OPTION] : NULL;
    if (option == OPTION_HELP)
      in->options->help = true;
    else if (!row)
      return refuse_word(call, program->name, option);
    else if ((strcmp(row->name, "config") == 0) == only_config && !set(in, row, optarg))
      return dibs__cli_fail(in->globals, CLI_USAGE, "INVALID", "%s: --%s: %s", program->name, row->name, in->wrong);
  }
  if (optind == call->nrest) return CLI_DONE;
  return dibs__cli_fail(in->globals, CLI_USAGE, "INVALID", "%s: '%.60s' is not an option; see dibs %s --help",
                        program->name, call->rest[optind], program->name);
}

/* ---- All of it ---- */

static void set_defaults(struct reading *in) {
  for (size_t i = 0; i < in->program->row_count; i++) {
    const struct daemon_row *row = &in->program->rows[i];
    uint32_t number = (uint32_t)row->other;
    if (row->kind == DAEMON_NUMBER) memcpy(in->values + row->at, &number, sizeof number);
    if (row->kind == DAEMON_DURATION) memcpy(in->values + row->at, &row->other, sizeof row->other);
  }
}

static int check_tls(const struct reading *in) {
  const struct serve_config *config = in->config;
  const char *reason = NULL;
  if (!config->certificate != !config->key)
    reason = "--cert and --key need each other";
  else if (config->client_ca && !config->certificate)
    reason = "--client-ca needs --cert and --key";
  return reason ? dibs__cli_fail(in->globals, CLI_USAGE, "INVALID", "%s: %s", in->program->name, reason) : CLI_DONE;
}

int dibs__daemon_options_read(struct cli_call *call, const struct daemon_program *program, void *values) {
  const struct cli_globals *g = &call->v.globals;
  struct serve_config *config = (struct serve_config *)(void *)((char *)values + program->config_at);
  struct reading in = {.globals = g, .program = program, .options = values, .config = config, .values = values};
  struct daemon_options *options = in.options;
  char variable[64];
  set_defaults(&in);
  write_variable(program, "config", variable, sizeof variable);
  const char *file = getenv(variable);
  if (file && *file) options->file = file;
  int code = read_line(call, &in, true);
  if (code == CLI_DONE && options->file) code = read_file(&in, options->file);
  if (code == CLI_DONE) code = read_environment(&in);
  if (code == CLI_DONE) code = read_line(call, &in, false);
  if (code == CLI_DONE) code = check_tls(&in);
  if (g->store) config->store = g->store;
  if (config->address_count == 0) config->addresses[config->address_count++] = program->address;
  return code;
}

void dibs__daemon_options_free(struct daemon_options *options) {
  for (size_t i = 0; i < options->kept_count; i++) free(options->kept[i]);
}

/* SPDX-License-Identifier: MIT */
/*
 * The one option parser.  Options may stand anywhere before "--", as `--name value` or `--name=value`.  The command is
 * the first word that is no option; which options it takes is checked when all are read, so that they may come first.
 */
#include "base/text.h"
#include "cli/cli.h"

#include <assert.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

const struct cli_option dibs__cli_options[CLI_OPT_COUNT] = {
#define CLI__OPTION_ROW(name, kind, arg, help, least, most, field)                                                     \
  {#name, CLI_##kind, arg, help, least, most, offsetof(struct cli_values, field)},
    CLI_OPTIONS(CLI__OPTION_ROW)
#undef CLI__OPTION_ROW
};

struct parse {
  struct cli_call *call;
  int argc, at; /* the next word */
  char **argv;
  uint32_t seen; /* CLI_TAKES bits of options that were given */
  struct dibs__text wrong;
};

static bool wrong(struct parse *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool wrong(struct parse *p, const char *format, ...) {
  char text[400];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  dibs__text_adds(&p->wrong, text);
  return false;
}

static const char *nth_option(size_t i, const void *arg) {
  const uint32_t *takes = arg;
  /* Skipped ones must not end the list. */
  if (i >= CLI_OPT_COUNT) return NULL;
  return *takes & (1u << i) ? dibs__cli_options[i].name : "";
}

static const char *nth_command(size_t i, const void *arg) {
  (void)arg;
  return dibs__cli_commands[i].name;
}

static uint32_t takes(const struct cli_command *command) {
  return CLI_TAKES_GLOBALS | (command != NULL ? command->options : UINT32_MAX);
}

static bool unknown_option(struct parse *p, const char *name) {
  static const char *const secrets[] = {"id", "lease", "fence"};
  for (size_t i = 0; i < sizeof secrets / sizeof *secrets; i++)
    if (strcmp(name, secrets[i]) == 0)
      return wrong(p,
                   "there is no --%s: what stands in arguments, ps shows to everybody; hand it over as DIBS_%s in "
                   "the environment, or on standard input with '-'",
                   name, strcmp(name, "fence") == 0 ? "FENCE" : "LEASE");
  const struct cli_command *command = p->call->command;
  uint32_t may = takes(command);
  const char *near = dibs__cli_nearest(name, nth_option, &may);
  wrong(p, "there is no option --%.40s", name);
  if (near != NULL) return wrong(p, "; did you mean --%s?", near);
  return wrong(p, "; see dibs help%s%s", command != NULL ? " " : "", command != NULL ? command->name : "");
}

static bool set_value(struct parse *p, const struct cli_option *option, const char *value) {
  char *field = (char *)&p->call->v + option->at;
  char why[160];
  switch (option->kind) {
  case CLI_FLAG:
    *(bool *)field = true;
    return true;
  case CLI_TEXT:
    *(const char **)field = value;
    return true;
  case CLI_COUNT: {
    uint64_t n;
    if (!dibs__cli_number(value, (uint64_t)option->most, &n) || (int64_t)n < option->least)
      return wrong(p, "--%s: '%.40s' is no number from %lld to %lld", option->name, value, (long long)option->least,
                   (long long)option->most);
    *(int64_t *)(void *)field = (int64_t)n;
    return true;
  }
  case CLI_DURATION: {
    int64_t ms;
    if (!dibs__cli_duration(value, &ms, why, sizeof why)) return wrong(p, "--%s: %s", option->name, why);
    char least[24], most[24];
    dibs__cli_span(least, sizeof least, option->least);
    dibs__cli_span(most, sizeof most, option->most);
    if (ms < option->least || ms > option->most)
      return wrong(p, "--%s: '%.40s' is not from %s to %s", option->name, value, least, most);
    *(int64_t *)(void *)field = ms;
    return true;
  }
  }
  return false;
}

static const struct cli_option *find_option(const char *name, size_t length) {
  for (size_t i = 0; i < CLI_OPT_COUNT; i++)
    if (strlen(dibs__cli_options[i].name) == length && strncmp(dibs__cli_options[i].name, name, length) == 0)
      return &dibs__cli_options[i];
  return NULL;
}

/* `word` begins with "--" and more.  A raw command keeps what it does not share. */
static bool long_option(struct parse *p, char *word) {
  const char *name = word + 2;
  size_t length = strcspn(name, "=");
  const struct cli_option *option = find_option(name, length);
  const struct cli_command *command = p->call->command;
  bool raw = command != NULL && command->raw;
  uint32_t ours = CLI_TAKES_GLOBALS & ~CLI_TAKES(help);
  if (option != NULL && raw && !(ours & (1u << (option - dibs__cli_options)))) option = NULL;
  if (option == NULL) {
    if (raw) {
      p->call->rest[p->call->nrest++] = word;
      return true;
    }
    char shown[64];
    struct dibs__text t;
    dibs__text_begin(&t, shown, sizeof shown);
    dibs__text_add(&t, name, length);
    return unknown_option(p, shown);
  }
  p->seen |= 1u << (option - dibs__cli_options);
  const char *value = name[length] == '=' ? name + length + 1 : NULL;
  if (option->kind == CLI_FLAG) {
    if (value != NULL) return wrong(p, "--%s takes no value", option->name);
    return set_value(p, option, "");
  }
  if (value == NULL && p->at < p->argc && strcmp(p->argv[p->at], "--") != 0) value = p->argv[p->at++];
  if (value == NULL) return wrong(p, "--%s needs a value: --%s %s", option->name, option->name, option->arg);
  return set_value(p, option, value);
}

static bool command_word(struct parse *p, char *word) {
  struct cli_call *call = p->call;
  call->command = dibs__cli_command_find(word);
  if (call->command != NULL) {
    call->v.globals.command = call->command->name;
    if (call->command->raw) call->rest[call->nrest++] = word;
    return true;
  }
  const char *near = dibs__cli_nearest(word, nth_command, NULL);
  wrong(p, "there is no command '%.40s'", word);
  if (near != NULL) return wrong(p, "; did you mean '%s'?", near);
  return wrong(p, "; see dibs help");
}

static bool position(struct parse *p, char *word) {
  struct cli_call *call = p->call;
  if (call->command == NULL) return command_word(p, word);
  if (call->command->raw) {
    call->rest[call->nrest++] = word;
    return true;
  }
  if (call->npos == call->command->pos_max || call->npos == CLI_POS_MAX) {
    if (call->command->rest)
      return wrong(p, "'%.40s': put -- before the command: dibs %s NAME -- %.40s", word, call->command->name, word);
    if (dibs__cli_is_id(word))
      return wrong(p, "an id among the arguments: ps shows those to everybody; hand it over as DIBS_LEASE in the "
                      "environment, or on standard input with '-'");
    return wrong(p, "'%.40s' is one word too many: dibs %s %s", word, call->command->name, call->command->args);
  }
  call->pos[call->npos++] = word;
  return true;
}

static bool behind_dashes(struct parse *p) {
  struct cli_call *call = p->call;
  if (call->command != NULL && call->command->rest) {
    call->rest = p->argv + p->at;
    call->nrest = p->argc - p->at;
    p->at = p->argc;
    return true;
  }
  while (p->at < p->argc)
    if (!position(p, p->argv[p->at++])) return false;
  return true;
}

static bool check(struct parse *p) {
  struct cli_call *call = p->call;
  const struct cli_command *command = call->command;
  if (command == NULL || call->v.help) return true;
  uint32_t stray = p->seen & ~takes(command);
  if (stray != 0) {
    const char *name = dibs__cli_options[__builtin_ctz(stray)].name;
    return wrong(p, "dibs %s takes no --%s; see dibs help %s", command->name, name, command->name);
  }
  if (call->npos < command->pos_min)
    return wrong(p, "something is missing: dibs %s %s; see dibs help %s", command->name, command->args, command->name);
  if (command->rest && call->nrest == 0 && !call->v.forget)
    return wrong(p, "the command to run is missing: dibs %s %s; see dibs help %s", command->name, command->args,
                 command->name);
  return true;
}

bool dibs__cli_parse(int argc, char **argv, struct cli_call *call, char *wrong_text, size_t wrong_size) {
  *call = (struct cli_call){.rest = argv};
  struct cli_values *v = &call->v;
  v->ttl_ms = v->wait_ms = v->grace_ms = v->interval_ms = v->slots = v->count = v->keep_ms = v->percent = CLI_UNSET;
  v->globals.command = "";
  struct parse p = {call, argc, 1, argv, 0, {0}};
  dibs__text_begin(&p.wrong, wrong_text, wrong_size);
  bool fine = true;
  while (fine && p.at < argc) {
    char *word = argv[p.at++];
    if (strcmp(word, "--") == 0) {
      fine = behind_dashes(&p);
    } else if (strncmp(word, "--", 2) == 0) {
      fine = long_option(&p, word);
    } else if (call->command != NULL && call->command->raw) {
      fine = position(&p, word);
    } else if (strcmp(word, "-h") == 0) {
      v->help = true;
    } else if (word[0] == '-' && word[1] != '\0') {
      fine = wrong(&p, "there is no option %.40s; options have two dashes and a name, see dibs help", word);
    } else {
      fine = position(&p, word);
    }
  }
  v->globals.store_given = v->globals.store != NULL;
  if (v->globals.store == NULL) v->globals.store = getenv("DIBS_STORE");
  if (v->globals.store != NULL && *v->globals.store == '\0') v->globals.store = NULL;
  fine = fine && check(&p);
  if (!fine || call->command == NULL || !(call->command->rest || call->command->raw)) {
    call->rest = NULL;
    call->nrest = 0;
  }
  if (call->rest != NULL && call->command->raw) call->rest[call->nrest] = NULL;
  assert(fine == (p.wrong.len == 0));
  return fine;
}

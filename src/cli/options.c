/* SPDX-License-Identifier: MIT */
/* Words of the command line to values.  Fuzzed by test/fuzz/fuzz_cli.c. */
#include "base/duration.h"
#include "base/text.h"
#include "cli/cli.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

bool dibs__cli_number(const char *text, uint64_t most, uint64_t *out) {
  *out = 0;
  if (*text == '\0') return false;
  uint64_t n = 0;
  for (; *text != '\0'; text++) {
    if (*text < '0' || *text > '9') return false;
    uint64_t digit = (uint64_t)(*text - '0');
    if (n > (UINT64_MAX - digit) / 10) return false;
    n = n * 10 + digit;
  }
  if (n > most) return false;
  *out = n;
  return true;
}

bool dibs__cli_is_id(const char *text) {
  uint8_t id[16];
  return dibs__hex_read(text, id);
}

/*
 * Reads a lease in the three forms that standard input may have.  Fuzzed by test/fuzz/fuzz_cli.c.
 */

#define FENCE_MAX ((UINT64_C(1) << 53) - 1)

/* The longest value is that of DIBS_HELD. */
enum { VALUE_MAX = CLI_HELD_MAX };

struct input {
  const char *at, *end;
  char *wrong;
  size_t wrong_size;
};

static bool wrong_lease(struct input *in, const char *what) {
  struct dibs__text t;
  dibs__text_begin(&t, in->wrong, in->wrong_size);
  dibs__text_adds(&t, what);
  return false;
}

static bool blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void skip_blanks(struct input *in) {
  while (in->at < in->end && blank(*in->at)) in->at++;
}

static bool keep_name(struct input *in, struct cli_lease_in *lease, const char *name) {
  size_t length = strlen(name);
  enum dibs__name_flaw flaw = dibs__name_check(name, length, DIBS_NAME_MAX, NULL);
  if (flaw != DIBS__NAME_OK) {
    char text[80];
    snprintf(text, sizeof text, "the name %s", dibs__name_flaw_text(flaw));
    return wrong_lease(in, text);
  }
  memcpy(lease->name, name, length + 1);
  return true;
}

static bool keep_id(struct input *in, struct cli_lease_in *lease, const char *id) {
  if (!dibs__cli_is_id(id)) return wrong_lease(in, "the id of the lease is not 32 hexadecimal digits");
  memcpy(lease->id, id, sizeof lease->id);
  lease->has_id = true;
  return true;
}

static bool keep_fence(struct input *in, struct cli_lease_in *lease, const char *fence) {
  if (!dibs__cli_number(fence, FENCE_MAX, &lease->fence))
    return wrong_lease(in, "the fence is not a number below 2^53");
  lease->has_fence = true;
  return true;
}

static bool keep_ttl(struct input *in, struct cli_lease_in *lease, const char *ttl) {
  char why[160];
  if (!dibs__duration_read(ttl, &lease->ttl_ms, why, sizeof why))
    return wrong_lease(in, "DIBS_TTL is not a duration like 30s");
  return true;
}

static bool keep_pair(struct input *in, struct cli_lease_in *lease, const char *key, const char *value) {
  if (strcmp(key, "DIBS_NAME") == 0) return keep_name(in, lease, value);
  if (strcmp(key, "DIBS_LEASE") == 0) return keep_id(in, lease, value);
  if (strcmp(key, "DIBS_FENCE") == 0) return keep_fence(in, lease, value);
  if (strcmp(key, "DIBS_TTL") == 0) return keep_ttl(in, lease, value);
  return true;
}

/* One word as a shell reads it: it removes quotes and backslashes. */
static bool shell_word(struct input *in, char word[VALUE_MAX]) {
  size_t n = 0;
  char quote = '\0';
  for (; in->at < in->end; in->at++) {
    char c = *in->at;
    if (c == '\0') return wrong_lease(in, "it contains a zero byte");
    if (quote == '\0' && (blank(c) || c == ';')) break;
    if (quote == '\0' && (c == '\'' || c == '"')) {
      quote = c;
      continue;
    }
    if (quote != '\0' && c == quote) {
      quote = '\0';
      continue;
    }
    if (c == '\\' && quote != '\'' && in->at + 1 < in->end) c = *++in->at;
    if (n + 1 >= VALUE_MAX) return wrong_lease(in, "a word in it is too long");
    word[n++] = c;
  }
  word[n] = '\0';
  return quote == '\0' || wrong_lease(in, "a quote is not closed");
}

static bool parse_words(struct input *in, struct cli_lease_in *lease) {
  char word[VALUE_MAX];
  for (;;) {
    while (in->at < in->end && (blank(*in->at) || *in->at == ';')) in->at++;
    if (in->at == in->end) return true;
    if (!shell_word(in, word)) return false;
    char *equals = strchr(word, '=');
    bool fine = true;
    if (equals != NULL) {
      *equals = '\0';
      fine = keep_pair(in, lease, word, equals + 1);
    } else if (dibs__cli_is_id(word)) {
      fine = keep_id(in, lease, word);
    } else if (lease->has_id && !lease->has_fence && word[0] >= '0' && word[0] <= '9') {
      fine = keep_fence(in, lease, word);
    }
    if (!fine) return false;
  }
}

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/* A string as dibs prints it: \" \\ \n \t, and \uXXXX for controls, which no value of a lease may contain. */
static bool json_string(struct input *in, char text[VALUE_MAX]) {
  size_t n = 0;
  for (in->at++; in->at < in->end && *in->at != '"'; in->at++) {
    char c = *in->at;
    if ((unsigned char)c < 0x20) return wrong_lease(in, "a string of the JSON has a control character");
    if (c == '\\') {
      if (++in->at == in->end) break;
      c = *in->at;
      if (c == 'u') {
        int code = 0;
        for (int i = 0; i < 4; i++) {
          int digit = ++in->at < in->end ? hex_digit(*in->at) : -1;
          if (digit < 0) return wrong_lease(in, "the JSON is damaged");
          code = code * 16 + digit;
        }
        if (code < 0x20 || code > 0x7e) return wrong_lease(in, "the JSON has an escape that dibs lock does not print");
        c = (char)code;
      } else if (strchr("\"\\/", c) == NULL || c == '\0') {
        return wrong_lease(in, "a string of the JSON has a control character");
      }
    }
    if (n + 1 >= VALUE_MAX) return wrong_lease(in, "a string of the JSON is too long");
    text[n++] = c;
  }
  if (in->at >= in->end) return wrong_lease(in, "the JSON ends inside a string");
  in->at++;
  text[n] = '\0';
  return true;
}

static bool json_value(struct input *in, char text[VALUE_MAX]) {
  skip_blanks(in);
  if (in->at < in->end && *in->at == '"') return json_string(in, text);
  size_t n = 0;
  while (in->at < in->end && !blank(*in->at) && *in->at != ',' && *in->at != '}' && n + 1 < VALUE_MAX)
    text[n++] = *in->at++;
  text[n] = '\0';
  if (n == 0 || strchr("{[", text[0]) != NULL) return wrong_lease(in, "the JSON is not the output of dibs lock");
  return true;
}

static bool json_member(struct input *in, struct cli_lease_in *lease) {
  char key[VALUE_MAX], value[VALUE_MAX];
  skip_blanks(in);
  if (in->at == in->end || *in->at != '"' || !json_string(in, key)) return wrong_lease(in, "the JSON is damaged");
  skip_blanks(in);
  if (in->at == in->end || *in->at++ != ':') return wrong_lease(in, "the JSON is damaged");
  if (!json_value(in, value)) return false;
  if (strcmp(key, "name") == 0) return keep_name(in, lease, value);
  if (strcmp(key, "lease") == 0) return keep_id(in, lease, value);
  if (strcmp(key, "fence") == 0) return keep_fence(in, lease, value);
  uint64_t ttl;
  if (strcmp(key, "ttl_ms") == 0) {
    if (!dibs__cli_number(value, (uint64_t)DIBS_TTL_MAX_MS, &ttl)) return wrong_lease(in, "ttl_ms is not a number");
    lease->ttl_ms = (int64_t)ttl;
  }
  return true;
}

static bool parse_json(struct input *in, struct cli_lease_in *lease) {
  in->at++;
  for (;;) {
    if (!json_member(in, lease)) return false;
    skip_blanks(in);
    if (in->at == in->end) return wrong_lease(in, "the JSON ends too early");
    char c = *in->at++;
    if (c == '}') break;
    if (c != ',') return wrong_lease(in, "the JSON is damaged");
  }
  skip_blanks(in);
  return in->at == in->end || wrong_lease(in, "there is text after the JSON");
}

bool dibs__cli_lease_parse(const char *text, size_t length, struct cli_lease_in *lease, char *why, size_t why_size) {
  *lease = (struct cli_lease_in){.ttl_ms = CLI_UNSET};
  struct input in = {text, text + length, why, why_size};
  *why = '\0';
  skip_blanks(&in);
  bool fine = in.at < in.end && *in.at == '{' ? parse_json(&in, lease) : parse_words(&in, lease);
  if (fine && !lease->has_id) return wrong_lease(&in, "it contains no id of a lease");
  return fine;
}

bool dibs__cli_lease_keep(const char *key, const char *value, struct cli_lease_in *lease, char *why, size_t why_size) {
  struct input in = {NULL, NULL, why, why_size};
  return keep_pair(&in, lease, key, value);
}

/*
 * The one option parser.  Options may occur anywhere before "--", as `--name value` or `--name=value`.  The command is
 * the first word that is not an option; its options are checked after all words are read, so that they may come first.
 */

const struct cli_option dibs__cli_options[CLI_OPT_COUNT] = {
#define CLI__OPTION_ROW(word, name, kind, arg, help, least, most, field)                                               \
  {name, CLI_##kind, arg, help, least, most, offsetof(struct cli_values, field)},
    CLI_OPTIONS(CLI__OPTION_ROW)
#undef CLI__OPTION_ROW
};

struct parse {
  struct cli_call *call;
  int argc, at; /* the next word */
  char **argv;
  struct dibs__text wrong;
};

static bool wrong_option(struct parse *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool wrong_option(struct parse *p, const char *format, ...) {
  char text[400];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  dibs__text_adds(&p->wrong, text);
  return false;
}

const struct cli_command *dibs__cli_command_find(const char *name) {
  for (const struct cli_command *c = dibs__cli_commands; c->name != NULL; c++)
    if (strcmp(c->name, name) == 0) return c;
  return NULL;
}

static const char *nth_option(size_t i, const void *arg) {
  const cli_option_set *takes = arg;
  /* Skipped ones must not end the list. */
  if (i >= CLI_OPT_COUNT) return NULL;
  return *takes & CLI_BIT(i) ? dibs__cli_options[i].name : "";
}

static const char *nth_command(size_t i, const void *arg) {
  (void)arg;
  return dibs__cli_commands[i].name;
}

static cli_option_set takes(const struct cli_command *command) {
  return CLI_TAKES_GLOBALS | (command != NULL ? command->options : UINT64_MAX);
}

static bool unknown_option(struct parse *p, const char *name) {
  static const char *const secrets[] = {"id", "lease", "fence"};
  for (size_t i = 0; i < sizeof secrets / sizeof *secrets; i++)
    if (strcmp(name, secrets[i]) == 0)
      return wrong_option(p,
                          "there is no --%s, because ps shows arguments to every user; pass it as DIBS_%s in the "
                          "environment, or on standard input with '-'",
                          name, strcmp(name, "fence") == 0 ? "FENCE" : "LEASE");
  const struct cli_command *command = p->call->command;
  cli_option_set may = takes(command);
  const char *near = dibs__nearest(name, nth_option, &may);
  wrong_option(p, "there is no option --%.40s", name);
  if (near != NULL) return wrong_option(p, "; did you mean --%s?", near);
  return wrong_option(p, "; see dibs help%s%s", command != NULL ? " " : "", command != NULL ? command->name : "");
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
  case CLI_LIST: {
    const char **word = ((struct cli_words *)(void *)field)->word;
    size_t count = 0;
    while (word[count] != NULL) count++;
    if (count == CLI_WORDS_MAX) return wrong_option(p, "--%s: at most %d times", option->name, CLI_WORDS_MAX);
    word[count] = value;
    return true;
  }
  case CLI_COUNT: {
    uint64_t n;
    if (!dibs__cli_number(value, (uint64_t)option->most, &n) || (int64_t)n < option->least)
      return wrong_option(p, "--%s: '%.40s' is not a number from %lld to %lld", option->name, value,
                          (long long)option->least, (long long)option->most);
    *(int64_t *)(void *)field = (int64_t)n;
    return true;
  }
  case CLI_DURATION: {
    int64_t ms;
    if (!dibs__duration_read(value, &ms, why, sizeof why)) return wrong_option(p, "--%s: %s", option->name, why);
    char least[24], most[24];
    dibs__duration_write(least, sizeof least, option->least);
    dibs__duration_write(most, sizeof most, option->most);
    if (ms < option->least || ms > option->most)
      return wrong_option(p, "--%s: '%.40s' is not between %s and %s", option->name, value, least, most);
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

/* `word` begins with "--" and has more.  A raw command keeps the options that are its own. */
static bool long_option(struct parse *p, char *word) {
  const char *name = word + 2;
  size_t length = strcspn(name, "=");
  const struct cli_option *option = find_option(name, length);
  const struct cli_command *command = p->call->command;
  bool raw = command != NULL && command->raw;
  cli_option_set ours = CLI_TAKES_GLOBALS & ~CLI_TAKES(help);
  if (option != NULL && raw && !(ours & CLI_BIT(option - dibs__cli_options))) option = NULL;
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
  p->call->given |= CLI_BIT(option - dibs__cli_options);
  const char *value = name[length] == '=' ? name + length + 1 : NULL;
  if (option->kind == CLI_FLAG) {
    if (value != NULL) return wrong_option(p, "--%s takes no value", option->name);
    return set_value(p, option, "");
  }
  if (value == NULL && p->at < p->argc && strcmp(p->argv[p->at], "--") != 0) value = p->argv[p->at++];
  if (value == NULL) return wrong_option(p, "--%s needs a value: --%s %s", option->name, option->name, option->arg);
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
  const char *near = dibs__nearest(word, nth_command, NULL);
  wrong_option(p, "there is no command '%.40s'", word);
  if (near != NULL) return wrong_option(p, "; did you mean '%s'?", near);
  return wrong_option(p, "; see dibs help");
}

/* How much of the arguments is before the command: "NAME " of "NAME -- CMD". */
static int before_command(const char *args) {
  const char *at = strstr(args, "-- CMD");
  return at == NULL ? 0 : (int)(at - args);
}

static bool position(struct parse *p, char *word) {
  struct cli_call *call = p->call;
  if (call->command == NULL) return command_word(p, word);
  if (call->command->raw) {
    call->rest[call->nrest++] = word;
    return true;
  }
  if (call->npos == call->command->pos_max || call->npos == CLI_POS_MAX) {
    if (call->command->rest && call->command->pos_max == 0)
      return wrong_option(p, "unexpected argument '%.40s': a kind follows --kind, a command follows --: dibs %s %s",
                          word, call->command->name, call->command->args);
    if (call->command->rest)
      return wrong_option(p, "'%.40s': put -- before the command: dibs %s %.*s-- %.40s", word, call->command->name,
                          before_command(call->command->args), call->command->args, word);
    if (dibs__cli_is_id(word))
      return wrong_option(p, "do not pass the id of a lease as an argument, because ps shows arguments to every user: "
                             "pass it as DIBS_LEASE in the environment, or on standard input with '-'");
    return wrong_option(p, "unexpected argument '%.40s': dibs %s %s", word, call->command->name, call->command->args);
  }
  call->pos[call->npos++] = word;
  return true;
}

/* "run -- -name -- CMD": a name that looks like an option is between the two dashes. */
static bool named_between(struct parse *p) {
  struct cli_call *call = p->call;
  if (call->command == NULL || !call->command->rest || call->npos + 1 != call->command->pos_min) return true;
  if (p->at + 1 >= p->argc || strcmp(p->argv[p->at + 1], "--") != 0) return true;
  bool fine = position(p, p->argv[p->at]);
  p->at += 2;
  return fine;
}

static bool behind_dashes(struct parse *p) {
  struct cli_call *call = p->call;
  if (!named_between(p)) return false;
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

const char *dibs__cli_first_option(cli_option_set set) {
  size_t first = 0;
  while (!(set & CLI_BIT(first))) first++;
  return dibs__cli_options[first].name;
}

static bool check_call(struct parse *p) {
  struct cli_call *call = p->call;
  const struct cli_command *command = call->command;
  if (command == NULL || call->v.help) return true;
  cli_option_set stray = call->given & ~takes(command);
  if (stray != 0) {
    const char *name = dibs__cli_first_option(stray);
    return wrong_option(p, "dibs %s does not take --%s; see dibs help %s", command->name, name, command->name);
  }
  if (call->npos < command->pos_min)
    return wrong_option(p, "an argument is missing: dibs %s %s; see dibs help %s", command->name, command->args,
                        command->name);
  /* A command with several forms checks by itself which of them needs one. */
  bool one_form = command->pos_min == command->pos_max;
  if (command->rest && one_form && call->nrest == 0 && !call->v.forget && call->v.exec == NULL)
    return wrong_option(p, "the command to run is missing: dibs %s %s; see dibs help %s", command->name, command->args,
                        command->name);
  return true;
}

bool dibs__cli_parse(int argc, char **argv, struct cli_call *call, char *wrong_text, size_t wrong_size) {
  *call = (struct cli_call){.rest = argv};
  struct cli_values *v = &call->v;
  v->ttl_ms = v->wait_ms = v->grace_ms = v->at_least_ms = v->max_ms = v->interval_ms = v->slots = v->count =
      v->keep_ms = v->percent = v->last = CLI_UNSET;
  v->delay_ms = v->tries = v->older_ms = v->rate = v->running = v->jobs = v->timeout_ms = v->drain_ms = v->max_tasks =
      v->batch = v->lanes = CLI_UNSET;
  v->globals.command = "";
  struct parse p = {call, argc, 1, argv, {0}};
  dibs__text_begin(&p.wrong, wrong_text, wrong_size);
  bool fine = true;
  while (fine && p.at < argc) {
    char *word = argv[p.at++];
    if (strcmp(word, "--") == 0) {
      fine = behind_dashes(&p);
    } else if (call->command == NULL && strcmp(word, "--version") == 0) {
      fine = command_word(&p, word + 2);
    } else if (strncmp(word, "--", 2) == 0) {
      fine = long_option(&p, word);
    } else if (call->command != NULL && call->command->raw) {
      fine = position(&p, word);
    } else if (strcmp(word, "-h") == 0) {
      v->help = true;
    } else if (word[0] == '-' && word[1] != '\0' && (word[1] < '0' || word[1] > '9')) { /* not a number */
      fine = wrong_option(&p, "there is no option %.40s; options have two dashes and a name; see dibs help", word);
    } else {
      fine = position(&p, word);
    }
  }
  v->globals.store_given = v->globals.store != NULL;
  /* The library refuses an empty one; a command that opens no store does not need it. */
  const char *named = getenv("DIBS_STORE");
  if (v->globals.store == NULL && named != NULL && *named != '\0') v->globals.store = named;
  fine = fine && check_call(&p);
  if (!fine || call->command == NULL || !(call->command->rest || call->command->raw)) {
    call->rest = NULL;
    call->nrest = 0;
  }
  if (call->rest != NULL && call->command->raw) call->rest[call->nrest] = NULL;
  assert(fine == (p.wrong.len == 0));
  return fine;
}

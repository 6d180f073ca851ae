/* SPDX-License-Identifier: MIT */
/* `dibs help`, `dibs COMMAND --help`, `dibs version`: made from the tables. */
#include "cli/cli.h"

#include <string.h>

static const struct {
  const char *name;
  int number;
  const char *statuses, *text;
} exits[] = {
#define CLI__EXIT_ROW(name, number, statuses, text) {#name, number, statuses, text},
    CLI_EXITS(CLI__EXIT_ROW)
#undef CLI__EXIT_ROW
};
enum { EXITS = sizeof exits / sizeof *exits };

static const char *nth_topic(size_t i, const void *arg) {
  (void)arg;
  return dibs__cli_commands[i].name;
}

static void print_options(uint32_t takes, FILE *out) {
  for (size_t i = 0; i < CLI_OPT_COUNT; i++) {
    const struct cli_option *o = &dibs__cli_options[i];
    if (!(takes & (1u << i))) continue;
    char left[32];
    snprintf(left, sizeof left, "--%s%s%s", o->name, *o->arg != '\0' ? " " : "", o->arg);
    fprintf(out, "  %-17s %s\n", left, o->help);
  }
}

void dibs__cli_help_command(const struct cli_command *command, FILE *out) {
  fprintf(out, "usage: dibs %s %s%s\n\n%s.\n", command->name, command->args,
          command->raw             ? ""
          : *command->args != '\0' ? " [OPTION...]"
                                   : "[OPTION...]",
          command->summary);
  if (*command->text != '\0') fprintf(out, "\n%s", command->text);
  fprintf(out, "\nOptions%s:\n", command->rest ? ", anywhere before --" : "");
  print_options(command->options, out);
  print_options(CLI_TAKES_GLOBALS, out);
  fprintf(out, "\nExit codes:\n");
  for (size_t i = 0; i < EXITS; i++)
    if (command->exits & (1u << i)) fprintf(out, "  %3d  %s\n", exits[i].number, exits[i].text);
  fprintf(out, "\nExample:\n  %s\n", command->example);
}

void dibs__cli_help_all(FILE *out) {
  fprintf(out, "usage: dibs COMMAND [OPTION...]\n\ndibs %s: one holder, one write.\n\nCommands:\n", dibs_version());
  for (const struct cli_command *c = dibs__cli_commands; c->name != NULL; c++)
    fprintf(out, "  %-8s %s\n", c->name, c->summary);
  fprintf(out, "\nOptions of every command:\n");
  print_options(CLI_TAKES_GLOBALS, out);
  fprintf(out,
          "\ndibs help COMMAND tells more; dibs help exits lists the exit codes.\n"
          "Durations are written 500ms, 30s, 2m, 1h.  NAME is 1 to %d bytes of UTF-8.\n",
          DIBS_NAME_MAX);
}

static void print_exits(FILE *out) {
  for (size_t i = 0; i < EXITS; i++) {
    fprintf(out, "%3d  %s", exits[i].number, exits[i].text);
    if (*exits[i].statuses != '\0') fprintf(out, " [%s]", exits[i].statuses);
    fprintf(out, "\n");
  }
}

static void json_exits(struct cli_json *j) {
  dibs__cli_json_open(j, "exits", '[');
  for (size_t i = 0; i < EXITS; i++) {
    dibs__cli_json_open(j, NULL, '{');
    dibs__cli_json_int(j, "code", exits[i].number);
    dibs__cli_json_text(j, "name", exits[i].name);
    dibs__cli_json_text(j, "statuses", exits[i].statuses);
    dibs__cli_json_text(j, "text", exits[i].text);
    dibs__cli_json_close(j, '}');
  }
  dibs__cli_json_close(j, ']');
}

static void json_command(struct cli_json *j, const struct cli_command *command) {
  dibs__cli_json_open(j, NULL, '{');
  dibs__cli_json_text(j, "name", command->name);
  dibs__cli_json_text(j, "arguments", command->args);
  dibs__cli_json_text(j, "summary", command->summary);
  dibs__cli_json_open(j, "options", '[');
  for (size_t i = 0; i < CLI_OPT_COUNT; i++) {
    const struct cli_option *o = &dibs__cli_options[i];
    if (!((command->options | CLI_TAKES_GLOBALS) & (1u << i))) continue;
    dibs__cli_json_open(j, NULL, '{');
    dibs__cli_json_text(j, "name", o->name);
    dibs__cli_json_text(j, "argument", o->arg);
    dibs__cli_json_text(j, "help", o->help);
    dibs__cli_json_close(j, '}');
  }
  dibs__cli_json_close(j, ']');
  dibs__cli_json_open(j, "exits", '[');
  for (size_t i = 0; i < EXITS; i++)
    if (command->exits & (1u << i)) dibs__cli_json_int(j, NULL, exits[i].number);
  dibs__cli_json_close(j, ']');
  dibs__cli_json_close(j, '}');
}

static void json_help(const struct cli_command *only) {
  struct cli_json j = {.out = stdout};
  dibs__cli_json_open(&j, NULL, '{');
  dibs__cli_json_open(&j, "commands", '[');
  for (const struct cli_command *c = dibs__cli_commands; c->name != NULL; c++)
    if (only == NULL || only == c) json_command(&j, c);
  dibs__cli_json_close(&j, ']');
  json_exits(&j);
  dibs__cli_json_close(&j, '}');
}

int dibs__cli_help(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  const char *topic = call->npos > 0 ? call->pos[0] : NULL;
  bool about_exits = topic != NULL && strcmp(topic, "exits") == 0;
  const struct cli_command *command = topic != NULL && !about_exits ? dibs__cli_command_find(topic) : NULL;
  if (topic != NULL && !about_exits && command == NULL) {
    const char *near = dibs__cli_nearest(topic, nth_topic, NULL);
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "there is no command '%.40s'%s%s%s", topic,
                          near != NULL ? "; did you mean '" : "; see dibs help", near != NULL ? near : "",
                          near != NULL ? "'?" : "");
  }
  if (g->json)
    json_help(command);
  else if (about_exits)
    print_exits(stdout);
  else if (command != NULL)
    dibs__cli_help_command(command, stdout);
  else
    dibs__cli_help_all(stdout);
  return dibs__cli_flush(g);
}

int dibs__cli_version(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  if (g->json) {
    struct cli_json j = {.out = stdout};
    dibs__cli_json_open(&j, NULL, '{');
    dibs__cli_json_text(&j, "version", dibs_version());
    dibs__cli_json_uint(&j, "number", dibs_version_number());
    dibs__cli_json_close(&j, '}');
  } else {
    printf("dibs %s\n", dibs_version());
  }
  return dibs__cli_flush(g);
}

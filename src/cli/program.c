/* SPDX-License-Identifier: MIT */
/*
 * Shared by the programs dibs and dibs-lab: from the arguments to the command, and `help`, `COMMAND --help` and
 * `version`, which are generated from the tables.  Each program has its own table and name.
 */
#include "base/text.h"
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

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

/* Where an option does not mean what it means elsewhere. */
static const struct {
  const char *command;
  int option;
  const char *help;
} own_help[] = {
    {"stock", CLI_OPT_wait, "the longest duration, retries included (5s)"},
    {"counter", CLI_OPT_wait, "the longest duration, retries included (5s)"},
    {"counter", CLI_OPT_forget, "flush: delete the refused sums that it prints"},
    {"once", CLI_OPT_forget, "delete the kept result"},
    {"rate", CLI_OPT_wait, "wait until it is allowed, this long at most (does not wait)"},
    {"lane", CLI_OPT_wait, "resize: until all members have left the old number (for ever)"},
    {"lane", CLI_OPT_jobs, "kafka: how many partitions this member can have at most (32)"},
    {"lane", CLI_OPT_verbose, "a line for each change, also if standard error is no terminal"},
    {"task", CLI_OPT_count, "list or change at most N tasks"},
    {"task", CLI_OPT_wait, "how long to try if the store does not answer (5s)"},
    {"task", CLI_OPT_keep, "how long finished tasks of the kind are kept (7d)"},
    {"dead", CLI_OPT_count, "list or change at most N tasks"},
    {"worker", CLI_OPT_max, "how long a command may run; then dibs ends it, and the try has failed"},
    {"history", CLI_OPT_kind, "only of this kind: run, once, cron, worker"},
    {"cron", CLI_OPT_jobs, "how many commands run at one time (16)"},
    {"relay", CLI_OPT_jobs, "how many at one time (16; --exec: 1)"},
    {"relay", CLI_OPT_exec, "run this command for each message, by sh -c"},
    {"relay", CLI_OPT_tries, "how often a message may fail (as it says, else 10)"},
    {"relay", CLI_OPT_timeout, "how long one may take (10s; --exec: for ever)"},
    {"relay", CLI_OPT_ttl, "how long a claim lasts without renewal (30s)"},
    {"relay", CLI_OPT_once, "end when no message is ready"},
    {"tier", CLI_OPT_force, "dissolve although other clients use the tiers"},
};

static const char *help_of(const char *command, int option) {
  for (size_t i = 0; i < sizeof own_help / sizeof *own_help; i++)
    if (own_help[i].option == option && strcmp(own_help[i].command, command) == 0) return own_help[i].help;
  return dibs__cli_options[option].help;
}

static void print_options(const char *command, cli_option_set takes, FILE *out) {
  for (int i = 0; i < CLI_OPT_COUNT; i++) {
    const struct cli_option *o = &dibs__cli_options[i];
    if (!(takes & CLI_BIT(i))) continue;
    char left[32];
    snprintf(left, sizeof left, "--%s%s%s", o->name, *o->arg != '\0' ? " " : "", o->arg);
    fprintf(out, "  %-17s %s\n", left, help_of(command, i));
  }
}

static void help_command(const struct cli_command *command, FILE *out) {
  fprintf(out, "usage: dibs %s %s%s\n\n%s.\n", command->name, command->args,
          command->raw             ? ""
          : *command->args != '\0' ? " [OPTION...]"
                                   : "[OPTION...]",
          command->summary);
  if (*command->text != '\0') fprintf(out, "\n%s", command->text);
  fprintf(out, "\nOptions%s:\n", command->rest ? ", anywhere before --" : "");
  print_options(command->name, command->options, out);
  print_options(command->name, CLI_TAKES_GLOBALS, out);
  fprintf(out, "\nExit codes:\n");
  for (size_t i = 0; i < EXITS; i++)
    if (command->exits & (1u << i)) fprintf(out, "  %3d  %s\n", exits[i].number, exits[i].text);
  fprintf(out, "\nExample:\n  %s\n", command->example);
}

static void help_all(FILE *out) {
  const struct cli_program *program = &dibs__cli_program;
  fprintf(out, "usage: %s COMMAND [OPTION...]\n\n%s %s: %s.\n\nCommands:\n", program->name, program->name,
          dibs_version(), program->summary);
  for (const struct cli_command *c = dibs__cli_commands; c->name != NULL; c++)
    fprintf(out, "  %-8s %s\n", c->name, c->summary);
  fprintf(out, "\nOptions of every command:\n");
  print_options("", CLI_TAKES_GLOBALS, out);
  fprintf(out,
          "\nSee dibs help COMMAND for a command, and dibs help exits for the exit codes.\nWrite durations as 500ms, "
          "30s, 2m05s, 1h, 7d.  NAME is 1 to %d bytes of UTF-8.\n",
          DIBS_NAME_MAX);
}

static void print_exits(FILE *out) {
  for (size_t i = 0; i < EXITS; i++) {
    fprintf(out, "%3d  %s", exits[i].number, exits[i].text);
    if (*exits[i].statuses != '\0') fprintf(out, " [%s]", exits[i].statuses);
    fprintf(out, "\n");
  }
}

static void json_exits(struct dibs__json *j) {
  dibs__json_open(j, "exits", '[');
  for (size_t i = 0; i < EXITS; i++) {
    dibs__json_open(j, NULL, '{');
    dibs__json_int(j, "code", exits[i].number);
    dibs__json_text(j, "name", exits[i].name);
    dibs__json_text(j, "statuses", exits[i].statuses);
    dibs__json_text(j, "text", exits[i].text);
    dibs__json_close(j, '}');
  }
  dibs__json_close(j, ']');
}

static void json_command(struct dibs__json *j, const struct cli_command *command) {
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "name", command->name);
  dibs__json_text(j, "arguments", command->args);
  dibs__json_text(j, "summary", command->summary);
  dibs__json_open(j, "options", '[');
  for (int i = 0; i < CLI_OPT_COUNT; i++) {
    const struct cli_option *o = &dibs__cli_options[i];
    if (!((command->options | CLI_TAKES_GLOBALS) & CLI_BIT(i))) continue;
    dibs__json_open(j, NULL, '{');
    dibs__json_text(j, "name", o->name);
    dibs__json_text(j, "argument", o->arg);
    dibs__json_text(j, "help", help_of(command->name, i));
    dibs__json_close(j, '}');
  }
  dibs__json_close(j, ']');
  dibs__json_open(j, "exits", '[');
  for (size_t i = 0; i < EXITS; i++)
    if (command->exits & (1u << i)) dibs__json_int(j, NULL, exits[i].number);
  dibs__json_close(j, ']');
  dibs__json_close(j, '}');
}

static void json_help(const struct cli_command *only) {
  struct dibs__json j = {.out = stdout};
  dibs__json_open(&j, NULL, '{');
  dibs__json_open(&j, "commands", '[');
  for (const struct cli_command *c = dibs__cli_commands; c->name != NULL; c++)
    if (only == NULL || only == c) json_command(&j, c);
  dibs__json_close(&j, ']');
  json_exits(&j);
  dibs__json_close(&j, '}');
}

int dibs__cli_help(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  const char *topic = call->npos > 0 ? call->pos[0] : NULL;
  bool about_exits = topic != NULL && strcmp(topic, "exits") == 0;
  const struct cli_command *command = topic != NULL && !about_exits ? dibs__cli_command_find(topic) : NULL;
  if (topic != NULL && !about_exits && command == NULL) {
    const char *near = dibs__nearest(topic, nth_topic, NULL);
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "there is no command '%.40s'%s%s%s", topic,
                          near != NULL ? "; did you mean '" : "; see dibs help", near != NULL ? near : "",
                          near != NULL ? "'?" : "");
  }
  if (g->json)
    json_help(command);
  else if (about_exits)
    print_exits(stdout);
  else if (command != NULL)
    help_command(command, stdout);
  else
    help_all(stdout);
  return dibs__cli_flush(g);
}

int dibs__cli_version(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  if (g->json) {
    struct dibs__json j = {.out = stdout};
    dibs__json_open(&j, NULL, '{');
    dibs__json_text(&j, "version", dibs_version());
    dibs__json_uint(&j, "number", dibs_version_number());
    dibs__json_close(&j, '}');
  } else {
    printf("%s %s\n", dibs__cli_program.name, dibs_version());
  }
  return dibs__cli_flush(g);
}

/* ---- The other program ---- */

const char *dibs__cli_find_program(const char *name, char *path, size_t size) {
  char self[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  if (length > 0) {
    self[length] = '\0';
    const char *slash = strrchr(self, '/'); /* " (deleted)" may follow the name; only the folder matters */
    int whole = slash != NULL ? snprintf(path, size, "%.*s/%s", (int)(slash - self), self, name) : -1;
    if (whole > 0 && (size_t)whole < size && access(path, X_OK) == 0) return path;
  }
  return name;
}

/* ---- From the arguments to the command ---- */

/* If a standard stream is closed, the store's file or socket would get its number, and the first message would be
 * written into it.  A substitute of the other direction takes the number: reading and writing still fail with EBADF,
 * for dibs and for its command. */
static bool fill_standard_streams(void) {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) return false;
  return true;
}

/* Does the unreadable command line request JSON? */
static bool wants_json(char **argv) {
  for (char **word = argv + 1; *word != NULL && strcmp(*word, "--") != 0; word++)
    if (strcmp(*word, "--json") == 0) return true;
  return false;
}

int dibs__cli_main(int argc, char **argv) {
  struct cli_call call;
  char wrong[600];
  if (!fill_standard_streams()) return CLI_FAILED; /* there is no stream for a message */
  bool fine = dibs__cli_parse(argc, argv, &call, wrong, sizeof wrong);
  const struct cli_globals *g = &call.v.globals;
  if (!fine && argc > 0) call.v.globals.json = wants_json(argv);
  if (!fine && dibs__cli_program.refused != NULL) dibs__cli_program.refused(&call);
  if (!fine) return dibs__cli_fail(g, CLI_USAGE, "INVALID", "%s", wrong);
  if (call.v.help) {
    if (call.command != NULL)
      help_command(call.command, stdout);
    else
      help_all(stdout);
    return dibs__cli_flush(g);
  }
  if (call.command == NULL) {
    help_all(stderr);
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "which command? dibs help lists them");
  }
  return call.command->main(&call);
}

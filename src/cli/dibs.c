/* SPDX-License-Identifier: MIT */
/* The command `dibs`: parses, and hands the call to its command. */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* A store's file that got the number of a standard stream would be written into by the first message. */
static void fill_standard_streams(void) {
  int fd;
  do fd = open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
}

/* How to say that the rest can't be read, when that rest asks for JSON. */
static bool wants_json(char **argv) {
  for (char **word = argv + 1; *word != NULL && strcmp(*word, "--") != 0; word++)
    if (strcmp(*word, "--json") == 0) return true;
  return false;
}

int main(int argc, char **argv) {
  struct cli_call call;
  char wrong[600];
  fill_standard_streams();
  bool fine = dibs__cli_parse(argc, argv, &call, wrong, sizeof wrong);
  const struct cli_globals *g = &call.v.globals;
  if (!fine && argc > 0) call.v.globals.json = wants_json(argv);
  if (!fine) return dibs__cli_fail(g, CLI_USAGE, "INVALID", "%s", wrong);
  if (call.v.help) {
    if (call.command != NULL)
      dibs__cli_help_command(call.command, stdout);
    else
      dibs__cli_help_all(stdout);
    return dibs__cli_flush(g);
  }
  if (call.command == NULL) {
    dibs__cli_help_all(stderr);
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "which command? dibs help lists them");
  }
  if (call.command->main == NULL) return dibs_cli_bench(call.nrest, call.rest, g);
  return call.command->main(&call);
}

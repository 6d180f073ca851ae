/* SPDX-License-Identifier: MIT */
/* The program dibs, and how it becomes dibs-lab, dibs-serve or dibs-gate. */
#include "cli/cli.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The package has the program's name. */
static int cannot_start(const struct cli_call *call, const char *name, const char *program, int error) {
  const struct cli_globals *g = &call->v.globals;
  if (error == ENOENT)
    return dibs__cli_fail(g, CLI_NOCMD, "",
                          "dibs %s needs the program %s, which is neither beside dibs nor in PATH: install the "
                          "package %s",
                          call->command->name, name, name);
  return dibs__cli_fail(g, error == ENOMEM ? CLI_FAILED : CLI_NOEXEC, "", "cannot start %s: %s", program,
                        strerror(error));
}

/* Becomes the program of this name, with the same arguments. */
static int become(struct cli_call *call, char *name) {
  const struct cli_globals *g = &call->v.globals;
  char path[PATH_MAX], json[] = "--json", quiet[] = "--quiet", dashes[] = "--";
  char *store = NULL, *owner = NULL;
  const char *program = dibs__cli_find_program(name, path, sizeof path);
  char **argv = calloc((size_t)call->nrest + 7, sizeof *argv);
  int error = ENOMEM, n = 0;
  if (argv == NULL) goto out;
  argv[n++] = name;
  argv[n++] = call->rest[0]; /* the command */
  if (g->store_given) {
    if (asprintf(&store, "--store=%s", g->store) < 0) goto out;
    argv[n++] = store;
  }
  if (g->owner != NULL) {
    if (asprintf(&owner, "--owner=%s", g->owner) < 0) goto out;
    argv[n++] = owner;
  }
  if (g->json) argv[n++] = json;
  if (g->quiet) argv[n++] = quiet;
  argv[n++] = dashes; /* the words after it have no options of every command */
  for (int i = 1; i < call->nrest; i++) argv[n++] = call->rest[i];
  execvp(program, argv);
  error = errno;
out:
  free(store);
  free(owner);
  free(argv);
  return cannot_start(call, name, program, error);
}

/* Most users of dibs never need the experiments and the benchmark. */
int dibs__cli_start_lab(struct cli_call *call) {
  char name[] = "dibs-lab";
  return become(call, name);
}

/* Nor the daemon, which needs more libraries. */
int dibs__cli_start_serve(struct cli_call *call) {
  char name[] = "dibs-serve";
  return become(call, name);
}

int dibs__cli_start_gate(struct cli_call *call) {
  char name[] = "dibs-gate";
  return become(call, name);
}

/* `eval` of nothing succeeds: what `dibs lock` prints must fail. */
static void report_refused(const struct cli_call *call) {
  if (call->command != NULL && call->command->main == dibs__cli_lock)
    dibs__cli_lock_failed(&call->v.globals, CLI_USAGE);
}

const struct cli_program dibs__cli_program = {"dibs", "one holder, one write", report_refused};

int main(int argc, char **argv) {
  return dibs__cli_main(argc, argv);
}

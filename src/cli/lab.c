/* SPDX-License-Identifier: MIT */
/* `dibs lab`: finds the store, runs the experiment, prints what came of it. */
#include "cli/lab.h"

#include "lab/report.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_int interrupted;

/* The first one ends the experiment, the second one the lab. */
static void on_signal(int number) {
  atomic_store(&interrupted, number);
}

static const struct {
  const char *name;
  bool (*run)(struct lab *lab);
} experiments[] = {{"race", dibs__lab_race},
                   {"throughput", dibs__lab_throughput},
                   {"contend", dibs__lab_contend},
                   {"deadlock", dibs__lab_deadlock},
                   {"pause", dibs__lab_pause}};

/* ---- A place for who names none ---- */

static void folder_remove(const char *folder) {
  DIR *dir = opendir(folder);
  for (struct dirent *entry; dir && (entry = readdir(dir));) unlinkat(dirfd(dir), entry->d_name, 0);
  if (dir) closedir(dir);
  rmdir(folder);
}

static bool own_store(char *folder, size_t folder_size, char *uri, size_t size) {
  const char *temporary = secure_getenv("TMPDIR");
  bool plain = temporary && temporary[0] == '/' && !strpbrk(temporary, "%?#&");
  snprintf(folder, folder_size, "%s/dibs-lab-XXXXXX", plain ? temporary : "/tmp");
  if (!mkdtemp(folder)) return false;
  snprintf(uri, size, "sqlite://%s/lab.db", folder);
  return true;
}

/* ---- Printing ---- */

static int write_page(const struct cli_globals *globals, const struct lab_sheet *sheet, const char *path) {
  FILE *file = fopen(path, "we");
  bool bad = !file;
  if (file) {
    dibs__lab_report(sheet, file);
    bad = ferror(file) != 0;
    if (fclose(file)) bad = true;
  }
  if (!bad) return CLI_DONE;
  return dibs__cli_fail(globals, CLI_FAILED, "", "lab: %s can't be written: %s", path, strerror(errno));
}

static int show(const struct cli_globals *globals, const struct lab *lab, const struct lab_asked *asked) {
  if (globals->json)
    dibs__cli_lab_json(&lab->sheet, stdout);
  else
    dibs__cli_lab_print(&lab->sheet, stdout);
  int code = dibs__cli_flush(globals);
  if (!code && asked->html) code = write_page(globals, &lab->sheet, asked->html);
  if (!code && asked->html) dibs__cli_note(globals, "the report is in %s", asked->html);
  return code;
}

/* ---- The command ---- */

static int run(const struct cli_globals *globals, struct lab *lab, const struct lab_asked *asked) {
  bool (*experiment)(struct lab *) = NULL;
  for (size_t i = 0; i < sizeof experiments / sizeof *experiments; i++)
    if (strcmp(experiments[i].name, asked->experiment) == 0) experiment = experiments[i].run;
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  lab->sheet.experiment = asked->experiment;
  bool done = experiment && dibs__lab_open(lab) && experiment(lab);
  char why[LAB_WHY_MAX];
  snprintf(why, sizeof why, "%s", lab->why); /* closing may have troubles of its own */
  lab->sheet.interrupted = !done || dibs__lab_ended(lab);
  dibs__lab_close(lab);
  dibs__cli_lab_progress_end();
  int signal = atomic_load(&interrupted), code = CLI_DONE;
  if (done || lab->sheet.part_count) code = show(globals, lab, asked);
  if (code) return code;
  if (lab->sheet.full) return dibs__cli_fail(globals, CLI_FAILED, "NO_MEMORY", "lab: out of memory");
  if (lab->sheet.broken)
    return dibs__cli_fail(globals, CLI_TROUBLE, "", "lab: what is promised was broken; the table says what");
  if (signal) return CLI_SIGNAL + signal;
  return done ? CLI_DONE : dibs__cli_fail(globals, CLI_STORE, "UNAVAILABLE", "lab: %s", why);
}

int dibs__cli_lab(struct cli_call *call) {
  const struct cli_globals *globals = &call->v.globals;
  int argc = call->nrest;
  char **argv = call->rest;
  if (argc > 1 && strcmp(argv[1], "helper") == 0) return dibs__lab_helper(argc - 2, argv + 2);
  static struct lab lab;
  struct lab_asked asked = {0};
  int code = dibs__cli_lab_options(argc, argv, globals, &lab, &asked);
  if (code) return code;
  if (asked.help) return dibs__cli_lab_help(globals);

  char folder[512] = "", uri[600];
  lab.uri = globals->store;
  if (!lab.uri) {
    if (!own_store(folder, sizeof folder, uri, sizeof uri))
      return dibs__cli_fail(globals, CLI_FAILED, "", "lab: no folder for a store of its own: %s", strerror(errno));
    lab.uri = uri;
  }
  if (strcmp(lab.uri, "memory:") == 0) lab.uri = "memory:lab"; /* without a name each user would have one of its own */
  lab.interrupted = &interrupted;
  if (isatty(STDERR_FILENO) && !globals->quiet) lab.progress = dibs__cli_lab_progress;
  code = run(globals, &lab, &asked);
  dibs__lab_sheet_free(&lab.sheet);
  if (folder[0]) folder_remove(folder);
  return code;
}

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_CLI_LAB_H
#define DIBS_CLI_LAB_H
/* Parts of `dibs lab`: its options, and how a sheet is printed. */
#include "cli/cli.h"
#include "lab/lab.h"

struct lab_asked {
  const char *experiment, *html;
  bool help;
};
/* CLI_DONE, or CLI_USAGE, said.  What was not given has its default. */
int dibs__cli_lab_options(int argc, char **argv, const struct cli_globals *globals, struct lab *lab,
                          struct lab_asked *asked);
int dibs__cli_lab_help(const struct cli_globals *globals);

void dibs__cli_lab_print(const struct lab_sheet *sheet, FILE *out);
void dibs__cli_lab_json(const struct lab_sheet *sheet, FILE *out);
/* Draws the line of progress anew; a lab's progress function. */
void dibs__cli_lab_progress(const struct lab_progress *progress, void *user);
void dibs__cli_lab_progress_end(void);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_CLI_LANE_H
#define DIBS_CLI_LANE_H
#include "cli/cli.h"

/* lane_run.c: `dibs lane run`, with its arguments checked.  An exit code. */
int dibs__cli_lane_run(struct cli_call *call);

#endif

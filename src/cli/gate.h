/* SPDX-License-Identifier: MIT */
#ifndef DIBS_CLI_GATE_H
#define DIBS_CLI_GATE_H
/* The parts of dibs-gate: see gate.c. */
#include "cli/cli.h"

/* `dibs gate fence`, whose words are in call->rest.  An exit code. */
int dibs__cli_gate_fence(struct cli_call *call);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_CLI_SERVE_OPTIONS_H
#define DIBS_CLI_SERVE_OPTIONS_H
/* The options of `dibs serve`. */
#include "cli/daemon_options.h"

struct serve_options {
  struct daemon_options daemon;
  struct serve_config config;
  const char *new_token, *scope, *prefix; /* NULL: not given */
};

/* CLI_DONE, otherwise an exit code after a message. */
int dibs__serve_options_read(struct cli_call *call, struct serve_options *options);

#endif

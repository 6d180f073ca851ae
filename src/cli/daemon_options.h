/* SPDX-License-Identifier: MIT */
#ifndef DIBS_CLI_DAEMON_OPTIONS_H
#define DIBS_CLI_DAEMON_OPTIONS_H
/*
 * The options of a daemon: from the command line, else from the environment, else from the INI file of --config.
 * --access-log of dibs serve is DIBS_SERVE_ACCESS_LOG there, and access-log in the section [serve].
 */
#include "cli/cli.h"
#include "serve/serve.h"

enum { DAEMON_OPTIONS_MAX = 64 };

enum daemon_kind {
  DAEMON_TEXT,     /* const char * */
  DAEMON_NUMBER,   /* uint32_t */
  DAEMON_DURATION, /* int64_t, ms */
  DAEMON_WORD,     /* an enum: the number of the word */
  DAEMON_FLAG,     /* bool: in the file and the environment, on or off */
  DAEMON_ADDRESSES,
  DAEMON_ORIGINS
};

struct daemon_row {
  const char *name;
  enum daemon_kind kind;
  size_t at;                  /* in the program's struct of options; not of ADDRESSES and ORIGINS */
  int64_t least, most, other; /* of NUMBER and DURATION; `other`: the default */
  bool line_only;             /* an option of the command line alone */
  const char *const *words;   /* of WORD; NULL at the end */
};

/* The first member of a program's struct of options. */
struct daemon_options {
  const char *file; /* of --config; NULL: none */
  bool help;
  char *kept[DAEMON_OPTIONS_MAX]; /* memory of the values of the file and of the environment */
  size_t kept_count;
};

struct daemon_program {
  const char *name;      /* "serve": the command and the section */
  const char *variables; /* "DIBS_SERVE_" */
  const char *address;   /* if --listen is not given */
  const struct daemon_row *rows;
  size_t row_count;
  size_t config_at; /* of its serve_config in the struct of options */
  size_t store_at;  /* of config.store */
};

/* `values`: the struct of options, all 0.  CLI_DONE, otherwise an exit code after a message. */
int dibs__daemon_options_read(struct cli_call *call, const struct daemon_program *program, void *values);
void dibs__daemon_options_free(struct daemon_options *options);

#endif

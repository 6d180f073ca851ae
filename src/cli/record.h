/* SPDX-License-Identifier: MIT */
#ifndef DIBS_CLI_RECORD_H
#define DIBS_CLI_RECORD_H
/* What the files of `dibs record` share. */
#include "cli/cli.h"

struct record_call {
  const struct cli_call *call;
  const struct cli_globals *globals;
  const char *key;
  dibs_table *table; /* NULL: dibs' own */
  dibs_store *store;
  dibs_lease *lease; /* NULL: none */
  char *data;        /* standard input, where it is the value */
  size_t length;
  bool given; /* the values stand among the words */
};

/* Are the words behind the key COLUMN=VALUE of the table?  Sets `given`. */
int dibs__cli_record_values(struct record_call *call);
int dibs__cli_record_get(struct record_call *call); /* seals, with a lease */
int dibs__cli_record_put(struct record_call *call);
int dibs__cli_record_rm(struct record_call *call);
/* One value; `version` NULL: it is not told. */
int dibs__cli_record_print(const struct record_call *call, const char *version, const char *data, size_t length,
                           uint64_t fence);

#endif

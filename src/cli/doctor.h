/* SPDX-License-Identifier: MIT */
#ifndef DIBS_CLI_DOCTOR_H
#define DIBS_CLI_DOCTOR_H
/* What doctor.c (the report, the machine, a lease), doctor_file.c (the embedded store's file) and doctor_tiers.c share.
 */
#include "cli/cli.h"

/* One finding: printed at once, or added to the JSON. */
struct doctor {
  const struct cli_globals *globals;
  struct cli_json json;
  bool trouble;
};
/* `next` is what to do; NULL when all is fine. */
void dibs__cli_doctor_say(struct doctor *doctor, const char *check, const char *next, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* What to do about a store that can't be opened. */
const char *dibs__cli_doctor_next(dibs_status status);

/* Of a store of several tiers: each by itself, also when the whole can't be opened; and how each stands. */
void dibs__cli_doctor_members(struct doctor *doctor);
void dibs__cli_doctor_tiers(struct doctor *doctor, dibs_store *store);
/* Looks at the file of an embedded store that this process has open. */
void dibs__cli_doctor_file(struct doctor *doctor);

#endif

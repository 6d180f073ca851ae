/* SPDX-License-Identifier: MIT */
#ifndef DIBS_CLI_LANE_H
#define DIBS_CLI_LANE_H
/* What the files of `dibs lane` share: a command under the lease of a lane or a partition. */
#include "cli/job.h"

#include <stdatomic.h>

/* lane_run.c, lane_kafka.c: `dibs lane run` and `dibs lane kafka`, with their arguments checked.  An exit code. */
int dibs__cli_lane_run(struct cli_call *call);
int dibs__cli_lane_kafka(struct cli_call *call);

/* ---- lane_command.c ---- */

struct lane_commands {
  const struct cli_globals *globals;
  char *const *argv;
  int64_t ttl_ms, grace_ms;
  struct job_slots slots;
  _Atomic int code;    /* of a command that can't be started at all, after its message; 0: none */
  _Atomic bool broken; /* a launcher is gone: no command can be started any more */
};
/* ttl_ms and grace_ms by the options.  CLI_DONE, or CLI_USAGE after a message. */
int dibs__cli_lane_times(struct lane_commands *commands, const struct cli_values *values);

struct lane_command {
  size_t slot;
  const char *what; /* for messages: "lane 3" */
  dibs_lease *lease;
  int in, end_fd; /* standard input; readable: the command is to be ended */
  int out;        /* standard output; 0: that of dibs */
};
enum lane_end {
  LANE_COMMAND_ENDED,       /* by itself: *status */
  LANE_COMMAND_STOPPED,     /* by end_fd */
  LANE_COMMAND_LOST,        /* because the lease was lost, after a note */
  LANE_COMMAND_NOT_STARTED, /* no means now, after a note: try again */
  LANE_COMMAND_FAILED       /* commands->code, or broken */
};
/* Runs the command once.  One thread for each slot. */
enum lane_end dibs__cli_lane_command(struct lane_commands *commands, const struct lane_command *command,
                                     const char *environment, size_t length, int *status);

#endif

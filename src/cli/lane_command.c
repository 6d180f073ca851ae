/* SPDX-License-Identifier: MIT */
#include "base/duration.h"
#include "cli/lane.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

enum { GRACE_MOST_PART = 3 /* of the ttl: the most that run.c allows */ };

int dibs__cli_lane_times(struct lane_commands *c, const struct cli_values *v) {
  char grace[24], ttl[24];
  c->ttl_ms = v->ttl_ms == CLI_UNSET ? DIBS_TTL_DEFAULT_MS : v->ttl_ms;
  c->grace_ms = v->grace_ms == CLI_UNSET ? dibs__cli_run_grace(c->ttl_ms) : v->grace_ms;
  if (c->grace_ms <= c->ttl_ms / GRACE_MOST_PART) return CLI_DONE;
  dibs__duration_write(grace, sizeof grace, c->grace_ms);
  dibs__duration_write(ttl, sizeof ttl, c->ttl_ms);
  return dibs__cli_fail(c->globals, CLI_USAGE, "INVALID",
                        "--grace %s is more than a third of --ttl %s: dibs has to end a command before the lease ends",
                        grace, ttl);
}

/* false, and errno. */
static bool start_minder(struct lane_commands *c, const struct lane_command *command, struct run *run) {
  const struct launch launch = {.name = run->name,
                                .grace_ms = c->grace_ms,
                                .in = command->in,
                                .out = command->out,
                                .keeps_streams = command->out == 0,
                                .keeps_errors = true,
                                .holds_a_lease = true};
  if (command->in < 0 || command->out < 0 || run->alarm < 0) return false;
  bool fine = dibs__cli_launch(&c->slots.list[command->slot].launcher, &launch, &run->minder);
  if (!fine && errno == EPIPE) c->broken = true;
  return fine;
}

/* A command that is not there, or can't be executed: no lane of this process can work. */
static void fail_start(struct lane_commands *c, int error) {
  int code = error == ENOENT ? CLI_NOCMD : CLI_NOEXEC, none = 0;
  if (!atomic_compare_exchange_strong(&c->code, &none, code)) return;
  dibs__cli_fail(c->globals, code, "", "cannot run '%.60s': %s", c->argv[0],
                 error == ENOENT ? "there is no such command" : strerror(error));
}

/* Says what dibs did to the command. */
static void note_end(const struct lane_commands *c, const char *what, const struct run *run) {
  char end[80];
  dibs__cli_run_describe(end, sizeof end, run->status);
  if (run->orphaned)
    dibs__cli_note(c->globals, "%s: the minder of the command was killed, and dibs ended the command", what);
  else if (run->lost || run->late)
    dibs__cli_note(c->globals, "%s: the lease was lost, and dibs ended the command; %s", what, end);
  if (run->left > 0) dibs__cli_note(c->globals, "%s: %" PRIu64 " processes could not be ended", what, run->left);
}

static enum lane_end judge(struct lane_commands *c, const char *what, const struct run *run) {
  if (dibs__cli_run_lacks_means(run)) {
    dibs__cli_note(c->globals, "%s: cannot start the command: %s", what, strerror(run->start_error));
    return LANE_COMMAND_NOT_STARTED;
  }
  if (run->start_error != 0) {
    fail_start(c, run->start_error);
    return LANE_COMMAND_FAILED;
  }
  note_end(c, what, run);
  if (run->lost || run->late) return LANE_COMMAND_LOST;
  return run->stopped ? LANE_COMMAND_STOPPED : LANE_COMMAND_ENDED;
}

enum lane_end dibs__cli_lane_command(struct lane_commands *c, const struct lane_command *command,
                                     const char *environment, size_t length, int *status) {
  struct run run = dibs__cli_slot_run(&c->slots, command->slot, c->globals, NULL, command->end_fd);
  run.name = dibs_lease_name(command->lease);
  run.argv = c->argv;
  run.lease = command->lease;
  run.options.ttl_ms = c->ttl_ms;
  run.grace_ms = c->grace_ms;
  enum lane_end end;
  if (start_minder(c, command, &run)) {
    dibs__cli_run_loop(&run, environment, length);
    end = judge(c, command->what, &run);
  } else {
    dibs__cli_note(c->globals, "%s: cannot start the command: %s", command->what, strerror(errno));
    end = c->broken ? LANE_COMMAND_FAILED : LANE_COMMAND_NOT_STARTED;
  }
  *status = run.status;
  if (run.minder.fd >= 0) close(run.minder.fd);
  if (run.alarm >= 0) close(run.alarm);
  return end;
}

/* SPDX-License-Identifier: MIT */
/*
 * `dibs run NAME -- CMD...`: holds the lease of NAME while CMD runs.
 *
 * The order of things: signals are blocked and the minder is forked while there is one thread; then the store is
 * opened and the lease acquired; then the minder starts the command.  What the command inherits is what dibs was
 * started with: the signal mask, the dispositions, the files.
 */
#include "cli/run.h"
#include "base/text.h"
#include "cli/process.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
  GRACE_MS = 2000, /* or a quarter of the ttl, whichever is less */
  GRACE_DEFAULT_PART = 4,
  GRACE_MOST_PART = 3, /* what run_loop.c leaves room for */
  MINDER_ENDS_MS = 1000,
  COMMAND_SHOWN = 60
};

static int set_grace(struct run *run, const struct cli_values *v) {
  int64_t ttl_ms = run->options.ttl_ms, most = ttl_ms / GRACE_MOST_PART;
  run->grace_ms = ttl_ms / GRACE_DEFAULT_PART < GRACE_MS ? ttl_ms / GRACE_DEFAULT_PART : GRACE_MS;
  if (v->grace_ms == CLI_UNSET) return CLI_DONE;
  run->grace_ms = v->grace_ms;
  if (v->grace_ms <= most) return CLI_DONE;
  char grace[24], ttl[24], room[24];
  dibs__cli_span(grace, sizeof grace, v->grace_ms);
  dibs__cli_span(ttl, sizeof ttl, ttl_ms);
  dibs__cli_span(room, sizeof room, most);
  return dibs__cli_fail(run->globals, CLI_USAGE, "INVALID",
                        "--grace %s leaves no room in a ttl of %s: at most a third of it, %s; give a longer --ttl",
                        grace, ttl, room);
}

static void lease_lost(dibs_lease *lease, dibs_status status, void *user) {
  (void)lease;
  (void)status;
  ((struct run *)user)->lost = true;
}

/* "K=V", with its NUL: one string behind the other. */
static void add(char *to, size_t *length, const char *key, const char *value) {
  size_t room = MINDER_TEXT_MAX - *length;
  int n = snprintf(to + *length, room, "%s=%s", key, value);
  if (n >= 0 && (size_t)n < room) *length += (size_t)n + 1;
}

/* What the command finds in its environment.  An empty one is taken away: a DIBS_SLOT of an outer run
 * would be wrong. */
static int environment(const struct run *run, char to[MINDER_TEXT_MAX], size_t *length) {
  char id[33], number[32];
  dibs_error error = {0};
  *length = 0;
  if (!dibs_lease_alive(run->lease) || dibs_lease_id(run->lease, id, &error) != DIBS_OK)
    return dibs__cli_fail(run->globals, CLI_LOST, "LOST",
                          "the lease of '%s' was lost before the command began; nothing was run, try again", run->name);
  char *uri = dibs__cli_store_uri(run->globals, run->store);
  if (uri == NULL) return dibs__cli_fail(run->globals, CLI_FAILED, "NO_MEMORY", "out of memory; nothing was run");
  add(to, length, "DIBS_NAME", run->name);
  add(to, length, "DIBS_LEASE", id);
  snprintf(number, sizeof number, "%" PRIu64, dibs_lease_fence(run->lease));
  add(to, length, "DIBS_FENCE", number);
  snprintf(number, sizeof number, "%" PRId64 "ms", run->options.ttl_ms);
  add(to, length, "DIBS_TTL", number);
  snprintf(number, sizeof number, "%" PRIu32, dibs_lease_slot(run->lease));
  add(to, length, "DIBS_SLOT", run->options.mode == DIBS_COUNTED ? number : "");
  add(to, length, "DIBS_STORE", uri);
  free(uri);
  return CLI_DONE;
}

/* ---- What came of it ---- */

static void describe_status(char *to, size_t size, int status) {
  if (WIFSIGNALED(status))
    snprintf(to, size, "it was ended by %s", strsignal(WTERMSIG(status)));
  else
    snprintf(to, size, "it exited with %d", WEXITSTATUS(status));
}

static int find_break(const dibs_lease_info *info, void *user) {
  struct dibs__text *by = user;
  if (info->state != DIBS_BROKEN) return 0;
  by->len = 0; /* the latest is the one that counts */
  dibs__text_adds(by, info->owner);
  return 0;
}

static int say_lost(const struct run *run, const char *when) {
  char why[300] = "it was not renewed in time: the store did not answer, or dibs was stopped", end[80], left[80] = "";
  describe_status(end, sizeof end, run->status);
  if (!run->late) {
    char who[DIBS_OWNER_MAX + 1];
    struct dibs__text by;
    dibs__text_begin(&by, who, sizeof who);
    dibs_status status = dibs_show(run->store, run->name, find_break, &by, NULL);
    bool broken = (status == DIBS_OK || status == DIBS_NOT_FOUND) && by.len > 0;
    if (broken)
      snprintf(why, sizeof why, "it was broken by %s", who);
    else
      snprintf(why, sizeof why, "the store says that it is over");
  }
  if (run->left > 0) snprintf(left, sizeof left, "; %" PRIu64 " processes could not be ended", run->left);
  return dibs__cli_fail(run->globals, CLI_LOST, "LOST", "the lease of '%s' was lost %s (%s); %s%s", run->name, when,
                        why, end, left);
}

static int say_not_started(const struct run *run) {
  const struct cli_globals *g = run->globals;
  int code = run->start_error == ENOENT ? CLI_NOCMD : CLI_NOEXEC;
  if (run->start_error == EAGAIN || run->start_error == ENOMEM || run->start_error == EMFILE) code = CLI_FAILED;
  return dibs__cli_fail(g, code, "", "'%.*s' can't be run: %s", COMMAND_SHOWN, run->argv[0],
                        code == CLI_NOCMD ? "there is no such command" : strerror(run->start_error));
}

int dibs__cli_run_code(int status) {
  return WIFSIGNALED(status) ? CLI_SIGNAL + WTERMSIG(status) : WEXITSTATUS(status);
}

static void report(const struct run *run, int code) {
  if (!run->globals->json || code == CLI_LOST) return;
  struct cli_json j = {.out = stderr};
  dibs__cli_json_open(&j, NULL, '{');
  dibs__cli_json_text(&j, "command", "run");
  dibs__cli_json_int(&j, "exit", code);
  dibs__cli_json_text(&j, "status", "OK");
  dibs__cli_json_text(&j, "name", run->name);
  dibs__cli_json_uint(&j, "fence", dibs_lease_fence(run->lease));
  dibs__cli_json_int(&j, "held_ms", dibs__tick_left_ms(run->began, dibs__tick_now()));
  dibs__cli_json_close(&j, '}');
}

int dibs__cli_run_trouble(struct run *run, dibs_status released) {
  if (run->start_error != 0) return say_not_started(run);
  if (run->orphaned)
    return dibs__cli_fail(run->globals, CLI_FAILED, "",
                          "the minder of '%s' was killed; the command was ended, since nobody would have ended it in "
                          "time if dibs had been killed next",
                          run->name);
  if (run->lost || run->late) return say_lost(run, "and the command was ended");
  if (released == DIBS_LOST) return say_lost(run, "before the command was over; somebody else may have held it");
  return CLI_DONE;
}

static int finish(struct run *run) {
  dibs_error error = {0};
  dibs_status released = dibs_release(run->lease, &error);
  int code = dibs__cli_run_trouble(run, released);
  if (code != CLI_DONE) return code;
  code = dibs__cli_run_code(run->status);
  if (released != DIBS_OK)
    dibs__cli_fail_status(run->globals, released, &error, "the lease was not released and ends with its ttl");
  report(run, code);
  return code;
}

/* The terminal's ^C went to the command's group alone.  Pass it on to ours, and die of it as the shell expects: else a
 * loop in a script would go on with its next round. */
static void die_interrupted(const struct run *run) {
  struct sigaction action;
  if (!run->had_tty || !run->over || !WIFSIGNALED(run->status) || WTERMSIG(run->status) != SIGINT) return;
  if (sigaction(SIGINT, NULL, &action) != 0 || action.sa_handler == SIG_IGN) return;
  kill(0, SIGINT);
}

int dibs__cli_run_command(struct run *run) {
  static char text[MINDER_TEXT_MAX];
  size_t length;
  run->began = dibs__tick_now();
  int code = environment(run, text, &length);
  if (code == CLI_DONE) dibs__cli_run_loop(run, text, length);
  return code;
}

static int hold_and_run(struct run *run) {
  int code = dibs__cli_open(run->globals, DIBS_STORE_LOOP, &run->store);
  if (code == CLI_DONE)
    code = dibs__cli_acquire(run->globals, run->store, run->name, &run->options, &run->signals, &run->lease);
  if (code == CLI_DONE) {
    code = dibs__cli_run_command(run);
    if (code == CLI_DONE)
      code = finish(run);
    else
      dibs_release(run->lease, NULL);
  }
  dibs_lease_free(run->lease);
  dibs_close(run->store);
  return code;
}

/* It ends by itself once its socket is closed.  Whoever inherits it may be a first process that reaps nothing. */
static void reap_minder(const struct minder *minder) {
  close(minder->fd);
  struct pollfd ended = {.fd = pidfd_open(minder->pid, 0), .events = POLLIN};
  if (ended.fd < 0) return;
  while (poll(&ended, 1, MINDER_ENDS_MS) < 0 && errno == EINTR) continue;
  close(ended.fd);
  waitpid(minder->pid, NULL, WNOHANG);
}

int dibs__cli_run_begin(struct run *run, const struct cli_values *values) {
  run->alarm = run->tty = run->minder.fd = run->signals.fd = -1;
  int code = dibs__cli_lease_options(values, &run->options);
  if (code == CLI_DONE) code = set_grace(run, values);
  if (code == CLI_DONE) code = dibs__cli_signals_open(run->globals, &run->signals);
  if (code != CLI_DONE) return code;
  run->options.on_lost = lease_lost;
  run->options.user = run;
  run->tty = dibs__cli_tty_open();
  struct minder_plan plan = {.globals = run->globals,
                             .name = run->name,
                             .argv = run->argv,
                             .mask = run->signals.before,
                             .grace_ms = run->grace_ms,
                             .tty = run->tty,
                             .out = run->out,
                             .err = run->err};
  code = dibs__cli_minder_start(&plan, &run->minder);
  if (code != CLI_DONE) return code;
  run->alarm = dibs__cli_alarm_open();
  if (run->alarm >= 0) return CLI_DONE;
  return dibs__cli_fail(run->globals, CLI_FAILED, "", "no timer can be had: %s", strerror(errno));
}

void dibs__cli_run_end(struct run *run) {
  if (run->minder.fd >= 0) reap_minder(&run->minder);
  if (run->alarm >= 0) close(run->alarm);
  if (run->tty >= 0) close(run->tty);
  if (run->signals.fd < 0) return;
  die_interrupted(run);
  dibs__cli_signals_close(&run->signals);
}

int dibs__cli_run(struct cli_call *call) {
  struct run run = {.globals = &call->v.globals, .name = call->pos[0], .argv = call->rest, .out = -1, .err = -1};
  int code = dibs__cli_run_begin(&run, &call->v);
  if (code == CLI_DONE) code = hold_and_run(&run);
  dibs__cli_run_end(&run);
  return code;
}

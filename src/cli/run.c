/* SPDX-License-Identifier: MIT */
/*
 * Ending a whole tree: the group by one call that no fork escapes, then the rest by walking.  A killed process can't
 * start others, and the next walk finds those that were started during this one.
 */
#include "cli/run.h"
#include "base/duration.h"
#include "base/text.h"
#include "cli/cli.h"
#include "store/locate.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
  FIRST_LOOK_MS = 2, /* between walks after KILL */
  GIVE_UP_MS = 3000  /* a process that the kernel does not end within this time is stuck in the kernel, and runs none of
                        its own code any more */
};

static void signal_all(struct ending *ending, int signo) {
  if (ending->group != 0) kill(-ending->group, signo);
  struct cli_tree tree = dibs__cli_tree_signal(ending->root, signo, ending->group);
  ending->left.alive = tree.alive;
  ending->left.refused = tree.refused;
}

void dibs__cli_ending_begin(struct ending *ending, pid_t root, pid_t group, dibs__tick kill_at) {
  *ending = (struct ending){.began = true, .root = root, .group = group, .kill_at = kill_at, .look_at = kill_at};
  dibs__tick now = dibs__tick_now();
  bool too_late = !dibs__tick_before(now, kill_at);
  /* If dibs was stopped, KILL may be long overdue; it still gets its full time. */
  ending->give_up_at = dibs__tick_add_ms(too_late ? now : kill_at, GIVE_UP_MS);
  if (too_late) return; /* TERM would be useless now */
  signal_all(ending, SIGTERM);
  /* A stopped process can't clean up. */
  signal_all(ending, SIGCONT);
}

bool dibs__cli_ending_step(struct ending *ending, bool none_left) {
  if (none_left) {
    ending->left.alive = ending->left.refused = 0;
    return true;
  }
  dibs__tick now = dibs__tick_now();
  if (dibs__tick_before(now, ending->look_at)) return false;
  signal_all(ending, SIGKILL);
  if (ending->left.alive == 0 && ending->root != getpid()) return true; /* the rest is for its parent to reap */
  bool only_refused = ending->left.alive > 0 && ending->left.alive == ending->left.refused;
  if (only_refused && ending->group == 0) return true;
  int64_t late_ms = dibs__tick_left_ms(ending->kill_at, now);
  ending->look_at = dibs__tick_add_ms(now, FIRST_LOOK_MS + late_ms / 8);
  return !dibs__tick_before(now, ending->give_up_at);
}

/*
 * While the command of `dibs run` runs: one loop over signals, the minder, the library and an alarm.  The library
 * renews by itself; the loop sends the minder each new deadline, at most a twelfth of the ttl after it.  With renewals
 * at a third of the ttl and a grace of at most a third, the minder's TERM is never due while all is well.
 *
 * dibs and the minder watch each other.  If TERM is due and the minder does not acknowledge it, or KILL is due and the
 * minder has not reported the end, dibs ends the tree below the minder itself.  Meanwhile it writes nothing that could
 * wait for a reader.
 */

enum { TELLINGS = 12, LEAST_TELLING_MS = 5 };

enum {
  GRACE_DEFAULT_PART = 4,
  GROWN = 2 /* it lasts so many times as long as at first: more than what the moment of asking changes */
};

/* The minder acknowledges that it has sent TERM within this time, or half the grace: it reads /proc for that. */
enum { ACT_MS = 500 };

/* After KILL is due it reports the end within this part of the ttl, a quarter of the rest that DYING_PART leaves. */
enum { LATE_PART = 80, LATE_MS = 100 };

/* On a busy machine the minder runs late, and killed processes take a while to die: they have this part of the ttl, in
 * addition to the margin of the library. */
enum { DYING_PART = 20 };

static int64_t lease_left(const struct run *run) {
  return run->left_ms != NULL ? run->left_ms(run) : dibs_lease_left_ms(run->lease);
}

/* Counted from before the request, less the millisecond that left_ms rounds up. */
static dibs__tick deadline(const struct run *run) {
  dibs__tick now = dibs__tick_now();
  int64_t left_ms = lease_left(run) - 1 - run->lasts_ms / DYING_PART;
  return dibs__tick_add_ms(now, left_ms > 0 ? left_ms : 0);
}

static dibs__tick term_due(const struct run *run) {
  return (dibs__tick){run->deadline.ns - run->grace_ms * DIBS__NS_PER_MS};
}

static void tell_minder(struct run *run, enum minder_word word, int number, dibs__tick at, const char *text,
                        size_t length) {
  struct minder_head head = {.word = word, .number = number, .ns = at.ns};
  if (run->minder.fd >= 0) dibs__cli_minder_send(run->minder.fd, &head, text, length);
}

/* Well before TERM is due: a renewal may have succeeded since, and the minder can't ask. */
static void set_next_telling(struct run *run) {
  dibs__tick now = dibs__tick_now();
  int64_t ms = run->lasts_ms / TELLINGS, half_ms = dibs__tick_left_ms(now, term_due(run)) / 2;
  if (!run->end_sent && half_ms < ms) ms = half_ms;
  run->tell_at = dibs__tick_add_ms(now, ms < LEAST_TELLING_MS ? LEAST_TELLING_MS : ms);
}

/* A store may grant less than the ttl at a time (zk:), and a claim may begin with little left: the grace for the ttl
 * would leave the command no time. */
static void fit_to_grant(struct run *run) {
  int64_t ttl_ms = run->options.ttl_ms, left_ms = lease_left(run), grace_ms = run->full_grace_ms;
  bool less = left_ms > 0 && left_ms <= ttl_ms / 2;
  run->lasts_ms = less ? left_ms : ttl_ms;
  if (less && left_ms / GRACE_DEFAULT_PART < grace_ms) grace_ms = left_ms / GRACE_DEFAULT_PART;
  if (grace_ms == run->grace_ms) return;
  run->grace_ms = grace_ms;
  tell_minder(run, MINDER_GRACE, (int)grace_ms, DIBS__TICK_ZERO, NULL, 0);
}

/* Only SIGSTOP stops the minder, and nobody sends it that to stop the command. */
static void wake_minder(const struct run *run) {
  siginfo_t info = {.si_pid = 0};
  if (waitid(P_PID, (id_t)run->minder.pid, &info, WSTOPPED | WNOHANG) == 0 && info.si_pid != 0)
    kill(run->minder.pid, SIGCONT);
}

static bool alive(const struct run *run) {
  return run->left_ms != NULL ? run->left_ms(run) > 0 : dibs_lease_alive(run->lease) != 0;
}

static void tell_deadline(struct run *run) {
  if (!alive(run)) {
    run->lost = true;
  } else if (!run->end_sent) {
    run->deadline = deadline(run);
    tell_minder(run, MINDER_DEADLINE, 0, run->deadline, NULL, 0);
    /* After the deadline: a longer grace before the earlier one would end the command at once. */
    if (run->lasts_ms < run->options.ttl_ms && lease_left(run) / GROWN >= run->lasts_ms) fit_to_grant(run);
  }
  wake_minder(run);
  set_next_telling(run);
}

/* ---- Ending the command ---- */

static void watch_ending(struct run *run, bool acting) {
  if (!run->end_sent) run->kill_at = dibs__tick_min(run->deadline, dibs__tick_add_ms(dibs__tick_now(), run->grace_ms));
  run->end_sent = true;
  run->acting = run->acting || acting;
  int64_t late_ms = run->lasts_ms / LATE_PART, half_ms = run->grace_ms / 2;
  if (late_ms > LATE_MS) late_ms = LATE_MS;
  if (half_ms > ACT_MS) half_ms = ACT_MS;
  run->act_at = dibs__tick_add_ms(run->kill_at, late_ms);
  if (!run->acting) run->act_at = dibs__tick_min(run->act_at, dibs__tick_add_ms(dibs__tick_now(), half_ms));
}

static void begin_ending(struct run *run) {
  if (run->end_sent) return;
  tell_minder(run, MINDER_END, 0, DIBS__TICK_ZERO, NULL, 0);
  watch_ending(run, false);
  wake_minder(run);
}

/* When the next step is due: a message to the minder; TERM, because the deadline is near and no renewal succeeds, or
 * because the command has run for its longest time; ending the tree from dibs. */
static dibs__tick next_due(const struct run *run) {
  if (run->ending.began) return dibs__tick_min(run->tell_at, run->ending.look_at);
  if (run->end_sent) return dibs__tick_min(run->tell_at, run->act_at);
  return dibs__tick_min(dibs__tick_min(run->tell_at, run->max_at), term_due(run));
}

static void do_due(struct run *run) {
  dibs__tick now = dibs__tick_now();
  bool ends = !run->end_sent && !dibs__tick_before(now, term_due(run)); /* by the latest telling */
  if (ends || !dibs__tick_before(now, run->tell_at)) tell_deadline(run);
  if (!run->end_sent && !dibs__tick_before(now, term_due(run))) run->lost = run->late = true;
  if (!run->end_sent && !run->lost && !dibs__tick_before(now, run->max_at)) run->overtime = true;
  if (run->lost || run->overtime || run->stopped) begin_ending(run);
  if (run->end_sent && !run->ending.began && !dibs__tick_before(now, run->act_at))
    dibs__cli_ending_begin(&run->ending, run->minder.pid, 0, run->kill_at);
  if (!run->ending.began || !dibs__cli_ending_step(&run->ending, false)) return;
  run->over = true;
  run->status = SIGKILL;
  run->left = run->ending.left.alive;
  /* It has nothing to do any more, and must not start the command if it was stopped before. */
  kill(run->minder.pid, SIGKILL);
}

static void hand_terminal(struct run *run) {
  if (run->command <= 0 || !dibs__cli_tty_is_ours(run->tty)) return;
  dibs__cli_tty_give(run->tty, run->command);
  run->had_tty = true;
}

/* The command was stopped.  SIGSTOP is meant for the command alone: dibs continues to renew.  The other signals come
 * from the terminal: dibs stops as well, so that the shell takes over, unless the command only lacks the terminal and
 * dibs can give it to the command. */
static void command_stopped(struct run *run, int signo) {
  if (signo == SIGSTOP) return;
  bool wants_terminal = signo == SIGTTIN || signo == SIGTTOU;
  if (wants_terminal && dibs__cli_tty_is_ours(run->tty)) {
    hand_terminal(run);
    tell_minder(run, MINDER_SIGNAL, SIGCONT, DIBS__TICK_ZERO, NULL, 0);
    return;
  }
  dibs__cli_tty_take(run->tty, run->command);
  if (dibs__cli_stop_self()) return; /* the SIGCONT that ended it is pending, and continues the command */
  if (wants_terminal) {
    dibs__cli_note(
        run->globals,
        "the command of '%s' stopped: it needs the terminal, which another job has; bring dibs to the foreground",
        run->name);
    return;
  }
  hand_terminal(run);
  tell_minder(run, MINDER_SIGNAL, SIGCONT, DIBS__TICK_ZERO, NULL, 0);
}

static void heed_signals(struct run *run) {
  int signo;
  while ((signo = dibs__cli_signals_next(&run->signals)) != 0) {
    if (signo == SIGCONT) {
      tell_deadline(run);
      hand_terminal(run);
    }
    if (signo == SIGTERM || signo == SIGINT || signo == SIGHUP || signo == SIGQUIT) run->ended_by = signo;
    tell_minder(run, MINDER_SIGNAL, signo, DIBS__TICK_ZERO, NULL, 0);
  }
}

static void hear_minder(struct run *run) {
  struct minder_head head;
  int heard;
  while (!run->over && (heard = dibs__cli_minder_receive(run->minder.fd, &head, NULL, NULL)) != 0) {
    if (heard < 0) {
      run->orphaned = run->over = true;
      return;
    }
    switch (head.word) {
    case MINDER_STARTED:
      run->command = head.number;
      break;
    case MINDER_NOT_STARTED:
      run->start_error = head.number;
      run->over = true;
      break;
    case MINDER_STOPPED:
      command_stopped(run, head.number);
      break;
    case MINDER_ENDING:
      /* By itself: dibs was stopped, or could not renew. */
      if (head.number != 0) run->lost = run->late = true;
      watch_ending(run, true);
      break;
    case MINDER_ENDED:
      run->status = head.number;
      run->left = head.left;
      run->over = true;
      break;
    default:
      break;
    }
  }
}

/* The minder is dead.  Its processes are now children of a subreaper, dibs or the launcher; end them here, as the
 * minder would: nothing else would end them if dibs were stopped or killed. */
static void end_orphans(struct run *run) {
  struct ending ending;
  dibs__tick kill_at = dibs__tick_min(deadline(run), dibs__tick_add_ms(dibs__tick_now(), run->grace_ms));
  dibs__cli_ending_begin(&ending, run->orphans != 0 ? run->orphans : getpid(), 0, kill_at);
  bool alone = false;
  if (run->orphans != 0) run->status = SIGKILL; /* their parent reaps them */
  for (;;) {
    int status;
    pid_t pid = run->orphans != 0 ? 0 : waitpid(-1, &status, WNOHANG);
    if (pid > 0 && pid == run->command) run->status = status;
    if (pid > 0 && pid == run->minder.pid) run->minder.pid = 0; /* may be another process from now on */
    if (pid > 0 || (pid < 0 && errno == EINTR)) continue;
    alone = pid < 0;
    if (dibs__cli_ending_step(&ending, alone)) break;
    dibs__nap_ms(2);
  }
  run->left = ending.left.alive;
}

/* In one call: as much as a pipe can contain.  A writer that is as fast as this reader must not stop the rest. */
enum { TAIL_READS = 1048576 / DIBS__RUN_OUTPUT_MAX };

void dibs__cli_tail_pipe_read(struct tail_pipe *pipe) {
  char bytes[DIBS__RUN_OUTPUT_MAX];
  for (int reads = 0; reads < TAIL_READS && pipe->from >= 0; reads++) {
    ssize_t got = read(pipe->from, bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
      close(pipe->from);
      pipe->from = -1;
      return;
    }
    dibs__cli_last_add(&pipe->tail, bytes, (size_t)got);
    if (got < (ssize_t)sizeof bytes) return;
  }
}

enum { POLL_MINDER, POLL_SIGNALS, POLL_ALARM, POLL_STORE, POLL_TAIL, POLL_END, POLL_TEE, POLLS = POLL_TEE + TEE_POLLS };

static void set_polls(const struct run *run, struct pollfd fds[POLLS]) {
  for (int i = 0; i < POLLS; i++) fds[i] = (struct pollfd){.fd = -1, .events = POLLIN};
  fds[POLL_MINDER].fd = run->minder.fd;
  fds[POLL_SIGNALS].fd = run->signals.fd;
  fds[POLL_ALARM].fd = run->alarm;
  fds[POLL_STORE].fd = dibs_fd(run->store);
  fds[POLL_END].fd = run->stopped ? -1 : run->end_fd;
  if (run->tail != NULL) fds[POLL_TAIL].fd = run->tail->from;
  if (run->tee != NULL) dibs__cli_tee_request(run->tee, fds + POLL_TEE);
}

bool dibs__cli_run_lacks_means(const struct run *run) {
  int error = run->start_error;
  return error == EAGAIN || error == ENOMEM || error == EMFILE || error == ENFILE;
}

enum {
  GRACE_MS = 2000,     /* or a quarter of the ttl, whichever is less */
  GRACE_MOST_PART = 3, /* the most that run.c allows */
  MINDER_ENDS_MS = 1000,
  KEEP_TRIES = 3,      /* a connection that broke is another one for the second try */
  KEEP_PAUSE_MS = 100, /* before another try: a server that restarts refuses at once */
  COMMAND_SHOWN = 60
};

/* Starts the command through the minder, and returns when it has ended: run->over, or start_error. */
void dibs__cli_run_loop(struct run *run, const char *environment, size_t length) {
  /* In a pipeline another process may read the terminal: then the command gets it when it needs it (stopped()). */
  bool give = dibs__cli_tty_is_ours(run->tty) && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
  run->had_tty = give;
  run->full_grace_ms = run->grace_ms;
  fit_to_grant(run);
  run->deadline = deadline(run);
  tell_minder(run, MINDER_START, give, run->deadline, environment, length);
  set_next_telling(run);
  run->max_at = run->max_ms > 0 ? dibs__tick_add_ms(dibs__tick_now(), run->max_ms) : DIBS__TICK_NEVER;
  while (!run->over) {
    dibs__cli_alarm_set(run->alarm, next_due(run));
    struct pollfd fds[POLLS];
    set_polls(run, fds);
    if (poll(fds, POLLS, -1) < 0 && errno != EINTR) break;
    if (fds[POLL_MINDER].revents != 0) hear_minder(run);
    if (run->over) break;
    if (run->tee != NULL) dibs__cli_tee_step(run->tee, fds + POLL_TEE);
    if (fds[POLL_TAIL].revents != 0) dibs__cli_tail_pipe_read(run->tail);
    if (fds[POLL_STORE].revents != 0) dibs_dispatch(run->store, 0);
    if (fds[POLL_SIGNALS].revents != 0) heed_signals(run);
    if (fds[POLL_ALARM].revents != 0) dibs__cli_alarm_clear(run->alarm);
    if (fds[POLL_END].revents != 0) run->stopped = true;
    do_due(run);
  }
  if (run->orphaned) end_orphans(run);
  run->ended = dibs__tick_now();
  if (run->command > 0) dibs__cli_tty_take(run->tty, run->command);
}

/*
 * `dibs run NAME -- CMD...`: holds the lease of NAME while CMD runs.
 *
 * The order: signals are blocked and the minder is forked while there is one thread; then the store is opened and the
 * lease acquired; then the minder starts the command.  The command inherits the state at the start of dibs: the signal
 * mask, the dispositions, the files.
 */

int64_t dibs__cli_run_grace(int64_t ttl_ms) {
  return ttl_ms / GRACE_DEFAULT_PART < GRACE_MS ? ttl_ms / GRACE_DEFAULT_PART : GRACE_MS;
}

static int set_grace(struct run *run, const struct cli_values *v) {
  int64_t ttl_ms = run->options.ttl_ms, most = ttl_ms / GRACE_MOST_PART;
  run->grace_ms = dibs__cli_run_grace(ttl_ms);
  if (v->grace_ms == CLI_UNSET) return CLI_DONE;
  run->grace_ms = v->grace_ms;
  if (v->grace_ms <= most) return CLI_DONE;
  char grace[24], ttl[24], capacity[24];
  dibs__duration_write(grace, sizeof grace, v->grace_ms);
  dibs__duration_write(ttl, sizeof ttl, ttl_ms);
  dibs__duration_write(capacity, sizeof capacity, most);
  return dibs__cli_fail(
      run->globals, CLI_USAGE, "INVALID",
      "--grace %s is too long for a ttl of %s: a grace is at most a third of the ttl, %s; give a longer --ttl", grace,
      ttl, capacity);
}

static void lease_lost(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  (void)error;
  (void)lease;
  (void)status;
  ((struct run *)user)->lost = true;
}

void dibs__cli_run_variable(char to[MINDER_TEXT_MAX], size_t *length, const char *key, const char *value) {
  size_t capacity = MINDER_TEXT_MAX - *length;
  int n = snprintf(to + *length, capacity, "%s=%s", key, value);
  if (n >= 0 && (size_t)n < capacity) *length += (size_t)n + 1;
}

/* The environment of the command.  An empty value removes the variable: the DIBS_SLOT of an outer run would be wrong.
 */
static int environment(const struct run *run, char to[MINDER_TEXT_MAX], size_t *length) {
  char id[33], number[32];
  dibs_error error = {0};
  *length = 0;
  if (!dibs_lease_alive(run->lease) || dibs_lease_id(run->lease, id, &error) != DIBS_OK)
    return dibs__cli_fail(run->globals, CLI_LOST, "LOST",
                          "the lease of '%s' was lost before the command started; nothing was run, try again",
                          run->name);
  char *uri = dibs__cli_store_uri(run->globals, run->store);
  if (uri == NULL) return dibs__cli_fail(run->globals, CLI_FAILED, "NO_MEMORY", "out of memory; nothing was run");
  dibs__cli_run_variable(to, length, "DIBS_NAME", run->name);
  dibs__cli_run_variable(to, length, "DIBS_LEASE", id);
  snprintf(number, sizeof number, "%" PRIu64, dibs_lease_fence(run->lease).value);
  dibs__cli_run_variable(to, length, "DIBS_FENCE", number);
  snprintf(number, sizeof number, "%" PRId64 "ms", run->options.ttl_ms);
  dibs__cli_run_variable(to, length, "DIBS_TTL", number);
  snprintf(number, sizeof number, "%" PRIu32, dibs_lease_slot(run->lease));
  dibs__cli_run_variable(to, length, "DIBS_SLOT", run->options.mode == DIBS_COUNTED ? number : "");
  dibs__cli_run_variable(to, length, "DIBS_STORE", uri);
  dibs__locate_free(uri);
  char held[CLI_HELD_MAX];
  dibs__cli_outer_list(held);
  dibs__cli_run_variable(to, length, "DIBS_HELD", held);
  return CLI_DONE;
}

/* ---- The outcome ---- */

void dibs__cli_run_describe(char *to, size_t size, int status) {
  if (WIFSIGNALED(status))
    snprintf(to, size, "signal %d (%s) ended the command", WTERMSIG(status), strsignal(WTERMSIG(status)));
  else
    snprintf(to, size, "the command exited with %d", WEXITSTATUS(status));
}

static int find_break(const dibs_lease_info *info, void *user) {
  struct dibs__text *by = user;
  if (info->state != DIBS_BROKEN) return 0;
  by->len = 0; /* the latest break counts */
  dibs__text_adds(by, info->owner);
  return 0;
}

static int fail_lost(const struct run *run, const char *when) {
  char why[300] = "dibs could not renew it in time: the store did not answer, or dibs was stopped", end[80],
       left[80] = "";
  dibs__cli_run_describe(end, sizeof end, run->status);
  if (!run->late) {
    char who[DIBS_OWNER_MAX + 1];
    struct dibs__text by;
    dibs__text_begin(&by, who, sizeof who);
    dibs_status status = dibs_show(run->store, run->name, find_break, &by, NULL);
    bool broken = (status == DIBS_OK || status == DIBS_NOT_FOUND) && by.len > 0;
    if (broken)
      snprintf(why, sizeof why, "%s broke it", who);
    else
      snprintf(why, sizeof why, "the store reports that it ended");
  }
  if (run->left > 0) snprintf(left, sizeof left, "; %" PRIu64 " processes could not be ended", run->left);
  return dibs__cli_fail(run->globals, CLI_LOST, "LOST", "the lease of '%s' was lost %s (%s); %s%s", run->name, when,
                        why, end, left);
}

static int fail_not_started(const struct run *run) {
  const struct cli_globals *g = run->globals;
  int code = run->start_error == ENOENT ? CLI_NOCMD : CLI_NOEXEC;
  if (dibs__cli_run_lacks_means(run)) code = CLI_FAILED;
  return dibs__cli_fail(g, code, "", "cannot run '%.*s': %s", COMMAND_SHOWN, run->argv[0],
                        code == CLI_NOCMD ? "there is no such command" : strerror(run->start_error));
}

int dibs__cli_run_code(int status) {
  return WIFSIGNALED(status) ? CLI_SIGNAL + WTERMSIG(status) : WEXITSTATUS(status);
}

static void report_json(const struct run *run, int code) {
  if (!run->globals->json || code == CLI_LOST) return;
  struct cli_line line;
  if (!dibs__cli_line_open(&line)) return;
  struct dibs__json j = {.out = line.out};
  dibs__json_open(&j, NULL, '{');
  dibs__json_text(&j, "command", "run");
  dibs__json_int(&j, "exit", code);
  dibs__json_text(&j, "status", "OK");
  dibs__json_text(&j, "name", run->name);
  dibs__json_uint(&j, "fence", dibs_lease_fence(run->lease).value);
  dibs__json_int(&j, "held_ms", dibs__tick_left_ms(run->began, dibs__tick_now()));
  dibs__json_close(&j, '}');
  (void)dibs__cli_line_send(&line, STDERR_FILENO, CLI_ERROR_MS);
}

int dibs__cli_run_trouble(struct run *run, dibs_status released) {
  if (run->start_error != 0) return fail_not_started(run);
  if (run->orphaned)
    return dibs__cli_fail(run->globals, CLI_FAILED, "",
                          "the minder of '%s' was killed; dibs ended the command, because without the minder nothing "
                          "would end it if dibs were killed, too",
                          run->name);
  if (run->lost || run->late) return fail_lost(run, "and dibs ended the command");
  if (released == DIBS_LOST) return fail_lost(run, "before the command ended; another client may have held the name");
  return CLI_DONE;
}

/* For the rest of --at-least the store keeps the name, and dibs need not stay for it. */
static dibs_status release_after_rest(struct run *run, int64_t rest_ms, dibs_error *error) {
  dibs_status status = DIBS_UNKNOWN;
  bool again = true;
  for (int i = 0; i < KEEP_TRIES && again; i++) {
    status = dibs_release_after(run->lease, rest_ms, error);
    again = (status == DIBS_UNKNOWN || status == DIBS_UNAVAILABLE) && dibs_lease_alive(run->lease);
    if (again) dibs__nap_ms(KEEP_PAUSE_MS);
  }
  if (status == DIBS_OK) return status;
  if (status == DIBS_LOST) return dibs_release(run->lease, error); /* which tells the store that the holder has ended */
  /* dibs_close would release it at once. */
  if (dibs_lease_detach(run->lease, NULL) == DIBS_OK) return status;
  return dibs_release(run->lease, error);
}

static dibs_status end_lease(struct run *run, const char **what, dibs_error *error) {
  int64_t rest_ms = run->at_least_ms - dibs__tick_left_ms(run->began, dibs__tick_now());
  bool ran = run->start_error == 0;
  *what = "the lease was not released and expires after its ttl";
  if (run->at_least_ms <= 0 || rest_ms <= 0 || !ran) return dibs_release(run->lease, error);
  *what = "the name is not held for the rest of --at-least: the lease expires after its ttl";
  return release_after_rest(run, rest_ms, error);
}

/* `kept`: why the store still has the name, or "". */
static int fail_overtime(const struct run *run, const char *kept) {
  char max[24], end[80], left[80] = "";
  dibs__duration_write(max, sizeof max, run->max_ms);
  dibs__cli_run_describe(end, sizeof end, run->status);
  if (run->left > 0) snprintf(left, sizeof left, "; %" PRIu64 " processes could not be ended", run->left);
  return dibs__cli_fail(run->globals, CLI_OVERTIME, "",
                        "the command of '%s' ran longer than --max %s, and dibs ended it; %s%s%s", run->name, max, end,
                        left, kept);
}

static int finish_run(struct run *run) {
  dibs_error error = {0};
  const char *what;
  if (run->tee != NULL) dibs__cli_tee_finish(run->tee);
  dibs_status released = run->released = end_lease(run, &what, &error);
  /* From here on a signal may end dibs, because the reader of its output may be slow. */
  if (run->tee != NULL) sigprocmask(SIG_SETMASK, &run->signals.before, NULL);
  int flushed = run->tee != NULL ? dibs__cli_tee_flush(run->tee, run->globals) : CLI_DONE;
  int code = dibs__cli_run_trouble(run, released);
  if (code != CLI_DONE) return code;
  const char *why = error.text[0] != '\0' ? error.text : dibs_status_text(released);
  char kept[sizeof error.text + 120] = "";
  if (released != DIBS_OK) snprintf(kept, sizeof kept, "; %s: %s", what, why);
  if (run->overtime) return fail_overtime(run, kept);
  code = dibs__cli_run_code(run->status);
  if (released != DIBS_OK)
    dibs__cli_fail(run->globals, dibs__cli_exit_of(released), dibs_status_name(released), "%s", kept + 2);
  if (flushed != CLI_DONE) return flushed;
  report_json(run, code);
  return code;
}

/* The terminal's ^C went to the command's group alone.  Pass it on to the group of dibs, and die of it as the shell
 * expects; otherwise a loop in a script would continue with its next round. */
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
  int code = dibs__cli_reach(run->globals, &run->options, &run->signals, &run->store);
  if (code == CLI_DONE && run->at_least_ms > 0 && dibs__cli_has_session_locks(run->store))
    code = dibs__cli_fail(run->globals, dibs__cli_exit_of(DIBS_UNSUPPORTED), "UNSUPPORTED",
                          "--at-least needs leases that stay when dibs has ended, and those of %s are session locks, "
                          "which end with it; use a store without lock=",
                          dibs_store_uri(run->store));
  if (code == CLI_DONE)
    code = dibs__cli_acquire(run->globals, run->store, run->name, &run->options, &run->signals, &run->lease);
  if (code == CLI_DONE) {
    code = dibs__cli_run_command(run);
    bool ran = code == CLI_DONE;
    if (ran)
      code = finish_run(run);
    else
      dibs_release(run->lease, NULL);
    if (ran) dibs__cli_run_keep(run, run->name);
  }
  dibs_lease_free(run->lease);
  dibs_close(run->store);
  return code;
}

/* It ends by itself once its socket is closed.  Its next parent may be a first process that reaps nothing. */
static void reap_minder(const struct minder *minder) {
  close(minder->fd);
  if (minder->pid <= 0) return;
  kill(minder->pid, SIGCONT);
  struct pollfd ended = {.fd = pidfd_open(minder->pid, 0), .events = POLLIN};
  if (ended.fd < 0) return;
  while (poll(&ended, 1, MINDER_ENDS_MS) < 0 && errno == EINTR) continue;
  close(ended.fd);
  waitpid(minder->pid, NULL, WNOHANG);
}

int dibs__cli_run_begin(struct run *run, const struct cli_values *values) {
  run->alarm = run->tty = run->minder.fd = run->signals.fd = run->end_fd = -1;
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
                             .in = -1,
                             .out = run->out,
                             .err = run->err};
  code = dibs__cli_minder_start(&plan, &run->minder);
  if (code != CLI_DONE) return code;
  run->alarm = dibs__cli_alarm_open();
  if (run->alarm >= 0) return CLI_DONE;
  return dibs__cli_fail(run->globals, CLI_FAILED, "", "cannot create a timer: %s", strerror(errno));
}

void dibs__cli_run_end(struct run *run) {
  if (run->minder.fd >= 0) reap_minder(&run->minder);
  if (run->alarm >= 0) close(run->alarm);
  if (run->tty >= 0) close(run->tty);
  if (run->signals.fd < 0) return;
  die_interrupted(run);
  dibs__cli_signals_close(&run->signals);
}

/* ---- Under the lease of an outer run ---- */

/* Does the outer lease allow this request? */
static bool outer_covers(const struct cli_outer *outer, const dibs_lease_options *requested) {
  return outer->mode == DIBS_EXCLUSIVE || (outer->mode == requested->mode && requested->mode == DIBS_SHARED);
}

static void take_over_environment(const struct cli_outer *outer) {
  char number[32], held[CLI_HELD_MAX];
  dibs__cli_outer_list(held);
  snprintf(number, sizeof number, "%" PRIu64, outer->fence);
  const char *inner = getenv("DIBS_LEASE");
  if (inner == NULL || strcmp(inner, outer->id) != 0) unsetenv("DIBS_TTL"); /* it belongs to another lease */
  setenv("DIBS_NAME", outer->name, 1);
  setenv("DIBS_LEASE", outer->id, 1);
  setenv("DIBS_FENCE", number, 1);
  setenv("DIBS_HELD", held, 1);
  unsetenv("DIBS_SLOT");
}

/* --reenter: replaces dibs by the command, which the outer dibs ends with its lease.  CLI_DONE: no outer lease holds
 * the name, so it has to be acquired. */
static int run_under_outer(const struct cli_call *call) {
  struct cli_outer outer;
  const struct cli_globals *g = &call->v.globals;
  const char *name = call->pos[0];
  dibs_lease_options requested;
  dibs_store *store = NULL;
  int code = dibs__cli_lease_options(&call->v, &requested);
  if (code != CLI_DONE || !dibs__cli_outer_find(name, &outer)) return code;
  code = dibs__cli_open(g, 0, &store);
  if (code != CLI_DONE) return code;
  bool holds = dibs__cli_outer_holds(g, store, &outer);
  dibs_close(store);
  if (!holds) return CLI_DONE;
  if (!outer_covers(&outer, &requested))
    return dibs__cli_fail(g, CLI_USAGE, "INVALID",
                          "the outer lease of '%s' is shared or counted, which does not cover this request", name);
  take_over_environment(&outer);
  execvp(call->rest[0], call->rest);
  struct run run = {.globals = g, .name = name, .argv = call->rest, .start_error = errno};
  return fail_not_started(&run);
}

static int run_plainly(struct run *run, const struct cli_values *values) {
  int code = dibs__cli_run_begin(run, values);
  if (code == CLI_DONE) code = hold_and_run(run);
  dibs__cli_run_end(run);
  return code;
}

/* Through pipes, which the loop reads; so the command's output is no terminal. */
static int run_with_output(struct run *run, const struct cli_values *values) {
  struct tee tee;
  int ends[CAPTURED_STREAMS];
  int code = dibs__cli_tee_open(&tee, &values->globals, ends);
  tee.tail_only = true;
  run->out = ends[CAPTURED_OUT];
  run->err = ends[CAPTURED_ERR];
  run->tee = &tee;
  if (code == CLI_DONE) {
    code = dibs__cli_run_begin(run, values);
    for (int i = 0; i < CAPTURED_STREAMS; i++) close(ends[i]);
    /* The reader of the output may disappear before the command ends. */
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    sigaction(SIGPIPE, &ignore, &before);
    if (code == CLI_DONE) code = hold_and_run(run);
    sigaction(SIGPIPE, &before, NULL);
    dibs__cli_run_end(run);
  }
  run->tee = NULL;
  dibs__cli_tee_close(&tee);
  return code;
}

int dibs__cli_run(struct cli_call *call) {
  if (call->v.reenter && call->v.at_least_ms > 0)
    return dibs__cli_fail(&call->v.globals, CLI_USAGE, "INVALID",
                          "--reenter and --at-least do not go together: under the lease of an outer dibs, that dibs "
                          "decides how long the name stays held; give --at-least to it");
  if (call->v.reenter && call->v.max_ms > 0)
    return dibs__cli_fail(&call->v.globals, CLI_USAGE, "INVALID",
                          "--reenter and --max do not go together: under the lease of an outer dibs the command "
                          "replaces dibs; give --max to the outer dibs");
  int reentered = call->v.reenter ? run_under_outer(call) : CLI_DONE;
  if (reentered != CLI_DONE) return reentered;
  struct run run = {.globals = &call->v.globals, .name = call->pos[0], .argv = call->rest, .out = -1, .err = -1};
  run.at_least_ms = call->v.at_least_ms;
  run.max_ms = call->v.max_ms;
  run.kind = dibs__cli_history_is_off(&call->v) ? NULL : "run";
  return call->v.keep_output ? run_with_output(&run, &call->v) : run_plainly(&run, &call->v);
}

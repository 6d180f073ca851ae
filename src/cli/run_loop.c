/* SPDX-License-Identifier: MIT */
/*
 * While the command of `dibs run` runs: one loop over signals, the minder, the library and an alarm.  The library
 * renews by itself; the loop tells the minder each new deadline, a twelfth of the ttl after it at the latest.  With
 * renewals at a third of the ttl and a grace of at most a third, the minder's TERM is never due while all is well.
 */
#include "cli/process.h"
#include "cli/run.h"
#include "cli/tee.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TELLINGS = 12, LEAST_TELLING_MS = 5 };

/* A busy machine lets the minder run late, and the killed take a while to die: this part of the ttl is theirs, beside
 * the margin of the library. */
enum { DYING_PART = 20 };

/* Counted from before the question, and less the millisecond that left_ms rounds up. */
static dibs__tick deadline(const struct run *run) {
  dibs__tick now = dibs__tick_now();
  int64_t left_ms = dibs_lease_left_ms(run->lease) - 1 - run->options.ttl_ms / DYING_PART;
  return dibs__tick_add_ms(now, left_ms > 0 ? left_ms : 0);
}

static void tell(struct run *run, enum minder_word word, int number, dibs__tick at, const char *text, size_t length) {
  struct minder_head head = {.word = word, .number = number, .ns = at.ns};
  if (run->minder.fd >= 0) dibs__cli_minder_tell(run->minder.fd, &head, text, length);
}

static void set_alarm(const struct run *run) {
  int64_t ms = run->options.ttl_ms / TELLINGS;
  dibs__cli_alarm_set(run->alarm, dibs__tick_add_ms(dibs__tick_now(), ms < LEAST_TELLING_MS ? LEAST_TELLING_MS : ms));
}

static void tell_deadline(struct run *run) {
  if (!dibs_lease_alive(run->lease))
    run->lost = true;
  else
    tell(run, MINDER_DEADLINE, 0, deadline(run), NULL, 0);
  set_alarm(run);
}

static void hand_terminal(struct run *run) {
  if (run->command <= 0 || !dibs__cli_tty_is_ours(run->tty)) return;
  dibs__cli_tty_give(run->tty, run->command);
  run->had_tty = true;
}

/* The command was stopped.  SIGSTOP is somebody's wish for the command alone: dibs goes on renewing.  The others come
 * from the terminal: dibs stops as well, so that the shell takes over, unless the command only lacks the terminal that
 * dibs could hand to it. */
static void stopped(struct run *run, int signo) {
  if (signo == SIGSTOP) return;
  bool wants_terminal = signo == SIGTTIN || signo == SIGTTOU;
  if (wants_terminal && dibs__cli_tty_is_ours(run->tty)) {
    hand_terminal(run);
    tell(run, MINDER_SIGNAL, SIGCONT, DIBS__TICK_ZERO, NULL, 0);
    return;
  }
  dibs__cli_tty_take(run->tty, run->command);
  if (dibs__cli_stop_self()) return; /* the SIGCONT that ended it is pending, and continues the command */
  if (wants_terminal) {
    dibs__cli_note(run->globals, "the command of '%s' stopped: it wants the terminal, which is not ours", run->name);
    return;
  }
  hand_terminal(run);
  tell(run, MINDER_SIGNAL, SIGCONT, DIBS__TICK_ZERO, NULL, 0);
}

static void heed_signals(struct run *run) {
  int signo;
  while ((signo = dibs__cli_signals_next(&run->signals)) != 0) {
    if (signo == SIGCONT) {
      tell_deadline(run);
      hand_terminal(run);
    }
    if (signo == SIGTERM || signo == SIGINT || signo == SIGHUP || signo == SIGQUIT) run->ended_by = signo;
    tell(run, MINDER_SIGNAL, signo, DIBS__TICK_ZERO, NULL, 0);
  }
}

static void hear_minder(struct run *run) {
  struct minder_head head;
  int heard;
  while (!run->over && (heard = dibs__cli_minder_hear(run->minder.fd, &head, NULL, NULL)) != 0) {
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
      stopped(run, head.number);
      break;
    case MINDER_ENDING:
      run->lost = run->told = run->late = true;
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

/* The minder is dead.  What it minded has come to us, a subreaper; end it here, as the minder would have: nobody
 * would end it any more if dibs were stopped or killed. */
static void end_orphans(struct run *run) {
  struct ending ending;
  dibs__tick kill_at = dibs__tick_min(deadline(run), dibs__tick_add_ms(dibs__tick_now(), run->grace_ms));
  dibs__cli_ending_begin(&ending, 0, kill_at);
  bool alone = false;
  for (;;) {
    int status;
    pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid > 0 && pid == run->command) run->status = status;
    if (pid > 0 || (pid < 0 && errno == EINTR)) continue;
    alone = pid < 0;
    if (dibs__cli_ending_step(&ending, alone)) break;
    dibs__nap_ms(2);
  }
  run->left = ending.left.alive;
}

void dibs__cli_run_loop(struct run *run, const char *environment, size_t length) {
  /* In a pipeline the terminal may be somebody else's to read: then the command gets it when it asks (stopped()). */
  bool give = dibs__cli_tty_is_ours(run->tty) && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
  run->had_tty = give;
  tell(run, MINDER_START, give, deadline(run), environment, length);
  set_alarm(run);
  while (!run->over) {
    struct pollfd fds[] = {{run->minder.fd, POLLIN, 0},
                           {run->signals.fd, POLLIN, 0},
                           {run->alarm, POLLIN, 0},
                           {dibs_fd(run->store), POLLIN, 0},
                           {-1, 0, 0},
                           {-1, 0, 0},
                           {-1, 0, 0},
                           {-1, 0, 0}};
    if (run->tee != NULL) dibs__cli_tee_ask(run->tee, fds + 4);
    if (poll(fds, sizeof fds / sizeof *fds, -1) < 0 && errno != EINTR) break;
    if (fds[0].revents != 0) hear_minder(run);
    if (run->over) break;
    if (run->tee != NULL) dibs__cli_tee_step(run->tee, fds + 4);
    if (fds[3].revents != 0) dibs_dispatch(run->store, 0);
    if (fds[1].revents != 0) heed_signals(run);
    if (fds[2].revents != 0) {
      dibs__cli_alarm_clear(run->alarm);
      tell_deadline(run);
    }
    if (run->lost && !run->told) {
      run->told = true;
      tell(run, MINDER_END, 0, DIBS__TICK_ZERO, NULL, 0);
    }
  }
  if (run->orphaned) end_orphans(run);
  if (run->command > 0) dibs__cli_tty_take(run->tty, run->command);
}

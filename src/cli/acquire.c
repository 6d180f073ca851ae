/* SPDX-License-Identifier: MIT */
/*
 * Acquiring: one try that blocks, which is all that a free name needs; then a wait that signals can end.  Whatever
 * ends it, the place in line is given up before dibs ends, so that nobody waits for a dead process.
 */
#include "cli/acquire.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* Asking again after an unknown outcome finds the same grant; a store that keeps breaking is given up. */
enum { ASK_AGAIN = 3 };

/* People who look at a terminal are told what they wait for, once they have waited. */
enum { PATIENCE_MS = 1500 };

static const int caught[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP, SIGCONT};

int dibs__cli_signals_open(const struct cli_globals *g, struct cli_signals *signals) {
  sigset_t set, block;
  sigemptyset(&set);
  for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) {
    struct sigaction action;
    bool ignored = sigaction(caught[i], NULL, &action) == 0 && action.sa_handler == SIG_IGN;
    if (!ignored) sigaddset(&set, caught[i]);
  }
  /* Ignored, it would let children go without a word of their status. */
  struct sigaction plain = {.sa_handler = SIG_DFL};
  sigaction(SIGCHLD, &plain, NULL);
  block = set;
  sigaddset(&block, SIGTTOU); /* terminal.c */
  sigprocmask(SIG_BLOCK, &block, &signals->before);
  signals->fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals->fd >= 0) return CLI_DONE;
  sigprocmask(SIG_SETMASK, &signals->before, NULL);
  return dibs__cli_fail(g, CLI_FAILED, "", "signals can't be received: %s", strerror(errno));
}

void dibs__cli_signals_close(struct cli_signals *signals) {
  if (signals->fd >= 0) close(signals->fd);
  signals->fd = -1;
  sigprocmask(SIG_SETMASK, &signals->before, NULL);
}

int dibs__cli_signals_next(const struct cli_signals *signals) {
  struct signalfd_siginfo info;
  ssize_t got;
  do got = read(signals->fd, &info, sizeof info);
  while (got < 0 && errno == EINTR);
  return got == (ssize_t)sizeof info ? (int)info.ssi_signo : 0;
}

struct wait {
  bool over;
  dibs_status status;
};

static void wait_over(dibs_lease *lease, dibs_status status, void *user) {
  (void)lease;
  struct wait *wait = user;
  wait->over = true;
  wait->status = status;
}

/* The signal that ends the wait, or 0. */
static int heed(const struct cli_signals *signals) {
  int signo;
  while ((signo = dibs__cli_signals_next(signals)) != 0) {
    if (signo == SIGTSTP)
      raise(SIGSTOP); /* keeps its place in line while it is stopped */
    else if (signo != SIGWINCH && signo != SIGCONT)
      return signo;
  }
  return 0;
}

struct whom {
  char owner[DIBS_OWNER_MAX + 1];
  uint32_t pid;
  int64_t age_ms;
  size_t holders, waiters;
};

static int count_whom(const dibs_lease_info *info, void *user) {
  struct whom *whom = user;
  if (info->state == DIBS_WAITS) whom->waiters++;
  if (info->state != DIBS_HOLDS && info->state != DIBS_BREAKING) return 0;
  if (whom->holders++ > 0) return 0;
  snprintf(whom->owner, sizeof whom->owner, "%s", info->owner);
  whom->pid = info->pid;
  whom->age_ms = info->age_ms;
  return 0;
}

static void tell_whom(const struct cli_globals *g, dibs_store *store, const char *name) {
  struct whom whom = {.pid = 0};
  if (dibs_show(store, name, count_whom, &whom, NULL) != DIBS_OK || whom.holders == 0) return;
  char span[24], process[24] = "";
  dibs__cli_span(span, sizeof span, whom.age_ms);
  if (whom.pid != 0) snprintf(process, sizeof process, ", pid %lu", (unsigned long)whom.pid);
  dibs__cli_note(g, "waiting for '%s', held by %s%s for %s; %zu wait", name, whom.owner, process, span, whom.waiters);
}

/* Returns the signal that ended the wait, or 0; *status is the outcome in either case.  `why`: what is waited for, if
 * it is not a holder; "". */
static int wait_for(const struct cli_globals *g, dibs_store *store, dibs_lease *lease, struct wait *wait,
                    const struct cli_signals *signals, const char *why, dibs_status *status) {
  int ended_by = 0, patience_ms = isatty(STDERR_FILENO) || *why != '\0' ? PATIENCE_MS : -1;
  struct pollfd fds[] = {{dibs_fd(store), POLLIN, 0}, {signals->fd, POLLIN, 0}};
  while (!wait->over) {
    /* The answer to a cancelled wait comes through the first descriptor alone. */
    int ready = poll(fds, ended_by == 0 ? 2 : 1, patience_ms);
    if (ready < 0 && errno != EINTR) break;
    dibs_dispatch(store, 0);
    if (ready == 0) {
      if (!wait->over && *why != '\0')
        dibs__cli_note(g, "waiting: %s", why);
      else if (!wait->over)
        tell_whom(g, store, dibs_lease_name(lease));
      patience_ms = -1;
    }
    if (ended_by == 0 && (fds[1].revents & POLLIN) != 0) {
      ended_by = heed(signals);
      if (ended_by != 0) dibs_acquire_cancel(lease);
    }
  }
  *status = wait->over ? wait->status : DIBS_CANCELLED;
  return ended_by;
}

static dibs_status ask(const struct cli_globals *g, dibs_store *store, const char *name,
                       const dibs_lease_options *options, const struct cli_signals *signals, dibs_lease **lease,
                       int *ended_by, dibs_error *error) {
  dibs_lease_options once = *options;
  once.wait_ms = 0;
  dibs_status status = dibs_acquire(store, name, &once, lease, error);
  /* Of several tiers one that does not answer is waited for: the names may move to the next. */
  bool away = status == DIBS_UNAVAILABLE;
  if ((status != DIBS_HELD && !away) || options->wait_ms == 0) return status;
  struct wait wait = {false, DIBS_CANCELLED};
  dibs_error why = *error;
  status = dibs_acquire_start(store, name, options, wait_over, &wait, lease, error);
  if (status != DIBS_OK) return status;
  *ended_by = wait_for(g, store, *lease, &wait, signals, away ? why.text : "", &status);
  if (*ended_by != 0 && status == DIBS_OK) dibs_release(*lease, NULL);
  if (*ended_by == 0 && status == DIBS_OK) return status;
  dibs_lease_free(*lease);
  *lease = NULL;
  error->text[0] = '\0';
  /* A callback has no words; and whether it was held or away all that time, the store tells. */
  if (*ended_by == 0 && away && (status == DIBS_UNAVAILABLE || status == DIBS_TIMEOUT)) {
    status = dibs_acquire(store, name, &once, lease, error);
    if (status == DIBS_HELD) status = DIBS_TIMEOUT;
  }
  return status;
}

static int say_why_not(const struct cli_globals *g, const char *name, const dibs_lease_options *options,
                       dibs_status status, const dibs_error *error) {
  const char *word = dibs_status_name(status);
  int code = dibs__cli_exit_of(status);
  char span[24];
  dibs__cli_span(span, sizeof span, options->wait_ms);
  if (status == DIBS_HELD)
    return dibs__cli_fail(g, code, word, "'%s' is held by somebody else; dibs show tells who, --wait waits", name);
  if (status == DIBS_TIMEOUT)
    return dibs__cli_fail(g, code, word, "'%s' was still held after %s; dibs show tells by whom", name, span);
  return dibs__cli_fail_status(g, status, error, name);
}

int dibs__cli_acquire(const struct cli_globals *g, dibs_store *store, const char *name, dibs_lease_options *options,
                      const struct cli_signals *signals, dibs_lease **lease) {
  char id[33];
  dibs__cli_draw_id(id);
  options->id = id;
  dibs_error error = {0};
  dibs_status status = DIBS_UNKNOWN;
  int ended_by = 0;
  *lease = NULL;
  for (int i = 0; i < ASK_AGAIN && status == DIBS_UNKNOWN && ended_by == 0; i++)
    status = ask(g, store, name, options, signals, lease, &ended_by, &error);
  options->id = NULL;
  if (ended_by != 0) {
    dibs_lease_free(*lease);
    *lease = NULL;
    return dibs__cli_fail(g, CLI_SIGNAL + ended_by, "CANCELLED", "gave up waiting for '%s': %s", name,
                          strsignal(ended_by));
  }
  if (status == DIBS_OK && strcmp(dibs_lease_tier(*lease), "memory") == 0)
    dibs__cli_note(g, "every tier is down: '%s' is granted by this process's own memory alone, others may hold it too",
                   name);
  if (status == DIBS_OK) return CLI_DONE;
  return say_why_not(g, name, options, status, &error);
}

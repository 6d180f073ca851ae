/* SPDX-License-Identifier: MIT */
/* The minder's side.  See run.h.  One loop over three descriptors: dibs, SIGCHLD, an alarm. */
#include "cli/run.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct mind {
  const struct minder_plan *plan;
  int dibs; /* -1 when it is gone */
  int children, alarm;
  pid_t command;              /* 0: not started, or reaped */
  bool started, ended, alone; /* alone: no child is left */
  bool orphaned;              /* dibs was gone before the command was over */
  int status;                 /* wait status once ended */
  dibs__tick deadline;
  int64_t grace_ms;
  struct ending ending;
};

bool dibs__cli_minder_send(int fd, const struct minder_head *head, const char *text, size_t length) {
  struct iovec parts[] = {{.iov_base = (void *)(uintptr_t)head, .iov_len = sizeof *head},
                          {.iov_base = (void *)(uintptr_t)text, .iov_len = length}};
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = length > 0 ? 2 : 1};
  ssize_t sent;
  do sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  while (sent < 0 && errno == EINTR);
  /* A reader that has let the buffer fill up is stopped, not gone. */
  return sent >= 0 || errno == EAGAIN;
}

int dibs__cli_minder_receive(int fd, struct minder_head *head, char *text, size_t *length) {
  struct iovec parts[] = {{.iov_base = head, .iov_len = sizeof *head},
                          {.iov_base = text, .iov_len = text != NULL ? MINDER_TEXT_MAX : 0}};
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = text != NULL ? 2 : 1};
  for (;;) {
    ssize_t got = recvmsg(fd, &message, MSG_DONTWAIT);
    /* The other side ended before it read all of our messages; its own messages are still readable. */
    if (got < 0 && (errno == EINTR || errno == ECONNRESET)) continue;
    if (got < 0) return errno == EAGAIN ? 0 : -1;
    if (got < (ssize_t)sizeof *head) return -1;
    if (length != NULL) *length = (size_t)got - sizeof *head;
    return 1;
  }
}

static void tell_dibs(const struct mind *m, enum minder_word word, int number, uint64_t left) {
  struct minder_head head = {.word = word, .number = number, .left = left};
  if (m->dibs >= 0) dibs__cli_minder_send(m->dibs, &head, NULL, 0);
}

/* Nothing is left to be ended, so now there is time to report. */
static _Noreturn void report_and_exit(const struct mind *m, int status) {
  tell_dibs(m, MINDER_ENDED, status, m->ending.left.alive);
  if (m->orphaned && m->plan->task)
    dibs__cli_fail(m->plan->globals, CLI_LOST, "LOST",
                   "dibs was killed while its command worked on a task of '%s'; the minder ended the command, and "
                   "the claim ends after its timeout",
                   m->plan->name);
  else if (m->orphaned)
    dibs__cli_fail(m->plan->globals, CLI_LOST, "LOST",
                   "dibs was killed while its command held '%s'; the minder ended the command, and the lease expires "
                   "after its ttl",
                   m->plan->name);
  _exit(0);
}

/* Standard input and output are the command's; a pipe must end when the command ends.  Standard error stays, for the
 * line that says that dibs was killed. */
static void let_go_of_files(struct mind *m) {
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null >= 0) {
    dup2(null, STDIN_FILENO);
    dup2(null, STDOUT_FILENO);
  }
  int keep[] = {m->dibs, m->children, m->alarm};
  int highest = 0;
  for (size_t i = 0; i < sizeof keep / sizeof *keep; i++)
    if (keep[i] > highest) highest = keep[i];
  for (int fd = STDERR_FILENO + 1; fd <= highest; fd++)
    if (fd != keep[0] && fd != keep[1] && fd != keep[2]) close(fd);
  close_range((unsigned)highest + 1, ~0U, 0);
}

/* "K=V" sets, "K=" removes a variable that an outer run may have set. */
static void set_environment(const char *text, size_t length) {
  for (size_t at = 0; at < length; at += strlen(text + at) + 1) {
    const char *equals = strchr(text + at, '=');
    char key[32];
    size_t key_length = equals != NULL ? (size_t)(equals - text) - at : sizeof key;
    if (key_length >= sizeof key) continue;
    memcpy(key, text + at, key_length);
    key[key_length] = '\0';
    if (equals[1] != '\0')
      setenv(key, equals + 1, 1);
    else
      unsetenv(key);
  }
}

static void start_deadline(struct mind *m, const struct minder_head *head, const char *text, size_t length) {
  set_environment(text, length);
  m->deadline = (dibs__tick){head->ns};
  /* This process may have been stopped since then, and the lease may already belong to somebody else. */
  if (!dibs__tick_before(dibs__tick_now(), m->deadline)) {
    tell_dibs(m, MINDER_ENDING, true, 0);
    report_and_exit(m, SIGKILL);
  }
  struct cli_spawn spawn = {.argv = m->plan->argv,
                            .mask = &m->plan->mask,
                            .tty = head->number != 0 ? m->plan->tty : -1,
                            .in = m->plan->in,
                            .out = m->plan->out,
                            .err = m->plan->err};
  int error = dibs__cli_spawn(&spawn, &m->command);
  if (error != 0) {
    tell_dibs(m, MINDER_NOT_STARTED, error, 0);
    _exit(0);
  }
  m->started = true;
  tell_dibs(m, MINDER_STARTED, m->command, 0);
  let_go_of_files(m);
}

static void begin_ending(struct mind *m, bool by_itself) {
  if (m->ending.began) return;
  dibs__tick kill_at = dibs__tick_min(m->deadline, dibs__tick_add_ms(dibs__tick_now(), m->grace_ms));
  dibs__cli_ending_begin(&m->ending, getpid(), m->command, kill_at);
  tell_dibs(m, MINDER_ENDING, by_itself, 0);
}

static void dibs_is_gone(struct mind *m) {
  close(m->dibs);
  m->dibs = -1;
  if (!m->started) _exit(0);
  m->orphaned = true;
  begin_ending(m, false);
}

static void hear(struct mind *m) {
  static char text[MINDER_TEXT_MAX + 1];
  struct minder_head head;
  size_t length;
  int heard;
  while (m->dibs >= 0 && (heard = dibs__cli_minder_receive(m->dibs, &head, text, &length)) != 0) {
    if (heard < 0) {
      dibs_is_gone(m);
      return;
    }
    text[length] = '\0';
    switch (head.word) {
    case MINDER_START:
      start_deadline(m, &head, text, length);
      break;
    case MINDER_DEADLINE:
      m->deadline = (dibs__tick){head.ns};
      break;
    case MINDER_GRACE:
      m->grace_ms = head.number;
      break;
    case MINDER_SIGNAL:
      /* The command alone, if it has left the group in which it started. */
      if (m->command > 0 && kill(-m->command, head.number) != 0) kill(m->command, head.number);
      break;
    case MINDER_END:
      begin_ending(m, false);
      break;
    default:
      break;
    }
  }
}

/* Reaps ended children: the command, and orphans that this process adopted. */
static void reap(struct mind *m) {
  struct signalfd_siginfo ignored;
  while (read(m->children, &ignored, sizeof ignored) > 0) continue;
  m->alone = false;
  for (;;) {
    int status;
    pid_t pid = waitpid(-1, &status, WNOHANG | WUNTRACED);
    if (pid < 0 && errno == EINTR) continue;
    if (pid < 0) m->alone = true;
    if (pid <= 0) return;
    if (pid != m->command) continue;
    if (WIFSTOPPED(status)) {
      tell_dibs(m, MINDER_STOPPED, WSTOPSIG(status), 0);
      continue;
    }
    m->ended = true;
    m->status = status;
    /* From here on its pid and group may belong to another process. */
    m->command = 0;
    m->ending.group = 0;
  }
}

static dibs__tick next_look(const struct mind *m) {
  if (!m->started) return DIBS__TICK_NEVER;
  if (m->ending.began) return m->ending.look_at;
  return (dibs__tick){m->deadline.ns - m->grace_ms * DIBS__NS_PER_MS};
}

static void read_events(struct mind *m) {
  if (!m->started) return;
  if (!m->ending.began && m->ended) report_and_exit(m, m->status);
  if (!m->ending.began && !dibs__tick_before(dibs__tick_now(), next_look(m))) begin_ending(m, true);
  if (m->ending.began && dibs__cli_ending_step(&m->ending, m->alone))
    report_and_exit(m, m->ended ? m->status : SIGKILL);
}

_Noreturn void dibs__cli_mind(const struct minder_plan *plan, int dibs) {
  static struct mind m;
  m = (struct mind){.plan = plan, .dibs = dibs, .deadline = DIBS__TICK_NEVER, .grace_ms = plan->grace_ms};
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, NULL);
  setpgid(0, 0);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  prctl(PR_SET_NAME, "dibs-minder");
  sigset_t children;
  sigemptyset(&children);
  sigaddset(&children, SIGCHLD);
  m.children = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
  m.alarm = dibs__cli_alarm_open();
  if (m.children < 0 || m.alarm < 0) _exit(0); /* dibs sees that it is gone, and starts nothing */
  for (;;) {
    dibs__cli_alarm_set(m.alarm, next_look(&m));
    struct pollfd fds[] = {{m.children, POLLIN, 0}, {m.alarm, POLLIN, 0}, {m.dibs, POLLIN, 0}};
    if (poll(fds, m.dibs >= 0 ? 3 : 2, -1) < 0 && errno != EINTR) _exit(0);
    dibs__cli_alarm_clear(m.alarm);
    hear(&m);
    reap(&m);
    read_events(&m);
  }
}

int dibs__cli_minder_start(const struct minder_plan *plan, struct minder *minder) {
  int ends[2] = {-1, -1};
  *minder = (struct minder){-1, -1};
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0) minder->pid = dibs__cli_fork();
  if (minder->pid == 0) {
    close(ends[0]);
    dibs__cli_mind(plan, ends[1]);
  }
  if (minder->pid > 0) {
    close(ends[1]);
    minder->fd = ends[0];
    return CLI_DONE;
  }
  int error = errno;
  if (ends[0] >= 0) close(ends[0]);
  if (ends[1] >= 0) close(ends[1]);
  return dibs__cli_fail(plan->globals, CLI_FAILED, "", "cannot start the minder: %s", strerror(error));
}

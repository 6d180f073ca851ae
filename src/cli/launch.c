/* SPDX-License-Identifier: MIT */
/* The launcher: see run.h. */
#include "cli/run.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
  FDS = 3,
  WORDS_MAX = 1024,
  ANSWER_MS = 10000 /* a fork takes far less: the launcher is stopped */
};

struct head {
  int64_t grace_ms;
  uint32_t words, variables; /* of argv; of the environment; after the name, each with its NUL */
  bool keeps_streams, keeps_errors, holds_a_lease;
};

struct message {
  struct head head;
  char text[LAUNCH_TEXT_MAX + 1];
  size_t length;
  int fds[FDS]; /* the minder's socket, in, out */
};

struct answer {
  pid_t pid;
  int error; /* errno of fork; 0: it was forked */
};

/* ---- The launcher's side ---- */

/* The same for all commands of a launcher. */
struct common {
  const struct cli_globals *globals;
  const sigset_t *mask;
  char *const *argv; /* NULL: none */
};

static bool receive(int fd, struct message *m) {
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(FDS * sizeof(int))];
  } control;
  struct iovec parts[] = {{.iov_base = &m->head, .iov_len = sizeof m->head},
                          {.iov_base = m->text, .iov_len = LAUNCH_TEXT_MAX}};
  struct msghdr message = {
      .msg_iov = parts, .msg_iovlen = 2, .msg_control = &control, .msg_controllen = sizeof control};
  ssize_t got;
  do got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  const struct cmsghdr *c = CMSG_FIRSTHDR(&message);
  if (got < (ssize_t)sizeof m->head || c == NULL || c->cmsg_len != CMSG_LEN(sizeof m->fds)) return false;
  memcpy(m->fds, CMSG_DATA(c), sizeof m->fds);
  m->length = (size_t)got - sizeof m->head;
  m->text[m->length] = '\0';
  return true;
}

/* The next string; NULL: the message is too short. */
static char *next_word(struct message *m, size_t *at) {
  if (*at >= m->length) return NULL;
  char *word = m->text + *at;
  *at += strlen(word) + 1;
  return word;
}

static _Noreturn void become_minder(const struct common *common, struct message *m) {
  static char *argv[WORDS_MAX + 1];
  size_t at = 0;
  const char *name = next_word(m, &at);
  for (uint32_t i = 0; i < m->head.words && i < WORDS_MAX; i++) argv[i] = next_word(m, &at);
  for (uint32_t i = 0; i < m->head.variables; i++) {
    char *variable = next_word(m, &at);
    if (variable != NULL) putenv(variable); /* the text stays */
  }
  const struct minder_plan plan = {.globals = common->globals,
                                   .name = name,
                                   .argv = m->head.words > 0 ? argv : common->argv,
                                   .mask = *common->mask,
                                   .grace_ms = m->head.grace_ms,
                                   .tty = -1,
                                   .in = m->fds[1],
                                   .out = m->head.keeps_streams ? -1 : m->fds[2],
                                   .err = m->head.keeps_streams || m->head.keeps_errors ? -1 : m->fds[2],
                                   .task = !m->head.holds_a_lease};
  if (name == NULL || plan.argv == NULL || plan.argv[0] == NULL) _exit(0);
  dibs__cli_mind(&plan, m->fds[0]);
}

/* The kernel reaps the minders: nobody waits for their status. */
static void set_up(void) {
  struct sigaction ignore = {.sa_handler = SIG_IGN};
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, NULL);
  sigaction(SIGCHLD, &ignore, NULL);
  setpgid(0, 0);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  prctl(PR_SET_NAME, "dibs-launcher");
}

static _Noreturn void launch_all(const struct common *common, int from) {
  static struct message m;
  struct sigaction plain = {.sa_handler = SIG_DFL};
  int dibs = STDERR_FILENO + 1;
  set_up();
  /* The sockets of launchers before this one are dibs' alone: they end when dibs closes them. */
  if (from != dibs && dup3(from, dibs, O_CLOEXEC) < 0) _exit(0);
  close_range((unsigned)dibs + 1, ~0U, 0);
  while (receive(dibs, &m)) {
    struct answer answer = {.pid = dibs__cli_fork()};
    if (answer.pid < 0) answer.error = errno;
    if (answer.pid == 0) {
      sigaction(SIGCHLD, &plain, NULL);
      close(dibs);
      become_minder(common, &m);
    }
    for (int i = 0; i < FDS; i++) close(m.fds[i]);
    ssize_t sent;
    do sent = send(dibs, &answer, sizeof answer, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
  }
  _exit(0);
}

int dibs__cli_launcher_start(const struct cli_globals *g, const sigset_t *mask, char *const *argv,
                             struct launcher *launcher) {
  const struct common common = {.globals = g, .mask = mask, .argv = argv};
  int ends[2] = {-1, -1};
  *launcher = (struct launcher){-1, -1};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0) launcher->pid = dibs__cli_fork();
  if (launcher->pid == 0) {
    close(ends[0]);
    launch_all(&common, ends[1]);
  }
  int error = errno;
  if (ends[1] >= 0) close(ends[1]);
  launcher->fd = ends[0];
  if (launcher->pid > 0) return CLI_DONE;
  dibs__cli_launcher_end(launcher);
  return dibs__cli_fail(g, CLI_FAILED, "", "cannot start the process that starts commands: %s", strerror(error));
}

void dibs__cli_launcher_end(struct launcher *launcher) {
  if (launcher->fd >= 0) close(launcher->fd);
  launcher->fd = -1;
}

/* ---- The side of dibs ---- */

static bool add_word(char *text, size_t *length, const char *word) {
  size_t size = strlen(word) + 1;
  if (size > LAUNCH_TEXT_MAX - *length) return false;
  memcpy(text + *length, word, size);
  *length += size;
  return true;
}

/* false: it is too long. */
static bool write_text(const struct launch *launch, struct head *head, char *text, size_t *length) {
  bool fits = add_word(text, length, launch->name);
  for (const char *const *w = launch->argv; w != NULL && *w != NULL && fits; w++, head->words++)
    fits = head->words < WORDS_MAX && add_word(text, length, *w);
  for (const char *const *v = launch->environment; v != NULL && *v != NULL && fits; v++, head->variables++)
    fits = add_word(text, length, *v);
  return fits;
}

static bool send_message(int fd, const struct head *head, const char *text, size_t length, const int fds[FDS]) {
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(FDS * sizeof(int))];
  } control = {.bytes = {0}};
  struct iovec parts[] = {{.iov_base = (void *)(uintptr_t)head, .iov_len = sizeof *head},
                          {.iov_base = (void *)(uintptr_t)text, .iov_len = length}};
  struct msghdr message = {
      .msg_iov = parts, .msg_iovlen = 2, .msg_control = &control, .msg_controllen = sizeof control};
  struct cmsghdr *c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(FDS * sizeof(int));
  memcpy(CMSG_DATA(c), fds, FDS * sizeof(int));
  ssize_t sent;
  do sent = sendmsg(fd, &message, MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  return sent >= 0;
}

/* 0, or errno. */
static int receive_answer(int fd, pid_t *pid) {
  struct answer answer;
  struct pollfd wait = {.fd = fd, .events = POLLIN};
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), ANSWER_MS);
  int ready;
  do ready = poll(&wait, 1, (int)dibs__tick_left_ms(dibs__tick_now(), by));
  while (ready < 0 && errno == EINTR);
  if (ready <= 0 || recv(fd, &answer, sizeof answer, MSG_DONTWAIT) != (ssize_t)sizeof answer) return EPIPE;
  *pid = answer.pid;
  return answer.error;
}

/* 0, or errno.  `end`: that of the socket pair for the minder. */
static int request(const struct launcher *launcher, const struct launch *launch, int end, pid_t *pid) {
  struct head head = {.grace_ms = launch->grace_ms,
                      .keeps_streams = launch->keeps_streams,
                      .keeps_errors = launch->keeps_errors,
                      .holds_a_lease = launch->holds_a_lease};
  size_t length = 0;
  const int fds[FDS] = {end, launch->in, launch->keeps_streams ? launch->in : launch->out};
  char *text = malloc(LAUNCH_TEXT_MAX);
  int error = ENOMEM;
  if (text != NULL) {
    error = write_text(launch, &head, text, &length) ? 0 : E2BIG;
    if (error == 0 && !send_message(launcher->fd, &head, text, length, fds)) error = errno;
    free(text);
  }
  if (error == ECONNRESET) error = EPIPE;
  return error == 0 ? receive_answer(launcher->fd, pid) : error;
}

bool dibs__cli_launch(const struct launcher *launcher, const struct launch *launch, struct minder *minder) {
  int ends[2];
  *minder = (struct minder){-1, -1};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return false;
  int error = request(launcher, launch, ends[1], &minder->pid);
  close(ends[1]);
  if (error == 0) {
    minder->fd = ends[0];
    return true;
  }
  close(ends[0]);
  *minder = (struct minder){-1, -1};
  errno = error;
  return false;
}

/* SPDX-License-Identifier: MIT */
/* The launcher: see run.h. */
#include "cli/run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FDS = 3, WORDS_MAX = 1024 };

struct head {
  int64_t grace_ms;
  uint32_t words, variables; /* of argv; of the environment; after the name, each with its NUL */
};

struct message {
  struct head head;
  char text[LAUNCH_TEXT_MAX + 1];
  size_t length;
  int fds[FDS]; /* the minder's socket, in, out */
};

/* ---- The launcher's side ---- */

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

static _Noreturn void become_minder(const struct cli_globals *g, const sigset_t *mask, struct message *m) {
  static char *argv[WORDS_MAX + 1];
  size_t at = 0;
  const char *name = next_word(m, &at);
  for (uint32_t i = 0; i < m->head.words && i < WORDS_MAX; i++) argv[i] = next_word(m, &at);
  for (uint32_t i = 0; i < m->head.variables; i++) {
    char *variable = next_word(m, &at);
    if (variable != NULL) putenv(variable); /* the text stays */
  }
  if (name == NULL || argv[0] == NULL) _exit(0);
  dup2(m->fds[1], STDIN_FILENO);
  const struct minder_plan plan = {.globals = g,
                                   .name = name,
                                   .argv = argv,
                                   .mask = *mask,
                                   .grace_ms = m->head.grace_ms,
                                   .tty = -1,
                                   .out = m->fds[2],
                                   .err = m->fds[2]};
  dibs__cli_mind(&plan, m->fds[0]);
}

static _Noreturn void launch_all(const struct cli_globals *g, const sigset_t *mask, int fd) {
  static struct message m;
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, NULL);
  setpgid(0, 0);
  prctl(PR_SET_NAME, "dibs-launcher");
  while (receive(fd, &m)) {
    pid_t pid = dibs__cli_fork();
    if (pid == 0) {
      close(fd);
      become_minder(g, mask, &m);
    }
    /* If the fork failed, dibs sees that the socket is closed. */
    for (int i = 0; i < FDS; i++) close(m.fds[i]);
    while (waitpid(-1, NULL, WNOHANG) > 0) continue;
  }
  _exit(0);
}

int dibs__cli_launcher_start(const struct cli_globals *g, const sigset_t *mask, struct launcher *launcher) {
  int ends[2] = {-1, -1};
  *launcher = (struct launcher){-1, -1};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0) launcher->pid = dibs__cli_fork();
  if (launcher->pid == 0) {
    close(ends[0]);
    launch_all(g, mask, ends[1]);
  }
  int error = errno;
  if (ends[1] >= 0) close(ends[1]);
  launcher->fd = ends[0];
  if (launcher->pid > 0) return CLI_DONE;
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
  for (const char *const *w = launch->argv; *w != NULL && fits; w++, head->words++)
    fits = head->words < WORDS_MAX && add_word(text, length, *w);
  for (const char *const *v = launch->environment; *v != NULL && fits; v++, head->variables++)
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

int dibs__cli_launch(const struct launcher *launcher, const struct launch *launch) {
  static char text[LAUNCH_TEXT_MAX];
  struct head head = {.grace_ms = launch->grace_ms};
  size_t length = 0;
  int ends[2];
  if (!write_text(launch, &head, text, &length)) {
    errno = E2BIG;
    return -1;
  }
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return -1;
  const int fds[FDS] = {ends[1], launch->in, launch->out};
  bool sent = send_message(launcher->fd, &head, text, length, fds);
  int error = errno;
  close(ends[1]);
  if (sent) return ends[0];
  close(ends[0]);
  errno = error;
  return -1;
}

/* SPDX-License-Identifier: MIT */
/*
 * The terminal belongs to one process group at a time.  `dibs run` hands it to the group of its command and takes it
 * back.  Signals: SIGTTOU is blocked in dibs (run.c), or taking it back from the background would stop dibs.
 */
#include "cli/run.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>
#include <unistd.h>

int dibs__cli_tty_open(void) {
  return open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY);
}

bool dibs__cli_tty_is_ours(int fd) {
  return fd >= 0 && tcgetpgrp(fd) == getpgrp();
}

void dibs__cli_tty_give(int fd, pid_t group) {
  if (fd >= 0) tcsetpgrp(fd, group);
}

void dibs__cli_tty_take(int fd, pid_t group) {
  if (fd >= 0 && tcgetpgrp(fd) == group) tcsetpgrp(fd, getpgrp());
}

/* The whole group, because the terminal would have stopped the whole group: the shell that waits for a script waits for
 * all of its processes.  The kernel does not stop a group that nobody could continue; then no SIGCONT is pending. */
bool dibs__cli_stop_self(void) {
  sigset_t stop, pending;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTSTP);
  sigprocmask(SIG_UNBLOCK, &stop, NULL);
  kill(0, SIGTSTP);
  sigprocmask(SIG_BLOCK, &stop, NULL);
  return sigpending(&pending) == 0 && sigismember(&pending, SIGCONT) == 1;
}

/*
 * Everything below a process: read from /proc, so that processes that left the group or the session are found too.
 * The root is a subreaper (minder.c), so what loses its parent stays below it.
 *
 * A pid that was read may be another process by the time it is signalled.  So each is held by a descriptor first, and
 * then looked at again: the same start time means the same process, and from then on the descriptor means no other.
 */

struct process {
  pid_t pid, parent, group;
  unsigned long long started;
  char state;
  bool below;
};

struct processes {
  struct process *list;
  size_t count, capacity;
};

/* "pid (any name) state parent group ... started": the name may hold blanks and parentheses. */
static bool read_process(pid_t pid, struct process *process) {
  char path[32], text[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  if (got <= 0) return false;
  text[got] = '\0';
  const char *at = strrchr(text, ')');
  int parent, group;
  *process = (struct process){.pid = pid};
  if (at == NULL || sscanf(at + 1, " %c %d %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
                           &process->state, &parent, &group, &process->started) != 4)
    return false;
  process->parent = parent;
  process->group = group;
  return true;
}

static bool add_process(struct processes *all, const struct process *process) {
  if (all->count == all->capacity) {
    size_t capacity = all->capacity == 0 ? 256 : all->capacity * 2;
    struct process *list = realloc(all->list, capacity * sizeof *list);
    if (list == NULL) return false;
    all->list = list;
    all->capacity = capacity;
  }
  all->list[all->count++] = *process;
  return true;
}

static void read_all(struct processes *all) {
  DIR *proc = opendir("/proc");
  if (proc == NULL) return;
  const struct dirent *entry;
  while ((entry = readdir(proc)) != NULL) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
    struct process process;
    if (read_process((pid_t)strtol(entry->d_name, NULL, 10), &process) && !add_process(all, &process)) break;
  }
  closedir(proc);
}

static int by_pid(const void *a, const void *b) {
  pid_t x = ((const struct process *)a)->pid, y = ((const struct process *)b)->pid;
  return (x > y) - (x < y);
}

/* A parent may follow its child in the list (pids wrap around), so it repeats until nothing changes. */
static void mark_below(struct processes *all, pid_t root) {
  if (all->count > 1) qsort(all->list, all->count, sizeof *all->list, by_pid);
  bool more = true;
  while (more) {
    more = false;
    for (size_t i = 0; i < all->count; i++) {
      struct process *p = &all->list[i];
      if (p->below) continue;
      struct process key = {.pid = p->parent};
      const struct process *parent = bsearch(&key, all->list, all->count, sizeof key, by_pid);
      p->below = p->parent == root || (parent != NULL && parent->below);
      more = more || p->below;
    }
  }
}

static int send_to(const struct process *process, int signo) {
  int fd = pidfd_open(process->pid, 0);
  if (fd < 0) return errno;
  struct process now;
  int error = ESRCH;
  if (read_process(process->pid, &now) && now.started == process->started)
    error = pidfd_send_signal(fd, signo, NULL, 0) == 0 ? 0 : errno;
  close(fd);
  return error;
}

struct cli_tree dibs__cli_tree_signal(pid_t root, int signo, pid_t except) {
  struct cli_tree tree = {0, 0};
  struct processes all = {0};
  read_all(&all);
  mark_below(&all, root);
  for (size_t i = 0; i < all.count; i++) {
    const struct process *p = &all.list[i];
    if (!p->below || p->state == 'Z' || p->state == 'X') continue;
    int error = except != 0 && p->group == except ? 0 : send_to(p, signo);
    if (error == ESRCH) continue;
    tree.alive++;
    if (error != 0) tree.refused++;
  }
  free(all.list);
  return tree;
}

/* Starting processes, and an alarm to poll.  See run.h. */

pid_t dibs__cli_fork(void) {
  return fork();
}

/* Between fork and exec: only calls that are allowed after a fork of a process with threads. */
static _Noreturn void exec_child(const struct cli_spawn *spawn, pid_t parent, int report) {
  setpgid(0, 0);
  if (spawn->tty >= 0) tcsetpgrp(spawn->tty, getpid());
  if (spawn->in >= 0) dup2(spawn->in, STDIN_FILENO);
  if (spawn->out >= 0) dup2(spawn->out, STDOUT_FILENO);
  if (spawn->err >= 0) dup2(spawn->err, STDERR_FILENO);
  /* The kernel kills this process when the thread that forked it ends.  If that happened before this call, no signal
   * comes any more, but this process has another parent by now. */
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  sigprocmask(SIG_SETMASK, spawn->mask, NULL);
  execvp(spawn->argv[0], spawn->argv);
  int error = errno;
  ssize_t sent;
  do sent = write(report, &error, sizeof error);
  while (sent < 0 && errno == EINTR);
  _exit(127);
}

/* posix_spawn can't set a parent-death signal.  The fork costs a tenth of a millisecond: the caller is small. */
int dibs__cli_spawn(const struct cli_spawn *spawn, pid_t *pid) {
  int report[2], error = 0;
  *pid = -1;
  if (pipe2(report, O_CLOEXEC) != 0) return errno;
  pid_t parent = getpid(), started = fork();
  if (started < 0) error = errno;
  if (started == 0) exec_child(spawn, parent, report[1]);
  close(report[1]);
  if (started > 0) {
    /* Both sides set the group, so that it exists whichever runs first. */
    setpgid(started, started);
    ssize_t got;
    int exec_error;
    do got = read(report[0], &exec_error, sizeof exec_error);
    while (got < 0 && errno == EINTR);
    if (got == (ssize_t)sizeof exec_error) error = exec_error;
    *pid = started;
  }
  close(report[0]);
  return error;
}

int dibs__cli_alarm_open(void) {
  return timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
}

void dibs__cli_alarm_set(int fd, dibs__tick at) {
  struct itimerspec when = {0};
  if (at.ns != DIBS__TICK_NEVER.ns) {
    int64_t ns = at.ns - dibs__tick_now().ns;
    if (ns < 1) ns = 1; /* zero would turn it off */
    when.it_value.tv_sec = (time_t)(ns / 1000000000);
    when.it_value.tv_nsec = (long)(ns % 1000000000);
  }
  timerfd_settime(fd, 0, &when, NULL);
}

void dibs__cli_alarm_clear(int fd) {
  uint64_t rings;
  ssize_t got;
  do got = read(fd, &rings, sizeof rings);
  while (got < 0 && errno == EINTR);
}

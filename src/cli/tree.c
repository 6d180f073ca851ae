/* SPDX-License-Identifier: MIT */
/*
 * Everything below a process: read from /proc, so that processes that left the group or the session are found too.
 * The root is a subreaper (minder.c), so what loses its parent stays below it.
 *
 * A pid that was read may be another process by the time it is signalled.  So each is held by a descriptor first, and
 * then looked at again: the same start time means the same process, and from then on the descriptor means no other.
 */
#include "cli/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <unistd.h>

struct process {
  pid_t pid, parent, group;
  unsigned long long started;
  char state;
  bool below;
};

struct processes {
  struct process *list;
  size_t count, room;
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

static bool keep(struct processes *all, const struct process *process) {
  if (all->count == all->room) {
    size_t room = all->room == 0 ? 256 : all->room * 2;
    struct process *list = realloc(all->list, room * sizeof *list);
    if (list == NULL) return false;
    all->list = list;
    all->room = room;
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
    if (read_process((pid_t)strtol(entry->d_name, NULL, 10), &process) && !keep(all, &process)) break;
  }
  closedir(proc);
}

static int by_pid(const void *a, const void *b) {
  pid_t x = ((const struct process *)a)->pid, y = ((const struct process *)b)->pid;
  return (x > y) - (x < y);
}

/* A parent may stand behind its child (pids wrap around), so it goes over the list until nothing changes. */
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

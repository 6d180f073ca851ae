/* SPDX-License-Identifier: MIT */
#include "history.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct history *history_make(const char *folder, uint32_t party) {
  char path[512];
  snprintf(path, sizeof path, "%s/party-%u.history", folder, party);
  int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(struct history)) != 0) {
    perror(path);
    if (fd >= 0) close(fd);
    return NULL;
  }
  struct history *history = mmap(NULL, sizeof *history, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (history == MAP_FAILED) {
    perror(path);
    return NULL;
  }
  history->party = party;
  return history;
}

const struct history *history_look(const char *folder, uint32_t party) {
  char path[512];
  struct stat stat;
  snprintf(path, sizeof path, "%s/party-%u.history", folder, party);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return NULL;
  const struct history *history = NULL;
  if (fstat(fd, &stat) == 0 && stat.st_size == (off_t)sizeof *history)
    history = mmap(NULL, sizeof *history, PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  return history == MAP_FAILED ? NULL : history;
}

bool history_say(struct history *history, struct reported reported) {
  uint32_t at = atomic_fetch_add(&history->count, 1);
  if (at >= HISTORY_CAPACITY) return false;
  struct reported *to = &history->reported[at];
  uint8_t what = reported.what;
  to->at = reported.at;
  to->value = reported.value;
  to->extra = reported.extra;
  to->fence = reported.fence;
  to->lease = reported.lease;
  to->thread = reported.thread;
  to->name = reported.name;
  to->mode = reported.mode;
  atomic_store(&to->what, what); /* last: a process that is killed before this leaves no record */
  return true;
}

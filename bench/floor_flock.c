/* SPDX-License-Identifier: MIT */
#include "bench/floor.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>

int dibs__floor_flock_open(const char *path) {
  return open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
}

static bool retry(int fd, int what) {
  int got;
  do got = flock(fd, what);
  while (got && errno == EINTR);
  return !got;
}

bool dibs__floor_flock_lock(int fd) {
  return retry(fd, LOCK_EX);
}

bool dibs__floor_flock_unlock(int fd) {
  return retry(fd, LOCK_UN);
}

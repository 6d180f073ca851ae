/* SPDX-License-Identifier: MIT */
/* Loaded into a command by LD_PRELOAD: what SQLite writes takes its time, as on a busy disk. */
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

__attribute__((visibility("default"))) ssize_t pwrite64(int fd, const void *from, size_t size, off64_t at) {
  nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
  return syscall(SYS_pwrite64, fd, from, size, at);
}

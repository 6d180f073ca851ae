/* SPDX-License-Identifier: MIT */
/* Loaded into a server by LD_PRELOAD: adds to its wall clock the milliseconds of the file $DIBS_TEST_CLOCK, one number
 * of 8 bytes. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))

static int64_t *volatile skew_ms;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("DIBS_TEST_CLOCK");
  int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0) return;
  void *page = mmap(NULL, sizeof *skew_ms, PROT_READ, MAP_SHARED, fd, 0);
  if (page != MAP_FAILED) skew_ms = page;
  close(fd);
}

/* The next function of that name. */
static void find_real(void *to, const char *name) {
  void *found = dlsym(RTLD_NEXT, name);
  memcpy(to, &found, sizeof found);
}

SHOWN int clock_gettime(clockid_t clock, struct timespec *to) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) find_real(&real, "clock_gettime");
  int failed = real(clock, to);
  int64_t ms = skew_ms ? *skew_ms : 0;
  if (failed || !ms || clock != CLOCK_REALTIME) return failed;
  to->tv_sec += ms / 1000;
  to->tv_nsec += ms % 1000 * 1000000;
  if (to->tv_nsec < 1000000000) return 0;
  to->tv_nsec -= 1000000000;
  to->tv_sec++;
  return 0;
}

SHOWN int gettimeofday(struct timeval *restrict to, void *restrict zone) {
  static int (*real)(struct timeval *, void *);
  if (!real) find_real(&real, "gettimeofday");
  int failed = real(to, zone);
  int64_t ms = skew_ms ? *skew_ms : 0;
  if (failed || !ms) return failed;
  to->tv_sec += ms / 1000;
  to->tv_usec += ms % 1000 * 1000;
  if (to->tv_usec < 1000000) return 0;
  to->tv_usec -= 1000000;
  to->tv_sec++;
  return 0;
}

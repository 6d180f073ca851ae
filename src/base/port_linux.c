/* SPDX-License-Identifier: MIT */
/*
 * port.h on Linux: futexes, the boot-time clock, getrandom, eventfd.  The only process-wide state is the count of
 * forks and, per thread, a small stock of random bytes.
 */
#include "base/port.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if !defined(__x86_64__) && !defined(__i386__) && !defined(__aarch64__)
#include <sched.h>
#endif

#define NS_PER_S INT64_C(1000000000)

/* Sixteen lease ids: the call into the kernel costs more than all the rest of drawing an id. */
enum { STOCK_SIZE = 256 };

/* The longest uninterrupted sleep of a nap: a futex sleeps by the monotonic clock, which does not run while the machine
 * is suspended. */
#define SLICE_MS INT64_C(1000)

/* ---- Time ---- */

static int64_t clock_ns(clockid_t clock) {
  struct timespec t;
  int r = clock_gettime(clock, &t);
  assert(r == 0);
  (void)r;
  return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

DIBS__MODULE_API dibs__tick dibs__tick_now(void) {
  return (dibs__tick){clock_ns(CLOCK_BOOTTIME)};
}

DIBS__MODULE_API int64_t dibs__wall_ms(void) {
  return clock_ns(CLOCK_REALTIME) / DIBS__NS_PER_MS;
}

DIBS__MODULE_API int64_t dibs__tick_left_ms(dibs__tick a, dibs__tick b) {
  if (b.ns == INT64_MAX) return INT64_MAX;
  if (!dibs__tick_before(a, b)) return 0;
  int64_t left;
  if (__builtin_sub_overflow(b.ns, a.ns, &left)) return INT64_MAX;
  return left / DIBS__NS_PER_MS + (left % DIBS__NS_PER_MS != 0);
}

/* ---- Identity of a boot and of a clock ---- */

/* Reads up to size - 1 bytes of a small kernel file, and adds a NUL.  Returns the number of bytes, or -1. */
static ssize_t read_small(const char *path, char *to, size_t size) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t n;
  do n = read(fd, to, size - 1);
  while (n < 0 && errno == EINTR);
  close(fd);
  to[n < 0 ? 0 : n] = '\0';
  return n;
}

bool dibs__boot_id(char id[37]) {
  char text[64];
  id[0] = '\0';
  if (read_small("/proc/sys/kernel/random/boot_id", text, sizeof text) < 36) return false;
  memcpy(id, text, 36);
  id[36] = '\0';
  return true;
}

int64_t dibs__boot_clock_offset_ns(void) {
  /* timens_offsets describes the namespace of future children.  After unshare(CLONE_NEWTIME) it is not this process's;
   * then no number is right, and a number that no other process has keeps two clocks from being treated as one. */
  char ours[64], born[64];
  ssize_t a = readlink("/proc/self/ns/time", ours, sizeof ours);
  ssize_t b = readlink("/proc/self/ns/time_for_children", born, sizeof born);
  if (a > 0 && b > 0) {
    const char *n = memchr(ours, '[', (size_t)a), *m = memchr(born, '[', (size_t)b);
    size_t left = n ? (size_t)(ours + a - n) : 0;
    if (!n || !m || left != (size_t)(born + b - m) || memcmp(n, m, left) != 0) return INT64_MIN;
  }

  char text[256];
  if (read_small("/proc/self/timens_offsets", text, sizeof text) <= 0) return 0;
  const char *line = strstr(text, "boottime");
  if (!line) return 0;
  char *end;
  long long s = strtoll(line + strlen("boottime"), &end, 10);
  long long ns = strtoll(end, NULL, 10);
  return (int64_t)s * NS_PER_S + ns;
}

/* ---- Forks ---- */

static _Atomic uint64_t generation = 1;

static _Thread_local struct {
  uint64_t
      generation; /* of the process that filled it: a child must not return the bytes that its parent will return */
  size_t left;    /* bytes that are still unused, at the end */
  uint8_t bytes[STOCK_SIZE];
} stock;

static void in_child(void) {
  atomic_fetch_add_explicit(&generation, 1, memory_order_relaxed);
  explicit_bzero(&stock, sizeof stock);
}

/* Runs before any constructor of a program that links us statically, so that what this opens has a generation. */
__attribute__((constructor(101))) static void watch_forks(void) {
  int r = pthread_atfork(NULL, NULL, in_child);
  assert(r == 0);
  (void)r;
}

uint64_t dibs__process_generation(void) {
  return atomic_load_explicit(&generation, memory_order_relaxed);
}

DIBS__MODULE_API uint32_t dibs__process_id(void) {
  return (uint32_t)getpid();
}

const char *dibs__home_folder(char *memory, size_t size) {
  const char *home = secure_getenv("HOME");
  if (home && home[0] == '/') return home;
  struct passwd entry, *found = NULL;
  if (getpwuid_r(geteuid(), &entry, memory, size, &found) != 0 || !found || !found->pw_dir || found->pw_dir[0] != '/')
    return NULL;
  return found->pw_dir;
}

/* ---- Random bytes ---- */

static void draw(uint8_t *to, size_t size) {
  while (size > 0) {
    ssize_t n = getrandom(to, size, 0);
    if (n < 0) {
      if (errno == EINTR) continue;
      /* No kernel that we support lacks it.  Ids that can be guessed would be worse than no process. */
      abort();
    }
    to += n;
    size -= (size_t)n;
  }
}

DIBS__MODULE_API void dibs__random(void *to, size_t size) {
  if (size > sizeof stock.bytes / 2) {
    draw(to, size);
    return;
  }
  uint64_t now = dibs__process_generation();
  if (stock.generation != now || stock.left < size) {
    draw(stock.bytes, sizeof stock.bytes);
    stock.generation = now;
    stock.left = sizeof stock.bytes;
  }
  uint8_t *from = stock.bytes + sizeof stock.bytes - stock.left;
  memcpy(to, from, size);
  explicit_bzero(from, size);
  stock.left -= size;
}

/* ---- Threads ---- */

struct dibs__thread {
  pthread_t thread;
  void (*body)(void *);
  void *arg;
  char name[16];
};

static void *thread_main(void *arg) {
  struct dibs__thread *self = arg;
  pthread_setname_np(pthread_self(), self->name);
  self->body(self->arg);
  return NULL;
}

DIBS__MODULE_API dibs__thread *dibs__thread_start(const char *name, void (*body)(void *), void *arg) {
  assert(body);
  struct dibs__thread *thread = calloc(1, sizeof *thread);
  if (!thread) return NULL;
  thread->body = body;
  thread->arg = arg;
  snprintf(thread->name, sizeof thread->name, "%s", name);

  /* It starts with the creator's mask: at no instant can a signal be delivered to it. */
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int r = pthread_create(&thread->thread, NULL, thread_main, thread);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (r != 0) {
    free(thread);
    return NULL;
  }
  return thread;
}

DIBS__MODULE_API void dibs__thread_join(dibs__thread *thread) {
  if (!thread) return;
  int r = pthread_join(thread->thread, NULL);
  assert(r == 0);
  (void)r;
  free(thread);
}

uintptr_t dibs__thread_self(void) {
  return (uintptr_t)pthread_self();
}

DIBS__MODULE_API void dibs__mutex_init(dibs__mutex *mutex) {
  int r = pthread_mutex_init(&mutex->m, NULL);
  assert(r == 0);
  (void)r;
}

DIBS__MODULE_API void dibs__mutex_destroy(dibs__mutex *mutex) {
  int r = pthread_mutex_destroy(&mutex->m);
  assert(r == 0);
  (void)r;
}

DIBS__MODULE_API void dibs__mutex_lock(dibs__mutex *mutex) {
  int r = pthread_mutex_lock(&mutex->m);
  assert(r == 0);
  (void)r;
}

DIBS__MODULE_API void dibs__mutex_unlock(dibs__mutex *mutex) {
  int r = pthread_mutex_unlock(&mutex->m);
  assert(r == 0);
  (void)r;
}

/* ---- Waiting ---- */

_Static_assert(sizeof(dibs__word) == 4, "a futex is a 32-bit word");

/* The monotonic instant at which the boot-time clock will read `by`, if the machine is not suspended until then.  The
 * boot-time clock is read first, so that the sleep never ends before `by`. */
static struct timespec monotonic_at(dibs__tick by) {
  int64_t left = by.ns - clock_ns(CLOCK_BOOTTIME);
  int64_t at = clock_ns(CLOCK_MONOTONIC);
  if (left > 0 && __builtin_add_overflow(at, left, &at)) at = INT64_MAX;
  return (struct timespec){.tv_sec = (time_t)(at / NS_PER_S), .tv_nsec = (long)(at % NS_PER_S)};
}

DIBS__MODULE_API bool dibs__word_wait(dibs__word *word, uint32_t seen, dibs__tick by, bool across) {
  bool never = by.ns == INT64_MAX;
  if (!never && !dibs__tick_before(dibs__tick_now(), by)) return false; /* the kernel would add its timer slack */
  if (atomic_load_explicit(word, memory_order_acquire) == seen) {
    struct timespec at = {0, 0};
    if (!never) at = monotonic_at(by);
    int op = FUTEX_WAIT_BITSET | (across ? 0 : FUTEX_PRIVATE_FLAG);
    int before = errno;
    syscall(SYS_futex, word, op, seen, never ? NULL : &at, NULL, FUTEX_BITSET_MATCH_ANY);
    errno = before;
  }
  return never || dibs__tick_before(dibs__tick_now(), by);
}

DIBS__MODULE_API void dibs__word_wake(dibs__word *word, uint32_t count, bool across) {
  int op = FUTEX_WAKE | (across ? 0 : FUTEX_PRIVATE_FLAG);
  int before = errno;
  syscall(SYS_futex, word, op, count > INT_MAX ? INT_MAX : (int)count, NULL, NULL, 0);
  errno = before;
}

DIBS__MODULE_API void dibs__nap_ms(int64_t ms) {
  dibs__word nobody = 0;
  dibs__tick now = dibs__tick_now();
  dibs__tick by = dibs__tick_add_ms(now, ms < 0 ? 0 : ms);
  for (; dibs__tick_before(now, by); now = dibs__tick_now())
    dibs__word_wait(&nobody, 0, dibs__tick_min(by, dibs__tick_add_ms(now, SLICE_MS)), false);
}

void dibs__yield(void) {
  sched_yield();
}

void dibs__spin_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#else
  sched_yield();
#endif
}

/* ---- Notifiers ---- */

DIBS__MODULE_API int dibs__notifier_open(void) {
  return eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
}

DIBS__MODULE_API void dibs__notifier_raise(int fd) {
  uint64_t one = 1;
  ssize_t r;
  do r = write(fd, &one, sizeof one);
  while (r < 0 && errno == EINTR);
  /* EAGAIN: it was raised 2^64 - 2 times, and is readable. */
}

DIBS__MODULE_API void dibs__notifier_lower(int fd) {
  uint64_t count;
  ssize_t r;
  do r = read(fd, &count, sizeof count);
  while (r < 0 && errno == EINTR);
}

DIBS__MODULE_API void dibs__notifier_close(int fd) {
  if (fd >= 0) close(fd);
}

/* ---- Shields ---- */

struct shield {
  sigset_t mask;
  int cancel;
};
_Static_assert(sizeof(struct shield) <= sizeof(dibs__shield), "a shield must fit");

DIBS__MODULE_API void dibs__shield_raise(dibs__shield *shield) {
  struct shield before;
  memset(&before, 0, sizeof before);
  sigset_t all;
  sigfillset(&all);
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before.cancel);
  pthread_sigmask(SIG_SETMASK, &all, &before.mask);
  memcpy(shield->opaque, &before, sizeof before);
}

DIBS__MODULE_API void dibs__shield_lower(const dibs__shield *shield) {
  struct shield before;
  memcpy(&before, shield->opaque, sizeof before);
  pthread_sigmask(SIG_SETMASK, &before.mask, NULL);
  pthread_setcancelstate(before.cancel, NULL);
}

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_BASE_PORT_H
#define DIBS_BASE_PORT_H
/*
 * The only interface to the clock, to random bytes, to threads and to waiting.  port_linux.c implements it; a simulator
 * replaces that file at link time.  No file outside src/base calls the system for any of these (script/lint checks
 * this).
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Marks the definition of a function that driver modules may call: libdibs exports it in the version DIBS_MODULE_1, so
 * src/libdibs.map lists it, too. */
#define DIBS__MODULE_API __attribute__((visibility("default")))

/* ---- Time ---- */

/* An instant of the local boot-time clock, which continues while the machine is suspended.  Used for deadlines and for
 * the loss of leases. */
typedef struct {
  int64_t ns;
} dibs__tick;

#define DIBS__NS_PER_MS INT64_C(1000000)
#define DIBS__TICK_NEVER ((dibs__tick){INT64_MAX})
#define DIBS__TICK_ZERO ((dibs__tick){0})

dibs__tick dibs__tick_now(void);
int64_t dibs__wall_ms(void); /* for people only: no decision depends on it */

static inline dibs__tick dibs__tick_add_ms(dibs__tick at, int64_t ms) {
  if (ms < 0 || ms > (INT64_MAX - at.ns) / DIBS__NS_PER_MS) return DIBS__TICK_NEVER;
  return (dibs__tick){at.ns + ms * DIBS__NS_PER_MS};
}
static inline bool dibs__tick_before(dibs__tick a, dibs__tick b) {
  return a.ns < b.ns;
}
static inline dibs__tick dibs__tick_min(dibs__tick a, dibs__tick b) {
  return a.ns < b.ns ? a : b;
}
/* Whole milliseconds from a to b, rounded up; 0 when b is not after a; INT64_MAX for never. */
int64_t dibs__tick_left_ms(dibs__tick a, dibs__tick b);

/* ---- Identity of a boot and of a clock ---- */

/* The kernel's boot id, 36 characters and a NUL.  false if the system does not provide it. */
bool dibs__boot_id(char id[37]);
/* The offset of this process's boot-time clock (time namespaces), in ns; 0 if there is none. */
int64_t dibs__boot_clock_offset_ns(void);

/* ---- Random bytes ---- */

/* Fills `to` with bytes that cannot be guessed.  Thread-safe, fork-safe; ends the process only if the kernel has none.
 */
void dibs__random(void *to, size_t size);

/* ---- Threads ---- */

typedef struct dibs__thread dibs__thread;
/* Starts a thread that blocks every signal.  NULL if the system can start no more.  `name`: 15 characters at most. */
dibs__thread *dibs__thread_start(const char *name, void (*body)(void *), void *arg);
void dibs__thread_join(dibs__thread *thread); /* waits for its end and frees it; accepts NULL */
/* A number that differs between threads that live at the same time; never 0. */
uintptr_t dibs__thread_self(void);

/* Changes in a child after fork(): an object that was opened under another number must not be used. */
uint64_t dibs__process_generation(void);
uint32_t dibs__process_id(void);
/* The home folder of the user as which this process acts: $HOME (not when setuid), else the system's record of the
 * user, which `memory` then contains.  An absolute path, or NULL. */
const char *dibs__home_folder(char *memory, size_t size);

/* A mutex, not recursive. */
typedef struct {
  pthread_mutex_t m;
} dibs__mutex;
void dibs__mutex_init(dibs__mutex *mutex);
void dibs__mutex_destroy(dibs__mutex *mutex);
void dibs__mutex_lock(dibs__mutex *mutex);
void dibs__mutex_unlock(dibs__mutex *mutex);

/* ---- Waiting ---- */

/* Sleeps while *word == seen, until a wake or `by`.  May return early.  true unless `by` has passed.  `across`: the
 * word is in memory that processes share. */
typedef _Atomic uint32_t dibs__word;
bool dibs__word_wait(dibs__word *word, uint32_t seen, dibs__tick by, bool across);
/* Wakes up to `count` sleepers. */
void dibs__word_wake(dibs__word *word, uint32_t count, bool across);
/* Sleeps for about `ms` (nothing can wake it). */
void dibs__nap_ms(int64_t ms);
/* Yields the processor, or pauses for an instant: one step of a short spin. */
void dibs__spin_pause(void);
/* Yields once to other threads that can run. */
void dibs__yield(void);

/* A descriptor to poll: readable from raise until lower.  -1 and errno when the system has none left. */
int dibs__notifier_open(void);
void dibs__notifier_raise(int fd);
void dibs__notifier_lower(int fd);
void dibs__notifier_close(int fd);

/* Blocks every signal and thread cancellation in the calling thread; restore undoes it.  A thread that leads a batch
 * carries other callers' operations and must not be interrupted. */
typedef struct {
  unsigned char opaque[160];
} dibs__shield;
void dibs__shield_raise(dibs__shield *shield);
void dibs__shield_lower(const dibs__shield *shield);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_LEASE_HELP_H
#define DIBS_TEST_LEASE_HELP_H
/*
 * What the tests of leases stand on: a store of their own for each case, one-line acquisitions, callers in threads,
 * acquisitions that complete later, and waiting for what must come.
 *
 * A program takes the store as its argument: "memory:", "sqlite:", with shims before it if wanted; for each case that
 * becomes a memory of its own name or a file in a folder of its own, so that several handles can open it.
 */
#include "base/port.h"
#include "dibs.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Sanitizers bring their own memory, and the one for threads lets no thread begin after a fork. */
#ifdef __has_feature
#define WITH_SANITIZER(name) __has_feature(name)
#else
#define WITH_SANITIZER(name) 0
#endif
#if defined(__SANITIZE_THREAD__) || WITH_SANITIZER(thread_sanitizer)
#define THREAD_SANITIZED 1
#else
#define THREAD_SANITIZED 0
#endif
#if THREAD_SANITIZED || defined(__SANITIZE_ADDRESS__) || WITH_SANITIZER(address_sanitizer)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

enum { LONG_MS = 30000 }; /* no test waits for longer than this for what must come */

/* ---- The case ---- */

void lease_begin(int argc, char *argv[]); /* the command line: the store, a pattern of cases */
int case_begin(void **state);
int case_end(void **state);
const char *case_uri(void);
bool case_in_memory(void);
bool case_keeps_records(void);
bool case_at_server(void);
const char *case_scheme(void); /* with its colon */ /* several processes can't share it */
#define TEST(f) cmocka_unit_test_setup_teardown(f, case_begin, case_end)
/* The shims, for programs that need one whatever their store is: "latency" before case_uri(). */
const char *shimmed(const char *shim, const char *params);

/* One more handle on the case's store; closed by the case's end unless by close_store before. */
dibs_store *open_store(void);
dibs_store *open_uri(const char *uri, uint32_t flags);
void close_store(dibs_store *store);
dibs_stats stats_of(dibs_store *store);

/* ---- Leases ---- */

typedef dibs_lease_options options;
#define HOW(...) ((options){.size = sizeof(options), ##__VA_ARGS__})
/* Must be held then. */
dibs_lease *take_as(dibs_store *store, const char *name, options how);
#define take(store, name, ...) take_as(store, name, HOW(__VA_ARGS__))
/* What dibs_acquire answers; a lease that was given is released. */
dibs_status ask_as(dibs_store *store, const char *name, options how);
#define ask(store, name, ...) ask_as(store, name, HOW(__VA_ARGS__))
/* Released (must be OK) and freed. */
void give(dibs_lease *lease);

/* ---- Callers in threads ---- */

struct caller {
  pthread_t thread;
  dibs_store *store;
  const char *name;
  options how;
  dibs_lease *lease;
  dibs_status status;
  dibs_error error;
  dibs__tick began, ended;
  _Atomic uint32_t over; /* the order in which callers came back, from 1 */
};
/* Begins a blocking dibs_acquire; the next `over` is drawn from one count of the process. */
void caller_start(struct caller *caller, dibs_store *store, const char *name, options how);
dibs_status caller_join(struct caller *caller);

/* ---- Acquisitions that complete later ---- */

struct later {
  dibs_lease *lease;
  _Atomic uint32_t calls; /* of done */
  _Atomic int status;
  _Atomic uint32_t over; /* as above */
};
void later_start(struct later *later, dibs_store *store, const char *name, options how);
dibs_status later_wait(struct later *later); /* what done was called with */
void later_done(dibs_lease *lease, dibs_status status, void *user);

/* Counts on_lost; `user` is one of these. */
struct told {
  _Atomic uint32_t calls;
  _Atomic int status;
  _Atomic(dibs_lease *) lease;
};
void told_lost(dibs_lease *lease, dibs_status status, void *user);

/* ---- Time ---- */

/* Waits until the condition holds, LONG_MS at most; then fails where it stands. */
#define UNTIL(condition)                                                                                               \
  do {                                                                                                                 \
    dibs__tick until_by = dibs__tick_add_ms(dibs__tick_now(), LONG_MS);                                                \
    while (!(condition)) {                                                                                             \
      if (!dibs__tick_before(dibs__tick_now(), until_by)) fail_msg("never came true: %s", #condition);                 \
      dibs__nap_ms(1);                                                                                                 \
    }                                                                                                                  \
  } while (0)
int64_t ms_since(dibs__tick then);

/* ---- Looking ---- */

/* How many rows dibs_show gives for the name in that state. */
uint32_t rows_of(dibs_store *store, const char *name, uint32_t state);
uint32_t threads_now(void); /* of this process */

#endif

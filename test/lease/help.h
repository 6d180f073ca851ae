/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_LEASE_HELP_H
#define DIBS_TEST_LEASE_HELP_H
/*
 * Helpers of the tests of leases: a store of its own for each case, one-line acquisitions, callers in threads,
 * acquisitions that complete later, and waits for conditions.
 *
 * A program takes the store as its argument: "memory:", "sqlite:", optionally with shims in front.  For each case this
 * becomes a memory store with a name of its own or a file in a folder of its own, so that several handles can open it.
 */
#include "base/port.h"
#include "dibs/admin.h"
#include "support/stats.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Sanitizers have their own allocator, and the one for threads cannot start a thread after a fork. */
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

enum { LONG_MS = 30000 }; /* no test waits longer than this for a condition */

/* ---- The case ---- */

void lease_begin(int argc, char *argv[]); /* the command line: the store, a pattern of cases */
int case_begin(void **state);
int case_end(void **state);
const char *case_uri(void);
bool case_in_memory(void); /* several processes can't share it */
bool case_keeps_records(void);
bool case_at_server(void);
bool case_by_majority(void);   /* redlock: only exclusive leases, and waiters are not listed */
const char *case_scheme(void); /* with its colon */
#define TEST(f) cmocka_unit_test_setup_teardown(f, case_begin, case_end)
/* The shims for programs that need one on any store: call this with "latency" before case_uri(). */
const char *shimmed(const char *shim, const char *params);

/* One more handle of the case's store; the end of the case closes it, unless close_store does before. */
dibs_store *open_store(void);
dibs_store *open_uri(const char *uri, uint32_t flags);
void close_store(dibs_store *store);

/* ---- Leases ---- */

typedef dibs_lease_options options;
#define HOW(...) ((options){.size = sizeof(options), ##__VA_ARGS__})
/* Fails the test unless the lease is granted. */
dibs_lease *take_as(dibs_store *store, const char *name, options how);
#define take(store, name, ...) take_as(store, name, HOW(__VA_ARGS__))
/* The status of dibs_acquire; releases a granted lease. */
dibs_status request_as(dibs_store *store, const char *name, options how);
#define send_request(store, name, ...) request_as(store, name, HOW(__VA_ARGS__))
/* Releases the lease, which must answer OK, and frees it. */
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
  _Atomic uint32_t over; /* the order in which callers returned, from 1 */
};
/* Begins a blocking dibs_acquire; the next `over` comes from one counter of the process. */
void caller_start(struct caller *caller, dibs_store *store, const char *name, options how);
dibs_status caller_join(struct caller *caller);

/* ---- Acquisitions that complete later ---- */

struct later {
  dibs_lease *lease;
  _Atomic uint32_t calls; /* the status that `done` received */
  _Atomic int status;
  dibs_error error;
  _Atomic uint32_t over; /* as above */
};
void later_start(struct later *later, dibs_store *store, const char *name, options how);
dibs_status later_wait(struct later *later); /* the values that `done` received */
void later_done(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user);

/* An on_lost callback that counts; `user` points to this. */
struct told {
  _Atomic uint32_t calls;
  _Atomic int status;
  _Atomic(dibs_lease *) lease;
};
void count_loss(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user);

/* ---- Time ---- */

/* Waits until the condition is true, at most LONG_MS; then fails the test at this line. */
#define UNTIL(condition)                                                                                               \
  do {                                                                                                                 \
    dibs__tick until_by = dibs__tick_add_ms(dibs__tick_now(), LONG_MS);                                                \
    while (!(condition)) {                                                                                             \
      if (!dibs__tick_before(dibs__tick_now(), until_by)) fail_msg("this never became true: %s", #condition);          \
      dibs__nap_ms(1);                                                                                                 \
    }                                                                                                                  \
  } while (0)
int64_t ms_since(dibs__tick then);

/* ---- Inspection ---- */

/* How many rows dibs_show returns for the name in that state. */
uint32_t rows_of(dibs_store *store, const char *name, uint32_t state);
uint32_t threads_now(void); /* of this process */

#endif

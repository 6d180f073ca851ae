/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_COUNTER_SHARED_BED_H
#define DIBS_TEST_COUNTER_SHARED_BED_H
/*
 * A store of two tiers, a real Redis and a SQLite file, for counters of the level shared; and what interferes with a
 * flusher at one of its steps.  The program is linked with --wrap for dibs__request_carry and dibs_acquire.
 */
#include "dibs/counter.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <cmocka.h>

enum { LONG_MS = 60000, BED_TTL_MS = 1500 };

/* What a child and its parent share. */
struct tally {
  _Atomic int64_t attempted, acknowledged;
  _Atomic int64_t flushed; /* acknowledged before a flush that was confirmed */
  _Atomic int32_t reached; /* the child has reached the step */
  _Atomic bool over;
};
extern struct tally *tally;
extern dibs_error reported;

/* ---- Interference ---- */

enum step { STEP_NONE, STEP_SEAL, STEP_APPLY, STEP_DROP, STEP_ADD };
enum what { DIES, STOPS, LOSES };
struct plan {
  enum step step;
  bool after;              /* the store has done it; else it has not been sent */
  enum what what;          /* kill -9; SIGSTOP; the answer is lost, once */
  void (*meanwhile)(void); /* before the answer is lost; may be NULL */
};
/* Of this process. */
extern struct plan plan;
extern bool leases_differ; /* each lease has a name of its own, so none excludes another */

/* ---- The bed ---- */

/* The URI of a Redis of its own, which the test may kill. */
int bed_main(int argc, char **argv, const struct CMUnitTest tests[], size_t count);
int bed_setup(void **state);    /* Redis is empty, the file is new */
int bed_teardown(void **state); /* no process is left */
#define TEST(name) cmocka_unit_test_setup_teardown(name, bed_setup, bed_teardown)

const char *bed_uri(void);
const char *bed_redis(void); /* of the first tier */
void bed_use_redis(const char *uri);
void bed_use_database(const char *uri);
const char *bed_file(void); /* the database alone */
dibs_store *bed_open(void);
dibs_store *bed_open_at(const char *uri);
/* At the level shared; it must be acknowledged. */
void bed_add(dibs_store *store, const char *key, int64_t delta);
/* Everything is in the database. */
void bed_flush(dibs_store *store);
int64_t bed_stored(const char *key); /* in the database, by itself */
void bed_wait_stored(const char *key, int64_t want);
#define expect_stored(key, want) assert_int_equal(bed_stored(key), want)
/* A child that runs `body` and then ends with 0. */
pid_t bed_child(void (*body)(void));
void bed_wait_for(_Atomic int64_t *number, int64_t least);
void bed_wait_stopped(pid_t child);
void bed_end(pid_t child, int signal);
void bed_nap(void);

/* script/servers, for the server in this folder (NULL: the private Redis). */
void bed_servers(const char *verb, const char *folder, const char *more);
const char *bed_folder(void);
/* As the administrator; the command's words. */
void bed_ask(const char *folder, const char *command);
/* Copies the memory of Redis to a file, which a later restore makes its memory, after kill -9. */
void bed_dump(void);
void bed_restore(void);
void bed_empty(void);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_ISOLATION_H
#define DIBS_TEST_ISOLATION_H
/*
 * Interleavings: a few sessions, each with its steps in order, are run in every order in which their steps can be
 * mixed. What each step answers, and what the tables say in the end, must be what the spec promises.
 *
 *   on sqlite postgres mysql          engines; without it all
 *   setup SQL                         before each permutation, one statement a line; `@text` is a key type of the
 * engine's teardown SQL                      and after table KEY=VALUE ...               declares the table of `record`
 * and `stock` steps (as dibs_table_options has it) session NAME                      the steps that follow are its
 *   NAME: WORDS                       a step, see below
 *   only NAME NAME ...                these permutations alone; without it all
 *   expect ...                        in every permutation, see below
 *   some STATUS of STEP ...           in some permutation of the spec one of them answers that
 *
 * Steps:
 *   sql STATEMENT                     on a connection of the session's own
 *   get KEY                           reads the record; put and what follows know its version
 *   put KEY VALUE                     if that version stands; every `*` in VALUE is what was read
 *   seal KEY LEASE                    reads under the lease's fence
 *   save KEY LEASE VALUE              writes under it
 *   take KEY AMOUNT CLAIM [STRATEGY]  give KEY CLAIM
 *   once KEY                          begins: OK when it runs here, REPLAY with the answer of who ran it
 *   answer TEXT | fail                ends what `once` began; NOT_FOUND if nothing runs here
 *   lease NAME FENCE                  (outside of sessions) a lease that was granted under this fence
 *
 * Expectations:
 *   STEP is STATUS|STATUS...
 *   N STATUS of STEP STEP ...         exactly so many of them answer that; `N` may be <=N or >=N
 *   value SQL = TEXT                  what one cell holds; $ok(STEP,STEP) is how many of them answered OK, $got(STEP)
 * what the step read or was given if STEP STATUS then EXPECTATION
 *
 * A step that has not answered after a while waits for another session: the next due step of another is begun
 * meanwhile, and its own session's when it has answered.
 */
#include "base/port.h"
#include "lab/door.h"

#include <stdio.h>

enum { STEPS_MAX = 24, SESSIONS_MAX = 4, LINES_MAX = 24, TEXT_MAX = 400, WORD_MAX = 32 };

struct step {
  char name[WORD_MAX];
  char words[TEXT_MAX];
  int session;
  /* Of the permutation that runs. */
  _Atomic bool begun;
  dibs__word done; /* 1: it has answered */
  dibs_status status;
  bool deadlock;
  char got[TEXT_MAX];
  char why[TEXT_MAX];
};

struct lines {
  size_t count;
  char text[LINES_MAX][TEXT_MAX];
};

struct lease_of {
  char name[WORD_MAX];
  uint64_t fence;
};

struct spec {
  const char *path;
  struct lines engines, setup, teardown, only, expect, some;
  char table[LINES_MAX * 40];
  size_t session_count, step_count, lease_count;
  char sessions[SESSIONS_MAX][WORD_MAX];
  struct lease_of leases[SESSIONS_MAX];
  struct step steps[STEPS_MAX];
};

/* ---- spec.c ---- */
/* As much as fits. */
void spec_copy(char *to, size_t size, const char *from);
/* false: said where and what. */
bool spec_read(const char *path, struct spec *spec);
struct step *spec_step(struct spec *spec, const char *name, size_t len);

/* ---- steps.c ---- */
struct play;
struct play *play_new(struct spec *spec, const char *uri);
void play_free(struct play *play);
/* Runs the steps in this order; afterwards each has its answer.  false: it could not be set up, or never came to rest.
 */
bool play_run(struct play *play, const int order[], size_t count);
/* One cell; false with words. */
bool play_value(struct play *play, const char *sql, char *to, size_t size);
const char *play_engine(const struct play *play);

/* ---- expect.c ---- */
/* false: `why` says what is not as promised. */
bool expect_holds(struct play *play, struct spec *spec, const char *expectation, char *why, size_t size);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_ISOLATION_H
#define DIBS_TEST_ISOLATION_H
/*
 * Interleavings: a few sessions, each with ordered steps, run in every order in which their steps can be mixed.  The
 * answers of the steps, and the tables at the end, must be what the spec promises.
 *
 *   on sqlite postgres mysql          engines; default: all
 *   setup SQL                         before each permutation, one statement in each line; `@text` is a key type of the
 *                                     engine
 *   teardown SQL                      and after each permutation
 *   table KEY=VALUE ...               declares the table of `record` and `stock` steps, as in dibs_table_options
 *   session NAME                      the following steps belong to it
 *   NAME: WORDS                       a step, see below
 *   only NAME NAME ...                only these permutations; default: all
 *   expect ...                        in every permutation, see below
 *   some STATUS of STEP ...           in at least one permutation of the spec one of these steps answers that
 *
 * Steps:
 *   sql STATEMENT                     on a connection of the session's own
 *   get KEY                           reads the record; put and later steps know its version
 *   put KEY VALUE                     if that version is current; every `*` in VALUE becomes the content that was read
 *   seal KEY LEASE                    reads under the lease's fence
 *   save KEY LEASE VALUE              writes under it
 *   take KEY AMOUNT CLAIM [STRATEGY]  give KEY CLAIM
 *   once KEY                          begins: OK if it runs here, REPLAY with the answer of another session's run
 *   answer TEXT | fail                ends what `once` began; NOT_FOUND if nothing runs here
 *   lease NAME FENCE                  (outside of sessions) a lease that was granted under this fence
 *
 * Expectations:
 *   STEP is STATUS|STATUS...
 *   N STATUS of STEP STEP ...         exactly N of these steps answer that; `N` may be <=N or >=N
 *   value SQL = TEXT                  the content of one cell; $ok(STEP,STEP) is how many of these steps answered OK,
 *                                     $got(STEP) the result of the step
 *   if STEP STATUS then EXPECTATION
 *
 * A step that does not answer for a while waits for another session: meanwhile the next due step of another session
 * begins, and the next one of its own session after it has answered.
 */
#include "base/port.h"
#include "lab/lab.h"

#include <stdio.h>

enum { STEPS_MAX = 24, SESSIONS_MAX = 4, LINES_MAX = 24, TEXT_MAX = 400, WORD_MAX = 32 };

struct step {
  char name[WORD_MAX];
  char words[TEXT_MAX];
  int session;
  /* State of the running permutation. */
  dibs__word done; /* 1: the step has answered */
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
/* Copies as much as fits. */
void spec_copy(char *to, size_t size, const char *from);
/* false: it printed the place and the mistake. */
bool spec_read(const char *path, struct spec *spec);
struct step *spec_step(struct spec *spec, const char *name, size_t len);

/* ---- steps.c ---- */
struct play;
struct play *play_new(struct spec *spec, const char *uri);
void play_free(struct play *play);
/* Runs the steps in this order; afterwards each has its answer.  false: the setup failed, or the steps did not end.
 */
bool play_run(struct play *play, const int order[], size_t count);
/* Reads one cell; false: `why` has the reason. */
bool play_value(struct play *play, const char *sql, char *to, size_t size);
const char *play_engine(const struct play *play);

/* ---- expect.c ---- */
/* false: `why` names the broken expectation. */
bool expect_holds(struct play *play, struct spec *spec, const char *expectation, char *why, size_t size);

#endif
